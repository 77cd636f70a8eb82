"""`make demo-train`, with a smaller model: it shows what was measured, over the death of a rank, and leaves one picture."""
import os
import re
import signal
import struct
import subprocess
import zlib

import numpy
import pytest
from demo.train import chart
from lib import features
from lib.daemon import environment

pytestmark = [pytest.mark.plain, pytest.mark.timeout(500)]  # test_torch_life and others run the same code
DEMO_S = 450  # a loaded machine
NUMBER = r"[0-9,.]+"


HAS_PEFT = os.path.exists(features.PROGRAMS)


def run(build, folder, *args):
    """The script as make calls it; all that it may leave behind is in the folder."""
    features.require("library")
    features.require("torch2")
    given = environment(WEIGHTD_BUILD=str(build), TMPDIR=str(folder), OMP_NUM_THREADS="1")
    return subprocess.run([features.PROGRAMS if HAS_PEFT else features.TORCH2, features.ROOT / "tests/demo/train/run", *args], env=given, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=DEMO_S)


def megabytes(text, row):
    """The two numbers of a row of a table."""
    return [float(number.replace(",", "")) for number in re.search(rf"^ *{row} +({NUMBER}) MB +({NUMBER}) MB", text, re.M).groups()]


def pixels(png):
    """The picture as an array, by its chunks, which must have the right checksums."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, size = 8, b"", None
    while at < len(png):
        n, kind = struct.unpack_from(">I4s", png, at)
        content = png[at + 8:at + 8 + n]
        assert zlib.crc32(kind + content) == struct.unpack_from(">I", png, at + 8 + n)[0]
        size = struct.unpack_from(">II", content) if kind == b"IHDR" else size
        data += content if kind == b"IDAT" else b""
        at += 12 + n
    width, height = size
    return numpy.frombuffer(zlib.decompress(data), numpy.uint8).reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)


def test_demo_trains_over_a_death_and_leaves_one_picture(build, tmp_path):
    picture, folder = tmp_path / "curve.png", tmp_path / "t"
    folder.mkdir()
    done = run(build, folder, "--small", "--picture", picture)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    text = done.stdout
    assert list(folder.iterdir()) == []
    lines = [line for line in text.splitlines() if str(picture) not in line]
    assert max(map(len, lines)) <= 80, text

    assert "rank 2 is killed" in text and "it continues in step 1" in text
    assert re.findall(r"^ +(\d+) +\d\.\d\d  The server", text, re.M) == ["10", "20", "30"]
    assert "▲ the death of rank 2" in text
    parts = re.search(r"by at most (\S+) in the 10 steps before it, (\S+) in the 10\s+after it, and (\S+) in the last", text).groups()
    assert max(map(float, parts)) < 1e-5, text  # a lost or repeated step differs by more than 1e-3
    for row, least in ("parameters", 3.9), ("moments of AdamW", 3.9), ("gradients", 0.9):
        ours, theirs = megabytes(text, row)
        assert theirs > least * ours * 0.95, text
    if HAS_PEFT:
        check_adapters(text)
    else:
        assert "skipped: this Python has no peft" in text
    assert pixels(picture.read_bytes()).min() < 100


def check_adapters(text):
    assert "losses of plain processes differ by 0e+00 at most" in text
    base, copies = megabytes(text, "the frozen base")
    assert 3.5 * base < copies < 4.1 * base, text
    assert len(re.findall(r"^ +\S+\.[18] +\d\.\d\d -> \d\.\d\d", text, re.M)) == 4


def test_demo_that_is_interrupted_says_so_and_leaves_nothing(build, tmp_path):
    """SIGINT for the whole group, as a terminal sends it."""
    features.require("library")
    features.require("torch2")
    given = environment(WEIGHTD_BUILD=str(build), TMPDIR=str(tmp_path), OMP_NUM_THREADS="1")
    demo = subprocess.Popen([features.TORCH2, features.ROOT / "tests/demo/train/run", "--small", "--picture", tmp_path / "p.png"],
                            env=given, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)
    while "rank 2 is killed" not in demo.stdout.readline():
        assert demo.poll() is None, demo.stderr.read()
    os.killpg(demo.pid, signal.SIGINT)
    _, errors = demo.communicate(timeout=DEMO_S)
    assert (demo.returncode, errors) == (1, "demo-train: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_picture_has_the_curve_where_its_values_are():
    image = pixels(chart.picture({"a": [4.0, 3.0, 2.0, 1.0], "b": [4.0, 3.0, 2.0, 1.0]}, [1], "x")).astype(int)
    assert image.shape == (chart.HEIGHT, chart.WIDTH, 3)
    ys, xs = numpy.nonzero((image == (30, 90, 180)).all(axis=2) & (numpy.arange(chart.HEIGHT) > chart.TOP - 4)[:, None])
    wanted = chart.TOP + (xs - chart.LEFT) * (chart.HEIGHT - chart.TOP - chart.BOTTOM) / (chart.WIDTH - chart.LEFT - chart.RIGHT)
    assert len(xs) > 500 and abs(ys - wanted).max() < 3
    red = numpy.nonzero((image == (200, 60, 60)).all(axis=2)[chart.TOP + 10])[0]
    assert abs(red - (chart.LEFT + (chart.WIDTH - chart.LEFT - chart.RIGHT) / 3)).max() <= 1


def test_terminal_has_the_curve_from_corner_to_corner():
    lines = chart.draw([4.0, 3.0, 2.0, 1.0], [3])
    assert lines[0].startswith("  4.00 ┤\u2801"[:8]) and lines[chart.ROWS - 1].startswith("  1.00 ┤")
    assert lines[0][8] != "\u2800" and lines[0][-1] == "\u2800" and lines[chart.ROWS - 1][-1] != "\u2800"
    assert lines[-2].endswith("▲") and max(map(len, lines)) <= 77

"""tests/gpu/run, on the fake GPU: it runs and reports; its results there mean nothing for a real one."""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile

import pytest
from lib import features
from lib.gpus import Gpus

pytestmark = pytest.mark.plain  # the tests of cuda run the same programs
SECTIONS = ("probe", "sharing", "survive", "changing", "readonly", "freeing", "ipc", "sync", "nccl", "pair", "trace",
            "profiler", "replay", "digest", "wake", "attach", "load", "train", "sanitizer")
CUDA_IN_HERE = """
import ctypes
class cuda:
    @staticmethod
    def is_available():
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        return False
__version__ = "0"
"""


def command(*args):
    return [sys.executable, features.ROOT / "tests/gpu/run", "--no-build", *map(str, args)]


def run(build, *args, **env):
    return subprocess.run(command(*args), env=os.environ | {"WEIGHTD_BUILD": str(build)} | env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(autouse=True)
def programs(require):
    require("fakes")
    require("gpu-programs")


@pytest.fixture
def gpus():
    made = Gpus(memory="512M")
    yield made
    made.close()


@pytest.mark.parametrize("section", [s for s in SECTIONS if s not in ("sanitizer", "train")])  # these show nothing on it
def test_each_section_shows_what_the_fake_can_carry(section, tmp_path, require):
    if section == "trace":
        require("bpf")
        require("pids")
    done = run(features.BUILD, "--fake", "--results", tmp_path, "--sections", section)
    lines = lines_of(done.stdout)
    assert [line for line in lines if line["ok"] is False] == []
    assert done.returncode == 0, done.stderr
    assert any(line["ok"] for line in lines)
    kept, = tmp_path.iterdir()
    assert lines_of(kept.read_text()) == lines


def test_a_section_that_fails_does_not_stop_the_others(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("weightd-cuda", "weightctl", "libweightd.so", "libweightd.so.0", "libweightd-train.so", "libweightd-train.so.0", "gpu"):
        (broken / name).symlink_to(features.BUILD / name)
    (broken / "weightd").symlink_to("/bin/false")
    done = run(broken, "--fake", "--results", tmp_path / "results", "--sections", "readonly,freeing,train,sanitizer")
    assert [(line["section"], line["name"], line["ok"], line["why"]) for line in lines_of(done.stdout)] == [
        ("readonly", "the section", False, "Died: weightd ended with 1: its log is empty"),
        *(("freeing", f"{part} memory", False, "Died: weightd ended with 1: its log is empty")
          for part in ("removed", "scrubbed", "orphaned")),
        ("train", "the section", None, "jobs have host memory only: no rank can have its parameters on a GPU yet"),
        ("sanitizer", "the section", None, "the stand-in has no kernels to look at")]
    assert done.returncode == 1, done.stderr


def test_a_part_that_fails_does_not_stop_its_section(tmp_path, gpus):
    gpus.fail("cuMemcpyDtoH_v2", 700, 0, 1)  # the first bytes that a reader copies back
    done = run(features.BUILD, "--small", "--results", tmp_path, "--sections", "sharing", **gpus.env)
    oks = {line["name"]: line["ok"] for line in lines_of(done.stdout)}
    assert oks["words that differ, copied back"] is False, done.stderr
    assert oks["verified on the device"] is not None and "a model in torch" in oks, oks


def test_what_was_measured_outlives_a_run_that_is_killed(tmp_path, gpus):
    n = random.randrange(1, 20)
    env = os.environ | {"WEIGHTD_BUILD": str(features.BUILD)} | gpus.env
    (tmp_path / "torch.py").write_text(CUDA_IN_HERE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, \
            subprocess.Popen(command("--small", "--results", tmp_path / "results", "--sections", "sharing,changing,survive"),
                             env=env | {"PYTHONPATH": str(tmp_path), "TMPDIR": folder}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, start_new_session=True) as proc:
        try:
            shown = [proc.stdout.readline() for _ in range(n)]
            maps = open(f"/proc/{proc.pid}/maps").read()
            proc.kill()
            shown += proc.stdout.readlines()
        finally:
            os.killpg(proc.pid, signal.SIGKILL)
    kept, = (tmp_path / "results").iterdir()
    lines = lines_of(kept.read_text())
    # One more may have been written and not shown.
    assert lines_of("".join(shown)) == lines[:len(shown)] and len(lines) - len(shown) in (0, 1), (n, shown, lines)
    assert len(shown) >= n
    # A process that has initialised CUDA can start none that uses it by fork.
    assert "libcuda" not in maps


def test_a_hang_ends_with_the_time_and_what_is_left_is_not_tried(tmp_path, gpus):
    gpus.fail("cuMemCreate", "hang")
    done = run(features.BUILD, "--small", "--results", tmp_path, "--sections", "readonly,freeing", "--seconds", 2, **gpus.env)
    assert [(line["section"], line["name"], line["ok"]) for line in lines_of(done.stdout)] == [
        ("readonly", "cut short", None), ("freeing", "not tried", None)], done.stderr
    assert done.returncode == 2, done.stderr


def test_a_machine_without_a_gpu_is_told_so(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run(features.BUILD)
    assert (done.returncode, "nothing can be shown here: open 0: " in done.stderr) == (2, True), done.stderr


def test_nothing_built_is_said(tmp_path):
    done = run(tmp_path)
    assert (done.returncode, "has no weightd, weightd-cuda" in done.stderr) == (2, True), done.stderr

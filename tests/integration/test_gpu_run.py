"""tests/gpu/run, on the fake GPU: that it runs and tells; what it shows there is nothing about a real one."""
import json
import os
import subprocess
import sys

import features
import pytest

# compute-sanitizer wants a GPU.
pytestmark = pytest.mark.plain  # the tests of cuda run the same programs
SECTIONS = ("probe", "sharing", "survive", "attach", "load", "changing", "readonly", "freeing", "ipc", "sync", "nccl", "trace", "profiler")


def run(build, *args):
    return subprocess.run([sys.executable, features.ROOT / "tests/gpu/run", "--no-build", *args],
                          env=os.environ | {"WEIGHTD_BUILD": str(build)}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100)


@pytest.fixture(autouse=True)
def programs(require):
    require("fakes")
    require("gpu-programs")


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_shows_what_the_fake_can_carry(section, tmp_path, require):
    if section == "trace":
        require("bpf")
        require("pids")
    done = run(features.BUILD, "--fake", "--results", tmp_path, "--sections", section)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line for line in lines if line["ok"] is False] == []
    assert done.returncode == 0, done.stderr
    assert any(line["ok"] for line in lines)
    kept, = tmp_path.iterdir()
    assert [json.loads(line) for line in kept.read_text().splitlines()] == lines


def test_a_section_that_fails_does_not_stop_the_others(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("weightd-cuda", "weightctl", "libweightd.so", "libweightd.so.0", "gpu"):
        (broken / name).symlink_to(features.BUILD / name)
    (broken / "weightd").symlink_to("/bin/false")
    done = run(broken, "--fake", "--results", tmp_path / "results", "--sections", "sharing,readonly,sanitizer")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["section"], line["ok"]) for line in lines] == \
        [("sharing", False), ("readonly", False), ("sanitizer", None)]
    assert done.returncode == 1, done.stderr


def test_a_machine_without_a_gpu_is_told_so(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run(features.BUILD)
    assert (done.returncode, "nothing can be shown here: open 0: " in done.stderr) == (2, True), done.stderr


def test_nothing_built_is_said(tmp_path):
    done = run(tmp_path)
    assert (done.returncode, "has no weightd, weightd-cuda" in done.stderr) == (2, True), done.stderr

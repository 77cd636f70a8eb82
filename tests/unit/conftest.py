"""Each tests/unit/test_*.c is one test: its program under build/unit has to exit with 0.

Programs that open libcuda find the stand-in of tests/fake, and one GPU in it.

Those that `longer` lists do more where WEIGHTD_LONG is set (long_form.h). Those that `threads` lists run under ThreadSanitizer too. The others start no thread, and end in the plain build where
they try to.

A program that cannot run here prints the reason in its last line and exits with 77.
"""
import os
import pathlib
import subprocess

import pytest
from lib import features
from lib.gpus import Gpus

SKIP = 77
# Beside 50 other processes on 2 CPUs, a program of 13 s under AddressSanitizer takes more than three minutes.
PATIENCE_S = 400
# Limit of programs that compute and never wait: 19 s under AddressSanitizer are minutes beside all that runs in three lanes.
PATIENCE_WITH_ONE_THREAD_S = 500
# The agent of weightd-sync, simulated: long runs of a program that has no other thread.
ONE_THREAD = {f"test_sync_{name}" for name in (
    "agent", "agent_trouble", "bounds", "changes", "epoch", "head", "hostile", "joint", "joint_liars", "joint_trouble",
    "pace", "plan", "push_model", "reshard", "told")}
THREADS = set(pathlib.Path(__file__).with_name("threads").read_text().split())
LONGER = set(pathlib.Path(__file__).with_name("longer").read_text().split())
NO_THREADS = features.ROOT / "build/fake/no-threads.so"
NEEDS = {"test_mmap_watch": "trace", "test_ring": "trace"}  # parts of the build, as every test_sync_* needs weightd-sync
SEES_ALL = {"test_mmap_watch"}  # processes of this machine, which the kernel reports to programs of BPF


def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".c" and file_path.name.startswith("test_"):
        return UnitFile.from_parent(parent, path=file_path)
    return None


class UnitFile(pytest.File):
    def collect(self):
        yield UnitProgram.from_parent(self, name=self.path.stem)


class UnitFailure(Exception):
    pass


class UnitProgram(pytest.Item):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.patience_s = PATIENCE_WITH_ONE_THREAD_S if self.name in ONE_THREAD else PATIENCE_S
        self.add_marker(pytest.mark.timeout(self.patience_s + 20))
        if self.name in SEES_ALL:
            self.add_marker("probes")
        if self.name in THREADS:
            self.add_marker("threads")
        if self.name in LONGER:
            self.add_marker("longer")

    def runtest(self):
        features.require("cmocka")
        if self.name in NEEDS:
            features.require(NEEDS[self.name])
        if self.name.startswith("test_sync_"):
            features.require("sync")
        program = features.BUILD / "unit" / self.name
        if not program.exists():
            raise UnitFailure(f"{program} is not there: make unit")
        gpus = Gpus()
        env = os.environ | gpus.env
        if features.BUILD.name == "build" and self.name not in THREADS:
            features.require("fakes")
            env["LD_PRELOAD"] = str(NO_THREADS)
        try:
            done = subprocess.run([program], cwd=features.ROOT, stdin=subprocess.DEVNULL,
                                  env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=self.patience_s)
        finally:
            gpus.close()
        output = done.stdout.decode(errors="replace")
        if done.returncode == SKIP:
            pytest.skip(output.strip().rsplit("\n", 1)[-1])
        if done.returncode:
            raise UnitFailure(f"{output}\n{program} exited with {done.returncode}")

    def repr_failure(self, excinfo):
        if isinstance(excinfo.value, UnitFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, None, self.name

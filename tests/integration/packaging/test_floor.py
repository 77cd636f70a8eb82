"""The wheel runs with glibc 2.28: what its programs call was there, by the objects of the ordinary build."""
import pathlib
import re
import subprocess

import pytest
from lib import features

FLOOR = 2, 28
IN_EACH = {"stat", "lstat", "fstat", "fstatat", "mknod", "mknodat", "__libc_start_main"}  # inside of programs, before glibc 2.33


def versions(path):
    """{function of glibc that a file needs, or has: all versions of it}."""
    found = {}
    for line in subprocess.run(["objdump", "-T", path], check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines():
        m = re.search(r"(\*UND\*)?\s[0-9a-f]+\s+\(?GLIBC_(\d+)\.(\d+)[\d.]*\)?\s+(\S+)$", line)
        if m:
            found.setdefault(m[4], set()).add((int(m[2]), int(m[3])))
    return found


@pytest.fixture(scope="module")
def glibc():
    """{function: its earliest version}."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    folder = pathlib.Path(re.search(r"(/\S+)/libc\.so\.6$", maps, re.M)[1])
    return {name: min(all_versions) for file in ("libc.so.6", "libm.so.6") for name, all_versions in versions(folder / file).items()}


@pytest.mark.parametrize("name", ["weightd", "weightd-cuda", "weightctl", "libweightd.so", "libweightd-train.so"])
def test_a_program_of_the_wheel_calls_nothing_newer_than_the_floor(build, glibc, name):
    if features.BUILD != features.ROOT / "build":
        pytest.skip("sanitizers call functions of their own")
    needed = versions(build / name)
    assert len(needed) > 20
    newer = {name: glibc[name] for name, wanted in needed.items() if max(wanted) > FLOOR and glibc.get(name, FLOOR) > FLOOR}
    weak = {"strerrorname_np", "sigabbrev_np", "posix_spawn_file_actions_addclosefrom_np"}  # see ipc/base/libc.h
    assert not newer.keys() - IN_EACH - weak, f"{name} needs them; ipc/base/libc.h has others"

"""The throw-away machine itself: it boots at once, and nothing of it stays."""
import contextlib
import errno
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

import pytest
from lib.box import PATIENCE_S, Box, cgroups

TESTS = pathlib.Path(__file__).resolve().parents[1]
BOOT_S = 10  # whatever waits for something in vain does so for longer


def processes(name):
    """The processes of a box: all in its cgroups, which its systemd removes at any time."""
    found = set()
    for group in cgroups(name):
        for folder, _, _ in os.walk(group):
            try:
                found |= set(map(int, pathlib.Path(folder, "cgroup.procs").read_text().split()))
            except OSError as e:
                if e.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
    return found


def mounts():
    """The mounts of this machine, without network namespaces: tests that run beside this one make and remove those."""
    return [line for line in pathlib.Path("/proc/self/mounts").read_text().splitlines() if " /run/netns" not in line]


def is_alive(pid):
    """Not so a zombie, which only waits for a PID 1 to look."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def remains(name, pids):
    return [str(g) for g in cgroups(name) if g.exists()] + [p for p in pids if is_alive(p)]


@contextlib.contextmanager
def box_of_another_process():
    """A program that boots a box and then waits: (the process, name of the box, all PIDs of the box)."""
    script = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n" \
        "from lib.box import Box\nimport signal\n" \
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n" \
        "with Box() as box:\n\tprint(box.name, flush=True)\n\tsignal.pause()\n"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as proc:
        try:
            name = proc.stdout.readline().strip()
            pids = processes(name)
            assert len(pids) > 2
            yield proc, name, pids
        finally:
            proc.kill()


def wait_for_ends(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            try:
                assert select.select([fd], [], [], PATIENCE_S)[0], f"process {pid} lives on"
            finally:
                os.close(fd)


def boot_in_no_time():
    """The first one of three that nothing else held up."""
    for _ in range(3):
        start = time.monotonic()
        box = Box()
        if time.monotonic() - start < BOOT_S:
            return box
        box.close()
    raise AssertionError(f"three boots took more than {BOOT_S} s each")


def test_it_runs_a_systemd_in_no_time_with_files_of_its_own_and_no_network():
    ours = pathlib.Path("/etc/weightd-test-box")
    with boot_in_no_time() as box:
        assert box.run("systemctl", "is-system-running").stdout == "running\n"
        assert box.run("cat", "/proc/1/comm").stdout == "systemd\n"
        box.run("touch", ours)
        assert box.path(str(ours)).exists() and not ours.exists()
        assert os.listdir(box.path("/sys/class/net")) == ["lo"]


@pytest.mark.parametrize("error", [None, pytest.param(ValueError, marks=pytest.mark.long), KeyboardInterrupt])
def test_it_leaves_nothing(error):
    before = mounts()
    with contextlib.suppress(error or ()), Box() as box:
        box.run("systemd-run", "--quiet", "sleep", "infinity")
        box.spawn("sleep", "infinity")
        pids = processes(box.name)
        assert len(pids) > 2 and remains(box.name, pids)
        assert mounts() == before
        if error:
            raise error
    assert remains(box.name, pids) == []
    assert mounts() == before


def test_one_that_does_not_boot_says_why_and_leaves_nothing(tmp_path):
    (tmp_path / "usr/lib/systemd").mkdir(parents=True)
    (tmp_path / "usr/lib/systemd/systemd").write_text("#!/bin/sh\necho cannot go on\nexit 1\n")
    (tmp_path / "usr/lib/systemd/systemd").chmod(0o755)
    made = []

    class Watched(Box):
        def close(self):
            made.append((self.name, processes(self.name)))
            super().close()

    with pytest.raises(AssertionError, match="does not boot:\n(?s:.)*cannot go on"):
        Watched(tmp_path)
    assert remains(*made[0]) == []


def test_ctrl_c_takes_it_down():
    with box_of_another_process() as (proc, name, pids):
        proc.send_signal(signal.SIGINT)
        proc.wait(PATIENCE_S)
        assert remains(name, pids) == []


def test_one_of_a_killed_process_ends_and_the_next_one_removes_its_cgroups():
    with box_of_another_process() as (proc, name, pids), box_of_another_process() as (_, other, others):
        proc.kill()
        proc.wait()
        wait_for_ends(pids)
        with Box():
            assert remains(name, pids) == []
            assert processes(other) >= others, "a box of a living process was touched"

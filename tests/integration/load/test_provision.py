"""Loads while their memory is made: they read what has memory, and report and cancel meanwhile."""
import ctypes
import os
import platform
import re
import select
import signal
import struct
import time

import pytest
from integration.weightctl.test_weightctl import write_sparse
from lib.wire import PATIENCE_S, SLOTS, Wire, until

MIB = 1 << 20
PART = 2 * MIB  # bytes of each fallocate()
N_PARTS = 128
SIZE = N_PARTS * PART

PTRACE_SYSCALL, PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_GET_SYSCALL_INFO = 24, 17, 0x4206, 0x4207, 0x420e
TRACESYSGOOD, WALL = 1, 0x40000000
ENTRY, EXIT = 1, 2
FALLOCATE = {"x86_64": 285, "aarch64": 47}

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, tid, address=0, data=0):
    if libc.ptrace(request, tid, address, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


class Held:
    """A traced thread that stops at chosen points: with Held(tid) as thread: thread.run_past(system_call)."""

    def __init__(self, tid):
        self.tid = tid
        ptrace(PTRACE_SEIZE, tid, 0, TRACESYSGOOD)
        ptrace(PTRACE_INTERRUPT, tid)
        os.waitpid(tid, WALL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ptrace(PTRACE_DETACH, self.tid)

    def run_past(self, wanted, n):
        """To the return of the nth of that system call."""
        info, number = ctypes.create_string_buffer(88), None
        while True:
            ptrace(PTRACE_SYSCALL, self.tid)
            _, status = os.waitpid(self.tid, WALL)
            assert os.WIFSTOPPED(status), status
            if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
                continue
            libc.ptrace(PTRACE_GET_SYSCALL_INFO, self.tid, len(info), ctypes.addressof(info))
            if info.raw[0] == ENTRY:
                number = struct.unpack_from("<Q", info.raw, 24)[0]
            elif info.raw[0] == EXIT and number == wanted:
                n -= 1
                if n == 0:
                    return


def worker_of(daemon):
    """Its thread that provides memory, the first that it starts."""
    return min(int(t) for t in os.listdir(f"/proc/{daemon.pid}/task") if int(t) != daemon.pid)


class Load:
    """weightctl load, and its output so far."""

    def __init__(self, daemon, *args):
        self.proc = daemon.spawn("load", *args, bufsize=0)
        self.said = ""

    def hear(self, words):
        """Waits until it has printed that."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.said:
            left = max(0, deadline - time.monotonic())
            assert select.select([self.proc.stderr], [], [], left)[0], f"no {words!r} after {self.said!r}"
            piece = os.read(self.proc.stderr.fileno(), 65536).decode()
            assert piece, f"the end and no {words!r} after {self.said!r}"
            self.said += piece

    def end(self):
        out, errors = self.proc.communicate(timeout=PATIENCE_S)
        self.said += errors.decode()
        return self.proc.returncode, out.decode()


@pytest.fixture
def daemon_of_one(make_daemon):
    """With one processor, and so with one thread that makes memory."""
    return make_daemon(prefix=("taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))))


@pytest.fixture
def fallocate(require):
    require("root")
    if platform.machine() not in FALLOCATE:
        pytest.skip(f"the number of fallocate() on {platform.machine()} is not in the table here")
    return FALLOCATE[platform.machine()]


def test_a_load_reads_what_has_memory_and_no_more(daemon_of_one, tmp_path, fallocate):
    daemon = daemon_of_one
    big = write_sparse(tmp_path / "big.safetensors", SIZE)
    with Held(worker_of(daemon)) as worker:
        load = Load(daemon, "m", big)
        n = 0
        for wanted, percent in (38, 20), (88, 60), (115, 80):  # the load sees up to 9 parts less
            worker.run_past(fallocate, wanted - n)
            n = wanted
            load.hear(f"m: reading {percent} % (")
            with Wire(daemon.socket) as w:
                allocated = sum(slot.allocated for slot in w.list(SLOTS))
            assert allocated == n * PART, "the load made pages itself"
    status, out = load.end()
    assert status == 0 and out.startswith("m@1 on host: 1 tensor, 268.4 MB"), load.said
    tenths = [int(t) for t in re.findall(r"^m: reading (\d+) % \(\S+ MB of 268.4 MB", load.said, re.M)]
    assert tenths[-1] == 100 and tenths == sorted(set(tenths)), load.said


def test_a_load_can_be_cancelled_while_its_memory_does_not_come(daemon_of_one, tmp_path, fallocate):
    daemon = daemon_of_one
    big = write_sparse(tmp_path / "big.safetensors", SIZE)
    with Held(worker_of(daemon)) as worker:
        load = Load(daemon, "m", big)
        worker.run_past(fallocate, 38)
        load.hear("m: reading 20 % (")
        daemon.proc.send_signal(signal.SIGSTOP)  # nor is there an answer to how far it is
        try:
            load.proc.send_signal(signal.SIGINT)
            status, _ = load.end()
        finally:
            daemon.proc.send_signal(signal.SIGCONT)
    assert status == 128 + signal.SIGINT and "weightctl: interrupted: the load was cancelled at 2" in load.said, load.said
    until(lambda: daemon.ctl("ls").stdout == "" and '"memory": 0,' in daemon.ctl("ping", "--json").stdout, "nothing is left")

"""Processes with probed calls, and the events about them."""
import json
import os
import subprocess
import sys
import time

from lib import tracing
from lib.features import ROOT
from lib.gpus import FAKE

NOBODY = 65534
LOOP = """
import json, os, signal, socket, sys
for line in sys.stdin:
    ret = None
    exec(json.loads(line))
    print(json.dumps(ret), flush=True)
"""
CUDA = """
from lib.cuda_calls import *
context()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 64)]
def call(name, *arguments):
    return getattr(cuda, name)(*arguments)
p, q, n, h = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64(), Handle()
fd = ctypes.c_int(-1)
do("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(1 << 20))
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("device", ctypes.c_int),
                ("none", ctypes.c_uint64), ("flags", ctypes.c_uint64)]
properties = Properties(1, 1, 1, 0, 0, 0)
"""


class Process:
    """One that runs code, line by line."""

    def __init__(self, code="", env=None, prefix=(), fds=()):
        self.proc = subprocess.Popen([*prefix, sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     env=(env or os.environ) | {"PYTHONPATH": f"{ROOT}/tests"},
                                     pass_fds=fds, text=True)
        self.pid = self.proc.pid
        self.do(code)

    def begin(self, code):
        self.proc.stdin.write(json.dumps(code) + "\n")
        self.proc.stdin.flush()

    def do(self, code):
        """Runs the code. Returns the value of `ret` after it."""
        self.begin(code)
        return json.loads(self.proc.stdout.readline())

    def close(self):
        self.proc.kill()
        self.proc.communicate()


def acts(client, **wanted):
    """Those that are so."""
    return [act for act in client.ask("acts") if all(act[key] == value for key, value in wanted.items())]


def hear_of(client, process):
    """The next event about it."""
    while (told := client.hear()).get("pid") != process.pid:
        pass
    return told


def until(found):
    """The first true result of found()."""
    deadline = time.monotonic() + tracing.STOP_S
    while not (it := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the library of a new process is probed after the kernel's event about it
    return it


def rows_in(client, folder):
    """The rows of files there: other tests run on this machine, too."""
    return [row for row in client.ask("doctor") if row["kind"] == "library" and (row["path"] or "").startswith(f"{folder}/")]


def libraries(client, folder=""):
    return {row["path"]: row for row in rows_in(client, folder)}


def is_probed(client, path=FAKE / "libcuda.so.1"):
    row = libraries(client).get(str(path))
    return row and row["on"]


EXPORT = "ret = call('cuIpcGetMemHandle', ctypes.byref(h), p)"


def export_of(client, process):
    """The acts of a call that succeeds."""
    n = len(acts(client, pid=process.pid))
    assert process.do(EXPORT) == 0
    return acts(client, pid=process.pid)[n:]


CAPABLE = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=+bpf,+perfmon",
           "--ambient-caps=+bpf,+perfmon"]

"""What processes ask of CUDA, NCCL and verbs, as the probes on these libraries see it; the libraries are stand-ins."""
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

import features
import pytest
import tracing
from features import ROOT
from gpus import FAKE, Gpus
from tracing import Tracer

NOBODY = 65534
LOOP = """
import json, os, signal, socket, sys
for line in sys.stdin:
    ret = None
    exec(json.loads(line))
    print(json.dumps(ret), flush=True)
"""
CUDA = """
from integration.cuda import *
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
    """One that does what it is told, line by line."""

    def __init__(self, code="", env=None, prefix=(), fds=()):
        self.proc = subprocess.Popen([*prefix, sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     env=(env or os.environ) | {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/tests/systemd"},
                                     pass_fds=fds, text=True)
        self.pid = self.proc.pid
        self.do(code)

    def begin(self, code):
        self.proc.stdin.write(json.dumps(code) + "\n")
        self.proc.stdin.flush()

    def do(self, code):
        """What `ret` is then."""
        self.begin(code)
        return json.loads(self.proc.stdout.readline())

    def close(self):
        self.proc.kill()
        self.proc.communicate()


@pytest.fixture
def gpu():
    features.require("fakes")
    with contextlib.closing(Gpus()) as gpus:
        yield gpus


@pytest.fixture
def start(gpu):
    """start(code): a process that sees the fake GPU."""
    with contextlib.ExitStack() as stack:
        yield lambda code=CUDA, env={}, **kw: stack.enter_context(
            contextlib.closing(Process(code, env=os.environ | gpu.env | env, **kw)))


@pytest.fixture
def client(tracer):
    return tracer.client()


def acts(client, **wanted):
    """Those that are so."""
    return [act for act in client.ask("acts") if all(act[key] == value for key, value in wanted.items())]


def until(found):
    """What found() returns, once it is anything."""
    deadline = time.monotonic() + tracing.STOP_S
    while not (it := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the library of a process that has begun is probed when the kernel has told of it
    return it


def libraries(client):
    return {row["path"]: row for row in client.ask("doctor") if row["kind"] == "library"}


def is_probed(client, path=FAKE / "libcuda.so.1"):
    row = libraries(client).get(str(path))
    return row and row["on"]


EXPORT = "ret = call('cuIpcGetMemHandle', ctypes.byref(h), p)"


def test_who_has_a_library_already_is_seen(gpu, start):
    features.require("bpf")
    process = start()
    with Tracer() as tracer:
        client = tracer.client()
        assert libraries(client)[str(FAKE / "libcuda.so.1")] | {"functions": None} == {
            "kind": "library", "path": str(FAKE / "libcuda.so.1"), "functions": None, "processes": 1, "on": True, "why": None}
        before = time.monotonic_ns()
        assert process.do(EXPORT) == 0
        [act] = acts(client, pid=process.pid)
        assert before < act["ns"] < time.monotonic_ns() and 0 < act["took_ns"] < act["ns"] - before
        del act["ns"], act["took_ns"], act["number"]
        assert act == {"kind": "acted", "act": "cuda_ipc_export", "pid": process.pid, "tid": process.pid, "uid": 0,
                       "comm": "python3", "function": "cuIpcGetMemHandle", "result": 0, "failed": False,
                       "address": process.do("ret = p.value"), "bytes": None}


def test_who_loads_it_later_is_seen(client, start):
    process = start("")
    process.do(CUDA)
    until(lambda: process.do(EXPORT) == 0 and acts(client, pid=process.pid))
    another = start()
    n = len(acts(client, pid=another.pid))
    assert another.do(EXPORT) == 0
    assert len(acts(client, pid=another.pid)) == n + 1, "the file is probed, whoever maps it"


def test_an_open_is_paired_with_its_export(client, start):
    a, b = start(), start()
    until(lambda: is_probed(client))
    handle = a.do(EXPORT + "; ret = bytes(h.bytes).hex()")
    address = b.do(f"h = Handle.from_buffer_copy(bytes.fromhex('{handle}')); "
                   "do('cuIpcOpenMemHandle_v2', ctypes.byref(q), h, 1); ret = q.value")
    b.do("do('cuIpcCloseMemHandle', q)")
    b.do("h = Handle.from_buffer_copy(bytes(64)); ret = call('cuIpcOpenMemHandle_v2', ctypes.byref(q), h, 1)")
    [export] = acts(client, pid=a.pid)
    opened, closed, refused = acts(client, pid=b.pid)
    assert (opened["act"], opened["failed"], opened["address"], opened["bytes"]) == ("cuda_ipc_open", False, address, None)
    assert opened["from"] == {"number": export["number"], "pid": a.pid, "comm": "python3", "ns": export["ns"]}
    assert (closed["act"], closed["address"], closed["failed"]) == ("cuda_ipc_close", address, False)
    assert (refused["failed"], refused["result"], refused["from"], refused.get("address")) == (True, 1, None, None)


def test_a_descriptor_is_known_wherever_it_went(client, start):
    one, other = socket.socketpair()
    with one, other:
        a, b = start(fds=[one.fileno()]), start(fds=[other.fileno()])
        until(lambda: is_probed(client))
        size = 4 << 20
        a.do(f"do('cuMemCreate', ctypes.byref(n), ctypes.c_size_t({size}), ctypes.byref(properties), ctypes.c_uint64(0))")
        sent = a.do("do('cuMemExportToShareableHandle', ctypes.byref(fd), n, 1, ctypes.c_uint64(0)); ret = fd.value; "
                    f"socket.send_fds(socket.socket(fileno={one.fileno()}), [b'x'], [fd.value])")
        came = b.do(f"got = socket.recv_fds(socket.socket(fileno={other.fileno()}), 1, 1)[1][0]; os.dup2(got, 77); ret = 77; "
                    "do('cuMemImportFromShareableHandle', ctypes.byref(n), ctypes.c_void_p(77), 1)")
        with open(os.devnull, "rb"):
            wrong = b.do("ret = call('cuMemImportFromShareableHandle', ctypes.byref(n), ctypes.c_void_p(0), 1)")
    [export] = acts(client, pid=a.pid)
    imported, refused = acts(client, pid=b.pid)
    assert (export["act"], export["type"], export["fd"], export["bytes"]) == ("cuda_vmm_export", "fd", sent, size)
    assert (imported["act"], imported["type"], imported["fd"], imported["bytes"]) == ("cuda_vmm_import", "fd", came, size)
    assert imported["from"] == {"number": export["number"], "pid": a.pid, "comm": "python3", "ns": export["ns"]}
    assert (refused["result"], refused["failed"], refused["from"], refused["bytes"]) == (wrong, True, None, None)


def test_who_observes_is_told_at_once(client, start):
    process = start()
    until(lambda: is_probed(client))
    client.ask("observe")
    process.do(EXPORT)
    told = client.hear()
    assert (told["kind"], told["act"], told["pid"]) == ("act", "cuda_ipc_export", process.pid)

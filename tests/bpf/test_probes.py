"""What processes ask of CUDA, NCCL and verbs, as the probes on these libraries see it; the libraries are stand-ins."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import features
import nccl_host
import pytest
import tracing
from bpf.test_life import exists, kernel_objects
from daemon import Daemon
from features import ROOT
from gpus import FAKE, Gpus
from integration import cuda_scene
from tracing import Tracer

pytestmark = pytest.mark.probes

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


def hear_of(client, process):
    """What is told of it next."""
    while (told := client.hear()).get("pid") != process.pid:
        pass
    return told


def until(found):
    """What found() returns, once it is anything."""
    deadline = time.monotonic() + tracing.STOP_S
    while not (it := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the library of a process that has begun is probed when the kernel has told of it
    return it


def rows_in(client, folder):
    """Of the files there: others run on this machine, too."""
    return [row for row in client.ask("doctor") if row["kind"] == "library" and (row["path"] or "").startswith(f"{folder}/")]


def libraries(client, folder=""):
    return {row["path"]: row for row in rows_in(client, folder)}


def is_probed(client, path=FAKE / "libcuda.so.1"):
    row = libraries(client).get(str(path))
    return row and row["on"]


EXPORT = "ret = call('cuIpcGetMemHandle', ctypes.byref(h), p)"


def test_who_has_a_library_already_is_seen(gpu, start):
    features.require("bpf")
    process = start()
    with Tracer(probes=True) as tracer:
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
    imported, refused = acts(client, pid=b.pid, act="cuda_vmm_import")
    assert (export["act"], export["type"], export["fd"], export["bytes"]) == ("cuda_vmm_export", "fd", sent, size)
    assert (imported["act"], imported["type"], imported["fd"], imported["bytes"]) == ("cuda_vmm_import", "fd", came, size)
    assert imported["from"] == {"number": export["number"], "pid": a.pid, "comm": "python3", "ns": export["ns"]}
    assert (refused["result"], refused["failed"], refused["from"], refused["bytes"]) == (wrong, True, None, None)


def test_who_observes_is_told_at_once(client, start):
    process = start()
    until(lambda: is_probed(client))
    client.ask("observe")
    process.do(EXPORT)
    told = hear_of(client, process)
    assert (told["kind"], told["act"], told["pid"]) == ("act", "cuda_ipc_export", process.pid)


NCCL_CODE = CUDA + """
nccl = ctypes.CDLL("libnccl.so.2")
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 128)]
class Config(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int)]
config, communicator = Config(24, 0xcafebeef, 21800, 0), ctypes.c_void_p()
def join(id, n, rank):
    r = nccl.ncclCommInitRankConfig(ctypes.byref(communicator), n, Id.from_buffer_copy(bytes.fromhex(id)), rank,
                                    ctypes.byref(config))
    return [r, communicator.value]
"""


def test_communicators_are_seen_from_their_beginning_to_their_end(gpu, client, start):
    a, b = (start(NCCL_CODE, gpu.env_with_nccl(NCCL_HOSTID=name)) for name in "ab")
    until(lambda: is_probed(client, FAKE / "nccl/libnccl.so.2"))
    ids = "01" * 128, "02" * 128
    begun = [(*process.do(f"ret = join('{ids[0]}', 2, {rank})"), process) for rank, process in enumerate((a, b))]
    another = a.do(f"ret = join('{ids[1]}', 1, 0)")
    refused = b.do(f"ret = join('{ids[0]}', 1, 3)")
    acts_of_a, acts_of_b = acts(client, pid=a.pid), acts(client, pid=b.pid)
    for act, (result, address, process) in zip((acts_of_a[0], acts_of_b[0]), begun):
        assert {key: act[key] for key in ("act", "function", "result", "failed", "ranks", "communicator")} == {
            "act": "nccl_init", "function": "ncclCommInitRankConfig", "result": result, "failed": False, "ranks": 2,
            "communicator": address}
        assert act["rank"] == (process is b)
    assert acts_of_a[0]["id"] == acts_of_b[0]["id"] != acts_of_a[1]["id"]
    assert (acts_of_a[1]["communicator"], acts_of_b[1]["result"], acts_of_b[1]["failed"]) == (another[1], refused[0], True)
    a.do("nccl.ncclCommFinalize(communicator); nccl.ncclCommAbort(communicator)")
    assert [(act["act"], act["communicator"]) for act in acts(client, pid=a.pid)[2:]] == \
        [("nccl_finalize", another[1]), ("nccl_abort", another[1])]


REDUCE = "nccl.ncclAllReduce(p, p, ctypes.c_size_t({n}), {type}, 0, communicator, None)"


def test_operations_are_counted(gpu, client, tracer, start):
    process = start(NCCL_CODE, gpu.env_with_nccl())
    until(lambda: is_probed(client, FAKE / "nccl/libnccl.so.2"))
    process.do(f"join('{'01' * 128}', 1, 0)")
    refused = process.do("ret = 0\nfor _ in range(1000): " + REDUCE.format(n=100, type=9) + "\n"  # no type that it knows
                         "for _ in range(10): nccl.ncclBroadcast(p, p, ctypes.c_size_t(1000), 1, 99, communicator, None)\n")
    fine = process.do("import time; ret = 0\nwhile " + REDUCE.format(n=1000, type=7) + " not in (0, 7): time.sleep(0.01)\n")
    assert refused == fine == 0
    counted = [act for act in acts(client, pid=process.pid) if act["act"] == "nccl_calls"]
    reduced = [act for act in counted if act["function"] == "ncclAllReduce"]
    total = {key: sum(act[key] for act in reduced) for key in ("calls", "errors", "bytes")}
    assert total == {"calls": total["errors"] + 1, "errors": total["errors"], "bytes": 4000} and total["errors"] >= 1000
    others = [act for act in counted if act not in reduced]  # one, if no second ends amid them
    assert (sum(act["calls"] for act in others), {(act["failed"], act["took_ns"]) for act in others}) == (10, {(True, None)})
    assert all(0 < act["calling_ns"] and act["comm"] == "python3" for act in counted)
    assert [act for act in acts(client, pid=process.pid) if act["act"] == "nccl_calls"] == counted, "nothing new"
    client.ask("observe")
    process.do(REDUCE.format(n=1, type=9))
    told = hear_of(client, process)
    assert (told["kind"], told["act"], told["calls"], told["errors"]) == ("act", "nccl_calls", 1, 1)


def test_what_the_older_broadcast_moves_is_counted_once(gpu, client, start):
    process = start(NCCL_CODE, gpu.env_with_nccl())
    until(lambda: is_probed(client, FAKE / "nccl/libnccl.so.2"))
    process.do(f"join('{'01' * 128}', 1, 0)")
    process.do("for _ in range(10): nccl.ncclBcast(p, ctypes.c_size_t(1000), 1, 99, communicator, None)\n")
    counted = acts(client, pid=process.pid, act="nccl_calls")
    assert {act["function"] for act in counted} == {"ncclBroadcast"}
    assert [sum(act[key] for act in counted) for key in ("calls", "errors")] == [10, 10]


OF_TWO_BUFFERS = ["ncclAlltoAll", "ncclGather", "ncclScatter", "ncclAllReduceConfig", "ncclBroadcastConfig", "ncclReduceConfig",
                  "ncclAllGatherConfig", "ncclReduceScatterConfig", "ncclAlltoAllConfig", "ncclGatherConfig", "ncclScatterConfig"]


def test_operations_of_newer_releases_are_counted(gpu, client, start):
    process = start(NCCL_CODE, gpu.env_with_nccl())
    until(lambda: is_probed(client, FAKE / "nccl/libnccl.so.2"))
    process.do("rest = (0, 0, communicator, None, None)\n"
               f"for i, name in enumerate({OF_TWO_BUFFERS}):\n"
               "    for type in [7] * (i + 1) + [12]: nccl[name](p, p, ctypes.c_size_t(1000), type, *rest)\n"
               "for type in 6, 6, 12: nccl.ncclPutSignal(p, ctypes.c_size_t(1000), type, 1, None, ctypes.c_size_t(0), 0, 0, 0, communicator, "
               "None)\n")
    counted = [act for act in acts(client, pid=process.pid) if act["act"] == "nccl_calls"]
    sums = {name: [sum(act[key] for act in counted if act["function"] == name) for key in ("calls", "errors", "bytes")]
            for name in {act["function"] for act in counted}}
    assert sums == {name: [i + 2, 1, 4000 * (i + 1)] for i, name in enumerate(OF_TWO_BUFFERS)} | {"ncclPutSignal": [3, 1, 4000]}


def members(act, *keys):
    return {key: act.get(key) for key in keys}


def test_communicators_that_shrink_grow_or_are_revoked_are_seen(gpu, client, start):
    process = start(NCCL_CODE, gpu.env_with_nccl())
    until(lambda: is_probed(client, FAKE / "nccl/libnccl.so.2"))
    process.do("next, old, id = ctypes.c_void_p(), ctypes.c_void_p(4711), Id.from_buffer_copy(bytes([3] * 128))")
    smaller = process.do("nccl.ncclCommShrink(old, (ctypes.c_int * 2)(1, 2), 2, ctypes.byref(next), None, 1); ret = next.value")
    larger = process.do("for about in (old, None, -1), (old, ctypes.byref(id), -1), (None, ctypes.byref(id), 5):\n"
                        "    nccl.ncclCommGrow(about[0], 6, about[1], about[2], ctypes.byref(next), None)\n"
                        "nccl.ncclCommRevoke(next, 0); ret = next.value")
    shrunk, *grown, revoked = acts(client, pid=process.pid)
    assert members(shrunk, "act", "parent", "excluded", "communicator", "failed") == {
        "act": "nccl_shrink", "parent": 4711, "excluded": 2, "communicator": smaller, "failed": False}
    assert [members(act, "act", "ranks", "rank", "parent", "communicator") for act in grown] == [
        {"act": "nccl_grow", "ranks": 6, "rank": rank, "parent": parent, "communicator": larger}
        for rank, parent in ((None, 4711), (None, 4711), (5, None))]
    assert grown[1]["id"] == grown[2]["id"] and "id" not in grown[0]
    assert members(revoked, "act", "communicator") == {"act": "nccl_revoke", "communicator": larger}


def test_memory_that_nccl_is_asked_for_or_shown_is_seen(gpu, client, start):
    process = start(NCCL_CODE, gpu.env_with_nccl())
    until(lambda: is_probed(client, FAKE / "nccl/libnccl.so.2"))
    process.do("P = ctypes.c_void_p; made, at, size = P(), P(1 << 40), ctypes.c_size_t(5 << 30)")
    allocated, *shown = process.do(
        "ret = []\n"
        "nccl.ncclMemAlloc(ctypes.byref(made), size); ret.append(made.value); nccl.ncclMemFree(made)\n"
        "nccl.ncclCommRegister(P(7), at, size, ctypes.byref(made)); ret.append(made.value); nccl.ncclCommDeregister(P(7), made)\n"
        "nccl.ncclCommWindowRegister(P(7), at, size, ctypes.byref(made), 1); ret.append(made.value)\n"
        "nccl.ncclCommWindowDeregister(P(7), made)\n")
    seen = [members(act, "act", "address", "bytes", "communicator", "registration") for act in acts(client, pid=process.pid)]
    none = dict.fromkeys(("address", "bytes", "communicator", "registration"))
    assert seen == [none | act for act in (
        {"act": "nccl_alloc", "address": allocated, "bytes": 5 << 30}, {"act": "nccl_free", "address": allocated},
        *(none | {"act": word, "communicator": 7, "registration": registration} | about for registration in shown
          for word, about in (("nccl_register", {"address": 1 << 40, "bytes": 5 << 30}), ("nccl_deregister", {}))))]


VERBS = f"""
import ctypes, struct
verbs = ctypes.CDLL("{FAKE}/verbs/libibverbs.so.1")
dlvsym = ctypes.CDLL(None).dlvsym
dlvsym.restype = ctypes.c_void_p
dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
P = ctypes.c_void_p
def old(name, result, *arguments):
    return ctypes.CFUNCTYPE(result, *arguments)(dlvsym(verbs._handle, name.encode(), b"IBVERBS_1.0"))
for name in "ibv_open_device", "ibv_create_qp", "ibv_reg_mr", "ibv_reg_mr_iova", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr":
    getattr(verbs, name).restype = P
""" + """
def domain_of(device):
    name = ctypes.create_string_buffer(bytes(24) + device.encode().ljust(64, bytes(1)))
    context = (P * 1)(ctypes.addressof(name))
    domain = (P * 1)(ctypes.addressof(context))
    domain.leads_to = name, context
    return domain
domains = {name: domain_of(name) for name in ("mlx5_0", "mlx5_1")}
def create(function, type=2, device="mlx5_0"):
    attr = ctypes.create_string_buffer(struct.pack("4Q5IIi", 0, 0, 0, 0, *[1] * 5, type, 0))
    return function(domains[device], attr)
def number(qp):
    return ctypes.c_uint32.from_address(qp + 52).value
def attr(state, qp=0, gid=bytes(16), lid=0, port=0):
    return ctypes.create_string_buffer(struct.pack("<8I6I16sIBBBxHBBBBBx", state, 0, 0, 0, 0, 0, 0, qp, *[0] * 6, gid, 0, 0, 0,
                                                   0, lid, 0, 0, 0, gid != bytes(16), port))
"""
STATE, PATH, PEER = 1, 0x80, 0x100000
LACKS = {"kind", "ns", "took_ns", "number", "pid", "tid", "uid", "comm"}


def told(client, process):
    return [{key: act[key] for key in act if key not in LACKS} for act in acts(client, pid=process.pid)]


@pytest.fixture
def verbs(client, start):
    process = start(VERBS)
    until(lambda: is_probed(client, FAKE / "verbs/libibverbs.so.1"))
    return process


def test_queue_pairs_are_told_with_their_peers(client, verbs):
    gid = bytes.fromhex("fe80000000000000") + bytes(range(1, 9))
    qp = verbs.do(f"""
qp = create(verbs.ibv_create_qp)
q = P(qp)
for n, mask, a in (1, {STATE}, attr(1)), (2, {STATE | PATH | PEER}, attr(2, 0x77, {gid}, 9, 1)), (3, {STATE}, attr(3)):
    assert verbs.ibv_modify_qp(q, a, mask) == 0
assert verbs.ibv_modify_qp(q, attr(2, 0x78, lid=9, port=2), {STATE | PATH | PEER}) == 0
assert verbs.ibv_modify_qp(q, attr(3), 0) != 0
ret = number(qp)
assert verbs.ibv_destroy_qp(q) == 0
assert create(lambda _, attr: verbs.ibv_create_qp(None, attr)) is None
""")
    device = {"device": "mlx5_0"}
    fine = device | {"failed": False, "result": 0}
    connect = fine | {"act": "qp_connect", "function": "ibv_modify_qp", "qp": qp, "state": "RTR"}
    assert told(client, verbs) == [
        device | {"act": "qp_create", "function": "ibv_create_qp", "qp": qp, "type": "RC", "failed": False, "result": None},
        connect | {"peer_qp": 0x77, "peer_gid": "fe80::102:304:506:708", "peer_lid": 9, "port": 1},
        connect | {"peer_qp": 0x78, "peer_lid": 9, "port": 2},
        fine | {"act": "qp_destroy", "function": "ibv_destroy_qp", "qp": qp},
        {"act": "qp_create", "function": "ibv_create_qp", "device": None, "failed": True, "result": None}]


def test_the_real_library_has_all_of_them(client, start):
    features.require("ibverbs")
    process = start("import ctypes; library = ctypes.CDLL('libibverbs.so.1')")
    path = next(line.split()[5] for line in open(f"/proc/{process.pid}/maps") if "libibverbs" in line)
    assert (libraries(client)[path]["on"], libraries(client)[path]["functions"]) == (True, 8)


def test_old_versions_are_seen_once(client, verbs):
    qp = verbs.do(f"""
assert old("ibv_open_device", P, ctypes.c_char_p)(bytes(24) + b"mlx5_0".ljust(64, bytes(1)))
qp = create(old("ibv_create_qp", P, P, P))
assert old("ibv_modify_qp", ctypes.c_int, P, P, ctypes.c_int)(qp, attr(2, 5), {STATE | PEER}) == 0
ret = number(qp)
assert old("ibv_destroy_qp", ctypes.c_int, P)(qp) == 0
assert old("ibv_reg_mr", P, P, P, ctypes.c_size_t, ctypes.c_int)(1, 0x1000, 4096, 0)
""")
    found = told(client, verbs)
    assert [(act["act"], act.get("qp"), act["failed"]) for act in found] == [
        ("rdma_open", None, False), ("qp_create", qp, False), ("qp_connect", qp, False), ("qp_destroy", qp, False),
        ("rdma_register", None, False)]
    assert [act.get("device") for act in found] == 4 * ["mlx5_0"] + [None]


def test_memory_is_registered_once_whatever_calls_what(client, verbs):
    verbs.do("""
size, big = ctypes.c_size_t(5 << 30), ctypes.c_uint64(7)
assert verbs.ibv_reg_mr(P(1), P(0x1000), size, 0)
assert verbs.ibv_reg_mr_iova(P(1), P(0x2000), size, big, 0)
assert verbs.ibv_reg_mr_iova2(P(1), P(0x3000), size, big, 0)
assert verbs.ibv_reg_dmabuf_mr(P(1), big, size, big, 5, 0)
assert verbs.ibv_reg_mr(None, P(0x4000), size, 0) is None
""")
    found = told(client, verbs)
    assert [(act["act"], act.get("address"), act.get("fd"), act["bytes"], act["failed"]) for act in found] == [
        ("rdma_register", 0x1000, None, 5 << 30, False), ("rdma_register", 0x2000, None, 5 << 30, False),
        ("rdma_register", 0x3000, None, 5 << 30, False), ("rdma_register", None, 5, 5 << 30, False),
        ("rdma_register", 0x4000, None, 5 << 30, True)]


# --- queue pairs that NCCL says it used ---

NCCL_QP = VERBS + f"CONNECTS = {STATE | PATH | PEER}" + """
import os, time, tracing
tracer = tracing.Client(os.environ["WEIGHTD_TRACE_SOCKET"])
now = time.monotonic_ns
qps = {}
def make(device="mlx5_0", peer=0x77):
    qp = create(verbs.ibv_create_qp, device=device)
    qps[device, number(qp)] = qp
    if peer:
        connect(qp, peer)
    return number(qp)
def connect(qp, peer):
    a = attr(2, peer, bytes.fromhex("fe80000000000000") + bytes(range(1, 9)), 9, 1)
    assert verbs.ibv_modify_qp(P(qp), a, CONNECTS) == 0
def destroy(number, device="mlx5_0"):
    assert verbs.ibv_destroy_qp(P(qps.pop((device, number)))) == 0
def tell(qp, since_ns=None, ns=None):
    used = now()
    act = dict(act="nccl_qp", sync="nccl:dp", communicator="dp", hash="0", rank=0, peer=1, way="send", bytes=5, events=1,
               device=0, qp=qp, since_ns=since_ns or used, ns=ns or used)
    tracer.ask("tell", source="nccl", acts=[act])
"""


@pytest.fixture
def start_trainer(client, tracer, start):
    """start_trainer(): a process that makes queue pairs and tells of them as NCCL's plug-in does."""
    def start_one(**kw):
        process = start(NCCL_QP, env={"WEIGHTD_TRACE_SOCKET": tracer.socket}, **kw)
        until(lambda: is_probed(client, FAKE / "verbs/libibverbs.so.1"))
        return process

    return start_one


@pytest.fixture
def trainer(start_trainer):
    return start_trainer()


def origin(act):
    return act and {key: act[key] for key in ("number", "pid", "comm", "ns")}


def used(client, process, code):
    """What is told of the queue pair that it says it used then."""
    process.do(code)
    return acts(client, pid=process.pid, act="nccl_qp")[-1]


def connects(client, process, **wanted):
    return acts(client, pid=process.pid, act="qp_connect", **wanted)


def test_what_nccl_used_is_joined_with_what_connected_it(client, trainer):
    qp = trainer.do("ret = make(peer=None)")
    act = used(client, trainer, f"tell({qp})")
    [made] = acts(client, pid=trainer.pid, act="qp_create")
    assert act["from"] == origin(made) and act["rdma_device"] == "mlx5_0" and "peer_qp" not in act
    for peer in 0x77, 0x78:
        act = used(client, trainer, f"connect(qps['mlx5_0', {qp}], {peer}); tell({qp})")
        assert act["from"] == origin(connects(client, trainer)[-1])
        assert act["number"] > act["from"]["number"] and act["ns"] > act["from"]["ns"]
        assert {key: act[key] for key in ("rdma_device", "port", "peer_qp", "peer_lid", "peer_gid", "device")} == {
            "rdma_device": "mlx5_0", "port": 1, "peer_qp": peer, "peer_lid": 9, "peer_gid": "fe80::102:304:506:708", "device": 0}


def test_what_was_not_seen_is_joined_with_nothing(client, trainer, start_trainer):
    qp = start_trainer().do("ret = make()")
    for number in qp, qp + 1, qp | 1 << 32, 0:
        act = used(client, trainer, f"tell({number})")
        assert act["from"] is None and not {"rdma_device", "port", "peer_qp", "peer_lid", "peer_gid"} & set(act), "another's"
    own = trainer.do("ret = make()")
    assert own == qp and used(client, trainer, f"tell({qp})")["from"] == origin(*connects(client, trainer))
    assert used(client, trainer, f"tell({qp}, since_ns=1)")["from"] is None, "it was not there then"


def test_what_says_nothing_is_joined_with_nothing(client, trainer):
    qp = trainer.do("ret = make(); zero = qps['mlx5_0', ret]; ctypes.c_uint32.from_address(zero + 52).value = 0; connect(zero, 1)")
    assert used(client, trainer, "tell(0)")["from"] and used(client, trainer, f"tell({qp})")["from"]
    assert used(client, trainer, "tell(None)")["from"] is None
    assert used(client, trainer, f"tell({qp}, ns=1)")["from"] is None, "it was over before it began"


def test_what_is_told_of_a_queue_pair_when_it_is_gone_is_joined(client, trainer):
    """NCCL destroys them before it says that its communicator is closed, and the plug-in tells the last then."""
    qp = trainer.do("qp = make(); before = now(); destroy(qp); ret = qp")
    assert used(client, trainer, f"tell({qp}, before, before)")["from"] == origin(*connects(client, trainer))
    assert used(client, trainer, f"tell({qp}, before)")["from"] is None, "it was used when it was gone"


def test_one_number_of_two_devices_is_joined_with_its_own_or_none(client, trainer):
    qp = trainer.do("ret = make(peer=1)")
    trainer.do("alone = now()")
    assert trainer.do("ret = make('mlx5_1', 2)") == qp
    first, second = connects(client, trainer)
    assert (first["device"], second["device"]) == ("mlx5_0", "mlx5_1")
    assert used(client, trainer, f"tell({qp})")["from"] is None, "NCCL does not say of which device"
    assert used(client, trainer, f"tell({qp}, alone)")["from"] == origin(first), "then there was no other"
    trainer.do(f"both = now(); destroy({qp})")
    act = used(client, trainer, f"tell({qp}, both)")
    assert (act["from"], act["rdma_device"], act["peer_qp"]) == (origin(second), "mlx5_1", 2)
    assert used(client, trainer, f"tell({qp})")["from"] == origin(second)
    assert used(client, trainer, f"tell({qp}, both, both)")["from"] is None


def test_a_device_whose_name_cannot_be_read_may_be_any(client, trainer):
    qp = trainer.do("ret = make('mlx5_1')")
    other = trainer.do("ret = make(); P.from_address(qps['mlx5_0', ret]).value = 8; connect(qps['mlx5_0', ret], 0x79)")
    assert other == qp and [act["device"] for act in connects(client, trainer)] == ["mlx5_1", "mlx5_0", None]
    assert used(client, trainer, f"tell({qp})")["from"] is None
    trainer.do(f"destroy({qp})")
    assert acts(client, pid=trainer.pid, act="qp_destroy")[-1]["device"] is None
    assert used(client, trainer, f"tell({qp})")["from"] is None, "any of them was destroyed"


def test_a_process_in_a_pid_namespace_is_joined_with_its_own(client, start_trainer):
    process = start_trainer(prefix=["unshare", "--pid", "--fork"])
    process.do("tell(make()); assert os.getpid() == 1")
    [act] = [act for act in acts(client, act="nccl_qp")]
    assert act["from"]["pid"] == act["pid"] != process.pid
    assert act["from"] == origin(*acts(client, pid=act["pid"], act="qp_connect"))


# clone3() with a number that is free
AS_PID = """
import ctypes, os, sys
pid = (ctypes.c_int32 * 1)(int(sys.argv[1]))
args = (ctypes.c_uint64 * 11)(*[0] * 4, 17, *[0] * 3, ctypes.addressof(pid), 1)
child = ctypes.CDLL(None, use_errno=True).syscall(435, args, 80)
if child == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
assert child > 0, os.strerror(ctypes.get_errno())
os.waitpid(child, 0)
"""


def test_a_process_that_has_anothers_number_later_is_not_taken_for_it(client, start_trainer):
    process = start_trainer()
    qp = process.do("ret = make()")
    assert used(client, process, f"tell({qp})")["from"]
    process.close()
    another = start_trainer(prefix=[sys.executable, "-c", AS_PID, str(process.pid)])
    another.pid = another.do("ret = os.getpid()")
    assert another.pid == process.pid
    assert used(client, another, f"tell({qp})")["from"] is None
    assert another.do("ret = make()") == qp
    assert used(client, another, f"tell({qp})")["from"] == origin(connects(client, another)[-1])


def test_calls_are_known_before_what_is_told_of_them(client, tracer, trainer):
    """Though the tracer hears of the telling first."""
    os.kill(tracer.proc.pid, signal.SIGSTOP)
    try:
        trainer.begin("""
ahead = now() + 200_000_000
qp = max([0x100, *(number for _, number in qps)]) + 1
act = dict(act="nccl_qp", sync="nccl:dp", communicator="dp", hash="0", rank=0, peer=1, way="send", bytes=5, events=1,
           device=0, qp=qp, since_ns=ahead, ns=ahead)
tracer.socket.send(json.dumps({"op": "tell", "source": "nccl", "acts": [act]}).encode())
ret = make() == qp and now() < ahead
while now() <= ahead: pass
""")
        assert json.loads(trainer.proc.stdout.readline())
    finally:
        os.kill(tracer.proc.pid, signal.SIGCONT)
    [act] = until(lambda: acts(client, pid=trainer.pid, act="nccl_qp"))  # it may answer us before it hears him
    assert act["from"] == origin(*connects(client, trainer))


def test_what_the_plugin_tells_is_joined(client, tracer):
    nccl_host.require()
    with nccl_host.Host(tracer) as host:
        assert host.say("verbs", FAKE / "verbs/libibverbs.so.1") == "verbs"
        until(lambda: is_probed(client, FAKE / "verbs/libibverbs.so.1"))
        host.init()
        qp = int(host.say("make", 0, "mlx5_3"))
        host.say("connect", 0, 0x77)
        host.say("op", 0, 0, "-", 4, 1, 0)
        host.say("step", 1, 0, 0)
        host.say("qp", 2, 0, 1, 0, qp, 5000)
        for handle in 2, 1, 0:
            host.say("stop", handle)
        host.say("destroy", 0)
        host.say("finalize", 0)
    [act] = acts(client, pid=host.proc.pid, act="nccl_qp")
    assert act["from"] == origin(*acts(client, pid=host.proc.pid, act="qp_connect"))
    assert (act["peer"], act["rdma_device"], act["peer_qp"]) == (4, "mlx5_3", 0x77)


# --- files ---

@pytest.fixture
def folder():
    """One that anybody may enter."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="weightd-probes-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def copy_of(folder, name="libcuda.so.1"):
    shutil.copy(FAKE / name, folder / f"{name}.new")
    (folder / f"{name}.new").rename(folder / name)
    return {"LD_LIBRARY_PATH": str(folder)}


def export_of(client, process):
    """The acts of a call that succeeds."""
    n = len(acts(client, pid=process.pid))
    assert process.do(EXPORT) == 0
    return acts(client, pid=process.pid)[n:]


def test_a_file_that_took_anothers_place_is_another(client, start, folder):
    before = start(env=copy_of(folder))
    until(lambda: export_of(client, before))
    after = start(env=copy_of(folder))
    until(lambda: export_of(client, after))
    assert len(export_of(client, before)) == len(export_of(client, after)) == 1
    rows = rows_in(client, folder)
    assert [(row["path"], row["on"], row["processes"]) for row in rows] == 2 * [(str(folder / "libcuda.so.1"), True, 1)]


def test_a_file_that_is_gone_is_not_probed_and_dropped_at_its_end(start, folder):
    features.require("bpf")
    process = start(env=copy_of(folder))
    copy_of(folder)
    with Tracer(probes=True) as tracer:
        client = tracer.client()
        [row] = rows_in(client, folder)
        assert (row["on"], row["functions"], row["processes"]) == (False, 0, 1)
        assert row["why"] == "its path leads to nothing here: it was replaced"
        assert export_of(client, process) == []
        process.close()
        assert rows_in(client, folder) == []


def in_namespace(folder):
    return ["unshare", "-m", "sh", "-c", f'mount --bind "{folder}" "{FAKE}" && exec "$@"', "sh"]


def test_a_copy_in_another_mount_namespace_is_another_file(client, start, folder):
    copy_of(folder)
    here, there = start(), start(prefix=in_namespace(folder))
    until(lambda: export_of(client, there))
    until(lambda: export_of(client, here))
    assert len(export_of(client, there)) == len(export_of(client, here)) == 1
    assert len(rows_in(client, folder)) + len(rows_in(client, FAKE)) == 2


CAPABLE = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=+bpf,+perfmon",
           "--ambient-caps=+bpf,+perfmon"]


def test_two_capabilities_suffice(start, folder):
    features.require("bpf")
    with Tracer(prefix=CAPABLE, uid=NOBODY, probes=True) as tracer:
        client = tracer.client()
        process = start(env=copy_of(folder))
        until(lambda: export_of(client, process))
        hidden = start(prefix=in_namespace(folder))
        found = libraries(client)
        assert found[str(folder / "libcuda.so.1")]["on"]
        assert len(export_of(client, hidden)) == 1, "the mount is of the same file"
        (folder / "elsewhere").mkdir()
        copy_of(folder / "elsewhere")
        elsewhere = start(prefix=in_namespace(folder / "elsewhere"))
        assert export_of(client, elsewhere) == []
        [why] = [row["why"] for row in rows_in(client, FAKE) + rows_in(client, folder) if not row["on"]]
        assert "CAP_SYS_PTRACE" in why or "Permission denied" in why


MAP = """
import mmap
files = []
def map(path):
    f = open(path, "rb")
    files.append((f, mmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)))
"""


def test_no_file_harms_the_tracer(client, start, folder):
    good = (FAKE / "libcuda.so.1").read_bytes()
    bad = {"garbage": os.urandom(8192), "zeros": bytes(8192), "head": good[:4096] + bytes(4096), "cut": good[:len(good) // 2],
           "sections": good[:40] + b"\xff" * 8 + good[48:], "many": good[:60] + b"\xff" * 4 + good[64:],
           "none": (FAKE / "verbs/libibverbs.so.1").read_bytes(),
           "swapped": good.replace(b"cuIpcGetMemHandle\0", b"cuIpcGetMemHandlf\0")}
    process = start(MAP)
    for name, data in bad.items():
        (folder / f"libcuda.so.{name}").write_bytes(data)
        process.do(f"map('{folder}/libcuda.so.{name}')")
    (folder / "libcuda.so.\n\xff").write_bytes(good)
    process.do(f"map({str(folder)!r} + '/libcuda.so.\\n\\xff')")
    found = {name.rpartition(".")[2]: row for name, row in libraries(client, folder).items()}
    assert set(found) == {*bad, "\n\xff"}
    assert {name for name, row in found.items() if row["on"]} == {"swapped", "\n\xff"}
    assert {row["why"].partition(":")[0] for row in found.values() if not row["on"]} == {
        "it is no library", "it has none of the functions that are looked for"}
    process = start()
    until(lambda: export_of(client, process))


def test_who_owns_many_files_leaves_room_for_others(client, start, folder):
    process = start(MAP)
    for i in range(20):
        path = folder / f"libcuda.so.{i}"
        shutil.copy(FAKE / "libcuda.so.1", path)
        os.chown(path, 12345, 12345)
        process.do(f"map('{path}')")
    another = start()
    until(lambda: export_of(client, another))
    assert [row["on"] for row in rows_in(client, folder)] == [True] * 8
    [more] = [row for row in client.ask("doctor") if row["kind"] == "library" and not row["path"]]
    assert (more["processes"], more["on"], more["why"]) == (12, False, "there are more files than are probed at a time")


def test_who_maps_many_holds_up_nobody(client, start, folder):
    """Each costs tens of microseconds: 60000, which anybody may map, held up everybody for a second at each look."""
    process, another = start(MAP), start()
    process.do(f"""
import os
for i in range(500):
    path = "{folder}/libcuda.so.%d" % i
    os.truncate(os.open(path, os.O_CREAT, 0o755) and path, 4096)
    os.chown(path, 12345, 12345)
    map(path)
""")
    def more():
        [row] = [row for row in client.ask("doctor") if row["kind"] == "library" and not row["path"]]
        return row["processes"]
    assert 0 < more() < 200  # others run on this machine, too
    assert 0 < more() < 200, "each look is a new one"
    until(lambda: export_of(client, another))


# --- calls ---

def test_a_call_that_never_returns_is_never_told(gpu, client, start):
    process, another = start(), start()
    until(lambda: is_probed(client))
    client.ask("observe")
    gpu.fail("cuIpcGetMemHandle", "hang", count=1)
    process.begin(EXPORT)
    until(gpu.has_failed)
    process.close()
    gpu.heal()
    assert len(export_of(client, another)) == 1
    assert acts(client, pid=process.pid) == []
    assert "gap" not in [packet["kind"] for packet in client.followed]


SECCOMP = """
import struct
KILL, ALLOW, URETPROBE = 0x80000000, 0x7fff0000, 335
code = ctypes.create_string_buffer(struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, URETPROBE, 6, 0, 0, KILL, 6, 0, 0, ALLOW))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="no other machine returns by a system call")
def test_a_process_that_allows_no_system_call_of_probes_lives(client, start):
    process = start(CUDA + SECCOMP)
    until(lambda: is_probed(client))
    assert len(export_of(client, process)) == 1


RECURSIVE = """
extern int printf(const char *format, ...);
__attribute__((noipa)) int cuIpcGetMemHandle(char *handle, unsigned long p)
{
	int r = p ? cuIpcGetMemHandle(handle, p - 1) : 0;

	handle[0] = (char)p;
	return r;
}
"""


@pytest.mark.parametrize("mark", ["none", "branch"])
def test_a_function_within_itself_is_told_once(client, start, folder, mark):
    features.require("gcc", available=shutil.which("gcc"))
    flags = [f"-fcf-protection={mark}"] if os.uname().machine == "x86_64" else []
    subprocess.run(["gcc", "-O1", *flags, "-shared", "-fPIC", "-xc", "-", "-o", folder / "libcuda.so.1"], input=RECURSIVE,
                   text=True, check=True)
    process = start(f"import ctypes; recursive = ctypes.CDLL('{folder}/libcuda.so.1'); h = ctypes.create_string_buffer(64)")
    until(lambda: is_probed(client, folder / "libcuda.so.1"))
    client.ask("observe")
    assert process.do("ret = recursive.cuIpcGetMemHandle(h, 20)") == 0
    assert [act["address"] for act in acts(client, pid=process.pid)] == [0]
    assert "gap" not in [packet["kind"] for packet in client.followed]


def test_the_older_open_is_told_once(client, start):
    a, b = start(), start()
    until(lambda: is_probed(client))
    handle = a.do(EXPORT + "; ret = bytes(h.bytes).hex()")
    b.do(f"do('cuIpcOpenMemHandle', ctypes.byref(q), Handle.from_buffer_copy(bytes.fromhex('{handle}')), 1)")
    [opened] = acts(client, pid=b.pid)
    assert (opened["act"], opened["from"]["pid"]) == ("cuda_ipc_open", a.pid)


def test_calls_that_the_ring_has_no_room_for_are_counted(start):
    features.require("bpf")
    n = 500
    with Tracer("--ring=4K", probes=True) as tracer:
        client = tracer.client()
        process = start()
        until(lambda: is_probed(client))
        client.ask("observe")
        os.kill(tracer.proc.pid, signal.SIGSTOP)  # so that nobody makes room
        try:
            process.do(f"for _ in range({n}): call('cuIpcGetMemHandle', ctypes.byref(h), p)")
        finally:
            os.kill(tracer.proc.pid, signal.SIGCONT)
        n_told = len(acts(client, pid=process.pid))
        gaps = [packet for packet in client.followed if packet["kind"] == "gap"]
        assert 0 < n_told < n and {gap["source"] for gap in gaps} == {"probes"}
        assert sum(gap["lost"] for gap in gaps) == n - n_told
        counted = next(row for row in client.ask("metrics") if row["metric"] == "weightd_trace_lost_events")
        assert {"labels": {"source": "probes"}, "value": n - n_told} in counted["samples"], counted


def test_who_asks_waits_for_no_more_than_a_part_of_what_is_to_be_told(client, tracer, start):
    process, n = start(), 1000
    until(lambda: is_probed(client))
    os.kill(tracer.proc.pid, signal.SIGSTOP)  # so that it has both
    try:
        process.do(f"for _ in range({n}): call('cuIpcGetMemHandle', ctypes.byref(h), p)")
        client.send("metrics")  # which may be served before
        client.send("metrics")
    finally:
        os.kill(tracer.proc.pid, signal.SIGCONT)
    assert n_told(client.answer(), "cuda_ipc_export") < n
    assert n_told(client.answer(), "cuda_ipc_export") < n
    assert len(acts(client, pid=process.pid)) == n  # as of now
    assert n_told(client.ask("metrics"), "cuda_ipc_export") == n


def n_told(metrics, act):
    """How many of them were."""
    return sum(sample["value"] for row in metrics if row["metric"] == "weightd_trace_acts" for sample in row["samples"]
               if sample["labels"]["act"] == act)


FLOOD = """
import ctypes, time
flood, h = ctypes.CDLL("{library}"), ctypes.create_string_buffer(64)
def call(s):
    n, began = 0, time.monotonic()
    while time.monotonic() < began + s:
        for _ in range(1000):
            flood.cuIpcGetMemHandle(h, 0)
        n += 1000
    return n
"""


def test_who_calls_too_often_takes_no_room_of_others(client, start, folder):
    features.require("gcc", available=shutil.which("gcc"))
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-xc", "-", "-o", folder / "libcuda.so.1"], input=RECURSIVE, text=True,
                   check=True)
    process = start()
    until(lambda: export_of(client, process))
    somebody = start(FLOOD.format(library=folder / "libcuda.so.1"), prefix=["setpriv", "--reuid=12345", "--clear-groups"])
    until(lambda: is_probed(client, folder / "libcuda.so.1"))
    n_before = len(acts(client, pid=process.pid))
    client.ask("observe")
    until(lambda: somebody.do("ret = call(1.5)") > 3 * 4096)  # of which 4096 a second are told; a busy machine takes longer
    kept = acts(client, pid=somebody.pid)
    assert 0 < len(kept) < 4096
    while not any(packet["kind"] == "gap" and packet["source"] == "probes" and packet["lost"] for packet in client.followed):
        client.followed.append(client.hear())
    assert len(acts(client, pid=process.pid)) == n_before
    assert len(export_of(client, process)) == 1


def test_a_storm_of_programs_costs_little(client, tracer, start):
    process = start()
    until(lambda: is_probed(client))
    before, began = cpu_s(tracer.proc.pid), time.monotonic()
    process.do("import subprocess\nfor _ in range(300): subprocess.run(['/bin/true'])")
    took = time.monotonic() - began
    assert cpu_s(tracer.proc.pid) - before < 0.2 * took + 0.05
    assert len(export_of(client, process)) == 1


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the tracer ---

def test_files_of_others_are_not_for_everybody(tracer, client, start):
    start()
    until(lambda: is_probed(client))
    os.chmod(tracer.socket, 0o666)
    os.seteuid(NOBODY)
    try:
        stranger = tracer.client()
        assert "library" not in [row["kind"] for row in stranger.ask("doctor")]
        with pytest.raises(tracing.Refused, match="shown to root"):
            stranger.ask("acts")
    finally:
        os.seteuid(0)


def test_nothing_is_probed_that_nobody_wants(start):
    features.require("bpf")
    with Tracer("--probes=off") as tracer:
        client = tracer.client()
        process = start()
        assert export_of(client, process) == [] and libraries(client) == {}
        off = [row for row in client.ask("doctor") if row["kind"] == "hook" and not row["on"]]
        assert [(row["hook"], row["why"]) for row in off] == [
            (hook, "weightd-trace was started with --probes=off")
            for hook in ("uprobe_multi", "iter/task_vma", "perf/mmap", "fexit/receive_fd")]


def test_nothing_is_left_of_one_that_was_killed(start):
    features.require("bpf")
    process = start()
    with Tracer(probes=True) as tracer:
        client = tracer.client()
        assert is_probed(client) and len(export_of(client, process)) == 1
        objects = kernel_objects(tracer.proc.pid)
        assert len([kind for kind, _ in objects if kind == "link"]) >= 2
        client.socket.close()
        tracer.kill()
        until(lambda: not [o for o in objects if exists(*o)])
        assert process.do(EXPORT) == 0
        tracer.start()
        client = tracer.client()
        assert len(export_of(client, process)) == 1


def test_clients_of_weightd_are_seen_to_take_its_memory(gpu, client):
    features.require("library")
    publish = "publish('m', DATA)\nwith attach('m') as b:\n    assert b.version\n"
    with contextlib.closing(Daemon(env=gpu.env)) as daemon:
        env = cuda_scene.environment(gpu, WEIGHTD_SOCKET=daemon.socket)

        def imports():  # the first ones may load the library before it is probed, and so may weightd
            subprocess.run(cuda_scene.command("context()\n" + publish), env=env, check=True)
            return [act for act in acts(client, act="cuda_vmm_import", failed=False, uid=os.getuid()) if act["from"]]

        found = until(imports)
    exports = {act["number"]: act for act in acts(client, act="cuda_vmm_export")}
    assert found and {act["from"]["comm"] for act in found} <= {"weightd-cuda", "weightd"}
    for act in found:
        export = exports[act["from"]["number"]]
        assert (export["pid"], export["bytes"]) == (act["from"]["pid"], act["bytes"])

"""Calls of processes to NCCL, as the probes on it see them; the library is a stand-in, but for the last."""
import contextlib
import os
import re
import subprocess

import pytest
from bpf.probing import CUDA, Process, acts, hear_of, is_probed, libraries, until
from lib import features, nccl_library
from lib.features import ROOT
from lib.gpus import FAKE

pytestmark = pytest.mark.probes


@pytest.fixture
def tracer(tracer):
    features.require("probes")
    return tracer


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
    refused = process.do("ret = 0\nfor _ in range(1000): " + REDUCE.format(n=100, type=11) + "\n"  # no type of its table
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
    process.do(REDUCE.format(n=1, type=11))
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


REAL_NCCL = """
import ctypes
nccl = ctypes.CDLL("{library}")
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 128)]
id, communicator = Id(), ctypes.c_void_p()
"""


def test_the_real_nccl_has_those_of_its_release(client):
    """Calls that fail without a GPU have events like all others."""
    library = nccl_library.require().resolve()
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    sites = re.findall(r'^\t\{"(nccl\w+)"', (ROOT / "bpf/probe/library-nccl.c").read_text(), re.M)
    there = set(sites) & {line.split()[-1] for line in listed.splitlines()}
    assert len(there) > 20
    with contextlib.closing(Process(REAL_NCCL.format(library=library), env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})) as process:
        until(lambda: is_probed(client, library))
        assert libraries(client)[str(library)]["functions"] == len(there)
        given, joined, reduced = process.do(
            "ret = [nccl.ncclGetUniqueId(ctypes.byref(id)), nccl.ncclCommInitRank(ctypes.byref(communicator), 2, id, 1), "
            "nccl.ncclAllReduce(None, None, ctypes.c_size_t(10), 7, 0, None, None)]")
        another = process.do("ret = nccl.ncclCommInitRank(ctypes.byref(communicator), 2, id, 0)")
        begun, begun_again, counted = sorted(acts(client, pid=process.pid), key=lambda act: (act["act"] == "nccl_calls", act["number"]))
        assert given == 0 and joined and reduced and another
        keys = "act", "function", "result", "failed", "ranks", "rank"
        assert [members(act, *keys) for act in (begun, begun_again)] == [
            dict(zip(keys, ("nccl_init", "ncclCommInitRank", result, True, 2, rank))) for result, rank in ((joined, 1), (another, 0))]
        assert begun["id"] == begun_again["id"]
        assert members(counted, "function", "calls", "errors", "bytes") == {"function": "ncclAllReduce", "calls": 1, "errors": 1, "bytes": 0}

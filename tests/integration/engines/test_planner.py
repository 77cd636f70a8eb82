"""weightd-sync-local as a planner: layouts of shards and a split become layouts of others, and what has to move."""
import ctypes
import hashlib
import json
import os
import struct

import pytest
from integration.engines.test_exchange import FSDP_TO_TP, REPLICATED, UNEVEN, Case, cut
from integration.engines.test_local import task  # noqa: F401
from lib import features
from lib.wire import memfd
from weightd._abi import lib

import weightd


@pytest.fixture
def np():
    features.require("numpy")
    import numpy
    return numpy


def image(tensors, ties=()):
    """The layout of [(name, shape)], all F32."""
    layout = weightd.Layout()
    for name, shape in tensors:
        layout.add(name, "F32", shape, unit=name.split(".")[0])
    for name, to in ties:
        layout.tie(name, to)
    at, size = ctypes.c_void_p(), ctypes.c_uint64()
    assert lib.weightd_layout_image(layout._handle, ctypes.byref(at), ctypes.byref(size)) == 0
    try:
        return ctypes.string_at(at, size.value)
    finally:
        ctypes.CDLL(None).free(at)


def shapes(tensors, side, ranks, rank):
    """The shards of a rank for [(shape, from, to)], as names and shapes."""
    for i, (shape, *dims) in enumerate(tensors):
        shape = list(shape)
        if dims[side] is not REPLICATED:
            begin, end = cut(shape[dims[side]], ranks)[rank]
            shape[dims[side]] = end - begin
        yield f"t.{i}", shape


def rules(tensors):
    def word(dim):
        return "replicated" if dim is REPLICATED else dim
    return {"split": [{"tensors": f"t.{i}", "from": word(a), "to": word(b)} for i, (_, a, b) in enumerate(tensors)]}


def ask(planner, images, split, sources, targets, n_nodes):
    for content in images:
        fd = memfd(content)
        planner.tell("layout", [fd])
        os.close(fd)
    fd = memfd(split if isinstance(split, bytes) else json.dumps(split).encode())
    planner.tell("plan", [fd], sources=sources, targets=targets, n_nodes=n_nodes)
    os.close(fd)


def blob(said):
    """The content of its descriptor, after a check against the announced size and digest."""
    content = os.pread(said.fds[0], said["size"] + 1, 0)
    assert len(content) == said["size"] and hashlib.sha256(content).hexdigest() == said["hash"]
    with pytest.raises(OSError):
        os.pwrite(said.fds[0], b"x", 0)
    return content


def carry_out(np, plan, case):
    """The memories of the targets, made by a plan from those of the sources."""
    words = struct.unpack(f">{len(plan) // 8 - 1}Q", plan[8:])
    n_nodes, n_links, n_moves = words[:3]
    sizes = [words[3 + 2 * i:5 + 2 * i] for i in range(n_nodes)]
    links = [words[3 + 2 * n_nodes + 4 * i:][:4] for i in range(n_links)]
    moves = [words[3 + 2 * n_nodes + 4 * n_links + 9 * i:][:9] for i in range(n_moves)]
    results, written = [bytearray(size) for _, size in sizes], 0
    for a, b, n, n_bytes in links:
        before = written
        for at, to, run, m, da, db, k, fa, fb in moves[:n]:
            for i in range(m):
                for j in range(k):
                    x, y = at + i * da + j * fa, to + i * db + j * fb
                    results[b][y:y + run] = case.sources[a][x:x + run]
                    written += run
        moves = moves[n:]
        assert written - before == n_bytes == case.n_bytes((a, b))
    assert not moves and written == sum(4 * int(np.count_nonzero(np.frombuffer(r, np.uint32))) for r in results), \
        "each element once"
    return results


@pytest.mark.parametrize("sources, targets", (
    ((0, 1, 2, 3), (4, 5)), ((0, 1), (2, 3, 4, 5)), ((0, 1, 2), (3,)), ((0,), (1, 2, 3)), ((0, 1, 2, 3), (2, 0))),
    ids=("4-to-2", "2-to-4", "gather", "scatter", "4-to-2-of-them"))
@pytest.mark.parametrize("tensors", (FSDP_TO_TP, UNEVEN), ids=("fsdp-to-tp", "uneven"))
def test_a_plan_makes_what_numpy_makes(daemon, task, np, tensors, sources, targets):  # noqa: F811
    case, planner = Case(np, tensors, sources, targets), task("planner")
    n_nodes = max(*sources, *targets) + 1
    ask(planner, [image(shapes(tensors, 0, len(sources), rank)) for rank in range(len(sources))], rules(tensors),
        sources, targets, n_nodes)
    for rank, node in enumerate(targets):
        said = planner.hear("target")
        assert (said["rank"], said["n_bytes"]) == (rank, len(case.expected[node]))
        assert blob(said) == image(shapes(tensors, 1, len(targets), rank))
    results = carry_out(np, blob(planner.hear("planned")), case)
    assert [bytes(r) for r in results] == [e or b"" for e in case.expected]


def test_names_that_are_tied_stay_tied(daemon, task):  # noqa: F811
    planner, ties = task("planner"), [("head", 0)]
    ask(planner, [image([("embed", (4, 6))], ties)] * 2, {"split": [{"tensors": "*", "dim": 0}]}, [0, 1], [0], 2)
    assert blob(planner.hear("target")) == image([("embed", (8, 6))], ties)


@pytest.mark.parametrize("split, targets, why", (
    (b"{", [2], "the split is not JSON"),
    ({"split": [{"tensors": "x", "dim": 0}]}, [2], "no rule of the split matches tensor 't'"),
    ({"split": [{"tensors": "*", "dim": 3}]}, [2], "cannot be split along dimension 3"),
    ({"split": [{"tensors": "*", "replicated": True}]}, [2], "'t' is replicated, but [2, 3] at rank 1 and [3, 3] at rank 0"),
    ({"split": [{"tensors": "*", "dim": 0}]}, [0, 1, 2, 3, 4, 5], "target 5 would have no bytes"),
), ids=("no-json", "no-rule", "no-dimension", "not-alike", "nothing"))
def test_what_does_not_fit_together_is_said(daemon, task, split, targets, why):  # noqa: F811
    planner = task("planner")
    ask(planner, [image([("t", (3, 3))]), image([("t", (2, 3))])], split, [0, 1], targets, 8)
    said = planner.hear()
    while said["op"] == "target":
        said = planner.hear()
    assert said["op"] == "failed" and why in said["why"], said


@pytest.mark.parametrize("fields", ({"sources": [8]}, {"sources": [-1]}, {"sources": []}, {"sources": [0, 1]},
                                    {"targets": ["0"]}, {"n_nodes": 65}, {"n_nodes": None}))
def test_an_order_that_makes_no_sense_is_refused(daemon, task, fields):  # noqa: F811
    planner, fd = task("planner"), memfd(image([("t", (3, 3))]))
    planner.tell("layout", [fd])
    planner.tell("plan", [fd], **{"sources": [0], "targets": [1], "n_nodes": 8} | fields)
    os.close(fd)
    assert planner.failure()[0] == "malformed"


def test_a_layout_that_is_none_is_refused(daemon, task):  # noqa: F811
    planner, fd = task("planner"), memfd(b"x" * 1000)
    planner.tell("layout", [fd])
    os.close(fd)
    assert "the layout of rank 0 cannot be used" in planner.failure()[1]



"""
Exchanges of weightd-sync-nccl over the stand-ins for libcuda and libnccl: shards on GPUs that become other shards, as
over Gloo.
"""
import itertools
import signal

import pytest
from integration.engines.gpu_engine import MIB, Exchange, Gpu
from integration.engines.test_exchange import FSDP_TO_TP, REPLICATED, UNEVEN, Case, root
from lib import features
from lib.engine import plan
from lib.gpus import NCCL

PIECES = 65_536  # the least of a piece


@pytest.fixture(autouse=True)
def np():
    features.require("fakes", available=(NCCL / "libnccl.so.2").exists())
    features.require("numpy")
    import numpy
    return numpy


@pytest.fixture
def gpu():
    with Gpu() as gpu:
        yield gpu


def exchange(gpu, case, **orders):
    return Exchange(gpu, case.sources, [len(e or b"") for e in case.expected], [case.plan] * case.n_nodes, **orders)


def counted(n):
    return {"bytes": n, "kernel": None} if n else None


def assert_exchanged(case, x):
    """Each byte is where numpy has it, and each link is counted and digested as the plan has it."""
    x.start()
    ends = x.await_done()
    assert [memory and memory.read() for memory in x.results] == case.expected
    assert [memory and memory.read() for memory in x.sources] == case.sources
    for node, end in enumerate(ends):
        others = [other for other in range(case.n_nodes) if other != node]
        for told, links in (("gave", {b: (a, b) for a, b in case.links if a == node}),
                            ("took", {a: (a, b) for a, b in case.links if b == node})):
            assert end[told] == [{"node": f"n{other}", "bytes": case.n_bytes(link), "root": root(case.stream(link))}
                                 for other, link in sorted(links.items())], (node, told)
        out, come = ({o: case.n_bytes((node, o)[::step]) for o in others} for step in (1, -1))
        assert (end["out"], end["in"]) == (counted(sum(out.values())), counted(sum(come.values()))), end
        assert end["links"] == {f"n{o}": {"in": counted(come[o]), "out": counted(out[o])} for o in others if out[o] or come[o]}


@pytest.mark.parametrize("sources, targets", (
    ((0, 1, 2, 3), (4, 5)), ((0, 1), (2, 3, 4, 5)), ((0, 1, 2), (3,)), ((0,), (1, 2, 3)), ((0, 1, 2, 3), (2, 0)),
    ((0, 1), (1, 0, 2))), ids=("4-to-2", "2-to-4", "gather", "scatter", "4-to-2-of-them", "2-to-them-and-another"))
@pytest.mark.parametrize("tensors", (FSDP_TO_TP, UNEVEN), ids=("fsdp-to-tp", "uneven"))
def test_shards_become_others(np, gpu, tensors, sources, targets):
    case = Case(np, tensors, sources, targets)
    with exchange(gpu, case, chunk=65_536) as x:
        assert_exchanged(case, x)


def test_streams_have_several_pieces_and_leaves_and_none_is_full_at_its_end(np, gpu):
    case = Case(np, [((550, 333), 0, 1), ((2000, 201), 0, 0)], (0, 1, 2), (1, 3))
    with exchange(gpu, case, chunk=4 * PIECES) as x:
        assert_exchanged(case, x)
        done = [p["done"] for p in x.engines[3].progress]
        assert len(set(done)) > 3 and done[-1] == sum(case.n_bytes(link) for link in case.links if link[1] == 3), done


def test_what_is_on_its_node_already_is_moved_there(np, gpu):
    case = Case(np, [((64, 64), 0, 0), ((9,), REPLICATED, REPLICATED)], (0, 1), (0, 1))
    with exchange(gpu, case) as x:
        assert_exchanged(case, x)


def test_one_node_alone_moves_its_own(np, gpu):
    case = Case(np, FSDP_TO_TP, (0,), (0,))
    with exchange(gpu, case) as x:
        assert_exchanged(case, x)


def test_runs_of_two_levels_are_found_and_bytes_between_them_left_alone(gpu):
    row = (5, 3, 2, 2, 40, 30, 3, 7, 4)  # 2 times 3 runs of 2 bytes
    with Exchange(gpu, [bytes(range(100)), None], [0, 60], [plan([(100, 0), (0, 60)], {(0, 1): [row]})] * 2) as x:
        x.results[1].write(0, b"\xee" * 60)
        x.start()
        x.await_done()
        content = bytearray(b"\xee" * 60)
        for i, k in itertools.product(range(2), range(3)):
            content[3 + 30 * i + 4 * k:5 + 30 * i + 4 * k] = bytes((5 + 40 * i + 7 * k, 6 + 40 * i + 7 * k))
        assert x.results[1].read() == bytes(content)


def test_both_directions_go_at_once(gpu):
    """More than sockets hold, from each to the other: one that first sent all would wait for ever."""
    size = 8 * MIB
    text = plan([(size, size)] * 2, {(a, 1 - a): [(0, 0, size, 1, 0, 0, 1, 0, 0)] for a in (0, 1)})
    with Exchange(gpu, [bytes([a]) * size for a in (1, 2)], [size] * 2, [text] * 2, chunk=16 * MIB) as x:
        x.start()
        x.await_done()
        assert [memory.read() for memory in x.results] == [bytes([a]) * size for a in (2, 1)]


def test_what_is_digested_is_progress(gpu):
    run, n = MIB, 32
    text = plan([(run, 0), (0, run * n)], {(0, 1): [(0, 0, run, n, 0, 0, 1, 0, 0)]})
    with Exchange(gpu, [bytes(run), None], [0, run * n], [text] * 2) as x:
        x.start()
        x.await_done()
        assert any(p["done"] == run * n and 0 < p["sent"] < run * n for p in x.engines[1].progress), x.engines[1].progress


@pytest.mark.parametrize("rank", (0, 2), ids=("source", "target"))
def test_a_node_that_is_killed_is_the_end_at_once(gpu, rank):
    size = 4 * MIB
    links = {(a, b): [(size * (b - 2), size * a, size, 1, 0, 0, 1, 0, 0)] for a in (0, 1) for b in (2, 3)}
    text = plan([(2 * size, 0)] * 2 + [(0, 2 * size)] * 2, links)
    gpu.gpus.fail(f"ncclPiece@{rank}", "die", skip=4 + 10)  # the greeting of each, and ten pieces
    with Exchange(gpu, [2 * size] * 2 + [None] * 2, [0, 0, 2 * size, 2 * size], [text] * 4) as x:
        x.start()
        assert x.engines[rank].wait() == signal.SIGKILL
        for other in set(range(4)) - {rank}:
            end = x.engines[other].hear_end()
            assert end["who"] == f"n{(other + 3) % 4}" and "NCCL's exchange failed: remote process exited" in end["why"], end


def test_who_has_another_plan_is_refused_before_a_byte_moves(gpu):
    plans = [plan([(256, 0), (0, 256)], {(0, 1): [(0, to, 32, 1, 0, 0, 1, 0, 0)]}) for to in (0, 4)]
    with Exchange(gpu, [b"x" * 256, None], [0, 256], plans) as x:
        x.start()
        for engine, other in zip(x.engines, ("n1", "n0")):
            end = engine.hear_end()
            assert end["who"] == other and end["why"] == f"{other} has another plan", end
        assert x.results[1].read() == bytes(256)


@pytest.mark.parametrize("symbol", ("ncclSend", "ncclRecv", "ncclGroupEnd", "cuMemcpyDtoDAsync_v2"))
def test_a_call_that_fails_is_told_in_its_own_words(np, gpu, symbol):
    gpu.gpus.fail(symbol, 3 if symbol.startswith("nccl") else 700)
    with exchange(gpu, Case(np, FSDP_TO_TP, (0, 1), (0, 1))) as x:
        x.start()
        word = "internal error (3)" if symbol.startswith("nccl") else "CUDA_ERROR_ILLEGAL_ADDRESS"
        whys = [engine.hear_end()["why"] for engine in x.engines]
        assert any(word in why for why in whys), whys  # the other one may see first that this one has ended


def test_no_memory_for_pieces_is_one_sentence(gpu):
    """The memory of its own that an engine has on the GPU is there by then."""
    gpu.gpus.fail("cuMemAlloc_v2", 2, skip=1)
    with pytest.raises(AssertionError, match="the allocation of memory for pieces failed: CUDA_ERROR_OUT_OF_MEMORY"), \
            Exchange(gpu, [bytes(10), None], [0, 10], [
                plan([(10, 0), (0, 10)], {(0, 1): [(0, 0, 10, 1, 0, 0, 1, 0, 0)]})] * 2):
        pass

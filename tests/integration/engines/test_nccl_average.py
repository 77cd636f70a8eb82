"""
Averages of weightd-sync-nccl over the stand-ins for libcuda and libnccl: the same bits everywhere, Gloo's where the
arithmetic is the same, and within a bound of the mean elsewhere.
"""
import contextlib
import signal

import pytest
from integration.engines.floats import decode, draw, encode
from integration.engines.gpu_engine import MIB, Average, Gpu
from integration.engines.test_average import averaged as averaged_by_gloo
from integration.engines.test_average import lay_out
from lib import features
from lib.engine import program
from lib.gpus import NCCL

STALL_MS = 4_000
HALF_UNIT = {"F32": 2.0 ** -24, "BF16": 2.0 ** -8, "F16": 2.0 ** -11}
SIZES = {"F32": 4, "BF16": 2, "F16": 2}


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


def averaged(gpu, contents, tensors, **orders):
    """The result of every rank, and its messages."""
    with Average(gpu, contents, tensors, **orders) as a:
        a.start()
        ends = a.await_done()
        results = [memory.read() for memory in a.results]
        assert [memory.read() for memory in a.memories] == contents, "a source was written"
    assert [result == results[0] for result in results] == [True] * len(results), "ranks have different bits"
    return results[0], ends


def terms_of(np, dtype, n, count):
    return [encode(np, dtype, draw(np, rank, count)) for rank in range(n)]


@pytest.mark.parametrize("dtype, n, count", (("F32", 2, 3 * MIB // 4 + 1), ("F32", 4, 65_537), ("BF16", 2, 3 * MIB // 4 + 1)))
def test_the_bits_are_those_of_gloo_where_nothing_is_rounded_otherwise(np, gpu, dtype, n, count):
    """1/n is exact, the sums are in the order of the ranks, and in BF16 of two ranks each is rounded once."""
    features.require("gloo", available=program("gloo").exists())
    contents = terms_of(np, dtype, n, count)
    tensors = [["w", dtype, 0, len(contents[0])]]
    result, _ = averaged(gpu, contents, tensors)
    assert result == averaged_by_gloo(contents, tensors)[0]


@pytest.mark.parametrize("n, dtype", ((2, "F16"), (3, "F32"), (4, "BF16"), (4, "F16")))
def test_a_mean_is_within_its_bound(np, gpu, n, dtype):
    """A rounding for each term and for each addition; of F16, terms may be subnormal."""
    contents = terms_of(np, dtype, n, 65_537)
    result, _ = averaged(gpu, contents, [["w", dtype, 0, len(contents[0])]])
    terms = [decode(np, dtype, content).astype(np.float64) for content in contents]
    size = np.mean([abs(term) for term in terms], axis=0)
    bound = (n + 1) * HALF_UNIT[dtype] * size + (n * 2.0 ** -25 if dtype == "F16" else 0)
    error = abs(decode(np, dtype, result).astype(np.float64) - np.mean(terms, axis=0))
    assert (error <= bound).all(), (error - bound).max()


def test_a_model_is_its_own_mean(np, gpu):
    for dtype in SIZES:
        content = encode(np, dtype, np.arange(1, 4096, dtype=np.float32))
        assert averaged(gpu, [content] * 4, [["w", dtype, 0, len(content)]])[0] == content, dtype


@pytest.mark.parametrize("dtype", ("BF16", "F16"))
def test_short_types_of_three_nodes_are_refused_by_name(np, gpu, dtype):
    """NCCL would multiply by 1/3 rounded to 8 or 11 bits: each mean would be too large."""
    contents = terms_of(np, dtype, 3, 10)
    names = [{"node": f"n{i}", "address": "127.0.0.1"} for i in range(3)]
    a = Average(gpu, contents, [["v", "F32", 0, 0], ["w", dtype, 0, 20]])
    with contextlib.closing(gpu.engine()) as engine:
        a.engines = [engine]
        a.tell_open(0, {"node": "n0", "from": None, "nodes": names} | a.orders)
        end = engine.hear()
    for memory in a.owned():
        memory.close()
    assert (end["op"], end["code"], end.get("who")) == ("failed", "refused", None), end
    assert "tensor 'w' is of a 16-bit type" in end["why"] and "engine = tcp" in end["why"], end


def test_tensors_of_several_types_and_ragged_sizes_keep_their_places(np, gpu):
    shapes = [("a", "F32", 4 * 1001), ("b", "BF16", 2 * 33_333), ("none", "F32", 0), ("c", "F16", 2), ("ids", "I64", 8 * 99),
              ("empty", "U8", 0), ("d", "BF16", 2 * 70_001), ("e", "F32", 4), ("mask", "BOOL", 7), ("f", "F16", 2 * 5)]
    tensors, n_bytes = lay_out(*shapes)
    contents = []
    for rank in range(2):
        content = bytearray(b"\xee" * n_bytes)
        for name, dtype, offset, size in tensors:
            content[offset:offset + size] = encode(np, dtype, draw(np, rank, size // SIZES[dtype])) if dtype in SIZES \
                else b"\x01" * size
        contents.append(bytes(content))
    result, ends = averaged(gpu, contents, tensors, chunk=65_536)
    end = 0
    for name, dtype, offset, size in tensors:
        parts = [content[offset:offset + size] for content in contents]
        expected = parts[0]
        if dtype in SIZES:
            a, b = (decode(np, dtype, part) for part in parts)
            expected = encode(np, dtype, decode(np, dtype, encode(np, dtype, a / 2)) + decode(np, dtype, encode(np, dtype, b / 2)))
        assert result[offset:offset + size] == expected, name
        assert result[end:offset] == bytes(offset - end), f"something was written before {name}"
        end = offset + size
    counted = {"bytes": sum(size for _, dtype, _, size in tensors if dtype in SIZES), "kernel": None}
    assert [(end["in"], end["out"], end["links"]) for end in ends] == [
        (counted, counted, {other: {"in": counted, "out": counted}}) for other in ("n1", "n0")], ends


def test_links_are_those_of_a_ring(np, gpu):
    _, ends = averaged(gpu, [bytes(40)] * 3, [["w", "F32", 0, 40]])
    n = {"bytes": 40, "kernel": None}
    assert ends[1]["links"] == {"n0": {"in": n, "out": None}, "n2": {"in": None, "out": n}}, ends[1]


def test_a_tensor_without_a_mean_that_differs_is_refused_by_name(gpu):
    """Also in the second batch of digests."""
    tensors, n_bytes = lay_out(("w", "F32", 4000), *((f"v.{i}", "U8", 1) for i in range(16)), ("steps", "I64", 8))
    contents = [bytearray(n_bytes) for _ in range(2)]
    contents[1][tensors[-1][2]] = 1
    with Average(gpu, [bytes(content) for content in contents], tensors) as a:
        a.start()
        for engine, other in zip(a.engines, ("n1", "n0")):
            end = engine.hear_end()
            assert (end["op"], end["code"], end["who"]) == ("failed", "differs", other) and "'steps'" in end["why"], end


@pytest.mark.parametrize("change, word", (
    ({"sync": "ff" * 8}, "another sync"), ({"epoch": 2}, "another sync or epoch"), ({"chunk": 1 << 17}, "another size"),
    (None, "has another table of tensors")), ids=("sync", "epoch", "chunk", "table"))
def test_a_node_with_another_order_is_refused_by_name(gpu, change, word):
    class Stranger(Average):
        def tell_open(self, rank, order):
            super().tell_open(rank, order | (change or {} if rank == 1 else {}))

    tables = [[["w", "F32", 0, 100]], [["w", "BF16" if not change else "F32", 0, 100]]]
    with Stranger(gpu, [bytes(100)] * 2, None, tables) as a:
        a.start()
        for engine, other in zip(a.engines, ("n1", "n0")):
            end = engine.hear_end()
            assert (end["op"], end["who"]) == ("failed", other) and end["why"].startswith(f"{other} "), end
            assert word in end["why"], end
        assert [memory.read() for memory in a.results] == [bytes(100)] * 2


@pytest.mark.parametrize("change, word", (
    ({"nodes": []}, "one of `nodes`"), ({"nodes": [{"node": "n0", "address": "127.0.0.1"}]}, "2 at least"),
    ({"map_size": 9}, "`map_size`"), ({"result_map_size": 9}, "`result_map_size`"), ({"token": None}, "token")))
def test_an_order_that_is_wrong_is_refused_with_what_is_wrong(gpu, change, word):
    a = Average(gpu, [bytes(10)], [["w", "F32", 0, 8]])
    with contextlib.closing(gpu.engine()) as engine:
        a.engines = [engine]
        a.tell_open(0, {"node": "n0", "from": None, "nodes": [{"node": "n0", "address": "127.0.0.1"}]} | a.orders | change)
        end = engine.hear()
    for memory in a.owned():
        memory.close()
    assert end["op"] == "failed" and word in end["why"], end


def test_an_id_that_is_none_is_refused(gpu):
    with Average(gpu, [bytes(40)] * 2, [["w", "F32", 0, 40]]) as a:
        a.hellos[0][1] = "00"
        a.start(ranks=(1,))
        assert "the first of `hellos` must be that of rank 0" in a.engines[1].hear_end()["why"]


def test_a_rate_holds_all_back(gpu):
    with Average(gpu, [bytes(2 * MIB)] * 2, [["w", "F32", 0, 2 * MIB]], chunk=65_536) as a:
        a.start(max_rate=4 * MIB)
        a.await_done()
        done = [p["done"] for p in a.engines[1].progress]
        assert len(done) > 3 and done == sorted(set(done)), done


def test_a_node_that_is_killed_is_the_end_at_once(gpu):
    gpu.gpus.fail("ncclPiece@1", "die", skip=3 + 20)
    with Average(gpu, [bytes(8 * MIB)] * 3, [["w", "F32", 0, 8 * MIB]]) as a:
        a.start()
        assert a.engines[1].wait() == signal.SIGKILL
        end = a.engines[2].hear_end()
        assert end["who"] == "n1" and "NCCL's average failed: remote process exited" in end["why"], end
        assert a.engines[0].hear_end()["who"] == "n2"


def test_a_node_that_does_not_start_is_the_end_within_a_stall(gpu):
    with Average(gpu, [bytes(100)] * 2, [["w", "F32", 0, 100]], stall_ms=1000) as a:
        a.start(ranks=(0,))
        end = a.engines[0].hear_end()
        assert end["who"] == "n1" and "NCCL's communicator made no progress" in end["why"], end


@pytest.mark.parametrize("symbol", ("ncclGroupStart", "ncclGroupEnd", "ncclAllReduce", "ncclAllGather", "cuMemcpyDtoHAsync_v2"))
def test_a_call_that_fails_is_told_in_its_own_words(gpu, symbol):
    gpu.gpus.fail(symbol, 3 if symbol.startswith("nccl") else 700)
    with Average(gpu, [bytes(4000)] * 2, [["w", "F32", 0, 4000]], stall_ms=STALL_MS) as a:
        a.start()
        word = "internal error (3)" if symbol.startswith("nccl") else "CUDA_ERROR_ILLEGAL_ADDRESS"
        whys = [engine.hear_end()["why"] for engine in a.engines]
        assert any(word in why for why in whys), whys  # the other one may see first that this one has ended

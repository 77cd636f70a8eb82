"""Averages of weightd-sync-gloo over loopback: the same bits everywhere, and the mean that arithmetic has."""
import contextlib
import secrets
import signal

import pytest
from integration.engines.floats import decode, draw, encode
from lib import features
from lib.engine import CHUNK, WORD, Average, Engine, Memory, program

SLOW, SLOWEST = 1 << 20, 65_536  # bytes a second
STALL_MS = 5_000
SIZES = {"F32": 4, "BF16": 2, "F16": 2}


@pytest.fixture(autouse=True)
def np():
    features.require("gloo", available=program("gloo").exists())
    features.require("numpy")
    import numpy
    return numpy


def lay_out(*tensors):
    """Tables of (name, dtype, bytes) one behind the other, each at a multiple of 64."""
    table, end = [], 0
    for name, dtype, size in tensors:
        table.append([name, dtype, end, size])
        end += -(-size // 64) * 64
    return table, end


@contextlib.contextmanager
def average(contents, tensors, **kw):
    """An average of these bytes, by rank."""
    with contextlib.ExitStack() as stack:
        memories = [stack.enter_context(contextlib.closing(Memory(content))) for content in contents]
        yield stack.enter_context(Average(memories, tensors, **kw))


def averaged(contents, tensors, **kw):
    """The result of every rank, and its messages."""
    with average(contents, tensors, **kw) as a:
        a.start()
        ends = a.await_done()
        results = [memory.read() for memory in a.results]
    assert [result == results[0] for result in results] == [True] * len(results), "ranks have different bits"
    return results[0], ends


@pytest.mark.parametrize("dtype", ("F32", "BF16", "F16"))
@pytest.mark.parametrize("n, count", ((1, 100), (2, 3 * CHUNK // 4 + 1), (3, 65_537), (4, 300_001)))
def test_a_mean_is_the_sum_in_order_of_the_ranks_rounded_once(np, n, count, dtype):
    contents = [encode(np, dtype, draw(np, rank, count)) for rank in range(n)]
    result, _ = averaged(contents, [["w", dtype, 0, len(contents[0])]], chunk=65_536)
    terms = [decode(np, dtype, content) for content in contents]
    sums = terms[0].copy()
    for term in terms[1:]:
        sums += term
    assert result == encode(np, dtype, sums / np.float32(n))
    exact = np.mean([term.astype(np.float64) for term in terms], axis=0)
    size = np.mean([abs(term.astype(np.float64)) for term in terms], axis=0)
    half_unit = {"F32": 2.0 ** -24, "BF16": 2.0 ** -8, "F16": 2.0 ** -11}[dtype]
    bound = n * 2.0 ** -23 * size + half_unit * abs(exact) + (2.0 ** -25 if dtype == "F16" else 0)
    error = abs(decode(np, dtype, result).astype(np.float64) - exact)
    assert (error <= bound).all(), (error - bound).max()


@pytest.mark.parametrize("dtype", ("BF16", "F16"))
def test_every_value_of_a_short_type_is_its_own_mean(np, dtype):
    """Subnormal ones, infinities, zeros of both signs; and what is not a number stays none."""
    values = np.arange(1 << 16, dtype=np.uint16)
    result, _ = averaged([values.tobytes()] * 2, [["w", dtype, 0, 1 << 17]])
    expected = decode(np, dtype, values.tobytes())
    got = decode(np, dtype, result)
    is_number = expected == expected
    # The sum of two largest ones is in fp32's range for F16, and beyond it for BF16.
    is_number &= (dtype == "F16") | (abs(expected) < 2.0 ** 127) | np.isinf(expected)
    assert (np.frombuffer(result, np.uint16)[is_number] == values[is_number]).all()
    assert np.isnan(got[expected != expected]).all()


def test_short_types_do_not_lose_what_only_a_long_sum_holds(np):
    """256 + 1 is 256 in BF16: summed up in it, the ones would be lost, and the mean be 64.5."""
    terms = [np.full(1000, value, np.float32) for value in (256, 1, 1, 2)]
    result, _ = averaged([encode(np, "BF16", term) for term in terms], [["w", "BF16", 0, 2000]])
    assert (decode(np, "BF16", result) == 65).all()


def test_tensors_of_several_types_and_ragged_sizes_share_pieces_and_keep_their_places(np):
    shapes = [("a", "F32", 4 * 1001), ("b", "BF16", 2 * 33_333), ("none", "F32", 0), ("c", "F16", 2), ("ids", "I64", 8 * 99),
              ("empty", "U8", 0), ("d", "BF16", 2 * 70_001), ("e", "F32", 4), ("mask", "BOOL", 7), ("f", "F16", 2 * 5)]
    tensors, n_bytes = lay_out(*shapes)
    contents = []
    for rank in range(3):
        content = bytearray(b"\xee" * n_bytes)
        for name, dtype, offset, size in tensors:
            if dtype in SIZES:
                content[offset:offset + size] = encode(np, dtype, draw(np, rank, size // SIZES[dtype]))
            else:
                content[offset:offset + size] = b"\x01" * size
        contents.append(bytes(content))
    result, _ = averaged(contents, tensors, chunk=65_536)
    for name, dtype, offset, size in tensors:
        parts = [content[offset:offset + size] for content in contents]
        if dtype in SIZES:
            terms = [decode(np, dtype, part) for part in parts]
            expected = encode(np, dtype, ((terms[0] + terms[1]) + terms[2]) / np.float32(3))
        else:
            expected = parts[0]
        assert result[offset:offset + size] == expected, name


def test_a_piece_may_have_an_odd_size(np):
    contents = [b"\x00\x3c" * 32_767 + b"\xee" + b"\x00\x40" for _ in range(2)]
    result, _ = averaged(contents, [["w", "F16", 0, 65_534], ["v", "F16", 65_535, 2]], chunk=65_537)
    assert (result[:65_534], result[65_535:]) == (contents[0][:65_534], contents[0][65_535:])


def test_planned_counted_and_kernels_bytes_are_equal_and_near_the_bound_of_a_ring(np):
    n, n_bytes = 4, 16 * CHUNK
    _, ends = averaged([bytes(n_bytes)] * n, [["w", "F32", 0, n_bytes]])
    bound = 2 * (n - 1) * n_bytes // n
    for end in ends:
        assert end["in"]["bytes"] == end["in"]["kernel"] and end["out"]["bytes"] == end["out"]["kernel"], end
        assert bound <= end["out"]["bytes"] <= 1.001 * bound, (end, bound)


@pytest.mark.parametrize("name, told", (("steps", "'steps'"), ("steps" + "é" * 100, "'steps" + "é" * 97 + "'")))
def test_a_tensor_without_a_mean_that_differs_is_refused_by_name(name, told):
    tensors, n_bytes = lay_out(("w", "F32", 4000), (name, "I64", 8), ("rng", "U8", 100))
    contents = [bytearray(n_bytes) for _ in range(2)]
    contents[1][tensors[1][2]] = 1
    with average([bytes(content) for content in contents], tensors) as a:
        a.start()
        for engine, other in zip(a.engines, ("n1", "n0")):
            end = engine.hear_end()
            assert end["op"] == "failed" and end["who"] == other and told in end["why"], end


def test_what_has_no_mean_is_digested_as_bytes_move():
    """However much it is, no rank waits for that to open: the bytes at the start count."""
    tensors, n_bytes = lay_out(("w", "F32", 4000), ("ids", "I64", 8000))
    with average([b"\x01" * n_bytes] * 2, tensors) as a:
        for memory in a.memories:
            memory.write(tensors[1][2], b"\x02" * 8000)
        a.start()
        a.await_done()
        assert [result.read()[tensors[1][2]:] for result in a.results] == [b"\x02" * 8000] * 2


LEAF, DIGESTS = 1 << 20, 16


def planned(n_leaves, n_pieces, n_bytes):
    """gloo_planned_average() of server/sync/base/planned_bytes.h."""
    n = -(-n_leaves // DIGESTS) + n_pieces + 2
    return 96 * n + 248 + WORD + 32 * n_leaves + n_bytes + 48 * n


def test_what_has_no_mean_is_compared_in_batches_and_counted():
    size = 2 * DIGESTS * LEAF + 1
    tensors, n_bytes = lay_out(("w", "F32", 4000), ("ids", "I64", 0), ("table", "I8", size), ("mask", "BOOL", 64))
    content = (secrets.token_bytes(LEAF - 1) * (n_bytes // (LEAF - 1) + 1))[:n_bytes]
    result, ends = averaged([content] * 2, tensors)
    for name, _, offset, size in tensors[1:]:
        assert result[offset:offset + size] == content[offset:offset + size], name
    n = planned(2 * DIGESTS + 1 + 1, 1, 4000)
    assert [end[way] for end in ends for way in ("in", "out")] == [{"bytes": n, "kernel": n}] * 4


def test_what_differs_in_the_last_batch_is_refused_by_name():
    tensors, n_bytes = lay_out(("table", "I8", DIGESTS * LEAF), ("last", "U8", 100))
    with average([bytes(n_bytes), bytes(n_bytes - 64) + b"\x01" * 64], tensors) as a:
        a.start()
        for engine in a.engines:
            end = engine.hear_end()
            assert end["op"] == "failed" and end["code"] == "differs" and "'last'" in end["why"], end


def test_what_was_compared_is_progress():
    tensors, n_bytes = lay_out(("w", "F32", 6 * SLOWEST), ("ids", "I64", LEAF + 8))
    with average([bytes(n_bytes)] * 2, tensors, chunk=65_536) as a:
        a.start(max_rate=2 * SLOWEST)  # so that progress is sent before all is done, however late that is
        for engine in a.engines:
            engine.await_progress(LEAF + 8, "sent")
        a.await_done()


def test_other_tensors_are_refused():
    with average([bytes(100)] * 2, None, tables=[[["w", "F32", 0, 100]], [["w", "BF16", 0, 100]]]) as a:
        a.start()
        assert "has another table of tensors" in a.engines[0].hear_end()["why"]
        assert "has another table of tensors" in a.engines[1].hear_end()["why"]


# --- Nodes that fail ---------------------------------------------------------------------------------


def assert_failed(engine, who):
    """Checks that it failed. Returns the name of the node that it blames."""
    end = engine.hear_end()
    assert end["op"] == "failed" and end["who"] in who and end["who"] in end["why"], end
    return end["who"]


def test_a_node_that_is_killed_is_named():
    with average([bytes(16 * CHUNK)] * 3, [["w", "F32", 0, 16 * CHUNK]], chunk=65_536, stall_ms=STALL_MS) as a:
        a.start(max_rate=SLOW)
        a.engines[0].await_progress(1)
        a.engines[1].kill()
        # A rank that waits for the other survivor just then finds that one silent, later.
        named = {assert_failed(a.engines[0], ("n1", "n2")), assert_failed(a.engines[2], ("n1", "n0"))}
        assert "n1" in named


def test_a_node_that_is_stopped_is_named():
    with average([bytes(16 * CHUNK)] * 3, [["w", "F32", 0, 16 * CHUNK]], chunk=65_536, stall_ms=STALL_MS) as a:
        a.start(max_rate=SLOW)
        a.engines[0].await_progress(1)
        a.engines[1].kill(signal.SIGSTOP)
        named = {assert_failed(a.engines[0], ("n1", "n2")), assert_failed(a.engines[2], ("n1", "n0"))}
        assert "n1" in named


def test_a_node_that_does_not_start_is_named_by_all():
    with average([bytes(100)] * 3, [["w", "F32", 0, 100]], stall_ms=500) as a:
        a.start(ranks=(1, 2))  # n0 is silent from the start for both, however late the other one is
        assert_failed(a.engines[1], ("n0",))
        assert_failed(a.engines[2], ("n0",))


def test_a_node_that_says_no_hello_is_named():
    with average([bytes(100)] * 2, [["w", "F32", 0, 100]]) as a:
        a.hellos[1][0] = "00" * 1000
        a.start(ranks=(0,))
        assert_failed(a.engines[0], ("n1",))


# --- The agent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("change, word", (
    ({"nodes": ...}, "nodes"), ({"nodes": []}, "nodes"), ({"nodes": [{"node": "b"}]}, "address"), ({"nodes": [7]}, "nodes"),
    ({"nodes": [{"node": "c", "address": "127.0.0.1"}]}, "one of `nodes`"), ({"token": None}, "token"),
    ({"nodes": [{"node": "b", "address": "127.0.0.1"}] * 2}, "twice"), ({"n_bytes": 11}, "smaller")))
def test_an_order_that_is_wrong_is_refused_with_what_is_wrong(change, word):
    order = {"operation": "average", "from": None, "nodes": [{"node": "b", "address": "127.0.0.1"}], "security": "none"}
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Memory(b"[]")) as table, \
            contextlib.closing(Engine(engine="gloo")) as engine:
        engine.tell_open(memory, ..., (memory.fd, table.fd), **(order | change))
        end = engine.hear()
        assert end["op"] == "failed" and word in end["why"], end


@pytest.mark.parametrize("table, word", (
    (b"", "table"), (b"{}", "array"), (b"[7]", "tensor must be"), (b'[["w","F32",0]]', "tensor must be"),
    (b'[["w","F32",0,12]]', "tensor must be"), (b'[["w","F32",-1,4]]', "tensor must be"),
    (b'[["w","F32",0,6]]', "'w'"), (b'[["v","U8",0,4],["w","F32",3,4]]', "'w'"), (b'[["w","F32",11,0]]', "tensor must be"),
    (('[["v","U8",0,4],["w%s","x%s",3,4]]' % ("é" * 100, "é" * 10)).encode(), "'w" + "é" * 99 + "'")))
def test_a_table_that_is_wrong_is_refused_with_what_is_wrong(table, word):
    order = {"operation": "average", "from": None, "nodes": [{"node": "b", "address": "127.0.0.1"}], "security": "none"}
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Memory(table)) as text, \
            contextlib.closing(Engine(engine="gloo")) as engine:
        engine.tell_open(memory, ..., (memory.fd, text.fd), **order)
        end = engine.hear()
        assert end["op"] == "failed" and word in end["why"], end


def test_tcp_says_which_engine_averages():
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine()) as engine:
        engine.tell_open(memory, ..., (memory.fd, memory.fd), operation="average", security="none")
        assert 'use the engine "gloo"' in engine.hear()["why"]

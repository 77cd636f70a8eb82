"""
Versions that are files: their data begin behind a header, on each node at a place of its own. Engines carry the data to
the same places in them, and leave headers alone.
"""
import contextlib
import random

import pytest
from integration.engines.floats import decode, draw, encode
from integration.engines.test_exchange import FSDP_TO_TP, Case
from lib import features
from lib.engine import CHUNK, Average, Chain, Engine, Memory, program
from lib.pki import Authority

HEADERS = 11_416, 0, 4_096 + 8, (2 << 20) + 1  # by place: a file taken as it was, the flat form, and two more


@pytest.fixture
def np():
    features.require("numpy")
    import numpy
    return numpy


def needs(engine):
    features.require("sync" if engine == "tcp" else engine, available=program(engine).exists())


def assert_arrived(memories, data):
    assert [memory.read() == data for memory in memories] == [True] * len(memories)
    assert [memory.has_header() for memory in memories] == [True] * len(memories)


@pytest.mark.parametrize("first", range(len(HEADERS)))
@pytest.mark.parametrize("engine", ("tcp", "gloo"))
def test_each_node_has_the_data_behind_its_own_header(engine, first):
    needs(engine)
    headers = HEADERS[first:] + HEADERS[:first]
    data = random.Random(first).randbytes(3 * CHUNK + 7)
    with Chain(list("abcd"), Memory(data, header=headers[0]), engine=engine, headers=headers[1:]) as chain:
        chain.start()
        chain.await_done()
        assert_arrived(chain.memories[1:], data)


@pytest.mark.parametrize("engine", ("tcp", "gloo"))
def test_ranges_are_those_of_the_data(engine):
    needs(engine)
    data, old = random.Random(1).randbytes(300_000), b"\xaa" * 300_000
    ranges = [[0, 1], [4095, 2], [100_000, 70_001], [299_999, 1]]
    expected = bytearray(old)
    for offset, size in ranges:
        expected[offset:offset + size] = data[offset:offset + size]
    with Chain(["a", "b", "c"], Memory(data, header=HEADERS[0]), ranges, engine=engine, headers=HEADERS[2:]) as chain:
        for memory in chain.memories[1:]:
            memory.write(0, old)
        chain.start()
        chain.await_done()
        assert_arrived(chain.memories[1:], bytes(expected))


@pytest.mark.parametrize("kernel", (False, True), ids=("openssl", "kernel"))
def test_tls_sends_the_data_and_not_the_header(tmp_path, kernel):
    needs("tcp")
    fake = features.BUILD.with_name("build") / "fake/ktls.so"
    if kernel:
        features.require("fakes", "the stand-in for kTLS is not built (make fakes)", available=fake.exists())
        features.require("preload", "a sanitizer has to be loaded first", available=features.BUILD.name == "build")
    authority = Authority(tmp_path / "ca")
    data = random.Random(2).randbytes(CHUNK + 7)
    with contextlib.ExitStack() as stack:
        pems = {name: [stack.enter_context(contextlib.closing(Memory(path.read_bytes()))).fd
                       for path in (authority.certificate, *authority.node(name))] for name in "abc"}
        chain = stack.enter_context(Chain(
            list("abc"), Memory(data, header=HEADERS[0]), fds=pems, headers=HEADERS[2:],
            prefix=["env", f"LD_PRELOAD={fake}"] if kernel else ()))
        chain.start()
        ends = chain.await_done()
        assert_arrived(chain.memories[1:], data)
        assert ends[0]["out"]["tls"] == ("kernel" if kernel else "openssl")


def test_means_are_of_the_data(np):
    needs("gloo")
    contents = [encode(np, "F32", draw(np, rank, 70_001)) for rank in range(3)]
    with contextlib.ExitStack() as stack:
        memories = [stack.enter_context(contextlib.closing(Memory(content, header=header)))
                    for content, header in zip(contents, HEADERS)]
        a = stack.enter_context(Average(memories, [["w", "F32", 0, len(contents[0])]], headers=HEADERS[1:], chunk=65_536))
        a.start()
        a.await_done()
        terms = [decode(np, "F32", content) for content in contents]
        assert_arrived(a.results, encode(np, "F32", (terms[0] + terms[1] + terms[2]) / np.float32(3)))


@pytest.mark.parametrize("header", HEADERS)
def test_shards_become_others(np, header):
    needs("gloo")
    case = Case(np, FSDP_TO_TP, (0, 1), (1, 0, 2))
    with case.exchange(chunk=65_536, header=header) as x:
        x.start()
        x.await_done()
        assert [memory and memory.read() for memory in x.results] == case.expected
        assert all(memory.has_header() for memory in x.sources + x.results if memory)


@pytest.mark.parametrize("change, word", (
    ({"data_offset": 1}, "smaller than `n_bytes`"), ({"data_offset": (128 << 20) + 1}, "`data_offset`"),
    ({"data_offset": -1}, "`data_offset`"), ({"data_offset": 1 << 62}, "`data_offset`")))
def test_a_place_that_the_memory_does_not_have_is_refused(change, word):
    needs("tcp")
    with contextlib.closing(Engine()) as engine, contextlib.closing(Memory(5_000)) as memory:
        engine.tell_open(memory, **change)
        end = engine.hear_end()
        assert end["op"] == "failed" and word in end["why"], end

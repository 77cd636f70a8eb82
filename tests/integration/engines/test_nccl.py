"""weightd-sync-nccl over the stand-ins for libcuda and libnccl: every byte arrives, and every failure has a name."""
import contextlib
import random
import signal
import uuid

import pytest
from integration.engines.gpu_engine import MIB, Gpu, Ring
from lib import features
from lib.engine import Engine, Memory, program
from lib.gpus import NCCL

STALL_MS = 4_000  # limit for calls that hang; it means nothing for a process that only gets no processor
ID = 128


@pytest.fixture(autouse=True)
def needs_the_fakes():
    features.require("fakes", available=(NCCL / "libnccl.so.2").exists())


@pytest.fixture
def gpu():
    with Gpu() as gpu:
        yield gpu


def random_bytes(n):
    return random.Random(n).randbytes(n)


def assert_failed(engine, from_, to, *words):
    end = engine.hear_end()
    assert (end["op"], end.get("from"), end.get("to"), end.get("who")) == ("failed", from_, to, from_), end
    assert all(word in end["why"] for word in words), (end["why"], words)
    return end


# --- Bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ("ab", "abc", "abcd"))
@pytest.mark.parametrize("n_bytes", (1, 4097, 5 * MIB + 7))
def test_every_receiver_has_every_byte(gpu, names, n_bytes):
    data = random_bytes(n_bytes)
    with Ring(names, gpu, data) as ring:
        ring.start()
        ends = ring.await_done()
        for name, memory in zip(names[1:], ring.memories[1:]):
            assert memory.read() == data, f"{name} has other bytes"
        counted = {"bytes": n_bytes, "kernel": None}
        assert [(end["in"], end["out"]) for end in ends] == [(None, counted)] + [(counted, None)] * (len(names) - 1)
        assert [engine.progress[-1]["done"] for engine in ring.engines] == [n_bytes] * len(names)


@pytest.mark.parametrize("ranges", (
    [[5000, 1]], [[1, 2], [4, 1], [4095, 2], [100_000, 70_001]], [[i * 30_000, 15_000] for i in range(100)], []))
def test_only_the_ranges_are_carried(gpu, ranges):
    data, old = random_bytes(3_000_000), b"\xaa" * 3_000_000
    expected = bytearray(old)
    for offset, size in ranges:
        expected[offset:offset + size] = data[offset:offset + size]
    with Ring("abc", gpu, data, ranges, chunk=65_536) as ring:
        for memory in ring.memories[1:]:
            memory.write(0, old)
        ring.start()
        ring.await_done()
        assert [memory.read() == bytes(expected) for memory in ring.memories[1:]] == [True, True]


def test_it_forms_in_any_order_of_starts(gpu):
    data = random_bytes(MIB)
    with Ring("abc", gpu, data) as ring:
        ring.start(places=(2, 0, 1))
        ring.await_done()
        assert ring.memories[2].read() == data


def test_nodes_on_loopback_have_addresses_of_their_own(gpu):
    data = random_bytes(MIB)
    with Ring("ab", gpu, data, address="127.9.8.7") as ring:
        ring.start()
        ring.await_done()


def test_nodes_on_gpus_of_their_own():
    data = random_bytes(MIB)
    with Gpu(devices=2) as gpus:
        with Ring("ab", gpus, data, memories=[gpus.memory(len(data), device=1)]) as ring:
            ring.start()
            ring.await_done()
            assert ring.memories[1].read() == data


def test_a_rate_holds_the_source_back(gpu):
    with Ring("ab", gpu, 4 * MIB, chunk=65_536) as ring:
        ring.start(max_rate=2 * MIB)
        ring.await_done()
        done = [p["done"] for p in ring.engines[1].progress]
        assert len(done) > 3 and done == sorted(set(done)), done  # at 10 a second, it takes two


def test_a_rate_that_is_too_low_is_refused_with_one_that_is_not(gpu):
    with Ring("ab", gpu, 4 * MIB, stall_ms=2000) as ring:
        ring.start(places=(0,), max_rate=65_536)
        assert_failed(ring.engines[0], None, None, "65536 bytes a second are too few", "allow 1048577")


# --- Failures ----------------------------------------------------------------------------------------


def test_a_rank_that_never_comes_is_the_end_within_a_stall(gpu):
    with Ring("abc", gpu, MIB, stall_ms=STALL_MS) as ring:
        ring.start(places=(0, 2))
        assert_failed(ring.engines[0], None, None, "NCCL's communicator made no progress for ")
        assert_failed(ring.engines[2], "b", "c", "NCCL's communicator made no progress for ")


def test_an_init_that_hangs_is_the_end_within_a_stall(gpu):
    gpu.gpus.fail("ncclInit@1", "hang")
    with Ring("abc", gpu, MIB, stall_ms=STALL_MS) as ring:
        ring.start()
        for engine in ring.engines:
            end = engine.hear_end()
            assert end["op"] == "failed" and "NCCL's communicator made no progress" in end["why"], end


def test_a_driver_that_hangs_at_the_start_is_named():
    calls = {"cuInit": "the start of the CUDA driver", "cuDevicePrimaryCtxRetain": "the context on the GPU",
             "cuMemMap": "the mapping of the memory"}
    with contextlib.ExitStack() as stack:
        engines = {}
        for symbol, doing in calls.items():  # side by side, as each takes its time
            gpu = stack.enter_context(Gpu())
            memory = stack.enter_context(contextlib.closing(gpu.memory(MIB)))
            engines[doing] = stack.enter_context(contextlib.closing(gpu.engine()))
            gpu.gpus.fail(symbol, "hang")
            engines[doing].tell_open(memory, memory="cuda", gpu=memory.device, map_size=memory.map_size, stall_ms=500)
        for doing, engine in engines.items():
            assert_failed(engine, None, None, f"{doing} hangs: a call has not returned for ")


def test_a_call_that_hangs_is_named_by_the_node_it_hangs_at():
    calls = {"ncclCommInitRankConfig": "NCCL's communicator", "ncclBroadcast": "NCCL's greeting",
             "ncclAllReduce": "NCCL's count of the nodes that have all", "ncclCommFinalize": "NCCL's end",
             "cuEventQuery": "NCCL's greeting"}
    with contextlib.ExitStack() as stack:
        rings = []
        for symbol in calls:
            gpu = stack.enter_context(Gpu())
            rings.append(stack.enter_context(Ring("ab", gpu, MIB, stall_ms=STALL_MS)))
            gpu.gpus.fail(symbol, "hang")
        for ring in rings:
            ring.start()
        for ring, doing in zip(rings, calls.values()):
            for engine in ring.engines:
                assert_failed(engine, None, None, f"{doing} hangs: a call has not returned for ")


def test_a_collective_that_hangs_is_the_end_within_a_stall(gpu):
    gpu.gpus.fail("ncclPiece@1", "hang", skip=1 + 3 * 16)  # the greeting, and three buckets
    data = random_bytes(8 * MIB)
    with Ring("abc", gpu, data, stall_ms=STALL_MS) as ring:
        ring.start()
        for engine, link in zip(ring.engines, ((None, None), ("a", "b"), ("b", "c"))):
            end = assert_failed(engine, *link)
            assert "NCCL's broadcast made no progress for " in end["why"] or "remote process exited" in end["why"], end
        end = ring.engines[2].progress[-1]["done"]
        assert end == 3 * MIB and ring.memories[2].read()[:end] == data[:end]


@pytest.mark.parametrize("number, who, word", (
    (6, True, "remote process exited or there was a network error (6)"), (2, True, "unhandled system error"),
    (1, False, "unhandled cuda error"), (3, False, "internal error (3)")))
def test_an_asynchronous_error_is_told_in_nccls_words(gpu, number, who, word):
    gpu.gpus.fail("ncclPiece@1", number, skip=1 + 16)
    with Ring("ab", gpu, 4 * MIB) as ring:
        ring.start()
        assert_failed(ring.engines[1], *(("a", "b") if who else (None, None)), "NCCL's broadcast failed: ", word)
        assert_failed(ring.engines[0], None, None, "NCCL's broadcast failed: remote process exited")


def test_a_node_that_dies_in_the_middle_leaves_the_others_a_prefix(gpu):
    gpu.gpus.fail("ncclPiece@1", "die", skip=1 + 2 * 16 + 5)
    data = random_bytes(8 * MIB)
    with Ring("abc", gpu, data) as ring:
        ring.start()
        assert ring.engines[1].wait() == signal.SIGKILL
        end = assert_failed(ring.engines[2], "b", "c", "NCCL's broadcast failed: remote process exited")
        assert end["done"] == 2 * MIB and ring.memories[2].read()[:2 * MIB] == data[:2 * MIB]
        # Later bytes are written already, and are requested again.
        assert ring.memories[2].read()[2 * MIB:2 * MIB + 5 * 65_536] == data[2 * MIB:2 * MIB + 5 * 65_536]
        assert_failed(ring.engines[0], None, None, "NCCL's broadcast failed: remote process exited")


@pytest.mark.parametrize("doing, n_pieces_before", (
    ("NCCL's greeting", 0), ("NCCL's count of the nodes that have all", 1 + 16)))
def test_a_node_that_dies_beside_the_broadcast_is_named_at_once(gpu, doing, n_pieces_before):
    gpu.gpus.fail("ncclPiece@1", "die", skip=n_pieces_before)
    with Ring("abc", gpu, MIB) as ring:
        ring.start()
        assert ring.engines[1].wait() == signal.SIGKILL
        # At the limit of a stall the error would be a hang, or no progress.
        assert_failed(ring.engines[2], "b", "c", f"{doing} failed: remote process exited")
        assert_failed(ring.engines[0], None, None, " failed: remote process exited")


def test_what_is_left_goes_with_engines_and_a_communicator_of_the_next_epoch(gpu):
    data = random_bytes(4 * MIB)
    gpu.gpus.fail("ncclPiece@1", "die", skip=1 + 16, count=1)
    with Ring("abc", gpu, data) as ring:
        ring.start()
        assert ring.engines[1].wait() == signal.SIGKILL
        done = ring.engines[2].hear_end()["done"]
        assert done == MIB
        with Ring("ac", gpu, data, [[done, len(data) - done]], [ring.memories[2]], epoch=2) as rest:
            rest.start()
            rest.await_done()
            assert ring.memories[2].read() == data


def test_an_abort_that_hangs_keeps_nobody_from_hearing_why(gpu):
    gpu.gpus.fail("ncclPiece@1", 3, skip=1)
    gpu.gpus.fail("ncclAbort@1", "hang")
    with Ring("ab", gpu, MIB, stall_ms=STALL_MS) as ring:
        ring.start()
        assert_failed(ring.engines[1], None, None, "internal error")
        assert_failed(ring.engines[0], None, None, "NCCL's broadcast made no progress")


@pytest.mark.parametrize("change", ({"epoch": 2}, {"sync": "00" * 8}, {"ranges": [[0, 8]]}, {"chunk": 65_536}))
def test_a_source_of_another_sync_writes_nothing(gpu, change):
    ring = Ring("ab", gpu, b"x" * 10)
    ring.spawn()
    with contextlib.ExitStack() as stack:
        stack.push(ring.__exit__)
        ring.engines[0].open(ring.memories[0], **ring.order(0))
        ring.engines[1].open(ring.memories[1], **(ring.order(1) | change))
        ring.start()
        assert_failed(ring.engines[1], "a", "b", "the source is in another sync or epoch, or sends other ranges")
        assert ring.memories[1].read() == bytes(10)


# --- The machine -------------------------------------------------------------------------------------


def refused(gpu, memory, /, env=None, **order):
    with contextlib.closing(gpu.engine(**(env or {}))) as engine:
        engine.tell_open(memory, **({"memory": "cuda", "gpu": memory.device, "map_size": memory.map_size} | order))
        end = engine.hear()
        assert (end["op"], end.get("who")) == ("failed", None), end
        return end["why"]


def test_no_nccl_is_one_sentence(gpu, tmp_path):
    with contextlib.closing(gpu.memory(10)) as memory:
        (tmp_path / "libnccl.so.2").write_text("no library")
        why = refused(gpu, memory, {"LD_LIBRARY_PATH": f"{gpu.gpus.env['LD_LIBRARY_PATH']}:{tmp_path}"})
        assert why.startswith("libnccl.so.2 cannot be opened: ") and "or use another engine" in why, why


def test_an_old_nccl_is_named_by_its_version(gpu):
    with contextlib.closing(gpu.memory(10)) as memory:
        why = refused(gpu, memory, {"FAKE_NCCL_VERSION": "21406"})
        assert why == "libnccl.so.2 is NCCL 2.14.6; 2.18 or later is needed"


def test_an_nccl_that_lacks_something_is_named_by_that():
    with Gpu(nccl=NCCL.parent / "nccl-lacking") as gpu, contextlib.closing(gpu.memory(10)) as memory:
        assert refused(gpu, memory) == "libnccl.so.2 lacks ncclCommGetAsyncError; NCCL 2.18 or later is needed"


def test_no_driver_and_no_gpu_are_one_sentence(gpu):
    with contextlib.closing(gpu.memory(10)) as memory:
        assert "CUDA_ERROR_NO_DEVICE" in refused(gpu, memory, {"FAKE_CUDA_DEVICES": "0"})
        assert "this process sees 1 GPU" in refused(gpu, memory, gpu=f"cuda:GPU-{uuid.UUID(int=0)}")
        assert "names no GPU" in refused(gpu, memory, gpu="cuda:0")


def test_host_memory_that_cannot_be_pinned_is_one_sentence(gpu):
    gpu.gpus.fail("cuMemHostAlloc", 2)
    with contextlib.closing(gpu.memory(10)) as memory:
        assert refused(gpu, memory) == "cannot pin host memory: CUDA_ERROR_OUT_OF_MEMORY: out of memory"


def test_a_descriptor_that_is_no_memory_of_a_gpu_is_refused(gpu):
    with contextlib.closing(gpu.memory(10)) as memory, contextlib.closing(Memory(10)) as host:
        host.device, host.map_size = memory.device, memory.map_size
        assert "the driver cannot import the memory" in refused(gpu, host)


@pytest.mark.parametrize("change, word", (
    ({"memory": "tape"}, "`memory`"), ({"gpu": ...}, "`gpu`"),
    ({"map_size": 9}, "`map_size`"), ({"address": ..., "from": None}, "`address`"),
    ({"address": "192.0.2.1"}, "no interface of this machine has the data address"),
    ({"operation": "average"}, "`result_map_size`"), ({"operation": "average", "result_map_size": 10}, "must be attached")))
def test_an_order_that_is_wrong_is_refused_with_what_is_wrong(gpu, change, word):
    with contextlib.closing(gpu.memory(10)) as memory:
        assert word in refused(gpu, memory, **change)


def test_host_memory_is_refused_with_what_carries_it(gpu):
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(gpu.engine()) as engine:
        engine.tell_open(memory)
        assert 'NCCL carries memory of GPUs only; use the engine "tcp" or "gloo"' in engine.hear()["why"]


@pytest.mark.parametrize("change, word", (
    ({"rank": 1}, "`rank` 0 is the source"), ({"hello": "00" * ID}, "which sent the `hello`"), ({"hello": "00"}, "`hello`"),
    ({"rank": 2}, "less than `n_ranks`"), ({"n_ranks": 1}, "`n_ranks`"), ({"n_ranks": 1 << 40}, "`n_ranks`"),
    ({"max_rate": 1}, "`max_rate`")))
def test_a_start_that_is_wrong_is_refused_with_what_is_wrong(gpu, change, word):
    with Ring("ab", gpu, 10) as ring:
        ring.start(places=(0,), **change)
        assert_failed(ring.engines[0], None, None, word)


# --- The agent ---------------------------------------------------------------------------------------


def test_a_hangup_ends_an_engine_wherever_it_hangs(gpu):
    gpu.gpus.fail("ncclPiece@1", "hang", skip=1 + 16)
    with Ring("ab", gpu, 4 * MIB) as ring:
        ring.start()
        ring.engines[1].await_progress(MIB)
        for engine in ring.engines:
            engine.hang_up()
        assert [engine.wait() for engine in ring.engines] == [0, 0]


def test_orders_come_once(gpu):
    with Ring("ab", gpu, 10) as ring:
        ring.engines[1].tell_open(ring.memories[1], **ring.order(1))
        assert "once" in ring.engines[1].hear()["why"]


@pytest.mark.parametrize("engine", ("tcp", "gloo"))
def test_other_engines_refuse_memory_of_gpus(gpu, engine):
    features.require("gloo", available=program(engine).exists())
    with contextlib.closing(gpu.memory(10)) as memory, contextlib.closing(Engine(engine=engine)) as e:
        e.tell_open(memory, memory="cuda", gpu=memory.device, map_size=memory.map_size)
        assert 'use the engine "nccl"' in e.hear()["why"]

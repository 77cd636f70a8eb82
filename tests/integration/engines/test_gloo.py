"""Chains of weightd-sync-gloo over loopback: every byte arrives, and every failure has a name."""
import contextlib
import pathlib
import random
import select
import signal
import socket
import struct

import pytest
from lib import features
from lib.engine import CHUNK, HUGE, PATIENCE_S, Chain, Engine, Memory, gloo_planned, program

SLOW = 1 << 20  # bytes a second: what fails, fails in the middle
STALL_MS = 5_000


@pytest.fixture(autouse=True)
def needs_the_engine():
    features.require("gloo", available=program("gloo").exists())


def chain(names, memory, *args, **kw):
    return Chain(list(names), memory, *args, engine="gloo", **kw)


def random_bytes(n):
    return random.Random(n).randbytes(n)


def assert_failed(engine, from_, to, who, *words):
    end = engine.hear_end()
    assert (end["op"], end.get("from"), end.get("to"), end.get("who")) == ("failed", from_, to, who), end
    assert all(word in end["why"] for word in words), end
    return end


# --- Chains ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", (0, 1, 4097, 9 * CHUNK + 7))
@pytest.mark.parametrize("names", ("ab", "abcd"))
def test_every_receiver_has_every_byte(names, n_bytes):
    data = random_bytes(n_bytes)
    with chain(names, Memory(data)) as c:
        c.start()
        c.await_done()
        for name, memory in zip(names[1:], c.memories[1:]):
            assert memory.read() == data, f"{name} has other bytes"


@pytest.mark.parametrize("order", ((0, 1, 2), (2, 1, 0), (1, 0, 2)))
def test_a_chain_forms_in_any_order_of_starts(order):
    data = random_bytes(CHUNK + 1)
    with chain("abc", Memory(data)) as c:
        c.start(places=order)
        c.await_done()
        assert c.memories[2].read() == data


@pytest.mark.parametrize("ranges", (
    [[5000, 1]], [[1, 2], [4, 1], [4095, 2], [100_000, 70_001]], [[i * 300, 150] for i in range(1000)], []))
def test_only_the_ranges_are_carried(ranges):
    data, old = random_bytes(300_000), b"\xaa" * 300_000
    expected = bytearray(old)
    for offset, size in ranges:
        expected[offset:offset + size] = data[offset:offset + size]
    with chain("abc", Memory(data), ranges, chunk=65_536) as c:
        for memory in c.memories[1:]:
            memory.write(0, old)
        c.start()
        c.await_done()
        assert [m.read() == bytes(expected) for m in c.memories[1:]] == [True, True]


@pytest.mark.parametrize("n_bytes", (0, 1, 65_536, 5_000_001))
def test_planned_counted_and_kernels_bytes_are_equal(n_bytes):
    with chain("abc", Memory(n_bytes)) as c:
        c.start()
        ends = c.await_done()
        planned = gloo_planned(n_bytes, -(-n_bytes // CHUNK))
        both = {"bytes": planned, "kernel": planned}
        assert [(end["in"], end["out"]) for end in ends] == [(None, both), (both, both), (both, None)]


def test_memory_is_mapped_where_it_can_have_huge_pages():
    with chain("ab", Memory(2 * HUGE + 4096)) as c:
        for engine in c.engines:
            begins, = (int(line.split("-")[0], 16) for line in pathlib.Path(f"/proc/{engine.pid}/maps").read_text().splitlines()
                       if "/memfd:engine-test" in line)
            assert begins % HUGE == 0, f"{begins:#x}"


def test_progress_only_grows_and_is_of_the_stream():
    n_bytes = 2 * SLOW  # progress is sent by a thread that may get no processor for a while
    with chain("ab", Memory(n_bytes), chunk=65_536) as c:
        c.start(max_rate=SLOW)
        c.await_done()
        done = [p["done"] for p in c.engines[1].progress]
        sent = [p["sent"] for p in c.engines[0].progress]
        assert done == sorted(set(done)) and 0 < done[0] <= done[-1] <= n_bytes, done
        assert sent == sorted(set(sent)) and 0 < sent[0] <= sent[-1] <= n_bytes, sent


def test_ipv6_carries_too():
    with contextlib.closing(socket.socket(socket.AF_INET6)) as s:
        try:
            s.bind(("::1", 0))
        except OSError:
            features.require("ipv6", "no IPv6 on loopback", available=False)
    data = random_bytes(10_000)
    with chain("ab", Memory(data), address="::1") as c:
        c.engines[1].start(from_address="::1", from_hello=c.engines[0].hello)
        c.engines[0].start(c.next(0) | {"address": "::1"})
        c.await_done()
        assert c.memories[1].read() == data


# --- Neighbours that fail ----------------------------------------------------------------------------


def test_a_relay_that_is_killed_is_named_by_both_neighbours():
    with chain("abcd", Memory(64 << 20), chunk=65_536) as c:
        engines = c.engines
        c.start(max_rate=SLOW)
        engines[3].await_progress(1)
        engines[1].kill()
        assert_failed(engines[0], "a", "b", "b", "b hung up")
        end = assert_failed(engines[2], "b", "c", "b", "b hung up")
        assert 0 < end["done"] < 64 << 20
        poll = select.poll()
        poll.register(engines[3].socket, select.POLLIN)
        while poll.poll(500):  # d's neighbour lives, and is not to blame
            assert engines[3].hear()["op"] == "progress"


def test_a_relay_that_is_stopped_is_named_by_both_neighbours():
    with chain("abc", Memory(64 << 20), chunk=65_536, stall_ms=STALL_MS) as c:
        c.start(max_rate=SLOW)
        c.engines[2].await_progress(1)
        c.engines[1].kill(signal.SIGSTOP)
        assert_failed(c.engines[0], "a", "b", "b", "b took nothing")
        assert_failed(c.engines[2], "b", "c", "b", "b sent nothing")


def test_a_relay_that_waits_for_a_stopped_one_does_not_blame_the_next():
    """It counts what was sent in whole pieces, late: all that the next could take may be there."""
    with chain("abcd", Memory(64 << 20), chunk=65_536, stall_ms=STALL_MS) as c:
        c.start(max_rate=SLOW)
        c.engines[3].await_progress(1)
        c.engines[1].kill(signal.SIGSTOP)
        assert_failed(c.engines[2], "b", "c", "b", "b sent nothing")


def test_a_piece_may_take_longer_than_a_stall():
    with chain("ab", Memory(6 * SLOW), chunk=64 << 20, stall_ms=4000) as c:
        c.start(max_rate=SLOW)
        c.await_done()


def test_a_neighbour_that_does_not_start_is_named():
    with chain("ab", Memory(10), stall_ms=300) as c:
        c.start(places=(0,))
        assert_failed(c.engines[0], "a", "b", "b", "b ")
    with chain("ab", Memory(10), stall_ms=300) as c:
        c.start(places=(1,))
        assert_failed(c.engines[1], "a", "b", "a", "a ")


def test_a_hello_that_leads_elsewhere_is_not_followed():
    with chain("ab", Memory(10), address="127.0.0.1") as c:
        elsewhere = bytearray.fromhex(c.engines[1].hello)
        at = elsewhere.index(bytes((127, 0, 0, 1)))
        elsewhere[at + 3] = 2
        c.engines[0].start(c.next(0) | {"hello": elsewhere.hex()})
        assert_failed(c.engines[0], "a", "b", "b", "another address")
        c.engines[1].start(from_address="127.0.0.2", from_hello=c.engines[0].hello)
        assert_failed(c.engines[1], "a", "b", "a", "another address")


@pytest.mark.parametrize("address", (None, "", "localhost", 7))
def test_an_address_of_the_node_before_that_is_none_is_refused(address):
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine(engine="gloo")) as engine:
        engine.open(memory)
        engine.start(from_address=address, from_hello="00")
        assert "`from_address`" in engine.hear()["why"]


def test_a_neighbour_that_is_gone_before_the_start_is_named():
    with chain("ab", Memory(10), stall_ms=300) as c:
        c.engines[1].kill()
        c.engines[1].wait()
        c.start(places=(0,))
        assert_failed(c.engines[0], "a", "b", "b", "b c")  # cannot, or could not, be connected to


@pytest.mark.parametrize("theirs, word", (
    ({"token": "22" * 32}, "wrong token"), ({"epoch": 2}, "another sync or epoch"), ({"chunk": 65_536}, "another size"),
    ({"ranges": [[0, 9]]}, "another size"), ({"from": "z"}, "wrong token"), ({"node": "c"}, "wrong token")))
def test_a_stream_that_is_not_the_expected_one_is_refused(theirs, word):
    with contextlib.closing(Memory(b"x" * 10)) as source, contextlib.closing(Memory(10)) as sink, \
            contextlib.closing(Engine(engine="gloo")) as a, contextlib.closing(Engine(engine="gloo")) as b:
        a.open(source, node="a", **{"from": None, "token": None})
        b.open(sink, **theirs)
        b.start(from_hello=a.hello)
        a.start({"node": "b", "address": "127.0.0.1", "port": b.port, "token": "11" * 32, "hello": b.hello})
        assert word in b.hear_end()["why"]
        assert sink.read() == bytes(10)


def test_a_stranger_who_comes_first_gets_nothing():
    """Gloo does not authenticate: a stranger that connects first may cost the epoch, but no bytes."""
    data = b"weights!" * 1000
    with chain("ab", Memory(data), stall_ms=1000) as c, \
            contextlib.closing(socket.create_connection(("127.0.0.1", c.engines[1].port), PATIENCE_S)) as stranger:
        c.start()
        for engine in c.engines:
            assert engine.hear_end()["op"] in ("done", "failed")
        stranger.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            assert b"weights!" not in stranger.recv(1 << 16)


@pytest.mark.parametrize("slot, length", ((77, 8), (0, 1 << 30)), ids=("that nobody asked for", "that is too long"))
def test_a_neighbour_that_sends_what_gloo_does_not_take_is_named(slot, length):
    """In Gloo's own thread that is an exception without a handler."""
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine(engine="gloo")) as engine:
        engine.open(memory, stall_ms=STALL_MS)
        size, ours = bytes.fromhex(engine.hello)[0], bytearray(bytes.fromhex(engine.hello)[1:])[:136]
        theirs = ours[:2] + b"\xff\xff" + ours[4:]  # the end with the lower port listens
        engine.start(from_hello=(bytes([0, size]) + theirs).hex())
        with socket.create_connection(("127.0.0.1", engine.port), PATIENCE_S) as neighbour:
            ask = neighbour.recv(48, socket.MSG_WAITALL)
            assert struct.unpack("=6Q", ask)[1:3] == (3, 0), ask  # it is ready to receive the greeting
            neighbour.sendall(struct.pack("=6Q", 48 + length, 1, slot, 0, length, 0) + bytes(8))
            assert_failed(engine, "a", "b", "a", "a sent nothing")


# --- The agent ---------------------------------------------------------------------------------------


def test_a_hangup_ends_an_engine_at_every_step():
    with contextlib.closing(Memory(10)) as memory:
        for step in range(3):
            with contextlib.closing(Engine(engine="gloo")) as other, \
                    contextlib.closing(Engine(engine="gloo")) as engine:  # its closing looks at its status
                other.open(memory)
                if step > 0:
                    engine.open(memory)
                if step > 1:
                    engine.start(from_hello=other.hello)


def test_a_hangup_ends_every_engine_of_a_busy_chain():
    with chain("abc", Memory(64 << 20), chunk=65_536) as c:
        c.start(max_rate=SLOW)
        c.engines[2].await_progress(1)
        for engine in c.engines:
            engine.hang_up()
        assert [engine.wait() for engine in c.engines] == [0, 0, 0]


@pytest.mark.parametrize("change, word", (
    ({"node": "B"}, "node"), ({"address": ...}, "address"), ({"address": "localhost"}, "address"),
    ({"ranges": [[0, 11]]}, "ranges"), ({"operation": "scatter"}, "operation"), ({"op": "start"}, "op")))
def test_an_order_that_is_wrong_is_refused_with_what_is_wrong(change, word):
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine(engine="gloo")) as engine:
        engine.tell_open(memory, **change)
        end = engine.hear()
        assert end["op"] == "failed" and word in end["why"], end


def test_tls_is_refused_with_what_carries_it():
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine(engine="gloo")) as engine:
        engine.tell_open(memory, fds=(memory.fd, memory.fd, memory.fd))
        assert 'use the engine "tcp"' in engine.hear()["why"]


@pytest.mark.parametrize("hello", (..., None, 7, "", "0", "zz", "00", "0000", "88" + "00" * 10, "00" * 1000))
def test_a_hello_that_is_none_fails_the_link_with_who_said_it(hello):
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine(engine="gloo")) as engine:
        engine.open(memory)
        engine.start(**({} if hello is ... else {"from_hello": hello}))
        assert_failed(engine, "a", "b", "a", "a sent no `hello`")


def test_a_hello_of_the_next_that_is_none_fails_the_link_with_who_said_it():
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine(engine="gloo")) as a, \
            contextlib.closing(Engine(engine="gloo")) as b:
        a.open(memory, node="a", **{"from": None, "token": None})
        b.open(memory)
        b.start({"node": "c", "address": "127.0.0.1", "port": 1, "token": "11" * 32, "hello": "00"}, from_hello=a.hello)
        assert_failed(b, "b", "c", "c", "c sent no `hello`")


def test_orders_come_once():
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine(engine="gloo")) as engine:
        engine.open(memory)
        engine.tell_open(memory)
        assert "once" in engine.hear()["why"]

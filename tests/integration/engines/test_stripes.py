"""Streams that several connections of weightd-sync-tcp share, one for each pair of addresses."""
import contextlib
import os
import random
import socket
import struct
import time

import pytest
from lib import features
from lib.engine import CHUNK, PATIENCE_S, Chain, Engine, Memory, planned, striped
from lib.netns import Net
from lib.pki import Authority

SYNC, TOKEN = "00112233445566ff", "11" * 32
ACCEPTED, REFUSED, THERE = b"\x06", b"\x15", b"is-there"
SLOW = 1 << 20  # bytes a second: what fails, fails in the middle
PIECE = 1 << 16
STALL_MS = 3_000


@pytest.fixture(autouse=True)
def needs_the_engine():
    features.require("sync", available=(features.BUILD / "weightd-sync-tcp").exists())


def random_bytes(n):
    return random.Random(n).randbytes(n)


def assert_counts(end, n_bytes, n_stripes):
    """Planned, counted and the kernel's, over the link and over each of its stripes."""
    expected = striped(n_bytes, n_stripes, PIECE) if n_stripes > 1 else planned(n_bytes)
    assert (end["bytes"], end["kernel"]) == (expected, expected), end
    if n_stripes == 1:
        assert "stripes" not in end, end
        return
    assert len(end["stripes"]) == n_stripes, end
    assert all(stripe["bytes"] == stripe["kernel"] for stripe in end["stripes"]), end
    assert sum(stripe["bytes"] for stripe in end["stripes"]) == expected, end


@pytest.mark.parametrize("n_bytes", (0, 1, PIECE - 1, PIECE, 50 * PIECE + 7))
@pytest.mark.parametrize("stripes", ((2, 2), (3, 3, 3), (2, 3, 1, 2), (1, 2, 2), (8, 8)))
def test_every_byte_arrives_in_any_number_of_stripes(stripes, n_bytes):
    """Two neighbours have as many as the one that has fewer."""
    data = random_bytes(n_bytes)
    names = "abcd"[:len(stripes)]
    with Chain(list(names), Memory(data), stripes=stripes, chunk=PIECE) as chain:
        chain.start()
        ends = chain.await_done()
        for name, memory in zip(names[1:], chain.memories[1:]):
            assert memory.read() == data, f"{name} has other bytes"
        for i in range(len(names) - 1):
            assert_counts(ends[i]["out"], n_bytes, chain.n_stripes(i))
            assert_counts(ends[i + 1]["in"], n_bytes, chain.n_stripes(i))


@pytest.mark.parametrize("ranges", (
    [[1, 2], [4, 1], [4095, 2], [100_000, 170_001]], [[i * 300, 150] for i in range(1000)], [[299_999, 1]], []))
def test_only_the_ranges_are_carried(ranges):
    """Pieces begin and end wherever that is in memory."""
    data, old = random_bytes(300_000), b"\xaa" * 300_000
    expected = bytearray(old)
    for offset, size in ranges:
        expected[offset:offset + size] = data[offset:offset + size]
    with Chain(["a", "b", "c"], Memory(data), ranges, stripes=(2, 2, 2), chunk=PIECE) as chain:
        for memory in chain.memories[1:]:
            memory.write(0, old)
        chain.start()
        chain.await_done()
        assert [m.read() == bytes(expected) for m in chain.memories[1:]] == [True, True]


def test_one_way_alone_is_no_stripe_and_leaves_by_its_address():
    """It is the one that is left when all others broke."""
    data = random_bytes(3 * PIECE)
    with Chain(["a", "b"], Memory(data), stripes=(2, 2), chunk=PIECE) as chain:
        chain.engines[1].start()
        chain.engines[0].start(chain.next(0) | {"stripes": chain.ways(0, [1])})
        ends = chain.await_done()
        assert chain.memories[1].read() == data
        assert_counts(ends[0]["out"], len(data), 1)


def test_all_stripes_together_keep_to_the_rate():
    rate = 8 << 20
    with Chain(["a", "b"], Memory(rate), stripes=(2, 2)) as chain:
        started = time.monotonic()
        chain.start(max_rate=rate)
        chain.await_done()
        assert time.monotonic() - started > 0.7


def test_under_tls_each_stripe_is(tmp_path):
    authority = Authority(tmp_path / "ca")
    data = random_bytes(20 * PIECE + 1)
    with contextlib.ExitStack() as stack:
        fds = {}
        for name in "abc":
            pair = authority.node(name)
            fds[name] = [stack.enter_context(contextlib.closing(Memory(path.read_bytes()))).fd
                         for path in (authority.certificate, *pair)]
        with Chain(["a", "b", "c"], Memory(data), fds=fds, stripes=(2, 2, 2), chunk=PIECE) as chain:
            chain.start()
            ends = chain.await_done()
            assert [m.read() == data for m in chain.memories[1:]] == [True, True]
            for stripe in ends[0]["out"]["stripes"]:
                assert stripe["bytes"] == stripe["kernel"] > stripe["payload"] > 192, ends
            assert ends[0]["out"]["payload"] == sum(stripe["payload"] for stripe in ends[0]["out"]["stripes"]) == \
                striped(len(data), 2, PIECE), ends


# --- Received bytes, by hand -------------------------------------------------------------------------


def preamble(n_bytes, stripe, n_stripes, token=TOKEN):
    return b"stripe" + bytes([stripe, n_stripes]) + bytes.fromhex(SYNC) + struct.pack(">Q", 1) + bytes.fromhex(token) + \
        struct.pack(">Q", n_bytes) + b"a".ljust(64, b"\0") + b"b".ljust(64, b"\0")


def header(offset, size):
    return struct.pack(">QQ", offset, size)


def receive(s, n):
    data = b""
    while len(data) < n and (more := s.recv(n - len(data))):
        data += more
    return data


@contextlib.contextmanager
def receiver(n_bytes, n_addresses=2, start=True, **orders):
    """A last engine "b" with several addresses, and its memory."""
    memory, engine = Memory(n_bytes), Engine()
    try:
        engine.open(memory, addresses=["127.0.0.1", "127.0.0.2", "127.0.0.3"][:n_addresses], chunk=PIECE, **orders)
        if start:
            engine.start()
        yield engine, memory
    finally:
        engine.close()
        memory.close()


def dial(engine, place=0):
    s = socket.create_connection((f"127.0.0.{place + 1}", engine.ports[place]), PATIENCE_S)
    s.settimeout(PATIENCE_S)
    return contextlib.closing(s)


@contextlib.contextmanager
def calls(engine, n_bytes, *said):
    """Accepted connections that have sent all this before the engine looks at them, however late we are."""
    with contextlib.ExitStack() as stack:
        all = []
        with engine.stopped():
            for i, data in enumerate(said):
                all.append(stack.enter_context(dial(engine, i)))
                all[i].sendall(preamble(n_bytes, i, 2) + data)
        for s in all:
            assert s.recv(1) == ACCEPTED
        yield all


@contextlib.contextmanager
def stripes(engine, n_bytes, n=2):
    """Connections that were let through."""
    with contextlib.ExitStack() as stack:
        all = []
        for i in range(n):
            all.append(stack.enter_context(dial(engine, i)))
            all[i].sendall(preamble(n_bytes, i, n))
            assert all[i].recv(1) == ACCEPTED
        yield all


def assert_failed(engine, from_, to, *words, stripe=None):
    end = engine.hear_end()
    assert (end["op"], end.get("from"), end.get("to")) == ("failed", from_, to), end
    for word in words:
        assert word in end["why"], end
    assert end.get("stripe") == stripe, end
    return end


def test_what_is_done_is_a_prefix_whatever_order_pieces_come_in():
    data = random_bytes(3 * PIECE)
    with receiver(3 * PIECE) as (engine, memory), stripes(engine, 3 * PIECE) as (one, two):
        two.sendall(header(PIECE, PIECE) + data[PIECE:2 * PIECE])
        one.sendall(header(0, PIECE) + data[:100])
        engine.await_progress(100)
        assert engine.progress[-1]["done"] == 100, "the second piece is there, and does not count yet"
        one.sendall(data[100:PIECE])
        engine.await_progress(2 * PIECE)
        one.sendall(header(2 * PIECE, PIECE) + data[2 * PIECE:2 * PIECE + 5])
        engine.await_progress(2 * PIECE + 5)
        one.close()
        assert assert_failed(engine, "a", "b", "a (over 127.0.0.1) hung up", stripe=0)["done"] == 2 * PIECE + 5
        assert memory.read()[:2 * PIECE + 5] == data[:2 * PIECE + 5]


def test_what_is_missing_comes_in_another_epoch():
    """Each time the second stripe breaks; what was done then is kept, and no more."""
    data = random_bytes(60 * PIECE)
    done, epoch = 0, 0
    with contextlib.closing(Memory(len(data))) as kept:
        while done < len(data):
            epoch += 1
            with Chain(["a", "b"], Memory(data), [[done, len(data) - done]], stripes=(2, 2), chunk=PIECE) as chain:
                if epoch > 2:  # without it
                    chain.engines[1].start()
                    chain.engines[0].start(chain.next(0) | {"stripes": chain.ways(0, [0])})
                else:
                    chain.start(max_rate=SLOW // 2)
                    chain.engines[1].await_progress(5 * PIECE)
                    chain.engines[0].kill()
                end = chain.engines[1].hear_end()
                came = end["done"] if end["op"] == "failed" else len(data) - done
                assert came >= 5 * PIECE, end
                kept.write(done, chain.memories[1].read()[done:done + came])
                done += came
        assert kept.read() == data


@pytest.mark.parametrize("pieces, word", (
    ([(1, PIECE)], "no piece"), ([(0, PIECE - 1)], "no piece"), ([(0, PIECE + 1)], "no piece"), ([(3 * PIECE, PIECE)], "no piece"),
    ([(2 * PIECE, PIECE)], "no piece"), ([(1 << 63, PIECE)], "no piece"), ([(0, 0)], "no piece"),
    ([((1 << 64) - PIECE, PIECE)], "no piece"), ([(2 * PIECE + 9, 1)], "no piece"), ([(0, PIECE), (0, PIECE)], "twice"),
    ([(PIECE, PIECE)], "twice"), ([(2 * PIECE, 9), ((1 << 64) - 1, (1 << 64) - 1)], "no piece")), ids=str)
def test_pieces_that_are_none_are_refused_and_nothing_of_them_is_kept(pieces, word):
    """The second piece began to arrive over the other one; the last of these is the wrong one."""
    n_bytes = 2 * PIECE + 9
    with receiver(n_bytes) as (engine, memory), stripes(engine, n_bytes) as (one, two):
        two.sendall(header(PIECE, PIECE) + b"\1" * 10)
        while memory.read()[PIECE:PIECE + 10] != b"\1" * 10:
            os.sched_yield()
        said = [header(*piece) + bytes(piece[1]) for piece in pieces[:-1]]
        one.sendall(b"".join(said) + header(*pieces[-1]) + b"\xee" * 100)
        assert_failed(engine, "a", "b", "a (over 127.0.0.1) sends", word, stripe=0)
        assert b"\xee" not in memory.read()


def test_an_end_of_all_stripes_before_all_came_is_noticed():
    with receiver(2 * PIECE) as (engine, _), stripes(engine, 2 * PIECE) as (one, two):
        one.sendall(header(0, PIECE) + bytes(PIECE) + header(2 * PIECE, 0))
        assert receive(one, 8) == THERE
        two.sendall(header(2 * PIECE, 0))
        assert_failed(engine, "a", "b", "a part of it is missing")


@pytest.mark.parametrize("stripe, n_stripes", ((0, 0), (0, 1), (2, 2), (255, 2), (0, 9), (0, 3), (1, 255)))
def test_numbers_of_stripes_that_cannot_be_are_refused(stripe, n_stripes):
    with receiver(10) as (engine, _):
        with dial(engine) as s:
            s.sendall(preamble(10, stripe, n_stripes))
            assert s.recv(1) == REFUSED
        with stripes(engine, 10) as (one, two):
            one.sendall(header(0, 10) + b"0123456789" + header(10, 0))
            two.sendall(header(10, 0))
            assert engine.hear_end()["op"] == "done"


def test_each_stripe_comes_once_and_is_one_of_as_many():
    with receiver(10, n_addresses=3) as (engine, _), dial(engine) as first:
        first.sendall(preamble(10, 1, 2))
        assert first.recv(1) == ACCEPTED
        for stripe, n in ((1, 2), (0, 3), (2, 3)):
            with dial(engine, 2) as other:
                other.sendall(preamble(10, stripe, n))
                assert other.recv(1) == REFUSED, (stripe, n)
        with dial(engine) as other:
            other.sendall(preamble(10, 0, 2, token="22" * 32))
            assert other.recv(1) == REFUSED
        with dial(engine, 1) as second:
            second.sendall(preamble(10, 0, 2))
            assert second.recv(1) == ACCEPTED
            with pytest.raises(ConnectionRefusedError):
                dial(engine, 2)
            second.sendall(header(0, 10) + b"0123456789" + header(10, 0))
            first.sendall(header(10, 0))
            assert engine.hear_end()["op"] == "done"


def test_a_stripe_that_stays_away_is_named_by_its_address():
    with receiver(10, start=False, stall_ms=300) as (engine, _), \
            calls(engine, 10, header(0, 10) + b"0123456789" + header(10, 0)) as (s,):
        assert receive(s, 8) == THERE
        engine.start()
        assert_failed(engine, "a", "b", "a (over 127.0.0.2) did not connect", stripe=1)


def test_a_stripe_that_waits_while_another_brings_some_is_not_to_blame():
    """It waits for longer than a silent one may; the piece arrives by bytes, each of which is reported at the next tick."""
    with receiver(PIECE, stall_ms=STALL_MS) as (engine, _), stripes(engine, PIECE) as (one, two):
        started = time.monotonic()
        one.sendall(header(0, PIECE))
        n = 0
        while time.monotonic() - started < 1.5 * STALL_MS / 1000:
            one.sendall(b"x")
            n += 1
            engine.await_progress(n)
        one.sendall(b"x" * (PIECE - n) + header(PIECE, 0))
        two.sendall(header(PIECE, 0))
        assert engine.hear_end()["op"] == "done"


def test_a_stripe_that_falls_silent_within_a_piece_is_named():
    whole = header(PIECE, PIECE) + bytes(PIECE) + header(2 * PIECE, 0)
    with receiver(2 * PIECE, start=False, stall_ms=300) as (engine, _), \
            calls(engine, 2 * PIECE, header(0, PIECE) + bytes(10), whole) as (_, two):
        assert receive(two, 8) == THERE
        engine.start()
        assert assert_failed(engine, "a", "b", "a (over 127.0.0.1) sent nothing", stripe=0)["done"] == 10


# --- Sent bytes, by hand -----------------------------------------------------------------------------


@contextlib.contextmanager
def source(listeners, n_bytes, addresses=("127.0.0.1", "127.0.0.2"), **orders):
    memory, engine = Memory(b"x" * n_bytes), Engine()
    try:
        engine.open(memory, node="a", token=None, addresses=list(addresses), chunk=PIECE, **{"from": None} | orders)
        ways = [{"address": "127.0.0.1", "port": s.getsockname()[1], "from": i} for i, s in enumerate(listeners)]
        engine.start({"node": "b", "address": "127.0.0.1", "port": ways[0]["port"], "token": TOKEN, "stripes": ways})
        yield engine
    finally:
        engine.close()
        memory.close()


@pytest.fixture
def listeners():
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(2)]
        for s in made:
            s.settimeout(PATIENCE_S)
        yield made


def accept(listener):
    s, (host, _) = listener.accept()
    s.settimeout(PATIENCE_S)
    return contextlib.closing(s), host


def test_a_stripe_is_what_its_description_says_and_leaves_from_its_address(listeners):
    with source(listeners, PIECE + 5) as engine, contextlib.ExitStack() as stack:
        all = []
        for i, listener in enumerate(listeners):
            s, host = accept(listener)
            all.append(stack.enter_context(s))
            assert host == f"127.0.0.{i + 1}"
            assert receive(all[i], 192) == preamble(PIECE + 5, i, 2)
        all[1].sendall(ACCEPTED)
        assert receive(all[1], 16 + PIECE + 16 + 5 + 16) == \
            header(0, PIECE) + b"x" * PIECE + header(PIECE, 5) + b"x" * 5 + header(PIECE + 5, 0), "one that waits gets nothing"
        all[1].sendall(THERE)
        all[0].sendall(ACCEPTED)
        assert receive(all[0], 16) == header(PIECE + 5, 0)
        all[0].sendall(THERE)
        sizes = 192 + 16, 192 + PIECE + 5 + 3 * 16
        assert engine.hear_end() == {"op": "done", "in": None, "out": {
            "bytes": sum(sizes), "kernel": sum(sizes), "stripes": [{"bytes": n, "kernel": n} for n in sizes]}}


def test_a_stripe_that_hangs_up_is_named_by_its_address(listeners):
    with source(listeners, 64 << 20) as engine:
        one, _ = accept(listeners[0])
        two, _ = accept(listeners[1])
        with one as one, two as two:
            for s in (one, two):
                receive(s, 192)
                s.sendall(ACCEPTED)
            two.close()
            assert_failed(engine, "a", "b", "b (over 127.0.0.1) hung up", stripe=1)


def test_an_address_that_this_node_has_not_is_named(listeners):
    with source(listeners, 10, addresses=["127.0.0.1", "192.0.2.1"]) as engine:
        assert_failed(engine, "a", "b", "b (over 127.0.0.1) cannot be reached: Cannot assign requested address", stripe=1)
    with source(listeners, 10, addresses=["127.0.0.1"]) as engine:
        assert "must leave from addresses of this node" in engine.hear_end()["why"]


@pytest.mark.parametrize("change", (
    {"addresses": []}, {"addresses": ["127.0.0.1", "b"]}, {"addresses": ["127.0.0.1", 2]}, {"addresses": ["127.0.0.1"] * 9},
    {"addresses": "127.0.0.1"}))
def test_addresses_that_are_wrong_are_refused(change):
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine()) as engine:
        engine.tell_open(memory, **change)
        end = engine.hear()
        assert end["op"] == "failed" and "addresses" in end["why"], end


@pytest.mark.parametrize("ways", (
    7, {}, [1], [{}], [{"address": "127.0.0.1", "port": 0, "from": 0}], [{"address": "x", "port": 1, "from": 0}],
    [{"address": "127.0.0.1", "port": 1}], [{"address": "127.0.0.1", "port": 1, "from": 8}],
    [{"address": "127.0.0.1", "port": 1, "from": 0}] * 9))
def test_stripes_that_are_wrong_are_refused(ways):
    with receiver(10, start=False) as (engine, _):
        engine.start({"node": "c", "address": "127.0.0.1", "port": 1, "token": TOKEN, "stripes": ways})
        end = engine.hear()
        assert end["op"] == "failed" and "next.stripes" in end["why"], end


# --- Interfaces --------------------------------------------------------------------------------------


def test_each_interface_carries_its_part():
    features.require("netns")
    data = random_bytes(8 << 20)
    with Net(3, interfaces=2) as net:
        for i in range(3):
            for j in range(2):
                net.rate(i, "200mbit", j)
        with Chain(["a", "b", "c"], Memory(data), net=net, stripes=(2, 2, 2)) as chain:
            chain.start()
            ends = chain.await_done()
            assert [m.read() == data for m in chain.memories[1:]] == [True, True]
            for i in (1, 2):
                carried = [stripe["bytes"] for stripe in ends[i]["in"]["stripes"]]
                for j in range(2):
                    assert net.sent_to(i, j) > carried[j] > CHUNK, (carried, net.sent_to(i, 0), net.sent_to(i, 1))


@pytest.mark.measures
def test_a_slow_interface_carries_less():
    features.require("netns")
    data = random_bytes(16 << 20)
    with Net(2, interfaces=2) as net:
        for i in range(2):
            net.rate(i, "200mbit", 0)
            net.rate(i, "20mbit", 1)
        with Chain(["a", "b"], Memory(data), net=net, stripes=(2, 2)) as chain:
            chain.start()
            ends = chain.await_done()
            fast, slow = (stripe["bytes"] for stripe in ends[1]["in"]["stripes"])
            assert chain.memories[1].read() == data and fast > slow, (fast, slow)

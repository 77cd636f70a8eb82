"""Chains of weightd-sync-tcp over loopback: every byte arrives, and every failure has a name."""
import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import struct
import subprocess
import time

import pytest
from lib import features
from lib.engine import CHUNK, PATIENCE_S, Chain, Engine, Memory, planned
from lib.netns import Net

SYNC, TOKEN = "00112233445566ff", "11" * 32
ACCEPTED, REFUSED = b"\x06", b"\x15"
END, THERE = b"that-all", b"is-there"
SLOW = 1 << 20  # bytes a second: what fails, fails in the middle
STALL_MS = 3_000


@pytest.fixture(autouse=True)
def needs_the_engine():
    features.require("sync", available=(features.BUILD / "weightd-sync-tcp").exists())


def random_bytes(n):
    return random.Random(n).randbytes(n)


# --- Chains ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_bytes", (0, 1, 4095, 4097, 3 * CHUNK + 7))
@pytest.mark.parametrize("names", ("ab", "abc", "abcd"))
def test_every_receiver_has_every_byte(names, n_bytes):
    data = random_bytes(n_bytes)
    with Chain(list(names), Memory(data)) as chain:
        chain.start()
        chain.await_done()
        for name, memory in zip(names[1:], chain.memories[1:]):
            assert memory.read() == data, f"{name} has other bytes"


def written(engine):
    """Bytes by write() and sendfile(), of which send() is neither."""
    return int(re.search(r"^wchar: (\d+)$", pathlib.Path(f"/proc/{engine.pid}/io").read_text(), re.M)[1])


def test_what_is_sent_is_copied_by_nobody(require):
    require("counts of what tasks write", available=os.path.exists("/proc/self/io"))
    data = random_bytes(3 * CHUNK + 7)
    with Chain(["a", "b", "c"], Memory(data)) as chain:
        chain.start()
        chain.await_done()
        said = [written(engine) for engine in chain.engines]
    assert min(said[:2]) >= len(data) > CHUNK > said[2], said


def hear_with_descriptors(engine):
    """Until it is done; as weightd-trace does, which holds the connections of an engine that has ended."""
    held = []
    while True:
        packet, fds, *_ = socket.recv_fds(engine.socket, 1 << 17, 1)
        held += fds
        if (message := json.loads(packet))["op"] not in ("progress", "socket"):
            assert message["op"] == "done", message
            return held


@pytest.mark.parametrize("attempt", range(5))
def test_memory_that_was_relayed_can_be_sealed_once_the_engine_is_done(require, attempt):
    """The kernel frees what was sent when the CPU that sent it receives a packet, and nothing else may come there."""
    cpus = sorted(os.sched_getaffinity(0))
    require("cpus", "fewer than two processors", len(cpus) > 1)
    chain = Chain(["a", "b", "c"], Memory(random_bytes(CHUNK)))
    chain.memories[1].close()
    chain.memories[1] = Memory(CHUNK, flags=os.MFD_ALLOW_SEALING)
    memory_fd = os.dup(chain.memories[1].fd)
    with chain:
        for engine, cpu in zip(chain.engines, (1, 0, 1)):
            os.sched_setaffinity(engine.pid, {cpus[cpu]})
        chain.engines[1].tell({"op": "sockets"})
        chain.start()
        held = hear_with_descriptors(chain.engines[1])
        for place in 0, 2:
            assert chain.engines[place].hear_end()["op"] == "done"
    try:
        # The kernel waits up to 0.15 s for pages that are in use.
        assert len(held) == 2 and fcntl.fcntl(memory_fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE) == 0
    finally:
        for fd in [memory_fd, *held]:
            os.close(fd)


@pytest.mark.parametrize("order", ((0, 1, 2), (2, 1, 0), (1, 0, 2)))
def test_a_chain_forms_in_any_order_of_starts(order):
    data = random_bytes(CHUNK + 1)
    with Chain(["a", "b", "c"], Memory(data)) as chain:
        chain.start(places=order)
        chain.await_done()
        assert chain.memories[2].read() == data


@pytest.mark.parametrize("ranges", (
    [[0, 1]], [[5000, 1]], [[0, 4096], [8192, 4096]], [[1, 2], [4, 1], [4095, 2], [100_000, 70_001]],
    [[i * 300, 150] for i in range(1000)], [[299_999, 1]], []))
def test_only_the_ranges_are_carried(ranges):
    data, old = random_bytes(300_000), b"\xaa" * 300_000
    expected = bytearray(old)
    for offset, size in ranges:
        expected[offset:offset + size] = data[offset:offset + size]
    with Chain(["a", "b", "c"], Memory(data), ranges) as chain:
        for memory in chain.memories[1:]:
            memory.write(0, old)
        chain.start()
        ends = chain.await_done()
        assert [m.read() == bytes(expected) for m in chain.memories[1:]] == [True, True]
        assert ends[0]["out"]["bytes"] == planned(sum(size for _, size in ranges))


@pytest.mark.parametrize("n_bytes", (0, 1, 1447, 65_536, 5_000_001))
def test_planned_counted_and_kernels_bytes_are_equal(n_bytes):
    with Chain(["a", "b", "c"], Memory(n_bytes)) as chain:
        chain.start()
        ends = chain.await_done()
        both = {"bytes": planned(n_bytes), "kernel": planned(n_bytes)}
        assert [(end["in"], end["out"]) for end in ends] == [(None, both), (both, both), (both, None)]


def test_progress_only_grows_and_is_of_the_stream(listener):
    """A relay reports the bytes that we sent to it, and those that it sent to us."""
    with receiver(300, start=False) as (engine, _), dial(engine) as up:
        up.sendall(preamble(300))
        assert up.recv(1) == ACCEPTED
        engine.start({"node": "c", "address": "127.0.0.1", "port": listener.getsockname()[1], "token": TOKEN})
        with accept(listener) as down:
            assert len(receive(down, 192)) == 192
            down.sendall(ACCEPTED)
            for n in (100, 200, 300):
                up.sendall(b"x" * 100)
                engine.await_progress(n)
                assert len(receive(down, 100)) == 100
                engine.await_progress(n, "sent")
            up.sendall(END)
            assert receive(down, 8) == END
            down.sendall(THERE)
            assert engine.hear_end()["op"] == "done"
    done, sent = ([p[what] for p in engine.progress] for what in ("done", "sent"))
    assert done == sorted(done) and set(done) == {100, 200, 300}, done
    assert sent == sorted(sent) and set(sent) <= {0, 100, 200, 300}, sent
    assert len(set(zip(done, sent))) == len(engine.progress), "and it is news"


def test_a_rate_is_not_exceeded():
    rate = 8 << 20
    with Chain(["a", "b"], Memory(rate)) as chain:
        started = time.monotonic()
        chain.start(max_rate=rate)
        chain.await_done()
        assert time.monotonic() - started > 0.7


def test_a_rate_may_rise_while_bytes_move():
    """At the first one it would take longer than any deadline of the test."""
    rate = 256 << 10
    with Chain(["a", "b"], Memory((PATIENCE_S + 10) * rate)) as chain:
        chain.start(max_rate=rate)
        chain.engines[0].await_progress(1, "sent")
        chain.engines[0].tell({"op": "rate", "max_rate": 64 << 20})
        chain.await_done()


def until_now(engine):
    """Its messages that are not read yet."""
    poll = select.poll()
    poll.register(engine.socket, select.POLLIN)
    while poll.poll(0):
        yield engine.hear()


def test_a_rate_may_fall_while_bytes_move():
    """Bytes that are not yet on their way then move at the new rate, however late we are, or the engine is."""
    rate = 4 << 20
    with Chain(["a", "b"], Memory(4 * rate)) as chain:
        a, b = chain.engines
        chain.start(max_rate=4 * rate)
        a.await_progress(1, "sent")
        with a.stopped():
            told = time.monotonic()
            a.tell({"op": "rate", "max_rate": rate})
            heard = list(until_now(a))
        n_before = len(heard) + 1  # one more may be from before it read the rate
        while not heard or heard[-1]["op"] == "progress":
            heard.append(a.hear())
        seconds = time.monotonic() - told
        assert (heard[-1]["op"], b.hear_end()["op"]) == ("done", "done"), heard
        left = [4 * rate - message["sent"] for message in heard[n_before:-1]]
        assert not left or seconds > 0.7 * left[0] / rate, (seconds, left)


def test_its_connections_are_told_of_whenever_they_are_asked_for():
    """Later ones, too, and their number at the end."""
    rate = 256 << 10
    with Chain(["a", "b"], Memory(PATIENCE_S * rate)) as chain:
        for engine in chain.engines:
            engine.tell({"op": "sockets"})
        chain.start(max_rate=rate)
        for engine, other in zip(chain.engines, "ba"):
            first = engine.hear_end()
            engine.tell({"op": "sockets"})
            assert first == engine.hear_end() and (first["op"], first["node"]) == ("socket", other), first
        chain.engines[0].tell({"op": "rate", "max_rate": 0})
        assert [end["sockets"] for end in chain.await_done()] == [1, 1]


@pytest.mark.parametrize("rate", (-1, 1, "much"))
def test_another_rate_that_is_wrong_is_refused(rate):
    with receiver() as (engine, _):
        engine.tell({"op": "rate", "max_rate": rate})
        end = engine.hear()
        assert end["op"] == "failed" and "max_rate" in end["why"], end


def test_ipv6_carries_too():
    with contextlib.closing(socket.socket(socket.AF_INET6)) as s:
        try:
            s.bind(("::1", 0))
        except OSError:
            features.require("ipv6", "no IPv6 on loopback", available=False)
    data = random_bytes(10_000)
    with Chain(["a", "b"], Memory(data), address="::1") as chain:
        chain.engines[1].start()
        chain.engines[0].start(chain.next(0) | {"address": "::1"})
        chain.await_done()
        assert chain.memories[1].read() == data


# --- Strangers at the port ---------------------------------------------------------------------------


def preamble(n_bytes, token=TOKEN, sync=SYNC, epoch=1, from_="a", to="b", magic=b"weightd\1"):
    return magic + bytes.fromhex(sync) + struct.pack(">Q", epoch) + bytes.fromhex(token) + \
        struct.pack(">Q", n_bytes) + from_.encode().ljust(64, b"\0") + to.encode().ljust(64, b"\0")


def dial(engine, host="127.0.0.1"):
    s = socket.create_connection(("127.0.0.1", engine.port), PATIENCE_S, source_address=(host, 0))
    s.settimeout(PATIENCE_S)
    return contextlib.closing(s)


def call(engine, said):
    """A connection that has sent this before the engine looks at it, however late we are."""
    with engine.stopped():
        s = socket.create_connection(("127.0.0.1", engine.port), PATIENCE_S)
        s.sendall(said)
    return contextlib.closing(s)


def receive_all(s):
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := s.recv(65536):
            received += data
    return received


@contextlib.contextmanager
def receiver(n_bytes=10, start=True, **orders):
    """A last engine "b" with memory for n_bytes, and its memory."""
    memory, engine = Memory(n_bytes), Engine()
    try:
        engine.open(memory, **orders)
        if start:
            engine.start()
        yield engine, memory
    finally:
        engine.close()
        memory.close()


def send_stream(engine, data):
    with dial(engine) as s:
        s.sendall(preamble(len(data)))
        assert s.recv(1) == ACCEPTED
        s.sendall(data + END)
        assert receive(s, 8) == THERE


@pytest.mark.parametrize("wrong", (
    {"token": "22" * 32}, {"sync": "00" * 8}, {"epoch": 2}, {"from_": "c"}, {"to": "c"}, {"n_bytes": 11},
    {"magic": b"weightd\2"}, {"from_": "a\0b"}, {"from_": "x" * 64}))
def test_a_wrong_preamble_is_refused_and_the_right_one_still_comes(wrong):
    with receiver() as (engine, memory):
        with dial(engine) as s:
            s.sendall(preamble(**({"n_bytes": 10} | wrong)))
            assert receive_all(s) == REFUSED
        send_stream(engine, b"0123456789")
        assert engine.hear_end()["op"] == "done"
        assert memory.read() == b"0123456789"
        assert "refused the stream" in engine.read_log()


def test_garbage_is_hung_up_on_and_nothing_of_it_is_kept():
    with receiver(300) as (engine, memory):
        for data in (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 500, bytes(192), b"\xff" * 100_000, b"weightd\1" * 100):
            with dial(engine) as s:
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                    s.sendall(data)
                assert receive_all(s) in (REFUSED, b"")
        assert memory.read() == bytes(300)
        send_stream(engine, b"y" * 300)
        assert engine.hear_end()["op"] == "done"


def test_those_who_say_nothing_keep_nobody_out():
    with receiver() as (engine, _), contextlib.ExitStack() as silent:
        for i in range(60):
            s = silent.enter_context(dial(engine))
            s.sendall(preamble(10)[:i])
        send_stream(engine, b"0123456789")
        assert engine.hear_end()["op"] == "done"


def test_a_host_that_comes_again_and_again_keeps_no_other_out():
    with receiver() as (engine, _), contextlib.ExitStack() as silent:
        with dial(engine) as s:
            for _ in range(60):
                silent.enter_context(dial(engine, "127.0.0.2"))
            s.sendall(preamble(10))
            assert receive(s, 1) == ACCEPTED
            s.sendall(b"0123456789" + END)
            assert receive(s, 8) == THERE
        assert engine.hear_end()["op"] == "done"


def test_one_that_says_nothing_is_sent_away():
    with receiver(start=False, stall_ms=200) as (engine, _), dial(engine) as s:
        assert receive_all(s) == REFUSED


def test_there_is_one_upstream_and_no_second_one():
    with receiver() as (engine, memory), dial(engine) as first:
        with dial(engine) as early:
            first.sendall(preamble(10))
            assert first.recv(1) == ACCEPTED
            assert receive_all(early) == b""
        with pytest.raises(ConnectionRefusedError):
            dial(engine)
        first.sendall(b"0123456789" + END)
        assert receive(first, 8) == THERE
        assert engine.hear_end()["op"] == "done"


# --- Streams that go wrong ---------------------------------------------------------------------------


def assert_failed(engine, from_, to, who, *words):
    end = engine.hear_end()
    assert (end["op"], end.get("from"), end.get("to"), end.get("who")) == ("failed", from_, to, who), end
    for word in words:
        assert word in end["why"], end
    return end


@pytest.mark.parametrize("data, word", (
    (b"0123456789" + b"1" + END, "more than"), (b"0123456789" + b"x" * 100_000, "more than"),
    (b"0123456789", "hung up"), (b"01234", "hung up"), (b"", "hung up"), (b"0123456789" + END[:7], "hung up")))
def test_too_much_and_too_little_are_noticed(data, word):
    memory = Memory(30)
    engine = Engine()
    try:
        engine.open(memory, [[10, 10]])
        engine.start()
        with dial(engine) as s:
            s.sendall(preamble(10))
            assert s.recv(1) == ACCEPTED
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            end = assert_failed(engine, "a", "b", "a", "a ", word)
        assert end["done"] == min(10, len(data))
        kept = memory.read()
        assert (kept[:10], kept[20:]) == (bytes(10), bytes(10)), "written outside of the ranges"
    finally:
        engine.close()
        memory.close()


def test_an_upstream_that_stays_away_is_named():
    with receiver(stall_ms=300) as (engine, _):
        assert_failed(engine, "a", "b", "a", "a did not connect")


def test_an_upstream_that_was_refused_is_named_with_the_reason():
    with receiver(start=False, stall_ms=300) as (engine, _):
        with call(engine, preamble(10, token="00" * 32)) as s:
            assert receive_all(s) == REFUSED
        engine.start()
        assert_failed(engine, "a", "b", "a", "a did not connect", "its token is wrong")


def test_an_upstream_that_falls_silent_is_named():
    with receiver(start=False, stall_ms=300) as (engine, _), call(engine, preamble(10) + b"01234") as s:
        assert s.recv(1) == ACCEPTED
        engine.start()
        assert assert_failed(engine, "a", "b", "a", "a sent nothing")["done"] == 5


@contextlib.contextmanager
def source(listener, n_bytes=10, **orders):
    """An engine "a" that sends to a socket of ours."""
    memory, engine = Memory(b"x" * n_bytes), Engine()
    try:
        engine.open(memory, **({"node": "a", "from": None, "token": None} | orders))
        engine.start({"node": "b", "address": "127.0.0.1", "port": listener.getsockname()[1], "token": TOKEN})
        yield engine
    finally:
        engine.close()
        memory.close()


@pytest.fixture
def listener():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as s:
        s.settimeout(PATIENCE_S)
        yield s


def accept(listener):
    s, _ = listener.accept()
    s.settimeout(PATIENCE_S)
    return contextlib.closing(s)


def receive(s, n):
    data = b""
    while len(data) < n and (more := s.recv(n - len(data))):
        data += more
    return data


def test_a_stream_is_what_its_description_says(listener):
    with source(listener) as engine, accept(listener) as s:
        assert receive(s, 192) == preamble(10)
        s.sendall(ACCEPTED)
        assert receive(s, 18) == b"x" * 10 + END
        s.sendall(THERE)
        assert engine.hear_end() == {"op": "done", "in": None, "out": {"bytes": 210, "kernel": 210}}


@pytest.mark.parametrize("answer, word", (
    (REFUSED, "refused"), (b"x", "refused"), (b"", "hung up before"), (ACCEPTED, "hung up"),
    (ACCEPTED + b"x" * 8, "protocol"), (ACCEPTED + THERE[:7], "hung up")))
def test_a_downstream_that_answers_wrongly_is_named(listener, answer, word):
    with source(listener) as engine, accept(listener) as s:
        receive(s, 192)
        s.sendall(answer[:1])
        receive(s, 18 if answer[:1] == ACCEPTED else 0)
        s.sendall(answer[1:])
        s.shutdown(socket.SHUT_WR)
        assert_failed(engine, "a", "b", "b", "b ", word)


def test_a_downstream_that_speaks_out_of_turn_is_named(listener):
    with source(listener, n_bytes=64 << 20) as engine, accept(listener) as s:
        receive(s, 192)
        s.sendall(ACCEPTED + THERE)
        assert_failed(engine, "a", "b", "b", "b sent bytes before")


@pytest.mark.parametrize("answers", (False, True))
def test_a_downstream_that_falls_silent_is_named(listener, answers):
    with source(listener, stall_ms=300) as engine, accept(listener) as s:
        receive(s, 192)
        if answers:
            s.sendall(ACCEPTED)
        assert_failed(engine, "a", "b", "b", "b took nothing")


def test_a_downstream_that_does_not_listen_yet_is_waited_for():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        s.settimeout(PATIENCE_S)
        with source(s) as engine:
            poll = select.poll()
            poll.register(engine.socket, select.POLLIN)
            assert not poll.poll(200), "it was refused, and has to try again"
            s.listen()
            with accept(s) as connection:
                assert receive(connection, 192) == preamble(10)


def test_a_downstream_that_never_listens_is_named():
    with contextlib.closing(socket.socket()) as s:
        s.bind(("127.0.0.1", 0))
        with source(s, stall_ms=300) as engine:
            assert_failed(engine, "a", "b", "b", "b could not be connected to")


def test_a_relay_that_is_killed_is_named_by_both_neighbours():
    with Chain(["a", "b", "c", "d"], Memory(64 << 20)) as chain:
        a, b, c, d = chain.engines
        chain.start(max_rate=SLOW)
        d.await_progress(1)
        b.kill()
        assert_failed(a, "a", "b", "b", "b hung up")
        end = assert_failed(c, "b", "c", "b", "b hung up")
        assert 0 < end["done"] < 64 << 20
        poll = select.poll()
        poll.register(d.socket, select.POLLIN)
        while poll.poll(500):  # d's neighbour lives, and is not to blame
            assert d.hear()["op"] == "progress"


def test_a_relay_that_is_stopped_is_named_by_both_neighbours():
    with Chain(["a", "b", "c"], Memory(64 << 20), stall_ms=STALL_MS) as chain:
        a, b, c = chain.engines
        chain.start(max_rate=SLOW)
        c.await_progress(1)
        b.kill(signal.SIGSTOP)
        assert_failed(a, "a", "b", "b", "b took nothing")
        assert_failed(c, "b", "c", "b", "b sent nothing")


def test_who_waits_for_a_slow_upstream_owes_nothing(listener):
    """a sends nothing for longer than the stall of b: b blames a, never the idle c."""
    with receiver(1 << 20, start=False, stall_ms=STALL_MS) as (engine, _), call(engine, preamble(1 << 20)) as up:
        engine.start({"node": "c", "address": "127.0.0.1", "port": listener.getsockname()[1], "token": TOKEN})
        with accept(listener) as down:
            down.sendall(ACCEPTED)
            assert up.recv(1) == ACCEPTED
            assert receive(down, 192)
            assert_failed(engine, "a", "b", "a", "a sent nothing")


# --- The agent ---------------------------------------------------------------------------------------


def test_a_hangup_ends_an_engine_at_every_step():
    memory = Memory(10)
    for step in range(4):
        engine = Engine()
        if step > 0:
            engine.open(memory)
        if step > 1:
            engine.start()
        if step > 2:
            with dial(engine) as s:
                s.sendall(preamble(10))
                assert s.recv(1) == ACCEPTED
                engine.hang_up()
                assert engine.wait() == 0, step
        engine.close()  # close() checks its status
    memory.close()


def test_a_hangup_ends_every_engine_of_a_busy_chain():
    with Chain(["a", "b", "c"], Memory(64 << 20)) as chain:
        chain.start(max_rate=SLOW)
        chain.engines[2].await_progress(1)
        for engine in chain.engines:
            engine.hang_up()
        assert [engine.wait() for engine in chain.engines] == [0, 0, 0]


def test_an_engine_that_is_done_or_failed_stays_until_it_is_ended():
    with Chain(["a", "b"], Memory(10)) as chain:
        chain.start()
        chain.await_done()
        poll = select.poll()
        for engine in chain.engines:
            poll.register(engine.pidfd, select.POLLIN)
        assert not poll.poll(300)


@pytest.mark.parametrize("change, word", (
    ({"node": ...}, "node"), ({"node": None}, "node"), ({"node": "B"}, "node"), ({"node": ".b"}, "node"),
    ({"node": "x" * 64}, "node"), ({"from": 7}, "from"), ({"from": "a/b"}, "from"), ({"from": "b"}, "itself"),
    ({"sync": "0011"}, "sync"), ({"sync": "g" * 16}, "sync"), ({"epoch": -1}, "epoch"), ({"epoch": "1"}, "epoch"),
    ({"address": "localhost"}, "address"), ({"address": "127.0.0.1:1"}, "address"), ({"token": None}, "token"),
    ({"token": "11" * 31}, "token"), ({"n_bytes": -1}, "n_bytes"), ({"n_bytes": 1.5}, "n_bytes"),
    ({"n_bytes": 11}, "smaller"), ({"n_bytes": 1 << 63}, "JSON"), ({"ranges": ...}, "ranges"), ({"ranges": [[0, 11]]}, "ranges"),
    ({"ranges": [[5, 5], [0, 5]]}, "ranges"), ({"ranges": [[10, 1]]}, "ranges"), ({"ranges": [[0, 0]]}, "ranges"),
    ({"chunk": 0}, "chunk"), ({"chunk": 1 << 40}, "chunk"), ({"stall_ms": 0}, "stall_ms"), ({"stall_ms": ...}, "stall_ms"),
    ({"security": "ssl"}, "security"), ({"security": "tls"}, "certificate and key"), ({"op": "begin"}, "op"),
    ({"op": None}, "op"), ({"op": "start"}, "op")))
def test_an_order_that_is_wrong_is_refused_with_what_is_wrong(change, word):
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(Engine()) as engine:
        engine.tell_open(memory, **change)
        end = engine.hear()
        assert end["op"] == "failed" and word in end["why"], end


@pytest.mark.parametrize("packet", (b"", b"x", b"[]", b"null", b"{", b'{"op":"open","op":"open"}', b"\xff" * 100,
                                    b'{"op":"open","node":"b\\u0000c"}', b"[" * 60_000, b"{}" + b" " * 70_000))
def test_what_is_no_order_is_refused(packet):
    with contextlib.closing(Engine()) as engine, contextlib.closing(Memory(1)) as memory:
        engine.send(packet, [memory.fd])
        end = engine.hear()
        assert end["op"] == "failed" and "the order is wrong" in end["why"], end


@pytest.mark.parametrize("next, max_rate, word", (
    (..., 0, "next"), ({}, 0, "next.node"), ({"node": "c"}, 0, "next.port"), ({"node": "c", "port": 0}, 0, "next.port"),
    ({"node": "c", "port": 70_000}, 0, "next.port"), ({"node": "c", "port": 1, "address": "c"}, 0, "next.address"),
    ({"node": "c", "port": 1, "address": "127.0.0.1", "token": "00"}, 0, "next.token"), (None, -1, "max_rate"),
    (None, 1, "max_rate"), ([], 0, "next.node")))
def test_a_start_that_is_wrong_is_refused_with_what_is_wrong(next, max_rate, word):
    with receiver(start=False) as (engine, _):
        engine.tell({"op": "start", "max_rate": max_rate} | ({} if next is ... else {"next": next}))
        end = engine.hear()
        assert end["op"] == "failed" and word in end["why"], end


def test_orders_come_once():
    with receiver() as (engine, memory):
        engine.start()
        assert "once" in engine.hear()["why"]
    with receiver(start=False) as (engine, memory):
        engine.tell_open(memory)
        assert "once" in engine.hear()["why"]


def test_memory_that_cannot_be_written_is_refused():
    with contextlib.closing(Memory(10)) as memory, contextlib.closing(memory.lend()) as lent, \
            contextlib.closing(Engine()) as engine:
        engine.tell_open(lent)
        assert "cannot be mapped" in engine.hear()["why"]

"""
Versions that live: the library against a real weightd, which is killed again and again under its keeper.
"""
import contextlib
import errno
import os
import signal
import struct
import threading

import pytest
from lib import wire
from lib.fake_server import PATIENCE_S, later
from lib.native import READY, TORN, UPDATING, Client, Failed
from lib.wire import until

SIZE = 3 << 20


def data(pattern):
    return (pattern * (SIZE // len(pattern) + 1))[:SIZE]


class Kept:
    """A weightd that restarts when it dies, and clients of it."""

    def __init__(self, daemon, stack):
        self.daemon, self.stack = daemon, stack
        self.witness = self.connect()

    def connect(self, **kw):
        return self.stack.enter_context(Client(self.daemon.socket, **kw))

    def kill(self):
        """Returns at once: later requests find it dead."""
        os.kill(self.witness.ping().pid, signal.SIGKILL)

    def owned(self, thing):
        return self.stack.enter_context(thing)


@pytest.fixture
def kept(make_daemon):
    daemon = make_daemon("--keeper")
    with contextlib.ExitStack() as stack:
        yield Kept(daemon, stack)


def failure(act, *args, **kw):
    with pytest.raises(Failed) as failed:
        act(*args, **kw)
    return failed.value.errno


# --- Survival ---------------------------------------------------------------------------------------------


def test_versions_leases_and_writers_survive(kept):
    client = kept.connect()
    assert client.publish("m", data(b"one")) == 1
    one = kept.owned(client.attach("m"))
    writer = kept.owned(client.create("m", SIZE))
    writer.write(data(b"two"))
    instance = client.ping().instance
    kept.kill()
    again = client.ping()
    assert again.instance != instance and again.n_buffers == 1
    assert again.n_leases >= 1  # the one that was renewed
    assert writer.publish() == 2
    one.verify()
    assert one.bytes() == data(b"one")
    kept.kill()
    assert one.swap() == 1 and one.version == 2
    assert one.bytes() == data(b"two")
    one.verify()
    with client.attach("m", version=1) as old:
        assert old.bytes() == data(b"one")
        old.verify()


def test_what_was_not_published_by_a_dead_writer_does_not_survive(kept):
    client = kept.connect()
    client.publish("m", data(b"one"))
    with kept.connect() as other:
        other.create("m", SIZE).write(data(b"two"))  # and never freed: its connection just ends
        kept.kill()
    assert client.wait("m") == 1
    with client.attach("m") as buffer:
        assert buffer.version == 1 and buffer.bytes() == data(b"one")


def test_a_wait_outlives_the_server(kept):
    waiting = later(kept.connect().wait, "m", 2)
    kept.witness.publish("m", data(b"one"))
    for _ in range(3):
        kept.kill()
    assert not waiting.done()
    kept.witness.publish("m", data(b"two"))
    assert waiting.result(PATIENCE_S) == 2


def test_a_reader_of_a_dropped_version_keeps_it_through_restarts(kept):
    client = kept.connect()
    client.publish("m", data(b"one"))
    buffer = kept.owned(client.attach("m"))
    client.drop("m")
    assert buffer.state()[0] != READY
    for _ in range(2):
        kept.kill()
        assert client.ping().n_buffers == 0
        assert buffer.bytes() == data(b"one")
        buffer.verify()


def test_calls_go_on_while_the_server_dies(kept):
    """Writers, readers and lists by several clients, and kills in between: no client gets an error."""
    over, begun = threading.Event(), threading.Barrier(4)
    kept.witness.publish("m", data(b"1"))

    def write():
        client = kept.connect()
        n = client.publish("m", data(b"2"))
        begun.wait(PATIENCE_S)
        while not over.is_set():
            n = client.publish("m", data(b"%d" % (n + 1)))
        return n

    def read():
        n = 0
        with kept.connect() as client, client.attach("m") as buffer:
            while not over.is_set():
                buffer.swap()
                assert buffer.bytes() == data(b"%d" % buffer.version)
                buffer.verify()
                client.list()
                n += 1
                if n == 1:
                    begun.wait(PATIENCE_S)
        return n

    def come_and_go():
        n = 0
        while not over.is_set():
            with Client(kept.daemon.socket) as client, client.attach("m"):
                n += 1
            if n == 1:
                begun.wait(PATIENCE_S)
        return n

    writing, reading, coming = later(write), later(read), later(come_and_go)
    killer = kept.connect()
    begun.wait(PATIENCE_S)
    for _ in range(5):  # the keeper waits longer each time
        before = killer.ping()
        os.kill(before.pid, signal.SIGKILL)
        until(lambda before=before: killer.ping().instance != before.instance, "it is back")
    over.set()
    assert writing.result(PATIENCE_S) > 1 and reading.result(PATIENCE_S) and coming.result(PATIENCE_S)


@pytest.mark.parametrize("phase", ["memory", "read", "publish"])
def test_a_load_goes_on_while_the_server_dies(kept, tmp_path, phase):
    header = b'{"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (SIZE, SIZE)
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data(b"file"))
    killed = []

    def progress(now):
        if now == phase and not killed:
            killed.append(now)
            kept.kill()
        return 0

    client = kept.connect()
    client.load("m", tmp_path / "m.safetensors", progress)
    assert killed
    with client.attach("m") as buffer:
        assert buffer.version == 1 and buffer.bytes() == data(b"file")
        buffer.verify()


# --- Going back ---------------------------------------------------------------------------------------------


def test_a_rollback_is_what_readers_attach_and_swap_to(kept):
    client = kept.connect()
    for pattern in b"one", b"two":
        client.publish("m", data(pattern))
    buffer = kept.owned(client.attach("m"))
    address = buffer.address
    assert client.rollback("m") == 1
    assert failure(client.rollback, "m") == errno.ENOENT
    assert buffer.swap() == 1 and buffer.bytes() == data(b"one") and buffer.address == address
    kept.kill()
    with client.attach("m") as current:
        assert current.version == 1
    assert client.rollback("m", 2) == 2
    assert buffer.swap() == 1 and buffer.bytes() == data(b"two")
    client.rollback("m", 1)
    assert client.publish("m", data(b"three")) == 3


def test_access_is_in_force_and_survives(kept):
    client = kept.connect()
    client.publish("m", data(b"one"))
    client.set_access("m", mode=0o604)
    kept.kill()
    with wire.Wire(kept.daemon.socket) as w:
        assert w.records()["m"].mode == 0o604
    assert failure(client.set_access, "none", mode=0o600) == errno.ENOENT


# --- In place -------------------------------------------------------------------------------------------------


def until_asked(buffer):
    until(lambda: buffer.state()[0] == UPDATING, "readers are asked to pause")


@pytest.mark.parametrize("kills", [False, True])
def test_an_update_in_place_waits_for_a_pause(kept, kills):
    reader, author = kept.connect(), kept.connect()
    author.publish("x", data(b"one"), exclusive=True)
    buffer = kept.owned(reader.attach("x"))
    address = buffer.address
    assert buffer.is_mutable and not buffer.read_retry(buffer.read_begin())
    creating = later(author.create, "x", SIZE)
    until_asked(buffer)
    assert failure(buffer.read_begin) == errno.EAGAIN and not creating.done()
    assert failure(kept.connect().attach, "x") == errno.EAGAIN
    pausing = later(buffer.pause)
    writer = kept.owned(creating.result(PATIENCE_S))
    if kills:
        kept.kill()
    assert writer.bytes() == data(b"one")
    writer.write(data(b"two"))
    if kills:
        kept.kill()
    assert writer.publish() == 2
    assert pausing.result(PATIENCE_S) == 1
    assert (buffer.version, buffer.address, buffer.bytes()) == (2, address, data(b"two"))
    buffer.verify()


def test_a_reader_that_does_not_pause_is_waited_for_or_evicted(kept):
    reader, author = kept.connect(), kept.connect()
    author.publish("x", data(b"one"), exclusive=True)
    buffer = kept.owned(reader.attach("x"))
    ticket = buffer.read_begin()
    assert failure(author.create, "x", SIZE, pause_timeout_ms=50) == errno.ETIMEDOUT
    until(lambda: buffer.state() == (READY, 1), "the update is called off")
    assert not buffer.read_retry(ticket)
    with author.create("x", SIZE, pause_timeout_ms=50, policy=wire.EVICT) as writer:
        assert buffer.read_retry(ticket)
        writer.write(data(b"two"))
        writer.publish()
    assert buffer.read_retry(ticket)
    assert failure(buffer.pause) == errno.EUCLEAN
    assert failure(buffer.read_begin) == errno.EUCLEAN
    buffer.detach()
    with reader.attach("x") as again:
        assert again.bytes() == data(b"two") and not again.read_retry(again.read_begin())


def test_a_writer_that_gives_up_in_place_leaves_it_torn_until_it_is_updated(kept):
    reader, author = kept.connect(), kept.connect()
    author.publish("x", data(b"one"), exclusive=True)
    buffer = kept.owned(reader.attach("x"))
    creating = later(author.create, "x", SIZE)
    until_asked(buffer)
    pausing = later(buffer.pause)
    with creating.result(PATIENCE_S) as writer:
        writer.write(b"half")
    assert failure(pausing.result, PATIENCE_S) == errno.EUCLEAN
    assert buffer.state()[0] == TORN and failure(buffer.read_begin) == errno.EUCLEAN
    assert failure(reader.attach, "x") == errno.EUCLEAN
    repairing = later(author.publish, "x", data(b"two"))
    until_asked(buffer)
    assert buffer.pause() == 1 and buffer.version == repairing.result(PATIENCE_S) == 2
    assert buffer.bytes() == data(b"two")


def test_what_is_torn_is_torn_after_a_restart(kept):
    author = kept.connect()
    author.publish("x", data(b"one"), exclusive=True)
    with author.create("x", SIZE) as writer:
        writer.write(b"half")
    kept.kill()
    assert failure(author.attach, "x") == errno.EUCLEAN
    assert author.publish("x", data(b"two")) == 2
    with author.attach("x") as buffer:
        assert buffer.bytes() == data(b"two")


def test_an_attach_with_time_waits_for_the_update(kept):
    author = kept.connect()
    author.publish("x", data(b"one"), exclusive=True)
    with author.create("x", SIZE) as writer:
        attaching = later(kept.connect().attach, "x", timeout_ms=60_000)
        kept.kill()
        writer.write(data(b"two"))
        writer.publish()
        with attaching.result(PATIENCE_S) as buffer:
            assert (buffer.version, buffer.bytes()) == (2, data(b"two"))


def test_a_sealed_buffer_is_replaced_at_the_same_address(kept):
    reader, author = kept.connect(), kept.connect()
    author.publish("m", data(b"one"))
    buffer = kept.owned(reader.attach("m"))
    address = buffer.address
    creating = later(author.create, "m", SIZE, replace=True)
    until_asked(buffer)
    pausing = later(buffer.pause)
    with creating.result(PATIENCE_S) as writer:
        assert kept.witness.stat().slot_bytes < 2 * SIZE  # one of the two exists
        writer.write(data(b"two"))
        kept.kill()
        assert writer.publish() == 2
    assert pausing.result(PATIENCE_S) == 1
    assert (buffer.address, buffer.version, buffer.bytes()) == (address, 2, data(b"two"))


def test_reusable_slots_are_published_and_read(kept):
    client = kept.connect()
    for i in range(6):
        client.publish("r", data(b"%d" % i), reusable=True)
        with client.attach("r") as buffer:
            assert not buffer.is_mutable and buffer.bytes() == data(b"%d" % i)
            buffer.verify()
        if i == 3:
            kept.kill()


# --- Events ----------------------------------------------------------------------------------------------------


def test_a_watch_tells_what_happened_and_that_the_server_died(kept):
    client = kept.connect()
    client.publish("before", data(b"not told"))
    watch = kept.owned(client.watch())
    client.publish("m", data(b"one"))
    assert watch.next() == ("created", "m", 0, "")
    assert watch.next()[:3] == ("published", "m", 1)
    kept.kill()
    assert watch.next()[:2] == ("restarted", "")
    client.publish("m", data(b"two"))
    client.rollback("m", 1)
    client.drop("m")
    told = []
    while not told or told[-1][0] != "removed":
        told.append(watch.next())
    assert ("published", "m", 2, "") in told and ("rolled-back", "m", 1, "") in told, told

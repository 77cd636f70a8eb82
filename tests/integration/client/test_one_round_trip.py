"""Connecting and attaching in one round trip: weightd_attach_options::connect."""
import contextlib
import ctypes
import errno
import os
import resource

import pytest

from lib import earlier, wire
from lib.fake_server import PATIENCE_S, FakeServer, Memory, later
from lib.native import Attached, Client, Failed, lib
from lib.wire import Wire, image, memfd

DATA = b"0123456789abcdef" * 256


@pytest.fixture
def server(tmp_path):
    with FakeServer(tmp_path / "socket") as s:
        yield s


@pytest.fixture
def client():
    with Client(restart_ms=0) as c:
        yield c


@pytest.fixture
def memory():
    with Memory() as m:
        m.flip(1, 1)
        yield m


@pytest.fixture
def published(daemon):
    fd = memfd(image([("t", len(DATA))]))
    with Wire(daemon.socket) as w:
        slot = w.create("m", fd)
        w.publish(slot.writer, wire.fill(slot, DATA))
        w.detach(slot.writer)
    os.close(fd)
    return daemon


def attach(client, path, name="m", **options):
    return client.attach(name, connect=True, socket=None if path is None else str(path).encode(), **options)


# --- Packets ----------------------------------------------------------------------------------------


def test_one_packet_is_sent_and_one_is_received(server, client, memory):
    attaching = later(attach, client, server.path)
    peer = server.accept(greet=False)
    asked = peer.request(wire.HELLO_ATTACH)
    assert asked.values[0].rstrip(b"\0") == b"m" and asked.values[7] == wire.VERSION
    assert peer.is_silent()
    peer.give_lease(memory.version(1, DATA), instance=1)
    with attaching.result(PATIENCE_S) as buffer:
        assert buffer.bytes()[:16] == DATA[:16]
        assert peer.is_silent() and client.is_connected
        peer.close()  # nothing answers the detach


def test_weightd_answers_with_one_packet(published):
    with Wire(published.socket, greet=False) as w:
        lease, greeting = w.hello_attach("m")
        assert lease.bytes()[:len(DATA)] == DATA
        assert w.is_silent() and (w.n_sent, w.n_received) == (1, 1)
        with Wire(published.socket, greet=False) as other:
            assert other.hello() == greeting
        assert w.ping().n_leases == 1


def test_the_features_of_the_server_are_known_afterwards(published, client):
    with attach(client, published.socket) as buffer:
        assert client.owner_of(buffer) == os.getuid()
        assert client.jobs() == {} and client.ping().n_leases == 1


def test_an_attach_that_fails_leaves_a_connection(published, client):
    for name in "none", "m":
        with pytest.raises(Failed) as e:
            attach(client, published.socket, name, version=9)
        assert e.value.errno == errno.ENOENT and client.is_connected
    assert client.ping().n_sessions == 1
    with attach(client, None):
        assert client.ping().n_sessions == 1


@pytest.mark.parametrize("device, code", [(b"cuda:0", errno.EINVAL), (b"none", errno.ENOENT)])
def test_a_device_that_is_none_is_refused_behind_the_hello(published, device, code):
    with Wire(published.socket, greet=False) as w:
        with pytest.raises(wire.Refused) as e:
            w.hello_attach("m", device=device.decode())
        assert e.value.errno == code
        assert w.ping()


def test_it_waits_for_a_version_on_the_same_connection(published, client):
    with Client(published.socket) as writer:
        attaching = later(attach, client, published.socket, "later", timeout_ms=-1)
        wire.until(lambda: writer.ping().n_sessions == 2, "it has connected")
        writer.publish("later", b"data")
        with attaching.result(PATIENCE_S) as buffer:
            assert buffer.version == 1
            assert client.ping().n_sessions == 2


# --- A client and a server that are slow, or of different releases ---------------------------------------


def test_a_request_that_comes_long_after_the_connection_is_served(published):
    with Wire(published.socket, greet=False) as slow:
        with Wire(published.socket) as other:
            for _ in range(3):
                assert other.ping().n_sessions == 2
        assert slow.hello_attach("m")[0].bytes()[:len(DATA)] == DATA


def test_requests_that_were_sent_before_weightd_accepts_are_served_in_order(published):
    with Wire(published.socket, greet=False) as w, Wire(published.socket, greet=False) as old:
        with wire.stopped(published):
            gone = Wire(published.socket, greet=False)
            gone.send(wire.HELLO_ATTACH, wire.BODIES[wire.HELLO_ATTACH].pack(b"m", b"", 0, 0, 0, 0, b"", 1, 0, 0, b"x"))
            gone.close()
            w.send(wire.HELLO, wire.BODIES[wire.HELLO].pack(1, 0, 0, b"x"))
            w.send(wire.PING)
            old.send(wire.HELLO, wire.BODIES[wire.HELLO].pack(1, 0, 0, b"x"))
        assert [w.receive().op for _ in range(2)] == [wire.HELLO | wire.REPLY, wire.PING | wire.REPLY]
        assert old.receive().op == wire.HELLO | wire.REPLY
        assert old.attach("m").bytes()[:len(DATA)] == DATA
        wire.until(lambda: w.ping().n_leases == 1, "the lease of the client that has left is free")


def test_an_older_server_is_asked_once_more_with_two_requests(server, client, memory):
    attaching = later(attach, client, server.path, owner=None)
    server.accept(greet=False).close()
    peer = server.accept()
    assert peer.request(wire.ATTACH).values[0].rstrip(b"\0") == b"m"
    peer.give_lease(memory.version(1))
    with attaching.result(PATIENCE_S):
        assert peer.is_silent()
        peer.close()


def test_an_older_server_is_not_trusted_to_check_the_owner(server, client):
    attaching = later(attach, client, server.path, owner=ctypes.pointer(ctypes.c_uint32(7)))
    server.accept(greet=False).close()
    peer = server.accept()
    with pytest.raises(Failed, match="too old to check the owner") as e:
        attaching.result(PATIENCE_S)
    assert e.value.errno == errno.EOPNOTSUPP and peer.is_silent()


def test_a_server_of_another_protocol_is_named(server, client):
    attaching = later(attach, client, server.path)
    peer = server.accept(greet=False)
    peer.request(wire.HELLO_ATTACH)
    peer.fail(errno.EPROTONOSUPPORT, "weightd 9 speaks version 2")
    with pytest.raises(Failed, match="weightd 9 speaks version 2; libweightd is ") as e:
        attaching.result(PATIENCE_S)
    assert e.value.errno == errno.EPROTONOSUPPORT and not client.is_connected


@pytest.mark.parametrize("n_closes", [1, 20])
def test_a_server_that_hangs_up_gives_the_error_of_connecting(server, client, n_closes):
    attaching = later(attach, client, server.path)
    for _ in range(n_closes):
        server.accept(greet=False).close()
    server.stop()
    with pytest.raises(Failed, match="is lost|no weightd|nothing listens|not running|answers") as e:
        attaching.result(PATIENCE_S)
    assert not client.is_connected and e.value.errno in (errno.ENOTCONN, errno.ENOENT, errno.ECONNREFUSED)


def test_a_reply_to_another_request_is_none(server, client):
    attaching = later(attach, client, server.path)
    peer = server.accept(greet=False)
    peer.request(wire.HELLO_ATTACH)
    peer.op = wire.HELLO
    peer.reply("IIQQ32s", 1, 1, 0, 1, b"0.1.0")
    with pytest.raises(Failed, match="invalid reply") as e:
        attaching.result(PATIENCE_S)
    assert e.value.errno == errno.EBADMSG and not client.is_connected


def test_the_release_before_this_request_is_a_server_and_a_client(make_daemon, client):
    earlier.require()
    daemon = make_daemon(program=earlier.program("weightd"))
    with Client(daemon.socket) as writer:
        writer.publish("m", DATA)
    with attach(client, daemon.socket) as buffer:
        assert buffer.bytes()[:len(DATA)] == DATA and client.is_connected
    assert client.ping().n_leases == 0


def test_an_earlier_client_attaches_as_before(published):
    earlier.require()
    with earlier.Client(published) as old:
        assert old.attach("m") == 1
        old.verify("m")


# --- Connections that end -------------------------------------------------------------------------------


def test_without_a_server_the_error_is_that_of_connecting(client, tmp_path):
    with pytest.raises(Failed, match=str(tmp_path)) as attaching:
        attach(client, tmp_path / "none")
    assert not client.is_connected
    with pytest.raises(Failed) as connecting:
        client.connect(str(tmp_path / "none"))
    assert str(attaching.value) == str(connecting.value)


def test_a_server_that_has_ended_is_connected_to_anew(make_daemon, client):
    daemon = make_daemon()
    with Client(daemon.socket) as writer:
        writer.publish("m", DATA)
    buffer = attach(client, daemon.socket)
    daemon.stop()
    daemon.start()
    with Client(daemon.socket) as writer:
        writer.publish("m", b"anew")
    with attach(client, None) as again:
        assert again.bytes()[:4] == b"anew" and buffer.bytes()[:16] == DATA[:16]
        assert client.ping().n_leases == 1
    buffer.detach()


def test_without_room_for_the_descriptors_the_lease_is_given_back(published, client):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    with Wire(published.socket) as other:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            for _ in range(2):  # one for the socket, one for three
                os.close(taken.pop())
            with pytest.raises(Failed, match="out of descriptors") as e:
                attach(client, published.socket)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken:
                os.close(fd)
        assert e.value.errno == errno.EMFILE and client.is_connected
        assert other.ping().n_leases == 0
    with attach(client, None) as buffer:
        assert buffer.bytes()[:16] == DATA[:16]


# --- The facts of an attachment -----------------------------------------------------------------------


def test_an_attach_returns_all_facts(published, client):
    facts = Attached()
    with attach(client, published.socket, ret_attached=ctypes.pointer(facts)) as buffer:
        again = Attached()
        client.check(lib.weightd_buffer_attached(buffer.handle, ctypes.byref(again)))
        assert bytes(facts) == bytes(again)
        size = ctypes.c_uint64()
        assert facts.data == lib.weightd_buffer_data(buffer.handle, ctypes.byref(size)) and facts.n_bytes == size.value
        assert (facts.name, facts.device, facts.version, facts.n_tensors) == (b"m", b"host", 1, 1)
        assert (facts.memory, facts.data_offset, facts.is_mutable) == (0, 0, False)
        assert facts.layout_hash == lib.weightd_buffer_layout_hash(buffer.handle)
        assert facts.digest == lib.weightd_buffer_digest(buffer.handle) != 0
        assert facts.has_owner and facts.owner == os.getuid()


def test_facts_without_a_size_are_refused_and_leave_no_lease(published, client):
    facts = Attached()
    facts.size = 0
    with pytest.raises(Failed, match="no size") as e:
        attach(client, published.socket, ret_attached=ctypes.pointer(facts))
    assert e.value.errno == errno.EINVAL
    assert client.ping().n_leases == 0
    assert bytes(facts) == bytes(len(bytes(facts)))


@pytest.mark.parametrize("connects", [False, True])
def test_an_attach_connects_only_when_asked(published, connects):
    with Client(restart_ms=0) as client:
        if connects:
            attach(client, published.socket).detach()
        else:
            with pytest.raises(Failed, match="connect first"):
                client.attach("m", socket=published.socket.encode())
        assert client.is_connected == connects

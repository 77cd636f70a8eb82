"""
A library with a server that dies: requests that are repeated, objects that are restored, and those that are given up.
The server is played by the test, so that replies are lost at exact points.
"""
import errno
import os
import struct
import time

import pytest
from lib import wire
from lib.fake_server import PATIENCE_S, FakeServer, Memory, later
from lib.native import Client, Failed

pytestmark = pytest.mark.plain


@pytest.fixture
def server(tmp_path):
    with FakeServer(tmp_path / "fake.sock") as s:
        yield s


@pytest.fixture
def memory():
    with Memory() as m:
        yield m


@pytest.fixture
def meet(server):
    """meet(): a client and the server's end of its connection."""
    clients = []

    def connect(restart_ms=20_000):
        connecting = later(Client, server.path)
        peer = server.accept()
        clients.append(connecting.result(PATIENCE_S))
        clients[-1].set_restart_timeout(restart_ms)  # not before: connecting takes as long as it takes
        return clients[-1], peer

    yield connect
    for client in clients:
        client.close()


def failure(asked):
    with pytest.raises(Failed) as failed:
        asked.result(PATIENCE_S)
    return failed.value


def attached(client, peer, version, lease=7):
    asked = later(client.attach, "m")
    peer.request(wire.ATTACH)
    peer.give_lease(version, lease)
    return asked.result(PATIENCE_S)


def created(client, peer, version, writer=9):
    asked = later(client.create, "m", version.memory.size)
    peer.request(wire.CREATE)
    peer.give_slot(version, writer)
    return asked.result(PATIENCE_S)


# --- Repeated requests --------------------------------------------------------------------------------

ASKED_TWICE = {
    "ping": (lambda c: c.ping().instance, wire.PING, lambda p: p.pong(77), 77),
    "list": (lambda c: c.list(), wire.LIST, lambda p: p.page(), 0),
    "stat": (lambda c: c.stat().headroom, wire.STAT, lambda p: p.reply("9Q", 5, *range(8)), 5),
    "wait": (lambda c: c.wait("m"), wire.WAIT, lambda p: p.reply("Q", 6), 6),
    "rollback": (lambda c: c.rollback("m", 3), wire.ROLLBACK, lambda p: p.reply("Q", 3), 3),
    "access": (lambda c: c.set_access("m", mode=0o600), wire.ACCESS, lambda p: p.reply(), None),
}
ASKED_ONCE = {
    "drop": (lambda c: c.drop("m"), wire.DROP, lambda p: p.reply(), None),
    "relative rollback": (lambda c: c.rollback("m"), wire.ROLLBACK, lambda p: p.reply("Q", 2), 2),
}


@pytest.mark.parametrize("call", ASKED_TWICE)
def test_a_call_whose_answer_was_lost_is_asked_again(server, meet, call):
    ask, op, answer, result = ASKED_TWICE[call]
    client, peer = meet()
    asked = later(ask, client)
    first = peer.request(op)
    peer = server.restart(peer)
    assert peer.request(op).values == first.values
    answer(peer)
    assert asked.result(PATIENCE_S) == result


@pytest.mark.parametrize("call", ASKED_ONCE)
def test_a_call_that_cannot_be_asked_twice_says_that_nobody_knows(server, meet, call):
    ask, op, _, _ = ASKED_ONCE[call]
    client, peer = meet()
    asked = later(ask, client)
    peer.request(op)
    peer = server.restart(peer)
    failed = failure(asked)
    assert failed.errno == errno.ECONNABORTED and "'m'" in failed.sentence and "try again" in failed.sentence
    assert peer.is_silent()
    asked = later(client.ping)  # on the connection that was made meanwhile
    peer.request(wire.PING)
    peer.pong()
    asked.result(PATIENCE_S)


@pytest.mark.parametrize("call", ASKED_TWICE | ASKED_ONCE)
def test_a_connection_that_was_lost_while_nothing_was_asked_is_made_anew(server, meet, call):
    ask, op, answer, result = (ASKED_TWICE | ASKED_ONCE)[call]
    client, peer = meet()
    peer.close()
    asked = later(ask, client)
    peer = server.accept()
    peer.request(op)
    answer(peer)
    assert asked.result(PATIENCE_S) == result


def test_a_server_may_die_many_times_in_one_call(server, meet):
    client, peer = meet()
    asked = later(client.ping)
    for _ in range(20):
        peer.request(wire.PING)
        peer = server.restart(peer)
    peer.request(wire.PING)
    peer.pong(5)
    assert asked.result(PATIENCE_S).instance == 5


def test_a_server_that_does_not_survive_is_not_waited_for(tmp_path):
    with FakeServer(tmp_path / "fake.sock", features=0) as server:
        connecting = later(Client, server.path)
        peer = server.accept()
        with connecting.result(PATIENCE_S) as client:
            asked = later(client.ping)
            peer.request(wire.PING)
            peer.close()
            failed = failure(asked)
            assert failed.errno == errno.ENOTCONN and "connect again" in failed.sentence
            assert failure(later(client.ping)).errno == errno.ENOTCONN
            server.listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.listener.accept()


@pytest.fixture
def older(tmp_path):
    """A client of a server that hangs up at a request for a layout, and the server's end of the connection."""
    with FakeServer(tmp_path / "older.sock", features=0) as server:
        connecting = later(Client, server.path)
        peer = server.accept()
        with connecting.result(PATIENCE_S) as client:
            yield client, peer


def check_kept(client, peer, asked):
    """The failure has the sentence of the server, which was asked nothing more."""
    peer.fail(errno.EPROTOTYPE, "the layout differs")
    failed = failure(asked)
    assert (failed.errno, failed.sentence) == (errno.EPROTOTYPE, "the layout differs")
    asked = later(client.ping)
    peer.request(wire.PING)
    peer.pong()
    assert asked.result(PATIENCE_S).instance == 1


def test_an_older_server_is_not_asked_for_the_layout_that_a_create_differs_from(older):
    client, peer = older
    asked = later(client.create, "m", 4096)
    peer.request(wire.CREATE)
    check_kept(client, peer, asked)


def test_an_older_server_is_not_asked_for_the_layout_that_a_swap_differs_from(older, memory):
    client, peer = older
    memory.flip(1, wire.READY)
    buffer = attached(client, peer, memory.version(1))
    memory.flip(2, wire.READY)
    asked = later(buffer.swap)
    peer.request(wire.ATTACH)
    check_kept(client, peer, asked)


def test_a_server_that_lives_and_hangs_up_each_time_is_given_up(server, meet):
    """One that does not support the operation, for example: the library must not ask it for ever."""
    client, peer = meet()
    asked = later(client.stat)
    peer.request(wire.STAT)
    peer.close()
    peer = server.accept()
    peer.request(wire.STAT)
    peer.close()
    server.accept()
    assert failure(asked).errno == errno.ENOTCONN


def test_the_refusal_of_a_new_server_is_told(server, meet):
    client, peer = meet()
    asked = later(client.ping)
    peer.request(wire.PING)
    peer.close()
    peer = server.accept(greet=False)
    peer.request(wire.HELLO)
    peer.fail(errno.EPROTONOSUPPORT, "another release")
    failed = failure(asked)
    assert failed.errno == errno.EPROTONOSUPPORT and failed.sentence.startswith("another release; libweightd is "), failed


def test_a_first_hello_that_is_lost_is_said_again(server):
    connecting = later(Client, server.path)
    for _ in range(5):
        peer = server.accept(greet=False)
        peer.request(wire.HELLO)
        peer.close()
    server.accept()
    connecting.result(PATIENCE_S).close()


# --- How long it is waited for --------------------------------------------------------------------------


@pytest.mark.parametrize("gap", ["no socket", "a socket that refuses"])
def test_a_server_is_found_as_soon_as_it_is_there(server, meet, gap):
    client, peer = meet()
    server.stop()
    if gap == "a socket that refuses":
        server.bind()
    asked = later(client.ping)
    peer.request(wire.PING)
    peer.close()
    time.sleep(0.3)  # the client looks in vain again and again: no event reports that
    assert not asked.done()
    started = time.monotonic()
    if gap == "no socket":
        server.start()
    else:
        server.listener.listen()
    peer = server.accept()
    assert time.monotonic() - started < 10
    peer.request(wire.PING)
    peer.pong()
    asked.result(PATIENCE_S)


def test_a_new_server_that_dies_before_it_has_greeted_is_tried_again(server, meet):
    client, peer = meet()
    asked = later(client.ping)
    peer.request(wire.PING)
    peer.close()
    for _ in range(3):
        peer = server.accept(greet=False)
        peer.request(wire.HELLO)
        peer.close()
    peer = server.accept()
    peer.request(wire.PING)
    peer.pong()
    asked.result(PATIENCE_S)


@pytest.mark.parametrize("socket_is", ["gone", "silent"])
def test_a_restart_that_takes_too_long_ends_the_call(server, meet, socket_is):
    client, peer = meet(restart_ms=300)
    if socket_is == "gone":
        server.stop()
    asked = later(client.ping)
    peer.request(wire.PING)
    started = time.monotonic()
    peer.close()
    failed = failure(asked)
    assert failed.errno == errno.ENOTCONN and "300 ms" in failed.sentence
    assert 0.25 < time.monotonic() - started < 15


def test_no_restart_timeout_is_no_restart(server, meet):
    client, peer = meet(restart_ms=0)
    asked = later(client.ping)
    peer.request(wire.PING)
    peer.close()
    assert failure(asked).errno == errno.ENOTCONN


@pytest.mark.parametrize("server_is", ["gone", "there again"])
def test_the_time_of_a_wait_includes_the_restart(server, meet, server_is):
    client, peer = meet()
    timeout_ms = 1000 if server_is == "gone" else 60_000
    started = time.monotonic()
    asked = later(client.wait, "m", 0, timeout_ms)
    first = peer.request(wire.WAIT).values[3]
    assert first <= timeout_ms
    if server_is == "gone":
        server.stop()
        peer.close()
        assert failure(asked).errno == errno.ETIMEDOUT
        assert 0.9 < time.monotonic() - started < 15
    else:
        time.sleep(0.3)  # time that the second question must not have
        peer = server.restart(peer)
        assert 0 < peer.request(wire.WAIT).values[3] <= first - 299  # both are rounded up
        peer.fail(errno.ETIMEDOUT)
        assert failure(asked).errno == errno.ETIMEDOUT


def test_the_time_of_an_attach_includes_the_restart(server, meet):
    client, peer = meet()
    asked = later(client.attach, "m", timeout_ms=300)
    peer.request(wire.ATTACH)
    server.stop()
    started = time.monotonic()
    peer.close()
    assert failure(asked).errno == errno.ETIMEDOUT
    assert time.monotonic() - started < 15


def test_a_wait_without_time_still_finds_a_new_server(server, meet):
    client, peer = meet()
    peer.close()
    asked = later(client.wait, "m", 0, 0)
    peer = server.accept()
    assert peer.request(wire.WAIT).values[3] == 0
    peer.reply("Q", 4)
    assert asked.result(PATIENCE_S) == 4


def test_a_load_can_be_cancelled_while_the_server_is_away(server, meet, tmp_path):
    header = b'{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"data")
    client, _ = meet()
    told, cancel = [], []

    def progress(phase):
        told.append(phase)
        return bool(cancel)

    asked = later(client.load, "m", tmp_path / "m.safetensors", progress)
    peer = server.accept()  # the connection of the load itself
    peer.request(wire.CREATE)
    server.stop()
    peer.close()
    n = len(told)
    while len(told) < n + 2:  # called while there is no server
        time.sleep(0.001)
    cancel.append(True)
    assert failure(asked).errno == errno.ECANCELED
    server.start()


# --- Restored objects -----------------------------------------------------------------------------------


def test_leases_are_renewed_and_ended_by_their_new_numbers(server, meet, memory):
    client, peer = meet()
    one = attached(client, peer, memory.version(1, b"one"), lease=7)
    two = attached(client, peer, memory.version(2, b"two"), lease=8)
    asked = later(client.ping)
    peer.request(wire.PING)
    peer = server.restart(peer)
    for version, lease in (1, 70), (2, 80):
        assert peer.request(wire.RENEW).values == (memory.buffer, version)
        peer.reply("Q", lease)
    peer.request(wire.PING)
    peer.pong()
    asked.result(PATIENCE_S)
    for buffer, lease in (two, 80), (one, 70):
        asked = later(buffer.detach)
        assert peer.request(wire.DETACH).values == (lease,)
        peer.reply()
        asked.result(PATIENCE_S)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ESTALE, errno.EACCES])
def test_an_attachment_goes_on_without_a_lease(server, meet, memory, code):
    client, peer = meet()
    buffer = attached(client, peer, memory.version(1, b"bytes"))
    asked = later(client.ping)
    peer.request(wire.PING)
    peer = server.restart(peer)
    peer.request(wire.RENEW)
    peer.fail(code)
    peer.request(wire.PING)
    peer.pong()
    asked.result(PATIENCE_S)
    assert buffer.bytes()[:5] == b"bytes"
    buffer.detach()  # and sends nothing
    asked = later(client.ping)
    peer = server.restart(peer)
    peer.request(wire.PING)  # nor is there a second RENEW
    peer.pong()
    asked.result(PATIENCE_S)


def test_a_server_that_dies_while_leases_are_renewed_is_waited_for_again(server, meet, memory):
    client, peer = meet()
    with attached(client, peer, memory.version(1)):
        asked = later(client.ping)
        peer.request(wire.PING)
        for _ in range(3):
            peer = server.restart(peer)
            peer.request(wire.RENEW)
        peer.reply("Q", 70)
        peer.request(wire.PING)
        peer.pong()
        asked.result(PATIENCE_S)
        peer.close()


def test_detaching_without_a_server_waits_for_nobody(server, meet, memory):
    client, peer = meet()
    buffer = attached(client, peer, memory.version(1))
    server.stop()
    peer.close()
    started = time.monotonic()
    buffer.detach()
    assert time.monotonic() - started < 15


def test_an_attach_whose_answer_was_lost_is_asked_again(server, meet, memory):
    client, peer = meet()
    asked = later(client.attach, "m")
    first = peer.request(wire.ATTACH)
    peer = server.restart(peer)
    assert peer.request(wire.ATTACH).values == first.values
    peer.give_lease(memory.version(1, b"bytes"))
    with asked.result(PATIENCE_S) as buffer:
        assert buffer.bytes()[:5] == b"bytes"
        peer.close()


def test_a_create_is_asked_again_with_its_cookie_and_layout(server, meet, memory):
    client, peer = meet()
    asked = later(client.create, "m", 4096)
    first = peer.request(wire.CREATE)
    layout = os.pread(first.fds[0], 1 << 16, 0)
    peer = server.restart(peer)
    again = peer.request(wire.CREATE)
    assert again.values == first.values and again.values[2] != 0
    assert os.pread(again.fds[0], 1 << 16, 0) == layout
    peer.give_slot(memory.version(1))
    with asked.result(PATIENCE_S):
        peer.close()
        server.stop()
        client.set_restart_timeout(0)


def test_cookies_differ(server, meet):
    client, peer = meet()
    cookies = set()
    for _ in range(4):
        asked = later(client.create, "m")
        cookies.add(peer.request(wire.CREATE).values[2])
        peer.fail(errno.EBUSY)
        assert failure(asked).errno == errno.EBUSY
    assert len(cookies) == 4


def test_a_writer_goes_on_after_a_restart(server, meet, memory):
    client, peer = meet()
    version = memory.version(5)
    writer = created(client, peer, version)
    writer.write(b"half of ")
    asked = later(client.ping)
    peer.request(wire.PING)
    peer = server.restart(peer)
    assert peer.request(wire.RESUME).values == (9,)
    peer.reply("QQ", memory.buffer, 0)
    peer.request(wire.PING)
    peer.pong()
    asked.result(PATIENCE_S)
    writer.write(b"all of it")
    asked = later(writer.publish)
    assert peer.request(wire.PUBLISH).values[0] == 9
    peer.reply("Q", 5)
    assert asked.result(PATIENCE_S) == 5
    assert os.pread(version.slot_fd, 9, 0) == b"all of it"
    peer.close()
    server.stop()
    writer.free()


@pytest.mark.parametrize("committed", [False, True])
def test_a_publish_whose_answer_was_lost(server, meet, memory, committed):
    client, peer = meet()
    writer = created(client, peer, memory.version(5))
    writer.write(b"bytes")
    asked = later(writer.publish)
    first = peer.request(wire.PUBLISH)
    peer = server.restart(peer)
    peer.request(wire.RESUME)
    peer.reply("QQ", memory.buffer, 5 if committed else 0)
    if not committed:
        assert peer.request(wire.PUBLISH).values == first.values
        peer.reply("Q", 5)
    assert asked.result(PATIENCE_S) == 5
    assert writer.bytes()[:5] == b"bytes"
    asked = later(client.ping)  # the published version is a lease now, and is renewed as one
    peer = server.restart(peer)
    assert peer.request(wire.RENEW).values == (memory.buffer, 5)
    peer.reply("Q", 90)
    peer.request(wire.PING)
    peer.pong()
    asked.result(PATIENCE_S)
    asked = later(writer.free)
    assert peer.request(wire.DETACH).values == (90,)
    peer.reply()
    asked.result(PATIENCE_S)


def test_a_publish_is_found_done_by_a_later_call(server, meet, memory):
    """The restart took too long for the publish, and the commit had happened before it."""
    client, peer = meet(restart_ms=100)
    writer = created(client, peer, memory.version(5))
    asked = later(writer.publish)
    peer.request(wire.PUBLISH)
    server.stop()
    peer.close()
    assert failure(asked).errno == errno.ENOTCONN
    client.set_restart_timeout(20_000)
    server.start()
    asked = later(client.ping)
    peer = server.accept()
    peer.request(wire.RESUME)
    peer.reply("QQ", memory.buffer, 5)
    peer.request(wire.PING)
    peer.pong()
    asked.result(PATIENCE_S)
    assert writer.publish() == 5
    assert peer.is_silent()
    peer.close()
    writer.free()


@pytest.mark.parametrize("when", ["while it was written", "while it was published"])
def test_a_writer_that_the_server_has_lost_says_so(server, meet, memory, when):
    client, peer = meet()
    writer = created(client, peer, memory.version(5))
    writer.write(b"bytes")
    asked = later(client.ping if when == "while it was written" else writer.publish)
    peer.request()
    peer = server.restart(peer)
    peer.request(wire.RESUME)
    peer.fail(errno.ENOENT, "its memory did not come back")
    if when == "while it was written":
        peer.request(wire.PING)
        peer.pong()
        asked.result(PATIENCE_S)
        asked = later(writer.publish)
    failed = failure(asked)
    assert failed.errno == errno.ESTALE and "its memory did not come back" in failed.sentence
    writer.write(b"nobody minds")
    writer.abort()
    writer.free()
    assert peer.is_silent()


@pytest.mark.parametrize("outcome", ["unpublished", "lost"])
def test_an_abort_across_a_restart(server, meet, memory, outcome):
    client, peer = meet()
    writer = created(client, peer, memory.version(5))
    asked = later(writer.abort)
    peer.request(wire.ABORT)
    peer = server.restart(peer)
    peer.request(wire.RESUME)
    if outcome == "lost":
        peer.fail(errno.ENOENT)
    else:
        peer.reply("QQ", memory.buffer, 0)
        peer.request(wire.ABORT)
        peer.reply()
    asked.result(PATIENCE_S)
    writer.free()
    assert peer.is_silent()


def test_a_child_leaves_the_connection_of_its_parent_alone(server, meet, memory):
    client, peer = meet()
    with attached(client, peer, memory.version(1, b"bytes")) as buffer:
        peer.close()
        pid = os.fork()
        if pid == 0:
            try:
                client.ping()
            except Failed as failed:
                os._exit(0 if failed.errno == errno.ECHILD and buffer.bytes()[:5] == b"bytes" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        server.stop()


def test_connecting_to_another_server_takes_nothing_along(server, meet, memory, tmp_path):
    client, peer = meet()
    buffer = attached(client, peer, memory.version(1, b"bytes"))
    writer = created(client, peer, memory.version(2))
    with FakeServer(tmp_path / "other.sock") as other:
        asked = later(client.connect, other.path)
        stranger = other.accept()
        asked.result(PATIENCE_S)
        assert failure(later(writer.publish)).errno == errno.ESTALE
        writer.free()
        assert buffer.bytes()[:5] == b"bytes"
        buffer.detach()
        assert stranger.is_silent()


# --- Events -----------------------------------------------------------------------------------------------


def event(serial, kind, name=b"m", version=1, why=0):
    return struct.pack("<128s64s3Q4I", name, b"host", serial, 5, version, wire.EVENTS_BY_NAME[kind], why, 1, 2)


@pytest.fixture
def watch(server, meet):
    """A watch that has skipped two events, and the server's end of its connection."""
    client, _ = meet()
    making = later(client.watch)
    peer = server.accept()
    assert peer.request(wire.EVENTS).values == (0, 0)
    peer.page([event(1, "created"), event(2, "published")], next_=2)
    assert peer.request(wire.EVENTS).values == (2, 0)
    peer.fail(errno.ETIMEDOUT)
    with making.result(PATIENCE_S) as w:
        yield w, peer


def test_a_watch_tells_what_happens_from_now_on(watch):
    watch, peer = watch
    asked = later(watch.next)
    assert peer.request(wire.EVENTS).values[0] == 2
    peer.page([], next_=4)  # events of buffers that we must not see
    assert peer.request(wire.EVENTS).values[0] == 4
    peer.page([event(5, "published", version=3), event(6, "version-gone", version=1, why=1)], next_=6)
    assert asked.result(PATIENCE_S) == ("published", "m", 3, "")
    assert watch.next(0) == ("version-gone", "m", 1, "keep")
    asked = later(watch.next)
    peer.request(wire.EVENTS)
    peer.page([event(9, "missed", name=b"", version=0)], next_=9)
    assert asked.result(PATIENCE_S)[0] == "missed"
    asked = later(watch.next, 20_000)
    assert peer.request(wire.EVENTS).values[1] in range(1, 20_001)
    peer.fail(errno.ETIMEDOUT)
    assert failure(asked).errno == errno.ETIMEDOUT


def test_a_watch_tells_that_the_server_was_started_anew(server, watch):
    watch, peer = watch
    asked = later(watch.next)
    peer.request(wire.EVENTS)
    peer = server.restart(peer)
    assert asked.result(PATIENCE_S)[:2] == ("restarted", "")
    asked = later(watch.next)
    assert peer.request(wire.EVENTS).values[0] == 0  # all that the new one remembers
    peer.page([event(1, "published", version=9)], next_=1)
    assert asked.result(PATIENCE_S) == ("published", "m", 9, "")


def test_a_watch_that_was_cut_off_goes_on_where_it_was(server, watch):
    watch, peer = watch
    asked = later(watch.next)
    peer.request(wire.EVENTS)
    peer.close()
    peer = server.accept()  # the same server
    assert peer.request(wire.EVENTS).values[0] == 2
    peer.page([event(3, "removed")], next_=3)
    assert asked.result(PATIENCE_S)[0] == "removed"

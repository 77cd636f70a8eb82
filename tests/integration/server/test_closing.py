"""Descriptors that hang in close(): the user that sent them waits, and no other."""
import contextlib
import os
import pathlib
import socket

import pytest
from lib import wire
from lib.child import Child, run_as
from lib.wire import Closed, Refused, Wire, image, stopped, stuck_socket, until

ALICE, BOB = 12345, 12346
LAYOUT = image([("t", 64)])
MANY = 100  # more than a user may have in a thread that is stuck
LANES = 32  # threads at most


def n_threads(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/task"))


def children_of(daemon):
    return pathlib.Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()


def send_stuck(pipe, path, n_empty):
    """
    Sends a descriptor that hangs, behind empty packets, so that the last close is weightd's; until a word, when it lets go.
    """
    with Wire(path) as w:
        pipe.send("connected")
        pipe.recv()
        fd, let_go = stuck_socket()
        for _ in range(n_empty):
            w.socket.send(b"")
        w.send(wire.PING, b"", [fd])
        os.close(fd)
        w.close()
        pipe.send("sent")
        pipe.recv()
        let_go()
        pipe.send("let go")


def start_stuck(daemon, uids, n_empty=0):
    """Children of these users, whose descriptors weightd tries to close."""
    children = [Child(send_stuck, daemon.socket, n_empty, uid=uid) for uid in uids]
    for child in children:
        assert child.hear() == "connected"
    with stopped(daemon):
        for child in children:
            child.say("send")
            assert child.hear() == "sent"
    return children


def send_many(path):
    """Packets that nobody asked for, with descriptors whose close ends at once."""
    with open("/dev/null") as null:
        for _ in range(MANY // 10):
            with Wire(path) as w:
                w.send(wire.PING, b"", [null.fileno()] * 10)
                w.hang_up()


@pytest.fixture
def daemon(make_daemon, require):
    require("root")
    return make_daemon("--socket-mode", "0666")


@pytest.mark.threads
def test_a_descriptor_that_hangs_holds_up_no_other_user(daemon):
    with Wire(daemon.socket) as root:
        before = daemon.n_fds(), n_threads(daemon)
        child, = start_stuck(daemon, [ALICE])
        with child:
            until(lambda: root.ping().n_sessions == 1, "its session is over")
            run_as(BOB, send_many, daemon.socket)
            until(lambda: daemon.n_fds() <= before[0] + 2, lambda: f"{daemon.n_fds()} descriptors, before {before[0]}")
            run_as(BOB, lambda: Wire(daemon.socket).close())
            child.say("let go")
            assert child.hear() == "let go"
            until(lambda: (daemon.n_fds(), n_threads(daemon)) == before,
                  lambda: f"{daemon.n_fds()} descriptors, {n_threads(daemon)} threads, before {before}")


def test_one_behind_empty_packets_neither(daemon):
    """weightd takes the first one for the end, and must not take the next one for it when it closes the connection."""
    with Wire(daemon.socket) as root:
        child, = start_stuck(daemon, [ALICE], n_empty=2)
        with child:
            until(lambda: root.ping().n_sessions == 1, "its session is over")
            run_as(BOB, lambda: Wire(daemon.socket).close())
            child.say("let go")
            assert child.hear() == "let go"


@pytest.mark.threads
def test_the_user_itself_is_refused_after_many_and_served_when_it_lets_go(daemon):
    child, = start_stuck(daemon, [ALICE])

    def is_served():
        try:
            Wire(daemon.socket).close()
            return True
        except Refused as e:
            assert "descriptors that this user sent cannot be closed" in e.sentence
            return False
        except Closed:  # it was let in just before that was known
            return False

    def send_until_refused():
        with contextlib.suppress(Refused, Closed):
            send_many(daemon.socket)

    with child:
        run_as(ALICE, send_until_refused)
        run_as(ALICE, until, lambda: not is_served(), "it is refused")
        assert run_as(BOB, is_served)
        child.say("let go")
        run_as(ALICE, until, is_served, "it is served again")


def connect_many(pipe, path):
    """Connections whose one packet has a descriptor that hangs: weightd ends them without reading it."""
    pipe.recv()
    sockets = []
    with contextlib.ExitStack() as stack:
        for _ in range(MANY):
            fd, let_go = stuck_socket()
            stack.callback(let_go)
            s = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            s.connect(path)
            socket.send_fds(s, [b"x"], [fd])
            os.close(fd)
            sockets.append(s)
        pipe.send("sent")
        for s in sockets:
            with contextlib.suppress(ConnectionResetError):
                while s.recv(4096):
                    pass
        pipe.send("ended")
        pipe.recv()


@pytest.mark.threads
def test_connections_that_are_refused_meanwhile_use_up_no_descriptors(daemon):
    def refused():
        with contextlib.suppress(Refused, Closed):
            send_many(daemon.socket)
            Wire(daemon.socket).close()
            return False
        return True

    child, = start_stuck(daemon, [ALICE])
    with child, Child(connect_many, daemon.socket, uid=ALICE) as crowd:
        run_as(ALICE, until, refused, "it is refused")
        before = daemon.n_fds()
        with stopped(daemon):
            crowd.say("connect")
            assert crowd.hear() == "sent"
        assert crowd.hear() == "ended"
        until(lambda: daemon.n_fds() <= before, lambda: f"{daemon.n_fds()} descriptors, before {before}")
        run_as(BOB, lambda: Wire(daemon.socket).close())
        until(lambda: not children_of(daemon), lambda: f"weightd has children: {children_of(daemon)}")


@pytest.mark.threads
def test_threads_are_bounded_and_who_waits_for_one_gets_it(daemon):
    with Wire(daemon.socket) as root:
        before = daemon.n_fds(), n_threads(daemon)
        children = start_stuck(daemon, range(ALICE, ALICE + LANES))
        try:
            until(lambda: n_threads(daemon) == before[1] + LANES - 1, lambda: n_threads(daemon))
            late = start_stuck(daemon, [ALICE + LANES])
            children += late
            until(lambda: root.ping().n_sessions == 1, "its session is over")
            assert n_threads(daemon) == before[1] + LANES - 1
            for child in children:
                child.say("let go")
            until(lambda: (daemon.n_fds(), n_threads(daemon)) == before,
                  lambda: f"{daemon.n_fds()} descriptors, {n_threads(daemon)} threads, before {before}")
        finally:
            for child in children:
                child.kill()


def send_behind_stuck(pipe, path):
    """As send_stuck(), and behind it more descriptors than weightd may have open."""
    wires = [Wire(path) for _ in range(20)]
    pipe.send("connected")
    pipe.recv()
    fd, let_go = stuck_socket()
    wires[0].send(wire.PING, b"", [fd])
    os.close(fd)
    with open("/dev/null") as null:
        for w in wires:
            w.send(wire.PING, b"", [null.fileno()] * 200)
    pipe.send("sent")
    pipe.recv()
    let_go()
    for w in wires:
        w.hang_up()
    pipe.send("closed")


@pytest.mark.threads
def test_nothing_more_is_read_from_a_user_with_many_descriptors_to_close(make_daemon, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666", prefix=("prlimit", "--nofile=1024:1024"))
    with Wire(daemon.socket) as root, Child(send_behind_stuck, daemon.socket, uid=ALICE) as child:
        assert child.hear() == "connected"
        before = daemon.n_fds()
        with stopped(daemon):
            child.say("send")
            assert child.hear() == "sent"
        most, is_stuck = 0, False
        while not is_stuck:
            is_stuck = root.ping().n_sessions == 1  # the thread is known to be
            most = max(most, daemon.n_fds() - before)
            root.abort(root.create("m", LAYOUT).writer)
        assert 1 < most < 500
        child.say("let go")
        assert child.hear() == "closed"
        until(lambda: daemon.n_fds() < before, lambda: f"{daemon.n_fds()} descriptors, before {before}")
        run_as(ALICE, lambda: Wire(daemon.socket).close())

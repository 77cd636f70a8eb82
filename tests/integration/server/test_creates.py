"""Creates of many or big layouts: what they cost weightd, and what they cost another user."""
import contextlib
import os

import pytest
from lib import wire
from lib.child import Child
from lib.wire import Refused, Wire, image, memfd, stopped, until

MIB = 1 << 20
ATTACKER, OTHER = 12345, 12346
SMALL = image([("t", MIB)])


@pytest.fixture(scope="module")
def big():
    """A layout of 64 MiB, as a descriptor."""
    fd = memfd(image([("t", 1)], padding=64 * MIB))  # and some bytes
    yield fd
    os.close(fd)


def most_resident(daemon):
    """The most that ever was, in bytes."""
    return int(daemon.status().split("VmHWM:")[1].split()[0]) << 10


def send_creates(wires, layout):
    """One on each of these connections."""
    for i, w in enumerate(wires):
        w.send_create(f"m{i}", layout)


def test_creates_of_big_layouts_make_little_of_them_resident(daemon, big):
    with Wire(daemon.socket) as w:
        w.abort(w.create("first", SMALL).writer)
    before = most_resident(daemon)
    wires = [Wire(daemon.socket) for _ in range(40)]
    send_creates(wires, big)
    for w in wires:
        with w:
            w.slot(w.answer(wire.CREATE))
    grown = most_resident(daemon) - before
    assert grown < 48 * MIB, f"{grown / MIB:.0f} MiB more were resident"


def attack(pipe, path, layout, n):
    wires = [Wire(path) for _ in range(n)]
    pipe.send("connected")
    pipe.recv()
    send_creates(wires, layout)
    pipe.send("sent")
    create_some(pipe, path)


@contextlib.contextmanager
def attacked(daemon, layout, n):
    """n creates of the attacker, all of which weightd has still to check."""
    with Child(attack, daemon.socket, layout, n, uid=ATTACKER) as attacker:
        assert attacker.hear() == "connected"
        with stopped(daemon):
            attacker.say("send")
            assert attacker.hear() == "sent"
        yield attacker


def create_some(pipe, path):
    """At each word."""
    layout = memfd(SMALL)
    with Wire(path) as w:
        while pipe.recv():
            for _ in range(2):
                w.abort(w.create("small", layout).writer)
            pipe.send("created")


@pytest.fixture
def open_daemon(require, make_daemon, tmp_path):
    """One that every user may connect to, with any number of requests in work."""
    require("root")
    config = tmp_path / "weightd.conf"
    config.write_text("[limits]\nrequests = unlimited\n")
    return make_daemon("--socket-mode", "0666", "--config", config)


def checking(daemon, uid):
    """The number of a user's layouts that are being checked; for layouts of 64 MiB."""
    with Wire(daemon.socket, features=wire.WITH_COSTS) as w:
        return sum(c.checking_bytes // (64 * MIB) for c in w.list(wire.COSTS) if c.uid == uid)


def test_creates_of_one_user_do_not_delay_those_of_another(open_daemon, big):
    with attacked(open_daemon, big, 400) as attacker:
        until(lambda: checking(open_daemon, ATTACKER) > 300, "most are being checked")

        def cpu_s(child):
            """Time of weightd until its creates are done, which goes to the layouts of the attacker until their turn comes."""
            before = open_daemon.cpu_s()
            child.say("create")
            assert child.hear() == "created"
            return open_daemon.cpu_s() - before

        with Child(create_some, open_daemon.socket, uid=OTHER) as other:
            of_other = cpu_s(other)
        of_attacker = cpu_s(attacker)
        assert checking(open_daemon, ATTACKER) > 0, "the attack was over before"
        assert of_other < of_attacker / 2, f"{of_other} s for creates of another user, {of_attacker} s for as many of the attacker"


def test_a_check_is_charged_to_its_user(open_daemon, big):
    with attacked(open_daemon, big, 30):
        until(lambda: checking(open_daemon, ATTACKER) > 0, "some are being checked")
        until(lambda: checking(open_daemon, ATTACKER) == 0, "all are checked")
        with Wire(open_daemon.socket, features=wire.WITH_COSTS) as w:
            cost = next(c for c in w.list(wire.COSTS) if c.uid == ATTACKER)
        assert cost.worker_ns > 0 and cost.checking_bytes == 0


def test_checks_end_with_their_client(open_daemon, big):
    with attacked(open_daemon, big, 400) as attacker:
        until(lambda: checking(open_daemon, ATTACKER) > 300, "most are being checked")
        attacker.kill()
        until(lambda: checking(open_daemon, ATTACKER) == 0, "none is left")
    with Wire(open_daemon.socket) as w:
        until(lambda: not w.names(), lambda: f"buffers are left: {w.names()}")


def test_a_broken_big_layout_is_refused_like_a_small_one(daemon, big):
    broken = bytearray(os.pread(big, os.fstat(big).st_size, 0))
    broken[-1] ^= 1
    with Wire(daemon.socket) as w:
        with pytest.raises(Refused, match="entry 0: its hash does not match"):
            w.create("m", bytes(broken))
        assert not w.names()

"""Creates of many or big layouts: what they cost weightd, and what they cost another user."""
import os

import pytest
from lib import wire
from lib.child import Child
from lib.wire import Refused, Wire, image, memfd, until

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


def create_at_once(path, layout, n):
    """Sends a create on each of n connections, and returns these."""
    wires = [Wire(path) for _ in range(n)]
    for i, w in enumerate(wires):
        w.send_create(f"m{i}", layout)
    return wires


def test_creates_of_big_layouts_make_little_of_them_resident(daemon, big):
    with Wire(daemon.socket) as w:
        w.abort(w.create("first", SMALL).writer)
    before = most_resident(daemon)
    for w in create_at_once(daemon.socket, big, 40):
        with w:
            w.slot(w.answer(wire.CREATE))
    grown = most_resident(daemon) - before
    assert grown < 48 * MIB, f"{grown / MIB:.0f} MiB more were resident"


def attack(pipe, path, layout, n):
    wires = create_at_once(path, layout, n)
    pipe.send("sent")
    pipe.recv()
    assert wires


def create_some(pipe, path, n):
    layout = memfd(SMALL)
    with Wire(path) as w:
        for i in range(n):
            w.abort(w.create(f"other{i}", layout).writer)
    pipe.send("created")


@pytest.fixture
def open_daemon(require, make_daemon):
    """One that every user may connect to."""
    require("root")
    return make_daemon("--socket-mode", "0666")


def checking(daemon, uid):
    """The number of a user's layouts that are being checked; for layouts of 64 MiB."""
    with Wire(daemon.socket, features=wire.WITH_COSTS) as w:
        return sum(c.checking_bytes // (64 * MIB) for c in w.list(wire.COSTS) if c.uid == uid)


def test_creates_of_one_user_do_not_delay_those_of_another(open_daemon, big):
    with Child(attack, open_daemon.socket, big, 400, uid=ATTACKER) as attacker:
        attacker.hear()
        until(lambda: checking(open_daemon, ATTACKER) > 300, "most are being checked")
        # Time of the processor: each of these creates takes half a second of it in turn with all others.
        before = open_daemon.cpu_s()
        with Child(create_some, open_daemon.socket, 5, uid=OTHER) as other:
            other.hear()
        took = open_daemon.cpu_s() - before
        assert checking(open_daemon, ATTACKER) > 0, "the attack was over before"
        assert took < 1, f"weightd took {took} s for 5 creates of another user"


def test_a_check_is_charged_to_its_user(open_daemon, big):
    with Child(attack, open_daemon.socket, big, 30, uid=ATTACKER) as attacker:
        attacker.hear()
        until(lambda: checking(open_daemon, ATTACKER) > 0, "some are being checked")
        until(lambda: checking(open_daemon, ATTACKER) == 0, "all are checked")
        with Wire(open_daemon.socket, features=wire.WITH_COSTS) as w:
            cost = next(c for c in w.list(wire.COSTS) if c.uid == ATTACKER)
        assert cost.worker_ns > 0 and cost.checking_bytes == 0


def test_checks_end_with_their_client(open_daemon, big):
    with Child(attack, open_daemon.socket, big, 400, uid=ATTACKER) as attacker:
        attacker.hear()
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

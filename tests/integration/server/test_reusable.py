"""Reused slots: the users that get them, and their content then."""
import errno
import os
import socket

import pytest
from lib import wire
from lib.child import run_as
from lib.scene import LAYOUT, PAGE, SLOT, Scene, finish, ledger, publish, refusal, repeated
from lib.wire import EXCLUSIVE, NEW_LAYOUT, REPLACE, REUSABLE, Wire, image, until

OWNER, OTHER = 12345, 12346
SECRET = repeated(b"secret")
ZEROS = bytes(PAGE)


@pytest.fixture
def scene(make_daemon):
    with Scene(make_daemon("--socket-mode", "0666")) as s:
        yield s


@pytest.fixture
def root_only(require):
    require("root")


def prepare(w, **kw):
    """A reusable buffer in which version 1, of secret bytes, has left its slot behind; version 2 is current."""
    publish(w, pattern=b"secret", flags=REUSABLE, keep=1, **kw)
    publish(w, pattern=b"new")


@pytest.fixture
def spare(scene):
    """A scene of such a buffer."""
    prepare(scene.watcher, mode=0o666)
    until(lambda: scene.slots("version", "state") == [(1, wire.KEPT), (2, wire.CURRENT)], scene.slots)
    return scene


def create(w, **kw):
    """A slot, and the page of bytes that its writer finds in it."""
    slot = w.create("m", kw.pop("layout", LAYOUT), **kw)
    return slot, os.pread(slot.fd, PAGE, 0)


def create_anew(path, **kw):
    """The content that a writer on its own connection finds; it gives up then."""
    with Wire(path) as w:
        slot, found = create(w, **kw)
        w.abort(slot.writer)
        return found


def test_a_slot_is_used_again_with_its_bytes(spare):
    old = {s.version: s.slot for s in spare.slots()}
    w = spare.connect()
    slot, found = create(w)
    assert slot.flags == wire.IS_REUSABLE and found == SECRET
    assert spare.slots("slot", "state") == [(old[1], wire.WRITING), (old[2], wire.CURRENT)]
    assert finish(w, slot, b"third") == 3
    assert w.attach("m").bytes() == repeated(b"third")
    until(lambda: spare.slots("slot", "version", "state") ==
          [(old[1], 3, wire.CURRENT), (old[2], 2, wire.KEPT)], spare.slots)
    history = spare.watcher.list(wire.HISTORY, "m")
    assert [(v.version, v.why) for v in history] == [(1, wire.BY_KEEP), (2, wire.BY_KEEP), (3, 0)]


def test_two_slots_are_enough_for_ever(spare):
    w = spare.connect()
    known = {s.slot for s in spare.slots()}
    before = ledger(w)
    for n in range(3, 40):
        assert publish(w, pattern=b"n%d " % n) == n
        lease = w.attach("m")
        assert lease.bytes() == repeated(b"n%d " % n)
        w.detach(lease.lease)
        assert {s.slot for s in spare.slots()} == known
    assert ledger(w) == before


def test_a_sealed_buffer_has_new_slots(scene):
    w = scene.connect()
    publish(w, pattern=b"secret", keep=1)
    publish(w, pattern=b"new")
    until(lambda: scene.slots("version") == [(2,)], "its slot is free")
    assert create(w)[1] == ZEROS


# --- Users ------------------------------------------------------------------------------------------


def test_another_user_gets_zeros(spare, root_only):
    path = spare.daemon.socket
    assert run_as(OTHER, lambda: create_anew(path, owner=0)) == ZEROS
    assert create_anew(path) == ZEROS, "and what was left of it is free"


def test_what_another_user_wrote_into_it_is_not_found_either(spare, root_only):
    """Not even by the user that made the slot, and is charged for it."""
    path = spare.daemon.socket

    def write():
        with Wire(path) as w:
            return publish(w, pattern=b"theirs", owner=0)

    assert run_as(OTHER, write) == 3  # in a slot of its own: the spare was not for it
    assert publish(spare.watcher) == 4
    until(lambda: sorted(s.version for s in spare.slots()) == [3, 4], spare.slots)
    assert create_anew(path) == ZEROS


@pytest.mark.parametrize("change", [dict(mode=0o644), dict(mode=0o666), dict(gid=7), dict(uid=OTHER)])
def test_after_a_change_of_permissions_it_is_not_used_again(spare, change, root_only):
    w = spare.connect()
    w.access("m", **change)
    until(lambda: spare.slots("version") == [(2,)], "its slot is free")
    owner = change.get("uid", 0)
    publish(w, pattern=b"third", owner=owner)
    until(lambda: spare.slots("version") == [(3,)], "so is that of the version from before")
    assert create_anew(spare.daemon.socket, owner=owner) == ZEROS
    publish(w, owner=owner)
    until(lambda: [s.version for s in spare.slots()] == [3, 4], "what was published since is kept")
    assert create_anew(spare.daemon.socket, owner=owner) == repeated(b"third")


def test_permissions_that_change_while_it_is_written_keep_it_from_being_read(scene, root_only):
    """Its old bytes were for the readers that were allowed then."""
    w = scene.connect()
    prepare(w, mode=0o600)
    until(lambda: [s.version for s in scene.slots()] == [1, 2], scene.slots)
    slot, found = create(w)
    assert found == SECRET
    scene.watcher.access("m", mode=0o644)
    assert refusal(w.publish, slot.writer) == errno.ESTALE
    w.abort(slot.writer)

    def read():
        with Wire(scene.daemon.socket) as other:
            return other.attach("m").version

    assert run_as(OTHER, read) == 2
    assert publish(w, pattern=b"third") == 3


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
def test_so_they_do_across_a_restart(make_daemon, before):
    with Scene(make_daemon("--keeper")) as scene:
        prepare(scene.watcher, mode=0o600)
        until(lambda: sorted(s.version for s in scene.slots()) == [1, 2], scene.slots)
        slot, found = create(scene.connect())
        assert found == SECRET
        if before:
            scene.watcher.access("m", mode=0o644)
        scene.restart()
        w = scene.connect()
        assert w.resume(slot.writer) == 0
        if not before:
            scene.watcher.access("m", mode=0o644)
        assert refusal(w.publish, slot.writer) == errno.ESTALE
        w.abort(slot.writer)
        assert publish(w) == 3


def test_a_slot_is_used_again_after_a_restart(make_daemon):
    with Scene(make_daemon("--keeper")) as scene:
        prepare(scene.watcher)
        until(lambda: scene.slots("state") == [(wire.KEPT,), (wire.CURRENT,)], scene.slots)
        scene.restart()
        until(lambda: scene.slots("state") == [(wire.KEPT,), (wire.CURRENT,)], scene.slots)
        w = scene.connect()
        slot, found = create(w)
        assert found == SECRET
        finish(w, slot)


def test_permissions_that_change_while_a_new_slot_is_written_are_nothing_to_it(scene):
    w = scene.connect()
    slot = w.create("m", LAYOUT, flags=REUSABLE)
    scene.watcher.access("m", mode=0o644)
    assert finish(w, slot) == 1


# --- Only without users -----------------------------------------------------------------------------


def mapped(lease):
    return lease.map().close


def duplicated(lease):
    fd = os.dup(lease.slot_fd)
    return lambda: os.close(fd)


def in_flight(lease):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    socket.send_fds(ours, [b"!"], [lease.slot_fd])
    return lambda: (ours.close(), theirs.close())


def forked(lease):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    os.close(ours)
    return lambda: (os.close(theirs), os.waitpid(pid, 0))


HOLDS = {"a mapping": mapped, "another descriptor": duplicated, "a descriptor in flight": in_flight,
         "a forked child": forked}


@pytest.mark.parametrize("hold", HOLDS)
def test_a_slot_that_somebody_holds_without_a_lease_is_not_used_again(scene, hold):
    w = scene.connect()
    publish(w, pattern=b"secret", flags=REUSABLE, keep=1)
    lease = w.attach("m")
    release = HOLDS[hold](lease)
    w.detach(lease.lease)
    publish(w, pattern=b"new")
    scene.settle()
    assert scene.slots("version", "state") == [(1, wire.ORPHAN), (2, wire.CURRENT)]
    assert create_anew(scene.daemon.socket) == ZEROS
    release()
    until(lambda: scene.slots("version", "state") == [(1, wire.KEPT), (2, wire.CURRENT)], scene.slots)
    assert create_anew(scene.daemon.socket) == SECRET


def test_who_still_has_it_open_for_writing_holds_it_too(scene):
    w = scene.connect()
    first = w.create("m", LAYOUT, flags=REUSABLE, keep=1)
    w.publish(first.writer, wire.fill(first, b"secret"))
    w.ask(wire.DETACH, first.writer)
    publish(w)
    scene.settle()
    assert create_anew(scene.daemon.socket) == ZEROS
    w.forget([first.fd, first.reader_fd])
    until(lambda: scene.slots("version", "state")[0] == (1, wire.KEPT), scene.slots)


def test_a_lease_keeps_it_from_being_used_again(scene):
    reader, w = scene.connect(2)
    publish(w, pattern=b"secret", flags=REUSABLE, keep=1)
    lease = reader.attach("m")
    for n in range(2, 6):
        publish(w, pattern=b"new")
        assert lease.bytes() == SECRET
    reader.detach(lease.lease)


def test_what_waits_to_be_used_again_cannot_be_had_back(spare):
    buffer = spare.watcher.attach("m").buffer
    w = spare.connect()
    assert refusal(w.renew, buffer, 1) == errno.ESTALE
    assert refusal(w.attach, "m", 1) == refusal(w.rollback, "m", 1) == errno.ENOENT
    assert w.renew(buffer, 2)


# --- Sizes ------------------------------------------------------------------------------------------


def test_a_layout_of_another_size_gets_a_new_slot(spare):
    w = spare.connect()
    slot, found = create(w, layout=image([("t", 3 * PAGE)]), flags=NEW_LAYOUT)
    assert found == ZEROS and slot.data_size == 3 * PAGE
    finish(w, slot)
    assert spare.state() == (3, wire.READY)


def test_another_layout_of_the_same_size_does_not(spare):
    w = spare.connect()
    slot, found = create(w, layout=image([("a", PAGE // 2), ("b", PAGE // 2)]), flags=NEW_LAYOUT)
    assert found == SECRET
    finish(w, slot)


def test_a_writer_that_gives_up_leaves_nothing_behind(spare):
    for _ in range(3):
        create_anew(spare.daemon.socket)
    until(lambda: spare.slots("version", "state") == [(2, wire.CURRENT)], spare.slots)


def test_a_replacement_needs_one_slot(spare):
    w = spare.connect()
    current, = (s.slot for s in spare.slots() if s.version == 2)
    for n in range(3, 6):
        slot, found = create(w, flags=REPLACE, timeout_ms=-1)
        assert found == repeated(b"new")
        assert spare.slots("slot", "state") == [(current, wire.WRITING)]
        assert finish(w, slot, b"new") == n


def test_a_slot_that_does_not_fit_is_free_before_the_next_is_charged(make_daemon, require, tmp_path):
    require("inih")
    larger = image([("t", 2 * PAGE)])
    path = tmp_path / "w.conf"
    path.write_text(f"[limits]\nbytes = {2 * SLOT + PAGE + 2 * len(LAYOUT) + len(larger)}\n")
    with Scene(make_daemon("--config", path)) as scene:
        w = scene.connect()
        prepare(w)
        until(lambda: scene.slots("state") == [(wire.KEPT,), (wire.CURRENT,)], scene.slots)
        assert publish(w, layout=larger, flags=NEW_LAYOUT) == 3
        assert publish(w, layout=LAYOUT, flags=NEW_LAYOUT) == 4


def test_an_exclusive_buffer_is_not_reusable(scene):
    assert refusal(scene.connect().create, "m", LAYOUT, flags=EXCLUSIVE | REUSABLE) == errno.EINVAL
    assert scene.watcher.names() == []

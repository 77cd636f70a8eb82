"""Updates that readers make room for: in place of an exclusive buffer, and replacing a sealed one."""
import errno
import os
import select
import signal
import socket

import pytest
from lib import wire
from lib.child import Child, run_as
from lib.scene import LAYOUT, PAGE, SLOT, Scene, finish, ledger, publish, refusal, repeated
from lib.wire import (EMPTY, EVICT, EXCLUSIVE, GONE, KILL, MUTABLE, NEW_LAYOUT, READY, REPLACE, REUSABLE, TORN,
                      UPDATING, Refused, Wire, image, until)

OWNER, OTHER = 12345, 12346
LONG_MS = 3000  # limit of an update that has to end by itself, but not before a reader has paused


@pytest.fixture
def scene(make_daemon):
    with Scene(make_daemon("--socket-mode", "0666")) as s:
        yield s


@pytest.fixture
def limited(make_daemon, require, tmp_path):
    """limited("bytes = 1"): a scene in which every user has these limits."""
    require("inih")

    def make(limits):
        path = tmp_path / "w.conf"
        path.write_text(f"[server]\nsocket-mode = 0666\n[limits]\n{limits}\n")
        scenes.append(Scene(make_daemon("--config", path)))
        return scenes[-1]

    scenes = []
    yield make
    for s in scenes:
        s.__exit__(None)


@pytest.fixture
def exclusive(scene):
    """One with an exclusive buffer 'm' of version 1."""
    publish(scene.watcher, pattern=b"old", flags=EXCLUSIVE)
    scene.events()
    return scene


@pytest.fixture
def sealed(scene):
    """One with a sealed buffer 'm' of version 1."""
    publish(scene.watcher, pattern=b"old")
    scene.events()
    return scene


def ask(scene, name="m", **kw):
    """A connection with an update that has asked the readers. One with a time limit may be over already."""
    w = scene.connect()
    with Wire(scene.daemon.socket) as watch:
        watch.send(wire.EVENTS, wire.BODIES[wire.EVENTS].pack(wire.FROM_NOW_ON, -1))
        w.send_create(name, LAYOUT, **({"timeout_ms": -1} | kw))
        told, _ = wire.page(watch.answer(wire.EVENTS).body)
    assert wire.Event.unpack(told[0]).event == wire.EVENTS_BY_NAME["updating"]
    return w


def begin(scene, name="m", **kw):
    """A connection that updates, and the slot it writes."""
    w = scene.connect()
    return w, w.create(name, LAYOUT, **({"timeout_ms": -1} | kw))


def read(w, lease):
    """The bytes that another reader gets, if it attaches now."""
    fresh = w.attach("m")
    found = fresh.bytes()
    w.detach(fresh.lease)
    assert fresh.version == lease.shown()[0]
    return found


# --- In place ---------------------------------------------------------------------------------------


def test_an_update_waits_for_every_reader_and_all_go_on_with_it(exclusive):
    readers = exclusive.connect(3)
    leases = [r.attach("m") for r in readers]
    assert all(lease.flags & MUTABLE for lease in leases)
    w = ask(exclusive)
    assert exclusive.events() == [("updating", 1)] and leases[0].shown() == (1, UPDATING)
    assert refusal(exclusive.watcher.attach, "m") == errno.EAGAIN
    for reader, lease in zip(readers, leases):
        assert exclusive.is_silent(w)
        reader.send_pause(lease.lease)
    slot = w.slot(w.answer(wire.CREATE))
    assert slot.flags == wire.IS_EXCLUSIVE and slot.version == 2
    assert os.pread(slot.fd, 3, 0) == b"old", "it is the memory that readers map"
    root = wire.fill(slot, b"new")
    assert all(map(exclusive.is_silent, readers))
    assert w.publish(slot.writer, root) == 2
    for reader, lease in zip(readers, leases):
        told = reader.paused()
        assert (told.version, told.digest) == (2, root) and told.flags & MUTABLE
        assert lease.shown() == (2, READY) and lease.bytes() == repeated(b"new")
    assert exclusive.events() == [("version-gone", 1), ("published", 2)]


def test_an_update_starts_at_once_where_nobody_reads(exclusive):
    w = exclusive.connect()
    lease = w.attach("m")
    w.detach(lease.lease)
    assert publish(w, pattern=b"new", timeout_ms=0) == 2
    assert w.attach("m").bytes() == repeated(b"new")


@pytest.mark.parametrize("leave", [lambda w, lease: w.detach(lease.lease), lambda w, lease: w.close()],
                         ids=["detaches", "hangs up"])
def test_a_reader_that_leaves_makes_room_too(exclusive, leave):
    reader = exclusive.connect()
    lease = reader.attach("m")
    w = ask(exclusive)
    assert exclusive.is_silent(w)
    leave(reader, lease)
    w.publish(w.slot(w.answer(wire.CREATE)).writer)
    assert exclusive.state() == (2, READY)


def test_a_paused_reader_that_hangs_up_is_forgotten(exclusive):
    reader, other = exclusive.connect(2)
    lease, still = reader.attach("m"), other.attach("m")
    w = ask(exclusive)
    reader.send_pause(lease.lease)
    assert exclusive.is_silent(w)
    reader.close()
    assert exclusive.is_silent(w)
    other.send_pause(still.lease)
    w.publish(w.slot(w.answer(wire.CREATE)).writer)
    assert other.paused().version == 2


def test_who_pauses_when_nothing_is_updated_goes_on_at_once(exclusive):
    w = exclusive.connect()
    assert w.pause(w.attach("m").lease).version == 1
    assert refusal(w.pause, 12345) == errno.ENOENT
    publish(w, "sealed")
    assert w.pause(w.attach("sealed").lease).version == 1


def test_a_pause_holds_when_its_time_is_up(exclusive):
    reader = exclusive.connect()
    lease = reader.attach("m")
    w = ask(exclusive)
    for _ in range(3):
        assert refusal(reader.pause, lease.lease, 0) == errno.ETIMEDOUT
    slot = w.slot(w.answer(wire.CREATE))
    reader.send_pause(lease.lease)
    finish(w, slot, b"new")
    assert reader.paused().version == 2
    w = ask(exclusive)
    assert exclusive.is_silent(w), "it reads again"
    assert refusal(reader.pause, lease.lease, 0) == errno.ETIMEDOUT
    finish(w, w.slot(w.answer(wire.CREATE)))
    w = ask(exclusive)
    assert exclusive.is_silent(w), "a pause is for one update"
    reader.send_pause(lease.lease)
    finish(w, w.slot(w.answer(wire.CREATE)))
    assert reader.paused().version == 4


def test_an_update_without_success_changes_nothing(exclusive):
    reader, paused = exclusive.connect(2)
    lease, held = reader.attach("m"), paused.attach("m")
    w = ask(exclusive, timeout_ms=LONG_MS)
    paused.send_pause(held.lease)
    with pytest.raises(Refused) as failed:
        w.answer(wire.CREATE)
    assert failed.value.errno == errno.ETIMEDOUT
    assert failed.value.sentence == \
        f"'m' on host cannot be updated: its readers did not pause in time: pid {os.getpid()} of uid {os.geteuid()}"
    assert paused.paused().version == 1
    assert exclusive.state() == lease.shown() == (1, READY) and lease.bytes() == repeated(b"old")


def test_a_writer_that_dies_while_it_waits_changes_nothing(exclusive):
    reader, paused = exclusive.connect(2)
    lease, held = reader.attach("m"), paused.attach("m")
    w = ask(exclusive)
    paused.send_pause(held.lease)
    assert exclusive.is_silent(paused)
    w.close()
    assert paused.paused().version == 1
    assert exclusive.state() == lease.shown() == (1, READY)
    assert [name for name, _ in exclusive.events()] == ["updating"]


def test_a_reader_that_does_not_pause_is_evicted(exclusive):
    reader, paused = exclusive.connect(2)
    lease, held = reader.attach("m"), paused.attach("m")
    w = ask(exclusive, timeout_ms=LONG_MS, policy=EVICT)
    paused.send_pause(held.lease)
    slot = w.slot(w.answer(wire.CREATE))
    assert exclusive.events() == [("updating", 1), ("evicted", 1)]
    reader.send_pause(lease.lease)
    with pytest.raises(Refused) as failed:  # at once: it has nothing to wait for
        reader.paused()
    assert failed.value.errno == errno.EUCLEAN
    w.publish(slot.writer, wire.fill(slot, b"new"))
    assert paused.paused().version == 2
    assert refusal(reader.pause, lease.lease) == errno.EUCLEAN
    w.detach(slot.writer)
    reader.detach(lease.lease)
    assert reader.pause(reader.attach("m").lease).version == 2


def test_a_reader_with_many_leases_is_told_of_once_and_loses_each(exclusive):
    reader = exclusive.connect()
    leases = [reader.attach("m").lease for _ in range(50)]
    w, slot = begin(exclusive, timeout_ms=0, policy=EVICT)
    assert exclusive.events() == [("updating", 1), ("evicted", 1)]
    assert exclusive.daemon.log.count("'m@1' on host taken away from pid") == 1
    finish(w, slot)
    assert {refusal(reader.pause, lease) for lease in leases} == {errno.EUCLEAN}


def test_a_reader_is_told_of_for_each_version_that_it_loses(sealed):
    reader = sealed.connect()
    reader.attach("m")
    publish(sealed.watcher)
    reader.attach("m")
    sealed.events()
    w, slot = begin(sealed, flags=REPLACE, timeout_ms=0, policy=EVICT)
    assert [v for name, v in sealed.events() if name == "evicted"] == [1, 2]
    finish(w, slot)


def test_nobody_fills_the_log_with_evicted_readers(exclusive):
    for reader in exclusive.connect(60):
        reader.attach("m")
    finish(*begin(exclusive, timeout_ms=0, policy=EVICT))
    assert len([name for name, _ in exclusive.events() if name == "evicted"]) == 60
    assert exclusive.daemon.log.count("'m@1' on host taken away from pid") == 20


def test_nobody_waits_for_a_reader_that_was_evicted_before(exclusive):
    reader = exclusive.connect()
    lease = reader.attach("m")
    w, slot = begin(exclusive, timeout_ms=0, policy=EVICT)
    finish(w, slot)
    assert publish(exclusive.connect(), timeout_ms=-1) == 3
    assert refusal(reader.pause, lease.lease) == errno.EUCLEAN


def hold(pipe, path):
    """A reader that does not pause."""
    with Wire(path) as w:
        pipe.send(w.attach("m").version)
        pipe.recv()


def test_a_reader_that_does_not_pause_is_killed_if_the_writer_may(exclusive):
    with Child(hold, exclusive.daemon.socket) as reader:
        reader.hear()
        w, slot = begin(exclusive, timeout_ms=0, policy=KILL)
        assert reader.end() == -signal.SIGKILL
        finish(w, slot)
        until(lambda: exclusive.watcher.records()["m"].n_leases == 0, "its lease is over")


def test_a_writer_kills_nobody_of_another_user(scene, require):
    require("root")
    path = scene.daemon.socket

    def create():
        with Wire(path) as w:
            return publish(w, flags=EXCLUSIVE, mode=0o666)

    def update():
        with Wire(path) as w:
            return publish(w, timeout_ms=0, policy=KILL)

    run_as(OWNER, create)
    with Child(hold, path, uid=OTHER) as other, Child(hold, path, uid=OWNER) as own:
        assert other.hear() == own.hear() == 1
        assert run_as(OWNER, update) == 2
        assert own.end() == -signal.SIGKILL
        other.say("end")
        assert other.end() == 0
    assert [(e.uid, e.version) for e in scene.events("evicted")] == [(OWNER, 1)] * 2


def test_an_update_leaves_the_layout_as_it_is(exclusive):
    w = exclusive.connect()
    other = image([("other", PAGE)])
    assert refusal(w.create, "m", other) == errno.EPROTOTYPE
    assert refusal(w.create, "m", other, flags=NEW_LAYOUT) == errno.EPROTOTYPE
    assert exclusive.state() == (1, READY) and exclusive.events() == []


def test_what_a_buffer_is_cannot_be_asked_for_otherwise(exclusive):
    w = exclusive.connect()
    publish(w, "sealed")
    publish(w, "reusable", flags=REUSABLE)
    for name, flags in (("sealed", EXCLUSIVE), ("sealed", REUSABLE), ("reusable", EXCLUSIVE), ("m", REUSABLE),
                        ("m", EXCLUSIVE | REPLACE), ("new", EXCLUSIVE | REUSABLE)):
        assert refusal(w.create, name, LAYOUT, flags=flags) == errno.EINVAL
    assert publish(w, "m", flags=REPLACE) == 2  # the flag changes nothing


def test_a_second_writer_is_refused_while_readers_are_asked(exclusive):
    reader, second = exclusive.connect(2)
    reader.attach("m")
    w = ask(exclusive)
    assert refusal(second.create, "m", LAYOUT) == errno.EBUSY
    w.close()
    until(lambda: exclusive.state() == (1, READY), "the update is over")


# --- Torn -------------------------------------------------------------------------------------------

DIE = {"dies": lambda w, slot: w.close(), "aborts": lambda w, slot: w.abort(slot.writer)}


@pytest.mark.parametrize("die", DIE)
def test_a_writer_that_ends_while_it_writes_leaves_a_torn_buffer_until_its_repair(exclusive, die):
    reader, waiter = exclusive.connect(2)
    lease = reader.attach("m")
    w = ask(exclusive)
    reader.send_pause(lease.lease)
    slot = w.slot(w.answer(wire.CREATE))
    os.pwrite(slot.fd, b"half", 0)
    assert exclusive.is_silent(reader)
    DIE[die](w, slot)
    with pytest.raises(Refused) as failed:
        reader.paused()
    assert failed.value.errno == errno.EUCLEAN
    assert exclusive.state() == lease.shown() == (1, TORN)
    assert exclusive.events() == [("updating", 1), ("torn", 1)]
    assert refusal(reader.pause, lease.lease) == refusal(waiter.attach, "m") == errno.EUCLEAN
    assert refusal(waiter.rollback, "m", 1) == errno.EUCLEAN
    assert refusal(waiter.wait, "m", timeout_ms=0) == errno.ETIMEDOUT
    waiter.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(b"m", b"", 0, -1))

    w = ask(exclusive)
    reader.send_pause(lease.lease)
    slot = w.slot(w.answer(wire.CREATE))
    assert exclusive.is_silent(waiter)
    w.publish(slot.writer, wire.fill(slot, b"repaired"))
    assert reader.paused().version == 2
    waiter.answer(wire.WAIT)
    assert lease.shown() == (2, READY) and read(waiter, lease) == repeated(b"repaired")


def test_a_repair_that_comes_to_nothing_leaves_it_torn(exclusive):
    reader = exclusive.connect()
    lease = reader.attach("m")
    w, slot = begin(exclusive, timeout_ms=0, policy=EVICT)
    w.close()
    until(lambda: exclusive.state() == (1, TORN), "it is torn")
    reader.ask(wire.DETACH, lease.lease)
    w, slot = begin(exclusive)
    w.abort(slot.writer)
    assert exclusive.state() == lease.shown() == (1, TORN)


def test_a_torn_buffer_can_be_removed(exclusive):
    w, slot = begin(exclusive)
    w.abort(slot.writer)
    w.drop("m")
    assert publish(w, flags=EXCLUSIVE) == 1


class Manager:
    """A service manager that stores descriptors, and confirms that when the test allows it."""

    def __init__(self, path):
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.barriers = []

    def is_asked(self):
        while select.select([self.socket], [], [], 0)[0]:
            lines, fds, _, _ = socket.recv_fds(self.socket, 4096, 8)
            if b"BARRIER=1" in lines:
                self.barriers += fds
            else:
                for fd in fds:
                    os.close(fd)
        return bool(self.barriers)

    def answer(self):
        until(self.is_asked, "it is asked whether all is kept")
        while self.barriers:
            os.close(self.barriers.pop())


@pytest.fixture
def managed(make_daemon, tmp_path):
    """A scene with an exclusive buffer 'm' of version 1, and its manager."""
    manager = Manager(tmp_path / "notify")
    with Scene(make_daemon(env={"NOTIFY_SOCKET": manager.path})) as s:
        s.watcher.send_create("m", LAYOUT, flags=EXCLUSIVE)
        manager.answer()
        finish(s.watcher, s.watcher.slot(s.watcher.answer(wire.CREATE)), b"old")
        s.events()
        yield s, manager
        manager.is_asked()


@pytest.mark.parametrize("torn", [False, True])
def test_a_writer_that_ends_before_it_has_the_memory_changes_nothing(managed, torn):
    scene, manager = managed
    if torn:
        w = scene.connect()
        w.send_create("m", LAYOUT)
        manager.answer()
        w.abort(w.slot(w.answer(wire.CREATE)).writer)
        scene.events()
    before = scene.state()
    reader, w = scene.connect(2)
    w.send_create("m", LAYOUT, timeout_ms=-1)
    until(manager.is_asked, "it is about to get it")
    assert scene.state() == (1, UPDATING)
    w.close()
    scene.settle()
    manager.answer()
    until(lambda: scene.state() == before, scene.state)
    assert before == (1, TORN if torn else READY)
    assert [name for name, _ in scene.events()] == ["updating"]
    w = scene.connect()
    w.send_create("m", LAYOUT)
    manager.answer()
    finish(w, w.slot(w.answer(wire.CREATE)), b"new")
    assert reader.attach("m").bytes() == repeated(b"new")


def test_a_new_version_whose_writer_ends_before_it_has_the_memory_is_free_at_once(managed):
    scene, manager = managed
    w = scene.connect()
    w.send_create("other", LAYOUT)
    until(manager.is_asked, "it is about to get it")
    w.close()
    scene.settle()
    manager.answer()
    until(lambda: scene.watcher.names() == ["m"], "its writer is gone")
    assert [s.name for s in scene.slots()] == ["m"]


# --- Removed meanwhile ------------------------------------------------------------------------------


def test_a_removal_ends_an_update_that_waits(exclusive):
    reader, paused = exclusive.connect(2)
    lease, held = reader.attach("m"), paused.attach("m")
    w = ask(exclusive)
    paused.send_pause(held.lease)
    exclusive.settle()
    exclusive.watcher.drop("m")
    for waits, op in (paused, wire.PAUSE), (w, wire.CREATE):
        with pytest.raises(Refused) as failed:
            waits.answer(op)
        assert failed.value.errno == errno.ESTALE
    assert lease.shown() == (1, GONE)
    assert refusal(reader.pause, lease.lease) == errno.ESTALE


def test_a_removal_sends_paused_readers_on_while_the_writer_writes(exclusive):
    reader = exclusive.connect()
    lease = reader.attach("m")
    w = ask(exclusive)
    reader.send_pause(lease.lease)
    slot = w.slot(w.answer(wire.CREATE))
    exclusive.watcher.drop("m")
    with pytest.raises(Refused) as failed:
        reader.paused()
    assert failed.value.errno == errno.ESTALE
    assert refusal(w.publish, slot.writer) == errno.ESTALE
    assert lease.shown() == (1, GONE)


def test_permissions_may_change_during_an_update(exclusive):
    reader = exclusive.connect()
    lease = reader.attach("m")
    w = ask(exclusive)
    exclusive.watcher.access("m", mode=0o600)
    assert lease.shown() == (1, UPDATING)
    reader.send_pause(lease.lease)
    w.publish(w.slot(w.answer(wire.CREATE)).writer)
    assert reader.paused().version == 2


# --- Replaced ---------------------------------------------------------------------------------------


def test_a_replacement_waits_until_all_have_let_go(sealed):
    reader = sealed.connect()
    lease = reader.attach("m")
    old, = sealed.slots("slot")
    head_fd = os.dup(lease.head_fd)
    w = ask(sealed, flags=REPLACE)
    assert lease.shown() == (1, UPDATING) and refusal(sealed.watcher.attach, "m") == errno.EAGAIN
    mapping = lease.map()
    reader.detach(lease.lease)
    assert sealed.is_silent(w), "it is still mapped"
    assert mapping[:3] == b"old"
    mapping.close()
    slot = w.slot(w.answer(wire.CREATE))
    lease = lease._replace(head_fd=head_fd)
    assert lease.shown() == (0, EMPTY) and refusal(sealed.watcher.attach, "m") == errno.ENODATA
    new, = sealed.slots("slot")
    assert new != old and slot.version == 2
    finish(w, slot, b"new")
    assert lease.shown() == (2, READY) and sealed.watcher.attach("m").bytes() == repeated(b"new")
    os.close(head_fd)
    assert sealed.events() == [("updating", 1), ("version-gone", 1), ("published", 2)]
    assert [(v.version, v.why) for v in sealed.watcher.list(wire.HISTORY, "m")] == [(1, wire.REWRITTEN), (2, 0)]


def test_a_replacement_takes_all_versions(scene):
    w = scene.connect()
    for n in range(3):
        publish(w, keep=3)
    finish(*begin(scene, flags=REPLACE))
    assert [v.version for v in w.list(wire.VERSIONS, "m")] == [4]
    assert [s.version for s in scene.slots()] == [4]


def test_a_mapping_without_a_lease_is_in_the_way(sealed):
    reader = sealed.connect()
    lease = reader.attach("m")
    with lease.map():
        reader.detach(lease.lease)
        w = ask(sealed, flags=REPLACE, timeout_ms=100)
        with pytest.raises(Refused, match="its readers did not let go in time: processes that have it mapped without "
                                          "a lease$") as failed:
            w.answer(wire.CREATE)
        assert failed.value.errno == errno.ETIMEDOUT and sealed.state() == (1, READY)


def test_a_pause_does_not_let_go(sealed):
    reader = sealed.connect()
    lease = reader.attach("m")
    w = ask(sealed, flags=REPLACE, timeout_ms=200)
    reader.send_pause(lease.lease)
    assert refusal(w.answer, wire.CREATE) == errno.ETIMEDOUT
    assert reader.paused().version == 1


def test_a_reader_that_does_not_let_go_is_evicted_and_its_memory_leaves_with_it(sealed):
    reader, pausing = sealed.connect(2)
    lease, held = reader.attach("m"), pausing.attach("m")
    w = ask(sealed, flags=REPLACE, timeout_ms=300, policy=EVICT)
    pausing.send_pause(held.lease)
    slot = w.slot(w.answer(wire.CREATE))
    assert sealed.slots("version", "state") == [(1, wire.LEAVING), (0, wire.WRITING)]
    with pytest.raises(Refused) as failed:  # at once: whether this update succeeds is nothing to it
        pausing.paused()
    assert failed.value.errno == errno.EUCLEAN
    assert lease.bytes() == repeated(b"old"), "sealed bytes stay what they are"
    w.abort(slot.writer)
    assert refusal(reader.pause, lease.lease) == errno.EUCLEAN
    w.forget([slot.fd, slot.reader_fd])
    pausing.detach(held.lease)
    reader.detach(lease.lease)
    until(lambda: sealed.slots() == [], "all is free")
    assert sealed.state() == (0, EMPTY)


def test_memory_that_was_mapped_without_a_lease_is_freed_while_the_next_is_written(sealed):
    reader = sealed.connect()
    lease = reader.attach("m")
    mapping = lease.map()
    reader.detach(lease.lease)
    w, slot = begin(sealed, flags=REPLACE, timeout_ms=0, policy=EVICT)
    assert sealed.slots("version", "state") == [(1, wire.ORPHAN), (0, wire.WRITING)]
    mapping.close()
    until(lambda: sealed.watcher.ping().n_bytes == slot.slot_size, "the orphan is free")
    finish(w, slot)


def test_a_version_in_the_way_that_is_removed_is_not_waited_for(scene):
    reader = scene.connect()
    publish(reader)
    lease = reader.attach("m")
    publish(reader)
    w = ask(scene, flags=REPLACE)
    assert scene.is_silent(w)
    scene.watcher.drop("m", 1)
    finish(w, w.slot(w.answer(wire.CREATE)))
    assert lease.bytes() == repeated(b"data")


def test_what_can_never_fit_is_refused_while_what_it_would_replace_is_there(sealed):
    lease = sealed.connect().attach("m")
    with pytest.raises(Refused, match=r"'m' on host needs [\d.]+ PB, [\d.]+ PB more than is free there without its present "
                                      r"versions, which stay.*; remove other buffers") as refused:
        sealed.watcher.create("m", image([("t", 1 << 50)]), flags=REPLACE | NEW_LAYOUT, timeout_ms=-1)
    assert refused.value.errno == errno.ENOMEM
    assert lease.shown() == (1, READY) and read(sealed.watcher, lease) == repeated(b"old")
    assert sealed.events() == [], "no reader was asked to let go"


def test_what_a_user_may_not_hold_is_refused_while_what_it_would_replace_is_there(limited):
    scene = limited(f"bytes = {2 * SLOT}")
    publish(scene.watcher, pattern=b"old")
    lease = scene.connect().attach("m")
    with pytest.raises(Refused, match="may not hold that many bytes; the present versions of 'm' stay; remove other "
                                      r"buffers \(weightctl rm\), or raise bytes= in \[limits\]") as refused:
        scene.watcher.create("m", image([("t", 2 * SLOT)]), flags=REPLACE | NEW_LAYOUT, timeout_ms=-1)
    assert refused.value.errno == errno.EDQUOT
    assert lease.shown() == (1, READY) and read(scene.watcher, lease) == repeated(b"old")


def test_nothing_is_replaced_where_nothing_is(scene):
    w = scene.connect()
    assert publish(w, "new", flags=REPLACE, timeout_ms=0) == 1
    w, slot = begin(scene, name="new", flags=REPLACE)
    w.close()
    until(lambda: scene.state("new") == (0, EMPTY) and not scene.watcher.records()["new"].writing, "the writer is gone")
    w = scene.connect()
    assert refusal(w.attach, "new") == errno.ENODATA
    assert publish(w, "new", flags=REPLACE, timeout_ms=0) == 2


def test_two_replacements_come_one_after_the_other(sealed):
    reader, second = sealed.connect(2)
    lease = reader.attach("m")
    w = ask(sealed, flags=REPLACE)
    assert refusal(second.create, "m", LAYOUT, flags=REPLACE) == errno.EBUSY
    reader.detach(lease.lease)
    slot = w.slot(w.answer(wire.CREATE))
    assert refusal(second.create, "m", LAYOUT, flags=REPLACE) == errno.EBUSY
    finish(w, slot)
    assert publish(second, flags=REPLACE, timeout_ms=-1) == 3


def test_the_removal_of_a_buffer_ends_its_replacement(sealed):
    reader = sealed.connect()
    lease = reader.attach("m")
    w = ask(sealed, flags=REPLACE)
    sealed.watcher.drop("m")
    assert refusal(w.answer, wire.CREATE) == errno.ESTALE
    assert lease.bytes() == repeated(b"old")


def test_a_rollback_waits_for_an_update(scene):
    w = scene.connect()
    publish(w)
    publish(w)
    lease = w.attach("m")
    ask(scene, flags=REPLACE)
    assert refusal(w.rollback, "m") == errno.EAGAIN
    assert lease.shown() == (2, UPDATING)


# --- At the exact limit -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [f"bytes = {SLOT + len(LAYOUT)}", "descriptors = 4"])
def test_a_replacement_needs_no_more_than_what_it_replaces(limited, limit):
    scene = limited(limit)
    w = scene.connect()
    publish(w, pattern=b"old")
    assert refusal(w.create, "m", LAYOUT) == errno.EDQUOT
    before = ledger(w)
    for n in range(2, 30):
        assert publish(w, flags=REPLACE, timeout_ms=-1) == n
        assert ledger(w) == before


@pytest.mark.parametrize("limit", [f"bytes = {SLOT + len(LAYOUT)}", "descriptors = 4", "versions = 1"])
def test_an_update_in_place_needs_nothing_more(limited, limit):
    scene = limited(limit)
    w = scene.connect()
    publish(w, flags=EXCLUSIVE)
    before = ledger(w)
    assert publish(w, pattern=b"new") == 2
    assert refusal(w.create, "other", LAYOUT) == errno.EDQUOT
    until(lambda: ledger(w) == before, lambda: ledger(w))
    assert w.names() == ["m"]


@pytest.mark.parametrize("limit", [f"bytes = {SLOT + len(LAYOUT)}", "descriptors = 4"])
def test_another_layout_is_refused_for_what_it_is_and_not_for_its_room(limited, limit):
    """Its client asks again, with the layout that there is."""
    scene = limited(limit)
    w = scene.connect()
    publish(w)
    before = ledger(w)
    assert refusal(w.create, "m", image([("u", PAGE)]), flags=REPLACE) == errno.EPROTOTYPE
    assert ledger(w) == before


# --- The session ends -------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, EXCLUSIVE, REUSABLE, REPLACE])
def test_a_session_may_end_at_any_moment(scene, flags):
    """Whatever the server is doing for it: nothing unpublished is left, and other clients see no effect."""
    reader = scene.connect()
    first = publish(reader, flags=flags & ~REPLACE, keep=1)
    lease = reader.attach("m")
    for n_pings in range(12):
        w = scene.connect()
        w.send_create("m", LAYOUT, flags=flags & REPLACE, timeout_ms=0, policy=EVICT)
        for _ in range(n_pings):
            scene.watcher.ping()
        w.close()
        until(lambda: not scene.watcher.records()["m"].writing, "it is gone")
    for n_pings in range(12):
        w = scene.connect()
        slot = w.create("m", LAYOUT, flags=flags & REPLACE, timeout_ms=0, policy=EVICT)
        w.send(wire.PUBLISH, wire.BODIES[wire.PUBLISH].pack(slot.writer, 0, 0, b""))
        for _ in range(n_pings):
            scene.watcher.ping()
        w.close()
        until(lambda: not scene.watcher.records()["m"].writing, "it is gone")
    version = publish(reader, pattern=b"after", timeout_ms=0, policy=EVICT, flags=flags & REPLACE)
    assert version > first
    reader.detach(lease.lease)
    assert reader.attach("m").bytes() == repeated(b"after")

"""Versions: which is current, which are kept and for how long, and what is remembered of them."""
import errno
import os
import struct

import pytest
from lib import wire
from lib.scene import LAYOUT, Scene, finish, publish, refusal, repeated
from lib.wire import CURRENT, EXCLUSIVE, KEPT, LEAVING, READY, Refused, until


@pytest.fixture
def scene(daemon):
    with Scene(daemon) as s:
        yield s


@pytest.fixture
def kept(scene):
    """A scene with a buffer that keeps its five versions."""
    for n in range(1, 6):
        publish(scene.watcher, pattern=b"v%d " % n, keep=5)
    scene.events()
    return scene


def versions(scene):
    """Their numbers, and which is current."""
    found = scene.watcher.list(wire.VERSIONS, "m")
    return [v.version for v in found], *(v.version for v in found if v.current)


def ended(scene):
    """(version, why) of all that are no more."""
    return [(v.version, v.why) for v in scene.watcher.list(wire.HISTORY, "m") if v.ended_ns]


def content(scene, version=0):
    lease = scene.watcher.attach("m", version)
    found = lease.bytes()
    scene.watcher.detach(lease.lease)
    return found


# --- Rolling back -----------------------------------------------------------------------------------


def test_a_rollback_goes_one_back_and_another_one_more(kept):
    lease = kept.watcher.attach("m")
    for n in 4, 3, 2, 1:
        assert kept.watcher.rollback("m") == n
        assert content(kept) == repeated(b"v%d " % n)
        assert lease.shown() == (n, READY) and versions(kept) == ([1, 2, 3, 4, 5], n)
    assert refusal(kept.watcher.rollback, "m") == errno.ENOENT
    assert lease.bytes() == repeated(b"v5 "), "a reader of a version keeps it"
    assert kept.events() == [("rolled-back", n) for n in (4, 3, 2, 1)]


def test_a_rollback_to_a_version_may_go_forward(kept):
    for n in 2, 4, 1, 5:
        assert kept.watcher.rollback("m", n) == n
        record = kept.watcher.records()["m"]
        assert (record.version, record.newest, record.n_versions) == (n, 5, 5)
        assert content(kept) == repeated(b"v%d " % n)


def test_a_rollback_said_twice_is_one(kept):
    assert [kept.watcher.rollback("m", 3) for _ in range(3)] == [3] * 3
    assert kept.events() == [("rolled-back", 3)]


@pytest.mark.parametrize("version", [6, 2**40, 2**64 - 1])
def test_a_rollback_to_what_never_was_is_refused(kept, version):
    assert refusal(kept.watcher.rollback, "m", version) == errno.ENOENT
    assert versions(kept) == ([1, 2, 3, 4, 5], 5)


def test_a_rollback_of_what_has_no_version_is_refused(scene):
    assert refusal(scene.watcher.rollback, "m") == errno.ENOENT
    scene.connect().create("m", LAYOUT)
    assert refusal(scene.watcher.rollback, "m") == refusal(scene.watcher.rollback, "m", 1) == errno.ENOENT


def test_a_rollback_wakes_nobody_who_waits_for_more(kept):
    waiter = kept.connect()
    waiter.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(b"m", b"", 6, -1))
    kept.watcher.rollback("m")
    assert kept.is_silent(waiter)
    publish(kept.watcher)
    assert struct.unpack("<Q", waiter.answer(wire.WAIT).body) == (6,)


def test_a_version_published_after_a_rollback_is_current_and_newest(kept):
    kept.watcher.rollback("m", 1)
    assert publish(kept.watcher, pattern=b"v6 ") == 6
    assert versions(kept) == ([2, 3, 4, 5, 6], 6)
    assert kept.watcher.rollback("m") == 5


def test_a_rollback_while_the_next_version_is_written(kept):
    w = kept.connect()
    slot = w.create("m", LAYOUT)
    assert slot.version == 6 and kept.watcher.rollback("m", 2) == 2
    assert finish(w, slot, b"v6 ") == 6
    assert versions(kept) == ([2, 3, 4, 5, 6], 6)


def test_an_exclusive_buffer_has_nothing_to_go_back_to(scene):
    for _ in range(3):
        publish(scene.watcher, flags=EXCLUSIVE)
    assert scene.watcher.rollback("m", 3) == 3
    assert refusal(scene.watcher.rollback, "m", 2) == refusal(scene.watcher.rollback, "m") == errno.ENOENT


# --- Removing versions ------------------------------------------------------------------------------


def test_the_current_version_cannot_be_removed_whichever_it_is(kept):
    kept.watcher.rollback("m", 3)
    with pytest.raises(Refused, match="'m@3' is the current version; publish another one or roll back first, or "
                                      r"remove the buffer \(weightctl rm m\)") as refused:
        kept.watcher.drop("m", 3)
    assert refused.value.errno == errno.EBUSY
    for n in 5, 1, 4, 2:
        kept.watcher.drop("m", n)
    assert versions(kept) == ([3], 3) and content(kept) == repeated(b"v3 ")
    assert refusal(kept.watcher.rollback, "m") == errno.ENOENT
    assert ended(kept) == [(n, wire.BY_DROP) for n in (1, 2, 4, 5)]
    assert publish(kept.watcher) == 6, "a number is not used twice"


@pytest.mark.parametrize("drop", [6, 99])
def test_a_version_that_is_not_there_cannot_be_removed(kept, drop):
    assert refusal(kept.watcher.drop, "m", drop) == errno.ENOENT


def test_a_removed_version_lives_on_with_its_readers(kept):
    reader = kept.connect()
    lease = reader.attach("m", 2)
    kept.watcher.drop("m", 2)
    assert refusal(kept.watcher.attach, "m", 2) == refusal(kept.watcher.rollback, "m", 2) == errno.ENOENT
    assert (2, LEAVING) in kept.slots("version", "state") and lease.bytes() == repeated(b"v2 ")
    row, = (v for v in kept.watcher.list(wire.HISTORY, "m") if v.version == 2)
    assert (row.n_leases, row.why, row.slot_bytes) == (1, wire.BY_DROP, lease.slot_size)
    reader.detach(lease.lease)
    until(lambda: len(kept.slots()) == 4, "it is free")
    row, = (v for v in kept.watcher.list(wire.HISTORY, "m") if v.version == 2)
    assert (row.n_leases, row.why, row.slot_bytes) == (0, wire.BY_DROP, 0)


# --- Keeping ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3, 32])
def test_as_many_are_kept_as_the_buffer_says(scene, keep):
    for n in range(1, 41):
        assert publish(scene.watcher, keep=keep) == n
    assert versions(scene) == (list(range(41 - keep, 41)), 40)
    assert scene.watcher.records()["m"].keep == keep
    until(lambda: len(scene.slots()) == keep, "the others are free")


def test_two_are_kept_unless_said_otherwise_and_a_later_word_counts(scene):
    for _ in range(4):
        publish(scene.watcher)
    assert versions(scene) == ([3, 4], 4)
    publish(scene.watcher, keep=4)
    publish(scene.watcher)
    assert versions(scene) == ([3, 4, 5, 6], 6)
    publish(scene.watcher, keep=1)
    assert versions(scene) == ([7], 7)
    assert refusal(scene.watcher.create, "m", LAYOUT, keep=33) == errno.EINVAL


def test_a_keep_that_is_not_published_is_none(kept):
    w = kept.connect()
    slot = w.create("m", LAYOUT, keep=1)
    assert kept.watcher.records()["m"].keep == 5
    w.abort(slot.writer)
    assert versions(kept) == ([1, 2, 3, 4, 5], 5) and kept.watcher.records()["m"].keep == 5


def test_readers_pin_what_they_read_beyond_that(scene):
    readers = scene.connect(6)
    leases = []
    for n, reader in enumerate(readers, 1):
        publish(scene.watcher, pattern=b"v%d " % n, keep=2)
        leases.append(reader.attach("m"))
    assert versions(scene) == ([1, 2, 3, 4, 5, 6], 6)
    for n in 3, 1, 2, 4, 5:
        assert leases[n - 1].bytes() == repeated(b"v%d " % n)
        readers[n - 1].detach(leases[n - 1].lease)
    assert versions(scene) == ([5, 6], 6)
    assert scene.slots("version", "state") == [(5, KEPT), (6, CURRENT)]
    assert [version for name, version in scene.events() if name == "version-gone"] == [3, 1, 2, 4]


def test_the_current_version_is_kept_however_old(kept):
    kept.watcher.rollback("m", 1)
    reader = kept.connect()
    lease = reader.attach("m", 2)
    for n in 3, 4, 5:
        kept.watcher.drop("m", n)
    reader.detach(lease.lease)
    assert versions(kept) == ([1, 2], 1) and content(kept) == repeated(b"v1 ")


def test_a_writer_holds_its_version_until_it_lets_go(scene):
    writers = scene.connect(4)
    for n, w in enumerate(writers, 1):
        slot = w.create("m", LAYOUT, keep=1)
        assert w.publish(slot.writer) == n
    assert versions(scene) == ([1, 2, 3, 4], 4)
    for w in writers:
        w.close()
    until(lambda: versions(scene) == ([4], 4), "only the current one is left")


# --- History ----------------------------------------------------------------------------------------


def test_the_history_tells_who_published_what_and_why_it_went(scene):
    w = scene.connect()
    roots = []
    for n in range(3):
        slot = w.create("m", LAYOUT, keep=1)
        roots.append(wire.fill(slot, b"v%d " % n))
        w.publish(slot.writer, roots[-1])
        w.detach(slot.writer)
    found = scene.watcher.list(wire.HISTORY, "m")
    assert [(v.version, v.why, v.current, v.digest) for v in found] == \
        [(1, wire.BY_KEEP, 0, roots[0]), (2, wire.BY_KEEP, 0, roots[1]), (3, 0, 1, roots[2])]
    assert all(v.published_ns and v.uid == os.geteuid() and v.pid and v.flags == wire.DIGEST and v.n_tensors == 1 for v in found)
    assert [bool(v.ended_ns) for v in found] == [True, True, False]
    assert found[0].published_ns <= found[0].ended_ns <= found[1].ended_ns


def test_the_history_is_bounded_and_forgets_the_oldest(scene):
    for _ in range(100):
        publish(scene.watcher)
    numbers = [v.version for v in scene.watcher.list(wire.HISTORY, "m")]
    assert numbers == list(range(numbers[0], 101)) and len(numbers) == 64


def test_a_buffer_that_is_made_anew_remembers_nothing(kept):
    kept.watcher.drop("m")
    assert publish(kept.watcher) == 1
    assert [v.version for v in kept.watcher.list(wire.HISTORY, "m")] == [1]
    assert [name for name, _ in kept.events()] == ["removed", "created", "published"]


def test_so_many_versions_may_be_held_and_no_more(scene):
    w = scene.connect()
    for n in range(1, 63):
        publish(w, keep=1)
        w.attach("m")
    with pytest.raises(Refused, match="62 versions of 'm' are held by readers; let some go") as refused:
        w.create("m", LAYOUT)
    assert refused.value.errno == errno.EDQUOT
    scene.connect().attach("m")
    assert versions(scene) == (list(range(1, 63)), 62)
    w.close()
    until(lambda: versions(scene) == ([62], 62), "they are let go")
    assert publish(scene.watcher) == 63


@pytest.mark.parametrize("n_after", [1, 5])
def test_versions_rollback_and_history_survive_a_restart(make_daemon, n_after):
    with Scene(make_daemon("--keeper")) as scene:
        for n in range(1, 5):
            publish(scene.watcher, pattern=b"v%d " % n, keep=3)
        scene.watcher.drop("m", 3)
        scene.watcher.rollback("m", 2)
        before = scene.watcher.list(wire.HISTORY, "m")
        scene.restart()
        assert versions(scene) == ([2, 4], 2) and content(scene) == repeated(b"v2 ")
        assert scene.watcher.list(wire.HISTORY, "m") == before
        assert ended(scene) == [(1, wire.BY_KEEP), (3, wire.BY_DROP)]
        for n in range(5, 5 + n_after):
            assert publish(scene.watcher) == n
        assert versions(scene) == (([2, 4, 5] if n_after == 1 else [7, 8, 9]), 4 + n_after)


# --- Events -----------------------------------------------------------------------------------------


def test_events_tell_all_that_happens_in_order(scene):
    w = scene.connect()
    publish(w, keep=2)
    publish(w)
    publish(w)
    w.rollback("m")
    w.drop("m", 3)
    w.access("m", mode=0o644)
    w.drop("m")
    happened = [("created", 0), ("published", 1), ("published", 2), ("version-gone", 1), ("published", 3),
                ("rolled-back", 2), ("version-gone", 3), ("access", 2), ("removed", 2)]
    found = scene.events()
    assert sorted(found) == sorted(happened)
    assert [e for e in found if e[0] != "version-gone"] == [e for e in happened if e[0] != "version-gone"]


def test_events_are_numbered_and_pages_join(scene):
    for _ in range(20):
        publish(scene.watcher, keep=1)
    found, after, w = [], 0, scene.connect()
    while len(found) < 40:
        more, after = w.events(after)
        assert 0 < len(more) <= 17 and after == more[-1].serial
        found += more
    assert [e.serial for e in found] == list(range(1, 41))
    assert refusal(w.events, after) == errno.ETIMEDOUT


def test_a_watcher_waits_for_what_comes(scene):
    w = scene.connect()
    w.send(wire.EVENTS, wire.BODIES[wire.EVENTS].pack(wire.FROM_NOW_ON, -1))
    assert scene.is_silent(w)
    publish(scene.watcher)
    found, after = wire.page(w.answer(wire.EVENTS).body)
    assert wire.Event.unpack(found[0]).event == wire.EVENTS_BY_NAME["created"]


def test_who_asks_for_more_than_is_remembered_is_told(scene):
    publish(scene.watcher)
    for n in range(600):
        scene.watcher.rollback("m", 1)
        scene.watcher.access("m", mode=0o600 + n % 8 // 4 * 0o40)
        scene.watcher.access("m", mode=0o644)
    w = scene.connect()
    found, after = w.events(1)
    assert found[0].event == wire.EVENTS_BY_NAME["missed"]
    rest = found[1:]
    while True:
        try:
            more, after = w.events(after)
            rest += more
        except Refused:
            break
    assert len(rest) == 1024 and [e.serial for e in rest] == list(range(after - 1023, after + 1))
    assert w.events(0)[0][0].serial == rest[0].serial, "a request for all has missed nothing"

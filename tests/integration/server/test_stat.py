"""Memory and its holders: every state of a slot, every charge, and their sums."""
import array
import os
import random
import resource
import socket

import pytest
from lib import features, wire
from lib.child import Child, run_as
from lib.scene import LAYOUT, NOTHING, PAGE, SLOT, Scene, finish, ledger, publish
from lib.wire import (CURRENT, EXCLUSIVE, KEPT, LEAVING, ORPHAN, REUSABLE, WRITING, Refused, Wire, image, until)

OWNER, OTHER, STRANGER = 12345, 12346, 12347
GROUP = 23456
MIB = 1 << 20


@pytest.fixture
def scene(make_daemon):
    with Scene(make_daemon("--socket-mode", "0666")) as s:
        yield s


@pytest.fixture
def root_only(require):
    require("root")


def totals(scene):
    """(all, kept, leaving, orphan) bytes in slots, as the records of the slots have it and as the whole does."""
    def of(*states):
        return sum(s.size for s in slots if s.state in states)

    slots, stat = scene.slots(), scene.watcher.stat()
    by_slot = of(*range(1, 6)), of(KEPT), of(LEAVING), of(ORPHAN)
    assert by_slot == (stat.slot_bytes, stat.kept_bytes, stat.leaving_bytes, stat.orphan_bytes)
    return by_slot


# --- Slots ------------------------------------------------------------------------------------------


def test_nothing_is_nothing(scene):
    assert totals(scene) == (0, 0, 0, 0)
    stat = scene.watcher.stat()
    assert stat.headroom > 0 and (stat.layout_bytes, stat.n_quarantined, stat.store_used, stat.store_max) == (0,) * 4
    assert ledger(scene.watcher) == {os.geteuid(): NOTHING | {"connections": 1}}


def test_a_slot_goes_through_all_states(scene):
    reader, w = scene.connect(2)
    slot = w.create("m", LAYOUT)
    assert scene.slots("version", "state", "n_leases") == [(0, WRITING, 0)]
    finish(w, slot)
    assert scene.slots("version", "state", "n_leases") == [(1, CURRENT, 0)]
    lease = reader.attach("m")
    assert scene.slots("version", "state", "n_leases") == [(1, CURRENT, 1)]
    publish(w)
    assert scene.slots("version", "state", "n_leases") == [(1, KEPT, 1), (2, CURRENT, 0)]
    w.rollback("m")
    assert scene.slots("version", "state", "n_leases") == [(1, CURRENT, 1), (2, KEPT, 0)]
    w.rollback("m", 2)
    w.drop("m", 1)
    assert scene.slots("version", "state", "n_leases") == [(1, LEAVING, 1), (2, CURRENT, 0)]
    assert totals(scene) == (2 * SLOT, 0, SLOT, 0)
    reader.ask(wire.DETACH, lease.lease)
    assert scene.slots("version", "state", "n_leases") == [(1, ORPHAN, 0), (2, CURRENT, 0)]
    assert totals(scene) == (2 * SLOT, 0, 0, SLOT)
    reader.forget([lease.layout_fd, lease.head_fd, lease.slot_fd])
    assert scene.slots("version", "state", "n_leases") == [(2, CURRENT, 0)], "and not a moment later"
    assert scene.watcher.stat().orphan_bytes == 0


def test_a_slot_that_is_written_in_place_says_so(scene):
    publish(scene.watcher, flags=EXCLUSIVE)
    w = scene.connect()
    slot = w.create("m", LAYOUT)
    assert scene.slots("version", "state") == [(1, WRITING)]
    finish(w, slot)
    assert scene.slots("version", "state") == [(2, CURRENT)]


def test_what_waits_to_be_used_again_is_kept(scene):
    for _ in range(2):
        publish(scene.watcher, flags=REUSABLE, keep=1)
    assert scene.slots("version", "state") == [(1, KEPT), (2, CURRENT)]
    assert totals(scene) == (2 * SLOT, SLOT, 0, 0)


def test_memory_is_that_of_the_kernel(scene):
    w = scene.connect()
    slot = w.create("m", image([("t", 5 * MIB)]))
    record, = scene.slots()
    assert record.size == slot.slot_size and record.allocated == os.fstat(slot.fd).st_blocks * 512 >= record.size
    assert record.huge_bytes <= record.allocated and record.huge_bytes % (2 * MIB) == 0
    finish(w, slot)
    after, = scene.slots()
    assert (after.size, after.allocated, after.huge_bytes) == (record.size, record.allocated, record.huge_bytes)
    assert after.uid == os.geteuid() and not after.removed


def test_slots_of_a_removed_buffer_are_still_told(scene):
    reader = scene.connect()
    publish(reader)
    lease = reader.attach("m")
    scene.watcher.drop("m")
    assert scene.watcher.names() == []
    assert scene.slots("name", "version", "state", "removed") == [("m", 1, LEAVING, 1)]
    publish(reader)
    assert sorted(scene.slots("name", "version", "state", "removed")) == [("m", 1, CURRENT, 0), ("m", 1, LEAVING, 1)]
    reader.detach(lease.lease)
    assert scene.slots("name", "version", "state", "removed") == [("m", 1, CURRENT, 0)]


def test_a_list_of_many_slots_has_each_once(scene):
    w = scene.connect()
    for n in range(40):
        publish(w, f"m{n}", keep=1)
    publish(w, "m7")
    publish(w, "m3")
    found = scene.slots()
    assert len({s.slot for s in found}) == len(found) == 40
    assert [s.slot for s in found] == sorted(s.slot for s in found)
    assert {s.name for s in found} == {f"m{n}" for n in range(40)}
    assert [s.version for s in scene.watcher.list(wire.SLOTS, "m7")] == [2]


def test_slots_may_be_asked_for_while_their_memory_is_made(scene):
    """And the numbers are not those that another thread is writing."""
    w = scene.connect()
    w.send_create("m", image([("t", 192 * MIB)]))
    while w.is_silent():
        assert all(s.state == WRITING and s.huge_bytes <= s.size for s in scene.slots())
    slot = w.slot(w.answer(wire.CREATE))
    assert scene.slots("allocated") == [(-(-slot.slot_size // PAGE) * PAGE,)]
    w.abort(slot.writer)


# --- Orphans ----------------------------------------------------------------------------------------


def keep_mapped(pipe, path):
    """Keeps a mapping, and nothing else, after it has detached."""
    w = Wire(path)
    lease = w.attach("m")
    mapping = lease.map()
    w.detach(lease.lease)
    w.close()
    pipe.send("detached")
    pipe.recv()
    pipe.send(mapping[:4])
    pipe.recv()


def test_a_process_that_keeps_a_mapping_makes_an_orphan(scene):
    publish(scene.watcher, pattern=b"kept")
    with Child(keep_mapped, scene.daemon.socket) as child:
        child.hear()
        scene.watcher.drop("m")
        assert scene.slots("version", "state", "n_leases", "removed") == [(1, ORPHAN, 0, 1)]
        assert totals(scene) == (SLOT, 0, 0, SLOT)
        child.say("read")
        assert child.hear() == b"kept"
        assert ledger(scene.watcher)[os.geteuid()]["bytes"] == SLOT + len(LAYOUT), "its maker is still charged for it"
    assert scene.slots() == [] and scene.watcher.stat().orphan_bytes == 0
    until(lambda: scene.watcher.ping().n_bytes == 0, "it is free")


def test_a_forked_child_holds_what_its_parent_let_go(scene):
    reader = scene.connect()
    publish(reader)
    lease = reader.attach("m")
    mapping = lease.map()
    with Child(lambda pipe: pipe.recv()) as child:
        mapping.close()
        reader.detach(lease.lease)
        scene.watcher.drop("m")
        assert scene.slots("state") == [(ORPHAN,)]
        child.say("end")
        assert child.end() == 0
    assert scene.slots() == []


def test_a_descriptor_in_flight_holds_it_and_nobody_has_it(scene):
    reader = scene.connect()
    publish(reader)
    lease = reader.attach("m")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [lease.slot_fd]))])
    reader.detach(lease.lease)
    scene.watcher.drop("m")
    assert scene.slots("state") == [(ORPHAN,)]
    theirs.close()
    ours.close()
    assert scene.slots() == []


def test_an_answer_that_nobody_has_read_is_a_lease_and_no_orphan(scene):
    publish(scene.watcher)
    reader = scene.connect()
    reader.send(wire.ATTACH, wire.BODIES[wire.ATTACH].pack(b"m", b"", 0, 0, 0, 0, b""))
    until(lambda: scene.slots("n_leases") == [(1,)], "it has its lease")
    scene.watcher.drop("m")
    assert scene.slots("state") == [(LEAVING,)]
    reader.close()
    until(lambda: scene.slots() == [], "it is free")


def test_what_an_aborted_writer_keeps_is_an_orphan(scene):
    w = scene.connect()
    publish(w)
    slot = w.create("m", LAYOUT)
    w.ask(wire.ABORT, slot.writer)
    assert scene.slots("version", "state") == [(1, CURRENT), (0, ORPHAN)]
    w.forget([slot.fd, slot.reader_fd])
    assert scene.slots("version", "state") == [(1, CURRENT)]


def test_an_orphan_stays_one_across_a_restart(make_daemon):
    with Scene(make_daemon("--keeper")) as scene:
        publish(scene.watcher, pattern=b"kept")
        with Child(keep_mapped, scene.daemon.socket) as child:
            child.hear()
            publish(scene.watcher)
            scene.watcher.drop("m", 1)
            scene.restart()
            assert scene.slots("version", "state") == [(1, ORPHAN), (2, CURRENT)]
            assert totals(scene) == (2 * SLOT, 0, 0, SLOT)
            child.say("read")
            assert child.hear() == b"kept"
        assert scene.slots("version", "state") == [(2, CURRENT)]


# --- Charges ----------------------------------------------------------------------------------------


def test_ledgers_of_users_add_up_to_the_whole(scene, root_only):
    path = scene.daemon.socket

    def use(pipe, name, n_versions, keep):
        w = Wire(path)
        for _ in range(n_versions):
            publish(w, name, keep=keep, mode=0o644)
        other = Wire(path)
        lease = other.attach(name)
        slot = other.create(name, LAYOUT)
        pipe.send((lease.version, slot.version))
        pipe.recv()

    layout = len(LAYOUT)
    with Child(use, "a", 3, 2, uid=OWNER) as a, Child(use, "b", 1, 1, uid=OTHER) as b:
        assert (a.hear(), b.hear()) == ((3, 4), (1, 2))
        charged = ledger(scene.watcher)
        # A buffer has two descriptors, a slot one, a layout one.
        assert charged == {
            0: NOTHING | {"connections": 1},
            OWNER: {"connections": 2, "leases": 1, "buffers": 1, "versions": 3, "bytes": 3 * SLOT + layout,
                    "descriptors": 6},
            OTHER: {"connections": 2, "leases": 1, "buffers": 1, "versions": 2, "bytes": 2 * SLOT + layout,
                    "descriptors": 5},
        }
        stat, ping = scene.watcher.stat(), scene.watcher.ping()
        sums = {c: sum(user[c] for user in charged.values()) for c in wire.CHARGES}
        assert sums["bytes"] == stat.slot_bytes + stat.layout_bytes
        assert (sums["connections"], sums["leases"], sums["buffers"]) == (ping.n_sessions, ping.n_leases, ping.n_buffers)
        assert stat.slot_bytes == ping.n_bytes == totals(scene)[0]
        by_uid = {uid: sum(s.size for s in scene.slots() if s.uid == uid) for uid in (OWNER, OTHER)}
        assert by_uid == {OWNER: 3 * SLOT, OTHER: 2 * SLOT}
    until(lambda: set(ledger(scene.watcher)) == {0, OWNER, OTHER} and
          ledger(scene.watcher)[OTHER] == NOTHING | {"buffers": 1, "versions": 1, "bytes": SLOT + layout, "descriptors": 4},
          lambda: ledger(scene.watcher))


def test_memory_is_charged_to_who_made_it_whoever_owns_the_buffer(scene, root_only):
    path = scene.daemon.socket

    def write():
        with Wire(path) as w:
            return publish(w, mode=0o666, owner=OWNER)

    run_as(OWNER, write)
    run_as(OTHER, write)
    until(lambda: set(ledger(scene.watcher)) == {0, OWNER, OTHER}, "they are gone")
    before = ledger(scene.watcher)
    assert before[OTHER] == NOTHING | {"versions": 1, "bytes": SLOT, "descriptors": 1}
    assert before[OWNER]["bytes"] == SLOT + len(LAYOUT)
    scene.watcher.drop("m", 1)
    until(lambda: ledger(scene.watcher)[OWNER] == before[OWNER] | {"versions": 0, "bytes": len(LAYOUT), "descriptors": 3},
          lambda: ledger(scene.watcher))


def test_ledgers_survive_a_restart(make_daemon, root_only):
    with Scene(make_daemon("--keeper", "--socket-mode", "0666")) as scene:
        path = scene.daemon.socket

        def write(name, n, owner=None):
            with Wire(path) as w:
                return [publish(w, name, mode=0o666, owner=owner) for _ in range(n)]

        run_as(OWNER, write, "a", 2)
        run_as(OTHER, write, "b", 3)
        run_as(OTHER, write, "a", 1, OWNER)
        scene.watcher.access("b", uid=STRANGER)
        slot = scene.connect().create("b", LAYOUT, owner=STRANGER)
        until(lambda: len(scene.slots()) == 5, scene.slots)
        expected = {uid: u | {"connections": 0} for uid, u in ledger(scene.watcher).items()}
        expected[0]["connections"] = 1
        sizes = scene.watcher.stat()[1:6]
        scene.restart()
        assert ledger(scene.watcher) == expected
        assert scene.watcher.stat()[1:6] == sizes
        w = scene.connect()
        assert w.resume(slot.writer) == 0
        w.abort(slot.writer)


# --- Permissions ------------------------------------------------------------------------------------


N_USERS = 1500


@pytest.fixture
def many_descriptors():
    features.require_descriptors(4 * N_USERS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_list_of_users_takes_no_longer_per_user_where_there_are_many(many_descriptors, scene, root_only):
    """A user may have the uids of a whole user namespace. Of itself it sees one record, at one look at all accounts."""
    def connect_as(uid):
        os.seteuid(uid)
        try:
            return scene.connect()
        finally:
            os.seteuid(0)

    def time_of(w, kind):
        """The shortest time that weightd computes for one answer, however busy the machine is."""
        def once():
            before = scene.daemon.cpu_s()
            w.list(kind)
            w.ping()  # the loop is done with the list
            return scene.daemon.cpu_s() - before

        return min(once() for _ in range(10))

    for uid in range(200000, 200000 + N_USERS):
        connect_as(uid)
    own = connect_as(OWNER)
    assert [u.uid for u in own.list(wire.USERS)] == [OWNER] and not own.list(wire.HOLDERS)
    assert len(scene.watcher.list(wire.USERS)) == N_USERS + 2 and not scene.watcher.list(wire.HOLDERS)
    for kind in wire.USERS, wire.HOLDERS:
        assert time_of(own, kind) < 10 * time_of(own, wire.COSTS)


def test_a_user_sees_its_own_ledger_and_the_slots_of_what_it_may_read(scene, root_only):
    path = scene.daemon.socket

    def write(name, mode):
        with Wire(path) as w:
            publish(w, name, mode=mode)

    def look():
        with Wire(path) as w:
            return [s.name for s in w.list(wire.SLOTS)], list(ledger(w)), w.stat().slot_bytes

    run_as(OWNER, write, "private", 0o600, gid=GROUP)
    run_as(OWNER, write, "group", 0o640, gid=GROUP)
    run_as(OTHER, write, "write-only", 0o222)
    until(lambda: set(ledger(scene.watcher)) == {0, OWNER, OTHER}, "they are gone")
    assert look() == (["private", "group", "write-only"], [0, OWNER, OTHER], 3 * SLOT)
    assert run_as(OWNER, look, gid=GROUP) == (["private", "group"], [OWNER], 3 * SLOT)
    assert run_as(OTHER, look, gid=GROUP) == (["group", "write-only"], [OTHER], 3 * SLOT)
    assert run_as(STRANGER, look) == ([], [STRANGER], 3 * SLOT)


# --- sums ---

NAMES = [f"b{i}" for i in range(6)]


@pytest.fixture
def asserting(make_daemon, require):
    """A daemon that counts everything anew at each stat, and asserts that it comes to the sums that it keeps."""
    require("faults")
    return make_daemon(program=features.BUILD.with_name(features.BUILD.name + "-faults") / "weightd")


class Client:
    """One that does any of these things at random, and holds what it got."""

    def __init__(self, path, rng):
        self.w, self.rng = Wire(path), rng
        self.leases, self.maps = [], []

    def name(self):
        return self.rng.choice(NAMES)

    def publish(self):
        slot = self.w.create(self.name(), LAYOUT, keep=self.rng.randint(1, 3),
                             flags=self.rng.choice([0, wire.REUSABLE]))
        if self.rng.random() < 0.2:
            self.maps.append(slot.map())
        if self.rng.random() < 0.2:
            self.w.abort(slot.writer)
        else:
            self.w.publish(slot.writer)
            self.leases.append(slot.writer)
        self.w.forget(slot.fds)

    def attach(self):
        lease = self.w.attach(self.name())
        self.leases.append(lease.lease)
        if self.rng.random() < 0.3:
            self.maps.append(lease.map())
        self.w.forget(lease.fds)

    def detach(self):
        if self.leases:
            self.w.detach(self.leases.pop(self.rng.randrange(len(self.leases))))

    def unmap(self):
        if self.maps:
            self.maps.pop(self.rng.randrange(len(self.maps))).close()

    def drop(self):
        self.w.drop(self.name())

    def drop_version(self):
        name = self.name()
        versions = self.w.list(wire.VERSIONS, name)
        self.w.drop(name, self.rng.choice(versions).version if versions else 1)

    def rollback(self):
        self.w.rollback(self.name())

    def chmod(self):
        self.w.access(self.name(), mode=self.rng.choice([0o600, 0o640]))

    def act(self):
        acts = [self.publish] * 4 + [self.attach] * 4 + [self.detach] * 4 + \
            [self.unmap, self.drop, self.drop_version, self.rollback, self.chmod]
        try:
            self.rng.choice(acts)()
        except Refused:
            pass  # there is no such buffer or version (any more), or it is not the client's turn

    def close(self):
        while self.maps:
            self.maps.pop().close()
        self.w.close()


def listed(w):
    """The same sums from the slots. One that is kept and has a reader does not give way to a create."""
    slots = [s for s in w.list(wire.SLOTS) if s.state != KEPT or s.n_leases == 0]
    return tuple(sum(s.size for s in slots if s.state == state) for state in (KEPT, LEAVING, ORPHAN))


def sums(w):
    stat = w.stat()
    return stat.kept_bytes, stat.leaving_bytes, stat.orphan_bytes


@pytest.mark.parametrize("seed", range(4))
def test_sums_agree_with_slots_whatever_happens(asserting, seed):
    rng = random.Random(seed)
    clients = [Client(asserting.socket, rng) for _ in range(3)]
    with Wire(asserting.socket) as observer:
        for step in range(400):
            at = rng.randrange(len(clients))
            if rng.random() < 0.03:
                clients[at].close()  # with all that it holds
                clients[at] = Client(asserting.socket, rng)
            clients[at].act()
            observer.stat()  # asserts
            if step % 40 == 0:
                until(lambda: sums(observer) == listed(observer), lambda: f"{sums(observer)} is {listed(observer)}")
        for client in clients:
            client.close()
        until(lambda: observer.ping().n_sessions == 1, "what they were making is over")
        for name in observer.names():
            observer.drop(name)
        until(lambda: sums(observer) == (0, 0, 0), "all is free")

"""Users share the store, connections and memory: one has no more than its share, and evicts nothing of those within theirs."""
import contextlib
import errno
import os
import re
import signal

import pytest
from integration.server import userns
from lib.cgroup import MemoryCgroup
from lib.child import Child, run_as
from lib.wire import (BY_MEMORY, COSTS, CREATE, HISTORY, HOLDERS, NEW_LAYOUT, REPLACE, USERS, VERSIONS, Refused, Wire, image, stopped,
                      until)

ALICE, BOB, CAROL = 12345, 12346, 12347
MAX = 160  # half of it for one user; an administrator's sixteenth, and a quarter for users below a sixteenth
LIMIT, LEAST, OPEN = MAX // 2, MAX // 16, MAX - MAX // 16 - MAX // 4
EACH = 4  # descriptors of a buffer with one version
SOCKET = 2  # those of the socket and its lock
LAYOUT = image([("t", 1)])
MIB = 1 << 20
MEMORY = 256 * MIB  # of a cgroup, and 16 MiB of it are the reserve


@pytest.fixture
def serve(make_daemon, require, tmp_path):
    """serve(): a weightd with a keeper and a small store; serve("[limits]\\n..."): with more in its file."""
    require("root")
    require("inih")

    def make(text="", size=MAX):
        path = tmp_path / "w.conf"
        path.write_text(f"[server]\nsocket-mode = 0666\n[store]\nmax = {size}\n{text}")
        return make_daemon("--keeper", "--config", path)

    return make


def publish(w, name, n=1, layout=LAYOUT, **kw):
    for _ in range(n):
        slot = w.create(name, layout, **kw)
        w.publish(slot.writer)
        w.detach(slot.writer)
        w.forget(slot.fds)


def publish_as(uid, daemon, name, *args, **kw):
    def act():
        with Wire(daemon.socket) as w:
            publish(w, name, *args, **kw)

    run_as(uid, act)


def fill_as(uid, daemon, prefix, most=1000):
    """Publishes one-byte buffers until one is refused. Their number, and the sentence."""
    def act():
        with Wire(daemon.socket) as w:
            for i in range(most):
                try:
                    publish(w, f"{prefix}{i}")
                except Refused as e:
                    assert e.errno == errno.EDQUOT
                    return i, e.sentence
        return most, None

    return run_as(uid, act)


def versions(w, name):
    return [row.version for row in w.list(VERSIONS, name)]


def users(w):
    """Descriptors of each user."""
    return {row.uid: row.used_descriptors for row in w.list(USERS) if row.used_descriptors}


def test_one_user_leaves_room_for_others_and_their_versions_stay(serve):
    daemon = serve()
    with Wire(daemon.socket) as root:
        publish(root, "of-root", 3, keep=3)
        publish_as(BOB, daemon, "of-bob", 3, keep=3)
        n, sentence = fill_as(ALICE, daemon, "a")
        assert n == LIMIT // EACH
        assert sentence == (f"uid {ALICE} has too many descriptors; remove some buffers (weightctl rm), or raise descriptors= "
                            "in [limits] of weightd.conf")
        publish(root, "another-of-root", 5, keep=5)
        publish_as(BOB, daemon, "of-bob")
        publish_as(CAROL, daemon, "of-carol")
        assert versions(root, "of-root") == [1, 2, 3] and versions(root, "of-bob") == [2, 3, 4]


def test_the_last_parts_are_for_users_with_little_and_for_administrators(serve):
    daemon = serve()
    with Wire(daemon.socket) as root:
        assert fill_as(ALICE, daemon, "a")[0] == LIMIT // EACH
        n, sentence = fill_as(CAROL, daemon, "c")
        used = SOCKET + LIMIT + n * EACH
        assert root.stat().store_used == used and OPEN - EACH < used <= OPEN
        assert sentence == (
            f"the service manager keeps {used} descriptors for weightd already, of {MAX}; {MAX - OPEN} of these are for "
            f"administrators and for users with no more than {LEAST}, and uid {CAROL} would have {(n + 1) * EACH}; remove a "
            "buffer (weightctl rm), or raise FileDescriptorStoreMax= and [store] max")
        uid = BOB + 1000
        while used + LEAST // EACH * EACH <= MAX - LEAST:  # each of them a little, and no more
            n, _ = fill_as(uid, daemon, f"u{uid}-")
            assert n == LEAST // EACH
            uid, used = uid + 1, used + n * EACH
        assert root.stat().store_used == used
        publish(root, "of-root", MAX - used - 3, keep=32)
        assert root.stat().store_used == MAX
        publish(root, "of-root")
        assert root.stat().store_used == MAX and versions(root, "of-root")[0] == 2


def test_what_is_unlimited_ends_where_the_reserve_begins(serve):
    daemon = serve("[limits]\nbuffers = unlimited\nversions = unlimited\ndescriptors = unlimited\n")
    n, sentence = fill_as(ALICE, daemon, "a")
    assert OPEN - EACH < SOCKET + n * EACH <= OPEN and f"and uid {ALICE} would have" in sentence
    publish_as(BOB, daemon, "of-bob")


def test_a_user_below_its_share_evicts_of_users_above_theirs_and_its_own_first(serve):
    daemon = serve()
    with Wire(daemon.socket) as root:
        publish_as(CAROL, daemon, "of-carol", 8, keep=8)  # the oldest of all
        publish_as(ALICE, daemon, "of-alice", 32, keep=32)
        publish_as(ALICE, daemon, "of-alice-too", 32, keep=32)
        publish_as(BOB, daemon, "of-bob", 2, keep=2)
        n = (OPEN - root.stat().store_used) // EACH
        assert fill_as(BOB, daemon, "b", n) == (n, None)
        assert OPEN - root.stat().store_used < EACH
        before = {name: versions(root, name) for name in ("of-carol", "of-alice", "of-alice-too")}
        share = MAX // 3
        assert users(root)[ALICE] > share > users(root)[BOB] + EACH and users(root)[CAROL] < share
        used = root.stat().store_used
        publish_as(BOB, daemon, "one-more")
        gone = EACH - (OPEN - used)  # all of these that the newest of its own did not make up for
        assert versions(root, "of-bob") == [2]
        assert versions(root, "of-alice") == before["of-alice"][gone - 1:]
        assert [row.why for row in root.list(HISTORY, "of-alice") if row.ended_ns] == [BY_MEMORY] * (gone - 1)
        assert versions(root, "of-carol") == before["of-carol"] and versions(root, "of-alice-too") == before["of-alice-too"]


def test_a_user_above_its_share_evicts_nothing_of_others(serve):
    daemon = serve()
    with Wire(daemon.socket) as root:
        publish_as(CAROL, daemon, "of-carol", 27, keep=27)
        n, sentence = fill_as(ALICE, daemon, "a")
        assert n < LIMIT // EACH
        assert f"; 26 of old versions of other users stay: the share of each user is {MAX // 2}, and uid {ALICE} " not in sentence
        assert "26 of old versions of other users stay" in sentence
        assert versions(root, "of-carol") == list(range(1, 28))


# --- Connections ------------------------------------------------------------------------------------

OPEN_FILES = 512  # of weightd: half of them for what is kept, and three quarters of the rest for connections
CONNECTIONS = OPEN_FILES // 2 // 4 * 3


def connect_as(uid, daemon, most):
    """A child that connects until it is refused, or that often. It sends the number and the reason, and stays connected."""
    def act(pipe):
        wires, why = [], None
        while len(wires) < most and not why:
            try:
                wires.append(Wire(daemon.socket))
            except Refused as e:
                why = e.sentence
        pipe.send((len(wires), why))
        pipe.recv()

    return Child(act, uid=uid)


def test_connections_are_shared_too(make_daemon, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666", prefix=("prlimit", f"--nofile={OPEN_FILES}:{OPEN_FILES}"))
    least, free = CONNECTIONS // 16, CONNECTIONS - CONNECTIONS // 16 - CONNECTIONS // 4
    with connect_as(ALICE, daemon, 1000) as alice:
        assert alice.hear() == (CONNECTIONS // 2, "this user has too many connections; close some")
        with connect_as(BOB, daemon, 1000) as bob:
            assert bob.hear() == (free - CONNECTIONS // 2,
                                  "the connections that are left are for users with fewer than this one; close some")
            with connect_as(CAROL, daemon, least) as carol, Wire(daemon.socket) as root:
                assert carol.hear() == (least, None)
                publish(root, "m")


# --- A create that fails costs no version -----------------------------------------------------------


@pytest.fixture
def full(serve):
    """A connection of root, to a store in which a buffer has room only when 3 old versions of 'm' go."""
    daemon = serve(size=16)
    with Wire(daemon.socket) as w:
        publish(w, "m", 6, keep=6)
        publish(w, "n")
        w.daemon = daemon
        yield w


def refused(w, name, layout=LAYOUT, **kw):
    with pytest.raises(Refused) as e:
        w.create(name, layout, **kw)
    return e.value.errno


def is_evicting(w):
    """True if a create that succeeds has the versions that the others were to cost."""
    publish(w, "x")
    return versions(w, "m") == [4, 5, 6]


def test_a_create_without_memory_costs_no_version(full):
    assert refused(full, "x", image([("t", 1 << 50)])) == errno.ENOMEM
    assert versions(full, "m") == [1, 2, 3, 4, 5, 6]
    assert is_evicting(full)


def test_a_create_without_room_costs_no_version(full):
    leases = [full.attach("m", version) for version in (1, 2, 3, 4)]
    assert refused(full, "x") == errno.EDQUOT
    assert versions(full, "m") == [1, 2, 3, 4, 5, 6]
    for lease in leases:
        full.detach(lease.lease)
    assert is_evicting(full)


def test_a_create_beyond_a_limit_costs_no_version(serve):
    daemon = serve("[limits]\nbytes = 1M\n", 16)
    with Wire(daemon.socket) as w:
        publish(w, "m", 6, keep=6)
        publish(w, "n")
        assert refused(w, "x", image([("t", MIB)])) == errno.EDQUOT
        assert versions(w, "m") == [1, 2, 3, 4, 5, 6]
        assert is_evicting(w)


def give_up_create(full, size):
    """Leaves while the memory is made. False if it was made before."""
    with Wire(full.daemon.socket) as other:
        other.send_create("x", image([("t", size)]))
        until(lambda: full.stat().slot_bytes > size or not other.is_silent(), "it has begun")
        with stopped(full.daemon):
            if not other.is_silent():
                other.abort(other.slot(other.answer(CREATE)).writer)
                return False
            other.close()
    until(lambda: full.names() == ["m", "n"], full.names)
    return True


def test_a_create_that_is_given_up_costs_no_version(full):
    sizes = [256 * MIB, 512 * MIB, 1024 * MIB]
    while not give_up_create(full, sizes[0]):
        full.drop("m")
        publish(full, "m", 6, keep=6)
        assert sizes.pop(0) and sizes, "no create takes long enough here"
    assert len(versions(full, "m")) == 6
    publish(full, "x")
    assert len(versions(full, "m")) == 3


def test_two_creates_do_not_count_on_the_same_versions(full):
    with Wire(full.daemon.socket) as other:
        other.send_create("x", image([("t", 256 * MIB)]))
        until(lambda: full.stat().slot_bytes > 256 * MIB, "it has begun")
        assert refused(full, "y") == errno.EDQUOT
        slot = other.slot(other.answer(CREATE))
        other.publish(slot.writer)
    assert versions(full, "m") == [4, 5, 6]


# --- Memory ------------------------------------------------------------------------------------------

@pytest.fixture
def group(require):
    require("root")
    require("cgroup")
    with MemoryCgroup(MEMORY) as g:
        yield g


@pytest.fixture
def confined(group, make_daemon):
    return make_daemon("--reserve", "16M", "--socket-mode", "0666", prefix=group.prefix)


def publish_sized(uid, daemon, name, size, n=1, **kw):
    publish_as(uid, daemon, name, n, image([("t", size)]), **kw)


def test_a_user_below_its_share_gets_memory_of_one_above(confined):
    publish_sized(ALICE, confined, "m", 40 * MIB, 4, keep=4)
    publish_sized(BOB, confined, "other", 95 * MIB)
    with Wire(confined.socket) as w:
        assert versions(w, "m") == [2, 3, 4] and versions(w, "other") == [1]
        assert [row.why for row in w.list(HISTORY, "m") if row.ended_ns] == [BY_MEMORY]


@pytest.mark.parametrize("size", [150, 230])
def test_a_user_above_its_share_gets_none_of_others_and_is_told_so(confined, size):
    publish_sized(ALICE, confined, "m", 30 * MIB, 4, keep=4)
    with pytest.raises(Refused) as refused:
        publish_sized(BOB, confined, "other", size * MIB)
    assert refused.value.errno == errno.ENOMEM
    assert "of old versions of other users stay: the share of each user is" in refused.value.sentence
    assert re.search(rf"and uid {BOB} would hold {size * MIB // 10**6}\.\d MB; remove a buffer", refused.value.sentence)
    with Wire(confined.socket) as w:
        assert versions(w, "m") == [1, 2, 3, 4]


def test_versions_of_a_user_within_its_share_stay(confined):
    publish_sized(BOB, confined, "m", 30 * MIB, 2, keep=2)
    publish_sized(ALICE, confined, "of-alice", 140 * MIB)
    with pytest.raises(Refused, match="of old versions of other users stay") as refused:
        publish_sized(ALICE, confined, "more", 60 * MIB)
    assert refused.value.errno == errno.ENOMEM
    with Wire(confined.socket) as w:
        assert versions(w, "m") == [1, 2]


def test_the_own_versions_go_first_though_they_are_newer(confined):
    publish_sized(ALICE, confined, "of-alice", 40 * MIB, 3, keep=3)
    publish_sized(BOB, confined, "of-bob", 20 * MIB, 4, keep=4)
    publish_sized(BOB, confined, "more", 60 * MIB)
    with Wire(confined.socket) as w:
        assert versions(w, "of-alice") == [1, 2, 3] and versions(w, "of-bob") == [3, 4]


def test_a_replacement_counts_on_nothing_that_it_may_not_evict(confined):
    publish_sized(ALICE, confined, "m", 40 * MIB, 3, keep=3)
    publish_sized(BOB, confined, "other", 100 * MIB)
    with pytest.raises(Refused, match="without its present versions, which stay.*of old versions of other users stay") as refused:
        publish_sized(BOB, confined, "other", 180 * MIB, flags=REPLACE | NEW_LAYOUT)
    assert refused.value.errno == errno.ENOMEM
    with Wire(confined.socket) as w:
        assert versions(w, "m") == [1, 2, 3] and versions(w, "other") == [1]


# --- Subordinate users --------------------------------------------------------------------------------

FIRST = 300000  # of the range


@pytest.fixture
def ranges(serve, require, tmp_path):
    """ranges(text, limits): a weightd with this file of ranges; ranges.path is the file."""
    require("userns", "cannot make user namespaces with maps: the kernel or a supervisor forbids it", userns.is_available())

    def make(text, limits=""):
        make.path.write_text(text)
        return serve(f"[limits]\nsubuid = {make.path}\n{limits}")

    make.path = tmp_path / "subuid"
    return make


def run_inside(uid, act):
    """The result of act() by that user of a user namespace, whose users begin at FIRST outside."""
    def enter_and_act():
        userns.enter(FIRST)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        return act()

    return run_as(0, enter_and_act)


def publish_inside(uid, daemon, name, **kw):
    def act():
        with Wire(daemon.socket) as w:
            publish(w, name, **kw)

    run_inside(uid, act)


def test_users_of_a_range_have_the_limit_of_its_owner_together(ranges):
    daemon = ranges(f"{ALICE}:{FIRST}:65536\n", "buffers = 3\n")
    publish_as(ALICE, daemon, "of-alice")
    publish_inside(0, daemon, "of-root-inside")
    publish_inside(7, daemon, "of-another")
    for uid in 8, 65535:
        with pytest.raises(Refused, match=f"uid {FIRST + uid} has too many buffers") as e:
            publish_inside(uid, daemon, "one-too-many")
        assert e.value.errno == errno.EDQUOT
    with pytest.raises(Refused, match="has too many buffers"):
        publish_as(ALICE, daemon, "one-too-many")
    publish_as(BOB, daemon, "of-bob")
    with Wire(daemon.socket) as root:
        assert {row.uid: row.used_buffers for row in root.list(USERS) if row.used_buffers} == {ALICE: 3, BOB: 1}
        assert {row.uid for row in root.list(COSTS)} == {0, ALICE, BOB}
        assert {name: r.uid for name, r in root.records().items()} == {
            "of-alice": ALICE, "of-root-inside": FIRST, "of-another": FIRST + 7, "of-bob": BOB}, "the owners are as they were"


def test_the_rights_of_a_subordinate_user_are_its_own(ranges):
    daemon = ranges(f"{ALICE}:{FIRST}:65536\n")
    publish_inside(7, daemon, "private", mode=0o600)
    publish_as(ALICE, daemon, "of-alice", mode=0o600)

    def read(name):
        with Wire(daemon.socket) as w:
            try:
                return w.detach(w.attach(name).lease)
            except Refused as e:
                return e.errno

    assert run_inside(7, lambda: read("private")) is None
    assert run_as(ALICE, read, "private") == run_inside(0, lambda: read("private")) == errno.EACCES
    assert run_inside(7, lambda: read("of-alice")) == run_inside(0, lambda: read("of-alice")) == errno.EACCES


def test_a_user_sees_what_its_subordinate_users_cost(ranges):
    daemon = ranges(f"{ALICE}:{FIRST}:65536\n")
    publish_inside(7, daemon, "m")

    def charged():
        with Wire(daemon.socket) as w:
            return {row.uid: row.used_buffers for row in w.list(USERS)}

    assert run_as(ALICE, charged) == run_inside(8, charged) == {ALICE: 1}
    assert run_as(BOB, charged) == {BOB: 0}


def test_a_range_shares_the_store_as_one_user(ranges):
    """A range of 65,536 users took all that is not reserved; it is one user within the half."""
    daemon = ranges(f"{ALICE}:{FIRST}:65536\n")

    def fill(i):
        with Wire(daemon.socket) as w:
            try:
                for n in range(1000):
                    publish(w, f"{i}.{n}")
            except Refused as e:
                assert e.errno == errno.EDQUOT
            return n

    assert [run_inside(uid, lambda uid=uid: fill(uid)) for uid in (1, 2, 3)] == [LIMIT // EACH, 0, 0]
    assert fill_as(BOB, daemon, "b")[0] > 0


def test_holders_of_a_range_are_one_user(ranges):
    """Each of its users could hold as much as one."""
    daemon = ranges(f"{ALICE}:{FIRST}:65536\n", "held = 1M\n")
    big = image([("t", MIB)])

    def hold(pipe, uid):
        userns.enter(FIRST)
        os.setresuid(uid, uid, uid)
        with Wire(daemon.socket) as w:
            try:
                w.attach("m")
                pipe.send(0)
            except Refused as e:
                pipe.send(e.errno)
            pipe.recv()

    with Wire(daemon.socket) as root, contextlib.ExitStack() as stack:
        def hold_next(*uids):
            publish(root, "m", 2, layout=big, mode=0o644)
            return [stack.enter_context(Child(hold, uid)).hear() for uid in uids]

        assert hold_next(1, 2) + hold_next(3, 4) + hold_next(5) == [0] * 5
        publish(root, "m", 2, layout=big)
        assert {row.uid: row.over for row in root.list(HOLDERS)} == {ALICE: True}
        assert hold_next(6) == [errno.EDQUOT]


def test_a_reload_reads_the_ranges_again(ranges):
    daemon = ranges("", "buffers = 1\n")
    publish_inside(1, daemon, "a")
    publish_inside(2, daemon, "b")
    ranges.path.write_text(f"{ALICE}:{FIRST}:65536\n")
    with Wire(daemon.socket) as w:
        os.kill(w.ping().pid, signal.SIGHUP)
    until(lambda: "configuration read again" in daemon.log, "it has reloaded")
    publish_inside(3, daemon, "c")
    with pytest.raises(Refused, match="has too many buffers"):
        publish_inside(4, daemon, "d")
    with Wire(daemon.socket) as root:
        assert {row.uid: row.used_buffers for row in root.list(USERS) if row.used_buffers} == {
            FIRST + 1: 1, FIRST + 2: 1, ALICE: 1}
        root.drop("a")
        root.drop("c")
    publish_inside(4, daemon, "d")


@pytest.mark.parametrize("mode", [0o666, 0o620], ids=oct)
def test_a_file_of_ranges_that_others_may_write_is_not_trusted(ranges, mode):
    ranges.path.touch()
    ranges.path.chmod(mode)
    daemon = ranges(f"{BOB}:{FIRST}:65536\n", "buffers = 1\n")
    assert f"{ranges.path} has no effect, and subordinate users count as others: users other than root may write it" in daemon.log
    publish_inside(1, daemon, "a")
    publish_inside(2, daemon, "b")


def test_a_restart_charges_the_owner_of_the_range_again(ranges):
    daemon = ranges(f"{ALICE}:{FIRST}:65536\n", "buffers = 2\n")
    publish_inside(1, daemon, "a")
    publish_inside(2, daemon, "b")
    with Wire(daemon.socket) as w:
        os.kill(w.ping().pid, signal.SIGKILL)
        w.hang_up()
    with Wire(daemon.socket) as w:
        assert {row.uid: row.used_buffers for row in w.list(USERS) if row.used_buffers} == {ALICE: 2}
    with pytest.raises(Refused, match="has too many buffers"):
        publish_inside(3, daemon, "c")

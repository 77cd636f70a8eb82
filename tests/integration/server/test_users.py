"""Permissions of a buffer: its uid, gid and mode, as with a file."""
import errno
import os
import resource

import pytest
import weightd
from lib import features, wire
from lib.child import Child, daemon_prefix, run_as
from lib.wire import Refused, Wire, image, until

OWNER, MEMBER, OTHER = 12345, 12346, 12347
GROUP = 23456
NOBODY = 65534

LAYOUT = image([("t", 4096)])


@pytest.fixture(autouse=True)
def root_only(require):
    require("root")


@pytest.fixture
def daemon(make_daemon):
    """One that every user may connect to."""
    return make_daemon("--socket-mode", "0666")


def publish(path, name, pattern=b"data", **kw):
    with Wire(path) as w:
        slot = w.create(name, LAYOUT, **kw)
        return w.publish(slot.writer, wire.fill(slot, pattern))


def outcome(act, *args):
    """0, or the errno it was refused with."""
    try:
        act(*args)
        return 0
    except Refused as e:
        return e.errno


def what_is_allowed(path, names, owner=OWNER):
    """The answers for each buffer: does it attach, does it write, is it listed?"""
    with Wire(path) as w:
        listed = w.names()
        found = {}
        for name in names:
            attached = outcome(w.attach, name)
            written = outcome(lambda: w.abort(w.create(name, LAYOUT, owner=owner).writer))
            assert {attached, written} <= {0, errno.EACCES}
            found[name] = (not attached, not written, name in listed)
        return found


MODES = [0o400, 0o600, 0o200, 0o640, 0o660, 0o620, 0o644, 0o666, 0o646, 0o606, 0o060, 0o006, 0o777]
USERS = {  # name: (uid, gid, groups, the bits of the mode that count)
    "the owner": (OWNER, GROUP, [], 6),
    "the owner outside its group": (OWNER, OWNER, [], 6),
    "a member": (MEMBER, GROUP, [], 3),
    "a member by supplementary group": (MEMBER, MEMBER, [1, GROUP, 77], 3),
    "another user": (OTHER, OTHER, [1, 77], 0),
    "root": (0, 0, [], None),
}


@pytest.mark.parametrize("who", USERS)
def test_the_mode_says_who_reads_and_who_writes(daemon, who):
    modes = {f"m{mode:o}": mode for mode in MODES}
    for name, mode in modes.items():
        run_as(OWNER, lambda: publish(daemon.socket, name, mode=mode), gid=GROUP)
    uid, gid, groups, shift = USERS[who]
    found = run_as(uid, what_is_allowed, daemon.socket, modes, gid=gid, groups=groups)
    for name, mode in modes.items():
        bits = 7 if shift is None else mode >> shift & 7
        reads, writes = bool(bits & 4), bool(bits & 2)
        assert found[name] == (reads, writes, reads or uid in (0, OWNER)), f"{mode:04o}"


def test_the_default_is_0640(daemon):
    run_as(OWNER, publish, daemon.socket, "m", gid=GROUP)
    assert run_as(MEMBER, what_is_allowed, daemon.socket, ["m"], gid=GROUP)["m"] == (True, False, True)
    assert run_as(OTHER, what_is_allowed, daemon.socket, ["m"])["m"] == (False, False, False)


def test_a_refusal_says_why(daemon):
    run_as(OWNER, publish, daemon.socket, "m", gid=GROUP)

    def sentences():
        with Wire(daemon.socket) as w:
            said = []
            for act in (lambda: w.attach("m"), lambda: w.create("m", LAYOUT), lambda: w.drop("m"),
                        lambda: w.wait("m", timeout_ms=0)):
                with pytest.raises(Refused) as refused:
                    act()
                said.append((refused.value.errno, refused.value.sentence))
            return said

    rights = f"(owner uid {OWNER}, gid {GROUP}, mode 0640)"
    assert run_as(OTHER, sentences) == [
        (errno.EACCES, f"uid {OTHER} may not read 'm' {rights}"),
        (errno.EACCES, f"uid {OTHER} may not write 'm' {rights}"),
        (errno.EACCES, f"uid {OTHER} may not remove 'm'; its owner is uid {OWNER}"),
        (errno.EACCES, f"uid {OTHER} may not read 'm' {rights}"),
    ]


def test_only_owner_and_root_remove(daemon):
    def drop(name):
        with Wire(daemon.socket) as w:
            return outcome(w.drop, name), outcome(w.drop, name, 1)

    for name in "by owner", "by root":
        name = name.replace(" ", "-")
        run_as(OWNER, lambda: publish(daemon.socket, name, mode=0o666), gid=GROUP)
        assert run_as(MEMBER, drop, name, gid=GROUP) == (errno.EACCES, errno.EACCES)
        assert run_as(OTHER, drop, name) == (errno.EACCES, errno.EACCES)
        assert run_as(OWNER if "owner" in name else 0, drop, name) == (0, errno.ENOENT)


def test_a_writer_who_is_not_the_owner_changes_neither_owner_nor_mode(daemon):
    run_as(OWNER, lambda: publish(daemon.socket, "m", mode=0o660), gid=GROUP)
    run_as(MEMBER, lambda: publish(daemon.socket, "m", b"new", mode=0o666, owner=OWNER), gid=GROUP)
    assert run_as(OTHER, what_is_allowed, daemon.socket, ["m"])["m"] == (False, False, False)
    assert run_as(OWNER, lambda: publish(daemon.socket, "m")) == 3


def test_a_wait_ends_for_those_who_may_read(daemon):
    def wait():
        with Wire(daemon.socket) as w:
            return outcome(w.wait, "m", 0, 1000)

    with Wire(daemon.socket) as witness, Wire(daemon.socket) as reader:
        reader.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(b"m", b"", 0, -1))
        slot = witness.create("m", LAYOUT, mode=0o600)
        witness.publish(slot.writer)
        reader.answer(wire.WAIT)
    assert run_as(OTHER, wait) == errno.EACCES


# --- Descriptors ------------------------------------------------------------------------------------


def reopen(fd):
    """0, or why it cannot be opened for writing; likewise for changing its mode."""
    def outcome_of(act):
        try:
            act()
            return 0
        except OSError as e:
            return e.errno
    return outcome_of(lambda: os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))), \
        outcome_of(lambda: os.fchmod(fd, 0o777))


def test_readers_cannot_open_what_they_got_for_writing(daemon):
    publish(daemon.socket, "m", mode=0o644)

    def attach_and_reopen():
        with Wire(daemon.socket) as w:
            lease = w.attach("m")
            return [reopen(fd) for fd in (lease.slot_fd, lease.layout_fd, lease.head_fd)], reopen(wire.memfd())

    of_the_servers, of_its_own = run_as(OTHER, attach_and_reopen)
    slot, layout, head = of_the_servers
    assert of_its_own == (0, 0), "this would show nothing"
    assert slot == head == (errno.EACCES, errno.EPERM)
    assert layout[1] == errno.EPERM  # and sealed since it was made


def test_writers_cannot_open_their_memory_to_others(daemon):
    """A process that receives the descriptor, before or after the publish, cannot open it either."""
    run_as(0, lambda: publish(daemon.socket, "m", mode=0o666))

    def create_and_reopen():
        with Wire(daemon.socket) as w:
            slot = w.create("m", LAYOUT, owner=0)
            before = reopen(slot.fd), reopen(slot.reader_fd)
            w.publish(slot.writer)
            return before, (reopen(slot.fd), reopen(slot.reader_fd))

    denied = (errno.EACCES, errno.EPERM)
    assert run_as(OTHER, create_and_reopen) == ((denied, denied), (denied, denied))


# --- The user that stands for all others ------------------------------------------------------------


def test_the_overflow_user_owns_nothing(daemon):
    def create():
        with Wire(daemon.socket) as w:
            w.create("new", LAYOUT)

    with pytest.raises(Refused, match="uid 65534 stands for every user that this weightd cannot name, and "
                                      "cannot own a buffer") as refused:
        run_as(NOBODY, create)
    assert refused.value.errno == errno.EPERM
    with Wire(daemon.socket) as w:
        assert w.names() == []


def test_the_overflow_user_is_in_no_group(daemon):
    for name, mode in ("g", 0o660), ("o", 0o604):
        run_as(OWNER, lambda: publish(daemon.socket, name, mode=mode), gid=GROUP)
    found = run_as(NOBODY, what_is_allowed, daemon.socket, ["g", "o"], gid=GROUP)
    assert found == {"g": (False, False, False), "o": (True, False, True)}


# --- Limits of a user -------------------------------------------------------------------------------

MAX_SESSIONS, MAX_BUFFERS = 1000, 500


@pytest.fixture
def many_descriptors():
    features.require_descriptors(8 * MAX_SESSIONS)


def test_a_user_with_too_many_connections_is_told_so_and_others_connect(make_daemon, many_descriptors, require, tmp_path):
    require("inih")
    (tmp_path / "w.conf").write_text(f"[limits]\nconnections = {MAX_SESSIONS}\n")
    daemon = make_daemon("--socket-mode", "0666", "--config", tmp_path / "w.conf")

    def connect_too_often(pipe):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        wires = [Wire(daemon.socket) for _ in range(MAX_SESSIONS)]
        said = set()
        for _ in range(100):  # speaking before and after the server has turned away
            try:
                weightd.ping(socket=daemon.socket)
            except weightd.Error as e:
                said.add((e.errno, str(e)))
        pipe.send(said)
        pipe.recv()
        wires.pop().close()
        until(lambda: wires[0].ping().n_sessions == MAX_SESSIONS, "one is gone")
        Wire(daemon.socket)
        pipe.send("connected")

    with Child(connect_too_often, uid=OWNER) as child:
        assert child.hear() == {(errno.EDQUOT, "this user has too many connections; close some")}
        with Wire(daemon.socket) as other:
            assert other.ping().n_sessions == MAX_SESSIONS + 1
            child.say("close one")
            assert child.hear() == "connected"


def test_a_user_with_too_many_buffers_is_told_so_and_others_create(make_daemon, many_descriptors, require,
                                                                   tmp_path):
    require("inih")
    (tmp_path / "w.conf").write_text(f"[limits]\nbuffers = {MAX_BUFFERS}\ndescriptors = unlimited\n")  # they run out earlier
    daemon = make_daemon("--socket-mode", "0666", "--config", tmp_path / "w.conf")

    def create_too_many(pipe):
        with Wire(daemon.socket) as w:
            for i in range(MAX_BUFFERS):
                slot = w.create(f"b{i}", LAYOUT)
                w.forget([slot.fd, slot.reader_fd])
            try:
                w.create("one-more", LAYOUT)
            except Refused as e:
                pipe.send((e.errno, e.sentence))
            pipe.recv()
            w.abort(slot.writer)
            w.create("one-more", LAYOUT)
            pipe.send("created")
            pipe.recv()

    with Child(create_too_many, uid=OWNER) as child, Wire(daemon.socket) as other:
        assert child.hear() == (errno.EDQUOT, f"uid {OWNER} has too many buffers; remove some buffers (weightctl rm), or "
                                             "raise buffers= in [limits] of weightd.conf")
        other.create("mine", LAYOUT)
        child.say("remove one")
        assert child.hear() == "created"
        assert other.ping().n_buffers == MAX_BUFFERS + 1
        child.kill()
        until(lambda: other.ping().n_buffers == 1, "all of its buffers are gone")


# --- A daemon that is not root ----------------------------------------------------------------------


def test_a_daemon_of_a_user_serves_that_user_and_root(make_daemon):
    daemon = make_daemon(prefix=daemon_prefix(OWNER))
    assert run_as(OWNER, publish, daemon.socket, "m") == 1
    assert what_is_allowed(daemon.socket, ["m"])["m"] == (True, True, True)
    with pytest.raises(PermissionError):
        run_as(OTHER, Wire, daemon.socket)


def test_a_daemon_of_a_user_shares_with_others_as_the_mode_says(make_daemon):
    daemon = make_daemon("--socket-mode", "0666", prefix=daemon_prefix(OWNER))
    run_as(MEMBER, lambda: publish(daemon.socket, "m", mode=0o640), gid=GROUP)
    assert run_as(OTHER, what_is_allowed, daemon.socket, ["m"])["m"] == (False, False, False)
    assert run_as(OTHER, what_is_allowed, daemon.socket, ["m"], gid=GROUP)["m"] == (True, False, True)
    for uid in OWNER, 0, MEMBER:
        assert run_as(uid, what_is_allowed, daemon.socket, ["m"], MEMBER)["m"] == (True, True, True)


def test_a_layout_that_the_daemon_may_not_open_is_refused(make_daemon):
    daemon = make_daemon("--socket-mode", "0666", prefix=daemon_prefix(OWNER))

    def create():
        fd = wire.memfd(LAYOUT)
        os.fchmod(fd, 0)
        with Wire(daemon.socket) as w:
            return outcome(w.create, "new", fd), w.names()

    assert run_as(OTHER, create) == (errno.EACCES, [])


def test_a_wait_for_what_one_may_not_read_is_refused(daemon):
    def body(pipe):
        with Wire(daemon.socket) as w:
            pipe.send("waits")
            pipe.send(outcome(w.wait, "m"))

    with Child(body, uid=OTHER) as child:
        assert child.hear() == "waits"
        publish(daemon.socket, "m", mode=0o600)
        assert child.hear() == errno.EACCES

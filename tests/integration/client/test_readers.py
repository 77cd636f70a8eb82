"""Readers of other users: what they hold is theirs, and they cannot stop a writer."""
import contextlib
import errno
import json
import os
import pathlib
import re
import signal
import socket

import pytest
import weightd
from lib import wire
from lib.cgroup import MemoryCgroup
from lib.child import Child
from lib.wire import Refused, Wire, image, stopped, until

OWNER, READER, OTHER, UNKNOWN = 12345, 12346, 12347, 12348
MIB = 1 << 20
SMALL = image([("t", 4096)])
BIG = image([("t", 4 * MIB)])
BIG_BYTES = 4 * MIB + 4096  # with the digests of its bytes


@pytest.fixture(autouse=True)
def root_only(require):
    require("root", "inih")


@pytest.fixture
def serve(make_daemon, tmp_path):
    """serve("bytes = 1G"): a daemon for all users with these [limits]."""
    def start(limits="", *args):
        (tmp_path / "weightd.conf").write_text(f"[limits]\n{limits}\n")
        return make_daemon("--socket-mode", "0666", "--config", tmp_path / "weightd.conf", *args)
    return start


def publish(w, layout=SMALL, name="m", **kw):
    """A version, without any hold of the writer on it."""
    slot = w.create(name, layout, mode=0o644, **kw)
    version = w.publish(slot.writer, wire.fill(slot, b"data"))
    w.detach(slot.writer)
    return version


class Peer(Child):
    """A process of another user: do(act, ...) is act(its connection, ...)."""

    def __init__(self, daemon, uid):
        def serve(pipe):
            with Wire(daemon.socket) as w:
                while True:
                    act, args, kw = pipe.recv()
                    try:
                        found = act(w, *args, **kw)
                    except Refused as e:
                        found = e
                    pipe.send(found)

        super().__init__(serve, uid=uid)

    def do(self, act, *args, **kw):
        """The result. Refused."""
        self.say((act, args, kw))
        found = self.hear()
        if isinstance(found, Refused):
            raise found
        return found

    def publish(self, *args, **kw):
        return self.do(publish, *args, **kw)

    def attach(self, *args, **kw):
        return self.do(Wire.attach, *args, **kw)

    def detach(self, lease):
        self.do(Wire.detach, lease.lease)

    def refused(self, act, *args, **kw):
        with pytest.raises(Refused) as e:
            self.do(act, *args, **kw)
        return e.value.errno, e.value.sentence


def charges(daemon, uid):
    with Wire(daemon.socket) as w:
        return next((u for u in w.list(wire.USERS) if u.uid == uid), None)


def held(daemon, uid):
    """(bytes that the user is charged for as a reader, bytes as a publisher); 0 without a record."""
    with Wire(daemon.socket) as w:
        holder = next((h.n_bytes for h in w.list(wire.HOLDERS) if h.uid == uid), 0)
        return holder, next((u.used_bytes for u in w.list(wire.USERS) if u.uid == uid), 0)


def holder(daemon, uid):
    with Wire(daemon.socket) as w:
        return next((h for h in w.list(wire.HOLDERS) if h.uid == uid), None)


def publish_many(w, names):
    for name in names:
        publish(w, name=name)
        w.forget(list(w.fds))


def attach_many(w, names):
    for name in names:
        w.attach(name)
        w.forget(list(w.fds))


def drop_many(w, names):
    for name in names:
        w.drop(name)


def test_readers_of_a_publisher_do_not_use_up_what_is_reserved(make_daemon, tmp_path):
    (tmp_path / "weightd.conf").write_text("[store]\nmax = 960\n")  # 60 for each at least, 300 reserved
    daemon = make_daemon("--keeper", "--socket-mode", "0666", "--config", tmp_path / "weightd.conf")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader, Peer(daemon, OTHER) as other:
        with pytest.raises(Refused) as refused:
            for i in range(80):
                names = [f"m{i}/{j}" for j in range(14)]
                writer.do(publish_many, names)
                reader.do(attach_many, names)
                writer.do(drop_many, names)
        assert refused.value.errno == errno.EDQUOT
        assert re.match(rf"uid {READER} holds \d+ versions that only its readers keep, and what is left of the service manager's "
                        "store is for users with less; the oldest is 'm0/0@1' on host", refused.value.sentence)
        other.publish(name="other")
        other.attach("other")
        writer.attach("other")


# --- Versions of one buffer ---


def test_a_reader_that_holds_every_version_does_not_stop_the_writer(serve):
    daemon = serve()
    refused = set()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        for _ in range(80):
            writer.publish()
            try:
                reader.attach("m")
            except Refused as e:
                refused.add(e.errno)
    assert refused == {errno.EDQUOT}


def test_mappings_without_leases_count_as_held_versions(serve):
    daemon = serve()
    said = []
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        for _ in range(80):
            writer.publish()
            try:
                lease = reader.attach("m")
            except Refused as e:
                said.append((e.errno, e.sentence))
            else:
                reader.do(Wire.ask, wire.DETACH, lease.lease)  # and keeps it open
    assert {code for code, _ in said} == {errno.EDQUOT}
    assert "the oldest is 'm@1' on host (mapped without a lease)" in said[0][1]


def test_readers_of_many_users_together_do_not_stop_the_writer(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Peer(daemon, READER + i)) for i in range(8)]
        counts = [0] * len(readers)
        for reader in range(len(readers)):
            for _ in range(32):
                writer.publish()
                try:
                    readers[reader].attach("m")
                    counts[reader] += 1
                except Refused as e:
                    assert e.errno == errno.EDQUOT
        writer.publish()
    assert counts[0] > counts[1] > counts[2] > 0, counts


def test_a_reader_above_its_share_of_versions_is_told_which_to_let_go(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader, Peer(daemon, OTHER) as other:
        leases = []
        with pytest.raises(Refused) as refused:
            for _ in range(80):
                writer.publish()
                leases.append(reader.attach("m"))
        assert refused.value.errno == errno.EDQUOT
        assert re.fullmatch(rf"uid {READER} holds {len(leases)} versions of 'm', its share of those that a buffer can have; "
                            rf"the oldest is 'm@1' on host \(pid {reader.pid}, since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\): "
                            "detach it, or end that process", refused.value.sentence), refused.value.sentence
        reader.attach("m", leases[-1].version)  # it has that already
        other.attach("m")
        reader.detach(leases[0])
        reader.attach("m")


def test_the_owner_of_a_buffer_may_use_up_its_versions_and_is_told_who_holds_them(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        for _ in range(5):
            writer.publish()
            reader.attach("m")
        with pytest.raises(Refused) as refused:
            for _ in range(80):
                writer.publish()
                writer.attach("m")
        assert refused.value.errno == errno.EDQUOT
        assert re.fullmatch(rf"62 versions of 'm' are held by readers; let some go: uid {OWNER} holds \d\d, uid {READER} "
                            "holds 5", refused.value.sentence), refused.value.sentence


# --- Bytes ---


def test_versions_that_a_reader_holds_do_not_use_up_the_limits_of_the_writer(serve):
    daemon = serve("bytes = 32M\ndescriptors = 12\nversions = 4")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        for _ in range(10):
            writer.publish(BIG)
            reader.attach("m")


def test_a_version_is_charged_to_its_reader_from_its_end_on_and_back_at_the_end_of_the_lease(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        writer.publish(BIG, keep=1)
        one = held(daemon, OWNER)[1]
        lease = reader.attach("m")
        assert held(daemon, READER) == (0, 0)
        writer.publish(BIG)
        until(lambda: held(daemon, READER) == (BIG_BYTES, 0), "it is beyond keep")
        assert held(daemon, OWNER) == (0, one)
        assert charges(daemon, READER).used_descriptors == 1
        writer.do(Wire.drop, "m", 1)
        assert held(daemon, READER) == (BIG_BYTES, 0)
        reader.detach(lease)
        until(lambda: held(daemon, READER) == (0, 0), "nobody needs it")
        assert held(daemon, OWNER) == (0, one)
        lease = reader.attach("m")
        writer.do(Wire.drop, "m")
        assert held(daemon, READER) == (BIG_BYTES, 0), "of a removed buffer"
        reader.detach(lease)
        until(lambda: charges(daemon, OWNER).used_descriptors == 0, "all of it is free")


def test_a_rollback_to_a_held_version_gives_it_back_to_its_publisher(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        writer.publish(BIG, keep=1)
        reader.attach("m")
        writer.publish(BIG)
        assert held(daemon, READER)[0] == BIG_BYTES
        before = charges(daemon, OWNER)
        writer.do(Wire.rollback, "m", 1)
        assert held(daemon, READER) == (0, 0)
        after = charges(daemon, OWNER)
        assert (after.used_versions, after.used_bytes) == (before.used_versions + 1, before.used_bytes + BIG_BYTES)


def test_a_version_is_charged_to_the_user_that_has_held_it_longest_and_then_to_the_next(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader, Peer(daemon, OTHER) as other:
        writer.publish(BIG, keep=1)
        first, again = reader.attach("m"), reader.attach("m")
        second = other.attach("m")
        own = writer.attach("m")
        writer.publish(BIG)
        assert (held(daemon, READER)[0], held(daemon, OTHER)[0]) == (0, 0), "its publisher holds it as well"
        writer.detach(own)
        assert (held(daemon, READER)[0], held(daemon, OTHER)[0]) == (BIG_BYTES, 0)
        reader.detach(first)
        assert (held(daemon, READER)[0], held(daemon, OTHER)[0]) == (BIG_BYTES, 0)
        reader.detach(again)
        assert (held(daemon, READER)[0], held(daemon, OTHER)[0]) == (0, BIG_BYTES)
        other.kill()
        until(lambda: held(daemon, OTHER) == (0, 0), "it is free")
        assert second.version == 1


def test_memory_that_is_mapped_after_its_last_lease_stays_with_its_last_reader(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        writer.publish(BIG, keep=1)
        lease = reader.attach("m")
        reader.do(Wire.ask, wire.DETACH, lease.lease)
        writer.publish(BIG)
        until(lambda: held(daemon, READER)[0] == BIG_BYTES, "it ended, and is open")
        record = holder(daemon, READER)
        assert (record.name, record.version, record.pid, record.since_ns) == ("m", 1, 0, 0)
        reader.do(Wire.forget, lease.fds)
        until(lambda: held(daemon, READER) == (0, 0), "it is free")


def test_a_user_above_its_limit_gets_no_further_lease_and_is_told_the_oldest(serve):
    daemon = serve("held = 10M")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader, Peer(daemon, OTHER) as other:
        leases = []
        for _ in range(3):
            writer.publish(BIG, keep=1)
            leases.append(reader.attach("m"))
        writer.publish(BIG)
        code, sentence = reader.refused(Wire.attach, "m")
        assert code == errno.EDQUOT
        assert re.fullmatch(rf"uid {READER} holds 12\.\d MB of versions that only its readers keep, more than its limit of "
                            rf"10\.\d MB; the oldest is 'm@1' on host \(pid {reader.pid}, since \S+Z\): detach it, end that "
                            r"process, or raise held= in \[limits\] of weightd.conf", sentence), sentence
        other.attach("m")
        for lease in leases:
            assert reader.do(read_first, lease) == b"data", "nothing is taken away"
        reader.detach(leases[0])
        reader.attach("m")


def test_one_version_of_any_size_may_be_held_so_that_its_reader_can_go_on_to_the_next(serve):
    daemon = serve("held = 0")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        writer.publish(BIG, keep=1)
        lease = reader.attach("m")
        for _ in range(5):
            writer.publish(BIG)
            before, lease = lease, reader.attach("m")
            assert lease.version == before.version + 1
            reader.detach(before)


def read_first(w, lease):
    return lease.bytes()[:4]


def test_only_an_administrator_sees_what_others_hold(serve):
    daemon = serve("held = 5M")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        for _ in range(2):
            writer.publish(BIG, keep=1)
            reader.attach("m")
        writer.publish(BIG)
        record = holder(daemon, READER)
        assert record[:3] == ("m", "host", 1) and record.since_ns > 0
        assert (record.n_bytes, record.limit, record.uid, record.pid, record.n_versions, record.over) == \
            (2 * BIG_BYTES, 5 * MIB, READER, reader.pid, 2, 1)
        assert reader.do(Wire.list, wire.HOLDERS) == [record]
        assert writer.do(Wire.list, wire.HOLDERS) == []
        lines = daemon.ctl("stat").stdout.splitlines()
        row, = [line.split() for line in lines if line.startswith(str(READER))]
        assert row[1:8] == ["8.4", "MB/5.2", "MB", "2", "yes", "m", "host"] and str(reader.pid) in row, lines
        found, = json.loads(daemon.ctl("stat", "--json").stdout)["holders"]
        assert (found["uid"], found["over"], found["oldest"], found["version"], found["pid"]) == (READER, True, "m", 1, reader.pid)
        assert [h.over for h in weightd.holders(socket=daemon.socket)] == [True]


def test_costs_of_a_reader_have_what_it_holds(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        writer.publish(BIG, keep=1)
        lease = reader.attach("m")
        writer.publish(BIG)

        def cost():
            with Wire(daemon.socket) as w:
                return next(c.held_bytes for c in w.list(wire.COSTS) if c.uid == READER)

        assert cost() == BIG_BYTES
        reader.detach(lease)
        until(lambda: cost() == 0, "it is free")


def test_a_user_has_a_limit_of_its_own_and_a_reload_changes_it(serve, tmp_path):
    daemon = serve(f"held = 1G\n[limits:{READER}]\nheld = 5M")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        for _ in range(2):
            writer.publish(BIG, keep=1)
            reader.attach("m")
        writer.publish(BIG)
        assert reader.refused(Wire.attach, "m")[0] == errno.EDQUOT
        (tmp_path / "weightd.conf").write_text("[limits]\nheld = auto\n")
        daemon.proc.send_signal(signal.SIGHUP)
        until(lambda: holder(daemon, READER).limit > 5 * MIB, "it was read again")
        reader.attach("m")


@pytest.fixture
def group(require):
    require("cgroup")
    with MemoryCgroup(64 * MIB) as g:
        yield g


def test_a_writer_without_memory_is_told_who_holds_it(group, make_daemon):
    daemon = make_daemon("--socket-mode", "0666", "--reserve", "8M", prefix=group.prefix)
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader, Peer(daemon, OTHER) as other:
        for i, peer in enumerate([reader, reader, other]):
            writer.publish(BIG, f"m{i}", keep=1)
            peer.attach(f"m{i}")
            writer.publish(BIG, f"m{i}")
        code, sentence = writer.refused(publish, image([("t", 60 * MIB)]), "big")
        assert code == errno.ENOMEM
        assert sentence.endswith(f". Of the memory that only readers keep, uid {READER} holds 8.4 MB, uid {OTHER} holds "
                                 "4.2 MB"), sentence


# --- Restarts ---


def restart(daemon):
    with Wire(daemon.socket) as w:
        os.kill(w.ping().pid, signal.SIGKILL)


def connect_again(w, path):
    """The connection's successor; its descriptors stay open."""
    w.socket.close()
    again = Wire(path)
    w.socket, w.serial = again.socket, again.serial
    again.socket = socket.socket()


def test_charges_and_leases_are_there_again_after_a_restart(serve):
    daemon = serve("held = 5M\nleases = 3", "--keeper")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader, Peer(daemon, OTHER) as other:
        leases = []
        for _ in range(2):
            writer.publish(BIG, keep=1)
            leases.append(reader.attach("m"))
        leases.append(reader.attach("m"))
        other.attach("m")
        writer.publish(BIG)
        assert held(daemon, READER)[0] == 2 * BIG_BYTES
        restart(daemon)
        until(lambda: daemon.is_serving(), "it serves again")
        assert held(daemon, READER)[0] == 2 * BIG_BYTES, "before they are back"
        other.do(connect_again, daemon.socket)
        assert other.do(Wire.renew, leases[1].buffer, 2) > 0
        reader.do(connect_again, daemon.socket)
        for lease in leases:
            assert reader.do(Wire.renew, lease.buffer, lease.version) > 0
        assert held(daemon, READER)[0] + held(daemon, OTHER)[0] == 2 * BIG_BYTES
        assert reader.refused(Wire.renew, leases[0].buffer, 1)[0] == errno.EDQUOT, "there were no more"


def renew_free_version(daemon, writer, reader, names):
    """False if weightd looked by itself at what is free, in the moment before it received the request."""
    for name in names:
        writer.publish(BIG, name, keep=1)
    leases = [reader.attach(name) for name in names]
    for name in names:
        writer.publish(BIG, name)
    for lease in leases:
        reader.ask(wire.DETACH, lease.lease)
    assert holder(daemon, READER).over == 1, "its descriptors hold them"
    with stopped(daemon):
        for lease in leases:
            reader.forget(lease.fds)
        reader.send(wire.RENEW, wire.BODIES[wire.RENEW].pack(leases[0].buffer, 1))
    try:
        reader.answer(wire.RENEW)
    except Refused as e:
        assert e.errno == errno.ESTALE, e
        until(lambda: holder(daemon, READER) is None, "all is free")
        return False
    return True


def test_a_version_that_is_free_by_now_can_be_renewed_by_a_reader_above_its_limit(serve):
    """The look at what its user still holds must not free what it asks for."""
    daemon = serve("held = 5M")
    with Peer(daemon, OWNER) as writer, Wire(daemon.socket) as w:
        os.seteuid(READER)
        reader = Wire(daemon.socket)
        os.seteuid(0)
        assert any(renew_free_version(daemon, writer, reader, (f"m{i}", f"n{i}")) for i in range(20))
        assert w.ping().n_leases == 1
        reader.close()
        until(lambda: holder(daemon, READER) is None, "all is free")


# --- over = kill ---


def test_the_oldest_reader_is_killed_where_the_configuration_has_it_so(serve):
    daemon = serve(f"held = 5M\nover = kill\ntrusted = {OWNER}")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as first, Peer(daemon, READER) as second, \
            Peer(daemon, OTHER) as other:
        for reader in first, second:
            writer.publish(BIG, keep=1)
            reader.attach("m")
            other.attach("m")
        writer.publish(BIG)
        assert first.end() == -signal.SIGKILL
        until(lambda: held(daemon, READER)[0] + held(daemon, OTHER)[0] == 2 * BIG_BYTES, "the other one has it")
        assert re.search(rf"'m@1' on host released by a kill of pid {first.pid} uid {READER}", daemon.log)
        assert second.attach("m").version == 3 and other.attach("m").version == 3
        assert daemon.log.count("released by a kill") == 1


class Holder(Child):
    """Attaches version after version of the buffers that it is told of, and answers each time. It may change first."""

    def __init__(self, daemon, change=lambda: None, **kw):
        def hold(pipe):
            change()
            with Wire(daemon.socket) as w:
                while True:
                    act = pipe.recv()
                    pipe.send(act(w) if callable(act) else w.attach(act).version)

        super().__init__(hold, **kw)

    def attach(self, name):
        self.say(name)
        return self.hear()


def as_reader():
    """The effective user alone: the process can be root's again."""
    os.setresuid(READER, READER, 0)


def as_root(_):
    os.setresuid(0, 0, 0)


def leave_child(w):
    """The process that connected ends, and a child of it has its connection."""
    if os.fork():
        os._exit(0)
    return os.getpid()


def over_limit(writer, *readers):
    """Each of them holds versions of two buffers, which is too much."""
    for i in range(2):
        writer.publish(BIG, f"m{i}", keep=1)
        for reader in readers:
            reader.attach(f"m{i}")
        writer.publish(BIG, f"m{i}")


def turn_on(daemon):
    """over = kill, by a reload."""
    file = pathlib.Path(daemon.command[daemon.command.index("--config") + 1])
    file.write_text(file.read_text().replace("keep", "kill"))
    daemon.proc.send_signal(signal.SIGHUP)


def kills(daemon):
    return [line for line in daemon.log.splitlines() if "released by a kill" in line]


def test_an_owner_that_is_not_trusted_cannot_have_readers_killed(serve):
    """It ended what they read, so that they were above their limit. They get no further lease, and live."""
    daemon = serve(f"held = 5M\nover = kill\ntrusted = {OTHER} {OWNER}")
    with Peer(daemon, OWNER) as trusted, Peer(daemon, UNKNOWN) as attacker, Peer(daemon, READER) as reader, \
            Peer(daemon, OTHER) as witness:
        for name in "a0", "a1":
            attacker.publish(BIG, name)
            reader.attach(name)
            attacker.do(Wire.drop, name)
        assert holder(daemon, READER).over == 1
        trusted.publish(BIG, "t0", keep=1)
        with pytest.raises(Refused) as refused:
            reader.attach("t0")
        assert refused.value.errno == errno.EDQUOT
        over_limit(trusted, witness)
        assert witness.end() == -signal.SIGKILL, "the reader is not"
        assert len(kills(daemon)) == 1 and reader.process.is_alive()
        reader.do(Wire.ping)


def test_administrators_are_not_killed(serve):
    daemon = serve(f"held = 5M\nover = kill\ntrusted = {OWNER}")
    with Peer(daemon, OWNER) as writer, Holder(daemon) as admin, Peer(daemon, READER) as witness:
        over_limit(writer, admin)
        over_limit(writer, witness)
        assert witness.end() == -signal.SIGKILL, "the first two are not"
        assert holder(daemon, 0).over == 1 and admin.process.is_alive()
        assert len(kills(daemon)) == 1


def test_a_process_that_is_another_users_by_now_is_not_killed(serve):
    daemon = serve(f"held = 5M\nover = keep\ntrusted = {OWNER}")
    with Peer(daemon, OWNER) as writer, Holder(daemon, as_reader) as reader:
        writer.publish(BIG, "m0", keep=1)
        writer.publish(BIG, "m1", keep=1)
        assert (reader.attach("m0"), reader.attach("m1")) == (1, 1)
        reader.say(as_root)
        reader.hear()
        writer.publish(BIG, "m0")
        writer.publish(BIG, "m1")
        assert holder(daemon, READER).over == 1
        turn_on(daemon)
        until(lambda: kills(daemon), "it was tried")
        assert kills(daemon)[0].endswith(f"pid {reader.pid} uid {READER}: Operation not permitted")
        assert reader.process.is_alive()


def test_nothing_is_killed_for_a_process_that_is_dead(serve):
    daemon = serve(f"held = 5M\nover = keep\ntrusted = {OWNER}")
    with Peer(daemon, OWNER) as writer, Holder(daemon, uid=READER) as reader:
        over_limit(writer, reader)
        reader.say(leave_child)
        child = reader.hear()
        try:
            reader.process.join()
            turn_on(daemon)
            until(lambda: kills(daemon), "it was tried")
            assert kills(daemon)[0].endswith(f"pid {reader.pid} uid {READER}: No such process")
            assert holder(daemon, READER).over == 1, "its child lives and has the lease"
        finally:
            os.kill(child, signal.SIGKILL)
        until(lambda: holder(daemon, READER) is None, "it is free")


@pytest.mark.parametrize("change", ["user", "connection"])
def test_the_next_reader_is_killed_where_the_oldest_one_cannot_be(serve, change):
    daemon = serve(f"held = 5M\nover = keep\ntrusted = {OWNER}")
    with Peer(daemon, OWNER) as writer, Holder(daemon, as_reader) as oldest, Peer(daemon, READER) as witness:
        writer.publish(BIG, "m0", keep=1)
        writer.publish(BIG, "m1", keep=1)
        oldest.attach("m0")
        witness.attach("m1")
        oldest.say(as_root if change == "user" else leave_child)
        child = oldest.hear()
        try:
            if child:
                oldest.process.join()
            writer.publish(BIG, "m0")
            writer.publish(BIG, "m1")
            turn_on(daemon)
            assert witness.end() == -signal.SIGKILL
            until(lambda: len(kills(daemon)) == 2, "the second kill is logged")
            assert [re.search(r"pid (\d+)", line)[1] for line in kills(daemon)] == [str(oldest.pid), str(witness.pid)]
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


# --- Other kinds of buffers ---


def test_a_slot_that_is_used_again_is_its_writers_again(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        writer.publish(BIG, keep=1, flags=wire.REUSABLE)
        lease = reader.attach("m")
        writer.publish(BIG)
        assert held(daemon, READER)[0] == BIG_BYTES
        before = held(daemon, OWNER)[1]
        reader.detach(lease)
        until(lambda: held(daemon, READER) == (0, 0), "it is spare")
        assert held(daemon, OWNER)[1] == before + BIG_BYTES
        writer.publish(BIG)
        until(lambda: held(daemon, OWNER)[1] == before + BIG_BYTES, "the one that is spare now")


def test_readers_of_an_exclusive_buffer_hold_its_slot_once_it_is_removed(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        writer.publish(BIG, flags=wire.EXCLUSIVE)
        lease = reader.attach("m")
        assert held(daemon, READER)[0] == 0
        writer.do(Wire.drop, "m")
        assert held(daemon, READER)[0] == BIG_BYTES
        reader.detach(lease)
        until(lambda: held(daemon, READER) == (0, 0), "it is free")


# --- Tables, files and buffers ---


def test_everything_that_a_removed_buffer_keeps_for_a_reader_is_charged_to_the_reader(serve):
    daemon = serve("descriptors = 8")
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        leases = []
        for _ in range(2):
            writer.publish(BIG)
            leases.append(reader.attach("m"))
            writer.do(Wire.drop, "m")
        after = charges(daemon, READER)
        assert (after.used_descriptors, charges(daemon, OWNER).used_descriptors, held(daemon, OWNER)[1]) == (8, 0, 0)
        writer.publish(BIG)
        for lease in leases:
            reader.detach(lease)
        until(lambda: charges(daemon, READER).used_descriptors == 0, "it is free")
        assert charges(daemon, OWNER).used_descriptors == 4


def test_a_table_that_a_newer_version_has_too_stays_with_the_writer(serve):
    daemon = serve()
    with Peer(daemon, OWNER) as writer, Peer(daemon, READER) as reader:
        writer.publish(BIG, keep=1)
        reader.attach("m")
        writer.publish(BIG)
        assert charges(daemon, READER).used_descriptors == 1
        writer.publish(SMALL, flags=wire.NEW_LAYOUT)
        until(lambda: charges(daemon, READER).used_descriptors == 2, "its table is needed by no other version")
        writer.do(Wire.rollback, "m", 1)
        assert charges(daemon, READER).used_descriptors == 0

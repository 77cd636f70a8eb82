"""
The life of versions: deaths of processes at each step, and the memory that is kept or freed. Writers and readers here
speak the wire themselves, to stop between any two steps; tests of libweightd are at the end.
"""
import contextlib
import ctypes
import errno
import json
import mmap
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest
import weightd
from integration.programs import program
from lib import wire
from lib.child import Child
from lib.wire import Refused, Wire, image, stopped, until
from weightd._abi import lib

SMALL = image([("t", 4096)])
OTHER = image([("t", 4096), ("u", 1)])


@pytest.fixture
def witness(daemon):
    """A connection that stays, to look on."""
    with Wire(daemon.socket) as w:
        yield w


def publish(path, name, pattern, layout=SMALL, **kw):
    """Publishes the next version and lets go of it. Returns its number."""
    with Wire(path) as w:
        slot = w.create(name, layout, **kw)
        return w.publish(slot.writer, wire.fill(slot, pattern))


def versions(daemon, name):
    return [v.version for v in weightd.versions(name, socket=daemon.socket)]


def newest(witness, name):
    """Number of the newest version; 0: there is no such buffer; -1: nothing of it is published."""
    record = witness.records().get(name)
    return 0 if record is None else record.version or -1


def assert_refused(code, match, act, *args, **kw):
    with pytest.raises(Refused, match=match) as refused:
        act(*args, **kw)
    assert refused.value.errno == code, refused.value


def slot_memory(pid):
    """Bytes of the slots that the process has open or mapped: of the whole machine's, others have theirs."""
    proc, sizes = pathlib.Path(f"/proc/{pid}"), {}
    for fd in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "memfd:weightd-slot" in os.readlink(fd):
                sizes[fd.stat().st_ino] = fd.stat().st_blocks * 512
    for line in (proc / "maps").read_text().splitlines():
        if "memfd:weightd-slot" in line:
            start, end = (int(at, 16) for at in line.split()[0].split("-"))
            inode = int(line.split()[4])
            sizes[inode] = max(sizes.get(inode, 0), end - start)
    return sum(sizes.values())


# --- Deaths -----------------------------------------------------------------------------------------

SIZE = 16 << 20
SIZES = {"create sent": 128 << 20}  # provided in several pieces
STEPS = ["connected", "create sent", "created", "mapped", "half filled", "filled", "publish sent", "published"]


def big(step):
    """The layout of what is written up to that step, and the size of its bytes."""
    size = SIZES.get(step, SIZE)
    return image([("t", size - 100), ("u", 5)]), size


def write_up_to(pipe, step, daemon):
    """A writer that runs up to `step`, reports that, and waits for its end."""
    def reached(this):
        if this == step:
            pipe.send(this)
            signal.pause()

    def send(this, *request, **kw):
        if this == step:  # to a daemon that will read it when the writer has ended
            os.kill(daemon.pid, signal.SIGSTOP)
        w.send(*request, **kw)
        reached(this)

    layout, size = big(step)
    with Wire(daemon.socket, timeout=None) as w:
        reached("connected")
        send("create sent", wire.CREATE, wire.create_body("m"), fds=[wire.memfd(layout)])
        slot = w.slot(w.answer(wire.CREATE))
        reached("created")
        with slot.map() as memory:
            memory[0] = 1
            reached("mapped")
            memory[:size // 2] = b"h" * (size // 2)
            reached("half filled")
        root = wire.fill(slot, b"new")
        reached("filled")
        send("publish sent", wire.PUBLISH, wire.BODIES[wire.PUBLISH].pack(slot.writer, wire.DIGEST, 0, root))
        w.answer(wire.PUBLISH)
        reached("published")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_new", [False, True], ids=["next version", "new buffer"])
def test_a_writer_killed(daemon, witness, is_new, step):
    layout, size = big(step)
    if not is_new:
        publish(daemon.socket, "m", b"old", layout)
    until(lambda: witness.ping().n_sessions == 1, "the first writer is gone")
    before, memory = witness.ping(), slot_memory(daemon.pid)
    with Child(write_up_to, step, daemon) as writer:
        assert writer.hear() == step
    daemon.proc.send_signal(signal.SIGCONT)
    until(lambda: witness.ping().n_sessions == 1, "the server notices")

    first = before.n_buffers  # 1 or 0: the number of the version that is there
    allowed = {"published": [first + 1], "publish sent": [first, first + 1]}.get(step, [first])
    until(lambda: newest(witness, "m") in allowed, lambda: f"{allowed}, but {newest(witness, 'm')}")
    n_slots = newest(witness, "m")
    slot_size = size + (size // wire.LEAF) * 16 + 4095 & ~4095
    until(lambda: witness.ping().n_bytes == n_slots * slot_size,
          lambda: f"{n_slots} slots of {slot_size} bytes, but {witness.ping()}")
    assert witness.ping().n_leases == 0
    if n_slots:
        daemon.ctl("verify", "m")
        assert witness.attach("m").bytes()[:3] == (b"new" if n_slots > first else b"old")
    if n_slots == first:
        until(lambda: slot_memory(daemon.pid) == memory, lambda: f"{memory} bytes, but {slot_memory(daemon.pid)}")


def read_until_killed(pipe, path, name):
    with Wire(path) as w, w.attach(name).map() as memory:
        pipe.send(memory[:3])
        signal.pause()


def test_a_reader_killed_frees_its_lease(daemon, witness):
    publish(daemon.socket, "m", b"old")
    with Child(read_until_killed, daemon.socket, "m") as one, Child(read_until_killed, daemon.socket, "m") as two:
        assert (one.hear(), two.hear()) == (b"old", b"old")
        assert witness.ping().n_leases == 2
        one.kill()
        until(lambda: witness.ping().n_leases == 1, "the lease of the first is gone")
        two.kill()
        until(lambda: witness.ping().n_leases == 0, "that of the second too")


def test_the_last_reader_killed_frees_a_removed_buffer(daemon, witness):
    publish(daemon.socket, "m", b"old")
    with Child(read_until_killed, daemon.socket, "m") as reader:
        reader.hear()
        witness.drop("m")
        assert witness.ping().n_bytes > 0
    until(lambda: witness.ping().n_bytes == 0, "the memory is freed")


@pytest.mark.parametrize("n_rounds", [pytest.param(10_000, marks=[pytest.mark.plain, pytest.mark.long]),
                                      pytest.param(600, marks=pytest.mark.threads)])
def test_readers_that_come_and_die_leak_nothing(daemon, witness, n_rounds):
    def run(n):
        done = subprocess.run([program("storm"), daemon.socket, "m", str(n)], timeout=110,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stdout) == (0, f"{n} rounds, 0 wrong\n"), done.stderr
        until(lambda: witness.ping().n_sessions == 1, "the last of them is gone")

    publish(daemon.socket, "m", b"data")
    until(lambda: witness.ping().n_sessions == 1, "its writer is gone")
    until(lambda: daemon.rests(witness), "its descriptors are closed")
    n_fds = daemon.n_fds()  # not after the first run: sockets with requests of the dead are closed by a thread
    run(n_rounds // 20)  # whatever is allocated once is there now
    before, rss = witness.ping(), daemon.rss_anon()
    run(n_rounds)
    assert (witness.ping().n_leases, witness.ping().n_bytes) == (0, before.n_bytes)
    until(lambda: daemon.n_fds() == n_fds, lambda: f"{n_fds} descriptors, but {daemon.n_fds()}")
    if n_rounds >= 10_000:
        assert daemon.rss_anon() < rss + (1 << 20), f"{rss} -> {daemon.rss_anon()}"


# --- Kept versions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep, kept", [(0, [4, 5]), (1, [5]), (3, [3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_newest_versions_are_kept(daemon, witness, keep, kept):
    for number in range(1, 6):
        assert publish(daemon.socket, "m", b"v%d " % number, keep=keep) == number
    assert versions(daemon, "m") == kept
    until(lambda: witness.ping().n_bytes == len(kept) * 8192, "the others are freed")
    for number in range(1, 6):
        if number in kept:
            assert witness.attach("m", number).bytes()[:3] == b"v%d " % number
        else:
            assert_refused(errno.ENOENT, f"'m' on host has no version {number}", witness.attach, "m", number)


def test_keeping_fewer_counts_from_the_next_version_on(daemon):
    for keep, kept in (3, [1]), (0, [1, 2]), (0, [1, 2, 3]), (1, [4]), (2, [4, 5]):
        publish(daemon.socket, "m", b"x", keep=keep)
        assert versions(daemon, "m") == kept


def test_a_version_is_kept_while_it_is_read(daemon, witness):
    publish(daemon.socket, "m", b"one", keep=1)
    lease = witness.attach("m")
    for number in 2, 3:
        publish(daemon.socket, "m", b"new")
    assert versions(daemon, "m") == [1, 3]
    assert lease.bytes()[:3] == b"one" and witness.attach("m").bytes()[:3] == b"new"
    witness.detach(lease.lease)
    assert versions(daemon, "m") == [3]
    until(lambda: witness.ping().n_bytes == 8192, "its memory is freed")


def test_a_writer_holds_what_it_published(daemon, witness):
    slot = witness.create("m", SMALL, keep=1)
    witness.publish(slot.writer)
    publish(daemon.socket, "m", b"new")
    assert versions(daemon, "m") == [1, 2]
    witness.detach(slot.writer)
    assert versions(daemon, "m") == [2]


# --- Removing ---------------------------------------------------------------------------------------


def test_readers_of_a_removed_buffer_go_on_reading(daemon, witness):
    publish(daemon.socket, "m", b"old")
    with weightd.attach("m", socket=daemon.socket) as buffer:
        assert buffer.latest() == 1
        daemon.ctl("rm", "m")
        assert witness.names() == []
        assert_refused(errno.ENOENT, "no buffer 'm'", witness.attach, "m")
        for act in buffer.latest, buffer.refresh, lambda: buffer.wait(timeout=10):
            with pytest.raises(weightd.Removed):
                act()
        assert bytes(buffer["t"].memoryview()[:3]) == b"old"
        buffer.verify()
        assert witness.ping().n_bytes > 0
    until(lambda: witness.ping().n_bytes == 0, "the memory is freed with its last reader")


def test_a_waiting_reader_is_told_that_the_buffer_is_removed(daemon, witness):
    publish(daemon.socket, "m", b"old")
    with weightd.attach("m", socket=daemon.socket) as buffer:
        dropper = threading.Thread(target=witness.drop, args=["m"])
        dropper.start()
        with pytest.raises(weightd.Removed):
            buffer.wait(timeout=wire.PATIENCE_S)
        dropper.join()


def test_a_buffer_of_the_same_name_is_another_buffer(daemon, witness):
    publish(daemon.socket, "m", b"old")
    with weightd.attach("m", socket=daemon.socket) as old, Wire(daemon.socket) as reader:
        lease = reader.attach("m")
        witness.drop("m")
        assert publish(daemon.socket, "m", b"new", OTHER) == 1
        with pytest.raises(weightd.Removed):
            old.latest()
        assert_refused(errno.ESTALE, "'m' on host was removed and made anew", reader.attach, "m",
                       buffer=lease.buffer)
        assert lease.bytes()[:3] == b"old" and reader.attach("m").bytes()[:3] == b"new"


def test_old_versions_can_be_removed_and_the_newest_cannot(daemon, witness):
    for pattern in b"one", b"two", b"thr":
        publish(daemon.socket, "m", pattern, keep=3)
    lease = witness.attach("m", 2)
    for number in 1, 2:
        daemon.ctl("rm", f"m@{number}")
    assert versions(daemon, "m") == [3]
    until(lambda: witness.ping().n_bytes == 2 * 8192, "version 1 is freed, version 2 is read")
    assert lease.bytes()[:3] == b"two"
    assert_refused(errno.EBUSY, "'m@3' is the current version", witness.drop, "m", 3)
    for number in 1, 2, 4:
        assert_refused(errno.ENOENT, f"no version {number}", witness.drop, "m", number)
    assert_refused(errno.ENOENT, "no version 2", witness.attach, "m", 2)
    witness.detach(lease.lease)
    until(lambda: witness.ping().n_bytes == 8192, "version 2 is freed with its last reader")
    assert witness.attach("m").bytes()[:3] == b"thr"


def test_a_buffer_removed_while_it_is_written_cannot_be_published(daemon, witness):
    publish(daemon.socket, "m", b"old")
    with Wire(daemon.socket) as writer:
        slot = writer.create("m", SMALL)
        witness.drop("m")
        assert publish(daemon.socket, "m", b"new", OTHER) == 1
        assert_refused(errno.ESTALE, "'m' was removed", writer.publish, slot.writer)
        assert versions(daemon, "m") == [1] and witness.attach("m").bytes()[:3] == b"new"
        writer.abort(slot.writer)
        until(lambda: witness.ping().n_bytes == 12288, "what it wrote is freed")


# --- Memory that is still held ----------------------------------------------------------------------


def hold_descriptor(fd):
    return os.fdopen(os.dup(fd), "rb", buffering=0).close


def hold_mapping(fd):
    return mmap.mmap(fd, 8192, prot=mmap.PROT_READ).close


def hold_in_a_fork(fd):
    """All that this process has open, and so `fd`."""
    return Child(lambda pipe: signal.pause()).kill


HOLDS = {"a descriptor": hold_descriptor, "a mapping": hold_mapping, "a fork": hold_in_a_fork}


@pytest.mark.threads
@pytest.mark.parametrize("kind", HOLDS)
@pytest.mark.parametrize("end", ["of a version", "of a removed buffer", "of a writer"])
def test_memory_is_an_orphan_until_who_held_it_lets_go(daemon, witness, request, end, kind):
    publish(daemon.socket, "m", b"old", keep=1)
    held = witness.create("m", SMALL) if end == "of a writer" else witness.attach("m")
    let_go = HOLDS[kind](held.fd if end == "of a writer" else held.slot_fd)
    request.addfinalizer(let_go)
    if end == "of a writer":
        witness.abort(held.writer)
    elif end == "of a version":
        publish(daemon.socket, "m", b"new")
        witness.detach(held.lease)
    else:
        witness.drop("m")
        [slot] = [s for s in witness.list(wire.SLOTS) if s.state == wire.LEAVING]
        assert (slot.n_leases, witness.stat().leaving_bytes) == (1, 8192)
        witness.detach(held.lease)
    publish(daemon.socket, "other", b"more")  # time for the daemon to make a mistake
    [slot] = [s for s in witness.list(wire.SLOTS) if s.state == wire.ORPHAN]
    assert (slot.name, slot.size, slot.n_leases) == ("m", 8192, 0)
    assert slot.removed == (end == "of a removed buffer") and slot.version == (end != "of a writer")
    assert witness.stat().orphan_bytes == 8192
    [before] = witness.list(wire.USERS)
    let_go()
    until(lambda: witness.stat().orphan_bytes == 0, "its holder has released it")
    until(lambda: witness.list(wire.USERS)[0].used_bytes <= before.used_bytes - 8192, "its bytes are given back")
    assert witness.list(wire.USERS)[0].used_descriptors < before.used_descriptors
    assert all(s.state == wire.CURRENT for s in witness.list(wire.SLOTS))


# --- Writing ----------------------------------------------------------------------------------------


def test_a_buffer_has_one_writer_at_a_time(daemon, witness):
    with Wire(daemon.socket) as other:
        slot = witness.create("m", SMALL)
        assert_refused(errno.EBUSY, "'m' on host is being written by another writer", other.create, "m", SMALL)
        other.create("n", SMALL)
        witness.publish(slot.writer)
        assert other.publish(other.create("m", SMALL).writer) == 2
        witness.abort(witness.create("m", SMALL).writer)
        assert other.publish(other.create("m", SMALL).writer) == 3


def test_nothing_is_attached_before_it_is_published(daemon, witness):
    slot = witness.create("m", SMALL)
    assert_refused(errno.ENODATA, "'m' on host has not been published yet", witness.attach, "m")
    with pytest.raises(weightd.NotPublished):
        weightd.attach("m", socket=daemon.socket)
    witness.abort(slot.writer)
    assert witness.names() == []
    assert_refused(errno.ENOENT, "no buffer 'm'", witness.attach, "m")


def test_another_layout_has_to_be_asked_for(daemon, witness):
    publish(daemon.socket, "m", b"old")
    assert_refused(errno.EPROTOTYPE, "the layout differs from that of 'm@1'", witness.create, "m", OTHER)
    assert witness.attach("m").bytes()[:3] == b"old"
    assert publish(daemon.socket, "m", b"new", OTHER, flags=wire.NEW_LAYOUT) == 2
    assert_refused(errno.EPROTOTYPE, "the layout differs from that of 'm@2'", witness.create, "m", SMALL)
    with weightd.attach("m", version=1, socket=daemon.socket) as old:
        with old.refresh() as new:
            assert (list(old), list(new)) == (["t"], ["t", "u"])


def test_the_bytes_of_a_new_version_are_zero(daemon, witness):
    for _ in range(3):
        slot = witness.create("m", SMALL, keep=1)
        with slot.map() as memory:
            assert memory[:] == bytes(slot.slot_size)
            memory[:] = b"x" * slot.slot_size
        witness.publish(slot.writer)
        witness.detach(slot.writer)


def test_one_connection_writes_several_buffers_side_by_side(daemon, witness):
    slots = {name: witness.create(name, SMALL) for name in ("a", "b", "c")}
    for name in "b", "c", "a":
        assert witness.publish(slots[name].writer, wire.fill(slots[name], name.encode())) == 1
    assert [witness.attach(name).bytes()[:1] for name in slots] == [b"a", b"b", b"c"]


# --- Waiting ----------------------------------------------------------------------------------------


def test_waiting_ends_with_the_version(daemon, witness):
    waiters = [Wire(daemon.socket) for _ in range(3)]
    for version, waiter in enumerate(waiters):
        waiter.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(b"m", b"", version, -1))
    for version, n_waiting in (1, 1), (2, 0):
        publish(daemon.socket, "m", b"x")
        for waiter in waiters[:version + 1] if version == 1 else waiters[2:]:
            assert waiter.answer(wire.WAIT).body == version.to_bytes(8, "little")
    assert witness.wait("m", 1) == 2, "a version that is there already"
    for waiter in waiters:
        waiter.close()


@pytest.mark.parametrize("exists", [False, True])
def test_waiting_ends_with_its_time(daemon, witness, exists):
    if exists:
        publish(daemon.socket, "m", b"x")
    started = time.monotonic()
    assert_refused(errno.ETIMEDOUT, "'m' on host did not reach version 7 in time", witness.wait, "m", 7, 150)
    assert 0.15 <= time.monotonic() - started < 10
    assert_refused(errno.ETIMEDOUT, "", witness.wait, "m", 7, 0)
    assert witness.ping()


def test_a_waiting_client_that_dies_is_forgotten(daemon, witness):
    def wait_for_ever(pipe):
        with Wire(daemon.socket, timeout=None) as w:
            w.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(b"m", b"", 0, -1))
            pipe.send("asked")
            signal.pause()

    with Child(wait_for_ever) as waiting:
        waiting.hear()
    until(lambda: witness.ping().n_sessions == 1, "it is gone")
    publish(daemon.socket, "m", b"x")


def attach_and_tell(pipe, path):
    pipe.send("started")
    with weightd.attach("m", timeout=wire.PATIENCE_S, socket=path) as buffer:
        pipe.send((buffer.version, bytes(buffer["t"].memoryview()[:3])))


def test_attach_waits_for_the_first_version(daemon, witness):
    with Child(attach_and_tell, daemon.socket) as one, Child(attach_and_tell, daemon.socket) as two:
        assert (one.hear(), two.hear()) == ("started", "started")
        until(lambda: witness.ping().n_sessions == 3, "both are connected")
        slot = witness.create("m", SMALL)
        root = wire.fill(slot, b"new")
        assert not one.pipe.poll() and not two.pipe.poll(), "attached before it was published"
        witness.publish(slot.writer, root)
        assert (one.hear(), two.hear()) == ((1, b"new"), (1, b"new"))


def test_a_reader_sees_a_new_version_without_asking_the_server(daemon):
    publish(daemon.socket, "m", b"old")
    with weightd.attach("m", socket=daemon.socket) as buffer:
        assert buffer.refresh() is None
        publish(daemon.socket, "m", b"new")
        with stopped(daemon):
            assert buffer.latest() == 2 and buffer.wait(newer_than=1, timeout=1) == 2
        with buffer.refresh() as new:
            assert (bytes(buffer["t"].memoryview()[:3]), bytes(new["t"].memoryview()[:3])) == (b"old", b"new")


# --- Forking ----------------------------------------------------------------------------------------


class Client:
    """libweightd as C programs see it, where the Python package would be more helpful."""

    def __init__(self, path):
        self.handle, self.buffer = ctypes.c_void_p(), ctypes.c_void_p()
        assert lib.weightd_new(ctypes.byref(self.handle)) == 0
        assert lib.weightd_connect(self.handle, path.encode()) == 0, self.error()

    def error(self):
        return lib.weightd_error(self.handle).decode()

    def ping(self):
        return lib.weightd_ping(self.handle, ctypes.byref(weightd._abi.Server()))

    def attach(self, name=b"m"):
        return lib.weightd_attach(self.handle, name, None, ctypes.byref(self.buffer))

    def first_bytes(self):
        return ctypes.string_at(lib.weightd_buffer_data(self.buffer, None), 3)


def test_a_forked_child_reads_on_and_is_refused_everything_else(daemon, witness):
    publish(daemon.socket, "m", b"old")
    client = Client(daemon.socket)
    assert client.attach() == 0

    def use_what_is_the_parents(pipe):
        another = ctypes.c_void_p()
        pipe.send((client.first_bytes(), client.ping(),
                   lib.weightd_attach(client.handle, b"m", None, ctypes.byref(another)), client.error()))
        lib.weightd_detach(client.buffer)
        lib.weightd_close(client.handle)
        pipe.send("closed")
        connected = Client(daemon.socket)
        pipe.send((connected.attach(), connected.first_bytes()))

    with Child(use_what_is_the_parents) as child:
        assert child.hear() == (b"old", -errno.ECHILD, -errno.ECHILD,
                                "this connection belongs to the parent process; connect again")
        assert child.hear() == "closed"
        assert child.hear() == (0, b"old")
    assert client.ping() == 0 and client.first_bytes() == b"old", client.error()
    until(lambda: witness.ping()[3:5] == (2, 1), "the parent's lease, and no other")
    lib.weightd_detach(client.buffer)
    lib.weightd_close(client.handle)


def test_a_list_of_many_pages_has_each_buffer_once(daemon):
    """A page of the protocol holds thirteen."""
    with Wire(daemon.socket) as w:
        names = [f"b{i:03}" for i in range(100)]
        for name in reversed(names):
            w.publish(w.create(name, image([("t", 64)])).writer)
    assert [b.name for b in weightd.ls(socket=daemon.socket)] == names


def test_a_history_of_many_pages_has_each_version_once(daemon):
    """A page of the protocol holds thirty-six; a buffer keeps 32 versions at most and remembers 64."""
    with Wire(daemon.socket) as w:
        for _ in range(100):
            slot = w.create("m", SMALL, keep=32)
            w.publish(slot.writer)
            w.detach(slot.writer)
    assert [v.version for v in weightd.history("m", socket=daemon.socket)] == list(range(37, 101))
    listed = json.loads(daemon.ctl("show", "m", "--json").stdout)["versions"]
    assert [v["version"] for v in listed] == list(range(69, 101))


def test_versions_that_are_held_are_listed_once_and_62_at_most(daemon):
    """A page of the protocol holds thirty-six, and a writer that has published holds what it made."""
    with Wire(daemon.socket) as w:
        for _ in range(62):
            w.publish(w.create("m", image([("t", 64)]), keep=1).writer)
        assert_refused(errno.EDQUOT, "62 versions of 'm' are held by readers; let some go", w.create, "m",
                       image([("t", 64)]))
        listed = json.loads(daemon.ctl("show", "m", "--json").stdout)["versions"]
        assert [v["version"] for v in listed] == list(range(1, 63))
        assert [v.version for v in w.list(wire.HISTORY, "m")] == list(range(1, 63))


def test_a_writer_that_does_not_say_leaves_keep_as_it_was(daemon):
    layout = weightd.Layout()
    layout.add("t", "U8", (64,))
    for keep in (5, 0, 0, 0, 0):
        with weightd.create("m", layout, keep=keep, socket=daemon.socket) as writer:
            writer.publish()
    assert [b.keep for b in weightd.ls(socket=daemon.socket)] == [5]
    assert len(weightd.versions("m", socket=daemon.socket)) == 5

"""Published bytes cannot be changed: by no process, their writer included, and in no way."""
import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import mmap
import os
import pathlib
import resource
import signal

import pytest
import weightd
from integration.programs import HERE, compiled
from lib import wire
from lib.child import Child
from lib.wire import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, Refused, Wire, fallocate, image, until
from weightd._abi import lib

SIZE = 3 << 20
LAYOUT = image([("t", SIZE)])
LEAVES_AT = SIZE
PAGE = 4096

F_SEAL_FUTURE_WRITE = 16
MADV_REMOVE, MADV_COLLAPSE = 9, 25
MAP_FIXED = 16
HUGE = 2 << 20
PTRACE_POKEDATA, PTRACE_ATTACH, PTRACE_DETACH = 5, 16, 17

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def check(result, what):
    """The result of a C function, or the OSError."""
    if result in (-1, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


@contextlib.contextmanager
def mapped(fd, prot=mmap.PROT_READ | mmap.PROT_WRITE, size=SIZE, flags=mmap.MAP_SHARED):
    """The address of the file, with nothing else that holds it."""
    address = check(libc.mmap(None, size, prot, flags, fd, 0), "mmap")
    try:
        yield address
    finally:
        libc.munmap(address, size)


@pytest.fixture
def witness(daemon):
    with Wire(daemon.socket) as w:
        yield w


class Published:
    """A version with its writer, which kept everything, and a reader."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.writer, self.reader = Wire(daemon.socket), Wire(daemon.socket)
        self.slot = self.writer.create("m", LAYOUT, mode=0o666)
        self.version = self.writer.publish(self.slot.writer, wire.fill(self.slot, b"the published bytes "))
        self.lease = self.reader.attach("m")
        self.bytes = self.lease.bytes()
        self.size = os.fstat(self.lease.slot_fd).st_size, os.fstat(self.lease.slot_fd).st_blocks

    def close(self):
        assert self.lease.bytes() == self.bytes
        assert (os.fstat(self.lease.slot_fd).st_size, os.fstat(self.lease.slot_fd).st_blocks) == self.size
        self.daemon.ctl("verify", "m")
        self.writer.close()
        self.reader.close()


@pytest.fixture
def published(daemon):
    p = Published(daemon)
    yield p
    p.close()


def slot_fds_of(pid):
    """Paths in /proc of its descriptors of slots."""
    found = []
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            if "memfd:weightd-slot" in os.readlink(fd):
                found.append(fd)
    return found


# --- Ways in ----------------------------------------------------------------------------------------

DESCRIPTORS = {
    "the writer's own": lambda p: os.dup(p.slot.fd),
    "the writer's for reading": lambda p: os.dup(p.slot.reader_fd),
    "the writer's opened again": lambda p: os.open(f"/proc/self/fd/{p.slot.fd}", os.O_RDWR),
    "a reader's": lambda p: os.dup(p.lease.slot_fd),
    "a reader's opened for writing": lambda p: os.open(f"/proc/self/fd/{p.lease.slot_fd}", os.O_RDWR),
    "the server's opened for writing": lambda p: os.open(slot_fds_of(p.daemon.pid)[0], os.O_RDWR),
}


def write_through_a_mapping(fd):
    with mapped(fd) as address:
        ctypes.memset(address, 1, 1)


def make_a_mapping_writable(fd):
    with mapped(fd, mmap.PROT_READ) as address:
        check(libc.mprotect(address, SIZE, mmap.PROT_READ | mmap.PROT_WRITE), "mprotect")


def take_pages_out_of_a_mapping(fd):
    with mapped(fd, mmap.PROT_READ) as address:
        check(libc.madvise(address, SIZE, MADV_REMOVE), "madvise")


def copy_a_range_into(fd):
    with os.fdopen(wire.memfd(b"other"), "rb") as other:
        os.copy_file_range(other.fileno(), fd, 5, 0, 0)


def splice_into(fd):
    ours, theirs = os.pipe()
    os.write(theirs, b"other")
    try:
        os.splice(ours, fd, 5, offset_dst=0)
    finally:
        os.close(ours)
        os.close(theirs)


def send_a_file_into(fd):
    with os.fdopen(wire.memfd(b"other"), "rb") as other:
        os.sendfile(fd, other.fileno(), 0, 5)


def write_by_io_uring(fd):
    r = uring().uring_write(fd, b"other", 5)
    if r == -errno.ENOSYS:
        pytest.skip("no io_uring here")
    if r < 0:
        raise OSError(-r, "io_uring")


def uring():
    return ctypes.CDLL(compiled("uring", (HERE / "uring.c",), "-shared"))


ATTACKS = {
    "write": lambda fd: os.write(fd, b"other"),
    "pwrite": lambda fd: os.pwrite(fd, b"other", PAGE),
    "pwritev": lambda fd: os.pwritev(fd, [b"other"], 0),
    "append": lambda fd: os.pwrite(fd, b"other", os.fstat(fd).st_size),
    "shrink": lambda fd: os.ftruncate(fd, PAGE),
    "grow": lambda fd: os.ftruncate(fd, 2 * SIZE),
    "punch a hole": lambda fd: fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, PAGE),
    "zero a range": lambda fd: fallocate(fd, ZERO_RANGE, 0, PAGE),
    "allocate behind the end": lambda fd: fallocate(fd, 0, 2 * SIZE, PAGE),
    "map writable": write_through_a_mapping,
    "make a mapping writable": make_a_mapping_writable,
    "take pages out of a mapping": take_pages_out_of_a_mapping,
    "copy a range into it": copy_a_range_into,
    "splice into it": splice_into,
    "send a file into it": send_a_file_into,
    "write by io_uring": write_by_io_uring,
    "open and truncate": lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC),
    "more seals": lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE),
}


REFUSALS = (errno.EPERM, errno.EACCES, errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("descriptor", DESCRIPTORS)
def test_published_bytes_withstand(published, descriptor, attack):
    try:
        fd = DESCRIPTORS[descriptor](published)
    except PermissionError:
        assert os.geteuid() != 0  # root gets in, others not even that
        return
    try:
        with pytest.raises(OSError) as failed:
            ATTACKS[attack](fd)
        assert failed.value.errno in REFUSALS, failed.value
    finally:
        os.close(fd)


@pytest.mark.parametrize("attack", ["write", "pwrite", "pwritev", "punch a hole", "map writable",
                                    "copy a range into it", "splice into it", "send a file into it",
                                    "write by io_uring"])
def test_the_same_way_in_works_before_the_publish(witness, attack):
    """Or the test above would show nothing."""
    slot = witness.create("m", LAYOUT)
    ATTACKS[attack](slot.fd)


def read_and_wait(pipe, path):
    with Wire(path) as w, mapped(w.attach("m").slot_fd, mmap.PROT_READ) as address:
        own = ctypes.create_string_buffer(b"my own", 64)
        pipe.send((address, ctypes.addressof(own)))
        signal.pause()


def write_into_memory(pid, address):
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        os.pwrite(memory.fileno(), b"other", address)


def write_into_process(pid, address):
    class IOVec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    data = ctypes.create_string_buffer(b"other")
    ours, theirs = IOVec(ctypes.addressof(data), 5), IOVec(address, 5)
    check(libc.process_vm_writev(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0), "process_vm_writev")


def poke(pid, address):
    check(libc.ptrace(PTRACE_ATTACH, pid, None, None), "attach")
    os.waitpid(pid, 0)
    try:
        check(libc.ptrace(PTRACE_POKEDATA, pid, address, 0x726568746f), "poke")
    finally:
        libc.ptrace(PTRACE_DETACH, pid, None, None)


@pytest.mark.parametrize("attack", [write_into_memory, write_into_process, poke])
def test_published_bytes_withstand_who_rules_over_a_reader(published, attack):
    with Child(read_and_wait, published.daemon.socket) as reader:
        address, own = reader.hear()
        attack(reader.pid, own)  # it can
        with pytest.raises(OSError):
            attack(reader.pid, address)


def wait_for_the_end(pipe):
    signal.pause()


# --- Refusals of a publish --------------------------------------------------------------------------


def refused(act, *args):
    with pytest.raises(Refused) as r:
        act(*args)
    return r.value


def test_a_second_mapping_forbids_the_publish_until_it_is_gone(witness):
    slot = witness.create("m", LAYOUT)
    with mapped(slot.fd):
        r = refused(witness.publish, slot.writer)
        assert r.errno == errno.EBUSY
        assert "'m' cannot be published: its bytes are still mapped writable" in r.sentence
        assert refused(witness.attach, "m").errno == errno.ENODATA
        os.pwrite(slot.fd, b"later", 0)  # it can write on
    assert witness.publish(slot.writer, wire.fill(slot, b"final")) == 1
    assert witness.attach("m").bytes()[:5] == b"final"


@pytest.mark.parametrize("prot", [mmap.PROT_READ, 0], ids=["readable", "nothing"])
def test_a_mapping_that_could_become_writable_forbids_the_publish(witness, prot):
    slot = witness.create("m", LAYOUT)
    with mapped(slot.fd, prot):
        assert refused(witness.publish, slot.writer).errno == errno.EBUSY
    assert witness.publish(slot.writer) == 1


def test_a_private_mapping_is_a_copy_and_harmless(witness):
    slot = witness.create("m", LAYOUT)
    with mapped(slot.fd, flags=mmap.MAP_PRIVATE) as address:
        assert witness.publish(slot.writer) == 1
        ctypes.memset(address, 1, SIZE)
    assert witness.attach("m").bytes() == bytes(SIZE)


def test_a_mapping_that_a_child_inherited_forbids_the_publish(witness):
    slot = witness.create("m", LAYOUT)
    with mapped(slot.fd):
        child = Child(wait_for_the_end)
    with child:
        assert refused(witness.publish, slot.writer).errno == errno.EBUSY
    assert witness.publish(slot.writer) == 1


def test_memory_registered_with_io_uring_forbids_the_publish(witness):
    slot = witness.create("m", LAYOUT)
    with mapped(slot.fd) as address:
        ring_fd = uring().uring_register(ctypes.c_void_p(address), ctypes.c_size_t(64 << 10))
        if ring_fd < 0:
            pytest.skip(f"no io_uring here: {os.strerror(-ring_fd)}")
    r = refused(witness.publish, slot.writer)
    assert r.errno == errno.EBUSY and "pinned by I/O in flight" in r.sentence
    os.close(ring_fd)

    def is_published():
        try:
            return witness.publish(slot.writer) == 1
        except Refused as e:  # the kernel lets go later than its close, and publish does not wait for ever
            assert e.errno == errno.EBUSY, e
            return False

    until(is_published, "the kernel has let go")


def test_pages_given_to_a_pipe_forbid_the_publish(witness):
    class IOVec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    slot = witness.create("m", LAYOUT)
    ours, theirs = os.pipe()
    with mapped(slot.fd) as address:
        pages = IOVec(address, PAGE)
        check(libc.vmsplice(theirs, ctypes.byref(pages), 1, 0), "vmsplice")
    assert refused(witness.publish, slot.writer).errno == errno.EBUSY
    os.close(ours)
    os.close(theirs)
    assert witness.publish(slot.writer) == 1


HOLES = {
    "at the start": (0, PAGE),
    "in the middle": (1 << 20, 1 << 20),
    "of everything": (0, SIZE + PAGE),
    "in the digests": (LEAVES_AT, PAGE),
    "in a huge page": (PAGE, PAGE),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_forbids_the_publish(witness, hole):
    old = witness.create("m", LAYOUT)
    witness.publish(old.writer, wire.fill(old, b"old"))
    slot = witness.create("m", LAYOUT)
    fallocate(slot.fd, PUNCH_HOLE | KEEP_SIZE, *HOLES[hole])
    r = refused(witness.publish, slot.writer)
    assert r.errno == errno.ENODATA and "parts of its memory were removed; create it again" in r.sentence
    assert refused(witness.publish, slot.writer).errno == errno.ESTALE
    witness.abort(slot.writer)
    lease = witness.attach("m")
    assert (lease.version, lease.bytes()[:3]) == (1, b"old")
    again = witness.create("m", LAYOUT)
    assert witness.publish(again.writer) == 2


@pytest.mark.parametrize("hole", [False, True])
def test_blocks_behind_the_end_do_not_make_up_for_a_hole(witness, hole):
    slot = witness.create("m", LAYOUT)
    n_blocks = os.fstat(slot.fd).st_blocks
    with mapped(-1, size=8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        start = -(-area // HUGE) * HUGE  # aligned like the file, or there are no huge pages
        check(libc.mmap(start, 4 << 20, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED,
                        slot.fd, 0), "mmap")
        libc.madvise(start + HUGE, HUGE, MADV_COLLAPSE)
    if os.fstat(slot.fd).st_blocks == n_blocks:
        pytest.skip("this kernel makes no huge page across the end of a file")
    if hole:
        fallocate(slot.fd, PUNCH_HOLE | KEEP_SIZE, 0, PAGE)
        assert os.fstat(slot.fd).st_blocks >= n_blocks
        assert refused(witness.publish, slot.writer).errno == errno.ENODATA
    else:
        assert witness.publish(slot.writer) == 1


def test_a_filled_hole_is_no_hole(witness):
    slot = witness.create("m", LAYOUT)
    fallocate(slot.fd, PUNCH_HOLE | KEEP_SIZE, 0, SIZE)
    assert witness.publish(slot.writer, wire.fill(slot, b"filled")) == 1


def test_a_writer_that_forbids_seals_cannot_publish(daemon, witness):
    slot = witness.create("m", LAYOUT)
    fcntl.fcntl(slot.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
    r = refused(witness.publish, slot.writer)
    assert r.errno == errno.EPERM and "the writer has forbidden seals on its memory; create it again" in r.sentence
    witness.abort(slot.writer)
    assert witness.names() == []
    until(lambda: witness.ping().n_bytes == 0, "its memory is freed")


@pytest.mark.parametrize("seals", [fcntl.F_SEAL_WRITE, F_SEAL_FUTURE_WRITE, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL])
def test_a_writer_that_seals_by_itself_is_early_or_refused(witness, seals):
    slot = witness.create("m", LAYOUT)
    root = wire.fill(slot, b"early")
    fcntl.fcntl(slot.fd, fcntl.F_ADD_SEALS, seals)
    if seals & fcntl.F_SEAL_SEAL:
        assert refused(witness.publish, slot.writer, root).errno == errno.EPERM
    else:
        assert witness.publish(slot.writer, root) == 1
        assert fcntl.fcntl(slot.fd, fcntl.F_GET_SEALS) & 15 == 15


# --- libweightd -------------------------------------------------------------------------------------


def writable_fds():
    """The writable descriptors of slots in this process."""
    fds = [int(path.name) for path in slot_fds_of("self")]
    return {fd for fd in fds if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR}


@pytest.fixture
def writer(daemon):
    """One with a member more: the descriptor that libweightd keeps, which can write."""
    layout = weightd.Layout()
    layout.add("t", "U8", (SIZE,))
    before = writable_fds()
    with weightd.create("m", layout, socket=daemon.socket) as w:
        (w.fd,) = writable_fds() - before
        yield w


def test_the_library_names_who_maps_the_bytes_and_writes_on(daemon, writer):
    view = writer["t"].memoryview()
    with mapped(writer.fd):
        with pytest.raises(weightd.Error) as refused:
            writer.publish()
        assert refused.value.errno == errno.EBUSY
        assert f"it is mapped writable by pid {os.getpid()} (" in str(refused.value)
        view[:5] = b"again"  # through the view that it had
    assert writer.publish() == 1
    with weightd.attach("m", socket=daemon.socket) as buffer:
        assert bytes(buffer["t"].memoryview()[:5]) == b"again"
        buffer.verify()


def test_the_library_names_a_child_that_maps_the_bytes(writer):
    def map_and_wait(pipe, fd):
        with mapped(fd):
            pipe.send("mapped")
            signal.pause()

    with Child(map_and_wait, writer.fd) as child:
        child.hear()
        with pytest.raises(weightd.Error, match=rf"mapped writable by pid {child.pid} \("):
            writer.publish()
    assert writer.publish() == 1


def exit_of(body):
    """The exit status of a child that does this."""
    def quietly(pipe):
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        body()

    with Child(quietly) as child:
        return child.end()


def test_a_forked_child_has_no_bytes_of_a_writer_and_does_not_hinder_it(writer):
    address = writer.tensor(0)._memory.address
    ctypes.memset(address, 7, 1)
    assert exit_of(lambda: ctypes.string_at(address, 1)) == -signal.SIGSEGV
    with Child(wait_for_the_end):
        assert writer.publish() == 1


def test_views_of_a_writer_read_the_published_bytes_and_cannot_write_them(daemon, writer, require):
    require("numpy")
    array, address = writer["t"].numpy(), writer.tensor(0)._memory.address
    array[:] = 7
    writer.publish()
    assert array.sum() == 7 * SIZE

    def write():
        array[0] = 8

    assert exit_of(write) == -signal.SIGSEGV
    assert exit_of(lambda: os._exit(array[0])) == 7
    assert libc.mprotect(address, PAGE, mmap.PROT_READ | mmap.PROT_WRITE) == -1
    assert array[0] == 7 and not writer["t"].numpy().flags.writeable
    assert writer.fd not in writable_fds()


def test_a_reader_cannot_write_what_it_attached(daemon, writer):
    writer.publish()
    fds = slot_fds_of("self")
    with weightd.attach("m", socket=daemon.socket) as buffer:
        address = buffer.tensor(0)._memory.address
        assert exit_of(lambda: ctypes.memset(address, 1, 1)) == -signal.SIGSEGV
        assert libc.mprotect(address, PAGE, mmap.PROT_READ | mmap.PROT_WRITE) == -1
        assert set(slot_fds_of("self")) <= set(fds)  # some that tests before left may go at any time


def writable_slots():
    """The descriptors through which the library of this process writes."""
    found = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if "weightd-slot" in os.readlink(f"/proc/self/fd/{fd}") and \
                    fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
                found.add(fd)
    return found


def test_publishing_again_after_a_failure_behind_the_seal_is_refused(daemon):
    """Nothing can be written any more then, digests neither."""
    layout = weightd.Layout()
    layout.add("t", "U8", (SIZE,))
    others = writable_slots()  # left by tests that failed on purpose before this one, in this very process
    with weightd.create("m", layout, socket=daemon.socket) as writer:
        [slot] = writable_slots() - others
        view = writer["t"].memoryview()
        for leaf in range(SIZE >> 20):  # or publish reads the hole, which fills it
            lib.weightd_writer_digest_leaf(writer._memory.handle, leaf)
        fallocate(slot, PUNCH_HOLE | KEEP_SIZE, writer.location.data_offset + 4096, 4096)
        for expected in errno.ENODATA, errno.ESTALE:
            with pytest.raises(weightd.Error) as refused:
                writer.publish()
            assert refused.value.errno == expected
        assert view[0] == 0  # still mapped

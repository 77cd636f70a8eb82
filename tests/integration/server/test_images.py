"""Versions that are files: the header and the data in the slot, and nothing else; the digests beside it."""
import contextlib
import errno
import mmap
import os
import re
import signal
import stat
import struct
import subprocess
import sys

import pytest
from lib import wire
from lib.wire import (EXCLUSIVE, HISTORY, IMAGES, IS_IMAGE, NEW_LAYOUT, REPLACE, REUSABLE, SLOTS, USERS, VERSIONS, Refused,
                      Wire, image, until)

OFFSET = PAGE = 4096
CHECK_LAYOUT = 1  # in attach
SIZES = [1, 5, 4095, 4096, 4097, 100_001, (2 << 20) - OFFSET, (2 << 20) + 1, (64 << 20) + 3]


def layout(size):
    return image([("t", size)], alignment=1)


@pytest.fixture
def client(daemon):
    with Wire(daemon.socket, features=IMAGES) as w:
        yield w


@contextlib.contextmanager
def refused(code, *words):
    with pytest.raises(Refused) as r:
        yield
    assert r.value.errno == code, r.value
    for word in words:
        assert word in r.value.sentence


def publish(client, name="m", size=100_001, offset=OFFSET, pattern=b"abcdefg", **options):
    slot = client.create_image(name, layout(size), offset, **options)
    version = client.publish(slot.writer, wire.fill_image(slot, pattern))
    client.detach(slot.writer)
    return version


def mode(fd):
    return stat.S_IMODE(os.fstat(fd).st_mode)


def content(pattern, size):
    return (pattern * (size // len(pattern) + 1))[:size]


# --- The form ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [OFFSET, 97, 8209])
def test_an_image_is_a_header_and_the_data_to_the_byte(client, size, offset):
    slot = client.create_image("m", layout(size), offset)
    assert (slot.data_size, slot.slot_size) == (size, offset + size)
    root = wire.fill_image(slot, b"abcdefg")
    assert client.publish(slot.writer, root) == 1
    lease = client.attach("m")
    assert lease.flags == wire.DIGEST | IS_IMAGE
    assert (lease.data_size, lease.slot_size) == (size, offset + size)
    with open(f"/proc/self/fd/{lease.slot_fd}", "rb") as f:
        raw = f.read()
    n, = struct.unpack_from("<Q", raw)
    assert raw == wire.image_header(size, offset) + content(b"abcdefg", size) and n == offset - 8
    digests, reader = client.proof(lease.lease)
    n_leaves = -(-size // wire.LEAF)
    assert os.fstat(digests).st_size == 16 * (1 + n_leaves)
    table = os.pread(digests, 16 * (1 + n_leaves), 0)
    assert table[:16] == wire.hash128(raw[:offset]) and wire.hash128(table[16:]) == root
    assert os.path.samestat(os.fstat(reader), os.fstat(lease.slot_fd))


def test_an_image_may_have_no_data(client):
    slot = client.create_image("m", layout(0), 100)
    assert (slot.data_size, slot.slot_size) == (0, 100)
    assert client.publish(slot.writer, wire.fill_image(slot, b"x")) == 1
    assert client.attach("m").bytes() == b""


def test_a_file_is_open_to_all_users_once_it_is_sealed_and_not_before(client):
    slot = client.create_image("m", layout(10), OFFSET)
    assert [mode(fd) for fd in (slot.fd, slot.digests_fd)] == [0o400, 0o400]
    client.publish(slot.writer, wire.fill_image(slot, b"x"))
    lease = client.attach("m")
    assert mode(lease.slot_fd) == 0o444
    flat = client.create("flat", image([("t", 64)]))
    assert mode(flat.fd) == 0o400
    client.publish(flat.writer)
    assert mode(client.attach("flat").slot_fd) == 0o444
    for name, flags in ("x", EXCLUSIVE), ("r", REUSABLE):  # they can still be written
        client.publish(client.create(name, image([("t", 64)]), flags=flags).writer)
        assert mode(client.attach(name).slot_fd) == 0o400


def test_nobody_can_write_what_is_published(client):
    slot = client.create_image("m", layout(10), OFFSET)
    client.publish(slot.writer, wire.fill_image(slot, b"x"))
    lease = client.attach("m")
    digests, _ = client.proof(lease.lease)
    for fd in slot.fd, slot.digests_fd:
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"y", 0)
    for fd in lease.slot_fd, digests:
        with pytest.raises(OSError):
            os.pwrite(fd, b"y", 0)
        with contextlib.suppress(PermissionError):  # root may open it, and still not write
            with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as f, pytest.raises(PermissionError):
                f.write(b"y")
        with pytest.raises(PermissionError):
            os.ftruncate(slot.fd, 1)


def test_digests_that_are_mapped_writable_forbid_the_publish_until_they_are_not(client):
    slot = client.create_image("m", layout(10), OFFSET)
    root = wire.fill_image(slot, b"x")
    with mmap.mmap(slot.digests_fd, 32), refused(errno.EBUSY, "still mapped writable"):
        client.publish(slot.writer, root)
    assert client.publish(slot.writer, root) == 1
    assert client.attach("m").bytes() == b"x" * 10


@pytest.mark.parametrize("size", [10, 4096, 100_001])
def test_a_hole_forbids_the_publish(client, size):
    slot = client.create_image("m", layout(size), OFFSET)
    root = wire.fill_image(slot, b"x")
    wire.fallocate(slot.fd, wire.KEEP_SIZE | wire.PUNCH_HOLE, (slot.slot_size - 1) & -4096, 4096)
    with refused(errno.ENODATA, "parts of its memory were removed"):
        client.publish(slot.writer, root)


def test_holes_in_digests_are_filled(client):
    """A reader that maps them must not need memory for that."""
    slot = client.create_image("m", layout(wire.LEAF * 600), OFFSET)
    assert slot.slot_size == OFFSET + wire.LEAF * 600
    wire.fallocate(slot.digests_fd, wire.KEEP_SIZE | wire.PUNCH_HOLE, 0, 8192)
    client.publish(slot.writer, b"root of another".ljust(16))
    digests, _ = client.proof(client.attach("m").lease)
    assert os.fstat(digests).st_blocks * 512 >= os.fstat(digests).st_size


# --- Refusals ---------------------------------------------------------------------------------------


def test_an_old_client_is_told_to_restart_and_keeps_the_flat_form(daemon, client):
    publish(client)
    with Wire(daemon.socket) as old:
        for flags in 0, CHECK_LAYOUT:
            with refused(errno.EPROTONOSUPPORT, "'m@1' is a file", "restart the program"):
                old.ask(wire.ATTACH, b"m", b"", 0, 0, flags, 0, b"another layout")
        with refused(errno.EPROTONOSUPPORT):
            old.renew(client.attach("m").buffer, 1)
        for version in 0, 1:
            with refused(errno.EPROTONOSUPPORT, "'m@1' is a file", "restart the program"):
                old.layout("m", version)
        assert old.wait("m") == 1
        assert old.publish(old.create("m", image([("t", 64)]), flags=NEW_LAYOUT).writer) == 2
        assert old.attach("m").flags == 0
    assert not client.attach("m").flags & IS_IMAGE
    assert client.attach("m", version=1).flags & IS_IMAGE


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("flags", [0, EXCLUSIVE, REUSABLE])
@pytest.mark.parametrize("tensors, alignment, is_known", [
    ([("t", 100)], 1, False), ([("t", 64)], 1, False), ([("t", 128)], 32, False), ([("t", 64)], 64, True)])
def test_an_old_client_gets_no_layout_that_it_cannot_open(make_daemon, tensors, alignment, is_known, flags, again):
    daemon = make_daemon("--keeper")
    with Wire(daemon.socket, features=IMAGES) as client:
        dense = image(tensors, alignment=alignment)
        client.publish(client.create("m", dense, flags=flags).writer)
        buffer, pid = client.attach("m").buffer, client.ping().pid
        if again:
            os.kill(pid, signal.SIGKILL)
            client.hang_up()
    with Wire(daemon.socket) as old, Wire(daemon.socket, features=IMAGES) as client:
        for ask in (lambda: old.attach("m"), lambda: old.attach("m", 1), lambda: old.layout("m"),
                    lambda: old.layout("m", 1), lambda: old.renew(buffer, 1)):
            if is_known:
                ask()
            else:
                with refused(errno.EPROTONOSUPPORT, "'m@1' has its tensors without room between them", "restart the program"):
                    ask()
        assert client.attach("m").version == client.layout("m").version == 1
        assert client.renew(buffer, 1)


def test_an_old_client_gets_no_layout_whose_end_is_not_aligned(daemon, client):
    client.publish(client.create("m", image([("t", 100)], data_size=100)).writer)
    with Wire(daemon.socket) as old, refused(errno.EPROTONOSUPPORT, "restart the program"):
        old.attach("m")
    assert client.attach("m").data_size == 100


def test_a_server_with_images_says_so(client):
    with Wire(client.socket.getpeername(), greet=False) as w:
        assert w.hello().features & IMAGES


@pytest.mark.parametrize("flags", [EXCLUSIVE, REUSABLE])
def test_memory_that_is_written_again_is_no_file(client, flags):
    with refused(errno.EMEDIUMTYPE, "flat form"):
        publish(client, flags=flags)
    assert client.names() == []
    client.publish(client.create("m", image([("t", 64)]), flags=flags).writer)
    with refused(errno.EMEDIUMTYPE, "flat form"):
        publish(client)
    assert [row.version for row in client.list(VERSIONS, "m")] == [1]


def test_a_device_that_does_not_exist_is_named(client):
    with refused(errno.ENODEV, "there is no device 'moon'"):
        publish(client, device="moon")


def test_a_proof_is_for_the_holder_of_a_lease_on_an_image(daemon, client):
    publish(client)
    lease = client.attach("m")
    with Wire(daemon.socket, features=IMAGES) as other, refused(errno.ENOENT, "no such lease"):
        other.proof(lease.lease)
    client.publish(client.create("flat", image([("t", 64)])).writer)
    with refused(errno.EMEDIUMTYPE, "flat form"):
        client.proof(client.attach("flat").lease)
    slot = client.create_image("none", layout(5), OFFSET)
    client.publish(slot.writer)
    with refused(errno.ENODATA, "'none@1' has no digests"):
        client.proof(client.attach("none").lease)


def test_a_create_that_is_sent_again_must_be_for_the_same_form(make_daemon):
    daemon = make_daemon("--keeper")
    with Wire(daemon.socket, features=IMAGES) as w:
        slot = w.create_image("m", layout(10), OFFSET, cookie=7)
        os.kill(w.ping().pid, signal.SIGKILL)
        w.hang_up()
        with Wire(daemon.socket, features=IMAGES) as again:
            with refused(errno.EBUSY):
                again.create("m", layout(10), cookie=7)
            with refused(errno.EBUSY):
                again.create_image("m", layout(10), OFFSET + 1, cookie=7)
            same = again.create_image("m", layout(10), OFFSET, cookie=7)
            assert same.writer == slot.writer
            assert os.path.samestat(os.fstat(same.digests_fd), os.fstat(slot.digests_fd))
            w.forget(slot.fds + (slot.digests_fd,))
            assert again.publish(same.writer, wire.fill_image(same, b"x")) == 1
            assert again.attach("m").bytes() == b"x" * 10
            assert len(again.proof(again.attach("m").lease)) == 2


def test_an_image_survives_a_restart_in_all_its_parts(make_daemon):
    daemon = make_daemon("--keeper")
    client = Wire(daemon.socket, features=IMAGES)
    with client:
        publish(client, size=100_001)
        publish(client, size=wire.LEAF + 1, flags=NEW_LAYOUT)
        lease = client.attach("m")
        before, table, place = client.stat(), os.pread(client.proof(lease.lease)[0], 100, 0), client.location
        users = client.list(USERS)
        os.kill(client.ping().pid, signal.SIGKILL)
        client.hang_up()
    with Wire(daemon.socket, features=IMAGES) as w:
        for version, size in (1, 100_001), (2, wire.LEAF + 1):
            lease = w.attach("m", version)
            assert (lease.flags, lease.slot_size) == (wire.DIGEST | IS_IMAGE, OFFSET + size)
            assert lease.bytes() == content(b"abcdefg", size)
            assert w.location._replace(map_size=0) == place._replace(map_size=0) and not any(place.handle)
            assert mode(lease.slot_fd) == 0o444
        assert os.pread(w.proof(lease.lease)[0], 100, 0) == table
        assert w.stat()._replace(headroom=0, kept_bytes=0) == before._replace(headroom=0, kept_bytes=0)
        row, old = w.list(USERS)[0], users[0]
        assert (row.used_bytes, row.used_descriptors) == (old.used_bytes, old.used_descriptors)
        assert [row.flags for row in w.list(VERSIONS, "m")] == [wire.DIGEST | IS_IMAGE] * 2
        # Its digests count: a writer of today's weightd finds them by the slot's id.
        assert before.store_used == 2 + 2 + 2 * (2 + 1)


def test_history_and_slots_say_which_form(client):
    publish(client, keep=3)
    client.publish(client.create("m", image([("t", 64)]), flags=NEW_LAYOUT).writer)
    publish(client, flags=NEW_LAYOUT)
    with_digest = wire.DIGEST | IS_IMAGE
    assert [row.flags for row in client.list(VERSIONS, "m")] == [with_digest, 0, with_digest]
    assert [row.flags for row in client.list(HISTORY, "m")] == [with_digest, 0, with_digest]
    assert [row.size for row in client.list(SLOTS, "m")] == [OFFSET + 100_001, 8192, OFFSET + 100_001]


def test_bytes_and_descriptors_are_charged_and_refunded(client):
    publish(client, size=3 * wire.LEAF)
    used = lambda: (client.list(USERS)[0].used_bytes, client.list(USERS)[0].used_descriptors)
    layout_bytes = client.stat().layout_bytes
    assert used() == (OFFSET + 3 * wire.LEAF + PAGE + layout_bytes, 2 + 2 + 1)  # digests take a page
    publish(client, "tiny", size=1, offset=97)
    assert used()[0] == OFFSET + 3 * wire.LEAF + PAGE + client.stat().layout_bytes + 2 * PAGE
    client.drop("tiny")
    for flags in 0, REPLACE:
        publish(client, size=3 * wire.LEAF, flags=flags)
    client.drop("m")
    for lease in list(client.held):
        with contextlib.suppress(Refused):
            client.detach(lease)
    until(lambda: used() == (0, 0), lambda: f"all is refunded but {used()}")


MAP_BY_PATH = """
import mmap, sys
with open(sys.argv[1], "rb") as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
sys.stdin.readline()
sys.stdout.buffer.write(m[:])
"""


def test_a_process_that_opened_the_file_by_its_path_keeps_the_memory(daemon, client):
    """It has no lease and no descriptor of weightd's, and maps what it opened through another process."""
    publish(client, size=100_001, keep=1)
    with Wire(daemon.socket, features=IMAGES) as holder:
        lease = holder.attach("m")
        path = f"/proc/{os.getpid()}/fd/{lease.slot_fd}"
        other = subprocess.Popen([sys.executable, "-c", MAP_BY_PATH, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout.readline() == b"mapped\n"
    publish(client, size=100_001, pattern=b"new", keep=1)
    states = lambda: [row.state for row in client.list(SLOTS, "m")]
    assert states() == [wire.ORPHAN, wire.CURRENT]
    publish(client, size=100_001, pattern=b"newer", keep=1)
    until(lambda: states() == [wire.ORPHAN, wire.CURRENT], lambda: states())  # the one that nobody maps is free
    raw, _ = other.communicate(b"\n")
    assert raw[OFFSET:] == content(b"abcdefg", 100_001) and other.returncode == 0
    until(lambda: states() == [wire.CURRENT], lambda: states())


def test_an_image_larger_than_all_memory_names_what_is_missing(client):
    size = 1 << 50
    with refused(errno.ENOMEM, "'m' on host needs", "more than"):
        client.create_image("m", image([("t", size)], alignment=1), 128 << 20)
    assert client.names() == []
    until(lambda: client.stat().slot_bytes == 0, lambda: client.stat())


def test_a_full_store_counts_the_digests_of_an_image(make_daemon, tmp_path):
    config = tmp_path / "weightd.conf"
    config.write_text("[store]\nmax = 10\n")
    with Wire(make_daemon("--keeper", "--config", config).socket, features=IMAGES) as w:
        publish(w, keep=2)
        assert w.stat().store_used == 2 + 2 + 3
        publish(w, size=10, flags=NEW_LAYOUT)
        assert w.stat().store_used == 10
        publish(w, size=10)  # the first one has to go, with its layout
        assert [row.version for row in w.list(VERSIONS, "m")] == [2, 3]
        with refused(errno.EDQUOT, "keeps 9 descriptors for weightd already, of 10"):
            publish(w, "n")
        assert "n" not in w.names() and [row.version for row in w.list(VERSIONS, "m")] == [2, 3]


def test_an_open_in_the_moment_of_a_look_does_not_end_weightd(daemon, client):
    """The kernel then sends the signal of a broken lease, which ends a process that does not expect it."""
    publish(client)
    daemon.proc.send_signal(signal.SIGIO)
    assert client.stat().slot_bytes == OFFSET + 100_001 and daemon.proc.poll() is None
    assert signal.SIGIO in ignored(daemon)


def ignored(daemon):
    """The signals that it ignores."""
    mask = int(re.search(r"SigIgn:\s+(\w+)", daemon.status())[1], 16)
    return {s for s in signal.Signals if mask >> (s - 1) & 1}

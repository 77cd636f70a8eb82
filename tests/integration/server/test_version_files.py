"""The files of a version: one sealed memfd that clients make and read, and that weightd keeps and shares."""
import errno
import mmap
import os
import signal

import pytest
from lib import wire
from lib.wire import (EXCLUSIVE, HAS_FILES, HISTORY, IMAGES, IS_IMAGE, REPLACE, REUSABLE, USERS, VERSIONS, Wire,
                      image, until)

from integration.server.test_images import OFFSET, layout, refused

FLAT = image([("t", 64)])
LIMIT = 80 << 20


@pytest.fixture
def client(daemon):
    with Wire(daemon.socket, features=IMAGES) as w:
        yield w


def publish(client, name="m", files=None, **options):
    slot = client.create(name, FLAT, **options)
    if files is not None:
        client.set_files(slot.writer, files)
    version = client.publish(slot.writer)
    client.detach(slot.writer)
    return version


def files_of(client, name="m", version=0):
    found, fd = client.files(name, version)
    assert version in (0, found)
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    client.forget([fd])
    return data


def used(client):
    """Bytes and descriptors that are charged to us."""
    row, = (row for row in client.list(USERS) if row.uid == os.getuid())
    return row.used_bytes, row.used_descriptors


def restart(daemon, client):
    os.kill(client.ping().pid, signal.SIGKILL)
    client.hang_up()
    client = Wire(daemon.socket, features=IMAGES)
    return client


def test_a_version_has_its_files_and_the_next_one_inherits_them(client):
    assert publish(client, files=b"first", keep=3) == 1
    assert publish(client) == 2
    assert publish(client, files=b"third") == 3
    assert [files_of(client, version=v) for v in (1, 2, 3, 0)] == [b"first", b"first", b"third", b"third"]
    assert client.attach("m").flags == HAS_FILES
    assert [row.flags for row in client.list(VERSIONS, "m")] == [HAS_FILES] * 3
    client.drop("m", 2)
    assert [row.flags for row in client.list(HISTORY, "m")] == [HAS_FILES] * 3


@pytest.mark.parametrize("flags", [0, EXCLUSIVE, REUSABLE])
def test_a_client_of_an_earlier_release_is_not_told_of_them(daemon, client, flags):
    """It takes a reply with a bit that it does not know for garbage, and hangs up."""
    publish(client, files=b"first", flags=flags)
    known = wire.DIGEST | wire.MUTABLE
    with Wire(daemon.socket) as earlier:
        lease = earlier.attach("m")
        assert (lease.flags & known, lease.flags & ~known) == (wire.MUTABLE if flags & EXCLUSIVE else 0, 0)
        assert earlier.pause(lease.lease).flags == lease.flags
        if flags & EXCLUSIVE:
            client.send_create("m", FLAT, flags=flags, timeout_ms=-1)
            until(lambda: earlier.records()["m"].state == wire.UPDATING, "readers are asked to pause")
            earlier.send_pause(lease.lease)
            client.publish(client.slot(client.answer(wire.CREATE)).writer)
            shown = earlier.paused()
            assert (shown.version, shown.flags) == (2, lease.flags)
    assert client.attach("m").flags == lease.flags | HAS_FILES
    assert files_of(client) == b"first"


def test_an_image_has_files_like_any_other(client):
    slot = client.create_image("m", layout(10), OFFSET)
    client.set_files(slot.writer, b"config")
    client.publish(slot.writer, wire.fill_image(slot, b"x"))
    assert client.attach("m").flags == wire.DIGEST | IS_IMAGE | HAS_FILES
    assert files_of(client) == b"config"


@pytest.mark.parametrize("flags", [0, EXCLUSIVE, REUSABLE])
def test_files_that_are_set_again_replace_the_others(client, flags):
    publish(client, files=b"old", flags=flags)
    slot = client.create("m", FLAT, flags=flags)
    for files in b"new", b"newer", b"newest":
        client.set_files(slot.writer, files)
        if not flags & EXCLUSIVE:
            assert files_of(client) == b"old"
    client.publish(slot.writer)
    assert files_of(client) == b"newest"
    client.detach(slot.writer)
    client.drop("m")
    until(lambda: client.stat().layout_bytes == 0, lambda: client.stat())


def test_a_writer_that_replaces_all_versions_inherits_their_files(client):
    publish(client, files=b"first")
    assert publish(client, flags=REPLACE) == 2
    assert files_of(client) == b"first"


def test_an_aborted_writer_leaves_the_files_as_they_were(client):
    publish(client, files=b"first")
    before = client.stat(), used(client)
    slot = client.create("m", FLAT)
    client.set_files(slot.writer, b"second" * 1000)
    client.abort(slot.writer)
    until(lambda: (client.stat().layout_bytes, used(client)) == (before[0].layout_bytes, before[1]),
          "everything is given back")
    assert files_of(client) == b"first"


def test_a_write_in_place_that_fails_leaves_the_files_as_they_were(client):
    publish(client, files=b"first", flags=EXCLUSIVE)
    slot = client.create("m", FLAT, flags=EXCLUSIVE)
    client.set_files(slot.writer, b"second")
    client.abort(slot.writer)
    assert publish(client, flags=EXCLUSIVE) == 2
    assert files_of(client) == b"first"


@pytest.mark.parametrize("whole", [False, True], ids=["version", "buffer"])
def test_files_of_a_version_that_was_dropped_are_its_readers(daemon, client, whole):
    publish(client, files=b"first", keep=2)
    lease = client.attach("m")
    publish(client, files=b"second")
    client.drop("m", 0 if whole else 1)
    with Wire(daemon.socket, features=IMAGES) as other, refused(errno.ENOENT):
        other.files("m", 1)
    assert files_of(client, version=1) == b"first"
    if whole:
        with refused(errno.ENOENT, "there is no buffer 'm'"):
            client.files("m")
    else:
        assert files_of(client) == b"second"
    client.detach(lease.lease)
    with refused(errno.ENOENT):
        client.files("m", 1)


def test_files_are_charged_and_refunded(client):
    publish(client)
    before = used(client)
    slot = client.create("m", FLAT, keep=1)
    with_slot = used(client)
    client.set_files(slot.writer, bytes(100_000))
    assert used(client) == (with_slot[0] + 100_000, with_slot[1] + 1)
    client.set_files(slot.writer, bytes(1000))
    assert used(client) == (with_slot[0] + 1000, with_slot[1] + 1)
    client.publish(slot.writer)
    client.detach(slot.writer)
    until(lambda: used(client) == (before[0] + 1000, before[1] + 1), lambda: f"{before}, {used(client)}")
    client.drop("m")
    until(lambda: used(client) == (0, 0), lambda: f"all is refunded but {used(client)}")


def test_a_limit_of_bytes_counts_files(make_daemon, tmp_path):
    config = tmp_path / "weightd.conf"
    config.write_text("[limits]\nbytes = 1M\n")
    with Wire(make_daemon("--config", config).socket) as w:
        slot = w.create("m", FLAT)
        out = "many bytes or descriptors; remove some buffers or versions (weightctl rm), or raise bytes= or descriptors= in [limits]"
        with refused(errno.EDQUOT, out):
            w.create("too-big", image([("t", 2 << 20)]))
        with refused(errno.EDQUOT, out):
            w.set_files(slot.writer, bytes(1 << 20))
        w.set_files(slot.writer, b"small")
        w.publish(slot.writer)
        assert files_of(w) == b"small"


@pytest.mark.parametrize("size", [1, 4096, 100_001, LIMIT])
def test_files_of_all_sizes(client, size):
    publish(client, files=b"f" * size)
    _, fd = client.files("m")
    assert os.fstat(fd).st_size == size
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as m:
        assert m[:1] == m[-1:] == b"f"
    with pytest.raises(OSError):
        os.pwrite(fd, b"x", 0)


@pytest.mark.parametrize("bad, code", [
    (lambda: wire.memfd(b"x", seals=0), errno.EBADMSG), (lambda: wire.memfd(b""), errno.EBADMSG),
    (lambda: wire.memfd(b"x", size=1 << 20), errno.EBADMSG), (lambda: wire.memfd(b"x" * (LIMIT + 1)), errno.EFBIG),
    (lambda: os.open("/dev/null", os.O_RDWR), errno.EBADMSG), (lambda: os.pipe()[0], errno.EBADMSG),
], ids=["unsealed", "empty", "hole", "too big", "device", "pipe"])
def test_what_cannot_be_files_is_refused(client, bad, code):
    slot = client.create("m", FLAT)
    fd = bad()
    with refused(code, "files must come as a sealed memfd without holes, of at most 80 MiB"):
        client.set_files(slot.writer, fd)
    os.close(fd)
    client.publish(slot.writer)
    assert client.attach("m").flags == 0


def test_who_may_not_have_files_is_told_so(daemon, client):
    publish(client)
    with refused(errno.ENODATA, "'m@1' on host has no files beside its weights"):
        client.files("m")
    with refused(errno.ENOENT, "does not have that version"):
        client.files("m", 9)
    with refused(errno.ENOENT, "there is no buffer 'x'"):
        client.files("x")
    with refused(errno.ENOENT, "no such writer"):
        client.set_files(77, b"x")
    slot = client.create("m", FLAT)
    with Wire(daemon.socket) as other, refused(errno.ENOENT, "no such writer"):
        other.set_files(slot.writer, b"x")


def test_a_store_without_room_refuses_files(make_daemon, tmp_path):
    config = tmp_path / "weightd.conf"
    config.write_text("[store]\nmax = 7\n")
    with Wire(make_daemon("--keeper", "--config", config).socket) as w:
        slot = w.create("m", FLAT)
        taken = w.stat().store_used
        assert taken == 6  # with the socket and its lock
        w.set_files(slot.writer, b"x")
        with refused(errno.EDQUOT, "the service manager keeps 7 descriptors"):
            w.set_files(slot.writer, b"y")
        w.publish(slot.writer)
        assert files_of(w) == b"x"


def test_files_survive_a_restart_and_those_of_a_writer_too(make_daemon):
    daemon = make_daemon("--keeper")
    client = Wire(daemon.socket, features=IMAGES)
    publish(client, files=b"first")
    publish(client)
    publish(client, "x", files=b"of x", flags=EXCLUSIVE)
    slot = client.create("m", FLAT)
    client.set_files(slot.writer, b"not yet")
    client.set_files(slot.writer, b"third")
    before = client.stat()
    # Socket and lock, two for each buffer, slots, a layout for each buffer, and the files that are not shared.
    assert before.store_used == 2 + 2 * 2 + 4 + 2 + 3
    client = restart(daemon, client)
    with client:
        assert files_of(client) == files_of(client, version=1) == b"first"
        assert files_of(client, "x") == b"of x"
        assert [row.flags for row in client.list(VERSIONS, "m")] == [HAS_FILES] * 2
        assert client.stat()._replace(headroom=0, kept_bytes=0) == before._replace(headroom=0, kept_bytes=0)
        assert client.resume(slot.writer) == 0
        assert client.publish(slot.writer) == 3
        assert files_of(client) == b"third"
        assert "belongs to no served buffer" not in daemon.log

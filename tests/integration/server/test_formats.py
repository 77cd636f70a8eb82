"""Formats of manifests: that of earlier releases until there is an image or a file, and none that is not known."""
import contextlib
import errno
import os
import pathlib
import signal
import socket
import struct

import pytest
from lib.daemon import tampering
from lib.wire import EXCLUSIVE, IMAGES, IS_IMAGE, NEW_LAYOUT, REUSABLE, Wire, image, until

from integration.server.test_images import OFFSET, layout, refused
from integration.server.test_images import publish as publish_image
from integration.server.test_version_files import files_of, publish

FLAT, WITH_COMPANIONS, LATER = 2, 3, 4
FORMAT_AT = 8  # offset of its u32 in a manifest


class Kept:
    """A daemon under a keeper, which has the manifests open."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.client = Wire(daemon.socket, features=IMAGES)

    @contextlib.contextmanager
    def manifest(self, name):
        for fd in pathlib.Path(f"/proc/{self.daemon.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if not os.readlink(fd).startswith("/memfd:weightd-manifest"):
                    continue
                with tampering(fd) as f:
                    if name.encode() + b"\0" in f.read():
                        yield f
                        return
        raise AssertionError(f"the keeper has no manifest of {name}")

    def format(self, name):
        with self.manifest(name) as f:
            return struct.unpack("<I", os.pread(f.fileno(), 4, FORMAT_AT))[0]

    def set_format(self, name, number):
        with self.manifest(name) as f:
            os.pwrite(f.fileno(), struct.pack("<I", number), FORMAT_AT)

    def restart(self):
        os.kill(self.client.ping().pid, signal.SIGKILL)
        self.client.hang_up()
        self.client.close()
        self.client = Wire(self.daemon.socket, features=IMAGES)


@pytest.fixture
def kept(make_daemon):
    k = Kept(make_daemon("--keeper"))
    yield k
    k.client.close()


def test_a_buffer_without_images_and_files_keeps_the_format_of_earlier_releases(kept):
    for name, flags in ("m", 0), ("x", EXCLUSIVE), ("r", REUSABLE):
        publish(kept.client, name, flags=flags)
        publish(kept.client, name, flags=flags)
        assert kept.format(name) == FLAT
    kept.restart()
    assert [kept.client.attach(name).version for name in "mxr"] == [2, 2, 2]
    assert [kept.format(name) for name in "mxr"] == [FLAT] * 3


@pytest.mark.parametrize("make", [lambda w: publish_image(w, "m", flags=NEW_LAYOUT), lambda w: publish(w, files=b"f")],
                         ids=["image", "files"])
def test_the_first_image_and_the_first_file_change_the_format_and_it_stays(kept, make):
    publish(kept.client, keep=1)
    assert kept.format("m") == FLAT
    make(kept.client)
    assert kept.format("m") == WITH_COMPANIONS
    kept.restart()
    publish(kept.client, flags=NEW_LAYOUT)
    assert kept.format("m") == WITH_COMPANIONS
    assert kept.client.attach("m").version == 3


def test_an_image_in_the_making_has_the_new_format_before_its_writer_has_memory(kept):
    publish(kept.client)
    kept.client.create_image("m", layout(10), OFFSET, flags=NEW_LAYOUT)
    assert kept.format("m") == WITH_COMPANIONS


@pytest.mark.parametrize("name", ["image", "flat"])
def test_a_later_format_is_named_and_neither_served_nor_lost(kept, name):
    publish_image(kept.client, "image")
    publish(kept.client, "flat", files=b"files")
    before, was = kept.client.stat(), kept.format(name)
    assert was == WITH_COMPANIONS
    kept.set_format(name, LATER)
    kept.restart()
    other, = {"image", "flat"} - {name}
    assert kept.client.names() == [other]
    assert f"has format {LATER} and this weightd supports {WITH_COMPANIONS}: it is kept and not served" in kept.daemon.log
    assert kept.client.stat().store_used == before.store_used
    assert kept.client.stat().n_quarantined == 5
    kept.set_format(name, was)
    kept.restart()
    assert kept.client.names() == ["flat", "image"] and kept.client.stat().n_quarantined == 0
    assert files_of(kept.client, "flat") == b"files"
    lease = kept.client.attach("image")
    assert len(lease.bytes()) == 100_001 and len(kept.client.proof(lease.lease)) == 2


def environment_of(pid):
    return dict(word.split("=", 1) for word in pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0") if word)


def lose(kept, kind):
    """Removes the descriptors of that kind from the keeper's store, in the name of the daemon."""
    kept.restart()  # a successor gets all their names
    pid = kept.client.ping().pid
    environment = environment_of(pid)
    names = [name for name in environment["LISTEN_FDNAMES"].split(":") if name[0] == kind]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        address = environment["NOTIFY_SOCKET"]
        s.connect("\0" + address[1:] if address.startswith("@") else address)
        us = struct.pack("iII", pid, os.getuid(), os.getgid())
        try:
            for name in names:
                s.sendmsg([f"FDSTOREREMOVE=1\nFDNAME={name}".encode()], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, us)])
        except PermissionError:
            pytest.skip("only root may send in the name of another process")
    kept.restart()
    assert not [name for name in environment_of(kept.client.ping().pid)["LISTEN_FDNAMES"].split(":") if name[0] == kind]
    return len(names)


def test_an_image_that_lost_its_digests_is_served_and_does_not_claim_to_have_them(kept):
    publish_image(kept.client)
    before = kept.client.stat()
    assert lose(kept, "d") == 1
    assert "the digests of 'm@1' on host are lost: it is served, and cannot be verified" in kept.daemon.log
    for _ in range(2):
        lease = kept.client.attach("m")
        assert lease.flags == IS_IMAGE and len(lease.bytes()) == 100_001
        with refused(errno.ENODATA, "'m@1' has no digests"):
            kept.client.proof(lease.lease)
        assert kept.client.stat().store_used == before.store_used - 1
        n = kept.daemon.log.count("are lost")
        kept.restart()
    assert kept.daemon.log.count("are lost") == n  # once was enough
    kept.client.drop("m")
    until(lambda: kept.client.stat().slot_bytes == 0, lambda: kept.client.stat())
    assert kept.client.stat().n_quarantined == 0


def test_a_version_that_lost_its_files_is_served_without_them(kept):
    publish(kept.client, files=b"files")
    publish(kept.client)
    assert lose(kept, "f") == 1
    for version in 1, 2:
        assert f"the files of 'm@{version}' on host are lost: it is served without them" in kept.daemon.log
        assert kept.client.attach("m", version).flags == 0
    with refused(errno.ENODATA):
        kept.client.files("m")
    publish(kept.client, files=b"new")
    assert files_of(kept.client) == b"new"


def test_a_writer_that_lost_its_files_is_told_to_begin_again(kept):
    slot = kept.client.create("m", image([("t", 64)]))
    kept.client.set_files(slot.writer, b"files")
    own = os.dup(slot.fd)
    assert lose(kept, "f") == 1
    with refused(errno.ESTALE, "create it again"):
        kept.client.resume(slot.writer)
    os.close(own)
    until(lambda: kept.client.stat().slot_bytes == 0, lambda: kept.client.stat())
    assert kept.client.names() == [] and kept.client.stat().n_quarantined == 0


def test_an_image_in_the_making_that_lost_its_digests_is_nothing(kept):
    slot = kept.client.create_image("m", layout(10), OFFSET)
    own = os.dup(slot.fd)
    assert lose(kept, "d") == 1
    with refused(errno.ESTALE, "create it again"):
        kept.client.resume(slot.writer)
    os.close(own)
    until(lambda: kept.client.stat().slot_bytes == 0, lambda: kept.client.stat())
    assert kept.client.names() == [] and kept.client.stat().n_quarantined == 0

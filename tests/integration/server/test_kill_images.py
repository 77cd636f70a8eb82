"""
As test_kill_matrix.py, for versions that are files and for the files beside weights: the daemon is killed at each
point that they pass, and an author that reconnects makes, replaces and removes them meanwhile.
"""
import contextlib
import errno
import functools
import os

import pytest
from integration.server import test_kill_matrix as matrix
from lib import wire
from lib.wire import EXCLUSIVE, HAS_FILES, IMAGES, IS_IMAGE, LEAF, NEW_LAYOUT, SLOTS, VERSIONS, Closed, Refused, Wire, image, until

OFFSET = 4096
SIZE = LEAF + 4097


def content(name, number):
    return f"{name}@{number} ".encode()


class Author:
    """Makes versions through deaths of the daemon, and remembers what was acknowledged."""

    def __init__(self, path):
        self.path = path
        self.wire = None
        self.truth = {}  # name: {version: (flags, content, files)}
        self.current = {}
        self.meet()

    def meet(self):
        if self.wire:
            self.wire.close()
        until(self.can_meet, "the daemon takes us")

    def can_meet(self):
        try:
            self.wire = Wire(self.path, features=IMAGES)
            return True
        except (Closed, OSError):
            return False

    def insist(self, ask, gone=()):
        """ask(), again after each death; the errors in `gone` mean that the daemon did it before."""
        again = False
        while True:
            try:
                return ask()
            except Closed:
                self.meet()
                again = True
            except Refused as e:
                if not again or e.errno not in gone:
                    raise
                return None

    def resumed(self, writer, ask):
        """ask() by the writer, on whatever connection has it. The version, if it was published before."""
        version = 0

        def attempt():
            nonlocal version
            if self.has_writer is not self.wire:
                version = self.wire.resume(writer)
                self.has_writer = self.wire
            return None if version else ask()

        return self.insist(attempt) or version

    @contextlib.contextmanager
    def writing(self, name, keep=0, flat=False, flags=0, files=()):
        """A writer with its content and its files; the last of these hold."""
        cookie = int.from_bytes(os.urandom(8), "little") | 1
        layout = image([("t", 4096)]) if flat else image([("t", SIZE)], alignment=1)
        options = dict(cookie=cookie, keep=keep, flags=flags | NEW_LAYOUT * (not flags))
        make = (lambda: self.wire.create(name, layout, **options)) if flat else \
            (lambda: self.wire.create_image(name, layout, OFFSET, **options))
        slot = self.insist(make)
        self.has_writer = self.wire
        # Others than those that go with the connection: without any, the writer counts as dead.
        own = [os.dup(fd) for fd in (slot.fd, slot.digests_fd) if fd >= 0]
        slot = slot._replace(**dict(zip(("fd", "digests_fd"), own)))
        try:
            for one in files:
                self.resumed(slot.writer, lambda: self.wire.set_files(slot.writer, one))
            yield slot, (wire.fill if flat else wire.fill_image)(slot, content(name, slot.version))
        finally:
            for fd in own:
                os.close(fd)

    def publish(self, name, keep=8, flat=False, flags=0, files=()):
        with self.writing(name, keep, flat, flags, files) as (slot, root):
            assert self.resumed(slot.writer, lambda: self.wire.publish(slot.writer, root)) == slot.version
        self.insist(lambda: self.wire.detach(slot.writer), gone=[errno.ENOENT])
        versions = self.truth.setdefault(name, {})
        inherited = versions[max(versions)][2] if versions else b""
        if flags & EXCLUSIVE:
            versions.clear()
        there = files[-1] if files else inherited
        shown = (0 if flat else IS_IMAGE) | (HAS_FILES if there else 0) | wire.DIGEST
        versions[slot.version] = shown, content(name, slot.version), there
        while len(versions) > keep:
            del versions[min(versions)]
        self.check()

    def abort(self, name, **options):
        with self.writing(name, **options) as (slot, _):
            self.insist(lambda: self.wire.abort(slot.writer), gone=[errno.ENOENT])
        self.check()

    def drop(self, name, version=0):
        self.insist(lambda: self.wire.drop(name, version), gone=[errno.ENOENT])
        if version:
            del self.truth[name][version]
        else:
            del self.truth[name]
        self.check()

    def check(self):
        listed = {name: self.insist(lambda: self.wire.list(VERSIONS, name)) for name in self.insist(lambda: self.wire.names())}
        assert {name: {row.version for row in rows} for name, rows in listed.items()} == \
            {name: versions.keys() for name, versions in self.truth.items()}
        for name, versions in self.truth.items():
            for version, truth in versions.items():
                self.insist(lambda: self.check_version(name, version, *truth))

    def check_version(self, name, version, flags, pattern, files):
        w = self.wire
        lease = w.attach(name, version)
        size = lease.data_size
        assert (lease.flags & ~wire.MUTABLE, lease.bytes()) == (flags, (pattern * size)[:size])
        if files:
            _, fd = w.files(name, version)
            assert os.pread(fd, os.fstat(fd).st_size, 0) == files
            w.forget([fd])
        if flags & IS_IMAGE:
            digests, slot = w.proof(lease.lease)
            table = os.pread(digests, os.fstat(digests).st_size, 0)
            with open(f"/proc/self/fd/{slot}", "rb") as f:
                raw = f.read()
            assert table == wire.hash128(raw[:OFFSET]) + b"".join(
                wire.hash128(raw[at:at + LEAF]) for at in range(OFFSET, len(raw), LEAF))
            w.forget([digests, slot])
        w.detach(lease.lease)


def life(author):
    """All that happens to images and to files."""
    author.publish("m", files=[b"first"])
    author.publish("m")  # inherits them
    author.publish("m", files=[b"second", b"third"])
    author.abort("m", files=[b"never", b"seen"])
    author.publish("m", flat=True, files=[b"of a flat one"], keep=2)
    author.publish("m", keep=2)
    author.drop("m", 4)
    author.publish("n")
    author.publish("x", flat=True, flags=EXCLUSIVE, files=[b"in place"])
    author.publish("x", flat=True, flags=EXCLUSIVE, files=[b"in place, too"])
    author.publish("x", flat=True, flags=EXCLUSIVE)
    for name in "n", "x", "m":
        author.drop(name)


def play(faults):
    """Returns passages and the log."""
    daemon = matrix.Faulty(faults)
    try:
        author = Author(daemon.socket)
        before = author.insist(lambda: author.wire.stat()).store_used
        life(author)
        author.meet()  # without its leases and descriptors
        stat = lambda: author.insist(lambda: author.wire.stat())
        what = lambda: f"{stat()}\n{author.insist(lambda: author.wire.list(SLOTS))}\n{daemon.memfds()}"
        until(lambda: stat().slot_bytes == 0 and stat().layout_bytes == 0, what)
        until(lambda: stat().store_used == before, what)
        assert stat().n_quarantined == 0, what()
        until(lambda: not daemon.memfds(), what)
        author.wire.close()
        assert not daemon.wrongs, daemon.wrongs
        return daemon.passages(), daemon.log
    except BaseException:
        print(daemon.log)
        raise
    finally:
        daemon.close()


@functools.cache
def passages():
    return play({})[0]


NOT_PASSED = {point for point in matrix.POINTS if point.startswith((
    "rollback-", "recycle-", "replace-", "pause-", "access-", "torn-", "update-evicted", "update-asked", "renew-", "release-",
    "stop-", "trim-", "resume-", "share-"))}


@pytest.mark.longer
@pytest.mark.parametrize("point", [p for p in matrix.POINTS if p not in NOT_PASSED | matrix.OF_JOBS])
def test_a_death_loses_no_image_and_no_file(point, require):
    require("faults")
    n_deaths = 0
    for passage in matrix.picked(passages()[point], share=2):
        _, log = play({point: passage})
        n_deaths += f"killed at {point}:{passage}" in log
    assert n_deaths or point.startswith("recovery-"), "the scene does not pass here"


@pytest.mark.parametrize("point", [p for p in matrix.POINTS if p.startswith(("recovery-", "resume-")) and p not in matrix.OF_JOBS])
@pytest.mark.parametrize("first", [
    "files-kept", "publish-committed", *(pytest.param(p, marks=pytest.mark.long) for p in ("files-committed", "create-kept"))])
def test_a_death_in_the_recovery_loses_nothing_either(first, point, require):
    require("faults")
    _, log = play({first: 2, point: 1})
    assert f"killed at {first}:2" in log

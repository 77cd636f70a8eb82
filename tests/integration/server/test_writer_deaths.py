"""
A writer is killed before each of its calls to the kernel, one by one: its version is there, whole, or it is
not, and the next writer can go on.
"""
import subprocess

import pytest
from integration.programs import HERE, compiled
from lib import features
from lib.wire import IMAGES, VERSIONS, Refused, Wire, until

SIZE = 12288
KINDS = "sealed", "reusable", "exclusive", "replace"


class Authors:
    """Writers of one buffer."""

    def __init__(self, daemon, kind):
        library = features.LIBRARY.parent  # a sanitized one wants to be loaded before ours
        self.program = compiled("author", (HERE / "author.c",), f"-L{library}", f"-Wl,-rpath,{library}", "-lweightd")
        self.death = compiled("death.so", (HERE.parent / "preload/death.c",), "-shared", "-ldl")
        self.daemon, self.kind, self.log = daemon, kind, daemon.folder / "calls"

    def run(self, byte, at=None):
        """Returns the exit status, and the version it was sent; None if it was not."""
        env = {} if at is None else {"LD_PRELOAD": str(self.death), "DEATH_AT": str(at), "DEATH_LOG": str(self.log)}
        self.log.unlink(missing_ok=True)
        done = subprocess.run([self.program, "m", self.kind, str(byte)], env=self.daemon.env | env, text=True,
                              stdout=subprocess.PIPE, timeout=60)
        return done.returncode, int(done.stdout) if done.stdout else None

    def calls(self):
        return self.log.read_text().split()


def versions(w):
    """The served versions, as {version: byte}; the bytes of each are all the same."""
    found = {}
    for row in w.list(VERSIONS, "m"):
        lease = w.attach("m", row.version)
        data = lease.bytes()
        assert data == data[:1] * SIZE, f"version {row.version} is torn"
        found[row.version] = data[0]
        w.detach(lease.lease)
        w.forget(lease[-3:])
    return found


def settled(w):
    """Waits until the server has seen the writer's death."""
    until(lambda: not any(record.writing for record in w.records().values()), "the server has seen the writer's end")


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_dies_leaves_a_version_or_none(daemon, kind):
    authors = Authors(daemon, kind)
    assert authors.run(1, at=0) == (0, 1)
    calls = authors.calls()
    assert {"connect", "sendmsg", "recvmsg", "mmap", "madvise", "close"} <= set(calls)
    assert ("pwrite" in calls) == (kind in ("sealed", "replace"))  # header and digests of a file
    n_published, n_torn = 0, 0
    with Wire(daemon.socket, features=IMAGES) as w:
        byte, at = 1, 0
        while True:
            at, byte = at + 1, byte % 200 + 1
            before = versions(w)
            status, told = authors.run(byte, at)
            settled(w)
            if status == 0 and n_published:
                break  # it makes no more calls than that
            if status == 0:
                at //= 2  # the runs before looked for replies more often, and never came so far
                continue
            assert status == -9, f"call {at}, {authors.calls()[-1]}: it ended with {status}"
            try:
                after = versions(w)
            except Refused as e:
                assert kind == "exclusive" and "is torn" in e.sentence
                n_torn += 1
                after = None
            if after and max(after) > max(before, default=0):
                assert after[max(after)] == byte
                n_published += 1
            elif after is not None:
                assert told is None, f"version {told} was acknowledged, and {after} are there"
                assert after == (before if after or kind != "replace" else {}), f"{authors.calls()[-1]}: {before}"
            status, told = authors.run(byte := byte % 200 + 1)
            assert status == 0 and versions(w)[told] == byte
        assert at > len(calls) / 2 and n_published and bool(n_torn) == (kind == "exclusive")
        w.drop("m")
        until(lambda: w.stat().slot_bytes == 0, lambda: f"no memory is left: {w.stat()}")

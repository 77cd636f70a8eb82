"""
As test_kill_matrix.py, for jobs: the daemon is killed at each point that a job passes, and ranks that reconnect
create, join, leave and remove jobs meanwhile. What was acknowledged is there, byte by byte, and nothing else.
"""
import errno
import functools
import os
import struct

import pytest
from integration.server import test_kill_matrix as matrix
from lib.wire import JOBS, Closed, Refused, Wire, until

PARTS = (("JOURNAL", 4096), ("PARAM", 3 << 20), ("GRAD", 4097))
OF_JOBS = [point for point in matrix.POINTS if point in matrix.OF_JOBS]
SHARED = ["store-put", "store-removed", "store-barrier", "start-inherited", "start-listening", "start-recovered"]


class Ranks:
    """A process that is all ranks, through deaths of the daemon, and remembers what was acknowledged."""

    def __init__(self, path):
        self.path = path
        self.wires = {}  # by (job, rank); None: for all else
        self.tokens = {}
        self.truth = {}  # name: {part: bytes at its begin}
        self.done = {}

    def wire(self, key=None):
        if key not in self.wires:
            self.meet(key)
        return self.wires[key]

    def meet(self, key):
        if key in self.wires:
            self.wires.pop(key).close()

        def can_meet():
            try:
                self.wires[key] = Wire(self.path)
                return True
            except (Closed, OSError):
                return False

        until(can_meet, "the daemon takes us")

    def insist(self, ask, key=None, gone=()):
        """ask(wire), again after each death; the errors in `gone` mean that the daemon did it before."""
        again = False
        while True:
            try:
                return ask(self.wire(key))
            except Closed:
                self.meet(key)
                again = True
            except Refused as e:
                if not again or e.errno not in gone:
                    raise
                return None

    def create(self, name, n_ranks):
        token = os.urandom(32)
        self.insist(lambda w: w.create_job(name, n_ranks=n_ranks, token=token))
        self.tokens[name], self.truth[name], self.done[name] = token, {}, set()
        self.check()

    def join(self, name, rank):
        """As a library does it: joins again after a death."""
        joined = self.insist(lambda w: w.join(name, self.tokens[name], rank, PARTS), (name, rank))
        self.done[name].discard(rank)
        self.check()
        return joined.job

    def as_rank(self, name, rank, ask):
        """ask(wire, job) by the rank, which joins first, since it may be on a new connection."""
        return self.insist(lambda w: ask(w, w.join(name, self.tokens[name], rank, PARTS).job), (name, rank))

    def write(self, name, rank, part, data):
        def put(w, job):
            fd = w.part(job, part)
            os.pwrite(fd, data, 0)
            w.forget([fd])
        self.as_rank(name, rank, put)
        self.truth[name][part] = data
        self.check()

    def leave(self, name, rank):
        """The last one's leave removes the job: then the next join of a client that was not answered finds none."""
        last = len(self.done[name] | {rank}) == self.n_ranks(name)
        try:
            self.as_rank(name, rank, lambda w, job: w.leave(job))
        except Refused as e:
            assert last and e.errno == errno.ENOENT
        self.done[name].add(rank)
        if last:
            self.forget(name)
        self.check()

    def n_ranks(self, name):
        return self.insist(lambda w: w.job(name)).n_ranks

    def forget(self, name):
        for key in [k for k in self.wires if k and k[0] == name]:
            self.wires.pop(key).close()
        del self.truth[name]

    def remove(self, name):
        self.insist(lambda w: w.remove_job(name), gone=[errno.ENOENT])
        self.forget(name)
        self.check()

    def check(self):
        rows = {row.name: row for row in self.insist(lambda w: w.list(JOBS))}
        assert rows.keys() == self.truth.keys()
        for name, parts in self.truth.items():
            assert rows[name].n_done == len(self.done[name]), rows[name]
            if 0 in parts:
                assert rows[name].step == struct.unpack("<Q", parts[0])[0]
            if parts:
                self.as_rank(name, min(set(range(rows[name].n_ranks)) - self.done[name]), lambda w, job: self.check_parts(w, job, parts))

    def check_parts(self, w, job, parts):
        for part, data in parts.items():
            fd = w.part(job, part)
            assert os.pread(fd, len(data), 0) == data
            w.forget([fd])

    def close(self):
        for w in self.wires.values():
            w.close()


def life(ranks):
    """All that happens to jobs."""
    ranks.create("a", 2)
    ranks.join("a", 0)
    ranks.write("a", 0, 0, struct.pack("<Q", 1))
    ranks.join("a", 1)
    ranks.write("a", 1, 1, b"parameters")
    ranks.create("b", 1)
    ranks.leave("a", 0)
    ranks.join("b", 0)
    ranks.write("b", 0, 2, b"gradient")
    ranks.join("a", 0)
    ranks.write("a", 0, 0, struct.pack("<Q", 2))
    ranks.leave("a", 1)
    ranks.remove("b")
    ranks.create("b", 1)
    ranks.leave("a", 0)
    ranks.remove("b")


def play(faults):
    """Returns passages and the log."""
    daemon = matrix.Faulty(faults)
    try:
        ranks = Ranks(daemon.socket)
        stat = lambda: ranks.insist(lambda w: w.stat())
        before = stat().store_used
        life(ranks)
        until(lambda: (stat().slot_bytes, stat().layout_bytes, stat().store_used) == (0, 0, before), lambda: f"{stat()}\n{daemon.memfds()}")
        assert stat().n_quarantined == 0
        until(lambda: not daemon.memfds(), daemon.memfds)
        ranks.close()
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


@pytest.mark.longer
@pytest.mark.parametrize("point", [p for p in OF_JOBS + SHARED if not p.startswith(("recovery-", "job-recovered"))])
def test_a_death_loses_no_job(point, require):
    require("faults")
    n_deaths = 0
    for passage in matrix.picked(passages()[point], share=2):
        _, log = play({point: passage})
        n_deaths += f"killed at {point}:{passage}" in log
    assert n_deaths, "the scene does not pass here"


@pytest.mark.parametrize("point", ["recovery-job", "job-recovered"])
@pytest.mark.parametrize("first", [
    "job-memory-kept", "job-remove-committed", *(pytest.param(p, marks=pytest.mark.long) for p in ("job-stored", "job-memory-committed", "job-left"))])
def test_a_death_in_the_recovery_loses_no_job_either(first, point, require):
    require("faults")
    _, log = play({first: 2, point: 1})
    assert f"killed at {first}:2" in log and f"killed at {point}:1" in log

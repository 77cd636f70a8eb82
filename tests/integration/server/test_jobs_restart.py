"""Jobs across restarts of weightd under its keeper: what was acknowledged is there, and nothing else is left."""
import contextlib
import errno
import mmap
import os
import pathlib
import signal
import struct
import time

import pytest
from lib import wire
from lib.daemon import tampering
from lib.wire import JOBS, Refused, Wire, hash128, until

from integration.server.test_formats import lose
from integration.server.test_jobs import LINGER_MS, MIB, PARTS, refused

SIZE = sum(size for _, size in PARTS)
FORMAT_AT = 8  # offset of its u32 in a manifest
ACTIVE_AT, RECORDS_AT, RECORD_SIZE = 24, 64, 928
VACANT_AT = 208  # offset in a record


class Kept:
    """A daemon under a keeper, which has all descriptors of jobs."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.client = Wire(daemon.socket)

    def restart(self):
        os.kill(self.client.ping().pid, signal.SIGKILL)
        self.client.hang_up()
        self.client.close()
        self.client = Wire(self.daemon.socket)

    def descriptors(self, name):
        """Paths of the keeper's descriptors whose memfd has this name."""
        found = []
        for fd in pathlib.Path(f"/proc/{self.daemon.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(fd) == f"/memfd:{name} (deleted)":
                    found.append(fd)
        return found

    def stat(self):
        return self.client.stat()

    def is_settled(self, used):
        return lambda: self.stat().store_used == used and self.stat().slot_bytes == 0 and self.stat().layout_bytes == 0


@pytest.fixture
def kept(make_daemon):
    k = Kept(make_daemon("--keeper"))
    yield k
    k.client.close()


def test_a_job_outlives_weightd(kept):
    token = kept.client.create_job("train", n_ranks=3, linger_ms=3600_000)
    job = kept.client.join("train", token, 0, PARTS, description=b"the model").job
    with Wire(kept.daemon.socket) as done:
        done.join("train", token, 2, PARTS, description=b"the model")
        done.leave(job)
    fd = os.dup(kept.client.part(job, 1))
    os.pwrite(kept.client.part(job), struct.pack("<Q", 9), 0)
    mapping = mmap.mmap(fd, PARTS[1][1])
    mapping[3 * MIB:3 * MIB + 5] = b"state"
    before, stat = kept.client.job("train"), kept.stat()
    kept.restart()
    mapping[:4] = b"more"
    row = kept.client.job("train")
    assert row._replace(vacant_ns=0) == before._replace(n_present=0) and row.vacant_ns > before.created_ns
    assert (row.step, row.n_done, row.n_parts) == (9, 1, 3)
    after = kept.stat()
    assert (after.slot_bytes, after.layout_bytes, after.store_used, after.n_quarantined) == \
        (stat.slot_bytes, stat.layout_bytes, stat.store_used, 0)
    with refused(errno.EACCES, "not the token"):
        kept.client.join("train", bytes(32), 1, PARTS)
    with refused(errno.EPROTOTYPE, "describes job 'train' otherwise"):
        kept.client.join("train", token, 1, PARTS)
    assert kept.client.job_description("train", token) == b"the model"
    joined = kept.client.join("train", token, 0, PARTS, description=b"the model")
    assert joined == (job, 3, 1)
    again = kept.client.part(job, 1)
    assert os.fstat(again).st_ino == os.fstat(fd).st_ino
    assert os.pread(again, 5, 3 * MIB) == b"state" and os.pread(again, 4, 0) == b"more"
    mapping.close()
    os.close(fd)
    user, = kept.client.list(wire.USERS)
    assert (user.used_buffers, user.used_descriptors) == (1, 1 + len(PARTS) + 1) and user.used_bytes >= SIZE
    for rank in 0, 1:
        kept.client.join("train", token, rank, PARTS, description=b"the model")
        kept.client.leave(job)
    assert kept.client.list(JOBS) == []
    kept.client.forget(list(kept.client.fds))
    until(kept.is_settled(stat.store_used - 5), "all of it is free")
    assert "recovered: 0 buffers, 0 versions, 0 of them being written; 1 jobs; 0 descriptors quarantined" in kept.daemon.log


def test_a_job_without_memory_outlives_weightd(kept):
    token = kept.client.create_job("train", linger_ms=3600_000)
    kept.restart()
    assert kept.client.create_job("train", linger_ms=3600_000, token=token) == token
    assert kept.client.join("train", token, 0, PARTS).n_present == 1


def test_the_linger_time_of_a_job_that_had_ranks_begins_with_weightd(kept):
    token = kept.client.create_job("train", linger_ms=LINGER_MS)
    kept.client.join("train", token, 0, PARTS)
    used = kept.stat().store_used
    kept.restart()
    until(lambda: kept.client.list(JOBS) == [], "no rank has returned")
    until(kept.is_settled(used - 5), "all of it is free")
    kept.restart()
    assert kept.client.list(JOBS) == [] and kept.stat().n_quarantined == 0


def leave_vacant(kept, linger_ms):
    """Its record. A rank has been there and has gone."""
    with Wire(kept.daemon.socket) as w:
        w.join("train", w.create_job("train", linger_ms=linger_ms), 0, PARTS)
    until(lambda: kept.client.job("train").vacant_ns, "it is vacant")
    return kept.client.job("train")


def set_vacant(kept, ns):
    """As if weightd had seen the last rank go then."""
    kept.client.ping()  # the work after its last answer is done
    manifest, = kept.descriptors("weightd-job-manifest")
    with tampering(manifest) as f:
        serial, = struct.unpack("<Q", os.pread(f.fileno(), 8, ACTIVE_AT))
        at = RECORDS_AT + RECORD_SIZE * (serial & 1)
        os.pwrite(f.fileno(), struct.pack("<Q", ns), at + VACANT_AT)
        os.pwrite(f.fileno(), hash128(os.pread(f.fileno(), RECORD_SIZE - 16, at + 16)), at)


def test_a_job_is_vacant_since_its_last_rank_went_however_often_weightd_restarts(kept):
    before = leave_vacant(kept, 3600_000)
    for _ in range(2):
        kept.restart()
        assert kept.client.job("train") == before


@pytest.mark.parametrize("joined", [True, False])
def test_the_linger_time_goes_on_while_weightd_restarts(kept, joined):
    used = kept.stat().store_used
    if joined:
        leave_vacant(kept, 3600_000)
    else:
        kept.client.create_job("train", linger_ms=3600_000)
    set_vacant(kept, time.time_ns() - 3600 * 10**9)
    kept.restart()
    until(lambda: kept.client.list(JOBS) == [], "its time is over")
    until(kept.is_settled(used), "all of it is free")


def test_a_clock_that_was_set_back_begins_the_linger_time_again(kept):
    leave_vacant(kept, 3600_000)
    set_vacant(kept, time.time_ns() + 3600 * 10**9)
    before = time.time_ns()
    kept.restart()
    assert before < kept.client.job("train").vacant_ns <= time.time_ns()


def test_memory_of_a_removed_job_is_charged_after_a_restart_too(kept):
    token = kept.client.create_job("train")
    used = kept.stat().store_used
    job = kept.client.join("train", token, 0, PARTS).job
    fd = os.dup(kept.client.part(job, 2))
    kept.client.remove_job("train")
    kept.client.create_job("train")
    kept.restart()
    assert kept.client.job("train").n_parts == 0
    assert kept.stat().leaving_bytes == SIZE == kept.client.ping().n_bytes
    assert kept.client.list(wire.USERS)[0].used_bytes >= SIZE
    os.close(fd)
    until(kept.is_settled(used), "all of it is free")


def test_a_job_that_lost_a_part_is_set_aside(kept):
    token = kept.client.create_job("train")
    kept.client.join("train", token, 0, PARTS)
    kept.client.create_job("other")
    assert lose(kept, "p") == len(PARTS)
    assert "is kept and not served: the service manager has not kept all of its memory" in kept.daemon.log
    assert [row.name for row in kept.client.list(JOBS)] == ["other"]
    assert kept.stat().n_quarantined == 2 and kept.client.ping().n_bytes == 0
    with refused(errno.ENOENT, "there is no job 'train'"):
        kept.client.join("train", token, 0, PARTS)
    assert kept.client.join("train", kept.client.create_job("train"), 0, PARTS).n_present == 1


def test_a_job_that_lost_its_description_is_set_aside_with_its_memory(kept):
    token = kept.client.create_job("train")
    kept.client.join("train", token, 0, PARTS)
    assert lose(kept, "n") == 1
    assert kept.client.list(JOBS) == [] and kept.stat().n_quarantined == 1 + len(PARTS)
    assert kept.client.list(wire.USERS)[0].used_bytes == 0


@pytest.mark.parametrize("at, value, sentence", [
    (FORMAT_AT, 7, "has format 7 and this weightd supports 1: it is kept and not served; start the release that wrote it"),
    (0, 0, "is kept and not served: it is damaged"),
])
def test_a_manifest_that_is_not_ours_is_set_aside_and_not_lost(kept, at, value, sentence):
    token = kept.client.create_job("train")
    job = kept.client.join("train", token, 0, PARTS).job
    os.pwrite(kept.client.part(job, 1), b"state", 0)
    manifest, = kept.descriptors("weightd-job-manifest")
    with tampering(manifest) as f:
        was = os.pread(f.fileno(), 4, at)
        os.pwrite(f.fileno(), struct.pack("<I", value), at)
        kept.restart()
        assert sentence in kept.daemon.log
        assert kept.client.list(JOBS) == [] and kept.stat().n_quarantined == 5
        os.pwrite(f.fileno(), was, at)
    kept.restart()
    assert kept.stat().n_quarantined == 0
    assert os.pread(kept.client.part(kept.client.join("train", token, 0, PARTS).job, 1), 5, 0) == b"state"


def test_what_the_keeper_was_too_busy_to_hear_is_forgotten_all_the_same(kept):
    """Its socket holds ten messages, the rest waits in weightd and dies with it."""
    before = kept.stat().store_used
    for i in range(8):
        with Wire(kept.daemon.socket) as w:
            w.join(f"j{i}", w.create_job(f"j{i}"), 0, PARTS)
    pid = kept.client.ping().pid
    os.kill(kept.daemon.pid, signal.SIGSTOP)
    try:
        for i in range(8):
            kept.client.remove_job(f"j{i}")
        until(lambda: kept.stat().slot_bytes == 0, "all is free")
        os.kill(pid, signal.SIGKILL)
        kept.client.hang_up()
    finally:
        os.kill(kept.daemon.pid, signal.SIGCONT)
    kept.client = Wire(kept.daemon.socket)
    assert kept.client.list(JOBS) == []
    until(kept.is_settled(before), "nothing is kept without an owner")
    assert kept.stat().n_quarantined == 0


def test_a_join_that_the_keeper_does_not_confirm_leaves_nothing(kept):
    token = kept.client.create_job("train")
    before = kept.stat().store_used
    with Wire(kept.daemon.socket) as w:
        os.kill(kept.daemon.pid, signal.SIGSTOP)
        try:
            w.send_join("train", token, 0, PARTS)
            with pytest.raises(Refused, match="job 'train' gets no memory: the service manager does not keep it; restart weightd"):
                w.joined()
            assert kept.client.job("train").n_parts == 0
            os.kill(kept.client.ping().pid, signal.SIGKILL)
            kept.client.hang_up()
        finally:
            os.kill(kept.daemon.pid, signal.SIGCONT)
    kept.client = Wire(kept.daemon.socket)
    until(kept.is_settled(before), "the parts are dropped")
    assert kept.stat().n_quarantined == 0
    assert kept.client.join("train", token, 0, PARTS).n_present == 1


@contextlib.contextmanager
def keeper_stopped(kept):
    """All that weightd gives to its keeper waits."""
    os.kill(kept.daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(kept.daemon.pid, signal.SIGCONT)


def send_create(w, name, token, n_ranks=1):
    w.send(wire.JOB_CREATE, wire.BODIES[wire.JOB_CREATE].pack(name.encode(), token, 0, n_ranks, 0))


@pytest.mark.parametrize("closes", [True, False])
def test_a_create_that_is_sent_again_before_the_job_is_kept_succeeds(kept, closes):
    token = os.urandom(32)
    first, second, other, rank = (Wire(kept.daemon.socket) for _ in range(4))
    with first, second, other, rank:
        with keeper_stopped(kept):
            send_create(first, "train", token)
            until(lambda: kept.client.job("train"), "it is being created")
            rank.send_join("train", token, 0, PARTS)
            send_create(second, "train", token)
            send_create(other, "train", os.urandom(32))
            with refused(errno.EEXIST, "there is a job 'train' already"):
                other.answer(wire.JOB_CREATE)
            if closes:
                first.close()
                until(lambda: kept.client.ping().n_sessions == 4, "weightd knows")
        if not closes:
            first.answer(wire.JOB_CREATE)
        second.answer(wire.JOB_CREATE)
        assert rank.joined().n_present == 1


def test_a_create_that_nobody_waits_for_leaves_nothing(kept):
    before = kept.stat().store_used
    token = os.urandom(32)
    first, second = Wire(kept.daemon.socket), Wire(kept.daemon.socket)
    with first, second:
        with keeper_stopped(kept):
            send_create(first, "train", token)
            send_create(second, "train", token)
            until(lambda: kept.client.job("train"), "it is being created")
            first.close()
            second.close()
            until(lambda: kept.client.list(JOBS) == [], "it is removed")
        until(kept.is_settled(before), "nothing is kept")


def test_no_linger_time_runs_while_a_join_waits(kept):
    """Two jobs: the one that is created first, and has the longer time, is the clock."""
    kept.client.create_job("clock", linger_ms=LINGER_MS + 500)
    token = kept.client.create_job("train", linger_ms=LINGER_MS)
    with Wire(kept.daemon.socket) as w:
        with keeper_stopped(kept):
            w.send_join("train", token, 0, PARTS)
            until(lambda: kept.client.job("clock") is None, "its time is over")
            assert kept.client.job("train")
        assert w.joined().n_present == 1


def test_a_clean_stop_leaves_jobs_to_the_successor(kept):
    token = kept.client.create_job("train")
    job = kept.client.join("train", token, 0, PARTS).job
    os.pwrite(kept.client.part(job, 1), b"state", 0)
    os.kill(kept.daemon.pid, signal.SIGHUP)
    kept.client.hang_up()
    kept.client.close()
    kept.client = Wire(kept.daemon.socket)
    assert kept.client.join("train", token, 0, PARTS).job == job
    assert os.pread(kept.client.part(job, 1), 5, 0) == b"state"

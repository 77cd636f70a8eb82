"""
Jobs as programs see them: ranks that are one process each, by a lock in the kernel, whatever dies: a rank, weightd, or
both.
"""
import contextlib
import errno
import fcntl
import mmap
import os
import random
import re
import signal
import struct
import time

import pytest
from lib import wire
from lib.child import Child, run_as
from lib.daemon import tampering
from lib.fake_server import PATIENCE_S, FakeServer, later
from lib.native import Client, Failed
from lib.wire import until

MIB = 1 << 20
PARTS = (("JOURNAL", 4096), ("PARAM", 2 * MIB))
OTHER = 12347


@contextlib.contextmanager
def failed(code, sentence):
    with pytest.raises(Failed) as e:
        yield
    assert e.value.errno == code and re.search(sentence, e.value.sentence), e.value


@pytest.fixture
def connect(daemon):
    """Another connection of this process."""
    with contextlib.ExitStack() as stack:
        yield lambda path=daemon.socket: stack.enter_context(Client(path))


@pytest.fixture
def client(connect):
    return connect()


def rank_of_a_child(pipe, path, token, rank, parts):
    """Joins and does as it is told."""
    with Client(path) as client:
        try:
            job = client.join(token, rank, parts)
        except Failed as e:
            pipe.send(e)
            return
        pipe.send(None)
        while True:
            do, *args = pipe.recv()
            try:
                pipe.send(getattr(job, do)(*args))
            except Failed as e:
                pipe.send(e)


@contextlib.contextmanager
def child_rank(daemon, token, rank=0, parts=PARTS, **kw):
    with Child(rank_of_a_child, daemon.socket, token, rank, parts, **kw) as child:
        error = child.hear()
        if error:
            raise error
        yield child


def tell(child, *order):
    child.say(order)
    answer = child.hear()
    if isinstance(answer, Failed):
        raise answer
    return answer


# --- Tokens and names -----------------------------------------------------------------------------


def test_a_token_has_the_name_and_256_random_bits(client):
    tokens = [client.create_job(name, 2) for name in ("a", "b:c/d")]
    assert [token.rsplit(":", 1)[0] for token in tokens] == ["a", "b:c/d"]
    digits = [token.rsplit(":", 1)[1] for token in tokens]
    assert all(re.fullmatch("[0-9a-f]{64}", d) for d in digits) and digits[0] != digits[1]


def test_the_longest_name_has_a_token(client):
    name = "n" * 127
    token = client.create_job(name)
    assert len(token) == 192
    with client.join(token) as job:
        assert (job.name, job.rank, job.n_ranks) == (name, 0, 1)
    with failed(errno.EINVAL, "a job's name has 1 to 127 bytes"):
        client.create_job("n" * 128)


def test_a_name_is_taken_once(client, connect):
    client.create_job("train", 2)
    with failed(errno.EEXIST, "'train'"):
        connect().create_job("train", 2)


@pytest.mark.parametrize("n_ranks", [0, 257])
def test_a_job_has_1_to_256_ranks(client, n_ranks):
    with failed(errno.EINVAL, f"1 to 256 ranks on a machine, not {n_ranks}"):
        client.create_job("train", n_ranks)
    assert client.jobs() == {}


@pytest.mark.parametrize("token", ["", "train", "train:", ":" + "0" * 64, "train:" + "0" * 63, "train:" + "0" * 65,
                                   "train:" + "0" * 63 + "G", "n" * 128 + ":" + "0" * 64])
def test_what_is_no_token_is_refused_without_repeating_it(client, token):
    with pytest.raises(Failed) as e:
        client.join(token)
    assert e.value.errno == errno.EINVAL and "NAME:DIGITS" in e.value.sentence
    assert len(token) < 10 or token not in e.value.sentence


def test_a_wrong_token_is_refused(client):
    token = client.create_job("train")
    wrong = token[:-1] + ("0" if token[-1] != "0" else "1")
    for act in client.join, client.job_description:
        with failed(errno.EACCES, "'train'"):
            act(wrong)


def test_the_token_of_another_user_is_refused(require, daemon, client):
    require("root")
    os.chmod(daemon.socket, 0o666)
    token = client.create_job("train")

    def join():
        with Client(daemon.socket) as c:
            c.join(token)

    with failed(errno.EACCES, "'train'"):
        run_as(OTHER, join)


def test_an_older_server_has_no_jobs(tmp_path):
    with FakeServer(tmp_path / "fake.sock") as server:
        connecting = later(Client, server.path)
        server.accept()
        with connecting.result(PATIENCE_S) as client:
            for act in (lambda: client.create_job("train"), client.jobs, lambda: client.remove_job("train"),
                        lambda: client.join("train:" + "0" * 64)):
                with failed(errno.EOPNOTSUPP, "too old to have jobs"):
                    act()


# --- Parts ----------------------------------------------------------------------------------------


def test_what_a_rank_wrote_is_there_after_its_death(daemon, client):
    token = client.create_job("train", 2)
    with child_rank(daemon, token) as child:
        fd = tell(child, "fd", 1)
        with tampering(f"/proc/{child.pid}/fd/{fd}") as f:
            f.seek(MIB)
            f.write(b"state")
        child.kill()
    with client.join(token, 0, PARTS) as job, mmap.mmap(job.fd(1), 2 * MIB) as m:
        assert m[MIB:MIB + 5] == b"state" and m[:100] == bytes(100)
        assert job.fd(2) == -errno.ENOENT


@pytest.mark.parametrize("parts, sentence", [
    ([], "1 to 16 parts, not 0"), ([("A", 1)] * 17, "1 to 16 parts, not 17"), ([("A", 4096), ("b", 1)], "part 1 of a job needs a kind"),
    ([("", 1)], "part 0 of a job needs a kind"), ([("A" * 16, 1)], "1 to 15 of"), ([("A", 0)], "part A of a job cannot have 0 bytes")])
def test_a_bad_part_is_refused(client, parts, sentence):
    token = client.create_job("train")
    with failed(errno.EINVAL, sentence):
        client.join(token, 0, parts)
    assert client.jobs()["train"]["n_bytes"] == 0


def test_the_description_is_that_of_the_first_rank(client, connect):
    token = client.create_job("train", 2)
    with failed(errno.ENODATA, "'train'"):
        client.job_description(token)
    text = os.urandom(3 * MIB)
    with client.join(token, 0, description=text):
        assert connect().job_description(token) == text
        with failed(errno.EPROTOTYPE, "'train'"):
            connect().join(token, 1, description=b"other")
        with failed(errno.EINVAL, "1 to 16777216 bytes, not 0"):
            connect().join(token, 1, description=b"")


def test_the_list_has_what_the_ranks_wrote(daemon, client):
    assert client.jobs() == {}
    token = client.create_job("train", 3, linger_ms=3_600_000)
    with child_rank(daemon, token, 1) as child, client.join(token, 2, PARTS) as job:
        os.pwrite(job.fd(), struct.pack("<Q", 41), 0)
        row = client.jobs()["train"]
        assert (row["n_bytes"], row["step"], row["linger_ms"], row["uid"]) == (4096 + 2 * MIB, 41, 3_600_000, os.getuid())
        assert (row["n_ranks"], row["n_present"], row["n_done"], row["vacant_ns"]) == (3, 2, 0, 0)
        tell(child, "leave")
        assert client.jobs()["train"]["n_done"] == 1
    row = client.jobs()["train"]
    assert row["n_present"] == 0 and 0 < row["created_ns"] < row["vacant_ns"] < time.time_ns() + 10**9


# --- One process is one rank ----------------------------------------------------------------------


def test_a_second_process_is_refused_with_the_first_ones_number(daemon, client):
    token = client.create_job("train", 2)
    with child_rank(daemon, token, 1) as child:
        start = time.monotonic()
        with failed(errno.EBUSY, rf"rank 1 of job 'train' is process {child.pid}, which lives; end it \(kill {child.pid}\)"):
            client.join(token, 1, PARTS)
        assert time.monotonic() - start < 1.5, "it waited for a process that lives"
        assert client.jobs()["train"]["n_present"] == 1
    assert client.jobs()["train"]["n_done"] == 0


def test_a_refused_process_does_not_keep_the_rank_present(daemon, client):
    token = client.create_job("train", 2)
    with child_rank(daemon, token, 1) as child:
        with failed(errno.EBUSY, "rank 1"):
            client.join(token, 1, PARTS)
        child.kill()
        until(lambda: client.jobs()["train"]["n_present"] == 0, "no rank is left")


@pytest.mark.parametrize("how", ["is killed", "is being killed", "is killed while it is stopped"])
def test_the_successor_of_a_killed_rank_waits_for_its_end(daemon, client, how):
    """With memory that takes the kernel a while to unmap."""
    parts = ("JOURNAL", 4096), ("PARAM", 256 * MIB)
    token = client.create_job("train", 1)
    with child_rank(daemon, token, 0, parts) as child:
        if how == "is killed while it is stopped":
            os.kill(child.pid, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGKILL)
        if how == "is killed":
            child.end()
        with client.join(token, 0, parts) as job:
            assert job.holder(0) == os.getpid()


def test_a_rank_of_this_very_process_is_taken(client, connect):
    token = client.create_job("train", 2)
    with client.join(token, 1):
        for other in client, connect():
            with failed(errno.EBUSY, f"this process, {os.getpid()}, is rank 1 of job 'train' already"):
                other.join(token, 1)
        assert client.jobs()["train"]["n_present"] == 1
    client.join(token, 1).free()


def is_locked(job, rank):
    """As another process sees it."""
    def look(pipe):
        query = fcntl.fcntl(job.fd(), fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0))
        pipe.send(struct.unpack("hhqqi4x", query)[0] != fcntl.F_UNLCK)

    with Child(look) as child:
        return child.hear()


def test_the_lock_stays_while_other_ranks_of_the_process_join_fail_and_are_freed(daemon, client, connect):
    """The kernel releases all locks of a process on a file with any descriptor of it that the process closes."""
    token = client.create_job("train", 3)
    with client.join(token, 0) as job, child_rank(daemon, token, 2, (("JOURNAL", 4096),)):
        second = connect().join(token, 1)
        assert is_locked(job, 0) and is_locked(job, 1)
        with failed(errno.EBUSY, "rank 2"):
            connect().join(token, 2)
        second.free()
        assert is_locked(job, 0) and not is_locked(job, 1)
    n_before = len(os.listdir("/proc/self/fd"))
    with connect().join(token, 0) as job, connect().join(token, 1):
        assert is_locked(job, 0)
    assert len(os.listdir("/proc/self/fd")) <= n_before + 2, "two connections are left, and no parts"


def test_the_holder_of_a_rank_is_read_without_the_server(make_daemon):
    daemon = make_daemon()
    with Client(daemon.socket) as client:
        token = client.create_job("train", 3)
        with client.join(token, 0, PARTS) as job, child_rank(daemon, token, 1) as child:
            daemon.kill()
            assert [job.holder(rank) for rank in range(3)] == [os.getpid(), child.pid, 0]
            assert job.holder(3) == -errno.EINVAL
            child.kill()
            assert job.holder(1) == 0
    daemon.start()


def test_a_rank_acts_for_a_dead_one_and_for_no_other(daemon, client):
    token = client.create_job("train", 3)
    with client.join(token, 0, PARTS) as job, child_rank(daemon, token, 1) as child:
        with failed(errno.EBUSY, f"rank 1 of job 'train' is process {child.pid}"):
            job.hold(1)
        child.kill()
        job.hold(1)
        assert job.holder(1) == os.getpid()
        for rank in 0, 3:
            with failed(errno.EINVAL, f"rank 0 cannot act for rank {rank}"):
                job.hold(rank)
        job.release(1)
        assert job.holder(1) == 0


def test_a_successor_waits_for_a_rank_that_acts_for_it(daemon, client):
    token = client.create_job("train", 2)
    with client.join(token, 0, PARTS) as job:
        job.hold(1)
        with Child(rank_of_a_child, daemon.socket, token, 1, PARTS) as child:
            assert not child.pipe.poll(0.3), child.hear()
            job.release(1)
            assert child.hear() is None
            assert job.holder(1) == child.pid


@pytest.mark.timeout(120)
def test_a_successor_waits_as_long_as_a_rank_acts_for_it(daemon, client):
    """Beyond the few seconds in which a process ends. What it says to who will not wait is tested below."""
    token = client.create_job("train", 2)
    with client.join(token, 0, PARTS) as job:
        job.hold(1)
        with Child(rank_of_a_child, daemon.socket, token, 1, PARTS) as child:
            assert not child.pipe.poll(7), child.hear()
            job.release(1)
            assert child.hear() is None
            assert job.holder(1) == child.pid


def test_nobody_is_told_to_end_a_process_that_acts_for_a_rank(daemon, client):
    token = client.create_job("train", 3)
    with client.join(token, 2, PARTS) as job, child_rank(daemon, token, 0) as actor:
        tell(actor, "hold", 1)
        with pytest.raises(Failed) as e:
            job.hold(1)
        assert e.value.errno == errno.EBUSY
        assert re.search(f"process {actor.pid}, rank 0, is finishing the last step of rank 1 .*start rank 1 again later",
                         e.value.sentence), e.value.sentence
        assert "kill" not in e.value.sentence
        with failed(errno.EBUSY, f"rank 0 of job 'train' is process {actor.pid}, which lives; end it"):
            job.hold(0)
        tell(actor, "release", 1)
        job.hold(1)


def test_a_second_process_is_refused_at_once_while_the_first_acts_for_another_rank(daemon, client):
    token = client.create_job("train", 2)
    with client.join(token, 0, PARTS) as job, Child(rank_of_a_child, daemon.socket, token, 0, PARTS) as second:
        assert second.hear().errno == errno.EBUSY
        job.hold(1)
        with Child(rank_of_a_child, daemon.socket, token, 0, PARTS) as third:
            assert third.pipe.poll(4), "it waits for a rank that lives"
            refused = third.hear()
        assert refused.errno == errno.EBUSY and f"kill {os.getpid()}" in refused.sentence, refused


def test_a_child_of_a_rank_may_look_and_nothing_more(daemon, client):
    token = client.create_job("train", 2)

    def use(pipe, job):
        errors = []
        for act in job.check, job.leave, lambda: job.hold(1), lambda: client.join(token, 1, PARTS):
            try:
                act()
                errors.append(None)
            except Failed as e:
                errors.append(e.errno)
        holder, fd = job.holder(0), job.fd(1)
        job.release(1)
        job.free()
        pipe.send((errors, holder, os.path.exists(f"/proc/self/fd/{fd}")))

    with client.join(token, 0, PARTS) as job:
        with Child(use, job) as child:
            assert child.hear() == ([errno.ECHILD] * 4, os.getpid(), False)
        assert job.holder(0) == os.getpid() and is_locked(job, 0) and job.check() == 0
        assert client.jobs()["train"]["n_present"] == 1


# --- Leaving --------------------------------------------------------------------------------------


def test_a_job_ends_when_all_its_ranks_have_left(daemon, client):
    token = client.create_job("train", 2)
    with client.join(token, 0, PARTS) as job, child_rank(daemon, token, 1) as child:
        job.leave()
        job.leave()  # it has, already
        assert job.check() == 0
        assert client.jobs()["train"]["n_done"] == 1
        with mmap.mmap(job.fd(1), 2 * MIB) as m:
            m[:5] = b"still"
        tell(child, "leave")
        assert client.jobs() == {}
    with failed(errno.ENOENT, "'train'"):
        client.join(token, 0, PARTS)


def test_a_job_that_is_freed_without_leaving_remains(client):
    token = client.create_job("train", 1)
    client.join(token).free()
    row = client.jobs()["train"]
    assert (row["n_present"], row["n_done"]) == (0, 0) and row["vacant_ns"]
    client.join(token).free()


def test_a_removed_job_is_gone_for_its_ranks(client, connect):
    token = client.create_job("train", 1)
    with connect().join(token, 0, PARTS) as job:
        client.remove_job("train")
        assert client.jobs() == {}
        with failed(errno.ESTALE, "job 'train' was removed; rank 0 keeps what it has mapped"):
            job.check()
        with failed(errno.ESTALE, "job 'train' was removed; rank 0 keeps what it has mapped"):
            job.leave()
        with failed(errno.ESTALE, "job 'train' was removed"):
            job.check()
        with mmap.mmap(job.fd(1), 2 * MIB) as m:
            m[:1] = b"1"
    with failed(errno.ENOENT, "'train'"):
        client.remove_job("train")


# --- Restarts of the server -----------------------------------------------------------------------


@pytest.fixture
def kept(make_daemon):
    return make_daemon("--keeper")


def server_pid(client):
    return client.ping().pid


def await_check(job, other):
    """check() until the killed weightd is back, as another client sees it, and has the rank again."""
    def is_there():
        try:
            return job.check() == 0 and other.jobs()["train"]["n_present"] == 1
        except Failed as e:
            assert e.errno == errno.ENOTCONN and "the memory of job 'train' is, and rank 0 can go on" in e.sentence, e
            return False

    until(is_there, "the rank has joined again")


def test_a_rank_joins_again_by_itself_and_keeps_its_memory(kept):
    with Client(kept.socket) as client, Client(kept.socket) as other:
        token = client.create_job("train", 2)
        with client.join(token, 0, PARTS) as job:
            fds, inodes = [job.fd(0), job.fd(1)], [os.fstat(job.fd(i)).st_ino for i in (0, 1)]
            os.pwrite(job.fd(1), b"before", 0)
            for _ in range(3):
                os.kill(server_pid(other), signal.SIGKILL)
                await_check(job, other)
                assert [job.fd(0), job.fd(1)] == fds and [os.fstat(fd).st_ino for fd in fds] == inodes
                assert is_locked(job, 0)
            with child_rank(kept, token, 1) as child:
                with open(f"/proc/{child.pid}/fd/{tell(child, 'fd', 1)}", "rb") as f:
                    assert f.read(6) == b"before"
            job.leave()


def test_a_rank_that_asks_for_something_else_joins_again_as_well(kept):
    with Client(kept.socket) as client, Client(kept.socket) as other:
        token = client.create_job("train", 2)
        with client.join(token, 0, PARTS):
            os.kill(server_pid(other), signal.SIGKILL)
            client.ping()
            assert other.jobs()["train"]["n_present"] == 1


def test_the_last_rank_leaves_across_a_restart(kept):
    with Client(kept.socket) as client, Client(kept.socket) as other:
        token = client.create_job("train", 1)
        with client.join(token, 0, PARTS) as job:
            os.kill(server_pid(other), signal.SIGKILL)
            job.leave()
        assert other.jobs() == {}


def test_ranks_come_and_go_while_weightd_is_killed_at_any_moment(kept):
    """No call fails but a removal whose reply was lost, and each rank finds what the one before it wrote."""
    moment = random.Random(22)

    def kill(pipe):
        with Client(kept.socket) as other:
            while not pipe.poll(moment.uniform(0, 0.02)):
                os.kill(server_pid(other), signal.SIGKILL)

    with Client(kept.socket, restart_ms=60_000) as client, Child(kill) as killer:
        for turn in range(8):
            name = f"train{turn}"
            token = client.create_job(name, 1)
            for step in range(3):
                with client.join(token, 0, PARTS) as job:
                    assert os.pread(job.fd(1), 8, MIB) == step.to_bytes(8, "little")
                    os.pwrite(job.fd(1), (step + 1).to_bytes(8, "little"), MIB)
                    if step == 2:
                        job.leave()
            assert name not in client.jobs()
        killer.say("end")
        assert killer.end() == 0
        client.ping()  # a keeper that is stopped beside the death of its daemon reports that


def test_a_check_does_not_wait_for_a_server_that_is_stopped_or_gone(kept):
    with Client(kept.socket) as client, Client(kept.socket) as other:
        token = client.create_job("train", 1)
        with client.join(token, 0, PARTS) as job:
            pid = server_pid(other)
            os.kill(pid, signal.SIGSTOP)
            start = time.process_time()
            for _ in range(1000):
                assert job.check() == 0
            assert time.process_time() - start < 0.5
            os.kill(pid, signal.SIGKILL)
            await_check(job, other)


def test_a_job_is_lost_with_a_server_that_does_not_survive(daemon):
    with Client(daemon.socket) as client:
        token = client.create_job("train", 1)
        with client.join(token, 0, PARTS) as job:
            daemon.kill()
            with failed(errno.ENOTCONN, "is not there; the memory of job 'train' is, and rank 0 can go on"):
                job.check()
            daemon.start()
            client.connect(daemon.socket)
            with failed(errno.ESTALE, "job 'train' was removed"):
                job.check()
            with mmap.mmap(job.fd(1), 2 * MIB) as m:
                m[:1] = b"1"


# --- Replies that are lost ------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    with FakeServer(tmp_path / "fake.sock", features=wire.SURVIVES | wire.LAYOUTS | wire.WITH_JOBS) as s:
        yield s


@pytest.fixture
def meet(server):
    connecting = later(Client, server.path)
    peer = server.accept()
    with connecting.result(PATIENCE_S) as client:
        yield client, peer


def test_a_create_whose_reply_was_lost_finds_its_own_job(server, meet):
    client, peer = meet
    asked = later(client.create_job, "train", 2)
    first = peer.request(wire.JOB_CREATE)
    peer = server.restart(peer)
    assert peer.request(wire.JOB_CREATE).values == first.values
    peer.fail(errno.EEXIST, "there is one")
    assert peer.request(wire.JOB_DESCRIPTION).values[1] == first.values[1], "only that job has this token"
    peer.fail(errno.ENODATA)
    assert asked.result(PATIENCE_S) == "train:" + first.values[1].hex()


def test_a_create_whose_reply_was_lost_does_not_take_the_job_of_another(server, meet):
    client, peer = meet
    asked = later(client.create_job, "train", 2)
    peer.request(wire.JOB_CREATE)
    peer = server.restart(peer)
    peer.request(wire.JOB_CREATE)
    peer.fail(errno.EEXIST, "there is one")
    peer.request(wire.JOB_DESCRIPTION)
    peer.fail(errno.EACCES)
    with failed(errno.EEXIST, "there is one"):
        asked.result(PATIENCE_S)


def joined(client, peer, parts=PARTS, job=7):
    """A rank of a job that the test plays, and the descriptors of the parts."""
    fds = []
    asked = later(client.join, "train:" + "1" * 64, 0, parts)
    peer.request(wire.JOB_JOIN)
    peer.reply("QII", job, 1, 1)
    for i, (kind, size) in enumerate(parts):
        assert peer.request(wire.JOB_PART).values[:2] == (job, i)
        fds.append(os.memfd_create(kind, os.MFD_CLOEXEC))
        os.ftruncate(fds[-1], size)
        peer.reply(fds=[fds[-1]])
    return asked.result(PATIENCE_S), fds


def test_a_rank_joins_again_with_the_same_request_and_fetches_nothing(server, meet):
    client, peer = meet
    job, fds = joined(client, peer)
    server.restart_unseen(peer)
    with failed(errno.ENOTCONN, "is not there"):
        job.check()
    peer = server.accept()
    checking = later(until, lambda: checks(job), "it is back")
    again = peer.request(wire.JOB_JOIN)
    assert again.values[0].rstrip(b"\0") == b"train" and again.values[3:5] == (0, 2)
    assert os.pread(again.fds[0], 100, 0) == b"description"
    peer.reply("QII", 8, 1, 1)
    checking.result(PATIENCE_S)
    assert peer.is_silent()
    leaving = later(job.leave)
    assert peer.request(wire.JOB_LEAVE).values == (8, 1, 0)
    peer.reply()
    leaving.result(PATIENCE_S)
    for fd in fds:
        os.close(fd)


def test_a_leave_whose_reply_was_lost_with_the_job_is_done(server, meet):
    """The last rank's leave removes the job; joining again finds none."""
    client, peer = meet
    job, fds = joined(client, peer)
    leaving = later(job.leave)
    peer.request(wire.JOB_LEAVE)
    peer = server.restart(peer)
    peer.request(wire.JOB_JOIN)
    peer.fail(errno.ENOENT, "there is no job")
    leaving.result(PATIENCE_S)
    assert job.check() == 0
    for fd in fds:
        os.close(fd)


def test_a_job_that_was_removed_while_the_server_was_away_is_gone(server, meet):
    client, peer = meet
    job, fds = joined(client, peer)
    server.restart_unseen(peer)
    leaving = later(job.leave)
    peer = server.accept()
    peer.request(wire.JOB_JOIN)
    peer.fail(errno.ENOENT, "there is no job")
    with failed(errno.ESTALE, "job 'train' was removed; rank 0 keeps what it has mapped, until it ends .there is no job"):
        leaving.result(PATIENCE_S)
    for fd in fds:
        os.close(fd)


def checks(job):
    try:
        return job.check() == 0
    except Failed as e:
        assert e.errno == errno.ENOTCONN, e
        return False


def test_a_part_that_is_shorter_than_asked_for_is_refused(meet):
    client, peer = meet
    asked = later(client.join, "train:" + "1" * 64, 0, PARTS)
    peer.request(wire.JOB_JOIN)
    peer.reply("QII", 7, 1, 1)
    peer.request(wire.JOB_PART)
    with wire_memfd(4095) as fd:
        peer.reply(fds=[fd])
    assert peer.request(wire.JOB_LEAVE).values == (7, 0, 0), "it is not done"
    peer.reply()
    with failed(errno.EBADMSG, "part JOURNAL of job 'train' cannot be used"):
        asked.result(PATIENCE_S)


@contextlib.contextmanager
def wire_memfd(size):
    fd = os.memfd_create("part", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    try:
        yield fd
    finally:
        os.close(fd)


# --- Views ------------------------------------------------------------------------------------------


def test_a_view_reads_part_0_and_the_processes_of_ranks(daemon, client, connect):
    token = client.create_job("train", 3)
    with failed(errno.ENODATA, "no rank has joined job 'train' yet"):
        client.view_job("train")
    with child_rank(daemon, token, 1) as child, client.join(token, 2, PARTS) as job:
        os.pwrite(job.fd(), b"words", 8)
        with connect().view_job("train") as view:
            assert (view.n_ranks, view.description) == (3, b"description")
            assert view.read(5, 8) == b"words" and view.read(10**6) == os.pread(job.fd(), 4096, 0) and view.read(8, 5000) == b""
            assert [view.holder(rank) for rank in range(4)] == [0, child.pid, os.getpid(), -errno.EINVAL]
            with pytest.raises(Failed) as e:
                view.read(8, 1 << 63)
            assert e.value.errno == errno.EINVAL
    for name, code in ("none", errno.ENOENT), ("", errno.EINVAL), ("n" * 200, errno.EINVAL):
        with failed(code, "job"):
            client.view_job(name)


def test_a_process_that_acts_for_a_rank_is_not_its_holder(daemon, client):
    token = client.create_job("train", 2)
    with client.join(token, 0) as job, client.view_job("train") as view:
        job.hold(1)
        assert job.holder(1) == os.getpid() and view.holder(1) == 0
        job.release(1)


def test_a_view_in_the_process_of_a_rank_does_not_cost_its_lock(daemon, client):
    token = client.create_job("train", 2)
    with client.join(token, 0) as job:
        for _ in range(3):
            with client.view_job("train") as view:
                assert view.holder(0) == os.getpid()
        assert is_locked(job, 0)


def test_a_server_without_views_is_named(meet):
    with failed(errno.EOPNOTSUPP, "too old to show jobs to other processes"):
        meet[0].view_job("train")

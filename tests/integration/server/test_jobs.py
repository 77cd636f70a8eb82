"""Jobs: host memory that several processes of one user write, which outlives each of them."""
import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import struct

import pytest
from lib import wire
from lib.child import Child, run_as
from lib.scene import n_requests
from lib.wire import JOBS, Refused, Wire, memfd, until

MIB = 1 << 20
PARTS = (("JOURNAL", 4096), ("PARAM", 3 * MIB + 5), ("GRAD", 2 * MIB))
OWNER, OTHER = 12345, 12347
LINGER_MS = 2000  # as long as a rank may take to join


@contextlib.contextmanager
def refused(code, sentence):
    with pytest.raises(Refused, match=sentence) as e:
        yield
    assert e.value.errno == code, e.value


@pytest.fixture
def client(daemon):
    with Wire(daemon.socket) as w:
        yield w


@pytest.fixture
def connect(daemon):
    """Another connection of this process."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(Wire(daemon.socket))


def rank_of_a_child(pipe, path, name, token, rank, parts):
    """Joins, maps all parts, and does as it is told: writes, or leaves."""
    with Wire(path) as w:
        try:
            joined = w.join(name, token, rank, parts)
        except Refused as e:
            pipe.send(e)
            return
        maps = [mmap.mmap(w.part(joined.job, i), size) for i, (_, size) in enumerate(parts)]
        pipe.send(joined)
        while True:
            do, *args = pipe.recv()
            if do == "write":
                part, at, data = args
                maps[part][at:at + len(data)] = data
            elif do == "leave":
                w.leave(joined.job)
            pipe.send(do)


@contextlib.contextmanager
def child_rank(daemon, name, token, rank=0, parts=PARTS, **kw):
    with Child(rank_of_a_child, daemon.socket, name, token, rank, parts, **kw) as child:
        child.joined = child.hear()
        if isinstance(child.joined, Refused):
            raise child.joined
        yield child


def tell(child, *order):
    child.say(order)
    assert child.hear() == order[0]


# --- memory ------------------------------------------------------------------------------------


def test_the_hello_shows_that_there_are_jobs(daemon):
    with Wire(daemon.socket, greet=False) as w:
        assert w.hello().features & wire.WITH_JOBS


def test_what_a_rank_wrote_outlives_it(daemon, client):
    token = client.create_job("train", n_ranks=2)
    with child_rank(daemon, "train", token) as first:
        tell(first, "write", 1, 3 * MIB, b"state")
        first.kill()
    until(lambda: client.job("train").n_present == 0, "its connection has ended")
    joined = client.join("train", token, 1, PARTS)
    assert (joined.n_ranks, joined.n_present) == (2, 1)
    fds = [client.part(joined.job, i) for i in range(len(PARTS))]
    assert [os.fstat(fd).st_size for fd in fds] == [size for _, size in PARTS]
    assert os.pread(fds[1], 5, 3 * MIB) == b"state"
    assert os.pread(fds[1], 100, 0) == bytes(100)


def test_parts_have_all_their_memory_and_cannot_shrink_grow_or_be_sealed(client):
    token = client.create_job("train")
    joined = client.join("train", token, parts=PARTS)
    for i, (_, size) in enumerate(PARTS):
        fd = client.part(joined.job, i)
        assert os.fstat(fd).st_blocks * 512 >= size
        for change in (size - 1, size + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, change)
        for seal in (fcntl.F_SEAL_WRITE, 0x10):
            with pytest.raises(PermissionError):
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
        with mmap.mmap(fd, size) as m:
            m[size - 1] = 7
    with refused(errno.ENOENT, "has 3 parts, and no part 3"):
        client.part(joined.job, 3)


def test_proc_names_the_job_and_the_kind_of_a_part(client):
    token = client.create_job("a/b:c")
    joined = client.join("a/b:c", token, parts=PARTS)
    names = [os.readlink(f"/proc/self/fd/{client.part(joined.job, i)}") for i in range(3)]
    assert names == [f"/memfd:weightd-job:a/b:c:{kind} (deleted)" for kind, _ in PARTS]


def test_ranks_share_the_memory(daemon, client, connect):
    token = client.create_job("train", n_ranks=2)
    one, two = client, connect()
    a, b = one.join("train", token, 0, PARTS), two.join("train", token, 1, PARTS)
    assert a.job == b.job and b.n_present == 2
    os.pwrite(one.part(a.job, 2), b"gradient", 4096)
    assert os.pread(two.part(b.job, 2), 8, 4096) == b"gradient"


def test_the_description_is_that_of_the_first_rank(client, connect):
    token = client.create_job("train", n_ranks=2)
    with refused(errno.ENODATA, "no rank has joined job 'train' yet"):
        client.job_description("train", token)
    client.join("train", token, 0, PARTS, description=b"first")
    assert connect().job_description("train", token) == b"first"
    with refused(errno.EPROTOTYPE, "rank 1 describes job 'train' otherwise"):
        connect().join("train", token, 1, PARTS, description=b"second")
    for parts in (PARTS[:2], PARTS + PARTS[:1], (PARTS[0], ("PARAM", 4096), PARTS[2]), (("PARAM", 4096), *PARTS[1:])):
        with refused(errno.EPROTOTYPE, "give all ranks the same model"):
            connect().join("train", token, 1, parts, description=b"first")
    assert client.job("train").n_present == 1


def test_ranks_that_join_at_once_get_the_same_memory(client, connect):
    token = client.create_job("train", n_ranks=8)
    ranks = [connect() for _ in range(8)]
    for i, w in enumerate(ranks):
        w.send_join("train", token, i, (("PARAM", 64 * MIB),))
    joined = [w.joined() for w in ranks]
    assert len({j.job for j in joined}) == 1 and sorted(j.n_present for j in joined) == list(range(1, 9))
    inodes = {os.fstat(w.part(j.job)).st_ino for w, j in zip(ranks, joined)}
    assert len(inodes) == 1


def test_another_takes_over_when_the_rank_that_memory_is_made_for_ends(client, connect):
    token = client.create_job("train", n_ranks=2)
    first, second = connect(), connect()
    first.send_join("train", token, 0, (("PARAM", 256 * MIB),))
    second.send_join("train", token, 1, (("PARAM", 256 * MIB),))
    first.close()
    assert second.joined().n_present == 1
    assert client.ping().n_bytes == 256 * MIB


def test_the_list_has_what_there_is(client, connect):
    assert client.list(JOBS) == []
    token = client.create_job("train", n_ranks=3, linger_ms=77000)
    row = client.job("train")
    assert (row.n_bytes, row.step, row.vacant_ns, row.n_ranks, row.n_present, row.n_parts) == (0, 0, 0, 3, 0, 0)
    assert (row.linger_ms, row.uid, row.gid) == (77000, os.geteuid(), os.getegid())
    with connect() as w:
        joined = w.join("train", token, 2, PARTS)
        os.pwrite(w.part(joined.job), struct.pack("<Q", 41), 0)
        row = client.job("train")
        assert (row.n_bytes, row.step, row.n_present, row.vacant_ns, row.n_parts) == \
            (sum(size for _, size in PARTS), 41, 1, 0, 3)
    until(lambda: client.job("train").n_present == 0, "it has gone")
    row = client.job("train")
    assert row.vacant_ns > row.created_ns > 0 and row.step == 41
    names = [f"j{i}" for i in range(50)]
    for name in names:
        client.create_job(name)
    assert [row.name for row in client.list(JOBS)] == ["train", *names]


# --- ranks ----------------------------------------------------------------------------------------


def test_a_rank_is_present_while_one_connection_is_it(client, connect):
    token = client.create_job("train", n_ranks=2)
    first, second = connect(), connect()
    job = first.join("train", token, 1, PARTS).job
    assert second.join("train", token, 1, PARTS).n_present == 1
    first.close()
    assert os.fstat(second.part(job)).st_size == 4096
    assert client.job("train").n_present == 1
    second.close()
    until(lambda: client.job("train").n_present == 0, "the last has gone")


def test_a_connection_may_leave_without_the_rank_being_done(client, connect):
    token = client.create_job("train", n_ranks=1)
    rank = connect()
    job = rank.join("train", token, 0, PARTS).job
    rank.leave(job, done=False)
    row = client.job("train")
    assert (row.n_present, row.n_done) == (0, 0) and row.vacant_ns
    with refused(errno.ESTALE, "it has left, or the job was removed"):
        rank.part(job)
    assert rank.join("train", token, 0, PARTS).job == job


def test_a_rank_may_join_again_on_its_connection(client):
    token = client.create_job("train", n_ranks=2)
    first = client.join("train", token, 1, PARTS)
    assert client.join("train", token, 1, PARTS) == first
    with refused(errno.EBUSY, "this connection is rank 1 of job 'train'; leave it first"):
        client.join("train", token, 0, PARTS)


def test_a_job_ends_when_each_rank_has_left(daemon, client, connect):
    token = client.create_job("train", n_ranks=2)
    one, two = connect(), connect()
    job = one.join("train", token, 0, PARTS).job
    one.leave(job)
    assert (client.job("train").n_done, client.job("train").n_present) == (1, 0)
    assert one.join("train", token, 0, PARTS).job == job
    assert client.job("train").n_done == 0, "a rank that joins again is not done any more"
    two.join("train", token, 1, PARTS)
    one.leave(job)
    with refused(errno.ESTALE, "not a rank of that job"):
        one.leave(job)
    two.leave(job)
    assert client.list(JOBS) == []
    with refused(errno.ENOENT, "there is no job 'train'"):
        one.join("train", token, 0, PARTS)
    until(lambda: client.ping().n_bytes == 0, "its memory is free")


def test_a_job_is_removed_after_its_linger_time(client, connect):
    token = client.create_job("short", linger_ms=LINGER_MS)
    w = connect()
    w.join("short", token, 0, PARTS)
    assert client.job("short").n_present == 1
    w.close()
    until(lambda: client.job("short") is None, "it was removed")
    until(lambda: client.ping().n_bytes == 0, "its memory is free")


def test_a_job_that_no_rank_joins_is_removed_after_its_linger_time_too(client):
    client.create_job("train", linger_ms=1)
    until(lambda: client.list(JOBS) == [], "it was removed")
    assert client.create_job("train") and client.job("train").linger_ms == 0


def test_the_linger_time_begins_again_after_a_join_in_vain(client):
    token = client.create_job("train", linger_ms=LINGER_MS)
    with refused(errno.ENOMEM, "job 'train' needs"):
        client.join("train", token, parts=(("PARAM", 1 << 50),))
    row = client.job("train")
    assert (row.n_parts, row.vacant_ns) == (0, 0), "there was no rank yet"
    until(lambda: client.list(JOBS) == [], "it was removed")


def test_the_linger_time_begins_when_the_only_rank_ends_before_its_memory_is_there(client, connect):
    token = client.create_job("train", linger_ms=LINGER_MS)
    rank = connect()
    rank.send_join("train", token, 0, (("PARAM", 256 * MIB),))
    rank.close()
    until(lambda: client.list(JOBS) == [], "it was removed")
    until(lambda: client.stat().slot_bytes == 0, "its memory is free")


def test_a_rank_that_comes_back_stops_the_linger_time(client, connect):
    token = client.create_job("train", linger_ms=3600_000)
    with connect() as w:
        w.join("train", token, 0, PARTS)
    until(lambda: client.job("train").vacant_ns, "it is vacant")
    connect().join("train", token, 0, PARTS)
    assert client.job("train").vacant_ns == 0


# --- removal --------------------------------------------------------------------------------------


def test_a_removal_takes_the_name_and_ranks_keep_what_they_have(client, connect):
    token = client.create_job("train")
    rank = connect()
    job = rank.join("train", token, 0, PARTS).job
    fd = rank.part(job, 1)
    client.remove_job("train")
    assert client.list(JOBS) == []
    os.pwrite(fd, b"still", 0)
    with refused(errno.ESTALE, "or the job was removed"):
        rank.part(job)
    with refused(errno.ESTALE, "or the job was removed"):
        rank.leave(job)
    size = sum(size for _, size in PARTS)
    user, = client.list(wire.USERS)
    stat = client.stat()
    assert (stat.slot_bytes, stat.leaving_bytes) == (size, size)
    assert user.used_bytes >= size, "it is charged until it is free"
    assert client.create_job("train") and client.job("train").n_bytes == 0
    rank.forget([fd])
    until(lambda: client.stat().slot_bytes == 0, "its memory is free")
    until(lambda: client.list(wire.USERS)[0].used_bytes == 0, "nothing is charged")
    with refused(errno.ENOENT, "there is no job 'other'"):
        client.remove_job("other")


def test_a_removal_ends_the_joins_that_wait(client, connect):
    token = client.create_job("train", n_ranks=2)
    ranks = [connect(), connect()]
    seen = itertools.count(n_requests(client, os.geteuid()) + len(ranks) + 1)
    for i, w in enumerate(ranks):
        w.send_join("train", token, i, (("PARAM", 512 * MIB),))
    until(lambda: n_requests(client, os.geteuid()) == next(seen), "both have begun: a user's connections are served in no order")
    client.remove_job("train")
    for w in ranks:
        with refused(errno.ESTALE, "job 'train' was removed"):
            w.joined()
    until(lambda: client.stat().slot_bytes == 0, "its memory is free")


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "-m", "../m", "a b", "a\x1b[31m"])
def test_names_of_jobs_are_plain(client, name):
    with refused(errno.EINVAL, "a job's name is 1 to 127 of A-Z a-z 0-9"):
        client.create_job(name)


def test_a_job_has_one_creator(client):
    token = client.create_job("train", n_ranks=2)
    with refused(errno.EEXIST, "there is a job 'train' already, of uid .*; take another name, or remove it"):
        client.create_job("train", n_ranks=2)
    assert client.create_job("train", n_ranks=2, token=token) == token, "sent again, it is answered again"
    with refused(errno.EEXIST, "already"):
        client.create_job("train", n_ranks=3, token=token)


def test_numbers_of_a_job_have_bounds(client):
    for n in (0, 257, 2**32 - 1):
        with refused(errno.EINVAL, f"a job has 1 to 256 ranks, not {n}"):
            client.create_job("train", n_ranks=n)
    for linger_ms in (-1, 2**63 - 1):
        with refused(errno.EINVAL, "a job lingers for 0 .for ever. to"):
            client.create_job("train", linger_ms=linger_ms)
    with refused(errno.EINVAL, "a job's token is random, not zero"):
        client.create_job("train", token=bytes(32))
    token = client.create_job("train", n_ranks=256)
    for rank in (256, 2**32 - 1):
        with refused(errno.EINVAL, f"job 'train' has ranks 0 to 255, and no rank {rank}"):
            client.join("train", token, rank)
    assert client.join("train", token, 255).n_ranks == 256


@pytest.mark.parametrize("parts, sentence", [
    ((), "a job has 1 to 16 parts"),
    ((("JOURNAL", 4096), ("PARAM", 0)), r"part 1 \(PARAM\) has no bytes"),
    ((("", 4096),), "the kind of part 0 is not 1 to 15 of A-Z 0-9 _"),
    ((("param", 4096),), "the kind of part 0"),
    ((("A B", 4096),), "the kind of part 0"),
    ((("A", 2**63),), "have more bytes than any memory"),
    ((("A", 2**64 - 1),), "have more bytes than any memory"),
    ((("A", 2**62), ("B", 2**62)), "have more bytes than any memory"),
])
def test_parts_that_make_no_sense_are_refused(client, parts, sentence):
    token = client.create_job("train")
    with refused(errno.EINVAL, sentence):
        client.join("train", token, parts=parts)
    assert client.join("train", token).n_present == 1, "and the next join may ask again"


def test_more_parts_than_a_job_has_close_their_sender(client, connect):
    token = client.create_job("train")
    for n in (17, 2**32 - 1):
        offender = connect()
        fd = memfd(b"description")
        offender.send(wire.JOB_JOIN, wire.join_body("train", token, n_parts=n), [fd])
        os.close(fd)
        offender.hang_up()


WRONG = {
    "a pipe": lambda: os.pipe()[0],
    "an unsealed memfd": lambda: memfd(b"description", seals=0),
    "a memfd that can be written": lambda: memfd(b"description", seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
    "a memfd with a hole": lambda: memfd(b"description", size=1 << 20),
    "a regular file": lambda: os.open(__file__, os.O_RDONLY),
}


@pytest.mark.parametrize("kind", WRONG)
def test_refused_as_a_description(client, kind):
    token = client.create_job("train")
    fd = WRONG[kind]()
    try:
        with refused(errno.EBADMSG, "a description must come as a sealed memfd without holes, of at most 16 MiB"):
            client.join("train", token, content=fd)
    finally:
        os.close(fd)
    assert client.job("train").n_parts == 0


def test_a_description_has_a_largest_size(client):
    token = client.create_job("train")
    with refused(errno.EFBIG, "of at most 16 MiB"):
        client.join("train", token, content=bytes(16 * MIB + 1))
    client.join("train", token, content=bytes(16 * MIB))
    for description in (b"", b"x"):
        name = f"of {len(description)} bytes".replace(" ", "-")
        token = client.create_job(name)
        client.join(name, token, description=description)
        assert client.job_description(name, token) == description


def test_the_wrong_token_is_refused(daemon, client):
    token = client.create_job("train")
    for wrong in (bytes(32), bytes([token[0] ^ 1]) + token[1:], token[:-1] + bytes([token[-1] ^ 128])):
        for act in (lambda: client.join("train", wrong), lambda: client.job_description("train", wrong)):
            with refused(errno.EACCES, "this is not the token of job 'train'"):
                act()
    assert "job 'train' refused to pid" in daemon.log
    assert client.job("train").n_parts == 0


def users_of(daemon):
    """by(uid, act): the result of act(Wire) in a process of that user."""
    def by(uid, act):
        def go():
            with Wire(daemon.socket) as w:
                return act(w)
        return run_as(uid, go)
    return by


def test_a_job_is_its_users(make_daemon, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    by = users_of(daemon)
    token = by(OWNER, lambda w: w.create_job("train"))
    for uid in (OTHER, 0):
        with refused(errno.EACCES, f"job 'train' belongs to uid {OWNER}, and uid {uid} cannot be a rank of it; start the ranks as"):
            by(uid, lambda w: w.join("train", token))
        with refused(errno.EACCES, "cannot be a rank"):
            by(uid, lambda w: w.job_description("train", token))
    assert by(OTHER, lambda w: w.list(JOBS)) == []
    assert [row.uid for row in by(0, lambda w: w.list(JOBS))] == [OWNER]
    with refused(errno.EACCES, f"uid {OTHER} may not remove job 'train'; its owner is uid {OWNER}"):
        by(OTHER, lambda w: w.remove_job("train"))
    with refused(errno.EEXIST, f"of uid {OWNER}"):
        by(OTHER, lambda w: w.create_job("train", token=token))
    assert by(OWNER, lambda w: w.join("train", token)).n_present == 1
    by(0, lambda w: w.remove_job("train"))
    assert by(OWNER, lambda w: w.list(JOBS)) == []


def test_ids_of_jobs_open_nothing_to_others(client, connect):
    token = client.create_job("train")
    job = client.join("train", token).job
    thief = connect()
    for act in (lambda: thief.part(job), lambda: thief.leave(job), lambda: thief.part(77)):
        with refused(errno.ESTALE, "this connection is not a rank of that job"):
            act()


# --- Views ------------------------------------------------------------------------------------------


def test_a_view_has_the_description_and_part_0_and_cannot_write(client, connect):
    token = client.create_job("train", 3)
    with refused(errno.ENODATA, "no rank has joined job 'train' yet"):
        client.view_job("train")
    joined = client.join("train", token, 1, PARTS, description=b"a plan")
    os.pwrite(client.part(joined.job), b"first words", 0)
    n_ranks, description, part = connect().view_job("train")
    assert n_ranks == 3 and os.pread(description, 100, 0) == b"a plan"
    assert os.fstat(part).st_size == 4096 and os.pread(part, 11, 0) == b"first words"
    with pytest.raises(OSError):
        os.pwrite(part, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(part, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with refused(errno.ENOENT, "there is no job 'other'"):
        client.view_job("other")


def test_a_view_does_not_keep_a_job_but_the_memory_of_part_0(client, connect):
    token = client.create_job("train", 1)
    job = client.join("train", token, 0, PARTS).job
    viewer = connect()
    part = viewer.view_job("train")[2]
    client.leave(job)
    assert client.job("train") is None
    assert client.list(wire.USERS)[0].used_bytes > 0, "it is charged while a process has it open"
    with refused(errno.ENOENT, "there is no job 'train'"):
        viewer.view_job("train")
    viewer.forget([part])
    until(lambda: client.list(wire.USERS)[0].used_bytes == 0, "nothing is charged")


def test_a_job_is_viewed_by_its_user_and_by_an_administrator(make_daemon, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    by = users_of(daemon)
    def make(w):
        w.join("train", w.create_job("train"), 0, PARTS)
        return w.view_job("train")[0]

    assert by(OWNER, make) == 1
    assert by(0, lambda w: w.view_job("train")[0]) == 1
    with refused(errno.EACCES, f"uid {OTHER} may not view job 'train'; its owner is uid {OWNER}"):
        by(OTHER, lambda w: w.view_job("train"))
    assert "job 'train' refused to pid" in daemon.log

"""Jobs and limits: of memory, of users, and of the store. All of a job is made, or nothing."""
import errno
import os
import re

import pytest
from lib import wire
from lib.cgroup import MemoryCgroup
from lib.wire import CREATE, Refused, Wire, until

from integration.server.test_jobs import MIB, refused
from integration.server.test_memory import LIMIT, layout, publish, versions


@pytest.fixture
def group(require):
    require("cgroup")
    with MemoryCgroup(LIMIT) as g:
        yield g


@pytest.fixture
def confine(group, make_daemon):
    """confine("--reserve", "16M"): a daemon in a memory cgroup of 256 MiB."""
    return lambda *args: make_daemon(*args, prefix=group.prefix)


@pytest.fixture
def configure(make_daemon, tmp_path):
    def make(text, *args):
        path = tmp_path / "weightd.conf"
        path.write_text(text)
        return make_daemon("--config", path, *args)
    return make


def is_empty(w):
    """Nothing of a job is left but the job."""
    user, = w.list(wire.USERS)
    return (w.stat().slot_bytes, user.used_bytes, user.used_descriptors) == (0, 0, 1)


@pytest.mark.parametrize("parts", [(("PARAM", 300 * MIB),), (("PARAM", 100 * MIB), ("GRAD", 100 * MIB), ("MOMENTS", 100 * MIB)),
                                   (("JOURNAL", 1), ("PARAM", 10 << 30))], ids=["one", "three", "the last"])
def test_what_does_not_fit_is_refused_before_anything_is_made(confine, group, parts):
    daemon = confine("--reserve", "16M")
    with Wire(daemon.socket) as w:
        token = w.create_job("train")
        with refused(errno.ENOMEM, rf"job 'train' needs .*B, and the limit of a cgroup, {group.path}/{group.limit_name}, leaves "
                                   r".*B: .*B are missing; remove a buffer, an old version or another job \(weightctl rm\), or raise "
                                   r"that limit \(MemoryMax= of a unit\)"):
            w.join("train", token, parts=parts)
        until(lambda: is_empty(w), "nothing was kept")
        assert w.join("train", token, parts=(("PARAM", 64 * MIB),)).n_present == 1, "and the next join may ask again"


def test_the_machine_is_named_where_no_cgroup_limits(make_daemon):
    daemon = make_daemon("--reserve", "1000T")
    with Wire(daemon.socket) as w:
        with refused(errno.ENOMEM, "job 'train' needs 4.1 kB, and this machine leaves 0 B: 4.1 kB are missing; .* give weightd more memory"):
            w.join("train", w.create_job("train"))


def test_two_that_fit_alone_but_not_together_are_not_killed(confine):
    daemon = confine("--reserve", "16M")
    outcomes = []
    with Wire(daemon.socket) as one, Wire(daemon.socket) as two:
        for w, name in (one, "a"), (two, "b"):
            w.send_join(name, w.create_job(name), 0, (("PARAM", 75 * MIB), ("GRAD", 75 * MIB)))
        for w in one, two:
            try:
                outcomes.append(w.joined().n_present)
            except Refused as e:
                outcomes.append(e.errno)
        until(lambda: one.ping().n_bytes == 150 * MIB, "the other one's is free")
    assert sorted(outcomes) == [1, errno.ENOMEM]


def test_kept_versions_make_room_for_a_job(confine):
    daemon = confine("--reserve", "16M")
    for _ in range(3):
        publish(daemon.socket, "m", 60 * MIB, keep=3)
    with Wire(daemon.socket) as w:
        w.join("train", w.create_job("train"), parts=(("PARAM", 45 * MIB), ("GRAD", 45 * MIB)))
        assert versions(daemon, "m") == [2, 3]


def test_a_job_is_charged_to_its_user(configure):
    daemon = configure("[limits]\nbuffers = 2\nbytes = 1M\ndescriptors = 9\n")
    with Wire(daemon.socket) as w, Wire(daemon.socket) as other:
        token = w.create_job("train")
        for parts in ((("A", MIB + 1),), (("A", 1), ("B", MIB)), (("A", MIB),)):  # the description takes a byte too
            with refused(errno.EDQUOT, r"job 'train' needs more bytes or descriptors than uid \d+ may hold; remove buffers or jobs "
                                       r"\(weightctl rm\), or raise bytes= or descriptors= in \[limits\] of weightd.conf"):
                w.join("train", token, parts=parts)
        until(lambda: is_empty(w), "nothing was kept")
        with refused(errno.EDQUOT, "more bytes or descriptors"):
            w.join("train", token, parts=[(f"P{i}", 1) for i in range(8)])
        until(lambda: is_empty(w), "nothing was kept")
        job = w.join("train", token, parts=(("A", 1), ("B", 4097))).job
        user, = w.list(wire.USERS)
        assert (user.used_buffers, user.used_descriptors) == (1, 1 + 2 + 1)
        assert user.used_bytes == 3 * 4096 + len(b"description")
        assert other.create_job("second")
        with refused(errno.EDQUOT, "has too many buffers and jobs; remove some buffers or jobs"):
            other.create_job("third")
        with pytest.raises(Refused, match="too many buffers"):
            publish(daemon.socket, "m", 1)
        w.leave(job)
        until(lambda: w.list(wire.USERS)[0].used_bytes == 0, "it is free")
        assert other.create_job("third")


def test_memory_that_is_given_up_is_not_charged_to_the_next_attempt(configure):
    daemon = configure("[limits]\nbytes = 300M\n")
    parts = (("PARAM", 200 * MIB),)
    with Wire(daemon.socket) as first, Wire(daemon.socket) as second:
        token = first.create_job("train", n_ranks=2)
        first.send_join("train", token, 0, parts)
        second.send_join("train", token, 1, parts)
        first.close()
        job = second.joined().job
        for _ in range(3):
            second.leave(job, done=False)
            second.remove_job("train")
            job = second.join("train", second.create_job("train"), 0, parts).job


def test_a_store_without_room_refuses_a_job_whole(configure):
    daemon = configure("[store]\nmax = 6\n", "--keeper")  # two are the socket and its lock
    with Wire(daemon.socket) as w:
        token = w.create_job("train")
        used = w.stat().store_used
        room = 6 - used
        parts = [(f"P{i}", 4096) for i in range(room)]
        with refused(errno.EDQUOT, f"keeps {used} descriptors for weightd already, of 6; remove a buffer"):
            w.join("train", token, parts=parts)
        until(lambda: is_empty(w), "nothing was kept")
        assert w.join("train", token, parts=parts[1:]).n_present == 1
        assert w.stat().store_used == 6
        with refused(errno.EDQUOT, "keeps 6 descriptors for weightd already, of 6"):
            w.create_job("another")


def send_join(w, name, token):
    """4 parts of 64 MiB, and a description: 5 descriptors."""
    w.send_join(name, token, 0, [(f"P{i}", 64 * MIB) for i in range(4)])
    return w.joined


def send_create(w, name, token):
    """256 MiB, a layout, and 2 of the buffer itself: 4 descriptors."""
    w.send_create(name, layout(256 * MIB))
    return lambda: w.slot(w.answer(CREATE))


@pytest.mark.parametrize("senders", [(send_join, send_join), (send_create, send_create), (send_create, send_join)],
                         ids=["joins", "creates", "a create and a join"])
def test_memory_that_is_made_at_once_does_not_overrun_the_store(configure, senders):
    """Each needs room when it begins, and fills it when its memory is there."""
    daemon = configure("[store]\nmax = 11\n", "--keeper")  # 2 of the socket, 2 of the jobs: room for 7
    with Wire(daemon.socket) as first, Wire(daemon.socket) as second:
        wires = first, second
        tokens = [w.create_job(name) for w, name in zip(wires, "ab")]
        answers = [send(w, name, token) for send, w, name, token in zip(senders, wires, "ab", tokens)]
        refusals = []
        for answer in answers:
            try:
                answer()
            except Refused as e:
                refusals.append(e)
        refusal, = refusals
        assert refusal.errno == errno.EDQUOT
        # A create that came first may still be late: its layout is checked before it needs room.
        assert re.search(r"keeps (4 descriptors .*, and [45] more are being made|[89] descriptors .*, of 11;)", refusal.sentence)
        assert first.stat().store_used <= 11


@pytest.mark.parametrize("send", [send_join, send_create])
def test_memory_that_is_given_up_leaves_its_room_in_the_store_to_others(configure, send):
    daemon = configure("[store]\nmax = 11\n", "--keeper")
    with Wire(daemon.socket) as w:
        tokens = {name: w.create_job(name, n_ranks=2) for name in "ab"}
        for _ in range(3):
            with Wire(daemon.socket) as short:
                send(short, "a", tokens["a"])
            until(lambda: w.stat().slot_bytes == 0, "it is given up")
        w.remove_job("a")
        parts = [(f"P{i}", 4096) for i in range(7)]
        until(lambda: w.stat().store_used == 3, "there is room for 8")
        assert w.join("b", tokens["b"], parts=parts).n_present == 1
        assert w.stat().store_used == 11


def test_a_job_that_is_removed_in_the_making_leaves_its_room_in_the_store_to_others(configure):
    daemon = configure("[store]\nmax = 11\n", "--keeper")
    with Wire(daemon.socket) as w, Wire(daemon.socket) as rank:
        answer = send_join(rank, "a", rank.create_job("a"))
        w.remove_job("a")
        with refused(errno.ESTALE, "job 'a' was removed"):
            answer()
        until(lambda: (w.stat().slot_bytes, w.stat().store_used) == (0, 2), "it is free")
        assert w.join("b", w.create_job("b"), parts=[(f"P{i}", 4096) for i in range(7)]).n_present == 1


def test_a_join_that_is_refused_by_a_limit_leaves_its_room_in_the_store_to_others(configure):
    daemon = configure("[store]\nmax = 11\n[limits]\nbytes = 1M\n", "--keeper")
    with Wire(daemon.socket) as w:
        token = w.create_job("train")
        for _ in range(3):
            with refused(errno.EDQUOT, "job 'train' needs more bytes or descriptors than uid"):
                send_join(w, "train", token)()
        assert w.join("train", token, parts=[(f"P{i}", 4096) for i in range(7)]).n_present == 1
        assert w.stat().store_used == 11


def test_lists_of_users_and_devices_and_the_ping_count_jobs(make_daemon):
    daemon = make_daemon()
    with Wire(daemon.socket) as w:
        w.join("train", w.create_job("train"), parts=(("A", MIB), ("B", 3)))
        size = MIB + 3
        assert (w.ping().n_bytes, w.stat().slot_bytes, w.devices()["host"].ours) == (size, size, size)
        assert w.ping().n_buffers == 0 and w.stat().layout_bytes == len(b"description")
        w.remove_job("train")
        until(lambda: w.ping().n_bytes == 0, "it is free")
        assert w.devices()["host"].ours == 0 and w.stat().layout_bytes == 0


def test_holes_that_a_rank_makes_are_its_own(make_daemon):
    daemon = make_daemon("--keeper")
    with Wire(daemon.socket) as w:
        token = w.create_job("train")
        fd = w.part(w.join("train", token, parts=(("JOURNAL", MIB),)).job)
        wire.fallocate(fd, wire.PUNCH_HOLE | wire.KEEP_SIZE, 0, MIB)
        assert w.job("train").step == 0
        assert os.fstat(fd).st_blocks == 0, "a list takes no memory"
        os.kill(w.ping().pid, 9)
        w.hang_up()
    with Wire(daemon.socket) as w:
        assert w.job("train").n_bytes == MIB and w.join("train", token, parts=(("JOURNAL", MIB),)).n_present == 1

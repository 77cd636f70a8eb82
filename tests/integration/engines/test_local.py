"""weightd-sync-local: a version of one weightd becomes a version of another, bit for bit, or nothing happens at all."""
import mmap
import os
import random
import signal
import socket
import subprocess
import time

import pytest
from integration.engines.local_task import LEAF, PATIENCE_S, Task, Tree, sha256
from lib import features, wire
from lib.child import run_as
from lib.scene import Scene
from lib.wire import Wire, image, memfd, until

SIZES = ("a", LEAF + 4096), ("b", 100), ("empty", 0), ("c", 2 * LEAF)
LAYOUT = image(SIZES)
N_BYTES = LEAF + 4096 + 128 + 2 * LEAF  # four leaves, the last one short
DATA = random.Random(1).randbytes(N_BYTES)
OTHER = random.Random(2).randbytes(N_BYTES)
USER, GROUP = 12345, 23456


class Plan:
    """The fields of a create, and the descriptors that go with it."""

    def __init__(self, data=DATA, layout=LAYOUT, name="m"):
        self.data, self.layout, self.name = data, layout, name
        self.tree = Tree(data)
        self.fds = [memfd(layout), memfd(self.tree.leaves)]

    def fields(self, daemon):
        return {"socket": daemon.socket, "buffer": self.name, "device": "host", "n_bytes": len(self.data),
                "root": self.tree.root, "layout": sha256(self.layout)}

    def close(self):
        while self.fds:
            os.close(self.fds.pop())


@pytest.fixture
def plan():
    p = Plan()
    yield p
    p.close()


@pytest.fixture
def task(daemon):
    """task("sink"): all end with the test, well."""
    features.require("sync", "weightd-sync-local is not built: no OpenSSL (apt-get install libssl-dev)",
                     (features.BUILD / "weightd-sync-local").exists())
    made = []

    def make(role, where=daemon, **kw):
        made.append(Task(where, role, **kw))
        return made[-1]

    yield make
    for e in made:
        e.__exit__()


@pytest.fixture
def scene(daemon):
    """Connections, and the proof that nothing is left in the end."""
    with Scene(daemon) as s:
        yield s


def publish(daemon, data=DATA, layout=LAYOUT, name="m", **kw):
    """A version with these bytes. Its number."""
    with Wire(daemon.socket) as w:
        slot = w.create(name, layout, **kw)
        return w.publish(slot.writer, wire.fill(slot, data) if data else None)


def content(daemon, name="m", version=0):
    """The bytes of a version, which are those that its digest is of."""
    with Wire(daemon.socket) as w:
        found = w.attach(name, version).bytes()
    daemon.ctl("verify", f"{name}@{version}" if version else name)
    return found


def versions(daemon, name="m"):
    with Wire(daemon.socket) as w:
        return [v.version for v in w.list(wire.VERSIONS, name)]


def nothing_is_left(daemon):
    """No writer, no lease, no memory but that of versions."""
    with Wire(daemon.socket) as w:
        def left():
            return [s for s in w.list(wire.SLOTS) if s.state not in (wire.CURRENT, wire.KEPT) or s.n_leases] + \
                [r for r in w.records().values() if r.writing or not r.n_versions]

        until(lambda: not left(), lambda: f"all of a sink or source is released: {left()}", PATIENCE_S)


# --- The source ---


def test_a_source_lends_bytes_and_layout_and_says_what_they_hash_to(daemon, task):
    publish(daemon)
    said, root = task("source").attach(daemon)
    assert (said["version"], said["n_bytes"], said["layout_bytes"]) == (1, N_BYTES, len(LAYOUT))
    assert len(said.fds) == 2 and len(root.fds) == 1
    layout, data = said.fds
    assert os.pread(layout, len(LAYOUT) + 1, 0) == LAYOUT and said["layout"] == sha256(LAYOUT)
    assert os.pread(data, N_BYTES, 0) == DATA
    tree = Tree(DATA)
    assert root["root"] == tree.root and root["leaves"] == sha256(tree.leaves)
    assert os.pread(root.fds[0], len(tree.leaves) + 1, 0) == tree.leaves
    for fd in layout, data, root.fds[0]:
        with pytest.raises(OSError):
            os.pwrite(fd, b"x", 0)


@pytest.mark.parametrize("op, n", (("give", 2), ("lend", 3)))
def test_who_makes_something_new_of_a_version_gets_no_tree(daemon, task, op, n):
    publish(daemon)
    publish(daemon, OTHER)
    source = task("source")
    source.tell(op, socket=daemon.socket, buffer="m", device="host", version=1)
    said = source.hear("attached")
    assert (said["version"], said["n_bytes"], len(said.fds)) == (1, N_BYTES, n)
    assert os.pread(said.fds[1], N_BYTES, 0) == DATA
    source.tell("give", socket=daemon.socket, buffer="m", device="host", version=1)
    assert source.failure()[0] == "malformed", "nothing was sent in between, and one is enough"


def test_a_source_lends_the_version_that_was_asked_for(daemon, task):
    publish(daemon)
    publish(daemon, OTHER)
    for version, data in (1, DATA), (2, OTHER), (0, OTHER):
        said, root = task("source").attach(daemon, version=version)
        assert (said["version"], root["root"]) == (version or 2, Tree(data).root)


def test_a_source_holds_its_lease_until_the_agent_hangs_up(daemon, task, scene):
    publish(daemon)
    source = task("source")
    source.attach(daemon)
    assert scene.slots("state", "n_leases") == [(wire.CURRENT, 1)]
    source.end()
    nothing_is_left(daemon)
    source.forget()


def test_a_buffer_without_bytes_has_a_root(daemon, task):
    layout = image([("empty", 0)])
    publish(daemon, b"", layout)
    said, root = task("source").attach(daemon)
    assert said["n_bytes"] == 0 and root["root"] == Tree(b"").root


@pytest.mark.parametrize("fields, code, sentence", [
    ({"buffer": "none"}, "absent", "none"),
    ({"version": 7}, "absent", "7"),
    ({"buffer": "blank"}, "empty", "blank"),
    ({"buffer": "exclusive"}, "unsupported", "exclusive"),
    ({"device": "cuda:0"}, "device", "libcuda.so.1"),
    ({"device": "moon"}, "absent", "moon"),
    ({"socket": "/none/weightd.sock"}, "weightd", "no weightd answers at /none"),
    ({"socket": "/\u00fc" * 2000}, "weightd", "?"),
])
def test_a_source_that_cannot_lend_says_why(daemon, task, fields, code, sentence):
    publish(daemon)
    publish(daemon, name="exclusive", flags=wire.EXCLUSIVE)
    with Wire(daemon.socket) as w:
        w.create("blank", LAYOUT)
        source = task("source")
        source.tell("attach", **{"socket": daemon.socket, "buffer": "m", "device": "host", "version": 0} | fields)
        found, why = source.failure()
        if fields.get("device") != "cuda:0":  # with a driver here it is another sentence
            assert found == code and sentence in why, (found, why)
    source.tell("attach", socket=daemon.socket, buffer="m", device="host", version=0)
    assert source.failure()[0] == "malformed", "one failure is the end"
    nothing_is_left(daemon)


# --- The sink ---


@pytest.mark.threads
def test_a_sink_makes_the_same_version_as_its_source(make_daemon, daemon, task):
    there = make_daemon()
    publish(there)
    source, sink = task("source", there), task("sink")
    said, root = source.attach(there)
    sink.tell("create", [said.fds[0], root.fds[0]], socket=daemon.socket, buffer="m", device="host",
              n_bytes=said["n_bytes"], root=root["root"], layout=said["layout"])
    memory, = sink.hear("created").fds
    with mmap.mmap(memory, N_BYTES) as m:  # as an engine does, which ends before publish
        m[:] = os.pread(said.fds[1], N_BYTES, 0)
    assert sink.verify() == {"op": "verified", "root": root["root"]}
    assert sink.publish() == 1
    assert content(daemon) == DATA
    with Wire(daemon.socket) as here, Wire(there.socket) as w:
        a, b = here.records()["m"], w.records()["m"]
        assert (a.layout_hash, a.digest, a.data_size, a.n_tensors) == (b.layout_hash, b.digest, b.data_size, b.n_tensors)


def test_a_sink_is_done_when_it_has_published(daemon, task, plan):
    sink = task("sink")
    os.pwrite(sink.create(daemon, plan), DATA, 0)
    assert sink.verify()["op"] == "verified"
    sink.publish()
    nothing_is_left(daemon)
    sink.tell("verify")
    assert sink.failure()[0] == "malformed"
    assert content(daemon) == DATA


def test_a_new_version_may_have_another_layout_and_keeps_what_the_buffer_keeps(daemon, task, plan):
    publish(daemon, b"old", image([("old", 4096)]), mode=0o644, keep=3)
    for version in 2, 3, 4:
        sink = task("sink")
        os.pwrite(sink.create(daemon, plan), DATA, 0)
        assert sink.verify()["op"] == "verified"
        assert sink.publish() == version
        sink.end()
        sink.forget()
    until(lambda: versions(daemon) == [2, 3, 4], lambda: versions(daemon), PATIENCE_S)
    with Wire(daemon.socket) as w:
        assert (w.records()["m"].keep, w.records()["m"].mode) == (3, 0o644)


def test_a_version_of_no_bytes_is_made_too(daemon, task):
    p = Plan(b"", image([("empty", 0)]))
    sink = task("sink")
    sink.create(daemon, p)
    assert sink.verify()["op"] == "verified"
    assert sink.publish() == 1
    p.close()


LAST = N_BYTES % LEAF


@pytest.mark.threads
@pytest.mark.parametrize("flipped, ranges", [
    ([0], [[0, LEAF]]),
    ([LEAF + 77], [[LEAF, LEAF]]),
    ([N_BYTES - 1], [[3 * LEAF, LAST]]),
    ([LEAF, 2 * LEAF], [[LEAF, 2 * LEAF]]),
    ([5, 3 * LEAF], [[0, LEAF], [3 * LEAF, LAST]]),
    ([2 * LEAF, 3 * LEAF], [[2 * LEAF, LEAF + LAST]]),
    ([0, LEAF, 2 * LEAF, 3 * LEAF], [[0, N_BYTES]]),
])
def test_bytes_that_differ_are_named_and_can_be_sent_again(daemon, task, plan, flipped, ranges):
    sink = task("sink")
    memory = sink.create(daemon, plan)
    os.pwrite(memory, DATA, 0)
    for at in flipped:
        os.pwrite(memory, bytes([DATA[at] ^ 1]), at)
    assert sink.verify() == {"op": "corrupt", "ranges": ranges}
    for offset, size in ranges:
        os.pwrite(memory, DATA[offset:offset + size], offset)
    assert sink.verify()["op"] == "verified"
    assert sink.publish() == 1
    assert content(daemon) == DATA, "and its digest is that of the bytes that were sent again"


def test_what_was_corrupt_is_not_published(daemon, task, plan):
    publish(daemon, OTHER)
    sink = task("sink")
    memory = sink.create(daemon, plan)
    os.pwrite(memory, DATA, 0)
    assert sink.verify()["op"] == "verified"
    os.pwrite(memory, b"\xff" * 4096, LEAF)
    assert sink.verify()["op"] == "corrupt"
    sink.tell("publish")
    assert sink.failure()[0] == "malformed"
    sink.forget()
    nothing_is_left(daemon)
    assert versions(daemon) == [1] and content(daemon) == OTHER


def test_what_changes_behind_a_verify_is_not_what_the_digest_is_of(daemon, task, plan):
    sink = task("sink")
    memory = sink.create(daemon, plan)
    os.pwrite(memory, DATA, 0)
    assert sink.verify()["op"] == "verified"
    os.pwrite(memory, bytes([DATA[LEAF] ^ 1]), LEAF)
    sink.publish()
    done = daemon.ctl("verify", "m", check=False)
    assert done.returncode and f"{LEAF} to {2 * LEAF}" in done.stderr, done


def spent_ns(sink):
    """Processor time of a sink until now."""
    return time.clock_gettime_ns(~sink.proc.pid << 3 | 2)  # the clock of clock_getcpuclockid()


def test_an_engine_that_goes_late_is_waited_for(daemon, task, plan):
    sink = task("sink")
    with mmap.mmap(sink.create(daemon, plan), N_BYTES) as m:
        m[:] = DATA
        assert sink.verify()["op"] == "verified"
        begun = spent_ns(sink)
        assert sink.verify()["op"] == "verified"
        told = spent_ns(sink)
        sink.tell("publish")
        # It waits for weightd, is refused, and verifies once more, which is work: that is seen however late we look.
        until(lambda: spent_ns(sink) - told > (told - begun) / 2, "it was refused", PATIENCE_S)
    assert sink.hear("published")["version"] == 1
    assert content(daemon) == DATA


def test_an_engine_that_does_not_go_is_an_error_that_names_it(daemon, task, plan):
    sink = task("sink")
    with mmap.mmap(sink.create(daemon, plan), N_BYTES) as m:
        m[:] = DATA
        assert sink.verify()["op"] == "verified"
        sink.tell("publish")
        code, why = sink.failure()
        assert code == "busy" and str(os.getpid()) in why, (code, why)
    sink.forget()
    nothing_is_left(daemon)


# --- Refusals ---


def refused(task, daemon, p, **kw):
    sink = task("sink")
    sink.send_create(daemon, p, **kw)
    said = sink.failure()
    nothing_is_left(daemon)
    return said


def test_a_table_that_is_not_of_the_root_is_refused(daemon, task, plan):
    code, why = refused(task, daemon, plan, root=Tree(OTHER).root)
    assert code == "corrupt" and "table of leaves" in why, why


def test_a_layout_that_is_not_the_announced_one_is_refused(daemon, task, plan):
    code, why = refused(task, daemon, plan, layout=sha256(b"another"))
    assert code == "corrupt" and "layout" in why, why


@pytest.mark.parametrize("layout, sentence", [
    (b"", "cannot be used"),
    (b"\xff" * 4096, "cannot be used"),
    (LAYOUT[:-1], "cannot be used"),
    (LAYOUT[:100] + b"\1" + LAYOUT[101:], "cannot be used"),
    (image([("a", 4096)]), "were announced"),
    (image([("a", 2**49)]), "were announced"),
], ids=["nothing", "rubbish", "cut", "changed", "small", "huge"])
def test_a_layout_that_weightd_would_not_take_or_of_other_bytes_is_refused(daemon, task, layout, sentence):
    p = Plan(layout=layout)
    code, why = refused(task, daemon, p)
    assert code == "malformed" and sentence in why, (code, why)
    p.close()


def test_a_limit_of_weightd_is_told(make_daemon, task, plan, tmp_path):
    (tmp_path / "w.conf").write_text(f"[limits]\nbytes = {N_BYTES // 2}\n")
    daemon = make_daemon("--config", tmp_path / "w.conf")
    code, why = refused(task, daemon, plan)
    assert code == "quota" and "may not hold" in why, (code, why)


def test_missing_memory_is_told_with_how_much(make_daemon, task):
    daemon = make_daemon("--reserve", "4096T")
    p = Plan()
    code, why = refused(task, daemon, p)
    assert code == "memory" and "than this machine has free" in why, (code, why)
    p.close()


def test_a_buffer_of_another_user_is_not_touched(make_daemon, task, plan, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    publish(daemon, OTHER, mode=0o644)
    sink = task("sink", daemon, uid=USER)
    sink.send_create(daemon, plan)
    code, why = sink.failure()
    assert code == "permission" and f"weightctl chown {USER} m)" in why, (code, why)
    nothing_is_left(daemon)
    assert content(daemon) == OTHER
    daemon.ctl("chown", str(USER), "m")
    receive(task("sink", daemon, uid=USER), daemon, plan)
    assert content(daemon) == DATA


# --- Ownership ---


def receive(sink, daemon, plan, **fields):
    os.pwrite(sink.create(daemon, plan, **fields), plan.data, 0)
    assert sink.verify()["op"] == "verified"
    sink.publish()


def rights(daemon, name="m"):
    """(mode, gid), as far as they are not those of anything new that this user makes."""
    with Wire(daemon.socket) as w:
        record = w.records()[name]
    return oct(record.mode) if record.mode != 0o640 else None, record.gid if record.gid != USER else None


@pytest.mark.parametrize("groups, fields, found", [
    ([], {}, (None, None)),
    ([], {"mode": 0o644}, ("0o644", None)),
    ([GROUP], {"unix_group": {"name": "readers", "gid": GROUP}}, (None, GROUP)),
    ([7, GROUP], {"mode": 0o600, "unix_group": {"name": "readers", "gid": GROUP}}, ("0o600", GROUP)),
])
@pytest.mark.parametrize("flags", [0, wire.REUSABLE], ids=["", "reusable"])
def test_what_is_received_gets_the_rights_that_the_agent_says(make_daemon, task, plan, require, flags, groups, fields, found):
    """A new buffer before anybody can see it, one that is there with its next version."""
    require("root")
    daemon = make_daemon("--socket-mode", "0666")

    def sink():
        return task("sink", daemon, uid=USER, groups=groups)

    receive(sink(), daemon, plan, **fields)
    assert rights(daemon) == found
    daemon.ctl("rm", "m")
    run_as(USER, lambda: [publish(daemon, OTHER, flags=flags, mode=0o640) for _ in range(3)])
    receive(sink(), daemon, plan, **fields)
    assert rights(daemon) == found and content(daemon) == DATA
    receive(sink(), daemon, plan)
    assert rights(daemon) == found, "other settings stay"


def test_a_group_that_is_not_the_agents_is_refused_before_anything_is_made(make_daemon, task, plan, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    for there in False, True:
        if there:
            run_as(USER, publish, daemon, OTHER)
        sink = task("sink", daemon, uid=USER, groups=[7])
        sink.send_create(daemon, plan, unix_group={"name": "readers", "gid": GROUP})
        code, why = sink.failure()
        assert code == "permission" and f"Unix group 'readers' on this node, by its sync.conf, and its agent may not give it " \
            f"that: uid {USER} is not in group {GROUP}; add the agent's user" in why, (code, why)
        nothing_is_left(daemon)
        with Wire(daemon.socket) as w:
            assert [(name, r.gid) for name, r in w.records().items()] == [("m", USER)] * there


@pytest.mark.parametrize("mode", [0o666, 0o622], ids=oct)
@pytest.mark.parametrize("user, owner", [(USER, 0), (0, USER)], ids=["a user", "root"])
def test_a_buffer_of_another_user_is_refused_although_the_agent_may_write_it(make_daemon, task, plan, require, user, owner, mode):
    """A stranger that was first with the name would own what other nodes send. Not even its rights are changed."""
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    run_as(owner, lambda: publish(daemon, OTHER, mode=mode))
    sink = task("sink", daemon, uid=user)
    sink.send_create(daemon, plan, mode=0o600)
    assert sink.failure() == (
        "permission", f"'m' on host belongs to uid {owner}, not to uid {user}: somebody else made it on this node, and an agent "
                      f"publishes in buffers of its own user alone; let the agent have it (weightctl chown {user} m), or "
                      "remove it (weightctl rm)")
    nothing_is_left(daemon)
    with Wire(daemon.socket) as w:
        record = w.records()["m"]
        assert (record.uid, record.mode, record.version) == (owner, mode, 1)
    daemon.ctl("chown", str(user), "m")
    receive(task("sink", daemon, uid=user), daemon, plan, mode=0o644)
    assert content(daemon) == DATA


def test_a_name_that_is_reserved_for_others_was_made_by_nobody(make_daemon, task, plan, require, tmp_path):
    require("root")
    require("inih")
    path = tmp_path / "w.conf"
    path.write_text("[server]\nsocket-mode = 0666\n[names]\nm = daemon\n")
    daemon = make_daemon("--config", path)
    sink = task("sink", daemon, uid=USER)
    sink.send_create(daemon, plan)
    code, why = sink.failure()
    assert code == "permission" and why.startswith(f"uid {USER} may not create 'm': [names] of weightd.conf reserves 'm' for ") and \
        "somebody else made it" not in why, (code, why)


@pytest.mark.parametrize("fields", [
    {"mode": 0o1000}, {"mode": "0640"}, {"mode": -1}, {"mode": None}, {"mode": True}, {"unix_group": 7}, {"unix_group": "readers"},
    {"unix_group": {"name": "readers"}}, {"unix_group": {"gid": 7}}, {"unix_group": {"name": "x\n", "gid": 7}},
    {"unix_group": {"name": "x" * 200, "gid": 7}}, {"unix_group": {"name": "x", "gid": 2**32 - 1}},
    {"unix_group": {"name": "x", "gid": -1}}, {"unix_group": None}])
def test_rights_that_are_none_are_refused(daemon, task, plan, fields):
    code, why = refused(task, daemon, plan, **fields)
    assert code == "malformed", (code, why)


def test_a_source_that_may_not_read_says_how_it_may(make_daemon, task, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    publish(daemon)
    source = task("source", daemon, uid=USER, groups=[GROUP])
    source.tell("attach", socket=daemon.socket, buffer="m", device="host", version=0)
    code, why = source.failure()
    assert code == "permission" and f"uid {USER} may not read 'm' (owner uid 0, gid 0, mode 0640): the agent reads what its " \
        "own user may; give the buffer a Unix group that this user is in (weightctl chown :GROUP m)" in why, (code, why)
    daemon.ctl("chown", f":{GROUP}", "m")
    assert task("source", daemon, uid=USER, groups=[GROUP]).attach(daemon)[1]["root"] == Tree(DATA).root


# --- Obstacles ---


def test_two_do_not_write_one_buffer(daemon, task, plan):
    first = task("sink")
    first.create(daemon, plan)
    second = task("sink")
    second.send_create(daemon, plan)
    assert second.failure()[0] == "busy"


def test_a_buffer_that_would_be_written_in_place_is_refused(daemon, task, plan):
    publish(daemon, OTHER, flags=wire.EXCLUSIVE)
    code, why = refused(task, daemon, plan)
    assert code == "unsupported" and "weightctl rm m" in why, why
    assert content(daemon) == OTHER


def test_a_gpu_that_there_is_not_is_refused(daemon, task, plan):
    code, why = refused(task, daemon, plan, device="cuda:0")
    assert code == "device" and "cuda:0" in why, why


# --- Hangups ---


def started(sink, daemon, p):
    pass


def asked(sink, daemon, p):
    sink.send_create(daemon, p)


def created(sink, daemon, p):
    sink.create(daemon, p)


def written(sink, daemon, p):
    os.pwrite(sink.create(daemon, p), DATA, 0)


def hashing(sink, daemon, p):
    written(sink, daemon, p)
    sink.tell("verify")


def verified(sink, daemon, p):
    hashing(sink, daemon, p)
    sink.hear("verified")


def found_corrupt(sink, daemon, p):
    created(sink, daemon, p)
    assert sink.verify()["op"] == "corrupt"


def failed(sink, daemon, p):
    created(sink, daemon, p)
    sink.tell("publish")
    sink.failure()


@pytest.mark.parametrize("step", [started, asked, created, written, hashing, verified, found_corrupt, failed])
@pytest.mark.parametrize("how", ["hangup", "kill", "shutdown"])
def test_nothing_is_left_when_it_ends_behind(daemon, task, plan, scene, step, how):
    publish(daemon, OTHER)
    sink = Task(daemon, "sink")
    step(sink, daemon, plan)
    if how == "kill":
        sink.proc.kill()
        sink.proc.wait()
        sink.hang_up()
    elif how == "shutdown":
        sink.ours.shutdown(socket.SHUT_WR)
        assert sink.proc.wait(PATIENCE_S) == 0
        sink.hang_up()
    else:
        sink.end()
    sink.forget()
    nothing_is_left(daemon)
    assert versions(daemon) == [1] and content(daemon) == OTHER
    publish(daemon)  # and the next writer is let in


def test_a_hangup_behind_publish_leaves_the_old_or_the_new_version_whole(daemon, task, plan):
    publish(daemon, OTHER)
    sink = task("sink")
    verified(sink, daemon, plan)
    sink.tell("publish")
    sink.end()
    sink.forget()
    nothing_is_left(daemon)
    assert content(daemon) == {1: OTHER, 2: DATA}[versions(daemon)[-1]]


@pytest.mark.parametrize("role", ["source", "sink"])
def test_a_hangup_ends_it_at_once_while_weightd_does_not_answer(daemon, task, plan, role):
    publish(daemon)
    e = task(role)
    with wire.stopped(daemon):
        if role == "sink":
            e.send_create(daemon, plan)
        else:
            e.tell("attach", socket=daemon.socket, buffer="m", device="host", version=0)
        e.end()
    nothing_is_left(daemon)


@pytest.mark.parametrize("step", [created, verified])
def test_a_weightd_that_dies_is_told_of(daemon, task, plan, step):
    sink = task("sink")
    step(sink, daemon, plan)
    daemon.kill()
    daemon.start()
    os.pwrite(sink.fds[0], DATA, 0)
    sink.tell("verify" if step is created else "publish")
    code, why = sink.failure()
    assert code in ("weightd", "lost") and "weightd" in why, (code, why)
    nothing_is_left(daemon)


def test_a_weightd_that_dies_while_it_is_asked_is_told_of(daemon, task, plan):
    sink = task("sink")
    with wire.stopped(daemon):
        sink.send_create(daemon, plan)
        daemon.kill()
        assert sink.failure()[0] == "weightd"
    daemon.start()


def test_a_sink_goes_on_with_a_weightd_that_survives_its_death(make_daemon, task, plan):
    daemon = make_daemon("--keeper")
    sink = task("sink", daemon)
    verified(sink, daemon, plan)
    with Wire(daemon.socket) as w:
        os.kill(w.ping().pid, signal.SIGKILL)
    assert sink.publish() == 1
    assert content(daemon) == DATA


def test_a_source_keeps_its_bytes_when_weightd_dies(daemon, task):
    publish(daemon)
    source = task("source")
    said, _ = source.attach(daemon)
    daemon.kill()
    assert os.pread(said.fds[1], N_BYTES, 0) == DATA
    source.end()
    daemon.start()


# --- Messages that are wrong ---


@pytest.mark.parametrize("role", ["source", "sink"])
@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b"null", b'{"op":7}', b'{"op":"attach"}', b'{"op":"create"}',
                                  b'{"op":"verify"}', b'{"op":"publish"}', b'{"op":"\xff"}', b'{"op":"' + "ü".encode() * 60 + b'"}',
                                  b'{"op":"attach","op":"attach"}', b"[" * 60000, b"{" + b" " * 65535 + b"}"])
def test_what_is_no_message_is_refused(daemon, task, role, data):
    e = task(role)
    pipe = os.pipe()
    e.tell_raw(data, [pipe[0]])  # an empty packet without a descriptor would be a hangup
    assert e.failure()[0] == "malformed"
    assert e.is_silent() and e.proc.poll() is None
    for fd in pipe:
        os.close(fd)


MISSING = object()


@pytest.mark.parametrize("field, value", [
    (field, value) for field in ("socket", "buffer", "device", "n_bytes", "root", "layout")
    for value in (MISSING, None, 7, -1, 2**63 - 1, True, 1.5, "", "x\0y", "\n", [], {}, "f" * 63, "z" * 64, "f" * 65, "x" * 30000)
    if not (field == "socket" and value in (MISSING, None, "f" * 63, "z" * 64, "f" * 65))
    and not (field == "buffer" and value in ("f" * 63, "z" * 64, "f" * 65))])
def test_a_create_with_a_field_that_is_wrong_is_refused(daemon, task, plan, field, value):
    fields = plan.fields(daemon) | {field: value}
    if value is MISSING:
        del fields[field]
    sink = task("sink")
    sink.tell("create", plan.fds, **fields)
    code, why = sink.failure()
    assert code in ("malformed", "unsupported", "weightd", "failed"), (code, why)
    if field not in ("device", "buffer", "socket"):
        assert code == "malformed", (code, why)
    nothing_is_left(daemon)


@pytest.mark.parametrize("field, value", [("version", -1), ("version", "1"), ("version", 2**64), ("version", 1.0),
                                          ("buffer", 1), ("buffer", "x" * 128), ("device", None), ("socket", 1)])
def test_an_attach_with_a_field_that_is_wrong_is_refused(daemon, task, field, value):
    publish(daemon)
    source = task("source")
    source.tell("attach", **{"socket": daemon.socket, "buffer": "m", "device": "host", "version": 0} | {field: value})
    assert source.failure()[0] == "malformed"
    nothing_is_left(daemon)


def unsealed():
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC)
    os.write(fd, LAYOUT)
    return fd


def hole(size):
    return lambda: memfd(size=size)


@pytest.mark.parametrize("wrong", [
    lambda: os.open("/dev/zero", os.O_RDONLY), lambda: os.open("/", os.O_RDONLY), lambda: os.open("/proc/self/maps", os.O_RDONLY),
    lambda: socket.socket(socket.AF_UNIX).detach(), unsealed, hole(0), hole(31), hole(129), hole(2**40),
], ids=["device", "folder", "proc", "socket", "unsealed", "empty", "odd", "long", "huge"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_descriptor_of_something_else_is_refused(daemon, task, plan, which, wrong):
    fd = wrong()
    fds = list(plan.fds)
    fds[which] = fd
    code, why = refused(task, daemon, plan, fds=fds)
    assert code in ("malformed", "corrupt"), (code, why)
    os.close(fd)


def test_a_pipe_is_refused_without_waiting_for_it(daemon, task, plan):
    ends = os.pipe()
    for fds in [ends[0], plan.fds[1]], [plan.fds[0], ends[0]]:
        assert refused(task, daemon, plan, fds=fds)[0] == "malformed"
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize("n", [0, 1, 3, 8])
def test_as_many_descriptors_as_there_should_be(daemon, task, plan, n):
    assert refused(task, daemon, plan, fds=(plan.fds * 4)[:n])[0] == "malformed"


def test_what_comes_at_the_wrong_time_ends_the_task(daemon, task, plan):
    for steps in (["verify"], ["publish"], ["create", "create"], ["create", "publish"], ["create", "attach"]):
        sink = task("sink")
        for step in steps[:-1]:
            sink.create(daemon, plan)
        if steps[-1] == "create":
            sink.send_create(daemon, plan)
        else:
            sink.tell(steps[-1])
        code, why = sink.failure()
        assert code == "malformed" and steps[-1] in why, (code, why)
        sink.forget()
        nothing_is_left(daemon)
    publish(daemon)
    source = task("source")
    source.attach(daemon)
    source.tell("attach", socket=daemon.socket, buffer="m", device="host", version=0)
    assert source.failure()[0] == "malformed"


# --- How tensors differ ---------------------------------------------------------------------------------


def compared(daemon, task, fds, **fields):
    """The comparison of the published version here, 'us', with a layout of 'them'."""
    source = task("source")
    source.tell("lend", socket=daemon.socket, buffer="m", device="host", version=0)
    assert len(source.hear("attached").fds) == 3
    source.tell("compare", fds, **{"node": "us", "other": "them"} | fields)
    return source.failure()


@pytest.mark.parametrize("theirs, how", [
    (image(SIZES[:-1]), "us has a tensor 'c', and them has none"),
    (image((*SIZES, ("d", 1))), "them has a tensor 'd', and us has none"),
    (image((("b", 100), *SIZES[:1], *SIZES[2:])), "tensor 0 is 'a' on us, and 'b' on them, in another order"),
    (image((SIZES[0], ("b", 99), *SIZES[2:])), "tensor 'b' is U8 [100] on us, and U8 [99] on them"),
    (image((SIZES[0], ("b", 100, {"role": 2}), *SIZES[2:])), "tensor 'b' is a parameter on us alone"),
    (image((*SIZES[:2], ("empty", 0, {"tied_to": 1}), SIZES[3])), "the layout of them cannot be used: "),
    (image(SIZES, alignment=128), "their tensors are the same, and aligned otherwise"),
])
def test_the_first_tensor_that_differs_is_named(daemon, task, theirs, how):
    publish(daemon)
    fd = memfd(theirs)
    try:
        assert how in compared(daemon, task, [fd])[1]
    finally:
        os.close(fd)


def test_only_a_sealed_layout_of_a_node_is_compared(daemon, task, plan):
    publish(daemon)
    for fds, fields in ([], {}), (plan.fds, {}), (plan.fds[:1], {"node": ""}), (plan.fds[:1], {"other": "x" * 64}):
        assert compared(daemon, task, fds, **fields)[0] == "malformed"
    assert "cannot be used" in compared(daemon, task, plan.fds[1:])[1]
    source = task("source")
    source.tell("compare", plan.fds[:1], node="us", other="them")
    assert source.failure()[0] == "malformed"


@pytest.mark.parametrize("arguments", [[], ["source"], ["sink"], ["both"], ["source", "sink"], ["--help"]])
def test_it_is_of_no_use_without_an_agent(build, arguments):
    features.require("sync", "weightd-sync-local is not built: no OpenSSL (apt-get install libssl-dev)",
                     (build / "weightd-sync-local").exists())
    done = subprocess.run([build / "weightd-sync-local", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2 and "is started by weightd-sync" in done.stderr, done

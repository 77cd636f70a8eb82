"""Changes of a buffer's permissions and owner: the right to make them, the moment from which they count, and their events."""
import errno
import json
import os
import subprocess

import pytest
from integration.weightctl.test_weightctl import in_terminal
from lib import wire
from lib.child import Child
from lib.daemon import copy_for_others
from lib.scene import LAYOUT, NOTHING, Scene, finish, ledger, n_requests, publish, refusal
from lib.wire import Refused, Wire, until

OWNER, MEMBER, OTHER, ADMIN = 12345, 12346, 12347, 12348
GROUP, STAFF = 23456, 23457
NOBODY = 65534


@pytest.fixture(autouse=True)
def root_only(require):
    require("root")


@pytest.fixture
def scene(make_daemon):
    """A buffer 'm' of the owner and its group, 0640, of one version."""
    with Scene(make_daemon("--socket-mode", "0666")) as s:
        as_owner(s, publish)
        s.events()
        yield s


def outcome(act, *args, **kw):
    """Its result, or the errno of its refusal."""
    try:
        return act(*args, **kw)
    except Refused as e:
        return -e.errno


def run(scene, user, act, *args, group=None, groups=(), **kw):
    """outcome(act, wire, ...) over a connection of that user."""
    return scene.run_as(user, lambda w: outcome(act, w, *args, **kw), group=group, groups=groups)


def as_owner(scene, act, *args, **kw):
    return run(scene, OWNER, act, *args, group=GROUP, **kw)


def access(w, **kw):
    w.access("m", **kw)


def attach(w, name="m"):
    return w.attach(name).version


def rights(scene, name="m"):
    record = scene.watcher.records()[name]
    return record.uid, record.gid, record.mode


# --- Rights -----------------------------------------------------------------------------------------


def test_the_owner_changes_mode_and_group_as_far_as_it_is_a_member(scene):
    assert as_owner(scene, access, mode=0o600) is None
    assert rights(scene) == (OWNER, GROUP, 0o600)
    assert run(scene, OWNER, access, gid=STAFF, groups=[STAFF]) is None
    assert rights(scene) == (OWNER, STAFF, 0o600)
    assert run(scene, OWNER, access, gid=GROUP, groups=[STAFF]) == -errno.EPERM
    assert as_owner(scene, access, uid=MEMBER) == -errno.EPERM
    assert as_owner(scene, access, uid=MEMBER, mode=0o666) == -errno.EPERM, "all of it or nothing"
    assert as_owner(scene, access, uid=OWNER, mode=0o644) is None, "which it is"
    assert rights(scene) == (OWNER, STAFF, 0o644)


@pytest.mark.parametrize("change", [dict(mode=0o666), dict(gid=GROUP), dict(uid=MEMBER), dict()])
def test_others_change_nothing_even_if_they_may_write(scene, change):
    as_owner(scene, access, mode=0o666)
    scene.events()
    assert run(scene, MEMBER, access, group=GROUP, **change) == -errno.EACCES
    assert run(scene, OTHER, access, groups=[GROUP], **change) == -errno.EACCES
    assert run(scene, NOBODY, access, **change) == -errno.EACCES
    assert rights(scene) == (OWNER, GROUP, 0o666) and scene.events() == []


def test_a_refusal_names_the_way_out(scene):
    def sentence(w, **kw):
        with pytest.raises(Refused) as refused:
            w.access("m", **kw)
        return refused.value.sentence

    assert run(scene, OTHER, sentence, mode=0o666) == f"uid {OTHER} may not change 'm'; its owner is uid {OWNER}"
    assert as_owner(scene, sentence, uid=0) == "only an administrator may give 'm' to another user"
    assert as_owner(scene, sentence, gid=STAFF) == f"uid {OWNER} is not in group {STAFF}"
    assert as_owner(scene, sentence, mode=0o755) == "a buffer's mode has r and w bits only: up to 0666"


@pytest.mark.parametrize("mode", [0o1, 0o111, 0o667, 0o1666, 0o4644, 2**32 - 1])
def test_a_mode_has_only_r_and_w(scene, mode):
    assert as_owner(scene, access, mode=mode) == -errno.EINVAL
    assert rights(scene) == (OWNER, GROUP, 0o640)


def test_root_changes_everything(scene):
    scene.watcher.access("m", uid=OTHER, gid=STAFF, mode=0)
    assert rights(scene) == (OTHER, STAFF, 0)
    assert as_owner(scene, access, mode=0o666) == -errno.EACCES
    assert run(scene, OTHER, access, mode=0o600) is None
    assert rights(scene) == (OTHER, STAFF, 0o600)


def test_administrators_do_too(make_daemon, require, tmp_path):
    require("inih")
    path = tmp_path / "w.conf"
    path.write_text(f"[server]\nsocket-mode = 0666\nadmin-group = {STAFF}\n")
    with Scene(make_daemon("--config", path)) as scene:
        as_owner(scene, publish, mode=0o600)
        assert run(scene, OTHER, access, uid=OTHER) == -errno.EACCES
        assert run(scene, ADMIN, access, uid=OTHER, gid=GROUP, mode=0o400, groups=[STAFF]) is None
        assert rights(scene) == (OTHER, GROUP, 0o400)
        assert run(scene, ADMIN, attach, groups=[STAFF]) == 1


def test_what_is_not_there_cannot_be_changed(scene):
    assert refusal(scene.watcher.access, "none", mode=0o600) == errno.ENOENT


# --- From when on -----------------------------------------------------------------------------------


def reading(pipe, path):
    """A reader that runs commands: attach, read on, renew."""
    with Wire(path) as w:
        lease = w.attach("m")
        pipe.send(lease.version)
        while True:
            what = pipe.recv()
            if what == "read":
                pipe.send(lease.bytes()[:4])
            elif what == "attach":
                pipe.send(outcome(attach, w))
            elif what == "renew":
                pipe.send(outcome(lambda: bool(w.renew(lease.buffer, lease.version))))
            else:
                pipe.send(outcome(w.wait, "m", 0, 0))


def test_a_change_counts_from_the_next_attach_on(scene):
    with Child(reading, scene.daemon.socket, uid=MEMBER, gid=GROUP) as reader:
        def ask(what):
            reader.say(what)
            return reader.hear()

        assert reader.hear() == 1
        scene.watcher.access("m", mode=0o600)
        assert ask("read") == b"data", "what it has it keeps"
        assert ask("attach") == ask("renew") == ask("wait") == -errno.EACCES
        scene.watcher.access("m", mode=0o640)
        assert (ask("attach"), ask("renew"), ask("wait")) == (1, True, 1)
        scene.watcher.access("m", gid=STAFF)
        assert ask("attach") == -errno.EACCES
        scene.watcher.access("m", uid=MEMBER)
        assert ask("attach") == 1


def test_a_wait_ends_by_the_permissions_of_its_end(scene):
    def wait(pipe):
        with Wire(scene.daemon.socket) as w:
            w.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(b"m", b"", 2, -1))
            pipe.send("waits")
            pipe.send(outcome(w.answer, wire.WAIT))

    with Child(wait, uid=MEMBER, gid=GROUP) as reader:
        reader.hear()
        until(lambda: n_requests(scene.watcher, MEMBER) == 2, "it waits")
        scene.watcher.access("m", mode=0o600)
        publish(scene.watcher, owner=OWNER)
        assert reader.hear() == -errno.EACCES


def test_a_writer_goes_on_though_it_may_not_begin_any_more(scene):
    def write(pipe):
        with Wire(scene.daemon.socket) as w:
            slot = w.create("m", LAYOUT, owner=OWNER)
            pipe.send("writes")
            pipe.recv()
            pipe.send(finish(w, slot))
            pipe.send(outcome(w.create, "m", LAYOUT, owner=OWNER))

    scene.watcher.access("m", mode=0o660)
    with Child(write, uid=MEMBER, gid=GROUP) as writer:
        writer.hear()
        scene.watcher.access("m", mode=0o600)
        writer.say("publish")
        assert writer.hear() == 2
        assert writer.hear() == -errno.EACCES


def test_rolling_back_takes_w_and_removing_takes_the_owner(scene):
    scene.watcher.access("m", mode=0o664)
    publish(scene.watcher, owner=OWNER)
    assert run(scene, OTHER, Wire.rollback, "m") == -errno.EACCES
    assert run(scene, MEMBER, Wire.rollback, "m", group=GROUP) == 1
    assert run(scene, MEMBER, Wire.drop, "m", 2, group=GROUP) == -errno.EACCES
    assert as_owner(scene, Wire.drop, "m", 2) is None
    assert run(scene, OTHER, Wire.drop, "m") == -errno.EACCES


def test_an_owner_without_r_and_w_is_still_the_owner(scene):
    scene.watcher.access("m", mode=0)
    assert as_owner(scene, attach) == -errno.EACCES
    assert as_owner(scene, Wire.names) == ["m"]
    assert as_owner(scene, access, mode=0o600) is None and as_owner(scene, attach) == 1


def test_permissions_survive_a_restart(make_daemon):
    with Scene(make_daemon("--keeper", "--socket-mode", "0666")) as scene:
        as_owner(scene, publish)
        scene.watcher.access("m", uid=MEMBER, gid=STAFF, mode=0o440)
        scene.restart()
        assert rights(scene) == (MEMBER, STAFF, 0o440)
        assert as_owner(scene, attach) == -errno.EACCES and run(scene, MEMBER, attach) == 1


# --- Charges ----------------------------------------------------------------------------------------


def test_a_buffer_is_charged_to_its_owner_and_its_versions_to_who_wrote_them(scene):
    before = ledger(scene.watcher)[OWNER]
    scene.watcher.access("m", uid=OTHER)
    after = ledger(scene.watcher)
    assert after[OTHER] == NOTHING | {"buffers": 1, "descriptors": 2}
    assert after[OWNER] == before | {"buffers": 0, "descriptors": before["descriptors"] - 2}
    scene.watcher.access("m", uid=OTHER)
    scene.watcher.access("m", uid=OWNER)
    assert ledger(scene.watcher) == {0: NOTHING | {"connections": 1}, OWNER: before}


# --- Writers and their ids --------------------------------------------------------------------------


def test_a_writer_is_resumed_by_its_user_alone(make_daemon):
    with Scene(make_daemon("--keeper", "--socket-mode", "0666")) as scene:
        path = scene.daemon.socket

        def create(pipe, **kw):
            w = Wire(path)
            pipe.send(w.create("m", LAYOUT, mode=0o666, cookie=77, **kw).writer)
            pipe.recv()

        def resume(w, writer):
            return w.resume(writer)

        def create_again(w, owner=None):
            return w.create("m", LAYOUT, cookie=77, owner=owner).writer

        with Child(create, uid=OWNER) as child:
            writer = child.hear()
            assert run(scene, OWNER, create_again) == -errno.EBUSY, "it is not gone"
            assert run(scene, OWNER, resume, writer) == -errno.ESTALE
            scene.restart()
            for uid in OTHER, 0, NOBODY:
                assert run(scene, uid, resume, writer) == -errno.ESTALE
                assert run(scene, uid, create_again, owner=OWNER) == -errno.EBUSY

            def go_on(w):
                assert w.create("m", LAYOUT, cookie=77).writer == writer
                assert refusal(w.resume, writer) == errno.ESTALE, "it has it already"
                return w.publish(writer)

            assert run(scene, OWNER, go_on) == 1
            assert run(scene, OTHER, resume, writer) == -errno.ESTALE
            assert run(scene, OWNER, resume, writer) == 1


def test_ids_of_others_are_good_for_nothing(scene):
    reader, w = scene.connect(2)
    lease = reader.attach("m")
    slot = reader.create("m", LAYOUT, owner=OWNER)
    for id in lease.lease, slot.writer, lease.buffer, 0, 2**64 - 1:
        assert refusal(w.detach, id) == refusal(w.abort, id) == refusal(w.publish, id) == errno.ENOENT
        assert refusal(w.pause, id) == errno.ENOENT
    assert refusal(w.resume, slot.writer) == errno.ESTALE
    for buffer, version in (lease.buffer, 0), (lease.buffer, 2), (lease.buffer + 1, 1), (0, 1):
        assert refusal(w.renew, buffer, version) == errno.ESTALE
    reader.abort(slot.writer)


def test_a_renewal_tells_a_stranger_nothing(scene):
    as_owner(scene, access, mode=0o600)
    buffer = scene.watcher.attach("m").buffer

    def renew(w, buffer, version):
        with pytest.raises(Refused) as refused:
            w.renew(buffer, version)
        return refused.value.errno, "'m'" in refused.value.sentence

    assert run(scene, OTHER, renew, buffer, 1) == (errno.EACCES, False)
    assert run(scene, OTHER, renew, buffer, 2)[1] is False


# --- Events -----------------------------------------------------------------------------------------


def events(w):
    found, after = [], 0
    while True:
        try:
            more, after = w.events(after)
        except Refused:
            return found
        found += [(e.name, wire_name(e.event), e.version) for e in more]


def wire_name(event):
    return next(name for name, number in wire.EVENTS_BY_NAME.items() if number == event)


def test_events_are_for_those_who_may_read_or_own(scene):
    publish(scene.watcher, "root", mode=0o600)
    publish(scene.watcher, "all", mode=0o644)
    of_m = [("m", "created", 0), ("m", "published", 1)]
    of_root = [("root", "created", 0), ("root", "published", 1)]
    of_all = [("all", "created", 0), ("all", "published", 1)]
    assert events(scene.watcher) == of_m + of_root + of_all
    assert as_owner(scene, events) == run(scene, MEMBER, events, group=GROUP) == of_m + of_all
    assert run(scene, OTHER, events) == run(scene, NOBODY, events) == of_all


def test_an_event_is_seen_with_the_permissions_of_its_time(scene):
    scene.watcher.access("m", mode=0o600)
    publish(scene.watcher, owner=OWNER)
    scene.watcher.access("m", mode=0o644)
    publish(scene.watcher, owner=OWNER)
    assert run(scene, OTHER, events) == [("m", "access", 2), ("m", "published", 3), ("m", "version-gone", 1)] or \
        run(scene, OTHER, events) == [("m", "access", 2), ("m", "version-gone", 1), ("m", "published", 3)]
    assert [e for e in run(scene, MEMBER, events, group=GROUP) if e[1] != "version-gone"] == \
        [("m", "created", 0), ("m", "published", 1), ("m", "access", 2), ("m", "published", 3)]


def test_a_watcher_is_not_woken_by_what_is_none_of_its_business(scene):
    def watch(pipe):
        with Wire(scene.daemon.socket) as w:
            w.send(wire.EVENTS, wire.BODIES[wire.EVENTS].pack(wire.FROM_NOW_ON, -1))
            pipe.send("watches")
            found, _ = wire.page(w.answer(wire.EVENTS).body)
            pipe.send([(e.name, wire_name(e.event)) for e in map(wire.Event.unpack, found)])

    with Child(watch, uid=OTHER) as watcher:
        watcher.hear()
        until(lambda: n_requests(scene.watcher, OTHER) == 2, "it watches")
        for _ in range(50):
            publish(scene.watcher, owner=OWNER)
            scene.watcher.rollback("m")
            scene.watcher.access("m", mode=0o600)
        publish(scene.watcher, "all", mode=0o644)
        assert watcher.hear() == [("all", "created")]


def test_events_tell_who_did_it(scene):
    publish(scene.watcher, owner=OWNER)
    scene.watcher.rollback("m", 1)
    as_owner(scene, access, mode=0o644)
    as_owner(scene, Wire.drop, "m")

    def found(name):
        scene.seen = 0
        return scene.events(name)

    uids = {name: [e.uid for e in found(name)] for name in ("created", "rolled-back", "access", "removed")}
    assert uids == {"created": [OWNER], "rolled-back": [0], "access": [OWNER], "removed": [OWNER]}
    found = found("published")
    assert [e.uid for e in found] == [OWNER, 0] and found[1].pid == os.getpid() != found[0].pid


def test_histories_and_versions_are_for_those_who_may_read(scene):
    for kind in wire.HISTORY, wire.VERSIONS:
        assert len(run(scene, MEMBER, Wire.list, kind, "m", group=GROUP)) == 1
        assert run(scene, OTHER, Wire.list, kind, "m") == -errno.EACCES


# --- Output of weightctl ----------------------------------------------------------------------------


def as_other(scene):
    """The words before a weightctl command that run a copy of it, which every user may run, as another user."""
    program = copy_for_others("weightctl", scene.daemon.folder)
    return "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "sh", "-c", f'shift && exec {program} "$@"', "sh"


def ctl(scene, *args):
    return subprocess.run([*as_other(scene), "weightctl", *args], env=scene.daemon.env, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("verb", ["show", "verify", "history", "tensors"])
def test_verbs_agree_on_a_buffer_that_may_not_be_read(scene, verb):
    done = ctl(scene, verb, "m")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"weightctl: uid {OTHER} may not read 'm' (owner uid {OWNER}, gid {GROUP}, mode 0640)\n"


def test_ls_counts_what_may_not_be_read(scene):
    as_owner(scene, publish, "another")
    run(scene, MEMBER, publish, "readable", mode=0o644)
    assert [line.split()[0] for line in ctl(scene, "ls", "-n").stdout.splitlines()] == ["readable"]
    with Wire(scene.daemon.socket) as w:
        w.drop("readable")
    assert in_terminal(scene.daemon, "ls", prefix=as_other(scene)) == (0, "no buffers; 2 that you may not read\r\n")
    assert ctl(scene, "ls").stdout == ctl(scene, "ls").stderr == ""


def test_users_and_groups_have_names(scene):
    with Wire(scene.daemon.socket) as w:
        publish(w, "secret", mode=0o600)
        publish(w, "m0", mode=0o644)
    done = ctl(scene, "verify", "secret")
    assert done.stderr == f"weightctl: uid {OTHER} may not read 'secret' (owner uid 0 (root), gid 0 (root), mode 0600)\n"
    lines = scene.daemon.ctl("ls", "-n", "-o", "NAME,USER,UID,GROUP,GID").stdout.splitlines()
    assert sorted(line.split() for line in lines) == [
        ["m", str(OWNER), str(OWNER), str(GROUP), str(GROUP)], *([name, "root", "0", "root", "0"] for name in ("m0", "secret"))]
    shown = json.loads(scene.daemon.ctl("show", "m0", "--json").stdout)
    assert (shown["user"], shown["group"], shown["versions"][0]["user"]) == ("root", "root", "root")
    assert "root" in scene.daemon.ctl("show", "-n", "m0").stdout.splitlines()[-1].split()

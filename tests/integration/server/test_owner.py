"""
The owner of a buffer, and the users that mean another one.

The first create of a name makes its user the owner. So that a name which a stranger took first is no trap, a create is for
buffers of its own user unless it names the owner, and an attach can name the one that it wants.
"""
import errno
import os

import pytest
from lib import wire
from lib.child import Child
from lib.scene import LAYOUT, Scene, finish, publish, refusal
from lib.wire import Refused, Wire

MALLORY, ALICE, COLLEAGUE = 12345, 12346, 12347
STAFF = 23456
NOBODY = 65534
HEADER = 4096


@pytest.fixture(autouse=True)
def root_only(require):
    require("root")


@pytest.fixture
def scene(make_daemon):
    """MALLORY was first with the name 'llama-8b', and lets everybody read and write."""
    with Scene(make_daemon("--socket-mode", "0666")) as s:
        s.run_as(MALLORY, publish, "llama-8b", b"evil", mode=0o666)
        yield s


def refused(w, act, *args, **kw):
    """(errno, sentence)."""
    with pytest.raises(Refused) as e:
        act(w, *args, **kw)
    return e.value.errno, e.value.sentence


def content(w, name="llama-8b", **kw):
    lease = w.attach(name, **kw)
    found = lease.version, lease.bytes()[:4]
    w.detach(lease.lease)
    return found


# --- Publishing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [0, ALICE])
@pytest.mark.parametrize("make", [lambda w: publish(w, "llama-8b", b"good"),
                                  lambda w: w.create_image("llama-8b", LAYOUT, HEADER, flags=wire.NEW_LAYOUT)],
                         ids=["flat", "image"])
def test_a_name_that_a_stranger_took_first_is_no_trap(scene, user, make):
    """A load of 'llama-8b' would publish in the stranger's buffer, and the stranger replace it."""
    assert scene.run_as(user, refused, make) == (
        errno.EPERM, f"'llama-8b' on host belongs to uid {MALLORY}, not to uid {user}; name uid {MALLORY} as its owner (--owner) "
                     "to publish in that user's buffer, or use another name")
    assert content(scene.watcher) == (1, b"evil"), "nothing was published"
    assert scene.run_as(MALLORY, publish, "llama-8b") == 2, "and no writer is left"


@pytest.mark.parametrize("user", [0, ALICE])
def test_another_users_buffer_can_be_meant(scene, user):
    assert scene.run_as(user, publish, "llama-8b", b"good", owner=MALLORY) == 2
    assert content(scene.watcher) == (2, b"good")
    record = scene.watcher.records()["llama-8b"]
    assert (record.uid, scene.watcher.list(wire.VERSIONS, "llama-8b")[-1].uid) == (MALLORY, user)


def test_an_image_too(scene):
    def make(w):
        slot = w.create_image("llama-8b", LAYOUT, HEADER, owner=MALLORY, flags=wire.NEW_LAYOUT)
        return w.publish(slot.writer, wire.fill_image(slot, b"file"))

    assert scene.run_as(ALICE, make, features=wire.IMAGES) == 2
    with Wire(scene.daemon.socket, features=wire.IMAGES) as w:
        assert content(w) == (2, b"file")


def test_a_colleague_with_permission_to_write_names_the_owner_as_well(scene):
    as_alice = dict(group=STAFF)
    scene.run_as(ALICE, publish, "team", mode=0o660, **as_alice)
    assert scene.run_as(COLLEAGUE, refused, publish, "team", **as_alice)[0] == errno.EPERM
    assert scene.run_as(COLLEAGUE, publish, "team", owner=ALICE, **as_alice) == 2
    assert scene.run_as(ALICE, publish, "team", **as_alice) == 3
    assert scene.run_as(COLLEAGUE, Wire.rollback, "team", **as_alice) == 2, "which publishes nothing that is not there"


def test_what_puts_nothing_of_ones_own_into_a_buffer_names_no_owner(scene):
    """A rollback chooses among versions that are there, and a removal leaves none: neither is a trap for an administrator."""
    scene.run_as(MALLORY, publish, "llama-8b", b"next", mode=0o666)
    assert scene.run_as(0, refused, publish, "llama-8b")[0] == errno.EPERM
    assert scene.run_as(0, Wire.rollback, "llama-8b", 1) == 1
    assert content(scene.watcher) == (1, b"evil")
    scene.run_as(0, Wire.drop, "llama-8b", 2)
    assert [v.version for v in scene.watcher.list(wire.VERSIONS, "llama-8b")] == [1]
    scene.run_as(0, Wire.drop, "llama-8b")
    assert scene.watcher.names() == []


def test_an_owner_is_named_in_vain_where_there_is_another_or_none(scene):
    assert scene.run_as(ALICE, refused, publish, "llama-8b", owner=COLLEAGUE) == (
        errno.EPERM, f"'llama-8b' on host belongs to uid {MALLORY}, not to uid {COLLEAGUE}; name uid {MALLORY} as its owner "
                     "(--owner) to publish in that user's buffer, or use another name")
    assert scene.run_as(ALICE, refused, publish, "llama-8b", owner=ALICE)[0] == errno.EPERM
    for user in ALICE, 0:
        assert scene.run_as(user, refused, publish, "new", owner=MALLORY) == (
            errno.ENOENT, f"there is no buffer 'new' on host of uid {MALLORY}; uid {user} makes new ones as its own alone "
                          "(without --owner)")
    assert scene.watcher.names() == ["llama-8b"]
    assert scene.run_as(ALICE, publish, "new", owner=ALICE) == 1
    assert scene.run_as(ALICE, publish, "new", owner=ALICE) == 2


def test_naming_the_owner_permits_nothing(scene):
    scene.watcher.access("llama-8b", mode=0o644)
    number, sentence = scene.run_as(ALICE, refused, publish, "llama-8b", owner=MALLORY)
    assert (number, f"owner uid {MALLORY}" in sentence) == (errno.EACCES, True)
    assert scene.run_as(ALICE, refused, publish, "llama-8b")[0] == errno.EACCES
    assert scene.run_as(NOBODY, refused, publish, "llama-8b", owner=MALLORY)[0] == errno.EACCES


def test_a_user_without_a_name_of_its_own_names_the_owner_too(scene):
    """The overflow uid stands for many users, none of which owns anything."""
    assert scene.run_as(NOBODY, refused, publish, "llama-8b")[0] == errno.EPERM
    assert scene.run_as(NOBODY, publish, "llama-8b", owner=MALLORY) == 2
    assert scene.run_as(NOBODY, refused, publish, "new", owner=NOBODY)[0] == errno.EPERM


def test_the_owner_is_said_before_anything_else_about_the_buffer(scene):
    """A layout that differs, options that do not fit, a writer at work: all that is the stranger's own business."""
    other = wire.image([("other", wire.PAGE)])
    with Wire(scene.daemon.socket) as writer:
        slot = writer.create("llama-8b", LAYOUT, owner=MALLORY)
        for kw in dict(), dict(flags=wire.EXCLUSIVE), dict(flags=wire.REUSABLE), dict(flags=wire.REPLACE):
            assert refusal(scene.watcher.create, "llama-8b", other, **kw) == errno.EPERM
        assert refusal(scene.watcher.create, "llama-8b", other, owner=MALLORY) == errno.EBUSY
        writer.abort(slot.writer)


# --- Another owner meanwhile -------------------------------------------------------------------------


def writing(pipe, path, **kw):
    """A writer that publishes when it is told to, and then tells how it went."""
    with Wire(path) as w:
        slot = w.create("m", LAYOUT, mode=0o666, **kw)
        pipe.send(slot.writer)
        pipe.recv()
        try:
            pipe.send(finish(w, slot))
        except Refused as e:
            pipe.send((e.errno, e.sentence))


GIVEN = errno.ESTALE, "'m' was removed while it was written, or got another owner or other permissions, or its memory is " \
    "spoiled; create it again"


@pytest.mark.parametrize("first", [True, False], ids=["of a new buffer", "of one that there is"])
def test_a_writer_does_not_publish_in_a_buffer_that_was_given_to_another_user(scene, first):
    if not first:
        scene.run_as(ALICE, publish)
    with Child(writing, scene.daemon.socket, uid=ALICE) as writer:
        writer.hear()
        scene.watcher.access("m", uid=MALLORY)
        writer.say("publish")
        assert writer.hear() == GIVEN
        writer.end()
    assert ("m" in scene.watcher.names()) != first
    if not first:
        assert content(scene.watcher, "m")[0] == 1


def test_a_writer_publishes_in_a_buffer_that_it_was_given(scene):
    scene.run_as(MALLORY, publish, mode=0o666)
    with Child(lambda pipe, path: writing(pipe, path, owner=MALLORY), scene.daemon.socket, uid=ALICE) as writer:
        writer.hear()
        scene.watcher.access("m", uid=MALLORY, mode=0o644)
        scene.watcher.access("m", uid=ALICE)
        writer.say("publish")
        assert writer.hear() == 2


def test_a_write_in_place_is_torn_where_the_buffer_was_given_away(scene):
    scene.run_as(ALICE, publish, flags=wire.EXCLUSIVE)
    with Child(writing, scene.daemon.socket, uid=ALICE) as writer:
        writer.hear()
        scene.watcher.access("m", uid=MALLORY)
        writer.say("publish")
        assert writer.hear() == GIVEN
        writer.end()
    wire.until(lambda: scene.state() == (1, wire.TORN), scene.state)
    assert scene.run_as(MALLORY, publish) == 2, "and its owner updates it again"


# --- Restarts ----------------------------------------------------------------------------------------


@pytest.fixture
def kept(make_daemon):
    with Scene(make_daemon("--keeper", "--socket-mode", "0666")) as s:
        yield s


@pytest.mark.parametrize("given", [False, True])
def test_a_restart_remembers_that_a_buffer_was_given_away(kept, given):
    kept.run_as(ALICE, publish, mode=0o666)

    def create(pipe, path):
        w = Wire(path)
        pipe.send(w.create("m", LAYOUT).writer)
        pipe.recv()

    def go_on(w, writer):
        assert w.resume(writer) == 0
        return w.publish(writer)

    with Child(create, kept.daemon.socket, uid=ALICE) as child:
        writer = child.hear()
        if given:
            kept.watcher.access("m", uid=MALLORY)
        kept.restart()
        if given:
            assert kept.run_as(ALICE, refused, go_on, writer) == GIVEN
        else:
            assert kept.run_as(ALICE, go_on, writer) == 2


@pytest.mark.parametrize("image", [False, True], ids=["flat", "image"])
def test_a_create_is_sent_again_with_its_owner(kept, image):
    """Its answer was lost with weightd. Without the owner, or with another one, it is another request."""
    kept.run_as(MALLORY, publish, mode=0o666)

    def ask(w, **kw):
        if image:
            return w.create_image("m", LAYOUT, HEADER, cookie=77, flags=wire.NEW_LAYOUT, **kw)
        return w.create("m", LAYOUT, cookie=77, **kw)

    def create(pipe, path):
        w = Wire(path, features=wire.IMAGES)
        pipe.send(ask(w, owner=MALLORY).writer)
        pipe.recv()

    def go_on(w):
        assert refused(w, ask)[0] == refused(w, ask, owner=ALICE)[0] == errno.EPERM
        slot = ask(w, owner=MALLORY)
        assert slot.writer == writer, "the one there is"
        return w.publish(writer, wire.fill_image(slot, b"file") if image else wire.fill(slot, b"flat"))

    with Child(create, kept.daemon.socket, uid=ALICE) as child:
        writer = child.hear()
        kept.restart()
        assert kept.run_as(ALICE, go_on, features=wire.IMAGES) == 2


# --- Attaching ---------------------------------------------------------------------------------------


def test_an_attach_returns_no_other_users_bytes(scene):
    for user in ALICE, MALLORY, 0:
        assert scene.run_as(user, content, owner=MALLORY) == (1, b"evil")
        for wanted in {ALICE, 0}:
            assert scene.run_as(user, refused, Wire.attach, "llama-8b", owner=wanted) == (
                errno.EPERM, f"'llama-8b' on host belongs to uid {MALLORY}, not to uid {wanted} as demanded; use another name, or "
                             "have an administrator remove it (weightctl rm) or give it away (weightctl chown)")
    assert {r.n_leases for r in scene.watcher.records().values()} == {0}


def test_an_attach_learns_of_the_owner_before_it_waits_for_a_version(scene):
    with Wire(scene.daemon.socket) as w:
        slot = w.create("empty", LAYOUT)
        assert refusal(scene.watcher.attach, "empty", owner=ALICE) == errno.EPERM
        assert refusal(scene.watcher.attach, "empty", owner=0) == errno.ENODATA
        assert refusal(scene.watcher.attach, "llama-8b", version=7, owner=ALICE) == errno.EPERM
        assert refusal(scene.watcher.attach, "none", owner=ALICE) == errno.ENOENT
        w.abort(slot.writer)


def test_who_may_not_read_is_told_that(scene):
    scene.watcher.access("llama-8b", mode=0o600)
    assert scene.run_as(ALICE, refused, Wire.attach, "llama-8b", owner=MALLORY)[0] == errno.EACCES


def test_a_lease_has_the_owner_for_clients_that_take_it(scene):
    """An older libweightd takes anything but zero there for an invalid reply."""
    with Wire(scene.daemon.socket, features=wire.WITH_OWNERS) as w, Wire(scene.daemon.socket) as older:
        assert w.attach("llama-8b").uid == MALLORY and older.attach("llama-8b").uid == 0
        scene.watcher.access("llama-8b", uid=ALICE)
        assert w.attach("llama-8b").uid == ALICE
        assert refusal(w.attach, "llama-8b", owner=MALLORY) == errno.EPERM


# --- Files beside the weights ------------------------------------------------------------------------


def test_files_are_those_of_the_version_that_is_held(scene):
    """A reader that demanded the owner must not get the files of a stranger that was fast with the name."""
    def made(w, pattern, files):
        slot = w.create("m", LAYOUT, mode=0o666)
        w.set_files(slot.writer, files)
        return w.publish(slot.writer, wire.fill(slot, pattern))

    def read(fd):
        return os.pread(fd, 64, 0)

    scene.run_as(ALICE, made, b"good", b"files of alice")
    reader = scene.connect()
    lease = reader.attach("m", owner=ALICE)
    assert read(reader.files("m", 1)[1]) == b"files of alice"
    scene.run_as(ALICE, Wire.drop, "m")
    scene.run_as(MALLORY, made, b"evil", b"files of mallory")
    assert read(reader.files("m", 1)[1]) == b"files of alice"
    assert read(scene.watcher.files("m", 1)[1]) == b"files of mallory"
    now = reader.attach("m")
    assert read(reader.files("m", 1)[1]) == b"files of mallory", "the one that exists, if it holds both"
    reader.detach(now.lease)
    reader.detach(lease.lease)
    assert read(reader.files("m", 1)[1]) == b"files of mallory"

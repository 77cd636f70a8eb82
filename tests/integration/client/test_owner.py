"""Owners of buffers, as libweightd names them to the server and returns them."""
import ctypes
import errno

import pytest
from lib import features, wire
from lib.child import run_as
from lib.fake_server import PATIENCE_S, FakeServer, Memory, later
from lib.safetensors_file import pack
from lib.scene import Scene

features.require("library")
from lib.native import READY, Client, Failed, Location, lib  # noqa: E402

MALLORY, ALICE = 12345, 12346
LATEST = wire.SURVIVES | wire.LAYOUTS | wire.WITH_OWNERS


def uid(number):
    return ctypes.pointer(ctypes.c_uint32(number))


def failure(act, *args, **kw):
    with pytest.raises(Failed) as failed:
        act(*args, **kw)
    return failed.value.errno, failed.value.sentence


def publish_as(user, path, *args, **kw):
    def act():
        with Client(path) as client:
            return client.publish(*args, **kw)

    return run_as(user, act)


@pytest.fixture
def path(make_daemon, require):
    """MALLORY was first with the name 'm', and lets everybody read and write; its tensor is larger than others'."""
    require("root")
    with Scene(make_daemon("--socket-mode", "0666")) as scene:
        publish_as(MALLORY, scene.daemon.socket, "m", b"evil" * 2048, mode=0o666)
        yield scene.daemon.socket


NOT_MINE = f"'m' on host belongs to uid {MALLORY}, not to uid 0; name uid {MALLORY} as its owner (--owner) to publish in that " \
    "user's buffer, or use another name"


@pytest.mark.parametrize("options", [dict(), dict(new_layout=True), dict(exclusive=True), dict(replace=True)], ids=str)
@pytest.mark.parametrize("size", [8192, 4096], ids=["its tensors", "other tensors"])
def test_a_strangers_buffer_is_refused_before_its_tensors_are_compared(path, size, options):
    with Client(path) as client:
        assert failure(client.publish, "m", b"good" * (size // 4), **options) == (errno.EPERM, NOT_MINE)
        with client.attach("m") as b:
            assert (b.version, b.bytes()[:4]) == (1, b"evil")


def test_tensors_are_compared_once_the_owner_is_named(path):
    with Client(path) as client:
        number, sentence = failure(client.publish, "m", b"good" * 1024, owner=uid(MALLORY))
        assert number == errno.EPROTOTYPE and "other type or shape: 't'" in sentence


def test_a_version_in_another_users_buffer_is_a_file_as_well(path):
    with Client(path) as client:
        with client.create("m", 8192, owner=uid(MALLORY)) as writer:
            location = Location()
            client.check(lib.weightd_writer_location(writer.handle, ctypes.byref(location)))
            writer.write(b"good" * 2048)
            assert location.data_offset and writer.publish() == 2
        with client.attach("m", owner=uid(MALLORY)) as b:
            assert (b.version, b.bytes()[:4], client.owner_of(b)) == (2, b"good", MALLORY)


def test_a_load_names_the_owner(path, tmp_path):
    file = tmp_path / "m.safetensors"
    file.write_bytes(pack({"t": ("U8", [8192], b"good" * 2048)}))
    with Client(path) as client:
        assert failure(client.load, "m", file) == (errno.EPERM, NOT_MINE)
        client.load("m", file, owner=uid(MALLORY))
        with client.attach("m") as b:
            assert (b.version, b.bytes()[:4]) == (2, b"good")


def test_an_owner_is_demanded_of_later_versions_too(path):
    """An administrator gives the buffer to another user; who asked for nobody goes on, and is told."""
    with Client(path) as client:
        assert failure(client.attach, "m", owner=uid(0))[0] == errno.EPERM
        with client.attach("m", owner=uid(MALLORY)) as strict, client.attach("m") as any_:
            client.publish("m", b"next" * 2048, owner=uid(MALLORY))
            assert lib.weightd_buffer_swap(strict.handle) == 1 and strict.version == 2
            client.set_access("m", uid=ALICE)
            client.publish("m", b"more" * 2048, owner=uid(ALICE))
            for function in lib.weightd_buffer_swap, lambda b: lib.weightd_buffer_refresh(b, ctypes.byref(ctypes.c_void_p())):
                assert function(strict.handle) == -errno.EPERM
            assert (strict.version, strict.bytes()[:4], client.owner_of(strict)) == (2, b"next", MALLORY)
            assert client.owner_of(any_) == MALLORY
            assert lib.weightd_buffer_swap(any_.handle) == 1
            assert (any_.bytes()[:4], client.owner_of(any_)) == (b"more", ALICE)


def test_a_buffer_that_slept_demands_its_owner_again(path):
    with Client(path) as client, client.attach("m", owner=uid(MALLORY)) as b:
        b.release()
        assert b.reacquire() == 0 and b.bytes()[:4] == b"evil"
        b.release()
        client.publish("m", b"next" * 2048, owner=uid(MALLORY))
        client.drop("m", 1)
        assert b.reacquire() == 1 and (b.version, b.bytes()[:4]) == (2, b"next")
        b.release()
        client.set_access("m", uid=ALICE)
        assert failure(b.reacquire) == (
            errno.EPERM, f"'m' on host belongs to uid {ALICE}, not to uid {MALLORY} as demanded; use another name, or have an "
                         "administrator remove it (weightctl rm) or give it away (weightctl chown)")


# --- Older servers -----------------------------------------------------------------------------------


@pytest.fixture
def meet(tmp_path):
    """meet(features): a client, its server and the server's end of the connection."""
    ends = []

    def made(features=LATEST):
        server = FakeServer(tmp_path / "w.sock", features=features)
        connecting = later(Client, server.path)
        peer = server.accept()
        client = connecting.result(PATIENCE_S)
        ends[:] = client, server
        return client, server, peer

    yield made
    for end in ends:
        getattr(end, "close", getattr(end, "stop", None))()


def test_an_older_server_is_not_asked_for_an_owner(meet):
    client, _, peer = meet(wire.LAYOUTS)
    for act in client.attach, client.publish:
        number, sentence = failure(act, "m", *([b"data"] if act == client.publish else []), owner=uid(0))
        assert number == errno.EOPNOTSUPP and "is too old to check the owner of a buffer" in sentence
    assert peer.is_silent(), "it was not even asked without"


def test_an_older_server_does_not_tell_the_owner(meet):
    client, _, peer = meet(wire.LAYOUTS)
    with Memory() as memory:
        memory.flip(1, READY)
        attaching = later(client.attach, "m")
        peer.request(wire.ATTACH)
        peer.give_lease(memory.version(1))
        b = attaching.result(PATIENCE_S)
        assert failure(client.owner_of, b)[0] == errno.EOPNOTSUPP
        peer.close()


@pytest.mark.parametrize("act, op", [("attach", wire.ATTACH), ("publish", wire.CREATE_OWNED)])
def test_a_server_that_comes_back_older_is_not_asked_again(meet, act, op):
    client, server, peer = meet()
    asked = later(getattr(client, act), "m", *([b"data"] if act == "publish" else []), owner=uid(7))
    values = peer.request(op).values
    assert values[-2] == 7
    server.features = wire.SURVIVES | wire.LAYOUTS
    peer = server.restart(peer)
    with pytest.raises(Failed) as failed:
        asked.result(PATIENCE_S)
    assert failed.value.errno == errno.ECONNABORTED and "was restarted as an earlier release" in failed.value.sentence
    assert peer.is_silent()


@pytest.mark.parametrize("act, op", [("attach", wire.ATTACH), ("publish", wire.CREATE_OWNED)])
def test_a_request_is_sent_again_with_its_owner(meet, act, op):
    client, server, peer = meet()
    asked = later(getattr(client, act), "m", *([b"data"] if act == "publish" else []), owner=uid(7))
    first = peer.request(op).values
    peer = server.restart(peer)
    assert peer.request(op).values == first
    peer.fail(errno.EPERM, "it is another user's")
    with pytest.raises(Failed, match="it is another user's"):
        asked.result(PATIENCE_S)

"""
From the release before versions were files to this one, and back, under a keeper and under readers that stay: programs
keep the library that they began with, whatever weightd is at the other end.
"""
import contextlib
import hashlib
import json
import os
import shutil
import signal
import struct

import pytest
from lib import earlier, features
from lib.earlier import Client, Refused
from lib.wire import IMAGES, Wire, until

KEEP = 8
SHAPES = {"b": (3,), "a": (64, 100), "c": ()}


@pytest.fixture(scope="module", autouse=True)
def needs_the_earlier_release():
    earlier.require()


class Scene:
    """A weightd under a keeper, whose program is a file of the test's."""

    def __init__(self, make_daemon, folder):
        self.path = folder / "weightd"
        shutil.copy(earlier.program("weightd"), self.path)
        self.daemon = make_daemon("--keeper", program=self.path)

    def become(self, program):
        """As a package and `kill -HUP` do it."""
        before = self.pid()
        new = self.path.with_name("weightd.new")
        shutil.copy(program, new)
        new.rename(self.path)
        ended = os.pidfd_open(before)
        os.kill(self.daemon.pid, signal.SIGHUP)
        with contextlib.closing(os.fdopen(ended, closefd=True)):
            until(lambda: self.daemon.is_serving() and self.pid() != before, "another weightd serves")

    def upgrade(self):
        self.become(features.BUILD / "weightd")

    def downgrade(self):
        self.become(earlier.program("weightd"))

    def pid(self):
        return json.loads(self.daemon.ctl("ping", "--json").stdout)["pid"]

    def versions(self, name):
        """Digests of those that are served, by number."""
        shown = json.loads(self.daemon.ctl("show", "--json", name).stdout)
        return {v["version"]: v["digest"] for v in shown["versions"]}


@pytest.fixture
def scene(make_daemon, tmp_path, monkeypatch):
    s = Scene(make_daemon, tmp_path)
    monkeypatch.setenv("WEIGHTD_SOCKET", s.daemon.socket)
    return s


@pytest.fixture
def client(scene):
    with Client(scene.daemon) as c:
        yield c


def publish(name, seed):
    """The same tensors as those of the earlier client, by this library."""
    import weightd
    layout = weightd.Layout(0)
    for tensor, shape in SHAPES.items():
        layout.add(tensor, "F32", shape)
    with weightd.create(name, layout, keep=KEEP) as writer:
        for tensor in writer:
            view = writer[tensor].memoryview().cast("B")
            view[:] = bytes([seed]) * len(view)
        return writer.publish()


def has(buffer, seed):
    return all(bytes(buffer[tensor].memoryview().cast("B")).strip(bytes([seed])) == b"" for tensor in SHAPES)


def is_file(scene, name):
    """The newest version is a safetensors file from its first byte to its last."""
    with Wire(scene.daemon.socket, features=IMAGES) as w:
        lease = w.attach(name)
        (size,) = struct.unpack("<Q", os.pread(lease.slot_fd, 8, 0))
        if size > lease.slot_size:
            return False
        header = json.loads(os.pread(lease.slot_fd, size, 8))
        header.pop("__metadata__")
        return header.keys() == SHAPES.keys() and os.fstat(lease.slot_fd).st_size == 8 + size + lease.data_size


def test_old_versions_serve_on_and_new_ones_are_files(scene, client):
    import weightd
    for seed in (1, 2):
        client.publish("m", seed, KEEP)
    assert [client.attach("m@1"), client.attach("m")] == [1, 2]
    first, second = client.read("m@1"), client.read("m")
    before = scene.versions("m")

    scene.upgrade()

    assert scene.versions("m") == before and set(before) == {1, 2}
    assert [client.read("m@1"), client.read("m")] == [first, second] and first != second
    assert client.swap("m@1") == 2 and client.read("m@1") == second
    client.verify("m")
    for version in (1, 2):
        earlier.ctl(scene.daemon, "verify", f"m@{version}")
        scene.daemon.ctl("verify", f"m@{version}")
        with weightd.attach(f"m@{version}") as buffer:
            assert has(buffer, version)

    assert client.publish("m", 3, KEEP) == 3, "an old program goes on publishing"
    assert client.swap("m") == 3
    third = client.read("m")
    with weightd.attach("m") as buffer:
        assert buffer.version == 3 and has(buffer, 3)
        assert publish("m", 4) == 4 and is_file(scene, "m")
        with pytest.raises(weightd.LayoutMismatch, match="attach"):
            buffer.swap()
        assert has(buffer, 3)

    assert client.wait("m", 3) == 4, "an old reader is told"
    for ask, name in ((client.swap, "m"), (client.attach, "m"), (client.attach, "m@4")):
        with pytest.raises(Refused, match="restart"):
            ask(name)
    assert client.read("m") == third and client.attach("m@3") == 3
    done = earlier.ctl(scene.daemon, "verify", "m", check=False)
    assert done.returncode == 1 and "restart" in done.stderr, done
    scene.daemon.ctl("verify", "m")
    assert publish("m", 5) == 5 and is_file(scene, "m")


def test_what_was_made_since_is_kept_by_the_release_before(scene, client):
    import weightd
    client.publish("old", 1, KEEP)
    client.publish("both", 1, KEEP)
    scene.upgrade()
    assert [publish("both", 2), publish("new", 7)] == [2, 1]
    made = {name: scene.versions(name) for name in ("old", "both", "new")}
    assert all(digest for versions in made.values() for digest in versions.values())
    with weightd.attach("both") as reader:
        scene.downgrade()
        kept = "has format 3 and this weightd supports 2: it is kept and not served; start the release that wrote it"
        assert scene.daemon.log.count(kept) == 2
        assert [row["name"] for row in json.loads(earlier.ctl(scene.daemon, "ls", "--json").stdout)["buffers"]] == ["old"]
        assert client.publish("old", 2, KEEP) == 2
        assert has(reader, 2)

        scene.upgrade()

        assert has(reader, 2)
    assert {name: scene.versions(name) for name in ("both", "new")} == {name: made[name] for name in ("both", "new")}
    assert scene.versions("old").keys() == {1, 2}
    for name in ("old@2", "both@1", "both@2", "new@1"):
        scene.daemon.ctl("verify", name)
    assert is_file(scene, "both") and is_file(scene, "new")
    with weightd.attach("new") as buffer:
        assert has(buffer, 7)

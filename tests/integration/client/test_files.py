"""Files beside weights: bundles of a hostile writer, an older server, and a server that dies."""
import errno
import json
import os
import signal
import struct

import pytest
from lib import wire
from lib.fake_server import PATIENCE_S, FakeServer, later
from lib.python_package import layout_of
from lib.wire import IMAGES, Wire


def bundle(entries=(), metadata=None, data=b"", text=None):
    header = {"__metadata__": metadata} if metadata is not None else {}
    header |= {path: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]} for path, begin, end in entries}
    text = json.dumps(header).encode() if text is None else text
    return struct.pack("<Q", len(text)) + text + data


HOSTILE = {
    "leaves the directory": (bundle([("../../etc/cron.d/x", 0, 1)], data=b"x"), "'../../etc/cron.d/x' cannot be the path"),
    "is absolute": (bundle([("/etc/x", 0, 0)]), "'/etc/x' cannot be the path"),
    "moves a cursor": (bundle([("a\x1b[2J", 0, 0)]), r"'a\x1b[2J' cannot be the path"),
    "is a folder of another": (bundle([("a", 0, 0), ("a/b", 0, 0)]), "one is a folder of the other"),
    "takes the place of the weights": (bundle([("model.safetensors", 0, 0)]), "that path is not free"),
    "leads the weights away": (bundle(metadata={"weights": "../x"}), "'../x' cannot be the path"),
    "is there twice": (bundle(text=b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
                                   b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "'a' is in its header twice"),
    "is too large": (bundle([("a", 0, 2**26 + 1)], data=b"x" * (2**26 + 1)), "more than 67108864 bytes"),
    "ends early": (bundle([("a", 0, 9)], data=b"x"), "it is cut off"),
    "is no bundle": (b"\xff" * 100, "is it safetensors?"),
    "has a header of no end": (struct.pack("<Q", 20 << 20) + b"{}" + b" " * (20 << 20), "its header has more than"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_bundle_is_refused_by_the_reader_in_a_sentence(weightd, daemon, what):
    data, said = HOSTILE[what]
    with Wire(daemon.socket, features=IMAGES) as writer:
        slot = writer.create("m", wire.image([("t", 64)]))
        writer.set_files(slot.writer, data)
        writer.publish(slot.writer)
        writer.detach(slot.writer)
    with pytest.raises(weightd.Error) as refused:
        weightd.files("m")
    assert refused.value.errno == errno.EBADMSG
    assert str(refused.value).startswith("the files of 'm@1' on host cannot be used: ") and said in str(refused.value)
    for args in (("files", "m"), ("cat", "m", "--file", "a")):
        done = daemon.ctl(*args, check=False)
        assert done.returncode == 1 and said in done.stderr and "\x1b" not in done.stderr
    assert "VERSION" in daemon.ctl("show", "m").stdout
    with pytest.raises(weightd.Error):
        weightd.attach("m", require={"a": "b"})
    assert weightd.ls("m")[0].n_readers == 0
    assert len(weightd.attach("m")) == 1


def test_older_server_is_not_asked_for_files(tmp_path):
    import weightd
    path = str(tmp_path / "old.sock")
    with FakeServer(path) as server:
        asked = later(weightd.files, "m", socket=path)
        peer = server.accept()
        with pytest.raises(weightd.Error, match="is too old to keep files beside weights") as refused:
            asked.result(PATIENCE_S)
        assert refused.value.errno == errno.EOPNOTSUPP and peer.is_silent()


def test_load_to_an_older_server_leaves_the_files_out_with_a_note(daemon, tmp_path):
    text = json.dumps({"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    (tmp_path / "model/config.json").write_text("{}")
    with FakeServer(tmp_path / "old.sock") as server:
        asked = later(daemon.ctl, "load", "m", tmp_path / "model", "--quiet", "--socket", server.path, check=False)
        server.accept()
        peer = server.accept()
        while (request := peer.request()).op != wire.CREATE:
            peer.page()
        peer.fail(errno.ENOMEM)
        done = asked.result(PATIENCE_S)
    assert request.op == wire.CREATE
    first, second = done.stderr.splitlines()
    assert "is too old to keep files beside weights" in first and "the test says no" in second


def test_files_of_a_writer_survive_the_server(weightd, make_daemon, monkeypatch):
    monkeypatch.setenv("WEIGHTD_SOCKET", make_daemon("--keeper").socket)
    with weightd.create("m", layout_of(weightd)) as writer:
        writer.files = {"a.json": b"1"}
        os.kill(weightd.ping().pid, signal.SIGKILL)
        assert dict(writer.files) == {"a.json": b"1"}
        writer.attributes = {"x": "y"}
        os.kill(weightd.ping().pid, signal.SIGKILL)
        writer.publish()
    os.kill(weightd.ping().pid, signal.SIGKILL)
    assert dict(weightd.files("m")) == {"a.json": b"1"} and weightd.files("m").attributes == {"x": "y"}

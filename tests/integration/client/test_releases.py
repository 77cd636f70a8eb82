"""Errors about two releases name both, and the files that they run from."""
import errno
import re

import pytest
from lib import features, wire
from lib.fake_server import PATIENCE_S, FakeServer, later

LIBRARY = re.escape(str((features.LIBRARY.with_name("libweightd.so.0")).resolve()))
RELEASE = r"\d+\.\d+\.\d+"


@pytest.fixture
def weightd():
    import weightd
    return weightd


def test_a_weightd_that_is_too_old_is_named_with_the_release_to_install(weightd, tmp_path):
    with FakeServer(tmp_path / "w.sock") as server:
        asked = later(weightd.health, socket=server.path)
        server.accept()
        with pytest.raises(weightd.Error) as failed:
            asked.result(PATIENCE_S)
    assert failed.value.errno == errno.EOPNOTSUPP
    assert re.search(rf"weightd {RELEASE} at {server.path} is too old to report its health: install the release of libweightd, "
                     rf"{RELEASE} \({LIBRARY}\)", str(failed.value))


def test_another_protocol_is_refused_with_the_file_of_weightd(daemon):
    with wire.Wire(daemon.socket, greet=False) as w, pytest.raises(wire.Refused) as refused:
        w.hello(version=2)
    assert refused.value.errno == errno.EPROTONOSUPPORT
    program = re.escape(str((features.BUILD / "weightd").resolve()))
    assert re.match(rf"weightd {RELEASE} \({program}\) speaks version 1 of the protocol, the client version 2; ", refused.value.sentence)


def test_a_client_of_another_protocol_adds_its_own_file(weightd, tmp_path):
    with FakeServer(tmp_path / "w.sock") as server:
        asked = later(weightd.ping, socket=server.path)
        peer = server.accept(greet=False)
        peer.request(wire.HELLO)
        peer.fail(errno.EPROTONOSUPPORT, "weightd 9.0.0 (/opt/weightd) speaks version 2 of the protocol")
        with pytest.raises(weightd.Error) as failed:
            asked.result(PATIENCE_S)
    assert re.search(rf"/opt/weightd\) speaks version 2 of the protocol; libweightd is {RELEASE} \({LIBRARY}\)", str(failed.value))


def test_a_first_reply_that_the_library_cannot_read_shows_no_release(weightd, tmp_path):
    with FakeServer(tmp_path / "w.sock") as server:
        asked = later(weightd.ping, socket=server.path)
        peer = server.accept(greet=False)
        peer.request(wire.HELLO)
        peer.reply("Q", 1)
        with pytest.raises(weightd.Error) as failed:
            asked.result(PATIENCE_S)
    assert f"weightd at {server.path} sent an invalid reply" in str(failed.value)


def test_a_reply_that_the_library_cannot_read_is_a_matter_of_both(weightd, tmp_path):
    with FakeServer(tmp_path / "w.sock") as server:
        asked = later(weightd.ping, socket=server.path)
        peer = server.accept()
        peer.request(wire.PING)
        peer.reply("Q", 1)  # shorter than any
        with pytest.raises(weightd.Error) as failed:
            asked.result(PATIENCE_S)
    assert re.search(rf"weightd {RELEASE} at {server.path} sent an invalid reply: use the release of libweightd, {RELEASE} \({LIBRARY}\)",
                     str(failed.value)), str(failed.value)

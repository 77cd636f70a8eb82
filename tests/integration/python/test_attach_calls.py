"""Calls of the library and requests that an attach takes."""
import errno
import gc

import pytest
import weightd
from lib.fake_server import PATIENCE_S, FakeServer, Memory, later
from lib import wire
from weightd import _abi, _connection


@pytest.fixture
def calls(monkeypatch):
    """The names of the functions of the library that were called since."""
    made = []
    gc.collect()  # garbage of other tests would free itself meanwhile

    def counted(name, function):
        def call(*args):
            made.append(name.removeprefix("weightd_"))
            return function(*args)
        return call

    for name in _abi.FUNCTIONS:
        if name not in ("weightd_close", "weightd_detach"):  # finalizers of other tests
            monkeypatch.setattr(_abi.lib, name, counted(name, getattr(_abi.lib, name)))
    return made


@pytest.fixture
def published(daemon, monkeypatch):
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    layout = weightd.Layout()
    for i in range(1000):
        layout.add(f"t{i}", "F32", (16,))
    with weightd.create("m", layout) as writer:
        writer["t7"].numpy()[:] = 7
        writer.publish()
    _connection._shared.clear()
    return daemon


def test_an_attach_is_one_call_whatever_the_number_of_tensors(published, calls):
    with weightd.attach("m") as first:
        assert calls == ["new", "attach"]  # the first one of the process makes the connection
        with weightd.attach("m") as second:
            assert calls == ["new", "attach", "attach"]
            assert (second.name, second.version, len(second), second.owner) == ("m", 1, 1000, first.owner)
            assert second.location == weightd.Location("host", None, None, second.location.data_offset)
            assert second.digest == first.digest and not second.is_mutable
        assert calls == ["new", "attach", "attach"]
        assert first["t7"].numpy()[0] == 7


def test_a_swap_reads_the_facts_in_one_call(published, calls):
    with weightd.attach("m") as buffer:
        layout = buffer.layout()
        with weightd.create("m", layout) as writer:
            writer.publish()
        del calls[:]
        assert buffer.swap() and buffer.version == 2
        assert calls == ["buffer_swap_on", "buffer_attached"]


def test_the_first_attach_of_a_process_is_one_packet_each_way(tmp_path):
    with FakeServer(tmp_path / "socket") as server, Memory() as memory:
        memory.flip(1, 1)
        attaching = later(weightd.attach, "m", socket=server.path)
        peer = server.accept(greet=False)
        peer.request(wire.HELLO_ATTACH)
        assert peer.is_silent()
        peer.give_lease(memory.version(1, b"abcd"), instance=1, features=0)
        buffer = attaching.result(PATIENCE_S)
        assert bytes(buffer.read(0, 4)) == b"abcd" and peer.is_silent()
        _connection._shared.pop(server.path)
        closing = later(buffer.close)
        del buffer, attaching
        peer.close()
        closing.result(PATIENCE_S)


def test_errors_of_the_socket_and_of_the_buffer_differ(published, tmp_path):
    with pytest.raises(weightd.Disconnected) as e:
        weightd.attach("m", socket=str(tmp_path / "none"))
    assert e.value.errno == errno.ENOENT
    with pytest.raises(weightd.NotFound):
        weightd.attach("none")
    with pytest.raises(weightd.Error, match="1 to 127 bytes"):
        weightd.attach("x" * 200)
    with pytest.raises(weightd.Disconnected):
        weightd.ls(socket=str(tmp_path / "none"))
    assert [row.name for row in weightd.ls()] == ["m"]


def test_a_connection_that_an_attach_made_serves_other_calls_and_its_server_is_remembered(published, calls, monkeypatch):
    with weightd.attach("m"):
        monkeypatch.delenv("WEIGHTD_SOCKET")
        connection = next(iter(_connection._shared.values()))
        assert connection.socket() == published.socket
        del calls[:]
        monkeypatch.setenv("WEIGHTD_SOCKET", published.socket)
        assert weightd.ping().n_leases == 1
        assert "connect" not in calls and "new" not in calls

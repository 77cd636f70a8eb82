"""Readers that give their memory back for a while."""
import pytest
from lib.cuda_scene import make_scene, one  # noqa: F401


@pytest.mark.parametrize("device", ["host", "cuda:0"])
def test_a_buffer_that_slept_has_its_bytes_at_its_address_again(one, device):
    one.run(f"""
        publish("m", DATA, {device!r})
        buffer = attach("m", {device!r})
        address = buffer.address
        assert buffer.reacquire() == 0
        buffer.release()
        buffer.release(None)
        for act in buffer.read, buffer.verify, buffer.swap, buffer.pause, buffer.read_begin:
            assert refused(act).errno == errno.EADDRNOTAVAIL, act
        assert (buffer.address, buffer.version, buffer.state()) == (address, 1, (1, 1))
        assert buffer.refresh() is None and client.stat().slot_bytes > 0
        assert buffer.reacquire() == 0
        assert (buffer.address, buffer.version) == (address, 1)
        assert buffer.read()[:len(DATA)] == DATA
        buffer.verify()
        publish("m", OTHER, {device!r})
        assert buffer.swap() == 1 and buffer.read()[:len(DATA)] == OTHER
        buffer.release()
        buffer.detach()
    """)


@pytest.mark.parametrize("device", ["host", "cuda:0"])
def test_a_sleeper_wakes_with_the_current_version_when_its_own_is_gone(one, device):
    one.run(f"""
        publish("m", DATA, {device!r}, keep=1)
        buffer, other = attach("m", {device!r}), attach("m", {device!r})
        address = buffer.address
        buffer.release()
        other.release()
        publish("m", OTHER, {device!r})
        with buffer.refresh() as new:
            assert new.version == 2
        assert buffer.wait(1) == 2
        assert buffer.reacquire() == 1
        assert (buffer.address, buffer.version) == (address, 2)
        assert buffer.read()[:len(DATA)] == OTHER
        buffer.verify()
        publish("m", OTHER[1:], {device!r}, new_layout=True)
        e = refused(other.reacquire)
        assert e.errno == errno.EPROTOTYPE, e
        client.drop("m", device={device!r})
        e = refused(other.reacquire)
        assert e.errno == errno.ESTALE and "removed" in e.sentence, e
        assert buffer.read()[:len(DATA)] == OTHER
    """)


def test_sleeping_frees_the_gpu(one):
    one.run("""
        context()
        publish("other", DATA)  # the context of weightd-cuda is there now, for a while
        before = free()
        publish("m", DATA)
        buffer = attach("m")
        buffer.release()
        assert free() < before
        client.drop("m", device="cuda:0")
        while free() < before:
            look()
        assert refused(buffer.reacquire).errno == errno.ESTALE
    """)


def test_giving_back_waits_for_the_stream(one):
    one.run("""
        context()
        publish("m", DATA)
        buffer, s, to = attach("m"), stream(), pinned(100)
        with gate():
            copy(to, buffer.address, 100, s)
            released = later(buffer.release, s)
            look()
        released.result(60)
        wait(s)
        assert to.raw == DATA[:100]
        e = refused(attach("m").release, ctypes.c_void_p(0x10))
        assert e.errno == errno.EIO and "cannot be released" in e.sentence, e
    """)


def test_a_wake_that_fails_can_be_tried_again(one):
    one.run("""
        publish("m", DATA)
        buffer = attach("m")
        buffer.release()
        for symbol in "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess":
            fail(symbol, OUT_OF_MEMORY)
            e = refused(buffer.reacquire)
            assert e.errno == errno.ENOMEM and "OUT_OF_MEMORY" in e.sentence, e
            assert refused(buffer.read).errno == errno.EADDRNOTAVAIL
        assert buffer.reacquire() == 0 and buffer.read()[:len(DATA)] == DATA
    """)


def test_a_sleeper_finds_a_server_that_was_started_again(make_scene):
    scene = make_scene("--keeper")
    for device in "host", "cuda:0":
        scene.run(f"""
            import signal
            publish("m", DATA, {device!r})
            buffer = attach("m", {device!r})
            address = buffer.address
            buffer.release()
            os.kill(client.ping().pid, signal.SIGKILL)
            assert buffer.reacquire() == 0
            assert buffer.address == address and buffer.read()[:len(DATA)] == DATA
            buffer.release()
            os.kill(client.ping().pid, signal.SIGKILL)
            buffer.detach()
            client.ping()
        """)

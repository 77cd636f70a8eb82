"""Readers of an exclusive buffer that an update did not wait for: they get an error, also across a restart."""
import errno
import os
import signal

import pytest
from lib.native import READY, Client, Failed
from lib.wire import until

EVICT = 1
SIZE = 4096


@pytest.fixture
def kept(make_daemon):
    return make_daemon("--keeper")


def update(client, byte, **options):
    return client.publish("x", bytes([byte]) * SIZE, exclusive=True, **options)


def kill(client):
    before = client.ping()
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: client.ping().instance != before.instance, "it was started again")


def assert_hears_of_it(reader):
    with pytest.raises(Failed) as e:
        reader.pause()
    assert e.value.errno == errno.EUCLEAN and "did not pause" in e.value.sentence


def test_a_reader_that_had_not_come_back_after_a_restart(kept):
    with Client(kept.socket) as writer, Client(kept.socket) as other:
        update(writer, 1)
        with other.attach("x") as reader:
            kill(writer)
            assert update(writer, 2, policy=EVICT, pause_timeout_ms=1) == 2
            assert_hears_of_it(reader)
        with other.attach("x") as reader:
            assert reader.pause() == 0 and reader.bytes() == b"\2" * SIZE


def test_a_reader_that_was_evicted_before_a_restart(kept):
    with Client(kept.socket) as writer, Client(kept.socket) as other:
        update(writer, 1)
        with other.attach("x") as reader:
            assert update(writer, 2, policy=EVICT, pause_timeout_ms=1) == 2
            kill(writer)
            assert_hears_of_it(reader)


def test_a_reader_that_has_the_latest_goes_on_after_a_restart(kept):
    with Client(kept.socket) as writer, Client(kept.socket) as other:
        update(writer, 1)
        with other.attach("x"):
            assert update(writer, 2, policy=EVICT, pause_timeout_ms=1) == 2
            with other.attach("x") as reader:
                kill(writer)
                assert reader.pause() == 0 and reader.state() == (READY, 2)
                assert reader.bytes() == b"\2" * SIZE

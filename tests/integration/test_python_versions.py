"""The Python package: versions, users, memory and events."""
import errno
import os
import signal
import subprocess
import sys
import threading
import time

import features
import pytest
from integration.package import MANY_KINDS, publish


# --- Versions ----------------------------------------------------------------------------------------


def test_refresh_attaches_the_newest_version_beside(weightd):
    publish(weightd, fill=1)
    old = weightd.attach("m")
    assert old.refresh() is None and old.latest() == 1
    publish(weightd, fill=2)
    new = old.refresh()
    assert (old.latest(), old.version, new.version) == (2, 1, 2)
    assert old["t0"].memoryview()[0] == 1 and new["t0"].memoryview()[0] == 2
    assert weightd.attach("m", version=1).version == 1


def test_wait_returns_when_another_thread_publishes(weightd):
    publish(weightd)
    buffer, found = weightd.attach("m"), []
    waits = (lambda: buffer.wait(timeout=30), lambda: weightd.wait("m", 2, timeout=30),
             lambda: weightd.attach("m", version=2, timeout=30).version,
             lambda: weightd.attach("new", timeout=None).version)
    threads = [threading.Thread(target=lambda wait=wait: found.append(wait())) for wait in waits]
    for thread in threads:
        thread.start()
    publish(weightd)
    publish(weightd, "new")
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [1, 2, 2, 2]
    assert buffer.wait(newer_than=0) == 2


@pytest.mark.parametrize("wait", [
    lambda weightd: weightd.attach("m").wait(timeout=0.01),
    lambda weightd: weightd.wait("m", 2, timeout=0),
    lambda weightd: weightd.wait("nothing", timeout=0.3),
    lambda weightd: weightd.attach("nothing", timeout=0.01)])
def test_waits_end_at_their_deadline(weightd, wait):
    publish(weightd)
    start = time.monotonic()
    with pytest.raises(TimeoutError) as e:
        wait(weightd)
    assert isinstance(e.value, weightd.Timeout) and str(e.value) and time.monotonic() - start < 5


@pytest.mark.parametrize("wait", ['weightd.attach("m").wait()', 'weightd.wait("n")'])
def test_ctrl_c_ends_a_wait(weightd, daemon, wait):
    publish(weightd)
    code = f"import weightd; print('up', flush=True); {wait}"
    env = daemon.env | {"PYTHONPATH": str(features.ROOT / "libclient/python")}
    with subprocess.Popen([sys.executable, "-c", code], env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as proc:
        assert proc.stdout.readline() == "up\n"
        time.sleep(0.1)  # into the wait; nothing tells when
        proc.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in proc.communicate(timeout=10)[1]


def test_drop_is_seen_by_who_has_it_attached(weightd):
    publish(weightd, fill=1)
    publish(weightd, fill=2)
    old, new = weightd.attach("m", version=1), weightd.attach("m")
    weightd.drop("m", 1)
    assert [v.version for v in weightd.versions("m") if v.current] == [2]
    with pytest.raises(weightd.Error) as e:
        weightd.drop("m", 2)
    assert e.value.errno == errno.EBUSY
    weightd.drop("m")
    assert weightd.ls() == [] and old["t0"].memoryview()[0] == 1 and new["t0"].memoryview()[0] == 2
    for use in (new.latest, lambda: new.wait(timeout=10), new.refresh):
        with pytest.raises(weightd.Removed, match="'m' on host was removed"):
            use()


def test_listings_are_plain_objects(weightd, daemon):
    publish(weightd, "b", tensors=MANY_KINDS)
    publish(weightd, "a")
    server, (a, b), (version,) = weightd.ping(), weightd.ls(), weightd.versions("b")
    assert (server.pid, server.n_buffers, server.release) == (daemon.pid, 2, weightd.__version__)
    assert (a.name, a.device, a.state, a.writing, a.uid) == ("a", "host", "ready", False, os.geteuid())
    assert (b.n_tensors, b.n_versions, b.version, version.current) == (len(MANY_KINDS), 1, 1, True)
    assert a.digest == weightd.attach("a").digest and a.layout_hash == weightd.attach("a").layout_hash
    assert abs(b.published_ns / 1e9 - time.time()) < 60 and b.slot_bytes >= b.n_bytes > 0
    assert [info.name for info in weightd.ls("b")] == ["b"] and weightd.ls("nothing") == []


def test_verify_compares_the_bytes_with_their_digest(weightd):
    publish(weightd, tensors=[("U8", (3 << 20,))])
    weightd.attach("m").verify()

"""The Python package: versions, users, memory and events."""
import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from lib import features
from lib.child import Child
from lib.python_package import MANY_KINDS, layout_of, publish
from lib.wire import until

TIMEOUT = 60
ELSEWHERE = "cuda:GPU-00000000-0000-4000-8000-000000000000"


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
    waits = (lambda: buffer.wait(timeout=60), lambda: weightd.wait("m", 2, timeout=60),
             lambda: weightd.attach("m", version=2, timeout=60).version,
             lambda: weightd.attach("new", timeout=None).version)
    threads = [threading.Thread(target=lambda wait=wait: found.append(wait())) for wait in waits]
    for thread in threads:
        thread.start()
    publish(weightd)
    publish(weightd, "new")
    for thread in threads:
        thread.join(60)
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
    assert isinstance(e.value, weightd.Timeout) and str(e.value) and time.monotonic() - start < TIMEOUT


@pytest.mark.parametrize("wait", ['weightd.attach("m").wait()', 'weightd.wait("n")'])
def test_ctrl_c_ends_a_wait(weightd, daemon, wait):
    publish(weightd)
    code = f"import weightd; print('up', flush=True); {wait}"
    env = daemon.env | {"PYTHONPATH": str(features.ROOT / "libclient/python")}
    with subprocess.Popen([sys.executable, "-c", code], env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as proc:
        assert proc.stdout.readline() == "up\n"
        time.sleep(0.1)  # into the wait; no event reports it
        proc.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in proc.communicate(timeout=TIMEOUT)[1]


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


def test_rollback_goes_to_the_version_before_or_to_the_one_named(weightd):
    for fill in (1, 2, 3):
        publish(weightd, fill=fill, keep=3)
    assert weightd.rollback("m") == 2 and weightd.attach("m")["t0"].memoryview()[0] == 2
    assert weightd.rollback("m", 1) == 1 and weightd.attach("m").version == 1
    [info] = weightd.ls("m")
    assert (info.version, info.newest) == (1, 3)
    assert publish(weightd, fill=4) == 4 and weightd.attach("m")["t0"].memoryview()[0] == 4
    for use in (lambda: weightd.rollback("m", 9), lambda: weightd.rollback("nothing")):
        with pytest.raises(weightd.NotFound):
            use()


def test_history_tells_what_became_of_each_version(weightd):
    for _ in range(4):
        publish(weightd, keep=2)
    weightd.drop("m", 3)
    history = weightd.history("m")
    assert [(v.version, v.end) for v in history] == [(1, "keep"), (2, "keep"), (3, "dropped"), (4, "")]
    assert [v.version for v in history if v.current] == [4]
    for v in history:
        assert (v.uid, v.pid) == (os.geteuid(), os.getpid())
        assert bool(v.ended_ns) == bool(v.end) and (not v.end or v.ended_ns >= v.published_ns)
    assert [v.version for v in weightd.versions("m")] == [4]
    with pytest.raises(weightd.NotFound):
        weightd.history("nothing")


def test_swap_puts_the_next_version_under_the_views_there_are(weightd, numpy):
    publish(weightd, fill=1)
    buffer = weightd.attach("m")
    tensor, array, view = buffer["t0"], buffer["t0"].numpy().view("u1"), buffer["t0"].memoryview()
    address, digest = array.ctypes.data, buffer.digest
    assert buffer.swap() is False and buffer.version == 1
    publish(weightd, fill=2)
    assert array[0, 0] == view[0] == 1
    assert buffer.swap() is True and buffer.version == buffer.latest() == 2
    assert array[0, 0] == view[0] == tensor.memoryview()[0] == buffer["t0"].memoryview()[0] == 2
    assert buffer["t0"].numpy().ctypes.data == address
    assert buffer.digest == weightd.attach("m").digest != digest
    buffer.verify()
    assert not array.flags.writeable
    weightd.rollback("m")
    assert buffer.swap() is True and (buffer.version, view[0]) == (1, 1)


def test_swap_lets_go_of_the_version_before(weightd):
    publish(weightd, fill=1)
    buffer = weightd.attach("m")
    publish(weightd, fill=2)
    buffer.swap()
    assert [(v.version, v.n_readers) for v in weightd.versions("m")] == [(1, 0), (2, 1)]


def test_swap_to_other_tensors_is_refused_and_changes_nothing(weightd):
    publish(weightd, fill=1)
    buffer = weightd.attach("m")
    publish(weightd, fill=2, tensors=[("F32", (4, 5))], new_layout=True)
    with pytest.raises(weightd.LayoutMismatch):
        buffer.swap()
    assert buffer.version == 1 and buffer["t0"].memoryview()[0] == 1
    weightd.drop("m")
    with pytest.raises(weightd.Removed):
        buffer.swap()
    assert buffer["t0"].memoryview()[0] == 1


def test_a_sealed_buffer_is_always_whole(weightd):
    publish(weightd, fill=1)
    buffer = weightd.attach("m")
    assert (buffer.state, buffer.is_mutable, buffer.pause(timeout=0)) == ("ready", False, False)
    ticket = buffer.read_begin()
    publish(weightd, fill=2)
    assert not buffer.read_retry(ticket)
    assert buffer.read_consistent(lambda b: b["t0"].memoryview()[0]) == 1
    weightd.drop("m")
    assert buffer.state == "gone"


# --- Updates in place --------------------------------------------------------------------------------


@contextlib.contextmanager
def updating(weightd, name="e", fill=2, **options):
    """An update of an exclusive buffer that has begun: its readers are asked to pause, or have."""
    result = []

    def update():
        try:
            result.append(publish(weightd, name, fill=fill, **options))
        except weightd.Error as e:
            result.append(e)

    with weightd.watch(name) as watch:
        thread = threading.Thread(target=update)
        thread.start()
        assert watch.next(TIMEOUT).kind == "updating"
        yield result
        thread.join(TIMEOUT)
        assert result


def test_a_reader_that_pauses_goes_on_with_the_next_version(weightd):
    publish(weightd, "e", fill=1, exclusive=True)
    buffer = weightd.attach("e")
    view = buffer["t0"].memoryview()
    assert buffer.is_mutable and weightd.ls("e")[0].exclusive and not buffer.pause()
    with updating(weightd) as result:
        assert buffer.state == "updating" and weightd.ls("e")[0].state == "updating"
        with pytest.raises(weightd.Updating) as e:
            buffer.read_begin()
        assert isinstance(e.value, BlockingIOError)
        assert buffer.pause(TIMEOUT) is True
    assert result == [2] and (buffer.version, buffer.state) == (2, "ready")
    assert view[0] == view[-1] == 2
    buffer.verify()


def test_a_reader_that_does_not_pause_stops_the_update(weightd):
    publish(weightd, "e", fill=1, exclusive=True)
    buffer = weightd.attach("e")
    with pytest.raises(weightd.Timeout):
        publish(weightd, "e", fill=2, pause_timeout=0.05)
    assert (buffer.state, buffer.version, buffer.latest(), buffer["t0"].memoryview()[0]) == ("ready", 1, 1, 1)
    assert not buffer.pause()


def test_an_evicted_reader_is_told(weightd):
    publish(weightd, "e", fill=1, exclusive=True)
    buffer = weightd.attach("e")
    ticket = buffer.read_begin()
    assert publish(weightd, "e", fill=2, pause_timeout=0.05, policy="evict") == 2
    assert buffer.read_retry(ticket)
    with pytest.raises(weightd.Torn):
        buffer.pause()
    with pytest.raises(weightd.Torn):
        buffer.read_begin()
    assert weightd.attach("e")["t0"].memoryview()[0] == 2


def test_read_consistent_waits_for_the_update(weightd):
    publish(weightd, "e", fill=1, exclusive=True)
    buffer, other = weightd.attach("e"), weightd.attach("e")
    assert buffer.read_consistent(lambda b: bytes(b["t0"].memoryview())) == bytes([1]) * 64
    with updating(weightd):
        with pytest.raises(weightd.Timeout):
            buffer.read_consistent(lambda b: pytest.fail("read in the middle of an update"), timeout=0.05)
        pausing = [threading.Thread(target=b.pause) for b in (buffer, other)]
        for thread in pausing:
            thread.start()
        assert weightd.attach("e", version=2, timeout=TIMEOUT).version == 2
        for thread in pausing:
            thread.join(TIMEOUT)
    assert buffer.read_consistent(lambda b: bytes(b["t0"].memoryview())) == bytes([2]) * 64


def test_read_consistent_reads_again_what_changed_meanwhile(weightd):
    publish(weightd, "e", fill=1, exclusive=True)
    buffer, seen = weightd.attach("e"), []

    def read(b):
        seen.append(b["t0"].memoryview()[0])
        if len(seen) == 1:
            with updating(weightd):
                b.pause(TIMEOUT)
        return seen[-1]

    assert buffer.read_consistent(read, TIMEOUT) == 2 and seen == [1, 2]


def test_a_writer_that_dies_in_an_update_leaves_a_torn_buffer_which_another_update_repairs(weightd):
    publish(weightd, "e", fill=1, exclusive=True)
    buffer = weightd.attach("e")

    def die(pipe):
        writer = weightd.create("e", layout_of(weightd), pause_timeout=TIMEOUT)
        view = writer["t0"].memoryview()
        view[:32] = bytes([2]) * 32
        os._exit(0)

    with weightd.watch("e") as watch, Child(die) as writer:
        assert watch.next(TIMEOUT).kind == "updating"
        with pytest.raises(weightd.Torn):
            while True:
                buffer.pause(TIMEOUT)
        assert writer.end() == 0 and watch.next(TIMEOUT).kind == "torn"
    assert buffer.state == weightd.ls("e")[0].state == "torn"
    for use in (buffer.read_begin, lambda: weightd.attach("e")):
        with pytest.raises(weightd.Torn):
            use()
    with updating(weightd, fill=3) as result:
        assert buffer.pause(TIMEOUT) is True
    assert result == [2] and buffer["t0"].memoryview()[-1] == 3
    assert buffer.state == weightd.ls("e")[0].state == "ready" and weightd.attach("e").version == 2


def test_replace_asks_readers_to_let_go_and_gives_them_the_next_version(weightd):
    publish(weightd, "e", fill=1)
    buffer = weightd.attach("e")
    view = buffer["t0"].memoryview()
    with updating(weightd, replace=True) as result:
        assert buffer.pause(TIMEOUT) is True
    assert result == [2] and (buffer.version, view[0]) == (2, 2)
    assert [(v.version, v.end) for v in weightd.history("e")] == [(1, "rewritten"), (2, "")]
    assert len(weightd.slots("e")) == 1


def test_reusable_buffers_use_their_memory_again(weightd):
    for fill in range(1, 7):
        assert publish(weightd, "r", fill=fill, reusable=True, keep=1) == fill
        assert weightd.attach("r")["t0"].memoryview()[0] == fill
    assert weightd.ls("r")[0].reusable and len({s.slot for s in weightd.slots("r")}) <= 2


@pytest.mark.parametrize("options", [{"policy": "ask"}, {"exclusive": True, "policy": None}])
def test_policies_are_known(weightd, options):
    with pytest.raises(ValueError, match="wait, evict, kill"):
        publish(weightd, **options)


# --- Users and memory --------------------------------------------------------------------------------


def test_set_access_changes_what_is_given(weightd):
    publish(weightd, mode=0o640)
    weightd.set_access("m", mode=0o604)
    assert weightd.ls("m")[0].mode & 0o777 == 0o604
    weightd.set_access("m", gid=os.getegid())
    [info] = weightd.ls("m")
    assert (info.mode & 0o777, info.uid, info.gid) == (0o604, os.geteuid(), os.getegid())
    with pytest.raises(weightd.NotFound):
        weightd.set_access("nothing", mode=0)
    for wrong in ({"mode": -1}, {"uid": 2**32 - 1}):
        with pytest.raises(ValueError):
            weightd.set_access("m", **wrong)


def test_stat_slots_and_users_add_up(weightd):
    publish(weightd, "m", tensors=[("U8", (1 << 20,))])
    publish(weightd, "m", tensors=[("U8", (1 << 20,))])
    buffer, stat = weightd.attach("m"), weightd.stat()
    old, new = weightd.slots("m")
    assert [(s.version, s.state, s.n_readers) for s in (old, new)] == [(1, "kept", 0), (2, "current", 1)]
    assert stat.slot_bytes == old.n_bytes + new.n_bytes and stat.kept_bytes == old.n_bytes
    assert old.allocated >= 1 << 20 and stat.headroom > 0 and stat.orphan_bytes == 0
    [mine] = [user for user in weightd.users() if user.uid == os.geteuid()]
    assert (mine.n_readers, mine.n_buffers, mine.n_versions) == (1, 1, 2)
    assert mine.n_bytes == stat.slot_bytes + stat.layout_bytes
    assert all(most is None or most > 0 for most in mine[2::2])
    weightd.drop("m")
    [left] = weightd.slots("m")
    assert (left.state, left.removed, left.n_readers) == ("leaving", True, 1)
    assert weightd.stat().leaving_bytes == left.n_bytes
    buffer.close()
    del buffer
    until(lambda: weightd.users()[0].n_bytes == 0, "the worker has freed the memory")
    assert weightd.slots("m") == [] and weightd.stat().leaving_bytes == 0


def test_health_shows_what_the_server_depends_on(weightd):
    health = weightd.health()
    assert health.keeper == "none" and health.admin == (os.geteuid() == 0)
    assert 0 < health.headroom < health.memory and health.reserve > 0 and health.limit[:1] in ("", "/")
    assert health.max_descriptors is None or health.max_descriptors > 0
    assert set(health.refused) == {"permission", "limit", "memory", "descriptors", "keeper"}
    publish(weightd, "m", tensors=[("U8", (1 << 20,))])
    now = weightd.health()
    assert now.started_ns == health.started_ns and sum(now.loop.counts) > sum(health.loop.counts)
    assert sum(now.workers["check"].counts) > sum(health.workers["check"].counts)
    assert now.workers["check"].sum_ns > health.workers["check"].sum_ns and set(now.workers) == {"check", "free", "seal", "wake"}


def test_costs_grow_with_what_a_user_asks_for(weightd):
    [before] = weightd.costs()
    for _ in range(20):
        weightd.ls()
    [after] = weightd.costs()
    assert before.uid == after.uid == os.geteuid() and after.n_requests >= before.n_requests + 20
    assert after.loop_ns > before.loop_ns and after.longest_ns > 0 and after.n_refused == 0
    assert sum(after.answered) >= sum(before.answered) + 20 and after.span_ns > 0
    publish(weightd, "m", tensors=[("U8", (1 << 20,))])
    assert weightd.costs()[0].worker_ns > after.worker_ns
    assert (after.held_bytes, after.checking_bytes) == (0, 0)


# --- Events ------------------------------------------------------------------------------------------


def test_watch_tells_what_happens_in_order(weightd):
    watch, start = weightd.watch(), time.time_ns()
    for _ in range(3):
        publish(weightd, keep=2)
    weightd.rollback("m", 2)
    weightd.drop("m")
    events = list(itertools.takewhile(lambda e: e.kind != "removed", watch))
    gone = [e for e in events if e.kind == "version-gone"]  # the server's doing, when it likes
    assert [(e.version, e.end) for e in gone] == [(1, "keep")]
    done = [e for e in events if e not in gone]
    assert [(e.kind, e.version, e.end) for e in done] == [
        ("created", 0, ""), ("published", 1, ""), ("published", 2, ""), ("published", 3, ""),
        ("rolled-back", 2, "")]
    assert {(e.uid, e.pid) for e in done} == {(os.geteuid(), os.getpid())}
    assert {(e.name, e.device) for e in events} == {("m", "host")}
    assert [e.serial for e in events] == sorted({e.serial for e in events})
    assert all(start <= e.time_ns <= time.time_ns() for e in events)


def test_watch_of_some_leaves_out_the_others(weightd):
    with weightd.watch("b", "c") as watch, weightd.watch(device=ELSEWHERE) as other:
        for name in ("a", "c", "a", "b"):
            publish(weightd, name)
        assert [(e.kind, e.name) for e in (next(watch), next(watch), next(watch))] == [
            ("created", "c"), ("published", "c"), ("created", "b")]
        with pytest.raises(weightd.Timeout):
            other.next(0.05)
    with pytest.raises(ValueError):
        watch.next(0)
    watch.close()


def test_ctrl_c_ends_a_watch(daemon):
    code = "import weightd; w = weightd.watch(); print('up', flush=True); next(w)"
    env = daemon.env | {"PYTHONPATH": str(features.ROOT / "libclient/python")}
    with subprocess.Popen([sys.executable, "-c", code], env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as proc:
        assert proc.stdout.readline() == "up\n"
        proc.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in proc.communicate(timeout=TIMEOUT)[1]


# --- Restarts ----------------------------------------------------------------------------------------


def test_a_server_that_does_not_survive_is_not_waited_for(weightd, daemon):
    publish(weightd)
    weightd.set_restart_timeout(TIMEOUT)
    try:
        daemon.kill()
        start = time.monotonic()
        with pytest.raises(weightd.Disconnected):
            weightd.ping()
        assert time.monotonic() - start < TIMEOUT / 2
    finally:
        weightd.set_restart_timeout(30)


def test_a_server_that_survives_is_waited_for(make_daemon, monkeypatch):
    features.require("library")
    monkeypatch.setenv("WEIGHTD_SOCKET", make_daemon("--keeper").socket)
    import weightd
    publish(weightd, fill=1)
    buffer, watch, server = weightd.attach("m"), weightd.watch(), weightd.ping()
    os.kill(server.pid, signal.SIGKILL)
    assert buffer.latest() == 1 and buffer["t0"].memoryview()[0] == 1
    assert weightd.ping().pid != server.pid and weightd.versions("m")[0].n_readers == 1
    assert publish(weightd, fill=2) == 2 and buffer.swap() and buffer["t0"].memoryview()[0] == 2
    assert watch.next(TIMEOUT).kind == "restarted"
    assert [v.version for v in weightd.history("m")] == [1, 2]


def test_what_a_restart_leaves_open_is_an_error_of_its_own():
    from weightd._errors import Restarted, error
    e = error(errno.ECONNABORTED, "unknown")
    assert isinstance(e, Restarted) and isinstance(e, ConnectionError) and str(e) == "unknown"


# --- Names with versions -----------------------------------------------------------------------------


def test_names_have_versions_as_on_the_command_line(weightd):
    publish(weightd, fill=1, keep=3)
    publish(weightd, fill=2)
    assert weightd.attach("m@1").version == 1 and weightd.attach("m").version == 2
    assert weightd.attach("m@2", timeout=60).version == 2
    assert weightd.wait("m@1", timeout=60) == 2
    assert weightd.rollback("m@1") == 1 and weightd.attach("m").version == 1
    publish(weightd, fill=3)
    weightd.drop("m@1")
    assert [v.version for v in weightd.versions("m")] == [2, 3]
    with pytest.raises(weightd.NotFound, match="no version 9"):
        weightd.attach("m@9")


@pytest.mark.parametrize("name", ["m@", "m@0", "m@x", "m@-1", "m@ 1", "m@1 ", "m@\u00b2", f"m@{2**64}", "m@1.0"])
def test_what_is_behind_the_at_is_a_version(weightd, name):
    for use in (weightd.attach, weightd.wait, weightd.drop, weightd.rollback):
        with pytest.raises(ValueError, match=r"no version behind the '@'; those are numbers from 1"):
            use(name)


def test_two_versions_are_refused(weightd):
    publish(weightd)
    assert weightd.attach("m@1", version=1).version == 1
    for use in (weightd.attach, weightd.wait, weightd.drop, weightd.rollback):
        with pytest.raises(ValueError, match="'m@1' and version 2: these are two"):
            use("m@1", version=2)

"""A restarted weightd: its work before it serves, and the work that it leaves for later."""
import contextlib
import os
import pathlib
import re
import select
import signal

import pytest
from lib import features
from lib.wire import BODIES, BUFFERS, EXCLUSIVE, SET_FILES, Refused, Wire, image, memfd, until

N = 20
LAYOUT = image([("t", 4096)])


def publish(weightd, name, byte):
    layout = weightd.Layout()
    layout.add("t", "U8", (4096,))
    with weightd.create(name, layout) as writer:
        writer["t"].memoryview()[:] = bytes([byte]) * 4096
        writer.publish()


def access_modes(pid, kind):
    """The access modes of the process's open files of that kind, one for each descriptor."""
    proc = pathlib.Path(f"/proc/{pid}")
    found = []
    for fd in (proc / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if f"/memfd:weightd-{kind}" in os.readlink(fd):
                found.append(re.search(r"flags:\s+(\d+)", (proc / "fdinfo" / fd.name).read_text())[1])
    return [int(flags, 8) & os.O_ACCMODE for flags in found]


def n_open(pid):
    return [len(access_modes(pid, kind)) for kind in ("head", "slot")]


def test_a_list_of_several_pages_has_buffers_of_before_and_after(make_daemon):
    daemon = make_daemon("--keeper")
    layout = image([("t", 64)])
    for i in range(5):  # several times, since ids begin anywhere
        with Wire(daemon.socket) as w:
            for k in range(N):
                w.publish(w.create(f"b{i}-{k}", layout).writer)
            made = sorted(f"b{j}-{k}" for j in range(i + 1) for k in range(N))
            assert sorted(row.name for row in w.list(BUFFERS)) == made
            if i < 4:
                os.kill(w.ping().pid, signal.SIGKILL)
                w.hang_up()


def test_what_readers_need_is_opened_when_the_first_one_comes(make_daemon, monkeypatch):
    """Opening it for all of a thousand buffers is a third of what a restart takes."""
    features.require("library")
    monkeypatch.setenv("WEIGHTD_SOCKET", make_daemon("--keeper").socket)
    import weightd
    for i in range(N):
        publish(weightd, f"b{i}", i + 1)
    killed = weightd.ping().pid
    os.kill(killed, signal.SIGKILL)
    pid = weightd.ping().pid
    assert pid != killed
    assert n_open(pid) == [N, N]
    with weightd.attach("b3") as buffer:
        assert bytes(buffer["t"].memoryview()) == bytes([4]) * 4096
        assert n_open(pid) == [N, N + 1]
        with weightd.attach("b3"):
            assert n_open(pid) == [N, N + 1]
    assert sorted(access_modes(pid, "head")) == [os.O_RDONLY] + [os.O_RDWR] * (N - 1)
    publish(weightd, "b3", 99)
    with weightd.attach("b3") as buffer:
        assert buffer["t"].memoryview()[0] == 99


def test_a_daemon_that_hangs_is_replaced_by_its_keeper(make_daemon):
    """Stopped, so that it cannot report that it lives, nor handle the signal to abort."""
    daemon = make_daemon("--keeper")
    with Wire(daemon.socket) as w:
        w.publish(w.create("m", LAYOUT).writer)
        w.detach(w.attach("m").lease)
        pid = w.ping().pid
    hung = os.pidfd_open(pid)
    os.kill(pid, signal.SIGSTOP)
    assert select.select([hung], [], [], 60)[0], "no process ends it"
    os.close(hung)
    with Wire(daemon.socket) as w:
        assert w.ping().pid != pid and w.names() == ["m"]
    assert "was silent for 10000 ms: aborting it" in daemon.log


@pytest.mark.parametrize("published", [False, True])
def test_what_the_keeper_was_too_busy_to_hear_is_forgotten_all_the_same(make_daemon, published):
    """Its socket holds ten messages, the rest waits in weightd and dies with it."""
    daemon = make_daemon("--keeper")
    with Wire(daemon.socket) as w:
        pid, slots = w.ping().pid, []
        before = w.stat().store_used
        for i in range(20):
            if published:
                made = w.create(f"b{i}", LAYOUT)
                w.publish(made.writer)
                w.detach(made.writer)
            slots.append(w.create(f"b{i}", LAYOUT))
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            for slot in slots:
                w.abort(slot.writer)
            until(lambda: w.stat().slot_bytes == 8192 * 20 * published, "what was aborted is free")
            if published:
                for i in range(20):
                    w.drop(f"b{i}")
                until(lambda: w.stat().slot_bytes == 0, "what was published is free")
            os.kill(pid, signal.SIGKILL)
            w.hang_up()
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
    with Wire(daemon.socket) as w:
        assert w.names() == []
        until(lambda: w.stat().store_used == before, "nothing is kept without an owner")
        assert w.stat().n_quarantined == 0 and "quarantined" not in daemon.log.replace("0 descriptors q", "")


def end_unheard(daemon, w, begin, spare, end):
    """begin() and end() while the keeper hears nothing, and then weightd dies: what fills the keeper's socket is between."""
    pid = w.ping().pid
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        begin()
        for slot in spare:
            w.abort(slot.writer)
        end()
        os.kill(pid, signal.SIGKILL)
        w.hang_up()
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def check_nothing_is_left(daemon, before):
    with Wire(daemon.socket) as w:
        w.drop("m")
        until(lambda: w.stat().store_used == before, "nothing is kept without an owner")
        assert w.stat().n_quarantined == 0 and "quarantined" not in daemon.log.replace("0 descriptors q", "")


@pytest.mark.parametrize("end", [Wire.publish, Wire.abort])
def test_files_that_the_keeper_did_not_confirm_are_forgotten_all_the_same(make_daemon, end):
    daemon = make_daemon("--keeper")
    with Wire(daemon.socket) as w, Wire(daemon.socket) as other:
        before = w.stat().store_used
        other.publish(other.create("m", LAYOUT).writer)
        slot = other.create("m", LAYOUT)
        spare = [w.create(f"b{i}", LAYOUT) for i in range(20)]
        files = memfd(b"files")

        def give_up():
            with pytest.raises(Refused, match="does not keep the files of 'm'"):
                other.answer(SET_FILES)
            end(other, slot.writer)

        end_unheard(daemon, w, lambda: (other.send(SET_FILES, BODIES[SET_FILES].pack(slot.writer), [files]), w.ping()),
                    spare, give_up)
        os.close(files)
    check_nothing_is_left(daemon, before)


def test_files_of_a_write_in_place_that_fails_are_forgotten_all_the_same(make_daemon):
    daemon = make_daemon("--keeper")
    with Wire(daemon.socket) as w:
        before = w.stat().store_used
        for files in b"of the version", b"of the writer":
            slot = w.create("m", LAYOUT, flags=EXCLUSIVE)
            w.set_files(slot.writer, files)
            if files == b"of the version":
                w.publish(slot.writer)
                w.detach(slot.writer)
        spare = [w.create(f"b{i}", LAYOUT) for i in range(20)]
        end_unheard(daemon, w, lambda: None, spare, lambda: w.abort(slot.writer))
    check_nothing_is_left(daemon, before)

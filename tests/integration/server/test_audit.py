"""Audit lines: in the fields of the journal where it reads stderr, plain lines elsewhere, and never a wait."""
import errno
import os
import pathlib
import re
import socket
import tempfile
import time

import pytest
from lib.child import run_as
from lib.wire import Refused, Wire, image, until

LAYOUT = image([("t", 4096)])
ALICE, BOB = 12345, 12346


@pytest.fixture(autouse=True)
def root_only(require):
    require("root")  # the test needs other users
    require("mounts")  # it needs a /run of its own


class Journal:
    """A socket in the place of the journal's, for a daemon that is started with `prefix`."""

    def __init__(self, folder, stream="$(stat -Lc %d:%i /proc/self/fd/2)", make_socket=socket.socket):
        path = folder / "systemd/journal/socket"
        path.parent.mkdir(parents=True)
        self.socket = make_socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.read = []
        script = f'mount --bind "$0" /run && export JOURNAL_STREAM={stream} && exec "$@"'
        self.prefix = "unshare", "--mount", "sh", "-c", script, str(folder)

    def entries(self):
        """The records until now that were not returned before, as dicts. A line without '=' or with a field twice is an error."""
        found, self.read = self.read, []
        while True:
            try:
                lines = self.socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return found
            found.append(dict(line.split("=", 1) for line in lines))
            assert len(found[-1]) == len(lines), lines

    def take(self, n):
        """Waits for `n` records; returns these and what came with them."""
        def has_come():
            self.read = self.entries()
            return len(self.read) >= n

        until(has_come, lambda: f"there are {n} records: {self.read}")
        return self.entries()


@pytest.fixture
def make_journal():
    """make_journal(): a Journal, closed with the test."""
    with tempfile.TemporaryDirectory(prefix="weightd-") as folder:
        journals = []

        def make(**kw):
            journals.append(Journal(pathlib.Path(folder), **kw))
            return journals[-1]

        yield make
        for journal in journals:
            journal.socket.close()


def act(path):
    """Returns the pid of the process that did it."""
    with Wire(path) as w:
        slot = w.create("m", LAYOUT, mode=0o600, keep=1)
        w.publish(slot.writer)
        w.detach(slot.writer)
        w.publish(w.create("m", LAYOUT).writer)
    return os.getpid()


def be_refused(path):
    with Wire(path) as w:
        for what in (lambda: w.attach("m"), lambda: w.create("m", LAYOUT), lambda: w.drop("m")):
            with pytest.raises(Refused) as refused:
                what()
            assert refused.value.errno == errno.EACCES
    return os.getpid()


def test_the_journal_is_told_who_did_what_to_which_version(make_daemon, make_journal):
    journal = make_journal()
    daemon = make_daemon("--socket-mode", "0666", prefix=journal.prefix)
    alice = run_as(ALICE, act, daemon.socket)
    bob = run_as(BOB, be_refused, daemon.socket)
    with Wire(daemon.socket) as w:
        w.drop("m")
    entries = journal.take(7)
    told = [(e["WEIGHTD_ACTION"], e["WEIGHTD_BUFFER"], e["WEIGHTD_DEVICE"], e.get("WEIGHTD_VERSION"),
             int(e["WEIGHTD_UID"]), int(e["WEIGHTD_PID"]), e["WEIGHTD_RESULT"], e["PRIORITY"]) for e in entries]
    denied = ("refuse", "m", "host", None, BOB, bob, "EACCES", "4")
    assert told == [("create", "m", "host", None, ALICE, alice, "0", "6"),
                    ("publish", "m", "host", "1", ALICE, alice, "0", "6"),
                    ("publish", "m", "host", "2", ALICE, alice, "0", "6"), denied, denied, denied,
                    ("drop", "m", "host", None, 0, os.getpid(), "0", "6")]
    assert [e["MESSAGE"] for e in entries[1:4:2]] == [
        f"'m@1' on host published by pid {alice} uid {ALICE}",
        f"'m' on host refused to pid {bob} uid {BOB}: read: Permission denied"]
    assert all(re.fullmatch("[0-9a-f]{32}", e["MESSAGE_ID"]) for e in entries)
    assert len({e["MESSAGE_ID"] for e in entries}) == len({e["WEIGHTD_ACTION"] for e in entries}) == 4
    assert "published" not in daemon.log and "<6>listening on " in daemon.log


def use_a_job(path):
    with Wire(path) as w:
        token = w.create_job("train", n_ranks=1)
        w.leave(w.join("train", token).job)
        w.create_job("other")
    return os.getpid()


def take_a_job(path):
    with Wire(path) as w:
        with pytest.raises(Refused):
            w.join("other", bytes(32))
        with pytest.raises(Refused):
            w.remove_job("other")
    return os.getpid()


def test_the_journal_has_what_happened_to_a_job(make_daemon, make_journal):
    journal = make_journal()
    daemon = make_daemon("--socket-mode", "0666", prefix=journal.prefix)
    alice = run_as(ALICE, use_a_job, daemon.socket)
    bob = run_as(BOB, take_a_job, daemon.socket)
    with Wire(daemon.socket) as w:
        w.remove_job("other")
    entries = journal.take(8)
    assert [(e["WEIGHTD_ACTION"], e["WEIGHTD_JOB"], e.get("WEIGHTD_UID"), e["WEIGHTD_RESULT"], e["MESSAGE"]) for e in entries] == [
        ("job-create", "train", str(ALICE), "0", f"job 'train' created by pid {alice} uid {ALICE}"),
        ("job-join", "train", str(ALICE), "0", f"job 'train' joined by pid {alice} uid {ALICE}: rank 0"),
        ("job-leave", "train", str(ALICE), "0", f"job 'train' left by pid {alice} uid {ALICE}: rank 0"),
        ("job-remove", "train", None, "0", "job 'train' removed: each rank has left it"),
        ("job-create", "other", str(ALICE), "0", f"job 'other' created by pid {alice} uid {ALICE}"),
        ("refuse", "other", str(BOB), "EACCES", f"job 'other' refused to pid {bob} uid {BOB}: join: Permission denied"),
        ("refuse", "other", str(BOB), "EACCES", f"job 'other' refused to pid {bob} uid {BOB}: remove: Permission denied"),
        ("job-remove", "other", "0", "0", f"job 'other' removed by pid {os.getpid()} uid 0")]
    assert not any("WEIGHTD_BUFFER" in e for e in entries)


@pytest.mark.parametrize("stream", ["", "1:1", "$(stat -Lc %d:1 /proc/self/fd/2)", "nonsense"])
def test_a_stderr_that_is_not_the_journals_gets_plain_lines(make_daemon, make_journal, stream):
    """Also where JOURNAL_STREAM was inherited from a service."""
    journal = make_journal(stream=stream)
    daemon = make_daemon(prefix=journal.prefix)
    act(daemon.socket)
    assert journal.entries() == []
    assert f"weightd: 'm@1' on host published by pid {os.getpid()} uid 0\n" in daemon.log


def test_a_journal_that_does_not_read_holds_nobody_up(make_daemon, make_journal):
    """It receives the lines once it reads, apart from those that came too late for the queue, and the number of these."""
    journal = make_journal()
    daemon = make_daemon(prefix=journal.prefix)
    with Wire(daemon.socket) as w:
        n = 0
        while "created" not in daemon.log:  # lines go there if the queue has no room for them
            w.abort(w.create(f"m{n}", LAYOUT).writer)
            n += 1
            assert n < 100000
    told = journal.take(n)
    assert [e["WEIGHTD_BUFFER"] for e in told if "WEIGHTD_BUFFER" in e] == [f"m{i}" for i in range(n - 1)], "in order"
    assert f"'m{n - 1}' on host created by pid {os.getpid()} uid 0\n" in daemon.log
    [lost] = [e for e in told if "WEIGHTD_BUFFER" not in e]
    assert (lost["WEIGHTD_LINES"], lost["PRIORITY"], lost["SYSLOG_IDENTIFIER"]) == ("1", "4", "weightd"), lost


def test_a_journal_that_is_gone_loses_no_line(make_daemon, make_journal):
    journal = make_journal()
    daemon = make_daemon(prefix=journal.prefix)
    journal.socket.close()
    act(daemon.socket)
    line = f"<6>'m@2' on host published by pid {os.getpid()} uid 0\n"
    until(lambda: line in daemon.log, lambda: daemon.log)


def test_without_libsystemd_lines_have_no_fields(make_daemon, make_journal, without_libsystemd):
    journal = make_journal()
    daemon = make_daemon(prefix=(*journal.prefix, *without_libsystemd))
    act(daemon.socket)
    line = f"<6>'m@2' on host published by pid {os.getpid()} uid 0\n"
    until(lambda: line in daemon.log, lambda: daemon.log)
    assert "<4>lines in the journal have no fields: " in daemon.log and "libsystemd0" in daemon.log
    assert journal.entries() == []


def test_a_weightd_that_ends_sends_what_is_queued(make_daemon, make_journal):
    journal = make_journal()
    daemon = make_daemon(prefix=journal.prefix)
    act(daemon.socket)
    daemon.stop()
    assert [e["WEIGHTD_ACTION"] for e in journal.entries()] == ["create", "publish", "publish"]


def assert_few_lines(act, daemon, line):
    """Of act(100) by ALICE and act(1) by BOB: 20 lines of a user in ten seconds, and a busy machine may take longer than these."""
    began = time.monotonic()
    run_as(ALICE, act, 100)
    n_windows = 1 + (time.monotonic() - began) // 10
    run_as(BOB, act, 1)
    of_alice, of_bob = (len(re.findall(line.format(uid), daemon.log)) for uid in (ALICE, BOB))
    assert 20 <= of_alice <= 20 * n_windows and of_bob == 1, (of_alice, n_windows, of_bob)


def test_nobody_fills_the_log_with_refusals(make_daemon):
    daemon = make_daemon("--socket-mode", "0666")
    with Wire(daemon.socket) as w:
        w.publish(w.create("m", LAYOUT, mode=0o600).writer)

    def knock(n):
        with Wire(daemon.socket) as w:
            for _ in range(n):
                with pytest.raises(Refused):
                    w.attach("m")

    assert_few_lines(knock, daemon, "refused to pid .* uid {}: read")


def test_nobody_fills_the_log_with_sessions_that_are_closed(make_daemon):
    daemon = make_daemon("--socket-mode", "0666")

    def misbehave(n):
        for _ in range(n):
            with Wire(daemon.socket, greet=False) as w:
                w.send_raw(b"no request")
                w.hang_up()

    assert_few_lines(misbehave, daemon, "session of pid .* uid {} closed")


def test_over_a_limit_is_told(make_daemon, make_journal, require, tmp_path):
    require("inih")
    journal = make_journal()
    (tmp_path / "w.conf").write_text(f"[limits:{ALICE}]\nbuffers = 1\nconnections = 1\n")
    daemon = make_daemon("--socket-mode", "0666", "--config", tmp_path / "w.conf", prefix=journal.prefix)

    def exceed():
        with Wire(daemon.socket) as w:
            w.create("a", LAYOUT)
            with pytest.raises(Refused):
                w.create("b", LAYOUT)
            with pytest.raises(Refused):
                Wire(daemon.socket)

    run_as(ALICE, exceed)
    told = [(e["WEIGHTD_ACTION"], e["WEIGHTD_RESULT"], e["WEIGHTD_UID"], e["MESSAGE"].split(": ")[1])
            for e in journal.take(3)[1:]]
    assert told == [
        ("refuse", "EDQUOT", str(ALICE), f"uid {ALICE} has too many buffers; remove some buffers (weightctl rm), or "
                                              "raise buffers= in [limits] of weightd.conf"),
        ("refuse", "EDQUOT", str(ALICE), "this user has too many connections; close some")]


def test_a_name_that_would_add_a_field_is_none(make_daemon, make_journal):
    journal = make_journal()
    daemon = make_daemon(prefix=journal.prefix)
    with Wire(daemon.socket) as w:
        for name in "m\nWEIGHTD_UID=0", "m\r", "m=1", "m\x1b[2J":
            with pytest.raises(Refused) as refused:
                w.create(name, LAYOUT)
            assert refused.value.errno == errno.EINVAL
        w.create("m", LAYOUT)
    until(lambda: Wire(daemon.socket).ping().n_buffers == 0, "its writer is gone")
    assert [e["WEIGHTD_BUFFER"] for e in journal.take(1)] == ["m"]

"""The keeper as the program under it sees it: stored descriptors return, whatever that program dies of."""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import pytest
from integration.programs import HERE, SANITIZED, compiled
from lib import features
from lib.child import run_as
from lib.daemon import REPORT, environment, unhindered_s
from lib.wire import PATIENCE_S, until

PYTHON = "/usr/bin/python3"
KEPT = str(HERE / "kept.py")
PR_SET_CHILD_SUBREAPER = 36
NAMES = [f"name-{i}" for i in range(8)]


def keep_program():
    sources = [features.ROOT / "server" / f"{name}.c" for name in ("restart/keeper", "restart/fdstore_entry", "restart/notify_recv", "base/log", "base/program")]
    sources += sorted((features.ROOT / "ipc/base").glob("*.c"))
    return compiled("keep", (HERE / "keep.c", *sources), *SANITIZED.get(features.BUILD.name, []))


class Keeper:
    """
    A keeper and the kept.py under it.

    pid     of the child that was awaited last
    """

    def __init__(self, *options, command=(PYTHON, "-S", KEPT), prefix=(), env=None, **kw):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-"))
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.folder / "test"))
        self.listener.listen()
        self.listener.settimeout(PATIENCE_S)
        self.child, self.pid = None, None
        with open(self.folder / "log", "wb") as log:
            self.proc = subprocess.Popen(
                [*prefix, keep_program(), *options, *command], stdin=subprocess.DEVNULL, stderr=log,
                env=environment(KEPT_TEST=str(self.folder / "test"), **(env or {})), **kw)

    def await_child(self):
        """Waits for the next child to be there. Returns self."""
        child, _ = self.listener.accept()
        if self.child:
            self.child.close()  # not earlier: a child ends without a test
        self.child = child
        self.child.settimeout(PATIENCE_S)
        self.pid = self.hear()
        return self

    def hear(self):
        return json.loads(self.child.recv(1 << 20))

    def tell(self, expression):
        self.child.send(expression.encode())

    def ask(self, expression):
        self.tell(expression)
        return self.hear()

    def kill_child(self, sig=signal.SIGKILL):
        os.kill(self.pid, sig)
        return self.await_child()

    def wait(self):
        return self.proc.wait(PATIENCE_S)

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def await_log(self, said):
        until(lambda: said in self.log, lambda: f"the log has '{said}':\n{self.log}")

    def files(self):
        """Paths of the memory files that the keeper itself has open."""
        folder = pathlib.Path(f"/proc/{self.proc.pid}/fd")
        found = []
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found += [entry] * os.readlink(entry).startswith("/memfd:")
        return found

    def rss_anon(self):
        status = pathlib.Path(f"/proc/{self.proc.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status).group(1)) * 1024

    def is_pending(self, signo):
        status = pathlib.Path(f"/proc/{self.proc.pid}/status").read_text()
        return int(re.search(r"ShdPnd:\s+(\w+)", status).group(1), 16) >> signo - 1 & 1

    def close(self):
        try:
            if self.proc.poll() is None:
                self.proc.terminate()
            self.wait()
            assert not REPORT.search(self.log), self.log
        finally:
            self.proc.kill()
            self.proc.wait()
            for s in self.child, self.listener:
                if s:
                    s.close()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def make_keeper():
    """make_keeper(options...): a Keeper with its first child; all end with the test."""
    with contextlib.ExitStack() as stack:
        def make(*options, **kw):
            return stack.enter_context(contextlib.closing(Keeper(*options, **kw))).await_child()

        yield make


@pytest.fixture
def keeper(make_keeper):
    return make_keeper()


@contextlib.contextmanager
def stopped(keeper):
    """The keeper reads nothing during the block; messages to it wait meanwhile."""
    keeper.proc.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        keeper.proc.send_signal(signal.SIGCONT)


# --- Kept entries -----------------------------------------------------------------------------------


DEATHS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)", "SIGABRT": "os.abort()",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV)", "status 1": "os._exit(1)",
}


@pytest.mark.parametrize("death", DEATHS)
def test_what_was_stored_comes_back_after(keeper, death):
    assert keeper.ask("listed()") == [] and keeper.ask("store_files(*%r, size=1 << 20)" % NAMES)
    for _ in range(2):
        pid = keeper.pid
        keeper.tell(DEATHS[death])
        keeper.await_child()
        assert keeper.pid != pid
        assert keeper.ask("names()") == sorted(NAMES) and keeper.ask("intact(1 << 20)") == len(NAMES)
        assert keeper.ask("store('later', memfd(b'x')) and barrier() and remove('later') and barrier()")


def test_a_child_gets_nothing_that_it_did_not_store(make_keeper, tmp_path):
    stray = os.open(tmp_path, os.O_RDONLY)
    keeper = make_keeper(pass_fds=[stray])
    os.close(stray)
    assert keeper.ask("open_fds()") == [0, 1, 2]
    assert keeper.ask("store_files('a', 'b')")
    assert keeper.kill_child().ask("open_fds()") == [0, 1, 2, 3, 4]


def test_several_descriptors_come_in_one_message_and_share_a_name(keeper):
    assert keeper.ask("store('many', *[memfd(bytes([i]) * 9) for i in range(253)]) and barrier()")
    keeper.kill_child()
    assert keeper.ask("names()") == ["many"] * 253
    assert keeper.ask("sorted(os.pread(fd, 9, 0)[0] for _, fd in listed())") == list(range(253))


def test_what_is_removed_does_not_come_back(keeper):
    assert keeper.ask("store_files(*%r)" % NAMES)
    assert keeper.ask("store('twice', memfd(b'1'), memfd(b'2')) and remove('twice', 'name-0', 'name-5', 'none')")
    assert keeper.ask("barrier()") and len(keeper.files()) == 6
    keeper.kill_child()
    assert keeper.ask("names()") == sorted(set(NAMES) - {"name-0", "name-5"}) and keeper.ask("intact()") == 6


@pytest.mark.parametrize("make, n", [
    ("(lambda fd: [fd, fd, os.dup(fd)])(memfd(b'x'))", 1),
    ("(lambda fd: [fd, os.open(f'/proc/self/fd/{fd}', os.O_RDONLY)])(memfd(b'x'))", 2),
    ("[memfd(b'x'), memfd(b'x')]", 2),
    ("(lambda fd: [fd, os.dup(fd)])(os.eventfd(0))", 1),
    ("[os.eventfd(0), os.eventfd(0)]", 2),
    ("[os.open('/dev/null', os.O_RDWR), os.open('/dev/null', os.O_RDWR)]", 2),
])
def test_the_same_is_kept_once_under_a_name(keeper, make, n):
    assert keeper.ask(f"[store('same', *{make}) and store('b', memfd(b'y')) for _ in range(1)] and barrier()")
    assert keeper.kill_child().ask("names()") == ["b"] + n * ["same"]


def test_the_same_is_kept_under_each_of_its_names(keeper):
    assert keeper.ask("(lambda fd: store('a', fd) and store('b', fd) and store('a', fd))(memfd(b'x')) and barrier()")
    assert keeper.ask("remove('a') and barrier()")
    assert keeper.kill_child().ask("names()") == ["b"]


@pytest.mark.parametrize("lines", [
    "FDSTORE=1", "FDSTORE=1\nFDNAME=", "FDSTORE=1\nFDNAME=123456789-123456789-1", "FDSTORE=1\nFDNAME=a:b",
    "FDSTORE=1\nFDNAME=a b", "FDSTORE=1\nFDNAME=\u00e4", "FDSTORE=1\0\nFDNAME=a", "FDSTORE=0\nFDNAME=a",
    "FDNAME=a", "", "\n\n", "XFDSTORE=1\nFDNAME=a", "FDSTORE=1\nFDNAME=a\nBARRIER=1",
    "FDSTORE=1\nFDNAME=a\n" + "X" * 4096,
])
def test_a_message_that_stores_nothing(keeper, lines):
    assert keeper.ask(f"notify({lines!r}, [memfd(b'x'), memfd(b'y')]) and store_files('good')")
    assert len(keeper.files()) == 1, "what was not kept is closed"
    assert keeper.kill_child().ask("names()") == ["good"]


def test_unknown_lines_are_no_harm(keeper):
    lines = "STATUS=fine\nX-MORE=1\nREADY=1\n\nFDPOLL=0\nFDNAME=12345678901234567890\nFDSTORE=1\nMAINPID=1\n"
    assert keeper.ask(f"notify({lines!r}, [memfd(b'x')]) and barrier()")
    assert keeper.kill_child().ask("names()") == ["12345678901234567890"]


# --- Order ------------------------------------------------------------------------------------------


def test_a_barrier_falls_when_all_before_it_is_kept(keeper):
    with stopped(keeper):
        assert keeper.ask("[store('a', *[memfd(b'x') for _ in range(200)]) for _ in range(3)]")
        keeper.tell("barrier()")
        assert not select.select([keeper.child], [], [], 0.1)[0], "the barrier fell with nothing kept"
        assert keeper.files() == []
    assert keeper.hear() is True and len(keeper.files()) == 600


def test_what_was_sent_before_a_death_counts(keeper):
    for i in range(5):
        with stopped(keeper):
            assert keeper.ask(f"[store('{i}-' + str(j), memfd(b'x')) for j in range(5)]")
            os.kill(keeper.pid, signal.SIGKILL)
        keeper.await_child()
        assert keeper.ask("names()") == [f"{k}-{j}" for k in range(i + 1) for j in range(5)]


@pytest.mark.measures
def test_a_thousand_stores_are_quick(keeper):
    features.require_descriptors(2000)
    processes = "self", keeper.proc.pid, keeper.pid
    started = unhindered_s(*processes)
    assert keeper.ask("store_files(*map(str, range(1000)))")
    took = unhindered_s(*processes) - started
    assert took < 1, f"{took:.3f} s"
    assert keeper.kill_child().ask("intact()") == 1000


# --- Others -----------------------------------------------------------------------------------------


def notify(address, lines, fds):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect(address.replace("@", "\0", 1))
        socket.send_fds(s, [lines.encode()], fds)


def test_only_the_child_is_heard(keeper):
    assert keeper.ask("store_files('mine')")
    address = keeper.ask("os.environ['NOTIFY_SOCKET']")
    ours, theirs = os.pipe()
    for lines in "FDSTORE=1\nFDNAME=foreign", "FDSTOREREMOVE=1\nFDNAME=mine", "BARRIER=1":
        notify(address, lines, [theirs])
    os.close(theirs)
    assert select.select([ours], [], [], PATIENCE_S)[0] and os.read(ours, 1) == b"", "dropped, hence closed"
    os.close(ours)
    assert keeper.ask("in_a_fork(lambda: not store('fork', memfd(b'x'))) or barrier()")
    assert keeper.kill_child().ask("names()") == ["mine"]


def test_no_other_user_comes_near(keeper, require):
    require("root")
    address = keeper.ask("os.environ['NOTIFY_SOCKET']")
    with pytest.raises(PermissionError):
        run_as(65534, notify, address, "READY=1", [])


def test_the_socket_goes_with_the_keeper(keeper):
    address = pathlib.Path(keeper.ask("os.environ['NOTIFY_SOCKET']"))
    assert address.is_socket() and address.parent.stat().st_mode & 0o777 == 0o700
    keeper.proc.terminate()
    assert keeper.wait() == 0
    assert not address.parent.exists()


def test_the_dead_of_others_are_buried(make_keeper):
    keeper = make_keeper(preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    assert [keeper.ask("orphan()") for _ in range(3)] == [0] * 3
    children = pathlib.Path(f"/proc/{keeper.proc.pid}/task/{keeper.proc.pid}/children")
    until(lambda: children.read_text().split() == [str(keeper.pid)], "only the daemon is a child")


# --- Limits -----------------------------------------------------------------------------------------


def test_more_than_may_be_kept_is_dropped_and_told_once(make_keeper):
    keeper = make_keeper("--store-max", "5")
    assert keeper.ask("os.environ['FDSTORE']") == "5"
    for _ in range(2):
        assert keeper.ask("store_files(*map(str, range(9)))")
        assert keeper.log.count("is not kept: 5 descriptors are, which is the limit") == 1
        assert len(keeper.files()) == 5
    assert keeper.kill_child().ask("names()") == list("01234")
    assert keeper.ask("remove('3') and store_files('8', '9')")
    assert keeper.kill_child().ask("names()") == list("01248")
    assert keeper.log.count("which is the limit") == 2


def test_five_thousand_six_hundred_come_back_to_a_small_keeper(keeper):
    features.require_descriptors(6400)
    assert keeper.ask("store_files(*(f'buffer-{i:04}-manifest' for i in range(5600)), size=64)")
    keeper.kill_child()
    assert keeper.ask("intact(64)") == 5600
    assert keeper.ask("remove(*(f'buffer-{i:04}-manifest' for i in range(0, 5600, 2))) and barrier()")
    keeper.kill_child()
    assert keeper.ask("names()") == [f"buffer-{i:04}-manifest" for i in range(1, 5600, 2)]
    assert keeper.ask("intact(64)") == 2800


@pytest.mark.plain
@pytest.mark.parametrize("n_restarts", [5, pytest.param(20, marks=pytest.mark.long)])
def test_a_full_keeper_stays_small(keeper, n_restarts):
    features.require_descriptors(6400)
    before = keeper.rss_anon()
    assert keeper.ask("store_files(*(f'buffer-{i:04}-manifest' for i in range(5600)), size=64)")
    keeper.kill_child()
    first = keeper.rss_anon()
    for _ in range(n_restarts):
        keeper.proc.send_signal(signal.SIGHUP)  # the signal waits for nothing
        keeper.await_child()
    assert keeper.ask("intact(64)") == 5600
    assert first < before + 512 * 1024 and first < 1 << 20, (before, first)
    assert keeper.rss_anon() <= first + 16 * 1024, (first, keeper.rss_anon())


def test_names_fill_one_variable_and_no_more(make_keeper):
    features.require_descriptors(7500)
    keeper = make_keeper("--store-max", "7000")
    most = (128 * 1024 - len("LISTEN_FDNAMES=")) // 21
    assert keeper.ask(f"store_files(*(f'{{i:020}}' for i in range({most + 9})), size=1)")
    keeper.kill_child()
    assert keeper.ask("[len(listed()), intact(1)]") == [most, most]
    assert keeper.log.count(f"the names of {most} descriptors fill LISTEN_FDNAMES") == 1


def test_a_low_hard_limit_is_told_and_kept(make_keeper):
    keeper = make_keeper(prefix=("prlimit", "--nofile=300:400"))
    assert "the hard limit on open ones is 400" in keeper.log
    most = int(keeper.ask("os.environ['FDSTORE']"))
    assert 100 < most < 400
    assert keeper.ask("store_files(*map(str, range(150)))")
    assert keeper.kill_child().ask("intact()") == min(150, most)
    assert keeper.ask("store('all', *[memfd(b'x') for _ in range(100)]) and barrier()")
    assert keeper.kill_child().ask("len(listed())") == most


# --- Sockets that the keeper was started with ---------------------------------------------------------

ACTIVATE = """
import os, sys
n = int(sys.argv[1])
for i in range(n):
    os.set_inheritable(os.memfd_create(f"socket{i}"), True)
os.environ.update(LISTEN_FDS=str(n), LISTEN_PID=str(os.getpid() + int(sys.argv[3])))
if sys.argv[2]:
    os.environ["LISTEN_FDNAMES"] = sys.argv[2]
os.execv(sys.argv[4], sys.argv[4:])
"""


@pytest.mark.parametrize("given, names", [
    ("control:more", ["control", "more"]), ("", ["unknown"] * 2)])
def test_sockets_are_passed_on_before_what_is_kept(make_keeper, given, names):
    keeper = make_keeper(prefix=(PYTHON, "-c", ACTIVATE, "2", given, "0"))
    readlink = "[os.readlink(f'/proc/self/fd/{fd}')[7:14] for _, fd in listed()][:2]"
    for i in range(3):
        assert keeper.ask("[name for name, _ in listed()]")[:2] == names
        assert keeper.ask(readlink) == ["socket0", "socket1"] and keeper.ask("len(listed())") == 2 + i
        assert keeper.ask(f"store_files('{i}')")
        keeper.kill_child()
    assert keeper.ask("intact()") == 3


def test_sockets_with_too_few_names_are_not_taken(make_keeper):
    """As sd_listen_fds_with_names() decides."""
    keeper = make_keeper(prefix=(PYTHON, "-c", ACTIVATE, "2", "control", "0"))
    assert keeper.ask("listed()") == [] and keeper.ask("open_fds()") == [0, 1, 2]


def test_sockets_of_another_process_are_not_taken(make_keeper):
    keeper = make_keeper(prefix=(PYTHON, "-c", ACTIVATE, "2", "a:b", "1"))
    assert keeper.ask("listed()") == [] and keeper.ask("open_fds()") == [0, 1, 2]


def test_a_keeper_without_standard_descriptors_keeps(make_keeper):
    keeper = make_keeper(prefix=("sh", "-c", 'exec "$@" <&- >&-', "sh"))
    assert keeper.ask("store_files(*map(str, range(9)))")
    assert keeper.kill_child().ask("intact()") == 9


# --- A replaced program -------------------------------------------------------------------------------


def script(path, version):
    path.with_suffix(".new").write_text(f"#!{PYTHON} -S\nversion = {version}\nexec(open({KEPT!r}).read())\n")
    path.with_suffix(".new").chmod(0o755)
    os.replace(path.with_suffix(".new"), path)
    return path


@pytest.mark.parametrize("by", ["SIGHUP", "its death"])
def test_a_replaced_program_is_started_by(make_keeper, tmp_path, by):
    keeper = make_keeper(command=[script(tmp_path / "program", 1)])
    assert keeper.ask("version") == 1 and keeper.ask("store_files(*%r)" % NAMES)
    for version in 2, 3:
        script(tmp_path / "program", version)
        if by == "SIGHUP":
            keeper.proc.send_signal(signal.SIGHUP)
            keeper.await_child()
        else:
            keeper.kill_child()
        assert keeper.ask("version") == version and keeper.ask("intact()") == len(NAMES)


def test_only_a_start_that_fails_is_waited_for_longer(keeper):
    """A program that has served is started again at once, however often it is killed: each delay is one for readers."""
    for _ in range(4):
        assert keeper.ask("notify('READY=1')")
        keeper.kill_child()
    for _ in range(2):
        keeper.kill_child()
    assert keeper.ask("notify('READY=1')")
    keeper.kill_child()
    delays = re.findall(r"starting it again in (\d+) ms", keeper.log)
    assert delays == ["50"] * 4 + ["100", "200"] + ["50"]


def test_a_replacement_is_not_held_up_by_earlier_deaths(make_keeper, tmp_path):
    keeper = make_keeper(command=[script(tmp_path / "program", 1)])
    assert keeper.ask("store_files('a')")
    (tmp_path / "bad").write_text("#!/bin/false\n")
    (tmp_path / "bad").chmod(0o755)
    os.replace(tmp_path / "bad", tmp_path / "program")
    os.kill(keeper.pid, signal.SIGKILL)
    keeper.await_log("starting it again in 5000 ms")
    script(tmp_path / "program", 2)
    started = time.monotonic()
    keeper.proc.send_signal(signal.SIGHUP)
    assert keeper.await_child().ask("[version, intact()]") == [2, 1]
    assert time.monotonic() - started < 4.5


@pytest.mark.parametrize("flaw", ["garbage", "missing", "forbidden", "a folder"])
def test_a_program_that_cannot_run_gives_way_to_the_old_one(make_keeper, tmp_path, flaw):
    path = tmp_path / "program"
    shutil.copy(PYTHON, path)
    keeper = make_keeper(command=[path, "-S", KEPT])
    assert keeper.ask("store_files('a')")
    path.unlink()
    if flaw == "a folder":
        path.mkdir()
    elif flaw != "missing":
        path.write_bytes(b"\0garbage")
        path.chmod(0o755 if flaw == "garbage" else 0o644)
    keeper.proc.send_signal(signal.SIGHUP)
    assert keeper.await_child().ask("intact()") == 1
    assert f"cannot execute {path}: " in keeper.log
    assert keeper.kill_child().ask("intact()") == 1
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        path.unlink()
    script(path, 7)
    keeper.proc.send_signal(signal.SIGHUP)
    assert keeper.await_child().ask("[version, intact()]") == [7, 1]


# --- The watchdog -------------------------------------------------------------------------------------


def test_a_silent_child_is_aborted(make_keeper):
    keeper = make_keeper("--watchdog-ms", "200")
    assert keeper.ask("[os.environ['WATCHDOG_USEC'], os.environ['WATCHDOG_PID']]") == ["200000", str(keeper.pid)]
    assert keeper.ask("store_files('a')")
    keeper.tell("notify('READY=1')")  # it may not live to see that it has
    keeper.await_child()
    assert "was silent for 200 ms: aborting it" in keeper.log and "ended with signal 6" in keeper.log
    assert keeper.ask("intact()") == 1


def test_a_child_that_is_not_ready_is_not_watched(make_keeper):
    keeper = make_keeper("--watchdog-ms", "100")
    pid = keeper.pid
    assert not select.select([keeper.child], [], [], 0.5)[0]
    assert keeper.ask("os.getpid()") == pid and "silent" not in keeper.log


def test_a_child_that_speaks_is_left_alone(make_keeper):
    """Its time is long against a moment in which neither of us gets a processor."""
    keeper = make_keeper("--watchdog-ms", "4000")
    pid, started = keeper.pid, time.monotonic()
    assert keeper.ask("notify('READY=1')")
    while time.monotonic() - started < 5:
        assert not select.select([keeper.child], [], [], 0.25)[0]
        assert keeper.ask("notify('WATCHDOG=1')")
    assert keeper.ask("os.getpid()") == pid and "silent" not in keeper.log


def test_a_child_that_survives_its_abortion_is_killed(make_keeper):
    keeper = make_keeper("--watchdog-ms", "100")
    assert keeper.ask("store_files('a') and str(signal.signal(signal.SIGABRT, signal.SIG_IGN))")
    keeper.tell("notify('READY=1')")
    keeper.await_child()
    assert "does not end: killing it" in keeper.log and "ended with signal 9" in keeper.log
    assert keeper.ask("intact()") == 1


def test_without_a_watchdog_nobody_is_watched(make_keeper):
    keeper = make_keeper(env={"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    assert keeper.ask("[os.environ.get('WATCHDOG_USEC'), os.environ.get('WATCHDOG_PID')]") == [None, None]


# --- Signals and the end ------------------------------------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_passed_on(keeper, sig):
    keeper.proc.send_signal(sig)
    assert keeper.hear() == ["signal", sig] and keeper.ask("os.getpid()") == keeper.pid


END = "on.update({signal.%s: os._exit}) or 1"


@pytest.mark.parametrize("status", [0, 1, 7])
def test_the_keeper_ends_with_the_status_of_a_child_told_to_end(make_keeper, status):
    keeper = make_keeper(env={"KEPT_STATUS": str(status)})
    keeper.proc.terminate()
    assert keeper.wait() == status


def test_an_end_before_the_child_can_hear_of_it_waits_for_the_child():
    program = f"""if True:
        import os, signal
        os.kill(os.getppid(), signal.SIGTERM)
        while signal.SIGINT not in signal.sigpending():
            os.sched_yield()
        os.execv({PYTHON!r}, [{PYTHON!r}, "-S", {KEPT!r}])
    """
    keeper = Keeper(command=(PYTHON, "-S", "-c", program), env={"KEPT_STATUS": "7"})
    with contextlib.closing(keeper):
        assert keeper.wait() == 7


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_an_end_for_good_is_told_from_one_before_a_successor(keeper, sig):
    for signo in "SIGTERM", "SIGINT":
        keeper.ask(END % signo)
    keeper.proc.send_signal(sig)
    assert keeper.wait() == signal.SIGINT


def test_an_end_before_a_successor_is_told_by_sigterm(keeper):
    assert keeper.ask("store_files('a')")
    keeper.ask("on.update({signal.SIGINT: id}) or 1")
    keeper.ask("on.update({signal.SIGTERM: lambda _: store('testament', memfd(b'x')) and os._exit(0)}) or 1")
    keeper.proc.send_signal(signal.SIGHUP)
    assert keeper.await_child().ask("names()") == ["a", "testament"]


def test_the_keeper_tells_of_a_child_that_a_signal_ended(keeper):
    keeper.ask("str(signal.signal(signal.SIGINT, signal.SIG_DFL)) and on.update({signal.SIGINT: be_killed}) or 1")
    keeper.proc.send_signal(signal.SIGINT)
    assert keeper.wait() == 1


def test_a_child_that_died_before_the_end_is_no_failed_end(keeper):
    with stopped(keeper):
        os.waitid(os.P_PID, keeper.proc.pid, os.WSTOPPED | os.WNOWAIT)
        os.kill(keeper.pid, signal.SIGKILL)
        until(lambda: keeper.is_pending(signal.SIGCHLD), "the keeper hears of it")
        keeper.proc.terminate()
    assert keeper.wait() == 0


@pytest.mark.parametrize("status", [0, 2])
def test_the_keeper_ends_with_a_child_that_wanted_to(keeper, status):
    keeper.tell(f"os._exit({status})")
    assert keeper.wait() == status


def test_a_child_called_wrongly_does_not_cost_what_is_kept(keeper):
    assert keeper.ask("store_files('a')")
    keeper.tell("os._exit(2)")
    assert keeper.await_child().ask("intact()") == 1


def test_an_end_during_a_replacement_wins(keeper):
    keeper.ask("on.update({signal.SIGTERM: id}) or 1")
    keeper.proc.send_signal(signal.SIGHUP)
    keeper.await_log("replacing the daemon")
    keeper.proc.terminate()
    assert keeper.wait() == 0

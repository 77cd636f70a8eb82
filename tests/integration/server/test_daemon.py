"""The daemon as a program: its options, its socket, its service manager and its keeper."""
import contextlib
import errno
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time

import pytest
from lib import features, wire
from lib.daemon import STOP_S, environment
from lib.wire import Closed, Refused, Wire, image, until

WEIGHTD = features.BUILD / "weightd"
LAYOUT = image([("t", 4096)])
HEAD_STATE, READY, GONE = 24, 1, 4  # the lowest byte of head::current, and enum head_state


def run(*args, env=None, **kw):
    """A weightd that ends by itself."""
    return subprocess.run([WEIGHTD, *args], env=environment(**(env or {})), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=STOP_S, **kw)


@pytest.fixture
def start():
    """start(command, env={...}): a process that is ended with the test; its stderr is a pipe."""
    started = []

    def start(*command, env=None, **kw):
        started.append(subprocess.Popen(command, env=environment(**(env or {})), stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, **kw))
        return started[-1]

    yield start
    for proc in started:
        with proc:
            proc.terminate()
            try:
                proc.wait(STOP_S)
            except subprocess.TimeoutExpired:
                proc.kill()


def serves(path):
    with contextlib.suppress(OSError, Closed), Wire(str(path)) as w:
        return w.ping()


def await_service(path, proc):
    def is_up():
        assert proc.poll() is None, proc.stderr.read()
        return serves(path)

    until(is_up, f"{path} is served")
    return serves(path)


def end(proc, sig=signal.SIGTERM):
    proc.send_signal(sig)
    return proc.wait(STOP_S)


# --- Options ----------------------------------------------------------------------------------------


def test_help_and_version_say_what_they_are_asked():
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("Usage: weightd [OPTIONS]\n")
    for option in ("--config", "--check-config", "--socket", "--socket-mode", "--reserve", "--keeper",
                   "--log-level", "--version", "--help"):
        assert f"  {option} " in done.stdout
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "") and re.fullmatch(
        rf"weightd \d+\.\d+\.\d+ \({(features.BUILD / 'weightd').resolve()}\)\n", done.stdout)


@pytest.mark.parametrize("args, said", [
    (["--nonsense"], "unrecognized option '--nonsense'\nTry 'weightd --help'."), (["-x"], "invalid option"),
    (["--socket"], "requires an argument"), (["--keeper=yes"], "doesn't allow an argument"),
    (["start"], "unexpected argument 'start'"), (["--socket-mode", "0999"], "--socket-mode does not take '0999'"),
    (["--socket-mode", "rw"], "--socket-mode does not take 'rw'"),
    (["--socket-mode", ""], "--socket-mode does not take ''"),
    (["--socket-mode", "07777"], "--socket-mode does not take '07777'"),
    (["--reserve", "much"], "--reserve does not take 'much'"), (["--reserve", "-1"], "--reserve does not take '-1'"),
    (["--log-level", "loud"], "--log-level does not take 'loud'"), (["--socket", ""], "cannot be a socket"),
])
def test_a_wrong_option_is_a_usage_error(args, said, tmp_path):
    done = run(*args, env={"WEIGHTD_SOCKET": str(tmp_path / "s")})
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr, done


@pytest.mark.plain  # the runtime of a sanitizer needs /proc itself
@pytest.mark.parametrize("options", [[], ["--keeper"]])
def test_without_proc_it_does_not_start_and_says_so(options, tmp_path, require):
    require("root")
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    done = subprocess.run([*hidden, WEIGHTD, *options, "--socket", tmp_path / "sock"], env=environment(), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=STOP_S)
    assert (done.returncode, done.stderr) == \
        (1, "weightd: cannot serve without /proc: No such file or directory; mount it (mount -t proc proc /proc)\n")
    assert not (tmp_path / "sock").exists()


def test_the_log_level_says_how_much_is_told(start, tmp_path):
    for level, lines in ("error", 0), ("info", 3):
        path = tmp_path / level
        proc = start(WEIGHTD, "--socket", path, "--log-level", level)
        await_service(path, proc)
        assert end(proc) == 0
        assert len(proc.stderr.read().splitlines()) == lines


# --- The path of the socket -------------------------------------------------------------------------


def test_the_option_comes_before_the_variable(start, tmp_path):
    given, other = tmp_path / "given", tmp_path / "other"
    await_service(given, start(WEIGHTD, "--socket", given, env={"WEIGHTD_SOCKET": str(other)}))
    assert not other.exists()


def test_the_variable_comes_before_the_default(start, tmp_path):
    await_service(tmp_path / "s", start(WEIGHTD, env={"WEIGHTD_SOCKET": str(tmp_path / "s"),
                                                      "XDG_RUNTIME_DIR": str(tmp_path)}))
    assert not (tmp_path / "weightd.sock").exists()


def test_the_default_of_root_is_in_run(start, require):
    require("mounts")
    # In a /run of its own: the machine may have a weightd there.
    proc = start("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$0"', WEIGHTD)
    path = f"/proc/{proc.pid}/root/run/weightd/weightd.sock"
    assert await_service(path, proc).pid == proc.pid


def as_user(*command):
    """The command as a user other than root."""
    return command if os.geteuid() else \
        ("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", *command)


@pytest.fixture
def users_weightd(tmp_path_factory):
    """A copy where such a user reaches it, in a folder that is the user's."""
    with tempfile.TemporaryDirectory(prefix="weightd-") as folder:
        path = pathlib.Path(shutil.copy(WEIGHTD, folder))
        if os.geteuid() == 0:
            os.chown(folder, 12345, 12345)
        yield path


def test_the_default_of_a_user_is_in_the_runtime_folder(start, users_weightd):
    folder = users_weightd.parent
    proc = start(*as_user(users_weightd), env={"XDG_RUNTIME_DIR": str(folder)})
    server = await_service(folder / "weightd.sock", proc)
    assert server.pid == proc.pid
    with Wire(str(folder / "weightd.sock")) as w:
        w.publish(w.create("m", LAYOUT).writer)
        assert w.attach("m").bytes() == bytes(4096)


def test_a_user_without_a_runtime_folder_of_its_own_has_to_say_where(users_weightd):
    env = environment()
    env.pop("XDG_RUNTIME_DIR", None)
    for more in {}, {"XDG_RUNTIME_DIR": "/"}:  # another user's
        done = subprocess.run(as_user(users_weightd), env=env | more, capture_output=True, text=True, timeout=STOP_S)
        assert done.returncode == 2
        assert "no path to listen on: give --socket PATH, or set WEIGHTD_SOCKET, or XDG_RUNTIME_DIR to a folder of this user" \
            in done.stderr


def test_the_socket_of_a_live_daemon_is_left_alone(daemon):
    before = os.stat(daemon.socket)
    done = run("--socket", daemon.socket)
    assert done.returncode == 1
    assert f"another weightd listens on {daemon.socket}; stop it, or give another --socket" in done.stderr
    assert os.stat(daemon.socket) == before and serves(daemon.socket).pid == daemon.pid


def test_the_socket_of_a_dead_daemon_is_replaced(daemon):
    daemon.kill()
    assert os.path.exists(daemon.socket)
    daemon.start()
    assert serves(daemon.socket).pid == daemon.pid


def test_whoever_listens_there_is_left_alone(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.bind(path)
        stranger.listen()
        done = run("--socket", path)
        assert done.returncode == 1 and f"{path} is in the way: a process listens there" in done.stderr
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(path)


@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "link", "broken link"])
def test_what_is_no_socket_is_not_removed(tmp_path, kind):
    path = tmp_path / "s"
    {"file": lambda: path.write_text("precious"), "folder": path.mkdir, "fifo": lambda: os.mkfifo(path),
     "link": lambda: path.symlink_to("/dev/null"), "broken link": lambda: path.symlink_to("nowhere")}[kind]()
    before = os.lstat(path)
    done = run("--socket", path)
    assert done.returncode == 1
    assert f"{path} is in the way: it is not a socket; remove it, or give another --socket" in done.stderr
    assert os.lstat(path) == before


@pytest.mark.parametrize("n", [107, 108, 500])
def test_a_path_has_107_bytes_at_most(start, n):
    with tempfile.TemporaryDirectory(prefix="weightd-") as folder:
        path = os.path.join(folder, "x" * (n - len(folder) - 1))
        if n <= 107:
            assert await_service(path, start(WEIGHTD, "--socket", path))
            return
        done = run("--socket", path)
        assert done.returncode == 2 and "cannot be a socket: a path has 1 to 107 bytes" in done.stderr
        assert os.listdir(folder) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    done = run("--socket", tmp_path / "none" / "s")
    assert done.returncode == 1 and str(tmp_path / "none") in done.stderr and "No such file" in done.stderr


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("args, mode", [([], 0o660), (["--socket-mode", "0600"], 0o600),
                                        (["--socket-mode", "666"], 0o666)])
def test_the_socket_has_the_mode_it_should_have(start, tmp_path, args, mode, umask):
    path = tmp_path / "s"
    await_service(path, start(WEIGHTD, "--socket", path, *args, umask=umask))
    assert stat.S_IMODE(path.stat().st_mode) == mode


# --- The end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_whatever_its_clients_do(daemon, sig):
    with contextlib.ExitStack() as stack:
        reader, waiter, maker, publisher, stranger = \
            [stack.enter_context(Wire(daemon.socket, greet=i < 4)) for i in range(5)]
        reader.publish(reader.create("m", LAYOUT).writer)
        lease = reader.attach("m")
        waiter.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(b"m", b"", 9, -1))
        slot = publisher.create("n", LAYOUT)
        with slot.map():  # the mapping keeps the publish busy
            publisher.send(wire.PUBLISH, wire.BODIES[wire.PUBLISH].pack(slot.writer, 0, 0, b""))
            fd = wire.memfd(image([("t", 1 << 30)]))
            maker.send(wire.CREATE, wire.create_body("big"), [fd])
            os.close(fd)
            daemon.kill(sig)
        assert daemon.proc.returncode == 0, daemon.log
        for client in reader, waiter, maker, publisher, stranger:
            client.hang_up()
        assert lease.bytes() == bytes(4096), "what a reader has mapped stays"
    assert not os.path.exists(daemon.socket)


# --- The service manager ----------------------------------------------------------------------------

ACTIVATE = """
import fcntl, os, sys
n = int(sys.argv[1])
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[2:2 + n]]
for i, fd in enumerate(fds):
    os.dup2(fd, 3 + i)
os.environ.update(LISTEN_FDS=str(n), LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2 + n], sys.argv[2 + n:])
"""


@pytest.fixture
def activate(start):
    """activate(sockets, *args): a weightd that gets these sockets as systemd passes them on."""
    def activate(sockets, *args, **kw):
        fds = [s.fileno() for s in sockets]
        return start(sys.executable, "-c", ACTIVATE, str(len(fds)), *map(str, fds), WEIGHTD, *args,
                     pass_fds=fds, **kw)

    return activate


@contextlib.contextmanager
def listening(path, kind=socket.SOCK_SEQPACKET):
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            s.listen()
        yield s


def test_a_socket_that_was_passed_on_is_served_and_stays(activate, tmp_path):
    path, other = tmp_path / "s", tmp_path / "other"
    with listening(path) as s:
        proc = activate([s], env={"WEIGHTD_SOCKET": str(other)})
        assert await_service(path, proc).pid == proc.pid
        assert not other.exists()
        assert end(proc) == 0 and path.exists()
        early = Wire(str(path), greet=False)  # no server is there
        proc = activate([s])
        early.hello()
        assert early.ping().pid == proc.pid
        early.close()


def test_the_option_comes_before_a_socket_that_was_passed_on(activate, tmp_path):
    with listening(tmp_path / "passed") as s:
        proc = activate([s], "--socket", tmp_path / "given")
        assert await_service(tmp_path / "given", proc)


WRONG_SOCKETS = {
    "a stream": lambda path: [listening(path, socket.SOCK_STREAM)],
    "datagrams": lambda path: [listening(path, socket.SOCK_DGRAM)],
    "TCP": lambda path: [socket.create_server(("127.0.0.1", 0))],
    "not listening": lambda path: [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)],
    "no socket": lambda path: [open("/dev/null")],
    "two": lambda path: [listening(path), listening(f"{path}2")],
}


@pytest.mark.parametrize("kind", WRONG_SOCKETS)
def test_another_socket_that_was_passed_on_is_refused(activate, tmp_path, kind):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(s) for s in WRONG_SOCKETS[kind](tmp_path / "s")]
        proc = activate(sockets, env={"WEIGHTD_SOCKET": str(tmp_path / "other")})
        assert proc.wait(STOP_S) != 0
        assert "the service manager must pass on one SOCK_SEQPACKET socket" in proc.stderr.read()
        assert not (tmp_path / "other").exists()


def test_what_a_later_weightd_has_stored_is_not_listened_on(activate, tmp_path):
    with listening(tmp_path / "s") as s, listening(tmp_path / "later") as later:
        names = "weightd.socket:x" + 16 * "0"
        proc = activate([s, later], env={"LISTEN_FDNAMES": names})
        assert await_service(tmp_path / "s", proc).pid == proc.pid
        with Wire(str(tmp_path / "s")) as w:
            assert w.stat().n_quarantined == 1
        assert end(proc) == 0 and f"descriptor 'x{16 * '0'}' from the store belongs to no served buffer" in proc.stderr.read()


def test_sockets_meant_for_another_process_are_not_taken(start, tmp_path):
    env = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "WEIGHTD_SOCKET": str(tmp_path / "s")}
    assert await_service(tmp_path / "s", start(WEIGHTD, env=env))


def await_notice(manager, line):
    """The service manager's messages, up to one with this line, those with descriptors included."""
    heard = []
    while line not in heard:
        heard += manager.recv(4096).decode().splitlines()
    return heard


@pytest.mark.parametrize("address", ["path", "abstract"])
def test_the_service_manager_is_told_of_start_and_stop(start, tmp_path, address):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = str(tmp_path / "notify") if address == "path" else f"@weightd-test-{os.getpid()}"
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(STOP_S)
        proc = start(WEIGHTD, "--socket", path, env={"NOTIFY_SOCKET": name})
        await_notice(manager, "READY=1")
        with Wire(str(path)) as w:  # at once: that is what ready means
            assert w.ping().pid == proc.pid
        proc.terminate()
        assert "READY=1" not in await_notice(manager, "STOPPING=1")
        assert proc.wait(STOP_S) == 0


def hear_stored(manager):
    """The names of what is handed over up to a barrier, and the barrier."""
    names = []
    while True:
        said, fds, _, _ = socket.recv_fds(manager, 4096, 8)
        assert len(fds) == 1
        if said == b"BARRIER=1":
            return names, fds[0]
        os.close(fds[0])
        said = said.decode().splitlines()
        assert [line.partition("=")[0] for line in said] == ["FDSTORE", "FDNAME", "FDPOLL"], said
        assert (said[0], said[2]) == ("FDSTORE=1", "FDPOLL=0")
        names.append(said[1].removeprefix("FDNAME="))
        assert 0 < len(names[-1]) <= 20


def test_what_a_create_makes_is_stored_first_and_a_publish_stores_nothing(start, tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(STOP_S)
        start(WEIGHTD, "--socket", path, env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        await_notice(manager, "READY=1")
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4096)
        manager.settimeout(STOP_S)
        with Wire(path) as w, Wire(path) as other:
            w.send_create("m", LAYOUT)
            names, barrier = hear_stored(manager)
            assert "".join(sorted(name[0] for name in names)) == "hmst" and len(set(names)) == 4
            assert other.ping() and w.is_silent(), "it alone waits for the barrier"
            os.close(barrier)
            slot = w.slot(w.answer(wire.CREATE))
            w.publish(slot.writer)
            other.detach(other.attach("m").lease)
            manager.setblocking(False)
            with pytest.raises(BlockingIOError):
                manager.recv(4096)
            manager.settimeout(STOP_S)
            w.drop("m")
            w.close()
            other.close()
            gone = [manager.recv(4096).decode() for _ in names]
        assert sorted(gone) == sorted(f"FDSTOREREMOVE=1\nFDNAME={name}" for name in names)
        assert gone[-1].partition("FDNAME=")[2][0] == "m", "the manifest is removed last, as it lists the rest"


@pytest.mark.parametrize("limit, is_too_few", [(6000, True), (7000, False)])
def test_a_limit_on_descriptors_that_cannot_take_back_what_is_kept_is_told(make_daemon, tmp_path, limit, is_too_few):
    features.require_descriptors(limit)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:  # one without a limit for the descriptors that it keeps
        manager.bind(str(tmp_path / "notify"))
        daemon = make_daemon(prefix=("prlimit", f"--nofile={limit}:{limit}"),
                             env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        warning = "the limit of 6000 open descriptors is too low for the 6000 that can be kept"
        assert (warning in daemon.log) == is_too_few and ("LimitNOFILE=" in daemon.log) == is_too_few


def test_a_failed_start_is_not_ready(tmp_path):
    (tmp_path / "s").write_text("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        assert run("--socket", tmp_path / "s", env={"NOTIFY_SOCKET": str(tmp_path / "notify")}).returncode == 1
        with pytest.raises(BlockingIOError):
            manager.recv(4096)


# --- Without libsystemd -----------------------------------------------------------------------------


def test_a_machine_without_libsystemd_runs_weightd(without_libsystemd, make_daemon, tmp_path):
    """With a service manager, too, which has no watchdog and passes no descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(STOP_S)
        daemon = make_daemon(prefix=without_libsystemd, env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        await_notice(manager, "READY=1")
        assert "libsystemd" not in pathlib.Path(f"/proc/{daemon.pid}/maps").read_text()


@pytest.mark.parametrize("given", ["LISTEN_FDS", "WATCHDOG_USEC", "--keeper"])
def test_what_needs_libsystemd_fails_without_it_and_names_the_package(without_libsystemd, tmp_path, given):
    option = [given] if given.startswith("--") else []
    env = {} if option else {given: "1", "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        done = subprocess.run([*without_libsystemd, WEIGHTD, "--socket", tmp_path / "s", *option], env=environment(**env),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STOP_S)
    assert done.returncode == 2, done.stderr
    assert ("LISTEN_FDS" if given == "LISTEN_FDS" else "WATCHDOG_USEC") in done.stderr, done.stderr
    assert "libsystemd.so.0" in done.stderr and "install it (Debian's package libsystemd0)" in done.stderr, done.stderr


# --- The keeper -------------------------------------------------------------------------------------


def is_gone(pid):
    try:
        return "State:\tZ" in pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter between opening and reading
        return True


@pytest.mark.parametrize("option", ["--keeper", "--kee"])
def test_the_keeper_starts_a_dead_daemon_again(make_daemon, option):
    daemon = make_daemon(option)
    pids = set()
    for sig in signal.SIGKILL, signal.SIGABRT:
        pid = serves(daemon.socket).pid
        pids.add(pid)
        os.kill(pid, sig)
        until(lambda: is_gone(pid), "the daemon is dead")
        until(lambda: serves(daemon.socket), "it serves again")
    pids |= {serves(daemon.socket).pid, daemon.pid}
    assert len(pids) == 4, pids
    assert f"ended with signal {int(signal.SIGKILL)}; starting it again" in daemon.log


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [[], ["--keeper"]])
def test_an_end_for_good_is_told_to_readers_and_leaves_no_socket(make_daemon, options, sig):
    daemon = make_daemon(*options)
    pid = serves(daemon.socket).pid
    with Wire(daemon.socket) as w:
        for i in range(50):  # more than a queue of notices has room for
            slot = w.create(f"m{i}", LAYOUT)
            w.publish(slot.writer)
            w.forget(slot.fds)
        w.create("unfinished", LAYOUT)
        with w.attach("m0").head() as head:
            assert head[HEAD_STATE] == READY
            daemon.kill(sig)
            assert head[HEAD_STATE] == GONE
    assert daemon.proc.returncode == 0 and "did not receive all messages" not in daemon.log, daemon.log
    assert is_gone(pid) and not os.path.exists(daemon.socket)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_writer_that_has_not_come_back_holds_up_no_end(make_daemon, sig):
    daemon = make_daemon("--keeper")
    with Wire(daemon.socket) as w:
        w.create("unfinished", LAYOUT)
        pid = w.ping().pid
        os.kill(pid, signal.SIGKILL)
        w.hang_up()
        until(lambda: "1 of them being written" in daemon.log, "it has recovered the writer, which lives")
    daemon.kill(sig)
    assert daemon.proc.returncode == 0 and not os.path.exists(daemon.socket), daemon.log


def test_an_end_for_a_successor_leaves_the_socket_and_heads_as_they_are(make_daemon):
    daemon = make_daemon("--keeper")
    inode, pid = os.stat(daemon.socket).st_ino, serves(daemon.socket).pid
    with Wire(daemon.socket) as w:
        w.publish(w.create("m", LAYOUT).writer)
        with w.attach("m").head() as head:
            daemon.proc.send_signal(signal.SIGHUP)
            until(lambda: (next_one := serves(daemon.socket)) and next_one.pid != pid, "the next one serves")
            assert head[HEAD_STATE] == READY
    assert os.stat(daemon.socket).st_ino == inode
    with Wire(daemon.socket) as w:
        assert w.names() == ["m"]


def test_the_keeper_ends_with_a_daemon_that_was_asked_to(make_daemon):
    daemon = make_daemon("--keeper")
    os.kill(serves(daemon.socket).pid, signal.SIGINT)
    assert daemon.proc.wait(STOP_S) == 0
    assert not os.path.exists(daemon.socket)


def test_a_daemon_serves_on_without_its_keeper(make_daemon):
    """But it makes nothing that would not survive."""
    daemon = make_daemon("--keeper")
    pid = serves(daemon.socket).pid
    with Wire(daemon.socket) as w:
        w.publish(w.create("m", LAYOUT).writer)
    environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    folder = next(pathlib.Path(os.fsdecode(e)).parent for e in environ if e.startswith(b"NOTIFY_SOCKET="))
    daemon.kill(signal.SIGKILL)
    try:
        assert serves(daemon.socket).pid == pid
        with Wire(daemon.socket) as w:
            for name in "m", "n", "n":
                with pytest.raises(Refused, match="restart weightd") as failed:
                    w.create(name, LAYOUT)
                assert failed.value.errno == errno.ENOTRECOVERABLE
            assert w.names() == ["m"] and w.attach("m").version == 1
    finally:
        os.kill(pid, signal.SIGTERM)
        shutil.rmtree(str(folder).removeprefix("NOTIFY_SOCKET="))  # no process was left to do it
    until(lambda: is_gone(pid), "the daemon is gone")
    assert not os.path.exists(daemon.socket)


@pytest.mark.parametrize("args", [["--socket", "/" + "x" * 108], ["--reserve", "much"], ["--nonsense"]])
def test_the_keeper_gives_up_on_wrong_usage(args):
    assert run("--keeper", *args).returncode == 2


def test_the_keeper_tries_again_until_it_is_told_to_end(start, tmp_path):
    (tmp_path / "s").write_text("in the way")
    keeper = start(WEIGHTD, "--keeper", "--socket", tmp_path / "s")
    n_tries = 0
    for line in keeper.stderr:
        n_tries += "ended with status 1; starting it again" in line
        if n_tries == 2:
            break
    (tmp_path / "s").unlink()
    await_service(tmp_path / "s", keeper)
    assert end(keeper) == 0


def test_the_keeper_can_be_told_to_end_between_two_tries(start, tmp_path):
    (tmp_path / "s").write_text("in the way")
    keeper = start(WEIGHTD, "--keeper", "--socket", tmp_path / "s")
    for line in keeper.stderr:
        if "starting it again in 3200 ms" in line:
            break
    started = time.monotonic()
    assert end(keeper) == 0 and time.monotonic() - started < 3


# --- The log ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("reader", ["is gone", "does not read"])
def test_a_log_that_nobody_reads_holds_up_nobody(tmp_path, reader):
    path, (read_end, write_end) = str(tmp_path / "s"), os.pipe()
    if reader == "does not read":
        os.set_blocking(write_end, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(write_end, bytes(4096)):
                pass
        os.set_blocking(write_end, True)
    else:
        os.close(read_end)
    with subprocess.Popen([features.BUILD / "weightd", "--socket", path], env=environment(),
                          stdin=subprocess.DEVNULL, stderr=write_end) as proc:
        os.close(write_end)
        await_service(path, proc)
        with Wire(path) as w:
            w.publish(w.create("m", image([("t", 64)])).writer)  # a line of the log
            assert w.names() == ["m"]
        assert end(proc) == 0

"""Places in which a client looks for its server: the default paths, a socket that is being made, one for other users."""
import contextlib
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from lib import features
from lib.daemon import STOP_S, copy_for_others, environment
from lib.fake_server import PATIENCE_S, later
from lib.native import Client, Failed
from lib.wire import Wire, until

SYSTEM = "/run/weightd/weightd.sock"
USER, GROUP = 12345, 23456
OLD_S = 3600
ATTEMPTS = 5


@pytest.fixture
def folder():
    """A folder of the user's."""
    with tempfile.TemporaryDirectory(prefix="weightd-") as path:
        os.chmod(path, 0o755)
        if os.geteuid() == 0:
            os.chown(path, USER, USER)
        yield pathlib.Path(path)


class Machine:
    """A /run of its own, in which root runs weightd without naming a socket; others may use it or not."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        self.system = None

    def start(self, *args, user=None, **env):
        command = [copy_for_others("weightd", self.folder), *args]
        if self.system is None:
            command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o mode=755 none /run && exec "$0" "$@"', *command]
        else:
            command = self.command(command, user)
        self.started.append(subprocess.Popen(command, env=self.environment(env), stdin=subprocess.DEVNULL,
                                             stderr=subprocess.PIPE, text=True))
        proc = self.started[-1]
        self.system = self.system or proc
        path = env["XDG_RUNTIME_DIR"] + "/weightd.sock" if user else f"/proc/{proc.pid}/root{SYSTEM}"

        def is_up():
            assert proc.poll() is None, proc.stderr.read()
            try:
                with Wire(path) as w:
                    return w.ping().pid == proc.pid
            except OSError:
                return False

        until(is_up, f"weightd serves {path}")
        return proc

    @staticmethod
    def environment(env):
        return {k: v for k, v in environment().items() if k != "XDG_RUNTIME_DIR"} | env

    def command(self, command, user):
        become = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if user else ()
        return ["nsenter", "-t", str(self.system.pid), "--mount", "--", *become, *command]

    def ctl(self, *args, user=USER, **env):
        return subprocess.run(self.command([copy_for_others("weightctl", self.folder), *args], user), text=True,
                              env=self.environment(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=60)

    def found(self, **kw):
        """The process that answers."""
        done = self.ctl("ping", **kw)
        assert done.returncode == 0, done.stderr
        pid = int(dict(line.split(maxsplit=1) for line in done.stdout.splitlines())["PID"])
        return next(proc for proc in self.started if proc.pid == pid)

    def close(self):
        for proc in self.started:
            with proc:
                proc.terminate()
                proc.wait(STOP_S)


@pytest.fixture
def machine(folder, require):
    require("mounts")
    machine = Machine(folder)
    yield machine
    machine.close()


# --- The default paths ------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [USER, None], ids=["a user", "root"])
def test_the_system_s_server_is_found_without_a_variable(machine, folder, user):
    system = machine.start("--socket-mode", "0666")
    assert machine.found(user=user) is system
    assert machine.found(user=user, XDG_RUNTIME_DIR=str(folder)) is system, "with an empty folder of one's own"
    assert machine.found(user=user, XDG_RUNTIME_DIR="/nowhere") is system


def test_a_closed_folder_of_somebody_else_is_passed_over(machine, folder):
    system = machine.start("--socket-mode", "0666")
    (folder / "closed").mkdir(0o700)  # it belongs to root, as sudo -u leaves it
    assert machine.found(XDG_RUNTIME_DIR=str(folder / "closed")) is system


def test_an_open_folder_of_somebody_else_is_passed_over(machine, folder):
    """As su and sudo -E leave it: root does not ask the server of a user, nor one user that of another."""
    system = machine.start("--socket-mode", "0666")
    own = machine.start("--socket-mode", "0666", user=USER, XDG_RUNTIME_DIR=str(folder))
    assert machine.found(XDG_RUNTIME_DIR=str(folder)) is own
    assert machine.found(user=None, XDG_RUNTIME_DIR=str(folder)) is system
    assert machine.found(user=USER + 1, XDG_RUNTIME_DIR=str(folder)) is system


def test_one_s_own_server_comes_first_until_it_is_gone(machine, folder):
    system = machine.start("--socket-mode", "0666")
    own = machine.start(user=USER, XDG_RUNTIME_DIR=str(folder))
    assert machine.found(XDG_RUNTIME_DIR=str(folder)) is own
    assert machine.found() is system
    own.kill()
    own.wait(STOP_S)
    assert (folder / "weightd.sock").is_socket()
    assert machine.found(XDG_RUNTIME_DIR=str(folder)) is system


def test_the_folder_of_the_system_s_socket_is_open_to_all_whatever_the_umask(machine):
    before = os.umask(0o077)
    try:
        machine.start()
    finally:
        os.umask(before)
    st = os.stat(f"/proc/{machine.system.pid}/root/run/weightd")
    assert (st.st_uid, st.st_mode & 0o7777) == (0, 0o755)


def test_without_any_server_both_places_and_both_ways_out_are_named(machine, folder):
    machine.start()
    machine.system.send_signal(signal.SIGSTOP)  # it holds the name space, and its socket is taken away
    try:
        os.unlink(f"/proc/{machine.system.pid}/root{SYSTEM}")
        done = machine.ctl("ls", XDG_RUNTIME_DIR=str(folder))
    finally:
        machine.system.send_signal(signal.SIGCONT)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        f"weightctl: no weightd answers at {folder}/weightd.sock (No such file or directory) or {SYSTEM} (No such file or "
        "directory); start the system's (systemctl start weightd.socket) or one of your own (weightd), or set WEIGHTD_SOCKET "
        "to another socket\n")


def test_the_package_finds_the_system_s_server_too(machine, folder):
    features.require("library")
    machine.start()
    code = "import weightd; weightd.attach('none')"
    done = subprocess.run(machine.command([sys.executable, "-c", code], None), text=True, stdin=subprocess.DEVNULL,
                          env=machine.environment({"PYTHONPATH": str(features.ROOT / "libclient/python"),
                                                   "XDG_RUNTIME_DIR": str(folder)}), capture_output=True, timeout=60)
    assert "NotFound: there is no buffer 'none' on host" in done.stderr, done.stderr


# --- A socket that admits others --------------------------------------------------------------------


def ctl_as_user(daemon, folder, *args):
    command = [copy_for_others("weightctl", folder), *args]
    return subprocess.run(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command], env=daemon.env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("gid, name", [(GROUP, str(GROUP)), (1, "daemon")])
def test_a_socket_of_a_group_names_the_group(daemon, folder, require, gid, name):
    require("root")
    os.chown(daemon.socket, 0, gid)
    done = ctl_as_user(daemon, folder, "ls")
    assert done.returncode == 1 and done.stderr == (
        f"weightctl: this user may not connect to weightd at {daemon.socket}: it is for the group '{name}'; become a member "
        f"(usermod -aG {name} USER, by root) and log in anew; or set WEIGHTD_SOCKET to another socket\n")


def test_a_socket_of_one_user_names_the_user(make_daemon, folder, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0600")
    done = ctl_as_user(daemon, folder, "ls")
    assert done.returncode == 1 and "it is for its owner, 'root', alone" in done.stderr and "start" not in done.stderr


def test_a_closed_folder_names_its_group(daemon, folder, require):
    require("root")
    os.chmod(daemon.folder, 0o710)
    os.chown(daemon.folder, 0, GROUP)
    done = ctl_as_user(daemon, folder, "ls")
    assert done.returncode == 1 and f"it is for the group '{GROUP}'" in done.stderr


@pytest.mark.parametrize("verb, option", [(("sync", "status"), "--sync-socket"), (("trace", "doctor"), "--trace-socket")])
def test_the_sockets_of_the_agents_name_their_group_too(daemon, folder, require, verb, option):
    require("root")
    os.chown(daemon.socket, 0, GROUP)
    done = ctl_as_user(daemon, folder, *verb, option, daemon.socket)
    assert done.returncode == 1 and f"it is for the group '{GROUP}'" in done.stderr, done.stderr


# --- A socket that is being made --------------------------------------------------------------------


def n_watches():
    """How many folders this process watches: a client does while it waits."""
    n = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since, as that of the list is
            n += os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:inotify"
    return n


def check_waits_for(daemon, path, prepare):
    """A client that finds what prepare() makes waits for the socket that takes its place: for a moment, hence again."""
    def attempt():
        path.unlink(missing_ok=True)
        prepare()
        before = n_watches()
        client = Client()
        asked = later(client.connect, str(path))
        until(lambda: asked.done() or n_watches() > before, "it waits or fails")
        path.unlink(missing_ok=True)
        path.symlink_to(daemon.socket)
        with contextlib.closing(client), contextlib.suppress(Failed):
            asked.result(PATIENCE_S)
            return client.ping().pid == daemon.pid
        return False

    until(attempt, "a client found it")


@pytest.mark.plain
def test_a_socket_that_is_being_made_is_waited_for(daemon, tmp_path):
    def change():
        (tmp_path / "change").touch()
        (tmp_path / "change").unlink()

    check_waits_for(daemon, tmp_path / "new", change)


@pytest.mark.plain
def test_a_socket_that_is_made_anew_is_waited_for_while_the_old_one_refuses(daemon, tmp_path):
    """As a service manager does: it closes, removes and makes it. A file that is no socket refuses like an old one."""
    path = tmp_path / "s"
    check_waits_for(daemon, path, lambda: path.symlink_to(os.devnull))


@pytest.mark.plain
def test_a_server_that_is_not_there_is_not_waited_for(tmp_path):
    def n_waits():
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        with Client() as client, pytest.raises(Failed, match="no weightd answers at"):
            client.connect(str(tmp_path / "none"))
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before

    os.utime(tmp_path, (time.time() - OLD_S,) * 2)
    assert min(n_waits() for _ in range(ATTEMPTS)) == 0, "the kernel never put it to sleep"


@pytest.mark.plain
def test_one_s_own_socket_that_is_still_being_made_is_named_once(tmp_path, monkeypatch):
    """Without the system's, which was not tried. A change of its mode keeps the socket fresh."""
    path = tmp_path / "weightd.sock"
    monkeypatch.delenv("WEIGHTD_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s, Client() as client:
        s.bind(str(path))
        asked = later(client.connect, "")
        until(lambda: path.chmod(0o600) or asked.done(), "it gives up")
        with pytest.raises(Failed) as failed:
            asked.result(PATIENCE_S)
    assert failed.value.sentence.count(f"{path} (Connection refused)") == 1, failed.value.sentence

"""The control socket of weightd-sync: permissions of its requests, and clients that must not hold up the others."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess

import pytest
from integration.sync.test_agent import authority, b, make, sync_only
from lib.nodes import PATIENCE_S, Control

__all__ = ["authority", "b", "make", "sync_only"]


def test_a_client_that_does_not_read_holds_up_nobody(b):
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            c = stack.enter_context(Control(b.socket))
            c.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    c.say(op="nodes")
        for _ in range(20):
            assert b.ask(op="nodes")[-1] == {"end": True}


@pytest.mark.parametrize("request_, error", [
    ({}, "a request names what it wants by 'op'"),
    ({"op": "dance"}, "this agent knows no request 'dance'"),
    ({"op": "history", "n": -1}, "'n' is a number of syncs, 256 at most"),
    ({"op": "status", "sync": 7}, "'sync' names a sync, by its 16 digits"),
    ({"op": "cancel", "sync": "0123456789abcdef"}, "0123456789abcdef"),
])
def test_a_request_that_is_wrong_is_answered_with_a_sentence(b, request_, error):
    last = b.ask(**request_)[-1]
    assert last["end"] and error in last["error"] and last["code"], last


def test_what_is_no_request_ends_the_connection(b):
    for data in (b"no json", b"[]", b"\xff" * 1000):
        with Control(b.socket) as c:
            c.socket.send(data)
            assert c.hear() is None
    assert b.ask(op="history")[-1] == {"end": True}


def opened(agent):
    """The files of its descriptors."""
    found = []
    for fd in pathlib.Path(f"/proc/{agent.proc.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(fd))
    return found


def test_a_client_that_sends_descriptors_is_hung_up_on(b, tmp_path):
    """They do not even arrive: closing one may wait for the server of its file system."""
    path = tmp_path / "file"
    with Control(b.socket) as c, open(path, "wb") as file:
        socket.send_fds(c.socket, [b'{"op":"nodes"}'], [file.fileno()] * 8)
        assert c.hear() is None
    assert b.ask(op="nodes")[-1] == {"end": True}
    assert str(path) not in opened(b)


ASK = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(sys.argv[2].encode())
while True:
    p = json.loads(s.recv(1 << 17))
    if p.get("end"):
        print(json.dumps(p))
        break
"""


def ask_as(agent, user, group, groups, **request):
    done = subprocess.run(["/usr/bin/python3", "-c", ASK, agent.socket, json.dumps(request)], user=user, group=group,
                          extra_groups=groups, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_only_operators_push_and_cancel(make, require):
    require("root")
    agent = make("a", {}, access={"operators": "4711"}).start()
    for request in ({"op": "push", "buffer": "m"}, {"op": "cancel", "sync": "0123456789abcdef"}):
        refused = ask_as(agent, 12345, 12345, [], **request)
        assert refused["code"] == "permission" and "'4711'" in refused["error"], refused
        for group, groups in ((4711, []), (12345, [4711])):
            assert ask_as(agent, 12345, group, groups, **request).get("code") != "permission"
    assert ask_as(agent, 12345, 12345, [], op="nodes") == {"end": True}


@contextlib.contextmanager
def many_connections(agent, user, n=300):
    """As many of a user as there can be, and none of them reads."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([]), os.setgid(user), os.setuid(user)
        held = []
        with contextlib.suppress(OSError):
            for _ in range(n):
                held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                held[-1].setblocking(False)
                held[-1].connect(agent.socket)
        signal.pause()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_one_user_does_not_take_all_places(make, require):
    require("root")
    agent = make("a", {}).start()
    with many_connections(agent, 12345):
        agent.logs("a client of the control socket is turned away: Too many users")
        assert agent.ask(op="nodes")[-1] == {"end": True}


def test_all_users_together_leave_root_some_places(make, require):
    """As each of the first keeps to what one user may have, the last is turned away for all of them."""
    require("root")
    agent = make("a", {}).start()
    with contextlib.ExitStack() as stack:
        for i, n in enumerate([64, 64, 64, 49]):
            stack.enter_context(many_connections(agent, 12345 + i, n))
        agent.logs("a client of the control socket is turned away: Too many users")
        with contextlib.ExitStack() as roots:
            for _ in range(16):
                control = roots.enter_context(Control(agent.socket))
                control.say(op="nodes")
                assert list(control.rest())[-1] == {"end": True}

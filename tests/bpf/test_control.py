"""The control socket: refusals, and clients that must not hold up others."""
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest
from bpf.traffic import storm, sum_of_events
from lib import features, tracing
from lib.daemon import STOP_S
from lib.tracing import Client, Refused, Tracer

ROW = {"sync": "s", "version": 1, "peer": "b", "role": "payload"}
NOBODY, SOMEBODY = 65534, 12345


@pytest.fixture
def tracer(either_tracer):
    return either_tracer


@pytest.fixture
def sock():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as s:
        yield s


def without(key):
    return {k: v for k, v in ROW.items() if k != key}


@pytest.mark.parametrize("request_, why", [
    ({}, "'op' must be"), ({"op": "nonsense"}, "'op' must be"), ({"op": 1}, "'op' must be"),
    ({"op": "tag"} | ROW, "must carry the descriptor of the socket"),
    ({"op": "begin"}, "'sync' must be"), ({"op": "begin", "sync": ""}, "'sync' must be"),
    ({"op": "begin", "sync": "x" * 128}, "'sync' must be"), ({"op": "read", "sync": 1}, "'sync' must be"),
    ({"op": "end", "sync": "none"}, "'none' has not begun"), ({"op": "forget"}, "'sync' must be"),
])
def test_a_wrong_request_is_refused_with_a_reason(tracer, request_, why):
    client = tracer.client()
    client.socket.send(json.dumps(request_).encode())
    answer = client.hear()
    assert answer["end"] is True and why in answer["error"]
    assert client.ask("read", sync="s") == []


@pytest.mark.parametrize("packet", [b"\0", b"[]", b"{", b'{"op":"read","op":"end"}', b"\xff" * 100, b" " * 5000, b"[" * 4000])
def test_what_is_no_request_is_refused(tracer, packet):
    client = tracer.client()
    client.socket.send(packet)
    assert "object of JSON" in client.hear()["error"]
    assert client.ask("read", sync="s") == []


@pytest.mark.parametrize("row, why", [
    (without("sync"), "'sync'"), (without("peer"), "'peer'"), (without("version"), "'version'"),
    (without("role"), "'role'"), (ROW | {"version": -1}, "'version'"), (ROW | {"version": "1"}, "'version'"),
    (ROW | {"role": "other"}, "'role'"), (ROW | {"peer": "x" * 128}, "'peer'"),
    (ROW | {"dialled": 1}, "'dialled'"),
])
def test_a_row_has_to_be_named(tracer, sock, row, why):
    with pytest.raises(Refused, match=why):
        tracer.client().ask("tag", [sock.fileno()], **row)


def client_as(tracer, uid):
    os.seteuid(uid)
    try:
        return tracer.client()
    finally:
        os.seteuid(0)


def n_descriptors(tracer):
    return len(os.listdir(f"/proc/{tracer.proc.pid}/fd"))


def test_only_sockets_of_tcp_are_tagged(tracer, sock, tmp_path):
    client = tracer.client()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, open(os.devnull, "rb") as null, \
            socket.socket(socket.AF_UNIX) as local:
        for s in udp, null, local:
            with pytest.raises(Refused, match="no TCP socket|not a socket|on non-socket"):
                client.ask("tag", [s.fileno()], **ROW)
    assert client.ask("read", sync="s") == [], "nothing is counted, which is not 0"
    n = n_descriptors(tracer)
    for _ in range(10):
        client.ask("tag", [sock.fileno()], **ROW)
        for many in 2, 3, 200:
            with pytest.raises(Refused, match="at most one descriptor"):
                client.ask("tag", [sock.fileno()] * many, **ROW)
    assert n_descriptors(tracer) == n, "descriptors of others are not kept"


def test_a_span_begins_once(tracer):
    client = tracer.client()
    client.ask("begin", sync="s")
    with pytest.raises(Refused, match="already begun"):
        client.ask("begin", sync="s")
    client.ask("end", sync="s")
    client.ask("begin", sync="s")


def test_each_client_sees_its_own_rows(tracer, sock):
    one, other = tracer.client(), tracer.client()
    one.tag(sock)
    assert len(one.ask("read", sync="s")) == 1
    assert other.ask("read", sync="s") == other.ask("flows") == []
    one.ask("forget", sync="s")
    assert one.ask("read", sync="s") == []


@pytest.fixture
def quick_tracer():
    """Of the meter that is quicker at a thousand requests, for limits that no meter has a part in."""
    features.require("trace")
    with Tracer("--meter=diag") as t:
        yield t


def test_rows_of_a_client_have_a_limit(quick_tracer, sock):
    client = quick_tracer.client()
    for i in range(1024):
        client.tag(sock, peer=str(i))
    with pytest.raises(Refused, match="'forget' a sync that has ended"):
        client.tag(sock, peer="more")
    client.tag(sock, peer="7")
    client.ask("forget", sync="s")
    client.tag(sock, peer="more")


def test_spans_of_a_client_have_a_limit(quick_tracer):
    client = quick_tracer.client()
    for i in range(1024):
        client.ask("begin", sync=str(i))
    with pytest.raises(Refused, match="a client may have at most 1024 syncs that have begun; 'end' one"):
        client.ask("begin", sync="more")
    client.ask("end", sync="7")
    client.ask("begin", sync="more")


def test_a_client_too_many_is_sent_away(tracer):
    clients = [tracer.client() for _ in range(256)]
    for c in clients:
        c.ask("read", sync="s")
    more = tracer.client()
    assert more.hear()["error"] == "weightd-trace has 256 clients, and serves no more"
    assert more.socket.recv(1) == b""
    clients[0].socket.close()
    while True:  # until the other one is closed
        with Client(tracer.socket) as c:
            with contextlib.suppress(Refused, BrokenPipeError, ConnectionResetError):
                assert c.ask("read", sync="s") == []
                break


def cpu_ticks(tracer):
    with open(f"/proc/{tracer.proc.pid}/stat") as f:
        return sum(map(int, f.read().rpartition(")")[2].split()[11:13]))


def test_a_client_for_whom_there_is_no_descriptor_waits_and_costs_nothing():
    features.require("trace")
    with Tracer("--meter=diag", prefix=["prlimit", "--nofile=32:32"]) as tracer:
        room = 32 - n_descriptors(tracer)
        clients = [tracer.client() for _ in range(40)]
        served = []
        for c in clients:
            c.socket.send(json.dumps({"op": "read", "sync": "s"}).encode())
        while len(served) < room:
            assert select.select([c.socket for c in clients if c not in served], [], [], STOP_S)[0], (len(served), room)
            served += [c for c in clients if c not in served and select.select([c.socket], [], [], 0)[0]]
        assert 10 < len(served) < 30
        before, began = cpu_ticks(tracer), time.monotonic()
        assert not select.select([c.socket for c in clients if c not in served], [], [], 1)[0]
        assert cpu_ticks(tracer) - before < os.sysconf("SC_CLK_TCK") * (time.monotonic() - began) / 10
        for c in served:
            c.socket.close()
        for c in clients:
            assert c in served or c.hear() == {"end": True}


def test_clients_of_a_user_leave_room_for_those_of_others(tracer):
    features.require("root")
    os.chmod(tracer.socket, 0o666)
    theirs = [client_as(tracer, SOMEBODY) for _ in range(64)]
    for c in theirs:
        assert c.ask("read", sync="s") == []
    assert client_as(tracer, SOMEBODY).hear()["error"] == "weightd-trace has 64 clients of this user, and serves no more"
    for c in client_as(tracer, NOBODY), *[tracer.client() for _ in range(17)], theirs[3]:
        assert c.ask("read", sync="s") == []
    theirs[0].socket.close()
    while True:  # until that is closed
        with contextlib.suppress(Refused, BrokenPipeError, ConnectionResetError):
            assert client_as(tracer, SOMEBODY).ask("read", sync="s") == []
            break


LINGER_S = 600


def lingering(a):
    """Fills the socket, so that the last close waits for bytes that the other end does not read."""
    a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    a.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            a.send(bytes(1 << 16))
    return a


@contextlib.contextmanager
def standing_still(tracer):
    os.kill(tracer.proc.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(tracer.proc.pid, signal.SIGCONT)


def is_served(tracer):
    """True if a new client gets its answer, and is not held up by that of another."""
    return tracer.client(timeout=STOP_S / 4).ask("read", sync="s") == []


@pytest.mark.parametrize("n", [1, 2, 253])
def test_who_passes_what_is_slow_to_close_waits_for_it_alone(tracer, n):
    client, request_ = tracer.client(), json.dumps({"op": "tag"} | ROW).encode()
    with tracing.pair() as (a, b), socket.socket() as other:
        lingering(a)
        with standing_still(tracer):
            socket.send_fds(client.socket, [request_], [*[other.fileno()] * (n - 1), a.fileno()])
            a.close()  # it has the only one
            client.socket.send(json.dumps({"op": "read", "sync": "s"}).encode())
        assert is_served(tracer)
        client.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.hear()
        b.close()  # this closing answers the packets sent
        client.socket.settimeout(STOP_S)
        assert ("error" in client.hear()) == (n > 1)
        assert [row["sockets"] for row in client.ask("read", sync="s")] == ([1] if n == 1 else []), \
            "what was asked meanwhile is answered, too"


@pytest.mark.parametrize("how", ["served", "unread", "refused"])
def test_one_that_hangs_up_with_what_is_slow_to_close_holds_up_nobody(tracer, how):
    clients = [tracer.client() for _ in range(256 if how == "refused" else 1)]
    for c in clients:
        assert c.ask("read", sync="s") == []
    client = clients[-1]
    with tracing.pair() as (a, b):
        lingering(a)
        if how == "unread":  # the kernel then resets the connection, and drops its contents
            client.socket.send(b"{}")
            select.select([client.socket], [], [])
        with standing_still(tracer):
            if how == "refused":
                client = tracer.client()
            socket.send_fds(client.socket, [json.dumps({"op": "tag"} | ROW).encode()], [a.fileno()])
            a.close()
            client.socket.close()
        if how == "refused":
            assert clients[0].ask("read", sync="s") == []
        else:
            assert is_served(tracer)
        b.recv(1)  # it is there still


def test_it_ends_while_something_is_slow_to_close(tracer):
    client = tracer.client()
    with tracing.pair() as (a, b):
        lingering(a)
        with standing_still(tracer):
            socket.send_fds(client.socket, [json.dumps({"op": "tag"} | ROW).encode()], [a.fileno()])
            a.close()
        assert is_served(tracer)
        tracer.proc.send_signal(signal.SIGTERM)
        assert tracer.proc.wait(STOP_S) == 0
        b.recv(1)


def test_nobody_watches_what_is_another_users():
    features.require("bpf")
    with Tracer() as tracer:
        os.chmod(tracer.socket, 0o666)
        client = client_as(tracer, NOBODY)
        with pytest.raises(Refused, match=f"process {os.getpid()} belongs to another user: only root may watch it"):
            client.watch(os.getpid())


def test_what_is_of_the_user_of_all_that_are_unknown_is_for_root():
    features.require("bpf")
    with Tracer() as tracer, subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=NOBODY) as proc:
        os.chmod(tracer.socket, 0o666)
        with pytest.raises(Refused, match=f"process {proc.pid} may belong to any user, as all that are not mapped here are user 65534"):
            client_as(tracer, NOBODY).watch(proc.pid)
        proc.communicate()


def test_one_watches_what_is_ones_own():
    features.require("bpf")
    with Tracer() as tracer, subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=SOMEBODY) as proc:
        os.chmod(tracer.socket, 0o666)
        client = client_as(tracer, SOMEBODY)
        client.watch(proc.pid)
        proc.stdin.close()


def test_a_process_that_is_gone_is_watched_no_more():
    features.require("bpf")
    with Tracer() as tracer, Client(tracer.socket) as client:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as proc:
            client.watch(proc.pid)
            with pytest.raises(Refused, match="already watched"):
                client.watch(proc.pid, peer="c")
            assert [row["peer"] for row in client.ask("read", sync="s")] == ["b"]
            n = n_descriptors(tracer)
            proc.stdin.close()
        with pytest.raises(Refused, match="there is no process"):
            client.watch(proc.pid)
        while n_descriptors(tracer) > n - 1:  # the event of its end may follow the reuse of its number
            assert client.ask("read", sync="s")
        assert n_descriptors(tracer) == n - 1


def test_the_socket_is_for_its_group(tracer):
    assert os.stat(tracer.socket).st_mode & 0o777 == 0o660


def test_a_second_one_does_not_take_the_socket(tracer):
    with pytest.raises(AssertionError, match="Address already in use"):
        second = Tracer.__new__(Tracer)
        second.folder, second.env, second.command = tracer.folder, tracer.env, tracer.command
        second.start()
    assert tracer.client().ask("read", sync="s") == []


def test_what_is_no_socket_is_left_alone(tmp_path):
    features.require("trace")
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("mine")
    link.symlink_to(file)
    for path in file, link:
        done = subprocess.run([tracing.PROGRAM, "--meter=diag", f"--socket={path}"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"weightd-trace: {path}: File exists\n")
    assert link.is_symlink() and file.read_text() == "mine"


@pytest.mark.parametrize("options, why", [
    (["--meter=magic"], "--meter cannot be 'magic': it takes bpf or diag"),
    (["--ring=5000"], "--ring cannot be '5000': it takes a power of two"), (["--ring=x"], "a power of two"),
    (["what"], "there are only options"), (["--nonsense"], "unrecognized option"),
])
def test_a_wrong_command_line_is_refused(options, why):
    features.require("trace")
    done = subprocess.run([tracing.PROGRAM, *options], capture_output=True, text=True)
    assert done.returncode == 2 and why in done.stderr


def test_help_and_version():
    features.require("trace")
    done = subprocess.run([tracing.PROGRAM, "--help"], capture_output=True, text=True, check=True)
    page = (features.ROOT / "packaging/man/weightd-trace.8.scd").read_text()
    options = [word for word in done.stdout.split() if word.startswith("--")]
    assert len(options) == 7 and [o for o in options if f"*{o}*" not in page] == []
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = subprocess.run([tracing.PROGRAM, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("weightd-trace 0.")


def names_of(o):
    return {name for key, value in o.items() for name in {key} | (names_of(value) if isinstance(value, dict) else set())}


def test_the_manual_names_all_that_a_row_has(tracer, sock):
    page = (features.ROOT / "packaging/man/weightd-trace.8.scd").read_text()
    client = tracer.client()
    client.tag(sock)
    sock.send(b"x")
    row = client.until(lambda row: row["submitted"] and row["limits"])
    assert [name for name in names_of(row) if f"_{name}_" not in page and f"*{name}*" not in page] == []


KEEPS_ITSELF = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(b'{"op": "begin", "sync": "left"}')
s.recv(65536)
s.setblocking(False)
try:
    while True:
        socket.send_fds(s, [b'{"op": "read", "sync": "left"}'], [s.fileno()])
except BlockingIOError:
    print("full")
"""


def test_a_client_that_keeps_its_own_connection_open_goes_with_its_process(tracer):
    done = subprocess.run([sys.executable, "-c", KEEPS_ITSELF, tracer.socket], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("full\n", "")
    deadline = time.monotonic() + STOP_S
    while True:
        with Client(tracer.socket) as client:
            client.ask("observe")
            left = [packet for packet in client.followed if packet["kind"] == "begin"]
        if not left:
            break
        assert time.monotonic() < deadline, left
        time.sleep(0.05)  # no event reports its removal


def test_who_reads_too_slowly_is_told_how_much_it_missed(net):
    features.require("pids")
    features.require("bpf")
    with Tracer() as tracer, Client(tracer.socket) as slow, Client(tracer.socket) as other:
        slow.ask("follow")
        other.ask("observe")
        slow.watch(os.getpid())
        storm(net, 2000, 1)
        assert other.ask("read", sync="s") == []  # nothing delayed this answer
        sum_of_events(other, 8000)  # all were sent by now, or dropped
        told = sum_of_events(slow, 8000)
        assert told["events"] + told["gaps"] == 8000 and told["gaps"] > 0


@pytest.mark.parametrize("op", ["end", "forget"])
def test_events_are_told_before_the_sync_is_over(op):
    """There are more of them than one read takes."""
    features.require("pids")
    features.require("bpf")
    with Tracer() as tracer:
        client = tracer.client()
        client.ask("follow")
        client.watch(os.getpid())
        client.ask("begin", sync="s")
        with standing_still(tracer):
            for _ in range(100):
                with tracing.pair():
                    pass
            client.send(op, sync="s")
        client.answer()
        assert [told["kind"] for told in client.followed].count("open") == 200


@pytest.mark.timeout(600)  # 9,000 requests, each of which waits for a processor that may be busy
def test_an_answer_that_has_no_room_is_cut_with_a_mark():
    """However many rows others have, a client is not refused its answer for them."""
    features.require("trace")
    n_clients, n_rows = 9, 1000
    with Tracer("--meter=diag") as tracer, tracing.pair() as (a, _):
        others = [tracer.client() for _ in range(n_clients)]
        for other in others:
            for i in range(n_rows):
                other.tag(a, peer=f"peer {i}")
        client = tracer.client()
        client.ask("read", sync="none")  # it is accepted: else the request of others[0] may be served first
        client.send("rows")
        others[0].ask("read", sync="none")  # is answered behind it, which is not read meanwhile
        assert len(client.answer()) + client.n_cut == n_clients * n_rows and client.n_cut > 0
        assert len(others[0].ask("read", sync="s")) == n_rows and others[0].n_cut == 0


def test_a_cut_answer_is_shown_and_said_to_be_cut(tmp_path):
    path = str(tmp_path / "trace.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        server.listen()
        proc = subprocess.Popen([features.BUILD / "weightctl", "trace", "attached", "--trace-socket", path], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)
        with server.accept()[0] as s:
            s.recv(tracing.PACKET_MAX)
            s.send(b'{"end":true,"cut":3}')
            _, said = proc.communicate()
    assert said.startswith("weightctl: weightd-trace left 3 rows out: its reply has no room for more\n") and proc.returncode == 0

"""Messages mode: the calls that sent and received, counted only while a client wants them."""
import collections
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from bpf.traffic import both_ways, carried, carry, is_acknowledged, receive, receive_peeking, receive_splicing, send, send_file
from lib import features, kernel, tracing
from lib.daemon import environment
from lib.tracing import Client, Refused, Tracer

LONG_S = 600
ON_CALLS = {"on_send", "on_receive"}


@pytest.fixture
def tracer(tracer):
    features.require("calls")
    return tracer


def listen(client, sync="s", seconds=LONG_S):
    client.ask("messages", sync=sync, seconds=seconds)


def calls(*sizes):
    """The members of a row for calls of these sizes."""
    classes = collections.Counter(str(1 << size.bit_length() - 1) for size in sizes)
    return {"calls": len(sizes), "bytes": sum(sizes), "sizes": dict(classes)}


def counted(client, peer="b", sync="s"):
    messages = client.row(peer, sync)["messages"]
    return {way: messages[way] for way in ("sent", "received")}


def attached(tracer):
    """The attached programs for calls, whichever client wants them."""
    return kernel.attached(tracer.proc.pid) & ON_CALLS


SIZES = [1, 2, 3, 4, 1023, 1024, 1025, 4096, 65_535, 65_536, 1, 1, 100_000]


def test_each_call_is_counted_by_its_size(traced):
    client, a, b = traced
    listen(client)
    for n in SIZES:
        thread = threading.Thread(target=a.sendall, args=[bytes(n)])
        thread.start()
        assert len(b.recv(n, socket.MSG_WAITALL)) == n
        thread.join()
    assert counted(client, "b") == {"sent": calls(*SIZES), "received": calls()}
    assert counted(client, "a") == {"sent": calls(), "received": calls(*SIZES)}
    b.send(b"xyz")
    a.recv(2)
    a.recv(100)
    assert counted(client, "b") == {"sent": calls(*SIZES), "received": calls(2, 1)}
    assert counted(client, "a") == {"sent": calls(3), "received": calls(*SIZES)}


@pytest.mark.parametrize("write, read", [
    (lambda s, n: s.sendmsg([bytes(n // 2), bytes(n - n // 2)]), lambda s, n: s.recv_into(bytearray(n), n, socket.MSG_WAITALL)),
    (lambda s, n: os.write(s.fileno(), bytes(n)), lambda s, n: len(os.read(s.fileno(), n))),
    (lambda s, n: os.writev(s.fileno(), [bytes(n // 2), bytes(n - n // 2)]), lambda s, n: os.readv(s.fileno(), [bytearray(n)])),
], ids=["sendmsg", "write", "writev"])
def test_whichever_call_it_is(traced, write, read):
    client, a, b = traced
    listen(client)
    sizes = [2, 777, 5000]
    for n in sizes:
        assert write(a, n) == n
        b.recv(n, socket.MSG_PEEK | socket.MSG_WAITALL)  # bytes that arrived in parts take as many calls
        assert read(b, n) == n
    assert counted(client, "b")["sent"] == counted(client, "a")["received"] == calls(*sizes)


def test_what_takes_nothing_is_no_call(traced):
    client, a, b = traced
    listen(client)
    a.setblocking(False)
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            a.recv(1)
    a.send(bytes(10))
    for _ in range(3):
        assert b.recv(10, socket.MSG_PEEK)
    b.recv(4)
    a.shutdown(socket.SHUT_WR)
    assert len(b.recv(100)) == 6
    assert b.recv(1) == b.recv(1) == b""
    with pytest.raises(BrokenPipeError):
        a.send(b"x")
    assert counted(client, "b") == {"sent": calls(10), "received": calls()}
    assert counted(client, "a") == {"sent": calls(), "received": calls(4, 6)}


@pytest.mark.parametrize("sender, receiver, is_seen", [
    (send, receive, True), (send, receive_peeking, True), (send_file, receive, True), (send, receive_splicing, False)])
def test_bytes_of_calls_are_those_of_the_row_but_what_is_spliced(traced, sender, receiver, is_seen):
    client, a, b = traced
    listen(client)
    carry(a, b, 3_000_001, 1, sender, receiver)
    row = client.until(is_acknowledged)
    assert row["submitted"] == row["messages"]["sent"]["bytes"] == 3_000_001
    row = client.row("a")
    assert (row["consumed"], row["messages"]["received"]["bytes"]) == (3_000_001, 3_000_001 * is_seen)


def test_calls_at_once_are_all_counted(tracer, connect):
    """On sockets of one row, by several threads."""
    client, n, pairs = tracer.client(), 5_000, [connect() for _ in range(4)]
    for a, _ in pairs:
        client.tag(a)
    listen(client)

    def run(a, b):
        for _ in range(n):
            a.send(b"x")
            b.recv(1)

    threads = [threading.Thread(target=run, args=pair) for pair in pairs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert counted(client)["sent"] == {"calls": 4 * n, "bytes": 4 * n, "sizes": {"1": 4 * n}}


def test_nobody_who_did_not_ask_is_counted(traced, connect):
    client, a, b = traced
    c, d = connect()
    client.tag(c, sync="other")
    listen(client)
    carry(c, d, 5000, 1)
    assert client.row(sync="other")["messages"] is None
    assert counted(client)["sent"] == calls()


def test_a_row_that_comes_later_is_counted(traced, connect):
    client, a, b = traced
    listen(client)
    c, d = connect()
    client.tag(c, peer="c")
    c.send(b"later")
    assert (counted(client, "c")["sent"], counted(client, "b")["sent"]) == (calls(5), calls())


def test_a_row_that_was_refused_keeps_no_program_attached(tracer, traced):
    client, *_ = traced
    listen(client)
    with socket.socket(socket.AF_UNIX) as local, pytest.raises(Refused):
        client.tag(local, peer="c")
    client.ask("forget", sync="s")
    assert attached(tracer) == set()


def test_what_a_process_and_a_listener_get_is_counted(net, tracer, listener):
    client = tracer.client()
    client.tag(listener, peer="a")
    listen(client)
    with tracing.inside(net.nodes[0].name, socket.create_connection, listener.getsockname()) as a, listener.accept()[0] as b:
        a.send(b"12345")
        b.recv(5)
    assert counted(client, "a") == {"sent": calls(), "received": calls(5)}


def test_it_ends_by_itself_and_keeps_what_it_counted(tracer, traced):
    client, a, b = traced
    listen(client, seconds=1)
    a.send(b"12")
    ended = client.until(lambda row: row["messages"]["ended_ns"])["messages"]
    assert attached(tracer) == set()
    assert ended["ended_ns"] - ended["began_ns"] >= 10 ** 9
    a.send(b"345")
    row = client.until(is_acknowledged)
    assert (row["messages"], row["submitted"]) == (ended, 5)
    assert ended["sent"]["calls"] <= 1, "a machine may be so slow that it sent later"


def test_programs_are_attached_while_somebody_asks(tracer, traced, connect):
    client, a, b = traced
    assert attached(tracer) == set()
    listen(client)
    with Client(tracer.socket) as second:
        c, d = connect()
        second.tag(c)
        listen(second)
        assert attached(tracer) == ON_CALLS
        client.ask("forget", sync="s")
        c.send(b"x")
        assert attached(tracer) == ON_CALLS
        assert counted(second)["sent"] == calls(1)
    while attached(tracer):  # until it saw the client's end
        client.ask("read", sync="s")
    client.tag(a)
    assert client.row()["messages"] is None


def test_asked_again_it_counts_from_0(tracer, traced):
    client, a, b = traced
    listen(client)
    a.send(b"12")
    listen(client)
    a.send(b"345")
    assert counted(client)["sent"] == calls(3)
    client.ask("begin", sync="s")
    assert counted(client)["sent"] == calls(3)
    assert attached(tracer) == ON_CALLS


def test_none_is_left_of_many(tracer, connect):
    """Descriptors, maps and links of what was asked for, over and over."""
    client, (a, b) = tracer.client(), connect()
    client.tag(a)

    def objects():
        return len(os.listdir(f"/proc/{tracer.proc.pid}/fd")), attached(tracer)

    before = objects()
    for i in range(50):
        client.tag(a, sync=str(i))
        listen(client, sync=str(i))
        listen(client, sync=str(i))
    assert objects() == (before[0] + 2, ON_CALLS)
    for i in range(50):
        client.ask("forget", sync=str(i))
    assert objects() == before


@pytest.mark.parametrize("request_, why", [
    ({}, "'sync' must be"), ({"sync": "s"}, "'seconds' must be a number from 1 to 3600"),
    ({"sync": "s", "seconds": 0}, "'seconds'"), ({"sync": "s", "seconds": 3601}, "'seconds'"),
    ({"sync": "s", "seconds": "1"}, "'seconds'"), ({"sync": "s", "seconds": -1}, "'seconds'"),
    ({"sync": "none", "seconds": 1}, "'none' has no row; 'tag' a socket or 'watch' a process"),
])
def test_a_wrong_request_is_refused_with_a_reason(tracer, traced, request_, why):
    client, a, b = traced
    with pytest.raises(Refused, match=re.escape(why)):
        client.ask("messages", **request_)
    assert attached(tracer) == set()
    assert client.row()["messages"] is None


def test_who_may_observe_counts_the_calls_of_all_clients(tracer, traced, connect):
    owner, a, b = traced
    observer, c = tracer.client(), connect()[0]
    observer.ask("messages", sync="s", seconds=LONG_S, all=True)
    second = tracer.client()
    second.tag(c, peer="later")
    for sock, n in (a, 7), (c, 9):
        sock.send(bytes(n))
    sent = {row["peer"]: row["messages"]["sent"] for row in observer.ask("rows")}
    assert sent == {"b": calls(7), "a": calls(), "later": calls(9)}
    assert counted(owner)["sent"] == calls(7), "the owner of these rows gets the counts, too"
    observer.socket.close()
    while attached(tracer):  # until it saw the observer's end
        owner.ask("read", sync="s")
    assert owner.row()["messages"]["ended_ns"]


def test_what_two_want_to_know_of_counts_until_the_last_of_them_ends(tracer, traced):
    owner, a, b = traced
    observer = tracer.client()
    listen(owner)
    a.send(b"12")
    observer.ask("messages", sync="s", seconds=LONG_S, all=True)
    a.send(b"345")
    assert counted(owner)["sent"] == calls(3), "from when the last of them asked"
    owner.ask("messages", sync="s", seconds=1)
    owner.until(lambda row: not a.send(b"6") or row["messages"]["began_ns"] + 2 * 10**9 < row["now_ns"])
    assert owner.row()["messages"]["ended_ns"] is None
    observer.socket.close()
    owner.until(lambda row: row["messages"]["ended_ns"])
    assert attached(tracer) == set()


def test_calls_of_all_clients_are_not_for_everybody(tracer, traced):
    os.chmod(tracer.socket, 0o666)
    os.seteuid(12345)
    try:
        somebody = tracer.client()
    finally:
        os.seteuid(0)
    with pytest.raises(Refused, match="only root may see what other users count or do"):
        somebody.ask("messages", sync="s", seconds=1, all=True)
    with pytest.raises(Refused, match="no client has a row of 'none' now"):
        traced[0].ask("messages", sync="none", seconds=1, all=True)
    with pytest.raises(Refused, match="'all' must be true or false"):
        traced[0].ask("messages", sync="s", seconds=1, all=1)
    assert attached(tracer) == set()


def test_how_many_syncs_a_client_may_have_counted_has_a_limit_but_for_root(tracer, traced):
    os.chmod(tracer.socket, 0o666)
    os.seteuid(12345)
    try:
        somebody = tracer.client()
    finally:
        os.seteuid(0)
    _, a, _ = traced
    for client in somebody, tracer.client():
        for i in range(129):
            client.tag(a, sync=str(i))
        for i in range(128):
            listen(client, str(i))
        listen(client, "0")  # anew
    listen(client, "128")
    with pytest.raises(Refused, match="the calls of at most 128 syncs; wait for one to end, or 'forget' it"):
        listen(somebody, "128")
    somebody.ask("forget", sync="5")
    listen(somebody, "128")


def weightctl(tracer, *args):
    return subprocess.Popen([features.BUILD / "weightctl", "trace", "messages", *args], text=True, stdin=subprocess.DEVNULL,
                            env=environment(WEIGHTD_TRACE_SOCKET=tracer.socket), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def until_attached(tracer, wanted=ON_CALLS):
    deadline = time.monotonic() + tracing.STOP_S
    while attached(tracer) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.005)  # no event reports it
    with tracer.client() as client:
        client.ask("rows")  # the first row attaches the programs before the others are counted


@pytest.mark.parametrize("end", ["signal", "forgotten", "gone"])
def test_weightctl_tells_of_the_calls_of_a_sync(tracer, traced, end):
    """The calls that it saw, whatever ends it, and those of rows that are removed by then."""
    client, a, b = traced
    client.ask("begin", sync="s")
    with weightctl(tracer, "--seconds=600", "--json", "s") as told:
        until_attached(tracer)
        for n in 1, 5, 5, 1000:
            a.send(bytes(n))
            b.recv(n, socket.MSG_WAITALL)
        if end == "signal":
            told.send_signal(signal.SIGINT)
        elif end == "forgotten":
            client.ask("end", sync="s")
            client.ask("forget", sync="s")
        else:
            client.socket.close()
        out, error = told.communicate()
    assert (told.returncode, error) == (0, "")
    told = json.loads(out)
    who = {"role": "payload", "process": open("/proc/self/comm").read().strip(), "pid": os.getpid()}
    lines = [(None, 4, 1011), (1, 1, None), (4, 2, None), (512, 1, None)]
    assert told == {"sync": "s", "calls": [
        {"peer": peer, "call": call, "size": size, "count": count, "bytes": n} | who
        for peer, call in (("b", "send"), ("a", "receive")) for size, count, n in lines]}
    until_attached(tracer, set())  # it sees its end a moment later


def test_weightctl_tells_it_as_a_table(tracer, traced):
    client, a, b = traced
    with weightctl(tracer, "--seconds=600", "s") as told:
        until_attached(tracer)
        a.send(bytes(70))
        told.send_signal(signal.SIGINT)
        out, error = told.communicate()
    assert (told.returncode, error) == (0, "")
    mine = open("/proc/self/comm").read().strip()
    head, *lines = [line.split() for line in out.splitlines()]
    assert head == ["PEER", "ROLE", "PROCESS", "CALL", "SIZE", "COUNT", "BYTES"]
    assert lines == [["b", "payload", mine, "send", "-", "1", "70", "B"], ["b", "payload", mine, "send", "64", "1", "-"]]


def test_weightctl_ends_by_itself(tracer, traced):
    with weightctl(tracer, "--seconds=1", "--json", "s") as told:
        out, error = told.communicate()
    assert (told.returncode, error, json.loads(out)) == (0, "", {"sync": "s", "calls": []})
    assert attached(tracer) == set()


def test_the_beginning_of_a_name_will_do(tracer, traced):
    client, a, b = traced
    for sock, peer, sync in (a, "b", "5f0a77"), (b, "a", "5f0b77"):
        client.tag(sock, sync, peer=peer)
    with weightctl(tracer, "--seconds=600", "--json", "5f0a") as told:
        until_attached(tracer)
        a.send(bytes(7))
        told.send_signal(signal.SIGINT)
        out, error = told.communicate()
    assert (told.returncode, error) == (0, "")
    assert [json.loads(out)["sync"], json.loads(out)["calls"][0]["bytes"]] == ["5f0a77", 7]
    with weightctl(tracer, "5f0") as told:
        assert told.communicate() == ("", "weightctl: '5f0' begins the names of 2 syncs: 5f0a77, 5f0b77\n")
    client.tag(b, "5f0", peer="a")
    with weightctl(tracer, "--seconds=1", "--json", "5f0") as told:
        assert json.loads(told.communicate()[0])["sync"] == "5f0", "what is called so is meant, though another begins so"


@pytest.mark.parametrize("args, status, why", [
    ([], 2, "takes the name of a sync"), (["s", "t"], 2, "takes the name of a sync"), (["--seconds=0", "s"], 2, "--seconds"),
    (["none"], 1, "no client has a row of 'none' now"),
])
def test_weightctl_says_what_is_wrong(tracer, args, status, why):
    with weightctl(tracer, *args) as told:
        out, error = told.communicate()
    assert (told.returncode, out) == (status, "") and why in error


def test_without_bpf_it_is_refused():
    features.require("trace")
    with Tracer("--meter=diag") as tracer, Client(tracer.socket) as client, \
            socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as a:
        client.tag(a)
        with pytest.raises(Refused, match="only BPF can count calls: weightd-trace was started with --meter=diag"):
            listen(client)
        assert client.row()["messages"] is None

"""Messages mode: which calls sent and received, counted only while somebody wants to know."""
import collections
import os
import re
import socket
import threading

import features
import kernel
import pytest
import tracing
from tracing import Client, Refused, Tracer
from traffic import both_ways, carried, carry, is_acknowledged, receive, receive_peeking, receive_splicing, send, send_file

LONG_S = 600
ON_CALLS = {"on_send", "on_receive"}


def listen(client, sync="s", seconds=LONG_S):
    client.ask("messages", sync=sync, seconds=seconds)


def calls(*sizes):
    """What a row has of these."""
    classes = collections.Counter(str(1 << size.bit_length() - 1) for size in sizes)
    return {"calls": len(sizes), "bytes": sum(sizes), "sizes": dict(classes)}


def counted(client, peer="b", sync="s"):
    messages = client.row(peer, sync)["messages"]
    return {way: messages[way] for way in ("sent", "received")}


def attached(tracer):
    """Programs for calls that are, whoever wants to know."""
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
        assert (write(a, n), read(b, n)) == (n, n)
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
    """Of sockets of one row, by several threads."""
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
    while attached(tracer):  # until it saw that the client is gone
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
    assert objects() == (before[0] + 50 + 2, ON_CALLS)
    for i in range(50):
        client.ask("forget", sync=str(i))
    assert objects() == before


@pytest.mark.parametrize("request_, why", [
    ({}, "'sync' has to be"), ({"sync": "s"}, "'seconds' has to be a number from 1 to 3600"),
    ({"sync": "s", "seconds": 0}, "'seconds'"), ({"sync": "s", "seconds": 3601}, "'seconds'"),
    ({"sync": "s", "seconds": "1"}, "'seconds'"), ({"sync": "s", "seconds": -1}, "'seconds'"),
    ({"sync": "none", "seconds": 1}, "'none' has no row; 'tag' or 'watch'"),
])
def test_a_wrong_request_is_refused_with_a_reason(tracer, traced, request_, why):
    client, a, b = traced
    with pytest.raises(Refused, match=re.escape(why)):
        client.ask("messages", **request_)
    assert attached(tracer) == set()
    assert client.row()["messages"] is None


def test_without_bpf_it_is_refused():
    features.require("trace")
    with Tracer("--meter=diag") as tracer, Client(tracer.socket) as client, \
            socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as a:
        client.tag(a)
        with pytest.raises(Refused, match="calls are counted by BPF alone: it was started with --meter=diag"):
            listen(client)
        assert client.row()["messages"] is None

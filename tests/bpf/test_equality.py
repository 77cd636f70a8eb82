"""The tracer's counts are the bytes that a program sent and received."""
import contextlib
import ctypes
import errno
import fcntl
import random
import select
import socket
import struct
import termios
import threading
import time

import pytest
from bpf.traffic import (both_ways, carried, carry, is_acknowledged, qualities, receive, receive_peeking, receive_splicing, send,
                         send_file, send_message)
from lib import features, tracing
from lib.tracing import Client, Tracer

pytestmark = pytest.mark.iterators

SIZES = [1, 4095, 1_000_003, 7, 8_388_609]  # bytes of spans, one behind the other


@pytest.mark.parametrize("sender, receiver", [
    (send, receive), (send_message, receive), (send_file, receive), (send, receive_peeking), (send, receive_splicing),
])
def test_each_span_has_what_was_sent_in_it(traced, sender, receiver):
    client, a, b = traced
    for seed, n in enumerate(SIZES):
        client.ask("begin", sync="s")
        carry(a, b, n, seed, sender, receiver)
        client.until(is_acknowledged)
        rows = {row["peer"]: row for row in client.ask("end", sync="s")}
        assert {peer: carried(row) for peer, row in rows.items()} == {"b": both_ways(n, 0), "a": both_ways(0, n)}
        assert [qualities(row) for row in rows.values()] == [{"exact"}] * 2
        assert [row["partial"] for row in rows.values()] == [False, False]


def test_both_directions_at_once(traced):
    client, a, b = traced
    threads = [threading.Thread(target=carry, args=args) for args in ((a, b, 9_000_001, 1), (b, a, 5_000_003, 2))]
    client.ask("begin", sync="s")
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    client.until(is_acknowledged, "b")
    client.until(is_acknowledged, "a")
    rows = {row["peer"]: carried(row) for row in client.ask("end", sync="s")}
    assert rows == {"b": both_ways(9_000_001, 5_000_003), "a": both_ways(5_000_003, 9_000_001)}


def test_what_is_on_its_way_is_submitted_and_not_consumed(traced):
    client, a, b = traced
    a.sendall(bytes(5000))
    row = client.until(is_acknowledged)
    assert carried(row) == both_ways(5000, 0)
    assert carried(client.row("a")) == both_ways(0, 5000) | {"consumed": 0}
    receive(b, 1234)
    assert carried(client.row("a")) == both_ways(0, 5000) | {"consumed": 1234}


def test_losses_change_nothing_but_what_is_said_of_them(net, traced):
    client, a, b = traced
    net.congest(1)
    try:
        client.ask("begin", sync="s")
        carry(a, b, 16_000_001, 5)
        client.until(is_acknowledged)
        rows = {row["peer"]: row for row in client.ask("end", sync="s")}
    finally:
        net.rate(1, None)
    assert {p: carried(r) for p, r in rows.items()} == {"b": both_ways(16_000_001, 0), "a": both_ways(0, 16_000_001)}
    lost = rows["b"]
    assert lost["retrans_segments"] > 0
    assert lost["wire"] == lost["submitted"] + lost["retrans_bytes"]


@pytest.mark.parametrize("ends", ["both", "sender", "receiver", "reset"])
def test_short_connections(net, tracer, listener, ends):
    """Over before anybody looked at them. The listener is tagged, and what it accepts is in its row."""
    sizes = random.Random(3).choices((0, 1, 999, 65537), k=100)
    client = tracer.client()
    client.tag(listener, peer="a")
    client.ask("begin", sync="s")
    for n in sizes:
        a = tracing.inside(net.nodes[0].name, socket.socket)
        client.tag(a, peer="b")
        a.connect(listener.getsockname())
        b = listener.accept()[0]
        carry(a, b, n, 1)
        if ends == "both":
            a.shutdown(socket.SHUT_WR)
            assert b.recv(1) == b""
        if ends == "reset":
            await_acknowledgement(a)
            a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        for s in (b, a) if ends == "receiver" else (a, b):
            s.close()
    for peer in "b", "a":
        client.until(lambda row: row["closed"] == len(sizes), peer)
    rows = {row["peer"]: row for row in client.ask("end", sync="s")}
    assert carried(rows["b"]) == both_ways(sum(sizes), 0)
    assert carried(rows["a"]) == both_ways(0, sum(sizes))
    assert {row["sockets"] for row in rows.values()} == {len(sizes)}


def await_acknowledgement(sock):
    """Waits until all sent bytes are acknowledged: a reset before that leaves their fate unknown."""
    while struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4))) != (0,):
        time.sleep(0.001)  # nothing to wait on


def test_a_socket_that_is_older_than_the_tracer_counts_from_then_on(connect):
    features.require("bpf")
    a, b = connect()
    carry(a, b, 70_000, 1)
    with Tracer() as tracer, Client(tracer.socket) as client:
        client.ask("begin", sync="s")
        client.tag(a)
        assert client.row()["partial"]
        carry(a, b, 123_457, 2)
        row = client.until(is_acknowledged)
        assert carried(client.row(op="end")) == both_ways(123_457, 0)
        assert (row["partial"], row["sockets"]) == (True, 1)
        client.ask("begin", sync="s")
        carry(a, b, 17, 3)
        client.until(is_acknowledged)
        row = client.row(op="end")
        assert (carried(row), row["partial"]) == (both_ways(17, 0), False)


@pytest.mark.parametrize("ends", [None, "shutdown", "peer"])
@pytest.mark.parametrize("meter", ["bpf", "diag"])
def test_a_socket_of_which_is_said_who_dialled_counts_from_its_first_byte(meter, ends):
    """On loopback, where both meters see it; also after a shutdown at one end."""
    features.require("bpf")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as a, \
            server.accept()[0] as b, Tracer(f"--meter={meter}") as tracer, Client(tracer.socket) as client:
        carry(a, b, 70_000, 1)
        carry(b, a, 33, 1)
        if ends:
            (a if ends == "shutdown" else b).shutdown(socket.SHUT_WR)
            assert (b if ends == "shutdown" else a).recv(1) == b""
        client.tag(a, peer="b", dialled=True)
        client.tag(b, peer="a", dialled=False)
        for peer, sent, received in ("b", 70_000, 33), ("a", 33, 70_000):
            row = client.until(is_acknowledged, peer)
            assert (carried(row), row["partial"], row["sockets"]) == (both_ways(sent, received), False, 1)


@pytest.mark.parametrize("meter", ["bpf", "diag"])
def test_a_socket_that_is_in_a_row_takes_nothing_along_whoever_dialled(meter):
    features.require("bpf")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as a, \
            server.accept()[0] as b, Tracer(f"--meter={meter}") as tracer, Client(tracer.socket) as client:
        client.tag(a, dialled=True)
        carry(a, b, 1000, 1)
        client.until(is_acknowledged)
        client.tag(a, sync="next", dialled=True)
        carry(a, b, 30, 1)
        client.until(is_acknowledged, sync="next")
        assert (carried(client.row()), carried(client.row(sync="next"))) == (both_ways(1000, 0), both_ways(30, 0))


def test_a_socket_that_changes_its_row_takes_nothing_along(traced):
    client, a, b = traced
    carry(a, b, 1000, 1)
    client.until(is_acknowledged)
    client.tag(a, sync="next", version=2)
    carry(a, b, 30, 1)
    client.until(is_acknowledged, sync="next")
    assert carried(client.row()) == both_ways(1000, 0)
    assert carried(client.row(sync="next")) == both_ways(30, 0)
    assert client.row()["closed"] == 1


def test_a_socket_that_connects_anew_begins_anew(net, tracer, listener):
    client = tracer.client()
    a = tracing.inside(net.nodes[0].name, socket.socket)
    client.tag(a)
    for n in 5000, 300:
        with a if n == 300 else contextlib.nullcontext():
            a.connect(listener.getsockname())
            with listener.accept()[0] as b:
                carry(a, b, n, 1)
                client.until(is_acknowledged)
            if n == 5000:
                disconnect(a)
    assert carried(client.row())["submitted"] == 5300


def test_a_socket_that_is_about_to_connect_counts_from_its_first_byte(net, tracer):
    client = tracer.client()
    with contextlib.ExitStack() as stack:
        crowded = stack.enter_context(tracing.inside(net.nodes[1].name, socket.socket))
        crowded.bind((net.nodes[1].address, 0))
        crowded.listen(0)
        stack.enter_context(tracing.inside(net.nodes[0].name, socket.create_connection, crowded.getsockname()))
        select.select([crowded], [], [])  # that is in the queue
        a = stack.enter_context(tracing.inside(net.nodes[0].name, socket.socket))
        a.setblocking(False)
        # The other one has the only place in the queue: there is no answer until that is accepted.
        assert a.connect_ex(crowded.getsockname()) == errno.EINPROGRESS
        client.tag(a)
        assert client.ask("flows") == []
        a.setblocking(True)
        stack.enter_context(crowded.accept()[0])
        b = stack.enter_context(crowded.accept()[0])
        carry(a, b, 4097, 1)
        client.until(lambda row: row["sockets"] and is_acknowledged(row))
        row = client.row()
    assert (carried(row), row["sockets"], row["partial"]) == (both_ways(4097, 0), 1, False)


def disconnect(sock):
    """connect() to nothing, which Python's own connect() does not offer."""
    assert ctypes.CDLL(None).connect(sock.fileno(), bytes(16), 16) == 0  # AF_UNSPEC


def test_ipv6(tracer, net):
    with tracing.inside(net.nodes[0].name, lambda: socket.create_server(("::1", 0), family=socket.AF_INET6)) as server, \
            tracing.inside(net.nodes[0].name, socket.create_connection, server.getsockname()[:2]) as a, \
            server.accept()[0] as b:
        client = tracer.client()
        client.tag(a)
        carry(a, b, 4097, 1)
        client.until(is_acknowledged)
        assert carried(client.row()) == both_ways(4097, 0)
        flow, = client.ask("flows")
        assert (flow["local"], flow["remote"]) == tuple("[::1]:%d" % s.getsockname()[1] for s in (a, b))

"""Bytes between two sockets, and a tracer's rows of them."""
import collections
import contextlib
import os
import random
import socket
import tempfile
import threading

from lib import tracing

CHUNKS = [1, 4096, 65536, 131072, 1 << 20]


def send(sock, n, seed):
    chunks, data = random.Random(seed), bytes(1 << 20)
    while n > 0:
        n -= sock.send(data[:min(n, chunks.choice(CHUNKS))])


def send_message(sock, n, seed):
    chunks, data = random.Random(seed), bytes(1 << 20)
    while n > 0:
        part = min(n, chunks.choice(CHUNKS))
        n -= sock.sendmsg([data[:part // 2], data[:part - part // 2]])


def send_file(sock, n, seed):
    with tempfile.TemporaryFile() as f:
        f.truncate(n)
        sent = 0
        while sent < n:
            sent += os.sendfile(sock.fileno(), f.fileno(), sent, n - sent)


def receive(sock, n):
    while n > 0:
        got = len(sock.recv(min(n, 1 << 18)))
        assert got, "the connection ended"
        n -= got


def receive_peeking(sock, n):
    while n > 0:
        sock.recv(min(n, 1 << 18), socket.MSG_PEEK)
        n -= len(sock.recv(min(n, 1 << 18)))


def receive_splicing(sock, n):
    out, into = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, out)
        stack.callback(os.close, into)
        null = stack.enter_context(open(os.devnull, "wb"))
        while n > 0:
            got = os.splice(sock.fileno(), into, min(n, 65536))
            assert got, "the connection ended"
            n -= got
            while got > 0:
                got -= os.splice(out, null.fileno(), got)


def carry(a, b, n, seed, sender=send, receiver=receive):
    thread = threading.Thread(target=sender, args=(a, n, seed))
    thread.start()
    receiver(b, n)
    thread.join()


def carried(row):
    return {name: row[name] for name in ("submitted", "delivered", "received", "consumed")}


def qualities(row):
    """How good its counters are."""
    return {row["quality"][name] for name in tracing.COUNTERS}


def both_ways(out, back):
    """The counts of a row that sent `out` and received `back`."""
    return {"submitted": out, "delivered": out, "received": back, "consumed": back}


def is_acknowledged(row):
    return row["delivered"] == row["submitted"]


def storm(net, n, size):
    """Connections of this process, one behind the other, each of which carries `size` bytes."""
    def run():
        with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
            for _ in range(n):
                with socket.create_connection(server.getsockname()) as a, server.accept()[0] as b:
                    a.sendall(bytes(size))
                    got = 0
                    while got < size:
                        got += len(b.recv(size))
    tracing.inside(net.nodes[0].name, run)


def sum_of_events(client, n):
    """
    The number of events, and of missing ones ("gaps", of which "ring" had no room in the kernel), once that
    is all of them, and duplicates had time to arrive, too.
    """
    told = collections.Counter(events=0, gaps=0, ring=0)
    while told["events"] + told["gaps"] < n:
        if not client.followed:
            client.followed.append(client.hear())
        take_events(client, told)
    client.ask("read", sync="s")
    take_events(client, told)
    return told


def take_events(client, told):
    while client.followed:
        packet = client.followed.popleft()
        if packet["kind"] == "gap":
            told["gaps"] += packet["lost"]
            told[packet["source"]] += packet["lost"]
        elif packet["kind"] != "progress":
            told["events"] += 1

#!/usr/bin/python3
"""
Stands where an engine, or another process of an agent, is expected: between an agent and the real one, and, where that is
weightd-sync-tcp, between it and the network. What it does to the bytes is written in hostile.json beside it:

    {"real": path of the engine,
     "wire": n       of the streams that come in, the first n get one byte changed on their way
     "memory": n     of the transfers that are done, the first n get one byte changed in the memory of what came
     "gave": n       of those that are done with an exchange, the first n say that they gave other bytes
     "dies": op      it dies when it is told this
     "empty": op     what comes with this word of it is an empty file
     "sockets": n    when it is open it tells of n connections, none of which is one
     "rate": bytes a second that come in at most
     "deaf": true    it never answers}
"""
import json
import mmap
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

AGENT = 3
PACKET_MAX = 1 << 17
FDS_MAX = 8
CHANGED_AT = 300_000  # bytes into a stream; far from its beginning, which has words of the protocol
PIECE = 1 << 16


def take(habits, what):
    """True if this is one of the first n, over all processes."""
    for i in range(habits.get(what, 0)):
        try:
            os.close(os.open(HERE / f"{what}-{i}", os.O_CREAT | os.O_EXCL))
            return True
        except FileExistsError:
            pass
    return False


def pump(source, sink, habits):
    """Carries a stream, and changes it as the file orders. An end of one side is an end of the other."""
    at, changes = 0, None
    try:
        while data := bytearray(source.recv(PIECE)):
            if habits and at <= CHANGED_AT < at + len(data):
                changes = take(habits, "wire")
                data[CHANGED_AT - at] ^= 0x40 * changes
            at += len(data)
            sink.sendall(data)
            if habits.get("rate"):
                time.sleep(len(data) / habits["rate"])
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def relay(listener, to, habits):
    while True:
        incoming, _ = listener.accept()
        try:
            outgoing = socket.create_connection(to)
        except OSError:
            incoming.close()
            continue
        threading.Thread(target=pump, args=(incoming, outgoing, habits), daemon=True).start()
        threading.Thread(target=pump, args=(outgoing, incoming, {}), daemon=True).start()


def spoil(fd):
    with mmap.mmap(fd, 0) as memory:
        memory[len(memory) // 2] ^= 1


def forward(packet, fds, to):
    socket.send_fds(to, [packet], fds)
    for fd in fds:
        os.close(fd)


def main(habits):
    if habits.get("deaf"):
        signal.pause()
    agent = socket.socket(fileno=AGENT)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # It inherits nothing but the descriptor of its orders.
    engine = subprocess.Popen([habits["real"], *sys.argv[1:]], stdin=subprocess.DEVNULL,
                              preexec_fn=lambda: os.dup2(its.fileno(), AGENT), pass_fds=[AGENT])
    its.close()
    opened = {}

    def to_engine():
        while True:
            packet, fds, _, _ = socket.recv_fds(agent, PACKET_MAX, FDS_MAX)
            message = json.loads(packet or "{}")
            if not packet or message["op"] == habits.get("dies"):
                engine.kill()
                os._exit(0)
            if message["op"] == "open":
                opened.update(address=message["address"], memory=os.dup(fds[message.get("operation") == "average"]))
            forward(packet, fds, ours)

    threading.Thread(target=to_engine, daemon=True).start()
    while True:
        packet, fds, _, _ = socket.recv_fds(ours, PACKET_MAX, FDS_MAX)
        if not packet:
            os._exit(abs(engine.wait()))
        message = json.loads(packet)
        if message.get("op") == "opened" and message.get("port") and (habits.get("wire") or habits.get("rate")):
            listener = socket.create_server((opened["address"], 0))
            threading.Thread(target=relay, args=(listener, (opened["address"], message["port"]), habits),
                             daemon=True).start()
            packet = json.dumps(message | {"port": listener.getsockname()[1]}).encode()
        if message.get("op") == "opened":
            for _ in range(habits.get("sockets", 0)):
                told = {"op": "socket", "node": "a", "dialled": False, "expected": 1}
                forward(json.dumps(told).encode(), [os.memfd_create("none")], agent)
        if message.get("op") == "done" and message.get("in") and take(habits, "memory"):
            spoil(opened["memory"])
        if message.get("gave") and take(habits, "gave"):
            packet = json.dumps(message | {"gave": [row | {"root": "00" * 32} for row in message["gave"]]}).encode()
        if message.get("op") == habits.get("empty") and fds:
            os.dup2(os.memfd_create("empty"), fds[0])
        forward(packet, fds, agent)


if __name__ == "__main__":
    HERE = pathlib.Path(__file__).resolve().parent
    main(json.loads((HERE / "hostile.json").read_text()))

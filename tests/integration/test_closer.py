"""Descriptors whose closing blocks must not hold up the server."""
import array
import socket
import struct
import time


def lingering_socket():
    """A TCP socket on loopback with unsent bytes: its last close() blocks for two minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        s = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 120))
    s.setblocking(False)
    try:
        while s.send(bytes(1 << 16)):
            pass
    except BlockingIOError:
        pass
    return s, peer


def test_descriptor_that_cannot_be_closed_at_once_holds_up_nobody(daemon):
    s, peer = lingering_socket()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(daemon.socket)
        client.sendmsg([b"not a request"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
        s.close()  # the server's is the last one now
        client.settimeout(10)
        assert client.recv(1) == b"", "the offender keeps its connection"
    started = time.monotonic()
    daemon.ctl("ping")
    assert time.monotonic() - started < 5
    peer.close()  # resets the connection, and lets the close go on


def test_server_stops_with_a_descriptor_stuck(daemon):
    s, peer = lingering_socket()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(daemon.socket)
        client.sendmsg([b"not a request"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
        s.close()
        client.settimeout(10)
        assert client.recv(1) == b""
    daemon.stop()
    peer.close()

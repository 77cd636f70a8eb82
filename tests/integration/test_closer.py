"""What the server is given to close, and cannot close at once."""
import socket
import struct

from integration.wire import Wire, stopped


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


def test_server_stops_with_a_descriptor_stuck(daemon):
    s, peer = lingering_socket()
    with Wire(daemon.socket) as client:
        with stopped(daemon):
            client.send_raw(b"not a request", [s.fileno()])
            s.close()  # the server's is the last one now
        client.hang_up()
    daemon.stop()
    peer.close()

"""A weightd-sync that sends the answers of a test, on a control socket of its own."""
import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading


def pack(packet):
    return packet if isinstance(packet, bytes) else json.dumps(packet).encode()


class FakeAgent:
    """
    answers   {op: packets, or function(connection, request) that sends them}; packets are objects or bytes
    requests  what was asked so far
    """

    def __init__(self, **answers):
        self.folder = tempfile.mkdtemp(prefix="weightd-")
        self.path = os.path.join(self.folder, "sync.sock")
        self.answers, self.requests = answers, []
        self.over = threading.Event()
        self.threads = []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(16)
        self.start(self.accept)

    def start(self, target, *args):
        self.threads.append(threading.Thread(target=target, args=args, daemon=True))
        self.threads[-1].start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.start(self.serve, connection)

    def serve(self, connection):
        with connection, contextlib.suppress(OSError):
            while packet := connection.recv(1 << 17):
                request = json.loads(packet)
                self.requests.append(request)
                answer = self.answers[request["op"]]
                if callable(answer):
                    answer(connection, request)
                else:
                    for said in answer:
                        connection.send(pack(said))

    def hang(self, *_):
        """An answer that is never sent."""
        self.over.wait()

    def close(self):
        self.over.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

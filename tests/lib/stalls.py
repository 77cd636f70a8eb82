"""Transfers between two nodes that something holds up: CAUSES has the causes, by a tracer's name for each."""
import contextlib
import signal
import socket
import subprocess
import threading

from lib import tracing
from lib.longlink import LongLink

CHUNK = 1 << 16
SLOW_S = 0.06  # delay after each chunk: 1.1 MB/s
ROUND_TRIP_S = 0.04
SEND_BUFFER = 32 << 10  # bytes; the kernel takes twice that, for itself, too
LOST = 50  # packets, of which one is
SO_MAX_PACING_RATE = 47  # from Linux; Python has no name for it
PACE = 10_000_000  # bytes a second


class Transfer:
    """
    Bytes from node 0 to node 1, from start() to the end of the block.

    socket, other  of node 0, of node 1
    no_read        while it is held nothing is read
    """

    def __init__(self, net, addresses=None, writes_every_s=0, reads_every_s=0, **options):
        self.over = threading.Event()
        self.no_read = threading.Lock()
        with tracing.inside(net.nodes[1].name, socket.create_server, ((addresses or [n.address for n in net.nodes])[1], 0)) as s:
            self.socket = tracing.inside(net.nodes[0].name, socket.socket)
            # As most machines have it: BBR, which some have, takes a loss for none.
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            for option, value in options.items():
                self.socket.setsockopt(socket.SOL_SOCKET, getattr(socket, option), value)
            self.socket.connect(s.getsockname())
            self.other = s.accept()[0]
        self.threads = [threading.Thread(target=self._until_over, args=args) for args in
                        ((self.write, writes_every_s), (self.read, reads_every_s))]

    def start(self):
        for t in self.threads:
            t.start()

    def write(self):
        self.socket.sendall(bytes(CHUNK))

    def read(self):
        left = CHUNK
        with self.no_read:
            while left > 0 and (got := len(self.other.recv(left))):
                left -= got

    def _until_over(self, act, every_s):
        while not self.over.wait(every_s):
            with contextlib.suppress(OSError):  # once it is over
                act()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        for s in self.socket, self.other:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        for t in self.threads:
            if t.ident:
                t.join()
        self.socket.close()
        self.other.close()


def slow_reader(net):
    return Transfer(net, reads_every_s=SLOW_S)


def slow_producer(net):
    return Transfer(net, writes_every_s=SLOW_S)


@contextlib.contextmanager
def small_send_buffer(net):
    with LongLink(net, ROUND_TRIP_S / 2) as link, Transfer(net, link.addresses, SO_SNDBUF=SEND_BUFFER) as transfer:
        yield transfer


@contextlib.contextmanager
def lossy_link(net):
    net.rate(0, "200mbit")  # so that the machine is not what it is held up by
    net.lose(1, LOST)
    try:
        with Transfer(net) as transfer:
            yield transfer
    finally:
        net.lose_nothing(1)
        net.rate(0, None)


def pace(transfer, rate):
    transfer.socket.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
    return transfer


def paced(net):
    return pace(Transfer(net), PACE)


@contextlib.contextmanager
def frozen_peer(net):
    """Its cable is cut between two bytes."""
    with Transfer(net) as transfer:
        transfer.write()
        transfer.read()
        net.down(1)
        try:
            yield transfer
        finally:
            net.up(1)


@contextlib.contextmanager
def stopped_peer(net):
    """The program that reads is stopped, while its kernel still answers."""
    with Transfer(net) as transfer, transfer.no_read, \
            subprocess.Popen(["cat"], stdin=transfer.other, stdout=subprocess.DEVNULL) as reader:
        transfer.write()
        reader.send_signal(signal.SIGSTOP)
        try:
            yield transfer
        finally:
            reader.kill()


CAUSES = {"receive_window": slow_reader, "send_buffer": small_send_buffer, "loss": lossy_link, "producer": slow_producer,
          "silent": frozen_peer, "pacing": paced}

"""
A link between two nodes on which each packet takes its time: a device of either, and a thread that carries packets from one
to the other. For a few thousand packets a second.

    with LongLink(net, 0.02) as link:
        tracing.inside(net.nodes[1].name, socket.create_server, (link.addresses[1], 0))
"""
import collections
import fcntl
import os
import select
import struct
import subprocess
import threading
import time

from lib import tracing

DEVICE = "long0"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
PACKET_MAX = 65536
# One segment at a time. What is too large for the device is cut when it is sent, and to what is left of that a program may
# add, however full the send buffer is.
SEGMENTS = 1
QUEUE = 10_000  # packets that the thread has not taken yet: none is lost


def is_available():
    return os.access("/dev/net/tun", os.R_OK | os.W_OK)


def _open_device():
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return fd


class LongLink:
    """
    addresses  of both nodes
    """

    addresses = "10.78.0.1", "10.78.0.2"

    def __init__(self, net, one_way_s):
        self.one_way_s = one_way_s
        self.fds = [tracing.inside(node.name, _open_device) for node in net.nodes[:2]]
        for node, address in zip(net.nodes, self.addresses):
            subprocess.run(["ip", "-n", node.name, "-batch", "-"], check=True, text=True,
                           input=f"addr add {address}/24 dev {DEVICE}\nlink set {DEVICE} up txqueuelen {QUEUE} gso_max_segs {SEGMENTS}\n")
        self.stops, self.told = os.pipe()
        self.thread = threading.Thread(target=self._carry)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        os.close(self.told)
        self.thread.join()
        for fd in self.stops, *self.fds:
            os.close(fd)

    def _carry(self):
        on_the_way = collections.deque()  # (when it arrives, where, packet)
        while True:
            left_s = max(0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
            ready = select.select([self.stops, *self.fds], [], [], left_s)[0]
            if self.stops in ready:
                return
            for fd in ready:
                other = self.fds[1 - self.fds.index(fd)]
                on_the_way.append((time.monotonic() + self.one_way_s, other, os.read(fd, PACKET_MAX)))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, fd, packet = on_the_way.popleft()
                os.write(fd, packet)

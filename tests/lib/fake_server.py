"""
A weightd that a test plays itself, reply by reply: for replies that are lost at an exact point.

    server = FakeServer(path)
    asked = later(client.ping)
    peer = server.accept()
    assert peer.request().op == wire.PING
    peer.close()                    # the reply is lost
"""
import array
import concurrent.futures
import mmap
import os
import socket
import struct
from typing import NamedTuple

from lib import wire

HEAD_MAGIC = 0x0000444145484457
HEAD_SIZE = 4096
PATIENCE_S = 60

pool = concurrent.futures.ThreadPoolExecutor(max_workers=4)


def later(act, *args, **kw):
    """Does it on a thread; .result(PATIENCE_S) waits for it."""
    return pool.submit(act, *args, **kw)


class Asked(NamedTuple):
    op: int
    values: tuple
    fds: list


class FakeServer:
    def __init__(self, path, instance=1, features=wire.SURVIVES | wire.LAYOUTS):
        self.path, self.instance, self.features = str(path), instance, features
        self.peers = []
        self.listener = None
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        for peer in self.peers:
            peer.close()

    def bind(self):
        """A socket that refuses connections: it does not listen yet."""
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.settimeout(PATIENCE_S)
        self.listener.bind(self.path)

    def start(self):
        self.bind()
        self.listener.listen(64)

    def stop(self):
        """No socket any more."""
        if self.listener:
            self.listener.close()
            os.unlink(self.path)
        self.listener = None

    def accept(self, greet=True):
        connection, _ = self.listener.accept()
        self.peers.append(Peer(connection))
        if greet:
            self.peers[-1].greet(self.instance, self.features)
        return self.peers[-1]

    def restart(self, peer):
        """Dies and is another one. The next connection, greeted."""
        self.restart_unseen(peer)
        return self.accept()

    def restart_unseen(self, peer):
        """The same, before any client has connected again."""
        self.stop()
        self.instance += 1
        self.start()
        peer.close()


GREETING = "IIQQ32s"


def greeting(instance, features):
    return wire.VERSION, os.getpid(), features, instance, b"0.1.0"


class Peer:
    """A connection to a client."""

    def __init__(self, connection):
        self.socket = connection
        self.socket.settimeout(PATIENCE_S)
        self.serial = self.op = 0
        self.fds = []

    def close(self):
        self.socket.close()
        while self.fds:
            os.close(self.fds.pop())

    def request(self, op=None):
        """The client's next request, which has to be that one."""
        data, rights, _, _ = self.socket.recvmsg(8192, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC)
        assert data, "the client has hung up"
        fds = [fd for _, _, raw in rights for fd in array.array("i", raw[:len(raw) & ~3])]
        self.fds += fds
        size, self.op, n_fds, self.serial = wire.HEADER.unpack_from(data)
        assert (size, n_fds) == (len(data), len(fds))
        assert op is None or self.op == op, f"asked {self.op}, not {op}"
        return Asked(self.op, wire.BODIES[self.op].unpack(data[wire.HEADER.size:]), fds)

    def has_hung_up(self):
        return not self.socket.recv(1)

    def is_silent(self):
        """The client has asked nothing, up to now."""
        self.socket.setblocking(False)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
            return False
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(PATIENCE_S)

    def reply(self, layout="", *values, fds=()):
        body = struct.pack("<" + layout, *values)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([wire.message(self.op | wire.REPLY, body, len(fds), self.serial)], rights)

    def fail(self, code, text="the test says no"):
        body = struct.pack("<iI512s", -code, 0, text.encode())
        self.socket.sendmsg([wire.message(wire.ERROR, body, 0, self.serial)])

    # --- the messages of a server ---

    def greet(self, instance, features=wire.SURVIVES | wire.LAYOUTS):
        self.request(wire.HELLO)
        self.reply(GREETING, *greeting(instance, features))

    def pong(self, instance=1):
        self.reply("6QII32s", instance, 0, 0, 0, 0, 0, os.getpid(), 0, b"0.1.0")

    def page(self, records=(), next_=0):
        size = len(records[0]) if records else 0
        self.reply("IIQ4032s", len(records), size, next_, b"".join(records))

    def give_lease(self, version, lease=7, at=None, instance=None, features=wire.SURVIVES | wire.LAYOUTS):
        """Answers an attach with a version; with an `instance`, one that is the hello too."""
        v, hello = version, () if instance is None else greeting(instance, features)
        self.reply("5QII16s16s96s" + (GREETING if hello else ""), lease, v.memory.buffer, at or v.number, v.data_size, v.slot_size,
                   v.flags, 0, v.layout_hash, bytes(16), wire.location(v.slot_size), *hello,
                   fds=[v.memory.layout_fd, v.memory.head_fd, v.slot_fd])

    def give_slot(self, version, writer=9, flags=0):
        """Answers a create with a slot."""
        v = version
        with wire_reader(v.slot_fd) as reader:
            self.reply("5QII96s", writer, v.memory.buffer, v.number, v.data_size, v.slot_size, flags, 0,
                       wire.location(v.slot_size), fds=[v.slot_fd, reader])


class wire_reader:
    """The file behind a descriptor, opened for reading."""

    def __init__(self, fd):
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self):
        return self.fd

    def __exit__(self, *_):
        os.close(self.fd)


class Memory:
    """The memory of a buffer: its layout, its head page, and versions of `size` bytes."""

    def __init__(self, size=4096, buffer=3):
        self.size, self.buffer = size, buffer
        self.image = wire.image([("t", size)])
        self.layout_fd = wire.memfd(self.image)
        self.head_fd = os.memfd_create("head", os.MFD_CLOEXEC)
        os.ftruncate(self.head_fd, HEAD_SIZE)
        self.head = mmap.mmap(self.head_fd, HEAD_SIZE)
        self.head[:24] = struct.pack("<QIIQ", HEAD_MAGIC, 1, 0, buffer)
        self.slots = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.head.close()
        for fd in [self.layout_fd, self.head_fd, *self.slots]:
            os.close(fd)

    def flip(self, version, state):
        self.head[24:32] = struct.pack("<Q", version << 8 | state)

    def version(self, number, data=b"", flags=0):
        return Version(self, number, data, flags)


class Version:
    def __init__(self, memory, number, data, flags):
        self.memory, self.number, self.flags = memory, number, flags
        self.data_size = -(-memory.size // 64) * 64
        self.layout_hash = memory.image[16:32]
        at = -(-self.data_size // 4096) * 4096
        self.slot_size = -(-(at + 16 * -(-self.data_size // wire.LEAF)) // 4096) * 4096
        self.slot_fd = os.memfd_create("slot", os.MFD_CLOEXEC)
        os.ftruncate(self.slot_fd, self.slot_size)
        os.pwrite(self.slot_fd, data, 0)
        memory.slots.append(self.slot_fd)

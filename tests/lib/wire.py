"""
The protocol of ipc/wire.h without libweightd: for clients that misbehave, and for those that look on.

    with Wire(daemon.socket) as wire:
        slot = wire.create("m", image([("t", 4096)]))
        slot.map()[:4] = b"abcd"
        wire.publish(slot.writer)

Requests raise Refused for an error reply and Closed when the server hangs up. Descriptors that replies
carry are closed with the connection.
"""
import array
import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import pathlib
import re
import select
import signal
import socket
import struct
import time
from typing import NamedTuple

from integration.programs import compiled
from lib import features

HELLO, PING, CREATE, PUBLISH, ABORT, ATTACH, DETACH, WAIT, LIST, DROP = range(1, 11)
RESUME, RENEW, ROLLBACK, ACCESS, PAUSE, EVENTS, STAT, LAYOUT = range(11, 19)
CREATE_IMAGE, PROOF, SET_FILES, FILES = range(19, 23)
JOB_CREATE, JOB_JOIN, JOB_PART, JOB_DESCRIPTION, JOB_LEAVE, JOB_REMOVE, JOB_VIEW = range(23, 30)
CREATE_OWNED, CREATE_IMAGE_OWNED, HELLO_ATTACH, PROVIDE, PUBLISH_SHARED, NUMA = range(30, 36)
OPS = range(HELLO, NUMA + 1)
REPLY = 0x8000
ERROR, HELLO_ERROR = 0x7fff | REPLY, 0x7ffe | REPLY
VERSION = 1
ATTACH_REPLY_SIZE, ERROR_SIZE, GREETING_SIZE = 176, 520, 56

HEADER = struct.Struct("<IHHQ")
BODIES = {  # bodies of requests
    HELLO: struct.Struct("<II Q 32s"), PING: struct.Struct(""), CREATE: struct.Struct("<128s 64s Qq IIII"),
    PUBLISH: struct.Struct("<Q II 16s"), ABORT: struct.Struct("<Q"),
    ATTACH: struct.Struct("<128s 64s QQ II 16s"), DETACH: struct.Struct("<Q"),
    WAIT: struct.Struct("<128s 64s Qq"), LIST: struct.Struct("<128s 64s Q II"),
    DROP: struct.Struct("<128s 64s Q"), RESUME: struct.Struct("<Q"), RENEW: struct.Struct("<QQ"),
    ROLLBACK: struct.Struct("<128s 64s Q"), ACCESS: struct.Struct("<128s 64s IIII"),
    PAUSE: struct.Struct("<Qq"), EVENTS: struct.Struct("<Qq"), STAT: struct.Struct(""),
    LAYOUT: struct.Struct("<128s 64s Q"),
    CREATE_IMAGE: struct.Struct("<128s 64s Qq IIII Q"), PROOF: struct.Struct("<Q"), SET_FILES: struct.Struct("<Q"),
    FILES: struct.Struct("<128s 64s Q"),
    JOB_CREATE: struct.Struct("<128s 32s q II"), JOB_JOIN: struct.Struct("<128s 32s 16s II" + "16s Q" * 16),
    JOB_PART: struct.Struct("<Q II"), JOB_DESCRIPTION: struct.Struct("<128s 32s"), JOB_LEAVE: struct.Struct("<Q II"),
    JOB_REMOVE: struct.Struct("<128s"), JOB_VIEW: struct.Struct("<128s"),
    CREATE_OWNED: struct.Struct("<128s 64s Qq IIII Q II"), CREATE_IMAGE_OWNED: struct.Struct("<128s 64s Qq IIII Q II"),
    HELLO_ATTACH: struct.Struct("<128s 64s QQ II 16s II Q 32s"),
    PROVIDE: struct.Struct("<QQ"), PUBLISH_SHARED: struct.Struct("<QQ 16s"),
    NUMA: struct.Struct("<II 128s"),
}
N_FDS = {op: int(op in (CREATE, CREATE_IMAGE, CREATE_OWNED, CREATE_IMAGE_OWNED, SET_FILES, JOB_JOIN)) for op in OPS}

SURVIVES, LAYOUTS, IMAGES, WITH_JOBS, WITH_JOB_VIEWS = 1, 2, 4, 8, 16  # features, in hello and in the answer to it
WITH_OWNERS, WITH_COSTS = 32, 64
WITH_HOLDERS = 128
WITH_PROVIDE = 512
WITH_NUMA = 2048
DEFAULT, PREFERRED, BIND, INTERLEAVE = range(4)  # policies of numa
NEW_LAYOUT, EXCLUSIVE, REUSABLE, REPLACE, IPC, EARLY = 1, 2, 4, 8, 16, 32  # in create
IS_EXCLUSIVE, IS_REUSABLE, IS_IPC = 1, 2, 4  # in the answer to create, and in the record of a buffer
WAIT_FOR_READERS, EVICT, KILL = range(3)  # policies of a create
BY_OWNER = 2  # in attach
DIGEST = 1  # in publish, and in the answers to attach and pause
MUTABLE, IS_IMAGE, HAS_FILES = 2, 4, 8  # in the answers to attach and pause, and in the record of a version
MODE, UID, GID = 1, 2, 4  # in access
BUFFERS, VERSIONS, HISTORY, SLOTS, USERS, DEVICES, JOBS, COSTS, HOLDERS, HEALTH = range(1, 11)  # kinds of lists
WRITING, CURRENT, KEPT, LEAVING, ORPHAN = range(1, 6)  # states of slots
FROM_NOW_ON = 2**64 - 1  # in events
EMPTY, READY, UPDATING, TORN, GONE = range(5)  # states of a buffer, in its record and on its head page
VERSION_GONE = 4  # an event
BY_KEEP, BY_MEMORY, BY_DROP, REWRITTEN, LOST = range(1, 6)  # why a version is no more
WRITING, CURRENT, KEPT, LEAVING, ORPHAN = range(1, 6)  # states of a slot
PAGE = 4096
LEAF = 1 << 20
PATIENCE_S = 60  # limit for anything that has to happen; the machine may be slow


def location(map_size, memory=0, uuid=b"", handle=b""):
    """A struct wire_location."""
    return struct.pack("<IIQ16s64s", memory, 0, map_size, uuid, handle)


class Location(NamedTuple):
    """The location of a slot's bytes, in the answers to create and attach."""
    memory: int
    map_size: int
    uuid: bytes
    handle: bytes

    @staticmethod
    def of(reply):
        memory, _, *rest = struct.unpack("<IIQ16s64s", reply.body[-96:])
        return Location(memory, *rest)


class Refused(Exception):
    """An error reply: errno, as a positive number, and the sentence."""

    def __init__(self, code, sentence):
        super().__init__(code, sentence)
        self.errno, self.sentence = code, sentence

    def __str__(self):
        return f"{errno.errorcode.get(self.errno, self.errno)}: {self.sentence}"


class Closed(Exception):
    """The server has closed the connection."""


class Message(NamedTuple):
    op: int
    serial: int
    body: bytes
    fds: list


class Server(NamedTuple):
    """The answer to a ping."""
    instance: int
    uptime_ns: int
    n_buffers: int
    n_sessions: int
    n_leases: int
    n_bytes: int
    pid: int


class Greeting(NamedTuple):
    """The answer to a hello."""
    version: int
    pid: int
    features: int
    instance: int


class Slot(NamedTuple):
    """The answer to a writer."""
    writer: int
    buffer: int
    version: int
    data_size: int
    slot_size: int
    flags: int
    fd: int
    reader_fd: int
    digests_fd: int = -1  # of an image

    @property
    def fds(self):
        """Descriptors for Wire.forget(): while they are open, the memory is not free."""
        return self.fd, self.reader_fd

    @property
    def data_offset(self):
        """Where the data of an image begin."""
        return self.slot_size - self.data_size

    def map(self):
        return mmap.mmap(self.fd, self.slot_size)


class Lease(NamedTuple):
    """The answer to a reader."""
    lease: int
    buffer: int
    version: int
    data_size: int
    slot_size: int
    flags: int
    uid: int
    layout_fd: int
    head_fd: int
    slot_fd: int

    @property
    def fds(self):
        """Descriptors for Wire.forget(): while they are open, the memory is not free."""
        return self.layout_fd, self.head_fd, self.slot_fd

    def head(self):
        return mmap.mmap(self.head_fd, mmap.PAGESIZE, prot=mmap.PROT_READ)

    def map(self):
        return mmap.mmap(self.slot_fd, self.slot_size, prot=mmap.PROT_READ)

    def bytes(self):
        offset = self.slot_size - self.data_size if self.flags & IS_IMAGE else 0
        with self.map() as m:
            return m[offset:offset + self.data_size]

    def shown(self):
        """Version and state in the head page, as any reader sees them."""
        with self.head() as m:
            word, = struct.unpack_from("<Q", m, 24)
        return word >> 8, word & 0xff


class Pause(NamedTuple):
    """The answer by which a paused reader goes on."""
    version: int
    flags: int
    layout_hash: bytes
    digest: bytes


class VersionLayout(NamedTuple):
    version: int
    flags: int
    layout_hash: bytes
    fd: int


class Rank(NamedTuple):
    """The answer to a join."""
    job: int
    n_ranks: int
    n_present: int


class Stat(NamedTuple):
    """The server's memory as a whole."""
    headroom: int
    slot_bytes: int
    kept_bytes: int
    leaving_bytes: int
    orphan_bytes: int
    layout_bytes: int
    n_quarantined: int
    store_used: int
    store_max: int


def text(raw):
    return raw.rstrip(b"\0").decode()


def record(name, layout, fields, texts=()):
    """A class of struct wire_NAME_record, with unpack()."""
    shape = struct.Struct("<" + layout)
    kind = NamedTuple(name, [(field, object) for field in fields.split()])

    def unpack(raw):
        row = kind(*shape.unpack(raw))
        return row._replace(**{t: text(getattr(row, t)) for t in texts})

    kind.unpack = staticmethod(unpack)
    return kind


TARGET = ("name", "device")
Buffer = record("Buffer", "128s 64s 6Q 10I Q 16s 16s",
                "name device version n_tensors data_size slot_bytes huge_bytes published_ns writing uid gid mode "
                "keep n_versions n_leases flags state pad newest layout_hash digest", TARGET)
Version = record("Version", "7Q 6I 16s 16s",
                 "version n_tensors data_size slot_bytes huge_bytes published_ns ended_ns n_leases uid pid current "
                 "why flags layout_hash digest")
SlotRecord = record("SlotRecord", "128s 64s 5Q 4I",
                    "name device slot version size allocated huge_bytes state n_leases uid removed", TARGET)
CHARGES = "connections leases buffers versions bytes descriptors".split()
User = record("User", "II 12Q", " ".join(["uid pad", *(f"used_{c}" for c in CHARGES), *(f"max_{c}" for c in CHARGES)]))
Event = record("Event", "128s 64s 3Q 4I", "name device serial time_ns version event why uid pid", TARGET)
Device = record("Device", "64s 128s 256s 4Q 4I", "device name why total free ours granularity index flags driver capability",
                ("device", "name", "why"))
Job = record("Job", "128s QQQQ q 6I",
             "name n_bytes step created_ns vacant_ns linger_ms uid gid n_ranks n_present n_done n_parts", ("name",))
SPAN_NS, N_SPANS = 15625, 20  # of answers: up to SPAN_NS << i
Holder = record("Holder", "128s 64s 4Q 4I",
                "name device version since_ns n_bytes limit uid pid n_versions over", TARGET)
Cost = record("Cost", f"II {7 + N_SPANS}Q",
              " ".join(["uid pad n_requests loop_ns worker_ns longest_ns held_bytes checking_bytes n_refused",
                        *(f"answered_{i}" for i in range(N_SPANS))]))
Health = record("Health", "4Q 256s 6Q 70Q II",
                " ".join(["started_ns memory reserve headroom limit max_descriptors",
                          "refused_permission refused_limit refused_memory refused_descriptors refused_keeper",
                          *(f"{of}_{i}" for of in ("loop", "check", "free", "seal", "wake") for i in ("sum_ns", *range(13))),
                          "keeper admin"]), texts=("limit",))
RECORDS = {JOBS: Job, DEVICES: Device, BUFFERS: Buffer, VERSIONS: Version, HISTORY: Version, SLOTS: SlotRecord, USERS: User,
           COSTS: Cost, HOLDERS: Holder, HEALTH: Health}
EVENTS_BY_NAME = dict(zip("created published rolled-back version-gone removed updating torn access evicted missed".split(),
                          range(1, 11)))


class Wire:
    """One connection. greet=False leaves the hello to the caller."""

    def __init__(self, path, greet=True, timeout=PATIENCE_S, features=0):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.serial = 0
        self.n_sent = self.n_received = 0
        self.fds = []
        self.location = None  # in the last answer that had one
        self.held = {}  # the descriptors of a writer or lease, by its id
        try:
            self.socket.settimeout(timeout)
            self.socket.connect(path)
            if greet:
                self.hello(features=features)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if not kind and self.socket.fileno() >= 0 and self.n_sent == self.n_received:
            self._end()
        self.close()

    def _end(self):
        """
        Waits until the server has seen the end of the connection and given back what it held. Without that, a request of
        another connection may be served before: the server takes them in turn, and not in the order in which they came.
        """
        self.socket.shutdown(socket.SHUT_WR)
        self.hang_up()

    def close(self):
        self.socket.close()
        while self.fds:
            os.close(self.fds.pop())

    def forget(self, fds):
        for fd in fds:
            if fd in self.fds:
                self.fds.remove(fd)
                os.close(fd)

    # --- messages ---

    def send_raw(self, data, fds=()):
        """One packet, whatever is in it. Closed."""
        self.n_sent += 1
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.socket.sendmsg([data], rights)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def send(self, op, body=b"", fds=()):
        self.serial += 1
        self.send_raw(message(op, body, len(fds), self.serial), fds)

    def receive(self):
        """The next message of the server. Closed."""
        arguments = 8192, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC
        try:
            data, rights, flags, _ = self.socket.recvmsg(*arguments)
        except ConnectionResetError:  # raised once, before the packets that the server has sent and the end
            data, rights, flags, _ = self.socket.recvmsg(*arguments)
        if not data:
            raise Closed
        self.n_received += 1
        fds = [fd for _, _, raw in rights for fd in array.array("i", raw[:len(raw) & ~3])]
        self.fds += fds
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), f"truncated reply, flags {flags:#x}"
        size, op, n_fds, serial = HEADER.unpack_from(data)
        assert (size, n_fds) == (len(data), len(fds)), (size, n_fds, len(data), len(fds))
        return Message(op, serial, data[HEADER.size:], fds)

    def ask(self, op, *values, fds=()):
        """Sends a request and waits for its reply. Refused, Closed."""
        with contextlib.suppress(Closed):  # a server that refused the connection has sent the reason
            self.send(op, BODIES[op].pack(*values), fds)
        return self.answer(op)

    def answer(self, op):
        """Waits for the reply to the request sent last. Refused, Closed."""
        reply = self.receive()
        if reply.op == ERROR or (reply.op, op) == (HELLO_ERROR, HELLO_ATTACH):
            raise refusal(reply)
        assert (reply.op, reply.serial) == (op | REPLY, self.serial), reply
        return reply

    def is_silent(self):
        """True if the server has sent nothing yet: a ping of another connection makes sure that it could have."""
        return not select.select([self.socket], [], [], 0)[0]

    def hang_up(self):
        """Waits until the server has closed the connection, whatever it sends before."""
        try:
            while True:
                self.receive()
        except Closed:
            pass

    # --- requests ---

    def hello(self, version=VERSION, features=0):
        return Greeting(*struct.unpack_from("<IIQQ", self.ask(HELLO, version, 0, features, b"test").body))

    def ping(self):
        with contextlib.suppress(Closed):  # as in ask()
            self.send(PING)
        return self.pong()

    def pong(self):
        """The answer to a ping that was sent."""
        return Server(*struct.unpack_from("<6QI", self.answer(PING).body))

    def create(self, name, layout, owner=None, **kw):
        """
        `layout` is an image, or a descriptor of one; the rest is for create_body(). `owner`: the uid of the user whose
        buffer it is to be.
        """
        self.send_create(name, layout, owner=owner, **kw)
        return self.slot(self.answer(CREATE if owner is None else CREATE_OWNED))

    def send_create(self, name, layout, data_offset=0, owner=None, **kw):
        """Likewise without the answer, which is sent when the readers have paused."""
        fd = memfd(layout) if isinstance(layout, bytes) else layout
        op = CREATE_IMAGE if data_offset else CREATE
        tail = struct.pack("<Q", data_offset) if data_offset else b""
        if owner is not None:
            op = CREATE_IMAGE_OWNED if data_offset else CREATE_OWNED
            tail = struct.pack("<QII", data_offset, owner, 0)
        with contextlib.suppress(Closed):
            self.send(op, create_body(name, **kw) + tail, [fd])
        if isinstance(layout, bytes):
            os.close(fd)

    def create_image(self, name, layout, data_offset, owner=None, **kw):
        """Likewise for a version that is a file."""
        self.send_create(name, layout, data_offset, owner=owner, **kw)
        return self.slot(self.answer(CREATE_IMAGE if owner is None else CREATE_IMAGE_OWNED))

    def proof(self, lease):
        """Descriptors of the digests and of the slot."""
        return self.ask(PROOF, lease).fds

    def set_files(self, writer, data):
        """`data` is bytes, or a descriptor."""
        fd = memfd(data) if isinstance(data, bytes) else data
        try:
            self.ask(SET_FILES, writer, fds=[fd])
        finally:
            if isinstance(data, bytes):
                os.close(fd)

    def files(self, name, version=0, device=""):
        """The version that it is, and a descriptor."""
        reply = self.ask(FILES, name.encode(), device.encode(), version)
        return struct.unpack("<Q", reply.body)[0], *reply.fds

    def slot(self, reply):
        slot = Slot(*struct.unpack_from("<5QI", reply.body), *reply.fds)
        self.location = Location.of(reply)
        self.held[slot.writer] = reply.fds
        return slot

    def provide(self, writer, until):
        """How many bytes at the start of the slot have memory now."""
        return struct.unpack("<Q", self.ask(PROVIDE, writer, until).body)[0]

    def numa(self, mode, nodes=()):
        """Memory of later creates is on these nodes."""
        self.ask(NUMA, mode, 0, sum(1 << node for node in nodes).to_bytes(128, "little"))

    def publish(self, writer, root=None):
        reply = self.ask(PUBLISH, writer, DIGEST if root else 0, 0, root or b"")
        return struct.unpack("<Q", reply.body)[0]

    def publish_shared(self, writer, lease, root=bytes(16)):
        return struct.unpack("<Q", self.ask(PUBLISH_SHARED, writer, lease, root).body)[0]

    def abort(self, writer):
        """And closes its descriptors, like detach(): memory is not freed while a process has it open."""
        self.ask(ABORT, writer)
        self.forget(self.held.pop(writer, []))

    def attach(self, name, version=0, buffer=0, device="", owner=None):
        flags = 0 if owner is None else BY_OWNER
        return self.lease(self.ask(ATTACH, name.encode(), device.encode(), version, buffer, flags, owner or 0, b""))

    def hello_attach(self, name, version=0, device="", owner=None, protocol=VERSION, features=0):
        """The first request of a connection. The lease, and the greeting of the server."""
        flags = 0 if owner is None else BY_OWNER
        reply = self.ask(HELLO_ATTACH, name.encode(), device.encode(), version, 0, flags, owner or 0, b"",
                         protocol, 0, features, b"test")
        return self.lease(reply), Greeting(*struct.unpack_from("<IIQQ", reply.body, ATTACH_REPLY_SIZE))

    def lease(self, reply):
        lease = Lease(*struct.unpack_from("<5QII", reply.body), *reply.fds)
        self.location = Location.of(reply)
        self.held[lease.lease] = reply.fds
        return lease

    def detach(self, lease):
        self.ask(DETACH, lease)
        self.forget(self.held.pop(lease, []))

    def wait(self, name, version=0, timeout_ms=-1):
        reply = self.ask(WAIT, name.encode(), b"", version, timeout_ms)
        return struct.unpack("<Q", reply.body)[0]

    def resume(self, writer):
        """The version, 0 while it is not published."""
        return struct.unpack("<QQ", self.ask(RESUME, writer).body)[1]

    def renew(self, buffer, version):
        """The lease."""
        return struct.unpack("<Q", self.ask(RENEW, buffer, version).body)[0]

    def rollback(self, name, version=0):
        return struct.unpack("<Q", self.ask(ROLLBACK, name.encode(), b"", version).body)[0]

    def access(self, name, mode=None, uid=None, gid=None):
        flags = MODE * (mode is not None) | UID * (uid is not None) | GID * (gid is not None)
        self.ask(ACCESS, name.encode(), b"", flags, mode or 0, uid or 0, gid or 0)

    def pause(self, lease, timeout_ms=-1):
        self.send_pause(lease, timeout_ms)
        return self.paused()

    def send_pause(self, lease, timeout_ms=-1):
        self.send(PAUSE, BODIES[PAUSE].pack(lease, timeout_ms))

    def paused(self):
        """The answer to send_pause(), which is sent when the update is over."""
        version, flags, _, layout_hash, digest = struct.unpack("<QII16s16s", self.answer(PAUSE).body)
        return Pause(version, flags, layout_hash, digest)

    def stat(self):
        return Stat(*struct.unpack("<9Q", self.ask(STAT).body))

    def events(self, after=0, timeout_ms=0):
        """The next page of events, and where to go on."""
        rows, after = page(self.ask(EVENTS, after, timeout_ms).body)
        return [Event.unpack(row) for row in rows], after

    def list(self, kind, name="", device=""):
        """The records of a list."""
        rows, after = [], 0
        while True:
            more, after = page(self.ask(LIST, name.encode(), device.encode(), after, kind, 0).body)
            rows += [RECORDS[kind].unpack(row) for row in more]
            if not after:
                return rows

    def records(self):
        """struct wire_buffer_record of each buffer by name, those without a version included."""
        return {row.name: row for row in self.list(BUFFERS)}

    def names(self):
        return sorted(self.records())

    def devices(self):
        """Rows of the devices by name."""
        return {row.device: row for row in self.list(DEVICES)}

    def layout(self, name, version=0, device=""):
        reply = self.ask(LAYOUT, name.encode(), device.encode(), version)
        version, flags, _, layout_hash = struct.unpack("<QII16s", reply.body)
        return VersionLayout(version, flags, layout_hash, *reply.fds)

    def drop(self, name, version=0, device=""):
        self.ask(DROP, name.encode(), device.encode(), version)

    def create_job(self, name, n_ranks=1, linger_ms=0, token=None):
        """The token."""
        token = os.urandom(32) if token is None else token
        self.ask(JOB_CREATE, name if isinstance(name, bytes) else name.encode(), token, linger_ms, n_ranks, 0)
        return token

    def join(self, name, token, rank=0, parts=(("JOURNAL", 4096),), description=b"description", content=None):
        """`content` is what is sent as the description: bytes, or a descriptor; its hash is that of `description`."""
        self.send_join(name, token, rank, parts, description, content)
        return self.joined()

    def send_join(self, name, token, rank=0, parts=(("JOURNAL", 4096),), description=b"description", content=None):
        content = description if content is None else content
        fd = memfd(content) if isinstance(content, bytes) else content
        with contextlib.suppress(Closed):
            self.send(JOB_JOIN, join_body(name, token, rank, parts, description), [fd])
        if isinstance(content, bytes):
            os.close(fd)

    def joined(self):
        return Rank(*struct.unpack("<QII", self.answer(JOB_JOIN).body))

    def part(self, job, index=0):
        """A writable descriptor."""
        return self.ask(JOB_PART, job, index, 0).fds[0]

    def job_description(self, name, token):
        fd, = self.ask(JOB_DESCRIPTION, name.encode(), token).fds
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        self.forget([fd])
        return data

    def leave(self, job, done=True):
        self.ask(JOB_LEAVE, job, int(done), 0)

    def remove_job(self, name):
        self.ask(JOB_REMOVE, name.encode())

    def view_job(self, name):
        """(the number of ranks, descriptors of the description and of part 0)."""
        reply = self.ask(JOB_VIEW, name.encode())
        return (struct.unpack("<II", reply.body)[0], *reply.fds)

    def job(self, name):
        """Its record; None: there is none, or it is not for us."""
        return next(iter(self.list(JOBS, name)), None)


def message(op, body=b"", n_fds=0, serial=1, size=None):
    """A packet; a `size` that is not its own is a lie."""
    return HEADER.pack(HEADER.size + len(body) if size is None else size, op, n_fds, serial) + body


def create_body(name, mode=0, keep=0, flags=0, policy=0, timeout_ms=0, cookie=None, device=""):
    """The bytes of a request, with a cookie of its own unless the caller has one."""
    cookie = cookie or int.from_bytes(os.urandom(8), "little") | 1
    name = name if isinstance(name, bytes) else name.encode()
    return BODIES[CREATE].pack(name, device.encode(), cookie, timeout_ms, mode, keep, flags, policy)


def join_body(name, token, rank=0, parts=(("JOURNAL", 4096),), description=b"description", n_parts=None):
    rows = [value for kind, size in parts for value in (kind.encode(), size)] + [b"", 0] * (16 - len(parts))
    return BODIES[JOB_JOIN].pack(name.encode(), token, hash128(description), rank, len(parts) if n_parts is None else n_parts, *rows)


def page(body):
    """The records in the answer to a list, as bytes, and where to go on."""
    n_records, size, after = struct.unpack_from("<IIQ", body)
    return [body[16 + i * size:][:size] for i in range(n_records)], after


def refusal(reply):
    code, _, text = struct.unpack_from("<iI512s", reply.body)
    assert len(reply.body) == ERROR_SIZE + (GREETING_SIZE if reply.op == HELLO_ERROR else 0)
    return Refused(-code, text.rstrip(b"\0").decode())


def until(condition, what, seconds=PATIENCE_S):
    """
    Asks again and again until condition() holds. Each question is a request or a look into /proc, so
    this waits for the daemon and not for a time. What takes longer leaves the processor to others more and more.
    """
    deadline, pause_s = time.monotonic() + seconds, 0
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds} s: {what() if callable(what) else what}"
        time.sleep(pause_s)
        pause_s = min(pause_s + 0.0001, 0.005)


def interrupt(proc, number):
    """
    Sends a signal to weightctl, and returns once it has taken it: a thread of its own waits for signals, which all block,
    and then blocks this one no more.
    """
    def has_taken():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            masks = [re.search(r"SigBlk:\t(\w+)", path.read_text())[1] for path in pathlib.Path(f"/proc/{proc.pid}/task").glob("*/status")]
            return proc.poll() is not None or not all(int(mask, 16) >> number - 1 & 1 for mask in masks)

    proc.send_signal(number)
    until(has_taken, f"weightctl takes signal {number}")


@contextlib.contextmanager
def stopped(daemon):
    """The daemon does nothing during the block; what is sent to it meanwhile waits."""
    daemon.proc.send_signal(signal.SIGSTOP)
    try:
        until(lambda: "State:\tT" in daemon.status(), "it has stopped")
        yield
    finally:
        daemon.proc.send_signal(signal.SIGCONT)


def stuck_socket():
    """A TCP socket with a last close() that waits for an hour, unless its peer ends; and a function that ends it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    return ours.detach(), peer.close  # with bytes unread: a reset


# --- layouts ----------------------------------------------------------------------------------------

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

LAYOUT_HEADER = struct.Struct("<QII 16s QQQ IIIIII")
LAYOUT_TENSOR = struct.Struct("<QQQ IIII BBB 5s")
LAYOUT_UNIT = struct.Struct("<QII")
NONE = 2**32 - 1
U8, PARAM = 5, 1


@functools.cache
def _library():
    """The functions of ipc that hash."""
    sources = tuple(features.ROOT / f"ipc/{n}.c" for n in ("layout", "digest", "hash", "hash_avx2", "dtype", "base/num", "base/utf8"))
    library = ctypes.CDLL(compiled("ipc", sources, "-shared"))
    library.layout_hash.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p]
    library.layout_bucket.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32]
    library.hash128.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p]
    return library


def hash128(data):
    found = ctypes.create_string_buffer(16)
    _library().hash128(data, len(data), found)
    return found.raw


def hash_image(raw):
    """The image with the hash that belongs to its bytes."""
    found = ctypes.create_string_buffer(16)
    _library().layout_hash(raw, len(raw), found)
    return raw[:16] + found.raw + raw[32:]


def image(tensors, padding=0, **fields):
    """
    A layout of U8 tensors: (name, size) each, or with a dict of members of struct layout_tensor that
    shall be otherwise. `padding` zeros stand behind the strings; `fields` replaces members of the header;
    the hash is always right. An alignment of 1 leaves no room between tensors.
    """
    rows, dims, strings, offset = [], [], b"", 0
    alignment = 1 if fields.get("alignment") == 1 else 64
    n_buckets = 2
    while n_buckets < 2 * len(tensors):
        n_buckets *= 2
    buckets = [NONE] * n_buckets
    for i, (name, size, *other) in enumerate(tensors):
        name = name if isinstance(name, bytes) else name.encode()
        row = dict(offset=offset, n_bytes=size, name=len(strings), name_size=len(name), dims=len(dims),
                   unit=NONE, tied_to=NONE, dtype=U8, role=PARAM, n_dims=1, pad=b"") | dict(*other)
        rows.append(LAYOUT_TENSOR.pack(*row.values()))
        dims.append(size)
        strings += name + b"\0"
        offset += -(-size // alignment) * alignment
        at = _library().layout_bucket(name, len(name), n_buckets)
        while buckets[at] != NONE:
            at = (at + 1) % n_buckets
        buckets[at] = i
    strings += bytes(padding)
    body = b"".join(rows) + struct.pack(f"<{len(dims)}Q", *dims) + \
        struct.pack(f"<{n_buckets}I", *buckets) + strings
    header = dict(magic=0x54554f59414c4457, abi=1, pad=0, hash=b"", total_size=80 + len(body),
                  data_size=offset, strings_size=len(strings), alignment=64, n_tensors=len(rows),
                  n_dims=len(dims), n_units=0, n_buckets=n_buckets, pad2=0)
    assert header.keys() >= fields.keys()
    return hash_image(LAYOUT_HEADER.pack(*(header | fields).values()) + body)


libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


def fallocate(fd, mode, at, size):
    """OSError."""
    if libc.fallocate(fd, mode, at, size) < 0:
        raise OSError(ctypes.get_errno(), f"fallocate: {os.strerror(ctypes.get_errno())}")


def memfd(data=b"", seals=SEALS, size=None):
    """A memfd with these bytes (and a hole up to `size`), sealed."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as f:
        f.write(data)
    if size is not None:
        os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def fill(slot, pattern):
    """Writes the data and the table of digests, by write(), and returns the root for publish()."""
    data = (pattern * (slot.data_size // len(pattern) + 1))[:slot.data_size]
    leaves = b"".join(hash128(data[at:at + LEAF]) for at in range(0, len(data), LEAF))
    os.pwrite(slot.fd, data, 0)
    os.pwrite(slot.fd, leaves, -(-slot.data_size // 4096) * 4096)
    return hash128(leaves)


def image_header(layout_size, data_offset):
    """A safetensors header of one U8 tensor of that many bytes, blanks at its end."""
    json = b'{"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (layout_size, layout_size)
    assert len(json) <= data_offset - 8, "the header has no room"
    return struct.pack("<Q", data_offset - 8) + json.ljust(data_offset - 8)


def fill_image(slot, pattern):
    """Writes header, data and digests of a version of create_image(), and returns the root for publish()."""
    data = (pattern * (slot.data_size // len(pattern) + 1))[:slot.data_size]
    leaves = b"".join(hash128(data[at:at + LEAF]) for at in range(0, len(data), LEAF))
    header = image_header(slot.data_size, slot.data_offset)
    os.pwrite(slot.fd, header + data, 0)
    os.pwrite(slot.digests_fd, hash128(header) + leaves, 0)
    return hash128(leaves)

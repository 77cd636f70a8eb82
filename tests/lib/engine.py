"""
weightd-sync-tcp, -gloo and -nccl without weightd-sync: the messages of the agent, over descriptor 3.

    with Chain(["a", "b"], Memory(data), ranges=[[0, 100]]) as chain:
        chain.start()
        chain.await_done()
        assert chain.memories[1].read() == data
"""
import array
import contextlib
import ctypes
import fcntl
import itertools
import json
import mmap
import os
import pathlib
import secrets
import select
import signal
import socket
import struct
import tempfile
import time

from lib import features

PATIENCE_S = 60
PREAMBLE, WORD, HEADER = 192, 8, 16
PLANNED_BACK = 1 + WORD  # tcp_planned_back() of server/sync/base/planned_bytes.h
CHUNK = 1 << 20
HUGE, MAP_FIXED, MADV_COLLAPSE = 2 << 20, 0x10, 25
HEADER_BYTE = b"\xee"  # of the header in front of a memory


def program(engine):
    return features.BUILD / f"weightd-sync-{engine}"


def planned(n_bytes):
    """tcp_planned() of server/sync/base/planned_bytes.h."""
    return PREAMBLE + n_bytes + WORD


def striped(n_bytes, n_stripes, piece=CHUNK):
    """tcp_planned_striped() of the same."""
    return n_stripes * (PREAMBLE + HEADER) + n_bytes + HEADER * -(-n_bytes // piece)


def gloo_planned(n_bytes, n_pieces):
    """The bytes that a link of weightd-sync-gloo carries towards the receiver: see plan() of server/sync/gloo/chain.c."""
    return 96 * (n_pieces + 1) + PREAMBLE + 16 + n_bytes + 2 * 48


def collapse(fd, size):
    """Makes one huge page of each that has a page, as far as the kernel can."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    area = libc.mmap(None, size + HUGE, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    at = -(-area // HUGE) * HUGE
    assert libc.mmap(at, size, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, fd, 0) == at
    for offset in range(0, size - HUGE + 1, HUGE):
        libc.madvise(at + offset, HUGE, MADV_COLLAPSE)
    libc.munmap(area, size + HUGE)


def plan(nodes, links, magic=b"moves\0\0\1"):
    """
    ipc/reshard/moves.h: of the sizes of each node's source and result, and the moves of each link, (from, to), which are (from,
    to, run, n, from stride, to stride, n, from stride, to stride).
    """
    rows = [row for _, moves in sorted(links.items()) for row in moves]
    heads = [(*link, len(moves), sum(m[2] * m[3] * m[6] for m in moves)) for link, moves in sorted(links.items())]
    words = [len(nodes), len(links), len(rows), *itertools.chain(*nodes, *heads, *rows)]
    return magic + struct.pack(f">{len(words)}Q", *words)


class Memory:
    """A memfd of these bytes, or of this size, behind a header of so many bytes."""

    def __init__(self, content, flags=0, header=0):
        self.size = content if isinstance(content, int) else len(content)
        self.header = header
        self.fd = os.memfd_create("engine-test", flags)
        os.ftruncate(self.fd, header + self.size)
        os.pwrite(self.fd, HEADER_BYTE * header, 0)
        if not isinstance(content, int):
            self.write(0, content)

    def write(self, offset, data):
        while data:
            n = os.pwrite(self.fd, data, self.header + offset)
            offset, data = offset + n, data[n:]

    def read(self):
        if self.size == 0:
            return b""
        with mmap.mmap(self.fd, self.header + self.size, prot=mmap.PROT_READ) as m:
            return m[self.header:]

    def has_header(self):
        """No process has written it."""
        return os.pread(self.fd, self.header, 0) == HEADER_BYTE * self.header

    def provide(self):
        """Makes its pages, huge ones where that works, as weightd does before it gives memory to a writer."""
        for offset in range(0, self.size - HUGE + 1, HUGE):
            os.posix_fallocate(self.fd, offset, 1)
        collapse(self.fd, self.size)
        os.posix_fallocate(self.fd, 0, self.size)

    def lend(self):
        """The same memory behind a descriptor that cannot write it, as weightd gives it away."""
        lent = Memory.__new__(Memory)
        lent.fd, lent.size = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY), self.size
        lent.header = self.header
        return lent

    def close(self):
        os.close(self.fd)


def sealed(content):
    """A Memory that is sealed: no process can change it."""
    memory = Memory(0)
    os.close(memory.fd)
    memory.fd, memory.size = os.memfd_create("engine-test", os.MFD_ALLOW_SEALING), len(content)
    memory.write(0, content)
    fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return memory


class Engine:
    """
    One process. An order has the values of a small test unless the caller gives others.

    port    its port, once it is open; `ports` those of all its addresses
    hello   the message for its neighbours, if it has sent one by then
    """

    def __init__(self, prefix=(), engine="tcp", env=None):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = tempfile.TemporaryFile()
        command = [*map(str, prefix), str(program(engine))]
        # Popen cannot give a child a descriptor by number.
        self.pid = os.posix_spawnp(command[0], command, os.environ | (env or {}), file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, self.log.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, self.log.fileno(), 2), (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)])
        self.pidfd = os.pidfd_open(self.pid)
        theirs.close()
        self.status, self.rusage, self.port, self.ports, self.hello = None, None, None, None, None
        self.is_stopped = False
        self.progress = []

    def send(self, packet, fds=()):
        self.socket.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def tell(self, message, fds=()):
        self.send(json.dumps(message).encode(), fds)

    def hear(self, patience_s=PATIENCE_S):
        """The next message; EOFError when it has ended."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        assert poll.poll(patience_s * 1000), f"the engine sent nothing for {patience_s} s: {self.read_log()}"
        packet = self.socket.recv(1 << 17)
        if not packet:
            raise EOFError(self.read_log())
        return json.loads(packet)

    def hear_end(self, patience_s=PATIENCE_S):
        """The next message that is no progress; progress is kept."""
        deadline = time.monotonic() + patience_s
        while (message := self.hear(max(0, deadline - time.monotonic())))["op"] == "progress":
            self.progress.append(message)
        return message

    def await_progress(self, n_bytes, what="done"):
        while not self.progress or self.progress[-1][what] < n_bytes:
            message = self.hear()
            assert message["op"] == "progress", message
            self.progress.append(message)

    def open(self, memory, /, ranges=None, fds=(), **changes):
        """Sends "open", and stores the port. `memory` is a Memory or a descriptor."""
        self.tell_open(memory, ranges, fds, **changes)
        answer = self.hear()
        assert answer["op"] == "opened", f"{answer} {self.read_log()}"
        self.port, self.hello = answer.get("port"), answer.get("hello")
        self.ports = answer.get("ports", [self.port])

    def tell_open(self, memory, /, ranges=None, fds=(), **changes):
        self.tell_with([memory.fd, *fds], **({
            "n_bytes": memory.size, "data_offset": memory.header, "ranges": ranges if ranges is not None else [[0, memory.size]] if memory.size else [],
            "security": "tls" if fds else "none"} | changes))

    def tell_with(self, fds, **changes):
        order = {"op": "open", "node": "b", "from": "a", "sync": "00112233445566ff", "epoch": 1, "address": "127.0.0.1",
                 "token": "11" * 32, "chunk": CHUNK, "stall_ms": 30_000, "security": "none"} | changes
        self.tell({k: v for k, v in order.items() if v is not ...}, fds)

    def start(self, next=None, max_rate=0, from_address="127.0.0.1", **more):
        self.tell({"op": "start", "next": next, "max_rate": max_rate, "from_address": from_address} | more)

    def kill(self, sig=signal.SIGKILL):
        self.is_stopped = sig == signal.SIGSTOP
        signal.pidfd_send_signal(self.pidfd, sig)

    @contextlib.contextmanager
    def stopped(self):
        """It does nothing during the block; messages for it wait meanwhile, and arrive at once."""
        self.kill(signal.SIGSTOP)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while "State:\tT" not in pathlib.Path(f"/proc/{self.pid}/status").read_text():
                assert time.monotonic() < deadline, "the engine does not stop"
                os.sched_yield()
            yield
        finally:
            self.kill(signal.SIGCONT)

    def wait(self, patience_s=PATIENCE_S):
        """Its wait status, and the processor time that it took."""
        if self.status is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            assert poll.poll(patience_s * 1000), f"the engine does not end: {self.read_log()}"
            _, self.status, self.rusage = os.wait4(self.pid, 0)
        return self.status

    def read_log(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def hang_up(self):
        self.socket.close()

    def close(self):
        """Hangs up, as its agent does; it has to end by itself, and well, unless somebody killed it."""
        self.hang_up()
        if self.is_stopped:  # and no other: a sanitizer that looks for leaks at the end would hang
            self.kill(signal.SIGCONT)
        try:
            status = self.wait()
        except AssertionError:
            self.kill()
            os.waitpid(self.pid, 0)
            raise
        finally:
            os.close(self.pidfd)
        log = self.read_log()
        self.log.close()
        assert status in (0, signal.SIGKILL), f"the engine ended with {status}: {log}"


class Engines:
    """
    Those of one epoch, which end together, on loopback or in the nodes of a Net. A subclass defines how one is opened,
    and the memory that it has made itself.

    names, engines      by place
    """

    def __init__(self, names, net=None):
        self.names, self.net = list(names), net
        self.engines = []

    def __enter__(self):
        try:
            for i in range(len(self.names)):
                self._open(i)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _spawn(self, i, engine, prefix=()):
        inside = ("nsenter", f"--net=/run/netns/{self.net.nodes[i].name}", "--") if self.net else ()
        self.engines.append(Engine((*inside, *prefix), engine))
        return self.engines[i]

    def address(self, i):
        return self.net.nodes[i].address if self.net else "127.0.0.1"

    def await_done(self, patience_s=PATIENCE_S):
        """The last message of each of them, which has to be "done"."""
        ends = [engine.hear_end(patience_s) for engine in self.engines]
        assert [end["op"] for end in ends] == ["done"] * len(ends), ends
        return ends

    def __exit__(self, kind, *_):
        errors = []
        for engine in self.engines:
            try:
                engine.close()
            except AssertionError as e:
                errors.append(str(e))
        for memory in self.owned():
            memory.close()
        assert kind or not errors, "\n".join(errors)


class Chain(Engines):
    """
    Engines of these names, the first one the source of `memory`.

    engines, memories   by place in the chain
    prefix              what each of them is started by
    stripes             how many addresses each has; one engine of a link uses as many as the other
    """

    def __init__(self, names, memory, ranges=None, net=None, fds=None, engine="tcp", stripes=None, prefix=(), headers=(),
                 **orders):
        super().__init__(names, net)
        self.prefix = tuple(prefix)
        self.stripes = stripes or [1] * len(names)
        self.fds, self.engine = fds or {}, engine
        self.ranges = ranges if ranges is not None else [[0, memory.size]] if memory.size else []
        self.n_bytes = sum(size for _, size in self.ranges)
        self.orders = orders
        self.tokens = [None] + [secrets.token_hex(32) for _ in names[1:]]
        self.memories = [memory] + [
            Memory(memory.size, header=header) for header in headers or [0] * len(names[1:])]

    def _open(self, i):
        memory = self.memories[i] if i else self.memories[0].lend()
        self._spawn(i, self.engine, self.prefix).open(memory, self.ranges, self.fds.get(self.names[i], ()), **(
            {"node": self.names[i], "from": self.names[i - 1] if i else None, "token": self.tokens[i],
             "address": self.address(i)} | ({"addresses": self.addresses(i)} if self.stripes[i] > 1 else {}) | self.orders))
        if i == 0:
            memory.close()

    def addresses(self, i):
        if self.net:
            return self.net.nodes[i].addresses[:self.stripes[i]]
        return [self.address(i), *(f"127.{j}.0.{i + 1}" for j in range(1, self.stripes[i]))]

    def n_stripes(self, i):
        """The keys of the link behind engine i."""
        return min(self.stripes[i:i + 2])

    def ways(self, i, places=None):
        following = self.engines[i + 1]
        return [{"address": self.addresses(i + 1)[j], "port": following.ports[j], "from": j}
                for j in places or range(self.n_stripes(i))]

    def next(self, i):
        """The fields of engine i's order about the one behind it."""
        if i + 1 == len(self.names):
            return None
        following = self.engines[i + 1]
        return {"node": self.names[i + 1], "address": self.address(i + 1), "port": following.port,
                "token": self.tokens[i + 1]} | ({"hello": following.hello} if following.hello else {}) | \
            ({"stripes": self.ways(i)} if self.n_stripes(i) > 1 else {})

    def start(self, max_rate=0, places=None):
        """The last one first; those at `places` only."""
        for i in reversed(range(len(self.names)) if places is None else places):
            hello = self.engines[i - 1].hello if i else None
            self.engines[i].start(self.next(i), max_rate, self.address(max(i - 1, 0)),
                                  **({"from_hello": hello} if hello else {}))

    def owned(self):
        return self.memories[1:]


class Mesh(Engines):
    """
    Ranks of weightd-sync-gloo, each of which sends the others a hello for each of them.

    hellos      by rank
    pems        descriptors of CA, certificate and key, by rank; nodes without them send in the clear
    """

    def __init__(self, n, net=None, pems=None, **orders):
        super().__init__([f"n{rank}" for rank in range(n)], net)
        self.orders, self.hellos, self.pems = orders, [], pems or [()] * n

    def _open(self, rank):
        self._spawn(rank, "gloo")
        nodes = [{"node": name, "address": self.address(i)} for i, name in enumerate(self.names)]
        self.tell_open(rank, {"node": self.names[rank], "from": None, "security": "tls" if self.pems[rank] else "none",
                              "address": self.address(rank),
                              "nodes": nodes} | self.orders)
        answer = self.engines[rank].hear()
        assert answer["op"] == "opened", answer
        self.hellos.append(answer["hellos"])

    def start(self, max_rate=0, ranks=None):
        for rank in range(len(self.engines)) if ranks is None else ranks:
            self.engines[rank].tell({"op": "start", "max_rate": max_rate,
                                     "hellos": [hellos[rank] for hellos in self.hellos]})


class Average(Mesh):
    """
    Each with memory of its own, over tensors of [name, dtype, offset, size].

    results     by rank
    """

    def __init__(self, memories, tensors, tables=None, net=None, headers=(), **orders):
        super().__init__(len(memories), net, **orders)
        self.memories = memories
        self.tables = [Memory(json.dumps(t).encode()) for t in tables or [tensors] * len(memories)]
        self.results = [Memory(memories[0].size, header=header) for header in headers or [0] * len(memories)]

    def tell_open(self, rank, order):
        lent = self.memories[rank].lend()
        self.engines[rank].tell_open(lent, ..., (self.results[rank].fd, self.tables[rank].fd, *self.pems[rank]), **(
            {"operation": "average", "result_offset": self.results[rank].header} | order))
        lent.close()

    def owned(self):
        return self.results + self.tables


class Exchange(Mesh):
    """
    An exchange by plans, a blob for each, from `sources` into results of these sizes; None: it has none. Each has a
    header of so many bytes.

    results     by rank
    """

    def __init__(self, sources, result_sizes, plans, net=None, header=0, **orders):
        super().__init__(len(sources), net, **orders)
        self.sources = [None if source is None else Memory(source, header=header) for source in sources]
        self.results = [Memory(size, header=header) if size else None for size in result_sizes]
        self.plans = [sealed(plan) for plan in plans]

    def tell_open(self, rank, order):
        source, result = self.sources[rank], self.results[rank]
        lent = [source.lend()] if source else []
        given = [memory.fd for memory in lent + [result] * bool(result) + [self.plans[rank]]]
        self.engines[rank].tell_with([*given, *self.pems[rank]], **({
            "operation": "exchange", "n_bytes": source.size if source else 0,
            "data_offset": source.header if source else 0, "result_bytes": result.size if result else 0,
            "result_offset": result.header if result else 0} | order))
        for memory in lent:
            memory.close()

    def owned(self):
        return [memory for memory in self.sources + self.results + self.plans if memory]

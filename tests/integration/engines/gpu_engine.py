"""
weightd-sync-nccl on fake GPUs: memory of a GPU as weightd hands it out, and groups of engines over the stand-in for
libnccl.

    with Gpu() as gpu, Ring("abc", gpu, data) as ring:
        ring.start()
        ring.await_done()
        assert ring.memories[2].read() == data
"""
import ctypes
import json
import os
import socket

from lib import features
from lib.child import Child
from lib.engine import PATIENCE_S, Engine, Engines, Memory, Mesh, sealed
from lib.gpus import FAKE, NCCL, Gpus

MIB = 1 << 20
GRANULARITY = 2 * MIB
STALL_MS = 30_000


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp."""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", ctypes.c_int * 2),
                ("unused", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]


def _allocate(pipe, sock, env):
    """A process that allocates, as weightd-cuda does: sizes in, descriptors and the names of their files out."""
    os.environ.update(env)
    cuda = ctypes.CDLL(str(FAKE / "libcuda.so.1"))
    folder = f"{env['FAKE_CUDA_STATE']}/memory"

    def do(name, *arguments):
        r = getattr(cuda, name)(*arguments)
        assert r == 0, f"{name}: {r}"

    do("cuInit", 0)
    while True:
        size, device = pipe.recv()
        handle, fd, before = ctypes.c_uint64(), ctypes.c_int(), set(os.listdir(folder))
        wanted = _Allocation(1, 1, (1, device))
        do("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(wanted), ctypes.c_uint64(0))
        do("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, ctypes.c_uint64(0))
        name, = set(os.listdir(folder)) - before
        socket.send_fds(sock, [name.encode()], [fd.value])
        os.close(fd.value)


class GpuMemory:
    """An allocation of at least `size` bytes; the bytes are those of the file that stands for it."""
    header = 0

    def __init__(self, gpu, fd, path, size, map_size, device):
        self.fd, self.size, self.map_size, self.device = fd, size, map_size, gpu.gpus.device(device)
        self.file = os.open(path, os.O_RDWR)

    def write(self, offset, data):
        os.pwrite(self.file, data, offset)

    def read(self):
        return os.pread(self.file, self.size, 0)

    def close(self):
        """As often as there are groups that have it."""
        if self.fd >= 0:
            os.close(self.fd)
            os.close(self.file)
        self.fd = self.file = -1


class Gpu:
    """The GPUs of a machine, and a process that allocates there. `more` is the environment of the engines."""

    def __init__(self, devices=1, nccl=NCCL, **more):
        self.gpus = Gpus(devices=devices)
        self.env = self.gpus.env | {"LD_LIBRARY_PATH": f"{self.gpus.env['LD_LIBRARY_PATH']}:{nccl}"} | more
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.child = Child(_allocate, theirs, self.gpus.env)
        theirs.close()

    def memory(self, content, device=0):
        size = content if isinstance(content, int) else len(content)
        map_size = -(-max(size, 1) // GRANULARITY) * GRANULARITY
        self.child.say((map_size, device))
        self.socket.settimeout(PATIENCE_S)
        name, (fd,), _, _ = socket.recv_fds(self.socket, 100, 1)
        memory = GpuMemory(self, fd, self.gpus.folder / "memory" / name.decode(), size, map_size, device)
        memory.write(0, bytes(size) if isinstance(content, int) else content)
        return memory

    def engine(self, **env):
        return Engine(engine="nccl", env=self.env | env)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.__exit__()
        self.socket.close()
        self.gpus.close()


class Ring(Engines):
    """Engines of these names, the first one the source. `memories` are those of the others, if they exist already."""

    def __init__(self, names, gpu, data, ranges=None, memories=None, **orders):
        super().__init__(names)
        self.gpu, self.orders = gpu, {"stall_ms": STALL_MS} | orders
        size = len(data) if not isinstance(data, int) else data
        self.ranges = ranges if ranges is not None else [[0, size]] if size else []
        self.n_bytes = sum(n for _, n in self.ranges)
        self.memories = [gpu.memory(data)] + (memories or [gpu.memory(size) for _ in self.names[1:]])

    def order(self, i):
        memory = self.memories[i]
        return {"node": self.names[i], "from": self.names[i - 1] if i else None, "token": "11" * 32 if i else None,
                "memory": "cuda", "gpu": memory.device, "map_size": memory.map_size, "chunk": MIB} | self.orders

    def spawn(self):
        for _ in self.names:
            self.engines.append(self.gpu.engine())

    def _open(self, i):
        if i == 0:
            self.spawn()
        self.engines[i].open(self.memories[i], self.ranges, **self.order(i))

    def start(self, places=None, **changes):
        n = len(self.names)
        for i in range(n) if places is None else places:
            self.engines[i].tell({"op": "start", "rank": i, "n_ranks": n, "hello": self.engines[0].hello,
                                  "max_rate": 0} | changes)

    def owned(self):
        return self.memories


class Ranks(Mesh):
    """Engines of a collective, whose hellos are NCCL's id from rank 0."""

    def __init__(self, n, gpu, **orders):
        super().__init__(n, **({"stall_ms": STALL_MS, "chunk": MIB} | orders))
        self.gpu = gpu

    def _spawn(self, i, engine, prefix=()):
        self.engines.append(self.gpu.engine())
        return self.engines[i]

    def tell(self, rank, source, result, text, order):
        """`source` and `result` may be None, for memory that a node does not have."""
        memories = [memory for memory in (source, result) if memory]
        self.engines[rank].tell_with([*(memory.fd for memory in memories), text.fd], **({
            "memory": "cuda", "gpu": memories[0].device, "n_bytes": source.size if source else 0,
            "map_size": source.map_size if source else 0, "result_map_size": result.map_size if result else 0} | order))


class Average(Ranks):
    """
    Each with memory of its own, over tensors of [name, dtype, offset, size].

    results     by rank
    """

    def __init__(self, gpu, contents, tensors, tables=None, **orders):
        super().__init__(len(contents), gpu, **orders)
        self.memories = [gpu.memory(content) for content in contents]
        self.results = [gpu.memory(len(contents[0])) for _ in contents]
        self.tables = [Memory(json.dumps(t).encode()) for t in tables or [tensors] * len(contents)]

    def tell_open(self, rank, order):
        self.tell(rank, self.memories[rank], self.results[rank], self.tables[rank], {"operation": "average"} | order)

    def owned(self):
        return self.memories + self.results + self.tables


class Exchange(Ranks):
    """
    An exchange by plans, a blob for each, from `sources` into results of these sizes; None, 0: it has none.

    results     by rank
    """

    def __init__(self, gpu, sources, result_sizes, plans, **orders):
        super().__init__(len(sources), gpu, **orders)
        self.sources = [None if source is None else gpu.memory(source) for source in sources]
        self.results = [gpu.memory(size) if size else None for size in result_sizes]
        self.plans = [sealed(plan) for plan in plans]

    def tell_open(self, rank, order):
        result = self.results[rank]
        self.tell(rank, self.sources[rank], result, self.plans[rank], {
            "operation": "exchange", "result_bytes": result.size if result else 0} | order)

    def owned(self):
        return [memory for memory in self.sources + self.results + self.plans if memory]

"""Two nodes on one GPU, each in a namespace of its own, and weightd-sync-nccl between them: broadcast, count, and a death."""
import contextlib
import ctypes
import glob
import hashlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import engine as of_engines
import netns
from integration.child import Child
from lab import GIB, MIB, last_line
from results import Skip

CHUNK, STALL_MS = 64 * MIB, 20_000
SAMPLE = 4 * MIB  # repeated over the memory, with another first word each time
# Two ranks on one GPU are no case of NCCL's: their kernels have to fit beside each other.
SETTINGS = {"NCCL_MAX_CTAS": "2", "NCCL_IB_DISABLE": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_DEBUG": "WARN",
            "CUDA_MODULE_LOADING": "LAZY"}


def find_nccl(env):
    """The folder that the dynamic linker has to look into as well; "": it finds it."""
    found = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libnccl.so.2')"], env=env,
                           capture_output=True, text=True)
    if found.returncode == 0:
        return ""
    places = [f"{p}/nvidia/nccl/lib" for p in sys.path] + glob.glob("/usr/local/cuda*/lib*") + \
        glob.glob("/usr/lib/*-linux-gnu") + glob.glob("/opt/*/lib/python3*/site-packages/nvidia/nccl/lib")
    for place in places:
        if pathlib.Path(place, "libnccl.so.2").exists():
            return place
    raise Skip(f"NCCL not found: {last_line(found.stderr)}")


def nccl_env(lab):
    """In which engines find NCCL, and may be two on one GPU."""
    env = dict(lab.env) | SETTINGS
    if lab.fake:
        env["LD_LIBRARY_PATH"] += f":{lab.build.parent / 'build/fake/nccl'}"
    folder = find_nccl(env)
    if folder:
        env["LD_LIBRARY_PATH"] = f"{env.get('LD_LIBRARY_PATH', '')}:{folder}".lstrip(":")
    return env


class Allocation(ctypes.Structure):
    """CUmemAllocationProp."""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", ctypes.c_int * 2),
                ("unused", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]


def content(size, seed):
    sample = random.Random(seed).randbytes(SAMPLE)
    for i in range(0, size, SAMPLE):
        yield i, (i.to_bytes(8, "little") + sample[8:])[:size - i]


def own(pipe, sock, env, size, seed):
    """A process with an allocation of its own, as weightd-cuda has: filled or zero, told of by descriptor, digested if asked."""
    os.environ.update(env)
    cuda = ctypes.CDLL("libcuda.so.1" if "FAKE_CUDA_STATE" not in env else env["LD_LIBRARY_PATH"].split(":")[0] +
                       "/libcuda.so.1")

    def do(name, *arguments):
        r = getattr(cuda, name)(*arguments)
        if r:
            raise OSError(f"{name}: {r}")

    u64, sizes = ctypes.c_uint64, ctypes.c_size_t
    context, handle, at, fd, uuid = ctypes.c_void_p(), u64(), u64(), ctypes.c_int(), (ctypes.c_uint8 * 16)()
    granularity, wanted = sizes(), Allocation(1, 1, (1, 0))
    do("cuInit", 0)
    do("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    do("cuCtxPushCurrent_v2", context)
    do("cuDeviceGetUuid_v2", uuid, 0)
    do("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(wanted), 1)
    map_size = -(-size // granularity.value) * granularity.value
    do("cuMemCreate", ctypes.byref(handle), sizes(map_size), ctypes.byref(wanted), u64(0))
    do("cuMemAddressReserve", ctypes.byref(at), sizes(map_size), sizes(0), u64(0), u64(0))
    do("cuMemMap", at, sizes(map_size), sizes(0), handle, u64(0))
    do("cuMemSetAccess", at, sizes(map_size), (ctypes.c_int * 3)(1, 0, 3), sizes(1))
    for offset, piece in content(size, seed) if seed else []:
        do("cuMemcpyHtoD_v2", u64(at.value + offset), piece, sizes(len(piece)))
    if not seed:
        do("cuMemsetD8_v2", at, ctypes.c_uint8(0), sizes(size))
    do("cuCtxSynchronize")
    do("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, u64(0))
    text = bytes(uuid).hex()
    name = "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])
    socket.send_fds(sock, [f"{map_size} cuda:GPU-{name}".encode()], [fd.value])
    room = ctypes.create_string_buffer(SAMPLE)
    while pipe.recv() == "digest":
        digest = hashlib.sha256()
        for offset in range(0, size, SAMPLE):
            n = min(SAMPLE, size - offset)
            do("cuMemcpyDtoH_v2", room, u64(at.value + offset), sizes(n))
            digest.update(memoryview(room)[:n])
        pipe.send(digest.hexdigest())


class Memory:
    def __init__(self, env, size, seed):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.child = Child(own, theirs, env, size, seed)
        theirs.close()
        self.socket.settimeout(120)
        said, fds, _, _ = socket.recv_fds(self.socket, 200, 1)
        if not fds:
            raise OSError("no memory was made on the GPU; see above")
        (self.fd,), self.size = fds, size
        self.map_size, self.gpu = int(said.split()[0]), said.split()[1].decode()

    def digest(self):
        self.child.say("digest")
        return self.child.hear()

    def close(self):
        self.child.__exit__()
        self.socket.close()
        os.close(self.fd)


@contextlib.contextmanager
def pair(lab, env, net, memories):
    """Two engines that know their memory, the first the source."""
    engines = []
    with contextlib.ExitStack() as stack:
        for i, memory in enumerate(memories):
            prefix = ("nsenter", f"--net=/run/netns/{net.nodes[i].name}", "--") if net else ()
            engines.append(stack.enter_context(contextlib.closing(of_engines.Engine(prefix, "nccl", env))))
            engines[i].open(memory, **{"node": "ab"[i], "from": "a" if i else None, "chunk": CHUNK, "stall_ms": STALL_MS,
                                       "address": net.nodes[i].address if net else "127.0.0.1", "memory": "cuda",
                                       "gpu": memory.gpu, "map_size": memory.map_size})
        for i, engine in enumerate(engines):
            engine.tell({"op": "start", "rank": i, "n_ranks": 2, "hello": engines[0].hello, "max_rate": 0})
        yield engines


def hear_all(engine):
    """When its first bytes were there, when its last, and what it said at the end."""
    first = None
    while (message := engine.hear())["op"] == "progress":
        first = first or (time.monotonic(), message["done"])
    return first, time.monotonic(), message


def broadcast(lab, env, net, memories, tell):
    size, begin = memories[0].size, time.monotonic()
    with pair(lab, env, net, memories) as engines:
        (first, end, received), (_, _, sent) = hear_all(engines[1]), hear_all(engines[0])
        logs = [engine.read_log()[-1500:] for engine in engines]
    good = (received["op"], sent["op"]) == ("done", "done")
    tell("broadcast between two nodes on one GPU", size if good else 0, "bytes", ok=good,
         **({} if good else {"why": f"{received.get('why')}; the source: {sent.get('why')}", "logs": logs}))
    if not good:
        return False
    same = len({memory.digest() for memory in memories}) == 1
    tell("digests of both are equal", same, ok=same)
    tell("from the first start of an engine to the end", end - begin, "s", ok=None)
    if end > first[0] and size > first[1]:
        tell("algbw of the broadcast, after its first bytes", (size - first[1]) / (end - first[0]) / 1e9, "GB/s", ok=None)
    # Each adds one over an all-reduce, and is done only if that comes to two.
    tell("all-reduce: both counted to two", 2, ok=True)
    return True


def death(lab, env, net, memories, tell):
    with pair(lab, env, net, memories) as engines:
        engines[1].await_progress(1)
        begin = time.monotonic()
        engines[1].kill(signal.SIGKILL)
        _, end, said = hear_all(engines[0])
    if said["op"] == "done":
        return tell("a node that is killed", ok=None, why="all had been carried before it died")
    took = end - begin
    tell("a node that is killed is noticed after", took, "s", ok=took < 1.5 * STALL_MS / 1000, why=said["why"])


def measure(lab, tell):
    if not (lab.build / "weightd-sync-nccl").exists():
        raise Skip("weightd-sync-nccl was built without OpenSSL")
    env = nccl_env(lab)
    size = lab.size(4 * GIB, 160 * MIB)
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(netns.Net(2)) if netns.is_available() else None
        tell("the nodes are in", "namespaces of their own" if net else "one namespace, as there can be none here")
        memories = [stack.enter_context(contextlib.closing(Memory(env, size, seed))) for seed in (7, 0)]
        good = False
        with tell.part("broadcast between two nodes on one GPU"):
            good = broadcast(lab, env, net, memories, tell)
        if not good:
            return tell("a node that is killed", why="there was no broadcast")
        with tell.part("a node that is killed"):
            death(lab, env, net, memories, tell)

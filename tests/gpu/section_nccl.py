"""Two nodes on one GPU, each in a namespace of its own, and weightd-sync-nccl between them: broadcast, count, and a death."""
import contextlib
import glob
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from lab import GIB, MIB, Died, how, kill, last_line
from lib import netns
from lib import engine as of_engines
from results import Skip

CHUNK, STALL_MS = 64 * MIB, 20_000
MEMORY_S = 60
# Two ranks on one GPU are no case of NCCL's: their kernels have to fit beside each other.
ON_ONE_GPU = {"NCCL_MAX_CTAS": "2", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
SETTINGS = {"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN", "CUDA_MODULE_LOADING": "LAZY"}


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


def nccl_env(lab, more=ON_ONE_GPU):
    """In which engines find NCCL, and may be two on one GPU."""
    env = dict(lab.env) | SETTINGS | more
    if lab.fake:
        env["LD_LIBRARY_PATH"] += f":{lab.build.parent / 'build/fake/nccl'}"
    folder = find_nccl(env)
    if folder:
        env["LD_LIBRARY_PATH"] = f"{env.get('LD_LIBRARY_PATH', '')}:{folder}".lstrip(":")
    return env


class Memory:
    """
    A process with memory on the GPU (memory.py). `seed` gives its content; 0 is zeroes.
    """

    header = 0  # the data are at the start

    def __init__(self, env, size, seed, gpu=0):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(MEMORY_S)
        self.log, self.size = tempfile.TemporaryFile(), size
        program = pathlib.Path(__file__).with_name("memory.py")
        with theirs:
            self.proc = subprocess.Popen([sys.executable, program, *map(str, (theirs.fileno(), size, seed, gpu))], env=env,
                                         pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            said, fds, _, _ = socket.recv_fds(self.socket, 200, 1)
            if not fds:
                raise self._died()
        except BaseException:
            kill(self.proc)
            raise
        (self.fd,) = fds
        self.map_size, self.gpu = int(said.split()[0]), said.split()[1].decode()

    def _died(self):
        self.proc.wait(MEMORY_S)
        self.log.seek(0)
        return Died(f"the owner of memory {how(self.proc.returncode)}: {last_line(self.log.read().decode(errors='replace'))}")

    def digest(self):
        self.socket.send(b"digest")
        return self.socket.recv(200).decode() or self._fail()

    def _fail(self):
        raise self._died()

    def close(self):
        kill(self.proc)
        self.socket.close()
        os.close(self.fd)


@contextlib.contextmanager
def pair(lab, env, net, memories):
    """Two engines that have their memory, the first the source."""
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
    """The times of its first bytes and its last, and its last message."""
    first = None
    while (message := engine.hear())["op"] == "progress":
        first = first or (time.monotonic(), message["done"])
    return first, time.monotonic(), message


def broadcast(lab, env, net, memories, tell, name="broadcast between two nodes on one GPU"):
    size, begin = memories[0].size, time.monotonic()
    with pair(lab, env, net, memories) as engines:
        (first, end, received), (_, _, sent) = hear_all(engines[1]), hear_all(engines[0])
        logs = [engine.read_log()[-1500:] for engine in engines]
    good = (received["op"], sent["op"]) == ("done", "done")
    tell(name, size if good else 0, "bytes", ok=good,
         **({} if good else {"why": f"{received.get('why')}; the source: {sent.get('why')}", "logs": logs}))
    if not good:
        return False
    same = len({memory.digest() for memory in memories}) == 1
    tell("digests of both are equal", same, ok=same)
    tell("from the first start of an engine to the end", end - begin, "s", ok=None)
    if end > first[0] and size > first[1]:
        tell("algbw of the broadcast, after its first bytes", (size - first[1]) / (end - first[0]) / 1e9, "GB/s", ok=None)
    # Each adds one over an all-reduce, and is done only if the sum is two.
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

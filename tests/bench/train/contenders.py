"""
Contenders: programs of n ranks that are started once and work in turns (rounds.h).

    with Net() as net, Contender("gloo", folder, 2, net, [command] * 2, env) as gloo:
        samples = gloo.samples("all_reduce", 1 << 20, count=5)
"""
import contextlib
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time

LIMIT_S = 180


class Failed(Exception):
    """It cannot run here, or ended."""


class Net:
    """A network namespace with a loopback of its own, whose bytes are counted. Without the right to make one: ours, not counted."""

    def __enter__(self):
        self.holder = None
        if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"):
            self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec sleep infinity"],
                                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if not self.holder.stdout.readline():
                self._end()
        return self

    def __exit__(self, *_):
        self._end()

    def _end(self):
        if self.holder:
            self.holder.kill()
            self.holder.communicate()
            self.holder = None

    def command(self, command, _rank):
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--", *command] if self.holder else command

    def sent(self):
        """Bytes that the loopback has carried; None: not counted."""
        if not self.holder:
            return None
        for line in pathlib.Path(f"/proc/{self.holder.pid}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == "lo":
                return int(counters.split()[8])
        return None


class Contender:
    """
    n ranks, by one command each, or by one for all, which gives them ranks itself.

    net     their network: a namespace of their own, unless another one is given
    """

    def __init__(self, name, n_ranks, commands, env=None, cwd=None, net=None):
        self.name, self.n_ranks, self.commands, self.env, self.cwd = name, n_ranks, commands, env or {}, cwd
        self.net = net or Net()
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.net)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weightd-bench-"))
            self._in, self._out = ([self._pipe(stack, folder, f"{way}.{rank}") for rank in range(self.n_ranks)]
                                   for way in ("in", "out"))
            self._errors = stack.enter_context(open(os.path.join(folder, "errors"), "w+", encoding="utf-8"))
            self._buffers = [b""] * self.n_ranks
            self.processes = []
            stack.callback(self._kill)
            for rank, command in enumerate(self.commands):
                env = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.n_ranks),
                                    "LOCAL_SIZE": str(self.n_ranks), "ROUNDS": folder, "STORE": os.path.join(folder, "store"),
                                    "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"} | self.env
                self.processes.append(subprocess.Popen(
                    self.net.command([*map(str, command)], rank), env=env, cwd=self.cwd, stdin=subprocess.DEVNULL,
                    stdout=self._errors, stderr=self._errors, start_new_session=True))
            for rank in range(self.n_ranks):
                self._line(rank)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    @staticmethod
    def _pipe(stack, folder, name):
        path = os.path.join(folder, name)
        os.mkfifo(path, 0o600)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # both ends: no open waits for the other one
        stack.callback(os.close, fd)
        return fd

    def _kill(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _line(self, rank):
        deadline = time.monotonic() + LIMIT_S
        while b"\n" not in self._buffers[rank]:
            if select.select([self._out[rank]], [], [], 0.1)[0]:
                self._buffers[rank] += os.read(self._out[rank], 1 << 16)
            elif any(process.poll() is not None for process in self.processes):
                raise Failed(f"{self.name} ended: {self._reason()}")
            elif time.monotonic() > deadline:
                raise Failed(f"{self.name} does not answer: {self._reason()}")
        line, _, self._buffers[rank] = self._buffers[rank].partition(b"\n")
        return [int(word) for word in line.split()]

    def _reason(self):
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines() or ["no message"])[-1]

    def ask(self, verb, size=0, count=1, repeats=1):
        """The numbers that each rank answered with."""
        for fd in self._in:
            os.write(fd, f"{verb} {size} {count} {repeats}\n".encode())
        return [self._line(rank) for rank in range(self.n_ranks)]

    def samples(self, verb, size=0, count=1, repeats=1):
        """Nanoseconds of each operation: those of the slowest rank."""
        return [max(ranks) for ranks in zip(*self.ask(verb, size, count, repeats))]


def in_turns(rounds, **turns):
    """
    turns: name -> function that returns samples. Each has its turn in each round; the one that begins changes.
    Returns name -> the samples of each round.
    """
    samples = {name: [] for name in turns}
    names = [*turns]
    for i in range(rounds):
        for name in names[i % len(names):] + names[:i % len(names)]:
            samples[name].append(turns[name]())
    return samples

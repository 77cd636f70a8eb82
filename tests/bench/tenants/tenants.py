"""The attacker, and the processes of others beside it: bench "tenants" and the test of the same use them."""
import contextlib
import os
import pathlib
import re
import select
import subprocess
from typing import NamedTuple

from lib import cgroup, features

ATTACKER, VICTIM = 20_001, 20_002  # users
READY_S = 3  # for a first answer to each connection; an attack that takes longer is under way by then
END_S = 60


def program(name, *args):
    return [str(features.BUILD / "bench/tenants" / name), *map(str, args)]


def attacks():
    """Names."""
    return subprocess.run(program("attacker"), check=True, stdout=subprocess.PIPE, text=True).stdout.split()


class Counts(NamedTuple):
    """The attacker's own."""
    cpu_ns: int
    ns: int
    n_connected: int
    n_sent: int
    n_answered: int
    n_refused: int

    @property
    def share(self):
        """Cores."""
        return self.cpu_ns / self.ns


class Attacker:
    """
    The process during the block, confined to one core's worth: by a control group where one can be made, else by its
    affinity. `counts` is set by end().

        with Attacker(env, "stat", 200, "victim/m", 1500) as attacker:
            ...
            attacker.end()
    """

    def __init__(self, env, *args):
        self.env = env
        self.args = args
        self.counts = None

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            prefix = ()
            if cgroup.CpuCgroup.root():
                prefix = stack.enter_context(cgroup.CpuCgroup(cores=1)).prefix
            else:
                prefix = "taskset", "-c", str(max(os.sched_getaffinity(0)))
            self.process = stack.enter_context(subprocess.Popen(
                [*prefix, *program("attacker", ATTACKER, *self.args)], env=self.env, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True))
            stack.callback(self.process.kill)
            if os.read(self.process.stdout.fileno(), 9) != b"prepared\n":
                raise RuntimeError(f"attacker {self.args} ended with {self.process.wait()}")
            select.select([self.process.stdout], [], [], READY_S)  # with "ready"
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *exc):
        return self.stack.__exit__(*exc)

    def end(self):
        out, _ = self.process.communicate(timeout=END_S)
        if self.process.returncode:
            raise RuntimeError(f"attacker {self.args} ended with {self.process.returncode}")
        self.counts = Counts(*map(int, out.split()[-6:]))
        return self.counts


class Innocent:
    """
    A process of another user. rounds() waits for its end.

    samples    nanoseconds of rounds
    processor  nanoseconds that weightd computed during each of these
    failures   reasons, of rounds that failed
    """

    def __init__(self, env, *args, uid=VICTIM):
        self.process = subprocess.Popen(program("innocent", uid, *args), env=env, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, text=True)
        self.samples, self.processor, self.failures = [], [], []

    def rounds(self):
        out, _ = self.process.communicate(timeout=10 * END_S)
        if self.process.returncode:
            raise RuntimeError(f"{self.process.args} ended with {self.process.returncode}")
        for line in out.splitlines():
            if line.startswith("failed "):
                self.failures.append(line.removeprefix("failed "))
            else:
                for kept, ns in zip((self.samples, self.processor), line.split()):
                    kept.append(int(ns))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def together(env, seconds, seen, made):
    """Innocents at the same moment, once they have ended: of attach, of publish, and a pair without weightd."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(Innocent(env, *args, seconds)) for args in (("attach", seen), ("publish", made), ("pair",))]
        return [innocent.rounds() for innocent in started]


class Memory:
    """Resident MiB of a process: now, and the most since it began to look."""

    def __init__(self, pid):
        self.pid = pid

    def begin(self):
        """The peak begins with what is resident now, which is returned."""
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.resident()

    def resident(self):
        return self._value("VmRSS")

    def peak(self):
        return self._value("VmHWM")

    def _value(self, key):
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"{key}:\s+(\d+) kB", status).group(1)) / 1024

"""Ranks of torch 2: processes that a host forks, which has imported torch once."""
import itertools
import json
import math
import os
import pathlib
import random
import select
import shutil
import signal
import subprocess
import tempfile
import time

from lib import features
from lib.daemon import environment
from lib.nodes import claim_net
from lib.wire import until

PATIENCE_S = 240  # torch is large, and the machine may be slow
HOST = features.ROOT / "tests/integration/train/torch_host.py"


class Died(AssertionError):
    """A rank ended without a result."""


class Host:
    """A program that forks ranks, until close()."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-ranks-"))
        env = environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        for name in ("WEIGHTD_JOB", "WEIGHTD_JOB_FILE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            env.pop(name, None)
        self.process = subprocess.Popen([features.TORCH2, HOST], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.n_ranks = 0
        self.net, self.claim = claim_net()
        self.addresses = itertools.cycle(range(1, 250))

    def ask(self, command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the host of ranks ended with {self.process.wait(PATIENCE_S)}"
        return json.loads(answer)

    def meeting(self):
        """Variables with an address on loopback that no other job has, for ranks of several nodes."""
        return {"MASTER_ADDR": f"{self.net}.{next(self.addresses)}", "MASTER_PORT": "7500"}

    def start(self, daemon, scene, rank, n, env=None, nodes=1, **arguments):
        """Starts a rank, as a launcher does, in the environment of a daemon. Of several `nodes`: env=meeting()."""
        self.n_ranks += 1
        node, local = divmod(rank, n // nodes)
        given = {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n // nodes),
                 "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": str(nodes),
                 "WEIGHTD_SOCKET": daemon.socket, "XDG_RUNTIME_DIR": str(daemon.folder)}
        return Rank(self, self.folder / str(self.n_ranks), {"scene": scene, "arguments": arguments,
                                                            "environment": given | (env or {})})

    def play(self, daemon, scene, n=1, nodes=1, **arguments):
        """The results of all ranks. AssertionError: one raised or died."""
        return [rank.value() for rank in self.launch(daemon, scene, n, nodes, **arguments)]

    def launch(self, daemon, scene, n=1, nodes=1, env=None, **arguments):
        env = (self.meeting() if nodes > 1 else {}) | (env or {})
        return [self.start(daemon, scene, rank, n, env, nodes, **arguments) for rank in range(n)]

    def close(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.claim.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Rank:
    """
    pid     of the process
    status  its exit status; None: it has not been waited for
    """

    def __init__(self, host, path, command):
        self.host, self.result, self.log_path = host, path.with_suffix(".json"), path.with_suffix(".log")
        self.pid = host.ask(command | {"result": str(self.result), "log": str(self.log_path)})["pid"]
        self._fd, self.status = os.pidfd_open(self.pid), None

    @property
    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def is_over(self, timeout_s=0.0):
        """True if it has ended within the time."""
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        return self.status is not None or bool(waiting.poll(timeout_s * 1000))

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)

    def wait(self):
        """The exit status."""
        if self.status is None:
            assert self.is_over(PATIENCE_S), f"a rank does not end:\n{self.log}"
            self.status = self.host.ask({"wait": self.pid})["status"]
            os.close(self._fd)
        return self.status

    def end(self):
        """Kills it, unless it has ended."""
        if self.status is None:
            self.kill()  # one that has ended is there until it is waited for
            self.wait()

    def outcome(self):
        """The result that it wrote at its end: a value, or an error with its sentence. Died."""
        status = self.wait()
        if not self.result.exists():
            raise Died(f"a rank ended with {status}:\n{self.log}")
        return json.loads(self.result.read_text())

    def value(self):
        outcome = self.outcome()
        assert "value" in outcome, f"{outcome}\n{self.log}"
        return outcome["value"]

    def error(self):
        """The class and the sentence of the exception that ended it."""
        outcome = self.outcome()
        assert "error" in outcome, outcome
        return outcome["error"], outcome["sentence"]


def wait_for(rank, text, state="S"):
    """Until the rank printed that, and is in a state of /proc/PID/stat: S asleep, T stopped."""
    def is_there():
        assert not rank.is_over(), rank.log
        if text not in rank.log:
            return False
        return pathlib.Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0] == state  # since then

    until(is_there, lambda: rank.log, PATIENCE_S)


def interrupt(rank, is_done):
    """Sends SIGINT, again after a while: one that arrives between two sleeps of the rank does not end its wait."""
    def is_done_or_again():
        if not is_done() and time.monotonic() > times[-1] + 5:
            times.append(time.monotonic())
            rank.kill(signal.SIGINT)
        return is_done()

    times = [-math.inf]
    until(is_done_or_again, lambda: rank.log, PATIENCE_S)


def kill_at_random(host, daemon, n, n_kills, seed, nodes=1, **given):
    """
    Starts ranks of the scene "run", kills one at a random time, starts it anew, until all are done; the results, and
    the number of kills.
    """
    dice, kills, env = random.Random(seed), 0, host.meeting() if nodes > 1 else {}
    ranks = host.launch(daemon, "run", n, nodes, env, job="j", **given)
    while not all(rank.is_over() for rank in ranks):
        victim = dice.randrange(n)
        if ranks[victim].is_over(dice.uniform(0, 0.06)) or kills == n_kills:
            ranks[victim].is_over(0.25)
            continue
        ranks[victim].kill()
        if ranks[victim].wait() == -signal.SIGKILL:
            kills += 1
            ranks[victim] = host.start(daemon, "run", victim, n, env, nodes, job="j", **given)
    return [rank.value() for rank in ranks], kills


def mean(curves):
    return [sum(losses) / len(losses) for losses in zip(*curves)]


def apart(one, other):
    """The largest difference of two lists of numbers, or of two dicts of them."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return max(apart(one[name], other[name]) for name in one)
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other))

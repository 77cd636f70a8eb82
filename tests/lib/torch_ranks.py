"""Ranks of torch 2: processes that a host forks, which has imported torch once."""
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile

from lib import features
from lib.daemon import environment

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

    def ask(self, command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the host of ranks ended with {self.process.wait(PATIENCE_S)}"
        return json.loads(answer)

    def start(self, daemon, scene, rank, n, env=None, **arguments):
        """Starts a rank, as a launcher does, in the environment of a daemon."""
        self.n_ranks += 1
        given = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n),
                 "WEIGHTD_SOCKET": daemon.socket, "XDG_RUNTIME_DIR": str(daemon.folder)}
        return Rank(self, self.folder / str(self.n_ranks), {"scene": scene, "arguments": arguments,
                                                            "environment": given | (env or {})})

    def play(self, daemon, scene, n=1, **arguments):
        """The results of all ranks. AssertionError: one raised or died."""
        return [rank.value() for rank in self.launch(daemon, scene, n, **arguments)]

    def launch(self, daemon, scene, n=1, **arguments):
        return [self.start(daemon, scene, rank, n, **arguments) for rank in range(n)]

    def close(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
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

    def kill(self, signal=9):
        os.kill(self.pid, signal)

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

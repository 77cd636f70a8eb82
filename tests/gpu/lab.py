"""The means of the sections: a weightd of their own, agents, and the sizes that fit this GPU."""
import contextlib
import ctypes
import json
import math
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from results import say

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 40
END_S = 5
OPEN_S = 90  # a context, and in Python an import of torch
MIB, GIB = 1 << 20, 1 << 30
NOISE = 32 * MIB  # part of a GPU's memory that others may take and return meanwhile
PR_SET_CHILD_SUBREAPER = 36


class Died(Exception):
    """A process that was to live, with the last line of its log."""


class AgentFailed(Exception):
    """code: an errno below zero, a result of the driver, or None where the agent is dead."""

    def __init__(self, command, reply):
        self.code = reply.get("code")
        super().__init__(f"{command}: {reply.get('error')}{'' if self.code is None else f' ({self.code})'}")


class Agent:
    """A process on the GPU: agent.run("attach m cuda:0") is its answer, a dict. `program` is another one than the agent in C."""

    def __init__(self, lab, env=None, prefix=(), program=None):
        self.log = tempfile.TemporaryFile(dir=lab.folder)
        self.proc = subprocess.Popen([*prefix, *(program or [lab.build / "gpu/agent"])], env=lab.env | (env or {}),
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
        self.rest = b""

    @property
    def pid(self):
        return self.proc.pid

    def send(self, command):
        self.command = command
        try:
            self.proc.stdin.write(command.encode() + b"\n")
            self.proc.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self, timeout_s=DEADLINE_S):
        end = time.monotonic() + timeout_s
        while b"\n" not in self.rest:
            if not select.select([self.proc.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no answer to '{self.command}' in {timeout_s:.0f} s")
            more = os.read(self.proc.stdout.fileno(), 65536)
            if not more:
                raise self._ended()
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        reply = json.loads(line)
        if not reply["ok"]:
            raise AgentFailed(self.command, reply)
        return reply

    def _ended(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.proc.wait(END_S)
        self.log.seek(0)
        text = f"the agent {how(self.proc.returncode)}: {last_line(self.log.read().decode(errors='replace'))}"
        return AgentFailed(self.command, {"error": text, "code": None})

    def run(self, command, timeout_s=DEADLINE_S):
        self.send(command)
        return self.answer(timeout_s)

    def code(self, command):
        """0, or what it failed with."""
        try:
            self.run(command)
            return 0
        except AgentFailed as e:
            return e.code

    def free(self):
        return self.run("info")["free"]

    def kill(self):
        kill(self.proc)


class Weightd:
    """A weightd, under a keeper if asked for; `pid` is the daemon's own in either case."""

    def __init__(self, lab, *args, keeper=False, prefix=()):
        self.lab, self.keeper = lab, keeper
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-gpu-"))
        self.folder.chmod(0o711)
        self.socket = str(self.folder / "weightd.sock")
        with open(self.folder / "log", "ab") as log:
            self.proc = subprocess.Popen(
                [*prefix, lab.build / "weightd", "--socket", self.socket, *(["--keeper"] if keeper else []), *args],
                env=lab.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.wait_serving()
        except BaseException:
            self.close()
            raise

    def wait_serving(self, other_than=None):
        """The socket of a keeper takes connections while there is no weightd, too."""
        def is_serving():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.connect(self.socket)
                return self.pid not in (0, other_than)
        wait_for(is_serving, "weightd serves", watched=[self])

    def death(self):
        """Returns why it ended, a text, or None while it lives."""
        if self.proc.poll() is None:
            return None
        return f"weightd {how(self.proc.returncode)}: {last_line(self.log)}"

    @property
    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    @property
    def pid(self):
        """0: there is none just now."""
        if not self.keeper:
            return self.proc.pid
        return next((p for p in children(self.proc.pid) if is_called(p, "weightd")), 0)

    @property
    def allocators(self):
        """Their numbers."""
        return [p for p in children(self.pid) if is_called(p, "weightd-cuda")]

    def ctl(self, *args, check=True, env=None, **kw):
        done = subprocess.run([self.lab.build / "weightctl", *map(str, args)],
                              env=self.lab.env | {"WEIGHTD_SOCKET": self.socket} | (env or {}), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=240, **kw)
        assert not check or done.returncode == 0, f"weightctl {' '.join(map(str, args))}: {done.stderr}\n{self.log}"
        return done

    def kill(self):
        """SIGKILL for the daemon and its allocators; the keeper, if there is one, lives."""
        before = wait_for(lambda: self.pid, "the keeper has a weightd", watched=[self])
        for pid in [*self.allocators, before]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.keeper:
            self.wait_serving(other_than=before)

    def close(self):
        end(self.proc)
        shutil.rmtree(self.folder, ignore_errors=True)


class Lab:
    """
    fake    True: the stand-in for libcuda
    small   True: small sizes, of which no rate means anything
    env     what programs are started with
    device  the GPU under test, "cuda:0"
    end_s   when the section has to be over, of time.monotonic()
    wheels  folders of other packages for Python
    watched processes that must live: death() of each returns None, or why it ended
    """

    def __init__(self, build, fake=False, small=False):
        self.build, self.fake, self.small, self.device = build, fake, fake or small, "cuda:0"
        self.noise = 0 if fake else NOISE
        self.watched, self.end_s, self.wheels = [], math.inf, []
        self.env = {k: v for k, v in os.environ.items() if k not in ("WEIGHTD_SOCKET", "NOTIFY_SOCKET", "LISTEN_FDS")}
        self.env["WEIGHTD_LIBRARY"] = str(build / "libweightd.so")
        self.stack = contextlib.ExitStack()
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="weightd-gpu-")))
        if fake:
            from lib.gpus import Gpus
            self.gpus = Gpus(devices=2, memory="512M")
            self.stack.callback(self.gpus.close)
            self.env |= self.gpus.env

    def size(self, real, small):
        return small if self.small else real

    @property
    def left_s(self):
        """Seconds that the section has left."""
        return self.end_s - time.monotonic()

    def budget(self, seconds, small=30):
        """Seconds for a benchmark, or for as long as the section lasts."""
        return min(self.size(seconds, small), max(0, self.left_s - 5))

    @contextlib.contextmanager
    def weightd(self, *args, **kw):
        """Agents that are started within find it."""
        weightd = Weightd(self, *args, **kw)
        before = self.env
        self.env = before | {"WEIGHTD_SOCKET": weightd.socket}
        try:
            with self.watching(weightd):
                yield weightd
        finally:
            self.env = before
            weightd.close()

    @contextlib.contextmanager
    def watching(self, process):
        """Within it, nothing is waited for any more once this one is dead."""
        self.watched.append(process)
        try:
            yield
        finally:
            self.watched.remove(process)

    @contextlib.contextmanager
    def agents(self, n=1, gpu=0, **kw):
        """n of them, with a context each; what is left of them ends with the block."""
        with contextlib.ExitStack() as stack:
            agents = []
            for _ in range(n):
                agents.append(Agent(self, **kw))
                stack.callback(agents[-1].kill)
                agents[-1].send(f"open {gpu}")
            for agent in agents:
                agent.opened = agent.answer(OPEN_S)
            yield agents

    def pythons(self, n=1, plain=False):
        """Likewise n of agent.py; `plain`: without torch."""
        path = [str(ROOT / "libclient/python"), *map(str, self.wheels)]
        return self.agents(n, "0 plain" if plain else "0", env={"PYTHONPATH": os.pathsep.join(path)},
                           program=[sys.executable, ROOT / "tests/gpu/agent.py"])

    def held(self, agent):
        """On --fake nothing that the agent queues runs within it, however long that takes; a GPU is asked for enough."""
        return self.gpus.gate(agent.pid) if self.fake else contextlib.nullcontext()

    def publish(self, agent, name, size, seed, n_tensors=1, options=""):
        agent.run(f"create {name} {self.device} {size} {n_tensors} {options}", 120)
        agent.run(f"fill {seed}")
        return agent.run("publish", 120)

    def python(self, code, *args, timeout_s=120):
        """Runs a program in a Python that finds the package; its last line of output, as JSON."""
        path = str(ROOT / "libclient/python")
        done = subprocess.run([sys.executable, "-c", code, *map(str, args)], env=self.env | {"PYTHONPATH": path},
                              capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"python ended with {done.returncode}: {done.stderr[-2000:]}"
        return json.loads(done.stdout.strip().splitlines()[-1])

    def wait_for(self, condition, what):
        return wait_for(condition, what, watched=self.watched)

    def wait_free(self, agent, wanted, what):
        """Returns the free bytes of the GPU, once these are as many as wanted, less what other processes may take."""
        seen = 0

        def is_free():
            nonlocal seen
            seen = agent.free()
            return seen >= wanted - self.noise

        self.wait_for(is_free, lambda: f"{what}: {seen} bytes are free, not {wanted}, of which others may take {self.noise}")
        return seen

    def close(self):
        self.stack.close()


def wait_for(condition, what, timeout_s=None, watched=()):
    """Returns the first true value of condition(). `what` is a text, or returns one at the deadline. Died: a watched process ended."""
    timeout_s = DEADLINE_S if timeout_s is None else timeout_s
    end_s = time.monotonic() + timeout_s
    while not (value := condition()):
        for process in watched:
            if why := process.death():
                raise Died(why)
        if time.monotonic() > end_s:
            raise TimeoutError(f"not in {timeout_s:.0f} s: {what() if callable(what) else what}")
        time.sleep(0.005)
    return value


def kill(proc):
    """Sends SIGKILL. A process that hangs in a driver may outlive it, and is left running then."""
    proc.kill()
    try:
        proc.wait(END_S)
    except subprocess.TimeoutExpired:
        say(f"process {proc.pid} does not end, though it was killed")


def end(proc):
    """Sends SIGTERM, and SIGKILL to a process that does not end."""
    proc.terminate()
    try:
        proc.wait(END_S)
    except subprocess.TimeoutExpired:
        kill(proc)


def how(status):
    """Describes an exit code of subprocess."""
    return "closed its output and lives" if status is None else f"ended with {status}" if status >= 0 else \
        f"died of {signal.Signals(-status).name}"


def last_line(log):
    return next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "its log is empty")


def adopt():
    """Makes this process the parent of orphans among its descendants."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children():
    """Kills all remaining children."""
    end_s = time.monotonic() + END_S
    while (left := children(os.getpid())) and time.monotonic() < end_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)
    if left:
        say(f"processes {left} do not end, though they were killed")


def children(pid):
    with contextlib.suppress(OSError, ValueError):
        threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
        return [int(p) for t in threads for p in (t / "children").read_text().split()]
    return []


def is_called(pid, name):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name
    return False

"""What the sections work with: a weightd of their own, agents, and the sizes that fit this GPU."""
import contextlib
import json
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 60
MIB, GIB = 1 << 20, 1 << 30


class Skip(Exception):
    """A section, or a part of it, cannot be tried here; the text says why."""


class AgentFailed(Exception):
    """code: an errno below zero, or a result of the driver."""

    def __init__(self, command, reply):
        super().__init__(f"{command}: {reply.get('error')} ({reply.get('code')})")
        self.code = reply.get("code")


class Agent:
    """A process on the GPU: agent.run("attach m cuda:0") is its answer, a dict."""

    def __init__(self, lab, env=None, prefix=()):
        self.proc = subprocess.Popen([*prefix, lab.build / "gpu/agent"], env=lab.env | (env or {}),
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.rest = b""

    @property
    def pid(self):
        return self.proc.pid

    def send(self, command):
        self.proc.stdin.write(command.encode() + b"\n")
        self.proc.stdin.flush()
        self.command = command

    def answer(self, timeout_s=DEADLINE_S):
        end = time.monotonic() + timeout_s
        while b"\n" not in self.rest:
            if not select.select([self.proc.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no answer to '{self.command}' in {timeout_s:.0f} s")
            more = os.read(self.proc.stdout.fileno(), 65536)
            if not more:
                raise AgentFailed(self.command, {"error": f"the agent ended with {self.proc.wait()}", "code": None})
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        reply = json.loads(line)
        if not reply["ok"]:
            raise AgentFailed(self.command, reply)
        return reply

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
        self.proc.kill()
        self.proc.wait()

    def close(self):
        """Lets it end by itself, which frees what it has in good order."""
        self.proc.stdin.close()
        try:
            self.proc.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()


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
        self.wait_serving()

    def wait_serving(self, other_than=None):
        """The socket of a keeper takes connections while there is no weightd, too."""
        def is_serving():
            assert self.proc.poll() is None, f"weightd ended with {self.proc.returncode}:\n{self.log}"
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.connect(self.socket)
                return self.pid not in (0, other_than)
        wait_for(is_serving, "weightd serves")

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
        return [p for p in children(self.pid) if is_called(p, "weightd-cuda")]

    def ctl(self, *args, check=True, env=None, **kw):
        done = subprocess.run([self.lab.build / "weightctl", *map(str, args)],
                              env=self.lab.env | {"WEIGHTD_SOCKET": self.socket} | (env or {}), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=240, **kw)
        assert not check or done.returncode == 0, f"weightctl {' '.join(map(str, args))}: {done.stderr}\n{self.log}"
        return done

    def kill(self):
        """SIGKILL for the daemon and its allocators; the keeper, if there is one, lives."""
        before = wait_for(lambda: self.pid, "the keeper has a weightd")
        for pid in [*self.allocators, before]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.keeper:
            self.wait_serving(other_than=before)

    def close(self):
        self.proc.terminate()
        try:
            self.proc.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Lab:
    """
    fake    True: the stand-in for libcuda, and small sizes
    env     what programs are started with
    device  the GPU under test, "cuda:0"
    """

    def __init__(self, build, fake=False):
        self.build, self.fake, self.device = build, fake, "cuda:0"
        self.env = {k: v for k, v in os.environ.items() if k not in ("WEIGHTD_SOCKET", "NOTIFY_SOCKET", "LISTEN_FDS")}
        self.env["WEIGHTD_LIBRARY"] = str(build / "libweightd.so")
        libraries = build / "gpu/lib"
        if libraries.is_dir():  # what `run --pack` brought along
            self.env["LD_LIBRARY_PATH"] = f"{libraries}:{self.env.get('LD_LIBRARY_PATH', '')}"
        self.stack = contextlib.ExitStack()
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="weightd-gpu-")))
        if fake:
            from gpus import Gpus
            self.gpus = Gpus(memory="512M")
            self.stack.callback(self.gpus.close)
            self.env |= self.gpus.env

    def size(self, real, fake):
        return fake if self.fake else real

    @contextlib.contextmanager
    def weightd(self, *args, **kw):
        """Agents that are started within find it."""
        weightd = Weightd(self, *args, **kw)
        before = self.env
        self.env = before | {"WEIGHTD_SOCKET": weightd.socket}
        try:
            yield weightd
        finally:
            self.env = before
            weightd.close()

    @contextlib.contextmanager
    def agents(self, n=1, **kw):
        """n of them, with a context each; what is left of them ends with the block."""
        agents = []
        try:
            for _ in range(n):
                agents.append(Agent(self, **kw))
                agents[-1].run("open 0")
            yield agents
        finally:
            for agent in agents:
                agent.kill()

    def held(self, agent):
        """On the stand-in nothing that the agent queues runs within it, however long that takes; a GPU is asked for enough."""
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

    def close(self):
        self.stack.close()


def wait_for(condition, what, timeout_s=DEADLINE_S):
    """Its value, once it is true."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not in {timeout_s:.0f} s: {what}")
        time.sleep(0.005)
    return value


def children(pid):
    with contextlib.suppress(OSError, ValueError):
        threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
        return [int(p) for t in threads for p in (t / "children").read_text().split()]
    return []


def is_called(pid, name):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name
    return False

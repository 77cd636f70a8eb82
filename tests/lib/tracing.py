"""A weightd-trace of one's own: started in a fresh folder, asked, and ended with a check."""
import collections
import contextlib
import ctypes
import functools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from lib import features
from lib.daemon import REPORT, START_S, STOP_S, environment

PROGRAM = features.BUILD / "weightd-trace"
REFUSE = features.ROOT / "build/fake/refuse.so"
REFUSED = tuple(filter(None, os.environ.get("WEIGHTD_TRACE_REFUSED", "").split(",")))  # programs that any tracer of this run refuses
PACKET_MAX = 1 << 16
CLONE_NEWNET = 0x40000000
FOLLOWED = "open", "close", "retransmit", "gap", "act", "progress", "begin", "total", "end"  # kinds of unsolicited packets
COUNTERS = "submitted", "delivered", "received", "consumed", "wire", "retrans_bytes", "retrans_segments"


class Refused(Exception):
    """The tracer's refusal in place of an answer."""


@functools.cache
def is_available():
    """True if it may count by BPF here, iterators included: a supervisor may refuse these and allow the rest."""
    if not PROGRAM.exists():
        return False
    try:
        with Tracer("--meter=bpf") as tracer, Client(tracer.socket) as client:
            client.watch(os.getpid())
            return True
    except (AssertionError, Refused):
        return False


@functools.cache
def refused():
    """{hook: why} of the hooks that the kernel refuses to BPF."""
    with Tracer("--meter=bpf", probes=True) as tracer, Client(tracer.socket) as client:
        return {row["hook"]: row["why"] for row in client.ask("doctor") if row["kind"] == "hook" and not row["on"]}


def has(hook):
    return is_available() and hook not in refused()


class Client:
    """A connection to a tracer; `timeout` is that of each packet."""

    def __init__(self, path, timeout=STOP_S):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.followed = collections.deque()  # packets that arrived while the client waited for another kind

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def hear(self):
        packet = self.socket.recv(PACKET_MAX)
        assert packet, "the tracer hung up"
        return json.loads(packet)

    def ask(self, op, fds=(), **request):
        """The rows of the answer."""
        self.send(op, fds, **request)
        return self.answer()

    def send(self, op, fds=(), **request):
        socket.send_fds(self.socket, [json.dumps({"op": op} | request).encode()], fds)

    def answer(self):
        rows = []
        while not (packet := self.hear()).get("end"):
            (self.followed if packet["kind"] in FOLLOWED else rows).append(packet)
        if "error" in packet:
            raise Refused(packet["error"])
        self.n_cut = packet.get("cut", 0)
        return rows

    def tag(self, sock, sync="s", version=1, peer="b", role="payload", **request):
        self.ask("tag", [sock.fileno()], sync=sync, version=version, peer=peer, role=role, **request)

    def watch(self, pid, sync="s", version=1, peer="b", role="payload"):
        self.ask("watch", pid=pid, sync=sync, version=version, peer=peer, role=role)

    def row(self, peer="b", sync="s", op="read"):
        rows = [row for row in self.ask(op, sync=sync) if row["peer"] == peer]
        assert len(rows) == 1, rows
        return rows[0]

    def until(self, is_so, peer="b", sync="s"):
        """The row, once it is so."""
        deadline = time.monotonic() + STOP_S
        while not is_so(row := self.row(peer, sync)):
            assert time.monotonic() < deadline, row
            time.sleep(0.01)  # the tracer reports closed sockets, not acknowledgements
        return row


class Tracer:
    """
    socket  path of its socket
    proc    the process

    `probes`: it sees what all processes of this machine do, as it would by itself. Tests that want that are marked so, and
    run alone.

    `refused`: names of BPF programs that the kernel refuses then, whatever it would do.
    """

    def __init__(self, *args, prefix=(), uid=0, probes=False, refused=REFUSED):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-trace-"))
        self.folder.chmod(0o711)
        self.socket = str(self.folder / "trace.sock")
        self.env = environment(WEIGHTD_TRACE_SOCKET=self.socket)
        if refused:
            features.require("fakes", "the stand-in for a kernel that refuses is not built (make fakes)", available=REFUSE.exists())
            features.require("preload", "a sanitizer has to be loaded first", available=features.BUILD.name == "build")
            prefix = [*prefix, "env", f"LD_PRELOAD={REFUSE}", f"WEIGHTD_REFUSED={','.join(refused)}"]
        program = PROGRAM
        if uid:  # without access to the build tree
            program = shutil.copy(PROGRAM, self.folder)
            os.chown(self.folder, uid, uid)
        self.command = [*prefix, program, *(() if probes else ["--probes=off"]), *args]
        self.clients = contextlib.ExitStack()
        try:
            self.start()
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def start(self):
        """Also anew."""
        self.proc = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=open(self.folder / "log", "ab"), text=True)
        watchdog = threading.Timer(START_S, self.proc.kill)
        watchdog.start()
        self.greeting = self.proc.stdout.readline()
        watchdog.cancel()
        if not self.greeting:
            self.proc.stdout.close()
            raise AssertionError(f"weightd-trace ended with {self.proc.wait()}:\n{self.log}")

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def client(self, **kw):
        return self.clients.enter_context(Client(self.socket, **kw))

    def kill(self):
        self.proc.kill()
        self.proc.wait()
        self.proc.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.clients.close()
        log = self.log
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
            log = self.log
        self.proc.stdout.close()
        shutil.rmtree(self.folder)
        if kind is None:
            assert not REPORT.search(log), log
            assert self.proc.returncode == 0, (self.proc.returncode, log)


@contextlib.contextmanager
def pair():
    """Two sockets that are connected, here."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as a, \
            server.accept()[0] as b:
        yield a, b


def inside(namespace, act, *args):
    """The result of act(), called by a thread in this network namespace: its sockets stay there, whichever process has them."""
    result = []

    def body():
        fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET) < 0:
                raise OSError(ctypes.get_errno(), "setns")
            result.append(act(*args))
        except Exception as e:
            result.append(e)
        finally:
            os.close(fd)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if isinstance(result[0], Exception):
        raise result[0]
    return result[0]

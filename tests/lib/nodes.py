"""
Nodes of one's own: each a weightd and a weightd-sync in a folder, with certificates of a CA of the test's, on
loopback addresses of their own. Started, watched, made to fail, and ended with a check.

    with Cluster(authority, 4) as nodes:
        nodes["a"].publish("m", seed=1)
        nodes["a"].push("m")
        nodes.settle("m", seed=1)
"""
import collections
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from lib import features
from lib.daemon import REPORT, Daemon, environment

MIB = 1 << 20
SIZE = 4 * MIB  # size of a version if a test gives no other
PATIENCE_S = 60  # limit for anything that has to happen; the machine may be slow
STOP_S = 60
HISTORY_MAX = 256
# Timers of nodes in tests about something else: a node that a busy machine starves is not lost for that.
UNHURRIED = {"heartbeat": 10, "stall-timeout": 30, "prepare-timeout": 30}
# Timers of nodes in tests that wait for one: for a node that does not connect, does not answer, or moves nothing.
ABSENCE_S, SILENCE_S, STALL_S = 4, 5, 3
IMPATIENT = {"heartbeat": SILENCE_S / 5, "stall-timeout": STALL_S}
CONTROL_PORT = 7400
PACKET_MAX = 1 << 17
COMM_MAX = 15  # bytes of a process's name in the kernel
OVER = "committed", "failed", "absent", "unknown", "planned"  # phases of a node in a sync that ended
SECTIONS = ("node", "tls", "data", "limits", "access")
MARK = "NODES_OF_A_TEST"

Served = collections.namedtuple("Served", "version layout digest size sha256")


class Hangs(AssertionError):
    """The awaited condition did not become true."""


def until(condition, what, timeout=PATIENCE_S):
    """Waits by polling, for a condition without an event. Returns the result of `condition`; `what` may be a function."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Hangs(f"not in {timeout} s: {what() if callable(what) else what}")
        time.sleep(0.02)  # nothing to wait on
    return found


@functools.lru_cache(maxsize=64)
def content(seed, size):
    """Bytes that no other seed has; of a pair of seeds those of the first, but for some in a tenth of the elements."""
    if isinstance(seed, tuple):
        before, changes = (bytearray(content(part, size)) for part in seed)
        before[::20] = changes[::20]
        return bytes(before)
    return random.Random(seed).randbytes(size)


def layout_of(size, tensors=3):
    """About `size` bytes in so many tensors, one behind the other."""
    import weightd
    layout = weightd.Layout()
    for i in range(tensors):
        layout.add(f"blocks.{i}.weight", "BF16", (rows_of(size, tensors), 64))
    return layout


def rows_of(size, tensors):
    """An even number where there are several, so that the flat form, too, has no bytes between the tensors."""
    rows = size // tensors // 2 // 64
    return rows - rows % 2 if rows > 1 else rows


def digest_of(seed, size, tensors=3):
    """SHA-256 of what publish() writes."""
    return hashlib.sha256(content(seed, tensors * rows_of(size, tensors) * 64 * 2)).hexdigest()


class Control:
    """A connection to the control socket of an agent: JSON in packets."""

    def __init__(self, path, timeout=PATIENCE_S):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def say(self, **request):
        self.socket.send(json.dumps(request).encode())

    def hear(self):
        """The next packet; None when the agent hung up."""
        try:
            packet = self.socket.recv(PACKET_MAX)
        except ConnectionResetError:
            return None
        return json.loads(packet) if packet else None

    def rest(self):
        """All packets up to the end of an answer, that one included."""
        while packet := self.hear():
            yield packet
            if packet.get("end"):
                return
        raise ConnectionResetError("the agent hung up before the end of its answer")


class Failed(Exception):
    """An agent's refusal: its sentence, and its code."""

    def __init__(self, packet):
        super().__init__(packet.get("error", str(packet)))
        self.sentence, self.code = packet.get("error", ""), packet.get("code")
        self.packet = packet


class Push:
    """
    A push that is under way, or another sync that `op` asks for.

    sync    its id
    events  its packets until now; "heard" is the time of their arrival
    """

    def __init__(self, node, buffer, **request):
        self.node, self.events, self.started = node, [], time.monotonic()
        self.control = Control(node.control_socket)
        self.control.say(**{"op": "push", "wait": True, "buffer": buffer, "version": 0, "max_rate": 0} | request)
        try:
            first = self.hear()
            if "error" in first:
                raise Failed(first)
        except BaseException:
            self.control.socket.close()
            raise
        self.sync = first["sync"]

    def hear(self):
        try:
            packet = self.control.hear()
        except socket.timeout:
            raise Hangs(f"the push of {self.node.name} does not end:\n{self.node.cluster.story()}") from None
        if packet is None:
            raise ConnectionResetError(f"the agent of {self.node.name} hung up:\n{self.node.cluster.story()}")
        self.events.append(packet | {"heard": time.monotonic()})
        return packet

    def until(self, condition):
        """The first event that fulfils it, or the end. Events from before this call do not count."""
        while True:
            event = self.hear()
            if event.get("end") or condition(event):
                return event

    def end(self):
        """Waits for its end, and returns its last packet, a failure included."""
        try:
            end = self.events[-1] if self.events[-1].get("end") else self.until(lambda event: False)
        finally:
            self.control.socket.close()
        self.seconds = time.monotonic() - self.started
        return end

    def committed(self):
        """Waits for its end, which must be a good one."""
        end = self.end()
        assert end["state"] == "committed", f"{end}\n{self.node.cluster.story()}"
        return end

    def failed(self):
        """Waits for its end, which must be a bad one. Its sentence."""
        end = self.end()
        assert end["state"] == "failed", f"{end}\n{self.node.cluster.story()}"
        assert end["error"], end
        return end["error"]

    def moving(self, node, at_least=1):
        """Waits until a member has so many bytes, and not yet all of them. Its row of the status."""
        def look():
            rows = [row for row in self.node.status(self.sync) if row["node"] == node]
            assert not rows or rows[0]["phase"] not in ("moved", "verify", "verified", "commit", "committed", "failed"), \
                f"{node} was too fast for this test: {rows[0]}\n{self.node.cluster.story()}"
            return rows[0] if rows and at_least <= rows[0]["done"] < rows[0]["expected"] else None

        return until(look, lambda: f"{node} has {at_least} bytes\n{self.node.cluster.story()}")


class Node:
    """
    name          of it
    daemon        its weightd
    proc          its weightd-sync, or None
    address       IP address of its own
    data_address  those where its engines listen
    others        versions that have other bytes than has() was asked for
    """

    def __init__(self, cluster, name, address, interfaces=1):
        self.cluster, self.name, self.address = cluster, name, address
        first, second, _, last = address.split(".")
        self.data_address = " ".join([address, *(f"{first}.{second}.{200 + i}.{last}" for i in range(1, interfaces))])
        self.folder = cluster.folder / name
        self.folder.mkdir(mode=0o711)
        self.conf = self.folder / "sync.conf"
        self.control_socket = str(self.folder / "sync.sock")
        self.ca, self.certificate, self.key = (self.folder / end for end in ("ca.crt", "node.crt", "node.key"))
        self.trust(cluster.authority.certificate, *cluster.authority.node(name))
        self.daemon, self.proc, self.frozen, self.others = None, None, set(), set()
        self.gpus = cluster.gpus.get(name)
        self.gpu_env = self.gpus.env if self.gpus else {}
        self.env = environment(**{MARK: str(cluster.folder)}, WEIGHTD_SYNC_SOCKET=self.control_socket, **self.gpu_env)
        self.env.pop("STATE_DIRECTORY", None)

    def __repr__(self):
        return self.name

    def trust(self, ca, certificate, key):
        """Copies these to the paths of its sync.conf."""
        for source, target in ((ca, self.ca), (certificate, self.certificate), (key, self.key)):
            shutil.copy(source, target)

    # --- its programs -----------------------------------------------------------------------------

    def configure(self, settings, peers, groups):
        """Writes sync.conf. `settings` is {section: {key: value or list of them}}, on top of what each node has."""
        own = {"node": {"name": self.name, "listen": f"{self.address}:{CONTROL_PORT}", "data-address": self.data_address,
                        "state": self.folder / "state", "socket": self.control_socket,
                        "weightd": self.daemon.socket, "trace": self.cluster.trace_socket or self.folder / "trace.sock",
                        "log-level": "debug"},
               "tls": {"ca": self.ca, "certificate": self.certificate, "key": self.key},
               "data": {"trusted": "127.0.0.0/8"}}
        lines = []
        for section in SECTIONS:
            lines.append(f"[{section}]")
            for key, values in (own.get(section, {}) | settings.get(section, {})).items():
                lines += [f"{key} = {v}" for v in (values if isinstance(values, list) else [values])]
        for name, address in peers.items():
            lines += [f"[peer {name}]", f"address = {address}"]
        for name, group in groups.items():
            lines += [f"[group {name}]", *(f"{key} = {value}" for key, value in group.items())]
        self.conf.write_text("\n".join(lines) + "\n")

    def start(self, wait=True):
        """Its weightd-sync, anew if it was ended or killed."""
        program = self.cluster.programs.get(self.name, features.BUILD) / "weightd-sync"
        with open(self.folder / "log", "ab") as log:
            self.proc = subprocess.Popen([*self.cluster.prefix(self), program, "--config", self.conf], env=self.env,
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait:
            until(self.is_serving, lambda: f"weightd-sync of {self.name} serves\n{self.log}")

    def is_serving(self):
        assert self.proc.poll() is None, f"weightd-sync of {self.name} exited with {self.proc.returncode}:\n{self.log}"
        try:
            with Control(self.control_socket):
                return True
        except OSError:
            return False

    @property
    def log(self):
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def children(self, name):
        """
        Process ids of the programs of this name that its agent runs, or has not buried: "weightd-sync-tcp". Its watch,
        which has no end, is none of them.
        """
        found = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in pathlib.Path(f"/proc/{self.proc.pid}/task/{self.proc.pid}/children").read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    # Not its command line, which is empty before its descriptors are closed.
                    is_it = pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == name[:COMM_MAX]
                    if is_it and b"watch" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                        found.append(int(pid))
        return found

    def engine(self, program="weightd-sync-tcp"):
        """Process id of the engine that it runs now."""
        return until(lambda: self.children(program),
                     lambda: f"{self.name} runs an engine\n{self.cluster.story()}")[0]

    def kill(self, sig=signal.SIGKILL):
        """Kills its agent and reaps it."""
        self.cluster.is_whole = False
        self.proc.send_signal(sig)
        self.proc.wait(STOP_S)
        self.frozen.clear()

    def freeze(self, pid=None):
        """Stops its agent, or a process of it, until thaw()."""
        pid = pid or self.proc.pid
        os.kill(pid, signal.SIGSTOP)
        self.frozen.add(pid)

    def thaw(self):
        while self.frozen:
            with contextlib.suppress(KeyError, ProcessLookupError):  # a timer may do the same
                os.kill(self.frozen.pop(), signal.SIGCONT)

    def stop(self):
        """SIGTERM; the agent has to end with 0."""
        self.cluster.is_whole = False
        self.thaw()
        self.proc.terminate()
        try:
            self.proc.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise AssertionError(f"weightd-sync of {self.name} did not end {STOP_S} s after SIGTERM:\n{self.log}") from None
        assert self.proc.returncode == 0, f"weightd-sync of {self.name} ended with {self.proc.returncode}:\n{self.log}"

    def restart(self):
        self.stop()
        self.start()

    # --- its control socket -----------------------------------------------------------------------

    def ask(self, op, **request):
        """All packets of the answer; Failed."""
        with Control(self.control_socket) as control:
            control.say(op=op, **request)
            try:
                packets = list(control.rest())
            except socket.timeout:
                raise Hangs(f"{self.name} does not answer {op}:\n{self.cluster.story()}") from None
        if "error" in packets[-1]:
            raise Failed(packets[-1])
        return packets

    def rows(self, op, key, **request):
        return [packet for packet in self.ask(op, **request) if key in packet]

    def peers(self):
        """{name: row} of all nodes."""
        return {row["node"]: row for row in self.rows("nodes", "node")}

    def status(self, sync=None):
        return self.rows("status", "node", sync=sync)

    def history(self, n=20):
        return self.rows("history", "sync", n=n)

    def own_head(self, buffer):
        """The entry of a buffer in its commit log, or None."""
        return next((h for h in self.peers()[self.name].get("heads") or [] if h["buffer"] == buffer), None)

    def head(self, buffer):
        """(term, number) of the newest committed version in its log, or None."""
        head = self.own_head(buffer)
        return (head["term"], head["number"]) if head else None

    def start_push(self, buffer, **request):
        return Push(self, buffer, **request)

    def push(self, buffer, **request):
        """Pushes, and waits until all is committed."""
        return Push(self, buffer, **request).committed()

    def ctl(self, *args, **kw):
        """Runs weightctl as an operator of this node."""
        env = {"WEIGHTD_SYNC_SOCKET": self.control_socket} | kw.pop("env", {})
        return self.daemon.ctl(*args, env=env, **kw)

    # --- contents of its weightd -------------------------------------------------------------------

    def publish(self, buffer, seed, size=SIZE, tensors=3, **options):
        """A version with the flat range content(seed, ...), published by a client on this node."""
        import weightd
        with weightd.create(buffer, layout_of(size, tensors), socket=self.daemon.socket, **{"new_layout": True} | options) as writer:
            writer.write(0, content(seed, writer.nbytes))
            return writer.publish()

    def serves(self, buffer):
        """The version that a reader here gets now, as Served; None: nothing."""
        import weightd
        try:
            with weightd.attach(buffer, socket=self.daemon.socket) as b:
                return Served(b.version, b.layout_hash.hex(), b.digest and b.digest.hex(), b.nbytes,
                              hashlib.sha256(b.read()).hexdigest())
        except (weightd.NotFound, weightd.NotPublished):
            return None

    def read(self, buffer):
        """All its bytes; None: nothing."""
        import weightd
        with contextlib.suppress(weightd.NotFound, weightd.NotPublished):
            with weightd.attach(buffer, socket=self.daemon.socket) as b:
                return b.read()

    def has(self, buffer, seed):
        """A version with other bytes is read once: none ever gets other ones."""
        import weightd
        with contextlib.suppress(weightd.NotFound, weightd.NotPublished):
            with weightd.attach(buffer, socket=self.daemon.socket) as b:
                asked = self.daemon.pid, buffer, b.version, seed
                if asked not in self.others and b.read() != content(seed, b.nbytes):
                    self.others.add(asked)
                return asked not in self.others

    def empty(self):
        """Its weightd loses all that it had, as a machine does that was restarted."""
        self.daemon.kill()
        self.daemon.start()


def is_equal(row, is_plain, is_whole=True):
    """
    True if a sync of the history moved the planned bytes, by the counts of engines, TCP and weightd-trace. A node that ended
    leaves less than the whole, and may not have sent the count of its weightd-trace.
    """
    if row["planned"] != row["payload"] or is_plain and row["payload"] != row["bytes"]:
        return False
    if row["kernel"] is None:  # NCCL carried some of it
        return True
    traced = row["traced"] or 0  # without bytes there is no trace
    is_seen = traced < row["bytes"] if row["untraced"] and not is_whole else (traced, row["untraced"]) == (row["bytes"], 0)
    return is_seen and row["bytes"] == row["kernel"]


def claim_net():
    """The first three numbers of addresses on loopback that no other cluster of this machine has, until the socket is closed."""
    while True:
        net = f"127.{random.randrange(1, 255)}.{random.randrange(200)}"  # further interfaces are from 200 on
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind((f"{net}.0", CONTROL_PORT))
            return net, claim
        except OSError:
            claim.close()


def claim_port():
    """
    A port for a program that listens there at all addresses, and a few behind it: no other test has them until the socket is
    closed, and the kernel gives them to nobody.
    """
    while True:
        port = random.randrange(10000, 30000, 10)
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("", port))
            socket.create_server(("", port)).close()
            return port, claim
        except OSError:
            claim.close()


def hostile_programs(folder, engine="weightd-sync-tcp", **habits):
    """A folder of programs in which the engine misbehaves by `habits`: see hostile_engine.py."""
    folder.mkdir()
    shutil.copy(features.BUILD / "weightd-sync", folder)  # a link would lead it back to its own folder
    for other in {"weightd-sync-local", "weightd-sync-tcp", "weightd-sync-gloo"} - {engine}:
        (folder / other).symlink_to(features.BUILD / other)  # and this to its library
    shutil.copy(features.ROOT / "tests/lib/hostile_engine.py", folder / engine)
    (folder / engine).chmod(0o755)
    set_habits(folder, engine, **habits)
    return folder


def set_habits(folder, engine, **habits):
    (folder / "hostile.json").write_text(json.dumps({"real": str(features.BUILD / engine)} | habits))


class Cluster:
    """
    Nodes "a", "b", ... of one group "main" with these `publishers`.

    settings  {section: {key: value}} of each sync.conf
    group     further keys of the group
    absent    nodes that are members and are not started
    programs  {name: a folder with weightd-sync and its programs} of nodes that do not run those of the build
    daemons   {name: arguments} of the nodes' weightd
    prefix    a function of a node: the words before its commands, as for a namespace
    gpus      {name: Gpus} of nodes with GPUs: their buffers are on the first of them
    interfaces  that each has for bytes, on loopback

    tracer    of all nodes without one in their settings: in the end its counts of each sync must be those of engines and TCP
    is_whole  no node has ended, before all did
    """
    tracer = None

    def __init__(self, authority, n=2, publishers="a", settings=None, group=None, absent="", programs=None,
                 daemons=None, addresses=None, prefix=None, gpus=None, interfaces=1, start=True):
        self.authority = authority
        self.gpus = gpus or {}
        self.programs = programs or {}
        self.prefix = prefix or (lambda node: ())
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nodes-"))
        self.folder.chmod(0o711)
        self.nodes = {}
        self.settings = settings or {}
        is_traced = self.tracer and "trace" not in self.settings.get("node", {})
        self.is_whole = True
        self.trace_socket = self.tracer.socket if is_traced else None
        self.limits = {"limits": UNHURRIED}
        self.claim = None
        try:
            names = [chr(ord("a") + i) for i in range(n)]
            net, self.claim = claim_net()
            for i, name in enumerate(names):
                self.nodes[name] = Node(self, name, addresses[i] if addresses else f"{net}.{i + 1}", interfaces)
            self.groups = {"main": {"members": " ".join(names), "publishers": " ".join(publishers)} | (group or {})}
            for node in self:
                node.daemon = Daemon(*(daemons or {}).get(node.name, ()), prefix=self.prefix(node), env=node.gpu_env)
                self.configure(node)
            if start:
                for node in self:
                    if node.name not in absent:
                        node.start(wait=False)
                for node in self:
                    if node.name not in absent:
                        until(node.is_serving, lambda node=node: f"weightd-sync of {node} serves\n{node.log}")
                self.wait_connected()
        except BaseException:
            self.destroy()
            raise

    def configure(self, node, /, groups=None, **settings):
        """Writes the node's sync.conf; `settings` on top of the cluster's, and `groups` instead of its."""
        merged = {section: self.limits.get(section, {}) | self.settings.get(section, {}) | settings.get(section, {})
                  for section in SECTIONS}
        peers = {p.name: f"{p.address}:{CONTROL_PORT}" for p in self if p is not node}
        own = {"device": "cuda"} if node.name in self.gpus else {}
        node.configure(merged, peers, {name: own | group for name, group in (groups or self.groups).items()})

    def __getitem__(self, name):
        return self.nodes[name]

    def __iter__(self):
        return iter(self.nodes.values())

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if not kind:
                self.close()
        finally:
            self.destroy()

    def running(self):
        return [node for node in self if node.proc and node.proc.returncode is None]

    def wait(self, condition, what):
        return until(condition, lambda: f"{what}\n{self.story()}")

    def wait_connected(self, names=None):
        """Waits until those that run, or these, are connected to each other."""
        names = set(names or [node.name for node in self.running()])

        def look():
            with contextlib.suppress(OSError):  # one that does not serve yet
                return all(node.peers()[other]["state"] == "up" for node in self if node.name in names
                           for other in names - {node.name})

        self.wait(look, f"{sorted(names)} are connected")

    def rest(self, buffer, nodes=None):
        """Waits until the agents of all that run, or of these, report that they serve the newest, and nothing is under way."""
        def look():
            with contextlib.suppress(OSError):  # one that does not serve yet
                heads = [node.own_head(buffer) for node in nodes or self.running()]
                return all(heads) and {head["state"] for head in heads} == {"serving"} and \
                    len({(head["term"], head["number"]) for head in heads}) == 1 and \
                    all(row["phase"] in OVER for node in nodes or self.running() for row in node.status()
                        if row["buffer"] == buffer)

        self.wait(look, f"all have the newest of {buffer}, and are done with it")

    def settle(self, buffer, seed, names=None):
        """Waits until all nodes that run serve content(seed), with one layout and one digest, and report it."""
        nodes = [self[name] for name in names] if names else self.running()
        for node in nodes:
            self.wait(lambda node=node: node.has(buffer, seed), f"{node} serves version {seed} of {buffer}")
        self.rest(buffer, nodes)
        self.assert_equal(buffer, [node.name for node in nodes])

    def assert_equal(self, buffer, names=None):
        """One layout and one digest everywhere, whatever number each weightd gave it."""
        served = {node.name: node.serves(buffer) for node in self if not names or node.name in names}
        assert len({s and s[1:] for s in served.values()}) == 1, f"{served}\n{self.story()}"
        return next(iter(served.values()))

    def story(self):
        """The logs of all, for a test that failed."""
        lines = []
        for node in self:
            lines.append(f"--- {node.name} ({'pid %d' % node.proc.pid if node.proc else 'not started'})")
            with contextlib.suppress(Exception):
                lines += [str(row) for row in node.status() + node.history(3)]
            lines += node.log.splitlines()[-40:]
            if node.daemon:
                lines += node.daemon.log.splitlines()[-5:]
        return "\n".join(lines)

    def leftovers(self):
        """Processes that were started for this cluster and still run: (pid, command line)."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self.folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        return found

    def differing(self):
        """(name, row of its history) of what was committed, for which is_equal() does not hold."""
        is_plain = self.settings.get("data", {}).get("security") == "none"
        return [(node.name, row) for node in self.running() for row in node.history(HISTORY_MAX)
                if row["state"] == "committed" and not is_equal(row, is_plain, self.is_whole)]

    def assert_traced(self):
        """All counts of its commits are equal; no sync waits for the count of weightd-trace."""
        until(lambda: not self.differing(),
              lambda: f"planned, counted and traced is the same of all that was committed: {self.differing()}\n{self.story()}")

    def close(self):
        """Ends all, in the open: exit statuses, leftovers, reports of a sanitizer, and what was traced."""
        errors = []
        for node in self:
            node.thaw()
        if self.trace_socket:
            try:
                self.assert_traced()
            except (AssertionError, OSError) as e:  # one died that was not to
                errors.append(str(e))
        for node in self:
            try:
                if node.proc and node.proc.returncode is None:
                    assert node.proc.poll() is None, f"weightd-sync of {node} had exited with {node.proc.returncode} " \
                        f"before the test ended:\n{node.log}"
                    node.stop()
                assert not REPORT.search(node.log), node.log
            except AssertionError as e:
                errors.append(str(e))
        try:
            until(lambda: not self.leftovers(), lambda: f"nothing is left: {self.leftovers()}")
        except AssertionError as e:
            errors.append(str(e))
        for node in self:
            try:
                node.daemon.close()
            except AssertionError as e:
                errors.append(str(e))
        assert not errors, "\n".join(errors)

    def destroy(self):
        """Ends all, whatever state it is in."""
        for node in self:
            node.thaw()
            if node.proc and node.proc.returncode is None:
                node.proc.kill()
                node.proc.wait()
            if node.daemon and node.daemon.proc.returncode is None:
                node.daemon.kill()
            if node.daemon:
                shutil.rmtree(node.daemon.folder, ignore_errors=True)
        for pid, _ in self.leftovers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.claim:
            self.claim.close()
        shutil.rmtree(self.folder, ignore_errors=True)

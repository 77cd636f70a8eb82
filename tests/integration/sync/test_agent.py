"""
weightd-sync without a push: refusals at its start, the peers that it accepts and refuses, its messages about them, and
strangers, silent peers and liars, which must not hold up the others. The tests play the node 'a'.
"""
import contextlib
import itertools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile

import pytest
from lib import features
from lib.daemon import REPORT, environment
from lib.nodes import PATIENCE_S, Control, until
from lib.pki import Authority

SYNC = features.BUILD / "weightd-sync"
JSON, PART = 1, 2


@pytest.fixture(autouse=True)
def sync_only(require):
    require("sync")
    require("inih")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    features.require("sync")
    return Authority(tmp_path_factory.mktemp("pki") / "pki")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A CA outside of every node's trust."""
    features.require("sync")
    return Authority(tmp_path_factory.mktemp("other") / "pki")


ports_given = set()


def free_port():
    """A port that no connection and no bind(0) on this machine takes meanwhile, and that this function has not returned before."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, lowest)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            if port not in ports_given:
                ports_given.add(port)
                return port


class Agent:
    """A weightd-sync, its sync.conf and its log, in a folder of its own."""
    address = "127.0.0.1"

    def __init__(self, authority, name, peers, port=None, **settings):
        self.name, self.port, self.proc = name, port or free_port(), None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-"))
        self.folder.chmod(0o711)
        self.socket = str(self.folder / "sync.sock")
        self.conf = self.folder / "sync.conf"
        for source, target in zip((authority.certificate, *authority.node(name)), ("ca.crt", "node.crt", "node.key")):
            shutil.copy(source, self.folder / target)
        (self.folder / "node.key").chmod(0o600)
        self.settings = {
            "node": {"name": name, "listen": f"127.0.0.1:{self.port}", "state": self.folder / "state",
                     "socket": self.socket, "log-level": "debug"},
            "tls": {"ca": self.folder / "ca.crt", "certificate": self.folder / "node.crt",
                    "key": self.folder / "node.key"},
            **{f"peer {p}": {"address": f"127.0.0.1:{port}"} for p, port in peers.items()},
            "group main": {"members": " ".join(sorted([name, *peers])), "publishers": name},
            "limits": {"heartbeat": 20},  # a busy machine makes no peer silent
        }
        for section, keys in settings.items():
            self.settings.setdefault(section, {}).update(keys)
        self.write()

    def write(self):
        self.conf.write_text("".join(f"[{section}]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items())
                                     for section, keys in self.settings.items()))
        self.conf.chmod(0o644)

    def command(self, *args):
        return [SYNC, "--config", self.conf, *args]

    def run(self, *args):
        """One that ends by itself."""
        return subprocess.run(self.command(*args), env=self.env(), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE_S)

    def env(self):
        env = environment()
        for name in ("STATE_DIRECTORY", "WEIGHTD_SYNC_SOCKET"):
            env.pop(name, None)
        return env

    def start(self, **kw):
        with open(self.folder / "log", "ab") as log:
            self.proc = subprocess.Popen(self.command(), env=self.env(), stdin=subprocess.DEVNULL, stdout=log,
                                         stderr=log, **kw)
        until(self.is_serving, lambda: f"it serves\n{self.log}")
        return self

    def is_serving(self):
        assert self.proc.poll() is None, f"it ended with {self.proc.returncode}:\n{self.log}"
        try:
            with Control(self.socket):
                return True
        except OSError:
            return False

    @property
    def log(self):
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self, text):
        return until(lambda: text in self.log, lambda: f"{text!r} in\n{self.log}")

    def ask(self, **request):
        with Control(self.socket) as c:
            c.say(**request)
            return list(c.rest())

    def row(self, node):
        rows = [r for r in self.ask(op="nodes") if r.get("node") == node]
        assert len(rows) == 1, rows
        return rows[0]

    def sees(self, node, state, why=""):
        """Waits until it does. The row."""
        def look():
            row = self.row(node)
            return row if row["state"] == state and why in (row["why"] or "") else None

        return until(look, lambda: f"{self.name} sees {node} {state} ({why})\n{self.row(node)}\n{self.log}")

    def kill(self, sig=signal.SIGKILL):
        self.proc.send_signal(sig)
        return self.proc.wait(PATIENCE_S)

    def close(self):
        try:
            if self.proc and self.proc.returncode is None:
                assert self.proc.poll() is None, f"it had exited with {self.proc.returncode}:\n{self.log}"
                assert self.kill(signal.SIGTERM) == 0, self.log
            assert not REPORT.search(self.log), self.log
        finally:
            if self.proc and self.proc.poll() is None:
                self.proc.kill()
                self.proc.wait()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def make(authority):
    """make("a", {"b": port}, ...): an agent that was not started; all end with the test."""
    agents = []

    def one(name, peers, **kw):
        agents.append(Agent(authority, name, peers, **kw))
        return agents[-1]

    yield one
    errors = []
    for agent in agents:
        try:
            agent.close()
        except AssertionError as e:
            errors.append(str(e))
    assert not errors, "\n".join(errors)


@pytest.fixture
def b(make):
    """A node that waits for the node 'a' to dial, which is the test."""
    return make("b", {"a": free_port()}).start()


class Peer:
    """The other end of a connection to an agent."""
    incarnations = itertools.count(1000)  # a later one takes over from an earlier one

    def __init__(self, agent, ca, certificate, key, version=ssl.TLSVersion.TLSv1_3, raw=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = version
        context.load_verify_locations(ca)
        if certificate:
            context.load_cert_chain(certificate, key)
        raw = raw or socket.create_connection((agent.address, agent.port), timeout=PATIENCE_S)
        try:
            self.tls = context.wrap_socket(raw, server_hostname=f"{agent.name}.weightd")
        except BaseException:
            raw.close()
            raise
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tls.close()

    def send(self, kind, data):
        self.tls.sendall(struct.pack(">IB", 1 + len(data), kind) + data)

    def say(self, **message):
        self.send(JSON, json.dumps(message).encode())

    def hello(self, node="a", incarnation=None, protocol=1, data_addresses=("127.0.0.1",)):
        self.say(type="hello", node=node, protocol=protocol, incarnation=incarnation or next(self.incarnations),
                 data_addresses=data_addresses)

    def hear(self):
        """The next message; None at the end."""
        while len(self.buffer) < 4 or len(self.buffer) < 4 + struct.unpack(">I", self.buffer[:4])[0]:
            try:
                more = self.tls.recv(65536)
            except (ConnectionResetError, ssl.SSLError):
                more = b""
            if not more:
                return None
            self.buffer += more
        size = struct.unpack(">I", self.buffer[:4])[0]
        frame, self.buffer = self.buffer[4:4 + size], self.buffer[4 + size:]
        assert frame[0] == JSON, frame[:1]
        return json.loads(frame[1:])

    def until(self, kind):
        """The next message of this type; the others are answered or left out."""
        while message := self.hear():
            if message["type"] == kind:
                return message
            if message["type"] == "ping":
                with contextlib.suppress(OSError):  # it may have closed, and have sent more before
                    self.say(type="pong", n=message["n"])
        return None


@pytest.fixture
def as_a(authority):
    """as_a(agent): the node 'a', with valid certificates."""
    return lambda agent: Peer(agent, authority.certificate, *authority.node("a"))


# --- Nodes ------------------------------------------------------------------------------------------

def pair(make):
    ports = free_port(), free_port()
    return make("a", {"b": ports[1]}, port=ports[0]), make("b", {"a": ports[0]}, port=ports[1])


def test_two_nodes_find_each_other_whoever_starts_first(make):
    a, b = pair(make)
    a.start()
    a.sees("b", "down", "Connection refused")
    b.start()
    row = a.sees("b", "up")
    assert row["why"] is None and row["address"] == f"127.0.0.1:{b.port}" and row["heads"] == []
    b.sees("a", "up")
    assert b.row("b")["state"] == "self"
    until(lambda: a.row("b")["rtt_us"], "the way to b is measured")


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_node_that_was_killed_comes_back(make, victim):
    nodes = dict(zip("ab", pair(make)))
    for node in nodes.values():
        node.start()
    other = nodes["a" if victim == "b" else "b"]
    for _ in range(3):
        other.sees(victim, "up")
        nodes[victim].kill()
        other.sees(victim, "down", "")
        nodes[victim].start()
    other.sees(victim, "up")


def test_a_node_that_stops_says_so(make):
    a, b = pair(make)
    a.start(), b.start()
    a.sees("b", "up")
    b.kill(signal.SIGTERM)
    a.logs("node b is down: it hung up: weightd-sync stops there")


def test_a_node_that_hangs_is_down_and_up_again(make):
    ports = free_port(), free_port()
    a = make("a", {"b": ports[1]}, port=ports[0], limits={"heartbeat": 0.2}).start()
    b = make("b", {"a": ports[0]}, port=ports[1]).start()
    a.sees("b", "up")
    b.proc.send_signal(signal.SIGSTOP)
    try:
        a.logs("node b is down: it did not answer for 1 s")
    finally:
        b.proc.send_signal(signal.SIGCONT)
    a.sees("b", "up")
    b.sees("a", "up")


def test_a_name_of_a_host_is_looked_up(make):
    ports = free_port(), free_port()
    a = make("a", {"b": 1, "c": 1}, port=ports[0], **{
        "peer b": {"address": f"localhost:{ports[1]}"}, "peer c": {"address": "no-such-host.invalid:7400"}}).start()
    make("b", {"a": ports[0]}, port=ports[1]).start()
    a.sees("b", "up")
    a.sees("c", "down", "the name 'no-such-host.invalid' has no address")


def test_certificates_are_read_again(make, authority, stranger):
    a, b = pair(make)
    a.start(), b.start()
    a.sees("b", "up")
    good = (a.folder / "ca.crt").read_bytes()
    shutil.copy(stranger.certificate, a.folder / "ca.crt")
    a.proc.send_signal(signal.SIGHUP)
    a.logs("the certificates stay as they are: [tls] certificate")
    (a.folder / "ca.crt").write_bytes(good)
    a.proc.send_signal(signal.SIGHUP)
    a.logs("the certificates were read again")
    b.kill()
    b.start()
    a.sees("b", "up")


def put(source, target):
    """As tools that renew certificates do it: no reader ever sees half a file."""
    shutil.copy(source, f"{target}.new")
    os.rename(f"{target}.new", target)


def test_a_certificate_that_is_replaced_is_shown_without_a_signal(make, authority):
    a, b = pair(make)
    a.start(), b.start()
    before = a.sees("b", "up")
    for source, target in zip(authority.odd("new-a", ["a.weightd"]), ("node.crt", "node.key")):
        put(source, a.folder / target)
    a.logs("the certificates were read again")
    b.logs("the certificate of 'a' was replaced: connecting anew")
    until(lambda: a.row("b")["since_ns"] > before["since_ns"] and a.row("b")["state"] == "up", "it is connected anew")
    a.proc.send_signal(signal.SIGHUP)  # the same once more
    until(lambda: a.log.count("the certificates were read again") == 2, "it reads them")
    assert a.log.count("was replaced") == 1, a.log


def test_who_is_of_a_ca_that_is_gone_is_hung_up_on(make, stranger):
    a, b = pair(make)
    a.start(), b.start()
    b.sees("a", "up")
    good = b.folder / "good.crt"
    shutil.copy(b.folder / "ca.crt", good)
    for source, target in zip((*stranger.node("b"), stranger.certificate), ("node.crt", "node.key", "ca.crt")):
        put(source, b.folder / target)
    b.logs("the certificate of 'a' is of another CA than ours")
    b.sees("a", "down")
    a.sees("b", "down")


def test_a_connection_ends_with_the_time_of_its_certificate(b, authority):
    with Peer(b, authority.certificate, *authority.brief("a", 8)) as peer:
        peer.hello()
        b.sees("a", "up")
        assert "the certificate of 'a' expired on " in peer.until("bye")["why"]
    b.sees("a", "down", "the certificate of 'a' expired on ")


def test_a_sync_conf_that_is_changed_is_told_of(make):
    a, _ = pair(make)
    a.start()
    put(a.conf, a.conf)
    a.logs("was changed, and is read at the start only: weightd-sync --check says what is wrong with it")
    assert "read again" not in a.log


# --- Refused peers ----------------------------------------------------------------------------------

def handshake(agent, ca, certificate, key):
    """Is accepted, or fails with the reason: under TLS 1.3 a client gets a refusal after its own handshake."""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        with Peer(agent, ca, certificate, key) as peer:
            peer.hello()
            while peer.hear():
                pass


def test_a_certificate_of_another_ca_is_refused_and_named(b, authority, stranger, as_a):
    for _ in range(3):
        handshake(b, authority.certificate, *stranger.node("a"))
    sentence = "its certificate is of another CA than ours; all nodes need certificates of one CA"
    b.logs(f"refused the connection of 'a' from 127.0.0.1: {sentence}")
    b.sees("a", "down", f"refused a connection from 127.0.0.1 under its name: {sentence}")
    assert b.log.count(sentence) == 1
    let_in(b, as_a)


def test_a_certificate_that_expired_is_refused_and_named(b, authority, as_a):
    handshake(b, authority.certificate, *authority.odd("old", ["a.weightd"], days=-1))
    b.logs("refused the connection of 'a' from 127.0.0.1: its certificate expired on")
    b.sees("a", "down", "make a new one with weightctl pki node")
    let_in(b, as_a)


def test_a_name_that_is_no_peer_is_refused_and_told(b, authority, as_a):
    with Peer(b, authority.certificate, *authority.node("aa")) as peer:
        message = peer.until("bye")
    sentence = "'aa' is no peer of 'b'; add [peer aa] to its sync.conf"
    b.logs(f"refused the connection of 'aa' from 127.0.0.1: {sentence}")
    assert message is None or message["why"] == sentence
    let_in(b, as_a)


@pytest.mark.parametrize("names, why", [
    (["a.weightd", "c.weightd"], "its certificate has more than one dNSName NAME.weightd in its subjectAltName"),
    (["*.weightd"], "its certificate has no dNSName NAME.weightd in its subjectAltName"),
    (["A.weightd"], "its certificate has no dNSName NAME.weightd in its subjectAltName"),
    (["a"], "its certificate is refused: permitted subtree violation"),  # our CA makes no others
])
def test_a_certificate_without_one_name_is_refused(b, authority, as_a, names, why):
    handshake(b, authority.certificate, *authority.odd("odd", names))
    b.logs(f"refused a connection from 127.0.0.1: {why}")
    let_in(b, as_a)


def test_who_shows_no_certificate_is_refused(b, authority, as_a):
    handshake(b, authority.certificate, None, None)
    b.logs("refused a connection from 127.0.0.1: it shows no certificate")
    let_in(b, as_a)


def test_tls_1_2_is_refused(b, authority, as_a):
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Peer(b, authority.certificate, *authority.node("a"), version=ssl.TLSVersion.TLSv1_2)
    b.logs("it does not speak TLS 1.3")
    let_in(b, as_a)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, os.urandom(4096), b"\x16\x03\x01\xff\xff"])
def test_what_is_no_tls_is_refused(b, as_a, garbage):
    with socket.create_connection(("127.0.0.1", b.port), timeout=PATIENCE_S) as s:
        s.sendall(garbage)
        with contextlib.suppress(OSError):  # it may have hung up by now
            s.shutdown(socket.SHUT_WR)
            while s.recv(4096):
                pass
    b.logs("refused a connection from 127.0.0.1: ")
    let_in(b, as_a)


def let_in(agent, as_a):
    """A peer with valid certificates is still accepted."""
    with as_a(agent) as peer:
        peer.hello()
        assert peer.until("hello")["node"] == "b"
        agent.sees("a", "up")


def test_many_who_say_nothing_keep_nobody_out_and_are_hung_up_on(b, as_a):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            last = stack.enter_context(socket.create_connection(("127.0.0.1", b.port), timeout=PATIENCE_S))
        last.sendall(b"\x16\x03\x01")
        let_in(b, as_a)
        b.logs("it took its time while 65 others waited")
        let_in(b, as_a)
        assert last.recv(1) == b""
    b.logs("it took more than 10 s for TLS")


@pytest.mark.timeout(400)  # 200 programs make certificates first: 20 s and more of a processor under a sanitizer
def test_a_whole_cluster_may_call_at_once(make, authority):
    names = [f"n{i}" for i in range(200)]
    proofs = {name: authority.node(name) for name in names}
    z = make("z", {name: free_port() for name in names}, **{"group main": {"members": "n0 z"}}).start()
    with contextlib.ExitStack() as stack:
        calls = [stack.enter_context(socket.create_connection((z.address, z.port), timeout=PATIENCE_S)) for _ in names]
        for name, raw in zip(names, calls):  # the first has sent nothing while all others connect
            stack.enter_context(Peer(z, authority.certificate, *proofs[name], raw=raw)).hello(name)
        until(lambda: [r["state"] for r in z.ask(op="nodes") if r.get("node") in names] == ["up"] * len(names),
              lambda: f"all are up\n{z.log[-4000:]}")
    assert "took its time" not in z.log


def test_listening_goes_on_when_descriptors_are_short(b, as_a):
    n = len(os.listdir(f"/proc/{b.proc.pid}/fd"))
    before = resource.prlimit(b.proc.pid, resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.prlimit(b.proc.pid, resource.RLIMIT_NOFILE, (n + 4, before[1]))
        for _ in range(10):
            stack.enter_context(socket.create_connection(("127.0.0.1", b.port), timeout=PATIENCE_S))
        b.logs("no new connections of nodes for the moment: Too many open files")
    resource.prlimit(b.proc.pid, resource.RLIMIT_NOFILE, before)
    let_in(b, as_a)


# --- Accepted peers ---------------------------------------------------------------------------------

def part(size, blob_size, offset=0):
    return bytes(32) + struct.pack(">QQ", blob_size, offset) + bytes(size)


@pytest.mark.parametrize("act, why", [
    (lambda p: p.hello(node="c"), "it says to be 'c', and its certificate is of 'a'"),
    (lambda p: p.hello(protocol=2), "it speaks protocol 2 and this node 1: update the older of them"),
    (lambda p: p.say(type="hello"), "it sent a hello that lacks a field"),
    *[(lambda p, addresses=addresses: p.hello(data_addresses=addresses), "it sent a hello that lacks a field")
      for addresses in (None, "127.0.0.1", [7], [""], ["localhost"], ["127.0.0.1:80"], ["127.0.0.1"] * 9)],
    (lambda p: p.say(type="ping", n=1), "it said 'ping' where hello comes first, and once"),
    (lambda p: p.send(JSON, b"[]"), "it sent what is no JSON object, or too long for a hello"),
    (lambda p: (p.hello(), p.hello()), "it said 'hello' where hello comes first, and once"),
    (lambda p: (p.hello(), p.send(JSON, b"{")), "it sent what is no JSON object"),
    (lambda p: (p.hello(), p.say(n=1)), "it sent a message without a type"),
    (lambda p: (p.hello(), p.send(3, b"x")), "it sent a frame of a kind that there is not"),
    (lambda p: (p.hello(), p.tls.sendall(b"\xff\xff\xff\xff\x01")), "it sent a frame that is too long"),
    (lambda p: (p.hello(), p.send(PART, part(10, 20, offset=10))), "it sent parts of blobs out of order"),
    (lambda p: (p.hello(), p.send(PART, part(10, 20)), p.send(PART, part(10, 30))), "it sent parts of blobs out of order"),
    (lambda p: (p.hello(), p.send(PART, part(10, 9))), "it sent a part that lies beyond its blob"),
])
def test_what_is_said_wrong_ends_the_connection_with_the_reason(b, as_a, act, why):
    with as_a(b) as peer:
        act(peer)
        assert peer.until("bye")["why"] == why
        assert peer.hear() is None
    b.sees("a", "down", why)
    let_in(b, as_a)


def test_a_type_that_nobody_knows_is_left_out(b, as_a):
    with as_a(b) as peer:
        peer.hello()
        peer.say(type="what-next", sync="0123456789abcdef")
        peer.say(type="ping", n=77)
        assert peer.until("pong")["n"] == 77


def test_who_pings_and_reads_no_answer_is_hung_up_on(b, as_a):
    with as_a(b) as peer:
        peer.hello()
        assert peer.until("hello")
        pings = b"".join(struct.pack(">IB", 1 + len(text), JSON) + text for text in [b'{"type":"ping","n":1}'] * 10000)
        with pytest.raises((OSError, ssl.SSLError)):
            while True:
                peer.tls.sendall(pings)
    b.logs("it does not read")
    let_in(b, as_a)


def test_a_blob_that_nobody_waits_for_is_thrown_away(b, as_a):
    """A node that aborts a sync cannot revoke a blob that is on its way."""
    with as_a(b) as peer:
        peer.hello()
        for _ in range(3):
            peer.send(PART, part(1000, 3000))
            peer.say(type="ping", n=4)
            peer.send(PART, part(2000, 3000, offset=1000))
        assert [peer.until("pong")["n"] for _ in range(3)] == [4, 4, 4]
        b.sees("a", "up")


def test_all_that_a_node_has_is_shown_however_much_that_is(b, as_a):
    """It is more than one packet."""
    said = [{"buffer": f"buffer-{i:04}", "group": "main", "term": 1, "number": 1 + i, "root": "0" * 64} for i in range(1000)]
    with as_a(b) as peer:
        peer.hello()
        peer.say(type="heads", heads=said)
        until(lambda: b.row("a").get("n_heads") == len(said), "it has received all")
        assert b.row("a")["heads"] == []
        shown = json.loads(subprocess.run([features.BUILD / "weightctl", "nodes", "--json"], check=True, capture_output=True,
                                          env=environment(WEIGHTD_SYNC_SOCKET=b.socket)).stdout)["buffers"]
        assert sorted((row["node"], row["buffer"], row["number"]) for row in shown) == \
            [("a", head["buffer"], head["number"]) for head in said]
        table = subprocess.run([features.BUILD / "weightctl", "nodes", "--buffers"], check=True, capture_output=True,
                               env=environment(WEIGHTD_SYNC_SOCKET=b.socket)).stdout
        assert table.count(b"buffer-") == len(said)
    assert b.ask(op="heads", node="x")[0]["code"] == "unknown" and b.ask(op="heads")[0]["code"] == "request"


def test_one_connection_is_enough_while_it_answers(b, as_a):
    with as_a(b) as first:
        first.hello(incarnation=5)
        first.until("hello")
        b.sees("a", "up")
        first.say(type="ping", n=1)
        first.until("pong")
        with as_a(b) as second:
            second.hello(incarnation=5)
            assert second.until("bye")["why"] == "'a' is connected already"
            first.say(type="ping", n=2)
            assert first.until("pong")["n"] == 2


def test_a_node_that_was_started_anew_takes_over(b, as_a):
    with as_a(b) as first, as_a(b) as second:
        first.hello(incarnation=5)
        first.until("hello")
        b.sees("a", "up")
        second.hello(incarnation=6)
        assert first.until("bye")["why"] == "it was started anew"
        second.say(type="ping", n=3)
        assert second.until("pong")["n"] == 3
        assert b.sees("a", "up")


def test_of_two_nodes_the_lower_one_dials(make, authority):
    agent = make("a", {"b": free_port()}).start()
    with Peer(agent, authority.certificate, *authority.node("b")) as peer:
        message = peer.until("bye")
    assert message is None or "the one whose name is lower dials" in message["why"]
    agent.logs("refused the connection of 'b' from 127.0.0.1: of two nodes the one whose name is lower dials")


def test_a_node_with_another_name_than_dialled_is_named(make, authority):
    ports = free_port(), free_port()
    a = make("a", {"b": ports[1]}, port=ports[0]).start()
    make("c", {"a": ports[0]}, port=ports[1]).start()
    a.sees("b", "down", f"the node at 127.0.0.1:{ports[1]} is 'c' by its certificate; correct 'address' of [peer b]")

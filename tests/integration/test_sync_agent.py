"""
weightd-sync without a push: what it refuses at its start, whom it lets in and whom not, what it says of it, and that
nobody who knocks, hangs or lies holds up the others. The tests speak to it as the node 'a' would.
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

import features
import pytest
from daemon import REPORT, environment
from nodes import PATIENCE_S, Control, until
from pki import Authority

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
    """A CA that nobody trusts."""
    features.require("sync")
    return Authority(tmp_path_factory.mktemp("other") / "pki")


def free_port():
    """One that no connection and no bind(0) on this machine takes meanwhile."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.randrange(10_000, lowest)))
            return s.getsockname()[1]


class Agent:
    """A weightd-sync, its sync.conf and its log, in a folder of its own."""

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
            "limits": {"heartbeat": 20},  # nobody is silent because the machine is busy
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
                assert self.proc.poll() is None, f"it was gone with {self.proc.returncode}:\n{self.log}"
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

    def __init__(self, agent, ca, certificate, key, version=ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = version
        context.load_verify_locations(ca)
        if certificate:
            context.load_cert_chain(certificate, key)
        raw = socket.create_connection(("127.0.0.1", agent.port), timeout=PATIENCE_S)
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

    def hello(self, node="a", incarnation=None, protocol=1):
        self.say(type="hello", node=node, protocol=protocol, incarnation=incarnation or next(self.incarnations))

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
                with contextlib.suppress(OSError):  # it may have hung up, and have said more before
                    self.say(type="pong", n=message["n"])
        return None


@pytest.fixture
def as_a(authority):
    """as_a(agent): the node 'a', whose certificates are as they should be."""
    return lambda agent: Peer(agent, authority.certificate, *authority.node("a"))


# --- sync.conf --------------------------------------------------------------------------------------

BROKEN = """\
nmae = a
[node]
name = A
lisen = 127.0.0.1:7400
listen = 7400
log-level = loud
log-level = info
[tsl]
ca = here
[tls]
ca = pki/ca.crt
[peer b]
[peer b]
[peer c]
address = fd00::1:7400
[peer Q]
[group g]
members = c x
members = c
publishers = y
policy = most
[limits]
max-bytes = much
heartbeat = 0
[data]
security = no
trusted = 10.0.0.1/8
[access]
operators = nobody-has-this-group
what is this
"""
ERRORS = """\
{0}:1: 'nmae' comes before the first [section]
{0}:3: 'A' is no name of a node: a name has 1 to 42 of a-z, 0-9, '.' and '-'
{0}:4: [node] has no key 'lisen'; it has name, listen, data-address, state, socket, weightd, log-level. Is 'listen' meant?
{0}:5: 'listen' does not take '7400'; it takes an address of this node in digits and a port: 10.0.0.1:7400, [fd00::1]:7400, 0.0.0.0:7400
{0}:6: 'log-level' does not take 'loud'; it takes error, warning, info or debug
{0}:7: 'log-level' was given in line 6; give it once
{0}:8: there is no section [tsl]; there are [node], [tls], [data], [peer NAME], [group NAME], [limits] and [access]. Is [tls] meant?
{0}:11: 'ca' does not take 'pki/ca.crt'; it takes a path that begins with /
{0}:13: [peer b] began in line 12; a peer has one section
{0}:15: 'address' does not take 'fd00::1:7400'; it takes where the agent of 'c' listens: 10.0.0.2:7400, [fd00::2]:7400, or the name of a host and a port
{0}:16: [peer Q]: 'Q' is no name of a peer: a name has 1 to 42 of a-z, 0-9, '.' and '-'
{0}:19: 'c' is among the members already; name it once
{0}:21: 'policy' does not take 'most'; it takes all, quorum or each
{0}:23: 'max-bytes' does not take 'much'; it takes bytes, a number with K, M, G or T, or unlimited
{0}:24: 'heartbeat' does not take '0'; it takes seconds, 0.1 to 60
{0}:26: 'security' does not take 'no'; it takes tls, or none inside trusted networks
{0}:27: 'trusted' does not take '10.0.0.1/8'; it takes a network and its length, with no bit set behind it: 10.0.0.0/8, fd00::/8; give the key again for more of them
{0}:29: there is no group 'nobody-has-this-group'; give the name of one, or a number, or leave 'operators' out
{0}:30: this is no [section], no 'key = value' and no '# comment'
{0}: [tls] has no 'certificate'; write, say: certificate = /etc/weightd/pki/node.crt
"""


def run_sync(*args):
    return subprocess.run([SYNC, *args], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE_S)


def test_every_error_is_told_with_its_line_and_the_way_out(tmp_path):
    path = tmp_path / "sync.conf"
    path.write_text(BROKEN)
    path.chmod(0o644)
    expected = "".join(f"weightd-sync: {line}\n" for line in ERRORS.format(path).splitlines())
    for args in (["--check"], []):
        done = run_sync("--config", path, *args)
        *lines, last = done.stderr.splitlines(keepends=True)
        assert "".join(lines) == expected
        assert last == f"weightd-sync: {path}: 5 more errors are not shown\n"
        assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("settings, error", [
    ({"group main": {"members": "a b x"}}, "[group main] has 'x' among its members, which is neither this node nor a [peer x]"),
    ({"group main": {"publishers": "x"}}, "[group main] has 'x' among its publishers, which is neither"),
    ({"group main": {"members": "a"}, "group two": {"members": "a", "publishers": "b"}},
     "[group two] has 'b' among its publishers and not among its members; add it to the members"),
    ({"peer a": {"address": "127.0.0.1:1"}}, "[peer a] is this node, says [node] name; leave the section out"),
    ({"data": {"security": "none"}}, "[data] security = none sends weights in the clear, and 127.0.0.1 of [node] data-address is in no"),
    ({"data": {"security": "none", "trusted": "10.0.0.0/8"}, "node": {"data-address": "10.1.2.3"}},
     "[data] security = none sends weights in the clear, and 127.0.0.1 of b is in no 'trusted' network"),
    ({"data": {"engine": "gloo"}}, "[data] engine = gloo sends weights in the clear; write security = none beside it"),
    ({"data": {"engine": "rdma"}}, "'engine' does not take 'rdma'; it takes tcp or gloo"),
    ({"group main": {"device": "gpu:0"}}, "'device' does not take 'gpu:0'; it takes host, cuda, cuda:0 with the number of a GPU"),
    ({"group main": {"device": "cuda:GPU-12"}}, "'device' does not take 'cuda:GPU-12'"),
    *(({"group main": {"mode": mode}}, f"'mode' does not take '{mode}'; it takes octal digits of r and w, with both for the "
       "owner, which is the agent: 0600, 0640, 0644") for mode in ("0755", "440", "0244", "64", "06440", "rw-r-----", "-640", "0o640")),
    ({"group main": {"group": "nobody-has-this-group"}}, "there is no group 'nobody-has-this-group'; give the name of one"),
    ({"data": {"security": "none", "trusted": "10.1.0.0/16"}, "node": {"data-address": "10.1.2.3, 10.2.2.3"}},
     "10.2.2.3 of [node] data-address is in no"),
    ({"node": {"data-address": "10.1.2.3 10.2.2.3 10.1.2.3"}}, "'data-address' has 10.1.2.3 twice"),
    ({"node": {"data-address": "10.1.2.3 b"}}, "'data-address' does not take 'b'"),
    ({"node": {"data-address": "10.1.2.3 0.0.0.0"}}, "not '0.0.0.0'"),
    ({"node": {"data-address": " ".join(f"10.{i}.0.1" for i in range(9))}}, "'data-address' has more than 8 addresses"),
    ({"node": {"data-address": ","}}, "'data-address' is empty"),
    ({"data": {"patches": "maybe"}}, "'patches' does not take 'maybe'; it takes yes or no"),
    ({"node": {"listen": "0.0.0.0:7400"}}, "[node] data-address has to be an address that other nodes can dial, not '0.0.0.0'"),
])
def test_what_does_not_fit_together_is_refused(make, settings, error):
    agent = make("a", {"b": 7401}, **settings)
    done = agent.run("--check")
    assert done.returncode == 2 and error in done.stderr, done.stderr
    assert agent.run().returncode == 2


def test_bytes_in_the_clear_are_fine_inside_trusted_networks(make):
    agent = make("a", {"b": 7401}, data={"security": "none", "trusted": "127.0.0.0/8"})
    done = agent.run("--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("device", ["host", "cuda", "cuda:7", "cuda:MIG-8E2A4D5C-0000-1111-2222-333344445555"])
def test_a_group_is_where_weightd_can_have_buffers(make, device):
    assert make("a", {"b": 7401}, **{"group main": {"device": device}}).run("--check").returncode == 0


@pytest.mark.parametrize("settings", [{"mode": "644"}, {"mode": "0600"}, {"mode": "0666"}, {"group": "daemon"}, {"group": "77"}])
def test_what_a_group_gives_to_others_is_a_mode_and_a_group(make, settings):
    done = make("a", {"b": 7401}, **{"group main": settings}).run("--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_example_is_good(root):
    """But for the certificates, which are not there."""
    done = run_sync("--check", "--config", root / "packaging/weightd-sync.conf")
    assert done.stderr.startswith("weightd-sync: [tls] ca (/etc/weightd/pki/ca.crt) cannot be read"), done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.returncode == 2


def key_of_others(agent, authority, stranger):
    (agent.folder / "node.key").chmod(0o640)


def key_is_missing(agent, authority, stranger):
    (agent.folder / "node.key").unlink()


def key_is_anothers(agent, authority, stranger):
    shutil.copy(authority.node("b")[1], agent.folder / "node.key")


def key_is_no_ed25519(agent, authority, stranger):
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", agent.folder / "node.key"],
                   check=True, capture_output=True)


def certificate_is_of_b(agent, authority, stranger):
    for source, target in zip(authority.node("b"), ("node.crt", "node.key")):
        shutil.copy(source, agent.folder / target)


def certificate_has_two_names(agent, authority, stranger):
    for source, target in zip(authority.odd("two", ["a.weightd", "b.weightd"]), ("node.crt", "node.key")):
        shutil.copy(source, agent.folder / target)


def ca_is_anothers(agent, authority, stranger):
    shutil.copy(stranger.certificate, agent.folder / "ca.crt")


def ca_is_no_certificate(agent, authority, stranger):
    (agent.folder / "ca.crt").write_text("hello\n")


@pytest.mark.parametrize("spoil, error", [
    (key_of_others, "can be read by others than its owner: chmod 600"),
    (key_is_missing, "cannot be read: No such file or directory"),
    (key_is_anothers, "is not the key of [tls] certificate; make both anew with weightctl pki node"),
    (key_is_no_ed25519, "is no Ed25519 key"),
    (certificate_is_of_b, "is of the node 'b', and this one is 'a' by [node] name"),
    (certificate_has_two_names, "has more than one dNSName NAME.weightd in its subjectAltName"),
    (ca_is_anothers, "is of another CA than ours; all nodes need certificates of one CA"),
    (ca_is_no_certificate, "has no certificate in PEM; make one with weightctl pki ca"),
])
def test_certificates_that_do_not_fit_are_refused_at_the_start(make, authority, stranger, spoil, error):
    agent = make("a", {"b": 7401})
    assert agent.run("--check").returncode == 0
    spoil(agent, authority, stranger)
    done = agent.run("--check")
    assert done.returncode == 2 and error in done.stderr, done.stderr
    done = agent.run()
    assert done.returncode == 1 and error in done.stderr, done.stderr


# --- The state folder -------------------------------------------------------------------------------

def test_a_damaged_record_stops_the_start_and_is_left_as_it_is(make):
    agent = make("a", {})
    (agent.folder / "state").mkdir(0o700)
    record = agent.folder / "state/record.json"
    record.write_text('{"heads": [')
    done = agent.run()
    assert done.returncode == 1, done.stderr
    assert f"{record}" in done.stderr and "bring back a copy, or move the file away" in done.stderr
    assert record.read_text() == '{"heads": ['


def test_a_state_folder_that_cannot_be_used_stops_the_start(make):
    agent = make("a", {})
    state = agent.folder / "state"
    state.write_text("")
    done = agent.run()
    assert done.returncode == 1 and f"[node] state ({state}) cannot be used: Not a directory" in done.stderr
    state.unlink()
    state.mkdir()
    state.chmod(0o770)
    done = agent.run()
    assert done.returncode == 1 and "others than its owner may write there (chmod 700" in done.stderr
    state.chmod(0o700)
    agent.start()


def test_two_agents_do_not_share_a_state_folder(make):
    first = make("a", {}).start()
    second = make("a", {}, node={"state": first.folder / "state"})
    done = second.run()
    assert done.returncode == 1 and "another weightd-sync keeps its record in" in done.stderr, done.stderr


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


# --- Who is not let in ------------------------------------------------------------------------------

def handshake(agent, ca, certificate, key):
    """Comes through, or is told so: under TLS 1.3 a client hears of a refusal after its own handshake."""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        with Peer(agent, ca, certificate, key) as peer:
            peer.hello()
            while peer.hear():
                pass


def test_a_certificate_of_another_ca_is_refused_and_named(b, authority, stranger, as_a):
    for _ in range(3):
        handshake(b, authority.certificate, *stranger.node("a"))
    sentence = "its certificate is of another CA than ours; all nodes need certificates of one CA"
    b.logs(f"who calls from 127.0.0.1 as 'a' is refused: {sentence}")
    b.sees("a", "down", f"who calls from 127.0.0.1 under its name is refused: {sentence}")
    assert b.log.count(sentence) == 1
    let_in(b, as_a)


def test_a_certificate_that_expired_is_refused_and_named(b, authority, as_a):
    handshake(b, authority.certificate, *authority.odd("old", ["a.weightd"], days=-1))
    b.logs("who calls from 127.0.0.1 as 'a' is refused: its certificate expired on")
    b.sees("a", "down", "make a new one with weightctl pki node")
    let_in(b, as_a)


def test_a_name_that_is_no_peer_is_refused_and_told(b, authority, as_a):
    with Peer(b, authority.certificate, *authority.node("aa")) as peer:
        message = peer.until("bye")
    sentence = "'aa' is no peer of 'b'; add [peer aa] to its sync.conf"
    b.logs(f"who calls from 127.0.0.1 as 'aa' is refused: {sentence}")
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
    b.logs(f"who calls from 127.0.0.1 is refused: {why}")
    let_in(b, as_a)


def test_who_shows_no_certificate_is_refused(b, authority, as_a):
    handshake(b, authority.certificate, None, None)
    b.logs("who calls from 127.0.0.1 is refused: it shows no certificate")
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
    b.logs("who calls from 127.0.0.1 is refused: ")
    let_in(b, as_a)


def let_in(agent, as_a):
    """Who should be let in still is."""
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
        b.logs("it took its time while 64 others waited")
        let_in(b, as_a)
        assert last.recv(1) == b""
    b.logs("it took more than 10 s for TLS")


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


# --- Who was let in ---------------------------------------------------------------------------------

def part(size, blob_size, offset=0):
    return bytes(32) + struct.pack(">QQ", blob_size, offset) + bytes(size)


@pytest.mark.parametrize("act, why", [
    (lambda p: p.hello(node="c"), "it says to be 'c', and its certificate is of 'a'"),
    (lambda p: p.hello(protocol=2), "it speaks protocol 2 and this node 1: update the older of them"),
    (lambda p: p.say(type="hello"), "it sent a hello that lacks a field"),
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
    """Whoever aborted a sync cannot call back what was on its way to it."""
    with as_a(b) as peer:
        peer.hello()
        for _ in range(3):
            peer.send(PART, part(1000, 3000))
            peer.say(type="ping", n=4)
            peer.send(PART, part(2000, 3000, offset=1000))
        assert [peer.until("pong")["n"] for _ in range(3)] == [4, 4, 4]
        b.sees("a", "up")


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
    agent.logs("who calls from 127.0.0.1 as 'b' is refused: of two nodes the one whose name is lower dials")


def test_a_node_with_another_name_than_dialled_is_named(make, authority):
    ports = free_port(), free_port()
    a = make("a", {"b": ports[1]}, port=ports[0]).start()
    make("c", {"a": ports[0]}, port=ports[1]).start()
    a.sees("b", "down", f"the node at 127.0.0.1:{ports[1]} is 'c' by its certificate; correct 'address' of [peer b]")


# --- The control socket -----------------------------------------------------------------------------

def test_a_client_that_does_not_read_holds_up_nobody(b):
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            c = stack.enter_context(Control(b.socket))
            c.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    c.say(op="nodes")
        for _ in range(20):
            assert b.ask(op="nodes")[-1] == {"end": True}


@pytest.mark.parametrize("request_, error", [
    ({}, "a request names what it wants by 'op'"),
    ({"op": "dance"}, "this agent knows no request 'dance'"),
    ({"op": "history", "n": -1}, "'n' is a number of syncs, 256 at most"),
    ({"op": "status", "sync": 7}, "'sync' names a sync, by its 16 digits"),
    ({"op": "cancel", "sync": "0123456789abcdef"}, "0123456789abcdef"),
])
def test_a_request_that_is_wrong_is_answered_with_a_sentence(b, request_, error):
    last = b.ask(**request_)[-1]
    assert last["end"] and error in last["error"] and last["code"], last


def test_what_is_no_request_ends_the_connection(b):
    for data in (b"no json", b"[]", b"\xff" * 1000):
        with Control(b.socket) as c:
            c.socket.send(data)
            assert c.hear() is None
    assert b.ask(op="history")[-1] == {"end": True}


def opened(agent):
    """What its descriptors are of."""
    found = []
    for fd in pathlib.Path(f"/proc/{agent.proc.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(fd))
    return found


def test_a_client_that_sends_descriptors_is_hung_up_on(b, tmp_path):
    """They do not even arrive: closing one may wait for whoever serves its file system."""
    path = tmp_path / "file"
    with Control(b.socket) as c, open(path, "wb") as file:
        socket.send_fds(c.socket, [b'{"op":"nodes"}'], [file.fileno()] * 8)
        assert c.hear() is None
    assert b.ask(op="nodes")[-1] == {"end": True}
    assert str(path) not in opened(b)


ASK = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(sys.argv[2].encode())
while True:
    p = json.loads(s.recv(1 << 17))
    if p.get("end"):
        print(json.dumps(p))
        break
"""


def ask_as(agent, user, group, groups, **request):
    done = subprocess.run(["/usr/bin/python3", "-c", ASK, agent.socket, json.dumps(request)], user=user, group=group,
                          extra_groups=groups, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_only_operators_push_and_cancel(make, require):
    require("root")
    agent = make("a", {}, access={"operators": "4711"}).start()
    for request in ({"op": "push", "buffer": "m"}, {"op": "cancel", "sync": "0123456789abcdef"}):
        refused = ask_as(agent, 12345, 12345, [], **request)
        assert refused["code"] == "permission" and "'4711'" in refused["error"], refused
        for group, groups in ((4711, []), (12345, [4711])):
            assert ask_as(agent, 12345, group, groups, **request).get("code") != "permission"
    assert ask_as(agent, 12345, 12345, [], op="nodes") == {"end": True}


def test_one_user_does_not_take_all_places(make, require):
    require("root")
    agent = make("a", {}).start()
    pid = os.fork()
    if pid == 0:  # many, and none of them reads
        os.setgroups([]), os.setgid(12345), os.setuid(12345)
        held = []
        with contextlib.suppress(OSError):
            for _ in range(300):
                held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                held[-1].setblocking(False)
                held[-1].connect(agent.socket)
        signal.pause()
    try:
        agent.logs("a client of the control socket is turned away: Too many users")
        assert agent.ask(op="nodes")[-1] == {"end": True}
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

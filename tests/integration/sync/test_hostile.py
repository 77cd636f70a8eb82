"""
A peer of a group that lies. It has the certificate and the key of a node, or some of its own making, and sends anything
to an agent of ours. The agent refuses it without a leak, and goes on serving all others.
"""
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import socket
import struct
import subprocess
import tempfile
import time

import pytest
from lib import features
from lib.daemon import environment
from lib.nodes import ABSENCE_S, CONTROL_PORT, PATIENCE_S, Cluster, until
from lib.pki import Authority

from integration.engines.test_tcp import ACCEPTED, END, THERE, preamble
from integration.sync.test_agent import PART, Peer, make  # noqa: F401: a fixture
from lib.wire import PAGE, image

PUBLISHER = "a"  # the lower name, which dials
PART_MAX = 256 << 10
SIGNED = "document", "signature", "certificate", "decision"


class Target:
    """The address and port of an agent of a Cluster."""

    def __init__(self, node):
        self.name, self.address, self.port = node.name, node.address, CONTROL_PORT


def sign(key, text):
    """As the owner of a key does: base64 of Ed25519."""
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(text)
        f.flush()
        done = subprocess.run(["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", f.name], env=environment(),
                              capture_output=True, check=True)
    return base64.b64encode(done.stdout).decode()


def signed(certificate, key, **says):
    """A publisher's signed document, with the blobs that it names."""
    leaves = bytes(32)
    layout = says.pop("blob", b"no layout")
    document = {"protocol": 1, "group": "main", "buffer": "m", "publisher": PUBLISHER, "term": 1, "number": 1,
                "time_ns": time.time_ns(), "n_bytes": 4096, "root": "00" * 32, "layout": hashlib.sha256(layout).hexdigest(),
                "layout_bytes": len(layout), "leaves": hashlib.sha256(leaves).hexdigest(), "exclusive": False} | says
    text = json.dumps(document)
    return {"group": document["group"], "document": text, "signature": sign(key, text),
            "certificate": pathlib.Path(certificate).read_text()}


class Liar(Peer):
    """A node that sends the messages of a test, under its own name and with a valid certificate."""

    def __init__(self, node, authority, name=PUBLISHER, pair=None, **hello):
        self.name, self.certificate, self.key = name, *(pair or authority.node(name))
        super().__init__(Target(node), authority.certificate, self.certificate, self.key)
        self.hello(node=name, **hello)
        assert self.until("hello")

    def prepare(self, sync="00000000000000aa", **says):
        self.say(type="prepare", sync=sync, **signed(self.certificate, self.key, **says))

    def blob(self, data, start=0, stop=None):
        """Sends it in parts, with its true digest and size."""
        for at in range(start, stop or len(data), PART_MAX):
            self.send(PART, hashlib.sha256(data).digest() + struct.pack(">QQ", len(data), at) + data[at:at + PART_MAX])


@pytest.fixture
def lone(make_nodes):
    """lone(...): nodes of which the first, the publisher, has no agent."""
    return lambda n=2, **kw: make_nodes(n, absent=PUBLISHER, **kw)


@pytest.fixture(scope="module")
def gate(authority):
    """Such nodes for tests in which b takes nothing that it is sent."""
    features.require("library")
    with Cluster(authority, 3, absent=f"{PUBLISHER}c", publishers="ab", group={"buffers": "m*"},
                 settings={"limits": {"max-bytes": "1G"}}) as nodes:
        yield nodes


@pytest.fixture
def liar(authority):
    with contextlib.ExitStack() as stack:
        yield lambda node, **kw: stack.enter_context(Liar(node, authority, **kw))


# --- Accepted peers -----------------------------------------------------------------------------------

def test_a_sync_of_somebody_else_is_not_taken_for_ones_own(lone, liar):
    """Each participant of a push has its id, and the client of the push waits for its end by that."""
    nodes = lone(publishers="ab")
    a = liar(nodes["b"])
    nodes["b"].publish("m", seed=1)
    push = nodes["b"].start_push("m")
    a.prepare(sync=a.until("prepare")["sync"], buffer="x")
    a.say(type="abort", sync=push.sync, why="so")
    assert "PREPARE of another form, or of a sync that there is already" in a.until("bye")["why"]
    end = push.end()
    assert (end["role"], end["buffer"], end["state"]) == ("publisher", "m", "failed"), end


@pytest.mark.parametrize("sync", ["", "00000000000000a", "00000000000000aaa", "0123456789abcdeg", "../../../../../..", 7, None])
def test_what_is_no_id_of_a_sync_ends_the_connection(gate, liar, sync):
    a = liar(gate["b"])
    a.prepare(sync=sync)
    assert "PREPARE of another form" in a.until("bye")["why"]


def test_a_reason_that_is_cut_within_a_character_is_told_all_the_same(lone, liar):
    nodes = lone()
    a = liar(nodes["b"])
    a.prepare()
    assert a.until("want")
    a.say(type="abort", sync="00000000000000aa", why="\u00e9" * 700)
    until(lambda: nodes["b"].history(), "it ended")
    assert "éé" in nodes["b"].history()[0].get("why", ""), nodes["b"].history()


@pytest.mark.parametrize("n, says", [(80, {}), (8, {"layout_bytes": 1 << 30})])
def test_who_prepares_much_and_brings_nothing_does_not_take_all_turns(lone, liar, n, says):
    """The node that makes room for it waits for the layout for half a minute or longer."""
    nodes = lone(3, publishers="ac", group={"policy": "quorum"},
                 settings={"limits": {"prepare-timeout": ABSENCE_S, "max-bytes": "16G"}})
    a = liar(nodes["b"])
    for i in range(n):
        a.prepare(sync=f"{i:016x}", buffer=f"x{i}", n_bytes=8 << 30, **says)
    assert a.until("queued")
    nodes["c"].publish("m", seed=1)
    push = nodes["c"].push("m")
    assert {"node": "b", "state": "committed", "version": 1, "why": None} in push["nodes"], push
    assert [row["buffer"] for row in nodes["b"].history()] == ["m"], "it waited for others to be given up"


def blobs_of(node):
    """Those that its agent keeps and that are not whole."""
    found = []
    for fd in pathlib.Path(f"/proc/{node.proc.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found += ["weightd-sync-blob" in os.readlink(fd)]
    return sum(found)


def test_the_beginning_of_a_blob_is_not_kept_longer_than_its_sync(lone, liar):
    """Each belongs to a sync, and a peer that stops in the middle could otherwise leave any number of those."""
    nodes = lone(settings={"limits": {"heartbeat": 2}})
    a = liar(nodes["b"])
    layout = bytes(5 * PART_MAX)
    a.prepare(blob=layout)
    assert a.until("want")
    a.blob(layout, stop=4 * PART_MAX)
    nodes.wait(lambda: blobs_of(nodes["b"]) == 1, "it keeps the beginning")
    a.say(type="abort", sync="00000000000000aa", why="so")
    assert a.until("aborted")
    for _ in range(2):  # one of them was sent after that
        a.say(type="pong", n=a.until("ping")["n"])
    assert blobs_of(nodes["b"]) == 0
    a.blob(layout, start=4 * PART_MAX)
    a.prepare(buffer="n")
    assert a.until("want")


# --- Signed messages, and others ---------------------------------------------------------------------

@pytest.mark.parametrize("code, says", [
    ("group", {"group": "elsewhere"}),
    ("group", {"buffer": "n"}),  # none of the group's
    ("publisher", {"publisher": "b"}),
    ("publisher", {"publisher": "c"}),
    ("clock", {"time_ns": 1}),
    ("clock", {"time_ns": 1 << 62}),
    ("size", {"n_bytes": 1 << 49}),
    ("size", {"layout_bytes": 1 << 30, "n_bytes": 1}),
])
def test_what_may_not_be_pushed_is_refused_with_the_reason(gate, liar, code, says):
    a = liar(gate["b"])
    a.prepare(**says)
    refused = a.until("refuse")
    assert refused["code"] == code, refused
    assert not gate["b"].status() and not gate["b"].own_head("m")


@pytest.mark.parametrize("says", [
    {"protocol": 2}, {"protocol": "1"}, {"n_bytes": 0}, {"n_bytes": -1}, {"n_bytes": 1 << 51}, {"n_bytes": 1.5},
    {"layout_bytes": 0}, {"layout_bytes": (1 << 30) + 1}, {"term": 0}, {"number": 0}, {"number": (1 << 53) + 1},
    {"root": "00" * 31}, {"root": "0g" * 32}, {"leaves": None}, {"buffer": ""}, {"buffer": "m" * 300}, {"buffer": "m\n"},
    {"buffer": "m\0"}, {"publisher": "a" * 64}, {"exclusive": "no"}, {"time_ns": -1}, {"more": "x" * 4096},
])
def test_a_document_of_another_form_ends_the_connection(gate, liar, says):
    a = liar(gate["b"])
    a.prepare(**says)
    assert "PREPARE of another form" in a.until("bye")["why"]
    assert not gate["b"].status()


def changed_text(message, authority):
    message["document"] = message["document"].replace('"n_bytes": 4096', '"n_bytes": 4097')


def changed_signature(message, authority):
    raw = bytearray(base64.b64decode(message["signature"]))
    raw[5] ^= 1
    message["signature"] = base64.b64encode(raw).decode()


def cut_signature(message, authority):
    message["signature"] = message["signature"][:-4]


def certificate_of_another_node(message, authority):
    message["certificate"] = authority.node("b")[0].read_text()


def certificate_of_another_ca(message, authority):
    stranger = Authority(authority.folder.parent / "stranger")
    certificate, key = stranger.node("a")
    message["certificate"], message["signature"] = certificate.read_text(), sign(key, message["document"])


def certificate_that_expired(message, authority):
    certificate, key = authority.odd("late", ["a.weightd"], days=-1)
    message["certificate"], message["signature"] = certificate.read_text(), sign(key, message["document"])


def certificate_of_ones_own_making(message, authority):
    """Signed by the node's own certificate, which is none of a CA."""
    forger = Authority(authority.folder.parent / "forger")
    for name, source in zip(("ca.crt", "ca.key"), authority.node("a")):
        (forger.folder / name).write_bytes(source.read_bytes())
    certificate, key = forger.odd("forged", ["a.weightd"])
    message["certificate"] = certificate.read_text() + authority.node("a")[0].read_text()
    message["signature"] = sign(key, message["document"])


def no_certificate(message, authority):
    message["certificate"] = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def decision_of_nobody(message, authority):
    message["decision"] = message["signature"]


def decision_that_nobody_asked_for(message, authority):
    message["decision"] = sign(authority.node("a")[1], "commit " + message["document"])


@pytest.mark.parametrize("spoil_it, code", [
    (changed_text, "signature"), (changed_signature, "signature"), (cut_signature, "signature"),
    (certificate_of_another_node, "signature"), (certificate_of_another_ca, "signature"),
    (certificate_that_expired, "signature"), (certificate_of_ones_own_making, "signature"), (no_certificate, "signature"),
    (decision_of_nobody, "signature"), (decision_that_nobody_asked_for, "unasked"),
])
def test_what_its_publisher_did_not_sign_is_refused(lone, liar, authority, spoil_it, code):
    nodes = lone()
    a = liar(nodes["b"])
    message = signed(a.certificate, a.key)
    spoil_it(message, authority)
    a.say(type="prepare", sync="00000000000000aa", **message)
    refused = a.until("refuse")
    assert refused["code"] == code, refused
    assert not nodes["b"].status()
    a.prepare()
    assert a.until("want")


# --- Replays ------------------------------------------------------------------------------------------

def record_of(node, buffer):
    """The document of its newest version as it sends it to any peer."""
    lines = (node.folder / "state" / "record").read_text().splitlines()
    heads = [head for line in lines for head in json.loads(line.split(" ", 1)[1])["heads"]]
    head = next(h for h in reversed(heads) if json.loads(h["document"])["buffer"] == buffer)
    return {"group": json.loads(head["document"])["group"]} | {key: head[key] for key in SIGNED}


def test_what_was_committed_is_not_taken_again(make_nodes, authority):
    """From its publisher, from another member, with the decision and without it."""
    nodes = make_nodes(3, publishers="ab")
    olds = []
    for seed in (1, 2):
        nodes["a"].publish("m", seed=seed)
        nodes["a"].push("m")
        olds.append(record_of(nodes["a"], "m"))
    nodes["a"].publish("n", seed=3)
    nodes["a"].push("n")
    other = record_of(nodes["a"], "n")
    nodes["a"].stop()
    nodes["b"].stop()
    head = nodes["c"].head("m")
    for name in "ab":
        with Liar(nodes["c"], authority, name=name) as peer:
            for message in (*olds, other):
                for says in ({}, {"decision": None}):
                    peer.say(type="prepare", sync="00000000000000aa", **message | says)
                    refused = peer.until("refuse")
                    assert refused["code"] in ("fenced", "there", "publisher"), refused
            for pair in ((1, 1), (1, 2), (0, 9)):
                if name == "a":
                    term = max(head[0] + pair[0] - 1, 1)
                    peer.prepare(term=term, number=min(pair[1], head[1]), n_bytes=8)
                    refused = peer.until("refuse")
                    assert refused["code"] == "fenced", refused
    assert nodes["c"].head("m") == head
    assert nodes["c"].has("m", 2)


# --- A push of a liar's, to its end --------------------------------------------------------------------

class Version:
    """A version to push, and its document."""

    def __init__(self, data, tensors=None):
        self.data, self.layout = data, image(tensors or [("t", len(data))])
        self.leaves = hashlib.sha256(b"\0" + data).digest()
        self.root = hashlib.sha256(b"\1" + struct.pack(">Q", len(data)) + self.leaves).digest()

    def document(self):
        return {"n_bytes": len(self.data), "root": self.root.hex(), "layout": hashlib.sha256(self.layout).hexdigest(),
                "layout_bytes": len(self.layout), "leaves": hashlib.sha256(self.leaves).hexdigest()}


class Lie:
    """
    A push, step by step, of a version and with the answers that an honest publisher waits for. A test replaces steps
    by messages of its own.
    """
    SYNC, TOKEN = "00000000000000bb", "5a" * 32

    def __init__(self, liar, version, number=1, **says):
        self.liar, self.version, self.epoch, self.n_bytes = liar, version, 0, len(version.data)
        self.message = signed(liar.certificate, liar.key, number=number, **version.document() | says)

    def say(self, kind, **fields):
        self.liar.say(type=kind, sync=self.SYNC, **fields)

    def hear(self, *kinds):
        """The first message of these types."""
        while message := self.liar.hear():
            if message["type"] in (*kinds, "bye"):
                return message
            if message["type"] == "ping":
                self.liar.say(type="pong", n=message["n"])
        raise AssertionError(f"it closed before it sent one of {kinds}")

    def prepare(self):
        self.say("prepare", **self.message)
        assert self.hear("want")["type"] == "want"
        self.liar.blob(self.version.layout)
        self.liar.blob(self.version.leaves)
        return self.hear("ready", "refuse")

    def open(self, **fields):
        self.epoch += 1
        self.say("open", **{"epoch": self.epoch, "token": self.TOKEN, "from": self.liar.name, "engine": "tcp",
                            "ranges": [[0, self.n_bytes]]} | fields)
        return self.hear("opened", "broken")

    def start(self, **fields):
        self.say("start", **{"epoch": self.epoch, "from": self.liar.name, "from_stripes": 1, "next": None, "max_rate": 0} | fields)

    def dial(self, opened):
        s = socket.create_connection((opened["address"], opened["port"]), PATIENCE_S)
        s.settimeout(PATIENCE_S)
        return contextlib.closing(s)

    def preamble(self, **says):
        return preamble(self.n_bytes, **{"token": self.TOKEN, "sync": self.SYNC, "epoch": self.epoch} | says)

    def send(self, opened, data):
        with self.dial(opened) as s:
            s.sendall(self.preamble())
            assert s.recv(1) == ACCEPTED
            s.sendall(data + END)
            assert s.recv(len(THERE)) == THERE
        return self.hear("done", "broken")

    def move(self, data=None):
        """An epoch that sends the bytes of the version, or others."""
        opened = self.open()
        assert opened["type"] == "opened", opened
        self.start()
        assert self.send(opened, data or self.version.data)["type"] == "done"

    def verify(self):
        self.say("verify")
        return self.hear("verified", "corrupt", "failed")

    def decision(self):
        return sign(self.liar.key, "commit " + self.message["document"])

    def commit(self, **fields):
        self.say("commit", **{"decision": self.decision()} | fields)
        return self.hear("committed", "failed")


@pytest.fixture
def target(lone, liar):
    """A node without anything, a liar at its door, and what that is to push."""
    nodes = lone(settings={"data": {"security": "none"}})
    return nodes, liar(nodes["b"]), Version(os.urandom(3 * PAGE))


def serves(node):
    """The bytes, or None."""
    served = node.serves("m")
    return served and served.sha256


def assert_still_pushes(nodes, liar, version, number):
    """As if nothing had been: the next one is honest."""
    lie = Lie(liar, version, number=number)
    assert lie.prepare()["type"] == "ready"
    lie.move()
    assert lie.verify()["type"] == "verified"
    assert lie.commit()["type"] == "committed"
    assert serves(nodes["b"]) == hashlib.sha256(version.data).hexdigest()


def test_a_liar_that_does_not_lie_is_believed(target):
    nodes, a, version = target
    assert_still_pushes(nodes, a, version, number=1)
    assert nodes["b"].head("m") == (1, 1)


def test_what_another_node_says_of_bytes_that_came_here_is_not_believed(target):
    nodes, a, version = target
    assert_still_pushes(nodes, a, version, number=1)
    for sync in Lie.SYNC, "00000000000000bb":
        a.say(type="traced", sync=sync, bytes=7)
    a.say(type="traced", sync=Lie.SYNC, bytes=-7)
    assert "'traced' without a sync or bytes" in a.until("bye")["why"]
    row, = nodes["b"].history()
    assert row["sync"] == Lie.SYNC and (row["traced"], row["untraced"]) in ((None, 1), (row["bytes"], 0)), row


@pytest.mark.parametrize("spoil_it", [
    lambda v: setattr(v, "layout", b"x" * 500),
    lambda v: setattr(v, "layout", v.layout[:-1]),
    lambda v: setattr(v, "layout", image([("t", PAGE)])),
    lambda v: setattr(v, "layout", image([("t", len(v.data))], data_size=1 << 40)),
    lambda v: setattr(v, "leaves", bytes(32)),
    lambda v: setattr(v, "root", bytes(32)),
])
def test_a_layout_that_is_none_of_the_version_is_refused(target, spoil_it):
    nodes, a, version = target
    good = Version(version.data)
    spoil_it(version)
    refused = Lie(a, version).prepare()
    assert refused["type"] == "refuse" and refused["why"], refused
    assert serves(nodes["b"]) is None and nodes["b"].head("m") is None
    assert_still_pushes(nodes, a, good, number=1)


def test_other_bytes_than_were_signed_are_never_served(target):
    nodes, a, version = target
    lie = Lie(a, version)
    lie.prepare()
    for _ in range(4):
        lie.move(data=bytes(len(version.data)))
        assert lie.verify()["type"] == "corrupt"
        assert serves(nodes["b"]) is None
    lie.move()
    assert lie.verify()["type"] == "verified"
    assert lie.commit()["type"] == "committed"


@pytest.mark.parametrize("fields", [
    {"decision": None}, {"decision": ""}, {"decision": "A" * 88}, {"decision": "A" * 5000}, {"decision": 7},
])
def test_what_its_publisher_did_not_decide_is_not_published(target, fields):
    nodes, a, version = target
    lie = Lie(a, version)
    lie.prepare()
    lie.move()
    lie.verify()
    assert lie.commit(**fields)["type"] == "failed"
    assert serves(nodes["b"]) is None and nodes["b"].head("m") is None
    assert_still_pushes(nodes, a, version, number=1)


def test_a_decision_on_another_version_decides_nothing(target):
    nodes, a, version = target
    other = Lie(a, version, number=2)
    lie = Lie(a, version)
    lie.prepare()
    lie.move()
    lie.verify()
    assert lie.commit(decision=other.decision())["type"] == "failed"
    assert serves(nodes["b"]) is None and nodes["b"].head("m") is None


def up_to(*steps):
    def run(lie):
        for step in steps:
            step(lie)
    return run


PREPARED = up_to(Lie.prepare)
OPEN = up_to(Lie.prepare, Lie.open)
MOVING = up_to(Lie.prepare, Lie.open, Lie.start)
MOVED = up_to(Lie.prepare, Lie.move)
VERIFIED = up_to(Lie.prepare, Lie.move, Lie.verify)


@pytest.mark.parametrize("run, kind, fields", [
    (PREPARED, "commit", {"decision": "x"}), (OPEN, "commit", {}), (MOVING, "commit", {}), (MOVED, "commit", {}),
    (OPEN, "verify", {}), (MOVING, "verify", {}), (VERIFIED, "verify", {}), (VERIFIED, "open", {"epoch": 9}),
    (MOVING, "start", {"epoch": 1}),
    (OPEN, "open", {"epoch": 2}), (MOVING, "open", {"epoch": 2}), (MOVED, "open", {"epoch": 1}),
    (PREPARED, "open", {"epoch": 1, "token": "5a" * 32, "from": "a", "ranges": []}),
    (PREPARED, "open", {"epoch": 1, "token": "5a" * 32, "from": "a", "ranges": [[0, 1 << 40]]}),
    (PREPARED, "open", {"epoch": 1, "token": "5a" * 32, "from": "a", "ranges": [[0, 2], [1, 2]]}),
    (PREPARED, "open", {"epoch": 1, "token": "5a" * 32, "from": "a", "ranges": [[2 * i, 1] for i in range(5000)]}),
    (PREPARED, "open", {"epoch": 1, "token": "5a" * 32, "from": "a", "ranges": [[0, 1]], "patch": 1 << 40}),
    (PREPARED, "open", {"epoch": 1 << 40, "token": "5a" * 32, "from": "a", "ranges": [[0, 1]]}),
    (OPEN, "start", {"epoch": 1, "next": {"node": "c", "address": "127.0.0.1", "port": 0, "token": "5a" * 32}}),
    (OPEN, "start", {"epoch": 1, "next": {"node": "c", "address": "127.0.0.1", "port": 1}}),
    (OPEN, "start", {"epoch": 1, "next": None, "from_stripes": 9}),
    (OPEN, "start", {"epoch": 1, "next": []}),
    *[(OPEN, "start", {"epoch": 1, "next": {"node": node, "address": "127.0.0.1", "port": 9, "token": "5a" * 32}})
      for node in "ab"],  # the coordinator, and this node
])
def test_a_step_of_the_wrong_moment_ends_the_connection_and_leaves_nothing(lone, authority, run, kind, fields):
    nodes = lone(settings={"data": {"security": "none"}})
    version = Version(os.urandom(3 * PAGE))
    with Liar(nodes["b"], authority) as a:
        lie = Lie(a, version)
        run(lie)
        lie.say(kind, **fields)
        assert "out of order" in a.until("bye")["why"]
    nodes.wait(lambda: [row["phase"] for row in nodes["b"].status()] == ["failed"], "it gave all back")
    assert serves(nodes["b"]) is None and nodes["b"].head("m") is None
    with Liar(nodes["b"], authority) as a:
        assert_still_pushes(nodes, a, version, number=1)


def test_a_start_without_an_engine_starts_nothing(target):
    """It may have crossed a node's message about the end of an engine."""
    nodes, a, version = target
    lie = Lie(a, version)
    assert lie.prepare()["type"] == "ready"
    lie.start()
    lie.move()
    lie.start()
    assert lie.verify()["type"] == "verified"
    assert lie.commit()["type"] == "committed"
    assert serves(nodes["b"]) == hashlib.sha256(version.data).hexdigest()


def test_strangers_at_the_port_of_the_data_change_nothing(target):
    """Guesses, a used token, and silent connections."""
    nodes, a, version = target
    lie = Lie(a, version)
    lie.prepare()
    opened = lie.open()
    lie.start()
    with contextlib.ExitStack() as stack:
        for i in range(100):
            s = stack.enter_context(lie.dial(opened))
            s.sendall(lie.preamble(token=f"{i:064x}") if i % 2 else lie.preamble()[:i])
        first = stack.enter_context(lie.dial(opened))
        first.sendall(lie.preamble())
        assert first.recv(1) == ACCEPTED
        with contextlib.suppress(ConnectionError):
            second = stack.enter_context(lie.dial(opened))
            second.sendall(lie.preamble())
            assert second.recv(1) != ACCEPTED
        first.sendall(version.data + END)
        assert first.recv(len(THERE)) == THERE
    assert lie.hear("done", "broken")["type"] == "done"
    assert lie.verify()["type"] == "verified"
    assert lie.commit()["type"] == "committed"


# --- A member that lies -------------------------------------------------------------------------------

def ready(**fields):
    return {"type": "ready", "missing": [[0, 4096]], "n_missing": 4096} | fields


@pytest.mark.parametrize("answers", [
    [{"type": "verified", "root": "00" * 32}],
    [{"type": "committed", "version": 1}],
    [{"type": "done", "epoch": 0}],
    [{"type": "want", "blobs": ["00" * 32] * 3}],
    [{"type": "want", "blobs": "all"}],
    [ready(missing=[[0, 1 << 60]])],
    [ready(missing=[[4096, 4096], [0, 4096]])],
    [ready(missing=[[0, -1]])],
    [ready(missing=None)],
    [ready(n_addresses=0)],
    [ready(n_addresses=1 << 40)],
    [{"type": "refuse"}, {"type": "ready"}],
    [{"type": "refuse", "code": "fenced", "why": "so", "heads": [{"buffer": "m"}]}],
    [{"type": "queued"}, {"type": "queued"}, ready()],
    [ready(), ready()],
    [ready(), {"type": "opened", "epoch": 1, "address": "127.0.0.1", "port": 0, "missing": [[0, 4096]]}],
    [ready(), {"type": "opened", "epoch": 1, "address": "localhost", "port": 9, "missing": [[0, 4096]]}],
    [ready(), {"type": "opened", "epoch": 1, "address": "192.0.2.1", "port": 9, "missing": [[0, 4096]]}],
    [ready(), {"type": "opened", "epoch": 1, "address": "127.0.0.1", "port": 9, "missing": [[0, 1 << 60]]}],
    [ready(), {"type": "broken", "epoch": 1, "why": "so", "missing": [[0, 4096]], "from": "b", "to": "c"}] +
    [{"type": "broken", "epoch": epoch, "why": "so", "missing": [[0, 4096]]} for epoch in range(2, 20)],
    [ready(), {"type": "failed", "why": "\u00e9" * 255}],
])
def test_a_member_that_lies_keeps_a_version_from_nobody_else(lone, liar, answers):
    nodes = lone(3, publishers="b", group={"policy": "quorum"}, settings={"data": {"security": "none"}})
    a = liar(nodes["b"])
    nodes["b"].publish("m", seed=1)
    push = nodes["b"].start_push("m")
    prepare = a.until("prepare")
    with contextlib.suppress(OSError):  # it hung up on us
        for answer in answers:
            if answer["type"] in ("opened", "broken") and answer["epoch"] < 3 and not a.until("open"):
                break
            a.say(sync=prepare["sync"], **answer)
    end = push.committed()
    states = {node["node"]: node["state"] for node in end["nodes"]}
    assert (states["b"], states["c"]) == ("committed", "committed") and states["a"] != "committed", end
    assert nodes["c"].has("m", 1)


# --- Files that somebody else made ------------------------------------------------------------------

SPOILED = {"a pipe": os.mkfifo, "a link": lambda path: path.symlink_to("/etc/hostname"), "a folder": os.mkdir}


@pytest.fixture(params=SPOILED)
def spoil(request):
    return SPOILED[request.param]


def with_state(make, mode=0o700):
    """An agent, and the folder of its record."""
    agent = make("b", {})
    state = agent.settings["node"]["state"]
    state.mkdir(mode=mode)
    return agent, state


def test_what_is_no_record_is_refused_at_once(make, spoil):
    agent, state = with_state(make)
    spoil(state / "record")
    done = agent.run()
    assert done.returncode == 1 and f"{state}/record" in done.stderr, done


@pytest.mark.parametrize("make_other", [os.mkfifo, lambda path: path.symlink_to(path.parent.parent / "sync.conf"),
                                        lambda path: os.link(path.parent.parent / "sync.conf", path)])
def test_what_lies_where_a_record_is_written_is_left_alone(make, make_other):
    agent, state = with_state(make)
    make_other(state / "record.new")
    before = agent.conf.read_text()
    agent.start()
    assert agent.conf.read_text() == before


def test_a_folder_of_somebody_else_is_not_believed(make, require):
    require("root")
    agent, state = with_state(make, mode=0o755)
    os.chown(state, 12345, 12345)
    done = agent.run()
    assert done.returncode and "belongs to" in done.stderr, done


def test_a_record_of_somebody_else_is_not_believed(make, require):
    require("root")
    agent, state = with_state(make)
    (state / "record").write_text("")
    os.chown(state / "record", 12345, 12345)
    done = agent.run()
    assert done.returncode and "belongs to" in done.stderr, done


def test_what_is_no_socket_is_not_removed_for_one(make):  # noqa: F811
    agent = make("b", {})
    path = agent.folder / "sync.sock"
    path.write_text("precious")
    done = agent.run()
    assert done.returncode == 1 and f"cannot listen on {path}" in done.stderr and "remove what is there" in done.stderr, done
    assert path.read_text() == "precious"

"""
The trust of an agent: addresses for bytes that others name, certificates that are replaced, revoked or expired, and
documents that were signed with them.
"""
import contextlib
import hashlib
import json
import os
import shutil
import socket
import time

import pytest
from lib import features
from lib.nodes import PATIENCE_S
from lib.pki import Authority, run

from integration.sync.test_agent import Peer, b, free_port, make, sync_only  # noqa: F401: fixtures
from integration.sync.test_hostile import Lie, Version, liar, lone, ready, sign, signed  # noqa: F401: fixtures
from lib.wire import PAGE


@pytest.fixture
def authority(tmp_path_factory):
    """One of the test's own, which may revoke what it likes."""
    features.require("sync")
    return Authority(tmp_path_factory.mktemp("pki") / "pki")


# --- Targets of bytes ---------------------------------------------------------------------------------


@contextlib.contextmanager
def listener(address):
    """A port of a third party that waits for connections."""
    with socket.create_server((address, 0)) as s:
        s.settimeout(PATIENCE_S)
        yield s


def send_to(lie, node, address, port):
    """Orders a member to send its bytes on to a node at this alleged address."""
    assert lie.prepare()["type"] == "ready"
    assert lie.open()["type"] == "opened"
    lie.start(next={"node": node, "address": address, "port": port, "token": Lie.TOKEN})


def assert_dials(nodes, liar, version, node, address):
    with listener(address) as s:
        send_to(Lie(liar, version), node, address, s.getsockname()[1])
        s.accept()[0].close()
    liar.say(type="abort", sync=Lie.SYNC, why="so")
    assert liar.until("aborted")


def assert_does_not_dial(nodes, liar, version, node, address):
    with listener(address) as s:
        lie = Lie(liar, version)
        send_to(lie, node, address, s.getsockname()[1])
        broken = lie.hear("broken")
        assert f"{node} has not told b that it takes bytes at {address}" in broken["why"], broken
        s.setblocking(False)
        with pytest.raises(BlockingIOError):
            s.accept()
    liar.say(type="abort", sync=Lie.SYNC, why="so")
    assert liar.until("aborted")


def test_a_publisher_cannot_have_ports_tried_where_no_node_takes_bytes(lone, liar):
    """The way of the failure would show if something listens there."""
    nodes = lone(3)
    a, version = liar(nodes["b"]), Version(os.urandom(PAGE))
    assert_does_not_dial(nodes, a, version, "c", "127.0.0.1")
    assert_does_not_dial(nodes, a, version, "c", nodes["b"].address)
    assert_dials(nodes, a, version, "c", nodes["c"].address)


def test_where_a_node_takes_bytes_it_says_itself_and_that_is_remembered(lone, liar):
    nodes = lone(3, interfaces=2)
    a, version = liar(nodes["b"]), Version(os.urandom(PAGE))
    first, second = nodes["c"].data_address.split()
    assert_dials(nodes, a, version, "c", second)
    assert f"node c is up at {first}:" in nodes["b"].log and f", and takes bytes at {second}" in nodes["b"].log
    nodes["c"].stop()
    nodes.wait(lambda: nodes["b"].peers()["c"]["state"] == "down", "it is gone")
    assert_dials(nodes, a, version, "c", second)


def test_of_a_node_that_was_never_there_sync_conf_knows_the_host(make_nodes, liar):
    nodes = make_nodes(3, absent="ac", interfaces=2)
    a, version = liar(nodes["b"]), Version(os.urandom(PAGE))
    first, second = nodes["c"].data_address.split()
    assert_does_not_dial(nodes, a, version, "c", second)
    assert_dials(nodes, a, version, "c", first)


def test_a_member_is_dialled_nowhere_but_where_it_said_that_it_takes_bytes(lone, liar):
    nodes = lone(3, publishers="b", group={"policy": "quorum"})
    nodes["b"].publish("m", seed=1)
    with listener("127.0.0.1") as s:
        a = liar(nodes["b"], data_addresses=[nodes["a"].address])
        push = nodes["b"].start_push("m")
        sync = a.until("prepare")["sync"]
        a.say(sync=sync, **ready())
        assert a.until("open")
        a.say(sync=sync, type="opened", epoch=1, address="127.0.0.1", port=s.getsockname()[1], missing=[[0, 4096]])
        states = {node["node"]: node for node in push.committed()["nodes"]}
        assert "a has not told b that it takes bytes at 127.0.0.1" in states["a"]["why"], states
        s.setblocking(False)
        with pytest.raises(BlockingIOError):
            s.accept()


# --- Certificates that are replaced ---------------------------------------------------------------------

def put(source, target):
    """As tools that update files do it: no reader ever sees half of one."""
    shutil.copy(source, f"{target}.new")
    os.rename(f"{target}.new", target)


def test_who_is_in_the_middle_of_saying_who_it_is_begins_anew(b, authority):  # noqa: F811
    """Its TLS began with the certificate of before, whether it is done or not."""
    with socket.create_connection(("127.0.0.1", b.port), timeout=PATIENCE_S) as silent, \
            Peer(b, authority.certificate, *authority.node("a")) as peer:
        for source, target in zip(authority.fresh("b", "new"), ("node.crt", "node.key")):
            put(source, b.folder / target)
        b.logs("the certificates were read again")
        assert peer.until("bye")["why"] == "the certificates of 'b' were replaced: connecting anew"
        assert silent.recv(1) == b""
    with Peer(b, authority.certificate, *authority.node("a")) as peer:
        peer.hello()
        b.sees("a", "up")


# --- Certificates that are revoked ------------------------------------------------------------------------

@pytest.fixture
def strict(make, authority):  # noqa: F811
    """A node 'b' that has a list of revoked certificates, on which none is."""
    agent = make("b", {"a": free_port()})
    put(authority.revoke(), agent.folder / "ca.crl")
    agent.settings["tls"]["crl"] = agent.folder / "ca.crl"
    agent.write()
    return agent


def test_who_is_revoked_is_hung_up_on_and_not_let_in_again(strict, authority):
    strict.start()
    old = authority.node("a")
    with Peer(strict, authority.certificate, *old) as peer:
        peer.hello()
        strict.sees("a", "up")
        put(authority.revoke("a"), strict.folder / "ca.crl")
        assert peer.until("bye")["why"].startswith("the certificate of 'a' is revoked")
    strict.sees("a", "down", "the certificate of 'a' is revoked")
    with contextlib.suppress(OSError), Peer(strict, authority.certificate, *old) as peer:
        assert peer.hear() is None
    strict.logs("refused the connection of 'a' from 127.0.0.1: its certificate is revoked")
    with Peer(strict, authority.certificate, *authority.fresh("a", "new")) as peer:
        peer.hello()
        strict.sees("a", "up")


def test_a_node_that_is_revoked_itself_says_so(strict, authority):
    put(authority.revoke("b"), strict.folder / "ca.crl")
    done = strict.run("--check")
    assert done.returncode == 0, done.stderr
    assert "this node's certificate is revoked; make a new one with weightctl pki node" in done.stderr
    strict.start()
    strict.logs("this node's certificate is revoked")


def test_a_list_that_ends_soon_is_warned_of(strict, authority):
    config, crl = authority.folder / "soon.conf", authority.folder / "soon.crl"
    (authority.folder / "soon-index").write_text("")
    config.write_text(f"[ca]\ndefault_ca = x\n[x]\ndatabase = {authority.folder}/soon-index\ndefault_md = default\n")
    run("openssl", "ca", "-gencrl", "-config", config, "-cert", authority.certificate, "-keyfile", authority.folder / "ca.key",
        "-crlhours", 1, "-out", crl)
    put(crl, strict.folder / "ca.crl")
    done = strict.run("--check")
    assert done.returncode == 0 and "a list in [tls] crl ends on " in done.stderr, done


@pytest.mark.parametrize("text", ["", "hello\n", None])
def test_what_is_no_list_of_the_ca_is_refused_and_the_last_one_stays(strict, authority, tmp_path, text):
    stranger = Authority(tmp_path / "stranger")
    wrong = tmp_path / "wrong.crl"
    wrong.write_text(stranger.revoke().read_text() if text is None else text)
    good = (strict.folder / "ca.crl").read_bytes()
    put(wrong, strict.folder / "ca.crl")
    done = strict.run("--check")
    assert done.returncode == 2 and "has no list in PEM that the CA 'weightd CA " in done.stderr, done
    assert "make one with weightctl pki revoke" in done.stderr, done
    (strict.folder / "ca.crl").write_bytes(good)
    strict.start()
    put(wrong, strict.folder / "ca.crl")
    strict.logs("the certificates stay as they are: [tls] crl")


def test_two_cas_need_a_list_each(strict, authority, tmp_path):
    other = Authority(tmp_path / "other")
    (strict.folder / "ca.crt").write_text(authority.certificate.read_text() + other.certificate.read_text())
    assert strict.run("--check").returncode == 2
    (strict.folder / "ca.crl").write_text(authority.revoke().read_text() + other.revoke().read_text())
    assert strict.run("--check").returncode == 0


# --- Old signatures -------------------------------------------------------------------------------------

def heads_of(document):
    return [{"buffer": "m", "group": "main"} | {key: document[key] for key in ("term", "number", "root")}]


class Hoard:
    """A committed version with the signed document of its publisher, held by others, which send it on request."""

    def __init__(self, certificate, key, **says):
        version = Version(os.urandom(PAGE))
        self.message = signed(certificate, key, **version.document() | says)
        self.message["decision"] = sign(key, "commit " + self.message["document"])
        self.document = json.loads(self.message["document"])

    def bring(self, liar):
        """Sends it to the node that requested it. Returns that node's answer."""
        liar.say(type="heads", heads=heads_of(self.document))
        assert liar.until("catch-up")["buffer"] == "m"
        liar.say(type="prepare", sync="00000000000000cc", **self.message)
        while message := liar.hear():
            if message["type"] in ("want", "refuse"):
                return message


def test_what_another_member_brings_is_asked_for_and_taken(make_nodes, liar, authority):
    nodes = make_nodes(3, absent="ab")
    assert Hoard(*authority.node("a")).bring(liar(nodes["c"], name="b"))["type"] == "want"


def test_what_was_signed_with_a_certificate_that_is_over_is_taken_once_most_have_it(make_nodes, liar, authority):
    """A thief of the old key may sign today with an old date, and one member may send that."""
    nodes = make_nodes(3, absent="ab")
    old = Hoard(*authority.brief("a", -1), time_ns=time.time_ns() - 30 * 10**9)
    refused = old.bring(liar(nodes["c"], name="b"))
    assert refused["code"] == "signature" and "expired on" in refused["why"] and "1 of 2 do" in refused["why"], refused
    assert old.bring(liar(nodes["c"]))["type"] == "want"


def test_what_was_signed_with_a_certificate_that_is_revoked_is_taken_once_most_have_it(make_nodes, liar, authority):
    old = Hoard(*authority.fresh("a", "old"))
    nodes = make_nodes(3, absent="ab", start=False, settings={"tls": {"crl": authority.revoke("a")}})
    nodes["c"].start()
    refused = old.bring(liar(nodes["c"], name="b"))
    assert refused["code"] == "signature" and "is revoked" in refused["why"] and "1 of 2 do" in refused["why"], refused
    assert old.bring(liar(nodes["c"], pair=authority.fresh("a", "new")))["type"] == "want"


def test_of_two_versions_with_one_number_the_second_is_refused_and_told(lone, liar):
    nodes = lone(settings={"data": {"security": "none"}})
    a, first, second = liar(nodes["b"]), Version(os.urandom(PAGE)), Version(os.urandom(PAGE))
    lie = Lie(a, first)
    assert lie.prepare()["type"] == "ready"
    lie.move()
    assert lie.verify()["type"] == "verified"
    assert lie.commit()["type"] == "committed"
    a.prepare(**second.document())
    refused = a.until("refuse")
    told = "b has term 1, number 1 of m as a signed it, and a signed another version with these"
    assert (refused["code"], refused["why"]) == ("fenced", told)
    assert f"{told}, which a brought and which is refused" in nodes["b"].log
    for version in (second, first, second):  # however often it changes its mind
        a.say(type="heads", heads=heads_of(version.document() | {"term": 1, "number": 1}))
    a.say(type="ping", n=7)
    assert a.until("pong")
    assert nodes["b"].log.count("a says to have another version of m with term 1, number 1 than b, which has that of a") == 1
    assert nodes["b"].serves("m").sha256 == hashlib.sha256(first.data).hexdigest()

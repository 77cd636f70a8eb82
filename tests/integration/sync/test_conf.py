"""weightd-sync at its start: errors about a bad sync.conf, certificates and state folder, with the way out."""
import grp
import json
import os
import shutil
import socket
import subprocess

import pytest
from integration.sync.test_agent import SYNC, authority, make, stranger, sync_only
from lib.daemon import environment
from lib.nodes import PATIENCE_S

__all__ = ["authority", "make", "stranger", "sync_only"]


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
{0}:4: [node] has no key 'lisen'; it has name, listen, data-address, state, socket, weightd, trace, log-level. Is 'listen' meant?
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
    ({"limits": {"repair-rate": "511K"}}, "'repair-rate' does not take '511K'; it takes bytes, a number with K, M, G or T, "
     "512K at least, or unlimited"),
    ({"group main": {"publishers": "x"}}, "[group main] has 'x' among its publishers, which is neither"),
    ({"group main": {"members": "a"}, "group two": {"members": "a", "publishers": "b"}},
     "[group two] has 'b' among its publishers and not among its members; add it to the members"),
    ({"peer a": {"address": "127.0.0.1:1"}}, "[peer a] is this node, says [node] name; leave the section out"),
    ({"data": {"security": "none"}}, "[data] security = none sends weights in the clear, and 127.0.0.1 of [node] data-address is in no"),
    ({"data": {"security": "none", "trusted": "10.0.0.0/8"}, "node": {"data-address": "10.1.2.3"}},
     "[data] security = none sends weights in the clear, and 127.0.0.1 of b is in no 'trusted' network"),
    ({"data": {"engine": "gloo"}}, "[data] engine = gloo sends weights in the clear; write security = none beside it"),
    ({"data": {"engine": "nccl"}}, "[data] engine = nccl sends weights in the clear; write security = none beside it"),
    ({"data": {"engine": "rdma"}}, "'engine' does not take 'rdma'; it takes tcp, gloo or nccl"),
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


@pytest.mark.parametrize("engine", ["tcp", "gloo", "nccl"])
def test_addresses_that_an_engine_does_not_use_are_told(make, engine):
    done = make("a", {"b": 7401}, node={"data-address": "10.1.2.3 10.2.2.3"},
                data={"security": "none", "trusted": "127.0.0.0/8\ntrusted = 10.0.0.0/8", "engine": engine}).run("--check")
    told = f"[data] engine = {engine}: what a pushes goes over 10.1.2.3 alone, the first data-address; with engine = tcp it goes " \
        "over all 2"
    assert done.returncode == 0 and (told in done.stderr) == (engine != "tcp") == bool(done.stderr), done.stderr


@pytest.mark.parametrize("device", ["host", "cuda", "cuda:7", "cuda:MIG-8E2A4D5C-0000-1111-2222-333344445555"])
def test_a_group_is_where_weightd_can_have_buffers(make, device):
    assert make("a", {"b": 7401}, **{"group main": {"device": device}}).run("--check").returncode == 0


GIDS = {"daemon": grp.getgrnam("daemon").gr_gid, "77": 77}


@pytest.mark.parametrize("settings", [{"mode": "644"}, {"mode": "0600"}, {"mode": "0666"}, *({"group": name} for name in GIDS)])
def test_what_a_group_gives_to_others_is_a_mode_and_a_group(make, settings):
    done = make("a", {"b": 7401}, **{"group main": settings}).run("--check")
    assert (done.returncode, done.stdout) == (0, "")
    is_outside = "group" in settings and os.geteuid() != 0 and GIDS[settings["group"]] not in os.getgroups()
    told = f"weightd-sync: [group main] group = {settings.get('group')}: uid {os.geteuid()}, which this runs as, is not in that group"
    assert done.stderr.startswith(told) == is_outside == bool(done.stderr), done.stderr


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
    record = agent.folder / "state/record"
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

"""What is watched: a process, or all of a control group; and what rows know of whose traffic it is."""
import os
import subprocess
import sys

import features
import pytest
import tracing
from cgroup import Cgroup, unified
from tracing import Refused, Tracer
from traffic import both_ways, carried, is_acknowledged

SOMEBODY, ANOTHER = 12345, 12346
CONTAINER = "0f3f6b2c8a1d4e5f" * 4
PEER = """
import socket, sys
here = None
for line in sys.stdin:
    word, n = line.split()
    n = int(n)
    if word == "listen":
        server = socket.create_server(("127.0.0.1", 0))
        print(server.getsockname()[1])
    elif word == "connect":
        here = socket.create_connection(("127.0.0.1", n))
    elif word == "accept":
        here = server.accept()[0]
    elif word == "send":
        here.sendall(bytes(n))
    elif word == "receive":
        while n > 0:
            n -= len(here.recv(min(n, 65536)))
    if word != "listen":
        print("done")
    sys.stdout.flush()
"""


class Peer:
    """A process that does what it is told to, one after the other."""

    def __init__(self, group=None, **kw):
        self.proc = subprocess.Popen([*(group.prefix if group else ()), sys.executable, "-c", PEER], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, **kw)

    def begin(self, word, n=0):
        self.proc.stdin.write(f"{word} {n}\n")
        self.proc.stdin.flush()

    def end(self):
        return self.proc.stdout.readline().strip()

    def do(self, word, n=0):
        self.begin(word, n)
        return self.end()

    def close(self):
        if self.proc.returncode is None:
            self.proc.communicate()


def connect(server, client):
    server.begin("listen")
    port = server.end()
    client.do("connect", port)
    server.do("accept")


def carry(a, b, n):
    b.begin("receive", n)
    a.do("send", n)
    b.end()


@pytest.fixture
def group(request):
    features.require("cgroup2")
    with Cgroup(unified()) as g:
        yield g


@pytest.fixture
def peer():
    """peer(group): one inside, or anywhere."""
    peers = []

    def make(group=None, **kw):
        peers.append(Peer(group, **kw))
        return peers[-1]

    yield make
    for p in peers:
        p.close()


@pytest.fixture
def make_group(group):
    """make_group(name): one below the other."""
    groups = []

    def make(name, below=None):
        groups.append(Cgroup((below or group).path, name))
        return groups[-1]

    yield make
    for g in reversed(groups):
        g.__exit__()


@pytest.fixture
def peers(make_group, group, peer):
    """Their processes end before the groups do."""
    return peer


def path_of(group):
    return "/" + str(group.path.relative_to(unified()))


def watch(client, group, sync="s", peer="b"):
    client.ask("watch", cgroup=str(group.path), sync=sync, version=1, peer=peer, role="payload")


def test_all_sockets_of_a_group_are_counted_to_the_byte(tracer, group, make_group, peers):
    """Of both ends, of those below it, and of nobody else."""
    client = tracer.client()
    watch(client, group)
    server, dialler, stranger, other = peers(group), peers(make_group("below", make_group("deeper"))), peers(), peers()
    connect(server, dialler)
    connect(other, stranger)
    carry(dialler, server, 1_234_567)
    carry(server, dialler, 89)
    carry(stranger, other, 5000)
    row = client.until(is_acknowledged)
    assert carried(row) == both_ways(1_234_567 + 89, 1_234_567 + 89)
    assert (row["sockets"], row["closed"], row["partial"]) == (2, 0, False)
    dialler.close(), server.close()
    row = client.until(lambda row: row["closed"] == 2)
    assert carried(row) == both_ways(1_234_567 + 89, 1_234_567 + 89)


def test_sockets_that_a_group_has_already_are_counted_from_then_on(tracer, group, peers):
    server, dialler = peers(group), peers(group)
    connect(server, dialler)
    carry(dialler, server, 777)
    client = tracer.client()
    watch(client, group)
    carry(dialler, server, 70_001)
    row = client.until(is_acknowledged)
    assert carried(row) == both_ways(70_001, 70_001)
    assert (row["sockets"], row["partial"]) == (2, True)


def test_who_is_watched_twice_counts_for_what_is_nearest(tracer, group, make_group, peers):
    client, below = tracer.client(), make_group("below")
    watch(client, group, peer="far")
    watch(client, below, peer="near")
    far, near, itself = peers(group), peers(below), peers(below)
    client.watch(itself.proc.pid, peer="itself")
    for one, n in (far, 1), (near, 20), (itself, 300):
        other = peers()
        connect(other, one)
        carry(one, other, n)
    for name, n in ("far", 1), ("near", 20), ("itself", 300):
        assert carried(client.until(is_acknowledged, name)) == both_ways(n, 0)


def test_a_group_is_watched_once_and_after_it_was_forgotten_again(tracer, group, peers):
    client = tracer.client()
    watch(client, group)
    for path in str(group.path) + "/", path_of(group), path_of(group) + "/../" + group.path.name, f"/../..{path_of(group)}":
        with pytest.raises(Refused, match="that control group is watched already"):
            client.ask("watch", cgroup=path, sync="s", version=1, peer="c", role="payload")
    client.ask("forget", sync="s")
    watch(client, group, peer="c")
    one, other = peers(group), peers()
    connect(other, one)
    carry(one, other, 4321)
    assert carried(client.until(is_acknowledged, "c")) == both_ways(4321, 0)
    with tracer.client() as second:
        with pytest.raises(Refused, match="watched already"):
            watch(second, group)


def test_a_process_that_was_forgotten_can_be_watched_again(tracer, peer):
    client, one = tracer.client(), peer()
    client.watch(one.proc.pid)
    client.ask("forget", sync="s")
    client.watch(one.proc.pid)


def client_as(tracer, uid):
    os.chmod(tracer.socket, 0o666)
    os.seteuid(uid)
    try:
        return tracer.client()
    finally:
        os.seteuid(0)


def test_a_group_is_for_its_owner(tracer, group):
    os.chown(group.path, SOMEBODY, -1)
    with pytest.raises(Refused, match="that control group is another user's: only root may watch it"):
        watch(client_as(tracer, ANOTHER), group)
    watch(client_as(tracer, SOMEBODY), group)


@pytest.mark.parametrize("path, why", [
    ("relative", "'cgroup' has to be a path that begins with '/'"), ("", "'cgroup' has to be"), (7, "'cgroup' has to be"),
    ("/no/such", "there is no such control group of version 2 here: No such file"), ("/" + "x" * 300, "there is no such"),
    ("/sys/fs/cgroup-of-another", "there is no such"), ("/../../../../proc/self", "there is no such"), ("/cgroup.procs", "there is no such"), ("/proc", "there is no such"),
])
def test_what_is_no_group_is_refused(tracer, path, why):
    client = tracer.client()
    with pytest.raises(Refused, match=why):
        client.ask("watch", cgroup=path, sync="s", version=1, peer="b", role="payload")
    assert client.ask("read", sync="s") == []


def test_a_group_or_a_process_but_not_both(tracer, group):
    with pytest.raises(Refused, match="there is no 'pid' beside it"):
        tracer.client().ask("watch", cgroup=str(group.path), pid=os.getpid(), sync="s", version=1, peer="b", role="payload")


def test_without_bpf_no_group_is_watched(group):
    features.require("trace")
    with Tracer("--meter=diag") as tracer:
        with pytest.raises(Refused, match="BPF alone: it was started with --meter=diag"):
            watch(tracer.client(), group)


def test_a_row_knows_whose_traffic_it_is(tracer, make_group, peers):
    container = make_group(f"docker-{CONTAINER}.scope")
    one, client = peers(container), tracer.client()
    one.do("listen")  # it is itself by now, not what started it
    client.watch(one.proc.pid, peer="watched")
    watch(client, container, peer="group")
    with tracing.pair() as (a, _):
        client.tag(a, peer="tagged")
    comm = open(f"/proc/{one.proc.pid}/comm").read().strip()
    known = {row["peer"]: row["process"] for row in client.ask("read", sync="s")}
    where = {"cgroup": path_of(container), "container": CONTAINER}
    assert known["watched"] == {"pid": one.proc.pid, "comm": comm} | where
    assert known["group"] == {"pid": None, "comm": None} | where
    mine = open("/proc/self/comm").read().strip()
    assert {k: known["tagged"][k] for k in ("pid", "comm")} == {"pid": os.getpid(), "comm": mine}
    one.close()
    assert {row["peer"]: row["process"] for row in tracer.client().ask("rows")} == known, "it may be gone by now"
    assert {row["transport"] for row in client.ask("read", sync="s")} == {"tcp"}

"""Watches of a process, or of all in a control group; and the owners of traffic in rows."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from bpf.traffic import both_ways, carried, is_acknowledged, receive
from lib import features, tracing
from lib.cgroup import Cgroup, unified
from lib.daemon import STOP_S, environment
from lib.features import BUILD
from lib.tracing import Refused, Tracer

pytestmark = pytest.mark.iterators

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
    """A process that runs commands, one after the other."""

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
    """The sockets of both ends, and of groups below it, and no others."""
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
    features.require("pids")
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
        with pytest.raises(Refused, match="that control group is already watched"):
            client.ask("watch", cgroup=path, sync="s", version=1, peer="c", role="payload")
    client.ask("forget", sync="s")
    watch(client, group, peer="c")
    one, other = peers(group), peers()
    connect(other, one)
    carry(one, other, 4321)
    assert carried(client.until(is_acknowledged, "c")) == both_ways(4321, 0)
    with tracer.client() as second:
        with pytest.raises(Refused, match="already watched"):
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
    with pytest.raises(Refused, match="that control group belongs to another user: only root may watch it"):
        watch(client_as(tracer, ANOTHER), group)
    watch(client_as(tracer, SOMEBODY), group)


def test_what_a_client_watches_has_a_limit_but_for_root(tracer, group):
    below = [Cgroup(group.path, str(i)) for i in range(130)]
    for g in below:
        os.chown(g.path, SOMEBODY, -1)
    client = client_as(tracer, SOMEBODY)
    for i, g in enumerate(below[:128]):
        watch(client, g, sync=str(i // 64))
    with pytest.raises(Refused, match="at most 128 processes and control groups; 'forget' a sync that has ended"):
        watch(client, below[128])
    client.ask("forget", sync="1")
    watch(client, below[128])
    client.ask("forget", sync="0")
    client.ask("forget", sync="s")
    root = tracer.client()
    for g in below:
        watch(root, g)
        g.__exit__()


@pytest.mark.parametrize("path, why", [
    ("relative", "'cgroup' must be a path that begins with '/'"), ("", "'cgroup' must be"), (7, "'cgroup' must be"),
    ("/no/such", "there is no control group '/no/such' of version 2 here: No such file"),
    ("/" + "x" * 127, f"there is no control group '/{'x' * 127}' of version 2 here: No such file or directory$"),
    ("/" + "x" * 199, "there is no such control group of version 2 here: No such file or directory$"),
    ("/" + "x" * 300, "there is no such control group of version 2 here: No such file"),
    ("/sys/fs/cgroup-of-another", "there is no control group"), ("/../../../../proc/self", "there is no control group"),
    ("/cgroup.procs", "there is no control group"), ("/proc", "there is no control group"),
])
def test_what_is_no_group_is_refused(tracer, path, why):
    if why.startswith("there is no"):
        features.require("cgroup2")
    client = tracer.client()
    with pytest.raises(Refused, match=why):
        client.ask("watch", cgroup=path, sync="s", version=1, peer="b", role="payload")
    assert client.ask("read", sync="s") == []


def test_a_group_or_a_process_but_not_both(tracer, group):
    with pytest.raises(Refused, match="without a 'pid' beside it"):
        tracer.client().ask("watch", cgroup=str(group.path), pid=os.getpid(), sync="s", version=1, peer="b", role="payload")


def test_without_bpf_no_group_is_watched(group):
    features.require("trace")
    with Tracer("--meter=diag") as tracer:
        with pytest.raises(Refused, match="only BPF can follow the sockets of processes: weightd-trace was started with --meter=diag"):
            watch(tracer.client(), group)


SENDER = """
import os, socket, sys
port, n, status = map(int, sys.argv[1:])
with socket.create_connection(("127.0.0.1", port)) as s:
    s.sendall(bytes(n))
    s.recv(1)
print("done")
sys.exit(status)
"""


def weightctl(tracer, *args, stdin=subprocess.DEVNULL):
    """`weightctl trace watch`"""
    return subprocess.Popen([BUILD / "weightctl", "trace", "watch", *map(str, args)], text=True, stdin=stdin,
                            env=environment(WEIGHTD_TRACE_SOCKET=tracer.socket), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_command_whose_name_is_no_text_is_counted_by_another(tracer, tmp_path):
    program = tmp_path / b"\xff".decode(errors="surrogateescape")
    shutil.copy("/bin/true", program)
    done = weightctl(tracer, program)
    out, err = done.communicate()
    assert (done.returncode, out) == (0, "") and len(err.splitlines()) == 2, err
    with tracer.client() as client:
        assert [row["sync"] for row in client.ask("past")] == ["watch"]
    done = weightctl(tracer, "--sync", program.name, "true")
    assert done.communicate()[1] == "weightctl: a name that is not UTF-8 cannot be sent to weightd-trace\n"
    assert done.returncode == 1


def until_watched(tracer):
    """Until a span is open."""
    with tracer.client() as observer:
        observer.ask("observe")
        while not any(packet["kind"] == "begin" for packet in observer.followed):
            observer.followed.append(observer.hear())


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_is_counted_from_its_first_byte_on(tracer, status):
    features.require("pids")
    n = 1_234_567
    with socket.create_server(("127.0.0.1", 0)) as server:
        with weightctl(tracer, "--json", sys.executable, "-c", SENDER, server.getsockname()[1], n, status) as told:
            with server.accept()[0] as b:
                receive(b, n)
                shown = json.loads(subprocess.run([BUILD / "weightctl", "top", "--once", "--json"], stdout=subprocess.PIPE,
                                                  env=environment(WEIGHTD_TRACE_SOCKET=tracer.socket)).stdout)["rows"]
                b.send(b"x")
            out, error = told.communicate()
    name = os.path.basename(sys.executable)
    assert (told.returncode, out) == (status, "done\n")
    told = json.loads(error)
    row, = told["rows"]
    assert {k: row[k] for k in ("process", "connections", "submitted", "delivered", "received", "consumed", "partial", "quality")} \
        == {"process": name, "connections": 1, "submitted": n, "delivered": n, "received": 1, "consumed": 1, "partial": False,
            "quality": "exact"}
    assert told["sync"] == name
    assert [(row["sync"], row["peer"], row["process"], row["submitted"]) for row in shown] == [(name, "*", name, n)]
    assert tracer.client().ask("rows") == []


def test_what_is_there_is_watched_until_it_is_gone(tracer, peer):
    features.require("pids")
    one, other, server = peer(), peer(), peer()
    with weightctl(tracer, "--pid", one.proc.pid, "--pid", other.proc.pid, "--peer=b", "--bytes") as told:
        until_watched(tracer)
        for p, n in (one, 1000), (other, 200):
            connect(server, p)
            carry(p, server, n)
            p.close()
        out, error = told.communicate()
    assert (told.returncode, error) == (0, "")
    head, line = (text.split() for text in out.splitlines())
    assert head == ["PROCESS", "CONNECTIONS", "SUBMITTED", "DELIVERED", "RECEIVED", "RETRANS", "ELAPSED", "QUALITY"]
    assert line[1:6] == ["2", "1200", "1200", "0", "0"] and line[-1] == "exact"


@pytest.mark.parametrize("ends", ["signal", "time"])
def test_a_group_is_watched_until_one_has_enough(tracer, group, peers, ends):
    args = ["--seconds=0.5"] if ends == "time" else []
    one, server = peers(group), peers()
    connect(server, one)
    with weightctl(tracer, "--json", "--cgroup", group.path, "--sync=mine", *args) as told:
        if ends == "signal":
            until_watched(tracer)
            carry(one, server, 4321)
            told.send_signal(signal.SIGINT)
        out, error = told.communicate()
    assert (told.returncode, error) == (0, "")
    row, = json.loads(out)["rows"]
    assert (row["cgroup"], row["process"], row["pid"], row["partial"]) == (path_of(group), None, None, False)
    assert row["submitted"] == (4321 if ends == "signal" else 0)


def test_a_command_is_told_of_a_signal(tracer):
    with weightctl(tracer, "--json", "cat", "/dev/tty0-of-nobody") as told:
        told.communicate()
    assert told.returncode == 1  # its own
    with weightctl(tracer, "--json", sys.executable, "-c", "import signal; print('here', flush=True); signal.pause()") as told:
        assert told.stdout.readline() == "here\n"
        told.send_signal(signal.SIGTERM)
        _, error = told.communicate()
    assert told.returncode == 128 + signal.SIGTERM and {json.loads(error)["rows"][0][k] for k in ("submitted", "connections")} == {0}


@pytest.mark.parametrize("args, status, why", [
    (["--pid", "2147483647"], 1, "2147483647: No such"), (["--cgroup=/no/such"], 1, "there is no control group '/no/such'"),
    (["--sync=" + "x" * 128, "true"], 1, "'sync' must be"),
    ([], 2, "wants a --pid, a --cgroup or a command"), (["--cgroup", "a.slice"], 2, "a path that begins with '/', not 'a.slice'"),
])
def test_weightctl_says_what_is_wrong(tracer, args, status, why):
    if why.startswith("there is no"):
        features.require("cgroup2")
    with weightctl(tracer, *args) as told:
        out, error = told.communicate()
    assert (told.returncode, out) == (status, "") and why in error


def test_a_command_that_cannot_be_run_carried_nothing(tracer):
    with weightctl(tracer, "/no/such/program") as told:
        out, error = told.communicate()
    assert (told.returncode, out, error) == (127, "", "weightctl: cannot run '/no/such/program': No such file or directory\n")


def test_a_command_that_cannot_be_watched_is_not_run(tmp_path):
    features.require("trace")
    with Tracer("--meter=diag") as tracer, weightctl(tracer, "touch", tmp_path / "ran") as told:
        _, error = told.communicate()
    assert told.returncode == 1 and "only BPF can follow the sockets of processes" in error
    assert not (tmp_path / "ran").exists()


def test_a_tracer_that_dies_is_told_of_and_the_command_goes_on():
    features.require("bpf")
    with Tracer() as tracer:
        with weightctl(tracer, "cat", stdin=subprocess.PIPE) as told:
            told.stdin.write("it runs\n")
            told.stdin.flush()
            assert told.stdout.readline() == "it runs\n"
            tracer.kill()
            assert told.stderr.readline() == "weightctl: weightd-trace has ended, and its counts are lost\n"
            out, _ = told.communicate("still here")
        assert (told.returncode, out) == (1, "still here")
        tracer.start()


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

"""weightd-trace's count of a sync equals the plan, the engines' counts and TCP_INFO, to the byte."""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import types

import pytest
from bpf.test_merge import FLOWS, run as run_merge
from bpf.test_record import Recorder, asked
from integration.engines.test_average_push import publish as publish_tensors
from integration.sync.test_reshard_push import LARGE, LAYOUTS, Model
from integration.weightctl.test_weightctl import in_terminal
from lib import features, tracing
from lib.engine import PLANNED_BACK, planned, program, striped
from lib.netns import Net
from lib.nodes import MIB, Cluster, hostile_programs

PLAIN = {"data": {"security": "none"}}
TLS = {"data": {"security": "tls"}}
GLOO = {"data": {"security": "none", "engine": "gloo"}}


@pytest.fixture(scope="module")
def tracer():
    """The one of all tests that look at syncs of theirs."""
    features.require("bpf")
    with tracing.Tracer() as t:
        yield t


@pytest.fixture
def own_tracer():
    """That of a test which kills it, or looks at all that it has seen."""
    features.require("bpf")
    with tracing.Tracer() as t:
        yield t


@pytest.fixture
def make_traced(make_nodes, tracer):
    """make_nodes() of nodes with agents that use the tracer, or another one."""
    def make(n, settings=PLAIN, used=tracer, **kw):
        if settings == GLOO:
            features.require("gloo", available=program("gloo").exists())
        return make_nodes(n, settings=settings | {"node": {"trace": used.socket}}, **kw)

    return make


@pytest.fixture
def np():
    features.require("gloo", available=program("gloo").exists())
    features.require("numpy")
    import numpy
    return numpy


def ctl(tracer, *args):
    """The output of weightctl with this tracer."""
    return subprocess.run([features.BUILD / "weightctl", *args], env=tracer.env, capture_output=True, text=True, check=True).stdout


def history(node, sync):
    return next((row for row in node.history() if row["sync"] == sync), None)


def traced(node, sync):
    """Its row of the history, once weightd-trace has sent its counts: no sync waits for that."""
    def look():
        row = history(node, sync)
        return row and row["untraced"] == 0 and row

    return node.cluster.wait(look, lambda: f"{node} has all traced bytes of {sync}: {node.history()}")


def carried(node):
    """Bytes on the wire by {(way, peer): (as counted by engines, by weightd-trace)}, as its metrics have them."""
    sums = {(family["metric"], sample["labels"].get("peer")): sample.get("value")
            for family in node.rows("metrics", "metric") for sample in family["samples"]}
    return {(way, peer.name): (sums[f"weightd_sync_{way}_bytes", peer.name],
                               sums.get((f"weightd_sync_{way}_traced_bytes", peer.name), 0))
            for peer in node.cluster if peer is not node for way in ("sent", "received")}


def assert_traced(nodes, sync, tls=False):
    """All that moved anything of it: planned, counted, TCP's and traced are equal, on each link and at both of its ends."""
    rows = [traced(node, sync) for node in nodes if history(node, sync)]
    for row in rows:
        assert (row["traced"] or 0) == row["bytes"] == row["kernel"], row  # without bytes there is no trace
        assert row["planned"] == row["payload"] and (row["payload"] == row["bytes"]) != tls, row
    for node in nodes:
        nodes.wait(lambda node=node: all(a == b for a, b in carried(node).values()), lambda node=node: carried(node))
    both = {node.name: carried(node) for node in nodes}
    for a in nodes:
        for b in nodes:
            assert a is b or both[a.name]["sent", b.name] == both[b.name]["received", a.name], both
    return rows[0]


def chain(push):
    """(from, to) of each link of it, while bytes move."""
    return {(row["from"], row["node"]) for row in push.node.status(push.sync) if row["from"]}


def remember(nodes, sync, names):
    for name in names:
        nodes.wait(lambda name=name: history(nodes[name], sync), f"{name} remembers {sync}")


def accounts(tracer, way):
    """{peer: bytes of payload}, that all agents had counted, as the metrics of the tracer have them."""
    family, = (family for family in tracer.client().ask("metrics") if family["metric"] == f"weightd_trace_{way}_bytes")
    return {sample["labels"]["peer"]: sample["value"] for sample in family["samples"] if sample["labels"]["role"] == "payload"}


@pytest.mark.parametrize("settings, transport", [(PLAIN, "tcp"), (TLS, "tls"), (GLOO, "gloo")], ids=("tcp", "tls", "gloo"))
def test_a_push(make_traced, own_tracer, settings, transport):
    nodes = make_traced(4, settings, own_tracer)
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    remember(nodes, end["sync"], "bcd")
    row = assert_traced(nodes, end["sync"], settings == TLS)
    submitted, received = (accounts(own_tracer, way) for way in ("submitted", "received"))  # though agents forgot it all
    links = [carried(node)["sent", peer][1] for node in nodes for peer in "abcd" if peer != node.name]
    assert set(submitted) == set(received) == set("abcd")
    # Engines answer each other, which is in them, too.
    assert min(sum(submitted.values()), sum(received.values())) >= sum(links) == row["bytes"], (submitted, received, links)
    if settings != GLOO:
        assert row["planned"] == 3 * planned(nodes["a"].serves("m").size)
    rows = own_tracer.client().ask("past")
    assert {row["transport"] for row in rows if row["sync"] == end["sync"]} == {transport}, rows


def test_perfetto_finds_the_slices_of_all_nodes(make_traced, own_tracer, tmp_path):
    features.require("perfetto")
    nodes = make_traced(4, used=own_tracer)
    recorder = Recorder(own_tracer.socket, "--format", "perfetto")
    nodes["a"].publish("m", seed=1)
    sync = nodes["a"].push("m")["sync"]
    remember(nodes, sync, "bcd")
    planned_bytes = assert_traced(nodes, sync)["planned"]
    recorder.until(f'"name":"{sync}","ph":"X","cat":"payload"', 6)  # three links, each at both ends
    recorder.until(f'"sync":"{sync}","role":"publisher","phase":"commit"')
    recorder.until(f'"sync":"{sync}","role":"member","phase":"commit"', 3)
    text = recorder.end()
    query = ("select count(distinct extract_arg(arg_set_id, 'args.client.pid')), sum(extract_arg(arg_set_id, 'args.received')) "
             f"from slice where name = '{sync}' and category = 'payload' and dur > 0")
    assert asked(text, query, tmp_path) == [[4, planned_bytes + 3 * PLANNED_BACK]]
    query = ("select thread.name, count(distinct track_id), count(*) from slice join thread_track on track_id = thread_track.id "
             "join thread using (utid) where category = 'phase' and slice.name in ('bytes', 'commit') group by 1 order by 1")
    assert asked(text, query, tmp_path) == [[f"member of {sync}", 3, 6], [f"publisher of {sync}", 1, 2]]


def acts(tracer):
    with tracing.Client(tracer.socket) as client:
        return client.ask("acts")


def phases(tracer, sync, role):
    """[(phase, when it began, when it ended)] of each agent that had this role, by their pids."""
    found = {}
    for act in acts(tracer):
        if act["act"] == "sync_phase" and act["sync"] == sync and act["role"] == role:
            found.setdefault(act["pid"], []).append((act["phase"], act["ns"] - act["took_ns"], act["ns"]))
    return found


def test_each_phase_begins_where_the_one_before_ended(make_traced, tracer):
    nodes = make_traced(3)
    nodes["a"].publish("m", seed=1)
    sync = nodes["a"].push("m")["sync"]
    nodes.wait(lambda: [len(phases(tracer, sync, role)) for role in ("publisher", "member")] == [1, 2] and
               all(p[-1][0] == "commit" for role in ("publisher", "member") for p in phases(tracer, sync, role).values()),
               lambda: acts(tracer))
    for role, wanted in ("publisher", ["attach", "digest", "prepare", "open", "bytes", "verify", "commit"]), \
            ("member", ["want", "create", "ready", "opening", "open", "bytes", "verify", "verified", "commit"]):
        for found in phases(tracer, sync, role).values():
            names = [name for name, _, _ in found]
            assert set(names) <= {*wanted, "compose", "stop"} and {"bytes", "commit"} <= set(names), found
            assert all(end == begin for (_, _, end), (_, begin, _) in zip(found, found[1:])), found
    said = subprocess.run([features.BUILD / "weightctl", "trace", "explain", sync, "--trace-socket", tracer.socket],
                          capture_output=True, text=True, check=True).stdout
    assert (said.count(", publisher: "), said.count(", member: ")) == (1, 2), said


def test_a_push_is_limited_by_the_rate_that_was_set(make_traced, tracer):
    nodes = make_traced(2)
    nodes["a"].publish("m", seed=1, size=4 * MIB)
    sync = nodes["a"].start_push("m", max_rate=2 * MIB).committed()["sync"]
    assert_traced(nodes, sync)
    said = subprocess.run([features.BUILD / "weightctl", "trace", "explain", sync, "--trace-socket", tracer.socket],
                          capture_output=True, text=True, check=True).stdout
    assert re.search("^Most of the time went to b, .* limited by its own pacing.$", said, re.M), said


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_an_arrow_from_who_sent_to_who_received(make_nodes, tmp_path, names):
    """Nodes with a tracer each; their recordings are merged."""
    features.require("bpf")
    features.require("perfetto")
    with contextlib.ExitStack() as stack:
        tracers = {name: stack.enter_context(tracing.Tracer()) for name in names}
        nodes = make_nodes(len(names), settings=PLAIN, start=False)
        for node in nodes:
            nodes.configure(node, node={"trace": tracers[node.name].socket})
            node.start()
        nodes.wait_connected()
        recorders = {name: Recorder(t.socket) for name, t in tracers.items()}
        nodes["a"].publish("m", seed=1)
        push = nodes["a"].start_push("m", max_rate=MIB)
        for recorder in recorders.values():  # all have events of it while it goes on
            recorder.until('"kind":"progress"')
        push.moving(names[-1])
        links = chain(push)
        sync = push.committed()["sync"]
        remember(nodes, sync, names[1:])
        assert_traced(nodes, sync)
        for name, recorder in recorders.items():
            recorder.until(f'"kind":"end","sync":"{sync}"')
            recorder.until(f'"sync":"{sync}","role":"{"publisher" if name == "a" else "member"}","phase":"commit"')
            (tmp_path / f"{name}.jsonl").write_text(recorder.end())
    done = run_merge(*(tmp_path / f"{name}.jsonl" for name in reversed(names)))
    assert done.returncode == 0, done.stderr
    arrows = [[name.partition(" (")[0] for name in row] for row in asked(done.stdout, FLOWS, tmp_path)]
    assert arrows == sorted([sync, f"{a}: {b}", sync, f"{b}: {a}"] for a, b in links)
    query = ("select distinct process.name from slice join thread_track on track_id = thread_track.id join thread using (utid) "
             "join process using (upid) where category = 'phase' and slice.name = 'bytes' and dur > 0")
    went = [name for name, in asked(done.stdout, query, tmp_path)]
    assert len(went) == len(names), went


def expect(nodes, observer, sync):
    """Each link carried all bytes of its plan, both ways."""
    assert_traced(nodes, sync)
    observer.ask("rows")
    rows = [row for row in observer.followed if (row["kind"], row["sync"]) == ("total", sync)]
    assert rows and [row for row in rows if row["submitted"] + row["received"] != row["expected"]] == []


@pytest.mark.parametrize("settings, interfaces", [(PLAIN, 1), (PLAIN, 3), (GLOO, 1)], ids=("tcp", "stripes", "gloo"))
def test_what_is_expected_is_what_comes(make_traced, np, tracer, settings, interfaces):
    nodes = make_traced(3, settings, interfaces=interfaces)
    with tracing.Client(tracer.socket) as observer:
        observer.ask("observe")
        nodes["a"].publish("m", seed=1, size=5 * MIB)
        end = nodes["a"].push("m")
        remember(nodes, end["sync"], "bc")
        expect(nodes, observer, end["sync"])
        for rank, node in enumerate(nodes):
            publish_tensors(np, node, rank)
        nodes["a"].ctl("sync", "average", "m")
        sync = nodes["a"].history()[0]["sync"]
        remember(nodes, sync, "bc")
        expect(nodes, observer, sync)


@pytest.mark.parametrize("settings", [PLAIN, TLS], ids=("tcp", "tls"))
def test_stripes(make_traced, settings):
    nodes = make_traced(3, settings, interfaces=3)
    nodes["a"].publish("m", seed=1, size=5 * MIB)
    end = nodes["a"].push("m")
    remember(nodes, end["sync"], "bc")
    row = assert_traced(nodes, end["sync"], settings == TLS)
    assert row["planned"] == 2 * striped(nodes["a"].serves("m").size, 3), row


@pytest.mark.parametrize("settings", [PLAIN, GLOO], ids=("tcp", "gloo"))
def test_a_patch(make_traced, settings):
    nodes = make_traced(3, settings)
    for seed in (1, (1, 2)):
        nodes["a"].publish("m", seed=seed)
        end = nodes["a"].push("m")
        remember(nodes, end["sync"], "bc")
        row = assert_traced(nodes, end["sync"])
    assert row["by"] == "patch" and row["bytes"] < 2 * row["size"], row


@pytest.mark.parametrize("settings", [PLAIN, GLOO], ids=("tcp", "gloo"))
def test_a_repair(make_traced, settings):
    nodes = make_traced(3, settings)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    nodes["c"].empty()
    nodes.settle("m", seed=1)
    row = nodes.wait(lambda: next((row for row in nodes["c"].history() if (row["kind"], row["state"]) == ("repair", "committed")),
                                  None), "c remembers")
    assert assert_traced(nodes, row["sync"])["bytes"] > 0


@pytest.mark.parametrize("settings", [PLAIN, GLOO], ids=("tcp", "gloo"))
def test_what_an_attempt_carried_that_broke_is_in_no_number(make_traced, settings):
    """The engine of one node is killed while bytes move, and the rest of them follow in another epoch."""
    nodes = make_traced(3, settings)
    nodes["a"].publish("m", seed=1, size=8 * MIB)
    push = nodes["a"].start_push("m", max_rate=MIB)
    push.moving("b", MIB)
    os.kill(nodes["b"].engine(program("gloo").name if settings == GLOO else program("tcp").name), signal.SIGKILL)
    end = push.committed()
    remember(nodes, end["sync"], "bc")
    assert assert_traced(nodes, end["sync"])["broken"] > 0


def test_an_average(make_traced, np):
    nodes = make_traced(3)
    for rank, node in enumerate(nodes):
        publish_tensors(np, node, rank)
    nodes["a"].ctl("sync", "average", "m")
    sync = nodes["a"].history()[0]["sync"]
    remember(nodes, sync, "bc")
    assert assert_traced(nodes, sync)["bytes"] > 0


@pytest.mark.parametrize("kind", ["4-to-2", "gather", "scatter", "to-some-of-them"])
def test_a_reshard(make_traced, np, kind):
    sources, targets = LAYOUTS[kind]
    nodes = make_traced(len(set(sources + targets)))
    m = Model(np, nodes, LARGE, sources, targets)
    m.reshard()
    m.assert_there()
    sync = nodes["a"].history()[0]["sync"]
    remember(nodes, sync, [node.name for node in nodes if node.name != "a"])
    assert assert_traced(nodes, sync)["bytes"] > m.total()


@contextlib.contextmanager
def apart(authority, tracer, names, engine="tcp"):
    """Nodes in networks of their own: the Net, and the Cluster."""
    features.require("netns")
    with Net(len(names)) as net:
        spaces = {name: net.nodes[i].name for i, name in enumerate(names)}
        settings = {"data": {"trusted": "10.0.0.0/8", "security": "none", "engine": engine}, "node": {"trace": tracer.socket}}
        with Cluster(authority, len(names), settings=settings, addresses=[node.address for node in net.nodes],
                     prefix=lambda node: ("nsenter", f"--net=/run/netns/{spaces[node.name]}", "--")) as nodes:
            yield net, nodes


@pytest.mark.parametrize("engine", ["tcp", "gloo"])
def test_what_is_sent_again_is_counted_once(authority, tracer, engine):
    """On a link that loses packets: its queue has room for next to none."""
    if engine == "gloo":
        features.require("gloo", available=program("gloo").exists())
    with apart(authority, tracer, "ab", engine) as (net, nodes):
        nodes["a"].publish("m", seed=1, size=16 * MIB)
        net.congest(1)
        before = net.retransmitted(0)
        end = nodes["a"].push("m")
        assert net.retransmitted(0) > before
        remember(nodes, end["sync"], "b")
        assert_traced(nodes, end["sync"])


@pytest.mark.parametrize("slow", [pytest.param("b", marks=pytest.mark.long), "c", pytest.param("d", marks=pytest.mark.long)])
def test_the_node_is_named_to_which_the_way_is_slow(authority, tracer, slow):
    with apart(authority, tracer, "abcd") as (net, nodes):
        nodes["a"].publish("m", seed=1, size=8 * MIB)
        net.rate("abcd".index(slow), "20mbit", sends=False)
        sync = nodes["a"].push("m")["sync"]
        remember(nodes, sync, "bcd")
        assert_traced(nodes, sync)
        said = ctl(tracer, "trace", "explain", sync)
        assert f"Most of the time went to {slow}, " in said, said
        assert json.loads(ctl(tracer, "trace", "explain", sync, "--json"))["slowest"] == slow, said


def test_top_amid_a_push(make_traced, own_tracer):
    nodes = make_traced(3, used=own_tracer)
    nodes["a"].publish("m", seed=1)
    push = nodes["a"].start_push("m", max_rate=MIB)
    push.moving("c", MIB // 4)
    rows = [row for row in json.loads(ctl(own_tracer, "top", "--once", "--json"))["rows"] if row["sync"] == push.sync]
    terminal = types.SimpleNamespace(env=own_tracer.env, ctl_command=lambda args: [features.BUILD / "weightctl", *args])
    status, text = in_terminal(terminal, "top", "--once")
    links = chain(push)
    end = push.committed()
    agents = {node.proc.pid: node.name for node in nodes}
    assert sorted((agents[row["pid"]], row["peer"]) for row in rows) == sorted([*links, *((b, a) for a, b in links)])
    about = {"version": end["number"], "role": "payload", "transport": "tcp", "process": "weightd-sync", "partial": False,
             "quality": "exact", "sockets": 1, "expected": planned(nodes["a"].serves("m").size) + PLANNED_BACK}
    assert [row for row in rows if {key: row[key] for key in about} != about or not 0 < row["done"] < row["expected"]] == []
    lines = text.splitlines()
    assert status == 0 and len([line for line in lines if " payload " in line]) == 4 and max(map(len, lines)) <= 80, text


def test_people_and_programs_are_shown_it(make_nodes, tmp_path, tracer):
    nodes = make_nodes(2, settings=PLAIN | {"node": {"trace": tmp_path / "trace.sock"}})
    columns = "history", "--noheadings", "-o", "TRACED,UNTRACED"
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    assert nodes["a"].ctl("sync", *columns).stdout.split() == ["-", "1"]
    (tmp_path / "trace.sock").symlink_to(tracer.socket)
    nodes["a"].publish("m", seed=2)
    row = traced(nodes["a"], nodes["a"].push("m")["sync"])
    last = json.loads(nodes["a"].ctl("sync", "history", "--json").stdout)["syncs"][0]
    assert (last["traced"], last["untraced"], last["bytes"]) == (row["bytes"], 0, row["bytes"])
    assert nodes["a"].ctl("sync", *columns, "--bytes").stdout.split() == [str(row["bytes"]), "0", "-", "1"]


# --- A weightd-trace that fails or lies --------------------------------------------------------------

class Stand:
    """
    A weightd-trace that is played: it reads the requests of agents, each in a connection of its own, and sends a test's answers.

    heard   requests, in the order of each connection
    answer  of a request: packets, which may be none; None hangs up
    """

    def __init__(self, path, answer=lambda request: [END]):
        self.heard, self.answer = [], answer
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen(64)
        self.threads = [threading.Thread(target=self._accept)]
        self.connections = []
        self.threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for s in (self.listener, *self.connections):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for s in (self.listener, *self.connections):
            s.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                self.connections.append(self.listener.accept()[0])
                self.threads.append(threading.Thread(target=self._serve, args=[self.connections[-1]]))
                self.threads[-1].start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            while packet := (received := socket.recv_fds(connection, 4096, 4))[0]:
                request = json.loads(packet) | {"fds": len(received[1])}
                for fd in received[1]:
                    os.close(fd)
                self.heard.append(request)
                answer = self.answer(request)
                if answer is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                for part in answer:
                    connection.send(part if isinstance(part, bytes) else json.dumps(part).encode())

    def of(self, sync):
        return [request for request in self.heard if request.get("sync") == sync]


END = {"end": True}
ROW = {"kind": "row", "peer": "a", "sockets": 1, "partial": False, "received": 5, "submitted": 5,
       "quality": {"received": "exact", "submitted": "exact"}}


def stand_in(make_nodes, tmp_path, n=2, settings=PLAIN, programs=None, **kw):
    """Nodes with agents that use a Stand, which starts first."""
    stand = Stand(tmp_path / "trace.sock", **kw)
    return stand, make_nodes(n, settings=settings | {"node": {"trace": tmp_path / "trace.sock"}}, programs=programs or {})


def test_what_it_is_told(make_nodes, tmp_path):
    stand, nodes = stand_in(make_nodes, tmp_path)
    with stand:
        nodes["a"].publish("m", seed=1)
        end = nodes["a"].push("m")
        size = nodes["a"].serves("m").size
        heard = lambda: [request["op"] for request in stand.of(end["sync"])]  # noqa: E731
        nodes.wait(lambda: heard().count("forget") == 2, heard)
    assert sorted(heard()) == ["begin"] * 2 + ["end"] * 2 + ["forget"] * 2 + ["tag"] * 2
    tags = {request["peer"]: request for request in stand.of(end["sync"]) if request["op"] == "tag"}
    about = {"op": "tag", "sync": end["sync"], "version": end["number"], "role": "payload", "transport": "tcp", "fds": 1,
             "expected": planned(size) + PLANNED_BACK}
    assert tags == {"b": about | {"peer": "b", "dialled": True}, "a": about | {"peer": "a", "dialled": False}}
    ends = [request for request in stand.of(end["sync"]) if request["op"] == "end"]
    assert ends == [{"op": "end", "sync": end["sync"], "fds": 0}] * 2  # a list of nodes may not fit into a packet
    control = {request["peer"]: request for request in stand.of("control")}
    about = {"op": "tag", "sync": "control", "version": 0, "role": "control", "transport": "tls", "fds": 1}
    assert control == {"b": about | {"peer": "b", "dialled": True}, "a": about | {"peer": "a", "dialled": False}}


@pytest.mark.parametrize("answer", [
    [], None, [b"\0"], [b"[]"], [{"end": True, "error": "no"}], [END, END], [{"kind": "row"}, END], [{"end": 1}],
    [ROW | {"sockets": 2}, END], [ROW | {"partial": True}, END], [ROW | {"received": None}, END], [ROW | {"received": -1}, END],
    [ROW | {"quality": {"received": "sampled", "submitted": "exact"}}, END], [ROW | {"peer": 1}, END], [ROW, ROW, END],
], ids=str)
def test_one_that_answers_nonsense_or_nothing_costs_a_push_nothing_but_its_number(make_nodes, tmp_path, answer):
    stand, nodes = stand_in(make_nodes, tmp_path, answer=lambda request: answer)
    with stand:
        for seed in 1, 2:
            nodes["a"].publish("m", seed=seed)
            end = nodes["a"].push("m")
            nodes.settle("m", seed=seed)
            row = history(nodes["a"], end["sync"])
            assert row["bytes"] == row["kernel"] and (row["traced"], row["untraced"]) == (None, 1), row


def test_what_it_says_of_a_sync_is_said_by_the_history_of_all(make_nodes, tmp_path):
    """Even a wrong count is shown as it is."""
    stand, nodes = stand_in(make_nodes, tmp_path, answer=lambda request: [ROW, END] if request["op"] == "end" else [END])
    with stand:
        nodes["a"].publish("m", seed=1)
        end = nodes["a"].push("m")
        remember(nodes, end["sync"], "b")
        assert [traced(node, end["sync"])["traced"] for node in nodes] == [5, 5]
        assert [(name, row["sync"]) for name, row in nodes.differing()] == [("a", end["sync"]), ("b", end["sync"])]


def test_an_engine_that_tells_of_connections_without_end_is_not_listened_to(make_nodes, tmp_path):
    stand, nodes = stand_in(make_nodes, tmp_path, programs={"b": hostile_programs(tmp_path / "hostile", sockets=1000)})
    with stand:
        nodes["a"].publish("m", seed=1)
        end = nodes["a"].push("m")
        nodes.settle("m", seed=1)
        told = lambda: [request for request in stand.of(end["sync"]) if request["op"] == "forget"]  # noqa: E731
        nodes.wait(lambda: len(told()) == 2, "all requests have arrived")
        remember(nodes, end["sync"], "b")
        assert len([request for request in stand.of(end["sync"]) if request["op"] == "tag" and request["peer"] == "a"]) == 256
        assert history(nodes["b"], end["sync"])["untraced"] == 1


def test_an_engine_that_is_killed_is_missed_at_once_though_its_connection_is_on_its_way(make_nodes, tmp_path):
    """A tracer that never answers holds the connection of the engine, and no node waits for it, or for a timeout."""
    limits = {"limits": {"stall-timeout": 300}}
    stand, nodes = stand_in(make_nodes, tmp_path, 3, PLAIN | limits, answer=lambda request: [] if request["op"] == "tag" else [END])
    with stand:
        nodes["a"].publish("m", seed=1, size=8 * MIB)
        push = nodes["a"].start_push("m", max_rate=MIB)
        push.moving("b", MIB)
        os.kill(nodes["b"].engine(), signal.SIGKILL)
        push.committed()
        nodes.settle("m", seed=1)


@pytest.mark.parametrize("op", ["begin", "tag", "end", "forget"])
def test_one_that_goes_while_a_push_is_under_way(make_nodes, tmp_path, op):
    stand, nodes = stand_in(make_nodes, tmp_path, answer=lambda request: None if request["op"] == op and
                            request["sync"] != "control" else [ROW, END] if request["op"] == "end" else [END])
    with stand:
        for seed in 1, 2:
            nodes["a"].publish("m", seed=seed)
            end = nodes["a"].push("m")
            nodes.settle("m", seed=seed)
            if op == "forget":
                assert traced(nodes["a"], end["sync"])["traced"] == 5
            else:
                assert history(nodes["a"], end["sync"])["traced"] is None


def test_one_that_hangs_up_on_all_is_told_of_once(make_nodes, tmp_path):
    """As one does that has too many clients: it is asked again, and the log is not full of that."""
    stand, nodes = stand_in(make_nodes, tmp_path, answer=lambda request: None)
    with stand:
        nodes["a"].publish("m", seed=1, size=4 * MIB)
        end = nodes["a"].push("m", max_rate=MIB)
        assert len([request for request in stand.heard if request["op"] in ("begin", "tag")]) > 2, stand.heard
        assert [node.log.count("it counts nothing of what is under way") for node in nodes] == [1, 1], end


def test_one_that_comes_back_amid_a_push_is_told_of_what_goes_on(make_nodes, tmp_path):
    """The agent sends each connection once more, with the mark that its earlier bytes are unknown."""
    left = ["a", "b"]

    def answer(request):
        if request["op"] == "tag" and request["sync"] != "control" and left:
            return left.pop() and None
        return [END]

    stand, nodes = stand_in(make_nodes, tmp_path, answer=answer)
    with stand:
        nodes["a"].publish("m", seed=1, size=4 * MIB)
        end = nodes["a"].push("m", max_rate=MIB)
        heard = lambda: sorted(request["op"] for request in stand.of(end["sync"]))  # noqa: E731
        nodes.wait(lambda: heard().count("forget") == 2, heard)
        assert heard() == sorted(["begin", "tag"] * 4 + ["end", "forget"] * 2)
        again = [request for request in stand.of(end["sync"]) if request["op"] == "tag" and "dialled" not in request]
        assert sorted((request["peer"], request["fds"]) for request in again) == [("a", 1), ("b", 1)]
        assert not [request for request in again if "expected" in request], "more than is still to arrive"


@pytest.mark.parametrize("settings", [PLAIN, TLS, GLOO], ids=("tcp", "tls", "gloo"))
def test_one_that_is_killed_amid_a_push_counts_the_rest_of_it(make_traced, own_tracer, settings):
    nodes = make_traced(3, settings, own_tracer)
    nodes["a"].publish("m", seed=1, size=6 * MIB)
    push = nodes["a"].start_push("m", max_rate=MIB)
    push.moving("b", MIB // 4)
    own_tracer.kill()
    own_tracer.start()
    client = own_tracer.client()

    def shown():
        return {(row["pid"], row["peer"]): row for row in json.loads(ctl(own_tracer, "top", "--once", "--json"))["rows"]
                if row["sync"] == push.sync}

    seen = nodes.wait(lambda: len(rows := shown()) == 4 and rows, "all links are seen again, at both ends")
    assert all(row["partial"] and row["expected"] is None for row in seen.values()), seen
    nodes.wait(lambda: all(shown()[link]["done"] > row["done"] for link, row in seen.items()), "bytes arrive on each")
    said = ctl(own_tracer, "trace", "explain", push.sync)
    assert said.count("without what its connections carried before they were counted") == 4, said
    push.committed()
    remember(nodes, push.sync, "bc")
    nodes.wait(lambda: len([row for row in client.ask("past") if row["sync"] == push.sync]) == 4, "all have ended it")
    assert [(history(node, push.sync)["traced"], node.own_head("m")["state"]) for node in nodes] == [(None, "serving")] * 3
    assert history(nodes["a"], push.sync)["untraced"] == 2
    assert "not over yet" not in (said := ctl(own_tracer, "trace", "explain", push.sync)), said
    nodes["a"].publish("m", seed=2)
    row = traced(nodes["a"], nodes["a"].push("m")["sync"])
    assert row["traced"] == row["bytes"], row


def test_one_that_comes_later_and_comes_again(make_nodes, own_tracer):
    """Agents look for it whenever something begins."""
    nodes = make_nodes(2, settings=PLAIN | {"node": {"trace": own_tracer.socket}})
    for seed, is_there in enumerate((False, True, False, True)):
        own_tracer.start() if is_there else own_tracer.kill()
        nodes["a"].publish("m", seed=seed)
        end = nodes["a"].push("m")
        nodes.settle("m", seed=seed)
        row = traced(nodes["a"], end["sync"]) if is_there else history(nodes["a"], end["sync"])
        assert (row["traced"], row["untraced"]) == ((row["bytes"], 0) if is_there else (None, 1)), row


def test_without_rights_it_says_all_or_nothing(make_nodes):
    """It cannot see the bytes of a connection between the last look at it and its end."""
    features.require("trace")
    with tracing.Tracer("--meter=diag") as tracer:
        nodes = make_nodes(3, settings=PLAIN | {"node": {"trace": tracer.socket}})
        for seed in 1, 2, 3:
            nodes["a"].publish("m", seed=seed)
            end = nodes["a"].push("m")
            remember(nodes, end["sync"], "bc")
            for name in "bc":
                row = history(nodes[name], end["sync"])
                assert row["traced"] in (None, row["bytes"]), row

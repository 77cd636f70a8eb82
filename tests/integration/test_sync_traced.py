"""What weightd-trace saw of a sync is what was planned, what engines counted and what TCP_INFO said, to the byte."""
import os
import signal

import features
import pytest
import tracing
from engine import planned, program, striped
from integration.test_sync_average_push import publish as publish_tensors
from integration.test_sync_reshard_push import LARGE, LAYOUTS, Model
from nodes import MIB, Cluster
from netns import Net

PLAIN = {"data": {"security": "none"}}
TLS = {"data": {"security": "tls"}}
GLOO = {"data": {"security": "none", "engine": "gloo"}}


@pytest.fixture
def tracer():
    features.require("bpf")
    with tracing.Tracer() as t:
        yield t


@pytest.fixture
def make_traced(make_nodes, tracer):
    """make_nodes() of nodes whose agents ask the tracer."""
    def make(n, settings=PLAIN, **kw):
        if settings == GLOO:
            features.require("gloo", available=program("gloo").exists())
        return make_nodes(n, settings=settings | {"node": {"trace": tracer.socket}}, **kw)

    return make


@pytest.fixture
def np():
    features.require("gloo", available=program("gloo").exists())
    features.require("numpy")
    import numpy
    return numpy


def history(node, sync):
    return next((row for row in node.history() if row["sync"] == sync), None)


def traced(node, sync):
    """Its row of the history, once weightd-trace has told what it has to: no sync waits for that."""
    def look():
        row = history(node, sync)
        return row and row["untraced"] == 0 and row

    return node.cluster.wait(look, lambda: f"{node} has heard of all that was traced of {sync}: {node.history()}")


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
        assert (row["traced"] or 0) == row["bytes"] == row["kernel"], row  # where nothing came, nothing was traced
        assert row["planned"] == row["payload"] and (row["payload"] == row["bytes"]) != tls, row
    for node in nodes:
        nodes.wait(lambda node=node: all(a == b for a, b in carried(node).values()), lambda node=node: carried(node))
    both = {node.name: carried(node) for node in nodes}
    for a in nodes:
        for b in nodes:
            assert a is b or both[a.name]["sent", b.name] == both[b.name]["received", a.name], both
    return rows[0]


def remember(nodes, sync, names):
    for name in names:
        nodes.wait(lambda name=name: history(nodes[name], sync), f"{name} remembers {sync}")


@pytest.mark.parametrize("settings", [PLAIN, TLS, GLOO], ids=("tcp", "tls", "gloo"))
def test_a_push(make_traced, settings):
    nodes = make_traced(4, settings)
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    remember(nodes, end["sync"], "bcd")
    row = assert_traced(nodes, end["sync"], settings == TLS)
    if settings != GLOO:
        assert row["planned"] == 3 * planned(nodes["a"].serves("m").size)


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
    nodes["a"].publish("m", seed=1, size=16 * MIB)
    push = nodes["a"].start_push("m", max_rate=4 * MIB)
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


@pytest.mark.parametrize("engine", ["tcp", "gloo"])
def test_what_is_sent_again_is_counted_once(authority, tracer, engine):
    """Each node in a network of its own, on a link that loses packets: its queue has room for next to none."""
    features.require("netns")
    if engine == "gloo":
        features.require("gloo", available=program("gloo").exists())
    with Net(2) as net:
        spaces = {name: net.nodes[i].name for i, name in enumerate("ab")}
        settings = {"data": {"trusted": "10.0.0.0/8", "security": "none", "engine": engine}, "node": {"trace": tracer.socket}}
        with Cluster(authority, 2, settings=settings, addresses=[node.address for node in net.nodes],
                     prefix=lambda node: ("nsenter", f"--net=/run/netns/{spaces[node.name]}", "--")) as nodes:
            nodes["a"].publish("m", seed=1, size=16 * MIB)
            net.congest(1)
            before = net.retransmitted(0)
            end = nodes["a"].push("m")
            assert net.retransmitted(0) > before
            remember(nodes, end["sync"], "b")
            assert_traced(nodes, end["sync"])

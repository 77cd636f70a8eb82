"""A slow link does not hold up the others, if the policy says so: nodes in namespaces of their own."""
import contextlib
import json

import pytest
from lib import features
from lib.netns import Net
from lib.nodes import MIB, Cluster, Control

SIZE = 32 * MIB
RATE = "8mbit"  # 34 s for all of it


@contextlib.contextmanager
def four(authority, engine="tcp"):
    features.require("netns")
    features.require("library")
    if engine == "gloo":
        features.require("gloo")
    with Net(4) as net:
        spaces = {name: net.nodes[i].name for i, name in enumerate("abcd")}
        with Cluster(authority, 4, settings={"data": {"trusted": "10.0.0.0/8", "security": "none", "engine": engine}},
                     addresses=[node.address for node in net.nodes],
                     prefix=lambda node: ("nsenter", f"--net=/run/netns/{spaces[node.name]}", "--")) as nodes:
            yield net, nodes


def row_of(nodes, push, name):
    return next(row for row in nodes["a"].status(push.sync) if row["node"] == name)


@pytest.mark.parametrize("policy, slow, engine", [
    ("quorum", "b", "tcp"), ("each", "c", "gloo"), pytest.param("quorum", "b", "gloo", marks=pytest.mark.long),
    pytest.param("each", "c", "tcp", marks=pytest.mark.long)])
def test_the_others_do_not_wait_for_it(authority, engine, policy, slow):
    with four(authority, engine) as (net, nodes):
        net.rate("abcd".index(slow), RATE)
        nodes["a"].publish("m", seed=1, size=SIZE)
        push = nodes["a"].start_push("m", policy=policy)
        for node in (nodes[name] for name in "bcd" if name != slow):
            nodes.wait(lambda node=node: node.serves("m"), f"{node}, which is fast, serves it")
        row = row_of(nodes, push, slow)
        assert not nodes[slow].serves("m") and row["done"] < row["expected"], f"{row}\n{nodes.story()}"
        net.rate("abcd".index(slow), None)
        end = push.committed()
        told = [e for e in push.events if e.get("event") == "phase"]
        assert [e for e in told if e["done"] > e["expected"]] == [], "others get more, outside of this epoch"
        assert {row["node"]: row["state"] for row in end["nodes"]} == dict.fromkeys("abcd", "committed"), nodes.story()
        nodes.settle("m", seed=1)


def test_nor_does_the_next_push_nor_who_asked(authority):
    with four(authority) as (net, nodes):
        net.rate(1, RATE)
        for seed in (1, 2):
            nodes["a"].publish("m", seed=seed, size=SIZE)
            push = json.loads(nodes["a"].ctl("sync", "push", "m", "--policy", "quorum", "--json", "-q").stdout)
            ends = {row["node"]: (row["state"] == "committed", row["why"]) for row in push["nodes"]}
            assert push["state"] == "committed" and ends == dict.fromkeys("acd", (True, None)) | \
                {"b": (False, "it is slow, and still gets it")}, f"{push}\n{nodes.story()}"
            assert all(nodes[name].has("m", seed) for name in "cd") and not nodes["b"].serves("m"), nodes.story()
        net.rate(1, None)
        nodes.settle("m", seed=2)
        [past] = [row for row in nodes["a"].history() if row["sync"] == push["sync"]]
        assert past["state"] == "committed", past


def test_nor_does_one_that_waits_for_its_turn(authority):
    with four(authority) as (net, nodes):
        net.rate(1, RATE)
        nodes["a"].publish("m", seed=1, size=SIZE)
        nodes["a"].start_push("m", policy="quorum")
        with Control(nodes["a"].control_socket) as control:
            nodes["a"].publish("m", seed=2, size=SIZE)
            control.say(op="push", buffer="m", version=0, max_rate=0, policy="quorum", wait=True, queue=True)
            assert control.hear()["event"] == "queued"
            for node in nodes["c"], nodes["d"]:
                nodes.wait(lambda node=node: node.has("m", 2), f"its turn came, and {node}, which is fast, serves it")
            assert not nodes["b"].serves("m"), nodes.story()
            net.rate(1, None)
            assert list(control.rest())[-1]["state"] == "committed"
        nodes.settle("m", seed=2)

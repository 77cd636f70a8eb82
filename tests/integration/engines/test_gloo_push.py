"""Nodes that push over Gloo: the same transaction, the same bytes, and a sentence where Gloo cannot be had."""
import os
import signal

import pytest
from lib import features
from lib.engine import planned, program
from lib.nodes import ABSENCE_S, MIB, SIZE, digest_of

GLOO = {"data": {"security": "none", "engine": "gloo"}}


@pytest.fixture(autouse=True)
def needs_the_engine():
    features.require("gloo", available=program("gloo").exists())


@pytest.mark.parametrize("n", [1, 3])
def test_a_push_arrives_bit_for_bit_and_its_bytes_are_the_planned_ones(make_nodes, n):
    nodes = make_nodes(n + 1, settings=GLOO)
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    assert end["state"] == "committed", end
    served = nodes.assert_equal("m")
    assert served.sha256 == digest_of(1, SIZE)
    assert end["planned"] == end["payload"] == end["bytes"] == end["kernel"] > n * served.size, end


def test_those_who_receive_follow_the_publisher(make_nodes):
    nodes = make_nodes(3, settings={"data": {"security": "none"}}, start=False)
    nodes.configure(nodes["a"], data={"engine": "gloo"})
    for node in nodes:
        node.start()
    nodes.wait_connected()
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    assert end["state"] == "committed", end
    assert end["bytes"] > 2 * planned(nodes["a"].serves("m").size), end  # planned for tcp, which costs less
    nodes.settle("m", seed=1)


def test_what_one_node_fetches_goes_over_tcp(make_nodes):
    nodes = make_nodes(3, absent="c", settings=GLOO | {"limits": {"prepare-timeout": ABSENCE_S}})
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m", policy="quorum")
    nodes["c"].start()
    nodes.settle("m", seed=1)
    done = nodes.wait(lambda: [row for row in nodes["c"].history() if row["state"] == "committed"], "c fetched it")
    assert [row["kind"] for row in done] == ["repair"]
    assert done[0]["planned"] == done[0]["bytes"] == done[0]["kernel"] == planned(nodes["c"].serves("m").size), done


def test_an_engine_that_is_killed_costs_an_epoch(make_nodes):
    nodes = make_nodes(3, settings=GLOO)
    nodes["a"].publish("m", seed=1)
    push = nodes["a"].start_push("m", max_rate=MIB)
    engine = nodes.wait(lambda: any(row["done"] for row in nodes["a"].status(push.sync)) and
                        nodes["b"].children("weightd-sync-gloo"), "bytes move")[0]
    os.kill(engine, signal.SIGKILL)
    end = push.end()
    assert end["state"] == "committed", end
    nodes.settle("m", seed=1)


def test_a_member_that_wants_tls_refuses_with_the_way_out(make_nodes):
    nodes = make_nodes(2, settings=GLOO, start=False)
    nodes.configure(nodes["b"], data={"security": "tls", "engine": "tcp"})
    for node in nodes:
        node.start()
    nodes.wait_connected()
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].start_push("m").end()
    assert end["state"] == "failed" and 'use the engine "tcp"' in end["error"], end

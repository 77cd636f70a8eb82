"""Buffers of strangers on the nodes of a sync: the agents neither write nor base anything on them, and say so."""
import json
import os

import pytest
from lib.child import run_as
from lib.nodes import ABSENCE_S, until
from lib.scene import publish
from lib.wire import Wire

NONE = {"data": {"security": "none"}}
MALLORY = 12345


@pytest.fixture(autouse=True)
def root_only(require):
    require("root")


def take(node, name="m"):
    """A stranger is first with the name on this node, and lets everybody read and write."""
    os.chmod(node.daemon.socket, 0o666)

    def act():
        with Wire(node.daemon.socket) as w:
            publish(w, name, b"evil", mode=0o666)

    run_as(MALLORY, act)


def owner_and_version(node, name="m"):
    with Wire(node.daemon.socket) as w:
        record = w.records()[name]
    return record.uid, record.version


WHY = f"'m' on host belongs to uid {MALLORY}, not to uid 0: somebody else made it on this node, and an agent " \
    "publishes in buffers of its own user alone; let the agent have it (weightctl chown 0 m), or remove it (weightctl rm)"


def test_a_push_to_a_strangers_buffer_is_a_failure_of_that_node(make_nodes):
    nodes = make_nodes(3, settings=NONE, group={"policy": "quorum"})
    take(nodes["b"])
    nodes["a"].publish("m", seed=1)
    pushed = json.loads(nodes["a"].ctl("sync", "push", "m", "--json", "-q").stdout)
    assert {row["node"]: (row["state"], row["why"]) for row in pushed["nodes"]} == {
        "a": ("committed", None), "b": ("failed", f"b refused: {WHY}, while it prepared"), "c": ("committed", None)}
    assert owner_and_version(nodes["b"]) == (MALLORY, 1) and nodes["c"].has("m", seed=1)


def test_a_push_to_all_nodes_fails_by_name_and_goes_once_the_name_is_free(make_nodes):
    nodes = make_nodes(2, settings=NONE)
    take(nodes["b"])
    nodes["a"].publish("m", seed=1)
    refused = nodes["a"].ctl("sync", "push", "m", check=False)
    assert refused.returncode == 1 and f"b refused: {WHY}" in refused.stderr, refused.stderr
    assert owner_and_version(nodes["b"]) == (MALLORY, 1)
    nodes["b"].daemon.ctl("chown", "0", "m")
    nodes["a"].push("m")
    nodes.settle("m", seed=1)
    assert owner_and_version(nodes["b"])[0] == 0


def test_a_node_that_was_absent_does_not_catch_up_in_a_strangers_buffer(make_nodes):
    nodes = make_nodes(3, absent="c", settings=NONE | {"limits": {"prepare-timeout": ABSENCE_S}}, group={"policy": "quorum"})
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    take(nodes["c"])
    nodes["c"].start()
    until(lambda: WHY in nodes["c"].log, lambda: f"the reason is in the log: {nodes['c'].log}")
    assert owner_and_version(nodes["c"]) == (MALLORY, 1)
    nodes["c"].daemon.ctl("chown", "0", "m")
    nodes["c"].restart()
    nodes.settle("m", seed=1)

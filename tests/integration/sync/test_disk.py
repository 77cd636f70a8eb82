"""
A member with a full disk: it refuses before bytes move, or keeps those that it has. And one with a commit log that ends
in half a record.
"""
import contextlib
import pathlib

import pytest
from lib import features
from lib.failures import own_disk
from lib.nodes import MIB, Cluster

SIZE = 16 * MIB


@pytest.fixture
def nodes(authority):
    features.require("netns")  # it includes the right to mount
    features.require("library")
    with Cluster(authority, 3, prefix=lambda node: own_disk(node.folder / "state") if node.name == "c" else ()) as nodes:
        yield nodes


def filler(node):
    return pathlib.Path(f"/proc/{node.proc.pid}/root{node.folder}/state/filler")


def fill(node):
    with contextlib.suppress(OSError), open(filler(node), "wb", buffering=0) as f:
        while True:
            f.write(bytes(4096))


def received(node):
    """The bytes that the engines of a node received, in epochs that are over."""
    said = node.ctl("sync", "metrics").stdout
    return sum(float(line.split()[-1]) for line in said.splitlines() if line.startswith("weightd_sync_received_bytes_total{"))


def test_it_is_told_before_bytes_move(nodes):
    nodes["a"].publish("m", seed=1, size=SIZE)
    fill(nodes["c"])
    why = nodes["a"].start_push("m", policy="all").failed()
    assert "c refused: its commit log cannot be written to " in why and "No space left on device" in why, why
    assert received(nodes["b"]) == received(nodes["c"]) == 0, nodes.story()
    filler(nodes["c"]).unlink()
    nodes["a"].push("m")
    nodes.settle("m", seed=1)


def test_what_was_verified_is_served_without_another_byte(nodes):
    nodes["a"].publish("m", seed=1, size=SIZE)
    push = nodes["a"].start_push("m", policy="all", max_rate=2 * MIB)
    push.moving("c")
    fill(nodes["c"])
    end = push.committed()
    assert {row["node"]: row["state"] for row in end["nodes"]} == {"a": "committed", "b": "committed", "c": "unknown"}, end
    had = received(nodes["c"])
    assert had >= SIZE and not nodes["c"].serves("m"), nodes.story()
    nodes["a"].kill()
    nodes["b"].kill()
    filler(nodes["c"]).unlink()
    nodes.wait(lambda: nodes["c"].has("m", seed=1), "c serves it")
    assert received(nodes["c"]) == had


def test_what_a_loss_of_power_left_of_a_record_is_told_and_left_out(make_nodes):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    head = nodes["b"].head("m")
    nodes["b"].stop()
    record = nodes["b"].folder / "state/record"
    record.write_bytes(record.read_bytes() + b"torn")
    nodes["b"].start()
    assert "the last 4 bytes of the record in" in nodes["b"].log
    assert nodes["b"].head("m") == head
    nodes["a"].publish("m", seed=2)
    nodes["a"].push("m")
    nodes["b"].restart()
    assert nodes["b"].head("m") != head
    assert nodes["b"].log.count("were not written whole") == 1

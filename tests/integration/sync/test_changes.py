"""A version that resembles the one before: only the changed leaves travel, and every bit of it arrives."""
import hashlib
import os
import signal

import pytest
import weightd
from lib.engine import planned
from lib.nodes import ABSENCE_S, MIB, content, layout_of

LEAVES = {"data": {"patches": "no"}}
NONE = {"data": {"security": "none", "patches": "no"}}
SIZE = 6 * MIB
COUNTS = "planned", "payload", "bytes", "kernel", "size", "changed"


def publish(node, changes=(), size=SIZE, tensors=3):
    """Publishes a version that differs from the plain one in leaf i by a byte n, for each (i, n). Returns its bytes."""
    with weightd.create("m", layout_of(size, tensors), socket=node.daemon.socket, new_layout=True) as writer:
        data = bytearray(content(1, 2 * SIZE)[:writer.nbytes])
        for leaf, n in changes:
            data[leaf * MIB + 5] ^= n
        writer.write(0, data)
        writer.publish()
    return bytes(data)


def assert_all_serve(nodes, data):
    served = nodes.assert_equal("m", [node.name for node in nodes.running()])
    assert served.sha256 == hashlib.sha256(data).hexdigest(), nodes.story()


def push(nodes, data, name="a"):
    """Pushes what was just published, and sees it everywhere. The end."""
    end = nodes[name].push("m")
    assert_all_serve(nodes, data)
    return end


def test_bytes_on_the_wire_are_those_of_leaves_that_changed(make_nodes):
    nodes = make_nodes(3, settings=NONE)
    whole = publish(nodes["a"])
    end = push(nodes, whole)
    assert (end["changed"], end["bytes"]) == (len(whole), 2 * planned(len(whole))), end
    for changes, n_leaves in (([(1, 1)], 1), ([(1, 2), (2, 2), (4, 1)], 3), ([(1, 2), (2, 2), (4, 1)], 0)):
        end = push(nodes, publish(nodes["a"], changes))
        wire = 2 * planned(n_leaves * MIB) if n_leaves else 0
        assert [end[key] for key in COUNTS] == [wire] * 4 + [len(whole), n_leaves * MIB], end
        for node in nodes:
            row = nodes.wait(lambda node=node: [row for row in node.history() if row["sync"] == end["sync"]],
                             f"{node} remembers")[0]
            assert (row["size"], row["changed"]) == (len(whole), n_leaves * MIB), row
    nodes["b"].daemon.ctl("verify", "m")


def test_the_size_the_layout_and_the_publisher_may_change(make_nodes):
    nodes = make_nodes(3, settings=LEAVES, publishers="ab")
    before = publish(nodes["a"])
    nodes["a"].push("m")
    for name, size, tensors in (("b", SIZE + 2 * MIB, 5), ("a", SIZE - 2 * MIB, 2)):
        data = publish(nodes[name], [(1, tensors)], size, tensors)
        end = push(nodes, data, name)
        leaves = [[whole[at:at + MIB] for at in range(0, len(whole), MIB)] for whole in (before, data)]
        changed = sum(len(new) for i, new in enumerate(leaves[1]) if leaves[0][i:i + 1] != [new])
        assert end["changed"] == changed < len(data) / 2, (end, len(before), len(data))
        assert end["planned"] == end["payload"] == 2 * planned(changed), end
        assert 0 < end["bytes"] - end["payload"] < MIB // 4, end  # the overhead of TLS
        before = data


def test_every_node_gets_the_layout_of_the_publisher_also_where_its_own_had_another_order(make_nodes):
    nodes = make_nodes(2, settings=NONE)
    theirs = weightd.Layout()
    for entry in reversed(list(layout_of(SIZE, 3))):
        theirs.add(entry.name, entry.dtype, entry.shape, entry.role, entry.unit)
    socket = nodes["b"].daemon.socket
    weightd.create("m", theirs, socket=socket).publish()
    reader = weightd.attach("m", socket=socket)
    push(nodes, publish(nodes["a"]))
    with pytest.raises(weightd.LayoutMismatch, match="has the tensors of version 1 in another order; attach anew"):
        reader.swap()
    with reader.refresh() as new:
        assert new.layout_hash.hex() == nodes["a"].serves("m").layout
        weightd.create("m", theirs, socket=socket).publish()
        assert new.swap(), "what is written there follows the pushed version"


def test_who_was_away_fetches_what_changed_meanwhile(make_nodes):
    settings = NONE | {"limits": {"prepare-timeout": ABSENCE_S}}
    nodes = make_nodes(3, settings=settings, group={"policy": "quorum"})
    publish(nodes["a"])
    nodes["a"].push("m")
    nodes["c"].kill()
    data = publish(nodes["a"], [(3, 1)])
    nodes["a"].push("m")
    nodes["c"].start()
    nodes.wait(lambda: nodes["c"].serves("m").sha256 == hashlib.sha256(data).hexdigest(), "c caught up")
    # One that asked too early, when others were still busy, may have failed before it.
    done = "repair", "committed"
    rows = nodes.wait(lambda: [row for row in nodes["c"].history() if (row["kind"], row["state"]) == done], "c remembers")
    assert [[row[key] for key in COUNTS] for row in rows] == [[planned(MIB)] * 4 + [len(data), MIB]], rows


def test_a_base_that_is_lost_meanwhile_costs_time_alone(make_nodes):
    nodes = make_nodes(3, settings=LEAVES)
    publish(nodes["a"])
    nodes["a"].push("m")
    nodes["b"].freeze()  # or it may request a repair before the push, which would refuse that
    nodes["b"].empty()
    data = publish(nodes["a"], [(0, 1)])
    running = nodes["a"].start_push("m")
    nodes.wait(lambda: any(row["node"] == "b" and row["phase"] == "prepare" for row in nodes["a"].status(running.sync)),
               "b is asked")
    nodes["b"].thaw()
    running.committed()
    assert_all_serve(nodes, data)


def test_an_epoch_that_broke_is_resumed_on_top_of_the_base(make_nodes):
    nodes = make_nodes(3, settings=LEAVES)
    publish(nodes["a"])
    nodes["a"].push("m")
    data = publish(nodes["a"], [(i, 1) for i in (0, 1, 3, 4)])
    running = nodes["a"].start_push("m", max_rate=MIB // 2)
    had = min(running.moving(name, MIB)["done"] for name in "bc")
    os.kill(nodes["b"].engine(), signal.SIGKILL)
    end = running.committed()
    assert_all_serve(nodes, data)
    assert end["changed"] == 4 * MIB, end
    first, *_, last = [event for event in running.events if event.get("event") == "plan"]
    assert (first["changed"], first["total"]) == (4 * MIB, 2 * 4 * MIB), first
    assert 0 < last["total"] <= 2 * (4 * MIB - had), (last, had)  # nothing of leaves that all have
    assert end["planned"] == end["payload"] == last["planned"] and end["bytes"] == end["kernel"], (end, last)

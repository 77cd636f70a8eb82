"""A version with some changed elements travels as a patch, which makes every bit of it, from whichever version it begins."""
import hashlib
import json
import random

import pytest
import weightd
from lib import features
from lib.engine import planned
from lib.nodes import ABSENCE_S, MIB, content, hostile_programs, layout_of

TLS = {}
NONE = {"data": {"security": "none"}}
GLOO = {"data": {"security": "none", "engine": "gloo"}}
SIZE, BLOCK = 6 * MIB, 128 * 1024
COUNTS = "planned", "payload", "bytes", "kernel"


class Model:
    """BF16 elements that change from version to version, a few or many, and what that costs."""

    def __init__(self, node, size=SIZE, tensors=3):
        self.node, self.layout = node, layout_of(size, tensors)
        self.data = bytearray(content(1, self.layout.nbytes))
        self.random = random.Random(5)
        self.before = bytes(self.data)

    def change(self, share=0.02, begin=0, end=None):
        end = end or len(self.data)
        for i in self.random.sample(range(begin // 2, end // 2), int((end - begin) // 2 * share)):
            self.data[2 * i] ^= 1 + self.random.randrange(255)

    def publish(self, **options):
        self.before = bytes(self.data)
        with weightd.create("m", self.layout, socket=self.node.daemon.socket, new_layout=True, **options) as writer:
            assert writer.nbytes == len(self.data)
            writer.write(0, self.data)
            writer.publish()
        return self.before

    def patch(self, *befores):
        """Bytes of the patch from the first of these versions, if each element that differs is one of few in its block."""
        places = {i // 2 for before in befores for i in range(0, len(self.data), 2) if before[i] != self.data[i]}
        return 128 + 16 * len({2 * i // BLOCK for i in places}) + 4 * len(places)

    def sha256(self):
        return hashlib.sha256(self.data).hexdigest()


def push(nodes, model, names=None):
    end = nodes["a"].push("m")
    served = nodes.assert_equal("m", names or [node.name for node in nodes.running()])
    assert served.sha256 == model.sha256(), nodes.story()
    return end


def row_of(nodes, name, sync):
    return nodes.wait(lambda: [row for row in nodes[name].history() if row["sync"] == sync], f"{name} remembers")[0]


@pytest.mark.parametrize("settings", [NONE, GLOO, TLS], ids=["tcp", "gloo", "tls"])
def test_two_in_a_hundred_elements_move_less_than_six_in_a_hundred_bytes(make_nodes, settings):
    if settings is GLOO:
        features.require("gloo")
    nodes = make_nodes(3, settings=settings)
    model = Model(nodes["a"])
    model.publish()
    assert push(nodes, model)["by"] == "full"
    for _ in range(2):
        before = bytes(model.data)
        model.change()
        patch = model.patch(before)
        model.publish()
        end = push(nodes, model)
        assert (end["by"], end["patch"], end["changed"]) == ("patch", patch, len(before)), end
        assert end["differ"] == len(before) // 100 * 2, end
        assert end["bytes"] == end["kernel"] <= 2 * 0.06 * len(before), end
        assert end["planned"] == end["payload"], end
        assert settings is GLOO or end["planned"] == 2 * planned(patch), end
        assert (end["payload"] == end["bytes"]) == (settings is not TLS), end
        for name in "bc":
            row = row_of(nodes, name, end["sync"])
            assert (row["by"], row["patch"], row["bytes"]) == ("patch", patch, end["bytes"] // 2), row


def test_changed_tensors_move_alone_and_frozen_ones_not_at_all(make_nodes):
    nodes = make_nodes(3, settings=NONE)
    model = Model(nodes["a"], size=25 * MIB, tensors=100)  # a quarter of a MiB each
    model.publish()
    push(nodes, model)
    tensors = [next(t for t in model.layout if t.name == f"blocks.{i}.weight") for i in (7, 40, 99)]
    before = bytes(model.data)
    for tensor in tensors:
        model.data[tensor.offset:tensor.offset + tensor.nbytes] = content(tensor.offset, tensor.nbytes)
    model.publish()
    end = push(nodes, model)
    assert len(before) == 25 * MIB and all(t.nbytes == 2 * BLOCK and t.offset % BLOCK == 0 for t in tensors), tensors
    assert (end["by"], end["patch"]) == ("patch", 128 + 3 * 2 * (16 + BLOCK)), end
    assert [end[key] for key in COUNTS] == [2 * planned(end["patch"])] * 4, end
    model.publish()  # the same once more
    end = push(nodes, model)
    assert (end["bytes"], end["changed"], end["patch"]) == (0, 0, None), end


def test_a_plan_is_what_the_push_then_sends(make_nodes):
    nodes = make_nodes(3, settings=NONE)
    model = Model(nodes["a"])
    model.publish()
    push(nodes, model)
    model.change()
    model.publish()
    said = nodes["a"].ctl("sync", "push", "m", "--dry-run").stdout
    plan = json.loads(nodes["a"].ctl("sync", "push", "m", "--dry-run", "--json").stdout)
    assert "as a patch to each of 2 nodes" in said and plan["by"] == "patch", (said, plan)
    end = push(nodes, model)
    assert [end[key] for key in COUNTS] == [plan["planned"]] * 4, (end, plan)
    done = nodes["a"].ctl("sync", "status", end["sync"], "-o", "NODE,BY,DENSITY,SHARE", "--noheadings").stdout.split()
    assert done == ["a", "patch", "2.0%", "4.0%", "b", "patch", "2.0%", "4.0%", "c", "patch", "2.0%", "4.0%"]


def test_who_missed_pushes_fetches_them_in_one_patch(make_nodes):
    nodes = make_nodes(3, settings=NONE | {"limits": {"prepare-timeout": ABSENCE_S}}, group={"policy": "quorum"})
    model = Model(nodes["a"])
    befores = [model.publish()]
    push(nodes, model)
    nodes["c"].kill()
    for _ in range(2):
        model.change()
        befores.append(model.publish())
        push(nodes, model)
    nodes["b"].kill()  # it has its leaves, and no patches
    nodes["c"].start()
    nodes.wait(lambda: nodes["c"].serves("m").sha256 == model.sha256(), "c caught up")
    done = "repair", "committed"
    row = nodes.wait(lambda: [row for row in nodes["c"].history() if (row["kind"], row["state"]) == done], "c remembers")[0]
    patch = model.patch(*befores)
    assert (row["by"], row["patch"]) == ("patch", patch), row
    assert [row[key] for key in COUNTS] == [planned(patch)] * 4, row


def test_who_missed_as_many_as_are_kept_fetches_them_in_one_patch(make_nodes):
    nodes = make_nodes(3, settings={"limits": {"prepare-timeout": ABSENCE_S}}, group={"policy": "quorum"})
    model = Model(nodes["a"])
    befores = [model.publish()]
    push(nodes, model)
    nodes["c"].kill()
    for _ in range(8):
        model.change(share=0.001)
        befores.append(model.publish())
        push(nodes, model)
    nodes["b"].kill()  # it has no patches
    nodes["c"].start()
    nodes.wait(lambda: nodes["c"].serves("m").sha256 == model.sha256(), "c caught up")
    done = "repair", "committed"
    row = nodes.wait(lambda: [row for row in nodes["c"].history() if (row["kind"], row["state"]) == done], "c remembers")[0]
    patch = model.patch(*befores)
    assert (row["by"], row["patch"], row["planned"], row["payload"]) == ("patch", patch, *[planned(patch)] * 2), row


def test_memory_that_is_used_again_is_not_kept(make_nodes):
    nodes = make_nodes(2, settings=NONE)
    model = Model(nodes["a"])
    for by in "full", "leaves", "leaves":
        model.publish(reusable=True)
        assert push(nodes, model)["by"] == by
        model.change(begin=0, end=MIB)


@pytest.mark.parametrize("what", ["wire", "memory"])
def test_a_patch_that_came_wrong_is_made_good(make_nodes, tmp_path, what):
    programs = hostile_programs(tmp_path / "hostile")
    nodes = make_nodes(3, settings=NONE, programs={"c": programs})
    model = Model(nodes["a"], size=2 * SIZE)
    model.publish()
    push(nodes, model)
    path = programs / "hostile.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {what: 1}))
    model.change()
    model.publish()
    end = push(nodes, model)
    assert (tmp_path / f"hostile/{what}-0").exists(), f"nothing was changed\n{nodes.story()}"
    row = row_of(nodes, "c", end["sync"])
    assert [row[key] for key in COUNTS] == [planned(end["patch"]) + planned(MIB)] * 4, row  # the leaf that the byte was of


@pytest.mark.parametrize("kept", [True, False], ids=["patches", "no-patches"])
def test_the_version_pushed_last_is_kept_for_the_next(make_nodes, kept):
    nodes = make_nodes(2, settings=NONE if kept else {"data": NONE["data"] | {"patches": "no"}})
    model = Model(nodes["a"])
    model.publish()
    push(nodes, model)
    for _ in range(4):  # more than weightd keeps for later readers
        model.change()
        model.publish()
    end = push(nodes, model)
    assert end["by"] == ("patch" if kept else "full"), end
    nodes.wait(lambda: len(nodes["a"].children("weightd-sync-local")) == kept, "a lends what it pushed last")
    nodes["a"].daemon.ctl("rm", "m")
    nodes.wait(lambda: not nodes["a"].children("weightd-sync-local"), "a gave it back")


def test_after_a_restart_of_the_agent_all_travels_once(make_nodes):
    nodes = make_nodes(2, settings=NONE)
    model = Model(nodes["a"])
    model.publish()
    push(nodes, model)
    nodes["a"].restart()
    nodes.wait_connected()
    for way in ("full", "patch"):
        model.change()
        model.publish()
        assert push(nodes, model)["by"] == way

"""Nodes that reshard: shards of a model on some become others on others, at all of them or at none."""
import json
import os
import signal
import time

import pytest
from integration.engines.test_exchange import FSDP_TO_TP, REPLICATED, UNEVEN, Case, cut
from lib import features
from lib.engine import program
from lib.gpu_nodes import read, write
from lib.nodes import ABSENCE_S, IMPATIENT, hostile_programs

PLAIN = {"data": {"security": "none"}}
CHUNK = 1 << 20
LARGE = [((1200, 400), 0, 1), ((640, 900), 1, 1), ((70, 3), 0, 0), ((500,), REPLICATED, REPLICATED)]
LAYOUTS = {"4-to-2": ("abcd", "ef"), "2-to-4": ("ab", "cdef"), "gather": ("abc", "d"), "scatter": ("a", "bcd"),
           "to-some-of-them": ("abcd", "ca")}


@pytest.fixture(autouse=True)
def np():
    features.require("gloo", available=program("gloo").exists())
    features.require("numpy")
    import numpy
    return numpy


def layout_of(tensors, side, ranks, rank):
    import weightd
    layout = weightd.Layout(256)
    for i, (shape, *dims) in enumerate(tensors):
        shape = list(shape)
        if dims[side] is not REPLICATED:
            begin, end = cut(shape[dims[side]], ranks)[rank]
            shape[dims[side]] = end - begin
        layout.add(f"t.{i}", "F32", shape)
    return layout


def rules(tensors):
    def word(dim):
        return "replicated" if dim is REPLICATED else dim
    return {"split": [{"tensors": f"t.{i}", "from": word(a), "to": word(b)} for i, (_, a, b) in enumerate(tensors)]}


class Model:
    """Tensors in shards on `sources`, to be in others on `targets`: names of nodes, by rank."""

    def __init__(self, np, nodes, tensors, sources, targets, buffer="shard"):
        self.nodes, self.tensors, self.sources, self.targets, self.buffer = nodes, tensors, sources, targets, buffer
        self.order = list(dict.fromkeys(sources + targets))
        self.case = Case(np, tensors, [self.order.index(n) for n in sources], [self.order.index(n) for n in targets])
        self.split = nodes.folder / "split.json"
        self.split.write_text(json.dumps(rules(tensors)))
        for rank, name in enumerate(sources):
            write(nodes[name], buffer, layout_of(tensors, 0, len(sources), rank),
                    self.case.sources[self.order.index(name)])

    def args(self, *args, verb="reshard", into="new"):
        return ("sync", verb, "--split", self.split, "--ranks", " ".join(self.sources), "--onto", " ".join(self.targets),
                "--into", into, *args, self.buffer)

    def reshard(self, *args, on="a", check=True, **kw):
        return self.nodes[on].ctl(*self.args(*args, **kw), check=check)

    def expected(self, name):
        return self.case.expected[self.order.index(name)]

    def assert_there(self):
        """Checks for numpy's result at each target and nowhere else, and for unchanged sources."""
        for node in self.nodes:
            assert read(node, "new") == (self.expected(node.name) if node.name in self.targets else None), node
        self.assert_sources()

    def assert_sources(self):
        for name in self.sources:
            assert read(self.nodes[name], self.buffer) == self.case.sources[self.order.index(name)], name

    def assert_untouched(self):
        self.assert_sources()
        assert not any(read(node, "new") for node in self.nodes)

    def total(self):
        """Bytes over wires."""
        return sum(self.case.n_bytes(link) for link in self.case.links if link[0] != link[1])


def counted(node, way, peer, whats=("planned_", "", "kernel_")):
    """Bytes that were planned, counted, and the kernel's, by the metrics of a node."""
    values = {family["metric"]: sample["value"] for family in node.rows("metrics", "metric")
              for sample in family["samples"] if sample["labels"].get("peer") == peer}
    return [values[f"weightd_sync_{way}_{what}bytes"] for what in whats]


def refusal(done):
    assert done.returncode == 1, done
    return done.stderr


TENSORS = {"fsdp-to-tp": FSDP_TO_TP, "uneven": UNEVEN, "large": LARGE}
OFTEN = ("fsdp-to-tp", "4-to-2"), ("uneven", "2-to-4"), ("large", "gather"), ("uneven", "scatter"), ("large", "to-some-of-them")


@pytest.mark.parametrize("tensors, kind", [
    pytest.param(tensors, kind, id=f"{name}-{kind}", marks=[] if (name, kind) in OFTEN else [pytest.mark.long])
    for name, tensors in TENSORS.items() for kind in LAYOUTS])
def test_shards_become_what_numpy_makes_of_them(make_nodes, np, tensors, kind):
    sources, targets = LAYOUTS[kind]
    nodes = make_nodes(len(set(sources + targets)), settings=PLAIN)
    m = Model(np, nodes, tensors, sources, targets)
    end = json.loads(m.reshard("--json").stdout)
    m.assert_there()
    assert end["state"] == "committed" and {row["node"]: row["state"] for row in end["nodes"]} == \
        {name: "committed" for name in m.order}, end
    assert {row["node"] for row in end["nodes"] if row["version"]} == set(targets), end
    assert end["planned"] == end["bytes"] == end["kernel"] > m.total(), end
    assert end["size"] == sum(len(m.expected(name)) for name in targets), end


def test_planned_counted_and_kernels_bytes_are_equal_on_every_link(make_nodes, np):
    nodes = make_nodes(4, settings=PLAIN)
    m = Model(np, nodes, LARGE, "abcd", "ca")
    plan = json.loads(m.reshard("--dry-run", "--json").stdout)
    m.assert_untouched()
    links = {(link["from"], link["to"]): link for link in plan["links"]}
    assert {(m.order.index(a), m.order.index(b)): link["bytes"] for (a, b), link in links.items()} == \
        {link: m.case.n_bytes(link) for link in m.case.links if link[0] != link[1]}
    assert (plan["schedule"], plan["total"]) == ("shards", m.total())
    end = json.loads(m.reshard("--json").stdout)
    assert end["planned"] == end["kernel"] == plan["planned"] == sum(link["planned"] for link in plan["links"])
    for node in nodes:
        row = nodes.wait(lambda node=node: node.history()[:1], f"{node} has seen the end")[0]
        incoming = sum(link["planned"] for (_, b), link in links.items() if b == node.name)
        assert (row["kind"], row["state"]) == ("reshard", "committed"), row
        assert node.name == "a" or row["planned"] == row["bytes"] == row["kernel"] == incoming, (row, incoming)
        for way, ours, other in (("received", 1, 0), ("sent", 0, 1)):
            for link, planned in links.items():
                if link[ours] == node.name:
                    assert counted(node, way, link[other]) == [planned["planned"]] * 3, (node, way, link)
    assert counted(nodes["b"], "sent", "d") == [0] * 3  # these have no link with each other


def test_gather_and_scatter_are_verbs_of_their_own(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN, group={"policy": "quorum"})
    m = Model(np, nodes, FSDP_TO_TP, "abc", "b")
    said = m.reshard(verb="gather").stdout
    assert said.startswith("new on 3 of 3 nodes in ") and said.endswith(", 1 shard out of 3\n"), said
    m.assert_there()
    done = m.reshard(verb="scatter", check=False)
    assert done.returncode == 2 and "'sync scatter' is from one node" in done.stderr, done
    m.targets = "ab"
    done = m.reshard(verb="gather", check=False)
    assert done.returncode == 2 and "'sync gather' is onto one node" in done.stderr, done


def test_each_rank_may_call_its_shard_as_it_likes_and_name_a_version(make_nodes, np):
    nodes = make_nodes(2, settings=PLAIN)
    m = Model(np, nodes, FSDP_TO_TP, "ab", "ba", buffer="w-0")
    write(nodes["a"], "w-0", layout_of(FSDP_TO_TP, 0, 2, 0), bytes(len(m.case.sources[0])))
    write(nodes["b"], "w-1", layout_of(FSDP_TO_TP, 0, 2, 1), m.case.sources[1])
    nodes["a"].ctl(*m.args()[:-1], "w-0@1", "w-1")
    for name in "ab":
        assert read(nodes[name], "new") == m.expected(name)


def test_shards_may_become_others_of_their_own_name(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    m = Model(np, nodes, UNEVEN, "abc", "ca")
    m.reshard(into="shard")
    assert [read(nodes[name], "shard") for name in "abc"] == [m.expected("a"), m.case.sources[1], m.expected("c")]


def test_it_can_be_done_again_and_readers_see_the_next_version(make_nodes, np):
    import weightd
    nodes = make_nodes(3, settings=PLAIN)
    m = Model(np, nodes, LARGE, "ab", "ac")
    m.reshard()
    with weightd.attach("new", socket=nodes["c"].daemon.socket) as reader:
        before = reader.version
        m.reshard(on="a")
        assert reader.latest() == before + 1
    m.assert_there()
    assert not nodes["c"].own_head("new"), "it is no version of the group that others would fetch"
    assert [row["state"] for row in nodes["a"].history()[:2]] == ["committed"] * 2


def test_people_read_it_in_80_columns(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    m = Model(np, nodes, FSDP_TO_TP, "ab", "bc")
    text = m.reshard("--dry-run").stdout
    assert max(map(len, text.splitlines())) <= 80 and text.splitlines()[-1].startswith("new: "), text
    assert text.endswith(" stay on their nodes; nothing was sent\n"), text
    m.reshard()
    history = nodes["a"].ctl("sync", "history").stdout
    assert "reshard" in history and max(map(len, history.splitlines())) <= 80, history


# --- Refusals -------------------------------------------------------------------------------------------


def test_what_does_not_fit_together_is_told_by_name(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    m = Model(np, nodes, FSDP_TO_TP, "ab", "c")
    write(nodes["b"], "shard", layout_of(UNEVEN, 0, 2, 1), m.case.sources[1][:1] * layout_of(UNEVEN, 0, 2, 1).nbytes)
    said = refusal(m.reshard(check=False))
    assert "rank 1 has 6 tensors, rank 0 has 4" in said and "every node still serves what it had" in said, said
    write(nodes["b"], "shard", layout_of(FSDP_TO_TP, 0, 2, 1), m.case.sources[1])
    m.split.write_text(json.dumps({"split": [{"tensors": "x", "dim": 0}]}))
    assert "no rule of the split matches tensor 't.0'" in refusal(m.reshard(check=False))
    assert not any(read(node, "new") for node in nodes)


def test_who_has_no_shard_is_named(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    m = Model(np, nodes, FSDP_TO_TP, "ab", "c")
    nodes["b"].daemon.ctl("rm", "shard")
    said = refusal(m.reshard(check=False))
    assert "b refused: " in said and "shard" in said, said


def test_only_what_the_group_has_may_be_asked_of_its_members(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN, group={"buffers": "[!s]*"})
    m = Model(np, nodes, FSDP_TO_TP, "ab", "c")
    assert "the group 'main' has no buffer 'shard'" in refusal(m.reshard("--group", "main", check=False))
    nodes.configure(nodes["a"], groups={"main": nodes.groups["main"] | {"buffers": "*"}})
    nodes["a"].restart()
    nodes.wait_connected()
    assert "b has no group 'main' with the buffer 'shard'" in refusal(m.reshard(check=False)), "nor does b believe it"
    assert "b is no publisher" in refusal(m.reshard(on="b", check=False))
    m.sources = "xb"
    assert "x is no member of the group 'main'" in refusal(m.reshard(check=False))
    m.sources, m.targets = "b", "c"
    assert "a has none of the shards and gets none" in refusal(m.reshard(check=False))


def test_a_version_of_the_group_is_not_made_shards_of(make_nodes, np):
    nodes = make_nodes(2, settings=PLAIN)
    m = Model(np, nodes, FSDP_TO_TP, "ab", "b")
    nodes["a"].publish("new", seed=1)
    nodes["a"].push("new")
    nodes.settle("new", seed=1)
    assert "'new' is a version of the group 'main', the same on all nodes" in refusal(m.reshard(check=False))
    nodes.settle("new", seed=1)


def test_shards_go_under_tls_by_default(make_nodes, np):
    nodes = make_nodes(3)
    m = Model(np, nodes, LARGE, "abc", "ca")
    plan = json.loads(m.reshard("--dry-run", "--json").stdout)
    end = json.loads(m.reshard("--json").stdout)
    m.assert_there()
    assert end["planned"] == end["payload"] == plan["planned"] and end["payload"] < end["bytes"] == end["kernel"], (end, plan)


def test_nodes_with_and_without_tls_move_nothing_and_say_why(make_nodes, np):
    nodes = make_nodes(2)
    m = Model(np, nodes, FSDP_TO_TP, "ab", "b")
    nodes.configure(nodes["a"], **PLAIN)
    nodes["a"].restart()
    nodes.wait_connected()
    assert "set the same security on both nodes" in refusal(m.reshard(check=False))
    m.assert_untouched()


def test_a_target_without_memory_fails_it_for_all(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN, daemons={"c": ("--reserve", "1000T")})
    m = Model(np, nodes, LARGE, "ab", "bc")
    said = refusal(m.reshard(check=False))
    assert "c refused: " in said and "every node still serves what it had" in said, said
    m.assert_untouched()


def test_a_shard_that_is_too_large_is_refused_before_there_is_memory_for_it(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    nodes.configure(nodes["c"], limits={"max-bytes": 100_000})
    nodes["c"].restart()
    nodes.wait_connected()
    m = Model(np, nodes, LARGE, "ab", "bc")
    said = refusal(m.reshard(check=False))
    assert "c refused: its shard would have " in said and "max-bytes of c is 100000" in said, said
    m.assert_untouched()


# --- Failures -------------------------------------------------------------------------------------------


def slow(m):
    """A reshard that moves its bytes slowly: the weightctl that waits for it, once some node has some."""
    waiter = m.nodes["a"].daemon.spawn(*m.args("--max-rate", 400_000, "--json"), "--sync-socket",
                                       m.nodes["a"].control_socket, text=True)
    m.nodes.wait(lambda: any(row["phase"] == "bytes" and row["done"] for row in m.nodes["a"].status()), "bytes move")
    return waiter


def test_an_engine_that_is_killed_costs_an_epoch(make_nodes, np):
    nodes = make_nodes(4, settings=PLAIN)
    m = Model(np, nodes, LARGE, "abc", "bd")
    waiter = slow(m)
    os.kill(nodes["d"].children("weightd-sync-gloo")[0], signal.SIGKILL)
    out, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 0, err
    assert {row["epoch"] for row in nodes["a"].status()} == {2}
    m.assert_there()
    end = json.loads(out)
    assert end["planned"] == end["bytes"] == end["kernel"], end


@pytest.mark.parametrize("who", "bd", ids=("source", "target"))
def test_a_node_that_dies_midway_leaves_all_as_they_were(make_nodes, np, who):
    nodes = make_nodes(4, settings=PLAIN)
    m = Model(np, nodes, LARGE, "abc", "ad")
    waiter = slow(m)
    nodes[who].kill()
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 1 and f"{who} " in err and "every node still serves what it had" in err, err
    m.assert_untouched()
    nodes[who].start()
    nodes.wait_connected()
    m.reshard()
    m.assert_there()


@pytest.mark.parametrize("what", ("agent", "weightd"))
def test_a_target_that_is_silent_costs_no_longer_than_its_deadline(make_nodes, np, what):
    """No event reports its loss: a frozen agent misses heartbeats, a frozen weightd an answer."""
    nodes = make_nodes(3, settings=PLAIN | {"limits": IMPATIENT | {"prepare-timeout": ABSENCE_S}})
    m = Model(np, nodes, LARGE, "ab", "bc")
    nodes["c"].freeze(None if what == "agent" else nodes["c"].daemon.proc.pid)
    began = time.monotonic()
    said = refusal(m.reshard(check=False))
    assert "new was not committed: c " in said and "every node still serves what it had" in said, said
    assert time.monotonic() - began < 60
    nodes["c"].thaw()
    m.assert_untouched()


def test_a_coordinator_that_dies_leaves_all_as_they_were(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    m = Model(np, nodes, LARGE, "ab", "bc")
    slow(m)
    nodes["a"].kill()
    nodes.wait(lambda: all(row["phase"] == "failed" for name in "bc" for row in nodes[name].status()), "the others gave up")
    assert "its coordinator a went away" in nodes["b"].history()[0]["why"]
    m.assert_untouched()


def test_it_can_be_cancelled(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    m = Model(np, nodes, LARGE, "ab", "bc")
    waiter = slow(m)
    nodes["a"].ctl("sync", "cancel", nodes["a"].status()[0]["sync"])
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 1 and "it was cancelled" in err, err
    m.assert_untouched()
    nodes.wait(lambda: not any(node.children("weightd-sync-local") for node in nodes), "nothing is left of it")


def test_a_source_that_says_to_have_given_other_bytes_is_found_out(make_nodes, np, tmp_path):
    programs = hostile_programs(tmp_path / "hostile", engine="weightd-sync-gloo", gave=1)
    nodes = make_nodes(3, settings=PLAIN, programs={"b": programs})
    m = Model(np, nodes, FSDP_TO_TP, "ab", "ac")
    said = refusal(m.reshard(check=False))
    assert "has other bytes from b than that one says to have given" in said and "every node still serves" in said, said
    m.assert_untouched()
    m.reshard()
    m.assert_there()


def test_a_target_that_cannot_publish_is_named_and_can_have_it_later(make_nodes, np, tmp_path):
    programs = hostile_programs(tmp_path / "hostile", engine="weightd-sync-local", dies="publish")
    nodes = make_nodes(3, settings=PLAIN, programs={"c": programs})
    m = Model(np, nodes, FSDP_TO_TP, "ab", "bc")
    said = refusal(m.reshard(check=False))
    assert "new was not committed everywhere: c failed: " in said and "the other nodes serve theirs, so ask for it again" in said
    assert read(nodes["b"], "new") == m.expected("b") and not read(nodes["c"], "new")
    assert {row["node"]: row["phase"] for row in nodes["a"].status()} == {"a": "committed", "b": "committed", "c": "unknown"}
    del nodes.programs["c"]
    nodes["c"].restart()
    nodes.wait_connected()
    m.reshard()
    m.assert_there()


def test_a_planner_that_dies_fails_it_before_anything_was_made(make_nodes, np, tmp_path):
    programs = hostile_programs(tmp_path / "hostile", engine="weightd-sync-local", dies="plan")
    nodes = make_nodes(2, settings=PLAIN, programs={"a": programs})
    m = Model(np, nodes, FSDP_TO_TP, "ab", "b")
    said = refusal(m.reshard(check=False))
    assert "the planner of a ended" in said and "while it was planned; every node still serves what it had" in said, said
    m.assert_untouched()


def test_a_plan_that_is_not_there_ends_nothing_but_the_reshard(make_nodes, np, tmp_path):
    programs = hostile_programs(tmp_path / "hostile", engine="weightd-sync-local", empty="planned")
    nodes = make_nodes(2, settings=PLAIN, programs={"a": programs})
    m = Model(np, nodes, FSDP_TO_TP, "ab", "b")
    said = refusal(m.reshard(check=False))
    assert "the planner's answer cannot be used" in said and "every node still serves what it had" in said, said
    m.assert_untouched()

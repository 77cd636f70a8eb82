"""Nodes with several addresses for bytes: a push's events about them, and pushes without one of them."""
import json

from integration.sync.test_sync import row_of
from lib import features
from lib.engine import striped
from lib.netns import Net
from lib.nodes import MIB, Cluster

IN_THE_CLEAR = {"data": {"security": "none"}}


def give_addresses(nodes, **counts):
    """So many to each of these nodes; others keep theirs."""
    for name, n in counts.items():
        first, second, _, last = nodes[name].address.split(".")
        others = [f"{first}.{second}.{200 + i}.{last}" for i in range(n - 1)]
        nodes.configure(nodes[name], node={"data-address": " ".join([nodes[name].address, *others])})


def start(nodes):
    for node in nodes:
        node.start()
    nodes.wait_connected()


def test_a_plan_says_the_stripes_of_each_link_and_every_byte_of_them(make_nodes):
    nodes = make_nodes(4, settings=IN_THE_CLEAR, start=False)
    give_addresses(nodes, a=3, b=2, c=2)
    start(nodes)
    a = nodes["a"]
    a.publish("m", seed=1, size=5 * MIB)
    plan = json.loads(a.ctl("sync", "push", "m", "--dry-run", "--json").stdout)
    text = a.ctl("sync", "push", "m", "--dry-run").stdout.splitlines()
    end = a.push("m")
    nodes.settle("m", seed=1)

    n_addresses = {"a": 3, "b": 2, "c": 2, "d": 1}
    for link in plan["links"]:
        row = nodes.wait(lambda link=link: row_of(nodes[link["to"]], end["sync"]), f"{link} is remembered")
        assert link["stripes"] == min(n_addresses[link["from"]], n_addresses[link["to"]]), plan
        assert link["planned"] == row["planned"] == row["bytes"] == row["kernel"], (link, row)
    assert plan["planned"] == end["planned"] == end["bytes"] == end["kernel"], (plan, end)
    assert text[0].split() == ["FROM", "TO", "STRIPES", "BYTES", "PLANNED"], text


def test_stripes_under_tls_and_in_a_repair(make_nodes):
    nodes = make_nodes(3, start=False)
    give_addresses(nodes, a=2, b=2, c=2)
    start(nodes)
    nodes["a"].publish("m", seed=1, size=5 * MIB)
    end = nodes["a"].push("m")
    size = nodes["a"].serves("m").size
    assert end["bytes"] == end["kernel"] > end["planned"] == end["payload"] == 2 * striped(size, 2), end
    nodes["c"].empty()
    nodes.settle("m", seed=1)
    done = "repair", "committed"
    row = nodes.wait(lambda: [row for row in nodes["c"].history() if (row["kind"], row["state"]) == done], "c remembers")[0]
    assert row["bytes"] == row["kernel"] > row["planned"] == row["payload"] > size, row


def test_an_address_that_is_not_trusted_is_refused_before_a_byte_goes_there(make_nodes):
    nodes = make_nodes(2, settings={"data": {"security": "none", "trusted": "127.0.0.0/8"}}, start=False)
    give_addresses(nodes, a=2, b=2)
    first, second, _, last = nodes["b"].address.split(".")
    nodes.configure(nodes["a"], node={"data-address": f"{nodes['a'].address} {first}.{second}.200.1"},
                    data={"trusted": [nodes["a"].address + "/32", nodes["b"].address + "/32", f"{first}.{second}.200.1/32"]})
    start(nodes)
    nodes["a"].publish("m", seed=1)
    said = nodes["a"].start_push("m").failed()
    assert f"{first}.{second}.200.{last} of b is in no 'trusted' network" in said, said
    assert nodes["b"].serves("m") is None


def test_a_push_goes_on_without_an_interface_that_is_dead(authority):
    """Two epochs break over it, and the third does without it. Only a try can show that it is dead."""
    features.require("netns")
    features.require("library")
    with Net(2, interfaces=2) as net:
        spaces = dict(zip("ab", net.nodes))
        with Cluster(authority, 2, addresses=[node.address for node in net.nodes], start=False,
                     settings={"data": {"trusted": "10.0.0.0/8", "security": "none"}},
                     prefix=lambda node: ("nsenter", f"--net=/run/netns/{spaces[node.name].name}", "--")) as nodes:
            for node in nodes:
                nodes.configure(node, node={"data-address": " ".join(spaces[node.name].addresses)})
            start(nodes)
            nodes["a"].publish("m", seed=1)
            nodes["a"].push("m")
            net.forbid(0, spaces["b"].addresses[1])
            nodes["a"].publish("m", seed=2)
            push = nodes["a"].start_push("m")
            end = push.committed()
            plans = [[link["stripes"] for link in event["links"]] for event in push.events if event.get("event") == "plan"]
            assert plans == [[2], [2], [1]], f"{plans}\n{nodes.story()}"
            assert end["planned"] == end["bytes"] == end["kernel"], end
            assert spaces["b"].addresses[1] in nodes["a"].log and "goes without" in nodes["a"].log, nodes.story()
            nodes.settle("m", seed=2)

"""The plan that a push prints before bytes move equals the counts of every node afterwards; a plan alone leaves nothing behind."""
import json

import pytest
from integration.sync.test_sync import row_of
from lib.nodes import MIB, Failed


@pytest.mark.parametrize("security", ["tls", "none"])
def test_a_dry_run_says_what_every_link_will_carry(make_nodes, security):
    nodes = make_nodes(4, settings={"data": {"security": security}})
    a = nodes["a"]
    a.publish("m", seed=1, size=MIB)
    a.push("m")
    a.publish("m", seed=2, size=2 * MIB)
    size = a.serves("m").size

    plan = json.loads(a.ctl("sync", "push", "m", "--dry-run", "--json").stdout)
    assert (plan["state"], plan["schedule"], plan["size"], plan["changed"]) == ("planned", "chain", size, size), plan
    assert {node["node"]: node["state"] for node in plan["nodes"]} == dict.fromkeys("abcd", "planned"), plan
    assert [link["from"] for link in plan["links"]] == ["a", *(link["to"] for link in plan["links"][:-1])], plan
    assert sorted(link["to"] for link in plan["links"]) == ["b", "c", "d"], plan
    assert plan["total"] == sum(link["bytes"] for link in plan["links"]) == 3 * size, plan
    for name in "bcd":
        assert nodes[name].has("m", seed=1), nodes.story()
        nodes.wait(lambda name=name: not nodes[name].children("weightd-sync-local"), f"{name} let go of its memory")

    end = a.push("m")
    assert (end["term"], end["number"]) == (plan["term"], plan["number"]), "the plan took no number"
    counted = {name: nodes.wait(lambda name=name: row_of(nodes[name], end["sync"]), f"{name} remembers") for name in "bcd"}
    for link in plan["links"]:
        row = counted[link["to"]]
        assert row["bytes"] == row["kernel"] >= row["payload"] > link["bytes"], (link, row)
        assert link["planned"] == row["planned"] == row["payload"], (link, row)
    assert end["bytes"] == sum(row["bytes"] for row in counted.values()), end
    assert plan["planned"] == end["planned"] == end["payload"], (plan, end)
    assert (end["payload"] == end["bytes"]) == (security == "none"), end
    nodes.settle("m", seed=2)


def test_a_push_tells_its_plan_and_keeps_to_it(make_nodes):
    nodes = make_nodes(3, settings={"data": {"security": "none"}})
    nodes["a"].publish("m", seed=1, size=MIB)
    push = nodes["a"].start_push("m")
    end = push.committed()
    names = [event.get("event") for event in push.events]
    (plan,) = [event for event in push.events if event.get("event") == "plan"]
    first = next(i for i, event in enumerate(push.events) if event.get("phase") == "bytes")
    assert names.index("plan") < first, push.events
    assert plan["planned"] == sum(link["planned"] for link in plan["links"]) == end["bytes"] == end["kernel"], (plan, end)


def test_a_dry_run_fails_as_the_push_would(make_nodes):
    nodes = make_nodes(3, start=False)
    nodes.configure(nodes["c"], limits={"max-bytes": "64K"})
    for node in nodes:
        node.start()
    nodes.wait_connected()
    nodes["a"].publish("m", seed=1, size=MIB)
    done = nodes["a"].ctl("sync", "push", "m", "--dry-run", check=False)
    assert done.returncode == 1 and done.stdout == "" and "c refused" in done.stderr and "max-bytes" in done.stderr, done
    done = nodes["a"].ctl("sync", "push", "m", "--dry-run", "--policy", "quorum")
    lines = done.stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [["FROM", "TO", "BYTES", "PLANNED"], ["a", "b", "1.0", "MB", "1.0", "MB"], []], done
    assert lines[3].startswith("m 1.1: 1.0 MB to 1 node") and lines[3].endswith("; nothing was sent"), done
    assert nodes["b"].serves("m") is None
    assert [row["state"] for row in nodes["a"].history()] == ["planned", "failed"]
    with pytest.raises(Failed, match="publisher"):
        nodes["b"].ask("plan", buffer="m")

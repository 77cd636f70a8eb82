"""Nodes that average: the mean of what all have becomes a version of all, as one transaction."""
import json
import os
import signal

import pytest
from integration.engines.floats import decode, draw, encode
from integration.sync.test_reshard_push import counted
from lib import features
from lib.engine import program

PLAIN = {"data": {"security": "none"}}
GAP = 3  # elements of a tensor, so that padding follows it
TENSORS = (("a", "BF16", 200_003), ("b", "F32", 100_000 + GAP), ("ids", "I64", 99), ("c", "F16", 65_537), ("d", "BF16", 1))
BYTES = {"BF16": 2, "F32": 4, "F16": 2, "I64": 8}


@pytest.fixture(autouse=True)
def np():
    features.require("gloo", available=program("gloo").exists())
    features.require("numpy")
    import numpy
    return numpy


def layout_of(tensors, alignment=None):
    import weightd
    layout = weightd.Layout(alignment)
    for name, dtype, n in tensors:
        layout.add(name, dtype, (n,))
    return layout


def publish(np, node, rank, tensors=TENSORS, ids=7, buffer="m"):
    """A version with weights of its own, but the same ids. What its tensors have, by name."""
    import weightd
    contents = {}
    with weightd.create(buffer, layout_of(tensors), socket=node.daemon.socket, new_layout=True) as writer:
        for i, (name, dtype, n) in enumerate(tensors):
            contents[name] = bytes([ids]) * (8 * n) if dtype == "I64" else encode(np, dtype, draw(np, 10 * rank + i, n))
            writer[name].write(contents[name])
        writer.publish()
    return contents


def read(node, buffer="m"):
    """The tensors that a reader gets, by name."""
    import weightd
    with weightd.attach(buffer, socket=node.daemon.socket) as b:
        return {name: bytes(b[name].read()) for name, _, _ in TENSORS}


def mean_of(np, contents):
    """In the order of the ranks, summed up and divided in fp32, rounded once."""
    result = {}
    for name, dtype, _ in TENSORS:
        terms = [content[name] for content in contents]
        if dtype == "I64":
            result[name] = terms[0]
            continue
        sums = decode(np, dtype, terms[0]).copy()
        for term in terms[1:]:
            sums += decode(np, dtype, term)
        result[name] = encode(np, dtype, sums / np.float32(len(terms)))
    return result


def average(node, *args, **kw):
    return node.ctl("sync", "average", "m", *args, **kw)


def ready(make_nodes, np, n=3, **kw):
    """Nodes that have something to average, and what each has."""
    nodes = make_nodes(n, **{"settings": PLAIN} | kw)
    return nodes, [publish(np, node, rank) for rank, node in enumerate(nodes)]


def assert_averaged(nodes, np, contents, names=None):
    """These nodes, or all, have the mean of that, digest for digest."""
    nodes.assert_equal("m", names)
    expected = mean_of(np, contents)
    for node in nodes:
        if not names or node.name in names:
            assert read(node) == expected, node


def assert_untouched(nodes, contents):
    for node, content in zip(nodes, contents):
        assert read(node) == content, node


def assert_counted(row, security):
    """The payload is the plan, and the kernel counts what was sent: more than that under TLS."""
    assert row["planned"] == row["payload"] > 0 and row["bytes"] == row["kernel"], row
    assert (row["payload"] == row["bytes"]) == (security == "none"), row


@pytest.mark.parametrize("n, security", ((2, "none"), (3, "none"), (3, "tls")))
def test_the_mean_is_a_version_of_all_and_its_bytes_are_the_planned_ones(make_nodes, np, n, security):
    import weightd
    nodes, contents = ready(make_nodes, np, n, settings={"data": {"security": security}})
    with weightd.attach("m", socket=nodes["b"].daemon.socket) as reader:
        before = reader.version
        end = json.loads(average(nodes["a"], "--json").stdout)
        assert reader.latest() > before and reader.swap() and bytes(reader["a"].read()) == mean_of(np, contents)["a"]
    assert end["state"] == "committed" and [row["state"] for row in end["nodes"]] == ["committed"] * n, end
    assert_averaged(nodes, np, contents)
    assert_counted(end, security)
    assert end["planned"] > 2 * (n - 1) * sum(BYTES[dtype] * count for _, dtype, count in TENSORS if dtype != "I64"), end
    nodes.rest("m")
    assert nodes["b"].own_head("m")["version"] > before
    rows = {node.name: node.history()[0] for node in nodes}
    assert {row["kind"] for row in rows.values()} == {"average"}, rows
    members = [row for name, row in rows.items() if name != "a"]
    for row in members:
        assert_counted(row, security)


def test_what_was_averaged_can_be_averaged_pushed_and_fetched_like_any_version(make_nodes, np):
    nodes, _ = ready(make_nodes, np)
    average(nodes["a"])
    contents = [publish(np, node, 5 + rank) for rank, node in enumerate(nodes)]
    average(nodes["a"])
    assert_averaged(nodes, np, contents)
    nodes.rest("m")
    nodes["c"].stop()
    nodes["c"].empty()
    nodes["c"].start()
    nodes.wait(lambda: nodes["c"].serves("m"), "c has it again")
    nodes.rest("m")
    assert_averaged(nodes, np, contents)
    assert nodes["a"].head("m")[1] == 2
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    nodes.settle("m", seed=1)


def test_a_dry_run_states_the_bytes_that_the_average_then_has(make_nodes, np):
    nodes, contents = ready(make_nodes, np)
    plan = json.loads(average(nodes["a"], "--dry-run", "--json").stdout)
    assert_untouched(nodes, contents)
    assert plan["schedule"] == "all-to-all" and len(plan["links"]) == 6, plan
    assert plan["planned"] == sum(link["planned"] for link in plan["links"]), plan
    text = average(nodes["a"], "--dry-run").stdout
    assert max(map(len, text.splitlines())) <= 80 and "nothing was sent" in text, text
    end = json.loads(average(nodes["a"], "--json").stdout)
    assert end["planned"] == end["kernel"] == plan["planned"], (end, plan)


def test_planned_counted_and_kernels_bytes_are_equal_on_every_link(make_nodes, np):
    nodes, _ = ready(make_nodes, np)
    links = json.loads(average(nodes["a"], "--dry-run", "--json").stdout)["links"]
    average(nodes["a"])
    nodes.rest("m")
    for link in links:
        said = [link["planned"]] * 3
        assert counted(nodes[link["from"]], "sent", link["to"]) == said, link
        assert counted(nodes[link["to"]], "received", link["from"]) == said, link


def test_people_read_it_in_80_columns(make_nodes, np):
    nodes, _ = ready(make_nodes, np)
    text = average(nodes["a"]).stdout
    assert text.startswith("m 1.1 on 3 of 3 nodes in ") and text.endswith(", the mean of 3\n"), text
    history = nodes["a"].ctl("sync", "history").stdout
    assert "average" in history and max(map(len, history.splitlines())) <= 80, history


# --- Refusals ------------------------------------------------------------------------------------------


def refusal(node, *args):
    """The line of weightctl with the reason."""
    done = average(node, *args, check=False)
    assert done.returncode == 1, done
    return done.stderr


def test_tensors_without_a_mean_that_differ_are_named_to_whoever_asked(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    contents = [publish(np, node, rank, ids=1 + (rank == 2)) for rank, node in enumerate(nodes)]
    said = refusal(nodes["a"])
    assert "tensor 'ids' is of no type that has a mean" in said and "every node still serves what it had" in said, said
    assert_untouched(nodes, contents)


def test_who_differs_does_not_keep_the_others_from_it(make_nodes, np):
    nodes = make_nodes(3, settings=PLAIN)
    contents = [publish(np, node, rank, ids=1 + (rank == 1)) for rank, node in enumerate(nodes)]
    end = json.loads(average(nodes["a"], "--policy", "quorum", "--json").stdout)
    assert {row["node"]: row["state"] for row in end["nodes"]} == {"a": "committed", "b": "failed", "c": "committed"}, end
    nodes.wait(lambda: nodes["b"].serves("m")[1:] == nodes["a"].serves("m")[1:], "b fetched what the others made")
    assert_averaged(nodes, np, [contents[0], contents[2]])


def other(name=None, dtype=None, n=None):
    """TENSORS, of which the first one is another."""
    first = TENSORS[0]
    return ((name or first[0], dtype or first[1], n or first[2]), *TENSORS[1:])


@pytest.mark.parametrize("tensors, how", [
    (TENSORS[:-1], "a has a tensor 'd', and b has none"),
    ((*TENSORS, ("more", *TENSORS[0][1:])), "b has a tensor 'more', and a has none"),
    (other(name="x"), "a has a tensor 'a', and b has none"),
    (other(n=7), "tensor 'a' is BF16 [7] on b, and BF16 [200003] on a"),
    (other(dtype="F16"), "tensor 'a' is F16 [200003] on b, and BF16 [200003] on a"),
    (TENSORS[::-1], "tensor 2 is 'd' on b, and 'a' on a, in another order"),
])
def test_who_has_other_tensors_says_which_one_is_the_first(make_nodes, np, tensors, how):
    nodes = make_nodes(2, settings=PLAIN)
    publish(np, nodes["a"], 0)
    publish(np, nodes["b"], 1, tensors)
    assert f"its tensors are not those of m on a: {how}" in refusal(nodes["a"])


@pytest.mark.parametrize("who", "ab")
def test_a_node_that_has_nothing_is_named(make_nodes, np, who):
    nodes = make_nodes(2, settings=PLAIN)
    for rank, node in enumerate(nodes):
        if node.name != who:
            publish(np, node, rank)
    said = refusal(nodes["a"])
    assert f"{who} refused: " in said and "every node still serves what it had" in said, said


def test_nodes_with_and_without_tls_average_nothing_and_say_why(make_nodes, np):
    nodes, contents = ready(make_nodes, np, 2)
    nodes.configure(nodes["a"], data={"security": "tls"})
    nodes["a"].restart()
    nodes.wait_connected()
    assert "set the same security on both nodes" in refusal(nodes["a"])
    assert_untouched(nodes, contents)


def test_only_a_publisher_that_is_a_member_may_ask(make_nodes, np):
    nodes = make_nodes(2, settings=PLAIN)
    assert "b is no publisher of the group 'main'" in refusal(nodes["b"])
    assert nodes["a"].ctl("sync", "average", "m@3", check=False).returncode == 2


def test_what_the_node_itself_refuses_is_told_whoever_asked(make_nodes, np):
    nodes = make_nodes(2, settings=PLAIN, group={"device": "cuda:0"})
    assert "a refused: " in refusal(nodes["a"])


# --- Failures ------------------------------------------------------------------------------------------


def begun(nodes, np, *args, max_rate=200_000):
    """An average that moves its bytes slowly: the weightctl that waits for it, once b has some."""
    waiter = nodes["a"].daemon.spawn("sync", "average", "m", "--max-rate", max_rate, "--json", *args,
                                     "--sync-socket", nodes["a"].control_socket, text=True)
    nodes.wait(lambda: any(row["node"] == "b" and row["phase"] == "bytes" and row["done"] for row in nodes["a"].status()),
               "bytes move")
    return waiter


def test_an_engine_that_is_killed_costs_an_epoch(make_nodes, np):
    nodes, contents = ready(make_nodes, np)
    waiter = begun(nodes, np, max_rate=300_000)
    os.kill(nodes["c"].children("weightd-sync-gloo")[0], signal.SIGKILL)
    out, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 0, err
    assert {row["epoch"] for row in nodes["a"].status()} == {2}
    assert_averaged(nodes, np, contents)
    end = json.loads(out)
    assert end["planned"] == end["bytes"] == end["kernel"], end


@pytest.mark.parametrize("policy", ("all", "quorum"))
def test_a_node_that_dies_midway(make_nodes, np, policy):
    nodes, contents = ready(make_nodes, np)
    waiter = begun(nodes, np, "--policy", policy, max_rate=300_000)
    nodes["c"].kill()
    out, err = waiter.communicate(timeout=60)
    if policy == "all":
        assert waiter.returncode == 1 and "c " in err and "every node still serves what it had" in err, err
        assert_untouched(nodes, contents)
        return
    assert waiter.returncode == 0, err
    assert {row["node"]: row["state"] for row in json.loads(out)["nodes"]} == \
        {"a": "committed", "b": "committed", "c": "failed"}, out
    assert_averaged(nodes, np, contents[:2], ("a", "b"))
    nodes["c"].start()
    nodes.wait(lambda: nodes["c"].serves("m")[1:] == nodes["a"].serves("m")[1:], "c fetched it")
    assert_averaged(nodes, np, contents[:2])


def test_a_coordinator_that_dies_leaves_all_as_they_were(make_nodes, np):
    nodes, contents = ready(make_nodes, np)
    begun(nodes, np)
    nodes["a"].kill()
    nodes.wait(lambda: all(row["phase"] == "failed" for name in "bc" for row in nodes[name].status()), "the others gave up")
    assert "its coordinator a went away" in nodes["b"].history()[0]["why"]
    assert_untouched(nodes, contents)
    nodes["a"].start()
    nodes.wait_connected()
    average(nodes["a"])
    assert_averaged(nodes, np, contents)


def test_it_can_be_cancelled(make_nodes, np):
    nodes, contents = ready(make_nodes, np)
    waiter = begun(nodes, np)
    nodes["a"].ctl("sync", "cancel", nodes["a"].status()[0]["sync"])
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 1 and "it was cancelled" in err, err
    assert_untouched(nodes, contents)
    nodes.wait(lambda: not any(node.children("weightd-sync-local") for node in nodes), "nothing is left of it")

"""
Averages and reshards that go from GPU to GPU over NCCL, and what of them cannot. On the stand-ins for the driver and for
NCCL, which are no proof: `tests/gpu/run --sections sync` has the real ones.
"""
import json

import pytest
from integration.engines.floats import decode, encode
from integration.engines.test_average_push import BYTES, TENSORS, average
from integration.engines.test_exchange import FSDP_TO_TP
from integration.engines.test_gpu_together import Trained
from integration.sync.test_reshard_push import LARGE, LAYOUTS, Model, counted, refusal
from lib import features
from lib.engine import program
from lib.gpu_nodes import assert_nothing_is_left, gpus_that_meet, stagings, used, wait_unstaged
from lib.gpus import NCCL
from lib.nodes import STALL_S

NCCL_ENGINE = {"data": {"security": "none", "engine": "nccl"}}
ENGINES = ("planned_", "")  # counted by engines: there is no kernel's number of NCCL's bytes
REDUCED = sum(BYTES[dtype] * n for _, dtype, n in TENSORS if dtype != "I64")
PIECES = 12  # of the stand-in, 64 KiB each: in the middle of an average of TENSORS, behind greeting and digests


@pytest.fixture(autouse=True)
def np():
    features.require("fakes", available=(NCCL / "libnccl.so.2").exists())
    features.require("sync", "weightd-sync-local is not built: no OpenSSL (apt-get install libssl-dev)",
                     (features.BUILD / "weightd-sync-local").exists())
    features.require("numpy")
    import numpy
    return numpy


@pytest.fixture
def make(make_nodes, make_gpus, tmp_path):
    """make(3): nodes with a GPU each, and ranks of NCCL that meet. `env` is {name: more variables of that node's}."""
    def make(n, settings=NCCL_ENGINE, env=None, on_hosts="", **kw):
        gpus = gpus_that_meet(make_gpus, set("abcdef"[:n]) - set(on_hosts), tmp_path, env)
        return make_nodes(n, settings=settings, gpus=gpus, **kw)

    return make


# --- Averages ---------------------------------------------------------------------------------------


def mean_of(np, contents):
    """As NCCL makes it: each term by 1/n, and the sums in the order of the ranks, rounded to the type each time."""
    result = {}
    for name, dtype, _ in TENSORS:
        terms = [content[name] for content in contents]
        if dtype == "I64":
            result[name] = terms[0]
            continue
        terms = [encode(np, dtype, decode(np, dtype, term) / np.float32(len(terms))) for term in terms]
        result[name] = terms[0]
        for term in terms[1:]:
            result[name] = encode(np, dtype, decode(np, dtype, result[name]) + decode(np, dtype, term))
    return result


def trained_at(np, nodes, **more):
    return Trained(np, nodes, mean=mean_of, **more)


def refused(nodes, trained, *words, args=()):
    """An average fails with a sentence that has these words, and leaves all as it was."""
    before = used(nodes)
    said = refusal(average(nodes["a"], *args, check=False))
    assert all(word in said for word in words) and "every node still serves what it had" in said, said
    assert_nothing_is_left(nodes, before)
    trained.assert_untouched()


def test_a_mean_is_made_on_gpus_and_its_bytes_are_the_planned_ones(make, np):
    nodes, n = make(4), 4
    trained = trained_at(np, nodes)
    plan = json.loads(average(nodes["a"], "--dry-run", "--json").stdout)
    assert (plan["schedule"], plan["planned"]) == ("all-reduce", n * REDUCED), plan
    assert [(link["from"], link["to"], link["bytes"]) for link in plan["links"]] == [
        ("abcd"[i], "abcd"[(i + 1) % n], REDUCED) for i in range(n)], plan
    trained.assert_untouched()
    end = json.loads(average(nodes["a"], "--json").stdout)
    assert end["state"] == "committed" and [row["state"] for row in end["nodes"]] == ["committed"] * n, end
    # Only the engines count: no kernel's number is better than a wrong one.
    assert end["planned"] == end["bytes"] == n * REDUCED and end["kernel"] is None, end
    trained.assert_averaged()
    nodes.rest("m")
    assert not stagings(nodes)
    assert counted(nodes["b"], "received", "a", ENGINES) == [REDUCED] * 2
    row = nodes["b"].history()[0]
    assert (row["kind"], row["planned"], row["bytes"], row["kernel"]) == ("average", REDUCED, REDUCED, None), row


def test_16_bit_tensors_of_three_nodes_are_refused_by_name(make, np):
    nodes = make(3)
    refused(nodes, trained_at(np, nodes), "tensor 'a' is of a 16-bit type", "engine = tcp at the publisher")


def test_what_cannot_be_averaged_so_is_refused_at_once_with_the_reason(make, np):
    """Another epoch would not help."""
    nodes = make(2, settings=NCCL_ENGINE | {"limits": {"stall-timeout": STALL_S}})
    trained = trained_at(np, nodes, odd=1)
    refused(nodes, trained, "tensor 'ids' is of no type that has a mean")
    refused(nodes, trained, "131072 bytes a second are too few for NCCL", "allow ", args=("--max-rate", 131_072))
    assert {row["epoch"] for row in nodes["a"].status()} == {1}, nodes.story()


def test_a_member_without_a_gpu_refuses_with_the_way_out(make, np):
    nodes = make(2, on_hosts="b")
    refused(nodes, trained_at(np, nodes), "'m' is in host memory here, and NCCL carries memory of GPUs only",
            "engine = tcp at the publisher")


def test_a_member_with_another_nccl_is_named_with_both_versions(make, np):
    nodes = make(2, env={"b": {"FAKE_NCCL_VERSION": "22005"}})
    refused(nodes, trained_at(np, nodes), "b has NCCL 2.20.5 and a 2.28.9", "engine = tcp at the publisher")


def test_what_is_in_host_memory_at_the_publisher_goes_over_gloo(make, np):
    features.require("gloo", available=program("gloo").exists())
    nodes = make(2, on_hosts="a")
    trained_at(np, nodes)
    end = json.loads(average(nodes["a"], "--json").stdout)
    assert end["kernel"] == end["bytes"] == end["planned"] > 0, end
    wait_unstaged(nodes)


def test_an_engine_that_dies_costs_an_epoch_and_nothing_else(make, np):
    nodes = make(2)
    trained = trained_at(np, nodes)
    nodes["b"].gpus.fail("ncclPiece@1", "die", skip=PIECES, count=1)
    average(nodes["a"])
    assert {row["epoch"] for row in nodes["a"].status()} == {2}, nodes.story()
    trained.assert_averaged()


def begun(nodes, *args):
    """One that hangs in the middle of its bytes, at the last rank: the weightctl that waits for it."""
    waiter = nodes["a"].daemon.spawn(*args, "--sync-socket", nodes["a"].control_socket, text=True)
    nodes.wait(lambda: any(row["phase"] == "bytes" for row in nodes["a"].status()), "bytes move")
    return waiter


def test_an_agent_that_is_killed_leaves_nothing_on_its_gpu(make, np):
    nodes = make(2)
    trained = trained_at(np, nodes)
    before = used(nodes)
    nodes["b"].gpus.fail("ncclPiece@1", "hang", skip=PIECES)
    waiter = begun(nodes, "sync", "average", "m")
    nodes["b"].kill()
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 1 and "b " in err, err
    nodes["b"].gpus.heal()
    assert_nothing_is_left(nodes, before)
    trained.assert_untouched()


# --- Reshards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, tensors", (("gather", FSDP_TO_TP), ("to-some-of-them", LARGE)))
def test_shards_on_gpus_become_what_numpy_makes_of_them(make, np, kind, tensors):
    sources, targets = LAYOUTS[kind]
    nodes = make(len(set(sources + targets)))
    m = Model(np, nodes, tensors, sources, targets)
    plan = json.loads(m.reshard("--dry-run", "--json").stdout)
    assert (plan["schedule"], plan["total"], plan["planned"]) == ("shards", m.total(), m.total()), plan
    end = json.loads(m.reshard("--json").stdout)
    assert end["state"] == "committed" and end["planned"] == end["bytes"] == m.total() and end["kernel"] is None, end
    m.assert_there()
    assert not stagings(nodes)
    for link in plan["links"]:
        for name, way, other in ((link["to"], "received", link["from"]), (link["from"], "sent", link["to"])):
            assert counted(nodes[name], way, other, ENGINES) == [link["bytes"]] * 2, (name, way, link)


def test_an_engine_of_a_reshard_that_dies_costs_an_epoch_and_nothing_else(make, np):
    nodes = make(3)
    m = Model(np, nodes, LARGE, "ab", "ac")
    nodes["c"].gpus.fail("ncclPiece@2", "die", skip=3 + 2, count=1)  # behind the greeting of each
    m.reshard()
    m.assert_there()


def test_a_target_without_a_gpu_refuses_with_the_way_out(make, np):
    nodes = make(2, on_hosts="b")
    m = Model(np, nodes, FSDP_TO_TP, "a", "ab")
    said = refusal(m.reshard(check=False))
    assert "'new' is in host memory here, and NCCL carries memory of GPUs only" in said, said
    m.assert_untouched()

"""
Pooled gradients ("zero2") and units of sharded parameters ("zero3"), in one node and over several (notes 3.3 and 3.4): byte for byte
what "zero1" leaves, the memory of each node, the bytes between nodes, and what a rank sees that does not do as the others.
"""
import itertools
import re

import pytest
from integration.train.conftest import crossed
from integration.train.nodes.test_nodes import held_bytes, spread
from integration.train.test_ddp import CURVE_MAX, MODELS
from lib.trainer import difference
from lib.wire import until
from table import exchanges, rows

pytestmark = pytest.mark.plain  # test_train_exchange and the kills run the same code sanitized

STRATEGIES = "zero2", "zero3"
SHAPES = [(1, 2), (2, 1), (3, 1), (4, 1), (2, 2)]
SMALL = {"bucket_bytes": 1000}  # several buckets, where there are no units
HUGE, CUT = 2 << 20, 32  # bytes; elements
LARGE = {"ballast": 11_001, "width": 13, "heads": 1}


def run(make_nodes, nodes, n, strategy, **options):
    return make_nodes(nodes, n, strategy=strategy, **{"form": "two-phase" if strategy == "zero1" else None} | SMALL | options).run()


def assert_equal(job, plain, why=""):
    assert job.curve() == plain.curve(), f"{why}: not bitwise equal"
    assert job.params() == plain.params(), why


# --- Curves and bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape, model", crossed([(1, 1), *SHAPES], ["attention", "tiny"], stays=lambda shape, model: (
    model == "tiny") == (shape in ((3, 1), (2, 2)))), ids=str)
def test_z_1_stages_have_the_curve_of_a_single_process_and_equal_bits(make_nodes, oracle, shape, model):
    (nodes, n), options = shape, {"steps": 20, "dropout": 0} | MODELS[model]
    losses, _ = oracle(**options)
    plain = run(make_nodes, nodes, n, "zero1", **options)
    assert difference(plain.curve(), losses) <= CURVE_MAX
    for strategy in STRATEGIES:
        assert_equal(run(make_nodes, nodes, n, strategy, **options), plain, strategy)


@pytest.mark.parametrize("options, shape", crossed([
    {"dtype": "bf16"}, {"dtype": "bf16", "grad_dtype": "f32"}, {"dtype": "f16", "scale": 2**26, "scale_interval": 8},
    {"dtype": "f16", "scale": 2**10, "inf_at": "5:3"}, {"optimizer": "sgd", "nesterov": True, "lr": 0.02}, {"max_norm": 0.3},
    {"batch": 5}, {"no_sync": 3}, {"nan_at": "7:3"}, {"rest": True, "ballast": 700}, {"frozen": "embedding.weight"},
    {"unused_layer": True}, {"dropout": 0.2, "evaluate_every": 3}, {"mlp": True, "rms_norm": True}], [(1, 4), (2, 2)],
    stays=lambda options, shape: shape == (2, 2) or {"inf_at", "max_norm", "no_sync", "evaluate_every"} & options.keys()), ids=str)
def test_options_have_their_meaning_with_each_stage(make_nodes, options, shape):
    nodes, n = shape
    plain = run(make_nodes, nodes, n, "zero1", steps=12, **options)
    for strategy in STRATEGIES:
        job = run(make_nodes, nodes, n, strategy, steps=12, **options)
        assert_equal(job, plain, strategy)
        for ours, theirs in zip(job.jobs, plain.jobs):
            for rank in range(n):
                assert ours.steps(rank) == theirs.steps(rank)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_run_has_the_same_bits(make_nodes, strategy):
    first, second = (run(make_nodes, 2, 2, strategy, steps=10, dropout=0.1) for _ in range(2))
    assert first.digests() == second.digests()


GRAINS = [(100, 1), (3, 1), (1, 1), (3, 2), (1, 2), (1, 3), (1, 4)]  # modules of a unit, and levels
KEPT = [{}, {"keeps_units": True}, {"without_prefetch": True}]


@pytest.mark.parametrize("nodes, n, pairs", [
    pytest.param(2, 1, list(itertools.product(GRAINS, KEPT)), marks=pytest.mark.long), (3, 1, list(zip(GRAINS, KEPT * 3))),
    (2, 2, list(zip(GRAINS, KEPT[::-1] * 3)))], ids=["2-1", "3-1", "2-2"])
def test_f_1_granularity_and_levels_change_no_bit(make_nodes, nodes, n, pairs):
    """The whole model, blocks, and each module as a unit; a root with the others in it, and units in units."""
    options = {"steps": 4, "ballast": 40, "unused_layer": True, "evaluate_every": 2, "no_sync": 2}
    plain = run(make_nodes, nodes, n, "zero1", **options)
    for (unit, levels), kept in pairs:
        job = run(make_nodes, nodes, n, "zero3", unit=unit, levels=levels, **kept, **options)
        assert_equal(job, plain, f"{unit} modules in a unit, {levels} levels, {kept}")


# --- Memory ---------------------------------------------------------------------------------------


def held_pages(job):
    """Bytes in memory of each kind on each node, with all of forward and backward done."""
    ranks = job.start_all()
    for rank in ranks:
        rank.held()
    found = [rows.pages(each.ranks[0].pid) for each in job.jobs]
    for rank in ranks:
        rank.go_on()
    job.finish()
    return found


@pytest.mark.parametrize("row, shape", crossed(
    [("zero2", {}), ("zero2", {"dtype": "bf16"}), ("zero3", {}), ("zero3", {"without_prefetch": True}), ("zero3", {"keeps_units": True}),
     ("zero3", {"unit": 1, "levels": 1}), ("zero3", {"dtype": "bf16"})], SHAPES,
    stays=lambda row, shape: shape == (2, 2) or not row[1] and shape in ((1, 2), (3, 1))), ids=str)
def test_z_5_f_2_memory_of_each_node_is_what_the_plan_predicts(make_nodes, row, shape):
    (strategy, options), (nodes, n) = row, shape
    job = make_nodes(nodes, n, steps=2, hold_at=2, strategy=strategy, **SMALL, **LARGE, **options)
    found = held_pages(job)
    for report in job.reports():
        planned = {kind: size for kind, size in report["plan"].items() if size}
        assert report["parts"] == report["plan"]
        assert found[report["rank"] // n] == planned, "pages that the kernel counts"


@pytest.mark.parametrize("nodes, n", SHAPES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_z_5_bytes_of_each_kind_are_those_of_the_formula(make_nodes, strategy, nodes, n):
    """The largest bucket is the large table, which is as good as all of the model."""
    reports = run(make_nodes, nodes, n, strategy, steps=1, unit=1, **LARGE).reports()
    plan, size = reports[0]["plan"], reports[n - 1]["shard"][1] * 4
    table = -(-LARGE["ballast"] * LARGE["width"] // 16) * 16 * 4
    slack = HUGE + 64 * CUT * 4 * nodes * n
    share = size / nodes
    expected = {
        "PARAM": share if strategy == "zero3" and nodes > 1 else size,
        "GRAD": n * table,
        "REDUCED": share,
        "MOMENTS": 2 * share,
        "STAGED": 2 * table if nodes > 1 else 0,
        "RECEIVED": table if nodes > 1 else 0,
        "GATHERED": 2 * table if strategy == "zero3" and nodes > 1 else 0,
    }
    for kind, least in expected.items():
        assert -slack < plan[kind] - least < (slack if least else 1), f"{kind}: {plan[kind]}, and not {least}"


# --- Bytes between nodes --------------------------------------------------------------------------


@pytest.mark.parametrize("row, nodes", crossed(
    [("zero2", {}), ("zero3", {}), ("zero3", {"unit": 1, "levels": 3}), ("zero3", {"keeps_units": True}),
     ("zero3", {"without_prefetch": True, "unit": 2}), ("zero2", {"ballast": 70_001}), ("zero3", {"ballast": 70_001, "dtype": "bf16"})],
    [1, 2, 3, 4], stays=lambda row, nodes: nodes == 3 or row == ("zero3", {})), ids=str)
def test_z_3_bytes_of_a_step_are_those_of_the_plan_and_of_the_sockets(make_nodes, net, row, nodes):
    """Every rank is a node, in a network namespace of its own."""
    strategy, options = row
    spaces = net(nodes)
    job = make_nodes(nodes, 1, steps=6, strategy=strategy, hold_before="3,6", **SMALL | options, **spread(spaces))
    before, after = held_bytes(job, spaces, (3, 6))
    reports = job.reports()
    line, levels = [report["buckets"] for report in reports], reports[0]["levels"]
    summary = exchanges.summary(1, reports[0]["tensors"])
    fetched = exchanges.fetches(levels, "keeps_units" in options, "without_prefetch" not in options) if levels else ()
    element = 2 if "dtype" in options else 4
    for rank, report in enumerate(reports):
        assert report["counted"]["sent"] - report["filled"]["sent"] == report["predicted"]["sent"] * 6
        assert after[rank] - before[rank] == 3 * exchanges.of_pooled_step(line, rank, summary, element, fetched)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_z_3_bytes_of_nodes_of_two_ranks_are_those_of_the_plan(make_nodes, strategy):
    for report in run(make_nodes, 2, 2, strategy, steps=6).reports():
        moved = {name: value - report["filled"][name] for name, value in report["counted"].items()}
        assert moved == {name: value * 6 for name, value in report["predicted"].items()}


@pytest.mark.parametrize("prefetches", [True, False], ids=["prefetch", "without"])
def test_f_3_the_next_unit_is_fetched_before_this_one_is_closed(make_nodes, net, prefetches):
    """All ranks hold in forward of step 3, with unit 1 open: unit 2 was sent, too, or nothing of it."""
    spaces = net(2)
    job = make_nodes(2, 1, steps=3, strategy="zero3", unit=1, levels=1, without_prefetch=not prefetches, hold_before="3",
                     hold_within="3:2", **spread(spaces))
    ranks = job.start_all()
    assert [rank.held() for rank in ranks] == [3, 3]
    before = spaces.sent(0)
    for rank in ranks:
        rank.go_on()
    assert [rank.held() for rank in ranks] == [3, 3]
    at_once = spaces.sent(0) - before
    n_units = 3 if prefetches else 2
    line = first_pieces(make_nodes)
    expected = sum(exchanges.of_fetch(*line, unit) for unit in range(n_units))
    until(lambda: spaces.sent(0) - before == expected, lambda: f"{expected} bytes, and not {spaces.sent(0) - before}, {at_once} at first")
    for rank in ranks:
        rank.go_on()
    assert [report["buckets"] for report in job.finish().reports()] == line


def first_pieces(make_nodes):
    """Of both nodes, from a job of its own."""
    return [report["buckets"] for report in make_nodes(2, 1, steps=1, strategy="zero3", unit=1, levels=1).run().reports()]


# --- Replicas of sharded nodes ---------------------------------------------------------------------


@pytest.mark.parametrize("nodes, n, replicas", [(2, 1, 2), (4, 1, 2), (4, 2, 2)])
def test_f_8_replicas_have_the_curve_of_a_single_process_and_equal_bits(make_nodes, oracle, nodes, n, replicas):
    losses, _ = oracle(steps=10, batch=16)
    first, second = (run(make_nodes, nodes, n, strategy, steps=10, batch=16, replicas=replicas) for strategy in STRATEGIES)
    assert difference(first.curve(), losses) <= CURVE_MAX
    assert_equal(second, first)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_f_8_replicas_exchange_sums_of_their_shards_alone(make_nodes, net, strategy):
    """Four nodes in two replicas. For its shard S/F a rank sends 2 (S/F) (K-1)/K to the other replica."""
    spaces = net(4)
    job = make_nodes(4, 1, steps=6, strategy=strategy, replicas=2, hold_before="3,6", **SMALL, **spread(spaces))
    before, after = held_bytes(job, spaces, (3, 6))
    reports = job.reports()
    line, summary = [report["buckets"] for report in reports], exchanges.summary(1, reports[0]["tensors"])
    fetched = exchanges.fetches(reports[0]["levels"]) if reports[0]["levels"] else ()
    between = []
    for rank, report in enumerate(reports):
        units = sum(line[rank][len(line[rank]) - 1 - unit] for unit in fetched or range(len(line[rank])))
        between.append(report["predicted"]["sent"] - 3 * (summary + 8) - 4 * sum(line[rank ^ 1]) - 4 * units)
        for name in "sent", "sent_replicas":
            assert report["counted"][name] - report["filled"][name] == report["predicted"][name] * 6
        assert report["predicted"]["sent_replicas"] - between[rank] == 2 * (summary + 8)
        assert after[rank] - before[rank] == 3 * exchanges.of_pooled_step(line, rank, summary, fetched=fetched, replicas=2)
    assert line[:2] == line[2:]
    for rank in range(2):
        assert between[rank] + between[rank + 2] == 2 * 4 * sum(line[rank]), "2 (S/F) (K-1)/K each, but for ragged halves"


# --- Programs that do not do as the others --------------------------------------------------------


@pytest.mark.parametrize("nodes, n", [(2, 1), (2, 2), (3, 1)])
def test_a_rank_that_opens_units_in_another_order_ends_all_with_a_sentence_or_the_deadline(make_nodes, nodes, n):
    job = make_nodes(nodes, n, strategy="zero3", unit=1, steps=6, disorder="4:1", deadline=2000, begins_late=True)
    for rank in job.start_all():
        status, errors = rank.wait()
        assert status == 1 and re.search(r"ETIMEDOUT|EPROTO|EINVAL|EBADMSG|EOWNERDEAD", errors), errors
    for each in job.jobs:
        for rank in range(n):
            assert max(each.steps(rank)) == 3, "no rank took a step with other values"


@pytest.mark.parametrize("options, sentence", [({"weights": True, "batch": 5}, "EINVAL.*weight"), ({"staleness": 1}, "EINVAL.*stale"),
                                               ({"form": "fused"}, "EINVAL.*two-phase|EINVAL.*fused"), ({"sync_every": 2}, "EINVAL.*sync")], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_options_that_a_stage_cannot_have_are_refused(make_nodes, strategy, options, sentence):
    job = make_nodes(2, 1, strategy=strategy, steps=3, deadline=2000, **options)
    for rank in job.start_all():
        status, errors = rank.wait(30)
        assert status == 1 and re.search(sentence, errors), errors

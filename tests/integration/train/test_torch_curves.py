"""Training by weightd.train with torch 2: the same curve as one process, and as torch's DistributedDataParallel."""
import json

import pytest
from lib.torch_ranks import apart, mean

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]

STEPS = 60
CLOSE = 2e-6


@pytest.fixture(scope="module")
def expected(host, module_daemon):
    """The curve of one process."""
    (losses,) = host.play(module_daemon, "single", steps=STEPS)
    assert losses[-1] < 0.9 * losses[0]  # it learns
    return losses


@pytest.mark.parametrize("n", (1, 2, 3, 4))
def test_ddp_1_the_curve_is_that_of_one_process_and_of_torch_ddp(host, daemon, tmp_path, expected, n):
    results = host.play(daemon, "ours", n, steps=STEPS)
    assert apart(mean([result["losses"] for result in results]), expected) <= CLOSE
    peers = mean(host.play(daemon, "torch_ddp", n, steps=STEPS, file=str(tmp_path / "meeting")))
    assert apart(peers, expected) <= CLOSE and apart(mean([r["losses"] for r in results]), peers) <= CLOSE
    assert len({result["bits"] for result in results}) == 1


@pytest.mark.parametrize("n", (2, 3))
def test_strategies_and_forms_give_the_same_bits_and_move_the_bytes_that_are_planned(host, daemon, n):
    results = host.play(daemon, "strategies", n, steps=6)
    names = results[0].keys()
    assert len({result[name][0] for result in results for name in names}) == 1, results
    for result in results:
        for name in names:
            _, counted, planned = result[name]
            assert counted == [6 * n_bytes for n_bytes in planned] and planned[2] == 0, name


@pytest.mark.parametrize("strategy", ("shared", "zero1", "replicated"))
def test_clipping_is_that_of_torch(host, daemon, strategy):
    (expected,) = host.play(daemon, "clipped_by_torch", steps=8, max_norm=0.5)
    assert min(expected["norms"]) > 0.5  # it clips
    for result in host.play(daemon, "clipped", 2, steps=8, max_norm=0.5, strategy=strategy):
        assert apart(result["norms"], expected["norms"]) <= CLOSE
        assert apart(result["values"], expected["values"]) <= CLOSE


@pytest.mark.parametrize("options", ({}, {"form": "two-phase"},
                                     {"form": "two-phase", "overlap": True, "bucket_bytes": 2048}),
                         ids=("fused", "two-phase", "overlap"))
def test_ddp_5_no_sync_is_one_large_batch_for_a_quarter_of_the_bytes(host, daemon, options):
    (expected,) = host.play(daemon, "whole")
    gathered = host.play(daemon, "accumulated", 2, k=4, **options)
    for result in gathered:
        assert apart(result["values"], expected) <= CLOSE
    each = host.play(daemon, "accumulated", 2, k=1, steps=12, **options)
    assert [4 * result["read"] for result in gathered] == [result["read"] for result in each]


@pytest.mark.parametrize("options", ({}, {"form": "two-phase"}, {"form": "two-phase", "overlap": True},
                                     {"strategy": "zero1"}), ids=("fused", "two-phase", "overlap", "zero1"))
def test_ddp_6_a_branch_that_a_rank_does_not_use_counts_as_zeros(host, daemon, options):
    (expected,) = host.play(daemon, "branches_of_one_process")
    for result in host.play(daemon, "branches", 2, **options):
        assert apart(result, expected) <= CLOSE


def test_ddp_7_an_uneven_batch_by_weights_is_the_mean_over_all_samples(host, daemon):
    (expected,) = host.play(daemon, "whole")
    for result in host.play(daemon, "uneven", 2, sizes=[17, 7], is_weighted=True):
        assert apart(result, expected) <= CLOSE
    for result in host.play(daemon, "uneven", 2, sizes=[17, 7], is_weighted=False):
        assert apart(result, expected) > 100 * CLOSE


def test_tied_weights_are_one_tensor_and_have_both_gradients(host, daemon):
    (expected,) = host.play(daemon, "tied", is_ours=False)
    for result in host.play(daemon, "tied", 2):
        assert apart(result["values"], expected["values"]) <= CLOSE
        assert result["is_tied"] and len(result["tensors"]) == 1


def test_running_statistics_are_each_ranks_own(host, daemon):
    one, other = host.play(daemon, "statistics", 2)
    assert one["parameters"] == other["parameters"] and one["mean"] != other["mean"]
    for result in one, other:
        assert result["batches"] == result["calls"] == 3 and sorted(result["planned"]) == [
            "body.1.num_batches_tracked", "body.1.running_mean", "body.1.running_var", "calls"]


def test_groups_and_a_scheduler_of_torch_work_as_with_its_optimizer(host, daemon):
    (expected,) = host.play(daemon, "grouped", is_ours=False)
    assert len({tuple(rates) for rates in expected["rates"]}) > 5
    for result in host.play(daemon, "grouped", 2, is_ours=True):
        assert result["rates"] == expected["rates"]
        assert apart(result["values"], expected["values"]) <= CLOSE


def test_staleness_rotates_the_gradients_and_trains(host, daemon):
    results = host.play(daemon, "stale", 2, steps=40, staleness=2)
    assert [result["n_places"] for result in results] == [3, 3]
    assert results[0]["bits"] == results[1]["bits"]
    assert all(result["losses"][-1] < 0.95 * result["losses"][0] for result in results)
    synchronous = host.play(daemon, "stale", 2, steps=40, staleness=0)
    assert [result["n_places"] for result in synchronous] == [1, 1]


def test_jobs_are_gone_after_close(host, daemon):
    host.play(daemon, "ours", 2, steps=2)
    assert list(daemon.folder.glob("weightd-train/*")) == []
    assert json.loads(daemon.ctl("ls", "--json").stdout)["jobs"] == []

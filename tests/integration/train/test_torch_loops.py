"""Loops with optimizers of torch on flat ranges, the sampler, and configs of DeepSpeed."""
import json
import signal

import pytest
from lib.torch_ranks import PATIENCE_S
from lib.wire import until

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]


def assert_close(found, expected, tolerance=2e-6):
    for one, other in zip(found, expected, strict=True):
        assert abs(one - other) <= tolerance, (found, expected)


# --- Flat ranges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n, async_op", ((1, False), (2, False), (3, True)))
def test_a_flat_range_with_an_optimizer_of_torch_has_the_curve_of_one_process(host, module_daemon, n, async_op):
    results = host.play(module_daemon, "loops.flat_curve", n, steps=8, optimizer="AdamW", async_op=async_op)
    (single,) = host.play(module_daemon, "single", steps=8)
    assert_close([sum(losses) / n for losses in zip(*(found["losses"] for found in results))], single)
    assert len({found["bits"] for found in results}) == 1


def test_flat_2_parameters_and_buffers_are_views_that_move_between_ranks(host, module_daemon):
    for rank, found in enumerate(host.play(module_daemon, "loops.flat_views", 2)):
        assert found["outside"] == found["others"] == [] and found["ties"], found
        assert found["weight"] == [4.0] and ["torch.bfloat16", *[4.0] * 5] in found["mean"]
        assert ["torch.float64", *[[3.0, 5.0][rank]] * 4] in found["mean"], "frozen parameters are not averaged"
        assert all(found["seen"])
        assert found["replaced"].startswith("Error: calls: no view of the flat range any more"), found
        assert found["buffers"]["table"] == [1, 1, 1] and found["buffers"]["calls"] == [1] and found["frozen"] == [5.0] * 4
        assert found["no rank"] == "ValueError: there is no rank 2: the mesh has 2 ranks"
        assert "cannot be copied or pickled" in found["pickled"]


def test_gradients_are_averaged_in_place_by_weight_and_clipped_by_torch(host, module_daemon):
    results = host.play(module_daemon, "loops.flat_gradients", 2)
    (expected,) = host.play(module_daemon, "loops.gradients_of_one_process")
    for found in results:
        assert found["views"] == [True, True]
        for name, values in expected["accumulated"].items():
            assert_close(found["accumulated"][name], values)
        assert abs(found["norm"] - expected["norm"]) < 1e-5 and abs(found["clipped"] - 0.25) < 1e-5
        assert found["weighted"] == 2.0 and found["unused"], "a rank of weight 0 does not count, not even its NaN"
        assert found["weightless"].startswith("ValueError: the weights of all ranks are 0")
        assert found["negative"].startswith("ValueError: weight is -1") and "create_graph=True" in found["graph"]


@pytest.mark.parametrize("kind", ("meta", "none"))
def test_a_rank_without_a_template_takes_layout_and_values_from_the_range(host, module_daemon, kind):
    first, second = host.play(module_daemon, "loops.flat_without_template", 2, kind=kind)
    for found in (first, second):
        no_source, no_mean = found["early"]
        assert no_source.startswith("ValueError: rank 1 has no values to give") and no_source.endswith("with values: 0")
        assert no_mean.startswith("NotPublished: rank 1 has no values yet") and found["same"]
    assert first["values"] == second["values"] and list(first["values"]) == ["embed.weight", "head.weight"]
    assert second["tied"] if kind == "meta" else "this rank has no module" in second["gradients"]


def test_tickets_are_done_in_the_order_of_the_calls(host, module_daemon):
    for found in host.play(module_daemon, "loops.flat_tickets", 3):
        assert found["done"] == [True] * 3 and found["values"] == [2.0], found
        assert 2 << 20 <= found["range"] < (2 << 20) + 256  # parameters and gradients, once


def test_flat_3_each_way_to_lose_a_view_is_named(host, module_daemon):
    (found,) = host.play(module_daemon, "loops.flat_lost")
    first = {"assign": ("inner.weight", "its memory is another"), "bfloat16": ("inner.weight", "it is torch.bfloat16"),
             "data": ("block.linear1.weight", "its memory is another"), "moved": ("head.bias", "it begins at byte "),
             "untied": ("head.bias", "it is another tensor over the same memory"),
             "gone": ("head.bias", "the module has no 'bias'")}
    for way, (name, why) in first.items():
        for said in found[way]:
            assert said.startswith(f"Error: {name}: no view of the flat range any more: {why}"), (way, said)


def test_what_cannot_be_flat_is_refused_by_name(host, module_daemon):
    (found,) = host.play(module_daemon, "loops.flat_refusals")
    for said, call in zip(found["half"], ("average_params()", "average_grads()")):
        assert said.startswith(f"Error: head.weight (F16): {call} is for parameters in float32 and bfloat16")
    assert "inner.weight and head.weight share a part of their memory" in found["overlap"]
    assert found["half meta"].startswith("ValueError: inner.weight, inner.bias, ")
    assert found["empty"] == "ValueError: ReLU has no parameters to train"
    assert found["no module"].startswith("ValueError: no rank has a module")
    (said,) = host.play(module_daemon, "loops.flat_in_job")
    assert said.startswith("ValueError: inner.weight, inner.bias, ") and "in the memory of a job" in said


def test_flat_6_another_layout_is_refused_on_all_ranks_before_anything_moves(host, module_daemon):
    first, second = host.play(module_daemon, "loops.flat_different", 2, job="different")
    difference = "1.weight (param, F32 [3, 3]) is 1.weight (param, F32 [2, 3]) on rank 0"
    assert first["refused"] == f"LayoutMismatch: the ranks have different modules: rank 1: {difference}"
    assert second["refused"] == f"LayoutMismatch: the ranks have different modules: {difference}"
    assert first["is untouched"] and second["is untouched"]


def test_a_death_ends_the_calls_of_the_others_and_the_next_start_meets_again(host, module_daemon):
    ranks = host.launch(module_daemon, "loops.flat_dies", 2, job="d", dies=True)
    assert ranks[1].wait() == -signal.SIGKILL
    first, second = ranks[0].value()
    assert first.startswith("RankDied: rank 1 ") and "an earlier collective" in second
    assert host.play(module_daemon, "loops.flat_dies", 2, job="d", dies=False) == [[None], [None]]


def test_ranks_meet_anew_where_one_was_killed_while_it_waited(host, module_daemon):
    killed = host.start(module_daemon, "loops.flat_waits", 0, 2, job="m")
    until(lambda: "opens" in killed.log and present(module_daemon, "m"), lambda: killed.log, PATIENCE_S)
    killed.end()
    assert host.play(module_daemon, "loops.flat_dies", 2, job="m", dies=False) == [[None], [None]]


def present(daemon, name):
    rows = json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]
    return [row for row in rows if row["name"] == name and row["size"]]


def test_workers_of_a_data_loader_are_forked_after_the_ranges_are_mapped(host, module_daemon):
    results = host.play(module_daemon, "loops.flat_with_workers", 3)
    taken = [sample for found in results for samples, weight, _ in found for sample in samples[:weight]]
    assert sorted(taken) == list(range(13))
    assert [position for _, _, position in results[0]] == [6, 12, 13]
    assert [[weight for _, weight, _ in found] for found in results] == [[2, 2, 1], [2, 2, 0], [2, 2, 0]]

"""Parameters, gradients and buffers of types apart; loss scaling; frozen parameters; writes between steps: with torch 2."""
import signal

import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]

CLOSE = 2e-6


def apart(one, other):
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other))


@pytest.fixture(scope="module")
def by_hand(host, module_daemon):
    """by_hand(scene, ...): what torch makes in one process, once for each set of arguments."""
    found = {}

    def play(scene, **arguments):
        key = scene, *sorted(arguments.items())
        if key not in found:
            (found[key],) = host.play(module_daemon, scene, **arguments)
        return found[key]

    return play


@pytest.mark.parametrize("options", ({"param": "bfloat16"}, {"param": "float16"}, {"param": "bfloat16", "is_converted": True},
                                     {"param": "bfloat16", "reduce": "float32", "k": 4}, {"param": "bfloat16", "k": 4}),
                         ids=("bf16", "f16", "converted", "fp32 sums", "bf16 sums"))
@pytest.mark.parametrize("form", ("fused", "two-phase"))
def test_f_6_rounded_parameters_have_the_bits_of_float32_originals(host, daemon, by_hand, options, form):
    expected = by_hand("precision.trained_by_torch", steps=4, n_parts=2, **options)
    for found in host.play(daemon, "precision.trained", 2, steps=4, form=form, **options):
        assert found["exact"] == expected
        param = f"torch.{options['param']}"
        assert (found["param"], found["output"]) == (param, param) and found["in GRAD"]
        assert found["grad"] == (f"torch.{options['reduce']}" if "reduce" in options else param)


def test_f_6_the_curve_ends_as_in_float32_and_parameters_move_half_the_bytes(host, daemon):
    whole, rounded = ([*host.play(daemon, "precision.curve", 2, steps=30, strategy="zero1", param=param)]
                      for param in ("float32", "bfloat16"))
    ends = [sum(sum(found["losses"][-10:]) for found in results) / 20 for results in (whole, rounded)]
    assert ends[1] == pytest.approx(ends[0], rel=0.02) and ends[0] < 0.9 * whole[0]["losses"][0]
    for result in (*whole, *rounded):
        assert result["counted"] == [30 * n_bytes for n_bytes in result["planned"]]
    # Tensors begin at multiples of 64 bytes of PARAM: those in 16 bits have more elements between them.
    (read, written, sent, _), (whole_read, whole_written, _, _) = (
        [sum(n_bytes) for n_bytes in zip(*(found["planned"] for found in results))] for results in (rounded, whole))
    assert sent == 0 and 1 <= read / whole_read < 1.15 and 0.5 <= written / whole_written < 0.575


@pytest.mark.parametrize("strategy", ("zero1", "replicated"))
def test_rounded_parameters_have_the_same_bits_by_each_strategy(host, daemon, by_hand, strategy):
    expected = by_hand("precision.trained_by_torch", steps=4, n_parts=2, param="bfloat16")
    for found in host.play(daemon, "precision.trained", 2, steps=4, param="bfloat16", strategy=strategy):
        assert found["exact"] == expected


def test_a_killed_rank_goes_on_with_rounded_parameters(host, daemon, by_hand):
    expected = by_hand("precision.trained_by_torch", steps=4, n_parts=2, param="bfloat16", reduce="float32", k=4)
    given = {"steps": 4, "param": "bfloat16", "reduce": "float32", "k": 4, "job": "j"}
    survives = host.start(daemon, "precision.trained", 0, 2, **given)
    assert host.start(daemon, "precision.trained", 1, 2, dies=2, **given).wait() == -signal.SIGKILL
    again = host.start(daemon, "precision.trained", 1, 2, **given).value()
    assert survives.value()["exact"] == again["exact"] == expected and again["first"] == 2


def test_small_updates_move_a_bfloat16_parameter(host, daemon):
    (found,) = host.play(daemon, "precision.stands_still")
    assert found["torch"] == [1.0] * 32  # the trap
    assert all(abs(value - 0.99) < 0.004 for value in found["ours"])


def test_inputs_and_buffers_are_cast_as_the_precision_says(host, daemon):
    (found,) = host.play(daemon, "precision.inputs")
    assert found["seen"] == ["torch.bfloat16"] * 3 + ["torch.int64", "torch.bfloat16"]
    assert found["output"] == found["compiled"] == "torch.bfloat16" and found["step"] is None
    assert found["buffers"] == {"table": "torch.bfloat16", "norm.running_mean": "torch.bfloat16",
                                "norm.running_var": "torch.bfloat16", "count": "torch.int64",
                                "norm.num_batches_tracked": "torch.int64"}
    assert found["twin"] == ["torch.float32"] * 4 + ["torch.int64", "torch.float32"]
    assert found["uncast"].startswith("RuntimeError") and "dtype" in found["uncast"]


# --- Scaling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ({}, {"overlap": True}), ids=("two-phase", "overlap"))
def test_f_6_all_ranks_skip_a_step_with_a_gradient_that_is_not_finite(host, daemon, by_hand, options):
    spoilt = [[1, 1], [0, 6], [1, 7]]
    results = host.play(daemon, "precision.scaled", 2, steps=12, spoilt=spoilt, **options)
    expected = by_hand("precision.scales_of_torch", steps=12, spoilt=(1, 6, 7))
    assert len(set(expected)) == 3  # it shrinks and grows
    for found in results:
        assert found["scales"] == expected
        assert found["overflowed"] == [step in (1, 6, 7) for step in range(12)]
        for step in range(1, 12):
            assert (found["bits"][step] == found["bits"][step - 1]) == (step in (1, 6, 7)), step
    assert results[0]["bits"] == results[1]["bits"]


def test_the_scale_survives_the_death_of_a_rank(host, daemon):
    given = {"steps": 8, "spoilt": [[1, 1], [0, 4]]}
    expected = host.play(daemon, "precision.scaled", 2, **given)
    survives = host.start(daemon, "precision.scaled", 0, 2, job="j", **given)
    assert host.start(daemon, "precision.scaled", 1, 2, job="j", dies=4, **given).wait() == -signal.SIGKILL
    again = host.start(daemon, "precision.scaled", 1, 2, job="j", **given).value()
    assert again["first"] == 4 and survives.value() == expected[0]
    for key in ("scales", "overflowed", "bits"):
        assert again[key] == expected[1][key][4:]


def test_f_7_a_scaler_saves_gradients_that_float16_has_not_got(host, daemon):
    (found,) = host.play(daemon, "precision.small_gradients")
    assert found["without"] == 1.0 and found["with"] == pytest.approx(1.0 - 1e7 * 1e-8, abs=2e-3)
    assert found["without, scale"] == 1.0 and found["with, scale"] == 65536.0 and found["idle"] is None
    for how in "unscaled", "unscaled after a scaled one":
        assert found[how] and found[how].startswith("Error: weight: the gradient is of a loss that was not scaled"), how
    assert found["scaled before zero_grad"] is None
    assert "opt.scale(loss).backward()" in found["unscaled"]
    assert "scaler=weightd.train.Scaler()" in found["GradScaler"]


def test_z_6_a_scaled_gradient_is_clipped_by_its_norm_without_the_scale(host, daemon):
    for (norms, values), (scaled_norms, scaled_values) in host.play(daemon, "precision.clipped", 2, max_norm=0.05):
        assert min(norms) > 0.05  # it clips
        assert apart(norms, scaled_norms) <= CLOSE and apart(values, scaled_values) <= CLOSE


# --- Frozen parameters --------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ("module", "all", "trained"))
def test_frozen_parameters_are_rank_0s_and_not_trained(host, daemon, weightd, by):
    (expected,) = host.play(daemon, "precision.adapted", steps=4, is_ours=False)
    for rank, found in enumerate(host.play(daemon, "precision.adapted", 2, steps=4, by=by)):
        assert apart(found["adapter"], expected["adapter"]) <= CLOSE
        assert (found["base"], found["codes"]) == (expected["base"], expected["codes"])
        assert found["planned"] == [["adapter.weight", "F32"], ["adapter.bias", "F32"], ["codes", "I8"], ["shift", "F16"],
                                    ["base.weight", "F32"], ["base.bias", "F32"]]
        assert found["grad"] and found["types"] == ["torch.int8", "torch.float16"] and found["groups"] == [2]
        assert found["write"].startswith("Denied: base.weight: add_() would write a parameter")
        assert found["load"].startswith("Denied: codes, shift, base.weight, base.bias, adapter.weight and 1 more: in the memory")
        assert found["unfrozen"].startswith("Error: base.weight: requires_grad is True since the optimizer was made")
        assert found["rewritten"] == [[1.0] * 64, [2] * 64]
        if rank == 0:
            with weightd.attach("adapted", version=found["version"]) as buffer:
                assert list(buffer["codes"].numpy()) == expected["codes"]


@pytest.mark.plain
def test_frozen_parameters_are_in_memory_once(host, daemon):
    width = 1024
    results = host.play(daemon, "precision.adapted", 2, steps=1, width=width, precision=None)
    n_bytes = 4 * (width * width + width) + width + 2 * width
    assert abs(sum(found["resident"] for found in results) - n_bytes) < 0.01 * n_bytes, results


def test_parameters_may_be_frozen_until_the_optimizer_is_made(host, daemon):
    (found,) = host.play(daemon, "precision.frozen_after_shard")
    assert found == ["first.weight", "first.bias"]


def test_jobs_over_one_attached_base_leave_it_where_it_is(host, daemon):
    (found,) = host.play(daemon, "precision.adapted", steps=1)
    assert found["version"] == 1
    jobs = [host.start(daemon, "precision.lora", 0, 1, job=f"job-{i}", name="adapted") for i in range(2)]
    for job in jobs:
        found = job.value()
        assert found["planned"] == found["saved"] == found["published"] == ["adapter.weight", "adapter.bias"]
        assert found["same"] and found["in place"] and found["trained"] and found["still"] is None
        assert sorted(found["is_bound"]) == ["base.bias", "base.weight", "codes", "shift"]
        assert found["unfrozen"].startswith("Error: base.bias: requires_grad is True since the optimizer was made")
        assert found["written"].startswith("Denied: ") and "base.weight" in found["written"]


def test_a_tied_module_of_the_meta_device_stays_tied(host, daemon):
    for found in host.play(daemon, "precision.tied_on_meta", 2):
        assert found["tied"] and found["planned"] == ["embed.weight"]
        assert all(abs(row) > 1 for row in found["rows"]) and found["value"] != 1.0


# --- Writes between steps -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", ({}, {"param": "bfloat16"}, {"param": "bfloat16", "only": "first.weight"},
                                     {"strategy": "zero1", "param": "bfloat16"}),
                         ids=("fp32", "bf16", "one tensor", "zero1"))
def test_writable_gives_all_ranks_the_values_of_rank_0(host, daemon, by_hand, options):
    arguments = {key: value for key, value in options.items() if key != "strategy"}
    expected = by_hand("precision.rewritten_by_torch", **arguments)
    results = host.play(daemon, "precision.rewritten", 2, **options)
    for found in results:
        assert found["inside"] == "torch.float32" and found["exact"] == expected
    assert results[0]["after"] == results[1]["after"]


@pytest.mark.parametrize("victim", (0, 1))
def test_a_rank_that_is_killed_in_writable_enters_it_again(host, daemon, by_hand, victim):
    expected = by_hand("precision.rewritten_by_torch", param="bfloat16")
    other = host.start(daemon, "precision.rewritten", 1 - victim, 2, param="bfloat16", job="j")
    dies = host.start(daemon, "precision.rewritten", victim, 2, param="bfloat16", job="j", dies=True)
    assert dies.wait() == -signal.SIGKILL
    again = host.start(daemon, "precision.rewritten", victim, 2, param="bfloat16", job="j")
    assert again.value()["exact"] == other.value()["exact"] == expected


def test_a_rank_that_waited_in_vain_in_writable_enters_it_again(host, daemon, tmp_path):
    (ended, values), (late, step, others) = host.play(daemon, "precision.rewritten_late", 2, folder=str(tmp_path))
    assert ended is None and late.startswith("Timeout: ") and values == others == [1.0]
    assert step.startswith("Error: writable() was left before all ranks had ended it")


@pytest.mark.parametrize("n", (1, 2))
def test_writable_refuses_what_would_be_lost(host, daemon, n):
    for rank, found in enumerate(host.play(daemon, "precision.writes_refused", n)):
        for what in ("before", "unchanged", "still unchanged", "changed"):
            assert found[what] is True, what
        assert found["nothing"] is None and found["init"] is None
        assert found["exception"] == "KeyError: 'mine'"
        assert found["interrupted"] == "MemoryError: third" and found["after it"] is None
        for what, says in {
                "unsharded": "Error: Whole: call weightd.train.shard(module, mesh) first",
                "nested": "Error: inside writable() parameters are copies", "step": "Error: inside writable() parameters are",
                "gradient": "Error: first.weight, first.bias, second.weight, second.bias: there is a gradient of the old",
                "outside": "Denied: first.weight, first.bias, second.weight, second.bias: in the memory of a job",
                "old graph": "RuntimeError: one of the variables needed for gradient computation has been modified",
                "closed": "Error: this rank has left its job"}.items():
            assert (found[what] or "").startswith(says), what
        assert "with weightd.train.writable(model):" in found["outside"]
        if rank == 0:
            assert found["replaced"].startswith("Error: first.weight, first.bias, second.weight, second.bias: replaced inside")

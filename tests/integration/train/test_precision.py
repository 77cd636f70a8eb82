"""Parameters of 16 bits with fp32 originals, loss scaling, and frozen parameters (notes 3: F-6, F-7)."""
import json
import struct

import pytest
from integration.train.conftest import ROWS
from lib.trainer import difference

pytestmark = pytest.mark.plain  # test_train_executor and the kills run the same code sanitized

PAGE, HUGE = 4096, 2 << 20
TWO_PHASE = [row for row in ROWS if row[1] == "two-phase"]


def rounded(size):
    """The bytes of `size` bytes of memory in pages."""
    return -(-size // PAGE) * PAGE


def read_safetensors(path):
    """{name: (dtype, bytes)}"""
    content = path.read_bytes()
    size, = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + size])
    return {name: (tensor["dtype"], content[8 + size:][slice(*tensor["data_offsets"])])
            for name, tensor in header.items() if name != "__metadata__"}


@pytest.fixture
def published(keeper, tmp_path):
    """published("name"): the tensors of a version."""

    def read(name):
        keeper.ctl("save", name, tmp_path / name)
        return read_safetensors(tmp_path / name / "model.safetensors")

    return read


# --- Types ---

def test_f_6_bf16_with_originals_learns_as_fp32_and_publishes_half_the_bytes(make_job, oracle, published):
    losses, _ = oracle()
    jobs = [make_job(2, strategy=strategy, form=form, dtype="bf16", publish=strategy).run() for strategy, form in ROWS]
    full = make_job(2, publish="full").run()
    for job in jobs:
        assert job.curve() == jobs[0].curve() and job.params() == jobs[0].params(), "rows have equal bits"
        assert job.bytes()["MASTER"][:job.report(0)["shard"][1] * 4] == jobs[0].bytes()["MASTER"][:job.report(0)["shard"][1] * 4]
    assert abs(jobs[0].curve()[-1] / losses[-1] - 1) < 0.02 and losses[-1] < 0.5 * losses[0]
    assert jobs[0].curve() != full.curve()
    half, whole = published("shared"), published("full")
    assert half.keys() == whole.keys()
    for name, (dtype, content) in half.items():
        if name.startswith("statistics."):
            assert dtype == whole[name][0]
            continue
        assert (dtype, whole[name][0]) == ("BF16", "F32") and 2 * len(content) == len(whole[name][1]), name
        assert content in jobs[0].params()


@pytest.mark.parametrize("dtype, grad_dtype", [("bf16", "f32"), ("f16", None), ("f16", "f32")])
def test_other_types_learn_as_fp32(make_job, oracle, dtype, grad_dtype):
    losses, _ = oracle()
    job = make_job(2, strategy="zero1", form="fused", dtype=dtype, grad_dtype=grad_dtype).run()
    assert abs(job.curve()[-1] / losses[-1] - 1) < 0.02


def test_small_updates_are_not_lost_in_the_rounding(make_job, oracle):
    """At this rate one update is less than half of the last digit of most bf16 parameters."""
    options = {"lr": 2e-4, "steps": 100}
    losses, _ = oracle(**options)
    job = make_job(1, dtype="bf16", grad_dtype="f32", **options).run()
    drop = losses[0] - losses[-1]
    assert drop > 0.1 and abs(job.curve()[0] - job.curve()[-1] - drop) < 0.05 * drop


@pytest.mark.parametrize("strategy, form, grad_dtype", [
    ("shared", "two-phase", "f16"), ("zero1", "fused", "f16"), ("zero1", "fused", "f32"), ("replicated", "two-phase", "f16")])
def test_bytes_of_16_bits_are_those_of_the_formulas(make_job, strategy, form, grad_dtype):
    n, steps, grad = 3, 3, {"f16": 2, "f32": 4}[grad_dtype]
    reports = make_job(n, steps=steps, strategy=strategy, form=form, dtype="f16", grad_dtype=grad_dtype, frozen="position.weight",
                       ballast=1999).run().reports()
    elements = reports[-1]["shard"][1]
    n_updates, copies = (n if strategy == "replicated" else 1), (1 if strategy == "shared" else n)
    sizes = {"PARAM": (copies, 2), "GRAD": (n, grad), "REDUCED": (int(form == "two-phase"), 4), "MASTER": (n_updates, 4),
             "MOMENTS": (2 * n_updates, 4)}
    for kind, (n_ranges, size) in sizes.items():
        assert reports[0]["plan"][kind] - n_ranges * rounded(elements * size) in range(HUGE), kind
    assert reports[0]["plan"]["FROZEN"] == rounded(7 * 12 * 4)
    moved = 0
    for report in reports:
        assert report["parts"] == report["plan"]
        assert report["param"] == elements * 2
        counted = {name: report["counted"][name] - report["filled"][name] for name in report["counted"]}
        assert counted == {name: value * steps for name, value in report["predicted"].items()}
        moved += sum(counted.values())
    written = {"shared": 0, "zero1": 2, "replicated": 4}[strategy]  # bytes of an element in the second half of the exchange
    assert moved == steps * (n - 1) * elements * (grad + written)


# --- Scaling ---

def test_f_7_gradients_below_f16_are_lost_without_scaling_and_count_with_it(make_job):
    """Gradients are 2^-26 of their size, and F16 has nothing below 2^-25 of 1. Adam does not see the factor, with this eps."""
    options = {"dtype": "f16", "optimizer": "adam", "weight_decay": 0, "eps": 1e-30, "form": "two-phase"}
    plain = make_job(2, **options).run()
    lost = make_job(2, **options, small=2**-26).run()
    scaled = make_job(2, **options, small=2**-26, scale=2**24).run()
    assert lost.report(0)["began"] == lost.report(0)["ended"], "nothing moved"
    assert plain.curve()[-1] < 0.5 * plain.curve()[0]
    assert difference(scaled.curve(), plain.curve()) < 0.02
    assert not any(line["overflowed"] for line in scaled.steps(0).values())


@pytest.mark.parametrize("strategy, form", TWO_PHASE)
def test_f_7_an_infinite_gradient_of_one_rank_skips_the_step_on_all(make_job, strategy, form):
    """A power of two changes no bits of fp32, so that a skipped step is that of a loss which is not a number."""
    options = {"strategy": strategy, "form": form, "bucket_bytes": 700, "steps": 12, "max_norm": 0.5, "overlap": True}
    skipped = make_job(3, **options, nan_at="5:1").run()
    infinite = make_job(3, **options, inf_at="5:1", scale=1024).run()
    assert infinite.bytes()["MOMENTS"] == skipped.bytes()["MOMENTS"]
    for rank in range(3):
        lines = infinite.steps(rank)
        assert [step for step, line in lines.items() if line["overflowed"]] == [5]
        assert not any(line["skipped"] for line in lines.values())
        assert [lines[step]["scale"] for step in range(1, 13)] == 4 * [1024] + 8 * [512]
        assert infinite.bytes()[f"{rank}.PARAM"] == skipped.bytes()[f"{rank}.PARAM"]


def test_the_scale_follows_the_gradients(make_job, oracle):
    """It shrinks until gradients are finite, grows in turns, and the model learns meanwhile."""
    losses, _ = oracle(steps=80)
    job = make_job(2, steps=80, dtype="f16", scale=2**30, scale_interval=8).run()
    lines = job.steps(0)
    assert lines[1]["overflowed"] and lines[1]["scale"] == 2**29
    assert {line["scale"] for line in list(lines.values())[20:]} <= {2**i for i in range(12, 20)}
    assert any(b["scale"] > a["scale"] for a, b in zip(lines.values(), list(lines.values())[1:]))
    assert 0 < sum(line["overflowed"] for line in list(lines.values())[20:]) < 20
    assert abs(job.curve()[-1] / losses[-1] - 1) < 0.2


# --- Frozen parameters ---

@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_frozen_parameters_stay_and_are_published(make_job, oracle, published, dtype):
    losses, _ = oracle(frozen="embedding.weight")
    job = make_job(2, frozen="embedding.weight", dtype=dtype, publish="model").run()
    first = make_job(1, steps=1, publish="first").run()
    assert first.report(0)["plan"]["FROZEN"] == 0
    assert difference(job.curve(), losses) < (2e-6 if dtype == "f32" else 0.02)
    assert losses != oracle()[0]
    frozen = published("model")["embedding.weight"]
    assert frozen[0] == "F32" and len(frozen[1]) == 37 * 12 * 4
    assert job.bytes()["FROZEN"].startswith(frozen[1])
    # They were in PARAM of the other job, before its step moved them by its rate at most.
    moved = published("first")["embedding.weight"][1]
    assert max(abs(a - b) for a, b in zip(struct.unpack("444f", moved), struct.unpack("444f", frozen[1]))) < 2e-3

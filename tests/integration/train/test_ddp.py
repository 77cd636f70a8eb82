"""Data parallelism (notes 3.1), with real processes: against the curve of a single one, and byte for byte among each other."""
import struct

import pytest
from integration.train.conftest import ROWS, crossed
from lib.trainer import difference

pytestmark = pytest.mark.plain  # test_train_executor and the kills run the same code sanitized

CUT = 128  # bytes: two cache lines
CURVE_MAX = 2e-6  # notes 3: for fp32 over 60 steps
MODELS = {
    "attention": {},
    "rms-norm": {"rms_norm": True, "groups": 1},
    "mlp": {"mlp": True, "hidden": 31, "vocab": 53},
    "tiny": {"width": 3, "heads": 1, "hidden": 2, "classes": 3, "vocab": 5, "length": 3, "mlp": True},  # some shards are empty
}


def floats(content):
    return struct.unpack(f"{len(content) // 4}f", content)


@pytest.mark.parametrize("n, model", crossed([1, 2, 3, 4], MODELS, stays=lambda n, model: n == 3 or model == "attention" or (n, model) == (4, "tiny")))
def test_ddp_1_all_rows_have_the_curve_of_a_single_process_and_equal_bits(make_job, oracle, n, model):
    losses, _ = oracle(**MODELS[model])
    first = None
    for strategy, form in ROWS:
        job = make_job(n, strategy=strategy, form=form, bucket_bytes=1000, **MODELS[model]).run()
        assert difference(job.curve(), losses) <= CURVE_MAX, f"{strategy}, {form}"
        first = first or job
        assert job.curve() == first.curve(), f"{strategy}, {form}: not bitwise equal to {ROWS[0]}"
        assert job.params() == first.params()


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("strategy", ["shared", "zero1", "replicated"])
def test_ddp_1_overlap_and_sizes_of_buckets_change_no_bit(make_job, strategy, n):
    plain = make_job(n, steps=20, strategy=strategy, form="two-phase").run()
    for options in {"overlap": True}, {"overlap": True, "bucket_bytes": 256}, {"bucket_bytes": 4096}:
        job = make_job(n, steps=20, strategy=strategy, form="two-phase", **options).run()
        assert job.digests() == plain.digests(), options


@pytest.mark.parametrize("optimizer", [{"optimizer": "adam"}, {"optimizer": "sgd"}, {"optimizer": "sgd", "nesterov": True},
                                       {"optimizer": "sgd", "momentum": 0}, {"max_norm": 0.3}], ids=str)
def test_ddp_1_other_optimizers_and_clipping_have_the_curve_too(make_job, oracle, optimizer):
    losses, _ = oracle(lr=0.02, **optimizer)
    curves = []
    for strategy, form in ROWS:
        if "max_norm" in optimizer and form == "fused":
            continue
        curves.append(make_job(3, strategy=strategy, form=form, lr=0.02, **optimizer).run().curve())
        assert difference(curves[-1], losses) <= CURVE_MAX, f"{strategy}, {form}"
        assert curves[-1] == curves[0]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("model", ["attention", "tiny"])
def test_ddp_2_bytes_are_those_of_an_all_reduce(make_job, n, model):
    steps = 5
    for strategy in "replicated", "zero1":
        job = make_job(n, steps=steps, strategy=strategy, form="two-phase", bucket_bytes=1000, **MODELS[model]).run()
        reports = job.reports()
        size = reports[-1]["shard"][1] * 4
        assert size % CUT == 0
        for rank, report in enumerate(reports):
            own = (size // CUT // n + (rank < size // CUT % n)) * CUT  # as even as possible
            assert strategy != "zero1" or 4 * (report["shard"][1] - report["shard"][0]) == own
            counted = {name: report["counted"][name] - report["filled"][name] for name in ("read", "written", "sent")}
            assert counted == {name: report["predicted"][name] * steps for name in counted}
            assert counted["sent"] == 0
            if strategy == "zero1":
                assert counted == {"read": own * (n - 1) * steps, "written": own * (n - 1) * steps, "sent": 0}
            else:
                assert counted == {"read": (own * (n - 1) + size - own) * steps, "written": 0, "sent": 0}
        moved = sum(report["counted"][name] - report["filled"][name] for report in reports for name in ("read", "written"))
        assert moved == 2 * size * (n - 1) * steps, "2S(N-1)/N for each of N ranks and each step"


@pytest.mark.parametrize("row, n", crossed(ROWS, [1, 2, 3], stays=lambda row, n: n == 3 or row == ROWS[0]), ids=str)
def test_ddp_5_no_sync_moves_a_quarter_and_equals_one_step_with_a_big_batch(make_job, row, n):
    strategy, form = row
    small = make_job(n, strategy=strategy, form=form, steps=40, batch=3 * n).run()
    options = {"strategy": strategy, "form": form, "steps": 10, "by_sample": True}  # gradients add up in one order
    accumulated = make_job(n, batch=3 * n, no_sync=4, **options).run()
    big = make_job(n, batch=12 * n, **options).run()

    def moved(job):
        return [{name: report["counted"][name] - report["filled"][name] for name in report["counted"]} for report in job.reports()]

    assert [{name: 4 * value for name, value in one.items()} for one in moved(accumulated)] == moved(small)
    assert accumulated.curve() == big.curve()
    assert accumulated.digests() == big.digests()


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("strategy, form", ROWS)
def test_ddp_6_a_layer_that_only_one_rank_uses_counts_with_zeros_of_the_others(make_job, oracle, strategy, form, n):
    options = {"unused_layer": True, "steps": 60}
    losses, _ = oracle(n=n, **options)
    job = make_job(n, strategy=strategy, form=form, deadline=60000, bucket_bytes=600, overlap=form == "two-phase", **options).run()
    assert difference(job.curve(), losses) <= CURVE_MAX
    assert difference(losses, oracle()[0]) > 1e-3, "the layer matters"


@pytest.mark.parametrize("row, n", crossed(ROWS, [2, 3, 4], stays=lambda row, n: n == 3 or row == ROWS[0]), ids=str)
def test_ddp_7_uneven_batches_have_the_gradient_of_the_global_mean(make_job, oracle, row, n):
    strategy, form = row
    losses, params = oracle(batch=5)
    assert 5 % n
    job = make_job(n, strategy=strategy, form=form, batch=5, weights=True).run()
    assert difference(job.curve(), losses) <= CURVE_MAX
    plain = make_job(n, strategy=strategy, form=form, batch=5).run()
    assert difference(plain.curve(), losses) > 1e-4, "a mean of means, as plain DDP has it, must differ"


@pytest.mark.parametrize("n", [2, 4])
def test_ddp_7_an_uneven_last_batch(make_job, n):
    """The last batch has one sample for rank 0 and none for the others: the step is that of one rank with this sample."""
    options = {"strategy": "shared", "form": "fused", "steps": 1, "last_batch": 1}
    alone, together = make_job(1, **options).run(), make_job(n, weights=True, **options).run()
    shortest = min(len(alone.params()), len(together.params()))
    assert alone.params()[:shortest] == together.params()[:shortest]
    halved = make_job(n, **options).run()
    assert halved.bytes()["MOMENTS"] != together.bytes()["MOMENTS"], "without weights, zeros of the others count"

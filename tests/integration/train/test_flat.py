"""One flat range for all parameters (notes 3.0): ranks agree on its layout before a byte moves, and start with equal values."""
import pytest
from lib.trainer import START

ROWS = [("shared", "fused"), ("zero1", "fused"), ("replicated", "two-phase")]
DIFFERENT = [
    ({"width": 15}, "embedding.weight"), ({"classes": 12}, "head.weight"), ({"rms_norm": True}, "norm1.bias"),
    ({"ballast": 1}, "ballast.weight"), ({"optimizer": "sgd"}, "optimizer"), ({"weight_decay": 0.2}, "weight decay"),
    ({"strategy": "zero1"}, "strategy"), ({"form": "two-phase"}, "form"), ({"state_size": 64}, "state"),
    ({"without_journal": True}, "journal"), ({"groups": 1}, "group"), ({"staleness": 1}, "staleness"), ({"release": "77.1.2"}, "release"),
]


@pytest.mark.parametrize("different, named", DIFFERENT, ids=lambda value: str(value))
def test_flat_6_a_rank_with_another_plan_is_refused_and_named_the_first_difference(make_job, different, named):
    job = make_job(2, steps=3, strategy="shared", form="fused")
    first = job.start(0, hold_at=1)
    assert first.held() == 1
    status, errors = job.start(1, **different).wait()
    assert status == 1 and "EPROTOTYPE" in errors and named in errors.lower().replace("_", " "), errors
    assert job.steps(0) == {} and job.progress()[1][:2] == (0, START)
    job.start(1)
    first.go_on()
    job.finish()
    same = make_job(2, steps=3, strategy="shared", form="fused").run()
    assert job.digests() == same.digests()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy, form", ROWS)
def test_flat_7_first_values_reach_all_copies_in_their_size_each(make_job, strategy, form, n):
    job = make_job(n, steps=1, strategy=strategy, form=form).run()
    reports = job.reports()
    assert len({report["began"] for report in reports}) == 1, "all ranks began with equal bytes"
    assert len({report["ended"] for report in reports}) == 1
    copies = 1 if strategy == "shared" else n
    size = reports[0]["plan"]["PARAM"] // copies - reports[0]["padding"]
    assert reports[0]["filled"]["written"] == size * (copies - 1), "one copy's bytes for each copy but its own"
    assert [report["filled"]["written"] for report in reports[1:]] == [0] * (n - 1)
    assert all(report["filled"]["sent"] == 0 for report in reports)

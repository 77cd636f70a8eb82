"""Versions of ranges (notes 2): a rank may run ahead of the slowest update by the staleness that the plan has."""
import pathlib
import re

import pytest
from lib.trainer import UPDATE, difference
from lib.wire import until

pytestmark = pytest.mark.plain  # test_train_executor and the kills run the same code sanitized


@pytest.mark.parametrize("n", [2, 4])
def test_staleness_0_has_the_bits_of_the_synchronous_step(make_job, n):
    """A step in two phases is synchronous: it has no staleness."""
    plain = make_job(n, strategy="shared", form="two-phase").run()
    stale = make_job(n, strategy="shared", form="fused", staleness=0).run()
    assert stale.curve() == plain.curve() and stale.digests() == plain.digests()
    late = make_job(n, strategy="shared", form="fused", staleness=1).run()
    assert late.curve() != plain.curve()


@pytest.mark.parametrize("n", [2, 4])
def test_staleness_2_converges(make_job, oracle, n):
    losses, _ = oracle(steps=200)
    curve = make_job(n, strategy="shared", form="fused", staleness=2, steps=200).run().curve()
    assert difference(curve, losses) > 0
    assert sum(curve[-20:]) / 20 < 1.2 * sum(losses[-20:]) / 20 and curve[-1] < 0.6 * curve[0]


def has_handed_over(job, number):
    """Rank 0 is behind the step, or sleeps in its update: it waits for rank 1, which may have a version to make first."""
    step, phase, _, pid = job.progress()[0]
    if (step, phase) != (number, UPDATE):
        return step > number
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("k", [1, 2])
def test_staleness_is_bounded(make_job, k):
    """Rank 1 holds before it hands over the gradients of step 6: the other one computes on for k steps and no more."""
    job = make_job(2, strategy="shared", form="fused", staleness=k, steps=12)
    job.run(stop_after=4)
    ahead = job.start(0, hold_at=6 + k, deadline=5000, keep_on=True)
    until(lambda: has_handed_over(job, 5), "rank 0 handed over step 5, so that rank 1 finds all gradients of it")
    slow = job.start(1, hold_at=6)
    assert slow.held() == 6 and ahead.held(6 + k) == 6 + k
    assert max(job.steps(0)) == 5 + k and max(job.steps(1)) == 5
    ahead.go_on()
    assert ahead.held() == 6 + k, "the update failed"
    assert re.search("rank 0 calls again: .*rank 1.*step 6", ahead.errors.read_text()), ahead.errors.read_text()
    slow.go_on()
    ahead.go_on()
    job.finish()

"""Versions of ranges (notes 2): a rank may run ahead of the slowest update by the staleness that the plan has."""
import pytest
from lib.trainer import difference


@pytest.mark.parametrize("n", [2, 4])
def test_staleness_0_has_the_bits_of_the_synchronous_step(make_job, n):
    plain = make_job(n, strategy="shared", form="fused").run()
    stale = make_job(n, strategy="shared", form="fused", staleness=0).run()
    assert stale.curve() == plain.curve() and stale.digests() == plain.digests()


@pytest.mark.parametrize("n", [2, 4])
def test_staleness_2_converges(make_job, oracle, n):
    losses, _ = oracle(steps=200)
    curve = make_job(n, strategy="shared", form="fused", staleness=2, steps=200).run().curve()
    assert difference(curve, losses) > 0
    assert sum(curve[-20:]) / 20 < 1.2 * sum(losses[-20:]) / 20 and curve[-1] < 0.6 * curve[0]

"""Parameters without a gradient (notes 5.4: send what was updated): nothing of them moves, and they stay as they are."""
import json
import subprocess

import pytest
from integration.train.conftest import ROWS
from lib.trainer import PROGRAMS, difference
from lib.wire import PATIENCE_S


def run_ranges(job, strategy, form, steps, *touched):
    """The line of each rank of tests/ref/ranges.c."""
    env = job.daemon.env | {"WEIGHTD_JOB": job.token}
    ranks = [subprocess.Popen([PROGRAMS / "ranges", *map(str, (rank, job.n, strategy, form, steps, *touched))], env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(job.n)]
    try:
        outputs = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * job.n, outputs
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [json.loads(out) for out, _ in outputs]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy, form", ROWS)
def test_v_1_exactly_the_bytes_of_3_of_100_ranges_move(make_job, strategy, form, n):
    lines, whole = (run_ranges(make_job(n), strategy, form, 2, *touched) for touched in ((4, 50, 97), range(100)))
    assert all(line["changed"] == [4, 50, 97] for line in lines)
    assert all(line["changed"] == list(range(100)) for line in whole)
    factor = 2 * (n - 1) * (1 if strategy == "shared" else 2)  # steps; directions
    assert sum(line["read"] + line["written"] for line in lines) == lines[0]["size"] * factor
    assert sum(line["read"] + line["written"] for line in whole) >= whole[0]["size"] * factor  # and the padding at the end
    assert lines[0]["first"] == whole[0]["first"], "the others do not matter to a range that is touched"


@pytest.mark.parametrize("strategy, form", ROWS)
def test_v_1_a_range_that_one_rank_touches_is_updated_on_all(make_job, strategy, form):
    lines = run_ranges(make_job(3), strategy, form, 3, "4@1", "50@0")
    assert all(line["changed"] == [4, 50] for line in lines)
    assert len({line["first"] for line in lines}) == 1


@pytest.mark.parametrize("strategy, form", ROWS)
def test_a_parameter_that_rests_has_the_curve_and_the_bytes_of_a_single_process(make_job, oracle, strategy, form):
    options = {"ballast": 500, "rest": True}
    losses, params = oracle(**options)
    job = make_job(2, strategy=strategy, form=form, overlap=form == "two-phase", bucket_bytes=2000, **options).run()
    assert difference(job.curve(), losses) <= 2e-6
    ballast = params[(37 + 7) * 12 * 4:][:500 * 12 * 4]
    assert ballast in job.params(), "zero gradients have no rounding: equal bits"
    assert ballast not in make_job(2, strategy=strategy, form=form, ballast=500).run().params()

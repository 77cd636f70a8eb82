"""
SIGKILLs at random instructions: of ranks, of weightd, and of all of them at once. Only the keeper lives.

A step happens exactly once: however often a job is killed, it leaves the bytes of an uninterrupted run. WEIGHTD_KILLS is
the number of kills in each test (1000: the whole experiment), WEIGHTD_KILLS_SEED makes other ones.
"""
import os
import sys

import pytest
from integration.train.killer import MODEL, Killer
from lib.trainer import UPDATE
from lib.wire import PATIENCE_S

KILLS = int(os.environ.get("WEIGHTD_KILLS", 0))
SEED = int(os.environ.get("WEIGHTD_KILLS_SEED", 1))
STEPS = 500
MANY = 50  # kills that hit everything; the sanitized pass has one


def killed(make_job, request, n, default, **options):
    """The killer of a job, after its end, and the bytes of an uninterrupted run."""
    options = MODEL | {"steps": STEPS, "deadline": PATIENCE_S * 1000} | options
    plain = make_job(n, **options | {"without_journal": None}).run()
    killer = Killer(make_job(n, **options), KILLS or default, STEPS, f"{SEED} {request.node.name}").run()
    print(killer, file=sys.stderr)
    assert killer.n_done >= (KILLS or default) * 0.9, f"the job ended early: {killer}"
    return killer, plain


@pytest.mark.timeout(1800 if KILLS else 240)
@pytest.mark.parametrize("n, row", [
    (2, {"strategy": "shared", "form": "fused"}),
    (3, {"strategy": "shared", "form": "two-phase", "overlap": True, "bucket_bytes": 50000, "max_norm": 0.5, "rest": True}),
    (2, {"strategy": "zero1", "form": "fused", "on_death": "finish"}),
    (2, {"strategy": "replicated", "form": "two-phase", "bucket_bytes": 50000}),
    (2, {"strategy": "zero1", "form": "fused", "dtype": "bf16", "ballast": 3000}),
    # The scale is in the cursor's hash, and overflows every 20 steps or so.
    (2, {"strategy": "shared", "form": "two-phase", "dtype": "f16", "ballast": 3000, "scale": 2**26, "scale_interval": 16, "overlap": True}),
], ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else str(value))
def test_kills_leave_the_bytes_of_an_uninterrupted_run(make_job, request, n, row):
    killer, plain = killed(make_job, request, n, 12 if "dtype" in row else 80, **row)
    if killer.n_kills >= MANY:
        assert killer.phases[UPDATE] and killer.hits["weightd"] and killer.hits["all"], str(killer)
    assert killer.job.digests() == plain.digests(), str(killer)
    if "scale" in row:
        overflows = [step for step, line in plain.steps(0).items() if line["overflowed"]]
        assert 10 < len(overflows) < STEPS / 4, overflows


@pytest.mark.plain  # one kill may miss the update
@pytest.mark.timeout(1800 if KILLS else 240)
def test_kills_without_a_journal_leave_other_bytes(make_job, request):
    """
    The control: the same experiment has to fail when an update that was killed is only repeated. A kill does no harm to a
    rank that waits in the update, so that once in many runs all 80 may miss.
    """
    told = []
    for _ in range(5):
        killer, plain = killed(make_job, request, 2, 80, strategy="shared", form="fused", without_journal=True)
        if killer.job.digests() != plain.digests():
            return
        told.append(str(killer))
    pytest.fail("\n".join(told))

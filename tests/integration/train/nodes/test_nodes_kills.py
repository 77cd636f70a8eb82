"""
SIGKILLs of ranks of several nodes, of their weightd, and of all at once, at random instructions: also between the moment in which
bytes of another node are there and the moment in which that is published. WEIGHTD_KILLS and WEIGHTD_KILLS_SEED as in test_kills.
"""
import sys

import pytest
from integration.train.killer import MODEL, Killer
from integration.train.test_kills import KILLS, MANY, SEED
from lib.trainer import UPDATE
from lib.wire import PATIENCE_S

STEPS = 120
TWO_PHASES = {"bucket_bytes": 50000}


@pytest.mark.timeout(1800 if KILLS else 240)
@pytest.mark.parametrize("nodes, n, row", [
    (2, 2, {"strategy": "shared", "overlap": True, "max_norm": 0.5, "rest": True}),
    (3, 1, {"strategy": "zero1", "dtype": "bf16", "ballast": 3000}),
    (2, 1, {"strategy": "replicated", "overlap": True}),
    (2, 2, {"strategy": "shared", "sync_every": 3}),
    (2, 1, {"strategy": "shared", "dtype": "f16", "ballast": 3000, "scale": 2**26, "scale_interval": 16}),
], ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else str(value))
def test_kills_on_any_node_leave_the_bytes_of_an_uninterrupted_run(make_nodes, request, nodes, n, row):
    options = MODEL | TWO_PHASES | {"steps": STEPS, "deadline": PATIENCE_S * 1000} | row
    plain = make_nodes(nodes, n, **options).run()
    n_kills = KILLS or 8
    killer = Killer(make_nodes(nodes, n, **options), n_kills, STEPS, f"{SEED} {request.node.name}").run()
    print(killer, file=sys.stderr)
    assert killer.n_done >= n_kills * 0.9, f"the job ended early: {killer}"
    assert n_kills < MANY or killer.phases[UPDATE], str(killer)
    assert killer.job.digests() == plain.digests(), str(killer)

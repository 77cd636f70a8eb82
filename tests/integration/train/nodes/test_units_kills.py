"""
SIGKILLs of ranks with pooled gradients ("zero2") and with units ("zero3"): at each unit that a pass opens and each bucket that it hands
over, of several ranks at once, and at random instructions. A step happens exactly once. WEIGHTD_KILLS and WEIGHTD_KILLS_SEED as
in test_kills.
"""
import os
import re
import select
import sys

import pytest
from integration.train.conftest import crossed
from integration.train.killer import MODEL, Killer, served_by
from integration.train.test_kills import KILLS, MANY, SEED
from lib.trainer import COMPUTE, UPDATE, pidfd_kill
from lib.wire import PATIENCE_S

STEPS = 80
BUCKETS = {"bucket_bytes": 1000}
SMALL = {"strategy": "zero3", "dropout": 0.1, "unit": 2, "deadline": PATIENCE_S * 1000, **BUCKETS}
ZERO2 = SMALL | {"strategy": "zero2"}


def held_at(job, rank, step, n_events, **options):
    """A process of the rank, once it is open for `n_events` units and buckets of a step."""
    started = job.start(rank, hold_within=f"{step}:{n_events}", **options)
    assert started.held() == step
    return started


@pytest.mark.parametrize("nodes, n, options, n_events", [
    (2, 1, ZERO2, 7), pytest.param(2, 2, ZERO2, 7, marks=pytest.mark.long), pytest.param(2, 1, SMALL, 11, marks=pytest.mark.long),
    (2, 2, SMALL, 11), (3, 1, SMALL | {"dtype": "bf16"}, 11),
    (2, 1, SMALL | {"without_prefetch": True, "levels": 1}, 12), (2, 2, SMALL | {"keeps_units": True, "evaluate_every": 1}, 15),
    (4, 1, SMALL | {"replicas": 2}, 11), pytest.param(4, 1, ZERO2 | {"replicas": 2}, 7, marks=pytest.mark.long)])
def test_a_rank_is_killed_at_each_unit_and_each_bucket(make_nodes, nodes, n, options, n_events):
    """One event a step, in the last rank of all, which survives the others' wait."""
    options = options | {"steps": n_events + 2}
    plain = make_nodes(nodes, n, **options).run()
    job = make_nodes(nodes, n, **options)
    victim = nodes * n - 1
    for rank in range(victim):
        job.start(rank)
    for event in range(1, n_events + 1):
        held_at(job, victim, event + 1, event).kill()
    job.start(victim)
    assert job.finish().digests() == plain.digests()


VICTIMS = (0,), (3,), (2, 3), (1, 3), (0, 2), (0, 1, 2), (0, 1, 2, 3)
EVENTS = {"zero2": (ZERO2, 3), "forward": (SMALL, 4), "backward": (SMALL, 9), "evaluation": (SMALL | {"evaluate_every": 1}, 2)}
WHERE = list(EVENTS)


@pytest.mark.plain  # the others run the same code sanitized
@pytest.mark.parametrize("victims, where", crossed(VICTIMS, WHERE, stays=lambda victims, where: VICTIMS.index(victims) % len(WHERE) == WHERE.index(where)),
                         ids=str)
def test_ranks_of_a_node_of_a_line_or_all_are_killed_twice_in_a_row(make_nodes, victims, where):
    (options, event), victims = EVENTS[where], list(victims)
    options = options | {"steps": 5}
    plain = make_nodes(2, 2, **options).run()
    job = make_nodes(2, 2, **options)
    for rank in {0, 1, 2, 3} - set(victims):
        job.start(rank)
    for _ in range(2):
        started = [job.start(rank, hold_within=f"3:{event}") for rank in victims]
        for rank in started:
            assert rank.held() == 3
        for rank in started:
            rank.kill()
    for rank in victims:
        job.start(rank)
    assert job.finish().digests() == plain.digests()


@pytest.mark.plain  # likewise
@pytest.mark.parametrize("where, victims, why", crossed(("zero2", "first", "forward", "backward"), ((3,), (1, 2)), ("fail", "deadline"), stays=lambda *values: values in {
    ("zero2", (3,), "fail"), ("first", (1, 2), "deadline"), ("forward", (3,), "deadline"), ("backward", (1, 2), "fail")}), ids=str)
def test_survivors_end_soon_and_all_continue(make_nodes, where, victims, why):
    """With both lines broken, none of the survivors waits for another node longer than for a rank of its own."""
    options, event = (EVENTS | {"first": (SMALL, 1)})[where]
    why = {"fail": {"on_death": "fail"}, "deadline": {"deadline": 1500, "begins_late": True}}[why]
    options = options | {"steps": 4}
    plain = make_nodes(2, 2, **options).run()
    job = make_nodes(2, 2, **options)
    survivors = [job.start(rank, **why) for rank in range(4) if rank not in victims]
    started = [job.start(rank, hold_within=f"3:{event}", **why) for rank in victims]
    for rank in started:
        assert rank.held() == 3
    for rank in started:
        rank.kill()
    for rank in survivors:
        status, errors = rank.wait(20)
        assert status == 1 and re.search("EOWNERDEAD|ETIMEDOUT", errors), errors
    for rank in range(4):
        job.start(rank)
    assert job.finish().digests() == plain.digests()


@pytest.mark.parametrize("event", [1, 3])
def test_a_rank_is_killed_while_it_reads_what_the_last_step_left(make_nodes, event):
    options = SMALL | {"steps": 3}
    plain = make_nodes(2, 2, **options).run()
    job = make_nodes(2, 2, **options)
    for rank in 0, 1, 2:
        job.start(rank)
    held_at(job, 3, 4, event).kill()
    job.start(3)
    assert job.finish().digests() == plain.digests()


BEHIND = SMALL | {"steps": 4, "evaluate_every": 1, "evaluate_behind": True}  # a rank that is started again does not evaluate


@pytest.mark.plain  # likewise
@pytest.mark.parametrize("nodes, n", [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("event", [1, 2])
def test_others_end_when_a_successor_leaves_out_the_evaluation_that_they_are_in(make_nodes, nodes, n, event):
    """They need its part of the last of four units. All train once they were started again."""
    plain = make_nodes(nodes, n, **BEHIND).run()
    job = make_nodes(nodes, n, **BEHIND)
    victim = nodes * n - 1
    others = {os.pidfd_open(rank.pid): rank for rank in map(job.start, range(victim))}
    held_at(job, victim, 3, event).kill()
    job.start(victim)
    while others:
        ended, _, _ = select.select([*others], [], [], PATIENCE_S)
        assert ended, job.progress()
        for fd in ended:
            os.close(fd)
            rank = others.pop(fd)
            status, errors = rank.wait()
            assert status == 1 and re.search("ENOTRECOVERABLE: .* was started again and is in the passes of step 3", errors), errors
            job.start(rank.rank)
    assert job.finish().digests() == plain.digests()


@pytest.mark.parametrize("nodes, n", [(2, 1), (2, 2)])
def test_a_successor_leaves_out_an_evaluation_whose_units_all_have(make_nodes, nodes, n):
    plain = make_nodes(nodes, n, **BEHIND).run()
    job = make_nodes(nodes, n, **BEHIND)
    victim = nodes * n - 1
    for rank in range(victim):
        job.start(rank)
    held_at(job, victim, 3, 4).kill()
    job.start(victim)
    assert job.finish().digests() == plain.digests()


@pytest.mark.parametrize("options", [ZERO2, SMALL], ids=["zero2", "zero3"])
def test_weightd_is_killed_in_a_pass(make_nodes, keeper, options):
    options = options | {"steps": 4}
    plain = make_nodes(2, 2, **options).run()
    job = make_nodes(2, 2, **options)
    ranks = [job.start(rank, hold_within="2:3") for rank in range(4)]
    assert [rank.held() for rank in ranks] == [2] * 4
    assert pidfd_kill(served_by(keeper))
    for rank in ranks:
        rank.go_on()
    assert job.finish().digests() == plain.digests()


@pytest.mark.timeout(1800 if KILLS else 240)
@pytest.mark.parametrize("nodes, n, row", [
    (1, 2, {"strategy": "zero2"}),
    (2, 1, {"strategy": "zero2", "max_norm": 0.5, "rest": True}),
    (2, 2, {"strategy": "zero2", "dtype": "bf16", "ballast": 3000}),
    (2, 1, {"strategy": "zero3", "unit": 1, "max_norm": 0.5}),
    (2, 2, {"strategy": "zero3", "unit": 2, "levels": 3, "evaluate_every": 3}),
    (3, 1, {"strategy": "zero3", "unit": 2, "dtype": "bf16", "ballast": 3000, "no_sync": 2}),
    (2, 1, {"strategy": "zero3", "keeps_units": True, "dtype": "f16", "ballast": 3000, "scale": 2**26, "scale_interval": 16}),
    pytest.param(4, 1, {"strategy": "zero3", "unit": 2, "replicas": 2, "max_norm": 0.5}, marks=pytest.mark.long),
], ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else str(value))
def test_kills_at_random_leave_the_bytes_of_an_uninterrupted_run(make_nodes, request, nodes, n, row):
    options = MODEL | {"bucket_bytes": 50000, "steps": STEPS, "deadline": PATIENCE_S * 1000} | row
    plain = make_nodes(nodes, n, **options).run()
    n_kills = KILLS or 6
    killer = Killer(make_nodes(nodes, n, **options), n_kills, STEPS, f"{SEED} {request.node.name}").run()
    print(killer, file=sys.stderr)
    assert killer.n_done >= n_kills * 0.9, f"the job ended early: {killer}"
    assert n_kills < MANY or killer.phases[UPDATE if row["strategy"] == "zero2" else COMPUTE], str(killer)
    assert killer.job.digests() == plain.digests(), str(killer)

"""ZeRO-1 and the shared replica (notes 3.3): owned bytes, moved bytes, and the death of an owner."""
import json
import subprocess
import time

import pytest
from integration.train.conftest import ROWS
from lib import features
from lib.trainer import difference
from lib.wire import PATIENCE_S

pytestmark = pytest.mark.plain  # test_train_executor and the kills run the same code sanitized

PAGE, HUGE = 4096, 2 << 20
CUT = 32  # elements


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_z_1_stages_0_and_1_have_equal_bits(make_job, oracle, n, optimizer):
    losses, _ = oracle(optimizer=optimizer)
    options = {"bucket_bytes": 700, "optimizer": optimizer}
    stage_0 = make_job(n, strategy="replicated", form="two-phase", **options).run()
    assert difference(stage_0.curve(), losses) <= 2e-6
    for form in "fused", "two-phase":
        stage_1 = make_job(n, strategy="zero1", form=form, **options).run()
        assert stage_1.curve() == stage_0.curve()
        assert [stage_1.bytes()[f"{rank}.PARAM"] for rank in range(n)] == [stage_0.bytes()[f"{rank}.PARAM"] for rank in range(n)]


def rounded(size):
    """The bytes of `size` bytes of memory in pages."""
    return -(-size // PAGE) * PAGE


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy, form", ROWS)
@pytest.mark.parametrize("model", [{}, {"ballast": 110_011, "width": 13, "heads": 1}], ids=["small", "large"])
def test_z_2_bytes_of_each_kind_are_those_of_the_formula(make_job, strategy, form, n, model):
    report = make_job(n, steps=1, strategy=strategy, form=form, **model).run().report(n - 1)
    size = report["shard"][1] * 4
    assert size % (CUT * 4) == 0
    ranges = {
        "PARAM": 1 if strategy == "shared" else n,
        "GRAD": n,
        "REDUCED": int(form == "two-phase"),
        "MOMENTS": 2 * (n if strategy == "replicated" else 1),
        "MASTER": 0,
    }
    for kind, n_ranges in ranges.items():
        assert report["plan"][kind] - n_ranges * rounded(size) in range(HUGE), kind
        assert report["plan"][kind] % PAGE == 0
    assert report["parts"] == report["plan"], "the memory of the job is what the plan predicts"
    if model:
        assert report["padding"] < size / 1000


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy, form", ROWS)
def test_z_3_bytes_that_move_are_those_of_the_formula(make_job, strategy, form, n):
    steps = 7
    reports = make_job(n, steps=steps, strategy=strategy, form=form).run().reports()
    size = reports[-1]["shard"][1] * 4
    moved = 0
    for report in reports:
        counted = {name: report["counted"][name] - report["filled"][name] for name in report["counted"]}
        assert counted == {name: value * steps for name, value in report["predicted"].items()}
        moved += sum(counted.values())
    assert moved == steps * (n - 1) * size * (1 if strategy == "shared" else 2)


@pytest.mark.parametrize("strategy, form", ROWS)
def test_z_3_nothing_moves_over_sockets_inside_a_node(keeper, make_job, strategy, form):
    """All ranks in one network namespace with a loopback interface alone, which has to carry nothing."""
    features.require("netns")
    job = make_job(3, steps=5, strategy=strategy, form=form, hold_at=5)
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec cat"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"\n"
        inside = ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]
        ranks = job.start_all(prefix=inside)
        assert [rank.held() for rank in ranks] == [5] * 3
        for rank in ranks:
            rank.go_on()
        job.finish()
        shown = subprocess.run([*inside, "ip", "-s", "-j", "link", "show", "lo"], check=True, capture_output=True, text=True).stdout
    finally:
        holder.stdin.close()
        holder.wait(PATIENCE_S)
        holder.stdout.close()
    stats = json.loads(shown)[0]["stats64"]
    assert stats["tx"]["bytes"] == stats["rx"]["bytes"] == 0
    assert all(report["counted"]["sent"] == 0 for report in job.reports())


@pytest.mark.parametrize("strategy, form", ROWS)
def test_z_7_survivors_of_an_owner_end_with_its_rank_and_the_step(make_job, strategy, form):
    job = make_job(3, steps=12, strategy=strategy, form=form, on_death="fail", deadline=60000)
    ranks = [job.start(rank, hold_at=6 if rank == 1 else None) for rank in range(3)]
    assert ranks[1].held() == 6
    ranks[1].kill()
    began = time.monotonic()
    for rank in ranks[0], ranks[2]:
        status, errors = rank.wait()
        assert status == 1 and "EOWNERDEAD" in errors and "rank 1" in errors.split("EOWNERDEAD")[1] and "step 6" in errors, errors
    assert time.monotonic() - began < 30, "long before the deadline"


@pytest.mark.parametrize("on_death", ["wait", "finish"])
@pytest.mark.parametrize("strategy, form", ROWS)
def test_z_7_a_restarted_owner_leaves_what_an_uninterrupted_run_leaves(make_job, strategy, form, on_death):
    options = {"steps": 12, "strategy": strategy, "form": form, "bucket_bytes": 500, "dropout": 0.1}
    plain = make_job(3, **options).run()
    job = make_job(3, on_death=on_death, **options)
    job.start(0)
    job.start(2)
    for step in 1, 6, 12:
        victim = job.start(1, hold_at=step)
        assert victim.held() == step
        victim.kill()
    job.start(1)
    assert job.finish().digests() == plain.digests()


@pytest.mark.parametrize("strategy, form", ROWS)
def test_z_7_a_survivor_can_call_again_once_the_owner_is_back(make_job, strategy, form):
    options = {"steps": 8, "strategy": strategy, "form": form}
    plain = make_job(2, **options).run()
    job = make_job(2, on_death="fail", keep_on=True, **options)
    survivor, victim = job.start(0), job.start(1, hold_at=4)
    assert victim.held() == 4
    victim.kill()
    assert survivor.held() == 4
    successor = job.start(1, hold_at=4)
    assert successor.held() == 4
    survivor.go_on()
    successor.go_on()
    assert job.finish().digests() == plain.digests()

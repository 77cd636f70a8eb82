"""The life of a job around its steps: its end, its rest without ranks, and the deaths of ranks."""
import json
import re
import signal
import subprocess
import time

import pytest
from integration.train.conftest import ROWS
from lib.trainer import END, all_held, pidfd_kill, words
from lib.wire import PATIENCE_S, Wire, until


def jobs(daemon):
    """Jobs by name, as weightctl lists them."""
    listed = json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]
    return {job["name"]: job for job in listed}


def charged(daemon):
    with Wire(daemon.socket) as wire:
        return wire.ping().n_bytes


def test_a_job_ends_with_its_last_rank_and_leaves_nothing(keeper, make_job):
    before = charged(keeper)
    job = make_job(2, steps=3, hold_at=2)
    ranks = job.start_all()
    assert [rank.held() for rank in ranks] == [2, 2]
    assert list(jobs(keeper)) == [job.name]
    for rank in ranks:
        rank.go_on()
    job.finish()
    assert jobs(keeper) == {}
    until(lambda: charged(keeper) == before, "its memory is free")


@pytest.mark.parametrize("strategy, form", ROWS)
def test_a_job_without_ranks_remains_with_its_step_and_resumes(keeper, make_job, strategy, form):
    options = {"steps": 20, "strategy": strategy, "form": form, "dropout": 0.2}
    plain = make_job(3, **options).run()
    job = make_job(3, **options)
    for stop in 7, 8, 15:
        job.run(stop_after=stop)
        listed = jobs(keeper)[job.name]
        assert listed["step"] == stop and listed["present"] == 0 and listed["ranks"] == 3
    assert job.run().digests() == plain.digests()
    assert job.curve() == plain.curve()


def test_a_job_that_was_removed_ends_the_step_of_its_ranks(keeper, make_job):
    job = make_job(2, steps=5)
    waiting, late = job.start(0), job.start(1, hold_at=3)
    assert late.held() == 3
    keeper.ctl("rm", job.name)
    status, errors = waiting.wait()
    assert status == 1 and "ESTALE" in errors and job.name in errors, errors
    late.go_on()
    assert late.wait()[0] == 1


@pytest.mark.parametrize("n", [1, 2])
def test_ranks_that_never_wait_long_notice_that_their_job_was_removed(keeper, make_job, n):
    job = make_job(n, steps=100_000_000, mlp=True, width=13, heads=1, length=3, losses=None)
    ranks = job.start_all()
    until(lambda: all(step >= 100 for step, *_ in job.progress()), "the ranks train")
    keeper.ctl("rm", job.name)
    for rank in ranks:
        status, errors = rank.wait()
        assert status == 1 and "ESTALE" in errors and f"job '{job.name}' was removed" in errors, errors
    steps = {step for step, *_ in job.progress()}
    assert max(steps) - min(steps) <= 1, steps


@pytest.mark.measures
def test_a_death_is_noticed_within_a_tenth_of_a_second(make_job):
    """The shortest of several tries: others may be the processors'."""
    took = []
    while len(took) < 5 and (not took or took[-1] >= 0.1):
        job = make_job(2, steps=5, on_death="fail")
        survivor, victim = job.start(0), job.start(1, hold_at=3)
        assert victim.held() == 3
        victim.proc.send_signal(signal.SIGKILL)
        began = time.monotonic()
        status, errors = survivor.wait()
        took.append(time.monotonic() - began)
        assert status == 1 and re.search("EOWNERDEAD.*rank 1.*step 3", errors), errors
    assert took[-1] < 0.1, took


@pytest.mark.parametrize("strategy, form", ROWS)
def test_a_stopped_rank_is_named_after_the_deadline(make_job, strategy, form):
    options = {"steps": 6, "strategy": strategy, "form": form}
    job = make_job(2, **options)
    waiting, stopped = job.start(0, deadline=400, keep_on=True), job.start(1, hold_at=4)
    assert all_held([stopped, waiting], 4)
    stopped.proc.send_signal(signal.SIGSTOP)
    stopped.go_on()
    waiting.go_on()
    assert waiting.held() == 4
    assert re.search(r"rank 0 calls again: .*rank 1.*step 4", waiting.errors.read_text()), waiting.errors.read_text()
    stopped.proc.send_signal(signal.SIGCONT)
    waiting.go_on()
    assert job.finish().digests() == make_job(2, **options).run().digests()


def test_a_successor_continues_where_another_rank_may_have_finished_for_it(make_job):
    options = {"steps": 400, "mlp": True, "ballast": 20000, "width": 13, "heads": 1, "length": 3}
    plain = make_job(2, **options).run()
    job = make_job(2, on_death="finish", deadline=PATIENCE_S * 1000, **options)
    survivor, victim = job.start_all(hold_before="300")  # the victim trains until it is killed
    until(lambda: job.progress()[1][0] >= 100, "rank 1 trains")
    victim.kill()
    job.start(1)
    assert survivor.held() == 300
    survivor.go_on()
    job.finish()
    assert job.digests() == plain.digests()
    assert job.progress()[1][1] == END and survivor.proc.returncode == 0


@pytest.mark.parametrize("strategy, form", ROWS)
def test_survivors_finish_the_step_of_a_dead_rank_and_wait_for_it_in_the_next(make_job, strategy, form):
    """Rank 1 dies with its gradients of step 4 handed over, and is not started again before the deadline."""
    options = {"steps": 6, "strategy": strategy, "form": form}
    plain = make_job(2, **options).run()
    job = make_job(2, on_death="finish", deadline=2000, **options)
    survivor, victim = job.start(0, hold_at=4, keep_on=True), job.start(1, keep_on=True)
    assert all_held([survivor, victim], 4)
    victim.kill()
    survivor.go_on()
    assert survivor.held() == 5
    assert re.search(r"rank 0 calls again: .*rank 1 .*step 5", survivor.errors.read_text()), survivor.errors.read_text()
    survivor.kill()
    assert job.progress()[0][0] == 5
    job.options |= {"deadline": PATIENCE_S * 1000}
    assert job.run().digests() == plain.digests()


@pytest.mark.parametrize("n", [1, 3])
def test_weightctl_starts_the_trainer_and_each_killed_rank_of_it(keeper, make_job, tmp_path, n):
    options = {"steps": 600, "mlp": True, "ballast": 8000, "width": 13, "heads": 1, "length": 3, "dropout": 0.1}
    plain = make_job(n, **options).run()
    job = make_job(n, **options)
    keeper.ctl("rm", job.name)
    program, *_ = job.command(0)
    command = ["train", "run", "-n", n, "--restart", 30, "--job", job.name, "--", program,
               *words(n=n, dump=job.folder / "dump", progress=job.folder / "progress", hold_before="300", **options)]
    launcher = keeper.spawn(*command, stdin=subprocess.PIPE)  # the ranks' own
    for step in 40, 150, 220:
        until(lambda: launcher.poll() is not None or all(seen >= step for seen, *_ in job.progress()), f"step {step}")
        assert launcher.poll() is None, launcher.communicate()
        assert pidfd_kill(job.progress()[step % n][3])
    out, errors = launcher.communicate(b"\n" * n, timeout=PATIENCE_S)  # they hold at step 300, so that there is a process to kill
    assert launcher.returncode == 0, errors
    assert sum(starts for _, _, starts, _ in job.progress()) == n + 3
    assert job.digests() == plain.digests()

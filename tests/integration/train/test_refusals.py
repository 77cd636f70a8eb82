"""Bad input to a job: refused with the thing and the way out, and the job continues with correct input."""
import re
from contextlib import closing

import pytest
from integration.train.conftest import ROWS
from lib.cgroup import MemoryCgroup
from lib.daemon import Daemon
from lib.trainer import Job, all_held


def test_a_rank_that_never_comes_is_named_after_the_deadline(make_job):
    job = make_job(3, steps=2)
    ranks = [job.start(rank, deadline=700) for rank in (0, 2)]
    for rank in ranks:
        status, errors = rank.wait()
        # Rank 2 may wait for rank 0, which ended at its deadline.
        assert status == 1 and "ETIMEDOUT" in errors and (rank.rank == 2 or "rank 1" in errors), errors
    job.start_all()
    job.finish()


@pytest.mark.parametrize("strategy, form", ROWS)
def test_a_rank_that_is_late_in_a_step_is_named_and_the_call_can_be_repeated(make_job, strategy, form):
    options = {"steps": 4, "strategy": strategy, "form": form}
    plain = make_job(2, **options).run()
    job = make_job(2, **options)
    late, waiting = job.start(0, hold_at=3), job.start(1, deadline=300, keep_on=True)
    assert all_held([late, waiting], 3)
    assert re.search(r"rank 1 calls again: .*rank 0.*step 3", waiting.errors.read_text()), waiting.errors.read_text()
    late.go_on()
    waiting.go_on()
    assert job.finish().digests() == plain.digests()


def test_a_rank_that_comes_twice_is_refused_with_the_pid_of_the_first(make_job):
    job = make_job(2, steps=3)
    first = job.start(0, hold_at=2)
    job.start(1)
    assert first.held() == 2
    status, errors = job.start(0, losses=None, report=None).wait()
    assert status == 1 and "EBUSY" in errors and str(first.pid) in errors and "rank 0" in errors, errors
    job.ranks[0] = first
    first.go_on()
    job.finish()


@pytest.mark.parametrize("spoil", [lambda token: token[:-1] + ("0" if token[-1] != "0" else "1"), lambda token: "other" + token,
                                   lambda token: token.split(":")[0], lambda token: token + "0", lambda token: ""],
                         ids=["digit", "name", "no digits", "too long", "empty"])
def test_a_wrong_token_opens_nothing(make_job, spoil):
    job = make_job(1, steps=1)
    good = job.token
    job.token = spoil(good)
    status, errors = job.start(0).wait()
    assert status == 1 and re.search("EACCES|ENOENT|EINVAL", errors) and good not in errors, errors
    job.token = good
    job.run()


@pytest.mark.parametrize("rank", [3, 255, 70000])
def test_a_rank_that_the_job_does_not_have(make_job, rank):
    job = make_job(3, steps=1)
    status, errors = job.start(0, rank=rank, progress=None).wait()
    assert status == 1 and "EINVAL" in errors and str(rank) in errors, errors
    job.run()


def test_an_instruction_set_that_this_machine_lacks(make_job):
    job = make_job(1, steps=1)
    status, errors = job.start(0, env={"WEIGHTD_TRAIN_ISA": "x86-64-v9"}, progress=None).wait()
    assert status == 1 and "EINVAL" in errors, errors
    assert re.search(r"\$WEIGHTD_TRAIN_ISA is 'x86-64-v9'; this machine has .*portable", errors), errors
    job.run(env={"WEIGHTD_TRAIN_ISA": "portable"})


def test_a_mesh_that_is_not_the_jobs(make_job):
    job = make_job(2, steps=1)
    status, errors = job.start(0, n=3, progress=None).wait()
    assert status == 1 and re.search("EPROTOTYPE|EINVAL", errors) and "3" in errors and "2" in errors, errors
    job.run()


def test_no_room_for_the_state_is_refused_before_the_first_step_with_the_arithmetic(tmp_path, require):
    require("cgroup")
    require("refs")
    with MemoryCgroup(96 << 20) as group, closing(Daemon("--keeper", prefix=group.prefix)) as daemon:
        with closing(Job(daemon, tmp_path / "large", 2, ballast=400_000, steps=1)) as job:  # 19 MB of parameters
            status, errors = job.start(0).wait()
            print(errors)
            assert status == 1 and "ENOMEM" in errors, errors
            assert len(re.findall(r"[0-9.]+ [KMG]?i?B", errors)) >= 2, f"needed and free: {errors}"
        with closing(Job(daemon, tmp_path / "small", 2, steps=2)) as job:
            job.run()


@pytest.mark.parametrize("strategy, form", ROWS)
def test_a_loss_that_is_not_a_number_changes_nothing_but_the_steps_number(make_job, oracle, strategy, form):
    options = {"steps": 20, "nan_at": "7:1"}
    losses, _ = oracle(**options)
    job = make_job(3, strategy=strategy, form=form, **options).run()
    assert [step for step in range(1, 21) if job.steps(0)[step]["skipped"]] == [7]
    assert max(abs(a - b) for a, b in zip(job.curve(), losses)) <= 2e-6
    for rank in range(3):
        assert re.search(r"rank 1.*step 7", job.ranks[rank].errors.read_text())

"""Programs that train with torch 2, from their start to their end: killed, started again, and done."""
import json
import os
import pathlib
import random
import signal
import stat
import subprocess
import sys
import time

import pytest
from lib import features
from lib.torch_ranks import PATIENCE_S

pytestmark = pytest.mark.timeout(600)

STEPS = 12
HERE = pathlib.Path(__file__).parent


def jobs(daemon):
    return json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]


def whole(host, daemon, n, steps=STEPS, **options):
    """The results of a run that nothing interrupts, rank by rank."""
    return host.play(daemon, "run", n, steps=steps, job="whole", **options)


def assert_same_end(results, expected):
    for result, want in zip(results, expected):
        for key in ("bits", "at", "lr", "last_lr"):
            assert result[key] == want[key], (key, result, want)
        assert result["losses"] == want["losses"][result["first"]:]


@pytest.mark.parametrize("moment", ("forward", "backward", "step"))
@pytest.mark.parametrize("options", ({}, {"strategy": "zero1"}, {"strategy": "replicated"},
                                     {"form": "two-phase", "overlap": True, "bucket_bytes": 512}),
                         ids=("shared", "zero1", "replicated", "overlap"))
def test_a_killed_rank_goes_on_at_its_step_with_the_same_bits(host, daemon, options, moment):
    """Dropout, running statistics, noise of three generators, a scheduler and a cursor included."""
    expected = whole(host, daemon, 2, **options)
    survives = host.start(daemon, "run", 0, 2, steps=STEPS, job="j", **options)
    dies = host.start(daemon, "run", 1, 2, steps=STEPS, job="j", dies=[5, moment], **options)
    assert dies.wait() == -signal.SIGKILL
    (job,) = jobs(daemon)
    assert job["name"] == "j"
    again = host.start(daemon, "run", 1, 2, steps=STEPS, job="j", **options)
    results = [survives.value(), again.value()]
    assert results[1]["first"] == (6 if moment == "step" else 5) and results[0]["first"] == 0
    assert_same_end(results, expected)
    assert jobs(daemon) == []


def test_all_ranks_killed_go_on_together(host, daemon):
    expected = whole(host, daemon, 2)
    ranks = [host.start(daemon, "run", rank, 2, steps=STEPS, job="j", dies=[5 + rank, "backward"]) for rank in (0, 1)]
    ranks[0].wait()
    ranks[1].kill()
    ranks[1].wait()
    assert_same_end(host.play(daemon, "run", 2, steps=STEPS, job="j"), expected)


def test_a_killed_rank_goes_on_with_a_weightd_that_was_killed_too(host, make_daemon):
    daemon = make_daemon("--keeper")
    expected = whole(host, daemon, 1)
    assert host.start(daemon, "run", 0, 1, steps=STEPS, job="j", dies=[5, "backward"]).wait() == -signal.SIGKILL
    daemon.kill()
    daemon.start()
    (result,) = host.play(daemon, "run", 1, steps=STEPS, job="j")
    assert result["first"] == 5
    assert_same_end([result], expected)


def kill_at_random(host, daemon, n, steps, n_kills, seed, **options):
    """Starts ranks, kills one at a random time, starts it anew, until all are done; the results, and the kills."""
    dice, kills = random.Random(seed), 0
    ranks = host.launch(daemon, "run", n, steps=steps, job="j", **options)
    while not all(rank.is_over() for rank in ranks):
        victim = dice.randrange(n)
        if ranks[victim].is_over(dice.uniform(0, 0.06)) or kills == n_kills:
            ranks[victim].is_over(0.25)
            continue
        ranks[victim].kill()
        if ranks[victim].wait() == -signal.SIGKILL:
            kills += 1
            ranks[victim] = host.start(daemon, "run", victim, n, steps=steps, job="j", **options)
    return [rank.value() for rank in ranks], kills


def test_random_kills_leave_no_trace(host, daemon):
    """WEIGHTD_PYTHON_KILLS and WEIGHTD_PYTHON_STEPS for more, which must fit; WEIGHTD_SEED for the same again."""
    wanted = os.environ.get("WEIGHTD_PYTHON_KILLS")
    n_kills = int(wanted or 10)
    steps = int(os.environ.get("WEIGHTD_PYTHON_STEPS", 800))
    seed = int(os.environ.get("WEIGHTD_SEED", random.randrange(2**32)))
    expected = whole(host, daemon, 2, steps=steps)
    results, kills = kill_at_random(host, daemon, 2, steps, n_kills, seed)
    assert kills >= (n_kills if wanted else 1), f"{kills} kills before the last step: more WEIGHTD_PYTHON_STEPS (seed {seed})"
    try:
        assert_same_end(results, expected)
    except AssertionError as e:
        raise AssertionError(f"seed {seed}: {e}") from None


def test_a_loss_that_is_nan_on_one_rank_changes_nothing_on_all(host, daemon):
    results = host.play(daemon, "nan_of_one", 2)
    for result in results:
        (sentence,) = result["errors"].values()
        assert list(result["errors"]) == ["2"] and "rank 1" in sentence
        before, at, after = result["bits"][1:]
        assert before == at != after
    assert results[0]["bits"] == results[1]["bits"]


@pytest.mark.parametrize("order", ((0, 1), (1, 0)))
def test_another_model_on_one_rank_is_refused_with_the_first_difference(host, daemon, order):
    first = host.start(daemon, "different", order[0], 2, job="j", deadline=20)
    if order[0] == 1:
        assert not first.is_over(1.0)
    else:
        first.wait()  # rank 0 needs nobody to open the job
    kind, sentence = host.start(daemon, "different", order[1], 2, job="j").error()
    assert kind == "LayoutMismatch" and "1.weight" in sentence, sentence
    first.end()


def test_two_processes_that_are_one_rank_are_refused(host, daemon):
    first = host.start(daemon, "run", 0, 2, steps=STEPS, job="j")
    assert not first.is_over(1.0)  # it waits for rank 1
    kind, sentence = host.start(daemon, "run", 0, 2, steps=STEPS, job="j").error()
    assert kind == "RankBusy" and "rank 0" in sentence and str(first.pid) in sentence
    first.end()


def test_a_rank_that_does_not_come_ends_the_wait_with_its_name(host, daemon):
    kind, sentence = host.start(daemon, "run", 0, 2, steps=STEPS, deadline=0.5).error()
    assert kind == "Timeout" and "rank 1" in sentence and "step 1" in sentence, sentence


def test_a_step_that_timed_out_goes_on_when_it_is_called_again(host, daemon):
    expected = host.play(daemon, "patient", 2, steps=4)
    early = host.start(daemon, "patient", 0, 2, steps=4, job="j")
    deadline = time.monotonic() + PATIENCE_S
    while "late: " not in early.log:
        assert not early.is_over(0.05) and time.monotonic() < deadline
    late = host.start(daemon, "patient", 1, 2, steps=4, job="j")
    found, _ = early.value(), late.value()
    assert found["late"] and "its gradient was handed over" in found["refused"] and found["cursor"] == 3
    assert found["bits"] == expected[0]["bits"]


def test_the_death_of_a_rank_is_an_error_where_the_job_says_so(host, daemon):
    survives = host.start(daemon, "run", 0, 2, steps=STEPS, job="j", on_death="fail")
    dies = host.start(daemon, "run", 1, 2, steps=STEPS, job="j", on_death="fail", dies=[5, "backward"])
    assert dies.wait() == -signal.SIGKILL
    kind, sentence = survives.error()
    assert kind == "RankDied" and "rank 1" in sentence and "step 6" in sentence, sentence


def test_versions_are_published_amid_training(host, daemon, weightd):
    results = host.play(daemon, "published", 2)
    for (version, values), (none, _) in zip(*results):
        assert none is None
        with weightd.attach("trained", version=version) as buffer:
            for name, value in values.items():
                assert list(buffer[name].numpy().flatten()) == pytest.approx(value, abs=0), name


@pytest.mark.parametrize("how, stays", (("a loop that is done", False), ("close", False), ("with", False), ("half way", True),
                                        ("an exception", True), ("an exception in with", True)))
def test_a_job_ends_with_its_program_unless_that_failed(host, daemon, how, stays):
    (status,) = host.play(daemon, "ended_by", how=how)
    assert status == ("exception" in how)
    assert [job["name"] for job in jobs(daemon)] == ["j"] * stays
    assert len(list(daemon.folder.glob("weightd-train/job-j-*"))) == stays


def test_a_job_that_was_removed_begins_anew_with_a_warning(host, daemon):
    host.start(daemon, "run", 0, 1, steps=STEPS, job="j", dies=[5, "step"]).wait()
    daemon.ctl("rm", "j")
    rank = host.start(daemon, "run", 0, 1, steps=STEPS, job="j")
    assert rank.value()["first"] == 0 and "job 'j' of" in rank.log and "is gone" in rank.log


def test_a_program_on_its_own_leaves_nothing_when_it_is_killed(host, daemon):
    """Nothing could find its job again."""
    by_hand = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    rank = host.start(daemon, "alone", 0, 1, env=by_hand)
    assert rank.wait() == -signal.SIGKILL and "a step was taken" in rank.log
    deadline = time.monotonic() + PATIENCE_S
    while jobs(daemon):
        assert time.monotonic() < deadline


def test_the_file_of_a_job_is_made_resumed_and_emptied(host, daemon, tmp_path):
    file = tmp_path / "token"
    env = {"WEIGHTD_JOB_FILE": str(file)}
    expected = whole(host, daemon, 1)
    assert host.start(daemon, "run", 0, 1, env=env, steps=STEPS, dies=[5, "backward"]).wait() == -signal.SIGKILL
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (job,) = jobs(daemon)
    assert file.read_text().startswith(job["name"] + ":")
    result = host.start(daemon, "run", 0, 1, env=env, steps=STEPS).value()
    assert result["first"] == 5 and file.read_text() == ""
    assert_same_end([result], expected)


def test_a_file_that_others_may_read_is_refused(host, daemon, tmp_path):
    file = tmp_path / "token"
    file.touch(0o644)
    kind, sentence = host.start(daemon, "run", 0, 1, env={"WEIGHTD_JOB_FILE": str(file)}, steps=STEPS).error()
    assert kind == "ValueError" and sentence.startswith(f"{file} holds the token of a job") and "0644" in sentence
    assert jobs(daemon) == []


def test_a_name_without_its_token_is_refused_with_the_ways_out(host, daemon):
    assert host.start(daemon, "run", 0, 1, steps=STEPS, job="j", dies=[5, "step"]).wait() == -signal.SIGKILL
    (file,) = daemon.folder.glob("weightd-train/job-j-*")
    file.unlink()
    kind, sentence = host.start(daemon, "run", 0, 1, steps=STEPS, job="j").error()
    assert kind == "Error" and "weightctl rm j" in sentence and "WEIGHTD_JOB_FILE" in sentence


@pytest.mark.parametrize("dies", ([2, 0], [2, 1]))
def test_two_modules_of_one_program_have_jobs_of_their_own(host, daemon, dies):
    expected = host.play(daemon, "two_models", 2, steps=5)
    assert expected[0] == expected[1] and jobs(daemon) == []
    env = {"MASTER_PORT": "1"}  # another run of the same launcher
    survives = host.start(daemon, "two_models", 0, 2, env=env, steps=5)
    assert host.start(daemon, "two_models", 1, 2, env=env, steps=5, dies=dies).wait() == -signal.SIGKILL
    again = host.start(daemon, "two_models", 1, 2, env=env, steps=5)
    assert [survives.value(), again.value()] == expected


def test_processes_that_a_program_spawned_are_ranks_by_their_parent(host, daemon):
    by_hand = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    ranks = [host.start(daemon, "by_rank", number, 2, env=by_hand, own_rank=number) for number in (0, 1)]
    assert ranks[0].value() == ranks[1].value() and jobs(daemon) == []

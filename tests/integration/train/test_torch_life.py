"""Programs that train with torch 2, from their start to their end: killed, started again, and done."""
import json
import os
import random
import signal
import stat

import pytest
from integration.train.conftest import crossed
from lib.torch_ranks import PATIENCE_S, interrupt, kill_at_random, wait_for
from lib.wire import Wire
from lib.wire import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.plain]

STEPS = 12
SCHEDULERS = ("CyclicLR", "CosineAnnealingLR", "ExponentialLR", "LinearLR", "PolynomialLR", "OneCycleLR", "LambdaLR",
              "SequentialLR", "two")  # of torch_scenes.py, which needs torch
DEATHS = (0, "backward"), (1, "step")


def jobs(daemon):
    return json.loads(daemon.ctl("ls", "--json").stdout)["jobs"]


def whole(host, daemon, n, steps=STEPS, **options):
    """The results of a run that nothing interrupts, rank by rank."""
    return host.play(daemon, "run", n, steps=steps, job="whole", **options)


def assert_same_end(results, expected):
    for result, want in zip(results, expected):
        for key in ("bits", "at", "lr", "last_lr"):
            assert result[key] == want[key], (key, result, want)
        for key in ("losses", "rates"):
            assert result[key] == want[key][result["first"]:], (key, result, want)


@pytest.mark.parametrize("row, moment", crossed(("shared", "zero1", "replicated", "two-phase"), ("forward", "backward", "step"), stays=lambda *values: (
    values[0] == "shared" or values in {("zero1", "step"), ("replicated", "backward"), ("two-phase", "backward")})))
def test_a_killed_rank_goes_on_at_its_step_with_the_same_bits(host, daemon, row, moment):
    """Dropout, running statistics, noise of three generators, a scheduler and a cursor included."""
    options = ROWS[row]
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
    with Wire(daemon.socket) as w:
        killed = w.ping().pid
        os.kill(killed, signal.SIGKILL)
    (result,) = host.play(daemon, "run", 1, steps=STEPS, job="j")
    assert result["first"] == 5
    with Wire(daemon.socket) as w:
        assert w.ping().pid != killed
    assert_same_end([result], expected)


@pytest.mark.parametrize("scheduler, death", crossed(SCHEDULERS, DEATHS, stays=lambda scheduler, death: (
    SCHEDULERS.index(scheduler) % 2 == DEATHS.index(death))), ids=str)
def test_a_scheduler_is_resumed_with_the_same_bits(host, daemon, scheduler, death):
    victim, moment = death
    expected = whole(host, daemon, 2, scheduler=scheduler)
    assert len(set(expected[0]["rates"][4:8])) > 1
    given = {"steps": STEPS, "job": "j", "scheduler": scheduler}
    ranks = [host.start(daemon, "run", rank, 2, dies=[5, moment] if rank == victim else None, **given)
             for rank in (0, 1)]
    assert ranks[victim].wait() == -signal.SIGKILL
    ranks[victim] = host.start(daemon, "run", victim, 2, **given)
    results = [rank.value() for rank in ranks]
    assert results[victim]["first"] == (6 if moment == "step" else 5)
    assert_same_end(results, expected)
    assert "Warning" not in ranks[victim].log


def test_a_scheduler_that_follows_metrics_is_restored_from_the_cursor(host, daemon):
    expected = host.play(daemon, "by_metrics", steps=8)[0]
    assert len(set(expected["rates"])) > 3
    assert host.start(daemon, "by_metrics", 0, 1, steps=8, job="j", dies=5).wait() == -signal.SIGKILL
    result = host.start(daemon, "by_metrics", 0, 1, steps=8, job="j").value()
    assert result["first"] == 5 and result["rates"] == expected["rates"][5:] and result["bits"] == expected["bits"]


def test_a_scheduler_of_another_rhythm_is_resumed_by_its_number_of_calls(host, daemon):
    expected = host.play(daemon, "every_other_step", steps=10)[0]["rates"]
    assert host.start(daemon, "every_other_step", 0, 1, steps=10, job="j", dies=4).wait() == -signal.SIGKILL
    result = host.start(daemon, "every_other_step", 0, 1, steps=10, job="j").value()
    assert result["first"] == 5 and result["rates"] == expected[5:]


def test_resume_refuses_a_second_call_and_schedulers_of_metrics(host, daemon):
    (found,) = host.play(daemon, "resume_refusals")
    assert found["plateau"].startswith("TypeError: ReduceLROnPlateau depends on the metrics") and found["first"] is None
    assert "resume() is called once, before the first step" in found["second"]


def test_a_refused_step_leaves_nothing_for_the_next_one(host, daemon):
    (found,) = host.play(daemon, "refused_steps")
    kinds = [refused.partition(":")[0] for refused, _, _ in found["refused"]]
    assert kinds == ["ValueError", "ValueError", "Error", "ValueError", "Error"], found
    assert [cursor for _, cursor, _ in found["refused"]] == [0, 1, 2, 3, 4]
    assert not any(is_stale for _, _, is_stale in found["refused"]) and found["same"]


def test_ctrl_c_interrupts_a_wait_and_the_step_can_be_called_again(host, daemon):
    expected = [rank.value() for rank in host.launch(daemon, "interrupted", 2, steps=3, again=True)]
    rank = host.start(daemon, "interrupted", 0, 2, steps=3, job="j", again=True)
    wait_for(rank, "it waits")
    interrupt(rank, lambda: "interrupted" in rank.log)
    other = host.start(daemon, "interrupted", 1, 2, steps=3, job="j", again=True)
    assert [rank.value(), other.value()] == expected == [[expected[0][0], 2]] * 2


def test_a_job_is_resumed_after_ctrl_c_ended_a_waiting_rank(host, daemon):
    """Its deadline is None: without the interruption it would wait for ever."""
    expected = [rank.value() for rank in host.launch(daemon, "interrupted", 2, steps=3, again=False)]
    rank = host.start(daemon, "interrupted", 0, 2, steps=3, job="j", again=False)
    wait_for(rank, "it waits")
    interrupt(rank, rank.is_over)
    assert rank.value() is None and [job["name"] for job in jobs(daemon)] == ["j"]
    assert host.play(daemon, "interrupted", 2, steps=3, job="j", again=False) == expected


def test_ctrl_c_interrupts_a_rank_that_waits_for_rank_0_to_open_the_job(host, daemon):
    rank = host.start(daemon, "interrupted", 1, 2, steps=3, job="j", again=False)
    until_present(daemon, rank)
    wait_for(rank, "it opens")
    interrupt(rank, rank.is_over)
    assert rank.value() is None and jobs(daemon) == []


def test_the_others_finish_the_step_of_a_rank_that_died_after_backward(host, daemon):
    expected = host.play(daemon, "finished", 2, steps=4)
    slow = host.start(daemon, "finished", 0, 2, steps=4, job="j", on_death="finish", holds=1)
    dies = host.start(daemon, "finished", 1, 2, steps=4, job="j", on_death="finish")
    wait_for(slow, "took 0", "T")
    wait_for(dies, "begins 1")
    dies.kill()
    dies.wait()
    slow.kill(signal.SIGCONT)
    until(lambda: "took 1" in slow.log, lambda: slow.log, PATIENCE_S)
    again = host.start(daemon, "finished", 1, 2, steps=4, job="j", on_death="finish")
    assert again.value() == expected[1] | {"first": 2} and slow.value() == expected[0]


ROWS = {"shared": {}, "zero1": {"strategy": "zero1"}, "replicated": {"strategy": "replicated"},
        "two-phase": {"form": "two-phase", "overlap": True, "bucket_bytes": 512}, "half": {"is_half": True},
        "zero2": {"strategy": "zero2", "bucket_bytes": 512}, "zero3": {"strategy": "zero3", "units": ["body.0", "body.4"]}}


@pytest.mark.parametrize("row", ROWS if os.environ.get("WEIGHTD_PYTHON_KILLS") else ("shared",))
def test_random_kills_leave_no_trace(host, daemon, row):
    """WEIGHTD_PYTHON_KILLS and WEIGHTD_PYTHON_STEPS for more, which must fit; WEIGHTD_SEED for the same again."""
    wanted = os.environ.get("WEIGHTD_PYTHON_KILLS")
    n_kills = int(wanted or 10)
    steps = int(os.environ.get("WEIGHTD_PYTHON_STEPS", 800))
    seed = int(os.environ.get("WEIGHTD_SEED", random.randrange(2**32)))
    expected = whole(host, daemon, 2, steps=steps, **ROWS[row])
    results, kills = kill_at_random(host, daemon, 2, n_kills, seed, steps=steps, **ROWS[row])
    enough = n_kills if wanted else 1
    assert kills >= enough, f"{kills} kills before the last step: more WEIGHTD_PYTHON_STEPS (seed {seed})"
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


def until_present(daemon, rank):
    """Until the first rank of a job has made its memory."""
    def is_there():
        assert not rank.is_over(), rank.log
        return any(job["state"] == "running" and job["size"] for job in jobs(daemon))

    until(is_there, lambda: rank.log, PATIENCE_S)


@pytest.mark.parametrize("order", ((0, 1), (1, 0)))
def test_another_model_on_one_rank_is_refused_with_the_first_difference(host, daemon, order):
    first = host.start(daemon, "different", order[0], 2, job="j", deadline=60)
    if order[0] == 1:
        until_present(daemon, first)
    else:
        first.wait()  # rank 0 needs nobody to open the job
    kind, sentence = host.start(daemon, "different", order[1], 2, job="j").error()
    assert kind == "LayoutMismatch" and "1.weight" in sentence, sentence
    first.end()


def test_two_processes_that_are_one_rank_are_refused(host, daemon):
    first = host.start(daemon, "run", 0, 2, steps=STEPS, job="j")
    until_present(daemon, first)
    kind, sentence = host.start(daemon, "run", 0, 2, steps=STEPS, job="j").error()
    assert kind == "RankBusy" and "rank 0" in sentence and str(first.pid) in sentence
    first.end()


def test_a_rank_that_does_not_come_ends_the_wait_with_its_name(host, daemon):
    kind, sentence = host.start(daemon, "run", 0, 2, steps=STEPS, deadline=0.5).error()
    assert kind == "Timeout" and "rank 1" in sentence and "step 1" in sentence, sentence
    assert sentence.endswith("; shard(deadline=) sets the deadline"), sentence


def test_a_step_that_timed_out_goes_on_when_it_is_called_again(host, daemon):
    expected = host.play(daemon, "patient", 2, steps=4)
    early = host.start(daemon, "patient", 0, 2, steps=4, job="j")
    until(lambda: "late: " in early.log or early.is_over(), lambda: early.log, PATIENCE_S)
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


def test_a_version_in_another_users_buffer_names_the_owner(host, daemon, weightd, require):
    require("root")
    host.play(daemon, "published", 1)
    daemon.ctl("chown", "12345", "trained")
    kind, sentence = host.start(daemon, "published", 0, 1).error()
    assert kind == "Denied" and "'trained' on host belongs to uid 12345, not to uid 0" in sentence, sentence
    (found,) = host.play(daemon, "published", 1, owner=12345)
    assert [version for version, _ in found] == [3], "in the job that failed before"
    assert weightd.attach("trained").owner == 12345


@pytest.mark.parametrize("how, stays", (("a loop that is done", False), ("close", False), ("with", False),
                                        ("half way", True), ("an exception", True), ("an exception in with", True)))
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


def test_the_job_of_a_program_on_its_own_lingers_for_a_minute(host, daemon):
    """Nothing could find it again."""
    by_hand = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    rank = host.start(daemon, "alone", 0, 1, env=by_hand)
    assert rank.wait() == -signal.SIGKILL and "a step was taken" in rank.log
    (job,) = jobs(daemon)
    assert job["linger_ns"] == 60 * 10**9, job
    assert list(daemon.folder.glob("weightd-train/*")) == []


@pytest.mark.parametrize("how", ("name", "file", "launcher", "alone"))
def test_a_job_that_could_not_be_opened_is_removed(host, daemon, make_daemon, tmp_path, how):
    """Its program created it: without values for its parameters, and without room for them."""
    file = tmp_path / "token"
    env = {"file": {"WEIGHTD_JOB_FILE": str(file)},
           "alone": dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))}.get(how, {})
    given = {"env": env} | ({"job": "j"} if how == "name" else {})
    full = make_daemon("--reserve", "1000T")
    for server, says in (daemon, "on the meta device"), (full, "missing"):
        kind, sentence = host.start(server, "meta_alone", 0, 1, **given).error()
        assert says in sentence, (kind, sentence)
        assert jobs(server) == [] and list(server.folder.glob("weightd-train/*")) == []
        assert how != "file" or file.read_text() == ""


def test_files_of_launched_jobs_that_are_gone_are_removed_by_the_next_start(host, daemon):
    given = {"steps": STEPS, "dies": [5, "step"]}
    for port in ("1", "2"):
        assert host.start(daemon, "run", 0, 1, env={"MASTER_PORT": port}, **given).wait() == -signal.SIGKILL
    gone, stays = sorted(jobs(daemon), key=lambda job: job["created"])
    assert len(list(daemon.folder.glob("weightd-train/run-*"))) == 2
    daemon.ctl("rm", gone["name"])
    (daemon.folder / "weightd-train/run-of-another-server").touch(0o600)
    host.start(daemon, "run", 0, 1, env={"MASTER_PORT": "3"}, steps=STEPS).value()
    left = {file.read_text().partition(":")[0]: file.name for file in daemon.folder.glob("weightd-train/*")}
    assert left == {stays["name"]: left[stays["name"]], "": "run-of-another-server"}


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


def test_a_job_that_was_created_for_a_killed_rank_is_created_anew(host, daemon):
    """The file has no token, and the name is taken."""
    assert host.start(daemon, "dies_creating", 0, 1, job="j").wait() == -signal.SIGKILL
    assert [job["name"] for job in jobs(daemon)] == ["j"]
    assert host.start(daemon, "run", 0, 1, steps=STEPS, job="j").value()["first"] == 0 and jobs(daemon) == []


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

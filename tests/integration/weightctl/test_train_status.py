"""weightctl train status, train metrics, top --job and trace explain --job: the ranks of a job, and which one the others wait for."""
import json
import os
import random
import re
import signal
import struct

import pytest
from integration.weightctl.test_weightctl import ctl_json, in_terminal, n_columns
from lib import features, trainer
from lib.child import run_as
from lib.daemon import tampering
from lib.native import Client
from lib.wire import until

OTHER = 12347
LATE = 2  # the rank that holds


@pytest.fixture
def make_job(daemon, tmp_path):
    features.require("refs")
    made = []

    def make(n=3, name="gpt", **options):
        made.append(trainer.Job(daemon, tmp_path / f"{len(made)}", n, name=name, **{"steps": 100_000} | options))
        return made[-1]

    yield make
    for job in made:
        job.close()


def status(daemon, *args):
    return ctl_json(daemon, "train", "status", *args)


def ranks(daemon, *args):
    return status(daemon, *args)["ranks"]


def start_with_a_late_rank(daemon, job):
    """All ranks; the last one holds in step 5, and the others wait for it: their rows."""
    for rank in range(job.n):
        job.start(rank, hold_at=5 if rank == LATE else None)
    assert job.ranks[LATE].held() == 5
    late = [(4, "waiting", LATE, "gradients")] * (job.n - 1) + [(4, "computing", None, None)]
    until(lambda: [(r["step"], r["phase"], r["waits"], r["what"]) for r in ranks(daemon, job.name)] == late,
          lambda: f"the others wait for the late rank: {ranks(daemon, job.name)}")
    return ranks(daemon, job.name)


@pytest.mark.parametrize("options", [{"form": "fused"}, {"form": "two-phase", "overlap": True}], ids=["fused", "overlap"])
def test_the_straggler_is_named(daemon, make_job, options):
    """In a step with overlap another thread of a rank waits, and it is the rank that waits."""
    job = make_job(**options)
    rows = start_with_a_late_rank(daemon, job)
    assert [row["pid"] for row in rows] == [job.ranks[i].pid for i in range(3)]
    assert all(row["loss"] > 0 and row["dim"] == "dp" and row["job"] == "gpt" for row in rows)
    assert all(row[key] >= 0 for row in rows for key in ("computed_ns", "waited_ns", "updated_ns", "for_ns", "read", "written"))
    assert all(row["read"] > 0 for row in rows)
    wait, = status(daemon)["waits"]
    assert (wait["job"], wait["straggler"], wait["phase"]) == ("gpt", LATE, "computing") and wait["rank"] < LATE
    assert wait["for_ns"] > rows[wait["rank"]]["for_ns"]
    *_, sentence = daemon.ctl("train", "status").stdout.splitlines()
    assert re.fullmatch(r"gpt: rank [01] waits \S+ m?s for rank 2 \(computing\); 1 other rank waits", sentence)
    top = daemon.ctl("top", "--job", "gpt", "--once").stdout.splitlines()
    assert top[0].split()[:3] == ["JOB", "RANK", "STEP"] and "for rank 2 (computing)" in top[-1]
    frame = json.loads(daemon.ctl("top", "--job", "gpt", "--once", "--json").stdout)
    assert [row["waits"] for row in frame["ranks"]] == [LATE, LATE, None] and "time" in frame
    explained = daemon.ctl("trace", "explain", "--job", "gpt").stdout
    assert re.match(r"Job gpt has 3 ranks, and completed step 4\.", explained) and "for rank 2 (computing)" in explained
    assert ctl_json(daemon, "trace", "explain", "--job", "gpt")["step"] == 4
    job.ranks[LATE].go_on()
    until(lambda: min(row["step"] for row in ranks(daemon)) > 10, "all ranks continue")
    job.ranks[1].kill()
    until(lambda: status(daemon)["waits"] and status(daemon)["waits"][0]["phase"] == "gone", "the others wait for the dead rank")
    row = ranks(daemon)[1]
    assert (row["phase"], row["pid"], row["for_ns"]) == ("gone", None, None) and row["step"] > 10


@pytest.fixture
def late_nodes(daemon, tmp_path, request):
    """Two nodes of two ranks, of which the last one holds in step 5. Other options, and when it holds: param of the fixture."""
    features.require("refs")
    features.require("train-gloo")
    options, hold = getattr(request, "param", ({"form": "two-phase"}, {"hold_at": 5}))
    nodes = trainer.Nodes(daemon, tmp_path / "two", nodes=2, n=2, steps=100_000, **options)
    for i, job in enumerate(nodes.jobs):
        for rank in range(2):
            job.start(rank, **hold if (i, rank) == (1, 1) else {})
    assert nodes.jobs[1].ranks[1].held() == 5
    yield nodes
    nodes.close()


def test_ranks_that_wait_for_a_node_name_it(daemon, late_nodes):
    """Each job has the ranks of its node, by their numbers in the mesh."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    here, there = (job.name for job in late_nodes.jobs)

    def rows(job):
        return [(row["rank"], row["phase"], row["waits"], row["node"], row["what"]) for row in ranks(daemon, job)]

    until(lambda: rows(here) == [(0, "waiting", None, 1, "nodes"), (1, "waiting", None, 1, "nodes")], lambda: f"node 0 waits: {rows(here)}")
    until(lambda: rows(there) == [(2, "waiting", 3, None, "gradients"), (3, "computing", None, None, None)], lambda: f"node 1: {rows(there)}")
    assert all(row["sent"] > 0 for job in (here, there) for row in ranks(daemon, job))
    wait, = status(daemon, here)["waits"]
    assert wait["node"] == 1 and "straggler" not in wait
    wait, = status(daemon, there)["waits"]
    assert (wait["rank"], wait["straggler"], wait["phase"]) == (2, 3, "computing")
    assert re.fullmatch(rf"{here}: rank [01] waits \S+ m?s for node 1; 1 other rank waits", daemon.ctl("train", "status", here).stdout.splitlines()[-1])
    code, output = in_terminal(daemon, "train", "status", here, there)
    lines = output.splitlines()
    assert code == 0 and max(map(n_columns, lines[:5])) <= 80, output
    waits = [line[lines[0].index("FOR"):lines[0].index("COMPUTED")].rstrip() for line in lines[1:5]]
    assert [bool(re.search(end, text)) for end, text in zip((" node 1$", " node 1$", " 3$", " -$"), waits)] == [True] * 4, output
    assert "for node 1" in daemon.ctl("top", "--job", here, "--once").stdout.splitlines()[-1]
    explained = daemon.ctl("trace", "explain", "--job", there).stdout
    assert explained.startswith(f"Job {there} has 2 ranks of node 1 of 2, and completed step 4.")
    assert "rank 2, waiting" in explained and "sent to other nodes" in explained
    families = {f.name: f for f in text_string_to_metric_families(daemon.ctl("train", "metrics").stdout)}
    waits = {s.labels["rank"]: (s.labels["waits_for"], s.labels["what"]) for s in families["weightd_train_wait_seconds"].samples}
    assert waits == {"0": ("node 1", "nodes"), "1": ("node 1", "nodes"), "2": ("3", "gradients")}
    assert {s.labels["rank"] for s in families["weightd_train_sent_bytes"].samples if s.value} == {"0", "1", "2", "3"}
    late_nodes.jobs[1].ranks[1].go_on()
    until(lambda: min(row["step"] for job in (here, there) for row in ranks(daemon, job)) > 10, "all ranks continue")


@pytest.mark.parametrize("late_nodes", [({"strategy": "zero3", "form": None}, {"hold_before": "5"})], ids=["zero3"], indirect=True)
def test_ranks_that_wait_for_parameters_of_a_unit_name_the_one_that_fetches_them(daemon, late_nodes):
    """The other rank of its node waits for the late one, and the ranks of node 0 for that node."""
    names = [job.name for job in late_nodes.jobs]

    def rows():
        return [(row["rank"], row["phase"], row["waits"], row["node"], row["what"]) for job in names for row in ranks(daemon, job)]

    waits = [(0, "waiting", None, 1, "nodes"), (1, "waiting", None, 1, "nodes"),
             (2, "waiting", 3, None, "units"), (3, "computing", None, None, None)]
    until(lambda: rows() == waits, lambda: f"all wait: {rows()}")
    for verb in (("train", "status", names[1]), ("top", "--once", "--job", names[1])):
        code, output = in_terminal(daemon, *verb, "-o", "JOB,RANK,STEP,PHASE,FOR,WAITS,WHAT,COMPUTED,WAITED")
        assert code == 0 and max(map(n_columns, output.splitlines())) <= 80 and re.search(r" 3 +units ", output), output
    assert re.search(r'wait_seconds\{.*rank="2".*waits_for="3".*what="units".*\}', daemon.ctl("train", "metrics").stdout)


@pytest.mark.parametrize("late_nodes", [({"strategy": "zero3", "form": None, "replicas": 2}, {"hold_before": "5"})], ids=["zero3"], indirect=True)
def test_bytes_are_told_by_dimension_of_the_mesh(daemon, late_nodes):
    """Each node is a replica: its ranks read of each other along shard, and send along replicate alone."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    rows = [row for job in late_nodes.jobs for row in ranks(daemon, job.name)]
    assert {row["dim"] for row in rows} == {"shard"} and all(row["sent"] == row["replicas"] > 0 and row["read"] > 0 for row in rows)
    explained = daemon.ctl("trace", "explain", "--job", late_nodes.jobs[1].name).stdout
    assert re.search(r"written along shard, (\S+ .?B) sent to other nodes, \1 of it along replicate$", explained, re.M), explained
    families = {f.name: f for f in text_string_to_metric_families(daemon.ctl("train", "metrics").stdout)}
    for name, dims in {"read": ("shard",), "sent": ("replicate",)}.items():
        samples = {(int(s.labels["rank"]), s.labels["dim"]): s.value for s in families[f"weightd_train_{name}_bytes"].samples}
        assert {key for key, value in samples.items() if value} == {(rank, dim) for rank in range(4) for dim in dims}
        assert len(samples) == 8


def test_metrics_are_openmetrics_of_all_jobs(daemon, make_job, tmp_path):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    assert daemon.ctl("train", "metrics").stdout.splitlines()[-1] == "# EOF"
    start_with_a_late_rank(daemon, make_job())
    assert daemon.ctl("train", "metrics", "--output", str(tmp_path / "text")).stdout == ""
    families = {f.name: f for f in text_string_to_metric_families((tmp_path / "text").read_text())}
    samples = {name: {s.labels["rank"]: s for s in f.samples} for name, f in families.items()}
    assert {s.value for s in samples["weightd_train_steps"].values()} == {4}
    assert set(samples["weightd_train_loss"]) == {"0", "1", "2"}
    assert {rank: s.labels["waits_for"] for rank, s in samples["weightd_train_wait_seconds"].items()} == {"0": "2", "1": "2"}
    assert samples["weightd_train_read_bytes"]["0"].labels == {"job": "gpt", "rank": "0", "dim": "dp"}
    rows = ranks(daemon)
    assert samples["weightd_train_read_bytes"]["0"].value == rows[0]["read"] > 0
    assert samples["weightd_train_waiting_seconds"]["1"].value == rows[1]["waited_ns"] / 1e9


def test_a_rank_that_closed_the_job_is_done(daemon, make_job):
    job = make_job(n=2)
    job.start(1, steps=3)
    job.start(0)
    until(lambda: [row["phase"] for row in ranks(daemon)] == ["waiting", "done"], lambda: f"rank 0 waits for one that has left: {ranks(daemon)} {job.ranks[1].wait(1)}", 5)
    assert "rank 0 waits" in daemon.ctl("train", "status").stdout.splitlines()[-1]
    assert status(daemon)["waits"][0]["phase"] == "done" and ranks(daemon)[1]["step"] == 3


def test_jobs_that_do_not_train_are_left_out_and_refused_by_name(daemon, make_job):
    assert status(daemon) == {"ranks": [], "waits": []}
    code, output = in_terminal(daemon, "train", "status")
    assert code == 0 and "no job of yours trains now" in output
    with Client(daemon.socket) as client, client.join(client.create_job("other"), 0) as job:
        token = client.create_job("new", 2)
        assert status(daemon) == {"ranks": [], "waits": []}
        for name, sentence in {"other": "job 'other' is no training job of this release", "new": "no rank has joined job 'new' yet",
                               "none": "there is no job 'none'"}.items():
            for verb in ["train", "status"], ["trace", "explain", "--job"], ["top", "--once", "--job"]:
                done = daemon.ctl(*verb, name, check=False)
                assert done.returncode == 1 and sentence in done.stderr, done
        assert token and job


def test_the_table_fits_into_80_columns(daemon, make_job):
    job = make_job(n=2, name="n" * 100)
    job.start_all()
    until(lambda: ranks(daemon) and ranks(daemon)[1]["step"] > 3, "it trains")
    code, output = in_terminal(daemon, "train", "status")
    lines = output.splitlines()
    assert code == 0 and max(map(n_columns, lines[:3])) <= 80 and lines[0].split()[0] == "JOB"
    assert "n" * 100 in daemon.ctl("train", "status").stdout


def test_a_job_of_another_user_is_neither_shown_nor_read(require, make_daemon, tmp_path):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    job = trainer.Job(daemon, tmp_path / "job", 1, name="roots", steps=100_000)
    try:
        job.start(0)
        until(lambda: ranks(daemon), "it trains")

        def look(*args):
            return run_as(OTHER, lambda: daemon.ctl(*args, check=False))

        assert json.loads(look("train", "status", "--json").stdout) == {"ranks": [], "waits": []}
        done = look("train", "status", "roots")
        assert done.returncode == 1 and f"uid {OTHER} may not view job 'roots'" in re.sub(r" \(\w+\)", "", done.stderr)
    finally:
        job.close()


def test_whatever_a_rank_writes_is_shown(daemon, make_job):
    """Part 0 is full of random bytes, has a hole, or another head: each verb ends well, or with a sentence."""
    job = make_job()
    start_with_a_late_rank(daemon, job)
    path = part_0(job.ranks[LATE].pid)
    rng = random.Random(7)
    with tampering(path) as part:
        size = os.fstat(part.fileno()).st_size
        for rank in job.ranks.values():
            os.kill(rank.pid, signal.SIGSTOP)  # they keep their locks, and do not see it
        head = os.pread(part.fileno(), 4096, 0)
        for fill in lambda n: b"\xff" * n, rng.randbytes, bytes:
            os.pwrite(part.fileno(), fill(size - 4096), 4096)
            for verb in ["train", "status"], ["train", "status", "-J"], ["train", "metrics"], ["trace", "explain", "--job", "gpt"]:
                done = daemon.ctl(*verb, check=False)
                assert done.returncode == 0 and done.stderr == "", done
            assert len(ranks(daemon)) == 3
        for wrong, sentence in {head.replace(struct.pack("<I", 3), struct.pack("<I", 4)): "not of this release",
                                rng.randbytes(4096): "not of this release", bytes(4096): "no rank of job 'gpt' has begun"}.items():
            os.pwrite(part.fileno(), wrong, 0)
            done = daemon.ctl("train", "status", "gpt", check=False)
            assert done.returncode == 1 and sentence in done.stderr, done
            assert status(daemon)["ranks"] == []


def part_0(pid):
    """The file of a process that is part 0 of the job."""
    folder = f"/proc/{pid}/fd"
    return next(f"{folder}/{fd}" for fd in os.listdir(folder) if "weightd-job:gpt:JOURNAL" in os.readlink(f"{folder}/{fd}"))


def test_options_that_do_not_fit_are_refused(daemon):
    for args in ["trace", "explain", "--job", "gpt", "--recording", "x"], ["trace", "explain", "--job"], ["train", "metrics", "x"], \
            ["train", "status", "-o", "NOTHING"], ["top", "--job", "x", "-o", "RATE"]:
        assert daemon.ctl(*args, check=False).returncode == 2, args

"""weightctl train profile: a table of collectives, like that of nccl-tests."""
import json
import os
import pathlib
import re
import signal

import pytest
from integration.weightctl.test_weightctl import ctl_json, in_terminal, n_columns
from lib.native import Client
from lib.wire import until

COLLECTIVES = ["barrier", "all-reduce", "reduce-scatter", "all-gather", "broadcast"]


def profile(daemon, *args):
    return json.loads(daemon.ctl("train", "profile", "--json", *args, timeout=300).stdout)


@pytest.mark.parametrize("n", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_each_collective_is_measured_with_each_size(daemon, n):
    found = profile(daemon, "-n", n, "--size", "1KiB..8KiB")
    assert found["ranks"] == n and found["dtype"] == "F32" and found["isa"]
    rows = found["profile"]
    assert [(row["collective"], row["size"]) for row in rows] == \
        [("barrier", None), *((c, size) for c in COLLECTIVES[1:] for size in (1024, 4096, 8192))]
    factors = {"all-reduce": 2 * (n - 1) / n, "reduce-scatter": (n - 1) / n, "all-gather": (n - 1) / n, "broadcast": 1}
    for row in rows:
        assert 0 < row["min_ns"] <= row["time_ns"] and row["rounds"] >= 7
        if row["collective"] == "barrier":
            assert (row["algbw"], row["busbw"]) == (None, None)
            continue
        assert row["algbw"] == pytest.approx(row["size"] / row["time_ns"] * 1e9, rel=0.02)
        assert (row["busbw"] or 0) == pytest.approx(row["algbw"] * factors[row["collective"]], rel=0.001, abs=1)
    assert ctl_json(daemon, "ls") == {"buffers": [], "jobs": []}


def test_a_table_of_bf16(daemon):
    status, output = in_terminal(daemon, "train", "profile", "-n", "2", "--size", "64KiB", "--dtype", "bf16")
    lines = output.splitlines()
    assert status == 0 and lines[0].split() == ["COLLECTIVE", "SIZE", "TIME", "MIN", "ALGBW", "BUSBW"]
    assert [line.split()[0] for line in lines[1:]] == COLLECTIVES and max(map(n_columns, lines)) <= 80
    assert re.fullmatch(r"all-reduce +65536 +\d+\.\d us +\d+\.\d us +\d+\.\d [kMG]B/s +\d+\.\d [kMG]B/s", lines[2])
    assert profile(daemon, "-n", 1, "--size", 64, "--dtype", "bf16")["dtype"] == "BF16"


def ranks_of(pid):
    """Its children."""
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("victim, status", [("a rank", 128 + signal.SIGKILL), ("weightctl", -signal.SIGKILL), ("weightctl by SIGTERM", 128 + signal.SIGTERM)])
def test_nothing_is_left_when_one_is_killed(daemon, victim, status):
    with Client(daemon.socket) as client:
        program = daemon.spawn("train", "profile", "-n", 2, text=True)
        until(lambda: any(row["n_present"] == 2 for row in client.jobs().values()), "both ranks have joined")
        ranks = ranks_of(program.pid)
        assert len(ranks) == 2
        if victim == "a rank":
            os.kill(ranks[1], signal.SIGKILL)
        else:
            program.send_signal(signal.SIGTERM if "SIGTERM" in victim else signal.SIGKILL)
        out, err = program.communicate(timeout=60)
        assert program.returncode in (status, 1 if victim == "a rank" else status), (out, err)
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks), "the ranks have ended")
        until(lambda: client.jobs() == {}, "the job has ended")


@pytest.mark.parametrize("args, sentence", [
    ([], "wants the number of ranks, -n N"), (["-n", 0], "-n wants a number from 1 to 256"),
    (["-n", 2, "--size", "0"], "--size wants bytes or a range"), (["-n", 2, "--size", "8KiB..1KiB"], "--size wants bytes or a range"),
    (["-n", 2, "--size", "1KiB.."], "--size wants bytes or a range"), (["-n", 2, "--size", "1kB"], "--size wants bytes or a range"),
    (["-n", 2, "--size", "100"], "--size wants multiples of 64"), (["-n", 2, "--size", "5GiB"], "--size wants multiples of 64, up to 4GiB"),
    (["-n", 2, "--dtype", "f16"], "--dtype wants f32 or bf16, not 'f16'"), (["-n", 2, "more"], "takes no arguments"),
    (["-n", 2, "-o", "NONE"], "there is no column 'NONE'")])
def test_a_mistake_is_explained(daemon, args, sentence):
    done = daemon.ctl("train", "profile", *args, check=False)
    assert done.returncode == 2 and sentence in done.stderr and done.stdout == ""
    assert ctl_json(daemon, "ls")["jobs"] == []


def test_without_room_the_arithmetic_is_explained_once(make_daemon):
    daemon = make_daemon("--reserve", "1000000G")
    done = daemon.ctl("train", "profile", "-n", 3, "--size", "1MiB", check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch("weightctl: .*needs .*\n", done.stderr), done.stderr
    assert ctl_json(daemon, "ls")["jobs"] == []

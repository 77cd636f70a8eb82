"""Jobs in weightctl ls and rm."""
import os
import pwd
import re

import pytest
from integration.weightctl.test_weightctl import complete, ctl_json, in_terminal, n_columns
from lib.child import run_as
from lib.native import Client
from lib.wire import until

OTHER = 12347
PARTS = ("JOURNAL", 4096), ("PARAM", 1_995_904)


@pytest.fixture
def client(daemon):
    with Client(daemon.socket) as c:
        yield c


@pytest.fixture
def rank(daemon, client):
    """Rank 1 of 4 of the job "gpt", which is at step 41."""
    token = client.create_job("gpt", 4, linger_ms=7_200_000)
    with Client(daemon.socket) as c, c.join(token, 1, PARTS) as job:
        os.pwrite(job.fd(), (41).to_bytes(8, "little"), 0)
        yield job


def jobs(daemon):
    return {row["name"]: row for row in ctl_json(daemon, "ls")["jobs"]}


USER = pwd.getpwuid(os.getuid()).pw_name


# --- ls -------------------------------------------------------------------------------------------


def test_jobs_have_a_table_of_their_own_below_the_buffers(daemon, client, rank):
    client.publish("m", b"abcd")
    client.create_job("another")
    buffers, table = daemon.ctl("ls").stdout.split("\n\n")
    assert [line.split()[0] for line in buffers.splitlines()] == ["NAME", "m"]
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["NAME", "USER", "PRESENT", "STEP", "SIZE", "STATE", "AGE"]
    assert lines[1][:-1] == ["another", USER, "0/1", "0", "0", "B", "new"] and re.fullmatch(r"\d+s", lines[1][-1])
    assert lines[2][:-1] == ["gpt", USER, "1/4", "41", "2.0", "MB", "running"]


def test_without_jobs_there_is_no_table_of_them(daemon, client):
    client.publish("m", b"abcd")
    assert len(daemon.ctl("ls").stdout.splitlines()) == 2


def test_without_buffers_the_jobs_are_the_only_table(daemon, rank):
    lines = daemon.ctl("ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "gpt"]
    status, output = in_terminal(daemon, "ls")
    assert status == 0 and "no buffers" not in output and "gpt" in output


def test_a_vacant_job_shows_since_when(daemon, client, rank):
    rank.free()
    until(lambda: client.jobs()["gpt"]["n_present"] == 0, "the rank has gone")
    assert re.search(r"^gpt +\S+ +0/4 +41 +2\.0 MB vacant \d+s +\d+s$", daemon.ctl("ls").stdout, re.M)
    row = jobs(daemon)["gpt"]
    assert (row["state"], row["present"]) == ("vacant", 0) and 0 <= row["vacant_ns"] <= row["age_ns"]


def test_lines_for_scripts_are_those_of_buffers(daemon, client, rank):
    client.publish("m", b"abcd")
    for options in ["-o", "NAME"], ["-n"], ["-n", "-o", "NAME"]:
        assert "gpt" not in daemon.ctl("ls", *options).stdout
    assert "gpt" in daemon.ctl("ls", "--device", "host").stdout


def test_json_always_has_the_list_of_jobs(daemon, client):
    assert ctl_json(daemon, "ls")["jobs"] == []
    client.create_job("gpt", 4)
    row, = ctl_json(daemon, "ls", "-o", "NAME")["jobs"]
    created, age = row.pop("created"), row.pop("age_ns")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created) and 0 < age < 10**12
    group = row.pop("group")
    assert isinstance(group, str)
    assert row == {"name": "gpt", "user": USER, "uid": os.getuid(), "gid": os.getgid(), "present": 0, "ranks": 4, "done": 0, "step": 0,
                   "size": 0, "state": "new", "vacant_ns": None, "linger_ns": None}


def test_json_of_a_running_job_has_numbers(daemon, rank):
    row = jobs(daemon)["gpt"]
    assert (row["present"], row["ranks"], row["step"], row["size"], row["state"]) == (1, 4, 41, 2_000_000, "running")
    assert (row["linger_ns"], row["vacant_ns"]) == (7200 * 10**9, None)


def test_exact_sizes_of_jobs(daemon, rank):
    assert " 2000000 " in daemon.ctl("ls", "-b").stdout


def test_tables_of_jobs_fit_into_80_columns(daemon, client):
    for name in "n" * 127, "m" * 60, "gpt":
        token = client.create_job(name, 256)
        with Client(daemon.socket) as c, c.join(token, 255) as job:
            os.pwrite(job.fd(), (10**7).to_bytes(8, "little"), 0)
    status, output = in_terminal(daemon, "ls")
    assert status == 0 and max(n_columns(line) for line in output.splitlines()) <= 80
    assert "n" * 127 in daemon.ctl("ls").stdout


def test_the_jobs_of_another_user_are_not_listed(require, daemon, client):
    require("root")
    os.chmod(daemon.socket, 0o666)
    client.create_job("roots")

    def make():
        with Client(daemon.socket) as c:
            c.create_job("theirs")
            return list(c.jobs())

    assert run_as(OTHER, make) == ["theirs"]
    assert {name: row["uid"] for name, row in jobs(daemon).items()} == {"roots": 0, "theirs": OTHER}


# --- rm -------------------------------------------------------------------------------------------


def test_rm_removes_a_job_if_no_buffer_has_the_name(daemon, client, rank):
    client.publish("m", b"abcd")
    daemon.ctl("rm", "m", "gpt")
    assert ctl_json(daemon, "ls") == {"buffers": [], "jobs": []}


def test_a_buffer_has_precedence_over_a_job_with_its_name(daemon, client, rank):
    client.publish("gpt", b"abcd")
    daemon.ctl("rm", "gpt")
    listed = ctl_json(daemon, "ls")
    assert listed["buffers"] == [] and [job["name"] for job in listed["jobs"]] == ["gpt"]


def test_rm_job_leaves_the_buffer(daemon, client, rank):
    client.publish("gpt", b"abcd")
    daemon.ctl("rm", "--job", "gpt")
    listed = ctl_json(daemon, "ls")
    assert listed["jobs"] == [] and [buffer["name"] for buffer in listed["buffers"]] == ["gpt"]


@pytest.mark.parametrize("args, status, sentence", [
    (["--job", "none"], 1, "there is no job 'none'"), (["none"], 1, "there is no buffer 'none' on host"),
    (["gpt@1"], 1, "there is no buffer 'gpt' on host"), (["--device", "host", "gpt"], 1, "there is no buffer 'gpt' on host"),
    (["--job", "gpt@1"], 2, "job 'gpt' has no versions"), (["--job", "--device", "host", "gpt"], 2, "exclude each other")])
def test_what_cannot_be_removed_is_explained(daemon, rank, args, status, sentence):
    done = daemon.ctl("rm", *args, check=False)
    assert done.returncode == status and sentence in done.stderr
    assert list(jobs(daemon)) == ["gpt"]


def test_the_rest_is_removed(daemon, client, rank):
    client.create_job("another")
    done = daemon.ctl("rm", "--job", "none", "gpt", "another", check=False)
    assert done.returncode == 1 and jobs(daemon) == {}


def test_a_job_of_another_user_is_not_removed(require, daemon, client, rank):
    require("root")
    os.chmod(daemon.socket, 0o666)

    def remove():
        with Client(daemon.socket) as c:
            c.remove_job("gpt")

    with pytest.raises(Exception, match="may not remove job 'gpt'"):
        run_as(OTHER, remove)
    assert list(jobs(daemon)) == ["gpt"]


# --- Completion -----------------------------------------------------------------------------------


def test_completion_of_jobs(daemon, client, rank):
    client.publish("gpt-weights", b"abcd")
    assert complete(daemon, "weightctl rm g") == ["gpt-weights", "gpt"]
    for words in "rm --job", "top --job", "train status", "trace explain --job":
        assert complete(daemon, f"weightctl {words} g") == ["gpt"], words
    assert complete(daemon, "weightctl train r") == ["run"]
    assert "--token-file" in complete(daemon, "weightctl train run -n 4 --")
    assert complete(daemon, "weightctl train run -n ") == [""]
    assert complete(daemon, "weightctl train run --restart ") == [""]
    assert "sh" in complete(daemon, "weightctl train run -n 4 -- sh")

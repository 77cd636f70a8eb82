"""Owners of buffers in weightctl: a stranger was first with a name."""
import json
import subprocess

import pytest
from lib.child import run_as
from lib.daemon import copy_for_others
from lib.wire import Wire

from .test_weightctl import in_terminal, write_safetensors

MALLORY, ALICE = 12345, 12346
GOOD = [("t", "F32", [2, 3], b"good" * 6)]
EVIL = [("t", "F32", [2, 3], b"evil" * 6)]


@pytest.fixture
def file(tmp_path):
    return write_safetensors(tmp_path / "good.safetensors", GOOD)


@pytest.fixture
def taken(make_daemon, require, tmp_path):
    """A weightd in which MALLORY was first with the name 'm', and lets everybody read and write."""
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    evil = write_safetensors(daemon.folder / "evil.safetensors", EVIL)
    evil.chmod(0o644)
    done = ctl_as(daemon, MALLORY, "load", "-q", "--mode", "0666", "m", evil)
    assert done.returncode == 0, done.stderr
    return daemon


def ctl_as(daemon, user, *args):
    program = copy_for_others("weightctl", daemon.folder)
    return subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", program, *map(str, args)], env=daemon.env,
                          cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def failure(daemon, *args):
    done = daemon.ctl(*args, check=False)
    assert (done.returncode, done.stdout) == (2 if args[0] == "diff" else 1, "")
    return done.stderr


def version(daemon):
    return json.loads(daemon.ctl("show", "m", "--json").stdout)["version"]


def test_a_load_into_a_strangers_buffer_says_so_and_changes_nothing(taken, file):
    assert failure(taken, "load", "-q", "m", file) == \
        f"weightctl: 'm' on host belongs to uid {MALLORY}, not to uid 0 (root); name uid {MALLORY} as its owner (--owner) to " \
        "publish in that user's buffer, or use another name\n"
    assert version(taken) == 1 and taken.ctl("cat", "m", "t").stdout == "evil" * 6


def test_a_load_can_mean_it(taken, file):
    taken.ctl("load", "-q", "--owner", MALLORY, "m", file)
    assert version(taken) == 2 and taken.ctl("cat", "m", "t").stdout == "good" * 6
    assert failure(taken, "load", "-q", "--owner", "root", "m", file).startswith(
        f"weightctl: 'm' on host belongs to uid {MALLORY}, not to uid 0 (root); ")
    assert failure(taken, "load", "-q", "--owner", MALLORY, "new", file).startswith(
        f"weightctl: there is no buffer 'new' on host of uid {MALLORY}; ")
    taken.ctl("load", "-q", "--owner", "root", "new", file)


READING = {"tensors": ["m"], "files": ["m"], "cat": ["m", "t"], "verify": ["m"], "diff": ["m", "m"], "save": ["m", "out"],
           "exec": ["m", "--", "true"], "export": ["m", "dir", "--hold"]}


@pytest.mark.parametrize("verb", READING)
def test_who_reads_can_demand_the_owner(taken, verb, tmp_path):
    args = [str(tmp_path / a) if a in ("out", "dir") else a for a in READING[verb]]
    done = taken.ctl(verb, "--owner", "root", *args, check=False)
    assert done.stderr == f"weightctl: 'm' on host belongs to uid {MALLORY}, not to uid 0 (root) as demanded; use another name, or " \
        "have an administrator remove it (weightctl rm) or give it away (weightctl chown)\n"
    assert done.returncode == {"diff": 2, "exec": 125}.get(verb, 1)
    assert done.stdout == "" or verb == "verify", "no bytes of the stranger's"
    if verb != "export":  # it stays
        assert taken.ctl(verb, "--owner", MALLORY, *args).returncode == 0


def test_show_tells_the_owner_and_can_demand_it(taken):
    assert json.loads(taken.ctl("show", "m", "--json", "--owner", MALLORY).stdout)["uid"] == MALLORY
    assert failure(taken, "show", "m", "--owner", "root") == f"weightctl: 'm' belongs to user {MALLORY}, not to root as demanded (--owner)\n"


def test_ls_lists_the_buffers_and_jobs_of_one_owner(taken, file):
    taken.ctl("load", "-q", "mine", file)
    run_as(ALICE, lambda: Wire(taken.socket).create_job("job-of-alice"))
    with Wire(taken.socket) as w:
        w.create_job("job-of-root")

    def listed(*args):
        found = json.loads(taken.ctl("ls", "--json", *args).stdout)
        return [b["name"] for b in found["buffers"]], [j["name"] for j in found["jobs"]]

    assert listed() == (["m", "mine"], ["job-of-alice", "job-of-root"])
    assert listed("--owner", "root") == (["mine"], ["job-of-root"])
    assert listed("--owner", MALLORY) == (["m"], [])
    assert listed("--owner", ALICE) == ([], ["job-of-alice"])
    assert in_terminal(taken, "ls", "--owner", "12399") == (0, "no buffers of user 12399; 2 of other users\r\n")
    assert in_terminal(taken, "ls", "--owner", "12399", "--device", "host") == \
        (0, "no buffers on host of user 12399; 2 on other devices, or of other users\r\n")
    assert "job-of-root" not in taken.ctl("ls", "--owner", ALICE).stdout


def test_an_owner_is_a_user(taken):
    for wrong in "no-such-user", "", "-1", "4294967295", "12x":
        done = taken.ctl("ls", f"--owner={wrong}", check=False)
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"weightctl: --owner wants a user, and there is no user '{wrong}'")

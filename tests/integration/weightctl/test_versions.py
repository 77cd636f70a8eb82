"""weightctl history, rollback, chmod, chown, watch and stat, and the versions in load, ls and show."""
import contextlib
import fcntl
import json
import mmap
import os
import pwd
import re
import signal
import struct
import subprocess
import termios
import time

import pytest
from integration.weightctl.test_weightctl import (TENSORS, ctl_json, in_terminal, n_columns, screen,
                                                  write_safetensors, write_sparse)
from lib.child import run_as
from lib.wire import until

try:
    USER = pwd.getpwuid(os.geteuid()).pw_name
except KeyError:  # as in a container
    USER = str(os.geteuid())
STRANGER = 12345


@pytest.fixture
def file(tmp_path):
    return write_safetensors(tmp_path / "model.safetensors", TENSORS)


@pytest.fixture
def versions(daemon, file):
    """versions(n): a daemon with a buffer m that has had n versions, and keeps 3 of them."""
    def load(n):
        for _ in range(n):
            daemon.ctl("load", "-q", "--keep", "3", "m", file)
        return daemon

    return load


def states(daemon, name="m"):
    return [(v["version"], v["state"]) for v in ctl_json(daemon, "history", name)["versions"]]


# --- History and rollback -------------------------------------------------------------------------


def test_history_tells_what_became_of_each_version(versions):
    before = time.time()
    daemon = versions(5)
    daemon.ctl("rm", "m@4")
    assert states(daemon) == [(1, "keep"), (2, "keep"), (3, "kept"), (4, "dropped"), (5, "current")]
    history = ctl_json(daemon, "history", "m")
    assert (history["name"], history["device"]) == ("m", "host")
    digest = ctl_json(daemon, "show", "m")["digest"]
    for v in history["versions"]:
        assert v["digest"] == digest and v["tensors"] == len(TENSORS) and v["size"] > 0
        assert (v["user"], v["uid"], v["readers"]) == (USER, os.geteuid(), 0)
        assert 0 < v["age_ns"] / 1e9 < time.time() - before + 1 and v["pid"] > 0
        gone = v["state"] not in ("current", "kept")
        assert (v["gone_ns"] is not None, v["ended"] is not None) == (gone, gone), v
    assert len({v["pid"] for v in history["versions"]}) == 5  # each load was a process


def test_history_table(versions):
    head, first, last = versions(2).ctl("history", "m").stdout.splitlines()
    assert head.split() == ["VERSION", "STATE", "AGE", "GONE", "USER", "PID", "READERS", "SIZE", "DIGEST"]
    assert first.split()[:2] == ["1", "kept"] and last.split()[:2] == ["2", "current"]
    assert last.split()[3:5] == ["-", USER]


def test_history_of_a_version_that_is_read_has_its_readers(versions, tmp_path):
    daemon = versions(1)
    big = write_safetensors(tmp_path / "big.safetensors", [("t", "U8", [1 << 20], bytes(1 << 20))])
    daemon.ctl("load", "-q", "--new-layout", "m", big)
    reader = daemon.spawn("cat", "m", "t")  # holds its lease while the pipe is full
    assert reader.stdout.read(1) == b"\0"
    assert [v["readers"] for v in ctl_json(daemon, "history", "m")["versions"]] == [0, 1]


def test_rollback_goes_to_the_version_before_or_to_the_one_named(versions):
    daemon = versions(3)
    assert daemon.ctl("rollback", "m").stdout == "m@2 on host\n"
    assert states(daemon) == [(1, "kept"), (2, "current"), (3, "kept")]
    assert ctl_json(daemon, "rollback", "m@1") == {"name": "m", "device": "host", "version": 1}
    assert ctl_json(daemon, "rollback", "m", "3")["version"] == 3
    assert ctl_json(daemon, "show", "m")["version"] == 3


def test_a_publish_after_a_rollback_is_newer_than_all(versions):
    daemon = versions(3)
    daemon.ctl("rollback", "m@1")
    versions(1)
    assert ctl_json(daemon, "show", "m")["version"] == 4
    assert (4, "current") in states(daemon)


def test_ls_and_show_tell_of_a_rollback(versions):
    daemon = versions(2)
    daemon.ctl("rollback", "m")
    [buffer] = ctl_json(daemon, "ls")["buffers"]
    assert (buffer["version"], buffer["newest"], buffer["state"]) == (1, 2, "ready")
    assert daemon.ctl("ls", "-n", "-o", "VERSION,NEWEST,STATE").stdout.split() == ["1", "2", "rolled-back"]
    assert re.search(r"^STATE +rolled-back$", daemon.ctl("show", "m").stdout, re.M)
    assert [v["current"] for v in ctl_json(daemon, "show", "m")["versions"]] == [True, False]
    daemon.ctl("rollback", "m@2")
    assert daemon.ctl("ls", "-n", "-o", "STATE").stdout.split() == ["ready"]


@pytest.mark.parametrize("args", [("m@1",), ("m@9",), ("m", "1"), ("nope",)], ids=" ".join)
def test_rollback_to_what_is_not_there_fails_and_changes_nothing(versions, args):
    daemon = versions(4)
    done = daemon.ctl("rollback", *args, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch("weightctl: [^\n]*\n", done.stderr) and args[0].split("@")[0] in done.stderr
    assert states(daemon)[-1] == (4, "current")


def test_rollback_without_an_older_version_fails(versions):
    done = versions(1).ctl("rollback", "m", check=False)
    assert done.returncode == 1 and done.stdout == "" and re.fullmatch("weightctl: .*\n", done.stderr)


# --- Users ----------------------------------------------------------------------------------------


def test_chmod_changes_all_it_can(versions, file):
    daemon = versions(1)
    daemon.ctl("load", "-q", "n", file)
    daemon.ctl("chmod", "0604", "m", "n")
    assert [b["mode"] for b in ctl_json(daemon, "ls")["buffers"]] == ["0604", "0604"]
    done = daemon.ctl("chmod", "600", "m", "nope", "n", check=False)
    assert done.returncode == 1 and re.fullmatch("weightctl: .*'nope'.*\n", done.stderr)
    assert [b["mode"] for b in ctl_json(daemon, "ls")["buffers"]] == ["0600", "0600"]
    daemon.ctl("chmod", "0", "m")
    assert ctl_json(daemon, "show", "m")["mode"] == "0000"


@pytest.mark.parametrize("owner,uid,gid", [
    ("12345", 12345, 0), ("12345:23456", 12345, 23456), (":23456", 0, 23456), ("nobody", 65534, 0),
    ("nobody:", 65534, pwd.getpwnam("nobody").pw_gid), (":root", 0, 0), ("root:root", 0, 0)])
def test_chown_takes_names_and_numbers(versions, require, owner, uid, gid):
    require("root")
    daemon = versions(1)
    daemon.ctl("chown", owner, "m")
    buffer = ctl_json(daemon, "show", "m")
    assert (buffer["uid"], buffer["gid"]) == (uid, gid)


def test_chown_changes_all_it_can(versions, file, require):
    require("root")
    daemon = versions(1)
    daemon.ctl("load", "-q", "n", file)
    done = daemon.ctl("chown", "12345", "m", "nope", "n", check=False)
    assert done.returncode == 1 and re.fullmatch("weightctl: .*'nope'.*\n", done.stderr)
    assert [b["uid"] for b in ctl_json(daemon, "ls")["buffers"]] == [12345, 12345]


def test_strangers_change_nothing(make_daemon, file, require):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    daemon.ctl("load", "-q", "--mode", "0644", "m", file)

    def tries():
        return [daemon.ctl(*args, check=False) for args in
                (("chmod", "0666", "m"), ("chown", str(STRANGER), "m"), ("rollback", "m"))]

    for done in run_as(STRANGER, tries):
        assert done.returncode == 1 and re.fullmatch("weightctl: .*'m'.*\n", done.stderr), done.args
    buffer = ctl_json(daemon, "show", "m")
    assert (buffer["mode"], buffer["uid"]) == ("0644", os.geteuid())


# --- Watch ----------------------------------------------------------------------------------------


def watch(daemon, *args, **kw):
    """A watch that is at work: it prints events from now on."""
    proc = daemon.spawn("watch", *args, text=True, **kw)
    assert proc.stderr.readline() == "weightctl: watching\n"
    return proc


def events(text):
    return [json.loads(line) for line in text.splitlines()]


def test_watch_tells_what_happens_a_line_each(versions, file):
    daemon = versions(0)
    before = time.time_ns()
    proc = watch(daemon, "--json", "--count", 8)
    versions(4)
    daemon.ctl("rollback", "m@2")
    daemon.ctl("chmod", "0600", "m")
    out, errors = proc.communicate(timeout=60)
    assert (proc.returncode, errors) == (0, "")
    told = events(out)
    gone = [e for e in told if e["event"] == "version-gone"]  # the server's doing, when it likes
    assert [(e["version"], e["reason"]) for e in gone] == [(1, "keep")]
    done = [e for e in told if e not in gone]
    assert [(e["event"], e["version"], e["reason"]) for e in done] == [
        ("created", None, None), ("published", 1, None), ("published", 2, None), ("published", 3, None),
        ("published", 4, None), ("rolled-back", 2, None), ("access", 2, None)]
    assert {(e["name"], e["device"]) for e in told} == {("m", "host")}
    assert {(e["user"], e["uid"]) for e in done} == {(USER, os.geteuid())}
    assert {(e["user"], e["uid"], e["pid"]) for e in gone} == {(None, 0, 0)}
    assert all(e["pid"] > 0 for e in done) and done[-1]["pid"] != done[-2]["pid"]
    assert [e["serial"] for e in told] == sorted({e["serial"] for e in told})
    assert all(before <= e["time_ns"] <= time.time_ns() for e in told)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", e["time"]) for e in told)


def test_watch_for_people(versions):
    daemon = versions(1)
    proc = watch(daemon, "-c", 2)
    daemon.ctl("rollback", "m", check=False)
    versions(1)
    daemon.ctl("rm", "m@1")
    out, _ = proc.communicate(timeout=60)
    first, second = out.splitlines()
    assert re.fullmatch(rf"\S+Z  published     m@2 on host, by {USER}, process \d+", first)
    assert re.fullmatch(rf"\S+Z  version-gone  m@1 on host \(dropped\), by {USER}, process \d+", second)


def test_watch_writes_each_event_at_once(versions):
    daemon = versions(1)
    proc = watch(daemon, "--json")
    for version in (2, 3):
        versions(1)
        assert json.loads(proc.stdout.readline())["version"] == version


def test_watch_of_some_leaves_out_the_others(versions, file):
    daemon = versions(1)
    proc = watch(daemon, "--json", "--count", 2, "n", "o")
    for name in ("m", "o", "m", "n"):
        daemon.ctl("load", "-q", name, file)
    out, _ = proc.communicate(timeout=60)
    assert [(e["event"], e["name"]) for e in events(out)] == [("created", "o"), ("published", "o")]


def test_watch_of_another_device_sees_nothing(versions):
    daemon = versions(1)
    proc = watch(daemon, "--device", "cuda:GPU-00000000-0000-4000-8000-000000000000", "--timeout", "0.5")
    versions(1)
    assert proc.communicate(timeout=60) == ("", "") and proc.returncode == 0


def test_watch_gives_up_only_where_a_count_was_asked_for(versions):
    daemon = versions(1)
    assert daemon.ctl("watch", "-q", "--timeout", "0.05").stdout == ""
    done = daemon.ctl("watch", "-q", "--timeout", "0.05", "-c", "2", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "weightctl: the time is up, 2 events too early\n"


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_a_signal_ends_a_watch(versions, sig):
    daemon = versions(1)
    proc = watch(daemon, "--json")
    versions(1)
    line = proc.stdout.readline()
    proc.send_signal(sig)
    assert proc.communicate(timeout=60) == ("", "")
    assert proc.returncode == 0 and json.loads(line)["event"] == "published"


@pytest.mark.parametrize("ignored", [False, True], ids=["SIGPIPE", "EPIPE"])
def test_watch_ends_when_its_reader_goes_away_though_nothing_happens(daemon, ignored):
    proc = watch(daemon, restore_signals=not ignored)
    proc.stdout.close()
    assert proc.wait(60) == (1 if ignored else -signal.SIGPIPE)
    assert proc.stderr.read() == ""


def test_watch_tells_that_the_server_was_started_anew_and_goes_on(make_daemon, file):
    daemon = make_daemon("--keeper")
    daemon.ctl("load", "-q", "m", file)
    proc = watch(daemon, "--json", "m")
    os.kill(ctl_json(daemon, "ping")["pid"], signal.SIGKILL)
    restarted = json.loads(proc.stdout.readline())
    assert restarted["event"] == "restarted"
    assert [restarted[key] for key in ("name", "device", "version", "reason", "user")] == [None] * 5
    daemon.ctl("load", "-q", "m", file)
    told = json.loads(proc.stdout.readline())
    assert (told["event"], told["version"]) == ("published", 2)


def test_watch_into_a_full_disk_is_a_failure(versions):
    daemon = versions(1)
    with open("/dev/full", "w") as full:
        proc = watch(daemon, stdout=full)
        versions(1)
        _, errors = proc.communicate(timeout=60)
    assert proc.returncode == 1
    assert errors == "weightctl: cannot write to standard output: No space left on device\n"


def test_nohup_of_a_watch_is_honoured(versions):
    daemon = versions(1)
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *daemon.ctl_command(["watch", "-c", "1"])]
    proc = subprocess.Popen(command, env=daemon.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    daemon.started.append(proc)
    assert proc.stderr.readline() == "weightctl: watching\n"
    proc.send_signal(signal.SIGHUP)
    versions(1)
    assert " m@2 " in proc.communicate(timeout=60)[0] and proc.returncode == 0


# --- Memory ---------------------------------------------------------------------------------------


def test_stat_of_nothing(daemon):
    stat = ctl_json(daemon, "stat")
    assert stat["headroom"] > 0 and stat["slots"] == []
    assert [stat[key] for key in ("memory", "kept", "leaving", "orphans", "layouts", "quarantined")] == [0] * 6
    assert daemon.ctl("stat").stdout.splitlines()[-1].split() == ["STORE", "0/0"]


def test_stat_adds_up(versions, file):
    daemon = versions(2)
    daemon.ctl("load", "-q", "n", file)
    stat = ctl_json(daemon, "stat")
    assert [(s["name"], s["version"], s["state"]) for s in stat["slots"]] == \
        [("m", 1, "kept"), ("m", 2, "current"), ("n", 1, "current")]
    for slot in stat["slots"]:
        pages = -(-slot["size"] // mmap.PAGESIZE) * mmap.PAGESIZE
        assert 0 <= slot["huge"] <= slot["memory"] <= pages and slot["memory"] > 0
        assert slot["share_percent"] == pytest.approx(slot["huge"] * 100 / slot["size"], rel=1e-5)
        assert (slot["user"], slot["uid"], slot["readers"]) == (USER, os.geteuid(), 0)
        assert slot["removed"] is False and slot["device"] == "host"
    assert len({s["slot"] for s in stat["slots"]}) == 3
    assert stat["memory"] == sum(s["size"] for s in stat["slots"]) == ctl_json(daemon, "ping")["memory"]
    assert stat["kept"] == stat["slots"][0]["size"] and stat["layouts"] > 0
    assert stat["leaving"] == stat["orphans"] == stat["quarantined"] == 0


def test_stat_of_one_buffer_has_its_slots_and_the_whole(versions, file):
    daemon = versions(1)
    daemon.ctl("load", "-q", "n", file)
    whole, one = ctl_json(daemon, "stat"), ctl_json(daemon, "stat", "n")
    assert [s["name"] for s in one["slots"]] == ["n"] and one["memory"] == whole["memory"]
    done = daemon.ctl("stat", "nope", check=False)
    assert done.returncode == 1 and done.stdout == "" and "'nope'" in done.stderr


def test_stat_has_the_memory_that_a_reader_keeps_after_removal(daemon, tmp_path):
    big = write_safetensors(tmp_path / "big.safetensors", [("t", "U8", [1 << 20], bytes(1 << 20))])
    daemon.ctl("load", "-q", "big", big)
    reader = daemon.spawn("cat", "big", "t")
    assert reader.stdout.read(1) == b"\0"
    daemon.ctl("rm", "big")
    stat = ctl_json(daemon, "stat", "big")
    [slot] = stat["slots"]
    assert (slot["state"], slot["removed"], slot["readers"]) == ("leaving", True, 1)
    assert stat["leaving"] == slot["size"] and stat["orphans"] == 0


def test_stat_tells_what_users_hold_and_may(versions):
    daemon = versions(2)
    [mine] = [u for u in ctl_json(daemon, "stat")["users"] if u["uid"] == os.geteuid()]
    assert mine["user"] == USER
    assert (mine["buffers"]["used"], mine["versions"]["used"], mine["readers"]["used"]) == (1, 2, 0)
    assert mine["memory"]["used"] >= ctl_json(daemon, "stat")["memory"] and mine["sessions"]["used"] >= 1
    for key in ("sessions", "readers", "buffers", "versions", "memory", "stored"):
        assert mine[key]["max"] is None or mine[key]["max"] >= mine[key]["used"]
    text = daemon.ctl("stat", "--users").stdout
    assert re.search(rf"^USER +SESSIONS +READERS .*\n{USER} +\d+/(\d+|-) ", text, re.M)
    assert "SESSIONS" not in daemon.ctl("stat").stdout


# --- Buffers that are updated in place ------------------------------------------------------------


def test_load_makes_exclusive_and_reusable_buffers(daemon, file):
    daemon.ctl("load", "-q", "--exclusive", "e", file)
    daemon.ctl("load", "-q", "--reusable", "r", file)
    daemon.ctl("load", "-q", "s", file)
    assert [(b["name"], b["kind"]) for b in ctl_json(daemon, "ls")["buffers"]] == \
        [("e", "exclusive"), ("r", "reusable"), ("s", "sealed")]
    assert re.search("^KIND +exclusive$", daemon.ctl("show", "e").stdout, re.M)


def test_load_of_an_exclusive_buffer_writes_over_its_one_version(daemon, file):
    for version in (1, 2, 3):
        daemon.ctl("load", "-q", "--exclusive", "e", file)
        assert ctl_json(daemon, "show", "e")["version"] == version
        assert len(ctl_json(daemon, "stat", "e")["slots"]) == 1
    assert states(daemon, "e") == [(1, "rewritten"), (2, "rewritten"), (3, "current")]
    assert daemon.ctl("cat", "e", "plain", text=False).stdout == TENSORS[0][3]
    daemon.ctl("verify", "e")


def test_load_replaces_what_does_not_fit_twice(versions, file):
    daemon = versions(1)
    daemon.ctl("load", "-q", "--replace", "m", file)
    assert states(daemon) == [(1, "rewritten"), (2, "current")]
    assert len(ctl_json(daemon, "stat", "m")["slots"]) == 1


def test_a_reader_that_does_not_pause_stops_the_load_or_is_evicted(daemon, tmp_path):
    big = write_safetensors(tmp_path / "big.safetensors", [("t", "U8", [1 << 20], bytes(1 << 20))])
    daemon.ctl("load", "-q", "--exclusive", "e", big)
    reader = daemon.spawn("cat", "e", "t", text=False)
    assert reader.stdout.read(1) == b"\0"
    done = daemon.ctl("load", "-q", "--pause-timeout", "0.05", "e", big, check=False)
    assert done.returncode == 1 and re.fullmatch("weightctl: .*\n", done.stderr)
    assert (ctl_json(daemon, "show", "e")["version"], ctl_json(daemon, "show", "e")["state"]) == (1, "ready")
    daemon.ctl("load", "-q", "--pause-timeout", "0.05", "--policy", "evict", "e", big)
    assert ctl_json(daemon, "show", "e")["version"] == 2
    out, errors = reader.communicate(timeout=60)
    assert reader.returncode == 1 and b"was updated in place meanwhile" in errors


def n_unread(pipe):
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


@contextlib.contextmanager
def load_that_stops_while_it_writes(daemon, *args):
    """It stops for good, as the pipe of its progress has room for one byte more."""
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
    os.write(theirs, bytes(mmap.PAGESIZE - 1))
    load = daemon.spawn("load", *args, stderr=theirs)
    os.close(theirs)
    try:
        until(lambda: n_unread(ours) == mmap.PAGESIZE, "it prints its progress")
        yield load
    finally:
        os.close(ours)


def test_a_torn_buffer_is_told_and_a_load_repairs_it(daemon, tmp_path):
    big = write_sparse(tmp_path / "big.safetensors", 8 << 20)
    daemon.ctl("load", "-q", "--exclusive", "e", big)
    proc = watch(daemon, "--json", "e")
    with load_that_stops_while_it_writes(daemon, "e", big) as load:
        assert json.loads(proc.stdout.readline())["event"] == "updating"
        assert daemon.ctl("ls", "-n", "-o", "STATE").stdout.split() == ["updating"]
        refused = daemon.ctl("cat", "e", "big", check=False)
        assert refused.returncode == 1 and "'e'" in refused.stderr
        load.kill()
    assert json.loads(proc.stdout.readline())["event"] == "torn"
    [buffer] = ctl_json(daemon, "ls")["buffers"]
    assert buffer["state"] == "torn"
    refused = daemon.ctl("cat", "e", "big", check=False)
    assert refused.returncode == 1 and "'e'" in refused.stderr
    daemon.ctl("load", "-q", "e", big)
    assert ctl_json(daemon, "show", "e")["state"] == "ready"
    daemon.ctl("verify", "e")


# --- All of them ----------------------------------------------------------------------------------


LONG = "a-buffer-with-a-name-that-is-much-too-long/for-any-terminal:" + "x" * 60


@pytest.mark.parametrize("args", [["ls"], ["history", LONG], ["stat"], ["stat", "--users"], ["stat", LONG]],
                         ids=lambda args: " ".join(args)[:20])
def test_tables_fit_into_80_columns(versions, file, args):
    daemon = versions(1)
    for _ in range(3):
        daemon.ctl("load", "-q", LONG, file)
    daemon.ctl("rollback", LONG)
    status, text = in_terminal(daemon, *args)
    lines = screen(text.replace("\r\n", "\n"))
    assert status == 0 and len(lines) > 2
    assert [line for line in lines if n_columns(line) > 80] == []


def test_completion_of_versions_and_owners(versions, tmp_path):
    from integration.weightctl.test_weightctl import complete

    daemon = versions(2)
    assert complete(daemon, "weightctl rollback m ") == ["1", "2"]
    assert complete(daemon, "weightctl history ") == ["m"]
    assert "root" in complete(daemon, "weightctl chown ro")
    assert complete(daemon, "weightctl chown root:roo") == ["root"]  # readline cuts at the colon
    assert complete(daemon, "weightctl chmod 600 ") == ["m"]
    assert complete(daemon, "weightctl load --policy e") == ["evict"]

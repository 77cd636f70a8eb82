"""weightctl, as people and scripts use it."""
import array
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import unicodedata

import pytest

from lib.daemon import Daemon
from lib.features import BUILD, ROOT
from lib.wire import Wire, until

VERBS = ["load", "ls", "show", "tensors", "files", "cat", "verify", "diff", "copy", "save", "history", "rollback", "chmod", "chown",
         "rm", "wait", "watch", "exec", "export", "train run", "train status", "train metrics", "train profile", "doctor", "stat",
         "metrics", "devices", "ping", "version", "nodes", "sync push", "sync average", "sync reshard",
         "sync gather", "sync scatter", "sync status",
         "sync history", "sync cancel", "sync watch", "sync metrics", "sync plan", "pki ca", "pki node", "pki revoke",
         "pki show", "top", "trace doctor", "trace record", "trace explain", "trace merge", "trace metrics", "trace rdma",
         "trace messages", "trace watch", "trace log", "trace attached", "help"]
FAMILIES = sorted({v.split()[0] for v in VERBS if " " in v})
NEED_NAME = {"history": ["m"], "rollback": ["m"], "chmod": ["0600", "m"], "chown": ["0", "m"], "show": ["m"], "tensors": ["m"], "files": ["m"], "cat": ["m", "t"], "verify": ["m"], "diff": ["m", "m"], "copy": ["m", "--name", "n"], "save": ["m", "/none/out"], "rm": ["m"],
             "wait": ["m"], "load": ["m", "/none"], "export": ["m", "/none", "--hold"]}
NEED_SERVER = [v for v in VERBS if v not in ("version", "nodes", "top", "help", "exec", "doctor") and " " not in v]
ELSEWHERE = "cuda:GPU-00000000-0000-4000-8000-000000000000"

# Controls (C0, DEL, C1), a newline, a quote, a backslash, a right-to-left override, a literal "\x1b".
HOSTILE = "evil\x1b[31m\"\\\n\t\x7f\x9b2J\u202e\\x1b"
LONG = "model.layers.61.mlp.experts.255.gate_up_proj.weight_scale_inv." + "x" * 200
JAPANESE = "埋め込み"

PLAIN = array.array("f", [1, 2, 3, 4, 5, 6]).tobytes()
TENSORS = [("plain", "F32", [2, 3], PLAIN), (HOSTILE, "U8", [4], b"\0\1\2\3"),
           (LONG, "BF16", [1, 1], b"ab"), (JAPANESE, "F16", [], b"cd"), ("empty", "F32", [0, 5], b"")]

UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def write_safetensors(path, tensors):
    """tensors: (name, dtype, shape, bytes); returns the path."""
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors))
    return path


def write_sparse(path, n_bytes):
    """One tensor of zeros that takes no room on the disk."""
    text = json.dumps({"big": {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]}}).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + n_bytes)
    return path


@pytest.fixture
def file(tmp_path):
    return write_safetensors(tmp_path / "model.safetensors", TENSORS)


@pytest.fixture
def loaded(daemon, file):
    """A daemon that has the buffer m with TENSORS, version 1."""
    daemon.ctl("load", "-q", "m", file)
    return daemon


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """Likewise, for all tests that change nothing."""
    with contextlib.closing(Daemon()) as daemon:
        daemon.ctl("load", "-q", "m", write_safetensors(tmp_path_factory.mktemp("standing") / "model.safetensors", TENSORS))
        yield daemon


def ctl_json(daemon, *args, **kw):
    return json.loads(daemon.ctl(*args, "--json", **kw).stdout)


def in_terminal(daemon, *args, columns=80, errors_only=False, term="xterm", locale="C.UTF-8", prefix=()):
    """Runs weightctl on a terminal of that width. Returns the exit status and what the terminal got."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in daemon.env.items() if k != "COLUMNS"} | {"TERM": term, "LC_ALL": locale}
    proc = subprocess.Popen([*prefix, *daemon.ctl_command(args)], env=env, stdin=subprocess.DEVNULL, stderr=theirs,
                            stdout=subprocess.PIPE if errors_only else theirs)
    os.close(theirs)
    got = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not piece:
            break
        got += piece
    os.close(ours)
    if errors_only:
        proc.stdout.close()
    return proc.wait(60), got.decode()


def n_columns(text):
    """Columns that a line takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def screen(text):
    """The lines that stay on a terminal. Handles carriage return, newline and erasing a line's rest."""
    lines, at = [""], 0
    for c in re.findall(r"\x1b\[K|.", text, re.S):
        if c == "\r":
            at = 0
        elif c == "\n":
            lines.append("")
            at = 0
        elif c == "\x1b[K":
            lines[-1] = lines[-1][:at]
        else:
            assert c >= " ", f"{c!r} in {text!r}"
            lines[-1] = lines[-1][:at] + c + lines[-1][at + 1:]
            at += 1
    return lines


# --- Verbs ----------------------------------------------------------------------------------------


def test_load_says_what_it_did(daemon, file):
    done = daemon.ctl("load", "m", file)
    assert re.fullmatch(r"m@1 on host: 5 tensors, 32 B in .* \(.*/s\), digest xxh3:[0-9a-f]{32}\n", done.stdout)


def test_load_json(daemon, file):
    daemon.ctl("load", "-q", "m", file)
    result = ctl_json(daemon, "load", "-q", "m", file)
    assert result["name"] == "m" and result["device"] == "host"
    assert result["version"] == 2 and result["tensors"] == 5 and result["files"] == 1
    assert result["size"] == 32 and result["elapsed_ns"] > 0
    assert re.fullmatch(r"xxh3:[0-9a-f]{32}", result["digest"])
    assert result["digest"] == ctl_json(daemon, "show", "m")["digest"]


def test_load_quiet_is_silent(daemon, file):
    done = daemon.ctl("load", "--quiet", "m", file)
    assert (done.stdout, done.stderr) == ("", "")


def test_load_options_reach_the_server(daemon, file):
    daemon.ctl("load", "--mode", "604", "--keep", "3", "--threads", "1", "--device", "host", "m", file)
    buffer = ctl_json(daemon, "show", "m")
    assert (buffer["mode"], buffer["keep"]) == ("0604", 3)


def test_load_of_other_tensors_wants_new_layout(loaded, tmp_path):
    other = write_safetensors(tmp_path / "other.safetensors", TENSORS[:1])
    refused = loaded.ctl("load", "m", other, check=False)
    assert refused.returncode == 1 and "--new-layout" in refused.stderr
    loaded.ctl("load", "--new-layout", "m", other)
    assert ctl_json(loaded, "show", "m")["tensors"] == 1


@pytest.mark.parametrize("name", ["no\x1b[2Jthing", "missing"])
def test_load_of_no_file_fails_and_leaves_nothing(daemon, tmp_path, name):
    done = daemon.ctl("load", "m", tmp_path / name, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"weightctl: .*No such file or directory\n", done.stderr)
    assert not UNPRINTABLE.search(done.stderr)
    assert ctl_json(daemon, "ls") == {"buffers": [], "jobs": []}


def test_ls_of_nothing_is_empty(daemon):
    assert daemon.ctl("ls").stdout == ""
    assert ctl_json(daemon, "ls") == {"buffers": [], "jobs": []}


def test_ls_of_nothing_says_so_on_a_terminal(loaded):
    assert in_terminal(loaded, "ls", "--device", ELSEWHERE) == (0, f"no buffers on {ELSEWHERE}; 1 on other devices\r\n")
    assert in_terminal(loaded, "ls", "--device", ELSEWHERE, "--json")[1].count("no buffers") == 0
    loaded.ctl("rm", "m")
    assert in_terminal(loaded, "ls") == (0, "no buffers\r\n")
    assert loaded.ctl("ls").stderr == ""


def test_ls_table(standing):
    head, row = standing.ctl("ls").stdout.splitlines()
    assert head.split() == ["NAME", "DEVICE", "VERSION", "STATE", "TENSORS", "SIZE", "READERS", "AGE"]
    assert row.split()[:5] == ["m", "host", "1", "ready", "5"]


def test_ls_json_has_every_column_and_raw_numbers(standing):
    before = time.time_ns()
    [buffer] = ctl_json(standing, "ls")["buffers"]
    assert buffer["name"] == "m" and buffer["device"] == "host" and buffer["version"] == 1
    assert buffer["state"] == "ready" and buffer["writing"] is False
    assert buffer["tensors"] == 5 and buffer["readers"] == 0 and buffer["kept"] == 1
    assert isinstance(buffer["size"], int) and buffer["memory"] >= buffer["size"] >= 32
    assert 0 <= buffer["huge"] <= buffer["memory"]
    assert 0 < buffer["age_ns"] < time.time_ns() - before + 60 * 10**9
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", buffer["published"])
    assert (buffer["uid"], buffer["gid"], buffer["mode"]) == (os.getuid(), os.getgid(), "0640")
    assert re.fullmatch(r"[0-9a-f]{32}", buffer["layout"])


def test_ls_counts_readers(loaded, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert ctl_json(loaded, "ls")["buffers"][0]["readers"] == 0
    big = write_safetensors(tmp_path / "big.safetensors", [("t", "U8", [1 << 20], bytes(1 << 20))])
    loaded.ctl("load", "-q", "big", big)
    reader = loaded.spawn("cat", "big", "t")  # holds its lease while the pipe is full
    assert reader.stdout.read(1) == b"\0"
    buffers = {b["name"]: b["readers"] for b in ctl_json(loaded, "ls")["buffers"]}
    assert buffers == {"m": 0, "big": 1}


def test_ls_of_another_device_is_empty(standing):
    assert ctl_json(standing, "ls", "--device", ELSEWHERE) == {"buffers": [], "jobs": []}


def test_show_has_the_versions(loaded, file):
    loaded.ctl("load", "-q", "m", file)
    buffer = ctl_json(loaded, "show", "m")
    assert buffer["name"] == "m" and buffer["version"] == 2 and buffer["kept"] == 2
    assert [(v["version"], v["current"]) for v in buffer["versions"]] == [(1, False), (2, True)]
    assert buffer["versions"][0]["digest"] == buffer["digest"]
    text = loaded.ctl("show", "m").stdout
    assert re.search(r"^NAME +m$", text, re.M) and re.search(r"^VERSION +CURRENT ", text, re.M)


def test_show_of_an_unknown_buffer_fails(standing):
    done = standing.ctl("show", "nope", check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert "'nope'" in done.stderr and "weightctl ls" in done.stderr


def test_show_says_on_which_device_a_buffer_is(standing):
    done = standing.ctl("show", "m", "--device", ELSEWHERE, check=False)
    assert done.returncode == 1 and "--device host" in done.stderr


def test_tensors(standing):
    table = ctl_json(standing, "tensors", "m")
    assert (table["name"], table["device"], table["version"]) == ("m", "host", 1)
    by_name = {t["name"]: t for t in table["tensors"]}
    assert sorted(by_name) == sorted(t[0] for t in TENSORS)
    assert [t["index"] for t in table["tensors"]] == list(range(5))
    for name, dtype, shape, data in TENSORS:
        tensor = by_name[name]
        assert (tensor["dtype"], tensor["shape"], tensor["size"]) == (dtype, shape, len(data)), name
        assert tensor["role"] == "param" and tensor["tied"] is None
    ends = [(t["offset"], t["offset"] + t["size"]) for t in table["tensors"]]
    assert ends[0][0] == 0 and all(end == begin for (_, end), (begin, _) in zip(ends, ends[1:])), "as in the file"


def test_cat_writes_the_bytes(standing):
    for name, _, _, data in TENSORS:
        assert standing.ctl("cat", "m", name, text=False).stdout == data


def test_cat_of_an_unknown_tensor_fails(standing):
    done = standing.ctl("cat", "m", "nope\x1b", check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert "no tensor 'nope\\x1b'" in done.stderr and "weightctl tensors m" in done.stderr


def test_cat_refuses_a_terminal_unless_forced(standing):
    status, text = in_terminal(standing, "cat", "m", JAPANESE)
    assert status == 1 and "--force" in text and "cd" not in text.split("\n")[0].split()
    assert in_terminal(standing, "cat", "--force", "m", JAPANESE) == (0, "cd")


def test_a_version_can_be_named(loaded, tmp_path):
    second = write_safetensors(tmp_path / "2.safetensors", [("plain", "F32", [2, 3], PLAIN[::-1]), *TENSORS[1:]])
    loaded.ctl("load", "-q", "m", second)
    assert loaded.ctl("cat", "m@1", "plain", text=False).stdout == PLAIN
    assert loaded.ctl("cat", "m", "plain", text=False).stdout == PLAIN[::-1]
    assert ctl_json(loaded, "tensors", "m@1")["version"] == 1
    assert loaded.ctl("cat", "m@3", "plain", check=False).returncode == 1


def test_verify(loaded):
    assert loaded.ctl("verify", "m").stdout.startswith("m@1 on host: matches digest xxh3:")
    [verified] = ctl_json(loaded, "verify", "m@1")["verified"]
    assert verified["equal"] is True and verified["version"] == 1
    assert verified["digest"] == ctl_json(loaded, "show", "m")["digest"]


def test_verify_goes_on_after_a_failure(loaded):
    done = loaded.ctl("verify", "nope", "m", "--json", check=False)
    assert done.returncode == 1 and "'nope'" in done.stderr
    assert [v["name"] for v in json.loads(done.stdout)["verified"]] == ["m"]


def test_rm(loaded, file):
    for name in ("m", "a", "b", "c"):
        loaded.ctl("load", "-q", name, file)
    loaded.ctl("rm", "m@1")
    assert [v["version"] for v in ctl_json(loaded, "show", "m")["versions"]] == [2]
    done = loaded.ctl("rm", "a", "nope", "b", check=False)
    assert done.returncode == 1 and "'nope'" in done.stderr and done.stdout == ""
    assert [b["name"] for b in ctl_json(loaded, "ls")["buffers"]] == ["c", "m"]


def test_rm_of_the_newest_version_is_refused(loaded):
    done = loaded.ctl("rm", "m@1", check=False)
    assert done.returncode == 1 and "m@1" in done.stderr
    assert ctl_json(loaded, "show", "m")["version"] == 1


def test_rm_does_nothing_before_it_understands_everything(loaded):
    assert loaded.ctl("rm", "m", "other@x", check=False).returncode == 2
    assert len(ctl_json(loaded, "ls")["buffers"]) == 1


def test_wait_for_what_is_there(standing):
    assert standing.ctl("wait", "m").stdout == "m@1 on host\n"
    assert ctl_json(standing, "wait", "m@1") == {"name": "m", "device": "host", "version": 1}


def test_wait_for_what_comes(loaded, file):
    waiters = [loaded.spawn("wait", "m", "--version", 2, text=True), loaded.spawn("wait", "m@2", text=True),
               loaded.spawn("wait", "new", "--timeout", 60, text=True)]
    loaded.ctl("load", "-q", "m", file)
    loaded.ctl("load", "-q", "new", file)
    assert [w.communicate(timeout=60) for w in waiters] == \
        [("m@2 on host\n", ""), ("m@2 on host\n", ""), ("new@1 on host\n", "")]
    assert [w.returncode for w in waiters] == [0, 0, 0]


@pytest.mark.parametrize("args", [("m@2", "--timeout", "0"), ("m", "--version=9", "-t", "0.05"),
                                  ("nope", "--timeout", ".05")])
def test_wait_gives_up(standing, args):
    done = standing.ctl("wait", *args, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch("weightctl: .*\n", done.stderr)


def test_ping(loaded):
    pong = ctl_json(loaded, "ping", "--count", 20)
    assert pong["socket"] == loaded.socket and pong["pid"] == loaded.pid
    assert pong["count"] == 20 and pong["buffers"] == 1 and pong["memory"] > 0
    assert 0 < pong["rtt_min_ns"] <= pong["rtt_median_ns"] <= pong["rtt_max_ns"]
    assert re.fullmatch("[0-9a-f]{16}", pong["instance"])
    assert re.search(rf"^PID +{loaded.pid}$", loaded.ctl("ping").stdout, re.M)


def test_ping_waits_for_a_server_that_starts(daemon):
    daemon.kill(signal.SIGTERM)
    waiting = daemon.spawn("ping", "--wait=60", "--json")
    until(lambda: re.match(r"\d+ \(weightctl\) S", pathlib.Path(f"/proc/{waiting.pid}/stat").read_text()), "it waits")
    daemon.start()
    said, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 0 and json.loads(said)["pid"] == daemon.pid, (said, errors)


@pytest.mark.parametrize("wait", [[], ["--wait=0"], ["--wait=0.05"]])
def test_ping_gives_up_on_a_server_that_does_not_start(daemon, wait):
    daemon.kill(signal.SIGTERM)
    try:
        done = daemon.ctl("ping", *wait, check=False)
        assert done.returncode == 1 and "no weightd answers at" in done.stderr, done
    finally:
        daemon.start()


def test_version(daemon):
    release = daemon.ctl("--version").stdout.split()[1]
    library, program = (BUILD / name for name in ("libweightd.so.0", "weightd"))
    assert ctl_json(daemon, "version") == {
        "weightctl": release, "libweightd": release, "library": str(library.resolve()), "weightd": release,
        "program": str(program.resolve()), "socket": daemon.socket}
    # A library of release 0.1.0 has that in its name.
    assert re.sub(r"\.so\.\S+", "", daemon.ctl("version").stdout).count(release) == 3


def test_ping_shows_the_files_of_both_ends(daemon):
    pong = ctl_json(daemon, "ping")
    assert pong["program"] == str((BUILD / "weightd").resolve())
    assert pong["library"] == str((BUILD / "libweightd.so.0").resolve()) and pong["libweightd"] == pong["release"]


# --- Options, usage, help -------------------------------------------------------------------------


def test_socket_before_or_after_the_verb(standing):
    env = {"WEIGHTD_SOCKET": "/nonexistent"}
    for args in (["--socket", standing.socket, "show", "m"], ["show", "m", "--socket", standing.socket],
                 ["show", f"--socket={standing.socket}", "m"]):
        assert standing.ctl(*args, env=env).stdout
    assert standing.ctl("show", "m", env=env, check=False).returncode == 1


@pytest.mark.parametrize("columns,want", [
    ("NAME", ["m"]), ("version,name", ["1", "m"]), ("NAME,NAME", ["m"]), ("MODE,KEEP", ["0640", "2"])])
def test_columns_can_be_chosen(standing, columns, want):
    row = standing.ctl("ls", "--bytes", "--noheadings", "-o", columns).stdout.split()
    assert row == want


def test_columns_can_be_added(standing):
    usual = standing.ctl("ls").stdout.splitlines()[0].split()
    assert standing.ctl("ls", "-o", "+MODE,name").stdout.splitlines()[0].split() == usual + ["MODE"]


def test_columns_choose_the_keys_of_json(standing):
    assert ctl_json(standing, "ls", "-o", "NAME,AGE,VERSION")["buffers"][0].keys() == {"name", "age_ns", "version"}
    assert ctl_json(standing, "tensors", "m", "-o", "SHAPE")["tensors"][0] == {"shape": [2, 3]}
    assert standing.ctl("tensors", "m", "-n", "-o", "SHAPE").stdout.splitlines()[0] == "[2, 3]"


def test_help_lists_each_column(standing):
    for verb in ("ls", "show", "tensors", "history", "stat"):
        text = standing.ctl(verb, "--help").stdout
        names = re.findall(r"^ [* ] ([A-Z]+) ", text.split("\nColumns")[1], re.M)
        table = [line.split() for line in
                 standing.ctl(verb, *NEED_NAME.get(verb, []), "-o", ",".join(names)).stdout.splitlines()]
        assert names and names in table


def test_sizes_are_for_people_unless_asked_for_bytes(loaded, tmp_path):
    big = write_safetensors(tmp_path / "big.safetensors", [("t", "U8", [1_250_000], bytes(1_250_000))])
    loaded.ctl("load", "-q", "big", big)
    assert "1.2 MB" in loaded.ctl("tensors", "big").stdout
    assert " 1250000 " in loaded.ctl("tensors", "-b", "big").stdout


USAGE = [[], ["nonsense"], ["--nonsense"], ["ls", "--nonsense"], ["ls", "extra"], ["ls", "-o", "NOPE"],
         ["ls", "--noheadings=1"], ["ls", "-bx"], ["ls", "-o"], ["--socket"], ["rm", "--socket"],
         ["ls", "--no\x1b[2J"], ["ls", "-\x1b"], ["--\x1b"], ["ls", "-o", "NAME,"], ["ls", "-o", ""], ["load"], ["load", "m"], ["load", "m@1", "f"],
         ["load", "--mode", "9", "m", "f"], ["load", "--mode", "1777", "m", "f"],
         ["load", "--keep", "0", "m", "f"], ["load", "--keep", "-1", "m", "f"],
         ["load", "--threads", "x", "m", "f"], ["load", "--handle", "fabric", "m", "f"], ["load", "--keep"], ["show"], ["show", "m@1"],
         ["show", "a", "b"], ["tensors"], ["tensors", "m@"], ["tensors", "m@0"], ["tensors", "m@-1"],
         ["tensors", "m@99999999999999999999"], ["cat", "m"], ["cat", "m", "t", "u"], ["verify"], ["rm"],
         ["wait"], ["wait", "m", "--timeout", "-1"], ["wait", "m", "--timeout", "nan"],
         ["wait", "m", "--timeout", "1e300"], ["wait", "m", "--timeout", "soon"],
         ["wait", "m@1", "--version", "2"], ["history"], ["history", "m@1"],
         ["history", "a", "b"], ["rollback"], ["rollback", "m@1", "2"], ["rollback", "m", "0"],
         ["rollback", "m", "x"], ["rollback", "m", "1", "2"], ["chmod", "600"], ["chmod", "1777", "m"],
         ["chmod", "u+r", "m"], ["chmod", "600", "m@1"], ["chown", "root"], ["chown", "", "m"],
         ["chown", ":", "m"], ["chown", "no-such-user", "m"], ["chown", ":no-such-group", "m"],
         ["chown", "root", "m@1"], ["chown", "4294967295", "m"], ["chown", "-1", "m"], ["watch", "m@1"],
         ["watch", "-c", "0"], ["watch", "--timeout", "x"], ["stat", "a", "b"], ["stat", "m@1"],
         ["stat", "-o", "NOPE"], ["load", "--policy", "ask", "m", "f"], ["load", "--policy"],
         ["load", "--pause-timeout", "-1", "m", "f"], ["load", "--timeout", "-1", "m", "f"], ["load", "--max-rate", "0", "m", "f"], ["load", "--exclusive", "--reusable", "m", "f"],
         ["load", "--replace", "--exclusive", "m", "f"], ["ping", "-c", "0"], ["ping", "extra"], ["ping", "--wait", "3"], ["ping", "--wait=-1"], ["version", "extra"],
         ["nodes", "a"], ["nodes", "-o", "NOPE"], ["sync"], ["sync", "nonsense"], ["trace"], ["trace", "nonsense"], ["trace", "--format", "svg"], ["trace", "--trace-socket", "/s", "doctor"], ["trace", "doctor", "a"], ["trace", "attached", "a"],
         ["trace", "doctor", "-o", "NOPE"], ["top", "a"], ["top", "-o", "NOPE"], ["top", "--sort", "NOPE"], ["top", "--delay", "-1"],
         ["trace", "record", "a"], ["trace", "record", "--format", "svg"], ["trace", "record", "--seconds", "x"],
         ["trace", "watch"], ["trace", "watch", "--pid", "0"], ["trace", "watch", "--seconds", "1", "true"], ["trace", "messages"],
         ["trace", "metrics", "a"], ["trace", "rdma", "a"], ["trace", "rdma", "-o", "NOPE"], ["trace", "rdma", "--qps", "--counters"], ["trace", "merge"], ["trace", "merge", "--format", "jsonl", "a"],
         ["trace", "log", "a"], ["trace", "log", "--pid", "0"], ["trace", "log", "-o", "NOPE"], ["trace", "log", "-f", "-o", "ACT"],
         ["sync", "push"],
         ["sync", "push", "m", "n"], ["sync", "push", "m@x"], ["sync", "push", "m", "--policy", "most"],
         ["sync", "push", "m", "--max-rate", "0"], ["sync", "push", "m", "--max-rate", "1X"],
         ["sync", "push", "m", "--max-rate", "99999999T"], ["sync", "push", "m", "--max-rate", "1GG"],
         ["sync", "push", "m", "--max-rate", ""], ["sync", "push", "m", "--dry-run", "--no-wait"], ["sync", "push", "m", "--queue", "--no-wait"], ["sync", "push", "m", "--wait-all", "--no-wait"], ["sync", "average", "m", "--wait-all"], ["sync", "status", "xyz"], ["sync", "status", ""],
         ["sync", "status", "0" * 17], ["sync", "status", "1", "2"], ["sync", "status", "-o", "NOPE"],
         ["sync", "cancel"], ["sync", "cancel", "no\x1b"], ["sync", "history", "1"], ["sync", "history", "-c", "0"],
         ["sync", "watch", "1"], ["sync", "metrics", "1"], ["sync", "metrics", "--output"], ["sync", "plan"], *(["sync", "plan", "--nodes", "4", "--nic", "1G", "--size", "1G", *more] for more in (
             ["x"], ["--nodes", "1"], ["--nic", "0"], ["--nic", "1X"], ["--nic", "G"], ["--size", "0"], ["--size", "51TB"],
             ["--size", "1e9"], ["--schedule", "square"], ["--stragglers", "1"], ["--stragglers", "1:0.5"], ["--stragglers", "4:2"],
             ["--failures", "3"], ["--stall", "-1"], ["--efficiency", "1.2.3"], ["-o", "NOPE"])),
         ["pki"], ["pki", "nonsense"], ["pki", "--json"], ["pki", "no\x1b"], ["pki", "ca"], ["pki", "ca", "a", "b"],
         ["pki", "node", "d"], ["pki", "node", "d", "A"], ["pki", "node", "d", ""], ["pki", "node", "d", ".a"],
         ["pki", "node", "d", "../a"], ["pki", "node", "d", "a" * 64], ["pki", "node", "d", "a", "--days", "0"],
         ["pki", "node", "d", "a", "--days", "3651"], ["pki", "revoke"], ["pki", "revoke", "d", "A"],
         ["pki", "revoke", "d", "a", "b"], ["pki", "show"], ["pki", "show", "a", "b"]]


@pytest.mark.parametrize("args", USAGE, ids=lambda a: ascii(" ".join(a)))
def test_wrong_usage_exits_with_2(standing, args):
    done = standing.ctl(*args, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert not UNPRINTABLE.search(done.stderr)
    assert re.search(r"^weightctl: .*\nTry 'weightctl (\w+ )*--help'\.\n$", done.stderr)
    with Wire(standing.socket) as w:
        assert w.names() == ["m"]


@pytest.mark.parametrize("verb", ["", *VERBS, *FAMILIES])
def test_help_fits_and_needs_no_server(standing, verb):
    text = standing.ctl(*verb.split(), "--help", env={"WEIGHTD_SOCKET": "/nonexistent"}).stdout
    assert text.startswith("Usage: weightctl")
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_help_names_every_verb(standing):
    assert re.findall(r"^ (\w+(?: \w+)?)  ", standing.ctl("--help").stdout, re.M) == VERBS
    for family in ("", *FAMILIES):
        text = standing.ctl(*family.split(), "--help").stdout.partition("\nOptions:\n")[0]
        lines = [line for line in text.splitlines() if line.startswith(" ")]
        assert len({re.search(r"\S  +(?=\S)", line).end() for line in lines}) == 1, text
    for family in FAMILIES:
        text = standing.ctl(family, "--help").stdout
        assert [f"{family} {v}" for v in re.findall(r"^ (\w+)  ", text, re.M)] == \
            [v for v in VERBS if v.startswith(f"{family} ")]


def test_help_groups_the_verbs(standing):
    groups = re.findall(r"^(\S.*):\n((?: \w.*\n)+)", standing.ctl("--help").stdout, re.M)
    assert [name for name, _ in groups] == ["Buffers", "Programs", "Training", "The server", "Between nodes", "Certificates", "Traffic", "Help"]
    first = {name: re.match(r" (\w+(?: \w+)?)  ", lines)[1] for name, lines in groups}
    assert list(first.values()) == ["load", "exec", "train run", "doctor", "nodes", "pki ca", "top", "help"]


@pytest.mark.plain
@pytest.mark.parametrize("verb", ["", *VERBS, *FAMILIES])
def test_the_verb_help_shows_what_the_option_does(standing, verb):
    assert standing.ctl("help", *verb.split()).stdout == standing.ctl(*verb.split(), "--help").stdout


@pytest.mark.parametrize("args, meant", [
    (["lss"], "ls"), (["LS"], "ls"), (["list"], "ls"), (["remove", "m"], "rm"), (["rollbak"], "rollback"), (["help", "pnig"], "ping"),
    (["snyc", "push"], "sync"), (["push", "m"], "sync push"), (["trace", "docter"], "doctor"), (["sync", "statsu"], "status"),
    (["help", "pki", "nodes"], "node"), (["ls", "-o", "NMAE"], "NAME"), (["ls", "-o", "+devices"], "DEVICE"),
    (["show", "m", "-o", "RAEDERS"], "READERS"), (["sync", "history", "-o", "VERSIN"], "VERSION")])
def test_what_is_near_to_a_verb_or_a_column_is_suggested(standing, args, meant):
    done = standing.ctl(*args, check=False)
    assert done.returncode == 2 and f"; is it '{meant}'?\n" in done.stderr, done.stderr


@pytest.mark.parametrize("args", [["frobnicate"], ["trace", "frobnicate"], ["ls", "-o", "FROBNICATE"], ["x"]])
def test_nothing_is_suggested_where_nothing_is_near(standing, args):
    done = standing.ctl(*args, check=False)
    assert done.returncode == 2 and "is it" not in done.stderr, done.stderr


NEAR = [["show"], ["tensors"], ["verify"], ["history"], ["rollback"], ["rm"], ["chmod", "0600"], ["chown", "0"], ["stat"], ["cat"]]


def test_a_buffer_that_is_near_is_suggested(daemon, file):
    for name in "minilm", "llama-8b":
        daemon.ctl("load", "-q", name, file)
    misspelt = {"minlim": "minilm", "Minilm": "minilm", "llama8b": "llama-8b"}
    for verb in NEAR:
        what = ["plain"] if verb == ["cat"] else []
        for name in misspelt if verb == NEAR[0] else ["minlim"]:
            done = daemon.ctl(*verb, name, *what, check=False)
            assert done.returncode == 1 and f"'{name}'" in done.stderr and f"; is it '{misspelt[name]}'?\n" in done.stderr, done.stderr
        done = daemon.ctl(*verb, "gpt", *what, check=False)
        assert done.returncode == 1 and "; 'weightctl ls' lists those there are\n" in done.stderr, done.stderr


def test_only_a_buffer_that_is_absent_is_suggested(standing):
    done = standing.ctl("verify", "m@7", check=False)
    assert done.returncode == 1 and "is it" not in done.stderr and "7" in done.stderr, done.stderr


def test_a_tensor_that_is_near_is_suggested(daemon, tmp_path):
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(12)]
    file = write_safetensors(tmp_path / "m.safetensors", [(name, "U8", [1], b"x") for name in names])
    daemon.ctl("load", "-q", "m", file)
    for name, meant in ("model.layers.3.mlp.upproj.weight", names[3]), (names[11].upper(), names[11]):
        done = daemon.ctl("cat", "m", name, check=False)
        assert done.returncode == 1 and done.stderr == f"weightctl: m@1 has no tensor '{name}'; is it '{meant}'?\n"


def test_help_of_the_other_programs_fits_a_terminal():
    texts = [subprocess.run([BUILD / name, "--help"], stdout=subprocess.PIPE, check=True, text=True).stdout
             for name in ("weightd", "weightd-sync", "weightd-trace") if (BUILD / name).exists()]
    assert [line for text in texts for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.plain
@pytest.mark.parametrize("verb", VERBS)
def test_man_page_has_every_verb_and_option(standing, verb):
    page = (ROOT / "packaging/man/weightctl.1.scd").read_text()
    text = standing.ctl(*verb.split(), "--help").stdout
    assert f"\n*{verb}* " in page
    wanted = set(re.findall(r"^ (?:-\w, |    )(--[\w-]+)", text, re.M))
    wanted |= set(re.findall(r"^ [* ] ([A-Z]+) ", text.partition("\nColumns")[2], re.M))
    assert "--help" in wanted
    assert [w for w in sorted(wanted) if w not in page] == []


def test_man_page_is_valid(require):
    require("scdoc")
    page = subprocess.run(["scdoc"], input=(ROOT / "packaging/man/weightctl.1.scd").read_bytes(),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (page.returncode, page.stderr) == (0, b"")


def complete(daemon, line):
    """The completions at the end of the line."""
    script = f"source {ROOT}/packaging/completions/weightctl; " \
             'COMP_LINE=$1 COMP_POINT=${#1}; _weightctl; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", line], stdout=subprocess.PIPE, check=True, text=True,
                          stderr=subprocess.PIPE, env=daemon.env | {"PATH": f"{BUILD}:{os.environ['PATH']}"})
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_completion(loaded, file):
    loaded.ctl("load", "-q", "llama:8b", file)
    assert {v.split()[0] for v in VERBS} < set(complete(loaded, "weightctl "))
    assert complete(loaded, "weightctl help ver") == ["verify", "version"]
    assert complete(loaded, "weightctl help pki re") == ["revoke"]
    assert complete(loaded, "weightctl ver") == ["verify", "version"]
    assert complete(loaded, "weightctl show ") == ["llama:8b", "m"]
    assert complete(loaded, "weightctl rm m ll") == ["llama:8b"]
    assert complete(loaded, "weightctl rm llama:") == ["8b"]  # readline cuts at the colon
    assert complete(loaded, "weightctl ls -o NAME,DI") == ["NAME,DIGEST"]
    assert complete(loaded, f"weightctl --socket {loaded.socket} cat m pl") == ["plain"]
    assert complete(loaded, "weightctl wait --timeout ") == [""]
    assert complete(loaded, "weightctl trace log --act q") == ["qp", "quiesce"]
    for family in FAMILIES:
        assert {f"{family} {v}" for v in complete(loaded, f"weightctl {family} ")} == \
            {v for v in VERBS if v.startswith(f"{family} ")}
    for verb in VERBS:
        helped = set(re.findall(r"(--[\w-]+)", loaded.ctl(*verb.split(), "--help").stdout))
        assert set(complete(loaded, f"weightctl {verb} --")) == helped, verb


# --- Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", NEED_SERVER)
def test_without_a_server_the_socket_and_the_way_out_are_named(standing, tmp_path, verb):
    nowhere = str(tmp_path / "weightd.sock")
    os.utime(tmp_path, (0, 0))  # else the socket may be in the making
    done = standing.ctl(verb, *NEED_NAME.get(verb, []), env={"WEIGHTD_SOCKET": nowhere}, check=False)
    assert done.returncode == (2 if verb == "diff" else 1) and done.stdout == ""
    assert re.fullmatch("weightctl: .*\n", done.stderr)
    assert nowhere in done.stderr and "weightd --socket" in done.stderr


def test_version_does_without_a_server(standing, tmp_path):
    env = {"WEIGHTD_SOCKET": str(tmp_path / "weightd.sock")}
    assert ctl_json(standing, "version", env=env)["weightd"] is None
    assert f"not reached: no weightd answers at {tmp_path}/weightd.sock" in standing.ctl("version", env=env).stdout


def test_a_socket_left_behind_is_no_server(daemon):
    daemon.kill()
    done = daemon.ctl("ls", check=False)
    assert done.returncode == 1 and daemon.socket in done.stderr and "weightd --socket" in done.stderr


PRINTING = [["ls"], ["ls", "--json"], ["help"], ["help", "ls"], ["show", "m"], ["show", "m", "--json"], ["tensors", "m"],
            ["tensors", "m", "--json"], ["cat", "m", "plain"], ["verify", "m"], ["verify", "m", "--json"],
            ["wait", "m"], ["history", "m"], ["rollback", "m@1"], ["stat"], ["stat", "--json"], ["ping"], ["version"], ["--help"], ["ls", "--help"], ["--version"]]


@pytest.mark.parametrize("args", PRINTING, ids=" ".join)
def test_output_that_cannot_be_written_is_a_failure(standing, args):
    with open("/dev/full", "w") as full:
        done = subprocess.run(standing.ctl_command(args), env=standing.env, stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "weightctl: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("args", PRINTING, ids=" ".join)
def test_closed_output_is_a_failure(standing, args):
    command = 'exec "$@" >&-'
    done = subprocess.run(["sh", "-c", command, "sh", *standing.ctl_command(args)], env=standing.env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "weightctl: cannot write to standard output: Bad file descriptor\n"


def test_closed_descriptors_do_not_matter_to_who_prints_nothing(loaded):
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *loaded.ctl_command(["rm", "m"])],
                          env=loaded.env)
    assert done.returncode == 0
    assert ctl_json(loaded, "ls") == {"buffers": [], "jobs": []}


@pytest.mark.parametrize("ignored", [False, True], ids=["SIGPIPE", "EPIPE"])
def test_cat_ends_quietly_when_its_reader_goes_away(loaded, tmp_path, ignored):
    big = write_safetensors(tmp_path / "big.safetensors", [("t", "U8", [1 << 20], bytes(1 << 20))])
    loaded.ctl("load", "-q", "big", big)
    cat = loaded.spawn("cat", "big", "t", restore_signals=not ignored)  # Python itself ignores SIGPIPE
    assert cat.stdout.read(1) == b"\0"
    cat.stdout.close()
    assert cat.wait(60) == (1 if ignored else -signal.SIGPIPE)
    assert cat.stderr.read() == b""
    loaded.ctl("rm", "big")


def test_a_missing_name_is_told_once_and_on_one_line(standing):
    for verb in ("show", "tensors", "verify", "rm", "history", "rollback", "stat"):
        done = standing.ctl(verb, "nope", check=False)
        assert done.returncode == 1
        assert re.fullmatch("weightctl: [^\n]*'nope'[^\n]*\n", done.stderr), done.stderr


# --- Terminals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ls", "show", "tensors"])
def test_tables_fit_into_80_columns(loaded, file, verb):
    name = "a-buffer-with-a-name-that-is-much-too-long/for-any-terminal:" + "x" * 60
    loaded.ctl("load", "-q", name, file)
    status, text = in_terminal(loaded, verb, *([] if verb == "ls" else ["m"]))
    lines = text.replace("\r\n", "\n").splitlines()
    assert status == 0 and len(lines) > 1
    assert [line for line in lines if n_columns(line) > 80] == []


def test_tables_are_whole_when_piped(standing):
    assert LONG in standing.ctl("tensors", "m").stdout
    assert LONG not in in_terminal(standing, "tensors", "m")[1]


@pytest.mark.parametrize("locale, mark", [("C.UTF-8", "\u2026"), ("C", "\\")])
@pytest.mark.parametrize("columns", [70, 80, 100])
def test_a_name_that_was_cut_is_no_other_name(daemon, tmp_path, columns, locale, mark):
    long = "model.layers.61.mlp.experts.255.gate_up_proj.weight_scale_inv.of.the.first.half.of.all.the.rows"
    tensors = {long[:n] for n in range(1, len(long) + 1)} | {long[:n] + mark for n in range(len(long))}
    daemon.ctl("load", "-q", "m", write_safetensors(tmp_path / "m.safetensors", [(name, "U8", [1], b"x") for name in tensors]))
    status, text = in_terminal(daemon, "tensors", "m", "-o", "NAME,DTYPE,SHAPE,SIZE,ROLE", columns=columns, locale=locale)
    shown = [line.split()[0] for line in text.replace("\r\n", "\n").splitlines()[1:]]
    assert status == 0 and len(shown) == len(tensors)
    cut = [name for name in shown if name.endswith(mark)]
    assert cut and {name for name in shown if name not in cut} <= \
        set(daemon.ctl("tensors", "m", "-n", "-o", "NAME", env={"LC_ALL": locale}).stdout.split())
    assert all(n_columns(line) <= columns for line in text.replace("\r\n", "\n").splitlines())


@pytest.mark.parametrize("verb", ["ls", "show", "tensors", "history", "stat"])
def test_a_table_becomes_records_on_a_narrow_terminal(loaded, file, verb):
    name = "a-buffer-with-a-name-that-is-much-too-long/for-any-terminal"
    for _ in range(2):
        loaded.ctl("load", "-q", name, file)
    of = [] if verb in ("ls", "stat") else [name]
    wide = loaded.ctl(verb, *of).stdout.split("\n\n")[-1].splitlines()
    status, text = in_terminal(loaded, verb, *of, columns=40)
    headings = wide[0].split()
    records = text.replace("\r\n", "\n").rstrip("\n").split("\n\n")[-len(wide[1:]):]
    assert status == 0 and [[line.split()[0] for line in record.splitlines()] for record in records] == [headings] * len(wide[1:])
    assert len({re.match(r"\S+ +", line).end() for line in records[0].splitlines()}) == 1
    if verb in ("ls", "stat"):
        assert f"NAME{' ' * (max(map(len, headings)) - 2)}{name}\r\n" in text


def test_a_table_that_fits_a_narrow_terminal_stays_one(standing):
    for args in (["ls", "-o", "NAME,STATE,SIZE"], ["ls", "--noheadings", "-o", "NAME,STATE,SIZE"]):
        assert in_terminal(standing, *args, columns=40)[1].replace("\r\n", "\n") == standing.ctl(*args).stdout


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_names_cannot_disturb_a_terminal(standing, locale):
    for columns in (80, 1000):
        status, text = in_terminal(standing, "tensors", "m", columns=columns, locale=locale)
        assert status == 0 and not UNPRINTABLE.search(text.replace("\r\n", "\n"))
        assert len(text.replace("\r\n", "\n").splitlines()) == 1 + len(TENSORS)
        assert (JAPANESE in text) == (locale == "C.UTF-8")


def test_names_are_escaped_in_text_and_exact_in_json(standing):
    piped = standing.ctl("tensors", "m", "--noheadings", "-o", "NAME").stdout
    assert 'evil\\x1b[31m"\\x5c\\x0a\\x09\\x7f\\xc2\\x9b2J\\xe2\\x80\\xae\\x5cx1b\n' in piped
    done = standing.ctl("tensors", "m", "--json")
    assert HOSTILE in [t["name"] for t in json.loads(done.stdout)["tensors"]]
    assert not UNPRINTABLE.search(done.stdout)


@pytest.mark.parametrize("bad", ["x\x1b]0;title\x07", "\u202eflipped", "new\nline"])
def test_arguments_come_back_escaped(standing, bad):
    for args in (["show", bad], ["cat", "m", bad], ["ls", "-o", bad], [bad], ["rm", bad], ["tensors", f"m@{bad}"]):
        done = standing.ctl(*args, check=False)
        assert done.returncode in (1, 2) and not UNPRINTABLE.search(done.stderr), done.stderr
        assert done.stderr.count("\n") == done.returncode


def test_progress_in_a_pipe_is_a_line_for_each_tenth(daemon, tmp_path):
    big = write_sparse(tmp_path / "big.safetensors", 256 << 20)
    lines = daemon.ctl("load", "m", big).stderr.splitlines()
    told = [re.fullmatch(r"m: reading (\d+) % \((.*) of 268.4 MB(, [^,]*/s)?(, \d+:\d\d left)?\)", line)
            for line in lines if "reading" in line]
    assert told and all(told), lines
    tenths = [int(t.group(1)) for t in told]
    assert tenths[-1] == 100 and tenths == sorted(set(tenths)) and all(t % 10 == 0 for t in tenths)


@pytest.mark.parametrize("columns", [80, 200, 40, 20, 1])
def test_progress_on_a_terminal_is_one_line_that_goes_away(daemon, tmp_path, columns):
    big = write_sparse(tmp_path / "big.safetensors", 64 << 20)
    status, text = in_terminal(daemon, "load", "m", big, columns=columns, errors_only=True)
    assert status == 0 and screen(text) == [""]
    drawn = text.split("\r\x1b[K")
    assert drawn[0] == drawn[-1] == "" and len(drawn) > 2
    assert [line for line in drawn if len(line) > max(columns - 2, 1)] == []
    if columns >= 80:
        assert re.search(r"reading +\d+ % \[[=> ]+\] .* of 67\.1 MB", text)


def test_progress_is_wiped_before_an_error(daemon, tmp_path):
    big = write_sparse(tmp_path / "big.safetensors", 8 << 20)
    daemon.ctl("load", "-q", "--new-layout", "m", write_sparse(tmp_path / "a.safetensors", 1000))
    status, text = in_terminal(daemon, "load", "m", big, errors_only=True)
    lines = screen(text.replace("\r\n", "\n"))
    assert status == 1 and len(lines) == 2 and lines[0].startswith("weightctl: ") and lines[1] == ""


def test_a_dumb_terminal_gets_lines(daemon, tmp_path):
    big = write_sparse(tmp_path / "big.safetensors", 8 << 20)
    status, text = in_terminal(daemon, "load", "m", big, errors_only=True, term="dumb")
    assert status == 0 and "\x1b" not in text and "m: reading 100 %" in text


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_an_interrupted_load_leaves_nothing(daemon, tmp_path, sig):
    big = write_sparse(tmp_path / "big.safetensors", 1 << 30)
    for _ in range(10):
        load = daemon.spawn("load", "--threads", 1, "m", big, text=True, bufsize=1)
        assert any("reading" in line for line in iter(load.stderr.readline, ""))  # it is at work
        load.send_signal(sig)
        out, errors = load.communicate(timeout=60)
        if load.returncode != 0:
            break
        daemon.ctl("rm", "m")  # it was faster than the signal
    assert (load.returncode, out) == (128 + sig, "")
    assert re.fullmatch(r"weightctl: interrupted: the load was cancelled at \d+ % of phase '(read|publish)'; nothing was published; load "
                        "again to begin anew", errors.splitlines()[-1])
    until(lambda: ctl_json(daemon, "ls") == {"buffers": [], "jobs": []}, "weightd has seen the end of the connection")
    until(lambda: ctl_json(daemon, "ping")["memory"] == 0, "the worker has freed the memory")


def test_nohup_is_honoured(daemon, file):
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *daemon.ctl_command(["load", "-q", "m", file])]
    assert subprocess.run(nohup, env=daemon.env).returncode == 0

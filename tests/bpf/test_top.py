"""weightctl top: rows of all clients, as numbers that are exact, in order, and drawn again."""
import contextlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from fcntl import ioctl

import pytest
from bpf.traffic import carry, is_acknowledged
from integration.weightctl.test_weightctl import HOSTILE, UNPRINTABLE
from lib import features, tracing
from lib.daemon import SANITIZER_EXIT, environment
from lib.fake_agent import FakeAgent, pack
from lib.features import BUILD

END = {"end": True}
CLIENT = {"id": 1, "pid": 4711, "uid": 0, "comm": "weightd-sync"}
PROCESS = {"pid": 815, "comm": "trainer", "cgroup": "/docker/" + "0f" * 32, "container": "0f" * 32}
NO_PROCESS = dict.fromkeys(PROCESS)
SECOND = 10**9


def row(number=1, **more):
    delivered = more.get("delivered", 10**9)
    return {"kind": "row", "row": number, "sync": "5f3a9c0011223344", "version": 7, "peer": "node-b", "role": "payload",
            "submitted": delivered, "delivered": delivered, "received": 0, "consumed": 0, "wire": delivered, "retrans_bytes": 0,
            "retrans_segments": 0, "expected": 4 * 10**9, "rtt_us": 212, "sockets": 2, "closed": 1, "lost": 0, "partial": False,
            "source": "bpf", "began_ns": SECOND, "now_ns": 11 * SECOND, "client": CLIENT, "process": PROCESS,
            "transport": "tcp", "quality": {name: "exact" for name in tracing.COUNTERS}} | more


@pytest.fixture
def make_tracer():
    """make_tracer([rows of the first answer], [those of the second]): one that sends these answers, and the last again and again."""
    tracers = []

    def make(*answers):
        left = list(answers)

        def rows(connection, _):
            for r in [*(left.pop(0) if len(left) > 1 else left[0]), END]:
                connection.send(pack(r))

        tracers.append(FakeAgent(rows=rows))
        return tracers[-1]

    yield make
    for t in tracers:
        t.close()


def run(path, *args, **kw):
    done = subprocess.run([BUILD / "weightctl", "top", *args], env=environment(WEIGHTD_TRACE_SOCKET=str(path)),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **kw)
    assert done.returncode not in (SANITIZER_EXIT, -signal.SIGABRT, -signal.SIGSEGV), done.stderr
    return done


def once(path, *args):
    done = run(path, "--once", *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def rows_of(path, *args):
    return json.loads(once(path, "--json", *args))["rows"]


def test_a_row_says_it_all(make_tracer):
    text = once(make_tracer([row()]).path)
    head, line = text.splitlines()
    assert head.split() == ["SYNC", "PEER", "PROCESS", "ROLE", "DONE", "EXPECTED", "RATE", "RTT", "RETRANS", "LIMITED"]
    assert line.split() == ["5f3a9c0011223344", "node-b", "trainer", "payload", "1.0", "GB", "4.0", "GB", "100.0", "MB/s", "212", "us", "0",
                            "B", "-"]
    known, = rows_of(make_tracer([row(received=5, limited_by="loss")]).path)
    assert known == {"sync": "5f3a9c0011223344", "version": 7, "peer": "node-b", "role": "payload", "done": 10**9 + 5,
                     "expected": 4 * 10**9, "rate": 10**8, "rtt_ns": 212000, "retrans": 0, "limited": "loss",
                     "stall": None, "stalled_ns": None,
                     "process": "trainer", "pid": 815, "user": "root", "uid": 0, "container": "0f" * 32, "cgroup": "/docker/" + "0f" * 32,
                     "transport": "tcp", "elapsed_ns": 10 * SECOND, "left_ns": 30_999_999_949,
                     "submitted": 10**9, "delivered": 10**9, "received": 5, "consumed": 0, "wire": 10**9, "sockets": 1,
                     "partial": False, "quality": "exact", "source": "bpf", "row": 1}


def test_what_is_not_known_is_none(make_tracer):
    nothing = dict.fromkeys(tracing.COUNTERS) | {"expected": None, "rtt_us": None, "process": NO_PROCESS}
    tracer = make_tracer([row(quality=dict.fromkeys(tracing.COUNTERS, "absent"), **nothing)])
    known, = rows_of(tracer.path)
    assert {key for key, value in known.items() if value is None} == \
        {"done", "expected", "rate", "rtt_ns", "retrans", "limited", "stall", "stalled_ns", "process", "pid", "container", "cgroup", "left_ns", "submitted", "delivered",
         "received", "consumed", "wire"}
    assert once(tracer.path, "-n").split()[2:] == ["-", "payload"] + ["-"] * 6


def test_a_rate_that_is_made_up_ends_somewhere(make_tracer):
    known, = rows_of(make_tracer([row(delivered=1 << 62, began_ns=5, now_ns=6)]).path)
    assert known["rate"] == 10**18


def test_what_has_just_begun_is_nothing_long_and_what_is_not_known_is_not(make_tracer):
    stall = {"cause": "receive_window", "since_ns": 5}
    rows = [row(1, began_ns=5, now_ns=5, stall=stall), row(2, now_ns=None, stall=stall), row(3, began_ns=6, now_ns=5, stall=stall | {"since_ns": 6})]
    shown = [[r[key] for key in ("elapsed_ns", "stalled_ns")] for r in rows_of(make_tracer(rows).path, "--sort", "row")]
    assert shown == [[None, None], [None, None], [0, 0]]


def test_what_holds_it_up_now_comes_before_what_did_most(make_tracer):
    stall = {"cause": "receive_window", "since_ns": 8 * SECOND}
    rows = [row(1, limited_by="busy", stall=stall), row(2, limited_by="busy", stall=None), row(3, limited_by=None, stall=stall),
            row(4, limited_by=None, stall=None)]
    tracer = make_tracer(rows)
    words = once(tracer.path, "-n", "-o", "ROW,LIMITED,STALL,STALLED", "--sort", "limited").split()
    assert words == ["1", "!receive_window", "receive_window", "3.0", "s", "3", "!receive_window", "receive_window", "3.0", "s",
                     "2", "busy", "-", "-", "4", "-", "-", "-"]
    shown = [[r[key] for key in ("limited", "stall", "stalled_ns")] for r in rows_of(tracer.path, "--sort", "row")]
    assert shown == [[None, None, None], [None, "receive_window", 3 * SECOND], ["busy", None, None], ["busy", "receive_window", 3 * SECOND]]


@pytest.mark.parametrize("column, order", [
    (None, "cab"), ("rate", "cab"), ("DONE", "cab"), ("peer", "abc"), ("rtt", "bac"), ("expected", "acb"), ("row", "bac"),
    ("pid", "bac"), ("partial", "bca"), ("process", "bac"),
])
def test_rows_are_sorted(make_tracer, column, order):
    """Rows that are equal or unknown in that column are in the order of age."""
    rows = [row(2, peer="a", delivered=2 * 10**9, expected=9, rtt_us=5, process=PROCESS | {"pid": 7}),
            row(3, peer="b", delivered=10**9, expected=None, rtt_us=9, partial=True, process=PROCESS | {"pid": 8, "comm": "a"}),
            row(1, peer="c", delivered=3 * 10**9, expected=5, rtt_us=None, process=NO_PROCESS)]
    words = once(make_tracer(rows).path, "-n", "-o", "PEER", *(["--sort", column] if column else [])).split()
    assert "".join(words) == order


def test_rows_can_be_chosen(make_tracer):
    process = PROCESS | {"pid": 9, "comm": "other", "container": None, "cgroup": "/a.slice/b"}
    tracer = make_tracer([row(1), row(2, peer="c", role="control", transport="tls"), row(3, sync="77aa", process=process),
                          row(4, sync="77bb", process=NO_PROCESS)])
    for args, wanted in (([], {1, 2, 3, 4}), (["--peer", "c"], {2}), (["--peer", "node"], set()), (["--sync", "5f"], {1, 2}),
                         (["--role", "control"], {2}), (["--transport", "tls"], {2}), (["--process", "other"], {3}), (["--process", "9"], {3}),
                         (["--process", "4294967295"], set()), (["--container", "0f0f0f0f0f0f"], {1, 2}),
                         (["--container", "f0"], set()), (["--cgroup", "/a.slice"], {3}), (["--cgroup", "/a.slice/"], {3}),
                         (["--cgroup", "/a"], set()), (["--cgroup", "/"], {1, 2, 3}), (["--cgroup", "/a.slice/b/c"], set()),
                         (["--sync", "77aa", "--peer", "node-b"], {3})):
        assert {r["row"] for r in rows_of(tracer.path, *args)} == wanted
    assert once(tracer.path, "--peer", "nobody") == "nothing of that kind is counted now\n"
    assert once(make_tracer([]).path, "--peer", "node-b") == "nothing is counted now\n"
    done = run(tracer.path, "--once", "--role", "payloads")
    assert done.returncode == 2 and done.stderr.startswith("weightctl: --role takes payload or control, not 'payloads'\n")


def lines_of(tracer, n, *args):
    """So many lines of what it writes without an end."""
    proc = subprocess.Popen([BUILD / "weightctl", "top", *args], env=environment(WEIGHTD_TRACE_SOCKET=tracer.path),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    with proc:
        lines = [proc.stdout.readline() for _ in range(n)]
        proc.send_signal(signal.SIGINT)
        proc.stdout.read()
    assert proc.returncode == 0
    return lines


def test_a_rate_is_since_the_frame_before(make_tracer):
    frames = [[row()], [row(delivered=10**9 + 500, now_ns=13 * SECOND)],
              [row(delivered=400, began_ns=20 * SECOND, now_ns=21 * SECOND), row(2)]]
    lines = lines_of(make_tracer(*frames), 3, "--json", "--delay", "0.01")
    assert [[r["rate"] for r in json.loads(line)["rows"]] for line in lines] == [[10**8], [250], [10**8, 400]]


def test_without_a_terminal_frames_follow_each_other(make_tracer):
    lines = lines_of(make_tracer([row()]), 5, "--delay", "0.01", "-o", "PEER")
    assert lines == ["PEER\n", "node-b\n", "\n", "PEER\n", "node-b\n"]


def test_a_hostile_tracer_moves_no_cursor(make_tracer):
    hostile = row(sync=HOSTILE, peer=HOSTILE, role=HOSTILE, limited_by=HOSTILE, stall={"cause": HOSTILE, "since_ns": -1}, client={"comm": HOSTILE, "pid": -1, "uid": 1 << 40},
                  process={"comm": HOSTILE, "cgroup": HOSTILE, "container": HOSTILE, "pid": -1}, transport=HOSTILE)
    wrong = {"kind": "row", "row": "x", "delivered": -5, "received": 1.5, "began_ns": 1 << 62, "client": [], "quality": 7, "process": 7,
             "stall": 7}
    done = once(make_tracer([hostile, wrong]).path, "-o", "+PID,UID,QUALITY,CONTAINER,CGROUP,TRANSPORT,STALL")
    assert not UNPRINTABLE.search(done)
    assert len(rows_of(make_tracer([hostile, wrong]).path)) == 2


class Screen:
    """A terminal that shows `weightctl top`."""

    def __init__(self, tracer, *args, columns=80):
        self.ours, theirs = pty.openpty()
        self.resize(columns, theirs)
        self.proc = subprocess.Popen([BUILD / "weightctl", "top", *args], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                                     env=environment(WEIGHTD_TRACE_SOCKET=tracer.path, TERM="xterm", LC_ALL="C.UTF-8"))
        os.close(theirs)
        self.got = ""

    def resize(self, columns, fd=None):
        ioctl(fd or self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def until(self, pattern):
        """The output up to the end of the pattern."""
        while not (found := re.search(pattern, self.got, re.S)):
            self.got += os.read(self.ours, 65536).decode()
        text, self.got = self.got[:found.end()], self.got[found.end():]
        return text

    def end(self):
        self.proc.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while True:  # it takes no signal while it waits for room
                os.read(self.ours, 65536)
        os.close(self.ours)
        return self.proc.wait(60)


def test_it_is_drawn_in_place_within_the_terminal(make_tracer):
    names = {"sync": "5f3a9c0011223344", "peer": "gpu-node-17.rack-4.example", "limited_by": "receive window",
             "process": PROCESS | {"comm": "python3.11-train"}, "stall": {"cause": "receive_window", "since_ns": SECOND}}
    tracer = make_tracer([row(i, delivered=123_456_789_012, retrans_bytes=123_456_789, rtt_us=123_456, **names) for i in (1, 2)])
    screen = Screen(tracer, "--delay", "0.01")
    frame = r"\r\x1b\[J(.*?\n){3}"
    lines = screen.until(frame).split("\x1b[J")[-1].splitlines()
    assert [len(line) <= 80 for line in lines] == [True] * 3 and lines[0].split()[-1].startswith("LIM")
    assert [line.split()[-1].startswith("!rec") for line in lines[1:]] == [True] * 2, "cut as it is"
    assert screen.until(frame).startswith("\x1b[3A\r\x1b[J")
    screen.resize(50)
    text = screen.until(r"\x1b\[H" + frame)  # a frame or more that were on their way arrive before
    lines = text.split("\x1b[J")[-1].splitlines()
    assert max(map(len, lines)) <= 50 and all(line.endswith("\u2026") for line in lines), lines
    assert screen.until(frame).startswith("\x1b[3A\r\x1b[J")
    assert screen.end() == 0


def test_bytes_that_a_tracer_counted_are_shown(connect):
    features.require("bpf")
    with tracing.Tracer() as tracer:
        client, (a, b) = tracer.client(), connect()
        client.ask("tag", [a.fileno()], sync="s", version=3, peer="b", role="payload", expected=2_000_003)
        client.ask("begin", sync="s")
        carry(a, b, 1_000_003, 1)
        client.until(is_acknowledged)
        shown, = rows_of(tracer.socket)
        assert {k: shown[k] for k in ("sync", "version", "peer", "role", "done", "expected", "pid", "quality", "sockets")} == \
            {"sync": "s", "version": 3, "peer": "b", "role": "payload", "done": 1_000_003, "expected": 2_000_003,
             "pid": os.getpid(), "quality": "exact", "sockets": 1}
        assert shown["rtt_ns"] > 0 and shown["rate"] > 0


def test_a_stall_that_a_tracer_sees_is_shown_while_it_is_one(connect):
    features.require("bpf")
    with tracing.Tracer() as tracer:
        client, (a, b) = tracer.client(), connect()
        client.ask("tag", [a.fileno()], sync="s", version=3, peer="b", role="payload")
        client.ask("begin", sync="s")
        a.settimeout(0.5)
        with pytest.raises(TimeoutError):
            a.sendall(bytes(256 << 20))  # the other end never reads it
        client.until(lambda row: row["stall"] and row["limited_by"] == "receive_window")
        known, = rows_of(tracer.socket)
        assert (known["limited"], known["stall"]) == ("receive_window", "receive_window") and known["stalled_ns"] > SECOND / 5
        assert once(tracer.socket, "-n", "-o", "LIMITED") == "!receive_window\n"
        client.ask("end", sync="s")
        assert once(tracer.socket, "-n", "-o", "LIMITED") == "receive_window\n"


def test_a_refusal_is_told():
    why = "only root may see what other users count or do"
    tracer = FakeAgent(rows=[END | {"error": why}])
    done = run(tracer.path)
    tracer.close()
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"weightctl: {why}\n")


def test_without_a_tracer_the_way_out_is_named(tmp_path):
    done = run(tmp_path / "none")
    assert done.returncode == 1 and "start it with 'systemctl start weightd-trace'" in done.stderr

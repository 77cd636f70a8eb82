"""weightctl trace merge: recordings of several nodes on one timeline, with arrows from the sender to the receiver."""
import json
import signal
import subprocess

import pytest
from bpf.test_record import CLIENT, HOSTILE, MS, Recorder, asked, check, event, row, span
from bpf.traffic import carry, is_acknowledged
from lib import features, tracing
from lib.daemon import SANITIZER_EXIT, environment
from lib.features import BUILD

S = 1000  # ms
NOON = 1_790_000_000 * S  # real time
FLOWS = ("select a.name, ap.name, b.name, bp.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in "
         "join thread_track at on at.id = a.track_id join thread ta on ta.utid = at.utid join process ap on ap.upid = ta.upid "
         "join thread_track bt on bt.id = b.track_id join thread tb on tb.utid = bt.utid join process bp on bp.upid = tb.upid "
         "order by 1, 2, 4")
A, B = "10.0.0.1:4000", "10.0.0.2:5000"


def clock(ms, real=NOON):
    """That the monotonic clock was at `ms` when it was `real`."""
    return {"kind": "clock", "monotonic_ns": ms * MS, "realtime_ns": real * MS}


def write(folder, node, packets, boot=0):
    """The recording of a node that was started `boot` after NOON: its moments are that much less."""
    path = folder / f"{node}.jsonl"
    told = [clock(0, NOON + boot), *packets, clock(9000, NOON + boot + 9000)]
    path.write_text("".join(json.dumps(packet) + "\n" for packet in told))
    return path


def run(*args):
    done = subprocess.run([BUILD / "weightctl", "trace", "merge", *args], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, env=environment())
    assert done.returncode not in (SANITIZER_EXIT, -signal.SIGABRT, -signal.SIGSEGV), done.stderr
    return done


def merge(*paths, told=""):
    """The slices, as (sync, process, begin, end) in ms, and the arrows as pairs of these."""
    done = run(*paths)
    assert (done.returncode, done.stderr) == (0, told)
    return drawn(done.stdout)


def drawn(text):
    events = json.loads(text)
    _, names = check(json.dumps([e for e in events if e["ph"] not in "sf"]))
    slices = {(e["pid"], e["tid"], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"}

    def told(s):
        return s[2], names[s[0], 0].partition(" (")[0], s[3] / 1000, s[4] / 1000

    def around(e):
        found = [s for s in slices if s[:3] == (e["pid"], e["tid"], e["name"]) and s[3] <= e["ts"] <= s[4]]
        assert len(found) == 1, (e, found)
        return told(found[0])

    arrows = []
    for s in (e for e in events if e["ph"] == "s"):
        ends = [e for e in events if e["ph"] == "f" and e["id"] == s["id"]]
        assert len(ends) == 1 and ends[0]["bp"] == "e" and ends[0]["ts"] >= s["ts"], (s, ends)
        arrows.append((around(s), around(ends[0])))
    assert len(arrows) == sum(e["ph"] == "f" for e in events)
    return sorted(map(told, slices)), sorted(arrows)


def carried(begin, end, peer, delivered, received, number=1, **more):
    """A span of one row."""
    more = {"number": number, "peer": peer, "began": begin} | more
    return [span("begin", begin), row("total", end, delivered=delivered, **more) | {"received": received}, span("end", end)]


def connection(local, remote, ms=500, **more):
    return event("close", ms, **more) | {"local": local, "remote": remote}


@pytest.fixture
def skewed(tmp_path):
    """Recordings of two nodes, of which one was started a minute before the other: b receives 3 ms after a began to send."""
    return (write(tmp_path, "a", carried(2000, 2010, "b", 5000, 9), boot=-100 * S),
            write(tmp_path, "b", carried(62_003, 62_011, "a", 9, 5000), boot=-160 * S))


SENT, CAME = ("one", "a: b", 0, 10), ("one", "b: a", 3, 11)


def test_clocks_that_began_elsewhere_are_one(skewed):
    assert merge(*skewed) == ([SENT, CAME], [(SENT, CAME)])
    assert merge(*reversed(skewed)) == ([SENT, CAME], [(SENT, CAME)])


def test_perfetto_finds_the_arrow(skewed, tmp_path):
    features.require("perfetto")
    assert asked(run(*skewed, "--format", "chrome").stdout, FLOWS, tmp_path) == \
        [["one", "a: b (weightd-sync 4711)", "one", "b: a (weightd-sync 4711)"]]
    assert asked(run(*skewed).stdout, "select ts, dur from slice order by 1", tmp_path) == \
        [[0, 10 * MS], [3 * MS, 8 * MS]]


def test_arguments_are_what_was_said(skewed):
    events = json.loads(run(*skewed).stdout)
    assert [e["args"] for e in events if e["ph"] == "X"] == [json.loads(path.read_text().splitlines()[2]) for path in skewed]


def test_one_recording_is_a_timeline_too(skewed):
    assert merge(skewed[1]) == ([("one", "b: a", 0, 8)], [])


def test_a_connection_says_more_than_names(tmp_path):
    """Whatever each calls the other, and though each has two rows."""
    a = write(tmp_path, "a", [connection(A, B, peer="x"), *carried(100, 200, "x", 50, 0), *carried(300, 400, "b", 50, 0, 2)])
    b = write(tmp_path, "b", [connection(B, A, peer="y"), *carried(110, 210, "y", 0, 50), *carried(310, 410, "a", 0, 50, 2)])
    assert merge(a, b)[1] == [(("one", "a: b", 200, 300), ("one", "b: a", 210, 310)),
                              (("one", "a: x", 0, 100), ("one", "b: y", 10, 110))]


def test_a_connection_within_one_recording(tmp_path):
    other = {"client": CLIENT | {"id": 2}}
    told = [connection(A, B, peer="x"), connection(B, A, number=2, peer="y") | other, *carried(100, 200, "x", 50, 0),
            *(packet | other for packet in carried(110, 210, "y", 0, 50, 2))]
    assert merge(write(tmp_path, "all", told))[1] == [(("one", "all: x", 0, 100), ("one", "all: y", 10, 110))]


@pytest.mark.parametrize("why, a, b", [
    ("another sync", carried(100, 200, "b", 50, 0), [row("total", 210, sync="two", peer="a", began=110), span("end", 210, "two")]),
    ("another version", carried(100, 200, "b", 50, 0), carried(110, 210, "a", 0, 50, version=8)),
    ("another role", carried(100, 200, "b", 50, 0), carried(110, 210, "a", 0, 50, role="control")),
    ("two rows", carried(100, 200, "b", 50, 0) + carried(100, 200, "b", 50, 0, 2), carried(110, 210, "a", 0, 50)),
    ("another node", carried(100, 200, "c", 50, 0), carried(110, 210, "a", 0, 50)),
    ("another span", carried(100, 200, "b", 50, 0), carried(110, 210, "a", 0, 50) + carried(300, 400, "a", 0, 50)),
    ("of two connections", [connection(A, B), *carried(100, 200, "x", 50, 0)],
     [connection(B, A, peer="y"), connection(B, A, number=2, peer="z"), *carried(110, 210, "y", 0, 50)]),
    ("with itself", [connection(A, B), connection(B, A), *carried(100, 200, "b", 50, 0)], []),
    ("nothing", carried(100, 200, "b", 0, 0), carried(110, 210, "a", 0, 0)),
    ("not known", carried(100, 200, "b", None, None), carried(110, 210, "a", None, None)),
], ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_not_sure_has_no_arrow(tmp_path, why, a, b):
    assert merge(write(tmp_path, "a", a), write(tmp_path, "b", b))[1] == []


@pytest.mark.parametrize("sent, received, ways", [((50, 9), (9, 50), ["ab"]), ((9, 50), (50, 9), ["ba"]), ((50, 50), (50, 50), ["ab", "ba"]),
                                                  ((None, None), (9, 50), ["ab"]), ((9, 50), (None, None), ["ba"])])
def test_it_points_to_who_received_more(tmp_path, sent, received, ways):
    arrows = merge(write(tmp_path, "a", carried(100, 200, "b", *sent)), write(tmp_path, "b", carried(110, 210, "a", *received)))[1]
    assert [a[1][0] + b[1][0] for a, b in arrows] == ways


def test_each_span_has_its_own(tmp_path):
    a = write(tmp_path, "a", carried(100, 200, "b", 50, 0) + carried(300, 400, "b", 0, 50, version=7))
    b = write(tmp_path, "b", carried(110, 210, "a", 0, 50) + carried(310, 410, "a", 50, 0, version=7))
    assert merge(a, b)[1] == [(("one", "a: b", 0, 100), ("one", "b: a", 10, 110)), (("one", "b: a", 210, 310), ("one", "a: b", 200, 300))]


def test_clocks_that_do_not_agree_are_told(tmp_path):
    a, b = write(tmp_path, "a", carried(100, 200, "b", 50, 0)), write(tmp_path, "b", carried(110, 210, "a", 0, 50), boot=-S)
    told = ("weightctl: 1 of the arrows would point back in time and are left out: the clocks of the nodes do not agree, or one "
            "node joined a sync near its end\n")
    slices, arrows = merge(a, b, told=told)
    assert (len(slices), arrows) == (2, [])


def test_a_clock_that_was_set_is_told(skewed):
    a, b = skewed
    lines = a.read_text().splitlines()
    lines[0] = json.dumps(clock(0))
    a.write_text("\n".join(lines) + "\n")
    told = f"weightctl: {a}: the clock was set meanwhile, by -100.0 s; its last setting is used\n"
    assert merge(a, b, told=told) == ([SENT, CAME], [(SENT, CAME)])


def test_one_that_was_killed_is_read_by_its_first_clock(skewed):
    a, b = skewed
    a.write_text("\n".join(a.read_text().splitlines()[:-2]) + "\n")
    slices, arrows = merge(a, b)
    assert slices == [SENT, CAME] and arrows == [(SENT, CAME)]


def test_no_events_are_no_timeline(tmp_path):
    assert merge(write(tmp_path, "a", []), write(tmp_path, "b", [])) == ([], [])


OBJECT = "this is not an object with a 'kind'"
WHEN = "its time in nanoseconds is missing or too large"
MOMENT = "'monotonic_ns' and 'realtime_ns' are not times"


@pytest.mark.parametrize("line, why", [
    (b"\n", "this is not JSON: "), (b"{\n", "this is not JSON: "), (b"\xff\n", "this is not JSON: "), (b"\0\n", "this is not JSON: "),
    (b"{}{}\n", "this is not JSON: "), (b"[" * 5000 + b"\n", "this is not JSON: "), (b'{"kind":"x","kind":"y"}\n', "this is not JSON: "),
    (b'{"kind":"begin","ns":99999999999999999999}\n', "this is not JSON: "), (b"[]\n", OBJECT), (b"{}\n", OBJECT), (b'{"kind":5}\n', OBJECT),
    (b'{"kind":"begin"}\n', WHEN), (b'{"kind":"end","ns":-1}\n', WHEN), (b'{"kind":"close","ns":"x"}\n', WHEN),
    (b'{"kind":"total","now_ns":5}\n', WHEN), (b'{"kind":"gap","to_ns":9223372036854775807}\n', WHEN),
    (b'{"kind":"clock"}\n', MOMENT), (b'{"kind":"clock","monotonic_ns":2,"realtime_ns":1}\n', MOMENT),
    (b'{"kind":"clock","monotonic_ns":2,"realtime_ns":9223372036854775807}\n', MOMENT),
    (b'{"kind":"x"}', "the line is cut off; was the recording killed?"), (b"x" * 1_048_577, "no line of a recording is longer than 1 MiB"),
], ids=lambda x: ascii(x[:40]))
def test_a_broken_recording_is_named_with_its_line_and_leaves_the_file_that_is_there(skewed, tmp_path, line, why):
    a, b = skewed
    output = tmp_path / "timeline.json"
    output.write_text("of yesterday")
    with open(b, "ab") as f:
        f.write(line)
    done = run(a, b, "--output", output)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"weightctl: {b}:6: {why}") and done.stderr.count("\n") == 1, done.stderr
    assert output.read_text() == "of yesterday" and len(list(tmp_path.iterdir())) == 3


def test_what_cannot_be_read_is_named(skewed, tmp_path):
    (tmp_path / "empty").write_text("")
    (tmp_path / "timeless.jsonl").write_text('{"kind":"begin","sync":"one","ns":5}\n')
    (tmp_path / "no\udcff.jsonl").write_text("")
    for name, why in [("none", "cannot read {}: No such file or directory"), ("", "cannot read {}: it is no regular file"),
                      ("empty", "{} has no line of the kind 'clock'"), ("timeless.jsonl", "{} has no line of the kind 'clock'"),
                      ("n" * 128, "cannot read"), ("no\udcff.jsonl", str(tmp_path))]:
        done = run(*skewed, tmp_path / name)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.startswith("weightctl: " + why.format(tmp_path / name)), done.stderr


def test_two_of_one_name_are_refused(skewed, tmp_path):
    (tmp_path / "x").mkdir()
    other = write(tmp_path / "x", "a", [])
    done = run(*skewed, other)
    assert (done.returncode, done.stderr) == \
        (1, f"weightctl: {skewed[0]} and {other} would both be of a node 'a'; name each file as its node\n")


def test_it_replaces_a_file_but_no_recording(skewed, tmp_path):
    a, b = skewed
    output, before = tmp_path / "out.json", a.read_text()
    output.write_text("x" * 100_000)
    done = run(a, b, "--output", output)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert output.read_text() == run(a, b).stdout
    (tmp_path / "link").symlink_to(a)
    for path in a, tmp_path / "link":
        done = run(a, b, "--output", path)
        assert (done.returncode, done.stderr) == (1, f"weightctl: {path} is one of the recordings; it is not replaced by the timeline\n")
    assert a.read_text() == before


@pytest.mark.parametrize("path, why", [("/dev/full", "cannot replace /dev/full: it is no regular file; without --output it is printed"),
                                       ("/nonexistent/x", "cannot write /nonexistent/x: No such file or directory")])
def test_a_file_that_cannot_be_written_is_named(skewed, path, why):
    if path == "/dev/full":
        features.require("root")
    done = run(*skewed, "--output", path)
    assert (done.returncode, done.stderr) == (1, f"weightctl: {why}\n")


def test_a_hostile_recording_makes_no_broken_timeline(tmp_path):
    wrong = [{"kind": HOSTILE}, row("total", 2, peer=HOSTILE, role=HOSTILE, sync="x" * 5000, client=[]), span("end", 3, "x" * 5000),
             row("total", 2, sync="a\nb", peer="c\nd", role="é" * 60, delivered=(1 << 63) - 1, client={"id": 2, "comm": "é" * 63}),
             event("close", 5, sync="a\nb") | {"local": "x\ny", "remote": HOSTILE}, connection(5, None), connection(A, A),
             row("progress", 4, number="x", delivered=-1), span("end", 5, "a\nb"), *carried(1, 2, "é" * 63, 5, 0)]
    for node in "é" * 63, "a":
        merge(write(tmp_path, node, [*wrong, *wrong]))
    done = run(*tmp_path.iterdir())
    assert done.returncode == 0 and done.stdout.isascii()
    drawn(done.stdout)


def test_two_tracers_that_see_one_connection(connect, tmp_path):
    """Neither names its peer as the recording of that one is named."""
    features.require("bpf")
    features.require("perfetto")
    a, b = connect()
    paths = []
    with tracing.Tracer() as here, tracing.Tracer() as there:
        ends = [(here.client(), a, Recorder(here.socket), "sender"), (there.client(), b, Recorder(there.socket), "receiver")]
        for client, sock, _, name in ends:
            client.tag(sock, sync="one", peer=f"who knows {name}")
            client.ask("begin", sync="one")
        carry(a, b, 3_000_001, 1)
        ends[0][0].until(is_acknowledged, peer="who knows sender", sync="one")
        for client, sock, recorder, name in ends:
            client.ask("end", sync="one")
            sock.close()
            recorder.until('"kind":"close"')
            paths.append(tmp_path / f"{name}.jsonl")
            paths[-1].write_text(recorder.end())
    text = run(*paths).stdout
    assert [(s[1], r[1]) for s, r in drawn(text)[1]] == [("sender: who knows sender", "receiver: who knows receiver")]
    [found] = asked(text, FLOWS, tmp_path)
    assert [name.partition(" (")[0] for name in found] == ["one", "sender: who knows sender", "one", "receiver: who knows receiver"]

"""weightctl trace explain: what took the time of a sync, in words, of a recording and of what a tracer has now."""
import json
import re
import signal
import subprocess

import pytest
from bpf.test_record import CLIENT, MS, Recorder
from bpf.test_record import row as said
from bpf.test_top import once
from integration.weightctl.test_weightctl import HOSTILE, UNPRINTABLE
from lib import features
from lib.daemon import SANITIZER_EXIT, environment
from lib.fake_agent import FakeAgent
from lib.features import BUILD
from lib.nodes import until
from lib.stalls import Transfer, paced, slow_reader
from lib.tracing import Client, Tracer

GB = 10**9
CLOCK = {"kind": "clock", "monotonic_ns": 5, "realtime_ns": 10**18}
NAME = "b5dc4ec81ad2f862"
LIMITS = "busy", "receive_window", "send_buffer", "producer", "pacing", "loss", "silent"
EXACT = {"delivered": "exact", "received": "exact"}


def limits(**ns):
    return {f"{name}_ns": ns.get(name, 0) for name in LIMITS}


def row(kind="total", ms=3200, sync=NAME, **more):
    return said(kind, ms, sync=sync, **{"expected": None, "retrans_bytes": 0, "limited_by": None, "limits": None, "stall": None,
                                        "partial": False, "quality": EXACT} | more)


def sent(**more):
    return row(**{"delivered": 14_200_000_000, "expected": 14_900_000_000, "limited_by": "receive_window",
                  "limits": limits(receive_window=96, producer=4)} | more)


def stall(cause, since, until):
    return {"cause": cause, "since_ns": since * MS, "until_ns": until * MS}


def explain(*args, status=0, **kw):
    done = subprocess.run([BUILD / "weightctl", "trace", "explain", *args], capture_output=True, text=True, timeout=60, **kw)
    assert done.returncode not in (SANITIZER_EXIT, -signal.SIGABRT, -signal.SIGSEGV), done.stderr
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


@pytest.fixture
def recording(tmp_path):
    """recording(packets): the path of one."""
    def make(packets, more=""):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(p) + "\n" for p in [CLOCK, *packets]) + more)
        return path

    return make


def of(path, *args, **kw):
    return explain("--recording", path, *args, **kw)


def test_what_goes_on_as_fast_as_it_comes_is_not_what_took_the_time(recording):
    """The end before it is, which has a weightd-trace of its own, or the same one."""
    here, before = {"client": CLIENT}, {"client": CLIENT | {"id": 2, "pid": 4712}}

    def told(more=(), limited_by="busy", came_ms=3000, **also):
        came = row(number=2, peer="a", delivered=9, received=GB, moved_ns=came_ms * MS) | here
        return of(recording([came, sent(peer="c", limited_by=limited_by, limits=limits(**{limited_by: 5} | also)) | here, *more]), NAME).splitlines()[-1]

    assert told() == "Most of the time went to bytes from a, 2.9 s: that node has the cause."
    assert told([sent(number=3, peer="b", limited_by="busy", limits=limits(busy=5)) | before]).startswith("Most of the time went to b, ")
    assert told(limited_by="receive_window").startswith("Most of the time went to c, ")
    assert told(came_ms=1000).startswith("Most of the time went to c, ")
    # It lacked bytes for 5/8 of 3.1 s.
    assert told(limited_by="producer", busy=3, came_ms=2000).startswith("Most of the time went to bytes from a, ")
    assert told(limited_by="producer", busy=3, came_ms=1000).startswith("Most of the time went to c, ")


def test_it_says_what_took_the_time(recording):
    stalled = row("progress", 1500, delivered=GB, stall=stall("silent", 1100, 1500))
    told = [row("progress", 500, delivered=1), stalled, stalled | {"stall": stall("silent", 1100, 1900)}, sent(retrans_bytes=2896),
            row(number=2, peer="a", delivered=9, received=14_900_000_000, expected=14_900_000_009, limited_by="producer",
                limits=limits(producer=5)),
            row(number=3, peer="z", role="control", delivered=5)]
    assert of(recording(told), NAME) == f"""\
Sync {NAME} carried version 7.
to b, weightd-sync 4711: 14.2 GB of 14.9 GB in 3.1 s, 4.6 GB/s
  96 % of the time limited by the receive window of b: the program there did not read as fast
  4 % of the time limited by a lack of bytes to send: the program here did not write as fast
  stood still for about 800 ms, 1.0 s after it began: b did not answer
  2.9 kB sent again
from a, weightd-sync 4711: 14.9 GB of 14.9 GB in 3.1 s, 4.8 GB/s
Most of the time went to b, 3.1 s, 96 % of it limited by the receive window of b.
"""


def phase(phase, took_ms, role="publisher", sync=NAME, pid=4711, **more):
    return {"kind": "act", "act": "sync_phase", "sync": sync, "role": role, "phase": phase, "ns": 5000 * MS,
            "took_ns": took_ms * MS, "pid": pid, "uid": 0, "comm": "weightd-sync"} | more


def test_it_says_which_phases_took_the_time(recording):
    told = [sent(), phase("prepare", 100), phase("bytes", 3000), phase("open", 1), phase("stop", 200), phase("bytes", 600),
            phase("verify", 99), phase("bytes", 5, sync="b5ff"), phase("ready", 1000, "member", pid=5),
            phase("of another release", 1000, "member", pid=5), phase("bytes", -1), phase("bytes", 1, act="export")]
    assert of(recording(told), NAME).splitlines()[1:3] == [
        "weightd-sync 4711, publisher: 4.0 s, 2 % members preparing, 90 % moving bytes, 5 % ending what had broken, "
        "2 % members verifying",
        "weightd-sync 5, member: 2.0 s, 50 % waiting for its turn, 50 % of another release"]
    found = json.loads(of(recording(told), NAME, "--json"))["phases"]
    assert [(p["pid"], p["comm"], p["role"], p["phase"], p["took_ns"]) for p in found if p["took_ns"] > 999 * MS] == \
        [(4711, "weightd-sync", "publisher", "bytes", 3600 * MS), (5, "weightd-sync", "member", "ready", 1000 * MS),
         (5, "weightd-sync", "member", "of another release", 1000 * MS)]


def test_a_sync_that_moved_no_bytes_has_phases(recording):
    path = recording([phase("digest", 30), phase("verify", 10), sent(sync="another")])
    assert of(path, NAME[:4]) == f"Sync {NAME}: this node has no counts of its bytes.\n" \
        "weightd-sync 4711, publisher: 40 ms, 75 % digesting it, 25 % members verifying\n"
    found = json.loads(of(path, NAME, "--json"))
    assert (found["sync"], found["version"], found["rows"], len(found["phases"])) == (NAME, None, [], 2)


def test_what_is_watched_has_no_version(recording):
    assert of(recording([sent(version=0)]), NAME).startswith(f"Sync {NAME} has no version.\nto b, ")


def test_phases_that_cannot_be_are_no_more_than_can_be_told(recording):
    told = [sent()] + [phase(name, 0) | {"took_ns": 2**63 - 1} for name in ("bytes", "bytes", "bytes", "verify")]
    assert [p["took_ns"] for p in json.loads(of(recording(told), NAME, "--json"))["phases"]] == [2**63 - 1] * 2
    assert "100 % moving bytes, 100 % members verifying" in of(recording(told), NAME)


def test_what_is_not_known_is_said(recording):
    told = [{"kind": "gap", "to_ns": 1, "lost": 3}, sent(partial=True, quality=EXACT | {"delivered": "sampled"}, expected=None),
            row("progress", number=2, peer="c", delivered=None, received=None, retrans_bytes=None), {"kind": "gap", "to_ns": 1, "lost": 4}]
    text = of(recording(told), NAME[:4])
    assert "to b, weightd-sync 4711: 14.2 GB in 3.1 s, 4.6 GB/s, as far as it was looked at\n" in text
    assert "  without what its connections carried before they were counted\n" in text
    assert "between here and c, weightd-sync 4711: an unknown number of bytes; not over yet\n  an unknown number of bytes was sent again\n" in text
    assert text.endswith("\n7 events were lost: the client was too slow, or there was no room for them.\n")


def test_who_only_received_sends_one_elsewhere(recording):
    text = of(recording([row(received=5, limited_by="busy", limits=limits(busy=1))]), NAME)
    assert text.splitlines()[1:] == ["from b, weightd-sync 4711: 5 B in 3.1 s, 1 B/s",
                                     "Nothing was sent from here: the sending node has the cause."]


def test_what_came_was_there_before_its_span_ended(recording):
    """The span waits for others to have the bytes, too."""
    told = [row(received=GB, moved_ns=1100 * MS), row(number=2, peer="c", received=GB, moved_ns=None), sent(number=3, moved_ns=1100 * MS)]
    text = of(recording(told), NAME)
    assert "\nfrom b, weightd-sync 4711: 1.0 GB in 1.0 s, 1.0 GB/s\nfrom c, weightd-sync 4711: 1.0 GB in 3.1 s, " in text
    assert "\nto b, weightd-sync 4711: 14.2 GB of 14.9 GB in 3.1 s, " in text
    told[0]["kind"] = "progress"
    assert "\nfrom b, weightd-sync 4711: 1.0 GB in 3.1 s, 322.6 MB/s; not over yet\n" in of(recording(told), NAME)


def test_a_recording_of_before_stalls_had_an_end_has_them_until_it_was_told(recording):
    stalled = row("progress", 1500, delivered=1, stall={"cause": "silent", "since_ns": 1100 * MS})
    assert "  stood still for about 400 ms, 1.0 s after it began: b did not answer\n" in of(recording([stalled, sent()]), NAME)


def test_where_nothing_is_known_nobody_is_blamed(recording):
    unknown = row(delivered=None, received=None, limited_by=None)
    assert of(recording([unknown]), NAME).endswith("\nThe cause of the time is unknown.\n")
    assert of(recording([sent(role="control")]), NAME).endswith("\nThis node has no counts of its payload.\n")


def test_a_later_span_is_the_one_that_is_meant(recording):
    first = row("progress", 1500, delivered=1, stall=stall("silent", 1100, 1500))
    text = of(recording([first, row(delivered=1), sent(began=2000)]), NAME)
    assert " in 1.2 s, 11.8 GB/s\n" in text and "stood still" not in text


def test_a_whole_name_is_meant_though_others_begin_so(recording):
    text = of(recording([sent(sync="run1"), sent(sync="run10", number=2, peer="z")]), "run1")
    assert text.startswith("Sync run1 carried") and "to z" not in text


def test_a_program_reads_it(recording):
    stalls = [stall("producer", 200, 900), stall("silent", 1100, 1500), stall("loss", 1600, 1700)]
    told = [row("progress", 1500, delivered=1, stall=stalls[1]), row("progress", 1700, delivered=2, stall=stalls[2]),
            sent(stalls=[stalls[0], stalls[2]])]
    found = json.loads(of(recording(told), NAME, "--json"))
    assert (found["sync"], found["version"], found["slowest"], found["lost"]) == (NAME, 7, "b", 0)
    assert found["rows"] == [told[2] | {"is_over": True, "stalls": stalls}]


def test_other_names_are_told(recording):
    path = recording([sent(), sent(sync="b5ff", number=2)])
    assert of(path, "b5", status=1) == f"weightctl: 'b5' begins the names of 2 syncs: {NAME}, b5ff\n"
    assert of(path, "c", status=1) == f"weightctl: {path} has no sync 'c', but {NAME}, b5ff\n"
    assert of(recording([]), "c", status=1) == f"weightctl: {path} has no sync at all\n"


def test_how_many_other_names_there_are_is_told(recording):
    path = recording([sent(sync=f"b{i:02}", number=i) for i in range(20)] + [sent(sync="b" * 200, number=20)])
    eight = ", ".join(f"b{i:02}" for i in range(8))
    assert of(path, "b", status=1) == f"weightctl: 'b' begins the names of 21 syncs: {eight} and 13 more\n"
    assert of(path, "c", status=1) == f"weightctl: {path} has no sync 'c', but {eight} and 13 more\n"
    assert of(recording([sent(sync="b" * 200)]), "c", status=1) == f"weightctl: {path} has no sync 'c', but 1 more\n"


def test_what_is_no_recording_is_told_with_its_line(recording):
    path = recording([sent()], "x\n")
    assert of(path, NAME, status=1).startswith(f"weightctl: {path}:3: this is not JSON")


def test_a_timeline_is_told_to_be_one(recording, tmp_path):
    path = tmp_path / "timeline.json"
    subprocess.run([BUILD / "weightctl", "trace", "merge", "--output", path, recording([sent()])], check=True, timeout=60)
    assert of(path, NAME, status=1) == f"weightctl: {path}:1: this is a timeline, which cannot be read; record with " \
        "'weightctl trace record --format jsonl'\n"


def test_a_file_that_is_not_there_is_named():
    assert of("/nonexistent", "s", status=1) == "weightctl: cannot read /nonexistent: No such file or directory\n"


def test_hostile_words_are_shown_harmless(recording):
    told = [sent(sync=HOSTILE, peer=HOSTILE, limited_by=HOSTILE, client=CLIENT | {"comm": HOSTILE}, quality=5, stall=[],
                 limits={"busy_ns": -1}, stalls=[5, {"cause": HOSTILE, "since_ns": 1, "until_ns": 2}]),
            phase(HOSTILE, 5, HOSTILE, sync=HOSTILE, comm=HOSTILE), phase("bytes", 5, sync=HOSTILE, comm=[], pid=-1),
            sent(sync=HOSTILE, number=[], began_ns=1 << 60, now_ns=0, expected="x", client=5, stall={"cause": "loss", "since_ns": -1}, stalls=5)]
    assert not UNPRINTABLE.search(of(recording(told), "evil").replace("\n", ""))
    assert of(recording(told), "evil", "--json").isascii()
    assert not UNPRINTABLE.search(of(recording(told), "x", status=1).replace("\n", ""))


def test_what_goes_on_is_asked_of_the_tracer():
    end = {"end": True}
    tracer = FakeAgent(rows=[row("row"), sent(kind="row", stall=stall("silent", 3000, 3200)), end], past=[end],
                       acts=[phase("bytes", 3000, kind="acted"), end])
    env = environment(WEIGHTD_TRACE_SOCKET=tracer.path)
    text = explain(NAME, env=env)
    assert "weightd-sync 4711, publisher: 3.0 s, 100 % moving bytes; not over yet\n" in text
    assert "4.6 GB/s; not over yet\n" in text and "  stood still for about 200 ms, 2.9 s after it began: b did not answer\n" in text
    tracer.answers["past"] = [row(delivered=1, began=50), sent(), end]  # an earlier span, and the present one
    text = explain(NAME, env=env)
    assert "4.6 GB/s\n" in text and "100 % moving bytes\n" in text
    tracer.answers |= dict.fromkeys(("rows", "past", "acts"), [end])
    assert "weightd-trace has no sync; one that ended before its start, or long ago, is in" in explain(NAME, env=env, status=1)
    tracer.close()


def test_who_does_not_read_is_named(net, tmp_path):
    """A real transfer, recorded by a real tracer."""
    features.require("bpf")
    path = tmp_path / "real.jsonl"
    with Tracer() as tracer, slow_reader(net) as transfer, Client(tracer.socket) as client:
        recorder = Recorder(tracer.socket, "--output", path)
        client.tag(transfer.socket)
        client.ask("begin", sync="s")
        transfer.start()
        client.until(lambda r: r["limited_by"] == "receive_window" and r["limits"]["receive_window_ns"] > GB)
        with transfer.no_read:
            client.until(lambda r: r["stall"] and r["stall"]["cause"] == "receive_window")
        client.until(lambda r: not r["stall"])
        total = client.ask("end", sync="s")[0]
        client.ask("forget", sync="s")
        known = explain("s", env=tracer.env)
        until(lambda: '"kind":"end"' in path.read_text(), "all of it is recorded")
        recorder.end()
    text = of(path, "s")
    assert text == known
    assert re.search("^  stood still for about .*: the program there did not read as fast$", text, re.M)
    assert re.search("^to b, ", text, re.M)
    share = int(re.search(r"(\d+) % of the time limited by the receive window of b: the program there did not read", text).group(1))
    limits = total["limits"]
    assert abs(share - 100 * limits["receive_window_ns"] / sum(limits.values())) < 10
    assert re.search("^Most of the time went to b, .* limited by the receive window of b.$", text, re.M)


@pytest.mark.parametrize("make, words", [(paced, "its own pacing"), (Transfer, "the path")], ids=["paced", "unpaced"])
def test_what_sends_at_the_rate_that_was_set_is_told_from_what_the_path_takes(net, make, words):
    """Both `explain` and `top` show it."""
    features.require("bpf")
    net.rate(0, "160mbit")
    try:
        with Tracer() as tracer, make(net) as transfer, Client(tracer.socket) as client:
            client.tag(transfer.socket)
            client.ask("begin", sync="s")
            transfer.start()
            client.until(lambda r: max((r["limits"] or {"": 0}).values()) > GB)
            shown = once(tracer.socket, "-n", "-o", "LIMITED")
            client.ask("end", sync="s")
            text = explain("s", env=tracer.env)
    finally:
        net.rate(0, None)
    assert shown == ("pacing\n" if make == paced else "busy\n")
    assert re.search(rf"^  \d+ % of the time limited by {words}: ", text, re.M), text
    assert re.search(rf"^Most of the time went to b, .* limited by {words}.$", text, re.M), text

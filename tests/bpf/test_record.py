"""weightctl trace record: a tracer's events, as lines of JSON and as a timeline that Perfetto reads."""
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading

import pytest
from bpf.traffic import both_ways, carried, carry, is_acknowledged
from integration.weightctl.test_weightctl import HOSTILE
from lib import features, tracing
from lib.daemon import SANITIZER_EXIT, environment
from lib.fake_agent import FakeAgent, pack
from lib.features import BUILD

END = {"end": True}
CLIENT = {"id": 1, "pid": 4711, "uid": 0, "comm": "weightd-sync"}
MS = 10**6


def span(kind, ms, sync="one", **more):
    return {"kind": kind, "sync": sync, "ns": ms * MS, "client": CLIENT} | more


def row(kind, ms, number=1, sync="one", peer="b", role="payload", began=100, delivered=0, **more):
    return {"kind": kind, "row": number, "sync": sync, "version": 7, "peer": peer, "role": role, "began_ns": began * MS,
            "now_ns": ms * MS, "delivered": delivered, "received": 0, "rtt_us": None, "client": CLIENT} | more


def event(kind, ms, number=1, sync="one", peer="b", role="payload", **more):
    return {"kind": kind, "row": number, "sync": sync, "version": 7, "peer": peer, "role": role, "ns": ms * MS,
            "client": CLIENT} | more


class Recorder:
    """A `weightctl trace record` that has begun."""

    def __init__(self, path, *args):
        self.proc = subprocess.Popen([BUILD / "weightctl", "trace", "record", *args], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                     env=environment(WEIGHTD_TRACE_SOCKET=str(path)))
        self.said = self.proc.stderr.readline()
        self.wrote = ""

    def until(self, part, times=1):
        while self.wrote.count(part) < times:
            piece = os.read(self.proc.stdout.fileno(), 65536)
            assert piece, "it ended"
            self.wrote += piece.decode()

    def end(self, status=0):
        """All that it wrote."""
        self.proc.send_signal(signal.SIGINT)
        out, errors = self.proc.communicate(timeout=60)
        assert (self.proc.returncode, self.said + errors) == (status, "weightctl: recording\n")
        return self.wrote + out


def record(packets, *args, before=()):
    """The recording of these packets; those in `before` were there when it began."""
    is_told = threading.Event()

    def observe(connection, _):
        for packet in [*before, END, *packets]:
            connection.send(pack(packet))
        is_told.set()

    tracer = FakeAgent(observe=observe, rdma=[END])
    recorder = Recorder(tracer.path, *args)
    assert is_told.wait(60)
    text = recorder.end()
    tracer.close()
    return text


def lines(text):
    assert text.isascii() and text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def timeline(*args, form="perfetto", **kw):
    return check(record(*args, "--format", form, **kw))


def check(text):
    """The events, if they are such that each viewer takes them."""
    events = json.loads(text)
    names = {}
    for e in events:
        assert e["ph"] in "MXCisf" and isinstance(e.get("args", {}), dict), e
        if e["ph"] == "M":
            names[e["pid"], e["tid"]] = e["args"]["name"]
        else:
            assert e["ts"] >= 0 and (e["ph"] != "i" or e["s"] in "gt"), e
            assert (e["pid"], 0) in names or e.get("s") == "g", e
        if e["ph"] == "X":
            assert e["dur"] >= 0 and (e["pid"], e["tid"]) in names, e
    slices = [e for e in events if e["ph"] == "X"]
    for a, b in itertools.combinations(slices, 2):
        if (a["pid"], a["tid"]) == (b["pid"], b["tid"]):
            first, second = sorted((a, b), key=lambda e: (e["ts"], -e["dur"]))
            end = first["ts"] + first["dur"]
            assert second["ts"] >= end or second["ts"] + second["dur"] <= end + 1e-3, "neither apart nor one inside the other"
    return events, names


def slices_of(events, names):
    return [(e["name"], names[e["pid"], 0], names[e["pid"], e["tid"]], e["ts"], e["dur"], e["args"].get("delivered"))
            for e in events if e["ph"] == "X"]


def test_a_line_is_what_was_said():
    before = [row("row", 50), span("begin", 10, "zero")]
    told = [span("begin", 100), {"kind": "what no release knows", "x": [1, {"y": HOSTILE}]}, row("progress", 200, delivered=5),
            span("end", 300)]
    first, *said, last = lines(record(told, before=before))
    assert said == before + told
    assert first["kind"] == last["kind"] == "clock"
    assert first["monotonic_ns"] < last["monotonic_ns"] and first["realtime_ns"] > 1.7e18


def stalled(ms, since, cause="receive_window", **more):
    return row("progress", ms, stall={"cause": cause, "since_ns": since * MS}, **more)


def test_a_stall_is_a_slice_inside_of_its_row():
    told = [span("begin", 100), stalled(400, 150), stalled(500, 150, "silent"), row("progress", 600, delivered=10, stall=None),
            stalled(900, 650), stalled(900, 100, number=2, peer="c"), row("total", 1000, delivered=20), span("end", 1000)]
    events, names = timeline(told)
    assert [(*a[:1], *a[3:5]) for a in slices_of(events, names)] == \
        [("one", 100_000, 900_000), ("stalled: silent", 150_000, 350_000), ("stalled: receive_window", 650_000, 250_000),
         ("one", 100_000, 900_000), ("stalled: receive_window", 100_000, 800_000)]


def test_a_stall_that_cannot_be_is_cut():
    told = [span("begin", 100), stalled(400, 50), stalled(500, 300), stalled(450, 600), stalled(700, 690), span("end", 600)]
    events, names = timeline(told)
    assert [(*a[:1], *a[3:5]) for a in slices_of(events, names)] == \
        [("one", 100_000, 500_000), ("stalled: receive_window", 100_000, 300_000), ("stalled: receive_window", 400_000, 100_000)]


@pytest.mark.parametrize("form", ["perfetto", "chrome"])
def test_a_span_is_a_slice_of_its_peer_and_role(form):
    told = [span("begin", 100), row("progress", 150, delivered=10), row("progress", 180, 2, peer="c", role="control"),
            row("total", 200, delivered=50, expected=60), row("total", 201, 2, peer="c", role="control", delivered=3),
            span("end", 202)]
    events, names = timeline(told, form=form)
    assert slices_of(events, names) == [("one", "b (weightd-sync 4711)", "payload", 100_000, 102_000, 50),
                                        ("one", "c (weightd-sync 4711)", "control", 100_000, 102_000, 3)]
    args = next(e["args"] for e in events if e["ph"] == "X")
    assert args == told[3]


def test_what_overlaps_is_on_lanes_of_its_own():
    told = [span("begin", 100, "one"), row("progress", 110, 1, "one", began=100), span("begin", 120, "two"),
            row("progress", 130, 2, "two", began=120), row("total", 140, 1, "one", began=100), span("end", 141, "one"),
            event("close", 142, 1, "one"), span("begin", 150, "three"), row("total", 160, 3, "three", began=150),
            row("total", 160, 4, "three", began=155, version=8), span("end", 161, "three"),
            row("total", 170, 2, "two", began=120), span("end", 171, "two"),
            span("begin", 180, "four"), row("total", 190, 5, "four", began=180), span("end", 191, "four")]
    events, names = timeline(told)
    assert [(name, thread) for name, _, thread, *_ in slices_of(events, names)] == \
        [("one", "payload"), ("three", "payload"), ("three", "payload"), ("two", "payload 2"), ("four", "payload")]


def test_rates_and_round_trips_are_counters():
    told = [row("progress", 200, delivered=100_000, rtt_us=77), row("progress", 300, delivered=150_000, received=50_000),
            row("total", 400, delivered=150_000, received=50_000), span("end", 500),
            row("progress", 700, began=600, delivered=1000)]
    events, _ = timeline(told)
    counters = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters == [("rate (B/s)", 200_000, {"payload": 1_000_000}), ("rtt (us)", 200_000, {"payload": 77}),
                        ("rate (B/s)", 300_000, {"payload": 1_000_000}), ("rate (B/s)", 400_000, {"payload": 0}),
                        ("rate (B/s)", 500_000, {"payload": 0}), ("rate (B/s)", 700_000, {"payload": 10_000}),
                        ("rate (B/s)", 700_000, {"payload": 0})]


def test_what_is_not_known_is_no_rate_of_0():
    absent = {"delivered": None, "received": None}
    events, _ = timeline([row("progress", 200) | absent, row("total", 300) | absent, span("end", 301)])
    assert [e["ph"] for e in events if e["ph"] in "CX"] == ["X"]


def test_events_are_moments():
    told = [event("open", 100, remote="[::1]:80"), event("retransmit", 101), event("close", 102),
            {"kind": "gap", "lost": 7, "source": "ring", "from_ns": 100 * MS, "to_ns": 103 * MS}]
    events, names = timeline(told)
    moments = [(e["name"], e["ts"], e["s"], names.get((e["pid"], e["tid"]))) for e in events if e["ph"] == "i"]
    assert moments == [("open", 100_000, "t", "payload"), ("retransmit", 101_000, "t", "payload"),
                       ("close", 102_000, "t", "payload"), ("gap", 103_000, "g", None)]
    assert [e["args"] for e in events if e["ph"] == "i"] == told


def test_what_is_open_at_the_end_is_unfinished():
    events, names = timeline([row("progress", 150, delivered=5), event("retransmit", 160)])
    assert slices_of(events, names) == [("one", "b (weightd-sync 4711)", "payload", 100_000, 60_000, 5)]
    assert [e["args"]["unfinished"] for e in events if e["ph"] == "X"] == [True]


def test_nothing_is_a_timeline_too():
    assert timeline([], before=[row("row", 50)]) == ([], {})


def test_a_hostile_tracer_writes_no_broken_timeline():
    wrong = [{"kind": k} for k in ("begin", "progress", "total", "end", "open", "gap", HOSTILE)] + \
        [row("progress", 1, peer=HOSTILE, role=HOSTILE, sync="x" * 5000, began=-5, client=[]),
         row("total", 2, sync="é" * 200, peer="xé" * 200, role="é" * 50, client={"id": 2, "comm": "xé" * 50}),
         row("total", 1 << 40, number="x", delivered=-1), {"kind": 5}, event("retransmit", -1, client={"id": HOSTILE}),
         *(act("fd_receive", 5, 1, **{"from": giver}) for giver in (HOSTILE, [], {"ns": 1 << 62}, {"ns": -1, "pid": 1},
                                                                    {"ns": 9 * MS, "pid": HOSTILE, "comm": [HOSTILE]}))]
    for form in "jsonl", "perfetto":
        text = record([*wrong, *wrong], "--format", form)
        assert text.isascii()
        [json.loads(line) for line in text.splitlines()] if form == "jsonl" else json.loads(text)


def act(word, ms, number, took=None, pid=4711, tid=4711, comm="trainer", **more):
    return {"kind": "act", "act": word, "number": number, "ns": ms * MS, "took_ns": took and took * MS, "pid": pid, "tid": tid,
            "uid": 0, "comm": comm} | more


def test_what_nobody_is_known_to_have_done_is_of_the_weightd_that_said_so():
    told = [act("flip", 130, 1, pid=None, tid=None, comm=None, weightd={"pid": 99, "uid": 0}),
            act("attach", 131, 2, pid=None, tid=None, comm=None, weightd={"pid": 99, "uid": 0}),
            act("attach", 132, 3, tid=None, weightd={"pid": 99, "uid": 0}), act("x", 133, 4, pid=None, tid=None, comm=None)]
    events, names = timeline(told)
    assert [(e["name"], names[e["pid"], 0]) for e in events if e["ph"] == "i"] == [
        ("flip", "weightd (99)"), ("attach", "weightd (99)"), ("attach", "trainer (4711)"), ("x", "- (0)")]


def arrows_of(events):
    """[(place and time of its beginning, place and time of its end)]"""
    ends = {(e["ph"], e["id"]): (e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "sf"}
    return [(ends["s", i], ends["f", i]) for phase, i in ends if phase == "s"]


def test_acts_are_slices_with_arrows_to_what_has_something_from_them():
    told = [act("cuda_ipc_export", 100, 1, 5), act("cuda_ipc_open", 120, 2, 10, 4712, 4713, "loader", **{"from": {"number": 1}}),
            act("cuda_ipc_open", 125, 3, 20, 4712, 4713, "loader", **{"from": {"number": 1}}), act("flip", 130, 4, tid=None),
            act("cuda_ipc_open", 140, 5, 1, **{"from": {"number": 77}}), act("cuda_ipc_open", 150, 6, 1, **{"from": None}),
            act("early", 1, 7, 5)]
    events, names = timeline(told)
    slices = [e for e in events if e["ph"] == "X"]
    assert [(e["name"], names[e["pid"], 0], names[e["pid"], e["tid"]], e["ts"], e["dur"]) for e in slices] == [
        ("cuda_ipc_export", "trainer (4711)", "thread 4711", 95_000, 5_000),
        ("cuda_ipc_open", "loader (4712)", "thread 4713", 110_000, 10_000),
        ("cuda_ipc_open", "loader (4712)", "thread 4713 2", 105_000, 20_000),
        ("cuda_ipc_open", "trainer (4711)", "thread 4711", 139_000, 1_000),
        ("cuda_ipc_open", "trainer (4711)", "thread 4711", 149_000, 1_000)]
    moments = [(e["name"], names[e["pid"], e["tid"]], e["ts"]) for e in events if e["ph"] == "i"]
    assert moments == [("flip", "flip", 130_000), ("early", "thread 4711 2", 1_000)]
    export, one, other = [(e["pid"], e["tid"], e["ts"]) for e in slices[:3]]
    assert arrows_of(events) == [(export, one), (export, other)]


def test_moments_have_arrows_like_slices():
    told = [act("qp_connect", 100, 1, 5), act("nccl_qp", 120, 2, tid=None, **{"from": {"number": 1}}),
            act("nccl_qp", 90, 3, tid=None, **{"from": {"number": 1}}), act("flip", 130, 4, tid=None),
            act("cuda_ipc_open", 140, 5, 10, **{"from": {"number": 4}})]
    events, _ = timeline(told)
    connect, used, _, flip, opened = [(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "Xi"]
    assert arrows_of(events) == [(connect, used), (flip, opened)], "and none back in time"


def test_what_nccl_tells_meanwhile_takes_no_arrow_away(tmp_path):
    told = [act("qp_connect", 100, 1, 5)] + [act("nccl_coll", 110, 2 + i, tid=None, source="nccl") for i in range(1 << 16)]
    told += [act("nccl_qp", 120, 1 << 17, tid=None, source="nccl", **{"from": {"number": 1}})]
    record(told, "--format", "perfetto", "--output", tmp_path / "out")
    events, _ = check((tmp_path / "out").read_text())
    connect, *_, used = [(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] in "Xi"]
    assert arrows_of(events) == [(connect, used)]


def given(ms, number, pid, sent_ms, **more):
    giver = {"pid": 4711, "uid": 0, "comm": "trainer", "ns": sent_ms * MS}
    return act("fd_receive", ms, number, pid=pid, tid=pid, comm="eval", **{"took_ns": None, "from": giver} | more)


def test_what_was_given_has_an_arrow_from_who_gave_it():
    """Giving is no act: it is drawn once for all receivers."""
    told = [given(120, 1, 4712, 100), given(130, 2, 4713, 100), given(140, 3, 4713, 139), given(150, 4, 4713, 0, **{"from": None})]
    events, names = timeline(told)
    moments = [e for e in events if e["ph"] == "i"]
    assert [(e["name"], names[e["pid"], 0], names[e["pid"], e["tid"]], e["ts"]) for e in moments] == [
        ("fd_receive", "eval (4712)", "thread 4712", 120_000), ("fd_send", "trainer (4711)", "fd_send", 100_000),
        ("fd_receive", "eval (4713)", "thread 4713", 130_000),
        ("fd_receive", "eval (4713)", "thread 4713", 140_000), ("fd_send", "trainer (4711)", "fd_send", 139_000),
        ("fd_receive", "eval (4713)", "thread 4713", 150_000)]
    one, send, other, third, again, _ = [(e["pid"], e["tid"], e["ts"]) for e in moments]
    assert arrows_of(events) == [(send, one), (send, other), (again, third)]


def test_what_was_given_meanwhile_takes_no_arrow_away(tmp_path):
    told = [act("cuda_ipc_export", 100, 1, 5)] + [given(110, 2 + i, 4712, 0, **{"from": {"pid": 1, "ns": i}}) for i in range(1 << 16)]
    told += [given(110, 1 << 17, 4712, 105), act("cuda_ipc_open", 120, 1 << 18, 5, **{"from": {"number": 1}})]
    record(told, "--format", "perfetto", "--output", tmp_path / "out")
    events, _ = check((tmp_path / "out").read_text())
    assert len(arrows_of(events)) == (1 << 16) + 2


def phase(name, ms, number, took_ms, role="publisher", sync="one", **more):
    return act("sync_phase", ms, number, took_ms, comm="weightd-sync", tid=None, source="sync", sync=sync, role=role,
               phase=name) | more


def test_phases_of_a_sync_are_slices_on_a_track_of_its_own():
    told = [phase("prepare", 110, 1, 10), phase("bytes", 190, 2, 80), phase("bytes", 150, 3, 40, sync="two"),
            phase("commit", 191, 4, 1), phase("ready", 150, 5, 20, "member")]
    events, names = timeline(told)
    assert [(e["name"], e["cat"], names[e["pid"], 0], names[e["pid"], e["tid"]], e["ts"], e["dur"]) for e in events
            if e["ph"] == "X"] == [
        ("prepare", "phase", "weightd-sync (4711)", "publisher of one", 100_000, 10_000),
        ("bytes", "phase", "weightd-sync (4711)", "publisher of one", 110_000, 80_000),
        ("bytes", "phase", "weightd-sync (4711)", "publisher of two", 110_000, 40_000),
        ("commit", "phase", "weightd-sync (4711)", "publisher of one", 190_000, 1_000),
        ("ready", "phase", "weightd-sync (4711)", "member of one", 130_000, 20_000)]


def test_perfetto_draws_arrows_from_exports_to_opens(tmp_path):
    features.require("perfetto")
    told = [act("cuda_vmm_export", 100, 1, 5), act("cuda_vmm_import", 120, 2, 10, 4712, 4712, **{"from": {"number": 1}}),
            act("cuda_vmm_import", 140, 3, 10, 4713, 4713, **{"from": {"number": 1}})]
    query = ("select a.name, b.name, extract_arg(b.arg_set_id, 'args.pid') from flow join slice a on slice_out = a.id "
             "join slice b on slice_in = b.id order by 3")
    assert asked(record(told, "--format", "perfetto"), query, tmp_path) == [
        ["cuda_vmm_export", "cuda_vmm_import", 4712], ["cuda_vmm_export", "cuda_vmm_import", 4713]]


def test_perfetto_draws_arrows_to_moments(tmp_path):
    features.require("perfetto")
    told = [act("qp_connect", 100, 1, 5)] + [act("nccl_qp", ms, ms, tid=None, **{"from": {"number": 1}}) for ms in (110, 110, 120)]
    query = "select a.name, b.name, b.ts, b.dur from flow join slice a on slice_out = a.id join slice b on slice_in = b.id order by 3"
    assert asked(record(told, "--format", "perfetto"), query, tmp_path) == [
        ["qp_connect", "nccl_qp", ns, 0] for ns in (110 * MS, 110 * MS, 120 * MS)]


def port(ms, sent, received, number=1, **more):
    return {"kind": "port", "device": "mlx5_0", "port": number, "ns": ms * MS, "xmit_bytes": sent, "recv_bytes": received} | more


def test_what_was_in_a_port_since_the_look_before_is_a_counter():
    told = [port(1000, 10, 7), port(1500, 1010, 7), port(1600, 10**15, None, 2), port(2000, 500, 107), port(2600, 10**15 + 5, 9, 2),
            port(2000, 600, 207), port(2001, 1 << 62, 1 << 62), port(2500, HOSTILE, -1, device=HOSTILE), port(2600, 1, 1, device=HOSTILE)]
    events, names = timeline(told)
    counted = [(names[e["pid"], 0], e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counted == [("RDMA mlx5_0/1", "rate (B/s)", 1_500_000, {"out": 2000, "in": 0}),
                       ("RDMA mlx5_0/1", "rate (B/s)", 2_000_000, {"in": 200}),  # its counter of sent bytes starts anew
                       ("RDMA mlx5_0/2", "rate (B/s)", 2_600_000, {"out": 5}),
                       ("RDMA mlx5_0/1", "rate (B/s)", 2_001_000, {"out": 10**18, "in": 10**18})]


def test_perfetto_finds_what_was_in_a_port(tmp_path):
    features.require("perfetto")
    query = ("select process.name, t.name, c.ts, c.value from counter c join process_counter_track t on c.track_id = t.id "
             "join process using (upid) order by 2, 3")
    text = record([port(1000, 10, 7), port(1500, 1010, 7), port(2000, 1010, 107)], "--format", "perfetto")
    assert asked(text, query, tmp_path) == [["RDMA mlx5_0/1", f"rate (B/s) {way}", ms * MS, rate] for way, ms, rate in (
        ("in", 1500, 0), ("in", 2000, 200), ("out", 1500, 2000), ("out", 2000, 0))]


def test_ports_are_looked_at_again_where_there_are_any():
    looks = []

    def rdma(connection, _):
        looks.append([port(1000 * len(looks), 5, 5), {"kind": "rdma", "what": "ports", "on": len(looks) < 1, "why": None}, END])
        for packet in looks[-1]:
            connection.send(pack(packet))

    tracer = FakeAgent(observe=[END], rdma=rdma)
    recorder = Recorder(tracer.path)
    recorder.until('"kind":"port"', 2)
    text = recorder.end()
    tracer.close()
    assert lines(text)[1:-1] == [look[0] for look in looks] and len(looks) == 2


def test_a_tracer_that_knows_no_ports_is_asked_for_them_once():
    tracer = FakeAgent(observe=[END], rdma=[row("progress", 5), END | {"error": "'op' must be one of tag, watch"}])
    recorder = Recorder(tracer.path)
    recorder.until('"kind":"progress"')
    assert [line["kind"] for line in lines(recorder.end())] == ["clock", "progress", "clock"]
    tracer.close()


def test_perfetto_draws_arrows_to_what_was_given(tmp_path):
    features.require("perfetto")
    query = ("select a.name, b.name, extract_arg(b.arg_set_id, 'args.pid') from flow join slice a on slice_out = a.id "
             "join slice b on slice_in = b.id order by 3")
    told = [given(120, 1, 4712, 100), given(130, 2, 4713, 100)]
    assert asked(record(told, "--format", "perfetto"), query, tmp_path) == [["fd_send", "fd_receive", 4712],
                                                                            ["fd_send", "fd_receive", 4713]]


@pytest.mark.parametrize("verb", [["trace", "record"], ["trace"]], ids=" ".join)
def test_it_ends_by_itself_and_into_a_file(tmp_path, verb):
    tracer = FakeAgent(observe=[row("row", 1), END], rdma=[END])
    file = tmp_path / "out.jsonl"
    file.write_text("x" * 100_000)
    done = run(tracer.path, "--seconds", "0.05", "--output", file, "-q", verb=verb)
    tracer.close()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [line["kind"] for line in lines(file.read_text())] == ["clock", "row", "clock"]


def run(path, *args, verb=("trace", "record")):
    done = subprocess.run([BUILD / "weightctl", *verb, *args], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, env=environment(WEIGHTD_TRACE_SOCKET=str(path)))
    assert done.returncode not in (SANITIZER_EXIT, -signal.SIGABRT, -signal.SIGSEGV), done.stderr
    return done


@pytest.mark.parametrize("path, why", [("/dev/full", "No space left on device"), ("/nonexistent/x", "No such file or directory")])
def test_a_file_that_cannot_be_written_is_named(path, why):
    tracer = FakeAgent(observe=[END], rdma=[END])
    done = run(tracer.path, "--output", path, "-q")
    tracer.close()
    assert (done.returncode, done.stderr) == (1, f"weightctl: cannot write {path}: {why}\n")


def test_a_tracer_that_ends_leaves_a_whole_timeline():
    def observe(connection, _):
        connection.send(pack(END))
        connection.recv(1, socket.MSG_PEEK)  # it is asked for ports by now
        connection.send(pack(row("progress", 150, delivered=5)))
        raise OSError("it is gone")

    tracer = FakeAgent(observe=observe, rdma=[END])
    done = run(tracer.path, "--format", "chrome")
    tracer.close()
    assert done.returncode == 1 and re.search("weightd-trace on .* closed the connection", done.stderr)
    assert len(check(done.stdout)[0]) == 5


@pytest.mark.parametrize("form", ["jsonl", "chrome"])
def test_a_refusal_is_told_and_leaves_the_file_that_is_there(form, tmp_path):
    file = tmp_path / "out"
    file.write_text("of yesterday")
    tracer = FakeAgent(observe=[END | {"error": "it is not for you"}])
    done = run(tracer.path, "--format", form, "--output", file)
    tracer.close()
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "weightctl: it is not for you\n")
    assert file.read_text() == "of yesterday"


@pytest.fixture
def push(connect):
    """push(format): a recording of two syncs that overlap."""
    features.require("bpf")

    def make(form):
        with tracing.Tracer() as tracer:
            client, (a, b), (c, d) = tracer.client(), connect(), connect()
            recorder = Recorder(tracer.socket, "--format", form)
            for sock, sync, peer in ((a, "one", "b"), (b, "one", "a"), (c, "two", "b")):
                client.tag(sock, sync=sync, peer=peer)
            client.ask("begin", sync="one")
            carry(a, b, 3_000_001, 1)
            client.ask("begin", sync="two")
            carry(c, d, 1_000_003, 2)
            for sync in "one", "two":
                client.until(is_acknowledged, sync=sync)
                client.ask("end", sync=sync)
            recorder.until('"kind":"end","sync":"two"' if form == "jsonl" else '"name":"two","ph":"X"')
            return recorder.end()

    return make


WANTED = {("one", "b"): both_ways(3_000_001, 0), ("one", "a"): both_ways(0, 3_000_001), ("two", "b"): both_ways(1_000_003, 0)}


def test_lines_have_what_was_carried(push):
    told = lines(push("jsonl"))
    assert {(r["sync"], r["peer"]): carried(r) for r in told if r["kind"] == "total"} == WANTED
    assert [(t["kind"], t["sync"]) for t in told if t["kind"] in ("begin", "end")] == \
        [("begin", "one"), ("begin", "two"), ("end", "one"), ("end", "two")]
    assert {t["client"]["pid"] for t in told if "client" in t} == {os.getpid()}


def test_slices_have_what_was_carried(push):
    events, names = check(push("perfetto"))
    slices = [e for e in events if e["ph"] == "X" and e["cat"] == "payload"]  # others on this machine may act meanwhile
    assert {(e["name"], e["args"]["peer"]): carried(e["args"]) for e in slices} == WANTED
    assert {names[e["pid"], e["tid"]] for e in slices if e["args"]["peer"] == "b"} == {"payload", "payload 2"}


def asked(text, query, tmp_path):
    """The rows that Perfetto's own trace processor answers of this timeline."""
    trace = tmp_path / "trace.json"
    trace.write_text(text)
    done = subprocess.run(["node", features.ROOT / "tests/bpf/perfetto.mjs", features.PERFETTO, trace, query],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_perfetto_finds_the_slices(push, tmp_path):
    features.require("perfetto")
    query = ("select slice.name, thread.name, extract_arg(slice.arg_set_id, 'args.delivered') from slice "
             "join thread_track on slice.track_id = thread_track.id join thread using (utid) "
             "where slice.dur > 0 and slice.category = 'payload' order by 1, 2, 3")
    assert asked(push("perfetto"), query, tmp_path) == [["one", "payload", 0], ["one", "payload", 3000001],
                                                        ["two", "payload 2", 1000003]]


def test_perfetto_finds_a_stall_inside_of_its_slice(connect, tmp_path):
    features.require("bpf")
    features.require("perfetto")
    with tracing.Tracer() as tracer:
        client, (a, b) = tracer.client(), connect()
        recorder = Recorder(tracer.socket, "--format", "perfetto")
        client.tag(a, sync="one")
        client.ask("begin", sync="one")
        client.ask("follow")
        a.setblocking(False)
        with pytest.raises(BlockingIOError):  # the other end does not read
            while True:
                a.send(bytes(1 << 16))
        while not client.hear().get("stall"):
            pass
        client.ask("end", sync="one")
        recorder.until('"total"')
        trace = recorder.end()
    query = ("select inner.name, outer.name, inner.ts >= outer.ts and inner.ts + inner.dur <= outer.ts + outer.dur "
             "from slice as inner join slice as outer on inner.parent_id = outer.id where inner.category = 'stall'")
    assert asked(trace, query, tmp_path) == [["stalled: receive_window", "one", 1]]

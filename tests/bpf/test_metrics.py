"""weightctl trace metrics: what was counted is what was sent, whatever became of rows, spans and clients since."""
import os
import stat
import subprocess
import time

import pytest
from bpf.traffic import carry, is_acknowledged, storm
from lib import features, kernel, tracing
from lib.nodes import until
from lib.tracing import Client, Refused, Tracer

from integration.sync.test_metrics import parse

ACCOUNTS_MAX = 512
OTHER = "(other)"
SOMEBODY = 12345
BYTES = "submitted", "delivered", "received", "consumed", "wire", "retransmitted"
PAYLOAD = {"role": "payload"}


class Metrics:
    """Metrics of a tracer, as weightctl writes them; each look checks that no counter decreased."""

    def __init__(self, tracer):
        self.tracer, self.before = tracer, {}
        self.quality = "exact" if "bpf" in tracer.greeting else "sampled"

    def look(self):
        done = subprocess.run([features.BUILD / "weightctl", "trace", "metrics"], env=self.tracer.env, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        samples = parse(done.stdout)
        for name, of in self.before.items():
            if name.endswith("_total"):
                assert {labels: value for labels, value in of.items() if samples[name][labels] < value} == {}, name
        self.before = samples
        return self

    def value(self, name, **labels):
        """The value of the sample that has these labels, as of the last look; None: there is none."""
        return self.before.get("weightd_trace_" + name, {}).get(frozenset(labels.items()))

    def bytes(self, peer, names=("submitted", "received"), role="payload"):
        return [self.value(f"{name}_bytes_total", peer=peer, role=role, quality=self.quality) for name in names]

    def peers(self, name):
        return {dict(labels)["peer"] for labels in self.before.get("weightd_trace_" + name, {})}

    def sum(self, name, **labels):
        return sum(value for of, value in self.before.get("weightd_trace_" + name, {}).items() if labels.items() <= dict(of).items())


@pytest.fixture
def metrics(either_tracer):
    return Metrics(either_tracer)


@pytest.fixture
def pair():
    with tracing.pair() as both:
        yield both


def test_what_was_counted_is_what_was_sent(metrics, pair):
    a, b = pair
    client = metrics.tracer.client()
    client.tag(a, peer="b")
    client.tag(b, peer="a")
    carry(a, b, 1_234_567, 1)
    client.until(is_acknowledged)
    metrics.look()
    assert metrics.bytes("b", BYTES[:4]) == [1_234_567, 1_234_567, 0, 0]
    assert metrics.bytes("a", BYTES[:4]) == [0, 0, 1_234_567, 1_234_567]
    resent = metrics.bytes("b", ["retransmitted"])[0]
    assert metrics.bytes("b", ["wire"]) == [1_234_567 + resent]
    assert (resent > 0) == (metrics.value("retransmitted_segments_total", peer="b", quality=metrics.quality, **PAYLOAD) > 0)
    row = client.row("b")
    assert (row["wire"], row["retrans_bytes"]) == (1_234_567 + resent, resent)


def test_neither_spans_nor_forgetting_nor_the_death_of_a_client_take_anything_back(metrics, pair):
    a, b = pair
    client = metrics.tracer.client()
    client.tag(a, sync="one")
    carry(a, b, 1000, 1)
    client.ask("begin", sync="one")  # its row counts from 0
    carry(a, b, 200, 1)
    assert metrics.look().bytes("b") == [1200, 0]
    client.ask("end", sync="one")
    carry(a, b, 30, 1)
    client.ask("forget", sync="one")
    assert metrics.look().bytes("b") == [1230, 0], "no client looked between the bytes and the end of their row"
    carry(a, b, 4000, 1)  # these are not counted
    assert metrics.look().bytes("b") == [1230, 0]

    with Client(metrics.tracer.socket) as mortal:
        mortal.tag(a, sync="two")
        carry(a, b, 500, 1)
    until(lambda: metrics.look().value("clients") == 2 and metrics.bytes("b") == [1730, 0], "the client was seen to be gone")
    assert metrics.value("rows", quality="exact") == 0
    assert (metrics.value("begun_spans_total"), metrics.value("ended_spans_total"), metrics.value("open_spans")) == (1, 1, 0)
    opened, closed = (metrics.value(f"{way}_connections_total", peer="b", **PAYLOAD) for way in ("opened", "closed"))
    assert (opened, closed, metrics.value("open_connections", peer="b", **PAYLOAD)) == (2, 2, 0)


def test_a_peer_is_one_whoever_has_it_counted(metrics, pair):
    a, b = pair
    with tracing.pair() as (c, d):
        one, other = metrics.tracer.client(), metrics.tracer.client()
        one.tag(a, sync="one")
        other.tag(c, sync="other", version=7)
        one.tag(b, peer="b", role="control")
        carry(a, b, 10_000, 1)
        carry(c, d, 345, 1)
        assert metrics.look().bytes("b") == [10_345, 0]
        assert metrics.bytes("b", role="control") == [0, 10_000]
        assert metrics.value("open_connections", peer="b", **PAYLOAD) == 2
        one.tag(c, sync="one", peer="c")  # from now on for another
        carry(c, d, 11, 1)
        assert (metrics.look().bytes("b"), metrics.bytes("c")) == ([10_345, 0], [11, 0])
        assert metrics.value("open_connections", peer="b", **PAYLOAD) == 1


def test_short_connections_are_counted_to_their_last_byte(tracer, net):
    features.require("pids")
    metrics, client = Metrics(tracer), tracer.client()
    client.watch(os.getpid())
    storm(net, 50, 777)
    client.until(lambda row: row["closed"] == 100)
    client.ask("forget", sync="s")
    assert metrics.look().bytes("b", BYTES[:4]) == [50 * 777] * 4
    assert metrics.value("opened_connections_total", peer="b", **PAYLOAD) == 100


def test_the_next_tracer_begins_anew(either_tracer, pair):
    metrics, (a, b) = Metrics(either_tracer), pair
    with Client(either_tracer.socket) as client:
        client.tag(a)
        carry(a, b, 100, 1)
        assert metrics.look().bytes("b") == [100, 0]
    started = metrics.value("start_time_seconds")
    assert abs(started - time.time()) < 600
    either_tracer.kill()
    either_tracer.start()
    metrics = Metrics(either_tracer).look()
    assert metrics.value("start_time_seconds") > started and metrics.bytes("b") == [None, None]
    assert metrics.value("clients") == 1, "weightctl"


def test_what_holds_up_is_counted_in_seconds(metrics, pair):
    a, b = pair
    began = time.monotonic()
    client = metrics.tracer.client()
    client.tag(a, peer="b")
    client.tag(b, peer="a")
    a.setblocking(False)
    try:
        while a.send(bytes(1 << 16)):
            pass
    except BlockingIOError:
        pass  # no process reads: nothing is delivered, and no client follows it

    def is_seen_to_stall():
        """In a span; the tracer alone looks at it, where it gets a processor."""
        client.ask("begin", sync="s")
        begin_ns = time.monotonic_ns()
        with tracing.pair() as (c, _):
            client.tag(c, sync="clock")
            client.until(lambda row: row["now_ns"] - begin_ns > 600_000_000, sync="clock")
        if metrics.look().sum("stalled_seconds_total", peer="b", **PAYLOAD) > 0.3:
            return True
        client.ask("end", sync="s")
        return False

    assert any(is_seen_to_stall() for _ in range(10))
    for _ in range(20):
        metrics.look()
    elapsed = time.monotonic() - began
    stalled, limited = (metrics.sum(f"{word}_seconds_total", peer="b", quality="sampled") for word in ("stalled", "limited"))
    assert 0.3 < stalled <= elapsed, (stalled, elapsed)
    assert 0.3 < limited <= elapsed + 0.02, (limited, elapsed, "by ticks of the kernel")
    assert metrics.sum("limited_seconds_total", peer="b", limit="silent") == 0
    assert metrics.peers("limited_seconds_total") == metrics.peers("stalled_seconds_total") == {"b"}, "the other does not send"
    client.ask("end", sync="s")
    before = metrics.look().sum("stalled_seconds_total")
    assert metrics.value("span_seconds_total") >= stalled
    assert metrics.look().sum("stalled_seconds_total") == before, "there is no stall outside of a span"


def test_what_nobody_knows_has_no_sample(net, connect):
    features.require("trace")
    with Tracer("--meter=diag") as tracer:
        metrics, client, (a, b) = Metrics(tracer), tracer.client(), connect()
        client.tag(a)
        carry(a, b, 100, 1)
        metrics.look()
        assert [metrics.peers(f"{name}_bytes_total") for name in BYTES] == [set()] * 6
        assert [metrics.value("rows", quality=q) for q in ("absent", "sampled", "exact")] == [1, 0, 0]
        assert metrics.value("lost_events_total", source="ring") is None, "there is no ring"
        assert metrics.value("lost_events_total", source="client") == 0
        assert metrics.value("lost_events_total", source="probes") is None, "there are none"


def test_which_meter_and_which_hooks(metrics):
    kind = "bpf" if metrics.quality == "exact" else "diag"
    assert metrics.look().value("meter_info", meter=kind) == 1
    assert metrics.sum("hook_on") == (7 if kind == "bpf" else 0)
    assert metrics.value("hook_on", hook="iter/task_file", program="want") == (kind == "bpf")


@pytest.mark.probes  # others have the kernel count, too
def test_programs_have_runs_while_the_kernel_counts_them(tracer):
    client = tracer.client()
    assert "weightd_trace_program_runs_total" not in Metrics(tracer).look().before
    with kernel.counting_runs():
        client.watch(os.getpid())
        metrics = Metrics(tracer).look()
        counted = kernel.runs(tracer.proc.pid)
        assert {program for program in counted if metrics.value("program_runs_total", program=program) is None} == set()
        visits = "mark" if tracing.has("iter/bpf_sk_storage_map") else "mark_tcp"
        adopts = "adopt" if "adopt" in counted else "want"  # newer kernels refuse the first one
        for program in visits, adopts:  # the others run as other processes have them run
            runs, seconds = (metrics.value(f"program_{what}_total", program=program) for what in ("runs", "run_seconds"))
            assert (runs, round(seconds * 1e9)) == counted[program], program
            assert runs > 0, program
        with Tracer("--meter=diag") as without:
            assert "weightd_trace_program_runs_total" not in Metrics(without).look().before
    assert {"weightd_trace_program_runs_total", "weightd_trace_program_run_seconds_total"} & set(Metrics(tracer).look().before) == set()


@pytest.mark.probes
def test_runs_that_the_kernel_left_out_are_told(tracer):
    before = kernel.misses(tracer.proc.pid)
    metrics = Metrics(tracer).look()
    after = kernel.misses(tracer.proc.pid)
    assert len(before) > 7
    for program in before:
        assert before[program] <= metrics.value("program_misses_total", program=program) <= after[program]
    with Tracer("--meter=diag") as without:
        assert "weightd_trace_program_misses_total" not in Metrics(without).look().before


def test_what_a_client_did_not_read_is_counted(tracer, net):
    features.require("pids")
    metrics = Metrics(tracer)
    with Client(tracer.socket) as slow:
        slow.ask("follow")
        slow.watch(os.getpid())
        storm(net, 600, 1)  # 2400 events, of which more wait than may
        until(lambda: metrics.look().value("closed_connections_total", peer="b", **PAYLOAD) == 1200, "all were counted")
        n, lost = 0, {"client": 0, "ring": 0}
        while n + sum(lost.values()) < 2400:  # it counts before it sends, or drops
            packet = slow.hear()
            if packet["kind"] == "gap":
                lost[packet["source"]] += packet["lost"]
            else:
                n += 1
        assert lost["client"] == metrics.look().value("lost_events_total", source="client") > 0


def test_acts_are_counted_by_their_word(metrics):
    phase = {"act": "sync_phase", "ns": time.monotonic_ns(), "took_ns": 1, "sync": "s", "role": "publisher", "phase": "open"}
    gap = {"act": "nccl_gap", "ns": time.monotonic_ns(), "lost": 1, "from_ns": 1}
    assert metrics.look().sum("acts_total") == 0 and "weightd_trace_acts_total" not in metrics.before
    with Client(metrics.tracer.socket) as client:
        client.ask("tell", source="sync", acts=[phase] * 3)
        client.ask("tell", source="nccl", acts=[gap])
    until(lambda: metrics.look().value("clients") == 1, "the client was seen to be gone")
    assert (metrics.value("acts_total", act="sync_phase"), metrics.value("acts_total", act="nccl_gap")) == (3, 1)
    assert metrics.sum("acts_total") == 4


# --- Labels -----------------------------------------------------------------------------------------

def test_any_name_is_a_label(metrics, pair):
    a, b = pair
    client = metrics.tracer.client()
    plain = ["b\"", "b\\", "b\\n", "{b=\"", "# EOF", "ü", "b c", "\u202e", "x" * 127, "ü" * 63]
    for peer in plain:
        client.tag(a, sync="s", peer=peer)
        carry(a, b, 7, 1)
    for peer in ["b\n", "b\r", "\x1b[31m", "\x9b", "\x7f", "b\x01", "b\x02", OTHER]:  # these are shown as others are
        client.tag(a, sync="s", peer=peer)
        carry(a, b, 11, 1)
    metrics.look()
    assert [metrics.bytes(peer) for peer in plain] == [[7, 0]] * len(plain)
    assert metrics.bytes(OTHER) == [88, 0]
    assert metrics.peers("submitted_bytes_total") == {*plain, OTHER}
    with pytest.raises(Refused):
        client.tag(a, peer="x" * 128)


def test_peers_are_no_more_than_so_many(metrics, pair):
    a, b = pair
    client = metrics.tracer.client()
    for i in range(ACCOUNTS_MAX + 10):
        client.tag(a, peer=f"peer {i}")
    carry(a, b, 123, 1)  # counted for the last one
    client.tag(a, peer="peer 3")
    carry(a, b, 45, 1)
    metrics.look()
    assert metrics.peers("submitted_bytes_total") == {f"peer {i}" for i in range(ACCOUNTS_MAX)} | {OTHER}
    assert (metrics.bytes(OTHER), metrics.bytes("peer 3")) == ([123, 0], [45, 0])
    client.ask("forget", sync="s")
    client.tag(a, peer="peer 3")
    carry(a, b, 6, 1)
    assert (metrics.look().bytes(OTHER), metrics.bytes("peer 3")) == ([123, 0], [51, 0])


# --- Owners, and peers ------------------------------------------------------------------------------

def test_they_are_for_root_alone(metrics):
    features.require("root")
    os.chmod(metrics.tracer.socket, 0o666)
    os.seteuid(SOMEBODY)
    try:
        client = metrics.tracer.client()
    finally:
        os.seteuid(0)
    with pytest.raises(Refused, match="try it with sudo"):
        client.ask("metrics")
    metrics.look()


def test_a_file_is_replaced_as_a_whole(metrics, tmp_path):
    path = tmp_path / "weightd-trace.prom"
    command = [features.BUILD / "weightctl", "trace", "metrics", "--output", path]
    subprocess.run(command, env=metrics.tracer.env, check=True)
    assert "weightd_trace_clients" in parse(path.read_text()) and stat.S_IMODE(path.stat().st_mode) == 0o644
    metrics.tracer.kill()
    before = path.read_text()
    done = subprocess.run(command, env=metrics.tracer.env, capture_output=True, text=True)
    assert done.returncode == 1 and "no weightd-trace answers" in done.stderr
    assert (path.read_text(), os.listdir(tmp_path)) == (before, [path.name]), "it is old, which can be seen"
    metrics.tracer.start()

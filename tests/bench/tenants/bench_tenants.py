"""Tenants: what another user waits for while one user attacks.

The attacker is one process of at most two threads and of one core's worth of processor time, an unprivileged user of
1, 200 or 4,000 connections (tests/bench/tenants/attacks.c). A line is one attack:

attach    another user's connect, attach, detach and close; "publish": its create, write and publish of 1 MB
beside    a request and its reply over a socket pair of two other processes at the same moment
control   the same later, while the attacker's process computes without weightd for as long as weightd and it did
          together, of at most one core, too
idle      attach and publish at that moment, of a weightd that has nothing else to do: the other user's processes and
          weightd's thread wait for a processor, which the pair does not, as each of its processes wakes the other one
          and sleeps
own       weightd's own time from the request read to the reply sent, of the other user's requests
rss       resident memory of weightd: before, the most, and once the attacker has left
refused   rounds of the other user that failed, with a reason of them

"none" is the same without an attacker. weightd has a keeper, hence a limit of descriptors, and the weight of its unit
among control groups (CPUWeight=1000).
"""
import collections
import contextlib
import itertools
import os
import resource
import time

import weightd
from lib import wire
from lib.cgroup import CpuCgroup
from lib.daemon import Daemon
from lib.wire import Closed, Refused, Wire, until

import figures
import machine
from report import say
from tenants import ATTACKER, VICTIM, Attacker, Innocent, Memory, attacks, together

CONNECTIONS = 1, 200, 4000
WEIGHT = int(os.environ.get("WEIGHT", 1000))  # of the processor, for weightd: CPUWeight= of weightd.service
N_BUFFERS = 1500  # of the attacker: as many as took all 6,000 descriptors of a store
RUNS, RUN_S, CONTROL_S = 5, 0.3, 0.15  # figures are medians over runs: others use the machine, too
SEEN, MADE = "victim/seen", "victim/made"  # buffers: one to attach to, one to publish
SPAN_MS = 15625 / 1e6  # WIRE_COST_SPAN_NS
LEFT_S = 5  # for what the attacker had to be freed
ROOM = 4 * machine.GIB  # memory that buffers may take
ATTACH_MS, PUBLISH_MS, OWN_MS, CONTROLS = 5, 20, 2, 2
RSS_MIB, RSS_GROWTH_MIB = 64, 4


def measure(report):
    if os.geteuid() != 0:
        report.line(name="skipped", reason="users of the attacker and of others need root")
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    missed = collections.Counter()
    rows = [measure_row(report, missed, None, 0)]
    for name in os.environ.get("ATTACKS", "").split() or attacks():
        rows += [measure_row(report, missed, name, n) for n in CONNECTIONS]
    report.missed += sum(missed.values())
    named = [(f"{row['attack']}/{row['connections']}", row["verdict"].removeprefix("MISSED ")) for row in rows]
    report.line(name="targets", met=[name for name, verdict in named if verdict == "kept"],
                missed=[f"{name} {verdict}" for name, verdict in named if verdict != "kept"])


def measure_row(report, missed, attack, n_connections):
    reserve = max(64 * machine.MIB, machine.memory_available() - ROOM)
    row = {"attack": attack or "none", "connections": n_connections}
    with contextlib.ExitStack() as stack:
        prefix = stack.enter_context(CpuCgroup(weight=WEIGHT)).prefix if CpuCgroup.root() else ()
        d = stack.enter_context(contextlib.closing(Daemon(
            "--keeper", "--log-level", "error", "--socket-mode", "0666", "--reserve", str(reserve), prefix=prefix,
            program=os.environ.get("WEIGHTD"))))
        prepare(d)
        with Watch(d) as watch, machine.Others() as others:
            row["rss_before_mib"] = watch.memory.begin()
            if attack:
                row |= attack_during(d, watch, attack, n_connections)
            else:
                row |= innocents(d, watch)
        row["rss_peak_mib"] = watch.memory.peak()
        row["rss_after_mib"] = leave(d, watch, row["rss_before_mib"] + RSS_GROWTH_MIB)
        row["other_cpu"] = others.share
        share = row.get("attacker_cores", 0) + row.get("weightd_cores", 0)
        row |= idle(d, share)
    row["control_p99_ms"] = control(share)
    row["verdict"] = judge(missed, row)
    report.line(name="tenants", **row)
    return row


def prepare(d):
    """Both buffers, and what a first request of each kind makes weightd keep."""
    for name in SEEN, MADE:
        with Innocent(d.env, "publish", name, 0.05) as innocent:
            innocent.rounds()
    with Innocent(d.env, "attach", SEEN, 0.05) as innocent:
        innocent.rounds()


class Watch:
    """
    The look at weightd from a connection of root's own, which is made before the attack.

    counts_costs  this weightd has them
    """

    def __init__(self, d):
        self.counts_costs = True
        with contextlib.ExitStack() as stack:
            self.wire = stack.enter_context(Wire(d.socket, timeout=300))
            self.pid = self.wire.ping().pid
            try:
                self.wire.list(wire.COSTS)
            except (Closed, Refused):
                self.counts_costs = False
            self.stack = stack.pop_all()
        self.memory = Memory(self.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def cpu_s(self):
        return time.clock_gettime(~self.pid << 3 | 2)  # of all threads

    def answered(self):
        """Answers to the other user by the time that each took; None: unknown."""
        if not self.counts_costs:
            return None
        return next(([getattr(cost, f"answered_{i}") for i in range(wire.N_SPANS)] for cost in self.wire.list(wire.COSTS)
                     if cost.uid == VICTIM), [0] * wire.N_SPANS)


def attack_during(d, watch, attack, n_connections):
    with Attacker(d.env, attack, n_connections, MADE, N_BUFFERS) as attacker:
        cpu, began = watch.cpu_s(), time.monotonic()
        row = innocents(d, watch)
        server_share = (watch.cpu_s() - cpu) / (time.monotonic() - began)
        counts = attacker.end()
    return {"requests_s": counts.n_sent / counts.ns * 1e9, "attacker_refused": counts.n_refused,
            "attacker_cores": counts.share, "weightd_cores": server_share} | row


def burning(share):
    """The attacker's process computes for as long during the block."""
    return Attacker(None, "burn", f"{min(share, 1):.3f}") if share else contextlib.nullcontext()


def idle(d, share):
    with burning(share):
        readers, writers, _ = zip(*[together(d.env, CONTROL_S, SEEN, MADE) for _ in range(RUNS)])
    figures_of = latency("idle_attach", readers) | latency("idle_publish", writers)
    return {key: figures_of[key] for key in ("idle_attach_p99_ms", "idle_publish_p99_ms")}


def innocents(d, watch):
    before = watch.answered()
    runs = [together(d.env, RUN_S, SEEN, MADE) for _ in range(RUNS)]
    readers, writers, pairs = zip(*runs)
    failures = [reason for innocent in readers + writers for reason in innocent.failures]
    return latency("attach", readers) | latency("publish", writers) | {
        "beside_p99_ms": p99_ms(pairs), "own_p99_ms": own_p99_ms(before, watch.answered()), "refused": len(failures),
        "reason": failures[0] if failures else ""}


def latency(key, innocents):
    """Figures of those that had a round at all."""
    runs = [innocent.samples for innocent in innocents if innocent.samples]
    if not runs:
        return {f"{key}_p50_ms": None, f"{key}_p99_ms": None, f"{key}_rounds": 0}
    us = figures.latency_us(runs)
    return {f"{key}_p50_ms": us["p50_us"] / 1e3, f"{key}_p99_ms": us["p99_us"] / 1e3, f"{key}_rounds": us["rounds"]}


def p99_ms(innocents):
    return figures.latency_us([innocent.samples for innocent in innocents])["p99_us"] / 1e3


def own_p99_ms(before, after):
    """The upper bound of the span that has the 99th of 100 answers; None: unknown."""
    if before is None or after is None:
        return None
    counts = [late - early for early, late in zip(before, after)]
    for i, so_far in enumerate(itertools.accumulate(counts)):
        if so_far >= 0.99 * sum(counts):
            return SPAN_MS * 2**i
    return None


def leave(d, watch, enough_mib):
    """
    Removes the attacker's buffers and jobs, once its last requests are served, and waits until weightd has freed what it had
    for it; resident MiB then.
    """
    with Wire(d.socket, timeout=300) as root:
        until(lambda: not any(user.uid == ATTACKER and user.used_connections for user in root.list(wire.USERS)), "it is gone")
    for buffer in weightd.ls(socket=d.socket):
        if buffer.name.startswith("attacker/"):
            with contextlib.suppress(weightd.NotFound):  # its writer alone held it, and has ended
                weightd.drop(buffer.name, device=buffer.device, socket=d.socket)
    with Wire(d.socket, timeout=300) as root:
        for job in root.list(wire.JOBS):
            with contextlib.suppress(Refused):  # it was removed since, as the attacker had asked
                root.remove_job(job.name)
    deadline = time.monotonic() + LEFT_S
    while watch.memory.resident() > enough_mib and time.monotonic() < deadline:
        time.sleep(0.01)  # nothing to wait on
    return watch.memory.resident()


def control(share):
    """p99 in ms of a request and reply of two other processes while the attacker's process computes for as long."""
    with burning(share):
        return pair()


def pair():
    done = []
    for _ in range(RUNS):
        with Innocent(None, "pair", CONTROL_S) as innocent:
            done.append(innocent.rounds())
    return p99_ms(done)


def judge(missed, row):
    def is_within(key, bound_ms):
        return row[key] is not None and row[key] <= bound_ms

    controls = CONTROLS * row["control_p99_ms"]
    held = {
        "attach": is_within("attach_p99_ms", max(ATTACH_MS, controls)),
        "publish": is_within("publish_p99_ms", max(PUBLISH_MS, controls)),
        "own": row["own_p99_ms"] is None or row["own_p99_ms"] <= OWN_MS,
        "rss": row["rss_peak_mib"] < RSS_MIB,
        "rss_after": row["rss_after_mib"] <= row["rss_before_mib"] + RSS_GROWTH_MIB,
        "refused": row["refused"] == 0,
    }
    not_held = [target for target, is_held in held.items() if not is_held]
    missed.update(not_held)
    if not_held:
        say(f"tenants: {row['attack']} of {row['connections']} connections missed: {', '.join(not_held)} {row['reason']}")
    return "MISSED " + " ".join(not_held) if not_held else "kept"

"""Attach: from no connection to all tensors addressable by name, beside what else shares tensors.

A round is one consumer, already running, that connects, gets at the tensors of a buffer, finds the last
one by name and loads its first byte. Nothing of the previous round is left. Peers do the same in the
fastest way that their documentation shows.

weightd           libweightd from C
weightd-one-core  the same with client and server on one core: without what it costs to wake the core of
                  the other, which on an idle virtual machine is half of all
weightd-first     the same in a process that just started: cold caches, unbound symbols
weightd-python    the Python package
shared_memory     multiprocessing.shared_memory: the bytes, and a pickled table of names in a second
                  segment; "-views" also makes a numpy array of every tensor
torch             torch.multiprocessing, file_descriptor strategy, by build/torch2 (make torch2) if it
                  is there and else by the system's torch: a dictionary of tensors that share
                  one storage; "-storages": each has its own; "-flat": one tensor and a table of names
vineyard          one object of many tensors, each a blob; "-flat": one blob and a table of names

turns             the same from C and from Python in turns with the commit before attaches took one round trip, and with
                  shared_memory: lower quartiles of the turns' p50s, since the turns of a machine with other work differ;
                  the ratios have bounds
"""
import contextlib
import subprocess
import sys

from lib import earlier, features
from lib.daemon import Daemon

import bench_file
import buffers
import figures
import machine
import programs
from report import say

SIZE = 4 * machine.GIB
COUNTS = (1, 1_000, 100_000)
RUNS, ROUNDS, FIRST = 5, 500, 20
VINEYARD = "vineyard==0.24.2"
NAME = bench_file.NAME

BEFORE = "e58dee4a2933197568e6317b50a9f6a88360dd1a"  # attaches in two round trips
BEFORE_TREE = features.ROOT / "build/before-one-round-trip"
TURNS, TURN_ROUNDS = 12, 150
BEFORE_SHARE, PYTHON_SHARE, SPREAD = 0.6, 0.5, 1.3


def measure(report):
    size = machine.affordable(SIZE)
    if size < SIZE:
        say(f"attach: only {size >> 20} MiB a buffer, for want of memory")
    with contextlib.closing(Daemon("--log-level", "warning")) as d:
        p50s = [measure_weightd(report, d, count, size) for count in COUNTS]
    measure_peers(report, size)
    compare(report)
    report.line(name="ratio", max_over_min_p50=max(p50s) / min(p50s))
    measure_turns(report)


# --- weightd -----------------------------------------------------------------------------------------


def measure_weightd(report, d, count, size):
    n_bytes, last = buffers.publish(d, NAME, size, count)
    with machine.Others() as others:
        runs = [programs.bench("attach", NAME, last, ROUNDS, env=d.env) for _ in range(RUNS)]
    facts = {"tensors": count, "buffer_bytes": n_bytes}
    noise = {"other_cpu": others.share}
    totals = figures.latency_us([[sum(row[:3]) for row in run] for run in runs])
    report.line(name="weightd", **facts, **totals, **noise)
    for column, part in enumerate(("connect", "attach", "find", "detach")):
        report.line(name=f"weightd-{part}", **facts,
                    **figures.latency_us([[row[column] for row in run] for run in runs]), **noise)

    with machine.Others() as others, machine.one_core(d.pid):
        runs = [programs.bench("attach", NAME, last, ROUNDS, env=d.env) for _ in range(RUNS)]
    report.line(name="weightd-one-core", **facts,
                **figures.latency_us([[sum(row[:3]) for row in run] for run in runs]),
                other_cpu=others.share)
    with machine.Others() as others:
        firsts = [sum(programs.numbers("attach", NAME, last, 1, env=d.env)[:3]) for _ in range(FIRST)]
    report.line(name="weightd-first", **facts, **figures.latency_us([firsts]), other_cpu=others.share)
    run_peer(report, "weightd", sys.executable, n_bytes, [count], NAME, last, env=d.env)
    d.ctl("rm", NAME)
    return totals["p50_us"]


# --- Peers -------------------------------------------------------------------------------------------


def measure_peers(report, size):
    run_peer(report, "shared_memory", sys.executable, size, COUNTS, size)
    newer = features.BUILD / "torch2/bin/python"  # make torch2
    run_peer(report, "torch", newer if newer.exists() else sys.executable, size, COUNTS, size)
    try:
        python = vineyard_python()
    except (OSError, subprocess.CalledProcessError):
        report.line(name="vineyard", skipped=f"pip cannot install {VINEYARD}")
        return
    run_peer(report, "vineyard", python, size, COUNTS, size)


def vineyard_python():
    """An interpreter with vineyard, made at the first call: 450 MB."""
    folder = features.BUILD / "bench-venv"
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        say(f"pip install {VINEYARD} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, stdout=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                        "--retries", "1", VINEYARD], check=True, stdout=sys.stderr)
        (folder / "complete").touch()
    return python


def run_peer(report, script, python, n_bytes, counts, *args, env=None):
    """The counts reach the script behind its own arguments; its samples become lines."""
    with machine.Others() as others:
        lines = programs.peer(f"{script}_peer", python, *args, *counts, env=env)
    for line in lines:
        if "skipped" in line:
            report.line(**line)
            continue
        report.line(name=line["name"], tensors=line["tensors"], buffer_bytes=n_bytes,
                    **figures.latency_us([line["samples_ns"]]), other_cpu=others.share,
                    **{k: v for k, v in line.items() if k == "torch"})


def compare(report):
    """The fastest peer at each count, whatever it is, over weightd from C and from Python."""
    timed = [line for line in report.lines if "p50_us" in line]
    for count in COUNTS:
        lines = {line["name"]: line["p50_us"] for line in timed if line["tensors"] == count}
        peers = {name: us for name, us in lines.items() if not name.startswith("weightd")}
        if peers and "weightd-python" in lines:
            fastest = min(peers, key=peers.get)
            report.line(name="fastest-peer", peer=fastest, tensors=count, p50_us=peers[fastest],
                        over_weightd=peers[fastest] / lines["weightd"],
                        over_weightd_python=peers[fastest] / lines["weightd-python"])


# --- In turns with the commit before ------------------------------------------------------------------


def measure_turns(report):
    say(f"the commit before one round trip is built in {BEFORE_TREE}")
    earlier.build("weightd", "weightctl", "libweightd.so", "bench/attach", tree=BEFORE_TREE, commit=BEFORE)
    with contextlib.ExitStack() as stack:
        both = (bench_file.Release("this", features.BUILD, features.ROOT / "libclient/python", stack),
                bench_file.Release("before", BEFORE_TREE / "build", BEFORE_TREE / "libclient/python", stack))
        quartiles = {count: turns(report, both, count) for count in COUNTS}
    one = quartiles[1]
    report.bound("attach 1 tensor", "over_before", one["this"] / one["before"], at_most=BEFORE_SHARE)
    report.bound("attach 1 tensor", "over_shared_memory", one["this"] / one["shared_memory"], at_most=1)
    report.bound("attach 1 tensor, Python", "over_before", one["this, Python"] / one["before, Python"], at_most=PYTHON_SHARE)
    spread = [quartiles[count]["this"] for count in COUNTS]
    report.bound(f"attach 1 to {COUNTS[-1]:,} tensors", "max_over_min", max(spread) / min(spread), at_most=SPREAD)


def turns(report, both, count):
    """The lower quartile of the turns' p50s in ns, by name."""
    size = machine.affordable(256 * machine.MIB, copies=4)
    last = {release.name: release.publish(size, count) for release in both}
    p50s = {}
    with machine.Others() as others:
        for turn in range(TURNS):
            for release in both[::-1] if turn % 2 else both:
                rows = release.bench("attach", NAME, last[release.name], TURN_ROUNDS)
                p50s.setdefault(release.name, []).append(figures.median(sum(row[:3]) for row in rows))
                peer = release.build.parent / "tests/bench/peers/weightd_peer.py"
                lines = programs.script_lines(peer, sys.executable, NAME, last[release.name], count, env=release.env)
                samples(p50s, f"{release.name}, Python", lines)
            if count == 1:
                samples(p50s, "shared_memory", programs.peer("shared_memory_peer", sys.executable, size, count))
    quartiles = {name: figures.percentile(found, 25) for name, found in p50s.items()}
    for name, found in p50s.items():
        report.line(name="turns", of=name, tensors=count, quartile_us=quartiles[name] / 1e3, p50_us=figures.median(found) / 1e3,
                    min_us=min(found) / 1e3, turns=len(found), other_cpu=others.share)
    for release in both:
        release.remove()
    return quartiles


def samples(p50s, name, lines):
    """Adds the p50 of the first line of a peer."""
    if "skipped" in lines[0]:
        raise RuntimeError(f"{name}: {lines[0]['skipped']}")
    p50s.setdefault(name, []).append(figures.median(lines[0]["samples_ns"]))

"""Survive: the death of the daemon until the next attach, of a reader until it is forgotten, of an engine until the next answers.

restart      SIGKILL of weightd, under `weightd --keeper`, to the return of the next weightd_attach():
             "connected": of a client that has a connection and a lease from before, "anew": of one that
             connects after the kill. "beyond" is the time on top of delay_ms, which the keeper waits
             on purpose. One of the buffers is large, and is the one attached; the others have 4 KiB.
             reloaded_bytes: in slots that were not there before the first kill, or not with this version and
             digest; each round also checks that the bytes are the same file in memory. daemon_*: of
             the last daemon, to its first answers: bytes read from any file, its largest mapped size,
             its time on a processor and its wait for one, which is due to others
reader-kill  SIGKILL of a reader that has touched all pages to the moment at which the server counts no
             reader; "of": "memory": ... of a buffer that was removed, to the end of its bytes
failover     SIGKILL of an engine that serves MiniLM to the answer of its standby to a client that connects after it:
             the units of packaging/examples/failover, in a booted systemd. "request" is a request without a
             death. read_bytes: of any file, by the standby. reloaded_bytes: weightd has the memory of before
reload       the way without weightd when the owner of the weights died: safetensors from the page cache
             into fresh memory, less all it takes to start the program. weightd-file is `weightctl load`
"""
import contextlib
import pathlib
import re
import subprocess
import tempfile
import time

import weightd
from lib import box, features
from lib.daemon import Daemon
from systemd import failover, weights

import bench_load
import buffers
import figures
import load_warm
import machine
import programs

SIZE = machine.GIB
NAME = "bench/survive"
COUNTS = ((1, 30, 3), (1_000, 12, 3))  # buffers; kills in a run, and runs, of each way
READER_RUNS, READER_ROUNDS = 3, 5
RELOADS = 3
FAILOVERS = 30


def measure(report):
    size = machine.affordable(SIZE, copies=2)
    for count, kills, runs in COUNTS:
        with contextlib.closing(Daemon("--keeper", "--log-level", "warning")) as d:
            measure_restart(report, d, size, count, kills, runs)
    with contextlib.closing(Daemon("--keeper", "--log-level", "warning")) as d:
        measure_readers(report, d, size)
    measure_failover(report)
    measure_reload(report, size)


# --- The daemon --------------------------------------------------------------------------------------


def measure_restart(report, d, size, count, kills, runs):
    n_bytes, _ = buffers.publish(d, NAME, size)
    for i in range(count - 1):
        buffers.publish(d, f"{NAME}-{i}", 4096)
    before = slots(d)
    assert len(before) == count
    samples, shares = {"connected": [], "anew": []}, {way: [] for way in ("connected", "anew")}
    for _ in range(runs):
        for way in samples:
            with machine.Others() as others:
                samples[way] += [ns for ns, in programs.bench("restart", NAME, kills, way, env=d.env)]
            shares[way].append(others.share)
    delay_ms, = {int(ms) for ms in re.findall(r"starting it again in (\d+) ms", d.log)}
    after = slots(d)
    assert not before.keys() - after.keys(), "buffers are lost"
    reloaded = sum(slot.n_bytes for key, slot in after.items() if key not in before)
    for way, ns in samples.items():
        p50, p99 = (figures.percentile(ns, p) / 1e6 for p in (50, 99))
        report.line(name="restart", buffers=count, client=way, large_bytes=n_bytes, delay_ms=delay_ms,
                    p50_ms=p50, p99_ms=p99, min_ms=min(ns) / 1e6, beyond_p50_ms=p50 - delay_ms,
                    beyond_p99_ms=p99 - delay_ms, kills=len(ns), reloaded_bytes=reloaded,
                    other_cpu=figures.median(shares[way]), **of_daemon(d))


def slots(d):
    """The identity of the memory, by all values that would differ if it had been made again."""
    digests = {(b.name, v.version): v.digest for b in weightd.ls(socket=d.socket)
               for v in weightd.versions(b.name, socket=d.socket)}
    return {(s.name, s.slot, s.version, digests[s.name, s.version]): s
            for s in weightd.slots(socket=d.socket) if s.allocated >= s.n_bytes}


def of_daemon(d):
    """Kills it once more, to measure a daemon that has just started."""
    programs.numbers("restart", NAME, 1, "anew", env=d.env)
    proc = pathlib.Path("/proc", str(weightd.ping(socket=d.socket).pid))
    running, waiting, _ = map(int, (proc / "schedstat").read_text().split())
    return {"daemon_read_bytes": int(re.search(r"rchar: (\d+)", (proc / "io").read_text())[1]),
            "daemon_peak_bytes": int(re.search(r"VmHWM:\s+(\d+)", (proc / "status").read_text())[1]) * 1024,
            "daemon_cpu_ms": running / 1e6, "daemon_cpu_wait_ms": waiting / 1e6}


# --- A reader ----------------------------------------------------------------------------------------


def measure_readers(report, d, size):
    with machine.Others() as others:
        runs = [programs.bench("readerkill", NAME, size, READER_ROUNDS, env=d.env)
                for _ in range(READER_RUNS)]
    rows = [row for run in runs for row in run]
    for column, what in enumerate(("lease", "memory")):
        ns = [row[column] for row in rows]
        report.line(name="reader-kill", of=what, bytes=size, p50_ms=figures.percentile(ns, 50) / 1e6,
                    p99_ms=figures.percentile(ns, 99) / 1e6, kills=len(ns), other_cpu=others.share)


# --- An engine ---------------------------------------------------------------------------------------


def measure_failover(report):
    if not box.is_available() or not (features.MODEL / "vocab.txt").exists():
        report.line(name="failover", skipped="needs root, systemd-nspawn and MiniLM (make model)")
        return
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder:
        subprocess.run(["make", "install", f"DESTDIR={folder}", "PREFIX=/usr"], cwd=features.ROOT, stdout=subprocess.DEVNULL, check=True)
        with box.Box(folder) as booted, machine.Others() as others:
            booted.run("systemd-sysusers")
            booted.run("systemd-tmpfiles", "--create", "/usr/lib/tmpfiles.d/weightd.conf")
            failover.install(booted, features.MODEL)
            kept = weights.kept(booted)
            took, read = zip(*(failover.fail_over(booted) for _ in range(FAILOVERS)))
            requests = [time_request(booted) for _ in range(FAILOVERS)]
            assert weights.kept(booted) == kept, "weights were loaded"
    report.line(name="failover", p50_ms=1000 * figures.median(took), p99_ms=1000 * figures.percentile(took, 99),
                min_ms=1000 * min(took), request_p50_ms=1000 * figures.median(requests), kills=FAILOVERS, read_bytes=max(read),
                reloaded_bytes=0, other_cpu=others.share)


def time_request(booted):
    start = time.monotonic()
    failover.ask(booted)
    return time.monotonic() - start


# --- Without -----------------------------------------------------------------------------------------


def measure_reload(report, size):
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder, load_warm.loaders() as load:
        path = bench_load.make_file(folder, 64, size)
        with contextlib.closing(Daemon("--log-level", "warning")) as d:
            ways = {way: lambda way=way: load(way, [path]) for way in ("safetensors", "torch")}
            ways["weightd-file"] = lambda: load_warm.load_weightd(d, [path])["elapsed_ns"]
            for way, reload in ways.items():
                measure_way(report, way, reload, path.stat().st_size)


def measure_way(report, way, reload, n_bytes):
    samples = []
    with machine.Others() as others:
        for _ in range(RELOADS):
            machine.warm(n_bytes)
            samples.append(reload())
    if isinstance(samples[0], str):
        report.line(name="reload", way=way, skipped=samples[0])
        return
    report.line(name="reload", way=way, p50_ms=figures.median(samples) / 1e6, reloaded_bytes=n_bytes,
                rounds=len(samples), other_cpu=others.share)

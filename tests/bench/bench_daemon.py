"""Daemon: how soon weightd serves, and how much memory it takes for itself.

cold-start  from spawning the program to the answer of a ping, socket file included
resident    VmRSS when it just started, and with one buffer served after many were made and dropped;
            rss_peak_bytes also counts the pages it mapped for a moment to provide them
"""
import contextlib
import re
import tempfile

import weightd
from lib import features
from lib.daemon import Daemon

import buffers
import figures
import machine
import programs

SIZE = 4 * machine.GIB
RUNS, STARTS = 3, 20
CHURN = 1_000


def measure(report):
    measure_start(report)
    measure_memory(report)


def measure_start(report):
    runs = []
    with machine.Others() as others:
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory(prefix="weightd-") as folder:
                starts = programs.bench("coldstart", features.BUILD / "weightd", folder, STARTS)
                runs.append([ns for ns, in starts])
    us = figures.latency_us(runs)
    report.line(name="cold-start", p50_ms=us.pop("p50_us") / 1e3, p99_ms=us.pop("p99_us") / 1e3, **us,
                other_cpu=others.share)


def measure_memory(report):
    with contextlib.closing(Daemon("--log-level", "warning")) as d:
        weightd.ping(socket=d.socket)
        resident(report, d, "idle", 0, 0)
        size, _ = buffers.publish(d, "bench/served", machine.affordable(SIZE))
        resident(report, d, "serving", 0, size)
        for i in range(CHURN):
            buffers.publish(d, f"bench/churn-{i}", 4096)
            weightd.drop(f"bench/churn-{i}", socket=d.socket)
        resident(report, d, "after-churn", CHURN, size)


def resident(report, d, when, n_churned, n_served):
    counts = {key: int(kb) * 1024 for key, kb in re.findall(r"(\w+):\s+(\d+) kB", d.status())}
    report.line(name="resident", when=when, buffers_dropped=n_churned, served_bytes=n_served,
                rss_bytes=counts["VmRSS"], rss_anon_bytes=counts["RssAnon"],
                rss_peak_bytes=counts["VmHWM"], descriptors=d.n_fds())

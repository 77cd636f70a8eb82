"""Flip: how soon readers see a new version, and their cost of moving to it.

publish-visible  from the beginning of the server's commit to the awakening of readers that sleep: "how":
                 "futex" on the head page, in weightd_buffer_wait(), or "event", in weightd_wait(), which
                 the server answers. p50 and p99 are of all readers, first, median and last of those of a round;
                 "call" is from the call of weightd_writer_publish(), which also makes the mapping
                 read-only and has the memory sealed. Readers queue for the processors as soon as there are more
                 of them: the floor is the same with one bare futex and nothing else, measured in turns
refresh          the wait of a reader in weightd_buffer_refresh(): all of them call it at once
swap             ... in weightd_buffer_swap(), at the same address
                 "touch" is the first look at the new bytes, one in every 2 MiB, which makes page tables
flip             in the server, without it: "step": "save" is the record and the store that commits it, "flip" the
                 head page and the wake-up, without readers and with readers asleep on it
"""
import contextlib

from lib import features
from lib.daemon import Daemon

import figures
import machine
import programs

NAME = "bench/flip"
SIZES = ((1 << 20, 100, (8, 1)), (1 << 30, 4, (8,)))  # bytes, rounds of a run, readers
RUNS = 3
FLOOR_ROUNDS, COMMITS = 200, 2_000


def measure(report):
    measure_commit(report)
    with contextlib.closing(Daemon("--log-level", "warning")) as d:
        for size, rounds, counts in SIZES:
            if machine.affordable(3 * size) < 3 * size:
                report.line(name="publish-visible", bytes=size, skipped="three versions do not fit into memory")
                continue
            for readers in counts:
                measure_size(report, d, size, rounds, readers)


def measure_size(report, d, size, rounds, readers):
    floors, runs = [], {(how, what): [] for how in ("futex", "event") for what in ("refresh", "swap")}
    with machine.Others() as others:
        for _ in range(RUNS):
            floors.append(by_round(programs.bench("flip", "-", 0, FLOOR_ROUNDS, readers, "floor"), readers))
            for (how, what), of in runs.items():
                of.append(by_round(programs.bench("flip", NAME, size, rounds, readers, how, what, env=d.env),
                                   readers))
    facts = {"readers": readers, "bytes": size}
    floor = awakenings(floors, 0)
    report.line(name="floor", **facts, **floor, other_cpu=others.share)
    for how in ("futex", "event"):
        both = [run for (h, _), of in runs.items() if h == how for run in of]
        seen = awakenings(both, 1)
        report.line(name="publish-visible", how=how, **facts, **seen,
                    **{f"call_{k}": v for k, v in awakenings(both, 0).items() if k in ("p50_us", "last_us")},
                    over_floor=seen["p50_us"] / floor["p50_us"],
                    last_over_floor=seen["last_us"] / floor["last_us"], other_cpu=others.share)
    for what in ("refresh", "swap"):
        both = [run for (_, w), of in runs.items() if w == what for run in of]
        report.line(name=what, **facts, **percentiles(both, 2),
                    **{f"touch_{k}": v for k, v in percentiles(both, 3).items() if k != "rounds"},
                    other_cpu=others.share)


def by_round(rows, readers):
    """The rows of one round after those of another, as a list of rounds."""
    return [rows[i:i + readers] for i in range(0, len(rows), readers)]


def percentiles(runs, column):
    """Over all readers and rounds of a run, and then the median over the runs."""
    flat = [[row[column] for rows in run for row in rows] for run in runs]
    us = figures.latency_us(flat)
    return {"p50_us": us["p50_us"], "p99_us": us["p99_us"], "rounds": sum(map(len, runs))}


def awakenings(runs, column):
    """The medians of the first, the median and the last reader of each round, beside the percentiles."""
    def of(choose):
        return figures.median(choose([row[column] for row in rows]) for run in runs for rows in run) / 1e3

    return percentiles(runs, column) | {"first_us": of(min), "median_us": of(figures.median), "last_us": of(max)}


def measure_commit(report):
    for readers in (0, 1, 8):
        with machine.Others() as others:
            runs = [programs.run([features.BUILD / "unit/tool_flip", COMMITS, readers]) for _ in range(RUNS)]
        for column, step in enumerate(("save", "flip", "both")):
            us = figures.latency_us([[row[column] if column < 2 else sum(row) for row in run] for run in runs])
            report.line(name="flip", step=step, readers=readers, **us, other_cpu=others.share)

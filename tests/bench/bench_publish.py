"""Publish: the wait of a writer, and the delay until a waiting reader sees it.

publish_*   weightd_writer_publish() when every leaf is digested already, as a loader has it: the
            mapping becomes read-only, the server seals the memory and flips
digest_*    the digests, by one thread, which publish computes itself where the writer did not
both_*      the two together: publish of a writer that did nothing by itself
visible_*   from the call of publish to the awakening of another process in weightd_buffer_wait()
"""
import contextlib

from lib.daemon import Daemon

import figures
import machine
import programs

SIZES = ((1 << 20, 200), (256 << 20, 20), (1 << 30, 9))  # bytes, rounds


def measure(report):
    with contextlib.closing(Daemon("--log-level", "warning")) as d:
        for size, rounds in SIZES:
            # The version that the reader holds, the newest and the next.
            if machine.affordable(3 * size) < 3 * size:
                report.line(name="publish", bytes=size, skipped="three versions do not fit into memory")
                continue
            measure_size(report, d, size, rounds)


def measure_size(report, d, size, rounds):
    with machine.Others() as others:
        samples = programs.bench("publish", "bench/publish", size, rounds, env=d.env)
    digest, publish, visible = map(list, zip(*samples))
    columns = {"publish": publish, "digest": digest, "both": list(map(sum, zip(digest, publish))),
               "visible": visible}
    us = {f"{name}_{p}_us": figures.percentile(column, q) / 1e3
          for name, column in columns.items() for p, q in (("p50", 50), ("p99", 99))}
    report.line(name="publish", bytes=size, **us, rounds=rounds, other_cpu=others.share)

"""Provide: how fast weightd gets memory, and how fast the kernel can give it.

weightd   weightd_create(): huge pages in checked steps, and no block missing
collapse  a plain program: touches a byte of each 2 MiB of a fresh memfd and collapses it to a huge page
memset    a plain program: memset of a fresh memfd, 4K pages, the usual shared memory

Where the host gives cold memory some rounds are slow beyond all measure (see machine.warm), so the best
round of each is printed beside the median, and "best" of a ratio compares those.
"""
import contextlib

from lib.daemon import Daemon

import figures
import machine
import programs

SIZE = 4 * machine.GIB
WAYS = ("weightd", "collapse", "memset")
ROUNDS = 5


def measure(report):
    size = machine.affordable(SIZE)
    samples = {way: [] for way in WAYS}
    with contextlib.closing(Daemon("--log-level", "warning")) as d, machine.Others() as others:
        for i in range(ROUNDS):
            for way in WAYS[i % len(WAYS):] + WAYS[:i % len(WAYS)]:
                machine.warm(size)
                samples[way] += programs.numbers("provide", way, size, env=d.env)
    for way in WAYS:
        report.line(name=way, bytes=size, gb_s=figures.rate_gb_s(size, figures.median(samples[way])),
                    gb_s_min=figures.rate_gb_s(size, max(samples[way])),
                    gb_s_max=figures.rate_gb_s(size, min(samples[way])), rounds=ROUNDS,
                    other_cpu=others.share)
    for way in WAYS[1:]:
        ratios = [theirs / ours for theirs, ours in zip(samples[way], samples["weightd"])]
        report.line(name="ratio", weightd_over=way, median=figures.median(ratios), min=min(ratios),
                    max=max(ratios), best=min(samples[way]) / min(samples["weightd"]))

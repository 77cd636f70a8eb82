"""
Rows of the table: one run of the reference trainer each, with what the plan predicts beside what was counted and measured.

The kernel is the witness twice. Pages of the job's memory are those that fstat() counts on its descriptors while all ranks
hold before their last update. Bytes on sockets are those of the loopback interface of a network namespace, in which the ranks
of a node have no other; and between nodes, each in a namespace of its own, those of their TCP sockets.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import subprocess
from typing import NamedTuple

from lib import netns, trainer
from table import exchanges

# Strategies, and forms of their steps; with overlap, buckets are summed during backward.
FORMS = (("shared", "fused"), ("shared", "two-phase"), ("shared", "overlap"), ("zero1", "fused"), ("zero1", "two-phase"),
         ("zero1", "overlap"), ("replicated", "two-phase"), ("replicated", "overlap"), ("zero2", "two-phase"), ("zero3", "two-phase"))
# Units of "zero3", by the name of their form: options of the trainer, and of exchanges.fetches(). Those of "two-phase" are the root,
# and blocks of three modules in it.
UNITS = {"two-phase": ({}, {}), "whole": ({"unit": 100, "levels": 1}, {}), "layers": ({"unit": 1, "levels": 3}, {}),
         "kept": ({"keeps_units": True}, {"keeps": True}), "unfetched": ({"without_prefetch": True}, {"prefetches": False})}
NODE_FORMS = (*(row for row in FORMS if row[1] != "fused"), *(("zero3", form) for form in UNITS if form != "two-phase"))
# Options of the trainer by element type of the parameters. Loss scaling needs steps of two phases.
TYPES = {"f32": {}, "bf16": {"dtype": "bf16"}, "f16": {"dtype": "f16", "scale": 65536}}
CURVE_MAX = 2e-6  # fp32, over 60 steps
LAST_MAX = 0.02  # 16 bits: a part of the last loss
BUCKET_BYTES = 1000  # several buckets, ragged ones
# The plan does not have the pieces that nodes sum in "replicated"; of one bucket they are known.
ONE_BUCKET = {"replicated": {"bucket_bytes": None}}
POOLED = "zero2", "zero3"  # strategies that exchange bucket by bucket
BLOCK = 512  # bytes, of st_blocks


class Row(NamedTuple):
    """
    size              bytes of one copy of the parameters, with the padding between them: S
    difference        to the losses of a single process in fp32: the largest one; for 16 bits, that of the last loss, as a part of
                      it
    bits              a hash of the curve and of the parameters
    planned, counted  bytes that each rank moves in all steps: {"read", "written", "sent"}
    memory, pages     bytes of the job by kind: as planned, and as the kernel counts its pages
    sent              bytes on the loopback interface; None: there is no namespace to count them in
    wire              of several nodes, bytes of a step on the sockets of all: as planned, with the framing of Gloo, and as the kernel
                      counts them; None: likewise
    """

    dtype: str
    strategy: str
    form: str
    n: int
    steps: int
    size: int
    difference: float
    bits: str
    planned: list
    counted: list
    memory: dict
    pages: dict
    sent: int | None
    wire: tuple | None = None

    def wrong(self, bits):
        """Sentences about columns that must be equal and are not; `bits` are those of the first row of its block."""
        found, most = [], CURVE_MAX if self.dtype == "f32" else LAST_MAX
        if not self.difference <= most:
            found.append(f"the losses differ from those of a single process by {self.difference:.2g}, more than {most:g}")
        if self.bits != bits:
            found.append("curve and parameters have other bits than the first row of the block")
        found += [f"rank {rank} moved {counted}, and the plan has {planned}"
                  for rank, (planned, counted) in enumerate(zip(self.planned, self.counted)) if planned != counted]
        kinds = sorted(self.memory.keys() | self.pages.keys())
        found += [f"{kind}: the kernel has {self.pages.get(kind, 0):,} bytes, and the plan {self.memory.get(kind, 0):,}"
                  for kind in kinds if self.pages.get(kind, 0) != self.memory.get(kind, 0)]
        if self.sent:
            found.append(f"{self.sent:,} bytes went over sockets inside a node")
        if self.wire and self.wire[0] != self.wire[1]:
            found.append(f"{self.wire[1]:,} bytes went over sockets between nodes in a step, and the plan has {self.wire[0]:,}")
        return found

    def moved(self, which):
        """Bytes of one step, all ranks together."""
        return sum(sum(traffic.values()) for traffic in which) // self.steps


class Namespace:
    """A network namespace with a loopback interface alone. A context."""

    def __enter__(self):
        self._holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout.readline() == b"\n", "no network namespace"
        self.prefix = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"]
        return self

    def sent(self):
        """Bytes that its interface has carried."""
        shown = subprocess.run([*self.prefix, "ip", "-s", "-j", "link", "show", "lo"], check=True, capture_output=True, text=True)
        return json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]

    def __exit__(self, *_):
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()


@contextlib.contextmanager
def namespace():
    """A Namespace; None: the right to make one is missing."""
    if not netns.is_available():
        yield None
        return
    with Namespace() as net:
        yield net


@contextlib.contextmanager
def spaces(n):
    """A Net of n nodes; None: likewise."""
    if not netns.is_available():
        yield None
        return
    with netns.Net(n) as net:
        yield net


def pages(pid):
    """Bytes in memory of each kind of a job that a rank has: pages that the kernel counts on the descriptors."""
    found = {}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        part = re.fullmatch(r"/memfd:.*?([A-Z]+) \(deleted\)", os.readlink(fd))
        if part:
            found[part[1]] = os.stat(fd).st_blocks * BLOCK
    return found


def shapes(n):
    """Nodes, ranks of each, and replicas of these nodes, that n ranks are."""
    return [(4, 1, 1), (2, 2, 1), (4, 1, 2)] if n == 4 else [(n, 1, 1)] if n > 1 else []


def node_forms(n_local, replicas):
    """
    Pairs of strategy and form on several nodes. The exchanges of overlap are checked where a node has one rank. Replicas are for
    pooled gradients.
    """
    return [(strategy, form) for strategy, form in NODE_FORMS if (n_local == 1 or form != "overlap") and (replicas == 1 or strategy in POOLED)]


def forms(dtype):
    """Pairs of strategy and form that the type has."""
    return [(strategy, form) for strategy, form in FORMS if form != "fused" or "scale" not in TYPES[dtype]]


def options(dtype, strategy, form, steps):
    units = UNITS[form][0] if strategy == "zero3" else {}
    return {"steps": steps, "strategy": strategy, "form": "fused" if form == "fused" else "two-phase", "overlap": form == "overlap",
            "bucket_bytes": BUCKET_BYTES} | TYPES[dtype] | units


def measure(daemon, folder, net, dtype, strategy, form, n, steps):
    """Runs the trainer. AssertionError: a rank failed."""
    job = trainer.Job(daemon, folder / f"{dtype}-{strategy}-{form}-{n}", n, hold_at=steps, **options(dtype, strategy, form, steps))
    try:
        before = net.sent() if net else None
        ranks = job.start_all(prefix=net.prefix if net else ())
        for rank in ranks:
            rank.held()
        found = pages(ranks[0].pid)
        for rank in ranks:
            rank.go_on()
        job.finish()
        sent = net.sent() - before if net else None
    finally:
        job.close()
    return row_of(job, folder, dtype, strategy, form, steps, found, sent)


def measure_nodes(daemon, folder, net, dtype, strategy, form, nodes, n, replicas, steps):
    """Likewise on several nodes, in the namespaces of a Net with as many; None: on loopback, where nothing is counted."""
    spread = {"address": net.nodes[0].address, "prefixes": [node.prefix for node in net.nodes]} if net else {}
    job = trainer.Nodes(daemon, folder / f"{dtype}-{strategy}-{form}-{nodes}-nodes-{n}-{replicas}", nodes, n,
                        hold_before=f"{steps - 1},{steps}", replicas=replicas if replicas > 1 else None,
                        **options(dtype, strategy, form, steps) | ONE_BUCKET.get(strategy, {}), **spread)
    seen = []
    try:
        ranks = job.start_all()
        for _ in range(2):
            for rank in ranks:
                rank.held()
            found = pages(ranks[0].pid)
            seen.append(sum(map(net.sent, range(nodes))) if net else 0)
            for rank in ranks:
                rank.go_on()
        job.finish()
    finally:
        job.close()
    wire = (planned_wire(job, nodes, n, replicas, strategy, form, dtype), seen[1] - seen[0]) if net else None
    return row_of(job, folder, dtype, strategy, form, steps, found, None, wire)


def planned_wire(job, nodes, n, replicas, strategy, form, dtype):
    """Bytes of a step on the sockets of all nodes, by the pieces of the plan."""
    reports = job.reports()
    element = 4 if strategy == "replicated" or dtype == "f32" else 2
    summary = exchanges.summary(n, reports[0]["tensors"])
    if strategy in POOLED:
        lines = [[reports[node * n + rank]["buckets"] for node in range(nodes)] for rank in range(n)]
        fetched = exchanges.fetches(reports[0]["levels"], **UNITS[form][1]) if strategy == "zero3" else ()
        return sum(exchanges.of_pooled_step(line, node, summary, element, fetched, replicas) for line in lines for node in range(nodes))
    if strategy in ONE_BUCKET:
        shards = exchanges.cuts(reports[0]["shard"][1], n)
        lines = [[[piece] for piece in exchanges.cuts(shard, nodes)] for shard in shards]
    else:
        lines = [[reports[node * n + rank]["pieces"] for node in range(nodes)] for rank in range(n)]
    return sum(exchanges.of_step(line, node, summary, element, form == "overlap") for line in lines for node in range(nodes))


def row_of(job, folder, dtype, strategy, form, steps, found, sent, wire=None):
    losses, _ = trainer.oracle(folder / "oracle", steps=steps)
    reports = job.reports()
    curve = job.curve()
    difference = trainer.difference(curve, losses) if dtype == "f32" else abs(curve[-1] / losses[-1] - 1)
    return Row(dtype, strategy, form, len(reports), steps, reports[0]["param"], difference, bits(job),
               [{name: value * steps for name, value in report["predicted"].items()} for report in reports],
               [{name: value - report["filled"][name] for name, value in report["counted"].items()} for report in reports],
               {kind: size for kind, size in reports[0]["plan"].items() if size}, found, sent, wire)


def bits(job):
    """Padding included, which no step may change."""
    return hashlib.sha256(repr(job.curve()).encode() + job.params()).hexdigest()[:16]

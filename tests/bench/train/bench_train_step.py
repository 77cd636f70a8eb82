"""Train-step: whole steps of torch programs on one node, beside torch's and DeepSpeed's kinds of data parallelism.

A GPT with a tied head (tests/bench/steps/gpt.py), fp32, a thread a rank, at two sizes: "small", where communication counts,
and "big", where computing dominates. All contenders of a group run at once and work in turns, rounds after rounds; a sample
is the time of the slowest rank, from a barrier on. Each contender first trains a few steps: one with losses that differ by more
than 2e-6 from those of a single process with the whole batch is no contender.

step        compute: forward and backward alone. local: no communication, and the whole fused AdamW on each rank.
            weightd: strategy "shared", one pass over all gradients; weightd-overlap: two-phase, sums during backward.
            Peers: torch's DistributedDataParallel, ZeroRedundancyOptimizer and FSDP2 (a unit each block), DeepSpeed's ZeRO 1
            to 3; over gloo, with the fused AdamW of torch.
            weightd-bf16 and fsdp2-bf16: 16-bit parameters and gradients; their losses may differ by 0.005.
            "over" is the median of the ratios to weightd in each round
beyond      a step less that of compute in the same round. "share" is that of ours over the peer's, the median over the
            rounds; a round in which the peer took no longer than compute counts as infinite, as null does
memory      growth of the private and shared memory of all ranks (PSS without files) since they imported torch; of_parameters:
            in S, the bytes of the parameters
sockets     bytes on the loopback of an own network namespace, a step
save        a checkpoint of parameters and optimizer: "held_ms" until training can continue, "whole_ms" until all is on the
            disk, by the slower rank. torch.save() by one rank; DCP: torch.distributed.checkpoint of FSDP2
two-nodes   two nodes of two ranks: network namespaces, with 1 Gb/s between them; "bound" is the time of the bytes that the ranks of a
            node send, 2 (S/L) (N - 1)/N each, on the cable; bytes: at the sockets of both nodes, a step. Then likewise
            weightd-units (see below) beside FSDP2; "over" is in terms of that
overlap     likewise, on a cable on which these bytes take as long as computing: "share" is the step by the sum of both
prefetch    likewise, strategy "zero3" with each block a unit: weightd-units fetches the next unit while one computes,
            weightd-units-late when it is opened

The last line has the targets that this run met, and missed. $BENCH_ROUNDS scales the number of rounds (1).
"""
import contextlib
import math
import pathlib
import tempfile

from lib.daemon import Daemon

import figures
import interpreters
import machine
import two_nodes
from contenders import Contender, Failed, in_turns
from samples import Field, Targets, ms, over, ratio, rounds, spread, warm

RANK = pathlib.Path(__file__).resolve().parents[1] / "steps/rank.py"
RANKS = 2, 4
SIZES = {"small": (12, 3), "big": (8, 1)}  # rounds, and samples of each
CONTROLS = "compute", "local"
OURS = "weightd", "weightd-overlap"
BF16 = "weightd-bf16", "fsdp2-bf16"
GROUPS = ("ddp", "zero-redundancy", "fsdp2"), ("deepspeed-1", "deepspeed-2", "deepspeed-3")
SAVERS = {"weightd": "weightd", "ddp": "torch.save", "fsdp2": "DCP"}
LOSS_DIFFERENCE, LOSS_DIFFERENCE_BF16 = 2e-6, 5e-3
FP32 = 4


def measure(report):
    for n in RANKS:
        for size in SIZES:
            with server() as d:
                measure_steps(report, d, size, n)
    with server() as d:
        measure_bf16(report, d)
    with server() as d:
        measure_saves(report, d)
    with server() as d:
        two_nodes.measure(report, d, RANK)


def server():
    """A weightd for one measurement: the memory of its jobs is free for the next one."""
    return contextlib.closing(Daemon("--log-level", "warning"))




# --- Contenders --------------------------------------------------------------------------------------


def started(d, kind, size, n, env=None):
    """The ranks of one kind of program."""
    python, own = interpreters.deepspeed() if kind.startswith("deepspeed") else (interpreters.torch(), interpreters.ours_env(d))
    if kind.startswith("weightd"):
        own |= {"WEIGHTD_JOB": interpreters.token(d, f"{kind}-{size}-{n}", n)}
    world = 1 if kind == "single" else n
    return Contender(kind, world, [[python, RANK, kind, size, n]] * world, own | (env or {}))


def losses(contender):
    """Mean losses of the ranks, of the first steps."""
    return [sum(ranks) / len(ranks) / 1e9 for ranks in zip(*contender.ask("curve"))]


@contextlib.contextmanager
def checked(d, kind, size, n, expected, env=None):
    """Likewise, after steps with the expected losses. The controls have others: they change other parameters, or none."""
    with started(d, kind, size, n, env) as contender:
        difference = max(abs(a - b) for a, b in zip(losses(contender), expected))
        if kind not in CONTROLS and not difference <= (LOSS_DIFFERENCE_BF16 if kind in BF16 else LOSS_DIFFERENCE):
            raise Failed(f"its losses differ by {difference:.2g} from those of one process")
        contender.difference = difference
        yield contender


def single(report, d, size, n):
    """Losses of one process with the batches of n ranks, and the bytes of its parameters. None: there is no torch."""
    try:
        with started(d, "single", size, n) as contender:
            return losses(contender), FP32 * contender.ask("parameters")[0][0]
    except Failed as e:
        report.line(name="peer", peer="single", skipped=str(e))
        return None


# --- Steps -------------------------------------------------------------------------------------------


def measure_steps(report, d, size, n):
    reference = single(report, d, size, n)
    judge_steps(report, size, n, measure_groups(report, d, size, n, *reference) if reference else {})


def measure_groups(report, d, size, n, expected, n_bytes):
    """Each group of peers, beside the controls and ours. Returns figures of the targets, by name."""
    found = {}
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        for kind in (*CONTROLS, *OURS):
            field.enter(kind, lambda kind=kind: checked(d, kind, size, n, expected))
        for i, group in enumerate(GROUPS):
            with contextlib.ExitStack() as inner:
                peers = Field(report, inner)
                for kind in group:
                    peers.enter(kind, lambda kind=kind: checked(d, kind, size, n, expected))
                if peers.present or i == 0:
                    found = measure_group(report, size, n, field.present | peers.present, n_bytes) | found
    return found


def measure_group(report, size, n, contenders, n_bytes):
    """The contenders that are there at once."""
    samples = report_steps(report, size, n, contenders)
    found = report_memory(report, size, n, contenders, n_bytes)
    beyond = {kind: beyond_compute(took, samples["compute"]) for kind, took in samples.items() if kind != "compute"}
    for kind, each in beyond.items():
        shares = {ours: share(beyond[ours], each) for ours in OURS if ours in beyond}
        report.line(name="beyond", size=size, ranks=n, contender=kind, p50_ms=figures.median(each) / 1e6,
                    **{f"share_of_{ours}": value for ours, value in shares.items()})
        found |= {(ours, kind): value for ours, value in shares.items()}
    if {"weightd", "local"} <= samples.keys():
        found["local"] = ratio(samples["weightd"], samples["local"])[1]
    return found


def report_steps(report, size, n, contenders):
    """Samples by kind; "over" is in terms of the first one of ours."""
    n_rounds, count = SIZES[size]
    with machine.Others() as others:
        samples = in_turns(rounds(n_rounds), **{kind: turn(contender, size, count) for kind, contender in contenders.items()})
    ours = next((took for kind, took in samples.items() if kind.startswith("weightd")), None)
    for kind, took in samples.items():
        report.line(name="step", size=size, ranks=n, contender=kind, **ms(took), **over(took, ours or took),
                    loss_difference_e6=None if kind in CONTROLS else contenders[kind].difference * 1e6, other_cpu=others.share)
    return samples


def report_memory(report, size, n, contenders, n_bytes):
    """Bytes of memory and on sockets, by ("memory" or "sockets", kind)."""
    found = {}
    for kind, contender in contenders.items():
        found["memory", kind] = grown = sum(rank[0] for rank in contender.ask("memory"))
        found["sockets", kind] = sent = sent_in_step(contender)
        report.line(name="memory", size=size, ranks=n, contender=kind, bytes=grown, of_parameters=grown / n_bytes)
        report.line(name="sockets", size=size, ranks=n, contender=kind, bytes=sent,
                    of_parameters=None if sent is None else sent / n_bytes)
    return found


def turn(contender, size, count):
    """Small steps are disturbed by the caches of the contender before: their first one does not count."""
    return warm(contender, "step", count=count) if size == "small" else lambda: contender.samples("step", count=count)


def beyond_compute(took, compute):
    """ns, of each round."""
    return [figures.median(a) - figures.median(b) for a, b in zip(took, compute)]


def share(ours, theirs):
    """Median of the rounds; None: it is infinite."""
    median = figures.median(a / b if b > 0 else math.inf for a, b in zip(ours, theirs))
    return median if median < math.inf else None


def sent_in_step(contender):
    """Bytes on the loopback, by steps without the barrier of a sample; None: they cannot be counted here."""
    before = contender.net.sent()
    (n_steps,), *_ = contender.ask("steps")
    return None if before is None else (contender.net.sent() - before) / n_steps


def judge_steps(report, size, n, found):
    targets = Targets(report, f"{size}, {n} ranks")
    if size == "small":
        targets.at_most("beyond computing, weightd over ddp", found.get(("weightd", "ddp")), 0.25)
        targets.at_most("beyond computing, weightd over fsdp2", found.get(("weightd", "fsdp2")), 0.0833)
    else:
        targets.at_most("beyond computing, weightd-overlap over ddp", found.get(("weightd-overlap", "ddp")), 0.5)
    targets.at_most("weightd over local", found.get("local"), 1.0)
    targets.at_most("bytes over sockets in a step of weightd", found.get(("sockets", "weightd")), 0)
    if n == 2 and size == "small":
        memory = [found.get(("memory", kind)) for kind in ("weightd", "fsdp2")]
        targets.at_most("growth of memory, weightd over fsdp2", memory[0] / memory[1] if all(memory) else None, 0.45)


# --- 16 bits ---------------------------------------------------------------------------------------


def measure_bf16(report, d, size="small", n=2):
    reference = single(report, d, size, n)
    if reference is None:
        return
    expected, n_bytes = reference
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        for kind in BF16:
            field.enter(kind, lambda kind=kind: checked(d, kind, size, n, expected))
        if field.present:
            report_steps(report, size, n, field.present)
            report_memory(report, size, n, field.present, n_bytes)


# --- Checkpoints -------------------------------------------------------------------------------------


def measure_saves(report, d, size="small", n=2):
    reference = single(report, d, size, n)
    if reference is None:
        return
    expected, _ = reference
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(dir=interpreters.BUILD) as top:
        field = Field(report, stack)
        for kind, name in SAVERS.items():
            folder = pathlib.Path(top, name)
            folder.mkdir()
            field.enter(name, lambda kind=kind, folder=folder: checked(d, kind, size, n, expected, {"SAVE_FOLDER": str(folder)}))
        samples = in_turns(rounds(5), **{name: lambda saver=saver: [slowest(saver)] for name, saver in field.present.items()})
        written = {name: sum(path.stat().st_size for path in pathlib.Path(top, name).rglob("*") if path.is_file()) for name in samples}
    for name, took in samples.items():
        report.line(name="save", size=size, ranks=n, contender=name, **compared("held", 0, took, samples.get("weightd", took)),
                    **compared("whole", 1, took, samples.get("weightd", took)), bytes=written[name])


def slowest(saver):
    """Nanoseconds held, and of the whole, each of the slowest rank."""
    return tuple(max(ranks) for ranks in zip(*saver.ask("save")))


def compared(figure, column, took, ours):
    """One column of samples that have two: its median, and the median of the ratios to ours."""
    took, ours = ([[sample[column] for sample in turns] for turns in each] for each in (took, ours))
    return {f"{figure}_ms": spread(took)[1] / 1e6, f"{figure}_over": ratio(took, ours)[1]}

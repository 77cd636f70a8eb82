"""Train: the step of ranks on one node, beside torch over gloo, OpenMPI, DeepSpeed and the memory's own bandwidth.

All contenders run at once and work in turns, rounds after rounds; a sample is the time of the slowest rank. Figures with
_ms and _us are medians; q1 and q3 are quartiles; "over" is the median of the ratios in each round.

update        gradients lie ready: reduction, AdamW, commit, 55 MB of fp32 parameters. "plain" is a plan without_journal,
              "bf16" has as many parameters of that type, with fp32 originals.
              Peers: torch-ddp: one flat all-reduce and the fused AdamW, the best that DDP can do; torch-zero: reduce-scatter,
              fused AdamW on the shard, all-gather. copy_share: the bytes that it must move, 4(n + 6) a parameter, by the
              time, over the copy's bandwidth of the same rounds (the faster of non-temporal and cached stores)
adamw         one process: ours with its journal, torch's fused AdamW without one
all-reduce, all-gather, barrier
              bound: 2nS bytes at the copy's bandwidth, for sizes beyond the caches
memory        bytes on the node by the plan
step          a whole torch program: 13 layers of 1,024, batches of 16, 2 ranks; pss: growth of the proportional memory of
              all its ranks over their imports. Beside: without the journal, and torch's DDP with the fused AdamW
sockets       bytes on the loopback of an own network namespace
restart       SIGKILL of a rank to the end of its next step, in C and in torch (less its import), beside
              torch.save() and torch.load() of the same state

The last line has the targets that this run met, and missed. $BENCH_ROUNDS scales the number of rounds (1).
"""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from lib import features
from lib.daemon import Daemon

import figures
import interpreters
import machine
import peers_sync
import programs
from contenders import Contender, Failed, in_turns
from interpreters import token
from samples import Field, Targets, ms, over, ratio, rounds, spread, us, warm

HERE = pathlib.Path(__file__).resolve().parent
PEERS = HERE.parent / "peers"
PROGRAMS = features.BUILD / "bench/train"
N = 13_725_696  # fp32 parameters, 54.9 MB: a multiple of 32 * 4
S = 4 * N
KIB, MIB = 1 << 10, 1 << 20
WINDOW = 64 * MIB
RANKS = 2, 4
OURS = "journal", "plain", "bf16"


def measure(report):
    with contextlib.closing(Daemon("--log-level", "warning")) as d:
        for n in RANKS:
            measure_update(report, d, n)
        measure_adamw(report, d)
        for n in RANKS:
            measure_collectives(report, d, n)
        measure_programs(report, d)
        measure_restart(report, d)


# --- Contenders --------------------------------------------------------------------------------------


def ours(d, program, job, n, *args):
    """A contender on libweightd-train: one program, RANK RANKS and more arguments."""
    env = d.env | {"WEIGHTD_JOB": token(d, job, n)}
    return Contender(job, n, [[PROGRAMS / program, rank, n, *args] for rank in range(n)], env)


def bandwidth(n):
    return Contender("bandwidth", 1, [[PROGRAMS / "bandwidth", n, WINDOW]])


def torch_peer(n, n_bytes=64):
    return Contender("torch", n, [[interpreters.torch(), PEERS / "torch_ranks.py", N, n_bytes]] * n)


def openmpi(n):
    if not shutil.which("mpicc") or not shutil.which("mpirun"):
        raise Failed("no OpenMPI (apt-get install libopenmpi-dev openmpi-bin)")
    sources = [PEERS / "mpi_collectives.c", HERE / "rounds.c", HERE.parent / "stopwatch.c"]
    try:
        program = peers_sync.compiled("mpi_collectives", "mpicc", "-D_GNU_SOURCE", f"-I{features.ROOT}", *sources)
    except peers_sync.Missing as e:
        raise Failed(str(e)) from e
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", n, program, WINDOW]
    return Contender("openmpi", n, [command])


def deepspeed(n):
    python, env = interpreters.deepspeed()
    return Contender("deepspeed", n, [[python, PEERS / "deepspeed_ranks.py", WINDOW]] * n, env)


# --- The update --------------------------------------------------------------------------------------


def faster(samples):
    """The copy's samples of the faster kind."""
    return min((samples[name] for name in ("copy", "copy_cached")), key=lambda turns: spread(turns)[1])


def measure_update(report, d, n):
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        for name in OURS:
            field.enter(name, lambda name=name: ours(d, "update", f"update-{name}-{n}", n, N, name))
        field.enter("bandwidth", lambda: bandwidth(n))
        field.enter("torch", lambda: torch_peer(n))
        turns = {name: warm(field[name], "update", count=4) for name in OURS}
        turns |= {verb: warm(field["bandwidth"], verb, S) for verb in ("copy", "copy_cached", "triad")}
        if "torch" in field:
            turns |= {f"torch-{verb}": warm(field["torch"], verb, count=2) for verb in ("ddp", "zero")}
        with machine.Others() as others:
            samples = in_turns(rounds(12), **turns)
        sockets = {name: count_sockets(field[name], "update") for name in ("journal",)}
        if "torch" in field:
            sockets |= {f"torch-{verb}": count_sockets(field["torch"], verb) for verb in ("ddp", "zero")}
        report_memory(report, n, field["journal"])
        traffic = [sum(column) for column in zip(*field["journal"].ask("traffic"))]
    report_update(report, n, samples, others.share)
    for name, sent in sockets.items():
        report.line(name="sockets", ranks=n, contender=name, bytes=sent, of_parameters=None if sent is None else sent / S)
    targets = Targets(report, f"update, {n} ranks")
    targets.at_most("bytes over sockets", sockets["journal"], 0)
    targets.at_most("bytes over sockets by its own count", traffic[2], 0)


def report_update(report, n, samples, other_cpu):
    copied = faster(samples)
    copy_gb_s = 2 * S / spread(copied)[1]
    for name, turns in samples.items():
        n_bytes = {"copy": 2 * S, "copy_cached": 2 * S, "triad": 3 * S, "journal": 4 * (n + 6) * N,
                   "plain": 4 * (n + 6) * N}.get(name)
        report.line(name="update", ranks=n, contender=name, **ms(turns), **over(turns, samples["journal"]),
                    gb_s=n_bytes and n_bytes / spread(turns)[1], other_cpu=other_cpu)
    share = {name: (n + 6) / 2 * ratio(copied, samples[name])[1] for name in ("plain", "journal")}
    report.line(name="copy_share", ranks=n, copy_gb_s=copy_gb_s, **share)
    targets = Targets(report, f"update, {n} ranks")
    ddp, zero = (ratio(samples[name], samples["journal"])[1] if name in samples else None
                 for name in ("torch-ddp", "torch-zero"))
    targets.at_least("times as fast as torch-ddp", ddp, {2: 5, 4: 7}[n])
    targets.at_least("times as fast as torch-zero", zero, 12)
    targets.at_least("share of copy bandwidth, without the journal", share["plain"], 0.9)
    targets.at_least("share of copy bandwidth, with the journal", share["journal"], 0.85)
    targets.at_most("journal over plain", ratio(samples["journal"], samples["plain"])[1], 1.15)
    targets.at_most("bf16 over fp32", ratio(samples["bf16"], samples["journal"])[1], 1)


def count_sockets(contender, verb):
    """Bytes on the loopback of one operation; None: they cannot be counted here."""
    before = contender.net.sent()
    contender.ask(verb, count=4)
    return None if before is None else (contender.net.sent() - before) / 4


def report_memory(report, n, contender):
    param, grad, moments, journal, buffers, padding = contender.ask("memory")[0]
    states, padding = param + grad + moments, (3 + n) * padding  # that of PARAM is in each GRAD and moment, too
    report.line(name="memory", ranks=n, param=param, grad=grad, moments=moments, journal=journal, buffers=buffers, padding=padding,
                states=states / S, share_of_padding=padding / states)
    targets = Targets(report, f"memory, {n} ranks")
    targets.at_most("states without padding, in S", (states - padding) / S, 3 + n)
    targets.at_most("share of padding", padding / states, 0.001)


def measure_adamw(report, d):
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        field.enter("journal", lambda: ours(d, "update", "adamw", 1, N, "journal"))
        field.enter("torch", lambda: torch_peer(1))
        turns = {"journal": warm(field["journal"], "update", count=3)}
        if "torch" in field:
            turns["torch-fused"] = warm(field["torch"], "adamw", count=3)
        samples = in_turns(rounds(12), **turns)
    for name, turns in samples.items():
        report.line(name="adamw", contender=name, **ms(turns), **over(turns, samples["journal"]))
    value = ratio(samples["journal"], samples["torch-fused"])[1] if "torch-fused" in samples else None
    Targets(report, "adamw, one process").at_most("ours with the journal over torch's without", value, 1.0)


# --- Collectives -------------------------------------------------------------------------------------

# bytes -> operations of a sample: ours and OpenMPI's, DeepSpeed's, gloo's
ALL_REDUCES = {2: {KIB: (2000, 200, 10), 64 * KIB: (500, 100, 10), 512 * KIB: (50, 20, 4), MIB: (30, 10, 3), WINDOW: (1, 1, 1)},
               4: {KIB: (50, 2, 2), 64 * KIB: (50, 2, 2), MIB: (20, 1, 1), WINDOW: (1, 1, 1)}}
ALL_GATHERS = {MIB: (20, 2), WINDOW: (1, 1)}


def measure_collectives(report, d, n):
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        field.enter("ours", lambda: ours(d, "collectives", f"collectives-{n}", n, WINDOW))
        field.enter("bandwidth", lambda: bandwidth(n))
        field.enter("gloo", lambda: torch_peer(n, WINDOW))
        field.enter("openmpi", lambda: openmpi(n))
        field.enter("deepspeed", lambda: deepspeed(n))
        right = field["ours"].ask("check", WINDOW)
        assert all(rank == [1] for rank in right), "an all-reduce of ours is wrong"
        for size, repeats in ALL_REDUCES[n].items():
            measure_all_reduce(report, field, n, size, *repeats)
        for size, repeats in ALL_GATHERS.items():
            measure_all_gather(report, field, n, size, *repeats)
        barriers = in_turns(rounds(5), barrier=warm(field["ours"], "barrier", repeats=1000 if n == 2 else 50))["barrier"]
        report.line(name="all-gather of PARAM", ranks=n, contender="ours, a barrier", **us(barriers))


def peers_of(field, size, repeats):
    ours_, deepspeed_, gloo = repeats
    each = {"ours": ours_, "openmpi": ours_ if size < WINDOW else 1, "deepspeed": deepspeed_, "gloo": gloo}
    return {name: each[name] for name in each if name in field}


def measure_all_reduce(report, field, n, size, *repeats):
    turns = {name: warm(field[name], "all_reduce", size, 2, each) for name, each in peers_of(field, size, repeats).items()}
    turns["ours, bf16"] = warm(field["ours"], "all_reduce_bf16", size, 2, repeats[0])
    if size == WINDOW:
        turns |= {verb: warm(field["bandwidth"], verb, size, 2) for verb in ("copy", "copy_cached")}
    with machine.Others() as others:
        samples = in_turns(rounds(8), **turns)
    for name, turns in samples.items():
        report.line(name="all-reduce", ranks=n, bytes=size, contender=name, **us(turns), **over(turns, samples["ours"]),
                    other_cpu=others.share)
    if size == WINDOW:
        judge_bound(report, n, faster(samples), samples["ours"])
    judge_all_reduce(report, n, size, {name: ratio(turns, samples["ours"])[1] for name, turns in samples.items()})


def judge_bound(report, n, copied, took):
    """Reading and writing n ranges, at the bandwidth of a copy."""
    share = n * ratio(copied, took)[1]
    report.line(name="all-reduce bound", ranks=n, bytes=WINDOW, bound_us=n * spread(copied)[1] / 1e3, share=share)
    if n == 2:
        Targets(report, f"all-reduce of {WINDOW} bytes, {n} ranks").at_least("share of the bound", share, 0.85)


def judge_all_reduce(report, n, size, times):
    targets = Targets(report, f"all-reduce of {size} bytes, {n} ranks")
    at_least = {2: {"openmpi": {MIB: 2.5, WINDOW: 3.5}.get(size, 3), "gloo": 4.5 if size == WINDOW else None,
                    "deepspeed": 2.2 if size == WINDOW else None},
                4: {"openmpi": 1 if size == KIB else 3}}[n]
    for peer, bound in at_least.items():
        if bound:
            targets.at_least(f"times as fast as {peer}", times.get(peer), bound)


def measure_all_gather(report, field, n, size, repeats, gloo_repeats):
    each = {"ours": repeats, "openmpi": repeats, "gloo": gloo_repeats}
    samples = in_turns(rounds(8), **{name: warm(field[name], "all_gather", size, 2, r) for name, r in each.items() if name in field})
    for name, turns in samples.items():
        report.line(name="all-gather, copied out", ranks=n, bytes=size, contender=name, **us(turns), **over(turns, samples["ours"]))
    value = ratio(samples["openmpi"], samples["ours"])[1] if "openmpi" in samples else None
    Targets(report, f"all-gather of {size} bytes, {n} ranks, copied out").at_least("times as fast as openmpi", value, 1)


# --- Whole programs ----------------------------------------------------------------------------------


def torch_program(d, kind, n):
    env = interpreters.ours_env(d) | ({"WEIGHTD_JOB": token(d, f"program-{kind}", n)} if kind != "ddp" else {})
    return Contender(f"program-{kind}", n, [[interpreters.torch(), PEERS / "torch_train.py", kind]] * n, env)


def measure_programs(report, d):
    n = 2
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        for kind in ("weightd", "plain", "ddp"):
            field.enter(kind, lambda kind=kind: torch_program(d, kind, n))
        with machine.Others() as others:
            samples = in_turns(rounds(8), **{kind: warm(field[kind], "step", count=3) for kind in field.present})
        pss = {kind: sum(rank[0] for rank in field[kind].ask("pss")) for kind in field.present}
    for kind, turns in samples.items():
        report.line(name="step", ranks=n, contender=kind, **ms(turns), **over(turns, samples.get("weightd", turns)), pss=pss[kind],
                    other_cpu=others.share)
    targets = Targets(report, f"program, {n} ranks")
    journal = {"weightd", "plain"} <= samples.keys()
    targets.at_most("journal over plain, of a step", ratio(samples["weightd"], samples["plain"])[1] if journal else None, 1.03)
    both = {"weightd", "ddp"} <= pss.keys()
    targets.at_most("growth of PSS over torch-ddp's", pss["weightd"] / pss["ddp"] if both else None, 0.6)


# --- Restart -----------------------------------------------------------------------------------------


class Killed:
    """Two ranks that train; kill() ends the second one, starts it anew, and returns the times of its lines."""

    def __init__(self, command, env):
        self.command, self.env, self.ranks = command, env, {}

    def __enter__(self):
        for rank in range(2):
            self._start(rank)
        self._await(1, "step")
        return self

    def __exit__(self, *_):
        for process in self.ranks.values():
            process.kill()
            process.communicate()

    def _start(self, rank):
        env = self.env | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        self.ranks[rank] = subprocess.Popen(self.command(rank), env=env, text=True,
                                            stdout=subprocess.PIPE if rank else subprocess.DEVNULL)

    def _await(self, rank, *whats):
        """Times of the first line of each kind."""
        found = {}
        for line in self.ranks[rank].stdout:
            what, _, ns = line.split()
            found.setdefault(what, int(ns))
            if all(what in found for what in whats):
                return found
        raise Failed("a rank ended")

    def kill(self, after_steps):
        for _ in range(after_steps):
            self.ranks[1].stdout.readline()
        killed = time.monotonic_ns()
        self.ranks[1].kill()
        self.ranks[1].communicate()
        self._start(1)
        return killed, self._await(1, "step")


def measure_restart(report, d):
    samples = [step["step"] - killed for killed, step in kills(d, rounds(15), "restart-c", lambda rank: [
        PROGRAMS / "restart", str(rank), "2", str(N)])]
    report.line(name="restart", contender="C", **ms([samples]), kills=len(samples))
    Targets(report, "restart").at_most("of a C rank, ms", figures.median(samples) / 1e6, 50)
    python = None
    if os.path.exists(interpreters.torch_path()):
        command = [interpreters.torch_path(), PEERS / "torch_train.py"]
        samples = [times["step"] - times["import"] for _, times in kills(d, rounds(5), "restart-python", lambda rank: [
            *command, "run"])]
        python = figures.median(samples) / 1e6
        report.line(name="restart", contender="torch, beyond its import", **ms([samples]), kills=len(samples))
        measure_checkpoint(report, command)
    Targets(report, "restart").at_most("of a Python rank beyond importing torch, ms", python, 500)


def kills(d, n, job, command):
    with Killed(command, interpreters.ours_env(d) | {"WEIGHTD_JOB": token(d, job, 2)}) as killed:
        return [killed.kill(after_steps=1 + i % 3) for i in range(n)]


def measure_checkpoint(report, command):
    """Of one process, with parameters and both moments, in the folder of temporary files."""
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder:
        took = [programs.run([*command, "checkpoint", pathlib.Path(folder) / "state"])[0] for _ in range(3)]
    for name, samples in zip(("torch.save", "torch.load"), zip(*took)):
        report.line(name="restart", contender=name, **ms([samples]), kills=0)

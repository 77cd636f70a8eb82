"""Two nodes of two ranks: network namespaces with a cable between them, and a job of weightd for each."""
import contextlib
import statistics

from lib import netns

from contenders import Contender, Failed, in_turns
from interpreters import ours_env, token, torch
from samples import Field, Targets, ms, over, ratio, rounds, spread

NODES, LOCAL = 2, 2
WORLD = NODES * LOCAL
GBIT = 10**9
FP32 = 4
KINDS = "compute", "weightd", "weightd-overlap", "ddp"
CALM = "compute", "weightd-overlap"
UNITS = "compute", "weightd-units", "weightd-units-late"
SHARDS = "compute", "weightd-units", "fsdp2"


class Cable:
    """The network of a Contender, whose first LOCAL ranks are in one namespace, and the others in another."""

    def __init__(self, bits_per_s=GBIT):
        if not netns.is_available():
            raise Failed("cannot make network namespaces")
        self.net = netns.Net(NODES)
        self.bits_per_s = bits_per_s

    def __enter__(self):
        self.net.__enter__()
        self.limit(self.bits_per_s)
        return self

    def __exit__(self, *args):
        self.net.__exit__(*args)

    def limit(self, bits_per_s):
        """In either direction."""
        self.net.rate(0, f"{bits_per_s}bit")

    def command(self, command, rank):
        return [*self.net.nodes[rank // LOCAL].prefix, *command]

    def sent(self):
        """Bytes that the open connections of both nodes have sent."""
        return sum(map(self.net.sent, range(NODES)))


def started(d, program, kind, size):
    """The ranks of a kind of program (steps/rank.py), with the variables of a launcher."""
    cable = Cable()
    env = ours_env(d) | {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": cable.net.nodes[0].address, "MASTER_PORT": "29500",
                         "LOCAL_WORLD_SIZE": str(LOCAL), "GROUP_WORLD_SIZE": str(NODES)}
    tokens = [token(d, f"two-nodes-{kind}-{size}-{node}", LOCAL) for node in range(NODES)] if kind.startswith("weightd") else None
    commands = []
    for rank in range(WORLD):
        node, local = divmod(rank, LOCAL)
        own = [f"LOCAL_RANK={local}", f"GROUP_RANK={node}", *([f"WEIGHTD_JOB={tokens[node]}"] if tokens else [])]
        commands.append(["env", *own, torch(), program, kind, size, WORLD])
    return Contender(kind, WORLD, commands, env, net=cable)


def measure(report, d, program):
    """Lines and verdicts of steps over 1 Gb/s, where communication counts, and of overlap and prefetch, where computing takes as long."""
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        for kind in KINDS:
            field.enter(kind, lambda kind=kind: started(d, program, kind, "small"))
        judge_ring(report, field.present)
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        for kind in SHARDS:
            field.enter(kind, lambda kind=kind: started(d, program, kind, "small"))
        judge_shards(report, field.present)
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        for kind in CALM:
            field.enter(kind, lambda kind=kind: started(d, program, kind, "big"))
        judge_overlap(report, field.present)
    with contextlib.ExitStack() as stack:
        field = Field(report, stack)
        for kind in UNITS:
            field.enter(kind, lambda kind=kind: started(d, program, kind, "big"))
        judge_prefetch(report, field.present)


def step(contender):
    return lambda: contender.samples("step", count=2)[1:]


def parameter_bytes(contender):
    return FP32 * contender.ask("parameters")[0][0]


def count_sent(contender):
    """Bytes at the sockets, by steps without a barrier."""
    before = contender.net.sent()
    (n_steps,), *_ = contender.ask("steps")
    return (contender.net.sent() - before) / n_steps


def report_steps(report, contenders, ours):
    """
    Lines of steps and bytes over 1 Gb/s; "over" is in terms of the contender `ours`. Returns figures by name: the time of a step
    in terms of the bound, and of that of `ours`, bytes, and those of the formula. Each of the ranks sends and receives
    2 (S/L) (N - 1)/N, and those of a node share the cable.
    """
    found = {}
    if contenders:
        samples = in_turns(rounds(8), **{kind: step(contender) for kind, contender in contenders.items()})
        n_bytes = parameter_bytes(next(iter(contenders.values())))
        bound_s = LOCAL * 2 * (n_bytes / LOCAL) * (NODES - 1) / NODES * 8 / GBIT
        for kind, took in samples.items():
            found["step", kind] = spread(took)[1] / 1e9 / bound_s
            found["bytes", kind] = sent = count_sent(contenders[kind])
            found["over", kind] = ratio(took, samples.get(ours, took))[1]
            report.line(name="two-nodes", size="small", contender=kind, **ms(took), **over(took, samples.get(ours, took)),
                        bound_ms=bound_s * 1e3, over_bound=found["step", kind], bytes=sent, of_parameters=sent / n_bytes)
        found["formula"] = WORLD * 2 * (n_bytes / LOCAL) * (NODES - 1) / NODES
    return found


def judge_shards(report, contenders):
    """Stage 3, with each block a unit."""
    found = report_steps(report, contenders, "fsdp2")
    targets = Targets(report, "two nodes of two ranks, units, 1 Gb/s")
    targets.at_most("step, weightd-units over fsdp2", found.get(("over", "weightd-units")), 0.5)


def judge_ring(report, contenders):
    """The bytes of an all-reduce of shards, at the speed of the cable."""
    targets = Targets(report, "two nodes of two ranks, 1 Gb/s")
    found = report_steps(report, contenders, "weightd")
    sent = found.get(("bytes", "weightd"))
    targets.at_most("bytes at the sockets over the formula's", sent and sent / found["formula"], 1.001)
    targets.at_most("step over the ring bound of the shard, weightd-overlap", found.get(("step", "weightd-overlap")), 1.1)


def judge_overlap(report, contenders):
    """The cable is as slow as computing is: DDP-4."""
    targets = Targets(report, "two nodes of two ranks, communication as long as computing")
    share = None
    if set(CALM) <= contenders.keys():
        compute, overlap = (contenders[kind] for kind in CALM)
        n_bytes = parameter_bytes(overlap)
        compute_s = statistics.median(ns for _ in range(3) for ns in step(compute)()) / 1e9
        bits = LOCAL * 2 * (n_bytes / LOCAL) * (NODES - 1) / NODES * 8
        bits_per_s = round(bits / compute_s)
        overlap.net.limit(bits_per_s)
        samples = in_turns(rounds(6), compute=step(compute), overlap=step(overlap))
        compute_s, step_s = (spread(took)[1] / 1e9 for took in samples.values())
        transfer_s = bits / bits_per_s
        share = step_s / (compute_s + transfer_s)
        report.line(name="overlap", size="big", contender="weightd-overlap", **ms(samples["overlap"]), compute_ms=compute_s * 1e3,
                    transfer_ms=transfer_s * 1e3, share=share)
    targets.at_most("step over computing and transfer", share, 0.75)


def judge_prefetch(report, contenders):
    """The cable is as slow as computing is: F-3. A unit crosses it twice as parameters, and once as gradients."""
    targets = Targets(report, "two nodes of two ranks, units, communication as long as computing")
    found = None
    if set(UNITS) <= contenders.keys():
        compute, *others = (contenders[kind] for kind in UNITS)
        n_bytes = parameter_bytes(compute)
        compute_s = statistics.median(ns for _ in range(3) for ns in step(compute)()) / 1e9
        bits_per_s = round(3 * n_bytes * (NODES - 1) / NODES * 8 / compute_s)
        for each in others:
            each.net.limit(bits_per_s)
        samples = in_turns(rounds(6), compute=step(compute), **{each.name: step(each) for each in others})
        for kind in UNITS[1:]:
            report.line(name="prefetch", size="big", contender=kind, **ms(samples[kind]),
                        **over(samples[kind], samples["weightd-units-late"]), compute_ms=spread(samples["compute"])[1] / 1e6)
        found = ratio(samples["weightd-units"], samples["weightd-units-late"])[1]
    targets.at_most("step over that without prefetch", found, 0.8)

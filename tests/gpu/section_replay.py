"""A graph that replays in a loop while versions change under it: what a reader loses by a swap, and by another's publish."""
import statistics
import time

from lab import GIB, MIB, AgentFailed
from samples import N_MIN, percentile, shorten, summary

MANY = 1_000_000  # replays: more than any loop makes
STAGES = "create", "fill", "publish"


def measure(lab, tell):
    """About 30 s on an H100: 3 s for 1 GiB, 8 s for 8, 18 s for 32, where a replay takes 12 ms."""
    with lab.agents(1) as (agent,):
        fit = int(agent.free() * 0.45) // GIB or 1  # two versions, and contexts
    for size in lab.size(sorted({min(s, fit) * GIB for s in (1, 8, 32)}), [4 * MIB]):
        name = f"{size / GIB:.3g} GiB"
        with tell.part(name):
            if lab.left_s < lab.size(25, 3):
                tell(name, why="not tried: the section's time is over")
                continue
            with lab.agents(1) as (agent,):
                floor = remap(lab, agent, size)
            with lab.weightd() as weightd, lab.agents(2) as (writer, reader):
                under(lab, tell, weightd, writer, reader, size, floor)


def remap(lab, agent, size):
    """The driver's time alone to unmap so much and to map it again."""
    took = agent.run(f"vmm-remap {size} {lab.size(20, N_MIN)}", 120)["ns"]
    return statistics.median(took) / 1e6


def under(lab, tell, weightd, writer, reader, size, floor):
    name, known, seen = f"{size / GIB:.3g} GiB", {publish(lab, writer, size, 1, {})}, set()
    reader.run(f"attach m {lab.device}")
    more = {"captured": capture(reader), "remap_ms": shorten(floor)}
    quiet, gaps, stages = [], [], {stage: [] for stage in STAGES}

    def replay_alone():
        said = reader.run(f"replay-loop {lab.size(50, 6)} 0", 120)
        seen.update(said["sums"])
        return statistics.median(said["intervals_ns"])

    for last in range(2, 2 + N_MIN):
        make_room(lab, weightd, writer, size, last)
        alone = None if last % 2 else replay_alone()  # before or after, by turns
        reader.send(f"replay-loop {MANY} 1")
        ends = {}
        known.add(publish(lab, writer, size, last, ends))
        said = reader.answer(120)
        quiet.append(alone or replay_alone())
        seen |= {*said["sums"]}
        gaps += gaps_of(said, quiet[-1])
        for stage, median in medians(said, ends).items():
            stages[stage].append(median / quiet[-1])
    quiet_ns = statistics.median(quiet)
    tell(f"a replay that reads {name}", **summary(quiet, 1e-6), unit="ms", gb_s=shorten(size / quiet_ns), **more)
    tell(f"gap in the replay at a new version, {name}", **summary(gaps, 1e-6), unit="ms", **more)
    for stage, slower in stages.items():
        what = f"a replay during another's {stage}, {name}"
        if slower:
            tell(what, **summary(slower), unit="of a quiet one")
        else:
            tell(what, why=f"no replay ended within the {stage}")
    n = min(lab.size(100, N_MIN), max(N_MIN, int(lab.budget(8) * 1e9 / quiet_ns / 10)))
    said = reader.run(f"replay-loop {MANY} {n} m {lab.device} {last - 1} {last}", 120)
    seen |= {*said["sums"]}
    flips(tell, said, name, more)
    wrong = len(seen - known)
    tell(f"sums of replays that are of no version, {name}", wrong, ok=wrong == 0, versions=len(seen))


def make_room(lab, weightd, writer, size, version):
    """Two versions of the largest size fit, and not three: this one takes the place of the one before the last."""
    if version > 2:
        before = writer.free()
        weightd.ctl("rm", f"m@{version - 2}", "--device", lab.device)
        lab.wait_free(writer, before + size // 2, "the memory of a version that was removed is free")


def publish(lab, writer, size, seed, ret_ends):
    """Returns the sum that a replay of it sees. `ret_ends`: when each stage ended, by CLOCK_MONOTONIC."""
    ret_ends["begin"] = time.monotonic_ns()
    writer.run(f"create m {lab.device} {size} 1", 120)
    ret_ends["create"] = time.monotonic_ns()
    writer.run(f"fill {seed}", 120)
    ret_ends["fill"] = time.monotonic_ns()
    total = writer.run("sum", 120)["sum"]
    ret_ends["sum"] = time.monotonic_ns()
    writer.run("publish", 120)
    ret_ends["publish"] = time.monotonic_ns()
    return total


def capture(reader):
    """False: the driver has no graphs, and kernels are launched instead."""
    try:
        reader.run("capture")
        return True
    except AgentFailed:
        return False


def gaps_of(said, quiet_ns):
    """ns beyond a quiet interval, less the flip where the reader made that itself."""
    return [said["intervals_ns"][i] - quiet_ns - flip_ns for i, flip_ns in zip(said["swap_intervals"], said["flip_ns"])]


def medians(said, ends):
    """Figures of the intervals that ended in each stage, but for those of swaps."""
    found = {stage: [] for stage in STAGES}
    swapped = {*said["swap_intervals"]}
    before = dict(zip(ends, ["begin", *ends]))
    end = said["first_ns"]
    for i, interval in enumerate(said["intervals_ns"]):
        end += interval
        for stage in STAGES:
            if i not in swapped and ends[before[stage]] < end <= ends[stage]:
                found[stage].append(interval)
    return {stage: statistics.median(some) for stage, some in found.items() if some}


def flips(tell, said, name, more):
    """Between two versions that are there: by rollback."""
    swapped = {*said["swap_intervals"]}
    gaps = gaps_of(said, statistics.median(ns for i, ns in enumerate(said["intervals_ns"]) if i not in swapped))
    for p in (50, 99):
        tell(f"gap in the replay at a flip, p{p}, {name}", percentile(gaps, p) / 1e6, "ms", n=len(gaps),
             swap_ms=shorten(percentile(said["swap_ns"], p) / 1e6), **more)

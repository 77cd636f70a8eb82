"""Sleeping and waking at the same address, and what a process pays once: a context, code, and its first attach."""
import statistics

from lab import GIB, MIB
from samples import N_MAX, N_MIN, shorten, summary, take

PARTS = {"init_ns": "cuInit", "context_ns": "the context", "module_ns": "kernels that are PTX",
         "attach_ns": "the first attach", "verify_ns": "the first verify", "again_ns": "the second verify"}


def measure(lab, tell):
    """About 25 s on an H100: 10 s for sleep and wake, and a second or so for each of ten processes."""
    with lab.agents(1) as (agent,):
        fit = int(agent.free() * 0.85) // GIB or 1
    for size in lab.size(sorted({min(s, fit) * GIB for s in (8, 64)}), [4 * MIB]):
        name = f"{size / GIB:.3g} GiB"
        with tell.part(name), lab.agents(1) as (agent,):
            floor = statistics.median(agent.run(f"vmm-remap {size} {N_MIN}", 120)["ns"]) / 1e6
            from_host = agent.run(f"rates {lab.size(256, 4)}")["from_host"]
            with lab.weightd(), lab.agents(2) as (writer, reader):
                sleep(lab, tell, writer, reader, size, name, {"remap_ms": shorten(floor), "reload_ms": shorten(size / from_host * 1e3)})
    with tell.part("the first use of a GPU"), lab.weightd(), lab.agents(1) as (writer,):
        lab.publish(writer, "m", lab.size(64, 2) * MIB, 1)
        first(lab, tell)


def sleep(lab, tell, writer, reader, size, name, limits):
    """remap_ms: the driver unmaps and maps so much. reload_ms: so many bytes over PCIe, at the rate of pinned memory."""
    lab.publish(writer, "m", size, 1)
    reader.run(f"attach m {lab.device}")
    acts = {"sleep": "release", "wake": "reacquire"}
    took = {what: [] for what in (*acts, "attach anew")}
    for _ in range(lab.size(N_MAX, N_MIN)):
        for what, command in acts.items():
            took[what].append(reader.run(command, 120)["ns"])
        reader.run("detach", 120)
        took["attach anew"].append(reader.run(f"attach m {lab.device}", 120)["ns"])
    for what, ns in took.items():
        tell(f"{what}, {name}", **summary(ns, 1e-6), unit="ms", **limits)
    tell(f"the bytes after so many sleeps, {name}", ok=reader.code("verify") == 0)


def first(lab, tell):
    """
    Processes that find the code of the agent's kernels, which are PTX, in the driver's cache, and processes for which the driver
    compiles it. The first verify loads the digest kernel: code, where the fat binary has it for this GPU, else PTX as well.
    """
    cache = {"CUDA_CACHE_PATH": str(lab.folder / "cache")}
    use(lab, cache)  # fills it
    ways = {"code cached by the driver": cache, "no code cached": {"CUDA_CACHE_DISABLE": "1"}}
    taken, left_out = take({way: lambda env=env: use(lab, env) for way, env in ways.items()}, lab.budget(20), N_MIN)
    for way, samples in taken.items():
        for part, name in PARTS.items():
            tell(f"{name}, {way}", **summary([sample[part] for sample in samples], 1e-6), unit="ms")
    for way, why in left_out.items():
        tell(f"the first use, {way}", why=why)


def use(lab, env):
    with lab.agents(1, env=env) as (agent,):
        opened = agent.opened
        attached = agent.run(f"attach m {lab.device}")
        verified = [agent.run("verify", 120)["ns"] for _ in range(2)]
    return {part: opened[part] for part in ("init_ns", "context_ns", "module_ns")} | {
        "attach_ns": attached["ns"], "verify_ns": verified[0], "again_ns": verified[1]}

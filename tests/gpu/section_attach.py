"""Attach time: one handle, against one for each tensor, of either kind."""
import subprocess

from lab import GIB, MIB, wait_for

COUNTS = (1, 300, 3000)
TARGET_MS = 20


def measure(lab, results):
    def tell(name, value=None, unit="", ok=None, **more):
        results.line("attach", name, value, unit, ok, **more)

    with lab.weightd(), lab.agents(2) as (maker, reader):
        lab.publish(maker, "m", 2 * MIB, 1)  # what the allocator costs is not counted below
        remove(lab)
        free = maker.free()
        largest = int(free * 0.85) // GIB or 1
        sizes = lab.size(sorted({min(s, largest) * GIB for s in (1, 8, 32, 100)}), [4 * MIB, 64 * MIB])
        for size in sizes:
            for n in COUNTS:
                maker.run(f"create m {lab.device} {size} {n}", 120)
                maker.run("fill 1")
                maker.run("publish", 120)
                took = reader.run(f"time-attach m {lab.device} {lab.size(20, 5)}", 120)
                ms = took["ns"] / 1e6
                tell(f"weightd, {n} tensors, {size / GIB:.3g} GiB", ms, "ms", ok=lab.fake or ms < TARGET_MS,
                     max_ms=took["max_ns"] / 1e6)
                reader.run("detach")
                remove(lab)
                wait_for(lambda: maker.free() > free - lab.size(512, 4) * MIB, "the buffer's memory is free again")
    total = lab.size(8 * GIB, 64 * MIB)
    for n in COUNTS if not lab.fake else (1, 30):
        each = max(2 * MIB, total // n // (2 * MIB) * 2 * MIB)
        ways(lab, tell, n, each)


def remove(lab):
    """So that the next one finds room."""
    subprocess.run([lab.build / "weightctl", "rm", "m", "--device", lab.device], env=lab.env, check=True,
                   capture_output=True)


def ways(lab, tell, n, each):
    path = lab.folder / "handles"
    with lab.agents(2) as (maker, reader):
        maker.run(f"ipc-make {n} {each} {path}")
        took = reader.run(f"ipc-time {path}")
        tell(f"cuIpcOpenMemHandle, {n} tensors of {each >> 20} MiB", took["ns"] / 1e6, "ms")
    with lab.agents(2) as (maker, reader):
        path = lab.folder / f"vmm-{n}"
        maker.run(f"vmm-make {n} {each} {path}")
        maker.send("vmm-serve")
        took = reader.run(f"vmm-time {n} {each} {path}")
        maker.answer()
        tell(f"a VMM handle each, {n} tensors of {each >> 20} MiB", took["ns"] / 1e6, "ms")

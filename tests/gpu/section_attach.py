"""Attach time: one handle, against one for each tensor, of either kind."""
import subprocess

from lab import GIB, MIB

COUNTS = (1, 300, 3000)
TARGET_MS = 20


def measure(lab, tell):
    with lab.agents(1) as (agent,):
        largest = int(agent.free() * 0.85) // GIB or 1
    for size in lab.size(sorted({min(s, largest) * GIB for s in (1, 8, 32, 100)}), [4 * MIB, 64 * MIB]):
        with tell.part(f"weightd, {size / GIB:.3g} GiB"), lab.weightd(), lab.agents(2) as (maker, reader):
            lab.publish(maker, "m", 2 * MIB, 1)  # what the allocator costs is not counted below
            remove(lab)
            free = maker.free()
            for n in COUNTS:
                attach(lab, tell, maker, reader, size, n)
                lab.wait_free(maker, free - lab.size(512, 4) * MIB, "the buffer's memory is free again")
    total = lab.size(8 * GIB, 64 * MIB)
    for n in COUNTS if not lab.small else (1, 30):
        ways(lab, tell, n, max(2 * MIB, total // n // (2 * MIB) * 2 * MIB))


def attach(lab, tell, maker, reader, size, n):
    maker.run(f"create m {lab.device} {size} {n}", 120)
    maker.run("fill 1")
    maker.run("publish", 120)
    took = reader.run(f"time-attach m {lab.device} {lab.size(20, 5)}", 120)
    ms = took["ns"] / 1e6
    tell(f"weightd, {n} tensors, {size / GIB:.3g} GiB", ms, "ms", ok=lab.small or ms < TARGET_MS, max_ms=took["max_ns"] / 1e6)
    reader.run("detach")
    remove(lab)


def remove(lab):
    """So that the next one finds room."""
    subprocess.run([lab.build / "weightctl", "rm", "m", "--device", lab.device], env=lab.env, check=True,
                   capture_output=True)


def ways(lab, tell, n, each):
    name = f"cuIpcOpenMemHandle, {n} tensors of {each >> 20} MiB"
    with tell.part(name), lab.agents(2) as (maker, reader):
        path = lab.folder / "handles"
        maker.run(f"ipc-make {n} {each} {path}")
        tell(name, reader.run(f"ipc-time {path}")["ns"] / 1e6, "ms")
    name = f"a VMM handle each, {n} tensors of {each >> 20} MiB"
    with tell.part(name), lab.agents(2) as (maker, reader):
        path = lab.folder / f"vmm-{n}"
        maker.run(f"vmm-make {n} {each} {path}")
        maker.send("vmm-serve")
        took = reader.run(f"vmm-time {n} {each} {path}")
        maker.answer()
        tell(name, took["ns"] / 1e6, "ms")

"""The machine, and the parts that weightd and its allocator use."""
import os
import pathlib
import platform
import shutil
import subprocess
import time

from lab import MIB


def measure(lab, tell):
    tell("kernel", platform.release())
    tell("user", os.geteuid())
    tell("C library", " ".join(platform.libc_ver()))
    for key in ("name", "driver_version", "memory.total", "persistence_mode", "compute_mode"):
        with tell.part(f"nvidia-smi {key}"):
            tell(f"nvidia-smi {key}", nvidia_smi(key))
    with lab.weightd(*quick_idle(lab)) as weightd, lab.agents(1) as (agent,):
        before = agent.free()
        with tell.part("a context"):
            context(lab, tell, agent, before)
        with tell.part("weightctl devices"):
            for line in weightd.ctl("devices", "--noheadings").stdout.splitlines():
                tell("weightctl devices", " ".join(line.split()))
        with tell.part("the allocator"):
            allocator(lab, tell, weightd, agent, before)
        with tell.part("what weightd maps"):
            maps = pathlib.Path(f"/proc/{weightd.pid}/maps").read_text()
            tell("weightd has libcuda loaded", "libcuda" in maps, ok="libcuda" not in maps)
            tell("weightd maps of the driver", maps.count("/dev/nvidia"), ok="/dev/nvidia" not in maps)


def context(lab, tell, agent, before):
    with lab.agents(1):
        tell("a context costs", before - agent.free(), "bytes")
    lab.wait_free(agent, before, "the context's memory is free again")


def allocator(lab, tell, weightd, agent, before):
    size = lab.size(256 * MIB, 4 * MIB)
    agent.run(f"create m {lab.device} {size} 1")
    allocators = weightd.allocators
    tell("allocators while one is needed", len(allocators), ok=len(allocators) == 1)
    taken = before - agent.free()
    tell("GPU memory while the allocator lives", taken, "bytes", buffer=size)
    begin = time.monotonic()
    lab.wait_for(lambda: not weightd.allocators, "the allocator ends when nobody needs it")
    tell("the allocator ends after", time.monotonic() - begin, "s", ok=True)
    # The agent maps the buffer; what the driver keeps for that is its own affair.
    room = lab.size(64, 4) * MIB
    left = before - lab.wait_free(agent, before - size - room, "the allocator's memory is free again")
    tell("GPU memory after it", left, "bytes", ok=size - lab.noise <= left <= size + room + lab.noise, noise=lab.noise)
    tell("the allocator cost", taken - left, "bytes")


def nvidia_smi(key):
    if not shutil.which("nvidia-smi"):
        return "no nvidia-smi"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={key}", "--format=csv,noheader"], capture_output=True, text=True,
                          timeout=10)
    return done.stdout.strip().replace("\n", "; ")


def quick_idle(lab):
    """Options of a weightd with an allocator that ends soon, but not before it was seen, if it can read such a file."""
    path = lab.folder / "quick.conf"
    path.write_text("[cuda]\nidle-timeout = 4\n")
    checked = subprocess.run([lab.build / "weightd", "--check-config", path], env=lab.env, capture_output=True)
    return ["--config", str(path)] if checked.returncode == 0 else []

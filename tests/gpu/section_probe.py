"""What there is, and what weightd and its allocator have of it."""
import os
import pathlib
import platform
import shutil
import subprocess
import time

from lab import MIB, wait_for


def measure(lab, results):
    def tell(name, value=None, unit="", ok=None, **more):
        results.line("probe", name, value, unit, ok, **more)

    tell("kernel", platform.release())
    for key in ("name", "driver_version", "memory.total", "persistence_mode", "compute_mode"):
        tell(f"nvidia-smi {key}", nvidia_smi(key))
    tell("user", os.geteuid())
    with lab.weightd(*quick_idle(lab)) as weightd, lab.agents(1) as (agent,):
        before = agent.free()
        with lab.agents(1):
            tell("a context costs", before - agent.free(), "bytes")
        wait_for(lambda: agent.free() >= before, "the context's memory is free again")
        for line in weightd.ctl("devices", "--noheadings").stdout.splitlines():
            tell("weightctl devices", " ".join(line.split()))

        size = lab.size(256 * MIB, 4 * MIB)
        agent.run(f"create m {lab.device} {size} 1")
        allocators = weightd.allocators
        tell("allocators while one is needed", len(allocators), ok=len(allocators) == 1)
        taken = before - agent.free()
        tell("GPU memory while the allocator lives", taken, "bytes", buffer=size)
        begin = time.monotonic()
        wait_for(lambda: not weightd.allocators, "the allocator ends when nobody needs it")
        tell("the allocator ends after", time.monotonic() - begin, "s", ok=True)
        left = wait_for(lambda: before - agent.free() < taken and before - agent.free(), "its memory is free again")
        # The agent maps the buffer; what the driver keeps for that is its own affair.
        tell("GPU memory after it", left, "bytes", ok=size <= left < size + lab.size(64, 4) * MIB)
        tell("the allocator cost", taken - left, "bytes")

        maps = pathlib.Path(f"/proc/{weightd.pid}/maps").read_text()
        tell("weightd has libcuda loaded", "libcuda" in maps, ok="libcuda" not in maps)
        tell("weightd maps of the driver", maps.count("/dev/nvidia"), ok="/dev/nvidia" not in maps)


def nvidia_smi(key):
    if not shutil.which("nvidia-smi"):
        return "no nvidia-smi"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={key}", "--format=csv,noheader"], capture_output=True, text=True,
                          timeout=30)
    return done.stdout.strip().replace("\n", "; ")


def quick_idle(lab):
    """Options of a weightd whose allocator ends soon, not before it was looked at, where it can read a file that says so."""
    path = lab.folder / "quick.conf"
    path.write_text("[cuda]\nidle-timeout = 4\n")
    checked = subprocess.run([lab.build / "weightd", "--check-config", path], env=lab.env, capture_output=True)
    return ["--config", str(path)] if checked.returncode == 0 else []

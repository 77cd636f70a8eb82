"""Digests on the GPU: those of the kernel are the host's, and its rate by size, beside the bandwidth of the GPU's memory."""
import json
import subprocess

from lab import GIB, MIB, ROOT
from results import Skip
from samples import N_MAX, N_MIN, ratios, shorten, summary

SIZES = 86 * MIB, GIB, 8 * GIB, 32 * GIB  # 86 MiB are 90 MB: a small model, near the size of the caches
SHARE = 0.6  # part of the bandwidth, where the caches are too small to matter


def measure(lab, tell):
    """About 12 s on an H100: a context, and a buffer to publish, for each size."""
    with lab.agents(1) as (agent,):
        fit = int(agent.free() * 0.8)
    form = forms(lab, tell)
    for size in lab.size(sorted({min(s, fit // GIB * GIB or GIB) for s in SIZES}), [8 * MIB]):
        name = f"{size / 1e9:.2g} GB"
        with tell.part(name):
            if lab.left_s < lab.size(12, 3):
                tell(name, why="not tried: the section's time is over")
                continue
            alone = kernel(lab, tell, size, name, form)
            with lab.weightd(), lab.agents(1) as (agent,):
                verify(lab, tell, agent, size, name, alone)


def run(lab, form, size, n_rounds):
    command = [lab.build / "gpu/digest", ROOT / f"libclient/cuda/digest.{form}", size // MIB, 0, n_rounds]
    done = subprocess.run(list(map(str, command)), env=lab.env | {"CUDA_CACHE_DISABLE": "1"}, capture_output=True, text=True,
                          timeout=60)
    return json.loads(done.stdout or '{"ok": false, "error": "it said nothing"}')


def forms(lab, tell):
    """Loads the kernel as PTX, which the driver compiles, and as code for this GPU. Returns the form that the library uses here."""
    used = "ptx"
    for form in "ptx", "fatbin":
        with tell.part(f"digest kernel, {form}"):
            said = run(lab, form, SIZES[0], 1)
            if form == "fatbin" and "NO_BINARY_FOR_GPU" in said.get("error", ""):
                raise Skip(said["error"])
            assert said["ok"], said["error"]
            tell(f"digests of the kernel that are not the host's, {form}", said["wrong"], ok=said["wrong"] == 0, of=said["checked"])
            tell(f"digest kernel loaded, {form}", said["load_ns"] / 1e6, "ms")
            used = form
    return used


def kernel(lab, tell, size, name, form):
    """The kernel that verify and load use, alone, in turns with a copy that reads half as much and writes it. Returns bytes/s."""
    said = run(lab, form, size, lab.size(N_MAX, N_MIN))
    assert said["ok"], said["error"]
    rates, copies = ([said["bytes"] / max(1, ns) for ns in said[key]] for key in ("digest_ns", "copy_ns"))
    shares = summary(ratios(rates, copies))
    is_large = size >= GIB
    tell(f"digest kernel alone, {name}", **summary(rates), unit="GB/s", memory_gb_s=summary(copies)["value"])
    tell(f"digest kernel alone, {name}, of the GPU's memory bandwidth", **shares,
         ok=shares["value"] >= SHARE if is_large else None)
    return summary(rates)["value"] * 1e9


def verify(lab, tell, agent, size, name, alone):
    """Measures it as a reader has it: with the table of digests that is copied back and compared."""
    lab.publish(agent, "digested", size, 9)
    agent.run(f"attach digested {lab.device}")
    agent.run("verify", 120)  # loads the kernel
    rates = [size / agent.run("verify", 120)["ns"] for _ in range(lab.size(N_MAX, N_MIN))]
    tell(f"verify on the GPU, {name}", **summary(rates), unit="GB/s", share=shorten(summary(rates)["value"] * 1e9 / alone))

"""Load: safetensors in the page cache into shared memory, beside the ceiling and what others do.

weightd            weightctl load: memory, reading, digests, publish; "read_gb_s" is reading and digests
ceiling-existing   a bare program: pread by all cores into huge pages that are there, XXH3-128 fused
ceiling-fresh      the same, and each huge page is made just before it is filled: the bound of a load
torch              torch.UntypedStorage.from_file and a clone of every tensor: private memory, no digest
safetensors        safetensors.torch.load_file and a clone of every tensor (it maps lazily), likewise
numpy              readinto of an array, likewise
weightd-gpu        weightctl load to the first GPU, if there is one: "read" is reading, digests on both sides and copies

Contenders take turns, and ratios are of one turn. Each takes fresh memory, except for ceiling-existing. load_cold.py has
the rows of files that are not in the page cache.
"""
import contextlib
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import weightd
from lib import features
from lib.daemon import Daemon

import buffers
import figures
import load_cold
import machine
import programs
import turns
from report import say

BASELINE_ROUNDS = 3
SAFETENSORS = "safetensors==0.6.2"
NAME = "bench/load"


def measure(report):
    size = machine.affordable(machine.GIB, copies=4)
    model = pathlib.Path(os.environ.get("MODEL") or features.BUILD / "model")
    model = model / "model.safetensors" if model.is_dir() else model
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder, baselines() as load:
        files = {f"{n:,} tensors": make_file(folder, n, size) for n in (64, 20_000)}
        if model.exists():
            files[model.parent.name if model.name == "model.safetensors" else model.name] = model
        with contextlib.closing(Daemon("--log-level", "warning")) as d:
            gpu = first_gpu(d)
            for label, path in files.items():
                measure_file(report, d, load, label, path)
                if gpu:
                    measure_gpu(report, d, gpu, label, path)
            load_cold.measure(report, d, folder)


def make_file(folder, n_tensors, size):
    """Random bytes, F16, written out and in the page cache; the header ends at no round number."""
    each = size // n_tensors // 1024 * 1024
    header = {buffers.tensor_name(i): {
        "dtype": "F16", "shape": [each // 1024, 512], "data_offsets": [i * each, (i + 1) * each]}
        for i in range(n_tensors)}
    text = json.dumps({"__metadata__": {"made": "by bench"}} | header).encode()
    text += b" " * ((8 - len(text)) % 8)
    block = random.Random(n_tensors).randbytes(16 << 20)
    path = pathlib.Path(folder, f"{n_tensors}.safetensors")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, n_tensors * each, len(block)):
            f.write(block[:n_tensors * each - start])
        f.flush()
        os.fsync(f.fileno())  # or it is written out while we measure
    return path


# --- Contenders --------------------------------------------------------------------------------------


def load_weightd(d, path, device="host"):
    """The object that weightctl prints, in ns; the memory is free again afterwards."""
    done = d.ctl("load", "--json", "--quiet", "--device", device, "--keep", 1, NAME, path)
    d.ctl("rm", "--device", device, NAME)
    while weightd.ping(socket=d.socket).n_bytes:
        pass  # the server frees what was removed as soon as it can
    return json.loads(done.stdout)


@contextlib.contextmanager
def baselines():
    """A running baseline.py, as a function from (way, path) to ns, or a reason why not."""
    env = os.environ | {"PYTHONPATH": str(safetensors_folder())}
    command = [sys.executable, pathlib.Path(__file__).parent / "baseline.py"]
    with programs.spawn(command, env=env, text=True, stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE) as process:
        def load(way, path):
            process.stdin.write(json.dumps([way, str(path)]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield load


def safetensors_folder():
    """The folder of the real safetensors, for the system's torch; pip installs it at the first call."""
    folder = features.BUILD / "bench-safetensors"
    if not folder.exists():
        say(f"pip install {SAFETENSORS} into {folder}")
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder,
                        "--disable-pip-version-check", "--retries", "1", SAFETENSORS], stdout=sys.stderr)
    return folder


def first_gpu(d):
    """Its name on the wire; None, with a line about the reason."""
    gpus = [g for g in json.loads(d.ctl("devices", "--json").stdout)["devices"] if g["device"] != "host"]
    usable = [g["device"] for g in gpus if not g["why"]]
    if not usable:
        say(f"nothing is loaded to a GPU: {gpus[0]['why'] if gpus else 'there is none'}")
    return usable[0] if usable else None


# --- Rounds ------------------------------------------------------------------------------------------


def measure_file(report, d, load, label, path):
    size = path.stat().st_size
    contenders = {
        "weightd": lambda: load_weightd(d, path),
        "ceiling-existing": lambda: programs.numbers("ceiling", "existing", path)[0],
        "ceiling-fresh": lambda: programs.numbers("ceiling", "fresh", path)[0],
    }
    rounds, counts = turns.take(contenders, size)
    loads = [r["weightd"] for r in rounds]
    digests = {l["digest"] for l in loads}
    assert len(digests) == 1, f"the same file has the digests {digests}"
    facts = {"file": label, "bytes": size}
    elapsed = [l["elapsed_ns"] for l in loads]
    report.line(name="weightd", **facts, **rates(size, elapsed), **counts,
                read_gb_s=rates(size, [l["read_ns"] for l in loads])["gb_s"],
                elapsed_ms=figures.median(elapsed) / 1e6,
                **{f"{part}_ms": figures.median(l[f"{part}_ns"] for l in loads) / 1e6
                   for part in ("memory", "read")})
    for name in ("ceiling-existing", "ceiling-fresh"):
        report.line(name=name, **facts, **rates(size, [r[name] for r in rounds]), **counts)
    for way in ("torch", "safetensors", "numpy"):
        measure_baseline(report, load, way, path, facts)
    for part, bound in (("read", "ceiling-existing"), ("elapsed", "ceiling-fresh")):
        ratios = [r[bound] / r["weightd"][f"{part}_ns"] for r in rounds]
        report.line(name="ratio", file=label, of=part, over=bound, median=figures.median(ratios),
                    min=min(ratios), max=max(ratios))


def measure_gpu(report, d, gpu, label, path):
    size = path.stat().st_size
    rounds, counts = turns.take({"weightd-gpu": lambda: load_weightd(d, path, gpu)}, size)
    loads = [r["weightd-gpu"] for r in rounds]
    assert len({l["digest"] for l in loads}) == 1, f"the same file has the digests {[l['digest'] for l in loads]}"
    report.line(name="weightd-gpu", file=label, bytes=size, **rates(size, [l["elapsed_ns"] for l in loads]), **counts,
                read_gb_s=rates(size, [l["read_ns"] for l in loads])["gb_s"],
                **{f"{part}_ms": figures.median(l[f"{part}_ns"] for l in loads) / 1e6
                   for part in ("elapsed", "memory", "read")})


def measure_baseline(report, load, way, path, facts):
    samples, n_quiet = [], 0
    for _ in range(BASELINE_ROUNDS):
        machine.warm(facts["bytes"])
        with machine.Others() as others:
            sample = load(way, path)
        if isinstance(sample, str):
            report.line(name=way, file=facts["file"], skipped=sample)
            return
        samples.append(sample)
        n_quiet += others.share <= turns.QUIET
    report.line(name=way, **facts, **rates(facts["bytes"], samples), rounds=len(samples),
                quiet_rounds=n_quiet)


def rates(size, samples):
    return {"gb_s": figures.rate_gb_s(size, figures.median(samples)),
            "gb_s_min": figures.rate_gb_s(size, max(samples)),
            "gb_s_max": figures.rate_gb_s(size, min(samples))}

"""
Files in the page cache. Contenders take turns, and ratios are of one turn. Each takes fresh memory, but for ceiling-existing.

weightd            weightctl load: memory, reading, digests, publish; "read_gb_s" is reading and digests. Several files and
                   casts are rebuilt, one file is taken as it is
before             the commit before a load overlapped the making of pages and reading
ceiling-existing   a bare program: pread by all cores into huge pages that are there, XXH3-128 fused
ceiling-fresh      the same, and each huge page is made just before it is filled: the bound of a load
memcpy             the bytes alone, from memory to huge pages that are there, one thread
cp                 cp of the files to /dev/shm
torch, safetensors, numpy, fastsafetensors, runai-model-streamer
                   what programs in Python do (peers/loaders.py), into private memory, without a digest; by build/torch2
weightd-gpu        weightctl load to the first GPU, if there is one: "read" is reading, digests on both sides and copies

After each load `weightctl verify` compares the memory with its digest, all digests of a file are the same, whichever build
made them, and the peers' tensors are compared with the files.
"""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import weightd
from lib import earlier, features
from lib.daemon import Daemon

import figures
import load_cold
import programs
import turns
from report import say

BEFORE = "e58dee4a2933197568e6317b50a9f6a88360dd1a"
BEFORE_TREE = features.ROOT / "build/before-one-round-trip"  # the commit that bench attach is measured beside
PEERS = ("fastsafetensors==0.5.0", "runai-model-streamer==0.17.1", "humanize==4.17.0")
NAME = "bench/load"
WAYS = ("torch", "safetensors", "numpy", "fastsafetensors", "runai-model-streamer")
AT_LEAST = {("64 tensors", "before"): 1.4, ("20,000 tensors", "before"): 2}
CEILING_SHARE = 0.9


def load_weightd(d, paths, *options, program=None, name=NAME):
    """The object that weightctl prints, in ns, and CPU seconds; the memory is free again afterwards."""
    before = load_cold.server_cpu_s(d)
    out, _, cpu_s = load_cold.run([program or features.BUILD / "weightctl", "load", "--json", "--quiet", "--keep", 1, *options,
                                   name, *paths], d.env)
    done = json.loads(out) | {"cpu_s": cpu_s + load_cold.server_cpu_s(d) - before}
    d.ctl("verify", name)
    d.ctl("rm", name)
    while weightd.ping(socket=d.socket).n_bytes:
        pass  # the server frees what was removed as soon as it can
    return done


@contextlib.contextmanager
def loaders():
    """A running peers/loaders.py, as a function from (way, paths) to ns, or a reason why not."""
    python = features.BUILD / "torch2/bin/python"
    # Fresh pages for each load: as its threshold grows with what is freed, glibc would keep those of the load before.
    env = os.environ | {"PYTHONPATH": str(peers_folder()), "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    with programs.spawn([python if python.exists() else sys.executable, programs.PEERS / "loaders.py"], env=env, text=True,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        def load(way, paths):
            process.stdin.write(json.dumps([way, [*map(str, paths)]]) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield load


def peers_folder():
    """The folder of packages that torch 2 is not installed with; pip fills it at the first call."""
    folder = features.BUILD / "bench-loaders"
    if not folder.exists():
        say(f"pip install {' '.join(PEERS)} into {folder}")
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder,
                        "--disable-pip-version-check", "--retries", "1", *PEERS], stdout=sys.stderr)
    return folder


def copy_files(paths):
    """Nanoseconds of cp to memory."""
    to = pathlib.Path("/dev/shm", f"weightd-bench-{os.getpid()}")
    to.mkdir()
    try:
        start = time.monotonic_ns()
        subprocess.run(["cp", "--sparse=never", *paths, to], check=True)
        return time.monotonic_ns() - start
    finally:
        shutil.rmtree(to)


def first_gpu(d):
    """Its name on the wire; None, with a line about the reason."""
    gpus = [g for g in json.loads(d.ctl("devices", "--json").stdout)["devices"] if g["device"] != "host"]
    usable = [g["device"] for g in gpus if not g["why"]]
    if not usable:
        say(f"nothing is loaded to a GPU: {gpus[0]['why'] if gpus else 'there is none'}")
    return usable[0] if usable else None


class Rounds:
    """Both builds and the process of the peers, for the rounds of several files."""

    def __init__(self, report):
        self.report = report

    def __enter__(self):
        say(f"the commit before loads overlapped is built in {BEFORE_TREE}")
        earlier.build("weightd", "weightctl", "libweightd.so", tree=BEFORE_TREE, commit=BEFORE)
        with contextlib.ExitStack() as stack:
            self.load = stack.enter_context(loaders())
            self.d = stack.enter_context(contextlib.closing(Daemon("--log-level", "warning")))
            self.before = stack.enter_context(contextlib.closing(
                Daemon("--log-level", "warning", program=BEFORE_TREE / "build/weightd")))
            self.gpu = first_gpu(self.d)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *exception):
        return self.stack.__exit__(*exception)

    def measure(self, label, paths, cast=None):
        """Rows of all contenders, and the bounds."""
        size = sum(path.stat().st_size for path in paths)
        facts = {"file": f"warm, {label}", "bytes": size}
        contenders = self.contenders(paths, cast)
        for name in [name for name in contenders if name in WAYS or name == "safetensors-bf16"]:
            reason = contenders[name]()
            if isinstance(reason, str):
                self.report.line(name=name, **facts, skipped=reason)
                del contenders[name]
        rounds, counts = turns.take(contenders, size)
        self.check_digests(rounds, cast)
        for name in contenders:
            self.report.line(name=name, **facts, **rates(size, [elapsed_ns(r[name]) for r in rounds]), **parts(size, rounds, name),
                             **counts)
        self.judge(label, facts, rounds, contenders, cast)
        if self.gpu and not cast:
            self.measure_gpu(label, paths, size)

    def contenders(self, paths, cast):
        options = ("--dtype", cast) if cast else ()
        found = {"weightd": lambda: load_weightd(self.d, paths, *options)}
        if not cast:
            found["before"] = lambda: load_weightd(self.before, paths, program=BEFORE_TREE / "build/weightctl")
        found |= {
            "ceiling-existing": lambda: programs.numbers("ceiling", "existing", *paths)[0],
            "ceiling-fresh": lambda: programs.numbers("ceiling", "fresh", *paths)[0],
            "memcpy": lambda: programs.numbers("ceiling", "memcpy", *paths)[0],
            "cp": lambda: copy_files(paths),
        }
        return found | {way: lambda way=way: self.load(way, paths) for way in ([f"safetensors-{cast}"] if cast else WAYS)}

    def check_digests(self, rounds, cast):
        digests = {r[name]["digest"] for r in rounds for name in ("weightd", "before") if name in r}
        assert len(digests) == 1, f"the same files have the digests {digests}"

    def judge(self, label, facts, rounds, contenders, cast):
        """Ahead of the fastest peer, and the targets of the files that become versions as they are."""
        others = {name: [elapsed_ns(r[name]) / elapsed_ns(r["weightd"]) for r in rounds] for name in contenders if name != "weightd"}
        for name, ratios in others.items():
            self.report.line(name="ratio", file=facts["file"], of="weightd", over=name, median=figures.median(ratios),
                             min=min(ratios), max=max(ratios))
            if (label, name) in AT_LEAST:
                self.report.bound(facts["file"], f"over {name}", figures.median(ratios), at_least=AT_LEAST[label, name])
            if name == "ceiling-fresh" and not cast:
                self.report.bound(facts["file"], f"over {name}", figures.median(ratios), at_least=CEILING_SHARE)
        peers = {name: figures.median(ratios) for name, ratios in others.items() if name in (*WAYS, "cp", f"safetensors-{cast}")}
        fastest = min(peers, key=peers.get)
        self.report.bound(facts["file"], f"ahead of {fastest}, the fastest peer", peers[fastest], at_least=1)

    def measure_gpu(self, label, paths, size):
        rounds, counts = turns.take({"weightd-gpu": lambda: load_weightd(self.d, paths, "--device", self.gpu)}, size)
        loads = [r["weightd-gpu"] for r in rounds]
        assert len({l["digest"] for l in loads}) == 1, f"the same file has the digests {[l['digest'] for l in loads]}"
        self.report.line(name="weightd-gpu", file=label, bytes=size, **rates(size, [l["elapsed_ns"] for l in loads]),
                         **parts(size, rounds, "weightd-gpu"), **counts)


def elapsed_ns(sample):
    return sample["elapsed_ns"] if isinstance(sample, dict) else sample


def parts(size, rounds, name):
    """More of a load of weightd."""
    loads = [r[name] for r in rounds if isinstance(r[name], dict)]
    if not loads:
        return {}
    return {"read_gb_s": figures.rate_gb_s(size, figures.median(l["read_ns"] for l in loads)),
            "cpu_s_per_gib": load_cold.per_gib([l["cpu_s"] for l in loads], size),
            **{f"{part}_ms": figures.median(l[f"{part}_ns"] for l in loads) / 1e6 for part in ("elapsed", "memory", "read")}}


def rates(size, samples):
    return {"gb_s": figures.rate_gb_s(size, figures.median(samples)),
            "gb_s_min": figures.rate_gb_s(size, max(samples)),
            "gb_s_max": figures.rate_gb_s(size, min(samples))}

"""File: versions that are files, beside regular files and beside the release before them.

exec        what weightctl exec adds to a program: see exec_added.py
save        weightctl save, beside cp and a sync of its copy: both end with the bytes on the disk
attach      libweightd from C, as bench "attach" has it: connect, attach, find the last tensor and load its first byte
swap        weightd_buffer_swap() in a reader, as bench "flip" has it
            "release": "this", whose versions are files, and "earlier", built from its commit, in turns;
            "over_earlier" is the ratio of the lower quartiles of their turns' p50s: a process that wakes
            another one has a fast and a slow mode (70 and 150 us), which it keeps for a turn
load        weightctl load of one file, which becomes the version as it is, as bench "load" has it, beside its ceilings
"""
import contextlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from lib import earlier, features
from lib.daemon import Daemon

import bench_load
import exec_added
import figures
import load_warm
import machine
import programs
from report import say

TURNS, COPIES = 12, 7
ATTACHES, COUNTS = 300, (1, 1_000, 100_000)
SWAPS = ((1 << 20, 100), (256 << 20, 8))  # bytes, rounds of a turn
NAME = "bench/file"
SAVE_SHARE, SLOWER = 0.9, 1.05


def measure(report):
    size = machine.affordable(machine.GIB, copies=6)
    # On the disk of the build tree: /tmp may be memory.
    with tempfile.TemporaryDirectory(prefix=".bench-file-", dir=features.BUILD) as folder:
        path = bench_load.make_file(folder, 64, size)
        with contextlib.closing(Daemon("--log-level", "warning")) as d:
            d.ctl("load", "--quiet", NAME, path)
            exec_added.measure(report, d.env, NAME)
            measure_save(report, d, path, pathlib.Path(folder))
            d.ctl("rm", NAME)
        with load_warm.Rounds(report) as rounds:
            rounds.measure("64 tensors", [path])
    with releases() as both:
        for count in COUNTS:
            measure_attach(report, both, count)
        for n_bytes, rounds in SWAPS:
            measure_swap(report, both, n_bytes, rounds)


# --- Beside regular files ----------------------------------------------------------------------------


def copy(path, to):
    """Nanoseconds of cp and sync."""
    started = time.perf_counter_ns()
    subprocess.run(["cp", path, to], check=True)
    subprocess.run(["sync", to, to.parent], check=True)
    return time.perf_counter_ns() - started


def save(d, to):
    started = time.perf_counter_ns()
    d.ctl("save", "--quiet", NAME, to)
    return time.perf_counter_ns() - started


def measure_save(report, d, path, folder):
    n_bytes, took, ratios = path.stat().st_size, {"save": [], "cp": []}, []
    with machine.Others() as others:
        for turn in range(COPIES):
            for name in sorted(took, reverse=turn % 2):
                if name == "cp":
                    took[name].append(copy(path, folder / "copy"))
                    (folder / "copy").unlink()
                else:
                    took[name].append(save(d, folder / "saved"))
                    shutil.rmtree(folder / "saved")
            ratios.append(took["cp"][-1] / took["save"][-1])
    for name, samples in took.items():
        report.line(name=name, bytes=n_bytes, **load_warm.rates(n_bytes, samples), rounds=COPIES, other_cpu=others.share)
    report.bound("save", "over_cp", figures.median(ratios), at_least=SAVE_SHARE)


# --- Beside the earlier release ----------------------------------------------------------------------


class Release:
    """
    A weightd of one release, its library, and the benches that are built with it.

    env     leads programs to it
    """

    def __init__(self, name, build, python, stack):
        self.name, self.build, self.python = name, build, python
        self.daemon = stack.enter_context(contextlib.closing(Daemon("--log-level", "warning", program=build / "weightd")))
        self.env = self.daemon.env | {"WEIGHTD_LIBRARY": str(build / "libweightd.so"), "PYTHONPATH": str(python)}

    def publish(self, size, count):
        """Its last tensor's name, by a process with its library."""
        code = ("import sys; sys.path[:0] = sys.argv[1:3]; import types, buffers; "
                "d = types.SimpleNamespace(socket=None); print(buffers.publish(d, sys.argv[3], *map(int, sys.argv[4:]))[1])")
        done = subprocess.run([sys.executable, "-c", code, self.python, pathlib.Path(__file__).parent, NAME, str(size), str(count)],
                              env=self.env, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip()

    def remove(self):
        subprocess.run([self.build / "weightctl", "rm", NAME], env=self.env, check=True, stdout=subprocess.DEVNULL)

    def bench(self, name, *args):
        return programs.run([self.build / "bench" / name, *args], self.env)


@contextlib.contextmanager
def releases():
    """(this, the earlier one), both serving."""
    say(f"the earlier release is built in {earlier.TREE}")
    earlier.build("weightd", "weightctl", "libweightd.so", "bench/attach", "bench/flip")
    with contextlib.ExitStack() as stack:
        yield (Release("this", features.BUILD, features.ROOT / "libclient/python", stack),
               Release("earlier", earlier.TREE / "build", earlier.TREE / "libclient/python", stack))


def in_turns(both, sample):
    """The medians of each turn's samples, by release; the one that begins changes."""
    p50s = {release.name: [] for release in both}
    with machine.Others() as others:
        for turn in range(TURNS):
            for release in both[::-1] if turn % 2 else both:
                p50s[release.name].append(figures.median(sample(release)))
    return p50s, others.share


def compare(report, what, facts, p50s, other_cpu):
    quartiles = {name: figures.percentile(samples, 25) for name, samples in p50s.items()}
    for name, samples in p50s.items():
        report.line(name=what, release=name, **facts, p50_us=figures.median(samples) / 1e3, quartile_us=quartiles[name] / 1e3,
                    min_us=min(samples) / 1e3, turns=len(samples), other_cpu=other_cpu)
    ratio = quartiles["this"] / quartiles["earlier"]
    report.bound(f"{what} {' '.join(f'{v:,} {k}' for k, v in facts.items())}", "over_earlier", ratio, at_most=SLOWER)


def measure_attach(report, both, count):
    size = machine.affordable(256 * machine.MIB, copies=4)
    last = {release.name: release.publish(size, count) for release in both}
    p50s, other_cpu = in_turns(
        both, lambda release: [sum(row[:3]) for row in release.bench("attach", NAME, last[release.name], ATTACHES)])
    compare(report, "attach", {"tensors": count}, p50s, other_cpu)
    for release in both:
        release.remove()


def measure_swap(report, both, n_bytes, rounds):
    p50s, other_cpu = in_turns(
        both, lambda release: [row[2] for row in release.bench("flip", NAME, n_bytes, rounds, 1, "futex", "swap")])
    compare(report, "swap", {"bytes": n_bytes}, p50s, other_cpu)

"""Jobs: runs of pytest on some files, in processes of their own."""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from runner import outcomes

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRESS_S = 15
PATIENCE_S = 4000  # a test has its own, of minutes; those in a guest an hour

# A file belongs to the first lane that matches.
LANES = {
    "unit": ["tests/unit/*"],
    "guest": ["tests/bpf/test_guest.py"],
    "bpf": ["tests/bpf/*"],
    "engines": ["tests/integration/engines/*"],
    "trouble": [f"tests/integration/sync/test_{name}.py" for name in ("disk", "faults", "hostile", "reshard*", "slow")],
    "sync": ["tests/integration/sync/*", "tests/integration/weightctl/test_sync.py", "tests/integration/server/test_descriptors.py"],
    "cuda": ["tests/integration/cuda/*"],
    # Files of a job share a process that has imported torch.
    "train": ["tests/integration/train/*", "tests/integration/train/nodes/*"],
    "integration": ["tests/integration/*/*"],
    "lint": ["tests/lint/*"],
    "runner": ["tests/runner/*"],
    "model": ["tests/model/*"],
    "systemd": ["tests/systemd/*"],
    "soak": ["tests/soak/*"],
    "bare": ["tests/bare/*"],
    "wheel": ["tests/wheel/*"],  # by make check-wheel
}
# Files of each of these run one at a time: boots of systemd and whole soaks need both cores, and a program of BPF sees the
# sockets of all other tests.
SERIAL = {"bpf", "systemd", "soak", "bare", "probes", "alone"}
# Lanes whose processes load no library that probes look at.
UNSEEN = {"model", "lint"}


def lane_of(path):
    return next((lane for lane, patterns in LANES.items() if any(pathlib.PurePath(path).match(p) for p in patterns)), "others")


def environment(tree, **more):
    """Without bytecode, each process would compile the tests anew, and their assertions: 15 s for all."""
    env = os.environ | {"WEIGHTD_BUILD": str(ROOT / tree)} | more
    return {k: v for k, v in env.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONDONTWRITEBYTECODE")}


def command(tree, *words):
    """Tests under ThreadSanitizer need addresses that are not random."""
    return [*(["setarch", "-R"] if tree == "build-thread" else []), sys.executable, "-m", "pytest", *map(str, words)]


def collect(tree, paths, base="tests"):
    """{path: marks of each test}; a file that cannot be collected has None. `base` has the paths in it."""
    begin_s = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as file:
        pytest = subprocess.Popen(command(tree, "--collect-only", "-qq", *paths), cwd=ROOT, env=environment(tree, WEIGHTD_MARKS=file.name),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        printed = None
        while printed is None:
            try:
                printed, _ = pytest.communicate(timeout=PROGRESS_S)
            except subprocess.TimeoutExpired:
                print(f"lanes: {time.monotonic() - begin_s:.0f} s, collecting the tests", flush=True)
        found = {f"{base}/{path}": marks for path, marks in json.loads(file.read() or "{}").items()}
    for path in re.findall(r"^ERROR (\S+?\.(?:py|c))\b", printed, re.M):  # relative to where it runs
        found[os.path.normpath(ROOT / path).removeprefix(f"{ROOT}/")] = None
    if pytest.returncode not in (0, 5) and not found:
        sys.exit(f"pytest cannot collect {' '.join(map(str, paths))}:\n{printed}")
    return found


def twice_quoted(word):
    """For a shell, make, and the shell of a recipe. That one leaves brackets alone: no file has a test's name."""
    inner = word if re.fullmatch(r"[\w@%+=:,./\[\]-]+", word, re.ASCII) else shlex.quote(word).replace("$", "$$")
    return f'"{inner}"' if "'" in inner and not re.search(r'["$`\\!]', inner) else shlex.quote(inner)


def again(tree, node, env={}):
    """The command that runs one test again."""
    san = tree.removeprefix("build").removeprefix("-")
    words = " ".join([*(f"{k}={v}" for k, v in env.items()), "make", *([f"SAN={san}"] if san else [])])
    return f"{words} pytest ARGS={twice_quoted(node)}"


class Build:
    """A command that builds the sanitized trees, beside the tests of the plain one. It has the processors when those wait."""

    def __init__(self, words, log_path):
        self.log_path = log_path
        with open(log_path, "w") as log:
            self.process = subprocess.Popen(["nice", "-n", "5", "sh", "-c", words], cwd=ROOT, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=subprocess.STDOUT, env=environment("build"), start_new_session=True)

    def is_ready(self, tree):
        return tree == "build" or self.process.poll() == 0

    def has_failed(self):
        return self.process.poll() not in (None, 0)

    def tail(self):
        return self.log_path.read_text(errors="replace")[-2000:]

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)  # make then removes what it left half done
            self.process.wait()


class Job:
    def __init__(self, tree, paths, marks="", seconds=0.0, n_tests=0, env={}, lane=None, base="tests"):
        self.tree, self.paths, self.marks, self.seconds, self.n_tests = tree, paths, marks, seconds, n_tests
        self.env, self.base = env, base
        self.lane = lane or lane_of(paths[0])
        self.process, self.returncode = None, None

    def __str__(self):
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.paths[0].removeprefix('tests/')}{more}{self.tree.removeprefix('build').replace('-', ' in ')}"

    def start(self, stem, *options):
        """`stem` is a path: the job writes beside it."""
        self.outcomes_path, self.log_path = stem.with_suffix(".outcomes"), stem.with_suffix(".log")
        self.outcomes_path.unlink(missing_ok=True)
        words = [*(["-m", self.marks] if self.marks else []), "--continue-on-collection-errors", *options, *self.paths]
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                command(self.tree, *words), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=environment(self.tree, WEIGHTD_OUTCOMES=str(self.outcomes_path), **self.env), start_new_session=True)

    def wait(self):
        try:
            self.returncode = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self.returncode = self.process.wait()

    def kill(self, sig=signal.SIGKILL):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, sig)

    def outcomes(self):
        """{node id: Outcome}. A test that a job left unfinished has failed, and so has a job that ended without any."""
        found = {f"{self.base}/{node}" if node else self.paths[0]: outcome
                 for node, outcome in outcomes.read(self.outcomes_path).items()}
        if self.returncode is None:
            return found
        for outcome in found.values():
            if not outcome.is_finished:
                outcome.add({"outcome": "failed", "reason": f"{outcome.reason}\npytest ended during this test with "
                             f"{self.returncode}:\n{self.tail()}"})
        if self.returncode not in (0, 5) and not any(o.result == "failed" for o in found.values()):
            for path in self.paths:
                found[path] = outcomes.Outcome()
                found[path].add({"outcome": "failed", "reason": f"pytest ended with {self.returncode}:\n{self.tail()}"})
        return found

    def tail(self):
        return "".join(open(self.log_path, errors="replace").readlines()[-40:])

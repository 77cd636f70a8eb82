"""
The release before versions were files, built from its commit: for what upgrades from it and goes back to it, and to
measure beside. Its tree stays in build/earlier.

    program("weightd")      path of a program
    with Client(daemon) as client:      a process with the library of that release
        client.attach("m")
        assert client.read("m") == b"..."
"""
import fcntl
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from lib import features

COMMIT = "bb48f450d461b274d20291ade92bb858fa16807a"
TREE = features.ROOT / "build/earlier"
BUILD = TREE / "build-tests"  # not optimized, for which gcc takes half as long; benches have their own in build
PATIENCE_S = 60
OUTER = "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SAN", "B", "CFLAGS", "LDFLAGS"  # this may run below another make


@functools.cache
def require():
    """Skips where this is no clone with that commit. Builds it, if no test did before."""
    features.require("library")
    known = bool(shutil.which("git")) and subprocess.run(
        ["git", "-C", features.ROOT, "cat-file", "-e", f"{COMMIT}^{{commit}}"], stderr=subprocess.DEVNULL).returncode == 0
    features.require("git-history", f"no git, or no commit {COMMIT[:7]} to build the earlier release from (git fetch --unshallow)",
                     available=TREE.exists() or known)
    build("weightd", "weightctl", "libweightd.so", folder=BUILD.name)


def build(*names, tree=TREE, commit=COMMIT, folder="build"):
    """Makes what is missing of these, in one process at a time."""
    tree.parent.mkdir(exist_ok=True)
    with open(tree.parent / ".earlier.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            _unpack(tree, commit)
        env = {k: v for k, v in os.environ.items() if k not in OUTER}
        done = subprocess.run(["make", "-j2", f"B={folder}", *(["CFLAGS=-O0", "WERROR="] if folder == BUILD.name else []),
                               *(f"{folder}/{name}" for name in names)], cwd=tree, env=env,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def _unpack(tree, commit):
    with tempfile.TemporaryDirectory(prefix=".earlier-", dir=tree.parent) as folder:
        archive = subprocess.run(["git", "-C", features.ROOT, "archive", commit], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
        os.rename(folder, tree)
        os.mkdir(folder)  # as the block removes it


def program(name):
    return BUILD / name


def ctl(daemon, *args, check=True):
    """Runs its weightctl to the end."""
    done = subprocess.run([program("weightctl"), *map(str, args)], env=daemon.env, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=PATIENCE_S)
    assert not check or done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
    return done


class Refused(Exception):
    """The sentence of the library."""


class Client:
    """A process with its library and its Python package, which maps what it has attached until it ends."""

    def __init__(self, daemon):
        package = TREE / "libclient/python"
        self.process = subprocess.Popen(
            [sys.executable, "-c", pathlib.Path(__file__).with_name("earlier_client.py").read_text()],
            env=daemon.env | {"PYTHONPATH": str(package), "WEIGHTD_LIBRARY": str(program("libweightd.so"))},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        status = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        assert status == 0, f"the client of the earlier release ended with {status}"

    def __getattr__(self, do):
        def ask(*args):
            self.process.stdin.write(json.dumps([do, *args]) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            if "error" in answer:
                raise Refused(answer["error"])
            return answer["result"]
        return ask

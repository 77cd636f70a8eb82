"""Rules of the house that a search can check."""
import concurrent.futures
import hashlib
import os
import subprocess

from lib import features
from lib.features import ROOT
from lint import manual, sources

TOP = {"Makefile", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE",
       "findings", "server", "libclient", "ipc", "bpf", "tests", "packaging",
       "build", "build-address", "build-thread", "build-coverage", "build-faults", "build-address-faults",
       "build-coverage-faults", "build-gpu"}


def test_top_level_holds_nothing_new():
    assert [n for n in sorted(os.listdir(ROOT)) if n not in TOP and not n.startswith(".")] == []


def test_c_files_are_formatted():
    """A file that was found to be formatted is asked about again when it, .clang-format or the program has changed."""
    features.require("clang-format")
    program, known = features.clang_format(), ROOT / "build/formatted"
    asked = sources.text(".clang-format") + subprocess.run([program, "--version"], text=True, stdout=subprocess.PIPE).stdout
    digests = {path: hashlib.sha256((asked + sources.text(path)).encode()).hexdigest() for path in sources.files()}
    before = set(known.read_text().split() if known.exists() else [])
    paths = [str(path) for path, digest in digests.items() if digest not in before]

    def check(some):
        if not some:
            return ""
        done = subprocess.run([program, "--dry-run", "--Werror", *some], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        return done.stdout or (f"{program} exited with {done.returncode}\n" if done.returncode else "")

    n = os.cpu_count()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        wrong = "".join(pool.map(check, [paths[i::n] for i in range(n)]))
    assert not wrong, "make format would change this:\n" + wrong
    known.parent.mkdir(exist_ok=True)
    known.write_text("\n".join(digests.values()))


def test_manuals_are_wrapped():
    assert [p.name for p in manual.pages() if manual.formatted(p.read_text()) != p.read_text()] == [], "make format wraps them"


def test_literal_text_of_manuals_fits_a_screen():
    assert {p.name: lines for p in manual.pages() if (lines := manual.too_wide(p.read_text()))} == {}


def test_a_file_is_a_noun():
    bad = {"util", "utils", "common", "misc", "helper", "helpers"}
    assert [str(p) for p in sources.files() if p.stem in bad] == []


def test_nothing_waits_by_sleeping_or_runs_a_shell():
    calls = r"\b(system|popen|sleep|usleep|nanosleep|clock_nanosleep)[ \t]*\("
    assert sources.matches(calls, sources.files("server", "libclient", "ipc", "bpf")) == []


def test_library_never_prints_exits_or_handles_signals_unasked():
    paths = [p for p in sources.files("libclient", "ipc", "bpf/nccl")
             if "weightctl" not in p.parts and p.name != "guard.c"]  # weightd_guard() asks for that
    calls = r"\b(v?f?printf|puts|perror|_?exit|abort|signal|sigaction|setlocale)[ \t]*\("
    assert sources.matches(calls, paths) == []

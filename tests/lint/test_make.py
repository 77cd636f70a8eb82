"""Targets of make: their prerequisites, and their lines in make help."""
import re
import subprocess

import pytest
from lib import features
from lib.features import ROOT
from lint import sources
from lint.test_includes import INCLUDE, resolve


def own_headers(path):
    """Those that a file includes, and those that these include."""
    found, ahead = set(), [path]
    while ahead:
        path = ahead.pop()
        for include in INCLUDE.findall(sources.code(path, keep_strings=True)):
            header = resolve(path, *include)
            if header and header not in found:
                found.add(header)
                ahead.append(ROOT.joinpath(header).relative_to(ROOT))
    return found


def programs():
    features.require("trace")
    return [path for path in sources.files("bpf") if path.name.endswith(".bpf.c")]


def test_each_bpf_object_depends_on_each_header_it_includes():
    wrong = {}
    for path in programs():
        depfile = ROOT / "build" / path.with_suffix(".d")
        if missing := own_headers(path) - set(depfile.read_text().replace("\\", " ").split()):
            wrong[str(path)] = missing
    assert wrong == {}


def test_a_changed_header_rebuilds_object_and_skeleton():
    header = "bpf/base/kernel.bpf.h"
    skeletons = {f"build/{path}".removesuffix(".bpf.c") + ".skel.h": header in own_headers(path) for path in programs()}
    lines = subprocess.run(["make", "-n", "V=1", "-W", header, *skeletons], cwd=ROOT, check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    anew = set(re.findall(r">(build/bpf/\S+\.skel\.h)", lines))
    assert anew == {path for path, is_included in skeletons.items() if is_included}, lines
    assert set(re.findall(r"-o (build/bpf/\S+)\.bpf\.o", lines)) == {path.removesuffix(".skel.h") for path in anew}


# Parts of other targets.
PARTS = {"all", "attackers", "benches", "demos", "deps", "fuzz-programs", "fuzz-sources", "gpu-programs", "help", "man", "model", "programs", "refs", "required",
         "soaks", "threaded", "to-check", "to-check-san", "unit", "wheel-programs"}


def test_help_has_each_target_for_a_person():
    phony = set(" ".join(re.findall(r"^\.PHONY: (.*)", sources.text("Makefile"), re.M)).split())
    text = subprocess.run(["make", "--no-print-directory", "help"], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout
    shown = set(re.findall(r"\bmake ([a-z0-9-]+)", text))
    assert {target for target in phony if target[0] != "$" and ":" not in target and "=" not in target} - PARTS - shown == set()
    assert shown - phony == set()


@pytest.mark.parametrize("arguments, builds", [
    ("-x tests/lint", False), ("tests/lint/test_make.py::test_x tests/runner", False), ("'/tmp/test_x.py::test_y[a b]'", False),
    ("tests/unit", True), ("-k seal", True), ("'tests/integration/test_x.py::test_y[a b]' tests/lint", True),
])
def test_pytest_builds_what_tests_need(arguments, builds):
    lines = subprocess.run(["make", "-n", "-B", "pytest", f"ARGS={arguments}"], cwd=ROOT, check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    assert ("-o build/weightd " in lines) == builds
    assert lines.rstrip().endswith(f"-m pytest {arguments}")

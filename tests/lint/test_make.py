"""What make builds anew when a file changes."""
import re
import subprocess

import features
import sources
from features import ROOT
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
    header = "bpf/probes/kernel.h"
    skeletons = {f"build/{path.parent}/{path.parent.name}.skel.h": header in own_headers(path) for path in programs()}
    lines = subprocess.run(["make", "-n", "V=1", "-W", header, *skeletons], cwd=ROOT, check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    anew = set(re.findall(r">(build/bpf/\S+\.skel\.h)", lines))
    assert anew == {path for path, is_included in skeletons.items() if is_included}, lines
    assert set(re.findall(r"-o (build/bpf/\S+)\.bpf\.o", lines)) == {path.removesuffix(".skel.h") for path in anew}

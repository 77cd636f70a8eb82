"""The first run on a machine with a GPU, rehearsed: Debian of another release, and nothing but python3 in it (make gpu-rehearsal)."""
import re
import subprocess
import time

import pytest
from lib import features, rehearsal
from lib import bare_debian as bare
from lib.gpus import Gpus

pytestmark = pytest.mark.timeout(1500)  # debootstrap takes minutes, once
RELEASE = "trixie"
RUN_S = 180
NOT_HERE = {"pair", "trace", "profiler", "sanitizer"}  # two GPUs, the first PID namespace, rights of BPF, CUDA's tools


def test_the_pack_runs_on_another_distribution(capsys):
    for feature in "bare", "debootstrap", "fakes":
        features.require(feature)
    pack = features.ROOT / "build-gpu"
    features.require("gpu-pack", "no pack (make gpu-pack)", pack.exists())
    try:
        tree = bare.tree(RELEASE, ("python3",))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
        features.require("debootstrap", f"debootstrap makes no {RELEASE} here: {e}", available=False)
    gpus = Gpus(memory="1G")
    try:
        with bare.Machine(tree) as machine:
            rehearsal.bring(machine, pack)
            began = time.monotonic()
            said, lines = rehearsal.rehearse(machine, gpus, RUN_S)
            took_s = time.monotonic() - began
    finally:
        gpus.close()
    with capsys.disabled():
        print(f"\ntests/gpu/run on {RELEASE}: {took_s:.0f} s, {len(lines)} lines")
        for line in lines:
            if line.get("why"):
                print(f"  {line['section']}: {line['name']}: {line['why']}")
    sections = re.findall(r"^gpu: (\w+): took", said, re.M)
    assert {line["section"] for line in lines} == set(sections) and len(sections) == 18, said
    assert [line for line in lines if line["ok"] is False] == [], said
    assert set(sections) - NOT_HERE <= {line["section"] for line in lines if line["ok"]}, said
    assert "this machine lacks libbpf.so.1, " in said, said

"""Tests of what this machine's kernel may refuse, or have where others do not, in a guest that has another one."""
import json
import os
import shlex
import sys

import features
import guest
import pytest
from features import BUILD, ROOT

pytestmark = pytest.mark.timeout(900)  # it is emulated

ENV = {"PYTHONDONTWRITEBYTECODE": 1, "WEIGHTD_BUILD": BUILD, "WEIGHTD_LIBRARY": features.LIBRARY,
       "WEIGHTD_REQUIRE": "bpf,dma-buf,fentry,paranoid,root,trace"}
DOCTOR = f"""
cd $TMPDIR
export WEIGHTD_TRACE_SOCKET=$TMPDIR/trace.sock
doctor() {{
	mkfifo greeting
	{BUILD}/weightd-trace $1 >greeting &
	read -r said <greeting
	{BUILD}/weightctl trace doctor $2
	kill $!
	wait $!
	rm greeting
}}
"""
CALLS, PROBES = {"tp_btf/sock_send_length", "tp_btf/sock_recv_length"}, {"uprobe_multi", "iter/task_vma", "perf/mmap"}
CASES = [f"{ROOT}/tests/{name}" for name in (
    "unit/test_arrivals.c", "bpf/test_passing.py", "bpf/test_life.py::test_each_capability_brings_what_it_should[none]",
    "bpf/test_life.py::test_each_capability_brings_what_it_should[bpf perfmon]",
    "bpf/test_life.py::test_a_kernel_that_does_not_describe_itself_is_done_without")]


@pytest.fixture(autouse=True)
def needs():
    features.require("guest")
    features.require("trace")


def run(script, **kw):
    status, wrote = guest.run(["sh", "-c", script], ENV, **kw)
    return status, wrote.replace("\r", "")


def test_a_guest_has_another_kernel_and_changes_nothing_here():
    """Nor has it what this one can load: here what answers of sockets, without which nothing is counted but by BPF."""
    name = f"guest-{os.getpid()}"
    status, wrote = run(f"uname -r; cd {ROOT}; ls; echo written >{name}; cat {name}\n{DOCTOR}doctor --meter=diag; exit 7")
    assert status == 7 and "README.md" in wrote and "written" in wrote and os.uname().release not in wrote.split(), wrote
    assert not (ROOT / name).exists()
    why = "the kernel answers of no TCP socket by sock_diag, for which it may have a module (modprobe tcp_diag): " \
        "No such file or directory\n"
    assert f"\nweightd-trace: {why}" in wrote and f"\nCounts nothing: {why}No BPF: " in wrote and "Counts by" not in wrote, wrote


def test_what_another_kernel_has_is_there_and_what_it_lacks_is_told():
    tests = shlex.join([sys.executable, "-m", "pytest", "-q", "--color=no", *CASES])
    status, wrote = run(f"{DOCTOR}uname -r; doctor '' --json\n{tests}", modules_too=["tcp_diag", "vgem"])
    assert status == 0, wrote
    release, told = wrote[:wrote.rindex("\n}\n") + 2].partition("{")[::2]
    release = next(word for word in release.split() if word[0].isdigit())
    told = json.loads("{" + told)
    assert (told["meter"], told["why"], told["blind"]) == ("bpf", None, None), wrote
    lacks = [(CALLS, "6.3"), (PROBES, "6.6")] if release.startswith("6.1.") else []
    assert {hook["hook"]: hook["why"] for hook in told["hooks"] if hook["state"] == "off"} == {
        hook: f"it needs Linux {since}, and this is {release}" for hooks, since in lacks for hook in hooks}, wrote

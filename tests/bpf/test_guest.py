"""Tests of what this machine's kernel may refuse, or have where others do not, in guests that have others."""
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from integration.weightctl.test_weightctl import write_sparse
from lib import features, guest, kernel
from lib.features import BUILD, ROOT

WHOLE_S = 3600
pytestmark = [pytest.mark.timeout(WHOLE_S + 60),  # it is emulated
              pytest.mark.plain]  # a sanitized program takes a multiple of that

ENV = {"PYTHONDONTWRITEBYTECODE": 1, "WEIGHTD_BUILD": BUILD, "WEIGHTD_LIBRARY": features.LIBRARY,
       "WEIGHTD_REQUIRE": "bpf,dma-buf,fentry,paranoid,root,trace"}
# Its processor is ten times slower, and may get a small part of one of a busy machine.
TEST_S = 1200
PYTEST = sys.executable, "-m", "pytest", "-q", "--color=no", "-o", f"timeout={TEST_S}"
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
# Loads a model onto NUMA nodes, and writes how many KiB of shared memory both have before and after that.
POLICIES = "1", "0", "interleave"
LOADS = f"""
export WEIGHTD_SOCKET=$TMPDIR/weightd.sock
shared() {{ sed -n 's/^Node . Shmem: *\\([0-9]*\\) kB/\\1/p' /sys/devices/system/node/node[01]/meminfo; }}
{BUILD}/weightd &
{BUILD}/weightctl ping --wait
for nodes in {" ".join(POLICIES)}; do
	before=$(shared)
	{BUILD}/weightctl load -q --no-files --numa $nodes m $1/small.safetensors
	echo nodes: $nodes: $before $(shared)
	{BUILD}/weightctl rm m
done
{BUILD}/weightctl load -q --no-files --numa 1 m $1/large.safetensors
kill $!
wait $!
"""
SMALL, LARGE = 16 << 20, 1 << 30  # bytes that have room on a node, and that have not
CALLS, PROBES = {"tp_btf/sock_send_length", "tp_btf/sock_recv_length"}, {"uprobe_multi"}
# Tests of what kernels differ in: functions, capabilities, and the description of themselves.
PASSING = ["memory_that_is_handed_over_is_told_of", "each_who_got_it_is_told_and_from_whom", "one_message_has_many",
           "who_only_looks_has_got_it_too", "what_is_taken_out_of_a_process_is_told", "who_sent_in_vain_is_nobodys_giver",
           "memory_of_each_kind_is_called_by_it", "a_dma_buf_is_told", "two_capabilities_suffice",
           "a_kernel_without_such_a_function_is_done_without"]
CASES = [f"{ROOT}/tests/{name}" for name in (
    "unit/test_mmap_watch.c", *(f"bpf/test_passing.py::test_{name}" for name in PASSING),
    "bpf/test_life.py::test_each_capability_brings_what_it_should[none]",
    "bpf/test_life.py::test_each_capability_brings_what_it_should[bpf perfmon]",
    "bpf/test_life.py::test_a_kernel_that_does_not_describe_itself_is_done_without")]

# Features of a kernel that the tests require. The newer one may lack none.
KERNEL_FEATURES = "bpf", "calls", "cgroup2", "dma-buf", "fentry", "netns", "number", "probes", "root", "trace", "tun"
PROBES_FOR_CAPABILITIES = "echo 2 >/proc/sys/kernel/perf_event_paranoid"  # Debian's 3 wants CAP_SYS_ADMIN
MODULES = "tcp_diag", "vgem", "veth", "bridge", "sch_htb", "sch_ingress", "cls_bpf", "tun"
COUNTS = re.compile(r"^(\d+ (?:passed|failed|skipped|error).*? in [\d.]+s).*$", re.M)
FILES = {path.stem.removeprefix("test_"): path for path in sorted((ROOT / "tests/bpf").glob("test_*.py")) if path.stem != "test_guest"}
HOOKS = ["doctor::test_all_is_on_with_all_rights", "doctor::test_what_is_on_is_what_loads_a_trivial_program"]
# Numbers of sockets that a visit of all that is stored with sockets finds.
VISITS = ["equality::test_both_directions_at_once", "equality::test_what_is_on_its_way_is_submitted_and_not_consumed",
          "equality::test_a_socket_that_is_older_than_the_tracer_counts_from_then_on",
          "equality::test_a_socket_that_changes_its_row_takes_nothing_along", "foreign::test_ss_says_the_same"]
REFUSALS = [f"refused::test_{name}" for name in (
    "what_is_refused_costs_no_more_than_it_is_for[mark]", "what_is_refused_costs_no_more_than_it_is_for[want]",
    "processes_whose_older_sockets_cannot_be_seen_are_sampled")]
TESTED = {  # the tests that differ where the kernel of this machine refuses a kind of program
    "tp_btf": [*FILES], "files": [*FILES], "map": [*HOOKS, *REFUSALS, *VISITS], "fexit": [*HOOKS, "passing"],
    "calls": ["messages"], "uprobe_multi": ["log", "probes", "probes_files", "probes_nccl", "probes_verbs", "usdt"],
    "mappings": ["probes", "probes_files"],
}
# Tests that refuse the map iterator themselves run on this kernel, too, and those of PASSING in the older one. `make
# check-guest` has all of them in the newer.
LEFT_OUT = "-k", f"not mark-refused and not (test_passing and ({' or '.join(PASSING)}))"
PARTS = {  # parts of the whole, a guest for each
    "probes": ["doctor", "life", "passing", "probes", "probes_files", "probes_nccl", "probes_verbs"],
    "notes": ["nccl_plugin", "nccl_real", "stalls", "tell", "usdt"],
    "reports": ["explain", "log", "merge", "rdma", "record", "top"],
}
PARTS["tags"] = [name for name in FILES if not any(name in part for part in PARTS.values())]


@pytest.fixture(autouse=True)
def needs():
    features.require("guest")
    features.require("trace")


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory):
    """The folder of the compiled tests. A guest would compile them for a minute."""
    path = tmp_path_factory.mktemp("bytecode")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": str(path)}
    subprocess.run([sys.executable, "-m", "pytest", "-q", "--collect-only", *FILES.values(), *CASES], cwd=ROOT, env=env,
                   check=True, stdout=subprocess.DEVNULL)
    return path


def run(script, env=ENV, **kw):
    status, wrote = guest.run(["sh", "-c", script], env, **kw)
    return status, wrote.replace("\r", "")


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    """The name of a file that a guest writes, its exit status and its output: several tests share the boot."""
    features.require("guest")
    features.require("trace")
    folder = tmp_path_factory.mktemp("visit")
    write_sparse(folder / "small.safetensors", SMALL)
    write_sparse(folder / "large.safetensors", LARGE)
    (folder / "loads").write_text(LOADS)
    name = f"guest-{os.getpid()}"
    return name, *run(f"uname -r; cd {ROOT}; ls; echo written >{name}; cat {name}\n{DOCTOR}doctor --meter=diag; "
                      f"sh {folder}/loads {folder}; exit 7")


def test_a_guest_has_another_kernel_and_changes_nothing_here(visit):
    """Nor has it what this one can load: here what answers of sockets, without which nothing is counted but by BPF."""
    name, status, wrote = visit
    assert status == 7 and "README.md" in wrote and "written" in wrote and os.uname().release not in wrote.split(), wrote
    assert not (ROOT / name).exists()
    why = "the kernel shows no TCP socket by sock_diag, for which it may have a module (modprobe tcp_diag): " \
        "No such file or directory\n"
    assert f"\nweightd-trace: {why}" in wrote and f"\nCounts nothing: {why}No BPF: " in wrote and "Counts by" not in wrote, wrote


def test_memory_is_on_the_numa_nodes_that_a_load_names(visit):
    """A guest has two. weightd runs on the first, which alone has a processor."""
    wrote = visit[2]
    sizes = {nodes: [int(n) << 10 for n in numbers.split()] for nodes, numbers in re.findall(r"^nodes: (\S+): ([\d ]+)$", wrote, re.M)}
    grown = {nodes: [(after - before) / SMALL for before, after in zip(s[:2], s[2:])] for nodes, s in sizes.items()}
    expected = {"1": [0, 1], "0": [1, 0], "interleave": [0.5, 0.5]}
    assert grown == {nodes: pytest.approx(shares, abs=0.02) for nodes, shares in expected.items()}, wrote
    assert re.search(r"'m' on host needs 1\.1 GB, [\d.]+ MB more than is free on NUMA nodes 1; ", wrote), wrote


def test_what_another_kernel_has_is_there_and_what_it_lacks_is_told(bytecode):
    tests = shlex.join([*PYTEST, *CASES])
    env = ENV | {"PYTHONPYCACHEPREFIX": bytecode}
    status, wrote = run(f"{DOCTOR}uname -r; doctor '' --json\n{tests}", env, modules_too=["tcp_diag", "vgem"], timeout=WHOLE_S)
    assert status == 0, wrote
    release, told = wrote[:wrote.rindex("\n}\n") + 2].partition("{")[::2]
    release = next(word for word in release.split() if word[0].isdigit())
    told = json.loads("{" + told)
    assert (told["meter"], told["why"], told["blind"]) == ("bpf", None, None), wrote
    lacks = [(CALLS, "6.3"), (PROBES, "6.6")] if release.startswith("6.1.") else []
    assert {hook["hook"]: hook["why"] for hook in told["hooks"] if hook["state"] == "off"} == {
        hook: f"it needs Linux {since}, and this is {release}" for hooks, since in lacks for hook in hooks}, wrote


def run_in_newer(names, bytecode, *words):
    """These tests, of those that pytest chooses by these words, in a kernel that refuses nothing: the counts."""
    required = {*KERNEL_FEATURES, *filter(None, os.environ.get("WEIGHTD_REQUIRE", "").split(","))} - {"guest"}
    env = ENV | {"WEIGHTD_REQUIRE": ",".join(sorted(required)), "PYTHONPYCACHEPREFIX": bytecode}
    tests = shlex.join([*PYTEST, *words, *(f"{FILES[file]}{at}{test}" for file, at, test in (name.partition("::") for name in names))])
    status, wrote = run(f"{PROBES_FOR_CAPABILITIES}\n{tests}", env, modules_too=MODULES, timeout=WHOLE_S, kernel=guest.NEW)
    counts = COUNTS.findall(wrote)
    assert status == 0 and counts, wrote
    return counts[-1]


def test_what_this_kernel_refuses_is_tested_in_one_that_does_not(bytecode, record_property):
    """With what the kernel here loads, so that each test of tests/bpf runs somewhere."""
    refused = [kind for kind in TESTED if not kernel.loads(kind)]
    names = {name for kind in refused or ["fexit"] for name in TESTED[kind]}
    counts = run_in_newer(sorted(names), bytecode, *LEFT_OUT)
    record_property("guest", f"without {', '.join(refused) or 'nothing'}: {counts}")


@pytest.mark.parametrize("part", PARTS)
def test_all_tests_pass_in_a_kernel_that_refuses_nothing(part, bytecode, record_property):
    """Half an hour of a processor: by `make check-guest`."""
    features.require("guest-whole", "the whole of tests/bpf in a guest takes half an hour (make check-guest)",
                     bool(os.environ.get("WEIGHTD_GUEST_WHOLE")))
    record_property("guest", f"{part}: {run_in_newer(PARTS[part], bytecode)}")

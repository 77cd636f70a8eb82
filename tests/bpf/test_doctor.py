"""weightctl trace doctor: what works here, why something does not, and what is lost."""
import json
import subprocess
import time

import pytest
from lib import features, kernel, tracing
from lib.tracing import Tracer

pytestmark = pytest.mark.probes

BUILD = features.BUILD
NOBODY = 65534


def ctl(*args, env=None):
    return subprocess.run([BUILD / "weightctl", *args], capture_output=True, text=True, env=env)


@pytest.fixture
def powerless():
    """A tracer without any right."""
    features.require("trace")
    features.require("root")
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with Tracer(prefix=drop, uid=NOBODY, probes=True) as tracer:
        yield tracer


def test_all_is_on_with_all_rights(tracer):
    done = ctl("trace", "doctor", env=tracer.env)
    assert (done.returncode, done.stderr) == (0, "")
    off = tracing.refused()
    table, _, below = done.stdout.partition("\n\n")
    heading, *rows = [line.split()[:2] for line in table.splitlines()]
    assert (heading[1], len(rows), {hook for hook, state in rows if state == "off"}) == ("STATE", 12, off.keys())
    said = ("No RDMA ", *(f"{hook}: " for hook in off), "  lost: ")  # most machines have no RDMA
    lines = [line for line in below.splitlines() if not line.startswith(said)]
    counts, *files = lines  # others have libraries that are probed on this machine, too
    assert counts == "Counts by BPF: all sockets, every number exact."
    assert [line for line in files if not line.startswith(("Probed: /", "Not probed: ", "  why: "))] == []
    told = json.loads(ctl("trace", "doctor", "--json", "--trace-socket", tracer.socket).stdout)
    assert (told["meter"], told["why"], told["limits"], told["blind"], len(told["hooks"])) == ("bpf", None, None, None, 12)
    assert {hook["hook"]: hook["why"] for hook in told["hooks"] if hook["state"] == "off"} == off


HOOKS = {"tp_btf/inet_sock_set_state": "tp_btf", "iter/bpf_sk_storage_map": "map", "iter/tcp": "tcp", "iter/task_file": "files",
         "tp_btf/sock_send_length": "calls", "uprobe_multi": "uprobe_multi", "iter/task_vma": "mappings"}


def test_what_is_on_is_what_loads_a_trivial_program(tracer):
    told = {row["hook"]: row["on"] for row in tracer.client().ask("doctor") if row["kind"] == "hook"}
    assert {hook: told[hook] for hook in HOOKS} == {hook: kernel.loads(kind) for hook, kind in HOOKS.items()}


def test_who_asks_again_and_again_holds_up_nobody():
    features.require("bpf")

    def is_quick():
        with Tracer(probes=True) as tracer:
            client = tracer.client()
            began = time.monotonic()
            first = client.ask("doctor")
            took = time.monotonic() - began
            for _ in range(20):
                again = client.ask("doctor")
            assert [row["on"] for row in again if row["kind"] == "hook"] == [row["on"] for row in first if row["kind"] == "hook"]
            return time.monotonic() - began < 10 * took

    assert any(is_quick() for _ in range(5)), "a busy machine may hold up anybody once"


def test_what_is_off_is_explained(powerless):
    why = "weightd-trace lacks CAP_BPF and CAP_PERFMON, which its unit and root have"
    assert why in powerless.log
    done = ctl("trace", "doctor", env=powerless.env)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.partition("\n\n")[0].splitlines())) <= 80
    assert f"\n\ntp_btf/inet_sock_set_state: {why}\n  lost: all exact counts" in done.stdout
    assert "\niter/task_file: likewise\n  lost: sockets that a process had before it was watched\n" in done.stdout
    assert done.stdout.endswith(f"sampled where they end.\nNo BPF: {why}\n")
    told = json.loads(ctl("trace", "doctor", "--json", env=powerless.env).stdout)
    assert (told["meter"], told["why"], told["blind"]) == ("diag", why, None)
    assert {(hook["state"], hook["why"]) for hook in told["hooks"]} == {("off", why)}
    assert all(hook["lost"] for hook in told["hooks"])


def test_no_tracer_is_told_with_the_way_out(tmp_path):
    done = ctl("trace", "doctor", "--trace-socket", str(tmp_path / "none"))
    assert done.returncode == 1
    assert done.stderr == f"weightctl: no weightd-trace answers at {tmp_path}/none (No such file or directory); start it " \
        "with 'systemctl start weightd-trace' or 'weightd-trace', or name its socket with --trace-socket or " \
        "WEIGHTD_TRACE_SOCKET\n"

"""weightd-trace as a service: with two capabilities and no other rights it counts by BPF."""
import json

import pytest
from lib import features, tracing
from lib.nodes import until


@pytest.fixture
def service(shared_service):
    features.require("bpf")
    shared_service.run("systemctl", "start", "weightd-trace")
    yield shared_service
    shared_service.run("systemctl", "stop", "weightd-trace")


def test_the_service_counts_by_bpf(service):
    told = json.loads(service.run("weightctl", "trace", "doctor", "--json").stdout)
    assert (told["meter"], told["why"]) == ("bpf", None)
    off = {hook["hook"]: hook["why"] for hook in told["hooks"] if hook["state"] != "on"}
    assert sorted(off) == sorted(tracing.refused()), off
    pid = service.run("systemctl", "show", "--value", "-p", "MainPID", "weightd-trace").stdout.strip()
    status = service.run("cat", f"/proc/{pid}/status").stdout
    assert [line.split()[1] for line in status.splitlines() if line.startswith(("CapPrm", "CapEff", "CapBnd"))] == \
        [f"{1 << 38 | 1 << 39:016x}"] * 3  # CAP_PERFMON, CAP_BPF
    assert "NoNewPrivs:\t1" in status


def test_its_socket_is_for_who_may_use_weightd(service):
    stat = service.run("stat", "-c", "%U:%G %a", "/run/weightd-trace", "/run/weightd-trace/trace.sock").stdout
    assert stat.splitlines() == ["weightd-trace:weightd 750", "weightd-trace:weightd 660"]


def test_root_and_its_own_user_see_what_others_have_counted(service):
    top = ["weightctl", "top", "--once", "--json"]
    for command in top, ["setpriv", "--reuid=weightd-trace", "--regid=weightd", "--clear-groups", *top]:
        assert "rows" in json.loads(service.run(*command).stdout)
    done = service.run("setpriv", "--reuid=daemon", "--regid=weightd", "--clear-groups", *top, check=False)
    assert done.returncode == 1 and "only root and user " in done.stderr


def test_it_opens_what_processes_have_mapped(service):
    began = service.run("sh", "-c", "cp /lib/*/libm.so.6 /var/libcuda.so.9 && "
                        "{ LD_PRELOAD=/var/libcuda.so.9 sleep 1000 >/dev/null 2>&1 & } && echo $!")

    def found():
        told = json.loads(service.run("weightctl", "trace", "doctor", "--json").stdout)
        return [library for library in told["libraries"] if library["path"] == "/var/libcuda.so.9"]

    try:
        [library] = until(found, "what was begun has mapped it")
    finally:
        service.run("kill", began.stdout.strip())
    assert library["why"] == "it has none of the functions that are looked for"

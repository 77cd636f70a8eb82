"""The plug-in in a real libnccl.so.2: its core, and no GPU. What its kernels and networks would do is played; see nccl/real.py."""
import json
import subprocess
import sys

import pytest
from integration.examples.pages import literals
from lib import features, nccl_library
from lib.daemon import environment

PLUGIN = features.LIBRARY.with_name("libnccl-profiler-weightd.so")  # as users have it: Python has no sanitizer
MEMBERS = {
    "ncclComm": ["profilerContext", "commHash", "config.commName", "nNodes", "nRanks", "rank"],
    "ncclKernelPlan": ["comm", "collTaskQueue.head"],
    "ncclTaskColl": ["func", "datatype", "eActivationMask", "count", "eventHandle"],
    "ncclProxyArgs": ["sliceSteps"],
    "ncclProxySubArgs": ["eActivationMask", "rank", "pid", "peer", "nsteps", "profilerContext", "taskEventHandle", "pHandles", "transSize"],
}
ASK = """
python
import json
def number(what):
    return int(gdb.parse_and_eval(what))
print(json.dumps({name: {"size": number("sizeof(struct %s)" % name)} |
                        {m: number("(long)&((struct %s *)0)->%s" % (name, m)) for m in members}
                  for name, members in MEMBERS.items()}))
end
"""


@pytest.fixture
def offsets(tmp_path):
    library = nccl_library.require(types=True)
    script = tmp_path / "ask"
    script.write_text(ASK.replace("MEMBERS", repr(MEMBERS)))
    found = json.loads(subprocess.run(["gdb", "-batch", "-x", script, library], check=True, stdout=subprocess.PIPE, text=True).stdout)
    listed = subprocess.run(["nm", "-C", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    symbols = (line.split(None, 2) for line in listed.splitlines() if not line.startswith(" "))
    return found | {"symbols": {name: int(address, 16) for address, _, name in symbols if "ncclProfiler" in name or name == "ncclGetVersion"}}


def test_what_a_real_nccl_says_of_a_socket_is_what_the_kernel_counts(tracer, offsets):
    command = [sys.executable, features.ROOT / "tests/bpf/nccl/real.py", nccl_library.path(), json.dumps(offsets)]
    (setting,) = literals("weightd-trace.8", "NCCL")
    env = environment(WEIGHTD_TRACE_SOCKET=tracer.socket, NCCL_DEBUG="WARN", LD_LIBRARY_PATH=str(PLUGIN.parent),
                      **dict([setting.strip().split("=")]))
    client = tracer.client()
    client.ask("observe")
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proc:
        assert proc.stdout.readline() == "played\n"
        acts = {}
        while not {"nccl_socket", "nccl_peer", "nccl_coll"} <= acts.keys():
            packet = client.hear()
            if packet["kind"] == "act":
                acts[packet["act"]] = packet
        row, = tracer.client().ask("rows")
        end = json.loads(proc.communicate("end\n")[0].splitlines()[-1])
    assert acts["nccl_comm"]["api"] in (4, 5, 6, 7)
    assert (row["sync"], row["peer"], row["partial"]) == ("nccl:real", "rank 1", False)
    assert row["consumed"] == acts["nccl_socket"]["bytes"] == acts["nccl_peer"]["bytes"] == 40_000
    coll = acts["nccl_coll"]
    assert {k: coll[k] for k in ("func", "count", "datatype", "bytes", "algo", "proto", "ops", "received", "hash", "communicator")} == \
        {"func": "AllReduce", "count": 1000, "datatype": "ncclFloat32", "bytes": 4000, "algo": "TREE", "proto": "LL", "ops": 1,
         "received": 40_000, "hash": "0000000000abcdef", "communicator": "real"}
    assert end == {"left": [], "threads": 1}

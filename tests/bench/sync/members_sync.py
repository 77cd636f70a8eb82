"""Part of the bench "sync": the cost of a group of a thousand for its agents, in simulation, and of their connections, for real."""
import json
import pathlib
import subprocess
import tempfile

from lib import features
from lib.pki import Authority

MEMBERS, LOST = 1000, (0, 10)
CONNECTIONS = 500
TOOLS = [features.BUILD / "unit" / f"tool_{name}" for name in ("members", "connections")]


def measure(report):
    members, connections = TOOLS
    if not all(tool.exists() for tool in TOOLS):
        report.line(name="members", skipped="needs weightd-sync and cmocka (apt-get install libssl-dev libcmocka-dev)")
        return
    for lost in LOST:
        report.line(name="members", **run(members, MEMBERS, lost))
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder:
        authority = Authority(pathlib.Path(folder) / "ca")
        for node in "ab":
            authority.node(node)
        figures = run(connections, authority.folder, CONNECTIONS)
    report.line(name="connections", **figures, **{f"of_{MEMBERS}_{key}": figures[key] * (MEMBERS - 1)
                                                  for key in ("handshake_cpu_s", "heap_bytes")})


def run(tool, *args):
    done = subprocess.run([tool, *map(str, args)], check=True, stdout=subprocess.PIPE, text=True)
    figures = json.loads(done.stdout)
    if "messages" in figures:
        figures["messages_per_cpu_s"] = figures["messages"] / figures["cpu_s"]
    return figures

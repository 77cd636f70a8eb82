"""Other programs' counts of the same connections: ss, and iperf3 of its own."""
import json
import os
import re
import shutil
import subprocess

import pytest
from bpf.traffic import carry, is_acknowledged
from lib import features

pytestmark = pytest.mark.iterators

SS = {"bytes_sent": "bytes_sent", "bytes_retrans": "bytes_retrans", "bytes_acked": "bytes_acked",
      "bytes_received": "bytes_received", "retrans": r"retrans:\d+/", "cwnd": "cwnd"}
IPERF_COOKIE = 37  # bytes that it sends ahead on each connection for data


def ss(node, port):
    """Its counters of the connection from this port; one that it leaves out is 0."""
    done = node.run(["ss", "-tinHO", "state", "established", f"sport = :{port}"], stdout=subprocess.PIPE, text=True)
    line, = done.communicate()[0].splitlines()
    found = {name: re.search(rf"\b{key}:?(\d+)", line) for name, key in SS.items()}
    return {name: int(m.group(1)) if m else 0 for name, m in found.items()} | \
        {"min_rtt_us": round(float(re.search(r"minrtt:([\d.]+)", line).group(1)) * 1000)}


def test_ss_says_the_same(net, tracer, connect):
    features.require("ss", "no ss (apt-get install iproute2)", bool(shutil.which("ss")))
    a, b = connect()
    client = tracer.client()
    client.tag(a, peer="b")
    client.tag(b, peer="a")
    carry(a, b, 3_000_001, 1)
    carry(b, a, 70_001, 2)
    client.until(is_acknowledged, "a")
    client.until(is_acknowledged, "b")
    flows = {flow["peer"]: flow for flow in client.ask("flows")}
    for peer, node, sock in ("b", net.nodes[0], a), ("a", net.nodes[1], b):
        flow, said = flows[peer], ss(node, sock.getsockname()[1])
        assert {name: flow[name] for name in said} == said


def start_stopped(node, command):
    """A program that begins when it is continued."""
    proc = node.run(["sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command], stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True)
    _, status = os.waitpid(proc.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return proc


# Not with -R: the receiver then stops counting at its end of the test, and reads on.
@pytest.mark.parametrize("options", [["-n", "20000001"], ["-n", "20000001", "-l", "1K"], ["-n", "20000001", "-P", "4"]])
def test_iperf_says_the_same(net, tracer, options):
    features.require("pids")
    features.require("iperf3", "no iperf3 (apt-get install iperf3)", bool(shutil.which("iperf3")))
    server, client = net.nodes[1], net.nodes[0]
    asked = tracer.client()
    asked.ask("follow")
    serving = start_stopped(server, ["iperf3", "-s", "-1", "--forceflush"])
    asked.watch(serving.pid, peer="client")
    serving.send_signal(18)
    assert "listening" in "".join(serving.stdout.readline() for _ in range(2))
    running = start_stopped(client, ["iperf3", "-J", "-c", server.address, *options])
    asked.watch(running.pid, peer="server")
    running.send_signal(18)
    report = json.loads(running.communicate()[0])
    serving.communicate()
    streams = len(report["end"]["streams"])
    rows = {peer: asked.until(lambda row: row["closed"] == streams + 1, peer) for peer in ("client", "server")}
    while sum(packet["kind"] == "close" for packet in asked.followed) < 2 * (streams + 1):  # the kernel counts before its events
        asked.followed.append(asked.hear())
    # It opens that for control first.
    first = {}
    for packet in asked.followed:
        if packet["kind"] == "open":
            first.setdefault(packet["peer"], packet["cookie"])
    sent, received = (report["end"][key]["bytes"] for key in ("sum_sent", "sum_received"))
    ahead = streams * IPERF_COOKIE
    sides = {"server": (ahead + sent, 0), "client": (0, ahead + received)}
    # iperf3 does not report its control connection: the bytes that each end sent on it are those that the other received.
    control = {packet["peer"]: packet["bytes_sent"] - packet["bytes_retrans"] for packet in asked.followed
               if packet["kind"] == "close" and packet["cookie"] == first[packet["peer"]]}
    assert {peer: (rows[peer]["submitted"] - control[peer], rows[peer]["consumed"] - control[other])
            for peer, other in (("client", "server"), ("server", "client"))} == sides

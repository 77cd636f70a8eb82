"""A push of a version of which few leaves differ from the one before, by the agents of nodes of 1 Gb/s each."""
import contextlib
import pathlib
import statistics
import tempfile

import netns
from nodes import MIB, Cluster, content, layout_of
from pki import Authority

SIZE, EVERY, ROUNDS = 256 * MIB, 50, 3  # 2 % of the leaves
SETTINGS = {"data": {"security": "none", "trusted": "10.77.0.0/24"}, "limits": {"prepare-timeout": 30, "stall-timeout": 30}}


def measure(report, rate, receivers=2):
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(netns.Net(receivers + 1))
        for i in range(receivers + 1):
            net.rate(i, rate)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weightd-bench-"))
        spaces = {chr(ord("a") + i): node.name for i, node in enumerate(net.nodes)}
        nodes = stack.enter_context(Cluster(
            Authority(pathlib.Path(folder) / "ca"), receivers + 1, settings=SETTINGS,
            addresses=[node.address for node in net.nodes],
            prefix=lambda node: ("nsenter", f"--net=/run/netns/{spaces[node.name]}", "--")))
        whole = push(nodes, 0)
        ends = [push(nodes, i + 1) for i in range(ROUNDS)]
        report.line(name="changed", engine="tcp", receivers=receivers, bytes=SIZE, changed=ends[0]["changed"],
                    wire_bytes=ends[0]["bytes"], whole_wire_bytes=whole["bytes"],
                    seconds=statistics.median(map(seconds, ends)), whole_seconds=seconds(whole), rounds=ROUNDS)


def push(nodes, n):
    """Publishes and pushes a version of which each EVERYth leaf says n. Its end."""
    import weightd
    with weightd.create("m", layout_of(SIZE, 1), socket=nodes["a"].daemon.socket, new_layout=True) as writer:
        for offset in range(0, writer.nbytes, 16 * MIB):
            writer.write(offset, content(1, 16 * MIB))
        for leaf in range(0, SIZE // MIB, EVERY):
            writer.write(leaf * MIB, bytes([n]) * 64)
        writer.publish()
    end = nodes["a"].push("m")
    assert end["planned"] == end["bytes"] == end["kernel"], end
    nodes.assert_equal("m")
    return end


def seconds(end):
    return (end["ended_ns"] - end["started_ns"]) / 1e9

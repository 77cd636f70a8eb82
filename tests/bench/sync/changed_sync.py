"""A push of a version of which few leaves, or few elements, differ from the one before, by the agents of nodes of 1 Gb/s each."""
import contextlib
import pathlib
import statistics
import tempfile

from lib import netns
from lib.nodes import MIB, Cluster, content, layout_of
from lib.pki import Authority

SIZE, EVERY, ROUNDS = 256 * MIB, 50, 3  # 2 %
ELEMENT = 2  # bytes, of BF16


def measure(report, rate, receivers=2):
    """Yields the share of the bytes of each."""
    for name, change, patches in ("changed", change_leaves, "no"), ("patch", change_elements, "yes"):
        with cluster(rate, receivers, patches) as nodes:
            data = bytearray(content(1, 16 * MIB) * (SIZE // (16 * MIB)))
            whole = push(nodes, data)
            ends = []
            for n in range(ROUNDS):
                change(data, n + 1)
                ends.append(push(nodes, data))
            assert {end["by"] for end in ends} == {"patch" if patches == "yes" else "leaves"}, ends
            share = ends[0]["bytes"] / whole["bytes"]
            report.line(name=name, engine="tcp", receivers=receivers, bytes=SIZE, changed=ends[0]["changed"],
                        wire_bytes=ends[0]["bytes"], whole_wire_bytes=whole["bytes"], wire_share=share,
                        seconds=statistics.median(map(seconds, ends)), whole_seconds=seconds(whole), rounds=ROUNDS)
            yield name, share


@contextlib.contextmanager
def cluster(rate, receivers, patches):
    settings = {"data": {"security": "none", "trusted": "10.77.0.0/24", "patches": patches},
                "limits": {"prepare-timeout": 30, "stall-timeout": 30}}
    with contextlib.ExitStack() as stack:
        net = stack.enter_context(netns.Net(receivers + 1))
        for i in range(receivers + 1):
            net.rate(i, rate)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weightd-bench-"))
        spaces = {chr(ord("a") + i): node.name for i, node in enumerate(net.nodes)}
        yield stack.enter_context(Cluster(
            Authority(pathlib.Path(folder) / "ca"), receivers + 1, settings=settings,
            addresses=[node.address for node in net.nodes],
            prefix=lambda node: ("nsenter", f"--net=/run/netns/{spaces[node.name]}", "--")))


def change_leaves(data, n):
    for leaf in range(0, SIZE // MIB, EVERY):
        data[leaf * MIB:leaf * MIB + 64] = bytes([n]) * 64


def change_elements(data, n):
    """One of EVERY, in all leaves: the first, then the one behind it, and so on."""
    step = EVERY * ELEMENT
    old = data[n * ELEMENT::step]
    data[n * ELEMENT::step] = bytes(b ^ 1 for b in old)


def push(nodes, data):
    """Publishes and pushes a version of these bytes. Its end."""
    import weightd
    with weightd.create("m", layout_of(SIZE, 1), socket=nodes["a"].daemon.socket, new_layout=True) as writer:
        writer.write(0, data[:writer.nbytes])
        writer.publish()
    end = nodes["a"].push("m")
    assert end["planned"] == end["bytes"] == end["kernel"], end
    nodes.assert_equal("m")
    return end


def seconds(end):
    return (end["ended_ns"] - end["started_ns"]) / 1e9

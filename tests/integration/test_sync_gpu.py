"""
Versions on GPUs between nodes, through host memory: every one that is served is on the GPU what was signed, and
whatever goes wrong on the way leaves nothing behind. Proved on the stand-in for the driver alone.
"""
import hashlib
import json

import features
import nodes as of_nodes
from nodes import MIB, content, layout_of

NONE = {"data": {"security": "none"}}
DEVICE = "cuda:0"


def on_gpu(node, code, **values):
    """Runs code in a process that sees the node's GPU."""
    prelude = "from nodes import *\nimport weightd\n" + "".join(f"{k} = {v!r}\n" for k, v in values.items())
    return node.gpus.python(prelude + code, env=node.daemon.env | node.gpus.env | {
        "PYTHONPATH": f"{features.ROOT}/tests:{features.ROOT}/tests/systemd:{features.ROOT}/libclient/python"}).stdout


def publish(node, seed, size=of_nodes.SIZE, changes=()):
    """On the node's own device; one byte of each leaf of `changes` is another one. The SHA-256 of its bytes."""
    data = bytearray(content(seed, layout_of(size).nbytes))
    for leaf in changes:
        data[leaf * MIB + 5] ^= 1
    if node.gpus:
        on_gpu(node, """
data = bytearray(content(seed, layout_of(size).nbytes))
for leaf in changes:
    data[leaf * MIB + 5] ^= 1
with weightd.create("m", layout_of(size), device="cuda", new_layout=True) as writer:
    writer.write(0, data)
    writer.publish()
""", seed=seed, size=size, changes=list(changes))
    else:
        import weightd
        with weightd.create("m", layout_of(size), socket=node.daemon.socket, new_layout=True) as writer:
            writer.write(0, data)
            writer.publish()
    return hashlib.sha256(data).hexdigest()


def device(node):
    return ["--device", DEVICE] if node.gpus else []


def digest(node):
    """Of what the node serves, by weightctl; None: nothing."""
    rows = json.loads(node.daemon.ctl("ls", "--json", *device(node), "m", check=False).stdout or "{}").get("buffers", [])
    return rows[0]["digest"] if rows else None


def sha256(node):
    """The same by who reads it."""
    if not node.gpus:
        return node.serves("m").sha256
    return on_gpu(node, """
with weightd.attach("m", device="cuda") as b:
    print(hashlib.sha256(b.read()).hexdigest())
""").strip()


def assert_all_serve(cluster, wanted):
    """One digest everywhere, over bytes that are still those it is of."""
    cluster.rest("m")
    assert len({digest(node) for node in cluster}) == 1, cluster.story()
    for node in cluster:
        node.daemon.ctl("verify", *device(node), "m")
        assert sha256(node) == wanted, cluster.story()


def test_hosts_and_gpus_push_to_each_other(make_nodes, make_gpus):
    cluster = make_nodes(3, publishers="abc", settings=NONE, gpus={"b": make_gpus(), "c": make_gpus()})
    for i, publisher in enumerate(cluster):
        wanted = publish(publisher, seed=i)
        publisher.push("m")
        assert_all_serve(cluster, wanted)

"""
Versions on the GPUs of nodes, and the memory that a move between those leaves behind.

As a program: a Python that has imported what code for a GPU needs, and runs such code in forks of itself. The start of another
one for each would take a quarter of a second of a processor.
"""
import atexit
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import traceback

from lib import features
from lib import nodes as of_nodes
from lib.nodes import MIB, content, layout_of

DEVICE = "cuda:0"
FORK_S = 60  # limit of a fork


@functools.cache
def forking(libraries):
    """The program, with this path for the linker, which reads it when a program starts."""
    env = {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": f"{features.ROOT}/tests:{features.ROOT}/libclient/python"}
    program = subprocess.Popen([sys.executable, "-m", "lib.gpu_nodes"], env=os.environ | env, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    atexit.register(program.__exit__, None, None, None)
    return program


def on_gpu(node, code, **values):
    """The output of code in a process that sees the node's GPU."""
    prelude = "from lib.nodes import *\nimport weightd\n" + "".join(f"{k} = {v!r}\n" for k, v in values.items())
    env = node.daemon.env | node.gpus.env
    program = forking(env["LD_LIBRARY_PATH"])
    print(json.dumps([prelude + code, env]), file=program.stdin, flush=True)
    status, printed = json.loads(program.stdout.readline())
    assert status == 0, f"{status}: {printed}"
    return printed


def run_forked(code, env, output):
    """Never returns."""
    for fd in sys.stdout.fileno(), sys.stderr.fileno():
        os.dup2(output.fileno(), fd)
    os.environ.clear()
    os.environ.update(env)
    signal.alarm(FORK_S)
    status = 1
    try:
        exec(code, {})
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


def serve():
    import weightd  # noqa: F401
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as output:
            if not (pid := os.fork()):
                run_forked(*json.loads(line), output)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            print(json.dumps([status, output.read()]), flush=True)


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


def write(node, buffer, layout, content):
    """A version with these bytes, on the node's own device."""
    if node.gpus:
        path = node.folder / "content"
        path.write_bytes(content)
        on_gpu(node, """
layout = weightd.Layout()
for tensor in tensors:
    layout.add(*tensor)
with weightd.create(buffer, layout, device="cuda", new_layout=True) as writer:
    writer.write(0, pathlib.Path(path).read_bytes())
    writer.publish()
""", buffer=buffer, tensors=[(entry.name, str(entry.dtype), list(entry.shape)) for entry in layout], path=str(path))
    else:
        import weightd
        with weightd.create(buffer, layout, socket=node.daemon.socket, new_layout=True) as writer:
            writer.write(0, content)
            writer.publish()


def read(node, buffer):
    """The version that a reader on the node's own device gets, after a check of its digest; None: nothing."""
    if not node.gpus:
        found = node.read(buffer)
    else:
        path = node.folder / "content"
        on_gpu(node, """
try:
    with weightd.attach(buffer, device="cuda") as b:
        pathlib.Path(path).write_bytes(b.read())
except (weightd.NotFound, weightd.NotPublished):
    pathlib.Path(path).unlink(missing_ok=True)
""", buffer=buffer, path=str(path))
        found = path.read_bytes() if path.exists() else None
    if found is not None:
        node.daemon.ctl("verify", *device(node), buffer)
    return found


def gpus_that_meet(make_gpus, names, folder, env=None):
    """{name: Gpus} of nodes, each with GPUs of its own and ranks of NCCL that meet; `env` is {name: more variables}."""
    found = {}
    for name in names:
        found[name] = make_gpus()
        found[name].env = found[name].env_with_nccl(FAKE_NCCL_STATE=str(folder), **(env or {}).get(name, {}))
    return found


def device(node):
    return ["--device", DEVICE] if node.gpus else []


def show(node):
    """The buffer as weightctl shows it; None: there is none."""
    done = node.daemon.ctl("show", "--json", *device(node), "m", check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def sha256(node):
    """Checks the same as a reader."""
    if not node.gpus:
        return node.serves("m").sha256
    return on_gpu(node, """
with weightd.attach("m", device="cuda") as b:
    print(hashlib.sha256(b.read()).hexdigest())
""").strip()


def assert_all_serve(cluster, wanted):
    """One digest everywhere, over bytes that are still those it is of, and which one reader sees for itself."""
    cluster.rest("m")
    shown = [show(node) for node in cluster]
    assert len({row["digest"] for row in shown}) == 1 and shown[0]["digest"].strip("0"), shown
    for node in cluster:
        node.daemon.ctl("verify", *device(node), "m")
    assert sha256(list(cluster)[-1]) == wanted, cluster.story()


def stagings(cluster):
    """Processes of the nodes that have host memory for versions on their way: (pid, the line that shows it)."""
    found = []
    for pid, _ in cluster.leftovers():
        with contextlib.suppress(OSError):
            process = pathlib.Path(f"/proc/{pid}")
            found += [(pid, fd.name) for fd in (process / "fd").iterdir() if "sync-staging" in os.readlink(fd)]
            found += [(pid, "maps")] * ("sync-staging" in (process / "maps").read_text())
    return found


def wait_unstaged(cluster):
    """Waits until no process has such memory: an engine without a connection ends a moment after its sync."""
    cluster.wait(lambda: not stagings(cluster), lambda: f"no staging is left: {stagings(cluster)}")


def assert_nothing_is_left(cluster, used):
    """A push has left nothing: neither memory of the GPUs, {name: bytes} before it, nor host memory on the way."""
    for name, n in used.items():
        cluster[name].gpus.wait_used(n)
    wait_unstaged(cluster)


def used(cluster):
    return {node.name: node.gpus.used() for node in cluster if node.gpus}


if __name__ == "__main__":
    serve()

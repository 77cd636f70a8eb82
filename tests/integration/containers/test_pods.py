"""
The manifests of packaging/kubernetes run: their commands, users, rights, volumes, limits and probes, in containers.

These are namespaces and a memory cgroup around the programs of this tree; with WEIGHTD_IMAGE (make check-image), podman's, of the image.
"""
import contextlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import tempfile
import time

import pytest
from integration.load.test_chroot import copy_libraries
from integration.server import userns
from integration.weightctl.test_metrics import parse, value
from lib import features
from integration.containers.pods import Namespaces, Node, Pod, Podman, memory_usage, n_oom_kills, shared_memory
from lib.safetensors_file import pack
from lib.wire import until

IMAGE = os.environ.get("WEIGHTD_IMAGE")
MODEL = pack({"w": ("U8", [48 << 20], bytes(range(256)) * (48 << 12))})
CONFIG = '{"model_type": "bert"}'
USERS = 200000  # of a user namespace
PROGRAMS = "weightd", "weightd-cuda", "weightctl"
OPENED = "libsystemd.so.0", "libmicrohttpd.so.12"  # at run time: by weightd under its keeper, and by weightctl metrics
STRANGER = 10009
REFUSED = re.compile(r"this user may not connect to weightd at /run/weightd/weightd\.sock: it is for the group '(weightd|47434|\d+)'")

pytestmark = pytest.mark.plain  # a container has no runtime of a sanitizer


def fill(root):
    for folder in "bin", "dev", "models", "proc", "run/weightd", "sys", "tmp", "usr/lib":
        (root / folder).mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy(features.BUILD / name, root / "bin")
        copy_libraries(features.BUILD / name, root)
    shutil.copy(shutil.which("busybox"), root / "bin")  # of busybox-static
    for name in OPENED:
        for library in itertools.islice(pathlib.Path("/usr/lib").glob(f"*-linux-gnu/{name}"), 1):
            shutil.copy(library, root / "usr/lib")
            copy_libraries(library, root)


@pytest.fixture(scope="module")
def root():
    """The root file system of a small image: the programs of this tree, and busybox."""
    for feature in "root", "mounts", "cgroup", "busybox", "yaml":
        features.require(feature)
    root = pathlib.Path(tempfile.mkdtemp(prefix="weightd-image-"))
    try:
        root.chmod(0o755)
        fill(root)
        yield root
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def runtime(request):
    if not IMAGE:
        yield Namespaces(request.getfixturevalue("root"))
        return
    features.require("yaml")
    podman = Podman(IMAGE)
    try:
        yield podman
    finally:
        podman.close()


@contextlib.contextmanager
def node_of(runtime):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-node-"))
    folder.chmod(0o755)
    model = folder / "srv/models/minilm"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(MODEL)
    (model / "config.json").write_text(CONFIG)
    node = Node(runtime, folder)
    try:
        yield node
    finally:
        node.close()
        shutil.rmtree(folder)


@pytest.fixture
def node(runtime):
    with node_of(runtime) as node:
        yield node


def serve(node, memory=None):
    pod = Pod(node, "base/daemonset.yaml")
    pod.run("own-directory")
    weightd = pod.start("weightd", memory)
    weightd.await_probe("startupProbe")
    assert weightd.probe("readinessProbe") and weightd.probe("livenessProbe")
    return weightd


def load(node):
    loader = Pod(node, "example/load.yaml").start("load")
    loader.await_probe("startupProbe")
    assert loader.probe("livenessProbe")
    return loader


def digest(container):
    return re.search(r"xxh3:\w+", container.check("weightctl", "verify", "minilm"))[0]


def zombies(container):
    """Processes below the first one of a container that ended and were not waited for."""
    return [pid for pid in pathlib.Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
            if re.search(r"^State:\s+Z", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)]


def test_a_model_is_loaded_waited_for_served_by_path_and_counted(node):
    weightd = serve(node)
    consumer = Pod(node, "example/consumer.yaml")
    waiting = consumer.start("wait")
    loader = load(node)
    assert waiting.wait() == 0 and "minilm@1" in waiting.log, waiting.log

    server = consumer.start("server")
    until(lambda: server.exec("busybox", "wget", "-q", "-O", "/tmp/config", "http://127.0.0.1:8080/config.json").returncode == 0,
          "the server of the example answers")
    assert server.check("busybox", "cat", "/tmp/config") == CONFIG
    got = server.check("busybox", "sh", "-c", "busybox wget -q -O - http://127.0.0.1:8080/model.safetensors | busybox sha256sum")
    assert got == loader.check("busybox", "sh", "-c", "busybox sha256sum </models/minilm/model.safetensors")

    features.require("microhttpd")
    metrics = Pod(node, "base/daemonset.yaml").start("metrics")
    scrape = "busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:9464/metrics"
    until(lambda: metrics.exec(*scrape).returncode == 0, "metrics are served")
    samples = parse(metrics.check(*scrape))
    assert value(samples, "weightd_buffers") == 1 and value(samples, "weightd_leases") == 1
    # The user of this container may not read the buffer.
    assert "weightd_buffer_bytes" not in samples
    weightd.check("weightctl", "ping")


def test_weights_are_charged_to_weightd_and_not_to_their_readers(node):
    weightd = serve(node)
    before = shared_memory(weightd.memory)
    loader = load(node)
    until(lambda: shared_memory(weightd.memory) - before >= len(MODEL), "the model is charged")
    charged = shared_memory(weightd.memory) - before
    reader = Pod(node, "example/consumer.yaml").start("server")
    until(lambda: reader.exec("weightctl", "wait", "--timeout", "0", "minilm").returncode == 0, "the reader runs")
    assert "matches digest" in reader.check("weightctl", "verify", "minilm")  # in a container of 64 MiB
    paid = memory_usage(reader.memory), memory_usage(loader.memory)
    print(f"{len(MODEL)} bytes: {charged} charged to weightd, of {memory_usage(weightd.memory)}; {paid[0]} to a reader, {paid[1]} to the loader")
    assert charged <= len(MODEL) + (4 << 20)
    assert max(paid) < len(MODEL) // 2


def test_the_keeper_keeps_the_weights_when_weightd_is_killed(node):
    weightd = serve(node)
    loader = load(node)
    kept = digest(loader)
    for _ in range(2):
        killed = weightd.child()
        os.kill(killed, signal.SIGKILL)
        until(lambda: weightd.exec("weightctl", "ping").returncode == 0 and weightd.child() != killed, "another weightd serves")
    assert digest(loader) == kept
    assert loader.probe("livenessProbe") and weightd.probe("livenessProbe")
    assert "descriptors are kept" in weightd.log and not zombies(weightd)


def test_a_new_container_of_weightd_has_no_weights_and_the_loader_notices(node):
    weightd = serve(node)
    loader = load(node)
    weightd.signal(signal.SIGKILL)
    weightd.wait()
    again = serve(node)  # over the socket and the lock of the one that was killed
    assert "minilm" not in again.check("weightctl", "ls")
    assert not loader.probe("livenessProbe"), "the kubelet would not load the model again"
    loader.signal(signal.SIGTERM)
    assert loader.wait() == 0, loader.log
    assert digest(load(node))


def test_orphans_are_reaped(node):
    """Of a probe that timed out, say."""
    weightd = serve(node)
    pid = int(weightd.check("busybox", "sh", "-c", "busybox sleep 0.2 >/dev/null 2>&1 & echo $!"))
    until(lambda: f"\n{pid} " not in weightd.check("busybox", "sh", "-c", "busybox ps -o pid,stat,args"), "the orphan is gone")
    assert not zombies(weightd)


def test_sigterm_ends_the_container_at_once_and_frees_all(node):
    weightd = serve(node)
    loader = load(node)
    begin = time.monotonic()
    weightd.signal(signal.SIGTERM)
    assert weightd.wait() == 0, weightd.log
    assert time.monotonic() - begin < Pod(node, "base/daemonset.yaml").spec["terminationGracePeriodSeconds"] / 2
    assert not (node.folder / "run/weightd/weightd.sock").exists()
    assert not loader.probe("livenessProbe")


def test_a_model_over_the_limit_is_refused_and_nothing_is_killed(node):
    limit = 40 << 20
    weightd = serve(node, memory=limit)
    pid = weightd.child()
    loader = Pod(node, "example/load.yaml").start("load")
    assert loader.wait() == 1
    assert re.search(r"memory\.(max|limit_in_bytes)", loader.log), loader.log
    print(loader.log)
    assert weightd.child() == pid and n_oom_kills(weightd.memory) == 0
    assert weightd.probe("livenessProbe")


def test_a_pod_without_the_group_of_the_socket_is_refused(node):
    serve(node)
    load(node)
    consumer = Pod(node, "example/consumer.yaml")
    stranger = consumer.start("wait", supplementalGroups=[])
    assert stranger.wait() == 1
    assert REFUSED.search(stranger.log), stranger.log
    # One with it, and without the group of the buffer, connects and may not read.
    other = consumer.start("wait", runAsGroup=STRANGER)
    assert other.wait() == 1, other.log
    print(stranger.log, other.log)


@pytest.mark.skipif(bool(IMAGE), reason="podman maps users of all containers in the same way or of none")
def test_pods_in_a_user_namespace(root):
    """weightd and pods of the same namespace work; a pod in one of its own (hostUsers: false) is a stranger to a weightd outside."""
    features.require("userns", available=userns.is_available())
    inside, outside = Namespaces(root, users=USERS), Namespaces(root)
    with node_of(inside) as node:
        folder = node.folder / "run/weightd"
        folder.mkdir(parents=True)
        os.chown(folder, USERS, USERS)  # as an idmapped mount has it
        serve(node)
        assert digest(load(node))
    with node_of(outside) as node:
        serve(node)
        load(node)
        node.runtime = inside
        stranger = Pod(node, "example/consumer.yaml").start("wait")
        assert stranger.wait() == 1 and REFUSED.search(stranger.log), stranger.log

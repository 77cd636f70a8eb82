"""
Versions on GPUs between nodes, through host memory: every one that is served has the signed bytes on the GPU, and
failures on the way leave nothing behind. Proved on the stand-in for the driver alone.
"""
import contextlib
import hashlib
import json
import mmap
import os
import pathlib
import re
import signal

import pytest
from integration.engines.local_task import LEAF, Task, Tree, has_staging, sha256 as sha256_of
from integration.programs import compiled
from lib import features, wire
from lib import nodes as of_nodes
from lib.cgroup import MemoryCgroup
from lib.engine import planned
from lib.gpu_nodes import assert_all_serve, assert_nothing_is_left, device, on_gpu, publish, sha256, show, stagings, used, wait_unstaged
from lib.nodes import MIB, content, hostile_programs, layout_of
from lib.wire import Wire, image, memfd

NONE = {"data": {"security": "none"}}
SLOW = MIB // 2  # bytes a second: slow enough to be broken into
INVALID_VALUE, ILLEGAL_ADDRESS = 1, 700


# --- Nodes ------------------------------------------------------------------------------------------

def test_hosts_and_gpus_push_to_each_other(make_nodes, make_gpus):
    cluster = make_nodes(3, publishers="abc", settings=NONE, gpus={"b": make_gpus(), "c": make_gpus()})
    for i, publisher in enumerate(cluster):
        wanted = publish(publisher, seed=i)
        publisher.push("m")
        assert_all_serve(cluster, wanted)


def test_rights_go_to_the_buffer_on_the_gpu_and_to_no_other(make_nodes, make_gpus):
    cluster = make_nodes(2, settings=NONE, gpus={"b": make_gpus()}, group={"mode": "0644", "group": "23456"})
    cluster["b"].publish("m", seed=7)  # on the host, with which the group there has nothing to do
    wanted = publish(cluster["a"], seed=1)
    cluster["a"].push("m")
    assert_all_serve(cluster, wanted)
    with Wire(cluster["b"].daemon.socket) as w:
        found = {row.device: (oct(row.mode), row.gid) for row in w.list(wire.BUFFERS, "m")}
    host = found.pop("host")
    assert list(found.values()) == [("0o644", 23456)] and host == ("0o640", os.getgid())


def test_only_what_changed_of_a_version_on_a_gpu_travels(make_nodes, make_gpus):
    cluster = make_nodes(3, publishers="ab", settings=NONE, gpus={"b": make_gpus(), "c": make_gpus()})
    size = layout_of(of_nodes.SIZE).nbytes
    for name, changes, changed, way in (("a", [], size, "full"), ("a", [1], MIB, "patch"),  # GPUs apply patches, and host memory makes them
                                        ("b", [1, 3], size - 3 * MIB, "leaves"), ("b", [1, 3], 0, "leaves")):
        wanted = publish(cluster[name], seed=1, changes=changes)
        end = cluster[name].push("m")
        assert (end["changed"], end["size"], end["by"]) == (changed, size, way), (changes, end)
        assert_all_serve(cluster, wanted)
    cluster["c"].restart()  # it has lost its leaves, and reads them on the GPU
    cluster.wait_connected()
    cluster.rest("m")
    wanted = publish(cluster["b"], seed=1, changes=[1, 2, 3])
    assert cluster["b"].push("m")["changed"] == MIB
    assert_all_serve(cluster, wanted)


def test_what_another_device_has_is_no_base(make_nodes, make_gpus):
    """The buffer is in two groups, on the GPU of b and in its host memory, and another version 1 is there."""
    cluster = make_nodes(2, settings=NONE, gpus={"b": make_gpus()}, start=False)
    cluster.groups["hosts"] = cluster.groups["main"] | {"device": "host"}
    a, b = cluster
    for node in cluster:
        cluster.configure(node)
        node.start()
    cluster.wait_connected()
    size = layout_of(of_nodes.SIZE).nbytes
    b.publish("m", seed=9)
    for changes, group, changed in ([], "main", size), ([1], "hosts", size), ([1, 2], "hosts", MIB), ([2], "main", size):
        wanted = publish(a, seed=1, changes=changes)
        end = a.push("m", group=group)
        assert (end["changed"], end["bytes"]) == (changed, planned(end["patch"] or changed)), end
        assert (sha256(b) if group == "main" else b.serves("m").sha256) == wanted


def test_leaves_that_changed_on_the_way_to_a_gpu_are_sent_again(make_nodes, make_gpus, tmp_path):
    programs = hostile_programs(tmp_path / "hostile", memory=1)
    cluster = make_nodes(2, settings=NONE, gpus={"b": make_gpus()}, programs={"b": programs})
    wanted = publish(cluster["a"], seed=1)
    end = cluster["a"].push("m")
    assert (tmp_path / "hostile/memory-0").exists()
    assert end["bytes"] == planned(layout_of(of_nodes.SIZE).nbytes) + planned(MIB), end
    assert_all_serve(cluster, wanted)


def test_leaves_that_the_gpu_does_not_give_back_are_sent(make_nodes, make_gpus):
    cluster = make_nodes(2, settings=NONE, gpus={"b": make_gpus()})
    publish(cluster["a"], seed=1)
    cluster["a"].push("m")
    wanted = publish(cluster["a"], seed=1, changes=[1])
    cluster["b"].gpus.fail("cuMemcpyDtoH", INVALID_VALUE)
    end = cluster["a"].push("m")
    cluster["b"].gpus.heal()
    # The patch has nothing to be applied to, so all leaves follow it.
    assert end["bytes"] == planned(end["patch"]) + planned(layout_of(of_nodes.SIZE).nbytes), end
    assert_all_serve(cluster, wanted)


def test_a_buffer_of_the_older_kind_stays_one(make_nodes, make_gpus):
    cluster = make_nodes(2, publishers="ab", settings=NONE, gpus={"b": make_gpus()})
    b = cluster["b"]
    on_gpu(b, """
with weightd.create("m", layout_of(4096), device="cuda", handle="ipc") as writer:
    writer.publish()
""")
    for i, publisher in enumerate(cluster):
        wanted = publish(publisher, seed=i)
        publisher.push("m")
        assert_all_serve(cluster, wanted)
        assert show(b)["handle"] == "ipc"


def test_what_becomes_of_versions_on_a_gpu_is_noticed_there(make_nodes, make_gpus):
    cluster = make_nodes(2, settings=NONE, gpus={"b": make_gpus()}, start=False)
    cluster.groups["hosts"] = cluster.groups["main"] | {"buffers": "z", "device": "host"}
    a, b = cluster
    for node in cluster:
        cluster.configure(node)
        node.start()
    cluster.wait_connected()
    for name in "mn":
        a.publish(name, seed=1)
        a.push(name)
        for seed in 8, 9:  # others of that name, in host memory, which the group does not mean
            b.publish(name, seed=seed)
        b.daemon.ctl("rm", f"{name}@1")
    on_gpu(b, """
with weightd.create("n", layout_of(4096), device="cuda", new_layout=True) as writer:
    writer.publish()
""")
    b.daemon.ctl("rm", *device(b), "n@1")
    cluster.wait(lambda: b.own_head("n")["state"] == "superseded", "b lets go of n")
    assert b.own_head("m")["state"] == "serving"
    b.daemon.kill()
    b.daemon.start()
    cluster.wait(lambda: show(b), "b fetched m again")
    assert_all_serve(cluster, a.serves("m").sha256)


def test_host_memory_is_free_as_soon_as_a_gpu_has_the_bytes(make_nodes, make_gpus):
    cluster = make_nodes(3, settings=NONE, gpus={"b": make_gpus(), "c": make_gpus()})
    a, b, c = cluster
    wanted = publish(a, seed=1)
    c.gpus.fail("cuLaunchKernel", "hang")  # it copies, and does not digest yet
    push = a.start_push("m")
    cluster.wait(lambda: {row["node"]: row["phase"] for row in a.status(push.sync)}.get("b") == "verified", "b has it")
    processes = {node: {node.proc.pid, *node.children("weightd-sync-local")} for node in (b, c)}
    cluster.wait(lambda: {pid for pid, _ in stagings(cluster)} <= processes[c], lambda: f"b's is gone: {stagings(cluster)}")
    assert stagings(cluster)
    c.gpus.heal()
    push.committed()
    assert_all_serve(cluster, wanted)
    wait_unstaged(cluster)


# --- Failures ---------------------------------------------------------------------------------------

def fails(cluster, *words, name="a"):
    """A push does, with a sentence that has these words, and leaves nothing."""
    before = used(cluster)
    sentence = cluster[name].start_push("m").failed()
    for word in words:
        assert word in sentence, sentence
    assert_nothing_is_left(cluster, before)


def test_a_gpu_that_is_full_is_named_before_a_byte_moves(make_nodes, make_gpus):
    cluster = make_nodes(2, settings=NONE, gpus={"b": make_gpus(memory="300M")})
    wanted = publish(cluster["a"], seed=1)
    cluster["a"].push("m")
    publish(cluster["a"], seed=2, size=48 * MIB)
    fails(cluster, "b refused", cluster["b"].gpus.device())
    assert sha256(cluster["b"]) == wanted


def test_a_copy_that_fails_fails_the_push_and_not_the_next(make_nodes, make_gpus):
    cluster = make_nodes(2, publishers="ab", settings=NONE, gpus={"b": make_gpus()})
    a, b = cluster
    publish(a, seed=1)
    b.gpus.fail("cuMemcpyHtoD", ILLEGAL_ADDRESS, skip=2, count=1)
    fails(cluster, "b", "cannot be written", "CUDA_ERROR_ILLEGAL_ADDRESS")
    b.gpus.heal()
    wanted = publish(a, seed=2)
    a.push("m")
    assert_all_serve(cluster, wanted)
    publish(b, seed=3)
    b.gpus.fail("cuMemcpyDtoH", ILLEGAL_ADDRESS, skip=2, count=1)
    fails(cluster, "cannot be read", "CUDA_ERROR_ILLEGAL_ADDRESS", name="b")
    b.gpus.heal()
    b.push("m")
    cluster.rest("m")
    assert sha256(a) == sha256(b)


def test_bytes_that_do_not_arrive_on_the_gpu_are_never_served(make_nodes, make_gpus):
    cluster = make_nodes(2, settings=NONE, gpus={"b": make_gpus()})
    a, b = cluster
    wanted = publish(a, seed=1)
    a.push("m")
    before = used(cluster)
    publish(a, seed=2)
    needle = content(2, layout_of(of_nodes.SIZE).nbytes)[3 * MIB:3 * MIB + 64]
    b.gpus.fail("cuLaunchKernel", "hang")  # it copies, and does not digest yet
    push = a.start_push("m")
    cluster.wait(lambda: b.gpus.holds(needle), "all was copied")
    b.gpus.poke(needle, bytes([needle[0] ^ 1]) + needle[1:])
    b.gpus.heal()
    sentence = push.failed()
    assert "did not arrive on the GPU as it came" in sentence and f"{3 * MIB} to {4 * MIB}" in sentence, sentence
    assert_nothing_is_left(cluster, before)
    assert sha256(b) == wanted


def test_the_allocator_is_needed_for_memory_alone(make_nodes, make_gpus):
    cluster = make_nodes(2, settings=NONE, gpus={"b": make_gpus()})
    a, b = cluster
    publish(a, seed=1)
    b.gpus.fail("cuMemCreate", "die", count=1)
    fails(cluster, "b refused", "weightd-cuda died")
    wanted = publish(a, seed=2)
    b.gpus.fail("cuLaunchKernel", "hang")  # the GPU has not returned its digests yet
    push = a.start_push("m")
    cluster.wait(lambda: {row["node"]: row["phase"] for row in a.status(push.sync)}.get("b") == "verify", "b verifies")
    threads = pathlib.Path(f"/proc/{b.daemon.pid}/task").iterdir()
    children = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
    assert [pathlib.Path(f"/proc/{pid}/comm").read_text().strip() for pid in children] == ["weightd-cuda"]
    os.kill(children[0], signal.SIGKILL)
    b.gpus.heal()
    push.committed()
    assert_all_serve(cluster, wanted)


def test_an_agent_that_is_killed_leaves_nothing_on_a_gpu_or_on_the_way(make_nodes, make_gpus):
    cluster = make_nodes(3, publishers="b", settings=NONE, gpus={"b": make_gpus(), "c": make_gpus()})
    publish(cluster["b"], seed=1)
    cluster["b"].push("m")
    wanted = publish(cluster["b"], seed=2)
    before = used(cluster)
    for name in "cb":
        push = cluster["b"].start_push("m", max_rate=SLOW)
        push.moving("c")
        assert stagings(cluster) and cluster["c"].gpus.used() > before["c"]
        cluster[name].kill()
        if name == "c":
            push.failed()
        assert_nothing_is_left(cluster, before)
        cluster[name].start()
        cluster.wait_connected()
    cluster["b"].push("m")
    assert_all_serve(cluster, wanted)
    wait_unstaged(cluster)


# --- One task -------------------------------------------------------------------------------------

SIZES = ("a", LEAF + 4096), ("b", 2 * LEAF)
DATA = content(1, sum(size for _, size in SIZES))


@pytest.fixture
def gpu_daemon(make_daemon, gpu):
    return make_daemon(env=gpu.env)


@pytest.fixture
def task(gpu_daemon):
    features.require("sync", "weightd-sync-local is not built: no OpenSSL (apt-get install libssl-dev)",
                     (features.BUILD / "weightd-sync-local").exists())
    with contextlib.ExitStack() as stack:
        yield lambda role: stack.enter_context(Task(gpu_daemon, role))


def announce(daemon, data=DATA, sizes=SIZES, leaves=None, n_bytes=None):
    """The fields of a create, and its descriptors."""
    tree, layout = Tree(data), image(sizes)
    fields = {"socket": daemon.socket, "buffer": "m", "device": "cuda:0", "n_bytes": n_bytes or len(data),
              "layout": sha256_of(layout), "root": tree.root if leaves is None else hashlib.sha256(
                  b"\1" + n_bytes.to_bytes(8, "big") + leaves).hexdigest()}
    return fields, [memfd(layout), memfd(tree.leaves if leaves is None else leaves)]


def create(daemon, sink, **announced):
    fields, fds = announce(daemon, **announced)
    sink.tell("create", fds, **fields)
    for fd in fds:
        os.close(fd)


def test_a_sink_lets_go_of_host_memory_when_the_gpu_has_proved_what_it_has(gpu_daemon, gpu, task):
    sink = task("sink")
    create(gpu_daemon, sink)
    said = sink.hear("created")
    assert said["memory"] == "host" and said["missing"] == [[0, len(DATA)]] and len(said.fds) == 1
    memory, = said.fds
    assert os.fstat(memory).st_blocks * 512 >= len(DATA)  # no page is missing that an engine would have to ask for
    os.pwrite(memory, DATA, 0)
    os.pwrite(memory, b"?", LEAF + 9)
    said = sink.verify()
    assert said["op"] == "corrupt" and said["ranges"] == [[LEAF, LEAF]] and has_staging(sink), said
    os.pwrite(memory, DATA[LEAF:2 * LEAF], LEAF)
    assert sink.verify()["op"] == "verified" and not has_staging(sink)
    sink.tell("verify")
    assert sink.failure()[0] == "malformed"
    gpu.wait_used(0)


@pytest.mark.plain  # a sanitizer has to be loaded first
def test_a_sink_whose_host_memory_the_kernel_refuses_says_what_is_free(gpu_daemon, gpu, task):
    gpu_daemon.env["LD_PRELOAD"] = str(compiled("full.so", (features.ROOT / "tests/integration/preload/full.c",), "-shared"))
    sink = task("sink")
    create(gpu_daemon, sink)
    why = sink.failure()[1]
    left = re.search(r"are needed for a while, and (?:the limit of a cgroup leaves )?(\d+)", why)
    assert left and int(left[1]) > 0, why  # nothing was taken yet


def test_a_sink_publishes_what_it_has_verified(gpu_daemon, gpu, task):
    sink = task("sink")
    create(gpu_daemon, sink)
    memory, = sink.hear("created").fds
    os.pwrite(memory, DATA, 0)
    assert sink.verify()["op"] == "verified"
    os.pwrite(memory, b"?", 7)  # without an owner now
    assert sink.publish() == 1
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")
    source = task("source")
    source.tell("look", socket=gpu_daemon.socket, buffer="m", device=gpu.device(), version=1)
    said, root = source.hear("attached"), source.hear("root")
    assert "memory" not in said and len(said.fds) == 1 and root["root"] == Tree(DATA).root
    assert not has_staging(source)


def test_a_source_lends_a_copy_and_lets_the_gpu_go(gpu_daemon, gpu, task):
    sink = task("sink")
    create(gpu_daemon, sink)
    os.pwrite(sink.hear("created").fds[0], DATA, 0)
    sink.verify()
    sink.publish()
    source = task("source")
    said, root = source.attach(gpu_daemon, device="cuda")
    layout, data = said.fds
    assert said["memory"] == "host" and root["root"] == Tree(DATA).root and os.pread(data, len(DATA) + 1, 0) == DATA
    assert not has_staging(source)  # the agent's is the last
    for prot in mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_WRITE:
        with pytest.raises(OSError):
            mmap.mmap(data, len(DATA), prot=prot)
    with Wire(gpu_daemon.socket) as w:
        assert [(s.state, s.n_leases) for s in w.list(wire.SLOTS)] == [(wire.CURRENT, 0)]


def test_host_memory_that_there_is_not_is_refused_before_anything_is_made(gpu_daemon, gpu, task):
    n_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // LEAF * LEAF + 64 * LEAF
    sink = task("sink")
    create(gpu_daemon, sink, sizes=[("t", n_bytes)], n_bytes=n_bytes, leaves=bytes(32 * (n_bytes // LEAF)))
    code, why = sink.failure()
    assert code == "memory" and "goes through host memory" in why and f"{n_bytes / 1e9:.1f} GB" in why, why
    assert not json.loads(gpu_daemon.ctl("ls", "--json").stdout)["buffers"] and gpu.used() == 0


def test_a_limit_of_the_service_is_found_before_it_kills(gpu_daemon, gpu, task):
    features.require("cgroup")
    n_bytes = 64 * LEAF
    with MemoryCgroup(n_bytes) as group:
        sink = task("sink")
        (group.path / "cgroup.procs").write_text(str(sink.proc.pid))
        create(gpu_daemon, sink, sizes=[("t", n_bytes)], n_bytes=n_bytes, leaves=bytes(32 * (n_bytes // LEAF)))
        code, why = sink.failure()
        assert code == "memory" and "MemoryMax=" in why, why
        sink.end()
    assert gpu.used() == 0

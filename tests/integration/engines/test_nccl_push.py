"""
Versions that go from GPU to GPU over NCCL, and what of them cannot. On the stand-ins for the driver and for NCCL, which
are no proof: `tests/gpu/run --sections sync` has the real ones.
"""
import contextlib
import json
import os
import pathlib
import threading

import pytest
from integration.engines.local_task import LEAF, Task, Tree, sha256 as sha256_of
from lib import features, tracing
from lib import nodes as of_nodes
from lib.cgroup import MemoryCgroup
from lib.engine import planned
from lib.gpu_nodes import (
    assert_all_serve, assert_nothing_is_left, device, gpus_that_meet, publish, sha256, show, stagings, used, wait_unstaged)
from lib.gpus import NCCL, PAGE
from lib.nodes import MIB, content, digest_of, layout_of
from lib.wire import image, memfd


@pytest.fixture(autouse=True)
def needs_the_fakes():
    features.require("fakes", available=(NCCL / "libnccl.so.2").exists())
    features.require("sync", "weightd-sync-local is not built: no OpenSSL (apt-get install libssl-dev)",
                     (features.BUILD / "weightd-sync-local").exists())


NCCL_ENGINE = {"data": {"security": "none", "engine": "nccl"}}


@pytest.fixture
def make_gpu_nodes(make_nodes, make_gpus, tmp_path):
    """make_gpu_nodes(3): nodes with a GPU each, and ranks of NCCL that meet. `env` is {name: more variables of that node's}."""
    def make(n, settings=NCCL_ENGINE, env=None, on_hosts="", **kw):
        gpus = gpus_that_meet(make_gpus, set("abcdef"[:n]) - set(on_hosts), tmp_path, env)
        return make_nodes(n, settings=settings, gpus=gpus, **kw)

    return make


def n_bytes(size=of_nodes.SIZE):
    return layout_of(size).nbytes


def plan_of(push):
    """The events with the plan, one for each epoch."""
    return [event for event in push.events if event.get("event") == "plan"]


def epochs(push):
    return [plan["engine"] for plan in plan_of(push)]


def wait_engines_gone(cluster):
    """A killed engine ends a moment later."""
    cluster.wait(lambda: not any(node.children("weightd-sync-nccl") for node in cluster), "engines are gone")


class Watched:
    """Watches for host memory on the way at any time; its count at the end is the total."""

    def __init__(self, cluster):
        self.cluster, self.found, self.over = cluster, [], threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.over.is_set():
            self.found += stagings(self.cluster)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


# --- Pushes -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", (2, 4))
def test_a_push_goes_from_gpu_to_gpu_and_through_no_host_memory(make_gpu_nodes, n):
    cluster = make_gpu_nodes(n)
    wanted = publish(cluster["a"], seed=1)
    with Watched(cluster) as watched:
        push = cluster["a"].start_push("m")
        end = push.committed()
    assert not watched.found, watched.found
    assert_all_serve(cluster, wanted)
    # Only the engines count: no kernel's number is better than a wrong one.
    assert end["planned"] == end["bytes"] == (n - 1) * n_bytes() and end["kernel"] is None, end
    plan, = plan_of(push)
    assert (plan["engine"], plan["schedule"], plan["planned"]) == ("nccl", "ring", end["planned"]), plan
    assert [link["bytes"] for link in plan["links"]] == [n_bytes()] * (n - 1), plan
    row, = [row for row in cluster["a"].history() if row["sync"] == push.sync]
    assert (row["bytes"], row["kernel"]) == (end["bytes"], None), row
    shown = cluster["a"].ctl("sync", "history", "-n", "-b", "-o", "BYTES,KERNEL,PLANNED").stdout.split()
    assert shown == [str(end["bytes"]), "-", str(end["planned"])], shown


def test_the_sockets_of_nccl_are_watched_while_it_carries_a_sync(make_gpu_nodes):
    """That they are is all that can be seen here: the stand-in has none of TCP."""
    features.require("bpf")
    with tracing.Tracer() as tracer, tracer.client() as observer:
        nodes = make_gpu_nodes(2, settings=NCCL_ENGINE | {"node": {"trace": tracer.socket}})
        publish(nodes["a"], seed=1)
        push = nodes["a"].start_push("m", max_rate=MIB)  # a busy tracer comes too late to a process that has ended
        sync = push.sync
        nodes.wait(lambda: len([row for row in observer.ask("rows") if row["sync"] == sync]) == 2, "both are watched")
        push.committed()
        nodes.wait(lambda: len([row for row in observer.ask("past") if row["sync"] == sync]) == 2, "both spans have ended")
        rows = [row for row in observer.ask("past") if row["sync"] == sync]
        agents = {row["client"]["pid"] for row in rows}
        for row in rows:
            assert (row["peer"], row["role"], row["transport"], row["sockets"]) == ("*", "payload", "nccl", 0)
            assert row["process"]["comm"] == "weightd-sync-nc"
        assert len(agents) == 2 and agents.isdisjoint(row["process"]["pid"] for row in rows)
        nodes.wait(lambda: not [row for row in observer.ask("rows") if row["sync"] == sync], "they are forgotten")


def test_they_are_watched_by_a_tracer_that_comes_back_amid_it(make_gpu_nodes):
    features.require("bpf")
    with tracing.Tracer() as tracer:
        nodes = make_gpu_nodes(2, settings=NCCL_ENGINE | {"node": {"trace": tracer.socket}})
        publish(nodes["a"], seed=1)
        push = nodes["a"].start_push("m", max_rate=MIB)
        push.moving("b")
        for node in nodes:
            node.freeze(node.engine("weightd-sync-nccl"))  # or a busy machine comes too late to them
        tracer.kill()
        tracer.start()
        observer = tracer.client()
        nodes.wait(lambda: [row["peer"] for row in observer.ask("rows") if row["sync"] == push.sync] == ["*", "*"],
                   "both are watched again")
        for node in nodes:
            node.thaw()
        push.committed()


def test_nobody_holds_memory_of_a_gpu_once_a_push_is_over(make_gpu_nodes):
    cluster = make_gpu_nodes(2)
    publish(cluster["a"], seed=1)
    cluster["a"].push("m")
    for node in cluster:
        node.daemon.ctl("rm", *device(node), "m")
        node.gpus.wait_used(0)


def test_what_did_not_change_does_not_travel(make_gpu_nodes):
    cluster = make_gpu_nodes(3, publishers="ab")
    publish(cluster["a"], seed=1)
    cluster["a"].push("m")
    for name, changes in ("a", [1]), ("b", [1, 3]):
        wanted = publish(cluster[name], seed=1, changes=changes)
        end = cluster[name].push("m")
        assert (end["changed"], end["by"], end["bytes"]) == (MIB, "leaves", 2 * MIB) or changes == [1, 3], end
        assert_all_serve(cluster, wanted)


def test_a_plan_names_the_engine_and_moves_nothing(make_gpu_nodes):
    cluster = make_gpu_nodes(3)
    publish(cluster["a"], seed=1)
    before = used(cluster)
    said = json.loads(cluster["a"].ctl("sync", "push", "--dry-run", "--json", "m").stdout)
    assert said["schedule"] == "ring" and said["planned"] == 2 * n_bytes(), said
    assert_nothing_is_left(cluster, before)
    assert show(cluster["b"]) is None


def test_what_is_in_host_memory_goes_over_tcp(make_gpu_nodes):
    cluster = make_gpu_nodes(2, on_hosts="ab")
    cluster["a"].publish("m", seed=1)
    push = cluster["a"].start_push("m")
    push.committed()
    assert [plan["engine"] for plan in plan_of(push)] == ["tcp"]
    cluster.settle("m", seed=1)


def test_those_who_receive_follow_the_publisher(make_gpu_nodes):
    cluster = make_gpu_nodes(3, settings={"data": {"security": "none"}}, start=False)
    cluster.configure(cluster["a"], data={"engine": "nccl"})
    for node in cluster:
        node.start()
    cluster.wait_connected()
    wanted = publish(cluster["a"], seed=1)
    push = cluster["a"].start_push("m")
    push.committed()
    assert [plan["engine"] for plan in plan_of(push)] == ["nccl"]
    assert_all_serve(cluster, wanted)


def test_who_comes_later_is_repaired_over_tcp(make_gpu_nodes):
    cluster = make_gpu_nodes(3, settings=NCCL_ENGINE | {"limits": {"prepare-timeout": of_nodes.ABSENCE_S}},
                             group={"policy": "each"}, absent="c")
    wanted = publish(cluster["a"], seed=1)
    cluster["a"].push("m")
    cluster["c"].start()
    cluster.wait_connected()
    assert_all_serve(cluster, wanted)
    row, = [row for row in cluster["c"].history() if row["state"] == "committed"]
    assert row["kind"] == "repair" and row["kernel"] == row["bytes"], row


# --- Impossible pushes -----------------------------------------------------------------------------

def refused(cluster, *words):
    """A push fails before a byte moves, with a sentence that has these words."""
    before = used(cluster)
    sentence = cluster["a"].start_push("m").failed()
    assert all(word in sentence for word in words), sentence
    assert_nothing_is_left(cluster, before)


def test_a_member_without_a_gpu_refuses_with_the_way_out(make_gpu_nodes):
    cluster = make_gpu_nodes(2, on_hosts="b")
    publish(cluster["a"], seed=1)
    refused(cluster, "b refused: 'm' is in host memory here", "engine = tcp at the publisher")


def test_a_member_with_another_nccl_refuses_with_both_versions(make_gpu_nodes):
    cluster = make_gpu_nodes(2, env={"b": {"FAKE_NCCL_VERSION": "22005"}})
    publish(cluster["a"], seed=1)
    refused(cluster, "b refused: NCCL is 2.20.5 here and 2.28.9 at the publisher")


def test_a_node_without_nccl_is_told_what_is_missing(make_gpu_nodes):
    cluster = make_gpu_nodes(2, publishers="ab", env={"b": {"FAKE_NCCL_VERSION": "21406"}})
    publish(cluster["a"], seed=1)
    refused(cluster, "b refused: libnccl.so.2 is NCCL 2.14.6; 2.18 or later is needed")
    publish(cluster["b"], seed=1)
    sentence = cluster["b"].start_push("m").failed()
    assert "libnccl.so.2 is NCCL 2.14.6" in sentence, sentence


def test_a_member_that_wants_tls_refuses_with_the_way_out(make_gpu_nodes):
    cluster = make_gpu_nodes(2, start=False)
    cluster.configure(cluster["b"], data={"security": "tls", "engine": "tcp"})
    for node in cluster:
        node.start()
    cluster.wait_connected()
    publish(cluster["a"], seed=1)
    refused(cluster, "b refused: it is to come over NCCL, which carries weights in the clear")


def test_a_member_whose_gpu_is_full_refuses(make_gpu_nodes):
    cluster = make_gpu_nodes(2)
    publish(cluster["a"], seed=1)
    cluster["b"].gpus.fail("cuMemCreate", 2)
    refused(cluster, "b refused")


def test_a_ring_leads_to_no_address_that_a_member_does_not_trust(make_gpu_nodes):
    cluster = make_gpu_nodes(3, start=False)
    a, b, c = cluster
    c.data_address = c.address.replace("127.", "127.0.", 1).rsplit(".", 1)[0]
    cluster.configure(b, data={"trusted": ["127.0.0.1/32", *(f"{node.address}/32" for node in cluster)]})
    for node in cluster:
        if node is not b:
            cluster.configure(node)
        node.start()
    cluster.wait_connected()
    wanted = publish(a, seed=1)
    push = a.start_push("m")
    push.committed()
    assert epochs(push)[:3] == ["nccl", "nccl", "tcp"], cluster.story()
    assert f"{c.data_address} of another node is in no 'trusted' network" in a.log, a.log
    assert_all_serve(cluster, wanted)


# --- Failures ---------------------------------------------------------------------------------------

INTERNAL_ERROR = 3
PIECES = 16  # pieces of the stand-in, 64 KiB each, in a MiB; the first of a ring is its greeting


@pytest.mark.parametrize("name, rank", (("a", 0), ("b", 1)))
def test_an_engine_that_dies_costs_a_ring_and_nothing_else(make_gpu_nodes, name, rank):
    cluster = make_gpu_nodes(3)
    wanted = publish(cluster["a"], seed=1)
    cluster[name].gpus.fail(f"ncclPiece@{rank}", "die", skip=1 + PIECES, count=1)
    push = cluster["a"].start_push("m")
    push.committed()
    assert epochs(push) == ["nccl", "nccl"]
    assert_all_serve(cluster, wanted)
    assert not stagings(cluster)


def test_what_two_rings_did_not_bring_goes_over_tcp_and_nothing_else(make_gpu_nodes):
    size = 64 * MIB + 5 * MIB  # the first bucket of the first ring arrives, and no other
    cluster = make_gpu_nodes(3)
    wanted = publish(cluster["a"], seed=1, size=size)
    cluster["b"].gpus.fail("ncclPiece@1", "hang", skip=1 + 64 * PIECES + 5)
    push = cluster["a"].start_push("m")
    cluster.wait(lambda: [row["done"] for name in "bc" for row in cluster[name].status()] == [64 * MIB] * 2, "one bucket arrived")
    cluster["b"].gpus.fail_instead(
        ("ncclPiece@1", INTERNAL_ERROR, 0, 1),
        # The next ring: the node that broke one is the last in it, unless a neighbour's report stopped it before its own.
        ("ncclPiece@1", INTERNAL_ERROR, 1, 1),
        ("ncclPiece@2", INTERNAL_ERROR, 1, 1),
    )
    end = push.committed()
    assert epochs(push) == ["nccl", "nccl", "tcp"], cluster.story()
    # Broken epochs count nothing, so this is all of the last one's.
    assert end["kernel"] == end["bytes"] == end["planned"] == 2 * planned(n_bytes(size) - 64 * MIB), end
    assert_all_serve(cluster, wanted)
    wait_unstaged(cluster)


def test_nccl_that_works_nowhere_leaves_all_to_tcp(make_gpu_nodes):
    cluster = make_gpu_nodes(3)
    for node in cluster:
        node.gpus.fail("ncclCommInitRankConfig", INTERNAL_ERROR)
    wanted = publish(cluster["a"], seed=1)
    push = cluster["a"].start_push("m")
    push.committed()
    assert epochs(push) == ["nccl", "nccl", "tcp"]
    assert_all_serve(cluster, wanted)


def test_nccl_that_hangs_is_ended_by_a_deadline(make_gpu_nodes):
    cluster = make_gpu_nodes(2, settings=NCCL_ENGINE | {"limits": {"stall-timeout": of_nodes.STALL_S}})
    wanted = publish(cluster["a"], seed=1)
    cluster["b"].gpus.fail("ncclPiece@1", "hang")
    push = cluster["a"].start_push("m")
    push.committed()
    assert epochs(push) == ["nccl", "nccl", "tcp"]
    cluster["b"].gpus.heal()
    assert_all_serve(cluster, wanted)
    wait_engines_gone(cluster)


def test_bytes_that_nccl_changed_are_brought_by_tcp_and_nothing_else(make_gpu_nodes):
    cluster = make_gpu_nodes(2)
    a, b = cluster
    wanted = publish(a, seed=1)
    needle = content(1, n_bytes())[2 * MIB:2 * MIB + 64]
    b.gpus.fail("cuLaunchKernel", "hang")
    a.gpus.fail("ncclAllReduce", "hang", count=1)  # all is there, and no node can see that yet
    push = a.start_push("m")
    cluster.wait(lambda: b.gpus.holds(needle), "all was copied")
    b.gpus.poke(needle, bytes([needle[0] ^ 1]) + needle[1:])
    a.gpus.heal()
    b.gpus.heal()
    end = push.committed()
    assert epochs(push) == ["nccl", "tcp"], cluster.story()
    assert end["bytes"] == n_bytes() + planned(MIB) and end["kernel"] is None, end
    assert_all_serve(cluster, wanted)


def test_too_slow_a_rate_for_nccl_is_one_for_tcp(make_gpu_nodes):
    cluster = make_gpu_nodes(2, settings=NCCL_ENGINE | {"limits": {"stall-timeout": 5}})
    wanted = publish(cluster["a"], seed=1, size=MIB // 4)
    push = cluster["a"].start_push("m", max_rate=MIB)
    push.committed()
    assert epochs(push) == ["tcp"]
    assert_all_serve(cluster, wanted)


def test_a_node_that_is_lost_leaves_the_rest_a_version_or_nothing(make_gpu_nodes):
    for policy, state in ("all", "failed"), ("each", "committed"):
        cluster = make_gpu_nodes(3, group={"policy": policy})
        publish(cluster["a"], seed=1)
        cluster["a"].push("m")
        before = used(cluster)
        wanted = publish(cluster["a"], seed=2)
        cluster["c"].gpus.fail("ncclPiece@2", "hang", skip=1)
        push = cluster["a"].start_push("m")
        cluster.wait(lambda: cluster["c"].children("weightd-sync-nccl") and
                     any(row["phase"] == "bytes" for row in cluster["a"].status(push.sync)), "bytes move")
        cluster["c"].kill()
        assert push.end()["state"] == state, cluster.story()
        assert sha256(cluster["b"]) == (wanted if policy == "each" else digest_of(1, of_nodes.SIZE))
        if policy == "all":
            assert_nothing_is_left(cluster, {"b": before["b"]})


def test_an_unlucky_push_keeps_neither_memory_nor_engines(make_gpu_nodes):
    cluster = make_gpu_nodes(2)
    publish(cluster["a"], seed=1)
    cluster["a"].push("m")
    before = used(cluster)
    wanted = sha256(cluster["b"])
    publish(cluster["a"], seed=2)
    cluster["a"].gpus.fail("ncclPiece@0", "hang", skip=1)
    push = cluster["a"].start_push("m")
    cluster.wait(lambda: cluster["b"].children("weightd-sync-nccl") and
                 any(row["phase"] == "bytes" for row in cluster["a"].status(push.sync)), "bytes move")
    cluster["a"].ctl("sync", "cancel", push.sync)
    push.failed()
    cluster["a"].gpus.heal()
    assert_nothing_is_left(cluster, {"b": before["b"]})
    assert sha256(cluster["b"]) == wanted
    wait_engines_gone(cluster)


# --- One task -------------------------------------------------------------------------------------

SIZES = ("a", LEAF + 4096), ("b", 2 * LEAF)
DATA = content(1, sum(size for _, size in SIZES))
VERSION = 22809  # version of the stand-in



@pytest.fixture
def gpu_daemon(make_daemon, gpu):
    return make_daemon(env=gpu.env_with_nccl())


@pytest.fixture
def task(gpu_daemon):
    with contextlib.ExitStack() as stack:
        yield lambda role: stack.enter_context(Task(gpu_daemon, role))


class Memory:
    """The allocation that a step makes, as the file that stands for it."""

    def __init__(self, gpus, step):
        before = set(gpus.files())
        self.said = step()
        (path,) = set(gpus.files()) - before
        assert (self.said["memory"], self.said["gpu"], self.said["nccl"]) == ("cuda", gpus.device(), VERSION), self.said
        assert self.said["map_size"] == path.stat().st_size - PAGE and len(self.said.fds) == 1
        self.path = path

    def write(self, offset, data):
        with open(self.path, "r+b") as f:
            f.seek(offset)
            f.write(data)

    def read(self, offset, n):
        with open(self.path, "rb") as f:
            f.seek(offset)
            return f.read(n)


def send_create(daemon, sink, data=DATA, sizes=SIZES, base=None, **fields):
    tree, layout = Tree(data), image(sizes)
    fds = [memfd(layout), memfd(tree.leaves)] + ([memfd(Tree(base[1]).leaves)] if base else [])
    if base:
        fields |= {"base": {"version": base[0], "n_bytes": len(base[1])}}
    sink.tell("create", fds, **{"socket": daemon.socket, "buffer": "m", "device": "cuda:0", "n_bytes": len(data),
                                "layout": sha256_of(layout), "root": tree.root, "engine": "nccl"} | fields)
    for fd in fds:
        os.close(fd)


def create(daemon, gpus, sink, **more):
    def step():
        send_create(daemon, sink, **more)
        return sink.hear("created")

    return Memory(gpus, step)


def make_version(daemon, gpus, task, data=DATA):
    sink = task("sink")
    create(daemon, gpus, sink, data=data).write(0, data)
    assert sink.verify()["op"] == "verified"
    return sink.publish()


def attach(daemon, source, **fields):
    return source.attach(daemon, **{"device": "cuda:0", "engine": "nccl"} | fields)


def has_staging(task):
    process = pathlib.Path(f"/proc/{task.proc.pid}")
    return "sync-staging" in (process / "maps").read_text()


def blocks(fd):
    """Bytes of host memory that it has."""
    return os.fstat(fd).st_blocks * 512


def test_a_sink_publishes_what_was_written_to_its_gpu(gpu_daemon, gpu, task):
    sink = task("sink")
    memory = create(gpu_daemon, gpu, sink)
    assert memory.said["missing"] == [[0, len(DATA)]]
    memory.write(0, DATA)
    assert sink.verify()["op"] == "verified" and not has_staging(sink)
    assert sink.publish() == 1
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


def test_a_sink_finds_what_is_wrong_on_its_gpu(gpu_daemon, gpu, task):
    sink = task("sink")
    memory = create(gpu_daemon, gpu, sink)
    memory.write(0, DATA)
    memory.write(LEAF + 9, b"?")
    said = sink.verify()
    assert said["op"] == "corrupt" and said["ranges"] == [[LEAF, LEAF]], said
    memory.write(LEAF, DATA[LEAF:2 * LEAF])
    assert sink.verify()["op"] == "verified"
    sink.publish()
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


def test_what_nccl_did_not_bring_goes_through_host_memory_and_nothing_else(gpu_daemon, gpu, task):
    sink = task("sink")
    memory = create(gpu_daemon, gpu, sink)
    memory.write(0, DATA[:2 * LEAF])
    sink.tell("stage", ranges=[[2 * LEAF, 5]])
    staging, = sink.hear("staged").fds
    assert blocks(staging) == LEAF and os.fstat(staging).st_size == len(DATA)
    os.pwrite(staging, DATA[2 * LEAF:3 * LEAF], 2 * LEAF)
    said = sink.verify()
    assert said["op"] == "corrupt" and said["ranges"] == [[3 * LEAF, len(DATA) - 3 * LEAF]], said
    sink.tell("stage", ranges=said["ranges"])
    again, = sink.hear("staged").fds
    os.pwrite(again, DATA[3 * LEAF:], 3 * LEAF)
    assert os.pread(staging, 3, 3 * LEAF) == DATA[3 * LEAF:3 * LEAF + 3]  # it is the same memory
    assert sink.verify()["op"] == "verified" and not has_staging(sink)
    assert memory.read(0, len(DATA)) == DATA
    sink.publish()
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


def test_what_is_staged_begins_as_the_gpu_has_it(gpu_daemon, gpu, task):
    sink = task("sink")
    memory = create(gpu_daemon, gpu, sink)
    memory.write(0, DATA)
    sink.tell("stage", ranges=[[LEAF - 1, 2]])
    staging, = sink.hear("staged").fds
    assert os.pread(staging, 2 * LEAF, 0) == DATA[:2 * LEAF] and blocks(staging) == 2 * LEAF
    assert sink.verify()["op"] == "verified"


def test_leaves_that_both_versions_have_are_copied_on_the_gpu(gpu_daemon, gpu, task):
    version = make_version(gpu_daemon, gpu, task)
    new = DATA[:LEAF] + bytes(LEAF) + DATA[2 * LEAF:]
    sink = task("sink")
    memory = create(gpu_daemon, gpu, sink, data=new, base=(version, DATA))
    assert memory.said["missing"] == [[LEAF, LEAF]] and memory.said["has_base"]
    sink.tell("patch", [memory.said.fds[0]])  # it has nothing to begin with here
    assert "nothing to apply it to" in sink.hear("patched")["why"]
    memory.write(LEAF, bytes(LEAF))
    assert sink.verify()["op"] == "verified"
    assert memory.read(0, len(new)) == new
    assert sink.publish() == version + 1
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


def test_a_source_lends_the_memory_itself_and_copies_of_what_is_asked_for(gpu_daemon, gpu, task):
    make_version(gpu_daemon, gpu, task)
    source = task("source")
    said, root = attach(gpu_daemon, source)
    layout, memory = said.fds
    assert (said["memory"], said["gpu"], said["nccl"]) == ("cuda", gpu.device(), VERSION), said
    assert said["map_size"] >= len(DATA) and root["root"] == Tree(DATA).root and not has_staging(source)
    source.tell("stage", ranges=[[2 * LEAF, LEAF]])
    staging, = source.hear("staged").fds
    assert os.pread(staging, LEAF, 2 * LEAF) == DATA[2 * LEAF:3 * LEAF] and blocks(staging) == LEAF
    with pytest.raises(OSError):
        os.pwrite(staging, b"?", 0)
    gpu_daemon.ctl("rm", "--device", "cuda:0", "m")  # the lease keeps it
    source.tell("stage", ranges=[[0, 1]])
    assert os.pread(source.hear("staged").fds[0], LEAF, 0) == DATA[:LEAF]


def test_nothing_is_staged_of_what_moves_through_host_memory_anyway(gpu_daemon, gpu, task):
    make_version(gpu_daemon, gpu, task)
    source, sink = task("source"), task("sink")
    source.attach(gpu_daemon, device="cuda:0")
    source.tell("stage", ranges=[[0, 1]])
    assert source.failure()[0] == "malformed"
    send_create(gpu_daemon, sink, engine=None)
    sink.hear("created")
    sink.tell("stage", ranges=[[0, 1]])
    assert sink.failure()[0] == "malformed"


@pytest.mark.parametrize("ranges", (None, [[0, 1 << 40]], [[5, 0]], "all"))
def test_ranges_that_are_none_are_refused(gpu_daemon, gpu, task, ranges):
    sink = task("sink")
    create(gpu_daemon, gpu, sink)
    sink.tell("stage", ranges=ranges)
    assert sink.failure()[0] == "malformed"


@pytest.mark.parametrize("fields, words", (
    ({"engine": "gloo"}, ("an engine that does not support GPUs",)), ({"nccl": "2"}, ("an engine that does not support GPUs",)),
    ({"device": "host"}, ("'m' is in host memory here", "set 'device' of its group here")),
    ({"nccl": 22005}, ("NCCL is 2.28.9 here and 2.20.5 at the publisher", "install the same on all nodes"))))
def test_a_sink_refuses_what_nccl_cannot_do_here(gpu_daemon, task, fields, words):
    sink = task("sink")
    send_create(gpu_daemon, sink, **fields)
    _, why = sink.failure()
    assert all(word in why for word in words), why


def test_without_nccl_both_refuse_with_what_is_missing(make_daemon, gpu):
    daemon = make_daemon(env=gpu.env_with_nccl(FAKE_NCCL_VERSION="21406"))
    with Task(daemon, "sink") as sink, Task(daemon, "source") as source:
        send_create(daemon, sink)
        source.tell("attach", socket=daemon.socket, buffer="m", device="cuda:0", engine="nccl")
        for task in sink, source:
            assert task.failure()[1] == "libnccl.so.2 is NCCL 2.14.6; 2.18 or later is needed"


def test_memory_of_the_older_kind_is_refused_with_the_way_out(gpu_daemon, gpu, task, tmp_path):
    gpu.python(f"""
import weightd
layout = weightd.Layout()
layout.add("a", "U8", ({len(DATA)},))
with weightd.create("m", layout, device="cuda", handle="ipc", socket={gpu_daemon.socket!r}) as writer:
    writer.publish()
""")
    source, sink = task("source"), task("sink")
    source.tell("attach", socket=gpu_daemon.socket, buffer="m", device="cuda:0", engine="nccl")
    send_create(gpu_daemon, sink)
    for task in source, sink:
        code, why = task.failure()
        assert code == "unsupported" and "cuda-ipc memory, which has no descriptor" in why and "engine = tcp at the publisher" in why, why


def test_what_is_staged_takes_no_memory_a_second_time(gpu_daemon, gpu, task):
    """There is room for one and a half times as much, beside what is left to others."""
    features.require("cgroup")
    data = content(1, 64 * LEAF)
    reserve = min(512 * MIB, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16)
    with MemoryCgroup(reserve + len(data) * 3 // 2) as group:
        sink = task("sink")
        create(gpu_daemon, gpu, sink, data=data, sizes=[("a", len(data))])
        (group.path / "cgroup.procs").write_text(str(sink.proc.pid))
        for begin in 0, 0, 1:
            sink.tell("stage", ranges=[[begin * LEAF, len(data) - begin * LEAF]])
            staging, = sink.hear("staged").fds
            assert blocks(staging) == len(data)
        sink.forget()
        sink.end()


def test_host_memory_that_there_is_not_is_refused_by_who_stages(gpu_daemon, gpu, task):
    features.require("cgroup")
    with MemoryCgroup(len(DATA)) as group:
        sink = task("sink")
        create(gpu_daemon, gpu, sink)
        (group.path / "cgroup.procs").write_text(str(sink.proc.pid))
        sink.tell("stage", ranges=[[0, len(DATA)]])
        code, why = sink.failure()
        assert code == "memory" and "MemoryMax=" in why, why
        sink.end()

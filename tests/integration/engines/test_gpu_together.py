"""
Averages and reshards of versions on GPUs, through host memory: on each node the result is that of arithmetic, and on its
GPU the received bytes; and failures on the way leave all as they were. Proved on the stand-in for the driver alone.
"""
import contextlib
import json
import os
import signal

import pytest
from integration.engines.floats import draw, encode
from integration.engines.local_task import LEAF, Task, Tree, has_staging, sha256
from integration.engines.test_average_push import BYTES, TENSORS, average, layout_of, mean_of
from integration.engines.test_exchange import FSDP_TO_TP, UNEVEN
from integration.sync.test_reshard_push import LARGE, LAYOUTS, Model, refusal
from lib import features, wire
from lib.cgroup import MemoryCgroup
from lib.engine import program
from lib.gpu_nodes import assert_nothing_is_left, device, read, stagings, used, wait_unstaged, write
from lib.nodes import MIB, content, until
from lib.wire import Wire, image, memfd

PLAIN = {"data": {"security": "none"}}
ILLEGAL_ADDRESS = 700
ALIGNMENT = 256  # that of GPUs: a host has the same layout only if it is given


@pytest.fixture(autouse=True)
def np():
    features.require("gloo", available=program("gloo").exists())
    features.require("numpy")
    import numpy
    return numpy


@pytest.fixture
def make(make_nodes, make_gpus):
    """make(3, "bc"): so many nodes, of which these have their group on a GPU."""
    return lambda n, on_gpus, **kw: make_nodes(n, **{"settings": PLAIN} | kw, gpus={name: make_gpus() for name in on_gpus})


# --- Averages ---------------------------------------------------------------------------------------


def flat(contents):
    """Tensors as they lie in a buffer, with nothing between them."""
    layout = layout_of(TENSORS, ALIGNMENT)
    data = bytearray(layout.nbytes)
    for entry in layout:
        data[entry.offset:entry.offset + entry.nbytes] = contents[entry.name]
    return bytes(data)


class Trained:
    """A version of its own at each node, and what `mean` makes of them. `odd` is the rank with another id."""

    def __init__(self, np, nodes, seed=0, odd=None, mean=mean_of):
        self.nodes, contents = nodes, []
        for rank, _ in enumerate(nodes):
            contents.append({name: bytes([7 + (rank == odd)]) * (8 * n) if dtype == "I64" else
                             encode(np, dtype, draw(np, seed + 10 * rank + i, n)) for i, (name, dtype, n) in enumerate(TENSORS)})
        self.contents, self.mean = [flat(c) for c in contents], flat(mean(np, contents))
        for node, data in zip(nodes, self.contents):
            write(node, "m", layout_of(TENSORS, ALIGNMENT), data)

    def assert_averaged(self):
        for node in self.nodes:
            assert read(node, "m") == self.mean, node
        digests = [json.loads(node.daemon.ctl("show", "--json", *device(node), "m").stdout)["digest"] for node in self.nodes]
        assert len(set(digests)) == 1, digests

    def assert_untouched(self):
        for node, data in zip(self.nodes, self.contents):
            assert read(node, "m") == data, node


@pytest.mark.parametrize("on_gpus", ("b", "abc"), ids=("one-of-three", "all"))
def test_the_mean_is_numpys_on_hosts_and_on_gpus(make, np, on_gpus):
    nodes = make(3, on_gpus)
    trained = Trained(np, nodes)
    end = json.loads(average(nodes["a"], "--json").stdout)
    assert end["state"] == "committed" and end["planned"] == end["bytes"] == end["kernel"] > 4 * sum(
        BYTES[dtype] * n for _, dtype, n in TENSORS if dtype != "I64"), end
    trained.assert_averaged()
    nodes.rest("m")
    wait_unstaged(nodes)


def test_what_was_averaged_on_a_gpu_is_averaged_and_fetched_like_any_version(make, np):
    nodes = make(2, "b")
    Trained(np, nodes)
    average(nodes["a"])
    trained = Trained(np, nodes, seed=100)
    average(nodes["a"])
    trained.assert_averaged()
    nodes.rest("m")
    nodes["b"].daemon.kill()
    nodes["b"].daemon.start()
    nodes.wait(lambda: read(nodes["b"], "m"), "b has it again")
    nodes.rest("m")
    trained.assert_averaged()


def test_a_dry_run_leaves_nothing_on_a_gpu(make, np):
    nodes = make(2, "ab")
    trained = Trained(np, nodes)
    before = used(nodes)
    assert json.loads(average(nodes["a"], "--dry-run", "--json").stdout)["schedule"] == "all-to-all"
    assert_nothing_is_left(nodes, before)
    trained.assert_untouched()


def begun(nodes):
    """An average that moves its bytes slowly: the weightctl that waits for it, and the engine of b."""
    waiter = nodes["a"].daemon.spawn("sync", "average", "m", "--max-rate", 150_000, "--sync-socket", nodes["a"].control_socket,
                                     text=True)
    return waiter, nodes["b"].engine("weightd-sync-gloo")


def test_the_gpu_is_free_of_what_it_gave_while_bytes_move(make, np):
    """The trainer there publishes the next version, and has room for it."""
    nodes = make(2, "b")
    trained = Trained(np, nodes)
    waiter, engine = begun(nodes)
    assert stagings(nodes)
    with Wire(nodes["b"].daemon.socket) as w:
        assert [slot.n_leases for slot in w.list(wire.SLOTS) if slot.state == wire.CURRENT] == [0]
    os.kill(engine, signal.SIGKILL)  # the copied bytes are sent once more
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 0, err
    assert {row["epoch"] for row in nodes["a"].status()} == {2}
    trained.assert_averaged()


@pytest.mark.parametrize("symbol, words", (("cuMemcpyDtoH", "cannot be read"), ("cuMemcpyHtoD", "cannot be written")),
                         ids=("before", "after"))
def test_a_gpu_that_is_lost_fails_it_and_not_the_next(make, np, symbol, words):
    nodes = make(2, "b")
    trained = Trained(np, nodes)
    before = used(nodes)
    nodes["b"].gpus.fail(symbol, ILLEGAL_ADDRESS)
    said = refusal(average(nodes["a"], check=False))
    assert "b " in said and words in said and "CUDA_ERROR_ILLEGAL_ADDRESS" in said, said
    assert "every node still serves what it had" in said, said
    nodes["b"].gpus.heal()
    assert_nothing_is_left(nodes, before)
    trained.assert_untouched()
    average(nodes["a"])
    trained.assert_averaged()


def test_a_mean_that_does_not_arrive_on_the_gpu_is_served_nowhere(make, np):
    nodes = make(2, "b")
    trained = Trained(np, nodes)
    before, needle = used(nodes), trained.mean[4096:4160]
    nodes["b"].gpus.fail("cuLaunchKernel", "hang")  # it copies, and does not digest yet
    waiter = nodes["a"].daemon.spawn("sync", "average", "m", "--sync-socket", nodes["a"].control_socket, text=True)
    nodes.wait(lambda: nodes["b"].gpus.holds(needle), "it was copied")
    nodes["b"].gpus.poke(needle, bytes([needle[0] ^ 1]) + needle[1:])
    nodes["b"].gpus.heal()
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 1 and "did not arrive on the GPU as it came" in err, err
    assert_nothing_is_left(nodes, before)
    trained.assert_untouched()


def test_an_agent_that_is_killed_leaves_nothing_on_its_gpu(make, np):
    nodes = make(2, "b")
    trained = Trained(np, nodes)
    before = used(nodes)
    waiter, _ = begun(nodes)
    assert stagings(nodes) and used(nodes)["b"] > before["b"]
    nodes["b"].kill()
    _, err = waiter.communicate(timeout=60)
    assert waiter.returncode == 1 and "b " in err, err
    assert_nothing_is_left(nodes, before)
    trained.assert_untouched()


def test_host_memory_for_what_is_given_and_for_the_mean_is_asked_for_at_once(make):
    """There is room for one of the two."""
    features.require("cgroup")
    nodes, size = make(2, "b"), 64 * MIB
    for node in nodes:
        write(node, "m", layout_of([("w", "F32", size // 4)], ALIGNMENT), bytes(size))
    before = used(nodes)
    with MemoryCgroup(size * 7 // 4) as group:
        (group.path / "cgroup.procs").write_text(str(nodes["b"].proc.pid))
        done = average(nodes["a"], check=False)
        nodes["b"].stop()
    said = refusal(done)
    assert "b refused: a version on a GPU goes through host memory between nodes: 134.2 MB" in said, said
    assert "MemoryMax=" in said and "every node still serves what it had" in said, said
    assert_nothing_is_left(nodes, before)
    nodes["b"].start()
    nodes.wait_connected()
    average(nodes["a"])


# --- Reshards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, on_gpus, tensors", (
    ("4-to-2", "abcd", UNEVEN), ("2-to-4", "bd", LARGE), ("gather", "d", FSDP_TO_TP), ("scatter", "ac", UNEVEN),
    ("to-some-of-them", "abcd", LARGE)))
def test_shards_on_hosts_and_on_gpus_become_what_numpy_makes_of_them(make, np, kind, on_gpus, tensors):
    sources, targets = LAYOUTS[kind]
    nodes = make(len(set(sources + targets)), on_gpus)
    m = Model(np, nodes, tensors, sources, targets)
    end = json.loads(m.reshard("--json").stdout)
    assert end["state"] == "committed" and end["planned"] == end["bytes"] == end["kernel"], end
    m.assert_there()
    wait_unstaged(nodes)


def test_nothing_is_copied_for_a_reshard_that_cannot_be(make, np):
    nodes = make(2, "ab")
    m = Model(np, nodes, FSDP_TO_TP, "ab", "b")
    m.split.write_text(json.dumps({"split": [{"tensors": "x", "dim": 0}]}))
    for node in nodes:
        node.gpus.fail("cuMemcpyDtoH", ILLEGAL_ADDRESS)
    assert "no rule of the split matches tensor 't.0'" in refusal(m.reshard(check=False))
    for node in nodes:
        node.gpus.heal()
    m.assert_untouched()


@pytest.mark.parametrize("who, symbol, words", (("b", "cuMemcpyDtoH", "cannot be read"), ("c", "cuMemcpyHtoD", "cannot be written")),
                         ids=("source", "target"))
def test_a_gpu_that_is_lost_fails_the_reshard_for_all(make, np, who, symbol, words):
    nodes = make(3, "bc")
    m = Model(np, nodes, LARGE, "ab", "ac")
    before = used(nodes)
    nodes[who].gpus.fail(symbol, ILLEGAL_ADDRESS)
    said = refusal(m.reshard(check=False))
    assert f"{who} " in said and words in said and "every node still serves what it had" in said, said
    nodes[who].gpus.heal()
    assert_nothing_is_left(nodes, before)
    m.assert_untouched()
    m.reshard()
    m.assert_there()


# --- One task -------------------------------------------------------------------------------------

SIZES = ("a", LEAF + 3), ("b", 2 * LEAF)
OFFSET = LEAF + 64  # offset of b; nothing lies before it
DATA = content(1, LEAF + 3) + bytes(OFFSET - LEAF - 3) + content(2, 2 * LEAF)


@pytest.fixture
def gpu_daemon(make_daemon, gpu):
    return make_daemon(env=gpu.env)


@pytest.fixture
def task(gpu_daemon):
    with contextlib.ExitStack() as stack:
        yield lambda role: stack.enter_context(Task(gpu_daemon, role))


def made(daemon, sink, name="cuda:0"):
    """The memory of a version that has no root yet."""
    layout = image(SIZES)
    fd = memfd(layout)
    sink.tell("make", [fd], socket=daemon.socket, buffer="m", device=name, n_bytes=len(DATA), layout=sha256(layout))
    os.close(fd)
    said = sink.hear("created")
    assert said["memory"] == "host" and "missing" not in said, said
    return said.fds[0]


def published(daemon, task, name="cuda:0"):
    sink = task("sink")
    os.pwrite(made(daemon, sink, name), DATA, 0)
    assert sink.verify()["op"] == "verified"
    sink.publish()


def lent(daemon, source, op="give", name="cuda:0"):
    source.tell(op, socket=daemon.socket, buffer="m", device=name, version=0)
    return source.hear("attached")


def test_what_is_computed_in_host_memory_is_what_the_gpu_proves_to_have(gpu_daemon, gpu, task):
    sink = task("sink")
    memory = made(gpu_daemon, sink)
    assert os.pread(memory, len(DATA) + 1, 0) == bytes(len(DATA)) and os.fstat(memory).st_blocks * 512 >= len(DATA)
    os.pwrite(memory, DATA[:LEAF + 3], 0)
    os.pwrite(memory, DATA[OFFSET:], OFFSET)
    said, tree = sink.verify(), Tree(DATA)
    assert (said["op"], said["root"]) == ("verified", tree.root) and os.pread(said.fds[0], 4096, 0) == tree.leaves
    assert not has_staging(sink)
    os.pwrite(memory, b"?", 7)  # without an owner now
    assert sink.publish() == 1
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")
    source = task("source")
    _, root = source.attach(gpu_daemon, device="cuda:0")
    assert root["root"] == tree.root


@pytest.mark.parametrize("op, n", (("give", 1), ("lend", 2)))
def test_a_gpus_version_is_copied_when_that_is_asked_for(gpu_daemon, gpu, task, op, n):
    published(gpu_daemon, task)
    source = task("source")
    said = lent(gpu_daemon, source, op)
    assert len(said.fds) == n and "memory" not in said and source.is_silent() and not has_staging(source), said
    source.tell("copy", beside=0)
    copy, = source.hear("copied").fds
    assert os.pread(copy, len(DATA) + 1, 0) == DATA
    until(lambda: not has_staging(source), "it is the agent's alone")
    with pytest.raises(OSError):
        os.pwrite(copy, b"?", 0)
    with Wire(gpu_daemon.socket) as w:
        assert [(s.state, s.n_leases) for s in w.list(wire.SLOTS)] == [(wire.CURRENT, 0)]
    source.tell("copy", beside=0)
    assert source.failure()[0] == "malformed"


def test_who_has_no_room_for_what_comes_next_copies_nothing(gpu_daemon, gpu, task):
    published(gpu_daemon, task)
    source = task("source")
    lent(gpu_daemon, source)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    source.tell("copy", beside=machine)
    code, why = source.failure()
    assert code == "memory" and f"{(machine + len(DATA)) / 1e9:.1f} GB of it are needed" in why, why


@pytest.mark.parametrize("op, name, fields", (("give", "host", {"beside": 0}), ("attach", "cuda:0", {"beside": 0}),
                                              ("give", "cuda:0", {}), ("give", "cuda:0", {"beside": -1})))
def test_what_is_not_to_be_copied_is_refused(gpu_daemon, gpu, task, op, name, fields):
    published(gpu_daemon, task, name)
    source = task("source")
    lent(gpu_daemon, source, op, name)
    if op == "attach":
        source.hear("root")
    source.tell("copy", **fields)
    assert source.failure()[0] == "malformed"

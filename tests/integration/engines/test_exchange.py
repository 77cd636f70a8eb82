"""
Exchanges of weightd-sync-gloo over loopback: shards that become other shards. Which bytes go where is computed here
anew, element by element, and written down as an agent would write it.
"""
import contextlib
import hashlib
import itertools
import signal
import struct

import pytest
from lib import features
from lib.engine import PREAMBLE, WORD, Engine, Exchange, Memory, plan, program, sealed

SLOW = 1 << 22
STALL_MS = 5_000
LEAF = 1 << 20
REPLICATED = None


@pytest.fixture(autouse=True)
def np():
    features.require("gloo", available=program("gloo").exists())
    features.require("numpy")
    import numpy
    return numpy


# --- The model -------------------------------------------------------------------------------------


def cut(n, ranks):
    """The bounds of the shards of n, as torch.chunk() has them; ranks that it has none for have nothing."""
    step = -(-n // ranks)
    return [(min(r * step, n), min((r + 1) * step, n)) for r in range(ranks)]


def shard(array, dim, ranks, rank):
    if dim is REPLICATED:
        return array
    begin, end = cut(array.shape[dim], ranks)[rank]
    return array[(slice(None),) * dim + (slice(begin, end),)]


class Model:
    """Tensors of [shape, from, to], their elements 4 bytes long and all different, in R shards and in S."""

    def __init__(self, np, tensors, r, s):
        self.np, self.tensors, self.ranks = np, tensors, (r, s)
        self.wholes, n = [], 1
        for shape, *_ in tensors:
            count = int(np.prod(shape))
            self.wholes.append(np.arange(n, n + count, dtype=np.uint32).reshape(shape))
            n += count

    def memory(self, side, rank):
        """The bytes of a buffer, each tensor at a multiple of 256, and where those are."""
        content, places = b"", []
        for whole, (_, *dims) in zip(self.wholes, self.tensors):
            content += bytes(-len(content) % 256)
            places.append(len(content))
            content += shard(whole, dims[side], self.ranks[side], rank).tobytes()
        return content + bytes(-len(content) % 256), places

    def giver(self, target, source_of):
        """The source of this target, for bytes that all sources have."""
        return source_of.get(target, target % self.ranks[0])

    def moves(self, source, target, giver):
        """(from, to, run, n, from stride, to stride, n, from stride, to stride), not the longest that there could be."""
        np, found = self.np, []
        (_, places), (_, there) = self.memory(0, source), self.memory(1, target)
        for i, (whole, (_, *dims)) in enumerate(zip(self.wholes, self.tensors)):
            if dims[0] is REPLICATED and giver != source:
                continue
            ours = shard(whole, dims[0], self.ranks[0], source).ravel()
            theirs = shard(whole, dims[1], self.ranks[1], target).ravel()
            _, begin, end = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
            runs = []
            for a, b in zip(begin.tolist(), end.tolist()):
                if runs and (a, b) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
                    runs[-1][2] += 1
                else:
                    runs.append([a, b, 1])
            found += self.strided(runs, places[i], there[i])
        return found

    @staticmethod
    def strided(runs, place, there):
        """Runs of one length and distance as one move."""
        steps = {(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(runs)}
        if len(runs) > 1 and len(steps) == 1 and len({run[2] for run in runs}) == 1:
            (a, b, n), ((da, db),) = runs[0], steps
            return [(place + 4 * a, there + 4 * b, 4 * n, 1, 0, 0, len(runs), 4 * da, 4 * db)]
        return [(place + 4 * a, there + 4 * b, 4 * n, 1, 0, 0, 1, 0, 0) for a, b, n in runs]


class Case:
    """Ranks of a model on nodes, by number: the input of an Exchange, and the right result."""

    def __init__(self, np, tensors, sources, targets):
        self.model = Model(np, tensors, len(sources), len(targets))
        self.n_nodes = max(*sources, *targets) + 1
        self.sources, self.expected = [None] * self.n_nodes, [None] * self.n_nodes
        for rank, node in enumerate(sources):
            self.sources[node] = self.model.memory(0, rank)[0]
        for rank, node in enumerate(targets):
            self.expected[node] = self.model.memory(1, rank)[0]
        source_of = {target: sources.index(node) for target, node in enumerate(targets) if node in sources}
        self.links = {}
        for (source, a), (target, b) in itertools.product(enumerate(sources), enumerate(targets)):
            if moves := self.model.moves(source, target, self.model.giver(target, source_of)):
                self.links[a, b] = moves
        self.plan = plan([(len(a or b""), len(b or b"")) for a, b in zip(self.sources, self.expected)], self.links)

    def n_bytes(self, link):
        return sum(run * n * m for _, _, run, n, _, _, m, _, _ in self.links.get(link, ()))

    def exchange(self, **kw):
        return Exchange(self.sources, [len(e or b"") for e in self.expected], [self.plan] * self.n_nodes, **kw)

    def stream(self, link):
        """Its bytes, taken out of what the target has to have."""
        content = self.expected[link[1]]
        return b"".join(content[there + i * db + k * dd:][:run]
                        for _, there, run, n, _, db, m, _, dd in self.links[link] for i in range(n) for k in range(m))


def root(data):
    """server/sync/base/merkle.h"""
    leaves = b"".join(hashlib.sha256(b"\0" + data[i:i + LEAF]).digest() for i in range(0, len(data), LEAF))
    return hashlib.sha256(b"\1" + struct.pack(">Q", len(data)) + leaves).hexdigest()


def planned(sent, received, chunk):
    """The bytes that a node sends over a wire: gloo_planned_mesh() of server/sync/base/planned_bytes.h."""
    n_sent, n_received = -(-sent // chunk), -(-received // chunk)
    return 96 * (n_sent + 2) + PREAMBLE + 24 + 32 + WORD + sent + 48 * (n_received + 2)


# --- Results of reshards -----------------------------------------------------------------------------

FSDP_TO_TP = [((40, 30), 0, 0), ((30, 40), 0, 1), ((30,), 0, REPLICATED), ((7, 3, 5), REPLICATED, REPLICATED)]
UNEVEN = [((10, 3), 0, 0), ((5,), 0, 0), ((3, 10, 2), 1, 1), ((4, 11), 1, 0), ((1, 6), 0, 1), ((6,), REPLICATED, 0)]


@pytest.mark.parametrize("sources, targets", (
    ((0, 1, 2, 3), (4, 5)), ((0, 1), (2, 3, 4, 5)), ((0, 1, 2), (3,)), ((0,), (1, 2, 3)), ((0, 1, 2, 3), (2, 0)),
    ((0, 1), (1, 0, 2))), ids=("4-to-2", "2-to-4", "gather", "scatter", "4-to-2-of-them", "2-to-them-and-another"))
@pytest.mark.parametrize("tensors", ([((64, 96), 0, 0)], [((64, 96), 1, 1)], FSDP_TO_TP, UNEVEN),
                         ids=("dim-0", "dim-1", "fsdp-to-tp", "uneven"))
def test_shards_become_others(np, tensors, sources, targets):
    case = Case(np, tensors, sources, targets)
    with case.exchange(chunk=65_536) as x:
        x.start()
        ends = x.await_done()
        assert [memory and memory.read() for memory in x.results] == case.expected
    for node, end in enumerate(ends):
        for told, links in (("gave", {b: (a, b) for a, b in case.links if a == node}),
                            ("took", {a: (a, b) for a, b in case.links if b == node})):
            expected = [{"node": f"n{other}", "bytes": case.n_bytes(link), "root": root(case.stream(link))}
                        for other, link in sorted(links.items())]
            assert end[told] == expected, (node, told)


def test_planned_counted_and_kernels_bytes_are_equal(np):
    """In pieces of a chunk, of which some streams have several and none is full at its end."""
    chunk = 65_536
    case = Case(np, [((700, 333), 0, 1), ((1000, 77), 1, 1)], (0, 1, 2), (1, 3))
    with case.exchange(chunk=chunk) as x:
        x.start()
        ends = x.await_done()
        assert [memory and memory.read() for memory in x.results] == case.expected
    for node, end in enumerate(ends):
        others = [other for other in range(4) if other != node]
        out = {o: case.n_bytes((node, o)) for o in others}
        come = {o: case.n_bytes((o, node)) for o in others}
        sent = sum(planned(out[o], come[o], chunk) for o in others if out[o])
        received = sum(planned(come[o], out[o], chunk) for o in others if come[o])
        for way, n in (("out", sent), ("in", received)):
            assert end[way] == ({"bytes": n, "kernel": n} if n else None), (node, way)


def test_a_stream_of_several_leaves_has_the_root_of_its_tree(np):
    case = Case(np, [((1100, 1024), 0, 0)], (0,), (1,))
    with case.exchange() as x:
        x.start()
        gave, took = x.await_done()
    assert gave["gave"] == [{"node": "n1", "bytes": 1100 * 4096, "root": root(case.stream((0, 1)))}]
    assert took["took"] == [{"node": "n0", "bytes": 1100 * 4096, "root": root(case.stream((0, 1)))}]
    assert (gave["took"], took["gave"]) == ([], [])


def test_what_is_on_its_node_already_goes_over_no_wire(np):
    case = Case(np, [((64, 64), 0, 0), ((9,), REPLICATED, REPLICATED)], (0, 1), (0, 1))
    with case.exchange() as x:
        assert x.hellos == [[None, None]] * 2
        x.start()
        assert [(end["in"], end["out"]) for end in x.await_done()] == [(None, None)] * 2
        assert [memory.read() for memory in x.results] == case.expected


def test_runs_of_two_levels_are_found_and_bytes_between_them_left_alone():
    row = (5, 3, 2, 2, 40, 30, 3, 7, 4)  # 2 times 3 runs of 2 bytes
    with Exchange([bytes(range(100)), None], [0, 60], [plan([(100, 0), (0, 60)], {(0, 1): [row]})] * 2) as x:
        x.results[1].write(0, b"\xee" * 60)
        x.start()
        x.await_done()
        content = bytearray(b"\xee" * 60)
        for i, k in itertools.product(range(2), range(3)):
            content[3 + 30 * i + 4 * k:5 + 30 * i + 4 * k] = bytes((5 + 40 * i + 7 * k, 6 + 40 * i + 7 * k))
        assert x.results[1].read() == bytes(content)


def test_who_has_got_all_and_gives_a_long_piece_takes_nobody_for_silent():
    """Its only sign of the other end meanwhile is that its bytes are acknowledged. That one had several pieces, at once."""
    size, chunk = 6 * SLOW, 6 * SLOW
    links = {(0, 1): [(0, 0, size, 1, 0, 0, 1, 0, 0)], (1, 0): [(0, 0, size, 1, 0, 0, 3, 0, size)]}
    text = plan([(size, 3 * size), (size, size)], links)
    with Exchange([size, size], [3 * size, size], [text] * 2, chunk=chunk, stall_ms=4000) as x:
        x.start(max_rate=SLOW, ranks=(0,))
        x.start(ranks=(1,))
        x.await_done()


def test_what_is_digested_is_progress():
    """A node that has all of many bytes does not count as hanging; a target sends nothing that would be counted."""
    run, n = 1 << 22, 128
    size = run * n
    text = plan([(run, 0), (0, size)], {(0, 1): [(0, 0, run, n, 0, 0, 1, 0, 0)]})
    with Exchange([bytes(run), None], [0, size], [text] * 2) as x:
        x.start()
        x.await_done()
        assert any(p["done"] == size and 0 < p["sent"] <= size for p in x.engines[1].progress), x.engines[1].progress


# --- Nodes that fail ---------------------------------------------------------------------------------


def big(**kw):
    """64 MiB from each of two nodes to each of two others: for 32 s, if it is SLOW."""
    size = 1 << 26
    links = {(a, b): [(size * (b - 2), size * a, size, 1, 0, 0, 1, 0, 0)] for a in (0, 1) for b in (2, 3)}
    text = plan([(2 * size, 0)] * 2 + [(0, 2 * size)] * 2, links)
    return Exchange([2 * size] * 2 + [None] * 2, [0, 0, 2 * size, 2 * size], [text] * 4, **kw)


def assert_failed(engine, who):
    """Checks that it failed, and blames this node."""
    end = engine.hear_end()
    assert end["op"] == "failed" and end["who"] == who and who in end["why"], end
    return end


def test_a_source_that_is_killed_is_named_with_its_link():
    """At once, whichever piece was under way: a silent node would be named only after the deadline of the test."""
    with big(stall_ms=300_000) as x:
        x.start(max_rate=SLOW)
        for target in (2, 3):
            x.engines[target].await_progress(1)
        x.engines[0].kill()
        for target in (2, 3):
            end = assert_failed(x.engines[target], "n0")
            assert (end["from"], end["to"], end["why"]) == ("n0", f"n{target}", "n0 hung up"), end


def test_a_target_that_is_stopped_is_named_with_its_link():
    with big(chunk=65_536, stall_ms=STALL_MS) as x:
        x.start(max_rate=SLOW)
        x.engines[2].await_progress(1)
        x.engines[2].kill(signal.SIGSTOP)
        for source in (0, 1):
            end = assert_failed(x.engines[source], "n2")
            assert (end["from"], end["to"]) == (f"n{source}", "n2"), end


def test_a_node_that_does_not_start_is_named_by_those_that_wait_for_it():
    with big(stall_ms=500) as x:
        x.start(ranks=(1, 2, 3))
        for target in (2, 3):
            assert_failed(x.engines[target], "n0")


def test_a_node_that_says_no_hello_is_named(np):
    with Case(np, [((8,), 0, 0)], (0,), (1,)).exchange() as x:
        x.hellos[1][0] = "00" * 1000
        x.start(ranks=(0,))
        assert_failed(x.engines[0], "n1")


@pytest.mark.parametrize("change, word", (
    ({"token": "22" * 32}, "wrong token"), ({"sync": "ff" * 8}, "another sync"), ({"epoch": 2}, "another sync or epoch"),
    ({"chunk": 1 << 17}, "another size")), ids=("token", "sync", "epoch", "chunk"))
def test_a_greeting_that_is_not_the_one_of_this_exchange_is_refused(np, change, word):
    class Stranger(Exchange):
        def tell_open(self, rank, order):
            super().tell_open(rank, order | (change if rank == 1 else {}))

    case = Case(np, [((8,), 0, 0)], (0,), (1,))
    with Stranger(case.sources, [len(e or b"") for e in case.expected], [case.plan] * 2) as x:
        x.start()
        assert word in assert_failed(x.engines[0], "n1")["why"]
        assert word in assert_failed(x.engines[1], "n0")["why"]
        assert x.results[1].read() == bytes(x.results[1].size)


def test_who_has_another_plan_is_refused_before_a_byte_moves(np):
    case = Case(np, [((8,), 0, 0)], (0,), (1,))
    other = plan([(256, 0), (0, 256)], {(0, 1): [(0, 0, 32, 1, 0, 0, 1, 0, 0)]}), \
        plan([(256, 0), (0, 256)], {(0, 1): [(0, 4, 32, 1, 0, 0, 1, 0, 0)]})
    with Exchange(case.sources, [0, 256], other) as x:
        x.start()
        assert "n1 has another plan" in assert_failed(x.engines[0], "n1")["why"]
        assert "n0 has another plan" in assert_failed(x.engines[1], "n0")["why"]
        assert x.results[1].read() == bytes(256)


# --- The agent ---------------------------------------------------------------------------------------

GOOD = plan([(10, 20)], {(0, 0): [(0, 0, 10, 1, 0, 0, 1, 0, 0)]})


@pytest.mark.parametrize("text, changes, word", (
    (GOOD, {"nodes": []}, "nodes"), (GOOD, {"token": None}, "token"), (GOOD, {"result_bytes": ...}, "result_bytes"),
    (GOOD, {"result_bytes": 21}, "smaller"), (GOOD, {"result_bytes": 0}, "must be attached"),
    (GOOD, {"n_bytes": 9}, "other `nodes`, `n_bytes`"), (GOOD, {"operation": "swap"}, '"exchange"'),
    (GOOD[:-1], {}, "its size does not match"), (b"x" + GOOD, {}, "another release"), (b"", {}, "the plan must have 1 to"),
    (plan([(10, 20)], {(0, 0): [(0, 11, 10, 1, 0, 0, 1, 0, 0)]}), {}, "leaves the memory"),
    (plan([(10, 20), (0, 0)], {}), {}, "other `nodes`")))
def test_an_order_that_is_wrong_is_refused_with_what_is_wrong(text, changes, word):
    order = {"operation": "exchange", "from": None, "nodes": [{"node": "b", "address": "127.0.0.1"}], "n_bytes": 10,
             "result_bytes": 20}
    with contextlib.closing(Memory(10)) as source, contextlib.closing(Memory(20)) as result, \
            contextlib.closing(sealed(text)) as blob, contextlib.closing(Engine(engine="gloo")) as engine:
        engine.tell_with([source.fd, result.fd, blob.fd], **(order | changes))
        end = engine.hear()
        assert end["op"] == "failed" and word in end["why"], end


def test_a_plan_that_could_change_is_refused():
    order = {"operation": "exchange", "from": None, "nodes": [{"node": "b", "address": "127.0.0.1"}], "n_bytes": 10,
             "result_bytes": 20}
    with contextlib.closing(Memory(10)) as source, contextlib.closing(Memory(20)) as result, \
            contextlib.closing(Memory(GOOD)) as blob, contextlib.closing(Engine(engine="gloo")) as engine:
        engine.tell_with([source.fd, result.fd, blob.fd], **order)
        assert "sealed" in engine.hear()["why"]


def test_tcp_says_which_engine_exchanges():
    with contextlib.closing(sealed(GOOD)) as blob, contextlib.closing(Engine()) as engine:
        engine.tell_with([blob.fd], operation="exchange", n_bytes=0, result_bytes=0)
        assert 'use the engine "gloo"' in engine.hear()["why"]

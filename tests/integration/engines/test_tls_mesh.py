"""Averages and exchanges of weightd-sync-gloo under TLS: the same results, plans and failures as in the clear."""
import collections
import contextlib
import secrets
import signal
import socket
import struct
import threading

import pytest
from integration.engines.test_exchange import FSDP_TO_TP, Case, planned
from integration.engines.floats import draw, encode
from lib import features
from lib.engine import Average, Engine, Exchange, Memory, plan, program
from lib.pki import Authority

SLOW = 1 << 22
STALL_MS = 5_000
HANDSHAKE_MS = 3_000  # has to suffice for one on a busy machine, too; the other node waits so long
HELLO = 22  # bytes: a magic number, the port, the address


@pytest.fixture(scope="module", autouse=True)
def np():
    features.require("gloo", available=program("gloo").exists())
    features.require("numpy")
    import numpy
    return numpy


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pki") / "ca")


@pytest.fixture
def pems(authority):
    """pems(name...): CA, certificate and key of each of these nodes, as descriptors."""
    with contextlib.ExitStack() as stack:
        def make(*names, ca=authority, of=authority):
            paths = [(ca.certificate, *of.node(name)) for name in names]
            return [[stack.enter_context(contextlib.closing(Memory(path.read_bytes()))).fd for path in three] for three in paths]
        yield make


def names(n):
    return [f"n{rank}" for rank in range(n)]


def assert_failed(engine, who):
    end = engine.hear_end()
    assert end["op"] == "failed" and end["who"] == who, end
    return end["why"]


@pytest.mark.parametrize("sources, targets", (((0, 1, 2, 3), (4, 5)), ((0, 1, 2, 3), (2, 0)), ((0,), (1, 2, 3))))
def test_shards_become_others(np, pems, sources, targets):
    case = Case(np, FSDP_TO_TP, sources, targets)
    with case.exchange(chunk=65_536, pems=pems(*names(case.n_nodes))) as x:
        x.start()
        x.await_done()
        assert [memory and memory.read() for memory in x.results] == case.expected


def test_the_payload_is_the_plan_and_the_kernel_counts_the_bytes_of_tls(np, pems):
    chunk = 65_536
    case = Case(np, [((700, 333), 0, 1), ((1000, 77), 1, 1)], (0, 1, 2), (1, 3))
    with case.exchange(chunk=chunk, pems=pems(*names(4))) as x:
        x.start()
        ends = x.await_done()
    for node, end in enumerate(ends):
        others = [other for other in range(4) if other != node]
        out = {o: case.n_bytes((node, o)) for o in others}
        come = {o: case.n_bytes((o, node)) for o in others}
        for way, n in (("out", sum(planned(out[o], come[o], chunk) for o in others if out[o])),
                       ("in", sum(planned(come[o], out[o], chunk) for o in others if come[o]))):
            if not n:
                assert end[way] is None, (node, way)
                continue
            assert end[way]["payload"] == n and end[way]["bytes"] == end[way]["kernel"], (node, way, end[way])
            assert n < end[way]["bytes"] < 1.01 * n + 20_000, (node, way, end[way])  # records, and a handshake a link


@pytest.mark.parametrize("n", (2, 4))
def test_an_average_has_the_bits_of_one_in_the_clear(np, pems, n):
    contents = [encode(np, "BF16", draw(np, rank, 300_001)) for rank in range(n)]
    tensors = [["w", "BF16", 0, len(contents[0]) - 1002], ["others", "I32", len(contents[0]) - 1000, 1000]]
    contents = [content[:-1000] + bytes(1000) for content in contents]
    results = []
    for given in (None, pems(*names(n))):
        with contextlib.ExitStack() as stack:
            memories = [stack.enter_context(contextlib.closing(Memory(content))) for content in contents]
            a = stack.enter_context(Average(memories, tensors, pems=given, chunk=65_536))
            a.start()
            a.await_done()
            results.append([memory.read() for memory in a.results])
    assert results[0] == results[1] == [results[0][0]] * n


def exchange_of(size, **kw):
    text = plan([(size, 0), (0, size)], {(0, 1): [(0, 0, size, 1, 0, 0, 1, 0, 0)]})
    return Exchange([secrets.token_bytes(size), None], [0, size], [text] * 2, **kw)


def test_a_certificate_of_another_node_is_refused_by_both_ends(pems):
    """Whoever dials: the first end of a link is the one of the lower rank."""
    for wrong in (0, 1):
        given = [names(2)[rank] if rank != wrong else "other" for rank in (0, 1)]
        with exchange_of(1000, pems=pems(*given), stall_ms=HANDSHAKE_MS) as x:
            x.start()
            said = [assert_failed(engine, f"n{1 - rank}") for rank, engine in enumerate(x.engines)]
            assert any("certificate" in why for why in said), said
            assert x.results[1].read() == bytes(1000)


def test_a_certificate_of_another_ca_is_refused(pems, tmp_path_factory):
    other = Authority(tmp_path_factory.mktemp("other") / "ca")
    with exchange_of(1000, pems=pems("n0") + pems("n1", ca=other, of=other), stall_ms=HANDSHAKE_MS) as x:
        x.start()
        assert "certificate" in assert_failed(x.engines[0], "n1")
        assert_failed(x.engines[1], "n0")


def test_nodes_with_and_without_tls_do_not_meet(pems):
    with exchange_of(1000, pems=[*pems("n0"), ()]) as x:
        x.start()
        for rank, engine in enumerate(x.engines):
            assert "security" in assert_failed(engine, f"n{1 - rank}")


def port_of(hello):
    raw = bytes.fromhex(hello)
    assert len(raw) == HELLO, hello
    return struct.unpack(">H", raw[4:6])[0]


def test_strangers_at_the_door_neither_get_in_nor_keep_the_peer_out(pems):
    """More of them than have room, of which some send what is no TLS, and the rest nothing."""
    with exchange_of(100_000, pems=pems(*names(2))) as x, contextlib.ExitStack() as stack:
        port = port_of(x.hellos[1][0])
        x.start(ranks=(1,))
        strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(12)]
        for stranger in strangers[:4]:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        strangers[0].recv(100)  # it was met
        x.start(ranks=(0,))
        x.await_done()
        assert x.results[1].read() == x.sources[0].read()


def test_connections_of_another_host_that_never_end_do_not_keep_the_peer_out(pems):
    """Each takes a place among those in their handshake, and more come than a handshake takes."""
    with exchange_of(100_000, pems=pems(*names(2))) as x:
        port, is_over = port_of(x.hellos[1][0]), threading.Event()

        def hammer():
            held = collections.deque(maxlen=64)
            with contextlib.suppress(OSError):  # the door closes behind the peer
                while not is_over.is_set():
                    held.append(socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)))

        x.start(ranks=(1,))
        hammers = [threading.Thread(target=hammer) for _ in range(2)]
        for each in hammers:
            each.start()
        try:
            x.start(ranks=(0,))
            x.await_done()
        finally:
            is_over.set()
            for each in hammers:
                each.join()


def test_a_node_that_is_killed_or_stopped_is_named(pems):
    for sig, why in ((signal.SIGKILL, "n0 hung up"), (signal.SIGSTOP, "n0 sent nothing for")):
        with exchange_of(1 << 26, pems=pems(*names(2)), stall_ms=STALL_MS) as x:
            x.start(max_rate=SLOW)
            x.engines[1].await_progress(1)
            x.engines[0].kill(sig)
            assert why in assert_failed(x.engines[1], "n0")


@pytest.mark.parametrize("operation", ("average", "exchange"))
def test_an_order_without_its_certificates_is_refused(operation):
    with contextlib.closing(Engine(engine="gloo")) as engine:
        engine.tell_with([], operation=operation, security="tls", n_bytes=0, result_bytes=0, nodes=[{"node": "b", "address": "127.0.0.1"}])
        end = engine.hear_end()
        assert end["op"] == "failed" and "CA, certificate and key must be attached" in end["why"], end

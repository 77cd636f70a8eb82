"""Fixtures of the tests of weightd-trace."""
import socket

import features
import pytest
import tracing
from netns import Net


@pytest.fixture
def tracer(request):
    features.require("bpf")
    with tracing.Tracer(probes=bool(request.node.get_closest_marker("probes"))) as t:
        yield t


@pytest.fixture(params=["bpf", "diag"])
def either_tracer(request):
    """One of each meter."""
    features.require("bpf" if request.param == "bpf" else "trace")
    with tracing.Tracer(f"--meter={request.param}") as t:
        yield t


@pytest.fixture(scope="module")
def net():
    features.require("netns")
    with Net(2) as n:
        yield n


@pytest.fixture
def listener(net):
    with tracing.inside(net.nodes[1].name, socket.create_server, (net.nodes[1].address, 0)) as s:
        yield s


@pytest.fixture
def connect(net, listener):
    """connect(): a pair of sockets, of node 0 and of node 1."""
    ours = []

    def make():
        ours.append(tracing.inside(net.nodes[0].name, socket.create_connection, listener.getsockname()))
        ours.append(listener.accept()[0])
        return ours[-2:]

    yield make
    for s in ours:
        s.close()


@pytest.fixture
def traced(tracer, connect):
    """A client of the tracer, and a pair of sockets: to "b" that of node 0, to "a" that of node 1."""
    a, b = connect()
    client = tracer.client()
    client.tag(a, peer="b")
    client.tag(b, peer="a")
    return client, a, b

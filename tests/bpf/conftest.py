"""Fixtures of the tests of weightd-trace."""
import contextlib
import os
import pathlib
import shutil
import socket
import tempfile

import pytest
from bpf.probing import CUDA, Process
from lib import features, kernel, tracing
from lib.gpus import Gpus
from lib.netns import Net


def pytest_generate_tests(metafunc):
    """Tests marked so run twice: as here, and where the kernel refuses the iterator over storage. One that does so runs them once."""
    if "tracer" in metafunc.fixturenames and metafunc.definition.get_closest_marker("iterators"):
        once_more = [pytest.param(("mark",), marks=pytest.mark.plain, id="mark-refused")] if kernel.loads("map") else []
        metafunc.parametrize("tracer", [pytest.param(tracing.REFUSED, id=""), *once_more], indirect=True)


@pytest.fixture
def tracer(request):
    features.require("bpf")
    refused = getattr(request, "param", tracing.REFUSED)
    with tracing.Tracer(probes=bool(request.node.get_closest_marker("probes")), refused=refused) as t:
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


@pytest.fixture
def client(tracer):
    return tracer.client()


@pytest.fixture
def gpu():
    features.require("fakes")
    with contextlib.closing(Gpus()) as gpus:
        yield gpus


@pytest.fixture
def start(gpu):
    """start(code): a process that sees the fake GPU."""
    with contextlib.ExitStack() as stack:
        yield lambda code=CUDA, env={}, **kw: stack.enter_context(
            contextlib.closing(Process(code, env=os.environ | gpu.env | env, **kw)))


@pytest.fixture
def folder():
    """One that anybody may enter."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="weightd-probes-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)

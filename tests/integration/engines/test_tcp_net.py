"""weightd-sync-tcp on links that are slow, or cut: nodes in namespaces of their own."""
import random
import signal
import time

import pytest
from lib import features
from lib.engine import PATIENCE_S, Chain, Memory, planned
from lib.netns import Net
from lib.nodes import until

RATE, N_BYTES = "200mbit", 16 << 20  # 0.7 s


@pytest.fixture(autouse=True)
def needs_namespaces():
    features.require("netns")
    features.require("sync", available=(features.BUILD / "weightd-sync-tcp").exists())


def broadcast_seconds(net, n_receivers, data):
    with Chain(["a", "b", "c", "d"][:n_receivers + 1], Memory(data), net=net) as chain:
        started = time.monotonic()
        chain.start()
        ends = chain.await_done()
        seconds = time.monotonic() - started
        assert [m.read() == data for m in chain.memories[1:]] == [True] * n_receivers
        assert ends[0]["out"] == {"bytes": planned(len(data)), "kernel": planned(len(data))}
    return seconds


@pytest.mark.measures
def test_three_receivers_take_no_three_times_as_long_as_one():
    data = random.Random(1).randbytes(N_BYTES)
    with Net(4) as net:
        for i in range(4):
            net.rate(i, RATE)
        for _ in range(4):  # others may have used the processors
            one, three = broadcast_seconds(net, 1, data), broadcast_seconds(net, 3, data)
            if three < 2 * one:
                break
        assert three < 2 * one, f"{one:.2f} s to one receiver, {three:.2f} s to three"


def test_a_link_that_is_cut_is_named_by_both_ends():
    with Net(3) as net:
        with Chain(["a", "b", "c"], Memory(64 << 20), net=net, stall_ms=4000) as chain:
            chain.start(max_rate=1 << 20)
            chain.engines[2].await_progress(1)
            net.down(2)
            end = chain.engines[1].hear_end(PATIENCE_S)
            assert (end["op"], end["from"], end["to"], end["who"]) == ("failed", "b", "c", "c"), end
            assert "took nothing" in end["why"], end
            end = chain.engines[2].hear_end(PATIENCE_S)
            assert (end["op"], end["from"], end["to"], end["who"]) == ("failed", "b", "c", "b"), end
            assert "sent nothing" in end["why"], end


def test_a_link_that_comes_back_in_time_loses_nothing():
    data = random.Random(2).randbytes(4 << 20)
    with Net(2) as net:
        with Chain(["a", "b"], Memory(data), net=net) as chain:
            chain.start(max_rate=4 << 20)
            chain.engines[1].await_progress(1)
            net.down(1)
            net.up(1)
            chain.await_done()
            assert chain.memories[1].read() == data


def test_what_runs_in_a_namespace_ends_with_it():
    with Net(1) as net:
        left = net.nodes[0].run(["sleep", "1000"])
        until_in(left, net.nodes[0])
    assert left.wait(PATIENCE_S) == -signal.SIGKILL


def until_in(process, node):
    """It enters the namespace by itself."""
    def look():
        with open(f"/proc/{process.pid}/comm") as comm:
            return comm.read() == "sleep\n"

    until(look, f"{process.args} runs in {node.name}")

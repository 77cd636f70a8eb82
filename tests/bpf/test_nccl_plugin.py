"""libnccl-profiler-weightd.so in a stub of NCCL: what it tells weightd-trace, how it joins with what the kernel counts."""
import os
import signal
import socket
import subprocess
import time

import features
import nccl_host
import pytest
import tracing
from nccl_host import COLL, GROUP, MASK, NET, PLUGIN, VERSIONS, Host

NOT_THERE = 0xdeadbeefcafe
OF_COMM = {"sync", "communicator", "hash", "rank"}


@pytest.fixture(autouse=True)
def needs():
    nccl_host.require()


class Observer:
    """acts: all that were told, as they came."""

    def __init__(self, tracer):
        self.client = tracer.client()
        self.client.ask("observe")
        self.packets = []

    @property
    def acts(self):
        return [p for p in self.packets if p["kind"] == "act"]

    def of(self, word, **members):
        return [a for a in self.acts if a["act"] == word and all(a[k] == v for k, v in members.items())]

    def until(self, is_so):
        while not is_so():
            self.packets.append(self.client.hear())

    def hear(self, word, n=1, **members):
        """The last of these acts, once there are so many."""
        self.until(lambda: len(self.of(word, **members)) >= n)
        return self.of(word, **members)[-1]


@pytest.fixture
def observer(tracer):
    return Observer(tracer)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_collective_is_told_with_the_bytes_of_its_network(tracer, observer, version):
    with Host(tracer, version) as host:
        before = time.monotonic_ns()
        assert host.init() == (MASK if version > 5 else MASK & 255)
        (fd_a, fd_b), _ = host.pair()
        host.say("reduce", 0, 0, 1, 40_000, 1)
        coll = observer.hear("nccl_coll")
        host.say("finalize", 0)
    assert before < coll["ns"] - coll["took_ns"] < coll["ns"] < time.monotonic_ns()
    assert {k: coll[k] for k in ("func", "count", "datatype", "bytes", "root", "channels", "seq", "algo", "proto", "ops", "sent",
                                 "received")} == \
        {"func": "AllReduce", "count": 10_000, "datatype": "ncclFloat32", "bytes": 40_000, "root": 0, "channels": 2, "seq": 0,
         "algo": "RING", "proto": "SIMPLE", "ops": 2, "sent": 40_000, "received": 40_000}
    assert {k: coll[k] for k in (*OF_COMM, "source", "pid", "uid", "comm")} == \
        {"sync": "nccl:dp", "communicator": "dp", "hash": "0000000000000abc", "rank": 0, "source": "nccl", "pid": host.proc.pid,
         "uid": 0, "comm": "host"}
    opened, = observer.of("nccl_comm", state="open")[:1]
    assert {k: opened[k] for k in ("n_ranks", "n_nodes", "api")} == {"n_ranks": 8, "n_nodes": 2, "api": version}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_nccl_says_of_a_socket_is_what_the_kernel_counts(tracer, observer, version):
    with Host(tracer, version) as host:
        host.init()
        fds, cookies = host.pair()
        host.say("reduce", 0, 0, 1, 123_457, 10)
        sent = observer.hear("nccl_socket", way="send", events=10)
        received = observer.hear("nccl_socket", way="receive", events=10)
        rows = {row["peer"]: row for row in tracer.client().ask("rows") if row["sync"] == "nccl:dp"}
        assert set(rows) == {"rank 1", "rank 2"}
        assert rows["rank 1"]["submitted"] == sent["bytes"] == 1_234_570
        assert rows["rank 2"]["consumed"] == received["bytes"] == 1_234_570
        assert [row["partial"] for row in rows.values()] == [False, False]
        assert [(a["fd"], a["cookie"], a["peer"], a["counted"]) for a in (sent, received)] == \
            [(fds[0], cookies[0], 1, True), (fds[1], cookies[1], 2, True)]
        host.say("close", 0)
        host.say("close", 1)
        host.say("finalize", 0)
    observer.until(lambda: len([p for p in observer.packets if p["kind"] == "close"]) == 2)
    closed = {p["cookie"]: p["peer"] for p in observer.packets if p["kind"] == "close"}
    assert closed == dict(zip(cookies, ("rank 1", "rank 2")))
    # By the proxy's own word, which NCCL gives also where it was built without events of its network.
    peers = {(a["peer"], a["way"]): a["bytes"] for a in observer.of("nccl_peer")}
    assert peers == {(1, "send"): 1_234_570, (2, "receive"): 1_234_570}
    # Its span is over, and its rows are gone.
    observer.hear("nccl_comm", state="closed")
    observer.until(lambda: any(p["kind"] == "end" and p["sync"] == "nccl:dp" for p in observer.packets))
    totals = {p["peer"]: p for p in observer.packets if p["kind"] == "total"}
    assert totals["rank 1"]["submitted"] == totals["rank 2"]["consumed"] == 1_234_570
    assert not [row for row in tracer.client().ask("rows") if row["sync"] == "nccl:dp"]

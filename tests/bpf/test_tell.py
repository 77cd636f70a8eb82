"""Events that a client may send weightd-trace about itself: known words, with their members, and nothing in another's name."""
import os
import time

import pytest
from lib import tracing

COMM = {"sync": "nccl:dp", "communicator": None, "hash": "00", "rank": 0}
SUM = COMM | {"peer": 1, "way": "send", "bytes": 5, "events": 1, "since_ns": 1}
SOCKET = {"act": "nccl_socket", "ns": 2} | SUM | {"fd": 4, "cookie": 9, "counted": True}
TASK = COMM | {"ns": 3, "took_ns": 1, "func": "AllReduce", "count": 1, "datatype": "ncclInt8", "bytes": 1, "channels": 1,
               "ops": 0, "sent": None, "received": None}
GOOD = [SOCKET, {"act": "nccl_coll", "root": 0, "seq": 1, "algo": "RING", "proto": None} | TASK, {"act": "nccl_p2p", "peer": 2} | TASK,
        {"act": "nccl_peer", "ns": 2} | SUM, {"act": "nccl_qp", "ns": 2, "device": 0, "qp": 7} | SUM,
        {"act": "nccl_gap", "ns": 2, "lost": 3, "from_ns": 1},
        {"act": "nccl_comm", "ns": 2, "n_ranks": 2, "n_nodes": 1, "api": 6, "state": "open", "colls": 0, "p2ps": 0, "untold": 0} | COMM]


@pytest.fixture
def client(either_tracer):
    return either_tracer.client()


def tell(client, *acts, **request):
    return client.ask("tell", **{"source": "nccl", "acts": acts} | request)


def without(key):
    return {k: v for k, v in SOCKET.items() if k != key}


def test_acts_are_kept_with_whose_they_are(client):
    tell(client, *GOOD)
    told = client.ask("acts")
    assert [{k: act[k] for k in good} for act, good in zip(told, GOOD, strict=True)] == GOOD
    # The name of a process is as it was when it connected: tests run in one that is called as the interpreter is.
    mine = {"kind": "acted", "source": "nccl", "pid": os.getpid(), "uid": os.geteuid(),
            "comm": open("/proc/self/comm").read().rstrip("\n")}
    assert all({k: act[k] for k in mine} == mine for act in told)
    assert [act["took_ns"] for act in told] == [None, 1, 1, None, None, None, None]
    assert [act.get("from", "none") for act in told] == 4 * ["none"] + [None] + 2 * ["none"], "no probe saw its queue pair"


@pytest.mark.parametrize("act", [
    without("fd"), without("ns"), without("act"), SOCKET | {"act": "nccl"}, SOCKET | {"act": "verbs_modify_qp"}, SOCKET | {"act": 5},
    SOCKET | {"pid": 1}, SOCKET | {"kind": "row"}, SOCKET | {"more": None}, SOCKET | {"sync": ""}, SOCKET | {"sync": "x" * 128},
    SOCKET | {"sync": 5}, SOCKET | {"bytes": -1}, SOCKET | {"bytes": "5"}, SOCKET | {"bytes": 1.5}, SOCKET | {"counted": None},
    SOCKET | {"ns": -1}, SOCKET | {"ns": None}, SOCKET | {"ns": 1 << 62}, SOCKET | {"since_ns": 1 << 62}, SOCKET | {"way": ["send"]},
    {}, 5, None, [], "nccl_socket"], ids=str)
def test_an_act_that_is_not_what_its_word_says_is_refused_with_all_others(client, act):
    with pytest.raises(tracing.Refused):
        tell(client, GOOD[0], act)
    assert client.ask("acts") == []


def test_a_word_that_its_source_has_not_is_refused_with_one_that_it_has(client):
    for source, word in ("nccl", "nccl_comm"), ("sync", "sync_phase"):
        with pytest.raises(tracing.Refused, match=f"unknown 'act' for source '{source}' \\(try '{word}'\\)"):
            tell(client, {"act": "publish", "ns": 1}, source=source)


@pytest.mark.parametrize("request_", [{"source": None}, {"source": "kernel"}, {"source": 1}, {"acts": None}, {"acts": []}, {"acts": {}}], ids=str)
def test_a_request_without_acts_or_of_nobody_is_refused(client, request_):
    with pytest.raises(tracing.Refused):
        tell(client, SOCKET, **request_)


def test_nobody_tells_of_more_than_a_thousand_in_a_second(client, either_tracer):
    acts = [{"act": "nccl_gap", "ns": 2, "lost": i, "from_ns": 1} for i in range(50)]
    while True:  # on a busy machine more than a second may pass before all is sent
        n, began = 0, time.monotonic()
        try:
            while n <= 1000:
                tell(client, *acts)
                n += 50
        except tracing.Refused as e:
            assert "at most 1000" in str(e) and n >= 1000
            break
        assert time.monotonic() - began > 1, n
        client = either_tracer.client()
    tell(either_tracer.client(), *acts)
    deadline = time.monotonic() + tracing.STOP_S
    while True:
        try:
            tell(client, *acts)
            break
        except tracing.Refused:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # no event reports the end of the second

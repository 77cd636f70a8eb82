"""The cause that holds up a transfer is named, by either meter."""
import contextlib
import os
import socket

import pytest
from bpf.traffic import is_acknowledged
from lib import features, longlink
from lib.stalls import CAUSES, CHUNK, PACE, ROUND_TRIP_S, Transfer, frozen_peer, pace, stopped_peer
from lib.tracing import Client, Tracer

SEEN_NS = 1_000_000_000
STALL_NS = 200_000_000
TICK_NS = 10_000_000  # tick of a kernel's slowest clock
TLS_RECORD, TLS_RECORD_ADDS = 16384, 22
LIMITS = {"busy_ns", "receive_window_ns", "send_buffer_ns", "producer_ns", "pacing_ns", "loss_ns", "silent_ns"}


@pytest.fixture(scope="module", params=["bpf", "diag"])
def tracer(request, net):
    features.require("bpf" if request.param == "bpf" else "trace")
    with Tracer(f"--meter={request.param}", prefix=["nsenter", f"--net=/run/netns/{net.nodes[0].name}"]) as t:
        yield t


@pytest.fixture
def client(tracer):
    with Client(tracer.socket) as c:
        yield c


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_named(net, client, cause):
    features.require("tun", "no /dev/net/tun", longlink.is_available())
    with CAUSES[cause](net) as transfer:
        client.tag(transfer.socket)
        client.ask("begin", sync="s")
        transfer.start()
        # A machine that has no time for the transfer at first holds it up, too.
        row = client.until(lambda row: row["limited_by"] == cause and row["limits"][f"{cause}_ns"] > SEEN_NS)
    limits = row["limits"]
    assert set(limits) == LIMITS and min(limits.values()) >= 0
    assert limits[f"{cause}_ns"] == max(limits.values())
    assert sum(limits.values()) <= row["now_ns"] - row["began_ns"] + TICK_NS
    assert row["quality"]["limits"] == "sampled"


@pytest.mark.parametrize("rate", [None, 100 * PACE])
def test_the_path_is_what_holds_up_who_is_not_paced(net, client, rate):
    """Nor if the pace allows more than the path takes."""
    net.rate(0, "80mbit")
    try:
        with Transfer(net) as transfer:
            if rate:
                pace(transfer, rate)
            client.tag(transfer.socket)
            client.ask("begin", sync="s")
            transfer.start()
            row = client.until(lambda row: row["limited_by"] == "busy" and row["limits"]["busy_ns"] > SEEN_NS)
            assert row["limits"]["pacing_ns"] < SEEN_NS // 2, row
    finally:
        net.rate(0, None)


def test_a_producer_may_be_slow_whose_bytes_are_always_on_their_way(net, client):
    """It passes on bytes that arrive slowly: TCP reports that it is busy."""
    features.require("tun", "no /dev/net/tun", longlink.is_available())
    with longlink.LongLink(net, ROUND_TRIP_S / 2) as link, \
            Transfer(net, link.addresses, writes_every_s=ROUND_TRIP_S / 2) as transfer:
        client.tag(transfer.socket)
        client.ask("begin", sync="s")
        transfer.start()
        client.until(lambda row: row["limited_by"] == "producer" and row["limits"]["producer_ns"] > SEEN_NS)


def test_nothing_holds_up_who_does_not_send(net, client):
    with Transfer(net) as transfer:
        client.tag(transfer.socket)
        assert (client.row()["limited_by"], client.row()["limits"]) == (None, None)
        transfer.other.sendall(bytes(100))
        client.until(lambda row: row["received"] == 100)
        assert (client.row()["limited_by"], client.row()["limits"]) == (None, None)
        transfer.socket.sendall(bytes(101))
        assert client.until(is_acknowledged)["limited_by"]


def test_a_span_has_its_own_limits(net, client):
    with Transfer(net) as transfer:
        client.tag(transfer.socket)
        transfer.socket.sendall(bytes(100))
        # Bytes that are acknowledged late were busy before.
        client.until(lambda row: row["limited_by"] == "producer" and row["limits"]["producer_ns"] > SEEN_NS // 4)
        client.ask("begin", sync="s")
        transfer.socket.sendall(bytes(100))
        row = client.until(is_acknowledged)
        assert sum(row["limits"].values()) <= row["now_ns"] - row["began_ns"] + TICK_NS


LOOKED_FOR = "limits", "rtt_us", "moved_ns", "stalls"


def test_what_looks_find_is_sampled_and_what_none_looked_for_is_absent(net, tracer, client):
    with Transfer(net) as transfer:
        client.tag(transfer.socket)
        row = client.row()
        assert [row[name] for name in ("limits", "moved_ns", "stalls", "stall")] == [None] * 4
        assert {row["quality"][name] for name in ("limits", "moved_ns", "stalls", "stall")} == {"absent"}
        assert (row["rtt_us"] > 0, row["quality"]["rtt_us"]) == (True, "sampled")
        client.ask("begin", sync="s")
        transfer.write()
        transfer.read()
        row = client.until(is_acknowledged)
        assert {row["quality"][name] for name in LOOKED_FOR} == {"sampled"} and None not in [row[name] for name in LOOKED_FOR]
        assert row["quality"]["stall"] == "sampled"
        counts_ends = "exact" if "bpf" in tracer.greeting else "sampled"
        assert (row["quality"]["sockets"], row["quality"]["closed"]) == ("exact", counts_ends)


def test_when_bytes_moved_last_is_known(net, client):
    with Transfer(net) as transfer:
        client.tag(transfer.socket)
        client.ask("begin", sync="s")
        transfer.other.sendall(bytes(CHUNK))
        moved = client.until(lambda row: row["received"] == CHUNK)
        later = client.until(lambda row: row["now_ns"] - moved["now_ns"] > STALL_NS)
        assert later["began_ns"] < later["moved_ns"] <= moved["now_ns"]
        client.ask("end", sync="s")
        client.ask("begin", sync="s")
        assert client.row()["moved_ns"] is None


def stall_of(row):
    return row["stall"] and row["stall"]["cause"]


def test_a_transfer_that_stalls_says_on_what(net, client):
    with Transfer(net) as transfer:
        client.tag(transfer.socket)
        client.ask("begin", sync="s")
        transfer.write()
        transfer.read()
        row = client.until(lambda row: stall_of(row) == "producer")
        assert row["now_ns"] - row["stall"]["since_ns"] >= STALL_NS
        # The kernel takes more once that is on its way.
        client.until(lambda row: fill(transfer.socket) or stall_of(row) == "receive_window")
        # Those bytes are behind the ones that were read, and would stand still again.
        client.until(lambda row: drain(transfer.other) or stall_of(row) != "receive_window")
        total = client.row(op="end")
        client.until(lambda row: row["stall"] is None)
        past = [row for row in client.ask("past") if row["client"]["pid"] == os.getpid() and row["began_ns"] == total["began_ns"]]
    stalls, = (row["stalls"] for row in past)
    assert [s["cause"] for s in stalls][:2] == ["producer", "receive_window"]
    assert all(s["until_ns"] - s["since_ns"] >= STALL_NS and s["since_ns"] >= total["began_ns"] for s in stalls), stalls


def test_a_program_that_is_stopped_is_one_that_does_not_read(net, client):
    with stopped_peer(net) as transfer:
        client.tag(transfer.socket)
        client.ask("begin", sync="s")
        transfer.start()
        row = client.until(lambda row: row["limited_by"] == "receive_window" and row["limits"]["receive_window_ns"] > SEEN_NS)
        assert stall_of(row) == "receive_window" and row["limits"]["silent_ns"] == 0


def test_who_has_all_bytes_rests(net, client):
    with Transfer(net) as transfer:
        client.tag(transfer.socket, expected=2 * CHUNK)
        client.ask("begin", sync="s")
        transfer.write()
        transfer.read()
        # The sampled time is up to a tick less than the age of the stall.
        client.until(lambda row: stall_of(row) == "producer" and row["limits"]["producer_ns"] >= STALL_NS)
        transfer.write()
        transfer.read()
        before = client.until(has_all)
        row = client.until(lambda row: row["now_ns"] - before["now_ns"] > SEEN_NS)
        assert row["stall"] is None and row["limits"]["producer_ns"] == before["limits"]["producer_ns"]
        assert row["limits"]["producer_ns"] >= STALL_NS
        client.tag(transfer.socket, expected=2 * CHUNK + 1)
        client.until(lambda row: stall_of(row) == "producer")


def test_all_bytes_are_more_with_tls(net, client):
    """Than those expected, by as much as records add that are full; it may be more."""
    with Transfer(net) as transfer:
        client.tag(transfer.socket, expected=CHUNK, transport="tls")
        client.ask("begin", sync="s")
        transfer.write()
        transfer.read()
        client.until(lambda row: has_all(row) and stall_of(row) == "producer")
        transfer.socket.sendall(bytes(CHUNK // TLS_RECORD * TLS_RECORD_ADDS))
        before = client.until(lambda row: is_acknowledged(row) and row["delivered"] > CHUNK)
        row = client.until(lambda row: row["now_ns"] - before["now_ns"] > SEEN_NS)
        assert row["stall"] is None


def has_all(row):
    return row["delivered"] >= row["expected"]


def fill(sock):
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(1 << 20), socket.MSG_DONTWAIT)


def drain(sock):
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.recv(1 << 20, socket.MSG_DONTWAIT)


def test_who_follows_hears_that_a_peer_is_gone_and_back(net, client):
    client.ask("follow")
    with frozen_peer(net) as transfer:
        client.tag(transfer.socket)
        client.ask("begin", sync="s")
        transfer.start()
        while stall_of(progress(client)) != "silent":
            pass
        net.up(1)
        while progress(client)["stall"]:
            pass


def progress(client):
    while True:
        packet = client.followed.popleft() if client.followed else client.hear()
        if packet["kind"] == "progress":
            return packet

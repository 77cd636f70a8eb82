"""Observers get the events of all clients: root, and the user of the tracer."""
import os
import pathlib
import statistics

import pytest
from bpf.traffic import both_ways, carried, carry, is_acknowledged, storm, sum_of_events
from lib import features, tracing
from lib.nodes import until
from lib.tracing import Client, Refused, Tracer

SOMEBODY, ANOTHER, NOBODY = 12345, 12346, 65534
# Thousands of looks at rows, which a meter does not keep; this one needs no iterator over all sockets for a look.
ONE_METER = pytest.mark.parametrize("either_tracer", ["diag"], indirect=True)
MINE = {"pid": os.getpid(), "uid": 0, "comm": pathlib.Path("/proc/self/comm").read_text().strip()}


@pytest.fixture
def tracer(either_tracer):
    return either_tracer


@pytest.fixture
def pair(tracer, connect):
    """Sockets that the tracer of either kind can count."""
    if "bpf" in tracer.greeting:
        yield connect()
    else:
        with tracing.pair() as both:
            yield both


def client_as(tracer, uid):
    os.chmod(tracer.socket, 0o666)
    os.seteuid(uid)
    try:
        return tracer.client()
    finally:
        os.seteuid(0)


def hear_one(observer):
    return observer.followed.popleft() if observer.followed else observer.hear()


def hear(observer, *kinds):
    """The packets up to the last of these kinds, which arrive in this order."""
    wanted, heard = list(kinds), []
    while wanted:
        heard.append(hear_one(observer))
        if heard[-1]["kind"] == wanted[0]:
            wanted.pop(0)
    return heard


def whose(told):
    return {key: told["client"][key] for key in MINE}


def test_rows_of_all_clients_are_shown_with_whose_they_are(tracer, pair):
    a, b = pair
    one, other = tracer.client(), client_as(tracer, SOMEBODY)
    one.tag(a, peer="b")
    other.ask("tag", [b.fileno()], sync="t", version=2, peer="a", role="payload", expected=70000)
    carry(a, b, 70000, 1)
    one.until(is_acknowledged)
    first, second = tracer.client().ask("rows")
    assert (whose(first), whose(second)) == (MINE, MINE | {"uid": SOMEBODY})
    assert first["client"]["id"] != second["client"]["id"] and first["row"] != second["row"]
    assert [(row["sync"], row["version"], row["peer"], row["role"], row["expected"]) for row in (first, second)] == \
        [("s", 1, "b", "payload", None), ("t", 2, "a", "payload", 70000)]
    assert (carried(first), carried(second)) == (both_ways(70000, 0), both_ways(0, 70000))
    assert first["rtt_us"] > 0 and first["kind"] == "row"


def test_what_is_expected_may_be_said_later(tracer, pair):
    client, (a, _) = tracer.client(), pair
    row = {"sync": "s", "version": 1, "peer": "b", "role": "payload"}
    for said, known in ({}, None), ({"expected": 5}, 5), ({}, 5), ({"expected": 0}, 0):
        client.ask("tag", [a.fileno()], **row, **said)
        assert client.row()["expected"] == known
    for wrong in -1, "5", 1.5, None:
        with pytest.raises(Refused, match="'expected' must be a number of bytes"):
            client.ask("tag", [a.fileno()], **row, expected=wrong)
    assert client.row()["expected"] == 0


def test_what_carries_a_row_may_be_said_later(tracer, pair):
    client, (a, _) = tracer.client(), pair
    row = {"sync": "s", "version": 1, "peer": "b", "role": "payload"}
    for said, known in ({}, "tcp"), ({"transport": "tls"}, "tls"), ({}, "tls"), ({"transport": "x" * 15}, "x" * 15):
        client.ask("tag", [a.fileno()], **row, **said)
        assert client.row()["transport"] == known
    for wrong in "", "x" * 16, 1, None:
        with pytest.raises(Refused, match="'transport' must be a text of 1 to 15 bytes"):
            client.ask("tag", [a.fileno()], **row, transport=wrong)
    assert client.row()["transport"] == "x" * 15


@pytest.mark.parametrize("op", ["rows", "observe"])
def test_others_are_refused(tracer, op):
    features.require("root")
    with pytest.raises(Refused, match="only root may see .*: try it with sudo"):
        client_as(tracer, SOMEBODY).ask(op)


def test_whoever_runs_the_tracer_may_observe():
    features.require("root")
    features.require("trace")
    drop = ["setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"]
    with Tracer(prefix=drop, uid=SOMEBODY) as tracer:
        for uid in 0, SOMEBODY:
            client = client_as(tracer, uid)
            assert client.ask("rows") == client.ask("observe") == []
        with pytest.raises(Refused, match=f"only root and user {SOMEBODY}, which runs weightd-trace, may see what other users count or do: try it with sudo"):
            client_as(tracer, ANOTHER).ask("rows")


def test_whoever_runs_the_tracer_as_nobody_is_anybody():
    features.require("root")
    features.require("trace")
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with Tracer(prefix=drop, uid=NOBODY) as tracer:
        with pytest.raises(Refused, match="only root may see .*: try it with sudo"):
            client_as(tracer, NOBODY).ask("rows")


def test_a_span_is_told_from_its_begin_to_its_end(tracer, pair):
    a, b = pair
    observer, client = tracer.client(), tracer.client()
    assert observer.ask("observe") == []
    client.tag(a)
    client.ask("begin", sync="s")
    carry(a, b, 12345, 1)
    client.until(is_acknowledged)
    last = hear(observer, "begin", "progress")[-1]
    while last["kind"] != "progress" or last["delivered"] < 12345:
        last = observer.hear()
    assert last["submitted"] == 12345
    row, = client.ask("end", sync="s")
    *_, total, end = hear(observer, "total", "end")
    assert [whose(told) for told in (total, end)] == [MINE, MINE]
    apart = "kind", "now_ns", *(("stall", "stalls") if row["stall"] else ())  # one that lasts is longer at each look
    assert {k: v for k, v in total.items() if k in row and k not in apart} == {k: v for k, v in row.items() if k not in apart}
    assert total["began_ns"] < row["now_ns"] <= total["now_ns"] <= end["ns"]
    assert client.followed == type(client.followed)(), "a client that does not observe gets no packet of it"


def test_one_that_comes_later_is_told_what_has_begun(tracer, pair):
    client = tracer.client()
    client.tag(pair[0])
    client.ask("begin", sync="s")
    observer = tracer.client()
    rows = observer.ask("observe")
    assert [row["kind"] for row in rows] == ["row"]
    begin, *_ = hear(observer, "begin")
    assert (begin["sync"], whose(begin)) == ("s", MINE) and begin["ns"] == rows[0]["began_ns"]


@pytest.mark.parametrize("how", ["forgotten", "hung up"])
def test_a_span_that_nobody_ended_ends_with_its_rows(tracer, pair, how):
    a, b = pair
    observer, client = tracer.client(), tracer.client()
    observer.ask("observe")
    client.tag(a)
    client.ask("begin", sync="s")
    carry(a, b, 4321, 1)
    client.until(is_acknowledged)
    if how == "forgotten":
        client.ask("forget", sync="s")
    else:
        client.socket.close()
    *_, total, end = hear(observer, "begin", "total", "end")
    assert carried(total) == both_ways(4321, 0) and (end["sync"], total["sync"]) == ("s", "s")


def test_events_of_others_are_told_to_observers_alone(connect):
    features.require("pids")
    features.require("bpf")
    with Tracer() as tracer:
        observer, client, other = tracer.client(), tracer.client(), tracer.client()
        observer.ask("observe")
        other.ask("follow")
        client.watch(os.getpid())
        for s in connect():
            s.close()
        heard = hear(observer, "open", "open", "close", "close")
        assert {(told["kind"], whose(told)["pid"], told["sync"]) for told in heard} == \
            {("open", os.getpid(), "s"), ("close", os.getpid(), "s")}
        assert other.ask("read", sync="s") == [] and not other.followed


def test_who_observes_too_slowly_is_told_how_much_it_missed(net):
    features.require("pids")
    features.require("bpf")
    with Tracer() as tracer, Client(tracer.socket) as slow, Client(tracer.socket) as client:
        slow.ask("observe")
        client.watch(os.getpid())
        storm(net, 2000, 1)
        client.until(lambda row: row["closed"] == 4000)
        told = sum_of_events(slow, 8000)
        assert told["events"] + told["gaps"] == 8000 and told["gaps"] > 0


@pytest.mark.measures
def test_who_observes_hears_of_an_open_span_ten_times_a_second(tracer, pair):
    observer, client = tracer.client(), tracer.client()
    client.tag(pair[0])
    observer.ask("observe")
    client.ask("begin", sync="s")
    heard = [told["now_ns"] for told in hear(observer, *["progress"] * 11) if told["kind"] == "progress"]
    gaps_ms = [(b - a) / 1e6 for a, b in zip(heard, heard[1:])]
    assert statistics.median(gaps_ms) < 150, gaps_ms


def test_what_is_over_is_known_to_who_asks_later(tracer, pair):
    a, b = pair
    with tracer.client() as client:
        client.tag(a, sync="one")
        client.tag(b, sync="two", peer="a")
        client.tag(a, sync="three")  # from the first on
        for sync in "one", "two":
            client.ask("begin", sync=sync)
        carry(a, b, 70000, 1)
        client.until(is_acknowledged, sync="three")
        assert tracer.client().ask("past") == []
        two = client.ask("end", sync="two")[0]
        client.ask("forget", sync="two")
    later = tracer.client()
    until(lambda: len(later.ask("past")) == 2, "the client is gone")
    found = later.ask("past")
    assert [(r["kind"], r["sync"], whose(r)) for r in found] == [("past", "two", MINE), ("past", "one", MINE)]
    assert carried(found[0]) == carried(two) == both_ways(0, 70000)


@ONE_METER
def test_of_what_is_over_the_last_2048_rows_are_known(tracer):
    client = tracer.client()
    with tracing.pair() as (a, _):
        for i in range(2050):
            client.tag(a, sync=f"s-{i}")
            client.ask("begin", sync=f"s-{i}")
            client.ask("forget", sync=f"s-{i}")
    assert [r["sync"] for r in client.ask("past")] == [f"s-{i}" for i in range(2, 2050)]


@ONE_METER
def test_rows_that_are_over_push_out_none_of_another_user(tracer):
    """The user with the most rows makes room, the oldest first."""
    features.require("root")
    def run(client, sock, syncs):
        for sync in syncs:
            client.tag(sock, sync=sync)
            client.ask("begin", sync=sync)
            client.ask("forget", sync=sync)

    greedy, mine = client_as(tracer, SOMEBODY), tracer.client()
    with tracing.pair() as (a, _):
        run(mine, a, ["m-0", "m-1"])
        run(greedy, a, [f"g-{i}" for i in range(2100)])
        run(mine, a, ["m-2"])
    assert [r["sync"] for r in mine.ask("past")] == ["m-0", "m-1", *(f"g-{i}" for i in range(55, 2100)), "m-2"]


def test_what_is_over_is_not_for_everybody(tracer):
    features.require("root")
    with pytest.raises(Refused, match="only root may see"):
        client_as(tracer, SOMEBODY).ask("past")


def test_who_asks_again_and_again_sees_what_stalls(tracer, pair):
    client, observer = tracer.client(), tracer.client()
    client.tag(pair[0])
    client.ask("begin", sync="s")
    pair[0].sendall(b"x")
    until(lambda: (observer.ask("rows")[0]["stall"] or {}).get("cause") == "producer", "it is seen to stand still")


def test_acts_leave_room_for_what_syncs_carry(tracer, pair):
    """Acts that the observer does not read."""
    observer, clients = tracer.client(), [tracer.client(), tracer.client()]
    observer.ask("observe")
    phase = {"act": "sync_phase", "ns": 1, "took_ns": 1, "sync": "s", "role": "member", "phase": "bytes"}
    for client in clients * 30:
        client.ask("tell", source="sync", acts=[phase] * 30)
    clients[0].tag(pair[0])
    clients[0].ask("begin", sync="s")
    clients[0].ask("end", sync="s")
    heard = hear(observer, "begin", "total", "end")
    while (n := sum(told["lost"] if told["kind"] == "gap" else told["kind"] == "act" for told in heard)) < 1800:
        heard.append(hear_one(observer))  # a gap may also arrive before those, if they take long
    assert (n, {told["source"] for told in heard if told["kind"] == "gap"}) == (1800, {"client"})
    assert [told["sync"] for told in heard if told["kind"] in ("begin", "total", "end")] == ["s"] * 3

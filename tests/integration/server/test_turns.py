"""The loop is shared by users: what one asks for in any number, on any number of connections, holds up no other."""
import contextlib
import json
import os
import re
import select
import socket
import struct

import pytest
from integration.server.test_users import LAYOUT, daemon, publish, root_only
from lib import wire
from lib.child import Child, run_as
from lib.wire import PATIENCE_S, Wire, stopped, until

__all__ = ["daemon", "root_only"]

ALICE, BOB = 12345, 12347
BURST_NS = 100_000_000  # TURN_BURST_NS
N = 800  # connections; turns are far shorter than as many pings, on any machine


def flood(pipe, path):
    """Pings on N connections at once; the times of the answers."""
    wires = [Wire(path) for _ in range(N)]
    pipe.send("connected")
    pipe.recv()
    for w in wires:
        w.send(wire.PING)
    pipe.send("sent")
    pipe.send([w.pong().uptime_ns for w in wires])


def flood_one(pipe, path):
    with Wire(path) as w:
        pipe.send("connected")
        pipe.recv()
        w.send(wire.PING)
        pipe.send("sent")
        pipe.send(w.pong().uptime_ns)


def send_ahead(pipe, path, n):
    """Pings of one client, all of them before an answer is read; the number of answers."""
    with Wire(path) as w:
        pipe.send("connected")
        pipe.recv()
        for _ in range(n):
            w.send(wire.PING)
        pipe.send("sent")
        pipe.send(sum(w.receive().op == wire.PING | wire.REPLY for _ in range(n)))
        pipe.recv()
        w.ping()
        pipe.send("answered")


def tire(pipe, path, n):
    """Asks until it is told to stop, and connects too often then; the number of connections that are not refused by then."""
    with Wire(path) as w:
        while not pipe.poll():
            w.ping()
        pipe.recv()
        refused = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(n)]
        for s in refused:
            s.connect(path)
        pipe.send("connected")
        pipe.recv()
        pipe.send(n - len(select.select(refused, [], [], 0)[0]))
        pipe.recv()


def crowd(pipe, path, n_connections, n_leases):
    """Leases on each of many connections, to be killed with all of them."""
    wires = [Wire(path) for _ in range(n_connections)]
    for w in wires:
        for _ in range(n_leases):
            w.forget(w.attach("m").fds)
    pipe.send("attached")
    pipe.recv()


def test_a_user_with_many_connections_is_served_no_more_than_one_with_one(daemon):
    with Child(flood, daemon.socket, uid=ALICE) as alice, Child(flood_one, daemon.socket, uid=BOB) as bob:
        assert alice.hear() == bob.hear() == "connected"
        with stopped(daemon):
            for child in alice, bob:
                child.say("send")
                assert child.hear() == "sent"
        answered = bob.hear()
        before = sum(t < answered for t in alice.hear())
    assert before < N // 2, f"{before} of {N} pings of a user were answered before the one of another user"


@pytest.mark.parametrize("n_connections, n_leases", [(N, 1), (1, 6000)], ids=["connections", "leases"])
def test_the_end_of_a_process_with_many_of_them_holds_up_no_other(daemon, n_connections, n_leases):
    publish(daemon.socket, "m", mode=0o644)
    with Wire(daemon.socket) as w, Child(crowd, daemon.socket, n_connections, n_leases, uid=ALICE) as alice:
        assert alice.hear() == "attached"
        with stopped(daemon):
            alice.kill()
            w.send(wire.PING)
        assert w.pong().n_leases > 0, "all was freed before another user's request was answered"
        until(lambda: (w.ping().n_leases, w.ping().n_sessions) == (0, 1), "it is freed")


def test_requests_that_were_sent_ahead_are_all_answered(daemon):
    n = 10
    with Child(send_ahead, daemon.socket, n, uid=ALICE) as alice:
        assert alice.hear() == "connected"
        with stopped(daemon):
            alice.say("send")
            assert alice.hear() == "sent"
        assert alice.hear() == n
        alice.say("again")
        assert alice.hear() == "answered"


def test_clients_of_a_user_that_rests_are_refused_later(make_daemon, tmp_path):
    n = 200
    config = tmp_path / "weightd.conf"
    config.write_text("[limits]\nconnections = 1\nloop = 1\n")
    daemon = make_daemon("--socket-mode", "0666", "--config", config)
    with Wire(daemon.socket) as root, Child(tire, daemon.socket, n, uid=ALICE) as alice:
        until(lambda: ALICE in {cost.uid for cost in root.list(wire.COSTS)}, "Alice is there")
        until(lambda: alice_of(root).loop_ns > BURST_NS, "Alice has used up a burst")
        alice.say("connect")
        assert alice.hear() == "connected"
        until(lambda: alice_of(root).n_refused == n, "all were accepted")
        alice.say("look")
        assert alice.hear() > 0, "all were refused though the user rests"
        daemon.stop()
        alice.say("end")


def alice_of(root):
    return next(cost for cost in root.list(wire.COSTS) if cost.uid == ALICE)


def costs(path):
    with Wire(path) as w:
        return {cost.uid: cost for cost in w.list(wire.COSTS)}


def ping(path, n):
    with Wire(path) as w:
        for _ in range(n):
            w.ping()


def test_costs_are_shown_to_their_user_and_to_administrators(daemon):
    run_as(ALICE, ping, daemon.socket, 100)
    run_as(BOB, ping, daemon.socket, 7)
    assert run_as(ALICE, costs, daemon.socket).keys() == {ALICE}
    found = costs(daemon.socket)
    assert found.keys() == {0, ALICE, BOB}
    assert found[ALICE].n_requests == 103 and found[BOB].n_requests == 8  # with each hello, and the list
    for cost in found[ALICE], found[BOB]:
        answered = [getattr(cost, f"answered_{i}") for i in range(wire.N_SPANS)]
        assert sum(answered) == cost.n_requests
        assert 0 < cost.longest_ns <= cost.loop_ns
        assert (cost.held_bytes, cost.checking_bytes, cost.n_refused) == (0, 0, 0)


def test_the_list_of_costs_has_all_users_of_many(daemon):
    uids = set(range(20000, 20040))  # more than a page
    for uid in uids:
        run_as(uid, ping, daemon.socket, 1)
    assert costs(daemon.socket).keys() == {0} | uids


def test_a_refusal_for_a_limit_is_counted(make_daemon, tmp_path):
    config = tmp_path / "weightd.conf"
    config.write_text("[limits]\nleases = 2\n")
    daemon = make_daemon("--socket-mode", "0666", "--config", config)
    publish(daemon.socket, "m", mode=0o644)

    def attach():
        with Wire(daemon.socket) as w:
            return [type(refused(w.attach, "m")) for _ in range(5)]

    assert run_as(ALICE, attach).count(wire.Refused) == 3
    assert costs(daemon.socket)[ALICE].n_refused == 3


def refused(act, *args):
    try:
        return act(*args)
    except wire.Refused as e:
        return e


def wait_on(pipe, path, n):
    wires = [Wire(path) for _ in range(n)]
    for w in wires:
        w.send(wire.WAIT, wire.BODIES[wire.WAIT].pack(b"m", b"", 2, -1))
    pipe.send("waiting")
    pipe.send([struct.unpack("<Q", w.answer(wire.WAIT).body)[0] for w in wires])


def test_all_that_wait_for_a_version_get_it(daemon):
    publish(daemon.socket, "m", mode=0o644)
    with Child(wait_on, daemon.socket, N, uid=ALICE) as alice:
        assert alice.hear() == "waiting"
        until(lambda: costs(daemon.socket)[ALICE].n_requests == 2 * N, "they all wait")
        assert publish(daemon.socket, "m") == 2
        assert alice.hear() == [2] * N


def watch(pipe, path, n):
    wires = [Wire(path) for _ in range(n)]
    for w in wires:
        w.send(wire.EVENTS, wire.BODIES[wire.EVENTS].pack(wire.FROM_NOW_ON, -1))
    pipe.send("watching")
    pipe.send([len(wire.page(w.answer(wire.EVENTS).body)[0]) > 0 for w in wires])


def test_all_that_watch_see_an_event(daemon):
    with Child(watch, daemon.socket, N, uid=ALICE) as alice:
        assert alice.hear() == "watching"
        until(lambda: costs(daemon.socket)[ALICE].n_requests == 2 * N, "they all wait")
        publish(daemon.socket, "m", mode=0o644)
        assert alice.hear() == [True] * N


def test_stat_shows_costs_of_users(daemon):
    run_as(ALICE, ping, daemon.socket, 1000)
    shown = json.loads(daemon.ctl("stat", "--json").stdout)["costs"]
    alice, = (cost for cost in shown if cost["uid"] == ALICE)
    known = costs(daemon.socket)[ALICE]
    assert (alice["requests"], alice["loop_ns"], alice["refused"]) == (1001, known.loop_ns, 0)
    assert sum(span["count"] for span in alice["answered"]) == 1001
    spans = [span["up_to_ns"] for span in alice["answered"]]
    assert spans == [wire.SPAN_NS << i for i in range(wire.N_SPANS - 1)] + [None]
    below = 0
    for span in alice["answered"]:
        below += span["count"]
        if below >= 1001 - 10:
            assert alice["p99_ns"] == span["up_to_ns"]
            break
    table = daemon.ctl("stat", "--users").stdout
    assert re.search(rf"^{ALICE} +1001 .* 0$", table, re.M), table
    assert "REQUESTS" not in daemon.ctl("stat").stdout


def create_many(pipe, path, name, n):
    wires = [Wire(path) for _ in range(n)]
    for i, w in enumerate(wires):
        w.send_create(f"{name}-{i}", LAYOUT)
    pipe.send("sent")
    for w in wires:
        w.slot(w.answer(wire.CREATE))
    pipe.send("created")


def keep(manager, n):
    """Receives up to n barriers, and closes what comes with each message. The names of buffers in the order of their manifests."""
    names = []
    while n:
        said, fds, _, _ = socket.recv_fds(manager, 4096, 1)
        n -= said == b"BARRIER=1"
        for fd in fds:
            if b"FDNAME=m" in said:
                names += re.findall(rb"alice-\d+|bob-\d+", os.pread(fd, os.fstat(fd).st_size, 0))[:1]
            os.close(fd)
    return names


def n_kept(w):
    """Descriptors for buffers that weightd handed over, or is about to."""
    return w.stat().store_used - 2  # its socket, and the lock


@pytest.fixture
def manager(tmp_path):
    """A service manager that receives when a test does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        yield manager


def start_under(manager, make_daemon, *args, env={}):
    daemon = make_daemon("--socket-mode", "0666", *args, env=env | {"NOTIFY_SOCKET": manager.getsockname()})
    while b"READY=1" not in manager.recv(4096):
        pass
    return daemon


EACH = 4  # descriptors of a create


def test_what_a_user_has_for_the_store_holds_up_no_other(make_daemon, manager):
    n = 40
    daemon = start_under(manager, make_daemon)
    with Wire(daemon.socket) as root, Child(create_many, daemon.socket, "alice", n, uid=ALICE) as alice:
        assert alice.hear() == "sent"
        until(lambda: n_kept(root) == n * EACH, "all of Alice's wait")
        with Child(create_many, daemon.socket, "bob", 1, uid=BOB) as bob:
            assert bob.hear() == "sent"
            until(lambda: n_kept(root) == (n + 1) * EACH, "Bob's waits, too")
            names = keep(manager, n + 1)
            assert alice.hear() == bob.hear() == "created"
    assert len(names) == n + 1 and names.index(b"bob-0") <= 4, names


def most_at_once(manager, n, n_barriers):
    """Receives up to so many barriers. The most descriptors that the manager, which has n, would have at once."""
    most = n
    while n_barriers:
        said, fds, _, _ = socket.recv_fds(manager, 4096, 1)
        n += said.startswith(b"FDSTORE=1") - said.startswith(b"FDSTOREREMOVE=1")
        most = max(most, n)
        n_barriers -= said == b"BARRIER=1"
        for fd in fds:
            os.close(fd)
    return most


def test_no_descriptor_overtakes_the_removals_that_make_room_for_it(make_daemon, manager, tmp_path):
    """A manager drops what its store has no room for, and says nothing: a restart of weightd would lose it."""
    n_root, n_others = 63, 14
    whole = n_root * EACH + 2
    config = tmp_path / "weightd.conf"
    config.write_text("[limits]\ndescriptors = unlimited\n")
    daemon = start_under(manager, make_daemon, "--config", config, env={"FDSTORE": str(whole)})
    with Wire(daemon.socket) as root, contextlib.ExitStack() as stack:
        with Child(create_many, daemon.socket, "root", n_root) as child:
            assert child.hear() == "sent"
            assert most_at_once(manager, 2, n_root) == whole
            assert child.hear() == "created"
            child.kill()
        until(lambda: n_kept(root) == 0, "all is about to be removed")
        others = [stack.enter_context(Child(create_many, daemon.socket, f"other-{i}", 1, uid=20000 + i)) for i in range(n_others)]
        assert {other.hear() for other in others} == {"sent"}
        until(lambda: n_kept(root) == n_others * EACH, "those of others wait")
        assert most_at_once(manager, whole, n_others) == whole
        assert {other.hear() for other in others} == {"created"}


# --- Requests in work ---


@pytest.fixture
def few_requests(make_daemon, manager, tmp_path):
    """A weightd that works on three requests of a user."""
    config = tmp_path / "weightd.conf"
    config.write_text("[limits]\nrequests = 3\n")
    return start_under(manager, make_daemon, "--config", config)


def test_requests_of_a_user_beyond_its_limit_wait_and_all_are_answered(few_requests, manager):
    """Requests that are no work do not wait, nor do other users, and least of all root."""
    path, n, n_root = few_requests.socket, 20, 5
    with Wire(path) as root, Child(create_many, path, "alice", n, uid=ALICE) as alice:
        assert alice.hear() == "sent"
        until(lambda: n_kept(root) == 3 * EACH, "three wait for the store")
        run_as(ALICE, ping, path, 10)
        with Child(create_many, path, "bob", 2, uid=BOB) as bob, Child(create_many, path, "root", n_root) as admin:
            assert bob.hear() == admin.hear() == "sent"
            until(lambda: n_kept(root) == (3 + 2 + n_root) * EACH, "those of others wait for the store, too")
            keep(manager, n + 2 + n_root)
            assert alice.hear() == bob.hear() == admin.hear() == "created"


def test_clients_that_die_while_their_requests_wait_are_let_go(few_requests, manager):
    path, n = few_requests.socket, 20
    with Wire(path) as root:
        with Child(create_many, path, "alice", n, uid=ALICE) as alice:
            assert alice.hear() == "sent"
            until(lambda: n_kept(root) == 3 * EACH, "three wait for the store")
            alice.kill()
            until(lambda: root.ping().n_sessions == 1, "none of her connections is left")
        keep(manager, 3)
        with Child(create_many, path, "again", n, uid=ALICE) as alice:
            assert alice.hear() == "sent"
            keep(manager, n)
            assert alice.hear() == "created"


def publish_all(pipe, path, n):
    """Creates one after the other, and publishes all at once."""
    slots = []
    wires = [Wire(path) for _ in range(n)]
    for i, w in enumerate(wires):
        slots.append(w.create(f"all-{i}", LAYOUT))
    for w, slot in zip(wires, slots):
        w.send(wire.PUBLISH, wire.BODIES[wire.PUBLISH].pack(slot.writer, 0, 0, b""))
    pipe.send([w.answer(wire.PUBLISH) and i for i, w in enumerate(wires)])


def join_all(pipe, path, n):
    wires = [Wire(path) for _ in range(n)]
    tokens = [w.create_job(f"job-{i}") for i, w in enumerate(wires)]
    for i, (w, token) in enumerate(zip(wires, tokens)):
        w.send_join(f"job-{i}", token)
    pipe.send([w.joined() and i for i, w in enumerate(wires)])


@pytest.mark.parametrize("body", [publish_all, join_all])
def test_publishes_and_joins_beyond_the_limit_are_all_answered(make_daemon, tmp_path, body):
    config = tmp_path / "weightd.conf"
    config.write_text("[limits]\nrequests = 1\n")
    daemon = make_daemon("--keeper", "--socket-mode", "0666", "--config", config)
    with Child(body, daemon.socket, 20, uid=ALICE) as alice:
        assert alice.hear() == list(range(20))

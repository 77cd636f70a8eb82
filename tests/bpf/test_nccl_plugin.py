"""libnccl-profiler-weightd.so in a stub of NCCL: its events to weightd-trace, and how they join with the kernel's counts."""
import contextlib
import os
import signal
import socket
import threading
import time

import pytest
from lib import features, nccl_host, tracing
from lib.nccl_host import COLL, GROUP, GROUP_API, KERNEL_CH, MASK, NET, OP, P2P, PROXY_CTRL, STEP, VERSIONS, Host
from lib.nodes import until

REST = 63  # a communicator behind the last one
OF_COMM = {"sync", "communicator", "hash", "rank"}


@pytest.fixture(autouse=True)
def needs():
    nccl_host.require()


class Observer:
    """acts: all events, in the order of their arrival."""

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


def finalize(host, observer, context=0, **members):
    """
    The event of a communicator's end. There is another one behind it: for the last one a process waits half a
    second, in which a busy machine may not get to send it.
    """
    host.init(REST, "rest")
    host.say("finalize", context)
    closed = observer.hear("nccl_comm", state="closed", **members)
    host.say("finalize", REST)
    return closed


@contextlib.contextmanager
def meanwhile(host, *lines):
    """The host does that during the block. An observer that does not read until the end may miss some of its events."""
    thread = threading.Thread(target=lambda: [host.say(*words) for words in lines])
    thread.start()
    yield
    thread.join()


def await_threads(host, n):
    """The kernel counts one that ended a moment longer than it can be waited for."""
    until(lambda: int(host.say("threads")) == n, lambda: (host.say("threads"), n))


def is_quick(act, most_s, prepare):
    """At the best of some times: a busy machine may hold up anybody."""
    def took():
        prepare()
        began = time.monotonic()
        act()
        return time.monotonic() - began

    return any(took() < most_s for _ in range(5))


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
        assert {row["transport"] for row in rows.values()} == {"nccl"}
        assert rows["rank 1"]["submitted"] == sent["bytes"] == 1_234_570
        assert rows["rank 2"]["consumed"] == received["bytes"] == 1_234_570
        assert [row["partial"] for row in rows.values()] == [False, False]
        assert [(a["fd"], a["cookie"], a["peer"], a["counted"]) for a in (sent, received)] == \
            [(fds[0], cookies[0], 1, True), (fds[1], cookies[1], 2, True)]
        host.say("close", 0)
        host.say("close", 1)
        finalize(host, observer)
    observer.until(lambda: len([p for p in observer.packets if p["kind"] == "close"]) == 2)
    closed = {p["cookie"]: p["peer"] for p in observer.packets if p["kind"] == "close"}
    assert closed == dict(zip(cookies, ("rank 1", "rank 2")))
    # Counted from the proxy's own events, which NCCL has even if it was built without events of its network.
    peers = {(a["peer"], a["way"]): a["bytes"] for a in observer.of("nccl_peer")}
    assert peers == {(1, "send"): 1_234_570, (2, "receive"): 1_234_570}
    # Its span is over, and its rows go behind it.
    observer.until(lambda: any(p["kind"] == "end" and p["sync"] == "nccl:dp" for p in observer.packets))
    totals = {p["peer"]: p for p in observer.packets if p["kind"] == "total"}
    assert totals["rank 1"]["submitted"] == totals["rank 2"]["consumed"] == 1_234_570
    client = tracer.client()
    until(lambda: "nccl:dp" not in [row["sync"] for row in client.ask("rows")], "its rows are gone")


def test_a_call_to_a_peer_is_told_and_what_stayed_within_the_node_is_not_known(tracer, observer):
    with Host(tracer) as host:
        host.init(name=None, hash="fedcba9876543210", rank=3)
        host.say("p2p", 0, 0, "-", "Send", 100, "ncclFloat8e4m3", 5)
        host.say("stop", 0)
        call = observer.hear("nccl_p2p")
        host.say("finalize", 0)
    assert {k: call[k] for k in ("func", "count", "datatype", "bytes", "peer", "ops", "sent", "received", *OF_COMM)} == \
        {"func": "Send", "count": 100, "datatype": "ncclFloat8e4m3", "bytes": 100, "peer": 5, "ops": 0, "sent": None,
         "received": None, "sync": "nccl:fedcba9876543210", "communicator": None, "hash": "fedcba9876543210", "rank": 3}


def test_collectives_of_copy_engines_are_told(tracer, observer):
    for version in (6, 7):
        with Host(tracer, version) as host:
            host.init()
            host.say("ce", 0, 0)
            host.say("stop", 0)
            coll = observer.hear("nccl_coll", version - 5)
            host.say("finalize", 0)
        assert (coll["func"], coll["algo"], coll["seq"], coll["bytes"]) == ("AllGather", "CE", 5, 20)


def test_queue_pairs_are_told_by_their_numbers(tracer, observer):
    with Host(tracer) as host:
        host.init()
        for is_send in (1, 0):
            host.say("op", 0, 0, "-", 4, is_send, 0)
            host.say("step", 1, 0, 0)
            for _ in range(3):
                host.say("qp", 2, 0, 1, 1, 0x1234, 5000)
                host.say("stop", 2)
            host.say("stop", 1)
            host.say("stop", 0)
        sent, received = (observer.hear("nccl_qp", way=way, events=3) for way in ("send", "receive"))
        host.say("finalize", 0)
    # The size of a receive is unknown when it is posted.
    assert [(a["peer"], a["device"], a["qp"], a["bytes"]) for a in (sent, received)] == \
        [(4, 1, 0x1234, 15_000), (4, 1, 0x1234, None)]


def test_a_number_of_a_descriptor_that_is_used_again_is_another_socket(tracer, observer):
    with Host(tracer) as host:
        host.init()
        observer.hear("nccl_comm")  # from where on its own descriptor is no other
        seen = []
        for turn in (1, 2):
            fds, cookies = host.pair()
            host.say("reduce", 0, 0, 1, 1000 * turn, 1)
            sent = observer.hear("nccl_socket", cookie=cookies[0])
            assert (sent["fd"], sent["bytes"], sent["counted"]) == (fds[0], 1000 * turn, True)
            host.say("close", 0)
            host.say("close", 1)
            seen.append(fds)
        assert seen[0] == seen[1]
        row, = (row for row in tracer.client().ask("rows") if row["peer"] == "rank 1")
        assert row["submitted"] == 3000 and row["sockets"] == 2
        host.say("finalize", 0)


def test_a_socket_that_is_gone_before_it_could_be_tagged_is_told_of_as_not_counted(tracer, observer):
    os.kill(tracer.proc.pid, signal.SIGSTOP)
    try:
        with Host(tracer) as host:
            host.init()
            _, cookies = host.pair()
            host.say("reduce", 0, 0, 1, 1000, 1)
            host.say("close", 0)
            host.say("close", 1)
            os.kill(tracer.proc.pid, signal.SIGCONT)
            assert observer.hear("nccl_socket", cookie=cookies[0])["counted"] is False
            host.say("finalize", 0)
    finally:
        os.kill(tracer.proc.pid, signal.SIGCONT)


def test_two_ranks_of_one_process_and_two_of_one_name_are_told_apart(tracer, observer):
    with Host(tracer) as host:
        for context, (hash, rank) in enumerate([("1", 0), ("1", 1), ("2", 0), ("2", 0)]):
            host.init(context, "dp", hash, rank)
        observer.hear("nccl_comm", 4, state="open")
        for context in range(3):
            host.say("finalize", context)
        syncs = [a["sync"] for a in observer.of("nccl_comm", state="open")[:4]]
        assert len(set(syncs)) == 4 and syncs[0] == "nccl:dp" and syncs[1] == "nccl:dp#1"
        finalize(host, observer, 3, sync=syncs[3])
        for sync in syncs:
            observer.hear("nccl_comm", state="closed", sync=sync)


@pytest.mark.parametrize("name", ['quote"back\\slash', "é中😀" * 20, "control\x01\x7f", b"\xff\xfebroken\xc3".decode(errors="surrogateescape")],
                         ids=["escaped", "long", "control", "broken"])
def test_any_name_of_a_communicator_can_be_told(tracer, observer, name):
    with Host(tracer) as host:
        host.proc.stdin.reconfigure(errors="surrogateescape")
        host.init(name=name)
        opened = observer.hear("nccl_comm")
        host.say("finalize", 0)
    clean = name.encode(errors="surrogateescape").decode(errors="replace").replace("\ufffd", "?")
    clean = "".join("?" if ord(c) < 32 or ord(c) == 127 else c for c in clean)
    assert clean.startswith(opened["communicator"]) and len(opened["communicator"].encode()) > min(len(clean.encode()), 63) - 4


@pytest.mark.threads
@pytest.mark.parametrize("version", VERSIONS)
def test_what_makes_no_sense_is_survived(tracer, observer, version):
    with Host(tracer, version) as host:
        assert host.say("nothing") == "none"
        host.init()
        assert host.say("nothing") == "none"
        for parent in "-", "!", 7:
            for context in 0, "-", "!":
                host.say("coll", 0, context, parent, "AllReduce", 1, "ncclInt8", 1)
                host.say("op", 1, context, parent, -1, 1, 0)
                host.say("step", 2, context, parent)
                for fd in ("-", 9):  # the second is no descriptor, or no socket
                    host.say("sock", 3, context, parent, fd, 1, 10)
                host.say("qp", 4, context, parent, 0, 1, 10)
                host.say("net", 5, context, parent, 2 << 16 | 1)  # no data
                host.say("net", 6, context, parent, 9 << 16 | 7)
                for handle in (0, 1, 2, 3, 4, 5, 6, 0, "-", "!"):
                    host.say("state", handle, 9, "-")
                    host.say("state", handle, 9999, 5)
                    host.say("stop", handle)
                    host.say("stop", handle)
        # Another process's operation: its parent and context are numbers of that process.
        host.say("op", 0, "!", "!", 1, 1, 1)
        host.say("coll", 0, 0, "-", "A" * 100, 1 << 63, "x" * 100, 1)
        host.say("stop", 0)
        host.init(REST, "rest")
        for context in "-", "!", 0, 0:
            host.say("finalize", context)
        host.say("stop", 0)
        host.say("reduce", 0, *(0, 1), 0, 0)
        host.init(1, "after")
        host.say("coll", 0, 1, "-", "AllReduce", 1, "ncclInt8", 1)
        host.say("stop", 0)
        host.say("finalize", 1)
        assert observer.hear("nccl_comm", sync="nccl:after", state="closed")["colls"] == 1
        host.say("finalize", REST)
    assert observer.of("nccl_coll", func="A" * 15)[0]["bytes"] is None


def test_a_collective_that_is_never_stopped_and_a_process_that_just_ends_are_survived(tracer):
    client = tracer.client()

    def told():  # a plugin that waits for half a second reports
        host = Host(tracer)
        host.init()
        host.say("coll", 0, 0, "-", "AllReduce", 1, "ncclInt8", 1)
        host.say("coll", 1, 0, "-", "Broadcast", 1, "ncclInt8", 1)
        host.say("stop", 1)
        assert host.end() == ""
        return {act["func"] for act in client.ask("acts") if act["act"] == "nccl_coll"}

    assert until(told, "a collective was told") == {"Broadcast"}


def test_its_thread_ends_with_the_last_communicator_and_it_can_be_unloaded(tracer, observer):
    with Host(tracer) as host:
        before = int(host.say("threads"))
        for turn in range(3):
            host.init(0, "one")
            host.init(1, "two")
            await_threads(host, before + 1)
            host.say("finalize", 0)
            await_threads(host, before + 1)
            observer.hear("nccl_comm", turn + 1, communicator="one", state="closed")
            host.say("finalize", 1)
            await_threads(host, before)
            assert host.say("unload") == "0"
            host.load(6)

        def told():  # unloaded while one is open, which it takes half a second for
            host.init(0, "left")
            host.say("coll", 0, 0, "-", "AllReduce", 1, "ncclInt8", 1)
            host.say("stop", 0)
            assert host.say("unload") == "0"
            await_threads(host, before)
            host.load(6)
            return [act for act in observer.client.ask("acts") if act["act"] == "nccl_coll"]

        assert until(told, "a collective was told")[-1]["communicator"] == "left"


def test_a_child_of_the_process_has_no_part_in_it(tracer, observer):
    # A leak sanitizer assumes that a child has its parent's threads.
    with Host(tracer, ASAN_OPTIONS="detect_leaks=0") as host:
        host.init()
        observer.hear("nccl_comm", communicator="dp")

        def told():  # a child that waits for half a second reports
            assert host.say("fork", 0) == "0"
            return [act for act in observer.client.ask("acts") if act.get("communicator") == "child" and act.get("state") == "closed"]

        child = until(told, "a child's communicator has an event")[-1]
        assert child["pid"] != host.proc.pid and child["colls"] == 1
        host.say("coll", 0, 0, "-", "AllReduce", 1, "ncclInt8", 1)
        host.say("stop", 0)
        assert finalize(host, observer, communicator="dp")["colls"] == 1


def test_without_a_tracer_nothing_is_told_and_nobody_is_held_up():
    with Host() as host:
        def init():
            host.init()
            host.pair()
            host.say("reduce", 0, 0, 1, 1000, 100)

        assert is_quick(lambda: host.say("finalize", 0), 0.4, init)


@pytest.mark.parametrize("verbose", ["1", "0"])
def test_it_says_where_it_is_asked_to_that_there_is_no_tracer(verbose):
    host = Host(WEIGHTD_NCCL_VERBOSE=verbose)
    host.init()
    host.say("finalize", 0)
    said = host.end()
    assert said == ("libnccl-profiler-weightd: no weightd-trace on /nonexistent/trace.sock (No such file or directory); "
                    "nothing is reported\n" if verbose == "1" else "")


@pytest.mark.threads
def test_a_tracer_that_comes_later_or_again_is_told_what_there_is(tracer, observer):
    with Host(tracer) as host:
        host.init()
        _, cookies = host.pair()
        host.say("reduce", 0, 0, 1, 10_000, 1)
        observer.hear("nccl_socket", cookie=cookies[0])
        tracer.kill()
        host.say("reduce", 0, 0, 1, 10_000, 1)
        tracer.start()
        observer = Observer(tracer)
        sent = observer.hear("nccl_socket", cookie=cookies[0])
        assert (sent["bytes"], sent["events"], sent["counted"]) == (20_000, 2, True)
        assert observer.hear("nccl_comm")["colls"] == 2
        # From the first byte on: the kernel has the count.
        row, = (row for row in tracer.client().ask("rows") if row["peer"] == "rank 1")
        assert row["submitted"] == 20_000 and not row["partial"]
        finalize(host, observer)


@pytest.mark.threads
def test_a_tracer_that_never_reads_holds_nobody_up(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with Host(tmp_path / "s") as host:
            def init():
                host.init()
                clients.append(listener.accept()[0])
                host.pair()
                host.say("reduce", 0, 0, 1, 1000, 100)

            clients = []
            assert is_quick(lambda: host.say("finalize", 0), 2, init)
            for client in clients:
                client.close()


def test_more_events_than_there_is_room_for_are_counted_and_told(tracer, observer):
    with Host(tracer) as host:
        host.init()
        room = int(host.say("flood", 0, 100_000))
        assert 0 < room < 100_000
        observer.until(lambda: sum(gap["lost"] for gap in observer.of("nccl_gap")) >= 100_000 - room)
        assert sum(gap["lost"] for gap in observer.of("nccl_gap")) == 100_000 - room
        assert host.say("coll", 0, 0, "-", "AllReduce", 1, "ncclInt8", 1) == "none"
        # It ends with its communicator, whether another one keeps the plug-in or not.
        for context in (1, 2):
            host.init(context, f"next-{context}")
            host.say("finalize", context - 1)
            had, deadline = 0, time.monotonic() + 30
            while had < room:
                assert time.monotonic() < deadline, had
                had += int(host.say("flood", context, room - had))
        host.say("finalize", 2)
        host.init(3)
        assert host.say("coll", 0, 3, "-", "AllReduce", 1, "ncclInt8", 1) == "handle"
        host.say("finalize", 3)


def test_operations_that_never_end_leave_nothing_of_their_communicator(tracer):
    """As where it is aborted."""
    with Host(tracer) as host:
        host.init()
        for _ in range(10):
            host.say("coll", 0, 0, "-", "AllReduce", 1, "ncclInt8", 1)
            host.say("stop", 0)
            assert host.say("op", 1, 0, 0, 1, 1, 0) == "handle"
        room = 20 + int(host.say("flood", 0, 100_000))
        host.init(1, "next")
        host.say("finalize", 0)
        had, deadline = 0, time.monotonic() + 30
        while had < room:
            assert time.monotonic() < deadline, (had, room)
            had += int(host.say("flood", 1, room - had))
        host.say("finalize", 1)


def test_what_is_told_and_what_is_lost_are_all_events(tracer, observer):
    """From two threads that do nothing else; it depends on the machine if any is lost."""
    with Host(tracer) as host:
        host.init()
        host.init(REST, "rest")
        with meanwhile(host, ("measure", 2, 0, 100_000), ("finalize", 0)):
            comm = observer.hear("nccl_comm", state="closed")
        host.say("finalize", REST)
    told = comm["colls"] + sum(a["events"] for a in last_of_each(observer.of("nccl_socket") + observer.of("nccl_peer")))
    assert told + sum(gap["lost"] for gap in observer.of("nccl_gap")) == 600_000 and comm["untold"] > 0


def last_of_each(acts):
    return {(a["act"], a.get("cookie"), a["peer"], a["way"]): a for a in acts}.values()


@pytest.mark.threads
@pytest.mark.parametrize("version", VERSIONS)
def test_many_threads_tell_of_the_same_communicator(version):
    features.require("trace")
    with tracing.Tracer("--meter=diag") as tracer, Host(tracer, version) as host:
        observer = Observer(tracer)
        for context in (0, 1, REST):
            host.init(context, f"of {context}".replace(" ", "-"))
        with meanwhile(host, ("hammer", 4, 0, 200), ("finalize", 1), ("hammer", 4, 0, 200), ("finalize", 0)):
            comm = observer.hear("nccl_comm", state="closed", sync="nccl:of-0")
        assert comm["colls"] == 1600
        sent = [a for a in last_of_each(observer.of("nccl_peer")) if a["way"] == "send"]
        assert [a["bytes"] for a in sent] == [1600 * 4096] and not observer.of("nccl_gap")
        host.say("finalize", REST)
        host.end()


def test_a_mask_that_others_of_its_kind_read_too_is_followed(tracer, observer):
    with Host(tracer, NCCL_PROFILE_EVENT_MASK=str(COLL | 64)) as host:
        assert host.init() == COLL
        host.say("p2p", 0, 0, "-", "Send", 1, "ncclInt8", 1)
        host.say("stop", 0)
        host.say("coll", 0, 0, "-", "AllReduce", 1, "ncclInt8", 1)
        host.say("stop", 0)
        closed = finalize(host, observer)
    assert (closed["colls"], closed["p2ps"]) == (1, 0)


def test_all_sockets_of_the_process_are_counted_where_somebody_wants_that(tracer, observer):
    features.require("pids")
    with Host(tracer, WEIGHTD_NCCL_WATCH="1") as host:
        host.init()
        observer.hear("nccl_comm")  # its event follows it
        host.pair()
        host.say("carry", 0, 1, 54_321)
        row, = tracer.client().ask("rows")
        assert (row["sync"], row["peer"], row["submitted"], row["consumed"]) == ("nccl", "any rank", 54_321, 54_321)
        host.say("reduce", 0, 0, 1, 1000, 1)
        observer.hear("nccl_socket", 2)
        # Sockets that NCCL names have a row of their own from then on.
        host.say("carry", 0, 1, 1000)
        rows = {row["peer"]: row for row in tracer.client().ask("rows")}
        assert rows["rank 1"]["submitted"] >= 1000 <= rows["rank 2"]["consumed"]
        host.say("finalize", 0)


class Next:
    """The calls of another plug-in, through this one or by the host itself."""

    def __init__(self, folder, name="next", mask=COLL, **env):
        self.log = folder / f"{name}.log"
        self.env = {"NEXT_LOG": str(self.log), "NEXT_MASK": str(mask)} | env
        self.through = self.env | {"WEIGHTD_NCCL_PROFILER_NEXT": str(nccl_host.FOLDER / f"libnccl-profiler-{name}.so")}

    def lines(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


def play(host):
    """A group with a collective that has operations with steps, and events of all kinds that a plug-in can ask for."""
    host.say("event", 10, 0, "-", GROUP_API)
    host.say("event", 0, 0, "-", GROUP)
    host.say("coll", 1, 0, 0, "AllReduce", 10, "ncclFloat32", 1)
    host.say("op", 2, 0, 1, 3, 1, 0)  # or it would be over half a second after it stops
    host.say("stop", 1)
    host.say("stop", 0)
    host.say("step", 3, 0, 2)
    host.say("state", 3, 9, 40)
    host.say("state", 3, 23, "-")
    host.say("net", 4, 0, 3, 2 << 16 | 1)
    host.say("event", 5, 0, 1, KERNEL_CH)
    host.say("state", 5, 22, 7)
    host.say("event", 6, 0, "-", PROXY_CTRL)
    for handle in 6, 5, 4, 3, 2, 10:
        host.say("stop", handle)
    host.say("stop", 4)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("mask", [COLL, COLL | OP, STEP, NET, KERNEL_CH, GROUP | PROXY_CTRL, 255, 0])
def test_the_next_plugin_hears_what_it_would_hear_alone(tracer, observer, tmp_path, version, mask):
    """The host sends everything; a real one what was asked for, which is worked out here as in NCCL."""
    other = Next(tmp_path, mask=mask)
    with Host(tracer, version, **other.through) as host:
        assert host.init() == mask | (MASK if version > 5 else MASK & 255)
        play(host)
        coll = observer.hear("nccl_coll")
        host.say("finalize", 0)
    assert (coll["ops"], coll["sent"]) == (1, 40)
    step, op = mask & (STEP | NET), mask & (STEP | NET | OP)
    task = mask & (STEP | NET | OP | KERNEL_CH | COLL)
    group = mask & (STEP | NET | OP | KERNEL_CH | COLL | P2P | GROUP)
    of = {GROUP: group, COLL: task, OP: op, STEP: step, NET: mask & NET, KERNEL_CH: mask & KERNEL_CH, PROXY_CTRL: mask & PROXY_CTRL}
    if version > 4:
        of[GROUP_API] = group
    started = [int(line.split()[1]) for line in other.lines() if line.startswith("start")]
    assert sorted(started) == sorted(type for type, asked in of.items() if asked)
    assert len([line for line in other.lines() if line.startswith("stop")]) == len(started)
    states = [line.split()[1] for line in other.lines() if line.startswith("state")]
    assert states == ["9"] * bool(step) + ["23"] * bool(step and version > 4) + ["22"] * bool(mask & KERNEL_CH)
    assert other.lines()[0].startswith(f"init v{version} dp abc 0/8 -> 1") and other.lines()[-1] == "finalize 1"


def tree(lines):
    """Types of events by the types of their parents."""
    type_of, found = {"0": None}, set()
    for words in (line.split() for line in lines if line.startswith("start")):
        type_of[words[-1]] = int(words[1])
        found.add((int(words[1]), type_of[words[5]]))
    return found


@pytest.mark.parametrize("name, version, heard", [("next", 6, 6), ("next", 7, 6), ("next", 5, 4), ("next", 4, 4), ("old", 6, 4)])
def test_parents_of_the_next_plugin_are_its_own_in_its_version(tracer, tmp_path, name, version, heard):
    other = Next(tmp_path, name, mask=255)
    with Host(tracer, version, **other.through) as host:
        host.init()
        play(host)
        host.say("finalize", 0)
    assert other.lines()[0].startswith(f"init v{heard} ")
    # A collective's parent is its group in v4; since v5 it is the call of the API, of which there is none here.
    assert tree(other.lines()) - {(GROUP_API, None)} == {
        (GROUP, None), (COLL, GROUP if heard == 4 else None), (OP, COLL), (STEP, OP), (NET, STEP), (KERNEL_CH, COLL), (PROXY_CTRL, None)}
    coll, = (line for line in other.lines() if line.startswith("start 2 "))
    assert " AllReduce 10" in coll
    if heard > 4:
        group, = (line.split()[-1] for line in other.lines() if line.startswith("start 1 "))
        assert f" group {group} " in coll


def test_the_next_plugin_is_found_by_its_short_name(tracer, tmp_path):
    other = Next(tmp_path)
    with Host(tracer, **other.through | {"WEIGHTD_NCCL_PROFILER_NEXT": "next", "LD_LIBRARY_PATH": str(nccl_host.FOLDER)}) as host:
        host.init()
        host.say("finalize", 0)
    assert len(other.lines()) == 2


@pytest.mark.parametrize("name", ["/nonexistent/libnccl-profiler-x.so", "nonexistent", "libc.so.6"])
def test_a_next_plugin_that_cannot_be_had_is_told_of_once_and_gone_without(tracer, observer, name):
    with Host(tracer, WEIGHTD_NCCL_PROFILER_NEXT=name) as host:
        assert host.init() == MASK
        said = host.say("log")
        assert f"'{name}'" in said and "cannot be loaded" in said
        host.init(1, "two")
        assert host.say("log") == "-"
        play(host)
        assert observer.hear("nccl_coll")["func"] == "AllReduce"
        host.say("finalize", 0)
        host.say("finalize", 1)


def test_a_next_plugin_that_fails_is_not_called_again(tracer, observer, tmp_path):
    other = Next(tmp_path, NEXT_FAILS="1")
    with Host(tracer, **other.through) as host:
        assert host.init() == MASK
        play(host)
        assert observer.hear("nccl_coll")
        host.say("finalize", 0)
    assert other.lines() == []


@pytest.mark.threads
def test_many_threads_are_passed_on(tmp_path):
    features.require("trace")
    other = Next(tmp_path, mask=255)
    with tracing.Tracer("--meter=diag") as tracer, Host(tracer, **other.through) as host:
        host.init()
        host.say("hammer", 4, 0, 50)
        host.say("finalize", 0)
    lines = other.lines()
    assert len([line for line in lines if line.startswith("start")]) == 200 * 8
    assert len([line for line in lines if line.startswith("stop")]) == 200 * 8
    assert tree(lines) == {(GROUP, None), (COLL, None), (OP, COLL), (STEP, OP), (NET, STEP)}

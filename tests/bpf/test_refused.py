"""The counts where the kernel refuses some BPF programs, and the reports about those."""
import contextlib
import os
import pathlib
import socket
import subprocess

import pytest
from bpf.traffic import both_ways, carried, carry, is_acknowledged, qualities
from lib import features, tracing
from lib.tracing import Client, Tracer

NOBODY = 65534
WHY = "the kernel refuses it: Operation not permitted"
PROGRAMS = {  # (the hook, the meter that is left)
    "on_state": ("tp_btf/inet_sock_set_state", "diag"), "on_destroy": ("tp_btf/tcp_destroy_sock", "bpf"),
    "on_retransmit": ("tp_btf/tcp_retransmit_skb", "bpf"), "mark": ("iter/bpf_sk_storage_map", "bpf"),
    "want": ("iter/task_file", "bpf"), "on_send": ("tp_btf/sock_send_length", "bpf"),
    "on_receive": ("tp_btf/sock_recv_length", "bpf"),
}
OF_FILES = "adopt", "want"  # one of them is enough, and newer kernels refuse the first one by themselves
OF_PROBES = {"on_call": "uprobe_multi", "look": "iter/task_vma"}
RECEIVE_SIZE = 1 << 16
MANY = 4 << 20  # bytes, more than two sockets hold


@pytest.fixture(params=["", "mark"], ids=["all", "mark-refused"])
def tracer(request):
    features.require("bpf")
    with Tracer(refused=tuple(filter(None, [request.param]))) as t:
        yield t


def off(told):
    return {row["hook"]: row["why"] for row in told if row["kind"] == "hook" and not row["on"]}


def meter_of(told):
    return next(row for row in told if row["kind"] == "meter")


@pytest.mark.probes
@pytest.mark.parametrize("program", PROGRAMS | OF_PROBES)
def test_what_is_refused_costs_no_more_than_it_is_for(program):
    features.require("bpf")
    hook, meter = PROGRAMS.get(program) or (OF_PROBES[program], "bpf")
    if program in OF_PROBES:
        features.require("probes")
    refused = OF_FILES if program in OF_FILES else (program,)
    with Tracer(probes=True, refused=refused) as tracer, Client(tracer.socket) as client, tracing.pair() as (a, b):
        told = client.ask("doctor")
        assert off(told) == tracing.refused() | {hook: WHY}
        said = meter_of(told)
        assert said["meter"] == meter and f"counts by {meter} on" in tracer.greeting
        assert said["why"] == (None if meter == "bpf" else f"{hook}: {WHY}")
        is_limited = meter == "bpf" and program in ("on_destroy", "want")
        assert said["limits"] == ("a row that may lack bytes is sampled" if is_limited else None)
        client.tag(a)
        carry(a, b, 1_234_567, 1)
        row = client.until(is_acknowledged)
        assert carried(row) == both_ways(1_234_567, 0)
        assert qualities(row) == ({"exact", "sampled"} if program == "on_destroy" else {"exact"})


def test_processes_whose_older_sockets_cannot_be_seen_are_sampled():
    features.require("bpf")
    with Tracer(refused=OF_FILES) as tracer, Client(tracer.socket) as client, tracing.pair():
        client.watch(os.getpid())
        assert client.row()["sockets"] == 0
        with tracing.pair() as (a, b):
            carry(a, b, 1234, 1)
            row = client.until(lambda row: row["delivered"] == 1234)
            assert (row["sockets"], qualities(row)) == (2, {"sampled"})


def test_without_any_way_to_visit_sockets_sock_diag_counts():
    features.require("bpf")
    with Tracer(refused=("mark", "mark_tcp")) as tracer, Client(tracer.socket) as client:
        said = meter_of(client.ask("doctor"))
        assert (said["meter"], said["why"]) == ("diag", f"iter/tcp: {WHY}") and said["why"] in tracer.log


def test_the_older_sockets_of_a_process_are_followed_also_where_no_program_may_walk_to_them(connect):
    """In every namespace, each once."""
    features.require("bpf")
    a, b = connect()
    with Tracer(refused=("adopt",)) as tracer, Client(tracer.socket) as client, tracing.pair() as (c, d):
        assert meter_of(client.ask("doctor"))["limits"] is None
        carry(a, b, 70_000, 1)
        client.watch(os.getpid())
        row = client.row()
        assert (row["sockets"], row["closed"], row["partial"], carried(row)) == (4, 0, True, both_ways(0, 0))
        carry(a, b, 1234, 1)
        carry(d, c, 4321, 1)
        row = client.until(is_acknowledged)
        assert (carried(row), qualities(row)) == (both_ways(5555, 5555), {"exact"})


@pytest.mark.probes
def test_where_no_iterator_begins_those_are_off_and_sock_diag_counts():
    """As under a supervisor that lets programs be loaded and attached."""
    features.require("bpf")
    with Tracer(probes=True, refused=("iter-create",)) as tracer, Client(tracer.socket) as client, tracing.pair() as (a, b):
        told = client.ask("doctor")
        iterators = dict.fromkeys(["iter/bpf_sk_storage_map", "iter/tcp", "iter/task_file", "iter/task_vma"], WHY)
        assert off(told) == tracing.refused() | iterators
        assert (meter_of(told)["meter"], meter_of(told)["why"]) == ("diag", f"iter/tcp: {WHY}")
        client.tag(a)
        carry(a, b, 1_234_567, 1)
        assert carried(client.until(is_acknowledged)) == both_ways(1_234_567, 0)


def bound(a, b):
    """Lest half of what was sent fits into what `b` has not read, and ends the connection."""
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * RECEIVE_SIZE)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_SIZE)


def fill(a):
    """Sends until nothing fits any more: how many bytes."""
    a.setblocking(False)
    n = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            n += a.send(bytes(1 << 16))
    return n


def take(b, n):
    while n > 0:
        n -= len(b.recv(min(n, 1 << 16)))


def test_a_connection_that_no_process_has_open_is_seen_in_another_namespace(tracer, connect):
    a, b = connect()
    bound(a, b)
    client = tracer.client()
    client.tag(a)
    n = fill(a)
    a.close()
    before = client.row()
    assert (before["submitted"], before["closed"]) == (n, 0) and before["delivered"] < n
    take(b, n // 4)
    now = client.until(lambda row: row["delivered"] > before["delivered"])
    assert now["closed"] == 0 and qualities(now) == {"exact"}
    take(b, n - n // 4)
    b.close()
    after = client.until(lambda row: row["closed"] == 1)
    assert (after["delivered"], qualities(after)) == (n, {"exact"})


def test_what_is_taken_from_a_connection_that_is_over_is_seen_as_it_is_taken(tracer, connect):
    """TCP has it in no table any more."""
    a, b = connect()
    client = tracer.client()
    client.tag(a)
    a.shutdown(socket.SHUT_WR)
    assert b.recv(1) == b""
    b.sendall(bytes(50_000))
    b.close()
    row = client.until(lambda row: row["closed"] == 1)
    assert (row["received"], row["consumed"]) == (50_000, 0)
    take(a, 20_000)
    assert client.row()["consumed"] == 20_000
    take(a, 30_000)
    row = client.row()
    assert (row["consumed"], qualities(row)) == (50_000, {"exact"})


def test_without_the_right_to_enter_a_namespace_its_sockets_are_refused_and_others_counted(connect):
    features.require("bpf")
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=+bpf,+perfmon", "--ambient-caps=+bpf,+perfmon"]
    a, b = connect()
    with Tracer(prefix=drop, uid=NOBODY, refused=("mark", "adopt")) as tracer, Client(tracer.socket) as client, tracing.pair() as (c, d):
        assert "lacks CAP_SYS_ADMIN" in meter_of(client.ask("doctor"))["limits"]
        with pytest.raises(tracing.Refused, match="in a network namespace that weightd-trace cannot enter, which takes CAP_SYS_ADMIN"):
            client.tag(a)
        client.tag(c)
        carry(c, d, 1_234_567, 1)
        row = client.until(is_acknowledged)
        assert (carried(row), qualities(row)) == (both_ways(1_234_567, 0), {"exact"})
        client.watch(os.getpid(), sync="older")
        row = client.row(sync="older")
        assert (row["sockets"], qualities(row)) == (1, {"sampled"}), "`d` is seen, and `a` and `b` are not"


def namespaces_of(pid):
    """Network namespaces that the process has descriptors of."""
    found = set()
    for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= {to for to in [os.readlink(path)] if to.startswith("net:")}
    return found


def test_a_namespace_without_a_name_or_a_process_is_seen_and_not_kept():
    features.require("bpf")
    features.require("netns")
    name = f"wd-{os.getpid()}-gone"
    own = os.readlink("/proc/self/ns/net")
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        server = tracing.inside(name, socket.create_server, ("127.0.0.1", 0))
        a = tracing.inside(name, socket.create_connection, server.getsockname())
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
    with server, server.accept()[0] as b, Tracer(refused=("mark",)) as tracer, Client(tracer.socket) as client:
        client.tag(a)
        bound(a, b)
        n = fill(a)
        a.close()  # now only TCP has it
        take(b, n // 2)
        row = client.row()
        assert row["closed"] == 0 and row["submitted"] == n
        assert namespaces_of(tracer.proc.pid) - {own}
        take(b, n - n // 2)
        b.close()
        client.until(lambda row: row["closed"] == 1)
        client.row()
        assert namespaces_of(tracer.proc.pid) == {own}, "after a look that saw nothing there"

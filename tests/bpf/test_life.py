"""How the tracer lives: storms, its death, the rights that it has, and what it costs."""
import contextlib
import os
import pathlib
import re
import socket
import struct
import subprocess
import time

import pytest
from bpf.traffic import both_ways, carried, carry, is_acknowledged, qualities, storm, sum_of_events
from lib import features, kernel, tracing
from lib.cgroup import Cgroup, unified
from lib.tracing import Client, Refused, Tracer

pytestmark = pytest.mark.probes

NOBODY = 65534
LOOK_S = 0.1  # between looks, while a span is open
HOOKS = ["tp_btf/inet_sock_set_state", "tp_btf/tcp_destroy_sock", "tp_btf/tcp_retransmit_skb",
         "iter/bpf_sk_storage_map", "iter/tcp", "iter/task_file", "tp_btf/sock_send_length", "tp_btf/sock_recv_length",
         "uprobe_multi", "iter/task_vma", "perf/mmap", "fexit/receive_fd"]
ON_CONNECTIONS = {"on_state", "on_state_too", "on_destroy", "on_retransmit"}
ON_CALLS = {"on_call", "on_return", "look", "on_probe"}
ON_DESCRIPTORS = {"on_fds_copy", "on_fds_send", "on_fds_come", "on_fds_came", "on_fd_take", "on_fd_receive", "on_fd_taken"}
LACKS = "weightd-trace lacks "
HAVE = ", which its unit and root have"


def test_a_meter_that_is_refused_is_an_error(tmp_path):
    features.require("root")
    features.require("trace")
    done = subprocess.run(["setpriv", "--bounding-set=-all", "--inh-caps=-all", features.BUILD / "weightd-trace", "--meter=bpf",
                           "--socket", tmp_path / "trace.sock"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr == f"weightd-trace: {LACKS}CAP_BPF and CAP_PERFMON{HAVE}\n", done.stderr


@pytest.mark.measures  # ten thousand connections are a burden to whatever runs beside them
def test_totals_are_exact_where_events_are_lost(net):
    features.require("bpf")
    n, size = 10_000, 100
    with Tracer("--ring=4K", probes=True) as tracer, Client(tracer.socket) as client:
        client.ask("follow")
        client.watch(os.getpid())
        os.kill(tracer.proc.pid, 19)  # so that the buffer gets no room
        try:
            storm(net, 500, size)
        finally:
            os.kill(tracer.proc.pid, 18)
        storm(net, n - 500, size)
        row = client.until(lambda row: row["closed"] == 2 * n)
        assert carried(row) == both_ways(n * size, n * size)
        assert (row["sockets"], row["partial"]) == (2 * n, False)
        assert row["lost"] > 1900
        told = sum_of_events(client, 4 * n)
        assert (told["events"] + told["gaps"], told["ring"]) == (4 * n, row["lost"]), told


def kernel_objects(pid):
    """{(kind, id)} of what the process has of BPF."""
    found = set()
    for path in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found |= set(re.findall(r"^(prog|map|link)_id:\s+(\d+)$", path.read_text(), re.M))
    return found


def exists(kind, number):
    """Looks among the kernel's own numbers: the smallest that is not less."""
    command = {"prog": 11, "map": 12, "link": 31}[kind]  # BPF_*_GET_NEXT_ID
    r, attribute = kernel.bpf(command, struct.pack("=III", int(number) - 1, 0, 0))
    return r == 0 and struct.unpack_from("=II", attribute)[1] == int(number)


def test_nothing_is_left_of_one_that_was_killed_and_the_next_adopts(connect):
    features.require("bpf")
    a, b = connect()
    with Tracer(probes=True) as tracer:
        with Client(tracer.socket) as client:
            client.watch(os.getpid())
            carry(a, b, 1000, 1)
            client.until(is_acknowledged)
            objects = kernel_objects(tracer.proc.pid)
            assert {kind for kind, _ in objects} >= {"prog", "map"} and all(exists(*o) for o in objects)
            tracer.kill()
        deadline = time.monotonic() + tracing.STOP_S
        while left := [o for o in objects if exists(*o)]:  # the kernel frees them behind its back
            assert time.monotonic() < deadline, left
            time.sleep(0.01)
        tracer.start()  # at the socket that the dead one left
        with Client(tracer.socket) as client:
            client.ask("begin", sync="s")
            client.watch(os.getpid())
            carry(a, b, 2345, 2)
            row = client.until(is_acknowledged)
            assert carried(row) == both_ways(2345, 2345)
            assert (row["partial"], row["sockets"]) == (True, 2)


def test_an_end_that_nobody_saw_is_found_out(tracer, connect):
    """The kernel was seen to run no program then; here none has anything to run on."""
    client, (a, b), (c, d) = tracer.client(), connect(), connect()
    for sock, peer in (a, "b"), (b, "a"), (c, "b"):
        client.tag(sock, peer=peer)
    client.ask("begin", sync="s")
    carry(a, b, 1000, 1)
    carry(c, d, 70, 1)
    client.until(is_acknowledged)
    kernel.take_from_storage(tracer.proc.pid, "flows", a.fileno())
    carry(a, b, 234, 2)
    a.close()
    row = client.until(lambda row: row["closed"] == 1)
    assert (row["sockets"], row["submitted"], qualities(row)) == (2, 1070, {"sampled"})
    assert {row["quality"][name] for name in ("sockets", "closed")} == {"sampled"}
    carry(c, d, 5, 3)
    c.close()
    row = client.until(lambda row: row["closed"] == 2)
    assert (row["sockets"], row["submitted"], qualities(row)) == (2, 1075, {"sampled"}), "for ever"
    assert qualities(client.row("a")) == {"exact"} and client.row("a")["received"] == 1234


RUNGS = [([], "diag", f"{LACKS}CAP_BPF and CAP_PERFMON{HAVE}"), (["bpf"], "diag", f"{LACKS}CAP_PERFMON{HAVE}"),
         (["perfmon"], "diag", f"{LACKS}CAP_BPF{HAVE}"), (["bpf", "perfmon"], "bpf", None),
         (["bpf", "perfmon", "net_admin"], "bpf", None), (["bpf", "perfmon", "net_admin", "sys_admin"], "bpf", None)]


@pytest.mark.parametrize("capabilities, meter, why", RUNGS, ids=[" ".join(r[0]) or "none" for r in RUNGS])
def test_each_capability_brings_what_it_should(capabilities, meter, why):
    features.require("bpf")
    paranoid = int(pathlib.Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if "perfmon" in capabilities and "sys_admin" not in capabilities and tracing.has("uprobe_multi"):
        features.require("probes", f"kernel.perf_event_paranoid is {paranoid}: probes want CAP_SYS_ADMIN then", paranoid < 3)
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    if capabilities:
        words = ",".join("+" + c for c in capabilities)
        drop += [f"--inh-caps={words}", f"--ambient-caps={words}"]
    with Tracer(prefix=drop, uid=NOBODY, probes=True) as tracer, Client(tracer.socket) as client:
        assert f"counts by {meter} on {tracer.socket}" in tracer.greeting
        told = client.ask("doctor")
        hooks, (last,) = ([row for row in told if row["kind"] == kind] for kind in ("hook", "meter"))
        assert [hook["hook"] for hook in hooks] == HOOKS
        refused = dict.fromkeys(HOOKS, why) if meter == "diag" else tracing.refused()
        if capabilities == ["perfmon"] and paranoid < 3:  # enough for that hook alone, as it is no program
            del refused["perf/mmap"]
        assert {hook["hook"]: hook["why"] for hook in hooks if not hook["on"]} == refused
        assert (last["meter"], last["why"]) == (meter, why)
        with socket.create_server(("127.0.0.1", 0)) as server, \
                socket.create_connection(server.getsockname()) as a, server.accept()[0] as b:
            client.tag(a)
            carry(a, b, 1_234_567, 1)
            row = client.until(is_acknowledged)
        assert carried(row) == both_ways(1_234_567, 0)
        assert qualities(row) == {"exact"}
        assert row["source"] == meter


def test_a_kernel_that_does_not_describe_itself_is_done_without():
    """As one without BTF: here it is hidden."""
    features.require("bpf")
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys/kernel/btf && exec "$@"', "sh"]
    why = "the kernel has no BTF in /sys/kernel/btf/vmlinux: No such file or directory"
    with Tracer(prefix=hide, probes=True) as tracer, tracing.pair() as (a, b):
        assert f"counts by diag on {tracer.socket}" in tracer.greeting and why in tracer.log
        client = tracer.client()
        told = client.ask("doctor")
        assert {hook["hook"]: hook["why"] for hook in told if hook["kind"] == "hook" and not hook["on"]} == \
            {hook: why for hook in HOOKS if hook != "perf/mmap"}, "perf describes its own events"
        assert [(meter["meter"], meter["why"]) for meter in told if meter["kind"] == "meter"] == [("diag", why)]
        client.tag(a)
        carry(a, b, 1_234_567, 1)
        row = client.until(is_acknowledged)
        assert (carried(row), row["source"], qualities(row)) == (both_ways(1_234_567, 0), "diag", {"exact"})


@pytest.fixture
def without_bpf():
    features.require("trace")
    with Tracer("--meter=diag", probes=True) as tracer:
        yield tracer


def test_without_bpf_a_connection_that_ended_is_sampled(without_bpf):
    client = without_bpf.client()
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as a, server.accept()[0] as b:
            client.tag(a)
            client.ask("begin", sync="s")
            carry(a, b, 5000, 1)
            client.until(is_acknowledged)
        row = client.until(lambda row: row["closed"] == 1)
    assert carried(row) == both_ways(5000, 0)
    assert qualities(row) == {"sampled"}


def test_without_bpf_what_is_elsewhere_is_absent(without_bpf, connect):
    a, b = connect()
    client = without_bpf.client()
    client.tag(a)
    carry(a, b, 5000, 1)
    row = client.row()
    assert {row[name] for name in tracing.COUNTERS} == {None}
    assert qualities(row) == {"absent"}
    assert (row["closed"], row["quality"]["closed"], row["sockets"], row["quality"]["sockets"]) == (None, "absent", 1, "exact")


def test_without_bpf_no_process_is_watched(without_bpf):
    with pytest.raises(Refused, match="only BPF can follow the sockets of processes: weightd-trace was started with --meter=diag"):
        without_bpf.client().watch(os.getpid())


@pytest.mark.parametrize("what", ["sockets", "a process", "a group"])
def test_nothing_runs_where_bytes_are_sent(tracer, connect, what):
    """Nor does the collector look, whatever is done meanwhile: no span is open."""
    a, b = connect()
    client, n = tracer.client(), 0
    act = {"act": "nccl_gap", "ns": 1, "lost": 1, "from_ns": 1}
    with contextlib.ExitStack() as stack:
        if what == "sockets":
            client.tag(a, peer="b")
            client.tag(b, peer="a")
        elif what == "a process":
            client.watch(os.getpid())
        else:
            features.require("cgroup2")
            group = stack.enter_context(Cgroup(unified()))
            stack.enter_context(group.around(os.getpid()))
            client.ask("watch", cgroup=str(group.path), sync="s", version=1, peer="b", role="payload")
        with kernel.counting_runs():
            before = runs(tracer)
            client.ask("tell", source="nccl", acts=[act])
            end = time.monotonic() + 3 * LOOK_S
            while n < 50_000 or time.monotonic() < end:
                a.send(b"x")
                b.recv(1)
                n += 1
            after = runs(tracer)
        visits = "mark" if tracing.has("iter/bpf_sk_storage_map") else "mark_tcp"
        assert set(before) >= {visits} | ({"on_send", "on_receive"} if tracing.has("tp_btf/sock_send_length") else set())
        assert after == before
        assert client.until(is_acknowledged)["submitted"] == n


def runs(tracer):
    """
    The runs of the programs, without those that run as connections begin and end, libraries and weightds are called, or
    descriptors are sent: other tests do so meanwhile.
    """
    return {name: n for name, (n, _) in kernel.runs(tracer.proc.pid).items()
            if name not in ON_CONNECTIONS | ON_CALLS | ON_DESCRIPTORS}


def test_started_by_hand_it_is_where_all_look_for_it():
    """In a /run of its own, which has nothing yet."""
    features.require("netns")
    env = {k: v for k, v in os.environ.items() if k != "WEIGHTD_TRACE_SOCKET"}
    command = 'mount -t tmpfs none /run && exec "$0" --meter=diag'
    proc = subprocess.Popen(["unshare", "--mount", "sh", "-c", command, tracing.PROGRAM], stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert proc.stdout.readline() == "weightd-trace: counts by diag on /run/weightd-trace/trace.sock\n"
        assert os.stat(f"/proc/{proc.pid}/root/run/weightd-trace").st_mode & 0o7027 == 0
        with Client(f"/proc/{proc.pid}/root/run/weightd-trace/trace.sock") as client:
            assert client.ask("doctor")
    finally:
        proc.terminate()
        proc.communicate(timeout=tracing.STOP_S)
    assert proc.returncode == 0

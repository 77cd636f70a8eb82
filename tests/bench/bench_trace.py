"""Trace: the cost of weightd-trace for processes with counted bytes, and the completeness of its counts.

data-path    a broadcast to two nodes, one behind the other, by weightd-sync-tcp in a network namespace of its own, with a span
             open: "programs_run" of weightd-trace while the next "bytes" moved over connections that were open already, as
             the kernel counts runs; "looks" are those of the collector itself, every 100 ms. Other processes that open or
             close a connection on this machine, or call a library that is probed, make some run as well: as often as those
             of a second weightd-trace, which has no clients, and so many, "others", are not in it. The kernel's counts
             show that they were not of the broadcast: "own_connections" are those that began or ended in that namespace
             meanwhile, and "retransmitted" the segments that were sent again there, as on busy machines; one program
             runs at each of those. (Where processes call a function that is probed, as ncclAllReduce(), a program does run
             at each call by default, see "probe"; none does in the path of their bytes.)
equality     each agent's history of a version of "bytes" that one of them pushed to two: "planned" by it, "payload" that
             arrived, "counted" by engines on the wire, "tcp_info" as they read that, and "traced" by weightd-trace. With
             "security" by TLS records are on the wire, which are more than the payload. "difference_bytes" is how far
             payload and plan, and TCP_INFO, trace and count are apart, together
cost         processor time of a message of "message_bytes" that one thread sends to itself over TCP: "mode" is "off"
             (weightd-trace does not run), "counters" (it follows both sockets), "messages" (and counts calls), and "off-again",
             which is the same as "off": so much is noise. In turns; medians of the rounds, "cpu_percent" of the extra
             time of each round over "off". If noise is more than 0.5 %, there are more rounds, up to three times as
             many. "ns_per_call" is the time of the programs at each, by the kernel's clock
nccl-plugin  "ns_per_event" of a callback of NCCL's profiler in libnccl-profiler-weightd.so, by "threads" of a stub of NCCL: a
             collective with an operation, a step and a socket's event, each started and stopped, and a state. "mode" is "off" (no
             weightd-trace) or "told" (with one). Median of the rounds. A socket's event asks the kernel for the socket's number
probe        the cost for one thread when "what" is seen, "ns" of its processor time: "call" is one of a function that is
             probed, behind many others, "lone-call" one that has to wake weightd-trace, and "mmap" one of mmap() and
             munmap(), which the kernel reports to it; "off" and "on" are the times without and with weightd-trace,
             medians of "rounds" in turns, and "ns" their difference
descriptor   the cost for a process that sends and receives a message on a Unix socket with "memory", a memfd, which has events,
             and one with a "socket", which has none, or "none": "ns" of processor time, as of "probe". "ns_per_message" is the time of
             the programs at each, by the kernel's clock
usdt         "attach_ns" and "detach_ns" of a client of weightd: "mode" is "off", "on" (weightd-trace has events of both), "unread" (it
             is stopped, so that the program at each probe wakes no process) and "off-again"; in turns, the median of all. "ns_per_probe"
             is the time of the program at each, by the kernel's clock. All of them on one core: the kernel's choice of cores for the client
             and weightd, and its changes, make more of a difference than all of that, see "weightd-one-core" of attach
bound        the bounds of the figures above, and if this run kept them
"""
import contextlib
import itertools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from lib import features, kernel, nccl_host, netns, tracing
from lib import usdt_notes as notes
from lib.daemon import Daemon
from lib.engine import Chain, Memory, program
from lib.nodes import Cluster, content, layout_of
from lib.pki import Authority

import bench_sync
import buffers
import figures
import machine
import programs

MOVED, AHEAD, BEHIND = 256 * machine.MIB, 32 * machine.MIB, 224 * machine.MIB
MAX_RATE = 512 * machine.MIB  # bytes a second, so that what is behind takes longer than to look
BEGINS_AND_ENDS = "ActiveOpens", "PassiveOpens", "AttemptFails", "EstabResets", "CurrEstab"  # counters of connections
NODES, PUSHED, PIECE = 3, 272 * machine.MIB, 16 * machine.MIB
LOOKS, CALLS = {"mark", "mark_tcp", "adopt", "want", "look"}, {"on_send", "on_receive"}  # programs
ON_DESCRIPTORS = "on_fd_", "on_fds_"
COSTS = ((1024, 2_000, 21), (128 << 10, 300, 21), (1 << 20, 150, 21))  # bytes, messages of a batch, rounds
BATCHES = 9
PRICES, PRICED = 51, 15  # times, of a batch each
MODES = "off", "counters", "messages", "off-again"
CALL_NS_MAX = 400
COUNTERS_PERCENT_MAX, NOISE_PERCENT_MAX, MORE_ROUNDS = 1, 0.5, 3
LIMIT_S = 600
PLUGIN_THREADS, PLUGIN_TIMES, PLUGIN_ROUNDS = (1, 2), 3_000, 15  # these fit into its ring, so that nothing is lost
ASKS, ASK_ROUNDS, ASKED = 20_000, 15, ("lone-call", "call", "mmap")  # so many calls in a row that no more are sent in that second
ASK = """
import ctypes, mmap, sys, time
RARE, PAUSE_S = 100, 0.001
verbs = ctypes.CDLL(sys.argv[1])
call = verbs.ibv_create_qp  # begins with a push, as most functions of large libraries do
def of(what, n):
    began = time.thread_time_ns()
    if what == "mmap":
        for _ in range(n):
            mmap.mmap(-1, 4096).close()
    else:
        for _ in range(n):
            call(None, None)
    return time.thread_time_ns() - began
def lone(n):
    time.sleep(PAUSE_S)
    return of("call", 1)
def each(what, n):
    if what == "lone-call":
        return sum(map(lone, range(n // RARE))) / (n // RARE)
    return of(what, n) / n
print("ready", flush=True)
for line in sys.stdin:
    print(each(line.strip(), int(sys.argv[2])), flush=True)
"""
HANDED, HANDED_ROUNDS, HANDED_WHATS = 2_000, 15, ("memory", "socket", "none")  # a second's worth, so that none is one too many
HAND = """
import os, socket, sys, time
a, b = socket.socketpair()
fds = {"memory": [os.memfd_create("bench")], "socket": [a.fileno()], "none": []}
def of(what, n):
    kind, room = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder)) for fd in fds[what]], socket.CMSG_LEN(4)
    began = time.thread_time_ns()
    for _ in range(n):
        a.sendmsg([b"x"], kind)
        for _, _, data in b.recvmsg(1, room)[1]:
            os.close(int.from_bytes(data, sys.byteorder))
    return time.thread_time_ns() - began
print("ready", flush=True)
for line in sys.stdin:
    print(of(line.strip(), int(sys.argv[1])) / int(sys.argv[1]), flush=True)
"""
ATTACHES, ATTACH_ROUNDS, ATTACH_MODES = 500, 31, ("off", "on", "unread", "off-again")
AGAIN_MAX = 1.1  # times as long as without a tracer


def measure(report):
    if not tracing.is_available():
        report.line(name="data-path", skipped=features.FEATURES["bpf"][1])
        return
    measure_path(report)
    measure_equality(report)
    for cost in COSTS:
        measure_cost(report, *cost)
    for threads in PLUGIN_THREADS:
        measure_plugin(report, threads)
    measure_probes(report)
    measure_descriptors(report)
    measure_usdt(report)


def measure_probes(report):
    library = features.ROOT / "build/fake/verbs/libibverbs.so.1"
    if not library.exists():
        report.line(name="probe", skipped=features.FEATURES["fakes"][1])
        return
    taken = {(what, mode): [] for what in ASKED for mode in ("off", "on")}
    command = [sys.executable, "-c", ASK, str(library), str(ASKS)]
    with programs.spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proc:
        assert proc.stdout.readline() == "ready\n"
        for _ in range(ASK_ROUNDS):
            for mode in "off", "on":
                with tracing.Tracer(probes=True) if mode == "on" else contextlib.nullcontext():
                    for what in ASKED:
                        taken[what, mode].append(ask(proc, what))
    for what in ASKED:
        off, on = (statistics.median(taken[what, mode]) for mode in ("off", "on"))
        report.line(name="probe", what=what, ns=on - off, off=off, on=on, rounds=ASK_ROUNDS)


def measure_descriptors(report):
    if not tracing.has("fexit/receive_fd"):
        report.line(name="descriptor", skipped=features.FEATURES["fentry"][1])
        return
    taken = {(what, mode): [] for what in HANDED_WHATS for mode in ("off", "on")}
    with programs.spawn([sys.executable, "-c", HAND, str(HANDED)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proc:
        assert proc.stdout.readline() == "ready\n"
        for _ in range(HANDED_ROUNDS):
            for mode in "off", "on":
                with tracing.Tracer(probes=True) if mode == "on" else contextlib.nullcontext():
                    for what in HANDED_WHATS:
                        taken[what, mode].append(ask(proc, what))
        with tracing.Tracer(probes=True) as tracer, kernel.counting_runs():
            spent = {what: spent_for(tracer, proc, what) for what in HANDED_WHATS}
    for what in HANDED_WHATS:
        off, on = (statistics.median(taken[what, mode]) for mode in ("off", "on"))
        report.line(name="descriptor", what=what, ns=on - off, off=off, on=on, ns_per_message=spent[what] / HANDED,
                    rounds=HANDED_ROUNDS)
    report.bound("descriptor", "ns_per_message of none", spent["none"] / HANDED, at_most=0)


def spent_for(tracer, proc, what):
    """Nanoseconds of the programs for a batch."""
    before = kernel.runs(tracer.proc.pid)
    ask(proc, what)
    return sum(ns - before[name][1] for name, (_, ns) in kernel.runs(tracer.proc.pid).items() if name.startswith(ON_DESCRIPTORS))


def ask(proc, what):
    """Nanoseconds of one, in a batch."""
    proc.stdin.write(what + "\n")
    proc.stdin.flush()
    return float(proc.stdout.readline())


def measure_path(report):
    n_bytes = AHEAD + MOVED + BEHIND
    if not program("tcp").exists():
        report.line(name="data-path", skipped=features.FEATURES["sync"][1])
        return
    if not netns.is_available():
        report.line(name="data-path", skipped=features.FEATURES["netns"][1])
        return
    if machine.affordable(n_bytes, copies=3) < n_bytes:
        report.line(name="data-path", skipped="three copies do not fit into memory")
        return
    with contextlib.closing(Memory(n_bytes)) as memory, netns.Net(1) as net, kernel.counting_runs():
        bench_sync.fill(memory)
        path = broadcast(memory, net.nodes[0].name)
    report.line(name="data-path", mode="counters", **path)
    for figure in "programs_run", "own_connections":
        report.bound("data-path", figure, path[figure], at_most=0)


def broadcast(memory, namespace):
    """The programs that ran while it went on."""
    with tracing.Tracer(probes=True) as tracer, tracing.Tracer(probes=True) as idle, \
            Chain(["a", "b", "c"], memory, chunk=bench_sync.CHUNKS["tcp"], prefix=("nsenter", f"--net=/run/netns/{namespace}", "--")) as chain, \
            tracing.Client(tracer.socket) as client:
        for name, engine in zip(chain.names, chain.engines):
            client.watch(engine.pid, peer=name)
        client.ask("begin", sync="s")
        chain.start(MAX_RATE)
        last = chain.engines[-1]
        last.await_progress(AHEAD)
        before, counts, first = runs(tracer, idle), tcp_counts(last.pid), last.progress[-1]["done"]
        last.await_progress(first + MOVED)
        after, happened = runs(tracer, idle), {key: n - counts[key] for key, n in tcp_counts(last.pid).items()}
        moved = last.progress[-1]["done"] - first
        chain.await_done()
        for received in chain.memories[1:]:
            bench_sync.check(received)
    ran, ran_anyway = ({name: n - before[i].get(name, 0) for name, n in after[i].items()} for i in range(2))
    return {"bytes": moved, "programs_run": sum(abs(n - ran_anyway.get(name, 0)) for name, n in ran.items() if name not in LOOKS),
            "looks": sum(n for name, n in ran.items() if name in LOOKS), "others": sum(ran_anyway.values()),
            "own_connections": sum(abs(happened[key]) for key in BEGINS_AND_ENDS), "retransmitted": happened["RetransSegs"]}


def runs(tracer, idle):
    """The runs of each program, by its name, of both tracers, at one time: none without clients runs meanwhile."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        before, mine, after = (kernel.runs(t.proc.pid) for t in (idle, tracer, idle))
        if before == after:
            return [{name: n for name, (n, _) in counts.items()} for counts in (mine, after)]
        assert time.monotonic() < deadline, "connections of others begin and end all the time"


def tcp_counts(pid):
    """The kernel's counters of TCP in the network namespace of that process."""
    keys, values = (line.split() for line in pathlib.Path(f"/proc/{pid}/net/snmp").read_text().splitlines() if line.startswith("Tcp:"))
    return dict(zip(keys[1:], map(int, values[1:])))


def measure_equality(report):
    if not program("tcp").exists() or not features.LIBRARY.exists():
        report.line(name="equality", skipped=features.FEATURES["sync"][1])
        return
    if machine.affordable(PUSHED, copies=2 * NODES) < PUSHED:
        report.line(name="equality", skipped=f"{2 * NODES} copies do not fit into memory")
        return
    for security in "none", "tls":
        rows = {node: row for node, row in push(security)}
        for node, row in rows.items():
            report.line(name="equality", security=security, bytes=PUSHED, node=node, **row)
        report.bound(f"equality {security}", "difference_bytes", sum(row["difference_bytes"] for row in rows.values()), at_most=0)


def publish(node):
    import weightd
    with weightd.create("m", layout_of(PUSHED, 1), socket=node.daemon.socket) as writer:
        assert writer.nbytes == PUSHED
        writer.write(0, content(1, PIECE) * (PUSHED // PIECE))
        writer.publish()


def push(security):
    """Each agent's history of a version that one of them pushed to all."""
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder, tracing.Tracer() as tracer, contextlib.closing(Cluster(
            Authority(pathlib.Path(folder) / "ca"), NODES, settings={"data": {"security": security}, "node": {"trace": tracer.socket}})) as nodes:
        publish(nodes["a"])
        sync = nodes["a"].push("m")["sync"]
        for node in nodes:
            row = nodes.wait(lambda node=node: next((row for row in node.history() if row["sync"] == sync and row["untraced"] == 0), None),
                             f"{node.name} remembers what was traced")
            of = {"planned": row["planned"], "payload": row["payload"], "counted": row["bytes"], "tcp_info": row["kernel"], "traced": row["traced"] or 0}
            yield node.name, of | {"difference_bytes": abs(of["payload"] - of["planned"])
                                   + abs(of["tcp_info"] - of["counted"]) + abs(of["traced"] - of["counted"])}


def measure_cost(report, size, pairs, rounds):
    taken = {mode: [] for mode in MODES}
    with machine.Others() as others, spawn(size, pairs, BATCHES) as proc:
        for i in itertools.count():
            if i >= rounds and (abs(percent(taken, "off-again")) <= NOISE_PERCENT_MAX or i == MORE_ROUNDS * rounds):
                break
            for mode in MODES[i % len(MODES):] + MODES[:i % len(MODES)]:
                with following(proc.pid, mode):
                    taken[mode].append(exchange(proc) / pairs)
        ns_per_call = price(size, pairs // PRICED)
    for mode in MODES:
        report.line(name="cost", mode=mode, message_bytes=size, cpu_ns=statistics.median(taken[mode]), cpu_percent=percent(taken, mode),
                    ns_per_call=ns_per_call if mode == "messages" else None, rounds=len(taken[mode]), other_cpu=others.share)
    noise = percent(taken, "off-again")
    report.bound(f"cost {size} B", "cpu_percent of counters over off-again", percent(taken, "counters") - noise,
                 at_most=max(COUNTERS_PERCENT_MAX, 2 * abs(noise)))
    report.bound(f"cost {size} B", "ns_per_call", ns_per_call, at_most=CALL_NS_MAX)


def percent(taken, mode):
    """More than with "off"."""
    return 100 * statistics.median(on / off - 1 for on, off in zip(taken[mode], taken["off"]))


@contextlib.contextmanager
def spawn(size, pairs, batches):
    command = [features.BUILD / "bench/exchange", *map(str, (size, pairs, batches))]
    with programs.spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proc:
        assert proc.stdout.readline() == "ready\n"
        yield proc


def exchange(proc):
    """Nanoseconds of a batch: the lower quartile, since some are disturbed."""
    proc.stdin.write("\n")
    proc.stdin.flush()
    return figures.percentile(map(int, proc.stdout.readline().split()), 25)


@contextlib.contextmanager
def following(pid, mode):
    """The client that follows that process in this mode, if any does."""
    if mode.startswith("off"):
        yield
        return
    with tracing.Tracer(probes=True) as tracer, tracing.Client(tracer.socket) as client:
        client.watch(pid)
        client.ask("begin", sync="s")
        if mode == "messages":
            client.ask("messages", sync="s", seconds=LIMIT_S)
        yield tracer


def price(size, pairs):
    """
    Nanoseconds of the programs for a call, while the kernel looks at its clock at each: the lower quartile of short
    times, since whatever interrupts a program, the host included, is in its time.
    """
    prices = []
    with spawn(size, pairs, 1) as proc, following(proc.pid, "messages") as tracer, kernel.counting_runs():
        counts = runs_of_calls(tracer)
        for _ in range(PRICES):
            exchange(proc)
            (n, ns), counts = counts, runs_of_calls(tracer)
            prices.append((counts[1] - ns) / (counts[0] - n))
    return figures.percentile(prices, 25)


def runs_of_calls(tracer):
    """How many, and their nanoseconds."""
    counts = kernel.runs(tracer.proc.pid)
    return tuple(map(sum, zip(*(counts[name] for name in CALLS))))


def measure_plugin(report, threads):
    with machine.Others() as others, tracing.Tracer(probes=True) as tracer, nccl_host.Host() as off, nccl_host.Host(tracer) as told:
        hosts = {"off": off, "told": told}
        for host in hosts.values():
            host.init()
        taken = {mode: [float(host.say("measure", threads, 0, PLUGIN_TIMES // threads)) for _ in range(PLUGIN_ROUNDS)]
                 for mode, host in hosts.items()}
        for host in hosts.values():
            host.say("finalize", 0)
    for mode, times in taken.items():
        report.line(name="nccl-plugin", mode=mode, threads=threads, ns_per_event=statistics.median(times),
                    ns_per_event_least=min(times), rounds=PLUGIN_ROUNDS, other_cpu=others.share)


def measure_usdt(report):
    if not features.FEATURES["sdt"][0]():
        report.line(name="usdt", skipped=features.FEATURES["sdt"][1])
        return
    taken = {mode: ([], []) for mode in ATTACH_MODES}
    prices = dict.fromkeys(ATTACH_MODES)
    with contextlib.closing(Daemon("--log-level", "warning")) as d, machine.Others() as others, machine.one_core(d.pid):
        _, tensor = buffers.publish(d, "bench/usdt", machine.MIB, 1)
        for i in range(ATTACH_ROUNDS):
            for mode in ATTACH_MODES[i % len(ATTACH_MODES):] + ATTACH_MODES[:i % len(ATTACH_MODES)]:
                with looking(d, mode):
                    for row in programs.bench("attach", "bench/usdt", tensor, ATTACHES, env=d.env):
                        taken[mode][0].append(row[1])
                        taken[mode][1].append(row[3])
        for mode in "on", "unread":
            with looking(d, mode) as tracer, kernel.counting_runs():
                programs.bench("attach", "bench/usdt", tensor, ATTACHES, env=d.env)
                n, ns = kernel.runs(tracer.proc.pid)["on_probe"]
            prices[mode] = ns / n
    for mode in ATTACH_MODES:
        attach_ns, detach_ns = map(statistics.median, taken[mode])
        report.line(name="usdt", mode=mode, attach_ns=attach_ns, detach_ns=detach_ns, ns_per_probe=prices[mode],
                    rounds=ATTACH_ROUNDS, other_cpu=others.share)
    off, again = (statistics.median(taken[mode][0]) for mode in ("off", "off-again"))
    report.bound("usdt", "off-again over off", again / off, at_most=AGAIN_MAX)


@contextlib.contextmanager
def looking(daemon, mode):
    """A tracer that looks at its probes in this mode, if any does."""
    if mode.startswith("off"):
        yield
        return
    attach = notes.probes(features.BUILD / "weightd")["attach"]
    with tracing.Tracer(probes=True) as tracer:
        while not notes.looks(daemon.pid, attach):
            pass
        with stopped(tracer.proc.pid) if mode == "unread" else contextlib.nullcontext():
            yield tracer


@contextlib.contextmanager
def stopped(pid):
    """A child, which continues when the block ends."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)

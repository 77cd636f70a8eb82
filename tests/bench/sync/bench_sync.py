"""Sync: a broadcast to one, two and three nodes of 1 Gb/s each, in network namespaces on one bridge, and averages.

broadcast    from the start until every receiver has every byte; medians of the rounds. "engine": "tcp" and "gloo"
             are weightd-sync-tcp and weightd-sync-gloo in a chain, into memory that is there, as weightd provides
             it; "rsync" is `rsync --whole-file` to a daemon on each receiver at once, "gloo-broadcast" Gloo's own
             one, "openmpi" MPI_Bcast by default. "ratio_to_line" is to iperf3's rate over one link right
             before, "line_gbit_s". "root_cpu_s_per_gib": processor time of the sender's processes, without that
             of interrupts in the kernel; "iperf3_cpu_s_per_gib": iperf3's own, which sends one small block again
             and again. Our engines' bytes on the wire are the planned ones in the engine's
             count and in the kernel's, or it fails. "other_cpu" has those interrupts in it; rounds with much of
             it are done again. "predicted_s": the time of that engine's schedule at that line by `weightctl sync plan`, and
             "predicted_over_seconds" of the bounds how near that is for our engines
floor        processor time of a plain sender, to one node: "send" copies the memory that the engines send, which a plain
             mmap() has in small pages, "sendfile" does not
bound        the bounds of the figures above, and if this run kept them
changed      a whole push, from attach to commit, of a version with 2 % changed leaves;
             "whole_seconds" and "whole_wire_bytes" are those of the first push, which moves all of it
stripes      a broadcast by weightd-sync-tcp to one node, over one and over two interfaces with the rates "rates_mbit":
             "over_one" is the seconds over the first alone through these
patch        the same of a version with 2 % changed elements of two bytes, in every leaf: elements travel.
             "wire_share" is of the bytes of the first push
growth       seconds with three receivers over seconds with one, less 1
all-reduce   the mean of the fp32 tensors of as many nodes as there are "receivers", which all have all of it at the end,
             by weightd-sync-gloo. "ratio_to_line" is to the bound of a ring: 2 (nodes - 1) / nodes of the bytes, at that line.
             "root_cpu_s_per_gib": processor time of one node. "engine": "tls" is the same program under TLS
reshard      a matrix in as many shards of rows as there are "sources" becomes "targets" shards of columns, by
             weightd-sync-gloo, on as many nodes as the larger one, from the start until all bytes are there and digested at
             both ends. "ratio_to_line" is to the bytes of the busiest node, into it or out of it, at that line
members      a push to a group of so many agents, all in one process and in virtual time, with their messages as the frames
             that they would be; "lost" of them die while bytes move and return after 2 s: virtual seconds until it
             is committed and until all serve it, messages and their bytes of all nodes together, processor time of all
             agents and the simulation, and the heap at rest of the coordinator and of a member
connections  of agents, with TLS, from nothing to the hello, for real: processor time and heap of one end, and those of
             a node that is connected with all others of such a group
"""
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

from lib import features, netns
from lib.engine import Average, Chain, Memory, program
from lib.pki import Authority

import changed_sync
import machine
import members_sync
import peers_sync
import reshard_sync

RATE = "1gbit"
SIZES = ((256 * machine.MIB, 3), (machine.GIB, 3))  # bytes, rounds
PEERS_SIZE, PEERS_ROUNDS = 256 * machine.MIB, 3
QUIET, RETRIES = 0.35, 2
AVERAGED = 256 * machine.MIB, 3
AVERAGED_CHUNK = machine.MIB // 4  # nodes share the pieces evenly, and rounds are short
RESHARDED = 256 * machine.MIB, 3
RESHARDS = (4, 2), (2, 4)  # sources and targets
CHUNKS = {"tcp": 4 * machine.MIB, "gloo": machine.MIB}  # a hop of gloo costs as much as that
BLOCK = bytearray(os.urandom(16 * machine.MIB))
# Numbers in fp32 of which the sum of a few equal ones is exact, and none so small that they are slow.
BLOCK[::4] = bytes(len(BLOCK) // 4)
BLOCK[3::4] = bytes(b & 0x1f | 0x20 for b in BLOCK[3::4])
LINE_S = 2
RATIO_MIN, CPU_MAX, GROWTH_MAX, PATCH_SHARE_MAX = 0.95, 0.3, 0.06, 0.06
PREDICTED_MIN, PREDICTED_MAX = 0.9, 1.1  # shares of the seconds
STRIPED = 128 * machine.MIB, 3
STRIPE_RATES = (200,), (200, 200), (200, 50)  # Mb/s of each interface
SCHEDULES = {"tcp": "chain", "gloo": "chain", "rsync": "one-to-all", "gloo-broadcast": "binomial", "openmpi": "binomial"}


def measure(report):
    members_sync.measure(report)
    missing = None if netns.is_available() else features.FEATURES["netns"][1]
    if not program("tcp").exists():
        missing = "weightd-sync was built without OpenSSL"
    if not shutil.which("iperf3"):
        missing = "no iperf3 (apt-get install iperf3)"
    if missing:
        report.line(name="broadcast", skipped=missing)
        return
    with netns.Net(4) as net:
        for i in range(4):
            net.rate(i, RATE)
        measure_floors(report, net)
        for engine in ("tcp", "gloo"):
            measure_engine(report, net, engine)
        for engine, broadcast in peers_sync.ENGINES.items():
            measure_peer(report, net, engine, broadcast)
    measure_stripes(report)
    for name, share in changed_sync.measure(report, RATE):
        report.bound(name, "wire_share", share, at_most=PATCH_SHARE_MAX)


def measure_engine(report, net, engine):
    if not program(engine).exists():
        report.line(name="broadcast", engine=engine, skipped=features.FEATURES[engine][1])
        return
    for n_bytes, rounds in SIZES:
        if machine.affordable(n_bytes, copies=4) < n_bytes:
            report.line(name="broadcast", engine=engine, bytes=n_bytes, skipped="four copies do not fit into memory")
            continue
        measure_chain(report, net, engine, n_bytes, rounds)
    if engine == "gloo":
        for nodes in (2, 3, 4):
            measure_average(report, net, nodes)
        measure_average(report, net, 2, "tls")
        for sources, targets in RESHARDS:
            measure_reshard(report, net, sources, targets)


def measure_floors(report, net):
    n_bytes, rounds = machine.GIB // 4, 3
    with contextlib.closing(Memory(n_bytes)) as memory:
        fill(memory)
        for way in peers_sync.WAYS:
            cpu = statistics.median(peers_sync.send(net, memory, way) for _ in range(rounds))
            report.line(name="floor", way=way, bytes=n_bytes, cpu_s_per_gib=cpu / (n_bytes / machine.GIB), rounds=rounds)


def measure_line(net):
    """Bytes a second, and iperf3's own seconds on a processor for each."""
    server = net.nodes[1].run(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    with peers_sync.running([server]):
        peers_sync.await_port(server.pid, 5201)
        client = net.nodes[0].run(["iperf3", "-J", "-t", LINE_S, "-c", net.nodes[1].address], text=True,
                                  stdout=subprocess.PIPE)
        with peers_sync.running([client]):
            out, _ = client.communicate(timeout=60)
    end = json.loads(out)["end"]
    used = end["cpu_utilization_percent"]["host_total"] / 100 * end["sum_sent"]["seconds"]
    return end["sum_received"]["bits_per_second"] / 8, used / end["sum_sent"]["bytes"]


def measure_chain(report, net, engine, n_bytes, rounds):
    medians = {}
    with contextlib.closing(Memory(n_bytes)) as memory:
        fill(memory)
        for receivers in (1, 2, 3):
            medians[receivers] = measure_rounds(report, net, {"name": "broadcast", "engine": engine, "receivers": receivers},
                                                receivers + 1, n_bytes, rounds,
                                                lambda: broadcast_chain(net, engine, memory, receivers))
    growth = medians[3] / medians[1] - 1
    report.line(name="growth", engine=engine, bytes=n_bytes, from_one_to_three=growth)
    report.bound(f"growth {engine} {n_bytes >> 20} MiB", "from_one_to_three", growth, at_most=GROWTH_MAX)


def measure_stripes(report):
    n_bytes, rounds = STRIPED
    one = None
    with netns.Net(2, interfaces=2) as net, contextlib.closing(Memory(n_bytes)) as memory:
        fill(memory)
        for rates in STRIPE_RATES:
            for i in range(2):
                for j, rate in enumerate(rates):
                    net.rate(i, f"{rate}mbit", j)
            seconds = statistics.median(broadcast_chain(net, "tcp", memory, 1, stripes=len(rates))[0] for _ in range(rounds))
            one = one or seconds
            report.line(name="stripes", engine="tcp", stripes=len(rates), rates_mbit=list(rates), bytes=n_bytes, seconds=seconds,
                        over_one=one / seconds, rounds=rounds)


def certificates(stack, nodes):
    """Descriptors of CA, certificate and key, by rank."""
    authority = Authority(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightd-bench-"))) / "ca")
    paths = [(authority.certificate, *authority.node(f"n{rank}")) for rank in range(nodes)]
    return [[stack.enter_context(contextlib.closing(Memory(path.read_bytes()))).fd for path in three] for three in paths]


def measure_average(report, net, nodes, engine="gloo"):
    n_bytes, rounds = AVERAGED
    with contextlib.ExitStack() as stack:
        pems = certificates(stack, nodes) if engine == "tls" else None
        memories = [stack.enter_context(contextlib.closing(Memory(n_bytes))) for _ in range(nodes)]
        for memory in memories:
            fill(memory)
        measure_rounds(report, net, {"name": "all-reduce", "engine": engine, "receivers": nodes}, 2 * nodes, n_bytes, rounds,
                       lambda: average(net, memories, pems), over_line=2 * (nodes - 1) / nodes)


def measure_reshard(report, net, sources, targets):
    n_bytes, rounds = RESHARDED
    reshard = reshard_sync.Reshard(BLOCK, n_bytes, sources, targets)

    def once():
        seconds, engines = reshard.run(net, machine.MIB)
        return seconds, processor_time(engines[0])

    measure_rounds(report, net, {"name": "reshard", "engine": "gloo", "sources": sources, "targets": targets}, 3, n_bytes, rounds,
                   once, over_line=reshard.busiest / n_bytes)


def measure_peer(report, net, engine, broadcast):
    with tempfile.TemporaryDirectory(prefix="weightd-bench-", dir="/dev/shm") as folder:
        for receivers in (1, 2, 3):
            try:
                measure_rounds(report, net, {"name": "broadcast", "engine": engine, "receivers": receivers},
                               receivers + 1, PEERS_SIZE, PEERS_ROUNDS,
                               lambda: broadcast(net, pathlib.Path(folder), receivers, PEERS_SIZE))
            except peers_sync.Missing as e:
                report.line(name="broadcast", engine=engine, skipped=str(e))
                return


def predict(engine, receivers, n_bytes, line):
    """Seconds, by the model of `weightctl sync plan`."""
    done = subprocess.run([features.BUILD / "weightctl", "sync", "plan", "--nodes", str(receivers + 1), "--size", str(n_bytes),
                           "--nic", str(int(line * 8)), "--efficiency", "100", "--schedule", SCHEDULES[engine],
                           "--chunk", str(CHUNKS.get(engine, machine.MIB)), "--json"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)["schedules"][0]["moves_ns"] / 1e9


def measure_rounds(report, net, what, copies, n_bytes, rounds, once, over_line=1):
    """The median of the seconds. `over_line`: how often the bytes have to go over a node's line at least."""
    quiet, noisy = [], []
    while len(quiet) < rounds and len(quiet) + len(noisy) < rounds + RETRIES:
        machine.warm(copies * n_bytes)
        with machine.Others() as others:
            line, iperf3 = measure_line(net)
            seconds, cpu = once()
        (quiet if others.share <= QUIET else noisy).append((seconds, cpu, line, iperf3, others.share))
    done = quiet or noisy
    seconds, cpu, line, iperf3, other = (statistics.median(column) for column in zip(*done))
    ratio = statistics.median(over_line * n_bytes / s / l for s, _, l, _, _ in done)
    cpu_per_gib = cpu / (n_bytes / machine.GIB)
    predicted = {"predicted_s": predict(what["engine"], what["receivers"], n_bytes, line)} if what["name"] == "broadcast" else {}
    report.line(**what, bytes=n_bytes, seconds=seconds, **predicted, ratio_to_line=ratio, line_gbit_s=line * 8 / 1e9,
                root_cpu_s_per_gib=cpu_per_gib, iperf3_cpu_s_per_gib=iperf3 * machine.GIB, rounds=len(done),
                quiet_rounds=len(quiet), other_cpu=other)
    if what["engine"] in CHUNKS and what["name"] != "reshard":  # these compute digests behind the last byte
        of = " ".join(str(word) for word in (*what.values(), n_bytes >> 20, "MiB"))
        report.bound(of, "ratio_to_line", ratio, at_least=RATIO_MIN)
        if what["name"] == "broadcast":
            report.bound(of, "root_cpu_s_per_gib", cpu_per_gib, at_most=CPU_MAX)
            report.bound(of, "predicted_over_seconds", predicted["predicted_s"] / seconds, at_least=PREDICTED_MIN,
                         at_most=PREDICTED_MAX)
    return seconds


def broadcast_chain(net, engine, memory, receivers, stripes=1):
    """Seconds, and those of the root on a processor."""
    with Chain(["a", "b", "c", "d"][:receivers + 1], memory, net=net, engine=engine,
               chunk=CHUNKS[engine] if stripes == 1 else machine.MIB, stripes=[stripes] * (receivers + 1)) as chain:
        for received in chain.memories[1:]:
            received.provide()
        started = time.monotonic()
        chain.start()
        chain.await_done()
        seconds = time.monotonic() - started
        for received in chain.memories[1:]:
            check(received)
        return seconds, processor_time(chain.engines[0])


def average(net, memories, pems=None):
    """The same. The mean of equal tensors is each of them."""
    with Average(memories, [["w", "F32", 0, memories[0].size]], net=net, pems=pems, chunk=AVERAGED_CHUNK) as a:
        for result in a.results:
            result.provide()
        started = time.monotonic()
        a.start()
        a.await_done()
        seconds = time.monotonic() - started
        for result in a.results:
            check(result)
        return seconds, processor_time(a.engines[0])


def processor_time(engine):
    engine.hang_up()
    engine.wait()
    return engine.rusage.ru_utime + engine.rusage.ru_stime


def fill(memory):
    memory.provide()
    for offset in range(0, memory.size, len(BLOCK)):
        memory.write(offset, BLOCK)


def check(memory):
    for offset in range(0, memory.size, len(BLOCK)):
        assert os.pread(memory.fd, len(BLOCK), offset) == BLOCK, f"other bytes behind {offset}"

"""Sync: a broadcast to one, two and three nodes of 1 Gb/s each, in network namespaces on one bridge, and averages.

broadcast    from the start until every receiver has every byte; medians of the rounds. "engine": "tcp" and "gloo"
             are weightd-sync-tcp and weightd-sync-gloo in a chain, into memory that is there, as weightd provides
             it; "rsync" is `rsync --whole-file` to a daemon on each receiver at once, "gloo-broadcast" Gloo's own
             one, "openmpi" MPI_Bcast as it comes. "ratio_to_line" is to what iperf3 reaches over one link right
             before, "line_gbit_s". "root_cpu_s_per_gib": processor time of the sender's processes, without what
             the kernel does in interrupts. Our engines' bytes on the wire are the planned ones in the engine's
             count and in the kernel's, or it fails. "other_cpu" has those interrupts in it; rounds with much of
             it are done again. "predicted_s": what `weightctl sync plan` says of that engine's schedule at that line
changed      a whole push, from attach to commit, of a version of which 2 % of the leaves are others than before;
             "whole_seconds" and "whole_wire_bytes" are those of the first push, which moves all of it
stripes      a broadcast by weightd-sync-tcp to one node, over one and over two interfaces that are as fast as "rates_mbit"
             says: "over_one" is the seconds over the first alone through these
patch        the same of a version of which 2 % of the elements of two bytes are others, in every leaf: elements travel.
             "wire_share" is of the bytes of the first push
growth       seconds with three receivers over seconds with one, less 1
all-reduce   the mean of as many fp32 tensors as there are "nodes", by weightd-sync-gloo, from the start until all have
             all of it. "ratio_to_line" is to the bound of a ring: 2 (nodes - 1) / nodes of the bytes, at that line.
             "root_cpu_s_per_gib": processor time of one node
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

import features
import netns
from engine import Average, Chain, Memory, program

import changed_sync
import machine
import peers_sync

RATE = "1gbit"
SIZES = ((256 * machine.MIB, 3), (machine.GIB, 1))  # bytes, rounds
PEERS_SIZE = 256 * machine.MIB
QUIET, RETRIES = 0.35, 2
AVERAGED = 256 * machine.MIB, 3
AVERAGED_CHUNK = machine.MIB // 4  # nodes share the pieces evenly, and rounds are short
CHUNKS = {"tcp": 4 * machine.MIB, "gloo": machine.MIB}  # of gloo, a hop costs as much
BLOCK = bytearray(os.urandom(16 * machine.MIB))
# Numbers in fp32 of which the sum of a few equal ones is exact, and none so small that they are slow.
BLOCK[::4] = bytes(len(BLOCK) // 4)
BLOCK[3::4] = bytes(b & 0x1f | 0x20 for b in BLOCK[3::4])
LINE_S = 2
STRIPED = 128 * machine.MIB, 3
STRIPE_RATES = (200,), (200, 200), (200, 50)  # Mb/s of each interface
SCHEDULES = {"tcp": "chain", "gloo": "chain", "rsync": "one-to-all", "gloo-broadcast": "binomial", "openmpi": "binomial"}


def measure(report):
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
        for engine in ("tcp", "gloo"):
            measure_engine(report, net, engine)
        for engine, broadcast in peers_sync.ENGINES.items():
            measure_peer(report, net, engine, broadcast)
    measure_stripes(report)
    changed_sync.measure(report, RATE)


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


def measure_line(net):
    """Bytes a second."""
    server = net.nodes[1].run(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    with peers_sync.running([server]):
        peers_sync.await_port(server.pid, 5201)
        client = net.nodes[0].run(["iperf3", "-J", "-t", LINE_S, "-c", net.nodes[1].address], text=True,
                                  stdout=subprocess.PIPE)
        with peers_sync.running([client]):
            out, _ = client.communicate(timeout=60)
    return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 8


def measure_chain(report, net, engine, n_bytes, rounds):
    medians = {}
    with contextlib.closing(Memory(n_bytes)) as memory:
        fill(memory)
        for receivers in (1, 2, 3):
            medians[receivers] = measure_rounds(report, net, {"name": "broadcast", "engine": engine, "receivers": receivers},
                                                receivers + 1, n_bytes, rounds,
                                                lambda: broadcast_chain(net, engine, memory, receivers))
    report.line(name="growth", engine=engine, bytes=n_bytes, from_one_to_three=medians[3] / medians[1] - 1)


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


def measure_average(report, net, nodes):
    n_bytes, rounds = AVERAGED
    with contextlib.ExitStack() as stack:
        memories = [stack.enter_context(contextlib.closing(Memory(n_bytes))) for _ in range(nodes)]
        for memory in memories:
            fill(memory)
        measure_rounds(report, net, {"name": "all-reduce", "engine": "gloo", "nodes": nodes}, 2 * nodes, n_bytes, rounds,
                       lambda: average(net, memories), over_line=2 * (nodes - 1) / nodes)


def measure_peer(report, net, engine, broadcast):
    with tempfile.TemporaryDirectory(prefix="weightd-bench-", dir="/dev/shm") as folder:
        for receivers in (1, 2, 3):
            try:
                measure_rounds(report, net, {"name": "broadcast", "engine": engine, "receivers": receivers},
                               receivers + 1, PEERS_SIZE, 1,
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
            line = measure_line(net)
            seconds, cpu = once()
        (quiet if others.share <= QUIET else noisy).append((seconds, cpu, line, others.share))
    done = quiet or noisy
    seconds, cpu, line, other = (statistics.median(column) for column in zip(*done))
    predicted = {"predicted_s": predict(what["engine"], what["receivers"], n_bytes, line)} if what["name"] == "broadcast" else {}
    report.line(**what, bytes=n_bytes, seconds=seconds, **predicted,
                ratio_to_line=statistics.median(over_line * n_bytes / s / l for s, _, l, _ in done), line_gbit_s=line * 8 / 1e9,
                root_cpu_s_per_gib=cpu / (n_bytes / machine.GIB), rounds=len(done), quiet_rounds=len(quiet),
                other_cpu=other)
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


def average(net, memories):
    """The same. The mean of equal tensors is each of them."""
    with Average(memories, [["w", "F32", 0, memories[0].size]], net=net, chunk=AVERAGED_CHUNK) as a:
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
    for offset in range(0, memory.size, len(BLOCK)):
        memory.write(offset, BLOCK)


def check(memory):
    for offset in range(0, memory.size, len(BLOCK)):
        assert os.pread(memory.fd, len(BLOCK), offset) == BLOCK, f"other bytes behind {offset}"

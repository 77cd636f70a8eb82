"""Sync: a broadcast to one, two and three nodes of 1 Gb/s each, in network namespaces on one bridge.

broadcast    from the start until every receiver has every byte; medians of the rounds. "engine": "tcp" is
             weightd-sync-tcp in a chain, into memory that is there, as weightd provides it; "rsync" is
             `rsync --whole-file` to a daemon on each receiver at once, "gloo" its own broadcast, "openmpi"
             MPI_Bcast as it comes. "ratio_to_line" is to what iperf3 reaches over one link right before, "line_gbit_s".
             "root_cpu_s_per_gib": processor time of the sender's processes, without what the kernel does in
             interrupts. tcp's bytes on the wire are the planned ones in the engine's count and in the
             kernel's, or it fails. "other_cpu" has those interrupts in it; rounds with much of it are done again
growth       seconds with three receivers over seconds with one, less 1
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
from engine import Chain, Memory

import machine
import peers_sync

RATE = "1gbit"
SIZES = ((256 * machine.MIB, 3), (machine.GIB, 1))  # bytes, rounds
PEERS_SIZE = 256 * machine.MIB
QUIET, RETRIES = 0.35, 2
BLOCK = os.urandom(16 * machine.MIB)
LINE_S = 2


def measure(report):
    missing = None if netns.is_available() else features.FEATURES["netns"][1]
    if not (features.BUILD / "weightd-sync-tcp").exists():
        missing = "weightd-sync was built without OpenSSL"
    if not shutil.which("iperf3"):
        missing = "no iperf3 (apt-get install iperf3)"
    if missing:
        report.line(name="broadcast", skipped=missing)
        return
    with netns.Net(4) as net:
        for i in range(4):
            net.rate(i, RATE)
        for n_bytes, rounds in SIZES:
            if machine.affordable(n_bytes, copies=4) < n_bytes:
                report.line(name="broadcast", bytes=n_bytes, skipped="four copies do not fit into memory")
                continue
            measure_tcp(report, net, n_bytes, rounds)
        for engine, broadcast in peers_sync.ENGINES.items():
            measure_peer(report, net, engine, broadcast)


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


def measure_tcp(report, net, n_bytes, rounds):
    medians = {}
    with contextlib.closing(Memory(n_bytes)) as memory:
        for offset in range(0, n_bytes, len(BLOCK)):
            memory.write(offset, BLOCK)
        for receivers in (1, 2, 3):
            medians[receivers] = measure_rounds(report, net, "tcp", receivers, n_bytes, rounds,
                                                lambda: broadcast_tcp(net, memory, receivers))
    report.line(name="growth", engine="tcp", bytes=n_bytes, from_one_to_three=medians[3] / medians[1] - 1)


def measure_peer(report, net, engine, broadcast):
    with tempfile.TemporaryDirectory(prefix="weightd-bench-", dir="/dev/shm") as folder:
        for receivers in (1, 2, 3):
            try:
                measure_rounds(report, net, engine, receivers, PEERS_SIZE, 1,
                               lambda: broadcast(net, pathlib.Path(folder), receivers, PEERS_SIZE))
            except peers_sync.Missing as e:
                report.line(name="broadcast", engine=engine, skipped=str(e))
                return


def measure_rounds(report, net, engine, receivers, n_bytes, rounds, broadcast):
    """The median of the seconds."""
    quiet, noisy = [], []
    while len(quiet) < rounds and len(quiet) + len(noisy) < rounds + RETRIES:
        machine.warm((receivers + 1) * n_bytes)
        with machine.Others() as others:
            line = measure_line(net)
            seconds, cpu = broadcast()
        (quiet if others.share <= QUIET else noisy).append((seconds, cpu, line, others.share))
    done = quiet or noisy
    seconds, cpu, line, other = (statistics.median(column) for column in zip(*done))
    report.line(name="broadcast", engine=engine, receivers=receivers, bytes=n_bytes, seconds=seconds,
                ratio_to_line=statistics.median(n_bytes / s / l for s, _, l, _ in done), line_gbit_s=line * 8 / 1e9,
                root_cpu_s_per_gib=cpu / (n_bytes / machine.GIB), rounds=len(done), quiet_rounds=len(quiet),
                other_cpu=other)
    return seconds


def broadcast_tcp(net, memory, receivers):
    """Seconds, and those of the root on a processor."""
    with Chain(["a", "b", "c", "d"][:receivers + 1], memory, net=net, chunk=4 * machine.MIB) as chain:
        for received in chain.memories[1:]:
            received.provide()
        started = time.monotonic()
        chain.start()
        chain.await_done()
        seconds = time.monotonic() - started
        for received in chain.memories[1:]:
            check(received)
        chain.engines[0].hang_up()
        chain.engines[0].wait()
        used = chain.engines[0].rusage
    return seconds, used.ru_utime + used.ru_stime


def check(memory):
    for offset in range(0, memory.size, len(BLOCK)):
        assert os.pread(memory.fd, len(BLOCK), offset) == BLOCK, f"other bytes behind {offset}"

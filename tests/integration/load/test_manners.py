"""Loads that are slowed down, that run out of time, and whose files do not come: each says how far it was, and leaves nothing."""
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest
from lib import features, wire

from integration.load.test_load import (DEADLINE_S, MIB, buffers, check_bytes, check_refused, clean, eventually, gate_library, make_gate,
                                        one_file, u8, write_model)

__all__ = ["clean", "gate_library", "make_gate", "one_file"]  # fixtures
RATE = 2_000_000  # bytes a second
WAYS = [["--read", "buffered"], ["--read", "direct"], ["--read", "buffered", "--dtype", "f16"]]


@pytest.fixture
def slow_file(tmp_path):
    """Bytes for a second and a half, in tensors of all sizes."""
    data = os.urandom(3 * RATE // 2 - 4 * 5000)
    tensors = {f"{i}": ("F32", [1250], os.urandom(5000)) for i in range(4)} | {"large": ("F32", [len(data) // 4], data)}
    path = tmp_path / "slow.safetensors"
    write_model(path, tensors)
    return path, tensors


def rates_of(daemon, path, n_bytes):
    """The rates of loads at the same time, by the time that each reports."""
    loads = [daemon.spawn("load", "--quiet", "--json", "--max-rate", str(RATE), *way, f"m{i}", path) for i, way in enumerate(WAYS)]
    for load in loads:
        out, errors = load.communicate(timeout=DEADLINE_S)
        assert load.returncode == 0 and not errors, errors
        yield n_bytes * 10**9 / json.loads(out)["read_ns"]


@pytest.mark.measures
def test_a_load_reads_as_fast_as_it_may_and_no_faster(daemon, slow_file):
    path, tensors = slow_file
    slowest = []
    # Turns that are later than can be made up for are those of a machine that was stopped, or is busy.
    while not slowest or (slowest[-1] < 0.9 * RATE and len(slowest) < 3):
        rates = list(rates_of(daemon, path, sum(len(t[2]) for t in tensors.values())))
        assert max(rates) <= 1.1 * RATE, rates
        slowest.append(min(rates))
    assert slowest[-1] >= 0.9 * RATE, slowest
    for i in 0, 1:
        check_bytes(daemon, f"m{i}", tensors)
    daemon.ctl("verify", "m2")


@pytest.mark.parametrize("way", WAYS, ids=["buffered", "direct", "cast"])
def test_a_load_without_more_time_leaves_nothing(clean, slow_file, way):
    done = clean.ctl("load", "--max-rate", "100k", "--timeout", "0.3", *way, "m", slow_file[0], check=False)
    check_refused(done, "the load did not end within 300 ms: it was at ", "; nothing was published; load again with more time")
    assert '"memory": 0,' in clean.ctl("ping", "--json").stdout


@pytest.mark.parametrize("way", WAYS, ids=["buffered", "direct", "cast"])
def test_a_slow_load_is_interrupted_at_once(clean, slow_file, way):
    load = clean.spawn("load", "--max-rate", "1k", *way, "m", slow_file[0])  # its next bytes come in 4 s
    eventually(lambda: buffers(clean) != [], lambda: "no load")
    load.send_signal(signal.SIGINT)
    out, errors = load.communicate(timeout=DEADLINE_S)
    assert (load.returncode, out) == (130, b"") and b"weightctl: interrupted: the load was cancelled at " in errors, errors


def test_a_load_that_waits_for_memory_runs_out_of_time(clean, one_file, tmp_path):
    """At a server that never answers the create."""
    header, hello = struct.Struct("<IHHQ"), struct.Struct("<IIQQ32s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "mute.sock"))
        listener.listen()
        load = clean.spawn("--socket", tmp_path / "mute.sock", "load", "--timeout", "0.3", "m", one_file[0])
        sockets = [listener]
        while load.poll() is None:
            for ready in select.select(sockets, [], [], 0.05)[0]:
                if ready is listener:
                    sockets.append(listener.accept()[0])
                elif not (packet := ready.recv(4096)):
                    sockets.remove(ready)
                    ready.close()
                elif header.unpack(packet[:header.size])[1] == wire.HELLO:
                    ready.send(header.pack(header.size + hello.size, wire.HELLO | wire.REPLY, 0, header.unpack(packet[:header.size])[3])
                               + hello.pack(wire.VERSION, 1, 0, 1, b""))
        for s in sockets[1:]:
            s.close()
    assert load.returncode == 1 and b"it was at 0 % of phase '" in load.stderr.read()
    load.communicate()


# --- Files that do not come ------------------------------------------------------------------------

def test_a_stall_is_told_once_and_ends(daemon, one_file, make_gate):
    path, offset, tensors = one_file
    gate = make_gate(path, offset, "pause", call=2)
    gate.start(daemon, "--threads", "1", "m", path)
    said = b""
    while b"nothing for 0:" not in said:
        assert select.select([gate.proc.stderr], [], [], DEADLINE_S)[0], said
        piece = os.read(gate.proc.stderr.fileno(), 65536)
        assert piece, said
        said += piece
    done = gate.open()
    assert done.returncode == 0 and b"m: reading 100 % (13.2 MB of 13.2 MB" in done.stderr, done.stderr
    assert (said + done.stderr).count(b"nothing for") == 1
    check_bytes(daemon, "m", tensors)


@pytest.mark.parametrize("args, status", [([], 130), (["--timeout", "2"], 1)], ids=["signal", "timeout"])
def test_a_load_ends_though_a_read_does_not_return(clean, one_file, make_gate, args, status):
    path, offset, _ = one_file
    gate = make_gate(path, offset, "pause")
    gate.start(clean, *args, "m", path)
    if not args:
        gate.proc.send_signal(signal.SIGINT)
    _, errors = gate.proc.communicate(timeout=DEADLINE_S)
    assert gate.proc.returncode == status, errors
    assert errors.endswith(b"weightctl: ended while a read of the files does not return; nothing was published\n")
    eventually(lambda: buffers(clean) == [], lambda: buffers(clean))


def test_a_second_signal_kills(clean, one_file, make_gate):
    path, offset, _ = one_file
    gate = make_gate(path, offset, "pause")
    gate.start(clean, "m", path)
    deadline = time.monotonic() + DEADLINE_S
    while gate.proc.poll() is None:
        assert time.monotonic() < deadline
        gate.proc.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert gate.proc.returncode == -signal.SIGTERM
    eventually(lambda: buffers(clean) == [], lambda: buffers(clean))


def test_the_server_frees_a_version_while_a_read_does_not_return(clean, one_file, make_gate):
    """A program that has the library cannot be ended: the load returns with the read."""
    features.require("library")
    path, offset, _ = one_file
    gate = make_gate(path, offset, "pause")
    code = f"""
import weightd
try:
    weightd.load("m", {str(path)!r}, timeout=1.5, max_rate=10**9)
except weightd.Timeout as e:
    print(e)
"""
    gate.proc = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=gate.environment(clean) | {"PYTHONPATH": f"{features.ROOT}/libclient/python"})
    assert select.select([gate.ready], [], [], DEADLINE_S)[0], "the load did not reach the gate"
    eventually(lambda: buffers(clean) == [], lambda: buffers(clean))
    assert gate.proc.poll() is None
    done = gate.open()
    assert done.stdout.startswith(b"the load did not end within 1500 ms: it was at "), done.stderr

"""Small models: safetensors files with known bytes, and the directories that weightctl makes of them."""
import hashlib
import json
import os
import pathlib
import re
import signal
import struct

from lib.wire import until


def write_model(path, seed=1, n_bytes=8192):
    """A safetensors file with two tensors; returns its bytes."""
    data = hashlib.shake_128(str(seed).encode()).digest(n_bytes)
    half = n_bytes // 2
    header = {"a.weight": {"dtype": "F32", "shape": [half // 4], "data_offsets": [0, half]},
              "b.weight": {"dtype": "F32", "shape": [half // 4], "data_offsets": [half, n_bytes]}}
    text = json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + data
    pathlib.Path(path).write_bytes(whole)
    return whole


def data_of(whole):
    """The bytes of the tensors: weightd may write another header."""
    return whole[8 + int.from_bytes(whole[:8], "little"):]


def holder_of(folder, weights="model.safetensors"):
    """The process and the descriptor that the weights of the directory lead to."""
    return tuple(map(int, re.fullmatch(r"/proc/(\d+)/fd/(\d+)", os.readlink(pathlib.Path(folder) / weights)).groups()))


def kill_holder(folder):
    """SIGKILL, and waits until the kernel has closed what it had open."""
    pid, _ = holder_of(folder)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not (pathlib.Path(folder) / "model.safetensors").exists(), "the holder has ended")


def readers(daemon, name="m"):
    """Version: leases on it."""
    shown = json.loads(daemon.ctl("show", name, "--json").stdout)
    return {v["version"]: v["readers"] for v in shown["versions"]}

"""Load: safetensors into shared memory, beside the ceiling, the commit before, and what others do.

load_warm.py has files in the page cache, load_cold.py those that are not. The last line says which targets were met. A
target that another program sets is of the ratios of single turns: their median.
"""
import contextlib
import json
import os
import pathlib
import random
import struct
import tempfile

from lib import features
from lib.daemon import Daemon

import load_cold
import load_warm
import machine

SIZE = 2 * machine.GIB


def measure(report):
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder, load_warm.Rounds(report) as rounds:
        size = machine.affordable(SIZE, copies=6)
        for label, n_tensors, n_files in (("64 tensors", 64, 1), ("20,000 tensors", 20_000, 1), ("4 files", 64, 4)):
            paths = make_files(folder, n_tensors, size, n_files)
            rounds.measure(label, paths)
            if label == "64 tensors":
                rounds.measure("64 tensors, F32 to BF16", make_files(folder, n_tensors, size, 1, "F32"), cast="bf16")
            for path in paths:
                path.unlink()
        model = pathlib.Path(os.environ.get("MODEL") or features.BUILD / "model")
        model = model / "model.safetensors" if model.is_dir() else model
        if model.exists():
            rounds.measure(model.parent.name if model.name == "model.safetensors" else model.name, [model])
        with contextlib.closing(Daemon("--log-level", "warning")) as d:
            load_cold.measure(report, d, folder)


def make_files(folder, n_tensors, size, n_files=1, dtype="F16"):
    """
    Written out and in the page cache; headers end at no round number. The bytes are random, and for F32 numbers of
    ordinary size: not a number is cast in a way of its own.
    """
    n_columns = 1024 // (4 if dtype == "F32" else 2)
    each = size // n_tensors // 1024 * 1024
    paths = []
    for k in range(n_files):
        names = range(k, n_tensors, n_files)
        header = {f"layers.{i}.weight": {"dtype": dtype, "shape": [each // 1024, n_columns],
                                         "data_offsets": [at * each, (at + 1) * each]} for at, i in enumerate(names)}
        text = json.dumps({"__metadata__": {"made": "by bench"}} | header).encode()
        text += b" " * ((8 - len(text)) % 8)
        block = random.Random(n_tensors + k).randbytes(16 << 20)
        if dtype == "F32":
            block = bytes(0x3f if i % 4 == 3 else b for i, b in enumerate(block))
        paths.append(pathlib.Path(folder, f"{n_tensors}-{k}-of-{n_files}-{dtype}.safetensors"))
        with open(paths[-1], "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for start in range(0, len(names) * each, len(block)):
                f.write(block[:len(names) * each - start])
            f.flush()
            os.fsync(f.fileno())  # or it is written out while we measure
    return paths


def make_file(folder, n_tensors, size):
    return make_files(folder, n_tensors, size)[0]

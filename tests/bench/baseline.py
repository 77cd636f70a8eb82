"""Loads a safetensors file as Python programs do, once for each line ["WAY", "PATH"] on standard input.

Answers with the nanoseconds, or with a string: the reason why this way is unavailable. The loaded weights
are private memory of this process, and freed.
"""
import json
import struct
import sys
import time


def read_header(path):
    """The size of everything before the tensors, and their descriptions."""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
    header.pop("__metadata__", None)
    return 8 + size, header


def load_torch(path):
    import torch
    types = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}

    def load():
        start, header = read_header(path)
        end = start + max(entry["data_offsets"][1] for entry in header.values())
        storage = torch.UntypedStorage.from_file(path, False, end)
        whole = torch.tensor([], dtype=torch.uint8).set_(storage)
        return {name: cut(whole, start, entry).clone() for name, entry in header.items()}

    def cut(whole, start, entry):
        first, end = entry["data_offsets"]
        return whole[start + first:start + end].view(types[entry["dtype"]]).view(entry["shape"])

    return load


def load_safetensors(path):
    from safetensors.torch import load_file
    return lambda: {name: tensor.clone() for name, tensor in load_file(path).items()}


def load_numpy(path):
    import numpy
    types = {"F16": numpy.float16, "F32": numpy.float32, "I64": numpy.int64}

    def load():
        start, header = read_header(path)
        whole = numpy.empty(max(entry["data_offsets"][1] for entry in header.values()), numpy.uint8)
        with open(path, "rb", buffering=0) as f:
            f.seek(start)
            view, done = memoryview(whole), 0
            while done < len(view):
                done += f.readinto(view[done:])
        return {name: numpy.ndarray(e["shape"], types[e["dtype"]], whole, e["data_offsets"][0])
                for name, e in header.items()}

    return load


WAYS = {"torch": load_torch, "safetensors": load_safetensors, "numpy": load_numpy}


def measure(way, path):
    try:
        load = WAYS[way](path)
        started = time.perf_counter_ns()
        loaded = load()
        elapsed = time.perf_counter_ns() - started
    except ImportError as e:
        return str(e)
    except KeyError as e:
        return f"not written for tensors of {e}"
    del loaded
    return elapsed


for line in sys.stdin:
    print(json.dumps(measure(*json.loads(line))), flush=True)

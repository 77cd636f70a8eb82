"""Loads safetensors as Python programs do, once for each line ["WAY", ["PATH", ...]] on standard input.

Answers with the nanoseconds, or with a string: the reason why this way is unavailable. Each way leaves all tensors in
private memory of this process; then, untimed, their bytes are compared with the files, and freed.
"""
import contextlib
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


def load_torch(paths):
    """torch.UntypedStorage.from_file() and a clone of every tensor."""
    import torch
    types = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}

    def load():
        return {name: tensor for path in paths for name, tensor in load_file(path)}

    def load_file(path):
        start, header = read_header(path)
        end = start + max(entry["data_offsets"][1] for entry in header.values())
        whole = torch.tensor([], dtype=torch.uint8).set_(torch.UntypedStorage.from_file(path, False, end))
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            yield name, whole[start + first:start + last].clone().view(types[entry["dtype"]]).view(entry["shape"])

    return load


def load_safetensors(paths):
    """It maps lazily, hence a clone."""
    from safetensors.torch import load_file
    return lambda: {name: tensor.clone() for path in paths for name, tensor in load_file(path).items()}


def load_numpy(paths):
    """readinto() of an array for each file."""
    import numpy
    types = {"F16": numpy.float16, "F32": numpy.float32, "I64": numpy.int64}

    def load():
        return {name: tensor for path in paths for name, tensor in load_file(path)}

    def load_file(path):
        start, header = read_header(path)
        whole = numpy.empty(max(entry["data_offsets"][1] for entry in header.values()), numpy.uint8)
        with open(path, "rb", buffering=0) as f:
            f.seek(start)
            view, done = memoryview(whole), 0
            while done < len(view):
                done += f.readinto(view[done:])
        for name, e in header.items():
            yield name, numpy.ndarray(e["shape"], types[e["dtype"]], whole, e["data_offsets"][0])

    return load


def load_fastsafetensors(paths):
    """Its default drops the page cache first, and has 16 threads: two were twice as fast on two cores."""
    import os

    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load():
        loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True, disable_cache=False, set_numa=False,
                                       max_threads=len(os.sched_getaffinity(0)))
        loader.add_filenames({0: list(paths)})
        files = loader.copy_files_to_device()
        held.callback(loader.close)
        held.callback(files.close)
        return {name: files.get_tensor(name) for name in files.key_to_rank_lidx}

    return load


def load_runai(paths):
    """runai-model-streamer, with the threads and the memory that it takes by itself."""
    from runai_model_streamer import SafetensorsStreamer

    def load():
        streamer = held.enter_context(SafetensorsStreamer())
        streamer.stream_files(list(paths))
        return dict(streamer.get_tensors())

    return load


def load_bf16(paths):
    """safetensors, and a cast of every tensor."""
    import torch
    from safetensors.torch import load_file
    return lambda: {name: tensor.to(torch.bfloat16) for path in paths for name, tensor in load_file(path).items()}


WAYS = {"torch": load_torch, "safetensors": load_safetensors, "numpy": load_numpy, "fastsafetensors": load_fastsafetensors,
        "runai-model-streamer": load_runai, "safetensors-bf16": load_bf16}
held = contextlib.ExitStack()  # the parts of a loader that have to live as long as its tensors


def check(paths, loaded):
    """AssertionError if the bytes are not those of the files."""
    import numpy
    n = 0
    for path in paths:
        start, header = read_header(path)
        whole = numpy.memmap(path, numpy.uint8, "r")
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            assert numpy.array_equal(flat_bytes(loaded[name]), whole[start + first:start + last]), f"{path}: {name}"
        n += len(header)
    assert n == len(loaded), f"{len(loaded)} tensors of {n}"


def flat_bytes(tensor):
    import numpy
    if isinstance(tensor, numpy.ndarray):
        return tensor.reshape(-1).view(numpy.uint8)
    import torch
    return tensor.reshape(-1).view(torch.uint8).numpy()


def measure(way, paths):
    try:
        load = WAYS[way](paths)
    except ImportError as e:
        return str(e)
    try:
        started = time.perf_counter_ns()
        loaded = load()
        elapsed = time.perf_counter_ns() - started
    except KeyError as e:
        return f"not written for tensors of {e}"
    if way != "safetensors-bf16":
        check(paths, loaded)
    del loaded
    held.close()
    return elapsed


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(measure(*json.loads(line))), flush=True)

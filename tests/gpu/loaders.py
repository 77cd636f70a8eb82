"""
Ways to load a file of safetensors to a GPU, as their documentation has them: from a path to tensors of torch. Each imports its
package when it is first used; agent.py has a process for each.
"""
import importlib.metadata
import mmap
import os
import sys
import threading
import time

N_THREADS, PIECE = 8, 4 << 20


def with_weightd(path, device, ret):
    """With the digests of what arrived. ret["split_ns"] has its phases: "read" is reading, digesting and copying, all at once."""
    import weightd
    begins = {}

    def note(phase, _done, _total):
        begins.setdefault(phase, time.monotonic_ns())

    weightd.load("loaded", path, device=device, progress=note)
    begins["attach"] = time.monotonic_ns()
    buffer = weightd.attach("loaded", device=device)
    views = [view(tensor) for tensor in buffer.values()]
    begins["end"] = time.monotonic_ns()
    names = list(begins)
    ret["split_ns"] = {name: begins[after] - begins[name] for name, after in zip(names, names[1:])}
    return views, buffer


def view(tensor):
    """As the process has it: where torch is, a tensor of it."""
    return tensor.torch() if "torch" in sys.modules else tensor.__cuda_array_interface__


def with_safetensors(path, device, _ret):
    from safetensors.torch import load_file
    return load_file(path, device=device)


def with_torch(path, device, _ret):
    """Loads a file of torch.save()."""
    import torch
    return {name: tensor.to(device) for name, tensor in torch.load(path, mmap=True, map_location="cpu", weights_only=True).items()}


def with_fastsafetensors(path, device, _ret):
    from fastsafetensors import fastsafe_open
    with fastsafe_open(path, device=device, nogds=not os.path.exists("/proc/driver/nvidia-fs")) as f:
        return {name: f.get_tensor(name) for name in f.keys()}


def with_instanttensor(path, device, _ret):
    from instanttensor import safe_open
    with safe_open(path, framework="pt", device=device) as f:
        return dict(f.tensors())


def with_runai(path, device, _ret):
    from runai_model_streamer import SafetensorsStreamer
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path, device=device)
        return {name: tensor.to(device) for name, tensor in streamer.get_tensors()}


# {name: (function, the package with the version)}
WAYS = {
    "weightd.load": (with_weightd, None),
    "safetensors": (with_safetensors, "safetensors"),
    "fastsafetensors": (with_fastsafetensors, "fastsafetensors"),
    "instanttensor": (with_instanttensor, "instanttensor"),
    "runai-model-streamer": (with_runai, "runai-model-streamer"),
    "torch.load": (with_torch, "torch"),
}


def version(way):
    package = WAYS[way][1]
    return importlib.metadata.version(package) if package else None


def read(path, is_direct):
    """The bytes of the file, to host memory that is not kept: around the page cache, or out of it. Returns how many."""
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if is_direct else 0))
    counts = [0] * N_THREADS

    def run(i):
        room = mmap.mmap(-1, PIECE)
        at = i * PIECE
        while (got := os.preadv(fd, [room], at)) > 0:
            counts[i] += got
            at += N_THREADS * PIECE

    threads = [threading.Thread(target=run, args=[i]) for i in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(fd)
    return sum(counts)

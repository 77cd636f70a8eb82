"""File to GPU, against the slower of disk and PCIe in the same run, and against other ways."""
import json
import mmap
import os
import struct
import subprocess
import time

from lab import GIB, MIB, ROOT
from results import Skip
from section_sharing import torch_version

N_TENSORS = 64
CHUNK = 16 * MIB

PEER = """
import json, sys, time, torch
torch.cuda.init(); torch.zeros(1, device="cuda:0"); torch.cuda.synchronize()
way, path = sys.argv[1:]
begin = time.monotonic()
if way == "safetensors":
    from safetensors.torch import load_file
    tensors = load_file(path, device="cuda:0")
else:
    tensors = {k: v.to("cuda:0") for k, v in torch.load(path, mmap=True, map_location="cpu").items()}
torch.cuda.synchronize()
print(json.dumps({"s": time.monotonic() - begin, "bytes": sum(t.numel() * t.element_size() for t in tensors.values())}))
"""

SAVE = """
import json, sys, torch
from safetensors.torch import load_file
torch.save(load_file(sys.argv[1]), sys.argv[2])
print(json.dumps({}))
"""


def measure(lab, tell):
    size = lab.size(4 * GIB, 16 * MIB)
    path = lab.folder / "model.safetensors"
    write_model(path, size)
    try:
        compare(lab, tell, path, size)
    finally:
        path.unlink()


def compare(lab, tell, path, size):
    pcie = memory = disk = None
    with tell.part("rates of the hardware"), lab.agents(1) as (agent,):
        rates = agent.run(f"rates {lab.size(1024, 4)}")
        pcie, memory = rates["from_host"], rates["on_device"]
        tell("pinned memory to GPU", pcie / 1e9, "GB/s")
        tell("on the GPU, read and written", memory / 1e9, "GB/s")
    with tell.part("disk"):
        disk = disk_rate(path)
        tell("disk", disk / 1e9, "GB/s")
    for name, bounds, prepare in (("cold", (disk, pcie), drop), ("warm", (pcie,), warm)):
        with tell.part(f"weightctl load, {name}"), lab.weightd(), lab.agents(1) as (agent,):
            prepare(path)
            with_weightctl(lab, tell, agent, path, size, name, min(bounds) if all(bounds) else None)
    peers(lab, tell, path, pcie)


def share(rate, of):
    return round(rate / of, 3) if of else None


def write_model(path, size, block=None):
    """Of random bytes, or of CHUNK of them that are given."""
    each = size // N_TENSORS
    table = {f"layers.{i}.weight": {"dtype": "BF16", "shape": [each // 2], "data_offsets": [i * each, (i + 1) * each]}
             for i in range(N_TENSORS)}
    header = json.dumps(table).encode()
    header += b" " * (-(8 + len(header)) % 4096)
    block = block or os.urandom(CHUNK)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        for _ in range(0, size, CHUNK):
            f.write(block)
            block = block[4097:] + block[:4097]
        f.flush()
        os.fsync(f.fileno())


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def warm(path):
    with open(path, "rb", buffering=0) as f:
        while f.read(CHUNK):
            pass


def disk_rate(path):
    """Around the page cache where that can be, in one thread."""
    buffer = mmap.mmap(-1, CHUNK)
    drop(path)
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    except OSError:
        fd = os.open(path, os.O_RDONLY)
    begin, n = time.monotonic(), 0
    try:
        while (got := os.preadv(fd, [buffer], n)) > 0:
            n += got
            if got % 4096:
                break
    finally:
        os.close(fd)
    return n / (time.monotonic() - begin)


def with_weightctl(lab, tell, agent, path, size, name, bound):
    begin = time.monotonic()
    done = subprocess.run([lab.build / "weightctl", "load", "--json", "--device", lab.device, f"loaded-{name}", path],
                          env=lab.env, capture_output=True, text=True, timeout=60)
    took = time.monotonic() - begin
    if done.returncode:
        return tell(f"weightctl load, {name}", ok=False, why=done.stderr.strip())
    said = json.loads(done.stdout)
    said = said[0] if isinstance(said, list) else said
    agent.run(f"attach loaded-{name} {lab.device}")
    tell(f"weightctl load, {name}", size / took / 1e9, "GB/s", share=share(size / took, bound), s=round(took, 3),
         said=said, ok=agent.code("verify") == 0)
    agent.run("detach")


def peers(lab, tell, path, pcie):
    with tell.part("other ways to load"):
        torch_version(lab)
        for way in ("safetensors", "torch"):
            with tell.part(f"{way}'s own way, warm"):
                peer(lab, tell, path, pcie, way)


def peer(lab, tell, path, pcie, way):
    file = lab.folder / "model.pt" if way == "torch" else path
    try:
        if file != path:
            lab.python(SAVE, path, file)
        warm(file)
        said = lab.python(PEER, way, file)
    except AssertionError as e:
        raise Skip(str(e)[-300:]) from None  # no fault of weightd's
    tell(f"{way}'s own way, warm", said["bytes"] / said["s"] / 1e9, "GB/s", share=share(said["bytes"] / said["s"], pcie))

"""File to GPU, cold and warm, against the slower of disk and PCIe in the same rounds, and against other packages."""
import contextlib
import json
import mmap
import os
import shutil
import statistics
import struct
import subprocess
import time
import zipfile

from lab import GIB, MIB, AgentFailed
from loaders import WAYS
from programs import WHEELS
from results import Skip
from samples import N_MAX, N_MIN, ratios, shorten, summary, take
from section_sharing import torch_version

N_TENSORS = 64
CHUNK = 16 * MIB
N_PROBED = 64  # pages of a file
OURS, READ, COPY, SAVED = "weightd.load", "the file to host memory alone", "host memory to the GPU alone", "torch.load"
CASES = (4 * GIB, True), (4 * GIB, False), (16 * GIB, True), (16 * GIB, False)  # and whether the page cache has it


def measure(lab, tell):
    """
    About 90 s on an H100 for 4 GiB, where the disk reads 2 GB/s and a round of all takes 4 s warm and 15 s cold; 16 GiB only in
    what is left then. Every process has a context, and has loaded a small file.
    """
    has_torch = False
    with tell.part("other packages"):
        torch_version(lab)
        has_torch = True
    unpack(lab)
    ways = [*WAYS] if has_torch else [OURS]
    files = Files(lab)
    try:
        with tell.part("weightctl load"), lab.weightd(), lab.agents(1) as (agent,):
            files.make(lab.size(4 * GIB, CHUNK))
            with_weightctl(lab, tell, agent, files)
        with tell.part("rounds"), lab.weightd(), lab.agents(1) as (agent,), lab.pythons(len(ways), not has_torch) as processes:
            loaders = dict(zip(ways, processes))
            usable = try_out(lab, tell, loaders, files)
            for size, is_warm in lab.size(CASES, [(CHUNK, True), (CHUNK, False)]):
                name = f"{'warm' if is_warm else 'cold'}, {size / GIB:.3g} GiB"
                with tell.part(name):
                    files.make(size)
                    rounds(lab, tell, agent, usable, files, is_warm, name)
    finally:
        files.remove()


def unpack(lab):
    """Unpacks the wheels of a pack. A wheel for another Python fails when it is imported, and its line has the reason."""
    wheels = sorted((lab.build / WHEELS).glob("*.whl"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as z:
            z.extractall(lab.folder / WHEELS)
    lab.wheels = [lab.folder / WHEELS] if wheels else []


class Files:
    """A model of one size at a time, and the same one as torch saves it."""

    def __init__(self, lab):
        self.lab, self.size, self.made_s_per_byte = lab, 0, 0
        self.path, self.saved, self.small = (lab.folder / name for name in ("model.safetensors", "model.pt", "small.safetensors"))

    def make(self, size):
        """Skip: there is not the time, or the room."""
        if size == self.size:
            return
        expected_s = size * self.made_s_per_byte
        if self.lab.left_s < max(self.lab.size(20, 1), 3 * expected_s):
            raise Skip("not tried: the section's time is over")
        self.remove()
        if shutil.disk_usage(self.lab.folder).free < 2.2 * size:
            raise Skip(f"not tried: {self.lab.folder} has no room for two files of {size} bytes")
        begin = time.monotonic()
        write_model(self.path, size)
        self.size, self.made_s_per_byte = size, (time.monotonic() - begin) / size

    def of(self, way):
        return self.saved if way == SAVED else self.path

    def save(self, process):
        """The file of torch, unless it is there."""
        if not self.saved.exists():
            if self.lab.left_s < 20 + 3 * self.size * self.made_s_per_byte:
                raise Skip("not tried: the section's time is over")
            process.run(f"save {self.path} {self.saved}", 240)

    def remove(self):
        for path in (self.path, self.saved, self.small):
            path.unlink(missing_ok=True)
        self.size = 0


def try_out(lab, tell, loaders, files):
    """Loads a small file first: a package that does not work here is left out, and none pays for its first use in a round."""
    usable = {}
    write_model(files.small, lab.size(64 * MIB, CHUNK))
    for way, process in loaders.items():
        if way == SAVED:
            usable[way] = process
            continue
        try:
            process.run(f"load {way} {files.small} {lab.device}", 120)
            process.run("drop")
            usable[way] = process
        except (AgentFailed, TimeoutError) as e:
            if way == OURS:
                raise
            tell(way, why=str(e)[-300:])
    return usable


def rounds(lab, tell, agent, loaders, files, is_warm, name):
    prepare = warm if is_warm else chill
    how = "page cache" if is_warm else chill(files.path)

    if SAVED in loaders:
        loaders = save(tell, files, loaders, name)

    def load(way):
        remove(lab)
        prepare(files.of(way))
        said = loaders[way].run(f"load {way} {files.of(way)} {lab.device}", 120)
        loaders[way].run("drop", 120)  # GPU memory, and pages of the file
        return said

    def read():
        prepare(files.path)
        return loaders[OURS].run(f"read {files.path} {'cached' if is_warm else 'direct'}", 120)

    def copy():
        return {"ns": files.size / agent.run(f"rates {lab.size(256, 4)}")["from_host"] * 1e9}

    contestants = {OURS: lambda: load(OURS), READ: read, COPY: copy}
    contestants |= {way: lambda way=way: other(lambda: load(way)) for way in loaders if way != OURS}
    taken, left_out = take(contestants, lab.budget(max(25, lab.left_s * 0.45)), lab.size(N_MAX, N_MIN))
    remove(lab)
    for way, why in left_out.items():
        tell(f"{way}, {name}", why=why)
    if {OURS, READ, COPY} - taken.keys():
        return
    took = {way: [s["ns"] for s in samples] for way, samples in taken.items()}
    bound = [max(pair) for pair in zip(took[READ], took[COPY])]  # ns of the slower of both, in each round
    for way, ns in took.items():
        more = {"of_bound": summary(ratios(bound, ns))["value"], "package": taken[way][0].get("version"), "from": how}
        if way == OURS:
            more["split_ms"] = split(taken[way])
        tell(f"{way}, {name}", **summary([files.size / n for n in ns]), unit="GB/s", ok=True if way == OURS else None, **more)
        if way not in (OURS, READ, COPY):
            tell(f"time of {way}, {name}", **summary(ratios(ns, took[OURS])), unit=f"of {OURS}")


def save(tell, files, loaders, name):
    """Returns the loaders that have a file."""
    try:
        other(lambda: files.save(loaders[SAVED]))
        return loaders
    except Skip as e:
        tell(f"{SAVED}, {name}", why=str(e))
        return {way: process for way, process in loaders.items() if way != SAVED}


def split(samples):
    """Medians of phases; "read" is reading, digesting and copying at once, "verify" the digest on the GPU."""
    return {phase: shorten(statistics.median(s["split_ns"].get(phase, 0) for s in samples) / 1e6) for phase in samples[0]["split_ns"]}


def other(act):
    """Makes a failure in it a Skip: it is no fault of weightd's."""
    try:
        return act()
    except (AgentFailed, TimeoutError) as e:
        raise Skip(str(e)[-300:]) from None


def remove(lab):
    """The version that was loaded before, if there is one: each load finds the same room."""
    subprocess.run([lab.build / "weightctl", "rm", "loaded", "--device", lab.device], env=lab.env, capture_output=True)


def write_model(path, size, block=None):
    """A file of random bytes, or of CHUNK of them that are given."""
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


def chill(path):
    """Takes the file out of the page cache, and returns by what means. Skip: it stays there."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not n_cached(fd):
            return "disk, after posix_fadvise"
        if os.geteuid() == 0:
            with open("/proc/sys/vm/drop_caches", "w") as f:
                f.write("1")
            if not n_cached(fd):
                return "disk, after drop_caches"
    except OSError as e:
        raise Skip(f"the page cache cannot be emptied here: {e}") from None
    finally:
        os.close(fd)
    raise Skip("not tried: this file system keeps its files in memory")


def n_cached(fd):
    """How many of some pages the kernel can read without the disk."""
    size, room, n = os.fstat(fd).st_size, mmap.mmap(-1, mmap.PAGESIZE), 0
    for i in range(N_PROBED):
        try:
            n += os.preadv(fd, [room], size * i // N_PROBED // mmap.PAGESIZE * mmap.PAGESIZE, os.RWF_NOWAIT) > 0
        except BlockingIOError:
            pass
    return n


def warm(path):
    with open(path, "rb", buffering=0) as f:
        with contextlib.suppress(OSError):  # a file system that cannot answer that
            if n_cached(f.fileno()) == N_PROBED:
                return
        while f.read(CHUNK):
            pass


def with_weightctl(lab, tell, agent, files):
    """As a user has it: a process that starts, and makes a context."""
    warm(files.path)
    begin = time.monotonic()
    done = subprocess.run([lab.build / "weightctl", "load", "--json", "--device", lab.device, "loaded", files.path],
                          env=lab.env, capture_output=True, text=True, timeout=60)
    took = time.monotonic() - begin
    assert done.returncode == 0, done.stderr.strip()
    said = json.loads(done.stdout)
    said = said[0] if isinstance(said, list) else said
    agent.run(f"attach loaded {lab.device}")
    tell("weightctl load, warm", files.size / took / 1e9, "GB/s", s=round(took, 3), said=said, ok=agent.code("verify") == 0)
    agent.run("detach")

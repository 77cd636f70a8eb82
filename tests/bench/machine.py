"""The machine: its parts, the memory that it can give, and its use by others."""
import contextlib
import ctypes
import mmap
import os
import pathlib
import platform
import time

GIB = 1 << 30
MIB = 1 << 20
SPARED = 3 * GIB  # memory that benches leave to everybody else
TICKS = os.sysconf("SC_CLK_TCK")


def memory_available():
    """Bytes that can be taken without pushing anybody out."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def affordable(wanted, copies=1):
    """`wanted` bytes, or as much less as `copies` of them have to be."""
    room = (memory_available() - SPARED) // copies
    return min(wanted, max(64 * MIB, room // (256 * MIB) * 256 * MIB))


def describe():
    huge = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "available_bytes": memory_available(),
        "kernel": platform.release(),
        "shmem_enabled": huge.read_text().split("[")[-1].split("]")[0] if huge.exists() else "",
        "gives_free_pages_back": _reports_free_pages(),
        "load_1m": os.getloadavg()[0],
    }


def warm(n_bytes):
    """
    Touches memory and frees it, for the next to take it. A virtual machine gets a page from its host
    when it is first used (4.6 ms for 2 MiB were seen, 0.45 GB/s), and where the balloon reports free
    pages it returns them 2 s after they were freed: so this runs right before each measurement that
    takes fresh memory. On a machine that is warm, or real, it costs 0.1 s a GiB.
    """
    with mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.c_char.from_buffer(area)
        ctypes.memset(ctypes.addressof(start), 1, n_bytes)
        del start


@contextlib.contextmanager
def one_core(pid):
    """Binds the first thread of that process, us, and processes that we start meanwhile."""
    cores = os.sched_getaffinity(0)
    try:
        for each in (0, pid):
            os.sched_setaffinity(each, {min(cores)})
        yield
    finally:
        for each in (0, pid):
            os.sched_setaffinity(each, cores)


def _reports_free_pages():
    """True if the host takes free memory back (free page reporting), so that it is cold again."""
    devices = pathlib.Path("/sys/bus/virtio/drivers/virtio_balloon")
    return any((device / "features").read_text()[5:6] == "1" for device in devices.glob("virtio*"))


class Others:
    """
    The use of the processors by others while the block ran.

    share   of all processor time, by processes that are not ours and by the host: 0 to 1
    """

    def __enter__(self):
        self.share = 0.0
        self._before = _machine_ticks(), _own_ticks(), time.monotonic()
        return self

    def __exit__(self, *_):
        machine, own, started = self._before
        elapsed = (time.monotonic() - started) * TICKS * os.cpu_count()
        others = _machine_ticks() - machine - (_own_ticks() - own)
        self.share = min(1.0, max(0.0, others / max(elapsed, 1)))


def _machine_ticks():
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, f.readline().split()[1:9])
    return user + nice + system + irq + softirq + steal


def _own_ticks():
    """The processor time of this process and its living descendants, with those that each has waited for."""
    ticks, parents = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        fields = stat[stat.rindex(")") + 2:].split()
        parents[int(entry)] = int(fields[1])
        ticks[int(entry)] = sum(map(int, fields[11:15]))
    total = 0
    for pid in ticks:
        above = pid
        while above and above != os.getpid():
            above = parents.get(above, 0)
        total += ticks[pid] if above else 0
    return total

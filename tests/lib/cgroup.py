"""Control groups of one's own, removed after the test: of memory with either kernel interface, or of version 2."""
import contextlib
import errno
import itertools
import os
import pathlib
import time

V1 = pathlib.Path("/sys/fs/cgroup/memory")
V2 = pathlib.Path("/sys/fs/cgroup")
CPU_V1 = V2 / "cpu"
PATIENCE_S = 60

_serial = itertools.count()


def _root():
    """The hierarchy with a memory controller, and the name of its limit."""
    if (V1 / "memory.limit_in_bytes").exists():
        return V1, "memory.limit_in_bytes"
    controllers = V2 / "cgroup.subtree_control"
    if controllers.exists() and "memory" in controllers.read_text().split():
        return V2, "memory.max"
    return None, None


def is_available():
    root, _ = _root()
    return os.geteuid() == 0 and root is not None and os.access(root, os.W_OK)


def unified():
    """The folder of the hierarchy of version 2, or None."""
    return next((path for path in (V2, V2 / "unified") if (path / "cgroup.procs").exists()), None)


def is_unified_available():
    return os.geteuid() == 0 and unified() is not None and os.access(unified(), os.W_OK)


class Cgroup:
    """
    path    of its directory, below `root`
    prefix  what is put before a command line to start it inside

    The processes inside have to end before the block does.
    """

    def __init__(self, root, name=None):
        self.path = root / (name or f"weightd-test-{os.getpid()}-{next(_serial)}")
        self.path.mkdir()
        self.prefix = ("sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh")

    def __enter__(self):
        return self

    @contextlib.contextmanager
    def around(self, pid):
        """The process is in it during the block, of version 2."""
        lines = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        before = next(line[len("0::/"):] for line in lines if line.startswith("0::"))
        (self.path / "cgroup.procs").write_text(str(pid))
        try:
            yield
        finally:
            (unified() / before / "cgroup.procs").write_text(str(pid))

    def __exit__(self, *_):
        # Newer kernels remove a process only after its parent has got SIGCHLD, and v1 has no event for that.
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_gone():
            inside = (self.path / "cgroup.procs").read_text().split()
            assert time.monotonic() < deadline, f"{self.path} is busy, with processes {inside}"
            time.sleep(0.005)  # nothing to wait on

    def _is_gone(self):
        try:
            self.path.rmdir()
        except OSError as e:
            if e.errno != errno.EBUSY:
                raise
            return False
        return True


class MemoryCgroup(Cgroup):
    """
    with MemoryCgroup(256 << 20) as group:
        make_daemon(prefix=group.prefix)

    limit_name  of the file in it that has its limit
    """

    def __init__(self, limit):
        root, self.limit_name = _root()
        super().__init__(root)
        (self.path / self.limit_name).write_text(str(limit))


class CpuCgroup(Cgroup):
    """
    One of processor time, with either kernel interface.

    cores   bound for all processes inside, each period; None: none
    weight  the share of the processors beside other groups, in units of CPUWeight= of systemd
    """

    PERIOD_US = 100_000

    def __init__(self, cores=None, weight=100):
        root = self.root()
        super().__init__(root)
        is_v1 = root.is_relative_to(CPU_V1)
        if is_v1:
            (self.path / "cpu.shares").write_text(str(weight * 1024 // 100))
        else:
            (self.path / "cpu.weight").write_text(str(weight))
        if cores and is_v1:
            (self.path / "cpu.cfs_period_us").write_text(str(self.PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(int(self.PERIOD_US * cores)))
        elif cores:
            (self.path / "cpu.max").write_text(f"{int(self.PERIOD_US * cores)} {self.PERIOD_US}")

    @staticmethod
    def root():
        """The folder for groups with a processor controller, or None: the caller has to be root, too."""
        if os.geteuid() != 0:
            return None
        if CPU_V1.exists():
            lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
            own = next((path for _, of, path in (line.split(":", 2) for line in lines) if "cpu" in of.split(",")), "/")
            return CPU_V1 / own.lstrip("/")
        controllers = V2 / "cgroup.subtree_control"
        return V2 if controllers.exists() and "cpu" in controllers.read_text().split() else None

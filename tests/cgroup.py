"""A memory cgroup of one's own, of either kernel interface, gone after the test."""
import itertools
import os
import pathlib

V1 = pathlib.Path("/sys/fs/cgroup/memory")
V2 = pathlib.Path("/sys/fs/cgroup")

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


class MemoryCgroup:
    """
    with MemoryCgroup(256 << 20) as group:
        make_daemon(prefix=group.prefix)

    The processes inside have to end before the block does.
    """

    def __init__(self, limit):
        root, limit_name = _root()
        self.path = root / f"weightd-test-{os.getpid()}-{next(_serial)}"
        self.path.mkdir()
        (self.path / limit_name).write_text(str(limit))
        # What is put before a command line to start it inside.
        self.prefix = ("sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.path.rmdir()

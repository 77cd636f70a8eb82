"""Memory policies of threads and of memory files, by the system calls themselves."""
import ctypes
import mmap
import os
import platform

DEFAULT, PREFERRED, BIND, INTERLEAVE = range(4)
NAMES = {"mbind": (237, 235), "get_mempolicy": (239, 236), "set_mempolicy": (238, 237)}
CALLS = {name: numbers[platform.machine() == "aarch64"] for name, numbers in NAMES.items()}
OF_ADDRESS, OF_ALLOWED = 2, 4
N_BITS = 1025
Mask = ctypes.c_ulong * 16

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    if libc.syscall(CALLS[name], *args) < 0:
        raise OSError(ctypes.get_errno(), name)


def mask_of(nodes):
    return Mask.from_buffer_copy(sum(1 << node for node in nodes).to_bytes(128, "little"))


def nodes_of(mask):
    return [i for i in range(1024) if mask[i // 64] >> i % 64 & 1]


def allowed():
    """The nodes that this process may use memory of."""
    mask = Mask()
    call("get_mempolicy", None, mask, ctypes.c_ulong(N_BITS), None, ctypes.c_ulong(OF_ALLOWED))
    return nodes_of(mask)


def set_policy(mode, nodes):
    """Of this thread and its children, as numactl does."""
    call("set_mempolicy", mode, mask_of(nodes), ctypes.c_ulong(N_BITS))


class Mapping:
    """The memory of a descriptor that may not be writable, at `.address`."""

    def __init__(self, fd):
        libc.mmap.restype, self.size = ctypes.c_void_p, os.fstat(fd).st_size
        self.address = libc.mmap(None, ctypes.c_size_t(self.size), mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(0))
        assert self.address != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        libc.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size))

    def policy(self):
        """(mode, nodes)."""
        mode, mask = ctypes.c_int(), Mask()
        call("get_mempolicy", ctypes.byref(mode), mask, ctypes.c_ulong(N_BITS), ctypes.c_void_p(self.address), ctypes.c_ulong(OF_ADDRESS))
        return mode.value, nodes_of(mask)

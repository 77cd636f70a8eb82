"""Windows: one range of memory for each rank, and collectives on them. Also the meeting of ranks in a small one."""
from __future__ import annotations

import ctypes
import errno
import json
import os
from ctypes import byref, c_void_p
from typing import Any

import torch

from .. import _dtype
from .._abi import text
from .._connection import Connection
from .._errors import Error, error
from . import _abi
from ._abi import check, lib
from ._job import Job, create_window_job, find_job
from ._mesh import Mesh
from ._trainer import deadline_ms

LINE = 64  # bytes: offsets in a window are multiples of it
_PAGE = 1 << 16  # bytes of a message that ranks exchange at once
_GONE = (errno.EOWNERDEAD, errno.ESTALE, errno.ENOENT)  # of a job that can be opened no more


class Window:
    """This process as a rank of a window. Tensors over its memory hold it: the last one to go unmaps it."""

    handle: c_void_p | None = None  # until __init__ has one

    def __init__(self, token: str, rank: int, size: int, deadline: float | None):
        """Waits for all ranks. `size`: bytes of each range, a multiple of LINE. `deadline` 0: the library's own."""
        self.rank, self.size, self._pid = rank, size, os.getpid()
        self._connection = Connection()  # the library keeps it for this window
        options = _abi.Options(token=text(token), rank=rank, deadline_ms=deadline_ms(deadline))
        handle = c_void_p()
        check(lib.weightd_window_open(self._connection.handle, byref(options), size, byref(handle)))
        self.handle = handle

    def __del__(self, free=lib.weightd_window_free, getpid=os.getpid):
        if self.handle is not None and self._pid == getpid():
            free(self.handle)

    def use(self) -> c_void_p:
        """The handle, for a call. Disconnected: a forked child is no rank, and has not mapped the window."""
        if self._pid != os.getpid():
            raise error(errno.ECHILD, "this process was forked from a rank, and is none: the memory of the ranks is not "
                        "mapped here; sync_from() and averages are the parent's")
        return self.handle

    def memory(self, rank: int) -> Any:
        """The range of a rank as an object with a buffer, which keeps it mapped. Those of others: after a barrier."""
        pages = (ctypes.c_ubyte * self.size).from_address(lib.weightd_window_data(self.handle, rank))
        pages.window = self
        return pages

    def flat(self) -> torch.Tensor:
        """This rank's range, as bytes."""
        return torch.frombuffer(self.memory(self.rank), dtype=torch.uint8)

    def barrier(self) -> None:
        check(lib.weightd_window_barrier(self.use()))

    def all_reduce(self, offset: int, n: int, dtype: str) -> None:
        """The sum of `n` elements, F32 or BF16, in the order of ranks, in the ranges of all."""
        check(lib.weightd_window_all_reduce(self.use(), offset, n, _dtype.code(dtype)))

    def broadcast(self, offset: int, size: int, root: int) -> None:
        check(lib.weightd_window_broadcast(self.use(), offset, size, root))


class Meeting:
    """
    All ranks in a window of one page each, before the size of the window that they will use is agreed.

    As a context manager; the job of the meeting ends with it.
    """

    def __init__(self, mesh: Mesh, job: str | None, deadline: float | None):
        self._mesh = mesh
        self._job, self._window = _open(find_job(mesh, job), mesh.rank, deadline)
        self._pages = [self._window.memory(rank) for rank in range(mesh.size)]

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_) -> None:
        self._pages = self._window = None  # leaves the job
        self._job.left()

    def exchange(self, message: bytes) -> list[bytes]:
        """The messages of all ranks, in their order. All ranks call it."""
        sizes = [int.from_bytes(page, "little") for page in self._round(len(message).to_bytes(8, "little"), 8)]
        found = [b""] * len(sizes)
        for at in range(0, max(sizes), _PAGE):
            for rank, page in enumerate(self._round(message[at:at + _PAGE], _PAGE)):
                found[rank] += page[:max(0, sizes[rank] - at)]
        return found

    def _round(self, part: bytes, size: int) -> list[bytes]:
        ctypes.memmove(self._pages[self._mesh.rank], part, len(part))
        self._window.barrier()
        pages = [bytes(memoryview(page)[:size]) for page in self._pages]
        self._window.barrier()
        return pages

    def open(self, size: int, deadline: float | None) -> Window:
        """Another window, of a job that rank 0 creates: `size` bytes for each rank. Error: rank 0 could not create it."""
        found = {}
        if self._mesh.rank == 0:
            try:
                found["token"] = create_window_job(self._mesh.size)
            except Error as e:
                found["errno"], found["sentence"] = e.errno, str(e)
        found = json.loads(self.exchange(json.dumps(found).encode())[0])
        if "errno" in found:
            raise error(found["errno"], found["sentence"])
        return Window(found["token"], self._mesh.rank, size, deadline)


def _open(job: Job, rank: int, deadline: float | None) -> tuple[Job, Window]:
    """
    The window of a meeting. A rank that was killed while it waited there has left a job that nothing can open again:
    the ranks that remain, and its successor, meet in another one.
    """
    while True:
        try:
            return job, Window(job.token, rank, _PAGE, deadline)
        except Error as e:
            another = job.renewed() if e.errno in _GONE else None
            if another is None:
                job.give_up()
                raise
            job = another

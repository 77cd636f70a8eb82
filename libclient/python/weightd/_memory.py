"""Memory that libweightd mapped, and how long it stays mapped."""
from __future__ import annotations

import ctypes
from typing import Callable

from ._connection import Connection


class Memory:
    """
    The flat range of one attachment or writer, with the C object that owns it. Each view holds the
    Memory, the Memory holds no view: the last one to go unmaps it, in whatever order and thread.

    handle    the C object
    address   of the first byte
    size      bytes
    writable  whether views made from now on may be written
    """

    def __init__(self, connection: Connection, handle: ctypes.c_void_p, address: int | None, size: int,
                 free: Callable[[ctypes.c_void_p], None], writable: bool):
        self.connection, self.handle = connection, handle
        self.address, self.size, self.writable = address or 0, size, writable
        self._free = free
        self._pages = ctypes.c_ubyte * size

    def __del__(self):
        # In a child the bytes of a writer are not mapped: something else may be where they were.
        if not (self.writable and self.connection.is_parents()):
            self.connection.free(self._free, self.handle)

    def view(self, writable: bool | None = None) -> memoryview:
        """
        All bytes, format "B". `writable` overrides the flag: consumers that know no read-only memory
        want it so. A write to published bytes is a SIGSEGV then.
        """
        pages = self._pages.from_address(self.address)
        pages.memory = self  # type: ignore[attr-defined]
        view = memoryview(pages).cast("B")
        return view if (self.writable if writable is None else writable) else view.toreadonly()

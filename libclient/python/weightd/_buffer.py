"""Attached buffers: one published version each, read-only."""
from __future__ import annotations

import ctypes
import errno
import os

from . import _abi
from ._abi import lib
from ._connection import Connection, patiently, shared
from ._errors import error
from ._layout import Layout
from ._memory import Memory
from ._table import Table


class Buffer(Table):
    """
    A published version, attached: a lazy mapping of names to tensors that all readers share. From
    attach() and refresh(). Any thread may look up and wait; refresh() and verify() wait for each other.

    version      of these bytes; it does not change
    layout_hash  16 bytes
    digest       16 bytes, or None when it was published without
    """

    _find = staticmethod(lib.weightd_buffer_find)
    _row = staticmethod(lib.weightd_buffer_tensor)

    def __init__(self, connection: Connection, handle: ctypes.c_void_p):
        size = ctypes.c_uint64()
        address = lib.weightd_buffer_data(handle, ctypes.byref(size))
        memory = Memory(connection, handle, address, size.value, lib.weightd_detach, writable=False)
        super().__init__(lib.weightd_buffer_name(handle).decode(),
                         lib.weightd_buffer_device(handle).decode(), memory,
                         lib.weightd_buffer_n_tensors(handle))
        self.version: int = lib.weightd_buffer_version(handle)
        self.layout_hash = _abi.hash_at(lib.weightd_buffer_layout_hash(handle))
        self.digest = _abi.hash_at(lib.weightd_buffer_digest(handle))

    def __repr__(self) -> str:
        return f"<Buffer {self.name!r} on {self.device}, version {self.version}, {len(self)} tensors>"

    def latest(self) -> int:
        """The newest published version: one load from shared memory, no system call. Removed."""
        memory, version = self._open(), ctypes.c_uint64()
        self._check(lib.weightd_buffer_latest(memory.handle, ctypes.byref(version)), "")
        return version.value

    def wait(self, newer_than: int | None = None, timeout: float | None = None) -> int:
        """
        Blocks until a version above `newer_than` (default: this one) is published, for `timeout` seconds
        at most (None: for ever), and returns it. Works without a connection. Timeout, Removed.
        """
        memory, version = self._open(), ctypes.c_uint64()
        newer_than = self.version if newer_than is None else newer_than

        def wait(timeout_ms: int) -> int:
            r = lib.weightd_buffer_wait(memory.handle, newer_than, timeout_ms, ctypes.byref(version))
            self._check(r, f"has no version above {newer_than} after {timeout} s")
            return version.value

        return patiently(wait, timeout)

    def _check(self, r: int, timed_out: str) -> None:
        # These functions are open to all threads at once and leave no sentence.
        if r == -errno.ETIMEDOUT:
            raise error(-r, f"'{self.name}' on {self.device} {timed_out}")
        if r == -errno.ESTALE:
            raise error(-r, f"'{self.name}' on {self.device} was removed")
        if r < 0:
            raise error(-r, f"'{self.name}' on {self.device}: {os.strerror(-r)}")

    def refresh(self) -> Buffer | None:
        """The newest version, attached beside this one, or None when this is the newest. Error."""
        memory, handle = self._open(), ctypes.c_void_p()
        is_newer = memory.connection.call(lib.weightd_buffer_refresh, memory.handle,
                                          ctypes.byref(handle))
        return Buffer(memory.connection, handle) if is_newer else None

    def verify(self) -> None:
        """
        Digests the mapped bytes (a few GB/s) and compares. DigestMismatch; NotPublished when there is
        no digest. Other threads' calls over this connection wait meanwhile.
        """
        memory = self._open()
        memory.connection.call(lib.weightd_buffer_verify, memory.handle)


def attach(name: str, device: str = "host", version: int | None = None, timeout: float | None = 0.0,
           layout: Layout | bytes | None = None, socket: str | None = None) -> Buffer:
    """
    Maps a published version.

    version  None: the newest
    timeout  seconds to wait until it is published; None: for ever
    layout   what the tensors must be: a Layout or the hash of one; else LayoutMismatch
    socket   path; default: $WEIGHTD_SOCKET, else /run/weightd.sock or $XDG_RUNTIME_DIR/weightd.sock

    NotFound, NotPublished, Timeout, LayoutMismatch, Denied, Disconnected, Error.
    """
    if timeout is None or timeout > 0:
        wait(name, version or 0, timeout, device, socket)
    wanted = layout.hash if isinstance(layout, Layout) else layout
    if wanted is not None and len(wanted) != _abi.HASH_SIZE:
        raise ValueError(f"a layout's hash has {_abi.HASH_SIZE} bytes, not {len(wanted)}")
    options = _abi.AttachOptions(device=_abi.text(device), version=version or 0,
                                 layout_hash=wanted and _abi.Hash.from_buffer_copy(wanted))
    connection, handle = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_attach, connection.handle, _abi.text(name), ctypes.byref(options),
                    ctypes.byref(handle))
    return Buffer(connection, handle)


def wait(name: str, version: int = 0, timeout: float | None = None, device: str = "host",
         socket: str | None = None) -> int:
    """
    Blocks until `version` or a later one is published (0: any) and returns the newest. The buffer need
    not exist yet. `timeout` in seconds; None: for ever. Uses a connection of its own. Timeout.
    """
    connection, found = Connection(socket), ctypes.c_uint64()

    def wait(timeout_ms: int) -> int:
        connection.call(lib.weightd_wait, connection.handle, _abi.text(name), _abi.text(device),
                        version, timeout_ms, ctypes.byref(found))
        return found.value

    return patiently(wait, timeout)

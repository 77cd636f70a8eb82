"""The common part of attached buffers and writers: a lazy mapping of names to tensors."""
from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from typing import Any, Callable, Iterator

from . import _abi
from ._errors import error
from ._memory import Memory
from ._tensor import Tensor


class Table(Mapping):
    """
    Mapping of name (str) to Tensor, in the order of the layout. Nothing is made before it is asked for:
    a look-up costs the same in a layout of one and of a million tensors. Equal only to itself.

    name      of the buffer
    device    "host", or a GPU: "cuda:GPU-<uuid>"
    location  Location: what kind of memory, and for which GPU of this process
    nbytes    bytes of the flat range
    """

    _find: Callable[..., int]
    _row: Callable[..., int]

    def __init__(self, name: str, device: str, memory: Memory, n_tensors: int):
        self.name, self.device, self.nbytes = name, device, memory.size
        self.location = memory.location
        self._memory: Memory | None = memory
        self._n_tensors = n_tensors
        # Rows that no thread uses, to look up with: a new one costs as much as a look-up. (row, its address)
        self._rows: list[tuple[_abi.Tensor, Any]] = []

    def _open(self) -> Memory:
        """To be held in a local variable through a call, so that no other thread's close() unmaps it."""
        if self._memory is None:
            raise ValueError(f"{self!r} is closed")
        return self._memory

    def _look(self, function: Callable[..., int], memory: Memory, key: bytes | int) -> Tensor | None:
        try:
            pair = row, at = self._rows.pop()
        except IndexError:
            row = _abi.tensor_row()
            pair = row, at = row, ctypes.byref(row)
        try:
            r = function(memory.handle, key, at)
            if r == 0:
                return Tensor(row, memory)
        finally:
            self._rows.append(pair)
        if r == -errno.ENOENT:
            return None
        raise error(-r, f"{self!r}: tensor {key!r}: {os.strerror(-r)}")

    def __getitem__(self, name: str) -> Tensor:
        """KeyError. ValueError after close()."""
        memory = self._memory or self._open()
        try:
            key = _abi.text(name)
        except (AttributeError, ValueError):  # no str, a NUL in it, half a surrogate pair
            raise KeyError(name) from None
        tensor = self._look(self._find, memory, key)
        if tensor is None:
            raise KeyError(name)
        return tensor

    def tensor(self, index: int) -> Tensor:
        """Number `index` of the layout, from 0. IndexError. ValueError after close()."""
        memory = self._open()
        tensor = self._look(self._row, memory, index) if 0 <= index < len(self) else None
        if tensor is None:
            raise IndexError(f"{self!r} has no tensor {index}")
        return tensor

    def read(self, offset: int = 0, size: int | None = None, into=None):
        """
        Copies `size` bytes (None: all that are left) from `offset` on to the host: a new bytearray, or
        `into`, anything writable of that size. Works for all kinds of memory. Error.
        """
        memory = self._open()
        return memory.read(offset, self.nbytes - offset if size is None else size, into)

    def __iter__(self) -> Iterator[str]:
        row = _abi.tensor_row()
        at = ctypes.byref(row)
        for index in range(self._n_tensors):
            memory = self._memory or self._open()
            r = self._row(memory.handle, index, at)
            if r < 0:
                raise error(-r, f"{self!r}: tensor {index}: {os.strerror(-r)}")
            yield row.name.decode()

    def __len__(self) -> int:
        return self._n_tensors

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def close(self) -> None:
        """
        Releases the memory. It is unmapped once the last tensor and the last view of it are freed too; until then
        they stay valid. May be called twice.
        """
        self._memory = None

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        self.close()

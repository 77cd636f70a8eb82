"""Tensors: what the layout says of one, and views of its bytes."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import _abi, _dlpack, _dtype
from ._memory import Memory

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor as TorchTensor


class Entry:
    """
    One row of a layout.

    name      str
    dtype     "F32", "BF16", ...: those of safetensors
    shape     tuple of int, outermost first; () for a scalar; row-major and contiguous
    offset    bytes from the start of the buffer
    nbytes    bytes
    role      "param": shared by readers as it is; "buffer": state, of which readers take a private copy
    unit      the module block it belongs to, "encoder.layer.3", or ""
    index     place in the layout
    tied_to   index of the tensor whose bytes this name shares, or None
    """

    __slots__ = ("name", "dtype", "shape", "offset", "nbytes", "role", "unit", "index", "tied_to")

    def __init__(self, row: _abi.Tensor):
        self.name = row.name.decode()
        self.dtype = _dtype.name(row.dtype)
        self.shape = tuple(row.shape[:row.n_dims])
        self.offset, self.nbytes, self.index = row.offset, row.n_bytes, row.index
        self.role = _abi.ROLES[row.role]
        self.unit = row.unit.decode() if row.unit else ""
        self.tied_to = None if row.tied_to == _abi.NOT_TIED else row.tied_to

    @property
    def itemsize(self) -> int:
        """Bytes of an element, or of the byte that holds several."""
        return max(1, _abi.lib.weightd_dtype_bits(_dtype.code(self.dtype)) // 8)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.dtype} {list(self.shape)} at {self.offset}>"


class Tensor(Entry):
    """
    A tensor in mapped memory. It and every view made from it keep the memory mapped. No method copies,
    unless it says so. Tensors of a published version are read-only, those of a writer writable until it
    publishes; afterwards the memory itself is read-only, and a write through a view made before (or
    through torch and old DLPack consumers, which know no read-only memory) ends in SIGSEGV.
    """

    __slots__ = ("_memory",)

    def __init__(self, row: _abi.Tensor, memory: Memory):
        super().__init__(row)
        self._memory = memory

    def memoryview(self) -> memoryview:
        """The bytes, flat: format "B"."""
        return self._memory.view()[self.offset:self.offset + self.nbytes]

    def numpy(self) -> ndarray:
        """
        An array of this shape. BF16 and F8_* come as the unsigned integer that holds their bits (`dtype`
        tells which they are), F4 and F6_* as bytes: the last dimension counts bytes, and the array is
        flat when a row does not end with one.
        """
        return self._array()

    def _array(self, kind: str | None = None, writable: bool | None = None) -> ndarray:
        import numpy
        shape, element = _dtype.packed(self.shape, self.dtype), kind or _dtype.NUMPY[self.dtype]
        if not self.nbytes:
            return numpy.empty(shape, element)
        # Not numpy.ndarray(buffer=...), whose flag can be set back to writeable.
        return numpy.frombuffer(self._memory.view(writable), element, math.prod(shape),
                                self.offset).reshape(shape)

    def __array__(self, dtype=None, copy: bool | None = None) -> ndarray:
        """numpy(), converted (a copy) if another type is asked for. TypeError: it would convert bits."""
        array = self.numpy()
        if dtype is None or array.dtype == dtype:
            return array.copy() if copy else array
        if self.dtype in _dtype.BITS:
            raise TypeError(f"{self.name!r} is {self.dtype}, no type of numpy's; numpy() gives its bits")
        if copy is False:
            raise ValueError(f"{self.name!r} is {self.dtype}: another type needs a copy")
        return array.astype(dtype)

    def torch(self) -> TorchTensor:
        """
        A CPU tensor of this shape (F4: torch's type holds two elements, its last dimension is half as
        long). data_ptr() is the address in the shared memory; torch knows no read-only memory.
        TypeError: this torch has no such type.
        """
        import torch
        kind = getattr(torch, _dtype.TORCH.get(self.dtype, ""), None)
        if kind is None:
            raise TypeError(f"torch {torch.__version__} has no type for {self.dtype} ({self.name!r}); "
                            "numpy() and memoryview() have its bits")
        shape = _dtype.packed(self.shape, self.dtype)
        if not self.nbytes:
            return torch.empty(shape, dtype=kind)
        bits = torch.frombuffer(self._memory.view(writable=True), dtype=torch.uint8,
                                count=self.nbytes, offset=self.offset)
        return bits.view(kind).view(shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(kDLCPU, 0)"""
        return _dlpack.CPU

    def __dlpack__(self, *, stream=None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        """
        A DLPack capsule. BOOL and BF16 as such, F8_* and smaller as in numpy(). With max_version >=
        (1, 0) and numpy >= 2.1 it says that the memory is read-only. Needs numpy or torch. BufferError.
        """
        if dl_device is not None and tuple(dl_device) != _dlpack.CPU:
            raise BufferError(f"{self.name!r} is in host memory, not on {tuple(dl_device)}")
        return _dlpack.capsule(self, max_version is not None and max_version[0] >= 1, bool(copy))

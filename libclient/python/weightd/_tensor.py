"""Tensors: their entries in the layout, and views of their bytes."""
from __future__ import annotations

import copy
import math
import sys
from typing import TYPE_CHECKING

from . import _abi, _dlpack, _dtype
from ._deferred import Deferred
from ._memory import Memory

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor as TorchTensor
    from torch import dtype as TorchType


class Entry:
    """
    One row of a layout.

    name      str
    dtype     "F32", "BF16", ...: those of safetensors, and "Q4_K", ...: those of GGUF
    shape     tuple of int, outermost first; () for a scalar; row-major and contiguous
    offset    bytes from the start of the buffer
    nbytes    bytes
    role      "param": shared by readers as it is; "buffer": state, of which readers take a private copy
    unit      the module block it belongs to, "encoder.layer.3", or ""
    index     place in the layout
    tied_to   index of the tensor that this name shares its bytes with, or None
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
        """Bytes of an element; 1 for types below a byte and for blocks."""
        return max(1, _abi.lib.weightd_dtype_bits(_dtype.code(self.dtype)) // 8)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.dtype} {list(self.shape)} at {self.offset}>"


class Tensor(Entry):
    """
    A tensor in mapped memory. It and every view made from it keep the memory mapped. No method copies, unless
    documented. On a GPU there are torch(), DLPack and __cuda_array_interface__, and read() for a copy.
    Tensors of a published version are read-only, those of a writer writable until it publishes; afterwards
    the memory itself is read-only, and a write through a view made before (or through torch and old DLPack
    consumers, which have no read-only memory) ends in SIGSEGV.
    """

    __slots__ = ("_memory",)

    def __init__(self, row: _abi.Tensor, memory: Memory):
        self._memory = memory
        self.index = row.index
        if memory.is_writers:
            super().__init__(row)  # another name for these bytes may have the same index

    def __getattr__(self, name: str):
        """The other attributes, read when the first of them is asked for: most of a look-up is their conversion."""
        if name not in Entry.__slots__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        super().__init__(self._memory.row(self.index))
        return getattr(self, name)

    def __reduce__(self):
        return _arrive, (self._row(), self._memory)

    def _row(self) -> dict:
        """All but the memory, for _at()."""
        return {name: getattr(self, name) for name in Entry.__slots__}

    @classmethod
    def _at(cls, row: dict, memory: Memory) -> Tensor:
        tensor = cls.__new__(cls)
        for name, value in row.items():
            setattr(tensor, name, value)
        tensor._memory = memory
        return tensor

    def __getitem__(self, rows: slice | int) -> Tensor:
        """
        Rows, as numpy counts them: tensor[2:5] and tensor[-1] are Tensors on the same memory, of all types: with
        F4 and F6_* a slice has to begin and end with a byte, with types of GGUF with a block. IndexError, ValueError;
        TypeError: another index, which numpy() and torch() take.
        """
        if not self.shape:
            raise IndexError(f"{self.name!r} is a scalar, without rows")
        n_rows, *row = self.shape
        if isinstance(rows, slice):
            first, last, step = rows.indices(n_rows)
            if step != 1:
                raise ValueError(f"{self.name!r}: rows with a step are not in one piece; numpy() and torch() take them")
            shape = max(0, last - first), *row
        else:
            try:
                first = range(n_rows)[None if isinstance(rows, bool) else rows]  # a mask, in numpy
            except TypeError:
                raise TypeError(f"{self.name!r} is indexed by rows, [first:last] or [row], not by {rows!r}; numpy() "
                                "and torch() take other indices") from None
            except IndexError:
                raise IndexError(f"{self.name!r} has {n_rows} rows, none is {rows}") from None
            shape = tuple(row)
        return self._part(shape, first * math.prod(row))

    def _part(self, shape: tuple[int, ...], first: int) -> Tensor:
        """A Tensor of that shape from element `first` on. ValueError."""
        elements, size = _dtype.block(self.dtype)
        n = math.prod(shape)
        if n and (first % elements or n % elements):
            each = elements // math.gcd(elements, math.prod(self.shape[1:]))
            raise ValueError(f"{self.name!r}: those rows of {self.dtype} begin or end within a "
                             f"{'block' if self.dtype in _dtype.BLOCKS else 'byte'}; every {each} rows one begins")
        part = copy.copy(self)
        part.shape, part.offset, part.nbytes = shape, self.offset + first // elements * size, n // elements * size
        return part

    # With rows it would be a sequence of Python's, which torch 1.13 reads element by element.
    __iter__ = __contains__ = None

    def read(self, into=None):
        """A copy of the bytes on the host: a new bytearray, or `into`, anything writable of that size. Error."""
        return self._memory.read(self.offset, self.nbytes, into)

    def write(self, data) -> None:
        """
        Copies the bytes of `data` from the host, to a GPU too: of anything of that size that lends them in one
        piece, bytes, numpy's arrays. ValueError; Denied when it is published.
        """
        size = memoryview(data).nbytes
        if size != self.nbytes:
            raise ValueError(f"{self.name!r} has {self.nbytes} bytes, not {size}")
        self._memory.write(self.offset, data)

    def _on_host(self) -> None:
        """TypeError."""
        if self._memory.is_on_gpu:
            raise TypeError(f"{self.name!r} is on cuda:{self._memory.location.device}: use torch(), "
                            "cupy.from_dlpack(), or read() for a copy on the host")

    def memoryview(self) -> memoryview:
        """The bytes, flat: format "B". TypeError: they are on a GPU."""
        self._on_host()
        return self._memory.view()[self.offset:self.offset + self.nbytes]

    def numpy(self) -> ndarray:
        """
        An array of this shape. BF16 and F8_* are returned as the unsigned integer that holds their bits (see
        `dtype`), F4, F6_* and the types of GGUF as bytes: the last dimension counts bytes, and the array is flat
        if a row does not end with one. TypeError: it is on a GPU.
        """
        self._on_host()
        return self._array()

    def _array(self, kind: str | None = None, writable: bool | None = None) -> ndarray:
        """An array, also on a GPU, where its bytes must not be accessed."""
        import numpy
        shape, element = _dtype.packed(self.shape, self.dtype), kind or _dtype.NUMPY[self.dtype]
        if not self.nbytes:
            return numpy.empty(shape, element)
        # Not numpy.ndarray(buffer=...): its flag can be set back to writeable.
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
        A tensor of this shape, on the CPU or the GPU that maps it (F4: torch's type holds two elements, its
        last dimension is half as long). data_ptr() is the address in the shared memory; torch has no
        read-only memory. TypeError: this torch has no such type.
        """
        return self._torch_of(self._torch_type())

    def _torch_of(self, kind: TorchType) -> TorchTensor:
        """torch() with elements of that type."""
        if not self._memory.is_on_gpu:
            return self._torch_view(kind)
        import torch
        if not self.nbytes:
            return self._torch_view(kind).to(torch.device("cuda", self._memory.location.device))
        return self._torch_shaped(torch.from_dlpack(_dlpack.Bytes(self)), kind)

    def _torch_view(self, kind: TorchType) -> TorchTensor:
        """A CPU tensor, also on a GPU, where its bytes must not be accessed."""
        if self.nbytes:
            return self._torch_shaped(self._torch_bytes(), kind)
        import torch
        return torch.empty(_dtype.packed(self.shape, self.dtype), dtype=kind)

    def _torch_bytes(self) -> TorchTensor:
        """Likewise, flat. Not of no bytes."""
        import torch
        return torch.frombuffer(self._memory.view(writable=True), dtype=torch.uint8, count=self.nbytes,
                                offset=self.offset)

    def _torch_shaped(self, bits: TorchTensor, kind: TorchType) -> TorchTensor:
        return bits.view(kind).view(_dtype.packed(self.shape, self.dtype))

    def _torch_type(self) -> TorchType:
        """TypeError."""
        import torch
        kind = getattr(torch, _dtype.TORCH.get(self.dtype, ""), None)
        if kind is None:
            raise TypeError(f"torch {torch.__version__} has no type for {self.dtype} ({self.name!r}); "
                            "numpy() and memoryview() have its bits, and read()")
        return kind

    @property
    def __cuda_array_interface__(self) -> dict:
        """
        Version 3, on a GPU only. The types are those of numpy(), and what is published is read-only: numba
        and cupy take that, torch wants torch(). AttributeError.
        """
        if not self._memory.is_on_gpu:
            raise AttributeError(f"{self.name!r} is in host memory")
        # `stream` None: there is nothing to wait for that libweightd has not waited for.
        return {"shape": _dtype.packed(self.shape, self.dtype), "typestr": _dtype.typestr(self.dtype),
                "data": (self._memory.address + self.offset if self.nbytes else 0,
                         not self._memory.writable),
                "strides": None, "stream": None, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        """(kDLCPU, 0), or (kDLCUDA, the number of the GPU in this process)."""
        return _dlpack.device(self._memory)

    def __dlpack__(self, *, stream=None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object:
        """
        A DLPack capsule. BOOL and BF16 as such; F8_* as such with max_version >= (1, 1), and for a torch (since
        2.15) or jax (since 0.10) with support for them, which request less; F4 likewise for such a torch; all others
        as in numpy(). With max_version >= (1, 0) and numpy >= 2.1 it has the read-only flag, which torch ignores.
        `stream` has nothing to wait for. Needs numpy or torch, and for a copy on a GPU torch.
        BufferError.
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"{self.name!r} is on {self.__dlpack_device__()}, not on {tuple(dl_device)}; "
                              "read() copies it to the host")
        frame = sys._getframe().f_back  # None: called by a program that embeds Python
        caller = frame.f_globals.get("__name__", "") if frame else ""
        kind = _dlpack.element(self.dtype, max_version, caller)
        return _dlpack.capsule(self, kind, max_version is not None and max_version[0] >= 1, bool(copy))


def _arrive(row: dict, memory: Memory | Deferred) -> Tensor | Deferred:
    return memory if isinstance(memory, Deferred) else Tensor._at(row, memory)

"""Layouts: the ordered tensor table of a buffer to be."""
from __future__ import annotations

import ctypes
import errno
import operator
import os
from typing import Iterable, Iterator

from . import _abi, _dtype
from ._abi import lib
from ._errors import error
from ._tensor import Entry

_TEXT_SIZE = 512
_free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("free", ctypes.CDLL(None)))
_ROLES = {name: code for code, name in _abi.ROLES.items()}


class Layout:
    """
    An ordered tensor table, written by add() and tie() and read as a sequence of Entry. One thread at a time. Can
    be pickled.

    By default create() chooses order and offsets: a version in host memory is a safetensors file then, without room
    between the tensors. With `alignment`, a power of two from 64 to 2 MiB, each offset is a multiple of it, in the
    order of this table, and the version is no file.

    The set of (name, type, shape) identifies a model: if the newest version of a buffer has the same set, create()
    writes in the order of that version.
    """

    _handle: ctypes.c_void_p | None = None  # until __init__ has one

    def __init__(self, alignment: int | None = None):
        """ValueError: the alignment."""
        self._handle, self._alignment = ctypes.c_void_p(), alignment or 0
        self._index: dict[str, int] | None = {}
        _check(lib.weightd_layout_new(self._alignment, ctypes.byref(self._handle)), f"alignment {alignment}")

    @classmethod
    def _parse(cls, image: int | bytes, size: int) -> Layout:
        """Parses bytes, or those at an address; there is at least one tensor. Error."""
        layout = cls.__new__(cls)
        layout._handle, layout._alignment, layout._index = ctypes.c_void_p(), None, None
        _check(lib.weightd_layout_parse(image, size, ctypes.byref(layout._handle)), "image")
        return layout

    def _index_of(self, name: str) -> int:
        if self._index is None:  # a parsed layout: the index is built at the first lookup, for all tensors
            self._index = {entry.name: entry.index for entry in self}
        return self._index.get(name, -1)

    def __del__(self):
        lib.weightd_layout_free(self._handle)

    @classmethod
    def _repeat(cls, rows: Iterable[tuple]) -> Layout:
        """The layout of the same calls, without an alignment."""
        layout = cls()
        for name, dtype, shape, role, unit, tied_to in rows:
            if tied_to is None:
                layout.add(name, dtype, shape, role, unit)
            else:
                layout.tie(name, tied_to, unit)
        return layout

    def __reduce__(self):
        if self._alignment == 0:  # one that was parsed has an alignment
            return Layout._repeat, ([(e.name, e.dtype, e.shape, e.role, e.unit, e.tied_to) for e in self],)
        if not len(self):
            return Layout, (self._alignment,)
        image, size = ctypes.c_void_p(), ctypes.c_uint64()
        _check(lib.weightd_layout_image(self._handle, ctypes.byref(image), ctypes.byref(size)), "image")
        try:
            return Layout._parse, (ctypes.string_at(image, size.value), size.value)
        finally:
            _free(image)

    def add(self, name: str, dtype: str, shape: Iterable[int], role: str = "param",
            unit: str = "") -> int:
        """
        Appends a tensor and returns its index. `dtype` as in safetensors ("BF16"); `shape` outermost
        first; `role` "param" or "buffer". ValueError: a bound of these, or the name is taken.
        """
        dims = [operator.index(dim) for dim in shape]
        if any(not 0 <= dim < 2**64 for dim in dims) or role not in _ROLES:
            raise ValueError(f"{name!r}: shape {dims} or role {role!r} is none")
        r = lib.weightd_layout_add(self._handle, _abi.text(name), _dtype.code(dtype), len(dims),
                                   (ctypes.c_uint64 * len(dims))(*dims), _ROLES[role],
                                   _abi.text(unit))
        return self._added(r, name, f"{dtype} {dims}")

    def tie(self, name: str, to: int | str, unit: str = "") -> int:
        """Appends another name for the bytes of tensor `to`, an index or a name. ValueError."""
        index = self._index_of(to) if isinstance(to, str) else operator.index(to)
        if not 0 <= index < len(self):
            raise ValueError(f"{name!r} cannot be tied to {to!r}: no such tensor")
        r = lib.weightd_layout_tie(self._handle, _abi.text(name), index, _abi.text(unit))
        return self._added(r, name, f"tied to {to!r}")

    def _added(self, r: int, name: str, what: str) -> int:
        _check(r, f"{name!r}, {what}")
        if self._index is not None:
            self._index[name] = len(self) - 1
        return len(self) - 1

    def difference(self, other: Layout) -> str:
        """
        "" when both are of one model: when they have the same set of (name, type, shape), in any order. A name
        that only one of them has is no difference where it is tied to one that both have. Otherwise names
        what differs. Reads both tables.
        """
        text = ctypes.create_string_buffer(_TEXT_SIZE)
        r = lib.weightd_layout_compare(self._handle, other._handle, text, len(text))
        if r != -errno.EPROTOTYPE:
            _check(r, "comparison")
        return text.value.decode(errors="replace")

    def __len__(self) -> int:
        return lib.weightd_layout_n_tensors(self._handle)

    def __getitem__(self, index: int) -> Entry:
        """IndexError."""
        if not 0 <= index < len(self):
            raise IndexError(f"no tensor {index} in a layout of {len(self)}")
        row = _abi.tensor_row()
        _check(lib.weightd_layout_tensor(self._handle, index, ctypes.byref(row)), f"tensor {index}")
        return Entry(row)

    def __iter__(self) -> Iterator[Entry]:
        for index in range(len(self)):
            yield self[index]

    @property
    def nbytes(self) -> int:
        """Bytes of the flat buffer."""
        return lib.weightd_layout_n_bytes(self._handle)

    @property
    def hash(self) -> bytes:
        """The 16 bytes that identify the layout in weightd. Reads the whole table."""
        found = _abi.Hash()
        _check(lib.weightd_layout_hash(self._handle, found), "hash")
        return bytes(found)


def _check(r: int, what: str) -> None:
    if r == -errno.EEXIST:
        raise ValueError(f"{what}: the name is taken")
    if r in (-errno.EINVAL, -errno.EOVERFLOW):
        raise ValueError(f"{what}: out of bounds")
    if r < 0:
        raise error(-r, f"layout: {what}: {os.strerror(-r)}")

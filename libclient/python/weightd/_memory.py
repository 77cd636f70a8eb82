"""Memory that libweightd mapped, and how long it stays mapped."""
from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Any, Callable, NamedTuple

from . import _abi, _stream
from ._abi import lib
from ._connection import Connection, shared
from ._deferred import Deferred
from ._errors import Error, Removed, error
from ._owner import owner_uid

_HOST = 0  # of _abi.MEMORIES
_CHUNK = 16 << 20  # bytes that are copied at once, if a copy is needed


class Location(NamedTuple):
    """
    The place of bytes. `memory`: "host"; "cuda": an allocation of a GPU's; "cuda-ipc": one of the older kind.
    `device`: the GPU that maps it, by its number in this process, as in torch; None: host memory. `uuid` of
    the GPU, or of the part of one, that has it: "8e2a4d5c-..."; None: host memory. `data_offset`: the byte of the
    file at which the data begin, behind the header, if the version is a safetensors file; else 0.
    """

    memory: str
    device: int | None
    uuid: str | None
    data_offset: int = 0


class Kind(NamedTuple):
    """The functions of attachments, or of writers."""

    row: Callable[..., int]
    data: Callable[..., int | None]
    location: Callable[..., int]
    read: Callable[..., int]
    write: Callable[..., int] | None
    free: Callable[[ctypes.c_void_p], None]


BUFFER = Kind(lib.weightd_buffer_tensor, lib.weightd_buffer_data, lib.weightd_buffer_location, lib.weightd_buffer_read, None,
              lib.weightd_detach)
WRITER = Kind(lib.weightd_writer_tensor, lib.weightd_writer_data, lib.weightd_writer_location, lib.weightd_writer_read,
              lib.weightd_writer_write, lib.weightd_writer_free)


class Memory:
    """
    The flat range of one attachment or writer, with the C object that owns it. Each view holds the
    Memory, the Memory holds no view: the last one to go unmaps it, in whatever order and thread.

    handle    the C object
    address   of the first byte: one of a GPU's, where it is not in host memory
    size      bytes
    location  Location
    is_writers  whether it is a writer's, also after publish()
    writable  whether views made from now on may be written
    facts     of an attachment, as they were at the last look_again()
    followed  the version that all followers of a buffer have seen: see Buffer.swap()
    owner     the user that the buffer must belong to, by attach(); None: any

    Pickled, what is published is attached again where it is unpickled.
    """

    handle: ctypes.c_void_p | None = None  # until __init__ has one

    def __init__(self, connection: Connection, handle: ctypes.c_void_p, kind: Kind, writable: bool,
                 owner: int | str | None = None, *, facts: _abi.Attached | None = None):
        size, self.owner = ctypes.c_uint64(), owner
        self.connection, self.handle, self._kind, self.writable = connection, handle, kind, writable
        self.is_writers = kind is WRITER
        self._free = kind.free
        self.followed: int | None = None
        if kind is BUFFER:
            self.facts = facts or self.look_again()
            self.address, self.size, self.followed = self.facts.data or 0, self.facts.n_bytes, self.facts.version
        else:
            self.address = kind.data(handle, ctypes.byref(size)) or 0
            self.size = size.value
        self.locate()

    def look_again(self) -> _abi.Attached:
        """The facts of an attachment, of the version that it has now."""
        self.facts = _abi.Attached()
        lib.weightd_buffer_attached(self.handle, ctypes.byref(self.facts))  # cannot fail: it has a size
        return self.facts

    def __del__(self):
        if self.handle is not None and not self._is_parents():
            self.connection.free(self._free, self.handle)

    def __reduce__(self):
        return _attach_there, self._origin()

    def __deepcopy__(self, memo: dict) -> Memory:
        return attach_again(*self._origin())

    def __repr__(self) -> str:
        if self.is_writers:
            return "memory of a writer"
        name, version = lib.weightd_buffer_name(self.handle), lib.weightd_buffer_version(self.handle)
        return f"'{name.decode()}@{version}'"

    def _origin(self) -> tuple:
        """The arguments of attach_again() for these bytes, from any process of this machine. TypeError."""
        if self.is_writers:
            raise TypeError("a tensor of a writer cannot be copied or pickled: its memory is this process's "
                            "alone; publish() and attach there, or send read()")
        device = lib.weightd_buffer_device(self.handle).decode()
        on = self.location.device
        reader = None if on is None else self.connection.device_name(f"cuda:{on}")
        return (lib.weightd_buffer_name(self.handle).decode(), device,
                lib.weightd_buffer_version(self.handle),
                _abi.hash_at(lib.weightd_buffer_layout_hash(self.handle)),
                None if reader == device else reader, self.connection.socket(), self._digest(), self.owner)

    def _digest(self) -> bytes | None:
        return _abi.hash_at(lib.weightd_buffer_digest(self.handle))

    def _is_parents(self) -> bool:
        # In a child the bytes of a writer are not mapped: something else may be where they were. Nor is
        # what a parent has on a GPU: no child may use the CUDA of its parent.
        return (self.writable or self.is_on_gpu) and self.connection.is_parents()

    def row(self, index: int) -> _abi.Tensor:
        """Tensor number `index`, which the layout has; with texts that are valid while this version is mapped."""
        row = _abi.tensor_row()
        r = self._kind.row(self.handle, index, ctypes.byref(row))
        if r < 0:
            raise error(-r, f"{self!r}: tensor {index}: {os.strerror(-r)}")
        return row

    def locate(self) -> None:
        """Another version may begin its data at another offset."""
        if self._kind is BUFFER and self.facts.memory == _HOST:
            self.location = Location("host", None, None, self.facts.data_offset)
        else:
            self.location = _location(self._kind, self.handle)

    @property
    def is_on_gpu(self) -> bool:
        return self.location.device is not None

    def free_behind(self, stream: Any) -> None:
        """The last one to go does not wait for all streams, but for that one."""
        wanted = _stream.handle(stream)
        self._free = lambda handle: lib.weightd_detach_on(handle, wanted)

    def view(self, writable: bool | None = None) -> memoryview:
        """
        All bytes, format "B". `writable` overrides the flag, for consumers without support for read-only
        memory. A write to published bytes is a SIGSEGV then, as is every access to those of a GPU: they
        serve only to pass on the address.
        """
        pages = _pages(self.size).from_address(self.address)
        pages.memory = self  # type: ignore[attr-defined]
        view = memoryview(pages).cast("B")
        return view if (self.writable if writable is None else writable) else view.toreadonly()

    def read(self, offset: int, size: int, into: Any = None) -> Any:
        """Copies bytes to host memory: a new bytearray, or what `into` is, which has that size."""
        found = bytearray(size) if into is None else into
        view = _flat(found)
        if view.nbytes != size:
            raise ValueError(f"{size} bytes do not go into {view.nbytes}")
        if size:
            to = (ctypes.c_char * size).from_buffer(view)
            self.connection.call(self._kind.read, self.handle, offset, to, size)
        return found

    def write(self, offset: int, data: Any) -> None:
        """Copies bytes of host memory, of anything that lends them contiguous."""
        if self._kind.write is None or not self.writable:
            raise error(errno.EACCES, "a published version cannot be written")
        view = _flat(data)
        if not view.nbytes:
            return
        step = _CHUNK if view.readonly else view.nbytes
        for at in range(0, view.nbytes, step):
            piece = view[at:at + step]
            # ctypes borrows writable memory only.
            lent = bytes(piece) if view.readonly else (ctypes.c_char * piece.nbytes).from_buffer(piece)
            self.connection.call(self._kind.write, self.handle, offset + at, lent, piece.nbytes)


@functools.lru_cache(maxsize=64)
def _pages(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """A type: to make one takes longer than to attach."""
    return ctypes.c_ubyte * size


def _flat(data: Any) -> memoryview:
    """The bytes of what lends them. ValueError: not row by row, without gaps."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("the elements do not lie row by row, without gaps, as those of a tensor do; "
                         "numpy.ascontiguousarray() makes a copy that does")
    return view.cast("B") if view.nbytes else view


def attach(name: str, device: str, version: int, layout_hash: bytes | None, map_device: str | None,
           socket: str | None, require: Any = None, owner: int | str | None = None) -> Memory:
    """As the attach() that is public, without its wait; `version` 0: the newest; `require` as from texts()."""
    options = _abi.AttachOptions()  # a field that is not set costs nothing
    if device != "host":
        options.device = _abi.text(device)
    if version:
        options.version = version
    if layout_hash:
        options.layout_hash = _abi.Hash.from_buffer_copy(layout_hash)
    if map_device is not None:
        options.map_device = _abi.text(map_device)
    if require:
        options.require, options.n_require = require, len(require)
    if owner is not None:
        options.owner = owner_uid(owner)
    connection = shared(socket, connect=False)
    handle, facts = connection.attach(_abi.text(name), options)
    return Memory(connection, handle, BUFFER, writable=False, owner=owner, facts=facts)


def attach_again(name: str, device: str, version: int, layout_hash: bytes, map_device: str | None,
                 socket: str, digest: bytes | None, owner: int | str | None) -> Memory:
    """
    attach() of the bytes that another attachment had. A buffer that was made again counts its versions from 1 too:
    Removed, when the digest is another. A version without a digest is compared by the layout alone.
    """
    memory = attach(name, device, version, layout_hash, map_device, socket, owner=owner)
    if digest is not None and memory._digest() != digest:
        raise Removed(errno.ESTALE, f"'{name}@{version}' on {device} was removed, and the one that is there now has "
                                    "other bytes; attach() that one by its name")
    return memory


def _attach_there(*origin) -> Memory | Deferred:
    try:
        return attach_again(*origin)
    except Error as e:
        return Deferred(e)


def _location(kind: Kind, handle: ctypes.c_void_p) -> Location:
    found = _abi.Location()
    r = kind.location(handle, ctypes.byref(found))
    if r < 0:
        raise error(-r, f"the location of the memory cannot be determined: {os.strerror(-r)}")
    if found.device < 0:
        return Location(_abi.MEMORIES[found.memory], None, None, found.data_offset)
    digits = bytes(found.uuid).hex()
    uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return Location(_abi.MEMORIES[found.memory], found.device, uuid)

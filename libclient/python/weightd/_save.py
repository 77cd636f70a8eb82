"""Versions written to directories and other devices, and comparisons of versions and files."""
from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Callable, Iterator, NamedTuple

from . import _abi
from ._abi import lib, path_bytes
from ._buffer import Buffer
from ._connection import Connection
from ._errors import Error, error
from ._owner import owner_uid
from ._progress import reporter
from ._target import target
from ._tensor import Entry


class SaveResult(NamedTuple):
    """A finished save: bytes of tensors, tensors, files of any kind, and nanoseconds."""

    n_bytes: int
    n_tensors: int
    n_files: int
    elapsed_ns: int


class CopyResult(NamedTuple):
    """A finished copy: the new version, bytes of tensors, tensors, nanoseconds, and the digest, which is that of the source."""

    version: int
    n_bytes: int
    n_tensors: int
    elapsed_ns: int
    digest: bytes


class Difference(NamedTuple):
    """
    A tensor that differs. `kind`: "only-first", "only-second", "type", "shape" or "bytes"; `first` and `second`: its
    entries, None where it is missing. For "bytes": `n_different` of `n_elements` elements differ in their bits (of a
    block type of GGUF: blocks), `max_abs` is the largest difference that is finite, and `n_unmeasured` of them have none,
    as NaN; `max_abs` is None if all of them are like that.
    """

    name: str
    kind: str
    first: Entry | None
    second: Entry | None
    n_elements: int
    n_different: int
    n_unmeasured: int
    max_abs: float | None


def save(source: Buffer | str, directory: str | os.PathLike, shard_size: int = 0, replace: bool = False,
         files: bool = True, progress: Callable[[str, int, int], object] | None = None,
         version: int | None = None, device: str = "host", socket: str | None = None,
         owner: int | str | None = None) -> SaveResult:
    """
    Writes a version to a directory: safetensors, and the files of the version. `source` is an attached Buffer, or a name as
    for attach(), which has the last four arguments. The directory appears at once, with all of it on the disk; it must
    not exist or be empty. After a failure nothing of it is left, and what was there before is unchanged.

    shard_size  bytes of tensors in a weights file, at most; 0: 5,000,000,000
    replace     replace a directory that has weights, with all that is in it
    files       also the files of the version
    progress    called as progress(phase, done, total) at most every 50 ms in this thread, phase "write" or "commit"; an
                exception in it cancels the save and is raised here

    Error: ENOTEMPTY, ENOSPC and other errors of files. NotFound, NotPublished, Denied, Disconnected.
    """
    if not 0 <= shard_size < 1 << 64:
        raise ValueError(f"shard_size is {shard_size}; it must be a number of bytes, or 0")
    raised: list[BaseException] = []
    report = reporter(progress, raised)

    options = _abi.SaveOptions(shard_size=shard_size, replace=replace, no_files=not files, progress=report)
    result = _abi.SaveResult()
    with _attached(source, version, device, socket, owner) as (connection, handle):
        try:
            connection.call(lib.weightd_save, handle, path_bytes(directory), ctypes.byref(options), ctypes.byref(result),
                            again=False)
        except Error:
            if raised:
                raise raised[0] from None
            raise
    return SaveResult(result.n_bytes, result.n_tensors, result.n_files, result.elapsed_ns)


def copy(source: Buffer | str, to: str = "host", name: str | None = None, mode: int = 0, files: bool = True,
         progress: Callable[[str, int, int], object] | None = None, version: int | None = None, device: str = "host",
         socket: str | None = None, owner: int | str | None = None) -> CopyResult:
    """
    Publishes a copy of a version on another device, or under another name: host to GPU, GPU to GPU, GPU to host. `source` is
    an attached Buffer, or a name as for attach(), which has the last four arguments. The copy has the layout, digest, files
    and attributes of the source, and belongs to this user. After a failure nothing of it is left.

    to        "host" or a GPU, as in create()
    name      of the buffer to publish in; None: that of the source
    mode      permission bits of a new buffer; 0: those of the source
    files     also the files of the version
    progress  called as progress(phase, done, total) at most every 50 ms in this thread, phase "memory", "copy", "verify" or
              "publish"; an exception in it cancels the copy and is raised here

    Error: EINVAL if the copy would be the source itself, EILSEQ if its bytes differ from its digest; as for create().
    NotFound, NotPublished, Denied, Disconnected.
    """
    raised: list[BaseException] = []
    report = reporter(progress, raised)
    result = _abi.CopyResult()
    with _attached(source, version, device, socket, owner) as (connection, handle):
        create = _abi.CreateOptions(device=_abi.text(connection.device_name(to)), mode=mode)
        options = _abi.CopyOptions(create=ctypes.pointer(create), no_files=not files, progress=report)
        try:
            connection.call(lib.weightd_copy, handle, None if name is None else _abi.text(name), ctypes.byref(options),
                            ctypes.byref(result), again=False)
        except Error:
            if raised:
                raise raised[0] from None
            raise
    return CopyResult(result.version, result.n_bytes, result.n_tensors, result.elapsed_ns, bytes(result.digest))


def diff(first: Buffer | str | os.PathLike, second: Buffer | str | os.PathLike, device: str = "host",
         socket: str | None = None, owner: int | str | None = None) -> list[Difference]:
    """
    The tensors that differ, compared by name: types, shapes and bytes. A side is an attached Buffer, a name as for attach()
    ("m@3"), or a path, which must be an os.PathLike such as pathlib.Path: a safetensors file, index or directory. A
    name that only one of them has is no difference if it is tied there to a name of both. `owner` of the buffers that are
    named, as in attach(). Reads all bytes.

    NotFound, NotPublished, Denied, Disconnected, Error.
    """
    found: list[Difference] = []
    raised: list[BaseException] = []

    @_abi.DiffFunction
    def note(_, difference) -> int:
        try:
            found.append(_difference(difference[0]))
        except BaseException as e:
            raised.append(e)
        return bool(raised)

    with contextlib.ExitStack() as stack:
        sides = [_side(stack, given, device, socket, owner) for given in (first, second)]
        connection = next((c for c, _ in sides if c is not None), None) or _unconnected(stack)
        try:
            connection.call(lib.weightd_diff, connection.handle, *(ctypes.byref(side) for _, side in sides), note, None,
                            None, again=False)
        except Error:
            if raised:
                raise raised[0] from None
            raise
    return found


class Unconnected:
    """A connection object of the library for comparisons of paths, which need no server."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        if lib.weightd_new(ctypes.byref(self.handle)) < 0:
            raise MemoryError

    def call(self, function, *args, again: bool = True) -> int:
        r = function(*args)
        if r < 0:
            raise error(-r, lib.weightd_error(self.handle).decode(errors="replace"))
        return r

    def close(self) -> None:
        lib.weightd_close(self.handle)


def _unconnected(stack: contextlib.ExitStack) -> Unconnected:
    return stack.enter_context(contextlib.closing(Unconnected()))


def _side(stack: contextlib.ExitStack, given: Buffer | str | os.PathLike, device: str,
          socket: str | None, owner: int | str | None) -> tuple[Connection | None, _abi.DiffSide]:
    if isinstance(given, os.PathLike):
        return None, _abi.DiffSide(path=path_bytes(given))
    connection, handle = stack.enter_context(_attached(given, None, device, socket, owner))
    return connection, _abi.DiffSide(buffer=handle)


@contextlib.contextmanager
def _attached(source: Buffer | str, version: int | None, device: str,
              socket: str | None, owner: int | str | None) -> Iterator[tuple[Connection, ctypes.c_void_p]]:
    """The version on a connection of its own, which may be busy for long."""
    if isinstance(source, Buffer):
        name, device, number = source.name, source.device, source.version
        socket = source._open().connection.socket()
        owner = source.owner if owner is None else owner  # its name may be another user's by now
    else:
        if not isinstance(source, str):
            raise TypeError(f"a version is a Buffer or the name of one, not {type(source).__name__}")
        name, number = target(source, version)
    connection, handle = Connection(socket), ctypes.c_void_p()
    options = _abi.AttachOptions(device=_abi.text(device), version=number, owner=owner_uid(owner))
    connection.call(lib.weightd_attach, connection.handle, _abi.text(name), ctypes.byref(options), ctypes.byref(handle))
    try:
        yield connection, handle
    finally:
        connection.free(lib.weightd_detach, handle)


def _difference(row: _abi.Difference) -> Difference:
    first, second = (Entry(t[0]) if t else None for t in (row.first, row.second))
    measured = row.n_different > row.n_unmeasured
    return Difference((first or second).name, lib.weightd_diff_name(row.kind).decode(), first, second, row.n_elements,
                      row.n_different, row.n_unmeasured, row.max_abs if measured else None)

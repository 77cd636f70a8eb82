"""The small files and the attributes of a version, beside its weights."""
from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping
from typing import Any, Iterator

from . import _abi
from ._abi import lib
from ._connection import Connection, shared
from ._errors import NotPublished, error
from ._memory import attach
from ._target import target


class Files(Mapping):
    """
    The files beside the weights of a version: a mapping of paths, as in a model directory ("config.json",
    "tokenizer/vocab.txt"), to bytes. From files(), Buffer.files and Writer.files. Does not change.

    attributes  dict of short texts by name: "architecture", "dtype", ...
    """

    def __init__(self, handle: ctypes.c_void_p):
        self._handle = handle
        file = _abi.File()
        self._paths = []
        for i in range(lib.weightd_files_count(handle)):
            lib.weightd_files_file(handle, i, ctypes.byref(file))
            self._paths.append(file.path.decode())
        self.attributes: dict[str, str] = dict(_attributes(handle))

    def __del__(self):
        handle, self._handle = getattr(self, "_handle", None), None
        lib.weightd_files_free(handle)

    def __reduce__(self):
        return _made, (dict(self), self.attributes)

    def __getitem__(self, path: str) -> bytes:
        file = _abi.File()
        if not isinstance(path, str) or lib.weightd_files_find(self._handle, _abi.text(path),
                                                               ctypes.byref(file)) < 0:
            raise KeyError(path)
        return ctypes.string_at(file.data, file.n_bytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"<Files {', '.join(self._paths) or 'none'}>"


def _attributes(handle: ctypes.c_void_p) -> Iterator[tuple[str, str]]:
    key, value = ctypes.c_char_p(), ctypes.c_char_p()
    for i in range(lib.weightd_files_n_attributes(handle)):
        lib.weightd_files_attribute(handle, i, ctypes.byref(key), ctypes.byref(value))
        yield (key.value or b"").decode(), (value.value or b"").decode()


def _made(files: Mapping[str, Any], attributes: Mapping[str, Any]) -> Files:
    """A set of these: texts become UTF-8. ValueError: a path or a name that cannot be one, or too much."""
    handle = ctypes.c_void_p()
    r = lib.weightd_files_new(ctypes.byref(handle))
    if r < 0:
        raise error(-r, os.strerror(-r))
    try:
        for path, data in files.items():
            lent = data.encode() if isinstance(data, str) else bytes(data)
            _check(handle, lib.weightd_files_add(handle, _abi.text(path), lent, len(lent)))
        for key, value in attributes.items():
            _check(handle, lib.weightd_files_set_attribute(handle, _abi.text(key), _abi.text(str(value))))
    except BaseException:
        lib.weightd_files_free(handle)
        raise
    return Files(handle)


def _check(handle: ctypes.c_void_p, r: int) -> None:
    if r in (-errno.EINVAL, -errno.EEXIST, -errno.EFBIG):
        raise ValueError(lib.weightd_files_error(handle).decode())
    if r < 0:
        raise error(-r, os.strerror(-r))


def get(connection: Connection, name: str, device: str, version: int) -> Files:
    """Those of a version; none if it has none."""
    handle = ctypes.c_void_p()
    try:
        connection.call(lib.weightd_files_get, connection.handle, _abi.text(name), _abi.text(device),
                        version, ctypes.byref(handle))
    except NotPublished:
        if not version:
            raise
        return _made({}, {})
    return Files(handle)


def of_writer(connection: Connection, writer: ctypes.c_void_p) -> Files:
    """Those that it publishes."""
    handle = ctypes.c_void_p()
    connection.call(lib.weightd_writer_get_files, writer, ctypes.byref(handle), again=False)
    return Files(handle)


def set_of_writer(connection: Connection, writer: ctypes.c_void_p, files: Mapping[str, Any],
                  attributes: Mapping[str, Any]) -> None:
    made = _made(files, attributes)
    connection.call(lib.weightd_writer_set_files, writer, made._handle, again=False)


def texts(attributes: Mapping[str, Any] | None) -> Any:
    """An array of "key=value" for C, and None for none. ValueError, TypeError."""
    if attributes is not None and not isinstance(attributes, Mapping):
        raise TypeError(f"attributes are a mapping of names to values, not {type(attributes).__name__}")
    wrong = [key for key in attributes or {} if not key or "=" in key]
    if wrong:
        raise ValueError(f"{wrong[0]!r} cannot be the name of an attribute")
    found = [_abi.text(f"{key}={value}") for key, value in (attributes or {}).items()]
    return (ctypes.c_char_p * len(found))(*found) if found else None


def files(name: str, device: str = "host", version: int | None = None, socket: str | None = None,
          owner: int | str | None = None) -> Files:
    """
    The files and attributes of a version of `name`, or of the one that "name@3" means, without attaching it; `version`
    None: the current one. `owner` as in attach(), which the version is then, meanwhile. NotFound, NotPublished: no version, or one without files; Denied, Error: also weightd is
    older than files.
    """
    name, version = target(name, version)
    if owner is None:
        return get(shared(socket), name, device, version)
    # Its lease makes sure that the files are those of this buffer, and of no later one with its name.
    memory = attach(name, device, version, None, None, socket, owner=owner)
    return get(memory.connection, name, device, lib.weightd_buffer_version(memory.handle))

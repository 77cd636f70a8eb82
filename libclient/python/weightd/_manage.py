"""What is there, and removing it."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, NamedTuple

from . import _abi
from ._abi import lib
from ._connection import shared


class BufferInfo(NamedTuple):
    """
    A buffer. Sizes in bytes; `n_bytes` of the newest version, `slot_bytes` of all, `huge_bytes` of them
    in huge pages; `published_ns` since 1970. `version`, `published_ns` 0: nothing published; `digest`
    None: published without. `state`: "empty" or "ready"; `writing`: the next version is being written.
    """

    name: str
    device: str
    state: str
    writing: bool
    uid: int
    gid: int
    mode: int
    keep: int
    n_versions: int
    n_readers: int
    version: int
    n_tensors: int
    n_bytes: int
    slot_bytes: int
    huge_bytes: int
    published_ns: int
    layout_hash: bytes
    digest: bytes | None


class VersionInfo(NamedTuple):
    """A version of a buffer, as in BufferInfo. `uid` published it; `current`: it is the newest."""

    version: int
    n_tensors: int
    n_bytes: int
    slot_bytes: int
    huge_bytes: int
    published_ns: int
    n_readers: int
    uid: int
    current: bool
    layout_hash: bytes
    digest: bytes | None


class ServerInfo(NamedTuple):
    """The server. `instance` is new at each start; `n_bytes` in slots, of all versions."""

    instance: int
    uptime_ns: int
    n_buffers: int
    n_sessions: int
    n_leases: int
    n_bytes: int
    pid: int
    release: str


def ls(name: str | None = None, socket: str | None = None) -> list[BufferInfo]:
    """All buffers, or those called `name`, ordered by name and device."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list, connection.handle, None if name is None else _abi.text(name),
                    ctypes.byref(found))
    return _take(found, lib.weightd_list_buffer, BufferInfo)


def versions(name: str, device: str = "host", socket: str | None = None) -> list[VersionInfo]:
    """The versions of a buffer that exist, oldest first. NotFound."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_versions, connection.handle, _abi.text(name), _abi.text(device),
                    ctypes.byref(found))
    return _take(found, lib.weightd_list_version, VersionInfo)


def drop(name: str, version: int | None = None, device: str = "host",
         socket: str | None = None) -> None:
    """
    Removes a buffer, or one old version of it. Who has it attached keeps reading it. NotFound, Denied;
    Error with EBUSY for the newest version.
    """
    connection = shared(socket)
    connection.call(lib.weightd_drop, connection.handle, _abi.text(name), _abi.text(device),
                    version or 0)


def ping(socket: str | None = None) -> ServerInfo:
    """Asks the server who it is. Disconnected."""
    connection, server = shared(socket), _abi.Server()
    connection.call(lib.weightd_ping, connection.handle, ctypes.byref(server))
    return _named(ServerInfo, server)


def _take(found: ctypes.c_void_p, get: Callable, kind: Any) -> list:
    try:
        return [_named(kind, get(found, i).contents) for i in range(lib.weightd_list_count(found))]
    finally:
        lib.weightd_list_free(found)


def _named(kind: Any, struct: ctypes.Structure) -> Any:
    return kind(**{field: _plain(field, getattr(struct, field)) for field in kind._fields})


def _plain(field: str, value):
    if field == "state":
        return _abi.STATES.get(value, str(value))
    if field == "digest" and not any(value):
        return None
    if isinstance(value, bytes):
        return value.decode()
    return bytes(value) if isinstance(value, ctypes.Array) else value

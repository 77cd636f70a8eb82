"""Lists of buffers and versions, and changes to them."""
from __future__ import annotations

import ctypes
from typing import NamedTuple

from . import _abi
from ._abi import lib
from ._connection import shared
from ._rows import named, take
from ._target import target


class BufferInfo(NamedTuple):
    """
    A buffer. Sizes in bytes; `n_bytes` of the current version, `slot_bytes` of all, `huge_bytes` of them
    in huge pages; `published_ns` since 1970. `version`, `published_ns` 0: nothing published; `digest`
    None: published without. `state`: "empty", "ready", "updating" or "torn"; `writing`: the next version
    is being written. `newest` is greater than `version` after a rollback. `memory`: "host", "cuda" or "cuda-ipc", as in
    Location.
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
    newest: int
    exclusive: bool
    reusable: bool
    memory: str


class VersionInfo(NamedTuple):
    """
    A version of a buffer, as in BufferInfo. `uid` published it, from process `pid`; `current`: it is what
    attach() returns. `end`: why it is no more: "keep" (there were more than the buffer keeps), "memory"
    (it was needed), "dropped", "rewritten" (in place, or replaced), "lost" (with the server), and
    `ended_ns` since 1970; "" and 0 while it is there. `image`: it is a file, see create(); `has_files`: it has files
    beside the weights.
    """

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
    pid: int
    end: str
    ended_ns: int
    image: bool
    has_files: bool


class DeviceInfo(NamedTuple):
    """
    A device for buffers. `device`: "host", "cuda:GPU-<uuid>" or "cuda:MIG-<uuid>"; "cuda", with `why`: there is no
    GPU. `why` is "", or the reason why it cannot be used. Bytes: `total`, `free` (for all processes), `ours` (in slots)
    and `granularity`, of which allocations are multiples. `index`: the number for nvidia-smi; `driver`: the newest
    CUDA it supports, 13000 for 13.0; `capability`: 90 for 9.0. `vmm`: buffers can be made there, `ipc`: those of
    create(handle="ipc"), `fabric`: other nodes reach it over NVLink, `rdma`: network cards reach it, `mig`: it is a
    part of a GPU.
    """

    device: str
    name: str
    why: str
    total: int
    free: int
    ours: int
    granularity: int
    index: int
    driver: int
    capability: int
    vmm: bool
    ipc: bool
    fabric: bool
    rdma: bool
    mig: bool


class ServerInfo(NamedTuple):
    """
    The server. `instance` is new at each start; `n_bytes` in slots, of all versions; `program` is its file, "" where this
    process cannot see that.
    """

    instance: int
    uptime_ns: int
    n_buffers: int
    n_sessions: int
    n_leases: int
    n_bytes: int
    pid: int
    release: str
    program: str


def ls(name: str | None = None, socket: str | None = None) -> list[BufferInfo]:
    """All buffers, or those called `name`, ordered by name and device."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list, connection.handle, None if name is None else _abi.text(name),
                    ctypes.byref(found))
    return take(found, lib.weightd_list_buffer, BufferInfo)


def devices(socket: str | None = None) -> list[DeviceInfo]:
    """The host, then the GPUs; if GPUs cannot be used, one entry with the reason. Blocks while weightd asks the driver."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_devices, connection.handle, True, ctypes.byref(found))
    return take(found, lib.weightd_list_device, DeviceInfo)


def versions(name: str, device: str = "host", socket: str | None = None) -> list[VersionInfo]:
    """The versions of a buffer that exist, oldest first. NotFound."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_versions, connection.handle, _abi.text(name), _abi.text(device),
                    ctypes.byref(found))
    return take(found, lib.weightd_list_version, VersionInfo)


def history(name: str, device: str = "host", socket: str | None = None) -> list[VersionInfo]:
    """The versions that exist and those that did, oldest first: the last 64. NotFound."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_history, connection.handle, _abi.text(name), _abi.text(device),
                    ctypes.byref(found))
    return take(found, lib.weightd_list_version, VersionInfo)


def drop(name: str, version: int | None = None, device: str = "host",
         socket: str | None = None) -> None:
    """
    Removes a buffer, or one old version of it, `version` or that of "name@3". Processes that have it attached keep
    reading it. NotFound, Denied; Error with EBUSY for the newest version.
    """
    name, version = target(name, version)
    connection = shared(socket)
    connection.call(lib.weightd_drop, connection.handle, _abi.text(name), _abi.text(device), version)


def rollback(name: str, version: int | None = None, device: str = "host",
             socket: str | None = None) -> int:
    """
    Makes `version` (also as "name@3"), which the buffer still keeps, the current one (None: the newest that is older
    than the current one) and returns its number. The next publish is newer than all. NotFound, Denied.
    """
    name, version = target(name, version)
    connection, current = shared(socket), ctypes.c_uint64()
    connection.call(lib.weightd_rollback, connection.handle, _abi.text(name), _abi.text(device),
                    version, ctypes.byref(current))
    return current.value


def set_access(name: str, mode: int | None = None, uid: int | None = None, gid: int | None = None,
               device: str = "host", socket: str | None = None) -> None:
    """
    Changes the permission bits, owner and group of a buffer; None: unchanged. The owner may change mode and
    gid (to a group of the owner), administrators all three. Applies from the next attach on. NotFound, Denied.
    """
    given = [-1 if value is None else _checked(value) for value in (mode, uid, gid)]
    connection = shared(socket)
    connection.call(lib.weightd_set_access, connection.handle, _abi.text(name), _abi.text(device),
                    *given)


def _checked(value: int) -> int:
    if not 0 <= value < 2**32 - 1:
        raise ValueError(f"{value} is no mode and no id")
    return value


def ping(socket: str | None = None) -> ServerInfo:
    """Asks the server for its identity. Disconnected."""
    connection, server = shared(socket), _abi.Server()
    connection.call(lib.weightd_ping, connection.handle, ctypes.byref(server))
    return named(ServerInfo, server)

"""Use of the server's memory."""
from __future__ import annotations

import ctypes
from typing import NamedTuple

from . import _abi
from ._abi import lib
from ._connection import shared
from ._rows import named, take


class Stat(NamedTuple):
    """
    The memory of the server as a whole, in bytes. An engine may size its caches by `headroom`: what the
    server would still hand out, now.

    slot_bytes     in slots, in any state; of them:
    kept_bytes     in old versions, which are freed as soon as a create needs the room
    leaving_bytes  in dropped versions with readers
    orphan_bytes   in dropped versions that are still mapped, without an attachment, by the kernel's count of
                   references
    layout_bytes   of tensor tables
    n_quarantined  descriptors that the service manager returned and that match no buffer
    store_used     descriptors that the service manager keeps; `store_max` 0: it keeps none, and the weights
                   end with the server
    """

    headroom: int
    slot_bytes: int
    kept_bytes: int
    leaving_bytes: int
    orphan_bytes: int
    layout_bytes: int
    n_quarantined: int
    store_used: int
    store_max: int


class SlotInfo(NamedTuple):
    """
    The memory of one version. `name` of the buffer, also after it was `removed`; `version` 0: not published.
    `n_bytes` of the slot, `allocated` of them with memory behind them, `huge_bytes` of them in huge pages
    when they were made. `state`: "writing", "current", "kept", "leaving" (dropped, and read), "orphan"
    (dropped, and mapped without an attachment). `uid` is charged.
    """

    name: str
    device: str
    slot: int
    version: int
    n_bytes: int
    allocated: int
    huge_bytes: int
    state: str
    n_readers: int
    uid: int
    removed: bool


class UserInfo(NamedTuple):
    """Holdings of a user, and their limits: `max_` None is no limit. `n_bytes` of slots and layouts."""

    uid: int
    n_connections: int
    max_connections: int | None
    n_readers: int
    max_readers: int | None
    n_buffers: int
    max_buffers: int | None
    n_versions: int
    max_versions: int | None
    n_bytes: int
    max_bytes: int | None
    n_descriptors: int
    max_descriptors: int | None


class HolderInfo(NamedTuple):
    """
    A user charged for memory that exists only because of readers: `n_bytes` of `n_versions`. `over` the limit, the
    user gets no further attachment. Buffer, device and version are of the first of them; `pid` and `since_ns` of its
    attachment, 0 for memory that is mapped without one.
    """

    uid: int
    n_versions: int
    n_bytes: int
    max_bytes: int | None
    over: bool
    name: str
    device: str
    version: int
    pid: int
    since_ns: int


class CostInfo(NamedTuple):
    """
    Costs of a user to the server, since the server has known the user; it forgets one without connections in favour
    of others.

    loop_ns         time of the thread that answers requests
    worker_ns       time of the threads that check layouts, and make and free memory
    longest_ns      the longest time that one connection was served without a break
    held_bytes      memory that exists only because of the user's attachments, now
    checking_bytes  mapped for layouts that are being checked, now
    n_refused       requests and connections, for a limit
    answered        requests answered at once, by the time from their read to the answer: answered[i] of at most
                    span_ns << i that are in no member before, and in the last one all others
    """

    uid: int
    n_requests: int
    loop_ns: int
    worker_ns: int
    longest_ns: int
    held_bytes: int
    checking_bytes: int
    n_refused: int
    span_ns: int
    answered: tuple[int, ...]


class Latency(NamedTuple):
    """
    Durations since the server began.

    counts  counts[i] of at most 4**i microseconds that are in no member before, and in the last one all others
    """

    sum_ns: int
    counts: tuple[int, ...]


class Health(NamedTuple):
    """
    The state of the server, and of what it depends on. Memory is in bytes.

    started_ns       since 1970
    memory           of the machine, or as much as the cgroups of the server allow
    reserve          left to other programs
    headroom         as in `Stat`
    limit            file of the cgroup that limits `headroom`; "": the free memory of the machine does
    max_descriptors  that the server may have open; None: any number
    refused          requests and connections, by reason
    loop             rounds of the server's loop; no client waits for less
    workers          steps of the other threads, by their work
    keeper           what keeps the weights over a restart of the server: "manager" (systemd), "parent" (weightd
                     --keeper), "none", or "gone": it ended, and nothing can be created
    admin            this user may administer buffers of all users
    """

    started_ns: int
    memory: int
    reserve: int
    headroom: int
    limit: str
    max_descriptors: int | None
    refused: dict[str, int]
    loop: Latency
    workers: dict[str, Latency]
    keeper: str
    admin: bool


KEEPERS = ("none", "manager", "parent", "gone")
REFUSALS = ("permission", "limit", "memory", "descriptors", "keeper")
WORKERS = ("check", "free", "seal", "wake")


def stat(socket: str | None = None) -> Stat:
    """The memory of the server as a whole."""
    connection, found = shared(socket), _abi.Stat()
    connection.call(lib.weightd_stat, connection.handle, ctypes.byref(found))
    return named(Stat, found)


def health(socket: str | None = None) -> Health:
    """The state of the server. OSError (EOPNOTSUPP) with an earlier one."""
    connection, found = shared(socket), _abi.Health()
    connection.call(lib.weightd_health, connection.handle, ctypes.byref(found))
    known = {field: getattr(found, field) for field in Health._fields}
    return Health(**known | {
        "limit": found.limit.decode(),
        "max_descriptors": None if found.max_descriptors == _abi.UNLIMITED else found.max_descriptors,
        "refused": dict(zip(REFUSALS, found.refused)),
        "loop": _latency(found.loop),
        "workers": dict(zip(WORKERS, map(_latency, found.workers))),
        "keeper": dict(enumerate(KEEPERS)).get(found.keeper, str(found.keeper)),
    })


def _latency(found: _abi.Latency) -> Latency:
    return Latency(found.sum_ns, tuple(found.counts))


def slots(name: str | None = None, socket: str | None = None) -> list[SlotInfo]:
    """The slots of all buffers that the caller may read or owns, or of those called `name`."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_slots, connection.handle,
                    None if name is None else _abi.text(name), ctypes.byref(found))
    return take(found, lib.weightd_list_slot, SlotInfo)


def users(socket: str | None = None) -> list[UserInfo]:
    """Charges of the caller; of all users, for administrators."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_users, connection.handle, ctypes.byref(found))
    return take(found, lib.weightd_list_user, UserInfo)


def holders(socket: str | None = None) -> list[HolderInfo]:
    """Users charged as readers; without administration, only the caller's."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_holders, connection.handle, ctypes.byref(found))
    return take(found, lib.weightd_list_holder, HolderInfo)


def costs(socket: str | None = None) -> list[CostInfo]:
    """Costs of the caller; of all users, for administrators. Empty with an earlier server."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_costs, connection.handle, ctypes.byref(found))
    return take(found, lib.weightd_list_cost, CostInfo)

"""Process groups of torch.distributed as engines: the bytes that ranks of several nodes exchange."""
from __future__ import annotations

import contextlib
import ctypes
import datetime
import errno
import math
import signal
import threading
import time
from typing import Any, Callable, Iterator, NamedTuple

import torch
import torch.distributed

from .._errors import Error, error
from . import _abi
from ._mesh import Mesh

CHUNK = 16 << 20  # bytes of a message: what is not in one piece of memory is copied into one of that size
_TAG = 0x7764  # of messages, so that others of the group, with 0 in general, are none of them


def engine_of(group: torch.distributed.ProcessGroup, mesh: Mesh) -> _abi.Engine:
    """
    An engine over a group, which is kept while the engine is: of all ranks of the mesh, by their numbers, or of those
    with this rank's local_rank, by their nodes. ValueError: another group, or one that cannot send memory of the CPU.
    """
    peers = _peers(group, mesh)
    return _abi.Engine(name=b"the process group of torch.distributed", exchange=_abi.EXCHANGE(_exchange(group, peers)))


def refuse_kind(engine: Any) -> None:
    """TypeError: no process group."""
    if engine is not None and not (torch.distributed.is_available()
                                   and isinstance(engine, torch.distributed.ProcessGroup)):
        raise TypeError(f"engine is a {type(engine).__name__}, and no process group of torch.distributed; pass "
                        "engine=torch.distributed.group.WORLD, or leave it out for Gloo")


def _peers(group: torch.distributed.ProcessGroup, mesh: Mesh) -> list[int]:
    """The ranks in the group, by node."""
    if not _has_cpu(group):
        raise ValueError("the process group sends no memory of the CPU (its backend is "
                         f"{torch.distributed.get_backend(group)}); make one with "
                         "torch.distributed.new_group(backend=\"gloo\")")
    line = [node * mesh.local_size + mesh.local_rank for node in range(mesh.n_nodes)]
    if group.size() == mesh.size:
        _refuse_rank(group, mesh.rank, "rank of the mesh")
        return line
    if group.size() == mesh.n_nodes:
        _refuse_rank(group, mesh.node, "node of this rank")
        members = torch.distributed.get_process_group_ranks(group)
        if torch.distributed.get_world_size() == mesh.size and members != line:
            raise ValueError(f"the process group has ranks {members}, and those of local rank {mesh.local_rank} are "
                             f"{line}")
        return list(range(mesh.n_nodes))
    raise ValueError(f"the process group has {group.size()} ranks; it must have all {mesh.size} of the mesh, or the "
                     f"{mesh.n_nodes} of local rank {mesh.local_rank}, one of each machine")


def _has_cpu(group: torch.distributed.ProcessGroup) -> bool:
    try:
        group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return False
    return True


def _refuse_rank(group: torch.distributed.ProcessGroup, expected: int, what: str) -> None:
    if group.rank() != expected:
        raise ValueError(f"this process is rank {group.rank()} of the process group, and {expected} is the {what}: "
                         "they must be the same number")


# --- The callback of the library ---------------------------------------------------------------------


def _exchange(group: torch.distributed.ProcessGroup, peers: list[int]) -> Callable[..., int]:
    """
    struct weightd_engine.exchange(). The library calls it without the lock of the interpreter. ctypes takes that lock,
    and torch releases it while it waits, so that another thread of this rank runs meanwhile. In the main thread: inside
    held_signals(), as ctypes returns 0 for a callback that raises.
    """
    def exchange(_, transfers, n: int, deadline_ms: int, ret_why: int, why_size: int) -> int:
        try:
            _move(group, [_stream(transfers[i], peers) for i in range(n)], deadline_ms)
        except BaseException as e:
            _write(str(e) or type(e).__name__, ret_why, why_size)
            return -(e.errno if isinstance(e, Error) else errno.EIO)
        return 0

    return exchange


@contextlib.contextmanager
def held_signals() -> Iterator[None]:
    """
    A block after which handlers of signals run, and not inside it: they may raise in any line of Python, and would
    leave an exchange half done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in that one alone
        return
    handlers, seen = {}, []
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                handlers[number] = signal.getsignal(number)
                signal.signal(number, lambda *given: seen.append(given))
        yield
    finally:
        # SIGINT at the end: its handler raises.
        for number in sorted(handlers, key=lambda number: number == signal.SIGINT):
            signal.signal(number, handlers[number])
    for number, frame in seen:
        handlers[number](number, frame)


def _write(sentence: str, to: int, size: int) -> None:
    """As much of it as there is room for, in whole characters."""
    found = sentence.encode()[:size - 1].decode(errors="ignore").encode() + b"\0"
    ctypes.memmove(to, found, len(found))


# --- Bytes ---------------------------------------------------------------------------------------------


class Stream(NamedTuple):
    """
    The bytes that go to and come from a rank of the group.

    send, receive  pieces of memory, as bytes
    """

    peer: int
    send: list[torch.Tensor]
    receive: list[torch.Tensor]


def _stream(transfer: _abi.Transfer, peers: list[int]) -> Stream:
    return Stream(peers[transfer.node], _memory(transfer.send, transfer.n_send),
                  _memory(transfer.receive, transfer.n_receive))


def _memory(segments, n: int) -> list[torch.Tensor]:
    return [torch.frombuffer((ctypes.c_ubyte * segments[i].size).from_address(segments[i].data), dtype=torch.uint8)
            for i in range(n) if segments[i].size]


def chunks(pieces: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """
    The parts of each message, of CHUNK bytes but for the last one. Both ends cut alike: the bytes are the same
    together.
    """
    parts, left = [], CHUNK
    for piece in pieces:
        while len(piece):
            parts.append(piece[:left])
            piece, left = piece[left:], left - len(parts[-1])
            if not left:
                yield parts
                parts, left = [], CHUNK
    if parts:
        yield parts


def _move(group: torch.distributed.ProcessGroup, streams: list[Stream], deadline_ms: int) -> None:
    """
    Message by message with all peers at once, each until the deadline. Error: ETIMEDOUT; EOWNERDEAD: torch lost the
    connection.
    """
    sends = [(stream.peer, chunks(stream.send)) for stream in streams]
    receives = [(stream.peer, chunks(stream.receive)) for stream in streams]
    while True:
        arriving = [(peer, parts) for peer, rest in receives for parts in [next(rest, None)] if parts]
        leaving = [(peer, parts) for peer, rest in sends for parts in [next(rest, None)] if parts]
        if not arriving and not leaving:
            return
        _round(group, leaving, arriving, None if deadline_ms < 0 else time.monotonic() + deadline_ms / 1000)


def _round(group: torch.distributed.ProcessGroup, leaving: list[tuple[int, list[torch.Tensor]]],
           arriving: list[tuple[int, list[torch.Tensor]]], until: float | None) -> None:
    into = [parts[0] if len(parts) == 1 else torch.empty(sum(map(len, parts)), dtype=torch.uint8)
            for _, parts in arriving]
    outof = [parts[0] if len(parts) == 1 else torch.cat(parts) for _, parts in leaving]
    try:
        works = [group.recv([tensor], peer, _TAG) for tensor, (peer, _) in zip(into, arriving)]
        works += [group.send([tensor], peer, _TAG) for tensor, (peer, _) in zip(outof, leaving)]
        for work in works:
            _wait(work, until)
    except RuntimeError as e:
        if until is not None and time.monotonic() >= until:
            raise error(errno.ETIMEDOUT, f"a rank did not arrive before the deadline ({e})") from e
        raise error(errno.EOWNERDEAD, f"{e}") from e
    for tensor, (_, parts) in zip(into, arriving):
        if len(parts) > 1:
            for part, found in zip(parts, tensor.split([len(part) for part in parts])):
                part.copy_(found)


def _wait(work: torch.distributed.Work, until: float | None) -> None:
    if until is None:
        work.wait()  # the group has a limit of its own
    else:
        # Torch cuts it to milliseconds. One that ended before `until` would be taken for a lost connection.
        work.wait(datetime.timedelta(milliseconds=max(1, math.ceil((until - time.monotonic()) * 1000))))

"""Jobs: memory that several processes write, for training. Ranks join them through weightd.train."""
from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

from . import _abi
from ._abi import lib
from ._connection import shared
from ._rows import take


class JobInfo(NamedTuple):
    """
    A job. `n_bytes` of its memory, 0 before the first rank; `step` as the ranks wrote it; `created_ns` and `vacant_ns`
    since 1970: `vacant_ns` is the time when the last rank ended, 0 while there are ranks and before the first.
    `linger_ms`: the time without a rank after which weightd removes the job, 0 for never. Of `n_ranks`, `n_present`
    have a process now, and `n_done` have left for good.
    """

    name: str
    n_bytes: int
    step: int
    created_ns: int
    vacant_ns: int
    linger_ms: int
    uid: int
    gid: int
    n_ranks: int
    n_present: int
    n_done: int


def create_job(name: str, n_ranks: int, linger: float | None = None, socket: str | None = None) -> str:
    """
    Creates a job without memory, for 1 to 256 ranks on this machine, and returns its token, "NAME:DIGITS". A process
    of this user that has the token may become a rank and write the memory: pass it on as $WEIGHTD_JOB, or in a file of
    mode 0600. `linger`: seconds without a rank after which weightd removes the job; None: never. Error with EEXIST:
    there is a job of that name.
    """
    options = _abi.JobOptions(n_ranks=n_ranks, linger_ms=0 if linger is None else _milliseconds(linger))
    connection, token = shared(socket), ctypes.create_string_buffer(_abi.TOKEN_MAX)
    connection.call(lib.weightd_job_create, connection.handle, _abi.text(name), ctypes.byref(options), token)
    return token.value.decode()


def _milliseconds(seconds: float) -> int:
    if not 0 < seconds < 2**53:
        raise ValueError(f"a job lingers for more than 0 seconds, not {seconds}")
    return math.ceil(seconds * 1000)


def jobs(socket: str | None = None) -> list[JobInfo]:
    """The jobs of this user, ordered by name; those of all users for an administrator."""
    connection, found = shared(socket), ctypes.c_void_p()
    connection.call(lib.weightd_list_jobs, connection.handle, ctypes.byref(found))
    return take(found, lib.weightd_list_job, JobInfo)


def remove_job(name: str, socket: str | None = None) -> None:
    """Removes a job, of this user or as an administrator. Its ranks keep what they have mapped. NotFound, Denied."""
    connection = shared(socket)
    connection.call(lib.weightd_job_remove, connection.handle, _abi.text(name))

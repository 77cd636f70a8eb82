"""Writes to published memory, explained."""
from __future__ import annotations

import faulthandler
import os

from .._abi import lib
from .._errors import error

_STDERR = 2  # libweightd writes there


def guard() -> None:
    """
    Helps debugging: a write to a published version ends the process with SIGSEGV, since torch has no read-only
    memory; from now on a line on standard error first names the tensor, the buffer and its version, and
    faulthandler, which is enabled unless it is, the line of Python. So it does for what Buffer.release() gave
    back. Then the process ends as before: handlers that had the signal are called. Not on a GPU.

    Forked children have it too. Others, and the workers of a DataLoader, where torch takes the signal for itself
    (worker_init_fn), call it themselves. Error.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(_STDERR)
    code = -lib.weightd_guard()
    if code:
        raise error(code, f"SIGSEGV cannot be handled: {os.strerror(code)}")

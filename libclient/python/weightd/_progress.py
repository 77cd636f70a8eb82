"""Progress of calls that take long, as the library reports it."""
from __future__ import annotations

from typing import Any, Callable

from . import _abi


def reporter(progress: Callable[[str, int, int], Any] | None, raised: list[BaseException]) -> Any:
    """A callback for C that calls `progress`. An exception in that is appended to `raised`, and cancels the call."""
    @_abi.Progress
    def report(_, phase: bytes, done: int, total: int) -> int:
        try:
            if progress and not raised:
                progress(phase.decode(), done, total)
        except BaseException as e:  # KeyboardInterrupt too: Python delivers it here
            raised.append(e)
        return bool(raised)

    return report

"""Events: what happens to buffers, as it happens."""
from __future__ import annotations

import ctypes
import math
import time
from typing import NamedTuple

from . import _abi
from ._abi import lib
from ._connection import Connection, patiently
from ._rows import named


class Event(NamedTuple):
    """
    kind     "created", "published", "rolled-back" (`version` is current again), "version-gone", "removed",
             "updating" (readers are asked to pause), "torn", "access" (mode or owner changed), "evicted" (a
             reader that did not pause); "missed" and "restarted": events before this one are missing,
             because there were too many at once or because the server restarted
    name     of the buffer; "" for "missed" and "restarted"
    device   "host", or a GPU: "cuda:GPU-<uuid>"
    serial   number of the event
    time_ns  since 1970
    version  0 where none is concerned
    end      reason for the end of the version, as in VersionInfo
    uid      user of the process `pid` that caused it
    """

    kind: str
    name: str
    device: str
    serial: int
    time_ns: int
    version: int
    end: str
    uid: int
    pid: int


class Watch:
    """
    An iterator of events, without an end, from watch(). One thread at a time. Closed at the end of a
    `with` block, or when it is forgotten.
    """

    _handle: ctypes.c_void_p | None = None  # until __init__ has one, and when it is closed

    def __init__(self, names: tuple[str, ...], device: str | None, socket: str | None):
        self._connection, handle = Connection(socket), ctypes.c_void_p()
        self._names = frozenset(names)
        self._device = None if device is None else self._connection.device_name(device)
        self._connection.call(lib.weightd_watch_new, self._connection.handle, ctypes.byref(handle))
        self._handle = handle

    def next(self, timeout: float | None = None) -> Event:
        """The next event, waited for `timeout` seconds at most (None: for ever). Timeout, Disconnected."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = None if timeout is None else max(0.0, end - time.monotonic())
            event = patiently(self._next, left)
            if not event.name or ((not self._names or event.name in self._names)
                                  and self._device in (None, event.device)):
                return event

    def _next(self, timeout_ms: int) -> Event:
        if self._handle is None:
            raise ValueError("this watch is closed")
        found = _abi.Event()
        self._connection.call(lib.weightd_watch_next, self._handle, timeout_ms, ctypes.byref(found),
                              again=False)
        return named(Event, found)

    def close(self) -> None:
        """May be called twice."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._connection.free(lib.weightd_watch_free, handle)

    def __reduce__(self):
        raise TypeError("a watch cannot be copied or pickled: it is a connection of this process; call "
                        "weightd.watch() there")

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Event:
        return self.next()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def __del__(self):
        self.close()


def watch(*names: str, device: str | None = None, socket: str | None = None) -> Watch:
    """
    Watches the buffers that the caller may read or owns, or those called `names`, from now on:

        for event in weightd.watch("llama-8b"):
            if event.kind == "published": ...

    `device` None: any; "host"; "cuda:0", as this process counts. Uses a connection of its own. Disconnected.
    """
    return Watch(names, device, socket)

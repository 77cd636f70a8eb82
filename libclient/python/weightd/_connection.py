"""
Connections to weightd: one that the process shares for what is answered at once, others for what
takes long (loading, waiting, writing), so that no thread waits for another one's model.

libweightd lets one thread at a time use a connection; a lock here sees to it. Finalizers run in any
thread at any time, also in one that holds the lock, and hence never wait for it: see free().
"""
from __future__ import annotations

import collections
import ctypes
import errno
import math
import os
import threading
import time
import weakref
from typing import Callable, TypeVar

from ._abi import DEVICE_MAX, AttachOptions, Attached, lib, text
from ._errors import Denied, Disconnected, Timeout, error

SLICE_S = 0.25  # Python sees Ctrl-C between calls only

_restart_timeout_ms: int | None = None  # None: the library's own

T = TypeVar("T")


class Connection:
    handle: ctypes.c_void_p | None = None  # until __init__ has one
    _ended: collections.deque = collections.deque()

    def __init__(self, socket: str | None = None, connect: bool = True):
        """Connects, or leaves that to the first call; `socket` as in attach(). Disconnected, Denied."""
        self.handle = ctypes.c_void_p()
        self._lock = threading.Lock()  # all use of self.handle and of what was made from it
        self._next = threading.Lock()  # of the thread that has the lock next: see use()
        self._ended: collections.deque = collections.deque()  # (function, handle): see free()
        self._path = None if socket is None else os.fsencode(socket)
        self._pid = os.getpid()
        code = -lib.weightd_new(ctypes.byref(self.handle))
        if code:
            raise error(code, os.strerror(code))
        _all.add(self)
        self._restart_timeout_ms: int | None = None  # the value that the library has
        self._is_new = True  # until it has connected once
        if connect:
            self.meet()

    def __del__(self):
        for function, handle in self._ended:
            function(handle)
        lib.weightd_close(self.handle)

    def __reduce__(self):
        raise TypeError("a connection to weightd cannot be copied or pickled; connect there")

    def use(self) -> Connection:
        """
        To be entered around each use of the connection and of what was made from it. A thread that waits comes before the one
        that had the connection last: that one repeats its call where it waits in slices, and would have the lock again each
        time.
        """
        return self

    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    def __exit__(self, *exception) -> None:
        self._lock.release()
        if self._ended:
            self._free_ended()

    def socket(self) -> str:
        """The path of the server's socket, wherever it is used."""
        return os.path.abspath(os.fsdecode(lib.weightd_socket(self.handle)))

    def is_parents(self) -> bool:
        return self._pid != os.getpid()

    def meet(self) -> None:
        """Connects if it never did. Disconnected, Denied."""
        if self._is_new:
            with self.use():
                self._set_restart_timeout()
                if self._is_new:
                    self._connect()

    def _connect(self) -> None:
        # The default may be another server's by the next time.
        code = -lib.weightd_connect(self.handle, self._path or lib.weightd_socket(self.handle) or None)
        if code:
            kind = Denied if code == errno.EACCES else Disconnected
            raise kind(code, self._sentence(code))
        self._is_new = False

    def _set_restart_timeout(self) -> None:
        timeout_ms = _restart_timeout_ms
        if timeout_ms is not None and timeout_ms != self._restart_timeout_ms:
            lib.weightd_set_restart_timeout(self.handle, timeout_ms)
            self._restart_timeout_ms = timeout_ms

    def _sentence(self, code: int) -> str:
        return lib.weightd_error(self.handle).decode(errors="replace") or os.strerror(code)

    def call(self, function: Callable[..., int], *args, again: bool = True) -> int:
        """
        Returns function(*args); a negative result raises Error. If the server ended since the last call and `again` is
        set, connects anew and calls once more.
        """
        with self.use():
            self._set_restart_timeout()
            r = function(*args)
            if r == -errno.ENOTCONN and again:
                self._connect()
                r = function(*args)
            if r < 0:
                raise error(-r, self._sentence(-r))
        return r

    def attach(self, name: bytes, options: AttachOptions) -> tuple[ctypes.c_void_p, Attached]:
        """
        The attachment and its facts, in one call of the library, which connects if there is no connection. Disconnected,
        Denied: it cannot; Error.
        """
        handle, facts = ctypes.c_void_p(), Attached()
        options.connect, options.socket, options.ret_attached = True, self._path, ctypes.pointer(facts)
        with self.use():
            self._set_restart_timeout()
            r = lib.weightd_attach(self.handle, name, ctypes.byref(options), ctypes.byref(handle))
            if r < 0:
                sentence = self._sentence(-r)
                if not lib.weightd_is_connected(self.handle):
                    self._connect()  # if that is what fails, it raises
                raise error(-r, sentence)
            self._is_new = False
        return handle, facts

    def device_name(self, device: str) -> str:
        """How the server calls it: "cuda:GPU-..." for "cuda:0". Error."""
        found = ctypes.create_string_buffer(DEVICE_MAX + 1)
        self.call(lib.weightd_device_name, self.handle, text(device), found)
        return found.value.decode()

    def free(self, function: Callable[[ctypes.c_void_p], None], handle: ctypes.c_void_p) -> None:
        """function(handle) now, or as soon as the connection is not in use; never waits."""
        self._ended.append((function, handle))
        self._free_ended()

    def _free_ended(self) -> None:
        # Additions while another thread holds the lock are seen by the second look, after the release.
        while self._ended and self._lock.acquire(blocking=False):
            try:
                while self._ended:
                    function, handle = self._ended.popleft()
                    function(handle)
            finally:
                self._lock.release()


def set_restart_timeout(timeout: float | None) -> None:
    """
    How many seconds calls of this process wait for a server that is being started again; None: for ever,
    0: not at all, 30 by default. Then Disconnected. Only a server that survives is waited for. Python
    sees Ctrl-C after that wait.
    """
    global _restart_timeout_ms
    _restart_timeout_ms = milliseconds(timeout)


def milliseconds(timeout: float | None) -> int:
    """Seconds as the library counts them, rounded up; -1 for None: for ever."""
    return -1 if timeout is None else max(0, min(math.ceil(timeout * 1000), 2**31 - 1))


_guard = threading.Lock()  # _shared
_shared: dict[str | None, Connection] = {}  # keyed by socket path
_all: weakref.WeakSet[Connection] = weakref.WeakSet()


def shared(socket: str | None = None, connect: bool = True) -> Connection:
    """The connection that this process shares for that socket path; made at the first use. `connect` as of Connection."""
    path = socket or os.environ.get("WEIGHTD_SOCKET")
    with _guard:
        connection = _shared.get(path)
        if connection is None:
            connection = _shared[path] = Connection(path, connect=False)
    if connect:
        connection.meet()
    return connection


def _forget_the_parents() -> None:
    """In a child: threads that held locks are not here, and connections are the parent's."""
    global _guard
    _guard = threading.Lock()
    for connection in list(_all):
        connection._lock, connection._next = threading.Lock(), threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget_the_parents)


def patiently(wait: Callable[[int], T], timeout: float | None) -> T:
    """wait(timeout_ms), which raises Timeout, in slices for `timeout` seconds; None: for ever."""
    end = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        try:
            return wait(max(0, math.ceil(min(left, SLICE_S) * 1000)))
        except Timeout:
            if left <= 0:
                raise

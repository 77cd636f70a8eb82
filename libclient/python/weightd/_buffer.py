"""Attached buffers: a published version each, read-only."""
from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
import warnings
from collections.abc import Mapping
from typing import Any, Callable, TypeVar, Union

from . import _abi, _stream
from ._abi import lib
from ._connection import SLICE_S, Connection, patiently, shared
from ._deferred import Deferred
from ._errors import Damage, DigestMismatch, Timeout, Updating, error
from ._files import Files, texts
from ._files import get as get_files
from ._layout import Layout
from ._memory import BUFFER, Memory
from ._memory import attach as attach_memory
from ._table import Table
from ._target import target

T = TypeVar("T")

# Called with memory that shows another version now, while no thread reads it; again for the same version if one of them
# failed. Each returns a warning for the caller, or None.
followers: list[Callable[[Memory], Union[str, None]]] = []


class Buffer(Table):
    """
    A published version, attached: a lazy mapping of names to tensors that all readers share. From
    attach() and refresh(). Any thread may look up and wait; calls that talk to the server wait for each
    other.

    Another version can take the place of this one, at the same addresses: swap() and pause(). Tensors,
    arrays and captured graphs stay valid and show the new bytes, and so do modules that weightd.torch.bind() has
    bound, their private buffers included. Both need a safe point: a moment when no thread of the process reads the
    buffer. An error while the private buffers are overwritten is raised after the bytes have changed, and after all
    other private buffers are overwritten; the next swap() or pause() tries those again, and so it does after Ctrl-C.

    On a GPU. Addresses are the GPU's. torch() and consumers of DLPack or __cuda_array_interface__ accept the
    tensors; read() copies bytes to the host. Reads that the GPU has queued are waited for by stream: a `stream`
    is torch's, cupy's, or a cudaStream_t as int; None: all streams of this process on that GPU. In host memory it
    is ignored. libweightd maps published bytes read-only. torch and DLPack consumers may be unaware of that, and
    must not write; weightd_attach() in weightd.h describes the consequences. When the last view is freed, the
    process waits for all streams on that GPU, and then the memory is unmapped; detach() names one stream, and does
    not wait.

    Other processes. A pickled Buffer, or a pickled Tensor of one, is attached again where it is unpickled, at the
    same version and on the same GPU. Pools, with any start method, and queues pickle their arguments and results.
    Keep it attached here until then, else the version may be freed. If it cannot be attached there, its first use
    (hasattr() is one) raises the error, not the unpickling, which would hang a pool. A buffer that was removed
    and created again has a version of that number too: Removed, if its digest differs; LayoutMismatch, if its
    layout does. Two versions of one layout that were published without a digest cannot be distinguished.

    version      of these bytes; only swap() and pause() change it
    layout_hash  16 bytes
    digest       16 bytes, or None when it was published without
    files        the small files beside the weights: a mapping of paths to bytes
    attributes   of the version: a dict of short texts
    owner        uid of the user that owned the buffer when this version was attached; None: weightd is older
    is_mutable   True for an exclusive buffer; its bytes can change in place: pause() regularly, or read
                 through read_consistent()
    """

    _find = staticmethod(lib.weightd_buffer_find)
    _row = staticmethod(lib.weightd_buffer_tensor)

    def __init__(self, memory: Memory):
        facts = memory.facts
        super().__init__(facts.name.decode(), facts.device.decode(), memory, facts.n_tensors)
        self.layout_hash = _abi.hash_at(facts.layout_hash)
        self.is_mutable: bool = facts.is_mutable
        self._files: tuple[int, Any] = (0, None)
        self._take(facts)

    def layout(self) -> Layout:
        """The layout of the version, as create() takes it for the next one. Reads the whole table."""
        memory, size = self._open(), ctypes.c_uint64()
        image = lib.weightd_buffer_layout_image(memory.handle, ctypes.byref(size))
        return Layout._parse(image, size.value)

    def _follow(self, memory: Memory) -> None:
        """
        Calls the followers if one of them has not seen the version yet, which an earlier call that was interrupted
        may have left behind. All are called, then the first error is raised.
        """
        self._take(memory.look_again())
        if memory.followed == self.version:
            return
        memory.locate()
        self.location = memory.location
        errors, said = [], []
        for follow in followers:
            try:
                said.append(follow(memory))
            except Exception as e:
                errors.append(e)
        if errors:
            raise errors[0]
        memory.followed = self.version
        for warning in filter(None, said):
            warnings.warn(warning, RuntimeWarning, stacklevel=3)

    def _take(self, facts: _abi.Attached) -> None:
        self.version: int = facts.version
        self.digest = _abi.hash_at(facts.digest)
        self.owner: int | None = facts.owner if facts.has_owner else None

    def __reduce__(self):
        return _arrive, (self._open(),)

    def __repr__(self) -> str:
        return f"<Buffer {self.name!r} on {self.device}, version {self.version}, {len(self)} tensors>"

    @property
    def files(self) -> Files:
        """The small files of the version, beside its weights. One request for each version. Error."""
        version, found = self._files
        if version != self.version:
            memory, version = self._open(), self.version
            found = get_files(memory.connection, self.name, self.device, version)
            self._files = version, found
        return found

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of the version: "architecture", "dtype", ... Error."""
        return self.files.attributes

    def latest(self) -> int:
        """The newest published version: one load from shared memory, no system call. Removed."""
        memory, version = self._open(), ctypes.c_uint64()
        self._check(lib.weightd_buffer_latest(memory.handle, ctypes.byref(version)), "")
        return version.value

    def wait(self, newer_than: int | None = None, timeout: float | None = None) -> int:
        """
        Blocks until a version above `newer_than` (default: this one) is published, for `timeout` seconds
        at most (None: for ever), and returns it. Works without a connection. Timeout, Removed.
        """
        memory, version = self._open(), ctypes.c_uint64()
        newer_than = self.version if newer_than is None else newer_than

        def wait(timeout_ms: int) -> int:
            r = lib.weightd_buffer_wait(memory.handle, newer_than, timeout_ms, ctypes.byref(version))
            self._check(r, f"has no version above {newer_than} after {timeout} s")
            return version.value

        return patiently(wait, timeout)

    @property
    def state(self) -> str:
        """
        "ready"; "updating": readers are asked to pause(), or a writer writes in place; "torn": that writer died
        meanwhile; "empty": a writer replaces the buffer; "gone": removed. One load from shared memory.
        """
        return self._state()[0]

    def _state(self) -> tuple[str, int]:
        memory, version = self._open(), ctypes.c_uint64()
        state = lib.weightd_buffer_state(memory.handle, ctypes.byref(version))
        return _abi.STATES[state], version.value

    def _check(self, r: int, timed_out: str = "") -> None:
        # These functions are open to all threads at once and leave no sentence.
        if r == -errno.ETIMEDOUT:
            raise error(-r, f"'{self.name}' on {self.device} {timed_out}")
        if r == -errno.ESTALE:
            raise error(-r, f"'{self.name}' on {self.device} was removed")
        if r == -errno.EAGAIN:
            raise error(-r, f"'{self.name}' on {self.device} is being updated in place")
        if r == -errno.EUCLEAN:
            raise error(-r, f"'{self.name}' on {self.device} is torn, or this reader was evicted")
        if r < 0:
            raise error(-r, f"'{self.name}' on {self.device}: {os.strerror(-r)}")

    def ipc_handle(self) -> bytes:
        """
        The cudaIpcMemHandle_t, 64 bytes, of a buffer of the older kind (location.memory is "cuda-ipc"), for a
        program of this machine that opens it itself: the buffer's bytes begin at the start of what it gets. It
        must have closed it before this buffer is. Nothing keeps it from writing. Error: memory of another
        kind, or lost with the process that held it.
        """
        memory, handle = self._open(), ctypes.create_string_buffer(64)
        self._check(lib.weightd_buffer_ipc_handle(memory.handle, handle))
        return handle.raw

    def refresh(self) -> Buffer | None:
        """The newest version, attached beside this one, or None when this is the newest. Error."""
        memory, handle = self._open(), ctypes.c_void_p()
        is_newer = memory.connection.call(lib.weightd_buffer_refresh, memory.handle,
                                          ctypes.byref(handle))
        return Buffer(Memory(memory.connection, handle, BUFFER, writable=False, owner=memory.owner)) if is_newer else None

    def swap(self, stream: Any = None) -> bool:
        """
        Replaces this version by the current one, at the same addresses, at a safe point (see above). Returns True,
        or False if this one is current. After an error the buffer keeps its version: LayoutMismatch if the tensors
        differ, with their names, or their order (attach anew), Removed, Error. On a GPU it waits for the work queued
        so far in `stream`; captured graphs replay on the new bytes.
        """
        memory = self._open()
        swapped = memory.connection.call(lib.weightd_buffer_swap_on, memory.handle,
                                         _stream.handle(stream))
        self._follow(memory)
        return bool(swapped)

    def pause(self, timeout: float | None = None) -> bool:
        """
        A safe point (see above) for a reader of a buffer that is updated in place or replaced. Returns False, after
        one load from shared memory, if no writer waits. Otherwise reports to the server that this process does
        not read, waits for `timeout` seconds at most (None: for ever) and returns True, possibly with another
        version. Timeout: still paused, the bytes must not be read; call it again. Torn, Removed.
        """
        memory = self._open()

        def pause(timeout_ms: int) -> bool:
            return bool(memory.connection.call(lib.weightd_buffer_pause, memory.handle, timeout_ms))

        try:
            paused = patiently(pause, timeout)
        finally:
            self._take(memory.look_again())
        self._follow(memory)
        return paused

    def read_begin(self) -> int:
        """
        A ticket for read_retry(): what is read in between is of one version if that returns False. Of
        interest where the buffer is_mutable. Updating, Torn (also for a reader that was evicted), Removed.
        """
        memory, ticket = self._open(), ctypes.c_uint64()
        self._check(lib.weightd_read_begin(memory.handle, ctypes.byref(ticket)))
        return ticket.value

    def read_retry(self, ticket: int) -> bool:
        """True when the bytes changed since read_begin(): what was read is of no use."""
        memory = self._open()
        return lib.weightd_read_retry(memory.handle, ticket)

    def read_consistent(self, read: Callable[[Buffer], T], timeout: float | None = None) -> T:
        """
        Returns the result of read(buffer), called until it saw the bytes of one version. It may see a mix before,
        and has to return copies: views go on changing. Waits while the buffer is updated. Timeout (in
        seconds; None: never), Torn, Removed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                ticket = self.read_begin()
                result = read(self)
                if not self.read_retry(ticket):
                    return result
            except Updating:
                self._wait_for_the_update(end)
            if end is not None and time.monotonic() >= end:
                raise Timeout(errno.ETIMEDOUT, f"'{self.name}' on {self.device} was not at rest "
                                               f"for one read in {timeout} s")

    def _wait_for_the_update(self, end: float | None) -> None:
        # The writer may also give up, and no newer version come of it: not for long.
        left = SLICE_S if end is None else min(SLICE_S, max(0.0, end - time.monotonic()))
        state, version = self._state()
        if state == "updating":
            with contextlib.suppress(Timeout):
                self.wait(version, left)

    def release(self, stream: Any = None) -> None:
        """
        Gives the memory back while the process is idle, and keeps the addresses: until reacquire() no thread may
        read the buffer, which is a SIGSEGV, or the end of the context on a GPU, where it waits for `stream`. Error.
        """
        memory = self._open()
        memory.connection.call(lib.weightd_buffer_release, memory.handle, _stream.handle(stream))

    def reacquire(self) -> bool:
        """
        Takes memory again after release(), at the same addresses. True: with another version, the current
        one, since what it had is gone. LayoutMismatch (attach anew), Removed, Error: still without memory.
        """
        memory = self._open()
        try:
            moved = memory.connection.call(lib.weightd_buffer_reacquire, memory.handle)
        finally:
            self._take(memory.look_again())
        self._follow(memory)
        return bool(moved)

    def detach(self, stream: Any = None) -> None:
        """
        Like close(), but without waiting for a GPU: when the last view is freed, the memory stays mapped until
        the work queued in `stream` is done. A later call unmaps it, see reap(). None waits for all streams, as
        close() does.
        """
        if self._memory is not None:
            self._memory.free_behind(stream)
        self.close()

    def verify(self) -> None:
        """
        Digests the mapped bytes (a few GB/s; a GPU does its own) and compares. DigestMismatch, whose `damage` has the
        leaves and tensors; NotPublished when there is no digest. Other threads' calls over this connection wait meanwhile.
        """
        memory = self._open()
        damage: list[Damage] = []

        @_abi.DamageFunction
        def found(_, row) -> int:
            damage.append(_damage(memory, row[0]))
            return 0

        try:
            memory.connection.call(lib.weightd_buffer_verify_each, memory.handle, found, None)
        except DigestMismatch as e:
            e.damage = damage
            raise


def _damage(memory: Memory, row: _abi.DamageRow) -> Damage:
    tensor, names = _abi.Tensor(), []
    for i in range(row.first_tensor, row.last_tensor + 1) if row.n_tensors else ():
        lib.weightd_buffer_tensor(memory.handle, i, ctypes.byref(tensor))
        if tensor.n_bytes and tensor.tied_to == _abi.NOT_TIED:
            names.append(tensor.name.decode())
    return Damage(None if row.leaf == _abi.HEADER_LEAF else row.leaf, row.begin, row.end, names)


def attach(name: str, device: str = "host", version: int | None = None, timeout: float | None = 0.0,
           layout: Layout | bytes | None = None, socket: str | None = None,
           map_device: str | None = None, require: Mapping[str, Any] | None = None,
           owner: int | str | None = None) -> Buffer:
    """
    Maps a published version of `name`, or the one that "name@3" means.

    device      "host"; "cuda:0", as this process counts, like torch; "cuda:GPU-<uuid>", "cuda:MIG-<uuid>"
    version     None: the newest
    timeout     seconds to wait until it is published; None: for ever
    layout      what the tensors must be, else LayoutMismatch: a Layout, with the same names, types and shapes
                in any order; or the hash of one, with that very order too
    map_device  the GPU that is to read it, by peer access, where that is not the one that has it
    require     attributes that the version must have, {"dtype": "BF16"}, else AttributeMismatch
    owner       the user that must own the buffer, by name or uid, else Denied: whoever is first with a name owns it.
                swap() and its like, and a copy that is unpickled elsewhere, demand the same. None: any
    socket      path; default: $WEIGHTD_SOCKET, else $XDG_RUNTIME_DIR/weightd.sock, else the system's,
                /run/weightd/weightd.sock

    NotFound, NotPublished, Timeout, LayoutMismatch, AttributeMismatch, Denied, Disconnected, Error.
    """
    name, version = target(name, version)
    if timeout is None or timeout > 0:
        wait(name, version, timeout, device, socket)
    wanted = None if isinstance(layout, Layout) else layout
    if wanted is not None and len(wanted) != _abi.HASH_SIZE:
        raise ValueError(f"a layout's hash has {_abi.HASH_SIZE} bytes, not {len(wanted)}")
    buffer = Buffer(attach_memory(name, device, version, wanted, map_device, socket, texts(require), owner))
    difference = isinstance(layout, Layout) and layout.difference(buffer.layout())
    if difference:
        buffer.close()
        raise error(errno.EPROTOTYPE, f"the layout asked for is not that of '{name}@{buffer.version}' on "
                                      f"{buffer.device}, the other: {difference}")
    return buffer


def _arrive(memory: Memory | Deferred) -> Buffer | Deferred:
    return memory if isinstance(memory, Deferred) else Buffer(memory)


def reap(socket: str | None = None) -> int:
    """
    Unmaps detached buffers on GPUs if their streams are done, as each call does, and returns how many are left.
    """
    connection = shared(socket)
    return connection.call(lib.weightd_reap, connection.handle)


def wait(name: str, version: int = 0, timeout: float | None = None, device: str = "host",
         socket: str | None = None) -> int:
    """
    Blocks until `version` (also as "name@3") or a later one is published (0: any) and returns the newest. The
    buffer need not exist yet. `timeout` in seconds; None: for ever. Uses a connection of its own. Timeout.
    """
    name, version = target(name, version)
    connection, found = Connection(socket), ctypes.c_uint64()

    def wait(timeout_ms: int) -> int:
        connection.call(lib.weightd_wait, connection.handle, _abi.text(name), _abi.text(device),
                        version, timeout_ms, ctypes.byref(found))
        return found.value

    return patiently(wait, timeout)

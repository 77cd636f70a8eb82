"""Writers: the next version of a buffer, writable until published; and loading, which is one."""
from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple

from . import _abi, _stream
from ._abi import lib
from ._connection import Connection, milliseconds
from ._errors import Error
from ._files import Files, of_writer, set_of_writer, texts
from ._layout import Layout
from ._memory import WRITER, Memory
from ._owner import owner_uid
from ._progress import reporter
from ._table import Table
from ._tensor import Tensor


class Writer(Table):
    """
    The next version of a buffer, not published yet: a lazy mapping of names to writable tensors, all
    bytes zero at first. From create(). As a context manager it drops the version at the end of the
    block unless publish() was called in it, by exception or not.

    Dropping a version allows another writer at once; views of the dropped bytes stay valid and private.
    A forked child has neither the writer nor its views.

    version   None; the number of the version once it is published
    """

    _find = staticmethod(lib.weightd_writer_find)
    _row = staticmethod(lib.weightd_writer_tensor)

    def __init__(self, connection: Connection, handle: ctypes.c_void_p, name: str, device: str):
        memory = Memory(connection, handle, WRITER, writable=True)
        super().__init__(name, device, memory, lib.weightd_writer_n_tensors(handle))
        self.version: int | None = None

    def __reduce__(self):
        raise TypeError(f"{self!r} cannot be copied or pickled: it is a connection and memory of this process "
                        "alone; publish(), and attach there")

    def _look(self, function: Callable[..., int], memory: Memory,
              key: bytes | int) -> Tensor | None:
        with memory.connection.use():
            return super()._look(function, memory, key)

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            yield self.tensor(index).name

    def __repr__(self) -> str:
        state = "unpublished" if self.version is None else f"version {self.version}"
        return f"<Writer {self.name!r} on {self.device}, {state}, {len(self)} tensors>"

    def write(self, offset: int, data: Any) -> None:
        """
        Copies bytes of the host to `offset`, to a GPU too: of anything that lends them in one piece, bytes,
        numpy's arrays. Error.
        """
        self._open().write(offset, data)

    @property
    def files(self) -> Files:
        """
        The small files that the version will have beside its weights: those of the newest version, or what was set.
        To set: any mapping of paths ("config.json") to bytes or str, at most 64 MiB. ValueError: a path that
        leaves the directory, or too much. Error.
        """
        memory = self._open()
        return of_writer(memory.connection, memory.handle)

    @files.setter
    def files(self, files: Mapping[str, Any]) -> None:
        memory = self._open()
        set_of_writer(memory.connection, memory.handle, files, self.attributes)

    @property
    def attributes(self) -> dict[str, str]:
        """
        The attributes that the version will have: those of the newest version, or what was set. To set: a mapping;
        values become str. ValueError, Error.
        """
        return self.files.attributes

    @attributes.setter
    def attributes(self, attributes: Mapping[str, Any]) -> None:
        memory = self._open()
        set_of_writer(memory.connection, memory.handle, self.files, attributes)

    def publish(self, stream: Any = None) -> int:
        """
        Publishes the bytes as a version and returns its number. On a GPU it waits for the work queued so far in
        `stream` (torch's, cupy's, a cudaStream_t as int; None: all of this process on that GPU), which must
        include all writes. Blocks while the bytes are digested (a few GB/s; a GPU digests its own). The bytes
        are immutable afterwards. Views made before stay valid and read the published bytes; numpy still marks
        them writable and torch has no read-only memory, but a write through them is a SIGSEGV. After an
        Error the writer can continue to write and try again, unless the sentence of the error excludes that.
        """
        memory, version = self._open(), ctypes.c_uint64()
        memory.connection.call(lib.weightd_writer_publish_on, memory.handle, _stream.handle(stream),
                               ctypes.byref(version), again=False)
        memory.writable = False
        self.version = version.value
        return self.version

    def close(self) -> None:
        """Drops the version unless it was published. The memory is unmapped with its last view."""
        memory = self._memory
        super().close()
        if memory and self.version is None and not memory.connection.is_parents():
            memory.connection.call(lib.weightd_writer_abort, memory.handle, again=False)


class LoadResult(NamedTuple):
    """
    `n_bytes` of tensors, read from files, `n_direct_bytes` of them past the page cache; `memory_ns` (for the first memory) and
    `read_ns` are parts of `elapsed_ns`. `ring_error` is the errno for which direct reads did without io_uring, else 0.
    `versions` has the version by device, as the server names it; `version` is that of the first one.
    `verified`: "none", "xxh3" or "sha256", as `verify` asked and was found right. `is_shared`: the version has the memory of
    another one with the same bytes, as `share` asked.
    """

    version: int
    n_bytes: int
    n_tensors: int
    n_files: int
    elapsed_ns: int
    memory_ns: int
    read_ns: int
    digest: bytes
    n_direct_bytes: int
    ring_error: int
    versions: dict[str, int]
    verified: str
    is_shared: bool


def create(name: str, layout: Layout, device: str = "host", mode: int = 0o640, keep: int = 0,
           new_layout: bool = False, exclusive: bool = False, reusable: bool = False,
           replace: bool = False, policy: str = "wait", pause_timeout: float | None = 10.0,
           socket: str | None = None, handle: str = "vmm", owner: int | str | None = None,
           numa: str | None = None) -> Writer:
    """
    Starts the next version of buffer `name`, making the buffer if there is none; blocks while weightd
    provides the memory.

    device         "host"; "cuda:0", as this process counts, like torch; "cuda:GPU-<uuid>", "cuda:MIG-<uuid>"
    mode           permission bits of a new buffer: r attaches, w writes
    keep           versions to keep, the newest included; 0: as before, 2 for a new buffer
    new_layout     publish in exactly this layout, independent of the newest version, and with other tensors too
    exclusive      a new buffer is updated in place, for models that do not fit twice: its memory is never
                   sealed, and the next create() writes over it once its readers have paused
    reusable       a new buffer reuses unmapped memory of old versions, neither sealed nor zeroed: for trusted
                   writers that publish often
    replace        for a buffer that is neither: ask the readers to release it and free the current version first
    policy         for readers that have not paused in time: "wait": Timeout, without any effect; "evict": their
                   reads are torn, which the library reports to them; "kill": like "evict", and their processes
                   are killed, if this user may
    pause_timeout  seconds for readers to pause, for exclusive buffers and with `replace`; None: for ever
    handle         for a new buffer on a GPU: "vmm", or "ipc" for consumers that need a cudaIpcMemHandle_t
    owner          the user, by name or uid, in whose buffer to publish: that user can remove and overwrite every
                   version. None: this user's, else Denied
    numa           NUMA nodes of host memory that weightd makes: "0,2-3", these alone; "preferred:1" or "local", while
                   there is room; "interleave" or "interleave:0-1", in turn; "default", as weightd runs. None: the memory
                   policy of this thread (numactl), where weightd can. Error EINVAL for a node that weightd may not use

    A layout with the names, types and shapes of the newest version, in any order, is replaced by that version's:
    readers of the buffer can swap() to the new version at the same addresses. Only the Writer has the places of the
    tensors. A name that either layout ties to another shares its memory here.

    LayoutMismatch: the newest version has other tensors, which it names. Error: EBUSY if it has another writer,
    ENOMEM, EDQUOT. Denied, Disconnected, Restarted.
    """
    options = _create_options(device, mode, keep, new_layout, exclusive, reusable, replace, policy,
                              pause_timeout, handle, owner, numa)
    connection, made = Connection(socket), ctypes.c_void_p()
    device = connection.device_name(device)
    connection.call(lib.weightd_create, connection.handle, _abi.text(name), layout._handle,
                    ctypes.byref(options), ctypes.byref(made), again=False)
    return Writer(connection, made, name, device)


def load(name: str, *paths: str | os.PathLike, device: str | Iterable[str] = "host", mode: int = 0o640,
         keep: int = 0, new_layout: bool = False, exclusive: bool = False, reusable: bool = False,
         replace: bool = False, policy: str = "wait", pause_timeout: float | None = 10.0,
         threads: int = 0, progress: Callable[[str, int, int], object] | None = None,
         socket: str | None = None, handle: str = "vmm", files: bool = True,
         attributes: Mapping[str, Any] | None = None, owner: int | str | None = None,
         include: str | Iterable[str] = (), exclude: str | Iterable[str] = (),
         read: str = "auto", cache: str = "keep", dtype: str | None = None, verify: str = "none",
         timeout: float | None = None, max_rate: int | None = None,
         tp: tuple[int | Iterable[int], int] | None = None,
         tp_rules: str | os.PathLike | None = None,
         share: bool = False, numa: str | None = None) -> LoadResult | list[LoadResult]:
    """
    Loads safetensors or GGUF into the next version of `name` and publishes it. A path is a .safetensors file,
    an index of some, a directory with either, or the URL of a file or an index (https or http), as a str; a GGUF file is
    the only path. A checkpoint of torch.save() (.bin, .pt, .pth, .ckpt, or an index .bin.index.json) is converted by this Python
    in a confined process, or by $WEIGHTD_PYTHON. A directory stands for one set of files, by the rules in weightctl(1), which has those of URLs too; a
    UserWarning names the files left out. A failure leaves nothing behind, and the previous version unchanged, unless it was
    being replaced, or written in place: then the buffer is torn.

    device      several GPUs, ["cuda:0", "cuda:1"], or all that this process sees, "cuda:all", all receive the version. The
                files are read once; no version is published before the bytes of all were checked. If a publish fails
                then, the earlier ones stay, and the error names them
    threads     that read; 0: libweightd's choice. For a GPU each has 4 MiB of pinned host memory. Loads of a process share
                128 MiB of it: each takes at most half of what the others have left, or waits for its turn. It stays
                pinned for the next one as long as a version on a GPU is attached, or written
    files       take the small files of a directory too: its configuration and tokenizer, see weightctl(1)
    attributes  of the version, beside those that its files and tensors show: {"tp_rank": 0}
    include     patterns of the names of tensors, as fnmatch has them: load only those that match one; one str is
                one pattern
    exclude     patterns likewise: leave out those that match one, also of `include`. Error EINVAL for a pattern that
                no tensor matches
    dtype       "BF16", "F16" or "F32", also in small letters: convert tensors of F64, F32, F16 and BF16 to it, with the
                bits of torch's Tensor.to(). Integers and booleans stay as they are; Error EOPNOTSUPP for other types
    tp          (rank, world): load what that rank of tensor parallelism has of each tensor; ranks count from 0. Error
                EINVAL for a tensor that no rule is about, or that so many ranks cannot share. (ranks, world) loads
                several ranks to host memory, each as the buffer "NAME-tpRANK", reads each byte of the files once, and
                returns a list of results
    tp_rules    a type of model for which rules are ready ("llama"), or the path of a file of rules, see weightctl(1);
                by default those for the model_type of the config.json beside the weights
    progress    called as progress(phase, done, total) at most every 50 ms in this thread, phase "plan",
                "memory", "read", "verify" (on a GPU, and by `verify`) or "publish"; an exception in it cancels the load and is raised
                here, and so is a warning that a filter turns into an error
    read        "auto": what is not in the page cache by direct reads, which leave it alone; "direct": all; "buffered":
                nothing. Where a file system refuses direct reads, it is read by the page cache
    cache       "keep" what was read by the page cache in it; "drop": remove what was not there before
    verify      "xxh3": read the files again, and compare that and the version with the digest; "sha256": compare each
                file's SHA-256 with SHA256SUMS beside it, or with the name of its blob in a cache of Hugging Face.
                Error EILSEQ, EBADMSG if it differs, and nothing is published
    timeout     seconds: Timeout after that, and nothing is published; None: for as long as it takes
    share       publish in the memory of another version with the same layout and bytes, of any user, if this one may read
                it: both are charged, for one copy of the pages
    max_rate    bytes a second to read from the files; None: no limit

    Others as in create(). Error: EBADMSG and OSErrors of the files, with the file's name.
    """
    raised: list[BaseException] = []
    report = reporter(progress, raised)

    @_abi.Note
    def note(_, text: bytes) -> None:
        try:
            warnings.warn(text.decode(), stacklevel=4)  # the frame of the caller, above call() and load()
        except BaseException as e:
            raised.append(e)

    if read not in _abi.READS:
        raise ValueError(f"read {read!r} is none of {', '.join(_abi.READS)}")
    if cache not in _abi.CACHES:
        raise ValueError(f"cache {cache!r} is none of {', '.join(_abi.CACHES)}")
    if verify not in _abi.VERIFIES:
        raise ValueError(f"verify {verify!r} is none of {', '.join(_abi.VERIFIES)}")
    if max_rate is not None and max_rate < 1:
        raise ValueError(f"max_rate {max_rate!r} is no number of bytes a second")
    connection, result = Connection(socket), _abi.LoadResult()
    devices = _devices(connection, device)
    create_options = _create_options(devices[0], mode, keep, new_layout, exclusive, reusable, replace,
                                     policy, pause_timeout, handle, owner, numa)
    more, versions = _texts(devices[1:]), (ctypes.c_uint64 * len(devices[1:]))()
    wanted = texts(attributes)
    included, excluded = _patterns(include), _patterns(exclude)
    rank, world = tp or (0, 0)
    ranks = [rank] if isinstance(rank, int) else list(rank)
    if not ranks:
        raise ValueError("no rank is given")
    of_ranks = (_abi.LoadResult * len(ranks[1:]))(*[_abi.LoadResult() for _ in ranks[1:]])
    options = _abi.LoadOptions(create=ctypes.pointer(create_options), n_threads=threads,
                               progress=report, note=note, no_files=not files,
                               attributes=wanted, n_attributes=len(wanted or ()),
                               include=included, n_include=len(included), exclude=excluded, n_exclude=len(excluded),
                               read=_abi.READS[read], cache=_abi.CACHES[cache], dtype=_cast(dtype),
                               more_devices=more, n_more_devices=len(more), ret_more_versions=versions,
                               verify=_abi.VERIFIES[verify],
                               timeout_ms=0 if timeout is None else max(1, milliseconds(timeout)), max_rate=max_rate or 0,
                               tp_rank=ranks[0], tp_world=world, tp_rules=None if tp_rules is None else _path(tp_rules),
                               tp_more_ranks=(ctypes.c_uint * len(ranks[1:]))(*ranks[1:]), n_tp_more_ranks=len(ranks[1:]),
                               ret_tp_results=ctypes.cast(of_ranks, ctypes.c_void_p), share=share)
    named = (ctypes.c_char_p * len(paths))(*[_path(path) for path in paths])
    if sys.executable:
        os.environ.setdefault("WEIGHTD_PYTHON", sys.executable)  # reads checkpoints of torch
    try:
        connection.call(lib.weightd_load, connection.handle, _abi.text(name), named, len(named),
                        ctypes.byref(options), ctypes.byref(result), again=False)
    except Error:
        if raised:
            raise raised[0] from None
        raise
    found = [_result(one, {device: one.version for device in devices[:1]}) for one in (result, *of_ranks)]
    found[0].versions.update(zip(devices[1:], versions))
    return found[0] if isinstance(rank, int) else found


def _result(result: _abi.LoadResult, versions: dict[str, int]) -> LoadResult:
    return LoadResult(result.version, result.n_bytes, result.n_tensors, result.n_files,
                      result.elapsed_ns, result.memory_ns, result.read_ns, bytes(result.digest),
                      result.n_direct_bytes, -result.ring_error, versions,
                      lib.weightd_verify_name(result.verified).decode(), result.is_shared)


def _devices(connection: Connection, device: str | Iterable[str]) -> list[str]:
    """The server's names of one device, or of several."""
    if device == "cuda:all":
        return _all_gpus(connection)
    names = [connection.device_name(name) for name in ([device] if isinstance(device, str) else device)]
    if not names:
        raise ValueError("no device is given")
    if len(set(names)) < len(names):
        raise ValueError(f"one device is given twice, in {device!r}")
    return names


def _all_gpus(connection: Connection) -> list[str]:
    names = [connection.device_name("cuda:0")]  # an Error says why there is none
    with contextlib.suppress(Error):
        while True:
            names.append(connection.device_name(f"cuda:{len(names)}"))
    return names


def _create_options(device: str, mode: int, keep: int, new_layout: bool, exclusive: bool,
                    reusable: bool, replace: bool, policy: str, pause_timeout: float | None,
                    handle: str, owner: int | str | None, numa: str | None) -> _abi.CreateOptions:
    if handle not in _abi.HANDLES:
        raise ValueError(f"handle {handle!r} is none of {', '.join(_abi.HANDLES)}")
    if policy not in _abi.POLICIES:
        raise ValueError(f"policy {policy!r} is none of {', '.join(_abi.POLICIES)}")
    # 0 is the library's word for "not given".
    return _abi.CreateOptions(device=_abi.text(device), mode=mode, keep=keep, new_layout=new_layout,
                              exclusive=exclusive, reusable=reusable, replace=replace,
                              pause_timeout_ms=milliseconds(pause_timeout) or 1,
                              policy=_abi.POLICIES[policy], handle=_abi.HANDLES[handle], owner=owner_uid(owner),
                              numa=None if numa is None else _abi.text(numa))


def _cast(dtype: str | None) -> int:
    if dtype is None:
        return 0
    if dtype.upper() not in ("BF16", "F16", "F32"):
        raise ValueError(f"dtype {dtype!r} is none of BF16, F16, F32")
    return lib.weightd_dtype_parse(_abi.text(dtype.upper()))


def _patterns(patterns: str | Iterable[str]) -> Any:
    return _texts([patterns] if isinstance(patterns, str) else patterns)


def _texts(texts: Iterable[str]) -> Any:
    found = [_abi.text(text) for text in texts]
    return (ctypes.c_char_p * len(found))(*found)


def _path(path: str | os.PathLike) -> bytes:
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError(f"{path!r} holds a NUL")
    return encoded

"""A rank of a job: the plan, the memory, and the calls of libweightd-train."""
from __future__ import annotations

import bisect
import ctypes
import errno
import functools
import json
import math
import os
import weakref
from ctypes import byref, c_bool, c_double, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, NamedTuple

import torch

from .. import _dtype
from .._abi import path_bytes, text
from .._connection import Connection, milliseconds
from .._errors import error
from .._owner import owner_uid
from ..torch._kinds import is_plain
from . import _abi, _group
from ._abi import FORMS, KINDS, ON_DEATH, OPTIMIZERS, ROLES, check, lib
from ._mesh import Mesh
from ._precision import TYPES, Scaler
from ._sharded import Row, Sharded


class Traffic(NamedTuple):
    """
    Bytes that this rank moved since it opened the job.

    read     from gradients and sums of other ranks
    written  into copies of the parameters of other ranks
    sent     on sockets, to ranks of other nodes: parts of gradients and parameters, and a few words of each step
    sent_replicas  part of these: to other replicas, along the first of two dimensions of the mesh
    """

    read: int
    written: int
    sent: int
    sent_replicas: int


class Described(NamedTuple):
    """A row without its tensor, which would hold the memory that its trainer maps, and so itself."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    is_frozen: bool


class Plan:
    """
    The plan of a module, as all ranks have it.

    rows         its tensors, in order: trained parameters, frozen ones, buffers
    param_dtype  of the trained parameters
    grad_dtype   of their gradients
    """

    handle: c_void_p | None = None  # until __init__ has one

    def __init__(self, sharded: Sharded, optimizer: str, groups: list[_abi.Group], group_of: dict[str, int],
                 state_size: int):
        given = sharded.options
        self.rows = [Described(row.name, row.dtype, row.shape, row.role, row.is_frozen) for row in sharded.rows]
        self.param_dtype = _type_of(self.rows[0].dtype)
        self.grad_dtype = given.precision.reduces_in(self.param_dtype)
        tensors = (_abi.Tensor * len(self.rows))(*(_row(row, group_of.get(row.name, 0)) for row in sharded.rows))
        array = (_abi.Group * len(groups))(*groups)
        options = _abi.PlanOptions(mesh=sharded.mesh._handle, strategy=text(given.strategy),
                                   optimizer=OPTIMIZERS[optimizer], groups=array, n_groups=len(groups),
                                   form=FORMS[given.form], bucket_bytes=given.bucket_bytes, overlap=given.overlap,
                                   staleness=given.staleness, state_size=state_size,
                                   scaling=_scaling(given.scaler), n_nodes=sharded.mesh.n_nodes,
                                   sync_every=given.sync_every, keeps_units=not given.reshard,
                                   without_prefetch=not given.prefetch)
        if self.grad_dtype != self.param_dtype:
            options.grad_dtype = _dtype.code(TYPES[self.grad_dtype])
        handle = c_void_p()
        check(lib.weightd_plan_new(tensors, len(self.rows), byref(options), byref(handle)))
        self.handle = handle

    def __del__(self, free=lib.weightd_plan_free):
        if self.handle is not None:
            free(self.handle)

    def describe(self) -> dict[str, Any]:
        found = c_void_p()
        check(lib.weightd_plan_json(self.handle, byref(found)))
        return json.loads(_abi.take_text(found))

    def places(self) -> list[_abi.Tensor]:
        """The offset and the bytes of each row."""
        found = []
        for i in range(len(self.rows)):
            found.append(_abi.Tensor())
            check(lib.weightd_plan_tensor(self.handle, i, byref(found[-1])))
        return found

    def bucket(self, index: int) -> int:
        """The bucket of a parameter that has elements."""
        found = c_uint32()
        check(lib.weightd_plan_bucket(self.handle, index, byref(found)))
        return found.value


def _row(row: Row, group: int) -> _abi.Tensor:
    shape = (c_uint64 * len(row.shape))(*row.shape)
    return _abi.Tensor(name=text(row.name), shape=shape, n_dims=len(row.shape), dtype=_dtype.code(row.dtype),
                       role=ROLES[row.role], group=group, frozen=row.is_frozen, unit=row.unit, level=row.level)


def _type_of(dtype: str) -> torch.dtype:
    return getattr(torch, _dtype.TORCH[dtype])


def _scaling(scaler: Scaler | None) -> Any:
    if scaler is None:
        return None
    return ctypes.pointer(_abi.Scaling(init=scaler.init_scale, growth=scaler.growth_factor,
                                       backoff=scaler.backoff_factor, interval=scaler.growth_interval))


def _nodes_of(mesh: Mesh, group: Any) -> _abi.Nodes:
    """`group`: a process group of torch.distributed; None: Gloo of the library."""
    engine = None if group is None else ctypes.pointer(_group.engine_of(group, mesh))
    return _abi.Nodes(node=mesh.node, address=None if mesh.address is None else text(mesh.address), port=mesh.port,
                      engine=engine)


class Trainer:
    """
    This process as a rank. Tensors over its memory hold it, it holds none of them: the last one to go unmaps it.
    Indices are those of the plan's rows.
    """

    handle: c_void_p | None = None  # until __init__ has one

    def __init__(self, plan: Plan, token: str, sharded: Sharded):
        self.plan, self._pid = plan, os.getpid()
        self._connection = Connection()  # the library keeps it for this trainer
        mesh, given = sharded.mesh, sharded.options
        options = _abi.Options(token=text(token), rank=mesh.local_rank, interruptible=True,
                               on_death=ON_DEATH[given.on_death], deadline_ms=deadline_ms(given.deadline))
        self._wait: Callable[..., int] = _abi.wait
        if mesh.n_nodes > 1:
            self._nodes = _nodes_of(mesh, given.engine)  # its callback is the library's for as long as the trainer is
            options.nodes = ctypes.pointer(self._nodes)
        if given.engine is not None:
            self._wait = functools.partial(_abi.wait, around=_group.held_signals)
        handle = c_void_p()
        try:
            self._wait(lib.weightd_train_open, self._connection.handle, plan.handle, byref(options), byref(handle))
        except BaseException:  # Ctrl-C, maybe after the library has opened the job
            lib.weightd_train_free(handle)
            raise
        self.handle, self.is_writing = handle, False
        self._ranges: dict[int, int] = {}  # sizes by address, of all memory of the job that tensors show
        self._starts: list[int] = []  # these addresses, sorted
        # Parameters of units, by id(), and their names: they show no memory of the job while the unit is closed.
        self._in_units: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        _remember(self)

    def __del__(self, free=lib.weightd_train_free, getpid=os.getpid):
        if self.handle is not None and self._pid == getpid():
            free(self.handle)

    def give_up(self) -> None:
        """Frees the trainer before there are tensors over its memory. The job remains."""
        handle, self.handle = self.use(), None
        lib.weightd_train_free(handle)

    @property
    def step(self) -> int:
        """Steps that are committed."""
        return lib.weightd_train_step(self.handle)

    @property
    def is_empty(self) -> bool:
        return lib.weightd_train_is_empty(self.handle)

    def is_parents(self) -> bool:
        """True in a process that was forked from the rank."""
        return self._pid != os.getpid()

    def use(self) -> c_void_p:
        """The handle, for a call. Disconnected: a forked child is no rank."""
        if self.is_parents():
            raise error(errno.ECHILD, "this process was forked from a rank, and is none: the parameters may be read "
                        "here, and a step is the parent's")
        return self.handle

    def _memory(self, address: int, size: int) -> Any:
        """Memory of the job as an object with a buffer, which keeps it mapped."""
        if address not in self._ranges:
            bisect.insort(self._starts, address)
        self._ranges[address] = size
        pages = (ctypes.c_ubyte * size).from_address(address)
        pages.trainer = self
        return pages

    def range(self, kind: str) -> torch.Tensor:
        """PARAM, or GRAD of the step that is next, flat."""
        size = c_uint64()
        address = lib.weightd_train_range(self.handle, KINDS[kind], byref(size))
        dtype = self.plan.param_dtype if kind == "PARAM" else self.plan.grad_dtype
        return torch.frombuffer(self._memory(address, size.value), dtype=dtype)

    def param(self, index: int) -> torch.Tensor:
        """A parameter, in PARAM, FROZEN or the window of its unit."""
        return self._shown(index, lib.weightd_train_param)

    def grad(self, index: int) -> torch.Tensor:
        """The gradient of a parameter that has elements, whose bucket is open."""
        row = self.plan.rows[index]
        size = math.prod(row.shape) * self.plan.grad_dtype.itemsize
        pages = (ctypes.c_ubyte * size).from_address(lib.weightd_train_grad(self.handle, index))
        pages.trainer = self
        return torch.frombuffer(pages, dtype=self.plan.grad_dtype).view(row.shape)

    def buffer(self, index: int) -> torch.Tensor:
        return self._shown(index, lib.weightd_train_buffer)

    def _shown(self, index: int, address_of: Callable[..., int | None]) -> torch.Tensor:
        row = self.plan.rows[index]
        kind, shape = _type_of(row.dtype), _dtype.packed(row.shape, row.dtype)
        size = math.prod(shape) * kind.itemsize
        if not size:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(self._memory(address_of(self.handle, index), size), dtype=kind).view(shape)

    def has(self, address: int) -> bool:
        """True for an address in memory that range(), frozen() or buffer() returned."""
        at = bisect.bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._starts[at] + self._ranges[self._starts[at]]

    def remember(self, parameter: torch.Tensor, index: int) -> None:
        """It is in the job, also while it shows other memory."""
        self._in_units[id(parameter)] = weakref.ref(parameter), self.plan.rows[index].name

    def name_of(self, tensor: Any) -> str | None:
        """The name of a parameter that remember() was given; None: it was not, or it may be written now."""
        if self.is_writing:
            return None
        found = self._in_units.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def grad_address(self, index: int) -> int:
        """It changes from step to step with staleness."""
        return lib.weightd_train_grad(self.handle, index) or 0

    def fill(self, index: int, values: torch.Tensor) -> None:
        """`values` of a trained parameter are float32, of another tensor of its type."""
        values = _plain(values)
        check(lib.weightd_train_fill(self.handle, index, values.data_ptr()))

    def begin(self) -> None:
        self._wait(lib.weightd_train_begin, self.handle)

    def state(self) -> bytes:
        size = c_uint64()
        address = lib.weightd_train_state(self.handle, byref(size))
        return ctypes.string_at(address, size.value) if address else b""

    def wants(self, index: int) -> bool:
        return lib.weightd_train_wants(self.handle, index)

    def ready(self, index: int) -> None:
        check(lib.weightd_train_ready(self.handle, index))

    def bucket_open(self, bucket: int) -> None:
        """May be called again after an error."""
        self._wait(lib.weightd_train_bucket_open, self.use(), bucket)

    def unit_open(self, unit: int, purpose: int) -> None:
        """`purpose`: of enum weightd_pass. After an error of a wait the order of the ranks is lost."""
        self._wait(lib.weightd_train_unit_open, self.use(), unit, purpose)

    def unit_close(self, unit: int) -> None:
        check(lib.weightd_train_unit_close(self.handle, unit))

    def update(self, update: _abi.Update) -> None:
        self._wait(lib.weightd_train_update, self.use(), byref(update))

    def unused(self, unused: list[bool]) -> Any:
        """For an Update: the parameters without a gradient, in the order of the plan, in which buffers follow."""
        return (c_bool * len(self.plan.rows))(*unused) if any(unused) else None

    def write_begin(self) -> None:
        """After a write_end() that did not return, its writes continue."""
        if not self.is_writing:
            self._wait(lib.weightd_train_write_begin, self.use())
        self.is_writing = True

    def write(self, index: int, values: torch.Tensor) -> None:
        check(lib.weightd_train_write(self.handle, index, _plain(values).data_ptr()))

    def written(self, index: int) -> torch.Tensor | None:
        """The value that a parameter has in a block that writes, float32; None: this rank has it not."""
        address = lib.weightd_train_written(self.handle, index)
        if not address:
            return None
        shape = self.plan.rows[index].shape
        pages = (ctypes.c_ubyte * (math.prod(shape) * torch.float32.itemsize)).from_address(address)
        return torch.frombuffer(pages, dtype=torch.float32).view(shape)

    def write_end(self) -> None:
        self._wait(lib.weightd_train_write_end, self.use())
        self.is_writing = False

    @property
    def scale(self) -> float:
        return lib.weightd_train_scale(self.handle)

    @property
    def has_overflowed(self) -> bool:
        return lib.weightd_train_overflowed(self.handle)

    @property
    def norm(self) -> float:
        return lib.weightd_train_norm(self.handle)

    def traffic(self) -> Traffic:
        found = _abi.Traffic()
        check(lib.weightd_train_traffic(self.handle, byref(found)))
        return Traffic(found.read, found.written, found.sent, found.sent_replicas)

    def planned_traffic(self, rank: int) -> Traffic:
        found = _abi.Traffic()
        check(lib.weightd_plan_traffic(self.plan.handle, c_uint32(rank), byref(found)))
        return Traffic(found.read, found.written, found.sent, found.sent_replicas)

    def publish(self, name: str | None, owner: int | str | None) -> int:
        """None: this rank takes part alone, with "zero3"."""
        version = c_uint64()
        check(lib.weightd_train_publish_owned(self.use(), None if name is None else text(name), owner_uid(owner), byref(version)))
        return version.value

    def save(self, folder: str | os.PathLike, keep: int) -> None:
        check(lib.weightd_train_save(self.use(), path_bytes(folder), byref(_abi.CheckpointOptions(keep=keep))))

    def save_wait(self) -> None:
        self._wait(lib.weightd_train_save_wait, self.use())

    def load(self, folder: str | os.PathLike) -> None:
        self._wait(lib.weightd_train_load, self.use(), path_bytes(folder))

    def close(self) -> None:
        self._wait(lib.weightd_train_close, self.use())


def deadline_ms(deadline: float | None) -> int:
    """None: none. 0: the library's own."""
    if deadline is None:
        return -1
    return max(1, milliseconds(deadline)) if deadline else 0


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


# --- Tensors in jobs ---------------------------------------------------------------------------------

# Replaced and never changed: threads that pickle tensors read it.
_all: tuple[weakref.ref[Trainer], ...] = ()


def _remember(trainer: Trainer) -> None:
    global _all
    _all = (*(ref for ref in _all if ref() is not None), weakref.ref(trainer))


def _trainers() -> list[Trainer]:
    return [trainer for trainer in (ref() for ref in _all) if trainer is not None and trainer.handle is not None]


def is_in_job(tensor: torch.Tensor | torch.UntypedStorage) -> bool:
    """True for a tensor in the memory of a job that this process has mapped: parameters, gradients and buffers."""
    return _address_in_job(tensor) is not None or _name_in_unit(tensor) is not None


def _name_in_unit(tensor: Any) -> str | None:
    return next((name for name in (trainer.name_of(tensor) for trainer in _trainers()) if name is not None), None)


def name_in_job(tensor: torch.Tensor) -> str:
    """The name of a parameter for which is_in_job() is true."""
    name = _name_in_unit(tensor)
    if name is not None:
        return name
    address = _address_in_job(tensor)
    for trainer in _trainers():
        for index, row in enumerate(trainer.plan.rows):
            if row.role == "param" and lib.weightd_train_param(trainer.handle, index) == address:
                return row.name
    return f"a tensor of shape {list(tensor.shape)}"


def _address_in_job(tensor: torch.Tensor | torch.UntypedStorage) -> int | None:
    if tensor.device.type != "cpu" or (isinstance(tensor, torch.Tensor) and not is_plain(tensor)):
        return None
    address = tensor.data_ptr()
    return address if any(trainer.has(address) for trainer in _trainers()) else None

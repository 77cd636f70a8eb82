"""Modules that are to be trained together: what shard() records, and the refusals of what cannot be."""
from __future__ import annotations

import contextlib
import errno
import weakref
from typing import Iterator, Mapping, NamedTuple, TypeVar

import torch

from .._errors import error
from ..torch._kinds import describe_plain
from ..torch._misfit import some
from ..torch._places import Held, contents_of
from ._abi import FORMS, ON_DEATH
from ._mesh import Mesh

Module = TypeVar("Module", bound=torch.nn.Module)

STRATEGIES = ("shared", "zero1", "replicated")


class Row(NamedTuple):
    """A tensor of the plan: tied names are one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    held: Held

    @property
    def tensor(self) -> torch.Tensor:
        return self.held.tensor


class Options(NamedTuple):
    """The arguments of shard() beside module and mesh."""

    strategy: str
    form: str
    bucket_bytes: int
    overlap: bool
    staleness: int
    job: str | None
    deadline: float | None
    on_death: str
    values: Mapping | None


class Sharded:
    """
    A module that shard() has seen.

    rows     its parameters, then its persistent buffers
    is_open  an optimizer has made its parameters views of the job
    is_sync  gradients are handed over as backward completes them: not inside no_sync()
    """

    def __init__(self, module: torch.nn.Module, mesh: Mesh, options: Options):
        self.mesh, self.options = mesh, options
        self.is_open, self.is_sync = False, True
        self.rows = _rows(module)
        self._module = weakref.ref(module)
        _all.add(self)

    @property
    def module(self) -> torch.nn.Module:
        module = self._module()
        if module is None:
            raise error(errno.EINVAL, "the module that shard() was given is gone")
        return module

    def parameters(self) -> list[Row]:
        return [row for row in self.rows if row.role == "param"]

    def buffers(self) -> list[Row]:
        return [row for row in self.rows if row.role == "buffer"]


_all: weakref.WeakSet[Sharded] = weakref.WeakSet()


class NoSync:
    """no_sync() of a module. A copy of the module, or an unpickled one, is an ordinary module again."""

    def __init__(self, sharded: Sharded | None = None):
        self.sharded = sharded

    def __reduce__(self):
        return NoSync, ()

    def __call__(self) -> contextlib.AbstractContextManager[None]:
        if self.sharded is None:
            raise error(errno.EINVAL, "this copy of a sharded module is an ordinary module; shard() it")
        return _without_sync(self.sharded)


@contextlib.contextmanager
def _without_sync(sharded: Sharded) -> Iterator[None]:
    before, sharded.is_sync = sharded.is_sync, False
    try:
        yield
    finally:
        sharded.is_sync = before


def no_sync(module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """
    A block whose backward passes add to the gradients and hand nothing over: all micro-batches of a step but the last,
    as with torch's DDP. Also module.no_sync(). Error: shard() has not seen the module.
    """
    return _without_sync(sharded_of(module))


def shard(module: Module, mesh: Mesh, strategy: str = "shared", *, form: str = "auto", bucket_bytes: int = 0,
          overlap: bool = False, staleness: int = 0, job: str | None = None, deadline: float | None = 30.0,
          on_death: str = "wait", values: Mapping | None = None) -> Module:
    """
    Prepares a module to be trained by all ranks of a mesh, and returns it. Nothing moves yet: the optimizer, which
    completes the plan, opens the job and makes the parameters views of its memory. Until then they are ordinary:
    initialise them, load a state_dict.

    strategy      "shared": the ranks have one copy of the parameters between them, and of the optimizer's state.
                  "zero1": each rank has a copy of the parameters. "replicated": of the state, too, as torch's DDP
    form          of a step. "fused": the update reads the gradients of all ranks in place. "two-phase": gradients are
                  summed first, bucket by bucket, which clipping (max_norm) needs. "auto": fused where the strategy can
    bucket_bytes  two-phase: bytes of gradients that are summed at once; 0: 25 MiB
    overlap       two-phase: buckets are summed while backward runs. p.grad is None then, once it is handed over
    staleness     fused and "shared": steps that a rank may be ahead of the slowest update; 0: all are in one step
    job           a name for the job, by which a later start finds it again; None: see weightd.train
    deadline      seconds for another rank to arrive in a step, which then raises Timeout; None: for ever. It must cover
                  whatever one rank does alone between steps, such as an evaluation on rank 0 or publish()
    on_death      when a rank dies: "wait" for its successor, until the deadline; "fail" with RankDied; or "finish" its
                  update, if it had handed over its gradients, and wait for it in the next step
    values        tensors by name, for a module on the meta device: the first values of a new job, read one after the
                  other: an attached Buffer, a state_dict

    The module may be on the meta device; on rank 0 of a new job its parameters need `values`. Rank 0's parameters are
    those of all ranks; buffers (running statistics) are each rank's own. A step saves those that a state_dict has.
    Tied parameters are one Parameter object.

    ValueError, by name: a parameter that is frozen, not float32, sparse, on a GPU, or in a DistributedDataParallel;
    two Parameter objects over one memory; no parameters; an unknown option.
    """
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise ValueError("a DistributedDataParallel has a copy and a reduction of its own; shard() the module inside "
                         "(ddp.module)")
    for name, value, known in (("strategy", strategy, STRATEGIES), ("form", form, FORMS),
                               ("on_death", on_death, ON_DEATH)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, known))}")
    before = module.__dict__.get("no_sync")
    if isinstance(before, NoSync) and before.sharded is not None and before.sharded.is_open:
        raise ValueError("this module is in a job already; a copy.deepcopy() of it is an ordinary module")
    options = Options(strategy, form, bucket_bytes, overlap, staleness, job, deadline, on_death, values)
    module.__dict__["no_sync"] = NoSync(Sharded(module, mesh, options))
    return module


def sharded_of(module: torch.nn.Module) -> Sharded:
    """Error: shard() has not seen it. A compiled module is as the one it was made of."""
    found = getattr(module, "no_sync", None)
    if not isinstance(found, NoSync) or found.sharded is None:
        raise error(errno.EINVAL, f"{type(module).__name__}: call weightd.train.shard(module, mesh) first")
    return found.sharded


def sharded_with(parameter: torch.Tensor) -> Sharded:
    """The module that has a parameter. ValueError."""
    for sharded in _all:
        if any(member.tensor is parameter for row in sharded.parameters() for member in row.held.members):
            return sharded
    raise ValueError(f"a parameter of shape {list(parameter.shape)} belongs to no module that shard() has seen")


def _rows(module: torch.nn.Module) -> list[Row]:
    contents = contents_of(module)
    others = [held for held in contents.others if held.role == "param"]
    rows = [Row(name, *describe_plain(name, held.tensor), held.role, held)
            for held in (*contents.held, *others) for name in [(held.names or [held.members[0].where])[0]]]
    parameters = [row for row in rows if row.role == "param"]
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no parameters to train")
    _refuse("requires_grad is False, and frozen parameters cannot be in a job yet; keep them as buffers "
            "(register_buffer)", [row.name for row in parameters if not row.tensor.requires_grad])
    _refuse("not float32; model.float() converts them",
            [f"{row.name} ({row.tensor.dtype})" for row in parameters if row.dtype != "F32"])
    _refuse("on a GPU, which jobs have no memory on yet; model.cpu() moves them",
            [f"{row.name} ({row.tensor.device})" for row in rows if row.tensor.device.type not in ("cpu", "meta")])
    _refuse("several tensors over one memory; tie them as one object (b.weight = a.weight)",
            [" and ".join(member.where for member in row.held.members) for row in rows if len(row.held.members) > 1])
    return parameters + [row for row in rows if row.role == "buffer"]


def _refuse(why: str, names: list[str]) -> None:
    if names:
        raise ValueError(f"{some(names)}: {why}")

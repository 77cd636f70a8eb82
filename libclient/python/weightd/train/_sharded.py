"""Modules that are to be trained together: what shard() records, and the refusals of what cannot be."""
from __future__ import annotations

import contextlib
import errno
import weakref
from typing import Any, Callable, Iterator, Mapping, NamedTuple, TypeVar

import torch

from .._dtype import TORCH
from .._errors import error
from ..torch._kinds import describe_plain
from ..torch._misfit import some
from ..torch._places import Held, contents_of
from ..torch._published import Published
from ._abi import FORMS, ON_DEATH
from ._group import refuse_kind
from ._mesh import Mesh
from ._precision import TYPES, Precision, Scaler
from ._units import Unit, arrange

Module = TypeVar("Module", bound=torch.nn.Module)

STRATEGIES = ("shared", "zero1", "zero2", "zero3", "replicated")
POOLED = ("zero2", "zero3")  # strategies whose gradients have memory for one bucket in the job


class Row(NamedTuple):
    """
    A tensor of the plan: tied names are one.

    dtype      in the job, which Precision may make another than the module's
    is_frozen  a parameter that is not trained
    unit, level  "zero3": the number of its unit in Sharded.units, and the level of that
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str
    held: Held
    is_frozen: bool
    unit: int = 0
    level: int = 0

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
    precision: Precision
    scaler: Scaler | None
    sync_every: int
    engine: Any
    units: Any
    reshard: bool
    prefetch: bool


class Sharded:
    """
    A module that shard() has seen.

    rows       of the plan: parameters that are trained, frozen ones, persistent buffers
    units      "zero3": those with parameters, by number
    stays      frozen parameters and buffers in memory of a published version, which all processes share already
    is_open    an optimizer has made its parameters views of the job
    optimizer  that one; None: it is gone
    is_sync    gradients are handed over as backward completes them: not inside no_sync()
    """

    def __init__(self, module: torch.nn.Module, mesh: Mesh, options: Options):
        self.mesh, self.options = mesh, options
        self.is_open, self.is_sync = False, True
        self.optimizer: Callable[[], Any] = lambda: None
        self._module = weakref.ref(module)
        self.look()
        _all.add(self)

    def look(self) -> None:
        """Takes the rows from the module as it is. ValueError, by name: what cannot be trained."""
        published = Published()
        self.rows, self.stays = [], []
        for row in _rows(self.module, self.options.precision):
            stays = not _is_trained(row) and row.tensor in published
            (self.stays if stays else self.rows).append(row)
        self.units: list[Unit] = []
        if self.options.strategy == "zero3":
            self.units, trained = arrange(self.module, self.parameters(), self.options.units)
            self.rows[:len(trained)] = trained

    @property
    def hides(self) -> bool:
        """Parameters are there while their unit is open, and at no other time."""
        return self.options.strategy == "zero3" and self.mesh.n_nodes > 1

    @property
    def module(self) -> torch.nn.Module:
        module = self._module()
        if module is None:
            raise error(errno.EINVAL, "the module that shard() was given is gone")
        return module

    def parameters(self) -> list[Row]:
        """Those that are trained."""
        return [row for row in self.rows if _is_trained(row)]

    def frozen(self) -> list[Row]:
        """Those in FROZEN."""
        return [row for row in self.rows if row.is_frozen]

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
          overlap: bool = False, staleness: int = 0, job: str | None = None, deadline: float | None = 0.0,
          on_death: str = "wait", values: Mapping | None = None, precision: Precision | None = None,
          scaler: Scaler | None = None, sync_every: int = 0, engine: Any = None, units: Any = None, reshard: bool = True,
          prefetch: bool = True) -> Module:
    """
    Prepares a module to be trained by all ranks of a mesh, and returns it. Nothing moves yet: the optimizer, which
    completes the plan, opens the job and makes the parameters views of its memory. Until then they are ordinary:
    initialise them, load a state_dict.

    strategy      "shared": the ranks of a machine have one copy of the parameters between them, and of the optimizer's
                  state. "zero1": each rank has a copy of the parameters. "replicated": of the state, too, as torch's
                  DDP. "zero2": as "shared", and gradients have memory for one bucket in the job: see below. "zero3":
                  likewise, and each machine has a part of the parameters; those of a unit are gathered while forward or
                  backward is in it, as by FSDP
    form          of a step. "fused": the update reads the gradients of all ranks in place. "two-phase": gradients are
                  summed first, bucket by bucket, which clipping (max_norm) needs. "auto": fused where the strategy can
    bucket_bytes  two-phase: bytes of gradients that are summed at once; 0: 25 MiB
    overlap       two-phase: buckets are summed while backward runs. p.grad is None then, once it is handed over
    staleness     fused and "shared": steps that a rank may be ahead of the slowest update; 0: all are in one step
    job           a name for the job, by which a later start finds it again; None: see weightd.train
    deadline      seconds for another rank to arrive in a step, which then raises Timeout; None: for ever; 0: 30 s, and
                  10 minutes where the optimizer is made, as the others are starting, too. It must cover
                  what one rank does alone between steps, such as an evaluation on rank 0 or publish()
    on_death      when a rank dies: "wait" for its successor, until the deadline; "fail" with RankDied; or "finish" its
                  update, if it had handed over its gradients, and wait for it in the next step: one machine only
    values        tensors by name, for a module on the meta device: the first values of a new job, read one after the
                  other: an attached Buffer, a state_dict
    precision     a Precision: element types of parameters, gradients and buffers apart; None: as they are, and a module
                  in bfloat16 or float16 is trained with float32 originals, too
    scaler        a Scaler: the loss is scaled, for gradients in float16; the form is "two-phase" then
    sync_every    several machines, "shared", no scaler: each takes steps of its own, and after every so many of them
                  their parameters become the mean of all machines (local SGD); the optimizer's state stays each
                  machine's own. 0: gradients are summed over the machines in each step
    engine        several machines: what moves bytes between them. None: Gloo, of libweightd-train-gloo.so, which also
                  torch.distributed.group.WORLD is before init_process_group(): call that first. A process
                  group of torch.distributed that sends memory of the CPU, such as one of backend "gloo": of all ranks
                  of the mesh, by the same numbers, or of the ranks with one local_rank, by their nodes. It must stay
                  until the optimizer is closed. A lost connection ends the optimizer then, and all ranks have to be
                  started again: their jobs continue. Ctrl-C waits for the end of an exchange by a group.
                  Checkpoints connect to the mesh's address in any case

    units         "zero3": modules whose parameters are gathered together, and summed together. A class of modules, a name as
                  of named_modules(), a list of those, a function of (name, module), or a number: bottom up, modules with at
                  least so many parameters that are in no smaller unit. A unit inside another is cut out of it; the rest of
                  the module is a unit, too. None: all of it is one
    reshard       "zero3": False: a unit that forward has gathered stays in memory until the step ends
    prefetch      "zero3": the next unit of the same depth is gathered while one is in use. False: half of that memory

    The module may be on the meta device; on rank 0 of a new job its parameters need `values`. Rank 0's parameters are
    those of all ranks; buffers (running statistics) are each rank's own. A step saves those that a state_dict has. Tied
    parameters are one Parameter object.

    Parameters that need no gradient when the optimizer is made are frozen: the ranks have one copy between them, of any
    type. Those in the memory of a published version (weightd.torch.bind) stay there: several jobs on one base. They
    are in no version that publish() makes, and in no checkpoint.

    With "zero2" and "zero3" p.grad is torch's own. A bucket (bucket_bytes; with "zero3" a unit) is handed over, in the order of
    the plan, once backward has completed all of it, and p.grad is None then; what is left is handed over by the step, such as
    buckets behind a parameter without a gradient. Inside no_sync() nothing is. Gradients are summed with equal weights:
    opt.step(weight=) is refused, and the loss is multiplied instead (Sampler.share()).

    "zero3", on several machines: a program calls modules, and nothing changes in them. All ranks must call the same units in the
    same order, in evaluation, too, and run backward alike. A parameter outside a call of its unit, and of the backward pass
    through that, is an empty tensor, which torch refuses by its size; those of the root are there until backward ends.
    gathered() shows all of them. torch.compile() breaks its graphs at units. What forward of a unit returns must have its
    tensors in tuples, lists, dicts, dataclasses or attributes, for backward to find. Checkpoints of activations
    (torch.utils.checkpoint) are fine; with use_reentrant=True a unit is called once in a forward. An
    error of one rank in forward or backward, such as Timeout or Ctrl-C in the wait for a unit, loses the order of the ranks:
    start that rank again. On one machine parameters are always there.

    The same by other names:

        FSDP1, ShardingStrategy  FULL_SHARD "zero3", SHARD_GRAD_OP "zero3" with reshard=False, NO_SHARD "replicated",
                                 HYBRID_SHARD "zero3" with init_mesh({"replicate": ..., "shard": ...})
        FSDP1                    auto_wrap_policy units=, backward_prefetch and forward_prefetch prefetch=
        FSDP2                    fully_shard() of each block and the root: units=; reshard_after_forward reshard=
        DeepSpeed                stage 0 "replicated", 1 "zero1", 2 "zero2", 3 "zero3"

    ValueError, by name: a trained parameter that is none of float32, bfloat16 and float16, or trained parameters of
    several types; a parameter that is sparse, on a GPU, or in a DistributedDataParallel; two Parameter objects over one
    memory; no parameters to train; an unknown option; sync_every or engine with one machine; units that mean no
    module, or one that is never called; units, reshard or prefetch with another strategy. TypeError: a precision,
    scaler or engine of another class, or units. Where the optimizer is made, ValueError: a process group of other ranks.
    """
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise ValueError("a DistributedDataParallel has a copy and a reduction of its own; shard() the module inside "
                         "(ddp.module)")
    for name, value, known in (("strategy", strategy, STRATEGIES), ("form", form, FORMS),
                               ("on_death", on_death, ON_DEATH)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, known))}")
    _refuse_kinds(precision, scaler)
    _refuse_nodes(mesh, sync_every, engine, on_death)
    _refuse_units(module, strategy, units, reshard, prefetch)
    if scaler is not None and form == "fused":
        raise ValueError('a scaler needs the whole gradient before the update: leave the form "auto", or "two-phase"')
    inner = getattr(module, "_orig_mod", module)  # torch.compile() puts that before all names
    before = inner.__dict__.get("no_sync")
    if isinstance(before, NoSync) and before.sharded is not None and before.sharded.is_open:
        raise ValueError("this module is in a job already; a copy.deepcopy() of it is an ordinary module")
    options = Options(strategy, form if scaler is None else "two-phase", bucket_bytes, overlap, staleness, job,
                      deadline, on_death, values, precision or Precision(), scaler, sync_every, engine,
                      units, reshard, prefetch)
    inner.__dict__["no_sync"] = NoSync(Sharded(inner, mesh, options))
    return module


def _refuse_kinds(precision: Any, scaler: Any) -> None:
    if not isinstance(precision, (Precision, type(None))):
        raise TypeError(f"precision={precision!r} is no weightd.train.Precision; write "
                        "precision=Precision(param=torch.bfloat16)")
    if not isinstance(scaler, (Scaler, type(None))):
        raise TypeError(f"scaler is a {type(scaler).__name__}, and no weightd.train.Scaler; torch's GradScaler would skip "
                        "steps on one rank alone: write scaler=Scaler(), and opt.scale(loss).backward()")


def _refuse_nodes(mesh: Mesh, sync_every: int, engine: Any, on_death: str) -> None:
    refuse_kind(engine)
    if sync_every < 0:
        raise ValueError(f"sync_every is {sync_every}; it must be a number of steps, or 0: gradients are summed in "
                         "each step")
    if mesh.n_nodes == 1 and (sync_every or engine is not None):
        raise ValueError(f"{'sync_every' if sync_every else 'engine'} is for several machines, and the mesh has one; "
                         "leave it out, or pass init_mesh(n_nodes=)")
    if on_death == "finish" and mesh.n_nodes > 1:
        raise ValueError('on_death="finish" is for one machine: no rank can use the connections of a dead one; leave '
                         'it at "wait", or use "fail"')


def _refuse_units(module: torch.nn.Module, strategy: str, units: Any, reshard: bool, prefetch: bool) -> None:
    given = [name for name, is_given in (("units", units is not None), ("reshard", not reshard), ("prefetch", not prefetch))
             if is_given]
    if given and strategy != "zero3":
        raise ValueError(f"{given[0]}= is for strategy=\"zero3\", whose parameters are gathered unit by unit, and not for "
                         f"{strategy!r}")


def sharded_of(module: torch.nn.Module) -> Sharded:
    """Error: shard() has not seen it. A compiled module is as the one it was made of."""
    found = getattr(module, "no_sync", None)
    if not isinstance(found, NoSync) or found.sharded is None:
        raise error(errno.EINVAL, f"{type(module).__name__}: call weightd.train.shard(module, mesh) first")
    return found.sharded


def sharded_with(parameter: torch.Tensor) -> Sharded:
    """The module that has a parameter. ValueError."""
    for sharded in _all:
        if any(member.tensor is parameter for row in sharded.rows + sharded.stays for member in row.held.members):
            return sharded
    raise ValueError(f"a parameter of shape {list(parameter.shape)} belongs to no module that shard() has seen")


def _is_trained(row: Row) -> bool:
    return row.role == "param" and not row.is_frozen


def _rows(module: torch.nn.Module, precision: Precision) -> list[Row]:
    contents = contents_of(module)
    others = [held for held in contents.others if held.role == "param"]
    rows = [_row(name, held, precision) for held in (*contents.held, *others)
            for name in [(held.names or [held.members[0].where])[0]]]
    trained = [row for row in rows if _is_trained(row)]
    if not trained:
        raise ValueError(f"{type(module).__name__} has no parameters to train: none needs a gradient")
    _refuse(f"none of {', '.join(map(str, TYPES))}; model.float() converts them, requires_grad_(False) freezes them",
            [f"{row.name} ({row.tensor.dtype})" for row in trained if row.dtype not in TYPES.values()])
    _refuse("trained parameters of several types; shard(..., precision=Precision(param=torch.bfloat16)) makes them one",
            [f"{row.name} ({row.tensor.dtype})" for row in _firsts(trained)])
    _refuse("on a GPU, which jobs have no memory on yet; model.cpu() moves them",
            [f"{row.name} ({row.tensor.device})" for row in rows if row.tensor.device.type not in ("cpu", "meta")])
    _refuse("several tensors over one memory; tie them as one object (b.weight = a.weight)",
            [" and ".join(member.where for member in row.held.members) for row in rows if len(row.held.members) > 1])
    precision.reduces_in(getattr(torch, TORCH[trained[0].dtype]))
    return trained + [row for row in rows if row.is_frozen] + [row for row in rows if row.role == "buffer"]


def _row(name: str, held: Held, precision: Precision) -> Row:
    dtype, shape = describe_plain(name, held.tensor)
    is_frozen = held.role == "param" and not held.tensor.requires_grad
    if held.role == "param" and precision.param is not None and held.tensor.dtype in TYPES:
        dtype = TYPES[precision.param]
    elif held.role == "buffer" and precision.buffer is not None and held.tensor.is_floating_point():
        dtype, shape = describe_plain(name, torch.empty(held.tensor.shape, dtype=precision.buffer, device="meta"))
    return Row(name, dtype, shape, held.role, held, is_frozen)


def _firsts(rows: list[Row]) -> list[Row]:
    """The first row of each type, if there are several."""
    found: dict[str, Row] = {}
    for row in rows:
        found.setdefault(row.dtype, row)
    return list(found.values()) if len(found) > 1 else []


def _refuse(why: str, names: list[str]) -> None:
    if names:
        raise ValueError(f"{some(names)}: {why}")

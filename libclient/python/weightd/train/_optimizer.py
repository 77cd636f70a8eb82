"""Optimizers whose state is a job's."""
from __future__ import annotations

import atexit
import ctypes
import errno
import numbers
import os
import sys
import warnings
import weakref
from typing import Any, Callable, Iterator, TypeVar

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .._errors import Error, error
from ..torch._misfit import some
from . import _abi, _state
from ._gather import Gather
from ._gradients import Gradients
from ._job import Job, find_job
from ._places import Places, fill
from ._pool import Pooled
from ._sharded import POOLED, Sharded, sharded_of, sharded_with
from ._trainer import Plan, Traffic, Trainer
from ._writes import refuse_writes

Made = TypeVar("Made")  # a scheduler, or several


class Optimizer(torch.optim.Optimizer):
    """
    An optimizer of torch's kind, whose step the ranks of a job take together. Its state lies in the job.

    Making it opens the job: the ranks compare their plans, rank 0 gives a new job its values, and the parameters of
    the module become views of memory that only steps write. A job that has taken steps also restores the program's
    state: the generators of torch, numpy (if loaded) and Python, the cursor, the learning rates, the buffers of the
    module. A program that was killed continues in its step when it is started again:

        for step in opt.steps(1000):                 # from opt.resumed_step on
            ...
            opt.step(loss, cursor=position)

    resume() makes a scheduler of torch in its state of that step.

    The job ends when each rank has called close(): at the end of a `with opt:` block without an exception, or of a
    program that ends without one after its loop over steps() was done. Else it stays, to be resumed or removed
    (weightctl rm).

    resumed_step  steps that were committed when this process opened the job; 0 for a new one
    cursor        what the last committed step saved; None for a new job

    Raised by making it and by step(): LayoutMismatch: the ranks have different plans, and the first difference.
    Timeout: a rank did not arrive. RankBusy: another process is this rank. RankDied. Error: no room, with the
    arithmetic; no server; a job that was removed.
    """

    _NAME = ""
    _FIXED: tuple[str, ...] = ()  # members of a group that are part of the plan
    _job: Job | None = None
    # GradScaler then sets found_inf and leaves the rest to step(), which refuses it. Else it would scale in silence,
    # and skip steps on one rank alone: its kernel changes gradients without a trace in their versions.
    _step_supports_amp_scaling = True

    def __init__(self, params, defaults: dict[str, Any]):
        sharded = sharded_of(params) if isinstance(params, torch.nn.Module) else None
        super().__init__(list(params.parameters()) if isinstance(params, torch.nn.Module) else params, defaults)
        sharded = sharded or sharded_with(self.param_groups[0]["params"][0])
        if sharded.is_open:
            raise error(errno.EBUSY, "this module has an optimizer already, and is in its job")
        sharded.look()  # at parameters that were frozen since shard()
        self._sharded = sharded
        self._refuse_groups()
        groups, self._fixed = [_group(group) for group in self.param_groups], self._fixed_now()
        self._plan = Plan(sharded, self._NAME, groups, self._group_of(), _state.SIZE)
        self._job = find_job(sharded.mesh, sharded.options.job)
        self._trainer = self._opened()
        self._is_closed = self._is_complete = self._has_schedulers = False
        self._is_scaled = False  # scale() was called in this step
        self._cursor: Any = None
        # The cursor and the arguments of a step that has begun and is not committed.
        self._pending: tuple[Any, _abi.Update] | None = None
        self._install()
        self._first = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        self.resumed_step = self._trainer.step
        self._resume()
        refuse_writes(_is_ours)
        _open.add(self)

    # --- Opening --------------------------------------------------------------------------------

    def _refuse_groups(self) -> None:
        sharded = self._sharded
        given = {id(p) for group in self.param_groups for p in group["params"]}
        without = [row.name for row in sharded.parameters() if id(row.tensor) not in given]
        if without:
            raise ValueError(f"{some(without)}: in no parameter group; a job trains all parameters of its module that "
                             "need a gradient (requires_grad_(False) freezes them)")
        strangers = given - {id(row.tensor) for row in sharded.rows + sharded.stays}
        if strangers:
            raise ValueError(f"the parameter groups have {len(strangers)} parameters that the module has not")
        for i, group in enumerate(self.param_groups):
            for key in ("lr", *(key for key in self._FIXED if key not in ("betas", "nesterov"))):
                if not isinstance(group[key], numbers.Real) or not group[key] >= 0:
                    raise ValueError(f"parameter group {i}: {key} is {group[key]!r}, and must be a number that is not "
                                     "negative")

    def _group_of(self) -> dict[str, int]:
        index = {id(p): i for i, group in enumerate(self.param_groups) for p in group["params"]}
        return {row.name: index[id(row.tensor)] for row in self._sharded.parameters()}  # frozen ones have none

    def _fixed_now(self) -> list[dict[str, Any]]:
        return [{key: group[key] for key in self._FIXED} for group in self.param_groups]

    def _opened(self) -> Trainer:
        """The job with values. On an error, a job that this process created for nothing is removed."""
        sharded, trainer = self._sharded, None
        try:
            trainer = Trainer(self._plan, self._job.token, sharded)
            if trainer.is_empty and sharded.mesh.rank == 0:
                fill(sharded, trainer)
            trainer.begin()
        except BaseException:
            if trainer is not None:
                trainer.give_up()
            self._job.give_up()
            raise
        return trainer

    def _install(self) -> None:
        sharded, trainer = self._sharded, self._trainer
        with torch.inference_mode(False), torch.no_grad():
            self._places = Places(sharded, trainer)
        successors = {id(row.tensor): p for row, p in zip(sharded.parameters(), self._places.parameters)}
        for group in self.param_groups:
            group["params"] = [successors[id(p)] for p in group["params"] if id(p) in successors]
        self._is_two_phase = self._plan.describe()["form"] != "fused"
        self._gather: Gather | None = None
        if sharded.options.strategy in POOLED:
            self._gradients: Gradients | Pooled = Pooled(sharded, trainer, self._places.parameters)
        else:
            self._gradients = Gradients(sharded, trainer, self._places.parameters, self._is_two_phase)
        if sharded.options.strategy == "zero3":
            self._gather = Gather(sharded, trainer, self._places.parameters, self._gradients)
        sharded.is_open, sharded.optimizer = True, weakref.ref(self)

    def _resume(self) -> None:
        packed = self._trainer.state()
        if not packed:
            return
        self._cursor, groups = _state.restore(packed, self._sharded.mesh.rank, self._sharded.mesh.size)
        for group, saved in zip(self.param_groups, groups):
            # A checkpoint may be of a plan with another weight decay; this job has its own.
            group.update({key: value for key, value in saved.items() if key not in self._FIXED})

    def resume(self, make_scheduler: Callable[[Optimizer], Made], calls: int | None = None) -> Made:
        """
        Makes a scheduler of torch, or a list of several, in its state of the resumed step: the same learning rates, to
        the bit, as without the restart. Called once, before the first step:

            scheduler = opt.resume(lambda opt: CosineAnnealingLR(opt, T_max=1000))

        make_scheduler  returns new schedulers; the learning rates are those that the optimizer was made with
        calls           of scheduler.step() until the resumed step, which are repeated. None: one each step. A program
                        with another rhythm computes the number from resumed_step, or counts in its cursor

        ReduceLROnPlateau cannot be repeated: call it before opt.step(), and save its state_dict() in the cursor.
        """
        if self._has_schedulers or self._pending is not None or self.step_number != self.resumed_step:
            raise error(errno.EALREADY, "resume() is called once, before the first step; make_scheduler may return a "
                        "list of schedulers")
        for group, first in zip(self.param_groups, self._first):
            for key in group.keys() - first.keys() - {"params"}:
                del group[key]
            group.update(first)
        made = make_scheduler(self)
        schedulers = made if isinstance(made, (list, tuple)) else [made]
        if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
            raise TypeError("ReduceLROnPlateau depends on the metrics of all steps, which are gone: make it without "
                            "resume(), call it before opt.step(), and save its state_dict() with opt.step(cursor=)")
        self._has_schedulers = True
        calls = self.resumed_step if calls is None else calls
        self._opt_called = calls > 0  # torch warns of schedulers that step before the optimizer
        for _ in range(calls):
            for scheduler in schedulers:
                scheduler.step()
        return made

    # --- Steps ----------------------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """Steps that are committed."""
        return self._trainer.step

    @property
    def cursor(self) -> Any:
        return self._cursor

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps that are left of `total`, counted from 0: each is given until it is committed."""
        while self.step_number < total:
            yield self.step_number
        self._is_complete = True

    @torch.no_grad()
    def step(self, loss=None, *, max_norm: float | None = None, weight: float | None = None,
             cursor: Any = None) -> None:
        """
        Takes the step with all ranks: the mean of their gradients, then the update. A parameter without a gradient on
        some ranks has zeros there; without one on any, it stays as it is, with its state. p.grad is None afterwards.

        loss      a number or a tensor of one: NotANumber is raised on all ranks if that of one is NaN. The step counts
                  then, and changed nothing
        max_norm  clips the gradient by its global norm, as clip_grad_norm_() clips the whole one; needs the form
                  "two-phase". See norm. All ranks pass the same
        weight    of this rank in the mean, such as its number of samples: sum(weight * gradient) / sum(weight);
                  None: equal. "zero2" and "zero3": Error; multiply the loss by Sampler.share()
        cursor    anything that JSON has, 4 KiB at most, saved with the step: the position in the data, the
                  state_dict() of a ReduceLROnPlateau; None: as with the last step

        The learning rates and max_norm of rank 0 are those of all ranks; others are not compared.

        With shard(scaler=) the gradients are of opt.scale(loss); `loss` here is the loss itself. The step is over, and
        changed nothing, if `overflowed` is true then.

        After RankDied, Timeout and KeyboardInterrupt the step has begun, and step() may be called again: it continues
        with the gradients and arguments of the first call. Before it begins: Error for a parameter that is no longer in
        the job (to(), load_state_dict(assign=True)), or a gradient that was changed.
        """
        if self._is_closed:
            raise error(errno.EALREADY, "this rank has left its job by close(), and takes no more steps")
        if callable(loss) and not isinstance(loss, torch.Tensor):
            raise TypeError("step() takes the loss, and no closure: gradients of a step are computed once")
        if hasattr(self, "found_inf"):
            del self.found_inf, self.grad_scale
            raise error(errno.EOPNOTSUPP, "a GradScaler would skip steps on one rank alone. float16 gradients have "
                        "shard(..., scaler=weightd.train.Scaler()), opt.scale(loss).backward() and opt.step(loss); "
                        "others need none")
        self._refuse_changes()
        self._refuse_unscaled()
        if max_norm and not self._is_two_phase:
            raise error(errno.EINVAL, "max_norm needs the whole gradient before the update: shard(..., "
                        'form="two-phase")')
        self._refuse_weight(weight)
        self._settle()
        self._places.check()
        if self._trainer.is_writing:
            raise error(errno.EINVAL, "writable() was left before all ranks had ended it; enter it again before a step")
        if self._pending is None:
            self._pending = self._prepare(loss, max_norm, weight, self._cursor if cursor is None else cursor)
        before = self.step_number
        try:
            self._gradients.hand_rest()
            self._trainer.update(self._pending[1])
        except BaseException as e:
            if self.step_number > before:  # NotANumber, or a signal after the step
                self._finish()
            elif isinstance(e, Error) and e.errno == errno.EINVAL:
                self._pending = None  # the arguments were refused
            else:
                self._gradients.hand_over()
            raise
        self._finish()

    def _prepare(self, loss, max_norm: float | None, weight: float | None, cursor: Any) -> tuple[Any, _abi.Update]:
        """Whatever can be wrong with a step is found here, before it begins."""
        rates = [float(group["lr"]) for group in self.param_groups]
        mesh = self._sharded.mesh
        state = _state.pack(cursor, [_scalars(group) for group in self.param_groups], mesh.rank, mesh.size)
        update = _abi.Update(lr=(ctypes.c_double * len(rates))(*rates), weight=float(weight or 0.0),
                             has_loss=loss is not None, loss=0.0 if loss is None else float(loss),
                             max_norm=float(max_norm or 0.0), state=state, state_size=len(state))
        update.unused = self._trainer.unused(self._gradients.complete())
        self._places.save_buffers()
        return cursor, update

    def _finish(self) -> None:
        (self._cursor, _), self._pending = self._pending, None
        self._is_scaled = False
        self._gradients.drop()
        self._places.has_written()
        if self._gather is not None:
            self._gather.forget()

    def _settle(self) -> None:
        """Before what is done between forward and backward passes."""
        self._trainer.use()
        if self._gather is not None:
            self._gather.settle()

    def _refuse_weight(self, weight: float | None) -> None:
        strategy = self._sharded.options.strategy
        if weight is not None and strategy in POOLED:
            raise error(errno.EINVAL, f"weight= with strategy={strategy!r}: gradients are summed during backward, with equal "
                        "weights; multiply the loss by this rank's share (Sampler.share()) and leave weight out")

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """
        The loss times loss_scale, a tensor of its shape, for backward: opt.scale(loss).backward(). The loss of each
        micro-batch of a step is scaled. Without shard(scaler=) it is the loss itself.
        """
        self._is_scaled = True
        return loss if self._sharded.options.scaler is None else loss * self.loss_scale

    @property
    def loss_scale(self) -> float:
        """The factor for the loss of the step that is next; 1.0 without shard(scaler=)."""
        return self._trainer.scale

    @property
    def overflowed(self) -> bool:
        """The last step changed nothing, as a scaled gradient of some rank was not finite."""
        return self._trainer.has_overflowed

    def _refuse_unscaled(self) -> None:
        if self._sharded.options.scaler is not None and not self._is_scaled and self._gradients.taken():
            raise error(errno.EINVAL, f"{some(self._gradients.taken())}: the gradient is of a loss that was not "
                        f"scaled, and the step would divide it by {self.loss_scale:g}; call opt.zero_grad(), and then "
                        "opt.scale(loss).backward()")

    def _refuse_changes(self) -> None:
        for i, (fixed, now) in enumerate(zip(self._fixed, self._fixed_now())):
            for key in fixed:
                if fixed[key] != now[key]:
                    raise error(errno.EOPNOTSUPP, f"parameter group {i}: {key} is {now[key]!r} and was {fixed[key]!r}; "
                                "only lr may change from step to step (cycle_momentum=False for schedulers)")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """
        Drops the gradients of this step so far. Not needed: a step does so itself.
        """
        had_gradients = bool(self._gradients.taken())
        self._gradients.forget()
        if had_gradients:  # else scale() was called for a backward pass that is to come
            self._is_scaled = self._is_scaled and bool(self._gradients.taken())  # those that were handed over

    @property
    def norm(self) -> float:
        """The global norm of the last step's mean gradient, before clipping; "two-phase" only. NaN: there is none."""
        return self._trainer.norm

    # --- Around steps ------------------------------------------------------------------------------

    def publish(self, name: str, owner: int | str | None = None) -> int | None:
        """
        Publishes parameters and buffers of the last step as a version of buffer `name`. Every rank may call it: the
        first one of each node does it, with its buffers, for the server of its node, and gets the number of the version
        there; the others get None. With "zero3" on several nodes every rank of all nodes must call it, after the same step.
        `owner` as in weightd.create(). Denied: the buffer is another user's.
        """
        is_first = self._sharded.mesh.local_rank == 0
        if self._gather is None or not self._gather.hides:
            return self._trainer.publish(name, owner) if is_first else None
        self._settle()
        with self._gather.ordered("a version was published"):
            version = self._trainer.publish(name if is_first else None, owner)
        return version if is_first else None

    def save(self, folder: str | os.PathLike, keep: int = 2, wait: bool = False) -> None:
        """
        Saves the last step into `folder`, as step-000000000120 and so on: parameters and buffers as safetensors files with
        an index, which safetensors and weightctl load, and transformers once model.config.save_pretrained() has written
        a config.json into it; the optimizer's state, by name, likewise; the learning rates, generators and cursors of all ranks. Every rank calls it after the same step. A thread writes a copy of this
        rank's part while training goes on; the checkpoint appears once all of it is on the disk, or not at all.

        keep  newest checkpoints that remain in the folder; 0: all. ValueError: negative
        wait  for the end. Otherwise a save that fails is a RuntimeWarning of the next save() or close(), on all ranks, and
              training goes on

        The next save() waits for the one before. Error, with wait=True: no room on the disk, and others of files, with the
        file; RankDied; a rank that took the next step without the save. Error: with staleness.
        """
        if not 0 <= keep < 2**32:
            raise ValueError(f"keep is {keep}; it must be a number of checkpoints, or 0 for all")
        self._end_save()
        self._settle()
        self._trainer.save(folder, keep)
        if wait:
            self._trainer.save_wait()

    def _end_save(self) -> None:
        try:
            self._trainer.save_wait()
        except Error as e:
            warnings.warn(f"a checkpoint was not saved: {e}", RuntimeWarning, stacklevel=3)

    def load(self, folder: str | os.PathLike) -> None:
        """
        Gives a job that has taken no step the values of a checkpoint, or of the newest one in `folder`: parameters,
        buffers, the optimizer's state, learning rates, generators and the cursor. Every rank calls it, once the optimizer
        is made:

            if opt.resumed_step == 0 and os.path.exists("checkpoints"):
                opt.load("checkpoints")
            for step in opt.steps(1000): ...         # from the step of the checkpoint on

        The number of ranks, the strategy and the form may be others than when it was saved. Weight decay, betas and their
        like are those that this optimizer was made with. With another number of ranks each has the cursor and the buffers
        of the checkpoint's rank 0, and generators stay as they are. Each rank reads the bytes that it updates, and headers.

        Error: EALREADY: the job has taken a step; ENOENT: no checkpoint; EBADMSG: a damaged file, by its name.
        LayoutMismatch: the first difference of the model or the optimizer.
        """
        self._settle()
        self._trainer.load(folder)
        self._gradients.drop()  # those of other values
        self._resume()
        self._places.has_written()
        self.resumed_step = self._trainer.step
        self._has_schedulers = False  # those that were made before are of step 0

    def plan(self) -> dict[str, Any]:
        """The plan, as weightd-train(7) describes its JSON."""
        return self._plan.describe()

    def traffic(self) -> Traffic:
        """Bytes that this rank moved since it opened the job."""
        return self._trainer.traffic()

    def close(self) -> None:
        """This rank is done: once all are, the job ends. The parameters remain as they are, and read-only."""
        if not self._is_closed:
            self._end_save()
            self._settle()
            self._trainer.close()
            self._is_closed = True
            self._job.left()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.close()

    # --- Refused --------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Before the job is open only."""
        if self._job is not None:
            raise error(errno.EOPNOTSUPP, "parameter groups are part of the plan, which is fixed; give them all to the "
                        "optimizer when it is made")
        # Undecorated: the decorator imports torch._dynamo, seconds of each start, to keep it from being compiled.
        add = torch.optim.Optimizer.add_param_group
        getattr(add, "__wrapped__", add)(self, param_group)

    def state_dict(self):
        """Refused: the state is in the job, which keeps it over restarts."""
        raise error(errno.EOPNOTSUPP, "the state of this optimizer is in its job, in parts, and a start of the program "
                    "resumes it; opt.save(folder) writes it, and weightd.train.torch_state(folder) has it for torch")

    def load_state_dict(self, state_dict) -> None:
        """Refused, as state_dict()."""
        raise error(errno.EOPNOTSUPP, "the state of this optimizer is in its job, which resumes with it; opt.load(folder) "
                    "loads what opt.save() wrote")

    def __reduce__(self):
        raise TypeError("an optimizer of weightd.train is one rank in one process, and cannot be copied or pickled")


class AdamW(Optimizer):
    """torch.optim.AdamW on a job, with the bits of its fused=True: see Optimizer."""

    _NAME = "adamw"
    _FIXED = ("betas", "eps", "weight_decay")

    def __init__(self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2):
        """`params`: the module that shard() returned, or its parameters, or parameter groups, as torch takes them."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


class Adam(Optimizer):
    """torch.optim.Adam on a job, with weight decay added to the gradient: see Optimizer."""

    _NAME = "adam"
    _FIXED = ("betas", "eps", "weight_decay")

    def __init__(self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0):
        """`params` as of AdamW."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


class SGD(Optimizer):
    """torch.optim.SGD on a job, without dampening: see Optimizer."""

    _NAME = "sgd"
    _FIXED = ("momentum", "weight_decay", "nesterov")

    def __init__(self, params, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False):
        """`params` as of AdamW."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov})


def _group(group: dict[str, Any]) -> _abi.Group:
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    return _abi.Group(weight_decay=group["weight_decay"], beta1=beta1, beta2=beta2, eps=group.get("eps", 0.0),
                      momentum=group.get("momentum", 0.0), nesterov=bool(group.get("nesterov", False)))


def _scalars(group: dict[str, Any]) -> dict[str, float]:
    """Numbers that schedulers keep in a group: lr, initial_lr and their like."""
    return {key: float(value) for key, value in group.items()
            if isinstance(value, numbers.Real) and not isinstance(value, bool)}


def _is_ours(optimizer: torch.optim.Optimizer) -> bool:
    return isinstance(optimizer, Optimizer)


# --- The end of a program --------------------------------------------------------------------------

_open: weakref.WeakSet[Optimizer] = weakref.WeakSet()


def _close_complete() -> None:
    """At the end of a program: saves; without an exception also jobs whose steps are all done."""
    for optimizer in list(_open):
        if not optimizer._is_closed and not optimizer._trainer.is_parents():
            optimizer._end_save()
    if getattr(sys, "last_value", None) is not None:
        return
    for optimizer in list(_open):
        if optimizer._is_complete and not optimizer._is_closed and not optimizer._trainer.is_parents():
            optimizer.close()


atexit.register(_close_complete)

"""The interface of DeepSpeed's engine: a loop of backward() and step() that a config describes."""
from __future__ import annotations

import contextlib
import math
import os
from typing import Any, Callable, Iterable, Iterator, Mapping

import torch
from torch.optim.lr_scheduler import LRScheduler

from . import _config, _optimizer
from ._config import Settings
from ._mesh import Mesh, init_mesh
from ._precision import Precision, Scaler
from ._sampler import Sampler
from ._sharded import shard


class Loader:
    """
    The batches of training_data= on this rank, one epoch in each loop over it.

    sampler  divides the samples; the steps of the engine save its position

    A program that was started again continues in the epoch where it was: `for epoch in range(loader.epoch, 10)`.
    """

    def __init__(self, dataset, settings: Settings, mesh: Mesh, seed: int, collate_fn: Callable | None):
        self.sampler = Sampler(dataset, mesh, seed)
        self._loader = torch.utils.data.DataLoader(dataset, batch_size=settings.micro_batch, sampler=self.sampler,
                                                   collate_fn=collate_fn, drop_last=settings.drop_last)

    @property
    def epoch(self) -> int:
        return self.sampler.epoch

    def __len__(self) -> int:
        """Batches that are left of the epoch."""
        return self.sampler.n_batches(self._loader)

    def __iter__(self) -> Iterator[Any]:
        yield from self.sampler.batches(self._loader)
        self.sampler.set_epoch(self.sampler.epoch + 1)


class Engine:
    """
    A module with its optimizer, as initialize() makes it: the calls of deepspeed's engine.

        for batch in loader:
            loss = engine(batch)
            engine.backward(loss)
            engine.step()

    module, optimizer, lr_scheduler, training_dataloader  as initialize() returns them; None where there is none
    train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps  functions, as there
    micro_steps  batches whose step() was called
    """

    def __init__(self, module: torch.nn.Module, optimizer: _optimizer.Optimizer, settings: Settings,
                 loader: Loader | None, make_scheduler: Callable[[Any], Any] | None):
        self.module, self.optimizer, self.training_dataloader = module, optimizer, loader
        self.lr_scheduler: Any = None
        self._settings = settings
        self._losses: list[torch.Tensor] = []  # of the micro-batches of this step
        self._make_scheduler = make_scheduler
        self._restore()

    def _restore(self) -> None:
        """Continues behind the last step of the job: its schedule, and the samples that it left."""
        cursor = self.optimizer.cursor or {}
        self.micro_steps = self.optimizer.resumed_step * self._settings.accumulation
        self._n_scheduled = cursor.get("scheduled", 0)  # calls of the scheduler
        if self.optimizer.resumed_step:
            self._n_scheduled += not self.optimizer.overflowed
        if self._make_scheduler is not None:
            self.lr_scheduler = self.optimizer.resume(self._make_scheduler, self._n_scheduled)
        if self.training_dataloader is not None:
            self.training_dataloader.sampler.load_state(cursor.get("sampler"))

    # --- The loop -----------------------------------------------------------------------------------

    def __call__(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        """
        The backward pass of one micro-batch, with a loss that is the mean over its samples; returns the loss as it counts in the
        step, divided by gradient_accumulation_steps. Micro-batches of a step weigh alike. Of a batch that the engine's own
        loader gave, each sample weighs alike on all ranks, also where the last batch of an epoch is uneven.
        """
        self._losses.append(loss.detach())
        counted = loss * (self._share() / self._settings.accumulation)
        scaled = self.optimizer.scale(counted)
        with contextlib.nullcontext() if self.is_gradient_accumulation_boundary() else self.module.no_sync():
            scaled.backward()
        return counted.detach()

    def _share(self) -> float:
        """1 for a whole batch: this rank's samples to the mean of all ranks."""
        sampler = self.training_dataloader and self.training_dataloader.sampler
        if not sampler or not sampler.has_batch():
            return 1.0
        return sampler.share()

    def is_gradient_accumulation_boundary(self) -> bool:
        """True: the step() of this micro-batch takes a step of the optimizer."""
        return (self.micro_steps + 1) % self._settings.accumulation == 0

    def step(self) -> None:
        """
        After each backward(): nothing but for the last micro-batch of a step, where the ranks take the step of the
        optimizer, with the clipping of the config, and that of the scheduler. Errors are those of opt.step(), after which
        RankDied and Timeout allow another call.
        """
        if not self.is_gradient_accumulation_boundary():
            self.micro_steps += 1
            return
        before = self.global_steps
        try:
            # The mean of losses that are all finite, or NaN.
            loss = torch.stack(self._losses).mean() if self._losses else None
            self.optimizer.step(loss, max_norm=self._settings.max_norm, cursor=self._cursor())
        finally:
            if self.global_steps > before:  # also a step that raised NotANumber
                self._count_step()

    def _count_step(self) -> None:
        self._losses = []
        self.micro_steps += 1
        if not self.optimizer.overflowed:  # a step that is skipped is none of the schedule, as in DeepSpeed
            self._n_scheduled += 1
            if self.lr_scheduler is not None:
                self.lr_scheduler.step()

    def _cursor(self) -> dict[str, Any]:
        """Saved with the step, which may still be skipped: `scheduled` is without it."""
        loader = self.training_dataloader
        return {"scheduled": self._n_scheduled, "sampler": loader and loader.sampler.state()}

    def zero_grad(self) -> None:
        """Drops the gradients of this step so far, and their losses. Not needed: a step does so itself."""
        self._losses = []
        self.optimizer.zero_grad()

    # --- Around it ----------------------------------------------------------------------------------

    def save_checkpoint(self, save_dir: str | os.PathLike, tag: None = None) -> bool:
        """
        Saves the last step below `save_dir`, as opt.save() does, and waits for the end; returns True. All ranks call it.
        Other checkpoints remain there. ValueError: a tag; checkpoints have the number of their step.
        """
        _refuse_tag(tag)
        self.optimizer.save(save_dir, keep=0, wait=True)
        return True

    def load_checkpoint(self, load_dir: str | os.PathLike, tag: None = None) -> tuple[str, dict]:
        """
        Continues behind a checkpoint, or the newest one in `load_dir`, with any number of ranks: parameters, optimizer,
        schedule and samples. All ranks call it before the first step of a new job; lr_scheduler is another object then. A
        program that was killed needs none, its job has all of it: `if engine.global_steps == 0`. Returns the folder and {}.
        Errors as of opt.load(). ValueError: a tag; pass the checkpoint's own folder instead. ValueError: a checkpoint of
        another dataset; all but the position in it is loaded then, and training may go on.
        """
        _refuse_tag(tag)
        self.optimizer.load(load_dir)
        self._restore()
        return os.fspath(load_dir), {}

    def train(self, mode: bool = True) -> Engine:
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        return self.train(False)

    @property
    def global_steps(self) -> int:
        """Steps of the optimizer, of earlier starts of the program too."""
        return self.optimizer.step_number

    def get_lr(self) -> list[float]:
        """The learning rate of each parameter group, for the next step."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float | None:
        """The norm of the last step's gradient, before clipping; None: there is none, as without gradient_clipping."""
        norm = self.optimizer.norm
        return None if math.isnan(norm) else norm

    def train_batch_size(self) -> int:
        return self._settings.train_batch

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._settings.micro_batch

    def gradient_accumulation_steps(self) -> int:
        return self._settings.accumulation


def _refuse_tag(tag: None) -> None:
    if tag is not None:
        raise ValueError(f"tag={tag!r}: a checkpoint has the number of its step as its name (step-000000000120); leave the tag "
                         "out, or load that folder")


class WarmupLR(LRScheduler):
    """
    DeepSpeed's schedule of that name: from warmup_min_lr to warmup_max_lr (None: the rate of the group) within
    warmup_num_steps, by a logarithm or a line, and then constant. With total_num_steps WarmupDecayLR: then by a line to 0.

    The first two steps have the lowest rate, as in deepspeed/runtime/lr_schedules.py of release 0.19.8: its scheduler
    counts from -1.
    """

    def __init__(self, optimizer, warmup_min_lr: float = 0.0, warmup_max_lr: float | None = None,
                 warmup_num_steps: int = 1000, warmup_type: str = "log", total_num_steps: int | None = None):
        self._min, self._max, self._is_log = warmup_min_lr, warmup_max_lr, warmup_type == "log"
        self._warmup, self._total = max(2, warmup_num_steps), total_num_steps
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        highest = [base if self._max is None else self._max for base in self.base_lrs]
        part = self._part(self.last_epoch - 1)
        return [self._min + (high - self._min) * part for high in highest]

    def _part(self, step: int) -> float:
        if step < 0:
            return 0.0
        if step < self._warmup:
            return math.log(step + 1) / math.log(self._warmup) if self._is_log else step / self._warmup
        if self._total is None:
            return 1.0
        return max(0.0, (self._total - step) / max(1.0, self._total - self._warmup))


def initialize(model: torch.nn.Module, config: Mapping | str | os.PathLike, mesh: Mesh | None = None, *,
               model_parameters: Iterable | None = None, training_data=None, collate_fn: Callable | None = None,
               lr_scheduler: Callable[[Any], Any] | None = None, seed: int = 0, job: str | None = None,
               deadline: float | None = 0.0, on_death: str = "wait", engine: Any = None,
               units: Any = None) -> tuple[Engine, Any, Loader | None, Any]:
    """
    Stands where deepspeed.initialize() stood: reads a config of DeepSpeed (of release 0.19.8), shards the module, makes the
    optimizer, which opens the job, and returns (engine, optimizer, loader, scheduler), the last two None where there is
    none. A program that was killed continues in its step when it is started again.

    config            dict, or path of a JSON file. weightd-train(7) lists its keys. gradient_clipping is 1.0 where the
                      config has none, as in DeepSpeed
    mesh              None: init_mesh()
    model_parameters  parameters, or groups of them as optimizers of torch take them; None: those of the module
    training_data     a dataset with a len(), for the loader; collate_fn and seed are the loader's
    lr_scheduler      a function of the optimizer that returns a scheduler of torch, instead of the config's; the engine
                      calls its step() after each step that was applied
    job, deadline, on_death, engine  as of shard()
    units             as of shard(), for stage 3; None: modules from stage3_param_persistence_threshold parameters on

    With several machines, ranks are those of all of them: train_batch_size is train_micro_batch_size_per_gpu x
    gradient_accumulation_steps x ranks of all machines, as in DeepSpeed.

    ValueError: a key without a counterpart, by its path, or a value that weightd.train has not; see shard() and Optimizer
    for the others.
    """
    mesh = init_mesh() if mesh is None else mesh
    settings = _config.read(config, mesh.size)
    if lr_scheduler is not None and (settings.scheduler or not callable(lr_scheduler)):
        raise ValueError("the config has a scheduler, too; remove one of them" if settings.scheduler else
                         "lr_scheduler must be a function of the optimizer, so that a restart can make it again: "
                         "lambda optimizer: CosineAnnealingLR(optimizer, ...)")
    shard(model, mesh, settings.strategy, form=settings.form, overlap=settings.overlap, job=job, deadline=deadline,
          on_death=on_death, engine=engine, units=settings.units if units is None else units, prefetch=settings.prefetch,
          **_precision(settings))
    kind = getattr(_optimizer, settings.optimizer)
    optimizer = kind(model if model_parameters is None else list(model_parameters), **settings.arguments)
    loader = None if training_data is None else Loader(training_data, settings, mesh, seed, collate_fn)
    if settings.scheduler is not None:
        lr_scheduler = _warmup(settings.schedule)
    made = Engine(model, optimizer, settings, loader, lr_scheduler)
    return made, optimizer, loader, made.lr_scheduler


def _warmup(schedule: dict[str, Any]) -> Callable[[Any], WarmupLR]:
    return lambda optimizer: WarmupLR(optimizer, **schedule)


def _precision(settings: Settings) -> dict[str, Any]:
    """The arguments of shard() about element types. DeepSpeed converts buffers with the parameters."""
    given = settings.precision
    if given is None:
        return {"bucket_bytes": settings.bucket_elements * torch.float32.itemsize}
    param = getattr(torch, given.param)
    reduce = param if given.reduce is None else getattr(torch, given.reduce)
    return {"precision": Precision(param=param, reduce=reduce, buffer=param, cast_inputs=given.cast_inputs),
            "scaler": None if given.scaler is None else Scaler(**given.scaler),
            "bucket_bytes": settings.bucket_elements * reduce.itemsize}

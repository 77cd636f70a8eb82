"""Gradients: from autograd into the memory of the job, by hooks."""
from __future__ import annotations

import errno
import weakref
from typing import NamedTuple

import torch

from .._errors import error
from ..torch._misfit import some
from ._sharded import Sharded
from ._trainer import Trainer


class Slot(NamedTuple):
    """
    Views of one GRAD of this rank; with staleness it has several.

    addresses  of the views, as they were made
    """

    views: list[torch.Tensor]
    addresses: list[int]


class Gradients:
    """
    The gradients of one rank.

    A hook copies what backward made into GRAD, and p.grad becomes a view of that: autograd adds later micro-batches in
    place, and zero_grad() that drops the view drops that gradient and nothing else. After the step p.grad is None.
    """

    def __init__(self, sharded: Sharded, trainer: Trainer, parameters: list[torch.nn.Parameter], is_two_phase: bool):
        """`parameters` are those of the first rows of the plan, in order."""
        self._sharded, self._trainer, self._parameters = sharded, trainer, parameters
        self._names = [row.name for row in sharded.parameters()]
        self._is_two_phase, self._overlaps = is_two_phase, is_two_phase and sharded.options.overlap
        self._slots: dict[int, Slot] = {}  # keys: the address of the first view
        self._slot: Slot | None = None  # that of this step
        self._versions = [0] * len(parameters)  # of each view, after autograd or we have last written it
        self._is_over = [False] * len(parameters)  # handed over in this step: not to be written again
        this = weakref.ref(self)
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(hook_of(this, index))

    def _current(self) -> list[torch.Tensor]:
        """The views of this step."""
        if self._slot is None:
            address = next(self._trainer.grad_address(i) for i, p in enumerate(self._parameters) if p.numel())
            if address not in self._slots:
                self._slots[address] = self._map()
            self._slot = self._slots[address]
        return self._slot.views

    def _map(self) -> Slot:
        flat = self._trainer.range("GRAD")
        views = []
        for index, parameter in enumerate(self._parameters):
            at = (self._trainer.grad_address(index) - flat.data_ptr()) // flat.element_size()
            view = flat[at:at + parameter.numel()] if parameter.numel() else flat.new_empty(0)
            views.append(view.view(parameter.shape).data)  # .data: with a version counter of its own
        return Slot(views, [view.data_ptr() for view in views])

    def take(self, index: int, parameter: torch.nn.Parameter) -> None:
        """A backward pass has completed the gradient of a parameter, or added to it."""
        grad, view = parameter.grad, self._current()[index]
        if grad is None:
            return
        if self._is_over[index]:
            parameter.grad = None
            raise error(errno.EALREADY, f"{self._names[index]}: its gradient was handed over, and another backward "
                        "pass made one before opt.step(); run all micro-batches of a step but the last inside "
                        "no_sync()")
        if grad is not view:
            self._copy(index, parameter, grad)
        if parameter.grad is view:
            self._versions[index] = view._version
            if self._overlaps and self._sharded.is_sync:
                parameter.grad = None
                self._is_over[index] = True
                self._trainer.ready(index)

    def _copy(self, index: int, parameter: torch.nn.Parameter, grad: torch.Tensor) -> None:
        try:
            refuse_kind(self._names[index], grad)
        except BaseException:
            parameter.grad = None
            raise
        if self._is_two_phase and not self._trainer.wants(index):
            parameter.grad = None  # this rank died after it had handed over the same one
            self._is_over[index] = True
            return
        view = self._current()[index]
        view.copy_(grad)  # neither needs a gradient
        parameter.grad = view

    def taken(self) -> list[str]:
        """Names of parameters that have a gradient of the step that is next."""
        return [name for name, parameter, is_over in zip(self._names, self._parameters, self._is_over)
                if is_over or parameter.grad is not None]

    def complete(self) -> list[bool]:
        """
        Before the update: gradients that backward did not make are zeros. Returns where that is so. Error: a gradient
        was changed after backward, or is of a kind that take() refuses.
        """
        views = self._current()
        moved = self._moved()
        if moved:
            raise error(errno.EINVAL, f"{some(moved)}: p.grad is no longer in the memory of the job, and the step "
                        "would sum another gradient; share_memory(), set_() and p.grad.data = move it, and must not")
        changed = [self._names[i] for i, p in enumerate(self._parameters)
                   if p.grad is views[i] and views[i]._version != self._versions[i]]
        if changed:
            raise error(errno.EOPNOTSUPP, f"{some(changed)}: the gradient was changed in place after backward. It is "
                        "this rank's part and not yet the mean: clip by opt.step(max_norm=...), weight by "
                        "opt.step(weight=...), scale the loss, and use no GradScaler; opt.zero_grad() drops the "
                        "gradients")
        unused = [False] * len(self._parameters)
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                if not self._is_over[index]:
                    unused[index] = True
                    if not self._is_two_phase or self._trainer.wants(index):
                        views[index].zero_()
            elif parameter.grad is not views[index]:
                self._copy(index, parameter, parameter.grad)
                self._versions[index] = views[index]._version
        return unused

    def _moved(self) -> list[str]:
        """Names of gradients whose views lie elsewhere: Module.bfloat16() does that with p.grad, too."""
        if self._slot is None:
            return []
        return [name for name, view, address in zip(self._names, *self._slot)
                if view.data_ptr() != address or view.dtype != self._trainer.plan.grad_dtype]

    def hand_rest(self) -> None:
        """The update hands over what is left."""

    def hand_over(self) -> None:
        """The update has begun and is not done: nothing of this step may be written again."""
        self.forget()
        self._is_over = [True] * len(self._parameters)

    def drop(self) -> None:
        """After the update: the next step begins."""
        self.forget()
        self._is_over = [False] * len(self._parameters)
        self._slot = None

    def forget(self) -> None:
        """zero_grad(): this step's gradients so far are dropped, but for those that were handed over."""
        if self._moved():
            self._slot = None
            self._slots.clear()
        for parameter in self._parameters:
            parameter.grad = None


def refuse_kind(name: str, grad: torch.Tensor) -> None:
    """Error: a job cannot have a gradient of that kind."""
    if grad.layout != torch.strided:
        raise error(errno.EOPNOTSUPP, f"{name}: its gradient is sparse, which jobs cannot have; "
                    "torch.nn.Embedding(..., sparse=False) makes a dense one")
    if grad.requires_grad:
        raise error(errno.EOPNOTSUPP, f"{name}: backward(create_graph=True) made a gradient with a graph of its "
                    "own, which a job cannot hold; take second derivatives by torch.autograd.grad()")


def hook_of(this: weakref.ref, index: int):
    """Calls take() of gradients for as long as they are there."""
    def take(parameter: torch.nn.Parameter) -> None:
        gradients = this()
        if gradients is not None:
            gradients.take(index, parameter)

    return take

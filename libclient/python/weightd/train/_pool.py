"""Gradients of "zero2" and "zero3": torch's own until the turn of their bucket, for which alone the job has memory."""
from __future__ import annotations

import errno
import weakref

import torch

from .._errors import Error, error
from ..torch._misfit import some
from ._gradients import hook_of, refuse_kind
from ._sharded import Sharded
from ._trainer import Trainer


class Pooled:
    """
    The gradients of one rank, with the calls of Gradients. Buckets are handed over one after the other, in the order of the
    plan; a bucket whose turn has not come remains in p.grad. That is None once it was handed over.

    is_adding  a backward pass that runs has added to gradients: it is none of torch.autograd.grad()
    """

    def __init__(self, sharded: Sharded, trainer: Trainer, parameters: list[torch.nn.Parameter]):
        """`parameters` are those of the first rows of the plan, in order."""
        self._sharded, self._trainer, self._parameters = sharded, trainer, parameters
        self._names = [row.name for row in sharded.parameters()]
        self._buckets = _buckets(trainer, parameters)
        self._has_units = sharded.options.strategy == "zero3"
        self._views: dict[int, torch.Tensor] = {}  # in GRAD
        self.is_adding = False
        self.drop()
        this = weakref.ref(self)
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(hook_of(this, index))

    # --- Backward -----------------------------------------------------------------------------------

    def take(self, index: int, parameter: torch.nn.Parameter) -> None:
        """A backward pass has completed the gradient of a parameter, or added to it."""
        grad, self.is_adding = parameter.grad, True
        if grad is None:
            return
        if self._is_over[index] or self._has_begun:
            parameter.grad = None
            raise error(errno.EALREADY, f"{self._names[index]}: its gradient was handed over, and another backward "
                        "pass made one before opt.step(); run all micro-batches of a step but the last inside "
                        "no_sync()")
        try:
            refuse_kind(self._names[index], grad)
        except BaseException:
            parameter.grad = None
            raise
        self._made[index] = (grad.data_ptr(), grad._version)
        if self._sharded.is_sync and not self._has_units:
            self._is_complete[index] = True
            self._advance()

    def complete_units(self, units: list[int]) -> None:
        """Backward is done with units: parameters of them that have no gradient get none in this step."""
        for unit in units:
            for index in self._buckets[len(self._buckets) - 1 - unit]:
                self._is_complete[index] = True
        self._advance()

    def _advance(self) -> None:
        """
        Hands over what is complete, in order. A wait that fails leaves the rest for the step, which fails again, or goes on.
        Units cannot wait until then: the ranks open them and hand them over in one order.
        """
        try:
            while not self._is_late and self._next < len(self._buckets) and all(
                    self._is_complete[index] for index in self._buckets[self._next]):
                self._hand({index: self._parameters[index].grad for index in self._buckets[self._next]})
        except Error:
            if self._sharded.hides:
                raise
            self._is_late = True
        except BaseException:  # Ctrl-C, which ends backward before all gradients are there
            self._is_cut = True
            raise

    def _hand(self, grads: dict[int, torch.Tensor | None]) -> None:
        """
        The gradients of the next bucket. A rank that died may have handed it over: the job wants none of it again, but to see
        that the rank is past it.
        """
        changed = [self._names[index] for index, grad in grads.items() if self._has_changed(index, grad)]
        if changed:
            raise error(errno.EOPNOTSUPP, _changed(changed))
        self._trainer.bucket_open(self._next)
        for index, grad in grads.items():
            self._unused[index] = grad is None
            if self._trainer.wants(index):
                view = self._view(index)
                view.zero_() if grad is None else view.copy_(grad)
        for index in grads:
            self._trainer.ready(index)
            self._parameters[index].grad = None
            self._is_over[index] = True
        self._next += 1

    def _view(self, index: int) -> torch.Tensor:
        if index not in self._views:
            self._views[index] = self._trainer.grad(index)
        return self._views[index]

    def _has_changed(self, index: int, grad: torch.Tensor | None) -> bool:
        """It was written after backward. One that the program put in its place is taken as it is."""
        if grad is None or self._made[index] is None:
            return False
        address, version = self._made[index]
        return grad.data_ptr() == address and grad._version != version

    # --- Steps --------------------------------------------------------------------------------------

    def taken(self) -> list[str]:
        """Names of parameters that have a gradient of the step that is next."""
        return [name for name, parameter, is_over in zip(self._names, self._parameters, self._is_over)
                if is_over or parameter.grad is not None]

    def complete(self) -> list[bool]:
        """
        Before the update: returns which parameters have no gradient. hand_rest() gives them zeros. Error: a gradient was
        changed after backward, or is of a kind that take() refuses.
        """
        if self._is_cut:
            raise error(errno.ENOTRECOVERABLE, "a backward pass was interrupted where it handed over gradients, and its step "
                        "cannot be completed; start this rank again, and it continues in the step")
        left = {index: parameter.grad for index, parameter in enumerate(self._parameters) if not self._is_over[index]}
        changed = [self._names[index] for index, grad in left.items() if self._has_changed(index, grad)]
        if changed:
            raise error(errno.EOPNOTSUPP, _changed(changed))
        for index, grad in left.items():
            if grad is not None:
                refuse_kind(self._names[index], grad)
            self._unused[index] = grad is None
        return list(self._unused)

    def hand_rest(self) -> None:
        """The gradients that backward did not hand over. May be called again after an error of the wait."""
        self._has_begun = True
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is not None and not self._is_over[index]:
                self._left[index] = parameter.grad
            parameter.grad = None
        while self._next < len(self._buckets):
            self._hand({index: self._left.get(index) for index in self._buckets[self._next]})

    def hand_over(self) -> None:
        """The update has begun and is not done: nothing of this step may be written again."""
        self._has_begun = True
        self.forget()

    def drop(self) -> None:
        """After the update: the next step begins."""
        n = len(self._parameters)
        self._next = 0  # bucket
        self._is_complete = [False] * n  # its bucket may be handed over
        self._is_over = [False] * n  # handed over
        self._unused = [False] * n
        self._made: list[tuple[int, int] | None] = [None] * n  # address and version, as backward left it
        self._left: dict[int, torch.Tensor] = {}  # gradients of a step that has begun
        self._is_late = self._is_cut = self._has_begun = False
        for parameter in self._parameters:
            parameter.grad = None

    def forget(self) -> None:
        """zero_grad(): this step's gradients so far are dropped, but for those that were handed over."""
        for index, parameter in enumerate(self._parameters):
            parameter.grad = self._made[index] = None


def _buckets(trainer: Trainer, parameters: list[torch.nn.Parameter]) -> list[list[int]]:
    """Indices of parameters that have elements, by the number of their bucket."""
    found: dict[int, list[int]] = {}
    for index, shape in enumerate(row.shape for row in trainer.plan.rows[:len(parameters)]):
        if 0 not in shape:
            found.setdefault(trainer.plan.bucket(index), []).append(index)
    return [found[number] for number in sorted(found)]


def _changed(names: list[str]) -> str:
    return (f"{some(names)}: the gradient was changed in place after backward. It is this rank's part and not yet the mean: clip "
            "by opt.step(max_norm=...), scale the loss, and use no GradScaler; opt.zero_grad() drops the gradients")

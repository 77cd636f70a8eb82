"""Parameters of units, which are there while forward or backward is in the unit: hooks of modules that open and close them."""
from __future__ import annotations

import contextlib
import dataclasses
import errno
import sys
import weakref
from typing import Any, Callable, Iterable, Iterator

import torch

from .._errors import error
from ..torch._misfit import some
from . import _abi
from ._pool import Pooled
from ._sharded import Sharded
from ._trainer import Trainer, is_in_job


class Unit:
    """
    number      of the plan; None: the root, without parameters of its own
    level       units around it; -1 for such a root
    is_open     its parameters are there
    active      the call whose backward pass has begun and is not done
    n_calls     calls of forward whose backward pass has not been
    is_idle     forward has not called it since the last step
    """

    def __init__(self, number: int | None, name: str, level: int):
        self.number, self.name, self.level = number, name, level
        self.parameters: list[torch.nn.Parameter] = []
        self.views: list[torch.Tensor] = []
        self.is_open, self.n_calls, self.is_idle = False, 0, True
        self.active: Call | None = None


class Call:
    """
    One call of a unit's forward.

    around      the call of the unit around it
    is_counted  in n_calls
    task        of autograd, the one in which its backward pass began
    """

    def __init__(self, unit: Unit, around: Call | None):
        self.unit, self.around = unit, around
        self.is_counted, self.task = False, -1


class Entry:
    """A forward that runs. `is_opener`: it has opened its unit."""

    def __init__(self, call: Call):
        self.call, self.is_opener = call, False


class Gather:
    """
    The units of a module. Only what reads parameters opens a unit:

    forward   its unit is open from its begin to its end; the root's until the backward pass ends
    backward  a unit is opened where the gradient of an output arrives, and closed where that of an input does, or where the
              backward pass of another unit of its level begins; at the latest where backward ends. Then its gradients are
              complete, if each of its calls had its backward pass.

    Autograd runs nodes in the reverse of the order in which forward made them, as far as they are ready: when the backward
    pass of a call begins, those of later calls are done.

    hides    closed units have no memory: their parameters are empty then
    is_apart parameters show memory of this process, and hooks do nothing
    """

    def __init__(self, sharded: Sharded, trainer: Trainer, parameters: list[torch.nn.Parameter], gradients: Pooled):
        self._sharded, self._trainer, self._gradients = sharded, trainer, weakref.ref(gradients)
        self._units = [Unit(number, unit.name, unit.level) for number, unit in enumerate(sharded.units)]
        self.hides, self.is_apart = sharded.hides, False
        for index, (row, parameter) in enumerate(zip(sharded.parameters(), parameters)):
            trainer.remember(parameter, index)
            self._units[row.unit].parameters.append(parameter)
            self._units[row.unit].views.append(parameter.data)
        root = next((unit for unit in self._units if not unit.name), None)
        self._root = root or Unit(None, "", -1)
        self._running: list[Entry] = []
        self._active: list[Call] = []  # in the order in which they began
        self._tasks: list[int] = []  # of autograd, that end in _end_task()
        self._lost: str | None = None
        for unit in self._units if root else [self._root, *self._units]:
            self._watch(sharded.module.get_submodule(unit.name), unit)
        if self.hides:
            self._hide_all()
            for owner in sharded.module.modules():
                if not isinstance(owner, torch.jit.ScriptModule):
                    owner.register_state_dict_pre_hook(_refuse_state_dict)

    def _watch(self, module: torch.nn.Module, unit: Unit) -> None:
        module.register_forward_pre_hook(Hook(self, unit, Gather._begin_forward), prepend=True, with_kwargs=True)
        module.register_forward_hook(Hook(self, unit, Gather._end_forward), with_kwargs=True, always_call=True)

    # --- Parameters -----------------------------------------------------------------------------------

    def _open(self, unit: Unit, is_backward: bool) -> None:
        """The unit is open behind this, and no other one of its level is."""
        self.use()
        if self.hides:
            self._refuse_moved(unit)
        for other in self._units:
            if other is not unit and other.is_open and other.level == unit.level:
                self._make_way(other, unit)
        if unit.number is not None:
            with self.ordered(f"unit '{unit.name}' was opened" if unit.name else "the root unit was opened"):
                self._trainer.unit_open(unit.number, _purpose(is_backward))
        unit.is_open = True
        if self.hides:
            for parameter, view in zip(unit.parameters, unit.views):
                parameter.data = view

    def _refuse_moved(self, unit: Unit) -> None:
        moved = [self._trainer.name_of(parameter) for parameter, view in zip(unit.parameters, unit.views)
                 if parameter.numel() or parameter.dtype != view.dtype]
        if moved:
            raise error(errno.EACCES, f"{some(moved)}: written or converted while the unit was closed, which the job would not see; write "
                        "inside `with weightd.train.writable(model):`, or before the optimizer is made")

    def _make_way(self, other: Unit, unit: Unit) -> None:
        if any(entry.call.unit is other for entry in self._running):
            raise error(errno.EOPNOTSUPP, f"'{unit.name}' is called inside '{other.name}', and is none of its modules: units "
                        "of one level are open one at a time; leave one of them out of shard(units=), or make it a "
                        "module of the other one")
        self._close(other)

    def _close(self, unit: Unit) -> None:
        if not unit.is_open:
            return
        unit.is_open = False
        self._hide(unit)
        if unit.number is not None and self._lost is None:
            self._trainer.unit_close(unit.number)

    def _hide(self, unit: Unit) -> None:
        """Empty parameters: torch refuses them by their size, where memory that is not there would be a fault."""
        if self.hides:
            for parameter, view in zip(unit.parameters, unit.views):
                parameter.data = view.new_empty(0)

    def _hide_all(self) -> None:
        for unit in self._units:
            self._hide(unit)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """A block whose beginning gives closed parameters memory of this process, which they lose at its end."""
        self.is_apart = True
        try:
            yield
        finally:
            self._hide_all()
            self.is_apart = False

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """A block with copies of all parameters. All ranks enter it."""
        self.settle()
        copies = []
        for unit in self._units:
            with torch.no_grad():
                self._open(unit, False)
            copies.append([view.clone() for view in unit.views])
            self._close(unit)
        with self.apart():
            for unit in self._units:
                for parameter, copy in zip(unit.parameters, copies.pop(0)):
                    parameter.data = copy
            yield

    def use(self) -> None:
        """Error: this rank has lost the order in which the ranks open units."""
        if self._lost is not None:
            raise error(errno.ENOTRECOVERABLE, f"this rank can take no part any more, since {self._lost}: the ranks open units in "
                        "one order, which is lost; start this rank again, and it continues in its step")

    def ordered(self, what: str) -> Ordered:
        """A block with a call in which all ranks take part: an error of a wait loses the order."""
        return Ordered(self, what)

    def lose(self, why: str) -> None:
        self._lost = self._lost or why

    # --- Forward --------------------------------------------------------------------------------------

    def _begin_forward(self, unit: Unit, args: tuple, kwargs: dict[str, Any]) -> None:
        if self.is_apart:
            return
        is_backward, unit.is_idle = _task() >= 0, False
        if not is_backward and (self._active or unit is self._root):
            self._abandon()
        # Backward computes its forward again (checkpoints): where it is active, for the call that is.
        call = unit.active or Call(unit, self._running[-1].call if self._running else None)
        entry = Entry(call)
        self._running.append(entry)
        if not unit.is_open:
            entry.is_opener = True
            self._open(unit, is_backward)
        if torch.is_grad_enabled() and unit.active is None:
            # Now: the unit may write to an input, and a hook of the result would be one inside the unit.
            for tensor in _tensors((args, kwargs)):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(_on_gradient(self._end, call))

    def _end_forward(self, unit: Unit, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        """`result` is None after an error."""
        entry = self._left(unit)
        if entry is None:
            return
        call, is_backward = entry.call, _task() >= 0
        outputs = [tensor for tensor in _tensors(result) if tensor.requires_grad and not tensor.is_leaf]
        if unit.active is not call:
            for tensor in outputs:
                tensor.register_hook(_on_gradient(self._begin, call))
            if outputs and not is_backward:
                call.is_counted = True
                unit.n_calls += 1
        stays = unit is self._root and outputs and not is_backward
        if entry.is_opener and not stays and unit.active is None:
            self._close(unit)

    def _left(self, unit: Unit) -> Entry | None:
        """The entry of a forward that has ended; those inside it that Ctrl-C ended are closed."""
        while self._running:
            entry = self._running.pop()
            if entry.call.unit is unit:
                return entry
            if entry.is_opener:
                self._close(entry.call.unit)
        return None

    def _abandon(self) -> None:
        """A forward or a backward pass that an exception ended, without the calls that end it."""
        running, self._running = self._running, []
        for entry in reversed(running):
            if entry.is_opener:
                self._close(entry.call.unit)
        for call in reversed(self._active):
            call.unit.active = None
            self._close(call.unit)
        self._active, self._tasks = [], []
        self._set_adding(False)

    def _set_adding(self, is_adding: bool) -> None:
        gradients = self._gradients()
        if gradients is not None:
            gradients.is_adding = is_adding

    # --- Backward -------------------------------------------------------------------------------------

    def _begin(self, call: Call) -> None:
        """The gradient of an output has arrived."""
        unit = call.unit
        if unit.active is call:
            return
        if call.around is not None:
            self._begin(call.around)  # its output may be the same tensor
        for other in self._inside(unit.level):
            self._end(other)
        unit.active, call.task = call, _task()
        self._active.append(call)
        if call.task not in self._tasks:
            self._tasks.append(call.task)
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._end_task(call.task))
        if not unit.is_open:
            self._open(unit, True)

    def _inside(self, level: int) -> list[Call]:
        """Active calls from this level on, the innermost first."""
        return sorted((call for call in self._active if call.unit.level >= level), key=lambda call: -call.unit.level)

    def _end(self, call: Call) -> None:
        """All of the call's backward pass is done."""
        unit = call.unit
        if unit.active is not call:
            return
        for other in self._inside(unit.level + 1):
            self._end(other)
        unit.active = None
        self._active.remove(call)
        if not any(entry.call.unit is unit for entry in self._running):
            self._close(unit)
        gradients = self._gradients()
        if gradients is None or not gradients.is_adding:
            return
        if call.is_counted:
            call.is_counted = False
            unit.n_calls -= 1
        if not unit.n_calls and self._sharded.is_sync:
            done = [other.number for other in self._units if other is unit or other.is_idle]
            with self.ordered("gradients were handed over"):
                gradients.complete_units(done)

    def _end_task(self, task: int) -> None:
        """A backward pass has ended, which may be one inside another (checkpoints)."""
        for call in sorted((call for call in self._active if call.task == task), key=lambda call: -call.unit.level):
            self._end(call)
        if task in self._tasks:
            self._tasks.remove(task)
        if not self._tasks:
            self._set_adding(False)

    # --- Between steps --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Before a step and its like: all units are closed. Error: the order is lost; inside gathered()."""
        self.use()
        if self.is_apart:
            raise error(errno.EINVAL, "inside gathered() and writable() parameters are copies of this process; end the block "
                        "before a step and its like")
        self._abandon()
        for unit in self._units:
            self._close(unit)

    def forget(self) -> None:
        """After a step: what the backward passes of it left."""
        for unit in self._units:
            unit.n_calls, unit.is_idle = 0, True


class Ordered:
    """See Gather.ordered()."""

    def __init__(self, gather: Gather, what: str):
        self._gather, self._what = gather, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, e: BaseException | None, _) -> None:
        if e is not None and self._gather.hides and getattr(e, "errno", None) not in _REFUSED:
            self._gather.lose(f"{type(e).__name__} came while {self._what}")


# Errors before anything was asked of other ranks.
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ECHILD, errno.EALREADY)


class Hook:
    """A hook of a module. A copy of the module, or an unpickled one, has one that does nothing."""

    def __init__(self, gather: Gather | None = None, unit: Unit | None = None, call: Callable[..., None] | None = None):
        self._gather, self._unit, self._call = gather, unit, call

    def __call__(self, _module: torch.nn.Module, *given) -> None:
        if self._gather is not None:
            _untraced(self._call)(self._gather, self._unit, *given)

    def __reduce__(self):
        if self._gather is not None and self._gather.hides and not self._gather.is_apart:
            raise error(errno.EOPNOTSUPP, f"{_named(self._unit)}: {HIDDEN}")
        return Hook, ()


HIDDEN = ('with strategy="zero3" the parameters of a closed unit are in parts on all machines. Inside `with '
          "weightd.train.gathered(model):`, which all ranks enter, they are there; opt.save(folder) writes files for "
          "weightd.train.torch_state(folder) and safetensors, without a copy in memory")


def _untraced(call: Callable[..., None]) -> Callable[..., None]:
    """Dynamo would compile hooks, to no end; it takes seconds to load, and is left alone where no program uses it."""
    return torch._dynamo.disable(call) if "torch._dynamo" in sys.modules else call


def _named(unit: Unit) -> str:
    return f"unit '{unit.name}'" if unit.name else "the root unit"


def _refuse_state_dict(module: torch.nn.Module, prefix: str, _keep_vars: bool) -> None:
    names = [prefix + name for name, parameter in module._parameters.items()
             if parameter is not None and not parameter.numel() and is_in_job(parameter)]
    if names:
        raise error(errno.EOPNOTSUPP, f"{some(names)}: {HIDDEN}")


def _purpose(is_backward: bool) -> int:
    """Of enum weightd_pass. A forward without gradients is none of a step, unless it is inside one."""
    if is_backward:
        return _abi.BACKWARD
    return _abi.FORWARD if torch.is_grad_enabled() else _abi.EVALUATION


def _task() -> int:
    """The backward pass that runs in this thread; -1: none does."""
    return torch._C._current_graph_task_id()


def _on_gradient(act: Callable[[Call], None], call: Call) -> Callable[[torch.Tensor], None]:
    return lambda _: act(call)


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    """The tensors in tuples, lists, sets, dicts and dataclasses, and in attributes of other objects."""
    seen: set[int] = set()
    left = [(given, True)]
    while left:
        one, has_attributes = left.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif not isinstance(one, _PLAIN) and id(one) not in seen:
            seen.add(id(one))
            # An object in an attribute of another may lead anywhere.
            members, is_known = _members(one)
            if is_known or has_attributes:
                left.extend((member, has_attributes and is_known) for member in members)


_PLAIN = (str, bytes, int, float, type, type(None), torch.nn.Module)


def _members(one: Any) -> tuple[Iterable[Any], bool]:
    """And whether it is of a kind that holds values, which has them all."""
    if isinstance(one, dict):
        return one.values(), True
    if isinstance(one, (tuple, list, set, frozenset)):
        return one, True
    if dataclasses.is_dataclass(one):
        return [getattr(one, field.name, None) for field in dataclasses.fields(one)], True
    return list(getattr(one, "__dict__", {}).values()), False

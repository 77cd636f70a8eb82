"""The parameters and buffers of a module in a job: put in their places, and watched there."""
from __future__ import annotations

import errno
from typing import NamedTuple

import torch

from .._errors import error
from ..torch._misfit import some
from ..torch._places import install, successor
from ._sharded import Row, Sharded
from ._trainer import Trainer, is_in_job


class Place(NamedTuple):
    """An attribute of a module that has to stay a view of the job's memory."""

    name: str
    owner: torch.nn.Module
    attribute: str
    tensor: torch.Tensor
    address: int


class Places:
    """
    All tensors of one module.

    parameters  the Parameter objects, in the order of the plan; those of the module, but for the meta device's
    """

    def __init__(self, sharded: Sharded, trainer: Trainer):
        self._sharded = sharded
        self.parameters = _install_parameters(sharded, trainer)
        self._watched = [Place(row.name, owner, attribute, parameter, parameter.data_ptr())
                         for row, parameter in zip(sharded.parameters(), self.parameters)
                         for owner, attribute in row.held.members[0].places]
        self._buffers = _install_buffers(sharded, trainer, len(self.parameters))
        self._tree = _tree(sharded.module)
        _watch_loading(sharded)

    def check(self) -> None:
        """Error: a parameter is no longer the view that it was; one more is there."""
        lost = [place.name for place in self._watched
                if place.owner._parameters.get(place.attribute) is not place.tensor
                or place.tensor.data_ptr() != place.address]
        if lost:
            raise error(errno.EINVAL, f"{some(lost)}: no longer in the memory of the job, which the step would update "
                        "in vain. load_state_dict(assign=True), to(), bfloat16(), share_memory() and assignments to "
                        "the parameter replace it; do that before the optimizer is made, and start the program again "
                        "to continue")
        frozen = [place.name for place in self._watched if not place.tensor.requires_grad]
        if frozen:
            raise error(errno.EOPNOTSUPP, f"{some(frozen)}: requires_grad is False, and frozen parameters cannot be in "
                        "a job yet; set it again")
        if any(list(owner._modules.values()) != modules or list(owner._parameters) != names
               for owner, modules, names in self._tree):
            self._refuse_change()

    def _refuse_change(self) -> None:
        """Modules were added, removed or replaced: that matters if their parameters are others."""
        module = self._sharded.module
        watched = {id(place.tensor) for place in self._watched}
        now = list(module.named_parameters(remove_duplicate=False))
        more = [name for name, p in now if id(p) not in watched]
        gone = watched - {id(p) for _, p in now}
        if more or gone:
            names = more or [place.name for place in self._watched if id(place.tensor) in gone]
            raise error(errno.EOPNOTSUPP, f"{some(names)}: added or removed since the optimizer was made, whose plan "
                        "is fixed; complete the module first")
        self._tree = _tree(module)

    def save_buffers(self) -> None:
        """Before the update: a module may have assigned another tensor to a buffer instead of writing to it."""
        for place in self._buffers:
            now = place.owner._buffers.get(place.attribute)
            if now is place.tensor:
                continue
            if now is None or now.shape != place.tensor.shape or now.dtype != place.tensor.dtype:
                change = "gone" if now is None else "of another type or shape"
                raise error(errno.EINVAL, f"{place.name}: the buffer is {change} since the optimizer was made, and a "
                            "step must save it; keep its form")
            with torch.no_grad():
                place.tensor.copy_(now)
            place.owner._buffers[place.attribute] = place.tensor

    def has_written(self) -> None:
        """After the update: a backward pass through the old values fails, in torch's own words."""
        for parameter in self.parameters:
            torch.autograd.graph.increment_version(parameter)


def fill(sharded: Sharded, trainer: Trainer) -> None:
    """The first values of a new job, by rank 0. ValueError: there are none for a tensor."""
    _refuse_bare(sharded, sharded.parameters())
    for index, row in enumerate(sharded.parameters()):
        trainer.fill(index, _value(sharded, row))


def _refuse_bare(sharded: Sharded, rows: list[Row]) -> None:
    bare = [row.name for row in rows if row.tensor.is_meta and row.name not in (sharded.options.values or {})]
    if bare:
        raise ValueError(f"{some(bare)}: on the meta device, and the job is new; pass shard(..., values=), or make the "
                         "module with values (weightd.torch.meta_parameters() leaves buffers theirs)")


def _value(sharded: Sharded, row: Row) -> torch.Tensor:
    """The first value: from values= where that has one."""
    values = sharded.options.values or {}
    if row.name not in values:
        return row.tensor
    given = values[row.name]
    tensor = given if isinstance(given, torch.Tensor) else given.torch()
    if tensor.shape != row.tensor.shape or tensor.dtype != row.tensor.dtype:
        raise ValueError(f"{row.name} is {row.tensor.dtype} {list(row.tensor.shape)} in the module, and "
                         f"{tensor.dtype} {list(tensor.shape)} in values=")
    return tensor.cpu()


def _install_parameters(sharded: Sharded, trainer: Trainer) -> list[torch.nn.Parameter]:
    flat, rows = trainer.range("PARAM"), sharded.parameters()
    parameters, made = [], []
    with torch.inference_mode(False), torch.no_grad():
        for row, place in zip(rows, trainer.plan.places()):
            at = place.offset // flat.element_size()
            view = flat[at:at + row.tensor.numel()].view(row.tensor.shape).data
            member = row.held.members[0]
            if row.tensor.is_meta:
                made.append((member, successor(member, view, True)))
            else:
                row.tensor.data = view
            parameters.append(made[-1][1] if row.tensor.is_meta else row.tensor)
        install(made)
    return parameters


def _install_buffers(sharded: Sharded, trainer: Trainer, first: int) -> list[Place]:
    """Buffers are views of memory that a step saves; before the first one they have the values of the rank's module."""
    rows, places = sharded.buffers(), []
    if trainer.step == 0:
        _refuse_bare(sharded, rows)
    for index, row in enumerate(rows, first):
        tensor = trainer.buffer(index)
        if trainer.step == 0:
            with torch.no_grad():
                tensor.copy_(_value(sharded, row))
        for owner, attribute in row.held.members[0].places:
            owner._buffers[attribute] = tensor
            places.append(Place(row.name, owner, attribute, tensor, 0))
    return places


def _tree(module: torch.nn.Module) -> list[tuple[torch.nn.Module, list, list[str]]]:
    """Each module with its children and the names of its parameters."""
    return [(owner, list(owner._modules.values()), list(owner._parameters)) for owner in module.modules()]


# --- load_state_dict() ---------------------------------------------------------------------------


def _watch_loading(sharded: Sharded) -> None:
    """Refuses load_state_dict() of the module and of each of its modules from now on: a write to PARAM is a fault."""
    for owner in sharded.module.modules():
        if not isinstance(owner, torch.jit.ScriptModule):
            owner._register_load_state_dict_pre_hook(_refuse_loading, with_module=True)


def _refuse_loading(module: torch.nn.Module, state_dict, prefix: str, *_) -> None:
    written = [prefix + name for name, parameter in module.named_parameters() if prefix + name in state_dict
               and is_in_job(parameter)]
    if written:
        raise error(errno.EACCES, f"{some(written)}: in the memory of a job that is being trained, which only "
                    "opt.step() writes; load the state_dict before the optimizer is made, or into a copy.deepcopy() of "
                    "the module")

"""The parameters and buffers of a module in a job: put in their places, and watched there."""
from __future__ import annotations

import errno
from typing import NamedTuple

import torch

from .._dtype import TORCH
from .._errors import error
from ..torch._misfit import some
from ..torch._places import install, successor
from ._precision import cast_buffers, cast_inputs
from ._sharded import POOLED, Row, Sharded
from ._trainer import Trainer, is_in_job


class Place(NamedTuple):
    """An attribute of a module that has to stay a view of the job's memory."""

    name: str
    owner: torch.nn.Module
    attribute: str
    tensor: torch.Tensor
    address: int
    dtype: torch.dtype

    def is_there(self) -> bool:
        return self.tensor.data_ptr() == self.address and self.tensor.dtype == self.dtype

    def is_hidden(self) -> bool:
        """Its unit is closed."""
        return self.tensor.shape == (0,) and self.tensor.dtype == self.dtype and self.tensor.requires_grad


class Places:
    """
    All tensors of one module.

    parameters  the Parameter objects that are trained, in the order of the plan; those of the module, but for the meta
                device's
    are_copies  inside writable(): parameters show memory of this process
    """

    are_copies = False

    def __init__(self, sharded: Sharded, trainer: Trainer):
        self._sharded = sharded
        rows, frozen = sharded.parameters(), sharded.frozen()
        if sharded.options.precision.buffer is not None:
            cast_buffers(sharded.module, sharded.options.precision.buffer)
        self.parameters = _install_parameters(sharded, trainer)
        self._trained = _places(rows, self.parameters)
        self._frozen = _places(frozen, _install_frozen(sharded, trainer, len(rows)))
        # Those of a published version: Buffer.swap() and its like may show them another one.
        self._stays = _places([row for row in sharded.stays if row.role == "param"], None)
        self._buffers = _install_buffers(sharded, trainer, len(rows) + len(frozen))
        self._tree = _tree(sharded.module)
        _watch_loading(sharded)
        if sharded.options.precision.cast_inputs and sharded.options.precision.param is not None:
            sharded.module.register_forward_pre_hook(cast_inputs, with_kwargs=True)

    def firsts(self) -> list[Place]:
        """A place of each parameter in the job, in the order of the plan."""
        return list({id(place.tensor): place for place in reversed([*self._trained, *self._frozen])}.values())[::-1]

    def check(self) -> None:
        """Error: a parameter is no longer the view that it was; one more is there; one was frozen, or is no longer."""
        if self.are_copies:
            raise error(errno.EINVAL, "inside writable() parameters are copies of this process; end the block before a step "
                        "or another writable()")
        lost = [place.name for place in (*self._trained, *self._frozen)
                if place.owner._parameters.get(place.attribute) is not place.tensor
                or not (place.is_there() or (self._sharded.hides and place.is_hidden()))]
        if lost:
            raise error(errno.EINVAL, f"{some(lost)}: no longer in the memory of the job, which the step would update "
                        "in vain. load_state_dict(assign=True), to(), bfloat16(), share_memory() and assignments to "
                        "the parameter replace it; do that before the optimizer is made, and start the program again "
                        "to continue")
        _refuse_flags(self._trained, True)
        _refuse_flags([*self._frozen, *self._stays], False)
        if any(list(owner._modules.values()) != modules or list(owner._parameters) != names
               for owner, modules, names in self._tree):
            self._refuse_change()

    def _refuse_change(self) -> None:
        """Modules were added, removed or replaced: that matters if their parameters are others."""
        module = self._sharded.module
        places = [*self._trained, *self._frozen, *self._stays]
        watched = {id(place.tensor) for place in places}
        now = list(module.named_parameters(remove_duplicate=False))
        more = [name for name, p in now if id(p) not in watched]
        gone = watched - {id(p) for _, p in now}
        if more or gone:
            names = more or [place.name for place in places if id(place.tensor) in gone]
            raise error(errno.EOPNOTSUPP, f"{some(names)}: added or removed since the optimizer was made, whose plan "
                        "is fixed; complete the module first")
        self._tree = _tree(module)

    def save_buffers(self) -> None:
        """Before the update: a module may have assigned another tensor to a buffer instead of writing to it."""
        for place in self._buffers:
            now = place.owner._buffers.get(place.attribute)
            if now is place.tensor and now.data_ptr() == place.address:
                continue
            if now is place.tensor:
                raise error(errno.EINVAL, f"{place.name}: the buffer is no longer in the memory of the job, which a "
                            "step must save; share_memory() and set_() move it, and the job is shared memory already")
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
    rows = sharded.parameters() + sharded.frozen()
    _refuse_bare(sharded, rows)
    for index, row in enumerate(rows):
        trainer.fill(index, _value(sharded, row))


def _refuse_bare(sharded: Sharded, rows: list[Row]) -> None:
    bare = [row.name for row in rows if row.tensor.is_meta and row.name not in (sharded.options.values or {})]
    if bare:
        raise ValueError(f"{some(bare)}: on the meta device, and the job is new; pass shard(..., values=), or make the "
                         "module with values (weightd.torch.meta_parameters() leaves buffers theirs)")


def _value(sharded: Sharded, row: Row) -> torch.Tensor:
    """The first value, as the job takes it: float32 for a trained parameter. From values= where that has one."""
    values, is_trained = sharded.options.values or {}, row.role == "param" and not row.is_frozen
    tensor = row.tensor
    if row.name in values:
        given = values[row.name]
        tensor = given if isinstance(given, torch.Tensor) else given.torch()
        fits = tensor.dtype == row.tensor.dtype or (is_trained and tensor.dtype == torch.float32)
        if tensor.shape != row.tensor.shape or not fits:
            raise ValueError(f"{row.name} is {row.tensor.dtype} {list(row.tensor.shape)} in the module, and "
                             f"{tensor.dtype} {list(tensor.shape)} in values=")
    with torch.no_grad():
        return tensor.cpu().to(torch.float32 if is_trained else getattr(torch, TORCH[row.dtype]))


def _install_parameters(sharded: Sharded, trainer: Trainer) -> list[torch.nn.Parameter]:
    rows = sharded.parameters()
    if sharded.options.strategy in POOLED:  # there is no range of them all
        views = [trainer.param(index).data for index in range(len(rows))]
    else:
        views = _views_of_range(rows, trainer)
    parameters = _show(rows, views, True)
    if trainer.plan.grad_dtype != trainer.plan.param_dtype:
        for parameter in parameters:
            parameter.grad_dtype = trainer.plan.grad_dtype
    return parameters


def _views_of_range(rows: list[Row], trainer: Trainer) -> list[torch.Tensor]:
    flat = trainer.range("PARAM")
    places = [place.offset // flat.element_size() for place in trainer.plan.places()]
    return [flat[at:at + row.tensor.numel()].view(row.tensor.shape).data for row, at in zip(rows, places)]


def _install_frozen(sharded: Sharded, trainer: Trainer, first: int) -> list[torch.nn.Parameter]:
    """FROZEN is read-only, and one copy for all ranks."""
    rows = sharded.frozen()
    return _show(rows, [trainer.param(index).data for index in range(first, first + len(rows))], False)


def _show(rows: list[Row], views: list[torch.Tensor], requires_grad: bool) -> list[torch.nn.Parameter]:
    """Makes parameters views of the job; those of the meta device get successors."""
    parameters, made = [], []
    for row, view in zip(rows, views):
        member = row.held.members[0]
        if row.tensor.is_meta:
            made.append((member, successor(member, view, requires_grad)))
        else:
            row.tensor.data = view
        parameters.append(made[-1][1] if row.tensor.is_meta else row.tensor)
    install(made)
    return parameters


def _places(rows: list[Row], tensors: list[torch.nn.Parameter] | None) -> list[Place]:
    """All places of the rows' parameters; `tensors`: successors of theirs."""
    shown = [row.tensor for row in rows] if tensors is None else tensors
    return [Place(row.name, owner, attribute, tensor, tensor.data_ptr(), tensor.dtype)
            for row, tensor in zip(rows, shown) for owner, attribute in row.held.members[0].places]


def _refuse_flags(places: list[Place], is_trained: bool) -> None:
    """Error, by name: requires_grad is no longer what it was when the plan was made."""
    changed = list(dict.fromkeys(place.name for place in places if place.tensor.requires_grad != is_trained))  # ties once
    if changed:
        raise error(errno.EOPNOTSUPP, f"{some(changed)}: requires_grad is {not is_trained} since the optimizer was "
                    f"made, whose plan has it {'trained' if is_trained else 'frozen'}; set it back, or freeze and "
                    "unfreeze parameters before the optimizer is made")


def _install_buffers(sharded: Sharded, trainer: Trainer, first: int) -> list[Place]:
    """Buffers are views of memory that a step saves; before the first one they get the values of the rank's module."""
    rows, places = sharded.buffers(), []
    if trainer.step == 0:
        _refuse_bare(sharded, rows)
    for index, row in enumerate(rows, first):
        tensor = trainer.buffer(index)
        if trainer.step == 0:
            trainer.fill(index, _value(sharded, row))
        for owner, attribute in row.held.members[0].places:
            owner._buffers[attribute] = tensor
            places.append(Place(row.name, owner, attribute, tensor, tensor.data_ptr(), tensor.dtype))
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
                    "opt.step() writes; load the state_dict before the optimizer is made, inside `with "
                    "weightd.train.writable(model):`, or into a copy.deepcopy() of the module")

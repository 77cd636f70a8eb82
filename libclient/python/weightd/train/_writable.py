"""Parameters of a job that a program writes between steps: for initialisation, and a state_dict that is loaded."""
from __future__ import annotations

import contextlib
import errno
import math
from typing import TYPE_CHECKING, Iterator, NamedTuple

import torch

from .._errors import error
from ..torch._kinds import same_bits
from ..torch._misfit import some
from ._places import Place
from ._sharded import Sharded, sharded_of

if TYPE_CHECKING:
    from ._optimizer import Optimizer
    from ._trainer import Trainer


def writable(module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """
    A block in which a program may write the parameters of a module that is in a job:

        with weightd.train.writable(model):
            model.load_state_dict(state)

    All ranks enter and leave it together, after the same step: they wait for each other at its begin and its end, up to
    shard(deadline=). What rank 0 wrote becomes the parameters of all ranks where the block ends; what others wrote is
    dropped. The optimizer's state stays as it is. A block that ends with an exception on rank 0 changes nothing.

    With strategy="zero3" on several machines rank 0 has the values, and those of other ranks are NaN; between an evaluation, or
    gathered(), and the next step the block is refused: write before.

    Inside, parameters are copies of this process, which takes that much memory meanwhile; those that are trained are
    float32, so that originals of 16-bit parameters get whole values. Parameters that bind() left in a published version
    cannot be written. A rank that is killed and starts again is in the step where it was: a program enters the block by
    a condition that is the same then, such as `if opt.step_number == 0:`. After Timeout, RankDied and KeyboardInterrupt
    the block may be entered again.

    A save that runs is waited for, as by the next opt.save(). Before the optimizer is made parameters are ordinary, and the block does nothing.

    Error: shard() has not seen the module; close() was called; there are gradients that no step has used; a step has
    begun and is not committed; with staleness. Timeout and RankDied as of step(). Error at its end, by name: a
    parameter was replaced by another object (load_state_dict(assign=True)), or has another shape.
    """
    sharded = sharded_of(module)
    if not sharded.is_open:
        return contextlib.nullcontext()
    return _opened(sharded, _optimizer_of(sharded))


def gathered(module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
    """
    A block in which a program reads all parameters of a module with strategy="zero3", wherever their units are closed:

        with weightd.train.gathered(model):
            values = {name: p.clone() for name, p in model.named_parameters()}

    All ranks enter it at the same place of the program: it opens each unit in turn. Parameters are copies of this process
    inside, which take as much memory as all of them; what is written to them is dropped. The module can be called, copied
    and saved there; steps, publish() and their like are for after its end. With other strategies, and with one machine,
    parameters are always there, and the block does nothing.

    Error: shard() has not seen the module; close() was called. Timeout and RankDied as of a unit: see shard().
    """
    sharded = sharded_of(module)
    if not sharded.is_open or not sharded.hides:
        return contextlib.nullcontext()
    return _optimizer_of(sharded)._gather.gathered()


def _optimizer_of(sharded: Sharded) -> Optimizer:
    optimizer = sharded.optimizer()
    if optimizer is None or optimizer._is_closed:
        left = ("the other ranks cannot be asked for parameters; gather, save or publish them before close()" if sharded.hides
                else "the parameters remain as they are; copy.deepcopy() of the module is an ordinary module, which can be written")
        raise error(errno.EALREADY, f"this rank has left its job, and {left}")
    return optimizer


class Copy(NamedTuple):
    """
    A parameter and what it shows inside the block.

    index    of its row in the plan
    place    its first place
    view     of the job's memory; that of a closed unit is empty
    value    of the parameter, as the job has it
    data     the copy, as it was made
    version  of the parameter then
    """

    index: int
    place: Place
    view: torch.Tensor
    value: torch.Tensor
    data: torch.Tensor
    version: int

    def has_changed(self, value: torch.Tensor) -> bool:
        """Writes by the parameter's methods count in its version; others, as by p.data, have to change a value."""
        return self.place.tensor._version != self.version or not same_bits(value, self.value)


@contextlib.contextmanager
def _opened(sharded: Sharded, optimizer: Optimizer) -> Iterator[None]:
    trainer, places = optimizer._trainer, optimizer._places
    _refuse_amid_step(optimizer)
    optimizer._settle()
    places.check()
    optimizer._end_save()  # it reads frozen parameters, of which it has no copy
    trainer.write_begin()
    try:
        copies: list[Copy] = []
        places.are_copies = True
        with optimizer._gather.apart() if optimizer._gather is not None else contextlib.nullcontext():
            try:
                for index, place in enumerate(places.firsts()):
                    copies.append(_copied(index, place, trainer))
                yield
                values = _values(copies) if sharded.mesh.rank == 0 else {}
            finally:
                _close(copies, trainer.plan.grad_dtype)
                places.are_copies = False
        for index, value in values.items():
            trainer.write(index, value)
    finally:
        trainer.write_end()
        places.has_written()
    places.check()


def _refuse_amid_step(optimizer: Optimizer) -> None:
    if optimizer._pending is not None:
        raise error(errno.EINVAL, "a step has begun and is not committed; call opt.step() again before writable()")
    names = optimizer._gradients.taken()
    if names:
        raise error(errno.EINVAL, f"{some(names)}: there is a gradient of the old values; writable() is for between "
                    "steps: call opt.step() or opt.zero_grad() first")


def _copied(index: int, place: Place, trainer: Trainer) -> Copy:
    view = place.tensor.data
    value = _value(index, place, trainer)
    place.tensor.data = value.clone()
    return Copy(index, place, view, value, place.tensor.data, place.tensor._version)


def _value(index: int, place: Place, trainer: Trainer) -> torch.Tensor:
    """As the block shows it: float32 for a parameter that is trained."""
    shape = trainer.plan.rows[index].shape
    if place.is_hidden() and shape != place.tensor.shape:
        value = trainer.written(index)
        return torch.full(shape, math.nan) if value is None else value
    return place.tensor.data.float() if place.tensor.requires_grad else place.tensor.data


def _values(copies: list[Copy]) -> dict[int, torch.Tensor]:
    """Values that the block wrote, by index, as the job takes them. Error, by name."""
    found = {}
    replaced = [copy.place.name for copy in copies
                if copy.place.owner._parameters.get(copy.place.attribute) is not copy.place.tensor
                or copy.place.tensor.shape != copy.value.shape]
    if replaced:
        raise error(errno.EINVAL, f"{some(replaced)}: replaced inside writable(), by another object or shape; write "
                    "values into the parameters that are there (load_state_dict() without assign=True, p.copy_())")
    for copy in copies:
        value = copy.place.tensor.data.to(copy.data.dtype)
        if copy.has_changed(value):
            found[copy.index] = value
    return found


def _close(copies: list[Copy], grad_dtype: torch.dtype) -> None:
    """The parameters show the memory of the job again."""
    for copy in copies:
        parameter = copy.place.tensor
        parameter.data = copy.view
        if parameter.requires_grad:
            parameter.grad = None
            if grad_dtype != copy.view.dtype:
                parameter.grad_dtype = grad_dtype

"""
Writes of torch's own functions to the memory of jobs, which are refused before they are a fault or train in vain.

Installed once a process has a job. Python cannot see each write: p.data.fill_(), a write through a view of a parameter,
or out=p ends in SIGSEGV.
"""
from __future__ import annotations

import errno
import functools
import types
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, Iterable

import torch
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._errors import error
from ..torch._misfit import some
from ._trainer import is_in_job, name_in_job

# Methods of a tensor that end in "_" and write no values. A step names a parameter that they moved.
_HARMLESS = {"requires_grad_", "detach_", "rename_", "share_memory_", "set_", "resize_", "resize_as_"}


@functools.cache
def refuse_writes(is_ours: Callable[[torch.optim.Optimizer], bool]) -> None:
    """
    From now on these are refused for parameters of jobs: writes in place by a method of the parameter, which are those
    of torch.nn.init, too; clipping; steps of other optimizers; and their way to another process by multiprocessing.
    """
    _watch_methods()
    _watch_init()
    _watch_clipping()
    register_optimizer_step_pre_hook(functools.partial(_refuse_step, is_ours))
    _watch_pickling()


# --- Methods of a parameter ------------------------------------------------------------------------


def _watch_methods() -> None:
    """
    A patch of torch.nn.Parameter: torch.nn.init calls its methods. Those of other tensors are as they were.
    """
    for name in dir(torch.Tensor):
        in_place = name.endswith("_") and not name.startswith("_") and name not in _HARMLESS
        operator = name.startswith("__i") and name.replace("__i", "__", 1) in dir(torch.Tensor)
        if in_place or operator or name == "__setitem__":
            setattr(torch.nn.Parameter, name, _checked(getattr(torch.nn.Parameter, name)))


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def write_unless_in_job(parameter: torch.nn.Parameter, *args, **kwargs):
        _refuse_write(parameter, method.__name__)
        return method(parameter, *args, **kwargs)

    return write_unless_in_job


def _watch_init() -> None:
    """The functions of torch.nn.init that write by out=, or through a view."""
    for name in ("eye_", "orthogonal_"):
        setattr(torch.nn.init, name, _checked(getattr(torch.nn.init, name)))


def _refuse_write(parameter: torch.Tensor, by: str) -> None:
    if is_in_job(parameter):
        raise error(errno.EACCES, f"{name_in_job(parameter)}: {by}() would write a parameter that is in the memory of "
                    "a job, which only opt.step() writes; initialise it before the optimizer is made, or inside `with "
                    "weightd.train.writable(model):`")


# --- Gradients -------------------------------------------------------------------------------------


def _watch_clipping() -> None:
    """
    torch.nn.utils.clip_grad_norm_() and its like: a rank's gradient is its part of the mean, with another norm.
    A clip_grad_norm_() that a program imported before is seen by the function that it calls, where this torch has that;
    a clip_grad_value_() is not: the next step names its gradients, and with overlap=True it has none to clip.
    """
    for module in clip_grad, torch.nn.utils:
        for name in ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_",
                     "_clip_grads_with_norm_"):
            if hasattr(module, name):
                setattr(module, name, _unclipped(name, getattr(module, name)))


def _unclipped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def clip_unless_in_job(parameters: torch.Tensor | Iterable[torch.Tensor], *args, **kwargs):
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        ours = [name_in_job(p) for p in given if is_in_job(p)]
        if ours:
            raise error(errno.EOPNOTSUPP, f"{some(ours)}: {name}() would clip this rank's part of the gradient, by a "
                        "norm that is not that of the mean; opt.step(max_norm=...) clips the mean by its global norm")
        # `parameters` may be an iterator, which has ended. A generator remains one: torch warns of one that is empty.
        is_generator = isinstance(parameters, types.GeneratorType)
        return function((p for p in given) if is_generator else given, *args, **kwargs)

    return clip_unless_in_job


# --- Other optimizers ------------------------------------------------------------------------------


def _refuse_step(is_ours: Callable[[torch.optim.Optimizer], bool], optimizer: torch.optim.Optimizer, *_) -> None:
    if is_ours(optimizer):
        return
    names = [name_in_job(p) for group in optimizer.param_groups for p in group["params"] if is_in_job(p)]
    if names:
        raise error(errno.EACCES, f"{some(names)}: {type(optimizer).__name__} would write parameters that are in the "
                    "memory of a job, which only its own optimizer may write (weightd.train.AdamW, Adam, SGD)")


# --- Other processes -------------------------------------------------------------------------------


def _watch_pickling() -> None:
    """torch would move their storage to memory of its own, here, too: a rank would then train what no other has."""
    for kind, reduce in ((torch.nn.Parameter, _refuse_pickle), (torch.Tensor, _copy_tensor),
                         (torch.UntypedStorage, torch.UntypedStorage.clone)):
        ForkingPickler.register(kind, _reducer(reduce, ForkingPickler._extra_reducers[kind]))


def _reducer(ours: Callable[[Any], Any], torchs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reduce(tensor: torch.Tensor | torch.UntypedStorage):
        return torchs(ours(tensor) if is_in_job(tensor) else tensor)

    return reduce


def _refuse_pickle(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    raise TypeError(f"{name_in_job(parameter)}: a parameter of a job is not handed to another process, as torch would "
                    "move it to memory of its own, here, too; opt.publish() makes a version that the other process "
                    "attaches, and copy.deepcopy(model) is an ordinary module")


def _copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)

"""Modules on attached buffers."""
from __future__ import annotations

from typing import Literal, TypeVar, overload

import torch

from .._buffer import Buffer
from ._match import match
from ._misfit import some
from ._names import IncompatibleKeys, Names
from ._places import Member, install, successor
from ._published import Published
from ._shown import remember

Module = TypeVar("Module", bound=torch.nn.Module)


@overload
def bind(module: Module, buffer: Buffer, strict: Literal[True] = True, names: Names = None) -> Module: ...


@overload
def bind(module: torch.nn.Module, buffer: Buffer, strict: bool, names: Names = None) -> IncompatibleKeys: ...


def bind(module, buffer, strict=True, names=None):
    """
    Points every parameter of `module` (on the meta device or not) at the shared memory and returns the
    module. Parameters become new objects of the same class that need no gradient, one for all names of a
    tensor; persistent buffers become private copies.

    A tensor that the module has under several names (tied: one object, or several over the same elements)
    needs one of them in the buffer. Several must have the same values there.

    strict  False: names that only one side has are left alone, and so are non-persistent buffers that are
            still on the meta device; returns these names, as load_state_dict() does, instead of the module
    names   a dict or a function that makes the buffer's names of the module's: {"module.": "", "": "model."}
            changes prefixes, {"head.weight": "lm_head.weight"} whole names

    load_state_dict() is refused from then on (Denied) where it would write to the shared memory; with
    assign=True it is not: that replaces the parameters, which are the module's own then.

    LayoutMismatch: names, types, shapes, or values of one tensor's names; no name in common. ValueError: a
    non-persistent buffer on the meta device; a tensor that is not plain (a DTensor, a FakeTensor, quantized,
    sparse, a subclass with memory of its own, a lazy module's). Nothing is changed then.
    """
    matches, keys = match(module, buffer, strict, names)
    made: list[tuple[Member, torch.Tensor]] = []
    with torch.inference_mode(False), torch.no_grad():
        for held, tensor in matches:
            view, news = tensor.torch(), {}
            for member in held.members:
                if member.role not in news:
                    is_param = member.role == "param"
                    news[member.role] = successor(member, view, False) if is_param else view.clone()
                made.append((member, news[member.role]))
        install(made)
    remember(module, matches)
    return module if strict else keys


def refresh(module: torch.nn.Module, buffer: Buffer, strict: bool = True, names: Names = None) -> IncompatibleKeys:
    """
    Moves a bound module to another version at a moment when nobody uses it: its Parameter objects stay
    and show the new memory, the values of its persistent buffers are overwritten. `strict`, `names` and
    errors as in bind(); returns the names that only one side has: none if `strict`. ValueError: the module
    is on the meta device, or on another device than the buffer.
    """
    matches, keys = match(module, buffer, strict, names)
    unbound = [held.names[0] for held, _ in matches if held.tensor.is_meta]
    if unbound:
        raise ValueError(f"{some(unbound)}: still on the meta device; bind() the module first")
    published = Published()
    replaced, copied, elsewhere = [], [], []  # two lists of pairs: a tensor, and what it is to show
    with torch.inference_mode(False), torch.no_grad():
        for held, tensor in matches:
            view = tensor.torch()
            buffers = [member.tensor for member in held.members if member.role == "buffer"]
            if any(_is_fixed(buffer, published) for buffer in buffers):
                private = view.clone()
                replaced += [(buffer, private) for buffer in buffers]
            else:
                copied += [(buffer, view) for buffer in buffers]
            replaced += [(parameter, view) for parameter in held.parameters()]
            elsewhere += [f"{held.names[0]} ({parameter.device})" for parameter in held.parameters()
                          if parameter.device != view.device]
        if elsewhere:
            raise ValueError(f"{some(elsewhere)}: not on the device of {buffer!r}; bind() the module to it")
        for target, view in replaced:
            target.data = view
        for target, view in copied:
            target.data.copy_(view)  # not target.copy_(): what was an inference tensor refuses that
    remember(module, matches)
    return keys


def _is_fixed(tensor: torch.Tensor, published: Published) -> bool:
    """Torch or the kernel refuses writes to its memory."""
    return tensor.is_inference() or 0 in tensor.stride() or tensor in published

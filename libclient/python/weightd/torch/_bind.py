"""Modules on attached buffers."""
from __future__ import annotations

from typing import Literal, TypeVar, overload

import torch

from .._buffer import Buffer
from ._bound import is_to_share
from ._match import match
from ._misfit import some
from ._names import IncompatibleKeys, Names
from ._places import Member, install, successor
from ._published import Published, is_fixed
from ._sharing import Share, keep_from_training, refuse_training, shares, warn_of_copies
from ._shown import remember

Module = TypeVar("Module", bound=torch.nn.Module)


@overload
def bind(module: Module, buffer: Buffer, strict: Literal[True] = True, names: Names = None,
         share: Share = None) -> Module: ...


@overload
def bind(module: torch.nn.Module, buffer: Buffer, strict: bool, names: Names = None,
         share: Share = None) -> IncompatibleKeys: ...


def bind(module, buffer, strict=True, names=None, share=None):
    """
    Points every parameter of `module` (on the meta device or not) at the shared memory and returns the
    module. Parameters become new objects of the same class that need no gradient, one for all names of a
    tensor; persistent buffers become private copies, which swap(), pause(), reacquire() and refresh() update.
    is_bound(module).private_bytes counts the private bytes; a RuntimeWarning reports them if 1 MiB or more is copied
    and that is most of the module, as with GPTQ, unless `share` is a function.

    A tensor that the module has under several names (tied: one object, or several over the same elements)
    needs one of them in the buffer. Several must have the same values there.

    strict  False: names that only one side has are left alone, and so are non-persistent buffers that are
            still on the meta device; returns these names, as load_state_dict() does, instead of the module
    names   a dict or a function that makes the buffer's names of the module's: {"module.": "", "": "model."}
            changes prefixes, {"head.weight": "lm_head.weight"} whole names
    share   persistent buffers that use the shared memory itself: "quantized": of integers or packed types, of two
            or more dimensions, of modules in eval mode; "all"; or a function of name and tensor

    load_state_dict() is refused from then on (Denied) where it would write to the shared memory; with
    assign=True it is not: that replaces the parameters, which are the module's own then. train() of a module that
    shares buffers is refused (Denied), since layers like BatchNorm would write to them; a layer that writes to one
    in eval mode ends in SIGSEGV.

    multiprocessing refuses to hand over a bound module, but by fork (TypeError): torch would move it to memory of
    its own, here too. Hand over the Buffer, or its name, and bind() there.

    LayoutMismatch: names, types, shapes, or values of one tensor's names; no name in common. ValueError: a
    non-persistent buffer on the meta device; a tensor that is not plain (a DTensor, a FakeTensor, quantized,
    sparse, a subclass with memory of its own, a lazy module's); a buffer to share of a module in training mode.
    Nothing is changed then.
    """
    matches, keys = match(module, buffer, strict, names)
    shared = [member for held, _ in matches if shares(share, held) for member in held.buffers()]
    refuse_training(shared)
    stays = {id(member.tensor) for member in shared}
    made: list[tuple[Member, torch.Tensor]] = []
    with torch.inference_mode(False), torch.no_grad():
        for held, tensor in matches:
            view, news = tensor.torch(), {}
            for member in held.members:
                if member.role not in news:
                    news[member.role] = (successor(member, view, False) if member.role == "param" else
                                         view if id(member.tensor) in stays else view.clone())
                made.append((member, news[member.role]))
        install(made)
    remember(module, matches)
    if shared:
        keep_from_training()
    warn_of_copies(share, matches, stays)
    return module if strict else keys


def refresh(module: torch.nn.Module, buffer: Buffer, strict: bool = True, names: Names = None) -> IncompatibleKeys:
    """
    Moves a bound module to another version at a moment when no thread uses it: its Parameter objects stay
    and show the new memory, as do the buffers it shares, and the values of its other persistent buffers are
    overwritten; what is_bound() calls lost is put back. `strict`, `names` and errors as in bind(); returns the
    names that only one side has: none if `strict`. ValueError: the module is on the meta device, or on another
    device than the buffer.
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
            shown = [*held.parameters(), *(member.tensor for member in held.buffers() if is_to_share(member))]
            buffers = [member.tensor for member in held.buffers() if not is_to_share(member)]
            if any(is_fixed(buffer, published) for buffer in buffers):
                private = view.clone()
                replaced += [(buffer, private) for buffer in buffers]
            else:
                copied += [(buffer, view) for buffer in buffers]
            replaced += [(target, view) for target in shown]
            elsewhere += [f"{held.names[0]} ({target.device})" for target in shown if target.device != view.device]
        if elsewhere:
            raise ValueError(f"{some(elsewhere)}: not on the device of {buffer!r}; bind() the module to it")
        for target, view in replaced:
            target.data = view
        for target, view in copied:
            target.data.copy_(view)  # not target.copy_(): what was an inference tensor refuses that
    remember(module, matches)
    return keys

"""Buffers of modules that are the memory itself, and the modules that must not write to them."""
from __future__ import annotations

import errno
import functools
import warnings
from typing import Callable, Union

import torch

from .._errors import error
from .._tensor import Tensor
from ._bound import shared_buffers
from ._misfit import some
from ._places import Held, Member

Share = Union[str, Callable[[str, torch.Tensor], bool], None]

_QUANTIZED = {getattr(torch, name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
                                                "uint64", "float4_e2m1fn_x2") if hasattr(torch, name)}
_NOTICED = 1 << 20  # bytes of private copies


def shares(share: Share, held: Held) -> bool:
    """True when buffers of a module that are this tensor are to be shared. ValueError: `share`."""
    if share is None or not held.buffers():
        return False
    if share == "quantized":
        return (held.tensor.dtype in _QUANTIZED and held.tensor.dim() >= 2
                and not any(owner.training for member in held.buffers() for owner, _ in member.places))
    if share == "all":
        return True
    if not callable(share):
        raise ValueError(f"share={share!r} is none of 'quantized', 'all', a function of name and tensor, None")
    return bool(share(held.names[0], held.tensor))


def warn_of_copies(share: Share, matches: list[tuple[Held, Tensor]], stays: set[int]) -> None:
    """RuntimeWarning to the caller of bind(): most bytes are private, which no function chose."""
    copied = [(held.names[0], tensor.nbytes) for held, tensor in matches
              if any(id(member.tensor) not in stays for member in held.buffers())]
    n_copied, n_bytes = sum(size for _, size in copied), sum(tensor.nbytes for _, tensor in matches)
    if n_copied >= _NOTICED and 2 * n_copied > n_bytes and not callable(share):
        warnings.warn(f"{n_copied} of {n_bytes} bytes of the module are private copies, since they are persistent "
                      f"buffers: {some([name for name, _ in copied])}; bind(module.eval(), buffer, share='quantized') "
                      "shares packed ones, a function as share= chooses", RuntimeWarning, stacklevel=3)


def refuse_training(members: list[Member]) -> None:
    """ValueError: a module of these buffers is in training mode."""
    names = [member.where for member in members if any(owner.training for owner, _ in member.places)]
    if names:
        raise ValueError(f"{some(names)}: to be shared, of modules in training mode, where they may be written; call "
                         "eval() first, or leave them private (share=)")


@functools.cache
def keep_from_training() -> None:
    """
    From now on train() of a module with buffers in memory of others is refused, and that of each module around it. A
    patch of torch, since an attribute of the module would travel with all kinds of copies, which train by themselves.
    """
    train = torch.nn.Module.train

    @functools.wraps(train)
    def train_unless_shared(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
        names = shared_buffers(module) if mode else []
        if names:
            raise error(errno.EACCES, f"{some(names)}: shared with other processes, which training would write to; "
                        "bind() again without share= makes them private, copy.deepcopy() makes a module to train")
        return train(module, mode)

    torch.nn.Module.train = train_unless_shared

"""Modules that were given the memory of a buffer: the facts that later calls need."""
from __future__ import annotations

from typing import Hashable

import torch

from .._tensor import Tensor
from ._bound import held_at, is_to_share, note
from ._handing import keep_here
from ._load import watch
from ._match import home_of
from ._places import APART, Held
from ._published import give


def remember(module: torch.nn.Module, shown: list[tuple[Held, Tensor]]) -> None:
    """To be called after the tensors of the module have changed."""
    sharing: dict[Hashable, list[Held]] = {}
    for held, tensor in shown:
        sharing.setdefault(home_of(tensor), []).append(held)
        give(tensor._memory)
        note(held, tensor)
    for several in sharing.values():
        if len(several) > 1:  # tied by this version, which the next one need not do
            for number, held in enumerate(several):
                for member in held.members:
                    if member.role == "param" or is_to_share(member):
                        setattr(held_at(*member.places[0]), APART, number)
    watch(module, [held for held, _ in shown])
    keep_here()

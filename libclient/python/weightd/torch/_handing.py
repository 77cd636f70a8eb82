"""Tensors of weightd on their way to another process, by multiprocessing."""
from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Callable

import torch

from .._memory import Memory
from ._published import given


def keep_here() -> None:
    """
    From now on multiprocessing refuses parameters in memory that modules were given, and copies other tensors in it.
    torch would move their storage to memory of its own, in this process too, where no swap() reaches it.
    """
    for kind, reduce in ((torch.nn.Parameter, _refuse), (torch.Tensor, _copy_tensor), (torch.UntypedStorage, _copy)):
        before = ForkingPickler._extra_reducers[kind]
        if not isinstance(before, _Reducer):
            ForkingPickler.register(kind, _Reducer(reduce, before))


class _Reducer:
    def __init__(self, ours: Callable, torchs: Callable):
        self._ours, self._torchs = ours, torchs

    def __call__(self, tensor: torch.Tensor | torch.UntypedStorage):
        memory = given(tensor)
        return self._torchs(tensor) if memory is None else self._torchs(self._ours(tensor, memory))


def _refuse(parameter: torch.nn.Parameter, memory: Memory) -> torch.nn.Parameter:
    what, way_out = f"bound to {memory!r}", "hand over the Buffer"
    if memory.is_writers:
        what, way_out = "that flat() made", "publish(), attach(), and hand over that Buffer"
    raise TypeError(f"a module {what} is not handed to another process: torch would move it to memory of its own, in "
                    f"both; {way_out}, or its name, and bind() there")


def _copy_tensor(tensor: torch.Tensor, memory: Memory) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _copy(storage: torch.UntypedStorage, memory: Memory) -> torch.UntypedStorage:
    return storage.clone()

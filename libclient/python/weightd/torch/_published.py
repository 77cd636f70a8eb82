"""Memory that modules were given: whether a tensor can still be written."""
from __future__ import annotations

import os
import threading
import weakref

import torch

from .._memory import Memory
from ._kinds import is_plain

_lock = threading.Lock()  # protects _given
_given: weakref.WeakSet[Memory] = weakref.WeakSet()


def _make_lock() -> None:
    """In a child: a thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_make_lock)


def give(memory: Memory) -> None:
    """Remembers, for as long as it is mapped, that tensors of modules may lie in it."""
    with _lock:
        _given.add(memory)


def given(tensor: torch.Tensor | torch.UntypedStorage) -> Memory | None:
    """The memory of them that it lies in; None for a tensor that is not plain, which has no one address."""
    if isinstance(tensor, torch.Tensor) and not is_plain(tensor):
        return None
    address = tensor.data_ptr()
    with _lock:
        return next((memory for memory in _given if 0 <= address - memory.address < memory.size), None)


class Published:
    """The published memory at this moment: `tensor in Published()` lies in it, and a write to it is a SIGSEGV."""

    def __init__(self) -> None:
        with _lock:
            self._ranges = [(memory.address, memory.address + memory.size) for memory in _given
                            if not memory.writable]

    def __contains__(self, tensor: torch.Tensor) -> bool:
        if not self._ranges or not is_plain(tensor):
            return False
        address = tensor.data_ptr()
        return any(start <= address < end for start, end in self._ranges)


def is_fixed(tensor: torch.Tensor, published: Published) -> bool:
    """Torch or the kernel refuses writes to its memory."""
    return tensor.is_inference() or 0 in tensor.stride() or tensor in published

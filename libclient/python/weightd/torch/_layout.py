"""The layout of a module."""
from __future__ import annotations

import torch

from .. import _dtype
from .._layout import Layout
from ._places import places_of

_NAMES = {getattr(torch, theirs): ours for ours, theirs in _dtype.TORCH.items()
          if hasattr(torch, theirs)}


def layout_of(module: torch.nn.Module, alignment: int = 256) -> Layout:
    """
    The layout of a module's parameters and persistent buffers, in the order and with the names of its
    state_dict. One tensor under several names is stored once and tied. The unit of a tensor is its name
    up to the first number ("encoder.layer.3"), or else up to the last dot. Touches no value: the module
    may be on the meta device. ValueError: a type that weightd has not.
    """
    layout = Layout(alignment)
    indices: dict[int, int] = {}  # by id
    for _, _, name, tensor, role in places_of(module):
        if id(tensor) in indices:
            layout.tie(name, indices[id(tensor)], _unit(name))
        else:
            indices[id(tensor)] = layout.add(name, *describe(name, tensor), role, _unit(name))
    return layout


def describe(name: str, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Type and shape as a layout has them. ValueError."""
    if tensor.layout != torch.strided or tensor.dtype not in _NAMES:
        raise ValueError(f"{name}: weightd has no {tensor.dtype} in layout {tensor.layout}")
    dtype, shape = _NAMES[tensor.dtype], tuple(tensor.shape)
    return dtype, _dtype.unpacked(shape, dtype)


def _unit(name: str) -> str:
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:i + 1])
    return ".".join(parts[:-1])

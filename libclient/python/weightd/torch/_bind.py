"""Modules on attached buffers."""
from __future__ import annotations

import torch

from .._buffer import Buffer
from .._table import Table
from .._tensor import Tensor
from ._layout import describe
from ._misfit import difference, refuse, some
from ._places import Place, groups, install, parameter, refuse_unmade


def bind(module: torch.nn.Module, buffer: Buffer, strict: bool = True) -> torch.nn.Module:
    """
    Points every parameter of `module` (on the meta device or not) at the shared memory and returns the
    module. Parameters become new nn.Parameter objects that need no gradient, one for all names of a tied
    tensor; persistent buffers become private copies.

    Unless `strict`, names that only one side has are left alone, and so are non-persistent buffers that
    are still on the meta device. LayoutMismatch: names, types or shapes; ValueError: such a buffer.
    Nothing is changed then.
    """
    for places, tensor in match(module, buffer, strict):
        view, is_param = tensor.torch(), places[0].role == "param"
        install(places, parameter(places[0], view, False) if is_param else view.clone())
    return module


def refresh(module: torch.nn.Module, buffer: Buffer) -> None:
    """
    Moves a bound module to another version at a moment when nobody uses it: its Parameter objects stay
    and show the new memory, the values of its persistent buffers are overwritten. LayoutMismatch as in
    bind(); ValueError: the module is on the meta device.
    """
    matches = match(module, buffer, strict=True)
    unbound = [places[0].name for places, _ in matches if places[0].tensor.is_meta]
    if unbound:
        raise ValueError(f"{some(unbound)}: still on the meta device; bind() the module first")
    with torch.no_grad():
        for places, tensor in matches:
            target, view = places[0].tensor, tensor.torch()
            if places[0].role == "param":
                target.data = view
            else:
                target.copy_(view)


def match(module: torch.nn.Module, buffer: Table,
          strict: bool) -> list[tuple[list[Place], Tensor]]:
    """
    The tensor for each group of places. A file may hold any of the names of a tied tensor; the first one
    it has counts. LayoutMismatch, ValueError.
    """
    if strict:
        refuse_unmade(module)
    matches, missing, different = [], [], []
    known: set[str] = set()
    for places in groups(module):
        known.update(place.name for place in places)
        found = next((buffer[place.name] for place in places if place.name in buffer), None)
        if found is None:
            missing.append(places[0].name)
            continue
        dtype, shape = describe(places[0].name, places[0].tensor)
        if (found.dtype, found.shape) != (dtype, shape):
            different.append(difference(found, dtype, shape))
        matches.append((places, found))
    extra = [name for name in buffer if name not in known] if strict else []
    refuse(f"{buffer!r} does not fit the module", ("other type or shape", different),
           ("missing in the buffer", missing if strict else []), ("not in the module", extra))
    return matches

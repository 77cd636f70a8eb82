"""The tensor of a buffer for each tensor of a module."""
from __future__ import annotations

import torch

from .._table import Table
from .._tensor import Tensor
from ._kinds import describe_plain, same_bits
from ._misfit import difference, home, refuse, renaming
from ._names import IncompatibleKeys, Names, idle, renamer
from ._places import Held, contents_of, refuse_odd, refuse_unmade


def match(module: torch.nn.Module, buffer: Table, strict: bool,
          names: Names) -> tuple[list[tuple[Held, Tensor]], IncompatibleKeys]:
    """
    The tensor for each memory of the module, and the names that have none. A buffer may have any of the
    names of tied tensors, or several with the same values. LayoutMismatch, ValueError.
    """
    contents, rename = contents_of(module), renamer(names)
    if strict:
        refuse_odd(contents)
        refuse_unmade(contents)
    matches, missing, different, apart = [], [], [], []
    known: set[str] = set()
    used: set[tuple[int, int]] = set()
    for held in contents.held:
        found = [tensor for tensor in map(buffer.get, map(rename, held.names)) if tensor is not None]
        if not found:
            missing += held.names
            continue
        dtype, shape = describe_plain(held.names[0], held.tensor)
        misfits = [difference(tensor, dtype, shape) for tensor in found
                   if (tensor.dtype, tensor.shape) != (dtype, shape)]
        different += misfits
        known.update(tensor.name for tensor in found)
        used.update(map(home_of, found))
        matches.append((held, found[0]))
        if not misfits:
            apart += [f"{found[0].name} and {tensor.name}" for tensor in found[1:] if _differ(found[0], tensor)]
    extra = [name for name in buffer if name not in known and home_of(buffer[name]) not in used]
    may_miss = not strict and matches
    refuse(f"{buffer!r} does not fit the module", ("other type or shape", different),
           ("one tensor in the module, with different values in the buffer (untie them in the module, as with "
            "tie_word_embeddings=False, or publish one of them)", apart),
           ("missing in the buffer", [] if may_miss else missing), ("not in the module", [] if may_miss else extra),
           ("in names=, but not in the module", idle(names, (n for held in contents.held for n in held.names))
            if missing and not may_miss else []),
           ("the names fit with", [] if may_miss else renaming(missing, extra)))
    return matches, IncompatibleKeys(missing, extra)


def _differ(one: Tensor, other: Tensor) -> bool:
    return home_of(one) != home_of(other) and not same_bits(one.torch(), other.torch())


def home_of(tensor: Tensor) -> tuple[int, int]:
    """Equal for the names of one memory of one buffer."""
    return id(tensor._memory), home(tensor)

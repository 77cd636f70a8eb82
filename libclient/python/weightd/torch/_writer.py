"""Writers that take the tensors of torch."""
from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import NamedTuple

import torch

from .._errors import error
from .._tensor import Tensor
from .._writer import Writer
from ._kinds import describe_values, same_bits
from ._misfit import difference, home, refuse, renaming
from ._names import IncompatibleKeys, Names, idle, renamer
from ._places import is_extra_state, memory_of


class _Given(NamedTuple):
    """A tensor that is given as `key`, and its destination."""

    wanted: Tensor
    key: str
    tensor: torch.Tensor


def fill(writer: Writer, tensors: Mapping[str, torch.Tensor], strict: bool = True,
         names: Names = None) -> IncompatibleKeys:
    """
    Copies tensors (a state_dict) into those of the same names, on the current streams of torch: from GPU to GPU
    without a detour, and without waiting, so that what is copied stays as it is until publish(). Of tied
    names one is enough; several must have the same values, and a name that the writer has not may be one more of
    a tensor that is given. Extra state (get_extra_state()) is passed over.

    strict  False: copies what both sides have, as for one of several buckets
    names   makes the writer's names of the given ones, as in bind()

    Returns the names that only one side has: if `strict`, none but extra state.

    LayoutMismatch: other names, types or shapes, other values under tied names; no name in common. Denied: the
    writer has published. ValueError: a tensor that has no values here (meta, a DTensor: pass its full_tensor(),
    a collective) or is not plain (sparse, quantized, a subclass with memory of its own). TypeError: no tensor.
    Nothing is copied then.
    """
    if writer.version is not None:
        raise error(errno.EACCES, f"{writer!r} is published, which cannot be written; create() the next version")
    given, strangers = _sorted(writer, tensors, names)
    different = [misfit for group in given.values() for one in group for misfit in _misfit(one)]
    apart = [] if different else [f"{group[0].key} and {one.key}" for group in given.values() for one in group[1:]
                                  if _differ(group[0].tensor, one.tensor)]
    missing = [tensor.name for tensor in writer.values() if home(tensor) not in given]
    unwanted = [key for key in strangers if not is_extra_state(key)]
    may_miss = not strict and given
    refuse(f"{writer!r} does not fit the tensors", ("other type or shape", different),
           ("one tensor in the layout, given with different values (give one of them, or create() the buffer from "
            "a layout that keeps them apart, with new_layout=True)", apart),
           ("not given", [] if may_miss else missing), ("not in the layout", [] if may_miss else unwanted),
           ("in names=, but not given", idle(names, tensors) if unwanted and not may_miss else []),
           ("the names fit with", [] if may_miss else renaming(unwanted, missing)))
    with torch.inference_mode(False), torch.no_grad():
        for (wanted, _, tensor), *_ in given.values():
            wanted.torch().copy_(tensor, non_blocking=True)
    return IncompatibleKeys(missing, strangers)


def publish(writer: Writer) -> int:
    """Writer.publish(), on a GPU behind the current stream of torch there, which must be all that writes."""
    on = writer.location.device
    return writer.publish(None if on is None else torch.cuda.current_stream(on))


def _sorted(writer: Writer, tensors: Mapping[str, torch.Tensor],
            names: Names) -> tuple[dict[int, list[_Given]], list[str]]:
    """The tensors given for each memory of the writer, by its index; and the keys that have no place there."""
    rename = renamer(names)
    given: dict[int, list[_Given]] = {}
    strangers: dict[str, object] = {}
    for key, tensor in tensors.items():
        wanted = writer.get(rename(key))
        if wanted is not None:
            given.setdefault(home(wanted), []).append(_Given(wanted, key, tensor))
        else:
            strangers[key] = tensor
    carried = {memory_of(one.tensor) for group in given.values() for one in group
               if isinstance(one.tensor, torch.Tensor)}
    return given, [key for key, tensor in strangers.items()
                   if not isinstance(tensor, torch.Tensor) or memory_of(tensor) not in carried]


def _misfit(given: _Given) -> list[str]:
    wanted, described = given.wanted, describe_values(given.key, given.tensor)
    return [] if described == (wanted.dtype, wanted.shape) else [difference(wanted, *described)]


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    return memory_of(one) != memory_of(other) and not same_bits(one, other)

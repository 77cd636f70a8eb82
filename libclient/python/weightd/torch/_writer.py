"""Writers that take the tensors of torch."""
from __future__ import annotations

from collections.abc import Mapping

import torch

from .._table import Table
from .._writer import Writer
from ._layout import describe
from ._misfit import difference, refuse


def fill(writer: Writer, tensors: Mapping[str, torch.Tensor]) -> None:
    """
    Copies tensors (a state_dict) into those of the same names, on the current streams of torch: from GPU to GPU
    without a detour, and without waiting, so that what is copied stays as it is until publish(). Of tied
    names one is enough. LayoutMismatch: other names, types or shapes; nothing is copied then.
    """
    matches, missing, different, known = [], [], [], set()
    for names in _tied(writer):
        known.update(names)
        found = next((name for name in names if name in tensors), None)
        if found is None:
            missing.append(names[0])
            continue
        wanted, given = writer[found], describe(found, tensors[found])
        if given != (wanted.dtype, wanted.shape):
            different.append(difference(wanted, *given))
        matches.append((wanted, tensors[found]))
    refuse(f"{writer!r} does not fit the tensors", ("other type or shape", different),
           ("not given", missing), ("not in the layout", [name for name in tensors if name not in known]))
    with torch.no_grad():
        for wanted, tensor in matches:
            wanted.torch().copy_(tensor, non_blocking=True)


def publish(writer: Writer) -> int:
    """Writer.publish(), on a GPU behind the current stream of torch there, which must be all that writes."""
    on = writer.location.device
    return writer.publish(None if on is None else torch.cuda.current_stream(on))


def _tied(table: Table) -> list[list[str]]:
    """The names of each tensor."""
    groups: dict[int, list[str]] = {}
    for tensor in table.values():
        groups.setdefault(tensor.index if tensor.tied_to is None else tensor.tied_to, []).append(tensor.name)
    return list(groups.values())

"""Names and tensors that do not fit each other, and the sentences about them."""
from __future__ import annotations

import errno

from .._errors import LayoutMismatch
from .._tensor import Tensor

_SHOWN = 5  # names of a list that are printed


def refuse(what: str, *problems: tuple[str, list[str]]) -> None:
    """LayoutMismatch, if there is any."""
    said = [f"{problem}: {some(names)}" for problem, names in problems if names]
    if said:
        raise LayoutMismatch(errno.EPROTOTYPE, f"{what}: {'; '.join(said)}")


def home(tensor: Tensor) -> int:
    """The index of the tensor with its memory."""
    return tensor.index if tensor.tied_to is None else tensor.tied_to


def difference(found: Tensor, dtype: str, shape: tuple[int, ...]) -> str:
    return f"{found.name} is {found.dtype} {list(found.shape)}, not {dtype} {list(shape)}"


def renaming(ours: list[str], theirs: list[str]) -> list[str]:
    """The names= that makes all names of ours those of theirs, by one prefix, or nothing."""
    ends = set(theirs)
    for their in theirs if ours else []:
        prefix = ours[0][:-len(their)] if ours[0].endswith("." + their) else None
        if prefix and all(our.startswith(prefix) and our[len(prefix):] in ends for our in ours):
            return [f"names={{{prefix!r}: ''}}"]
        prefix = their[:-len(ours[0])] if their.endswith("." + ours[0]) else None
        if prefix and all(prefix + our in ends for our in ours):
            return [f"names={{'': {prefix!r}}}"]
    return []


def some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

"""The sentences about names and tensors that do not fit."""
from __future__ import annotations

import errno

from .._errors import LayoutMismatch
from .._tensor import Tensor

_SHOWN = 5  # of a list of names


def refuse(what: str, *problems: tuple[str, list[str]]) -> None:
    """LayoutMismatch, if there is any."""
    said = [f"{problem}: {some(names)}" for problem, names in problems if names]
    if said:
        raise LayoutMismatch(errno.EPROTOTYPE, f"{what}: {'; '.join(said)}")


def difference(found: Tensor, dtype: str, shape: tuple[int, ...]) -> str:
    return f"{found.name} is {found.dtype} {list(found.shape)}, not {dtype} {list(shape)}"


def some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

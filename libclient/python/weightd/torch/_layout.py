"""The layout of a module."""
from __future__ import annotations

import errno

import torch

from .._buffer import Buffer
from .._errors import LayoutMismatch
from .._layout import Layout
from ._kinds import describe
from ._names import Names, renamer
from ._places import Contents, contents_of, refuse_odd


def layout_of(module: torch.nn.Module, alignment: int | None = None, names: Names = None,
              like: Buffer | Layout | None = None) -> Layout:
    """
    The layout of a module's parameters and persistent buffers, in the order and with the names of its
    state_dict, changed by `names` as in bind(). One tensor under several names is stored once and tied, as
    are several over the same elements (storage, offset, shape, strides). The unit of a tensor is its name
    up to the first number ("encoder.layer.3"), or else up to the last dot. Touches no value: the module
    may be on the meta device. A DTensor has its whole shape.

    With `like`, a Buffer or a Layout, it is that one's layout, with its order, offsets and roles: LayoutMismatch
    where the module has other names, types or shapes, which it names. A name that only one of the two has may
    be missing in the other where it is tied.

    `alignment` as in Layout.

    Extra state (get_extra_state()) is in no layout; fill() passes over it.

    ValueError: a type that weightd has not, a tensor that is not plain, an entry that a hook of the
    state_dict made.
    """
    contents = contents_of(module)
    refuse_odd(contents)
    layout = lay_out(contents, alignment, names)
    return layout if like is None else _like(layout, like)


def _like(layout: Layout, like: Buffer | Layout) -> Layout:
    wanted = like.layout() if isinstance(like, Buffer) else like
    difference = layout.difference(wanted)
    if difference:
        raise LayoutMismatch(errno.EPROTOTYPE, f"the layout of the module is not that of {like!r}, the other: "
                                               f"{difference}")
    return wanted


def lay_out(contents: Contents, alignment: int | None, names: Names) -> Layout:
    layout, rename = Layout(alignment), renamer(names)
    indices: dict[int, int] = {}  # keyed by id of the Held
    for name, held in contents.entries:
        name = rename(name)
        if id(held) in indices:
            layout.tie(name, indices[id(held)], _unit(name))
        else:
            indices[id(held)] = layout.add(name, *describe(name, held.tensor), held.role, _unit(name))
    return layout


def _unit(name: str) -> str:
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:i + 1])
    return ".".join(parts[:-1])

"""Modules on writers."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Iterator

import torch

from .._tensor import Tensor
from .._writer import Writer, create
from ._kinds import describe_plain, same_bits
from ._layout import lay_out
from ._misfit import home, refuse
from ._names import Names, renamer
from ._overlap import refuse_overlaps
from ._places import Held, contents_of, install, refuse_odd, refuse_unmade, successor
from ._shown import remember
from ._writer import publish


class Flat(Mapping):
    """
    A module with its tensors in the memory of a writer: a lazy mapping of names to Tensor. As a context
    manager it drops the version at the end of the block unless published.

    module  the module
    writer  the Writer
    """

    def __init__(self, module: torch.nn.Module, writer: Writer):
        self.module, self.writer = module, writer

    def publish(self) -> int:
        """
        publish() of the writer: returns the version. The module still computes, on memory that is read-only
        now; to train on, call flat() again, which copies the values and keeps the Parameter objects.
        """
        return publish(self.writer)

    def __getitem__(self, name: str) -> Tensor:
        return self.writer[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.writer)

    def __len__(self) -> int:
        return len(self.writer)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __enter__(self) -> Flat:
        return self

    def __exit__(self, *exception) -> None:
        self.writer.close()


def flat(module: torch.nn.Module, name: str, alignment: int | None = None, names: Names = None, **options) -> Flat:
    """
    Makes the parameters and persistent buffers of `module` views of the next version of buffer `name`,
    to be filled and published. Tensors on the meta device are replaced (parameters by new objects of the
    same class and requires_grad) and are zero, inference tensors are replaced and keep their values; others
    keep their object, value and gradient, so that an optimizer made before stays valid. Gradients are ordinary
    memory.

    If the buffer has the tensors of the module already, in whatever order, the version gets the layout of the
    newest version (see weightd.create()), and readers can swap() to it.

    Tensors over the same elements (storage, offset, shape, strides) stay so. Those that share a part of their
    memory are refused.

    `alignment` as in Layout. `names` makes the buffer's names of the module's, as in bind(). `options` as in
    weightd.create(), with its errors; with device="cuda:0" the module moves to the GPU, its gradients, if it has any, do not: module.cuda()
    first. ValueError: a non-persistent buffer is still on the meta device, a type that weightd has not, a
    tensor that is not plain (see bind()). LayoutMismatch: the version has one memory for tensors that differ here.
    Nothing is changed after an error. load_state_dict() is refused (Denied) once the version is published.
    """
    contents = contents_of(module)
    refuse_odd(contents)
    refuse_unmade(contents)
    for held in contents.held:
        describe_plain(held.names[0], held.tensor)
    refuse_overlaps(contents)
    writer, rename = create(name, lay_out(contents, alignment, names), **options), renamer(names)
    try:
        with torch.inference_mode(False), torch.no_grad():
            tensors = [writer[rename(held.names[0])] for held in contents.held]
            _refuse_apart(writer, contents.held, tensors)
            _lay(contents.held, tensors)
    except BaseException:
        writer.close()
        raise
    remember(module, list(zip(contents.held, tensors)))
    return Flat(module, writer)


def _refuse_apart(writer: Writer, every: list[Held], tensors: list[Tensor]) -> None:
    """LayoutMismatch: by the layout of the newest version, different values go to one memory."""
    firsts: dict[int, Held] = {}
    apart = []
    for held, tensor in zip(every, tensors):
        first = firsts.setdefault(home(tensor), held)
        if first is not held and not _agree(first.tensor, held.tensor):
            apart.append(f"{first.names[0]} and {held.names[0]}")
    refuse(f"{writer!r} does not fit the module", ("one tensor in the newest version, with different values in the "
                                                   "module (new_layout=True keeps them apart)", apart))


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_meta or other.is_meta:
        return one.is_meta and other.is_meta
    return same_bits(one, other)


def _lay(every: list[Held], tensors: list[Tensor]) -> None:
    """Copies the values first: an error there leaves the module as it was."""
    views = [tensor.torch() for tensor in tensors]
    for held, view in zip(every, views):
        if not held.tensor.is_meta:
            view.copy_(held.tensor)
    members = [(member, view) for held, view in zip(every, views) for member in held.members]
    install([(member, successor(member, view, member.tensor.requires_grad)) for member, view in members
             if not _keeps(member.tensor)])
    for member, view in members:
        if _keeps(member.tensor):
            member.tensor.data = view


def _keeps(tensor: torch.Tensor) -> bool:
    """It can be given other memory, and be trained there."""
    return not tensor.is_meta and not tensor.is_inference()

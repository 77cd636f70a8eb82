"""Modules on writers."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Iterator

import torch

from .._tensor import Tensor
from .._writer import Writer, create
from ._layout import layout_of
from ._places import Place, groups, install, parameter, refuse_unmade
from ._writer import publish


class Flat(Mapping):
    """
    A module whose tensors are the bytes of a writer: a lazy mapping of names to Tensor. As a context
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


def flat(module: torch.nn.Module, name: str, alignment: int = 256, **options) -> Flat:
    """
    Makes the parameters and persistent buffers of `module` views of the next version of buffer `name`,
    to be filled and published. Tensors on the meta device are replaced (parameters by new Parameter
    objects with the same requires_grad) and are zero; others keep their object, value and gradient, so
    that an optimizer made before goes on. Gradients are ordinary memory.

    `options` as in weightd.create(), whose errors come out; with device="cuda:0" the module moves to the GPU,
    its gradients, if it has any, do not: module.cuda() first. ValueError: a non-persistent buffer is still
    on the meta device, or a type that weightd has not.
    """
    refuse_unmade(module)
    writer = create(name, layout_of(module, alignment), **options)
    with torch.no_grad():
        for places in groups(module):
            _lay(places, writer[places[0].name].torch())
    return Flat(module, writer)


def _lay(places: list[Place], view: torch.Tensor) -> None:
    first = places[0]
    if not first.tensor.is_meta:
        first.tensor.data = view.copy_(first.tensor)
    elif first.role == "param":
        install(places, parameter(first, view, first.tensor.requires_grad))
    else:
        install(places, view)

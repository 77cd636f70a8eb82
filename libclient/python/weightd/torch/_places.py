"""Where a module keeps the tensors of its state_dict."""
from __future__ import annotations

from typing import Iterator, NamedTuple

import torch

from ._misfit import some


class Place(NamedTuple):
    """Where a module keeps a tensor: setattr(owner, attribute, tensor)."""

    owner: torch.nn.Module
    attribute: str
    name: str
    tensor: torch.Tensor
    role: str


def places_of(module: torch.nn.Module, prefix: str = "") -> Iterator[Place]:
    """All names of a state_dict, in its order: tied tensors and modules come more than once."""
    for role, tensors in (("param", module._parameters), ("buffer", module._buffers)):
        for attribute, tensor in tensors.items():
            if tensor is not None and attribute not in module._non_persistent_buffers_set:
                yield Place(module, attribute, prefix + attribute, tensor, role)
    for attribute, child in module._modules.items():
        if child is not None:
            yield from places_of(child, f"{prefix}{attribute}.")


def groups(module: torch.nn.Module) -> list[list[Place]]:
    """The places of each tensor, in the order of their first names."""
    found: dict[int, list[Place]] = {}
    for place in places_of(module):
        found.setdefault(id(place.tensor), []).append(place)
    return list(found.values())


def refuse_unmade(module: torch.nn.Module) -> None:
    unmade = [f"{prefix}.{name}".lstrip(".") for prefix, owner in module.named_modules()
              for name in owner._non_persistent_buffers_set
              if owner._buffers.get(name) is not None and owner._buffers[name].is_meta]
    if unmade:
        raise ValueError(f"{some(sorted(unmade))}: non-persistent buffers on the meta device, whose "
                         "values no version holds; assign them first (module.x = torch.tensor(...)), "
                         "or build the module on the CPU")


def parameter(place: Place, view: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(view, requires_grad)
    parameter.__dict__.update(place.tensor.__dict__)  # what frameworks hang on parameters
    return parameter


def install(places: list[Place], tensor: torch.Tensor) -> None:
    for place in places:  # by setattr, which RNNs watch
        setattr(place.owner, place.attribute, tensor)

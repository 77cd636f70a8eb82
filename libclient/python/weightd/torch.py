"""
Modules of torch on flat buffers.

    with torch.device("meta"):                              # torch 1.13: Linear(..., device="meta")
        model = Model()
    weightd.torch.bind(model, weightd.attach("llama-8b"))   # parameters are the shared memory

    flat = weightd.torch.flat(model, "mine")                # parameters are a new, writable flat buffer
    ...                                                     # fill or train them
    flat.publish()

    with weightd.create("mine", layout, device="cuda:0") as writer:
        weightd.torch.fill(writer, model.state_dict())      # from GPU to GPU, on the current stream
        weightd.torch.publish(writer)                       # behind it

What counts is what the module says of a tensor: a parameter is shared, a persistent buffer (running
statistics) is state of which each module has its own copy, whatever role the loaded file gave them.
Non-persistent buffers are in no state_dict and in no layout.

Torch knows no read-only memory: a write to a parameter of a published version ends in SIGSEGV.

On a GPU all of this is the same, with tensors of device "cuda". Their memory is weightd's, not that of torch's
allocator, whose settings (PYTORCH_CUDA_ALLOC_CONF, expandable_segments) do not matter for it; nor does
torch.cuda.empty_cache() free it, which Buffer.close() and release() do.
"""
from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Iterator, NamedTuple

import torch

from . import _dtype
from ._buffer import Buffer
from ._errors import LayoutMismatch
from ._layout import Layout
from ._table import Table
from ._tensor import Tensor
from ._writer import Writer, create

_NAMES = {getattr(torch, theirs): ours for ours, theirs in _dtype.TORCH.items()
          if hasattr(torch, theirs)}
_SHOWN = 5  # of a list of names, in errors


class _Place(NamedTuple):
    """Where a module keeps a tensor: setattr(owner, attribute, tensor)."""

    owner: torch.nn.Module
    attribute: str
    name: str
    tensor: torch.Tensor
    role: str


def layout_of(module: torch.nn.Module, alignment: int = 256) -> Layout:
    """
    The layout of a module's parameters and persistent buffers, in the order and with the names of its
    state_dict. One tensor under several names is stored once and tied. The unit of a tensor is its name
    up to the first number ("encoder.layer.3"), or else up to the last dot. Touches no value: the module
    may be on the meta device. ValueError: a type that weightd has not.
    """
    layout = Layout(alignment)
    indices: dict[int, int] = {}  # by id
    for _, _, name, tensor, role in _places(module):
        if id(tensor) in indices:
            layout.tie(name, indices[id(tensor)], _unit(name))
        else:
            indices[id(tensor)] = layout.add(name, *_describe(name, tensor), role, _unit(name))
    return layout


def bind(module: torch.nn.Module, buffer: Buffer, strict: bool = True) -> torch.nn.Module:
    """
    Points every parameter of `module` (on the meta device or not) at the shared memory and returns the
    module. Parameters become new nn.Parameter objects that need no gradient, one for all names of a tied
    tensor; persistent buffers become private copies.

    Unless `strict`, names that only one side has are left alone, and so are non-persistent buffers that
    are still on the meta device. LayoutMismatch: names, types or shapes; ValueError: such a buffer.
    Nothing is changed then.
    """
    for places, tensor in _match(module, buffer, strict):
        view, is_param = tensor.torch(), places[0].role == "param"
        _install(places, _parameter(places[0], view, False) if is_param else view.clone())
    return module


def refresh(module: torch.nn.Module, buffer: Buffer) -> None:
    """
    Moves a bound module to another version at a moment when nobody uses it: its Parameter objects stay
    and show the new memory, the values of its persistent buffers are overwritten. LayoutMismatch as in
    bind(); ValueError: the module is on the meta device.
    """
    matches = _match(module, buffer, strict=True)
    unbound = [places[0].name for places, _ in matches if places[0].tensor.is_meta]
    if unbound:
        raise ValueError(f"{_some(unbound)}: still on the meta device; bind() the module first")
    with torch.no_grad():
        for places, tensor in matches:
            target, view = places[0].tensor, tensor.torch()
            if places[0].role == "param":
                target.data = view
            else:
                target.copy_(view)


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
    _refuse_unmade(module)
    writer = create(name, layout_of(module, alignment), **options)
    with torch.no_grad():
        for places in _groups(module):
            _lay(places, writer[places[0].name].torch())
    return Flat(module, writer)


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
        wanted, given = writer[found], _describe(found, tensors[found])
        if given != (wanted.dtype, wanted.shape):
            different.append(_difference(wanted, *given))
        matches.append((wanted, tensors[found]))
    _refuse(f"{writer!r} does not fit the tensors", ("other type or shape", different),
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


def _difference(found: Tensor, dtype: str, shape: tuple[int, ...]) -> str:
    return f"{found.name} is {found.dtype} {list(found.shape)}, not {dtype} {list(shape)}"


def _refuse(what: str, *problems: tuple[str, list[str]]) -> None:
    """LayoutMismatch, if there is any."""
    said = [f"{problem}: {_some(names)}" for problem, names in problems if names]
    if said:
        raise LayoutMismatch(errno.EPROTOTYPE, f"{what}: {'; '.join(said)}")


def _lay(places: list[_Place], view: torch.Tensor) -> None:
    first = places[0]
    if not first.tensor.is_meta:
        first.tensor.data = view.copy_(first.tensor)
    elif first.role == "param":
        _install(places, _parameter(first, view, first.tensor.requires_grad))
    else:
        _install(places, view)


def _parameter(place: _Place, view: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(view, requires_grad)
    parameter.__dict__.update(place.tensor.__dict__)  # what frameworks hang on parameters
    return parameter


def _install(places: list[_Place], tensor: torch.Tensor) -> None:
    for place in places:  # by setattr, which RNNs watch
        setattr(place.owner, place.attribute, tensor)


def _places(module: torch.nn.Module, prefix: str = "") -> Iterator[_Place]:
    """All names of a state_dict, in its order: tied tensors and modules come more than once."""
    for role, tensors in (("param", module._parameters), ("buffer", module._buffers)):
        for attribute, tensor in tensors.items():
            if tensor is not None and attribute not in module._non_persistent_buffers_set:
                yield _Place(module, attribute, prefix + attribute, tensor, role)
    for attribute, child in module._modules.items():
        if child is not None:
            yield from _places(child, f"{prefix}{attribute}.")


def _groups(module: torch.nn.Module) -> list[list[_Place]]:
    """The places of each tensor, in the order of their first names."""
    groups: dict[int, list[_Place]] = {}
    for place in _places(module):
        groups.setdefault(id(place.tensor), []).append(place)
    return list(groups.values())


def _describe(name: str, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Type and shape as a layout has them. ValueError."""
    if tensor.layout != torch.strided or tensor.dtype not in _NAMES:
        raise ValueError(f"{name}: weightd has no {tensor.dtype} in layout {tensor.layout}")
    dtype, shape = _NAMES[tensor.dtype], tuple(tensor.shape)
    return dtype, _dtype.unpacked(shape, dtype)


def _unit(name: str) -> str:
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:i + 1])
    return ".".join(parts[:-1])


def _match(module: torch.nn.Module, buffer: Table,
           strict: bool) -> list[tuple[list[_Place], Tensor]]:
    """
    The tensor for each group of places. A file may hold any of the names of a tied tensor; the first one
    it has counts. LayoutMismatch, ValueError.
    """
    if strict:
        _refuse_unmade(module)
    matches, missing, different = [], [], []
    known: set[str] = set()
    for places in _groups(module):
        known.update(place.name for place in places)
        found = next((buffer[place.name] for place in places if place.name in buffer), None)
        if found is None:
            missing.append(places[0].name)
            continue
        dtype, shape = _describe(places[0].name, places[0].tensor)
        if (found.dtype, found.shape) != (dtype, shape):
            different.append(_difference(found, dtype, shape))
        matches.append((places, found))
    extra = [name for name in buffer if name not in known] if strict else []
    _refuse(f"{buffer!r} does not fit the module", ("other type or shape", different),
            ("missing in the buffer", missing if strict else []), ("not in the module", extra))
    return matches


def _refuse_unmade(module: torch.nn.Module) -> None:
    unmade = [f"{prefix}.{name}".lstrip(".") for prefix, owner in module.named_modules()
              for name in owner._non_persistent_buffers_set
              if owner._buffers.get(name) is not None and owner._buffers[name].is_meta]
    if unmade:
        raise ValueError(f"{_some(sorted(unmade))}: non-persistent buffers on the meta device, whose "
                         "values no version holds; assign them first (module.x = torch.tensor(...)), "
                         "or build the module on the CPU")


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

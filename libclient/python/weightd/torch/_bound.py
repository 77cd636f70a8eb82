"""The tensors that bind() gave to places of modules, and their update when the memory shows another version."""
from __future__ import annotations

import weakref
from typing import Iterator, NamedTuple

import torch

from .. import _buffer, _dtype
from .._buffer import Buffer
from .._memory import Memory
from .._tensor import Tensor
from ._kinds import is_lazy, is_plain
from ._misfit import some
from ._places import Held, Member
from ._published import Published, given, is_fixed


class Bound(NamedTuple):
    """
    How much of a module is weightd's: true when something is, and all that bind() gave it is where it was. Names as
    in named_parameters() and named_buffers().

    shared         what lies in memory of weightd
    lost           what bind() gave and is no longer so: moved by share_memory(), to(), half() and the like, or
                   replaced. swap() passes it by; refresh() puts it back, where type and device are as before
    shared_bytes   of parameters and buffers, in memory of weightd
    private_bytes  of all others; one on the meta device, or a lazy module's, has no bytes
    """

    shared: list[str]
    lost: list[str]
    shared_bytes: int
    private_bytes: int

    def __bool__(self) -> bool:
        return bool(self.shared) and not self.lost


class Entry(NamedTuple):
    """
    A tensor that was given to a place. It keeps no memory mapped: only the tensors of modules do.

    row        of the Tensor
    memory     where that is
    is_shared  the place got the memory itself, not a copy
    """

    row: dict
    memory: weakref.ref[Memory]
    is_shared: bool

    def is_in(self, tensor: torch.Tensor | None, memory: Memory | None) -> bool:
        """True while `tensor` is the one that was given, from that memory."""
        if tensor is None or memory is None or self.memory() is not memory or not self._fits(tensor):
            return False
        return not self.is_shared or not tensor.numel() or tensor.data_ptr() == memory.address + self.row["offset"]

    def _fits(self, tensor: torch.Tensor) -> bool:
        kind = getattr(torch, _dtype.TORCH[self.row["dtype"]])
        shape = _dtype.packed(self.row["shape"], self.row["dtype"])
        return is_plain(tensor) and (tensor.dtype, tuple(tensor.shape)) == (kind, shape)


# Keyed by id() of the module that has the places: a weak reference, and an Entry for each attribute.
_owners: dict[int, tuple[weakref.ref[torch.nn.Module], dict[str, Entry]]] = {}


def note(held: Held, tensor: Tensor) -> None:
    """The places of `held` show the tensor now, or have a private copy; of a writer's nothing is noted."""
    for member in held.members:
        is_shared = (member.role == "param"
                     or held_at(*member.places[0]).data_ptr() == tensor._memory.address + tensor.offset)
        entry = Entry(tensor._row(), weakref.ref(tensor._memory), is_shared)
        for owner, attribute in member.places:
            if tensor._memory.writable:
                _of(owner).pop(attribute, None)
            else:
                _noted(owner)[attribute] = entry


def _noted(owner: torch.nn.Module) -> dict[str, Entry]:
    key = id(owner)
    if key not in _owners:
        _owners[key] = weakref.ref(owner, lambda _: _owners.pop(key, None)), {}
    return _owners[key][1]


def _of(owner: torch.nn.Module) -> dict[str, Entry]:
    return _owners[id(owner)][1] if id(owner) in _owners else {}


def is_bound(module: torch.nn.Module, buffer: Buffer | None = None) -> Bound:
    """
    Returns the tensors of the module that lie in memory of weightd (of `buffer`, if one is given), those that no
    longer do, and the number of private bytes. A copy.deepcopy() of a bound module is an ordinary module.
    """
    shared, lost = [], []
    for name, tensor, entry in _entries(module):
        if not entry.is_in(tensor, entry.memory() if buffer is None else buffer._memory):
            lost.append(name)
        elif entry.is_shared:
            shared.append(name)
    sizes = {True: 0, False: 0}
    for tensor in {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}.values():
        if is_lazy(tensor) or tensor.is_meta:
            continue
        sizes[given(tensor) is not None] += tensor.numel() * tensor.element_size()
    return Bound(shared, lost, sizes[True], sizes[False])


def shared_buffers(module: torch.nn.Module) -> list[str]:
    """The buffers of a module, or of a copy that has its tensors, that are the memory of others, too."""
    return [name for name, tensor in module.named_buffers()
            if (memory := given(tensor)) is not None and not memory.is_writers]


def is_to_share(member: Member) -> bool:
    """True where bind() put the memory itself."""
    owner, attribute = member.places[0]
    entry = _of(owner).get(attribute)
    return entry is not None and entry.is_shared


def overwrite(tensor: torch.Tensor, view: torch.Tensor) -> None:
    """Gives the values to a private copy, which stays the object it is."""
    with torch.inference_mode(False), torch.no_grad():
        if is_fixed(tensor, Published()):
            tensor.data = view.clone()
        else:
            tensor.data.copy_(view)


def _follow(memory: Memory) -> str | None:
    """
    Updates the private copies of tensors in that memory, as many as possible, then raises the first error. Returns a
    warning about those that are lost.
    """
    lost, errors, done = [], [], set()
    for owner_ref, entries in list(_owners.values()):
        owner = owner_ref()
        for attribute, entry in list(entries.items()):
            if owner is None or entry.memory() is not memory:
                continue
            tensor = held_at(owner, attribute)
            if not entry.is_in(tensor, memory):
                lost.append(entry.row["name"])
            elif not entry.is_shared and id(tensor) not in done:
                done.add(id(tensor))
                try:
                    overwrite(tensor, Tensor._at(entry.row, memory).torch())
                except Exception as e:
                    errors.append(e)
    if errors:
        raise errors[0]
    if lost:
        return (f"{memory!r} is not shown by the tensors of modules that took these and have moved since: "
                f"{some(lost)}; weightd.torch.refresh() puts them back")
    return None


def _entries(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor | None, Entry]]:
    """Name, tensor and entry of each place that bind() has given something."""
    for path, owner in module.named_modules():
        for attribute, entry in _of(owner).items():
            yield f"{path}.{attribute}" if path else attribute, held_at(owner, attribute), entry


def held_at(owner: torch.nn.Module, attribute: str) -> torch.Tensor | None:
    """The tensor of a place; None where there is none any more."""
    for tensors in (owner._buffers, owner._parameters):  # in TorchScript no dict, and without get()
        if attribute in tensors:
            return tensors[attribute]
    return None


_buffer.followers.append(_follow)

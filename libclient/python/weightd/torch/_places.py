"""Places and names of the tensors of a module's state_dict."""
from __future__ import annotations

from typing import Hashable, NamedTuple

import torch

from ._kinds import is_plain
from ._misfit import some

_EXTRA = "_extra_state"  # the last part of the name of what get_extra_state() returns
APART = "_weightd_apart"  # an attribute: which of the tensors over one memory it is, where the module ties none


class Member(NamedTuple):
    """
    A tensor of a module.

    where   its first place, as "layers.0.weight": no name of the state_dict, where the module renames
    tensor  the tensor
    role    "param" or "buffer"
    places  (owner, attribute) of each setattr() that puts another tensor in its place
    """

    where: str
    tensor: torch.Tensor
    role: str
    places: list[tuple[torch.nn.Module, str]]


class Held(NamedTuple):
    """
    A memory that a module holds: one tensor, or several over the same elements, which are tied then.

    names    of the state_dict, in its order; none: the state_dict has not got it
    members  at least one
    """

    names: list[str]
    members: list[Member]

    @property
    def tensor(self) -> torch.Tensor:
        return self.members[0].tensor

    @property
    def role(self) -> str:
        return self.members[0].role

    def buffers(self) -> list[Member]:
        return [member for member in self.members if member.role == "buffer"]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Those that are in its places now."""
        return [owner._parameters[attribute] for member in self.members if member.role == "param"
                for owner, attribute in member.places[:1]]


class Contents(NamedTuple):
    """
    The tensors of a module.

    held     those of its state_dict, in its order
    entries  each name of the state_dict, in its order
    others   those that are in no state_dict: non-persistent buffers
    odd      names of the state_dict with values that are none of the module's tensors
    """

    held: list[Held]
    entries: list[tuple[str, Held]]
    others: list[Held]
    odd: list[str]


def contents_of(module: torch.nn.Module) -> Contents:
    """Extra state is left out."""
    state = module.state_dict(keep_vars=True)  # first: a fully_shard'ed module shards its parameters again for it
    members = _members(module)
    every: dict[Hashable, Held] = {}
    homes: dict[int, Held] = {}
    for member in members.values():
        tie = member.tensor.__dict__.get(APART), memory_of(member.tensor)
        homes[id(member.tensor)] = every.setdefault(tie, Held([], []))
        homes[id(member.tensor)].members.append(member)
    entries, odd = [], []
    for name, value in state.items():
        held = homes.get(id(value))
        if held is None and isinstance(value, torch.Tensor):
            held = every.get((None, memory_of(value)))  # a state_dict() may return x.data
        if held is not None:
            entries.append((name, held))
            held.names.append(name)
        elif not is_extra_state(name):
            odd.append(name)
    return Contents([held for name, held in entries if name == held.names[0]], entries,
                    [held for held in every.values() if not held.names], odd)


def is_extra_state(name: str) -> bool:
    return name.rpartition(".")[2] == _EXTRA


def _members(module: torch.nn.Module) -> dict[int, Member]:
    """Members, keyed by id(). A parameter of one module that is a buffer of another is a parameter."""
    members: dict[int, Member] = {}
    owners = list(module.named_modules())
    for path, owner, role, tensors in (*((path, owner, "param", owner._parameters) for path, owner in owners),
                                       *((path, owner, "buffer", owner._buffers) for path, owner in owners)):
        for attribute, tensor in tensors.items():
            if tensor is not None:
                where = f"{path}.{attribute}" if path else attribute
                member = members.setdefault(id(tensor), Member(where, tensor, role, []))
                member.places.append((owner, attribute))
    return members


def memory_of(tensor: torch.Tensor) -> Hashable:
    """Equal for tensors over the same elements."""
    if not is_plain(tensor) or not tensor.numel():
        return id(tensor)
    strides = tuple(stride for stride, n in zip(tensor.stride(), tensor.shape) if n > 1)
    return (start_of(tensor), tensor.dtype, tensor.shape, strides, tensor.is_conj(), tensor.is_neg())


def start_of(tensor: torch.Tensor) -> tuple[Hashable, int]:
    """The memory of a plain tensor, and the byte of it where the elements begin."""
    if tensor.is_meta:
        storage = getattr(tensor, "untyped_storage", tensor.storage)()  # torch 1.13 has the second
        return storage._cdata, tensor.storage_offset() * tensor.element_size()
    return tensor.device, tensor.data_ptr()


def refuse_odd(contents: Contents) -> None:
    if contents.odd:
        raise ValueError(f"{some(contents.odd)}: in the state_dict, but neither a parameter nor a buffer of the "
                         "module (one that is quantized, or in FSDP); write the layout by hand (weightd.Layout), and "
                         "fill() it from the state_dict")


def refuse_unmade(contents: Contents) -> None:
    unmade = [member.where for held in contents.others for member in held.members if member.tensor.is_meta]
    if unmade:
        raise ValueError(f"{some(sorted(unmade))}: non-persistent buffers on the meta device, whose "
                         "values no version holds; make the module in weightd.torch.meta_parameters(), or "
                         "assign them first (module.x = torch.tensor(...))")


def successor(member: Member, view: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A tensor over the memory of `view`, of the class and with the attributes of the member's."""
    made = torch.Tensor._make_subclass(type(member.tensor), view, requires_grad)  # as Parameter() does
    made.__dict__.update(member.tensor.__dict__)  # attributes that frameworks add to parameters
    return made


def install(made: list[tuple[Member, torch.Tensor]]) -> None:
    """Puts tensors in the places of others. After an error, which a module's own __setattr__() may raise, none."""
    try:
        for member, tensor in made:
            _put(member, tensor)
    except BaseException:
        for member, _ in made:
            _put(member, member.tensor)
        raise


def _put(member: Member, tensor: torch.Tensor) -> None:
    for owner, attribute in member.places:
        if member.role == "param" and attribute in owner._buffers:
            owner._buffers[attribute] = tensor  # setattr() would make it a parameter
        else:
            setattr(owner, attribute, tensor)  # RNNs override __setattr__()

"""Units of a module: modules whose parameters are gathered together, as shard(strategy="zero3", units=) has them."""
from __future__ import annotations

from typing import Any, Callable, Iterable, NamedTuple, TypeVar

import torch

from ..torch._misfit import some

Item = TypeVar("Item")  # a Row


class Unit(NamedTuple):
    """
    A module whose own parameters, without those of units in it, are gathered together. By its name, as what has units
    must not keep the module.

    level  units around it that have parameters, too
    """

    name: str
    level: int


def arrange(module: torch.nn.Module, rows: list[Item], given: Any) -> tuple[list[Unit], list[Item]]:
    """
    The units that have parameters to train, in pre-order, and the rows of these parameters in the order of units. A row
    names its unit by number, and the level of that. ValueError, by name: no module was meant, or one without a forward().
    """
    chosen = find_units(module, given)
    names = dict(module.named_modules(remove_duplicate=False))
    chains = _chains(names, chosen)
    order = {id(unit): i for i, unit in enumerate(chosen)}
    homes = [_home(row, names, chains) for row in rows]
    full = {id(home) for row, home in zip(rows, homes) if row.tensor.numel()}
    levels = _levels(chains, full)
    units = [unit for unit in chosen if id(unit) in full]
    numbers = {id(unit): i for i, unit in enumerate(units)}
    first_names = {id(owner): name for name, owner in reversed(list(names.items()))}
    placed = sorted(zip(rows, homes), key=lambda pair: order[id(pair[1])])
    # A parameter without elements may be in a unit that has no number.
    return ([Unit(first_names[id(unit)], levels[id(unit)]) for unit in units],
            [row._replace(unit=numbers.get(id(home), 0), level=levels[id(home)] if id(home) in numbers else 0)
             for row, home in placed])


def _chains(names: dict[str, torch.nn.Module], chosen: list[torch.nn.Module]) -> dict[str, list[torch.nn.Module]]:
    """The units around each place of a module, the root first, and the module itself if it is one."""
    is_chosen, found = {id(unit) for unit in chosen}, {}
    for name, owner in names.items():
        around = found[name.rpartition(".")[0]] if name else []
        found[name] = [*around, owner] if id(owner) in is_chosen else around
    return found


def _home(row: Any, names: dict[str, torch.nn.Module], chains: dict[str, list[torch.nn.Module]]) -> torch.nn.Module:
    """The innermost unit around all places of a parameter."""
    owners = {id(owner) for owner, _ in row.held.members[0].places}
    around = [chains[name] for name, owner in names.items() if id(owner) in owners]
    common = set.intersection(*(set(map(id, chain)) for chain in around))
    return [unit for unit in around[0] if id(unit) in common][-1]


def _levels(chains: dict[str, list[torch.nn.Module]], full: set[int]) -> dict[int, int]:
    levels: dict[int, int] = {}
    for chain in chains.values():
        around = sum(id(unit) in full for unit in chain[:-1])
        levels[id(chain[-1])] = max(levels.get(id(chain[-1]), 0), around)
    return levels


# --- Selection ---------------------------------------------------------------------------------------


def find_units(module: torch.nn.Module, given: Any) -> list[torch.nn.Module]:
    """The modules that `units` means, in pre-order: the root is always the first. ValueError, TypeError."""
    every = dict(module.named_modules())
    inner = _inner(every)
    if given is None:
        meant = []
    elif isinstance(given, int) and not isinstance(given, bool):
        meant = _by_size(module, given, inner)
    else:
        meant = _named(every, given, inner)
        if not meant:
            raise ValueError(f"units={given!r}: no module of {type(module).__name__} is meant, which has "
                             f"{some(sorted({type(owner).__name__ for owner in every.values()}))}")
        bare = [name or type(owner).__name__ for name, owner in every.items() if id(owner) in meant and not _is_called(owner)]
        if bare:
            raise ValueError(f"units={given!r}: {some(bare)}: a module without a forward() is never called, and cannot be "
                             "a unit; its own modules can")
    return [owner for owner in every.values() if owner is module or id(owner) in meant]


def _named(every: dict[str, torch.nn.Module], given: Any, inner: set[int]) -> set[int]:
    if callable(given) and not isinstance(given, type):
        means: Callable[[str, torch.nn.Module], bool] = given
        return {id(owner) for name, owner in every.items() if id(owner) not in inner and means(name, owner)}
    items = [given] if isinstance(given, (str, type)) or not isinstance(given, Iterable) else list(given)
    names, classes = [item for item in items if isinstance(item, str)], [item for item in items if isinstance(item, type)]
    if len(names) + len(classes) < len(items):
        raise TypeError(f"units={given!r}: classes of modules, names of modules, a function of (name, module), or a number of "
                        "parameters")
    unknown = [name for name in names if name not in every]
    if unknown:
        raise ValueError(f"units={given!r}: {some(unknown)}: no module has that name")
    hidden = [name for name in names if id(every[name]) in inner]
    if hidden:
        raise ValueError(f"units={given!r}: {some(hidden)}: the module around it reads its parameters and does not call it; "
                         "make that one a unit")
    return ({id(every[name]) for name in names}
            | {id(owner) for owner in every.values() if id(owner) not in inner and isinstance(owner, tuple(classes))})


def _inner(every: dict[str, torch.nn.Module]) -> set[int]:
    """Modules whose hooks do not run where their parameters are read."""
    readers = (torch.nn.MultiheadAttention, torch.jit.ScriptModule)
    return {id(inner) for owner in every.values() if isinstance(owner, readers)
            for inner in owner.modules() if inner is not owner}


def _is_called(owner: torch.nn.Module) -> bool:
    return getattr(type(owner), "forward", None) is not torch.nn.Module.forward


def _by_size(module: torch.nn.Module, least: int, inner: set[int]) -> set[int]:
    """Bottom up: modules whose own parameters, without those of units in them, are at least so many."""
    if least < 1:
        raise ValueError(f"units={least}: a number of parameters must be 1 or more")
    found: set[int] = set()
    counted: set[int] = set()

    def count(owner: torch.nn.Module) -> int:
        """Parameters that no unit has yet."""
        own = {id(p): p.numel() for p in owner._parameters.values()
               if p is not None and p.requires_grad and id(p) not in counted}
        counted.update(own)
        n = sum(own.values()) + sum(count(child) for child in owner.children())
        if n < least or not _is_called(owner) or id(owner) in inner:
            return n
        found.add(id(owner))
        return 0

    count(module)
    return found

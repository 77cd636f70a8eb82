"""Names: how those of a module become those of a buffer."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Callable, NamedTuple, Union

Names = Union[Mapping[str, str], Callable[[str], str], None]


class IncompatibleKeys(NamedTuple):
    """
    The names that only one side has, as in load_state_dict().

    missing_keys     names of the side that is filled, for which the other has nothing
    unexpected_keys  names of the other side, which have no place
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def renamer(names: Names) -> Callable[[str], str]:
    """
    The function that `names` means. In a dict, a key that ends with "." is a prefix, of which the longest
    counts, "" is that of all names, and any other is a whole name. TypeError.
    """
    if names is None:
        return lambda name: name
    if isinstance(names, Mapping):
        return lambda name: _by_table(names, name)
    if not callable(names):
        raise TypeError(f"names={names!r} is neither a dict nor a function of a name")

    def rename(name: str) -> str:
        renamed = names(name)
        if not isinstance(renamed, str):
            raise TypeError(f"names= made {renamed!r} of {name!r}, which is not a str")
        return renamed

    return rename


def idle(names: Names, of: Iterable[str]) -> list[str]:
    """The keys of a dict by which none of these is renamed."""
    if not isinstance(names, Mapping):
        return []
    of = set(of)
    return [key for key in names if key not in of and not (_is_prefix(key) and any(name.startswith(key) for name in of))]


def _is_prefix(key: str) -> bool:
    return not key or key[-1] == "."


def _by_table(table: Mapping[str, str], name: str) -> str:
    if name in table:
        return table[name]
    prefixes = [prefix for prefix in table if name.startswith(prefix) and _is_prefix(prefix)]
    prefix = max(prefixes, key=len, default=None)
    return name if prefix is None else table[prefix] + name[len(prefix):]

"""Structs of libweightd as plain objects."""
from __future__ import annotations

import ctypes
from typing import Any, Callable

from . import _abi
from ._abi import lib


def take(found: ctypes.c_void_p, get: Callable, kind: Any) -> list:
    """All rows of a list, as named tuples of that kind; frees the list."""
    try:
        return [named(kind, get(found, i).contents) for i in range(lib.weightd_list_count(found))]
    finally:
        lib.weightd_list_free(found)


def named(kind: Any, struct: ctypes.Structure) -> Any:
    """A named tuple of the members that `kind` names."""
    return kind(**{field: _plain(struct, field, getattr(struct, field)) for field in kind._fields})


def _plain(struct: ctypes.Structure, field: str, value):
    if field == "state":
        names = _abi.SLOT_STATES if isinstance(struct, _abi.SlotInfo) else _abi.STATES
        return names.get(value, str(value))
    if field == "memory":
        return _abi.MEMORIES.get(value, str(value))
    if field == "kind":
        return (lib.weightd_event_name(value) or b"").decode()
    if field == "end":
        return (lib.weightd_end_name(value) or b"").decode()
    if field == "digest" and not any(value):
        return None
    if field == "answered":
        return tuple(value[:struct.n_spans])
    if field.startswith("max_") and value == _abi.UNLIMITED:
        return None
    if isinstance(value, bytes):
        return value.decode()
    return bytes(value) if isinstance(value, ctypes.Array) else value

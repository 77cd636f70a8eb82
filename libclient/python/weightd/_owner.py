"""Users as owners of buffers."""
from __future__ import annotations

import ctypes
import pwd
from typing import Any

UID_MAX = 2**32 - 2  # the last number is the kernel's word for none


def owner_uid(owner: int | str | None) -> Any:
    """A pointer to the uid of a user, by its name or number, for an `owner` of weightd.h; None: not given. ValueError."""
    if owner is None:
        return None
    uid = _find(owner) if isinstance(owner, str) else owner
    if not isinstance(uid, int) or isinstance(uid, bool):
        raise TypeError(f"an owner is the name or the uid of a user, not {type(owner).__name__}")
    if not 0 <= uid <= UID_MAX:
        raise ValueError(f"{owner!r} is no uid")
    return ctypes.pointer(ctypes.c_uint32(uid))


def _find(name: str) -> int:
    """As weightctl does: a name first, then a number."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        if name.isascii() and name.isdigit():
            return int(name)
    raise ValueError(f"there is no user {name!r}")

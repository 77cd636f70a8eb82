"""The files of the libraries: those beside WEIGHTD_LIBRARY, of the wheel or of the source tree of this package, or the system's."""
from __future__ import annotations

import os
import pathlib
import stat

_HERE = pathlib.Path(__file__)
_UP = 3  # folders above that of this file in a source tree: libclient/python/weightd


def library_path(name: str) -> str:
    """The path to open for a library, or its name alone for the system's. ImportError: others may write it."""
    given = os.environ.get("WEIGHTD_LIBRARY")
    if given:
        beside = pathlib.Path(given).with_name(name)
        return given if name == "libweightd.so.0" else str(beside) if beside.is_absolute() and beside.exists() else name
    packed = _HERE.with_name("lib") / name
    if packed.exists():
        _check_packed(packed)
        return str(packed)
    built = _built(name)
    if built is None:
        return name
    _check(built)
    return str(built)


def _check_packed(packed: pathlib.Path) -> None:
    """An installer writes the library of a wheel as it writes this file: nobody may change it who cannot change this file."""
    code = os.stat(_HERE)
    for path in packed.parent, packed:
        found = os.stat(path)
        open_to = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid not in (0, os.geteuid(), code.st_uid):
            why = f"{path} belongs to user {found.st_uid}, and {_HERE} to user {code.st_uid}"
        elif open_to & ~code.st_mode or open_to & stat.S_IWGRP and found.st_gid != code.st_gid:
            why = f"more users may write {path} (mode {stat.S_IMODE(found.st_mode):04o}) than {_HERE}"
        else:
            continue
        raise ImportError(f"weightd does not run {packed}: {why}; install the wheel anew, or set WEIGHTD_LIBRARY to a library that you trust")


def _built(name: str) -> pathlib.Path | None:
    """The library of the tree, if this package is in one where it was built."""
    folders = _HERE.resolve().parents
    if len(folders) <= _UP or not (folders[_UP] / "libclient/include/weightd.h").exists():
        return None
    built = folders[_UP] / "build" / name
    return built if built.exists() else None


def _check(built: pathlib.Path) -> None:
    """Opening a library runs it: neither it nor a folder on the way to it, links resolved, may be for others to change."""
    real = built.resolve()
    paths = {path: None for way in (built.parent, real) for path in (*reversed(way.parents), way)}
    for path in paths:
        why = _fault(path)
        if why:
            raise ImportError(f"weightd does not run {built}: {why}; correct that, or set WEIGHTD_LIBRARY to a library that you trust")


def _fault(path: pathlib.Path) -> str | None:
    """The reason why another user may have put something there, or None."""
    found = os.stat(path)
    if found.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to user {found.st_uid}, who is neither root nor you (user {os.geteuid()})"
    # In a folder like /tmp a user can replace its own files alone, and the owner of those is checked.
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return f"others may write {path} (mode {stat.S_IMODE(found.st_mode):04o}; chmod go-w)"
    return None

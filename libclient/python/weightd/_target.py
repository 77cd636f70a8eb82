"""Buffers and versions as the command line names them."""
from __future__ import annotations

VERSION_MAX = 2**64 - 1


def target(name: str, version: int | None) -> tuple[str, int]:
    """
    Name and version of "m@3", which means what weightctl means by it; 0: neither that nor `version` names
    one. ValueError.
    """
    given, at, number = name.rpartition("@")
    if not at:
        return name, version or 0
    if not (number.isascii() and number.isdigit() and 0 < int(number) <= VERSION_MAX):
        raise ValueError(f"{name!r} has no version behind the '@'; those are numbers from 1")
    if version not in (None, 0, int(number)):
        raise ValueError(f"{name!r} and version {version}: these are two")
    return given, int(number)

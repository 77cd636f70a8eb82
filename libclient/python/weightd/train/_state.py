"""The state of a program that a step commits: random number generators, the caller's cursor, the learning rates."""
from __future__ import annotations

import json
import random
import struct
import sys
from typing import Any

import torch

CURSOR_MAX = 4096  # bytes, as JSON
SIZE = 16384  # bytes: the generators of torch, numpy and Python take 10,100

_HEAD = struct.Struct("<4sIIII")  # mark, bytes of JSON, of torch's generator, of numpy's, of Python's
_MARK = b"wdt1"
_NUMPY = struct.Struct("<624IiId")  # keys, position, has_gauss, gauss
_PYTHON = struct.Struct("<625I?d")  # state, has a gauss, gauss


def pack(cursor: Any, groups: list[dict[str, float]], rank: int, n_ranks: int) -> bytes:
    """ValueError: a cursor that is too long, or that JSON does not have."""
    try:
        encoded = json.dumps(cursor, separators=(",", ":"))
    except (TypeError, ValueError) as e:
        raise ValueError(f"cursor={cursor!r} is nothing that JSON has ({e}); pass numbers, texts, lists and dicts of "
                         "them") from e
    if len(encoded) > CURSOR_MAX:
        raise ValueError(f"the cursor takes {len(encoded)} bytes as JSON, and may take {CURSOR_MAX}; keep what is "
                         "larger in a file, and its name here")
    meta = json.dumps({"cursor": cursor, "groups": groups, "rank": [rank, n_ranks]}, separators=(",", ":")).encode()
    parts = [meta, _torch_state(), _numpy_state(), _python_state()]
    packed = _HEAD.pack(_MARK, *map(len, parts)) + b"".join(parts)
    if len(packed) > SIZE:
        raise ValueError(f"the state of a step takes {len(packed)} bytes, and may take {SIZE}; there are "
                         f"{len(groups)} parameter groups: merge some")
    return packed


def restore(packed: bytes, rank: int, n_ranks: int) -> tuple[Any, list[dict[str, float]]]:
    """
    Restores the generators, and returns cursor and groups. A checkpoint of another number of ranks gives each rank the
    state of its rank 0: the generators then stay as they are, or all ranks would draw the same numbers. ValueError: not
    packed here.
    """
    meta, by_torch, by_numpy, by_python = _parts(packed)
    found = json.loads(meta)
    if found["rank"] == [rank, n_ranks]:
        torch.set_rng_state(torch.frombuffer(bytearray(by_torch), dtype=torch.uint8))
        if by_numpy:
            _restore_numpy(by_numpy)
        *state, has_gauss, gauss = _PYTHON.unpack(by_python)
        random.setstate((3, tuple(state), gauss if has_gauss else None))
    return found["cursor"], found["groups"]


def groups_of(packed: bytes) -> list[dict[str, float]]:
    """The numbers of the parameter groups. ValueError: not packed here."""
    return json.loads(_parts(packed)[0])["groups"]


def _parts(packed: bytes) -> list[bytes]:
    """JSON, and the states of torch's, numpy's and Python's generators."""
    mark, *sizes = _HEAD.unpack_from(packed) if len(packed) >= _HEAD.size else (b"",)
    if mark != _MARK or _HEAD.size + sum(sizes) != len(packed):
        raise ValueError(f"the {len(packed)} bytes of state in the job are not those of weightd.train")
    parts, at = [], _HEAD.size
    for size in sizes:
        parts.append(packed[at:at + size])
        at += size
    return parts


def _torch_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes() if "numpy" in sys.modules else bytes(torch.get_rng_state().tolist())


def _numpy_state() -> bytes:
    """That of numpy.random's functions; nothing unless numpy is loaded, or if it has another generator."""
    if "numpy" not in sys.modules:
        return b""
    kind, keys, *rest = sys.modules["numpy"].random.get_state()
    return _NUMPY.pack(*keys.tolist(), *rest) if kind == "MT19937" else b""


def _restore_numpy(packed: bytes) -> None:
    import numpy

    *keys, position, has_gauss, gauss = _NUMPY.unpack(packed)
    numpy.random.set_state(("MT19937", numpy.array(keys, dtype=numpy.uint32), position, has_gauss, gauss))


def _python_state() -> bytes:
    _, state, gauss = random.getstate()
    return _PYTHON.pack(*state, gauss is not None, gauss or 0.0)

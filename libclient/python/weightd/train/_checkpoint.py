"""Checkpoints for torch without a job."""
from __future__ import annotations

import ctypes
import errno
import json
import math
import os
import pathlib
from ctypes import byref, c_void_p
from typing import Any

import torch

from .. import _abi, _dtype
from .._abi import lib, path_bytes
from .._errors import error
from .._save import Unconnected
from . import _state

_STATES = {"adamw": ("exp_avg", "exp_avg_sq"), "adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


class _File:
    """A safetensors file, of which single tensors are read."""

    def __init__(self, connection: Unconnected, path: pathlib.Path):
        self._connection, self._handle = connection, c_void_p()
        connection.call(lib.weightd_safetensors_open, connection.handle, path_bytes(path), byref(self._handle))

    def read(self, name: str) -> torch.Tensor:
        found = _abi.Tensor()
        self._connection.call(lib.weightd_safetensors_find, self._handle, _abi.text(name), byref(found))
        dtype = _dtype.name(found.dtype)
        shape = _dtype.packed(tuple(found.shape[:found.n_dims]), dtype)
        tensor = torch.empty(shape, dtype=getattr(torch, _dtype.TORCH[dtype]))
        self._connection.call(lib.weightd_safetensors_read, self._handle, found.offset, tensor.data_ptr(), found.n_bytes)
        return tensor

    def close(self) -> None:
        lib.weightd_safetensors_close(self._handle)


def newest(folder: str | os.PathLike) -> pathlib.Path:
    """The checkpoint itself, or the newest one in a folder, by the time when it was written. Error: ENOENT."""
    folder = pathlib.Path(folder)
    if (folder / "trainer.json").exists():
        return folder
    found = [path.parent for path in folder.glob("step-*/trainer.json")]
    if not found:
        raise error(errno.ENOENT, f"'{folder}' has no checkpoint, which is a folder called step-...")
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def torch_state(folder: str | os.PathLike) -> dict[str, Any]:
    """
    A checkpoint, or the newest one in `folder`, for torch in one process, without weightd:

        state = weightd.train.torch_state("checkpoints")
        model.load_state_dict(state["model"])
        torch.optim.AdamW(model.parameters()).load_state_dict(state["optimizer"])

    model      tensors by name, of their types; a tied one by its first name
    optimizer  a state_dict of the torch optimizer of the same name. Its parameters are the trained ones, in the order of
               the module, or, with several groups, in that order within each group. Learning rates are NaN if a
               program in C trained the job: set them
    step       steps that were taken

    Error: EBADMSG: a damaged file, by its name; ENOENT: no checkpoint.
    """
    folder, connection = newest(folder), Unconnected()
    try:
        described = json.loads((folder / "trainer.json").read_text())
        rows = described["plan"]["tensors"]
        trained = [row for row in rows if row["role"] == "param" and not row.get("frozen")]
        model = _read_all(connection, folder, "model", [row["name"] for row in rows])
        kinds = _STATES[described["optimizer"]] if (folder / "optimizer.safetensors.index.json").exists() else ()
        states = _read_all(connection, folder, "optimizer", [f"{row['name']}.{kind}" for row in trained for kind in kinds])
        return {"model": model, "step": described["step"],
                "optimizer": _optimizer(described, trained, kinds, states, _numbers(connection, folder, described))}
    finally:
        connection.close()


def _read_all(connection: Unconnected, folder: pathlib.Path, stem: str, names: list[str]) -> dict[str, torch.Tensor]:
    if not names:
        return {}
    files = json.loads((folder / f"{stem}.safetensors.index.json").read_text())["weight_map"]
    opened: dict[str, _File] = {}
    try:
        found = {}
        for name in names:
            if files[name] not in opened:
                opened[files[name]] = _File(connection, folder / files[name])
            found[name] = opened[files[name]].read(name)
        return found
    finally:
        for file in opened.values():
            file.close()


def _numbers(connection: Unconnected, folder: pathlib.Path, described: dict[str, Any]) -> list[dict[str, float]]:
    """Learning rates and their like, of rank 0; none of a job that Python did not train."""
    file = _File(connection, folder / f"rank-00001-of-{described['n_ranks']:05}.safetensors")
    try:
        return _state.groups_of(bytes(file.read("state").tolist()))
    except ValueError:
        return []
    finally:
        file.close()


def _optimizer(described: dict[str, Any], trained: list[dict], kinds: tuple[str, ...], states: dict[str, torch.Tensor],
               numbers: list[dict[str, float]]) -> dict[str, Any]:
    groups, state, index = [], {}, 0
    steps = described["step"] - described["n_skipped"]
    for number, fixed in enumerate(described["plan"]["groups"]):
        names = [row["name"] for row in trained if row["group"] == number]
        groups.append(_group(described["optimizer"], fixed) | (numbers[number] if numbers else {})
                      | {"params": list(range(index, index + len(names)))})
        for name in names:
            state[index] = {kind: states[f"{name}.{kind}"] for kind in kinds}
            if described["optimizer"] != "sgd":
                state[index]["step"] = torch.tensor(float(steps))
            index += 1
    return {"state": state if steps else {}, "param_groups": groups}


def _group(optimizer: str, fixed: dict[str, Any]) -> dict[str, Any]:
    """A parameter group with what the plan has of it."""
    if optimizer == "sgd":
        return {"lr": math.nan, "momentum": fixed["momentum"], "dampening": 0, "nesterov": bool(fixed["nesterov"]),
                "weight_decay": fixed["weight_decay"]}
    return {"lr": math.nan, "betas": (fixed["beta1"], fixed["beta2"]), "eps": fixed["eps"],
            "weight_decay": fixed["weight_decay"], "amsgrad": False}

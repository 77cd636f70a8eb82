"""Modules whose parameters hold no values yet, while their buffers do."""
from __future__ import annotations

import contextlib
import threading
from typing import Iterator

import torch


@contextlib.contextmanager
def meta_parameters() -> Iterator[None]:
    """
    Modules that this thread makes inside the block get parameters on the meta device, ready for bind() or flat().
    Everything else keeps its values, non-persistent buffers (rotary frequencies, masks, position ids) among it,
    which torch.device("meta") loses for good. Parameters that are given together stay tied. A parameter takes
    memory only until the module registers it, one at a time, and its pages are never touched if torch.empty()
    made it.
    """
    register, thread = torch.nn.Module.register_parameter, threading.get_ident()

    def register_meta(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if threading.get_ident() == thread and type(param) is torch.nn.Parameter:
            param = _on_meta(param)
        register(module, name, param)

    torch.nn.Module.register_parameter = register_meta
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _on_meta(param: torch.nn.Parameter) -> torch.nn.Parameter:
    """The same one for the same parameter, which a module may register under several names."""
    if param.is_meta:
        return param
    if not hasattr(param, "_weightd_on_meta"):
        twin = torch.nn.Parameter(param.detach().to("meta"), param.requires_grad)
        twin.__dict__.update(param.__dict__)
        param._weightd_on_meta = twin
    return param._weightd_on_meta

"""Modules with values in their buffers, but not yet in their parameters."""
from __future__ import annotations

import contextlib
import os
import threading
from typing import Callable, Iterator

import torch

_lock = threading.Lock()  # protects _n_blocks and _installed
_n_blocks = 0  # sum over all threads
_installed: tuple[Callable, Callable] | None = None  # our Module.register_parameter, and the one it calls
_thread = threading.local()  # n_blocks: those that the thread is in


def _make_lock() -> None:
    """In a child: a thread of the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_make_lock)


@contextlib.contextmanager
def meta_parameters() -> Iterator[None]:
    """
    Modules that this thread makes inside the block get parameters on the meta device, ready for bind() or flat().
    Everything else keeps its values, non-persistent buffers (rotary frequencies, masks, position ids) among it,
    which torch.device("meta") loses for good. Parameters that are given together stay tied. A parameter takes
    memory only until the module registers it, one at a time, and its pages are never touched if torch.empty()
    made it.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _n_blocks, _installed
    with _lock:
        if not _n_blocks:
            before = torch.nn.Module.register_parameter
            _installed = _register_before(before), before
            torch.nn.Module.register_parameter = _installed[0]
        _n_blocks += 1
    _thread.n_blocks = getattr(_thread, "n_blocks", 0) + 1


def _leave() -> None:
    """
    The last one puts back the method that was there. Where another patch lies over ours, ours stays below it and lets
    all parameters pass.
    """
    global _n_blocks, _installed
    _thread.n_blocks -= 1
    with _lock:
        _n_blocks -= 1
        if not _n_blocks:
            ours, before = _installed
            if torch.nn.Module.register_parameter is ours:
                torch.nn.Module.register_parameter = before
            _installed = None


def _register_before(register: Callable) -> Callable:
    def register_meta(module: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if getattr(_thread, "n_blocks", 0) and type(param) is torch.nn.Parameter:
            param = _on_meta(param)
        register(module, name, param)

    return register_meta


def _on_meta(param: torch.nn.Parameter) -> torch.nn.Parameter:
    """The same one for the same parameter, which a module may register under several names."""
    if param.is_meta:
        return param
    if not hasattr(param, "_weightd_on_meta"):
        twin = torch.nn.Parameter(param.detach().to("meta"), param.requires_grad)
        twin.__dict__.update(param.__dict__)
        param._weightd_on_meta = twin
    return param._weightd_on_meta

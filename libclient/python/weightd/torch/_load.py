"""load_state_dict() of modules in published memory: an error instead of a fault."""
from __future__ import annotations

import errno

import torch

from .._errors import error
from ._misfit import some
from ._places import Held, contents_of
from ._published import Published


def watch(module: torch.nn.Module, given: list[Held]) -> None:
    """
    From now on load_state_dict() of the module, and of each of its modules that has one of these tensors, is
    refused while it would write to published memory. Modules of TorchScript take no hooks.
    """
    owners = [owner for held in given for member in held.members for owner, _ in member.places]
    for owner in {id(owner): owner for owner in [module, *owners]}.values():
        is_watched = any(getattr(hook, "hook", hook) is _refuse for hook in owner._load_state_dict_pre_hooks.values())
        if not is_watched and not isinstance(owner, torch.jit.ScriptModule):
            owner._register_load_state_dict_pre_hook(_refuse, with_module=True)


def _refuse(module: torch.nn.Module, state_dict, prefix: str, local_metadata, *_) -> None:
    if local_metadata.get("assign_to_params_buffers"):
        return  # torch replaces the tensors
    published = Published()
    written = [prefix + name for held in contents_of(module).held if held.tensor in published
               for name in held.names if prefix + name in state_dict]
    if written:
        raise error(errno.EACCES, f"{some(written)}: in published memory, which cannot be written; "
                    "weightd.torch.refresh() shows another version, weightd.torch.flat() makes one that can be "
                    "written, load_state_dict(..., assign=True) replaces the tensors")

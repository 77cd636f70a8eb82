"""Functions that a spawned process of a pool runs with weightd.torch."""
import os

import torch

import weightd.torch


class Tied(torch.nn.Module):
    def __init__(self, device=None):
        super().__init__()
        self.embed = torch.nn.Embedding(4, 2, device=device)
        self.head = torch.nn.Linear(2, 4, bias=False, device=device)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def connect(socket):
    os.environ["WEIGHTD_SOCKET"] = socket


def error_of(function, *args, **kw):
    try:
        function(*args, **kw)
    except (OSError, ValueError) as e:
        return f"{type(e).__name__}: {e}"
    return "no error"


def bind_and_refresh(first, second):
    """The errors of both, with two versions; what the module computes at the end; whether it was left alone."""
    module = Tied("meta")
    errors = [error_of(weightd.torch.bind, module, weightd.attach("m", version=second))]
    untouched = module.embed.weight.is_meta
    weightd.torch.bind(module, weightd.attach("m", version=first))
    errors.append(error_of(weightd.torch.refresh, module, weightd.attach("m", version=second)))
    return errors, untouched, module(torch.arange(4)).tolist()


def bind_wrapped(name):
    """The keys that two ways of names= leave, and the error of none."""
    wrapped = torch.nn.Module()
    wrapped.module = Tied("meta")
    error = error_of(weightd.torch.bind, wrapped, weightd.attach(name), strict=False)
    keys = weightd.torch.bind(wrapped, weightd.attach(name), strict=False, names={"module.": ""})
    return error, tuple(keys), wrapped.module(torch.arange(4)).tolist()


def fill_half_way(name):
    """The errors of values that are none, what was written then, and the version of those that are."""
    state, errors = Tied().state_dict(), []
    with weightd.create(name, weightd.torch.layout_of(Tied())) as writer:
        for odd in (state["head.weight"].to("meta"), state["head.weight"].to_sparse(), state["head.weight"] + 1):
            errors.append(error_of(weightd.torch.fill, writer, state | {"head.weight": odd}))
        written = any(writer.read())
        weightd.torch.fill(writer, {name: torch.full_like(tensor, 2) for name, tensor in state.items()})
        return errors, written, writer.publish()

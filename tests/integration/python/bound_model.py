"""A module with buffers of all kinds, its versions, and what a spawned process does with it."""
import torch

import weightd.torch


class Quantized(torch.nn.Module):
    """A layer as GPTQ's: all but the scales is packed into integers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("qweight", torch.zeros(4, 8, dtype=torch.int32))
        self.register_buffer("g_idx", torch.zeros(8, dtype=torch.int32))
        self.register_buffer("scales", torch.zeros(2, 8, dtype=torch.float16))
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(4, 8)
        self.layers = torch.nn.ModuleList([Quantized(), Quantized()])
        self.last = self.layers[1]
        self.batch = torch.nn.BatchNorm1d(8)
        self.register_buffer("wide", torch.zeros(1).expand(3))
        self.register_buffer("ramp", torch.arange(8.0), persistent=False)


def publish(weightd, value, name="m", **options):
    """A version of Model with all elements `value`."""
    with weightd.create(name, weightd.torch.layout_of(Model()), **options) as writer:
        for tensor in writer.values():
            tensor.torch().fill_(value)
        return writer.publish()


def values(module):
    """All elements of the state_dict, as a set."""
    return {float(value) for tensor in module.state_dict().values() for value in tensor.flatten()}


# --- In another process ------------------------------------------------------------------------------

bound = {}


def bind(module, buffer, share):
    """True if all of it is bound, and its values."""
    bound.update(module=weightd.torch.bind(module, buffer, share=share), buffer=buffer)
    return bool(weightd.torch.is_bound(module, buffer)), values(module)


def train():
    bound["module"].train()


def swap():
    bound["buffer"].swap()
    return values(bound["module"])


def lose():
    """The names that share_memory() of a part unbinds, and the values after these are bound again."""
    bound["module"].embed.share_memory()
    lost = weightd.torch.is_bound(bound["module"]).lost
    weightd.torch.refresh(bound["module"], bound["buffer"])
    return lost, values(bound["module"])

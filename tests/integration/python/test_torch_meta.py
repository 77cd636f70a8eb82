"""Modules with parameters, and nothing else, on the meta device."""
import threading

import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()

if HAS_TORCH:
    import torch

    class Rotary(torch.nn.Module):
        """A buffer outside of the state_dict, computed when it is made; a tie by attribute, and one by an argument."""

        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(16, 8)
            self.register_buffer("frequencies", 10000 ** -(torch.arange(0, 8, 2) / 8), persistent=False)
            self.norm = torch.nn.BatchNorm1d(8)
            self.rnn = torch.nn.LSTM(8, 8)
            self.head = torch.nn.Linear(8, 16, bias=False)
            self.head.weight = self.embed.weight
            shared = torch.nn.Parameter(torch.ones(8), requires_grad=False)
            shared.kept = "yes"
            self.gains = torch.nn.ParameterList([shared, shared])

        def forward(self, tokens):
            x = self.norm(self.rnn(self.embed(tokens))[0]) * self.gains[0] + self.gains[1]
            return self.head(x * self.frequencies.repeat(2))


@pytest.fixture
def torch_module(daemon, monkeypatch):
    features.require("library")
    features.require("torch")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    import weightd.torch
    return weightd.torch


def test_parameters_alone_are_on_meta(torch_module):
    with torch_module.meta_parameters():
        model = Rotary()
    assert all(p.is_meta for p in model.parameters())
    assert not any(b.is_meta for b in model.buffers())
    assert model.head.weight is model.embed.weight and model.gains[0] is model.gains[1]
    assert not model.gains[0].requires_grad and model.gains[0].kept == "yes"


def test_bound_model_computes_what_the_ordinary_one_does(torch_module):
    import weightd
    ordinary, tokens = Rotary().eval(), torch.arange(8) % 5
    writer = weightd.create("rotary", torch_module.layout_of(ordinary))
    torch_module.fill(writer, ordinary.state_dict())
    writer.publish()
    with torch_module.meta_parameters():
        replica = Rotary().eval()
    torch_module.bind(replica, weightd.attach("rotary"))
    assert torch.equal(replica(tokens), ordinary(tokens))


def test_flat_begins_with_a_model_of_no_values(torch_module):
    with torch_module.meta_parameters():
        model = Rotary()
    with torch_module.flat(model, "flat") as flat:
        assert model.head.weight.data_ptr() == flat["embed.weight"].torch().data_ptr()
        assert model.frequencies[0] == 1


def test_other_threads_and_later_modules_are_as_ever(torch_module):
    made = []
    with torch_module.meta_parameters():
        thread = threading.Thread(target=lambda: made.append(torch.nn.Linear(2, 2)))
        thread.start()
        thread.join()
        with torch_module.meta_parameters():
            made.append(torch.nn.Linear(2, 2))
        made.append(torch.nn.Linear(2, 2))
    with pytest.raises(KeyError):
        with torch_module.meta_parameters():
            raise KeyError
    made.append(torch.nn.Linear(2, 2))
    assert [m.weight.is_meta for m in made] == [False, True, True, False]


def test_blocks_of_two_threads_may_overlap(torch_module):
    register, made, in_step = torch.nn.Module.register_parameter, {}, threading.Barrier(2, timeout=60)

    def run(name, step):
        for at in range(4):  # one enters, the other enters, one leaves, the other leaves
            if at == step:
                block = torch_module.meta_parameters()
                block.__enter__()
            if at == step + 2:
                block.__exit__(None, None, None)
            in_step.wait()
            made[name, at] = torch.nn.Linear(2, 2).weight.is_meta
            in_step.wait()

    threads = [threading.Thread(target=run, args=named) for named in (("first", 0), ("second", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [made["first", at] for at in range(4)] == [True, True, False, False]
    assert [made["second", at] for at in range(4)] == [False, True, True, False]
    assert torch.nn.Module.register_parameter is register


def test_patches_of_others_stay(torch_module, monkeypatch):
    seen = []
    register = torch.nn.Module.register_parameter
    monkeypatch.setattr(torch.nn.Module, "register_parameter", register)
    with torch_module.meta_parameters():
        ours = torch.nn.Module.register_parameter
        monkeypatch.setattr(torch.nn.Module, "register_parameter",
                            lambda module, name, param: (seen.append(name), ours(module, name, param))[1])
    assert not torch.nn.Linear(2, 2).weight.is_meta
    with torch_module.meta_parameters():
        assert torch.nn.Linear(2, 2).weight.is_meta
    assert seen == ["weight", "bias"] * 2


def test_lazy_modules_stay_lazy(torch_module):
    with torch_module.meta_parameters():
        lazy = torch.nn.LazyLinear(3)
    assert lazy(torch.ones(2)).shape == (3,)

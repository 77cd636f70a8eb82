"""
Trainers that publish under the name of a model that was loaded from disk, with the order, roles and ties of the
files: readers of the loaded version swap to theirs.
"""
import pytest
from integration.load.test_load import write_model
from lib import features

if features.FEATURES["torch"][0]():
    import torch

    class Net(torch.nn.Module):
        """State, and a head tied to the embedding, or of its own."""

        def __init__(self, tied=True):
            super().__init__()
            self.embed = torch.nn.Embedding(9, 4)
            self.norm = torch.nn.BatchNorm1d(4)
            self.blocks = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
            self.head = torch.nn.Linear(4, 9, bias=False)
            if tied:
                self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.blocks(self.norm(self.embed(tokens))))


@pytest.fixture
def weightd(daemon, monkeypatch):
    features.require("library")
    features.require("torch")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    torch.manual_seed(3)
    import weightd.torch
    return weightd


TYPES = {"torch.float32": "F32", "torch.int64": "I64"}


def save(path, module, leave=("head.weight",)):
    """As safetensors does: by name, and without the ties."""
    tensors = {name: (TYPES[str(t.dtype)], list(t.shape), t.contiguous().numpy().tobytes())
               for name, t in sorted(module.state_dict().items(), reverse=True) if name not in leave}
    write_model(path, tensors)


def changed(module):
    """The module after a step: every tensor is another one."""
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.add_(1)
    return module


def publish_flat(module, buffer):
    import weightd.torch
    with weightd.torch.flat(module, buffer.name) as flat:
        return flat.publish()


def publish_created(module, buffer, layout=None):
    import weightd.torch
    with weightd.create(buffer.name, layout or weightd.torch.layout_of(module)) as writer:
        weightd.torch.fill(writer, module.state_dict())
        return writer.publish()


def publish_like(module, buffer):
    import weightd.torch
    return publish_created(module, buffer, weightd.torch.layout_of(module, like=buffer))


def publish_of_buffer(module, buffer):
    return publish_created(module, buffer, buffer.layout())


WAYS = [publish_flat, publish_created, publish_like, publish_of_buffer]


@pytest.mark.parametrize("publish", WAYS)
@pytest.mark.parametrize("leave", [("head.weight",), ("embed.weight",)])
def test_a_trainer_publishes_what_readers_of_the_loaded_model_swap_to(weightd, tmp_path, publish, leave):
    module = Net().eval()
    save(tmp_path / "m.safetensors", module, leave)
    weightd.load("m", tmp_path / "m.safetensors")
    reader, replica = weightd.attach("m"), Net().eval()
    weightd.torch.bind(replica, reader)
    tokens = torch.arange(9)
    with torch.no_grad():
        assert torch.equal(replica(tokens), module(tokens))
    assert publish(changed(module), reader) == 2
    assert reader.swap()
    weightd.torch.refresh(replica, reader)
    with torch.no_grad():
        assert torch.equal(replica(tokens), module(tokens))
    assert reader.layout_hash == weightd.attach("m", version=1).layout_hash


@pytest.mark.parametrize("publish", WAYS[:3])
def test_a_tied_module_fills_each_name_that_the_files_had_on_its_own(weightd, tmp_path, publish):
    module = Net()
    save(tmp_path / "m.safetensors", module, leave=())
    weightd.load("m", tmp_path / "m.safetensors")
    reader = weightd.attach("m")
    publish(changed(module), reader)
    assert reader.swap()
    reader.verify()
    for name, tensor in module.state_dict().items():
        assert torch.equal(reader[name].torch(), tensor), name


def train():
    """In another process, from tensors that are not tied any more, as a collective gathers them."""
    import weightd.torch
    with weightd.create("m", weightd.torch.layout_of(Net())) as writer:
        weightd.torch.fill(writer, {name: torch.full_like(t, 5) for name, t in Net().state_dict().items()})
        return writer.publish()


def test_a_spawned_trainer_publishes_what_this_process_swaps_to(weightd, there, tmp_path):
    save(tmp_path / "m.safetensors", Net())
    weightd.load("m", tmp_path / "m.safetensors")
    reader = weightd.attach("m")
    assert there(train) == 2
    assert reader.swap() and all((t.torch() == 5).all() for t in reader.values())


def test_flat_refuses_two_values_for_what_the_newest_version_ties(weightd):
    with weightd.torch.flat(Net(), "m") as flat:
        flat.publish()
    module = Net(tied=False)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    pointers = [tensor.data_ptr() for tensor in module.state_dict().values()]
    with pytest.raises(weightd.LayoutMismatch, match="different values .*: embed.weight and head.weight"):
        weightd.torch.flat(module, "m")
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert pointers == [tensor.data_ptr() for tensor in module.state_dict().values()]
    with torch.no_grad():
        module.head.weight.copy_(module.embed.weight)
    with weightd.torch.flat(module, "m") as flat:
        assert flat.publish() == 2
    with torch.no_grad():
        module = Net(tied=False)
    with weightd.torch.flat(module, "m", new_layout=True) as flat:
        flat.publish()
    buffer = weightd.attach("m")
    assert not torch.equal(buffer["head.weight"].torch(), buffer["embed.weight"].torch())


def test_fill_takes_no_name_beside_the_writers_but_one_for_the_same_memory(weightd):
    module = Net(tied=False)
    layout = weightd.torch.layout_of(module)
    state = module.state_dict()
    with weightd.create("m", layout) as writer:
        weightd.torch.fill(writer, state | {"again": state["head.weight"]})
        for other in state["head.weight"].clone(), state["head.weight"][:3], state["head.weight"].t():
            with pytest.raises(weightd.LayoutMismatch, match="not in the layout: again"):
                weightd.torch.fill(writer, state | {"again": other})


def test_layout_of_says_how_a_module_is_not_like_a_buffer(weightd):
    with weightd.torch.flat(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)), "m") as flat:
        flat.publish()
    buffer = weightd.attach("m")
    with pytest.raises(weightd.LayoutMismatch) as e:
        weightd.torch.layout_of(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(4, 1, bias=False)).half(),
                                like=buffer)
    assert str(e.value) == (
        "the layout of the module is not that of <Buffer 'm' on host, version 1, 4 tensors>, the other: other type or "
        "shape: '0.weight' is F16 [3, 4], was F32 [4, 3], '0.bias' is F16 [3], was F32 [4], '1.weight' is F16 [1, 4], "
        "was F32 [1, 4]; only in the other: '1.bias'")
    assert weightd.torch.layout_of(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)),
                                   alignment=64, like=buffer.layout()).hash == buffer.layout_hash

"""weightd.torch, where one memory has several names: values that agree, values that do not, ties that stay."""
import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
pytestmark = pytest.mark.usefixtures("with_torch")

if HAS_TORCH:
    import torch

    class Tied(torch.nn.Module):
        """A head tied to the embedding, and statistics under two names; "apart" ties nothing."""

        def __init__(self, how="object", device=None):
            super().__init__()
            self.embed = torch.nn.Embedding(6, 4, device=device)
            self.head = torch.nn.Linear(4, 6, bias=False, device=device)
            self.register_buffer("mean", torch.zeros(4, device=device))
            self.register_buffer("average", torch.zeros(4, device=device))
            if how == "object":
                self.head.weight, self.average = self.embed.weight, self.mean
            elif how == "storage":
                self.head.weight = torch.nn.Parameter(self.embed.weight.data)
                self.average = self.mean.detach()

        def forward(self, x):
            return self.head(self.embed(x)) + self.mean.sum()


def write(weightd, values, tie=False):
    """A version of buffer "m" with these values, as a file has them: nothing is tied but where `tie`."""
    layout = weightd.Layout()
    for name, value in values.items():
        if tie and name == "head.weight":
            layout.tie(name, "embed.weight")
        else:
            layout.add(name, "F32", value.shape)
    with weightd.create("m", layout, new_layout=True) as writer:
        for name, value in values.items():
            writer[name].torch().copy_(value)
        writer.publish()
    return weightd.attach("m")


def values(**changes):
    torch.manual_seed(1)
    weight, mean = torch.randn(6, 4), torch.randn(4)
    weight[0, 0] = float("nan")
    return {"embed.weight": weight, "head.weight": weight, "mean": mean, "average": mean} | changes


def snapshot(module):
    return {name: (id(tensor), tensor.data_ptr(), tensor.clone())
            for name, tensor in module.state_dict(keep_vars=True).items()}


def assert_unchanged(module, before):
    for name, tensor in module.state_dict(keep_vars=True).items():
        assert (id(tensor), tensor.data_ptr()) == before[name][:2], name
        assert torch.equal(tensor.nan_to_num(), before[name][2].nan_to_num()), name


# --- bind and refresh --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["object", "storage"])
def test_names_of_one_tensor_with_the_same_bits_are_fine(weightd, how):
    given = values()
    module = weightd.torch.bind(Tied(how).eval(), write(weightd, given))
    assert torch.equal(module.head.weight.nan_to_num(), given["head.weight"].nan_to_num())
    assert module.head.weight is module.embed.weight
    assert torch.equal(module.average, given["mean"])
    module.mean.add_(1)
    assert torch.equal(module.average, module.mean)
    weightd.torch.refresh(module, write(weightd, given))
    assert torch.equal(module.average, given["mean"])


@pytest.mark.parametrize("how", ["object", "storage"])
@pytest.mark.parametrize("first,second", [("embed.weight", "head.weight"), ("mean", "average")])
def test_names_of_one_tensor_with_different_values_are_refused_and_change_nothing(weightd, how, first, second):
    changed = values()
    changed[second] = changed[second].clone()
    changed[second].view(-1)[-1] += 1
    module = Tied(how)
    before = snapshot(module)
    buffer = write(weightd, changed)
    for strict in (True, False):
        with pytest.raises(weightd.LayoutMismatch, match=rf"untie them in the module.*: {first} and {second}$"):
            weightd.torch.bind(module, buffer, strict=strict)
        assert_unchanged(module, before)
    weightd.torch.bind(module, write(weightd, values()))
    before = snapshot(module)
    with pytest.raises(weightd.LayoutMismatch, match=f"{first} and {second}"):
        weightd.torch.refresh(module, buffer)
    assert_unchanged(module, before)
    apart = weightd.torch.bind(Tied("apart"), buffer)
    assert torch.equal(apart.state_dict()[second].nan_to_num(), changed[second].nan_to_num())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_parameter_that_is_a_buffer_elsewhere_stays_both(weightd, device):
    def make(device):
        module = torch.nn.Module()
        module.first = torch.nn.Module()
        module.second = torch.nn.Linear(2, 2, bias=False, device=device)
        module.first.register_buffer("weight", module.second.weight)
        return module

    ordinary = make("cpu")
    with weightd.create("m", weightd.torch.layout_of(ordinary)) as writer:
        assert [row.role for row in writer.values()] == ["param", "param"]
        weightd.torch.fill(writer, ordinary.state_dict())
        writer.publish()
    bound = weightd.torch.bind(make(device), weightd.attach("m"))
    for module in (bound, weightd.torch.flat(make(device), "m").module):
        assert module.first.weight is module.second.weight
        assert [name for name, _ in module.named_parameters()] == ["second.weight"]
        assert [name for name, _ in module.named_buffers()] == ["first.weight"]
    assert torch.equal(bound.first.weight, ordinary.second.weight)


def test_sign_of_zero_is_a_difference(weightd):
    zero = torch.zeros(4)
    with pytest.raises(weightd.LayoutMismatch, match="mean and average"):
        weightd.torch.bind(Tied(), write(weightd, values(mean=zero, average=-zero)))


def test_second_name_of_another_shape_is_refused(weightd):
    with pytest.raises(weightd.LayoutMismatch, match=r"head.weight is F32 \[5, 4\], not F32 \[6, 4\]"):
        weightd.torch.bind(Tied(), write(weightd, values(**{"head.weight": torch.ones(5, 4)})))


def test_values_are_compared_only_where_no_tie_of_the_layout_says_that_they_are_one(weightd, monkeypatch):
    from weightd.torch import _match

    compared = []
    monkeypatch.setattr(_match, "same_bits", lambda one, other: not compared.append(one.shape))
    given = values()
    del given["average"]
    weightd.torch.bind(Tied(), write(weightd, given, tie=True))
    assert compared == []
    weightd.torch.bind(Tied(), write(weightd, given))
    assert compared == [(6, 4)]


def test_tie_that_only_a_version_has_ends_with_it(weightd):
    module = weightd.torch.bind(Tied("apart"), write(weightd, values(), tie=True))
    assert module.head.weight.data_ptr() == module.embed.weight.data_ptr()
    changed = values(**{"head.weight": torch.ones(6, 4)})
    weightd.torch.refresh(module, write(weightd, changed))
    assert (module.head.weight == 1).all() and not (module.embed.weight == 1).any()
    weightd.torch.refresh(module, write(weightd, values(), tie=True))
    assert weightd.torch.layout_of(module).hash == weightd.torch.layout_of(Tied("apart")).hash


# --- fill --------------------------------------------------------------------------------------------


def test_fill_takes_tied_names_whose_bits_agree(weightd):
    layout = weightd.torch.layout_of(Tied())
    given = values()
    for second in (given["embed.weight"], given["embed.weight"].clone(), given["embed.weight"].t().clone().t()):
        with weightd.create("m", layout) as writer:
            weightd.torch.fill(writer, given | {"head.weight": second, "average": given["mean"].clone()})
            assert torch.equal(writer["head.weight"].torch().nan_to_num(), second.nan_to_num())


@pytest.mark.parametrize("first,second", [("embed.weight", "head.weight"), ("mean", "average")])
def test_fill_refuses_tied_names_whose_values_differ(weightd, first, second):
    with weightd.create("m", weightd.torch.layout_of(Tied())) as writer:
        for strict in (True, False):
            with pytest.raises(weightd.LayoutMismatch, match=rf"new_layout=True\): {first} and {second}$"):
                weightd.torch.fill(writer, values(**{second: values()[second] + 1}), strict=strict)
            assert not any(writer.read())


def test_name_that_the_other_side_has_not_may_be_one_more_of_a_tensor_that_it_has(weightd):
    given = values()
    del given["head.weight"], given["average"]
    buffer = write(weightd, given)
    layout = weightd.Layout()
    for row in buffer.values():
        layout.add(row.name, row.dtype, row.shape)
    with weightd.create("m", layout) as writer:  # as weightctl load does it, of a file with one of the names
        module = Tied("storage")
        assert weightd.torch.fill(writer, module.state_dict()) == ([], [])
        with pytest.raises(weightd.LayoutMismatch, match="not in the layout: head.weight"):
            weightd.torch.fill(writer, Tied("apart").state_dict() | {"average": module.mean, "mean": module.mean})
    tied = write(weightd, values(), tie=True)
    module = Tied("apart")
    del module.head, module.average
    with pytest.raises(weightd.LayoutMismatch, match="not in the module: average$"):
        weightd.torch.bind(module, tied)
    assert weightd.torch.bind(module, tied, strict=False) == ([], ["average"])


# --- Layouts and flat --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("how", ["object", "storage"])
def test_layout_ties_what_the_module_ties(weightd, how, device):
    rows = {row.name: row for row in weightd.torch.layout_of(Tied(how, device))}
    assert list(rows) == ["mean", "average", "embed.weight", "head.weight"]
    assert rows["head.weight"].tied_to == rows["embed.weight"].index
    assert rows["average"].tied_to == rows["mean"].index


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_parameters_over_one_storage_stay_tied_in_flat_and_through_training(weightd, device):
    module = Tied("storage", device)
    tied = module.embed.weight, module.head.weight
    flat = weightd.torch.flat(module, "m")
    if device == "cpu":
        assert (module.embed.weight, module.head.weight) == tied
    assert module.head.weight is not module.embed.weight
    torch.nn.init.ones_(module.embed.weight)
    assert module.head.weight.data_ptr() == flat["embed.weight"].torch().data_ptr()
    optimizer = torch.optim.SGD([module.embed.weight], lr=0.5)
    module(torch.arange(6)).sum().backward()
    optimizer.step()
    assert torch.equal(module.head.weight, module.embed.weight) and not (module.head.weight == 1).all()
    flat.publish()
    buffer = weightd.attach("m")
    assert torch.equal(buffer["head.weight"].torch(), module.head.weight)
    assert weightd.torch.flat(module, "m")["head.weight"].tied_to == buffer["head.weight"].tied_to is not None


def parts_of(whole, *pieces, persistent=True):
    module = torch.nn.Module()
    for i, piece in enumerate(pieces):
        module.register_buffer(f"part{i}", piece(whole), persistent=persistent or not i)
    return module


def test_pieces_of_one_storage_that_do_not_overlap_are_laid_out_separately(weightd):
    whole = torch.arange(24.0).view(4, 6)
    module = parts_of(whole, lambda x: x[:, :2], lambda x: x[:, 2:5], lambda x: x[:, 5], lambda x: x.new_ones(2))
    flat = weightd.torch.flat(module, "m")
    assert flat["part1"].torch().tolist() == whole[:, 2:5].tolist()
    assert all(tensor.tied_to is None for tensor in flat.values())
    module.part0.zero_()
    assert flat["part1"].torch().tolist() == whole[:, 2:5].tolist()


@pytest.mark.parametrize("device,persistent", [("cpu", True), ("cpu", False), ("meta", True)])
def test_tensors_that_share_a_part_of_their_memory_are_refused_by_name(weightd, device, persistent):
    whole = torch.zeros(4, 6, device=device)
    for other in (lambda x: x[1], lambda x: x[:, 1], lambda x: x.view(-1)[2:7], lambda x: x.t(),
                  lambda x: x.view(torch.int32)[2:], lambda x: x[0, 0].expand(3)):
        module = parts_of(whole, lambda x: x[:3], other, persistent=persistent)
        before = module.part0, module.part1
        with pytest.raises(ValueError, match=r"^part[01] and part[01] share a part of their memory.*clone"):
            weightd.torch.flat(module, "m")
        assert module.part0 is before[0] and module.part1 is before[1]
    assert weightd.ls() == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_flat_refuses_different_values_for_what_the_version_ties(weightd, monkeypatch, device):
    from weightd.torch import _flat

    monkeypatch.setattr(_flat, "create", lambda name, layout: weightd.create(name, weightd.torch.layout_of(Tied())))
    module = Tied("apart", device)
    module.average = module.mean
    before = snapshot(module)
    if device == "meta":
        flat = weightd.torch.flat(module, "m")
        assert module.head.weight.data_ptr() == module.embed.weight.data_ptr() == flat["head.weight"].torch().data_ptr()
        return
    with pytest.raises(weightd.LayoutMismatch, match=r"\(new_layout=True.*: embed.weight and head.weight$"):
        weightd.torch.flat(module, "m")
    assert_unchanged(module, before)
    assert weightd.ls() == []
    with torch.no_grad():
        module.head.weight.copy_(module.embed.weight)
    assert torch.equal(weightd.torch.flat(module, "m")["head.weight"].torch(), module.embed.weight)
    assert weightd.torch.layout_of(module).hash != weightd.torch.layout_of(Tied()).hash

"""weightd.torch and names: those of a state_dict, names= where they differ, and the keys that one side has not."""
import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
pytestmark = pytest.mark.usefixtures("with_torch")

if HAS_TORCH:
    import torch

    class Wrapper(torch.nn.Module):
        """As DistributedDataParallel and torch.compile() do."""

        def __init__(self, attribute, module):
            super().__init__()
            setattr(self, attribute, module)

    class Extra(torch.nn.Linear):
        """A module with state that is no tensor."""

        def get_extra_state(self):
            return {"scale": 2}

        def set_extra_state(self, state):
            self.scale = state["scale"]


def net(device=None):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4, device=device), torch.nn.BatchNorm1d(4, device=device))


def publish(weightd, module, name="m", **options):
    with weightd.create(name, weightd.torch.layout_of(module), **options) as writer:
        weightd.torch.fill(writer, module.state_dict())
        writer.publish()
    return weightd.attach(name)


def computes(module):
    return module.eval()(torch.ones(1, 3))


# --- names= ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [
    {"module.": ""}, {"module.0.": "0.", "module.1.": "1.", "mod": "x", "": "no."},
    lambda name: name.replace("module.", "")])
@pytest.mark.parametrize("attribute", ["module", "_orig_mod"])
def test_wrapped_module_is_bound_and_refreshed_by_names(weightd, attribute, names):
    if attribute != "module" and isinstance(names, dict):
        names = {key.replace("module.", attribute + "."): value for key, value in names.items()}
    elif attribute != "module":
        names = lambda name: name[len("_orig_mod."):]  # noqa: E731
    ordinary = net()
    buffer = publish(weightd, ordinary)
    wrapped = Wrapper(attribute, net("meta"))
    assert weightd.torch.bind(wrapped, buffer, names=names) is wrapped
    assert torch.equal(computes(getattr(wrapped, attribute)), computes(ordinary))
    torch.nn.init.ones_(ordinary[0].weight)
    ordinary[1].running_mean.fill_(3)
    assert weightd.torch.refresh(wrapped, publish(weightd, ordinary), names=names) == ([], [])
    assert torch.equal(computes(getattr(wrapped, attribute)), computes(ordinary))


def test_names_that_a_dict_has_not_stay_and_a_whole_name_counts_before_a_prefix(weightd):
    module = net("meta")
    names = {"0.weight": "first", "0.": "linear.", "": "net.", "1.weight.": "x", "1": "y"}
    rows = [row.name for row in weightd.torch.layout_of(module, names=names)]
    assert rows == ["first", "linear.bias", *(f"net.1.{name}" for name in (
        "weight", "bias", "running_mean", "running_var", "num_batches_tracked"))]
    del names[""]
    assert [row.name for row in weightd.torch.layout_of(module, names=names)][2] == "1.weight"
    assert weightd.torch.layout_of(module, names=names)[0].unit == ""


def test_fill_layout_of_and_flat_take_names_too(weightd):
    wrapped = Wrapper("module", net())
    names = {"module.": "model."}
    with weightd.create("m", weightd.torch.layout_of(wrapped, names=names)) as writer:
        assert weightd.torch.fill(writer, wrapped.state_dict(), names=names) == ([], [])
        writer.publish()
    flat = weightd.torch.flat(Wrapper("module", net("meta")), "n", names=names)
    flat.module.load_state_dict(wrapped.state_dict())
    flat.publish()
    for name in "m", "n":
        assert set(weightd.attach(name)) == {f"model.{key}" for key in wrapped.module.state_dict()}
        bound = weightd.torch.bind(net("meta"), weightd.attach(name), names={"": "model."})
        assert torch.equal(computes(bound), computes(wrapped.module))


def test_names_that_are_none_are_refused(weightd):
    buffer = publish(weightd, net())
    for names, says in (("module.", "neither a dict nor a function"), (lambda name: None, "made None of '0.weight'")):
        with pytest.raises(TypeError, match=says):
            weightd.torch.bind(net(), buffer, names=names)


def test_names_that_rename_nothing_are_named(weightd):
    """They may be misspelt, which would otherwise be found out by comparing the other lists."""
    buffer, wrapped = publish(weightd, net()), Wrapper("module", net("meta"))
    with pytest.raises(weightd.LayoutMismatch, match=r"in names=, but not in the module: modul\.; "):
        weightd.torch.bind(wrapped, buffer, strict=False, names={"modul.": ""})
    with weightd.create("m", buffer.layout()) as writer:
        with pytest.raises(weightd.LayoutMismatch, match=r"in names=, but not given: module\.0\.weigth"):
            weightd.torch.fill(writer, {"module.0.weight": torch.ones(4, 3)}, strict=False, names={"module.0.weigth": "0.weight"})


def test_error_shows_the_names_that_would_fit(weightd):
    buffer = publish(weightd, net())
    wrapped = Wrapper("module", net("meta"))
    with pytest.raises(weightd.LayoutMismatch, match=r"the names fit with: names=\{'module\.': ''\}$"):
        weightd.torch.bind(wrapped, buffer)
    with weightd.create("n", weightd.torch.layout_of(wrapped)) as writer:
        with pytest.raises(weightd.LayoutMismatch, match=r"the names fit with: names=\{'': 'module\.'\}$"):
            weightd.torch.fill(writer, net().state_dict())
        weightd.torch.fill(writer, net().state_dict(), names={"": "module."})
        writer.publish()
    with pytest.raises(weightd.LayoutMismatch, match=r"the names fit with: names=\{'': 'module\.'\}$"):
        weightd.torch.bind(net("meta"), weightd.attach("n"))


# --- strict=False ------------------------------------------------------------------------------------


def test_names_of_one_side_are_returned_as_load_state_dict_returns_them(weightd):
    buffer = publish(weightd, net())
    module = net("meta")
    module.add = torch.nn.Linear(2, 2)
    del module[1].running_var
    want = net()
    want.add = torch.nn.Linear(2, 2)
    del want[1].running_var
    expected = want.load_state_dict(net().state_dict(), strict=False)
    keys = weightd.torch.bind(module, buffer, strict=False)
    assert keys == expected == (["add.weight", "add.bias"], ["1.running_var"])
    assert keys.missing_keys == ["add.weight", "add.bias"] and keys.unexpected_keys == ["1.running_var"]
    torch.nn.init.ones_(want[0].weight)
    want[1].running_mean.fill_(3)
    with weightd.create("m", weightd.torch.layout_of(want), new_layout=True) as writer:
        weightd.torch.fill(writer, want.state_dict())
        writer.publish()
    del module.add
    newer = weightd.attach("m")
    with pytest.raises(weightd.LayoutMismatch, match="not in the module: add.weight, add.bias"):
        weightd.torch.refresh(module, newer)
    assert weightd.torch.refresh(module, newer, strict=False) == ([], ["add.weight", "add.bias"])
    assert torch.equal(module[0].weight, want[0].weight) and torch.equal(module[1].running_mean, want[1].running_mean)


def test_both_names_of_a_tied_tensor_are_missing_and_one_is_enough(weightd):
    def tied():
        module = net()
        module.again = module[0]
        return module

    keys = weightd.torch.bind(tied(), publish(weightd, net()[1], "n"), strict=False, names={"1.": ""})
    assert keys == (["0.weight", "again.weight", "0.bias", "again.bias"], [])
    assert weightd.torch.bind(tied(), publish(weightd, net()), strict=False) == ([], [])


def test_nothing_in_common_is_an_error_unless_strict_too(weightd):
    buffer = publish(weightd, net())
    wrapped = Wrapper("module", net("meta"))
    for use in (lambda **options: weightd.torch.bind(wrapped, buffer, strict=False, **options),
                lambda **options: weightd.torch.refresh(Wrapper("module", net()), buffer, strict=False, **options)):
        with pytest.raises(weightd.LayoutMismatch, match="missing in the buffer: module.0.weight.*names="):
            use()
        with pytest.raises(weightd.LayoutMismatch, match="missing in the buffer"):
            use(names={"module.": "model."})
    assert all(tensor.is_meta for tensor in wrapped.parameters())
    with weightd.create("m", weightd.torch.layout_of(net())) as writer:
        with pytest.raises(weightd.LayoutMismatch, match="not given: .*0.weight.*not in the layout: module.0.weight"):
            weightd.torch.fill(writer, wrapped.state_dict(), strict=False)
    with pytest.raises(weightd.LayoutMismatch, match="not in the module: [^;]*0.weight"):
        weightd.torch.bind(torch.nn.Module(), buffer, strict=False)


def test_buckets_fill_a_writer_one_after_the_other(weightd):
    state = net().state_dict()
    with weightd.create("m", weightd.torch.layout_of(net())) as writer:
        first = {key: tensor for key, tensor in state.items() if key[0] == "0"}
        with pytest.raises(weightd.LayoutMismatch, match="not given: [^;]*1.weight"):
            weightd.torch.fill(writer, first)
        assert not any(writer.read())
        keys = weightd.torch.fill(writer, first | {"other": torch.ones(1)}, strict=False)
        assert keys == ([key for key in writer if key[0] == "1"], ["other"]) and len(keys.missing_keys) == 5
        rest = {key: tensor for key, tensor in state.items() if key[0] == "1"}
        assert weightd.torch.fill(writer, rest, strict=False).unexpected_keys == []
        writer.publish()
    assert all(torch.equal(weightd.attach("m")[key].torch(), tensor) for key, tensor in state.items())


# --- The names of a state_dict -----------------------------------------------------------------------


def test_modules_whose_state_dict_renames_have_its_names(weightd):
    checkpoint = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")

    def wrapped(device=None):
        module = net(device)
        for i in range(2):
            module[i] = checkpoint.checkpoint_wrapper(module[i])
        return module

    state = wrapped().state_dict()
    hidden = [name.replace("_checkpoint_wrapped_module.", "") for name in state]  # torch 1.13 leaves it
    assert hidden == list(net().state_dict())
    assert [row.name for row in weightd.torch.layout_of(wrapped("meta"))] == list(state)
    flat = weightd.torch.flat(wrapped("meta"), "m")
    flat.module.load_state_dict(state)
    flat.publish()
    buffer = weightd.attach("m")
    assert set(buffer) == set(state)
    weightd.torch.bind(flat.module, buffer)
    assert torch.equal(computes(weightd.torch.bind(wrapped("meta"), buffer)), computes(net()))
    if hidden == list(state):
        assert torch.equal(computes(weightd.torch.bind(net("meta"), buffer)), computes(net()))


def test_hooks_of_a_state_dict_that_rename_and_leave_out_are_followed(weightd):
    def hooked(device=None):
        module = net(device)

        def rename(module, state, prefix, *_):
            del state["1.num_batches_tracked"]
            state["first"] = state.pop("0.weight")

        module._register_state_dict_hook(rename)
        return module

    buffer = publish(weightd, hooked())
    assert list(buffer) == list(hooked().state_dict()) and "first" in buffer
    with pytest.raises(ValueError, match="1.num_batches_tracked: .*assign them first"):
        weightd.torch.bind(hooked("meta"), buffer)
    module = hooked("meta")
    module[1].num_batches_tracked = torch.tensor(0)
    assert torch.equal(computes(weightd.torch.bind(module, buffer)), computes(net()))


def test_state_dict_of_a_module_that_overrides_it_is_followed(weightd):
    class Renaming(torch.nn.Module):
        def __init__(self, device=None):
            super().__init__()
            self.inner = net(device)

        def state_dict(self, *args, **kw):
            return {f"net.{name}": tensor.data for name, tensor in self.inner.state_dict().items()}

    buffer = publish(weightd, Renaming())
    assert set(buffer) == set(Renaming().state_dict())
    assert weightd.torch.layout_of(Renaming("meta")).difference(buffer.layout()) == ""
    assert torch.equal(computes(weightd.torch.bind(Renaming("meta"), buffer).inner), computes(net()))


def test_entries_of_a_state_dict_that_the_module_has_not_are_refused(weightd):
    module = net()
    module._register_state_dict_hook(lambda module, state, *_: state.update(packed=torch.ones(2)))
    buffer = publish(weightd, net())
    for use in (lambda: weightd.torch.layout_of(module), lambda: weightd.torch.bind(module, buffer),
                lambda: weightd.torch.flat(module, "n"), lambda: weightd.torch.refresh(module, buffer)):
        with pytest.raises(ValueError, match="^packed: in the state_dict, but neither a parameter nor a buffer"):
            use()
    assert [info.name for info in weightd.ls()] == ["m"]
    assert weightd.torch.bind(module, buffer, strict=False) == ([], [])


def test_extra_state_is_passed_over(weightd):
    module = torch.nn.Sequential(Extra(2, 2), Extra(2, 2))
    state = module.state_dict()
    assert "1._extra_state" in state
    layout = weightd.torch.layout_of(module)
    assert [row.name for row in layout] == [key for key in state if "extra" not in key]
    with weightd.create("m", layout) as writer:
        assert weightd.torch.fill(writer, state) == ([], ["0._extra_state", "1._extra_state"])
        writer.publish()
    weightd.torch.bind(module, weightd.attach("m"))
    weightd.torch.flat(module, "m").publish()


def test_parametrized_modules_are_laid_out_and_bound(weightd):
    from torch.nn.utils import parametrize

    class Double(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    def parametrized(device=None):
        module = net(device)
        parametrize.register_parametrization(module[0], "weight", Double())
        return module

    ordinary = parametrized()
    buffer = publish(weightd, ordinary)
    assert set(buffer) == set(ordinary.state_dict()) and "0.parametrizations.weight.original" in buffer
    bound = weightd.torch.bind(parametrized("meta"), buffer)
    assert torch.equal(computes(bound), computes(ordinary))
    assert torch.equal(bound[0].weight, 2 * buffer["0.parametrizations.weight.original"].torch())
    flat = weightd.torch.flat(parametrized(), "n")
    torch.nn.init.zeros_(flat.module[0].parametrizations.weight.original)
    assert not flat["0.parametrizations.weight.original"].torch().any()

"""weightd.torch in processes that multiprocessing spawned."""
import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
pytestmark = pytest.mark.usefixtures("with_torch")

if HAS_TORCH:
    import torch
    from integration.python import bound_model, torch_spawned


def publish(weightd, head, name="m"):
    layout = weightd.Layout()
    layout.add("embed.weight", "F32", (4, 2))
    layout.add("head.weight", "F32", (4, 2))
    with weightd.create(name, layout) as writer:
        writer["embed.weight"].torch().fill_(1)
        writer["head.weight"].torch().fill_(head)
        return writer.publish()


def test_names_of_one_tensor_with_different_values_are_refused_there(weightd, there):
    errors, untouched, output = there(torch_spawned.bind_and_refresh, publish(weightd, 1), publish(weightd, 3))
    for error in errors:
        assert error.startswith("LayoutMismatch: ") and error.endswith("embed.weight and head.weight")
    assert untouched and output == [[2] * 4] * 4


def test_names_are_mapped_there_and_what_is_missing_is_returned(weightd, there):
    publish(weightd, 1)
    error, keys, output = there(torch_spawned.bind_wrapped, "m")
    assert "missing in the buffer: module.embed.weight" in error and "names={'module.': ''}" in error
    assert keys == ([], []) and output == [[2] * 4] * 4


def test_values_that_cannot_be_read_leave_nothing_half_way_there(weightd, there):
    errors, written, version = there(torch_spawned.fill_half_way, "m")
    for error, says in zip(errors, ("head.weight: on the meta device", "head.weight: weightd has no tensors in layout",
                                    "embed.weight and head.weight")):
        assert says in error
    assert not written
    assert weightd.attach("m", version=version)["head.weight"].torch().tolist() == [[2, 2]] * 4


def test_modules_are_bound_there_to_a_buffer_that_is_handed_over(weightd, there):
    bound_model.publish(weightd, 1)
    buffer = weightd.attach("m")
    model = weightd.torch.bind(bound_model.Model().eval(), buffer)
    with pytest.raises(TypeError, match="not handed to another process"):
        there(bound_model.values, model)
    assert there(bound_model.bind, bound_model.Model().eval(), buffer, "quantized") == (True, {1})
    bound_model.publish(weightd, 2)
    with pytest.raises(weightd.Denied, match="shared with other processes"):
        there(bound_model.train)
    assert there(bound_model.swap) == {2} and there(bound_model.lose) == (["embed.weight"], {2})
    assert bound_model.values(model) == {1} and weightd.torch.is_bound(model, buffer)

"""weightd.torch in processes that multiprocessing spawned."""
import multiprocessing

import features
import pytest

HAS_TORCH = features.FEATURES["torch"][0]()
pytestmark = pytest.mark.usefixtures("with_torch")

if HAS_TORCH:
    import torch
    from integration import torch_spawned


@pytest.fixture(scope="module")
def pool():
    """One process: it has to import torch."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.fixture
def there(pool, daemon):
    """there(function, *args): what it returns in the other process."""
    pool.apply_async(torch_spawned.connect, (daemon.socket,)).get(60)
    return lambda function, *args: pool.apply_async(function, args).get(60)


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

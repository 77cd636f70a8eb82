"""weightd.torch: buffers of bound modules, what is weightd's of a module, and modules in other processes."""
import copy
import importlib
import io
import os
import pickle
import re
import signal
import threading
import warnings
from multiprocessing.reduction import ForkingPickler

import pytest
from lib import features

HAS_TORCH = features.FEATURES["torch"][0]()
pytestmark = pytest.mark.usefixtures("with_torch")

if HAS_TORCH:
    import torch
    from integration.python.bound_model import Model, publish, values
    from torch.multiprocessing.reductions import reduce_tensor


def bound(weightd, buffer=None, **options):
    buffer = buffer or weightd.attach("m")
    return weightd.torch.bind(Model().eval(), buffer, **options), buffer


def is_mapped_from(tensor, buffer):
    return 0 <= tensor.data_ptr() - buffer._memory.address < buffer.nbytes


# --- Keeping in step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [None, "quantized", "all"])
def test_swap_brings_the_buffers_along(weightd, share):
    publish(weightd, 1)
    model, buffer = bound(weightd, share=share)
    held = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    for version in 2, 3:
        publish(weightd, version)
        with torch.inference_mode(version == 3):
            assert buffer.swap() and values(model) == {version}
        assert model.ramp.tolist() == list(range(8))
    assert not buffer.swap()
    assert [id(tensor) for tensor in (*model.parameters(), *model.buffers())] == held
    model.batch.running_mean = buffer["batch.running_mean"].torch()  # shared by hand: not to be written
    publish(weightd, 4)
    assert buffer.swap() and values(model) == {4}


def test_all_modules_of_a_buffer_keep_in_step_and_others_do_not(weightd):
    publish(weightd, 1)
    one, buffer = bound(weightd)
    two, _ = bound(weightd, buffer, share="quantized")
    other, _ = bound(weightd)
    gone, _ = bound(weightd, buffer)
    del gone
    publish(weightd, 2)
    buffer.swap()
    assert values(one) == values(two) == {2} and values(other) == {1}


def test_pause_of_a_buffer_that_is_updated_in_place_brings_the_buffers_along(weightd):
    publish(weightd, 1, exclusive=True)
    model, buffer = bound(weightd)
    writer = threading.Thread(target=publish, args=(weightd, 2))
    writer.start()
    while not buffer.pause(timeout=60):
        pass
    writer.join()
    assert buffer.version == 2 and values(model) == {2}


def test_a_sleeper_that_wakes_with_another_version_has_its_buffers(weightd):
    publish(weightd, 1, keep=1)
    model, buffer = bound(weightd)
    buffer.release()
    publish(weightd, 2)
    assert buffer.reacquire() and values(model) == {2}


@pytest.mark.parametrize("share", [None, "quantized"])
def test_refresh_moves_to_another_buffer_and_keeps_what_is_shared(weightd, share):
    publish(weightd, 1)
    model, first = bound(weightd, share=share)
    publish(weightd, 2)
    second = first.refresh()
    weightd.torch.refresh(model, second)
    assert values(model) == {2} and first.swap()
    assert is_mapped_from(model.last.qweight, second) == (share is not None)
    assert weightd.torch.is_bound(model, second) and not weightd.torch.is_bound(model, first)
    publish(weightd, 3)
    first.swap()
    assert values(model) == {2}
    second.swap()
    assert values(model) == {3}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_did_not_follow_follows_with_the_next_call(weightd, error, monkeypatch):
    from weightd.torch import _bound

    publish(weightd, 1)
    model, buffer = bound(weightd)
    other, _ = bound(weightd, buffer)
    overwrite = _bound.overwrite

    def fail_once(tensor, view):
        monkeypatch.setattr(_bound, "overwrite", overwrite)
        raise error("once")

    for version, call in (2, buffer.swap), (3, lambda: buffer.pause(timeout=60)):
        publish(weightd, version)
        monkeypatch.setattr(_bound, "overwrite", fail_once)
        with pytest.raises(error, match="once"):
            buffer.swap()
        assert buffer.version == version
        if error is RuntimeError:
            assert values(model) == {version - 1, version} and values(other) == {version}
        assert not call() and values(model) == values(other) == {version}


def test_a_follower_that_fails_does_not_stop_the_others(weightd, monkeypatch):
    from weightd import _buffer

    def fail(memory):
        raise RuntimeError("always")

    publish(weightd, 1)
    model, buffer = bound(weightd)
    monkeypatch.setattr(_buffer, "followers", [fail, *_buffer.followers])
    publish(weightd, 2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="always"):
            buffer.swap()
        assert values(model) == {2}


# --- Shared memory -----------------------------------------------------------------------------------


def test_buffers_that_are_packed_are_shared_when_asked_for(weightd):
    publish(weightd, 1)
    model, buffer = bound(weightd, share="quantized")
    shared = {name for name, tensor in model.named_buffers() if is_mapped_from(tensor, buffer)}
    assert shared == {"layers.0.qweight", "layers.1.qweight"} and model.last.qweight is model.layers[1].qweight
    model, buffer = bound(weightd, share="all")
    assert [name for name, tensor in model.named_buffers() if not is_mapped_from(tensor, buffer)] == ["ramp"]
    asked = {}
    model, buffer = bound(weightd, share=lambda name, tensor: asked.setdefault(name, tensor.dtype) == torch.float16)
    assert {name for name, tensor in model.named_buffers() if is_mapped_from(tensor, buffer)} == {
        "layers.0.scales", "layers.1.scales"}
    assert "embed.weight" not in asked and "batch.running_mean" in asked
    with pytest.raises(ValueError, match="share='packed' is none of 'quantized', 'all'"):
        bound(weightd, share="packed")


def test_private_and_shared_bytes_are_told(weightd):
    publish(weightd, 1)
    told = [weightd.torch.is_bound(bound(weightd, share=share)[0]) for share in (None, "quantized", "all")]
    everything = sum(t.numel() * t.element_size() for m in [Model()] for t in (*m.parameters(), *m.buffers()))
    assert [one.shared_bytes + one.private_bytes for one in told] == [everything] * 3
    packed, ramp = 2 * 4 * 8 * 4, 8 * 4
    assert told[1].shared_bytes - told[0].shared_bytes == packed and told[2].private_bytes == ramp
    assert told[0].shared_bytes == (4 * 8 + 8 + 8) * 4


@pytest.mark.parametrize("options, mode, warns", [
    ({}, False, True), ({"share": "quantized"}, False, False), ({"share": "all"}, False, False),
    ({"share": lambda *_: False}, False, False), ({"share": "quantized"}, True, True),
    ({"strict": False}, False, True)])
def test_a_module_most_of_which_is_copied_is_a_warning(weightd, options, mode, warns):
    layer = torch.nn.BatchNorm1d(8).train(mode)
    layer.register_buffer("qweight", torch.ones(1 << 9, 1 << 9, dtype=torch.int32))
    with weightd.create("m", weightd.torch.layout_of(layer)) as writer:
        writer.publish()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weightd.torch.bind(layer, weightd.attach("m"), **options)
    private, said = weightd.torch.is_bound(layer).private_bytes, [str(one.message) for one in caught]
    assert (private > 1 << 20) == (warns or callable(options.get("share"))) and len(said) == warns
    if warns:
        assert said[0].startswith(f"{private} of ") and "qweight; bind(module.eval(), buffer, share=" in said[0]
        assert caught[0].category is RuntimeWarning and caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_tensors_that_are_not_made_yet_have_no_bytes(weightd):
    publish(weightd, 1)
    model = Model()
    whole = weightd.torch.is_bound(model)
    model.absent = torch.nn.Linear(64, 64, device="meta")
    model.lazy = torch.nn.LazyBatchNorm1d()
    weightd.torch.bind(model, weightd.attach("m"), strict=False)
    found = weightd.torch.is_bound(model)
    n = 8  # bytes of num_batches_tracked, which a lazy module has at once
    assert found and found.shared_bytes + found.private_bytes == whole.private_bytes + n


def test_modules_in_training_mode_share_no_buffers(weightd):
    publish(weightd, 1)
    buffer = weightd.attach("m")
    model = Model().eval()
    model.layers[0].train()
    weightd.torch.bind(model, buffer, share="quantized")
    assert [is_mapped_from(layer.qweight, buffer) for layer in model.layers] == [False, True]
    model = Model().eval()
    model.batch.train()
    before = [id(tensor) for tensor in (*model.parameters(), *model.buffers())]
    with pytest.raises(ValueError, match=r"batch\.running_mean, batch\.running_var, .*training mode.*eval\(\) first"):
        weightd.torch.bind(model, buffer, share="all")
    assert [id(tensor) for tensor in (*model.parameters(), *model.buffers())] == before


@pytest.mark.parametrize("share", ["quantized", "all"])
def test_training_a_module_with_shared_buffers_is_refused(weightd, share):
    publish(weightd, 1)
    model, buffer = bound(weightd, share=share)
    for part, name in (model, r"layers\.0\.qweight"), (model.layers, r"0\.qweight"), (model.last, "qweight"):
        with pytest.raises(weightd.Denied, match=rf"{name}.*: shared with other processes.*without share="):
            part.train()
        assert not any(module.training for module in model.modules())
    assert model.eval() is model and model.train(False) is model
    if share == "quantized":
        assert model.batch.train().training and model.embed.train().training
        model.batch(torch.ones(2, 8))
    weightd.torch.bind(model.eval(), buffer)
    assert model.train() is model and all(module.training for module in model.modules())
    model.batch(torch.ones(2, 8))
    buffer.verify()


def test_copies_of_a_module_with_shared_buffers_are_ordinary_modules(weightd):
    publish(weightd, 1)
    model, buffer = bound(weightd, share="all")
    saved = io.BytesIO()
    torch.save(model, saved)
    loaded = torch.load(io.BytesIO(saved.getvalue()), **(
        {"weights_only": False} if int(torch.__version__.split(".")[0]) > 1 else {}))
    for other in copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded, copy.deepcopy(loaded):
        assert not weightd.torch.is_bound(other) and values(other) == {1}
        assert not any(is_mapped_from(tensor, buffer) for tensor in other.state_dict().values())
        assert other.train() is other and other.last.training and not model.training
        other.batch(torch.ones(2, 8))
    publish(weightd, 2)
    buffer.swap()
    assert values(other.layers) == {1} and values(model) == {2}
    with pytest.raises(weightd.Denied):
        model.train()


def test_shallow_copies_of_a_module_with_shared_buffers_are_trained_themselves(weightd):
    publish(weightd, 1)
    model, buffer = bound(weightd, share="all")
    twin, part = copy.copy(model), copy.copy(model.batch)
    for each in twin, part:
        with pytest.raises(weightd.Denied, match="shared with other processes"):
            each.train()
    part.training = True
    assert part.eval() is part and not part.training
    weightd.torch.bind(model, buffer)  # its places are those of the copy too
    assert twin.train() is twin and twin.training and not model.training
    assert set(copy.deepcopy(vars(twin))) == set(vars(Model()))
    del model
    assert twin.eval() is twin and not twin.training


def test_what_is_remembered_keeps_nothing_mapped(weightd):
    publish(weightd, 1)
    model, buffer = bound(weightd, share="quantized")
    buffer.close()
    assert weightd.ping().n_leases == 1
    model.half()
    model.layers = None
    del model.last
    assert weightd.ping().n_leases == 0 and not weightd.torch.is_bound(model)
    model, buffer = bound(weightd, share="all")
    del model, buffer
    assert weightd.ping().n_leases == 0


# --- Parts that are unbound --------------------------------------------------------------------------


def lose_by_half(model):
    model.embed.half()


def lose_by_data(model):
    model.embed.weight.data = model.embed.weight.data.clone()


def lose_by_assignment(model):
    model.embed.weight = torch.nn.Parameter(torch.zeros(4, 8))


def lose_by_share_memory(model):
    model.embed.share_memory()


@pytest.mark.parametrize("lose", [lose_by_half, lose_by_data, lose_by_assignment, lose_by_share_memory])
def test_what_is_no_longer_ours_is_told_and_put_back(weightd, lose):
    publish(weightd, 1)
    model, buffer = bound(weightd)
    assert not weightd.torch.is_bound(Model()).shared and not weightd.torch.is_bound(Model())
    assert weightd.torch.is_bound(model) == weightd.torch.is_bound(model, buffer)
    found = weightd.torch.is_bound(model)
    assert found and found.lost == [] and found.shared == ["embed.weight", "batch.weight", "batch.bias"]
    lose(model)
    found = weightd.torch.is_bound(model)
    assert not found and found.lost == ["embed.weight"] and found.shared == ["batch.weight", "batch.bias"]
    publish(weightd, 2)
    with pytest.warns(RuntimeWarning, match=r"'m@2' .*: embed\.weight; weightd\.torch\.refresh\(\)"):
        buffer.swap()
    assert model.batch.weight[0] == 2 != model.embed.weight[0, 0]
    if lose is lose_by_half:
        with pytest.raises(weightd.LayoutMismatch):
            weightd.torch.refresh(model, buffer)
        return
    weightd.torch.refresh(model, buffer)
    assert weightd.torch.is_bound(model) and values(model) == {2}
    publish(weightd, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.swap()
    assert values(model) == {3}


def test_shared_buffers_that_moved_are_put_back(weightd):
    publish(weightd, 1)
    model, buffer = bound(weightd, share="quantized")
    model.share_memory()
    assert sorted(weightd.torch.is_bound(model).lost) == [
        "batch.bias", "batch.weight", "embed.weight", "layers.0.qweight", "layers.1.qweight"]
    assert model.layers[0].train().training  # its buffers are its own
    model.layers[0].eval()
    weightd.torch.refresh(model, buffer)
    assert weightd.torch.is_bound(model) and is_mapped_from(model.layers[0].qweight, buffer)
    with pytest.raises(weightd.Denied):
        model.layers[0].train()


def test_a_module_that_was_made_flat_is_not_missed(weightd):
    publish(weightd, 1)
    model, buffer = bound(weightd, share="quantized")
    flat = weightd.torch.flat(model, "m")
    flat["batch.weight"].torch().fill_(2)
    found = weightd.torch.is_bound(model)
    assert not found and (found.shared, found.lost) == ([], [])
    assert model.train() is model and model.last.training
    flat.publish()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert buffer.swap()
    other, _ = bound(weightd, buffer)
    assert values(other) == values(model) == {1, 2}


# --- Other processes ---------------------------------------------------------------------------------


def test_a_bound_module_is_not_handed_to_another_process(weightd):
    publish(weightd, 1)
    model, buffer = bound(weightd, share="all")
    for thing in model, model.embed, model.embed.weight, list(model.parameters()):
        with pytest.raises(TypeError, match=r"bound to 'm@1' .* hand over the Buffer, or its name, and bind\(\) there"):
            ForkingPickler.dumps(thing)
    assert weightd.torch.is_bound(model, buffer)
    for thing in model.state_dict(), buffer["embed.weight"].torch(), model.last.qweight, Model():
        ForkingPickler.dumps(thing)
    assert weightd.torch.is_bound(model, buffer) and not model.embed.weight.is_shared()


def test_a_flat_module_is_not_handed_to_another_process_either(weightd):
    model = Model()
    with weightd.torch.flat(model, "m") as flat:
        for act in (lambda: None), flat.publish:
            act()
            with pytest.raises(TypeError, match=r"module that flat\(\) made is not .*; publish\(\), attach\(\), and "
                                                r"hand over that Buffer, or its name, and bind\(\) there"):
                ForkingPickler.dumps(model)


@pytest.mark.parametrize("module", ["_published", "_meta"])
def test_a_fork_while_a_thread_holds_a_lock_leaves_the_child_its_own(weightd, module):
    publish(weightd, 1)
    model, buffer = bound(weightd)
    with importlib.import_module(f"weightd.torch.{module}")._lock:
        child = os.fork()
        if not child:
            try:
                signal.alarm(5)  # ends it, should it wait for the thread that is not there
                with weightd.torch.meta_parameters():
                    os._exit(not weightd.torch.is_bound(model))
            finally:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors)")
@pytest.mark.parametrize("make", [
    lambda: torch.eye(2).to_sparse(), lambda: torch.eye(2).to_sparse_csr(),
    lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])])
def test_tensors_without_memory_of_one_address_are_handed_over_as_torch_does(weightd, make):
    publish(weightd, 1)
    model, buffer = bound(weightd)
    tensor = make()
    for thing in tensor, torch.nn.Parameter(tensor):
        try:
            reduce_tensor(thing)
        except (NotImplementedError, RuntimeError) as e:  # torch 1.13 hands over none of them
            with pytest.raises(type(e), match=re.escape(str(e)[:40])):
                ForkingPickler.dumps(thing)
        else:
            ForkingPickler.dumps(thing)

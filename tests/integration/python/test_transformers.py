"""
Models of transformers on shared memory, in the ways that the README gives. Small ones with random values, each
compared bit for bit with what from_pretrained() makes of the same files.
"""
import importlib.util
import os

import pytest
from lib import features

# The run with torch 2 fails without it, where another only skips.
HAS_TRANSFORMERS = "WEIGHTD_TORCH2_RUNS" in os.environ or importlib.util.find_spec("transformers") is not None
if HAS_TRANSFORMERS:
    import torch
    import transformers
    from integration.python.saved_model import FUSED, MODELS, Saved

    transformers.utils.logging.disable_progress_bar()

pytestmark = [pytest.mark.plain,
              pytest.mark.skipif(not HAS_TRANSFORMERS, reason="this Python has no transformers: test_torch.py runs the one that has")]


@pytest.fixture
def weightd(daemon, monkeypatch):
    features.require("library")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    import weightd.torch
    return weightd


@pytest.fixture(params=MODELS if HAS_TRANSFORMERS else [None])
def saved(request, saved_model):
    return saved_model(request.param)


def test_model_computes_what_from_pretrained_does(weightd, saved):
    weightd.load("as-saved", saved.folder)
    weights = weightd.attach("as-saved")
    views = {name: tensor.torch() for name, tensor in weights.items()}
    model = saved.type.from_pretrained(None, config=saved.reference.config, state_dict=views)
    share = saved.check("from_pretrained(state_dict=)", model, weights)
    assert 0.2 < share < 1 if saved.name in FUSED else share == 1

    if saved.name in FUSED:
        with pytest.raises(weightd.LayoutMismatch, match="experts"):
            weightd.torch.bind(saved.make_empty(weightd), weights)
    else:
        model = saved.make_empty(weightd)
        weightd.torch.bind(model, weights)
        assert saved.check("bind", model, weights) == 1

    weightd.torch.flat(saved.type.from_pretrained(saved.folder), "as-made").publish()
    weights = weightd.attach("as-made")
    model = saved.make_empty(weightd)
    weightd.torch.bind(model, weights)
    assert saved.check("flat, then bind", model, weights) == 1


@pytest.mark.parametrize("name", ("Qwen2", "GPT2"))
def test_a_checkpoint_of_training_is_opened_by_from_pretrained(weightd, tmp_path, name):
    """Qwen2 has a tied head, which the checkpoint has once."""
    import weightd.train

    saved = Saved(name, tmp_path / "model")
    model = saved.type.from_pretrained(saved.folder)
    weightd.train.shard(model, weightd.train.init_mesh(), job=f"trained-{name}")
    with weightd.train.AdamW(model, lr=0.01) as optimizer:
        tokens = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.save(tmp_path / "checkpoints", wait=True)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    model.config.save_pretrained(checkpoint)
    again = saved.type.from_pretrained(checkpoint)
    assert torch.equal(saved.compute(again), saved.compute(model))
    assert not torch.equal(saved.compute(again), saved.compute(saved.reference))

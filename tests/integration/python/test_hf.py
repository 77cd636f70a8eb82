"""weightd.hf: models of transformers by the name of a buffer. Small ones with random values."""
import importlib.util
import json
import logging
import os

import pytest
from lib import features

# The run with torch 2 fails without it, where another only skips.
HAS_TRANSFORMERS = "WEIGHTD_TORCH2_RUNS" in os.environ or importlib.util.find_spec("transformers") is not None
if HAS_TRANSFORMERS:
    import torch
    import transformers
    from integration.python.saved_model import FUSED, MODELS, TOKENS, Saved

    transformers.utils.logging.disable_progress_bar()

pytestmark = [pytest.mark.plain,
              pytest.mark.skipif(not HAS_TRANSFORMERS, reason="this Python has no transformers: test_torch.py runs the one that has")]


@pytest.fixture
def weightd(daemon, monkeypatch):
    features.require("library")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    import weightd.hf
    return weightd


@pytest.fixture
def llama(weightd, tmp_path):
    """A Llama in buffer "llama"."""
    saved = Saved("Llama", tmp_path / "Llama")
    weightd.load("llama", saved.folder)
    return saved


@pytest.fixture
def tokenizer():
    return transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat"])})


def sizes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in {t.data_ptr(): t for t in tensors}.values())


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor(TOKENS)).logits


# --- from_pretrained() -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS if HAS_TRANSFORMERS else [None])
def test_model_has_the_class_of_its_config_and_shares_all_that_is_not_fused(weightd, saved_model, name):
    saved = saved_model(name)
    weightd.load("m", saved.folder)
    model, info = weightd.hf.from_pretrained("m", output_loading_info=True)
    loaded = info["weightd"]
    assert type(model) is saved.type and not model.training
    share = saved.check("weightd.hf", model, loaded.buffer)
    made = {n: t for n, t in model.state_dict(keep_vars=True).items() if ".experts." in n or "correction_bias" in n}
    assert sorted(loaded.copied) == sorted(made) and loaded.copied_bytes == sizes(made.values())
    assert 0.2 < share < 1 if name in FUSED else share == 1
    assert loaded.shared_bytes + loaded.copied_bytes == sizes(model.state_dict(keep_vars=True).values())
    assert weightd.torch.is_bound(model, loaded.buffer)


def test_copied_bytes_are_logged(weightd, llama, caplog):
    caplog.set_level(logging.INFO, "weightd.hf")
    weightd.hf.from_pretrained("llama")
    weightd.hf.from_pretrained("llama", dtype=torch.bfloat16)
    whole, half = [record.getMessage() for record in caplog.records]
    n = sizes(llama.reference.parameters())
    assert whole == f"'llama@1': LlamaForCausalLM shares {n} bytes, and copied 0"
    assert half.startswith(f"'llama@1': LlamaForCausalLM shares 0 bytes, and copied {n // 2}: model.embed_tokens.weight, ")


def test_class_can_be_chosen(weightd, llama):
    inner, info = weightd.hf.from_pretrained("llama", transformers.AutoModel, output_loading_info=True)
    assert type(inner) is transformers.LlamaModel and info["weightd"].copied_bytes == 0
    assert weightd.torch.is_bound(inner, info["weightd"].buffer), "under names without a prefix"
    with torch.no_grad():
        assert torch.equal(inner(torch.tensor(TOKENS))[0], llama.reference.model(torch.tensor(TOKENS))[0])
    assert type(weightd.hf.from_pretrained("llama", transformers.AutoModelForCausalLM)) is transformers.LlamaForCausalLM


def test_tensors_that_the_version_lacks_are_named(weightd, llama):
    with pytest.raises(weightd.LayoutMismatch, match="'llama@1' does not fit LlamaForSequenceClassification.*score.weight.*strict=False"):
        weightd.hf.from_pretrained("llama", transformers.LlamaForSequenceClassification)
    model, info = weightd.hf.from_pretrained("llama", transformers.LlamaForSequenceClassification, strict=False,
                                             output_loading_info=True)
    assert info["weightd"].copied == ["score.weight"] and model.score.weight.requires_grad


def test_swap_moves_the_model_to_the_newest_version(weightd, llama):
    model, info = weightd.hf.from_pretrained("llama", output_loading_info=True)
    newer = llama.type.from_pretrained(llama.folder)
    with torch.no_grad():
        newer.lm_head.weight.mul_(2)
    assert weightd.hf.publish(newer, "llama") == 2
    assert not torch.equal(logits(model), logits(newer))
    assert info["weightd"].buffer.swap()
    assert torch.equal(logits(model), logits(newer))


def test_version_without_a_configuration_is_refused(weightd, llama):
    weightd.load("bare", llama.folder, files=False)
    with pytest.raises(weightd.Error, match="'bare@1' has no config.json beside its weights; load it with its directory"):
        weightd.hf.from_pretrained("bare")
    model = weightd.hf.from_pretrained("bare", llama.type, config=llama.reference.config)
    assert torch.equal(logits(model), logits(llama.reference))
    with pytest.raises(weightd.NotFound):
        weightd.hf.from_pretrained("llame")


# --- publish() ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS if HAS_TRANSFORMERS else [None])
def test_published_model_is_a_replica_without_copies_and_a_directory_for_programs_without_weightd(weightd, saved_model, tokenizer, name):
    saved = saved_model(name)
    assert weightd.hf.publish(saved.reference, "m", tokenizer) == 1
    replica, info = weightd.hf.from_pretrained("m", output_loading_info=True)
    loaded = info["weightd"]
    assert type(replica) is saved.type and saved.check("published", replica, loaded.buffer) == 1
    assert loaded.copied_bytes == sizes(b for n, b in replica.named_buffers() if n in replica.state_dict())
    assert not any(p.data_ptr() == q.data_ptr() for p, q in zip(saved.reference.parameters(), replica.parameters()))
    with weightd.model_dir("m") as path:
        model = saved.type.from_pretrained(path)
        assert transformers.BertTokenizerFast.from_pretrained(path).get_vocab() == tokenizer.get_vocab()
    assert torch.equal(saved.compute(model), saved.compute(saved.reference))


def test_published_files_are_those_that_save_pretrained_writes(weightd, llama, tokenizer, tmp_path):
    llama.reference.generation_config.max_new_tokens = 7
    weightd.hf.publish(llama.reference, "m", tokenizer, attributes={"tp_rank": 3})
    files = weightd.files("m")
    assert files.attributes == {"architecture": "LlamaForCausalLM", "dtype": "F32", "module": "LlamaForCausalLM", "tp_rank": "3",
                                "producer": f"transformers {transformers.__version__}"}
    llama.reference.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    wanted = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir() if path.name != "model.safetensors"}
    assert set(files) == set(wanted)
    for name in wanted:
        assert json.loads(files[name]) == json.loads(wanted[name]), name
    assert weightd.hf.from_pretrained("m").generation_config.max_new_tokens == 7


def test_next_version_keeps_the_files_that_are_not_given_again(weightd, llama, tokenizer):
    weightd.hf.publish(llama.reference, "m", tokenizer, attributes={"tp_rank": 3})
    before = weightd.files("m")
    weightd.hf.publish(llama.reference, "m")
    after = weightd.files("m")
    assert dict(after) == dict(before) and after.attributes == before.attributes


def test_wrapper_of_a_model_is_refused(weightd, llama):
    with pytest.raises(TypeError, match="a Sequential is no model of transformers; publish the model inside of it"):
        weightd.hf.publish(torch.nn.Sequential(llama.reference), "m")
    assert weightd.ls("m") == []

"""
Computes layers of small models of transformers from the slices of two ranks: sums over ranks are what the whole layer
computes. Each rank's slices are a checkpoint of a smaller model, which transformers loads as any other.

usage: sliced_layers.py WEIGHTCTL FOLDER
"""
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
COMMON = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=64, num_hidden_layers=2,
              vocab_size=48, max_position_embeddings=16, bos_token_id=1, eos_token_id=2, pad_token_id=0, attn_implementation="eager")
MOE = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)
LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4,
              num_key_value_heads=4, first_k_dense_replace=1, n_group=1, topk_group=1)
# One of each set of rules: other types have the same names as these.
MODELS = {"qwen3": {}, "phi3": {}, "mixtral": MOE, "qwen2_moe": MOE | {"decoder_sparse_step": 1}, "deepseek_v2": MOE | LATENT}
SHARED_BY_RANKS = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size",
                   "shared_expert_intermediate_size", "vocab_size")


def config_of(model_type, ranks=1):
    settings = COMMON | MODELS[model_type]
    return AutoConfig.for_model(model_type, **{key: value // ranks if key in SHARED_BY_RANKS else value for key, value in settings.items()})


def model_of(model_type):
    model = AutoModelForCausalLM.from_config(config_of(model_type)).float()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def rank_of(model_type, rank, weightctl, folder):
    """The model that a rank has, out of a version."""
    name, path = f"{model_type}-{rank}", folder / f"{model_type}-{rank}"
    for command in (["load", name, folder / model_type, "--tp", f"{rank}/2", "--no-files", "-q"], ["save", name, path, "-q"]):
        subprocess.run([weightctl, *command], check=True)
    config_of(model_type, 2).save_pretrained(path)
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, attn_implementation="eager")
    assert not any(info.values()), (model_type, info)
    return model


def outputs(model, x):
    """Of the modules whose result is a sum over ranks."""
    place = torch.arange(x.shape[1])[None]
    rotary = model.model.rotary_emb(x, place)
    results = []
    for layer in model.model.layers:
        results.append(layer.self_attn(hidden_states=x, position_embeddings=rotary, attention_mask=None, position_ids=place)[0])
        made = layer.mlp(x)
        results.append(made[0] if isinstance(made, tuple) else made)
    return results


@torch.no_grad()
def main(weightctl, folder):
    torch.manual_seed(0)
    for model_type in MODELS:
        whole, x = model_of(model_type), torch.randn(2, 5, 32)
        whole.save_pretrained(folder / model_type)
        first, second = (outputs(rank_of(model_type, rank, weightctl, folder), x) for rank in range(2))
        for i, (a, b, both) in enumerate(zip(first, second, outputs(whole, x))):
            torch.testing.assert_close(a + b, both, rtol=1e-4, atol=1e-4, msg=lambda text: f"{model_type}, module {i}: {text}")
        print(model_type)


main(sys.argv[1], Path(sys.argv[2]))

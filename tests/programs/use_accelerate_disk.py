"""accelerate: load_checkpoint_and_dispatch() with all layers on "disk", which copies them to a folder."""
import os
import tempfile

import accelerate
import transformers
from program import main
from use_transformers import output


def load(path):
    config = transformers.AutoConfig.from_pretrained(path)
    with accelerate.init_empty_weights(include_buffers=False):
        model = transformers.AutoModelForCausalLM.from_config(config)
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{i}": "disk" for i in range(config.num_hidden_layers)}
    folder = tempfile.TemporaryDirectory()
    model = accelerate.load_checkpoint_and_dispatch(
        model, os.path.join(path, "model.safetensors"), places, offload_folder=folder.name).eval()
    model.folder = folder
    return model


def parameters(model):
    """The layers alone. Between two forwards they have no memory."""
    return [tensor for tensor in model.model.layers.parameters()]


if __name__ == "__main__":
    main(load, output, parameters)

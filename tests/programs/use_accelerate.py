"""accelerate: load_checkpoint_and_dispatch() of an empty model, all of it on the CPU."""
import os

import accelerate
import transformers
from program import main
from use_transformers import output, parameters


def load(path):
    config = transformers.AutoConfig.from_pretrained(path)
    with accelerate.init_empty_weights(include_buffers=False):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return accelerate.load_checkpoint_and_dispatch(model, os.path.join(path, "model.safetensors"), {"": "cpu"}).eval()


if __name__ == "__main__":
    main(load, output, parameters)

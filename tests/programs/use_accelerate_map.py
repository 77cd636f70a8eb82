"""
accelerate: attach_align_device_hook(weights_map=...), which asks a mapping for each tensor when a layer needs it. With
$PROGRAM_BUFFER the mapping is that buffer of weightd, the one line of this folder that names weightd.
"""
import collections.abc
import os

import accelerate
import transformers
from accelerate.hooks import attach_align_device_hook
from program import main
from safetensors import safe_open
from use_transformers import output


class Weights(collections.abc.Mapping):
    """Tensors by name, and in `given` those that a forward asked for."""

    def __init__(self, path):
        self.given = {}
        if "PROGRAM_BUFFER" in os.environ:
            import weightd

            self.buffer = weightd.attach(os.environ["PROGRAM_BUFFER"])
            self.names, self.get_tensor = list(self.buffer), lambda name: self.buffer[name].torch()
        else:
            self.file = safe_open(os.path.join(path, "model.safetensors"), "pt")
            self.names, self.get_tensor = list(self.file.keys()), self.file.get_tensor

    def __getitem__(self, name):
        return self.given.setdefault(name, self.get_tensor(name))

    def __iter__(self):
        return iter(self.names)

    def __len__(self):
        return len(self.names)


def load(path):
    config = transformers.AutoConfig.from_pretrained(path)
    with accelerate.init_empty_weights(include_buffers=False):
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.weights = Weights(path)
    attach_align_device_hook(model, execution_device="cpu", offload=True, weights_map=model.weights)
    return model.eval()


def parameters(model):
    return model.weights.given.values()


if __name__ == "__main__":
    main(load, output, parameters)

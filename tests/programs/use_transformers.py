"""transformers: AutoModelForCausalLM.from_pretrained(), and logits of 32 tokens."""
import torch
import transformers
from program import main

TOKENS = torch.arange(3, 35)[None]


def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path)


def output(model):
    with torch.no_grad():
        return model(input_ids=TOKENS).logits.numpy().tobytes()


def parameters(model):
    return model.parameters()


if __name__ == "__main__":
    main(load, output, parameters)

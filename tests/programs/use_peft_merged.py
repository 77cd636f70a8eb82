"""peft: an adapter that is merged into the base, and logits of the merged model."""
import torch
import use_peft
from program import main
from use_transformers import output, parameters


def load(path):
    model = use_peft.load(path)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "lora_B" in name:
                tensor.fill_(0.01)
    return model.merge_and_unload().eval()


if __name__ == "__main__":
    main(load, output, parameters)

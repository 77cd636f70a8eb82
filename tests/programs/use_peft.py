"""peft: LoRA of rank 8 on a frozen base, eight steps of AdamW, with data of $PROGRAM_RANK."""
import hashlib

import peft
import torch
import transformers
from program import main, rank

STEPS = 8


def load(path):
    base = transformers.AutoModelForCausalLM.from_pretrained(path)
    torch.manual_seed(0)
    return peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def output(model):
    """The losses, and the base after the training: with other data it is the same."""
    losses = train(model, STEPS)
    if losses[-1] >= losses[0]:
        raise RuntimeError(f"the adapter learned nothing: {losses}")
    return repr(losses).encode() + digest(parameters(model))


def first(model):
    return train(model, 1)


def train(model, n_steps):
    tokens = torch.randint(3, 1024, (2, 16), generator=torch.Generator().manual_seed(rank()))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(n_steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def digest(tensors):
    sums = hashlib.sha256()
    for tensor in tensors:
        sums.update(tensor.detach().numpy())
    return sums.digest()


def parameters(model):
    """Those of the base."""
    return [p for p in model.parameters() if not p.requires_grad]


if __name__ == "__main__":
    main(load, output, parameters, first)

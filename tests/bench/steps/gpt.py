"""A GPT with a tied head, as all programs of this folder train it, and its batches."""
import dataclasses

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 8192
SEED = 0


@dataclasses.dataclass(frozen=True)
class Size:
    """
    Parameters, and the samples of a rank in a step.

    layers, width, heads    of the model
    batch, length           sequences of a rank, tokens of each
    """

    layers: int
    width: int
    heads: int
    batch: int
    length: int


SIZES = {
    "small": Size(layers=6, width=384, heads=6, batch=1, length=16),  # 13.8 M parameters: communication counts
    "big": Size(layers=12, width=256, heads=4, batch=4, length=128),  # 11.6 M parameters: computing dominates
}


class Block(nn.Module):
    """Attention and a layer of four times the width, each behind a norm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.attention_norm(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.norm(x))))


class Gpt(nn.Module):
    """Logits of the next token, [batch, length, VOCABULARY], for tokens, [batch, length]."""

    def __init__(self, size):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make(size, device="cpu"):
    """The model with the same first values in each process."""
    torch.manual_seed(SEED)
    with torch.device(device):
        model = Gpt(size)
    if device != "meta":
        nn.init.normal_(model.tokens.weight, std=0.02)
    return model


def batches(size, rank, n_ranks, count=8):
    """A rank's parts of `count` batches, or all of them for rank None: pairs of tokens and those that follow them."""
    generator = torch.Generator().manual_seed(SEED + 1)
    whole = torch.randint(0, VOCABULARY, (count, n_ranks * size.batch, size.length + 1), generator=generator)
    mine = whole if rank is None else whole[:, rank * size.batch:(rank + 1) * size.batch]
    return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in mine]


def loss_of(model, batch):
    """Mean cross entropy, in float32 from logits of any type."""
    tokens, following = batch
    return functional.cross_entropy(model(tokens).float().flatten(0, 1), following.flatten())

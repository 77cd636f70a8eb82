"""A small GPT, and the text that it learns: the documents of this project."""

import copy
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[3]
MULTIPLIER = 7919  # a prime, for the hash


def documents():
    """Paths of the text: pages for readers at the top, and man pages."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("packaging/man/*.scd")])


class Corpus:
    """
    tokens     of all documents, one after the other, int64
    tokenizer  byte pairs, trained on them
    n_bytes    of the text
    """

    def __init__(self, vocabulary):
        from tokenizers import ByteLevelBPETokenizer

        texts = [path.read_text() for path in documents()]
        self.tokenizer = ByteLevelBPETokenizer()
        self.tokenizer.train_from_iterator(texts, vocab_size=vocabulary, min_frequency=2, show_progress=False)
        self._take(texts)

    def _take(self, texts):
        self.tokens = torch.tensor([token for text in texts for token in self.tokenizer.encode(text).ids])
        self.n_bytes = sum(len(text.encode()) for text in texts)

    def of(self, path):
        """A document alone, with the same tokenizer."""
        one = copy.copy(self)
        one._take([path.read_text()])
        return one

    def batch(self, step, rank, n, sequences, length):
        """Inputs and targets of a rank in a step, [sequences][length] each: a pure function of the arguments."""
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.tokens) - length - 1, (n * sequences,), generator=generator)
        rows = torch.stack([self.tokens[at:at + length + 1] for at in starts[rank::n]])
        return rows[:, :-1], rows[:, 1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """
    A token has the sum of three embeddings: of itself, of its position, and of the pair that it makes with the token before
    it, one of `pairs` by a hash. The head is the embedding of tokens, transposed.
    """

    def __init__(self, vocabulary, pairs, width, heads, blocks, length):
        super().__init__()
        self.length = length
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.pairs = nn.Embedding(pairs, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        for p in self.parameters():
            if p.dim() > 1 and not p.is_meta:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        """Logits, [n][length][vocabulary], of tokens, [n][length]."""
        before = F.pad(tokens, (1, 0))[:, :-1]
        pairs = (before * MULTIPLIER + tokens) % self.pairs.num_embeddings
        x = self.embedding(tokens) + self.pairs(pairs) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def loss(self, tokens, targets):
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, tokens, n, temperature=0.7, seed=0):
        """The list of tokens, and n more."""
        tokens, generator = list(tokens), torch.Generator().manual_seed(seed)
        for _ in range(n):
            logits = self(torch.tensor([tokens[-self.length:]]))[0, -1]
            tokens.append(int(torch.multinomial(torch.softmax(logits / temperature, 0), 1, generator=generator)))
        return tokens

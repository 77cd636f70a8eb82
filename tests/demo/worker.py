#!/usr/bin/python3
"""worker.py: one of the demo's processes, in Python

The twin of worker.c: same arguments, same lines of JSON. numpy does the arithmetic, on arrays that
point into the shared memory.
"""

import os

# Before numpy is imported: eight workers share the cores, and the order of additions stays fixed.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import math
import select
import signal
import sys
import time
import unicodedata

import numpy

import weightd

TOKENS_MAX = 256
LAYERS = 6
HEADS = 12
STOP_CHECK_S = 0.1  # how often a waiting worker looks whether it shall end


# --- Text to token ids ----------------------------------------------------------------------------


def is_punctuation(c):
    return unicodedata.category(c).startswith("P") or c in "$+<=>^`|~"


def is_ideograph(c):
    ranges = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF),
              (0x2F800, 0x2FA1F))
    return any(first <= ord(c) <= last for first, last in ranges)


def is_dropped(c):
    return c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cf", "Mn")


def split_words(text):
    """BERT's basic tokens: lower case, no accents, punctuation and ideographs apart."""
    out = []
    for c in unicodedata.normalize("NFD", text):
        if c in "\t\n\r" or unicodedata.category(c).startswith("Z"):
            out.append(" ")
        elif not is_dropped(c):
            c = c.lower()
            out.append(f" {c} " if is_punctuation(c) or is_ideograph(c) else c)
    return "".join(out).split()


def read_vocabulary(path):
    with open(path, encoding="utf-8") as file:
        return {line.rstrip("\n"): number for number, line in enumerate(file)}


def encode_word(vocabulary, word):
    ids, at = [], 0
    while at < len(word) and len(word) <= 100:
        for end in range(len(word), at, -1):
            token = vocabulary.get(("##" if at else "") + word[at:end])
            if token is not None:
                break
        else:
            break
        ids.append(token)
        at = end
    return ids if at == len(word) else [vocabulary["[UNK]"]]


def encode(vocabulary, text):
    ids = [token for word in split_words(text) for token in encode_word(vocabulary, word)]
    return [vocabulary["[CLS]"], *ids[:TOKENS_MAX - 2], vocabulary["[SEP]"]]


# --- Token ids to an embedding --------------------------------------------------------------------


class MiniLM:
    """all-MiniLM-L6-v2 over a mapping of names to tensors; the weights stay where they are."""

    def __init__(self, tensors):
        embeddings = [f"embeddings.{part}_embeddings.weight"
                      for part in ("word", "position", "token_type")]
        affine = ["embeddings.LayerNorm"] + [
            f"encoder.layer.{i}.{part}" for i in range(LAYERS) for part in (
                "attention.self.query", "attention.self.key", "attention.self.value",
                "attention.output.dense", "attention.output.LayerNorm",
                "intermediate.dense", "output.dense", "output.LayerNorm")]
        names = embeddings + [f"{prefix}.{kind}" for prefix in affine for kind in ("weight", "bias")]
        self.weights = {name: tensors[name].numpy() for name in names}

    def linear(self, prefix, x):
        return x @ self.weights[prefix + ".weight"].T + self.weights[prefix + ".bias"]

    def norm(self, prefix, x):
        x = x - x.mean(axis=1, keepdims=True)
        x /= numpy.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-12)
        return x * self.weights[prefix + ".weight"] + self.weights[prefix + ".bias"]

    def attend(self, prefix, x):
        heads = [self.linear(f"{prefix}.{part}", x).reshape(len(x), HEADS, -1).transpose(1, 0, 2)
                 for part in ("query", "key", "value")]
        query, key, value = heads
        p = query @ key.transpose(0, 2, 1) / numpy.float32(math.sqrt(query.shape[2]))
        p = numpy.exp(p - p.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        return (p @ value).transpose(1, 0, 2).reshape(x.shape)

    def embed(self, ids):
        """The mean over the tokens, scaled to length 1: float32[384]."""
        x = (self.weights["embeddings.word_embeddings.weight"][ids]
             + self.weights["embeddings.position_embeddings.weight"][:len(ids)]
             + self.weights["embeddings.token_type_embeddings.weight"][0])
        x = self.norm("embeddings.LayerNorm", x)
        for i in range(LAYERS):
            layer = f"encoder.layer.{i}"
            y = self.attend(f"{layer}.attention.self", x)
            y = self.linear(f"{layer}.attention.output.dense", y)
            x = self.norm(f"{layer}.attention.output.LayerNorm", x + y)
            y = gelu(self.linear(f"{layer}.intermediate.dense", x))
            x = self.norm(f"{layer}.output.LayerNorm", x + self.linear(f"{layer}.output.dense", y))
        mean = x.mean(axis=0)
        return mean / numpy.sqrt((mean * mean).sum())


def gelu(x):
    """The exact one: numpy has no erf, and the usual approximation is off by 1e-3."""
    erf = numpy.fromiter(map(math.erf, (x * math.sqrt(0.5)).ravel().tolist()), numpy.float32, x.size)
    return 0.5 * x * (1 + erf.reshape(x.shape))


# --- Places of the weights ------------------------------------------------------------------------


class FileCopy(dict):
    """The tensors of one safetensors file, in private memory: what a process does without weightd."""

    version = 0

    def __init__(self, path):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            start = file.tell()
            header.pop("__metadata__", None)
            for name, entry in header.items():
                first, last = entry["data_offsets"]
                self[name] = CopiedTensor(entry["dtype"], entry["shape"], last - first)
                file.seek(start + first)
                if file.readinto(self[name].data) != last - first:
                    raise ValueError(f"'{path}' is too short")


class CopiedTensor:
    """As much of weightd.Tensor as is needed here."""

    def __init__(self, dtype, shape, n_bytes):
        self.dtype, self.shape = dtype, shape
        self.data = numpy.empty(n_bytes, numpy.uint8)

    def memoryview(self):
        return memoryview(self.data)

    def numpy(self):
        return self.data.view(numpy.float32).reshape(self.shape)


def checksum(tensors):
    """The sum of all 64-bit words, the last one of a tensor filled up with zeros, as in worker.c."""
    total = 0
    for tensor in tensors.values():
        data = numpy.frombuffer(tensor.memoryview(), numpy.uint8)
        n_whole = len(data) // 8 * 8
        total += int(data[:n_whole].view(numpy.uint64).sum(dtype=numpy.uint64))
        total += int.from_bytes(data[n_whole:].tobytes(), "little")
    return total % 2**64


# --- The program ----------------------------------------------------------------------------------


def report(tensors, vocabulary, sentences, start):
    """Everything about one version, as one line."""
    model = MiniLM(tensors) if vocabulary else None
    attached = time.perf_counter()
    embeddings = [model.embed(encode(vocabulary, sentence)) for sentence in sentences if model]
    total = checksum(tensors)
    computed = time.perf_counter()
    start_of_data = numpy.frombuffer(next(iter(tensors.values())).memoryview(), numpy.uint8)
    line = {
        "program": "Python",
        "pid": os.getpid(),
        "version": tensors.version,
        "embeddings": [embedding.tobytes().hex() for embedding in embeddings],
        "checksum": f"{total:016x}",
        "address": start_of_data.ctypes.data,
        "attach_us": round((attached - start) * 1e6, 1),
        "compute_us": round((computed - attached) * 1e6),
    }
    print(json.dumps(line), flush=True)


def should_stop():
    """At the end of the input."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def versions(options):
    """The weights to compute over, one after the other, each with the time when getting it began."""
    start = time.perf_counter()
    tensors = FileCopy(options.file) if options.file else weightd.attach(options.name)
    yield tensors, start
    while options.follow and not should_stop():
        try:
            tensors.wait(timeout=STOP_CHECK_S)
        except weightd.Timeout:
            continue
        start = time.perf_counter()
        tensors = tensors.refresh() or tensors
        yield tensors, start


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", metavar="VOCAB.TXT")
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--file", metavar="MODEL.SAFETENSORS", help="instead of NAME")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="[NAME] SENTENCE")
    options = parser.parse_args()
    if not options.file:
        if not options.words:
            parser.error("which buffer?")
        options.name = options.words.pop(0)
    return options


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    vocabulary = options.vocab and read_vocabulary(options.vocab)
    for tensors, start in versions(options):
        report(tensors, vocabulary, options.words, start)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, LookupError) as error:  # weightd.Error is an OSError
        sys.exit(f"worker.py: {error}")

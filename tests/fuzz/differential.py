#!/usr/bin/env python3
"""The loader's parsers against the safetensors package and Python's json: tests/fuzz/differential.py [--cases N]

Random mutations of headers and of indexes go to both sides. Either both refuse, or both accept and find the same bytes
under the same names; or weightd is stricter, for one of the reasons in STRICTER, which weightctl(1) has too. A case is
assigned to a reason by a check of its own, so that a refusal without a reason is found. Prints how many cases fell where,
and the first that has no reason; fails then.

It needs a Python with safetensors, as build/torch2/bin/python is, and `make unit`. A million cases take some minutes.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import random
import re
import struct
import sys

import safetensors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from fuzz import headers  # noqa: E402
from fuzz.headers import TABLE, depth_of, image, mutate, tensor  # noqa: E402

BATCH = 20_000
DEPTH_MAX = 128

# Reasons why weightd refuses files that the reference takes, by the names of the checks below.
STRICTER = {
    "duplicate": "a key stands twice, and readers of JSON disagree about which one counts",
    "name": "a tensor's name is empty, longer than 1024 bytes or holds NUL, which no layout can have",
    "dimensions": "a tensor has more than 32 dimensions",
    "sequence": "an entry is an array of its fields, or its dtype an object, which only Rust's serde takes for one",
    "number": "a number is beyond 2^63 - 1, beyond a double or a negative zero: readers of JSON disagree about its value",
    "text": "a string that nothing is read from holds an escape of half a character or, in a key, NUL",
    "depth": "arrays and objects are nested 128 deep or more",
    "constant": "NaN or Infinity stand for a number, which JSON does not have",
    "path": "an index leads out of its folder, or spells a path with ..",
    "empty": "an index maps no tensor",
}


def members(text):
    """The JSON text as lists of pairs in place of objects, of which all survive, and whether a key stands twice."""
    twice = []

    def pairs(found):
        keys = [key for key, _ in found]
        twice.extend([True] * (len(keys) > len(set(keys))))
        return ("object", found)

    # parse_int and parse_float keep the text: -0 and 1e999 are looked for.
    return json.loads(text, object_pairs_hook=pairs, parse_int=Number, parse_float=Number, parse_constant=Constant), bool(twice)


class Number(str):
    """A number as it is written."""


class Constant(str):
    """NaN and the like."""


def walk(value, is_key=False):
    """All that is in it: (value, whether it is a key)."""
    yield value, is_key
    if isinstance(value, tuple):
        for key, inner in value[1]:
            yield key, True
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def is_odd_number(text):
    if re.fullmatch(r"-?\d+", text):
        return text == "-0" or not -2**63 <= int(text) < 2**63
    return abs(float(text)) == float("inf")


def json_reasons(text):
    """Why weightd may refuse JSON that other readers accept."""
    found = set()
    if depth_of(text) >= DEPTH_MAX:
        found.add("depth")
    try:
        top, twice = members(text)
    except (ValueError, RecursionError):
        return found
    if twice:
        found.add("duplicate")
    for value, is_key in walk(top):
        if isinstance(value, Constant):
            found.add("constant")
        elif isinstance(value, Number):
            found.update(["number"] * is_odd_number(value))
        elif isinstance(value, str) and (re.search("[\ud800-\udfff]", value) or (is_key and "\0" in value)):
            found.add("text")
    return found


def fields(top):
    """The name and the description of each tensor of a header."""
    if isinstance(top, tuple):
        yield from ((name, entry) for name, entry in top[1] if name != "__metadata__")


def file_reasons(file):
    text = file[8:8 + int.from_bytes(file[:8], "little")].decode()
    found = json_reasons(text)
    try:
        top, _ = members(text)
    except (ValueError, RecursionError):
        return found
    for name, entry in fields(top):
        if not name or "\0" in name or len(name.encode("utf-8", "surrogatepass")) > 1024:
            found.add("name")
        if isinstance(entry, list):
            found.add("sequence")
        for key, value in entry[1] if isinstance(entry, tuple) else []:
            if key == "dtype" and isinstance(value, tuple):
                found.add("sequence")
            if key == "shape" and isinstance(value, list) and len(value) > 32:
                found.add("dimensions")
    return found


def index_reasons(text):
    found = json_reasons(text.decode())
    weight_map = json.loads(text)["weight_map"]
    if not weight_map:
        found.add("empty")
    if any(os.path.isabs(file) or ".." in file.split("/") for file in weight_map.values()):
        found.add("path")
    return found


# --- Files -------------------------------------------------------------------------------------------

def reference_file(file):
    """Its tensors as {name: (dtype, shape, bytes)}; None: it is refused."""
    try:
        return {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in safetensors.deserialize(file)}
    except safetensors.SafetensorError:
        return None


def weightd_file(file, rule, tensors):
    if rule:
        return None
    start = 8 + int.from_bytes(file[:8], "little")
    return {name: (dtype, shape, file[start + begin:start + end]) for name, dtype, shape, begin, end in tensors}


def grow(rng):
    """A right file: tensors of any type, in any order, with white space and members that are never read."""
    tensors, at = {}, 0
    for _ in range(rng.randrange(7)):
        dtype, bits = rng.choice(list(headers.BITS.items()))
        shape = [rng.choice([0, 1, 1, 2, 3]) for _ in range(rng.randrange(4))] + [4] * (bits % 8 > 0)
        n = math.prod(shape) * bits // 8
        entry = list(tensor(dtype, shape, at, at + n, **rng.choice([{}, {}, {"x": [None, -1.5e3, {}]}])).items())
        tensors[rng.choice(NAMES) + str(at + len(tensors))] = dict(rng.sample(entry, len(entry)))
        at += n
    if rng.random() < .3:
        tensors["__metadata__"] = rng.choice([{}, None, {"format": "pt", "\u20ac": "\n"}])
    order = rng.sample(list(tensors), len(tensors))
    text = json.dumps({name: tensors[name] for name in order}, indent=rng.choice([None, None, 1]),
                      ensure_ascii=rng.random() < .5)
    return image((text + " " * rng.randrange(9)).encode(), rng.randbytes(at))


NAMES = ["layer.0.weight", "w", "\u00e4\u20ac", "\U0001f600", "a\tb", "\"", "__metadata__x"]


def file_cases(rng, n):
    """Files of the table, which break a rule each, and right files; a quarter of those stays so."""
    seeds = [file for _, file in TABLE if len(file) < 2000]

    def one():
        if rng.random() < .4:
            return mutate(rng, rng.choice(seeds))
        file = grow(rng)
        return mutate(rng, file) if rng.random() < .75 else file

    return [one() for _ in range(n)]


def judge_files(tool, files):
    for file, (rule, told) in zip(files, tool.files(files)):
        yield file, reference_file(file), weightd_file(file, rule, told), file_reasons


# --- Indexes -----------------------------------------------------------------------------------------

# Their shards, with a tensor "w" in each, so that the right one has to be found.
SHARDS = {name: reference_file(image({t: tensor("U8", [1], i, i + 1) for i, t in enumerate(tensors)}, byte * len(tensors)))
          for name, tensors, byte in (("a", "uvw", b"a"), ("b.safetensors", "wx", b"b"), ("d/c", "wyz", b"c"))}

INDEXES = [
    b'{"metadata":{"total_size":8},"weight_map":{"u":"a","v":"a","w":"b.safetensors","x":"b.safetensors","y":"d/c"}}',
    b'{"weight_map":{"w":"d/c","u":"./a","z":"d//c"},"metadata":{"n":[1,{"x":null}],"f":1.5e3}}',
    b' {"weight_map" : { "\\u0077" : "d\\/c" } }\n', b'{"weight_map":{"w":"a","w":"b.safetensors"}}',
    b'{"weight_map":{"w":"d/../a"}}', b'{"weight_map":{"v":"a/"}}', b'{"weight_map":{"w":"../x/a"}}', b'{"weight_map":{}}',
    b'{"weight_map":{"q":"a"}}', b'{"metadata":{"x":NaN},"weight_map":{"w":"a"}}',
]


def resolve(pairs):
    """The tensors that the pairs of (tensor, file) lead to; None where there is no such file or tensor."""
    found = {}
    for name, file in pairs:
        shard = SHARDS.get(os.path.normpath(file)) if file[-1:] != "/" else None
        if not shard or name not in shard:
            return None
        found[name] = shard[name]
    return found


def reference_index(text):
    """As transformers reads one."""
    try:
        weight_map = json.loads(text.decode())["weight_map"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        return None
    return resolve(weight_map.items())


def grow_index(rng):
    """A right index: tensors that are there."""
    pairs = [(name, file) for file, shard in SHARDS.items() for name in shard]
    weight_map = {name: rng.choice(["", "", "./"]) + file for name, file in rng.sample(pairs, rng.randrange(1, len(pairs)))}
    text = {"metadata": rng.choice([{}, {"total_size": 8}, None]), "weight_map": weight_map}
    return json.dumps(text, indent=rng.choice([None, 2])).encode()


def index_cases(rng, n):
    def one():
        seed = rng.choice(INDEXES) if rng.random() < .4 else grow_index(rng)
        # mutate() is for files: an index is the header of one.
        file = mutate(rng, struct.pack("<Q", len(seed)) + seed)
        return file[8:8 + int.from_bytes(file[:8], "little")]

    return [one() for _ in range(n)]


def judge_indexes(tool, texts):
    for text, told in zip(texts, tool.indexes(texts)):
        yield text, reference_index(text), None if isinstance(told, str) else resolve(told), index_reasons


# --- Both --------------------------------------------------------------------------------------------

def verdict(case, reference, ours, reasons):
    """The names of the counters. "DIFFERENT" is a fault."""
    if reference == ours:
        return "both refuse" if ours is None else "both accept, same bytes"
    if ours is not None:
        return "DIFFERENT: weightd accepts what the reference refuses, or finds other bytes"
    found = sorted(reasons(case) & STRICTER.keys())
    return f"stricter: {', '.join(found)}" if found else "DIFFERENT: weightd refuses without a reason"


def compare(name, cases, judged, n, counts):
    """True if all n cases agree."""
    fine = True
    for done in range(0, n, BATCH):
        for case, *both in judged(cases(min(BATCH, n - done))):
            result = verdict(case, *both)
            counts[name, result] += 1
            if result.startswith("DIFFERENT") and fine:
                print(f"{name}: {result}: {case!r}\n  reference {both[0]}\n  weightd   {both[1]}")
                fine = False
    return fine


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1_000_000, help="mutations, a fifth of them of indexes (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations (%(default)s)")
    parser.add_argument("--tool", default=headers.ROOT / "build/unit/tool_safetensors", help="the parser's program (%(default)s)")
    args = parser.parse_args()
    rng, counts = random.Random(args.seed), collections.Counter()
    n_indexes = args.cases // 5
    tool = headers.Tool(args.tool)
    fine = [compare("files", lambda n: file_cases(rng, n), lambda c: judge_files(tool, c), args.cases - n_indexes, counts),
            compare("indexes", lambda n: index_cases(rng, n), lambda c: judge_indexes(tool, c), n_indexes, counts)]
    for (name, result), n in sorted(counts.items()):
        print(f"{n:9} {name}: {result}")
    print("Reasons to be stricter:")
    for name, why in STRICTER.items():
        print(f"{name:>10}: {why}")
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())

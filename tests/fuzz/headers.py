"""Files of safetensors, right ones and some that break each rule of the format; mutations of them; and what is to judge them:

judge()  a few pages of Python that follow the rules
Tool     the parser of weightd, in a program of tests/unit

This module is for tests and for differential.py, and needs the standard library alone.
"""
import json
import pathlib
import struct
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

# enum safetensors_refusal
RULES = ["", "TOO_SMALL", "HEADER_TOO_LARGE", "HEADER_LENGTH", "UTF8", "JSON", "METADATA", "ENTRY", "DTYPE",
         "DUPLICATE", "NAME", "LIMIT", "OFFSET", "OVERFLOW", "MISALIGNED", "SIZE", "INCOMPLETE"]

BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
        "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
        "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}

class Refused(Exception):
    """The rule that a file breaks."""


# --- The oracle ------------------------------------------------------------------------------------

def no_duplicates(pairs):
    members = dict(pairs)
    if len(members) < len(pairs):
        raise Refused("DUPLICATE")
    return members


def integer(text):
    if text == "-0":
        raise Refused("JSON")
    if not -2**63 <= int(text) < 2**63:
        raise Refused("OVERFLOW")
    return int(text)


def real(text):
    if abs(float(text)) == float("inf"):
        raise Refused("OVERFLOW")
    return float(text)


def no_constant(text):
    raise Refused("JSON")


def depth_of(text):
    """The depth of brackets outside strings, whatever else is wrong with the text."""
    depth = deepest = 0
    inside = escaped = False
    for c in text:
        if inside:
            inside = escaped or c != '"'
            escaped = not escaped and c == "\\"
        elif c == '"':
            inside = True
        elif c in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif c in "]}":
            depth -= 1
    return deepest


def strings_of(value):
    """All strings in it, keys first, with whether each is a key."""
    if isinstance(value, str):
        yield value, False
    elif isinstance(value, list):
        for v in value:
            yield from strings_of(v)
    elif isinstance(value, dict):
        for k, v in value.items():
            yield k, True
            yield from strings_of(v)


def parse_json(header):
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("UTF8") from None
    if depth_of(text) >= 128:
        raise Refused("JSON")
    try:
        top = json.loads(text, object_pairs_hook=no_duplicates, parse_int=integer, parse_float=real,
                         parse_constant=no_constant)
    except ValueError:
        raise Refused("JSON") from None
    if not isinstance(top, dict):
        raise Refused("JSON")
    for s, _ in strings_of(top):
        if any("\ud800" <= c <= "\udfff" for c in s):
            raise Refused("JSON")
    for s, is_key in strings_of(list(top.values())):
        if is_key and "\0" in s:
            raise Refused("JSON")
    return top


def is_unsigned(value):
    return type(value) is int and value >= 0


def check_entry(name, entry):
    if not name or len(name.encode()) > 1024 or "\0" in name:
        raise Refused("NAME")
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise Refused("ENTRY")
    if entry["dtype"] not in BITS:
        raise Refused("DTYPE")
    shape, offsets = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list):
        raise Refused("ENTRY")
    if len(shape) > 32:
        raise Refused("LIMIT")
    if not all(map(is_unsigned, shape)):
        raise Refused("ENTRY")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_unsigned, offsets)):
        raise Refused("ENTRY")


def check_data(entries, data_size):
    end = 0
    for entry in sorted(entries, key=lambda e: e["data_offsets"]):
        start, stop = entry["data_offsets"]
        if start != end or stop < start:
            raise Refused("OFFSET")
        n = 1
        for factor in [*entry["shape"], BITS[entry["dtype"]]]:
            n *= factor
            if n >= 2**64:
                raise Refused("OVERFLOW")
        if n % 8:
            raise Refused("MISALIGNED")
        if n // 8 != stop - start:
            raise Refused("SIZE")
        end = stop
    if end != data_size:
        raise Refused("INCOMPLETE")


def check(image):
    if len(image) < 8:
        raise Refused("TOO_SMALL")
    n = int.from_bytes(image[:8], "little")
    if n > 100_000_000:
        raise Refused("HEADER_TOO_LARGE")
    if n > len(image) - 8:
        raise Refused("HEADER_LENGTH")
    top = parse_json(image[8:8 + n])
    metadata = top.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and
                                     all(isinstance(v, str) for v in metadata.values())):
        raise Refused("METADATA")
    for name, entry in top.items():
        check_entry(name, entry)
    check_data(top.values(), len(image) - 8 - n)


def judge(image):
    """The rule a file breaks, "" for none."""
    try:
        check(image)
    except Refused as e:
        return str(e)
    return ""


# --- The parser under test -------------------------------------------------------------------------

class Tool:
    """tool_safetensors."""

    def __init__(self, program):
        self.program = program

    def _lines(self, kind, texts):
        """The number for each text, and the words behind it."""
        done = subprocess.run([self.program, kind], input=b"".join(struct.pack("<I", len(t)) + t for t in texts),
                              stdout=subprocess.PIPE, check=True)
        lines = done.stdout.decode().split("\n")
        assert lines.pop() == "" and len(lines) == len(texts)
        return [(int(number), rest) for number, _, rest in (line.partition(" ") for line in lines)]

    def files(self, images):
        """
        The rule that each image of a file breaks, "" for none, and the sentence; or else its tensors, each as
        (name, dtype, shape, begin, end) in the data.
        """
        return [(RULES[number], rest if number else [_tensor(t) for t in rest.split()])
                for number, rest in self._lines("files", images)]

    def indexes(self, texts):
        """The sentence for each text of an index, or else a list of (tensor, file)."""
        return [rest if number else [tuple(_name(part) for part in pair.split(":")) for pair in rest.split()]
                for number, rest in self._lines("indexes", texts)]


def _name(text):
    return bytes.fromhex(text).decode()


def _tensor(text):
    name, dtype, shape, begin, end = text.split(":")
    return _name(name), dtype, [int(n) for n in shape.split(",") if n], int(begin), int(end)


# --- Files -----------------------------------------------------------------------------------------

def image(header, data=b"", n=None):
    if not isinstance(header, bytes):
        header = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(header) if n is None else n) + header + data


def tensor(dtype, shape, start, stop, **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop], **more}


def text(header, data=b""):
    """A header written with ' for "."""
    return image(header.replace("'", '"').encode(), data)


def entry(shape="[1]", offsets="[0,1]", dtype="'U8'", more=""):
    return text("{'a':{'dtype':%s,'shape':%s,'data_offsets':%s%s}}" % (dtype, shape, offsets, more), b"x")


U8 = tensor("U8", [1], 0, 1)
NEST = "{'a':{'dtype':'U8','shape':[0],'data_offsets':[0,0],'x':%s}}"

TABLE = [
    ("", image({})),
    ("", image({"a": tensor("F32", [2, 3], 0, 24)}, bytes(24))),
    ("", image({"a": tensor("F32", [], 0, 4)}, bytes(4))),
    ("", image({"a": tensor("F32", [0, 7], 0, 0), "b": tensor("U8", [0], 0, 0)})),
    ("", image({"b": tensor("U8", [2], 1, 3), "a": U8, "c": tensor("I8", [0], 1, 1)}, bytes(3))),
    ("", image({"__metadata__": {"format": "pt"}, "a": U8}, b"x")),
    ("", image({"__metadata__": None, "a": U8}, b"x")),
    ("", image({"a": tensor("U8", [1], 0, 1, extra=[{"x": None}, -1, 2.5, True])}, b"x")),
    ("", image(b" \n\t\r{}" + b" " * 100)),
    ("", image({"n" * 1024: U8}, b"x")),
    ("", image({"\u20ac\x1b[2J": U8}, b"x")),
    ("", text(NEST % ("[" * 125 + "]" * 125))),
    ("", image({"a": tensor("U8", [1] * 32, 0, 1)}, b"x")),
    ("", entry("[0,4611686018427387904,4]", "[0,0]")[:-1]),
    ("TOO_SMALL", b""),
    ("TOO_SMALL", b"\2\0\0\0\0\0\0"),
    ("HEADER_TOO_LARGE", image(b"{}", n=100_000_001)),
    ("HEADER_TOO_LARGE", image(b"{}", n=2**64 - 1)),
    ("HEADER_TOO_LARGE", b"version https://git-lfs.github.com/spec/v1\n"),
    ("HEADER_LENGTH", image(b"{}", n=3)),
    ("HEADER_LENGTH", image(b"{}", n=100_000_000)),
    ("UTF8", image(b'{"\xff":{}}')),
    ("UTF8", image(b'{"\xed\xa0\x80":{}}')),
    ("JSON", image(b"")),
    ("JSON", image(b"[]")),
    ("JSON", image(b"null")),
    ("JSON", image(b"{} x")),
    ("JSON", image(b"{}\0")),
    ("JSON", image(b"\xef\xbb\xbf{}")),
    ("JSON", image(b'{"a"}')),
    ("JSON", text("{'__metadata__':{},}")),
    ("JSON", text("{'\\ud800':{}}")),
    ("JSON", text("{'\t':{}}")),
    ("JSON", entry("[01]")),
    ("JSON", entry("[NaN]")),
    ("JSON", entry("[-0]")),
    ("JSON", entry("[1\0]")),
    ("JSON", entry(more=",'x':1\0")),
    ("JSON", text("{'a':1\0}")),
    ("JSON", text(NEST % ("[" * 126 + "]" * 126))),
    ("JSON", text(NEST % ("[" * 5000 + "]" * 5000))),
    ("METADATA", text("{'__metadata__':{'a':1}}")),
    ("METADATA", text("{'__metadata__':{'a':null}}")),
    ("METADATA", text("{'__metadata__':[]}")),
    ("ENTRY", text("{'a':null}")),
    ("ENTRY", text("{'a':['U8',[1],[0,1]]}", b"x")),
    ("ENTRY", text("{'a':{'shape':[1],'data_offsets':[0,1]}}", b"x")),
    ("ENTRY", entry("1")),
    ("ENTRY", entry("[-1]")),
    ("ENTRY", entry("[1.0]")),
    ("ENTRY", entry("[1e0]")),
    ("ENTRY", entry("[true]")),
    ("ENTRY", entry(offsets="[0]")),
    ("ENTRY", entry(offsets="[0,1,1]")),
    ("ENTRY", entry(offsets="[0,'1']")),
    ("ENTRY", entry(dtype="8")),
    ("DTYPE", entry(dtype="'C128'")),
    ("DTYPE", entry(dtype="'u8'")),
    ("DTYPE", entry(dtype="'U8\\u0000'")),
    ("DUPLICATE", text("{'a':%s,'a':%s}" % (2 * (json.dumps(U8).replace('"', "'"),)), b"x")),
    ("DUPLICATE", text("{'a':%s,'\\u0061':%s}" % (2 * (json.dumps(U8).replace('"', "'"),)), b"x")),
    ("DUPLICATE", entry(more=",'dtype':'U8'")),
    ("DUPLICATE", text("{'__metadata__':{},'\\u005f_metadata__':{}}")),
    ("NAME", image({"": U8}, b"x")),
    ("NAME", image({"n" * 1025: U8}, b"x")),
    ("NAME", image({"a\0b": U8}, b"x")),
    ("LIMIT", image({"a": tensor("U8", [1] * 33, 0, 1)}, b"x")),
    ("OFFSET", image({"a": tensor("U8", [1], 1, 2)}, b"xy")),
    ("OFFSET", image({"a": U8, "b": tensor("U8", [1], 2, 3)}, b"xyz")),
    ("OFFSET", image({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)}, b"xyz")),
    ("OFFSET", image({"a": U8, "b": U8}, b"x")),
    ("OFFSET", image({"a": tensor("U8", [0], 1, 0)}, b"x")),
    ("OVERFLOW", entry("[9223372036854775808,4,0]", "[0,0]")[:-1]),
    ("OVERFLOW", entry("[4611686018427387904,4,0]", "[0,0]")[:-1]),
    ("OVERFLOW", entry("[2305843009213693952]", "[0,0]")[:-1]),
    ("OVERFLOW", entry(offsets="[0,18446744073709551617]")),
    ("MISALIGNED", entry("[3]", dtype="'F4'")),
    ("MISALIGNED", entry("[5]", dtype="'F6_E2M3'")),
    ("MISALIGNED", entry("[]", dtype="'F4'")),
    ("SIZE", entry("[2]")),
    ("SIZE", entry("[]", dtype="'F32'")),
    ("INCOMPLETE", image({"a": U8})),
    ("INCOMPLETE", image({"a": U8}, b"xy")),
    ("INCOMPLETE", image({}, b"x")),
    *[("", image({"a": tensor(d, [8], 0, b)}, bytes(b))) for d, b in BITS.items()],
    *[("SIZE", image({"a": tensor(d, [8], 0, b + 1)}, bytes(b + 1))) for d, b in BITS.items()],
]


# --- Mutations -------------------------------------------------------------------------------------

SNIPPETS = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\n", b"\0", b"-", b"0", b"1", b"9", b".",
            b"e", b"\xff", b"\xc3\xa4", b"\\u0000", b"\\ud83d", b"\\u0061", b"null", b"true", b"-0", b"-0.0",
            b"1e5", b"1e999", b"18446744073709551615", b"9223372036854775807", b'"a"', b'"dtype"', b'"shape"',
            b'"data_offsets"', b'"__metadata__"', b'"U8"', b'"F4"', b'"F32"', b"[0,1]", b"[1]", b"[]", b"{}"]


def mutate(random, file):
    """A few random edits; the length in front usually follows them, so that the header is still found."""
    n = min(int.from_bytes(file[:8], "little"), max(len(file) - 8, 0))
    header, data = bytearray(file[8:8 + n]), bytearray(file[8 + n:])
    for _ in range(random.choice([1, 1, 1, 2, 3, 8])):
        at = random.randrange(len(header) + 1)
        stop = min(len(header), at + random.choice([0, 0, 1, 1, 2, 5, 30]))
        kind = random.randrange(8)
        if kind == 0:
            del header[at:stop]
        elif kind == 1:
            header[at:stop] = header[at:stop] * 2
        elif kind == 2:
            del data[random.randrange(len(data) + 1):]
        elif kind == 3:
            data += b"x"
        elif kind == 4 and header:
            header[at - 1] = random.randrange(256)
        elif kind == 5 and header:
            digits = [i for i, c in enumerate(header) if c in b"0123456789"]
            if digits:
                header[random.choice(digits)] = random.choice(b"0123456789")
        else:
            header[at:stop] = random.choice(SNIPPETS)
    length = len(header) if random.randrange(20) else random.randrange(2 * len(header) + 2)
    return struct.pack("<Q", length) + bytes(header) + bytes(data)

"""
A writer of small GGUF files.

    gguf.write(path, {"w": ("Q4_K", [2, 256], data)}, {"general.alignment": ("u32", 64)})

Shapes are outermost first, as weightd and numpy have them; the file has them the other way round.
"""
import struct

# ggml's numbers, and elements and bytes of a block.
TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q8_1": (9, 32, 40), "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "Q8_K": (15, 256, 292),
    "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ3_XXS": (18, 256, 98), "IQ1_S": (19, 256, 50),
    "IQ4_NL": (20, 32, 18), "IQ3_S": (21, 256, 110), "IQ2_S": (22, 256, 82), "IQ4_XS": (23, 256, 136),
    "I8": (24, 1, 1), "I16": (25, 1, 2), "I32": (26, 1, 4), "I64": (27, 1, 8), "F64": (28, 1, 8),
    "IQ1_M": (29, 256, 56), "BF16": (30, 1, 2), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66),
    "MXFP4": (39, 32, 17), "NVFP4": (40, 64, 36), "Q1_0": (41, 128, 18),
}
VALUES = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"),
          "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}
STRING, ARRAY = 8, 9
ALIGNMENT = 32


def size_of(dtype, shape):
    """Bytes of a tensor."""
    _, elements, size = TYPES[dtype]
    n = 1
    for dim in shape:
        n *= dim
    return n // elements * size


def text(s):
    data = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(data)) + data


def value(kind, what, *, with_type=True):
    """("u32", 7), ("text", "llama"), or ("u32 array", [7, 8])."""
    inner, is_array = kind.removesuffix(" array"), kind.endswith(" array")
    number = STRING if inner == "text" else VALUES[inner][0]
    if is_array:
        head = struct.pack("<IIQ", ARRAY, number, len(what))
        return head + b"".join(value(inner, item, with_type=False) for item in what)
    head = struct.pack("<I", number) if with_type else b""
    return head + (text(what) if inner == "text" else struct.pack(VALUES[inner][1], what))


def padded(data, alignment):
    return data + bytes(-len(data) % alignment)


def pack(tensors, metadata=None, *, version=3, pads_end=True):
    """The bytes of a file. tensors: {name: (dtype, shape, data)}; metadata: {key: (kind, value)}, see value()."""
    metadata = {"general.architecture": ("text", "llama")} | (metadata or {})
    alignment = metadata.get("general.alignment", (None, ALIGNMENT))[1]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(*what) for key, what in metadata.items())
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        assert len(data) == size_of(dtype, shape), name
        body = padded(body, alignment)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), TYPES[dtype][0], len(body))
        body += data
    return padded(head, alignment) + (padded(body, alignment) if pads_end else body)


def write(path, tensors, metadata=None, **options):
    """Writes the file and returns the offset of its data."""
    data = pack(tensors, metadata, **options)
    path.write_bytes(data)
    return len(data) - len(pack_data(tensors, metadata, **options))


def pack_data(tensors, metadata=None, *, pads_end=True, version=3):
    """The bytes behind the header."""
    alignment = (metadata or {}).get("general.alignment", (None, ALIGNMENT))[1]
    body = b""
    for _, _, data in tensors.values():
        body = padded(body, alignment) + data
    return padded(body, alignment) if pads_end else body

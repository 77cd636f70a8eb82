"""A writer of small safetensors files."""
import json
import struct


def pack(tensors, metadata=None, *, order=None, blanks=0):
    """
    The bytes of a file. tensors: {name: (dtype, shape, bytes)} in the order of their bytes; `order`: names in the order
    of the header; `blanks` stand at the header's end.
    """
    entries, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    header = {"__metadata__": metadata} if metadata else {}
    text = json.dumps(header | {name: entries[name] for name in order or entries}).encode() + b" " * blanks
    return struct.pack("<Q", len(text)) + text + body


def unpack(raw):
    """The header and {name: (dtype, shape, bytes)} of the bytes of a file, in the order of their bytes."""
    n, = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + n])
    tensors = {name: (entry["dtype"], entry["shape"], raw[8 + n + entry["data_offsets"][0]:8 + n + entry["data_offsets"][1]])
               for name, entry in header.items() if name != "__metadata__"}
    return header, dict(sorted(tensors.items(), key=lambda item: header[item[0]]["data_offsets"]))

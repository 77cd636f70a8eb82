"""
Reads and writes files by the safetensors package, in a Python that has it, and without torch.

    safetensors_package.py write DATA    {path: [[[name, dtype, shape, begin, size], ...], metadata]} on standard input
    safetensors_package.py read          [path, ...] on standard input; prints {path: {name: [dtype, shape, SHA-256]}}
"""
import ctypes
import hashlib
import json
import sys

import safetensors


def write(files, data):
    kept = ctypes.create_string_buffer(data, len(data))
    for path, (rows, metadata) in files.items():
        specs = {name: safetensors.TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(kept) + begin, data_len=size)
                 for name, dtype, shape, begin, size in rows}
        safetensors.serialize_file(specs, path, metadata)


def read(path):
    with open(path, "rb") as f:
        return {name: [t["dtype"], t["shape"], hashlib.sha256(t["data"]).hexdigest()] for name, t in safetensors.deserialize(f.read())}


if sys.argv[1] == "write":
    with open(sys.argv[2], "rb") as f:
        write(json.load(sys.stdin), f.read())
else:
    print(json.dumps({path: read(path) for path in json.load(sys.stdin)}))

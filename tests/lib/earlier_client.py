"""Runs in the process of earlier.Client: a request a line, as [what, arguments...], and an answer a line."""
import hashlib
import json
import sys

import weightd

held = {}


def attach(name):
    """The version that "m" or "m@2" means."""
    held[name] = weightd.attach(name)
    return held[name].version


def swap(name):
    """The version that it has then."""
    held[name].swap()
    return held[name].version


def wait(name, newer_than):
    return held[name].wait(newer_than)


def read(name):
    """SHA-256 of all bytes that it has mapped."""
    return hashlib.sha256(held[name].read()).hexdigest()


def verify(name):
    held[name].verify()


def publish(name, seed, keep):
    """The same tensors each time; the bytes are those of scene.py of the test."""
    layout = weightd.Layout()
    for tensor, shape in (("b", (3,)), ("a", (64, 100)), ("c", ())):
        layout.add(tensor, "F32", shape)
    with weightd.create(name, layout, keep=keep) as writer:
        for tensor in writer:
            view = writer[tensor].memoryview().cast("B")
            view[:] = bytes([seed]) * len(view)
        return writer.publish()


for line in sys.stdin:
    what, *args = json.loads(line)
    try:
        answer = {"result": globals()[what](*args)}
    except weightd.Error as e:
        answer = {"error": str(e)}
    print(json.dumps(answer), flush=True)

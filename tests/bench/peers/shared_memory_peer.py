"""shared_memory_peer.py BYTES COUNT...: multiprocessing.shared_memory

It shares bytes by name and has no tensors, so a table of names travels beside them, pickled.
"""
import contextlib
import multiprocessing
import os
import pickle
import sys
from multiprocessing.shared_memory import SharedMemory

import numpy

import rounds

NAME = f"weightd-bench-{os.getpid()}"


def hold(n_bytes, counts, pipe):
    """The producer: makes the segments, keeps them until the pipe ends, removes them."""
    tables = {count: pickle.dumps(rounds.table(n_bytes, count)) for count in counts}
    with contextlib.ExitStack() as stack:
        segments = {NAME: n_bytes} | {f"{NAME}-{count}": len(t) for count, t in tables.items()}
        for name, size in segments.items():
            segment = SharedMemory(name, create=True, size=size)
            stack.callback(segment.unlink)
            stack.callback(segment.close)
            count = name.removeprefix(f"{NAME}-")
            if name == NAME:
                numpy.ndarray(n_bytes, numpy.uint8, segment.buf).fill(rounds.MARK)
            else:
                segment.buf[:size] = tables[int(count)]
        pipe.send("ready")
        with contextlib.suppress(EOFError):
            pipe.recv()


def view(memory, entry):
    offset, shape = entry
    return numpy.ndarray(shape, numpy.uint8, memory.buf, offset)


def release(kept):
    memory = kept.pop()
    kept.clear()  # the views, which must be freed before
    memory.close()


def measure(count):
    last = list(rounds.table(1 << 30, count))[-1]

    def load():
        names = SharedMemory(f"{NAME}-{count}")
        table = pickle.loads(names.buf)
        names.close()
        return SharedMemory(NAME), table

    def attach():
        memory, table = load()
        tensor = view(memory, table[last])
        return [tensor, table, memory], tensor[0, 0]

    def attach_views():
        memory, table = load()
        tensors = {name: view(memory, entry) for name, entry in table.items()}
        return [tensors, memory], tensors[last][0, 0]

    rounds.measure("shared_memory", count, attach, release)
    rounds.measure("shared_memory-views", count, attach_views, release)


def main(n_bytes, *counts):
    counts = [int(count) for count in counts]
    ours, theirs = multiprocessing.Pipe()
    producer = multiprocessing.Process(target=hold, args=(int(n_bytes), counts, theirs))
    producer.start()
    try:
        ours.recv()
        for count in counts:
            measure(count)
    finally:
        ours.send("end")
        producer.join()


if __name__ == "__main__":
    main(*sys.argv[1:])

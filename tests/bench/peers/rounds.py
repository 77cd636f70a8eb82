"""The shared part of the peers' scripts: rounds in a consumer, tables of names, and the lines they print.

A script gets its own arguments and then the numbers of tensors. It is the consumer itself, and starts
the holder of the memory.
"""
import json
import time

ROUNDS_MAX, ROUNDS_MIN, SECONDS = 300, 5, 2
MARK = 7  # the first byte of every tensor


def table(n_bytes, count):
    """name -> (offset, shape), as bench_attach.py cuts a buffer into tensors."""
    each = n_bytes // count // 256
    return {f"model.layers.{i // 9}.block.{i % 9}.weight": (i * each * 256, (each, 256))
            for i in range(count)}


def measure(name, count, attach, release, **more):
    """
    attach() gets at everything and returns something to keep and the byte it loaded; release(kept) is
    not timed. For some seconds, a few rounds at least.
    """
    samples, started = [], time.monotonic()
    while len(samples) < ROUNDS_MIN or (len(samples) < ROUNDS_MAX and
                                        time.monotonic() - started < SECONDS):
        before = time.perf_counter_ns()
        kept, byte = attach()
        samples.append(time.perf_counter_ns() - before)
        release(kept)
        del kept
        assert byte == MARK, f"{name}: loaded {byte}"
    print(json.dumps({"name": name, "tensors": count, "samples_ns": samples} | more), flush=True)


def skip(name, count, reason):
    print(json.dumps({"name": name, "tensors": count, "skipped": reason}), flush=True)

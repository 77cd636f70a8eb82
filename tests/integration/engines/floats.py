"""Elements of the types that have a mean, as bytes; `np` is numpy, which a test may have to do without."""


def encode(np, dtype, values):
    """fp32 as bytes of a type, rounded to nearest, ties to even."""
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def decode(np, dtype, data):
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32)


def draw(np, rank, n):
    return (np.random.default_rng(rank).standard_normal(n) * 0.02).astype(np.float32)

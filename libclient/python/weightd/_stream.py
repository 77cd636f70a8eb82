"""Streams of CUDA, as libraries of Python have them."""
from __future__ import annotations

from typing import Any

ALL = 2**64 - 1  # WEIGHTD_ALL_STREAMS: every stream of this process on that GPU


def handle(stream: Any) -> int:
    """
    The cudaStream_t of torch.cuda.Stream, of cupy's, of any object with __cuda_stream__(), or an int that is one
    (0: the default stream). None: all streams of this process on that GPU. TypeError.
    """
    if stream is None:
        return ALL
    if isinstance(stream, int) and not isinstance(stream, bool):
        if not 0 <= stream < 2**64:
            raise ValueError(f"{stream} is no address of a stream")
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return stream.__cuda_stream__()[1]
    for attribute in ("cuda_stream", "ptr"):  # torch's, cupy's
        if hasattr(stream, attribute):
            return getattr(stream, attribute)
    raise TypeError(f"{stream!r} is no stream: torch.cuda.Stream, cupy.cuda.Stream or a cudaStream_t as int")

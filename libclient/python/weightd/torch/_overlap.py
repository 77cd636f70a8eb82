"""Tensors that share a part of their memory, which no layout can express."""
from __future__ import annotations

import torch

from ._kinds import is_plain
from ._places import Contents, Member, start_of


def refuse_overlaps(contents: Contents) -> None:
    """ValueError, also of a tensor that no state_dict has: it would go on showing the old memory."""
    members = [held.members[0] for held in (*contents.held, *contents.others)]
    spans = sorted((_span(member) for member in members if _has_memory(member.tensor)), key=lambda span: span[:2])
    for i, (memory, start, end, member) in enumerate(spans):
        for other_memory, other_start, other_end, other in spans[i + 1:]:
            if other_memory != memory or other_start >= end:
                break
            if _overlap(member.tensor, other.tensor, other_start - start, max(end, other_end) - start):
                raise ValueError(f"{member.where} and {other.where} share a part of their memory, which would part "
                                 "here; give one of them memory of its own (clone())")


def _has_memory(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor.numel() > 0


def _span(member: Member) -> tuple[str, int, int, Member]:
    tensor = member.tensor
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
    memory, start = start_of(tensor)
    return str(memory), start, start + (last + 1) * tensor.element_size(), member


def _overlap(one: torch.Tensor, other: torch.Tensor, distance: int, size: int) -> bool:
    """True when they share a byte; `other` begins `distance` bytes behind `one`. Takes `size` bytes of memory."""
    bytes_of_both = torch.zeros(size, dtype=torch.bool)
    _mark(bytes_of_both, one, 0).fill_(True)
    return bool(_mark(bytes_of_both, other, distance).any())


def _mark(marks: torch.Tensor, tensor: torch.Tensor, start: int) -> torch.Tensor:
    """The marks of the bytes of a tensor, each once."""
    size = tensor.element_size()
    shape = [n if stride else 1 for n, stride in zip(tensor.shape, tensor.stride())]
    return marks.as_strided((*shape, size), (*(stride * size for stride in tensor.stride()), 1), start)

"""Kinds of tensors: which ones weightd can lay out, read and replace."""
from __future__ import annotations

import torch

from .. import _dtype

_NAMES = {getattr(torch, theirs): ours for ours, theirs in _dtype.TORCH.items()
          if hasattr(torch, theirs)}


def is_lazy(tensor: torch.Tensor) -> bool:
    """No shape yet."""
    return torch.nn.parameter.is_lazy(tensor)


def is_plain(tensor: torch.Tensor) -> bool:
    """True for elements in a memory of their own, at strides. Subclasses without these dispatch for themselves."""
    return (type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ and not is_lazy(tensor)
            and tensor.layout == torch.strided and not tensor.is_nested)


def describe(name: str, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Type and shape as a layout has them; those of a whole DTensor. ValueError."""
    if not is_plain(tensor):
        _refuse_unknown(name, tensor)
    if tensor.dtype not in _NAMES:
        raise ValueError(f"{name}: weightd has no {tensor.dtype}; convert it first (x.to(...), x.dequantize())")
    dtype, shape = _NAMES[tensor.dtype], tuple(tensor.shape)
    return dtype, _dtype.unpacked(shape, dtype)


def describe_plain(name: str, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """describe(), of a tensor that is all there, or on the meta device. ValueError."""
    described = describe(name, tensor)
    if is_plain(tensor):
        return described
    if _is_sharded(tensor):
        raise ValueError(f"{name}: a DTensor, of which this process has a part; pass its full_tensor(), a "
                         "collective, or bind() and flat() the module before it is sharded (fully_shard)")
    raise ValueError(f"{name}: a FakeTensor has no values; build the module on the meta device instead")


def describe_values(name: str, tensor: object) -> tuple[str, tuple[int, ...]]:
    """describe_plain(), of a tensor that has values. TypeError, ValueError."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: {type(tensor).__module__}.{type(tensor).__qualname__} is not a torch.Tensor; "
                        "torch.as_tensor() makes one")
    described = describe_plain(name, tensor)
    if tensor.is_meta:
        raise ValueError(f"{name}: on the meta device it has no values; load it first")
    return described


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor, wherever this torch has its class


def _is_fake(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "fake_mode")


def _refuse_unknown(name: str, tensor: torch.Tensor) -> None:
    """ValueError for a tensor that is not plain: its shape and type do not describe its values."""
    if is_lazy(tensor):
        raise ValueError(f"{name}: an uninitialized parameter has no shape; call the module once first")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name}: weightd has no tensors in layout {tensor.layout}; pass x.to_dense()")
    if not _is_sharded(tensor) and not _is_fake(tensor):
        parts = ""
        if hasattr(tensor, "__tensor_flatten__"):
            parts = f", or its parts ({', '.join(tensor.__tensor_flatten__()[0])})"
        kind = "nested tensor" if tensor.is_nested else type(tensor).__qualname__
        raise ValueError(f"{name}: a {kind} is not one plain memory; pass x.dequantize() or another plain "
                         f"form{parts}")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compares tensors of one type and shape: NaN equals itself, -0 differs from 0."""
    return torch.equal(_bits(one), _bits(other.to(one.device)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().resolve_conj().resolve_neg().view(whole[tensor.element_size()])

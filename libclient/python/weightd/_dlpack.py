"""
DLPack capsules of tensors.

A capsule's destructor and its tensor's deleter may run while an exception is pending, which only C
code can do safely. So numpy, or else torch, makes the capsule, of an array on the host. This module adds the
element type, if numpy has only the bit pattern, and the GPU, if neither of them supports it. Neither reads the
bytes meanwhile.
"""
from __future__ import annotations

import functools
import sys
from ctypes import (PYFUNCTYPE, Structure, c_char_p, c_int, c_int32, c_uint8, c_uint16, c_uint32,
                    c_uint64, c_void_p, py_object, pythonapi)
from typing import TYPE_CHECKING, NamedTuple

from . import _dtype

if TYPE_CHECKING:
    from torch import dtype as TorchType

    from ._memory import Memory
    from ._tensor import Tensor

CPU = (1, 0)  # kDLCPU, device 0
CUDA = 2  # kDLCUDA
JAX = 0, 10  # knows FLOAT8


class Element(NamedTuple):
    """DLDataType."""

    code: int
    bits: int
    lanes: int = 1


ALWAYS = {"BOOL": Element(6, 8), "BF16": Element(4, 16)}  # kDLBool, kDLBfloat
FLOAT8 = {"F8_E4M3": Element(10, 8), "F8_E4M3FNUZ": Element(11, 8), "F8_E5M2": Element(12, 8),
          "F8_E5M2FNUZ": Element(13, 8), "F8_E8M0": Element(14, 8)}  # since DLPack 1.1


class DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", c_void_p),
                ("strides", c_void_p), ("byte_offset", c_uint64)]


class DLManagedTensorVersioned(Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager_ctx", c_void_p),
                ("deleter", c_void_p), ("flags", c_uint64), ("dl_tensor", DLTensor)]


_pointer = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi))
_is_valid = PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_IsValid", pythonapi))


def dl_tensor(capsule: object) -> DLTensor:
    """The DLTensor in an unconsumed capsule, of either protocol."""
    found = _versioned(capsule)
    return found.dl_tensor if found else DLTensor.from_address(_pointer(capsule, b"dltensor"))


def _versioned(capsule: object) -> DLManagedTensorVersioned | None:
    name = b"dltensor_versioned"
    return DLManagedTensorVersioned.from_address(_pointer(capsule, name)) if _is_valid(capsule, name) else None


def device(memory: Memory) -> tuple[int, int]:
    return CPU if memory.location.device is None else (CUDA, memory.location.device)


def element(dtype: str, max_version: tuple[int, int] | None, caller: str) -> Element | None:
    """
    The type in a capsule for that consumer; None: the integer that holds its bits. A consumer cannot declare
    that it supports the types of DLPack 1.1: torch requests 1.0 and jax no version, and both support them; numpy
    requests 1.0 and does not. So the calling module counts too.
    """
    library = caller.partition(".")[0]
    if library == "torch" and (dtype in FLOAT8 or dtype == "F4"):
        return _by_name_of_torch(dtype)
    if (max_version or (0, 0)) >= (1, 1) or (library == "jax" and sys.modules["jax"].__version_info__ >= JAX):
        return ALWAYS.get(dtype) or FLOAT8.get(dtype)
    return ALWAYS.get(dtype)


@functools.lru_cache(maxsize=None)
def _by_name_of_torch(dtype: str) -> Element | None:
    """The type as this torch has it in a capsule of its own."""
    import torch.utils.dlpack
    kind = getattr(torch, _dtype.TORCH[dtype], None)
    if kind is None:
        return None
    try:
        made = torch.utils.dlpack.to_dlpack(torch.empty(1, dtype=kind))
    except (BufferError, RuntimeError):
        return None
    found = dl_tensor(made)
    return Element(found.code, found.bits, found.lanes)


class Bytes:
    """The bytes of a tensor as a flat tensor of U8, for torch: its DLPack lacks some types."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return device(self._tensor._memory)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None) -> object:
        import torch.utils.dlpack
        made = torch.utils.dlpack.to_dlpack(self._tensor._torch_bytes())
        return _put_device(made, self.__dlpack_device__())


def _put_device(made: object, where: tuple[int, int]) -> object:
    found = dl_tensor(made)
    found.device_type, found.device_id = where
    return made


def capsule(tensor: Tensor, kind: Element | None, versioned: bool, copy: bool) -> object:
    """
    A capsule that keeps the memory mapped, of elements of that `kind`. `versioned` selects the protocol with a
    READ_ONLY flag, which numpy has from 2.1 on; the old one has no such flag. BufferError.
    """
    where = device(tensor._memory)
    if copy and where != CPU:
        return _put_kind(_copy_on_gpu(tensor), kind)
    try:
        made = _by_numpy(tensor, versioned, copy)
    except ImportError:
        made = _by_torch(tensor, copy)
    return _put_device(_put_kind(made, kind), where)


def _put_kind(made: object, kind: Element | None) -> object:
    if kind:
        found = dl_tensor(made)
        found.code, found.bits, found.lanes = kind
        outer = _versioned(made)
        if outer and kind not in ALWAYS.values():
            outer.minor = max(outer.minor, 1)
    return made


def _by_numpy(tensor: Tensor, versioned: bool, copy: bool) -> object:
    kind = f"<u{tensor.itemsize}" if tensor.dtype in ALWAYS else None
    if versioned:
        array = tensor._array(kind)
        try:
            return (array.copy() if copy else array).__dlpack__(max_version=(1, 0))
        except TypeError:
            pass  # numpy before 2.1
    array = tensor._array(kind, writable=True)
    return (array.copy() if copy else array).__dlpack__()


def _by_torch(tensor: Tensor, copy: bool) -> object:
    try:
        import torch.utils.dlpack
    except ImportError:
        raise BufferError("DLPack needs numpy or torch") from None
    view = tensor._torch_view(_plain(tensor))
    return torch.utils.dlpack.to_dlpack(view.clone() if copy else view)


def _copy_on_gpu(tensor: Tensor) -> object:
    try:
        import torch.utils.dlpack
    except ImportError:
        raise BufferError("a copy on a GPU needs torch") from None
    return torch.utils.dlpack.to_dlpack(tensor._torch_of(_plain(tensor)).clone())


def _plain(tensor: Tensor) -> TorchType:
    """The torch type of the capsule, before it is viewed as its own type."""
    import torch
    return torch.uint8 if _dtype.NUMPY[tensor.dtype] == "u1" else tensor._torch_type()

"""
DLPack capsules of tensors.

A capsule's destructor and its tensor's deleter may run while an exception is pending, which only C
code can do safely. So numpy, or else torch, makes the capsule; what is added here is the element type,
where numpy knows only the bit pattern.
"""
from __future__ import annotations

from ctypes import (PYFUNCTYPE, Structure, c_char_p, c_int, c_int32, c_uint8, c_uint16, c_uint32,
                    c_uint64, c_void_p, py_object, pythonapi)
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._tensor import Tensor

CPU = (1, 0)  # kDLCPU, device 0
CODES = {"BOOL": 6, "BF16": 4}  # kDLBool, kDLBfloat; other bit patterns travel as unsigned integers


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
    """The DLTensor in a capsule that nobody has consumed, of either protocol."""
    versioned = b"dltensor_versioned"
    if _is_valid(capsule, versioned):
        return DLManagedTensorVersioned.from_address(_pointer(capsule, versioned)).dl_tensor
    return DLTensor.from_address(_pointer(capsule, b"dltensor"))


def capsule(tensor: Tensor, versioned: bool, copy: bool) -> object:
    """
    A capsule that keeps the memory mapped. `versioned` asks for the protocol that can say READ_ONLY,
    which numpy has from 2.1 on; the old one cannot say it. BufferError.
    """
    try:
        made = _by_numpy(tensor, versioned, copy)
    except ImportError:
        return _by_torch(tensor, copy)
    if tensor.dtype in CODES:
        dl_tensor(made).code = CODES[tensor.dtype]
    return made


def _by_numpy(tensor: Tensor, versioned: bool, copy: bool) -> object:
    kind = f"<u{tensor.itemsize}" if tensor.dtype in CODES else None
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
    view = tensor.torch()
    return torch.utils.dlpack.to_dlpack(view.clone() if copy else view)

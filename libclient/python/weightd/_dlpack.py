"""
DLPack capsules of tensors.

A capsule's destructor and its tensor's deleter may run while an exception is pending, which only C
code can do safely. So numpy, or else torch, makes the capsule, of an array on the host; what is added here
is the element type, where numpy knows only the bit pattern, and the GPU, of which both may know nothing.
Neither looks into the bytes meanwhile.
"""
from __future__ import annotations

from ctypes import (PYFUNCTYPE, Structure, c_char_p, c_int, c_int32, c_uint8, c_uint16, c_uint32,
                    c_uint64, c_void_p, py_object, pythonapi)
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._memory import Memory
    from ._tensor import Tensor

CPU = (1, 0)  # kDLCPU, device 0
CUDA = 2  # kDLCUDA
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


def device(memory: Memory) -> tuple[int, int]:
    return CPU if memory.location.device is None else (CUDA, memory.location.device)


class Bytes:
    """The bytes of a tensor as a flat tensor of U8, for torch, whose DLPack does not know all types."""

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


def capsule(tensor: Tensor, versioned: bool, copy: bool) -> object:
    """
    A capsule that keeps the memory mapped. `versioned` asks for the protocol that can say READ_ONLY,
    which numpy has from 2.1 on; the old one cannot say it. BufferError.
    """
    where = device(tensor._memory)
    if copy and where != CPU:
        return _copy_on_gpu(tensor)
    try:
        made = _by_numpy(tensor, versioned, copy)
    except ImportError:
        return _put_device(_by_torch(tensor, copy), where)
    if tensor.dtype in CODES:
        dl_tensor(made).code = CODES[tensor.dtype]
    return _put_device(made, where)


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
    view = tensor._torch_view()
    return torch.utils.dlpack.to_dlpack(view.clone() if copy else view)


def _copy_on_gpu(tensor: Tensor) -> object:
    try:
        import torch.utils.dlpack
    except ImportError:
        raise BufferError("a copy on a GPU needs torch") from None
    return torch.utils.dlpack.to_dlpack(tensor.torch().clone())

"""Element types: those of libweightd, and what numpy and torch call them."""
from __future__ import annotations

import functools
import math
from ctypes import byref, c_uint32

from ._abi import lib, text

# numpy has no type for those in BITS: there it is the unsigned integer that holds their bit pattern,
# and bytes for elements which are not a whole number of them.
NUMPY = {
    "BOOL": "?", "F4": "u1", "F6_E2M3": "u1", "F6_E3M2": "u1", "U8": "u1", "I8": "i1",
    "F8_E5M2": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
    "I16": "<i2", "U16": "<u2", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}
# Block-quantised types of GGUF, in numpy bytes as well, as in the package gguf.
BLOCKS = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL "
    "IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0"
).split()
NUMPY.update(dict.fromkeys(BLOCKS, "u1"))
BITS = frozenset(name for name in NUMPY if name in ("BF16", *BLOCKS) or name.startswith(("F4", "F6_", "F8_")))

# Attributes of the module torch; which of them exist depends on its version.
TORCH = {
    "BOOL": "bool", "F4": "float4_e2m1fn_x2", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16", "F16": "float16",
    "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64",
    "F64": "float64", "I64": "int64", "U64": "uint64",
}


def code(name: str) -> int:
    """The code of "BF16". ValueError."""
    found = lib.weightd_dtype_parse(text(name))
    if found < 0:
        raise ValueError(f"no dtype {name!r}; there are {', '.join(NUMPY)}")
    return found


@functools.lru_cache(maxsize=None)
def name(code: int) -> str:
    return lib.weightd_dtype_name(code).decode()


@functools.lru_cache(maxsize=None)
def block(name: str) -> tuple[int, int]:
    """The fewest elements that fill whole bytes, and these bytes: (1, 4) for F32, (2, 1) for F4, (256, 144) for Q4_K."""
    elements, size = c_uint32(), c_uint32()
    lib.weightd_dtype_block(code(name), byref(elements), byref(size))
    return elements.value, size.value


def typestr(name: str) -> str:
    """The numpy type, as numpy.dtype.str has it."""
    kind = NUMPY[name]
    return "|b1" if kind == "?" else kind if kind[0] == "<" else f"|{kind}"


def packed(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """
    The shape in whole elements of the numpy type: the same, except for elements below a byte and for blocks, where
    the last dimension counts bytes; flat when a row does not end with a byte.
    """
    elements, size = block(name)
    if elements == 1:
        return shape
    if shape and shape[-1] % elements == 0:
        return (*shape[:-1], shape[-1] // elements * size)
    return (math.prod(shape) // elements * size,)


def unpacked(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """The shape in elements of one in torch's: its F4 holds two, along the last dimension."""
    return (*shape[:-1], shape[-1] * 2) if name == "F4" and shape else shape

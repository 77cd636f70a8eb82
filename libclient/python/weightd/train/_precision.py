"""Element types of parameters, gradients and buffers apart, and the scale of the loss."""
from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import torch

from ..torch._published import Published

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # of parameters that are trained


@dataclasses.dataclass(frozen=True)
class Precision:
    """
    Element types of a module in a job, for shard(precision=). The optimizer computes in float32 always: parameters in
    16 bits are the rounding (to nearest even) of float32 originals, which the job keeps. The originals are the values
    that the module has when the optimizer is made, in float32 or widened exactly.

    param        of the parameters: torch.bfloat16, torch.float16 or torch.float32; None: the type that they have. Of
                 frozen ones, too, unless they have another type than these, or stay in memory of a published version
    reduce       of the gradients in a rank, in which micro-batches are added: `param`'s or torch.float32; None:
                 `param`'s. The sum over the ranks is in float32 always. torch.float32 for parameters in 16 bits needs a
                 torch with Tensor.grad_dtype
    buffer       of floating-point buffers; None: the type that they have
    cast_inputs  with `param`: floating-point tensors among the arguments of the module's forward() become the type of
                 its parameters, in tuples, lists and dicts, too

    The same by other names:

        FSDP2, MixedPrecisionPolicy  param_dtype, reduce_dtype, none, cast_forward_inputs (here, of the root alone)
        FSDP1, MixedPrecision        param_dtype, reduce_dtype, buffer_dtype, cast_root_forward_inputs

    There is no output_dtype: outputs have the type that forward() returns. ValueError: another type.
    """

    param: torch.dtype | None = None
    reduce: torch.dtype | None = None
    buffer: torch.dtype | None = None
    cast_inputs: bool = True

    def __post_init__(self) -> None:
        for name, value in (("param", self.param), ("reduce", self.reduce)):
            if value is not None and value not in TYPES:
                raise ValueError(f"Precision({name}={value}) is none of {', '.join(map(str, TYPES))}")
        if self.buffer is not None and not (isinstance(self.buffer, torch.dtype) and self.buffer.is_floating_point):
            raise ValueError(f"Precision(buffer={self.buffer}) is no floating-point type of torch")

    def reduces_in(self, param: torch.dtype) -> torch.dtype:
        """The type of gradients of parameters in that type. ValueError."""
        reduce = self.reduce or param
        if reduce not in (param, torch.float32):
            raise ValueError(f"Precision(reduce={reduce}): gradients of {param} parameters are {param} or "
                             "torch.float32")
        if reduce != param and not hasattr(torch.Tensor, "grad_dtype"):
            raise ValueError(f"Precision(reduce={reduce}) with {param} parameters needs a torch with "
                             f"Tensor.grad_dtype, and this is {torch.__version__}; leave reduce None, or install a "
                             "newer one")
        return reduce


@dataclasses.dataclass(frozen=True)
class Scaler:
    """
    Dynamic scaling of the loss, for shard(scaler=): gradients in float16 are zero where they are small. The loss is
    multiplied by a scale, and the mean gradient is divided by it before it is clipped and used:

        opt.scale(loss).backward()
        opt.step(loss)

    A step with a gradient that is not finite on any rank changes nothing on all of them (opt.overflowed), and the scale
    is multiplied by the backoff. The defaults and the arithmetic are those of torch.amp.GradScaler, which decides in
    each rank alone and is refused. The scale is part of the job: it survives the death of ranks.

    init_scale       the first scale, above 0
    growth_factor    of the scale after growth_interval steps in a row that were not skipped; at least 1
    backoff_factor   of the scale after a step that was skipped; above 0, at most 1
    growth_interval  steps, at least 1

    ValueError.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        for name, is_right, rule in (("init_scale", lambda x: 0 < x < float("inf"), "above 0"),
                                     ("growth_factor", lambda x: 1 <= x < float("inf"), "at least 1"),
                                     ("backoff_factor", lambda x: 0 < x <= 1, "above 0 and at most 1"),
                                     ("growth_interval", lambda x: 1 <= x < 2**32 and x == int(x),
                                      "a number of steps, at least 1")):
            value = getattr(self, name)
            if not isinstance(value, numbers.Real) or not is_right(value):
                raise ValueError(f"Scaler({name}={value!r}): it must be {rule}")


def cast_buffers(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """
    Floating-point buffers of a module become that type, tied ones one tensor still; not those of a published version.
    """
    made: dict[int, torch.Tensor] = {}
    published = Published()
    for owner in module.modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and buffer.is_floating_point() and buffer not in published:
                owner._buffers[name] = made.setdefault(id(buffer), buffer.to(dtype))


def cast_inputs(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """A pre-hook of forward(). The type is that of the parameters at the call: it fits a copy of the module, too."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            return _cast(args, parameter.dtype), _cast(kwargs, parameter.dtype)
    return args, kwargs


def _cast(given: Any, dtype: torch.dtype) -> Any:
    if isinstance(given, torch.Tensor):
        return given.to(dtype) if given.is_floating_point() else given
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        return type(given)(*(_cast(value, dtype) for value in given))
    if type(given) in (tuple, list):
        return type(given)([_cast(value, dtype) for value in given])
    if type(given) is dict:
        return {key: _cast(value, dtype) for key, value in given.items()}
    return given

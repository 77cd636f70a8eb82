"""libweightd-train and the declarations of weightd-train.h, one to one, as far as the package uses them."""
from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_bool, c_char_p, c_double, c_int, c_size_t, c_uint16, c_uint32,
                    c_uint64, c_void_p)
from typing import Callable, ContextManager

from .._abi import Sized  # it has loaded libweightd, which libweightd-train then uses
from .._errors import Error, error
from .._library import library_path

ROLES = {"param": 1, "buffer": 2}
KINDS = {"PARAM": 1, "GRAD": 2}
OPTIMIZERS = {"adamw": 1, "adam": 2, "sgd": 3}
FORMS = {"auto": 0, "fused": 1, "two-phase": 2}
ON_DEATH = {"wait": 0, "fail": 1, "finish": 2}
FORWARD, BACKWARD, EVALUATION = 0, 1, 2  # enum weightd_pass


class MeshDim(Structure):
    _fields_ = [("name", c_char_p), ("size", c_uint32)]


class Group(Sized):
    _fields_ = [("size", c_size_t), ("weight_decay", c_double), ("beta1", c_double), ("beta2", c_double),
                ("eps", c_double), ("momentum", c_double), ("nesterov", c_bool)]


class Tensor(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("shape", POINTER(c_uint64)), ("n_dims", c_uint32),
                ("dtype", c_int), ("role", c_int), ("group", c_uint32), ("offset", c_uint64), ("n_bytes", c_uint64),
                ("frozen", c_bool), ("unit", c_uint32), ("level", c_uint32)]


class Scaling(Sized):
    _fields_ = [("size", c_size_t), ("init", c_double), ("growth", c_double), ("backoff", c_double),
                ("interval", c_uint32)]


class PlanOptions(Sized):
    _fields_ = [("size", c_size_t), ("mesh", c_void_p), ("strategy", c_char_p), ("optimizer", c_int),
                ("groups", POINTER(Group)), ("n_groups", c_uint32), ("form", c_int), ("bucket_bytes", c_uint64),
                ("overlap", c_bool), ("staleness", c_uint32), ("n_copies", c_uint32), ("state_size", c_uint32),
                ("without_journal", c_bool), ("grad_dtype", c_int), ("scaling", POINTER(Scaling)),
                ("n_nodes", c_uint32), ("sync_every", c_uint32), ("keeps_units", c_bool), ("without_prefetch", c_bool)]


class Traffic(Sized):
    _fields_ = [("size", c_size_t), ("read", c_uint64), ("written", c_uint64), ("sent", c_uint64),
                ("sent_replicas", c_uint64)]


class Segment(Structure):
    _fields_ = [("data", c_void_p), ("size", c_uint64)]


class Transfer(Structure):
    _fields_ = [("node", c_uint32), ("send", POINTER(Segment)), ("n_send", c_uint32), ("receive", POINTER(Segment)),
                ("n_receive", c_uint32)]


EXCHANGE = CFUNCTYPE(c_int, c_void_p, POINTER(Transfer), c_uint32, c_int, c_void_p, c_size_t)


class Engine(Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("exchange", EXCHANGE), ("data", c_void_p)]


class Nodes(Sized):
    _fields_ = [("size", c_size_t), ("node", c_uint32), ("node_from_env", c_bool), ("address", c_char_p),
                ("port", c_uint16), ("engine", POINTER(Engine))]


class Options(Sized):
    _fields_ = [("size", c_size_t), ("token", c_char_p), ("rank", c_uint32), ("rank_from_env", c_bool),
                ("interruptible", c_bool), ("deadline_ms", c_int), ("on_death", c_int), ("nodes", POINTER(Nodes))]


class Update(Sized):
    _fields_ = [("size", c_size_t), ("lr", POINTER(c_double)), ("weight", c_double), ("has_loss", c_bool),
                ("loss", c_double), ("max_norm", c_double), ("state", c_char_p), ("state_size", c_uint64),
                ("unused", POINTER(c_bool))]


class CheckpointOptions(Sized):
    _fields_ = [("size", c_size_t), ("keep", c_uint32)]


# Pointers to opaque structs, in and out, are c_void_p.
FUNCTIONS = {  # name: (result, *arguments)
    "weightd_train_error": (c_char_p,),
    "weightd_mesh_new": (c_int, POINTER(MeshDim), c_uint32, POINTER(c_void_p)),
    "weightd_mesh_free": (None, c_void_p),
    "weightd_mesh_coordinate": (c_int, c_void_p, c_uint32, c_uint32, POINTER(c_uint32)),
    "weightd_mesh_group": (c_int, c_void_p, c_uint32, c_uint32, POINTER(c_uint32)),
    "weightd_plan_new": (c_int, POINTER(Tensor), c_uint32, POINTER(PlanOptions), POINTER(c_void_p)),
    "weightd_plan_free": (None, c_void_p),
    "weightd_plan_json": (c_int, c_void_p, POINTER(c_void_p)),
    "weightd_plan_tensor": (c_int, c_void_p, c_uint32, POINTER(Tensor)),
    "weightd_plan_bucket": (c_int, c_void_p, c_uint32, POINTER(c_uint32)),
    "weightd_plan_traffic": (c_int, c_void_p, c_uint32, POINTER(Traffic)),
    "weightd_train_open": (c_int, c_void_p, c_void_p, POINTER(Options), POINTER(c_void_p)),
    "weightd_train_close": (c_int, c_void_p),
    "weightd_train_free": (None, c_void_p),
    "weightd_train_step": (c_uint64, c_void_p),
    "weightd_train_is_empty": (c_bool, c_void_p),
    "weightd_train_fill": (c_int, c_void_p, c_uint32, c_void_p),
    "weightd_train_begin": (c_int, c_void_p),
    "weightd_train_param": (c_void_p, c_void_p, c_uint32),
    "weightd_train_grad": (c_void_p, c_void_p, c_uint32),
    "weightd_train_buffer": (c_void_p, c_void_p, c_uint32),
    "weightd_train_range": (c_void_p, c_void_p, c_int, POINTER(c_uint64)),
    "weightd_train_state": (c_void_p, c_void_p, POINTER(c_uint64)),
    "weightd_train_bucket_open": (c_int, c_void_p, c_uint32),
    "weightd_train_unit_open": (c_int, c_void_p, c_uint32, c_int),
    "weightd_train_unit_close": (c_int, c_void_p, c_uint32),
    "weightd_train_ready": (c_int, c_void_p, c_uint32),
    "weightd_train_wants": (c_bool, c_void_p, c_uint32),
    "weightd_train_update": (c_int, c_void_p, POINTER(Update)),
    "weightd_train_write_begin": (c_int, c_void_p),
    "weightd_train_write": (c_int, c_void_p, c_uint32, c_void_p),
    "weightd_train_written": (c_void_p, c_void_p, c_uint32),
    "weightd_train_write_end": (c_int, c_void_p),
    "weightd_train_norm": (c_double, c_void_p),
    "weightd_train_scale": (c_double, c_void_p),
    "weightd_train_overflowed": (c_bool, c_void_p),
    "weightd_train_traffic": (c_int, c_void_p, POINTER(Traffic)),
    "weightd_train_publish_owned": (c_int, c_void_p, c_char_p, POINTER(c_uint32), POINTER(c_uint64)),
    "weightd_window_open": (c_int, c_void_p, POINTER(Options), c_uint64, POINTER(c_void_p)),
    "weightd_window_free": (None, c_void_p),
    "weightd_window_data": (c_void_p, c_void_p, c_uint32),
    "weightd_window_barrier": (c_int, c_void_p),
    "weightd_window_all_reduce": (c_int, c_void_p, c_uint64, c_uint64, c_int),
    "weightd_window_broadcast": (c_int, c_void_p, c_uint64, c_uint64, c_uint32),
    "weightd_train_save": (c_int, c_void_p, c_char_p, POINTER(CheckpointOptions)),
    "weightd_train_save_wait": (c_int, c_void_p),
    "weightd_train_load": (c_int, c_void_p, c_char_p),
}


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(library_path("libweightd-train.so.0"))
    except OSError as e:
        raise ImportError(f"weightd.train needs libweightd-train, which belongs beside libweightd: {e}") from e
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


lib = _load()
free = ctypes.CDLL(None).free
free.argtypes = [c_void_p]


class RankDied(Error):
    """EOWNERDEAD: a rank died, and the job was opened with on_death="fail"."""


class NotANumber(Error, ArithmeticError):
    """EDOM: the loss of a rank is not a number. The step counts, and changed nothing."""


class RankBusy(Error):
    """EBUSY: another process is this rank."""


_CLASSES = {errno.EOWNERDEAD: RankDied, errno.EDOM: NotANumber, errno.EBUSY: RankBusy}


def check(code: int) -> int:
    """The result of a call of libweightd-train; Error for a negative one, with its sentence."""
    if code < 0:
        sentence = lib.weightd_train_error().decode(errors="replace") or os.strerror(-code)
        if code == -errno.ETIMEDOUT:
            sentence += "; shard(deadline=) sets the deadline"
        raise _CLASSES[-code](-code, sentence) if -code in _CLASSES else error(-code, sentence)
    return code


def wait(function: Callable[..., int], *args, around: Callable[[], ContextManager] = contextlib.nullcontext) -> int:
    """
    check(function(*args)), for a call that waits. A signal interrupts the wait: the handlers of Python run, and unless
    one raises, the wait continues. Each call is made inside a block `around` it.
    """
    code = -errno.EINTR
    while code == -errno.EINTR:
        with around():
            code = function(*args)
    return check(code)


def take_text(pointer: c_void_p) -> str:
    """A text that the library allocated, which is freed."""
    try:
        return ctypes.string_at(pointer.value).decode()
    finally:
        free(pointer)

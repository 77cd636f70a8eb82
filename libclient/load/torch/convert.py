# Converts a checkpoint of torch.save(), standard input, to one safetensors file, standard output. The last line on descriptor 3
# is "ok", or why there is none. libweightd contains this text and starts a Python of the user's on it.
#
# The file may come from anybody. torch's weights_only loader admits no code; and before its first byte is read, the process
# can do nothing but read files, compute and write to what it has open.
import sys

sys.path[:] = [folder for folder in sys.path if folder]  # nothing from the working directory, which may be the model's

import ctypes
import inspect
import io
import json
import os
import re
import resource
import signal
import struct
import warnings

INPUT, OUTPUT, REPORT = 0, 1, 3
PIECE = 1 << 30
GIB = 1 << 30
BYTES_A_SECOND = 10 << 20  # of processor time; ten times slower than any loader
TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
         "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "uint64": "U64", "uint32": "U32", "uint16": "U16",
         "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64"}

# name: (number on x86_64, on aarch64). All others fail with EPERM: sockets, programs, processes, names of files.
CALLS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67),
    "readv": (19, 65), "access": (21, None), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "uname": (63, 160), "getcwd": (79, 17), "readlink": (89, None),
    "getrusage": (98, 165), "sysinfo": (99, 179), "gettid": (186, 178), "futex": (202, 98), "sched_getaffinity": (204, 123),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "readlinkat": (267, 78), "newfstatat": (262, 79),
    "set_robust_list": (273, 99), "getrandom": (318, 278), "statx": (332, 291), "rseq": (334, 293),
}
OPENAT = (257, 56)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


prctl = ctypes.CDLL(None, use_errno=True).prctl


class Refused(Exception):
    pass


def report(text):
    os.write(REPORT, " ".join(text.split())[:400].encode("utf-8", "replace") + b"\n")


def seccomp_filter():
    """Instructions of classic BPF: load the architecture and the number of the call, and compare."""
    if os.uname().machine not in MACHINES:
        raise Refused(f"no process can be confined on {os.uname().machine}")
    column, architecture = MACHINES[os.uname().machine]
    load, equal, mask, end = 0x20, 0x15, 0x54, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    numbers = [row[column] for row in CALLS.values() if row[column] is not None]
    code = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, kill), (load, 0, 0, 0)]
    for number in numbers:
        code += [(equal, 0, 1, number), (end, 0, 0, allow)]
    code += [(equal, 0, 4, OPENAT[column]), (load, 0, 0, 32), (mask, 0, 0, WRITES), (equal, 0, 1, 0), (end, 0, 0, allow),
             (end, 0, 0, refuse)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def limit(what, most):
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most, most) if hard == resource.RLIM_INFINITY or hard > most else (hard, hard))


def confine(size):
    """No way out of this process, and `size`, that of the file, for its measure."""
    with open("/proc/self/statm") as f:
        used = int(f.read().split()[0]) * resource.getpagesize()
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_AS, used + 3 * size + GIB)
    limit(resource.RLIMIT_FSIZE, 2 * size + GIB)
    limit(resource.RLIMIT_CPU, 60 + size // BYTES_A_SECOND)
    code = seccomp_filter()
    program = Program(len(code) // 8, code)
    set_no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
    if prctl(set_no_new_privileges, 1, 0, 0, 0) or prctl(set_seccomp, mode_filter, ctypes.byref(program), 0, 0):
        raise Refused(f"the process that reads it cannot be confined here: seccomp: {os.strerror(ctypes.get_errno())}")


def load(torch, size):
    """Returns the saved object."""
    with open(INPUT, "rb", closefd=False) as f:
        is_zip = f.read(4) == b"PK\3\4"
        f.seek(0)
        options = {"map_location": "cpu", "weights_only": True}
        try:
            if is_zip and "mmap" in inspect.signature(torch.load).parameters:
                return torch.load(f"/proc/self/fd/{INPUT}", mmap=True, **options)
            return torch.load(f, **options)
        except MemoryError:
            raise Refused(f"it needs more memory than three times its {size} bytes") from None
        except Exception as e:
            named = re.search(r"GLOBAL ([\w.]+)", str(e)) or re.search(r"class ([\w.]+)", str(e))
            if named:
                raise Refused(f"it names {named[1]}, and torch's weights_only loader admits no such class or function") from None
            raise Refused(f"torch's weights_only loader says: {str(e) or type(e).__name__}") from None


def tensors_of(torch, loaded):
    """{name: tensor}: all of them, or those below state_dict."""
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict):
        raise Refused(f"it holds a value of type {type(loaded).__name__}, not a dict of tensors")
    for name, value in loaded.items():
        if not isinstance(name, str):
            raise Refused(f"its key {name!r} is not a name")
        if not isinstance(value, torch.Tensor):
            raise Refused(f"its entry {name!r} is of type {type(value).__name__}, not a tensor; save the tensors alone "
                          "(torch.save(model.state_dict(), ...))")
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            raise Refused(f"its tensor {name!r} is sparse, quantized or without data")
        if str(value.dtype).split(".")[1] not in TYPES:
            raise Refused(f"its tensor {name!r} has the type {value.dtype}, which safetensors has not")
    if not loaded:
        raise Refused("it has no tensors")
    return loaded


def untie(tensors):
    """The tensors of which each has bytes of its own, and {alias: name} of the others."""
    first, kept, ties = {}, {}, {}
    for name, t in tensors.items():
        key = t.data_ptr(), t.dtype, tuple(t.shape), t.stride(), t.is_conj(), t.is_neg()
        if t.numel() and key in first:
            ties[name] = first[key]
        else:
            kept[name] = t
            first[key] = name
    return kept, ties


def write_all(view):
    while view:
        view = view[os.write(OUTPUT, view[:PIECE]):]


def write_file(torch, tensors, ties):
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())  # each at a multiple of its own size
    header, at = {"__metadata__": {"format": "pt"}}, 0
    if ties:
        header["__metadata__"]["weightd.tied"] = json.dumps(ties)
    for name in names:
        t = tensors[name]
        n = t.numel() * t.element_size()
        header[name] = {"dtype": TYPES[str(t.dtype).split(".")[1]], "shape": list(t.shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    write_all(memoryview(struct.pack("<Q", len(text)) + text))
    for name in names:
        t = tensors.pop(name).detach().resolve_conj().resolve_neg().contiguous()
        if t.numel():
            write_all(memoryview((ctypes.c_char * (t.numel() * t.element_size())).from_address(t.data_ptr())).cast("B"))


def main():
    warnings.simplefilter("ignore")
    set_parent_death_signal = 1
    prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    try:
        import torch
    except ImportError as e:
        raise Refused(f"{sys.executable} has no torch ({e}); install it (python3-torch, or pip install torch), or set "
                      "WEIGHTD_PYTHON to a Python that has it") from None
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for zipped in True, False:  # imports what a load imports
        buffer = io.BytesIO()
        torch.save({"x": torch.zeros(1)}, buffer, _use_new_zipfile_serialization=zipped)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    size = os.fstat(INPUT).st_size
    confine(size)
    try:
        write_file(torch, *untie(tensors_of(torch, load(torch, size))))
    except (MemoryError, OSError) as e:
        raise Refused(f"it cannot be written as safetensors: {e or 'out of memory'}") from None


try:
    main()
    report("ok")
except Refused as e:
    report(str(e))
except BaseException as e:
    report(f"{type(e).__name__}: {e}")

"""
Used by programs of the tests, each a process of its own that sees fake GPUs: the driver as any caller uses it, and
libweightd beside it.

    from lib.cuda_calls import *
    context()
    with attach("m", "cuda:0") as buffer:
        assert buffer.read() == DATA
"""
import concurrent.futures
import contextlib
import ctypes
import errno  # noqa: F401
import fcntl
import os
import pathlib
import sys  # noqa: F401

from lib.native import ALL_STREAMS, Client, Failed  # noqa: F401

cuda = ctypes.CDLL("libcuda.so.1")
STATE = pathlib.Path(os.environ.get("FAKE_CUDA_STATE", "/none"))
OUT_OF_MEMORY, INVALID_VALUE, NOT_SUPPORTED, DEVICE_LOST = 2, 1, 801, 702
MIB = 1 << 20

pool = concurrent.futures.ThreadPoolExecutor(max_workers=4)
later = pool.submit


def do(name, *arguments, wanted=0):
    r = getattr(cuda, name)(*arguments)
    assert r == wanted, f"{name}: {r}, not {wanted}"


def new(name, *arguments):
    p = ctypes.c_void_p()
    do(name, ctypes.byref(p), *arguments)
    return p


def init():
    do("cuInit", 0)


def context(device=0):
    """The primary one, made current."""
    init()
    c = new("cuDevicePrimaryCtxRetain", device)
    do("cuCtxPushCurrent_v2", c)
    return c.value


def current():
    return new("cuCtxGetCurrent").value


def stream(non_blocking=True):
    return new("cuStreamCreate", int(non_blocking))


def fill(address, value, n, stream=None, wanted=0):
    """Queues that."""
    do("cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_uint8(value), ctypes.c_size_t(n), stream, wanted=wanted)


def pinned(n):
    """n bytes of host memory to which copies do not block, in the current context."""
    return (ctypes.c_char * n).from_address(new("cuMemHostAlloc", ctypes.c_size_t(n), 0).value)


def copy(to, source, n, stream=None):
    """Queues that, to pinned memory; with any other it would wait."""
    do("cuMemcpyDtoHAsync_v2", to, ctypes.c_uint64(source), ctypes.c_size_t(n), stream)


def wait(stream=None, wanted=0):
    do("cuStreamSynchronize", stream, wanted=wanted)


def uuid(device=0):
    raw = (ctypes.c_uint8 * 16)()
    do("cuDeviceGetUuid_v2", raw, device)
    return bytes(raw)


def free():
    n, total = ctypes.c_size_t(), ctypes.c_size_t()
    do("cuMemGetInfo_v2", ctypes.byref(n), ctypes.byref(total))
    return n.value


# --- failures ---

@contextlib.contextmanager
def locked():
    """Within it no process counts down a script of failures and writes back an old one."""
    with open(STATE / "lock") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def fail(symbol, result, skip=0, count=1):
    with locked(), open(STATE / "fail", "a") as f:
        f.write(f"{symbol} {result} {skip} {count}\n")


def heal():
    with locked(), contextlib.suppress(FileNotFoundError):
        os.unlink(STATE / "fail")


@contextlib.contextmanager
def gate():
    """Within it nothing runs that this process queues."""
    close_gate()
    try:
        yield
    finally:
        open_gate()


def close_gate():
    (STATE / "gate.new").write_text(f"{os.getpid()}\n")
    (STATE / "gate.new").rename(STATE / "gate")


def open_gate():
    with contextlib.suppress(FileNotFoundError):
        (STATE / "gate").unlink()


# --- libweightd ---

client = Client(os.environ["WEIGHTD_SOCKET"]) if "WEIGHTD_SOCKET" in os.environ else None


def look():
    """Asks the server something, beside the connection that another thread uses."""
    with Client(os.environ["WEIGHTD_SOCKET"]) as other:
        other.ping()


def attach(name, device="cuda:0", **options):
    options = {k: v.encode() if isinstance(v, str) else v for k, v in options.items()}
    return client.attach(name, device=device.encode(), **options)


def create(name, size, device="cuda:0", **options):
    return client.create(name, size, device=device.encode(), **options)


def publish(name, data, device="cuda:0", **options):
    with create(name, len(data), device, **options) as writer:
        writer.put(data)
        return writer.publish()


def refused(act, *arguments, **options):
    """How it fails."""
    try:
        act(*arguments, **options)
    except Failed as e:
        return e
    raise AssertionError("it was not refused")

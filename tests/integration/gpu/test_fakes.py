"""The fake GPUs that the other tests run on: what several processes, or other machines, would see."""
import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.plain

BEGIN = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
U64, ALL = ctypes.c_uint64, ctypes.c_size_t(4 << 20)

def do(name, *args, wanted=0):
    r = getattr(cuda, name)(*args)
    assert r == wanted, f"{name}: {r}, not {wanted}"

def uuids():
    n = ctypes.c_int()
    do("cuDeviceGetCount", ctypes.byref(n))
    found = []
    for i in range(n.value):
        raw = (ctypes.c_uint8 * 16)()
        do("cuDeviceGetUuid_v2", raw, i)
        found.append(raw[2])
    return found

def context(device=0):
    c = ctypes.c_void_p()
    do("cuDevicePrimaryCtxRetain", ctypes.byref(c), device)
    do("cuCtxPushCurrent_v2", c)
    return c

def alloc(size=4 << 20):
    p = U64()
    do("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(size))
    return p

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 64)]

class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]

class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("unused", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]

class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]

def properties(device=0):
    return Properties(1, 1, Location(1, device))
"""


def run(gpus, code, wanted="", **env):
    done = gpus.python(BEGIN + code, env=env)
    assert done.stdout.strip() == wanted


@pytest.fixture
def start(gpu):
    """start(code): a process that prints a line and then lives until the test ends, or it is killed."""
    started = []

    def begin(code):
        proc = subprocess.Popen([sys.executable, "-c", BEGIN + code + "\nprint(flush=True); sys.stdin.read()"],
                                env=os.environ | gpu.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(proc)
        return proc, proc.stdout.readline().strip()

    yield begin
    for proc in started:
        proc.kill()
        proc.communicate()


@pytest.mark.parametrize("visible, seen", [
    (None, [0, 1, 2]), ("2,0", [2, 0]), ("1,7,0", [1]), ("-1", []), ("", []), ("GPU-fa4e02", [2]), ("GPU-fa4e", []),
    ("0,0", []),
])
def test_visible_devices_are_those_the_environment_names(make_gpus, visible, seen):
    gpus = make_gpus(devices=3)
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    if seen:
        run(gpus, "do('cuInit', 0); print(uuids())", str(seen), **env)
    else:
        run(gpus, "do('cuInit', 0, wanted=100)", **env)


def test_a_process_uses_one_part_of_a_gpu(make_gpus):
    gpus = make_gpus(devices=2, mig=True)
    run(gpus, "do('cuInit', 0); print(uuids())", "[0]")
    run(gpus, "do('cuInit', 0); print(uuids())", "[1]", CUDA_VISIBLE_DEVICES=f"MIG-{gpus.uuid(1)}")
    run(gpus, "do('cuInit', 0, wanted=100)", CUDA_VISIBLE_DEVICES="0")


def test_the_driver_numbers_devices_as_it_likes_unless_told(make_gpus):
    gpus = make_gpus(devices=2, order="1,0")
    run(gpus, "do('cuInit', 0); print(uuids())", "[1, 0]")
    run(gpus, "do('cuInit', 0); print(uuids())", "[0, 1]", CUDA_DEVICE_ORDER="PCI_BUS_ID")


def test_no_state_is_no_gpu(gpu):
    run(gpu, "do('cuInit', 0, wanted=100)", FAKE_CUDA_STATE="")


def test_memory_of_a_killed_process_is_free_again(gpu, start):
    proc, _ = start("do('cuInit', 0); context(); alloc()")
    assert gpu.used() == 4 << 20
    assert gpu.n_contexts() == 1
    proc.kill()
    proc.wait()
    gpu.wait_used(0, contexts=True)
    assert gpu.free() == 1 << 30


def test_linear_memory_opens_while_its_process_lives(gpu, start):
    proc, handle = start("""
do('cuInit', 0); context(); p = alloc(); h = Handle()
do('cuMemsetD8_v2', p, 7, ALL)
do('cuCtxSynchronize')
do('cuIpcGetMemHandle', ctypes.byref(h), p)
print(bytes(h.bytes).hex())
""")
    code = f"""
do('cuInit', 0); context(); h = Handle.from_buffer_copy(bytes.fromhex('{handle}')); p, q = U64(), U64()
do('cuIpcOpenMemHandle_v2', ctypes.byref(p), h, 1)
do('cuIpcOpenMemHandle_v2', ctypes.byref(q), h, 1)
byte = ctypes.c_uint8()
do('cuMemcpyDtoH_v2', ctypes.byref(byte), p, ctypes.c_size_t(1))
do('cuMemFree_v2', p, wanted=1)
do('cuIpcCloseMemHandle', p)
do('cuIpcCloseMemHandle', p)
do('cuIpcCloseMemHandle', p, wanted=1)
print(p.value == q.value, byte.value)
"""
    run(gpu, code, "True 7")
    holder, _ = start(f"""
do('cuInit', 0); context(); h = Handle.from_buffer_copy(bytes.fromhex('{handle}')); p = U64()
do('cuIpcOpenMemHandle_v2', ctypes.byref(p), h, 1)
""")
    proc.kill()
    proc.wait()
    gpu.wait_let_go(proc.pid)
    run(gpu, f"""
do('cuInit', 0); context(); h = Handle.from_buffer_copy(bytes.fromhex('{handle}')); p = U64()
do('cuIpcOpenMemHandle_v2', ctypes.byref(p), h, 1, wanted=400)
""")
    assert gpu.used() == 4 << 20, "the one that had opened it holds it still"
    holder.kill()
    holder.wait()
    gpu.wait_used(0)


def test_each_gpu_has_access_of_its_own(make_gpus):
    run(make_gpus(devices=2), """
do('cuInit', 0); context(0); p, h, byte = U64(), U64(), ctypes.c_uint8()
do('cuMemCreate', ctypes.byref(h), ALL, ctypes.byref(properties(1)), U64(0))
do('cuMemAddressReserve', ctypes.byref(p), ALL, ctypes.c_size_t(0), U64(0), U64(0))
do('cuMemMap', p, ALL, ctypes.c_size_t(0), h, U64(0))
def allow(device):
    do('cuMemSetAccess', p, ALL, ctypes.byref(Access(Location(1, device), 1)), ctypes.c_size_t(1))
allow(1)
do('cuMemcpyDtoH_v2', ctypes.byref(byte), p, ctypes.c_size_t(1), wanted=1)
allow(0)
do('cuMemcpyDtoH_v2', ctypes.byref(byte), p, ctypes.c_size_t(1))
""")


def test_gpus_without_peers_refuse_each_others_memory(make_gpus):
    run(make_gpus(devices=2, no_peers=1), """
do('cuInit', 0); context(0); other = context(1); context(0)
can = ctypes.c_int(5)
do('cuDeviceCanAccessPeer', ctypes.byref(can), 0, 1)
do('cuCtxEnablePeerAccess', other, 0, wanted=217)
print(can.value)
""", "0")


def test_fabric_handles_want_a_channel_too(make_gpus):
    code = """
do('cuInit', 0); like, h = properties(), U64(); like.handle_types = 9
do('cuMemCreate', ctypes.byref(h), ALL, ctypes.byref(like), U64(0), wanted=%d)
"""
    run(make_gpus(), code % 801)
    run(make_gpus(attributes="128=1"), code % 800)
    run(make_gpus(attributes="128=1", channel=1), code % 0)


def test_addresses_of_a_gpu_cannot_be_touched(gpu):
    done = gpu.python(BEGIN + "do('cuInit', 0); context(); ctypes.string_at(alloc().value, 1)", check=False)
    assert done.returncode == -signal.SIGSEGV
    run(gpu, "do('cuInit', 0); context(); print(ctypes.string_at(alloc().value, 1))", r"b'\xa5'",
        FAKE_CUDA_TOUCHABLE="1")


def test_a_call_that_hangs_goes_on_when_healed(gpu, start):
    gpu.fail("cuMemAlloc", "hang")
    proc, said = start("do('cuInit', 0); context(); print(flush=True); alloc(); print('done')")
    assert said == ""
    gpu.heal()
    assert proc.stdout.readline().strip() == "done"


def test_a_call_can_kill_its_process(gpu):
    gpu.fail("cuMemAlloc", "die", skip=1)
    done = gpu.python(BEGIN + "do('cuInit', 0); context(); alloc(); print('one', flush=True); alloc()", check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "one\n")

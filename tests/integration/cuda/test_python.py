"""
The Python package with weightd, on fake GPUs: in processes of their own, since libcuda is opened once. Addresses of
a fake GPU cannot be looked at, so bytes are seen through read(), and the torch that would compute on them is
not there: what it is handed is in python/test_gpu.py.
"""
import pytest
from integration.load.test_load import write_model
from lib import features

PREAMBLE = """
import ctypes, errno, gc, os
import weightd
layout = weightd.Layout()
layout.add("t", "F32", (4, 4))
layout.add("u", "BF16", (3,))
layout.add("none", "F32", (0, 2))

def publish(fill=1, name="m", device="cuda:0", **options):
    with weightd.create(name, layout, device=device, **options) as writer:
        writer.write(0, bytes([fill]) * writer.nbytes)
        return writer.publish()

def fails(kind, act, code=None, says=""):
    try:
        act()
    except kind as e:
        assert code in (None, getattr(e, "errno", None)) and says in str(e), repr(e)
        return
    raise AssertionError("it did not fail")
"""


@pytest.fixture
def play(make_gpus, make_daemon):
    """play(code, devices=2): runs it in a Python that sees a weightd with these GPUs; returns the GPUs."""
    features.require("library")
    gpus = {}

    def run(code, env=(), python=None, **kw):
        if "gpus" not in gpus:
            gpus["gpus"] = make_gpus(**kw)
            gpus["daemon"] = make_daemon(env=gpus["gpus"].env)
        where = {"WEIGHTD_SOCKET": gpus["daemon"].socket, "WEIGHTD_LIBRARY": str(features.LIBRARY)}
        gpus["said"] = gpus["gpus"].python(PREAMBLE + code, env=where | dict(env), program=python).stdout
        return gpus["gpus"]

    run.said = lambda: gpus["said"]
    run.daemon = lambda: gpus["daemon"]
    return run


def test_a_gpu_holds_what_was_written(play):
    gpus = play("""
with weightd.create("m", layout, device="cuda:1") as writer:
    assert writer.location.memory == "cuda" and writer.location.device == 1
    writer["t"].write(bytes(range(64)))
    writer["u"].write(bytearray(b"abcdef"))
    writer["none"].write(b"")
    assert writer["t"].read() == bytes(range(64))
    assert writer.publish() == 1 and writer.version == 1
    fails(weightd.Denied, lambda: writer["t"].write(bytes(64)))
buffer = weightd.attach("m", device="cuda:1")
assert buffer.location == writer.location, buffer.location
assert buffer["t"].read() == bytes(range(64)) and buffer["u"].read() == b"abcdef" and buffer["none"].read() == b""
into = bytearray(4)
assert buffer.read(60, 4, into) is into and into == bytes(range(60, 64))
fails(weightd.Error, lambda: buffer.read(buffer.nbytes, 1), errno.EINVAL)
buffer.verify()
print(buffer.device, buffer.location.uuid)
""", devices=2)
    assert play.said().split() == [gpus.device(1), gpus.uuid(1)]


def test_names_that_a_layout_ties_are_filled_on_the_gpu_where_the_newest_version_has_each(play):
    play("""
two, tied = weightd.Layout(), weightd.Layout()
for name, size in ("b", 3 << 19), ("w", 3), ("a", 3 << 19):
    two.add(name, "U8", (size,))
tied.add("w", "U8", (3,))
tied.add("a", "U8", (3 << 19,))
tied.tie("b", "a")
value = os.urandom(3 << 19)
for handle in "vmm", "ipc":
    with weightd.create(handle, two, device="cuda:0", handle=handle) as writer:
        writer.publish()
    reader = weightd.attach(handle, device="cuda:0")
    with weightd.create(handle, tied, device="cuda:0") as writer:
        writer["b"].write(value)
        writer["w"].write(b"www")
        assert writer["a"].read() == value
        writer.publish()
    after = weightd.attach(handle, device="cuda:0")
    assert (after["a"].read(), after["b"].read(), after["w"].read()) == (value, value, b"www")
    after.verify()
    assert after.layout_hash == reader.layout_hash == two.hash
    assert handle == "ipc" or reader.swap()
""")


def test_all_spellings_of_a_gpu_are_the_same_one(play, make_gpus):
    gpus = play("print(publish(3))", devices=2)
    for spelling in ("cuda", "cuda:0", gpus.device(0), gpus.device(0).replace("fa4e", "FA4E")):
        play(f"assert weightd.attach('m', device={spelling!r})['t'].read() == bytes([3]) * 64")
    play("""
fails(weightd.NotFound, lambda: weightd.attach("m", device="cuda:1"))
fails(weightd.NotFound, lambda: weightd.attach("m"))
fails(weightd.Error, lambda: weightd.attach("m", device="cuda:2"), errno.ENODEV)
""")


def test_a_number_is_that_of_the_process(play):
    play("publish(7, device='cuda:1')", devices=2)
    play("""
buffer = weightd.attach("m", device="cuda:0")
assert buffer.location.device == 0 and buffer["t"].read() == bytes([7]) * 64
""", env={"CUDA_VISIBLE_DEVICES": "1"})


def test_tensors_are_handed_on_with_their_address_and_gpu(play):
    play("""
publish(5, device="cuda:1")
buffer = weightd.attach("m", device="cuda:1")
tensor = buffer["u"]
assert tensor.__dlpack_device__() == (2, 1)
found = tensor.__cuda_array_interface__
assert found["shape"] == (3,) and found["typestr"] == "<u2" and found["version"] == 3 and found["data"][1], found
assert found["data"][0] == buffer["t"].__cuda_array_interface__["data"][0] + tensor.offset
from weightd import _dlpack
try:
    import numpy
except ImportError:
    pass
else:
    capsule = tensor.__dlpack__(stream=-1)
    made = _dlpack.dl_tensor(capsule)
    assert (made.device_type, made.device_id, made.code, made.bits) == (2, 1, 4, 16)
    assert made.data + made.byte_offset == found["data"][0]
    fails(TypeError, tensor.numpy, says="is on cuda:1: use torch()")
    fails(TypeError, lambda: numpy.asarray(tensor), says="read() for a copy on the host")
fails(TypeError, tensor.memoryview, says="cuda:1")
""", devices=2)


def test_a_capsule_holds_the_memory_of_the_gpu_until_it_goes(play):
    features.require("numpy")
    gpus = play("""
publish()
buffer = weightd.attach("m", device="cuda:0")
capsule = buffer["t"].__dlpack__()
buffer.close()
del buffer
gc.collect()
assert weightd.ls("m")[0].n_readers == 1
del capsule
assert weightd.ls("m")[0].n_readers == 0
weightd.drop("m", device="cuda:0")
assert weightd.ls() == []
""")
    gpus.wait_used(0)


def test_the_current_version_comes_to_the_same_address(play):
    play("""
publish(1)
buffer = weightd.attach("m", device="cuda:0")
at = buffer["t"].__cuda_array_interface__["data"]
assert buffer.swap() is False
publish(2)
assert buffer.swap(stream=0) is True and buffer.version == 2
assert buffer["t"].__cuda_array_interface__["data"] == at and buffer["t"].read() == bytes([2]) * 64
publish(3)
newer = buffer.refresh()
assert newer["t"].read() == bytes([3]) * 64 and newer["t"].__cuda_array_interface__["data"] != at
assert buffer["t"].read() == bytes([2]) * 64
""")


def test_a_sleeper_has_its_addresses_again(play):
    play("""
publish(1)
buffer = weightd.attach("m", device="cuda:0")
at = buffer["t"].__cuda_array_interface__["data"]
buffer.release(stream=0)
assert weightd.ls("m")[0].n_readers == 0
fails(weightd.Error, buffer["t"].read, errno.EADDRNOTAVAIL)
assert buffer.reacquire() is False and buffer["t"].read() == bytes([1]) * 64
buffer.release()
for fill in (2, 3, 4):
    publish(fill)
assert buffer.reacquire() is True and buffer.version == 4
assert buffer["t"].read() == bytes([4]) * 64 and buffer["t"].__cuda_array_interface__["data"] == at
""")


def test_a_sleeper_in_host_memory_too(play):
    play("""
publish(1, device="host")
buffer = weightd.attach("m")
view = buffer["t"].memoryview()
buffer.release()
fails(weightd.Error, buffer["t"].read, errno.EADDRNOTAVAIL)
assert buffer.reacquire() is False and bytes(view) == bytes([1]) * 64
""")


STREAM = """
cuda = ctypes.CDLL("libcuda.so.1")
stream = ctypes.c_void_p()
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxPushCurrent_v2(context) == 0
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
at = ctypes.c_uint64(buffer["t"].__cuda_array_interface__["data"][0])
gate = os.path.join(os.environ["FAKE_CUDA_STATE"], "gate")
pinned = ctypes.c_void_p()
assert cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(64), 0) == 0
host = (ctypes.c_ubyte * 64).from_address(pinned.value)
class Stream:  # as torch has them
    cuda_stream = stream.value
"""


def test_what_is_detached_stays_until_its_stream_has_passed(play):
    play("""
publish(9)
buffer = weightd.attach("m", device="cuda:0")
""" + STREAM + """
open(gate, "w").close()
assert cuda.cuMemcpyDtoHAsync_v2(host, at, 64, stream) == 0
buffer.detach(Stream)
del buffer
gc.collect()
assert weightd.reap() == 1 and weightd.ls("m")[0].n_readers == 1, "a copy still reads it"
os.unlink(gate)
assert cuda.cuStreamSynchronize(stream) == 0
assert weightd.reap() == 0 and weightd.ls("m")[0].n_readers == 0
assert bytes(host) == bytes([9]) * 64
""")


def test_a_publish_waits_for_the_stream_that_writes(play):
    play("""
writer = weightd.create("m", layout, device="cuda:0")
buffer = writer
""" + STREAM + """
host[:] = bytes([8]) * 64
open(gate, "w").close()
assert cuda.cuMemcpyHtoDAsync_v2(at, host, 64, stream) == 0
import threading
published = []
thread = threading.Thread(target=lambda: published.append(writer.publish(stream=Stream)))
thread.start()
thread.join(0.2)
assert published == [] and thread.is_alive(), "it waits"
os.unlink(gate)
thread.join(60)
assert published == [1] and weightd.attach("m", device="cuda:0")["t"].read() == bytes([8]) * 64
""")


def test_streams_of_all_makes_and_none_else(play):
    play("""
from weightd import _stream
class Torch: cuda_stream = 7
class Cupy: ptr = 8
class Any:
    def __cuda_stream__(self): return (0, 9)
assert [_stream.handle(s) for s in (0, 5, Torch(), Cupy(), Any(), None)] == [0, 5, 7, 8, 9, 2**64 - 1]
for wrong in (True, "default", 1.5, object()):
    fails(TypeError, lambda: _stream.handle(wrong), says="is no stream")
fails(ValueError, lambda: _stream.handle(-1))
""")


def test_another_gpu_reads_it_by_peer_access(play):
    play("""
publish(6, device="cuda:0")
buffer = weightd.attach("m", device="cuda:0", map_device="cuda:1")
assert buffer.location.device == 1 and buffer["t"].__dlpack_device__() == (2, 1)
assert buffer["t"].read() == bytes([6]) * 64
""", devices=2)


def test_pickled_buffers_are_on_the_same_gpus_whatever_their_numbers_are_there(play):
    play("""
import pickle
publish(6, device="cuda:1")
mine = weightd.attach("m", device="cuda:1")
peers = weightd.attach("m", device="cuda:1", map_device="cuda:0")
print(pickle.dumps([(b, b["t"], b.location.uuid) for b in (mine, peers)]).hex())
""", devices=2)
    play(f"""
import pickle
mine, peers = pickle.loads(bytes.fromhex({play.said().strip()!r}))
for buffer, tensor, uuid in mine, peers:
    assert tensor.read() == bytes([6]) * 64 and buffer.location.uuid == uuid
assert (mine[0].location.device, peers[0].location.device) == (0, 1)
""", env={"CUDA_VISIBLE_DEVICES": "1,0"})


def test_a_child_of_a_reader_leaves_the_gpu_alone(play):
    play("""
publish(4)
buffer = weightd.attach("m", device="cuda:0")
child = os.fork()
if not child:
    try:
        fails(weightd.Disconnected, buffer["t"].read)
        del buffer
        gc.collect()
        os._exit(0)
    except BaseException as e:
        print(repr(e), flush=True)
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert buffer["t"].read() == bytes([4]) * 64
""")


def test_devices_are_listed_with_what_is_ours(play):
    gpus = play("""
publish()
host, gpu = weightd.devices()
assert host.device == "host" and gpu.vmm and not gpu.why and gpu.index == 0, gpu
assert gpu.total == 1 << 30 and gpu.free < gpu.total and gpu.ours == gpu.granularity > 0, gpu
print(gpu.device)
""")
    assert play.said().split() == [gpus.device(0)]


def test_without_a_gpu_the_reason_is_told(play):
    play("""
host, none = weightd.devices()
assert host.device == "host" and none.device == "cuda" and none.why, none
fails(weightd.Error, publish, errno.ENODEV)
fails(weightd.Error, lambda: weightd.attach("m", device="cuda:0"), errno.ENODEV)
fails(weightd.NotFound, lambda: weightd.attach("m"))
""", devices=0)


def test_a_watch_of_a_gpu_sees_what_happens_there(play):
    play("""
with weightd.watch(device="cuda:1") as watch, weightd.watch(device="cuda") as other:
    publish(device="cuda:1")
    event = watch.next(60)
    assert (event.kind, event.name, event.device) == ("created", "m", weightd.ls()[0].device), event
    fails(weightd.Timeout, lambda: other.next(0.05))
fails(weightd.Error, lambda: weightd.watch(device="cuda:2"), errno.ENODEV, "cuda:2: ")
fails(weightd.Error, lambda: weightd.watch(device="tpu"), errno.EINVAL, "'tpu' is not a device; use host, cuda:0")
""", devices=2)


def test_a_writer_is_called_as_its_buffer_will_be(play):
    play("""
writer = weightd.create("m", layout, device="cuda")
writer.publish()
assert writer.device == weightd.ls()[0].device == weightd.attach("m", device="cuda:0").device
""")


@pytest.mark.parametrize("handle,memory", [("vmm", "cuda"), ("ipc", "cuda-ipc")])
def test_files_are_loaded_to_a_gpu(play, tmp_path, handle, memory):
    data = bytes(range(256)) * 5000
    path = tmp_path / "model.safetensors"
    write_model(path, {"a": ("U8", (len(data),), data), "b": ("F32", (2,), b"abcdefgh")})
    play(f"""
phases = []
done = weightd.load("m", {str(path)!r}, device="cuda:1", handle={handle!r}, progress=lambda *told: phases.append(told))
assert done.version == 1 and done.n_tensors == 2 and phases
buffer = weightd.attach("m", device="cuda:1")
assert buffer.location.memory == weightd.ls()[0].memory == {memory!r}, buffer.location
assert buffer["a"].read() == bytes(range(256)) * 5000 and buffer["b"].read() == b"abcdefgh"
assert buffer.digest == done.digest
buffer.verify()
""", devices=2)


def test_memory_of_the_older_kind_does_not_keep_its_address(play):
    play("""
publish(1, handle="ipc")
buffer = weightd.attach("m", device="cuda:0")
assert buffer["t"].__dlpack_device__() == (2, 0) and buffer["t"].read() == bytes([1]) * 64
fails(weightd.Error, buffer.release, errno.EOPNOTSUPP)
publish(2)
fails(weightd.Error, buffer.swap, errno.EOPNOTSUPP, "refresh")
assert buffer.refresh()["t"].read() == bytes([2]) * 64
fails(ValueError, lambda: publish(handle="fabric"), says="is none of vmm, ipc")
""")


def test_a_gpu_that_is_full_says_so(play):
    play("""
layout.add("big", "U8", (2 << 30,))
fails(weightd.Error, publish, errno.ENOMEM, "are free")
assert weightd.ls() == []
""")


def test_a_torch_built_for_cuda_makes_its_tensors_of_them(play):
    """A real one, but for its start of CUDA, which would not find a GPU: it makes tensors and views, and computes nothing."""
    features.require("torch2")
    play("""
import torch, weightd.torch
if torch.version.cuda is None:
    print("this torch 2 is not built for CUDA")
    raise SystemExit
class Stream: cuda_stream = 0
torch.cuda._lazy_init, torch.cuda.current_stream = lambda: None, lambda device=None: Stream

def at(tensor):
    return tensor.__cuda_array_interface__["data"][0]

model = torch.nn.Linear(4, 4, device="meta")
layout = weightd.torch.layout_of(model)
for name in ("BF16", "F16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "C64"):
    layout.add(name, name, (2, 3))
with weightd.create("m", layout, device="cuda:1") as writer:
    assert writer["weight"].torch().data_ptr() == at(writer["weight"])
    assert weightd.torch.publish(writer) == 1
buffer = weightd.attach("m", device="cuda:1")
for tensor in buffer.values():
    found = tensor.torch()
    assert str(found.device) == "cuda:1" and tuple(found.shape) == tensor.shape and found.data_ptr() == at(tensor)
assert torch.from_dlpack(buffer["BF16"]).dtype == torch.bfloat16
weightd.torch.bind(model, buffer, strict=False)
assert isinstance(model.weight, torch.nn.Parameter) and str(model.weight.device) == "cuda:1"
assert model.weight.data_ptr() == at(buffer["weight"]) and model.bias.data_ptr() == at(buffer["bias"])
with weightd.torch.flat(torch.nn.Linear(2, 2, device="meta"), "flat", device="cuda:0") as flat:
    assert str(flat.module.weight.device) == "cuda:0" and flat.module.weight.data_ptr() == at(flat["weight"])
    weights = flat.module.weight
    assert flat.publish() == 1
    with weightd.create("flat", weightd.torch.layout_of(flat.module), device="cuda:0") as writer:
        weightd.torch.publish(writer)
    newer = weightd.attach("flat", device="cuda:0")
    weightd.torch.refresh(flat.module, newer)
    assert flat.module.weight is weights and weights.data_ptr() == at(newer["weight"])
del tensor, found, writer, flat, newer, weights
buffer.close()
gc.collect()
assert weightd.ls("m")[0].n_readers == 1, "the module reads it"
del model
gc.collect()
assert [found.n_readers for found in weightd.ls()] == [0, 0]
""", devices=2, python=features.TORCH2)
    features.require("torch2", play.said().strip(), not play.said())

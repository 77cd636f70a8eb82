"""
The Python package's facts about memory on a GPU: addresses, shapes, types and the GPU. Here host memory
is marked as a GPU's: no code reads it on the way, and the consumers are played by this file, which reads
capsules as they would. That a GPU computes on them is for tests/gpu/run to show.
"""
import ctypes
import gc

import pytest
from lib import features
from lib.python_package import MANY_KINDS, is_mapped, layout_of, publish

CUDA, GPU = 2, 3
TYPES = {"F32": (2, 32), "BF16": (4, 16), "I64": (0, 64), "BOOL": (6, 8), "C64": (5, 64), "F8_E4M3": (1, 8), "F4": (1, 8),
         "F6_E2M3": (1, 8)}


def move(table):
    """Marks its memory as that of a GPU."""
    from weightd import Location
    table._memory.location = table.location = Location("cuda", GPU, "8e2a4d5c-0000-4000-8000-000000000000")
    return table


@pytest.fixture
def on_gpu(weightd):
    """A published version of MANY_KINDS that is marked so."""
    publish(weightd, tensors=MANY_KINDS)
    return move(weightd.attach("m"))


def address(tensor):
    return tensor._memory.address + tensor.offset


def dltensor(capsule):
    from weightd import _dlpack
    return _dlpack.dl_tensor(capsule)


def test_a_capsule_says_which_gpu_and_where(on_gpu, numpy):
    for tensor in on_gpu.values():
        capsule = tensor.__dlpack__(stream=2)
        found = dltensor(capsule)
        assert (found.device_type, found.device_id) == tensor.__dlpack_device__() == (CUDA, GPU)
        assert (found.code, found.bits, found.lanes) == (*TYPES[tensor.dtype], 1), tensor
        if tensor.nbytes:
            assert found.data + found.byte_offset == address(tensor)
        if found.ndim:
            assert tuple((ctypes.c_int64 * found.ndim).from_address(found.shape)) == tensor._array().shape


def test_a_capsule_can_say_that_it_is_read_only(on_gpu, numpy):
    features.require("numpy-2.1", "numpy has no versioned DLPack", hasattr(numpy, "unstack"))
    from weightd import _dlpack
    capsule = on_gpu["t0"].__dlpack__(max_version=(1, 1))
    found = _dlpack.DLManagedTensorVersioned.from_address(_dlpack._pointer(capsule, b"dltensor_versioned"))
    assert found.major == 1 and found.flags & 1
    assert (found.dl_tensor.device_type, found.dl_tensor.device_id) == (CUDA, GPU)


def test_a_capsule_keeps_the_memory_until_it_goes(weightd, on_gpu, numpy):
    capsule, at = on_gpu["t0"].__dlpack__(), address(on_gpu["t0"])
    on_gpu.close()
    del on_gpu
    gc.collect()
    assert is_mapped(at)
    del capsule


def test_another_device_than_that_gpu_is_refused(on_gpu):
    for device in ((1, 0), (CUDA, 0)):
        with pytest.raises(BufferError, match=r"read\(\) copies it to the host"):
            on_gpu["t0"].__dlpack__(dl_device=device)


def test_the_array_interface_has_the_address(weightd, on_gpu, numpy):
    for tensor in on_gpu.values():
        found, like = tensor.__cuda_array_interface__, tensor._array()
        assert (found["shape"], found["typestr"]) == (like.shape, like.dtype.str), tensor
        assert found["data"] == (address(tensor) if tensor.nbytes else 0, True)
        assert (found["strides"], found["stream"], found["version"]) == (None, None, 3)
    with weightd.create("n", layout_of(weightd)) as writer:
        assert move(writer)["t0"].__cuda_array_interface__["data"][1] is False


@pytest.mark.parametrize("look", ["memoryview", "numpy", "__array__"])
def test_nobody_on_the_host_looks_into_a_gpu(on_gpu, numpy, look):
    with pytest.raises(TypeError, match=r"'t0' is on cuda:3: use torch\(\), cupy.from_dlpack\(\), or read\(\)"):
        getattr(on_gpu["t0"], look)()
    with pytest.raises(TypeError):
        numpy.asarray(on_gpu["t0"])


def test_torch_without_a_gpu_says_so_itself(on_gpu):
    features.require("torch")
    import torch
    features.require("torch", "torch has a GPU", not torch.cuda.is_available())
    with pytest.raises((RuntimeError, AssertionError)):  # whichever its release raises
        on_gpu["t0"].torch()


def test_torch_gets_all_types_by_their_bytes(on_gpu, monkeypatch):
    """As a torch with a GPU would take them: the device is left out of the capsule."""
    features.require("torch")
    import torch
    from weightd import _dlpack, _dtype
    monkeypatch.setattr(_dlpack, "device", lambda memory: _dlpack.CPU)
    for tensor in on_gpu.values():
        if not tensor.nbytes or tensor.dtype == "F4":
            continue
        try:
            found = tensor.torch()
        except TypeError as e:
            assert f"torch {torch.__version__} has no type" in str(e)
            continue
        assert found.data_ptr() == address(tensor) and tuple(found.shape) == tensor.shape
        assert str(found.dtype) == f"torch.{_dtype.TORCH[tensor.dtype]}"


def test_modules_are_bound_to_a_gpu(weightd, monkeypatch):
    features.require("torch")
    import torch
    import weightd.torch
    from weightd import _dlpack
    monkeypatch.setattr(_dlpack, "device", lambda memory: _dlpack.CPU)
    model = torch.nn.Linear(4, 4)
    with weightd.create("m", weightd.torch.layout_of(model)) as writer:
        move(writer)
        for name, tensor in model.state_dict().items():
            writer[name].torch().copy_(tensor)
        writer.publish()
    buffer = move(weightd.attach("m"))
    replica = weightd.torch.bind(torch.nn.Linear(4, 4, device="meta"), buffer)
    assert replica.weight.data_ptr() == address(buffer["weight"])
    assert torch.equal(replica(torch.ones(4)), model(torch.ones(4)))

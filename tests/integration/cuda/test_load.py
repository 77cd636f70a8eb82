"""
Loading to a GPU, on fake ones: its memory then equals the files, as checked by the GPU itself, and
a failure on the way prints one sentence and leaves nothing behind.
"""
import json
import os
import random
import signal

import pytest
from integration.load.test_load import MIB, buffers, eventually, random_tensors, u8, write_model
from lib import features, gguf, wire

ILLEGAL_ADDRESS, OUT_OF_MEMORY, NO_BINARY, INVALID_IMAGE, UNKNOWN = 700, 2, 209, 200, 999


@pytest.fixture
def gpu_daemon(make_daemon, gpu):
    return make_daemon(env=gpu.env)


@pytest.fixture
def model(tmp_path):
    """A file of 21 leaves with tensors of all sizes, and its tensors."""
    rng = random.Random(4)
    tensors = random_tensors(rng, "layer", 40) | {"last": u8(rng.randbytes(17 * MIB + 321))}
    path = tmp_path / "model.safetensors"
    write_model(path, tensors)
    return path, tensors


def load(daemon, path, *args, name="m", **kw):
    return daemon.ctl("load", "--json", "--quiet", "--device", "cuda:0", *args, name, path, **kw)


def listing(daemon, name="m"):
    done = daemon.ctl("tensors", "--device", "cuda:0", "--json", name)
    return {t["name"]: t for t in json.loads(done.stdout)["tensors"]}


def memory(gpu):
    """The bytes of the largest allocation."""
    return max(gpu.files(), key=lambda path: path.stat().st_size).read_bytes()


def check_bytes(daemon, gpu, tensors, name="m"):
    """Every tensor has its bytes and there are zeros between them."""
    there, at = memory(gpu), 0
    for tensor in listing(daemon, name).values():
        offset, data = tensor["offset"], tensors[tensor["name"]][2]
        assert there[offset:offset + len(data)] == data, tensor
        assert not any(there[at:offset]), f"something before {tensor}"
        at = max(at, offset + len(data))


def refused(daemon, path, *args):
    """The sentence of a load that has to fail."""
    done = load(daemon, path, *args, check=False)
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr.removeprefix("weightctl: ").rstrip("\n")


def check_nothing_is_left(daemon, gpu):
    eventually(lambda: gpu.used() == 0, lambda: f"{gpu.used()} bytes are taken")
    eventually(lambda: buffers(daemon) == [], lambda: buffers(daemon))




def test_a_model_without_a_byte_is_loaded_like_any_other(gpu_daemon, tmp_path):
    path = tmp_path / "empty.safetensors"
    write_model(path, {"nothing": u8(b"")})
    load(gpu_daemon, path)
    assert listing(gpu_daemon)["nothing"]["shape"] == [0]
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


@pytest.mark.threads
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.long), 5])
def test_what_is_on_the_gpu_is_what_the_file_holds(gpu_daemon, gpu, model, threads):
    path, tensors = model
    load(gpu_daemon, path, "--threads", threads)
    check_bytes(gpu_daemon, gpu, tensors)
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


@pytest.mark.threads
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_file_that_is_not_in_the_page_cache_is_loaded_to_a_gpu_in_chunks(gpu_daemon, gpu, model, threads):
    path, tensors = model
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    done = json.loads(load(gpu_daemon, path, "--read", "direct", "--threads", threads).stdout)
    features.require("direct", f"no direct reads of {path}", available=done["direct"] > 0)
    assert done["direct"] == done["size"]
    check_bytes(gpu_daemon, gpu, tensors)
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


def test_a_load_has_the_digest_that_it_has_in_host_memory(gpu_daemon, model):
    path, _ = model
    there = json.loads(load(gpu_daemon, path).stdout)
    # Memory that is used again has the layout that memory of a GPU has.
    here = json.loads(gpu_daemon.ctl("load", "--json", "--quiet", "--reusable", "m", path).stdout)
    assert there["digest"] == here["digest"]


def test_a_gguf_file_is_loaded_to_a_gpu_tensor_by_tensor(gpu_daemon, gpu, tmp_path):
    rng = random.Random(5)
    sizes = {"a": ("Q4_K", [3, 512]), "b": ("F32", [5]), "c": ("MXFP4", [64, 4096]), "d": ("IQ1_S", [40, 25_600])}
    tensors = {name: (dtype, shape, rng.randbytes(gguf.size_of(dtype, shape))) for name, (dtype, shape) in sizes.items()}
    gguf.write(tmp_path / "m.gguf", tensors)
    load(gpu_daemon, tmp_path / "m.gguf")
    check_bytes(gpu_daemon, gpu, tensors)
    assert {name: (row["dtype"], row["shape"]) for name, row in listing(gpu_daemon).items()} == sizes
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


def test_a_real_model_is_loaded_to_a_gpu(gpu_daemon, gpu):
    features.require("model")
    name = features.MODEL / "model.safetensors"
    load(gpu_daemon, features.MODEL)
    data = name.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    tensors = {n: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
               for n, t in header.items() if n != "__metadata__"}
    check_bytes(gpu_daemon, gpu, tensors)
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


def test_progress_tells_of_the_digests_on_the_gpu(gpu_daemon, model):
    done = gpu_daemon.ctl("load", "--device", "cuda:0", "m", model[0])
    assert "m: verifying 100 %" in done.stderr


# --- Overlap ------------------------------------------------------------------------------------------

@pytest.fixture
def recorded(make_gpus, make_daemon, tmp_path):
    """A GPU with a record, its weightd, and a file of 38 leaves."""
    gpus = make_gpus(record=1)
    path = tmp_path / "long.safetensors"
    write_model(path, {"long": u8(random.Random(6).randbytes(MIB) * 37 + b"end")})
    return gpus, make_daemon(env=gpus.env), path


def order(gpus, kind, what):
    """Numbers of the copies to the GPU, or of kernels, in the order of the record."""
    return [n for found, n, _, _, size in gpus.record(kind) if found == what and (kind == "kernel" or size > 1024)]


def test_a_stretch_is_read_while_another_one_is_copied_and_no_more(recorded):
    gpus, daemon, path = recorded
    gpus.fail("cuMemHostAlloc", "hang")  # until the gate is shut
    loading = daemon.spawn("load", "--quiet", "--device", "cuda:0", "--threads", "1", "m", path)
    with gpus.gate(loading.pid):
        gpus.heal()
        eventually(lambda: len(order(gpus, "HtoD", "queue")) == 2, lambda: f"{gpus.record()}")
        assert not order(gpus, "HtoD", "begin")  # the second was read while the first waits
    assert loading.wait(60) == 0
    seen = [(what, n) for what, n, _, _, size in gpus.record("HtoD") if size > 1024]
    copies = order(gpus, "HtoD", "queue")
    assert len(copies) == 19
    for before, n in zip(copies, copies[2:]):  # two buffers: the third use of one is behind the copy of the first
        assert seen.index(("end", before)) < seen.index(("queue", n)), seen


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 3])
def test_what_has_arrived_is_digested_while_the_rest_is_read(recorded, threads):
    gpus, daemon, path = recorded
    gpus.fail("cuMemcpyHtoDAsync", "hang", skip=17)
    loading = daemon.spawn("load", "--quiet", "--device", "cuda:0", "--threads", str(threads), "m", path)
    eventually(lambda: len(order(gpus, "kernel", "end")) >= 1, gpus.record)
    assert len(order(gpus, "HtoD", "queue")) <= 17 and loading.poll() is None
    gpus.heal()
    assert loading.wait(60) == 0
    assert sum(size for what, _, _, _, size in gpus.record("kernel") if what == "end") == 38  # a block each, and each once
    daemon.ctl("verify", "--device", "cuda:0", "m")


# --- Failures ----------------------------------------------------------------------------------------

@pytest.mark.threads
@pytest.mark.parametrize("skip", [0, pytest.param(3, marks=pytest.mark.long), 9])
def test_a_copy_that_fails_ends_the_load(gpu_daemon, gpu, model, skip):
    gpu.fail("cuMemcpyHtoDAsync", ILLEGAL_ADDRESS, skip=skip)
    assert refused(gpu_daemon, model[0]) == (
        "the copy to the GPU has failed: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
    gpu.heal()
    check_nothing_is_left(gpu_daemon, gpu)
    load(gpu_daemon, model[0])


def test_memory_that_cannot_be_pinned_is_told_of(gpu_daemon, gpu, model):
    gpu.fail("cuMemHostAlloc", OUT_OF_MEMORY)
    assert refused(gpu_daemon, model[0], "--threads", 3) == (
        "12 MiB of host memory to copy from cannot be pinned (the driver: CUDA_ERROR_OUT_OF_MEMORY: out of memory); "
        "fewer threads need less")
    gpu.heal()
    check_nothing_is_left(gpu_daemon, gpu)


@pytest.mark.parametrize("call", ["cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuEventSynchronize"])
def test_a_gpu_that_takes_no_copies_is_told_of(gpu_daemon, gpu, model, call):
    gpu.fail(call, ILLEGAL_ADDRESS)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in refused(gpu_daemon, model[0])
    gpu.heal()
    check_nothing_is_left(gpu_daemon, gpu)


LOADS = """
import weightd

def load(name, threads):
    return weightd.load(name, {path!r}, device="cuda:0", threads=threads).digest

def refused(threads):
    try:
        load("no", threads)
    except weightd.Error as e:
        print(str(e).partition(" of host memory")[0])

first = load("m", 3)
attached = weightd.attach("m", device="cuda:0")
load("second", 3)
with open({fail!r}, "w") as f:
    f.write("cuMemHostAlloc 2 0\\n")
assert load("third", 3) == load("fourth", 1) == first
refused(4)
attached.close()
refused(1)
"""


def test_a_load_copies_from_what_the_last_one_has_pinned(gpu_daemon, gpu, model):
    path, tensors = model
    code = LOADS.format(path=str(path), fail=str(gpu.folder / "fail"))
    done = gpu.python(code, env={"WEIGHTD_SOCKET": gpu_daemon.socket, "WEIGHTD_LIBRARY": str(features.LIBRARY)})
    assert done.stdout == "16 MiB\n4 MiB\n"  # it ends with the last memory that is mapped
    gpu.heal()
    gpu_daemon.ctl("verify", "--device", "cuda:0", "fourth")
    used = gpu.used()
    for name in "m", "second", "third":
        gpu_daemon.ctl("rm", "--device", "cuda:0", name)
    gpu.wait_used(used // 4)
    check_bytes(gpu_daemon, gpu, tensors, name="fourth")


def test_a_gpu_lost_in_the_middle_ends_the_load(gpu_daemon, gpu, model):
    gpu_daemon.env["ASAN_OPTIONS"] += ":detect_leaks=0"  # a GPU that is lost frees nothing
    gpu.fail("cuMemcpyHtoDAsync", "hang", skip=2)
    loading = gpu_daemon.spawn("load", "--quiet", "--device", "cuda:0", "m", model[0])
    script = gpu.folder / "fail"
    eventually(lambda: "hang 0" in script.read_text(), script.read_text)
    gpu.fail_instead(("*", ILLEGAL_ADDRESS, 0, -1))
    _, errors = loading.communicate(timeout=60)
    assert loading.returncode == 1 and b"CUDA_ERROR_ILLEGAL_ADDRESS" in errors, errors
    gpu.heal()
    check_nothing_is_left(gpu_daemon, gpu)


def test_an_interrupted_load_leaves_nothing(gpu_daemon, gpu, model):
    with gpu.gate():
        loading = gpu_daemon.spawn("load", "--quiet", "--device", "cuda:0", "m", model[0])
        eventually(lambda: gpu.used() > 0, lambda: "no memory yet")
        wire.interrupt(loading, signal.SIGTERM)
    _, errors = loading.communicate(timeout=60)
    assert loading.returncode == 128 + signal.SIGTERM and errors.startswith(b"weightctl: interrupted: the load was cancelled at ")
    check_nothing_is_left(gpu_daemon, gpu)


# --- Digests -----------------------------------------------------------------------------------------

def test_a_byte_that_changes_on_its_way_is_found_before_the_publish(gpu_daemon, gpu, model):
    path, tensors = model
    gpu.fail("cuLaunchKernel", "hang", skip=1)  # the second one has the last leaves
    loading = gpu_daemon.spawn("load", "--quiet", "--device", "cuda:0", "--threads", "1", "m", path)
    last = tensors["last"][2]
    eventually(lambda: gpu.used() and last in memory(gpu), lambda: "not all was copied")
    offset = memory(gpu).index(last[:64]) + 15 * MIB
    gpu.poke(last[15 * MIB:15 * MIB + 64], bytes([last[15 * MIB] ^ 1]) + last[15 * MIB + 1:15 * MIB + 64])
    gpu.heal()
    _, errors = loading.communicate(timeout=60)
    leaf = offset // MIB * MIB
    assert loading.returncode == 1 and errors.decode() == (
        f"weightctl: the bytes from {leaf} to {leaf + MIB} on the GPU are not those that were read; load again, "
        "and check the memory of the GPU and of the machine if it happens twice\n")
    check_nothing_is_left(gpu_daemon, gpu)


def test_verify_finds_a_changed_byte_by_the_gpu_itself(gpu_daemon, gpu, model):
    path, tensors = model
    load(gpu_daemon, path)
    last = tensors["last"][2]
    offset = memory(gpu).index(last[:64]) + 9 * MIB
    gpu.poke(last[9 * MIB:9 * MIB + 64], bytes([last[9 * MIB] ^ 0x80]) + last[9 * MIB + 1:9 * MIB + 64])
    done = gpu_daemon.ctl("verify", "--device", "cuda:0", "m", check=False)
    leaf = offset // MIB * MIB
    assert done.returncode == 1
    assert f"the bytes from {leaf} to {leaf + MIB} are not those published" in done.stderr


def test_the_model_is_not_copied_back_to_be_digested(gpu_daemon, gpu, model):
    load(gpu_daemon, model[0])
    gpu.fail("cuLaunchKernel", ILLEGAL_ADDRESS)
    done = gpu_daemon.ctl("verify", "--device", "cuda:0", "m", check=False)
    assert done.returncode == 1 and "the GPU cannot digest it: CUDA_ERROR_ILLEGAL_ADDRESS" in done.stderr, done.stderr


def test_a_driver_that_makes_no_code_of_the_kernel_copies_the_model_back(gpu_daemon, gpu, model):
    path, tensors = model
    gpu.fail("cuModuleLoadData", NO_BINARY)
    load(gpu_daemon, path)
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")
    check_bytes(gpu_daemon, gpu, tensors)


def is_digested_by_the_gpu(daemon, gpu, capability="9.0", **env):
    """Verifies on a GPU of this compute capability; False: the model was copied back, and was right."""
    major, minor = capability.split(".")
    gpu.fail("cuLaunchKernel", ILLEGAL_ADDRESS)
    done = daemon.ctl("verify", "--device", "cuda:0", "m", check=False,
                      env={"FAKE_CUDA_ATTRIBUTES": f"75={major},76={minor}"} | env)
    gpu.heal()
    by_gpu = "the GPU cannot digest it: CUDA_ERROR_ILLEGAL_ADDRESS" in done.stderr
    assert done.returncode == int(by_gpu), done.stderr
    return by_gpu


def test_gpus_that_the_kernel_has_code_for_need_no_compiler(gpu_daemon, gpu, model):
    load(gpu_daemon, model[0])
    for capability in "8.0", "8.9", "9.0", "10.0", "10.3":
        assert is_digested_by_the_gpu(gpu_daemon, gpu, capability, FAKE_CUDA_NO_JIT="1"), capability


def test_for_other_gpus_the_driver_compiles_the_kernel(gpu_daemon, gpu, model):
    load(gpu_daemon, model[0])
    for capability in "7.0", "7.5", "12.0":
        assert is_digested_by_the_gpu(gpu_daemon, gpu, capability), capability
        assert not is_digested_by_the_gpu(gpu_daemon, gpu, capability, FAKE_CUDA_NO_JIT="1"), capability


def test_a_driver_that_does_not_know_the_format_of_the_code_compiles_the_kernel(gpu_daemon, gpu, model):
    load(gpu_daemon, model[0])
    for result in INVALID_IMAGE, NO_BINARY, UNKNOWN:
        gpu.fail("cuModuleLoadData", result, count=1)
        assert is_digested_by_the_gpu(gpu_daemon, gpu), result


def test_what_a_program_writes_is_digested_by_the_gpu(gpu_daemon, gpu):
    write = """
import weightd
layout = weightd.Layout()
layout.add("t", "U8", [5 << 20])
with weightd.create("m", layout, device="cuda:0") as writer:
    writer.write(0, bytes(range(256)) * (20 << 10))
    try:
        print(writer.publish())
    except weightd.Error as e:
        print(e)
"""
    gpu.fail("cuLaunchKernel", ILLEGAL_ADDRESS, count=1)
    done = gpu.python(write, env={"WEIGHTD_SOCKET": gpu_daemon.socket})
    assert "the GPU cannot digest it: CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout
    gpu.heal()
    done = gpu.python(write, env={"WEIGHTD_SOCKET": gpu_daemon.socket})
    assert done.stdout == "1\n"
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")


def test_memory_of_the_older_kind_is_loaded_and_verified_alike(gpu_daemon, gpu, model):
    path, tensors = model
    load(gpu_daemon, path, "--handle", "ipc")
    check_bytes(gpu_daemon, gpu, tensors)
    gpu.fail("cuLaunchKernel", ILLEGAL_ADDRESS, skip=1)
    gpu_daemon.ctl("verify", "--device", "cuda:0", "m")
    done = gpu_daemon.ctl("verify", "--device", "cuda:0", "m", check=False)
    assert "the GPU cannot digest it" in done.stderr

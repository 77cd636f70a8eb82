"""The Python package: everything that needs no torch. numpy where arrays are looked at."""
import ctypes
import errno
import gc
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import features
import pytest

HEADER = features.ROOT / "libclient/include/weightd.h"
MANY_KINDS = (("F32", (4, 4)), ("BF16", (8,)), ("I64", ()), ("F32", (0, 3)), ("F4", (3, 4)),
              ("F4", (2, 3)), ("F6_E2M3", (2, 4)), ("BOOL", (5,)), ("C64", (2,)), ("F8_E4M3", (3,)))


@pytest.fixture
def weightd(daemon, monkeypatch):
    """The package, led to a daemon of this test's own."""
    features.require("library")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    import weightd
    return weightd


@pytest.fixture
def numpy():
    features.require("numpy")
    import numpy
    return numpy


@pytest.fixture
def python(daemon):
    """python(code): runs it in another interpreter that finds the package and the daemon."""
    features.require("library")

    def run(code, check=True):
        path = str(features.ROOT / "libclient/python")
        done = subprocess.run([sys.executable, "-c", code], env=daemon.env | {"PYTHONPATH": path},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done

    return run


def layout_of(weightd, *tensors, alignment=256):
    layout = weightd.Layout(alignment)
    for i, (dtype, shape) in enumerate(tensors or [("F32", (4, 4))]):
        layout.add(f"t{i}", dtype, shape)
    return layout


def publish(weightd, name="m", fill=1, tensors=(), **options):
    """A version of tensors t0, t1 ... (one F32 [4, 4] by default) of which each byte is `fill`."""
    with weightd.create(name, layout_of(weightd, *tensors), **options) as writer:
        for key in writer:
            view = writer[key].memoryview()
            view[:] = bytes([fill]) * len(view)
        return writer.publish()


def is_mapped(address):
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


# --- The declarations --------------------------------------------------------------------------------


def header():
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)


def test_each_function_of_the_header_is_declared_with_its_arguments():
    features.require("library")
    from weightd import _abi

    found = re.findall(r"^[a-z][^;{}()#]*?\b(weightd_\w+)\(([^;]*?)\);", header(), re.M)
    arguments = {name: 0 if text == "void" else text.count(",") + 1 for name, text in found}
    assert arguments == {name: len(types) - 1 for name, types in _abi.FUNCTIONS.items()}


def test_structs_have_the_size_and_offsets_of_the_header(tmp_path):
    features.require("library")
    compiler = shutil.which("cc") or shutil.which("gcc")
    features.require("cc", "no C compiler (apt-get install gcc)", bool(compiler))
    from weightd import _abi

    structs = {"weightd_tensor": _abi.Tensor, "weightd_server": _abi.Server,
               "weightd_attach_options": _abi.AttachOptions,
               "weightd_create_options": _abi.CreateOptions,
               "weightd_load_options": _abi.LoadOptions, "weightd_load_result": _abi.LoadResult,
               "weightd_buffer_info": _abi.BufferInfo, "weightd_version_info": _abi.VersionInfo,
               "weightd_slot_info": _abi.SlotInfo, "weightd_user_info": _abi.UserInfo,
               "weightd_stat": _abi.Stat, "weightd_event": _abi.Event}
    assert set(re.findall(r"^struct (\w+) \{", header(), re.M)) == set(structs)
    program = ['#include <stdio.h>', '#include "weightd.h"', "int main(void) {"]
    ours = []
    for name, struct in structs.items():
        program.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        ours.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            program.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));')
            ours.append(f"{name}.{field} {getattr(struct, field).offset}")
    source = tmp_path / "structs.c"
    source.write_text("\n".join([*program, "}"]))
    subprocess.run([compiler, "-I", HEADER.parent, source, "-o", tmp_path / "structs"], check=True)
    theirs = subprocess.run([tmp_path / "structs"], check=True, stdout=subprocess.PIPE, text=True)
    assert ours == theirs.stdout.splitlines()


def test_each_dtype_of_the_library_is_known_to_the_package():
    features.require("library")
    from weightd import _abi, _dtype

    names = {_abi.lib.weightd_dtype_name(code) for code in range(256)} - {None}
    assert {name.decode() for name in names} == set(_dtype.NUMPY)


def test_package_needs_neither_numpy_nor_torch(weightd, python):
    publish(weightd, fill=7)
    out = python("""if True:
        import sys
        sys.modules["numpy"] = sys.modules["torch"] = None
        import weightd
        tensor = weightd.attach("m")["t0"]
        print(bytes(tensor.memoryview()) == bytes([7]) * 64, tensor.shape, tensor.dtype)
        try:
            tensor.__dlpack__()
        except BufferError as e:
            print(e)
        """).stdout
    assert out == "True (4, 4) F32\nDLPack needs numpy or torch\n"


# --- Layouts -----------------------------------------------------------------------------------------


def test_layout_tells_what_was_put_into_it(weightd):
    layout = weightd.Layout(alignment=512)
    assert layout.add("a", "BF16", (3, 5), unit="block.0") == 0
    assert layout.add("state", "I64", (), role="buffer") == 1
    assert layout.tie("b", "a") == 2 and layout.tie("c", 0, unit="head") == 3
    rows = [(e.name, e.dtype, e.shape, e.offset, e.nbytes, e.role, e.unit, e.index, e.tied_to)
            for e in layout]
    assert rows == [("a", "BF16", (3, 5), 0, 30, "param", "block.0", 0, None),
                    ("state", "I64", (), 512, 8, "buffer", "", 1, None),
                    ("b", "BF16", (3, 5), 0, 30, "param", "", 2, 0),
                    ("c", "BF16", (3, 5), 0, 30, "param", "head", 3, 0)]
    assert len(layout) == 4 and layout.nbytes >= 520


def test_hash_of_a_layout_depends_on_each_dimension(weightd):
    shapes = (2, 6), (2, 6), (6, 2), (12,), (2, 7)
    hashes = {layout_of(weightd, ("F32", shape)).hash for shape in shapes}
    assert len(hashes) == 4 and all(len(found) == 16 for found in hashes)


@pytest.mark.parametrize("arguments", [
    ("a", "F32", (2,)), ("", "F32", (2,)), ("n", "F33", (2,)), ("n", "F32", (-1,)),
    ("n", "F32", (2**64,)), ("n", "F32", (2**40, 2**40)), ("n", "F32", (1,) * 33),
    ("n", "F32", (2,), "weights"), ("n\0a", "F32", (2,)), ("n" * 1025, "F32", (2,)), ("\ud800", "F32", (2,))])
def test_layout_refuses_a_tensor_that_is_none(weightd, arguments):
    layout = weightd.Layout()
    layout.add("a", "F32", (2,))
    with pytest.raises(ValueError):
        layout.add(*arguments)
    assert [entry.name for entry in layout] == ["a"]


def test_layout_refuses_wrong_alignments_ties_and_indices(weightd):
    layout = layout_of(weightd)
    for alignment in (32, 100, 2**22):
        with pytest.raises(ValueError):
            weightd.Layout(alignment)
    for target in ("nothing", 1, -1):
        with pytest.raises(ValueError):
            layout.tie("b", target)
    with pytest.raises(IndexError):
        layout[1]


# --- Reading -----------------------------------------------------------------------------------------


def test_tensors_are_found_by_name_and_index_in_order(weightd):
    publish(weightd, tensors=MANY_KINDS)
    with weightd.attach("m") as buffer:
        assert list(buffer) == [f"t{i}" for i in range(len(buffer))]
        assert [(t.dtype, t.shape) for t in buffer.values()] == list(MANY_KINDS)
        assert buffer.tensor(1).name == "t1" == buffer["t1"].name
        assert buffer["t1"].offset == 256 and buffer.nbytes == layout_of(weightd, *MANY_KINDS).nbytes
        assert buffer.version == 1 and buffer.name == "m" and buffer.device == "host"
        assert buffer.layout_hash == layout_of(weightd, *MANY_KINDS).hash and len(buffer.digest) == 16
        assert buffer == buffer and buffer != weightd.attach("m") and len({buffer, buffer}) == 1


@pytest.mark.parametrize("name", ["nothing", "", "t0\0", "\ud800", b"t0", 0, None])
def test_a_name_that_is_not_there_is_a_key_error(weightd, name):
    publish(weightd)
    buffer = weightd.attach("m")
    assert name not in buffer and buffer.get(name) is None
    with pytest.raises(KeyError):
        buffer[name]


def test_an_index_that_is_not_there_is_an_index_error(weightd):
    publish(weightd)
    for index in (1, -1, 2**32):
        with pytest.raises(IndexError):
            weightd.attach("m").tensor(index)


@pytest.mark.parametrize("dtype, kind, shape, seen", [
    ("F32", "float32", (2, 3), (2, 3)), ("F16", "float16", (4,), (4,)), ("BOOL", "bool", (3,), (3,)),
    ("C64", "complex64", (2,), (2,)), ("I8", "int8", (3,), (3,)), ("U64", "uint64", (), ()),
    ("BF16", "uint16", (2, 3), (2, 3)), ("F8_E5M2", "uint8", (5,), (5,)),
    ("F4", "uint8", (2, 6), (2, 3)), ("F4", "uint8", (2, 3), (3,)),
    ("F6_E3M2", "uint8", (2, 4), (2, 3)), ("F64", "float64", (0, 4), (0, 4))])
def test_array_has_the_type_or_the_bits_of_the_tensor(weightd, numpy, dtype, kind, shape, seen):
    publish(weightd, tensors=[("U8", (1,)), (dtype, shape)])
    buffer = weightd.attach("m")
    array = buffer["t1"].numpy()
    assert (array.dtype, array.shape) == (numpy.dtype(kind), seen)
    assert array.nbytes == buffer["t1"].nbytes and array.tobytes() == b"\1" * array.nbytes
    assert array.ctypes.data - buffer["t0"].numpy().ctypes.data == 256 or not array.size


def test_views_of_published_bytes_are_read_only(weightd, numpy):
    publish(weightd)
    tensor = weightd.attach("m")["t0"]
    assert tensor.memoryview().readonly and not tensor.numpy().flags.writeable
    with pytest.raises(ValueError):
        tensor.numpy()[:] = 0
    with pytest.raises(ValueError):
        tensor.numpy().flags.writeable = True
    with pytest.raises(TypeError):
        tensor.memoryview()[0] = 0


def test_asarray_converts_numbers_and_refuses_bits(weightd, numpy):
    publish(weightd, fill=0, tensors=[("F32", (2,)), ("BF16", (2,))])
    buffer = weightd.attach("m")
    assert numpy.shares_memory(numpy.asarray(buffer["t0"]), buffer["t0"].numpy())
    assert numpy.asarray(buffer["t0"], dtype="float64").dtype == "float64"
    assert numpy.array(buffer["t0"], copy=True).flags.writeable
    assert numpy.add(buffer["t0"], 1).tolist() == [1, 1]
    assert numpy.asarray(buffer["t1"]).dtype == "uint16"
    with pytest.raises(TypeError, match="BF16"):
        numpy.asarray(buffer["t1"], dtype="float32")


@pytest.mark.measures
def test_attach_costs_the_same_for_one_and_for_a_hundred_thousand_tensors(weightd):
    many = weightd.Layout()
    for i in range(100_000):
        many.add(f"model.layers.{i // 10}.tensor.{i % 10}.weight", "U8", (1,))
    for name, layout in (("one", layout_of(weightd)), ("many", many)):
        with weightd.create(name, layout) as writer:
            writer.publish()

    def cost(name):
        times = []
        for _ in range(200):
            start = time.perf_counter()
            weightd.attach(name)
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    cost("one")
    one, hundred_thousand = cost("one"), cost("many")
    assert hundred_thousand < 3 * one, f"{one * 1e6:.0f} us, {hundred_thousand * 1e6:.0f} us"
    buffer = weightd.attach("many")
    assert buffer["model.layers.9999.tensor.9.weight"].index == 99_999
    names = iter(buffer)
    assert next(names) == "model.layers.0.tensor.0.weight"


# --- DLPack ------------------------------------------------------------------------------------------


def test_numpy_takes_a_tensor_by_dlpack_without_a_copy(weightd, numpy):
    features.require("numpy-1.23", "numpy has no from_dlpack", hasattr(numpy, "from_dlpack"))
    publish(weightd, tensors=[("F32", (2, 3)), ("F32", ()), ("F32", (0, 3)), ("F8_E4M3", (4,))])
    for tensor in weightd.attach("m").values():
        array = numpy.from_dlpack(tensor)
        assert array.shape == tensor.shape
        assert array.tobytes() == tensor.memoryview().tobytes()
        assert array.ctypes.data == tensor.numpy().ctypes.data or not array.size


def dltensor(capsule):
    from weightd import _dlpack

    return _dlpack.dl_tensor(capsule)


def test_capsule_tells_type_shape_and_address(weightd, numpy):
    publish(weightd, tensors=[("U8", (1,)), ("BF16", (2, 3)), ("BOOL", (4,)), ("F16", (2,))])
    buffer = weightd.attach("m")
    base = buffer["t0"].numpy().ctypes.data
    for name, code, bits, shape in (("t1", 4, 16, [2, 3]), ("t2", 6, 8, [4]), ("t3", 2, 16, [2])):
        capsule = buffer[name].__dlpack__(stream=None)
        found = dltensor(capsule)
        assert (found.code, found.bits, found.lanes) == (code, bits, 1), name
        assert list((ctypes.c_int64 * found.ndim).from_address(found.shape)) == shape
        assert found.data + found.byte_offset == base + buffer[name].offset
        assert (found.device_type, found.device_id) == buffer[name].__dlpack_device__() == (1, 0)


def test_versioned_capsule_says_that_the_memory_is_read_only(weightd, numpy):
    major, minor = map(int, numpy.__version__.split(".")[:2])
    features.require("numpy-2.1", "numpy has no versioned DLPack", (major, minor) >= (2, 1))
    from weightd import _dlpack

    publish(weightd, tensors=[("BF16", (2,))])
    capsule = weightd.attach("m")["t0"].__dlpack__(max_version=(1, 1))
    pointer = _dlpack._pointer(capsule, b"dltensor_versioned")
    found = _dlpack.DLManagedTensorVersioned.from_address(pointer)
    assert (found.major, found.flags & 1, found.dl_tensor.code, found.dl_tensor.bits) == (1, 1, 4, 16)
    publish(weightd, "n")
    assert not numpy.from_dlpack(weightd.attach("n")["t0"]).flags.writeable


def test_dlpack_copies_when_asked_and_refuses_another_device(weightd, numpy):
    publish(weightd)
    tensor = weightd.attach("m")["t0"]
    assert dltensor(tensor.__dlpack__(copy=True)).data != tensor.numpy().ctypes.data
    assert dltensor(tensor.__dlpack__(dl_device=(1, 0), copy=False)).data == tensor.numpy().ctypes.data
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(2, 0))


def test_capsule_that_nobody_takes_lets_go_of_the_memory(weightd, numpy):
    publish(weightd, tensors=[("BF16", (8,))])
    buffer = weightd.attach("m")
    address = buffer["t0"].numpy().ctypes.data
    capsule = buffer["t0"].__dlpack__()
    del buffer
    assert is_mapped(address)
    del capsule
    assert not is_mapped(address)


def test_capsule_that_a_consumer_refuses_lets_go_of_the_memory(weightd, numpy):
    features.require("numpy-1.23", "numpy has no from_dlpack", hasattr(numpy, "from_dlpack"))
    publish(weightd, tensors=[("BF16", (8,))])
    buffer = weightd.attach("m")
    address = buffer["t0"].numpy().ctypes.data
    with pytest.raises((RuntimeError, BufferError)):  # numpy's own sentence, not a broken capsule's
        numpy.from_dlpack(buffer["t0"])
    del buffer
    gc.collect()
    assert not is_mapped(address)


# --- How long memory stays ---------------------------------------------------------------------------


def views(tensor):
    """All kinds of views of a tensor; none holds the tensor itself."""
    yield tensor.memoryview()
    yield tensor.numpy()
    yield tensor.numpy().reshape(-1)[1:]
    yield tensor.__dlpack__()
    if features.FEATURES["torch"][0]():
        yield tensor.torch()
        yield tensor.torch()[0].detach()


def test_each_kind_of_view_outlives_buffer_and_close(weightd, numpy):
    publish(weightd, fill=5)
    for i in range(len(list(views(weightd.attach("m")["t0"])))):
        buffer = weightd.attach("m")
        address = buffer["t0"].numpy().ctypes.data
        view = list(views(buffer["t0"]))[i]
        assert weightd.ping().n_leases == 1
        buffer.close()
        buffer.close()
        del buffer
        gc.collect()
        assert is_mapped(address) and weightd.ping().n_leases == 1, type(view)
        assert ctypes.string_at(address, 64) == bytes([5]) * 64
        del view
        assert not is_mapped(address) and weightd.ping().n_leases == 0


def test_closed_buffer_refuses_and_its_tensors_go_on(weightd):
    publish(weightd, fill=3)
    with weightd.attach("m") as buffer:
        tensor = buffer["t0"]
    assert bytes(tensor.memoryview()) == bytes([3]) * 64
    for use in (lambda: buffer["t0"], lambda: buffer.tensor(0), lambda: list(buffer), buffer.latest,
                buffer.refresh, buffer.verify, buffer.wait):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert (len(buffer), buffer.version) == (1, 1)


def test_views_die_in_any_order_in_any_thread(weightd, numpy):
    for version in range(1, 4):
        publish(weightd, fill=version, keep=8)
    wrong = []

    def torture(seed):
        rng, held = random.Random(seed), []
        for _ in range(300):
            buffer = weightd.attach("m", version=rng.randint(1, 3))
            held.append((buffer.version, rng.choice(list(views(buffer["t0"]))[:3])))
            if rng.random() < 0.3:
                buffer.close()
            if rng.random() < 0.2:
                held.append((buffer, buffer))  # cycles, for the collector
                buffer.__dict__["self"] = buffer
            rng.shuffle(held)
            for version, view in held[10:]:
                if isinstance(version, int) and bytes(view)[:1] != bytes([version]):
                    wrong.append((version, bytes(view)[:1]))
            del held[10:]

    threads = [threading.Thread(target=torture, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert wrong == [] and weightd.ping().n_leases == 0


def test_finalizer_in_the_middle_of_a_call_does_not_lock_up(weightd):
    publish(weightd)
    from weightd import _connection

    held = [weightd.attach("m")]

    def collect():
        with _connection.shared().use():  # as if the collector ran while this thread asks something
            held.clear()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive() and weightd.ping().n_leases == 0


# --- Writing -----------------------------------------------------------------------------------------


def test_views_made_while_writing_read_the_published_bytes(weightd, numpy):
    with weightd.create("m", layout_of(weightd)) as writer:
        assert writer.version is None and not writer["t0"].memoryview().readonly
        early, tensor = writer["t0"].numpy(), writer["t0"]
        early[:] = 2.5
        address = early.ctypes.data
        assert writer.publish() == writer.version == 1
    assert (early == 2.5).all() and early.ctypes.data == address
    assert (weightd.attach("m")["t0"].numpy() == 2.5).all()
    assert not tensor.numpy().flags.writeable and tensor.memoryview().readonly
    del writer, tensor
    gc.collect()
    assert (early == 2.5).all()
    del early
    assert not is_mapped(address)


def test_write_through_an_early_view_after_publish_is_a_segfault(weightd, numpy, python):
    done = python("""if True:
        import weightd
        layout = weightd.Layout()
        layout.add("w", "F32", (4,))
        writer = weightd.create("m", layout)
        view = writer["w"].numpy()
        view[:] = 1
        writer.publish()
        print(view.flags.writeable, view.sum(), flush=True)
        view[:] = 2
        """, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "True 4.0\n")
    weightd.attach("m").verify()


def test_unpublished_version_is_dropped_at_the_end_of_the_block(weightd):
    publish(weightd, fill=1)
    for failure in (None, RuntimeError("while filling")):
        try:
            with weightd.create("m", layout_of(weightd)) as writer:
                writer["t0"].memoryview()[:] = bytes(64)
                assert weightd.ls("m")[0].writing
                if failure:
                    raise failure
        except RuntimeError as e:
            assert e is failure
        del writer
        assert not weightd.ls("m")[0].writing
        assert [v.version for v in weightd.versions("m")] == [1]


def test_view_of_an_aborted_writer_stays_readable(weightd, numpy):
    with weightd.create("m", layout_of(weightd)) as writer:
        view = writer["t0"].numpy()
        view[:] = 3
    del writer
    gc.collect()
    assert (view == 3).all()
    address = view.ctypes.data
    del view
    assert not is_mapped(address)
    assert weightd.ls("m") == []


def test_second_writer_and_second_publish_are_refused(weightd):
    writer = weightd.create("m", layout_of(weightd))
    with pytest.raises(weightd.Error) as e:
        weightd.create("m", layout_of(weightd))
    assert e.value.errno == errno.EBUSY
    writer.publish()
    with pytest.raises(weightd.Error, match="already"):
        writer.publish()
    assert writer.version == 1


def test_writer_is_a_mapping_too(weightd):
    writer = weightd.create("m", layout_of(weightd, *MANY_KINDS))
    assert list(writer) == [f"t{i}" for i in range(len(MANY_KINDS))] and writer.tensor(2).shape == ()
    assert "nothing" not in writer and repr(writer) == "<Writer 'm' on host, unpublished, 10 tensors>"
    with pytest.raises(KeyError):
        writer["nothing"]


def test_mode_keep_and_new_layout_are_passed_on(weightd):
    publish(weightd, mode=0o600, keep=3)
    assert (weightd.ls("m")[0].mode & 0o777, weightd.ls("m")[0].keep) == (0o600, 3)
    with pytest.raises(weightd.LayoutMismatch):
        publish(weightd, tensors=[("F32", (4, 5))])
    assert publish(weightd, tensors=[("F32", (4, 5))], new_layout=True) == 2


# --- Versions ----------------------------------------------------------------------------------------


def test_refresh_attaches_the_newest_version_beside(weightd):
    publish(weightd, fill=1)
    old = weightd.attach("m")
    assert old.refresh() is None and old.latest() == 1
    publish(weightd, fill=2)
    new = old.refresh()
    assert (old.latest(), old.version, new.version) == (2, 1, 2)
    assert old["t0"].memoryview()[0] == 1 and new["t0"].memoryview()[0] == 2
    assert weightd.attach("m", version=1).version == 1


def test_wait_returns_when_another_thread_publishes(weightd):
    publish(weightd)
    buffer, found = weightd.attach("m"), []
    waits = (lambda: buffer.wait(timeout=30), lambda: weightd.wait("m", 2, timeout=30),
             lambda: weightd.attach("m", version=2, timeout=30).version,
             lambda: weightd.attach("new", timeout=None).version)
    threads = [threading.Thread(target=lambda wait=wait: found.append(wait())) for wait in waits]
    for thread in threads:
        thread.start()
    publish(weightd)
    publish(weightd, "new")
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [1, 2, 2, 2]
    assert buffer.wait(newer_than=0) == 2


@pytest.mark.parametrize("wait", [
    lambda weightd: weightd.attach("m").wait(timeout=0.01),
    lambda weightd: weightd.wait("m", 2, timeout=0),
    lambda weightd: weightd.wait("nothing", timeout=0.3),
    lambda weightd: weightd.attach("nothing", timeout=0.01)])
def test_waits_end_at_their_deadline(weightd, wait):
    publish(weightd)
    start = time.monotonic()
    with pytest.raises(TimeoutError) as e:
        wait(weightd)
    assert isinstance(e.value, weightd.Timeout) and str(e.value) and time.monotonic() - start < 5


@pytest.mark.parametrize("wait", ['weightd.attach("m").wait()', 'weightd.wait("n")'])
def test_ctrl_c_ends_a_wait(weightd, daemon, wait):
    publish(weightd)
    code = f"import weightd; print('up', flush=True); {wait}"
    env = daemon.env | {"PYTHONPATH": str(features.ROOT / "libclient/python")}
    with subprocess.Popen([sys.executable, "-c", code], env=env, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as proc:
        assert proc.stdout.readline() == "up\n"
        time.sleep(0.1)  # into the wait; nothing tells when
        proc.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in proc.communicate(timeout=10)[1]


def test_drop_is_seen_by_who_has_it_attached(weightd):
    publish(weightd, fill=1)
    publish(weightd, fill=2)
    old, new = weightd.attach("m", version=1), weightd.attach("m")
    weightd.drop("m", 1)
    assert [v.version for v in weightd.versions("m") if v.current] == [2]
    with pytest.raises(weightd.Error) as e:
        weightd.drop("m", 2)
    assert e.value.errno == errno.EBUSY
    weightd.drop("m")
    assert weightd.ls() == [] and old["t0"].memoryview()[0] == 1 and new["t0"].memoryview()[0] == 2
    for use in (new.latest, lambda: new.wait(timeout=10), new.refresh):
        with pytest.raises(weightd.Removed, match="'m' on host was removed"):
            use()


def test_listings_are_plain_objects(weightd, daemon):
    publish(weightd, "b", tensors=MANY_KINDS)
    publish(weightd, "a")
    server, (a, b), (version,) = weightd.ping(), weightd.ls(), weightd.versions("b")
    assert (server.pid, server.n_buffers, server.release) == (daemon.pid, 2, weightd.__version__)
    assert (a.name, a.device, a.state, a.writing, a.uid) == ("a", "host", "ready", False, os.geteuid())
    assert (b.n_tensors, b.n_versions, b.version, version.current) == (len(MANY_KINDS), 1, 1, True)
    assert a.digest == weightd.attach("a").digest and a.layout_hash == weightd.attach("a").layout_hash
    assert abs(b.published_ns / 1e9 - time.time()) < 60 and b.slot_bytes >= b.n_bytes > 0
    assert [info.name for info in weightd.ls("b")] == ["b"] and weightd.ls("nothing") == []


def test_verify_compares_the_bytes_with_their_digest(weightd):
    publish(weightd, tensors=[("U8", (3 << 20,))])
    weightd.attach("m").verify()


# --- Errors ------------------------------------------------------------------------------------------


def test_errors_are_typed_and_carry_the_sentence(weightd):
    publish(weightd)
    writer = weightd.create("empty", layout_of(weightd))
    other = layout_of(weightd, ("F32", (4, 5)))
    cases = [
        (lambda: weightd.attach("nothing"), weightd.NotFound, FileNotFoundError, "ENOENT", "nothing"),
        (lambda: weightd.attach("m", version=9), weightd.NotFound, OSError, "ENOENT", "9"),
        (lambda: weightd.attach("empty"), weightd.NotPublished, OSError, "ENODATA", "empty"),
        (lambda: weightd.attach("m", layout=other), weightd.LayoutMismatch, OSError, "EPROTOTYPE", "m"),
        (lambda: weightd.attach("m", layout=other.hash), weightd.LayoutMismatch, OSError,
         "EPROTOTYPE", "m"),
        (lambda: weightd.drop("nothing"), weightd.NotFound, OSError, "ENOENT", "nothing"),
        (lambda: weightd.ping("/nothing"), weightd.Disconnected, ConnectionError, "ENOENT", "/nothing")]
    for use, kind, builtin, code, word in cases:
        with pytest.raises(kind) as e:
            use()
        assert isinstance(e.value, builtin) and isinstance(e.value, weightd.Error)
        assert errno.errorcode[e.value.errno] == code and word in str(e.value)
        assert "[Errno" not in str(e.value)
    assert weightd.attach("m", layout=layout_of(weightd)).version == 1
    writer.close()


def test_malformed_arguments_are_value_errors(weightd):
    for use in (lambda: weightd.attach("m\0x"), lambda: weightd.attach("m", layout=b"short"),
                lambda: weightd.load("m", "a\0b"), lambda: weightd.drop("\ud800")):
        with pytest.raises(ValueError):
            use()


# --- Loading -----------------------------------------------------------------------------------------


def write_safetensors(path, **tensors):
    """tensors: name -> (dtype, shape, bytes)"""
    table, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t[2] for t in tensors.values()))


def test_load_publishes_files_and_reports_progress(weightd, tmp_path):
    data = os.urandom(1 << 20)
    write_safetensors(tmp_path / "1.safetensors", a=("BF16", [512, 1024], data))
    write_safetensors(tmp_path / "2.safetensors", b=("F32", [1], b"abcd"))
    seen = []
    result = weightd.load("m", tmp_path / "1.safetensors", str(tmp_path / "2.safetensors"), mode=0o600,
                          progress=lambda phase, done, total: seen.append((phase, done, total)))
    assert (result.version, result.n_tensors, result.n_files, result.n_bytes) == (1, 2, 2, (1 << 20) + 4)
    buffer = weightd.attach("m")
    assert bytes(buffer["a"].memoryview()) == data and bytes(buffer["b"].memoryview()) == b"abcd"
    assert buffer.digest == result.digest and weightd.ls("m")[0].mode & 0o777 == 0o600
    assert {phase for phase, _, _ in seen} <= {"plan", "memory", "read", "publish"} and seen
    assert all(0 <= done <= total for _, done, total in seen)


@pytest.mark.parametrize("failure", [RuntimeError("enough"), KeyboardInterrupt()])
def test_what_progress_raises_cancels_the_load(weightd, tmp_path, failure):
    write_safetensors(tmp_path / "a.safetensors", a=("F32", [1], b"abcd"))

    def progress(*_):
        raise failure

    with pytest.raises(type(failure)) as e:
        weightd.load("m", tmp_path / "a.safetensors", progress=progress)
    assert e.value is failure and weightd.ls() == []


def test_load_names_the_file_that_is_wrong_and_leaves_nothing(weightd, tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 64)
    for name, code in ("absent.safetensors", errno.ENOENT), ("bad.safetensors", errno.EBADMSG):
        with pytest.raises(weightd.Error, match=name) as e:
            weightd.load("m", tmp_path / name)
        assert e.value.errno == code and weightd.ls() == []


# --- Processes, threads, restarts --------------------------------------------------------------------


def test_forked_child_reads_on_and_connects_by_itself(weightd, python):
    publish(weightd, fill=4)
    out = python("""if True:
        import gc, mmap, os, weightd
        buffer = weightd.attach("m")
        view, tensor = buffer["t0"].memoryview(), buffer["t0"]
        layout = weightd.Layout()
        layout.add("w", "F32", (1 << 20,))
        writer = weightd.create("n", layout)
        child = os.fork()
        if child == 0:
            assert view[0] == 4 and buffer["t0"].memoryview()[5] == 4 and buffer.latest() == 1
            where_the_writer_was = [mmap.mmap(-1, 1 << 20) for _ in range(64)]
            del writer, layout
            gc.collect()
            assert sum(pages[0] for pages in where_the_writer_was) == 0
            assert weightd.attach("m")["t0"].memoryview()[0] == 4
            assert weightd.ping().n_sessions >= 2
            buffer.close()
            del view, tensor, buffer
            gc.collect()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert view[0] == 4 and weightd.ping().n_leases == 1 and buffer.refresh() is None
        writer["w"].memoryview()[:4] = b"done"
        print(writer.publish())
        """).stdout
    assert out == "1\n"
    assert bytes(weightd.attach("n")["w"].memoryview()[:4]) == b"done"


def test_parents_connection_is_refused_in_the_child(weightd, python):
    publish(weightd, fill=1)
    out = python("""if True:
        import os, sys, weightd
        buffer = weightd.attach("m")
        layout = weightd.Layout()
        layout.add("t0", "F32", (4, 4))
        with weightd.create("m", layout) as writer:
            writer.publish()
        if os.fork() == 0:
            try:
                buffer.refresh()
            except weightd.Disconnected as e:
                print(e.errno, e, flush=True)
            print(weightd.attach("m").version, flush=True)
            os._exit(0)
        os.wait()
        print(buffer.refresh().version)
        """).stdout.splitlines()
    assert out[0].startswith(f"{errno.ECHILD} ") and out[1:] == ["2", "2"]


def test_child_forked_while_a_thread_talks_is_not_locked_up(weightd, python):
    publish(weightd)
    out = python("""if True:
        import os, threading, weightd
        ended = threading.Event()
        def talk():
            while not ended.is_set():
                weightd.attach("m")
        threads = [threading.Thread(target=talk) for _ in range(3)]
        for thread in threads:
            thread.start()
        codes = []
        for _ in range(20):
            child = os.fork()
            if child == 0:
                weightd.attach("m").close()
                os._exit(weightd.ping().n_buffers)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        ended.set()
        print(set(codes))
        """).stdout
    assert out == "{1}\n"


@pytest.mark.threads
def test_threads_share_the_package(weightd):
    publish(weightd, fill=1, tensors=[("U8", (100,))] * 50)
    buffer, wrong = weightd.attach("m"), []

    def work(seed):
        rng = random.Random(seed)
        try:
            for i in range(100):
                name = f"t{rng.randrange(50)}"
                with weightd.attach("m") as mine:
                    if mine[name].memoryview()[99] != 1 or buffer[name].index != mine[name].index:
                        wrong.append(name)
                if i % 10 == 0:
                    weightd.ls()
                    publish(weightd, f"own-{seed}", fill=seed)
                    weightd.drop(f"own-{seed}")
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_next_call_connects_anew_after_the_server_went_away(weightd, daemon):
    publish(weightd, fill=6)
    buffer = weightd.attach("m")
    daemon.kill()
    assert buffer["t0"].memoryview()[0] == 6
    with pytest.raises(weightd.Disconnected):
        weightd.ping()
    daemon.start()
    assert weightd.ping().pid == daemon.pid
    publish(weightd, "n")
    other = weightd.attach("n")
    del buffer  # its lease is not the new server's business
    assert weightd.ping().n_leases == 1 and other["t0"].memoryview()[0] == 1


def test_connections_belong_to_their_socket(weightd, make_daemon):
    other = make_daemon()
    publish(weightd, "here")
    with weightd.create("there", layout_of(weightd), socket=other.socket) as writer:
        writer.publish()
    assert [info.name for info in weightd.ls(socket=other.socket)] == ["there"]
    assert weightd.attach("there", socket=other.socket).version == 1
    assert weightd.wait("there", socket=other.socket, timeout=5) == 1
    with pytest.raises(weightd.NotFound):
        weightd.attach("there")

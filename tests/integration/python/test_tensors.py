"""The Python package: layouts, tensors, their views, and how long memory stays."""
import ctypes
import errno
import gc
import pickle
import random
import sys
import threading
import time
import types

import pytest
from lib import features
from lib.python_package import MANY_KINDS, is_mapped, layout_of, publish


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


class Counted:
    """A function of the library, and how often it was called."""

    def __init__(self, function):
        self.function, self.n = function, 0

    def __call__(self, *args):
        self.n += 1
        return self.function(*args)


def test_names_and_look_ups_cost_one_call_each(weightd, monkeypatch):
    """And neither an object for a name nor a conversion for a tensor that nothing is asked of."""
    from weightd import _abi, _table, _tensor
    publish(weightd, tensors=[("F32", (2, 3))] * 300)
    buffer, made = weightd.attach("m"), []
    find, row = Counted(buffer._find), Counted(buffer._row)
    monkeypatch.setattr(weightd.Buffer, "_find", staticmethod(find))
    monkeypatch.setattr(weightd.Buffer, "_row", staticmethod(row))
    monkeypatch.setattr(_abi, "tensor_row", lambda: made.append(_abi.Tensor()) or made[-1])
    with monkeypatch.context() as patch:
        patch.setattr(_table, "Tensor", None)
        names = list(buffer.keys())
    assert names == [f"t{i}" for i in range(300)]
    assert (row.n, find.n, len(made)) == (300, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(_tensor.Entry, "__init__", None)
        tensors = [buffer[name] for name in names]
        assert not any(f"{name}x" in buffer for name in names)
    assert (row.n, find.n, len(made)) == (300, 600, 2)
    assert [(t.index, t.name, t.shape, t.offset) for t in tensors] == [(i, f"t{i}", (2, 3), 256 * i) for i in range(300)]


def test_a_look_up_in_the_middle_of_another_changes_nothing(weightd, monkeypatch):
    """As another thread makes it while this one waits for the interpreter's lock."""
    publish(weightd, tensors=[("U8", (i + 1,)) for i in range(9)])
    buffer, find = weightd.attach("m"), weightd.Buffer._find

    def interrupted(*args):
        r = find(*args)
        with monkeypatch.context() as patch:
            patch.setattr(weightd.Buffer, "_find", staticmethod(find))
            assert buffer["t7"].index == 7 and "t8x" not in buffer
        return r

    for _ in range(2):  # with a row that is there, and one that is new
        with monkeypatch.context() as patch:
            patch.setattr(weightd.Buffer, "_find", staticmethod(interrupted))
            tensor = buffer["t3"]
        assert (tensor.index, tensor.name, tensor.shape) == (3, "t3", (4,))


def test_a_tensor_is_described_when_it_is_asked(weightd):
    """Whatever happened to its buffer since the look-up."""
    kinds = [("F32", (2, 3)), ("BF16", (5,)), ("U8", ())]
    publish(weightd, fill=1, tensors=kinds)
    buffer = weightd.attach("m")
    before_swap, before_release, before_close = buffer["t0"], buffer["t1"], buffer["t2"]
    for fill in (2, 3, 4):  # so that the first version is freed
        publish(weightd, fill=fill, tensors=kinds)
        assert buffer.swap()
    assert (before_swap.name, before_swap.dtype, before_swap.shape, before_swap.unit) == ("t0", *kinds[0], "")
    assert before_swap.memoryview()[0] == 4
    buffer.release()
    assert (before_release.shape, before_release.nbytes) == ((5,), 10)
    buffer.reacquire()
    buffer.close()
    assert (before_close.name, before_close.shape, before_close.memoryview()[0]) == ("t2", (), 4)
    with pytest.raises(AttributeError, match="no attribute 'sape'"):
        before_close.sape


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
        for _ in range(50):
            start = time.perf_counter()
            weightd.attach(name)
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    # In turn, and the quietest round of each: others are at work on this machine.
    rounds = [(cost("one"), cost("many")) for _ in range(8)]
    one, hundred_thousand = map(min, zip(*rounds))
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


FLOAT8 = {"F8_E4M3": 10, "F8_E4M3FNUZ": 11, "F8_E5M2": 12, "F8_E5M2FNUZ": 13, "F8_E8M0": 14}  # dlpack.h


def test_capsule_names_float8_for_consumers_of_dlpack_1_1_and_has_its_bits_for_others(weightd, numpy):
    publish(weightd, tensors=[(kind, (2, 3)) for kind in FLOAT8])
    for tensor in weightd.attach("m").values():
        for version, code in (((1, 1), FLOAT8[tensor.dtype]), ((1, 3), FLOAT8[tensor.dtype]), ((1, 0), 1), (None, 1)):
            for copy in (None, True):
                capsule = tensor.__dlpack__(max_version=version, copy=copy)
                found = dltensor(capsule)
                assert (found.code, found.bits, found.lanes) == (code, 8, 1), (tensor, version)
                assert ctypes.string_at(found.data, 6) == bytes(tensor.read())


@pytest.mark.parametrize("version, knows", [((0, 10, 2), True), ((0, 9, 0), False)])
def test_capsule_names_float8_for_a_jax_that_knows_it(weightd, numpy, monkeypatch, version, knows):
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(__version_info__=version))
    ask = eval("lambda tensor: tensor.__dlpack__(stream=None)", {"__name__": "jax._src.dlpack"})
    publish(weightd, tensors=[("F8_E4M3", (4,)), ("BF16", (4,)), ("F4", (4,))])
    capsules = [ask(tensor) for tensor in weightd.attach("m").values()]
    found = [dltensor(capsule) for capsule in capsules]
    assert [(f.code, f.bits) for f in found] == [(10 if knows else 1, 8), (4, 16), (1, 8)]


def test_versioned_capsule_says_that_the_memory_is_read_only(weightd, numpy):
    major, minor = map(int, numpy.__version__.split(".")[:2])
    features.require("numpy-2.1", "numpy has no versioned DLPack", (major, minor) >= (2, 1))
    from weightd import _dlpack

    publish(weightd, tensors=[("BF16", (2,))])
    capsule = weightd.attach("m")["t0"].__dlpack__(max_version=(1, 1))
    pointer = _dlpack._pointer(capsule, b"dltensor_versioned")
    found = _dlpack.DLManagedTensorVersioned.from_address(pointer)
    assert (found.major, found.flags & 1, found.dl_tensor.code, found.dl_tensor.bits) == (1, 1, 4, 16)
    publish(weightd, "n", tensors=[("F32", (4,)), ("F8_E5M2", (4,))])
    plain, float8 = weightd.attach("n").values()
    assert not numpy.from_dlpack(plain).flags.writeable
    capsule = float8.__dlpack__(max_version=(1, 1))
    found = _dlpack.DLManagedTensorVersioned.from_address(_dlpack._pointer(capsule, b"dltensor_versioned"))
    assert (found.major, found.minor >= 1, found.flags & 1, found.dl_tensor.code) == (1, True, 1, 12)


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


# --- Copies ------------------------------------------------------------------------------------------


def test_bytes_are_copied_out_of_any_place(weightd):
    publish(weightd, fill=3, tensors=[("U8", (300,)), ("F32", (0,)), ("BF16", (4,))])
    with weightd.attach("m") as buffer:
        assert buffer["t0"].read() == bytes([3]) * 300 and buffer["t1"].read() == b""
        assert buffer.read(buffer["t2"].offset, 8) == buffer["t2"].read() == bytes([3]) * 8
        assert len(buffer.read()) == buffer.nbytes and len(buffer.read(buffer.nbytes)) == 0
        into = bytearray(8)
        assert buffer["t2"].read(into) is into and into == bytes([3]) * 8
        for wrong in (lambda: buffer["t2"].read(bytearray(7)), lambda: buffer.read(0, 9, into)):
            with pytest.raises(ValueError, match="bytes do not go into"):
                wrong()
        with pytest.raises(weightd.Error) as e:
            buffer.read(buffer.nbytes - 4, 8)
        assert e.value.errno == errno.EINVAL


def test_bytes_are_copied_in_until_published(weightd, numpy):
    with weightd.create("m", layout_of(weightd, ("F32", (2, 3)), ("U8", (5,)))) as writer:
        array = numpy.arange(6, dtype="f4").reshape(2, 3)
        array.flags.writeable = False
        writer["t0"].write(array)
        writer["t1"].write(bytearray(b"abcde"))
        writer.write(writer["t1"].offset + 1, b"X")
        assert writer["t1"].read() == b"aXcde"
        for wrong in (b"abcd", b"abcdef", numpy.zeros(3)):
            with pytest.raises(ValueError, match="has 5 bytes"):
                writer["t1"].write(wrong)
        with pytest.raises(weightd.Error):
            writer.write(writer.nbytes, b"X")
        writer.publish()
        with pytest.raises(weightd.Denied):
            writer["t1"].write(b"abcde")
    with weightd.attach("m") as buffer:
        assert (buffer["t0"].numpy() == array).all()
        with pytest.raises(weightd.Denied):
            buffer["t1"].write(b"abcde")


def test_bytes_are_not_taken_in_another_order_than_they_are_seen_in(weightd, numpy):
    square = numpy.arange(9, dtype="f4").reshape(3, 3)
    others = [square.T, numpy.asfortranarray(square), numpy.zeros((3, 6), "f4")[:, ::2], square[::-1]]
    with weightd.create("m", layout_of(weightd, ("F32", (3, 3)))) as writer:
        writer["t0"].write(square)
        for array in others:
            with pytest.raises(ValueError, match=r"row by row.*ascontiguousarray\(\)"):
                writer["t0"].write(array)
            with pytest.raises(ValueError, match="row by row"):
                writer["t0"].read(array)
            assert writer["t0"].read() == square.tobytes()
            writer["t0"].numpy()[:] = array  # numpy looks at the strides
            assert (writer["t0"].numpy() == array).all()
            writer["t0"].write(square)


def test_host_memory_is_on_no_gpu(weightd):
    publish(weightd)
    buffer = weightd.attach("m")
    assert buffer.location[:3] == ("host", None, None) and not hasattr(buffer["t0"], "__cuda_array_interface__")
    assert weightd.create("n", layout_of(weightd)).location.memory == "host"


# --- Rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [slice(1, 3), slice(None), slice(2, 100), slice(4, 4), slice(9, None), slice(3, 1),
                                  slice(-2, None), slice(None, -1), slice(-100, 2), 0, 3, -1, -4])
def test_rows_are_those_of_numpy(weightd, numpy, rows):
    tensors = [(kind, shape) for kind in ("F32", "BF16", "F8_E4M3", "BOOL", "F4", "F6_E2M3", "C64")
               for shape in ((4, 8), (4,), (4, 2, 4), (4, 0))]
    layout = layout_of(weightd, *tensors)
    with weightd.create("m", layout) as writer:
        for tensor in writer.values():
            tensor.write(bytes((7 * i + tensor.index) % 2 if tensor.dtype == "BOOL" else (7 * i) % 256
                               for i in range(tensor.nbytes)))
        writer.publish()
    for tensor in weightd.attach("m").values():
        if tensor.dtype in ("F4", "F6_E2M3") and tensor.shape == (4,):
            continue  # its rows are less than bytes
        part, whole = tensor[rows], tensor.numpy()
        assert part.numpy().tobytes() == whole[rows].tobytes() == bytes(part.read()), tensor
        assert part.numpy().shape == whole[rows].shape and part.name == tensor.name
        assert part.shape == tensor.shape[1:] if isinstance(rows, int) else part.shape[1:] == tensor.shape[1:]
        if part.nbytes:
            assert part.numpy().ctypes.data - whole.ctypes.data == part.offset - tensor.offset
        if not tensor.nbytes or tensor.dtype in ("BF16", "BOOL"):  # not every numpy takes these
            continue
        assert numpy.from_dlpack(part).tobytes() == part.numpy().tobytes()


def test_rows_that_share_a_byte_are_refused_with_the_ones_that_do_not(weightd):
    publish(weightd, tensors=[("F4", (6, 3)), ("F6_E3M2", (8, 5)), ("F4", (8,))])
    buffer = weightd.attach("m")
    assert len(buffer["t0"][2:4].read()) == 3 and buffer["t0"][4:].offset == buffer["t0"].offset + 6
    assert buffer["t1"][4:8].nbytes == 15 and buffer["t2"][2:4].nbytes == 1
    for name, rows, each in (("t0", slice(1, 3), 2), ("t0", slice(0, 3), 2), ("t0", 0, 2), ("t1", slice(2, 6), 4),
                             ("t2", 3, 2)):
        with pytest.raises(ValueError, match=f"'{name}': .*within a byte; every {each} rows"):
            buffer[name][rows]


def test_other_indices_are_refused_with_the_way_out(weightd):
    publish(weightd, tensors=[("F32", (4, 4)), ("F32", ())])
    tensor, scalar = weightd.attach("m").values()
    for index, kind in ((4, IndexError), (-5, IndexError), ((1, 2), TypeError), (None, TypeError), (..., TypeError),
                        (1.0, TypeError), (True, TypeError), ([1], TypeError), (slice(0, 4, 2), ValueError),
                        (slice(3, 0, -1), ValueError)):
        with pytest.raises(kind, match="'t0'.*(rows|row)"):
            tensor[index]
    with pytest.raises(IndexError, match="scalar"):
        scalar[0]
    for use in (len, iter, reversed, lambda t: 1.0 in t):  # it is no sequence of numbers
        with pytest.raises(TypeError):
            use(tensor)
    assert bool(tensor[4:])


def test_rows_are_written_and_travel(weightd):
    with weightd.create("m", layout_of(weightd, ("F4", (4, 4)))) as writer:
        writer["t0"][1:3].write(b"abcd")
        with pytest.raises(ValueError, match="has 2 bytes, not 4"):
            writer["t0"][0].write(b"abcd")
        writer.publish()
    part = pickle.loads(pickle.dumps(weightd.attach("m")["t0"][2]))
    assert (part.shape, bytes(part.read())) == ((4,), b"cd")


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
    thread.join(60)
    assert not thread.is_alive() and weightd.ping().n_leases == 0

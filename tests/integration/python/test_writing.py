"""The Python package: writing and loading."""
import ctypes
import errno
import gc
import json
import os
import signal
import warnings

import pytest
from lib.python_package import MANY_KINDS, is_mapped, layout_of, publish


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


def test_load_warns_of_what_a_directory_leaves_out(weightd, tmp_path):
    write_safetensors(tmp_path / "model.safetensors", a=("F32", [1], b"abcd"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weightd.load("m", tmp_path)
    write_safetensors(tmp_path / "optimizer.safetensors", a=("F32", [1], b"efgh"))
    with pytest.warns(UserWarning, match="took 'model.safetensors' and left out 'optimizer.safetensors'") as noted:
        weightd.load("m", tmp_path)
    assert [w.filename for w in noted] == [__file__]
    assert bytes(weightd.attach("m")["a"].memoryview()) == b"abcd"


def test_a_warning_that_is_made_an_error_cancels_the_load(weightd, tmp_path):
    for name in "model", "optimizer":
        write_safetensors(tmp_path / f"{name}.safetensors", a=("F32", [1], b"abcd"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="left out"):
            weightd.load("m", tmp_path)
    assert weightd.ls() == []


def test_load_names_the_file_that_is_wrong_and_leaves_nothing(weightd, tmp_path):
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 64)
    for name, code in ("absent.safetensors", errno.ENOENT), ("bad.safetensors", errno.EBADMSG):
        with pytest.raises(weightd.Error, match=name) as e:
            weightd.load("m", tmp_path / name)
        assert e.value.errno == code and weightd.ls() == []

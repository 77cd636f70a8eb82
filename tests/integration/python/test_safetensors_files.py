"""weightd_safetensors_*: single files, which need no server."""
import ctypes
import os
import struct

import pytest
from integration.weightctl.test_save import read_header
from lib import features


@pytest.fixture
def library():
    """The declarations of the library, and a connection object that is not connected."""
    features.require("library")
    from weightd import _abi

    handle = ctypes.c_void_p()
    assert _abi.lib.weightd_new(ctypes.byref(handle)) == 0
    yield _abi, handle
    _abi.lib.weightd_close(handle)


def layout_of(_abi, *tensors, tie=None):
    layout = ctypes.c_void_p()
    assert _abi.lib.weightd_layout_new(0, ctypes.byref(layout)) == 0
    for name, dtype, shape in tensors:
        dims = (ctypes.c_uint64 * len(shape))(*shape)
        code = _abi.lib.weightd_dtype_parse(dtype.encode())
        assert _abi.lib.weightd_layout_add(layout, name.encode(), code, len(shape), dims, 1, None) == 0
    if tie:
        assert _abi.lib.weightd_layout_tie(layout, tie.encode(), 0, None) == 0
    return layout


def write(library, folder, name, layout, contents):
    """The result, and the sentence of a failure."""
    _abi, handle = library
    data = (ctypes.c_void_p * max(1, len(contents)))(*(ctypes.cast(c, ctypes.c_void_p).value if c else None for c in contents))
    given = _abi.SafetensorsContents(layout=layout, data=data)
    r = _abi.lib.weightd_safetensors_write(handle, os.fsencode(folder), name.encode(), ctypes.byref(given))
    _abi.lib.weightd_layout_free(layout)
    return r, _abi.lib.weightd_error(handle).decode() if r < 0 else ""


THREE = [("odd", "U8", [3]), ("scalar", "F64", []), ("none", "F32", [0, 9])]
BYTES = [b"abc", struct.pack("d", 0.5), None]


def test_a_file_has_its_tensors_and_is_read_in_pieces(library, tmp_path):
    _abi, handle = library
    assert write(library, tmp_path, "a.safetensors", layout_of(_abi, *THREE), BYTES) == (0, "")
    assert read_header(tmp_path / "a.safetensors")[1] == {
        "odd": ("U8", [3], b"abc"), "scalar": ("F64", [], BYTES[1]), "none": ("F32", [0, 9], b"")}
    file, found = ctypes.c_void_p(), _abi.Tensor()
    assert _abi.lib.weightd_safetensors_open(handle, os.fsencode(tmp_path / "a.safetensors"), ctypes.byref(file)) == 0
    assert _abi.lib.weightd_safetensors_find(file, b"odd", ctypes.byref(found)) == 0
    assert (found.name, found.n_bytes, found.n_dims, found.shape[0], found.data) == (b"odd", 3, 1, 3, None)
    piece = ctypes.create_string_buffer(2)
    assert _abi.lib.weightd_safetensors_read(file, found.offset + 1, piece, 2) == 0 and piece.raw == b"bc"
    assert _abi.lib.weightd_safetensors_find(file, b"even", ctypes.byref(found)) < 0
    assert b"has no tensor 'even'" in _abi.lib.weightd_error(handle)
    assert _abi.lib.weightd_safetensors_read(file, 1 << 20, piece, 2) < 0
    assert b"a.safetensors" in _abi.lib.weightd_error(handle)
    _abi.lib.weightd_safetensors_close(file)


def test_writes_that_cannot_be_are_refused_with_the_name(library, tmp_path):
    _abi, _ = library
    one = [("a", "U8", [1])]
    for name, layout, contents, sentence in (
            ("none", layout_of(_abi), [], "a file has one tensor at least"),
            ("tied", layout_of(_abi, *one, tie="b"), [b"x"], "tied to another one"),
            ("blocks", layout_of(_abi, ("q", "Q4_0", [32])), [bytes(18)], "safetensors files cannot have")):
        r, text = write(library, tmp_path, name, layout, contents)
        assert r < 0 and name in text and sentence in text, text
    assert write(library, tmp_path, "same", layout_of(_abi, *one), [b"x"])[0] == 0
    assert "two files would have the name" in write(library, tmp_path, "same", layout_of(_abi, *one), [b"y"])[1]
    assert "No such file" in write(library, tmp_path / "gone", "a", layout_of(_abi, *one), [b"x"])[1]
    assert sorted(os.listdir(tmp_path)) == ["same"]


def test_files_that_are_none_are_refused_with_the_name(library, tmp_path):
    _abi, handle = library
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "text").write_bytes(b"x" * 100)
    os.mkfifo(tmp_path / "pipe")
    for path, sentence in ((tmp_path, "is a directory"), (tmp_path / "short", "short"), (tmp_path / "text", "text"),
                           (tmp_path / "pipe", "neither a regular file"), (tmp_path / "nothing", "No such file")):
        file = ctypes.c_void_p()
        assert _abi.lib.weightd_safetensors_open(handle, os.fsencode(path), ctypes.byref(file)) < 0 and not file
        assert sentence in _abi.lib.weightd_error(handle).decode()

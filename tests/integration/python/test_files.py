"""The Python package: files and attributes beside the weights of a version."""
import errno
import json
import pickle

import pytest
from lib.python_package import layout_of, publish

FILES = {"config.json": b'{"a": 1}', "tokenizer/vocab.txt": "é\n".encode(), "empty.txt": b""}


def publish_with(weightd, files, attributes, name="m", **options):
    with weightd.create(name, layout_of(weightd), **options) as writer:
        writer.files = files
        writer.attributes = attributes
        return writer.publish()


def test_files_and_attributes_are_published_with_a_version(weightd):
    publish_with(weightd, {**FILES, "tokenizer/vocab.txt": "é\n"}, {"dtype": "F32", "tp_rank": 3})
    buffer = weightd.attach("m")
    assert dict(buffer.files) == FILES and list(buffer.files) == sorted(FILES)
    assert buffer.attributes == buffer.files.attributes == {"dtype": "F32", "tp_rank": "3"}
    assert "none" not in buffer.files and buffer.files.get("none") is None
    with pytest.raises(KeyError, match="none"):
        buffer.files["none"]
    assert dict(weightd.files("m@1")) == FILES and weightd.files("m").attributes == buffer.attributes


def test_version_begins_with_the_files_of_the_newest_one(weightd):
    publish_with(weightd, FILES, {"step": 1})
    with weightd.create("m", layout_of(weightd)) as writer:
        assert dict(writer.files) == FILES
        writer.attributes = {**writer.attributes, "step": 2}
        assert dict(writer.files) == FILES and writer.attributes == {"step": "2"}
        writer.publish()
    assert weightd.files("m@1").attributes == {"step": "1"}
    assert weightd.files("m").attributes == {"step": "2"} and dict(weightd.files("m")) == FILES
    publish(weightd)
    assert dict(weightd.files("m@3")) == FILES


def test_files_are_those_of_the_version_that_swap_attaches(weightd):
    publish_with(weightd, FILES, {"step": 1})
    buffer = weightd.attach("m")
    assert buffer.attributes == {"step": "1"}
    kept = buffer.files
    publish_with(weightd, {"b.json": "2"}, {"step": 2})
    assert buffer.attributes == {"step": "1"}
    assert buffer.swap() and dict(buffer.files) == {"b.json": b"2"} and buffer.attributes == {"step": "2"}
    weightd.drop("m", version=1)
    assert dict(kept) == FILES  # their memory is their own


def test_version_without_files_has_none(weightd):
    publish(weightd)
    buffer = weightd.attach("m")
    assert dict(buffer.files) == {} and buffer.attributes == {}
    with pytest.raises(weightd.NotPublished):
        weightd.files("m")
    with pytest.raises(weightd.NotFound):
        weightd.files("none")
    publish_with(weightd, {}, {})
    assert dict(weightd.files("m")) == {}


def test_files_can_be_pickled(weightd):
    publish_with(weightd, FILES, {"a": "b"})
    found = pickle.loads(pickle.dumps(weightd.files("m")))
    assert dict(found) == FILES and found.attributes == {"a": "b"}


@pytest.mark.parametrize("files, said", [
    ({"../x": b""}, "'../x' cannot be the path"), ({"/x": b""}, "'/x' cannot be the path"),
    ({"a": b"", "a/b": b""}, "a folder of the other"), ({"a": bytes(2**26 + 1)}, "more than 67108864 bytes"),
    ({"a\0b": b""}, "NUL")])
def test_files_that_cannot_be_are_refused_and_the_writer_goes_on(weightd, files, said):
    with weightd.create("m", layout_of(weightd)) as writer:
        writer.files = FILES
        with pytest.raises(ValueError, match=said):
            writer.files = files
        writer.publish()
    assert dict(weightd.files("m")) == FILES


def test_attributes_that_cannot_be_are_refused(weightd):
    with weightd.create("m", layout_of(weightd)) as writer:
        for attributes in ({"a b": 1}, {"": 1}, {"a": "x" * 5000}, {"weights": "/x"}):
            with pytest.raises(ValueError):
                writer.attributes = attributes
        writer.attributes = {"weights": "w"}
        writer.files = {"model.safetensors": b""}
        assert writer.attributes == {"weights": "w"}


def test_no_file_takes_the_path_of_the_weights(weightd):
    with weightd.create("m", layout_of(weightd)) as writer:
        with pytest.raises(weightd.Error, match="set the attribute 'weights'") as refused:
            writer.files = {"model.safetensors": b""}
        assert refused.value.errno == errno.EEXIST


def test_published_writer_takes_no_files(weightd):
    with weightd.create("m", layout_of(weightd)) as writer:
        writer.publish()
        with pytest.raises(weightd.Error) as refused:
            writer.files = FILES
        assert refused.value.errno == errno.EALREADY


def test_required_attributes_are_compared(weightd):
    publish_with(weightd, {}, {"dtype": "BF16", "tp_rank": 0})
    assert weightd.attach("m", require={"dtype": "BF16", "tp_rank": 0}).version == 1
    assert weightd.attach("m", require={}).version == 1
    with pytest.raises(weightd.AttributeMismatch,
                       match="the attribute 'dtype' of 'm@1' on host is 'BF16', and 'F32' is required"):
        weightd.attach("m", require={"tp_rank": 0, "dtype": "F32"})
    with pytest.raises(weightd.AttributeMismatch, match="'m@1' on host has no attribute 'x', and 'y' is required"):
        weightd.attach("m", require={"x": "y"})
    with pytest.raises(ValueError):
        weightd.attach("m", require={"a=b": "c"})
    assert weightd.ls("m")[0].n_readers == 0


def test_version_without_attributes_fits_no_requirement(weightd):
    publish(weightd)
    with pytest.raises(weightd.AttributeMismatch, match="has no attribute 'dtype'"):
        weightd.attach("m", require={"dtype": "F32"})
    assert weightd.ls("m")[0].n_readers == 0


def test_load_takes_files_and_attributes(weightd, tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (tmp_path / "config.json").write_text('{"architectures": ["A"]}')
    weightd.load("m", tmp_path, attributes={"tp_rank": 1})
    buffer = weightd.attach("m", require={"architecture": "A", "tp_rank": "1"})
    assert list(buffer.files) == ["config.json"]
    weightd.load("m", tmp_path, files=False)
    assert dict(weightd.files("m")) == {} and weightd.files("m").attributes["architecture"] == "A"
    with pytest.raises(ValueError):
        weightd.load("m", tmp_path, attributes={"a=b": 1})

"""weightd.save(), weightd.copy() and weightd.diff()."""

import pytest


@pytest.fixture
def published(weightd):
    def publish(value, name="m"):
        layout = weightd.Layout()
        layout.add("w", "F32", (256,))
        layout.add("b", "U8", (3,))
        with weightd.create(name, layout) as writer:
            writer["w"].write(bytes([value]) * 1024)
            writer["b"].write(b"abc")
            return writer.publish()

    return publish


def test_save_by_name_and_from_a_buffer(weightd, published, tmp_path):
    published(0)
    calls = []
    result = weightd.save("m@1", tmp_path / "a", progress=lambda *args: calls.append(args))
    assert (result.n_bytes, result.n_tensors, result.n_files) == (1027, 2, 1) and result.elapsed_ns > 0
    assert calls[0] == ("write", 0, 1027) and ("write", 1027, 1027) in calls and calls[-1][0] == "commit"
    with weightd.attach("m") as buffer:
        published(1)
        published(2)
        weightd.save(buffer, str(tmp_path / "b"), shard_size=3)
        assert weightd.diff(buffer, tmp_path / "a") == []
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    assert weightd.diff(tmp_path / "a", tmp_path / "b") == []


def test_save_refuses_and_replaces(weightd, published, tmp_path):
    published(0)
    weightd.save("m", tmp_path / "a")
    with pytest.raises(weightd.Error, match="is not empty"):
        weightd.save("m", tmp_path / "a")
    published(1)
    weightd.save("m", tmp_path / "a", replace=True)
    assert weightd.diff("m", tmp_path / "a") == []
    with pytest.raises(weightd.NotFound):
        weightd.save("nix", tmp_path / "b")
    with pytest.raises(ValueError):
        weightd.save("m", "a\0b")


def test_arguments_of_wrong_types_and_sizes(weightd, published, tmp_path):
    published(0)
    for size in -1, 1 << 64:
        with pytest.raises(ValueError, match="shard_size is"):
            weightd.save("m", tmp_path / "a", shard_size=size)
    with pytest.raises(TypeError, match="not int"):
        weightd.save(5, tmp_path / "a")
    with pytest.raises(TypeError, match="not int"):
        weightd.diff("m", 5)
    with pytest.raises(TypeError, match="not int"):
        weightd.model_dir(1)
    with pytest.raises(TypeError, match="not str"):
        weightd.attach("m", require="x")
    assert list(tmp_path.iterdir()) == []


def test_an_exception_in_progress_cancels_the_save(weightd, published, tmp_path):
    published(0)

    def stop(phase, done, total):
        raise KeyError(phase)

    with pytest.raises(KeyError, match="write"):
        weightd.save("m", tmp_path / "a", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_copy_under_another_name(weightd, published):
    published(0)
    calls = []
    with weightd.attach("m") as buffer:
        published(1)
        copied = weightd.copy(buffer, name="n", mode=0o600, progress=lambda *args: calls.append(args))
        assert copied.digest == buffer.digest
    assert (copied.version, copied.n_bytes, copied.n_tensors) == (1, 1027, 2) and copied.elapsed_ns > 0
    assert ("copy", 1027, 1027) in calls and calls[-1][0] == "publish"
    assert weightd.copy("m@1", name="n").version == 2 and weightd.diff("m@1", "n") == []
    assert {b.name: b.mode for b in weightd.ls()} == {"m": 0o640, "n": 0o600}
    with pytest.raises(weightd.Error, match="is on host already"):
        weightd.copy("m")
    with pytest.raises(weightd.NotFound):
        weightd.copy("nix", name="n")


def test_an_exception_in_progress_cancels_the_copy(weightd, published):
    published(0)

    def stop(phase, done, total):
        raise KeyError(phase)

    with pytest.raises(KeyError, match="memory"):
        weightd.copy("m", name="n", progress=stop)
    assert [b.name for b in weightd.ls()] == ["m"]


def test_diff_of_versions(weightd, published, tmp_path):
    published(0)
    published(1)
    (found,) = weightd.diff("m@1", "m@2")
    assert (found.name, found.kind) == ("w", "bytes")
    assert (found.n_elements, found.n_different, found.n_unmeasured) == (256, 256, 0)
    assert 0 < found.max_abs < 1e-30
    assert (found.first.shape, found.second.dtype) == ((256,), "F32")


def test_diff_of_other_tensors(weightd, published, tmp_path):
    published(0)
    layout = weightd.Layout()
    layout.add("b", "I8", (3,))
    layout.add("x", "U8", (1,))
    with weightd.create("other", layout) as writer:
        writer.publish()
    found = {d.name: d for d in weightd.diff("m", "other")}
    assert {n: d.kind for n, d in found.items()} == {"w": "only-first", "b": "type", "x": "only-second"}
    assert found["w"].second is None and found["x"].first is None and found["w"].max_abs is None
    with pytest.raises(weightd.NotFound):
        weightd.diff("m", "nix")
    with pytest.raises(weightd.Error, match="cannot open"):
        weightd.diff("m", tmp_path / "nix")

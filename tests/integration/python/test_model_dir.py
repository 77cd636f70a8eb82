"""weightd.model_dir(): the process is the holder of a directory that other processes load by its path."""
import errno
import hashlib
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys

import pytest
from lib.model_files import data_of, write_model
from lib.wire import until

OTHER = 12345


@pytest.fixture
def runtime(tmp_path, daemon, monkeypatch):
    folder = tmp_path / "runtime"
    folder.mkdir()
    daemon.env["XDG_RUNTIME_DIR"] = str(folder)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def model(runtime, daemon, tmp_path):
    """The bytes of the file that buffer m is loaded from; no directory may be left at the end."""
    folder = tmp_path / "model"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "none"}')
    whole = write_model(folder / "model.safetensors")
    daemon.ctl("load", "m", folder, "-q")
    yield whole
    assert not list(runtime.iterdir())


def digest_at(path):
    whole = (pathlib.Path(path) / "model.safetensors").read_bytes()
    return hashlib.sha256(data_of(whole)).hexdigest()


def digest(whole):
    return hashlib.sha256(data_of(whole)).hexdigest()


def put_digest(path, queue):
    queue.put(digest_at(path))


def test_a_directory_for_a_with_block(weightd, model, runtime):
    with weightd.model_dir("m") as path:
        assert isinstance(path, str) and pathlib.Path(path).parent == runtime
        assert digest_at(path) == digest(model)
        assert (pathlib.Path(path) / "config.json").read_text() == '{"model_type": "none"}'
        assert weightd.ls()[0].n_readers == 1
    assert not os.path.exists(path)
    assert weightd.ls()[0].n_readers == 0


def test_files_cannot_be_changed(weightd, model):
    with weightd.model_dir("m") as path:
        for change in (lambda: open(path + "/config.json", "w"), lambda: open(path + "/new", "w"),
                       lambda: os.unlink(path + "/config.json")):
            with pytest.raises(PermissionError):
                change()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing(weightd, model, method):
    context = multiprocessing.get_context(method)
    with weightd.model_dir("m") as path:
        queue = context.SimpleQueue()
        child = context.Process(target=put_digest, args=(path, queue))
        child.start()
        assert queue.get() == digest(model)
        child.join(60)
        assert child.exitcode == 0 and os.path.isdir(path)


def test_a_program_that_closes_descriptors(weightd, model):
    code = "import sys; b = open(sys.argv[1], 'rb').read(); sys.stdout.buffer.write(b[8 + int.from_bytes(b[:8], 'little'):])"
    with weightd.model_dir("m") as path:
        done = subprocess.run([sys.executable, "-c", code, path + "/model.safetensors"], stdout=subprocess.PIPE, check=True)
    assert done.stdout == data_of(model)


def test_a_forked_child_does_not_remove_it(weightd, model):
    directory = weightd.model_dir("m")
    child = os.fork()
    if child == 0:
        directory.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert digest_at(directory) == digest(model)
    directory.close()
    directory.close()
    assert not os.path.exists(directory)


def test_it_is_removed_when_it_is_forgotten(weightd, model):
    directory = weightd.model_dir("m")
    path = str(directory)
    del directory
    assert not os.path.exists(path)


def test_it_is_removed_at_the_end_of_the_interpreter(python, model, runtime):
    path = python("import weightd; d = weightd.model_dir('m'); print(d); d.cycle = d").stdout.strip()
    assert pathlib.Path(path).parent == runtime and not os.path.exists(path)


def test_several_versions_and_a_path(weightd, model, daemon, tmp_path):
    other = write_model(tmp_path / "other.safetensors", seed=2)
    daemon.ctl("load", "m", tmp_path / "other.safetensors", "-q")
    daemon.ctl("load", "n", tmp_path / "other.safetensors", "-q")
    with weightd.model_dir("m@1", "n", path=tmp_path / "here") as path:
        assert path == str(tmp_path / "here")
        assert digest_at(path + "/m") == digest(model) and digest_at(path + "/n") == digest(other)
    assert not os.path.exists(path)


def test_mapped_weights_outlast_the_directory(weightd, model):
    import mmap
    with weightd.model_dir("m") as path, open(path + "/model.safetensors", "rb") as f:
        mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    assert data_of(bytes(mapped)) == data_of(model)


def test_errors(weightd, model, tmp_path):
    with pytest.raises(weightd.NotFound):
        weightd.model_dir("none")
    with pytest.raises(TypeError):
        weightd.model_dir()
    with pytest.raises(weightd.Error) as e:
        weightd.model_dir("m", path=tmp_path)
    assert e.value.errno == errno.ENOTEMPTY
    with pytest.raises(weightd.Error, match="has no version after the '@'"):
        weightd.model_dir("m@x")
    layout = weightd.Layout()
    layout.add("w", "F32", (4,))
    with weightd.create("flat", layout, exclusive=True) as writer:
        writer.publish()
    with pytest.raises(weightd.Error, match="'flat@1' is not stored as a file") as e:
        weightd.model_dir("flat")
    assert e.value.errno == errno.EOPNOTSUPP
    with weightd.model_dir("m") as path, pytest.raises(weightd.Error, match="is in use by another holder"):
        weightd.model_dir("m", path=path)


def test_a_path_with_a_nul_is_not_cut(weightd, model, tmp_path):
    with pytest.raises(ValueError, match="holds a NUL"):
        weightd.model_dir("m", path=f"{tmp_path}/cut\0off")
    assert not (tmp_path / "cut").exists()


def test_it_cannot_be_pickled(weightd, model):
    with pytest.raises(TypeError, match="pass its path"):
        pickle.dumps(weightd.model_dir("m"))


def test_another_user_is_refused(weightd, model, require):
    require("root")
    with weightd.model_dir("m") as path:
        done = subprocess.run(["cat", path + "/model.safetensors"], user=OTHER, group=OTHER, extra_groups=[],
                              capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "") and "Permission denied" in done.stderr


def test_a_killed_process_leaves_it_for_the_next_one(python, weightd, model, runtime):
    python("import os, weightd; d = weightd.model_dir('m'); os.kill(os.getpid(), 9)", check=False)
    left, = runtime.iterdir()
    with pytest.raises(FileNotFoundError):
        open(left / "model.safetensors")
    with weightd.model_dir("m"):
        assert not left.exists()
    until(lambda: weightd.ls()[0].n_readers == 0, "the leases have ended")

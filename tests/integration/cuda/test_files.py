"""Files beside weights on a GPU, a fake one: as on the host, and none of cuda-ipc memory."""
import json

import pytest
from integration.load.test_load import u8, write_model


@pytest.fixture
def gpu_daemon(make_daemon, gpu):
    return make_daemon(env=gpu.env)


@pytest.fixture
def model(tmp_path):
    write_model(tmp_path / "model.safetensors", {"w": u8(b"x" * 1000)})
    (tmp_path / "config.json").write_text('{"architectures": ["A"]}')
    return tmp_path


def load(daemon, model, *args, **kw):
    return daemon.ctl("load", "--quiet", "--device", "cuda:0", *args, "m", model, **kw)


def test_version_on_a_gpu_has_files(gpu_daemon, model):
    load(gpu_daemon, model, "--attribute", "tp_rank=1")
    listed = json.loads(gpu_daemon.ctl("files", "--device", "cuda:0", "m", "--json").stdout)
    assert [file["path"] for file in listed["files"]] == ["config.json"]
    assert (listed["attributes"]["architecture"], listed["attributes"]["tp_rank"]) == ("A", "1")
    assert gpu_daemon.ctl("cat", "--device", "cuda:0", "m", "--file", "config.json").stdout == '{"architectures": ["A"]}'
    assert "architecture  A" in gpu_daemon.ctl("show", "--device", "cuda:0", "m").stdout


def test_cuda_ipc_memory_is_loaded_without_files(gpu_daemon, model):
    load(gpu_daemon, model, "--handle", "ipc")
    done = gpu_daemon.ctl("files", "--device", "cuda:0", "m", check=False)
    assert done.returncode == 1 and "has no files" in done.stderr, done.stderr
    done = load(gpu_daemon, model, "--attribute", "a=b", check=False)
    assert done.returncode == 1 and "is cuda-ipc memory, which has no files beside its weights" in done.stderr
    assert json.loads(gpu_daemon.ctl("show", "--device", "cuda:0", "m", "--json").stdout)["versions"][-1]["version"] == 1

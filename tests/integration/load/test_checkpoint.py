"""Checkpoints of torch.save(): the version has their tensors, and nothing in them runs."""
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys

import pytest
from integration.load import web
from integration.load.test_load import check_refused, clean  # noqa: F401
from lib import features, safetensors_file

DEBIAN = "/usr/bin/python3"  # has torch 1.13; of python3-torch
DEADLINE_S = 60

MAKE = """
import os, sys, torch
folder = sys.argv[1] + "/"
w = torch.arange(210000, dtype=torch.float32).view(300, 700)
state = {"a": w, "t": w.t(), "tied": w, "part": w[10:20], "empty": torch.zeros(0, 3), "h": torch.ones(5).half(), "bf": torch.ones(9).bfloat16(),
         "flag": torch.tensor([True, False]), "scalar": torch.tensor(3), "param": torch.nn.Parameter(torch.ones(3)), "wide": torch.ones(1).expand(4, 5)}
class Evil:
    def __reduce__(self):
        return os.system, (f"touch {folder}owned",)
torch.save(state, folder + "pytorch_model.bin")
torch.save({"state_dict": state, "epoch": 3}, folder + "old.pt", _use_new_zipfile_serialization=False)
torch.save({"a": w, "x": Evil()}, folder + "evil.bin")
torch.save({"a": w, "lr": 3}, folder + "entry.bin")
torch.save({"b": w}, folder + "second.bin")
plain = {name: t.detach().contiguous() for name, t in state.items()}
torch.save({name: bytes(t.view(-1).view(torch.uint8).tolist() if t.dim() and t.numel() else t.numpy().tobytes()) for name, t in plain.items()}, folder + "bytes")
"""

# Does what a loader that a file has taken over would do. Each line of ATTEMPTS must fail.
TORCH = """
import ctypes, errno, fcntl, os, resource, socket
if "FAKE_TORCH_PID" in os.environ:
    with open(os.environ["FAKE_TORCH_PID"], "w") as f:
        f.write(str(os.getpid()))
PARENT = os.getppid()
class Tensor:
    pass
loads = 0
def save(what, to, **_):
    pass
def zeros(n):
    return None
set_num_threads = set_grad_enabled = zeros
ATTEMPTS = {
    "write": lambda: open(os.environ["FAKE_TORCH_TARGET"], "w"), "socket": socket.socket, "fork": os.fork, "exec": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(PARENT, 0), "unlink": lambda: os.unlink(os.environ["FAKE_TORCH_TARGET"]),
    "pipe": os.pipe, "setuid": lambda: os.setuid(0), "chmod": lambda: os.chmod(0, 0o777),
    "limits": lambda: resource.prlimit(PARENT, resource.RLIMIT_NOFILE, (9, 9)), "fcntl": lambda: fcntl.fcntl(3, fcntl.F_SETOWN, PARENT)}
def attempt():
    for name, call in ATTEMPTS.items():
        try:
            call()
        except OSError as e:
            assert e.errno == errno.EPERM, f"{name}: {e}"
        else:
            raise Exception(f"{name} was possible")
    raise Exception("nothing was possible")
def hoard():
    return bytearray(4 << 30)
def hang():
    while True:
        pass
def crash():
    ctypes.string_at(0)
def name():
    return {"x\\x1b[31m": 3}
def load(f, map_location, weights_only):
    global loads
    loads += 1
    assert weights_only
    return globals()[os.environ["FAKE_TORCH"]]() if loads == 3 else None  # twice before it reads the file
"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Files that Debian's torch wrote."""
    features.require("torch")
    folder = tmp_path_factory.mktemp("checkpoints")
    subprocess.run([DEBIAN, "-c", MAKE, folder], check=True)
    (folder / "cut.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:500000])
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(
        {"weight_map": dict.fromkeys(("a", "tied", "h"), "pytorch_model.bin") | {"b": "second.bin"}}))
    return folder


@pytest.fixture
def fake_torch(tmp_path):
    """fake_torch(what): the environment of a weightctl whose torch does that, for the file of tmp_path."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(TORCH)
    (tmp_path / "m.bin").write_bytes(b"PK\3\4" + bytes(96))
    (tmp_path / "target").write_text("")
    return lambda what: {"PYTHONPATH": str(tmp_path), "WEIGHTD_PYTHON": sys.executable, "FAKE_TORCH": what, "FAKE_TORCH_PID": str(tmp_path / "pid"),
                         "FAKE_TORCH_TARGET": str(tmp_path / "target")}


def loaded(daemon, name):
    """{tensor: (type, shape, bytes, the name of the tensor whose bytes it shares)}"""
    listed = json.loads(daemon.ctl("tensors", name, "--json").stdout)["tensors"]
    return {t["name"]: (t["dtype"], t["shape"], daemon.ctl("cat", name, t["name"], text=False).stdout,
                        None if t["tied"] is None else listed[t["tied"]]["name"]) for t in listed}


@pytest.mark.plain  # as to C, all files are the same
@pytest.mark.parametrize("python", ["debian", "torch2"])
def test_tensors_of_a_checkpoint_are_loaded_with_their_ties(daemon, checkpoints, python):
    if python == "torch2":
        features.require("torch2")
    env = {"WEIGHTD_PYTHON": DEBIAN if python == "debian" else features.TORCH2}
    for name, file in (("m", "pytorch_model.bin"), ("old", "old.pt"))[:2 if python == "debian" else 1]:
        daemon.ctl("load", name, checkpoints / file, env=env)
        found = loaded(daemon, name)
        w = found["a"][2]
        assert w == struct.pack("<210000f", *range(210000))
        transposed = b"".join(w[4 * i:4 * i + 4] for i in range(0, 210000, 700))
        assert found["t"][:2] == ("F32", [700, 300]) and found["t"][2][:1200] == transposed
        assert found["tied"] == ("F32", [300, 700], w, "a")
        assert found["part"][1:3] == ([10, 700], w[28000:56000])
        assert {name: found[name][:3] for name in ("empty", "h", "bf", "flag", "scalar", "param", "wide")} == {
            "empty": ("F32", [0, 3], b""), "h": ("F16", [5], b"\0<" * 5), "bf": ("BF16", [9], b"\x80?" * 9), "flag": ("BOOL", [2], b"\1\0"),
            "scalar": ("I64", [], b"\3" + bytes(7)), "param": ("F32", [3], b"\0\0\x80?" * 3), "wide": ("F32", [4, 5], b"\0\0\x80?" * 20)}


def test_an_index_of_checkpoints_is_loaded(daemon, checkpoints):
    daemon.ctl("load", "m", checkpoints / "pytorch_model.bin.index.json", env={"WEIGHTD_PYTHON": DEBIAN})
    found = loaded(daemon, "m")
    assert found.keys() == {"a", "tied", "h", "b"} and found["a"][2] == found["b"][2]


@pytest.mark.plain
@pytest.mark.parametrize("file, phrase", [("evil.bin", "it names posix.system, and torch's weights_only loader admits no such"),
                                          ("entry.bin", "its entry 'lr' is of type int, not a tensor"), ("cut.bin", "weights_only loader says")])
def test_what_is_no_dict_of_tensors_is_refused_and_not_run(clean, checkpoints, file, phrase):  # noqa: F811
    done = clean.ctl("load", "m", checkpoints / file, check=False, env={"WEIGHTD_PYTHON": DEBIAN})
    check_refused(done, phrase, file)
    assert not (checkpoints / "owned").exists()


# --- The process that reads them -------------------------------------------------------------------

@pytest.mark.parametrize("what, phrase", [("attempt", "nothing was possible"), ("hoard", "more memory than three times its 100 bytes"),
                                          ("crash", "ended without a word"), ("name", "x\\x1b[31m")])
def test_a_loader_that_was_taken_over_can_do_nothing(clean, tmp_path, fake_torch, what, phrase):  # noqa: F811
    check_refused(clean.ctl("load", "m", tmp_path / "m.bin", check=False, env=fake_torch(what)), phrase, "m.bin")
    assert (tmp_path / "target").read_text() == ""


def wait_for_end(pid):
    """The process is none of ours: its end is seen in a descriptor of it."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(fd) as f:
        import select
        assert select.select([f], [], [], DEADLINE_S)[0]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_the_process_ends_with_the_load(clean, tmp_path, fake_torch, end):  # noqa: F811
    os.mkfifo(tmp_path / "pid")
    clean.env |= fake_torch("hang")
    proc = clean.spawn("load", "m", tmp_path / "m.bin", text=True)
    child = int((tmp_path / "pid").read_text())
    proc.send_signal(end)
    _, errors = proc.communicate(timeout=DEADLINE_S)
    assert proc.returncode == (130 if end == signal.SIGINT else -end), errors
    wait_for_end(child)


def test_the_working_directory_has_no_say(tmp_path, fake_torch):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in "json.py", "torch.py":
        (folder / name).write_text(f"open({str(tmp_path / 'owned')!r}, 'w')")
    done = subprocess.run([features.BUILD / "weightctl", "load", "--dry-run", "m", "../m.bin"], cwd=folder,
                          env=os.environ | fake_torch("attempt"), capture_output=True, text=True)
    check_refused(done, "nothing was possible")
    assert not (tmp_path / "owned").exists()


def test_without_torch_the_error_names_what_to_install(clean, tmp_path, fake_torch):  # noqa: F811
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('none here')")
    env = fake_torch("")
    check_refused(clean.ctl("load", "m", tmp_path / "m.bin", check=False, env=env), "has no torch", "pip install torch", "WEIGHTD_PYTHON")
    env["WEIGHTD_PYTHON"] = str(pathlib.Path("/nonexistent/python"))
    check_refused(clean.ctl("load", "m", tmp_path / "m.bin", check=False, env=env), "cannot be started", "WEIGHTD_PYTHON")


def test_a_checkpoint_of_a_server_is_refused(clean):  # noqa: F811
    features.require("curl")
    server = web.Web({"/m.bin": b"PK\3\4" + bytes(96)})
    try:
        check_refused(clean.ctl("load", "m", f"{server.url}/m.bin", check=False, env={"no_proxy": web.HERE}), "from a disk only")
    finally:
        server.close()


def test_python_converts_by_itself(weightd, tmp_path, fake_torch, monkeypatch):
    for name, value in fake_torch("attempt").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WEIGHTD_PYTHON")
    with pytest.raises(weightd.Error, match="nothing was possible"):
        weightd.load("m", tmp_path / "m.bin")
    assert os.environ["WEIGHTD_PYTHON"] == sys.executable


def test_a_zip_file_of_another_name_is_no_checkpoint(clean, tmp_path):  # noqa: F811
    (tmp_path / "m.safetensors").write_bytes(b"PK\3\4" + bytes(96))
    check_refused(clean.ctl("load", "m", tmp_path / "m.safetensors", check=False), "a zip archive, as torch.save()")
    (tmp_path / "m.bin").write_bytes(safetensors_file.pack({"x": ("U8", [3], b"abc")}))
    clean.ctl("load", "m", tmp_path / "m.bin")
    clean.ctl("rm", "m")

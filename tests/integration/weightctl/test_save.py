"""weightctl save: versions as directories of safetensors."""
import array
import fcntl
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess

import pytest
from integration.programs import compiled
from integration.weightctl.test_weightctl import HOSTILE, TENSORS, ctl_json, write_safetensors
from lib import features
from lib.wire import interrupt, until

FLOATS = array.array("f", range(256)).tobytes()
LAYERS = [(f"layers.{i}.weight", "F32", [256], FLOATS) for i in range(8)]
ODD = [("a", "U8", [3], b"abc"), ("b", "F64", [2], b"0123456789abcdef"), ("scalar", "BF16", [], b"xy"),
       ("empty", "F32", [0, 9], b""), (HOSTILE, "I16", [1], b"zz")]


def read_header(path):
    """(metadata, {name: (dtype, shape, bytes)}) of a file, which has no hole and nothing behind its tensors."""
    data = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    metadata = header.pop("__metadata__", {})
    body, end, tensors = data[8 + n:], 0, {}
    for name, e in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = e["data_offsets"]
        assert begin == end, name
        tensors[name], end = (e["dtype"], e["shape"], body[begin:stop]), stop
    assert end == len(body)
    return metadata, tensors


def as_dict(tensors):
    return {name: (dtype, shape, data) for name, dtype, shape, data in tensors}


def saved_tensors(folder):
    """Of all weights in a folder, which its index describes if there are several files."""
    files = sorted(pathlib.Path(folder).glob("*.safetensors"))
    found = {}
    for file in files:
        tensors = read_header(file)[1]
        assert not set(found) & set(tensors)
        found |= tensors
    if len(files) > 1:
        index = json.loads((pathlib.Path(folder) / "model.safetensors.index.json").read_text())
        where = {name: file.name for file in files for name in read_header(file)[1]}
        assert index["weight_map"] == where
        assert index["metadata"]["total_size"] == sum(len(t[2]) for t in found.values())
    return found


def tree(folder):
    """{path: bytes} of all files, None for folders."""
    folder = pathlib.Path(folder)
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def identity(daemon, name):
    shown = ctl_json(daemon, "show", name)
    return shown["layout"], shown["digest"]


@pytest.fixture
def place(tmp_path):
    """An empty folder to save into; nothing hidden may be left in it."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    (folder / "tokenizer").mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", LAYERS)
    (folder / "config.json").write_text('{"architectures": ["Layers"]}')
    return folder


@pytest.fixture
def loaded(daemon, model):
    daemon.ctl("load", "-q", "m", model)
    return daemon


# --- Bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensors", [LAYERS, ODD, TENSORS], ids=["layers", "odd", "names"])
def test_an_image_is_written_as_it_was_loaded(daemon, tmp_path, place, tensors):
    file = write_safetensors(tmp_path / "some.safetensors", tensors)
    daemon.ctl("load", "-q", "m", file)
    daemon.ctl("save", "-q", "m", place / "out")
    assert (place / "out/model.safetensors").read_bytes() == file.read_bytes()
    assert [p.name for p in (place / "out").iterdir()] == ["model.safetensors"]


def test_files_go_along(loaded, model, place):
    loaded.ctl("save", "-q", "m", place / "out")
    assert tree(place / "out") == {"config.json": (model / "config.json").read_bytes(),
                                   "model.safetensors": (model / "model.safetensors").read_bytes()}
    loaded.ctl("save", "-q", "--no-files", "m", place / "bare")
    assert list(tree(place / "bare")) == ["model.safetensors"]


def test_weights_have_the_path_in_their_attribute(daemon, model, place):
    daemon.ctl("load", "-q", "--attribute", "weights=unet/diffusion_pytorch_model.safetensors", "m", model)
    daemon.ctl("save", "-q", "m", place / "out")
    assert list(tree(place / "out")) == ["config.json", "unet", "unet/diffusion_pytorch_model.safetensors"]
    daemon.ctl("save", "-q", "--shard-size", "2048", "m", place / "shards")
    assert (place / "shards/unet/diffusion_pytorch_model-00001-of-00004.safetensors").exists()
    index = json.loads((place / "shards/unet/diffusion_pytorch_model.safetensors.index.json").read_text())
    assert index["weight_map"]["layers.7.weight"] == "diffusion_pytorch_model-00004-of-00004.safetensors"


def test_one_file_has_the_path_that_exec_shows(daemon, model, place):
    daemon.ctl("load", "-q", "--attribute", "weights=sub/w.bin", "m", model)
    daemon.ctl("save", "-q", "m", place / "out")
    assert list(tree(place / "out")) == ["config.json", "sub", "sub/w.bin"]
    assert daemon.ctl("exec", "m", "--", "cat", "{}/sub/w.bin", text=False).stdout == (place / "out/sub/w.bin").read_bytes()
    daemon.ctl("save", "-q", "--shard-size", "2048", "m", place / "shards")
    assert (place / "shards/sub/w.bin.safetensors.index.json").exists()


@pytest.mark.parametrize("size, n", [("1", 8), ("1024", 8), ("2047", 8), ("2048", 4), ("5k", 2), ("8191", 2),
                                     ("8192", 1), ("5G", 1)])
def test_shards_are_as_large_as_asked_for(loaded, place, size, n):
    loaded.ctl("save", "-q", "--no-files", "--shard-size", size, "m", place / "out")
    files = sorted(p.name for p in (place / "out").glob("*.safetensors"))
    wanted = [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)] if n > 1 else ["model.safetensors"]
    assert files == wanted
    assert saved_tensors(place / "out") == as_dict(LAYERS)


def test_shards_loaded_again_are_the_same_version(loaded, place):
    loaded.ctl("save", "-q", "--shard-size", "3k", "m", place / "out")
    loaded.ctl("load", "-q", "again", place / "out")
    assert identity(loaded, "again") == identity(loaded, "m")
    assert loaded.ctl("diff", "m", "again").returncode == 0


def test_tensors_without_bytes_have_a_file(daemon, tmp_path, place):
    file = write_safetensors(tmp_path / "e.safetensors", [("a", "F32", [0], b""), ("b", "U8", [0, 2], b"")])
    daemon.ctl("load", "-q", "--exclusive", "m", file)
    daemon.ctl("save", "-q", "m", place / "out")
    assert saved_tensors(place / "out") == {"a": ("F32", [0], b""), "b": ("U8", [0, 2], b"")}


@pytest.mark.parametrize("kind", ["--exclusive", "--reusable"])
@pytest.mark.parametrize("tensors", [LAYERS, ODD], ids=["layers", "odd"])
def test_flat_versions_become_dense_files(daemon, tmp_path, place, kind, tensors):
    file = write_safetensors(tmp_path / "some.safetensors", tensors)
    daemon.ctl("load", "-q", kind, "m", file)
    daemon.ctl("save", "-q", "m", place / "out")
    assert saved_tensors(place / "out") == as_dict(tensors)
    assert daemon.ctl("diff", "m", place / "out").returncode == 0
    daemon.ctl("save", "-q", "--shard-size", "17", "m", place / "shards")
    assert saved_tensors(place / "shards") == as_dict(tensors)


def test_elements_are_aligned_in_files_of_flat_versions(daemon, tmp_path, place):
    file = write_safetensors(tmp_path / "some.safetensors", ODD)
    daemon.ctl("load", "-q", "--exclusive", "m", file)
    daemon.ctl("save", "-q", "m", place / "out")
    data = (place / "out/model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    assert (8 + n) % 4096 == 0
    starts = {k: v["data_offsets"][0] for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}
    assert starts["b"] % 8 == 0 and starts["scalar"] % 2 == 0 and starts[HOSTILE] % 2 == 0


def test_flat_versions_keep_their_order_where_elements_are_aligned(daemon, tmp_path, place):
    tensors = [("small", "F32", [1], b"1234"), *LAYERS]
    daemon.ctl("load", "-q", "--exclusive", "m", write_safetensors(tmp_path / "some.safetensors", tensors))
    daemon.ctl("save", "-q", "m", place / "out")
    assert list(read_header(place / "out/model.safetensors")[1]) == [t[0] for t in tensors]
    daemon.ctl("load", "-q", "--exclusive", "again", place / "out")
    assert identity(daemon, "again") == identity(daemon, "m")


def test_a_version_on_a_gpu(make_daemon, gpu, model, place):
    daemon = make_daemon(env=gpu.env)
    daemon.ctl("load", "-q", "--device", "cuda:0", "m", model)
    daemon.ctl("save", "-q", "--device", "cuda:0", "--shard-size", "3k", "m", place / "out")
    assert saved_tensors(place / "out") == as_dict(LAYERS)
    assert (place / "out/config.json").exists()
    daemon.ctl("load", "-q", "--device", "cuda:0", "again", place / "out")
    assert identity_on(daemon, "again") == identity_on(daemon, "m")
    assert daemon.ctl("diff", "--device", "cuda:0", "m", place / "out").returncode == 0


def identity_on(daemon, name, device="cuda:0"):
    shown = ctl_json(daemon, "show", "--device", device, name)
    return shown["layout"], shown["digest"]


PUBLISH_TIES = """
import sys, weightd
layout = weightd.Layout(*([256] if sys.argv[1] == "flat" else []))
layout.add("embed.weight", "F32", (256,), unit="first")
layout.add("layers.0.running_mean", "F32", (64,), role="buffer")
layout.add("layers.0.weight", "F32", (256,), unit="\\u00e4\\"\\\\")
layout.tie("head.weight", "embed.weight", unit="last")
layout.tie("mean.alias", "layers.0.running_mean")
with weightd.create("m", layout) as w:
    for name in "embed.weight", "layers.0.running_mean", "layers.0.weight":
        w[name].write(bytes(range(256)) * (w[name].nbytes // 256))
    w.publish()
"""


@pytest.mark.parametrize("size", ["5G", "1k"])
def test_ties_roles_and_units_survive(daemon, python, place, size):
    python(PUBLISH_TIES.replace("sys.argv[1]", "'image'"))
    daemon.ctl("save", "-q", "--shard-size", size, "m", place / "out")
    daemon.ctl("load", "-q", "again", place / "out")
    assert identity(daemon, "again") == identity(daemon, "m")

    def rows(name):
        return ctl_json(daemon, "tensors", name)["tensors"]

    assert rows("again") == rows("m")
    assert {t["name"]: t["tied"] for t in rows("again")}["head.weight"] is not None
    assert {t["name"]: t["role"] for t in rows("again")}["layers.0.running_mean"] == "buffer"


def test_old_versions_can_be_saved(loaded, tmp_path, place):
    other = [(n, d, s, b"\1" * len(b)) for n, d, s, b in LAYERS]
    loaded.ctl("load", "-q", "m", write_safetensors(tmp_path / "other.safetensors", other))
    loaded.ctl("save", "-q", "m@1", place / "old")
    loaded.ctl("save", "-q", "m", place / "new")
    assert saved_tensors(place / "old") == as_dict(LAYERS)
    assert saved_tensors(place / "new") == as_dict(other)


def test_what_it_says(loaded, place):
    said = loaded.ctl("save", "m", place / "out").stdout
    assert said.startswith("m@1 on host: 2 files, 8.2 kB in ")
    said = ctl_json(loaded, "save", "m", place / "json")
    assert said.pop("elapsed_ns") > 0
    assert said == {"name": "m", "device": "host", "version": 1, "directory": str(place / "json"), "tensors": 8,
                    "files": 2, "size": 8192}


# --- Places ---------------------------------------------------------------------------------------


def refused(daemon, *args, status=1):
    done = daemon.ctl("save", "-q", *args, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr


def test_an_empty_directory_is_filled_and_keeps_its_mode(loaded, place):
    (place / "out").mkdir(mode=0o750)
    loaded.ctl("save", "-q", "m", f"{place}/out/")
    assert saved_tensors(place / "out") == as_dict(LAYERS)
    assert (place / "out").stat().st_mode & 0o7777 == 0o750


def test_new_directories_and_files_follow_the_umask(loaded, place):
    loaded.ctl("save", "-q", "m", place / "out", preexec_fn=lambda: os.umask(0o027))
    assert (place / "out").stat().st_mode & 0o7777 == 0o750
    assert (place / "out/model.safetensors").stat().st_mode & 0o7777 == 0o640


def test_a_relative_path(loaded, place):
    loaded.ctl("save", "-q", "m", "out", cwd=place)
    assert saved_tensors(place / "out") == as_dict(LAYERS)
    (place / "here").mkdir()
    said = loaded.ctl("save", "-q", "m", ".", cwd=place / "out", check=False)
    assert said.returncode == 1 and "is not empty" in said.stderr


def test_a_link_to_a_directory_is_followed(loaded, place):
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    loaded.ctl("save", "-q", "m", place / "link")
    assert (place / "link").is_symlink() and saved_tensors(place / "real") == as_dict(LAYERS)


@pytest.mark.parametrize("end", ["", "/"])
def test_a_link_that_leads_nowhere_is_refused_at_once(loaded, place, end):
    (place / "link").symlink_to("none")
    assert "is a link that leads nowhere" in refused(loaded, "m", f"{place}/link{end}")
    assert (place / "link").is_symlink() and [p.name for p in place.iterdir()] == ["link"]


def test_a_directory_with_files_is_refused(loaded, place):
    (place / "out").mkdir()
    (place / "out/mine").write_text("precious")
    said = refused(loaded, "m", place / "out")
    assert "is not empty" in said and "--force" in said
    said = refused(loaded, "--force", "m", place / "out")
    assert "it has no weights" in said
    assert tree(place / "out") == {"mine": b"precious"}


def test_force_replaces_a_model_and_all_that_is_in_it(loaded, place):
    loaded.ctl("save", "-q", "--shard-size", "1k", "m", place / "out")
    (place / "out/old").mkdir()
    (place / "out/old/file").write_text("x")
    (place / "out/link").symlink_to("/")
    loaded.ctl("save", "-q", "--force", "m", place / "out")
    assert list(tree(place / "out")) == ["config.json", "model.safetensors"]


def test_force_replaces_a_model_that_is_read_only(loaded, place):
    loaded.ctl("save", "-q", "m", place / "out")
    (place / "out/below").mkdir()
    (place / "out/below/file").write_text("x")
    (place / "out/below").chmod(0o555)
    (place / "out").chmod(0o555)
    drop = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()  # as other users
    done = subprocess.run([*drop, features.BUILD / "weightctl", "save", "-q", "--force", "m", place / "out"],
                          env=loaded.env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tree(place / "out")) == ["config.json", "model.safetensors"]
    assert [p.name for p in place.iterdir()] == ["out"]


@pytest.mark.parametrize("where, why", [("file", "not a folder"), ("none/out", "No such file"), ("", "no folder"),
                                        ("file/out", "Not a directory"), ("/", "name a folder below it")])
def test_places_that_cannot_be(loaded, place, where, why):
    (place / "file").write_text("mine")
    said = refused(loaded, "m", where if where in ("", "/") else place / where)
    assert why in said
    assert tree(place) == {"file": b"mine"}


def test_a_buffer_that_does_not_exist(loaded, place):
    assert "no buffer 'nix'" in refused(loaded, "nix", place / "out")
    assert tree(place) == {}


def test_usage(loaded, place):
    refused(loaded, "m", status=2)
    refused(loaded, "--shard-size", "0", "m", place / "out", status=2)
    refused(loaded, "--shard-size", "many", "m", place / "out", status=2)


def test_a_file_in_the_place_of_the_weights_is_refused_with_its_name(daemon, model, place):
    daemon.ctl("load", "-q", "--attribute", "weights=w.safetensors", "m", model)
    daemon.ctl("save", "-q", "m", place / "out")
    assert sorted(tree(place / "out")) == ["config.json", "w.safetensors"]


# --- Failures -------------------------------------------------------------------------------------


def in_mount(daemon, size, script, *args):
    """Runs a shell script with weightctl as $0, in a mount namespace with a file system of that size at $1."""
    return subprocess.run(["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} none "$1" && {script}',
                           features.BUILD / "weightctl", *map(str, args)], env=daemon.env, capture_output=True, text=True)


@pytest.mark.parametrize("size, shards", [("4k", "5G"), ("4k", "1k"), ("40k", "1k"), ("20k", "5G")])
def test_a_full_disk_leaves_nothing(daemon, model, tmp_path, place, size, shards):
    features.require("mounts")
    write_safetensors(model / "model.safetensors", LAYERS + [("large", "U8", [32768], bytes(32768))])
    (model / "README.md").write_text("x" * 5000)
    daemon.ctl("load", "-q", "m", model)
    daemon.ctl("save", "-q", "--shard-size", shards, "m", tmp_path / "roomy")
    needed = sum(len(data) for data in tree(tmp_path / "roomy").values())
    done = in_mount(daemon, size, '"$0" save -q --shard-size $2 m "$1/out"; status=$?; ls -A "$1"; exit $status', place, shards)
    assert done.returncode == 1 and done.stdout == ""
    assert "the disk is full" in done.stderr and f"needs {needed / 1000:.1f} kB there" in done.stderr


def test_a_full_disk_keeps_the_model_that_is_there(daemon, tmp_path, place):
    features.require("mounts")
    daemon.ctl("load", "-q", "m", write_safetensors(tmp_path / "a.safetensors", LAYERS))
    large = [("large", "U8", [65536], bytes(65536))]
    daemon.ctl("load", "-q", "large", write_safetensors(tmp_path / "b.safetensors", large))
    done = in_mount(daemon, "64k", '"$0" save -q m "$1/out" && ! "$0" save -q --force large "$1/out" && ls -A "$1" && '
                    '"$0" diff -q m "$1/out"', place)
    assert (done.returncode, done.stdout) == (0, "out\n"), done.stderr
    assert "the disk is full" in done.stderr


def test_a_mount_point_is_refused(loaded, place):
    features.require("mounts")
    done = in_mount(loaded, "1M", '"$0" save -q m "$1"; status=$?; ls -A "$1"; exit $status', place)
    assert (done.returncode, done.stdout) == (1, "")
    assert "mount point" in done.stderr


def test_a_bind_of_the_same_disk_is_a_mount_point(loaded, place, tmp_path):
    features.require("mounts")
    (place / "out").mkdir()
    (tmp_path / "other").mkdir()
    script = 'mount --bind "$2" "$1/out" && "$0" save -q m "$1/out"; status=$?; ls -A "$1/out"; exit $status'
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, features.BUILD / "weightctl", place, tmp_path / "other"],
                          env=loaded.env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "mount point" in done.stderr


def test_a_limit_of_files_leaves_nothing(loaded, place):
    done = loaded.ctl("save", "-q", "m", place / "out", check=False,
                      preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    assert done.returncode == 1 and "File too large" in done.stderr
    assert tree(place) == {}


@pytest.mark.plain  # a sanitizer has to be loaded first
def test_a_disk_that_cannot_lock_is_refused(loaded, place):
    library = compiled("no_locks.so", (features.ROOT / "tests/integration/preload/no_locks.c",), "-shared")
    loaded.env["LD_PRELOAD"] = str(library)
    assert "cannot be locked: No locks available" in refused(loaded, "m", place / "out")
    assert tree(place) == {}


class Blocked:
    """A save whose progress cannot be written: it waits, with its weights written and nothing committed."""

    def __init__(self, daemon, *args):
        self.read_fd, write_fd = os.pipe()
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, 4096)
        os.write(write_fd, b"x" * fcntl.fcntl(write_fd, fcntl.F_GETPIPE_SZ))
        self.proc = daemon.spawn("save", *args, stderr=write_fd)
        os.close(write_fd)
        until(self.is_blocked, "the save waits for its standard error")

    def is_blocked(self):
        assert self.proc.poll() is None
        return "pipe" in pathlib.Path(f"/proc/{self.proc.pid}/wchan").read_text() or self.is_in_write()

    def is_in_write(self):
        return pathlib.Path(f"/proc/{self.proc.pid}/syscall").read_text().startswith("1 0x2 ")

    def drain(self):
        """Lets it go on; returns the exit status and the text."""
        text = b""
        while chunk := os.read(self.read_fd, 65536):
            text += chunk
        os.close(self.read_fd)
        return self.proc.wait(60), text.lstrip(b"x").decode()


def temporaries(place):
    return [p for p in place.iterdir() if p.name.startswith(".")]


def test_a_save_that_is_killed_leaves_the_target_and_the_next_one_cleans_up(loaded, place):
    loaded.ctl("save", "-q", "--no-files", "m", place / "out")
    before = tree(place / "out")
    blocked = Blocked(loaded, "--force", "m", place / "out")
    assert len(temporaries(place)) == 1
    blocked.proc.kill()
    blocked.proc.wait(60)
    os.close(blocked.read_fd)
    assert tree(place / "out") == before and len(temporaries(place)) == 1
    loaded.ctl("save", "-q", "--force", "m", place / "out")
    assert temporaries(place) == []


def test_a_save_does_not_remove_that_of_a_living_process(loaded, place):
    blocked = Blocked(loaded, "m", place / "out")
    loaded.ctl("save", "-q", "m", place / "out")
    before = tree(place / "out")
    assert len(temporaries(place)) == 1
    status, said = blocked.drain()
    assert status == 1 and "another process has put files there" in said
    assert tree(place / "out") == before and temporaries(place) == []


@pytest.fixture
def no_exchange(loaded):
    library = compiled("no_exchange.so", (features.ROOT / "tests/integration/preload/no_exchange.c",), "-shared")
    return loaded.env | {"LD_PRELOAD": str(library)}


@pytest.mark.plain  # a sanitizer has to be loaded first
def test_a_disk_that_cannot_exchange_has_the_model_replaced(loaded, place, no_exchange):
    loaded.ctl("save", "-q", "m", place / "out")
    loaded.ctl("save", "-q", "--force", "--no-files", "m", place / "out", env=no_exchange)
    assert list(tree(place)) == ["out", "out/model.safetensors"]


@pytest.mark.plain  # a sanitizer has to be loaded first
def test_a_save_that_is_killed_between_two_renames_is_put_back(loaded, place, no_exchange):
    loaded.ctl("save", "-q", "--no-files", "m", place / "out")
    before = tree(place / "out")
    done = loaded.ctl("save", "-q", "--force", "m", place / "out", check=False, env=no_exchange | {"KILL_BETWEEN": "1"})
    assert done.returncode == -signal.SIGKILL
    assert len(temporaries(place)) == 2 and not (place / "out").exists()
    assert "is not empty" in refused(loaded, "m", place / "out")
    assert tree(place / "out") == before and temporaries(place) == []


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(loaded, place, sig):
    blocked = Blocked(loaded, "m", place / "out")
    interrupt(blocked.proc, sig)
    status, said = blocked.drain()
    assert status == 128 + sig and said.endswith("weightctl: interrupted; nothing was saved\n")
    assert tree(place) == {}


# --- Exclusive buffers ----------------------------------------------------------------------------


def test_an_update_in_place_during_a_save_is_noticed(daemon, tmp_path, place):
    file = write_safetensors(tmp_path / "a.safetensors", LAYERS)
    daemon.ctl("load", "-q", "--exclusive", "m", file)
    blocked = Blocked(daemon, "m", place / "out")
    daemon.ctl("load", "-q", "--policy", "evict", "--pause-timeout", "0.1", "m", file)
    status, said = blocked.drain()
    assert status == 1 and "updated in place during the save" in said
    assert tree(place) == {}

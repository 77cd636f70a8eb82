"""Loading files: every byte arrives, and a failure prints one sentence and leaves no trace."""
import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import time

import pytest
from lib import features, wire

DEADLINE_S = 60
MIB = 1 << 20
# The allowed output of weightctl: one line, and nothing that moves a cursor or changes a colour.
UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]")


# --- Models ----------------------------------------------------------------------------------------

def write_model(path, tensors):
    """tensors: {name: (dtype, shape, bytes)} in the order of the file. Returns where the data begins."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)
    return 8 + len(text)


def write_index(path, weight_map):
    path.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


def u8(data):
    return "U8", [len(data)], data


def random_tensors(rng, prefix, n):
    """Tensors of all sizes: empty, of a few odd bytes, and larger than a leaf."""
    sizes = [rng.choice([0, 1, 3, 255, 256, 257, 4096, 70001]) for _ in range(n - 2)]
    sizes += [3 * MIB + 5, MIB]
    rng.shuffle(sizes)
    return {f"{prefix}.{i}.weight": u8(rng.randbytes(size)) for i, size in enumerate(sizes)}


@pytest.fixture
def one_file(tmp_path):
    """A file of twelve leaves, where its data begins, and its tensors."""
    tensors = random_tensors(random.Random(1), "layer", 40) | {"last": u8(random.Random(2).randbytes(8 * MIB))}
    path = tmp_path / "model.safetensors"
    return path, write_model(path, tensors), tensors


def check_bytes(daemon, name, tensors, in_order=True):
    """`in_order`: the version has the tensors in this order, as one file has them; of several the library decides."""
    listed = {t["name"]: t for t in json.loads(daemon.ctl("tensors", name, "--json").stdout)["tensors"]}
    assert list(listed) == list(tensors) if in_order else listed.keys() == tensors.keys()
    for tensor, (dtype, shape, data) in tensors.items():
        assert (listed[tensor]["dtype"], listed[tensor]["shape"]) == (dtype, shape)
        assert daemon.ctl("cat", name, tensor, text=False).stdout == data, tensor
    daemon.ctl("verify", name)


# --- The rest of a failed load ---------------------------------------------------------------------

def eventually(condition, what):
    """The server sees an end a moment after it; no event reports that to a test."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.002)


def fds(daemon):
    """The files of the daemon's descriptors, without those that are closed while we look."""
    found = []
    for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{daemon.pid}/fd/{fd}"))
    return sorted(found)


def buffers(daemon):
    return json.loads(daemon.ctl("ls", "--json").stdout)["buffers"]


def is_alone(daemon):
    """No connection is left that was accepted."""
    return sum(fd.startswith("socket:") for fd in fds(daemon)) == 1


@pytest.fixture
def clean(daemon):
    """The daemon, which in the end must hold what it held in the beginning, and no buffer."""
    # Its answer means that it has accepted all before, such as the fixture that probed it.
    assert buffers(daemon) == []
    eventually(lambda: is_alone(daemon), lambda: fds(daemon))
    before = fds(daemon)
    yield daemon
    assert buffers(daemon) == []
    eventually(lambda: fds(daemon) == before, lambda: f"{before} became {fds(daemon)}")


def check_refused(done, *phrases):
    errors = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
    assert done.returncode == 1, errors
    sentence = errors.rstrip("\n").split("\n")[-1]  # progress may stand before it
    assert sentence.startswith("weightctl: ")
    assert not UNPRINTABLE.search(errors), repr(errors)
    for phrase in phrases:
        assert phrase in sentence, sentence


# --- Loads that stop on the way --------------------------------------------------------------------

@pytest.fixture(scope="session")
def gate_library(root, tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("clang")
    features.require("compiler", "no C compiler", available=bool(compiler))
    library = tmp_path_factory.mktemp("preload") / "read_gate.so"
    subprocess.run([compiler, "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-g", "-shared", "-fPIC", "-o", library,
                    root / "tests/integration/preload/read_gate.c", "-ldl"], check=True)
    return library


class Gate:
    """A load under read_gate.c, which does `action` at read number `call` of the data of `path`."""

    def __init__(self, library, folder, path, offset, action, call=1):
        for fifo in folder / "ready", folder / "go":
            os.mkfifo(fifo)
        self.ready, self.go = (os.open(folder / fifo, os.O_RDWR | os.O_CLOEXEC) for fifo in ("ready", "go"))
        self.proc = None
        self.env = {"LD_PRELOAD": str(library), "GATE_FILE": "/" + path.name, "GATE_OFFSET": str(offset),
                    "GATE_DO": action, "GATE_CALL": str(call), "GATE_READY": str(folder / "ready"),
                    "GATE_GO": str(folder / "go")}

    def environment(self, daemon):
        env = daemon.env | self.env
        # ASan wants to be loaded first, which it needs not be for what the gate does.
        env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
        return env

    def start(self, daemon, *args, prefix=()):
        """Starts the load and returns when it stands at the gate."""
        self.proc = subprocess.Popen([*prefix, features.BUILD / "weightctl", "load", *map(str, args)],
                                     env=self.environment(daemon), stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        poll = select.poll()
        poll.register(self.ready, select.POLLIN)
        assert poll.poll(1000 * DEADLINE_S), "the load did not reach the gate"

    def open(self):
        """Lets the load go on, and returns it when it has ended."""
        os.write(self.go, b"1")
        out, err = self.proc.communicate(timeout=DEADLINE_S)
        return subprocess.CompletedProcess(self.proc.args, self.proc.returncode, out, err)

    def close(self):
        if self.proc and self.proc.poll() is None:
            self.proc.kill()
            self.proc.communicate()
        os.close(self.ready)
        os.close(self.go)


@pytest.fixture
def make_gate(gate_library, tmp_path_factory):
    gates = []

    def make(*args, **kw):
        gates.append(Gate(gate_library, tmp_path_factory.mktemp("gate"), *args, **kw))
        return gates[-1]

    yield make
    for gate in gates:
        gate.close()


# --- Bytes -----------------------------------------------------------------------------------------

@pytest.mark.threads
@pytest.mark.parametrize("threads", [1, 3, 16])
def test_every_byte_of_a_file_arrives(daemon, one_file, threads):
    path, _, tensors = one_file
    daemon.ctl("load", "--threads", threads, "m", path)
    check_bytes(daemon, "m", tensors)


def test_the_index_decides_for_every_tensor(daemon, tmp_path):
    rng = random.Random(3)
    parts = [random_tensors(rng, f"part{i}", 30) for i in range(3)]
    stale = {name: u8(rng.randbytes(100)) for name in list(parts[0])[:5]}
    for i, part in enumerate(parts):
        write_model(tmp_path / f"model-{i}.safetensors", part | (stale if i == 1 else {}))
    write_model(tmp_path / "overlay.safetensors", {name: u8(b"stale") for name in parts[2]})
    # Written in another order than the files have:
    write_index(tmp_path / "model.safetensors.index.json",
                {name: f"model-{i}.safetensors" for i in (2, 0, 1) for name in parts[i]})
    daemon.ctl("load", "m", tmp_path)
    check_bytes(daemon, "m", parts[0] | parts[1] | parts[2], in_order=False)


def test_a_directory_and_a_list_of_files_give_the_same(daemon, tmp_path):
    rng = random.Random(4)
    parts = [random_tensors(rng, f"part{i}", 10) for i in range(3)]
    paths = [tmp_path / f"model-{i}-of-3.safetensors" for i in (1, 2, 3)]
    for path, part in zip(paths, parts):
        write_model(path, part)
    daemon.ctl("load", "m", tmp_path)
    check_bytes(daemon, "m", parts[0] | parts[1] | parts[2], in_order=False)
    first = buffers(daemon)[0]
    daemon.ctl("load", "m", *paths)  # would be refused if the layout differed
    assert buffers(daemon)[0]["layout"] == first["layout"]
    assert buffers(daemon)[0]["digest"] == first["digest"]


def test_every_byte_of_a_real_model_arrives(daemon, model):
    path = model / "model.safetensors"
    image = path.read_bytes()
    n = 8 + int.from_bytes(image[:8], "little")
    header = json.loads(image[8:n])
    header.pop("__metadata__", None)
    in_order = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    daemon.ctl("load", "m", path)
    check_bytes(daemon, "m", {name: (e["dtype"], e["shape"], image[n + e["data_offsets"][0]:n + e["data_offsets"][1]])
                              for name, e in in_order})


@pytest.mark.threads
def test_short_and_interrupted_reads_are_read_on(daemon, one_file, make_gate):
    path, offset, tensors = one_file
    gate = make_gate(path, offset, "trickle")
    daemon.ctl("load", "m", path, env=gate.environment(daemon))
    check_bytes(daemon, "m", tensors)


# --- Directories with more than a model ------------------------------------------------------------

def test_what_a_directory_leaves_out_is_told_on_standard_error(daemon, tmp_path):
    for name in "model", "model.fp16", "consolidated", "adapter_model", "optimizer":
        write_model(tmp_path / f"{name}.safetensors", {name: u8(name.encode())})
    done = daemon.ctl("load", "--quiet", "--json", "m", tmp_path)
    assert done.stderr == (f"weightctl: '{tmp_path}': took 'model.safetensors' and left out 'adapter_model.safetensors', "
                           "'consolidated.safetensors', 'model.fp16.safetensors', 'optimizer.safetensors'\n")
    assert json.loads(done.stdout)["tensors"] == 1
    check_bytes(daemon, "m", {"model": u8(b"model")})
    assert daemon.ctl("load", "--quiet", "m", tmp_path / "model.safetensors").stderr == ""


def test_a_model_saved_twice_is_the_one_that_transformers_loads(daemon, tmp_path):
    """First whole, then sharded: save_pretrained() leaves the old file beside a good index."""
    write_model(tmp_path / "model.safetensors", {"a": u8(b"whole"), "b": u8(b"of it")})
    for i, name in enumerate("ab", 1):
        write_model(tmp_path / f"model-0000{i}-of-00002.safetensors", {name: u8(b"shard")})
    write_index(tmp_path / "model.safetensors.index.json",
                {name: f"model-0000{i}-of-00002.safetensors" for i, name in enumerate("ab", 1)})
    done = daemon.ctl("load", "m", tmp_path)
    check_bytes(daemon, "m", {"a": u8(b"whole"), "b": u8(b"of it")})
    assert "took 'model.safetensors' (as transformers does, the file before the index)" in done.stderr
    (tmp_path / "model.safetensors").unlink()
    done = daemon.ctl("load", "m", tmp_path)
    check_bytes(daemon, "m", {"a": u8(b"shard"), "b": u8(b"shard")})
    assert "took" not in done.stderr


def test_a_directory_with_several_sets_is_refused_listing_them(clean, tmp_path):
    write_model(tmp_path / "a.safetensors", {"a": u8(b"a")})
    write_model(tmp_path / "b.safetensors", {"b": u8(b"b")})
    check_refused(clean.ctl("load", "m", tmp_path, check=False), "several sets of weights",
                  "'a.safetensors', 'b.safetensors'", "name one of them")


def test_a_long_list_of_sets_is_cut_and_counted(clean, tmp_path):
    for i in range(500):
        write_model(tmp_path / f"{i:03}-{'x' * 40}.safetensors", {"a": u8(b"a")})
    done = clean.ctl("load", "m", tmp_path, check=False)
    check_refused(done, "'000-", "more: name one of them, by its files or its index")
    listed = done.stderr.count(".safetensors'")
    assert 1 < listed < 500 and f" and {500 - listed} more" in done.stderr


# --- Files that cannot be loaded -------------------------------------------------------------------

def test_a_missing_file_of_an_index_is_named(clean, tmp_path):
    write_model(tmp_path / "1.safetensors", {"a": u8(b"a")})
    write_index(tmp_path / "model.safetensors.index.json", {"a": "1.safetensors", "b": "2.safetensors"})
    done = clean.ctl("load", "m", tmp_path, check=False)
    check_refused(done, "model.safetensors.index.json'", "'2.safetensors', which does not exist")


def test_a_tensor_that_its_file_lacks_is_named(clean, tmp_path):
    write_model(tmp_path / "1.safetensors", {"a": u8(b"a")})
    write_index(tmp_path / "model.safetensors.index.json", {"a": "1.safetensors", "b": "1.safetensors"})
    done = clean.ctl("load", "m", tmp_path, check=False)
    check_refused(done, "tensor 'b'", "'1.safetensors', which does not have it")


def test_a_tensor_in_two_files_is_refused_naming_both(clean, tmp_path):
    for name in "12":
        write_model(tmp_path / f"m-{name}-of-2.safetensors", {name: u8(b"x"), "twice": u8(b"y")})
    done = clean.ctl("load", "m", tmp_path, check=False)
    check_refused(done, "tensor 'twice'", "/m-1-of-2.safetensors'", "/m-2-of-2.safetensors'")


def test_a_file_cut_short_before_the_load_is_refused(clean, one_file):
    path, offset, _ = one_file
    os.truncate(path, path.stat().st_size - 1)
    check_refused(clean.ctl("load", "m", path, check=False), "model.safetensors'", "cut off")
    os.truncate(path, offset - 1)
    check_refused(clean.ctl("load", "m", path, check=False), "model.safetensors'", "past the end of the file")
    os.truncate(path, 5)
    check_refused(clean.ctl("load", "m", path, check=False), "model.safetensors'", "5 bytes are too few")


OTHER_FORMATS = [
    (b"PK\x03\x04" + bytes(60), "zip archive, as torch.save()"),  # its size of a header would be one
    (b"PK\x03\x04\x14\0\x08\x08" + bytes(60), "zip archive, as torch.save()"),
    (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "pickle, as old versions of torch.save() write"),
    (b"\x80\x04\x95" + bytes(20), "pickle"),
    (b"GGUF\1\0\0\0" + bytes(60), "GGUF"),
    (b"\x89HDF\r\n\x1a\n" + bytes(60), "HDF5"),
    (b"\x93NUMPY\1\0v\0{'descr': '<f4'}", "numpy.save()"),
    (b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + bytes(20), "compressed by gzip"),
    (b"BZh91AY&SY" + bytes(20), "compressed by bzip2"),
    (b"\xfd7zXZ\0" + bytes(20), "compressed by xz"),
    (b"\x28\xb5\x2f\xfd" + bytes(20), "compressed by zstd"),
    (b"model.bin".ljust(257, b"\0") + b"ustar\0" + bytes(250), "tar archive"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n", "git lfs pull"),
    (b"<!DOCTYPE html><html>", "HTML"),
    (b"\n  <?xml version='1.0'?><Error/>", "XML"),
    (b'\xef\xbb\xbf{"error": "no"}', "JSON"),
    (b"{}", "JSON"),
    (b"", "empty: download the file again"),
    (bytes(5000), "full of zeros where it should begin: download the file again"),
    (b"Entry not found", "text that begins with 'Entry not found': download the file again"),
    ("Zugriff verweigert: f\u00fcr \u20ac".encode() * 20, "text that begins with 'Zugriff verweigert"),
]


def test_a_file_of_another_format_is_named_as_what_it_is(clean, tmp_path):
    for start, phrase in OTHER_FORMATS:
        (tmp_path / "model.safetensors").write_bytes(start)
        check_refused(clean.ctl("load", "m", tmp_path, check=False), "/model.safetensors' cannot be loaded: it is ", phrase)


def test_an_index_of_another_format_is_named_as_what_it_is(clean, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    for start, phrase in OTHER_FORMATS:
        said = f"it is {phrase}" if phrase.startswith(("text", "empty", "full")) else phrase
        if phrase == "JSON":  # as an index has to be: what is wrong in it counts
            said = "it has no weight_map" if start == b"{}" else "it begins with a byte-order mark"
        index.write_bytes(start)
        check_refused(clean.ctl("load", "m", index, check=False), "index.json' cannot be used: it ", said)


def test_a_broken_header_is_not_taken_for_another_format(clean, tmp_path):
    """Sizes of a header that have the bytes of the magic of a pickle, of gzip, of JSON."""
    path = tmp_path / "model.safetensors"
    for size in 0x0280, 0x088B1F, ord("{"):
        path.write_bytes(struct.pack("<Q", size) + b'{"a":')
        check_refused(clean.ctl("load", "m", path, check=False), f"its header of {size} bytes goes past the end")


def test_what_is_no_file_is_refused_without_waiting(clean, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    check_refused(clean.ctl("load", "m", tmp_path / "fifo", check=False), "/fifo' is neither a regular file")
    check_refused(clean.ctl("load", "m", tmp_path / "none", check=False), "/none'", "No such file")


def test_a_model_that_can_never_fit_replaces_nothing(daemon, one_file, tmp_path):
    path, _, tensors = one_file
    daemon.ctl("load", "m", path)
    huge = tmp_path / "huge.safetensors"
    size = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    huge.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(huge, 8 + len(header) + size)
    done = daemon.ctl("load", "--replace", "--new-layout", "m", huge, check=False)
    check_refused(done, "'m' on host needs", "without its present versions, which stay")
    check_bytes(daemon, "m", tensors)


def test_a_failed_load_leaves_the_version_before(daemon, one_file, make_gate):
    path, offset, tensors = one_file
    daemon.ctl("load", "m", path)
    gate = make_gate(path, offset, "eio", call=3)
    done = daemon.ctl("load", "m", path, env=gate.environment(daemon), check=False)
    check_refused(done, "model.safetensors'")
    assert buffers(daemon)[0]["version"] == 1
    assert not buffers(daemon)[0]["writing"]
    check_bytes(daemon, "m", tensors)
    daemon.ctl("load", "m", path)
    assert buffers(daemon)[0]["version"] == 2


# --- Files that change while they are loaded -------------------------------------------------------

@pytest.mark.threads
def test_a_read_error_is_told_with_file_and_place(clean, one_file, make_gate):
    path, offset, _ = one_file
    gate = make_gate(path, offset, "eio", call=2)
    done = clean.ctl("load", "--threads", 1, "m", path, env=gate.environment(clean), check=False)
    check_refused(done, "reading '", "model.safetensors' at byte ", "Input/output error")
    place = int(re.search(r"at byte (\d+)", done.stderr).group(1))
    assert offset < place < path.stat().st_size


@pytest.mark.threads
def test_a_file_truncated_during_the_load_is_refused(clean, one_file, make_gate):
    path, offset, _ = one_file
    gate = make_gate(path, offset, "pause", call=2)
    gate.start(clean, "m", path)
    os.truncate(path, offset + 100)
    check_refused(gate.open(), "model.safetensors' was truncated while it was loaded")


def test_a_file_replaced_during_the_load_is_refused(clean, one_file, make_gate, tmp_path):
    path, offset, tensors = one_file
    gate = make_gate(path, offset, "pause", call=2)
    gate.start(clean, "m", path)
    write_model(tmp_path / "new", tensors)
    os.rename(tmp_path / "new", path)
    check_refused(gate.open(), "model.safetensors' was replaced while it was loaded")


def test_a_file_rewritten_during_the_load_is_refused(clean, one_file, make_gate):
    path, offset, _ = one_file
    gate = make_gate(path, offset, "pause", call=2)
    gate.start(clean, "m", path)
    with open(path, "r+b") as f:
        f.seek(offset)
        f.write(b"other")
    check_refused(gate.open(), "model.safetensors' was changed while it was loaded")


def test_a_file_removed_during_the_load_is_refused(clean, one_file, make_gate):
    path, offset, _ = one_file
    gate = make_gate(path, offset, "pause", call=2)
    gate.start(clean, "m", path)
    path.unlink()
    check_refused(gate.open(), "model.safetensors' was removed while it was loaded")


def test_an_index_replaced_during_the_load_is_refused(clean, one_file, make_gate, tmp_path):
    path, offset, tensors = one_file
    index = tmp_path / "model.safetensors.index.json"
    write_index(index, dict.fromkeys(tensors, path.name))
    gate = make_gate(path, offset, "pause", call=2)
    gate.start(clean, "m", index)
    write_index(tmp_path / "new", dict.fromkeys(tensors, path.name))
    os.rename(tmp_path / "new", index)
    check_refused(gate.open(), "index.json' was replaced while it was loaded")


# --- Loads that are ended --------------------------------------------------------------------------

@pytest.mark.threads
def test_an_interrupted_load_leaves_nothing(clean, one_file, make_gate):
    path, offset, _ = one_file
    gate = make_gate(path, offset, "pause", call=2)
    gate.start(clean, "--threads", 2, "m", path)
    wire.interrupt(gate.proc, signal.SIGINT)
    done = gate.open()
    assert done.returncode == 130, done.stderr
    assert b"interrupted" in done.stderr


def test_a_killed_load_leaves_nothing(clean, one_file, make_gate):
    path, offset, _ = one_file
    gate = make_gate(path, offset, "pause", call=2)
    gate.start(clean, "m", path)
    gate.proc.kill()
    gate.proc.wait(DEADLINE_S)
    eventually(lambda: buffers(clean) == [], lambda: buffers(clean))


# --- Names -----------------------------------------------------------------------------------------

EVIL = "evil\x1b[2J\x1b]0;owned\x07\r\n\u202etxt\x9b31m'\"\\"


def test_names_that_would_steer_a_terminal_are_loaded_and_escaped(daemon, tmp_path):
    tensors = {EVIL: u8(b"bytes"), "plain": u8(b"more")}
    write_model(tmp_path / "model.safetensors", tensors)
    done = daemon.ctl("load", "m", tmp_path)
    assert not UNPRINTABLE.search(done.stdout + done.stderr)
    listing = daemon.ctl("tensors", "m").stdout
    assert not UNPRINTABLE.search(listing), repr(listing)
    assert len(listing.splitlines()) == 3  # a heading, two tensors
    check_bytes(daemon, "m", tensors)


@pytest.mark.parametrize("write", [
    lambda folder: write_index(folder / "model.safetensors.index.json", {EVIL: "none.safetensors"}),
    lambda folder: write_index(folder / "model.safetensors.index.json", {"a": EVIL}),
    lambda folder: write_index(folder / "model.safetensors.index.json", {"a": "../" + EVIL}),
    lambda folder: write_model(folder / "model.safetensors", {EVIL: ("U8", [3], b"xx")}),
    lambda folder: write_model(folder / "model.safetensors", {EVIL + "\0": u8(b"x")}),
    lambda folder: write_model(folder / "model.safetensors", {"a": (EVIL, [1], b"x")}),
    lambda folder: write_model(folder / "evil\x1b[2J\n\udc80.safetensors", {"a": ("U8", [3], b"xx")}),
], ids=["missing-file", "file", "path", "size", "nul", "dtype", "path-of-file"])
def test_errors_about_such_names_do_not_disturb_a_terminal(clean, tmp_path, write):
    write(tmp_path)
    done = clean.ctl("load", "m", tmp_path, check=False)
    check_refused(done)


def test_cancel_is_heard_while_the_server_provides_memory(daemon, one_file, tmp_path):
    """A server that never answers the create: only the client can give up."""
    header, hello = struct.Struct("<IHHQ"), struct.Struct("<IIQQ32s")
    path = str(tmp_path / "mute.sock")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen()
        load = daemon.spawn("--socket", path, "load", "m", one_file[0])
        op, sockets = None, [listener]
        while op != wire.CREATE:
            (ready, *_), _, _ = select.select(sockets, [], [], DEADLINE_S)
            if ready is listener:
                sockets.append(stack.enter_context(listener.accept()[0]))
                continue
            _, op, _, serial = header.unpack(ready.recv(4096)[:header.size])
            if op == wire.HELLO:
                ready.send(header.pack(header.size + hello.size, op | wire.REPLY, 0, serial)
                           + hello.pack(wire.VERSION, 1, 0, 1, b""))
        load.send_signal(signal.SIGINT)
        _, errors = load.communicate(timeout=DEADLINE_S)
    assert load.returncode == 130, errors
    assert b"nothing was published" in errors

"""Loading GGUF files: the version is the file, byte for byte; the tensors are told right; broken files are refused."""
import hashlib
import json
import os
import random
import struct

import pytest
from lib import gguf, safetensors_file, wire
from lib.fake_server import FakeServer, later
from lib.wire import IMAGES, IS_IMAGE, Wire

METADATA = {"general.name": ("text", "small"), "tokenizer.ggml.tokens": ("text array", ["<s>", "\N{EURO SIGN}", ""]),
            "tokenizer.ggml.scores": ("f32 array", [0, -1.5, 2]), "llama.block_count": ("u32", 2)}


@pytest.fixture
def client(daemon):
    with Wire(daemon.socket, features=IMAGES) as w:
        yield w


def all_types(seed):
    """A matrix of each type, a scalar and a vector."""
    rng = random.Random(seed)
    tensors = {}
    for i, (dtype, (_, elements, _)) in enumerate(gguf.TYPES.items()):
        shape = [3, 2 * elements]
        tensors[f"blk.{i}.ffn_up.weight"] = dtype, shape, rng.randbytes(gguf.size_of(dtype, shape))
    tensors["scalar"] = "F32", [], rng.randbytes(4)
    tensors["large"] = "Q8_0", [1024, 2048], rng.randbytes(gguf.size_of("Q8_0", [1024, 2048]))
    tensors["output_norm.weight"] = "F32", [5], rng.randbytes(20)
    return tensors


def load(daemon, *args, name="m"):
    return json.loads(daemon.ctl("load", "--json", "--quiet", name, *args).stdout)


def table(daemon, name="m"):
    return {row["name"]: row for row in json.loads(daemon.ctl("tensors", name, "--json").stdout)["tensors"]}


def check_tensors(daemon, tensors, name="m"):
    rows = table(daemon, name)
    assert list(rows) == list(tensors)
    for key, (dtype, shape, data) in tensors.items():
        assert (rows[key]["dtype"], rows[key]["shape"]) == (dtype, shape), key
        assert daemon.ctl("cat", name, key, text=False).stdout == data, key
    daemon.ctl("verify", name)


def content(lease):
    with open(f"/proc/self/fd/{lease.slot_fd}", "rb") as f:
        return f.read()


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


# --- The file ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 1, 8, 64, 4096])
@pytest.mark.parametrize("pads_end", [True, False])
def test_the_version_is_the_file(daemon, client, tmp_path, version, alignment, pads_end):
    path = tmp_path / "model.gguf"
    metadata = METADATA | ({"general.alignment": ("u32", alignment)} if alignment else {})
    tensors = all_types((version, alignment, pads_end).__repr__())
    offset = gguf.write(path, tensors, metadata, version=version, pads_end=pads_end)
    done = load(daemon, path)
    assert (done["size"], done["tensors"]) == (sum(len(data) for _, _, data in tensors.values()), len(tensors))
    lease = client.attach("m")
    assert lease.flags & IS_IMAGE
    assert lease.slot_size == path.stat().st_size and lease.slot_size - lease.data_size == offset
    assert sha256(f"/proc/self/fd/{lease.slot_fd}") == sha256(path)
    check_tensors(daemon, tensors)
    rows = table(daemon)
    assert all(row["offset"] % (alignment or 32) == 0 for row in rows.values())


@pytest.mark.parametrize("alignment", [32, 256])
def test_bytes_between_the_tensors_are_those_of_the_file(daemon, client, tmp_path, alignment):
    """Writers leave there what they like."""
    path, tensors, metadata = tmp_path / "m.gguf", all_types(1), {"general.alignment": ("u32", alignment)}
    for version, digit in (1, b"#"), (2, b"%"):
        offset = gguf.write(path, tensors, metadata)
        raw, at = bytearray(path.read_bytes()), offset
        for _, _, data in tensors.values():
            at += len(data)
            gap = -(at - offset) % alignment
            raw[at:at + gap] = digit * gap
            at += gap
        assert at == len(raw) == path.stat().st_size and raw != path.read_bytes()
        path.write_bytes(raw)
        assert load(daemon, path)["size"] == sum(len(data) for _, _, data in tensors.values())
        assert content(client.attach("m", version)) == raw
        check_tensors(daemon, tensors)


def test_attributes_say_what_the_file_is(daemon, weightd, tmp_path):
    gguf.write(tmp_path / "m.gguf", all_types(1), METADATA | {"general.architecture": ("text", "qwen3")})
    load(daemon, tmp_path / "m.gguf")
    attributes = weightd.files("m").attributes
    assert (attributes["architecture"], attributes["weights"], attributes["dtype"]) == ("qwen3", "model.gguf", "Q8_0")
    weightd.attach("m", require={"architecture": "qwen3"}).close()
    with pytest.raises(weightd.Error, match="llama"):
        weightd.attach("m", require={"architecture": "llama"})


def test_the_file_has_no_need_of_its_extension(daemon, client, tmp_path):
    gguf.write(tmp_path / "blob", all_types(1))
    load(daemon, tmp_path / "blob")
    assert content(client.attach("m")) == (tmp_path / "blob").read_bytes()


def test_a_header_larger_than_the_first_read_is_read_whole(daemon, client, tmp_path):
    words = ("text array", [f"word {i}" for i in range(200_000)])
    tensors = all_types(1) | {f"t.{i}": ("F32", [1], struct.pack("<f", i)) for i in range(3000)}
    gguf.write(tmp_path / "m.gguf", tensors, {"tokenizer.ggml.tokens": words})
    load(daemon, tmp_path / "m.gguf")
    assert content(client.attach("m")) == (tmp_path / "m.gguf").read_bytes()
    assert list(table(daemon)) == list(tensors)
    daemon.ctl("verify", "m")


def test_readers_swap_from_one_file_to_the_next(daemon, weightd, client, tmp_path):
    path = tmp_path / "m.gguf"
    gguf.write(path, all_types(1), METADATA)
    load(daemon, path)
    buffer = weightd.attach("m")
    view = buffer["large"].memoryview()
    gguf.write(path, all_types(2), METADATA)
    load(daemon, path)
    buffer.swap()
    assert view == all_types(2)["large"][2]
    assert content(client.attach("m", 2)) == path.read_bytes()


def test_a_file_with_other_metadata_is_that_file_and_readers_attach_anew(daemon, weightd, client, tmp_path):
    """Nothing can be put into its header, so that the data begin elsewhere in their page."""
    path = tmp_path / "m.gguf"
    gguf.write(path, all_types(1), METADATA)
    load(daemon, path)
    buffer = weightd.attach("m")
    gguf.write(path, all_types(2), METADATA | {"general.description": ("text", "d" * 100)})
    load(daemon, path)
    assert content(client.attach("m", 2)) == path.read_bytes()
    with pytest.raises(weightd.Error, match="attach"):
        buffer.swap()
    assert buffer["large"].read() == all_types(1)["large"][2]
    assert weightd.attach("m")["large"].read() == all_types(2)["large"][2]


def test_views_of_blocks_are_bytes(daemon, weightd, numpy, tmp_path):
    tensors = all_types(1)
    gguf.write(tmp_path / "m.gguf", tensors)
    load(daemon, tmp_path / "m.gguf")
    buffer = weightd.attach("m")
    for name, (dtype, shape, data) in tensors.items():
        tensor, (_, elements, size) = buffer[name], gguf.TYPES[dtype]
        assert (tensor.dtype, tensor.shape, tensor.nbytes) == (dtype, tuple(shape), len(data))
        if elements == 1:
            continue
        array = tensor.numpy()
        assert (array.dtype, array.shape) == (numpy.uint8, (shape[0], shape[1] // elements * size))
        assert array.tobytes() == data and tensor[1:3].read() == data[len(data) // shape[0]:3 * len(data) // shape[0]]
        with pytest.raises(TypeError, match="no type of numpy's"):
            numpy.asarray(tensor, dtype="float32")
    with pytest.raises(TypeError, match="has no type for Q8_0"):
        pytest.importorskip("torch")
        buffer["large"].torch()


# --- Other forms ------------------------------------------------------------------------------------

@pytest.mark.parametrize("option", ["--exclusive", "--reusable"])
def test_memory_that_can_still_be_written_keeps_the_flat_form(daemon, client, tmp_path, option):
    tensors = all_types(1)
    gguf.write(tmp_path / "m.gguf", tensors, METADATA)
    load(daemon, option, tmp_path / "m.gguf")
    assert not client.attach("m").flags & IS_IMAGE
    assert all(row["offset"] % 256 == 0 for row in table(daemon).values())
    check_tensors(daemon, tensors)


def test_a_gguf_file_is_loaded_alone(daemon, tmp_path):
    for name in "a.gguf", "b.gguf":
        gguf.write(tmp_path / name, all_types(name))
    (tmp_path / "c.safetensors").write_bytes(safetensors_file.pack({"x": ("U8", [1], b"x")}))
    for other in "a.gguf", "c.safetensors":
        done = daemon.ctl("load", "m", tmp_path / other, tmp_path / "b.gguf", check=False)
        assert done.returncode == 1 and "is a GGUF file, which is loaded alone" in done.stderr
    assert json.loads(daemon.ctl("ls", "--json").stdout)["buffers"] == []


def test_a_folder_with_several_gguf_files_alone_names_them(daemon, tmp_path):
    for name in "small.gguf", "large.gguf":
        gguf.write(tmp_path / name, all_types(1))
    done = daemon.ctl("load", "m", tmp_path, check=False)
    assert done.returncode == 1 and "'small.gguf'" in done.stderr and "'large.gguf'" in done.stderr and "GGUF" in done.stderr


def test_an_older_weightd_is_told_apart(daemon, tmp_path):
    gguf.write(tmp_path / "m.gguf", all_types(1))
    with FakeServer(tmp_path / "old.sock") as old:
        asked = later(daemon.ctl, "load", "--quiet", "m", tmp_path / "m.gguf", "--socket", tmp_path / "old.sock", check=False)
        old.accept()
        old.accept()  # a load has a connection of its own
        assert "is too old to have the types of GGUF" in asked.result(60).stderr


# --- Broken files -----------------------------------------------------------------------------------

SMALL = {"a": ("Q4_K", [2, 256], b"x" * 288), "b": ("F32", [3], b"y" * 12)}
HEAD = struct.pack("<4sIQQ", b"GGUF", 3, 2, 1)
BROKEN = {
    "cut in its data": (gguf.pack(SMALL)[:-33], "cut off"),
    "cut in its header": (gguf.pack(SMALL)[:80], "past the end of the file"),
    "a tail": (gguf.pack(SMALL) + b"x", "belong to no tensor"),
    "another magic behind it": (b"GGUF", "cut off"),
    "version 1": (gguf.pack(SMALL, version=1), "GGUF of version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(200), "big-endian"),
    "too many tensors": (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 40, 0) + bytes(1000), "promises 1099511627776 tensors"),
    "too many keys": (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 63) + bytes(1000), "keys of metadata"),
    "an array of 2^63 doubles": (struct.pack("<4sIQQQsIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 12, 1 << 63), "past the end"),
    "an overlap": (gguf.pack(SMALL).replace(struct.pack("<IQ", 0, 288), struct.pack("<IQ", 0, 256)), "and not at 288"),
    "a name twice": (gguf.pack({"a": SMALL["b"], "c": SMALL["b"]}).replace(gguf.text("c"), gguf.text("a")), "'a' is in its header twice"),
    "an unknown type": (gguf.pack(SMALL).replace(struct.pack("<QIQ", 3, 0, 288), struct.pack("<QIQ", 3, 4, 288)), "ggml type 4"),
    "an alignment of 3": (gguf.pack(SMALL, {"general.alignment": ("u32", 3)}), "power of two"),
    "a part of a model": (gguf.pack(SMALL, {"split.count": ("u16", 3)}), "one of 3 parts of a model: merge them"),
    "nothing": (gguf.pack({}), "has no tensors"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_refused_and_leaves_nothing(daemon, tmp_path, what):
    raw, phrase = BROKEN[what]
    (tmp_path / "model.gguf").write_bytes(raw)
    done = daemon.ctl("load", "m", tmp_path / "model.gguf", check=False)
    assert done.returncode == 1
    assert phrase in done.stderr and "/model.gguf'" in done.stderr, done.stderr
    assert json.loads(daemon.ctl("ls", "--json").stdout)["buffers"] == []


def test_random_damage_is_refused_or_loads_what_is_there(daemon, client, tmp_path):
    """No damage to a header ends in anything but a sentence, or a version that is the file."""
    rng = random.Random(1)
    good = gguf.pack(SMALL, METADATA)
    n_header = len(good) - len(gguf.pack_data(SMALL, METADATA))
    path = tmp_path / "model.gguf"
    for i in range(60):
        raw = bytearray(good)
        for _ in range(rng.choice([1, 1, 2, 8])):
            raw[rng.randrange(n_header)] = rng.choice([0, 1, 0x7f, 0xff, rng.randrange(256)])
        path.write_bytes(raw)
        name = f"m{i}"
        done = daemon.ctl("load", name, path, check=False)
        if done.returncode == 0:
            lease = client.attach(name)
            assert content(lease) == raw
            daemon.ctl("verify", name)
            client.forget(lease.fds)
            client.detach(lease.lease)
        else:
            assert done.stderr.startswith("weightctl: ") and done.stderr.count("\n") == 1, done.stderr


def test_verify_compares_the_header_with_the_layout(daemon, client, tmp_path):
    """A writer that gives a header of another model an image's layout is found out."""
    tensors = {"a": ("F32", [8], b"x" * 32), "b": ("F32", [8], b"y" * 32)}
    path = tmp_path / "m.gguf"
    offset = gguf.write(path, tensors)
    load(daemon, path)
    lease = client.attach("m")
    layout = os.pread(lease.layout_fd, os.fstat(lease.layout_fd).st_size, 0)
    raw = path.read_bytes().replace(gguf.text("b"), gguf.text("c"))
    slot = client.create_image("forged", layout, offset)
    os.pwrite(slot.fd, raw, 0)
    client.publish(slot.writer, forge(slot, raw, offset))
    done = daemon.ctl("verify", "forged", check=False)
    assert done.returncode == 1 and "its header has tensor 'c' where the layout has 'b'" in done.stderr


def forge(slot, raw, offset):
    """Writes the digests of a version of less than a leaf, and returns the root."""
    table = wire.hash128(raw[:offset]) + wire.hash128(raw[offset:])
    os.pwrite(slot.digests_fd, table, 0)
    return wire.hash128(table[16:])


def test_a_directory_stands_for_its_only_gguf_file(daemon, tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    whole = gguf.pack(SMALL, METADATA)
    (folder / "llama-Q8_0.gguf").write_bytes(whole)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    load(daemon, folder)
    files = json.loads(daemon.ctl("files", "m", "--json").stdout)
    assert [file["path"] for file in files["files"]] == ["config.json"]
    assert files["attributes"]["weights"] == "model.gguf"
    daemon.ctl("save", "m", tmp_path / "saved", "-q")
    assert (tmp_path / "saved/model.gguf").read_bytes() == whole
    daemon.ctl("diff", "m", tmp_path / "saved")
    assert load(daemon, tmp_path / "saved", name="again")["digest"] == load(daemon, folder, name="other")["digest"]


@pytest.mark.parametrize("other", ["mmproj.gguf", "pytorch_model.bin"])
def test_a_directory_with_other_weights_stands_for_no_gguf_file(daemon, tmp_path, other):
    gguf.write(tmp_path / "model.gguf", SMALL)
    (tmp_path / other).write_bytes(b"GGUF")
    done = daemon.ctl("load", "m", tmp_path, check=False)
    assert done.returncode == 1 and "'model.gguf'" in done.stderr and other in done.stderr

"""Loading one file into an image: the version is the file, byte for byte; and the loads that cannot be."""
import json
import random

import pytest
from lib import safetensors_file
from lib.wire import IMAGES, IS_IMAGE, Wire

MIB = 1 << 20


@pytest.fixture
def client(daemon):
    with Wire(daemon.socket, features=IMAGES) as w:
        yield w


def random_tensors(seed):
    """Sizes that no alignment suits, an empty tensor, a scalar, and some leaves."""
    rng = random.Random(seed)
    sizes = {"odd": 3, "h.0.w": MIB + 1, "empty": 0, "h.1.w": 2 * MIB + 7, "one": 1, "h.1.b": 255, "last": 70_001}
    tensors = {name: ("U8", [size], rng.randbytes(size)) for name, size in sizes.items()}
    tensors["scalar"] = "F32", [], rng.randbytes(4)
    tensors["matrix"] = "BF16", [7, 3], rng.randbytes(42)
    return tensors


def content(lease):
    """Every byte of the descriptor, as a program sees that opens it."""
    with open(f"/proc/self/fd/{lease.slot_fd}", "rb") as f:
        return f.read()


def load(daemon, *args, name="m"):
    return json.loads(daemon.ctl("load", "--json", "--quiet", name, *args).stdout)


def table(daemon, name="m"):
    return json.loads(daemon.ctl("tensors", name, "--json").stdout)["tensors"]


def check_tensors(daemon, tensors, name="m"):
    """Every tensor has its type, its shape and its bytes, and the digests are right."""
    rows = {row["name"]: row for row in table(daemon, name)}
    assert rows.keys() == tensors.keys()
    for key, (dtype, shape, data) in tensors.items():
        assert (rows[key]["dtype"], rows[key]["shape"]) == (dtype, shape), key
        assert daemon.ctl("cat", name, key, text=False).stdout == data, key
    daemon.ctl("verify", name)


# --- Files as they are -------------------------------------------------------------------------------

FORMS = {
    "plain": {},
    "metadata": {"metadata": {"format": "pt", "note": "\N{GREEK SMALL LETTER ALPHA} \"quoted\""}},
    "blanks": {"blanks": 5001},
    "header in another order": {"order": ["last", "scalar", "matrix", "one", "odd", "empty", "h.1.b", "h.1.w", "h.0.w"]},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_version_of_one_file_is_that_file(daemon, client, tmp_path, form):
    tensors = random_tensors(form)
    raw = safetensors_file.pack(tensors, **FORMS[form])
    (tmp_path / "m.safetensors").write_bytes(raw)
    done = load(daemon, tmp_path / "m.safetensors")
    assert (done["size"], done["tensors"], done["files"]) == (sum(len(d) for _, _, d in tensors.values()), len(tensors), 1)
    lease = client.attach("m")
    assert lease.flags & IS_IMAGE
    assert content(lease) == raw
    assert [row["name"] for row in table(daemon)] == list(safetensors_file.unpack(raw)[1])
    check_tensors(daemon, tensors)


@pytest.mark.parametrize("with_index", [False, True])
def test_a_folder_of_one_file_is_that_file(daemon, client, tmp_path, with_index):
    tensors = random_tensors(1)
    raw = safetensors_file.pack(tensors)
    (tmp_path / "model.safetensors").write_bytes(raw)
    where = tmp_path
    if with_index:
        where = tmp_path / "model.safetensors.index.json"
        where.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")}))
    load(daemon, where)
    assert content(client.attach("m")) == raw
    check_tensors(daemon, tensors)


def test_a_file_loaded_again_is_the_same_version_of_bytes(daemon, client, tmp_path):
    raw = safetensors_file.pack(random_tensors(1))
    (tmp_path / "m.safetensors").write_bytes(raw)
    first, second = load(daemon, tmp_path / "m.safetensors"), load(daemon, tmp_path / "m.safetensors")
    assert (first["version"], second["version"]) == (1, 2)
    assert first["digest"] == second["digest"]
    assert content(client.attach("m", 2)) == content(client.attach("m", 1)) == raw


def test_readers_swap_from_one_file_to_the_next(daemon, weightd, tmp_path):
    path = tmp_path / "m.safetensors"
    for seed in 1, 2:
        path.write_bytes(safetensors_file.pack(random_tensors(seed)))
        load(daemon, path)
        if seed == 1:
            buffer = weightd.attach("m")
            before = buffer["h.0.w"].memoryview()
    buffer.swap()
    assert buffer.version == 2
    assert before == random_tensors(2)["h.0.w"][2]


def test_a_longer_header_moves_the_data_by_whole_pages_for_swaps(daemon, weightd, client, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_file.pack(random_tensors(1)))
    load(daemon, path)
    buffer = weightd.attach("m")
    raw = safetensors_file.pack(random_tensors(2), {"note": "n" * 700})
    path.write_bytes(raw)
    load(daemon, path)
    buffer.swap()
    assert buffer["last"].memoryview() == random_tensors(2)["last"][2]
    header, tensors = safetensors_file.unpack(content(client.attach("m", 2)))
    assert tensors == random_tensors(2)
    assert header["__metadata__"] == {"note": "n" * 700}
    check_tensors(daemon, tensors)


# --- Files that a version cannot be ------------------------------------------------------------------

def test_other_tensors_in_the_same_buffer_are_that_file(daemon, client, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_file.pack(random_tensors(1)))
    load(daemon, path)
    other = {"x": ("U8", [3], b"abc")}
    path.write_bytes(safetensors_file.pack(other))
    assert "--new-layout" in daemon.ctl("load", "m", path, check=False).stderr
    load(daemon, "--new-layout", path)
    assert content(client.attach("m")) == path.read_bytes()
    check_tensors(daemon, other)


def test_the_same_tensors_in_another_order_take_the_places_of_the_version_before(daemon, client, tmp_path):
    path = tmp_path / "m.safetensors"
    first, second = random_tensors(1), random_tensors(2)
    path.write_bytes(safetensors_file.pack(first))
    load(daemon, path)
    places = [(row["name"], row["offset"]) for row in table(daemon)]
    path.write_bytes(safetensors_file.pack(dict(reversed(second.items()))))
    load(daemon, path)
    assert [(row["name"], row["offset"]) for row in table(daemon)] == places
    lease = client.attach("m")
    assert lease.flags & IS_IMAGE
    assert safetensors_file.unpack(content(lease))[1] == second
    check_tensors(daemon, second)


def test_several_files_become_one(daemon, client, tmp_path):
    tensors = random_tensors(1)
    names = list(tensors)
    for i, part in enumerate((names[::2], names[1::2]), 1):
        raw = safetensors_file.pack({name: tensors[name] for name in part})
        (tmp_path / f"model-{i:05}-of-00002.safetensors").write_bytes(raw)
    done = load(daemon, tmp_path)
    assert done["files"] == 2
    lease = client.attach("m")
    assert lease.flags & IS_IMAGE and lease.data_size == sum(len(data) for _, _, data in tensors.values())
    assert safetensors_file.unpack(content(lease))[1] == tensors
    check_tensors(daemon, tensors)


def test_an_index_that_leaves_tensors_out_takes_the_others(daemon, client, tmp_path):
    tensors = random_tensors(1)
    (tmp_path / "model.safetensors").write_bytes(safetensors_file.pack(tensors))
    kept = {name: tensors[name] for name in tensors if name != "h.0.w"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(kept, "model.safetensors")}))
    load(daemon, index)
    assert safetensors_file.unpack(content(client.attach("m")))[1] == kept
    check_tensors(daemon, kept)


@pytest.mark.parametrize("option", ["--exclusive", "--reusable"])
def test_memory_that_can_still_be_written_keeps_the_flat_form(daemon, client, tmp_path, option):
    tensors = random_tensors(1)
    (tmp_path / "m.safetensors").write_bytes(safetensors_file.pack(tensors))
    load(daemon, option, tmp_path / "m.safetensors")
    assert not client.attach("m").flags & IS_IMAGE
    assert all(row["offset"] % 256 == 0 for row in table(daemon))
    check_tensors(daemon, tensors)


def test_a_header_that_looks_like_no_layout_is_refused_as_before(daemon, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_file.pack(random_tensors(1))[:-1])
    done = daemon.ctl("load", "m", path, check=False)
    assert done.returncode == 1 and "cut off" in done.stderr
    path.write_bytes(safetensors_file.pack({"q": ("Q4_K", [256], bytes(144))}))
    done = daemon.ctl("load", "m", path, check=False)
    assert done.returncode == 1 and "dtype 'Q4_K', which this release does not support" in done.stderr
    assert json.loads(daemon.ctl("ls", "--json").stdout)["buffers"] == []

"""Versions that are files: what the library makes of a layout, how it maps it, and what it finds wrong with it."""
import ctypes
import errno
import hashlib
import json
import os
import random
import struct
import subprocess
import textwrap

import pytest
from lib import features, wire
from lib.wire import DIGEST, IMAGES, Wire, image

MIB, PAGE = 1 << 20, 4096
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
        "C64": 64, "F64": 64, "I64": 64, "U64": 64}

# Each has (name, dtype, shape), or (name, name of the tensor that it is tied to).
ODD = [("a", "U8", (7,)), ("b", "F32", (3, 5)), ("c", "F16", (1,)), ("d", "U8", (MIB + 1,)), ("e", "I64", (2, 2)), ("f", "BF16", (128,))]
TIES = [("embed", "F32", (16, 16)), ("head", "embed"), ("x", "U8", (3,)), ("again", "embed"), ("y", "x"), ("last", "F16", (5,))]
EMPTY = [("none", "F32", (0, 4)), ("some", "U8", (5,)), ("gone", "I64", (3, 0)), ("one", "F64", ()), ("nil", "U8", (0,))]
SCALARS = [("s", "F32", ()), ("t", "I64", ()), ("u", "U8", ()), ("v", "BF16", ())]
TYPES = [(dtype, dtype, (4, 3, 2)) for dtype in BITS]
NAMES = [('quote"', "U8", (1,)), ("back\\slash", "U8", (2,)), ("\u65e5\u672c\U0001f600", "F32", (3,)), ("tab\t\x01", "I8", (4,)),
         ("weightd.tied", "F16", (1,)), ("/", "U8", (300,))]
CASES = {"odd": ODD, "ties": TIES, "empty": EMPTY, "scalars": SCALARS, "types": TYPES, "names": NAMES,
         "nothing": [("only", "F32", (0,))], "one": [("only", "F32", (1000, 7))],
         "many": [(f"layers.{i}.weight", "U8" if i % 3 else "F32", (i % 5, 3)) for i in range(20_000)]}


def fuzzed(seed):
    rng = random.Random(seed)
    rows, untied = [], []
    for i in range(rng.randrange(1, 40)):
        name = f"{rng.choice('abc')}.{i}.{rng.randrange(10 ** rng.randrange(1, 30))}"
        if untied and rng.random() < 0.2:
            rows.append((name, rng.choice(untied)))
            continue
        dtype = rng.choice(list(BITS))
        shape = [rng.choice([0, 1, 2, 3, 5, 16, 100]) for _ in range(rng.randrange(4))]
        if BITS[dtype] < 8:
            shape.append(rng.choice([4, 8, 32]))
        rows.append((name, dtype, tuple(shape)))
        untied.append(name)
    return rows


def lay_out(weightd, rows, alignment=None):
    layout = weightd.Layout(alignment)
    for row in rows:
        if len(row) == 2:
            layout.tie(*row)
        else:
            layout.add(*row)
    return layout


def n_bytes(dtype, shape):
    bits = BITS[dtype]
    for dim in shape:
        bits *= dim
    return bits // 8


def contents(rows, seed=0):
    """Bytes for each tensor that is not tied."""
    rng = random.Random(seed)
    return {row[0]: rng.randbytes(n_bytes(*row[1:])) for row in rows if len(row) == 3}


def publish(weightd, name, rows, seed=0, alignment=None, **options):
    """Returns the bytes of each tensor, ties included."""
    data = contents(rows, seed)
    with weightd.create(name, lay_out(weightd, rows, alignment), **options) as writer:
        for tensor, value in data.items():
            writer.write(writer[tensor].offset, value)
        writer.publish()
    return data | {row[0]: data[row[1]] for row in rows if len(row) == 2}


def file_of(weightd, name):
    """All bytes of the file that the current version is."""
    connection, fd, handle = weightd._connection.shared(None), ctypes.c_int(-1), ctypes.c_void_p()
    options = weightd._abi.AttachOptions(ret_fd=ctypes.pointer(fd))
    connection.call(weightd._abi.lib.weightd_attach, connection.handle, name.encode(), ctypes.byref(options), ctypes.byref(handle))
    connection.free(weightd._abi.lib.weightd_detach, handle)
    with open(fd.value, "rb") as f:
        return os.pread(fd.value, os.fstat(f.fileno()).st_size, 0)


def only_once(pairs):
    found = dict(pairs)
    assert len(found) == len(pairs), "a key stands twice"
    return found


def read_file(raw):
    """
    Parses a safetensors file as its specification has it, and returns its metadata and the tensors in the order of
    their bytes: (name, dtype, shape, bytes).
    """
    size, = struct.unpack_from("<Q", raw)
    text = raw[8:8 + size]
    assert text[:1] == b"{" and text.rstrip(b" ")[-1:] == b"}"
    header = json.loads(text, object_pairs_hook=only_once)
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(value, str) for value in metadata.values())
    rows, end, data = [], 0, memoryview(raw)[8 + size:]
    for name, row in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = row["data_offsets"]
        assert start == end and stop - start == n_bytes(row["dtype"], row["shape"]), name
        rows.append((name, row["dtype"], tuple(row["shape"]), bytes(data[start:stop])))
        end = stop
    assert end == len(data), "there are bytes behind the data"
    return metadata, rows


def check_file(raw, rows, data):
    metadata, found = read_file(raw)
    wanted = {row[0]: (*row[1:], data[row[0]]) for row in rows if len(row) == 3}
    assert {name: rest for name, *rest in found} == {name: list(rest) for name, rest in wanted.items()}
    ties = {row[0]: row[1] for row in rows if len(row) == 2}
    assert json.loads(metadata.get("weightd.tied", "{}")) == ties and metadata["format"] == "pt"
    return found


# --- The file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_version_is_a_file_with_the_tensors_and_nothing_else(weightd, case):
    rows = CASES[case]
    data = publish(weightd, "m", rows)
    raw = file_of(weightd, "m")
    found = check_file(raw, rows, data)
    buffer = weightd.attach("m")
    assert buffer.location.data_offset % PAGE == 0 and len(raw) == buffer.location.data_offset + buffer.nbytes
    assert [name for name, *_ in found] == [name for name in buffer if buffer[name].tied_to is None]
    buffer.verify()
    if len(rows) < 1000:
        assert {name: bytes(tensor.read()) for name, tensor in buffer.items()} == data


@pytest.mark.parametrize("seed", range(20))
def test_any_layout_becomes_a_file(weightd, seed):
    rows = fuzzed(seed)
    data = publish(weightd, "m", rows, seed)
    check_file(file_of(weightd, "m"), rows, data)
    weightd.attach("m").verify()


def test_large_tensors_come_first_and_each_is_aligned_to_its_elements(weightd):
    publish(weightd, "m", ODD + TYPES)
    tensors = [tensor for tensor in weightd.attach("m").values() if tensor.tied_to is None]
    kinds = [(tensor.nbytes % 256 != 0, -BITS[tensor.dtype] if tensor.nbytes % 256 else 0) for tensor in tensors]
    assert kinds == sorted(kinds) and kinds[0][0] is False
    assert all(tensor.offset % tensor.itemsize == 0 for tensor in tensors)
    assert [tensor.name for tensor in tensors if tensor.nbytes % 256 and tensor.dtype == "F16"] == ["c", "F16"]


def test_the_reference_reads_the_same_bytes(weightd, tmp_path):
    features.require("torch2")
    layouts = CASES | {f"fuzzed-{seed}": fuzzed(seed) for seed in range(50)}
    wanted = {}
    for case, rows in layouts.items():
        data = publish(weightd, case, rows, len(case))
        (tmp_path / case).write_bytes(file_of(weightd, case))
        wanted[case] = {row[0]: hashlib.sha256(data[row[0]]).hexdigest() for row in rows if len(row) == 3}
    code = textwrap.dedent("""
        import hashlib, json, pathlib, safetensors, sys
        found = {}
        for path in pathlib.Path(sys.argv[1]).iterdir():
            rows = safetensors.deserialize(path.read_bytes())
            found[path.name] = {name: hashlib.sha256(row["data"]).hexdigest() for name, row in rows}
        print(json.dumps(found))
        """)
    done = subprocess.run([features.TORCH2, "-c", code, tmp_path], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout) == wanted


# --- Versions that follow ---------------------------------------------------------------------------


def test_the_next_version_begins_its_data_at_the_same_offset(weightd):
    publish(weightd, "m", ODD)
    reader = weightd.attach("m")
    before, view = reader.location.data_offset, reader["b"].memoryview()
    data = publish(weightd, "m", list(reversed(ODD)), 7)
    assert reader.swap() and reader.location.data_offset == before
    assert bytes(view) == data["b"] and weightd.attach("m").layout_hash == reader.layout_hash
    reader.verify()


@pytest.mark.parametrize("is_parsed", [False, True])
def test_a_new_layout_that_is_the_same_leaves_the_offset(weightd, tmp_path, is_parsed):
    rows = [row for row in ODD if n_bytes(*row[1:]) % 256 == 0] + [("tail", "U8", (3,))]  # in the order of a file
    write_file(tmp_path / "m.safetensors", rows, contents(rows, 1), {"k": "v" * 100})
    weightd.load("m", tmp_path / "m.safetensors")
    reader = weightd.attach("m")
    before, view = reader.location.data_offset, reader["tail"].memoryview()
    assert before % PAGE
    data = contents(rows, 2)
    with weightd.create("m", reader.layout() if is_parsed else lay_out(weightd, rows), new_layout=True) as writer:
        for name, value in data.items():
            writer.write(writer[name].offset, value)
        writer.publish()
    assert reader.swap() and reader.location.data_offset == before
    assert bytes(view) == data["tail"]
    reader.verify()


def write_file(path, rows, data, metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, dtype, shape in rows:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data[name])]}
        at += len(data[name])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data[name] for name, *_ in rows))
    return path.read_bytes()


@pytest.mark.parametrize("growth", [0, 1, 100, PAGE, 3 * PAGE + 5])
def test_metadata_that_grow_leave_each_page_of_the_data_a_page(weightd, tmp_path, growth):
    first = write_file(tmp_path / "m.safetensors", ODD, contents(ODD, 1), {"k": ""})
    weightd.load("m", tmp_path / "m.safetensors")
    assert file_of(weightd, "m") == first
    reader = weightd.attach("m")
    before = reader.location.data_offset
    write_file(tmp_path / "m.safetensors", ODD, contents(ODD, 2), {"k": "v" * growth})
    weightd.load("m", tmp_path / "m.safetensors")
    assert reader.swap()
    assert reader.location.data_offset == before + -(-growth // PAGE) * PAGE
    metadata, rows = read_file(file_of(weightd, "m"))
    assert metadata == {"k": "v" * growth}
    assert {name: data for name, _, _, data in rows} == contents(ODD, 2)
    reader.verify()


def test_metadata_that_shrink_leave_the_offset(weightd, tmp_path):
    write_file(tmp_path / "m.safetensors", ODD, contents(ODD, 1), {"k": "v" * 100})
    weightd.load("m", tmp_path / "m.safetensors")
    reader = weightd.attach("m")
    before = reader.location.data_offset
    write_file(tmp_path / "m.safetensors", ODD, contents(ODD, 2), {})
    weightd.load("m", tmp_path / "m.safetensors")
    assert reader.swap() and reader.location.data_offset == before
    assert read_file(file_of(weightd, "m"))[0] == {}
    data = publish(weightd, "m", ODD, 3)  # with a header that the library writes
    assert reader.swap() and reader.location.data_offset == before
    assert {name: bytes(tensor.read()) for name, tensor in reader.items()} == data
    reader.verify()


def test_a_file_follows_a_version_of_the_flat_form_and_its_readers_attach_anew(weightd):
    old = publish(weightd, "m", ODD, 1, alignment=256)
    reader = weightd.attach("m")
    assert reader.location.data_offset == 0
    data = publish(weightd, "m", ODD, 2)
    with pytest.raises(weightd.LayoutMismatch, match="in another order; attach anew"):
        reader.swap()
    assert reader.version == 1 and {name: bytes(tensor.read()) for name, tensor in reader.items()} == old
    new = weightd.attach("m")
    assert new.version == 2 and new.location.data_offset > 0
    assert {name: bytes(tensor.read()) for name, tensor in new.items()} == data
    publish(weightd, "m", ODD, 3, alignment=256)  # adopts the layout of the file
    assert new.swap() and new.location.data_offset > 0


def test_a_version_that_replaces_the_flat_form_has_it_too(weightd):
    """With a layout of its own it could replace another model, which was published after the look at the newest version."""
    publish(weightd, "m", ODD, 1, alignment=256)
    before = weightd.attach("m").layout_hash
    data = publish(weightd, "m", ODD, 2, replace=True, policy="evict", pause_timeout=0.0)
    new = weightd.attach("m")
    assert (new.version, new.location.data_offset, new.layout_hash) == (2, 0, before) and rows_of(new) == data
    publish(weightd, "m", ODD, 3, replace=True, new_layout=True, policy="evict", pause_timeout=0.0)
    assert weightd.attach("m").location.data_offset > 0


def test_other_tensors_after_the_flat_form_are_refused_as_ever(weightd):
    publish(weightd, "m", ODD, alignment=256)
    with pytest.raises(weightd.LayoutMismatch, match="only in the new layout: 'z'.*--new-layout"):
        publish(weightd, "m", [*ODD, ("z", "U8", (1,))])
    data = publish(weightd, "m", [*ODD, ("z", "U8", (1,))], new_layout=True)
    check_file(file_of(weightd, "m"), [*ODD, ("z", "U8", (1,))], data)


# --- The flat form ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"exclusive": True}, {"reusable": True}, {"alignment": 64}, {"alignment": 4096}],
                         ids=lambda options: "-".join(map(str, options)))
def test_memory_that_can_be_no_file_keeps_its_form(weightd, options):
    for seed in 1, 2:
        how = options if seed == 1 else {k: v for k, v in options.items() if k == "alignment"}
        if "exclusive" in options and seed == 2:
            how = {"policy": "evict", "pause_timeout": 0.0}
        data = publish(weightd, "m", ODD, seed, **how)
        with weightd.attach("m") as buffer:
            assert buffer.location.data_offset == 0 and buffer.version == seed
            alignment = options.get("alignment", 256)
            assert all(tensor.offset % alignment == 0 for tensor in buffer.values())
            assert {name: bytes(tensor.read()) for name, tensor in buffer.items()} == data
            buffer.verify()


def test_a_layout_that_was_parsed_is_taken_as_it_is(weightd):
    flat = lay_out(weightd, ODD, 256)
    publish(weightd, "flat", ODD, alignment=256)
    publish(weightd, "file", ODD)
    for name, is_file in ("flat", False), ("file", True):
        layout = weightd.attach(name).layout()
        with weightd.create(f"{name}-too", layout) as writer:
            assert (writer.location.data_offset > 0) == is_file
            assert [(t.name, t.offset) for t in writer.values()] == [(t.name, t.offset) for t in layout]
            writer.publish()
        assert weightd.attach(f"{name}-too").layout_hash == layout.hash
    assert weightd.attach("flat").layout_hash == flat.hash


def test_a_header_that_would_not_fit_leaves_the_flat_form(weightd):
    """The size of the header is bounded by the format: 100 MB, which long names reach first."""
    rows = [(f"{i:06}" + "n" * 1000, "U8", (1,)) for i in range(100_000)]
    with weightd.create("m", lay_out(weightd, rows)) as writer:
        assert writer.location.data_offset == 0
        writer.publish()


# --- Mappings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2 * MIB, 5 * MIB + 3])
def test_pages_of_the_mapping_have_their_place_in_huge_pages(weightd, size):
    publish(weightd, "m", [("t", "U8", (size,))])
    buffer = weightd.attach("m")
    assert buffer["t"]._memory.address % (2 * MIB) == buffer.location.data_offset % (2 * MIB)


def rows_of(buffer):
    return {name: bytes(tensor.read()) for name, tensor in buffer.items()}


@pytest.mark.parametrize("rows", [ODD, [("only", "F32", (0,))]], ids=["some", "none"])
def test_a_file_is_released_and_mapped_again_at_the_same_address(weightd, rows):
    publish(weightd, "m", rows)
    buffer = weightd.attach("m")
    address = buffer.tensor(0)._memory.address
    before = rows_of(buffer)
    buffer.release()
    assert not buffer.reacquire() and buffer.tensor(0)._memory.address == address
    assert rows_of(buffer) == before
    buffer.release()
    data = publish(weightd, "m", rows, 2)
    weightd.drop("m", 1)
    assert buffer.reacquire() and rows_of(buffer) == data
    buffer.verify()


def write_image(client, offset, pattern, header=None, digest=None, name="m"):
    """A version of one tensor, by a writer that is not the library."""
    slot = client.create_image(name, image([("t", 5000)], alignment=1), offset)
    root = wire.fill_image(slot, pattern)
    if header is not None:
        os.pwrite(slot.fd, header, 0)
        os.pwrite(slot.digests_fd, digest or wire.hash128(header), 0)
    client.publish(slot.writer, root)
    client.detach(slot.writer)


def test_data_at_another_place_in_a_page_are_attached_anew(weightd, daemon):
    with Wire(daemon.socket, features=IMAGES) as client:
        write_image(client, 8192, b"one")
        buffer = weightd.attach("m")
        write_image(client, 8209, b"two")
    with pytest.raises(weightd.LayoutMismatch, match="begin at byte 8209 of its memory, those of version 1 at byte 8192, which "
                       "is another place in a page; attach anew"):
        buffer.swap()
    assert buffer.version == 1 and bytes(buffer["t"].memoryview()[:3]) == b"one" and weightd.ping().n_leases == 1
    new = weightd.attach("m")
    assert bytes(new["t"].memoryview()[:3]) == b"two" and new.location.data_offset == 8209
    new.verify()
    data = publish(weightd, "m", [("t", "U8", (5000,))])
    assert new.swap() and new.location.data_offset == 8209 and rows_of(new) == data
    assert len(file_of(weightd, "m")) == 8209 + 5000


# --- Proof ------------------------------------------------------------------------------------------


def blank(text, size):
    return struct.pack("<Q", size - 8) + text.encode().ljust(size - 8)


@pytest.mark.parametrize("header, words", [
    (blank('{"u":{"dtype":"U8","shape":[5000],"data_offsets":[0,5000]}}', 4096), "its header has tensor 'u' where the layout has 't'"),
    (blank('{"t":{"dtype":"I8","shape":[5000],"data_offsets":[0,5000]}}', 4096), "another type or shape of tensor 't'"),
    (blank('{"t":{"dtype":"U8","shape":[4999],"data_offsets":[0,4999]}}', 4096), "its header breaks the format"),
    (blank("{}", 4096), "its header "),
    (blank('{"t":{"dtype":"U8","shape":[5000],"data_offsets":[0,5000]}}', 5000)[:4096], "its header "),
    (b"\0" * 4096, "its header "),
    (b"\xff" * 4096, "its header "),
], ids=range(7))
def test_a_header_that_is_not_that_of_the_layout_is_found(weightd, daemon, header, words):
    with Wire(daemon.socket, features=IMAGES) as client:
        write_image(client, 4096, b"data", header)
    buffer = weightd.attach("m")
    with pytest.raises(weightd.Error) as found:
        buffer.verify()
    assert found.value.errno == errno.EILSEQ and words in str(found.value) and "'m@1' on host" in str(found.value)
    assert daemon.ctl("verify", "m", check=False).returncode != 0


def test_digests_that_are_not_those_of_the_bytes_are_found(weightd, daemon):
    with Wire(daemon.socket, features=IMAGES) as client:
        write_image(client, 4096, b"data", wire.image_header(5000, 4096), b"0" * 16)
        with pytest.raises(weightd.Error, match="its header is not the one published"):
            weightd.attach("m").verify()
        slot = client.create_image("n", image([("t", 5000)], alignment=1), 4096)
        root = wire.fill_image(slot, b"data")
        os.pwrite(slot.fd, b"x", 4096)
        client.publish(slot.writer, root)
        with pytest.raises(weightd.Error, match="the bytes from 0 to 5000 are not those published: leaf 0, tensor 't'"):
            weightd.attach("n").verify()
        assert client.attach("n").flags & DIGEST


# --- weightctl show ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options, form, why", [
    ({}, "image", ""), ({"alignment": 64}, "flat", "aligned layout"), ({"exclusive": True}, "flat", "exclusive buffer"),
    ({"reusable": True}, "flat", "reusable buffer"), ({"device": "cuda:0"}, "flat", "GPU memory")], ids=str)
def test_show_has_the_form_of_each_version_and_the_reason(make_daemon, gpu, monkeypatch, options, form, why):
    features.require("library")
    import weightd
    daemon = make_daemon(env=gpu.env)
    if "device" in options:
        daemon.ctl("load", "-q", "--device", "cuda:0", "m", small_file(daemon.folder))
    else:
        monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
        publish(weightd, "m", ODD, **options)
        [version] = weightd.versions("m")
        assert (version.image, version.has_files) == (form == "image", False)
    device = ["--device", "cuda:0"] if "device" in options else []
    [version] = json.loads(daemon.ctl("show", "m", "--json", *device).stdout)["versions"]
    assert (version["form"], version["why"]) == (form, why)
    head, row = daemon.ctl("show", "m", "-o", "form,why", *device).stdout.splitlines()[-2:]
    assert head.split() == ["FORM", "WHY"] and row.split() == [form, *(why.split() or ["-"])]


def small_file(folder):
    path = folder / "small.safetensors"
    write_file(path, ODD, contents(ODD), {})
    return path


def test_show_names_the_header_where_there_are_many_tensors(weightd, daemon):
    publish(weightd, "m", [(f"{i}", "U8", (1,)) for i in range(20_000)], alignment=64)
    [version] = json.loads(daemon.ctl("show", "m", "--json").stdout)["versions"]
    assert version["why"] == "aligned layout or large header"

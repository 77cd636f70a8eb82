"""Versions that are files, between nodes: each has the same file in the end, byte for byte, and the small files beside it."""
import contextlib
import hashlib
import json
import os
import random
import struct

import pytest
from lib import earlier, gguf
from lib.nodes import ABSENCE_S, MIB, Failed
from lib.wire import HAS_FILES, IMAGES, IS_IMAGE, Wire

NONE = {"data": {"security": "none"}}
QUORUM = {"policy": "quorum"}


def slot(node, name="m"):
    """(SHA-256 of all that a program finds at the version's path, True if it is a file, True if it has files)."""
    with Wire(node.daemon.socket, features=IMAGES) as w:
        lease = w.attach(name)
        data = os.pread(lease.slot_fd, lease.slot_size, 0)
        assert len(data) == lease.slot_size
        return hashlib.sha256(data).hexdigest(), bool(lease.flags & IS_IMAGE), bool(lease.flags & HAS_FILES)


def is_file_everywhere(nodes, path, name="m"):
    wanted = hashlib.sha256(path.read_bytes()).hexdigest()
    found = {node.name: slot(node, name)[:2] for node in nodes}
    assert found == dict.fromkeys(found, (wanted, True)), wanted
    for node in nodes:
        node.daemon.ctl("verify", name)


def write_safetensors(path, tensors, metadata=None, blanks=0):
    """{name: (dtype, shape, bytes)} in this order, with nothing between them."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode() + b" " * blanks
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in tensors.values()))
    return path


def odd_tensors(seed):
    """Of sizes that no page, no leaf and no element of the next one divides."""
    r = random.Random(seed)
    return {name: (dtype, [n], r.randbytes(n * size)) for name, dtype, size, n in (
        ("b", "U8", 1, 3), ("a", "F32", 4, 300_001), ("c", "BF16", 2, 77), ("d", "F64", 8, 130_003), ("e", "I8", 1, 1))}


# --- The file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ("tcp", "gloo"))
def test_a_file_arrives_as_it_was_loaded(make_nodes, require, tmp_path, engine):
    if engine == "gloo":
        require("gloo")
    nodes = make_nodes(3, settings={"data": {"engine": engine, "security": "none"}})
    path = write_safetensors(tmp_path / "m.safetensors", odd_tensors(1), {"made": "by a test"}, blanks=3)
    nodes["a"].daemon.ctl("load", "m", path)
    nodes["a"].push("m")
    nodes.rest("m")
    is_file_everywhere(nodes, path)


def test_files_of_other_headers_follow_each_other_with_what_changed(make_nodes, tmp_path):
    """Each begins its data at another place; the next version is one that a receiver has leaves of already."""
    nodes = make_nodes(3, settings=NONE)
    tensors = odd_tensors(2)
    for step, blanks in enumerate((0, 5_000, 64)):
        dtype, shape, data = tensors["d"]
        tensors["d"] = dtype, shape, data[:-1] + bytes([step])
        path = write_safetensors(tmp_path / f"{step}.safetensors", tensors, {"step": str(step)}, blanks)
        nodes["a"].daemon.ctl("load", "--new-layout", "m", path)
        end = nodes["a"].push("m")
        nodes.rest("m")
        is_file_everywhere(nodes, of_node(nodes["a"], path))
        assert step == 0 or end["payload"] < 2.1 * MIB, end


def of_node(node, path):
    """The file that it has, in place of that of `path`: it may have other blanks behind its header."""
    with Wire(node.daemon.socket, features=IMAGES) as w:
        lease = w.attach("m")
        data = os.pread(lease.slot_fd, lease.slot_size, 0)
    assert data.endswith(path.read_bytes()[-lease.data_size:])
    path.write_bytes(data)
    return path


def test_a_gguf_file_arrives_as_it_was_loaded(make_nodes, tmp_path):
    nodes = make_nodes(2, settings=NONE)
    path = tmp_path / "m.gguf"
    r = random.Random(3)
    gguf.write(path, {"w": ("F16", [64, 33], r.randbytes(2 * 64 * 33)), "q": ("Q4_0", [6, 64], r.randbytes(18 * 12))})
    nodes["a"].daemon.ctl("load", "m", path)
    nodes["a"].push("m")
    nodes.rest("m")
    is_file_everywhere(nodes, path)


def test_a_node_that_was_absent_gets_the_file_and_its_files_by_a_repair(make_nodes, tmp_path):
    nodes = make_nodes(3, absent="c", settings=NONE | {"limits": {"prepare-timeout": ABSENCE_S}}, group=QUORUM)
    folder = model_directory(tmp_path / "model", 4)
    nodes["a"].daemon.ctl("load", "m", folder)
    nodes["a"].push("m")
    nodes["c"].start()
    nodes.wait(lambda: nodes["c"].serves("m"), "c serves it")
    nodes.rest("m")
    is_file_everywhere(nodes, folder / "model.safetensors")
    assert [files_of(node) for node in nodes] == [files_of(nodes["a"])] * 3


def test_what_this_library_lays_out_is_a_file_everywhere(make_nodes):
    nodes = make_nodes(2, settings=NONE)
    for seed in 1, 2:
        nodes["a"].publish("m", seed=seed, size=MIB, tensors=7)
        nodes["a"].push("m")
        nodes.rest("m")
        assert slot(nodes["b"]) == slot(nodes["a"]) and slot(nodes["a"])[1]


def test_the_flat_form_stays_flat(make_nodes):
    import weightd
    nodes = make_nodes(2, settings=NONE)
    layout = weightd.Layout(256)
    layout.add("a", "F32", (3,))
    layout.add("b", "F32", (100, 5))
    with weightd.create("m", layout, socket=nodes["a"].daemon.socket) as writer:
        writer.publish()
    nodes["a"].push("m")
    nodes.rest("m")
    assert [slot(node)[1] for node in nodes] == [False, False] and slot(nodes["b"]) == slot(nodes["a"])


@pytest.mark.parametrize("header", (0, 4_093))
def test_shards_that_are_files_become_one(make_nodes, require, tmp_path, header):
    import weightd
    require("gloo")
    nodes = make_nodes(2, settings=NONE)
    rows, columns = 301, 1_001
    data = random.Random(header).randbytes(2 * rows * columns * 2)
    for i, node in enumerate(nodes):
        half = data[i * len(data) // 2:(i + 1) * len(data) // 2]
        node.daemon.ctl("load", "shard", write_safetensors(
            tmp_path / f"{i}.safetensors", {"odd": ("U8", [3], b"abc"), "w": ("BF16", [rows, columns], half)}, blanks=i * header))
    (tmp_path / "split.json").write_text(json.dumps({"split": [
        {"tensors": "w", "from": 0, "to": 0}, {"tensors": "odd", "from": "replicated", "to": "replicated"}]}))
    nodes["a"].ctl("sync", "reshard", "--split", tmp_path / "split.json", "--ranks", "a b", "--onto", "b", "--into", "whole", "shard")
    with weightd.attach("whole", socket=nodes["b"].daemon.socket) as whole:
        assert bytes(whole["w"].memoryview().cast("B")) == data and bytes(whole["odd"].memoryview()) == b"abc"


# --- Files beside it ---------------------------------------------------------------------------------


def model_directory(folder, seed, **files):
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    write_safetensors(folder / "model.safetensors", odd_tensors(seed))
    for name, text in ({"config": "{}"} | files).items():
        (folder / f"{name}.json").write_text(text)
    return folder


def files_of(node, name="m"):
    """{path: bytes}; None: it has none."""
    import weightd
    with contextlib.suppress(weightd.NotPublished):
        return {path: bytes(data) for path, data in weightd.files(name, socket=node.daemon.socket).items()}


def test_small_files_come_with_a_version_and_go_with_it(make_nodes, tmp_path):
    nodes = make_nodes(3)
    big = "x" * (8 << 20)
    for step, files in enumerate(({"config": '{"a": 1}'}, {"config": '{"a": 2}', "tokenizer": big}, {})):
        model_directory(tmp_path / "model", 5, **files)
        nodes["a"].daemon.ctl("load", *(() if files else ("--no-files",)), "m", tmp_path / "model")
        nodes["a"].push("m")
        nodes.rest("m")
        expected = {f"{name}.json": text.encode() for name, text in files.items()} or files_of(nodes["a"])
        assert [files_of(node) for node in nodes] == [expected] * 3, step


def test_a_version_without_files_has_none_on_a_node_that_had_some(make_nodes, tmp_path):
    nodes = make_nodes(2, settings=NONE)
    nodes["b"].daemon.ctl("load", "m", model_directory(tmp_path / "model", 6))
    assert files_of(nodes["b"])
    nodes["a"].publish("m", seed=1, size=MIB)
    nodes["a"].push("m")
    nodes.rest("m")
    assert [files_of(node) or None for node in nodes] == [None, None]


# --- Earlier agents ----------------------------------------------------------------------------------


@pytest.fixture
def earlier_programs():
    earlier.require()
    earlier.build("weightd-sync", "weightd-sync-local", "weightd-sync-tcp", folder=earlier.BUILD.name)
    return earlier.BUILD


def publish_flat(node, seed):
    import weightd
    layout = weightd.Layout(256)
    layout.add("w", "F32", (1 << 16,))
    with weightd.create("m", layout, socket=node.daemon.socket, new_layout=True) as writer:
        writer.write(0, random.Random(seed).randbytes(1 << 18))
        writer.publish()


def test_an_earlier_agent_gets_what_is_no_file_and_says_what_it_cannot_take(make_nodes, earlier_programs, tmp_path):
    nodes = make_nodes(3, programs={"b": earlier_programs}, settings=NONE, group=QUORUM)
    publish_flat(nodes["a"], 1)
    nodes["a"].push("m")
    nodes.rest("m")
    assert len({slot(node) for node in nodes}) == 1

    path = write_safetensors(tmp_path / "m.safetensors", odd_tensors(7))
    nodes["a"].daemon.ctl("load", "f", path)
    end = nodes["a"].push("f")
    by_name = {node["node"]: node for node in end["nodes"]}
    assert {name: node["state"] for name, node in by_name.items()} == {"a": "committed", "b": "failed", "c": "committed"}, end
    assert "layout" in by_name["b"]["why"], end
    is_file_everywhere([nodes["a"], nodes["c"]], path, "f")

    publish_flat(nodes["a"], 2)
    nodes["a"].push("m")
    nodes.rest("m")
    assert len({slot(node) for node in nodes}) == 1


def test_an_earlier_publisher_pushes_to_this_release(make_nodes, earlier_programs, tmp_path):
    nodes = make_nodes(3, programs={"a": earlier_programs}, settings=NONE)
    publish_flat(nodes["a"], 1)
    nodes["a"].push("m")
    nodes.rest("m")
    assert len({slot(node) for node in nodes}) == 1
    nodes["a"].daemon.ctl("load", "f", write_safetensors(tmp_path / "m.safetensors", odd_tensors(8)))
    with pytest.raises((Failed, AssertionError), match="restart"):
        nodes["a"].push("f")

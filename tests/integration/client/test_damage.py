"""weightctl verify and Buffer.verify() name the damaged leaves, their bytes and tensors, and a damaged header."""
import json
import os
import random
import re

import pytest
from lib import features, gguf, safetensors_file, wire
from lib.wire import IMAGES, IS_IMAGE, LEAF, Wire

LEAVES = 7


@pytest.fixture
def weightd(daemon, monkeypatch):
    features.require("library")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    import weightd
    return weightd


@pytest.fixture
def client(daemon):
    with Wire(daemon.socket, features=IMAGES) as w:
        yield w


def rows():
    """Tensors that share a leaf, have several, or end within one; the last leaf is short."""
    sizes = {"a": 1000, "b": 300, "c": 3 * LEAF - 1500, "empty": 0, "d": LEAF, "e": LEAF + 700, "f": LEAF}
    return {name: ("U8", [size], random.Random(name).randbytes(size)) for name, size in sizes.items()}


def damaged_copy(client, lease, offsets, name="bad"):
    """Publishes a copy whose digests are those of the whole bytes, and in which these bytes are flipped: of the slot."""
    slot_bytes = bytearray(os.pread(lease.slot_fd, lease.slot_size, 0))
    layout = os.pread(lease.layout_fd, os.fstat(lease.layout_fd).st_size, 0)
    offset = lease.slot_size - lease.data_size if lease.flags & IS_IMAGE else 0
    data = bytes(slot_bytes[offset:offset + lease.data_size])
    leaves = b"".join(wire.hash128(data[at:at + LEAF]) for at in range(0, len(data), LEAF))
    header = bytes(slot_bytes[:offset])
    for at in offsets:
        slot_bytes[at] ^= 1
    slot = client.create_image(name, layout, offset) if offset else client.create(name, layout)
    os.pwrite(slot.fd, slot_bytes, 0)
    if offset:
        os.pwrite(slot.digests_fd, wire.hash128(header) + leaves, 0)
    client.publish(slot.writer, wire.hash128(leaves))
    client.detach(slot.writer)


def verify(daemon, *names):
    done = daemon.ctl("verify", "--json", *names, check=False)
    return done.returncode, json.loads(done.stdout)["verified"], done.stderr


def expected(table, leaf, data_size):
    """As --json has it: by the offsets and sizes that weightctl tensors prints."""
    begin, end = leaf * LEAF, min((leaf + 1) * LEAF, data_size)
    names = [t["name"] for t in table if t["size"] and t["offset"] < end and t["offset"] + t["size"] > begin]
    return {"part": "leaf", "leaf": leaf, "begin": begin, "end": end, "tensors": names}


def write(folder, form):
    if form == "gguf":
        path = folder / "m.gguf"
        gguf.write(path, {name: ("I8", shape, data) for name, (_, shape, data) in rows().items() if data})
    else:
        path = folder / "m.safetensors"
        path.write_bytes(safetensors_file.pack(rows(), {"format": "pt"}))
    return path


@pytest.mark.parametrize("form", ["safetensors", "gguf", "flat"])
def test_each_damaged_leaf_is_named_with_its_bytes_and_tensors(daemon, client, weightd, tmp_path, form):
    daemon.ctl("load", "-q", "good", write(tmp_path, form), *(["--reusable"] if form == "flat" else []))
    lease = client.attach("good")
    assert bool(lease.flags & IS_IMAGE) == (form != "flat")
    start = lease.slot_size - lease.data_size if form != "flat" else 0
    table = json.loads(daemon.ctl("tensors", "good", "--json").stdout)["tensors"]
    assert lease.data_size // LEAF + 1 == LEAVES
    for leaves in [0], [3], [LEAVES - 1], [0, 1, 4, LEAVES - 1], range(LEAVES):
        damaged_copy(client, lease, [start + leaf * LEAF + 1 for leaf in leaves])
        status, found, errors = verify(daemon, "good", "bad")
        wanted = [expected(table, leaf, lease.data_size) for leaf in leaves]
        assert [(v["equal"], v["damage"]) for v in found] == [(True, []), (False, wanted)] and status == 1, found
        first = wanted[0]
        tensors = f"tensor '{first['tensors'][0]}'" + (f" or the {len(first['tensors']) - 1} behind it" * (len(first["tensors"]) > 1))
        more = f"; {len(leaves) - 1} more part" if len(leaves) > 1 else ""
        assert f"the bytes from {first['begin']} to {first['end']} are not those published: leaf {first['leaf']}, {tensors}{more}" \
            in errors
        with pytest.raises(weightd.DigestMismatch) as mismatch:
            weightd.attach("bad").verify()
        assert [d._asdict() | {"part": "leaf"} for d in mismatch.value.damage] == wanted
        daemon.ctl("rm", "bad")
    daemon.ctl("verify", "good")


def test_damaged_leaves_side_by_side_are_one_line(daemon, client, tmp_path):
    daemon.ctl("load", "-q", "good", write(tmp_path, "safetensors"))
    lease = client.attach("good")
    start = lease.slot_size - lease.data_size
    damaged_copy(client, lease, [2] + [start + leaf * LEAF for leaf in (0, 1, 2, 5)])
    done = daemon.ctl("verify", "bad", check=False)
    lines = done.stderr.splitlines()
    assert lines[:3] == [
        f"weightctl: bad@1: damaged: header, bytes 0 to {start} of the file",
        f"weightctl: bad@1: damaged: bytes 0 to {3 * LEAF}, leaf 0 to 2, tensors 'a' to 'd'",
        f"weightctl: bad@1: damaged: bytes {5 * LEAF} to {6 * LEAF}, leaf 5, tensors 'e' to 'f'"]
    assert re.fullmatch("weightctl: 'bad@1' on host: its header is not the one published; 4 more parts are damaged", lines[3])
    assert len(lines) == 4 and done.returncode == 1 and not done.stdout


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_a_damaged_header_is_named_beside_leaves(daemon, client, weightd, tmp_path, form):
    daemon.ctl("load", "-q", "good", write(tmp_path, form))
    lease = client.attach("good")
    start = lease.slot_size - lease.data_size
    header = {"part": "header", "leaf": None, "begin": 0, "end": start, "tensors": []}
    for leaves in [], [2]:
        damaged_copy(client, lease, [start // 2] + [start + leaf * LEAF for leaf in leaves])
        _, [found], errors = verify(daemon, "bad")
        assert found["damage"][0] == header and [d["leaf"] for d in found["damage"][1:]] == leaves
        assert "its header is not the one published" in errors
        with pytest.raises(weightd.DigestMismatch) as mismatch:
            weightd.attach("bad").verify()
        assert (mismatch.value.damage[0].leaf, mismatch.value.damage[0].end) == (None, start)
        daemon.ctl("rm", "bad")


def test_bytes_between_tensors_and_digests_have_no_tensor(daemon, client, tmp_path):
    """The flat form has room between tensors, and its table of digests behind them."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors_file.pack({"a": ("U8", [100], bytes(100)), "empty": ("U8", [0], b""), "b": ("U8", [9], b"123456789")}))
    daemon.ctl("load", "-q", "good", path, "--reusable")
    lease = client.attach("good")
    damaged_copy(client, lease, [200])
    _, [found], errors = verify(daemon, "bad")
    assert [d["tensors"] for d in found["damage"]] == [["a", "b"]], "the leaf has both"
    assert "tensor 'a' or the 1 behind it" in errors
    daemon.ctl("rm", "bad")
    damaged_copy(client, lease, [lease.slot_size - 4096])  # the table
    _, [found], errors = verify(daemon, "bad")
    assert (found["equal"], found["damage"]) == (False, []) and "its table of digests is not the one published" in errors

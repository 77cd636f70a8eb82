"""
Layouts of one model: a new version in a buffer gets the layout of the newest one if names, types and
shapes are the same, in any order; and otherwise the writer gets the difference.
"""
import ctypes
import errno
import json
import os
import random

import pytest
from integration.load.test_load import random_tensors, u8, write_index, write_model
from lib import wire
from lib.child import run_as
from lib.fake_server import PATIENCE_S, FakeServer, later
from lib.scene import Scene, publish, refusal
from lib.wire import image

MIB = 1 << 20
MEMBER, READER, OTHER, GROUP = 12346, 12347, 12348, 23456
KINDS = {"a.weight": ("F32", (3, 5)), "b.scale": ("F8_E8M0", (7,)), "c.packed": ("F4", (2, 6)), "d.step": ("I64", ()),
         "e.none": ("F32", (0, 4)), "f.large": ("U8", (2 * MIB + 3,))}


def lay_out(weightd, names=tuple(KINDS), alignment=256, role="param", unit="", ties=(), kinds=KINDS):
    layout = weightd.Layout(alignment)
    for name in names:
        layout.add(name, *kinds[name], role=role, unit=unit)
    for name, to in ties:
        layout.tie(name, to)
    return layout


def values(seed, kinds=KINDS):
    """Bytes for each tensor, by its name."""
    rng = random.Random(seed)
    return {name: rng.randbytes(n_bytes(*kind)) for name, kind in kinds.items()}


def n_bytes(dtype, shape):
    bits = {"F32": 32, "F8_E8M0": 8, "F4": 4, "I64": 64, "U8": 8}[dtype]
    for dim in shape:
        bits *= dim
    return bits // 8


def write(writer, data):
    for name, value in data.items():
        writer.write(writer[name].offset, value)
    return writer.publish()


def read(table):
    return {name: bytes(tensor.read()) for name, tensor in table.items()}


@pytest.mark.parametrize("options", [{}, {"reusable": True}, {"exclusive": True}, {"replace": True}],
                         ids=lambda options: "".join(options) or "plain")
def test_a_version_in_another_order_takes_the_place_of_the_newest(weightd, options):
    first = {k: v for k, v in options.items() if k != "replace"}
    write(weightd.create("m", lay_out(weightd), **first), values(1))
    reader = weightd.attach("m")
    data, offsets = reader.tensor(0).memoryview(), {t.name: t.offset for t in reader.values()}
    if options.get("exclusive") or options.get("replace"):  # with readers that have to pause
        options |= {"policy": "evict", "pause_timeout": 0.0}
    given = lay_out(weightd, reversed(KINDS), alignment=4096, role="buffer", unit="block")
    with weightd.create("m", given, **options) as writer:
        assert list(writer) == list(KINDS)
        assert {t.name: t.offset for t in writer.values()} == offsets
        assert {(t.role, t.unit) for t in writer.values()} == {("param", "")}
        assert write(writer, values(2)) == 2
    new = weightd.attach("m")
    assert new.layout_hash == reader.layout_hash != given.hash
    assert read(new) == values(2)
    new.verify()
    if not options.get("exclusive"):
        assert reader.swap() and reader.version == 2
    assert bytes(data) == values(2)["a.weight"]


def test_a_torn_buffer_is_repaired_in_another_order(weightd):
    write(weightd.create("m", lay_out(weightd), exclusive=True), values(1))
    weightd.create("m", lay_out(weightd)).close()
    assert weightd.ls("m")[0].state == "torn"
    with weightd.create("m", lay_out(weightd, reversed(KINDS))) as writer:
        write(writer, values(2))
    assert read(weightd.attach("m")) == values(2)


# --- Ties -----------------------------------------------------------------------------------------------

EMBED = {"embed": ("U8", (MIB + 1,)), "head": ("U8", (MIB + 1,)), "w": ("F32", (3,))}
HOW = {
    "tied": dict(names=("embed", "w"), ties=[("head", "embed")]),
    "tied the other way": dict(names=("w", "head"), ties=[("embed", "head")]),
    "twice": dict(names=("head", "w", "embed")),
    "without head": dict(names=("w", "embed")),
    "without embed": dict(names=("head", "w")),
}


@pytest.mark.parametrize("here", ["tied", "tied the other way"])
@pytest.mark.parametrize("there", HOW)
@pytest.mark.parametrize("by", ["embed", "head"])
def test_tied_names_are_one_memory_for_the_writer_whatever_the_newest_version_has(weightd, here, there, by):
    data = values(1, EMBED) | {"head": values(1, EMBED)["embed"]}
    with weightd.create("m", lay_out(weightd, kinds=EMBED, **HOW[there])) as writer:
        names = set(writer)
        write(writer, {name: data[name] for name in names})
    reader = weightd.attach("m")
    new = values(3, EMBED)
    with weightd.create("m", lay_out(weightd, kinds=EMBED, **HOW[here])) as writer:
        assert writer["embed"].offset == writer["head"].offset and writer["embed"].name == "embed"
        write(writer, {by: new["embed"], "w": new["w"]})
        assert writer["embed"].read() == writer["head"].read() == new["embed"]
    assert reader.swap()
    assert read(reader) == {name: new["embed" if name == "head" else name] for name in names}
    reader.verify()


def test_digests_that_came_before_a_tie_was_copied_are_made_anew(weightd):
    from weightd._abi import lib
    write(weightd.create("m", lay_out(weightd, kinds=EMBED, **HOW["twice"])), values(1, EMBED))
    with weightd.create("m", lay_out(weightd, kinds=EMBED, **HOW["tied"])) as writer:
        writer.write(writer["embed"].offset, b"\7" * (MIB + 1))
        for leaf in range(4):
            lib.weightd_writer_digest_leaf(writer._memory.handle, ctypes.c_uint64(leaf))
        writer.publish()
    reader = weightd.attach("m")
    assert reader["embed"].read() == reader["head"].read() == b"\7" * (MIB + 1)
    reader.verify()


def test_names_that_only_the_newest_version_ties_are_one_memory(weightd):
    write(weightd.create("m", lay_out(weightd, kinds=EMBED, **HOW["tied"])), values(1, EMBED))
    with weightd.create("m", lay_out(weightd, kinds=EMBED, **HOW["twice"])) as writer:
        assert writer["head"].tied_to == writer["embed"].index
        write(writer, {"embed": values(2, EMBED)["embed"], "w": b"\1" * 12})
    assert weightd.attach("m")["head"].read() == values(2, EMBED)["embed"]


def test_chains_of_ties_of_both_sides_are_one_memory(weightd):
    kinds = dict.fromkeys("pqrst", ("U8", (5,)))
    write(weightd.create("m", lay_out(weightd, "pqs", kinds=kinds, ties=[("r", "q")])), dict.fromkeys("pqsr", b"old  "))
    reader = weightd.attach("m")
    # r and q are one there; s and r, p and q, and t, are one here: so all are.
    given = lay_out(weightd, "sp", kinds=kinds, ties=[("r", "s"), ("q", "p"), ("t", "r")])
    with weightd.create("m", given) as writer:
        assert len({writer[name].offset for name in "pqrst"}) == 1
        write(writer, {"t": b"12345"})
        assert "u" not in writer and list(writer) == ["p", "q", "s", "r"]
    assert reader.swap() and read(reader) == dict.fromkeys("pqsr", b"12345")


# --- Loading --------------------------------------------------------------------------------------------


def load(daemon, *args, **kw):
    return daemon.ctl("load", "--json", "--quiet", *args, **kw)


def shuffled(tensors, seed):
    names = sorted(tensors)
    random.Random(seed).shuffle(names)
    return {name: tensors[name] for name in names}


@pytest.fixture
def model(tmp_path):
    """Tensors of all sizes, and a file of them that was loaded as 'm'."""
    tensors = random_tensors(random.Random(6), "layer", 40)
    write_model(tmp_path / "model.safetensors", tensors)
    return tensors, tmp_path / "model.safetensors"


def fresh(tensors, seed):
    """The same ones with other bytes, in another order."""
    rng = random.Random(seed)
    return shuffled({name: (dtype, shape, rng.randbytes(len(data))) for name, (dtype, shape, data) in tensors.items()},
                    seed)


@pytest.mark.parametrize("options", [[], ["--exclusive"], ["--reusable"], ["--replace"]], ids=str)
def test_a_load_of_a_file_in_another_order_can_be_swapped_to(weightd, daemon, tmp_path, model, options):
    tensors, path = model
    load(daemon, "m", path, *(option for option in options if option != "--replace"))
    reader = weightd.attach("m")
    new = fresh(tensors, 7)
    write_model(tmp_path / "other.safetensors", new)
    pause = ["--policy", "evict", "--pause-timeout", "0"] if options[:1] in (["--exclusive"], ["--replace"]) else []
    told = json.loads(load(daemon, "m", tmp_path / "other.safetensors", *options, *pause).stdout)
    after = weightd.attach("m")
    assert after.layout_hash == reader.layout_hash and list(after) == list(tensors)
    assert read(after) == {name: data for name, (_, _, data) in new.items()}
    after.verify()
    assert (told["tensors"], told["size"]) == (len(new), sum(len(data) for _, _, data in new.values()))
    if "--exclusive" not in options:
        assert reader.swap() and read(reader) == read(after)


def test_a_load_of_other_shards_can_be_swapped_to(weightd, daemon, tmp_path, model):
    tensors, path = model
    load(daemon, "m", path)
    reader, new = weightd.attach("m"), fresh(tensors, 8)
    names, shards = list(new), tmp_path / "shards"
    shards.mkdir()
    for i in range(3):
        write_model(shards / f"model-0000{i + 1}-of-00003.safetensors", {name: new[name] for name in names[i::3]})
    write_index(shards / "model.safetensors.index.json",
                {name: f"model-0000{i % 3 + 1}-of-00003.safetensors" for i, name in enumerate(names)})
    load(daemon, "m", shards)
    assert reader.swap() and read(reader) == {name: data for name, (_, _, data) in new.items()}
    reader.verify()


def test_a_load_of_other_tensors_tells_which(weightd, daemon, tmp_path):
    write_model(tmp_path / "a.safetensors", {"x": u8(b"123"), "y": u8(b"4"), "gone": u8(b"5")})
    write_model(tmp_path / "b.safetensors", {"more": u8(b"5"), "y": ("I8", [1], b"4"), "x": u8(b"12")})
    load(daemon, "m", tmp_path / "a.safetensors")
    done = load(daemon, "m", tmp_path / "b.safetensors", check=False)
    assert done.returncode != 0 and done.stderr == (
        "weightctl: the layout differs from that of 'm@1' on host (other type or shape: 'y' is I8 [1], was U8 [1], 'x' "
        "is U8 [2], was U8 [3]; only in the new layout: 'more'; only in version 1: 'gone'); ask for a new layout "
        "(weightctl load --new-layout), or remove the buffer first\n")


@pytest.mark.parametrize("exclusive", [False, True], ids=["replaced", "in place"])
def test_a_load_fills_a_tie_of_the_newest_version_from_equal_bytes_only(weightd, daemon, tmp_path, exclusive):
    kinds = EMBED | {"head": EMBED["embed"]}
    layout = lay_out(weightd, kinds=kinds, **HOW["tied"] | {"alignment": None})  # a file after the flat form is new
    write(weightd.create("m", layout, exclusive=exclusive), values(1, kinds))
    reader, before = weightd.attach("m"), read(weightd.attach("m"))
    both = {name: (*EMBED[name], data) for name, data in values(2, EMBED).items()}
    last = both["embed"][2][:-1] + bytes([both["embed"][2][-1] ^ 1])
    write_model(tmp_path / "apart.safetensors", both | {"head": (*EMBED["head"], last)})
    how = ["--policy", "evict", "--pause-timeout", "0"] + ([] if exclusive else ["--replace"])
    done = load(daemon, "m", tmp_path / "apart.safetensors", *how, check=False)
    assert done.returncode != 0 and done.stderr == (
        "weightctl: the newest version of 'm' ties 'head' to 'embed', and the files have different bytes for them; ask "
        "for a new layout (weightctl load --new-layout), or remove the buffer first\n")
    assert reader.state == "ready" and reader.latest() == 1 and read(reader) == before
    write_model(tmp_path / "same.safetensors", both | {"head": both["embed"]})
    load(daemon, "m", tmp_path / "same.safetensors", *how)
    after = weightd.attach("m")
    after.verify()
    assert read(after) == {name: data for name, (_, _, data) in both.items()} | {"head": both["embed"][2]}


def test_a_load_places_its_bytes_anew_when_the_layout_changes_meanwhile(weightd, server, tmp_path):
    write_model(tmp_path / "m.safetensors", {"t": u8(b"t" * 64), "u": u8(b"u" * 64)})
    asked = later(weightd.load, "m", tmp_path / "m.safetensors", socket=server.path)
    server.accept()
    peer = server.accept()
    sent_layout(peer)
    for order in ORDERS[1:]:
        peer.fail(errno.EPROTOTYPE)
        tell_layout(peer, order)
        assert sent_layout(peer) == order
    peer.fail(errno.ENOMEM)
    with pytest.raises(weightd.Error, match="the test says no"):
        asked.result(PATIENCE_S)


def test_a_load_to_a_gpu_follows_the_newest_version(make_daemon, gpu, tmp_path, model):
    daemon, (tensors, path) = make_daemon(env=gpu.env), model
    def described(*device):
        rows = json.loads(daemon.ctl("tensors", "m", "--json", *device).stdout)["tensors"]
        return [(row["name"], row["offset"]) for row in rows]

    load(daemon, "--device", "cuda:0", "m", path)
    before, new = described("--device", "cuda:0"), fresh(tensors, 9)
    write_model(tmp_path / "other.safetensors", new)
    load(daemon, "--device", "cuda:0", "m", tmp_path / "other.safetensors")
    assert described("--device", "cuda:0") == before
    for name, (_, _, data) in new.items():
        assert daemon.ctl("cat", "--device", "cuda:0", "m", name, text=False).stdout == data, name
    daemon.ctl("verify", "--device", "cuda:0", "m")


# --- Differences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [False, True])
def test_an_error_names_what_differs_and_nothing_is_changed(weightd, exclusive):
    write(weightd.create("m", lay_out(weightd), exclusive=exclusive), values(1))
    kinds = {k: v for k, v in KINDS.items() if k != "b.scale"} | {"a.weight": ("F32", (5, 3)), "z": ("U8", (1,))}
    with pytest.raises(weightd.LayoutMismatch) as e:
        weightd.create("m", lay_out(weightd, kinds, kinds=kinds))
    assert str(e.value) == "the layout differs from that of 'm@1' on host%s (other type or shape: 'a.weight' is " \
        "F32 [5, 3], was F32 [3, 5]; only in the new layout: 'z'; only in version 1: 'b.scale'); %s" % (
            (", which is written in place", "remove the buffer first") if exclusive else
            ("", "ask for a new layout (weightctl load --new-layout), or remove the buffer first"))
    assert read(weightd.attach("m")) == values(1) and not weightd.ls("m")[0].writing


def test_a_sentence_keeps_its_end_however_long_names_are(weightd):
    name = "m" * 127
    kinds = {f"{i}{'x' * 1000}": ("U8", (1,)) for i in range(40)}
    weightd.create(name, lay_out(weightd, [*kinds][:20], kinds=kinds)).publish()
    with pytest.raises(weightd.LayoutMismatch, match=r"only in the new layout: .*only in version 1: .*; ask for a new "
                       r"layout \(weightctl load --new-layout\), or remove the buffer first$"):
        weightd.create(name, lay_out(weightd, [*kinds][20:], kinds=kinds))


def test_a_new_layout_is_exactly_the_given_one(weightd):
    write(weightd.create("m", lay_out(weightd)), values(1))
    reader, given = weightd.attach("m"), lay_out(weightd, reversed(KINDS))
    with weightd.create("m", given, new_layout=True) as writer:
        write(writer, values(2))
    assert weightd.attach("m").layout_hash == given.hash
    with pytest.raises(weightd.LayoutMismatch) as e:
        reader.swap()
    assert str(e.value) == "'m@2' on host has the tensors of version 1 in another order; attach anew"
    assert reader.version == 1 and read(reader) == values(1)


def test_a_swap_to_other_tensors_tells_which(weightd):
    write(weightd.create("m", lay_out(weightd), keep=4), values(1))
    reader = weightd.attach("m")
    kinds = {"z": ("U8", (1,))} | {k: v for k, v in KINDS.items() if k != "b.scale"} | {"d.step": ("I64", (1,))}
    weightd.create("m", lay_out(weightd, kinds, kinds=kinds), new_layout=True).publish()
    weightd.create("m", lay_out(weightd), new_layout=True).publish()
    weightd.rollback("m", 2)
    sentence = "the tensors of 'm' on host differ (other type or shape: 'd.step' is I64 [1], was I64 []; only in version 2: " \
               "'z'; only in version 1: 'b.scale'); attach anew"
    with pytest.raises(weightd.LayoutMismatch) as e:
        reader.swap()
    assert str(e.value) == sentence
    reader.release()
    weightd.drop("m", version=1)
    with pytest.raises(weightd.LayoutMismatch) as e:
        reader.reacquire()
    assert str(e.value) == sentence
    weightd.rollback("m", 3)
    assert reader.reacquire() and reader.version == 3


# --- Requests -------------------------------------------------------------------------------------------

T = image([("t", 64)])
ORDERS = image([("t", 64), ("u", 64)]), image([("u", 64), ("t", 64)]), image([("u", 64), ("t", 64)], padding=8)


@pytest.fixture
def server(tmp_path):
    with FakeServer(tmp_path / "w.sock") as fake:
        yield fake


def create(weightd, server, *names):
    """create() of a layout of U8 [64] each, on a thread; and the connection that it asks on."""
    layout = lay_out(weightd, names, alignment=64, kinds=dict.fromkeys(names, ("U8", (64,))))
    asked = later(weightd.create, "m", layout, socket=server.path)
    return asked, server.accept(), layout


def sent_layout(peer):
    asked = peer.request(wire.CREATE)
    return os.pread(asked.fds[0], 1 << 20, 0)


def tell_layout(peer, raw, version=1):
    asked = peer.request(wire.LAYOUT)
    assert asked.values[0].rstrip(b"\0") == b"m" and asked.values[2] == 0
    fd = wire.memfd(raw)
    peer.reply("QII16s", version, 0, 0, raw[16:32], fds=[fd])
    os.close(fd)


def test_a_layout_is_asked_for_only_where_the_given_one_is_refused(weightd, server):
    asked, peer, _ = create(weightd, server, "t", "u")
    peer.request(wire.CREATE)
    peer.fail(errno.ENOMEM)
    with pytest.raises(weightd.Error, match="the test says no"):
        asked.result(PATIENCE_S)
    assert peer.is_silent()
    asked, peer, _ = create(weightd, server, "t", "u")
    sent_layout(peer)
    peer.fail(errno.EPROTOTYPE)
    tell_layout(peer, ORDERS[1])
    assert sent_layout(peer) == ORDERS[1]
    peer.fail(errno.ENOMEM)
    with pytest.raises(weightd.Error, match="the test says no"):
        asked.result(PATIENCE_S)


def test_a_layout_that_changes_meanwhile_is_adopted_again_a_few_times(weightd, server):
    asked, peer, layout = create(weightd, server, "t", "u")
    sent_layout(peer)
    for i in range(4):
        peer.fail(errno.EPROTOTYPE, f"refused {i}")
        tell_layout(peer, ORDERS[i % 3], version=i + 1)
        assert sent_layout(peer) == ORDERS[i % 3]
    peer.fail(errno.EPROTOTYPE, "refused for good")
    with pytest.raises(weightd.LayoutMismatch, match="refused for good"):
        asked.result(PATIENCE_S)
    assert peer.is_silent()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENODATA])
@pytest.mark.parametrize("adopts", [False, True])
def test_a_buffer_that_is_gone_meanwhile_is_made_with_the_given_layout(weightd, server, code, adopts):
    asked, peer, layout = create(weightd, server, "t", "u")
    given = sent_layout(peer)
    assert given[16:32] == layout.hash
    peer.fail(errno.EPROTOTYPE)
    if adopts:
        tell_layout(peer, ORDERS[1])
        assert sent_layout(peer) == ORDERS[1]
        peer.fail(errno.EPROTOTYPE)
    peer.request(wire.LAYOUT)
    peer.fail(code)
    assert sent_layout(peer) == given
    peer.fail(errno.ENOMEM)
    with pytest.raises(weightd.Error, match="the test says no"):
        asked.result(PATIENCE_S)


def test_a_layout_that_is_none_is_no_reason_to_end(weightd, server):
    asked, peer, _ = create(weightd, server, "t", "u")
    sent_layout(peer)
    peer.fail(errno.EPROTOTYPE)
    tell_layout(peer, T[:100])
    with pytest.raises(weightd.Error, match="the layout of 'm@1' on host cannot be used"):
        asked.result(PATIENCE_S)


@pytest.fixture
def scene(make_daemon):
    with Scene(make_daemon("--socket-mode", "0666")) as s:
        yield s


def test_the_layout_of_a_version_is_told_without_a_lease(scene):
    w, = scene.connect(1)
    assert refusal(w.layout, "m") == errno.ENOENT
    slot = w.create("m", ORDERS[0])
    assert refusal(w.layout, "m") == errno.ENODATA
    w.publish(slot.writer, wire.fill(slot, b"one"))
    publish(w, layout=ORDERS[1], flags=wire.NEW_LAYOUT)
    w.rollback("m", 1)
    told = w.layout("m")
    assert told[:3] == (2, 0, ORDERS[1][16:32]) and os.pread(told.fd, 1 << 20, 0) == ORDERS[1]
    with pytest.raises(OSError):
        os.pwrite(told.fd, b"x", 0)
    assert w.layout("m", 1)[:3] == (1, 0, ORDERS[0][16:32]) and refusal(w.layout, "m", 3) == errno.ENOENT
    assert w.ping().n_leases == 1, "the writer's own"


def test_a_layout_is_told_to_those_who_may_read_or_write(scene, require):
    require("root")
    require("library")
    import weightd
    w, = scene.connect(1)
    publish(w, layout=ORDERS[0])
    w.access("m", mode=0o042, uid=MEMBER, gid=GROUP)

    def asked():
        with wire.Wire(scene.daemon.socket) as theirs:
            try:
                return theirs.layout("m").version
            except wire.Refused as e:
                return -e.errno

    def written():
        names = "u", "t"
        layout = lay_out(weightd, names, alignment=64, kinds=dict.fromkeys(names, ("U8", (64,))))
        with weightd.create("m", layout, socket=scene.daemon.socket, owner=MEMBER) as writer:
            writer.write(writer["u"].offset, b"u" * 64)
            return writer.publish()

    assert run_as(MEMBER, asked) == -errno.EACCES
    assert run_as(READER, asked, gid=GROUP) == 1
    assert run_as(OTHER, asked) == 1, "which may write, and not read"
    assert run_as(OTHER, written) == 2
    assert w.attach("m").bytes() == bytes(64) + b"u" * 64


# --- In Python ------------------------------------------------------------------------------------------


def test_the_layout_of_a_buffer_is_one_to_create_with(weightd):
    given = lay_out(weightd, ("b.scale", "a.weight"), alignment=1024, role="buffer", ties=[("again", "a.weight")])
    weightd.create("m", given).publish()
    layout = weightd.attach("m").layout()
    assert layout.hash == given.hash and layout.nbytes == given.nbytes
    assert [repr(entry) for entry in layout] == [repr(entry) for entry in given]
    assert layout.tie("more", "b.scale") == 3 and layout.tie("most", "more") == 4
    assert weightd.create("n", layout).publish() == 1
    assert list(weightd.attach("n")) == ["b.scale", "a.weight", "again", "more", "most"]


def test_attach_takes_a_layout_in_any_order_and_a_hash_in_one(weightd):
    weightd.create("m", lay_out(weightd)).publish()
    other = lay_out(weightd, reversed(KINDS), alignment=64)
    assert list(weightd.attach("m", layout=other)) == list(KINDS)
    with pytest.raises(weightd.LayoutMismatch, match="is not the requested one"):
        weightd.attach("m", layout=other.hash)
    with pytest.raises(weightd.LayoutMismatch) as e:
        weightd.attach("m", layout=lay_out(weightd, ("a.weight",)))
    assert str(e.value) == "the layout asked for is not that of 'm@1' on host, the other: only in the other: 'b.scale', " \
                           "'c.packed', 'd.step', 'e.none', 'f.large'"
    assert weightd.ls("m")[0].n_readers == 0

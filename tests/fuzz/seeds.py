#!/usr/bin/python3
"""Writes the corpora of fuzz_codec, fuzz_gguf, fuzz_layout, fuzz_allocator, fuzz_nldev, fuzz_note, fuzz_sync_* and
fuzz_train_*: tests/fuzz/seeds.py

One small input for each thing that the targets should know from the start; what fuzzing finds and is
worth keeping stands beside them. The first byte of an input is for the target, see its opening.
"""
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from lib import gguf  # noqa: E402

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"

# --- codec: ipc/wire.h ---

REPLY = 0x8000
ERROR = 0x7FFF


def text(s, size):
    return s.encode().ljust(size, b"\0")


def packet(op, body=b"", n_fds=0):
    """The first byte, which encodes the direction and the descriptors, and the packet."""
    how = n_fds << 4 | bool(op & REPLY)
    return struct.pack("<BIHHQ", how, 16 + len(body), op, n_fds, 7) + body


TARGET = text("llama-8b", 128) + text("host", 64)
HASH = bytes(range(16))
TOKEN = bytes(range(1, 33))

MESSAGES = {
    "hello": packet(1, struct.pack("<IIQ", 1, 0, 0) + text("weightctl", 32)),
    "ping": packet(2),
    "create": packet(3, TARGET + struct.pack("<QqIIII", 9, -1, 0o640, 2, 1, 2), 1),
    "publish": packet(4, struct.pack("<QII", 9, 1, 0) + HASH),
    "abort": packet(5, struct.pack("<Q", 9)),
    "attach": packet(6, TARGET + struct.pack("<QQII", 3, 4, 1, 0) + HASH),
    "attach-owner": packet(6, TARGET + struct.pack("<QQII", 3, 0, 2, 1000) + HASH),
    "detach": packet(7, struct.pack("<Q", 9)),
    "wait": packet(8, TARGET + struct.pack("<Qq", 3, -1)),
    "list": packet(9, TARGET + struct.pack("<QII", 4, 1, 0)),
    "drop": packet(10, TARGET + struct.pack("<Q", 3)),
    "resume": packet(11, struct.pack("<Q", 9)),
    "renew": packet(12, struct.pack("<QQ", 4, 3)),
    "rollback": packet(13, TARGET + struct.pack("<Q", 3)),
    "access": packet(14, TARGET + struct.pack("<IIII", 7, 0o640, 1000, 1000)),
    "pause": packet(15, struct.pack("<Qq", 9, -1)),
    "events": packet(16, struct.pack("<Qq", 5, 1000)),
    "stat": packet(17),
    "create-image": packet(19, TARGET + struct.pack("<QqIIIIQ", 9, -1, 0o640, 2, 1, 2, 4096), 1),
    "proof": packet(20, struct.pack("<Q", 9)),
    "set-files": packet(21, struct.pack("<Q", 9), 1),
    "files": packet(22, TARGET + struct.pack("<Q", 3)),
    "job-create": packet(23, text("train", 128) + TOKEN + struct.pack("<qII", 1000, 4, 0)),
    "job-join": packet(24, text("train", 128) + TOKEN + HASH + struct.pack("<II", 3, 2) + text("JOURNAL", 16) + struct.pack("<Q", 4096) +
                       text("PARAM", 16) + struct.pack("<Q", 1 << 30) + bytes(14 * 24), 1),
    "job-part": packet(25, struct.pack("<QII", 9, 1, 0)),
    "job-description": packet(26, text("train", 128) + TOKEN),
    "job-leave": packet(27, struct.pack("<QII", 9, 1, 0)),
    "job-remove": packet(28, text("train", 128)),
    "job-view": packet(29, text("train", 128)),
    "create-owned": packet(30, TARGET + struct.pack("<QqIIIIQII", 9, -1, 0o640, 2, 1, 2, 0, 1000, 0), 1),
    "create-image-owned": packet(31, TARGET + struct.pack("<QqIIIIQII", 9, -1, 0o640, 2, 1, 2, 4096, 1000, 0), 1),
    "owner-without-its-flag": packet(6, TARGET + struct.pack("<QQII", 3, 0, 1, 1000) + HASH),
    "hello-reply": packet(REPLY | 1, struct.pack("<IIQQ", 1, 77, 0, 5) + text("0.1.0", 32)),
    "ping-reply": packet(REPLY | 2, struct.pack("<QQQQQQII", 5, 6, 7, 8, 9, 10, 77, 0) + text("0.1.0", 32)),
    "create-reply": packet(REPLY | 3, struct.pack("<QQQQQII", 1, 2, 3, 4096, 8192, 1, 0), 2),
    "publish-reply": packet(REPLY | 4, struct.pack("<Q", 3)),
    "abort-reply": packet(REPLY | 5),
    "attach-reply": packet(REPLY | 6, struct.pack("<QQQQQII", 1, 2, 3, 4096, 8192, 1, 0) + HASH + HASH, 3),
    "detach-reply": packet(REPLY | 7),
    "wait-reply": packet(REPLY | 8, struct.pack("<Q", 3)),
    "list-reply": packet(REPLY | 9, struct.pack("<IIQ", 1, 96, 5) + b"r" * 96 + bytes(4032 - 96)),
    "drop-reply": packet(REPLY | 10),
    "resume-reply": packet(REPLY | 11, struct.pack("<QQ", 4, 0)),
    "renew-reply": packet(REPLY | 12, struct.pack("<Q", 9)),
    "rollback-reply": packet(REPLY | 13, struct.pack("<Q", 3)),
    "access-reply": packet(REPLY | 14),
    "pause-reply": packet(REPLY | 15, struct.pack("<QII", 3, 3, 0) + HASH + HASH),
    "events-reply": packet(REPLY | 16, struct.pack("<IIQ", 1, 232, 5) + TARGET +
                           struct.pack("<QQQIIII", 5, 6, 3, 2, 0, 1000, 77) + bytes(4032 - 232)),
    "stat-reply": packet(REPLY | 17, struct.pack("<9Q", *range(9))),
    "create-image-reply": packet(REPLY | 19, struct.pack("<QQQQQII", 1, 2, 3, 4096, 8192, 0, 0) + bytes(96), 3),
    "proof-reply": packet(REPLY | 20, n_fds=2),
    "set-files-reply": packet(REPLY | 21),
    "files-reply": packet(REPLY | 22, struct.pack("<Q", 3), 1),
    "job-create-reply": packet(REPLY | 23),
    "job-join-reply": packet(REPLY | 24, struct.pack("<QII", 9, 4, 1)),
    "job-part-reply": packet(REPLY | 25, n_fds=1),
    "job-description-reply": packet(REPLY | 26, n_fds=1),
    "job-leave-reply": packet(REPLY | 27),
    "job-remove-reply": packet(REPLY | 28),
    "job-view-reply": packet(REPLY | 29, struct.pack("<II", 4, 0), 2),
    "error": packet(REPLY | ERROR, struct.pack("<iI", -2, 0) + text("no such buffer", 512)),
}


def changed(message, at, value):
    """With other bytes at an offset into the packet."""
    return message[:1 + at] + value + message[1 + at + len(value):]


WRONG_MESSAGES = {
    "nothing": b"\0",
    "half-a-header": MESSAGES["ping"][:9],
    "truncated": MESSAGES["attach"][:100],
    "one-byte-more": MESSAGES["abort"] + b"\0",
    "size-of-another": changed(MESSAGES["attach"], 0, struct.pack("<I", 4096)),
    "unknown-op": changed(MESSAGES["ping"], 4, struct.pack("<H", 18)),
    "op-0": changed(MESSAGES["ping"], 4, struct.pack("<H", 0)),
    "too-many-descriptors": b"\xf0" + MESSAGES["attach"][1:],
    "no-terminator": changed(MESSAGES["drop"], 16, b"x" * 128),
    "behind-the-terminator": changed(MESSAGES["drop"], 16 + 126, b"x"),
    "padding": changed(MESSAGES["list"], 16 + 204, b"\1"),
    "list-reply-past-its-end": changed(MESSAGES["list-reply"], 16, struct.pack("<I", 43)),
    "list-reply-overflow": changed(MESSAGES["list-reply"], 16, struct.pack("<II", 1 << 31, 2)),
    "unknown-flag": changed(MESSAGES["publish"], 16 + 8, struct.pack("<I", 2)),
    "wait-too-long": changed(MESSAGES["wait"], 16 + 200, struct.pack("<q", 1 << 31)),
    "no-cookie": changed(MESSAGES["create"], 16 + 192, bytes(8)),
    "unknown-policy": changed(MESSAGES["create"], 16 + 220, struct.pack("<I", 3)),
    "too-many-parts": changed(MESSAGES["job-join"], 16 + 180, struct.pack("<I", 17)),
    "a-part-too-many": changed(MESSAGES["job-join"], 16 + 184 + 2 * 24, b"A"),
    "error-0": changed(MESSAGES["error"], 16, struct.pack("<i", 0)),
    "fixed-header": b"\2" + bytes(4) + MESSAGES["wait"][5:],
}

# --- layout: ipc/layout.h ---

FIX = 7  # sizes, index and hash are made right by the target, which has XXH3
BUILD = 8
NONE = 0xFFFFFFFF
U8, F32, BF16 = 5, 18, 15
SIZES = {U8: 1, F32: 4, BF16: 2}


def image(tensors, how=FIX, alignment=256, header=None):
    """tensors: (name, dtype, shape, unit, tied_to or None). `header` changes fields of the header."""
    rows, dims, units, strings = b"", [], {}, b""
    places, end = [], 0
    for name, dtype, shape, unit, tied_to in tensors:
        n_bytes = SIZES[dtype]
        for n in shape:
            n_bytes *= n
        place = (end + alignment - 1) // alignment * alignment, n_bytes
        if tied_to is not None:
            place = places[tied_to]
        else:
            end = sum(place)
        places.append(place)
        if unit and unit not in units:
            units[unit] = struct.pack("<QII", len(strings), len(unit), 0)
            strings += unit + b"\0"
        rows += struct.pack("<QQQIIIIBBB5x", *place, len(strings), len(name), len(dims),
                            list(units).index(unit) if unit else NONE, NONE if tied_to is None else tied_to,
                            dtype, 1, len(shape))
        dims += shape
        strings += name + b"\0"
    n_buckets = 2
    while n_buckets // 2 < len(tensors):
        n_buckets *= 2
    body = rows + struct.pack(f"<{len(dims)}Q", *dims) + b"".join(units.values()) + b"\xff" * 4 * n_buckets + strings
    fields = {"magic": 0x54554F59414C4457, "abi": 1, "total": 80 + len(body),
              "data": (end + alignment - 1) // alignment * alignment, "strings": len(strings),
              "alignment": alignment, "tensors": len(tensors), "dims": len(dims), "units": len(units),
              "buckets": n_buckets, **(header or {})}
    return struct.pack("<BQII16xQQQIIIIII", how, fields["magic"], fields["abi"], 0, fields["total"], fields["data"],
                       fields["strings"], fields["alignment"], fields["tensors"], fields["dims"],
                       fields["units"], fields["buckets"], 0) + body


def call(name, dtype, shape, unit=b"", how=2):
    """A call of the builder: bit 0 of `how` ties to the index `dtype`, then the role, bit 3 wide dims."""
    width = ">%dQ" if how & 8 else ">%dB"
    return (bytes([len(name)]) + name + bytes([len(unit)]) + unit + bytes([how, len(shape), dtype]) +
            struct.pack(width % len(shape), *shape))


ONE = [(b"weight", F32, [3, 5], b"", None)]
SEVERAL = [(b"a.weight", F32, [3, 100], b"a", None), (b"a.bias", F32, [3], b"a", None),
           (b"b.weight", BF16, [64, 32], b"b", None), (b"empty", U8, [0, 7], b"", None),
           (b"scalar", F32, [], b"", None), (b"head", F32, [3, 100], b"head", 0)]

LAYOUTS = {
    "one": image(ONE),
    "several": image(SEVERAL),
    "several-as-they-are": image(SEVERAL, how=0),
    "several-without-index": image(SEVERAL, how=5),
    "several-without-hash": image(SEVERAL, how=3),
    "many": image([(b"t%d" % i, U8, [i], b"u%d" % (i // 4), None) for i in range(20)], alignment=64),
    "utf-8": image([("ä€😀".encode(), U8, [1], "ü".encode(), None)]),
    "overlong": image([(b"\xc0\x80", U8, [1], b"", None)]),
    "utf-8-cut": image([(b"\xe2\x82x", U8, [1], b"", None)]),
    "surrogate": image([(b"\xed\xa0\x80", U8, [1], b"", None)]),
    "nul-in-name": image([(b"a\0b", U8, [1], b"", None)]),
    "twice": image([(b"a", U8, [1], b"", None), (b"a", U8, [1], b"", None)]),
    "tied-to-itself": image([(b"a", U8, [1], b"", None), (b"b", U8, [1], b"", 0)]).replace(
        struct.pack("<II", NONE, 0), struct.pack("<II", NONE, 1)),
    "rank-32": image([(b"a", U8, [1] * 32, b"", None)]),
    "rank-33": image([(b"a", U8, [1] * 33, b"", None)]),
    "dims-overflow": image([(b"a", U8, [1 << 63, 4, 0], b"", None)]),
    "no-tensors": image([]),
    "data-size-huge": image(ONE, header={"data": 1 << 63}),
    "tensors-huge": image(ONE, header={"tensors": 0xFFFFFFFF}),
    "buckets-odd": image(ONE, header={"buckets": 3}),
    "half-a-header": image(ONE)[:50],
    "cut": image(SEVERAL)[:-5],
    "build": bytes([BUILD, 8]) + call(b"a.weight", F32, [3, 100], b"a") + call(b"a.bias", F32, [3], b"a") +
             call(b"head", 0, [], b"head", how=3) + call(b"step", U8, [], how=4),
    "build-refused": bytes([BUILD, 6]) + call(b"", F32, [3]) + call(b"\xff", F32, [3]) + call(b"a", 0, [3]) +
                     call(b"b", U8, [1 << 63, 4], how=10) + call(b"c", 9, [], how=3) + call(b"d", U8, [1] * 33),
    "build-twice": bytes([BUILD, 8]) + b"".join(call(b"t%d" % (i % 9), U8, [i]) for i in range(12)),
}


# --- allocator: server/cuda/protocol.h ---


def request(op, protocol=2, size=4096):
    return b"\0" + struct.pack("<IIQQQII16s", protocol, op, 7, size, 0, 0, 10, HASH)


def reply(op, error=0, n_fds=0, why="", name="GPU"):
    device = text("cuda:GPU-", 64) + text(name, 128) + text("", 256) + bytes(48)
    return bytes([n_fds]) + struct.pack("<IIQiIQQQ", 2, op, 7, error, 0, 1, 2, 3) + text(name, 128) + bytes(64) + text(why, 256) + device


ALLOCATOR = {
    "device": request(1), "allocate": request(2), "hold": request(3), "free": request(4), "op-0": request(0), "op-5": request(5),
    "other-release": request(1, protocol=1),
    "device-reply": reply(1), "allocate-reply": reply(2, n_fds=1), "hold-reply": reply(3, n_fds=1),
    "free-reply": reply(4),
    "refusal": reply(2, error=-12, why="no"), "memory-without-fd": reply(2), "no-end": reply(1, name="x" * 128),
}

# --- sync_preamble: server/sync/base/preamble.h ---


def preamble(magic=b"weightd\1", from_=b"a", to=b"b"):
    return magic + bytes(range(8)) + struct.pack(">Q", 1) + HASH * 2 + struct.pack(">Q", 1 << 30) + \
        from_.ljust(64, b"\0") + to.ljust(64, b"\0")


PREAMBLES = {
    "whole": preamble(), "longest-names": preamble(from_=b"a" * 63, to=b"rack-1.b" * 7), "cut": preamble()[:100],
    "other-release": preamble(magic=b"weightd\2"), "no-end": preamble(to=b"b" * 64), "no-name": preamble(from_=b""),
    "behind-the-end": preamble(to=b"b\0c"), "dot-first": preamble(from_=b".a"), "upper-case": preamble(to=b"B"),
    "stripe": preamble(magic=b"stripe\1\2"), "stripe-8": preamble(magic=b"stripe\7\x08"),
    "no-stripe": preamble(magic=b"stripe\2\2"),
}

# --- sync_stripes: server/sync/base/stripes.h ---


def stripes(*pieces):
    """Stripes of a stream of 168 bytes, in pieces of 41."""
    return bytes([10, 10]) + b"".join(struct.pack(">QQ", *piece) for piece in pieces)


STRIPES = {
    "all": stripes((0, 41), (82, 41), (41, 41), (123, 41), (164, 4), (168, 0)), "twice": stripes((41, 41), (41, 41)),
    "outside": stripes((205, 41), (1 << 63, 41)), "another-cut": stripes((40, 41), (0, 40)), "cut": stripes((0, 41))[:-3],
}

# --- moves and splits: ipc/reshard ---


def moves(nodes, links, rows, magic=b"moves\0\0\1"):
    words = [len(nodes), len(links), len(rows), *sum((*nodes, *links, *rows), ())]
    return magic + struct.pack(f">{len(words)}Q", *words)


ROW = (4, 8, 4, 1, 0, 0, 3, 8, 4)  # 3 runs of 4 bytes
MOVES = {
    "one": moves([(24, 0), (0, 20)], [(0, 1, 1, 12)], [ROW]),
    "within-a-node": moves([(24, 20)], [(0, 0, 1, 12)], [ROW]),
    "several": moves([(24, 20), (24, 100)], [(0, 0, 1, 12), (0, 1, 2, 16), (1, 1, 1, 4)],
                     [ROW, ROW, (0, 60, 2, 2, 6, 9, 1, 0, 0), (0, 90, 4, 1, 0, 0, 1, 0, 0)]),
    "outside": moves([(23, 0), (0, 19)], [(0, 1, 1, 12)], [ROW]),
    "other-release": moves([(24, 0)], [], [], magic=b"moves\0\0\2"),
    "cut": moves([(24, 0), (0, 20)], [(0, 1, 1, 12)], [ROW])[:-3],
}


def split(text, n_sources, n_targets, *tensors):
    """tensors: (kind, 1 if all ranks have the same shape, sizes of 4 dimensions, of each rank or of all)."""
    rest = bytes([n_sources - 1, n_targets - 1, len(tensors) - 1])
    for kind, alike, *sizes in tensors:
        rest += bytes([kind, alike, *sizes])
    return text + b"\0" + rest


KIND_F32_2D = 2 * 4 + 3
SPLITS = {
    "dim-0": split(b'{"split":[{"tensors":"*","dim":0}]}', 2, 3, (KIND_F32_2D, 1, 4, 3, 0, 0)),
    "uneven": split(b'{"split":[{"tensors":"*","dim":0}]}', 2, 3, (KIND_F32_2D, 0, 4, 3, 0, 0, 3, 3, 0, 0)),
    "across": split(b'{"split":[{"tensors":"a.*","from":0,"to":1},{"tensors":"*","replicated":true}]}', 2, 2,
                    (KIND_F32_2D, 1, 4, 6, 0, 0), (4 + 3, 1, 5, 0, 0, 0)),
    "gather": split(b'{"split":[{"tensors":"?","from":1,"to":"replicated"},{"tensors":"*","dim":1}]}', 4, 1,
                    (KIND_F32_2D, 1, 4, 6, 0, 0), (KIND_F32_2D, 1, 5, 2, 0, 0), (3, 1, 0, 0, 0, 0)),
    "no-rule": b'{"split":[]}\0',
    "no-json": b"{",
}

def planner(text, target, n_targets, source, *layouts):
    """The nodes that they begin with, and what each source has: the dtype and the shape of each tensor."""
    rest = bytes([len(layouts) - 1, n_targets - 1, target, source, len(layouts[0]) - 1])
    for layout in layouts:
        for dtype, *shape in layout:
            rest += bytes([next(kind for kind in range(240) if kind % 5 == len(shape) and 1 + kind // 5 % 24 == dtype), *shape])
    return text + b"\0" + rest


BY_ROWS = b'{"split":[{"tensors":"*","dim":0}]}'
PLANNERS = {
    "two-to-three": planner(BY_ROWS, 1, 3, 0, [(F32, 4, 3), (BF16, 4)], [(F32, 2, 3), (BF16, 4)]),
    "gather": planner(b'{"split":[{"tensors":"b","replicated":true},{"tensors":"*","from":1,"to":"replicated"}]}', 7, 1, 8,
                      [(F32, 4, 3), (U8, 3)], [(F32, 4, 3), (U8, 3)]),
    "scatter": planner(BY_ROWS, 0, 4, 3, [(F32, 16, 2)]), "other-tensors": planner(BY_ROWS, 2, 1, 0, [(F32, 4)], [(BF16, 4)]),
    "no-bytes": planner(BY_ROWS, 1, 2, 0, [(F32, 1, 4)]), "no-split": planner(b"[]", 1, 1, 0, [(F32, 4)]),
}

# --- gguf: libclient/image/gguf.h ---

KEYS = {"general.alignment": ("u32", 64), "tokens": ("text array", ["a", "", "bc"]), "scores": ("f32 array", [0.5, 1]),
        "n": ("u16", 7), "name": ("text", "m"), "flag": ("bool", True), "large": ("u64", 1 << 40)}
SMALL = {"a": ("Q4_K", [2, 256], b"x" * 288), "b": ("F32", [3], b"y" * 12), "c": ("MXFP4", [2, 32], b"z" * 34), "s": ("F16", [], b"zz")}
GGUFS = {
    "four": gguf.pack(SMALL), "no-padding": gguf.pack(SMALL, pads_end=False), "keys": gguf.pack(SMALL, KEYS),
    "version-2": gguf.pack(SMALL, version=2), "version-1": gguf.pack(SMALL, version=1), "none": gguf.pack({}), "cut": gguf.pack(SMALL)[:200],
    "byte-aligned": gguf.pack(SMALL, {"general.alignment": ("u32", 1)}), "twice": gguf.pack({"a": SMALL["b"], "aa": SMALL["b"]}).replace(
        struct.pack("<Q", 2) + b"aa", struct.pack("<Q", 2) + b"a\1"), "part": gguf.pack(SMALL, {"split.count": ("u16", 2)}),
    "empty": gguf.pack({"e": ("F32", [0, 4], b"")}), "tail": gguf.pack(SMALL) + b"x", "moved": gguf.pack(SMALL).replace(
        struct.pack("<IQ", 0, 288), struct.pack("<IQ", 0, 320)), "many": gguf.pack({str(i): SMALL["b"] for i in range(120)}),
    "huge-count": b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 1 << 62), "huge-array": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" +
        struct.pack("<IIQ", 9, 10, 1 << 61),
}

# --- sync_patch: server/sync/base/patch.h ---

NOT_CHANGED, SPARSE2, SPARSE4, DENSE = range(4)


def patch(n_bytes, *blocks, magic=b"wdpatch\1", n_blocks=None):
    """A patch of blocks (index, count, mode, payload)."""
    head = magic + struct.pack("<QQQ", n_bytes, len(blocks) if n_blocks is None else n_blocks, n_bytes) + HASH * 2 + bytes(32)
    return head + b"".join(struct.pack("<QII", *block[:3]) for block in blocks) + b"".join(block[3] for block in blocks)


def sparse(width, *places):
    return len(places), SPARSE2 if width == 2 else SPARSE4, struct.pack(f"<{len(places)}H", *places) + b"v" * width * len(places)


PATCHES = {
    "empty": patch(1 << 20), "two-bytes": patch(1 << 20, (3, *sparse(2, 0, 7, 65535))),
    "four-bytes": patch(1 << 20, (0, *sparse(4, 1, 32767))), "behind-the-block": patch(1 << 20, (0, *sparse(4, 32768))),
    "both": patch(1 << 18, (0, *sparse(4, 1)), (1, *sparse(2, 2))), "dense": patch(10, (0, 0, DENSE, b"0123456789")),
    "last-is-short": patch((1 << 17) + 8, (0, *sparse(2, 1)), (1, *sparse(2, 3))), "cut-element": patch(10, (0, *sparse(2, 1))),
    "not-changed": patch(1 << 20, (0, 0, NOT_CHANGED, b"")), "twice": patch(1 << 20, (1, *sparse(2, 1)), (1, *sparse(2, 1))),
    "other-release": patch(16, magic=b"wdpatch\2"), "too-many": patch(1 << 50, n_blocks=1 << 33), "cut": patch(1 << 20)[:100],
    "tail": patch(1 << 20) + b"x",
}

# --- sync_config: server/sync/config.h ---

NODE = "[node]\nname = a\nlisten = 127.0.0.1:7400\n[tls]\nca = /ca\ncertificate = /crt\nkey = /key\n"
GROUP = "[group main]\nmembers = a b\npublishers = a\n"
CONFIGS = {
    "node": NODE, "group": NODE + "[peer b]\naddress = b.example:7400\n" + GROUP,
    "clear": NODE + "[peer b]\naddress = [fd00::2]:7400\n" + GROUP + "[data]\nsecurity = none\nengine = gloo\npatches = no\n"
             "trusted = fd00::/8\ntrusted = 127.0.0.0/8\n",
    "rest": NODE + "[peer b]\naddress = 10.0.0.2:7400\n" + GROUP + "buffers = llama-*\npolicy = quorum\ndevice = cuda:0\nmode = 0640\n"
            "group = 7\n[limits]\nmax-bytes = 1.5T\nprepare-timeout = 0.25\nstall-timeout = 5\nheartbeat = 60\n[access]\noperators = 0\n",
    "addresses": NODE.replace("[tls]", "data-address = 10.0.0.1, 10.1.0.1\n[tls]"),
    "twice": NODE + "[peer b]\n[peer b]\n[group b]\n[group b]\n", "nobody": NODE + GROUP, "no-name": NODE + "[peer ]\n[group A]\n",
}

# --- sync_document, sync_collective_op and sync_engine_order: server/sync/state/document.h, collective_op.h, base/engine_order.h ---


def compact(o):
    return json.dumps(o, separators=(",", ":"))


SAID = {"protocol": 1, "group": "main", "buffer": "llama", "publisher": "n0000", "term": 1, "number": 1, "time_ns": 1700000002041135171,
        "n_bytes": 4194304, "root": "01" * 32, "layout": "00" * 32, "layout_bytes": 1000, "leaves": "02" * 32, "exclusive": False}


def document(decision=None, **said):
    return compact({"document": compact(SAID | said), "signature": "c2ln", "certificate": "-----BEGIN\n", "decision": decision}).encode()


DOCUMENTS = {
    "signed": document(), "decided": document("c2ln"), "largest": document(n_bytes=1 << 50, term=1 << 53, number=1 << 53),
    "empty": document(n_bytes=0), "negative": document(n_bytes=-1), "too-large": document(n_bytes=(1 << 50) + 1),
    "companions": document(companions="03" * 32, companions_bytes=9000, header_bytes=4096), "no-companions": document(companions_bytes=0, header_bytes=0),
    "long-header": document(companions="03" * 32, companions_bytes=9, header_bytes=10), "no-blob": document(companions_bytes=9, header_bytes=0),
    "other-release": document(protocol=2), "long-name": document(buffer="b" * 128), "no-hash": document(root="01"),
}

OWNED = {
    "two": b"\2" + compact({"shares": [[3, 12], [0, 0]], "n_others": 1}).encode(),
    "largest": b"\1" + compact({"shares": [[1 << 50, 1 << 50]], "n_others": 1 << 32}).encode(),
    "too-few": b"\3" + compact({"shares": [[3, 12]], "n_others": 0}).encode(),
    "more-pieces-than-bytes": b"\1" + compact({"shares": [[3, 2]], "n_others": 0}).encode(),
    "too-many": bytes([65]) + compact({"shares": [[1, 1]] * 65, "n_others": 0}).encode(),
}

OPEN = {"op": "open", "node": "b", "from": "a", "sync": "00" * 8, "epoch": 1, "token": "00" * 32, "address": "127.0.0.1", "n_bytes": 1 << 20,
        "ranges": [[0, 65536], [131072, 8]], "chunk": 1 << 20, "stall_ms": 5000, "security": "none"}
NEXT = {"node": "c", "address": "fd00::1", "port": 7401, "token": "00" * 32}


def order(n_fds, **fields):
    return bytes([n_fds]) + compact({key: value for key, value in fields.items() if value is not ...}).encode()


ORDERS = {
    "broadcast": order(1, **OPEN), "source": order(1, **OPEN | {"from": None, "token": ..., "address": ...}),
    "tls": order(4, **OPEN | {"security": "tls"}), "stripes": order(1, **OPEN | {"addresses": ["127.0.0.1", "127.0.0.2"]}),
    "average": order(3, **OPEN | {"operation": "average", "from": None}),
    "exchange": order(3, **OPEN | {"operation": "exchange", "from": None, "result_bytes": 1 << 20}),
    "exchange-of-nothing": order(1, **OPEN | {"operation": "exchange", "from": None, "n_bytes": 0, "result_bytes": 0}),
    "gpu": order(1, **OPEN | {"memory": "cuda", "gpu": "GPU-0", "map_size": 1 << 21}), "no-memory": order(0, **OPEN),
    "behind-a-header": order(1, **OPEN | {"n_bytes": 4096, "ranges": [], "data_offset": 8192}),
    "no-offset": order(1, **OPEN | {"data_offset": -1}), "far-offset": order(1, **OPEN | {"data_offset": 1 << 62}),
    "small-memory": order(1, **OPEN | {"n_bytes": 1 << 30}), "outside": order(1, **OPEN | {"ranges": [[1 << 20, 1]]}),
    "to-itself": order(1, **OPEN | {"from": "b"}),
    "last": order(0, next=None), "next": order(0, next=NEXT, max_rate=65536), "too-slow": order(0, next=NEXT, max_rate=1),
    "ways": order(0, next=NEXT | {"stripes": [{"address": "10.0.0.1", "port": 1, "from": 0}, {"address": "10.1.0.1", "port": 2, "from": 7}]}),
    "place": order(0, rank=1, n_ranks=2, hello="00" * 128), "no-place": order(0, rank=2, n_ranks=2, hello="00" * 128),
}

# --- note: bpf/elf/usdt_note.h ---

BASE_NAME = b"\0.stapsdt.base\0"


def note(*texts, at=0x1040, base=0x1000, counter=0x1048, owner=b"stapsdt\0"):
    data = struct.pack("<QQQ", at, base, counter) + b"\0".join(texts)
    return struct.pack("<III", len(owner), len(data), 3) + owner + b"\0" * (-len(owner) % 4) + data + b"\0" * (-len(data) % 4)


def program(*notes, base=0x1000):
    """The head, a segment of all of it at 0x1000, notes, and the heads of three sections."""
    body = BASE_NAME.ljust(16, b"\0") + b"".join(notes)
    n = 64 + 56 + len(body)
    head = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, n, 0, 64, 56, 1, 64, 3, 1)
    segment = struct.pack("<IIQQQQQQ", 1, 7, 0, 0x1000, 0x1000, n, n, 16)
    sections = [struct.pack("<IIQQQQIIQQ", name, kind, 0, at, start, size, 0, 0, 1, 0)
                for name, kind, at, start, size in ((0, 7, 0, 136, len(body) - 16), (0, 3, 0, 120, 16), (1, 1, base, 0, 1))]
    return head + segment + body + b"".join(sections)


NOTES = {
    "one": program(note(b"p", b"a", b"8@%rdi\0")), "two": program(note(b"p", b"a", b"\0"), note(b"p", b"b", b"-4@%eax\0", counter=0)),
    "moved": program(note(b"p", b"a", b"\0", at=0xff0, base=0xfc0, counter=0)), "others": program(note(b"q", b"a", b"\0")),
    "outside": program(note(b"p", b"a", b"\0", at=0x2000)), "no-end": program(note(b"p", b"a")), "cut": program(note(b"p", b"a", b"\0")[:-8]),
    "other-owner": program(note(b"p", b"a", b"\0", owner=b"GNU\0"), note(b"p", b"a", b"\0")), "long": program(note(b"p", b"a" * 64, b"\0")),
}

# --- sync_agent: server/sync/agent.h ---

SYNC = "b7627a7adc45950c"  # id of the first push in the world of two zero bytes
JOIN = {"type": "join", "sync": "0123456789abcdef", "operation": "average", "group": "main", "buffer": "llama", "term": 5, "number": 1,
        "time_ns": 1700000003000000000}
CLAIM = {"buffer": "llama", "group": "main", "term": 1, "number": 7, "root": "07" * 32, "fence_term": 1, "fence_number": 7}


def spoken(*messages, world=b"\0\0", after=0):
    """After so many messages, these in the place of the next one."""
    return world + b"." * after + b"".join(b"j" + compact({"sync": SYNC} | m).encode() + b"\n" for m in messages)


AGENTS = {
    "as-it-is": b"\0\0", "quorum": b"\1\0", "each": b"\2\0", "patches": b"\x0c\0", "average": b"\x10\0", "average-of-two": b"\x12\0",
    "other-layout": b"\x31\0", "no-layout": b"\x30\0" + b"." * 9 + b"x" * 9, "lost": b"\0\0x.x.x", "twice": b"\0\0" + b"2" * 200,
    "without": b"\0\0d\0d\1d\2d\3d\4d\5", "other": b"\0\0" + b"s\0\3s\1\7s\2\x13" * 10, "inner": b"\0\0......" + b"S\0\0\7S\1\0\3" * 9,
    "join": spoken(JOIN, JOIN), "join-later": spoken(*[JOIN] * 6, after=33),
    "share": spoken(JOIN, {"type": "open", "sync": JOIN["sync"], "epoch": 1, "nodes": ["n0000", "n0001"], "token": "00" * 32},
                    {"type": "start", "sync": JOIN["sync"], "epoch": 1, "nodes": []}, {"type": "commit", "sync": JOIN["sync"]}, after=1),
    "want": spoken({"type": "want", "blobs": ["00" * 32, "01" * 32]}, after=2),
    "ready": spoken({"type": "ready", "n_missing": 0, "missing": []}, {"type": "ready", "n_missing": 8, "missing": [[0, 8]]}, after=6),
    "opened": spoken({"type": "opened", "epoch": 1, "address": "::1", "port": 1, "missing": [[0, 1]]}, after=12),
    "start": spoken({"type": "start", "epoch": 1, "next": {"node": "n0009", "address": "x", "port": 0, "token": ""}, "max_rate": 1}, after=15),
    "progress": spoken({"type": "progress", "epoch": 1, "done": 1 << 62, "rate": 1 << 62}, after=18),
    "done": spoken({"type": "done", "epoch": 1, "in": {"bytes": -1, "kernel": 1 << 62}, "out": None}, after=18),
    "verified": spoken({"type": "verified", "root": "02" * 32}, after=24), "too-soon": spoken({"type": "commit", "decision": "00"}, after=9),
    "failed": spoken({"type": "failed", "code": "corrupt", "why": "x" * 600}, after=7), "abort": spoken({"type": "abort", "why": "no"}, after=9),
    "refuse": spoken({"type": "refuse", "code": "fenced", "why": "no", "term": 9, "number": 9}, after=2),
    "claims": spoken(*[{"type": "heads", "heads": [CLAIM]}] * 6, after=30),
    "catch-up": spoken(*[{"type": "catch-up", "buffer": "llama", "group": "main", "term": 1, "number": 1}] * 3, after=60),
    "cannot-repair": spoken(*[{"type": "cannot-repair", "buffer": "llama", "code": "busy", "why": "no"}] * 3, after=60),
    "reshard": b"\x40\0", "reshard-lost": b"\x40\0x.x.x", "reshard-without": b"\x40\0" + b"d\0d\1d\2d\3d\4d\5" * 9,
    "reshard-bounds": b"\x40\0" + b"....." + b"s\4\7s\4\6s\5\x0a" * 12, "forged-plan": b"\x40\0" + b"." * 12 + b"w\0\x0a\7" * 9,
}

# --- nldev: rdma/rdma_netlink.h, as drivers/infiniband/core/nldev.c writes it ---

NLDEV, QP_GET, STAT_GET = 5 << 10, 10, 17


def attribute(kind, data):
    data = data if isinstance(data, bytes) else struct.pack("<I", data)
    return (struct.pack("<HH", 4 + len(data), kind) + data).ljust((4 + len(data) + 3) & ~3, b"\0")


def message(op, *attributes, kind=NLDEV):
    body = b"".join(attributes)
    return struct.pack("<IHHII", 16 + len(body), kind + op, 0, 0, 0) + body


OF_DEVICE = attribute(1, 3) + attribute(2, b"mlx5_1\0")
PAIR = attribute(3, 1) + attribute(21, 281) + attribute(22, 77) + attribute(26, b"\2") + attribute(27, b"\3") + attribute(28, 4711)
VALUE = attribute(82, b"out_of_sequence\0") + attribute(83, struct.pack("<Q", 3))
COUNTER = attribute(3, 1) + attribute(79, 5) + attribute(74, 1) + attribute(28, 4711) + \
    attribute(19, attribute(20, attribute(21, 281)) * 2) + attribute(80, attribute(81, VALUE) * 2)
NLDEVS = {
    "devices": message(1, OF_DEVICE, attribute(3, 2)) * 2, "pairs": message(QP_GET, OF_DEVICE, attribute(19, attribute(20, PAIR) * 2)),
    "counters": message(STAT_GET, OF_DEVICE, attribute(77, attribute(78, COUNTER))), "done": message(3, struct.pack("<i", 0), kind=0),
    "refused": message(2, struct.pack("<i", -22), kind=0), "of-the-kernel": message(QP_GET, attribute(19, attribute(20, attribute(29, b"ib\0")))),
}


# --- train_plan: libclient/train/plan/plan_image.h; the JSON is that of the unit test ---

SHARED, ADAMW, SGD, FUSED, TWO_PHASE = "shared", 1, 3, 1, 2
F16, BF16, F32, I64, PARAM, BUFFER = 14, 15, 18, 21, 1, 2


def tensor(name, *shape, dtype=F32, role=PARAM, group=0, frozen=0, unit=0, level=0):
    return struct.pack(f"<8I{len(shape)}Q", len(name), dtype, role, frozen, group, unit, level, len(shape), *shape) + name.encode()


def plan(*tensors, ranks=2, strategy=SHARED, optimizer=ADAMW, form=FUSED, flags=0, staleness=0, copies=1, nodes=1, sync=0, state=4096,
         bucket=26214400, grads=F32, scaling=(0, 0, 0, 0), groups=((0.01, 0.9, 0.999, 1e-8, 0, 0),), version=4, behind=b"",
         mesh=()):
    mesh = mesh or (("dp", ranks),)
    return b"B" + b"".join([
        b"weightdP", struct.pack("<I", version), text("0.1.0", 16), struct.pack("<I", len(mesh)),
        *[text(name, 16) + struct.pack("<I", size) for name, size in mesh], text(strategy, 16), struct.pack("<8IQ", optimizer, form, flags, staleness, copies, nodes, sync, state, bucket), struct.pack("<I3dI", grads, *scaling),
        struct.pack("<I", len(groups)),
        *[struct.pack("<5dI", *g) for g in groups], struct.pack("<I", len(tensors)), *tensors, behind])


WEIGHT, BIAS, STEPS = tensor("h.0.weight", 24, 16), tensor("h.0.bias", 24, group=1), tensor("steps", dtype=I64, role=BUFFER)
UNITS = [tensor("embed", 40, 16), tensor("0.norm", 16, unit=1, level=1), tensor("0.up", 33, 7, unit=2, level=2), tensor("0.down", 9, 7, unit=3, level=2),
         tensor("1.norm", 16, unit=4, level=1), tensor("1.up", 31, 7, unit=5, level=2), STEPS]
TRAIN_PLANS = {
    "shared": plan(WEIGHT, STEPS), "zero1": plan(WEIGHT, ranks=3, strategy="zero1", copies=3),
    "replicated": plan(WEIGHT, WEIGHT.replace(b"h.0", b"h.1"), ranks=4, strategy="replicated", copies=4, form=TWO_PHASE, flags=1, bucket=64),
    "groups": plan(WEIGHT, BIAS, groups=((0.01, 0.9, 0.999, 1e-8, 0, 0), (0, 0.9, 0.999, 1e-8, 0, 0))),
    "sgd": plan(WEIGHT, optimizer=SGD, groups=((0, 0, 0, 0, 0.9, 1),)), "stale": plan(WEIGHT, staleness=3, flags=2),
    "huge": plan(tensor("w", 1 << 60)), "huge-product": plan(tensor("w", 1 << 40, 1 << 40)), "twice": plan(WEIGHT, WEIGHT),
    "nothing": plan(), "empty": plan(tensor("w", 0)), "version": plan(WEIGHT, version=1), "behind": plan(WEIGHT, behind=b"x"),
    "half": plan(tensor("w", 33, 7, dtype=BF16), tensor("base", 9, dtype=F16, frozen=1), grads=BF16),
    "mixed": plan(tensor("w", 33, 7, dtype=F16), tensor("v", 3, dtype=BF16), grads=F16), "frozen": plan(tensor("w", 3, frozen=1)),
    "scaled": plan(tensor("w", 33, dtype=F16), form=TWO_PHASE, flags=4, scaling=(65536, 2, 0.5, 2000)),
    "nodes": plan(WEIGHT, STEPS, ranks=4, nodes=2, form=TWO_PHASE),
    "nodes-overlap": plan(WEIGHT, WEIGHT.replace(b"h.0", b"h.1"), ranks=6, nodes=3, form=TWO_PHASE, flags=1, bucket=64),
    "nodes-half": plan(tensor("w", 33, 7, dtype=BF16), ranks=2, nodes=2, form=TWO_PHASE, grads=BF16),
    "nodes-replicated": plan(WEIGHT, ranks=4, strategy="replicated", copies=2, nodes=2, form=TWO_PHASE),
    "nodes-zero1": plan(WEIGHT, ranks=4, strategy="zero1", copies=2, nodes=2, form=TWO_PHASE),
    "nodes-average": plan(WEIGHT, ranks=4, nodes=2, sync=8), "nodes-average-half": plan(
        tensor("w", 99, dtype=F16), ranks=2, nodes=2, sync=3, form=TWO_PHASE, grads=F32),
    "nodes-of-one-rank": plan(tensor("w", 3), ranks=64, nodes=64, form=TWO_PHASE), "nodes-ragged": plan(WEIGHT, ranks=5, nodes=2),
    "nodes-many": plan(WEIGHT, ranks=128, nodes=128, form=TWO_PHASE), "average-alone": plan(WEIGHT, sync=2),
    "zero2": plan(WEIGHT, WEIGHT.replace(b"h.0", b"h.1"), strategy="zero2", form=TWO_PHASE, flags=1, bucket=64),
    "zero2-nodes": plan(WEIGHT, STEPS, ranks=4, nodes=2, strategy="zero2", form=TWO_PHASE, flags=1),
    "zero3": plan(*UNITS, ranks=3, strategy="zero3", form=TWO_PHASE, flags=1),
    "zero3-nodes": plan(*UNITS, ranks=6, nodes=3, strategy="zero3", form=TWO_PHASE, flags=1),
    "zero3-keeps": plan(*UNITS, ranks=2, nodes=2, strategy="zero3", form=TWO_PHASE, flags=1 | 8),
    "zero3-one-room": plan(*UNITS, ranks=2, nodes=2, strategy="zero3", form=TWO_PHASE, flags=1 | 16),
    "zero3-half": plan(tensor("w", 33, 7, dtype=BF16), tensor("v", 3, dtype=BF16, unit=1), ranks=2, nodes=2, strategy="zero3", form=TWO_PHASE, flags=1),
    "zero3-gap": plan(WEIGHT, tensor("v", 3, unit=2), ranks=2, nodes=2, strategy="zero3", form=TWO_PHASE, flags=1),
    "zero3-deep": plan(tensor("v", 3, level=8), ranks=2, nodes=2, strategy="zero3", form=TWO_PHASE, flags=1),
    "zero3-empty": plan(WEIGHT, tensor("v", 0, unit=99), ranks=2, nodes=2, strategy="zero3", form=TWO_PHASE, flags=1),
    "replicas": plan(*UNITS, mesh=(("replicate", 2), ("shard", 4)), nodes=4, strategy="zero3", form=TWO_PHASE, flags=1),
    "replicas-of-one-node": plan(WEIGHT, mesh=(("replicate", 3), ("shard", 2)), nodes=3, strategy="zero2", form=TWO_PHASE, flags=1),
    "replicas-split": plan(WEIGHT, mesh=(("replicate", 2), ("shard", 3)), nodes=3, strategy="zero2", form=TWO_PHASE, flags=1),
    "replicas-of-shared": plan(WEIGHT, mesh=(("replicate", 2), ("shard", 2)), nodes=2, form=TWO_PHASE),
    "units-of-shared": plan(tensor("v", 3, unit=1)), "keeps-of-shared": plan(WEIGHT, flags=8),
    "default": plan(WEIGHT, state=0), "cut": plan(WEIGHT)[:-3], "nan": plan(WEIGHT, groups=((float("nan"), 0, 0, 0, 0, 0),)),
    "json": b"J" + (CORPUS.parents[1] / "unit/train_plan.json").read_bytes(), "json-empty": b"J{}", "json-deep": b"J" + b"[" * 99,
}


# --- train_status: libclient/train/plan/control.h; plan, process of the ranks, words ---

CONTROL_MAGIC, CONTROL_ABI = 0x4e49415254444757, 6


def control_head(ranks, magic=CONTROL_MAGIC, abi=CONTROL_ABI):
    return struct.pack("<QQIIII", 7, magic, abi, ranks, 4096, 0).ljust(4096, b"\0")


def control_words(how, content, process=77):
    """Of ranks that all have the same bytes, behind a valid head."""
    return struct.pack("<Bb", 0x80 | how, process) + bytes(4096) + content * (4096 // len(content))


TRAIN_STATUS = {
    "zero": control_words(1, bytes(8)), "ones": control_words(1, b"\xff" * 8), "waits": control_words(1, struct.pack("<Q", 1 << 30 | 0x0112)),
    "waits-for-none": control_words(1, struct.pack("<Q", 0xff12)), "sums": control_words(1, struct.pack("<QQ", 4, 0x0112)),
    "gone": control_words(1, b"\1" * 8, 0), "foreign": control_words(0, b"\3" * 8, -1), "many": control_words(2, b"\2" * 8),
    "head": struct.pack("<Bb", 1, 1) + control_head(3) + bytes(4096), "short": struct.pack("<Bb", 1, 1) + control_head(3),
    "empty": struct.pack("<Bb", 1, 1) + bytes(8192), "other-ranks": struct.pack("<Bb", 1, 1) + control_head(4) + bytes(4096),
    "other-form": struct.pack("<Bb", 0, 1) + control_head(1, abi=1) + bytes(4096),
}


SLICINGS = {
    "words": b"# rules\n\na 0\n*.weight\t1  heads kv_heads kv_heads\n* whole\nheads = 32\nkv_heads = 8\nuse = llama\n",
    "ragged": b"* 0 ragged", "fused": b"*c_attn* 0 even even even", "ready": b"use = gpt2\nheads = 12",
    "unknown-heads": b"* 0 heads", "zero": b"a 0\0", "wrong-word": b"a 0 rows", "wrong-setting": b"heads = many",
}


def main():
    for target, seeds in {"codec": MESSAGES | WRONG_MESSAGES, "gguf": GGUFS, "layout": LAYOUTS, "allocator": ALLOCATOR, "note": NOTES,
                          "sync_preamble": PREAMBLES, "sync_stripes": STRIPES, "sync_moves": MOVES, "sync_split": SPLITS, "sync_planner": PLANNERS,
                          "sync_patch": PATCHES, "sync_config": {name: text.encode() for name, text in CONFIGS.items()},
                          "sync_document": DOCUMENTS, "sync_collective_op": OWNED, "sync_engine_order": ORDERS, "sync_agent": AGENTS, "nldev": NLDEVS,
                          "train_plan": TRAIN_PLANS, "train_status": TRAIN_STATUS, "slicing": SLICINGS}.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (CORPUS / target / name).write_bytes(data)


if __name__ == "__main__":
    main()

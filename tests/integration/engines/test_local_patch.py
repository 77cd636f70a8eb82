"""weightd-sync-local and patches: a source draws and composes them, a sink makes a version of one, or finds out that it is none."""
import os
import struct

import pytest
from integration.engines.local_task import Tree
from integration.engines.test_local import DATA, N_BYTES, OTHER, Plan, content, publish, task
from integration.engines.test_local_base import create_on
from lib.wire import memfd

__all__ = ["task"]
BLOCK = 128 << 10
SPARSE2, SPARSE4, DENSE = 1, 2, 3
WIDTH = {SPARSE2: 2, SPARSE4: 4}


def elements(data, share=50, salt=0):
    """The same with one of so many elements of two bytes changed."""
    found = bytearray(data)
    for i in range(2 * salt, len(data) - 1, 2 * share):
        found[i] ^= 1 + salt
    return bytes(found)


def encode(old, new):
    """A patch that has all blocks that differ whole."""
    blocks = [i for i in range(0, len(new), BLOCK) if old[i:i + BLOCK] != new[i:i + BLOCK]]
    return b"".join([b"wdpatch\1", struct.pack("<QQQ", len(new), len(blocks), len(new)), bytes.fromhex(Tree(old).root),
                     bytes.fromhex(Tree(new).root), bytes(32), *(struct.pack("<QII", i // BLOCK, 0, DENSE) for i in blocks),
                     *(new[i:i + BLOCK] for i in blocks)])


def apply(patch, old):
    """The result of the patch, by server/sync/base/patch.h."""
    found, (n_bytes, n_blocks, _) = bytearray(old), struct.unpack_from("<QQQ", patch, 8)
    assert patch[:8] == b"wdpatch\1" and n_bytes == len(old) and not any(patch[96:128])
    at = 128 + 16 * n_blocks
    for block in range(n_blocks):
        index, count, mode = struct.unpack_from("<QII", patch, 128 + 16 * block)
        begin, end = index * BLOCK, min((index + 1) * BLOCK, n_bytes)
        if mode == DENSE:
            found[begin:end] = patch[at:at + end - begin]
            at += end - begin
            continue
        width, values = WIDTH[mode], at + 2 * count
        for i, place in enumerate(struct.unpack_from(f"<{count}H", patch, at)):
            assert begin + (place + 1) * width <= end
            found[begin + place * width:begin + (place + 1) * width] = patch[values + i * width:values + (i + 1) * width]
        at = values + width * count
    assert at == len(patch)
    return bytes(found)


def attach_beside(source, daemon, old, **fields):
    """Lends the newest version beside an older one's bytes. Returns its message about the root."""
    fds = [memfd(old), memfd(Tree(old).leaves)]
    try:
        source.tell("attach", fds, **{"socket": daemon.socket, "buffer": "m", "device": "host",
                                      "base": {"n_bytes": len(old), "root": Tree(old).root} | fields})
        source.hear("attached")
        return source.hear("root")
    finally:
        for fd in fds:
            os.close(fd)


def patch_of(said):
    """Its bytes, sealed as all that travels."""
    fd, size = said.fds[-1], (said.get("patch") or said)["size"]
    assert os.fstat(fd).st_size == size
    with pytest.raises(OSError):
        os.pwrite(fd, b"x", 0)
    return os.pread(fd, size + 1, 0)


# --- The source ------------------------------------------------------------------------------------

@pytest.mark.threads
@pytest.mark.parametrize("share", [50, 7, 2000])
def test_a_source_draws_what_changed(daemon, task, share):
    new = elements(DATA, share)
    publish(daemon, new)
    said = attach_beside(task("source"), daemon, DATA)
    patch = patch_of(said)
    assert said["root"] == Tree(new).root and (patch[32:64].hex(), patch[64:96].hex()) == (Tree(DATA).root, Tree(new).root)
    assert apply(patch, DATA) == new and len(patch) < 2.1 * N_BYTES / share + BLOCK // 8, len(patch)
    assert said["patch"]["changed"] == 2 * sum(DATA[i] != new[i] for i in range(0, N_BYTES, 2))


@pytest.mark.parametrize("old", [OTHER, DATA[:-128], DATA], ids=["all-changed", "smaller", "nothing-changed"])
def test_a_source_draws_nothing_where_that_is_not_less(daemon, task, old):
    publish(daemon)
    said = attach_beside(task("source"), daemon, old)
    assert "patch" not in said and len(said.fds) == 1, said


@pytest.mark.parametrize("fields", [{"root": "xyz"}, {"n_bytes": -1}, {"n_bytes": N_BYTES + 1}, {"n_bytes": 5}])
def test_a_base_of_another_form_is_refused(daemon, task, fields):
    publish(daemon)
    source, fds = task("source"), [memfd(DATA), memfd(Tree(DATA).leaves)]
    source.tell("attach", fds, **{"socket": daemon.socket, "buffer": "m", "device": "host",
                                  "base": {"n_bytes": N_BYTES, "root": Tree(DATA).root} | fields})
    code, why = source.failure()
    assert code == "malformed" and "base" in why, (code, why)
    for fd in fds:
        os.close(fd)


def test_a_source_composes_patches_in_a_row(daemon, task):
    versions = [DATA]
    for salt in range(1, 9):
        versions.append(elements(versions[-1], 40 + salt, salt))
    versions[4] = versions[4][:BLOCK] + OTHER[BLOCK:2 * BLOCK] + versions[4][2 * BLOCK:]  # a whole block, once
    publish(daemon, versions[-1])
    source = task("source")
    source.attach(daemon)
    fds = [memfd(encode(old, new)) for old, new in zip(versions, versions[1:])]
    for first in 0, 3, 6:
        source.tell("compose", fds[first:])
        patch = patch_of(source.hear("composed"))
        for old in versions[first:]:
            assert apply(patch, old) == versions[-1]
    source.tell("compose", [fds[0], fds[2]])  # the second does not follow the first
    assert source.hear("composed").get("why")
    source.tell("compose", [memfd(b"wdpatch\1" + bytes(200))])
    said = source.hear("composed")
    assert said["why"] and not said.fds, said
    source.tell("compose", fds[7:])  # lives on
    assert patch_of(source.hear("composed"))
    for fd in fds:
        os.close(fd)


# --- The sink --------------------------------------------------------------------------------------

def give(sink, patch):
    """Sends a patch as an agent does: memory that an engine wrote. Returns the sink's answer."""
    fd = memfd(patch, seals=0)
    try:
        sink.tell("patch", [fd])
        return sink.hear("patched")
    finally:
        os.close(fd)


@pytest.mark.threads
@pytest.mark.parametrize("whole", [False, True], ids=["elements", "blocks"])
def test_a_sink_makes_the_version_of_a_patch(daemon, task, whole):
    publish(daemon)
    new = elements(DATA)
    if whole:
        patch = encode(DATA, new)
    else:
        publish(daemon, new, name="n")
        source = task("source")
        fds = [memfd(DATA), memfd(Tree(DATA).leaves)]
        source.tell("attach", fds, socket=daemon.socket, buffer="n", device="host",
                    base={"n_bytes": N_BYTES, "root": Tree(DATA).root})
        source.hear("attached")
        patch = patch_of(source.hear("root"))
        for fd in fds:
            os.close(fd)
    p, sink = Plan(new), task("sink")
    said = create_on(sink, daemon, p, DATA)
    assert said["has_base"] and said["missing"] == [[0, N_BYTES]], said
    assert "why" not in give(sink, patch)
    assert sink.verify()["op"] == "verified"
    assert sink.publish() == 2
    assert (content(daemon), content(daemon, version=1)) == (new, DATA)
    p.close()


NEW = elements(DATA)
GOOD = encode(DATA, NEW)
WRONG = {
    "nothing": b"", "rubbish": os.urandom(1000), "cut": GOOD[:-1], "of-another-version": encode(DATA, OTHER),
    "of-another-size": encode(DATA[:BLOCK], NEW[:BLOCK]),
}


@pytest.mark.parametrize("patch", WRONG.values(), ids=WRONG)
def test_what_is_no_patch_costs_time_alone(daemon, task, patch):
    publish(daemon)
    p, sink = Plan(NEW), task("sink")
    fd = create_on(sink, daemon, p, DATA).fds[0]
    assert give(sink, patch)["why"]
    said = sink.verify()
    assert (said["op"], said["ranges"]) == ("corrupt", [[0, N_BYTES]]), said
    os.pwrite(fd, NEW, 0)
    assert sink.verify()["op"] == "verified"
    os.close(sink.fds.pop())
    p.close()


def test_a_patch_with_a_wrong_byte_is_found_out(daemon, task):
    publish(daemon)
    p, sink = Plan(NEW), task("sink")
    create_on(sink, daemon, p, DATA)
    assert "why" not in give(sink, GOOD[:-1] + bytes([GOOD[-1] ^ 1]))
    said = sink.verify()
    assert (said["op"], len(said["ranges"])) == ("corrupt", 1) and said["ranges"][0][1] < N_BYTES, said
    p.close()


def test_a_patch_without_its_base_is_of_no_use(daemon, task):
    p, sink = Plan(NEW), task("sink")
    sink.send_create(daemon, p)
    assert not sink.hear("created")["has_base"]
    assert give(sink, GOOD)["why"] == "there is nothing to apply it to"
    assert sink.verify()["op"] == "corrupt"
    assert give(sink, GOOD)["why"] == "there is nothing to apply it to"
    p.close()

"""weightd-sync-local as a sink with a version that resembles an older one: the leaves that it copies from there, and checks."""
import os

import pytest
from integration.engines.local_task import LEAF, Tree
from integration.engines.test_local import DATA, LAST, N_BYTES, OTHER, Plan, content, plan, publish, refused, scene, task
from lib.wire import image, memfd

__all__ = ["plan", "scene", "task"]


def changed(data, *leaves):
    """The same with these leaves of other bytes."""
    found = bytearray(data)
    for leaf in leaves:
        at = slice(leaf * LEAF, (leaf + 1) * LEAF)
        found[at] = bytes(b ^ 1 for b in found[at][:64]) + found[at][64:]
    return bytes(found)


def create_on(sink, daemon, p, base, version=1, **fields):
    """Creates the version of `p` on one that, by its table, is `base`. Returns the sink's answer."""
    fds = [*p.fds, memfd(Tree(base).leaves)]
    try:
        sink.send_create(daemon, p, fds, base={"version": version, "n_bytes": len(base)} | fields)
        return sink.hear()
    finally:
        os.close(fds[-1])


def fetch(said, data):
    """Writes what is missing, as an engine does."""
    for offset, size in said["missing"]:
        os.pwrite(said.fds[0], data[offset:offset + size], offset)


@pytest.mark.threads
@pytest.mark.parametrize("leaves, missing", [
    ([], []),
    ([0], [[0, LEAF]]),
    ([3], [[3 * LEAF, LAST]]),
    ([1, 2], [[LEAF, 2 * LEAF]]),
    ([0, 2], [[0, LEAF], [2 * LEAF, LEAF]]),
    ([0, 1, 2, 3], [[0, N_BYTES]]),
])
def test_only_leaves_that_changed_are_missing(daemon, task, leaves, missing):
    publish(daemon)
    data = changed(DATA, *leaves)
    p, sink = Plan(data), task("sink")
    said = create_on(sink, daemon, p, DATA)
    assert (said["op"], said["missing"]) == ("created", missing) and "why" not in said, said
    fetch(said, data)
    assert sink.verify()["op"] == "verified"
    assert sink.publish() == 2
    assert (content(daemon), content(daemon, version=1)) == (data, DATA)
    p.close()


@pytest.mark.parametrize("n_before", [128, LEAF, 2 * LEAF, N_BYTES - 128, N_BYTES + 128, N_BYTES + 2 * LEAF])
def test_a_version_may_be_larger_or_smaller_than_its_base(daemon, task, n_before):
    before = (DATA + OTHER)[:n_before]
    publish(daemon, before, image([("a", n_before)]))
    p, sink = Plan(), task("sink")
    said = create_on(sink, daemon, p, before)
    n_same = n_before // LEAF * LEAF if n_before < N_BYTES else 3 * LEAF
    assert said["missing"] == [[n_same, N_BYTES - n_same]], said
    fetch(said, DATA)
    assert sink.verify()["op"] == "verified"
    sink.publish()
    assert content(daemon) == DATA
    p.close()


@pytest.mark.parametrize("version, n_bytes, sentence", [(7, N_BYTES, "7"), (1, N_BYTES - 1, "another one")])
def test_a_base_that_is_gone_or_is_another_one_takes_all(daemon, task, plan, version, n_bytes, sentence):
    publish(daemon)
    sink = task("sink")
    said = create_on(sink, daemon, plan, DATA, version, n_bytes=n_bytes)
    assert said["missing"] == [[0, N_BYTES]] and sentence in said["why"], said
    fetch(said, DATA)
    assert sink.verify()["op"] == "verified"
    assert sink.publish() == 2


@pytest.mark.threads
@pytest.mark.parametrize("before", [OTHER, changed(DATA, 2), changed(DATA, 1, 3)],
                         ids=["all", "one", "the last"])
def test_a_base_that_has_other_bytes_than_its_table_says_is_found_out(daemon, task, before):
    publish(daemon, before)
    data = changed(DATA, 1)
    p, sink = Plan(data), task("sink")
    said = create_on(sink, daemon, p, DATA)
    assert said["missing"] == [[LEAF, LEAF]], said
    memory = said.fds[0]
    fetch(said, data)
    wrong = sink.verify()
    assert wrong["op"] == "corrupt", wrong
    for offset, size in wrong["ranges"]:
        assert before[offset:offset + size] != data[offset:offset + size], wrong
        os.pwrite(memory, data[offset:offset + size], offset)
    assert sink.verify()["op"] == "verified"
    sink.publish()
    assert content(daemon) == data
    p.close()


def test_a_table_that_names_a_short_leaf_as_a_whole_one_overruns_nothing(daemon, task):
    """The base is longer than the new version, and by the table their last leaves are the same."""
    data = DATA[:LEAF + 128]
    publish(daemon, DATA)
    p, sink = Plan(data, image([("a", len(data))])), task("sink")
    fds = [*p.fds, memfd(Tree(data).leaves + Tree(DATA).leaves[64:])]
    sink.send_create(daemon, p, fds, base={"version": 1, "n_bytes": N_BYTES})
    os.close(fds[-1])
    assert sink.hear("created")["missing"] == []
    assert sink.verify()["op"] == "verified"
    sink.publish()
    assert content(daemon) == data
    p.close()


def test_a_base_is_let_go_before_the_new_version_is_published(daemon, task, plan, scene):
    publish(daemon)
    sink = task("sink")
    create_on(sink, daemon, plan, DATA)
    assert sink.verify()["op"] == "verified"
    assert scene.slots("version", "n_leases")[0] == (1, 0)
    sink.publish()
    sink.end()
    sink.forget()


@pytest.mark.parametrize("fields, table", [
    ({"version": -1}, Tree(DATA).leaves),
    ({"n_bytes": 1 << 51}, Tree(DATA).leaves),
    ({}, Tree(DATA).leaves[1:]),
    ({}, Tree(DATA).leaves + b"x"),
    ({}, None),
], ids=["version", "size", "short", "long", "none"])
def test_a_base_without_its_table_is_refused(daemon, task, plan, fields, table):
    publish(daemon)
    fds = plan.fds if table is None else [*plan.fds, memfd(table)]
    code, why = refused(task, daemon, plan, fds=fds, base={"version": 1, "n_bytes": N_BYTES} | fields)
    assert code == "malformed" and "base" in why, (code, why)
    if table is not None:
        os.close(fds[-1])

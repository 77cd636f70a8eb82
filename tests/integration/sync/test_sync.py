"""Nodes that push versions to each other: every bit arrives, all at once, and a node that was absent catches up."""
import contextlib
import json
import os
import pathlib

import pytest
from integration.sync.witness import Witness
from lib import features
from lib.engine import planned
from lib.nodes import ABSENCE_S, CONTROL_PORT, MIB, SIZE, Control, Failed, content, digest_of
from lib.wire import Wire

NONE = {"data": {"security": "none"}}
ABSENCE = {"limits": {"prepare-timeout": ABSENCE_S}}  # settings for groups with a lost node
GROUP = 23456  # a gid without members
COUNTS = "planned", "payload", "bytes", "kernel"


def row_of(node, sync):
    """The row of its history; None: it has no such sync."""
    return next((row for row in node.history() if row["sync"] == sync), None)


def rights_of(node, buffer):
    """(mode, gid) there."""
    with Wire(node.daemon.socket) as w:
        record = w.records()[buffer]
    return oct(record.mode), record.gid


# --- Pushes ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("security", ["tls", "none"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_push_arrives_bit_for_bit(make_nodes, n, security):
    nodes = make_nodes(n + 1, settings={"data": {"security": security}})
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    assert {node["node"]: node["state"] for node in end["nodes"]} == {node.name: "committed" for node in nodes}, end
    served = nodes.assert_equal("m")
    assert served.sha256 == digest_of(1, SIZE)
    for node in nodes:
        node.daemon.ctl("verify", "m")


def test_a_version_belongs_to_whom_sync_conf_of_the_node_says_however_it_came(make_nodes):
    """It arrives by a push, or by a repair; and its publisher's stays as it is."""
    nodes = make_nodes(3, absent="c", settings=NONE | ABSENCE, group={"mode": "0644", "group": str(GROUP), "policy": "quorum"})
    nodes["a"].publish("m", seed=1)
    before = rights_of(nodes["a"], "m")
    nodes["a"].push("m")
    nodes["c"].start()
    nodes.settle("m", seed=1)
    assert [rights_of(node, "m") for node in nodes] == [before, ("0o644", GROUP), ("0o644", GROUP)]


def test_one_tensor_of_few_bytes_arrives(make_nodes):
    nodes = make_nodes(2, settings=NONE)
    nodes["a"].publish("m", seed=1, size=128, tensors=1)
    nodes["a"].push("m")
    nodes.settle("m", seed=1)


def test_a_buffer_may_change_its_shape(make_nodes):
    nodes = make_nodes(3)
    for seed, tensors in ((1, 3), (2, 40), (3, 1)):
        nodes["a"].publish("m", seed=seed, tensors=tensors, size=2 * MIB)
        nodes["a"].push("m")
        nodes.settle("m", seed=seed)
        for node in nodes:
            listed = json.loads(node.daemon.ctl("tensors", "m", "--json").stdout)["tensors"]
            assert [t["name"] for t in listed] == [f"blocks.{i}.weight" for i in range(tensors)]


def test_an_older_version_can_be_pushed(make_nodes):
    nodes = make_nodes(2)
    first = nodes["a"].publish("m", seed=1)
    nodes["a"].publish("m", seed=2)
    nodes["a"].push("m", version=first)
    served = nodes["b"].serves("m")
    assert served.sha256 == digest_of(1, SIZE)


def test_the_number_grows_with_every_push(make_nodes):
    nodes = make_nodes(2)
    ends = []
    for seed in (1, 2, 3):
        nodes["a"].publish("m", seed=seed)
        ends.append(nodes["a"].push("m"))
    pairs = [(end["term"], end["number"]) for end in ends]
    assert pairs == sorted(set(pairs)) and len({term for term, _ in pairs}) == 1, pairs
    nodes.settle("m", seed=3)
    nodes.wait(lambda: {node.head("m") for node in nodes} == {pairs[-1]}, f"all have {pairs[-1]}")


def test_the_term_grows_with_the_publisher(make_nodes):
    nodes = make_nodes(3, publishers="ab")
    pairs = []
    for who, seed in (("a", 1), ("b", 2), ("a", 3)):
        nodes[who].publish("m", seed=seed)
        end = nodes[who].push("m")
        pairs.append((end["term"], end["number"]))
        nodes.settle("m", seed=seed)
    assert pairs == sorted(pairs) and len({term for term, _ in pairs}) == 3, pairs


def test_buffers_do_not_wait_for_each_other(make_nodes):
    nodes = make_nodes(2)
    for seed, name in enumerate(("m", "n", "o")):
        nodes["a"].publish(name, seed=seed, size=MIB)
    pushes = [nodes["a"].start_push(name) for name in ("m", "n", "o")]
    for push in pushes:
        push.committed()
    for seed, name in enumerate(("m", "n", "o")):
        nodes.settle(name, seed=seed)


# --- Bytes -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("security", ["tls", "none"])
def test_bytes_are_those_planned_and_those_of_the_kernel(make_nodes, security):
    nodes = make_nodes(4, settings={"data": {"security": security}})
    nodes["a"].publish("m", seed=1)
    size = nodes["a"].serves("m").size
    end = nodes["a"].push("m")
    assert 3 * size < end["bytes"] == end["kernel"] < 3.15 * size, end  # whatever TLS puts around them
    assert end["planned"] == end["payload"] == 3 * planned(size), end
    assert (end["payload"] == end["bytes"]) == (security == "none"), end
    assert {key: row_of(nodes["a"], end["sync"])[key] for key in COUNTS} == {key: end[key] for key in COUNTS}
    rows = [nodes.wait(lambda name=name: row_of(nodes[name], end["sync"]), f"{name} remembers") for name in "bcd"]
    assert sum(row["bytes"] for row in rows) == end["bytes"], rows
    assert all(row["bytes"] == row["kernel"] >= row["payload"] == row["planned"] == planned(size) for row in rows), rows


@pytest.mark.parametrize("engine", ["tcp", "gloo"])
def test_a_push_keeps_to_its_rate(make_nodes, engine):
    if engine == "gloo":
        features.require("gloo")
    nodes = make_nodes(3, settings={"data": {"security": "none", "engine": engine}})
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m", max_rate=2 * MIB)
    assert (end["ended_ns"] - end["started_ns"]) / 1e9 > 0.9 * SIZE / (2 * MIB), end


def test_the_history_survives_a_restart(make_nodes):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1)
    sync = nodes["a"].push("m")["sync"]
    for name in "ab":
        row = nodes.wait(lambda name=name: row_of(nodes[name], sync), f"{name} remembers")
        nodes[name].restart()
        assert row_of(nodes[name], sync) == row


# --- Ports -----------------------------------------------------------------------------------------

def listening(pid):
    """{(address, port)} of a process, whatever the protocol."""
    ours, found = set(), set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            ours.add(os.readlink(fd))
    for family in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and f"socket:[{inode}]" in ours:
                host, port = local.split(":")
                found.add((".".join(map(str, reversed(bytes.fromhex(host)))), int(port, 16)))
    return found


def test_an_agent_listens_at_one_place_which_knows_tls_alone(make_nodes):
    """That it does is test_what_is_no_tls_is_refused; here that there is no other."""
    nodes = make_nodes(3, settings=NONE)
    nodes["a"].publish("m", seed=1)
    push = nodes["a"].start_push("m", max_rate=MIB // 4)
    push.moving("c")
    for node in nodes:
        assert listening(node.proc.pid) == {(node.address, CONTROL_PORT)}
    nodes["a"].ask("cancel", sync=push.sync)
    push.failed()


def test_a_peer_that_moved_is_found_by_its_name(make_nodes, tmp_path, require):
    require("netns")  # it includes the right to mount
    hosts = tmp_path / "hosts"
    hosts.touch()
    own = "unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"
    nodes = make_nodes(2, start=False, prefix=lambda node: own if node.name == "a" else ())
    a, b = nodes
    a.conf.write_text(a.conf.read_text().replace(f"address = {b.address}:", "address = b.weightd.test:"))
    hosts.write_text(f"{b.address} b.weightd.test\n")
    a.start()
    b.start()
    nodes.wait_connected()
    b.stop()
    b.address = b.data_address = a.address.rpartition(".")[0] + ".77"
    hosts.write_text(f"{b.address} b.weightd.test\n")
    nodes.configure(b)
    b.start()
    nodes.wait_connected()
    a.publish("m", seed=1)
    a.push("m")
    nodes.settle("m", seed=1)


# --- Policies --------------------------------------------------------------------------------------

@pytest.mark.parametrize("policy, commits", [("all", False), ("quorum", True), ("each", True)])
def test_a_member_that_is_absent(make_nodes, policy, commits):
    nodes = make_nodes(3, absent="c", settings=ABSENCE)
    nodes["a"].publish("m", seed=1)
    push = nodes["a"].start_push("m", policy=policy)
    if commits:
        end = push.committed()
        assert {node["node"]: node["state"] for node in end["nodes"]}["c"] == "absent", end
        nodes.settle("m", seed=1, names="ab")
    else:
        sentence = push.failed()
        assert "c" in sentence.split() and "m 1.1" in sentence, sentence
        assert nodes["b"].serves("m") is None


def test_a_quorum_is_more_than_half(make_nodes):
    nodes = make_nodes(4, absent="cd", settings=ABSENCE)
    nodes["a"].publish("m", seed=1)
    sentence = nodes["a"].start_push("m", policy="quorum").failed()
    assert "2" in sentence and "4" in sentence, sentence
    assert nodes["b"].serves("m") is None


# --- Refusals --------------------------------------------------------------------------------------

def test_who_is_no_publisher_may_not_push(make_nodes):
    nodes = make_nodes(2)
    nodes["b"].publish("m", seed=1)
    with pytest.raises(Failed, match="main") as failed:
        nodes["b"].push("m")
    assert "b" in failed.value.sentence and "publish" in failed.value.sentence, failed.value


def test_who_only_says_to_be_a_publisher_is_refused_by_the_others(make_nodes):
    nodes = make_nodes(2)
    nodes.groups["main"]["publishers"] = "a b"
    nodes.configure(nodes["b"])
    nodes["b"].restart()
    nodes.wait_connected()
    nodes["b"].publish("m", seed=1)
    sentence = nodes["b"].start_push("m").failed()
    assert "a refused: b may not push to the group 'main'" in sentence, sentence
    assert nodes["a"].serves("m") is None


@pytest.mark.parametrize("buffer, request_, words", [
    ("nothing", {}, ["nothing"]),
    ("m", {"version": 99}, ["m", "99"]),
    ("m", {"group": "other"}, ["other"]),
    ("m", {"policy": "most"}, ["most"]),
])
def test_a_push_of_what_is_not_there(make_nodes, buffer, request_, words):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1)
    try:
        sentence = nodes["a"].start_push(buffer, **request_).failed()
    except Failed as failed:
        sentence = failed.sentence
    assert all(word in sentence for word in words), sentence
    assert nodes["b"].serves("m") is None


def test_a_buffer_that_no_group_has(make_nodes):
    nodes = make_nodes(2, group={"buffers": "llama-*"})
    for name in ("m", "llama-8b"):
        nodes["a"].publish(name, seed=1, size=MIB)
    with pytest.raises(Failed, match="'?m'?"):
        nodes["a"].push("m")
    nodes["a"].push("llama-8b")
    nodes.settle("llama-8b", seed=1)


def test_a_push_that_is_too_large(make_nodes):
    nodes = make_nodes(2, settings={"limits": {"max-bytes": "1M"}})
    nodes["a"].publish("m", seed=1, size=2 * MIB)
    try:
        sentence = nodes["a"].start_push("m").failed()
    except Failed as failed:
        sentence = failed.sentence
    assert "max-bytes" in sentence, sentence
    assert nodes["b"].serves("m") is None


def trusting_agents_only(nodes, who):
    """Starts that node anew: for bytes in the clear it trusts where agents listen and call from, and nothing else."""
    addresses = ["127.0.0.1", *(node.address for node in nodes)]
    nodes.configure(nodes[who], data=NONE["data"] | {"trusted": [f"{address}/32" for address in addresses]})
    nodes[who].restart()


def elsewhere(nodes, who):
    """Starts that node anew: its engines listen at an address that is not the one of its agent."""
    nodes[who].data_address = f"127.0.0.{ord(who)}"
    nodes.configure(nodes[who])
    nodes[who].restart()


def test_who_listens_where_its_publisher_trusts_nobody_is_not_dialled(make_nodes):
    nodes = make_nodes(2, settings=NONE)
    elsewhere(nodes, "b")
    trusting_agents_only(nodes, "a")
    nodes.wait_connected()
    nodes["a"].publish("m", seed=1)
    sentence = nodes["a"].start_push("m").failed()
    where = f"{nodes['b'].data_address} of b is in no 'trusted' network"
    assert "b listens where nobody may dial it" in sentence and where in sentence, sentence
    assert nodes["b"].serves("m") is None


def test_who_trusts_not_where_the_next_one_listens_comes_behind_it(make_nodes):
    nodes = make_nodes(3, settings=NONE)
    elsewhere(nodes, "c")
    trusting_agents_only(nodes, "b")
    nodes.wait_connected()
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    nodes.settle("m", seed=1)
    rows = {row["node"]: row for row in nodes["a"].status(end["sync"])}
    assert (rows["c"]["from"], rows["b"]["from"]) == ("a", "c"), nodes.story()


def test_two_pushes_of_a_buffer_at_once(make_nodes):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1, size=8 * MIB)
    push = nodes["a"].start_push("m", max_rate=MIB // 4)
    with pytest.raises(Failed, match="m") as failed:
        nodes["a"].push("m")
    assert push.sync in failed.value.sentence or "push" in failed.value.sentence, failed.value
    nodes["a"].ask("cancel", sync=push.sync)
    push.failed()


def test_a_version_without_bytes(make_nodes):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1, size=0)
    assert "no bytes" in nodes["a"].start_push("m").failed()
    assert nodes["b"].serves("m") is None


# --- Cancelling ------------------------------------------------------------------------------------

def test_a_push_that_is_cancelled_leaves_nothing(make_nodes):
    nodes = make_nodes(3)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    nodes["a"].publish("m", seed=2, size=8 * MIB)
    push = nodes["a"].start_push("m", max_rate=MIB // 2)
    push.moving("c", MIB // 8)
    nodes["a"].ask("cancel", sync=push.sync)
    sentence = push.failed()
    assert "cancel" in sentence, sentence
    for name in "bc":
        assert nodes[name].has("m", seed=1), nodes.story()
        nodes.wait(lambda name=name: not nodes[name].children("weightd-sync-local"), f"{name} let go of its memory")
    for name in "abc":
        past = nodes[name].history(1)[0]
        assert (past["sync"], past["bytes"], past["planned"], past["broken"]) == (push.sync, None, None, 1), past
    nodes["a"].push("m")
    nodes.settle("m", seed=2)


def test_a_push_right_behind_a_cancelled_one_is_not_held_up_by_it(make_nodes):
    nodes = make_nodes(3)
    nodes["a"].publish("m", seed=1, size=8 * MIB)
    for _ in range(3):
        push = nodes["a"].start_push("m", max_rate=MIB // 2)
        push.moving("c")
        nodes["a"].ask("cancel", sync=push.sync)
        push.failed()
    nodes["a"].push("m")
    nodes.settle("m", seed=1)


def test_certificates_are_renewed_between_pushes(make_nodes, authority):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1)
    push = nodes["a"].start_push("m", max_rate=MIB // 2)
    push.moving("b")
    nodes["b"].trust(authority.certificate, *authority.odd("new-b", ["b.weightd"]))
    nodes.wait(lambda: "the certificates were read again" in nodes["b"].log, "b has read them")
    assert push.end()["state"] == "committed"
    nodes.wait(lambda: "the certificate of 'b' was replaced" in nodes["a"].log, "b connects anew")
    nodes.wait_connected()


def test_who_waits_at_a_frozen_agent_is_told_and_the_push_goes_on(make_nodes):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1)
    waiter = nodes["a"].daemon.spawn("sync", "push", "m", "--max-rate", "500k", "--sync-socket", nodes["a"].control_socket,
                                     text=True)
    sync = nodes.wait(lambda: [row["sync"] for row in nodes["a"].status() if row["phase"] == "bytes"], "bytes move")[0]
    assert nodes["a"].ask("history", n=0) == [{"end": True}]  # weightctl asks this, and not for its answer
    nodes["a"].freeze()
    _, error = waiter.communicate(timeout=60)
    assert waiter.returncode == 1 and "did not reply within 10 s" in error and f"will show the end of {sync}" in error, error
    nodes["a"].thaw()
    nodes.settle("m", seed=1)
    assert [(row["sync"], row["state"]) for row in nodes["a"].history()] == [(sync, "committed")]


def test_pushes_of_a_busy_buffer_have_their_turns(make_nodes):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1)
    first = nodes["a"].start_push("m", max_rate=MIB // 4)
    first.moving("b")
    with pytest.raises(Failed, match=f"sync {first.sync} of m is under way; wait for your turn with --queue") as refused:
        nodes["a"].start_push("m")
    assert refused.value.code == "busy"
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(Control(nodes["a"].control_socket)) for _ in range(3)]
        for control in waiting:
            control.say(op="push", buffer="m", version=0, max_rate=0, wait=True, queue=True)
            assert control.hear() == {"event": "queued", "why": f"sync {first.sync} of m is under way"}
        waiting[1].socket.close()  # this push never gets its turn
        nodes["a"].publish("m", seed=2)
        nodes["a"].ask("cancel", sync=first.sync)
        first.failed()
        ends = [list(control.rest())[-1] for control in (waiting[0], waiting[2])]
    assert [end["state"] for end in ends] == ["committed", "committed"], ends
    assert ends[0]["number"] < ends[1]["number"]
    assert sum(row["kind"] == "push" for row in nodes["a"].history()) == 3
    nodes.settle("m", seed=2)


# --- Absent nodes ----------------------------------------------------------------------------------

def test_a_late_joiner_catches_up(make_nodes):
    nodes = make_nodes(3, absent="c", settings=ABSENCE)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m", policy="quorum")
    nodes["c"].start()
    nodes.settle("m", seed=1)
    nodes.wait(lambda: any(row["kind"] == "repair" and row["state"] == "committed" for row in nodes["c"].history()),
               "the history of c shows a repair")


@pytest.mark.parametrize("n, at_least", (pytest.param(1, 3, marks=pytest.mark.long), (3, 9)))
def test_those_who_fetch_share_the_rate_that_a_node_gives_them(make_nodes, n, at_least):
    size, rate = 4 * MIB, MIB
    nodes = make_nodes(3, absent="c", settings=ABSENCE)
    for i in range(n):
        nodes["a"].publish(f"m{i}", seed=i, size=size)
        nodes["a"].push(f"m{i}", policy="quorum")
    nodes["b"].stop()
    nodes.configure(nodes["a"], limits={"repair-rate": rate} | ABSENCE["limits"])
    nodes["a"].restart()
    nodes["c"].start()
    for i in range(n):
        nodes.settle(f"m{i}", seed=i, names="ac")
    done = [row for row in nodes["c"].history() if row["kind"] == "repair" and row["state"] == "committed"]
    took = (max(row["ended_ns"] for row in done) - min(row["started_ns"] for row in done)) / 1e9
    assert len(done) == n and at_least < took < 3 * n * size / rate, (took, done)


def test_a_late_joiner_needs_no_publisher(make_nodes):
    nodes = make_nodes(3, absent="c", settings=ABSENCE)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m", policy="each")
    nodes["a"].stop()
    nodes["c"].start()
    nodes.settle("m", seed=1, names="bc")
    nodes["a"].start()
    nodes.wait_connected()


def test_a_restarted_node_catches_up(make_nodes):
    nodes = make_nodes(3, settings=ABSENCE)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    nodes["c"].stop()
    nodes["a"].publish("m", seed=2)
    end = nodes["a"].push("m", policy="quorum")
    assert nodes["c"].has("m", seed=1)
    nodes["c"].start()
    nodes.settle("m", seed=2)
    nodes.wait(lambda: nodes["c"].head("m") == (end["term"], end["number"]), "c reports what it serves")


def test_a_node_whose_weightd_was_emptied_catches_up(make_nodes):
    nodes = make_nodes(3)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    nodes["b"].kill()
    nodes["b"].empty()
    assert nodes["b"].serves("m") is None
    nodes["b"].start()
    nodes.settle("m", seed=1)


def test_a_weightd_that_was_emptied_under_its_agent_is_filled_again(make_nodes):
    nodes = make_nodes(3)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    for node in nodes:
        node.empty()
        nodes.settle("m", seed=1)


def test_what_was_published_over_it_while_the_agent_was_away_stays(make_nodes):
    nodes = make_nodes(2)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    nodes["b"].stop()
    for seed in (2, 3):  # a new buffer keeps two versions
        nodes["b"].publish("m", seed=seed)
    nodes["b"].start()
    nodes.wait_connected()
    nodes.wait(lambda: nodes["b"].own_head("m")["state"] == "superseded", "b has noted that it released it")
    nodes["a"].publish("m", seed=4)
    assert nodes["b"].has("m", seed=3)
    nodes["a"].push("m")
    nodes.settle("m", seed=4)


def test_a_publisher_whose_weightd_was_emptied_catches_up(make_nodes):
    nodes = make_nodes(3)
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    nodes["a"].kill()
    nodes["a"].empty()
    nodes["a"].start()
    nodes.settle("m", seed=1)
    nodes["a"].publish("m", seed=2)
    nodes["a"].push("m")
    nodes.settle("m", seed=2)


def test_all_agents_start_again_and_know_what_they_did(make_nodes):
    nodes = make_nodes(3)
    nodes["a"].publish("m", seed=1)
    before = nodes["a"].push("m")
    for node in nodes:
        node.restart()
    nodes.wait_connected()
    nodes.settle("m", seed=1)  # a node that is not sure yet may fetch it, and have no other then
    assert {node.head("m") for node in nodes} == {(before["term"], before["number"])}, nodes.story()
    nodes["a"].publish("m", seed=2)
    after = nodes["a"].push("m")
    assert (after["term"], after["number"]) == (before["term"], before["number"] + 1)
    nodes.settle("m", seed=2)


# --- Readers ---------------------------------------------------------------------------------------

def test_readers_never_see_a_mixed_version(make_nodes):
    nodes = make_nodes(3)
    seeds = range(1, 5)
    whole = {digest_of(seed, SIZE) for seed in seeds}
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    witnesses = [Witness(node, "m", nice=10) for node in nodes]
    try:
        for seed in seeds[1:]:
            nodes["a"].publish("m", seed=seed)
            nodes["a"].push("m")
        nodes.settle("m", seed=seeds[-1])
        last = digest_of(seeds[-1], SIZE)
        for witness in witnesses:
            nodes.wait(lambda w=witness: last in {digest for _, digest in w.saw()}, f"{witness.node} reads the last")
    finally:
        looks = [witness.end() for witness in witnesses]
    for witness in witnesses:
        assert {digest for _, digest in witness.saw()} <= whole, (witness.node, witness.saw())
        assert len(dict(witness.saw())) == len(witness.saw()), "a version has one content"
    assert all(looks), looks


# --- Output for users ------------------------------------------------------------------------------

def test_weightctl_shows_and_does_all_of_it(make_nodes, tmp_path):
    nodes = make_nodes(2)
    a, b = nodes["a"], nodes["b"]
    path = tmp_path / "model.safetensors"
    header = json.dumps({"w": {"dtype": "U8", "shape": [MIB], "data_offsets": [0, MIB]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content(7, MIB))
    a.ctl("load", "m", path)
    shown = a.ctl("nodes").stdout
    assert "a" in shown and b.address in shown, shown
    rows = json.loads(a.ctl("nodes", "--json").stdout)["nodes"]
    assert {row["node"]: row["state"] for row in rows} == {"a": "self", "b": "up"}, rows
    pushed = a.ctl("sync", "push", "m")
    assert "m" in pushed.stdout + pushed.stderr
    assert b.ctl("cat", "m", "w", text=False).stdout == content(7, MIB)
    sync = a.history(1)[0]["sync"]
    assert sync in a.ctl("sync", "history").stdout
    assert "m" in a.ctl("sync", "history", "--json").stdout
    assert sync[:4] in a.ctl("sync", "status", sync).stdout
    refused = b.ctl("sync", "push", "m", check=False)
    assert refused.returncode == 1 and "publish" in refused.stderr, refused
    refused = a.ctl("sync", "cancel", sync, check=False)
    assert refused.returncode == 1 and sync in refused.stderr, refused


def test_certificates_of_weightctl_pki_are_taken(make_nodes, tmp_path):
    nodes = make_nodes(2, start=False)
    pki = tmp_path / "pki"
    nodes["a"].ctl("pki", "ca", pki)
    for node in nodes:
        node.ctl("pki", "node", pki, node.name)
        node.trust(pki / "ca.crt", pki / f"{node.name}.crt", pki / f"{node.name}.key")
        assert node.name in node.ctl("pki", "show", node.certificate).stdout
        node.start()
    nodes.wait_connected()
    nodes["a"].publish("m", seed=1)
    nodes["a"].push("m")
    nodes.settle("m", seed=1)

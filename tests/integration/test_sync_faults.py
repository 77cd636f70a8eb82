"""
What happens to a push when something breaks in the middle of it: each node goes on to serve a whole version,
the old one or the new one; the operator is told who, where and when; nothing waits beyond what was said; and
once it is mended, all have the same.

WEIGHTD_SYNC_ROUNDS=20 does each of it so many times. With pytest -s a line of JSON says how long things took.
"""
import contextlib
import json
import os
import re
import signal
import time

import features
import pytest
from netns import Net
from nodes import ABSENCE_S, IMPATIENT, MIB, SILENCE_S, STALL_S, Cluster, hostile_programs
from pki import Authority

ROUNDS = int(os.environ.get("WEIGHTD_SYNC_ROUNDS", 1))
SIZE = 8 * MIB
RATE = 3 * MIB // 2  # five seconds of moving bytes, to be broken into
SLOW = MIB // 2  # likewise, where nobody waits for the rest of them
SLACK_S = 30  # of a machine that has other things to do
NONE = {"data": {"security": "none"}}
ABSENCE = {"limits": {"prepare-timeout": ABSENCE_S}}


def thorough(names, values, brief):
    """As parametrize(), but in a single round, as of every CI, those alone that do other things than the rest."""
    return pytest.mark.parametrize(names, values if ROUNDS > 1 else brief)


@pytest.fixture(autouse=True, params=range(ROUNDS))
def round_of(request):
    return request.param


@pytest.fixture
def figures(request, record_property):
    """figures(seconds=...): for whoever wants to know; never asserted on."""
    def show(**values):
        for name, value in values.items():
            record_property(name, value)
        print(json.dumps({"name": request.node.name} | values))

    return show


def with_old(nodes):
    """All serve version 1, and there is a version 2 at a."""
    nodes["a"].publish("m", seed=1, size=SIZE)
    nodes["a"].push("m")
    nodes.settle("m", seed=1)
    nodes["a"].publish("m", seed=2, size=SIZE)
    return nodes


@pytest.fixture
def nodes(make_nodes):
    return with_old(make_nodes(4))


@pytest.fixture
def impatient(make_nodes):
    """Nodes that do not wait long for who is silent."""
    return with_old(make_nodes(4, settings={"limits": IMPATIENT}))


def under_way(nodes, at="d", rate=RATE, **request):
    """A push of version 2 in the middle of its bytes."""
    push = nodes["a"].start_push("m", max_rate=rate, **request)
    push.moving(at, MIB // 8)
    return push


def ends(push, within):
    """Its last packet, which must come soon enough."""
    begun = time.monotonic()
    end = push.end()
    push.waited = time.monotonic() - begun
    assert push.waited < within + SLACK_S, f"{push.waited} s, said were {within}: {end}\n{push.node.cluster.story()}"
    return end


def assert_told(end, *patterns):
    """The operator's sentence says what each of these wants, and what was kept."""
    assert end["state"] == "failed", end
    for pattern in (r"\bm@", *patterns):
        assert re.search(pattern, end["error"]), (pattern, end["error"])


def assert_old(nodes, names):
    """None of these took a version that was not committed."""
    for name in names:
        assert nodes[name].has("m", seed=1), f"{name} serves {nodes[name].serves('m')}\n{nodes.story()}"
    nodes.assert_equal("m", names)


def mended(nodes):
    """What was to be pushed arrives everywhere, at last. How long that took."""
    begun = time.monotonic()
    nodes.wait_connected()
    nodes.rest("m")  # a repair would come between a publish and its push
    if not all(node.has("m", seed=2) for node in nodes):
        if not nodes["a"].has("m", seed=2):
            nodes["a"].publish("m", seed=2, size=SIZE)
        nodes["a"].push("m")
    nodes.settle("m", seed=2)
    for node in nodes:
        nodes.wait(lambda node=node: not node.children("weightd-sync-tcp"), f"{node} needs no engine any more")
    return round(time.monotonic() - begun, 2)


# --- Deaths ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("who", "abd")
def test_an_engine_is_killed(nodes, figures, who):
    push = under_way(nodes)
    epochs = {row["epoch"] for row in nodes["a"].status(push.sync)}
    killed = time.monotonic()
    os.kill(nodes[who].engine(), signal.SIGKILL)
    nodes.wait(lambda: {row["epoch"] for row in nodes["a"].status(push.sync)} - epochs, "there is another epoch")
    reformed = time.monotonic() - killed
    end = ends(push, SIZE / RATE + STALL_S)
    assert end["state"] == "committed", end
    nodes.settle("m", seed=2)
    figures(reform_s=round(reformed, 2), end_s=round(push.waited, 2), state=end["state"])


@pytest.mark.parametrize("policy", ["all", "quorum"])
def test_the_agent_of_a_member_is_killed(nodes, figures, policy):
    push = under_way(nodes, rate=SLOW if policy == "all" else RATE, policy=policy)
    nodes["b"].kill()
    end = ends(push, SIZE / RATE + SILENCE_S)
    survivors = ["c", "d"]
    if policy == "all":
        assert_told(end, r"\bb\b", "bytes moved")
        assert_old(nodes, survivors)
    else:
        assert end["state"] == "committed", f"{end}\n{nodes.story()}"
        nodes.settle("m", seed=2, names=["a", *survivors])
    assert nodes["b"].has("m", seed=1)
    nodes["b"].start()
    figures(end_s=round(push.waited, 2), state=end["state"], told=end.get("error"), mended_s=mended(nodes))


def test_the_agent_of_the_publisher_is_killed(nodes, figures):
    under_way(nodes, rate=SLOW).control.socket.close()
    nodes["a"].kill()
    killed = time.monotonic()
    for name in "bcd":
        nodes.wait(lambda name=name: not nodes[name].children("weightd-sync-tcp")
                   and not nodes[name].children("weightd-sync-local"), f"{name} gave up")
    gave_up = time.monotonic() - killed
    assert gave_up < SILENCE_S + SLACK_S
    assert_old(nodes, "bcd")
    nodes["a"].start()
    figures(end_s=round(gave_up, 2), mended_s=mended(nodes))


def test_the_weightd_of_a_member_is_killed(nodes, figures):
    push = under_way(nodes)
    nodes["c"].empty()
    end = ends(push, SIZE / RATE + SILENCE_S)
    if end["state"] == "failed":  # it may also have been made again in time
        assert_told(end, r"\bc\b")
        assert_old(nodes, "bd")
    figures(end_s=round(push.waited, 2), state=end["state"], told=end.get("error"), mended_s=mended(nodes))


def test_the_weightd_of_the_publisher_is_killed(nodes, figures):
    push = under_way(nodes)
    nodes["a"].empty()
    end = ends(push, SIZE / RATE + SILENCE_S)
    if end["state"] == "failed":
        assert_told(end, r"\ba\b")
        assert_old(nodes, "bcd")
    figures(end_s=round(push.waited, 2), state=end["state"], told=end.get("error"), mended_s=mended(nodes))


# --- Silence ---------------------------------------------------------------------------------------

@thorough("who", "abd", brief="b")
def test_an_engine_is_frozen(impatient, figures, who):
    nodes = impatient
    push = under_way(nodes)
    nodes[who].freeze(nodes[who].engine())
    end = ends(push, SIZE / RATE + 2 * STALL_S + SILENCE_S)
    if end["state"] == "failed":
        assert_told(end, rf"\b{who}\b")
        assert_old(nodes, "bcd")
    nodes[who].thaw()
    figures(end_s=round(push.waited, 2), state=end["state"], told=end.get("error"), mended_s=mended(nodes))


@thorough("policy", ["all", "quorum"], brief=["quorum"])
def test_the_agent_of_a_member_is_frozen(impatient, figures, policy):
    nodes = impatient
    push = under_way(nodes, rate=SLOW if policy == "all" else RATE, policy=policy)
    nodes["c"].freeze()
    end = ends(push, SIZE / RATE + SILENCE_S + STALL_S)
    if policy == "all":
        assert_told(end, r"\bc\b")
        assert_old(nodes, "bd")
    else:
        assert end["state"] == "committed", f"{end}\n{nodes.story()}"
        nodes.settle("m", seed=2, names="abd")
    assert nodes["c"].has("m", seed=1)
    nodes["c"].thaw()
    figures(end_s=round(push.waited, 2), state=end["state"], told=end.get("error"), mended_s=mended(nodes))


def test_the_agent_of_the_publisher_is_frozen(impatient, figures):
    nodes = impatient
    push = under_way(nodes, rate=SLOW)
    nodes["a"].freeze()
    frozen = time.monotonic()
    for name in "bcd":
        nodes.wait(lambda name=name: not nodes[name].children("weightd-sync-local"), f"{name} gave up")
    gave_up = time.monotonic() - frozen
    assert gave_up < SILENCE_S + SLACK_S
    assert_old(nodes, "bcd")
    nodes["a"].thaw()
    end = ends(push, SIZE / RATE + SILENCE_S)
    assert_told(end)
    figures(end_s=round(gave_up, 2), told=end["error"], mended_s=mended(nodes))


def test_a_member_never_joins(make_nodes, figures):
    nodes = make_nodes(4, absent="d", settings=ABSENCE)
    nodes["a"].publish("m", seed=2, size=SIZE)
    end = ends(nodes["a"].start_push("m"), ABSENCE_S)
    assert_told(end, r"\bd\b")
    push = nodes["a"].start_push("m", policy="quorum")
    assert ends(push, ABSENCE_S)["state"] == "committed"
    nodes.settle("m", seed=2)
    nodes["d"].start()
    figures(end_s=round(push.waited, 2), told=end["error"], mended_s=mended(nodes))


# --- Memory ----------------------------------------------------------------------------------------

@pytest.fixture
def little(tmp_path):
    """Arguments of a weightd that gives nobody more than one version of SIZE."""
    features.require("inih")
    (tmp_path / "weightd.conf").write_text(f"[limits]\nbytes = {SIZE + SIZE // 2}\n")
    return "--config", str(tmp_path / "weightd.conf")


@pytest.mark.parametrize("policy", ["all", "quorum"])
def test_a_member_has_no_memory_left(make_nodes, little, figures, policy):
    nodes = with_old(make_nodes(3, daemons={"c": little}))
    push = nodes["a"].start_push("m", policy=policy)
    end = ends(push, SIZE / RATE)
    if policy == "all":
        assert_told(end, r"\bc\b", "limit|quota|memory|bytes")
        assert_old(nodes, "bc")
    else:
        assert end["state"] == "committed", f"{end}\n{nodes.story()}"
        nodes.settle("m", seed=2, names="ab")
        row = next(node for node in end["nodes"] if node["node"] == "c")
        assert row["state"] == "failed" and re.search("limit|quota|memory|bytes", row["why"]), row
        assert nodes["c"].has("m", seed=1)
    figures(end_s=round(push.waited, 2), state=end["state"], told=end.get("error"))


# --- Other bytes -----------------------------------------------------------------------------------

def make_hostile(make_nodes, folder, settings=None, **habits):
    """Four nodes, of which c has an engine that does such things once there is a version 1 everywhere."""
    programs = hostile_programs(folder / "hostile")
    nodes = with_old(make_nodes(4, settings=settings, programs={"c": programs}))
    path = programs / "hostile.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | habits))
    return nodes


@thorough("what, security", [(w, s) for w in ("wire", "memory") for s in ("none", "tls")],
          brief=[("wire", "none"), ("wire", "tls"), ("memory", "tls")])
def test_a_byte_that_changed_once_is_sent_again(make_nodes, tmp_path, figures, what, security):
    nodes = make_hostile(make_nodes, tmp_path, {"data": {"security": security}}, **{what: 1})
    push = nodes["a"].start_push("m")
    end = ends(push, SIZE / RATE + STALL_S)
    assert (tmp_path / f"hostile/{what}-0").exists(), f"nothing was changed\n{nodes.story()}"
    assert end["state"] == "committed", f"{end}\n{nodes.story()}"
    nodes.settle("m", seed=2)
    figures(end_s=round(push.waited, 2))


@thorough("what, policy", [(w, p) for w in ("wire", "memory") for p in ("all", "quorum")],
          brief=[("memory", "all"), ("wire", "quorum")])
def test_bytes_that_change_every_time_are_never_served(make_nodes, tmp_path, figures, what, policy):
    nodes = make_hostile(make_nodes, tmp_path, NONE, **{what: 1000})
    push = nodes["a"].start_push("m", policy=policy)
    end = ends(push, 8 * (SIZE / RATE + STALL_S))
    if policy == "all":
        assert_told(end, r"\bc\b")
        assert_old(nodes, "bc")
    else:
        assert end["state"] == "committed", f"{end}\n{nodes.story()}"
        nodes.settle("m", seed=2, names="ab")
    assert nodes["c"].has("m", seed=1)
    nodes["c"].stop()
    (tmp_path / "hostile/hostile.json").write_text(json.dumps({"real": str(features.BUILD / "weightd-sync-tcp")}))
    nodes["c"].start()
    figures(end_s=round(push.waited, 2), state=end["state"], told=end.get("error"), mended_s=mended(nodes))


def test_an_engine_never_answers(make_nodes, tmp_path, figures):
    nodes = make_hostile(make_nodes, tmp_path, ABSENCE, deaf=True)
    push = nodes["a"].start_push("m")
    end = ends(push, 3 * ABSENCE_S)
    assert_told(end, r"\bc\b")
    assert_old(nodes, "bcd")
    figures(end_s=round(push.waited, 2), told=end["error"])


# --- Certificates ----------------------------------------------------------------------------------

def believe(node, kind, folder):
    """Gives a node a certificate that is wrong for the others, not for itself. Words that tell what is wrong."""
    authority = node.cluster.authority
    if kind == "expired":
        node.trust(authority.certificate, *authority.odd("expired", [f"{node.name}.weightd"], days=-1))
        return "expire"
    if kind == "of another name":
        node.trust(authority.certificate, *authority.node("x"))
        node.cluster.configure(node, groups={"main": {"members": "a b", "publishers": "a"}}, node={"name": "x"})
        return r"\bx\b"
    other = Authority(folder / "other")
    node.trust(other.certificate, *other.node(node.name))
    return "issue|sign|authority|CA|chain|trust"


@pytest.mark.parametrize("kind", ["expired", "of another CA", "of another name"])
def test_a_certificate_that_is(make_nodes, figures, tmp_path, kind):
    nodes = make_nodes(3, start=False, settings=ABSENCE)
    c = nodes["c"]
    words = believe(c, kind, tmp_path)
    for node in nodes:
        node.start()
    nodes.wait_connected("ab")
    nodes["a"].publish("m", seed=1, size=SIZE)
    push = nodes["a"].start_push("m")
    end = ends(push, ABSENCE_S)
    assert_told(end, r"\bc\b")
    assert nodes["b"].serves("m") is None

    def is_told():
        row = nodes["a"].peers()["c"]
        return row["state"] == "down" and re.search(words, str(row["why"]))

    nodes.wait(is_told, f"a says what is wrong with the certificate of c: {words}")
    why = nodes["a"].peers()["c"]["why"]
    c.trust(nodes.authority.certificate, *nodes.authority.node("c"))
    nodes.configure(c)
    if kind == "expired":
        c.proc.send_signal(signal.SIGHUP)
    else:
        c.restart()
    begun = time.monotonic()
    nodes.wait_connected()
    mended_s = time.monotonic() - begun
    nodes["a"].push("m")
    nodes.settle("m", seed=1)
    figures(end_s=round(push.waited, 2), told=end["error"], why=why, mended_s=round(mended_s, 2))


# --- Links -----------------------------------------------------------------------------------------

@pytest.fixture
def linked(authority, request):
    """(nodes, net): four nodes with cables."""
    features.require("netns")
    features.require("library")
    with Net(4) as net:
        spaces = {name: net.nodes[i].name for i, name in enumerate("abcd")}
        settings = {"data": {"trusted": "10.0.0.0/8"}, "limits": getattr(request, "param", {})}
        with Cluster(authority, 4, settings=settings, addresses=[node.address for node in net.nodes],
                     prefix=lambda node: ("nsenter", f"--net=/run/netns/{spaces[node.name]}", "--")) as cluster:
            yield with_old(cluster), net


@pytest.mark.parametrize("linked", [IMPATIENT], indirect=True, ids=["impatient"])
@thorough("policy", ["all", "quorum"], brief=["all"])
def test_a_link_goes_down(linked, figures, policy):
    nodes, net = linked
    push = under_way(nodes, rate=SLOW if policy == "all" else RATE, policy=policy)
    net.down(2)
    end = ends(push, SIZE / RATE + SILENCE_S + 2 * STALL_S)
    if policy == "all":
        assert_told(end, r"\bc\b")
        assert_old(nodes, "bd")
    else:
        assert end["state"] == "committed", f"{end}\n{nodes.story()}"
        nodes.settle("m", seed=2, names="abd")
    assert nodes["c"].has("m", seed=1)
    net.up(2)
    figures(end_s=round(push.waited, 2), state=end["state"], told=end.get("error"), mended_s=mended(nodes))


@pytest.mark.parametrize("linked", [IMPATIENT], indirect=True, ids=["impatient"])
def test_the_link_of_the_publisher_goes_down(linked, figures):
    nodes, net = linked
    push = under_way(nodes, rate=SLOW)
    net.down(0)
    end = ends(push, SIZE / RATE + SILENCE_S + 2 * STALL_S)
    assert_told(end)
    assert_old(nodes, "bcd")
    net.up(0)
    figures(end_s=round(push.waited, 2), told=end["error"], mended_s=mended(nodes))


def test_a_link_is_slow(linked, figures):
    nodes, net = linked
    net.rate(1, "20mbit")
    push = nodes["a"].start_push("m")
    end = ends(push, 3 * SIZE / (20e6 / 8))
    assert end["state"] == "committed", f"{end}\n{nodes.story()}"
    nodes.settle("m", seed=2)
    figures(end_s=round(push.waited, 2))

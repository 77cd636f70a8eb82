"""
One of each kind of failure in the middle of a push, some in that of an average; `make matrix` does each many times, at any moment. See
failures.py for what must be true then.
"""
import json
import random
import types

import pytest
from lib import failures, features
from lib.engine import program
from lib.nodes import MIB

SLACK_S = 30  # delay of a machine that has other things to do
SLOW = MIB // 2  # if no test waits for the rest of the bytes: that machine may see them late
IN_BUCKETS = {"stall-timeout": 5}  # buckets of 1 MiB, at these rates: see ring_chunk()
SCENES = [  # kind, victim, policy, moment
    ("engine killed", "a", "all", "open"), ("engine killed", "b", "all", "bytes"),
    ("engine frozen", "b", "all", "bytes"), ("engine never answers", "c", "all", "before"),
    ("job killed", "c", "quorum", "verify"), ("job frozen", "c", "quorum", "verify"),
    ("agent killed", "b", "all", "bytes"), ("agent killed", "b", "quorum", "bytes"),
    ("agent frozen", "c", "quorum", "bytes"), ("weightd killed", "c", "all", "bytes"),
    ("weightd frozen", "c", "all", "prepare"), ("node killed", "d", "quorum", "verify"),
    ("publisher killed", "a", "all", "bytes"), ("publisher killed", "a", "all", "commit"),
    ("publisher frozen", "a", "all", "bytes"), ("weightd of publisher killed", "a", "all", "bytes"),
    ("weightd of publisher frozen", "a", "all", "bytes"), ("link down", "c", "all", "bytes"),
    ("link of publisher down", "a", "all", "bytes"), ("link slow", "b", "all", "prepare"),
    ("node never joins", "d", "quorum", "before"),
    ("byte changed on the wire", "c", "all", "before"), ("byte changed under TLS", "c", "all", "before"),
    ("byte changed in memory", "c", "all", "before"), ("wire always changes", "c", "quorum", "before"),
    ("memory always changes", "c", "all", "before"), ("memory full", "c", "all", "before"),
    ("memory full", "c", "quorum", "before"), ("disk full", "c", "all", "before"),
    ("certificate expired", "c", "all", "before"), ("certificate of another CA", "c", "all", "before"),
    ("certificate of another name", "c", "all", "before"),
    ("CA replaced", "c", "all", "bytes"), ("CA replaced", "d", "quorum", "prepare"),
]
AVERAGES = [
    ("engine killed", "b", "all", "bytes"), ("job killed", "c", "quorum", "verify"), ("agent killed", "b", "all", "bytes"),
    ("agent killed", "d", "quorum", "bytes"), ("agent frozen", "c", "quorum", "open"), ("weightd killed", "c", "all", "bytes"),
    ("publisher killed", "a", "all", "bytes"), ("publisher killed", "a", "all", "commit"), ("link down", "c", "quorum", "bytes"),
    ("node never joins", "d", "quorum", "before"), ("memory full", "c", "quorum", "before"),
    ("engine never answers", "c", "quorum", "before"), ("memory always changes", "c", "quorum", "before"),
]
RINGS = [
    ("engine killed", "c", "all", "bytes"), ("engine frozen", "b", "all", "bytes"), ("agent killed", "d", "quorum", "bytes"),
]
KINDS = {kind.name: kind for kind in failures.KINDS}


def once(scenes, of=lambda scene: scene[0]):
    """Parameters of a test: those that repeat a kind of failure, at another moment or with another policy, run in the plain build alone."""
    seen, found = set(), []
    for scene in scenes:
        found.append(pytest.param(*scene, id=" ".join(scene), marks=[pytest.mark.plain] if of(scene) in seen else []))
        seen.add(of(scene))
    return found


def test_each_kind_has_its_scene():
    assert {scene[0] for scene in SCENES} == set(KINDS)
    assert {scene[0] for scene in RINGS} == {kind.name for kind in failures.KINDS if "nccl" in kind.engines}


COMMITTED = {"node": "c", "state": "committed", "why": None}
LOST = {"node": "b", "state": "failed", "why": "b went away"}
FAILED = {"policy": "all", "state": "failed", "told": "m 1.2 was not committed: b went away, while bytes moved; every other node still serves m 1.1, the publisher what it has"}
ROW = {"policy": "quorum", "moment": "bytes", "state": "committed", "told": "b went away", "t_end_s": 1, "t_error_s": 0.5,
       "t_reform_s": None, "starved_s": 0}


@pytest.mark.parametrize("row, said, served, fault", [
    ({}, [COMMITTED, LOST], {"c": "new", "b": "old"}, None),
    ({}, [COMMITTED, LOST], {"c": "new", "b": "none"}, None),
    ({}, [COMMITTED, LOST], {"c": "old"}, "c is reported to have it, and serves the old version"),
    ({}, [COMMITTED, LOST], {"c": "none"}, "c serves none"),
    ({}, [COMMITTED, LOST], {"c": "new", "b": "0123456789abcdef"}, "b serves 0123456789abcdef"),
    ({}, [COMMITTED, LOST | {"why": ""}], {"c": "new"}, "b is failed, without a reason"),
    ({"policy": "all"}, [COMMITTED, LOST], {"c": "new"}, "it committed, and should have failed"),
    (FAILED, [], {"a": "new", "c": "old"}, None),
    (FAILED, [], {"a": "new", "c": "new"}, "c serves what was not committed"),
    (FAILED | {"told": FAILED["told"].replace("b went", "it went")}, [], {"c": "old"}, FAILED["told"].replace("b went", "it went")),
    (FAILED | {"told": "b went away; every other node still serves m 1.1, the publisher what it has"}, [], {"c": "old"}, "b went away; every other node still serves m 1.1, the publisher what it has"),
    (FAILED | {"told": "b went away, while bytes moved"}, [], {"c": "old"}, "b went away, while bytes moved"),
    (FAILED | {"t_end_s": 1.5}, [], {"c": "old"}, "0.50 s after the deadline"),
    ({"t_error_s": 1.25}, [COMMITTED, LOST], {"c": "new"}, "0.25 s after the deadline"),
    ({"t_end_s": 1000}, [COMMITTED, LOST], {"c": "new"}, "after the deadline"),
])
def test_what_must_not_be_is_a_fault(row, said, served, fault):
    stage = failures.Stage.__new__(failures.Stage)  # that nothing is played on
    stage.kind, stage.victim, stage.why, stage.faults, stage.said = KINDS["agent killed"], types.SimpleNamespace(name="b"), None, [], said
    stage.usual_s, stage.rate = 0.1, failures.RATE
    stage.judge(ROW | row, served, slack_s=0)
    assert len(stage.faults) == bool(fault) and (not fault or stage.faults[0].endswith(fault)), stage.faults


def require(kind):
    features.require("sync")
    features.require("library")
    for feature in [*["netns"] * (kind.links or kind.disk), *["inih"] * kind.memory]:
        features.require(feature)


def play(stage, record_property, *scene, **kw):
    row = stage.play(random.Random(stage.kind.name), *scene, latest=0.1, slack_s=SLACK_S, **kw)
    print(json.dumps(row))
    record_property("row", row)
    assert not row["faults"], f"{row}\n{stage.nodes.story()}"
    return row


@pytest.mark.parametrize("name, victim, policy, moment", once(SCENES))
def test_a_failure(authority, tmp_path, record_property, name, victim, policy, moment):
    kind = KINDS[name]
    require(kind)
    with failures.Stage(authority, tmp_path / "stage", kind, limits=kind.limits) as stage:
        ends = moment == "bytes" and policy == "all" and kind.is_known_at_once and kind.outcome in ("lost", "ends", "orphaned")
        play(stage, record_property, victim, policy, moment, rate=0 if moment == "before" else SLOW if ends else 3 * MIB)


def test_a_failure_while_a_patch_travels_over_two_interfaces(authority, tmp_path, record_property):
    kind = KINDS["engine killed"]
    require(kind)
    with failures.Stage(authority, tmp_path / "stage", kind, limits=kind.limits) as stage:
        for way in ("full", "patch"):
            play(stage, record_property, "b", "all", "bytes", rate=2 * MIB)
            rows = stage.nodes["a"].status()
            assert {row["by"] for row in rows if row["sync"] == rows[-1]["sync"]} == {way}, rows
        stage.publish()
        plan = json.loads(stage.nodes["a"].ctl("sync", "push", "m", "--dry-run", "--json").stdout)
        assert {link["stripes"] for link in plan["links"]} == {2}, plan


@pytest.mark.parametrize("name, victim, policy, moment", once(AVERAGES, lambda scene: KINDS[scene[0]].outcome))
def test_a_failure_while_nodes_average(authority, tmp_path, record_property, name, victim, policy, moment):
    kind = KINDS[name]
    require(kind)
    features.require("gloo", available=program("gloo").exists())
    with failures.AverageStage(authority, tmp_path / "stage", kind, limits=kind.limits) as stage:
        play(stage, record_property, victim, policy, moment, rate=0 if moment == "before" else 3 * MIB)


@pytest.mark.parametrize("name, victim, policy, moment", RINGS, ids=map(" ".join, RINGS))
def test_a_failure_while_a_version_goes_from_gpu_to_gpu(authority, tmp_path, record_property, name, victim, policy, moment):
    kind = KINDS[name]
    require(kind)
    features.require("fakes")
    with failures.RingStage(authority, tmp_path / "stage", kind, limits=kind.limits or IN_BUCKETS) as stage:
        play(stage, record_property, victim, policy, moment, rate=3 * MIB)

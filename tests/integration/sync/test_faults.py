"""
One of each kind of failure in the middle of a push, some in that of an average; `make matrix` does each many times, at any moment. See
failures.py for what must be true then.
"""
import contextlib
import json
import random
import sys
import types

import pytest
from lib import failures, features
from lib.engine import program
from lib.nodes import MIB

SLACK_S = 30  # delay of a machine that has other things to do
SLOW = MIB // 2  # if no test waits for the rest of the bytes: that machine may see them late
LIMITS = {failures.RingStage: {"stall-timeout": 5}}  # buckets of 1 MiB, at these rates: see ring_chunk()
SCENES = [  # kind, victim, policy, moment; those in which an agent ends come behind others
    ("engine killed", "a", "all", "open"), ("engine killed", "b", "all", "bytes"),
    ("engine frozen", "b", "all", "bytes"), ("engine never answers", "c", "all", "before"),
    ("job killed", "c", "quorum", "verify"), ("job frozen", "c", "quorum", "verify"),
    ("CA replaced", "c", "all", "bytes"), ("CA replaced", "d", "quorum", "prepare"),
    ("weightd killed", "c", "all", "bytes"), ("weightd frozen", "c", "all", "prepare"),
    ("weightd of publisher killed", "a", "all", "bytes"), ("weightd of publisher frozen", "a", "all", "bytes"),
    ("agent killed", "b", "all", "bytes"), ("agent killed", "b", "quorum", "bytes"),
    ("agent frozen", "c", "quorum", "bytes"), ("node killed", "d", "quorum", "verify"),
    ("publisher killed", "a", "all", "bytes"), ("publisher killed", "a", "all", "commit"),
    ("publisher frozen", "a", "all", "bytes"), ("link down", "c", "all", "bytes"),
    ("link of publisher down", "a", "all", "bytes"), ("link slow", "b", "all", "prepare"),
    ("node never joins", "d", "quorum", "before"),
    ("byte changed on the wire", "c", "all", "before"), ("byte changed under TLS", "c", "all", "before"),
    ("byte changed in memory", "c", "all", "before"), ("wire always changes", "c", "quorum", "before"),
    ("memory always changes", "c", "all", "before"), ("memory full", "c", "all", "before"),
    ("memory full", "c", "quorum", "before"), ("disk full", "c", "all", "before"),
    ("certificate expired", "c", "all", "before"), ("certificate of another CA", "c", "all", "before"),
    ("certificate of another name", "c", "all", "before"),
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
# To a node these are others: silent, absent, ended at once. test_agent.py has the certificates.
LIKE_OTHERS = {"node killed", "link down", "link of publisher down", "certificate expired", "certificate of another CA",
               "certificate of another name", "byte changed on the wire"}


def of_scenes(make, scenes, of=lambda scene: scene[0]):
    """
    Parameters of a test. Scenes that repeat a failure, at another moment or with another policy, are long. What is like another
    failure to our programs runs in the plain build.
    """
    seen, found = set(), []
    for scene in scenes:
        marks = [pytest.mark.long] * (of(scene) in seen) + [pytest.mark.plain] * (scene[0] in LIKE_OTHERS)
        found.append(pytest.param((make, KINDS[scene[0]].needs), *scene, id=" ".join(scene), marks=marks))
        seen.add(of(scene))
    return pytest.mark.parametrize("stages, name, victim, policy, moment", found, indirect=["stages"])


class Stages:
    """A stage for tests about kinds with the same needs; another one behind a test that failed."""

    def __init__(self, make):
        self.make, self.stage = make, None

    @contextlib.contextmanager
    def scene(self, kind):
        try:
            if self.stage:
                self.stage.set_scene(kind)
            else:
                self.stage = self.make(kind)
            yield self.stage
        except BaseException:
            self.close(*sys.exc_info())
            raise

    def close(self, *failure):
        stage, self.stage = self.stage, None
        if stage:
            stage.__exit__(*failure or (None, None, None))


@pytest.fixture(scope="module")
def stages(request, authority, tmp_path_factory):
    make, _ = request.param
    found = Stages(lambda kind: make(authority, tmp_path_factory.mktemp("stage"), kind, limits=kind.limits or LIMITS.get(make, {})))
    yield found
    found.close()


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


@of_scenes(failures.Stage, SCENES)
def test_a_failure(stages, record_property, name, victim, policy, moment):
    kind = KINDS[name]
    require(kind)
    with stages.scene(kind) as stage:
        ends = moment == "bytes" and policy == "all" and kind.is_known_at_once and kind.outcome in ("lost", "ends", "orphaned")
        play(stage, record_property, victim, policy, moment, rate=0 if moment == "before" else SLOW if ends else 3 * MIB)


@pytest.mark.parametrize("stages", [(failures.Stage, KINDS["engine killed"].needs)], indirect=True, ids=["tcp"])
def test_a_failure_while_a_patch_travels_over_two_interfaces(stages, record_property):
    kind = KINDS["engine killed"]
    require(kind)
    with stages.scene(kind) as stage:
        for way in ("full", "patch"):
            play(stage, record_property, "b", "all", "bytes", rate=2 * MIB)
            rows = stage.nodes["a"].status()
            assert {row["by"] for row in rows if row["sync"] == rows[-1]["sync"]} == {way}, rows
        stage.publish()
        plan = json.loads(stage.nodes["a"].ctl("sync", "push", "m", "--dry-run", "--json").stdout)
        assert {link["stripes"] for link in plan["links"]} == {2}, plan
        stage.nodes["a"].push("m")


@of_scenes(failures.AverageStage, AVERAGES, lambda scene: (KINDS[scene[0]].outcome, scene[2]))
def test_a_failure_while_nodes_average(stages, record_property, name, victim, policy, moment):
    kind = KINDS[name]
    require(kind)
    features.require("gloo", available=program("gloo").exists())
    with stages.scene(kind) as stage:
        play(stage, record_property, victim, policy, moment, rate=0 if moment == "before" else 3 * MIB)


@of_scenes(failures.RingStage, RINGS)
def test_a_failure_while_a_version_goes_from_gpu_to_gpu(stages, record_property, name, victim, policy, moment):
    kind = KINDS[name]
    require(kind)
    features.require("fakes")
    with stages.scene(kind) as stage:
        play(stage, record_property, victim, policy, moment, rate=3 * MIB)

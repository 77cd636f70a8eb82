"""
One of each kind of failure in the middle of a push; `make matrix` does each many times, at any moment. See
failures.py for what must be true then.
"""
import json
import random

import failures
import features
import pytest
from nodes import MIB

SLACK_S = 30  # of a machine that has other things to do
SLOW = MIB // 2  # where nobody waits for the rest of the bytes: that machine may see them late
SCENES = [  # kind, victim, policy, moment
    ("engine killed", "a", "all", "open"), ("engine killed", "b", "all", "bytes"),
    ("engine frozen", "b", "all", "bytes"), ("engine never answers", "c", "all", "before"),
    ("job killed", "c", "quorum", "verify"),
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
]
KINDS = {kind.name: kind for kind in failures.KINDS}


def test_each_kind_has_its_scene():
    assert {scene[0] for scene in SCENES} == set(KINDS)


@pytest.mark.parametrize("name, victim, policy, moment", SCENES, ids=map(" ".join, SCENES))
def test_a_failure(authority, tmp_path, record_property, name, victim, policy, moment):
    kind = KINDS[name]
    features.require("sync")
    features.require("library")
    for feature in [*["netns"] * (kind.links or kind.disk), *["inih"] * kind.memory]:
        features.require(feature)
    with failures.Stage(authority, tmp_path / "stage", kind, limits=kind.limits) as stage:
        ends = moment == "bytes" and policy == "all" and kind.is_known_at_once and kind.outcome in ("lost", "ends", "orphaned")
        rate = 0 if moment == "before" else SLOW if ends else 3 * MIB
        row = stage.play(random.Random(name), victim, policy, moment, rate, latest=0.1, slack_s=SLACK_S)
        print(json.dumps(row))
        record_property("row", row)
        assert not row["faults"], f"{row}\n{stage.nodes.story()}"

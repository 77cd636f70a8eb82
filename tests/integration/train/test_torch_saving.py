"""Checkpoints of weightd.train: saved by four ranks, and loaded by others and by torch."""
import json
import os

import pytest
from lib import features

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]
CURVE_MAX = 2e-6


def mean(ranks, losses):
    """The losses of all ranks, which have equally many samples."""
    return [sum(values) / len(ranks) for values in zip(*(losses(rank) for rank in ranks))]


def difference(a, b):
    assert len(a) == len(b)
    return max(abs(x - y) for x, y in zip(a, b))


def test_f_9_saved_at_4_and_loaded_at_4_3_2_and_1_and_by_torch(host, daemon, tmp_path):
    ranks = host.play(daemon, "saving.life", 4, folder=str(tmp_path / "c"), kind="Net")
    whole = mean(ranks, lambda rank: rank["losses"])
    for n in (4, 3, 2, 1):
        loaded = [rank["loaded"][str(n)] for rank in ranks[:n]]
        assert {rank["saved"] for rank in loaded} == {ranks[0]["saved"]}
        assert [(rank["step"], rank["cursor"]) for rank in loaded] == [(3, {"at": 3})] * n
        assert difference(mean(loaded, lambda rank: rank["losses"]), whole) <= CURVE_MAX, n
    assert [rank["loaded"]["4"]["losses"] for rank in ranks] == [rank["losses"] for rank in ranks]
    assert [rank["loaded"]["4"]["bits"] for rank in ranks] == [rank["bits"] for rank in ranks]
    (plain,) = host.play(daemon, "saving.plainly", folder=str(tmp_path / "c"), until=6)
    assert plain["saved"] == ranks[0]["saved"] and plain["lr"] == 0.01 and plain["same"]
    assert difference(plain["losses"], whole) <= CURVE_MAX


def test_buffers_generators_and_the_scale_of_each_rank_continue(host, daemon, tmp_path):
    """BatchNorm and dropout in bfloat16, with the loss scaled: equal bits, only if all of it is there."""
    ranks = host.play(daemon, "saving.half", 2, folder=str(tmp_path / "c"))
    for rank in ranks:
        found = rank["loaded"]["2"]
        assert (found["saved"], found["losses"], found["bits"]) == (rank["saved"], rank["losses"], rank["bits"])
        assert found["scale"] == 512.0, "the scale of the checkpoint, and not the first one"
    index = json.loads((tmp_path / "c/step-000000000003/optimizer.safetensors.index.json").read_text())
    assert "body.0.weight.master" in index["weight_map"]


@pytest.mark.timeout(120)
def test_two_nodes_save_what_any_mesh_loads(host, daemon, tmp_path):
    """Buffers and generators of each rank, too: equal bits on the same mesh."""
    features.require("train-gloo")
    scene, folder = "saving.saved_or_loaded", str(tmp_path / "c")
    saved = host.play(daemon, scene, 4, nodes=2, folder=folder, is_saved=True)
    same = host.play(daemon, scene, 4, nodes=2, folder=folder, is_saved=False)
    for key in "saved", "losses", "bits", "cursor":
        assert [rank[key] for rank in same] == [rank[key] for rank in saved], key
    for n, nodes in (1, 1), (3, 1), (2, 2):
        ranks = host.play(daemon, scene, n, nodes=nodes, folder=folder, is_saved=False)
        assert [(rank["step"], rank["cursor"]["at"], rank["saved"]) for rank in ranks] == [(3, 3, saved[0]["saved"])] * n


def test_a_save_in_the_background_warns_and_one_that_is_waited_for_raises(host, daemon, tmp_path):
    (tmp_path / "file").write_text("x")
    (found,) = host.play(daemon, "saving.troubles", folder=str(tmp_path / "c"), file=str(tmp_path / "file"))
    assert len(found["warned"]) == 1 and found["warned"][0].startswith("a checkpoint was not saved: cannot save to ")
    assert found["raised"].startswith("Error: cannot save to ") and "Not a directory" in found["raised"]
    assert "has begun step 1" in found["too late"] and found["negative"].startswith("ValueError: keep is -1; it must be")
    assert found["other"].startswith("LayoutMismatch: ") and "which the checkpoint lacks" in found["other"]
    assert "Not a directory" in found["nothing"]
    assert os.listdir(tmp_path / "c") == ["step-000000000001"]
    assert found["decay"] == [0.01, 0.5] and found["step"] is None, "the learning rate is the checkpoint's, the rest the plan's"

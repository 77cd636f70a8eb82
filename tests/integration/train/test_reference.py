"""The reference model and its oracle: what everything else here is compared with must be right by itself."""
import subprocess

import pytest
from lib import features
from lib.trainer import PROGRAMS, words

MODELS = [{}, {"rms_norm": True, "unused_layer": True}, {"mlp": True, "ballast": 3}, {"width": 5, "heads": 1, "hidden": 3, "length": 2}]


@pytest.fixture(autouse=True)
def refs():
    features.require("refs")


@pytest.mark.parametrize("model", MODELS, ids=lambda m: " ".join(words(**m)) or "default")
def test_the_backward_pass_is_the_slope_of_the_loss(model):
    done = subprocess.run([PROGRAMS / "gradients", *words(**model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_the_oracle_learns(oracle, optimizer):
    losses, _ = oracle(optimizer=optimizer, lr=0.03)
    assert len(losses) == 60 and losses[-1] < 0.7 * losses[0]


def test_the_oracle_has_one_curve_for_one_seed(oracle, tmp_path):
    features.require("refs")
    again = tmp_path / "again"
    subprocess.run([PROGRAMS / "oracle", *words(dump=again, losses=tmp_path / "losses")], check=True)
    assert again.with_suffix(".PARAM").read_bytes() == oracle()[1]
    assert oracle(seed=2)[0] != oracle()[0]

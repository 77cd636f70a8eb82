"""Our Gloo beside the one that torch brings."""
import pathlib
import subprocess

import pytest
from lib import features

OBJECT = pathlib.Path(features.LIBRARY).with_name("libweightd-train-gloo.so")
SCRIPT = pathlib.Path(__file__).with_name("torch_gloo.py")

pytestmark = pytest.mark.plain


@pytest.mark.parametrize("scope", ["local", "global"])
def test_torch_does_not_take_the_place_of_gloo(scope):
    features.require("torch2")
    features.require("gloo", f"{OBJECT} is not built (libgloo-dev)", OBJECT.exists())
    done = subprocess.run([features.TORCH2, SCRIPT, OBJECT, scope], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stdout

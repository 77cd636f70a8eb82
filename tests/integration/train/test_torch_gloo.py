"""Our Gloo beside the one that torch brings."""
import pathlib
import subprocess

import pytest
from lib import features

OBJECT = pathlib.Path(features.LIBRARY).with_name("libweightd-train-gloo.so")
SCRIPT = pathlib.Path(__file__).with_name("torch_gloo.py")

pytestmark = pytest.mark.plain


def require_gloo():
    features.require("torch2")
    features.require("gloo", f"{OBJECT} is not built (libgloo-dev)", OBJECT.exists())


def test_torch_that_python_loaded_does_not_take_the_place_of_gloo(host, daemon):
    require_gloo()
    rank = host.start(daemon, "gloo.beside", 0, 1, path=str(OBJECT))
    assert rank.value() is None and rank.log.splitlines()[-1:] == ["done"], rank.log


def test_torch_of_a_program_that_is_linked_with_it_does_not_take_the_place_of_gloo():
    require_gloo()
    done = subprocess.run([features.TORCH2, SCRIPT, OBJECT], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stdout

"""Fixtures of the tests of the Python package."""
import functools
import json
import multiprocessing
import pathlib
import subprocess
import sys

import pytest
from lib import features
from lib.daemon import environment


@pytest.fixture(scope="session")
def torch_forks():
    """The process that forks them. It has imported torch."""
    env = environment(PYTHONPATH=str(features.ROOT / "libclient/python"))
    with subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("torch_forks.py")], env=env, text=True, bufsize=1,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as forks:
        yield forks
        forks.stdin.close()


@pytest.fixture
def in_child(request, daemon, tmp_path):
    """in_child(code): what another process printed, which has imported weightd.torch. It has to end well."""
    features.require("library")
    features.require("torch")

    def run(code):
        forks, paths = request.getfixturevalue("torch_forks"), {"out": tmp_path / "child.out", "err": tmp_path / "child.err"}
        forks.stdin.write(json.dumps({"code": code, "environment": daemon.env} | {k: str(p) for k, p in paths.items()}) + "\n")
        status = forks.stdout.readline()
        assert status == "0\n", (status, paths["err"].read_text())
        return paths["out"].read_text()

    return run


@pytest.fixture(scope="session")
def torch_pool():
    """One process that multiprocessing spawned: it has to import torch."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.fixture
def there(request, daemon):
    """there(function, *args): what it returns in a process that multiprocessing spawned."""
    features.require("library")
    features.require("torch")
    from integration.python import torch_spawned

    pool = request.getfixturevalue("torch_pool")
    pool.apply_async(torch_spawned.connect, (daemon.socket,)).get(60)
    return lambda function, *args: pool.apply_async(function, args).get(60)


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory):
    """saved_model(name): a Saved, for tests that leave it as it is."""
    from integration.python.saved_model import Saved

    return functools.cache(lambda name: Saved(name, tmp_path_factory.mktemp(name)))

"""Fixtures of the tests of training."""
import pytest
from lib import features
from lib.daemon import Daemon
from lib.torch_ranks import Host


@pytest.fixture(scope="session")
def host():
    """A program that forks ranks with torch 2."""
    features.require("library")
    features.require("torch2")
    host = Host()
    yield host
    host.close()


@pytest.fixture(scope="module")
def module_daemon():
    """A weightd for what the tests of a file share."""
    features.require("library")
    daemon = Daemon()
    yield daemon
    daemon.close()

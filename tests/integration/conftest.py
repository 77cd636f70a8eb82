"""Fixtures of the tests that drive the real programs."""
import os

import pytest
from daemon import Daemon
from features import LIBRARY

os.environ["WEIGHTD_LIBRARY"] = str(LIBRARY)  # for the Python package in this very process


@pytest.fixture
def make_daemon():
    """make_daemon("--reserve", "1G"): a weightd with these options; all end with the test."""
    daemons = []

    def make(*args, **kw):
        daemons.append(Daemon(*args, **kw))
        return daemons[-1]

    yield make
    errors = []
    for daemon in daemons:
        try:
            daemon.close()
        except AssertionError as e:
            errors.append(str(e))
    assert not errors, "\n".join(errors)


@pytest.fixture
def daemon(make_daemon):
    """A weightd with no options but its socket."""
    return make_daemon()

"""Fixtures of all tests."""
import os
import pathlib
import resource
import signal

import pytest
from lib import features
from runner.outcomes import pytest_configure  # noqa: F401, a hook
from runner.shuffle import pytest_collection_modifyitems  # noqa: F401, a hook

# A shell ignores SIGINT for what it starts in the background, and nohup SIGHUP; programs inherit that, and
# the tests that interrupt one would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Some tests hold thousands of descriptors, and a login usually starts with 1,024. What needs more than the hard limit
# skips (features.require_descriptors).
resource.setrlimit(resource.RLIMIT_NOFILE, 2 * resource.getrlimit(resource.RLIMIT_NOFILE)[1:])

# Threads of OpenMP spin between two operations of torch, for as long as milliseconds, on processors that other tests need.
os.environ["OMP_WAIT_POLICY"] = "passive"

# Tests that take no arc of their own, by arcs.py. The tree for coverage, which it measures, runs all.
PLAIN = set(pathlib.Path(__file__).with_name("plain").read_text().splitlines()) if features.BUILD.name != "build-coverage" else ()


def pytest_itemcollected(item):
    if item.nodeid in PLAIN or item.nodeid.split("[")[0] in PLAIN:
        item.add_marker("plain")


def pytest_terminal_summary(terminalreporter):
    """Adds the counts of tests in guests, which count as one test here."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "guest":
                terminalreporter.write_line(f"In a guest: {value}")


@pytest.fixture
def require():
    """require("root"): skips, or fails where WEIGHTD_REQUIRE forbids the skip."""
    return features.require


@pytest.fixture(scope="session")
def root():
    """The top of the source tree."""
    return features.ROOT


@pytest.fixture(scope="session")
def build():
    """The folder of the programs under test."""
    return features.BUILD


@pytest.fixture
def model():
    """The folder of a real model, all-MiniLM-L6-v2."""
    features.require("model")
    return features.MODEL

"""Networks of the tests with several nodes."""
import contextlib

import pytest
from lib import features
from lib.netns import Net


@pytest.fixture
def net():
    """net(3): a Net of 3 nodes, until the end of the test."""
    features.require("netns")
    with contextlib.ExitStack() as stack:
        yield lambda n: stack.enter_context(Net(n))

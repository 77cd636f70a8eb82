"""Random order of tests: that of the seed in WEIGHTD_SHUFFLE. A conftest.py imports the hook.

Files change places, and tests within a file: a fixture that is shared by a file is still made once.
"""
import os
import random


def pytest_collection_modifyitems(items):
    if seed := os.environ.pop("WEIGHTD_SHUFFLE", None):  # not for a pytest that a test starts
        chance = random.Random(seed)
        files = sorted({item.path for item in items})
        chance.shuffle(files)
        chance.shuffle(items)
        items.sort(key=lambda item: files.index(item.path))

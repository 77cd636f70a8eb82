"""Marks of the tests that pytest collects, as JSON: {file: [the marks of each test]}. Files are relative to pytest's root."""
import collections
import json
import pathlib


class Recorder:
    def __init__(self, path):
        self.path = pathlib.Path(path)

    def pytest_collection_finish(self, session):
        found = collections.defaultdict(list)
        for item in session.items:
            found[item.nodeid.split("::")[0]].append(sorted({mark.name for mark in item.iter_markers()}))
        self.path.write_text(json.dumps(found))


def is_chosen(expression, marks):
    """True if a test with these marks is one that pytest -m chooses; an empty expression chooses all."""
    return not expression or bool(eval(expression, {}, collections.defaultdict(bool, dict.fromkeys(marks, True))))

"""Names of tests that run in the plain build alone: a test that has another name now would run in both."""
import re

from lib.features import ROOT


def test_each_test_that_runs_plain_is_there():
    wrong = []
    for line in (ROOT / "tests/plain").read_text().splitlines():
        path, *classes, function = line.split("[")[0].split("::")
        file = ROOT / "tests" / path
        names = [rf"^class {name}\b" for name in classes] + [rf"^ *def {function}\("]
        if not file.exists() or not all(re.search(name, file.read_text(), re.M) for name in names):
            wrong.append(line)
    assert wrong == [], "make arcs lists them anew"

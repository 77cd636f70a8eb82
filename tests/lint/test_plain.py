"""Names of tests that run in the plain build alone: a test that has another name now would run in both."""
import re

from lib.features import ROOT


def test_each_test_that_runs_plain_is_there():
    wrong = []
    for line in (ROOT / "tests/plain").read_text().splitlines():
        path, function = line.split("[")[0].split("::")
        file = ROOT / "tests" / path
        if not file.exists() or not re.search(rf"^def {function}\(", file.read_text(), re.M):
            wrong.append(line)
    assert wrong == [], "make arcs lists them anew"

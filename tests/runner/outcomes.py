"""Outcomes of tests, as lines of JSON that another process reads while the tests run.

A conftest.py imports pytest_configure(), which registers a Writer where WEIGHTD_OUTCOMES names a file. Each line has a
test's node id: one line when the test starts, one line for each report about it, one line when it ends, with the seconds
that a processor worked for it: pytest and what it started and waited for.
"""
import collections
import json
import os
import resource

from runner import arcs, marks


def pytest_configure(config):
    if path := os.environ.pop("WEIGHTD_OUTCOMES", None):  # not for a pytest that a test starts
        config.pluginmanager.register(Writer(path))
    if path := os.environ.pop("WEIGHTD_ARCS", None):
        config.pluginmanager.register(arcs.Recorder(path, Writer.worked_s))
    if path := os.environ.pop("WEIGHTD_MARKS", None):
        config.pluginmanager.register(marks.Recorder(path))


class Writer:
    def __init__(self, path):
        self.file = open(path, "w", buffering=1)

    def write(self, **line):
        print(json.dumps(line), file=self.file)

    @staticmethod
    def worked_s():
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def pytest_runtest_logstart(self, nodeid):
        self.begin_s = self.worked_s()
        self.write(id=nodeid, outcome="started")

    def pytest_runtest_logreport(self, report):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else report.longreprtext
        outcome = "passed" if hasattr(report, "wasxfail") and report.skipped else report.outcome
        if outcome == "passed" and report.when != "call":
            outcome = "started"
        self.write(id=report.nodeid, outcome=outcome, seconds=report.duration, reason=reason)

    def pytest_runtest_logfinish(self, nodeid):
        self.write(id=nodeid, outcome="started", is_finished=True, worked=self.worked_s() - self.begin_s)

    def pytest_collectreport(self, report):
        if report.failed:
            self.write(id=report.nodeid, outcome="failed", reason=report.longreprtext, is_finished=True)
        elif report.skipped:
            self.write(id=report.nodeid, outcome="skipped", reason=report.longrepr[2].removeprefix("Skipped: "), is_finished=True)


class Outcome:
    """The worst of the reports about one test: a failure in its teardown makes a test that passed fail."""
    ORDER = ("started", "passed", "skipped", "failed")

    def __init__(self):
        self.result, self.reason, self.seconds, self.worked_s, self.is_finished = "started", "", 0.0, 0.0, False

    def add(self, line):
        self.seconds += line.get("seconds", 0)
        self.worked_s += line.get("worked", 0)
        self.is_finished |= line.get("is_finished", False)
        if self.ORDER.index(line["outcome"]) > self.ORDER.index(self.result):
            self.result, self.reason = line["outcome"], line.get("reason", "")


def read(path):
    """{node id: Outcome}, of a file that may still grow."""
    found = collections.defaultdict(Outcome)
    try:
        text = open(path).read()
    except FileNotFoundError:
        return found
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            found[(parsed := json.loads(line))["id"]].add(parsed)
    return found

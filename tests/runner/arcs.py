"""The arcs of our C code that each test takes, and the tests that need not run sanitized.

In a tree built with SAN=coverage, a conftest.py that imports pytest_configure() registers a Recorder where WEIGHTD_ARCS
names a folder. Each run of pytest leaves a file there. `tests/runner/arcs.py` then prints tests/plain: of the tests that a
processor works for longest, each one that takes no arc that none of the remaining tests takes. A program that SIGKILL ends
leaves no trace, so tests of deaths remain, and those that took no arc or failed.
"""
import collections
import os
import pathlib
import pickle
import re
import shutil
import struct
import sys
import tempfile

FUNCTION, ARCS = 0x01000000, 0x01A10000  # tags of gcc's gcov-io.h
HEADER = 16
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "build/lanes/arcs"
REMAINS = re.compile("^unit/|hostile|kill|crash|fault|keeper|recovery|lifecycle|survi|frozen|_(die|dead|death|hang)")
WORTH_S = 0.1  # time of a processor, with the counters of arcs: a shorter list for what hardly costs


def taken(path):
    """{(file, function, arc)} of the arcs that were taken, by a .gcda file."""
    data, name, function, found = path.read_bytes(), str(path).split("/obj/", 1)[-1], None, set()
    at = HEADER
    while at + 8 <= len(data):
        tag, size = struct.unpack_from("<Ii", data, at)
        at += 8
        if tag == FUNCTION and size > 0:
            function, = struct.unpack_from("<I", data, at)
        elif tag == ARCS and size > 0:  # a negative size stands for zeros
            found.update((name, function, i) for i, n in enumerate(struct.unpack_from(f"<{size // 8}Q", data, at)) if n)
        at += max(size, 0)
    return found


class Recorder:
    def __init__(self, folder, worked_s):
        self.path, self.worked_s = pathlib.Path(folder, f"{os.getpid()}.pickle"), worked_s
        self.scratch, self.arcs, self.seconds, self.failed = pathlib.Path(tempfile.mkdtemp()), {}, collections.Counter(), set()
        self.scratch.chmod(0o777)

    def pytest_runtest_logstart(self, nodeid):
        self.begin_s = self.worked_s()
        self.arcs[nodeid] = set()
        prefix = self.scratch / str(len(self.arcs))
        prefix.mkdir(exist_ok=True)
        prefix.chmod(0o777)  # daemons of other users write there
        os.environ["GCOV_PREFIX"] = str(prefix)

    def pytest_runtest_logfinish(self, nodeid):
        self.seconds[nodeid] += self.worked_s() - self.begin_s

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self):
        for prefix, nodeid in zip(range(1, len(self.arcs) + 1), self.arcs):
            for path in (self.scratch / str(prefix)).rglob("*.gcda"):
                self.arcs[nodeid] |= {arc for arc in taken(path) if not arc[0].startswith("tests/")}
        self.arcs |= {nodeid: set() for nodeid in self.failed}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(pickle.dumps((self.arcs, self.seconds)))
        shutil.rmtree(self.scratch)


def choose(arcs, seconds):
    """Tests that may go."""
    left, gone = collections.Counter(arc for taken in arcs.values() for arc in taken), set()
    for node in sorted(arcs, key=lambda node: (-seconds[node], node)):
        if seconds[node] >= WORTH_S and arcs[node] and not REMAINS.search(node) and all(left[arc] > 1 for arc in arcs[node]):
            gone.add(node)
            left.subtract(arcs[node])
    return gone


def lines(arcs, gone):
    """A function is one line if all of its parameters may go."""
    variants = collections.defaultdict(set)
    for node in arcs:
        variants[node.split("[")[0]].add(node)
    return sorted({node.split("[")[0] if variants[node.split("[")[0]] <= gone else node for node in gone})


def main():
    arcs, seconds = {}, collections.Counter()
    for path in FOLDER.glob("*.pickle"):
        more, of_them = pickle.loads(path.read_bytes())
        arcs |= more
        seconds |= of_them
    print(*lines(arcs, choose(arcs, seconds)), sep="\n")


if __name__ == "__main__":
    sys.exit(main())

"""The demo's workers as run and test_demo.py handle them: started, read, weighed, ended."""

import array
import json
import os
import pathlib
import re
import selectors
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
REPORT_S = 120  # a sanitized worker on a loaded machine
STOP_S = 60

# Sentences, and pairs of them (by index) that mean the same or have nothing in common.
SENTENCES = (
    "Two processes read the same memory.",
    "The same memory is read by two processes.",
    "The cat sleeps on the sofa.",
    "A cat is sleeping on the couch.",
    "How do I reset my password?",
    "I forgot my password, how can I change it?",
    "Quarterly earnings beat expectations.",
)
ALIKE = ((0, 1), (2, 3), (4, 5))
UNLIKE = ((0, 2), (4, 6), (3, 6))


class WorkerError(Exception):
    """A worker died, or did not answer in time."""


class Worker:
    """
    A running worker.c or worker.py.

    language  "C" or "Python"
    last      the newest report: the line of JSON as a dictionary
    """

    def __init__(self, build, language, arguments, env):
        programs = {"C": [build / "demo/worker"], "Python": [sys.executable, HERE / "worker.py"]}
        self.language = language
        self.last = None
        self.unread = b""
        self.process = subprocess.Popen([*programs[language], *arguments], env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    @property
    def pid(self):
        return self.process.pid

    def __str__(self):
        return f"{self.language} worker {self.pid}"

    def report(self):
        """The next line, as soon as it is there."""
        deadline = time.monotonic() + REPORT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.unread:
                if not selector.select(deadline - time.monotonic()):
                    raise WorkerError(f"{self} printed nothing in {REPORT_S} s")
                more = os.read(self.process.stdout.fileno(), 1 << 16)
                if not more:
                    raise WorkerError(f"{self} ended with {self.process.wait(STOP_S)}")
                self.unread += more
        line, self.unread = self.unread.split(b"\n", 1)
        self.last = json.loads(line)
        return self.last

    def is_running(self):
        return self.process.poll() is None

    def weights(self):
        """The mapping of the weights: {"Rss": bytes, "Pss": bytes, ...}."""
        return mapping_at(self.pid, self.last["address"])

    def stop(self):
        """The end of its input ends it; it has to exit with 0."""
        self.process.stdin.close()
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise WorkerError(f"{self} did not end in {STOP_S} s") from None
        if status:
            raise WorkerError(f"{self} ended with {status}")

    def kill(self):
        """Whatever state it is in; nothing is left of it."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def mapping_at(pid, address):
    """The count of smaps for the file mapped at `address`, all its mappings together, in bytes."""
    files, found, counts = {}, None, None
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+ \d+)", line)
        count = re.match(r"(\w+): +(\d+) kB", line)
        if head:
            counts = files.setdefault(head[3], {})
            if int(head[1], 16) <= address < int(head[2], 16):
                found = counts
        elif count:
            counts[count[1]] = counts.get(count[1], 0) + int(count[2]) * 1024
    if found is None:
        raise WorkerError(f"process {pid} maps nothing at {address:#x}")
    return found


def similarity(report, pair):
    """The cosine of two embeddings, which have length 1."""
    a, b = (array.array("f", bytes.fromhex(report["embeddings"][i])) for i in pair)
    return sum(x * y for x, y in zip(a, b))


def largest_difference(a, b):
    """Between two reports, over all numbers of all embeddings."""
    numbers = [array.array("f", bytes.fromhex("".join(r["embeddings"]))) for r in (a, b)]
    return max((abs(x - y) for x, y in zip(*numbers)), default=0.0)

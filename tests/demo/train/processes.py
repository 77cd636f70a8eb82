"""Processes of the demo: forked from one that has imported torch, and connected by lines of JSON."""

import ctypes
import json
import os
import pathlib
import re
import select
import signal
import sys
import traceback

PATIENCE_S = 300  # a loaded machine
PR_SET_PDEATHSIG = 1


class ProcessError(Exception):
    """A process died, or reported nothing in time."""


class Link:
    """The process's end of its connection: report() sends a line, wait() waits for the word to go on."""

    def __init__(self, reports, words):
        self._reports, self._words = reports, words

    def report(self, **members):
        os.write(self._reports, json.dumps(members).encode() + b"\n")

    def wait(self):
        if not os.read(self._words, 1):
            os._exit(1)  # the demo is over


class Process:
    """
    A child that runs function(link, *arguments), with these variables in its environment. Its output is ours.

    name  for messages
    """

    def __init__(self, name, function, *arguments, **environment):
        self.name, self._unread, self._status = name, b"", None
        self._reports, reports = os.pipe()
        words, self._words = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._reports)
            os.close(self._words)
            _live(function, Link(reports, words), arguments, environment)
        os.close(reports)
        os.close(words)

    def fileno(self):
        return self._reports

    def reports(self):
        """
        Waits until it has written, and returns the whole reports in that: usually one, perhaps none. ProcessError: it ended,
        or wrote nothing.
        """
        if not select.select([self], [], [], PATIENCE_S)[0]:
            raise ProcessError(f"{self.name} reported nothing in {PATIENCE_S} s")
        more = os.read(self._reports, 1 << 16)
        if not more:
            raise ProcessError(f"{self.name} ended with {self.wait()}")
        *lines, self._unread = (self._unread + more).split(b"\n")
        return [json.loads(line) for line in lines]

    def await_report(self, key):
        """Returns the next report that has the key. Others around it are dropped."""
        while True:
            for report in self.reports():
                if key in report:
                    return report

    def go(self):
        os.write(self._words, b"\n")

    def wait(self):
        """Its exit status; negative: the signal that ended it."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def finish(self):
        """ProcessError: it did not end with 0."""
        if self.wait():
            raise ProcessError(f"{self.name} ended with {self.wait()}")

    def kill(self):
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def close(self):
        """Whatever state it is in."""
        self.kill()
        os.close(self._reports)
        os.close(self._words)


def _live(function, link, arguments, environment):
    """In the child."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    status = 1
    try:
        import torch

        torch.set_num_threads(1)
        os.environ.update(environment)
        function(link, *arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def stream(find):
    """Pairs of a process and its report, as they arrive, until find() returns no more processes to listen to."""
    while processes := find():
        ready = select.select(processes, [], [], PATIENCE_S)[0]
        if not ready:
            raise ProcessError(f"no process reported anything in {PATIENCE_S} s")
        for report in ready[0].reports():
            yield ready[0], report


# --- Memory ---------------------------------------------------------------------------------------


def pss(pids):
    """Bytes in memory of these processes together: a page that several map is counted once."""
    return sum(int(re.search(r"^Pss: +(\d+) kB", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1]) * 1024
               for pid in pids)


def job_pages(pid):
    """Bytes of the memory of a job by kind, as pages that the kernel counts on the descriptors of a rank."""
    found = {}
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        part = re.fullmatch(r"/memfd:.*?([A-Z]+) \(deleted\)", os.readlink(fd))
        if part:
            found[part[1]] = os.stat(fd).st_blocks * 512
    return found

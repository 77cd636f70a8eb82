"""Memory: what readers cost that share one buffer, all of it touched by each.

PSS divides a page by the number of processes that map it: where there is one copy, the sum over all
readers is that copy however many they are. What a reader adds beyond is its page tables, and itself.
"""
import contextlib
import pathlib
import re
import subprocess

import weightd
from lib import features
from lib.daemon import Daemon

import buffers
import machine
import programs

SIZE = machine.GIB
READERS = 9
NAME = "bench/memory"


def measure(report):
    with contextlib.closing(Daemon("--log-level", "warning")) as d:
        size, _ = buffers.publish(d, NAME, machine.affordable(SIZE))
        (buffer,) = weightd.ls(NAME, socket=d.socket)
        with contextlib.ExitStack() as stack:
            readers, sums = [], []
            for _ in range(READERS):
                readers.append(Reader(stack, d.env))
                sums.append(sum(reader.pss() for reader in readers))
                report.line(name="readers", readers=len(readers), buffer_bytes=size,
                            huge_bytes=buffer.huge_bytes, pss_bytes=sums[-1],
                            pss_over_one_copy=sums[-1] / size)
            tables = readers[-1].page_tables()
            report.line(name="ninth-reader", added_bytes=sums[-1] - sums[-2] + tables,
                        of_them_page_tables=tables, process_private_bytes=readers[-1].private())


class Reader:
    """A process that has the buffer attached and has read every page of it."""

    def __init__(self, stack, env):
        process = stack.enter_context(programs.spawn(
            [features.BUILD / "bench/reader", NAME], env=env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True))
        self.address = int(process.stdout.readline().split()[0])
        self.proc = pathlib.Path("/proc", str(process.pid))

    def pss(self):
        """The memory of the weights alone."""
        areas = (self.proc / "smaps").read_text()
        for area in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", areas, flags=re.M):
            if area.startswith(f"{self.address:x}-"):
                return _kb(area, "Pss")
        raise RuntimeError(f"{self.proc} maps nothing at {self.address:#x}")

    def page_tables(self):
        """The memory of the whole process."""
        return _kb((self.proc / "status").read_text(), "VmPTE")

    def private(self):
        """The memory that the end of the process would free, page tables aside."""
        counts = (self.proc / "smaps_rollup").read_text()
        return _kb(counts, "Private_Clean") + _kb(counts, "Private_Dirty")


def _kb(text, key):
    return int(re.search(rf"^{key}:\s+(\d+) kB", text, re.M)[1]) * 1024

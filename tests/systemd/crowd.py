"""
Processes in a box that use weights while something happens to the server: programs/*.c, which see more
and wait less than Python would.
"""
import contextlib
import os
import pathlib
import select
import shutil
import signal
import subprocess
import threading

from lib.box import PATIENCE_S, child_of

HERE = pathlib.Path(__file__).parent
FOLDER = "/usr/local/bin"


def build(installed, folder):
    """Compiles all programs with what is installed, as users would."""
    for source in (HERE / "programs").glob("*.c"):
        subprocess.run(["cc", "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-pthread", "-Wall", "-Wextra",
                        f"-I{installed}/usr/include", source, f"-L{installed}/usr/lib", "-lweightd",
                        "-o", folder / source.stem], check=True)


def install(folder, box):
    for program in folder.iterdir():
        shutil.copy(program, box.path(f"{FOLDER}/{program.name}"))


class Program:
    """One of the programs, which answers a line with a line."""

    def __init__(self, box, name, *args, user):
        self.what = " ".join(map(str, (name, *args)))
        self.proc = box.spawn(f"{FOLDER}/{name}", *args, user=user, stdin=subprocess.PIPE, bufsize=1)
        self.complaints = []
        self.collector = threading.Thread(target=lambda: self.complaints.extend(self.proc.stderr), daemon=True)
        self.collector.start()

    def answer(self):
        """The numbers of the next line."""
        ready = select.select([self.proc.stdout], [], [], PATIENCE_S)[0]
        line = self.proc.stdout.readline() if ready else ""
        assert line, f"{self.what} has {'ended' if ready else 'hung'}:\n{self.said()}"
        return [int(word) for word in line.split()]

    def ask(self):
        self.proc.stdin.write("\n")
        return self.answer()

    def said(self):
        return "".join(self.complaints[:20])

    def kill(self):
        os.kill(child_of(self.proc.pid), signal.SIGKILL)
        self.proc.wait(PATIENCE_S)

    def close(self):
        """Lets it end, by itself."""
        with contextlib.suppress(BrokenPipeError):
            self.proc.stdin.close()
        status = self.proc.wait(PATIENCE_S)
        self.collector.join()
        assert status == 0, f"{self.what} has failed:\n{self.said()}"

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if not error:
            self.close()  # else it ends with its box


class Visitors(Program):
    """Clients that connect and close, some ten times a second each."""

    def __init__(self, box, name, n, user):
        super().__init__(box, "visitors", name, n, user=user)

    def all_came(self):
        """Waits until each has made a visit that begins now: connections refused, and not answered in time, so far."""
        visits, failed, refused, unanswered = self.ask()
        assert failed == 0, f"{failed} of {visits} visits failed:\n{self.said()}"
        return refused, unanswered


class Reader(Program):
    """A process that has attached a version, and reads it a thousand times a second."""

    def __init__(self, box, name, version, user):
        super().__init__(box, "reader", name, version, user=user)
        self.check(self.answer())

    def check(self, answer):
        passes, different = answer
        assert different == 0, f"{different} of {passes} times {self.what} saw other bytes"
        return passes

    def read_on(self):
        """Lets it talk to the server. Returns how often it has read everything so far."""
        return self.check(self.ask())

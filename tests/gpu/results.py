"""Results: a JSON line each, on standard output and in a file as soon as it is there, and a table at the end."""
import contextlib
import json
import os
import signal
import sys
import traceback

WHY_MAX = 1000


def say(text):
    print(f"gpu: {text}", file=sys.stderr, flush=True)


class Skip(Exception):
    """A section, or a part of it, cannot be tried here; the text is the reason."""


class Results:
    """Each line is on the disk before the next measurement begins, so that SIGKILL loses none."""

    def __init__(self, path, gpu=""):
        """`gpu`, a name, is in each line: a line that is quoted alone still has its card."""
        self.lines, self.path, self.every = [], path, {"gpu": gpu} if gpu else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "a")

    def line(self, section, name, value=None, unit="", ok=None, **more):
        """ok: True or False for a claim, None for a figure, and for a claim that could not be tried."""
        if isinstance(value, float):
            value = round(value, 4)
        self.lines.append({"section": section, "name": name, "value": value, "unit": unit, "ok": ok} | more | self.every)
        text = json.dumps(self.lines[-1])
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # half a line is none
        self.file.write(text + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        print(text, flush=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def n_failed(self):
        return sum(line["ok"] is False for line in self.lines)

    def close(self):
        self.file.close()
        say(f"kept in {self.path}")

    def print_table(self):
        rows = [(line["section"], line["name"], _text(line["value"]), line["unit"],
                 {True: "ok", False: "FAILED", None: "-"}[line["ok"]], str(line.get("why", ""))) for line in self.lines]
        widths = [max(len(row[i]) for row in rows) for i in range(5)] if rows else []
        for row in rows:
            cells = [cell.rjust(w) if i == 2 else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
            print("  " + "  ".join([*cells, row[5]]).rstrip(), file=sys.stderr)


class Section:
    """The results of one section: a call is a line."""

    def __init__(self, results, name):
        self.results, self.name = results, name

    def __call__(self, name, value=None, unit="", ok=None, **more):
        self.results.line(self.name, name, value, unit, ok, **more)

    @contextlib.contextmanager
    def part(self, name):
        """An exception ends the block only: it becomes a line of this name."""
        try:
            yield
        except Skip as e:
            self(name, ok=None, why=str(e))
        except Exception as e:
            traceback.print_exc()
            self(name, ok=False, why=explain(e))


def explain(e):
    """Describes an exception; where it has no text, by the line of code that raised it."""
    text = str(e) or f"in {traceback.extract_tb(e.__traceback__)[-1].line}"
    return f"{type(e).__name__}: {text}"[:WHY_MAX]


def _text(value):
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)

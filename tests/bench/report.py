"""The lines of a bench: JSON for programs on standard output, tables for people on standard error."""
import json
import sys


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Report:
    """The lines of one bench. Every line has a `name`; figures have their unit in the key."""

    def __init__(self, bench):
        self.bench = bench
        self.lines = []
        self.missed = 0

    def line(self, **fields):
        fields = {k: round(v, 4) if isinstance(v, float) else v for k, v in fields.items()}
        self.lines.append(fields)
        print(json.dumps({"bench": self.bench} | fields), flush=True)

    def bound(self, of, figure, value, at_least=None, at_most=None):
        """The bound of a figure, and if this run kept it. A miss ends nothing: machines differ."""
        kept = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
        self.missed += not kept
        bounds = [f"{sign} {bound:g}" for sign, bound in ((">=", at_least), ("<=", at_most)) if bound is not None]
        self.line(name="bound", of=of, figure=figure, value=value, bound=", ".join(bounds), verdict="kept" if kept else "MISSED")

    def judge(self):
        """The last line of a bench that has bounds: those that this run kept, and missed."""
        verdicts = {f"{line['of']}: {line['figure']} {line['bound']}": line["verdict"] for line in self.lines if line["name"] == "bound"}
        if verdicts:
            self.line(name="targets", met=[target for target, verdict in verdicts.items() if verdict == "kept"],
                      missed=[target for target, verdict in verdicts.items() if verdict != "kept"])

    def print_tables(self):
        """Lines that have the same keys share a table."""
        tables = {}
        for line in self.lines:
            tables.setdefault(tuple(line), []).append(line)
        print(f"\n{self.bench}", file=sys.stderr)
        for keys, lines in tables.items():
            rows = [keys, *([_text(line[k]) for k in keys] for line in lines)]
            widths = [max(len(row[i]) for row in rows) for i in range(len(keys))]
            print("", file=sys.stderr)
            for row in rows:
                cells = [cell.ljust(w) if isinstance(lines[0][key], str) else cell.rjust(w)
                         for cell, w, key in zip(row, widths, keys)]
                print("  " + "  ".join(cells).rstrip(), file=sys.stderr)


def _text(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, float) and abs(value) < 100:
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
    return f"{value:,.0f}"

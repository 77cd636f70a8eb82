"""Results: a JSON line each, on standard output and in a file, and a table at the end."""
import json
import sys


def say(text):
    print(f"gpu: {text}", file=sys.stderr, flush=True)


class Results:
    def __init__(self):
        self.lines = []

    def line(self, section, name, value=None, unit="", ok=True, **more):
        """ok: True or False for what was to be shown, None for what could not be tried or is only told."""
        if isinstance(value, float):
            value = round(value, 4)
        self.lines.append({"section": section, "name": name, "value": value, "unit": unit, "ok": ok} | more)
        print(json.dumps(self.lines[-1]), flush=True)

    @property
    def n_failed(self):
        return sum(line["ok"] is False for line in self.lines)

    def write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        say(f"kept in {path}")

    def print_table(self):
        rows = [(line["section"], line["name"], _text(line["value"]), line["unit"],
                 {True: "ok", False: "FAILED", None: "-"}[line["ok"]], str(line.get("why", ""))) for line in self.lines]
        widths = [max(len(row[i]) for row in rows) for i in range(5)] if rows else []
        for row in rows:
            cells = [cell.rjust(w) if i == 2 else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))]
            print("  " + "  ".join([*cells, row[5]]).rstrip(), file=sys.stderr)


def _text(value):
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)

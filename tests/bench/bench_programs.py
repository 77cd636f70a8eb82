"""Programs: what unmodified programs share of a version, and how soon they compute.

tests/programs has them. A row whose package is missing names the target of make that installs it.
"""
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "programs"))

import table


def measure(report):
    table.measure(report)

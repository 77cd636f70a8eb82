"""A program for launchers: torch_program.py JSON, with the arguments of torch_launched.rank_of()."""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "libclient/python"), str(HERE)]

from torch_launched import rank_of  # noqa: E402, found by the path above

rank_of(json.loads(sys.argv[1]))

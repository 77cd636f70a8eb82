#!/usr/bin/env python3
"""
Figures of the house and their bounds: the largest knot of each program, the fullest folder, and two rates of prose.
`make lint` prints them; test_figures.py fails beyond the bounds.
"""
import pathlib
import sys
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from lint import knots, prose, sources  # noqa: E402

# Nouns in the largest knot of a program (knots.py).
KNOTS = {"sync": 6, "tcp": 4, "gloo": 6, "nccl": 2, "local": 8, "bpf": 4, "nccl-plugin": 2, "server": 11, "libclient": 5,
         "weightctl": 4, "ipc": 1}

# Source files in a folder. A flat folder has one file for each test, verb or noun; a reader finds it by its name.
FILES = 40
FLAT = ("tests/unit", "libclient/weightctl/verbs")

# Comments with such an opening, in 100 comments; the three words, in 1,000 words of comments (prose.py).
OPENINGS, WHO = 3.0, 1.0


def folders():
    """How many source files stand in each folder."""
    return Counter(str(path.parent) for path in sources.files(suffixes=(".c", ".h", ".cc", ".cu", ".py")))


def refused():
    """Places of comments and texts of programs that begin with a wh-word (prose.py)."""
    return [f"{path}:{line}: {words}" for path, line, rule, words in prose.places()
            if rule in ("wh", "text") and path.suffix not in (".md", ".scd")]


def main():
    sizes, n_files = knots.sizes(), folders()
    openings, who = prose.rates()
    fullest = max((folder for folder in n_files if folder not in FLAT), key=n_files.get)
    print("largest knots, of at most:", ", ".join(f"{program} {n} of {KNOTS[program]}" for program, n in sizes.items()))
    flat = ", ".join(f"{folder} {n_files[folder]}" for folder in FLAT if folder in n_files)
    print(f"fullest folder: {fullest}, {n_files[fullest]} source files of at most {FILES}; flat on purpose: {flat}")
    print(f"comments that begin with a wh-word, of, by, for or where: {openings:.1f} % of at most {OPENINGS}")
    print(f"who, whom, whose: {who:.1f} in 1,000 words of comments, of at most {WHO}")


if __name__ == "__main__":
    main()

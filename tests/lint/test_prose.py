"""The report on prose sees what STYLE forbids, and only in comments and texts."""
import pathlib

import pytest
from lint import prose


@pytest.mark.parametrize("comment, rules", [
    ("Of a session, what is left.", ["opening"]),
    ("for the caller", ["opening"]),
    ("What nobody asked for", ["wh", "nobody"]),
    ("To whom a version belongs", ["wh", "who"]),
    ("which the peer sent", ["wh"]),
    ("--- hello: who speaks", ["who"]),
    ("--- Who speaks ---", ["wh", "who"]),
    ("Whether the peer has told it", ["wh", "verb"]),
    ("The daemon frees his memory.", ["person"]),
    ("When the peer has left, nothing is sent. Whole pages alone are.", []),
    ("Returns the number of sessions. Fails with -EINVAL. The offset of one is what the caller passes.", []),
])
def test_rules(comment, rules):
    assert [rule for rule, _ in prose.broken(comment)] == rules


@pytest.mark.parametrize("name, text, lines", [
    ("server/x.c", 'log_error("who calls from %s "\n"is refused");\nf("what", "from what it is", "%s: %s, what is");', [1]),
    ("server/x.c", 'f("%s: what is %s?");\n/* "What it is" */ g("Size\\n -w, --who NAME  what it is\\n  who goes on");', [1, 3]),
    ("libclient/python/x.py", '"""What it is."""\nx = f"{y} is", f"what {y} is"\nz = {"what": "Whether it is"}\n', [2, 3]),
    ("tests/x.c", 'skip("what it is")', []),
    ("server/x.md", "What it is\n", []),
])
def test_texts(name, text, lines):
    assert [line for line, _, _ in prose.broken_texts(prose.ROOT / name, text)] == lines


def test_files_are_those_with_prose():
    assert prose.ROOT / "ipc/wire.h" in prose.files("ipc")
    assert all(pathlib.Path(p).suffix != ".map" for p in prose.files("libclient"))


def test_comments_of_c():
    text = 'int a; /* Of one\n * line */\nchar *s = "/* What */"; // Who\n// is it\n'
    assert list(prose.c_comments(text)) == [(1, "Of one\n line"), (3, "Who\n is it")]


def test_comments_of_python():
    text = '"""What it is."""\nx = "Who"  # Of x\n# and y\n\n\ndef f():\n    """Whether."""\n'
    assert list(prose.python_comments(text)) == [(1, "What it is."), (2, "Of x"), (3, "and y"), (7, "Whether.")]


def test_comments_of_shell_and_make():
    assert list(prose.hash_comments("#!/bin/sh\n# Of\n# two\nx=1\n\t# What\n")) == [(2, "Of\n two"), (5, "What")]

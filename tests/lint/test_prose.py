"""The report on prose sees what STYLE forbids, and only in comments and texts."""
import prose
import pytest


@pytest.mark.parametrize("comment, rules", [
    ("Of a session, what is left.", ["opening"]),
    ("What nobody asked for", ["opening", "nobody"]),
    ("To whom a version belongs", ["opening"]),
    ("Whether the peer has told it", ["opening", "verb"]),
    ("The daemon frees his memory.", ["person"]),
    ("Returns the number of sessions. Fails with -EINVAL. The offset of one is what the caller passes.", []),
])
def test_rules(comment, rules):
    assert [rule for rule, _ in prose.broken(comment)] == rules


def test_comments_of_c():
    text = 'int a; /* Of one\n * line */\nchar *s = "/* What */"; // Who\n// is it\n'
    assert list(prose.c_comments(text)) == [(1, "Of one\n line"), (3, "Who\n is it")]


def test_comments_of_python():
    text = '"""What it is."""\nx = "Who"  # Of x\n# and y\n\n\ndef f():\n    """Whether."""\n'
    assert list(prose.python_comments(text)) == [(1, "What it is."), (2, "Of x"), (3, "and y"), (7, "Whether.")]


def test_comments_of_shell_and_make():
    assert list(prose.hash_comments("#!/bin/sh\n# Of\n# two\nx=1\n\t# What\n")) == [(2, "Of\n two"), (5, "What")]

"""Figures of the house stay within their bounds, and each measure counts correctly."""
import pathlib

import pytest
from lint import figures, knots, prose


def test_no_knot_is_larger_than_agreed():
    sizes = knots.sizes()
    assert {p: (n, figures.KNOTS[p]) for p, n in sizes.items() if n > figures.KNOTS[p]} == {}, \
        "program: (nouns in the largest knot, most); tests/lint/knots.py PROGRAM says why they need each other"


def test_no_folder_has_more_files_than_agreed():
    assert {folder: n for folder, n in figures.folders().items() if n > figures.FILES and folder not in figures.FLAT} == {}, \
        f"{figures.FILES} source files are the most: such a folder wants rooms"


def test_rates_of_prose_are_as_agreed():
    openings, who = prose.rates()
    assert openings <= figures.OPENINGS and who <= figures.WHO, "tests/lint/prose.py PATH lists the places"


def test_no_comment_and_no_text_begins_with_a_wh_word():
    found = figures.refused()
    assert not found, "begin with a noun or a verb:\n" + "\n".join(found)


@pytest.mark.parametrize("graph, expected", [
    ({}, []),
    ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
    ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}, [["a", "b", "c"]]),
    ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}}, [["c", "d", "e"], ["a", "b"]]),
    ({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": {"a"}}, [["a", "b", "c", "d"]]),
    ({n: {n + 1} for n in range(5000)} | {5000: {0}}, [list(range(5001))]),
])
def test_knots_of(graph, expected):
    assert knots.knots_of(graph) == expected


def test_a_noun_needs_those_whose_functions_and_variables_it_uses():
    codes = {pathlib.Path(path): code for path, code in {
        "x/list.c": "int list_find(const struct list *l,\n\t      int n)\n{\n}\nstatic int hide(void)\n{\n}\nconst int list_sizes[2] = {0};",
        "x/list.h": "int list_find(const struct list *l, int n);",
        "x/user.c": "static int find(void)\n{\n\treturn list_find(NULL, 1);\n}\n",
        "x/user.h": "struct user {\n\tstruct hide *hide;\n};",
        "x/other.c": "void other_run(void)\n{\n\ta->list_find(other.hide, list_sizes);\n}",
    }.items()}
    graph, names = knots.graph_of(codes)
    assert {str(a): sorted(map(str, b)) for a, b in graph.items()} == {"x/list": [], "x/user": ["x/list"], "x/other": ["x/list"]}
    assert sorted(names.values()) == [["list_find"], ["list_sizes"]]


def test_each_program_has_sources_and_a_bound():
    assert {program for program in knots.PROGRAMS if not knots.files_of(program)} == set()
    assert set(knots.PROGRAMS) == set(figures.KNOTS)

"""The C parser against an independent one: a few pages of Python that follow the rules of the format.

The two must agree on a table of files, of which each rule has some on both sides, and on thousands of
random mutations of them. So must the C parser and the safetensors package.
"""
import json
import random
import re
import subprocess

import pytest
from fuzz import headers
from fuzz.headers import RULES, TABLE, judge, mutate
from lib import features

TOOL = features.BUILD / "unit/tool_safetensors"
SEED = 20240817
N_MUTATIONS = 6000
N_DIFFERENTIAL = 10_000


@pytest.fixture
def tool():
    features.require("tools", "no unit/tool_safetensors (make unit)", TOOL.exists())
    return headers.Tool(TOOL)


def names_by_offset(file):
    header = json.loads(file[8:8 + int.from_bytes(file[:8], "little")])
    header.pop("__metadata__", None)
    return sorted(header, key=lambda name: header[name]["data_offsets"])


def test_every_rule_has_a_file_that_breaks_it():
    assert {rule for rule, _ in TABLE} == set(RULES)


def test_the_oracle_finds_the_rule_each_file_breaks():
    assert [(judge(file), file[:120]) for _, file in TABLE] == [(rule, file[:120]) for rule, file in TABLE]


def test_the_parser_finds_the_rule_each_file_breaks(tool):
    found = tool.files([file for _, file in TABLE])
    assert [(rule, file[:120]) for (rule, _), (_, file) in zip(found, TABLE)] == \
        [(rule, file[:120]) for rule, file in TABLE]


def test_a_refusal_has_a_sentence_of_printable_text(tool):
    for (rule, told), (_, file) in zip(tool.files([file for _, file in TABLE]), TABLE):
        if rule:
            assert told and told.isprintable(), (told, file[:120])
        else:
            assert [name for name, *_ in told] == names_by_offset(file), file[:120]


def test_both_agree_about_random_mutations(tool):
    rng = random.Random(SEED)
    seeds = [file for _, file in TABLE if len(file) < 2000]
    files = [mutate(rng, rng.choice(seeds)) for _ in range(N_MUTATIONS)]
    differ = [(judge(file), *found, file) for file, found in zip(files, tool.files(files))
              if bool(judge(file)) != bool(found[0])]
    assert not differ, f"{len(differ)} of {len(files)}, the first: {differ[0]}"


def test_mutations_fall_on_both_sides():
    """Otherwise the agreement above would prove little."""
    rng = random.Random(SEED)
    seeds = [file for _, file in TABLE if len(file) < 2000]
    rules = [judge(mutate(rng, rng.choice(seeds))) for _ in range(N_MUTATIONS)]
    assert rules.count("") > N_MUTATIONS / 50
    assert set(rules) >= set(RULES) - {"TOO_SMALL", "HEADER_TOO_LARGE", "LIMIT"}


def test_the_parser_agrees_with_the_safetensors_package(tool, root):
    """If it does not it is stricter, for a documented reason. The long form is a command, see differential.py."""
    features.require("torch2")
    probe = subprocess.run([features.TORCH2, "-c", "import safetensors"], stderr=subprocess.PIPE)
    features.require("torch2", f"no safetensors there ({features.TORCH2} -m pip install safetensors)", not probe.returncode)
    done = subprocess.run([features.TORCH2, root / "tests/fuzz/differential.py", "--cases", str(N_DIFFERENTIAL), "--tool",
                           tool.program], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout
    counts = {result: int(n) for n, result in re.findall(r"^ *(\d+) (.*)$", done.stdout, re.M)}
    for kind, n in ("files", .8 * N_DIFFERENTIAL), ("indexes", .2 * N_DIFFERENTIAL):
        assert counts[f"{kind}: both accept, same bytes"] > n / 20 and counts[f"{kind}: both refuse"] > n / 20, counts

"""`make train-table`: it shows what was measured, and fails where columns that must be equal are not."""
import os
import subprocess

import pytest
from lib import features
from table import rows

PATIENCE_S = 600  # of hundreds of processes
# test_ddp and test_zero run the same programs.
pytestmark = [pytest.mark.plain, pytest.mark.timeout(PATIENCE_S + 20)]

GOOD = rows.Row("f32", "zero1", "fused", 2, 10, 8448, 1e-7, "b1", [{"read": 10, "written": 20, "sent": 0}] * 2,
                [{"read": 10, "written": 20, "sent": 0}] * 2, {"PARAM": 8192}, {"PARAM": 8192}, 0)
WRONG = {
    "losses": ({"difference": 1e-5}, "differ from those of a single process by 1e-05"),
    "no losses": ({"difference": float("nan")}, "differ from those of a single process by nan"),
    "losses of 16 bits": ({"dtype": "bf16", "difference": 0.03}, "by 0.03, more than 0.02"),
    "bits": ({"bits": "b2"}, "other bits"),
    "bytes": ({"counted": [GOOD.counted[0], {"read": 10, "written": 21, "sent": 0}]}, "rank 1 moved"),
    "memory": ({"pages": {"PARAM": 4096}}, "PARAM: the kernel has 4,096 bytes, and the plan 8,192"),
    "no memory": ({"pages": {}}, "PARAM: the kernel has 0 bytes"),
    "unplanned memory": ({"pages": {"PARAM": 8192, "GRAD": 4096}}, "GRAD: the kernel has 4,096 bytes, and the plan 0"),
    "sockets": ({"sent": 1}, "1 bytes went over sockets inside a node"),
    "sockets between nodes": ({"wire": (10, 11)}, "11 bytes went over sockets between nodes in a step, and the plan has 10"),
}


def run(*args):
    features.require("refs")
    return subprocess.run([features.ROOT / "tests/table/run", *args], capture_output=True, text=True, timeout=PATIENCE_S,
                          env=os.environ | {"WEIGHTD_BUILD": str(features.BUILD), "WEIGHTD_LIBRARY": str(features.LIBRARY)})


def test_table_has_a_line_for_each_strategy_and_each_skipped_check():
    done = run("--ranks", "1,2", "--steps", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    shown = [words for words in map(str.split, lines) if tuple(words[:2]) in rows.FORMS + rows.NODE_FORMS]
    alone = [row for dtype in rows.TYPES for row in rows.forms(dtype)]
    assert [tuple(words[:2]) for words in shown] == 2 * alone + len(rows.TYPES) * rows.node_forms(1, 1)
    assert all(words[3] == "A" and words[4] == words[5] and words[-2] == words[-1] for words in shown), done.stdout
    assert {words[4] == "0" for words in shown[:len(alone)]} == {True}, "one rank"
    assert {words[4] == "0" for words in shown[len(alone):]} == {False}, "two ranks"
    assert done.stdout.count("2 nodes with 1 rank each, ") == len(rows.TYPES)
    assert max(map(len, lines)) <= 80, done.stdout
    assert sum(line.startswith("skipped: ") for line in lines) >= 5 and "FLAT-8" in done.stdout


@pytest.mark.parametrize("change", WRONG)
def test_row_with_unequal_columns_is_wrong(change):
    assert GOOD.wrong("b1") == []
    members, sentence = WRONG[change]
    found = GOOD._replace(**members).wrong("b1")
    assert len(found) == 1 and sentence in found[0], found


def test_table_fails_with_the_sentences(tmp_path):
    """Rank 1 of this trainer reports more bytes than it moved."""
    features.require("refs")
    programs = tmp_path / "ref"
    programs.mkdir()
    for path in features.BUILD.iterdir():
        if path.name != "ref":
            (tmp_path / path.name).symlink_to(path)
    (programs / "oracle").symlink_to(features.BUILD / "ref/oracle")
    real = features.BUILD / "ref/train"
    (programs / "train").write_text(f'#!/bin/sh\n{real} "$@" || exit\nfor last; do [ "$before" = --report ] && report=$last; '
                                    'before=$last; done\n[ -z "$report" ] || [ "$LOCAL_RANK" = 0 ] || '
                                    'sed -i \'s/"counted": {"read": /&7/\' "$report"\n')
    (programs / "train").chmod(0o755)
    done = subprocess.run([features.ROOT / "tests/table/run", "--ranks", "2", "--types", "f32", "--steps", "3"], capture_output=True, text=True,
                          timeout=PATIENCE_S, env=os.environ | {"WEIGHTD_BUILD": str(tmp_path), "WEIGHTD_LIBRARY": str(features.LIBRARY)})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG: shared, fused, f32, 2 ranks: rank 1 moved" in done.stdout

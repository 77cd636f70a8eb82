"""Rights and costs of users on buffers of others: the tables of weightd.conf(5), also across user namespaces."""
import difflib
import re

import pytest
from integration.server import matrix, matrix_stage, userns
from integration.server.matrix import REQUESTS, ROWS
from integration.server.matrix_stage import PAGE
from lib import features, wire
from lib.features import ROOT

RENEW = "python3 tests/integration/server/matrix_stage.py --renew"
pytestmark = [pytest.mark.plain, pytest.mark.timeout(900)]  # thousands of requests one by one, and hundreds of processes


@pytest.fixture(scope="module")
def outside():
    """Columns and charges of a weightd beside its users."""
    for feature in "root", "inih", "library":
        features.require(feature)
    features.require("userns", "cannot make user namespaces with maps: the kernel or a supervisor forbids it", userns.is_available())
    return matrix_stage.measure_outside()


@pytest.fixture(scope="module")
def inside(outside):
    """Columns of a weightd in a user namespace."""
    return matrix_stage.measure_inside()


def test_the_page_shows_what_weightd_answers_and_charges(outside, inside):
    page, (columns, charges) = PAGE.read_text(), outside
    renewed = matrix_stage.renewed(page, matrix_stage.tables(inside | columns, charges))
    if renewed != page:
        changed = difflib.unified_diff(page.splitlines(), renewed.splitlines(), "weightd.conf(5)", "weightd", lineterm="")
        pytest.fail("\n".join([*changed, f"If that is meant, `{RENEW}` writes the tables anew: review them, and commit them "
                                         "with the change."]), pytrace=False)


def test_root_is_an_administrator_and_root_of_a_user_namespace_is_the_user_that_it_is_outside(outside):
    columns, _ = outside
    assert columns["root"].items() <= columns["admin"].items()
    assert columns["inside"] == columns["other"]


def test_a_weightd_in_a_user_namespace_has_the_same_users_but_root_outside(outside, inside):
    columns, _ = outside
    for who in "member", "admin":
        assert inside[who].items() <= columns[who].items()
    assert inside["root outside"].items() <= inside["unnamed"].items()
    assert inside["unnamed"]["CREATE of a new name"] == "P"


def test_every_request_and_every_verb_about_buffers_and_jobs_has_a_row():
    assert {op for row in ROWS for op in row.ops} == set(wire.OPS)
    assert len([row for row in REQUESTS if row.label.startswith("LIST ")]) == len(wire.RECORDS)
    verbs = {name for path in (ROOT / "libclient/weightctl").rglob("*.c")
             for name in re.findall(r'\.name = "([a-z][a-z ]*)",', path.read_text())}
    of_weightd = {v for v in verbs if v.split()[0] not in ("sync", "trace", "pki", "nodes", "top", "help", "version")}
    assert of_weightd - {row.label for row in matrix.VERBS} == set(matrix.ELSEWHERE)
    assert set(matrix.ELSEWHERE.values()) <= {row.label for row in REQUESTS}

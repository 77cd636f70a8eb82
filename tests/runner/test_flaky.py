"""tests/flaky: finds a test that fails by chance, and continues after an interruption."""
import re
import signal
import subprocess

import pytest
from lib.features import ROOT
from runner.test_lanes import CONFTEST

# The rounds are counted in a file, and each tenth fails: what a generator of random numbers does, without the chance
# that it does not.
ONE_IN_TEN = """
import pathlib
COUNT = pathlib.Path(__file__).with_name("count")

def test_fails_at_times():
    n = int(COUNT.read_text()) + 1 if COUNT.exists() else 1
    COUNT.write_text(str(n))
    assert n % 10 != 4

def test_passes():
    pass
"""


@pytest.fixture
def flaky(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)

    def start(text, *options):
        (tmp_path / "test_x.py").write_text(text)
        return subprocess.Popen([ROOT / "tests/flaky", "--load", "1", *options, tmp_path], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)
    return start


def test_a_test_that_fails_once_in_ten_is_found(flaky):
    run = flaky(ONE_IN_TEN, "--rounds", "10", "--seed", "7")
    out = run.communicate()[0]
    assert run.returncode == 1 and "\n    10         1  " in out and "::test_fails_at_times" in out, out
    assert "test_passes" not in out and "2 tests in 10 rounds of seed 7" in out, out
    assert out.endswith("\n19 passed, 1 failed, 0 skipped\n"), out


def test_an_interrupted_run_goes_on(flaky):
    run = flaky(ONE_IN_TEN, "--rounds", "1000")
    lines = iter(run.stdout.readline, "")
    seed = re.match(r"flaky: seed (\d+), 0 of", next(lines))[1]
    assert next(line for line in lines if line.startswith("flaky: round 2 of"))
    run.send_signal(signal.SIGINT)
    rest = run.communicate()[0]
    assert "interrupted" in rest and "2 tests in" in rest, rest
    done = int(re.search(r"2 tests in (\d+) rounds", rest)[1])
    run = flaky(ONE_IN_TEN, "--rounds", str(done + 1))
    out = run.communicate()[0]
    assert out.startswith(f"flaky: seed {seed}, {done} of {done + 1} rounds done before\n"), out
    assert out.count("flaky: round ") == 1 and f"2 tests in {done + 1} rounds of seed {seed}" in out, out


def test_the_order_is_that_of_the_seed(flaky, tmp_path):
    text = "import pathlib, pytest\n@pytest.mark.parametrize('x', range(20))\ndef test_x(x):\n" \
           f"    with open({str(tmp_path / 'order')!r}, 'a') as f: f.write(f'{{x}} ')"
    orders = []
    for seed in (1, 1, 2):
        flaky(text, "--rounds", "1", "--seed", str(seed), "--anew").communicate()
        orders.append((tmp_path / "order").read_text().split())
        (tmp_path / "order").unlink()
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2])
    assert orders[0] != [str(x) for x in range(20)]

"""The recipe of an active and a standby engine. `make bench BENCH=survive` measures it."""
import os
import signal

import pytest
from lib import features
from lib.wire import until
from systemd import failover, weights

ROUNDS = 4
REQUEST_MAX = 4096  # far less than a weight


@pytest.fixture(scope="module")
def engines(make_service):
    """A box with both engines, which each test leaves running."""
    features.require("model")
    with make_service() as machine:
        failover.install(machine, features.MODEL)
        yield machine


def restarts(engines):
    return [int(engines.show(failover.unit(name), "NRestarts")) for name in failover.NAMES]


def test_a_standby_answers_when_the_active_engine_was_killed(engines):
    kept = weights.kept(engines)
    rounds = [failover.fail_over(engines) for _ in range(ROUNDS)]
    print("ms from SIGKILL to the first answer:", *(f"{1000 * took:.0f}" for took, _ in rounds))
    assert max(read for _, read in rounds) < REQUEST_MAX
    assert weights.kept(engines) == kept


def test_systemd_finds_nothing_wrong_with_the_units(engines):
    done = engines.run("systemd-analyze", "verify", "engine.socket", *map(failover.unit, failover.NAMES))
    assert done.stdout + done.stderr == ""


def test_two_engines_that_die_at_once_come_back(engines):
    active = failover.ask(engines)["pid"]
    other = failover.standby(engines, active)
    starts = restarts(engines)
    os.kill(failover.seen_from_here(engines, active), signal.SIGKILL)
    os.kill(other, signal.SIGKILL)
    until(lambda: restarts(engines) == [n + 1 for n in starts], engines.journal_text)
    failover.standby(engines, failover.ask(engines)["pid"])


def test_stopped_engines_leave_no_state(engines):
    engines.run("systemctl", "stop", *map(failover.unit, failover.NAMES))
    assert list(engines.path("/run/engine").iterdir()) == []
    engines.run("systemctl", "start", *map(failover.unit, failover.NAMES))

"""The recipe of an active and a standby engine. `make bench BENCH=survive` measures it."""
import os
import signal

import pytest
from lib.wire import until
from systemd import failover, weights

ROUNDS = 4
REQUEST_MAX = 4096  # far less than a weight


@pytest.fixture
def engines(service, model):
    failover.install(service, model)
    return service


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
    os.kill(failover.seen_from_here(engines, active), signal.SIGKILL)
    os.kill(other, signal.SIGKILL)
    until(lambda: engines.show("engine@a.service", "NRestarts") == engines.show("engine@b.service", "NRestarts") == "1", engines.journal_text)
    failover.standby(engines, failover.ask(engines)["pid"])
    engines.run("systemctl", "stop", *map(failover.unit, failover.NAMES))
    assert list(engines.path("/run/engine").iterdir()) == []

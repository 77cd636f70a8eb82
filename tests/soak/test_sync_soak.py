"""
Random deaths among nodes: engines, agents and weightds are killed and frozen at any moment while one node
publishes and pushes on and on, and no reader of any node may ever see anything but a whole version, and none
that was not committed. When the deaths stop, all nodes have the same.

For WEIGHTD_SOAK_SECONDS (make soak SECONDS=1800), else for some seconds.
"""
import collections
import contextlib
import json
import os
import random
import signal
import threading
import time

import features
import pytest
from nodes import ABSENCE_S, IMPATIENT, MIB, Cluster, Failed, digest_of
from pki import Authority
from witness import Witness

SECONDS = float(os.environ.get("WEIGHTD_SOAK_SECONDS", 15))
KILLS_PER_S = 1
SIZE = 2 * MIB
FROZEN_S = 8  # at most; longer than what the others wait for
STATES = "committed", "failed", "unknown"


class Publisher(threading.Thread):
    """
    Publishes and pushes at node a, on and on, whatever happens to it.

    outcomes  {sha256: one of STATES}
    """

    def __init__(self, nodes):
        super().__init__(daemon=True)
        self.nodes, self.outcomes, self.over, self.seed = nodes, {}, threading.Event(), 0
        self.fault = None

    def run(self):
        try:
            while not self.over.is_set():
                self.step()
        except BaseException as e:  # of this thread; the test looks at it
            self.fault = e

    def step(self):
        import weightd
        self.seed += 1
        a = self.nodes["a"]
        try:
            a.publish("m", seed=self.seed, size=SIZE)
        except weightd.Error:  # its weightd was killed under it, or somebody repairs the buffer
            self.over.wait(0.05)
            return
        digest = digest_of(self.seed, SIZE)
        self.outcomes[digest] = "unknown"  # until we hear more: the agent may be killed in between
        try:
            push = a.start_push("m", policy=random.choice(["quorum", "all"]), max_rate=random.choice([0, 4 * MIB]))
            self.outcomes[digest] = push.end()["state"]
        except Failed:
            self.outcomes[digest] = "failed"
            self.over.wait(0.05)
        except OSError:  # the agent was killed
            self.over.wait(0.05)

    def end(self):
        self.over.set()
        self.join(120)
        assert not self.is_alive(), f"the publisher hangs\n{self.nodes.story()}"
        if self.fault:
            raise self.fault

    def count(self, state):
        return list(self.outcomes.values()).count(state)


def kill_engine(node):
    for pid in node.children("weightd-sync-tcp"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_local(node):
    for pid in node.children("weightd-sync-local"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def freeze_engine(node):
    for pid in node.children("weightd-sync-tcp"):
        with contextlib.suppress(ProcessLookupError):
            node.freeze(pid)


def kill_agent(node):
    node.thaw()
    node.kill()
    node.start(wait=False)


def freeze_agent(node):
    node.freeze()
    threading.Timer(random.uniform(0, FROZEN_S), node.thaw).start()


def kill_weightd(node):
    node.empty()


HARMS = kill_engine, kill_local, freeze_engine, kill_agent, freeze_agent, kill_weightd


def assert_whole(nodes, witnesses, publisher):
    """What readers saw was published, as it is, and of what a push failed with nobody but its publisher has any."""
    for witness in witnesses:
        for digest in {digest for _, digest in witness.saw()}:
            outcome = publisher.outcomes.get(digest)
            assert outcome, f"a reader of {witness.node} saw a mixed version\n{nodes.story()}"
            assert outcome != "failed" or witness.node.name == "a", \
                f"a reader of {witness.node} saw a version that was not committed\n{nodes.story()}"


@pytest.fixture
def nodes(tmp_path):
    features.require("sync")
    features.require("library")
    os.environ["WEIGHTD_LIBRARY"] = str(features.LIBRARY)  # for the package in this very process
    settings = {"limits": IMPATIENT | {"prepare-timeout": ABSENCE_S}}
    with Cluster(Authority(tmp_path / "ca"), 4, settings=settings) as nodes:
        yield nodes


@pytest.mark.timeout(SECONDS + 240)
def test_random_kills_among_nodes(nodes, request):
    publisher = Publisher(nodes)
    publisher.step()
    assert publisher.count("committed") == 1, nodes.story()
    witnesses = [Witness(node, "m", nice=10) for node in nodes]
    for witness in witnesses:
        nodes.wait(witness.saw, f"{witness.node} has a reader")
    harms = collections.Counter()
    publisher.start()
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            time.sleep(random.expovariate(KILLS_PER_S))  # at any moment: that is the point
            harm = random.choice(HARMS)
            harm(random.choice(list(nodes)))
            harms[harm.__name__] += 1
            assert_whole(nodes, witnesses, publisher)
        for node in nodes:
            node.thaw()
        stopped = time.monotonic()
        nodes.wait_connected()
        publisher.end()
        nodes.wait(lambda: len({node.head("m") for node in nodes}) == 1
                   and len({nodes[name].serves("m") and nodes[name].serves("m").sha256 for name in "bcd"}) == 1,
                   "what was committed is everywhere")
        converged = time.monotonic() - stopped
        nodes.rest("m")  # what repairs a buffer writes it
        nodes["a"].publish("m", seed=0, size=SIZE)
        publisher.outcomes[digest_of(0, SIZE)] = "committed"
        nodes["a"].push("m")
        nodes.settle("m", seed=0)
        for witness in witnesses:
            nodes.wait(lambda w=witness: digest_of(0, SIZE) in {digest for _, digest in w.saw()},
                       f"{witness.node} reads the last")
    finally:
        publisher.over.set()
        looks = sum(witness.end() for witness in witnesses)
    assert_whole(nodes, witnesses, publisher)
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + json.dumps(dict(name="sync-soak", seconds=SECONDS, harms=sum(harms.values()), **harms, looks=looks,
                                     **{state: publisher.count(state) for state in STATES},
                                     converged_s=round(converged, 2))))

"""
Random deaths among nodes: engines, jobs, agents and weightds are killed and frozen at any moment while one node
publishes and pushes on and on, and no reader of any node may ever see anything but a whole version, and none
that was not committed. Once a minute the deaths stop, and then all nodes have what was committed last.

For WEIGHTD_SOAK_SECONDS (make soak SECONDS=1800 ARGS='-k nodes'), else for some seconds.
"""
import collections
import contextlib
import dataclasses
import heapq
import itertools
import json
import os
import random
import signal
import struct
import subprocess
import threading
import time
import types

import pytest
from lib import features
from lib.daemon import Daemon
from lib.engine import program
from lib.nodes import ABSENCE_S, IMPATIENT, MIB, Cluster, Failed, until
from lib.pki import Authority
from lib.tagged import GRAIN, PAGE, STEPS, layout_of, means_of, tag_of, version

SECONDS = float(os.environ.get("WEIGHTD_SOAK_SECONDS", 8))
HARMS_PER_S = 1
SIZES = 8 * MIB, 16 * MIB
FROZEN_S = 8  # at most; longer than what the others wait for
SPELL_S = 60  # harms between two checks that all comes to rest
AWAY_S = 2  # until somebody starts again what was killed, at most
CONVERGE_S = 60
POLICIES = "quorum", "each", "all"
AVERAGES, PATCHES = 0.3, 0.5  # how many of all rounds average, and of all pushes differ little from the one before
COUNTERS = "reads", "bytes", "mixed", "errors", "last"
STORY, TAGS = 512, 1 << 20
HEADER = 8 * len(COUNTERS) + STORY


def publish(daemon, layout, data):
    import weightd
    with weightd.create("m", layout, socket=daemon.socket, new_layout=True) as writer:
        writer.write(0, data)
        return writer.publish()


@dataclasses.dataclass
class Round:
    """One try. `may_be`: the possible tags of its result; `own`: of versions that nodes published for themselves on the way."""
    what: str
    may_be: frozenset
    own: dict
    state: str = "unknown"
    by: str = None  # "patch": what it sent


class Publisher:
    """
    Publishes and pushes at node a, on and on from start() to end(), whatever happens to it: all of a version, or one that
    differs little from the one before. Now and then all nodes publish one, and it averages them.

    rounds     what it tried so far
    committed  the last of them of which that is so
    is_astray  nodes may have what they published for themselves
    """

    def __init__(self, nodes, averages):
        self.nodes, self.averages = nodes, averages
        self.rounds, self.committed, self.is_astray, self.next = [], None, False, GRAIN
        self.last = None  # (layout, tag that it is like) of what was pushed last
        self.over, self.thread = threading.Event(), None
        self.doubt, self.fault = None, None  # (round, number) with an unknown end; an exception

    def start(self):
        self.over.clear()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.over.is_set():
                self.step()
            self.clear_doubt()
        except BaseException as e:  # set by this thread; the test reads it
            self.fault = e

    def step(self):
        if self.averages and random.random() < AVERAGES:
            self.average()
        else:
            self.push()

    def push(self, **request):
        self.clear_doubt()
        tag = self.take(1)
        layout, like = self.last if self.last and random.random() < PATCHES else (layout_of(random.randrange(*SIZES)), tag)
        now = self.begin("push", {tag}, {"a": {tag}})
        number = self.publish("a", layout, version(tag, layout.nbytes, like))
        if not number:
            now.state = "unpublished"
            self.over.wait(0.05)
            return
        self.last = layout, like
        self.await_end(now, {"version": number, "policy": random.choice(POLICIES),
                             "max_rate": random.choice([0, 0, 16 * MIB])} | request)

    def average(self, **request):
        self.clear_doubt()
        first = self.take(STEPS[-1] + 1)
        # A repair may send a node the last committed version, after it published its own. That may be a mean itself, and a
        # mean of it would not be whole; but as nothing else has this layout, it is not averaged.
        layout = layout_of(SIZES[0], f"average-{first}")
        tags = {node.name: first + GRAIN * step for node, step in zip(self.nodes, STEPS)}
        now = self.begin("average", means_of(first), {name: {tag} for name, tag in tags.items()})
        self.is_astray = True
        published = [self.publish(name, layout, version(tag, layout.nbytes)) for name, tag in tags.items()]
        if not published[0]:
            now.state = "unpublished"
            return
        self.await_end(now, {"op": "average", "policy": random.choice(POLICIES)} | request)

    def take(self, n):
        """The first of so many tags."""
        first, self.next = self.next, self.next + GRAIN * n
        return first

    def begin(self, what, may_be, own):
        self.rounds.append(Round(what, frozenset(may_be), own))
        return self.rounds[-1]

    def publish(self, name, layout, data):
        """The version's number. None: a weightd was killed or frozen under it, or somebody repairs the buffer."""
        import weightd
        with contextlib.suppress(weightd.Error):
            return publish(self.nodes[name].daemon, layout, data)

    def await_end(self, now, request):
        try:
            push = self.nodes["a"].start_push("m", **request)
        except Failed:
            self.settle(now, "failed")
            self.over.wait(0.05)
            return
        except OSError:  # the agent was killed; maybe just after it had read the request, and then it had no time for it
            self.doubt = now, None
            return
        try:
            end = push.end()
            now.by = end.get("by")
            self.settle(now, end["state"])
        except OSError:
            self.doubt = now, max((e["number"] for e in push.events if e.get("number")), default=None)

    def settle(self, now, state):
        now.state = state
        if state == "committed":
            self.committed, self.is_astray = now, False

    def clear_doubt(self):
        """True if the try of the killed agent was committed: its commit log has every decision, and nothing else."""
        def look():
            with contextlib.suppress(OSError, Failed):  # it is away
                return [self.nodes["a"].own_head("m")]

        if self.doubt:
            now, number = self.doubt
            (head,) = until(look, "the agent of a reports its commits")
            self.settle(now, "committed" if number and head and head["number"] >= number else "failed")
            self.doubt = None

    def end(self):
        self.over.set()
        self.thread.join(180)
        assert not self.thread.is_alive(), f"the publisher hangs\n{self.nodes.story()}"
        if self.fault:
            raise self.fault

    def count(self, state, what=None):
        return sum(r.state == state and what in (None, r.what) for r in self.rounds)


class Follower:
    """A reader that never rests: see follower.c."""

    def __init__(self, node):
        self.node, self.path = node, node.folder / "sightings"
        with open(self.path, "wb") as f:
            f.truncate(HEADER + 8 * TAGS)
        self.proc = subprocess.Popen([features.BUILD / "soak/follower", self.path, "m"], env=node.daemon.env,
                                     preexec_fn=lambda: os.nice(19))

    def counters(self):
        with open(self.path, "rb") as f:
            return dict(zip(COUNTERS, struct.unpack(f"<{len(COUNTERS)}Q", f.read(8 * len(COUNTERS)))))

    def story(self):
        with open(self.path, "rb") as f:
            f.seek(8 * len(COUNTERS))
            return f.read(STORY).rstrip(b"\0").decode(errors="replace")

    def saw(self, tags):
        """{tag: how often} of those below `tags`."""
        with open(self.path, "rb") as f:
            f.seek(HEADER)
            found = struct.unpack(f"<{tags}Q", f.read(8 * tags))
        return {tag: n for tag, n in enumerate(found) if n}

    def end(self):
        early = self.proc.poll()
        self.proc.kill()
        self.proc.wait()
        assert early is None, f"the reader of {self.node} ended with {early}"


# --- Harms --------------------------------------------------------------------------------------------

class Harms:
    """
    Harms to nodes, now and later.

    done  the number of each; a harm without a victim does not count
    """

    def __init__(self, nodes):
        self.nodes, self.done, self.later, self.serial = nodes, collections.Counter(), [], itertools.count()

    def after(self, most_s, act, *args):
        heapq.heappush(self.later, (time.monotonic() + random.uniform(0, most_s), next(self.serial), act, args))

    def do_due(self, all_of_them=False):
        while self.later and (all_of_them or self.later[0][0] <= time.monotonic()):
            _, _, act, args = heapq.heappop(self.later)
            act(*args)

    def step(self):
        time.sleep(random.expovariate(HARMS_PER_S))  # at any moment: that is the point
        self.do_due()
        node, what, how = random.choice(list(self.nodes)), random.choice(WHAT), random.choice(["kill", "freeze"])
        if getattr(self, f"{how}_{what}")(node):
            self.done[f"{how}_{what}"] += 1

    def kill_child(self, node, program):
        pids = node.children(program)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def freeze(self, node, pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                node.freeze(pid)
        if pids:
            self.after(FROZEN_S, node.thaw)
        return pids

    def kill_engine(self, node):
        return is_up(node) and (self.kill_child(node, "weightd-sync-tcp") or self.kill_child(node, "weightd-sync-gloo"))

    def freeze_engine(self, node):
        return is_up(node) and self.freeze(node, node.children("weightd-sync-tcp") + node.children("weightd-sync-gloo"))

    def kill_job(self, node):
        return is_up(node) and self.kill_child(node, "weightd-sync-local")

    def freeze_job(self, node):
        return is_up(node) and self.freeze(node, node.children("weightd-sync-local"))

    def kill_agent(self, node):
        if not is_up(node):
            return False
        node.thaw()
        node.kill()
        self.after(AWAY_S, node.start, False)
        return True

    def freeze_agent(self, node):
        return is_up(node) and self.freeze(node, [node.proc.pid])

    def kill_weightd(self, node):
        if node.daemon.proc.returncode is not None:
            return False
        node.thaw()
        node.daemon.kill()
        self.after(AWAY_S, node.daemon.start)
        return True

    def freeze_weightd(self, node):
        return node.daemon.proc.returncode is None and self.freeze(node, [node.daemon.pid])


WHAT = "engine", "job", "agent", "weightd"


def is_up(node):
    if node.proc.returncode is not None:
        return False
    assert node.proc.poll() is None, f"weightd-sync of {node} ended by itself with {node.proc.returncode}\n{node.log[-9000:]}"
    assert node.daemon.proc.returncode is not None or node.daemon.proc.poll() is None, \
        f"weightd of {node} ended by itself\n{node.daemon.log[-9000:]}"
    return True


# --- The soak -----------------------------------------------------------------------------------------

def uncommitted(followers, publisher):
    """
    Versions that a reader saw though they were not committed: (node, tag, state of the round). A node's own version is
    seen there; and an average has one mean, everywhere the same.
    """
    rounds, found, means = list(publisher.rounds), [], {}
    for follower in followers:
        seen = follower.saw(publisher.next)
        for r in rounds:
            for tag in r.may_be & seen.keys():
                if tag in r.own.get(follower.node.name, ()):
                    continue
                means.setdefault(id(r), set()).add(tag)
                if r.state in ("failed", "unpublished") or len(means[id(r)]) > 1:
                    found.append((follower.node.name, tag, r.state))
        own = {tag for r in rounds for tag in r.own.get(follower.node.name, ())}
        known = own.union(*(r.may_be for r in rounds))
        found += [(follower.node.name, tag, "never") for tag in seen if tag not in known]
    return found


def assert_whole(followers, publisher):
    for follower in followers:
        found = follower.counters()
        assert not found["mixed"] and not found["errors"], \
            f"{follower.node}: {found}: {follower.story()}\n{publisher.nodes.story()}"
    assert not publisher.fault, publisher.fault
    assert not uncommitted(followers, publisher), f"{uncommitted(followers, publisher)}\n{publisher.nodes.story()}"


def tag_served(node):
    import weightd
    with contextlib.suppress(weightd.NotFound, weightd.NotPublished):
        with weightd.attach("m", socket=node.daemon.socket) as b:
            return tag_of(bytes(b.read()))
    return None


@pytest.fixture
def nodes(tmp_path, security):
    """Each with two interfaces."""
    features.require("sync")
    features.require("library")
    os.environ["WEIGHTD_LIBRARY"] = str(features.LIBRARY)  # read by the package in this very process
    settings = {"limits": IMPATIENT | {"prepare-timeout": ABSENCE_S}, "data": {"security": security}}
    with Cluster(Authority(tmp_path / "ca"), 4, settings=settings, interfaces=2) as nodes:
        yield nodes


def at_last(nodes, publisher, act):
    """Once nothing happens to nodes any more, it works for all of them."""
    def works():
        act(policy="all")
        return publisher.rounds[-1].state == "committed"

    nodes.wait(works, f"{act.__name__} works")


def converge(nodes, publisher):
    """Until all nodes serve what was committed last, once nothing happens to them any more. How long that took."""
    def look():
        tags = {tag_served(nodes[name]) for name in "bcd"}
        return len(tags) == 1 and tags <= publisher.committed.may_be

    begun = time.monotonic()
    nodes.wait_connected()
    publisher.end()
    if publisher.is_astray:
        at_last(nodes, publisher, publisher.push)  # over what nodes published for themselves
    until(look, lambda: f"all have {publisher.committed}, which was committed last, and not "
                        f"{[tag_served(node) for node in nodes]}\n{nodes.story()}", CONVERGE_S)
    took = time.monotonic() - begun
    assert took < 2 * CONVERGE_S, f"{took} s\n{nodes.story()}"
    return round(took, 2)


@pytest.mark.parametrize("at", [0, MIB])
def test_a_follower_sees_a_byte_of_another_version(tmp_path, at):
    features.require("library")
    os.environ["WEIGHTD_LIBRARY"] = str(features.LIBRARY)  # read by the package in this very process
    daemon, layout = Daemon(), layout_of(MIB)
    whole, other = (version(tag, layout.nbytes) for tag in (1, 2))
    follower = Follower(types.SimpleNamespace(daemon=daemon, folder=tmp_path, name="a"))
    try:
        publish(daemon, layout, whole)
        until(lambda: follower.counters()["reads"], "it reads")
        assert follower.counters()["mixed"] == 0 and set(follower.saw(3)) == {1}
        at = min(at, len(whole) - 8)
        publish(daemon, layout, whole[:at] + other[at:at + 8] + whole[at + 8:])
        until(lambda: follower.counters()["mixed"], "it sees the byte")
    finally:
        follower.end()
    daemon.close()


@pytest.mark.timeout(2 * SECONDS + 300)
@pytest.mark.parametrize("security", ["tls", "none"])
def test_random_kills_among_nodes(nodes, security, request):
    """Gloo, and so averages, is for the clear."""
    averages = security == "none" and program("gloo").exists()
    publisher, harms, convergences = Publisher(nodes, averages), Harms(nodes), []
    at_last(nodes, publisher, publisher.push)
    followers = [Follower(node) for node in nodes]
    left_s = SECONDS / 2
    try:
        for follower in followers:
            nodes.wait(lambda f=follower: f.counters()["reads"], f"{follower.node} has a reader")
        while left_s > 0:
            publisher.start()
            end = time.monotonic() + min(SPELL_S, left_s)
            while time.monotonic() < end:
                harms.step()
                assert_whole(followers, publisher)
            harms.do_due(all_of_them=True)
            convergences.append(converge(nodes, publisher))
            left_s -= SPELL_S
        if averages:
            at_last(nodes, publisher, publisher.average)
        at_last(nodes, publisher, publisher.push)
        for follower in followers:
            nodes.wait(lambda f=follower: f.counters()["last"] in publisher.committed.may_be, f"{follower.node} reads the last")
    finally:
        publisher.over.set()
        for follower in followers:
            follower.end()
    assert_whole(followers, publisher)
    assert publisher.count("unknown") == 0, publisher.rounds
    counters = {key: sum(follower.counters()[key] for follower in followers) for key in COUNTERS[:-1]}
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + json.dumps(dict(name="sync-soak", seconds=SECONDS / 2, security=security,
                                     pushes=publisher.count("committed", "push") + publisher.count("failed", "push"),
                                     averages=publisher.count("committed", "average") + publisher.count("failed", "average"),
                                     committed=publisher.count("committed"), averaged=publisher.count("committed", "average"),
                                     patches=sum(r.by == "patch" for r in publisher.rounds), failed=publisher.count("failed"), harms=harms.done.total(), **harms.done,
                                     **counters, uncommitted=len(uncommitted(followers, publisher)),
                                     convergences=len(convergences), max_converged_s=max(convergences))))

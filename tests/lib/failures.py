"""
Failures among nodes while a version is pushed, and the guarantees that hold for all of them: every node goes on
to serve a whole version, the old one or the new one, and none that was not committed; the operator gets the name of
the node and the cause; nothing waits longer than weightd-sync(8) has under FAILURES; and after the repair, all have
the same.

    with Stage(authority, folder, kind) as stage:
        outcome = stage.play(random.Random(1), victim="c", policy="all", moment="bytes")
        assert not outcome["faults"]
"""
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import signal
import time
import typing

from lib import features, gpu_nodes
from lib.gpus import Gpus
from lib.netns import Net
from lib.nodes import ABSENCE_S, IMPATIENT, MIB, OVER, SILENCE_S, STALL_S, Cluster, digest_of, hostile_programs, set_habits
from lib.pki import Authority
from lib.tagged import GRAIN, STEPS, layout_of, means_of, tag_of, version

SIZE = 8 * MIB
RATE = 4 * MIB
MOMENTS = "prepare", "open", "bytes", "verify", "commit"
EARLY = MOMENTS[:3]  # so early that it cannot have been decided yet
BEFORE = "before",  # it is wrong from the start
LOCAL_S = 10  # time that a weightd has for an answer, at least
TOLD_S = 1  # to compute and to send
SLOW_LINK = 20  # Mbit/s
TRIES = 3  # to be there at the moment
PHASE_AND_KEPT = r"( while .+| could not be asked); every (other node still serves m \d+\.\d+, the publisher what it has|node still serves what it had)$"  # end of the sentence about a failed push
PATCH_SHARE = 5  # a change of some of a version is one part of so many of its bytes
ABSENCE = {"prepare-timeout": ABSENCE_S}
LIMITS = IMPATIENT | ABSENCE


# --- Failures, and their repairs ----------------------------------------------------------------------

def nothing(_stage):
    pass


def kill_engine(stage):
    os.kill(stage.victim.engine(stage.engine), signal.SIGKILL)


def freeze_engine(stage):
    stage.victim.freeze(stage.victim.engine(stage.engine))


def kill_job(stage):
    """That which has the memory of the version: one that gives it, or one that takes it."""
    for pid in stage.victim.children("weightd-sync-local"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def freeze_job(stage):
    for pid in stage.victim.children("weightd-sync-local"):
        with contextlib.suppress(ProcessLookupError):
            stage.victim.freeze(pid)


def kill_agent(stage):
    stage.victim.kill()


def freeze_agent(stage):
    stage.victim.freeze()


def kill_weightd(stage):
    stage.victim.daemon.kill()


def freeze_weightd(stage):
    stage.victim.freeze(stage.victim.daemon.pid)


def kill_node(stage):
    """All that runs on it, as if it had lost its power and its network card had not."""
    node = stage.victim
    pids = [pid for name in (stage.engine, "weightd-sync-local") for pid in node.children(name)]
    node.daemon.kill()
    node.kill()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def revive(stage):
    """Kills it as systemd does; frozen processes go on."""
    node = stage.victim
    node.thaw()
    if node.daemon.proc.returncode is not None:
        node.daemon.start()
    if node.proc.returncode is not None:
        node.start()


def never_join(stage):
    stage.victim.kill()
    stage.nodes.wait(lambda: stage.nodes["a"].peers()[stage.victim.name]["state"] != "up", "a has lost it")


def cut(stage):
    stage.net.down(stage.place)


def plug(stage):
    stage.net.up(stage.place)


def slow_down(stage):
    stage.net.rate(stage.place, f"{SLOW_LINK}mbit")


def speed_up(stage):
    stage.net.rate(stage.place, None)


def fill_memory(stage):
    """Until there is no room for another version."""
    import weightd
    stage.fillers = []
    with contextlib.suppress(weightd.Error):
        while True:
            name = f"filler-{len(stage.fillers)}"
            stage.victim.publish(name, seed=0, size=MIB)
            stage.fillers.append(name)


def empty_memory(stage):
    for name in stage.fillers:
        stage.victim.ctl("rm", name)


def fill_disk(stage):
    with contextlib.suppress(OSError), open(stage.disk / "filler", "wb", buffering=0) as f:
        while True:
            f.write(bytes(4096))


def empty_disk(stage):
    (stage.disk / "filler").unlink()


def make_hostile(**habits):
    def harm(stage):
        for mark in [*stage.hostile.glob("wire-*"), *stage.hostile.glob("memory-*")]:
            mark.unlink()
        stage.set_habits(**habits)

    return harm


def make_honest(stage):
    stage.set_habits()


def present(what):
    """Gives a node a certificate that is wrong for the others, not for itself."""
    def harm(stage):
        node, authority = stage.victim, stage.nodes.authority
        if what == "expired":
            node.trust(authority.certificate, *authority.odd(f"expired-{node.name}", [f"{node.name}.weightd"], days=-1))
        elif what == "of another name":
            node.trust(authority.certificate, *authority.node("x"))
            stage.nodes.configure(node, groups={"main": {"members": "a b", "publishers": "a"}},
                                  node={"name": "x", "state": node.folder / "x"})
        else:
            node.trust(stage.strangers.certificate, *stage.strangers.node(node.name))
        node.restart()

        def is_told():
            row = stage.nodes["a"].peers()[node.name]
            return row["state"] == "down" and re.search(stage.kind.told_of_peer, str(row["why"]))

        stage.nodes.wait(is_told, f"a reports the fault of the certificate of {node}: {stage.kind.told_of_peer}")
        stage.why = stage.nodes["a"].peers()[node.name]["why"]

    return harm


def present_its_own(stage):
    node = stage.victim
    node.trust(stage.nodes.authority.certificate, *stage.nodes.authority.node(node.name))
    stage.nodes.configure(node)
    if stage.kind.name == "certificate expired":
        node.proc.send_signal(signal.SIGHUP)
    else:
        node.restart()


def replace_ca(stage):
    """It trusts no certificate any more, and the file is its only source of that."""
    stage.victim.trust(stage.strangers.certificate, *stage.strangers.node(stage.victim.name))


def put_back_ca(stage):
    stage.victim.trust(stage.nodes.authority.certificate, *stage.nodes.authority.node(stage.victim.name))


# --- Kinds --------------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Kind:
    """
    harm, mend   functions of a stage
    outcome      "survives": all get the version; "lost": all but the victim, if the policy allows that; "ends": the
                 push fails; "orphaned": no coordinator is left to report; "any": the first event decides
    waits_s      the time that others wait for the lost node, at most; None: the bytes show it
    others_first the others get their bytes before the lost node gets its last chance
    when_needed  that time begins with the first request to the victim, else with the failure
    times        the number of times that bytes are sent, at most
    hostile      "engine": the program that talks to the agent of c is no engine of ours; "wire": nor is the one that talks
                 to its neighbour, which implements only the protocol of weightd-sync-tcp
    of           the operations in which it can happen with that outcome
    engines      over which of them
    limits       of sync.conf, as far as it is about them
    """
    name: str
    harm: typing.Callable
    mend: typing.Callable
    outcome: str
    waits_s: float = 0
    when_needed: bool = False
    victims: str = "bcd"
    moments: tuple = MOMENTS
    times: int = 2
    told: str = ""
    told_of_peer: str = ""
    links: bool = False
    hostile: str = ""
    of: tuple = ("push", "average")
    engines: tuple = ("tcp", "gloo")
    memory: bool = False
    disk: bool = False
    limits: dict = dataclasses.field(default_factory=dict)
    data: dict = dataclasses.field(default_factory=dict)
    extra_s: float = 0
    others_first: bool = False

    @property
    def needs(self):
        """Properties of a stage: kinds with the same can be played on one."""
        return self.links, self.hostile, self.memory, self.disk, *sorted(self.limits.items()), *sorted(self.data.items())

    @property
    def is_known_at_once(self):
        return self.waits_s is not None and not self.when_needed


SILENT = SILENCE_S + SILENCE_S / 5  # the last heartbeat may have been answered
LOCAL = LOCAL_S + STALL_S
CLEAR = {"security": "none"}
ENGINE = "open", "bytes"
PUBLISHER = "a"
TCP, ANY = ("tcp",), ("tcp", "gloo", "nccl")
KINDS = [
    Kind("engine killed", kill_engine, nothing, "survives", victims="abcd", moments=ENGINE, engines=ANY),
    Kind("engine frozen", freeze_engine, revive, "any", 4 * STALL_S, victims="abcd", moments=ENGINE, limits=IMPATIENT,
         engines=ANY),
    Kind("engine never answers", make_hostile(deaf=True), make_honest, "lost", 3 * ABSENCE_S, victims="c",
         moments=BEFORE, hostile="engine", limits=ABSENCE, told="did not open", others_first=True),
    Kind("job killed", kill_job, nothing, "any", victims="abcd"),
    Kind("job frozen", freeze_job, revive, "any", LOCAL, when_needed=True, victims="abcd", limits=LIMITS),
    Kind("agent killed", kill_agent, revive, "lost", engines=ANY),
    Kind("agent frozen", freeze_agent, revive, "lost", SILENT, limits=IMPATIENT),
    Kind("weightd killed", kill_weightd, revive, "lost", when_needed=True),
    Kind("weightd frozen", freeze_weightd, revive, "lost", LOCAL, when_needed=True, limits=LIMITS),
    Kind("node killed", kill_node, revive, "lost"),
    Kind("publisher killed", kill_agent, revive, "orphaned", victims=PUBLISHER),
    Kind("publisher frozen", freeze_agent, revive, "orphaned", SILENT, victims=PUBLISHER, limits=IMPATIENT),
    Kind("weightd of publisher killed", kill_weightd, revive, "any", when_needed=True, victims=PUBLISHER),
    Kind("weightd of publisher frozen", freeze_weightd, revive, "any", LOCAL, when_needed=True, victims=PUBLISHER,
         limits=LIMITS),
    Kind("link down", cut, plug, "lost", SILENT, links=True, limits=IMPATIENT),
    Kind("link of publisher down", cut, plug, "ends", SILENT, victims=PUBLISHER, moments=EARLY, links=True, limits=IMPATIENT),
    Kind("link slow", slow_down, speed_up, "survives", None, moments=("prepare", "bytes"), links=True,
         extra_s=1.2 * SIZE * 8 / (SLOW_LINK * 1e6)),
    Kind("node never joins", never_join, revive, "lost", ABSENCE_S, moments=BEFORE, limits=ABSENCE),
    Kind("byte changed on the wire", make_hostile(wire=1), make_honest, "survives", None, victims="c", moments=BEFORE,
         hostile="wire", engines=TCP, data=CLEAR),
    Kind("byte changed under TLS", make_hostile(wire=1), make_honest, "survives", None, victims="c", moments=BEFORE,
         hostile="wire", engines=TCP),
    Kind("byte changed in memory", make_hostile(memory=1), make_honest, "survives", None, victims="c", moments=BEFORE,
         hostile="engine", of=("push",)),
    Kind("wire always changes", make_hostile(wire=1000), make_honest, "lost", None, victims="c", moments=BEFORE, times=8,
         hostile="wire", engines=TCP, data=CLEAR),
    Kind("memory always changes", make_hostile(memory=1000), make_honest, "lost", None, victims="c", moments=BEFORE,
         times=8, hostile="engine"),
    Kind("memory full", fill_memory, empty_memory, "lost", victims="c", moments=BEFORE, memory=True,
         told="limit|quota|memory|bytes"),
    Kind("disk full", fill_disk, empty_disk, "any", when_needed=True, victims="c", moments=BEFORE, disk=True,
         told="No space left"),
    Kind("certificate expired", present("expired"), present_its_own, "lost", ABSENCE_S, victims="c", moments=BEFORE,
         limits=ABSENCE, told_of_peer="expire"),
    Kind("certificate of another CA", present("of another CA"), present_its_own, "lost", ABSENCE_S, victims="c",
         moments=BEFORE, limits=ABSENCE, told_of_peer="issue|sign|authority|CA|chain|trust"),
    Kind("certificate of another name", present("of another name"), present_its_own, "lost", ABSENCE_S, victims="c",
         moments=BEFORE, limits=ABSENCE, told_of_peer=r"\bx\b"),
    Kind("CA replaced", replace_ca, put_back_ca, "lost", 1, told_of_peer="CA"),
]


# --- A push in which it happens -----------------------------------------------------------------------

class Stage:
    """
    Four nodes on which a kind of failure can be played, any number of times, while what is new of every other push is all of
    the version, and of the others some of its elements, over two interfaces.

    nodes   a Cluster; a publishes
    net     where the kind is one of links
    victim  of this time; `place` is its number
    """
    request, over_line = {}, SIZE  # the request, and the most of its bytes that go over each line

    def __init__(self, authority, folder, kind, limits=LIMITS, engine="tcp"):
        self.kind, self.limits, self.folder = kind, limits, pathlib.Path(folder)
        self.n_published, self.seed = 0, None
        self.engine, self.data = f"weightd-sync-{engine}", CLEAR | {"engine": engine} if engine != "tcp" else {}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stack = contextlib.ExitStack()
        try:
            self.build(authority)
        except BaseException:
            self.stack.close()
            raise

    def build(self, authority):
        kind = self.kind
        more = {"settings": {"limits": self.limits, "data": kind.data | self.data}}
        if kind.links:
            self.net = self.stack.enter_context(Net(4))
            spaces = {name: self.net.nodes[i].name for i, name in enumerate("abcd")}
            more["settings"]["data"]["trusted"] = "10.0.0.0/8"
            more |= {"addresses": [node.address for node in self.net.nodes],
                     "prefix": lambda node: ("nsenter", f"--net=/run/netns/{spaces[node.name]}", "--")}
        if kind.hostile:
            self.hostile = self.folder / "hostile"
            more["programs"] = {"c": hostile_programs(self.hostile, self.engine)}
        if kind.memory:
            (self.folder / "weightd.conf").write_text(f"[limits]\nbytes = {5 * SIZE}\n")
            more["daemons"] = {"c": ("--config", str(self.folder / "weightd.conf"))}
        if kind.disk:
            more["prefix"] = lambda node: own_disk(node.folder / "state") if node.name == "c" else ()
        more["gpus"] = self.gpus()
        if not kind.links and not kind.hostile:  # the man in the middle has one
            more["interfaces"] = 2
        self.nodes = self.stack.enter_context(Cluster(authority, 4, **more))
        self.publish()
        begun = time.monotonic()
        self.nodes["a"].push("m")
        self.usual_s = time.monotonic() - begun  # time that a push takes without its bytes
        self.settle()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        return self.stack.__exit__(*failure)

    @functools.cached_property
    def strangers(self):
        return Authority(self.folder / "other")

    @property
    def place(self):
        return "abcd".index(self.victim.name)

    @property
    def disk(self):
        """The folder of the victim's record, as it sees it."""
        return pathlib.Path(f"/proc/{self.victim.proc.pid}/root{self.victim.folder}/state")

    def set_habits(self, **habits):
        set_habits(self.hostile, self.engine, **habits)

    @property
    def waits_s(self):
        return self.kind.waits_s

    # --- contents of nodes ---

    def gpus(self):
        return {}

    def publish(self):
        self.n_published += 1
        n = self.n_published
        self.seed = (n - 1, n) if n > 1 and n % 2 else n
        self.publish_again()

    def set_scene(self, kind):
        """Another kind, in the push of a whole version next. Counts of weightd-trace are equal until a node ends."""
        if self.nodes.trace_socket and self.nodes.is_whole:
            self.nodes.assert_traced()
        self.kind, self.n_published = kind, self.n_published + (self.n_published % 2 == 0)

    def publish_again(self):
        self.nodes["a"].publish("m", seed=self.seed, size=SIZE)

    def is_published(self):
        return self.nodes["a"].has("m", seed=self.seed)

    def settle(self):
        """Until all serve what was published last."""
        self.nodes.settle("m", seed=self.seed)

    # --- one time ---

    def play(self, rng, victim, policy, moment, rate=RATE, latest=0.9, slack_s=0):
        """
        A push of another version with this failure in it; at the moment "bytes", before that part of them has arrived.
        Returns a row of the matrix.
        """
        self.victim, self.why, self.faults, self.said = self.nodes[victim], None, [], []
        push, clock, epoch, before = self.come_to(moment, rng, policy, rate, latest)
        clock.start()
        if moment != "before":
            self.kind.harm(self)
        row = {"victim": victim, "policy": policy, "moment": moment}
        if self.kind.outcome == "orphaned":
            row |= self.await_orphans(push, clock)
        else:
            row |= self.await_end(push, clock, epoch)
            row["moment"] = "after" if push.events[-1]["ended_ns"] < clock.started_ns else moment  # we were late
        served = self.look()
        mended = time.monotonic()
        self.kind.mend(self)
        if self.kind.outcome == "orphaned":
            row |= self.ask_afterwards(push, before)
        self.judge(row, served, slack_s)
        self.converge(row["state"] == "committed")
        row["t_mended_s"] = round(time.monotonic() - mended, 2)
        return row | {"nodes": {name: {"version": v, "digest_equal": v in ("old", "new")} for name, v in served.items()},
                      "faults": self.faults}

    def come_to(self, moment, rng, policy, rate, latest):
        """A push at that moment, a clock, its epoch, and what a had committed before it."""
        for _ in range(TRIES):
            before = self.nodes["a"].head("m")
            self.prepare()
            self.rate = rate // PATCH_SHARE if isinstance(self.seed, tuple) else rate
            if moment == "before":
                self.kind.harm(self)
            push = self.nodes["a"].start_push("m", **self.request, policy=policy, max_rate=self.rate)
            clock = Clock(self.nodes)
            epoch = self.await_moment(push, rng, moment, latest)
            if epoch is not None:
                return push, clock, epoch, before
            self.converge(push.end()["state"] == "committed")
        raise AssertionError(f"{TRIES} pushes were over before {moment}\n{self.nodes.story()}")

    def await_moment(self, push, rng, moment, latest):
        """The epoch in which it was seen; None: a busy machine did not show it."""
        where, part = self.victim.name, rng.uniform(0.05, latest)
        delay = rng.uniform(0, 0.02)

        def is_it(event):
            if event.get("event") != "phase" or (event["node"] != where and where != "a"):
                return False
            return event["phase"] == moment and (moment != "bytes" or event["done"] >= part * event["expected"] > 0)

        if moment == "before":
            return 0
        found = push.until(is_it)
        if found.get("end"):
            return None
        if moment == "prepare":
            time.sleep(delay)  # its progress is unknown
        return found["epoch"]

    def await_end(self, push, clock, epoch):
        push.end()
        end, took = push.events[-1], clock.seconds
        after = [e for e in push.events if e["heard"] >= clock.started]
        wrong = [e for e in after if e.get("phase") in ("failed", "absent", "unknown") or e.get("epoch", 0) > max(epoch, 1)
                 or (e.get("end") and e["state"] == "failed")]
        again = [e for e in after if e.get("epoch", 0) > max(epoch, 1) and e.get("phase") == "bytes"]
        self.said = end["nodes"]
        lost = [node for node in end["nodes"] if node["state"] not in ("committed", "planned")]
        return {"state": end["state"], "t_error_s": clock.at(wrong), "t_reform_s": clock.at(again), "t_end_s": took(),
                "starved_s": clock.starved_s(), "told": end.get("error") or "; ".join(str(node["why"]) for node in lost)}

    def await_orphans(self, push, clock):
        """A node without a coordinator has to detect that by itself."""
        members = [node for node in self.nodes if node.name != "a"]
        self.nodes.wait(lambda: all(row["phase"] in OVER for node in members for row in node.status(push.sync)),
                        "the members gave up")
        took = clock.seconds()
        whys = [row["why"] for node in members for row in node.status(push.sync) if row["why"]]
        return {"t_error_s": took, "t_reform_s": None, "t_end_s": took, "starved_s": clock.starved_s(),
                "told": "; ".join(sorted(set(whys)))}

    def ask_afterwards(self, push, before):
        """The publisher's decision, from before it was lost or after its return."""
        with contextlib.suppress(ConnectionError):  # it was killed
            return {"state": push.end()["state"]}
        push.control.socket.close()
        return {"state": "committed" if self.nodes["a"].head("m") != before else "failed"}

    def prepare(self):
        """The next version, on a alone."""
        self.old = digest_of(self.seed, SIZE)
        self.publish()
        self.new = digest_of(self.seed, SIZE)

    def word_for(self, node):
        """ "old", "new", "none", or what is neither."""
        served = node.serves("m")
        return self.word_of(served.sha256) if served else "none"

    def word_of(self, digest):
        return {self.old: "old", self.new: "new"}.get(digest, digest)

    def look(self):
        """The versions that readers get now: {node: word}."""
        served = {}
        for node in self.nodes:
            if node.daemon.proc.returncode is not None or node.daemon.pid in node.frozen:
                continue  # a request to it would wait
            served[node.name] = self.word_for(node)
        return served

    def judge(self, row, served, slack_s):
        state, kind, early = row["state"], self.kind, row["moment"] not in ("verify", "commit", "after")
        for name, what in served.items():
            if what not in ("old", "new") and not (what == "none" and name == self.victim.name):
                self.fault(f"{name} serves {what}")
            if what == "new" and state != "committed" and name != "a":
                self.fault(f"{name} serves what was not committed")
        wanted = {"survives": "committed", "ends": "failed",
                  "lost": "committed" if row["policy"] == "quorum" else "failed"}.get(kind.outcome)
        if early and wanted not in (None, state):
            self.fault(f"it {state}, and should have {wanted}")
        for node in self.said if state == "committed" else []:
            if node["state"] == "committed" and served.get(node["node"]) == "old":
                self.fault(f"{node['node']} is reported to have it, and serves the old version")
            if node["state"] != "committed" and not node["why"]:
                self.fault(f"{node['node']} is {node['state']}, without a reason")
        # A node that is cut off loses all others.
        names = "bcd" if kind.links and self.victim.name == "a" else self.victim.name
        if state == "failed" and not re.search(rf"\b[{names}]\b", row["told"]):
            self.fault(f"no message names {self.victim}: {row['told']}")
        if state == "failed" and kind.outcome != "orphaned" and not re.search(PHASE_AND_KEPT, row["told"]):
            self.fault(f"no message has the phase, or the kept version: {row['told']}")
        if kind.told and not re.search(kind.told, row["told"]):
            self.fault(f"no message has {kind.told}: {row['told']}")
        if self.why:
            row["told"] += f"; {self.why}"
        row["error_deadline_s"] = self.waits_s + TOLD_S if kind.is_known_at_once else None
        row["deadline_s"] = round(self.deadline(row), 2)
        late = max(row["t_end_s"] - row["deadline_s"],
                   (row["t_error_s"] or 0) - row["error_deadline_s"] if kind.is_known_at_once else 0)
        if late > row["starved_s"] + slack_s:
            self.fault(f"{late:.2f} s after the deadline")
        row["late_by_machine"] = 0 < late <= row["starved_s"]

    def deadline(self, row):
        """Seconds from the failure to the end of the push, by weightd-sync(8)."""
        kind, waits = self.kind, self.waits_s or 0
        moves_s = self.usual_s + (self.rate and self.over_line / self.rate)
        if kind.outcome == "orphaned" or (kind.is_known_at_once and row["state"] == "failed"):
            return waits + TOLD_S + kind.others_first * moves_s
        again = kind.times * (moves_s + kind.extra_s)
        return waits + TOLD_S + again + (kind.times - 1) * (ABSENCE_S + STALL_S)  # to stop an epoch, and to open another

    def fault(self, what):
        self.faults.append(what)

    def converge(self, committed):
        """The pushed version arrives everywhere in the end: by itself if it was committed."""
        nodes, a = self.nodes, self.nodes["a"]
        nodes.wait_connected()
        nodes.rest("m")  # a repair would be between a publish and its push
        if not committed:
            if not self.is_published():
                self.publish_again()
            # A connection that was silent for long may still break after its link is back.
            nodes.wait(lambda: a.start_push("m").end()["state"] == "committed", "it can be pushed again")
        self.settle()
        for node in nodes:
            nodes.wait(lambda node=node: not node.children(self.engine), f"{node} needs no engine any more")


class AverageStage(Stage):
    """The same, where all nodes have versions of their own, and a averages them."""
    request, over_line = {"op": "average"}, 2 * SIZE

    def __init__(self, authority, folder, kind, limits=LIMITS, engine="gloo"):
        self.tag = GRAIN
        super().__init__(authority, folder, kind, limits, engine)

    def prepare(self):
        self.own = {node.name: self.tag + GRAIN * step for node, step in zip(self.nodes, STEPS)}
        self.means, self.tag = means_of(self.tag), self.tag + GRAIN * (STEPS[-1] + 1)
        for node in self.nodes:
            publish_tagged(node, self.own[node.name])

    def word_for(self, node):
        data = node.read("m")
        if data is None:
            return "none"
        tag = tag_of(data)
        if data != version(tag, len(data)):
            return f"a mix that begins as {tag}"
        return "old" if tag == self.own[node.name] else "new" if tag in self.means else f"{tag}"

    def look(self):
        """Nor may two nodes serve means of other ones."""
        served = super().look()
        means = {tag_of(self.nodes[name].read("m")) for name, what in served.items() if what == "new"}
        return served if len(means) < 2 else {name: f"one of {means}" for name in served}

    def converge(self, committed):
        """The average arrives everywhere, unless no node that has it is alive; then the next push does."""
        nodes, a = self.nodes, self.nodes["a"]
        nodes.wait_connected()
        if committed and self.kind.outcome != "orphaned":
            nodes.wait(lambda: set(self.look().values()) == {"new"}, "all have the mean")

        def push():
            with contextlib.suppress(weightd_error()):  # somebody repairs the buffer
                self.publish()
                return a.start_push("m").end()["state"] == "committed"

        nodes.wait(push, "something can be pushed again")
        self.settle()
        for node in nodes:
            nodes.wait(lambda node=node: not node.children(self.engine), f"{node} needs no engine any more")


class RingStage(Stage):
    """The same for versions on GPUs, which go over NCCL: stand-ins both."""

    def __init__(self, authority, folder, kind, limits=LIMITS, engine="nccl"):
        super().__init__(authority, folder, kind, limits, engine)

    def gpus(self):
        made = {name: self.stack.enter_context(contextlib.closing(Gpus())) for name in "abcd"}
        for gpus in made.values():
            gpus.env = gpus.env_with_nccl(FAKE_NCCL_STATE=str(self.folder))
        return made

    def publish(self):
        self.n_published += 1
        self.seed = self.n_published
        self.publish_again()

    def publish_again(self):
        gpu_nodes.publish(self.nodes["a"], self.seed, SIZE)

    def is_published(self):
        return gpu_nodes.sha256(self.nodes["a"]) == digest_of(self.seed, SIZE)

    def settle(self):
        gpu_nodes.assert_all_serve(self.nodes, digest_of(self.seed, SIZE))

    @property
    def waits_s(self):
        """A driver and NCCL have longer until they are open."""
        return super().waits_s and max(super().waits_s, ABSENCE_S + 5 * STALL_S)

    def word_for(self, node):
        return self.word_of(gpu_nodes.sha256(node)) if gpu_nodes.show(node) else "none"

    def await_moment(self, push, *when):
        epoch = super().await_moment(push, *when)
        plans = [event for event in push.events if event.get("event") == "plan"]  # none yet, if it is still prepared
        assert not plans or plans[0]["engine"] == "nccl", plans
        return epoch


def stage_of(operation, engine):
    return AverageStage if operation == "average" else RingStage if engine == "nccl" else Stage


def weightd_error():
    import weightd
    return weightd.Error


def publish_tagged(node, tag):
    import weightd
    layout = layout_of(SIZE)
    with weightd.create("m", layout, socket=node.daemon.socket, new_layout=True) as writer:
        writer.write(0, version(tag, layout.nbytes))
        writer.publish()


class Clock:
    """Time since the failure; and the time that the processes concerned waited for a processor meanwhile, all in all."""

    def __init__(self, nodes):
        self.pids = ["self", *(pid for node in nodes for pid in (node.proc.pid, node.daemon.pid))]

    def waited(self):
        total = 0
        for pid in self.pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[1])
        return total / 1e9

    def start(self):
        self.started, self.started_ns, self.before = time.monotonic(), time.time_ns(), self.waited()

    def seconds(self):
        return round(time.monotonic() - self.started, 2)

    def at(self, events):
        return round(events[0]["heard"] - self.started, 2) if events else None

    def starved_s(self):
        return round(max(0, self.waited() - self.before), 2)


def own_disk(folder):
    """The words before a program that sees a small disk in place of a folder, which ends with it."""
    return ("unshare", "--mount", "sh", "-c",
            f"mkdir -p -m 700 {folder} && mount -t tmpfs -o size=256k,mode=700 none {folder} && exec \"$@\"", "sh")

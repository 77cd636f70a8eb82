"""weightd-sync under a journal: log records have fields, and no agent waits for a journal that is full."""
import functools
import os
import pathlib
import re
import signal
import socket

import pytest
from lib.features import ROOT
from lib.netns import Net
from lib.nodes import CONTROL_PORT, MIB, Failed, hostile_programs
from lib.tracing import inside

from integration.server.test_audit import make_journal  # noqa: F401: a fixture

KINDS = dict(re.findall(r'\[LOG_FIELDS_\w+\] = \{"(\w+)",\s*"([0-9a-f]{32})"', (ROOT / "server/sync/net/log_fields.c").read_text()))


@pytest.fixture(autouse=True)
def root_only(require):
    require("root")  # the test needs a /run of its own


@pytest.fixture
def journal(require, make_journal):  # noqa: F811
    """One with room for all entries until the test reads; others have it for some 10 entries."""
    def roomy(*kind):
        pathlib.Path("/proc/sys/net/unix/max_dgram_qlen").write_text("1000")  # that of the namespace
        return socket.socket(*kind)

    require("netns")
    with Net(1) as net:
        return make_journal(make_socket=functools.partial(inside, net.nodes[0].name, roomy))


class Story:
    """The log records of all agents until now."""

    def __init__(self, journal):
        self.journal, self.entries = journal, []

    def read(self):
        self.entries += [e for e in self.journal.entries() if e.get("SYSLOG_IDENTIFIER") == "weightd-sync"]
        return self.entries

    def find(self, nodes, **fields):
        """Waits for one that has these fields."""
        def look():
            return [e for e in self.read() if all(e.get(key) == value for key, value in fields.items())]

        return nodes.wait(look, lambda: f"an entry has {fields}: {self.entries}")[0]


def test_the_journal_is_told_the_story_of_a_sync(make_nodes, journal):
    story = Story(journal)
    # Long enough for an engine to open on a busy machine, and too short for the node that does not answer below.
    nodes = make_nodes(2, prefix=lambda node: journal.prefix, settings={"limits": {"prepare-timeout": 5}})
    for name, peer in ("ab", "ba"):
        up = story.find(nodes, WEIGHTD_ACTION="up", NODE=name, PEER=peer)
        assert (up["PRIORITY"], "SYNC_ID" in up) == ("6", False), up
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    of_sync = {"SYNC_ID": end["sync"], "WEIGHTD_BUFFER": "m"}
    asked = story.find(nodes, WEIGHTD_ACTION="asked", NODE="a", **of_sync)
    assert asked["WEIGHTD_UID"] == "0" and asked["MESSAGE"].endswith("a push of 'm' was asked for by uid 0"), asked
    for name in "ab":
        done = story.find(nodes, WEIGHTD_ACTION="committed", NODE=name, **of_sync)
        assert (done["WEIGHTD_VERSION"], done["PRIORITY"]) == (f"{end['term']}.{end['number']}", "6"), done
        assert "PHASE" not in done, done

    nodes["b"].stop()
    down = story.find(nodes, WEIGHTD_ACTION="down", NODE="a", PEER="b")
    assert down["PRIORITY"] == "4" and "b is down" in down["MESSAGE"], down
    nodes["a"].publish("m", seed=2)
    push = nodes["a"].start_push("m")
    sentence = push.failed()
    failed = story.find(nodes, WEIGHTD_ACTION="failed", NODE="a", SYNC_ID=push.sync)
    assert (failed["MESSAGE"], failed["PHASE"], failed["PRIORITY"]) == (sentence, "prepare", "4"), failed
    with pytest.raises(Failed):
        nodes["a"].ask("cancel", sync=push.sync)
    for entry in story.read():
        assert KINDS[entry["WEIGHTD_ACTION"]] == entry["MESSAGE_ID"], entry
    assert "listens on" in nodes["a"].log and sentence not in nodes["a"].log, "lines without fields go to stderr, these not"


def test_what_went_wrong_is_told_with_whom_it_is_about(make_nodes, journal, tmp_path):
    story = Story(journal)
    nodes = make_nodes(2, prefix=lambda node: journal.prefix, settings={"data": {"security": "none"}},
                       programs={"b": hostile_programs(tmp_path / "hostile", wire=1)})
    nodes["a"].publish("m", seed=1)
    nodes["a"].ctl("sync", "push", "m", "--dry-run")
    story.find(nodes, WEIGHTD_ACTION="planned", NODE="a", WEIGHTD_BUFFER="m", PRIORITY="6")
    sync = nodes["a"].push("m")["sync"]
    story.find(nodes, WEIGHTD_ACTION="corrupt", NODE="a", SYNC_ID=sync, PEER="b", PRIORITY="4")

    nodes["a"].publish("m", seed=2, size=8 * MIB)
    push = nodes["a"].start_push("m", max_rate=MIB // 2)
    push.moving("b")
    os.kill(nodes["a"].engine(), signal.SIGKILL)
    broken = story.find(nodes, WEIGHTD_ACTION="broken", NODE="a", SYNC_ID=push.sync, PRIORITY="4")
    # The agent that notices it first tells why: that of a, or that of b, whose engine has lost its peer.
    assert re.search(r"epoch 1 broke: (the engine of a ended|b \(a -> b\): )", broken["MESSAGE"]), broken
    nodes["a"].ask("cancel", sync=push.sync)
    push.failed()
    cancelled = story.find(nodes, WEIGHTD_ACTION="cancelled", NODE="a", SYNC_ID=push.sync)
    assert (cancelled["WEIGHTD_UID"], cancelled["PRIORITY"]) == ("0", "6"), cancelled

    with socket.create_connection((nodes["b"].address, CONTROL_PORT)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        refused = story.find(nodes, WEIGHTD_ACTION="refused", NODE="b", PRIORITY="4")
    assert "127.0.0.1" in refused["MESSAGE"] and "SYNC_ID" not in refused, refused
    for entry in story.read():
        assert KINDS[entry["WEIGHTD_ACTION"]] == entry["MESSAGE_ID"], entry


def test_a_journal_that_does_not_read_holds_nobody_up(make_nodes, make_journal):  # noqa: F811
    """It receives the records once it reads."""
    journal = make_journal()
    nodes = make_nodes(2, prefix=lambda node: journal.prefix)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                filler.sendto(b"MESSAGE=x\n", journal.socket.getsockname())
    nodes["a"].publish("m", seed=1)
    sync = nodes["a"].push("m")["sync"]
    done = Story(journal).find(nodes, WEIGHTD_ACTION="committed", NODE="a", SYNC_ID=sync)
    assert done["MESSAGE"] == f"sync {sync}: push of m: committed", done


def test_every_kind_is_in_the_man_page():
    page = (ROOT / "packaging/man/weightd-sync.8.scd").read_text()
    assert len(KINDS) == 11 == len(set(KINDS.values()))
    assert [k for k, uuid in KINDS.items() if f"*{k}* ({uuid})" not in page] == []

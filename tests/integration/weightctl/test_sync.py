"""weightctl nodes and weightctl sync, against an agent that sends a test's answers."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from lib.daemon import SANITIZER_EXIT, copy_for_others, environment
from lib.features import BUILD

from integration.weightctl.test_weightctl import HOSTILE, UNPRINTABLE, complete, in_terminal, n_columns, screen
from lib.fake_agent import FakeAgent, pack

END = {"end": True}
SYNC, OTHER = "5f3a9c0011223344", "5f3a9c00aabbccdd"
GIB = 1 << 30
NOW_NS = time.time_ns()

NODES = [
    {"node": "a", "address": "10.0.0.1:7400", "state": "self", "since_ns": NOW_NS - 3 * 10**9, "why": None, "rtt_us": None,
     "heads": [{"buffer": "llama-8b", "group": "main", "term": 1, "number": 7, "root": "0" * 64, "version": 3,
                "state": "serving"}]},
    {"node": "b", "address": "10.0.0.2:7400", "state": "up", "since_ns": NOW_NS - 3600 * 10**9, "why": None, "rtt_us": 212,
     "heads": [{"buffer": "llama-8b", "group": "main", "term": 1, "number": 7, "root": "0" * 64}]},
    {"node": "c", "address": "[fd00::3]:7400", "state": "down", "since_ns": NOW_NS - 10**9, "rtt_us": None,
     "why": "its certificate has expired on 2026-11-21", "heads": []},
]


def part(node="b", **more):
    return {"sync": SYNC, "kind": "push", "buffer": "llama-8b-instruct", "group": "main", "term": 1, "number": 7,
            "role": "publisher", "node": node, "phase": "bytes", "done": GIB // 4, "expected": GIB,
            "rate": 118_000_000, "epoch": 1, "why": None, "from": "a", "slow": False} | more


def phase(node, name, done=0, expected=0, **more):
    return {"event": "phase", "sync": SYNC, "kind": "push", "buffer": "llama", "group": "main", "role": "publisher",
            "node": node, "phase": name, "epoch": 1, "done": done, "expected": expected, "rate": 0, "why": None} | more


def outcome(state="committed", nodes=("a", "b", "c"), **more):
    return {"event": "end", "sync": SYNC, "kind": "push", "buffer": "llama", "group": "main", "role": "publisher",
            "state": state, "term": 1, "number": 7, "planned": GIB - 9, "payload": GIB - 9, "bytes": GIB, "kernel": None,
            "started_ns": NOW_NS - 10**9, "ended_ns": NOW_NS,
            "nodes": [{"node": n, "state": state, "version": 3, "why": None} for n in nodes], "end": True} | more


STEPS = ("attach", "prepare", "ready", "open", "bytes", "moved", "verify", "verified", "commit", "committed")
PUSHED = [{"sync": SYNC}, *(phase(n, s, GIB // 2 * (i > 3), GIB) for i, s in enumerate(STEPS) for n in "bc"), outcome()]


@pytest.fixture
def make_agent():
    agents = []

    def make(**answers):
        agents.append(FakeAgent(**answers))
        return agents[-1]

    yield make
    for agent in agents:
        agent.close()


def command(args):
    return [BUILD / "weightctl", *map(str, args)]


def run_ctl(path, *args, check=True, timeout=60, **kw):
    done = subprocess.run(command(args), env=environment(WEIGHTD_SYNC_SOCKET=str(path)), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=timeout, **kw)
    assert done.returncode not in (SANITIZER_EXIT, -signal.SIGABRT, -signal.SIGSEGV), done.stderr
    assert not check or done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def ctl(agent, *args, **kw):
    return run_ctl(agent.path, *args, **kw)


def ctl_json(agent, *args):
    return json.loads(ctl(agent, *args, "--json").stdout)


def refused(agent, *args, **kw):
    """The one sentence of a failure."""
    done = ctl(agent, *args, check=False, **kw)
    assert (done.returncode, done.stdout) == (1, ""), f"{done.returncode}: {done.stdout}{done.stderr}"
    assert re.fullmatch(r"(weightctl: [^\n]*\n)+", done.stderr) and not UNPRINTABLE.search(done.stderr), done.stderr
    return done.stderr


class Terminal:
    """The interface that in_terminal() of test_weightctl uses of a daemon."""

    def __init__(self, agent):
        self.env = environment(WEIGHTD_SYNC_SOCKET=agent.path)
        self.ctl_command = command


# --- nodes ----------------------------------------------------------------------------------------


def test_nodes(make_agent):
    text = ctl(make_agent(nodes=[*NODES, END]), "nodes").stdout
    table, _, sentences = text.partition("\n\n")
    head, *rows = [line.split() for line in table.splitlines()]
    assert head == ["NODE", "ADDRESS", "STATE", "SINCE", "RTT"]
    assert [r[:3] for r in rows] == [["a", "10.0.0.1:7400", "self"], ["b", "10.0.0.2:7400", "up"],
                                     ["c", "[fd00::3]:7400", "down"]]
    assert rows[0][-1] == "-" and rows[1][-2:] == ["212", "us"]
    assert sentences == "c: its certificate has expired on 2026-11-21\n"


def test_nodes_tell_what_they_have(make_agent):
    text = ctl(make_agent(nodes=[*NODES, END]), "nodes", "--buffers").stdout
    rows = [line.split() for line in text.split("\n\n")[-1].splitlines()]
    assert rows == [["NODE", "BUFFER", "GROUP", "VERSION", "LOCAL", "STATE"],
                    ["a", "llama-8b", "main", "1.7", "3", "serving"], ["b", "llama-8b", "main", "1.7", "-", "-"]]


def test_nodes_json(make_agent):
    said = ctl_json(make_agent(nodes=[*NODES, END]), "nodes")
    assert [n["node"] for n in said["nodes"]] == ["a", "b", "c"]
    assert said["nodes"][1]["rtt_ns"] == 212_000 and said["nodes"][0]["rtt_ns"] is None
    assert said["nodes"][2]["why"] == "its certificate has expired on 2026-11-21"
    assert [(b["node"], b["version"], b["term"], b["number"], b["local"]) for b in said["buffers"]] == \
        [("a", "1.7", 1, 7, 3), ("b", "1.7", 1, 7, None)]


def test_nodes_and_groups_are_completed(make_agent):
    there = Terminal(make_agent(nodes=[*NODES, END]))
    assert complete(there, "weightctl sync reshard --ranks ") == ["a", "b", "c"]
    assert complete(there, "weightctl sync scatter --onto b,") == ["b,a", "b,c"]
    assert complete(there, "weightctl sync push m --group ma") == ["main"]


def test_syncs_are_completed(make_agent):
    there = Terminal(make_agent(status=[part(), part("c"), END], history=[PAST | {"sync": OTHER}, END]))
    assert complete(there, "weightctl sync cancel ") == complete(there, "weightctl trace messages ") == [SYNC]
    assert complete(there, "weightctl trace explain ") == sorted([SYNC, OTHER])
    assert complete(there, f"weightctl trace explain {OTHER[:9]}") == [OTHER]


def test_nodes_of_nobody(make_agent):
    agent = make_agent(nodes=[END])
    assert ctl(agent, "nodes").stdout == ""
    assert ctl_json(agent, "nodes") == {"nodes": [], "buffers": []}


def test_nodes_that_have_nothing_end_with_their_table(make_agent):
    agent = make_agent(nodes=[NODES[0] | {"heads": []}, END])
    assert ctl(agent, "nodes", "--buffers").stdout.count("\n") == 2


# --- sync status ----------------------------------------------------------------------------------


def test_status(make_agent):
    agent = make_agent(status=[part(by="patch"), part("c", rate=0, done=0, slow=True, **{"from": "b"}), END])
    text = ctl(agent, "sync", "status").stdout
    head, first, second = [line.split() for line in text.partition("\n\n")[0].splitlines()]
    assert head == ["SYNC", "BUFFER", "VERSION", "NODE", "PHASE", "BY", "DONE", "EXPECTED", "RATE", "LEFT", "FROM"]
    assert first == [SYNC, "llama-8b-instruct", "1.7", "b", "bytes", "patch", "268.4", "MB", "1.1", "GB", "118.0", "MB/s", "0:07", "a"]
    assert second[-3:] == ["-", "-", "b"]
    assert text.endswith(f"\n\n{SYNC} c: receives it slowly from b; nodes behind it wait\n")
    assert agent.requests == [{"op": "status", "sync": None}]


def test_status_shows_what_is_under_way_else_the_last(make_agent):
    over = [part(phase="committed"), part("c", phase="absent", why="c is not connected")]
    agent = make_agent(status=[*over, part(sync=OTHER), END])
    assert [row["sync"] for row in ctl_json(agent, "sync", "status")["syncs"]] == [OTHER]
    agent.answers["status"] = [part(sync=OTHER, phase="failed", why=f"sync {OTHER}: x was not committed"), *over, END]
    assert [row["node"] for row in ctl_json(agent, "sync", "status")["syncs"]] == ["b", "c"]
    assert ctl(agent, "sync", "status").stdout.endswith(f"\n\n{SYNC} c: c is not connected\n")
    assert f"\n\nsync {OTHER}: x was not committed\n" in ctl(agent, "sync", "status", OTHER).stdout


def test_status_of_what_nobody_knows_is_no_empty_table(make_agent):
    agent = make_agent(status=[END])
    assert ctl(agent, "sync", "status").stdout == ""
    for args in (), ("--json",), ("-w",):
        assert f"has no sync {SYNC} in progress" in refused(agent, "sync", "status", SYNC, *args)


def test_status_json(make_agent):
    agent = make_agent(status=[part(why="it is slow", size=16 * GIB, changed=GIB, by="leaves"), END])
    [said] = ctl_json(agent, "sync", "status", SYNC)["syncs"]
    assert said == {"sync": SYNC, "kind": "push", "buffer": "llama-8b-instruct", "group": "main", "version": "1.7", "term": 1,
                    "number": 7, "role": "publisher", "node": "b", "phase": "bytes", "done": GIB // 4, "expected": GIB,
                    "rate": 118_000_000, "left_ns": said["left_ns"], "from": "a", "slow": False, "epoch": 1,
                    "size": 16 * GIB, "changed": GIB, "share_percent": 6.25, "why": "it is slow", "by": "leaves", "patch": None,
                    "differ": None, "density_percent": None}
    assert 6 * 10**9 < said["left_ns"] < 9 * 10**9
    assert agent.requests == [{"op": "status", "sync": SYNC}]


def test_status_of_a_patch_says_how_dense_it_is(make_agent):
    agent = make_agent(status=[part(size=16 * GIB, changed=16 * GIB, by="patch", patch=GIB // 2, differ=GIB // 4), END])
    [said] = ctl_json(agent, "sync", "status", SYNC)["syncs"]
    assert {key: said[key] for key in ("by", "patch", "differ", "share_percent", "density_percent")} == {
        "by": "patch", "patch": GIB // 2, "differ": GIB // 4, "share_percent": 3.125, "density_percent": 1.5625}
    assert ctl(agent, "sync", "status", "-n", "-o", "SHARE,DENSITY").stdout.split() == ["3.1%", "1.6%"]


def test_a_sync_is_named_by_its_first_digits(make_agent):
    agent = make_agent(status=[part(), part(sync=OTHER), END], cancel=[END])
    assert "several syncs begin with '5f3a'" in refused(agent, "sync", "cancel", "5f3a")
    assert "no sync begins with 'ff'" in refused(agent, "sync", "cancel", "ff")
    ctl(agent, "sync", "cancel", "5f3a9c00a")
    assert agent.requests[-1] == {"op": "cancel", "sync": OTHER}


def test_status_is_drawn_in_place_until_all_have_ended(make_agent):
    rounds = iter([["bytes", "bytes"], ["bytes", "moved"], ["committed", "failed"]])

    def status(connection, _):
        for node, name in zip("bc", next(rounds)):
            connection.send(pack(part(node, phase=name, why="the disk is full" if name == "failed" else None)))
        connection.send(pack(END))

    exit_status, text = in_terminal(Terminal(make_agent(status=status)), "sync", "status", "-w")
    assert exit_status == 0 and text.count("PHASE") == 3
    assert re.findall(r"\x1b\[(\d+)A", text) == ["3", "3"]
    last = text.split("\x1b[J")[-1]
    assert last.split("\r\n\r\n")[1] == f"{SYNC} c: the disk is full\r\n"


def test_status_on_a_low_and_narrow_terminal_stays_inside(make_agent):
    rounds = iter(["bytes", "committed"])

    def status(connection, _):
        name = next(rounds)
        for i in range(100):
            connection.send(pack(part(f"node-{i}-of-many", phase=name, buffer="埋め込み" * 20, why="because " * 30)))
        connection.send(pack(END))

    _, text = in_terminal(Terminal(make_agent(status=status)), "sync", "status", "-w", columns=40)
    for drawn in re.split(r"\x1b\[\d+A\r\x1b\[J|\r\x1b\[J", text)[1:]:
        lines = drawn.split("\r\n")
        assert len(lines) - 1 <= 23 and re.fullmatch(r"\(and \d+ more\)", lines[-2]), lines[-3:]
        assert [x for x in lines if n_columns(x) > 40] == []
    assert re.findall(r"\x1b\[(\d+)A", text) == ["23"]


def test_status_without_a_terminal_waits_and_prints_once(make_agent):
    rounds = iter(["bytes", "verify", "committed"])
    agent = make_agent(status=lambda c, _: [c.send(pack(p)) for p in (part(phase=next(rounds)), END)])
    text = ctl(agent, "sync", "status", "--watch").stdout
    assert text.count("PHASE") == 1 and "committed" in text and len(agent.requests) == 3


# --- sync history, cancel, watch -------------------------------------------------------------------


PAST = {"sync": SYNC, "kind": "push", "buffer": "llama", "group": "main", "term": 1, "number": 7, "started_ns": NOW_NS - 9 * 10**9,
        "ended_ns": NOW_NS, "state": "committed", "nodes": 4, "bytes": GIB, "size": 16 * GIB, "changed": GIB // 3,
        "by": "leaves", "why": None}


def test_history(make_agent):
    failed = PAST | {"sync": OTHER, "kind": "repair", "state": "failed", "why": "b did not answer for 5 s", "nodes": ["a", "b"]}
    agent = make_agent(history=[PAST, failed, END])
    text = ctl(agent, "sync", "history").stdout
    head, first, second = [line.split() for line in text.partition("\n\n")[0].splitlines()]
    assert head == ["SYNC", "KIND", "BUFFER", "VERSION", "STATE", "NODES", "BYTES", "SHARE", "AGE", "TOOK"]
    assert first[:9] == [SYNC, "push", "llama", "1.7", "committed", "4", "1.1", "GB", "2.1%"] and first[-2:] == ["9.0", "s"]
    assert second[4:6] == ["failed", "2"]
    assert text.endswith(f"\n\n{OTHER}: b did not answer for 5 s\n")
    assert [s["took_ns"] for s in ctl_json(agent, "sync", "history", "-c", "7")["syncs"]] == [9 * 10**9] * 2
    assert [r["n"] for r in agent.requests] == [20, 7]


def test_what_is_no_version_of_the_group_has_no_term(make_agent):
    row = PAST | {"kind": "reshard", "term": 0, "number": 0}
    past = ctl_json(make_agent(history=[row, END]), "sync", "history")["syncs"][0]
    under_way = ctl_json(make_agent(status=[part(kind="reshard", term=0, number=0), END]), "sync", "status")["syncs"][0]
    for said in past, under_way:
        assert (said["version"], said["term"], said["number"]) == (None, None, None)


def test_cancel_tells_why_not(make_agent):
    agent = make_agent(cancel=[{"end": True, "error": "sync is for members of the group weightd-ops", "code": "permission"}])
    assert refused(agent, "sync", "cancel", SYNC) == "weightctl: sync is for members of the group weightd-ops\n"


WATCHING = {"event": "watching"}
EVENTS = [phase("b", "bytes", GIB // 4, GIB, rate=118_000_000), {"event": "log", "level": "warning", "text": "c is slow"},
          {**outcome("failed", why="b is gone", error="b is gone"), "end": None}, {"event": "new", "what": "埋\x1b"}]


def watch(connection, _):
    for event in (WATCHING, *EVENTS):
        connection.send(pack(event))


def test_watch_writes_lines(make_agent):
    agent = make_agent(watch=lambda c, r: [watch(c, r), c.send(pack(END))])
    done = ctl(agent, "sync", "watch")
    assert done.stderr == "weightctl: watching\n"
    lines = [re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ(.*)", line).group(1) for line in done.stdout.splitlines()]
    assert lines[:3] == [f"  {SYNC}  llama  b: bytes, 268.4 MB of 1.1 GB, 118.0 MB/s", "  warning: c is slow",
                         f"  {SYNC}  llama 1.7  failed: b is gone"]
    lines = ctl(agent, "sync", "watch", "--json", "-q").stdout.splitlines()
    assert [json.loads(line) for line in lines] == EVENTS and lines[3].isascii() and "\\u001B" in lines[3]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_watch_ends_by_a_signal(make_agent, sig):
    agent = make_agent(watch=watch)
    with subprocess.Popen(command(["sync", "watch", "-q"]), env=environment(WEIGHTD_SYNC_SOCKET=agent.path),
                          stdout=subprocess.PIPE) as proc:
        assert b"llama" in proc.stdout.readline()
        proc.send_signal(sig)
        assert proc.wait(60) == 0


def test_watch_ends_when_its_reader_goes_away(make_agent):
    agent = make_agent(watch=watch)
    with subprocess.Popen(command(["sync", "watch", "-q"]), env=environment(WEIGHTD_SYNC_SOCKET=agent.path),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as proc:
        assert b"llama" in proc.stdout.readline()
        proc.stdout.close()
        assert proc.wait(60) in (1, -signal.SIGPIPE) and proc.stderr.read() == b""


# --- sync push ------------------------------------------------------------------------------------


def test_push(make_agent):
    agent = make_agent(push=PUSHED)
    done = ctl(agent, "sync", "push", "llama@3", "--group", "main", "--policy", "quorum", "--max-rate", "1G")
    assert re.fullmatch(r"llama 1\.7 on 3 of 3 nodes in [^\n]*s\n", done.stdout), done.stdout
    assert "llama: sending 50 % (" in done.stderr
    assert agent.requests == [{"op": "push", "buffer": "llama", "group": "main", "version": 3, "policy": "quorum",
                               "max_rate": 10**9, "wait": True, "slow": False}]


@pytest.mark.parametrize("n_bytes, changed, said", [
    (16 * GIB, GIB // 3, ", 2.1% of 17.2 GB"), (GIB, GIB, ", 100.0% of 1.1 GB"), (GIB, 0, ", 0.0% of 1.1 GB"),
    (1 << 40, 1, ", <0.1% of 1.1 TB"), (1 << 40, (1 << 40) - 1, ", >99.9% of 1.1 TB"), (GIB, None, ""), (GIB, 2 * GIB, ""), (0, 0, ""),
])
def test_what_changed_is_said(make_agent, n_bytes, changed, said):
    agent = make_agent(push=[{"sync": SYNC}, outcome(size=n_bytes, changed=changed)])
    done = ctl(agent, "sync", "push", "llama")
    assert re.fullmatch(r"llama 1\.7 on 3 of 3 nodes in [^,]+" + re.escape(said) + "\n", done.stdout), done.stdout
    pushed = ctl_json(agent, "sync", "push", "llama")
    assert (pushed["size"], pushed["changed"]) == (n_bytes, changed), pushed


def test_push_defaults_are_left_to_the_agent(make_agent):
    agent = make_agent(push=PUSHED)
    done = ctl(agent, "sync", "push", "llama", "-q")
    assert (done.stdout, done.stderr) == ("", "")
    assert agent.requests == [{"op": "push", "buffer": "llama", "group": None, "version": 0, "policy": None, "max_rate": 0,
                               "wait": True, "slow": False}]


def test_push_json(make_agent):
    said = ctl_json(make_agent(push=PUSHED), "sync", "push", "llama")
    assert said["nodes"] == [{"node": n, "state": "committed", "version": 3, "why": None} for n in "abc"]
    assert (said["sync"], said["version"], said["group"]) == (SYNC, "1.7", "main")
    assert (said["planned"], said["payload"], said["bytes"], said["kernel"]) == (GIB - 9, GIB - 9, GIB, None)


def test_push_draws_one_line(make_agent):
    status, text = in_terminal(Terminal(make_agent(push=PUSHED)), "sync", "push", "llama")
    assert status == 0 and "sending     50 % [" in text
    assert [line for line in screen(text.replace("\r\n", "\n")) if line] == \
        [text.split("\x1b[K")[-1].rstrip("\r\n")]


def test_push_does_not_say_that_an_epoch_which_broke_brought_all(make_agent):
    broke = [phase("b", "bytes", GIB // 4, GIB), phase("b", "ready"), phase("b", "open"), phase("b", "bytes", 0, GIB)]
    done = ctl(make_agent(push=[{"sync": SYNC}, *broke, outcome()]), "sync", "push", "llama")
    assert "sending 20 % (" in done.stderr and "100 %" not in done.stderr, done.stderr


def test_push_tells_who_is_missing(make_agent):
    end = outcome()
    end["nodes"][2] |= {"state": "absent", "version": None, "why": "it is not connected"}
    agent = make_agent(push=[{"sync": SYNC}, phase("c", "absent", why="c is not connected"),
                             phase("c", "absent", why="c is not connected"), end])
    done = ctl(agent, "sync", "push", "llama")
    assert re.fullmatch(r"llama 1\.7 on 2 of 3 nodes in .*\nc: it is not connected\n", done.stdout)
    assert done.stderr == "weightctl: c is not connected\n"


def test_push_ends_with_the_commit_and_says_who_is_slow(make_agent):
    left = outcome() | {"event": "left"}
    left["nodes"][1] |= {"state": "bytes", "version": None, "why": "it is slow, and still gets it"}
    agent = make_agent(push=[{"sync": SYNC}, left])
    done = ctl(agent, "sync", "push", "llama")
    assert re.fullmatch(r"llama 1\.7 on 2 of 3 nodes in .*\nb: it is slow, and still gets it\n"
                        rf"'weightctl sync status {SYNC}' shows its progress\n", done.stdout), done.stdout
    assert [n["state"] for n in ctl_json(agent, "sync", "push", "llama")["nodes"]] == ["committed", "bytes", "committed"]


def test_push_that_waits_for_all_does_not_ask_for_less(make_agent):
    agent = make_agent(push=PUSHED, average=PUSHED)
    ctl(agent, "sync", "push", "llama", "--wait-all")
    ctl(agent, "sync", "average", "llama")
    assert [r.get("slow") for r in agent.requests] == [None, None]


def test_push_counts_the_nodes_that_were_told_of_before_the_end(make_agent):
    end = outcome()
    first, end["nodes"] = end["nodes"][:2], end["nodes"][2:]
    agent = make_agent(push=[{"sync": SYNC}, {"event": "nodes", "sync": SYNC, "nodes": first}, end])
    assert re.fullmatch(r"llama 1\.7 on 3 of 3 nodes in .*\n", ctl(agent, "sync", "push", "llama").stdout)
    assert [n["node"] for n in ctl_json(agent, "sync", "push", "llama")["nodes"]] == list("abc")


def test_push_that_fails_says_why(make_agent):
    why = f"sync {SYNC}: llama 1.7 was not committed: b did not answer for 5 s while bytes moved (a -> b, 312 of 1024 MiB); " \
          "every other node still serves llama 1.6, the publisher what it has"
    agent = make_agent(push=[{"sync": SYNC}, phase("b", "bytes", 0, GIB), outcome("failed", error=why)])
    for args in ((), ("--json",), ("-q",)):
        assert refused(agent, "sync", "push", "llama", *args) == f"weightctl: {why}\n"


def test_push_that_is_refused_says_why(make_agent):
    agent = make_agent(push=[{"end": True, "error": "push is for members of the group weightd-ops", "code": "permission"}])
    assert refused(agent, "sync", "push", "llama") == "weightctl: push is for members of the group weightd-ops\n"
    assert refused(agent, "sync", "push", "llama", "--no-wait").count("\n") == 1


@pytest.mark.parametrize("answer", [[{"sync": SYNC, "end": True}], [{"sync": SYNC}, END], [{"sync": SYNC}]])
def test_push_without_waiting_prints_the_sync(make_agent, answer):
    agent = make_agent(push=answer)
    assert ctl(agent, "sync", "push", "llama", "--no-wait").stdout == f"{SYNC}\n"
    assert ctl_json(agent, "sync", "push", "llama", "--no-wait") == {"sync": SYNC}
    assert agent.requests[0]["wait"] is False


QUEUED = {"event": "queued", "why": f"sync {OTHER} of llama is under way"}


def test_push_that_waits_for_its_turn_says_so(make_agent):
    agent = make_agent(push=[QUEUED, *PUSHED])
    done = ctl(agent, "sync", "push", "llama", "--queue")
    assert done.stdout.startswith("llama 1.7 on 3 of 3 nodes in ") and agent.requests[0]["queue"] is True
    assert done.stderr.startswith(f"weightctl: waiting: sync {OTHER} of llama is under way\n")
    assert ctl(agent, "sync", "push", "llama", "--queue", "--quiet").stderr == ""


def test_push_that_waits_for_its_turn_is_nothing_after_a_signal(make_agent):
    with subprocess.Popen(command(["sync", "push", "llama", "--queue"]), stderr=subprocess.PIPE, text=True,
                          env=environment(WEIGHTD_SYNC_SOCKET=make_agent(push=[QUEUED]).path)) as proc:
        assert "waiting: " in proc.stderr.readline()
        proc.send_signal(signal.SIGINT)
        _, err = proc.communicate(timeout=60)
    assert (proc.returncode, err) == (128 + signal.SIGINT, "weightctl: the push was withdrawn before it began\n")


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_push_goes_on_after_a_signal(make_agent, sig):
    agent = make_agent(push=[{"sync": SYNC}, phase("b", "absent", why="told")])
    with subprocess.Popen(command(["sync", "push", "llama"]), env=environment(WEIGHTD_SYNC_SOCKET=agent.path),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as proc:
        assert proc.stderr.readline() == "weightctl: b: told\n"  # so it waits
        proc.send_signal(sig)
        out, err = proc.communicate(timeout=60)
    assert (proc.returncode, out) == (128 + sig, "")
    assert f"continues; 'weightctl sync status {SYNC}'" in err and f"'weightctl sync cancel {SYNC}' cancels it" in err


def test_push_tells_when_the_agent_dies(make_agent):
    agent = make_agent(push=lambda c, _: [c.send(pack({"sync": SYNC})), c.shutdown(socket.SHUT_RDWR)])
    error = refused(agent, "sync", "push", "llama")
    assert "closed the connection" in error and "weightctl sync history" in error


def test_who_waits_finds_out_that_the_agent_hangs(make_agent):
    """All at once, as each takes 10 s until it asks, and 10 s more."""
    begins, asked = [{"sync": SYNC}, phase("b", "verify")], threading.Event()

    def late(connection, _):
        for packet in begins:
            connection.send(pack(packet))
        asked.wait(60)  # its agent has nothing to send for so long
        connection.send(pack(outcome()))

    def history(connection, _):
        connection.send(pack(END))
        asked.set()

    agents = [make_agent(push=late, history=history), make_agent(push=begins), make_agent(watch=[{"event": "watching"}])]
    for agent in agents[1:]:
        agent.answers["history"] = agent.hang
    args = ["sync", "push", "llama"], ["sync", "push", "llama"], ["sync", "watch"]
    waiting = [subprocess.Popen(command(a), env=environment(WEIGHTD_SYNC_SOCKET=agent.path), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for agent, a in zip(agents, args)]
    (pushed, *_), (_, error), (_, watched) = [proc.communicate(timeout=60) for proc in waiting]
    assert [proc.returncode for proc in waiting] == [0, 1, 1], (pushed, error, watched)
    assert "on 3 of 3 nodes" in pushed and [r["op"] for r in agents[0].requests] == ["push", "history"]
    assert "did not reply within 10 s" in error and f"'weightctl sync history' will show the end of {SYNC}" in error
    assert "did not reply within 10 s" in watched


@pytest.mark.parametrize("answer", [[END], [{**outcome(), "state": "lost"}], [{**outcome(), "state": None}]])
def test_push_believes_only_a_commit(make_agent, answer):
    assert "weightctl: " in refused(make_agent(push=answer), "sync", "push", "llama")


# --- Agents that are not there, hang, or lie ------------------------------------------------------


VERBS = [("nodes",), ("sync", "push", "m"), ("sync", "push", "m", "--no-wait"), ("sync", "status"), ("sync", "status", SYNC, "-w"),
         ("sync", "history"), ("sync", "cancel", SYNC), ("sync", "cancel", "5f")]
ids = pytest.mark.parametrize("args", VERBS, ids=" ".join)


@ids
def test_without_an_agent_the_way_out_is_named(tmp_path, args):
    for path in (tmp_path / "sync.sock", tmp_path / "gone.sock"):
        if path.name == "gone.sock":
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.bind(str(path))
        done = run_ctl(path, *args, check=False)
        assert done.returncode == 1 and done.stdout == ""
        assert str(path) in done.stderr and "weightd-sync --config" in done.stderr and done.stderr.count("\n") == 1


def test_the_socket_can_be_named_before_and_after_the_verb(make_agent):
    agent = make_agent(nodes=[END])
    for args in (["--sync-socket", agent.path, "nodes"], ["nodes", "--sync-socket", agent.path]):
        run_ctl("/nonexistent", *args)


def test_without_permission(make_agent, require):
    agent = make_agent(nodes=[END])
    os.chmod(agent.path, 0)
    os.chmod(agent.folder, 0o711)
    require("root")
    program = copy_for_others("weightctl", pathlib.Path(agent.folder))
    done = run_ctl(agent.path, "nodes", check=False, executable=program, cwd="/", user=65534, group=65534, extra_groups=[])
    assert done.returncode == 1 and "this user may not connect to weightd-sync" in done.stderr, done.stderr


def test_a_socket_of_something_else(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.bind(str(tmp_path / "s"))
        s.listen()
        assert "is not a socket of weightd-sync" in run_ctl(tmp_path / "s", "nodes", check=False).stderr
    assert "too long" in run_ctl(tmp_path / ("x" * 200), "nodes", check=False).stderr


def test_an_agent_that_hangs_drips_floods_or_accepts_nobody_is_not_waited_for(make_agent, tmp_path):
    """All at once, as each is given its 10 s."""
    hangs, drips = make_agent(), make_agent()
    row = pack(NODES[1] | {"why": "x" * 60000})

    def flood(connection, _):
        while True:
            connection.send(row)

    def drip(connection, _):
        while not drips.over.wait(0.1):
            connection.send(pack(NODES[1]))

    hangs.answers = dict.fromkeys(("nodes", "push", "status", "history", "cancel"), hangs.hang)
    drips.answers = {"nodes": drip}
    floods = make_agent(nodes=flood)
    unanswered = "did not reply within 10 s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s, \
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        s.bind(str(tmp_path / "s"))
        s.listen(0)
        first.connect(str(tmp_path / "s"))  # the backlog is full
        cases = [*((hangs.path, args, unanswered) for args in VERBS), (drips.path, ("nodes",), unanswered),
                 (floods.path, ("nodes",), f"too many rows|{unanswered}"),
                 (tmp_path / "s", ("nodes",), "accepted no connection|did not reply")]
        started = time.monotonic()
        waiting = [subprocess.Popen(command(args), env=environment(WEIGHTD_SYNC_SOCKET=str(path)), text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE) for path, args, _ in cases]
        ends = [(proc.communicate(timeout=60), proc.returncode) for proc in waiting]
        assert time.monotonic() - started >= 10
    for (path, args, words), ((out, err), status) in zip(cases, ends):
        assert (status, out) == (1, "") and re.search(words, err), f"{path} {args}: {status} {out} {err}"


HOSTILE_PACKETS = [b"garbage", b"[]", b"1", b"", b"{", b'{"a":1,"a":2}', b"\xff\xfe", b'{"node":"\xff"}', b'{"node":"\\u0000"}',
                   b'{"n":' + b"[" * 60000, b'{"n":99999999999999999999999}', b'{"x":"' + b"y" * 100000 + b'"}']


@pytest.mark.parametrize("packet", HOSTILE_PACKETS, ids=lambda p: ascii(p[:12]))
@pytest.mark.parametrize("args", [("nodes",), ("sync", "push", "m"), ("sync", "watch", "-q")], ids=" ".join)
def test_what_is_no_object_is_refused(make_agent, args, packet):
    def say(connection, _):
        connection.send(packet) if packet else connection.shutdown(socket.SHUT_RDWR)

    agent = make_agent(nodes=say, push=say, watch=say)
    assert re.search("of another release|closed the connection", refused(agent, *args))


STRANGE = [None, "", HOSTILE, "x" * 30000, -1, 2**63 - 1, 1.5e300, True, [], [[[]]], {}, {"node": {}}]


@pytest.mark.parametrize("value", STRANGE, ids=lambda v: ascii(v)[:20])
def test_fields_of_any_type_are_shown_escaped(make_agent, value):
    def all_are(row):
        return {k: value for k in row}

    head = all_are(NODES[0]["heads"][0])
    agent = make_agent(nodes=[all_are(NODES[0]), NODES[0] | {"heads": value}, NODES[1] | {"heads": [head, value]}, END],
                       status=[all_are(part()), END], history=[all_are(PAST), END],
                       watch=[all_are(EVENTS[0]), all_are(EVENTS[1]), all_are(outcome()) | {"end": None}, END],
                       push=[{"sync": SYNC}, all_are(phase("b", "bytes")), phase(value, "bytes", value, value),
                             {"event": "phase", "node": "b", "phase": value}, outcome() | {"nodes": value},
                             ])
    for args in (["nodes", "--buffers"], ["sync", "status"], ["sync", "history"], ["sync", "watch", "-q"], ["sync", "push", "m"]):
        done = ctl(agent, *args, check=False)
        assert done.returncode in (0, 1), done.stderr
        assert not UNPRINTABLE.search(done.stdout + done.stderr), args
    for args in (["nodes"], ["sync", "status"], ["sync", "history"], ["sync", "push", "m"]):
        done = ctl(agent, *args, "--json", check=False)
        assert done.returncode == 1 or json.loads(done.stdout), args


@pytest.mark.parametrize("columns", [80, 132])
def test_tables_fit_a_terminal(make_agent, columns):
    long = "a-name-of-a-node-that-is-as-long-as-it-may-be.example.org"
    agent = make_agent(nodes=[NODES[1] | {"node": long, "address": f"{long}:7400"}, END],
                       status=[part(long, sync=SYNC, phase="committed", done=999_900_000_000, rate=999_900_000,
                                    expected=999_900_000_000, term=12, number=345, **{"from": long}), END],
                       history=[PAST | {"buffer": "b" * 200, "term": 12, "number": 345, "bytes": 999_900_000_000,
                                        "size": 1 << 40, "changed": 1}, END])
    for args in (["nodes"], ["sync", "status"], ["sync", "history"]):
        status, text = in_terminal(Terminal(agent), *args, columns=columns)
        assert status == 0
        assert [line for line in text.split("\r\n") if n_columns(line) > columns] == [], args
        whole = ctl(agent, *args).stdout
        assert long in whole or "b" * 200 in whole, args


def test_columns_can_be_chosen(make_agent):
    agent = make_agent(nodes=[*NODES, END], status=[part(), END], history=[PAST, END])
    assert ctl(agent, "nodes", "-n", "-o", "NODE,STATE").stdout.split() == ["a", "self", "b", "up", "c", "down"]
    assert ctl(agent, "sync", "status", "-n", "-b", "-o", "DONE,RATE").stdout.split() == [str(GIB // 4), "118000000"]
    assert ctl(agent, "sync", "history", "-n", "-o", "SYNC,STATE").stdout.split() == [SYNC, "committed"]
    for verb in (["nodes"], ["sync", "status"], ["sync", "history"]):
        text = ctl(agent, *verb, "--help").stdout.split("\nColumns")[1]
        names = re.findall(r"^ [* ] ([A-Z]+) ", text, re.M)
        assert ctl(agent, *verb, "-o", ",".join(names)).stdout.splitlines()[0].split() == names

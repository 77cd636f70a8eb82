"""
Plans of weightctl: sync plan, as people and programs read it (the model itself: tests/unit/test_forecast.c),
and sync push --dry-run, against an agent that sends a test's answers.
"""
import json
import subprocess

import pytest
from lib.features import BUILD

from integration.weightctl.test_sync import GIB, SYNC, Terminal, ctl, ctl_json, make_agent, outcome, refused  # noqa: F401
from integration.weightctl.test_weightctl import UNPRINTABLE, in_terminal, n_columns

SCHEDULES = ["chain", "tree", "binomial", "ring", "one-to-all"]
GIVEN = ["--nodes", "1000", "--nic", "400G", "--size", "1TB"]


def plan(*args):
    done = subprocess.run([BUILD / "weightctl", "sync", "plan", *args], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), f"{args}\n{done.stdout}{done.stderr}"
    return done.stdout


def plan_json(*args):
    return json.loads(plan("--json", *args))


def test_every_schedule_has_a_row_and_ours_is_marked():
    text = plan(*GIVEN)
    table, _, below = text.partition("\n\n")
    head, *rows = table.splitlines()
    assert head.split() == ["SCHEDULE", "RUNS", "MOVES", "OTHERS", "TIME", "ROOT", "LINK", "TOTAL"]
    assert [row.split()[:2] for row in rows] == [[s, "yes" if s == "chain" else "no"] for s in SCHEDULES]
    assert rows[0].split()[2:4] == ["23.7", "s"], rows[0]
    assert below == ("1.0 TB to 999 nodes of 42.5 GB/s (85% of 400 Gb/s), in chunks of 1.0 MB.\n"
                     "A digest takes 2 min 5 s, at 8.0 GB/s: one at the publisher, one at the others.\n")


@pytest.mark.parametrize("more", [[], ["--stragglers", "10:2", "--failures", "7"], ["--nic", "1M", "--size", "50TB"],
                                  ["--nodes", "100000", "--size", "49999GB"]], ids=" ".join)
def test_it_fits_eighty_columns(more):
    assert [line for line in plan(*GIVEN, *more).splitlines() if len(line) > 80] == []


def test_json_has_what_was_given_and_all_columns():
    said = plan_json(*GIVEN, "--stragglers", "10:4", "--failures", "2", "--stall", "2.5", "--digest", "1T")
    schedules = said.pop("schedules")
    assert said == {"nodes": 1000, "size": 10**12, "nic": 400 * 10**9, "rate": 42_500_000_000, "chunk": 1 << 20,
                    "latency_ns": 100_000, "digest_rate": 10**12, "stragglers": 10, "straggler_rate": 42_500_000_000 // 4,
                    "failures": 2, "stall_ns": 2_500_000_000}
    assert [s["schedule"] for s in schedules] == SCHEDULES
    chain = schedules[0]
    assert chain["time_ns"] - chain["moves_ns"] == pytest.approx(2e9, abs=10)
    assert chain["runs"] is True and (chain["root"], chain["link"], chain["links"]) == (10**12, 10**12, 999)
    assert chain["total"] == 999 * 10**12 and chain["again"] > 0
    assert 10**12 / 42.5 < chain["others_ns"] < chain["moves_ns"]


def test_one_schedule_alone():
    assert [s["schedule"] for s in plan_json(*GIVEN, "--schedule", "ring")["schedules"]] == ["ring"]


def test_without_stragglers_there_are_no_others():
    assert plan_json(*GIVEN)["schedules"][0]["others_ns"] is None
    assert plan_json(*GIVEN, "--nodes", "2", "--stragglers", "1:2")["schedules"][0]["others_ns"] is None


@pytest.mark.parametrize("size, n", [("1000", 1000), ("1B", 1), ("1.5k", 1500), ("16G", 16 * 10**9), ("1TB", 10**12),
                                     ("256MiB", 256 << 20), ("0.5GiB", 1 << 29)])
def test_sizes_are_decimal_unless_they_say_otherwise(size, n):
    assert plan_json(*GIVEN, "--size", size)["size"] == n


@pytest.mark.parametrize("nic", ["1G", "1000M", "1Gb", "1Gbit", "1Gbit/s", "1Gbps", "1000000000"])
def test_a_nic_is_in_bits(nic):
    said = plan_json(*GIVEN, "--nic", nic, "--efficiency", "100")
    assert (said["nic"], said["rate"]) == (10**9, 125_000_000)


# --- sync push --dry-run ---------------------------------------------------------------------------


LONG = "a-name-of-a-node-that-is-as-long-as-it-may-be.example.org"


def plan_event(links, at=0, n_links=None, **more):
    return {"event": "plan", "sync": SYNC, "kind": "push", "buffer": "llama", "group": "main", "role": "publisher", "term": 1,
            "number": 8, "epoch": 1, "schedule": "chain", "size": 50 * GIB, "changed": GIB, "total": GIB * (n_links or len(links)),
            "planned": 300 * GIB + 100, "takes_ns": 9_100_000_000, "n_links": n_links or len(links),
            "links": [{"from": a, "to": b, "bytes": GIB, "planned": GIB + 100} for a, b in links]} | more


PLANNED = outcome("planned", number=8)


def test_a_dry_run_prints_its_links(make_agent):
    agent = make_agent(plan=[{"sync": SYNC}, plan_event([("a", "b"), ("b", "c")]), PLANNED])
    done = ctl(agent, "sync", "push", "llama@3", "--dry-run")
    table, _, line = done.stdout.partition("\n\n")
    assert [row.split() for row in table.splitlines()] == [["FROM", "TO", "BYTES", "PLANNED"],
                                                           ["a", "b", *["1.1", "GB"] * 2], ["b", "c", *["1.1", "GB"] * 2]]
    assert line == "llama 1.8: 1.1 GB (2.0% of 53.7 GB) to each of 2 nodes, 2.1 GB in all, in about 9.1 s; nothing was sent\n"
    assert agent.requests == [{"op": "plan", "buffer": "llama", "group": None, "version": 3, "policy": None, "max_rate": 0,
                               "wait": True, "slow": False}]


def test_a_dry_run_in_json_puts_the_pieces_together(make_agent):
    chain = [(str(i), str(i + 1)) for i in range(300)]
    agent = make_agent(plan=[{"sync": SYNC}, *(plan_event(chain[i:i + 128], n_links=300) for i in (0, 128, 256)), PLANNED])
    said = ctl_json(agent, "sync", "push", "llama", "--dry-run")
    assert [(link["from"], link["to"]) for link in said["links"]] == chain
    assert {key: said[key] for key in ("sync", "state", "version", "schedule", "size", "changed", "total", "planned", "takes_ns")} == {
        "sync": SYNC, "state": "planned", "version": "1.8", "schedule": "chain", "size": 50 * GIB, "changed": GIB,
        "total": 300 * GIB, "planned": 300 * GIB + 100, "takes_ns": 9_100_000_000}
    assert [node["state"] for node in said["nodes"]] == ["planned"] * 3


def test_a_dry_run_with_nothing_to_send_says_so(make_agent):
    agent = make_agent(plan=[{"sync": SYNC}, plan_event([], changed=0, total=0, takes_ns=None), PLANNED])
    assert ctl(agent, "sync", "push", "llama", "--dry-run").stdout == "llama 1.8: every node has all of it; nothing was sent\n"


def test_an_agent_that_cannot_plan_does_not_push(make_agent):
    agent = make_agent(plan=[{"end": True, "error": "this agent knows no request 'plan'", "code": "request"}])
    assert refused(agent, "sync", "push", "llama", "--dry-run") == "weightctl: this agent knows no request 'plan'\n"


@pytest.mark.parametrize("end", [outcome("committed"), outcome("failed", error="b is gone"), PLANNED],
                         ids=["committed", "failed", "planned without a plan"])
def test_a_dry_run_believes_only_a_plan(make_agent, end):
    assert refused(make_agent(plan=[{"sync": SYNC}, end]), "sync", "push", "llama", "--dry-run")


@pytest.mark.parametrize("columns", [80, 132])
def test_a_dry_run_fits_a_terminal(make_agent, columns):
    agent = make_agent(plan=[{"sync": SYNC}, plan_event([(LONG, f"埋{LONG}\x1b")]), PLANNED])
    status, text = in_terminal(Terminal(agent), "sync", "push", "llama", "--dry-run", "-q", columns=columns)
    table = text.split("\r\n\r\n")[0]
    assert status == 0 and "FROM" in table and not UNPRINTABLE.search(table.replace("\r\n", "\n")), text
    assert [line for line in table.split("\r\n") if n_columns(line) > columns] == []


@pytest.mark.parametrize("value", [None, 7, -1, "x", [], {}, 1e308], ids=repr)
def test_fields_of_a_plan_may_be_anything(make_agent, value):
    for event in (plan_event([("a", "b")]) | dict.fromkeys(("changed", "size", "n_links", "total", "takes_ns", "schedule"), value),
                  plan_event([]) | {"links": value, "n_links": 5},
                  plan_event([]) | {"links": [value, {"from": value, "to": value, "bytes": value}], "n_links": 2}):
        agent = make_agent(plan=[{"sync": SYNC}, event, PLANNED])
        for more in ([], ["--json"]):
            ctl(agent, "sync", "push", "llama", "--dry-run", *more, check=False)


def test_watch_tells_of_a_plan(make_agent):
    agent = make_agent(watch=[{"event": "watching"}, plan_event([("a", "b"), ("b", "c")]), {"end": True}])
    assert ctl(agent, "sync", "watch", "-q").stdout.endswith("llama 1.8  plan, 1.1 GB over each of 2 links\n")
    event = plan_event([("a", "b"), ("b", "c")])
    event["links"][1]["stripes"] = 2
    agent = make_agent(watch=[{"event": "watching"}, event, {"end": True}])
    assert ctl(agent, "sync", "watch", "-q").stdout.endswith("over each of 2 links, in up to 2 stripes\n")

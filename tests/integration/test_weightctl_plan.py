"""weightctl sync plan: what the model says, as people and programs read it. The model itself: tests/unit/test_forecast.c."""
import json
import subprocess

import pytest
from features import BUILD

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

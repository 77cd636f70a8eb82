"""weightctl sync metrics: the counters of nodes match their syncs, and any reader of OpenMetrics can parse them."""
import os
import re
import stat

import pytest
from lib import features
from lib.nodes import SIZE

from integration.weightctl.test_sync import END, ctl, make_agent, refused  # noqa: F401: a fixture

# Nothing breaks because a machine is slow.
PATIENT = {"data": {"security": "none"}, "limits": {"stall-timeout": 60, "prepare-timeout": 60}}


def parse(text):
    """{name: {labels: value}} of the samples, as the reference parser of Prometheus reads them; labels as a frozenset."""
    features.require("prometheus")
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("counter", "gauge"), f"node_exporter knows no {family.type}: {family}"
        assert family.documentation, family
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            assert labels not in samples.setdefault(sample.name, {}), f"twice: {sample}"
            samples[sample.name][labels] = sample.value
    return samples


def value(samples, name, **labels):
    """The value of the sample that has these labels."""
    return samples["weightd_sync_" + name][frozenset(labels.items())]


def metrics(node):
    return parse(node.ctl("sync", "metrics").stdout)


def ended(samples, role, kind, result):
    return value(samples, "syncs_total", role=role, kind=kind, result=result)


def link(samples, way, counts, peer):
    return [value(samples, f"{way}_{count}bytes_total", peer=peer) for count in counts]


def test_what_was_counted_is_what_happened(make_nodes):
    nodes = make_nodes(3, settings=PATIENT)
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    a = metrics(nodes["a"])
    members = {name: nodes.wait(lambda name=name: (found := metrics(nodes[name])) and
                                ended(found, "member", "push", "committed") and found, f"the push ended at {name}")
               for name in "bc"}
    assert ended(a, "publisher", "push", "committed") == 1 and ended(a, "publisher", "push", "failed") == 0
    assert (value(a, "epochs_total"), value(a, "broken_epochs_total"), value(a, "corrupt_bytes_total")) == (1, 0, 0)
    assert value(a, "phase_seconds_total", role="publisher", phase="bytes") > 0
    assert value(a, "phase_seconds_total", role="member", phase="bytes") == 0
    for samples in (a, *members.values()):
        assert (value(samples, "head_term", buffer="m", group="main"),
                value(samples, "head_number", buffer="m", group="main")) == (end["term"], end["number"])
        assert abs(value(samples, "head_timestamp_seconds", buffer="m", group="main") - end["ended_ns"] / 1e9) < 600
    assert value(a, "head_serving", buffer="m", group="main") == 1
    assert [value(a, "peer_up", peer=peer) for peer in "bc"] == [1, 1]

    # The chain may be a, b, c or a, c, b: each link has two ends, which counted the same, and as planned.
    counts = ("", "kernel_", "payload_", "planned_")
    first = max("bc", key=lambda name: value(a, "sent_bytes_total", peer=name))
    second = "c" if first == "b" else "b"
    sent = link(a, "sent", counts, first)
    assert sent == link(members[first], "received", counts, "a") and len(set(sent)) == 1 and sent[0] > SIZE // 2, sent
    passed_on = link(members[first], "sent", counts, second)
    assert passed_on == link(members[second], "received", counts, first) and len(set(passed_on)) == 1, passed_on
    assert sent[0] + passed_on[0] == end["bytes"], (sent, passed_on, end)
    assert link(a, "sent", counts, second) == link(members[second], "sent", counts, first) == [0] * 4


def test_under_tls_the_payload_is_the_planned_one(make_nodes):
    nodes = make_nodes(2, settings={"limits": PATIENT["limits"]})
    nodes["a"].publish("m", seed=1)
    end = nodes["a"].push("m")
    b = nodes.wait(lambda: (found := metrics(nodes["b"])) and ended(found, "member", "push", "committed") and found,
                   "the push ended at b")
    counts, expected = ("", "kernel_", "payload_", "planned_"), [end["bytes"]] * 2 + [end["planned"]] * 2
    assert link(metrics(nodes["a"]), "sent", counts, "b") == link(b, "received", counts, "a") == expected, end
    assert end["bytes"] > end["planned"] == end["payload"], end


def test_a_peer_that_is_away_and_a_push_that_failed(make_nodes):
    nodes = make_nodes(2, absent="b", settings={"limits": {"prepare-timeout": 1}})
    nodes["a"].publish("m", seed=1)
    nodes["a"].start_push("m").failed()
    samples = metrics(nodes["a"])
    assert value(samples, "peer_up", peer="b") == 0
    assert ended(samples, "publisher", "push", "failed") == 1
    assert "weightd_sync_head_number" not in samples


# --- The file ---------------------------------------------------------------------------------------

FAMILY = {"metric": "weightd_sync_epochs", "type": "counter", "unit": None, "help": "Attempts.",
          "samples": [{"labels": {}, "value": 7}]}


def test_the_file_is_replaced_as_a_whole(make_agent, tmp_path):  # noqa: F811
    path = tmp_path / "weightd.prom"
    path.write_text("old")
    with open(path) as reader:
        assert ctl(make_agent(metrics=[FAMILY, END]), "sync", "metrics", "--output", path).stdout == ""
        assert reader.read() == "old", "a reader of the old file reads all of it"
    assert value(parse(path.read_text()), "epochs_total") == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "another user collects it"
    assert os.listdir(tmp_path) == ["weightd.prom"]


def test_the_file_stays_when_there_is_no_answer(make_agent, tmp_path):  # noqa: F811
    path = tmp_path / "weightd.prom"
    path.write_text("old")
    agent = make_agent(metrics=[{"end": True, "code": "request", "error": "this agent knows no request 'metrics'"}])
    assert "knows no request 'metrics'" in refused(agent, "sync", "metrics", "--output", path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["weightd.prom"])


@pytest.mark.parametrize("path, reason", [("nowhere/x.prom", "No such file"), ("a", "no regular file"), ("a/", "Is a directory")])
def test_a_file_that_cannot_be_written(make_agent, tmp_path, path, reason):  # noqa: F811
    (tmp_path / "a").mkdir()
    error = refused(make_agent(metrics=[FAMILY, END]), "sync", "metrics", "--output", path, cwd=tmp_path)
    assert reason in error and re.search("cannot (write|replace)", error), error
    assert os.listdir(tmp_path) == ["a"] and not os.listdir(tmp_path / "a")


def test_no_device_and_no_link_is_replaced(make_agent, tmp_path):  # noqa: F811
    (tmp_path / "link").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "fifo")
    for name in "link", "fifo":
        before = os.lstat(tmp_path / name)
        error = refused(make_agent(metrics=[FAMILY, END]), "sync", "metrics", "--output", tmp_path / name)
        assert "it is no regular file; without --output it is printed" in error, error
        assert os.lstat(tmp_path / name).st_ino == before.st_ino and sorted(os.listdir(tmp_path)) == ["fifo", "link"]


# --- Names of buffers from others -------------------------------------------------------------------

def test_whatever_the_agent_says_can_be_parsed(make_agent):  # noqa: F811
    name = "evil\"\\\n\x1b[31m\x9b2Jü"
    rows = [FAMILY | {"metric": "no name", "samples": [{"labels": {}, "value": 1}]},
            FAMILY | {"metric": "x", "type": "summary"}, {}, {"metric": 3},
            FAMILY | {"metric": "weightd_sync_things", "help": "a\nb \"c\" \\d", "type": "gauge",
                      "samples": [{"labels": {"buffer": name, "bad-name": "x", "": "x", "n": 3}, "value": 2**63 - 1},
                                  {"labels": {"buffer": "n"}, "value": -1}, {"labels": {"buffer": "o"}, "value": "1"}, {}]},
            FAMILY | {"metric": "weightd_sync_things", "type": "gauge",
                      "samples": [{"labels": {"buffer": "in the next packet"}, "value": 0}]},
            FAMILY | {"metric": "weightd_sync_wait_seconds", "type": "counter", "unit": "seconds",
                      "samples": [{"labels": {}, "value_ns": 1_500_000_001}]}, END]
    text = ctl(make_agent(metrics=rows), "sync", "metrics").stdout
    assert text.endswith("\n# EOF\n") and not set(text) & {"\x1b", "\x9b"}, text
    samples = parse(text)
    assert samples == {
        "weightd_sync_things": {frozenset({("buffer", "evil\"\\\n?[31m?2Jü")}): 2**63 - 1,
                                frozenset({("buffer", "in the next packet")}): 0},
        "weightd_sync_wait_seconds_total": {frozenset(): 1.500000001}}

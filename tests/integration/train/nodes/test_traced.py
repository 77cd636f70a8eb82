"""Bytes of training between nodes, as weightd-trace counts them by rank: those of the plan, of the ranks, and of ss."""
import pytest
from integration.train.nodes.test_nodes import spread
from integration.train.nodes.test_units import SMALL
from lib import features, tracing
from table import exchanges

pytestmark = pytest.mark.plain

STEPS = 3, 6  # the ranks hold before them


def planned(reports, nodes, strategy):
    """Bytes that each rank sends in a step, with the framing of Gloo."""
    n = len(reports) // nodes
    summary, levels = exchanges.summary(n, reports[0]["tensors"]), reports[0]["levels"]
    found = []
    for rank, report in enumerate(reports):
        line = reports[rank % n::n]
        if strategy == "shared":
            found.append(exchanges.of_step([each["pieces"] for each in line], rank // n, summary))
        else:
            found.append(exchanges.of_pooled_step([each["buckets"] for each in line], rank // n, summary,
                                                  fetched=exchanges.fetches(levels) if levels else ()))
    return found


@pytest.mark.parametrize("strategy, nodes, n", [("zero3", 2, 1), ("shared", 3, 1), ("zero2", 2, 2), ("zero3", 2, 2)])
def test_z_3_bytes_that_weightd_trace_sees_are_those_of_the_plan(make_nodes, net, strategy, nodes, n):
    features.require("pids")
    features.require("bpf")
    spaces = net(nodes)
    job = make_nodes(nodes, n, steps=6, strategy=strategy, hold_before=",".join(map(str, STEPS)), **SMALL, **spread(spaces))
    ranks = job.start_all()
    with tracing.Tracer() as tracer:
        client = tracer.client()
        assert [rank.held() for rank in ranks] == [STEPS[0]] * len(ranks)
        for number, rank in enumerate(ranks):
            client.watch(rank.pid, peer=f"rank {number}")
        before = [spaces.sent(i) for i in range(nodes)]
        for rank in ranks:
            rank.go_on()
        assert [rank.held() for rank in ranks] == [STEPS[1]] * len(ranks)
        rows = [client.row(f"rank {number}") for number in range(len(ranks))]
        sent = [spaces.sent(i) - before[i] for i in range(nodes)]
        for rank in ranks:
            rank.go_on()
        job.finish()
    reports = job.reports()
    seen, expected = [row["submitted"] for row in rows], [(STEPS[1] - STEPS[0]) * size for size in planned(reports, nodes, strategy)]
    assert seen == expected
    assert sent == [sum(seen[i * n:(i + 1) * n]) for i in range(nodes)], "ss"
    assert sum(row["received"] for row in rows) == sum(seen)
    for report in reports:
        assert report["counted"]["sent"] - report["filled"]["sent"] == 6 * report["predicted"]["sent"]

"""
Several nodes (notes 3.1, 3.3 and F-8): against the curve of a single process, byte for byte among each other, and the bytes between
them: as the plan has them, as the ranks count them, and as the kernel sees them at the sockets.
"""
import contextlib
import re
import socket

import pytest
from integration.train.conftest import crossed
from integration.train.test_ddp import CURVE_MAX, CUT, MODELS
from lib.trainer import MEETING_PORT, all_held, difference
from lib.wire import until
from table import exchanges

pytestmark = pytest.mark.plain  # test_train_exchange and the kills run the same code sanitized

STRATEGIES = "shared", "zero1", "replicated"
SHAPES = [(2, 1), (3, 1), (4, 1), (2, 2)]


def spread(net):
    """Options of Nodes, by which each is in a namespace of the Net."""
    return {"address": net.nodes[0].address, "prefixes": [node.prefix for node in net.nodes]}


# --- Curves and bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes, n, model, steps", [(2, 1, "attention", 60), (3, 1, "rms-norm", 20), (4, 1, "attention", 20), (2, 2, "mlp", 60),
                                                    (4, 1, "tiny", 20), pytest.param(3, 2, "tiny", 20, marks=pytest.mark.long)])
def test_all_rows_have_the_curve_of_a_single_process_and_equal_bits(make_nodes, oracle, nodes, n, model, steps):
    options = {"steps": steps} | MODELS[model]
    losses, _ = oracle(**options)
    first = None
    for strategy in STRATEGIES:
        job = make_nodes(nodes, n, strategy=strategy, bucket_bytes=1000, overlap=strategy == "zero1", **options).run()
        assert difference(job.curve(), losses) <= CURVE_MAX, strategy
        first = first or job
        assert job.curve() == first.curve(), f"{strategy}: not bitwise equal to {STRATEGIES[0]}"
        assert job.params() == first.params(), strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_run_has_the_same_bits(make_nodes, strategy):
    options = {"strategy": strategy, "steps": 10, "dropout": 0.1}
    plain = make_nodes(2, 2, **options).run()
    for others in {"overlap": True, "bucket_bytes": 256}, {"bucket_bytes": 4096}, {"copies": 2 if strategy == "shared" else None}:
        job = make_nodes(2, 2, **options, **others).run()
        assert job.curve() == plain.curve() and job.params() == plain.params(), others


@pytest.mark.parametrize("options", [
    {"optimizer": "sgd", "nesterov": True, "lr": 0.02}, {"max_norm": 0.3}, {"batch": 5, "weights": True}, {"nan_at": "7:3"},
    {"rest": True, "ballast": 700}, {"frozen": "embedding.weight"}], ids=str)
@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.long), True], ids=["", "overlap"])
def test_options_have_their_meaning_on_several_nodes(make_nodes, oracle, options, overlap):
    options = options | {"steps": 12}
    losses, _ = oracle(**options)
    job = make_nodes(2, 2, bucket_bytes=1000, overlap=overlap, **options).run()
    assert difference(job.curve(), losses) <= CURVE_MAX
    if "nan_at" in options:
        assert all([step for step, line in each.steps(rank).items() if line["skipped"]] == [7] for each in job.jobs for rank in range(2))


@pytest.mark.parametrize("types", [{"dtype": "bf16"}, {"dtype": "f16", "scale": 2**26, "scale_interval": 8},
                                   {"dtype": "bf16", "grad_dtype": "f32"}], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_16_bits_train_as_on_one_node(make_nodes, make_job, strategy, types):
    """Sums have another order, and few of the parameters are rounded otherwise."""
    one = make_job(4, strategy=strategy, form="two-phase", steps=20, **types).run()
    job = make_nodes(2, 2, strategy=strategy, steps=20, **types).run()
    assert abs(job.curve()[-1] / one.curve()[-1] - 1) < 0.01
    assert len(job.params()) == len(one.params())
    if "scale" in types:
        scales = [[line["scale"] for line in steps.values()] for steps in (one.steps(0), *(each.steps(1) for each in job.jobs))]
        assert scales[0] == scales[1] == scales[2] and len(set(scales[0])) > 2


def test_a_layer_that_one_rank_of_all_uses_counts_with_zeros_of_the_others(make_nodes, oracle):
    losses, _ = oracle(n=4, unused_layer=True, steps=20)
    assert difference(make_nodes(2, 2, unused_layer=True, overlap=True, steps=20).run().curve(), losses) <= CURVE_MAX


# --- Local SGD ------------------------------------------------------------------------------------


def test_averages_of_each_step_of_sgd_have_the_curve_of_averaged_gradients(make_nodes, oracle):
    options = {"optimizer": "sgd", "momentum": 0, "lr": 0.05, "steps": 20}
    losses, _ = oracle(**options)
    assert difference(make_nodes(2, 2, sync_every=1, **options).run().curve(), losses) <= CURVE_MAX


@pytest.mark.parametrize("form", ["fused", "two-phase"])
def test_every_k_steps_all_nodes_have_the_mean_of_their_parameters(make_nodes, form):
    import numpy

    apart = make_nodes(3, 2, sync_every=6, steps=5, form=form).run()
    alone = [numpy.frombuffer(job.params(), numpy.float32) for job in apart.jobs]
    assert not numpy.array_equal(alone[0], alone[1])
    together = make_nodes(3, 2, sync_every=5, steps=5, form=form).run()
    assert numpy.allclose(numpy.frombuffer(together.params(), numpy.float32), sum(alone) / 3, rtol=3e-7, atol=0)
    assert {name: digest for name, digest in together.digests().items() if "MOMENTS" in name} == \
        {name: digest for name, digest in apart.digests().items() if "MOMENTS" in name}, "each node has moments of its own"


# --- Bytes ----------------------------------------------------------------------------------------


def held_bytes(job, spaces, steps):
    """Bytes at the sockets of each node up to each of the steps; the ranks hold there, and end."""
    ranks, seen = job.start_all(), []
    for step in steps:
        assert [rank.held() for rank in ranks] == [step] * len(ranks)
        seen.append([spaces.sent(i) for i in range(len(spaces.nodes))])
        for rank in ranks:
            rank.go_on()
    job.finish()
    return seen


@pytest.mark.parametrize("row, nodes", crossed(
    [("shared", False, "attention"), ("replicated", True, "attention"), ("zero1", False, "tiny"), ("shared", True, "large")],
    [1, 2, 3, 4], stays=lambda row, nodes: nodes == 3 or row == ("shared", False, "attention")), ids=str)
def test_ddp_2_bytes_at_the_sockets_are_those_of_an_all_reduce(make_nodes, net, row, nodes):
    """Every rank is a node, in a network namespace of its own."""
    strategy, overlap, model = row
    options = {"ballast": 70_001, "width": 13, "heads": 1} if model == "large" else MODELS[model]
    spaces = net(nodes)
    job = make_nodes(nodes, 1, steps=6, strategy=strategy, overlap=overlap, hold_before="3,6", **options, **spread(spaces))
    before, after = held_bytes(job, spaces, (3, 6))
    reports = job.reports()
    size, line = reports[0]["shard"][1] * 4, [report["pieces"] for report in reports]
    if model != "large":  # one bucket
        assert strategy == "replicated" or line == [[n] for n in exchanges.cuts(size // 4, nodes)]
        line = [[n] for n in exchanges.cuts(size // 4, nodes)]
    assert sum(map(sum, line)) * 4 == size and size % CUT == 0
    summary = exchanges.summary(1, reports[0]["tensors"])
    for rank, report in enumerate(reports):
        assert report["counted"]["sent"] - report["filled"]["sent"] == report["predicted"]["sent"] * 6
        small = (nodes - 1) * (summary + 8)
        assert report["predicted"]["sent"] - small == size - 4 * sum(line[rank]) + (nodes - 1) * 4 * sum(line[rank])
        assert after[rank] - before[rank] == 3 * exchanges.of_step(line, rank, summary, overlap=overlap)
    assert sum(report["predicted"]["sent"] for report in reports) - nodes * small == 2 * size * (nodes - 1), "2S(N-1)/N for each rank"


def test_f_8_nodes_of_two_ranks_exchange_their_shards_alone(make_nodes, net, oracle):
    """HSDP: shards inside of a node, replicas between nodes. The bytes of a rank are 2 (S/L) (N-1)/N."""
    spaces = net(2)
    job = make_nodes(2, 2, steps=6, hold_before="3,6", bucket_bytes=1000, **spread(spaces))
    before, after = held_bytes(job, spaces, (3, 6))
    assert difference(job.curve(), oracle(steps=6)[0]) <= CURVE_MAX
    reports = job.reports()
    summary = exchanges.summary(2, reports[0]["tensors"])
    for node in range(2):
        lines = [[reports[rank]["pieces"], reports[2 + rank]["pieces"]] for rank in range(2)]
        assert after[node] - before[node] == 3 * sum(exchanges.of_step(line, node, summary) for line in lines)
        for rank in range(2):
            report, shard = reports[2 * node + rank], reports[rank]["shard"]
            assert sum(map(sum, lines[rank])) == shard[1] - shard[0]
            assert report["counted"]["sent"] - report["filled"]["sent"] == 6 * report["predicted"]["sent"]
            assert report["predicted"]["sent"] == 4 * (shard[1] - shard[0]) + summary + 8, "2 (S/L) (N-1)/N of two nodes"


@pytest.mark.parametrize("nodes, n", SHAPES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_of_each_node_is_what_the_plan_predicts(make_nodes, strategy, nodes, n):
    reports = make_nodes(nodes, n, steps=1, strategy=strategy, ballast=11_001, width=13, heads=1).run().reports()
    for report in reports:
        assert report["parts"] == report["plan"]
        size = reports[-1]["shard"][1] * 4
        if strategy != "replicated":
            assert report["plan"]["MOMENTS"] <= 2 * (size / nodes + 4096 + 64 * 32 * 4), "the optimizer's state is 1/N on each node"
        assert report["plan"]["RECEIVED"] - size in range(nodes * (4096 + 64 * 32 * 4))


# --- Broken lines ---------------------------------------------------------------------------------


def assert_waits(ranks, step, sentence):
    """They gave up, kept the step, and hold; `sentence` is what they gave as the reason."""
    for rank in ranks:
        assert rank.held() == step, rank.errors.read_text()
        assert re.search(sentence, rank.errors.read_text()), rank.errors.read_text()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_others_of_a_node_that_died_whole_stop_within_the_deadline_and_continue(make_nodes, strategy):
    """It dies between backward and the update, while the others wait for its sums."""
    options = {"strategy": strategy, "steps": 8, "dropout": 0.1}
    plain = make_nodes(2, 2, **options).run()
    job = make_nodes(2, 2, **options)
    survivors, victims = job.jobs[0].start_all(deadline=2000, keep_on=True), job.jobs[1].start_all(hold_at=4)
    assert all_held([*survivors, *victims], 4)
    for victim in victims:
        victim.kill()
    for survivor in survivors:
        survivor.go_on()
    assert_waits(survivors, 4, r"rank \d calls again: .*node 1.*step 4")
    successors = job.jobs[1].start_all(hold_at=4)
    for rank in successors:
        assert rank.held() == 4
    for rank in *survivors, *successors:
        rank.go_on()
    assert job.finish().digests() == plain.digests()


def test_others_end_at_once_when_they_are_to_fail(make_nodes):
    job = make_nodes(2, 1, steps=8, on_death="fail", deadline=60000)
    survivor, victim = job.start(0), job.start(1, hold_at=5)
    assert victim.held() == 5
    victim.kill()
    status, errors = survivor.wait(30)
    assert status == 1 and re.search("EOWNERDEAD.*step 5: node 1", errors), errors


def test_a_node_that_lost_its_job_ends_all_with_the_way_out(make_nodes, keeper):
    job = make_nodes(2, 1, steps=8)
    survivor, victim = job.start(0, deadline=60000), job.start(1, hold_at=5)
    assert victim.held() == 5
    victim.kill()
    keeper.ctl("rm", "--job", job.jobs[1].name)
    job.jobs[1].create()
    for rank in survivor, job.start(1):
        status, errors = rank.wait()
        assert status == 1 and "EUCLEAN" in errors and "checkpoint" in errors and "node 1" in errors, errors


def test_a_cable_that_is_cut_and_connected_again_costs_time_alone(make_nodes, net):
    options = {"steps": 6, "dropout": 0.1}
    plain = make_nodes(2, 1, **options).run()
    spaces = net(2)
    job = make_nodes(2, 1, hold_at=4, keep_on=True, deadline=2000, **options, **spread(spaces))
    ranks = job.start_all()
    assert all_held(ranks, 4)
    spaces.down(1)
    for rank in ranks:
        rank.go_on()
    assert_waits(ranks, 4, r"calls again: .*step 4")
    spaces.up(1)
    for rank in ranks:
        rank.go_on()
    assert job.finish().digests() == plain.digests()


def test_strangers_at_the_meeting_delay_nobody(make_nodes):
    job = make_nodes(2, 1, steps=4)
    first = job.start(0)
    address = job.jobs[0].options["master"], MEETING_PORT
    with contextlib.ExitStack() as stack:
        for said in b"", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 65536, None:
            stranger = stack.enter_context(connected(address, first))
            if said is None:
                stranger.close()
            else:
                with contextlib.suppress(OSError):  # it has hung up
                    stranger.sendall(said)
        job.start(1)
        job.finish()


def connected(address, rank):
    """A connection to a rank that may not listen yet."""
    found = []

    def attempt():
        assert rank.proc.poll() is None, rank.errors.read_text()
        with contextlib.suppress(ConnectionRefusedError):
            found.append(socket.create_connection(address))
        return found

    until(attempt, "rank 0 listens")
    return found[0]


@pytest.mark.parametrize("options, sentence", [({"width": 15}, r"\[\d+, 15\].*\[\d+, 12\]|\[\d+, 12\].*\[\d+, 15\]"), ({"optimizer": "sgd"}, "sgd")])
def test_a_node_with_another_plan_is_refused_with_the_first_difference(make_nodes, options, sentence):
    job = make_nodes(2, 1, steps=4)
    for rank, other in (job.start(0), 1), (job.start(1, **options), 0):
        status, errors = rank.wait()
        assert status == 1 and "EPROTOTYPE" in errors and f"node {other}" in errors and re.search(sentence, errors), errors

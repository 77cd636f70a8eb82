"""Strategies "zero2" and "zero3" with torch, on one machine and on nodes of one weightd, which meet on loopback."""
import functools
import math
import signal

import pytest
from lib.torch_ranks import apart, interrupt, mean, wait_for
from lib.wire import until

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]


ROWS = ["zero2", "zero2 small", "whole", "block", "linear", "nested", "size", "names", "kept", "alone"]
SOME = ["zero2", "nested"]


@pytest.mark.parametrize("n, nodes, rows", ((1, 1, SOME), (2, 1, SOME), (2, 2, SOME), (4, 2, ROWS), (4, 4, ["nested", "kept"])),
                         ids=("1x1", "1x2", "2x1", "2x2", "4x1"))
def test_curves_are_those_of_zero1_to_the_bit(host, daemon, n, nodes, rows):
    for result in host.play(daemon, "units.curves", n, nodes=nodes, names=rows):
        assert len(result) == 2 * len(rows)
        for name, (losses, expected) in result.items():
            assert losses == expected, name


@pytest.mark.parametrize("n", (4, pytest.param(8, marks=pytest.mark.long)), ids=("4x1", "4x2"))
def test_replicas_of_shards_have_the_curve_of_zero1(host, daemon, n):
    results = host.play(daemon, "units.replicas", n, nodes=4)
    for result in results:
        assert result["zero2"] == result["nested"] == result["kept"]
    assert apart(mean([result["zero2"] for result in results]), mean([result["zero1"] for result in results])) <= 2e-6
    assert sorted(sample for result in results for sample in result["samples"]) == list(range(n))


@pytest.mark.parametrize("n, nodes", ((2, 1), (4, 2)), ids=("1x2", "2x2"))
def test_habits_of_programs_give_the_values_of_zero1(host, daemon, n, nodes):
    for result in host.play(daemon, "units.habits", n, nodes=nodes):
        for name, (expected, *found) in result.items():
            for ours in found:
                assert ours == expected, name


FORWARD = "+1 -1 +2 -2 +1 -1 +4 -4"
BACKWARD = "+4 -4 {}= +1 -1 +2 -2 {}+1 -1 {}-0 {}"


def test_units_and_buckets_are_opened_where_passes_come_to_them(host, daemon):
    """A call whose gradient nobody asked for leaves all gradients to the step."""
    found = [part.strip() for part in host.play(daemon, "units.order")[0].split("|")]
    assert found == [f"+0 {FORWARD} " + BACKWARD.format("b0 b1 ", "b2 ", "b3 ", "b4"), "",
                     f"+0 {FORWARD}", f"{FORWARD} " + BACKWARD.format("", "", "", "").strip(), "b0 b1 b2 b3 b4",
                     f"+0 {FORWARD} -0", ""]


def test_a_compiled_module_gives_the_same_bits(host, daemon):
    (found,) = host.play(daemon, "units.compiled")
    assert len(set(found)) == 1


def test_steps_of_all_kinds_give_the_bits_of_zero1(host, daemon):
    """The squares of a norm are added in double precision, by pieces that differ, and in them by lanes of the processor."""
    for result in host.play(daemon, "units.cases", 4, nodes=2):
        for name, ((seen, bits), *found) in result.items():
            for ours, our_bits in found:
                assert our_bits == bits, name
                assert ours == (pytest.approx(seen, rel=1e-14, abs=0) if name == "clipped" else seen), name


@pytest.mark.parametrize("options", ({"strategy": "zero2"}, {"strategy": "zero3", "units": 500}), ids=("zero2", "zero3"))
def test_versions_and_values_that_a_program_reads_and_writes(host, daemon, weightd, options):
    results = host.play(daemon, "units.around", 4, nodes=2, **options)
    for rank, found in enumerate(results):
        assert (found["version"] is not None) == (rank in (0, 2))
        assert found["values"] == results[0]["values"] and found["copied"] == found["values"]["head.bias"]
        assert found["denied"].startswith("Denied: head.bias: zero_()"), found["denied"]
        assert found["written"] == found["meta"] == found["expected"]
        assert found["called"]
        if options["strategy"] == "zero3":
            assert "end the block" in found["inside"] and "units" in found["late"], found
            assert all(math.isnan(value) for value in found["read"]) == (rank != 0)
    for key in ("bits", "meta bits"):
        assert len({found[key] for found in results}) == 1
    with weightd.attach("units-0", version=results[0]["version"]) as buffer:
        for name, value in results[0]["values"].items():
            assert list(buffer[name].numpy().flatten()) == value, name


def test_engines_of_all_stages_have_one_curve(host, daemon):
    for expected, *found in host.play(daemon, "units.engines", 4, nodes=2):
        for ours in found:
            assert ours == expected


def test_units_that_cannot_be_are_refused_by_name(host, daemon):
    (found,) = host.play(daemon, "units.refusals")
    for name, words in {
            "units": "ValueError: units= is for strategy=\"zero3\"", "reshard": "ValueError: reshard= is for",
            "prefetch": "ValueError: prefetch= is for", "class": "no module of Blocks is meant, which has Block, Blocks, Lay",
            "none": "ValueError: units=[]: no module of Blocks is meant", "name": ": layers.7: no module has that name",
            "list": ": layers: a module without a forward() is never called",
            "inner": ": layers.1.attention.out_proj: the module around it reads its parameters",
            "number": "ValueError: units=0: a number of parameters must be 1 or more",
            "type": "TypeError: units=[<class 'torch_units.Block'>, 3]: classes of modules, names of modules, a function",
            "predicate": "no module of Blocks is meant",
            "deep": "Error: '0.0.0.0.0.0.0.0.own' has level 8; units are nested in 7 others at most"}.items():
        assert words in found[name], (name, found[name])


def test_what_would_train_in_vain_or_fault_is_refused_and_training_goes_on(host, daemon):
    (found,) = host.play(daemon, "units.traps")
    assert found["shape"] == [0] and found["handed"] == []
    assert found["fine"] is None and found["fine again"] is None
    for name, words in {
            "calling": "Error: 'other' is called inside 'one', and is none of its modules",
            "read": "RuntimeError: ", "written": "Denied: layers.1.up.weight: zero_() would write a parameter that is in",
            "clipped": "Error: inner.weight, inner.bias, layers.0.norm.weight, ",
            "foreign": "SGD would write parameters that are in the memory of a job",
            "state_dict": "Error: inner.weight, inner.bias: with strategy=\"zero3\" the parameters of a closed unit",
            "deepcopy": "`with weightd.train.gathered(model):`", "pickle": "`with weightd.train.gathered(model):`",
            "weight": "Error: weight= with strategy='zero3'", "weight of zero2": "Error: weight= with strategy='zero2'",
            "second": "Error: head.bias: its gradient was handed over, and another backward pass made one",
            "changed": "Error: layers.1.up.bias: the gradient was changed in place after backward",
            "converted": "Denied: inner.weight", "rebound": "Denied: layers.1.up.weight: written or converted while the unit was closed"}.items():
        assert words in found[name], (name, found[name])


KILLED = {"zero2": {"strategy": "zero2", "bucket_bytes": 512}, "zero3": {"strategy": "zero3", "units": ["body.0", "body.4"]}}


@pytest.mark.parametrize("row", KILLED)
def test_a_killed_rank_goes_on_with_the_same_bits(host, daemon, row):
    """After forward, when the others wait for it, and after backward, with its gradients handed over."""
    expected = host.play(daemon, "run", 4, nodes=2, steps=6, job="whole", **KILLED[row])
    env = host.meeting()
    start = functools.partial(host.start, daemon, "run", n=4, env=env, nodes=2, steps=6, job="killed", **KILLED[row])
    ranks, killed = [start(rank=rank) for rank in (0, 1, 3)], [start(rank=2, dies=[1, "forward"])]
    for dies in [3, "backward"], None:
        assert killed[-1].wait() == -signal.SIGKILL
        killed.append(start(rank=2, dies=dies))
    ranks.insert(2, killed[-1])
    for rank, want in zip(ranks, expected):
        result = rank.value()
        assert result["bits"] == want["bits"] and result["losses"] == want["losses"][result["first"]:]


def test_a_rank_that_backward_waits_for_in_vain_is_an_error_of_the_step_which_can_be_repeated(host, daemon):
    options = {"strategy": "zero2", "bucket_bytes": 512}
    expected = host.play(daemon, "units.held", 2, **options)
    rank = host.start(daemon, "units.held", 0, 2, deadline=0.5, **options)
    other = host.start(daemon, "units.held", 1, 2, holds=1, **options)
    wait_for(other, "begins 0", "T")
    until(lambda: "late" in rank.log.partition("begins 1")[2], lambda: rank.log, 60)
    other.kill(signal.SIGCONT)
    assert [rank.value(), other.value()] == expected


@pytest.mark.parametrize("where", ("node", "line"))
def test_units_of_one_size_in_another_order_are_not_taken_for_each_other(host, daemon, where):
    for found in host.play(daemon, "units.disordered", 4, nodes=2, where=where):
        assert "all ranks open the same units in the same order" in found, found


def test_a_backward_pass_that_ctrl_c_cut_makes_no_step(host, daemon):
    options = {"strategy": "zero2", "bucket_bytes": 512}
    expected = host.play(daemon, "units.held", 2, **options)
    rank = host.start(daemon, "units.held", 0, 2, deadline=None, **options)
    other = host.start(daemon, "units.held", 1, 2, holds=1, deadline=None, **options)
    wait_for(rank, "begins 1")
    wait_for(other, "begins 0", "T")
    interrupt(rank, rank.is_over)
    found = rank.value()
    assert found["error"] == "KeyboardInterrupt()" and "start this rank again" in found["then"][0], found
    other.kill(signal.SIGCONT)
    results = [host.start(daemon, "units.held", 0, 2, **options).value(), other.value()]
    assert [result["bits"] for result in results] == [result["bits"] for result in expected]


@pytest.mark.parametrize("how", ("deadline", "Ctrl-C"))
def test_a_rank_that_lost_the_order_of_units_says_so_and_goes_on_when_it_is_started_again(host, daemon, how):
    options = {"strategy": "zero3", "units": 1000}
    expected = host.play(daemon, "units.held", 2, nodes=2, **options)
    env = host.meeting()
    rank = host.start(daemon, "units.held", 0, 2, env, 2, deadline=5.0 if how == "deadline" else None, **options)
    other = host.start(daemon, "units.held", 1, 2, env, 2, deadline=None, holds=1, **options)
    wait_for(other, "begins 0", "T")
    if how == "Ctrl-C":
        wait_for(rank, "begins 1")
        interrupt(rank, rank.is_over)
    found = rank.value()
    assert found["error"].startswith("Timeout" if how == "deadline" else "KeyboardInterrupt"), found
    for sentence in found["then"]:
        assert "the ranks open units in one order, which is lost; start this rank again" in sentence, found
    again = host.start(daemon, "units.held", 0, 2, env, 2, **options)
    other.kill(signal.SIGCONT)
    results = [again.value(), other.value()]
    assert [result["bits"] for result in results] == [result["bits"] for result in expected]
    assert [result["first"] for result in results] == [1, 0]


@pytest.mark.parametrize("what", ("evaluation", "publish"))
@pytest.mark.parametrize("where", ("before", "behind"))
def test_a_rank_that_is_killed_where_all_evaluate_or_publish_goes_on(host, daemon, where, what):
    """Alone, if it comes there again. Else the others end, with the reason, and all go on when they were started again."""
    expected = host.play(daemon, "units.evaluated_around", 2, nodes=2, where=where, what=what)
    env = host.meeting()
    start = functools.partial(host.start, daemon, "units.evaluated_around", n=2, env=env, nodes=2, where=where, what=what)
    other, killed = start(rank=0, holds=1), start(rank=1)
    wait_for(other, "looks 0" if where == "before" else "", "T")
    wait_for(killed, "looks 1")
    killed.kill()
    killed.wait()
    again = start(rank=1)
    other.kill(signal.SIGCONT)
    if where == "behind":
        assert "rank that is started again repeats them; start this rank again" in other.value()["error"]
        other = start(rank=0)
    assert [other.value(), again.value()] == expected

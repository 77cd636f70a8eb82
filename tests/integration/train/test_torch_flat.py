"""Parameters as views of one flat memory: the checks of the flat tensor, with torch 2."""
import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]


@pytest.mark.plain
def test_flat_1_a_layout_of_a_meta_module_takes_no_memory(host, daemon):
    (found,) = host.play(daemon, "layout_of_meta")
    assert found["grown"] < 0.01 * found["n_bytes"], found
    assert found["offsets"][:4] == [i * 8192 * 8192 * 4 for i in range(4)]


def test_flat_2_and_3_every_tensor_is_a_view_and_remains_one(host, daemon):
    for found in host.play(daemon, "views", 2):
        refused, gradients = found.pop("refused"), (found.pop("gradients"), found.pop("gradients anew"))
        assert "in the memory of a job" in refused and refused.startswith("Denied: body.0.weight, ")
        assert gradients == ([], [])  # all are views of GRAD until the step
        assert set(map(tuple, found.values())) == {()}, found


@pytest.mark.plain
@pytest.mark.parametrize("n", (2, 3))
def test_flat_4_all_ranks_together_have_the_parameters_once(host, daemon, n):
    results = host.play(daemon, "resident", n)
    n_bytes = results[0]["n_bytes"]
    assert abs(sum(result["shared"] for result in results) - n_bytes) < 0.01 * n_bytes, results
    assert sum(result["private"] for result in results) > 0.95 * n * n_bytes, results  # before


@pytest.mark.plain
def test_flat_5_values_go_one_tensor_at_a_time_into_a_module_of_the_meta_device(host, daemon):
    for found in host.play(daemon, "filled", 2):
        assert found["values"] == [1, 2, 3, 4] and found["on meta"] == []
        assert found["grown"] < 1.1 * 2048 * 2048 * 4, found


def test_flat_5_a_rank_waits_for_the_values_of_rank_0(host, daemon):
    waits = host.start(daemon, "filled", 1, 2, job="j")
    assert not waits.is_over(0.5)
    gives = host.start(daemon, "filled", 0, 2, job="j")
    assert [rank.value()["values"] for rank in (gives, waits)] == [[1, 2, 3, 4]] * 2


def test_flat_5_a_rank_without_values_ends_at_the_deadline(host, daemon):
    rank = host.start(daemon, "meta_alone", 1, 2, job="j", deadline=0.3)
    kind, sentence = rank.error()
    assert kind == "Timeout" and "rank 0" in sentence and "fill the parameters" in sentence
    kind, sentence = host.start(daemon, "meta_alone", 0, 2, job="j").error()
    assert kind == "ValueError" and "meta device" in sentence
    assert sentence.startswith("layers.0.weight, layers.1.weight")

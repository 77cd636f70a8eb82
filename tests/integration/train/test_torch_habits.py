"""Habits of programs beside the loop of training: torch.compile, evaluation, workers of a DataLoader, writes."""
import os

import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]

CLOSE = 2e-6


def apart(one, other):
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other))


def test_a_compiled_module_trains_as_an_eager_one(host, daemon):
    """WEIGHTD_PYTHON_COMPILE=inductor compiles with the compiler of C++, for a minute."""
    backend = os.environ.get("WEIGHTD_PYTHON_COMPILE", "aot_eager")
    (found,) = host.play(daemon, "habits.compiled", steps=20, backend=backend)
    assert found["eager"][-1] < 0.95 * found["eager"][0]  # it learns
    assert apart(found["recomputed"], found["eager"]) <= CLOSE
    assert found["compiled"].keys() == {"False", "True"}
    for losses, n_graphs in found["compiled"].values():
        assert apart(losses, found["eager"]) <= CLOSE and 1 <= n_graphs <= 2


def test_evaluation_amid_training_reads_a_whole_step(host, daemon, tmp_path):
    one, other = host.play(daemon, "habits.evaluates", 2, folder=str(tmp_path))
    first, *meanwhile = one["seen"]
    assert len(meanwhile) == 2 and all(seen == first for seen in meanwhile) and other["seen"] == [first]
    assert one["after"] == other["after"] != first


@pytest.mark.parametrize("method", ("fork", "spawn"))
def test_workers_of_a_data_loader_that_start_after_the_job_work(host, daemon, method):
    (found,) = host.play(daemon, "habits.loads_data", method=method)
    n_epochs = 1 if method == "spawn" else 2
    assert found["seen"] == [0, 1, 2, 3, 4, 5, 6, 7] * n_epochs and found["own"] == 0 and found["right"]
    assert found["steps"] == n_epochs


def test_writes_to_a_parameter_are_refused_before_they_fault(host, daemon):
    (found,) = host.play(daemon, "habits.writes")
    assert len(found["refused"]) == 19
    for how, sentence in found["refused"].items():
        name = "1.weight" if how == "reset_parameters" else "0.weight"
        assert sentence and sentence.startswith(f"Denied: {name}: "), (how, sentence)
        assert "with weightd.train.writable(model):" in sentence, how
    assert found["unchanged"] and found["refused elsewhere"] == []
    assert found["step"] is None and found["changed"]


@pytest.mark.parametrize("options", ({}, {"form": "two-phase", "overlap": True}), ids=("fused", "overlap"))
def test_clipping_by_torch_is_refused_and_changes_nothing(host, daemon, options):
    (found,) = host.play(daemon, "habits.clips", **options)
    for how, sentence in found["refused"].items():
        name = "head.weight" if how == "of one" else "inner.weight, "
        assert sentence and sentence.startswith(f"Error: {name}"), (how, sentence)
        assert "opt.step(max_norm=...)" in sentence
        assert how not in ("clip_grad_norm_", "clip_grad_value_") or f"{how}() would clip" in sentence
    assert found["same"] and found["step"] is None
    assert found["norm"] == pytest.approx(found["expected"], rel=1e-6) and found["norm"] > 0.1
    assert found["clipped"] == pytest.approx(0.1, rel=1e-4), "an iterator was not clipped"


def test_tensors_that_left_the_job_are_named_by_the_next_step(host, daemon):
    (found,) = host.play(daemon, "habits.moved")
    for what in ("fine", "pickled gradient", "fine again"):
        assert found.pop(what) is None, what
    lost = ": no longer in the memory of the job"
    for what, says in {
            "vector_to_parameters": f"Error: 0.weight, 0.bias, 1.weight, 1.bias{lost}",
            "bfloat16": f"Error: 0.weight, 0.bias{lost}", "to": f"Error: 0.weight, 0.bias{lost}",
            "another dtype": f"Error: 0.weight{lost}",
            "frozen late": "Error: 0.weight: requires_grad is False since the optimizer was made",
            "gradient in place": "Error: 0.weight: the gradient was changed in place after backward",
            "gradient moved": "Error: 0.bias: p.grad is no longer in the memory of the job",
            "pickle": "TypeError: 0.weight: a parameter of a job is not handed to another process",
            "buffer": "Error: 1.running_mean: the buffer is no longer in the memory of the job",
            "share_memory": f"Error: 0.weight, 0.bias, 1.weight, 1.bias{lost}",
    }.items():
        assert (found.pop(what) or "").startswith(says), what
    assert not found

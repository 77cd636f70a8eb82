"""Habits of torch with parameters and gradients: handled, or refused by name."""
import signal

import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.plain]


def test_modules_that_cannot_be_trained_are_refused_by_name(host, daemon):
    (found,) = host.play(daemon, "refusals")
    assert found.pop("dims") == {"dp": 1} and found.pop("group") == [0] and found.pop("coordinate") == 0
    for what, says in {
            "frozen": "ValueError: Net has no parameters to train: none needs a gradient",
            "mixed": "ValueError: inner.weight (torch.bfloat16), block.self_attn.in_proj_weight (torch.float32): trained "
                     "parameters of several types",
            "double": "ValueError: inner.weight (torch.float64), inner.bias (torch.float64): none of torch.float32, ",
            "fused scaler": "ValueError: a scaler needs the whole gradient before the update",
            "GradScaler": "TypeError: scaler is a GradScaler, and no weightd.train.Scaler",
            "True": "TypeError: scaler is a bool, and no weightd.train.Scaler",
            "type": "TypeError: precision=torch.bfloat16 is no weightd.train.Precision",
            "reduce": "ValueError: Precision(reduce=torch.bfloat16): gradients of torch.float32 parameters are ",
            "param": "ValueError: Precision(param=torch.float64) is none of torch.float32, ",
            "buffer": "ValueError: Precision(buffer=torch.int8) is no floating-point type",
            "growth": "ValueError: Scaler(growth_factor=0.5): it must be at least 1",
            "interval": "ValueError: Scaler(growth_interval=0): it must be a number of steps",
            "apart": "ValueError: 0.weight and 1.weight: several tensors over one memory",
            "sparse": "ValueError: weight: weightd has no tensors in layout torch.sparse_coo",
            "none": "ValueError: ReLU has no parameters",
            "strategy": "ValueError: strategy='zero4' is none of 'shared', 'zero1', 'zero2', 'zero3', 'replicated'",
            "form": "ValueError: form='three' is none of ",
            "unsharded": "Error: Net: call weightd.train.shard(module, mesh) first",
            "groups": "ValueError: inner.bias, block.self_attn.in_proj_weight, ",
            "stranger": "ValueError: the parameter groups have 16 parameters that the module has not",
            "lr": "ValueError: parameter group 0: lr is -1.0",
            "mesh": "ValueError: the mesh {'dp': 3} has 3 ranks, and the launcher started 1",
            "dim": "Error: ",
            "sync_every": "ValueError: sync_every is for several machines, and the mesh has one",
            "engine": "TypeError: engine is a str, and no process group of torch.distributed",
    }.items():
        assert found.pop(what).startswith(says), what
    assert not found


def test_steps_that_would_train_in_vain_are_refused_by_name(host, daemon):
    (found,) = host.play(daemon, "traps")
    for what in ("fine", "fine again", "deepcopy", "idle"):
        assert found.pop(what) is None, what
    for what, says in {
            "gradient": "Error: embed.weight: the gradient was changed in place after backward",
            "GradScaler": "Error: a GradScaler would skip steps on one rank alone",
            "create_graph": "backward(create_graph=True) made a gradient with a graph of its own",
            "sparse gradient": "Error: embed.weight: its gradient is sparse",
            "old graph": "RuntimeError: one of the variables needed for gradient computation has been modified",
            "foreign optimizer": "Denied: embed.weight, more.weight, more.bias: SGD would write parameters that are in the memory of a job",
            "add_param_group": "Error: parameter groups are part of the plan",
            "state_dict": "Error: the state of this optimizer is in its job, in parts, and a start of the program resumes it; opt.save(folder)",
            "second optimizer": "Error: this module has an optimizer already",
            "closure": "TypeError: step() takes the loss, and no closure",
            "max_norm": 'Error: max_norm needs the whole gradient before the update: shard(..., form="two-phase")',
            "cursor": "ValueError: cursor={1, 2} is nothing that JSON has",
            "long cursor": "ValueError: the cursor takes 5002 bytes",
            "betas": "Error: parameter group 0: betas is (0.5, 0.9) and was (0.9, 0.999)",
            "frozen": "Error: embed.weight: requires_grad is False since",
            "late": "Error: late.weight, late.bias: added or removed since the optimizer was made",
            "swapped": "Error: more.weight, more.bias: added or removed since the optimizer was made",
            "copy's no_sync": "Error: this copy of a sharded module is an ordinary module",
            "assign": "Denied: embed.weight, more.weight, more.bias: in the memory of a job",
            "submodule": "Denied: weight, bias: in the memory of a job",
            "rebound": "Error: more.weight: no longer in the memory of the job",
            "replaced": "Error: more.bias: no longer in the memory of the job",
            "closed": "Error: this rank has left its job by close()",
    }.items():
        assert says in found.pop(what), what
    assert not found


def test_a_write_that_no_hook_sees_is_a_fault(host, daemon):
    rank = host.start(daemon, "stray", 0, 1)
    assert rank.wait() == -signal.SIGSEGV and "torch_scenes.py" in rank.log and "in stray" in rank.log


def test_a_second_backward_after_the_gradients_were_handed_over_is_refused(host, daemon):
    (found,) = host.play(daemon, "second_backward")
    assert "its gradient was handed over, and another backward pass made one" in found["error"]
    assert "no_sync()" in found["error"] and found["step"] is None and found["again"] is None


def test_threads_and_forked_children_read_a_whole_step(host, daemon):
    (found,) = host.play(daemon, "evaluated")
    assert found.pop("refused").startswith("Disconnected: this process was forked from a rank")
    assert found == {"thread": True, "child": True, "still": None}


def test_older_torch_is_refused_in_a_sentence(python):
    """The interpreter of the tests has torch 1.13, or none."""
    done = python("import weightd.train", check=False)
    if done.returncode == 0:
        pytest.skip("this interpreter has torch 2.1 or newer")
    assert "ImportError: weightd.train needs torch 2.1 or newer" in done.stderr

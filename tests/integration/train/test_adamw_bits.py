"""
Our optimizers beside torch's fused ones on the CPU, bit by bit, over 60 steps.

They are equal in parameters and moments where torch runs its vector loop with AVX2 or AVX-512, for tensors whose length is a
multiple of 16: AdamW, Adam with coupled decay, SGD. With 16-bit gradients torch has float32 parameters and the gradients
widened, and the rounded copy of parameters is tensor.to(). They may differ
- in the last elements of other lengths, which torch computes one by one with other roundings: ours pads tensors to 16;
- where torch has no FMA (ATEN_CPU_CAPABILITY=default): by a few units in the last place.
"""
import functools
import json
import pathlib
import subprocess

import pytest
from lib import features

SCRIPT = pathlib.Path(__file__).with_name("torch_bits.py")
TOOL = features.BUILD / "unit/tool_optimizer"
STEPS, N = 60, 4096
pytestmark = pytest.mark.plain  # torch needs a plain interpreter; test_train_kernels runs sanitized

CASES = {
    "adamw": ("adamw", N, 1, STEPS, {"lr": 1e-3, "weight_decay": 1e-2}, "f32"),
    "adamw of a line": ("adamw", 16, 1, STEPS, {"lr": 1e-3, "weight_decay": 1e-2}, "f32"),
    "adamw without decay": ("adamw", N, 1, STEPS, {"lr": 1e-3, "weight_decay": 0}, "f32"),
    "adamw of 2 ranks": ("adamw", N + 16, 2, STEPS, {"lr": 3e-4, "weight_decay": 0.1, "betas": (0.9, 0.95)}, "f32"),
    "adamw of 4 ranks": ("adamw", N, 4, STEPS, {"lr": 1e-3, "weight_decay": 1e-2, "eps": 1e-6}, "f32"),
    "adamw with a small beta1": ("adamw", N, 1, STEPS, {"lr": 1e-3, "betas": (0.4, 0.95)}, "f32"),
    "adam": ("adam", N, 2, STEPS, {"lr": 1e-3, "weight_decay": 1e-2}, "f32"),
    "adam without decay": ("adam", N, 1, STEPS, {"lr": 1e-3}, "f32"),
    "sgd": ("sgd", N, 1, STEPS, {"lr": 1e-2, "weight_decay": 1e-2}, "f32"),
    "sgd with momentum": ("sgd", N, 2, STEPS, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 1e-2}, "f32"),
    "sgd with nesterov": ("sgd", N, 1, STEPS, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}, "f32"),
    "adamw of bf16": ("adamw", N, 1, STEPS, {"lr": 1e-3, "weight_decay": 1e-2}, "bf16"),
    "adamw of f16 of 2 ranks": ("adamw", N + 16, 2, STEPS, {"lr": 3e-4, "weight_decay": 0.1}, "f16"),
    "adamw of bf16 of 3 ranks": ("adamw", N, 3, STEPS, {"lr": 1e-3, "weight_decay": 1e-2}, "bf16"),
    "adam of f16 of 4 ranks": ("adam", N, 4, STEPS, {"lr": 1e-3, "weight_decay": 1e-2}, "f16"),
    "sgd of bf16": ("sgd", N, 2, STEPS, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 1e-2}, "bf16"),
}
TAIL = 7
RAGGED = {"ragged": ("adamw", N + TAIL, 1, STEPS, {"lr": 1e-3, "weight_decay": 1e-2}, "f32")}

# Instruction sets of torch, and those of ours beside each: ours have the same bits, which the unit test holds, too.
SETS = {"avx512": ["x86-64-v4"], "avx2": ["x86-64-v3", "x86-64-v2", "portable"], "default": ["x86-64-v2"]}


@functools.cache
def run_all():
    """The script's output by instruction set of torch: one start, as torch is large."""
    features.require("torch2")
    features.require("tools", "no unit/tool_optimizer (make benches)", TOOL.exists())
    command = [features.TORCH2, SCRIPT, TOOL, json.dumps(RAGGED | CASES), json.dumps(SETS)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def run(capability):
    """By instruction set of ours, where torch has that of its own."""
    out = run_all()[capability]
    features.require(capability, f"torch has {out['capability']} here, not {capability}",
                     out["capability"].lower() == capability)
    return out["found"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability, isa", [(capability, isa) for capability in ("avx512", "avx2") for isa in SETS[capability]])
def test_fused_optimizers_have_the_bits_of_torch(capability, isa):
    cases = {name: run(capability)[isa][name] for name in CASES}
    differ = {(name, what): found for name, case in cases.items() for what, found in case.items() if found["words"]}
    assert not differ
    assert {name for name, case in cases.items() if "rounded" in case} == \
        {name for name, case in CASES.items() if case[-1] != "f32"}


@pytest.mark.timeout(300)
def test_the_scalar_tail_of_torch_may_differ_and_nothing_before_it():
    for what, found in run("avx2")["x86-64-v3"]["ragged"].items():
        assert found["words"] <= TAIL, what
        assert found["first_index"] is None or found["first_index"] >= N, what
        assert found["largest"] < 1e-9, what


@pytest.mark.timeout(300)
def test_torch_without_fma_differs_by_units_in_the_last_place():
    cases = [run("default")["x86-64-v2"][name] for name in CASES]
    assert any(case["param"]["words"] for case in cases)
    assert max(case["param"]["largest"] for case in cases) <= 2e-6

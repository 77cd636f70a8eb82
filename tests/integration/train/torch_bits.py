"""
Runs torch's fused optimizers and ours on the same numbers, and prints where they differ: run by test_adamw_bits.py with
an interpreter that has torch 2.

torch_bits.py TOOL CASES SETS     JSON: cases of [optimizer, elements, ranks, steps, options of torch.optim, type], by name; our
                                  instruction sets by the one of torch, which a process for each has

The type is that of the gradients: f32, bf16 or f16. torch receives them widened to float32. The output has, by the set asked of
torch, the one that it has, and for each of our instruction sets, each case and each of param, m and v, and of the parameters
rounded to a 16-bit type: the number of words that differed after any step, the first such step, the first such index, and
the largest difference at the end.
"""
import ctypes
import json
import os
import subprocess
import sys

import torch

SCALE = 1e-2
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
WHATS = ("param", "m", "v", "rounded")


def main():
    tool, cases, sets = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    found = {}
    for capability, isas in sets.items():
        reader, writer = os.pipe()
        if not os.fork():
            os.environ["ATEN_CPU_CAPABILITY"] = capability  # torch reads it at its first operation
            with open(writer, "w") as out:
                json.dump(beside_torch(tool, cases, isas), out)
            os._exit(0)
        os.close(writer)
        with open(reader) as into:
            found[capability] = json.load(into)
        os.wait()
    print(json.dumps(found))


def beside_torch(tool, cases, isas):
    torch.manual_seed(1)
    found = {name: differences(tool, isas, *case) for name, case in cases.items()}
    return {"capability": torch.backends.cpu.get_cpu_capability(), "found": {isa: {name: found[name][isa] for name in cases} for isa in isas}}


def differences(tool, isas, name, n, n_ranks, n_steps, options, type_name):
    """By instruction set of ours."""
    param = torch.nn.Parameter(torch.randn(n))
    grads = (torch.randn(n_steps, n_ranks, n) * SCALE).to(TYPES[type_name])
    theirs = run_torch(name, param, grads, options)
    found = {}
    for isa in isas:
        ours = run_tool(tool, isa, name, theirs[0], grads, options, type_name)
        found[isa] = {what: compare([s[i] for s in ours], [s[i] for s in theirs[1:]])
                      for i, what in enumerate(WHATS[:len(ours[0])])}
    return found


def run_torch(name, param, grads, options):
    """[the first parameters, then (parameters, first moment, second moment, rounded parameters) after each step]"""
    optimizer = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name](
        [param], fused=True, **options)
    states = [param.detach().clone()]
    for ranks in grads:
        total = ranks[0].float().clone()
        for grad in ranks[1:]:
            total += grad.float()
        param.grad = total * (1 / torch.tensor(float(len(ranks))))
        optimizer.step()
        state, zeros = optimizer.state[param], torch.zeros_like(param)
        moments = [state.get("momentum_buffer"), None] if name == "sgd" else [state["exp_avg"], state["exp_avg_sq"]]
        states.append([param.detach().clone(), *((zeros if m is None else m).clone() for m in moments),
                       param.detach().to(grads.dtype, copy=True)])
    return states


def run_tool(tool, isa, name, param, grads, options, type_name):
    """The same as run_torch() has, without the first parameters; rounded ones for 16-bit gradients."""
    n_steps, n_ranks, n = grads.shape
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    arguments = [name, n, n_ranks, n_steps, options["lr"], options.get("weight_decay", 1e-2 if name == "adamw" else 0),
                 beta1, beta2, options.get("eps", 1e-8), options.get("momentum", 0),
                 int(options.get("nesterov", False)), type_name]
    given = bytes_of(param) + bytes_of(grads)
    done = subprocess.run([tool, *map(str, arguments)], input=given, stdout=subprocess.PIPE, check=True,
                          env=os.environ | {"WEIGHTD_TRAIN_ISA": isa})
    steps = torch.frombuffer(bytearray(done.stdout), dtype=torch.uint8).reshape(n_steps, -1)
    states = steps[:, :3 * n * 4].contiguous().view(torch.float32).reshape(n_steps, 3, n)
    rounded = steps[:, 3 * n * 4:].contiguous().view(grads.dtype)
    return [[*state] + [copy] * bool(len(copy)) for state, copy in zip(states, rounded, strict=True)]


def bytes_of(tensor):
    """The bytes of a contiguous tensor; this torch may have no NumPy."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def compare(ours, theirs):
    ours, theirs = torch.stack(ours), torch.stack(theirs)
    words_type = torch.int32 if ours.dtype == torch.float32 else torch.int16
    differ = ours.view(words_type) != theirs.view(words_type)
    steps, words = differ.any(1).nonzero().flatten().tolist(), differ.any(0).nonzero().flatten().tolist()
    return {"words": len(words), "first_step": steps[0] + 1 if steps else None,
            "first_index": words[0] if words else None,
            "largest": (ours[-1].float() - theirs[-1].float()).abs().max().item()}


main()

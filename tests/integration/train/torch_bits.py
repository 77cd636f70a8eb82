"""
Runs torch's fused optimizers and ours on the same numbers, and prints where they differ: run by test_adamw_bits.py with
an interpreter that has torch 2.

torch_bits.py TOOL CASES   JSON: cases of [optimizer, elements, ranks, steps, options of torch.optim], by name

The output has torch's release and instruction set, and for each case and each of param, m and v: the number of words
that differed after any step, the first such step, the first such index, and the largest difference at the end.
"""
import array
import json
import subprocess
import sys

import torch

SCALE = 1e-2


def main():
    tool, cases = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(json.dumps({"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(),
                      "cases": {name: differences(tool, *case) for name, case in cases.items()}}))


def differences(tool, name, n, n_ranks, n_steps, options):
    param = torch.nn.Parameter(torch.randn(n))
    grads = torch.randn(n_steps, n_ranks, n) * SCALE
    theirs = run_torch(name, param, grads, options)
    ours = run_tool(tool, name, theirs[0], grads, options)
    return {what: compare([s[i] for s in ours], [s[i] for s in theirs[1:]])
            for i, what in enumerate(("param", "m", "v"))}


def run_torch(name, param, grads, options):
    """[the first parameters, then (parameters, first moment, second moment) after each step]"""
    optimizer = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name](
        [param], fused=True, **options)
    states = [param.detach().clone()]
    for ranks in grads:
        total = ranks[0].clone()
        for grad in ranks[1:]:
            total += grad
        param.grad = total * (1 / torch.tensor(float(len(ranks))))
        optimizer.step()
        state, zeros = optimizer.state[param], torch.zeros_like(param)
        moments = [state.get("momentum_buffer"), None] if name == "sgd" else [state["exp_avg"], state["exp_avg_sq"]]
        states.append([param.detach().clone(), *((zeros if m is None else m).clone() for m in moments)])
    return states


def run_tool(tool, name, param, grads, options):
    n_steps, n_ranks, n = grads.shape
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    arguments = [name, n, n_ranks, n_steps, options["lr"], options.get("weight_decay", 1e-2 if name == "adamw" else 0),
                 beta1, beta2, options.get("eps", 1e-8), options.get("momentum", 0),
                 int(options.get("nesterov", False))]
    given = bytes_of(param) + bytes_of(grads.flatten())
    done = subprocess.run([tool, *map(str, arguments)], input=given, stdout=subprocess.PIPE, check=True)
    out = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32)
    return out.reshape(n_steps, 3, n)


def bytes_of(tensor):
    return array.array("f", tensor.tolist()).tobytes()


def compare(ours, theirs):
    ours, theirs = torch.stack(ours), torch.stack(theirs)
    differ = ours.view(torch.int32) != theirs.view(torch.int32)
    steps, words = differ.any(1).nonzero().flatten().tolist(), differ.any(0).nonzero().flatten().tolist()
    return {"words": len(words), "first_step": steps[0] + 1 if steps else None,
            "first_index": words[0] if words else None,
            "largest": (ours[-1] - theirs[-1]).abs().max().item()}


main()

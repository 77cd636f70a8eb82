"""Habits of programs beside the loop of training: compile, evaluate, load data, write. Functions as in torch_scenes.py."""
import functools
import os
import pathlib
import sys
import time

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clipped_before  # as programs have it that import it before weightd
from torch_scenes import attempt, batch, bits, environment, loss_of, made, part, sharded

VOCABULARY, LENGTH = 31, 16


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        queries, keys, values = (part.unflatten(-1, (2, -1)).transpose(1, 2)
                                 for part in self.mix(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """A GPT with a tied head."""

    def __init__(self, width=32, n_blocks=1):
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, width), nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(n_blocks))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.1)
        self.is_recomputed = False

    def forward(self, tokens):
        x = self.embed(tokens) + self.places
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.is_recomputed else block(x)
        return self.head(x)


def tokens_of(step, rank, n, n_samples=8):
    generator = torch.Generator().manual_seed(2000 + step)
    begin = torch.randint(0, VOCABULARY, (n_samples, 1), generator=generator)
    return ((begin + torch.arange(LENGTH + 1)) % VOCABULARY).chunk(n)[rank]


def gpt_loss(model, tokens):
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train_gpt(steps, compile_before=None, compile_after=None, is_recomputed=False):
    """Losses of a GPT, which is compiled before or after shard() sees it, or not."""
    import weightd.train

    rank, n = environment()
    module = made(Gpt)
    module.is_recomputed = is_recomputed
    called = sharded(compile_before(module) if compile_before else module)
    called = compile_after(called) if compile_after else called
    losses = []
    with weightd.train.AdamW(called, lr=1e-3) as optimizer:
        for step in optimizer.steps(steps):
            loss = gpt_loss(called, tokens_of(step, rank, n))
            loss.backward()
            optimizer.step(loss)
            losses.append(loss.item())
    return losses


def compiled(steps, backend):
    """Losses of the GPT, eager, recomputed in backward, and compiled in both ways with the number of graphs."""
    from torch._dynamo.testing import CompileCounterWithBackend

    found = {"eager": train_gpt(steps), "recomputed": train_gpt(steps, is_recomputed=True), "compiled": {}}
    for fullgraph, when in (False, "compile_before"), (True, "compile_after"):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend(backend)
        act = functools.partial(torch.compile, backend=counter, fullgraph=fullgraph)
        found["compiled"][str(fullgraph)] = [train_gpt(steps, **{when: act}), counter.frame_count]
    return found


# --- Evaluation, data --------------------------------------------------------------------------------


def wait_until(is_so, what):
    deadline = time.monotonic() + 200
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def evaluates(folder):
    """Rank 0 evaluates while rank 1 waits in its next step: outputs before and meanwhile, and of rank 1 then."""
    import weightd.train

    rank, n = environment()
    module, folder = sharded(made()), pathlib.Path(folder)
    x, _ = batch(99)
    with weightd.train.AdamW(module, lr=0.1) as optimizer:
        loss_of(module, *part(0, rank, n)).backward()
        optimizer.step()

        def evaluate():
            module.eval()
            with torch.no_grad():
                found = module(x).tolist()
            module.train()
            return found

        seen = [evaluate()]
        loss_of(module, *part(1, rank, n)).backward()
        if rank == 1:
            (folder / "part").write_text(str(os.getpid()))
            (folder / "part").rename(folder / "waits")
        else:
            wait_until((folder / "waits").exists, "rank 1 does not arrive")
            stat = pathlib.Path("/proc", (folder / "waits").read_text(), "stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", "rank 1 does not wait")
            seen += [evaluate(), evaluate()]
        optimizer.step()
        return {"seen": seen, "after": evaluate()}


class Samples(torch.utils.data.Dataset):
    """Each with the process that made it. `module`: its output beside, computed there."""

    def __init__(self, module=None):
        self.module = module

    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = torch.full((10,), float(index))
        if self.module is None:
            return x, os.getpid(), 0.0
        with torch.no_grad():
            return x, os.getpid(), self.module(x[None]).sum().item()


def loads_data(method):
    """A DataLoader whose workers are started after the job was opened; a step after each epoch."""
    import weightd.train

    sys.modules["__main__"].__file__ = None  # a spawned worker would import the host of ranks, for seconds
    module = sharded(made())
    with weightd.train.SGD(module, lr=0.01) as optimizer:
        found = {"seen": [], "right": True, "own": 0}
        samples = Samples(module if method == "fork" else None)
        for _ in range(1 if method == "spawn" else 2):
            loader = torch.utils.data.DataLoader(samples, batch_size=4, num_workers=1, multiprocessing_context=method)
            expected = {}
            if method == "fork":
                with torch.no_grad():
                    expected = {i: module(torch.full((1, 10), float(i))).sum().item() for i in range(len(samples))}
            for x, pids, outputs in loader:
                found["seen"] += x[:, 0].tolist()
                found["own"] += int((pids == os.getpid()).sum())
                if method == "fork":
                    found["right"] &= all(abs(expected[int(i)] - output) < 1e-5
                                          for i, output in zip(x[:, 0].tolist(), outputs.tolist()))
            loss_of(module, *batch(0)).backward()
            optimizer.step()
        return found | {"steps": optimizer.step_number}


# --- Writes ------------------------------------------------------------------------------------------


def writes():
    """Errors of writes to a parameter, by how; whether anything changed; and the same on an ordinary module."""
    import weightd.train

    module, plain = sharded(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))), nn.Linear(4, 6)
    init = {name: () for name in ("uniform_", "normal_", "trunc_normal_", "ones_", "zeros_", "eye_", "xavier_uniform_",
                                  "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_")}
    init |= {"constant_": (1.0,), "sparse_": (0.5,)}

    def assign(p):
        p[0] = 1.0

    def add(p):
        p += 1

    acts = {name: lambda p, name=name, given=given: getattr(nn.init, name)(p, *given) for name, given in init.items()}
    acts |= {"copy_": lambda p: p.copy_(torch.ones_like(p)), "add_": lambda p: p.add_(1), "fill_": lambda p: p.fill_(1),
             "index": assign, "+=": add}
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        before, found, free = bits(module), {}, []
        with torch.no_grad():
            for name, act in acts.items():
                found[name] = attempt(lambda: act(module[0].weight))
                if attempt(lambda: act(plain.weight)) is not None:
                    free.append(name)
        found["reset_parameters"] = attempt(module[1].reset_parameters)
        module(torch.ones(1, 4)).sum().backward()
        return {"refused": found, "unchanged": bits(module) == before, "refused elsewhere": free,
                "step": attempt(optimizer.step), "changed": bits(module) != before}


def clips(**options):
    """Errors of clipping, by how; the gradients of the module before and after; and clipping of an ordinary module."""
    import weightd.train

    module, plain = sharded(made(), **options), made()
    loss_of(plain, *batch(0)).backward()
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        loss_of(module, *batch(0)).backward()

        def gradients():
            return [p.grad is not None and p.grad.tolist() for p in module.parameters()]

        before = gradients()
        found = {
            "clip_grad_norm_": attempt(lambda: nn.utils.clip_grad_norm_(module.parameters(), 0.1)),
            "of one": attempt(lambda: nn.utils.clip_grad_norm_(module.head.weight, 0.1)),
            "imported before": attempt(lambda: clipped_before(module.parameters(), 0.1)),
            "clip_grad_value_": attempt(lambda: nn.utils.clip_grad_value_(module.parameters(), 0.1)),
        }
        same = gradients() == before
        expected = torch.stack([p.grad.norm() for p in plain.parameters()]).norm().item()
        norm = nn.utils.clip_grad_norm_(filter(lambda p: p.requires_grad, plain.parameters()), 0.1).item()
        again = nn.utils.clip_grad_norm_(plain.parameters(), 0.1).item()
        return {"refused": found, "same": same, "step": attempt(optimizer.step), "norm": norm, "expected": expected,
                "clipped": again}


def moved():
    """Errors of the step after tensors of the job were moved, and of their way to another process."""
    from multiprocessing.reduction import ForkingPickler

    import weightd.train

    found = {}
    module = sharded(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        data = [p.data for p in module.parameters()]

        def step(act=lambda: None):
            optimizer.zero_grad()
            module(torch.ones(2, 4)).sum().backward()
            act()
            error = attempt(optimizer.step)
            for parameter, kept in zip(module.parameters(), data):
                parameter.data = kept
            return error

        vector = nn.utils.parameters_to_vector(module.parameters()).detach()
        found["fine"] = step()
        found["vector_to_parameters"] = step(lambda: nn.utils.vector_to_parameters(vector, module.parameters()))
        found["bfloat16"] = step(lambda: module[0].bfloat16())
        found["to"] = step(lambda: module[0].to(torch.float64))
        found["another dtype"] = step(lambda: setattr(module[0].weight, "data", torch.ones(6, 4).half()))
        found["frozen late"] = step(lambda: module[0].weight.requires_grad_(False))
        module[0].weight.requires_grad_(True)
        found["gradient in place"] = step(lambda: module[0].weight.grad.mul_(2))
        found["gradient moved"] = step(lambda: setattr(module[0].bias.grad, "data", torch.zeros(6)))
        found["pickle"] = attempt(lambda: ForkingPickler.dumps(module))
        found["pickled gradient"] = step(lambda: ForkingPickler.dumps(module[0].weight.grad))
        found["fine again"] = step()
    other = sharded(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    optimizer = weightd.train.SGD(other, lr=0.1)
    other[1].running_mean.share_memory_()
    other(torch.ones(2, 4)).sum().backward()
    found["buffer"] = attempt(optimizer.step)
    other.share_memory()
    found["share_memory"] = attempt(optimizer.step)
    return found

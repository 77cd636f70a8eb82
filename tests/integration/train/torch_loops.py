"""Scenes of loops that people have: flat ranges with optimizers of torch, the sampler, and configs of DeepSpeed."""
import copy
import json
import os
import pathlib
import signal

import torch
from torch import nn

import torch_scenes as scenes
import weightd.train
from torch_scenes import Branches, Net, Plain, Tied, bits, environment, loss_of, made, part
from weightd.train import _config


def sentence(call, *args, **kwargs):
    """The class and the sentence of the exception that a call raises."""
    try:
        call(*args, **kwargs)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None


def mesh():
    return weightd.train.init_mesh()


# --- Flat ranges ----------------------------------------------------------------------------------


def flat_curve(steps, optimizer, async_op=False):
    """Losses and bits of this rank's part, by an optimizer of torch that is made before flatten()."""
    rank, n = environment()
    module = made(seed=rank)
    optimizer = {"AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
                 "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)}[optimizer](module.parameters())
    flat, losses = weightd.train.flatten(module, mesh()), []
    flat.sync_from(0)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss = loss_of(module, *part(step, rank, n))
        loss.backward()
        ticket = flat.average_grads(async_op=async_op)
        if async_op:
            ticket.wait()
        optimizer.step()
        losses.append(loss.item())
    flat.verify()
    return {"losses": losses, "bits": bits(module)}


def flat_views(values=(3.0, 5.0)):
    """All calls on one module with buffers, ties, and several types; what each rank has afterwards."""
    rank, n = environment()
    module = Plain()
    module.half_weight = nn.Parameter(torch.full((5,), 1.0 + rank, dtype=torch.bfloat16))
    module.tied = module.body[0]
    module.register_buffer("table", torch.full((3,), rank, dtype=torch.int64))
    module.fixed = nn.Parameter(torch.full((4,), float(rank), dtype=torch.float64), requires_grad=False)
    flat, found = weightd.train.flatten(module, mesh()), {}
    flat.verify()
    start, end = flat.buffer.data_ptr(), flat.buffer.data_ptr() + flat.buffer.numel()
    found["outside"] = [name for name, t in flat.items() if not start <= t.data_ptr() < end or t.data_ptr() % 64]
    found["others"] = [name for name, p in [*module.named_parameters(), *module.named_buffers()] if flat[name] is not p]
    found["ties"] = flat["tied.weight"] is flat["body.0.weight"] is module.body[0].weight
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(values[rank])
    versions = [p._version for p in module.parameters()]
    flat.average_params()
    found["mean"] = sorted({(str(p.dtype), *p.flatten().tolist()) for p in (module.half_weight, module.fixed)})
    found["weight"] = module.body[0].weight.unique().tolist()
    found["seen"] = [p._version > v for p, v in zip(module.parameters(), versions) if p.requires_grad]
    module(torch.ones(4, 10) + rank)  # its counters are other tensors now
    found["replaced"] = sentence(flat.verify)
    flat.sync_from(1)
    flat.verify()
    found["buffers"] = {name: b.flatten().tolist() for name, b in module.named_buffers()}
    found["frozen"] = module.fixed.tolist()
    found["no rank"] = sentence(flat.sync_from, 2)
    found["pickled"] = sentence(copy.deepcopy, flat)
    return found


def flat_gradients():
    """Unused parameters, weights, micro-batches, clipping: p.grad after average_grads()."""
    rank, n = environment()
    module, found = made(Branches), {}
    flat = weightd.train.flatten(module, mesh())
    x, y = part(0, rank, n)
    for _ in range(2):  # added up
        nn.functional.cross_entropy(module(x, rank == 0), y).backward()
    start = flat.buffer.data_ptr()
    found["views"] = [p.grad.data_ptr() >= start for p in module.first.parameters()]
    flat.average_grads()
    found["accumulated"] = {name: p.grad.flatten().tolist() for name, p in module.named_parameters()}
    found["norm"] = float(nn.utils.clip_grad_norm_(module.parameters(), 0.25))
    found["clipped"] = float(torch.stack([p.grad.norm() for p in module.parameters()]).norm())
    module.zero_grad()
    nn.functional.cross_entropy(module(x, False), y).backward()
    module.first.bias.grad[0] = float("nan") if rank == 1 else 2.0
    flat.average_grads(weight=[3, 0][rank])
    found["weighted"], found["unused"] = module.first.bias.grad[0].item(), module.second.weight.grad is None
    module.zero_grad()
    nn.functional.cross_entropy(module(x, False), y).backward()
    found["weightless"] = sentence(flat.average_grads, weight=0)
    found["negative"] = sentence(flat.average_grads, weight=-1)
    module.zero_grad()
    loss = (module.first(x) ** 2).sum()
    found["graph"] = sentence(loss.backward, create_graph=True)
    return found


def flat_without_template(kind):
    """Rank 1 has its module on the meta device, or none; tensors that it gets, and refusals before it has."""
    rank, _ = environment()
    module = made(Tied)
    if rank == 1:
        with torch.device("meta"):
            module = Tied() if kind == "meta" else None
    flat, found = weightd.train.flatten(module, mesh()), {}
    found["early"] = [sentence(flat.sync_from, 1), sentence(flat.average_params)]
    flat.sync_from(0)
    found["values"] = {name: tensor.flatten().tolist() for name, tensor in flat.items()}
    if module is None:
        found["gradients"] = sentence(flat.average_grads)
    else:
        flat.verify()
        found["tied"] = module.head.weight is module.embed.weight and module.head.weight.requires_grad
    flat.average_params()
    found["same"] = found["values"] == {name: tensor.flatten().tolist() for name, tensor in flat.items()}
    return found


def flat_tickets(n_bytes=1 << 20):
    """Tickets: of several calls at once, in order; the memory of the range, and what it grew by."""
    rank, n = environment()
    module = nn.Linear(n_bytes // 4096, 1024, bias=False)
    flat = weightd.train.flatten(module, mesh())
    with torch.no_grad():
        module.weight.fill_(float(rank))
    tickets = [flat.sync_from(n - 1, async_op=True), flat.average_params(async_op=True), flat.sync_from(0, async_op=True)]
    flat.average_params()  # behind them
    done = [ticket.done() for ticket in tickets]
    for ticket in tickets:
        ticket.wait()
    return {"done": done, "values": module.weight.unique().tolist(), "range": flat.buffer.numel()}


def flat_lost():
    """The sentence of verify() for each way in which a view is lost, and of the calls of all ranks."""
    ways = {"assign": lambda m: m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True),
            "data": lambda m: setattr(m.block.linear1.weight, "data", m.block.linear1.weight.data.clone()),
            "bfloat16": lambda m: m.bfloat16(),
            "moved": lambda m: setattr(m.head.bias, "data", m.inner.bias.data[:5]),
            "untied": lambda m: setattr(m.head, "bias", nn.Parameter(m.head.bias.data)),
            "gone": lambda m: m.head.register_parameter("bias", None)}
    found = {}
    for way, lose in ways.items():
        module = made()
        flat = weightd.train.flatten(module, mesh())
        module.load_state_dict(made(seed=1).state_dict())  # keeps the views
        nn.init.zeros_(module.head.bias)
        flat.verify()
        lose(module)
        found[way] = [sentence(flat.verify), sentence(flat.average_grads)]
    return found


def flat_refusals():
    rank, n = environment()
    found = {}
    wide = made()
    wide.head.weight.data = wide.head.weight.data.half()
    flat = weightd.train.flatten(wide, mesh())
    found["half"] = [sentence(flat.average_params), sentence(flat.average_grads)]
    flat.sync_from(0)
    twice = made()
    twice.head.weight.data = twice.inner.weight.data[:5]
    found["overlap"] = sentence(weightd.train.flatten, twice, mesh())
    mixed = made()
    mixed.head.to("meta")
    found["half meta"] = sentence(weightd.train.flatten, mixed, mesh())
    found["empty"] = sentence(weightd.train.flatten, nn.ReLU(), mesh())
    found["no module"] = sentence(weightd.train.flatten, None, mesh())
    return found


def flat_different(job):
    """Rank 1 has another shape; the order of types makes it the second tensor of the range."""
    rank, _ = environment()
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2 + rank))
    before = module[1].weight.data_ptr()
    refused = sentence(weightd.train.flatten, module, mesh(), job=job)
    return {"refused": refused, "is untouched": module[1].weight.data_ptr() == before}


def flat_in_job():
    module = scenes.sharded(made())
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        loss_of(module, *part(0, 0, 1)).backward()
        optimizer.step()
        return sentence(weightd.train.flatten, module, mesh(), job="other")


def flat_dies(job, dies):
    """Rank 1 dies in a loop, once; the sentence of the other."""
    rank, n = environment()
    module = made()
    flat = weightd.train.flatten(module, mesh(), job=job, deadline=60)
    if dies and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [sentence(flat.average_params), sentence(flat.average_params)] if dies else \
        [sentence(flat.average_params)]


def flat_waits(job):
    """A rank alone, which is killed while it waits for the other."""
    print("opens", flush=True)
    weightd.train.flatten(made(), mesh(), job=job)


class Numbers(torch.utils.data.Dataset):
    """Sample i is i."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


def flat_with_workers():
    """Workers of a DataLoader that are forked after the ranges are mapped, and sampled for this rank."""
    rank, n = environment()
    module = made()
    flat = weightd.train.flatten(module, mesh())
    flat.sync_from(0)
    sampler = weightd.train.Sampler(Numbers(13), mesh())
    loader = torch.utils.data.DataLoader(Numbers(13), batch_size=2, sampler=sampler, num_workers=1)
    taken = []
    for samples in sampler.batches(loader):
        flat.average_params()
        taken.append([samples.tolist(), sampler.weight(), sampler.state()["position"]])
    return taken


def gradients_of_one_process():
    """flat_gradients(): both ranks' parts."""
    module = made(Branches)
    for rank in range(2):
        x, y = part(0, rank, 2)
        for _ in range(2):
            (nn.functional.cross_entropy(module(x, rank == 0), y) / 2).backward()
    return {"accumulated": {name: p.grad.flatten().tolist() for name, p in module.named_parameters()},
            "norm": float(nn.utils.clip_grad_norm_(module.parameters(), 0.25))}

"""Scenes of loops that people have: flat ranges with optimizers of torch, the sampler, and configs of DeepSpeed."""
import copy
import ctypes
import hashlib
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


def flat_memory(size=2048):
    """The growth of the process while four tensors become flat, in rank 0 with values, and while rank 1 receives them."""
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what is freed is given back
    rank, _ = environment()
    module = scenes.Large("meta" if rank else "cpu", size)
    if rank == 0:
        for i, layer in enumerate(module.layers):
            nn.init.constant_(layer.weight, i + 1)
    weightd.train.flatten(nn.Linear(2, 2), mesh()).sync_from(0)  # so that all code is in memory
    grown, flat = scenes.peak_of(lambda: weightd.train.flatten(module, mesh()))
    received, _ = scenes.peak_of(lambda: flat.sync_from(0))
    return {"grown": grown, "received": received, "tensor": 4 * size * size,
            "values": [float(layer.weight[7, 9]) for layer in module.layers]}


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


class Seeds(Numbers):
    """Each sample is the seed of the worker that it is from."""

    def __getitem__(self, i):
        return torch.initial_seed()


def worker_seeds():
    """Seeds of workers in two epochs of two ranks, and again; whether the loops left torch's generator as it was."""
    before, found = torch.random.get_rng_state(), []
    for sampler in samplers(2, 4) + samplers(2, 4):
        loader = torch.utils.data.DataLoader(Seeds(4), batch_size=2, sampler=sampler, num_workers=1)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            found += [seeds[0].item() for seeds in sampler.batches(loader)]
    return found, torch.equal(torch.random.get_rng_state(), before)


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


# --- The sampler ----------------------------------------------------------------------------------


def samplers(n, n_samples, **options):
    return [weightd.train.Sampler(Numbers(n_samples), weightd.train.Mesh({"dp": n}, rank), **options) for rank in range(n)]


def taken(sampler, batch_size, drop_last=False, most=None):
    """Batches of one rank: samples, weight, samples of all, position."""
    loader = torch.utils.data.DataLoader(Numbers(sampler._n_samples), batch_size=batch_size, sampler=sampler,
                                         drop_last=drop_last)
    found, planned = [], sampler.n_batches(loader)
    for samples in sampler.batches(loader):
        found.append([samples.tolist(), sampler.weight(), sampler.n_samples(), sampler.state()["position"]])
        if len(found) == most:
            break
    assert most is not None or len(found) == planned, (found, planned)
    if most is None:  # without set_epoch() the next iteration is the same one again
        assert len(sampler) == len(list(copy.copy(sampler))), (found, len(sampler))
    return found


def sampled(cases):
    """The batches of all ranks in two epochs, by case."""
    found = []
    for case in cases:
        ranks = samplers(case["n"], case["n_samples"], shuffle=case["shuffle"])
        epochs = []
        for epoch in (0, 1):
            for sampler in ranks:
                sampler.set_epoch(epoch)
            epochs.append([taken(sampler, case["batch_size"], case["drop_last"]) for sampler in ranks])
        found.append(epochs)
    return found


def resampled(ranks, then, n_samples=23):
    """Samples of two epochs: ranks take some batches, and `then` others continue at the state of the last one."""
    found = []
    for most in (0, 1, 2, 3, 4):
        first = samplers(ranks, n_samples, seed=5)
        batches = [taken(sampler, 2, most=most) if most else [] for sampler in first]
        states = [json.loads(json.dumps(sampler.state())) for sampler in first]
        assert states == states[:1] * ranks, states
        others = samplers(then, n_samples, seed=5)
        for sampler in others:
            sampler.load_state(states[-1])
            sampler.set_epoch(sampler.epoch)
        rest = [taken(sampler, 3) for sampler in others]
        for sampler in others:
            sampler.set_epoch(1)
        found.append([batches, rest, [taken(sampler, 3) for sampler in others]])
    return found


def as_torch_samples(n=3, n_samples=12):
    """Indices by ours and by DistributedSampler, without batches; of the same epochs."""
    ours, theirs = [], []
    for rank, sampler in enumerate(samplers(n, n_samples, seed=7)):
        other = torch.utils.data.distributed.DistributedSampler(Numbers(n_samples), n, rank, seed=7)
        for epoch in (0, 3):
            sampler.set_epoch(epoch)
            other.set_epoch(epoch)
            ours.append([len(sampler), list(sampler)])
            theirs.append([len(other), list(other)])
    return [ours, theirs]


def sampler_refusals():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    (sampler,) = samplers(1, 5)
    other = torch.utils.data.DataLoader(Numbers(5), batch_size=2)
    list(torch.utils.data.DataLoader(Numbers(5), batch_size=2, sampler=sampler))
    found = {"plain": sentence(sampler.state), "weight": sentence(sampler.weight), "other": sentence(next, sampler.batches(other))}
    state = samplers(1, 6)[0].state()
    found["length"] = sentence(sampler.load_state, state)
    found["seed"] = sentence(sampler.load_state, state | {"n_samples": 5, "seed": 1})
    found["endless"] = sentence(weightd.train.Sampler, Endless(), mesh())
    found["empty"] = sentence(weightd.train.Sampler, Numbers(0), mesh())
    found["dims"] = sentence(weightd.train.Sampler, Numbers(5), weightd.train.Mesh({"tp": 2, "pp": 2}, 0))
    tensor_parallel = [list(weightd.train.Sampler(Numbers(4), weightd.train.Mesh({"dp": 2, "tp": 2}, rank), shuffle=False))
                       for rank in range(4)]
    return found | {"same": tensor_parallel}


def sampled_training(job, log, epochs=2, dies=None, start=None, most=None):
    """
    Trains on samples by their numbers. `log`: a folder for the samples of each step and rank, written before the step.
    Returns the cursor.
    """
    rank, n = environment()
    module, data = scenes.sharded(made(), job=job), Numbers(29)
    sampler = weightd.train.Sampler(data, mesh(), seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
    folder = pathlib.Path(log)
    with weightd.train.SGD(module, lr=0.01) as optimizer:
        sampler.load_state(optimizer.cursor or start)
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for samples in sampler.batches(loader):
                if dies and [rank, optimizer.step_number] == dies[:2]:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = loss_of(module, torch.randn(len(samples), 10), torch.zeros(len(samples), dtype=torch.int64))
                loss.backward()
                own = [[epoch, sample] for sample in samples.tolist()[:sampler.weight()]]
                (folder / f"{job}-{optimizer.step_number}-{rank}").write_text(json.dumps(own))
                optimizer.step(loss, weight=sampler.weight(), cursor=sampler.state())
                if optimizer.step_number == most:
                    return optimizer.cursor
    return optimizer.cursor


# --- Configs of DeepSpeed -------------------------------------------------------------------------


def configs(given):
    """Settings, or the sentence of the refusal, by config and number of ranks."""
    found = []
    for config, n in given:
        try:
            settings = _config.read(config, n)
            found.append(settings._asdict() | {"precision": settings.precision and settings.precision._asdict()})
        except ValueError as e:
            found.append(str(e))
    return found


class Samples(Numbers):
    """Sample i is one of batch(0), of which there are scenes.BATCH."""

    def __getitem__(self, i):
        x, y = scenes.batch(i // scenes.BATCH)
        return x[i % scenes.BATCH], y[i % scenes.BATCH]


# eps keeps parameters without an effect (queries and keys of one token) from steps that a processor's rounding makes.
CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, "gradient_clipping": 0.5,
          "optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.8, 0.99], "eps": 1e-4, "weight_decay": 0.1}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 0.02}}}


def engine_run(epochs, n_samples=35, more=None, dies=None, spoils=None, job=None, path=None):
    """
    The loop of DeepSpeed's users; rates and norms of the steps, and the bits. `path`: of a file for the config. `spoils`:
    rank and micro-batch of a loss that is infinite.
    """
    rank, n = environment()
    config = CONFIG | (more or {})
    if path:
        path = f"{path}-{rank}"
        pathlib.Path(path).write_text(json.dumps(config))
    module = made(seed=rank)
    engine, optimizer, loader, scheduler = weightd.train.initialize(
        model=module, config=path or config, training_data=Samples(n_samples), job=job, seed=1)
    found = {"first": engine.global_steps, "boundaries": [], "rates": [], "norms": [], "skipped": [],
             "epoch": loader.epoch, "types": sorted({str(p.dtype) for p in module.parameters()}), "scale": optimizer.loss_scale}
    engine.train()
    for _ in range(loader.epoch, epochs):
        for x, y in loader:
            if dies and [rank, engine.micro_steps] == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if not config.get("fp16", {}).get("auto_cast"):
                x = x.to(module.head.weight.dtype)
            loss = nn.functional.cross_entropy(engine(x), y)
            engine.backward(loss * float("inf") if [rank, engine.micro_steps] == spoils else loss)
            found["boundaries"].append(engine.is_gradient_accumulation_boundary())
            if found["boundaries"][-1]:
                found["rates"].append(engine.get_lr()[0])
            engine.step()
            if found["boundaries"][-1]:
                found["norms"].append(engine.get_global_grad_norm())
                found["skipped"].append(optimizer.overflowed)
    engine.eval()
    values = scenes.values(module)
    found |= {"bits": hashlib.sha256(repr(values).encode()).hexdigest(), "values": values, "mode": module.training,
              "scheduler": type(scheduler).__name__, "steps": engine.global_steps,
              "sizes": [engine.train_batch_size(), engine.train_micro_batch_size_per_gpu(),
                        engine.gradient_accumulation_steps()]}
    optimizer.close()
    return found


def engine_saved(folder, n_before=4, n_steps=9, load=False):
    """Saves after some steps and continues; or loads, and continues from there. Rates and samples of the steps after it."""
    rank, n = environment()
    module = made(seed=rank)
    engine, optimizer, loader, _ = weightd.train.initialize(module, CONFIG | {"gradient_accumulation_steps": 1},
                                                            training_data=Samples(29), job=f"saved-{n}-{load}", seed=2)
    found = {"rates": [], "samples": [], "tag": sentence(engine.save_checkpoint, folder, "best")}
    if load:
        found["loaded"] = [*engine.load_checkpoint(folder), engine.global_steps]
    while engine.global_steps < n_steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(engine(x), y)
            engine.backward(loss)
            if engine.global_steps >= n_before:
                found["rates"].append(engine.get_lr()[0])
                found["samples"].append([loader.epoch, x[:loader.sampler.weight(), 0].tolist()])
            engine.step()
            if engine.global_steps == n_before and not load:
                engine.save_checkpoint(folder)
            if engine.global_steps == n_steps:
                break
    found["bits"] = bits(module)
    optimizer.close()
    return found


def engine_saved_skipped(folder, n_before=4):
    """
    Saves a step in fp16 that was skipped, and loads it for another dataset: calls of the schedule, rate, whether it was
    skipped; the error.
    """
    found, error = [], None
    for job, n_samples in (("saves", 8), ("loads", 12)):
        engine, optimizer, *_ = weightd.train.initialize(
            made(), CONFIG | {"gradient_accumulation_steps": 1, "fp16": {"enabled": True, "auto_cast": True,
                                                                     "initial_scale_power": 10}},
            training_data=Samples(n_samples), job=job)
        if job == "loads":
            error = sentence(engine.load_checkpoint, folder)
        while engine.global_steps < n_before:
            loss = loss_of(engine, *scenes.batch(engine.global_steps))
            engine.backward(loss * float("inf") if engine.global_steps == n_before - 1 else loss)
            engine.step()
        found.append([engine.lr_scheduler.last_epoch, engine.get_lr(), optimizer.overflowed])
        if job == "saves":
            engine.save_checkpoint(folder)
        optimizer.close()
    return found, error


def engine_of_one_process(batch_size, rates, epochs, n_samples=35):
    """engine_run() by torch: batches of all ranks together, three of them a step; norms, and values."""
    module, norms, micro = made(), [], 0
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, betas=(0.8, 0.99), eps=1e-4, weight_decay=0.1, fused=True)
    data = Samples(n_samples)
    for epoch in range(epochs):
        order = torch.randperm(n_samples, generator=torch.Generator().manual_seed(1 + epoch)).tolist()
        for at in range(0, n_samples, batch_size):
            xs, ys = zip(*(data[i] for i in order[at:at + batch_size]))
            (nn.functional.cross_entropy(module(torch.stack(xs)), torch.stack(ys)) / 3).backward()
            micro += 1
            if micro % 3 == 0:
                norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), 0.5)))
                optimizer.param_groups[0]["lr"] = rates[len(norms) - 1]
                optimizer.step()
                optimizer.zero_grad()
    return {"norms": norms, "values": scenes.values(module)}


def rates(schedules):
    """Learning rates of ten steps by each schedule."""
    from weightd.train._engine import WarmupLR

    found = []
    for schedule in schedules:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
        scheduler, of_steps = WarmupLR(optimizer, **schedule), []
        for _ in range(10):
            of_steps.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        found.append(of_steps)
    return found


def engine_nan():
    """The step of a loss that is NaN on rank 1; those after it, the last one with a loss that zero_grad() dropped."""
    rank, _ = environment()
    module = made()
    engine, *_ = weightd.train.initialize(module, CONFIG | {"gradient_accumulation_steps": 1})
    found = []
    for step in range(3):
        loss = loss_of(engine, *scenes.batch(step)) * (float("nan") if (rank, step) == (1, 1) else 1.0)
        engine.backward(loss)
        found.append([sentence(engine.step), engine.global_steps, engine.micro_steps, engine.get_lr()[0]])
    engine.backward(loss_of(engine, *scenes.batch(3)) * float("nan"))
    engine.zero_grad()
    engine.backward(loss_of(engine, *scenes.batch(3)))
    found.append([sentence(engine.step), engine.global_steps, engine.micro_steps, engine.get_lr()[0]])
    engine.optimizer.close()
    return found


def engine_arguments():
    """Groups of parameters, a scheduler of torch, no loader; and refusals."""
    module = made()
    weights = [p for p in module.parameters() if p.dim() > 1]
    groups = [{"params": weights, "weight_decay": 0.3}, {"params": [p for p in module.parameters() if p.dim() <= 1], "lr": 0.5}]
    config = {"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
              "gradient_clipping": 0}
    engine, optimizer, loader, scheduler = weightd.train.initialize(
        module, config, model_parameters=groups, lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5))
    loss = loss_of(engine, *scenes.batch(0))
    returned = engine.backward(loss)
    engine.step()
    found = {"groups": optimizer.plan()["groups"], "lr": engine.get_lr(), "loader": loader, "norm": engine.get_global_grad_norm(),
             "form": optimizer.plan()["form"], "returned": returned.item() == loss.item(), "same": engine.lr_scheduler is scheduler}
    both = config | {"scheduler": {"type": "WarmupLR"}}
    found["two"] = sentence(weightd.train.initialize, made(), both, lr_scheduler=lambda o: None)
    found["object"] = sentence(weightd.train.initialize, made(), config, lr_scheduler=scheduler)
    optimizer.close()
    return found

"""The work of ranks in the tests of weightd.train: functions of JSON, which torch_host.py calls with torch 2."""
import contextlib
import ctypes
import hashlib
import os
import signal

import torch
import torch.distributed
from torch import nn
from torch.optim import lr_scheduler as schedulers

BATCH = 24


class Net(nn.Module):
    """A model of ragged sizes, with an attention."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.inner = nn.Linear(10, 12)
        self.block = nn.TransformerEncoderLayer(12, 3, 23, dropout, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        return self.head(self.block(self.inner(x)[:, None, :])[:, 0])


class Plain(nn.Module):
    """With running statistics, dropout, and a buffer that is another tensor after each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.body = nn.Sequential(nn.Linear(10, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 5))

    def forward(self, x):
        self.calls = self.calls + 1
        self.scratch = self.scratch + 1
        return self.body(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 10)
        self.head = nn.Linear(10, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x)))


class Branches(nn.Module):
    """Its second branch is used in some steps."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 5), nn.Linear(10, 5)

    def forward(self, x, uses_second):
        return self.first(x) + (self.second(x) if uses_second else 0)


def made(kind=Net, seed=0):
    torch.manual_seed(seed)
    return kind()


def batch(step, n=BATCH):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(n, 10, generator=generator), torch.randint(0, 5, (n,), generator=generator)


def part(step, rank, n):
    """A rank's samples of a step's batch."""
    x, y = batch(step)
    return x.chunk(n)[rank], y.chunk(n)[rank]


def bits(module):
    """A hash of all that a state_dict has. With "zero3" on several machines all ranks ask for it."""
    import weightd.train

    found = hashlib.sha256()
    with weightd.train.gathered(module) if hasattr(module, "no_sync") else contextlib.nullcontext():
        for name, tensor in module.state_dict().items():
            found.update(name.encode() + tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def loss_of(module, x, y):
    return nn.functional.cross_entropy(module(x), y)


def environment():
    """Rank and number of ranks."""
    launcher = ("RANK", "WORLD_SIZE") if "RANK" in os.environ else ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    return tuple(int(os.environ[name]) for name in launcher)


def sharded(module, rank=None, **options):
    import weightd.train

    return weightd.train.shard(module, weightd.train.init_mesh(), **options)


def begin_late():
    """From here on this rank begins however late the others are: a short deadline is then one of steps alone."""
    import weightd
    from weightd.train._trainer import Trainer

    begin = Trainer.begin

    def begin_again(trainer):
        while True:
            try:
                return begin(trainer)
            except weightd.Timeout:
                print("the others are late", flush=True)

    Trainer.begin = begin_again


# --- Curves ---------------------------------------------------------------------------------------


def single(steps, lr=1e-3):
    """Losses of one process that has the whole batch."""
    module = made()
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr, fused=True)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module, *batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def torch_ddp(steps, file, lr=1e-3):
    """Losses of this rank's part, by DistributedDataParallel over gloo."""
    rank, n = environment()
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=n)
    module = nn.parallel.DistributedDataParallel(made())
    optimizer = torch.optim.AdamW(module.parameters(), lr=lr, fused=True)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module, *part(step, rank, n))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.distributed.destroy_process_group()
    return losses


def ours(steps, lr=1e-3, **options):
    """Losses of this rank's part; the module's bits, the traffic as counted and as planned."""
    import weightd.train

    rank, n = environment()
    module = sharded(made(seed=rank), **options)  # rank 0's values are those of all
    with weightd.train.AdamW(module, lr=lr) as optimizer:
        losses = []
        for step in optimizer.steps(steps):
            loss = loss_of(module, *part(step, rank, n))
            loss.backward()
            optimizer.step(loss)
            losses.append(loss.item())
        planned = optimizer._trainer.planned_traffic(rank)
        return {"losses": losses, "bits": bits(module), "traffic": optimizer.traffic(), "planned": planned}


def strategies(steps, lr=1e-2):
    """The bits of the module after training by each strategy and form, and the bytes that the steps moved."""
    import weightd.train

    rank, n = environment()
    found = {}
    for strategy, form, more in (("shared", "fused", {}), ("shared", "two-phase", {"bucket_bytes": 2048}),
                                 ("zero1", "fused", {}), ("zero1", "two-phase", {}), ("replicated", "two-phase", {}),
                                 ("shared", "two-phase", {"bucket_bytes": 2048, "overlap": True})):
        module = sharded(made(), strategy=strategy, form=form, **more)
        with weightd.train.AdamW(module, lr=lr) as optimizer:
            filled = optimizer.traffic()
            for step in optimizer.steps(steps):
                loss_of(module, *part(step, rank, n)).backward()
                optimizer.step()
            moved = [after - before for after, before in zip(optimizer.traffic(), filled)]
            found[f"{strategy} {form}{' overlap' if more.get('overlap') else ''}"] = [
                bits(module), moved, optimizer._trainer.planned_traffic(rank)]
    return found


def clipped(steps, max_norm, **options):
    """Parameters and norms, with the global norm clipped."""
    import weightd.train

    rank, n = environment()
    module, norms = sharded(made(), form="two-phase", **options), []
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        for step in optimizer.steps(steps):
            loss_of(module, *part(step, rank, n)).backward()
            optimizer.step(max_norm=max_norm)
            norms.append(optimizer.norm)
        return {"norms": norms, "values": values(module)}


def clipped_by_torch(steps, max_norm):
    module, norms = made(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(module, *batch(step)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), max_norm)))
        optimizer.step()
    return {"norms": norms, "values": values(module)}


def values(module):
    return {name: tensor.flatten().tolist() for name, tensor in module.state_dict().items()}


def accumulated(k, steps=3, **options):
    """`k` micro-batches a step, all but the last in no_sync(); the bytes that moved."""
    import weightd.train

    rank, n = environment()
    module = sharded(made(), **options)
    with weightd.train.SGD(module, lr=0.1, momentum=0.9) as optimizer:
        for step in optimizer.steps(steps):
            x, y = part(step, rank, n)
            for i, (xs, ys) in enumerate(zip(x.chunk(k), y.chunk(k))):
                loss = loss_of(module, xs, ys) / k
                if i < k - 1:
                    with module.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
        return {"values": values(module), "read": optimizer.traffic().read}


def whole(steps=3):
    """accumulated() by torch, in one process."""
    module = made()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(module, *batch(step)).backward()
        optimizer.step()
    return values(module)


USES = (True, False), (True, True), (False, False), (False, True)  # by step and rank: of the second branch


def branches(**options):
    import weightd.train

    rank, n = environment()
    module = sharded(made(Branches), **options)
    with weightd.train.SGD(module, lr=0.1, momentum=0.9, weight_decay=0.1) as optimizer:
        for step in optimizer.steps(len(USES)):
            x, y = part(step, rank, n)
            nn.functional.cross_entropy(module(x, USES[step][rank]), y).backward()
            optimizer.step()
        return values(module)


def branches_of_one_process():
    """The mean of both parts' losses; in the third step the second branch has no gradient at all."""
    module = made(Branches)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for step, uses in enumerate(USES):
        optimizer.zero_grad()
        for rank in range(2):
            x, y = part(step, rank, 2)
            (nn.functional.cross_entropy(module(x, uses[rank]), y) / 2).backward()
        optimizer.step()
    return values(module)


def uneven(sizes, is_weighted, steps=3):
    """Each rank has its number of the batch's samples."""
    import weightd.train

    rank, _ = environment()
    module = sharded(made())
    with weightd.train.SGD(module, lr=0.1, momentum=0.9) as optimizer:
        for step in optimizer.steps(steps):
            x, y = batch(step)
            x, y = x.split(sizes)[rank], y.split(sizes)[rank]
            loss_of(module, x, y).backward()
            optimizer.step(weight=len(x) if is_weighted else None)
        return values(module)


def tied(steps=5, is_ours=True):
    import weightd.train

    rank, n = environment()
    module = made(Tied)
    optimizer = weightd.train.AdamW(sharded(module), lr=0.01) if is_ours else \
        torch.optim.AdamW(module.parameters(), lr=0.01, fused=True)
    for step in range(steps):
        tokens = torch.randint(0, 7, (8,), generator=torch.Generator().manual_seed(step))
        tokens, following = tokens.chunk(n)[rank], tokens.roll(1).chunk(n)[rank]
        if not is_ours:
            optimizer.zero_grad()
        nn.functional.cross_entropy(module(tokens), following).backward()
        optimizer.step()
    result = {"values": values(module), "is_tied": module.head.weight is module.embed.weight}
    if is_ours:
        result["tensors"] = [tensor["name"] for tensor in optimizer.plan()["tensors"]]
        optimizer.close()
    return result


def statistics(steps=3):
    """Parameters and buffers of this rank."""
    import weightd.train

    rank, n = environment()
    module = sharded(made(Plain))
    with weightd.train.AdamW(module, lr=0.01) as optimizer:
        for step in optimizer.steps(steps):
            loss_of(module, *part(step, rank, n)).backward()
            optimizer.step()
        return {"parameters": {name: p.flatten().tolist() for name, p in module.named_parameters()},
                "mean": module.body[1].running_mean.tolist(), "calls": module.calls.item(),
                "batches": module.body[1].num_batches_tracked.item(),
                "planned": [tensor["name"] for tensor in optimizer.plan()["tensors"] if tensor["role"] == "buffer"]}


def grouped(is_ours, steps=7):
    """
    Two groups of different rates and decays, and a scheduler of torch; the rates of each step. Gradients of queries and keys of one
    token are zero but for the rounding of a processor's own, which eps keeps from steps as large as any.
    """
    import weightd.train

    rank, n = environment()
    module = made()
    weights = [p for p in module.parameters() if p.dim() > 1]
    groups = [{"params": weights, "weight_decay": 0.1},
              {"params": [p for p in module.parameters() if p.dim() <= 1], "lr": 0.02}]
    if is_ours:
        sharded(module)
        optimizer = weightd.train.AdamW(groups, lr=0.01, weight_decay=0.0, eps=1e-4)
    else:
        optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0, eps=1e-4, fused=True)
    scheduler = schedulers.OneCycleLR(optimizer, [0.01, 0.02], total_steps=steps + 1, cycle_momentum=False)
    rates = []
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(module, *(part(step, rank, n) if is_ours else batch(step))).backward()
        optimizer.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
        scheduler.step()
    if is_ours:
        optimizer.close()
    return {"values": values(module), "rates": rates}


# --- The flat tensor -------------------------------------------------------------------------------


class Large(nn.Module):
    """64 MiB in 4 parameters, unless asked for more."""

    def __init__(self, device=None, width=2048):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False, device=device) for _ in range(4))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def peak_of(act):
    """Bytes by which the resident memory grew at most while it ran, and its result."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = status("VmRSS")
    result = act()
    return status("VmHWM") - before, result


def layout_of_meta():
    """The growth of the process that lays out a large module without values, its bytes, and the offsets."""
    from weightd.train import _abi, _trainer

    def lay_out():
        module = sharded(Large("meta", 8192))
        return _trainer.Plan(module.no_sync.sharded, "adamw", [_abi.Group(beta1=0.9, beta2=0.99, eps=1e-8)], {}, 64)

    sharded(nn.Linear(2, 2, device="meta"))  # so that all code is in memory
    grown, plan = peak_of(lay_out)
    return {"grown": grown, "n_bytes": 4 * 8192 * 8192 * 4, "offsets": [place.offset for place in plan.places()]}


def where(module, optimizer):
    """
    Names of tensors that are not where the plan has them: parameters in PARAM, at their offsets, one storage for
    all; gradients in GRAD; buffers in memory of their own, which a step saves.
    """
    flat = optimizer._trainer.range("PARAM")
    placed = {tensor["name"]: tensor for tensor in optimizer.plan()["tensors"]}
    wrong, ranges = [], []
    for name, parameter in module.named_parameters():
        offset = placed[name]["offset"]
        if (parameter.untyped_storage().data_ptr() != flat.data_ptr() or parameter.storage_offset() * 4 != offset
                or offset % 64 or not parameter.is_contiguous()):
            wrong.append(name)
        ranges.append((offset, offset + parameter.numel() * 4))
    buffers = {name: optimizer._trainer.buffer(index) for index, (name, row) in enumerate(placed.items())
               if row["role"] == "buffer"}
    wrong += [name for name, buffer in module.named_buffers()
              if name in module.state_dict() and buffer.data_ptr() != buffers[name].data_ptr()]
    ranges.sort()
    if any(end > begin for (_, end), (begin, _) in zip(ranges, ranges[1:])):
        wrong.append("ranges overlap")
    return wrong


def grads(module, optimizer):
    """Names of gradients that are no views of GRAD at the places of their parameters."""
    flat = optimizer._trainer.range("GRAD")
    offsets = {tensor["name"]: tensor["offset"] for tensor in optimizer.plan()["tensors"]}
    return [name for name, p in module.named_parameters()
            if p.grad is None or p.grad.data_ptr() != flat.data_ptr() + offsets[name]]


def attempt(act):
    """The error as text, or None."""
    try:
        act()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None


def views():
    """Names of tensors that lie elsewhere, at first and after each thing that a program does to a module."""
    import weightd.train

    module = made(Plain)
    before = module.state_dict()
    sharded(module)
    with weightd.train.AdamW(module) as optimizer:
        found = {"at first": where(module, optimizer)}
        loss_of(module, *batch(0)).backward()
        found["gradients"] = grads(module, optimizer)
        optimizer.step()
        found["step"] = where(module, optimizer)
        found["after it"] = [name for name, p in module.named_parameters() if p.grad is not None]
        found["refused"] = attempt(lambda: module.load_state_dict(before))
        found["load_state_dict"] = where(module, optimizer)
        optimizer.zero_grad()
        module.zero_grad()
        optimizer.zero_grad(set_to_none=False)
        found["zero_grad"] = where(module, optimizer)
        loss_of(module, *batch(1)).backward()
        optimizer.zero_grad()
        loss_of(module, *batch(1)).backward()
        found["gradients anew"] = grads(module, optimizer)
        optimizer.step()
        found["another step"] = where(module, optimizer)
        return found


def pss_of(address):
    """Bytes of the mappings of the file that is mapped there, each divided by the number of its users."""
    mappings, inode = {}, None
    with open("/proc/self/smaps") as lines:
        for line in lines:
            words = line.split()
            if not words[0].endswith(":"):
                start, end = (int(x, 16) for x in words[0].split("-"))
                current = words[4]
                if start <= address < end:
                    inode = current
            elif words[0] == "Pss:":
                mappings[current] = mappings.get(current, 0) + int(words[1]) * 1024
    return mappings[inode]


def resident():
    """PSS of the parameters in the job, and the memory of the ordinary module before."""
    import weightd.train

    before = status("RssAnon")
    module = Large()
    private = status("RssAnon") - before
    with weightd.train.SGD(sharded(module), lr=0.1) as optimizer:
        for _ in range(2):  # all ranks have read all of it after the first
            sum(p.sum() for p in module.parameters())
            optimizer.step()
        flat = optimizer._trainer.range("PARAM")
        shared = pss_of(flat.data_ptr())
        optimizer.step()  # all have measured
        return {"private": private, "shared": shared, "n_bytes": flat.nbytes}


class Chunks(dict):
    """
    Values that are made when they are asked for.

    peak  bytes of private memory while one of them was there, at most
    """

    peak = 0

    def __getitem__(self, name):
        made = torch.full((2048, 2048), float(super().__getitem__(name)))
        self.peak = max(self.peak, status("RssAnon"))
        return made


def filled(**options):
    """Rank 0 has values, one tensor at a time; the module is on the meta device everywhere."""
    import ctypes

    import weightd.train

    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what is freed is given back
    rank, _ = environment()
    module = Large("meta")
    module.seen = torch.zeros(3)
    given = Chunks({f"layers.{i}.weight": i + 1 for i in range(4)}) if rank == 0 else None
    before = status("RssAnon")
    sharded(module, values=given, **options)
    optimizer = weightd.train.SGD(module, lr=0.1)
    grown = max(status("RssAnon"), given.peak if given else 0) - before
    found = {"grown": grown, "values": [float(layer.weight[7, 9]) for layer in module.layers],
             "on meta": [name for name, p in module.named_parameters() if p.is_meta]}
    optimizer.close()
    return found


def meta_alone(**options):
    """A module without values in a new job."""
    import weightd.train

    module = Large("meta")
    module.seen = torch.zeros(3)
    weightd.train.SGD(sharded(module, **options), lr=0.1)


# --- Lives of a program ------------------------------------------------------------------------------


SCHEDULERS = {
    "CyclicLR": lambda opt: schedulers.CyclicLR(opt, 1e-3, 1e-2, step_size_up=7, cycle_momentum=False),
    "CosineAnnealingLR": lambda opt: schedulers.CosineAnnealingLR(opt, 9, 1e-4),
    "ExponentialLR": lambda opt: schedulers.ExponentialLR(opt, 0.9),
    "LinearLR": lambda opt: schedulers.LinearLR(opt, 0.2, total_iters=10),
    "PolynomialLR": lambda opt: schedulers.PolynomialLR(opt, 14, 2),
    "OneCycleLR": lambda opt: schedulers.OneCycleLR(opt, 0.02, 40, cycle_momentum=False),
    "LambdaLR": lambda opt: schedulers.LambdaLR(opt, lambda step: 1 / (1 + step)),
    "SequentialLR": lambda opt: schedulers.SequentialLR(
        opt, [schedulers.LinearLR(opt, 0.1, total_iters=3), schedulers.CosineAnnealingLR(opt, 20)], [3]),
    "two": lambda opt: [schedulers.ExponentialLR(opt, 0.9), schedulers.StepLR(opt, 2, 0.7)],
}


def run(steps, dies=None, kind="Plain", is_closed=True, with_numpy=True, scheduler="CyclicLR", is_half=False, **options):
    """
    A program that is started again: dropout, running statistics, noise of three generators, a position in the data, a
    scheduler. `dies`: SIGKILL in that step, after "forward", "backward" or "step". `is_half`: float16, with a scaler.
    """
    import random

    import weightd.train

    def end(moment):
        if dies == [step, moment]:
            os.kill(os.getpid(), signal.SIGKILL)

    rank, n = environment()
    random.seed(rank)
    module = made(globals()[kind])
    if with_numpy:
        import numpy

        numpy.random.seed(rank)
    torch.manual_seed(100 + rank)  # other dropout in each rank
    if is_half:
        options |= {"precision": weightd.train.Precision(torch.float16, buffer=torch.float16),
                    "scaler": weightd.train.Scaler(growth_interval=5)}
    optimizer = weightd.train.AdamW(sharded(module, **options), lr=1e-2)
    made_schedulers = optimizer.resume(SCHEDULERS[scheduler])
    made_schedulers = made_schedulers if isinstance(made_schedulers, list) else [made_schedulers]
    at, losses, rates = (optimizer.cursor or {"at": 0})["at"], [], []
    for step in optimizer.steps(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        x, y = part(at, rank, n)
        x = x + 0.01 * torch.randn(x.shape) + 0.01 * random.random()
        if with_numpy:
            x = x + 0.01 * float(numpy.random.normal())
        loss = loss_of(module, x, y)
        end("forward")
        optimizer.scale(loss).backward()
        end("backward")
        at += 3
        optimizer.step(loss, cursor={"at": at})
        end("step")
        for one in made_schedulers:
            one.step()
        losses.append(loss.item())
    found = {"bits": bits(module), "losses": losses, "rates": rates, "first": optimizer.resumed_step,
             "at": optimizer.cursor["at"], "lr": optimizer.param_groups[0]["lr"],
             "last_lr": made_schedulers[-1].get_last_lr()}
    if is_closed:
        optimizer.close()
    return found


def by_metrics(steps, dies=None, **options):
    """The bits and the rates of a program with ReduceLROnPlateau, which is killed before that step."""
    import weightd.train

    rank, n = environment()
    module, rates = sharded(made(), **options), []
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        scheduler = schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        if optimizer.cursor:
            scheduler.load_state_dict(optimizer.cursor)
        for step in optimizer.steps(steps):
            loss = loss_of(module, *part(step, rank, n))
            loss.backward()
            if dies == step:
                os.kill(os.getpid(), signal.SIGKILL)
            scheduler.step(loss.item())
            optimizer.step(loss, cursor=scheduler.state_dict())
            rates.append(optimizer.param_groups[0]["lr"])
        return {"bits": bits(module), "rates": rates, "first": optimizer.resumed_step}


def every_other_step(steps, dies=None, **options):
    """The rates of a program that steps its scheduler after each second step; it is killed after step `dies`."""
    import weightd.train

    rank, n = environment()
    module, rates = sharded(made(), **options), []
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        scheduler = optimizer.resume(SCHEDULERS["CosineAnnealingLR"], calls=optimizer.resumed_step // 2)
        for step in optimizer.steps(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            loss_of(module, *part(step, rank, n)).backward()
            optimizer.step()
            if dies == step:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % 2:
                scheduler.step()
        return {"rates": rates, "first": optimizer.resumed_step}


def resume_refusals():
    """Errors of resume()."""
    import weightd.train

    module = sharded(made())
    optimizer = weightd.train.AdamW(module, lr=1e-2)
    found = {"plateau": attempt(lambda: optimizer.resume(schedulers.ReduceLROnPlateau)),
             "first": attempt(lambda: optimizer.resume(SCHEDULERS["LambdaLR"])),
             "second": attempt(lambda: optimizer.resume(SCHEDULERS["LambdaLR"]))}
    optimizer.close()
    return found


def interrupted(steps, again, **options):
    """A rank that Ctrl-C interrupts in its first wait: it ends, or calls step() `again`. None, or the bits."""
    import weightd.train

    rank, n = environment()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module = sharded(made(), deadline=None, **options)
    try:
        print("it opens", flush=True)
        optimizer = weightd.train.AdamW(module, lr=1e-2)
        for step in optimizer.steps(steps):
            loss_of(module, *part(step, rank, n)).backward()
            try:
                print("it waits", flush=True)
                optimizer.step(cursor=step)
            except KeyboardInterrupt:
                if not again:
                    raise
                print("interrupted", flush=True)
                optimizer.step(cursor="not that of the step")
    except KeyboardInterrupt:
        return None
    optimizer.close()
    return [bits(module), optimizer.cursor]


def finished(steps, holds=None, **options):
    """The bits; the rank stops itself before step `holds`, and prints each step that it took."""
    import weightd.train

    rank, n = environment()
    module = sharded(made(), **options)
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        for step in optimizer.steps(steps):
            loss_of(module, *part(step, rank, n)).backward()
            if step == holds:
                os.kill(os.getpid(), signal.SIGSTOP)
            print(f"begins {step}", flush=True)
            optimizer.step()
            print(f"took {step}", flush=True)
        return {"bits": bits(module), "first": optimizer.resumed_step}


def alone():
    """No launcher: a step, and SIGKILL."""
    import weightd.train

    module = sharded(made())
    optimizer = weightd.train.SGD(module, lr=0.1)
    loss_of(module, *batch(0)).backward()
    optimizer.step()
    print("a step was taken", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def patient(steps, **options):
    """run() in short, with step() again after each Timeout; how often, and the error of a backward pass meanwhile."""
    import weightd.train

    rank, n = environment()
    begin_late()
    module, late, refused = sharded(made(), deadline=0.2, **options), 0, None
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        for step in optimizer.steps(steps):
            loss_of(module, *part(step, rank, n)).backward()
            while optimizer.step_number == step:
                try:
                    optimizer.step(cursor=step)
                except weightd.Timeout as e:
                    if not late:
                        print("late:", e, flush=True)
                        refused = attempt(lambda: loss_of(module, *batch(0)).backward())
                    late += 1
        return {"bits": bits(module), "late": late, "refused": refused, "cursor": optimizer.cursor}


def dies_creating(**options):
    """SIGKILL when the server has created the job, and its file has not got the token."""
    import weightd.train
    from weightd.train import _job

    create = _job._create

    def create_and_die(*arguments):
        create(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    _job._create = create_and_die
    weightd.train.SGD(sharded(made(), **options), lr=0.1)


def two_models(steps, dies=None):
    """A program with two jobs, each of its own."""
    import weightd.train

    rank, n = environment()
    modules = [made(), made(Branches)]
    optimizers = [weightd.train.AdamW(sharded(module), lr=1e-2) for module in modules]
    for step in optimizers[1].steps(steps):
        for module, optimizer, more in zip(modules, optimizers, ((), (True,))):
            if optimizer.step_number > step:
                continue  # done before the death
            x, y = part(step, rank, n)
            nn.functional.cross_entropy(module(x, *more), y).backward()
            optimizer.step()
            if dies == [step, len(more)]:
                os.kill(os.getpid(), signal.SIGKILL)
    found = [bits(module) for module in modules]
    for optimizer in optimizers:
        optimizer.close()
    return found


def by_rank(own_rank, steps=3):
    """No launcher: the program passes the rank."""
    import weightd.train

    module = made()
    weightd.train.shard(module, weightd.train.init_mesh({"dp": 2}, rank=own_rank))
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        for step in optimizer.steps(steps):
            loss_of(module, *part(step, own_rank, 2)).backward()
            optimizer.step()
        return bits(module)


def stale(steps, **options):
    """The losses, the places of GRAD, and the bits when all updates are made."""
    import weightd.train

    rank, n = environment()
    module, losses, places = sharded(made(), **options), [], set()
    optimizer = weightd.train.AdamW(module, lr=1e-3)
    for step in optimizer.steps(steps):
        loss = loss_of(module, *part(step, rank, n))
        loss.backward()
        places.add(module.inner.weight.grad.data_ptr())
        optimizer.step(loss)
        losses.append(loss.item())
    optimizer.close()
    return {"losses": losses, "n_places": len(places), "bits": bits(module)}


def ended_by(how, steps=3):
    """The exit status of a program that ends in one of its ways, as `python -c` runs it."""
    tail = {"a loop that is done": "", "an exception": "raise ValueError(3)", "half way": "", "close": "opt.close()",
            "an exception in with": "with opt: raise ValueError(3)", "with": "with opt: pass"}[how]
    code = f"""
import torch, weightd.train as train
module = train.shard(torch.nn.Linear(3, 2), train.init_mesh(), job="j")
opt = train.SGD(module, lr=0.1)
for step in {"opt.steps(3)" if how not in ("half way", "close") else "range(3)"}:
    module(torch.ones(1, 3)).sum().backward()
    opt.step()
{tail}
"""
    pid = os.fork()
    if not pid:
        status = ctypes.pythonapi.PyRun_SimpleStringFlags(code.encode(), None)  # in __main__
        ctypes.pythonapi.Py_Exit(-status)  # as an interpreter ends
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def nan_of_one(steps=4):
    """Rank 1 has a loss that is NaN in step 2: the errors, and the bits around it."""
    import weightd.train

    rank, n = environment()
    module = sharded(made())
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        found = {"errors": {}, "bits": []}
        for step in optimizer.steps(steps):
            loss = loss_of(module, *part(step, rank, n))
            loss.backward()
            try:
                optimizer.step(loss * float("nan") if (rank, step) == (1, 2) else loss)
            except weightd.train.NotANumber as e:
                found["errors"][step] = str(e)
            found["bits"].append(bits(module))
        return found


def different(**options):
    """Rank 1 has another model."""
    import weightd.train

    rank, _ = environment()
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6 + rank))
    weightd.train.AdamW(sharded(module, **options))


def published(owner=None):
    """The version that rank 0 published, in a buffer of that user, and the values at that time."""
    import weightd.train

    rank, n = environment()
    module = sharded(made(Plain))
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        found = []
        for step in optimizer.steps(4):
            loss_of(module, *part(step, rank, n)).backward()
            optimizer.step()
            if step % 2:
                found.append([optimizer.publish("trained", owner), values(module)])
        return found


# --- Habits of torch -----------------------------------------------------------------------------------


def refusals():
    """Errors of shard() and of what belongs to it, by what was wrong."""
    import weightd.train

    def sharding(module, **options):
        return attempt(lambda: sharded(module, **options))

    frozen, mixed, double = made().requires_grad_(False), made(), made()
    mixed.inner.bfloat16()
    double.inner.double()
    apart = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    apart[1].weight = nn.Parameter(apart[0].weight.data)
    sparse = nn.Linear(2, 2)
    sparse.weight = nn.Parameter(sparse.weight.detach().to_sparse())
    module = made()
    other = made()
    mesh = weightd.train.init_mesh()
    return {
        "sync_every": sharding(made(), sync_every=2), "engine": sharding(made(), engine="gloo"),
        "frozen": sharding(frozen), "mixed": sharding(mixed),
        "double": sharding(double),
        "apart": sharding(apart),
        "fused scaler": sharding(made(), form="fused", scaler=weightd.train.Scaler()),
        "GradScaler": sharding(made(), scaler=torch.amp.GradScaler("cpu")), "True": sharding(made(), scaler=True),
        "type": sharding(made(), precision=torch.bfloat16),
        "reduce": sharding(made(), precision=weightd.train.Precision(reduce=torch.bfloat16)),
        "param": attempt(lambda: weightd.train.Precision(torch.float64)),
        "buffer": attempt(lambda: weightd.train.Precision(buffer=torch.int8)),
        "growth": attempt(lambda: weightd.train.Scaler(growth_factor=0.5)),
        "interval": attempt(lambda: weightd.train.Scaler(growth_interval=0)),
        "sparse": sharding(sparse), "none": sharding(nn.ReLU()), "strategy": sharding(made(), strategy="zero4"),
        "form": sharding(made(), form="three"),
        "unsharded": attempt(lambda: weightd.train.AdamW(made())),
        "groups": attempt(lambda: weightd.train.AdamW([sharded(module).inner.weight])),
        "stranger": attempt(lambda: weightd.train.AdamW([*sharded(module).parameters(), *other.parameters()])),
        "lr": attempt(lambda: weightd.train.AdamW(sharded(made()), lr=-1.0)),
        "mesh": attempt(lambda: weightd.train.init_mesh({"dp": 3})),
        "dim": attempt(lambda: weightd.train.init_mesh({"DP!": 1})),
        "dims": mesh.dims, "group": mesh.group("dp"), "coordinate": mesh.coordinate("dp"),
    }


def traps():
    """Errors of steps and of calls that would train in vain or fault; and that training continues afterwards."""
    import copy

    import weightd.train

    module = made(Tied)
    module.more = nn.Linear(3, 2)
    sharded(module)
    optimizer = weightd.train.AdamW(module, lr=0.01)
    found = {}

    def forward():
        return module(torch.arange(5)).sum() + module.more(torch.ones(1, 3)).sum()

    def step(**given):
        forward().backward()
        return attempt(lambda: optimizer.step(**given))

    found["fine"] = step()
    forward().backward()
    module.embed.weight.grad.clamp_(-0.1, 0.1)
    found["gradient"] = attempt(optimizer.step)
    optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(forward()).backward()
    found["GradScaler"] = attempt(lambda: scaler.step(optimizer))
    optimizer.zero_grad()
    found["create_graph"] = attempt(lambda: forward().backward(create_graph=True))
    optimizer.zero_grad()
    module.embed.sparse = True
    found["sparse gradient"] = attempt(lambda: module.embed(torch.arange(3)).sum().backward())
    module.embed.sparse = False
    optimizer.zero_grad()
    output = forward()
    step()
    found["old graph"] = attempt(output.backward)
    optimizer.zero_grad()
    found["foreign optimizer"] = attempt(torch.optim.SGD(module.parameters(), lr=0.1).step)
    found["add_param_group"] = attempt(lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]}))
    found["state_dict"] = attempt(optimizer.state_dict)
    found["second optimizer"] = attempt(lambda: weightd.train.AdamW(module))
    found["closure"] = attempt(lambda: optimizer.step(lambda: 3))
    found["max_norm"] = step(max_norm=1.0)
    optimizer.zero_grad()
    found["cursor"] = step(cursor={1, 2})
    found["long cursor"] = step(cursor="x" * 5000)
    optimizer.zero_grad()
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)
    found["betas"] = step()
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    module.embed.weight.requires_grad_(False)
    found["frozen"] = step()
    module.embed.weight.requires_grad_(True)
    module.late = nn.Linear(1, 1)
    found["late"] = step()
    del module.late
    module.idle = nn.ReLU()
    found["idle"] = step()
    kept = module.more
    module.more = nn.Linear(3, 2)
    found["swapped"] = step()
    module.more = kept
    optimizer.zero_grad()
    twin = copy.deepcopy(module)
    found["deepcopy"] = attempt(lambda: twin.load_state_dict(module.state_dict()))
    found["copy's no_sync"] = attempt(twin.no_sync)
    found["assign"] = attempt(lambda: module.load_state_dict(twin.state_dict(), assign=True))
    found["submodule"] = attempt(lambda: module.more.load_state_dict(twin.more.state_dict()))
    optimizer.zero_grad()
    found["fine again"] = step()
    kept = module.more.weight.data
    module.more.weight.data = kept.clone()
    found["rebound"] = step()
    module.more.weight.data = kept
    optimizer.zero_grad()
    module.more.bias = nn.Parameter(torch.ones(2))
    found["replaced"] = step()
    optimizer.close()
    found["closed"] = step()
    return found


def refused_steps():
    """The errors of steps that are refused, and what the next ones committed: the cursor, and the bits."""
    import weightd.train

    module, plain = sharded(made()), made()
    found = []
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        group = optimizer.param_groups[0]
        for number, given in enumerate(({"loss": torch.ones(2)}, {"weight": "x"}, {"weight": -1.0}, {"lr": "x"},
                                        {"lr": float("inf")})):
            lr = given.pop("lr", 1e-2)
            optimizer.zero_grad()
            loss_of(module, *batch(100)).backward()
            group["lr"] = lr
            refused = attempt(lambda: optimizer.step(cursor="stale", **given))
            group["lr"] = 1e-2
            optimizer.zero_grad()
            loss_of(module, *batch(number)).backward()
            optimizer.step(cursor=number)
            found.append([refused, optimizer.cursor, "stale" in str(optimizer._trainer.state())])
        ours = bits(module)
    reference = weightd.train.AdamW(sharded(plain), lr=1e-2)
    for number in reference.steps(len(found)):
        loss_of(plain, *batch(number)).backward()
        reference.step()
    same = ours == bits(plain)
    reference.close()
    return {"refused": found, "same": same}


def stray():
    """A write through a view of a parameter: a fault."""
    import weightd.train

    module = sharded(made())
    weightd.train.AdamW(module)
    with torch.no_grad():
        module.inner.weight.data.fill_(1)


def second_backward(**options):
    """Overlap: a second backward pass outside no_sync()."""
    import weightd.train

    module = sharded(made(), form="two-phase", overlap=True, **options)
    with weightd.train.AdamW(module) as optimizer:
        loss_of(module, *batch(0)).backward()
        error = attempt(lambda: loss_of(module, *batch(0)).backward())
        return {"error": error, "step": attempt(optimizer.step), "again": attempt(
            lambda: (loss_of(module, *batch(1)).backward(), optimizer.step()))}


def evaluated():
    """In a block without gradients, a forked child and a thread: the values of a whole step."""
    import threading

    import weightd.train

    module = sharded(made())
    with weightd.train.AdamW(module) as optimizer:
        loss_of(module, *batch(0)).backward()
        optimizer.step()
        expected = bits(module)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(bits(module)))
        thread.start()
        thread.join()
        pipe = os.pipe()
        pid = os.fork()
        if not pid:
            refused = attempt(optimizer.step)
            os.write(pipe[1], f"{bits(module)} {refused}".encode())
            os._exit(0)
        os.waitpid(pid, 0)
        child, _, refused = os.read(pipe[0], 10000).decode().partition(" ")
        return {"thread": seen == [expected], "child": child == expected, "refused": refused,
                "still": attempt(lambda: (loss_of(module, *batch(1)).backward(), optimizer.step()))}

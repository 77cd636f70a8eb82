"""Element types apart, loss scaling, frozen parameters, and writes between steps. Functions as in torch_scenes.py."""
import os
import signal
import tempfile
import unittest.mock

import torch
from torch import nn
from torch_habits import wait_until
from torch_scenes import Tied, attempt, begin_late, bits, environment, made, part, pss_of, sharded

BFLOAT16, FLOAT16, FLOAT32 = torch.bfloat16, torch.float16, torch.float32
TYPES = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32, None: None}


class Whole(nn.Module):
    """Sizes in multiples of 16: torch's fused kernels round the rest of a vector otherwise."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def samples(step, rank, n=2):
    generator = torch.Generator().manual_seed(3000 + step)
    return torch.randn(8 * n, 16, generator=generator).chunk(n)[rank]


def square(module, x):
    return (module(x).float() ** 2).mean()


def exact(module):
    """The bits of each parameter."""
    return {name: p.detach().view(torch.int16 if p.element_size() == 2 else torch.int32).flatten().tolist()
            for name, p in module.named_parameters()}


# --- Types --------------------------------------------------------------------------------------------


def trained(steps, param, reduce=None, k=1, is_converted=False, dies=None, **options):
    """
    The bits after training with AdamW, `k` micro-batches a step; `is_converted`: the module has the type already. The types
    of a parameter, its gradient, the output; whether the gradient lies in GRAD. `dies`: SIGKILL after that backward.
    """
    import weightd.train

    rank, n = environment()
    module = made(Whole)
    if is_converted:
        module.to(TYPES[param])
    precision = None if is_converted else weightd.train.Precision(TYPES[param], TYPES[reduce])
    sharded(module, precision=precision, **options)
    seen = {}
    with weightd.train.AdamW(module, lr=0.01, weight_decay=0.1) as optimizer:
        for step in optimizer.steps(steps):
            x = samples(step, rank, n)
            if is_converted:
                x = x.to(TYPES[param])
            for xs in x.chunk(k):
                (square(module, xs) / k).backward()
            if dies == step:
                os.kill(os.getpid(), signal.SIGKILL)
            grad, flat = module.first.weight.grad, optimizer._trainer.range("GRAD")
            seen = {"param": str(module.first.weight.dtype), "grad": str(grad.dtype),
                    "in GRAD": 0 <= grad.data_ptr() - flat.data_ptr() < flat.nbytes,
                    "output": str(module(x).dtype)}
            optimizer.step()
        return seen | {"exact": exact(module), "first": optimizer.resumed_step}


def curve(steps, param, **options):
    """Losses of this rank's part, in float32; the bytes that a step moves, as planned, and all that were counted."""
    import weightd.train

    rank, n = environment()
    precision = weightd.train.Precision(TYPES[param], FLOAT32)
    module, losses = sharded(made(), precision=precision, **options), []
    with weightd.train.AdamW(module, lr=5e-3) as optimizer:
        filled = optimizer.traffic()
        for step in optimizer.steps(steps):
            x, y = part(step, rank, n)
            loss = nn.functional.cross_entropy(module(x).float(), y)
            loss.backward()
            optimizer.step(loss)
            losses.append(loss.item())
        counted = [after - before for after, before in zip(optimizer.traffic(), filled)]
        return {"losses": losses, "counted": counted, "planned": optimizer._trainer.planned_traffic(rank)}


def trained_by_torch(steps, n_parts, param, reduce=None, k=1, is_converted=False):
    """The same by hand: float32 originals with torch's fused AdamW, rounded into a module of the type."""
    module = made(Whole)
    if is_converted:
        module.to(TYPES[param])
    originals = [p.detach().float().clone().requires_grad_() for p in module.parameters()]
    module.to(TYPES[param])
    optimizer = torch.optim.AdamW(originals, lr=0.01, weight_decay=0.1, fused=True)
    for step in range(steps):
        sums = [torch.zeros_like(original) for original in originals]
        for rank in range(n_parts):
            mine = [torch.zeros(p.shape, dtype=TYPES[reduce] or p.dtype) for p in module.parameters()]
            for xs in samples(step, rank, n_parts).to(TYPES[param]).chunk(k):
                (square(module, xs) / k).backward()
                for grad, p in zip(mine, module.parameters()):
                    grad.add_(p.grad)
                    p.grad = None
            for total, grad in zip(sums, mine):
                total.add_(grad.float())
        for original, total in zip(originals, sums):
            original.grad = total / n_parts
        optimizer.step()
        with torch.no_grad():
            for p, original in zip(module.parameters(), originals):
                p.copy_(original)
    return exact(module)


def stands_still(steps=100):
    """A bfloat16 parameter of 1.0 after small updates: of a job, and by torch's optimizer on itself."""
    import weightd.train

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(32, dtype=BFLOAT16))

    ours, plain = One(), One()
    torchs = torch.optim.SGD(plain.parameters(), lr=1e-4)
    with weightd.train.SGD(sharded(ours), lr=1e-4) as optimizer:
        for _ in optimizer.steps(steps):
            for module in ours, plain:
                module.weight.sum().backward()
            torchs.step()
            torchs.zero_grad()
            optimizer.step()
        return {"ours": ours.weight.tolist(), "torch": plain.weight.tolist()}


class Inputs(nn.Module):
    """Takes tensors in containers, and has buffers of several types."""

    def __init__(self):
        super().__init__()
        self.line, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x, more, *, scale):
        self.seen = [str(t.dtype) for t in (x, more["one"], more["two"][0], more["index"], scale)]
        return self.norm(self.line(x + more["one"] + more["two"][0])) * scale + self.table


def inputs(is_compiled=False):
    """Types inside forward(), types of the buffers; and of a copy of the module, in float32 again."""
    import copy

    import weightd.train

    module = made(Inputs)
    sharded(module, precision=weightd.train.Precision(BFLOAT16, FLOAT32, BFLOAT16))
    x = torch.ones(2, 4)
    given = x, {"one": x, "two": (x,), "index": torch.tensor([1])}
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        output = module(*given, scale=x)
        found = {"seen": module.seen, "output": str(output.dtype),
                 "buffers": {name: str(buffer.dtype) for name, buffer in module.named_buffers()}}
        output.sum().backward()
        found["step"] = attempt(optimizer.step)
        twin = copy.deepcopy(module).float()
        found["twin"] = [str(twin(*given, scale=x).dtype), *twin.seen]
        compiled = torch.compile(Uncounted(module), backend="eager", fullgraph=True)
        found["compiled"] = str(compiled(x).dtype)
    uncast = sharded(made(Whole), precision=weightd.train.Precision(BFLOAT16, cast_inputs=False))
    with weightd.train.SGD(uncast, lr=0.1):
        found["uncast"] = attempt(lambda: uncast(torch.ones(2, 16)))
    return found


class Uncounted(nn.Module):
    """Calls the linear layer of a module through the hooks of a sharded one."""

    def __init__(self, module):
        super().__init__()
        self.inner = module.line
        self.inner.register_forward_pre_hook(next(iter(module._forward_pre_hooks.values())), with_kwargs=True)

    def forward(self, x):
        return self.inner(x)


# --- Scaling ------------------------------------------------------------------------------------------


def scaled(steps, spoilt, dies=None, **options):
    """
    float16 with a scaler: per step the scale, whether it overflowed, and the bits. `spoilt`: (rank, step) pairs in which a
    gradient is not finite.
    """
    import weightd.train

    rank, n = environment()
    module = sharded(made(Whole), precision=weightd.train.Precision(FLOAT16), **options,
                     scaler=weightd.train.Scaler(init_scale=1024.0, growth_interval=3))
    found = {"scales": [], "overflowed": [], "bits": []}
    with weightd.train.AdamW(module, lr=0.01) as optimizer:
        found["first"] = optimizer.resumed_step
        for step in optimizer.steps(steps):
            found["scales"].append(optimizer.loss_scale)
            loss = square(module, samples(step, rank, n))
            if [rank, step] in spoilt:
                loss = loss * 1e30  # float16 has no such gradient
            optimizer.scale(loss).backward()
            if dies == step:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step(loss)
            found["overflowed"].append(optimizer.overflowed)
            found["bits"].append(bits(module))
        return found


def scales_of_torch(steps, spoilt):
    """The scales of torch's GradScaler in a loop with the same overflows, and the values of ours, by hand."""
    parameter = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler, scales = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3), []
    for step in range(steps):
        scales.append(scaler.get_scale())
        scaler.scale(parameter.sum() * (float("inf") if step in spoilt else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scales


def small_gradients():
    """A gradient of 1e-8, which float16 has not got: the change of a parameter without a scaler, and with one; refusals."""
    import weightd.train

    found = {}
    for name, scaler in ("without", None), ("with", weightd.train.Scaler()):
        module = sharded(nn.Linear(16, 16, bias=False), precision=weightd.train.Precision(FLOAT16), scaler=scaler)
        nn.init.ones_(module.weight)
        with weightd.train.SGD(module, lr=1e7) as optimizer:
            x = torch.full((1, 16), 1e-4)
            optimizer.scale((module(x).float() * 1e-4).sum()).backward()
            optimizer.step()
            found[name] = module.weight[0, 0].item()
            if scaler:
                module(x).float().sum().backward()
                found["unscaled"] = attempt(optimizer.step)
                optimizer.zero_grad()
                optimizer.scale(module(x).float().sum()).backward()
                optimizer.zero_grad()
                module(x).float().sum().backward()
                found["unscaled after a scaled one"] = attempt(optimizer.step)
                optimizer.zero_grad()
                loss = optimizer.scale(module(x).float().sum() * 0.0)
                optimizer.zero_grad()
                loss.backward()
                found["scaled before zero_grad"] = attempt(optimizer.step)
                theirs = torch.amp.GradScaler("cpu")
                theirs.scale(module(x).float().sum()).backward()
                found["GradScaler"] = attempt(lambda: theirs.step(optimizer))
                optimizer.zero_grad()
                found["idle"] = attempt(optimizer.step)
            found[f"{name}, scale"] = optimizer.loss_scale
    return found


def clipped(max_norm, steps=4):
    """Norms and values with a clipped global norm: without a scaler, and with one."""
    import weightd.train

    rank, n = environment()
    found = []
    for scaler in None, weightd.train.Scaler(init_scale=4096.0):
        module, norms = sharded(made(Whole), form="two-phase", scaler=scaler), []
        with weightd.train.SGD(module, lr=0.1) as optimizer:
            for step in optimizer.steps(steps):
                optimizer.scale(square(module, samples(step, rank, n))).backward()
                optimizer.step(max_norm=max_norm)
                norms.append(optimizer.norm)
        found.append([norms, module.first.weight.flatten().tolist()])
    return found


# --- Frozen parameters --------------------------------------------------------------------------------


class Adapted(nn.Module):
    """A frozen base, some of it of other types, with a trained adapter on it."""

    def __init__(self, width=64):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.codes = nn.Parameter(torch.arange(width, dtype=torch.int8), requires_grad=False)
        self.shift = nn.Parameter(torch.full((width,), 0.5, dtype=FLOAT16), requires_grad=False)
        self.adapter = nn.Linear(width, width)

    def forward(self, x):
        return self.adapter(torch.tanh(self.base(x))) + self.codes * 0.01 + self.shift


def adapted(steps, is_ours=True, by="module", width=64, **options):
    """The adapter after training on a frozen base, which rank 1 has otherwise; what else there is to see of the base."""
    import weightd.train

    rank, n = environment()
    module = made(Adapted) if width == 64 else Adapted(width)
    if is_ours and rank:
        nn.init.zeros_(module.base.weight)
    if is_ours:
        sharded(module, **options)
        given = {"module": module, "all": module.parameters(),
                 "trained": [p for p in module.parameters() if p.requires_grad]}[by]
        optimizer = weightd.train.AdamW(given, lr=0.01)
    else:
        optimizer = torch.optim.AdamW(module.adapter.parameters(), lr=0.01, fused=True)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4 * (n if is_ours else 2), width, generator=generator)
        x = x.chunk(n)[rank] if is_ours else x
        square(module, x).backward()
        optimizer.step()
        if not is_ours:
            optimizer.zero_grad()
    found = {"adapter": module.adapter.weight.flatten().tolist() if width == 64 else None,
             "base": bits(module.base), "codes": module.codes.tolist()}
    if not is_ours:
        return found
    found |= {"planned": [[t["name"], t["dtype"]] for t in optimizer.plan()["tensors"]],
              "grad": module.base.weight.grad is None, "types": [str(module.codes.dtype), str(module.shift.dtype)],
              "groups": [len(group["params"]) for group in optimizer.param_groups]}
    module.base.weight.sum().item()
    optimizer.step()  # all have read it
    found["resident"] = pss_of(module.base.weight.data_ptr())
    optimizer.step()  # all have measured
    if rank == 0 and not options:
        found["version"] = optimizer.publish("adapted")
    with torch.no_grad():
        found["write"] = attempt(lambda: module.base.weight.add_(1))
    found["load"] = attempt(lambda: module.load_state_dict(module.state_dict()))
    module.base.weight.requires_grad_(True)
    found["unfrozen"] = attempt(optimizer.step)
    module.base.weight.requires_grad_(False)
    optimizer.zero_grad()
    with weightd.train.writable(module):
        nn.init.constant_(module.base.bias, 1.0 + rank)
        module.codes.data.fill_(2 + rank)
    found["rewritten"] = [module.base.bias.tolist(), module.codes.tolist()]
    optimizer.close()
    return found


def saved(optimizer, name):
    import weightd.train

    with tempfile.TemporaryDirectory(prefix=f"{name}.") as folder:
        optimizer.save(folder, wait=True)
        return weightd.train.torch_state(folder)


def lora(name, steps=3, **options):
    """A fine-tuning job over a base that is attached: where the base lies, the plan, the base's bits, and refusals."""
    import weightd
    import weightd.torch
    import weightd.train

    module = made(Adapted, seed=1)
    base = weightd.attach(name)
    weightd.torch.bind(module, base, strict=False)
    module.adapter = nn.Linear(64, 64)
    before, places = bits(module.base), [p.data_ptr() for p in (module.base.weight, module.codes, module.shift)]
    sharded(module, **options)
    with weightd.train.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01) as optimizer:
        first = module.adapter.weight.tolist()
        for _ in optimizer.steps(steps):
            square(module, torch.ones(2, 64)).backward()
            optimizer.step()
        found = {"planned": [t["name"] for t in optimizer.plan()["tensors"]], "same": bits(module.base) == before,
                 "in place": places == [p.data_ptr() for p in (module.base.weight, module.codes, module.shift)],
                 "trained": module.adapter.weight.tolist() != first,
                 "is_bound": weightd.torch.is_bound(module).shared, "saved": list(saved(optimizer, name)["model"])}
        version = optimizer.publish(options["job"])
        with weightd.attach(options["job"], version=version) as adapter:
            found["published"] = list(adapter)
        module.base.bias.requires_grad_(True)
        found["unfrozen"] = attempt(optimizer.step)
        module.base.bias.requires_grad_(False)
        optimizer.zero_grad()
        with weightd.train.writable(module):
            found["written"] = attempt(lambda: module.load_state_dict(module.state_dict()))
        return found | {"still": attempt(optimizer.step)}


def frozen_after_shard():
    """Parameters that are frozen or not, as the optimizer sees them: names in the plan, with whether they are frozen."""
    import weightd.train

    module = sharded(made(Whole))
    module.first.requires_grad_(False)
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        found = [row.name for row in optimizer._plan.rows if row.is_frozen]
    return found


def tied_on_meta(**options):
    """A tied module of the meta device, with values of rank 0: ties, values, and a gradient of both uses."""
    import weightd.train

    rank, n = environment()
    with torch.device("meta"):
        module = Tied()
    values = {"embed.weight": torch.ones(7, 10)} if rank == 0 else None
    sharded(module, values=values, **options)
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        tied = module.head.weight is module.embed.weight
        module(torch.arange(7)).sum().backward()
        rows = module.embed.weight.grad.sum(1).tolist()
        optimizer.step()
        return {"tied": tied, "rows": rows, "value": module.head.weight[0, 0].item(),
                "planned": [t["name"] for t in optimizer.plan()["tensors"]]}


# --- Writes between steps -----------------------------------------------------------------------------


def new_values(seed):
    return made(Whole, seed=seed).state_dict()


def rewritten(param=None, steps=4, at=2, only=None, dies=False, **options):
    """
    The bits after training, with values that rank 0 wrote after step `at`; those of the others are dropped. `dies`: SIGKILL
    when the values are written.
    """
    import weightd.train

    rank, n = environment()
    module = sharded(made(Whole), precision=weightd.train.Precision(TYPES[param]), **options)
    found = {}
    with weightd.train.AdamW(module, lr=0.01) as optimizer:
        for step in optimizer.steps(steps):
            if step == at:
                given = new_values(7 + rank)
                with weightd.train.writable(module):
                    if only is None:
                        module.load_state_dict(given)
                    else:
                        module.first.weight.data.copy_(given["first.weight"])
                    found["inside"] = str(module.first.weight.dtype)
                    if dies:
                        os.kill(os.getpid(), signal.SIGKILL)
                found["after"] = exact(module)
            square(module, samples(step, rank, n)).backward()
            optimizer.step()
        return found | {"exact": exact(module)}


def rewritten_late(folder):
    """Rank 1 waits in vain for the end of rank 0's block: its errors, and of the block and the step after it; the values."""
    import pathlib

    import weightd.train

    rank, _ = environment()
    begin_late()
    module, over = sharded(made(Whole), deadline=0.2 if rank else 60), pathlib.Path(folder, "over")

    def block(act):
        with weightd.train.writable(module):
            act()

    def write():
        nn.init.ones_(module.first.bias)
        wait_until(over.exists, "rank 1 does not give up")

    with weightd.train.SGD(module, lr=0.1) as optimizer:
        if rank == 0:
            return [attempt(lambda: block(write)), module.first.bias.unique().tolist()]
        found = []
        while "end its writes of values" not in str(found[-1:]):  # rank 0 has begun
            found.append(attempt(lambda: block(lambda: None)))
        found.append(attempt(optimizer.step))
        over.touch()
        while attempt(lambda: block(lambda: None)):
            pass
        return [*found[-2:], module.first.bias.unique().tolist()]


def rewritten_by_torch(param=None, steps=4, at=2, only=None, n_parts=2):
    """The same by hand, as trained_by_torch()."""
    module = made(Whole)
    originals = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    module.to(TYPES[param])
    optimizer = torch.optim.AdamW(originals.values(), lr=0.01, fused=True)
    for step in range(steps):
        if step == at:
            for name, value in new_values(7).items():
                if only in (None, name):
                    originals[name].data.copy_(value)
                    module.get_parameter(name).data.copy_(value)
        sums = {name: torch.zeros_like(p) for name, p in originals.items()}
        for rank in range(n_parts):
            square(module, samples(step, rank, n_parts).to(TYPES[param])).backward()
            for name, p in module.named_parameters():
                sums[name].add_(p.grad.float())
                p.grad = None
        for name, total in sums.items():
            originals[name].grad = total / n_parts
        optimizer.step()
        for name, p in module.named_parameters():
            p.data.copy_(originals[name].data)
    return exact(module)


def interrupted(copied):
    """_copied(), with an error at the third parameter."""
    def copied_twice(index, place, trainer):
        if index == 2:
            raise MemoryError("third")
        return copied(index, place, trainer)

    return copied_twice


def writes_refused():
    """Errors of writable() and of what is done inside it; the bits before and after a block that failed."""
    import weightd.train

    rank, n = environment()
    ordinary = made(Whole)
    found = {"unsharded": attempt(lambda: weightd.train.writable(ordinary))}
    module = sharded(made(Whole))
    with weightd.train.writable(module):
        nn.init.ones_(module.first.bias)
    optimizer = weightd.train.AdamW(module, lr=0.01)
    found["before"] = module.first.bias.tolist() == [1.0] * 32

    def block(act):
        with weightd.train.writable(module):
            act()

    def fails():
        nn.init.zeros_(module.first.weight)
        raise KeyError("mine")

    before = bits(module)
    found["exception"] = attempt(lambda: block(fails))
    found["unchanged"] = bits(module) == before
    found["nothing"] = attempt(lambda: block(lambda: None))
    found["still unchanged"] = bits(module) == before
    with unittest.mock.patch("weightd.train._writable._copied", interrupted(weightd.train._writable._copied)):
        found["interrupted"] = attempt(lambda: block(lambda: None))
    found["after it"] = attempt(lambda: block(lambda: None))
    found["nested"] = attempt(lambda: block(lambda: block(lambda: None)))
    found["step"] = attempt(lambda: block(optimizer.step))
    found["init"] = attempt(lambda: block(lambda: nn.init.orthogonal_(module.first.weight)))
    found["changed"] = bits(module) != before
    square(module, samples(0, rank, n)).backward()
    found["gradient"] = attempt(lambda: block(lambda: None))
    optimizer.step()
    found["outside"] = attempt(lambda: module.load_state_dict(new_values(1)))
    output = square(module, samples(0, rank, n))
    block(lambda: module.load_state_dict(new_values(1)))
    found["old graph"] = attempt(output.backward)
    optimizer.zero_grad()
    kept = module.first.weight
    if rank == 0:
        found["replaced"] = attempt(lambda: block(lambda: module.load_state_dict(new_values(2), assign=True)))
    else:
        attempt(lambda: block(lambda: None))
    module.first.weight = kept
    optimizer.close()
    found["closed"] = attempt(lambda: block(lambda: None))
    return found

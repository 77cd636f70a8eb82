"""Scenes of "zero2" and "zero3", for torch_host.py. All ranks play one in one start, each part of it in a job of its own."""
import dataclasses
import functools
import itertools
import os
import signal

import torch
import torch_nodes as nodes
import torch_scenes as scenes
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(12), nn.MultiheadAttention(12, 3, batch_first=True)
        self.up, self.down = nn.Linear(12, 23), nn.Linear(23, 12)

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(torch.relu_(self.up(self.norm(x))))


class Blocks(nn.Module):
    """Units in an order, a frozen module, a buffer, and a weight that two blocks share."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.inner = nn.Linear(10, 12)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.layers[2].norm.requires_grad_(False)
        self.layers[1].norm.weight = self.layers[0].norm.weight
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        self.calls = self.calls + 1
        return self.head(self.run(self.inner(x)[:, None, :])[:, 0])

    def run(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def is_linear(name, module):
    return isinstance(module, nn.Linear)


ZERO2 = {"zero2": {}, "zero2 small": {"bucket_bytes": 512}}
ZERO3 = {"whole": {}, "block": {"units": Block}, "linear": {"units": is_linear}, "nested": {"units": [Block, nn.Linear]},
         "size": {"units": 1000}, "names": {"units": ["layers.0", "head"]},
         "kept": {"units": Block, "reshard": False}, "alone": {"units": [Block, nn.Linear], "prefetch": False}}
ROWS = {name: {"strategy": "zero2"} | row for name, row in ZERO2.items()} | {
    name: {"strategy": "zero3"} | row for name, row in ZERO3.items()}


def shard(mesh, job, kind=Blocks, **options):
    import weightd.train

    return weightd.train.shard(scenes.made(kind, mesh.rank), mesh, job=job, **options)  # rank 0's values are those of all


def curve(mesh, job, steps=STEPS, **options):
    """Losses of this rank."""
    import weightd.train

    module = shard(mesh, job, **options)
    losses = []
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        for step in optimizer.steps(steps):
            x, y = scenes.part(step, mesh.rank, mesh.size)
            loss = nn.functional.cross_entropy(module(x).float(), y)
            loss.backward()
            optimizer.step(loss)
            losses.append(loss.item())
        return losses


def curves(names):
    """Of float32, and of bfloat16 with float32 gradients."""
    import weightd.train

    mesh, found = weightd.train.init_mesh(), {}
    half = weightd.train.Precision(torch.bfloat16, torch.float32)
    for kind, precision in ("", None), ("half-", half):
        expected = curve(mesh, f"{kind}zero1", strategy="zero1", form="two-phase", precision=precision)
        for name in names:
            job = kind + name.replace(" ", "-")
            found[job] = [curve(mesh, job, precision=precision, **ROWS[name]), expected]
    return found


def replicas():
    """Losses with shards on each half of the nodes, and of "zero1"."""
    import weightd.train

    n = weightd.train.init_mesh().size
    halves = weightd.train.init_mesh({"replicate": 2, "shard": n // 2})
    found = {name: curve(halves, name, **ROWS[name]) for name in ("zero2", "nested", "kept")}
    sampler = weightd.train.Sampler(range(n), halves)
    return found | {"zero1": curve(weightd.train.init_mesh(), "zero1", strategy="zero1"), "samples": list(sampler)}


CASES = (nodes.clipped, nodes.branched, nodes.accumulated, nodes.frozen, nodes.scaled, nodes.rounded, nodes.written)
PARTS = ["inner", "block", "head"]  # of Net; the first one is frozen in a case


def cases():
    """Results and bits of the steps of torch_nodes.py, by "zero1", "zero2" and "zero3"."""
    import weightd.train

    mesh, found = weightd.train.init_mesh(), {}
    for each in CASES:
        rows = {"zero1": {"form": "two-phase"}, "zero2": {}, "zero3": {"units": None if each is nodes.branched else PARTS}}
        found[each.__name__] = []
        for name, options in rows.items():
            options = nodes.options_of(each.__name__) | options
            result = nodes.case(mesh, f"{each.__name__}-{name}", each, strategy=name, **options)
            found[each.__name__].append([result["seen"], result["bits"]])
    return found


# --- Habits of programs ------------------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    length: int


class Apart(nn.Module):
    """A unit that takes and returns an object, in place of a tensor."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(12, 12))  # its output is the unit's

    def forward(self, given):
        return Output(self.body(given["x"]), len(given))


class Odd(nn.Module):
    """A unit that is called twice, one without inputs that need a gradient, one of a recurrent kind, and one that is not used."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 12)
        self.inner = nn.Linear(10, 12)
        self.twice, self.apart = Block(), Apart()
        self.recurrent = nn.LSTM(12, 12, batch_first=True)
        self.idle = nn.Linear(3, 3)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        tokens = x[:, :2].gt(0).long().sum(1)
        x = self.inner(x) + self.embed(tokens)
        x = self.twice(x[:, None, :])[:, 0]
        x = x + self.embed(4 - tokens)
        x = self.apart({"x": x + 0}).hidden
        x = self.twice(x[:, None, :])
        x, _ = self.recurrent(x)
        return self.head(x[:, 0])


def simple(module, optimizer, x, y):
    scenes.loss_of(module, x, y).backward()
    optimizer.step()


def accumulated(module, optimizer, x, y):
    with module.no_sync():
        (scenes.loss_of(module, x[:3], y[:3]) / 2).backward()
    (scenes.loss_of(module, x[3:6], y[3:6]) / 2).backward()
    optimizer.step()


def crossed(module, optimizer, x, y):
    """Two forward passes, and then their backward passes."""
    losses = [scenes.loss_of(module, x[:3], y[:3]) / 2, scenes.loss_of(module, x[3:6], y[3:6]) / 2]
    with module.no_sync():
        losses[0].backward()
    losses[1].backward()
    optimizer.step()


def evaluated(module, optimizer, x, y):
    module.eval()
    with torch.no_grad():
        module(x)
    with torch.inference_mode():
        module(x)
    module(x)  # nobody asks for its gradient
    module.train()
    simple(module, optimizer, x, y)
    with torch.no_grad():
        module(x)


def penalized(module, optimizer, x, y):
    """By the gradient of the input, and then by that of two losses."""
    x.requires_grad_()
    output = module(x)
    loss = nn.functional.cross_entropy(output, y)
    (by_input,) = torch.autograd.grad(loss, x, retain_graph=True)
    (loss + by_input.square().sum() * output.mean()).backward()
    optimizer.step()


def raised(module, optimizer, x, y):
    """Forward ends by an error of its own in the middle, and by Ctrl-C."""
    def end(kind):
        def raise_it(*_):
            raise kind("in the middle")

        handle = module.layers[1].down.register_forward_pre_hook(raise_it)
        try:
            module(x)
        except kind:
            handle.remove()

    end(ValueError)
    end(KeyboardInterrupt)
    simple(module, optimizer, x, y)


def of_the_root(module, optimizer, x, y):
    """The root's parameters are there until backward ends."""
    loss = scenes.loss_of(module, x, y)
    (loss + module.own.square().sum()).backward()
    optimizer.step()


def clipped(module, optimizer, x, y):
    scenes.loss_of(module, x, y).backward()
    optimizer.step(max_norm=0.5)


def checkpointed(module, optimizer, x, y):
    """The blocks one by one, and all at once."""
    for use_reentrant, act in itertools.product((False, True), (simple, accumulated)):
        def by_one(x):
            for layer in module.layers:
                x = checkpoint(layer, x, use_reentrant=use_reentrant)
            return x

        def at_once(x):
            return checkpoint(functools.partial(Blocks.run, module), x, use_reentrant=use_reentrant)

        for module.run in by_one, at_once:
            act(module, optimizer, x, y)


class Rooted(Blocks):
    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.ones(3))


UNITS = {Odd: [Block, Apart, nn.LSTM, nn.Embedding, nn.Linear]}
HABITS = {"odd": (Odd, simple), "accumulated": (Blocks, accumulated), "crossed": (Odd, crossed),
          "evaluated": (Blocks, evaluated), "penalized": (Odd, penalized), "raised": (Blocks, raised),
          "root": (Rooted, of_the_root), "clipped": (Blocks, clipped), "checkpointed": (Blocks, checkpointed)}


def habit(mesh, name, steps=2, **options):
    """Outputs after each step."""
    import weightd.train

    kind, act = HABITS[name]
    module = shard(mesh, f"{name}-{options['strategy']}", kind, form="two-phase", **options)
    found = []
    with weightd.train.SGD(module, lr=0.1, momentum=0.9) as optimizer:
        for step in range(steps):
            act(module, optimizer, *scenes.part(step, mesh.rank, mesh.size))
            module.eval()
            with torch.no_grad():
                found.append(module(scenes.batch(9)[0]).flatten().tolist())
            module.train()
    return found


def hide_on_one_machine():
    """Closed units are empty, as on several machines."""
    from weightd.train import _sharded

    _sharded.Sharded.hides = property(lambda self: self.options.strategy == "zero3")


def compiled():
    """Bits after steps of a module as it is, and compiled."""
    import weightd.train

    hide_on_one_machine()
    mesh, found = weightd.train.init_mesh(), []
    for job in "eager", "compiled":
        module = shard(mesh, job, lambda: nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 5)), strategy="zero3",
                       units=nn.Linear)
        torch._dynamo.reset()
        called = torch.compile(module, backend="aot_eager") if job == "compiled" else module
        with weightd.train.SGD(module, lr=0.1) as optimizer:
            for step in optimizer.steps(2):
                simple(called, optimizer, *scenes.part(step, mesh.rank, mesh.size))
            found.append(scenes.bits(module))
    return found


class Ordered(nn.Module):
    """Units 1 to 4 of it are its modules, in order. The first one is called twice, without an input that needs a gradient."""

    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.ones(5))
        self.embed, self.one, self.idle, self.two = nn.Embedding(2, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.between = None

    def forward(self, x):
        tokens = x[:, 0].gt(0).long()
        x = self.one(self.embed(tokens)) + self.embed(1 - tokens)
        if x.requires_grad:
            x.register_hook(self.between)
        return self.two(torch.tanh(x)) + self.own


def order():
    """Requests of forward and backward to the trainer, by turns: +1 opens unit 1, -1 closes it, b0 opens bucket 0, = is no unit."""
    import weightd.train
    from weightd.train import _trainer

    asked = []
    for mark, name in ("+", "unit_open"), ("-", "unit_close"), ("b", "bucket_open"):
        def ask(self, number, *more, act=getattr(_trainer.Trainer, name), mark=mark):
            asked.append(f"{mark}{number}")
            act(self, number, *more)

        setattr(_trainer.Trainer, name, ask)
    module = weightd.train.shard(scenes.made(Ordered), weightd.train.init_mesh(), "zero3", units=[nn.Embedding, nn.Linear])
    module.between = lambda _: asked.append("=")
    x, y = scenes.batch(0)
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        def look():
            return scenes.loss_of(module, x, y)

        for act in (lambda: look().backward(), optimizer.step, look, lambda: look().backward(), optimizer.step, torch.no_grad()(look)):
            act()
            asked.append("|")
    return " ".join(asked)


def habits():
    import weightd.train

    mesh, found = weightd.train.init_mesh(), {}
    for name, (kind, _) in HABITS.items():
        found[name] = [habit(mesh, name, strategy="zero1"), habit(mesh, name, strategy="zero2"),
                       habit(mesh, name, strategy="zero3", units=UNITS.get(kind, Block))]
    return found


# --- Around steps ------------------------------------------------------------------------------------


def shown(module):
    """Values, by name. All ranks ask for them."""
    import weightd.train

    with weightd.train.gathered(module):
        return {name: p.flatten().tolist() for name, p in module.named_parameters()}


def around(strategy, **options):
    """Versions, values that a program reads and writes, modules on the meta device, and engines."""
    import copy

    import weightd.train

    mesh = weightd.train.init_mesh()
    x, y = scenes.part(0, mesh.rank, mesh.size)
    module = shard(mesh, "around", strategy=strategy, **options)
    other = scenes.made(Blocks, seed=5)
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        simple(module, optimizer, x, y)
        found = {"version": optimizer.publish(f"units-{mesh.node}"), "values": shown(module)}
        with weightd.train.gathered(module):
            found["copied"] = dict(copy.deepcopy(module).named_parameters())["head.bias"].tolist()
            found["denied"] = scenes.attempt(lambda: nn.init.zeros_(module.head.bias))
            found["inside"] = strategy == "zero3" and scenes.attempt(optimizer.step)
        if strategy == "zero3":
            found["late"] = scenes.attempt(lambda: weightd.train.writable(module).__enter__())
        simple(module, optimizer, x, y)
        with weightd.train.writable(module):
            found["read"] = module.head.bias.tolist()
            module.load_state_dict(other.state_dict())
            found["called"] = torch.equal(module(x), other(x))
        found["written"] = shown(module)
        simple(module, optimizer, x, y)
        found["bits"] = scenes.bits(module)
    found["expected"] = {name: p.flatten().tolist() for name, p in other.named_parameters()}
    with torch.device("meta"):
        bare = Blocks()
    bare.calls = torch.tensor(0)
    weightd.train.shard(bare, mesh, strategy, job="meta", values=dict(other.named_parameters()) if mesh.rank == 0 else None,
                        **options)
    with weightd.train.SGD(bare, lr=0.1) as optimizer:
        found["meta"] = shown(bare)
        simple(bare, optimizer, x, y)
        found["meta bits"] = scenes.bits(bare)
    return found


def engine(stage, **more):
    """Losses of an engine of DeepSpeed's kind."""
    import weightd.train

    mesh = weightd.train.init_mesh()
    config = {"train_batch_size": scenes.BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "zero_optimization": {"stage": stage} | more}
    made, optimizer, _, _ = weightd.train.initialize(scenes.made(Blocks), config, mesh, job=f"stage-{stage}")
    losses = []
    for step in range(STEPS):
        loss = scenes.loss_of(made, *scenes.part(step, mesh.rank, mesh.size))
        made.backward(loss)
        made.step()
        losses.append(loss.item())
    optimizer.close()
    return losses


def engines():
    return [engine(1), engine(2), engine(3, stage3_param_persistence_threshold=200)]


# --- Waits that end ----------------------------------------------------------------------------------


def held(holds=None, steps=3, **options):
    """
    Bits, of a rank that stops itself before step `holds`, and of one that calls step() again after each Timeout. Or errors, if
    one came in forward or backward: that, and those of what the program tries then.
    """
    import weightd
    import weightd.train

    signal.signal(signal.SIGINT, signal.default_int_handler)
    scenes.begin_late()
    mesh = weightd.train.init_mesh()
    module = shard(mesh, "held", **options)
    optimizer = weightd.train.AdamW(module, lr=1e-2)
    for step in optimizer.steps(steps):
        x, y = scenes.part(step, mesh.rank, mesh.size)
        if step == holds:
            os.kill(os.getpid(), signal.SIGSTOP)
        print(f"begins {step}", flush=True)
        try:
            scenes.loss_of(module, x, y).backward()
        except (weightd.Timeout, KeyboardInterrupt) as e:
            tries = optimizer.step, lambda: module(x), lambda: optimizer.publish("it"), optimizer.close
            return {"error": repr(e), "then": [scenes.attempt(act) for act in tries[:4 if options["strategy"] == "zero3" else 1]]}
        while optimizer.step_number == step:
            try:
                optimizer.step()
            except weightd.Timeout:
                print("late", flush=True)
    found = {"bits": scenes.bits(module), "first": optimizer.resumed_step}
    optimizer.close()
    return found


def evaluated_around(where, what, holds=None, steps=3):
    """
    Bits, of a program that evaluates or publishes "before" each step or "behind" it, or the error that it ends with. The rank stops itself
    before it does so for step `holds`.
    """
    import weightd
    import weightd.train

    mesh = weightd.train.init_mesh()
    module = shard(mesh, "around", strategy="zero3", units=1000)
    optimizer = weightd.train.AdamW(module, lr=1e-2)

    def look(step):
        if step == holds:
            os.kill(os.getpid(), signal.SIGSTOP)
        print(f"looks {step}", flush=True)
        if what == "publish":
            optimizer.publish(f"around-{mesh.node}")
        else:
            calls = module.calls
            with torch.no_grad():
                module(x)
            module.calls = calls  # those of the steps alone

    for step in optimizer.steps(steps):
        x, y = scenes.part(step, mesh.rank, mesh.size)
        try:
            if where == "before":
                look(step)
            scenes.loss_of(module, x, y).backward()
            optimizer.step()
            if where == "behind":
                look(step + 1)
        except weightd.Error as e:
            return {"error": str(e)}
    found = {"bits": scenes.bits(module)}
    optimizer.close()
    return found


def disordered(where):
    """The error of a pass in which the ranks of one node, or of one line, call units of the same size in another order."""
    import weightd.train

    mesh = weightd.train.init_mesh()
    module = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    module = weightd.train.shard(module, mesh, "zero3", job=f"disordered-{where}", units=nn.Linear)
    optimizer = weightd.train.SGD(module, lr=0.1)
    module(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    order = [1, 0] if (mesh.node if where == "node" else mesh.local_rank) else [0, 1]
    return scenes.attempt(lambda: [module[i](torch.ones(1, 64)) for i in order])


# --- Refusals ----------------------------------------------------------------------------------------


class Calling(nn.Module):
    """Its first unit calls the second one, which is none of its modules."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(10, 12), nn.Linear(12, 5)
        self.one.register_forward_hook(lambda module, args, result: self.other(result))

    def forward(self, x):
        return self.one(x)


def refusals():
    """Errors of shard(), by what was wrong."""
    import weightd.train

    mesh = weightd.train.init_mesh()

    def sharding(strategy="zero3", **options):
        return scenes.attempt(lambda: weightd.train.shard(scenes.made(Blocks), mesh, strategy, **options))

    deep = nn.Linear(2, 2)
    for _ in range(9):
        deep = nn.Sequential(deep)
        deep.register_parameter("own", nn.Parameter(torch.ones(2)))
    return {"units": sharding("zero1", units=Block), "reshard": sharding("zero2", reshard=False),
            "prefetch": sharding("shared", prefetch=False), "class": sharding(units=nn.Conv2d), "none": sharding(units=[]),
            "name": sharding(units=["layers.0", "layers.7"]), "list": sharding(units=nn.ModuleList),
            "inner": sharding(units="layers.1.attention.out_proj"), "number": sharding(units=0),
            "type": sharding(units=[Block, 3]), "predicate": sharding(units=lambda name, module: False),
            "deep": scenes.attempt(lambda: weightd.train.SGD(weightd.train.shard(
                deep, mesh, "zero3", job="deep", units=nn.Module), lr=0.1))}


def traps():
    """Errors of what would train in vain or fault, and that training continues."""
    import copy
    import pickle

    import weightd.train

    hide_on_one_machine()
    mesh = weightd.train.init_mesh()
    x, y = scenes.batch(0)
    module = weightd.train.shard(scenes.made(Calling), mesh, "zero3", job="calling", units=nn.Linear)
    optimizer, found = weightd.train.SGD(module, lr=0.1), {}
    found["calling"] = scenes.attempt(lambda: module(x))
    optimizer.close()
    module = weightd.train.shard(scenes.made(Blocks), mesh, "zero3", job="traps", units=Block, form="two-phase")
    optimizer = weightd.train.SGD(module, lr=0.1)
    up = module.layers[1].up

    def step(**given):
        return scenes.attempt(lambda: (scenes.loss_of(module, x, y).backward(), optimizer.step(**given)))

    found["fine"] = step()
    found["read"] = scenes.attempt(lambda: up(torch.ones(1, 12)))
    found["shape"] = list(up.weight.shape)
    found["written"] = scenes.attempt(lambda: nn.init.zeros_(up.weight))
    found["clipped"] = scenes.attempt(lambda: nn.utils.clip_grad_norm_(module.parameters(), 1.0))
    found["foreign"] = scenes.attempt(torch.optim.SGD(module.parameters(), lr=0.1).step)
    found["state_dict"] = scenes.attempt(module.state_dict)
    found["deepcopy"] = scenes.attempt(lambda: copy.deepcopy(module))
    found["pickle"] = scenes.attempt(lambda: pickle.dumps(module))
    found["weight"] = step(weight=3)
    optimizer.zero_grad()
    found["second"] = step()
    found["handed"] = [name for name, p in module.named_parameters() if p.grad is not None]
    optimizer.step()
    with module.no_sync():
        scenes.loss_of(module, x, y).backward()
    up.bias.grad.clamp_(-0.1, 0.1)
    found["changed"] = scenes.attempt(optimizer.step)
    optimizer.zero_grad()
    found["fine again"] = step()
    module.double()
    found["converted"] = step()
    module.float()
    up.weight.data = torch.ones(23, 12)
    found["rebound"] = step()
    optimizer = module = None
    return found | {"weight of zero2": weight_of_zero2(mesh)}


def weight_of_zero2(mesh):
    import weightd.train

    module = weightd.train.shard(nn.Linear(10, 5), mesh, "zero2", job="weight")
    optimizer = weightd.train.SGD(module, lr=0.1)
    scenes.loss_of(module, *scenes.batch(0)).backward()
    return scenes.attempt(lambda: optimizer.step(weight=3))

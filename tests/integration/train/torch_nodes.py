"""Scenes of several nodes, for torch_host.py. All ranks play one in one start, each part of it in a job of its own."""
import ctypes
import os
import random
import signal
import threading

import torch
import torch.distributed
import torch_scenes as scenes
from torch import nn
from torch.distributed import group
from torch_habits import wait_until

STEPS = 6
SIZES = {2: (17, 7), 3: (11, 5, 8), 4: (9, 3, 8, 4)}  # of unequal batches, by the number of ranks
USES = ((0,), (2, 3), (), (0, 1, 2, 3), (1,), (0, 1))  # ranks that use the second branch, by step
ROWS = {"shared": {}, "zero1": {"strategy": "zero1"}, "replicated": {"strategy": "replicated"},
        "overlap": {"overlap": True, "bucket_bytes": 2048}, "zero2": {"strategy": "zero2", "bucket_bytes": 2048},
        "zero3": {"strategy": "zero3", "units": 500}}


def meshes():
    """That of the launcher, and the same ranks as one node."""
    import weightd.train

    mesh = weightd.train.init_mesh()
    return mesh, weightd.train.Mesh(mesh.dims, mesh.rank)


def launched(environments):
    """Meshes in environments of launchers, or errors: [arguments of init_mesh(), variables]."""
    import weightd.train

    own, found = dict(os.environ), []
    for arguments, variables in environments:
        for name in [name for name in own if name.split("_")[0] in ("RANK", "LOCAL", "WORLD", "GROUP")]:
            os.environ.pop(name, None)
        os.environ.update(variables)
        try:
            mesh = weightd.train.init_mesh(**arguments)
            found.append([mesh.rank, mesh.size, mesh.node, mesh.n_nodes, mesh.local_rank, mesh.local_size])
        except ValueError as e:
            found.append(str(e))
        for name in variables:
            del os.environ[name]
    return found


def shard(mesh, job, kind=scenes.Net, **options):
    import weightd.train

    module = scenes.made(kind, mesh.rank)  # rank 0's values are those of all
    return weightd.train.shard(module, mesh, job=job, **options)


# --- Steps -------------------------------------------------------------------------------------------


def curve(mesh, job, lr=1e-3, steps=STEPS, **options):
    """Losses of this rank, bits, and bytes as counted in the steps and as planned for one."""
    import weightd.train

    module = shard(mesh, job, **options)
    with weightd.train.AdamW(module, lr=lr) as optimizer:
        before, losses = optimizer.traffic(), []
        for step in optimizer.steps(steps):
            loss = scenes.loss_of(module, *scenes.part(step, mesh.rank, mesh.size))
            loss.backward()
            optimizer.step(loss)
            losses.append(loss.item())
        moved = [after - then for after, then in zip(optimizer.traffic(), before)]
        return {"losses": losses, "bits": scenes.bits(module), "moved": moved,
                "planned": optimizer._trainer.planned_traffic(mesh.rank)}


def clipped(module, optimizer, step, mesh):
    scenes.loss_of(module, *scenes.part(step, mesh.rank, mesh.size)).backward()
    optimizer.step(max_norm=0.5)
    return optimizer.norm


def weighted(module, optimizer, step, mesh):
    x, y = (whole.split(SIZES[mesh.size])[mesh.rank] for whole in scenes.batch(step))
    scenes.loss_of(module, x, y).backward()
    optimizer.step(weight=len(x))


def branched(module, optimizer, step, mesh):
    x, y = scenes.part(step, mesh.rank, mesh.size)
    nn.functional.cross_entropy(module(x, mesh.rank in USES[step]), y).backward()
    optimizer.step()


def accumulated(module, optimizer, step, mesh):
    x, y = scenes.part(step, mesh.rank, mesh.size)
    with module.no_sync():
        (scenes.loss_of(module, x[:3], y[:3]) / 2).backward()
    (scenes.loss_of(module, x[3:6], y[3:6]) / 2).backward()
    optimizer.step()


def scaled(module, optimizer, step, mesh):
    """The last rank has a gradient that is not finite in step 2."""
    x, y = scenes.part(step, mesh.rank, mesh.size)
    loss = nn.functional.cross_entropy(module(x).float(), y)
    optimizer.scale(loss * float("inf") if (step, mesh.rank) == (2, mesh.size - 1) else loss).backward()
    optimizer.step(loss)
    return optimizer.overflowed, optimizer.loss_scale


def rounded(module, optimizer, step, mesh):
    x, y = scenes.part(step, mesh.rank, mesh.size)
    nn.functional.cross_entropy(module(x).float(), y).backward()
    optimizer.step()


def written(module, optimizer, step, mesh):
    """Node 0 writes the parameters after the second step; what another one writes is dropped."""
    import weightd.train

    if step == 2:
        with weightd.train.writable(module), torch.no_grad():
            module.head.bias.fill_(1 + mesh.rank)
    scenes.loss_of(module, *scenes.part(step, mesh.rank, mesh.size)).backward()
    optimizer.step()


class PartlyFrozen(scenes.Net):
    def __init__(self):
        super().__init__()
        self.inner.requires_grad_(False)


def frozen(module, optimizer, step, mesh):
    scenes.loss_of(module, *scenes.part(step, mesh.rank, mesh.size)).backward()
    optimizer.step()


def options_of(case):
    import weightd.train

    precision, scaler = weightd.train.Precision, weightd.train.Scaler
    return {"branched": {"kind": scenes.Branches}, "frozen": {"kind": PartlyFrozen}, "clipped": {"form": "two-phase"},
            "rounded": {"precision": precision(torch.bfloat16)},
            "scaled": {"precision": precision(torch.float16), "scaler": scaler(init_scale=1024.0)}}.get(case, {})


CASES = (clipped, weighted, branched, accumulated, frozen, scaled, rounded, written)


def case(mesh, job, one, **options):
    """The results of the steps, values, and bits."""
    import weightd.train

    module = shard(mesh, job, **(options_of(one.__name__) | options))
    with weightd.train.SGD(module, lr=0.1, momentum=0.9) as optimizer:
        seen = [one(module, optimizer, step, mesh) for step in optimizer.steps(STEPS)]
        values = {name: p.flatten().float().tolist() for name, p in module.named_parameters()}
        return {"seen": seen, "values": values, "bits": scenes.bits(module)}


def steps():
    """Each case on several nodes and on one, by its name; each row, on several nodes, and with one node."""
    mesh, one = meshes()
    found = {"one": curve(one, "one", form="two-phase"),
             "rows": {name: curve(mesh, f"row-{name}", **options) for name, options in ROWS.items()}, "cases": {}}
    for each in CASES:
        found["cases"][each.__name__] = [case(mesh, f"{each.__name__}-n", each), case(one, f"{each.__name__}-1", each)]
    return found


# --- Local SGD ---------------------------------------------------------------------------------------


def local(every):
    """Values after local SGD, averaged after each `every` steps, and the same by torch in one process."""
    import weightd.train

    mesh, _ = meshes()
    module = shard(mesh, f"local-{every}", sync_every=every)
    with weightd.train.SGD(module, lr=0.1, momentum=0.9) as optimizer:
        for step in optimizer.steps(STEPS):
            scenes.loss_of(module, *scenes.part(step, mesh.rank, mesh.size)).backward()
            optimizer.step()
        values, sent = scenes.values(module), optimizer.traffic().sent
    return {"values": values, "sent": sent, "expected": local_by_torch(every, mesh)}


def local_by_torch(every, mesh):
    """Values of this node."""
    modules = [scenes.made() for _ in range(mesh.n_nodes)]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9) for module in modules]
    for step in range(STEPS):
        for node, (module, optimizer) in enumerate(zip(modules, optimizers)):
            optimizer.zero_grad()
            for rank in range(node * mesh.local_size, (node + 1) * mesh.local_size):
                (scenes.loss_of(module, *scenes.part(step, rank, mesh.size)) / mesh.local_size).backward()
            optimizer.step()
        if (step + 1) % every == 0:
            with torch.no_grad():
                for same in zip(*(module.parameters() for module in modules)):
                    mean = sum(same) / len(same)
                    for p in same:
                        p.copy_(mean)
    return scenes.values(modules[mesh.node])


def locals_of(every):
    return {str(k): local(k) for k in every}


# --- Process groups of torch ---------------------------------------------------------------------------


def joined(file):
    """The world of torch.distributed, and the group of this rank's line."""
    mesh, _ = meshes()
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=mesh.rank, world_size=mesh.size)
    lines = [torch.distributed.new_group(range(i, mesh.size, mesh.local_size)) for i in range(mesh.local_size)]
    return mesh, lines[mesh.local_rank]


def by_groups(file):
    """Curves by Gloo of the library and by two groups of torch; torch's DDP; errors of groups that do not fit."""
    import weightd.train
    from weightd.train import _group

    mesh, line = joined(file)
    found = {"gloo": curve(mesh, "gloo"), "world": curve(mesh, "world", engine=group.WORLD),
             "line": curve(mesh, "line", engine=line),
             "overlap": curve(mesh, "overlap", engine=group.WORLD, overlap=True, bucket_bytes=2048),
             "zero2": curve(mesh, "zero2", engine=group.WORLD, **ROWS["zero2"]),
             "zero3": curve(mesh, "zero3", engine=line, **ROWS["zero3"]),
             "ddp": ddp(mesh)}
    alone = [torch.distributed.new_group([rank]) for rank in range(mesh.size)][mesh.rank]
    crossed = [torch.distributed.new_group([rank, mesh.size - 1 - rank]) for rank in range(mesh.size // 2)]
    turned = weightd.train.Mesh(mesh.dims, mesh.size - 1 - mesh.rank, mesh.n_nodes)
    found["refused"] = {
        "few": scenes.attempt(lambda: curve(mesh, "few", engine=alone)),
        "turned": scenes.attempt(lambda: _group.engine_of(group.WORLD, turned)),
        "crossed": mesh.n_nodes == 2 and scenes.attempt(
            lambda: _group.engine_of(crossed[min(mesh.rank, turned.rank)], mesh))}
    torch.distributed.destroy_process_group()
    return found


class Layers(nn.Sequential):
    """Two layers of a transformer, and the mean over the sequence."""

    def __init__(self):
        super().__init__(*(nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True) for _ in range(2)))

    def forward(self, x):
        return super().forward(x).mean(1)


def printed(spawned, world, zero3, port):
    """
    The snippets of weightd-python(3) for a mesh, for an engine of torch, whose processes meet at `port`, and for shards: the
    place of this rank, and the bits of the same model after some steps of each.
    """
    import weightd.train

    names = {"torch": torch, "train": weightd.train, "node": int(os.environ["GROUP_RANK"]), "i": int(os.environ["LOCAL_RANK"])}
    exec(spawned, names)
    mesh = names["mesh"]
    os.environ["MASTER_PORT"] = str(port)
    found = {"place": [mesh.rank, mesh.size, mesh.node, mesh.n_nodes, mesh.local_rank]}
    for name, text in ("world", world), ("zero3", zero3):
        names["model"] = module = scenes.made(Layers)
        exec(text, names)
        with weightd.train.SGD(module, lr=0.1) as optimizer:
            for step in optimizer.steps(STEPS):
                loss = module(torch.full((2, 3, 8), float(step + mesh.rank)) * torch.arange(8)).square().mean()
                loss.backward()
                optimizer.step(loss)
            found[name] = scenes.bits(module)
    torch.distributed.destroy_process_group()
    return found


def replicas(snippet, environments):
    """[replica, machines of its shards] of a rank in the mesh of the snippet, in environments of launchers."""
    import weightd.train

    found = []
    for variables in environments:
        os.environ.update(variables)
        exec(snippet, names := {"train": weightd.train})
        mesh = names["mesh"]
        found.append([mesh.coordinate("replicate"), sorted({rank // mesh.local_size for rank in mesh.group("shard")})])
    return found


def ddp(mesh):
    """Losses of torch's DistributedDataParallel."""
    module = nn.parallel.DistributedDataParallel(scenes.made())
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = scenes.loss_of(module, *scenes.part(step, mesh.rank, mesh.size))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def segments(tensor, dice):
    """A struct weightd_segment array of pieces of a tensor, cut at random."""
    from weightd.train import _abi

    cuts = sorted({0, len(tensor), *(dice.randrange(len(tensor) + 1) for _ in range(dice.randrange(4)))})
    pairs = list(zip(cuts, cuts[1:])) + [(0, 0)]
    return (_abi.Segment * len(pairs))(*(_abi.Segment(tensor.data_ptr() + a, b - a) for a, b in pairs)), len(pairs)


class Caller:
    """Calls an engine of a group as the library does."""

    def __init__(self, process_group, mesh):
        from weightd.train import _group

        self.mesh, self.engine = mesh, _group.engine_of(process_group, mesh)

    def exchange(self, sizes, seed, deadline_ms=20000):
        """Sends bytes to the other nodes of the line: result, sentence, whether all arrived. `sizes` by both nodes."""
        from weightd.train import _abi

        mesh, dice, kept, transfers = self.mesh, random.Random(), [], []
        others = [node for node in range(mesh.n_nodes) if node != mesh.node]
        for node in others:
            out, into = content(seed, mesh.node, node, sizes), torch.zeros(sizes[node][mesh.node], dtype=torch.uint8)
            send, n_send = segments(out, dice)
            receive, n_receive = segments(into, dice)
            kept.append((node, into, out, send, receive))
            transfers.append(_abi.Transfer(node, send, n_send, receive, n_receive))
        why = ctypes.create_string_buffer(64)
        code = self.engine.exchange(None, (_abi.Transfer * len(transfers))(*transfers), len(transfers), deadline_ms,
                                    ctypes.addressof(why), len(why))
        arrived = all(torch.equal(into, content(seed, node, mesh.node, sizes)) for node, into, *_ in kept)
        return code, why.value.decode(), arrived


def content(seed, source, target, sizes):
    generator = torch.Generator().manual_seed(100 * seed + 10 * source + target)
    return torch.randint(0, 256, (sizes[source][target],), dtype=torch.uint8, generator=generator)


def exchanged(file):
    """
    Exchanges of ragged sizes and cuts, in this thread and another one; one that a signal interrupts on node 0; then one
    for which node 1 does not come, and one after that.
    """
    from weightd.train import _group

    mesh, line = joined(file)
    _group.CHUNK = 1000  # several messages, some of one piece and some of more
    found, callers, go = [], [Caller(group.WORLD, mesh), Caller(line, mesh)], f"{file}-{mesh.local_rank}"
    for seed, size in enumerate((1, 999, 1000, 1001, 54321)):
        sizes = [[size + 7 * i + j for j in range(mesh.n_nodes)] for i in range(mesh.n_nodes)]
        found.append(callers[seed % 2].exchange(sizes, seed))
        thread = threading.Thread(target=lambda: found.append(callers[0].exchange(sizes, seed)))
        thread.start()
        thread.join()
    found.append(callers[0].exchange([[0] * mesh.n_nodes] * mesh.n_nodes, 0))  # nothing
    if mesh.node == 0:
        os.mkfifo(go)
        os.mkfifo(f"{go}-again")
        signal.signal(signal.SIGALRM, interrupt)
    torch.distributed.barrier()
    if mesh.node == 0:
        thread = threading.Thread(target=interrupt_and_go, args=(go,))
        thread.start()
        interrupted = False
        try:
            with _group.held_signals():
                found.append(callers[1].exchange(sizes, 9))
        except KeyboardInterrupt:
            interrupted = True
        thread.join()
        failed = callers[1].exchange(sizes, 10, 200)
        with open(f"{go}-again", "w"):
            return {"found": found, "interrupted": interrupted, "failed": failed}
    for name in go, f"{go}-again":
        with open(name):
            pass
        found.append(callers[1].exchange(sizes, 9))
    *found, failed = found
    return {"found": found, "interrupted": False, "failed": failed}


def interrupt(*_):
    raise KeyboardInterrupt


def interrupt_and_go(path):
    """A signal for an exchange in the main thread, which then goes on."""
    wait_until(lambda: signal.getsignal(signal.SIGALRM) is not interrupt, "no exchange")
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
    with open(path, "w"):
        pass


# --- Lives of a program ----------------------------------------------------------------------------------


def sampled(epochs=2, dies=None):
    """Samples of this rank, by epoch; SIGKILL after the step with that number, before it is noted."""
    import weightd.train

    mesh, _ = meshes()
    dataset = torch.utils.data.TensorDataset(torch.arange(43), scenes.batch(0, 43)[0])
    sampler = weightd.train.Sampler(dataset, mesh, seed=3)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler)
    module = shard(mesh, "sampled", kind=lambda: nn.Linear(10, 5))
    seen = []
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        sampler.load_state(optimizer.cursor and optimizer.cursor["sampler"])
        seen = (optimizer.cursor or {"seen": []})["seen"]
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for index, x in sampler.batches(loader):
                module(x).square().mean().backward()
                seen = seen + [[epoch, i] for i in index.tolist()[:sampler.weight()]]
                if dies == optimizer.step_number:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step(weight=sampler.weight(), cursor={"sampler": sampler.state(), "seen": seen})
        return seen


def saved(folder, param, **options):
    """
    Saves step 3 of 6, and continues it: here, and in jobs that load it, of several nodes and of one, whose values were
    another model's. Bits then, losses and bits at the end; jobs that this rank is not in are missing.
    """
    import weightd.train

    mesh, one = meshes()
    alone = weightd.train.Mesh({"dp": 2}, mesh.node, 2) if mesh.local_rank == 0 else None  # the first rank of each node
    found, precision = {}, weightd.train.Precision(getattr(torch, param))
    for name, ranks in ("saver", mesh), ("same", mesh), ("one", one), ("firsts", alone):
        if ranks is None:
            continue
        module = weightd.train.shard(scenes.made(seed=7 + len(found)), ranks, job=name, precision=precision, **options)
        with weightd.train.AdamW(module, lr=1e-3) as optimizer:
            if name != "saver":
                optimizer.load(folder)
            then, losses = scenes.bits(module), []
            for step in optimizer.steps(6):
                if (name, step) == ("saver", 3):
                    optimizer.save(folder)
                    then = scenes.bits(module)
                x, y = scenes.part(step, ranks.rank, ranks.size)
                loss = nn.functional.cross_entropy(module(x).float(), y)
                loss.backward()
                optimizer.step(loss, cursor=step)
                losses.append(loss.item())
            found[name] = {"then": then, "losses": losses[-3:], "bits": scenes.bits(module), "n": len(losses)}
    return found


def around():
    """Versions that each node published, an engine of DeepSpeed's kind, and refusals."""
    import weightd.train

    mesh, one = meshes()
    module = shard(mesh, "published", kind=scenes.Plain)
    with weightd.train.SGD(module, lr=0.1) as optimizer:
        scenes.loss_of(module, *scenes.part(0, mesh.rank, mesh.size)).backward()
        optimizer.step()
        found = {"version": optimizer.publish(f"trained-{mesh.node}"), "values": scenes.values(module)}
    config = {"train_batch_size": scenes.BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
              "zero_optimization": {"stage": 1}}
    for name, ranks in ("engine", mesh), ("engine of one", one):
        module = scenes.made()
        engine, optimizer, _, _ = weightd.train.initialize(module, config, ranks, job=name.replace(" ", "-"))
        losses = []
        for step in range(STEPS):
            loss = scenes.loss_of(engine, *scenes.part(step, mesh.rank, mesh.size))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        optimizer.close()
        found[name] = losses

    def refused(mesh=mesh, **options):
        return scenes.attempt(lambda: weightd.train.SGD(shard(mesh, "refused", **options), lr=0.1))

    return found | {"refused": {
        "flatten": scenes.attempt(lambda: weightd.train.flatten(scenes.made(), mesh)),
        "finish": refused(on_death="finish"), "fused": refused(form="fused"), "every": refused(sync_every=-1),
        "kind": refused(sync_every=2, strategy="zero1"), "type": refused(engine="gloo"),
        "alone": refused(one, sync_every=2)}}


def dying(dies=None, steps=4, file=None, patient_until=0, **options):
    """
    Bits; SIGKILL in that step. Or the error, and whether the parameters were whole then; before step `patient_until`, a
    Timeout is none. `file`: a process group of torch meets there.
    """
    import weightd.train

    mesh, _ = meshes()
    if patient_until:
        scenes.begin_late()
    if file:
        options["engine"] = joined(file)[1]
    module = shard(mesh, "dying", **options)
    optimizer = weightd.train.AdamW(module, lr=1e-2)
    for step in optimizer.steps(steps):
        before = scenes.bits(module)
        scenes.loss_of(module, *scenes.part(step, mesh.rank, mesh.size)).backward()
        if dies == step:
            os.kill(os.getpid(), signal.SIGKILL)
        while optimizer.step_number == step:
            try:
                optimizer.step()
            except weightd.train.RankDied as e:
                return {"died": str(e), "is whole": scenes.bits(module) == before, "step": optimizer.step_number}
            except weightd.Timeout as e:
                if step >= patient_until:
                    return {"late": str(e), "is whole": scenes.bits(module) == before, "step": optimizer.step_number}
    optimizer.close()
    return {"bits": scenes.bits(module), "first": optimizer.resumed_step}


def interrupted(holds=None, steps=3, **options):
    """Bits, of a node that stops itself before step `holds`, and one that counts Ctrl-C and calls step() again."""
    import weightd.train

    signal.signal(signal.SIGINT, signal.default_int_handler)
    mesh, _ = meshes()
    module, n_interruptions = shard(mesh, "interrupted", deadline=None, **options), 0
    with weightd.train.AdamW(module, lr=1e-2) as optimizer:
        for step in optimizer.steps(steps):
            scenes.loss_of(module, *scenes.part(step, mesh.rank, mesh.size)).backward()
            if step == holds:
                os.kill(os.getpid(), signal.SIGSTOP)
            while optimizer.step_number == step:
                try:
                    print(f"begins {step}", flush=True)
                    optimizer.step()
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
                    n_interruptions += 1
        return [scenes.bits(module), n_interruptions]

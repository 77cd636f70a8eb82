"""Scenes of checkpoints, for torch_host.py. All ranks play them in one start; a smaller mesh is some of them."""
import hashlib
import os
import pathlib
import warnings

import torch
import torch_scenes as scenes


def make(job, n, rank, kind="Plain", seed=0, **options):
    """A sharded module in a job of the first `n` ranks, with dropout of its own in each."""
    import weightd.train

    os.environ.update(WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n))
    module = scenes.made(getattr(scenes, kind), seed)
    torch.manual_seed(100 * seed + rank)
    scenes.sharded(module, job=job, **options)
    return module, weightd.train.AdamW(module, lr=1e-2)


def bits(module):
    """A hash of all that a state_dict has, of any type."""
    found = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        found.update(name.encode() + tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def train(module, optimizer, until, rank, n):
    """The losses of this rank's part."""
    losses = []
    for step in optimizer.steps(until):
        loss = scenes.loss_of(module, *scenes.part(step, rank, n))
        if optimizer.loss_scale == 1024 and step == 1:
            loss = loss * float("inf")  # overflows
        (loss if optimizer.loss_scale == 1 else optimizer.scale(loss)).backward()
        optimizer.step(loss, cursor={"at": step + 1})
        losses.append(loss.item())
    return losses


def saved_or_loaded(folder, is_saved, until=6):
    """Saves step 3 of `until` and goes on, or continues that with another model's values. On one node or several."""
    import weightd.train

    rank, n = scenes.environment()
    module = scenes.made(scenes.Plain, 0 if is_saved else 1)
    torch.manual_seed(100 + rank if is_saved else rank)
    scenes.sharded(module, job="saver" if is_saved else f"loader-{n}", form="two-phase")
    optimizer = weightd.train.AdamW(module, lr=1e-2)
    if is_saved:
        train(module, optimizer, 3, rank, n)
        optimizer.save(folder)
    else:
        optimizer.load(folder)
    found = {"saved": bits(module), "step": optimizer.resumed_step, "cursor": optimizer.cursor}
    found |= {"losses": train(module, optimizer, until, rank, n), "bits": bits(module)}
    optimizer.close()
    return found


def life(folder, until=6, n_loaders=(4, 3, 2, 1), **options):
    """Saves step 3 of `until`, and continues it in jobs of other numbers of ranks, whose values are another model's."""
    rank, n = scenes.environment()
    module, optimizer = make("saver", n, rank, **options)
    train(module, optimizer, 3, rank, n)
    saved = bits(module)
    optimizer.save(folder)
    found = {"saved": saved, "losses": train(module, optimizer, until, rank, n), "bits": bits(module), "loaded": {}}
    optimizer.close()
    for others in n_loaders:
        if rank < others:
            module, optimizer = make(f"loader-{others}", others, rank, seed=1, **options)
            optimizer.load(folder)
            found["loaded"][str(others)] = {
                "saved": bits(module), "step": optimizer.resumed_step, "cursor": optimizer.cursor,
                "scale": optimizer.loss_scale,
                "losses": train(module, optimizer, until, rank, others), "bits": bits(module)}
            optimizer.close()
    return found


def plainly(folder, until):
    """Losses of torch with the whole batch in one process, from the checkpoint on; what the package safetensors reads."""
    import weightd.train
    from safetensors.torch import load_file

    state, module = weightd.train.torch_state(folder), scenes.made(seed=1)
    (checkpoint,) = pathlib.Path(folder).iterdir()
    read = {name: tensor for file in checkpoint.glob("model-*.safetensors") for name, tensor in load_file(file).items()}
    same = read.keys() == state["model"].keys() and all(torch.equal(read[name], state["model"][name]) for name in read)
    module.load_state_dict(state["model"])
    saved = bits(module)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    optimizer.load_state_dict(state["optimizer"])
    losses = []
    for step in range(state["step"], until):
        optimizer.zero_grad()
        loss = scenes.loss_of(module, *scenes.batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "saved": saved, "lr": optimizer.param_groups[0]["lr"], "same": same}


def troubles(folder, file):
    """Errors and warnings of save() and load() on one rank; a checkpoint that trains on with another weight decay."""
    import weightd.train

    module, optimizer = make("troubles", 1, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.save(file)
        train(module, optimizer, 1, 0, 1)
        optimizer.save(folder)  # tells of the one before
    found = {"warned": [str(w.message) for w in caught], "raised": scenes.attempt(lambda: optimizer.save(file, wait=True)),
             "too late": scenes.attempt(lambda: optimizer.load(folder)),
             "negative": scenes.attempt(lambda: optimizer.save(folder, keep=-1))}
    optimizer.close()
    module, optimizer = make("other", 1, 0, kind="Net")
    found["other"] = scenes.attempt(lambda: optimizer.load(folder))
    found["nothing"] = scenes.attempt(lambda: optimizer.load(file))
    optimizer.close()
    module = scenes.sharded(scenes.made(scenes.Plain), job="decays")
    optimizer = weightd.train.AdamW(module, lr=1.0, weight_decay=0.5)
    optimizer.load(folder)
    found["decay"] = [optimizer.param_groups[0][key] for key in ("lr", "weight_decay")]
    found["step"] = scenes.attempt(lambda: train(module, optimizer, 2, 0, 1))
    optimizer.close()
    return found


def half(folder):
    """life() in bfloat16, with a loss scale that shrinks once."""
    import weightd.train

    precision = weightd.train.Precision(param=torch.bfloat16, reduce=torch.float32, buffer=torch.bfloat16, cast_inputs=True)
    scaler = weightd.train.Scaler(init_scale=1024.0, growth_interval=100)
    return life(folder, n_loaders=(2,), precision=precision, scaler=scaler, form="two-phase")

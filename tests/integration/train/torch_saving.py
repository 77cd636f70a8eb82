"""Scenes of checkpoints, for torch_host.py."""
import json
import os
import pathlib
import signal
import warnings

import torch
import torch_scenes as scenes


def make(kind="Plain", optimizer="AdamW", lr=1e-2, **options):
    """A sharded module in a job, with dropout of its own in each rank."""
    import weightd.train

    rank, _ = scenes.environment()
    module = scenes.made(getattr(scenes, kind))
    torch.manual_seed(100 + rank)
    scenes.sharded(module, **options)
    return module, getattr(weightd.train, optimizer)(module, lr=lr)


def train(module, optimizer, until):
    """The losses of this rank's part."""
    rank, n = scenes.environment()
    losses = []
    for step in optimizer.steps(until):
        loss = scenes.loss_of(module, *scenes.part(step, rank, n))
        loss.backward()
        optimizer.step(loss, cursor={"at": step + 1})
        losses.append(loss.item())
    return losses


def saved(folder, at, until, name="a", **options):
    """Trains to step `at`, saves there, and trains on: the bits at both, and the losses behind."""
    module, optimizer = make(job=name, **options)
    train(module, optimizer, at)
    bits = scenes.bits(module)
    optimizer.save(folder)
    losses = train(module, optimizer, until)
    found = {"saved": bits, "bits": scenes.bits(module), "losses": losses}
    optimizer.close()
    return found


def loaded(folder, until, name="b", **options):
    module, optimizer = make(job=name, **options)
    optimizer.load(folder)
    found = {"loaded": scenes.bits(module), "step": optimizer.resumed_step, "cursor": optimizer.cursor}
    found["losses"] = train(module, optimizer, until)
    found["bits"] = scenes.bits(module)
    optimizer.close()
    return found

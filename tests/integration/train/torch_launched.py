"""Scenes of launchers, for torch_host.py: what they start is forked here, as a Python that imports torch takes seconds."""
import ctypes
import json
import os
import pathlib
import types

import torch
import torch_scenes as scenes
from torch.distributed import run as torchrun

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def rank_of(given):
    """
    A rank that a launcher started: the scene "run", with its arguments, and

    dies     [rank, step, moment], once
    marker   file that is there when that has happened
    results  folder for a file of each rank
    """
    torch.set_num_threads(1)
    given, (rank, _) = dict(given), scenes.environment()
    victim, *when = given.pop("dies")
    marker, results = pathlib.Path(given.pop("marker")), pathlib.Path(given.pop("results"))
    if rank == victim and not marker.exists():
        marker.touch()
        given["dies"] = when
    found = scenes.run(**given)
    (results / str(rank)).write_text(json.dumps(found))
    print(f"rank {rank} began at step {found['first']}, restart {os.environ.get('TORCHELASTIC_RESTART_COUNT')}", flush=True)


def by_torchrun(words, given):
    """The torchrun of these words. It forks its ranks, as it does for a launch from Python, instead of starting the program."""
    def configured(args, configure=torchrun.config_from_args):
        config, *_ = configure(args)
        config.start_method = "fork"
        return config, rank_of, [given]

    torchrun.config_from_args = configured
    torchrun.main(words)


def without_proc(file):
    """Names of the job, or errors, where /proc cannot be read: found by the launcher, and by the file of the job."""
    import weightd
    from weightd.train import _job

    def find():
        mesh = types.SimpleNamespace(size=2, local_size=2, n_nodes=1, node=0)
        try:
            return _job.find_job(mesh, None).token.partition(":")[0]
        except weightd.Error as e:
            return str(e)

    libc = ctypes.CDLL(None, use_errno=True)
    for act in (lambda: libc.unshare(CLONE_NEWNS), lambda: libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None),
                lambda: libc.mount(b"none", b"/proc", b"tmpfs", 0, None)):
        if act():
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    found = [find()]
    os.environ["WEIGHTD_JOB_FILE"] = file
    return [*found, find()]

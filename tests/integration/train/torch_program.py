"""A program for launchers: torch_program.py JSON, with the arguments of torch_scenes.run(), and

dies     [rank, step, moment], once
marker   file that is there when that has happened
results  folder for a file of each rank
"""
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "libclient/python"), str(HERE)]

import torch  # noqa: E402

import torch_scenes  # noqa: E402, found by the path above

torch.set_num_threads(1)
given = json.loads(sys.argv[1])
rank, _ = torch_scenes.environment()
victim, *when = given.pop("dies")
marker, results = pathlib.Path(given.pop("marker")), pathlib.Path(given.pop("results"))
if rank == victim and not marker.exists():
    marker.touch()
    given["dies"] = when
found = torch_scenes.run(**given)
(results / str(rank)).write_text(json.dumps(found))
print(f"rank {rank} began at step {found['first']}, restart {os.environ.get('TORCHELASTIC_RESTART_COUNT')}")

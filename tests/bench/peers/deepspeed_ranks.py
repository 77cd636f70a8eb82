"""
A rank of DeepSpeed's all-reduce in shared memory, for rounds (../train/rounds.h): deepspeed_ranks.py BYTES

Loads its extension, which must be compiled before. LOCAL_SIZE has to be set; fp32 needs AVX2, or AVX-512.
"""
import os
import sys

import torch
import torch.distributed as dist
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

import rounds_peer

BYTES = int(sys.argv[1])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=RANK, world_size=WORLD)
    op = ShareMemCommBuilder().load(verbose=False)
    op.initialize(WORLD, RANK)
    data = torch.zeros(BYTES // 4)

    def all_reduce(size):
        part = data[:size // 4]
        return lambda: torch.ops.deepspeed.inference_all_reduce_(part)

    data[:16] = RANK + 1
    all_reduce(64)()
    assert data[0] == WORLD * (WORLD + 1) / 2, "DeepSpeed's sum is wrong"
    data.zero_()
    rounds_peer.Rounds(RANK).serve({"all_reduce": all_reduce}, dist.barrier)


main()

"""
A rank of torch over gloo, for rounds (../train/rounds.h): torch_ranks.py ELEMENTS BYTES

"ddp"   one all-reduce of the flat gradients and the fused AdamW on all: the best that DDP can do, without its buckets
"zero"  reduce-scatter, fused AdamW on the shard, all-gather of parameters: ZeRO's stages 1 and 2
"adamw" the fused AdamW alone
"all_reduce", "reduce_scatter", "all_gather" of SIZE bytes
"""
import os
import sys

import torch
import torch.distributed as dist

import rounds_peer

N, BYTES = int(sys.argv[1]), int(sys.argv[2])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def adamw(param):
    return torch.optim.AdamW([param], lr=1e-3, weight_decay=0.01, fused=True)


class Update:
    def __init__(self):
        self.param = torch.nn.Parameter(torch.arange(N, dtype=torch.float32) % 1000 * 1e-3)
        self.grad = (torch.arange(N, dtype=torch.float32) + RANK) % 777 * 1e-3 - 0.4
        self.param.grad = self.grad.clone()
        self.full = adamw(self.param)
        each = N // WORLD
        self.shard = torch.nn.Parameter(self.param.detach()[RANK * each:(RANK + 1) * each].clone())
        self.shard.grad = torch.zeros_like(self.shard)
        self.sharded = adamw(self.shard)

    def ddp(self, _size):
        def run():
            dist.all_reduce(self.param.grad)
            self.param.grad.mul_(1 / WORLD)
            self.full.step()
        return run

    def zero(self, _size):
        def run():
            dist.reduce_scatter_tensor(self.shard.grad, self.grad)
            self.shard.grad.mul_(1 / WORLD)
            self.sharded.step()
            dist.all_gather_into_tensor(self.param.data, self.shard.data)
        return run

    def adamw(self, _size):
        return self.full.step


class Collectives:
    def __init__(self):
        self.data, self.part = torch.zeros(BYTES // 4), torch.zeros(BYTES // 4 // WORLD)

    def all_reduce(self, size):
        data = self.data[:size // 4]
        return lambda: dist.all_reduce(data)

    def reduce_scatter(self, size):
        data, part = self.data[:size // 4], self.part[:size // 4 // WORLD]
        return lambda: dist.reduce_scatter_tensor(part, data)

    def all_gather(self, size):
        data, part = self.data[:size // 4], self.part[:size // 4 // WORLD]
        return lambda: dist.all_gather_into_tensor(data, part)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=RANK, world_size=WORLD)
    update, collectives = Update(), Collectives()
    rounds_peer.Rounds(RANK).serve({"ddp": update.ddp, "zero": update.zero, "adamw": update.adamw,
                                    "all_reduce": collectives.all_reduce, "reduce_scatter": collectives.reduce_scatter,
                                    "all_gather": collectives.all_gather}, dist.barrier)
    dist.destroy_process_group()


main()

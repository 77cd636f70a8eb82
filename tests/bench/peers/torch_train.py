"""
A rank of a whole torch program: torch_train.py weightd|plain|ddp|run|checkpoint [FILE]

weightd, ddp  for rounds (../train/rounds.h). "step": forward, backward, update. "pss": the growth of this process's
              proportional memory over its imports, in bytes. plain: weightd without its journal
run           trains until it is killed, and prints the times (in ns) of its import of torch, of the open job and of each step
checkpoint    prints the nanoseconds of torch.save() of parameters and optimizer to FILE, and of loading them again
"""
import os
import pathlib
import re
import sys
import time

import torch
import torch.distributed as dist

imported_ns = time.monotonic_ns()

LAYERS, WIDTH, BATCH = 13, 1024, 16
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def make_model(device="cpu"):
    torch.manual_seed(0)
    with torch.device(device):
        return torch.nn.Sequential(*(layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())))


def pss():
    return 1024 * int(re.search(r"^Pss: +(\d+)", pathlib.Path("/proc/self/smaps_rollup").read_text(), re.M)[1])


class Program:
    """model, step(loss): what differs between the programs."""

    def __init__(self):
        torch.manual_seed(RANK + 1)
        self.x, self.y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def run(self):
        loss = torch.nn.functional.mse_loss(self.model(self.x), self.y)
        loss.backward()
        self.update(loss)


class Weightd(Program):
    """Rank 0 gives the parameters their first values: the others need no model but its shape."""

    def __init__(self, with_journal=True):
        super().__init__()
        import functools

        import weightd.train
        if not with_journal:
            from weightd.train import _abi
            _abi.PlanOptions = functools.partial(_abi.PlanOptions, without_journal=True)
        mesh = weightd.train.init_mesh({"data": WORLD}, rank=RANK)
        self.before = pss()
        self.model = weightd.train.shard(make_model("meta" if RANK else "cpu"), mesh)
        self.optimizer = weightd.train.AdamW(self.model.parameters(), lr=1e-4)
        self.update = self.optimizer.step


class Ddp(Program):
    def __init__(self):
        super().__init__()
        dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=RANK, world_size=WORLD)
        self.before = pss()
        self.model = torch.nn.parallel.DistributedDataParallel(make_model())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def update(self, _loss):
        self.optimizer.step()
        self.optimizer.zero_grad()


def serve(program):
    import rounds_peer

    program.run()  # all that is allocated late is there
    rounds = rounds_peer.Rounds(RANK)
    rounds.serve({"step": lambda _size: program.run}, lambda: None, {"pss": lambda: [pss() - program.before]})


def run():
    program = Weightd()
    print("import", 0, imported_ns, flush=True)
    print("open", program.optimizer.step_number, time.monotonic_ns(), flush=True)
    while True:
        program.run()
        print("step", program.optimizer.step_number, time.monotonic_ns(), flush=True)


def checkpoint(path):
    program = Program()
    program.model = make_model()
    program.optimizer = torch.optim.AdamW(program.model.parameters(), lr=1e-4, fused=True)
    program.update = lambda _loss: program.optimizer.step()
    program.run()
    started = time.monotonic_ns()
    torch.save({"model": program.model.state_dict(), "optimizer": program.optimizer.state_dict()}, path)
    saved = time.monotonic_ns()
    state = torch.load(path)
    program.model.load_state_dict(state["model"])
    program.optimizer.load_state_dict(state["optimizer"])
    print(saved - started, time.monotonic_ns() - saved)


def main():
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["weightd"]:
            serve(Weightd())
        case ["plain"]:
            serve(Weightd(with_journal=False))
        case ["ddp"]:
            serve(Ddp())
        case ["run"]:
            run()
        case ["checkpoint", path]:
            checkpoint(path)


main()

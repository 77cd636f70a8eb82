"""
A rank of a whole program, for rounds (../train/rounds.h): rank.py KIND SIZE RANKS

KIND    a name of KINDS; SIZE, of gpt.SIZES
RANKS   parts of a batch; those of "single" are all in its one process

"step"      forward, backward, and all else that a step of this kind does
"steps"     some steps without a barrier; their number
"curve"     losses of STEPS steps, in units of 1e-9, to compare with those of "single"
"parameters"  their number
"memory"    growth of the private and shared memory of this process (proportional) since torch was imported, in bytes
"save"      nanoseconds until training could continue, and until all was on the disk, of a checkpoint in $SAVE_FOLDER
"""
import functools
import os
import pathlib
import re
import sys
import time

import torch
import torch.distributed as dist

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "peers")]

import gpt
import rounds_peer

KIND, SIZE, RANKS = sys.argv[1], gpt.SIZES[sys.argv[2]], int(sys.argv[3])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LR = 1e-3
STEPS = 5


def own_memory():
    """Proportional bytes without those of files, which are code: their share depends on the number of other processes."""
    text = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return sum(1024 * int(re.search(rf"^Pss_{kind}: +(\d+)", text, re.M)[1]) for kind in ("Anon", "Shmem"))


before = own_memory()  # torch is imported


def fused_adamw(parameters):
    return torch.optim.AdamW(parameters, lr=LR, fused=True)


class Program:
    """One kind of program: `model`, `optimizer`, and the methods that differ."""

    def __init__(self):
        dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=RANK, world_size=WORLD)
        self.batches = gpt.batches(SIZE, RANK if WORLD == RANKS else None, RANKS)
        self.n_steps = 0
        self.make()

    def make(self):
        self.model = gpt.make(SIZE)
        self.optimizer = fused_adamw(self.model.parameters())

    def run(self):
        """A step; returns its loss."""
        loss = gpt.loss_of(self.model, self.batches[self.n_steps % len(self.batches)])
        self.n_steps += 1
        self.finish(loss)
        return loss

    def finish(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder):
        """Training is held while it is written. Returns a function that waits for its end."""
        raise NotImplementedError


class Compute(Program):
    """Forward and backward, and nothing else."""

    def finish(self, loss):
        loss.backward()
        self.model.zero_grad()


class Local(Program):
    """No communication, and all of the optimizer on each rank: no data parallelism."""


class Single(Program):
    """One process that has the batches of all: what the losses of the others must be."""


class Weightd(Program):
    options = {}

    def make(self):
        import weightd.train

        mesh = weightd.train.init_mesh({"dp": WORLD}, rank=RANK)
        self.model = weightd.train.shard(gpt.make(SIZE, "meta" if RANK else "cpu"), mesh, **self.options)
        self.optimizer = weightd.train.AdamW(self.model, lr=LR)

    def finish(self, loss):
        loss.backward()
        self.optimizer.step(loss)

    def save(self, folder):
        self.optimizer.save(folder, keep=1)
        return self.optimizer._trainer.save_wait


class Overlap(Weightd):
    """Buckets are summed by a thread while backward runs."""

    options = {"form": "two-phase", "overlap": True, "bucket_bytes": 1 << 20}


class Bf16(Weightd):
    """Parameters and gradients in bfloat16, originals in float32."""

    def make(self):
        from weightd.train import Precision

        self.options = {"precision": Precision(param=torch.bfloat16)}
        super().make()


class Units(Weightd):
    """Stage 3, each block and the rest a unit."""

    prefetch = True

    def make(self):
        self.options = {"strategy": "zero3", "units": gpt.Block, "prefetch": self.prefetch}
        super().make()


class UnitsLate(Units):
    """Likewise; a unit is gathered once it is opened."""

    prefetch = False


class Ddp(Program):
    def make(self):
        self.model = torch.nn.parallel.DistributedDataParallel(gpt.make(SIZE), gradient_as_bucket_view=True)
        self.optimizer = fused_adamw(self.model.parameters())

    def save(self, folder):
        """Rank 0 has all of it."""
        if RANK == 0:
            state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, folder / "checkpoint.pt")
        return dist.barrier


class Zero(Ddp):
    """ZeroRedundancyOptimizer: ZeRO's stage 1."""

    def make(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.model = torch.nn.parallel.DistributedDataParallel(gpt.make(SIZE), gradient_as_bucket_view=True)
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, lr=LR, fused=True)

    save = Program.save


class Fsdp(Program):
    """FSDP2, each block and the rest a unit."""

    param_dtype = None

    def make(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh, policy = init_device_mesh("cpu", (WORLD,)), MixedPrecisionPolicy(param_dtype=self.param_dtype)
        self.model = gpt.make(SIZE)
        for unit in (*self.model.blocks, self.model):
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        self.optimizer = fused_adamw(self.model.parameters())

    def save(self, folder):
        """DCP: each rank writes its part."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
        return dist.barrier


class FsdpBf16(Fsdp):
    """Gathered parameters and gradients in bfloat16, shards in float32."""

    param_dtype = torch.bfloat16


class DeepSpeed(Program):
    """ZeRO by DeepSpeed, with torch's fused AdamW."""

    stage = 0

    def make(self):
        import deepspeed

        model = gpt.make(SIZE)
        config = {"train_micro_batch_size_per_gpu": SIZE.batch, "gradient_accumulation_steps": 1,
                  "zero_optimization": {"stage": self.stage}, "gradient_clipping": 0.0}  # its default is 1
        self.model, self.optimizer, _, _ = deepspeed.initialize(model=model, optimizer=fused_adamw(model.parameters()), config=config)

    def finish(self, loss):
        self.model.backward(loss)
        self.model.step()


class DeepSpeed1(DeepSpeed):
    stage = 1


class DeepSpeed2(DeepSpeed):
    stage = 2


class DeepSpeed3(DeepSpeed):
    stage = 3


KINDS = {"single": Single, "compute": Compute, "local": Local, "weightd": Weightd, "weightd-overlap": Overlap,
         "weightd-units": Units, "weightd-units-late": UnitsLate, "ddp": Ddp,
         "zero-redundancy": Zero, "fsdp2": Fsdp, "deepspeed-1": DeepSpeed1, "deepspeed-2": DeepSpeed2, "deepspeed-3": DeepSpeed3,
         "weightd-bf16": Bf16, "fsdp2-bf16": FsdpBf16}


def curve(program):
    return [round(program.run().item() * 1e9) for _ in range(STEPS)]


def uncounted(program):
    for _ in range(STEPS):
        program.run()
    return [STEPS]


def grown(_program):
    return [own_memory() - before]


def parameters(program):
    return [sum(p.numel() for p in program.model.parameters())]


def saved(program):
    """A checkpoint of a new step, and then whatever of it is not on the disk yet."""
    folder = pathlib.Path(os.environ["SAVE_FOLDER"])
    program.run()
    dist.barrier()
    started = time.monotonic_ns()
    wait = program.save(folder)
    held = time.monotonic_ns()
    wait()
    if RANK == 0:
        for path in (path for path in folder.rglob("*") if path.is_file()):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    dist.barrier()
    return [held - started, time.monotonic_ns() - started]


def main():
    torch.set_num_threads(1)
    program = KINDS[KIND]()
    answers = {"curve": curve, "steps": uncounted, "memory": grown, "parameters": parameters, "save": saved}
    rounds_peer.Rounds(RANK).serve({"step": lambda _size: program.run}, dist.barrier,
                                   {verb: functools.partial(answer, program) for verb, answer in answers.items()})



main()

"""The processes of the first part: ranks of weightd.train, ranks of torch's DDP, and a process that generates text."""

import torch
import torch.distributed
import weightd
import weightd.torch
import weightd.train
from gpt import GPT
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

NAME = "gpt"
EACH = 10  # steps between versions
PROMPT = "The server "
WARM_UP = 20  # steps


def made(shape):
    torch.manual_seed(0)
    return GPT(**shape)


def warm_up(opt):
    return LambdaLR(opt, lambda step: min(1, (step + 1) / WARM_UP))


def ours(link, task, rank, is_restart=False):
    """A rank. One that was killed is started again in the same way, and continues in its step."""
    if not is_restart:
        link.report(ready=True)
        link.wait()
    mesh = weightd.train.init_mesh({"dp": task["n"]})
    model = weightd.train.shard(made(task["shape"]), mesh)
    with weightd.train.AdamW(model, lr=task["lr"]) as opt:
        link.report(resumed=opt.resumed_step)
        scheduler = opt.resume(warm_up)
        for step in opt.steps(task["steps"]):
            loss = model.loss(*task["corpus"].batch(step, rank, *task["batch"]))
            loss.backward()
            link.report(step=step, loss=loss.item())  # before the step, which may be committed without a life after it
            opt.step(loss)
            scheduler.step()
            if (step + 1) % EACH == 0:
                opt.publish(NAME)
        del loss
        link.report(held=True)
        link.wait()


def ddp(link, task, rank, file):
    """The same by torch, with the optimizer that is fastest on a CPU, and gradients in the buckets of DDP alone."""
    link.report(ready=True)
    link.wait()
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=task["n"])
    model = made(task["shape"])
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=task["lr"], fused=True)
    scheduler, criterion = warm_up(opt), torch.nn.functional.cross_entropy
    for step in range(task["steps"]):
        tokens, targets = task["corpus"].batch(step, rank, *task["batch"])
        opt.zero_grad()
        loss = criterion(parallel(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        opt.step()
        scheduler.step()
        link.report(step=step, loss=loss.item())
    del loss
    link.report(held=sizes(model, opt))
    link.wait()
    torch.distributed.destroy_process_group()


def sizes(model, opt):
    """Bytes of its tensors by kind, in the words of a job."""
    def size(tensors):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    return {"PARAM": size(model.parameters()), "GRAD": size(p.grad for p in model.parameters()),
            "MOMENTS": size(state[key] for state in opt.state.values() for key in ("exp_avg", "exp_avg_sq"))}


def generator(link, task, last):
    """Generates text with each version, the newest one at a time, up to version `last`."""
    with weightd.torch.meta_parameters():
        model = GPT(**task["shape"])
    tokenizer = task["corpus"].tokenizer
    prompt = tokenizer.encode(PROMPT.strip()).ids
    link.report(ready=True)
    buffer = weightd.attach(NAME, timeout=None)
    weightd.torch.bind(model, buffer)
    while True:
        link.report(version=buffer.version, text=tokenizer.decode(model.generate(prompt, 32)))
        if buffer.version >= last:
            return
        buffer.wait()
        buffer.swap()

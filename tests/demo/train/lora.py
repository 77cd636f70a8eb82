"""
Adapters of one frozen model, by processes that each train a LoRA of peft on a man page.

The base is a version of the GPT in weightd that all of them attach, and the adapters of each are a job. Plain processes do the
same, each with a copy of the base from a checkpoint.
"""

import os

import peft
import pool
import processes
import torch
import weightd
import weightd.torch
import weightd.train
from gpt import GPT, ROOT
from processes import Process
from shown import megabytes, say, say_row

PAGES = ("weightctl.1", "weightd-trace.8", "weightd-sync.8", "weightd.8")
PROMPT = "The "
RANK, LR, SEQUENCES = 8, 3e-3, 8


def with_adapters(base):
    """The base, frozen, with adapters beside its matrices."""
    torch.manual_seed(0)
    return peft.get_peft_model(base, peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["qkv", "out", "up", "down"]))


def ours(link, task, page):
    """On the version of the base in weightd; the adapters are a job."""
    link.report(ready=True)
    link.wait()
    with weightd.torch.meta_parameters():
        base = GPT(**task["shape"])
    model = with_adapters(weightd.torch.bind(base, weightd.attach(task["name"])))
    with weightd.train.AdamW(weightd.train.shard(model, weightd.train.init_mesh()), lr=LR) as opt:
        found = trained(model, opt, task, page)
        link.report(**found, address=base.embedding.weight.data_ptr())
        link.wait()


def plain(link, task, page):
    """On a copy of the base."""
    link.report(ready=True)
    link.wait()
    base = GPT(**task["shape"])
    base.load_state_dict(torch.load(task["checkpoint"]))
    model = with_adapters(base)
    adapters = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(adapters, lr=LR, fused=True)
    found = trained(model, opt, task, page)
    state = [tensor for state in opt.state.values() for key, tensor in state.items() if key != "step"]
    link.report(**found, base=size(p for p in model.parameters() if not p.requires_grad),
                adapters=size([*adapters, *(p.grad for p in adapters), *state]))
    link.wait()


def trained(model, opt, task, page):
    """Trains the adapters on a page: the losses by step, and text."""
    corpus, losses = task["pages"][page], []
    for step in range(task["lora_steps"]):
        opt.zero_grad()
        loss = model.loss(*corpus.batch(step, 0, 1, SEQUENCES, task["shape"]["length"]))
        loss.backward()
        opt.step()
        losses.append(loss.item())
    text = corpus.tokenizer.decode(model.generate(corpus.tokenizer.encode(PROMPT.strip()).ids, 24))
    return {"losses": losses, "text": " ".join(text.split())}


def size(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def run(function, task, weigh):
    """The last reports of the processes, the growth of their memory, and weigh(processes, reports) while they hold."""
    started = [Process(f"process {page}", function, task, page) for page in range(task["n"])]
    try:
        for process in started:
            process.await_report("ready")
        pids = [os.getpid(), *(process.pid for process in started)]
        before = processes.pss(pids)
        for process in started:
            process.go()
        reports = [process.await_report("losses") for process in started]
        growth, found = processes.pss(pids) - before, weigh(started, reports)
        for process in started:
            process.go()
        for process in started:
            process.finish()
    finally:
        for process in started:
            process.close()
    return reports, growth, found


def weigh_ours(started, reports):
    """Bytes of the base that the processes have mapped, a page counted once, and of their jobs."""
    base = sum(pool.mapping_at(process.pid, report["address"])["Pss"] for process, report in zip(started, reports))
    return base, sum(sum(processes.job_pages(process.pid).values()) for process in started)


def weigh_plain(_, reports):
    return sum(report["base"] for report in reports), sum(report["adapters"] for report in reports)


def show(ours, plain):
    (reports, growth, (base, jobs)), (others, their_growth, (bases, adapters)) = ours, plain
    for page, report in zip(PAGES, reports):
        say(f"{page:<15} {report['losses'][0]:.2f} -> {report['losses'][-1]:.2f}  {report['text']}"[:77])
    most = max(abs(a - b) for r, other in zip(reports, others) for a, b in zip(r["losses"], other["losses"]))
    say(f"{len(reports[0]['losses'])} steps; losses of plain processes differ by {most:.0e} at most.")
    say()
    say_row(f"memory of {len(reports)} processes together", "weightd", "plain ones")
    say_row("the frozen base", megabytes(base), megabytes(bases))
    say_row("adapters, gradients, moments, journals", megabytes(jobs), megabytes(adapters))
    say_row("growth of the processes", megabytes(growth), megabytes(their_growth))
    say("Base of weightd: Pss of its mapping, by smaps. Plain: tensors.")


def measure(task, name, checkpoint):
    """Trains and prints. The task is that of the GPT; `name`: the buffer; `checkpoint`: a file with the same parameters."""
    pages = [task["corpus"].of(ROOT / f"packaging/man/{page}.scd") for page in PAGES]
    task = task | {"name": name, "checkpoint": checkpoint, "pages": pages}
    show(run(ours, task, weigh_ours), run(plain, task, weigh_plain))

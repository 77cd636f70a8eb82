"""
Training of one model by several processes, on memory of weightd.

    mesh = weightd.train.init_mesh()                          # the ranks that the launcher started
    model = weightd.train.shard(Model(), mesh)
    with weightd.train.AdamW(model, lr=3e-4) as opt:          # opens the job: the parameters are shared memory now
        for step in opt.steps(1000):                          # from where the job is, after a restart
            loss = criterion(model(batch(step)), ...)
            loss.backward()
            opt.step(loss)
        opt.publish("mine")                                   # rank 0 of a node: a version that others attach

All ranks of a machine train one copy of the parameters (strategy="shared"), and each step happens exactly once: a rank
that was killed, at any moment, continues in its step, with the same bits, and nothing is loaded. Its program just
starts again: parameters, optimizer state, buffers, random number generators, learning rates and a cursor of its own are
restored, and opt.resume() makes a scheduler in its state. See weightd-train(7).

Jobs. The ranks find their job by, in this order: shard(job="name"), which a later start of the program finds again;
$WEIGHTD_JOB (`weightctl train run`); the file $WEIGHTD_JOB_FILE, which is made if it is not there; the launcher
(torchrun, mpirun, mp.spawn) that all ranks come from: that job is found by the ranks that this launcher restarts, and
by no other start. It is removed 10 minutes after its last rank died, and that of a program on its own after a minute;
jobs with a name or a file stay. mpirun ends all ranks when one dies: give the job a name, and start mpirun again.
Several modules in one program are several jobs; where the job comes from the environment, give the others names.

Several machines (nodes). torchrun --nnodes, weightctl train run --nodes, mpirun and srun start as many ranks on each;
so do programs that pass init_mesh(n_nodes=, address=). Ranks of a node share memory, and have a job of their own, which
their weightd keeps: "NAME-node1" for shard(job="NAME"). $WEIGHTD_JOB_FILE must be another file on each node. Rank i of
each node exchanges its part of gradients and parameters with the ranks i of the others, by Gloo, or by a process group
of torch.distributed (shard(engine=)). They meet at $MASTER_ADDR, at port $MASTER_PORT + 1 + i; checkpoints use the
ports behind those of all ranks of a node. Modules that are trained at the same time need ports apart, init_mesh(port=).
Nothing is encrypted. Sums are in the order of ranks in a node, and then of nodes: the same mesh gives the same bits
always, another one nearly the same values. The first values are those of rank 0 of node 0. Buffers are each rank's own.
on_death="finish", staleness, form="fused" and flatten() are for one machine. With sync_every=k each machine takes steps
of its own, with losses, NotANumber and learning rates of its own; after k steps their parameters are averaged.

Other loops. flatten() is for any optimizer of torch: parameters, buffers and gradients of each rank are views of one
range, with sync_from(), average_grads() and average_params(). initialize() reads a config of DeepSpeed and returns its
engine. Sampler divides the samples of an epoch between the ranks, each once, over kills too.

Sharding. shard(strategy="zero2") frees gradients bucket by bucket while backward runs, as stage 2 of DeepSpeed does.
strategy="zero3", units=Block) also leaves each machine a part of the parameters, and gathers a unit (a block, a layer)
where forward or backward is in it, as FSDP and stage 3 do; reshard=False is reshard_after_forward=False. All ranks then
call the same modules in the same order. Outside its unit a parameter is empty: `with gathered(model):` shows all.

Types. shard(precision=Precision(param=torch.bfloat16, reduce=torch.float32)) trains parameters in 16 bits, with float32
originals in the job; so is a module trained that has 16 bits already. shard(scaler=Scaler()) scales the loss, for
gradients in float16: opt.scale(loss).backward(). Parameters that need no gradient when the optimizer is made are
frozen: one copy for all ranks, of any type. Those in memory of a published version (weightd.torch.bind()) stay there.

torch. Parameters are read-only memory: opt.step() is all that writes them, and a block `with writable(model):` between
steps. Else load_state_dict(), the steps of other optimizers, torch.nn.init and in-place methods of a parameter
(p.copy_(), p += 1) are refused (Denied). Python does not see writes through p.data or another view of a parameter, by
out=p, or by torch._foreach_* functions: these end in SIGSEGV.

A step refuses by name what would train in vain: parameters that to(), bfloat16(), load_state_dict(assign=True),
vector_to_parameters(), share_memory() or an assignment took out of the job; new ones; parameters that were frozen or
unfrozen since; sparse gradients, those of backward(create_graph=True) or a GradScaler; gradients that were changed or
moved after backward, or are of a loss that a Scaler did not scale. p.grad is this rank's part of the gradient, in
memory of the job until the step, and not the mean: torch.nn.utils.clip_grad_norm_() and its like are refused, and
opt.step(max_norm=...) clips by the norm of the mean. With overlap=True, "zero2" and "zero3" p.grad is None once it is
handed over.

torch.compile() takes the module before or after shard(). multiprocessing refuses parameters of a job (TypeError).

Checkpoints. opt.save("checkpoints") writes a checkpoint while training goes on, and opt.load("checkpoints") gives it to
a new job, with any number of ranks; torch_state("checkpoints") gives it to torch without a job. A killed rank needs
neither: its job has all of it.

Deadline. A rank waits in a step for up to shard(deadline=) seconds for the others, and raises Timeout. Rank 0 must not
evaluate or publish for longer than that: the others wait in their next step meanwhile.

Threads. One thread at a time may use an optimizer. Processes. A forked child (a worker of a DataLoader) may read the
parameters; it cannot take a step. Spawned workers have nothing of the job. Ctrl-C interrupts a rank that waits. There
must be no collective of the program's own, such as torch.distributed.barrier(), between the making of the optimizer and
its first step: a rank that was killed with its gradients handed over finishes that step where it makes its optimizer,
and waits there for the others.

Needs torch 2.1 or newer.
"""
try:
    import torch
except ImportError as e:
    raise ImportError("weightd.train needs torch 2.1 or newer: pip install torch") from e

if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
    raise ImportError(f"weightd.train needs torch 2.1 or newer, and this is {torch.__version__}: it has no "
                      "register_post_accumulate_grad_hook()")

from ._abi import NotANumber, RankBusy, RankDied  # noqa: E402
from ._checkpoint import torch_state  # noqa: E402
from ._engine import Engine, Loader, initialize  # noqa: E402
from ._loops import Flat, Ticket, flatten  # noqa: E402
from ._mesh import Mesh, init_mesh  # noqa: E402
from ._optimizer import SGD, Adam, AdamW, Optimizer  # noqa: E402
from ._precision import Precision, Scaler  # noqa: E402
from ._sampler import Sampler  # noqa: E402
from ._sharded import no_sync, shard  # noqa: E402
from ._trainer import Traffic  # noqa: E402
from ._writable import gathered, writable  # noqa: E402

__all__ = ["SGD", "Adam", "AdamW", "Engine", "Flat", "Loader", "Mesh", "NotANumber", "Optimizer", "Precision", "RankBusy",
           "RankDied", "Sampler", "Scaler", "Ticket", "Traffic", "flatten", "gathered", "init_mesh", "initialize", "no_sync", "shard",
           "torch_state", "writable"]

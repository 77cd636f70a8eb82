"""Two GPUs: a reader on another one than that of the buffer, and NCCL between them."""
import contextlib

from lab import GIB, MIB
from results import Skip
from section_nccl import Memory, broadcast, nccl_env

OTHER = 1


def measure(lab, tell):
    with lab.agents(1) as (agent,):
        if agent.run("open 0")["gpus"] < 2:
            raise Skip("one GPU only")
    with tell.part("a reader on another GPU"), lab.weightd(), lab.agents(1) as (writer,), lab.agents(1, OTHER) as (reader,):
        read(lab, tell, writer, reader)
    with tell.part("broadcast between two GPUs"), contextlib.ExitStack() as stack:
        if not (lab.build / "weightd-sync-nccl").exists():
            raise Skip("weightd-sync-nccl was built without OpenSSL")
        env = nccl_env(lab, {})
        memories = [stack.enter_context(contextlib.closing(Memory(env, lab.size(4 * GIB, 160 * MIB), seed, gpu)))
                    for gpu, seed in enumerate((7, 0))]
        broadcast(lab, env, None, memories, tell, "broadcast between two GPUs")


def read(lab, tell, writer, reader):
    size = lab.size(4 * GIB, 16 * MIB)
    lab.publish(writer, "m", size, 7)
    took = reader.run(f"attach m {lab.device} cuda:{OTHER}")["ns"]
    tell("attach from another GPU", took / 1e6, "ms")
    with tell.part("words that differ, copied back over the other GPU"):
        wrong = reader.run("compare 7")["wrong"]
        tell("words that differ, copied back over the other GPU", wrong, ok=wrong == 0)
    with tell.part("sums by kernels on both GPUs"):
        writer.run(f"attach m {lab.device}")
        sums = [agent.run("sum")["sum"] for agent in (writer, reader)]
        tell("sums by kernels on both GPUs are equal", sums[0] == sums[1], ok=sums[0] == sums[1], sums=sums)
    with tell.part("verified on the other GPU"):
        code = reader.code("verify")
        tell("verified on the other GPU", code, "errno", ok=code == 0)

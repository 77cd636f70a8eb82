"""Memory of the older kind, cudaIpcMemHandle_t: shared as well, never read-only, and lost with its holder."""
import errno
import os
import signal

from lab import GIB, MIB


def measure(lab, tell):
    size = lab.size(1 * GIB, 8 * MIB)
    with lab.weightd() as weightd, lab.agents(3) as (writer, reader, other):
        before = other.free()
        lab.publish(writer, "m", size, 4, 3, "ipc")
        tell("a buffer and its holder cost", before - other.free(), "bytes", buffer=size)
        took = reader.run(f"attach m {lab.device}")["ns"]
        with tell.part("attach"):
            wrong = reader.run("compare 4")["wrong"]
            tell("attach", took / 1e6, "ms", ok=wrong == 0)
        with tell.part("verified on the device"):
            code = reader.code("verify")
            tell("verified on the device", code, "errno", ok=code == 0)
        with tell.part("a reader's write"):
            written, found = reader.code("poke 1"), reader.code("verify")
            tell("a reader's write, which nothing prevents, is found", found, "errno", ok=written == 0 and found == -errno.EILSEQ)
        with tell.part("the holder's death"):
            holder_dies(lab, tell, weightd, reader)
        with tell.part("its memory is free again"):
            reader.run("detach")
            # But for what a driver keeps of a context once code was loaded in it.
            lab.wait_free(other, before - size // 8, "all of its memory is free")
            tell("its memory is free again", ok=True)


def holder_dies(lab, tell, weightd, reader):
    for pid in weightd.allocators:
        os.kill(pid, signal.SIGKILL)
    lab.wait_for(lambda: "lost with the process" in weightd.log, "the holder's death is noticed")
    tell("the holder's death is noticed, the version is lost", ok=True)
    tell("what a reader that has it attached gets", reader.code("compare 4"), "errno")

"""Memory of the older kind, cudaIpcMemHandle_t: shared as well, never read-only, and lost with its holder."""
import os
import signal

from lab import GIB, MIB, children, is_called, wait_for


def measure(lab, results):
    def tell(name, value=None, unit="", ok=None, **more):
        results.line("ipc", name, value, unit, ok, **more)

    size = lab.size(1 * GIB, 8 * MIB)
    with lab.weightd() as weightd, lab.agents(3) as (writer, reader, other):
        before = other.free()
        lab.publish(writer, "m", size, 4, 3, "ipc")
        tell("a buffer and its holder cost", before - other.free(), "bytes", buffer=size)
        took = reader.run(f"attach m {lab.device}")["ns"]
        wrong = reader.run("compare 4")["wrong"]
        tell("attach", took / 1e6, "ms", ok=wrong == 0)
        code = reader.code("verify")
        tell("verified on the device", ok=code == 0)
        written = reader.code("poke 1")
        found = reader.code("verify")
        tell("a reader's write, which nothing prevents, is found", found, "errno", ok=written == 0 and found == -84)

        holders = [p for p in children(weightd.pid) if is_called(p, "weightd-cuda")]
        for pid in holders:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "lost with the process" in weightd.log, "the holder's death is noticed")
        tell("the holder's death is noticed, the version is lost", ok=True)
        tell("what a reader that has it attached gets", reader.code("compare 4"), "errno")
        reader.run("detach")
        # But for what a driver keeps of a context once code was loaded in it.
        wait_for(lambda: before - other.free() < size // 8, "all of its memory is free")
        tell("its memory is free again", ok=True)

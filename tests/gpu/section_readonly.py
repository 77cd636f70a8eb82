"""The effect of a kernel's write to a read-only mapping, and the detection of a changed byte."""
import errno

from lab import GIB, MIB, AgentFailed


def measure(lab, tell):
    size = lab.size(1 * GIB, 8 * MIB)
    with lab.weightd() as weightd, lab.agents(3) as (writer, reader, other):
        lab.publish(writer, "m", size, 5)
        for agent in (reader, other):
            agent.run(f"attach m {lab.device}")
        with tell.part("a kernel's write through a read-only mapping"):
            poke(tell, reader)
        with tell.part("words that changed for others"):
            wrong = other.run("compare 5")["wrong"]
            tell("words that changed for others", wrong, ok=wrong == 0)
        with tell.part("verify finds a changed word"):
            tamper(lab, tell, other, weightd.pid, size)


def poke(tell, reader):
    try:
        reader.run("poke 1")
        tell("a kernel's write through a read-only mapping", "is done", ok=None)
    except AgentFailed as e:
        tell("a kernel's write through a read-only mapping", e.code, "CUresult", ok=e.code is not None, why=str(e))
    tell("what the writing process can do afterwards", reader.code("info"), "CUresult")


def tamper(lab, tell, other, pid, size):
    """Memory is shared by descriptors that carry no rights: a process that has one of weightd's can write."""
    try:
        other.run("verify")
        other.run(f"tamper {pid} 5 {size // 2} {size}")
    except AgentFailed as e:
        return tell("verify finds a changed word", ok=None, why=str(e))
    code = other.code("verify")
    tell("verify finds a changed word", code, "errno", ok=code == -errno.EILSEQ)

"""What a kernel's write to a read-only mapping does, and that a changed byte is found."""
from lab import GIB, MIB, AgentFailed


def measure(lab, results):
    def tell(name, value=None, unit="", ok=None, **more):
        results.line("readonly", name, value, unit, ok, **more)

    size = lab.size(1 * GIB, 8 * MIB)
    with lab.weightd() as weightd, lab.agents(3) as (writer, reader, other):
        lab.publish(writer, "m", size, 5)
        reader.run(f"attach m {lab.device}")
        other.run(f"attach m {lab.device}")
        try:
            reader.run("poke 1")
            tell("a kernel's write through a read-only mapping", "is done", ok=None)
        except AgentFailed as e:
            tell("a kernel's write through a read-only mapping", e.code, "CUresult", ok=True, why=str(e))
        tell("what the writing process can do afterwards", reader.code("info"), "CUresult")
        wrong = other.run("compare 5")["wrong"]
        tell("words that changed for others", wrong, ok=wrong == 0)

        # Memory is shared by descriptors that carry no rights: who has one of weightd's can write.
        try:
            other.run("verify")
            other.run(f"tamper {weightd.pid} 5 {size // 2} {size}")
        except AgentFailed as e:
            return tell("verify finds a changed word", ok=None, why=str(e))
        code = other.code("verify")
        tell("verify finds a changed word", code, "errno", ok=code == -84)  # EILSEQ

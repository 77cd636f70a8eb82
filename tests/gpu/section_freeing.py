"""Freed memory is free for everybody, holds nothing of what it held, and who keeps it is found out."""
import json

from lab import GIB, MIB, AgentFailed, wait_for


def measure(lab, results):
    def tell(name, value=None, unit="", ok=None, **more):
        results.line("freeing", name, value, unit, ok, **more)

    size = lab.size(2 * GIB, 8 * MIB)
    with lab.weightd() as weightd, lab.agents(2) as (agent, thief):
        lab.publish(agent, "first", 2 * MIB, 1)  # what the allocator costs is not counted below
        before = agent.free()
        lab.publish(agent, "m", size, 6)
        taken = before - agent.free()
        weightd.ctl("rm", "m", "--device", lab.device)
        wait_for(lambda: before - agent.free() < taken // 8, "the memory of a removed buffer is free")
        tell("a removed buffer gives back", taken, "bytes", ok=True)

        agent.run(f"create m {lab.device} {size} 1")
        summed = agent.run("sum")["sum"]
        tell("memory that others have used reads as", summed, ok=summed == 0)
        agent.run("fill 6")
        agent.run("publish")

        try:
            thief.run(f"steal {weightd.pid} 6 {size}")
        except AgentFailed as e:
            return tell("an import without a lease shows as an orphan", why=str(e))
        weightd.ctl("rm", "m", "--device", lab.device)
        kept = wait_for(lambda: orphans(weightd), "an orphan shows in weightctl stat")
        tell("an import without a lease shows as an orphan", kept, "bytes", ok=kept >= size)
        thief.kill()
        wait_for(lambda: before - agent.free() < taken // 8, "what it kept is free again")
        wait_for(lambda: not orphans(weightd), "the orphan is gone from weightctl stat")
        tell("and goes with the process that kept it", ok=True)


def orphans(weightd):
    return json.loads(weightd.ctl("stat", "--json").stdout)["orphans"]

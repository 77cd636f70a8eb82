"""Freed memory is free for every process, has none of its old content, and a process that keeps it is found."""
import json

from lab import GIB, MIB, AgentFailed


def measure(lab, tell):
    size = lab.size(2 * GIB, 8 * MIB)
    for part in (removed, scrubbed, orphaned):
        with tell.part(f"{part.__name__} memory"), lab.weightd() as weightd, lab.agents(2) as agents:
            part(lab, tell, size, weightd, *agents)


def removed(lab, tell, size, weightd, agent, thief):
    lab.publish(agent, "first", 2 * MIB, 1)  # the allocator's cost is not counted below
    before = agent.free()
    lab.publish(agent, "m", size, 6)
    taken = before - agent.free()
    weightd.ctl("rm", "m", "--device", lab.device)
    after = lab.wait_free(agent, before - taken // 8, "the memory of a removed buffer is free")
    tell("a removed buffer gives back", after - (before - taken), "bytes", ok=True, taken=taken)
    del thief


def scrubbed(lab, tell, size, weightd, agent, thief):
    lab.publish(agent, "m", size, 6)
    weightd.ctl("rm", "m", "--device", lab.device)
    agent.run(f"create m {lab.device} {size} 1")
    summed = agent.run("sum")["sum"]
    tell("memory that others have used reads as", summed, ok=summed == 0)
    del thief


def orphaned(lab, tell, size, weightd, agent, thief):
    lab.publish(agent, "first", 2 * MIB, 1)
    before = agent.free()
    lab.publish(agent, "m", size, 6)
    taken = before - agent.free()
    try:
        thief.run(f"steal {weightd.pid} 6 {size}")
    except AgentFailed as e:
        return tell("an import without a lease shows as an orphan", why=str(e))
    weightd.ctl("rm", "m", "--device", lab.device)
    kept = lab.wait_for(lambda: orphans(weightd), "an orphan shows in weightctl stat")
    tell("an import without a lease shows as an orphan", kept, "bytes", ok=kept >= size)
    thief.kill()
    lab.wait_free(agent, before - taken // 8, "what it kept is free again")
    lab.wait_for(lambda: not orphans(weightd), "the orphan is gone from weightctl stat")
    tell("and goes with the process that kept it", ok=True)


def orphans(weightd):
    return json.loads(weightd.ctl("stat", "--json").stdout)["orphans"]

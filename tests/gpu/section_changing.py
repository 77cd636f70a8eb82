"""Changing weights under their readers, and deaths in the middle of it."""
import errno

from lab import GIB, MIB, AgentFailed

UPDATING = 2


def measure(lab, tell):
    size = lab.size(1 * GIB, 8 * MIB)
    for part in (flip, graph, publish_waits, exclusive, sleep, reader_dies, writer_dies):
        with tell.part(part.__name__.replace("_", " ")), lab.weightd(), lab.agents(3) as agents:
            part(lab, tell, size, *agents)


def flip(lab, tell, size, writer, reader, other):
    lab.publish(writer, "m", size, 1)
    reader.run(f"attach m {lab.device}")
    with lab.held(reader):
        reader.run(f"spin {200 if lab.fake else 6000}")
        published = lab.publish(writer, "m", size, 2)
        busy = reader.run("query")["busy"]
    tell("publish while a kernel reads the version before", published["ns"] / 1e6, "ms", ok=busy)
    wrong = reader.run("compare 1")["wrong"]
    tell("words of the old version that changed meanwhile", wrong, ok=wrong == 0)
    other.run(f"attach m {lab.device}")
    reader.run("swap")
    tell("a swap waits for the kernel that reads, which ends well", ok=reader.code("sync") == 0)
    wrong = reader.run("compare 2")["wrong"]
    tell("and leads to the new version", wrong, "words differ", ok=wrong == 0)
    lab.publish(writer, "m", size, 3)
    swapped = reader.run("swap on")
    wrong = reader.run("compare 3")["wrong"]
    tell("swap, same address, where nothing runs", swapped["ns"] / 1e6, "ms", ok=swapped["value"] == 1 and wrong == 0)


def graph(lab, tell, size, writer, reader, other):
    lab.publish(writer, "m", size, 1)
    reader.run(f"attach m {lab.device}")
    other.run(f"attach m {lab.device}")
    try:
        reader.run("capture")
    except AgentFailed as e:
        return tell("a graph across a swap", ok=None if e.code == -errno.ENOSYS else False, why=str(e))
    before = reader.run("replay")["sum"] == other.run("sum")["sum"]
    lab.publish(writer, "m", size, 2)
    reader.run("swap on")
    other.run(f"attach m {lab.device}")
    after = reader.run("replay")["sum"] == other.run("sum")["sum"]
    tell("a graph replays before and after a swap", ok=before and after)


def publish_waits(lab, tell, size, writer, reader, other):
    """Work that was queued before is part of the version."""
    writer.run(f"create m {lab.device} {size} 1")
    writer.run("fill 1")
    for seed in range(2, 12):
        writer.run(f"fill-later {seed}")
    writer.run("publish")
    reader.run(f"attach m {lab.device}")
    wrong = reader.run("compare 11")["wrong"]
    tell("publish waits for what the writer queued", wrong, "words differ", ok=wrong == 0)
    tell("the digest is that of the bytes", ok=reader.code("verify") == 0)
    del other


def exclusive(lab, tell, size, writer, reader, other):
    lab.publish(writer, "x", size, 1, options="exclusive")
    reader.run(f"attach x {lab.device}")
    writer.send(f"create x {lab.device} {size} 1 exclusive")
    lab.wait_for(lambda: reader.run("state")["state"] == UPDATING, "the reader is asked to pause")
    reader.send("pause 20000")
    writer.answer()
    writer.run("fill 2")
    published = writer.run("publish")
    paused = reader.answer()
    wrong = reader.run("compare 2")["wrong"]
    tell("an update in place, the reader paused", published["ns"] / 1e6, "ms", ok=paused["value"] == 1 and wrong == 0)
    del other


def sleep(lab, tell, size, writer, reader, other):
    lab.publish(writer, "m", size, 1)
    reader.run(f"attach m {lab.device}")
    reader.run("release")
    tell("what sleeps cannot be read", ok=reader.code("compare 1") != 0)
    woken = reader.run("reacquire")
    wrong = reader.run("compare 1")["wrong"]
    tell("sleep and wake at the same address", woken["ns"] / 1e6, "ms", ok=woken["value"] == 0 and wrong == 0)
    del other


def reader_dies(lab, tell, size, writer, reader, other):
    lab.publish(writer, "m", size, 1)
    other.run(f"attach m {lab.device}")
    before = writer.free()
    reader.run(f"attach m {lab.device}")
    reader.run("spin 60000")
    reader.kill()
    wrong = other.run("compare 1")["wrong"]
    tell("a reader is killed in the middle of a kernel, another reads on", wrong, "words differ", ok=wrong == 0)
    lab.wait_free(writer, before, "the memory of the dead is free")
    lab.publish(writer, "m", size, 2)
    other.run("swap")
    tell("and the next version comes", ok=other.run("compare 2")["wrong"] == 0)


def writer_dies(lab, tell, size, writer, reader, other):
    lab.publish(other, "m", size, 1)
    reader.run(f"attach m {lab.device}")
    before = reader.free()
    writer.run(f"create m {lab.device} {size} 1")
    for seed in range(50):
        writer.run(f"fill-later {seed}")
    writer.kill()
    tell("a writer is killed in the middle of its writing, readers read on", ok=reader.run("compare 1")["wrong"] == 0)
    lab.wait_free(reader, before, "the memory it wrote to is free")
    lab.publish(other, "m", size, 3)
    reader.run("swap")
    tell("another one writes the next version", ok=reader.run("compare 3")["wrong"] == 0)

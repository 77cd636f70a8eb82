"""Attach time: one handle, against one for each tensor, of either kind; in Python, against torch.multiprocessing."""
import statistics
import subprocess

from lab import GIB, MIB, AgentFailed
from results import Skip
from samples import N_MAX, N_MIN, ratios, shorten, summary, take
from section_sharing import torch_version

COUNTS = (1, 300, 3000)
TARGET_MS = 20
MARK = 7.0


def measure(lab, tell):
    """About 75 s on an H100: 15 for the agents in C, 15 for 17 interpreters with torch, 30 for one reader, 15 for up to 16."""
    with lab.agents(1) as (agent,):
        in_c(lab, tell, int(agent.free() * 0.85) // GIB or 1)
    has_torch = False
    with tell.part("torch.multiprocessing"):
        torch_version(lab)
        has_torch = True
    with tell.part("Python"), lab.weightd(), lab.agents(1) as (agent,), \
            lab.pythons(lab.size(17, 3), not has_torch) as (owner, *readers):
        in_python(lab, tell, agent, Model(lab, owner, has_torch), readers)


def in_c(lab, tell, largest):
    for size in lab.size(sorted({min(s, largest) * GIB for s in (1, 8, 32, 100)}), [4 * MIB, 64 * MIB]):
        with tell.part(f"weightd, {size / GIB:.3g} GiB"), lab.weightd(), lab.agents(2) as (maker, reader):
            lab.publish(maker, "m", 2 * MIB, 1)  # the allocator's cost is not counted below
            remove(lab)
            free = maker.free()
            for n in COUNTS:
                attach(lab, tell, maker, reader, size, n)
                lab.wait_free(maker, free - lab.size(512, 4) * MIB, "the buffer's memory is free again")
    total = lab.size(8 * GIB, 64 * MIB)
    for n in COUNTS if not lab.small else (1, 30):
        ways(lab, tell, n, max(2 * MIB, total // n // (2 * MIB) * 2 * MIB))


def attach(lab, tell, maker, reader, size, n):
    maker.run(f"create m {lab.device} {size} {n}", 120)
    maker.run("fill 1")
    maker.run("publish", 120)
    took = reader.run(f"time-attach m {lab.device} {lab.size(20, 5)}", 120)
    ms = took["ns"] / 1e6
    tell(f"weightd, {n} tensors, {size / GIB:.3g} GiB", ms, "ms", ok=lab.small or ms < TARGET_MS, max_ms=took["max_ns"] / 1e6)
    reader.run("detach")
    remove(lab)


def remove(lab):
    """So that the next one finds room."""
    subprocess.run([lab.build / "weightctl", "rm", "m", "--device", lab.device], env=lab.env, check=True,
                   capture_output=True)


def ways(lab, tell, n, each):
    name = f"cuIpcOpenMemHandle, {n} tensors of {each >> 20} MiB"
    with tell.part(name), lab.agents(2) as (maker, reader):
        path = lab.folder / "handles"
        maker.run(f"ipc-make {n} {each} {path}")
        tell(name, reader.run(f"ipc-time {path}")["ns"] / 1e6, "ms")
    name = f"a VMM handle each, {n} tensors of {each >> 20} MiB"
    with tell.part(name), lab.agents(2) as (maker, reader):
        path = lab.folder / f"vmm-{n}"
        maker.run(f"vmm-make {n} {each} {path}")
        maker.send("vmm-serve")
        took = reader.run(f"vmm-time {n} {each} {path}")
        maker.answer()
        tell(name, took["ns"] / 1e6, "ms")


class Model:
    """A version of weightd's and, if there is torch, a state_dict of the same tensors in their owner."""

    def __init__(self, lab, owner, has_torch):
        self.lab, self.owner, self.has_torch = lab, owner, has_torch
        self.ours = "attach() and bind()" if has_torch else "attach() and a look-up of each tensor"
        self.theirs = "rebuild_cuda_tensor and load_state_dict"
        self.path, self.handles = lab.folder / f"torch-{owner.pid}", lab.folder / f"handles-{owner.pid}"

    def make(self, size, n):
        self.size, self.n, self.name = size, n, f"{n} tensors, {size / GIB:.3g} GiB"
        self.owner.run(f"publish m {self.lab.device} {size} {n}", 120)
        self.attach = f"attach m {self.lab.device} {size} {n}"
        self.rebuild = f"rebuild {self.path} {size} {n}"

    def remove(self, readers):
        for reader in readers:
            reader.run("drop", 120)
        self.owner.run("forget", 120)
        remove(self.lab)

    def check(self, said):
        assert not self.has_torch or said["marks"] == [MARK, MARK], f"a reader sees {said['marks']}, not {MARK}"
        return said


def in_python(lab, tell, agent, model, readers):
    free = agent.free()
    for size in lab.size(sorted({min(s, int(free * 0.44) // GIB or 1) * GIB for s in (1, 8, 64)}), [4 * MIB]):
        for n in lab.size((300, 3000), (30,)):
            name = f"{n} tensors, {size / GIB:.3g} GiB"
            with tell.part(name):
                if lab.left_s < lab.size(12, 2):
                    raise Skip("not tried: the section's time is over")
                model.make(size, n)
                try:
                    one_reader(lab, tell, model, readers[0])
                finally:
                    model.remove(readers[:1])
            # torch frees memory that it has sent once no reader has it any more.
            others(lambda: lab.wait_free(agent, free - lab.size(512, 4) * MIB, "the model's memory is free again"))
    with tell.part("many readers"):
        model.make(lab.size(8 * GIB, 4 * MIB), lab.size(300, 30))
        many_readers(lab, tell, agent, model, readers)


def one_reader(lab, tell, model, reader):
    """
    From a name, or from the path of a socket, to a module with its parameters in the memory; both processes have a context. The
    owner has its message ready. cuIpcOpenMemHandle alone opens the allocations that rebuild_cuda_tensor needs.
    """
    reader.run(model.attach, 120)  # the connection is made before
    alone = "cuIpcOpenMemHandle alone"
    contestants = {model.ours: lambda: model.check(reader.run(model.attach, 120))}
    if model.has_torch:
        n_handles = model.owner.run(f"handles {model.handles}")["n"]
        contestants |= {model.theirs: lambda: rebuild(model, [reader])[0],
                        alone: lambda: others(lambda: reader.run(f"open_handles {model.handles}", 120))}
    taken, left_out = take(contestants, lab.budget(8), lab.size(N_MAX, N_MIN))
    for way, samples in taken.items():
        more = {"handles": n_handles} if way == alone else {"before_bind_ms": median_ms(samples, "first_ns")}
        tell(f"{way}, {model.name}", **summary([s["ns"] for s in samples], 1e-6), unit="ms", ok=True if way == model.ours else None,
             **more)
    tell_left_out(tell, model, left_out)
    if model.theirs in taken and model.ours in taken:
        tell(f"{model.theirs}, {model.name}", **summary(ratios(*([s["ns"] for s in taken[way]] for way in (model.theirs, model.ours)))),
             unit=f"of {model.ours}")


def rebuild(model, readers):
    others(lambda: model.owner.run(f"prepare {model.path} {len(readers)}", 120))
    model.owner.send("serve")
    for reader in readers:
        reader.send(model.rebuild)

    def answers():
        said = [reader.answer(120) for reader in readers]
        model.owner.answer(120)
        return said

    return [model.check(one) for one in others(answers)]


def others(act):
    """Makes a failure in it a Skip: it is no fault of weightd's."""
    try:
        return act()
    except (AgentFailed, TimeoutError) as e:
        raise Skip(str(e)[-300:]) from None


def tell_left_out(tell, model, left_out):
    for way, why in left_out.items():
        tell(f"{way}, {model.name}", why=why)


def median_ms(samples, key):
    return shorten(statistics.median(sample[key] for sample in samples) / 1e6)


def many_readers(lab, tell, agent, model, readers):
    """All begin at once, with a context each; the time is from the first begin to the last end. And what each of them costs."""
    name = model.name
    for n in lab.size((1, 4, 16), (1, 2)):
        if lab.left_s < lab.size(10, 2):
            raise Skip(f"not tried with {n} and more: the section's time is over")
        some, model.name = readers[:n], f"{n} readers, {name}"
        contestants = {model.ours: lambda: together(agent, some, lambda: all_attach(model, some))}
        if model.has_torch:
            contestants[model.theirs] = lambda: together(agent, some, lambda: rebuild(model, some))
        taken, left_out = take(contestants, lab.budget(6), N_MIN)
        for way, samples in taken.items():
            tell(f"{way}, {model.name}", **summary([s["ns"] for s in samples], 1e-6), unit="ms")
            for where in ("gpu", "host"):
                tell(f"memory of the {where} for each, {way}, {model.name}", **summary([s[where] for s in samples]), unit="bytes")
        tell_left_out(tell, model, left_out)
        if model.theirs in left_out:
            model.has_torch = False  # its owner may still wait for a reader


def all_attach(model, readers):
    for reader in readers:
        reader.send(model.attach)
    return [model.check(reader.answer(120)) for reader in readers]


def together(agent, readers, act):
    """Measures the memory that each reader takes, beside a state in which no reader has anything attached."""
    for reader in readers:
        reader.run("drop", 120)
    before = agent.free(), sum(reader.run("memory")["pss"] for reader in readers)
    said = act()
    after = agent.free(), sum(reader.run("memory")["pss"] for reader in readers)
    return {"ns": max(s["end_ns"] for s in said) - min(s["begin_ns"] for s in said), "gpu": (before[0] - after[0]) / len(readers),
            "host": (after[1] - before[1]) / len(readers)}

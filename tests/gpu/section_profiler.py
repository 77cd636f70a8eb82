"""The plug-in of NCCL's profiler in a real NCCL: two nodes on one GPU, and the events to weightd-trace about a broadcast between them."""
import contextlib
import time

import section_nccl
from lab import MIB
from lib import netns, tracing
from results import Skip

PLUGIN = "libnccl-profiler-weightd.so"
PATIENCE_S = 5
N_PROBED = 5  # functions that any NCCL has, and the engine needs


@contextlib.contextmanager
def start_tracer(lab):
    if not tracing.PROGRAM.exists() or not (lab.build / PLUGIN).exists():
        raise Skip(f"weightd-trace or {PLUGIN} is not built")
    try:
        tracer = tracing.Tracer(probes=True)
    except AssertionError as e:
        raise Skip(f"weightd-trace does not start here: {e}")
    with tracer:
        yield tracer


def broadcast(lab, env, net, memories, tracer):
    """
    True if it succeeded, and the reason if not; the events about it until then, or soon after: engines are killed in the end;
    and the files of NCCL that were probed meanwhile.
    """
    with section_nccl.pair(lab, env, net, memories) as engines, tracing.Client(tracer.socket) as client:
        ends = [section_nccl.hear_all(engine)[-1] for engine in (engines[1], engines[0])]
        logs = [engine.read_log()[-1500:] for engine in engines]
        end = time.monotonic() + PATIENCE_S
        acts = client.ask("acts")
        while len({a["pid"] for a in acts if a["act"] == "nccl_coll"}) < 2 and time.monotonic() < end:
            time.sleep(0.1)
            acts = client.ask("acts")
        files = [row for row in client.ask("doctor") if row["kind"] == "library" and "/libnccl.so." in (row["path"] or "")]
    good = all(end["op"] == "done" for end in ends)
    return good, {} if good else {"why": str([end.get("why") for end in ends]), "logs": logs}, acts, files


def measure(lab, tell):
    if not (lab.build / "weightd-sync-nccl").exists():
        raise Skip("weightd-sync-nccl was built without OpenSSL")
    env = section_nccl.nccl_env(lab)
    size = lab.size(256 * MIB, 16 * MIB)
    with contextlib.ExitStack() as stack:
        tracer = stack.enter_context(start_tracer(lab))
        env |= {"NCCL_PROFILER_PLUGIN": str(lab.build / PLUGIN), "WEIGHTD_TRACE_SOCKET": tracer.socket}
        net = stack.enter_context(netns.Net(2)) if netns.is_available() else None
        memories = [stack.enter_context(contextlib.closing(section_nccl.Memory(env, size, seed))) for seed in (7, 0)]
        good, more, acts, files = broadcast(lab, env, net, memories, tracer)
        tell("broadcast between two nodes with the plug-in", size if good else 0, "bytes", ok=good, **more)
        with tell.part("digests of both are equal"):
            same = len({memory.digest() for memory in memories}) == 1
            tell("digests of both are equal", same, ok=same)
    if "counts by bpf" in tracer.greeting:
        tell("functions of libnccl that are probed", max((row["functions"] for row in files), default=0),
             ok=any(row["on"] and row["functions"] >= N_PROBED for row in files), files=files)
    words = {}
    for act in acts:
        words.setdefault(act["act"], []).append(act)
    opened = words.get("nccl_comm", [])
    tell("communicators that it told of", len({(a["pid"], a["sync"]) for a in opened}), ok=len(opened) > 0)
    tell("version of NCCL's interface", max((a["api"] for a in opened), default=None))
    colls = [a for a in words.get("nccl_coll", []) if a["func"] == "Broadcast"]
    tell("broadcasts that it told of one by one", len(colls), ok=len(colls) > 0)
    # NCCL itself chooses the transport between two processes on one machine.
    carried = {way: max((a["bytes"] for a in words.get("nccl_peer", []) if a["way"] == way), default=None) for way in ("send", "receive")}
    for way, n in carried.items():
        tell(f"bytes of its proxy, {way}", n, "bytes")
    tell("sockets that NCCL said were its own", len({a["cookie"] for a in words.get("nccl_socket", [])}),
         why="" if "nccl_socket" in words else "NCCL was built without NET_PROFILER=1, or took no sockets")
    begun = [a for a in words.get("nccl_init", []) if not a["failed"]]
    tell("communicators that the probes saw begin", len(begun), why="" if begun else "the library was mapped but just before")
    tell("events lost", sum(a["lost"] for a in words.get("nccl_gap", [])))

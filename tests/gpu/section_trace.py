"""weightd-trace sees calls of processes to the driver: its functions are where the probes look for them."""
from lab import MIB
from lib import features, tracing
from results import Skip

KINDS = {"vmm": ("", "cuda_vmm_export", "cuda_vmm_import"), "ipc": ("ipc", "cuda_ipc_export", "cuda_ipc_open")}


def measure(lab, tell):
    missing = next((said for is_here, said in map(features.FEATURES.get, ("pids", "trace")) if not is_here()), None)
    if missing:
        raise Skip(missing)
    if not tracing.is_available():
        raise Skip(features.FEATURES["bpf"][1])
    size = lab.size(64 * MIB, 8 * MIB)
    with tracing.Tracer(probes=True) as tracer, lab.weightd(), lab.agents(2) as (writer, reader):
        client = tracer.client()
        with tell.part("functions of libcuda that are probed"):
            found = [row for row in client.ask("doctor") if row["kind"] == "library" and "/libcuda.so." in (row["path"] or "")]
            tell("functions of libcuda that are probed", max((row["functions"] for row in found), default=0),
                 ok=any(row["on"] and row["functions"] >= 7 for row in found), files=found)
        for kind, (options, export, take) in KINDS.items():
            with tell.part(f"{kind}: what a reader opens is known by whom it was exported"):
                lab.publish(writer, kind, size, 4, 1, options)
                reader.run(f"attach {kind} {lab.device}")
                acts = client.ask("acts")
                numbers = {act["number"] for act in acts if act["act"] == export and not act["failed"]}
                taken = [act for act in acts if act["act"] == take and act["pid"] == reader.pid and not act["failed"]]
                tell(f"{kind}: what a reader opens is known by whom it was exported", len(taken), "acts",
                     ok=bool(taken) and all(act["from"] and act["from"]["number"] in numbers for act in taken))
                reader.run("detach")

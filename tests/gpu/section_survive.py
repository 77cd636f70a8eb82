"""The state of GPU memory when only the keeper has its descriptor; the effect of restrictions on libcuda."""
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import time

from lab import MIB, ROOT, Agent, AgentFailed
from samples import N_MIN, shorten, summary
from section_probe import nvidia_smi

UNIT = "systemd, and all of the unit but devices"
PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN = 65, 1


def measure(lab, tell):
    with tell.part("deaths of weightd under a keeper"), lab.weightd(keeper=True) as weightd:
        deaths(lab, tell, weightd)
    with tell.part("a handle as a descriptor"), lab.agents(1) as (agent,):
        said = agent.run("poll-handle")
        tell("poll says of a handle", said["poll"], mode=oct(said["mode"]))
        tell("epoll says of a handle", said["epoll"], can_epoll=said["can_epoll"],
             hup=bool(said["epoll"] & 0x10 or said["poll"] & 0x10))
    restrictions(lab, tell)


def deaths(lab, tell, weightd):
    size = lab.size(1024 * MIB, 8 * MIB)
    with lab.agents(2) as (writer, reader):
        lab.publish(writer, "m", size, 3, 5)
        reader.run(f"attach m {lab.device}")
        weightd.kill()
        with tell.part("a reader goes on when weightd and its allocator are killed"):
            wrong = reader.run("compare 3")["wrong"]
            tell("a reader goes on when weightd and its allocator are killed", wrong, "words differ", ok=wrong == 0)
        attach_after(lab, tell, "another one attaches after the restart")
        with tell.part("from SIGKILL of weightd to the next attach"):
            recover(lab, tell, weightd, writer)
    # Now no process of ours has a context; the line has the other users of the GPU, too.
    with tell.part("other CUDA processes"):
        tell("other CUDA processes", nvidia_smi_apps())
    weightd.kill()
    attach_after(lab, tell, "the bytes are there when nobody had a context meanwhile", **persistence())
    weightd.ctl("rm", "m", "--device", lab.device)


def recover(lab, tell, weightd, agent):
    """With its allocator; the agent has a context. Nothing is loaded again, which at the rate of PCIe would take `reload_ms`."""
    size, took = agent.run(f"attach m {lab.device}")["size"], []
    reload_ms = size / agent.run(f"rates {lab.size(256, 4)}")["from_host"] * 1e3
    for _ in range(N_MIN):
        agent.run("detach")
        begin = time.monotonic()
        weightd.kill()
        agent.run(f"attach m {lab.device}")
        took.append(time.monotonic() - begin)
    wrong = agent.run("compare 3")["wrong"]
    tell("from SIGKILL of weightd to the next attach", **summary(took, 1e3), unit="ms", ok=wrong == 0, reload_ms=shorten(reload_ms),
         bytes=size)


def persistence():
    """In persistence mode the driver keeps its state while no process uses the GPU: then the claim shows less, and the line has a note."""
    mode = nvidia_smi("persistence_mode")
    return {"persistence": mode} | ({} if mode.split("; ")[0] == "Disabled" else {"why": f"persistence mode is not known to be off: {mode}"})


def attach_after(lab, tell, name, **more):
    with tell.part(name), lab.agents(1) as (agent,):
        agent.run(f"attach m {lab.device}")
        wrong = agent.run("compare 3")["wrong"]
        tell(name, wrong, "words differ", ok=wrong == 0, **more)


def nvidia_smi_apps():
    if not shutil.which("nvidia-smi"):
        return "unknown"
    done = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,name", "--format=csv,noheader"],
                          capture_output=True, text=True, timeout=10)
    return done.stdout.strip().replace("\n", "; ") or "none"


def forbid_new_code():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this kernel has no PR_SET_MDWE (6.3)")


def restrictions(lab, tell):
    """Each alone, on an agent, which uses a driver as weightd-cuda does; then all that the unit has."""
    here = pathlib.Path(__file__).resolve()
    ways = {"MemoryDenyWriteExecute": [sys.executable, here, "--forbid-new-code"]}
    if os.geteuid() == 0 and shutil.which("unshare"):
        mount = "mount -t proc -o subset=pid proc /proc && exec \"$@\""
        ways["ProcSubset=pid"] = ["unshare", "-m", "sh", "-c", mount, "sh"]
    if os.geteuid() == 0 and shutil.which("setpriv"):
        ways["no rights of root"] = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    if pathlib.Path("/run/systemd/system").is_dir() and os.geteuid() == 0:
        ways[UNIT] = systemd_run(lab)
    for name, prefix in ways.items():
        with tell.part(f"the driver works with {name}"):
            tell(f"the driver works with {name}", **attempt(lab, prefix))
    if UNIT not in ways:
        tell("the driver works with the unit's restrictions", why="no systemd here, or not root: those above alone")


def systemd_run(lab):
    """Not what hides the programs (they are in somebody's home) or the devices, which a drop-in must allow."""
    text = (ROOT / "packaging/systemd/weightd.service").read_text()
    wanted = ("Capability", "NoNew", "Protect", "LockPersonality", "MemoryDeny", "Restrict", "SystemCall")
    options = [f"-p{line}" for line in text.splitlines()
               if line.startswith(wanted) and not line.startswith(("ProtectHome", "ProtectProc"))]
    keep = [f"-E{name}={value}" for name, value in lab.env.items()
            if name.startswith(("FAKE_", "LD_", "CUDA", "WEIGHTD"))]
    return ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", *keep, *options]


def attempt(lab, prefix):
    agent = Agent(lab, prefix=prefix)
    try:
        agent.run("open 0")
        agent.run("poll-handle")
        return {"value": "yes", "ok": None}
    except (AgentFailed, TimeoutError) as e:
        return {"value": "no", "why": str(e)}
    finally:
        agent.kill()


if __name__ == "__main__":
    forbid_new_code()
    os.execvp(sys.argv[2], sys.argv[2:])

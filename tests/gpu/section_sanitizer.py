"""compute-sanitizer over the library's kernels and ours."""
import shutil
import subprocess

from lab import MIB
from results import Skip

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
ONLY_TOLD = "initcheck"  # it cannot see the writes of another process, or through another mapping


def measure(lab, tell):
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if lab.fake:
        raise Skip("the stand-in has no kernels to look at")
    if not program:
        raise Skip("no compute-sanitizer")
    for tool in TOOLS:
        with tell.part(tool), lab.weightd():
            look(lab, tell, program, tool)


def look(lab, tell, program, tool):
    size = 32 * MIB
    commands = f"open 0\ncreate m {lab.device} {size} 3\nfill 1\npublish\nattach m {lab.device}\nsum\nverify\ndetach\n"
    done = subprocess.run([program, "--tool", tool, "--error-exitcode", "9", lab.build / "gpu/agent"],
                          input=commands, env=lab.env, capture_output=True, text=True, timeout=60)
    summary = [line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
    failed = [line for line in done.stdout.splitlines() if '"ok": false' in line]
    tell(tool, (summary or ["no summary"])[-1].lstrip("= "), ok=None if tool == ONLY_TOLD else done.returncode == 0 and not failed,
         why=" ".join(failed))

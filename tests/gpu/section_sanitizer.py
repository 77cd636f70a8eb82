"""compute-sanitizer over the library's kernels and ours."""
import shutil
import subprocess

from lab import MIB, Skip

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
ONLY_TOLD = "initcheck"  # it cannot know what another process, or another mapping, has written


def measure(lab, results):
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if lab.fake:
        raise Skip("the stand-in has no kernels to look at")
    if not program:
        raise Skip("no compute-sanitizer")
    size = 32 * MIB
    commands = f"open 0\ncreate m {lab.device} {size} 3\nfill 1\npublish\nattach m {lab.device}\nsum\nverify\ndetach\n"
    for tool in TOOLS:
        with lab.weightd():
            done = subprocess.run([program, "--tool", tool, "--error-exitcode", "9", lab.build / "gpu/agent"],
                                  input=commands, env=lab.env, capture_output=True, text=True, timeout=120)
        summary = [line for line in done.stdout.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
        failed = [line for line in done.stdout.splitlines() if '"ok": false' in line]
        results.line("sanitizer", tool, (summary or ["no summary"])[-1].lstrip("= "),
                     ok=None if tool == ONLY_TOLD else done.returncode == 0 and not failed, why=" ".join(failed))

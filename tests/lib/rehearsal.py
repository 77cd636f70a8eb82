"""
A rehearsal of tests/gpu/run: the pack, on a system that lacks our packages. The stand-ins for libcuda and NCCL are installed among the
libraries of the system.
"""
import json
import shutil
import subprocess

from lib import features

CLONE = "root/weightd"
RESULTS = "root/results"
LIBRARIES = "usr/local/lib"


def bring(machine, pack):
    """Copies the source tree as it is, the pack and the stand-ins."""
    listed = subprocess.run(["git", "-c", "safe.directory=*", "-C", features.ROOT, "ls-files", "-z", "--cached", "--others",
                             "--exclude-standard"], check=True, stdout=subprocess.PIPE, text=True).stdout
    clone, libraries = machine.upper / CLONE, machine.upper / LIBRARIES
    for name in filter(None, listed.split("\0")):
        if (features.ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(features.ROOT / name, clone / name)
    shutil.copytree(pack, clone / "build-gpu")
    libraries.mkdir(parents=True)
    for stand_in in "libcuda.so.1", "nccl/libnccl.so.2":
        shutil.copy(features.ROOT / "build/fake" / stand_in, libraries)


def rehearse(machine, gpus, timeout, *args, before=""):
    """Runs it, after a line of bash. Returns what it printed, and its results."""
    variables = {name: value for name, value in gpus.env.items() if name.startswith("FAKE_")}
    said = machine.run(f"set -e; {before}\nldconfig; cd /{CLONE}; python3 tests/gpu/run --small --results /{RESULTS} {' '.join(args)}",
                       timeout, **variables)
    (kept,) = (machine.upper / RESULTS).iterdir()
    return said, [json.loads(line) for line in kept.read_text().splitlines()]

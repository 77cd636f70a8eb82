"""The libnccl.so.2 that this machine has: NVIDIA's, of its packages, the CUDA toolkit or pip. WEIGHTD_NCCL_LIBRARY names another."""
import functools
import importlib.util
import os
import pathlib
import shutil
import subprocess

from lib import features

SONAME = "libnccl.so.2"
LINKER = "/sbin/ldconfig"  # not in everybody's PATH


def known_to_the_linker():
    if not os.path.exists(LINKER):
        return []
    listed = subprocess.run([LINKER, "-p"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [pathlib.Path(line.split("=> ")[1]) for line in listed.splitlines() if line.split()[:1] == [SONAME]]


def brought_by_pip():
    found = importlib.util.find_spec("nvidia")
    return [pathlib.Path(folder) / "nccl/lib" / SONAME for folder in found.submodule_search_locations] if found else []


def has_types(path):
    """Debuggers see its structs: NVIDIA strips those of its packages, and those of pip it does not."""
    return bool(shutil.which("readelf")) and ".debug_info" in subprocess.run(["readelf", "-SW", path], stdout=subprocess.PIPE, text=True).stdout


@functools.cache
def path():
    """One that has types if any has, or None."""
    if named := os.environ.get("WEIGHTD_NCCL_LIBRARY"):
        return pathlib.Path(named) if os.path.exists(named) else None
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    found = [p for p in (*known_to_the_linker(), *sorted(toolkit.glob(f"lib*/{SONAME}")), *brought_by_pip()) if p.exists()]
    return next(filter(has_types, found), next(iter(found), None))


def require(types=False):
    """Its path."""
    features.require("nccl-library", f"no {SONAME} (of the CUDA toolkit, of pip's nvidia-nccl, or in WEIGHTD_NCCL_LIBRARY)", bool(path()))
    if types:
        features.require("nccl-types", f"{path()} is stripped", has_types(path()))
        features.require("gdb", "no gdb (apt-get install gdb)", bool(shutil.which("gdb")))
    return path()

"""
The libraries of a pack (tests/gpu/pack), which are in lib.packed. Programs of a pack look into lib first, and then where the system has
its libraries: hence lib has those only that this machine lacks, or has in a version that is too old. An older libcrypto before the
libssl of the system, for one, would break both.
"""
import re
import shutil
import subprocess

STORE, LINKED = "lib.packed", "lib"
OWN = "libweightd.so", "libweightd-train.so"  # to programs with a .0 behind: a link in the pack might not survive the way
TOGETHER = ("libssl.so", "libcrypto.so"), ("libnl-3.so", "libnl-route-3.so")  # one release
ABSENT = re.compile(r"^\s*(\S+) => not found", re.M)
OLD = re.compile(r"(\S+): version `(\S+)' not found \(required by (\S+)\)")


def is_pack(build):
    return (build / STORE).is_dir()


def link(build, programs):
    """Returns the names that were linked, and the reasons why programs do not run even so."""
    folder, store = build / LINKED, {path.name for path in (build / STORE).iterdir()}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for library in OWN:
        if (build / library).exists():
            (folder / f"{library}.0").symlink_to(f"../{library}")
    linked = set()
    while True:  # a linked library may lack another one
        wanted, problems = set(), set()
        for program in programs:
            said = _list(build / program)
            lacking = {name: f"{program} needs {name}" for name in ABSENT.findall(said)}
            for path, version, user in OLD.findall(said):
                lacking[path.rsplit("/", 1)[-1]] = f"{path} has no {version}, which {user} needs"
            wanted |= lacking.keys() & store - linked
            problems |= {why for name, why in lacking.items() if name not in store - linked}
        wanted = {name for name in store for other in wanted if name == other or _are_together(name, other)} - linked
        if not wanted:
            return sorted(linked), sorted(problems)
        for name in wanted:
            (folder / name).symlink_to(f"../{STORE}/{name}")
        linked |= wanted


def _list(program):
    done = subprocess.run(["ldd", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


def _are_together(a, b):
    return any(a.startswith(names) and b.startswith(names) for names in TOGETHER)

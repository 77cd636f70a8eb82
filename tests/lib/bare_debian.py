"""
A bare Debian made by debootstrap: of this machine's release, with git, make and ca-certificates, unless the caller names others.

    with Bare() as bare:
        bare.run("apt-get update")

A tree is made once, below build/bare, and each machine writes to an overlay of its own, which its end removes. Commands run in mount
and PID name spaces of their own, in a chroot: with the network, /dev and /sys of this machine, and no service manager.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile

from lib import features

FOLDER = features.ROOT / "build/bare"
TOOLS = "git", "make", "ca-certificates"
TREE_S = 900
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Settings by which this machine reaches registries, if it has any.
FILES = "etc/resolv.conf", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt"
VARIABLES = "http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_CERT"

INSIDE = """
set -e
folder=$1 tree=$2
shift 2
mount -t overlay -o lowerdir="$tree",upperdir="$folder/upper",workdir="$folder/work" weightd-bare "$folder/root"
mount -t proc proc "$folder/root/proc"
mount --rbind /dev "$folder/root/dev"
mount --rbind /sys "$folder/root/sys"
exec chroot "$folder/root" bash -c "$1"
"""


def release():
    """(code name, mirror), or None where this is no Debian or apt has no mirror."""
    if not shutil.which("apt-get"):
        return None
    name = subprocess.run([". /etc/os-release && [ $ID = debian ] && echo $VERSION_CODENAME"], shell=True,
                          stdout=subprocess.PIPE, text=True).stdout.strip()
    sites = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)"],
                           stdout=subprocess.PIPE, text=True).stdout.splitlines()
    mirrors = [line.split()[0] for line in sites if line.split()[1:] == [name, "main"]]
    return (name, mirrors[0]) if name and mirrors else None


def is_available():
    return os.geteuid() == 0 and bool(shutil.which("debootstrap")) and bool(shutil.which("unshare")) and bool(release())


def tree(name=None, packages=TOOLS):
    """The folder of a bare Debian of this release (None: of this machine's), with these packages."""
    ours, mirror = release()
    made = FOLDER / (name or "tree")
    if made.exists():
        return made
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        new = pathlib.Path(folder) / "tree"
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", name or ours, new, mirror],
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=TREE_S, check=True)
        for file in FILES:
            if pathlib.Path("/", file).exists():
                (new / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(f"/{file}", new / file)
        new.rename(made)
    return made


class Machine:
    """
    An overlay on a tree.

    upper   what it has written, as a folder of this machine
    """

    def __init__(self, lower, folder=FOLDER):
        self.lower = lower
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
        self.upper = self.folder / "upper"
        for name in "upper", "work", "root":
            (self.folder / name).mkdir()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def run(self, command, timeout, **more):
        """Runs a line of bash to its end, with `more` in its environment. Returns what it printed."""
        env = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        with tempfile.TemporaryFile("w+") as log:
            done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", INSIDE,
                                   "bash", self.folder, self.lower, command], env=env | {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"} | more,
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=timeout)
            log.seek(0)
            said = log.read()
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{said[-20000:]}"
        return said

    def n_packages(self):
        return len(self.run("dpkg-query -W -f '${Package}\\n'", timeout=60).split())


class Bare(Machine):
    """clone: the last commit of this tree, in /root, which only root may enter; as a folder of this machine."""

    def __init__(self):
        super().__init__(tree())

    def __enter__(self):
        self.clone = self.upper / "root/weightd"
        self.clone.parent.mkdir(mode=0o700)
        subprocess.run(["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks", features.ROOT, self.clone], check=True)
        self.clone.chmod(0o700)
        return self

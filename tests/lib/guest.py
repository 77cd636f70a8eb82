"""
A guest: another kernel on this machine, with processes of its own. It has this machine's root; its changes there end
with it. It has one processor: qemu may emulate two that run at once, but not code which one changes and the other runs, as a
kernel does of its own (an oops in int3).

Where the processor cannot run it, it is emulated: that needs neither rights nor hardware, and is some ten times slower.
Nothing of it is left when its qemu has ended, and that ends with the process that started it. `make guest` downloads the kernels, or
WEIGHTD_GUEST names a folder with a folder for each: boot/vmlinuz-* and modules.
"""
import functools
import gzip
import lzma
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
INIT = ROOT / "build/guest/init"
QEMU = "qemu-system-x86_64"
KERNELS = OLD, NEW = "bookworm", "trixie"  # kernels of Debian: 6.1, and 6.12
MODULES = "virtio_pci", "9pnet_virtio", "9p", "overlay"  # modules for its root, unless they are in the kernel itself
OPENERS = {".ko": open, ".xz": lzma.open, ".gz": gzip.open}
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
TEMPORARY = "/dev/shm"  # the guest's alone: changes of the host below /tmp would harm it
# Two NUMA nodes with half of its memory each, the second without a processor.
NODES = [word for i in range(2) for word in ("-object", f"memory-backend-ram,id=node{i},size=1G", "-numa", f"node,memdev=node{i}")]
END = re.compile(r"^guest: ended with (\d+)\r?$", re.M)
FILE, FOLDER = 0o100755, 0o040755


@functools.cache
def folder():
    return pathlib.Path(os.environ.get("WEIGHTD_GUEST", ROOT / "build/guest"))


def image(kernel):
    """Its path, or None."""
    return next(iter(sorted((folder() / kernel).glob("boot/vmlinuz-*"))), None)


def is_available():
    programs = shutil.which(QEMU) and shutil.which("setpriv")
    return platform.machine() == "x86_64" and bool(programs) and INIT.exists() and all(map(image, KERNELS))


@functools.cache
def accelerators():
    """
    Those that qemu may try, the best first.

    A /dev/kvm of a processor that has no virtual machines (PVM) boots only kernels that are built for it.
    """
    with open("/proc/cpuinfo") as f:
        has_machines = re.search(r"^flags\s.* (vmx|svm)\b", f.read(), re.M)
    return (["kvm"] if has_machines and os.access("/dev/kvm", os.R_OK | os.W_OK) else []) + ["tcg,thread=multi"]


def modules(kernel, more=()):
    """Contents of the modules that it needs, and of more, each behind those that it needs itself."""
    paths = {path.name.split(".")[0].replace("-", "_"): path for path in (folder() / kernel).glob("modules/*.ko*")}
    found = {}

    def add(name):
        if name in found or name not in paths:
            return
        with OPENERS[paths[name].suffix](paths[name], "rb") as f:
            text = f.read()
        for needed in re.search(rb"\0depends=([^\0]*)", text)[1].decode().split(","):
            add(needed.replace("-", "_"))
        found[name] = text

    for name in (*MODULES, *more):
        add(name)
    return list(found.values())


def archive(entries):
    """As cpio writes it, of (path, mode, bytes)."""
    def entry(path, mode, data):
        head = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path) + 1, 0)
        whole = b"070701" + b"".join(b"%08x" % n for n in head) + path.encode() + b"\0"
        whole += bytes(-len(whole) % 4) + data
        return whole + bytes(-len(whole) % 4)

    return b"".join(entry(*e) for e in [*entries, ("TRAILER!!!", 0, b"")])


def run(command, env=(), modules_too=(), timeout=600, kernel=OLD):
    """Runs the command, a list, in a guest. Returns its exit status, or None if it did not end, and its output."""
    words = ["env", "-i", f"PATH={PATH}", f"HOME={TEMPORARY}", f"TMPDIR={TEMPORARY}", *(f"{k}={v}" for k, v in dict(env).items()), *map(str, command)]
    entries = [(name, FOLDER, b"") for name in ("dev", "host", "memory", "root", "modules")]
    entries += [(f"modules/{i:02}", FILE, text) for i, text in enumerate(modules(kernel, modules_too))]
    entries += [("init", FILE, INIT.read_bytes()), ("command", FILE, f"cd {shlex.quote(os.getcwd())} && {shlex.join(words)}".encode())]
    with tempfile.NamedTemporaryFile(prefix="weightd-guest-") as initial:
        initial.write(archive(entries))
        initial.flush()
        # Without no_timer_check a kernel panics where a busy machine delays ticks of its emulated timer.
        machine = [
            "setpriv", "--pdeathsig", "KILL", QEMU, *(word for name in accelerators() for word in ("-accel", name)), "-cpu", "max,-la57",
            "-m", "2G", *NODES, "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio",
            "-kernel", image(kernel), "-initrd", initial.name, "-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check",
            "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
        try:
            wrote = subprocess.run(machine, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   timeout=timeout).stdout
        except subprocess.TimeoutExpired as e:
            wrote = e.stdout or b""
    wrote = wrote.decode(errors="replace")
    end = END.search(wrote)
    return int(end[1]) if end else None, wrote

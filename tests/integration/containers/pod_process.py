"""
The first steps of a process in a container: namespaces, mounts, rights. Runs as root: pod_process.py JSON.

A runtime in the small, for tests that take commands, users, rights, volumes and limits from manifests of Kubernetes. The argument:

cgroup       folder of the control group to join
target       a process whose namespaces to enter, or null to make new ones
users        the first user outside of a user namespace of its own, or null
root         folder of the root file system; is_read_only
place        an empty folder, where that is mounted
mounts       [source, path inside, is_read_only]
tmpfs        paths inside
uid, gid, groups, capabilities (numbers that are left), argv, env

report       a descriptor to which to write the PID of the process, as seen from here

It ends with the status of that process.
"""
import ctypes
import fcntl
import json
import os
import pathlib
import socket
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from integration.server import userns  # noqa: E402, needs the path

LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 29, 1 << 30
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 23, 24, 38
SIGKILL = 9
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
DEVICES = "null", "zero", "full", "random", "urandom"
NAMESPACES = "user", "cgroup", "ipc", "uts", "net", "pid", "mnt"


def checked(r, what):
    if r < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, path, kind=None, flags=0, data=None):
    checked(LIBC.mount(*(None if word is None else os.fsencode(word) for word in (source, path, kind)), ctypes.c_ulong(flags),
                       data and data.encode()), f"mount {source} {path}")


def bind(source, path, is_read_only):
    mount(source, path, flags=MS_BIND)
    if is_read_only:
        mount(None, path, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | locked_flags(path))


def locked_flags(path):
    """A user namespace may not clear these."""
    flags = os.statvfs(path).f_flag
    return flags & (MS_NOSUID | MS_NODEV | MS_NOEXEC)


def bring_up_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def mount_cgroups(folder):
    """The container sees its own group of the hierarchies. As the machine has them: version 1, 2 or both."""
    outside = pathlib.Path("/sys/fs/cgroup")
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755")
    if (outside / "memory").exists():
        os.mkdir(f"{folder}/memory")
        mount("cgroup", f"{folder}/memory", "cgroup", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "memory")
    else:
        mount("cgroup2", folder, "cgroup2", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def make_root(o):
    place = o["place"]
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    mount(o["root"], place, flags=MS_BIND)
    mount("proc", f"{place}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", f"{place}/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755")
    for name in DEVICES:
        open(f"{place}/dev/{name}", "w").close()
        mount(f"/dev/{name}", f"{place}/dev/{name}", flags=MS_BIND)
    mount("tmpfs", f"{place}/sys", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755")
    os.makedirs(f"{place}/sys/fs/cgroup")
    mount_cgroups(f"{place}/sys/fs/cgroup")
    for source, path, is_read_only in o["mounts"]:
        bind(source, place + path, is_read_only)
    for path in o["tmpfs"]:
        mount("tmpfs", place + path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    if o["is_read_only"]:
        mount(None, place, flags=MS_REMOUNT | MS_BIND | MS_RDONLY | locked_flags(place))
    os.chdir(place)
    checked(LIBC.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    checked(LIBC.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def lower_rights(o):
    capability = 0
    while LIBC.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
        if capability not in o["capabilities"]:
            checked(LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "PR_CAPBSET_DROP")
        capability += 1
    os.setgroups(o["groups"])
    os.setresgid(*3 * [o["gid"]])
    os.setresuid(*3 * [o["uid"]])
    checked(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def become_container(o, is_new):
    if is_new:
        bring_up_loopback()
        make_root(o)
    lower_rights(o)
    checked(LIBC.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")  # a change of the user clears it
    os.execvpe(o["argv"][0], o["argv"], o["env"])


def main():
    o = json.loads(sys.argv[1])
    (pathlib.Path(o["cgroup"]) / "cgroup.procs").write_text(str(os.getpid()))
    if o["target"]:
        own = os.stat("/proc/self/ns/user").st_ino
        names = [name for name in NAMESPACES if name != "user" or os.stat(f"/proc/{o['target']}/ns/user").st_ino != own]
        for fd in [os.open(f"/proc/{o['target']}/ns/{name}", os.O_RDONLY) for name in names]:
            checked(LIBC.setns(fd, 0), "setns")
    else:
        if o["users"]:
            userns.enter(o["users"])
        checked(LIBC.unshare(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET), "unshare")
    child = os.fork()
    if child == 0:
        os.close(o["report"])
        become_container(o, not o["target"])
    os.write(o["report"], f"{child}\n".encode())
    os.close(o["report"])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()

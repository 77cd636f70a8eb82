"""
User namespaces: a client that is root of its own, and a weightd that runs in one, as in a container.

    userns.py FIRST COMMAND [ARGUMENT...]

runs the command as root of a user namespace whose ids 0 to 65535 are FIRST and those behind it outside. Needs root.
"""
import ctypes
import os
import pathlib
import sys

CLONE_NEWUSER = 0x10000000
N_IDS = 65536


def unshare():
    """This process, of one thread, gets a user namespace without maps."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) < 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")


def become_root_inside():
    """This process is root of a user namespace of its own, and outside the user that it was."""
    uid, gid = os.getuid(), os.getgid()
    unshare()
    for name, text in ("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1"):
        pathlib.Path(f"/proc/self/{name}").write_text(text)


def enter(first):
    """This process is root of a user namespace with N_IDS users, of which those outside begin at `first`."""
    ready, done = os.pipe(), os.pipe()
    pid = os.getpid()
    if not (child := os.fork()):
        failed = 1
        try:
            os.close(ready[1])
            if os.read(ready[0], 1):
                for name in "uid_map", "gid_map":
                    pathlib.Path(f"/proc/{pid}/{name}").write_text(f"0 {first} {N_IDS}")
                os.write(done[1], b"m")
                failed = 0
        finally:
            os._exit(failed)
    unshare()
    os.write(ready[1], b"u")
    os.close(done[1])
    mapped = os.read(done[0], 1)
    os.waitpid(child, 0)
    if not mapped:
        raise PermissionError("no map for the user namespace")
    for fd in *ready, done[0]:
        os.close(fd)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def is_available():
    """True for a root that may make both kinds."""
    if os.geteuid() != 0:
        return False
    if not (child := os.fork()):
        failed = 1
        try:
            enter(100000)
            failed = 0
        finally:
            os._exit(failed)
    return os.waitpid(child, 0)[1] == 0


def daemon_prefix(first):
    """The words before the command of a daemon, which starts a copy of it in a namespace that owns its folder."""
    script = f'folder=${{WEIGHTD_SOCKET%/*}} && cp "$1" "$folder" && shift && chown -R {first}:{first} "$folder" && ' \
        f'exec "{sys.executable}" "{__file__}" {first} "$folder/weightd" "$@"'
    return "sh", "-c", script, "sh"


if __name__ == "__main__":
    enter(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])

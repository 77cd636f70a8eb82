"""
weightd-sync-local as weightd-sync starts and uses it.

    with Task(daemon, "source") as source:
        source.tell("attach", socket=daemon.socket, buffer="m", device="host", version=0)
        said = source.hear("attached")
        os.pread(said.fds[1], said["n_bytes"], 0)

Received descriptors are closed with it.
"""
import array
import contextlib
import hashlib
import json
import os
import pathlib
import select
import socket
import subprocess

from lib import features
from lib.daemon import REPORT, SANITIZER_EXIT, copy_for_others

TALK_FD = 3
PATIENCE_S = 60
LEAF = 1 << 20


class Said(dict):
    """A message, and its descriptors."""
    fds = ()


class Task:
    def __init__(self, daemon, role, uid=None, groups=()):
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.settimeout(PATIENCE_S)
        self.fds = []
        self.log = daemon.folder / f"task.{self.ours.fileno()}"
        with theirs, open(self.log, "wb") as log:
            self.proc = subprocess.Popen(
                [program(daemon, uid), role], env=daemon.env | {"WEIGHTD_SOCKET": "/none"}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, close_fds=False, user=uid, group=uid, extra_groups=None if uid is None else groups,
                preexec_fn=lambda: os.dup2(theirs.fileno(), TALK_FD))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.end()
        finally:
            self.forget()

    def forget(self):
        """Closes received descriptors, as a process that keeps a descriptor of memory keeps the memory."""
        while self.fds:
            os.close(self.fds.pop())

    def hang_up(self):
        self.ours.close()

    def end(self):
        """Hangs up; it has to end by itself, and well."""
        self.hang_up()
        try:
            status = self.proc.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise AssertionError("weightd-sync-local does not end when it is hung up on") from None
        log = self.log.read_text(errors="replace")
        assert status == 0 and not log and status != SANITIZER_EXIT and not REPORT.search(log), (status, log)

    def tell(self, op, fds=(), **fields):
        self.tell_raw(json.dumps({"op": op} | fields).encode(), fds)

    def tell_raw(self, data, fds=()):
        self.ours.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def hear(self, op=None):
        """Its next message, which must be `op`."""
        data, rights, flags, _ = self.ours.recvmsg(65536, socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC)
        fds = [fd for _, _, raw in rights for fd in array.array("i", raw[:len(raw) & ~3])]
        self.fds += fds
        assert data, f"it has ended: {self.log.read_text(errors='replace')}"
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC), flags
        said = Said(json.loads(data))
        said.fds = fds
        assert op is None or said["op"] == op, said
        return said

    def is_silent(self):
        return not select.select([self.ours], [], [], 0)[0]

    # --- requests of an agent ---

    def attach(self, daemon, buffer="m", version=0, **fields):
        """Its messages about the version, and then about its bytes."""
        self.tell("attach", **{"socket": daemon.socket, "buffer": buffer, "device": "host", "version": version} | fields)
        return self.hear("attached"), self.hear("root")

    def create(self, daemon, plan, **fields):
        """The memory."""
        self.send_create(daemon, plan, **fields)
        said = self.hear("created")
        assert len(said.fds) == 1, said
        return said.fds[0]

    def send_create(self, daemon, plan, fds=None, **fields):
        self.tell("create", plan.fds if fds is None else fds, **plan.fields(daemon) | fields)

    def verify(self):
        self.tell("verify")
        return self.hear()

    def publish(self):
        self.tell("publish")
        return self.hear("published")["version"]

    def failure(self):
        """(code, sentence)"""
        said = self.hear("failed")
        assert sorted(said) == ["code", "op", "why"] and not said.fds and said["why"], said
        return said["code"], said["why"]


def has_staging(task):
    """True if it has host memory that stands in for that of a GPU."""
    process = pathlib.Path(f"/proc/{task.proc.pid}")
    if "sync-staging" in (process / "maps").read_text():
        return True
    for fd in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it may be closed now
            if "sync-staging" in os.readlink(fd):
                return True
    return False


def program(daemon, uid):
    """The path of the program for this user."""
    if uid is None:
        return features.BUILD / "weightd-sync-local"
    return copy_for_others("weightd-sync-local", daemon.folder)


class Tree:
    """The tree of server/sync/base/merkle.h, by hashlib."""

    def __init__(self, data):
        self.leaves = b"".join(hashlib.sha256(b"\0" + data[at:at + LEAF]).digest() for at in range(0, len(data), LEAF))
        self.root = hashlib.sha256(b"\1" + len(data).to_bytes(8, "big") + self.leaves).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()

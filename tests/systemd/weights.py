"""Weights in a box: made, and looked at from all sides."""
import contextlib
import json
import os
import pathlib
import random
import struct
import time

from lib.box import PATIENCE_S

SERVICE = "weightd.service"


def write_model(box, path, data):
    """A file of one tensor, "w"."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    box.path(path).write_bytes(struct.pack("<Q", len(header)) + header + data)


def load(box, name, size, seed=0, user="alice", check=True, args=()):
    """Publishes a version of random bytes, of which no copy stays."""
    path = f"/srv/{name}.safetensors"
    write_model(box, path, random.Random(seed).randbytes(size))
    try:
        return box.run("weightctl", "load", "--quiet", "--mode", "0644", *args, name, path, user=user, check=check)
    finally:
        box.path(path).unlink()


def ask(box, *args, user="root"):
    """The output of weightctl in JSON."""
    return json.loads(box.run("weightctl", *args, "--json", user=user).stdout)


def instance(box):
    return ask(box, "ping")["instance"]


def main_pid(box):
    return int(box.show(SERVICE, "MainPID"))


def names(box):
    return [b["name"] for b in ask(box, "ls")["buffers"]]


def show(box):
    """name: the output of show about that buffer."""
    return {name: ask(box, "show", name) for name in names(box)}


def lasting(shown):
    """The part of show() that time and readers do not change."""
    if isinstance(shown, dict):
        return {k: lasting(v) for k, v in shown.items() if k not in ("age", "age_ns", "readers")}
    return [lasting(v) for v in shown] if isinstance(shown, list) else shown


def readers(shown):
    """(buffer, version): attachments."""
    return {(name, v["version"]): v["readers"] for name, buffer in shown.items() for v in buffer["versions"]}


def contents(box):
    return lasting(show(box))


def kept(box):
    """
    The memory files of weightd that the service manager holds: their names and inodes. Memory that was read
    anew would be another inode, what was kept twice would be there twice.
    """
    found = []
    for fd in pathlib.Path(f"/proc/{box.leader}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            name = os.readlink(fd).split()[0]
            if name.startswith("/memfd:weightd-"):
                found.append((name.removeprefix("/memfd:"), fd.stat().st_ino))
    return sorted(found)


def wait_for_kept(box, n, or_fewer=False):
    """Waits until the service manager holds `n` files: it drops them later than clients see it."""
    deadline = time.monotonic() + PATIENCE_S
    while (n_kept := len(kept(box))) > n or n_kept < n and not or_fewer:
        assert time.monotonic() < deadline, f"the service manager keeps {kept(box)}, instead of {n}"
        box.show(SERVICE, "ActiveState")  # a question to the manager, which closes on a thread of its own


def verify(box, shown=None):
    """Checks that all bytes of all versions are those that were published. Returns the number of versions."""
    targets = [f"{name}@{version}" for name, version in readers(shown or show(box))]
    if targets:
        box.run("weightctl", "verify", *targets)
    return len(targets)


def forget(box):
    """Makes a service without users what it was after the boot: no weights, no configuration, no drop-in of its own, no past."""
    box.run("sh", "-ec", f"""
        rm -rf /etc/systemd/system/{SERVICE}.d /etc/weightd /home/alice
        systemctl daemon-reload
        systemctl stop weightd.socket {SERVICE}
        systemctl reset-failed
        systemctl start weightd.socket""")
    wait_for_kept(box, 0)
    box.forget_journal()

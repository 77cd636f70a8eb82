"""The recipe of packaging/examples/failover in a box: two engines that serve MiniLM, one of which waits."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import time

from lib import features
from lib.box import PATIENCE_S
from lib.wire import until
from systemd import weights

UNITS = features.ROOT / "packaging/examples/failover"
FOLDER = "/srv/models/all-MiniLM-L6-v2"
NAMES = "a", "b"


def unit(name):
    return f"engine@{name}.service"


def install(box, model):
    """Loads the model, and starts both engines."""
    box.path(FOLDER).mkdir(parents=True)
    for name in "model.safetensors", "vocab.txt":
        shutil.copy(model / name, box.path(FOLDER))
    shutil.copy(features.BUILD / "demo/engine", box.path("/usr/local/bin"))
    for path in UNITS.iterdir():
        shutil.copy(path, box.path("/etc/systemd/system"))
    box.path("/usr/lib/sysusers.d/engine.conf").write_text("u engine - -\n")
    box.run("systemd-sysusers")
    box.run("systemctl", "daemon-reload")
    box.run("systemctl", "start", weights.SERVICE)
    box.run("weightctl", "load", "-q", "--mode", "0644", "minilm", f"{FOLDER}/model.safetensors")
    box.run("systemctl", "start", *map(unit, NAMES))


def ask(box, sentence="one sentence"):
    """The answer of an engine. A client connects again if the one that accepted it died."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionError), socket.socket(socket.AF_UNIX) as s:
            s.settimeout(PATIENCE_S)
            s.connect(str(box.path("/run/engine.sock")))
            s.sendall(sentence.encode() + b"\n")
            if line := s.makefile().readline():
                return json.loads(line)
    raise AssertionError(box.journal_text())


def seen_from_here(box, pid):
    """The number that a child of the box's systemd has here."""
    for child in pathlib.Path(f"/proc/{box.leader}/task/{box.leader}/children").read_text().split():
        if re.search(rf"^NSpid:.*\b{pid}$", pathlib.Path(f"/proc/{child}/status").read_text(), re.M):
            return int(child)
    raise AssertionError(f"no child {pid}: {box.journal_text()}")


def n_read(pid):
    """Bytes that the process has read of any file."""
    return int(re.search(r"rchar: (\d+)", pathlib.Path(f"/proc/{pid}/io").read_text())[1])


def standby(box, active):
    """Waits for the other engine to be warm; its process."""
    def warm():
        waiting = [path.read_text().strip() for path in box.path("/run/engine").glob("?.pid")]
        return [pid for pid in waiting if pid and int(pid) != active]

    until(warm, box.journal_text)
    return seen_from_here(box, *warm())


def fail_over(box):
    """Kills the active engine: (seconds to the next answer, bytes that the other one read for it)."""
    before = ask(box)
    other = standby(box, before["pid"])
    read, active = n_read(other), seen_from_here(box, before["pid"])
    start = time.monotonic()
    os.kill(active, signal.SIGKILL)
    after = ask(box)
    took = time.monotonic() - start
    assert seen_from_here(box, after["pid"]) == other, box.journal_text()
    assert (after["version"], after["embedding"]) == (before["version"], before["embedding"])
    return took, n_read(other) - read

"""
Versions between nodes, by two agents on loopback: host to GPU, GPU to GPU and GPU to host through host memory, and from GPU
to GPU over NCCL; and what two nodes make together of what they have there, by both ways.
"""
import contextlib
import json
import os
import random
import subprocess
import time

from lab import GIB, MIB, end, how, last_line
from results import Skip
from section_load import CHUNK, write_model
from section_nccl import nccl_env

GROUPS = {"in": ("host", "{gpu}"), "between": ("{gpu}", "{gpu}"), "out": ("{gpu}", "host")}  # devices of the two nodes
# Bytes in which the mean of each element with itself is that element: its double is no infinity, its half is normal.
SMALL = bytes(i & 0x3f | 1 for i in range(256))


def measure(lab, tell):
    if not (lab.build / "weightd-sync").exists():
        raise Skip("weightd-sync was built without OpenSSL")
    size = lab.size(2 * GIB, 16 * MIB)
    path = lab.folder / "sync.safetensors"
    write_model(path, size, os.urandom(CHUNK).translate(SMALL))
    try:
        with tell.part("nodes over TCP"), nodes(lab) as pair:
            for name in GROUPS:
                with tell.part(" to ".join(devices_of(lab, name))):
                    push(lab, tell, pair, name, path, size)
            with tell.part("averages and reshards"):
                over_gloo(lab, tell, pair, path, size)
        with tell.part("over NCCL"), nodes(lab, "nccl", nccl_env(lab)) as pair:
            over_nccl(lab, tell, pair, path, size)
            with tell.part("averages and reshards over NCCL"):
                together_over_nccl(lab, tell, pair, path, size)
    finally:
        path.unlink()


def over_nccl(lab, tell, pair, path, size):
    ended = push(lab, tell, pair, "between", path, size, " over NCCL")
    # The kernel has a number of TCP, too: a push that fell back to that is no answer.
    tell("bytes that NCCL carried", ended["bytes"], "bytes", ended["kernel"] is None and
         ended["planned"] == ended["bytes"] >= size, **({} if ended["kernel"] is None else {"logs": [
             node.read_log()[-3000:] for node in pair]}))


def devices_of(lab, name):
    return [device.format(gpu=lab.device) for device in GROUPS[name]]


def over_gloo(lab, tell, pair, path, size):
    if not (lab.build / "weightd-sync-gloo").exists():
        tell("averages and reshards", ok=None, why="weightd-sync was built without Gloo")
        return
    make_together(lab, tell, pair, "between", path, size)


def together_over_nccl(lab, tell, pair, path, size):
    make_together(lab, tell, pair, "between", path, size, " over NCCL")
    ended = json.loads(pair[0].sync("history", "--json", "--count", "3").stdout)["syncs"]
    counted = [row["kernel"] is None and row["planned"] == row["bytes"] > 0 for row in ended if row["kind"] == "average"]
    tell("bytes of the average that NCCL carried are the planned ones", sum(counted), ok=counted == [True],
         **({} if counted == [True] else {"logs": [node.read_log()[-3000:] for node in pair]}))


def make_together(lab, tell, pair, name, path, size, how=""):
    """The mean of a model with itself, and that in two shards, and these in one again, is what it was."""
    a, devices = pair[0], devices_of(lab, name)
    for node, device in zip(pair, devices):
        node.weightd.ctl("load", "--quiet", "--device", device, name, path)
    loaded = a.digest(devices[0], name)
    seconds = a.timed("average", name)
    shown = [node.digest(device, name) for node, device in zip(pair, devices)]
    tell(f"mean on {' and '.join(devices)}{how}", size / seconds / 1e9, "GB/s", {*shown} == {loaded}, digests=shown)
    split = lab.folder / "split.json"
    split.write_text(json.dumps({"split": [{"tensors": "*", "dim": 0}]}))
    seconds = a.timed("scatter", "--split", split, "--ranks", "a", "--onto", "a b", "--into", f"{name}-tp2", name)
    seconds += a.timed("gather", "--split", split, "--ranks", "a b", "--onto", "b", "--into", f"{name}-tp1", f"{name}-tp2")
    shown = pair[1].digest(devices[1], f"{name}-tp1")
    tell(f"scattered on {' and '.join(devices)}, and gathered{how}", size / seconds / 1e9, "GB/s", shown == loaded,
         digests=[loaded, shown])
    for node, device in zip(pair, devices):
        for buffer in (name, f"{name}-tp2", *[f"{name}-tp1"] * (node is not a)):
            node.weightd.ctl("rm", "--device", device, buffer)


def push(lab, tell, pair, name, path, size, how=""):
    """Its row of the history."""
    a, b = pair
    here, there = devices_of(lab, name)
    a.weightd.ctl("load", "--quiet", "--device", here, name, path)
    seconds = a.timed("push", name)
    shown = [a.digest(here, name), b.digest(there, name)]
    tell(f"{here} to {there}{how}", size / seconds / 1e9, "GB/s", shown[0] == shown[1], digests=shown)
    for node, device in ((a, here), (b, there)):
        node.weightd.ctl("rm", "--device", device, name)
    return json.loads(a.sync("history", "--json", "--count", "1").stdout)["syncs"][0]


class Node:
    def __init__(self, lab, weightd, folder, name, addresses, engine, env):
        self.lab, self.weightd, self.env, self.name, self.socket = lab, weightd, env, name, str(folder / f"{name}.sync")
        other = next(n for n in addresses if n != name)
        lines = ["[node]", f"name = {name}", f"listen = {addresses[name]}:7400", f"state = {folder / name}",
                 f"socket = {self.socket}", f"weightd = {weightd.socket}",
                 "[tls]", f"ca = {folder / 'ca/ca.crt'}", *(f"{key} = {folder / 'ca' / name}.{end}" for key, end in (
                     ("certificate", "crt"), ("key", "key"))),
                 "[data]", "security = none", f"engine = {engine}", "trusted = 127.0.0.0/8",
                 f"[peer {other}]", f"address = {addresses[other]}:7400"]
        for group, devices in GROUPS.items():
            lines += [f"[group {group}]", f"members = {name} {other}", f"publishers = {min(addresses)}", f"buffers = {group}*",
                      "device = " + devices[name != min(addresses)].format(gpu=lab.device)]
        self.conf, self.log = folder / f"{name}.conf", folder / f"{name}.log"
        self.conf.write_text("\n".join(lines) + "\n")

    @contextlib.contextmanager
    def running(self):
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen([self.lab.build / "weightd-sync", "--config", self.conf], env=self.env,
                                         stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            with self.lab.watching(self):
                yield
        finally:
            end(self.proc)

    def death(self):
        """Returns why the agent ended, a text, or None while it lives."""
        if self.proc.poll() is None:
            return None
        return f"weightd-sync of {self.name} {how(self.proc.returncode)}: {last_line(self.read_log())}"

    def read_log(self):
        return self.log.read_text(errors="replace")

    def sync(self, *args):
        return self.weightd.ctl("sync", *args, env={"WEIGHTD_SYNC_SOCKET": self.socket})

    def timed(self, *args):
        begin = time.monotonic()
        self.sync(*args)
        return time.monotonic() - begin

    def digest(self, device, buffer):
        """The digest of the version, after a check that it is still right."""
        self.weightd.ctl("verify", "--device", device, buffer)
        return json.loads(self.weightd.ctl("show", "--json", "--device", device, buffer).stdout)["digest"]

    def knows_the_other(self):
        done = subprocess.run([self.lab.build / "weightctl", "nodes", "--json"], stdin=subprocess.DEVNULL, capture_output=True,
                              env=self.lab.env | {"WEIGHTD_SYNC_SOCKET": self.socket}, text=True)
        return done.returncode == 0 and any(row["state"] == "up" for row in json.loads(done.stdout)["nodes"])


@contextlib.contextmanager
def nodes(lab, engine="tcp", env=None):
    net = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
    addresses = {"a": f"{net}.1", "b": f"{net}.2"}
    folder = lab.folder / f"sync-{engine}"
    folder.mkdir()
    for args in ("ca", folder / "ca"), *(("node", folder / "ca", name) for name in addresses):
        subprocess.run([lab.build / "weightctl", "pki", *args], env=lab.env, check=True, capture_output=True)
    with contextlib.ExitStack() as stack:
        made = [Node(lab, stack.enter_context(lab.weightd()), folder, name, addresses, engine, env or lab.env)
                for name in addresses]
        for node in made:
            stack.enter_context(node.running())
        for node in made:
            lab.wait_for(node.knows_the_other, lambda: f"the agents know each other: {last_line(node.read_log())}")
        yield made

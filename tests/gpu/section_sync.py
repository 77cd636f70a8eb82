"""Versions between nodes: host to GPU, GPU to GPU and GPU to host, by two agents on loopback, through host memory."""
import contextlib
import json
import random
import subprocess
import time

from lab import GIB, MIB, Skip, wait_for
from section_load import write_model

GROUPS = {"in": ("host", "{gpu}"), "between": ("{gpu}", "{gpu}"), "out": ("{gpu}", "host")}  # of the two nodes
STOP_S = 30


def measure(lab, results):
    if not (lab.build / "weightd-sync").exists():
        raise Skip("weightd-sync was built without OpenSSL")
    size = lab.size(2 * GIB, 16 * MIB)
    path = lab.folder / "sync.safetensors"
    write_model(path, size)
    with nodes(lab) as (a, b):
        for name, devices in GROUPS.items():
            here, there = (device.format(gpu=lab.device) for device in devices)
            a.weightd.ctl("load", "--quiet", "--device", here, name, path)
            begin = time.monotonic()
            a.sync("push", name)
            seconds = time.monotonic() - begin
            shown = [json.loads(node.weightd.ctl("show", "--json", "--device", device, name).stdout)["digest"]
                     for node, device in ((a, here), (b, there))]
            b.weightd.ctl("verify", "--device", there, name)
            results.line("sync", f"{here} to {there}", size / seconds / 1e9, "GB/s", shown[0] == shown[1], digests=shown)
            for node, device in ((a, here), (b, there)):
                node.weightd.ctl("rm", "--device", device, name)


class Node:
    def __init__(self, lab, weightd, folder, name, addresses):
        self.lab, self.weightd, self.socket = lab, weightd, str(folder / f"{name}.sync")
        other = next(n for n in addresses if n != name)
        lines = ["[node]", f"name = {name}", f"listen = {addresses[name]}:7400", f"state = {folder / name}",
                 f"socket = {self.socket}", f"weightd = {weightd.socket}",
                 "[tls]", f"ca = {folder / 'ca/ca.crt'}", *(f"{key} = {folder / 'ca' / name}.{end}" for key, end in (
                     ("certificate", "crt"), ("key", "key"))),
                 "[data]", "security = none", "trusted = 127.0.0.0/8",
                 f"[peer {other}]", f"address = {addresses[other]}:7400"]
        for group, devices in GROUPS.items():
            lines += [f"[group {group}]", f"members = {name} {other}", f"publishers = {min(addresses)}", f"buffers = {group}",
                      "device = " + devices[name != min(addresses)].format(gpu=lab.device)]
        self.conf, self.log = folder / f"{name}.conf", folder / f"{name}.log"
        self.conf.write_text("\n".join(lines) + "\n")

    @contextlib.contextmanager
    def running(self):
        with open(self.log, "wb") as log:
            proc = subprocess.Popen([self.lab.build / "weightd-sync", "--config", self.conf], env=self.lab.env,
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
        finally:
            proc.terminate()
            try:
                proc.wait(STOP_S)
            except subprocess.TimeoutExpired:
                proc.kill()
                proc.wait()

    def sync(self, *args):
        self.weightd.ctl("sync", *args, env={"WEIGHTD_SYNC_SOCKET": self.socket})

    def knows_the_other(self):
        done = subprocess.run([self.lab.build / "weightctl", "nodes", "--json"], stdin=subprocess.DEVNULL, capture_output=True,
                              env=self.lab.env | {"WEIGHTD_SYNC_SOCKET": self.socket}, text=True)
        return done.returncode == 0 and any(row["state"] == "up" for row in json.loads(done.stdout)["nodes"])


@contextlib.contextmanager
def nodes(lab):
    net = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
    addresses = {"a": f"{net}.1", "b": f"{net}.2"}
    folder = lab.folder / "sync"
    folder.mkdir()
    for args in ("ca", folder / "ca"), *(("node", folder / "ca", name) for name in addresses):
        subprocess.run([lab.build / "weightctl", "pki", *args], env=lab.env, check=True, capture_output=True)
    with contextlib.ExitStack() as stack:
        made = [Node(lab, stack.enter_context(lab.weightd()), folder, name, addresses) for name in addresses]
        for node in made:
            stack.enter_context(node.running())
        for node in made:
            wait_for(node.knows_the_other, f"the agents know each other: {node.log.read_text(errors='replace')}")
        yield made

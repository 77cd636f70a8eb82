"""
A second node beside the first: a weightd and an agent each. The agents have a network namespace each, which root can
make, and a virtual cable between them; else they have loopback addresses of their own.
"""
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from lib import netns  # noqa: E402

START_S = 60
STOP_S = 60

CONFIG = """\
[node]
name = {name}
listen = {address}:7400
state = {folder}/{name}.state
socket = {folder}/{name}.sync
weightd = {weightd}
log-level = warning
[tls]
ca = {folder}/ca/ca.crt
certificate = {folder}/ca/{name}.crt
key = {folder}/ca/{name}.key
[peer {peer}]
address = {peer_address}:7400
[group demo]
members = first second
publishers = first
[limits]
heartbeat = 10
stall-timeout = 30
prepare-timeout = 30
"""


class SecondError(Exception):
    """A failure, in one line."""


class Second:
    """
    socket  of its weightd
    env     leads weightctl to the agent of the first node, which pushes
    net     netns.Net; None: loopback
    """

    def __init__(self, build, folder, first_socket, net):
        self.build, self.folder, self.net, self.processes = build, folder, net, []
        self.socket, self.first_socket = str(folder / "second.sock"), first_socket
        self.env = os.environ | {"WEIGHTD_SYNC_SOCKET": str(folder / "first.sync")}

    def start_all(self):
        folder, loopback = self.folder, f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
        addresses = [node.address for node in self.net.nodes] if self.net else [f"{loopback}.1", f"{loopback}.2"]
        sockets = {"first": self.first_socket, "second": self.socket}
        self.ctl("pki", "ca", str(folder / "ca"))
        self.start("weightd", "--socket", self.socket, "--log-level", "warning")
        for i, name, peer in ((0, "first", "second"), (1, "second", "first")):
            self.ctl("pki", "node", str(folder / "ca"), name)
            config = folder / f"{name}.conf"
            config.write_text(CONFIG.format(name=name, address=addresses[i], peer=peer, peer_address=addresses[1 - i],
                                            folder=folder, weightd=sockets[name]))
            self.start("weightd-sync", "--config", str(config), run=self.net.nodes[i].run if self.net else subprocess.Popen)

    def start(self, program, *arguments, run=subprocess.Popen):
        with open(self.folder / "second.log", "ab") as log:
            self.processes.append(run([self.build / program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def ctl(self, *arguments):
        done = subprocess.run([self.build / "weightctl", *arguments], env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode:
            raise SecondError(f"weightctl {' '.join(arguments)}: {done.stderr.strip()}\n{self.log()}")
        return done.stdout

    def log(self):
        return (self.folder / "second.log").read_text(errors="replace")

    def is_up(self):
        """Its weightd serves, which connected agents do not report, and the agents are connected."""
        with contextlib.suppress(SecondError):
            self.ctl("--socket", self.socket, "ls")
            return all(node["state"] != "down" for node in json.loads(self.ctl("nodes", "--json"))["nodes"])
        return False

    def await_up(self):
        """No event reports that agents are connected to a client that cannot connect yet, so this polls."""
        deadline = time.monotonic() + START_S
        while not self.is_up():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes):
                raise SecondError(f"the nodes do not find each other:\n{self.log()}")
            time.sleep(0.02)

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
            if process.wait(STOP_S):
                raise SecondError(f"{' '.join(map(str, process.args))} ended with {process.returncode}:\n{self.log()}")

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def second_node(build, folder, first_socket):
    """Its files stay in the folder, which is the caller's."""
    with netns.Net(2) if netns.is_available() else contextlib.nullcontext() as net:
        node = Second(build, folder, first_socket, net)
        try:
            node.start_all()
            node.await_up()
            yield node
            node.stop()
        finally:
            node.kill()

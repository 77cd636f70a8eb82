"""A second node beside the first: a weightd and an agent each, on loopback addresses that nobody else has."""
import contextlib
import json
import os
import random
import subprocess
import time

START_S = 30
STOP_S = 20

CONFIG = """\
[node]
name = {name}
listen = {net}.{number}:7400
state = {folder}/{name}.state
socket = {folder}/{name}.sync
weightd = {weightd}
log-level = warning
[tls]
ca = {folder}/ca/ca.crt
certificate = {folder}/ca/{name}.crt
key = {folder}/ca/{name}.key
[peer {peer}]
address = {net}.{peer_number}:7400
[group demo]
members = first second
publishers = first
"""


class SecondError(Exception):
    """What went wrong, in one line."""


class Second:
    """
    socket  of its weightd
    env     leads weightctl to the agent of the first node, which pushes
    """

    def __init__(self, build, folder, first_socket):
        self.build, self.folder, self.processes = build, folder, []
        self.socket, self.first_socket = str(folder / "second.sock"), first_socket
        self.env = os.environ | {"WEIGHTD_SYNC_SOCKET": str(folder / "first.sync")}

    def start_all(self):
        folder, net = self.folder, f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
        sockets = {"first": self.first_socket, "second": self.socket}
        self.ctl("pki", "ca", str(folder / "ca"))
        self.start("weightd", "--socket", self.socket, "--log-level", "warning")
        for number, name, peer in ((1, "first", "second"), (2, "second", "first")):
            self.ctl("pki", "node", str(folder / "ca"), name)
            config = folder / f"{name}.conf"
            config.write_text(CONFIG.format(name=name, number=number, peer=peer, peer_number=3 - number, net=net,
                                            folder=folder, weightd=sockets[name]))
            self.start("weightd-sync", "--config", str(config))

    def start(self, program, *arguments):
        with open(self.folder / "second.log", "ab") as log:
            self.processes.append(subprocess.Popen([self.build / program, *arguments], stdin=subprocess.DEVNULL,
                                                   stdout=log, stderr=log))

    def ctl(self, *arguments):
        done = subprocess.run([self.build / "weightctl", *arguments], env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode:
            raise SecondError(f"weightctl {' '.join(arguments)}: {done.stderr.strip()}\n{self.log()}")
        return done.stdout

    def log(self):
        return (self.folder / "second.log").read_text(errors="replace")

    def is_up(self):
        with contextlib.suppress(SecondError):
            return all(node["state"] != "down" for node in json.loads(self.ctl("nodes", "--json"))["nodes"])
        return False

    def await_up(self):
        """Nothing announces that agents found each other to somebody who cannot ask yet, so this asks."""
        deadline = time.monotonic() + START_S
        while not self.is_up():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes):
                raise SecondError(f"the nodes do not find each other:\n{self.log()}")
            time.sleep(0.02)

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
            if process.wait(STOP_S):
                raise SecondError(f"{process.args[0].name} ended with {process.returncode}:\n{self.log()}")

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def second_node(build, folder, first_socket):
    """Its files stay in the folder, which is the caller's."""
    node = Second(build, folder, first_socket)
    try:
        node.start_all()
        node.await_up()
        yield node
        node.stop()
    finally:
        node.kill()

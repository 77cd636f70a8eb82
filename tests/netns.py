"""
Network namespaces of our own, joined by veth to a bridge in one more: nothing leaves them.

    with Net(3) as net:
        net.rate(0, "1gbit")
        server = net.nodes[1].run(["iperf3", "-s", "-1"])
        client = net.nodes[0].run(["iperf3", "-c", net.nodes[1].address])
"""
import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess

PREFIX = "10.77.0."
PROBE = "ip link add name probe type bridge && ip link add name a type veth peer name b && " \
    "tc qdisc add dev a root handle 1: htb default 1"
_serials = itertools.count()


@functools.cache
def is_available():
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nsenter", "unshare"))):
        return False
    return subprocess.run(["unshare", "--net", "--mount", "sh", "-c", PROBE], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


def _ip(*args, input=None):
    done = subprocess.run(["ip", *args], input=input, capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(args)} {input or ''}: {done.stderr}"


class Node:
    """
    One namespace with one interface, eth0.

    name        of the namespace, as `ip netns` knows it
    address     of eth0; all nodes of a Net are in one /24
    """

    def __init__(self, name, address):
        self.name, self.address = name, address

    def run(self, command, **popen_kw):
        """Starts a program in there: its Popen."""
        # Not by `ip netns exec`, which mounts another /sys.
        return subprocess.Popen(["nsenter", f"--net=/run/netns/{self.name}", "--", *map(str, command)], **popen_kw)


class Net:
    """
    n nodes on one bridge, as fast as the machine until rate() says otherwise. At the end of the block the
    namespaces go, with what still runs in them.
    """

    def __init__(self, n):
        stem = f"wd-{os.getpid()}-{next(_serials)}"
        self.bridge = f"{stem}-br"
        self.nodes = [Node(f"{stem}-{i}", f"{PREFIX}{i + 1}") for i in range(n)]

    def __enter__(self):
        try:
            _ip("netns", "add", self.bridge)
            _ip("-n", self.bridge, "link", "add", "name", "bridge", "type", "bridge")
            for i, node in enumerate(self.nodes):
                _ip("netns", "add", node.name)
                _ip("-n", self.bridge, "-batch", "-", input=f"link add name port{i} type veth peer name eth0 "
                    f"netns {node.name}\nlink set port{i} master bridge up\n")
                _ip("-n", node.name, "-batch", "-",
                    input=f"addr add {node.address}/24 dev eth0\nlink set eth0 up\nlink set lo up\n")
            _ip("-n", self.bridge, "link", "set", "bridge", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.clear()
        for name in (self.bridge, *(node.name for node in self.nodes)):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def clear(self):
        """Kills what runs on the nodes: some programs leave others behind, which would keep the namespace alive."""
        for node in self.nodes:
            done = subprocess.run(["ip", "netns", "pids", node.name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            for pid in map(int, done.stdout.split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def rate(self, i, rate):
        """What node i can send, and what it can be sent: "200mbit"; None: all that the machine can."""
        for namespace, device in ((self.nodes[i].name, "eth0"), (self.bridge, f"port{i}")):
            subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], stderr=subprocess.DEVNULL)
            if rate is None:
                continue
            text = f"qdisc add dev {device} root handle 1: htb default 1\n" \
                f"class add dev {device} parent 1: classid 1:1 htb rate {rate} burst 64k cburst 64k quantum 60000\n"
            done = subprocess.run(["tc", "-n", namespace, "-batch", "-"], input=text, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr

    def down(self, i):
        """Cuts the cable of node i: nobody is told, packets are lost."""
        _ip("-n", self.bridge, "link", "set", f"port{i}", "down")

    def up(self, i):
        _ip("-n", self.bridge, "link", "set", f"port{i}", "up")

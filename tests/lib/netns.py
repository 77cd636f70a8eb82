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
import json
import os
import re
import shutil
import signal
import subprocess

PREFIX = "10.77."
PROBE = "ip link add name probe type bridge && ip link add name a type veth peer name b && " \
    "tc qdisc add dev a root handle 1: htb default 1"
DATA_MIN = 200  # bytes of a packet that is more than an acknowledgement
RANDOM = 2**32 - 0x1000 + 56  # address at which a filter finds a random number: SKF_AD_OFF + SKF_AD_RANDOM
PASS, DROP = 0, 2  # TC_ACT_OK, TC_ACT_SHOT
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
    One namespace with one interface, eth0, or with several.

    name        of the namespace, for `ip netns`
    address     of eth0; all nodes of a Net are in one /24
    addresses   of eth0, eth1, ..., each in another one
    prefix      words before a command that runs in there
    """

    def __init__(self, name, addresses):
        self.name, self.address, self.addresses = name, addresses[0], addresses
        # Not by `ip netns exec`, which mounts another /sys.
        self.prefix = ["nsenter", f"--net=/run/netns/{name}", "--"]

    def run(self, command, **popen_kw):
        """Starts a program in there: its Popen."""
        return subprocess.Popen([*self.prefix, *map(str, command)], **popen_kw)


class Net:
    """
    n nodes on one bridge, or one for each of their interfaces, as fast as the machine until rate() changes that. The
    end of the block removes the namespaces, and ends the processes in them.
    """

    def __init__(self, n, interfaces=1):
        self.interfaces = range(interfaces)
        stem = f"wd-{os.getpid()}-{next(_serials)}"
        self.bridge = f"{stem}-br"
        self.nodes = [Node(f"{stem}-{i}", [f"{PREFIX}{j}.{i + 1}" for j in self.interfaces]) for i in range(n)]

    def __enter__(self):
        try:
            _ip("netns", "add", self.bridge)
            for node in self.nodes:
                _ip("netns", "add", node.name)
            for j in self.interfaces:
                self._add_bridge(j)
            for node in self.nodes:
                _ip("-n", node.name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add_bridge(self, j):
        _ip("-n", self.bridge, "link", "add", "name", f"bridge{j}", "type", "bridge")
        for i, node in enumerate(self.nodes):
            _ip("-n", self.bridge, "-batch", "-", input=f"link add name {self._port(i, j)} type veth peer name eth{j} "
                f"netns {node.name}\nlink set {self._port(i, j)} master bridge{j} up\n")
            _ip("-n", node.name, "-batch", "-", input=f"addr add {node.addresses[j]}/24 dev eth{j}\nlink set eth{j} up\n")
        _ip("-n", self.bridge, "link", "set", f"bridge{j}", "up")

    def _port(self, i, j):
        return f"port{i}-{j}"

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

    def rate(self, i, rate, interface=0, sends=True):
        """The rate at which node i receives over an interface, and sends unless that is False: "200mbit"; None: no limit."""
        own = [(self.nodes[i].name, f"eth{interface}")] if sends else []
        for namespace, device in [*own, (self.bridge, self._port(i, interface))]:
            subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], stderr=subprocess.DEVNULL)
            if rate is None:
                continue
            text = f"qdisc add dev {device} root handle 1: htb default 1\n" \
                f"class add dev {device} parent 1: classid 1:1 htb rate {rate} burst 64k cburst 64k quantum 60000\n"
            done = subprocess.run(["tc", "-n", namespace, "-batch", "-"], input=text, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr

    def congest(self, i, interface=0):
        """Traffic to node i loses packets, until rate(): the queue of its link has room for next to none."""
        device = self._port(i, interface)
        text = f"qdisc add dev {device} root handle 1: htb default 1\n" \
            f"class add dev {device} parent 1: classid 1:1 htb rate 200mbit burst 16k cburst 16k quantum 60000\n" \
            f"qdisc add dev {device} parent 1:1 handle 10: pfifo limit 2\n"
        done = subprocess.run(["tc", "-n", self.bridge, "-batch", "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def retransmitted(self, i):
        """Segments of TCP that node i sent again, ever."""
        done = subprocess.run(["nsenter", f"--net=/run/netns/{self.nodes[i].name}", "--", "cat", "/proc/net/snmp"],
                              capture_output=True, text=True, check=True)
        keys, values = (line.split() for line in done.stdout.splitlines() if line.startswith("Tcp:"))
        return int(dict(zip(keys, values))["RetransSegs"])

    def lose(self, i, one_in, interface=0):
        """One in so many of the packets with data for node i is lost, by chance."""
        device = f"eth{interface}"
        # Written in the language of the old filters: the kernel may have no netem, and the machine no compiler.
        program = ["128 0 0 0", f"53 0 3 {DATA_MIN}", f"32 0 0 {RANDOM}", f"148 0 0 {one_in}", "21 1 0 0", f"6 0 0 {PASS}",
                   f"6 0 0 {DROP}"]
        text = f"qdisc add dev {device} clsact\nfilter add dev {device} ingress bpf direct-action bytecode " \
            f"\"{','.join([str(len(program)), *program])}\"\n"
        done = subprocess.run(["tc", "-n", self.nodes[i].name, "-batch", "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def lose_nothing(self, i, interface=0):
        subprocess.run(["tc", "-n", self.nodes[i].name, "qdisc", "del", "dev", f"eth{interface}", "clsact"], check=True)

    def down(self, i, interface=0):
        """Cuts a cable of node i: its packets are lost without a notice."""
        _ip("-n", self.bridge, "link", "set", self._port(i, interface), "down")

    def up(self, i, interface=0):
        _ip("-n", self.bridge, "link", "set", self._port(i, interface), "up")

    def forbid(self, i, address):
        """Whatever node i sends there is refused at once, to it."""
        _ip("-n", self.nodes[i].name, "route", "add", "prohibit", f"{address}/32")

    def sent(self, i):
        """Bytes that the open TCP connections of node i have sent, without those that were sent again."""
        done = self.nodes[i].run(["ss", "--tcp", "--info", "--no-header", "--oneline", "state", "established"],
                                 stdout=subprocess.PIPE, text=True)
        text, _ = done.communicate()
        assert done.returncode == 0, text
        sizes = {name: sum(map(int, re.findall(rf"\b{name}:(\d+)", text))) for name in ("bytes_sent", "bytes_retrans")}
        return sizes["bytes_sent"] - sizes["bytes_retrans"]

    def sent_to(self, i, interface=0):
        """Bytes on the cable towards node i, so far."""
        shown = subprocess.run(["ip", "-n", self.nodes[i].name, "-s", "-j", "link", "show", f"eth{interface}"], check=True,
                               capture_output=True, text=True).stdout
        return json.loads(shown)[0]["stats64"]["rx"]["bytes"]

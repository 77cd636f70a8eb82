"""
Console blocks of man pages, done in boxes as they are written there, and the set-up of three nodes in weightd-sync(8).

The lines of a block are run by a shell of root ("# ") or of a user ("$ "). The page only mentions that names and addresses
differ on the other nodes: the code here changes them.
"""
import collections
import contextlib
import functools
import itertools
import json
import os
import re
import subprocess

from integration.examples.pages import literals
from lib.features import BUILD
from lib.nodes import UNHURRIED, until

PAGE = "weightd-sync.8"
NODES = "a", "b", "c"
CONF = "/etc/weightd/sync.conf"
USER = "alice"


Steps = collections.namedtuple("Steps", "pki certificates users conf start load push use")


@functools.cache
def steps():
    """The blocks of the chapter, in its order."""
    return Steps(*literals(PAGE, "SETTING UP THREE NODES"))


Security = collections.namedtuple("Security", "revoke drop_in")


def security():
    """The blocks of that section: one excludes a node, one installs the drop-in."""
    return Security(*literals(PAGE, "SECURITY"))


def commands(block):
    """[(True for root, the command)]; a command continues behind "> "."""
    lines = block.replace("\n> ", "\0").splitlines()
    assert all(line[:2] in ("# ", "$ ") for line in lines), block
    return [(line[0] == "#", line[2:].replace("\0", "\n")) for line in lines]


def files(block):
    """{path: text}; the line "# " and a path is before each."""
    parts = re.split(r"^# (/\S+)\n", block, flags=re.M)
    assert parts[0] == "", block
    return dict(zip(parts[1::2], parts[2::2]))


def address(node):
    return f"10.0.0.{NODES.index(node) + 1}"


def conf_of(node, text):
    """The file of that node, where `text` is the one of a."""
    text = text.replace("name = a\n", f"name = {node}\n").replace("pki/a.", f"pki/{node}.")
    text = text.replace(f"listen = {address('a')}:", f"listen = {address(node)}:")
    return text.replace(f"[peer {node}]\naddress = {address(node)}:", f"[peer a]\naddress = {address('a')}:")


def run_here(folder, *args):
    done = subprocess.run(args, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{args}: {done.stderr}"


def join(boxes):
    """A network of the boxes, with a bridge in that of the first one: nothing leaves them."""
    def ip(box, *args):
        run_here("/", "nsenter", "-t", str(box.leader), "-n", "--", "ip", *args)

    first = boxes[0]
    ip(first, "link", "add", "lan", "type", "bridge")
    ip(first, "addr", "add", "10.0.0.1/24", "dev", "lan")
    ip(first, "link", "set", "lan", "up")
    for i, box in enumerate(boxes[1:], 2):
        ip(first, "link", "add", f"port{i}", "master", "lan", "up", "type", "veth", "peer", "name", "lan", "netns", str(box.leader))
        ip(box, "addr", "add", f"10.0.0.{i}/24", "dev", "lan")
        ip(box, "link", "set", "lan", "up")


def follow_here(block, folder, path=""):
    """On this machine, which is none of the nodes and has the CA; `path` has programs to use instead of those of the machine."""
    for by_root, line in commands(block):
        assert not by_root, line
        run_here(folder, "env", f"PATH={path}:{BUILD}:{os.environ['PATH']}", "sh", "-c", line)


class Nodes(dict):
    """{name: Box}, each with a weightd, and a network between them."""

    def __init__(self, make_service):
        super().__init__()
        with contextlib.ExitStack() as stack:
            for node in NODES:
                self[node] = stack.enter_context(make_service())
            join(list(self.values()))
            self.boxes = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.boxes.close()

    def follow(self, block, nodes=NODES):
        """Runs a block on each of the nodes, in the folder of what was copied there: {node: what they print}."""
        said = dict.fromkeys(nodes, "")
        for node in nodes:
            here = commands(block.replace("a/a.", f"{node}/{node}.").replace("a/ca.", f"{node}/ca."))
            for by_root, lines in itertools.groupby(here, key=lambda command: command[0]):
                script = "\n".join(["cd /srv", *(line for _, line in lines)])
                said[node] += self[node].run("sh", "-ec", script, user="root" if by_root else USER).stdout
        return said

    def copy(self, folder):
        """The certificates, each to its node."""
        for node in NODES:
            run_here("/", "cp", "-r", str(folder / node), str(self[node].path("/srv")))

    def configure(self, text, nodes=NODES):
        """With the patience that tests have."""
        limits = "".join(f"{key} = {value}\n" for key, value in UNHURRIED.items())
        for node in nodes:
            self[node].path(CONF).write_text(f"{conf_of(node, text)}[limits]\n{limits}")

    def wait_connected(self):
        until(lambda: all(self.is_connected(node) for node in NODES),
              lambda: "all are connected\n" + "\n".join(box.journal_text(20) for box in self.values()))

    def states(self, node):
        """{another node: its state there}"""
        rows = json.loads(self[node].run("weightctl", "nodes", "--json").stdout)["nodes"]
        return {row["node"]: row["state"] for row in rows if row["node"] != node}

    def is_connected(self, node):
        return list(self.states(node).values()) == ["up"] * (len(NODES) - 1)

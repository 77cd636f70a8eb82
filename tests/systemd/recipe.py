"""
The set-up of three nodes in weightd-sync(8), done in boxes as it is written there.

Its console blocks are run line by line, by root ("# ") or by a user ("$ "); the page only mentions that
names and addresses differ on the other nodes: the code here changes them.
"""
import collections
import contextlib
import functools
import json
import os
import re
import subprocess

from lib.features import BUILD, ROOT
from lib.nodes import UNHURRIED, until

PAGE = ROOT / "packaging/man/weightd-sync.8.scd"
NODES = "a", "b", "c"
CONF = "/etc/weightd/sync.conf"
USER = "alice"


Steps = collections.namedtuple("Steps", "pki certificates users conf start load push use")


@functools.cache
def steps():
    """The blocks of the chapter, in its order."""
    chapter = re.search(r"^# SETTING UP THREE NODES$(.*?)^# [A-Z]", PAGE.read_text(), re.M | re.S).group(1)
    return Steps(*re.findall(r"^```\n(.*?)^```$", chapter, re.M | re.S))


@functools.cache
def drop_in():
    """The block of SECURITY that installs the drop-in."""
    [block] = [b for b in re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "--print-drop-in" in b]
    # Variables of a shell that reads all lines: here each line has its own shell.
    folder = re.search(r"^# cd (.*)$", block, re.M).group(1)
    return re.sub(r"^# cd .*\n", "", block, flags=re.M).replace(">addresses.conf", f">{folder}/addresses.conf")


def commands(block):
    """[(True for root, the command)]; a command continues behind "> "."""
    lines = block.replace("\n> ", "\0").splitlines()
    assert all(line[:2] in ("# ", "$ ") for line in lines), block
    return [(line[0] == "#", line[2:].replace("\0", "\n")) for line in lines]


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


def make_certificates(block, folder):
    """On this machine, which is none of the nodes."""
    for by_root, line in commands(block):
        assert not by_root, line
        run_here(folder, "env", f"PATH={BUILD}:{os.environ['PATH']}", "sh", "-c", line)


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
        """Runs the lines of a block on each of the nodes, in the folder of what was copied there: {node: what they print}."""
        said = dict.fromkeys(nodes, "")
        for node in nodes:
            for by_root, line in commands(block.replace("a/a.", f"{node}/{node}.").replace("a/ca.", f"{node}/ca.")):
                done = self[node].run("sh", "-c", f"cd /srv && {line}", user="root" if by_root else USER)
                said[node] += done.stdout
        return said

    def copy(self, folder):
        """The certificates, each to its node."""
        for node in NODES:
            run_here("/", "cp", "-r", str(folder / node), str(self[node].path("/srv")))

    def configure(self, text):
        """With the patience that tests have."""
        limits = "".join(f"{key} = {value}\n" for key, value in UNHURRIED.items())
        for node in NODES:
            self[node].path(CONF).write_text(f"{conf_of(node, text)}[limits]\n{limits}")

    def wait_connected(self):
        until(lambda: all(self.is_connected(node) for node in NODES),
              lambda: "all are connected\n" + "\n".join(box.journal_text(20) for box in self.values()))

    def is_connected(self, node):
        rows = json.loads(self[node].run("weightctl", "nodes", "--json").stdout)["nodes"]
        return [row["state"] for row in rows if row["node"] != node] == ["up"] * (len(NODES) - 1)

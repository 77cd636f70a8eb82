"""Other programs that send bytes from one node to several: rsync, Gloo's broadcast, OpenMPI's."""
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

from lib import features

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
LIMIT_S = 120
RSYNC_PORT = 8730


class Missing(Exception):
    """It is not installed here, or cannot run."""


def await_port(pid, port):
    """Until a process listens, as its own namespace sees it."""
    deadline = time.monotonic() + LIMIT_S
    while not any(f":{port:04X} " in line and line.split()[3] == "0A" for name in ("tcp", "tcp6")
                  for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()):
        assert time.monotonic() < deadline, f"no server listens on port {port}"
        time.sleep(0.01)


@contextlib.contextmanager
def running(processes):
    """Kills the remaining processes at the end of the block."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def await_all(processes):
    """Processor time of each."""
    used = []
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, f"{process.args} ended with {process.returncode}"
        used.append(usage.ru_utime + usage.ru_stime)
    return used


# --- Plain senders -----------------------------------------------------------------------------------

WAYS = "send", "sendfile"
SEND_PORT = 8731
SEND = """
import mmap, os, resource, socket, sys
way, host, port, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
memory = memoryview(mmap.mmap(0, size, mmap.MAP_SHARED, mmap.PROT_READ))
with socket.create_connection((host, port)) as s:
    before, done = resource.getrusage(resource.RUSAGE_SELF), 0
    while done < size:
        part = min(1 << 20, size - done)
        done += s.send(memory[done:done + part]) if way == "send" else os.sendfile(s.fileno(), 0, done, part)
    s.shutdown(socket.SHUT_WR)
    s.recv(1)
    used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime)
"""
TAKE = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    taker, block = server.accept()[0], bytearray(1 << 20)
    while taker.recv_into(block):
        pass
"""


def send(net, memory, way):
    """Seconds on a processor of a process that sends all of it to one node."""
    host, size = net.nodes[1].address, memory.size
    taker = net.nodes[1].run(["python3", "-c", TAKE, host, SEND_PORT])
    with running([taker]):
        await_port(taker.pid, SEND_PORT)
        sender = net.nodes[0].run(["python3", "-c", SEND, way, host, SEND_PORT, size], stdin=memory.fd, stdout=subprocess.PIPE,
                                  text=True)
        with running([sender]):
            return float(sender.communicate(timeout=LIMIT_S)[0])


# --- rsync -------------------------------------------------------------------------------------------


def rsync(net, folder, receivers, n_bytes):
    """Sends to all at once: it has no chain."""
    if not shutil.which("rsync"):
        raise Missing("no rsync (apt-get install rsync)")
    source = folder / "weights"
    if not source.exists():
        block = os.urandom(1 << 24)
        with open(source, "wb") as f:
            for _ in range(n_bytes // len(block)):
                f.write(block)
    daemons = []
    with running(daemons):
        for i in range(1, receivers + 1):
            daemons.append(start_daemon(net.nodes[i], folder / str(i)))
        for daemon in daemons:
            await_port(daemon.pid, RSYNC_PORT)
        started = time.monotonic()
        clients = []
        with running(clients):
            for i in range(1, receivers + 1):
                clients.append(net.nodes[0].run(
                    ["rsync", "--whole-file", "--inplace", source,
                     f"rsync://{net.nodes[i].address}:{RSYNC_PORT}/to/"], stdin=subprocess.DEVNULL))
            used = await_all(clients)
        seconds = time.monotonic() - started
    for i in range(1, receivers + 1):
        shutil.rmtree(folder / str(i))
    return seconds, sum(used)


def start_daemon(node, folder):
    (folder / "to").mkdir(parents=True)
    config = folder / "rsyncd.conf"
    config.write_text(f"use chroot = no\nuid = root\ngid = root\nlock file = {folder}/lock\n"
                      f"[to]\npath = {folder}/to\nread only = no\n")
    return node.run(["rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={RSYNC_PORT}",
                     f"--address={node.address}", f"--log-file={folder}/log"], stdin=subprocess.DEVNULL)


# --- Gloo and OpenMPI --------------------------------------------------------------------------------


def compiled(name, *command):
    """A program of peers/, in the build tree."""
    program = features.BUILD / "bench" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([*command, "-O2", "-o", program], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise Missing(f"{name} cannot be compiled: {(done.stderr.splitlines() or ['?'])[0]}")
    return program


def results(outputs):
    """Each rank prints its seconds, and the processor time that it used meanwhile."""
    rows = [[float(word) for word in output.split()] for output in outputs]
    return max(row[0] for row in rows), rows[0][1]


def gloo(net, folder, receivers, n_bytes):
    if not pathlib.Path("/usr/include/gloo/broadcast.h").exists():
        raise Missing("no Gloo (apt-get install libgloo-dev)")
    program = compiled("gloo_broadcast", "g++", "-std=c++17", PEERS / "gloo_broadcast.cc", "-lgloo", "-pthread")
    store = tempfile.mkdtemp(dir=folder)
    ranks = []
    with running(ranks):
        for i in range(receivers + 1):
            ranks.append(net.nodes[i].run([program, i, receivers + 1, net.nodes[i].address, store, n_bytes],
                                          stdout=subprocess.PIPE, text=True))
        return results([rank.communicate(timeout=LIMIT_S)[0] for rank in ranks])


def openmpi(net, folder, receivers, n_bytes):
    """
    Its remote shell is a script that enters the namespace of a node. Its daemons, which take themselves for alone on
    their machines, crash over a file that they share where they write down its topology: they have not to (rtc).
    """
    if not shutil.which("mpicc") or not shutil.which("mpirun"):
        raise Missing("no OpenMPI (apt-get install libopenmpi-dev openmpi-bin)")
    program = compiled("mpi_broadcast", "mpicc", PEERS / "mpi_broadcast.c")
    nodes = net.nodes[:receivers + 1]
    shell = folder / "shell"
    cases = "".join(f"{node.address}) exec nsenter --net=/run/netns/{node.name} -- sh -c \"$*\";;\n" for node in nodes)
    shell.write_text(f"#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}esac\n")
    shell.chmod(0o755)
    hosts = folder / "hosts"
    hosts.write_text("".join(f"{node.address} slots=1\n" for node in nodes))
    prefix = net.nodes[0].address.rsplit(".", 1)[0] + ".0/24"
    root = nodes[0].run(
        ["mpirun", "--allow-run-as-root", "--hostfile", hosts, "-np", len(nodes), "--map-by", "node", "--mca",
         "plm_rsh_agent", shell, "--mca", "btl", "self,tcp", "--mca", "pml", "ob1", "--mca",
         "btl_tcp_if_include", prefix, "--mca", "oob_tcp_if_include", prefix, "--mca", "rtc", "^hwloc", program, n_bytes],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        with running([root]):
            out, errors = root.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Missing(f"mpirun did not end in {LIMIT_S} s") from None
    finally:
        net.clear()  # processes that it started outlive it
    if root.returncode:
        raise Missing(f"mpirun: {(errors.strip().splitlines() or ['?'])[0]}")
    return results(sorted(out.splitlines(), key=lambda line: int(line.split()[2])))


ENGINES = {"rsync": rsync, "gloo-broadcast": gloo, "openmpi": openmpi}

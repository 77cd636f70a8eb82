"""
Jobs of the reference trainer (tests/ref): ranks as processes, their curves, and the bytes that they leave.

    job = Job(daemon, tmp_path / "job", n=2, strategy="zero1")
    job.run()
    assert job.curve() == ...

    nodes = Nodes(daemon, tmp_path / "nodes", nodes=2, n=2, strategy="zero1")  # two jobs, of two ranks each
    assert nodes.run().curve() == ...

An option of the trainer is a keyword: stop_after=3 is --stop-after 3, overlap=True is --overlap.
"""
import concurrent.futures
import hashlib
import json
import mmap
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time

from lib import features
from lib.nodes import claim_net
from lib.wire import PATIENCE_S

PROGRAMS = features.BUILD / "ref"
START, COMPUTE, UPDATE, END = range(1, 5)  # phases of a rank
PROGRESS = struct.Struct("<QIIi44x")
MEETING_PORT = 7500  # of rank 0; below those that the kernel gives


def words(**options):
    """The command line of these options."""
    found = []
    for name, value in options.items():
        if value is not None and value is not False:
            found += [f"--{name.replace('_', '-')}"] + [str(value)] * (value is not True)
    return found


def lines(path):
    """Objects of a file with one in each line; a killed process may have left the last one unfinished."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return found


def oracle(folder, **options):
    """The curve of a single process, as a list of losses, and its parameters, as bytes in the order of tensors."""
    folder.mkdir(exist_ok=True)
    name = folder / hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:16]
    if not name.with_suffix(".PARAM").exists():
        subprocess.run([PROGRAMS / "oracle", *words(**options, losses=f"{name}.losses", dump=name)], check=True, timeout=PATIENCE_S)
    return [line["loss"] for line in lines(name.with_suffix(".losses"))], name.with_suffix(".PARAM").read_bytes()


def mean_losses(all_steps):
    """By step, over the samples of all ranks: the lines of each rank by step."""
    return [sum(steps[i]["loss"] * steps[i]["samples"] for steps in all_steps) / sum(steps[i]["samples"] for steps in all_steps)
            for i in range(1, max(all_steps[0]) + 1)]


class Rank:
    """A process of a rank, whose number is the one among the ranks of all nodes. Its error output is in a file, and that of its predecessors too."""

    def __init__(self, job, number, prefix=(), env=None, **options):
        self.rank = job.first + number
        self.errors = job.folder / f"{number}.errors"
        with open(self.errors, "ab") as errors:
            self.proc = subprocess.Popen(
                [*prefix, *job.command(number, **options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env=job.daemon.env | {"WEIGHTD_JOB": job.token, "LOCAL_RANK": str(number)} | (env or {}))

    @property
    def pid(self):
        return self.proc.pid

    def wait(self, timeout=PATIENCE_S):
        """The exit status, and the text of its errors."""
        self.proc.wait(timeout)
        return self.proc.returncode, self.errors.read_text()

    def held(self, step=None):
        """Waits until it holds (hold_at=, keep_on=), and returns the step. Where it gave up before `step`, it calls again."""
        while True:
            line = self.proc.stdout.readline()
            if line.startswith(b"began "):
                continue
            assert line.startswith(b"holding "), f"{line!r} {self.errors.read_text()}"
            held = int(line.split()[1])
            if step is None or held >= step:
                return held
            self.go_on()

    def go_on(self):
        self.proc.stdin.write(b"\n")
        self.proc.stdin.flush()

    def story(self):
        """Its output, and where its threads are, if there is gdb."""
        lines = [f"--- rank {self.rank} (pid {self.pid}), which {'runs' if self.proc.poll() is None else f'ended with {self.proc.returncode}'}",
                 self.errors.read_text()]
        if self.proc.returncode is None and shutil.which("gdb"):
            lines.append(subprocess.run(["gdb", "-p", str(self.pid), "-batch", "-ex", "thread apply all bt"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace").stdout)
        return "\n".join(lines)

    def kill(self):
        self.proc.kill()
        self.proc.wait(PATIENCE_S)

    def close(self):
        if self.proc.poll() is None:
            self.kill()
        self.proc.stdin.close()
        self.proc.stdout.close()


def all_held(ranks, step):
    """Waits until all of them hold at the step. Those that gave up before, on a busy machine, call again meanwhile."""
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        return [held == step for held in pool.map(lambda rank: rank.held(step), ranks)] == [True] * len(ranks)


class Job:
    """
    n         ranks
    options   of the trainer. With nodes=, node= and so on it is one node of several: the ranks number those of this node
    prefix    words before the command of each rank
    folder    of its files
    ranks     processes by rank, the newest ones
    together  the jobs of all nodes
    token
    """

    def __init__(self, daemon, folder, n, name=None, linger=None, prefix=(), **options):
        self.daemon, self.folder, self.n, self.options, self.prefix = daemon, pathlib.Path(folder), n, options, prefix
        self.n_all = n * options.get("nodes", 1)
        self.first = n * options.get("node", 0)
        self.folder.mkdir(parents=True)
        (self.folder / "progress").write_bytes(bytes(n * PROGRESS.size))
        self.name = name or f"job-{self.folder.name}"
        self.ranks, self.started, self.linger = {}, [], linger
        self.together = [self]
        self.create()

    def create(self):
        """Also makes it anew after it was removed."""
        options = words(create=self.name, n=self.n_all, nodes=self.options.get("nodes"), linger=self.linger)
        done = subprocess.run([PROGRAMS / "train", *options], env=self.daemon.env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        self.token = done.stdout.strip()

    def command(self, number, **options):
        own = {"n": self.n_all, "losses": self.folder / f"{number}.losses", "dump": self.folder / "dump",
               "report": self.folder / f"{number}.report", "progress": self.folder / "progress"}
        return [PROGRAMS / "train", *words(**own | self.options | options)]

    def start(self, number, **kw):
        """A process of a rank, which ends with the job at the latest."""
        self.ranks[number] = Rank(self, number, **{"prefix": self.prefix} | kw)
        self.started.append(self.ranks[number])
        return self.ranks[number]

    def start_all(self, **kw):
        return [self.start(rank, **kw) for rank in range(self.n)]

    def finish(self):
        """Waits for all ranks, which have to end well, and hold no longer. Returns self."""
        deadline = time.monotonic() + PATIENCE_S
        for rank in self.ranks.values():
            rank.proc.stdin.close()
        for rank in self.ranks.values():
            try:
                status, errors = rank.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank.rank} does not end\n{self.story()}") from None
            assert status == 0, f"rank {rank.rank} ended with {status}: {errors}\nweightd wrote: {self.daemon.log}"
        return self

    def run(self, **kw):
        self.start_all(**kw)
        return self.finish()

    def story(self):
        """Those of the ranks of this job, and of those of other nodes."""
        return "\n".join([*(f"{job.name} is at {job.progress()}" for job in self.together),
                          *(rank.story() for job in self.together for rank in job.ranks.values()), self.daemon.log])

    def progress(self):
        """(step, phase, starts, pid) of each rank."""
        with open(self.folder / "progress", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            return [PROGRESS.unpack_from(m, rank * PROGRESS.size) for rank in range(self.n)]

    def steps(self, rank):
        """The rank's lines by step; of a repeated step, the last one."""
        path = self.folder / f"{rank}.losses"
        return {line["step"]: line for line in lines(path)} if path.exists() else {}

    def curve(self):
        """Mean losses over the samples of all ranks, by step."""
        return mean_losses([self.steps(rank) for rank in range(self.n)])

    def report(self, rank):
        return json.loads((self.folder / f"{rank}.report").read_text())

    def reports(self):
        return [self.report(rank) for rank in range(self.n)]

    def bytes(self):
        """Everything that it left: parameters, moments, cursors, buffers, by the name of the file."""
        return {path.name[len("dump."):]: path.read_bytes() for path in sorted(self.folder.glob("dump.*"))}

    def digests(self):
        """Likewise, short enough to be printed."""
        return {name: f"{len(content)}:{hashlib.sha256(content).hexdigest()[:16]}" for name, content in self.bytes().items()}

    def params(self):
        """The parameters of rank 0, padding included."""
        return (self.folder / "dump.0.PARAM").read_bytes()

    def close(self):
        for rank in self.started:
            rank.close()


class Nodes:
    """
    Several nodes with n ranks each: a job for each, of one weightd or of as many.

    daemons   a weightd, or one for each node
    address   of node 0; None: one on loopback that no other test has
    prefixes  words before the commands of each node, as for a namespace
    n         ranks, of all nodes
    jobs      by node
    daemon    that of node 0
    """

    def __init__(self, daemons, folder, nodes=2, n=2, address=None, prefixes=None, **options):
        self.claim = None
        if address is None:
            net, self.claim = claim_net()
            address = f"{net}.1"
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        self.jobs, self.n, self.daemon = [], nodes * n, daemons[0] if isinstance(daemons, list) else daemons
        daemons = daemons if isinstance(daemons, list) else [daemons] * nodes
        for i in range(nodes):
            self.jobs.append(Job(daemons[i], self.folder / str(i), n, name=f"nodes-{self.folder.name}-{i}",
                                 prefix=prefixes[i] if prefixes else (), nodes=nodes, node=i, master=address, port=MEETING_PORT, **options))
            self.jobs[-1].together = self.jobs

    def start(self, rank, **kw):
        """A process of a rank by its number among all."""
        job = self.jobs[rank // (self.n // len(self.jobs))]
        return job.start(rank - job.first, **kw)

    def progress(self):
        return [progress for job in self.jobs for progress in job.progress()]

    def start_all(self, **kw):
        """All ranks, those of node 0 first."""
        return [rank for job in self.jobs for rank in job.start_all(**kw)]

    def finish(self):
        for job in self.jobs:
            job.finish()
        return self

    def run(self, **kw):
        self.start_all(**kw)
        return self.finish()

    def curve(self):
        return mean_losses([job.steps(rank) for job in self.jobs for rank in range(job.n)])

    def reports(self):
        return [report for job in self.jobs for report in job.reports()]

    def bytes(self):
        """Those of its jobs, by "node.file"."""
        return {f"{node}.{name}": content for node, job in enumerate(self.jobs) for name, content in job.bytes().items()}

    def digests(self):
        return {f"{node}.{name}": digest for node, job in enumerate(self.jobs) for name, digest in job.digests().items()}

    def params(self):
        """The parameters, padding included, which are equal in all copies of all nodes."""
        copies = {name: content for name, content in self.bytes().items() if name.endswith(".PARAM") and name.count(".") == 2}
        first, *others = copies.items()
        assert not [name for name, content in others if content != first[1]], f"not equal to {first[0]}"
        return first[1]

    def close(self):
        for job in self.jobs:
            job.close()
        if self.claim:
            self.claim.close()


def difference(a, b):
    """The largest difference of two curves."""
    assert len(a) == len(b), f"{len(a)} steps, not {len(b)}"
    return max(abs(x - y) for x, y in zip(a, b))


def pidfd_kill(pid, sig=signal.SIGKILL):
    """Kills a process that is not our child, and waits for its end. False if it had ended before."""
    import select

    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if select.select([fd], [], [], 0)[0]:
            return False
        signal.pidfd_send_signal(fd, sig)
        assert select.select([fd], [], [], PATIENCE_S)[0], f"process {pid} did not end"
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True

"""
SIGKILLs of a job at random instructions: of ranks, of weightd, and of all of them at once. Only the keeper lives.

    killer = Killer(job, n_kills=80, n_steps=500, seed=1).run()
    assert killer.job.digests() == plain.digests(), str(killer)
"""
import collections
import os
import pathlib
import random
import select
import signal
import time

from lib.trainer import COMPUTE, END, START, UPDATE, pidfd_kill
from lib.wire import PATIENCE_S

MARGIN = 0.05  # share of the steps after the last kill
FIRST_DELAY_S, LEAST_DELAY_S, MOST_DELAY_S = 0.005, 0.0003, 0.03
# Small passes and a large table: the optimizer's blocks take about half of a step, so that kills hit them.
MODEL = {"mlp": True, "ballast": 16000, "width": 13, "heads": 1, "length": 3, "batch": 24, "dropout": 0.2}


class Killer:
    """
    Kills at random until a job, or one of several nodes with the same weightd, has ended. The delay before a kill is uniform below a bound, which follows the job: a share
    of the kills is left for each share of the steps. Half of the delays begin once all ranks train again, the others, and
    all while the job is ahead, with the restart after the kill before.

    hits     kills by target
    phases   killed ranks by their phase at death
    """

    def __init__(self, job, n_kills, n_steps, seed):
        self.job, self.n_kills, self.n_steps, self.random = job, n_kills, n_steps, random.Random(seed)
        self.hits, self.phases, self.n_done, self.bound_s = collections.Counter(), collections.Counter(), 0, FIRST_DELAY_S
        self.is_ahead = False
        self.living = {}  # ranks by pidfd
        self.left = set()  # ranks that were killed at their end
        self.starting = {}  # ranks that do not train yet, by descriptor of their output

    def run(self):
        for rank in self.job.start_all():
            self.watch(rank)
        while self.living and self.n_done < self.n_kills:
            if self.random.random() < 0.5 and not self.is_ahead:
                self.let(PATIENCE_S, until_all_train=True)
            self.let(self.random.uniform(0, self.bound_s))
            if self.living:
                self.kill()
        self.let(PATIENCE_S)
        assert not self.living, f"the job did not end: {self.job.progress()}\n{self.job.daemon.log}"
        return self

    def watch(self, rank):
        self.living[os.pidfd_open(rank.pid)] = rank
        self.starting[rank.proc.stdout.fileno()] = rank

    def forget(self, fd):
        os.close(fd)
        rank = self.living.pop(fd)
        self.starting.pop(rank.proc.stdout.fileno(), None)
        return rank

    def let(self, seconds, until_all_train=False):
        """Lets the job train for some time, until all of its ranks do, or to its end. A rank may end only there."""
        deadline = time.monotonic() + seconds
        while self.living and (self.starting or not until_all_train):
            outputs = list(self.starting) if until_all_train else []
            ready, _, _ = select.select([*self.living, *outputs], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                assert not until_all_train, f"ranks do not start: {self.job.progress()}\n{self.job.daemon.log}"
                return
            for fd in ready:
                if fd in outputs:
                    self.starting.pop(fd, None)
                else:
                    rank = self.forget(fd)
                    status, errors = rank.wait()
                    rank.close()
                    # A rank that was killed after it had left finds no job if it was the last one.
                    assert status == 0 or rank.rank in self.left and "there is no job" in errors, \
                        f"rank {rank.rank} ended with {status} after {self.n_done} kills: {errors}"

    def kill(self):
        """Kills one rank, weightd, or all of both."""
        target = self.random.choices(["rank", "weightd", "all"], [0.8, 0.1, 0.1])[0]
        weightd = None if target == "rank" else served_by(self.job.daemon)
        if weightd is None:
            target = "rank"  # weightd is dead already: the keeper lets some time pass before it starts the next one
        victims = {"rank": [self.random.choice(list(self.living))], "weightd": [], "all": list(self.living)}[target]
        for fd in victims:
            self.living[fd].proc.send_signal(signal.SIGKILL)
        n_killed = weightd is not None and pidfd_kill(weightd)
        for rank in map(self.forget, victims):
            status, errors = rank.wait()
            rank.close()
            assert status in (0, -signal.SIGKILL), f"rank {rank.rank} ended with {status}: {errors}"
            if status:  # else it was done before the signal
                n_killed += 1
                phase = self.job.progress()[rank.rank][1]
                self.phases[phase] += 1
                if phase == END:
                    self.left.add(rank.rank)
                self.watch(self.job.start(rank.rank))
        if n_killed:
            self.hits[target] += 1
            self.n_done += 1
            self.follow()

    def follow(self):
        """Adapts the bound on delays: half of the kills belong to half of the steps."""
        steps = [step for step, phase, _, _ in self.job.progress() if phase != START]
        self.is_ahead = max(steps, default=0) / self.n_steps + MARGIN > self.n_done / self.n_kills
        self.bound_s = min(max(self.bound_s * (0.7 if self.is_ahead else 1.1), LEAST_DELAY_S), MOST_DELAY_S)

    def __str__(self):
        phases = {"starting": START, "computing": COMPUTE, "in weightd_train_update()": UPDATE, "ending": END}
        return f"{self.n_done} kills: " + ", ".join(f"{n} of {name}" for name, n in sorted(self.hits.items())) + "; ranks killed: " + \
            ", ".join(f"{self.phases[phase]} {name}" for name, phase in phases.items())


def served_by(daemon):
    """The pid of the weightd under the keeper; None between two of them."""
    pids = pathlib.Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    return int(pids[0]) if pids else None

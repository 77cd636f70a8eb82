"""
Random deaths under load: weightd, its writer and its readers are killed at any moment, over and over, and no
reader may ever see anything but a whole version, the right one.

For WEIGHTD_SOAK_SECONDS (make soak SECONDS=300), else for some seconds.
"""
import contextlib
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import time

import pytest
from lib import features
from lib.daemon import Daemon
from lib.native import Client
from lib.wire import SLOTS, Wire, until

SECONDS = float(os.environ.get("WEIGHTD_SOAK_SECONDS", 6))
KILLS_PER_S = 5
BUFFERS = ["sealed", "reusable", "exclusive"]
READERS = [("sealed", "attach"), ("sealed", "refresh"), ("sealed", "swap"), ("reusable", "attach"),
           ("reusable", "refresh"), ("exclusive", "ticket"), ("exclusive", "ticket"), ("exclusive", "pause")]
COUNTERS = "tags checks published moves retries torn lost other errors".split()
FAULTS = "torn", "lost", "other", "errors"


class Ledger:
    """struct ledger, from outside."""

    def __init__(self, path):
        self.path = path

    def counters(self):
        with open(self.path, "rb") as f:
            return dict(zip(COUNTERS, struct.unpack(f"<{len(COUNTERS)}Q", f.read(8 * len(COUNTERS)))))

    def story(self):
        with open(self.path, "rb") as f:
            f.seek(8 * (len(COUNTERS) + 1))
            return f.read(512).rstrip(b"\0").decode()


class Troupe:
    """
    Processes that are started again when they were killed. Readers never rest; unless they are `nice`, little
    is left to the others on a small machine.
    """

    def __init__(self, daemon, ledger):
        self.daemon, self.ledger, self.procs, self.nice = daemon, ledger, {}, 19

    def start(self, program, *arguments):
        command = [features.BUILD / "soak" / program, self.ledger.path, *arguments]
        self.procs[program, arguments] = self.procs.get((program, arguments), []) + [
            subprocess.Popen(command, env=self.daemon.env, preexec_fn=lambda: os.nice(self.nice * (program == "reader")))]

    def kill(self, program):
        key = random.choice([key for key in self.procs if key[0] == program])
        proc = self.procs[key].pop(random.randrange(len(self.procs[key])))
        assert proc.poll() is None, f"{program} had ended with {proc.returncode}: {self.ledger.story()}"
        proc.kill()
        proc.wait()
        self.start(program, *key[1])

    def end(self):
        for procs in self.procs.values():
            for proc in procs:
                proc.kill()
            for proc in procs:
                proc.wait()
        self.procs = {}


def kill_daemon(daemon):
    """The keeper shall not wait before it starts another, however often that happens."""
    children = pathlib.Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    before = children.read_text()
    if before:
        os.kill(int(before), signal.SIGKILL)
    until(lambda: children.read_text() != before, "the keeper buried its daemon")
    if not children.read_text():
        daemon.proc.send_signal(signal.SIGHUP)


def memfds(daemon):
    found = []
    for entry in pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += [link] if (link := os.readlink(entry)).startswith("/memfd:weightd") else []
    return found


def look(daemon):
    with Wire(daemon.socket) as w:
        return f"{w.stat()}\n{w.list(SLOTS)}\n{memfds(daemon)}\n{daemon.log[-20000:]}"


@pytest.fixture
def kept(tmp_path):
    """A daemon under a keeper, which waits a second for clients from before a restart."""
    (tmp_path / "conf").write_text("[store]\nresume-timeout = 1\n")
    daemon = Daemon("--keeper", "--config", str(tmp_path / "conf"))
    yield daemon
    daemon.close()


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def troupe(kept, ledger):
    troupe = Troupe(kept, ledger)
    yield troupe
    troupe.end()


def assert_no_fault(ledger):
    counters = ledger.counters()
    assert not any(counters[fault] for fault in FAULTS), f"{counters}: {ledger.story()}"


def show(request, figures):
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + json.dumps(figures))


def has_seen_enough(ledger):
    """Readers are nice: on a loaded machine that takes them longer."""
    counters = ledger.counters()
    return counters["checks"] > 500 * SECONDS and counters["moves"] > SECONDS


@pytest.mark.timeout(SECONDS + 300)
def test_random_kills(kept, ledger, troupe, request):
    with Client(kept.socket) as client:
        used = client.stat().store_used
    kills = dict(weightd=0, writer=0, reader=0)
    troupe.start("writer", *BUFFERS)
    for name, habit in READERS:
        troupe.start("reader", name, habit)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or not has_seen_enough(ledger):
        time.sleep(random.expovariate(KILLS_PER_S))  # at any moment: that is the point
        who = random.choice(list(kills))
        kills[who] += 1
        if who == "weightd":
            kill_daemon(kept)
        else:
            troupe.kill(who)
        assert_no_fault(ledger)
    before = ledger.counters()["published"]
    until(lambda: ledger.counters()["published"] > before + 3, lambda: f"it goes on: {look(kept)}", 60)
    troupe.end()
    assert_no_fault(ledger)
    figures = dict(name="soak", seconds=SECONDS, kills=sum(kills.values()), **kills, **ledger.counters())
    show(request, figures)
    if SECONDS >= 300:
        assert figures["kills"] >= 1000 and figures["checks"] >= 10**6, figures
    with Client(kept.socket) as client:
        for name in BUFFERS:
            client.drop(name)
        until(lambda: client.stat().slot_bytes == 0, lambda: f"no memory is left: {look(kept)}")
        until(lambda: client.stat().store_used == used, lambda: f"nothing is kept: {look(kept)}")
        assert client.stat().n_quarantined == 0, look(kept)
    until(lambda: not memfds(kept), lambda: f"nothing is left: {look(kept)}")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("n", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_rollbacks_under_eight_readers(kept, ledger, troupe, request, n):
    troupe.nice = 0
    with subprocess.Popen([features.BUILD / "soak/roller", ledger.path, "rolled", str(n)], env=kept.env, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as roller:
        assert roller.stdout.readline() == "ready\n"
        for _ in range(8):
            troupe.start("reader", "rolled", "any")
        until(lambda: ledger.counters()["checks"] > 80, "they read")
        before = ledger.counters()["moves"]
        roller.stdin.write("go\n")
        roller.stdin.close()
        assert roller.wait(300) == 0
    moves = ledger.counters()["moves"] - before
    troupe.end()
    assert_no_fault(ledger)
    assert moves > n / 100, f"readers saw {moves} of {n} rollbacks"
    show(request, dict(name="rollback", rollbacks=n, readers=8, **ledger.counters()))

"""Fake GPUs, a weightd that has them and programs that see both, each a process of its own; see cuda_calls.py."""
import os
import subprocess
import sys
import textwrap

import pytest
from lib import features, wire
from lib.fake_server import Memory
from lib.features import ROOT

PRELUDE = "from lib.cuda_calls import *\nDATA = bytes(range(251)) * 16711\nOTHER = bytes(reversed(DATA))\n"


def environment(gpus, **more):
    return os.environ | gpus.env | {"PYTHONPATH": f"{ROOT}/tests"} | more


def command(code):
    return [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]


class Scene:
    def __init__(self, gpus, make_daemon, *options):
        self.gpus = gpus
        self.daemon = make_daemon(*options, env=gpus.env)

    def env(self, **more):
        return environment(self.gpus, WEIGHTD_SOCKET=self.daemon.socket, **more)

    def run(self, code, **env):
        done = subprocess.run(command(code), env=self.env(**env), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"


@pytest.fixture
def make_scene(make_gpus, make_daemon):
    """make_scene("--keeper", devices=2)"""
    features.require("library")
    return lambda *options, **gpus: Scene(make_gpus(**gpus), make_daemon, *options)


@pytest.fixture
def one(make_scene):
    """With one GPU."""
    return make_scene()


@pytest.fixture
def two(make_scene):
    """With two."""
    return make_scene(devices=2)


class Played:
    """A client beside a server that hands out memory of a holder's."""

    def __init__(self, gpus, tmp_path):
        self.gpus, self.path = gpus, tmp_path / "played.sock"
        self.memory = Memory(4096)
        self.memory.flip(1, 1)
        self.version = self.memory.version(1, flags=1)

    def holder(self, code, *fds):
        """A process that allocates, prints a line, and lives until its input ends."""
        proc = subprocess.Popen(command(textwrap.dedent(code) + "\nsys.stdin.read()"), env=environment(self.gpus),
                                pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return proc, proc.stdout.readline().strip()

    def client(self, code):
        return subprocess.Popen(command(code), env=environment(self.gpus, WEIGHTD_SOCKET=str(self.path)),
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def give(self, peer, kind, handle, fd, lease=7):
        v = self.version
        location = wire.location(2 << 20, kind, bytes.fromhex(self.gpus.uuid().replace("-", "")), handle)
        peer.request(wire.ATTACH)
        peer.reply("5QII16s16s96s", lease, v.memory.buffer, v.number, v.data_size, v.slot_size, v.flags, 0,
                   v.layout_hash, bytes(16), location, fds=[v.memory.layout_fd, v.memory.head_fd, fd])

    def end(self, peer, lease=7):
        asked = peer.request(wire.DETACH)
        assert asked.values == (lease,)
        peer.reply()


@pytest.fixture
def played(gpu, tmp_path):
    features.require("library")
    scene = Played(gpu, tmp_path)
    with scene.memory:
        yield scene


def finish(proc):
    out = proc.communicate(timeout=60)[0]
    assert proc.returncode == 0, out

"""NCCL as a plug-in of its profiler sees it: the program of tests/bpf/nccl that loads one, and its commands."""
import os
import pathlib
import subprocess
import tempfile

from lib import features
from lib.daemon import REPORT, environment

FOLDER = features.BUILD / "nccl-host"
PLUGIN = features.BUILD / "libnccl-profiler-weightd.so"
VERSIONS = 4, 5, 6, 7
GROUP, COLL, P2P, OP, STEP, PROXY_CTRL, KERNEL_CH, NET, GROUP_API, CE_COLL = 1, 2, 4, 8, 16, 32, 64, 128, 256, 4096
MASK = COLL | P2P | NET | CE_COLL


class Host:
    """
    say(words)  runs that command, and returns the answer
    """

    def __init__(self, tracer=None, version=6, **env):
        where = tracer if isinstance(tracer, (str, pathlib.Path)) else tracer.socket if tracer else "/nonexistent/trace.sock"
        self.errors = tempfile.TemporaryFile()
        self.proc = subprocess.Popen([FOLDER / "host"], env=environment(WEIGHTD_TRACE_SOCKET=str(where), **env),
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.load(version)

    def load(self, version):
        assert self.say("load", PLUGIN, version) == "weightd"

    def say(self, *words):
        self.proc.stdin.write(" ".join(map(str, words)) + "\n")
        self.proc.stdin.flush()
        answer = self.proc.stdout.readline()
        assert answer, f"the host ended with {self.proc.wait()}:\n{self.log}"
        return answer.rstrip("\n")

    def init(self, context=0, name="dp", hash="abc", rank=0):
        """The mask that is asked for."""
        mask, what = self.say("init", context, name or "-", hash, rank).split()
        assert what == "context"
        return int(mask)

    def pair(self, a=0, b=1):
        """Descriptors and cookies of two sockets that are connected; the first one called."""
        numbers = list(map(int, self.say("pair", a, b).split()))
        return numbers[:2], numbers[2:]

    @property
    def log(self):
        self.errors.seek(0)
        return self.errors.read().decode()

    def end(self, status=0):
        """Its standard error."""
        self.proc.stdin.close()
        code = self.proc.wait(60)
        assert code == status and not REPORT.search(self.log), (code, self.log)
        return self.log

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.proc.poll() is None and kind is None:
            assert self.end() == ""
        self.proc.kill()
        self.proc.wait()
        self.proc.stdout.close()
        self.errors.close()


def require():
    features.require("nccl-host", f"{FOLDER} is not built (make unit)", (FOLDER / "host").exists() and PLUGIN.exists())

"""How much time `weightctl exec` adds to a program: /bin/true with and without, in turns, 20 times each."""
import subprocess
import time

from lib import features

import figures

N = 20
P50_MS_MAX = 50
COMMAND = ("/bin/true",)


def elapsed_ns(command, env):
    start = time.monotonic_ns()
    subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=True)
    return time.monotonic_ns() - start


def added_ns(env, name, n=N):
    """What exec added in each of `n` rounds; `env` leads weightctl to a server with buffer `name`."""
    with_exec = [features.BUILD / "weightctl", "exec", name, "--", *COMMAND]
    elapsed_ns(with_exec, env)  # programs and libraries are in the page cache from now on
    return [elapsed_ns(with_exec, env) - elapsed_ns(COMMAND, env) for _ in range(n)]


def measure(report, env, name):
    """A line with the figures, and one with the bound."""
    added = added_ns(env, name)
    p50_ms = figures.percentile(added, 50) / 1e6
    report.line(name="weightctl-exec", p50_ms=p50_ms, p99_ms=figures.percentile(added, 99) / 1e6, rounds=len(added))
    report.bound("weightctl-exec", "p50_ms", p50_ms, at_most=P50_MS_MAX)

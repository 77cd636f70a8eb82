"""Running the C programs of this folder and the scripts of peers/."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess

from lib import features

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
LIMIT_S = 120


def bench(name, *args, env=None):
    """The lines that a C program printed, as lists of numbers."""
    return run([features.BUILD / "bench" / name, *args], env)


def run(command, env=None):
    """Likewise of any program."""
    command = [*map(str, command)]
    done = subprocess.run(command, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          timeout=LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def numbers(name, *args, env=None):
    """The one line of a C program."""
    (line,) = bench(name, *args, env=env)
    return line


@contextlib.contextmanager
def spawn(command, **kw):
    """A process with its descendants, which end with the block."""
    process = subprocess.Popen(command, start_new_session=True, **kw)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def peer(script, python, *args, env=None):
    """The JSON lines that a script of peers/ printed; one with the reason, if it failed."""
    return script_lines(PEERS / f"{script}.py", python, *args, env=env)


def script_lines(path, python, *args, env=None):
    with spawn([python, path, *map(str, args)], env=env, text=True,
               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            out, errors = "", f"no result after {LIMIT_S} s"
        finally:
            for left in pathlib.Path("/dev/shm").glob(f"weightd-bench-{process.pid}*"):
                left.unlink()
    lines = [json.loads(line) for line in out.splitlines()]
    if process.returncode:
        reason = errors.strip().splitlines()[-1:] or [f"ended with {process.returncode}"]
        lines.append({"name": path.stem, "skipped": reason[0]})
    return lines

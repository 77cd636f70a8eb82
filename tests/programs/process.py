"""A process of a program: its report, its seconds, its end."""
import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 600
MARK = "report: "
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false",
         "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}


class Failed(Exception):
    """A program ended without a report: its last line, and its status."""


class Process:
    """
    command  with everything that leads to the program: an interpreter, weightctl exec
    environment  beside that of this process
    """

    def __init__(self, command, environment=None):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(list(map(str, command)), env=os.environ | QUIET | (environment or {}), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        """Closing its input ends it, and it its children."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with self.bounded():
            self.process.stdout.read()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    @contextlib.contextmanager
    def bounded(self):
        """Kills it when the block takes too long, so that what waits for it fails."""
        timer = threading.Timer(PATIENCE_S, self.process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def report(self):
        """Waits for its next report. Failed."""
        with self.bounded():
            for line in self.process.stdout:
                if line.startswith(MARK):
                    return json.loads(line[len(MARK):])
            status = self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines() or ["it printed nothing"]
        raise Failed(f"{lines[-1]} (status {status})")


def script(python, program, *arguments):
    """The words that start a program of this folder."""
    return [python, HERE / f"{program}.py", *arguments]


def version_of(python, package):
    """The version that is installed for that interpreter, or None."""
    done = subprocess.run([python, "-c", "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))", package],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def make_models(python, folders, size):
    """Makes those of models.py that do not exist yet, in one process; `folders` by kind. Failed."""
    words = [word for kind, folder in folders.items() if not folder.exists() for word in (kind, folder)]
    if not words:
        return
    done = subprocess.run(list(map(str, script(python, "models", size, *words))), env=os.environ | QUIET, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["it printed nothing"])[-1])


def default_python():
    """That of make fetch-programs; None where it is not there."""
    path = HERE.parents[1] / "build/programs/bin/python"
    return path if path.exists() else None

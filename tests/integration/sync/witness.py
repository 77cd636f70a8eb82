"""
A reader that never rests: attaches the newest version of a buffer, hashes all of its bytes, and writes down
what it saw, a line for each thing that it did not see before.

    with Witness(node, "m") as witness:
        ...
    witness.saw()   # {(version of this weightd, sha256)}
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[3] / "libclient/python"
PATIENCE_S = 60


class Witness:
    def __init__(self, node, buffer, nice=0):
        self.node, self.path = node, node.folder / f"witness-{buffer}"
        environment = node.daemon.env | {"PYTHONPATH": str(PACKAGE)}
        with open(self.path, "wb") as out, open(node.folder / "witness-log", "wb") as log:
            self.proc = subprocess.Popen([sys.executable, __file__, buffer], env=environment, stdin=subprocess.PIPE,
                                         stdout=out, stderr=log, preexec_fn=lambda: os.nice(nice))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def lines(self):
        """Its lines until now: {"version", "sha256", "n"}; n counts its looks."""
        whole = self.path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def saw(self):
        return {(line["version"], line["sha256"]) for line in self.lines()}

    def end(self):
        """Lets it finish its look, and returns how many it had."""
        if self.proc.returncode is None:
            self.proc.stdin.close()
            try:
                self.proc.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
                raise
        assert self.proc.returncode == 0, f"the reader of {self.node.name} ended with {self.proc.returncode}:\n" \
            + (self.node.folder / "witness-log").read_text()
        return max((line["n"] for line in self.lines()), default=0)


def look(buffer):
    """(version, sha256) of what is served now; None: nothing, or not in this moment."""
    import weightd
    try:
        with weightd.attach(buffer) as b:
            return b.version, hashlib.sha256(b.read()).hexdigest()
    except weightd.Error:  # removed, restarted, lost: another look will show
        return None


def main(buffer):
    import select
    n, last = 0, None
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        seen = look(buffer)
        n += seen is not None
        if seen not in (last, None):
            last = seen
            print(json.dumps({"version": seen[0], "sha256": seen[1], "n": n}), flush=True)
    if last:
        print(json.dumps({"version": last[0], "sha256": last[1], "n": n}), flush=True)


if __name__ == "__main__":
    # This folder holds modules of other names than the ones a reader wants.
    sys.path.remove(str(pathlib.Path(__file__).parent))
    main(sys.argv[1])

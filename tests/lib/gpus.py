"""Fake GPUs for the tests: build/fake/libcuda.so.1 in the place of the driver, and one state for all processes.

Addresses of a fake GPU cannot be touched by the processor, as on a real machine; fresh memory is not zero.
The openings of tests/fake/*.h have the other abilities of the stand-in.
"""
import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAKE = ROOT / "build/fake"
NCCL = FAKE / "nccl"
PAGE = 4096
DEADLINE_S = 60


class Gpus:
    """
    folder  the state: what a test may look into
    env     an environment in which programs see these GPUs; give it to Daemon(env=...)
    """

    def __init__(self, devices=1, memory="1G", mig=False, **more):
        """`more` are other variables, FAKE_CUDA_... without the beginning: attributes="102=0"."""
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fake-gpus-", dir=shm))
        self.folder.chmod(0o777)
        (self.folder / "memory").mkdir()
        (self.folder / "memory").chmod(0o777)
        (self.folder / "lock").touch()
        (self.folder / "lock").chmod(0o666)
        self.is_mig = mig
        self.env = {
            "LD_LIBRARY_PATH": str(FAKE),
            "FAKE_CUDA_STATE": str(self.folder),
            "FAKE_CUDA_DEVICES": str(devices),
            "FAKE_CUDA_MEMORY": str(memory),
            "FAKE_CUDA_MIG": str(int(mig)),
        } | {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in more.items()}

    def env_with_nccl(self, **more):
        """The same with NCCL beside the driver."""
        return self.env | {"LD_LIBRARY_PATH": f"{self.env['LD_LIBRARY_PATH']}:{NCCL}"} | more

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def uuid(self, i=0):
        """The UUID of the GPU that is number i in the order of PCI addresses, as "fa4e0000-...."."""
        raw = bytearray.fromhex("fa4e00001234456789abcdef00000000")
        raw[2] = raw[15] = i
        raw[3] = 0x16 if self.is_mig else 0
        text = raw.hex()
        return "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])

    def device(self, i=0):
        """Its name on the wire, "cuda:GPU-fa4e0000-....": the same in every process."""
        return f"cuda:{'MIG' if self.is_mig else 'GPU'}-{self.uuid(i)}"

    # --- failures ---

    def fail(self, symbol, result, skip=0, count=None):
        """From now on `symbol`, or "*", ends with this number, or "hang"s, or makes its process "die"."""
        with self._locked(), open(self.folder / "fail", "a") as f:
            f.write(f"{symbol} {result} {skip}{'' if count is None else f' {count}'}\n")
        (self.folder / "fail").chmod(0o666)

    def fail_instead(self, *rules):
        """Replaces all planned failures by these calls of fail(); calls that hang go on, and meet them."""
        with self._locked():
            new = self.folder / "fail.new"
            new.write_text("".join(f"{symbol} {result} {skip} {count}\n" for symbol, result, skip, count in rules))
            new.chmod(0o666)
            new.rename(self.folder / "fail")

    def has_failed(self):
        """True if every planned failure has happened as often as planned."""
        with self._locked():  # a process that counts writes the file anew
            return not (self.folder / "fail").read_text()

    def heal(self):
        """Ends all failures; calls that hang go on."""
        with self._locked(), contextlib.suppress(FileNotFoundError):
            (self.folder / "fail").unlink()

    @contextlib.contextmanager
    def gate(self, *pids):
        """Within it, nothing runs that was queued in a stream of these processes, or of any."""
        new = self.folder / "gate.new"
        new.write_text("".join(f"{pid}\n" for pid in pids))
        new.rename(self.folder / "gate")
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "gate").unlink()

    def record(self, kind=None):
        """With record=1, lines of what streams did: (what, number, kind, GPU, bytes), in order; of one kind if asked for."""
        with contextlib.suppress(FileNotFoundError):
            rows = [line.split() for line in (self.folder / "record").read_text().splitlines()]
            return [(what, int(n), k, int(i), int(size)) for what, n, k, i, size in rows if kind in (None, k)]
        return []

    # --- memory ---

    def used(self, i=0, contexts=False):
        """Bytes of the GPU that are taken; those of contexts, too, if asked for."""
        with self._locked():
            return sum(self._size_if_held(p) for p in self.files(i, contexts))

    def free(self, i=0):
        """The free bytes that the driver would report."""
        return self._memory() - self.used(i, contexts=True)

    def n_contexts(self, i=0):
        """How many processes have a context there."""
        with self._locked():
            return sum(self._size_if_held(p) > 0 for p in self.files(i, True) if p.name.startswith("context"))

    def wait_used(self, wanted, i=0, contexts=False):
        """Waits until so many bytes are taken: memory of a process is freed a moment after its end."""
        deadline = time.monotonic() + DEADLINE_S
        while (used := self.used(i, contexts)) != wanted:
            assert time.monotonic() < deadline, f"{used} bytes are taken, not {wanted}"
            time.sleep(0.005)

    def wait_let_go(self, pid):
        """
        Waits until nothing holds the memory that this process made. That may be a moment after its end, if another process
        reads its /proc meanwhile: such a reader holds the address space, too.
        """
        deadline = time.monotonic() + DEADLINE_S
        while self._is_maker(pid):
            assert time.monotonic() < deadline, f"{pid} has not let go of its memory"
            time.sleep(0.005)

    def files(self, i=0, contexts=False):
        """The allocations there are, as files; the last page of each is not memory."""
        return sorted(p for p in (self.folder / "memory").iterdir()
                      if p.name.split("-")[1] == str(i) and (contexts or not p.name.startswith("context")))

    def holds(self, needle, i=0):
        """True if these bytes are anywhere in the GPU's memory."""
        return bool(self._find(needle, i))

    def poke(self, needle, replacement, i=0):
        """Changes the only place of the GPU's memory that holds these bytes, behind everybody's back."""
        assert len(needle) == len(replacement)
        found = self._find(needle, i)
        assert len(found) == 1, f"{len(found)} allocations hold these bytes"
        with open(found[0][0], "r+b") as f:
            f.seek(found[0][1])
            f.write(replacement)

    def _find(self, needle, i):
        """The allocations that hold these bytes, and where."""
        with self._locked():  # a process that counts removes files
            found = [(p, p.read_bytes()) for p in self.files(i)]
        return [(p, data.index(needle)) for p, data in found if needle in data[:-PAGE]]

    def _memory(self):
        text = self.env["FAKE_CUDA_MEMORY"]
        unit = {"K": 10, "M": 20, "G": 30}.get(text[-1])
        return int(text[:-1]) << unit if unit else int(text, 0)

    def _is_maker(self, pid):
        with self._locked():
            for path in (self.folder / "memory").glob(f"*-*-{pid}-*"):
                with open(path) as f:
                    try:
                        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        return True
        return False

    @staticmethod
    def _size_if_held(path):
        """As in allocation.c: a file that we get a lease on is not open elsewhere."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return 0
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            return 0
        except OSError:
            return os.fstat(fd).st_size - PAGE
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _locked(self):
        with open(self.folder / "lock", "r+") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            yield

    # --- programs ---

    def python(self, code, env=None, check=True, program=None):
        """Runs code in a Python of its own (`program`; None: such as this one), which sees the GPUs and finds the package."""
        path = str(ROOT / "libclient/python")
        env = os.environ | self.env | {"PYTHONPATH": path} | (env or {})
        done = subprocess.run([program or sys.executable, "-c", code], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done

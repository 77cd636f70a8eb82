"""A weightd of one's own: started in a fresh folder, watched, and ended with a check."""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time

from lib import features

START_S = STOP_S = 60  # the machine may be slow
SANITIZER_EXIT = 99  # not to be taken for weightctl's own 1 and 2
REPORT = re.compile(r"(Address|Thread|Leak|UndefinedBehavior)Sanitizer|runtime error:")


def environment(**extra):
    """The caller's environment less what would lead a program to another weightd."""
    env = {k: v for k, v in os.environ.items()
           if k not in ("WEIGHTD_SOCKET", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID")}
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"):
        env[name] = f"exitcode={SANITIZER_EXIT}:" + env.get(name, "")
    env["UBSAN_OPTIONS"] += ":print_stacktrace=1"
    env["WEIGHTD_LIBRARY"] = str(features.LIBRARY)
    return env | extra


@contextlib.contextmanager
def tampering(path):
    """A descriptor of a process, below /proc, as a file to read and write: its mode forbids that to its owner, unless root is."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    os.chmod(path, 0o600)
    try:
        file = open(path, "r+b", buffering=0)
    finally:
        os.chmod(path, mode)
    with file:
        yield file


def unhindered_s(*processes):
    """
    A clock that stands still while one of these processes ("self" is this one) could run and gets no
    processor: what it measures is theirs and not the machine's. Of each, the main thread counts.
    """
    def waited_s():
        return sum(int(pathlib.Path(f"/proc/{p}/schedstat").read_text().split()[1]) for p in processes) / 1e9

    while True:
        waited, now = waited_s(), time.monotonic()
        if waited_s() - waited < 0.005:  # else it was between the two that we got none
            return now - waited


def copy_for_others(name, folder):
    """A copy of a program and its libraries in a folder that other users may enter, unlike perhaps the build tree."""
    for file in name, "libweightd.so.0", "libweightd-train.so.0":
        if not (folder / file).exists():
            shutil.copy((features.BUILD / file).resolve(), folder / file)
            (folder / file).chmod(0o755)
    return folder / name


class Daemon:
    """
    socket  path of its socket
    folder  its directory, removed after the test; other users may pass through, not look
    proc    the process; pid is proc.pid
    env     an environment that leads weightctl and libweightd to it
    """

    def __init__(self, *args, prefix=(), env=None, program=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-"))
        self.folder.chmod(0o711)
        self.socket = str(self.folder / "weightd.sock")
        self.env = environment(WEIGHTD_SOCKET=self.socket, **(env or {}))
        self.command = [*prefix, program or features.BUILD / "weightd", "--socket", self.socket, *args]
        self.started = []
        self.proc = None
        try:
            self.start()
        except BaseException:
            if self.proc:
                self.proc.kill()
                self.proc.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def start(self):
        """Also starts a daemon anew that was stopped or killed."""
        with open(self.folder / "log", "ab") as log:
            self.proc = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL,
                                         stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self.is_serving():
            assert self.proc.poll() is None, f"weightd exited with {self.proc.returncode}:\n{self.log}"
            assert time.monotonic() < deadline, f"weightd does not serve in {START_S} s:\n{self.log}"
            time.sleep(0.002)  # nothing to wait on before the socket is there

    def is_serving(self):
        """True if it accepts connections, and has closed ours again, so that no test sees it."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(START_S)
            try:
                s.connect(self.socket)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass  # it may refuse further connections
                return True
            except OSError:
                return False

    @property
    def pid(self):
        return self.proc.pid

    @property
    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def ctl(self, *args, check=True, input=None, text=True, timeout=60, env=None, **kw):
        """Runs weightctl to its end; text=False for bytes. A failure shows both outputs."""
        done = subprocess.run(self.ctl_command(args), env=self.env | (env or {}), input=input,
                              stdin=None if input is not None else subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=text,
                              timeout=timeout, **kw)
        errors = done.stderr if text else done.stderr.decode(errors="replace")
        assert done.returncode not in (SANITIZER_EXIT, -signal.SIGABRT, -signal.SIGSEGV), errors
        assert not check or done.returncode == 0, \
            f"weightctl {' '.join(map(str, args))} exited with {done.returncode}:\n" \
            f"{done.stdout}\n{errors}\nweightd said:\n{self.log}"
        return done

    def spawn(self, *args, **kw):
        """Starts weightctl and leaves it running, to the end of the test at most."""
        kw = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kw
        self.started.append(subprocess.Popen(self.ctl_command(args), env=self.env, **kw))
        return self.started[-1]

    @staticmethod
    def ctl_command(args):
        return [features.BUILD / "weightctl", *map(str, args)]

    def rss(self):
        """Resident bytes, those of shared mappings included."""
        return int(re.search(r"VmRSS:\s+(\d+) kB", self.status()).group(1)) * 1024

    def rss_anon(self):
        """Resident bytes of its own heap and stacks."""
        return int(re.search(r"RssAnon:\s+(\d+) kB", self.status()).group(1)) * 1024

    def status(self):
        return pathlib.Path(f"/proc/{self.pid}/status").read_text()

    def cpu_s(self):
        """Seconds that it has been computing, all threads together; exact, unlike those of /proc."""
        return time.clock_gettime(~self.pid << 3 | 2)  # as clock_getcpuclockid() returns it

    def rests(self, wire):
        """True if no thread but the first has work: what the loop gave them before a ping was done. Not while one is stuck."""
        for _ in range(2):  # the second ping is behind what the loop does once they are done
            wire.ping()
            for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir():
                if int(task.name) != self.pid and (task / "stat").read_text().rpartition(")")[2].split()[0] != "S":
                    return False
        return True

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def kill(self, sig=signal.SIGKILL):
        """Kills the daemon on purpose and reaps it."""
        self.proc.send_signal(sig)
        self.proc.wait(STOP_S)

    def stop(self):
        """SIGTERM; the daemon has to end with 0."""
        self.proc.terminate()
        try:
            self.proc.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise AssertionError(f"weightd did not end {STOP_S} s after SIGTERM:\n{self.log}") from None
        assert self.proc.returncode == 0, f"weightd ended with {self.proc.returncode}:\n{self.log}"

    def close(self):
        try:
            if self.proc.returncode is None:
                assert self.proc.poll() is None, \
                    f"weightd had exited with {self.proc.returncode} before the test ended:\n{self.log}"
                self.stop()
            assert not REPORT.search(self.log), self.log
        finally:
            for proc in self.started:
                proc.kill()
                proc.communicate()
            shutil.rmtree(self.folder, ignore_errors=True)

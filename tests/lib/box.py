"""
A throw-away machine: a real systemd as PID 1, on an overlay of this machine's own root.

It lives in name spaces of its own, so that nothing of it can stay behind: its mounts exist in no other
mount name space, and its processes are in a PID name space. The first process there dies when this process does,
however that ends. Only empty cgroups can be left, by a process that was killed; the next box removes them.
"""
import contextlib
import errno
import functools
import itertools
import json
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PATIENCE_S = int(os.environ.get("WEIGHTD_BOX_PATIENCE_S", 60))  # more in a machine that is emulated
BOOT_S = PATIENCE_S
CGROUPS = pathlib.Path("/sys/fs/cgroup")
PREFIX = "weightd-box-"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_serial = itertools.count()

# Runs as the first process of the new name spaces. /run becomes an empty one: nspawn's own traces go there,
# and an overlay over / has to have its upper half on another file system. Pure cgroup v2 inside, whatever
# there is outside, for a service manager of today. No timers: apt's would wake up.
INSIDE = """
set -e
name=$1 files=$2 target=$3
shift 3
for group; do echo 0 >"$group/cgroup.procs"; done
mount -t tmpfs -o mode=755,size=2g weightd-box /run
mkdir /run/upper /run/work /run/root
mount -t overlay -o lowerdir=/,upperdir=/run/upper,workdir=/run/work weightd-box /run/root
[ -z "$files" ] || cp -a "$files"/* /run/root/
rm -f /run/root/usr/sbin/policy-rc.d /run/root/etc/machine-id
: >/run/root/etc/machine-id
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 exec systemd-nspawn --quiet --boot --notify-ready=yes --register=no \\
	--capability=CAP_BPF,CAP_PERFMON --system-call-filter="bpf perf_event_open" \\
	--keep-unit --machine="$name" --directory=/run/root --console=pipe --private-network \\
	systemd.unit=$target systemd.mask=timers.target
"""


def hierarchies():
    """The folders in which a box needs a cgroup: of the two hierarchies that systemd wants, or of the only one."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [CGROUPS / "systemd", CGROUPS / "unified"]


def is_in_chroot():
    """A box in one would mount on the file system of the machine, and write there."""
    try:
        return not os.path.samefile("/", "/proc/1/root")
    except PermissionError:  # the first process forbids to look
        return False


def may_mount():
    return subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0


@functools.cache
def is_available():
    programs = "systemd-nspawn", "systemctl", "unshare", "nsenter", "setpriv"
    return os.geteuid() == 0 and not is_in_chroot() and all(shutil.which(p, path=PATH) for p in programs) and \
        pathlib.Path("/lib/systemd/systemd").exists() and \
        all(os.access(h / "cgroup.procs", os.W_OK) for h in hierarchies()) and may_mount()


def cgroups(name):
    return [h / name for h in hierarchies()]


def remove_cgroup(path):
    """With all below it. Its processes have ended, but the kernel may still work on it, and reports no end of that."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            for folder, _, _ in os.walk(path, topdown=False):
                os.rmdir(folder)
            return
        except OSError as e:
            if e.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def remove_stale_cgroups():
    """Cgroups that killed runs have left: their names have the PIDs of those runs."""
    for path in itertools.chain.from_iterable(h.glob(PREFIX + "*") for h in hierarchies()):
        if not pathlib.Path("/proc", path.name.removeprefix(PREFIX).split("-")[0]).exists():
            with contextlib.suppress(FileNotFoundError):  # another run sees it too
                remove_cgroup(path)


def child_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Box:
    """
    with Box(files) as box:
        box.run("systemctl", "start", "weightd.service")

    The content of the folder `files` is put over the root, before it boots to `target`. name: of its cgroups, too. leader: PID of its
    systemd, as seen from here. To be made by a thread that lives as long as it, as the main thread does:
    the box ends with the thread.
    """

    def __init__(self, files=None, target="basic.target"):
        self.name = f"{PREFIX}{os.getpid()}-{next(_serial)}"
        self.proc = self.init = self.leader = None
        self.forgotten = None  # cursor of the newest such entry of the journal
        remove_stale_cgroups()
        try:
            self.boot(files, target)
        except BaseException:
            self.close()
            raise

    def boot(self, files, target):
        for group in cgroups(self.name):
            group.mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, tempfile.TemporaryFile("w+") as log:
            notify.bind("\0" + self.name)
            self.proc = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL",
                 "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                 "sh", "-c", INSIDE, "sh", self.name, files or "", target, *cgroups(self.name)],
                env={"PATH": PATH, "LANG": "C.UTF-8", "NOTIFY_SOCKET": "@" + self.name},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            booted = self.wait_for_boot(notify)
            log.seek(0)
            assert booted, f"{self.name} does not boot:\n{log.read()}"
        self.init = child_of(self.proc.pid)
        self.leader = child_of(self.init)

    def wait_for_boot(self, notify):
        """Until its systemd has started all; False if it ends before, or takes too long."""
        deadline = time.monotonic() + BOOT_S
        poll = select.poll()
        poll.register(notify, select.POLLIN)
        end = os.pidfd_open(self.proc.pid)
        try:
            poll.register(end, select.POLLIN)
            while (left := deadline - time.monotonic()) > 0:
                ready = [fd for fd, _ in poll.poll(left * 1000)]
                if notify.fileno() in ready and b"READY=1" in notify.recv(4096).split(b"\n"):
                    return True
                if end in ready:
                    return False
            return False
        finally:
            os.close(end)

    def close(self):
        """Pulls the plug. All of its processes have ended when the first one has."""
        if self.proc and self.proc.poll() is None:
            os.kill(self.init or self.proc.pid, signal.SIGKILL)
            self.proc.wait(PATIENCE_S)
        for group in cgroups(self.name):
            if group.exists():
                remove_cgroup(group)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def command(self, *args, user="root"):
        """The words before a command that runs in the box, as a user of the box with all groups it has there."""
        enter = ["nsenter", "-t", self.leader, "-m", "-r", "-u", "-i", "-n", "-p", "-C", "--",
                 "env", "-i", "-C", "/", f"PATH={PATH}", "LANG=C.UTF-8"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        return [str(a) for a in (*enter, *(become if user != "root" else ()), *args)]

    def run(self, *args, user="root", check=True, timeout=PATIENCE_S, **kw):
        """Runs a command in the box to its end. A failure shows both outputs and the journal."""
        kw = {"text": True, "stdin": subprocess.DEVNULL} | ({} if "input" not in kw else {"stdin": None}) | kw
        done = subprocess.run(self.command(*args, user=user), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=timeout, **kw)
        assert not check or done.returncode == 0, \
            f"{' '.join(map(str, args))} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}\n" \
            f"The journal says:\n{self.journal_text()}"
        return done

    def spawn(self, *args, user="root", **kw):
        """Starts a command in the box and leaves it running, to the end of the box at most."""
        kw = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | kw
        return subprocess.Popen(self.command(*args, user=user), **kw)

    def path(self, inside):
        """The same file, seen from here."""
        return pathlib.Path(f"/proc/{self.leader}/root") / inside.lstrip("/")

    def show(self, unit, prop):
        """A property of a unit, as text."""
        return self.run("systemctl", "show", "--value", "-p", prop, unit).stdout.strip()

    def journal(self, *match):
        """Entries as dicts, e.g. of "_SYSTEMD_UNIT=weightd.service"."""
        self.run("journalctl", "--sync")
        # With a match, --after-cursor leaves out the first entry that matches, too.
        begin = ["--cursor", self.forgotten] if self.forgotten else []
        entries = map(json.loads, self.run("journalctl", "-o", "json", "--all", *begin, *match).stdout.splitlines())
        return [entry for entry in entries if entry["__CURSOR"] != self.forgotten]

    def newest(self):
        """The cursor of the newest entry of the journal."""
        self.run("journalctl", "--sync")
        return json.loads(self.run("journalctl", "-n", "1", "-o", "json", "--output-fields=MESSAGE").stdout)["__CURSOR"]

    def forget_journal(self):
        """Entries until now are no part of journal() any more."""
        self.forgotten = self.newest()

    @contextlib.contextmanager
    def expect(self, pattern):
        """At the end of the block, waits until the journal has such a line, written since its beginning."""
        start = self.newest()
        yield
        with self.spawn("journalctl", "--follow", "--no-tail", "-o", "cat", "--after-cursor", start, bufsize=0, text=False) as proc:
            deadline, seen = time.monotonic() + PATIENCE_S, b""
            while not re.search(pattern.encode(), seen):
                left = max(0, deadline - time.monotonic())
                assert select.select([proc.stdout], [], [], left)[0], \
                    f"nothing like {pattern!r} in the journal:\n{self.journal_text()}"
                seen += os.read(proc.stdout.fileno(), 65536)
            proc.kill()

    def drop_in(self, unit, text):
        """Makes this the only drop-in of a unit, by us; none if there is no text."""
        path = self.path(f"/etc/systemd/system/{unit}.d/test.conf")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.run("systemctl", "daemon-reload")

    def journal_text(self, n_lines=60):
        done = subprocess.run(self.command("journalctl", "-o", "short-monotonic", "-n", n_lines),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
        return done.stdout + done.stderr

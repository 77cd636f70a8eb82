"""
A program under a keeper that does what a test tells it: each packet from the socket in $KEPT_TEST is an
expression, and what it is worth goes back as JSON. It must run with nothing but the standard library.
"""
import ctypes
import hashlib
import json
import os
import select
import signal
import socket
import sys

FIRST = 3
libc = ctypes.CDLL(None)


def notify(lines, fds=()):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect(os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1))
        socket.send_fds(s, [lines.encode()], fds)
    return True


def memfd(data):
    fd = os.memfd_create("kept")
    os.write(fd, data)
    return fd


def content(name, size=4096):
    return hashlib.shake_128(name.encode()).digest(size)


def store(name, *fds):
    return notify(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", fds)


def remove(*names):
    return all(notify(f"FDSTOREREMOVE=1\nFDNAME={name}") for name in names)


def barrier():
    """Returns when the keeper has closed the other end."""
    ours, theirs = os.pipe()
    notify("BARRIER=1", [theirs])
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    return True


def store_files(*names, size=4096):
    """One memfd for each name, whose bytes tell the name."""
    for name in names:
        fd = memfd(content(name, size))
        store(name, fd)
        os.close(fd)
    return barrier()


def listed():
    """(name, descriptor) of all that was passed, or None where they are meant for another."""
    if os.environ.get("LISTEN_PID", str(os.getpid())) != str(os.getpid()):
        return None
    n = int(os.environ.get("LISTEN_FDS", 0))
    names = os.environ["LISTEN_FDNAMES"].split(":") if n else []
    assert len(names) == n, (len(names), n)
    return list(zip(names, range(FIRST, FIRST + n)))


def names():
    return sorted(name for name, _ in listed())


def intact(size=4096):
    """How many of the files passed hold what store_files() wrote, to the last byte."""
    return sum(os.fstat(fd).st_size == size and os.pread(fd, size, 0) == content(name, size)
               for name, fd in listed())


def open_fds():
    """All descriptors but that of the folder that lists them, and of our own socket."""
    return sorted(int(fd) for fd in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{fd}") and int(fd) != test.fileno())


def in_a_fork(act):
    """What a child of ours returns as its status: another sender for the keeper."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(act() or 0))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def orphan():
    """Leaves behind a process that ends when nobody of ours waits for it any more."""
    def act():
        if os.fork() == 0:
            os._exit(0)
    return in_a_fork(act)


def on_signal(signo, _):
    test.send(json.dumps(["signal", signo]).encode())


def hear():
    """A signal that comes just before recv() would be handled after it only: it makes `awake` readable too."""
    while test not in select.select([test, awake], [], [])[0]:
        awake.recv(64)
    return test.recv(65536)


test = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
awake, alarm = socket.socketpair()
alarm.setblocking(False)
signal.set_wakeup_fd(alarm.fileno())
for signo in signal.SIGUSR1, signal.SIGUSR2:
    signal.signal(signo, on_signal)
for signo in signal.SIGTERM, signal.SIGINT:
    signal.signal(signo, lambda *_: os._exit(int(os.environ.get("KEPT_STATUS", "0"))))
test.connect(os.environ["KEPT_TEST"])
test.send(json.dumps(os.getpid()).encode())
while packet := hear():
    test.send(json.dumps(eval(packet)).encode())
sys.exit(9)  # the test has gone

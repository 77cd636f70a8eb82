"""
A program under a keeper that runs a test's commands: each packet from the socket in $KEPT_TEST is an
expression, and its value is sent back as JSON. It must run with nothing but the standard library.
"""
import ctypes
import hashlib
import json
import os
import signal
import socket
import sys
import threading

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
    """One memfd for each name, with bytes that encode the name."""
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
    """The exit status of a child of ours: another sender for the keeper."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(act() or 0))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def orphan():
    """Leaves behind a process that ends when none of our processes waits for it any more."""
    def act():
        if os.fork() == 0:
            os._exit(0)
    return in_a_fork(act)


def tell(signo):
    test.send(json.dumps(["signal", signo]).encode())


def end(signo):
    os._exit(int(os.environ.get("KEPT_STATUS", "0")))


def be_killed(signo):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signo])
    os.kill(os.getpid(), signo)


def hear_signals():
    """Runs on a thread: a handler would run after the recv() that its signal was sent right before."""
    while True:
        signo = signal.sigwait(on)
        on[signo](signo)


on = {signal.SIGUSR1: tell, signal.SIGUSR2: tell, signal.SIGTERM: end, signal.SIGINT: end}
signal.pthread_sigmask(signal.SIG_BLOCK, on)
test = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
threading.Thread(target=hear_signals, daemon=True).start()
test.connect(os.environ["KEPT_TEST"])
test.send(json.dumps(os.getpid()).encode())
while packet := test.recv(65536):
    test.send(json.dumps(eval(packet)).encode())
sys.exit(9)  # the test has ended

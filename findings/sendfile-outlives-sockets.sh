#!/bin/bash
# Pages of a file that sendfile() gave to TCP stay in use after the receiver has read them and both sockets are closed.
#
# Over loopback or veth the receiver's socket holds the pages of the file themselves. When the receiver has read them on
# another CPU than the sender's, the kernel (since 5.19) does not free the packet at once. It puts the packet on a list of
# the CPU that allocated it, and that CPU empties the list when it receives its next packet, of whatever connection. On a
# quiet CPU this takes seconds, or for ever. Nothing shows the reference: neither socket nor process exists any more.
# For a memfd this means that fcntl(F_ADD_SEALS, F_SEAL_WRITE) fails with EBUSY, although no process maps it writable.
# One packet that the CPU sends to itself ends it. So does net.core.skb_defer_max=0 beforehand; the default is 64 or 128.
#
# Seen on Linux 6.18 (x86-64, net.core.skb_defer_max 64), Python 3.11 of Debian 12, on a quiet machine:
#   both ends on one CPU: 0 of 20 seals refused
#   the receiver on another CPU: 20 of 20 seals refused, each until its CPU got a packet
# The second number depends on what else the machine receives. The script fails if it is 0, or the first one is not.
set -euo pipefail

[ "$(nproc)" -gt 1 ] || { echo "needs two CPUs" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/seal.py" <<'PYTHON'
import errno
import fcntl
import os
import socket
import sys

F_ADD_SEALS, F_SEAL_WRITE = 1033, 8
SIZE, ROUNDS = 65536, 20
SENDER, OTHER = sorted(os.sched_getaffinity(0))[:2]


def pass_on(cpu):
    """A memfd whose bytes went through a connection that is closed by now."""
    fd = os.memfd_create("pages", os.MFD_ALLOW_SEALING)
    os.pwrite(fd, bytes(SIZE), 0)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as out:
        with listener.accept()[0] as into:
            os.sched_setaffinity(0, {SENDER})
            sent = 0
            while sent < SIZE:
                sent += os.sendfile(out.fileno(), fd, sent, SIZE - sent)
            os.sched_setaffinity(0, {cpu})
            left = SIZE
            while left:
                left -= len(into.recv(left))
    return fd


def is_sealed(fd):
    try:
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def receive_one():
    """On the CPU whose list the packets are on."""
    os.sched_setaffinity(0, {SENDER})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind(("127.0.0.1", 0))
        own.sendto(b"x", own.getsockname())
        own.recv(1)


def refused(cpu):
    n = 0
    for _ in range(ROUNDS):
        fd = pass_on(cpu)
        if not is_sealed(fd):
            n += 1
            receive_one()
            assert is_sealed(fd), "refused after its CPU got a packet, too"
        os.close(fd)
    return n


here, there = refused(SENDER), refused(OTHER)
print(f"both ends on one CPU: {here} of {ROUNDS} seals refused")
print(f"the receiver on another CPU: {there} of {ROUNDS} seals refused, each until its CPU got a packet")
sys.exit(here != 0 or there == 0)
PYTHON
/usr/bin/python3 "$folder/seal.py"

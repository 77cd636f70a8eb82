"""
Descriptors of memory that one process hands another, as programs at functions of the kernel see them.

A kernel may let no program see its functions; test_guest.py runs these tests on one that does.
"""
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

import pytest
from bpf.probing import CAPABLE, NOBODY, Process, acts, until
from bpf.test_life import exists, kernel_objects
from lib import features, kernel
from lib.daemon import Daemon
from lib.features import BUILD
from lib.scene import publish
from lib.tracing import Client, Tracer, pair
from lib.wire import PAGE, Wire

pytestmark = pytest.mark.probes

PROGRAMS = {"on_fds_copy", "on_fds_send", "on_fds_come", "on_fds_came", "on_fd_take", "on_fd_receive"}
KINDS = {"stream": socket.SOCK_STREAM, "seqpacket": socket.SOCK_SEQPACKET, "dgram": socket.SOCK_DGRAM}
SIZE = 5 << 20
PIDFD_OPEN, PIDFD_GETFD = 434, 438  # on every machine
OF_USER_MAX = 4096  # PASSED_OF_USER_MAX
SO_TIMESTAMP = 29
UDMABUF_CREATE = 0x40187542
SEALS = 1033, 2  # F_ADD_SEALS, F_SEAL_SHRINK
CREATE_DUMB, PRIME_HANDLE_TO_FD = 0xc02064b2, 0xc00c642d
DMA_BUF_SIZE = 1 << 20
# Devices that make a dma-buf of memory, and code for each; the second may have others of the same name, of hardware.
EXPORTERS = {
    "/dev/udmabuf": f"""
import fcntl, struct
def export():
    memory = make("below", {DMA_BUF_SIZE}, os.MFD_ALLOW_SEALING)
    fcntl.fcntl(memory, *{SEALS})
    with open("/dev/udmabuf", "rb") as device:
        # ioctl() returns the descriptor only if it may write to the argument.
        return fcntl.ioctl(device, {UDMABUF_CREATE}, bytearray(struct.pack("IIQQ", memory, 0, 0, {DMA_BUF_SIZE})))
""",
    "/sys/devices/platform/vgem": f"""
import fcntl, glob, struct
def export():
    with open("/dev/dri/" + os.path.basename(glob.glob("/sys/devices/platform/vgem/drm/card*")[0]), "r+b", buffering=0) as device:
        dumb = fcntl.ioctl(device, {CREATE_DUMB}, struct.pack("6IQ", {DMA_BUF_SIZE} // 4096, 1024, 32, 0, 0, 0, 0))
        return struct.unpack("IIi", fcntl.ioctl(device, {PRIME_HANDLE_TO_FD}, struct.pack("IIi", struct.unpack("6IQ", dumb)[4], 0, 0)))[2]
""",
}

CODE = """
import ctypes
sockets = {{fd: socket.socket(fileno=fd) for fd in {fds}}}
def make(name="weights", size={size}, flags=0):
    fd = os.memfd_create(name, flags)
    os.ftruncate(fd, size)
    return fd
def send(to, *fds):
    socket.send_fds(sockets[to], [b"x"], fds)
    return os.fstat(fds[0]).st_ino
def receive(of, flags=0):  # recv_fds() of Python 3.11 forgets the flags
    _, [(_, _, data)], _, _ = sockets[of].recvmsg(1, socket.CMSG_LEN(253 * 4), flags)
    return list(memoryview(data).cast("i"))
def take(pid, fd):
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    return syscall({getfd}, syscall({open}, pid, 0), fd, 0)
"""


@pytest.fixture(scope="module")
def tracer():
    """One for all that want no other: where the machine is emulated, it takes seconds to start."""
    features.require("fentry")
    with Tracer(probes=True) as t:
        yield t


@pytest.fixture
def client(tracer):
    with Client(tracer.socket) as c:
        yield c


@pytest.fixture
def start():
    """start(*sockets): a process that has these."""
    with contextlib.ExitStack() as stack:
        def begin(*sockets, **kw):
            fds = [s.fileno() for s in sockets]
            code = CODE.format(fds=fds, size=SIZE, getfd=PIDFD_GETFD, open=PIDFD_OPEN)
            return stack.enter_context(contextlib.closing(Process(code, fds=fds, **kw)))

        yield begin


@pytest.fixture
def joined():
    """joined(kind): two sockets that are connected."""
    with contextlib.ExitStack() as stack:
        yield lambda kind=socket.SOCK_STREAM: [stack.enter_context(s) for s in socket.socketpair(socket.AF_UNIX, kind)]


def received(client, *processes):
    """The events about these."""
    return [act for act in acts(client, act="fd_receive") if act["pid"] in [p.pid for p in processes]]


def from_whom(client, process):
    return [act["from"] and act["from"]["pid"] for act in received(client, process)]


def hand(a, sock, b, other, what="make()"):
    """Hands a descriptor from a to b. Returns its number in b."""
    a.do(f"fd = {what}; ret = send({sock.fileno()}, fd)")
    return b.do(f"fd = receive({other.fileno()})[0]; ret = fd")


# --- Events ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_is_handed_over_is_told_of(client, start, joined, kind):
    one, other = joined(KINDS[kind])
    a, b = start(one), start(other)
    before = time.monotonic_ns()
    inode = a.do(f"ret = send({one.fileno()}, make())")
    between = time.monotonic_ns()
    fd = b.do(f"[ret] = receive({other.fileno()})")
    [act] = received(client, b)
    assert before < act["from"].pop("ns") < between < act.pop("ns") < time.monotonic_ns()
    del act["number"]
    assert act == {"kind": "acted", "act": "fd_receive", "took_ns": None, "pid": b.pid, "tid": b.pid, "uid": 0,
                   "comm": "python3", "fd": fd, "memory": "memfd", "name": "weights", "bytes": SIZE, "inode": inode,
                   "by": "message", "from": {"pid": a.pid, "uid": 0, "comm": "python3"}}
    assert received(client, a) == []


def test_who_observes_is_told_at_once(client, start, joined):
    one, other = joined()
    a, b = start(one), start(other)
    client.ask("observe")
    hand(a, one, b, other)
    while (told := client.hear()).get("pid") != b.pid:
        pass
    assert (told["kind"], told["act"], told["from"]["pid"]) == ("act", "fd_receive", a.pid)


def test_each_who_got_it_is_told_and_from_whom(client, start, joined):
    """A process that got it from one of these is included."""
    pairs = [joined() for _ in range(4)]
    a = start(*(one for one, _ in pairs[:3]))
    b, c, d = (start(other, *more) for (_, other), more in zip(pairs, ([pairs[3][0]], [], [])))
    e = start(pairs[3][1])
    a.do("fd = make()")
    for (one, other), process in zip(pairs[:3], (b, c, d)):
        hand(a, one, process, other, "fd")
    hand(b, pairs[3][0], e, pairs[3][1], "fd")
    assert [from_whom(client, p) for p in (b, c, d, e)] == [[a.pid], [a.pid], [a.pid], [b.pid]]
    assert len({act["inode"] for act in received(client, b, c, d, e)}) == 1


def test_who_sends_the_same_at_the_same_time_is_not_mixed_up(client, start, joined):
    pairs = [joined() for _ in range(3)]
    (to_b, at_b), (to_c, at_c), (to_d, at_d) = pairs
    a, b, c, d = start(to_b, to_c), start(at_b, to_d), start(at_c), start(at_d)
    hand(a, to_b, b, at_b)
    b.do(f"send({to_d.fileno()}, fd)")
    a.do(f"send({to_c.fileno()}, fd)")
    d.do(f"receive({at_d.fileno()})")
    c.do(f"receive({at_c.fileno()})")
    assert (from_whom(client, c), from_whom(client, d)) == ([a.pid], [b.pid])


def test_one_message_has_many(client, start, joined):
    one, other = joined()
    a, b = start(one), start(other)
    a.do(f"many = [make(f'n{{i}}', i << 20) for i in range(253)]; send({one.fileno()}, *many)")
    fds = b.do(f"ret = receive({other.fileno()})")
    told = received(client, b)
    assert [(act["fd"], act["name"], act["bytes"]) for act in told] == [(fd, f"n{i}", i << 20) for i, fd in enumerate(fds)]
    assert {act["from"]["pid"] for act in told} == {a.pid} and len(told) == 253


def test_who_only_looks_has_got_it_too(client, start, joined):
    """The message stays, with all of its descriptors."""
    one, other = joined()
    a, b = start(one), start(other)
    a.do(f"send({one.fileno()}, make())")
    fds = [b.do(f"[ret] = receive({other.fileno()}, socket.MSG_PEEK)") for _ in range(2)] + [b.do(f"[ret] = receive({other.fileno()})")]
    told = received(client, b)
    assert [(act["fd"], act["from"]["pid"]) for act in told] == [(fd, a.pid) for fd in fds] and len(set(fds)) == 3


def test_what_is_taken_out_of_a_process_is_told(client, start):
    a, b = start(), start()
    fd = a.do("ret = make()")
    taken = b.do(f"ret = take({a.pid}, {fd})")
    b.do(f"ret = take({a.pid}, 999)")
    [act] = received(client, b)
    assert (act["fd"], act["by"], act["from"]["pid"], act["from"]["comm"]) == (taken, "pidfd_getfd", a.pid, "python3")
    assert act["from"]["ns"] <= act["ns"]


def test_who_sent_before_anybody_looked_is_not_known(start, joined):
    features.require("fentry")
    one, other = joined()
    a, b = start(one), start(other)
    a.do(f"fd = make(); send({one.fileno()}, fd)")
    with Tracer(probes=True) as tracer:
        client = tracer.client()
        b.do(f"receive({other.fileno()}, socket.MSG_PEEK)")
        b.do(f"receive({other.fileno()})")
        hand(a, one, b, other, "fd")
        assert from_whom(client, b) == [None, None, a.pid]
        assert {act["by"] for act in received(client, b)} == {"message"}


def test_who_sent_in_vain_is_nobodys_giver(client, start, joined):
    """The places of the kernel's lists that are never received are reused for those of others."""
    one, other = joined(socket.SOCK_DGRAM)
    a, b, c = start(one), start(other), start(one)
    for _ in range(50):
        c.do("gone, rest = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); socket.send_fds(gone, [b'x'], [make()] * 3)")
        hand(a, one, b, other)
    assert from_whom(client, b) == [a.pid] * 50 and received(client, c) == []


def test_who_else_got_what_weightd_gave_is_seen(client, start, joined):
    one, other = joined()
    worker, stranger = start(one), start(other)
    with contextlib.closing(Daemon()) as daemon:
        with Wire(daemon.socket) as w:
            publish(w)
        worker.do(f"from lib.wire import Wire; w = Wire({daemon.socket!r}); fd = w.attach('m').slot_fd")
        hand(worker, one, stranger, other, "fd")
        given, [passed_on] = received(client, worker), received(client, stranger)
        assert {act["from"]["pid"] for act in given} == {daemon.pid}
        assert passed_on["inode"] in {act["inode"] for act in given}
        assert (passed_on["from"]["pid"], passed_on["bytes"] >= PAGE) == (worker.pid, True)
        worker.close()


# --- Kinds of descriptors ----------------------------------------------------------------------------


def test_what_is_no_memory_is_not_told(client, start, joined):
    one, other = joined()
    a, b = start(one), start(other)
    hand(a, one, b, other, "os.pipe()[0]")
    hand(a, one, b, other, "ctypes.CDLL(None).eventfd(0, 0)")
    hand(a, one, b, other, "socket.socket().detach()")
    hand(a, one, b, other, f"os.open({str(BUILD / 'weightd')!r}, os.O_RDONLY)")
    hand(a, one, b, other, "os.open('/dev/shm', os.O_RDONLY)")
    hand(a, one, b, other, "os.open('/dev/null', os.O_RDONLY)")
    hand(a, one, b, other, "make('after')")
    assert [act["name"] for act in received(client, b)] == ["after"]


def test_memory_of_each_kind_is_called_by_it(client, start, joined):
    one, other = joined()
    a, b = start(one), start(other)
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="memfd:") as f:
        f.truncate(1000)
        hand(a, one, b, other, f"os.open({f.name!r}, os.O_RDONLY)")
        os.unlink(f.name)
        hand(a, one, b, other, "fd")
        open(f.name, "w").close()  # NamedTemporaryFile removes it again
    hand(a, one, b, other, "make('huge', 4 << 20, os.MFD_HUGETLB)")
    name = os.path.basename(f.name)
    assert [(act["memory"], act["name"], act["bytes"]) for act in received(client, b)] == [
        ("tmpfs", name, 1000), ("tmpfs", name, 1000), ("hugetlb", "huge", 4 << 20)]


def test_a_dma_buf_is_told(client, start, joined):
    exporter = next(filter(os.path.exists, EXPORTERS), None)
    features.require("dma-buf", f"nothing that makes a dma-buf of memory: {' or '.join(EXPORTERS)} (modprobe vgem)", exporter)
    one, other = joined()
    a, b = start(one), start(other)
    a.do(EXPORTERS[exporter])
    hand(a, one, b, other, "export()")
    [act] = received(client, b)
    assert (act["memory"], act["name"], act["bytes"]) == ("dma-buf", None, DMA_BUF_SIZE)


@pytest.mark.parametrize("name, told", [("x" * 249, "x" * 249), ("\\n\\x1b[31m", "\n\x1b[31m"), ("\\udcff", None), ("", None)],
                         ids=["long", "control", "no-utf8", "none"])
def test_any_name_is_borne(client, tracer, start, joined, name, told):
    one, other = joined()
    a, b = start(one), start(other)
    hand(a, one, b, other, f"make('{name}')")
    [act] = received(client, b)
    assert act["name"] == told
    log = subprocess.run([BUILD / "weightctl", "trace", "log", "--pid", str(b.pid)], env=tracer.env, capture_output=True, text=True)
    assert log.returncode == 0 and "\x1b" not in log.stdout and len(log.stdout.splitlines()) == 2


# --- Owners ------------------------------------------------------------------------------------------


AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def test_users_are_told(client, start, joined):
    one, other = joined()
    a, b = start(one, prefix=AS_NOBODY), start(other, prefix=["setpriv", "--reuid=12345", "--clear-groups"])
    hand(a, one, b, other)
    [act] = received(client, b)
    assert (act["uid"], act["from"]["uid"]) == (12345, NOBODY)


FLOOD = """
fds = [make()] * 250
def flood(n):
    for _ in range(n // 250):
        send({one}, *fds)
        for fd in receive({other}):
            os.close(fd)
"""


def lost_until(client, n):
    """The number of losses in gaps, once there are `n`."""
    lost = 0
    while lost < n:
        packet = client.followed.popleft() if client.followed else client.hear()
        if packet["kind"] == "gap" and packet["source"] == "descriptors":
            lost += packet["lost"]
    return lost


def test_what_there_is_no_room_for_is_counted(start, joined):
    features.require("fentry")
    one, other = joined()
    process, n = start(one, other), 1000
    process.do(FLOOD.format(one=one.fileno(), other=other.fileno()))
    with Tracer("--ring=4K", probes=True) as tracer:
        client = tracer.client()
        client.ask("observe")
        os.kill(tracer.proc.pid, signal.SIGSTOP)
        process.do(f"flood({n})")
        os.kill(tracer.proc.pid, signal.SIGCONT)
        n_told = len(received(client, process))
        assert 0 < n_told < 100
        assert lost_until(client, n - n_told) == n - n_told
        counted = next(row for row in client.ask("metrics") if row["metric"] == "weightd_trace_lost_events")
        assert {"labels": {"source": "descriptors"}, "value": n - n_told} in counted["samples"], counted


def test_who_passes_too_much_takes_no_room_of_others(client, start, joined):
    one, other = joined()
    a, b = start(one), start(other)
    hand(a, one, b, other)
    mine = joined()
    somebody = start(*mine, prefix=["setpriv", "--reuid=12345", "--clear-groups"])
    somebody.do(FLOOD.format(one=mine[0].fileno(), other=mine[1].fileno()))
    client.ask("observe")
    somebody.do(f"flood({5 * OF_USER_MAX})")
    assert 0 < len(received(client, somebody)) < OF_USER_MAX  # as many acts are kept
    assert lost_until(client, 1)
    assert len(received(client, b)) == 1
    hand(a, one, b, other)
    assert len(received(client, b)) == 2


# --- The tracer --------------------------------------------------------------------------------------


def runs(tracer):
    return {name: n for name, (n, _) in kernel.runs(tracer.proc.pid).items() if name in PROGRAMS}


def test_a_message_without_descriptors_runs_nothing(client, tracer, joined):
    """Over TCP, or a Unix socket; nor does one for other control data that is received."""
    one, other = joined()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    other.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    with pair() as (a, b), kernel.counting_runs():
        before = runs(tracer)
        for _ in range(2000):
            for x, y in (one, other), (a, b):
                x.sendmsg([b"x"])
                y.recvmsg(1, 1000)
        after = runs(tracer)
        assert set(before) == PROGRAMS and after == before
        socket.send_fds(one, [b"x"], [0])
        [fd] = [memoryview(data).cast("i")[0] for _, kind, data in other.recvmsg(1, 1000)[1] if kind == socket.SCM_RIGHTS]
        os.close(fd)
        counted = {name: n - before[name] for name, n in runs(tracer).items()}
    del counted["on_fds_copy"]  # the kernel decides how often it runs
    assert counted == {"on_fds_send": 1, "on_fds_come": 1, "on_fd_receive": 1, "on_fds_came": 1, "on_fd_take": 0}


def test_two_capabilities_suffice(start, joined):
    features.require("fentry")
    one, other = joined()
    a, b = start(one), start(other)
    with Tracer(prefix=CAPABLE, uid=NOBODY, probes=True) as tracer:
        hand(a, one, b, other)
        assert from_whom(tracer.client(), b) == [a.pid]


def rows(tracer):
    return [(row["on"], row["why"]) for row in tracer.client().ask("doctor") if row.get("hook") == "fexit/receive_fd"]


def test_without_rights_it_is_off():
    features.require("root")
    features.require("trace")
    with Tracer(prefix=AS_NOBODY, uid=NOBODY, probes=True) as tracer:
        assert rows(tracer) == [(False, "weightd-trace lacks CAP_BPF and CAP_PERFMON, which its unit and root have")]


def test_it_is_off_with_the_probes(start, joined):
    features.require("bpf")
    one, other = joined()
    a, b = start(one), start(other)
    with Tracer("--probes=off") as tracer:
        hand(a, one, b, other)
        assert received(tracer.client(), b) == []
        assert rows(tracer) == [(False, "weightd-trace was started with --probes=off")]


@pytest.mark.parametrize("name", ["scm_fp_dup", "receive_fd"])
def test_a_kernel_without_such_a_function_is_done_without(name, tmp_path):
    """Its description says so: here the description has another name for the function."""
    features.require("bpf")
    if name == "receive_fd":  # the last that is looked for: the kernel is asked for others before
        features.require("fentry")
    described = pathlib.Path("/sys/kernel/btf/vmlinux").read_bytes()
    (tmp_path / "vmlinux").write_bytes(described.replace(name.encode() + b"\0", name.upper().encode() + b"\0"))
    hide = ["unshare", "-m", "sh", "-c", f'mount --bind {tmp_path}/vmlinux /sys/kernel/btf/vmlinux && exec "$@"', "sh"]
    with Tracer(prefix=hide, probes=True) as tracer, pair() as (a, b):
        assert rows(tracer) == [(False, f"the kernel has no function {name}")]
        client = tracer.client()
        client.tag(a)
        a.sendall(bytes(1000))
        assert client.row()["submitted"] == 1000


def test_nothing_is_left_of_one_that_was_killed(start, joined):
    features.require("fentry")
    one, other = joined()
    a, b = start(one), start(other)
    with Tracer(probes=True) as tracer:
        objects = kernel_objects(tracer.proc.pid)
        assert kernel.attached(tracer.proc.pid) >= PROGRAMS
        tracer.kill()
        until(lambda: not [o for o in objects if exists(*o)])
        hand(a, one, b, other)
        tracer.start()
        hand(a, one, b, other)
        assert from_whom(tracer.client(), b) == [a.pid]

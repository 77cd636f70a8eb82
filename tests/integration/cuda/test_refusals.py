"""Missing parts and failures between a process and a GPU; memory of the wrong kind or size."""
import errno
import os
import shutil
import socket
import subprocess
import sys
import textwrap

import pytest
from lib import features
from lib.cuda_scene import Played, finish, make_scene, one, played  # noqa: F401
from lib.fake_server import FakeServer


def test_gpu_memory_belongs_to_the_process_that_mapped_it(one):
    one.run("""
        publish("m", DATA)
        buffer, writer = attach("m"), create("n", 4096)
        child = os.fork()
        if child == 0:
            ok = [refused(act).errno for act in (buffer.read, buffer.verify, buffer.release)]
            ok += [refused(writer.put, b"x").errno, refused(writer.publish).errno, refused(attach, "m").errno]
            with Client(os.environ["WEIGHTD_SOCKET"]) as anew:
                e = refused(anew.attach, "m", device=buffer.device.encode())
                ok.append(e.errno)
            buffer.detach()
            writer.free()
            os._exit(0 if set(ok) == {errno.ECHILD} and "fork" in e.sentence else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert buffer.read()[:len(DATA)] == DATA
        writer.put(b"x")
        assert writer.publish() == 1
    """)


WITHOUT_DRIVER = """
    import sys, errno
    from lib.native import Client, Failed, lib
    client = Client()
    client.connect({socket!r})
    def refused(*a, **k):
        try:
            client.attach(*a, **k)
        except Failed as e:
            return e
    for device in "cuda:0", "cuda", {device!r}:
        e = refused("m", device=device.encode())
        assert e.errno == {errno!r} and {why!r} in e.sentence, e
    assert client.list("m") == 1
    assert client.n_listed(lib.weightd_list_history, b"m", b"cuda:0") == 1
    assert client.wait("m", device="cuda:0") == 1
    e = refused("m", device=b"cuda:1")
    assert e.errno == errno.ENODEV and "'m' on cuda:1" in e.sentence and "weightctl devices" in e.sentence, e
    client.drop("m", device="cuda:0")
    assert client.list("m") == 0
"""


def without(scene, errno_, why, **env):
    scene.run("publish('m', DATA)")
    code = WITHOUT_DRIVER.format(socket=scene.daemon.socket, device=scene.gpus.device(), errno=errno_, why=why)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=scene.env(**env), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_without_a_driver_a_buffer_can_be_looked_at_and_removed(one):
    without(one, errno.ENODEV, "libcuda.so.1 cannot be opened", LD_LIBRARY_PATH="")


def test_without_a_gpu_likewise(one):
    without(one, errno.ENODEV, "the CUDA driver does not start: CUDA_ERROR_NO_DEVICE", CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("visible", ["", "7", "none"])
def test_a_choice_that_leaves_no_gpu_is_named(one, visible):
    without(one, errno.ENODEV, f"no CUDA-capable device is detected (CUDA_VISIBLE_DEVICES is '{visible}')",
            CUDA_VISIBLE_DEVICES=visible)


def test_with_a_driver_that_is_too_old_likewise(one, tmp_path):
    features.require("gcc", "no gcc", shutil.which("gcc"))
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", tmp_path / "libcuda.so.1"], check=True,
                   input=b"int cuInit(unsigned f) { return f; }")
    without(one, errno.ENOSYS, "the driver is too old", LD_LIBRARY_PATH=str(tmp_path))


def test_who_names_no_gpu_does_not_open_the_driver(one):
    done = one.gpus.python(textwrap.dedent(f"""
        from lib.native import Client
        client = Client({one.daemon.socket!r})
        client.publish("m", b"x" * 4096)
        client.attach("m").verify()
        assert "libcuda" not in open("/proc/self/maps").read()
    """), env=one.env())
    assert not done.stderr


def test_a_gpu_that_is_lost_is_an_error_of_the_call(one):
    one.run("""
        publish("m", DATA)
        buffer, writer = attach("m"), create("n", 4096)
        fail("*", DEVICE_LOST, count=1000)
        for act in buffer.read, buffer.verify, buffer.release, writer.publish, lambda: writer.put(b"x"):
            e = refused(act)
            assert e.errno == errno.EIO and str(DEVICE_LOST) in e.sentence, e
        writer.free()
        buffer.detach()
    """)


@pytest.mark.parametrize("symbol, code", [
    ("cuDevicePrimaryCtxRetain", "EIO"), ("cuMemImportFromShareableHandle", "EIO"), ("cuMemAddressReserve", "EIO"),
    ("cuMemMap", "EIO"), ("cuMemSetAccess", "EIO"), ("cuCtxPushCurrent", "EIO")])
def test_what_cannot_be_mapped_leaves_nothing_behind(one, symbol, code):
    one.run(f"""
        context()
        publish("other", DATA)  # weightd-cuda has its context now, for a while
        before = free()
        new("cuCtxPopCurrent_v2")
        publish("m", DATA)
        for act in (attach, "m"), (create, "m", len(DATA)):
            fail({symbol!r}, 999)
            e = refused(*act)
            assert e.errno == errno.{code} and "'m" in e.sentence and "CUDA_ERROR_UNKNOWN" in e.sentence, e
        heal()
        with create("m", len(DATA)) as writer:
            writer.put(OTHER)
            assert writer.publish() == 2
        with attach("m") as buffer:
            buffer.verify()
        client.drop("m", device="cuda:0")
        context()
        while free() < before:
            look()
    """)



IPC_HOLDER = """
    context()
    p = ctypes.c_uint64()
    do("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(2 * MIB))
    fill(p.value, 7, 2 * MIB)
    h = (ctypes.c_uint8 * 64)()
    do("cuIpcGetMemHandle", h, p)
    wait()
    print(bytes(h).hex(), flush=True)
"""


def test_memory_of_the_older_kind(played):
    """Read while its holder lives; reported as lost afterwards."""
    proc, handle = played.holder(IPC_HOLDER)
    handle = bytes.fromhex(handle)
    alive, end = os.pipe()
    with FakeServer(played.path) as server:
        client = played.client("""
            context()
            was, buffer = current(), attach("m")
            assert buffer.location == (2, 0, uuid())
            assert buffer.read() == bytes([7]) * 4096
            assert buffer.swap() == 0 and buffer.refresh() is None
            e = refused(buffer.release)
            assert e.errno == errno.EOPNOTSUPP and "cuda-ipc memory" in e.sentence, e
            assert buffer.read(1, 1) == bytes([7])
            print("read", flush=True)
            input()
            e = refused(buffer.swap)
            assert e.errno == errno.EOPNOTSUPP and "refresh" in e.sentence, e
            with buffer.refresh() as new:
                assert new.version == 2 and new.read(0, 1) == bytes([7])
            print("refreshed", flush=True)
            input()
            for act in buffer.read, buffer.verify:
                e = refused(act)
                assert e.errno == errno.EIO and "lost" in e.sentence, e
            print("lost", flush=True)
            input()
            e = refused(buffer.refresh)
            assert e.errno == errno.EIO and "lost" in e.sentence, e
            buffer.detach()
            assert current() == was
        """)
        peer = server.accept()
        played.give(peer, 2, handle, alive)
        assert client.stdout.readline() == "read\n"
        played.memory.flip(2, 1)
        played.version.number = 2
        client.stdin.write("\n")
        client.stdin.flush()
        for _ in "swap", "refresh":
            played.give(peer, 2, handle, alive, lease=8)
            played.end(peer, lease=8)
        assert client.stdout.readline() == "refreshed\n"
        os.close(end)
        proc.communicate()
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == "lost\n"
        played.memory.flip(1, 1)
        client.stdin.write("\n")
        client.stdin.flush()
        played.end(peer)
        finish(client)
    os.close(alive)


def test_memory_of_the_older_kind_that_is_lost_already_is_not_attached(played):
    alive, end = os.pipe()
    os.close(end)
    with FakeServer(played.path) as server:
        client = played.client("""
            e = refused(attach, "m")
            assert e.errno == errno.EIO and "lost" in e.sentence, e
        """)
        peer = server.accept()
        played.give(peer, 2, bytes(64), alive)
        played.end(peer)
        finish(client)
    os.close(alive)


VMM_HOLDER = """
    init()
    class Properties(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", ctypes.c_int * 2),
                    ("unused", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]
    h, fd = ctypes.c_uint64(), ctypes.c_int()
    do("cuMemCreate", ctypes.byref(h), ctypes.c_size_t(2 * MIB),
       ctypes.byref(Properties(1, 1, (ctypes.c_int * 2)(1, GPU))), ctypes.c_uint64(0))
    do("cuMemExportToShareableHandle", ctypes.byref(fd), h, 1, ctypes.c_uint64(0))
    import socket
    socket.send_fds(socket.socket(fileno=END), [b"x"], [fd.value])
    print(flush=True)
"""


@pytest.mark.parametrize("what, code, why", [
    ("another GPU", "EBADMSG", "weightd reports it on cuda:0, the driver elsewhere"),
    ("no handle", "EINVAL", "the driver cannot import it")])
def test_what_is_not_what_the_server_says_is_refused(make_gpus, tmp_path, what, code, why):
    features.require("library")
    played = Played(make_gpus(devices=2), tmp_path)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        proc, _ = played.holder(VMM_HOLDER.replace("GPU", "1").replace("END", str(theirs.fileno())), theirs.fileno())
        fd = socket.recv_fds(ours, 1, 1)[1][0]
    if what == "no handle":
        with open(os.devnull, "r+b") as f:
            os.dup2(f.fileno(), fd)
    with FakeServer(played.path) as server, played.memory:
        client = played.client(f"""
            e = refused(attach, "m")
            assert e.errno == errno.{code} and {why!r} in e.sentence, e
        """)
        peer = server.accept()
        played.give(peer, 1, bytes(64), fd)
        played.end(peer)
        finish(client)
    os.close(fd)
    proc.communicate()

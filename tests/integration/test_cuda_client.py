"""Buffers on a GPU as processes use them, on fake GPUs."""
import errno
import os
import shutil
import socket
import subprocess
import sys
import textwrap

import features
import pytest
from features import ROOT
from integration import wire
from integration.fake import FakeServer, Memory

PRELUDE = "from integration.cuda import *\nDATA = bytes(range(251)) * 16711\nOTHER = bytes(reversed(DATA))\n"


@pytest.fixture
def scene(make_gpus, make_daemon):
    """scene(devices=2): a weightd with fake GPUs, and programs that see both."""
    features.require("library")

    def make(**kw):
        return Scene(make_gpus(**kw), make_daemon)

    return make


class Scene:
    def __init__(self, gpus, make_daemon, *options):
        self.gpus = gpus
        self.daemon = make_daemon(*options, env=gpus.env)

    def command(self, code):
        return [sys.executable, "-c", PRELUDE + textwrap.dedent(code)]

    def env(self, more):
        return os.environ | self.gpus.env | {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/tests/systemd",
                                             "WEIGHTD_SOCKET": self.daemon.socket} | more

    def run(self, code, **env):
        done = subprocess.run(self.command(code), env=self.env(env), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def one(scene):
    return scene()


@pytest.fixture
def two(scene):
    return scene(devices=2)


def test_what_one_process_writes_another_reads_bit_for_bit(one):
    one.run("""
        with create("m", len(DATA)) as writer:
            assert writer.location == (1, 0, uuid()), writer.location
            writer.put(DATA[:100])
            writer.put(DATA[100:], 100)
            assert writer.read(50, 100) == DATA[50:150]
            assert writer.publish() == 1
            assert writer.read(0, len(DATA)) == DATA
    """)
    one.run("""
        with attach("m") as buffer:
            assert buffer.location == (1, 0, uuid()), buffer.location
            assert buffer.read()[:len(DATA)] == DATA
            assert buffer.read(7, 5) == DATA[7:12]
            buffer.verify()
            assert "GPU-" in buffer.device
            for offset, n in (len(DATA) + 64, 1), (0, len(DATA) + 64), (2**64 - 1, 2):
                assert refused(buffer.read, offset, n).errno == errno.EINVAL
    """)


def test_readers_share_one_copy(one):
    one.run("publish('m', DATA)")
    used = one.gpus.used()
    one.run("""
        import subprocess
        readers = [attach("m") for _ in range(3)]
        assert len({r.address for r in readers}) == 3
        subprocess.run([sys.executable, "-c",
                        "from integration.cuda import *; b = attach('m'); b.verify(); print(b.read(1, 1)[0])"], check=True)
        assert all(r.read() == readers[0].read() for r in readers)
        print(sum((STATE / "memory").joinpath(f).stat().st_size for f in os.listdir(STATE / "memory") if f[0] != "c"))
    """)
    assert used > 0 and one.gpus.used() == used


@pytest.mark.parametrize("what", ["what is attached", "what was published"])
def test_the_gpu_cannot_write(one, what):
    """Here by what the driver itself refuses; what becomes of a kernel is for tests/gpu to show."""
    one.run(f"""
        context()
        writer = create("m", 4096)
        fill(writer.address, 1, 4096)
        writer.publish()
        assert refused(writer.put, b"x").errno == errno.EALREADY
        fill(attach("m").address if {what == "what is attached"} else writer.address, 2, 4096,
             wanted=INVALID_VALUE)
    """)
    one.run("assert attach('m').read() == bytes([1]) * 4096")


def test_where_the_driver_knows_no_read_only_mappings_verify_finds_what_was_written(one):
    one.run("""
        publish("m", DATA)
        context()
        fail("cuMemSetAccess", NOT_SUPPORTED)
        with attach("m") as buffer:
            buffer.verify()
            fill(buffer.address + MIB, 3, 10)
            wait()
            e = refused(buffer.verify)
            assert e.errno == errno.EILSEQ and "1048576 to 2097152" in e.sentence, e
    """)


def test_a_swap_keeps_the_address(one):
    one.run("""
        publish("m", DATA)
        with attach("m") as buffer:
            address = buffer.address
            assert buffer.swap() == 0
            publish("m", OTHER)
            assert buffer.read()[:9] == DATA[:9]
            assert buffer.swap() == 1 and buffer.swap_on(None) == 0
            assert (buffer.address, buffer.version) == (address, 2)
            assert buffer.read()[:len(OTHER)] == OTHER
            buffer.verify()
    """)


@pytest.mark.parametrize("symbol, skip", [
    ("cuMemImportFromShareableHandle", 0), ("cuMemGetAllocationPropertiesFromHandle", 0), ("cuCtxSynchronize", 0),
    ("cuMemUnmap", 0), ("cuMemMap", 0), ("cuMemSetAccess", 0)])
def test_a_swap_that_fails_leaves_what_there_was(one, symbol, skip):
    one.run(f"""
        publish("m", DATA)
        buffer = attach("m")
        address = buffer.address
        publish("m", OTHER)
        fail({symbol!r}, 999, {skip})
        e = refused(buffer.swap)
        assert e.errno == errno.EIO and "CUDA_ERROR_UNKNOWN" in e.sentence, e
        heal()
        assert (buffer.address, buffer.version) == (address, 1)
        assert buffer.read()[:len(DATA)] == DATA
        buffer.verify()
        assert buffer.swap() == 1 and buffer.read()[:len(DATA)] == OTHER
        buffer.detach()
    """)


def test_a_swap_that_cannot_be_undone_says_so_and_may_be_tried_again(one):
    one.run("""
        publish("m", DATA)
        buffer = attach("m")
        address = buffer.address
        publish("m", OTHER)
        fail("cuMemMap", 999, count=2)
        e = refused(buffer.swap)
        assert e.errno == errno.EIO and "nor again" in e.sentence, e
        assert refused(buffer.read).errno == errno.EADDRNOTAVAIL
        assert buffer.swap() == 1
        assert buffer.address == address and buffer.read()[:len(DATA)] == OTHER
    """)


def test_a_publish_that_fails_leaves_a_writer_that_can_write(one):
    one.run("""
        writer = create("m", len(DATA))
        writer.put(OTHER)
        fail("cuMemSetAccess", 999)
        e = refused(writer.publish)
        assert e.errno == errno.EIO and "read-only" in e.sentence, e
        writer.put(DATA)
        assert writer.publish() == 1
        attach("m").verify()
        assert attach("m").read()[:len(DATA)] == DATA
    """)


ROUND = """
    with create("m", len(DATA), at) as writer:
        writer.put(DATA)
        writer.publish()
        with attach("m", at) as buffer:
            buffer.read()
            publish("m", OTHER, at)
            buffer.swap()
            buffer.verify()
            buffer.release()
            buffer.reacquire()
        attach("m", at).detach_on(None)
"""


@pytest.mark.parametrize("before", ["init()", "context(0)", "context(1)"])
def test_the_context_that_was_current_is_so_afterwards(two, before):
    two.run(f"{before}\nwas, at = current(), 'cuda:1'\n" + textwrap.dedent(ROUND) + "\nassert current() == was")


def test_buffers_on_two_gpus_in_one_process(two):
    two.run("""
        publish("m", DATA, "cuda:0")
        publish("m", OTHER, "cuda:1")
        a, b = attach("m", "cuda"), attach("m", "cuda:1")
        assert (a.location, b.location) == ((1, 0, uuid(0)), (1, 1, uuid(1)))
        assert a.read()[:len(DATA)] == DATA and b.read()[:len(DATA)] == OTHER
        assert refused(attach, "m", "host").errno == errno.ENOENT
    """)
    assert two.gpus.used(0) == two.gpus.used(1) > 0


@pytest.mark.parametrize("visible, number", [("1,0", 1), ("0,1", 0), ("0", 0)])
def test_numbers_of_gpus_are_those_of_the_process(two, visible, number):
    two.run("publish('m', DATA, 'cuda:0')")
    two.run(f"""
        with attach("m", "cuda:{number}") as buffer:
            assert buffer.device == {two.gpus.device(0)!r}
            assert buffer.location[1] == {number}
            assert attach("m", buffer.device.upper().replace("CUDA", "cuda")).location[1] == {number}
    """, CUDA_VISIBLE_DEVICES=visible)


def test_a_gpu_that_the_process_does_not_see_is_refused(two):
    two.run("publish('m', DATA, 'cuda:1')")
    two.run(f"""
        e = refused(attach, "m", "cuda:3")
        assert e.errno == errno.ENODEV
        assert e.sentence.endswith("on cuda:3: there is no such GPU: this process sees 1 GPU (CUDA_VISIBLE_DEVICES is 0)"), e
        e = refused(attach, "m", {two.gpus.device(1)!r})
        assert e.errno == errno.ENODEV and {two.gpus.uuid(1)!r} in e.sentence and "sees 1 GPU" in e.sentence, e
        e = refused(create, "n", 4096, {two.gpus.device(1)!r})
        assert e.errno == errno.ENODEV and "sees 1 GPU" in e.sentence, e
        assert not client.list("n")
    """, CUDA_VISIBLE_DEVICES="0")


def test_another_gpu_maps_it(two):
    two.run("""
        publish("m", DATA, "cuda:0")
        context(1)
        with attach("m", "cuda:0", map_device="cuda:1") as buffer:
            assert buffer.location == (1, 1, uuid(0))
            assert buffer.read()[:len(DATA)] == DATA
            s, to = stream(), ctypes.create_string_buffer(5)
            copy(to, buffer.address, 5, s)
            wait(s)
            assert to.raw == DATA[:5]
            publish("m", OTHER, "cuda:0")
            with buffer.refresh() as other:
                assert other.location == (1, 1, uuid(0))
            assert buffer.swap_on(s) == 1
            buffer.release(s)
            assert buffer.reacquire() == 0
            assert buffer.location == (1, 1, uuid(0))
            buffer.verify()
    """)


def test_a_gpu_that_cannot_reach_the_memory_is_refused(scene):
    scene(devices=2, no_peers=1).run("""
        publish("m", DATA, "cuda:0")
        e = refused(attach, "m", "cuda:0", map_device="cuda:1")
        assert e.errno == errno.EOPNOTSUPP and "cuda:1 cannot reach the memory of cuda:0" in e.sentence, e
        assert attach("m", "cuda:0", map_device="cuda:0").location[1] == 0
        e = refused(attach, "m", "cuda:0", map_device="cuda:2")
        assert e.errno == errno.ENODEV and "sees 2 GPUs" in e.sentence, e
        for wrong in "gpu", "host":
            e = refused(attach, "m", "cuda:0", map_device=wrong)
            assert e.errno == errno.EINVAL and f"'{wrong}' is no GPU" in e.sentence, e
        publish("m", DATA, "host")
        e = refused(attach, "m", "host", map_device="cuda:0")
        assert e.errno == errno.EINVAL and "on host" in e.sentence, e
    """)


# --- the order of work ---

def test_publish_waits_for_what_the_writer_has_queued(one):
    one.run("""
        context()
        for how in "all", "one":
            with create("m", 4096) as writer:
                s = stream()
                with gate():
                    fill(writer.address, 5, 4096, s)
                    published = later(writer.publish) if how == "all" else later(writer.publish_on, s)
                    look()
                assert published.result(20)
            with attach("m") as buffer:
                assert buffer.read() == bytes([5]) * 4096
                buffer.verify()
    """)


def test_a_swap_waits_for_what_still_reads(one):
    """What was queued before it reads the old version, at the address where the new one is afterwards."""
    one.run("""
        context()
        for how in "all", "one":
            publish("m", DATA, new_layout=True)
            buffer, s, to = attach("m"), stream(), ctypes.create_string_buffer(100)
            publish("m", OTHER)
            with gate():
                copy(to, buffer.address, 100, s)
                swapped = later(buffer.swap) if how == "all" else later(buffer.swap_on, s)
                look()
            assert swapped.result(20) == 1
            wait(s)
            assert to.raw == DATA[:100]
            assert buffer.read(0, 100) == OTHER[:100]
            buffer.detach()
    """)


def test_what_was_detached_stays_until_its_stream_has_passed(one):
    one.run("""
        context()
        publish("m", DATA)
        s, to = stream(), ctypes.create_string_buffer(100)
        buffer = attach("m")
        assert client.reap() == 0
        with gate():
            copy(to, buffer.address, 100, s)
            buffer.detach_on(s)
            assert client.reap() == 1
            client.drop("m", device=buffer_device)
            assert client.reap() == 1
        wait(s)
        assert to.raw == DATA[:100]
        while client.reap():
            pass
    """.replace("buffer_device", repr(one.gpus.device())))
    one.gpus.wait_used(0)


def test_later_calls_on_the_connection_end_what_was_detached(one):
    one.run("""
        context()
        publish("m", DATA)
        watcher = Client(os.environ["WEIGHTD_SOCKET"])
        s, buffer = stream(), attach("m")
        with gate():
            fill(create("other", 4096).address, 0, 1, s)
            buffer.detach_on(s)
            assert watcher.stat().slot_bytes and client.reap() == 1
        wait(s)
        client.list()
        assert client.reap() == 0
    """)


def test_closing_the_connection_waits_for_what_was_detached(one):
    one.run("""
        context()
        publish("m", DATA)
        s, to = stream(), ctypes.create_string_buffer(100)
        buffer, other = attach("m"), attach("m")
        with gate():
            copy(to, buffer.address, 100, s)
            buffer.detach_on(s)
            closed = later(client.close)
        closed.result(20)
        wait(s)
        assert to.raw == DATA[:100]
        other.detach_on(s)
        print("done")
    """)
    one.run("client.drop('m', device='cuda:0')")
    one.gpus.wait_used(0)


def test_detaching_behind_all_streams_or_none_waits(one):
    one.run("""
        context()
        publish("m", DATA)
        s = stream()
        for how in "all", "plain", "a stream that is none":
            buffer, to = attach("m"), ctypes.create_string_buffer(100)
            with gate():
                copy(to, buffer.address, 100, s)
                if how == "all":
                    done = later(buffer.detach_on, ALL_STREAMS)
                elif how == "plain":
                    done = later(buffer.detach)
                else:
                    done = later(buffer.detach_on, ctypes.c_void_p(0x10))
            done.result(20)
            assert client.reap() == 0
            wait(s)
            assert to.raw == DATA[:100]
    """)


def test_host_memory_has_no_streams(one):
    one.run("""
        with create("m", 4096, "host") as writer:
            assert writer.location == (0, -1, bytes(16))
            writer.put(DATA[:4096])
            assert writer.read(7, 9) == DATA[7:16]
            assert writer.publish_on(ctypes.c_void_p(0x10)) == 1
        buffer = attach("m", "host")
        assert buffer.location == (0, -1, bytes(16))
        publish("m", OTHER[:4096], "host")
        assert buffer.swap_on(ctypes.c_void_p(0x10)) == 1 and buffer.read() == OTHER[:4096]
        buffer.detach_on(None)
        assert client.reap() == 0
    """)


# --- sleep and wake ---

@pytest.mark.parametrize("device", ["host", "cuda:0"])
def test_a_buffer_that_slept_has_its_bytes_at_its_address_again(one, device):
    one.run(f"""
        publish("m", DATA, {device!r})
        buffer = attach("m", {device!r})
        address = buffer.address
        assert buffer.reacquire() == 0
        buffer.release()
        buffer.release(None)
        for act in buffer.read, buffer.verify, buffer.swap, buffer.pause, buffer.read_begin:
            assert refused(act).errno == errno.EADDRNOTAVAIL, act
        assert (buffer.address, buffer.version, buffer.state()) == (address, 1, (1, 1))
        assert buffer.refresh() is None and client.stat().slot_bytes > 0
        assert buffer.reacquire() == 0
        assert (buffer.address, buffer.version) == (address, 1)
        assert buffer.read()[:len(DATA)] == DATA
        buffer.verify()
        publish("m", OTHER, {device!r})
        assert buffer.swap() == 1 and buffer.read()[:len(DATA)] == OTHER
        buffer.release()
        buffer.detach()
    """)


@pytest.mark.parametrize("device", ["host", "cuda:0"])
def test_a_sleeper_wakes_with_the_current_version_when_its_own_is_gone(one, device):
    one.run(f"""
        publish("m", DATA, {device!r}, keep=1)
        buffer, other = attach("m", {device!r}), attach("m", {device!r})
        address = buffer.address
        buffer.release()
        other.release()
        publish("m", OTHER, {device!r})
        with buffer.refresh() as new:
            assert new.version == 2
        assert buffer.wait(1) == 2
        assert buffer.reacquire() == 1
        assert (buffer.address, buffer.version) == (address, 2)
        assert buffer.read()[:len(DATA)] == OTHER
        buffer.verify()
        publish("m", OTHER[1:], {device!r}, new_layout=True)
        e = refused(other.reacquire)
        assert e.errno == errno.EPROTOTYPE, e
        client.drop("m", device={device!r})
        e = refused(other.reacquire)
        assert e.errno == errno.ESTALE and "removed" in e.sentence, e
        assert buffer.read()[:len(DATA)] == OTHER
    """)


def test_sleeping_frees_the_gpu(one):
    one.run("""
        context()
        publish("other", DATA)  # the context of weightd-cuda is there now, for a while
        before = free()
        publish("m", DATA)
        buffer = attach("m")
        buffer.release()
        assert free() < before
        client.drop("m", device="cuda:0")
        while free() < before:
            look()
        assert refused(buffer.reacquire).errno == errno.ESTALE
    """)


def test_giving_back_waits_for_the_stream(one):
    one.run("""
        context()
        publish("m", DATA)
        buffer, s, to = attach("m"), stream(), ctypes.create_string_buffer(100)
        with gate():
            copy(to, buffer.address, 100, s)
            released = later(buffer.release, s)
            look()
        released.result(20)
        wait(s)
        assert to.raw == DATA[:100]
        e = refused(attach("m").release, ctypes.c_void_p(0x10))
        assert e.errno == errno.EIO and "cannot be given back" in e.sentence, e
    """)


def test_a_wake_that_fails_can_be_tried_again(one):
    one.run("""
        publish("m", DATA)
        buffer = attach("m")
        buffer.release()
        for symbol in "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess":
            fail(symbol, OUT_OF_MEMORY)
            e = refused(buffer.reacquire)
            assert e.errno == errno.ENOMEM and "OUT_OF_MEMORY" in e.sentence, e
            assert refused(buffer.read).errno == errno.EADDRNOTAVAIL
        assert buffer.reacquire() == 0 and buffer.read()[:len(DATA)] == DATA
    """)


def test_a_sleeper_finds_a_server_that_was_started_again(make_gpus, make_daemon):
    scene = Scene(make_gpus(), make_daemon, "--keeper")
    for device in "host", "cuda:0":
        scene.run(f"""
            import signal
            publish("m", DATA, {device!r})
            buffer = attach("m", {device!r})
            address = buffer.address
            buffer.release()
            os.kill(client.ping().pid, signal.SIGKILL)
            assert buffer.reacquire() == 0
            assert buffer.address == address and buffer.read()[:len(DATA)] == DATA
            buffer.release()
            os.kill(client.ping().pid, signal.SIGKILL)
            buffer.detach()
        """)


# --- what can be missing, or go wrong ---

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
    from integration.native import Client, Failed, lib
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
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=scene.env(env), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_without_a_driver_a_buffer_can_be_looked_at_and_removed(one):
    without(one, errno.ENODEV, "libcuda.so.1 cannot be opened", LD_LIBRARY_PATH="")


def test_without_a_gpu_likewise(one):
    without(one, errno.ENODEV, "the CUDA driver does not start: CUDA_ERROR_NO_DEVICE", CUDA_VISIBLE_DEVICES="")


def test_with_a_driver_that_is_too_old_likewise(one, tmp_path):
    features.require("gcc", "no gcc", shutil.which("gcc"))
    subprocess.run(["gcc", "-shared", "-fPIC", "-xc", "-", "-o", tmp_path / "libcuda.so.1"], check=True,
                   input=b"int cuInit(unsigned f) { return f; }")
    without(one, errno.ENOSYS, "the driver is too old", LD_LIBRARY_PATH=str(tmp_path))


def test_who_names_no_gpu_does_not_open_the_driver(one):
    done = one.gpus.python(textwrap.dedent(f"""
        from integration.native import Client
        client = Client({one.daemon.socket!r})
        client.publish("m", b"x" * 4096)
        client.attach("m").verify()
        assert "libcuda" not in open("/proc/self/maps").read()
    """), env=one.env({}))
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
        publish("m", DATA)
        init()
        for act in (attach, "m"), (create, "m", len(DATA)):
            fail({symbol!r}, 999)
            e = refused(*act)
            assert e.errno == errno.{code} and "'m" in e.sentence and "CUDA_ERROR_UNKNOWN" in e.sentence, e
        heal()
        with create("m", len(DATA)) as writer:
            writer.put(OTHER)
            assert writer.publish() == 2
        attach("m").verify()
    """)


# --- a server that the test plays ---

class Played:
    """A client beside a server that hands out memory of a holder's."""

    def __init__(self, gpus, tmp_path):
        self.gpus, self.path = gpus, tmp_path / "played.sock"
        self.memory = Memory(4096)
        self.memory.flip(1, 1)
        self.version = self.memory.version(1, flags=1)

    def holder(self, code, *fds):
        """A process that allocates, says a line, and lives until its input ends."""
        proc = subprocess.Popen([sys.executable, "-c", PRELUDE + textwrap.dedent(code) + "\nsys.stdin.read()"],
                                env=self.env(), pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return proc, proc.stdout.readline().strip()

    def env(self, **more):
        return os.environ | self.gpus.env | {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/tests/systemd"} | more

    def client(self, code):
        return subprocess.Popen([sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
                                env=self.env(WEIGHTD_SOCKET=str(self.path)), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)

    def give(self, peer, kind, handle, fd, lease=7):
        v = self.version
        location = wire.location(2 << 20, kind, bytes.fromhex(self.gpus.uuid().replace("-", "")), handle)
        peer.request(wire.ATTACH)
        peer.reply("5QII16s16s96s", lease, v.memory.buffer, v.number, v.data_size, v.slot_size, v.flags, 0,
                   v.layout_hash, bytes(16), location, fds=[v.memory.layout_fd, v.memory.head_fd, fd])

    def end(self, peer, lease=7):
        asked = peer.request(wire.DETACH)
        assert asked.values == (lease,)
        peer.reply()


@pytest.fixture
def played(gpu, tmp_path):
    features.require("library")
    scene = Played(gpu, tmp_path)
    with scene.memory:
        yield scene


def finish(proc):
    out = proc.communicate(timeout=30)[0]
    assert proc.returncode == 0, out


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
    """Read while its holder lives; known to be lost afterwards."""
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
            assert e.errno == errno.EOPNOTSUPP and "older CUDA kind" in e.sentence, e
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
    ("another GPU", "EBADMSG", "weightd says that it is on cuda:0, the driver that it is not"),
    ("no handle", "EINVAL", "the driver does not import it")])
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

"""GPU memory as weightd hands it out: on stand-ins for GPUs, which prove nothing about real ones."""
import contextlib
import errno
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys

import pytest
from lib import features, wire
from lib.child import run_as
from lib.cuda_scene import command, environment
from lib.wire import ORPHAN, Refused, Wire, image, until

ALICE, BOB = 12345, 12346
MIB = 1 << 20
GRANULE = 2 * MIB
LAYOUT = image([("t", 4096)])
CUDA = 1  # location of a slot
OUT_OF_MEMORY = 2
DEVICE_LOST = 702
UNKNOWN = 999


def layout(size):
    return image([("t", size)])


@pytest.fixture
def serve(make_daemon, tmp_path):
    """serve(gpu, "timeout = 1"): a weightd on these GPUs, with lines for [cuda]."""
    def make(gpu, *lines, args=(), env=None, **kw):
        config = tmp_path / "weightd.conf"
        config.write_text("\n".join(["[cuda]", *lines, ""]))
        return make_daemon("--config", str(config), *args, env=(gpu.env if gpu else {}) | (env or {}), **kw)
    return make


def allocators(daemon):
    """The pids of the weightd-cuda that this weightd, or the one under its keeper, has started."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name = (folder / "comm").read_text().strip()
                env = (folder / "environ").read_bytes()
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if name == "weightd-cuda" and state != "Z" and daemon.env["FAKE_CUDA_STATE"].encode() in env:
                found.append(int(folder.name))
    return found


def publish(w, device, name="m", size=4096, **kw):
    slot = w.create(name, layout(size), device=device, **kw)
    w.publish(slot.writer)
    w.detach(slot.writer)
    return slot


def publish_in_time(w, *args, **kw):
    """With a timeout so short that a program may not even have started before it is over, as often as that is so."""
    def is_published():
        try:
            return publish(w, *args, **kw)
        except Refused as e:
            assert e.errno in (errno.ETIMEDOUT, errno.EAGAIN), e  # or it has to wait, having been so too often
            return None
    until(is_published, "what does not hang answers in time")


def create_that_hangs(w, gpu):
    """Sends one that hangs in the GPU. One that was over before the failure was armed is sent again."""
    def hangs():
        if gpu.has_failed():
            return True
        if not w.is_silent():
            with pytest.raises(Refused) as e:
                w.answer(wire.CREATE)
            assert e.value.errno in (errno.ETIMEDOUT, errno.EAGAIN), e.value
            w.send_create("m", LAYOUT, device=gpu.device())
        return False

    gpu.fail("cuMemCreate", "hang", count=1)
    w.send_create("m", LAYOUT, device=gpu.device())
    until(hangs, "the GPU hangs")


def versions(w, gpu):
    reply = w.ask(wire.LIST, b"m", gpu.device().encode(), 0, wire.VERSIONS, 0)
    return [wire.Version.unpack(row) for row in wire.page(reply.body)[0]]


def refused(code, w, *args, **kw):
    with pytest.raises(Refused) as e:
        w.create(*args, **kw)
    assert e.value.errno == code, e.value
    return e.value.sentence


# --- memory ---------------------------------------------------------------------------------------

def test_a_slot_on_a_gpu_is_scrubbed_and_its_descriptor_is_all_that_is_left(gpu, serve):
    daemon = serve(gpu, "idle-timeout = 0")
    with Wire(daemon.socket) as w:
        slot = w.create("m", LAYOUT, device=gpu.device())
        assert w.location == (CUDA, GRANULE, bytes.fromhex(gpu.uuid().replace("-", "")), bytes(64))
        until(lambda: not allocators(daemon), "the allocator is gone")
        file, = gpu.files()
        assert gpu.used() == GRANULE and file.read_bytes()[:GRANULE] == bytes(GRANULE)
        assert w.publish(slot.writer) == 1
        lease = w.attach("m", device=gpu.device())
        assert w.location.memory == CUDA and lease.slot_size == slot.slot_size
        assert w.records()["m"].slot_bytes == slot.slot_size
        w.drop("m", device=gpu.device())
        w.detach(slot.writer)
        assert gpu.used() == GRANULE
        w.detach(lease.lease)
        until(lambda: gpu.used() == 0, lambda: f"free again: {gpu.used()}")
        until(lambda: w.stat().slot_bytes == 0, lambda: f"{w.stat()}")


def test_weightd_itself_never_loads_the_driver(gpu, serve):
    daemon = serve(gpu)
    with Wire(daemon.socket) as w:
        publish(w, gpu.device())
    assert "libcuda" not in pathlib.Path(f"/proc/{daemon.pid}/maps").read_text()
    names = subprocess.run(["nm", features.BUILD / "weightd"], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert " main" in names and "cuda_driver" not in names, "weightd links what opens libcuda"
    # The runtime of a sanitizer, which is linked into the program, names others.
    if features.BUILD == features.ROOT / "build":
        needed = subprocess.run(["readelf", "--dynamic", features.BUILD / "weightd"], stdout=subprocess.PIPE, text=True, check=True).stdout
        named = set(re.findall(rb"lib[a-z0-9_+-]+\.so[.0-9]*", (features.BUILD / "weightd").read_bytes()))
        assert named - set(re.findall(rb"NEEDED.*\[(.*)\]", needed.encode())) == {b"libsystemd.so.0"}, "weightd opens another library"


def own_fds(pid):
    """The files of an allocator's descriptors, without those of the stand-in."""
    found = {}
    for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed while we look
            found[int(path.name)] = os.readlink(path)
    return {fd: to for fd, to in found.items() if "fake-gpus" not in to}


def test_the_allocator_inherits_nothing_but_its_socket(gpu, serve):
    daemon = serve(gpu, args=["--keeper"])
    with Wire(daemon.socket) as w:
        publish(w, gpu.device())
        pid, = allocators(daemon)
        until(lambda: sorted(own_fds(pid)) == [0, 1, 2, 3], lambda: own_fds(pid))  # and what it gave away is closed
        assert own_fds(pid)[3].startswith("socket:")
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        for mask in "SigBlk", "SigIgn":  # but for those of the C library
            assert int(re.search(rf"{mask}:\s+(\w+)", status)[1], 16) & 0x7fffffff == 0, status
        environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        assert b"NOTIFY_SOCKET" not in environ and b"FDSTORE" not in environ
        os.kill(w.ping().pid, signal.SIGKILL)
    until(lambda: pid not in allocators(daemon), "the allocator goes with weightd")
    insist(daemon, lambda w: w.ping())  # a keeper that is ended while its child starts reports the signal


def test_what_does_not_fit_is_refused_with_numbers(make_gpus, serve):
    gpu = make_gpus(memory="256M")
    with Wire(serve(gpu, "reserve = 64M").socket) as w:
        sentence = refused(errno.ENOMEM, w, "llama", layout(200 * MIB), device=gpu.device())
        assert re.fullmatch(rf"'llama' on {gpu.device()} \(Fake GPU\) needs 211.8 MB, [\d.]+ MB are free \(67.1 MB of them "
                            r"in reserve\); remove a buffer or an old version there \(weightctl rm\), write in place of "
                            r"the current one \(--replace\), or end a program that uses that GPU", sentence), sentence
        assert w.names() == [] and gpu.used() == 0
        publish(w, gpu.device(), size=100 * MIB)


def test_a_replacement_on_a_gpu_may_have_what_it_frees_and_no_more(make_gpus, serve):
    gpu = make_gpus(memory="96M")
    how = {"device": gpu.device(), "flags": wire.REPLACE | wire.NEW_LAYOUT}
    with Wire(serve(gpu, "reserve = 4M").socket) as w:
        publish(w, gpu.device(), size=50 * MIB)
        sentence = refused(errno.ENOMEM, w, "m", layout(120 * MIB), **how)
        assert "without its present versions, which stay" in sentence
        lease = w.attach("m", device=gpu.device())
        assert lease.version == 1
        w.detach(lease.lease)
        assert w.create("m", layout(64 * MIB), **how).version == 2


def test_a_driver_out_of_memory_is_told_like_too_little_of_it(gpu, serve):
    with Wire(serve(gpu).socket) as w:
        gpu.fail("cuMemCreate", OUT_OF_MEMORY)
        assert "(Fake GPU) cannot have 2.1 MB: it provides no memory" in refused(errno.ENOMEM, w, "m", LAYOUT, device=gpu.device())
        gpu.heal()
        publish(w, gpu.device())


@pytest.mark.parametrize("symbol", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8",
                                    "cuCtxSynchronize", "cuMemUnmap", "cuMemExportToShareableHandle", "cuMemRelease"])
def test_a_call_that_fails_fails_one_request_and_leaves_nothing(gpu, serve, symbol):
    with Wire(serve(gpu).socket) as w:
        gpu.fail(symbol, UNKNOWN)
        sentence = refused(errno.EIO, w, "m", LAYOUT, device=gpu.device())
        assert sentence.startswith(f"no memory for 'm' on {gpu.device()}: its") or "it provides no memory" in sentence
        assert "CUDA_ERROR_UNKNOWN" in sentence
        gpu.heal()
        until(lambda: gpu.used() == 0, lambda: f"{gpu.used()} bytes are left")
        publish(w, gpu.device())


def test_eviction_makes_room_on_the_same_device_only(make_gpus, serve):
    gpu = make_gpus(devices=2, memory="96M")
    with Wire(serve(gpu, "reserve = 0").socket) as w:
        for device in gpu.device(0), gpu.device(1), "host":
            for _ in range(2):
                publish(w, device, size=20 * MIB)
        assert {r.device: r.n_versions for r in w.list(wire.BUFFERS)} == dict.fromkeys([gpu.device(0), gpu.device(1), "host"], 2)
        publish(w, gpu.device(0), "big", size=60 * MIB)
        assert {(r.name, r.device): r.n_versions for r in w.list(wire.BUFFERS)} == {
            ("m", gpu.device(0)): 1, ("m", gpu.device(1)): 2, ("m", "host"): 2, ("big", gpu.device(0)): 1}


@pytest.mark.parametrize("size, is_in_share", [(38, True), (52, False)])
def test_shares_of_a_gpu_are_those_of_what_is_held_there(make_gpus, serve, require, size, is_in_share):
    """The user that gets memory of another one there holds more than that one elsewhere."""
    require("root")
    gpu = make_gpus(devices=2, memory="96M")
    daemon = serve(gpu, "reserve = 0", args=["--socket-mode", "0666"])

    def hold():
        with Wire(daemon.socket) as w:
            for _ in range(2):
                publish(w, gpu.device(0), size=28 * MIB)

    def take():
        with Wire(daemon.socket) as w:
            publish(w, "host", size=100 * MIB)
            publish(w, gpu.device(1), size=80 * MIB)
            if is_in_share:
                publish(w, gpu.device(0), "taken", size=size * MIB)
            else:
                sentence = refused(errno.ENOMEM, w, "taken", layout(size * MIB), device=gpu.device(0))
                assert "of old versions of other users stay" in sentence, sentence

    run_as(ALICE, hold)
    run_as(BOB, take)
    with Wire(daemon.socket) as w:
        versions = [row.version for row in w.list(wire.VERSIONS, "m", gpu.device(0))]
        assert versions == ([2] if is_in_share else [1, 2])


def test_one_gpu_that_is_full_does_not_concern_the_other(make_gpus, serve):
    gpu = make_gpus(devices=2, memory="96M")
    with Wire(serve(gpu, "reserve = 0").socket) as w:
        publish(w, gpu.device(0), size=80 * MIB)
        refused(errno.ENOMEM, w, "n", layout(80 * MIB), device=gpu.device(0))
        publish(w, gpu.device(1), "n", size=80 * MIB)


@pytest.mark.parametrize("flags", [wire.EXCLUSIVE, wire.REUSABLE])
def test_memory_is_written_again_where_the_buffer_has_it_so(gpu, serve, flags):
    with Wire(serve(gpu).socket) as w:
        for version in range(1, 6):
            slot = w.create("m", LAYOUT, device=gpu.device(), flags=flags, keep=1)
            assert w.publish(slot.writer) == version
            w.detach(slot.writer)
        assert gpu.used() <= 2 * GRANULE


# --- the allocator --------------------------------------------------------------------------------

def test_an_allocator_that_dies_fails_one_request(gpu, serve):
    daemon = serve(gpu)
    with Wire(daemon.socket) as w:
        gpu.fail("cuMemsetD8", "die", count=1)
        gpu.fail("cuMemsetD8_v2", "die", count=1)
        sentence = refused(errno.EIO, w, "m", LAYOUT, device=gpu.device())
        assert sentence == f"no memory for 'm' on {gpu.device()}: weightd-cuda died (signal 9)"
        gpu.heal()
        assert gpu.used() == 0 and w.names() == []
        publish(w, gpu.device())


def test_what_weightd_has_no_descriptor_for_is_no_fault_of_the_allocator(gpu, serve):
    daemon = serve(gpu)
    with Wire(daemon.socket) as w:
        gpu.fail("cuMemCreate", "hang")
        w.send_create("m", LAYOUT, device=gpu.device())
        until(lambda: gpu.n_contexts() == 1, "it is being made")
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, hard))
        before = allocators(daemon)
        gpu.heal()
        with pytest.raises(Refused, match="weightd is out of descriptors; try again") as e:
            w.answer(wire.CREATE)
        assert e.value.errno == errno.EMFILE
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
        until(lambda: gpu.used() == 0, lambda: f"{gpu.used()} bytes are left")
        publish(w, gpu.device())
        assert allocators(daemon) == before


def test_an_allocator_that_is_killed_while_idle_is_not_missed(gpu, serve):
    daemon = serve(gpu)
    with Wire(daemon.socket) as w:
        publish(w, gpu.device())
        os.kill(allocators(daemon)[0], signal.SIGKILL)
        publish(w, gpu.device(), "n")


def test_an_allocator_that_hangs_is_killed_and_holds_up_no_host_memory(gpu, serve):
    daemon = serve(gpu, "timeout = 1")
    with Wire(daemon.socket) as w, Wire(daemon.socket) as other:
        gpu.fail("cuMemCreate", "hang")
        w.send_create("m", LAYOUT, device=gpu.device())
        publish(other, "host")
        with pytest.raises(Refused) as e:
            w.answer(wire.CREATE)
        assert e.value.errno == errno.ETIMEDOUT and "did not answer within 1 s and was killed" in e.value.sentence
        gpu.heal()
        publish_in_time(w, gpu.device())


def test_a_hang_does_not_keep_weightd_from_stopping(gpu, serve):
    daemon = serve(gpu, "timeout = 3600")
    with Wire(daemon.socket) as w:
        gpu.fail("cuMemCreate", "hang")
        w.send_create("m", LAYOUT, device=gpu.device())
        until(lambda: allocators(daemon), "it was started")
        daemon.stop()
    assert not allocators(daemon)


def test_a_client_that_goes_while_a_gpu_hangs_leaves_nothing(gpu, serve):
    daemon = serve(gpu, "timeout = 1")
    with Wire(daemon.socket) as w:
        create_that_hangs(w, gpu)
    with Wire(daemon.socket) as w:
        until(lambda: w.ping().n_buffers == 0, "the buffer goes with its writer")
        gpu.heal()
        publish_in_time(w, gpu.device())


def test_an_allocator_that_goes_on_dying_is_started_less_often(gpu, serve):
    with Wire(serve(gpu).socket) as w:
        gpu.fail("cuInit", "die")
        n_deaths, told = 0, errno.EIO
        while told == errno.EIO:  # after the third it is seconds later each time, which a test may oversleep
            with pytest.raises(Refused) as e:
                w.create("m", LAYOUT, device=gpu.device())
            told, sentence = e.value.errno, e.value.sentence
            assert "weightd-cuda died" in sentence
            n_deaths += told == errno.EIO
        assert told == errno.EAGAIN and n_deaths >= 3, sentence
        assert re.search(rf"weightd-cuda died {n_deaths} times in a row; the next start is in \d+ s", sentence), sentence


@pytest.mark.parametrize("path", ["/nonexistent/weightd-cuda", "/bin/true"])
def test_a_program_that_is_no_allocator_is_named(gpu, serve, path):
    with Wire(serve(gpu, f"allocator = {path}").socket) as w:
        sentence = refused(errno.ENOENT if "none" in path else errno.EIO, w, "m", LAYOUT, device=gpu.device())
        assert ("/nonexistent/weightd-cuda cannot be started: No such file" in sentence or
                "weightd-cuda died (exit status 0)" in sentence), sentence


@pytest.mark.parametrize("n", [1, 992, 9000])
def test_an_answer_that_is_none_is_told_as_one(gpu, serve, tmp_path, n):
    program = tmp_path / "allocator"
    program.write_text(f"#!{sys.executable}\nimport socket\ns = socket.socket(fileno=3)\n"
                       f"s.recv(4096)\ns.send(bytes({n}))\ns.recv(1)\n")
    program.chmod(0o755)
    with Wire(serve(gpu, f"allocator = {program}").socket) as w:
        assert "weightd-cuda is of another release" in refused(errno.EPROTO, w, "m", LAYOUT, device=gpu.device())


def test_without_the_driver_the_reason_is_told(gpu, serve):
    with Wire(serve(None).socket) as w:
        sentence = refused(errno.ENODEV, w, "m", LAYOUT, device=gpu.device())
        assert "libcuda.so.1 cannot be opened" in sentence or "the CUDA driver does not start" in sentence, sentence
        assert w.devices()["cuda"].why in sentence


def test_without_a_gpu_the_reason_is_told(make_gpus, serve):
    gpu = make_gpus(devices=0)
    with Wire(serve(gpu).socket) as w:
        assert "CUDA_ERROR_NO_DEVICE" in refused(errno.ENODEV, w, "m", LAYOUT, device=gpu.device())
        assert "CUDA_ERROR_NO_DEVICE" in w.devices()["cuda"].why


def test_a_driver_that_is_too_old_is_named(gpu, serve, tmp_path):
    source, folder = tmp_path / "old.c", tmp_path / "old"
    folder.mkdir()
    source.write_text("int cuInit(unsigned f) { (void)f; return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    with Wire(serve(gpu, env={"LD_LIBRARY_PATH": str(folder)}).socket) as w:
        assert "the driver is too old" in refused(errno.ENOSYS, w, "m", LAYOUT, device=gpu.device())


def test_switched_off_gpus_are_left_alone(gpu, serve):
    daemon = serve(gpu, "enabled = no")
    with Wire(daemon.socket) as w:
        assert "[cuda] enabled" in refused(errno.ENODEV, w, "m", LAYOUT, device=gpu.device())
        assert "[cuda] enabled" in w.devices()["cuda"].why
        assert not allocators(daemon)


def test_an_idle_allocator_is_ended_and_started_again(gpu, serve):
    daemon = serve(gpu, "idle-timeout = 1")
    with Wire(daemon.socket) as w:
        publish(w, gpu.device())
        first = allocators(daemon)
        until(lambda: not allocators(daemon), "it is ended")
        until(lambda: gpu.n_contexts() == 0, lambda: f"{gpu.n_contexts()} contexts are left")
        publish(w, gpu.device(), "n")
        assert not set(first) & set(allocators(daemon))


def test_numbers_are_known_without_asking_the_gpus_again(gpu, serve):
    daemon = serve(gpu, "idle-timeout = 1")
    with Wire(daemon.socket) as w:
        publish(w, gpu.device())
    assert "cuda:0" in daemon.ctl("devices").stdout
    until(lambda: not allocators(daemon), "it is ended")
    gpu.fail("cuInit", "hang")
    row = daemon.ctl("ls", "-n", "-o", "NAME,DEVICE").stdout.split()
    assert row == ["m", "cuda:0"] and not allocators(daemon)


@pytest.mark.parametrize("symbol", ["cuMemGetInfo", "cuDevicePrimaryCtxRetain"])
def test_a_gpu_that_has_failed_is_looked_at_by_another_allocator(make_gpus, serve, symbol):
    gpu = make_gpus(devices=2)
    daemon = serve(gpu)
    with Wire(daemon.socket) as w:
        assert all(not row.why for row in w.devices().values())
        before = allocators(daemon)
        os.kill(before[0], signal.SIGKILL)
        gpu.fail(symbol, DEVICE_LOST, count=1)
        assert [bool(row.why) for row in w.devices().values()] == [False, True, False]
        failed = allocators(daemon)
        assert all(not row.why for row in w.devices().values())
        assert not set(failed) & set(allocators(daemon)), "what has failed there goes on failing"


# --- names and lists ------------------------------------------------------------------------------

@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:GPU-FA4E0000-1234-4567-89AB-CDEF00000000"])
def test_a_name_with_another_meaning_elsewhere_is_refused(gpu, serve, device):
    with Wire(serve(gpu).socket) as w:
        assert "use cuda:GPU-<uuid>" in refused(errno.EINVAL, w, "m", LAYOUT, device=device)
        with pytest.raises(Refused, match="use cuda:GPU-<uuid>"):
            w.attach("m", device=device)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "host:0"])
def test_a_device_that_is_none_is_refused(daemon, device):
    with Wire(daemon.socket) as w:
        assert f"there is no device '{device}'" in refused(errno.ENODEV, w, "m", LAYOUT, device=device)


def test_a_gpu_that_is_not_there_is_told_from_one_that_is(gpu, serve):
    with Wire(serve(gpu).socket) as w:
        assert "weightd sees no such GPU" in refused(errno.ENODEV, w, "m", LAYOUT, device=gpu.device(7))


def test_memory_of_the_older_kind_is_not_mixed_up(gpu, serve):
    with Wire(serve(gpu).socket) as w:
        assert "host has no memory with a cudaIpcMemHandle_t" in \
            refused(errno.EOPNOTSUPP, w, "m", LAYOUT, flags=wire.IPC)
        publish(w, gpu.device())
        assert "remove it first" in refused(errno.EINVAL, w, "m", LAYOUT, device=gpu.device(), flags=wire.IPC)


def test_devices_are_listed_with_what_can_be_had(make_gpus, serve):
    gpu = make_gpus(devices=2, memory="512M")
    with Wire(serve(gpu).socket) as w:
        publish(w, gpu.device(1))
        publish(w, "host")
        rows = w.devices()
        assert list(rows) == ["host", gpu.device(0), gpu.device(1)]
        assert [r.ours for r in rows.values()] == [8192, 0, GRANULE]
        assert rows["host"].total > rows["host"].free > 0 and rows["host"].granularity == wire.PAGE
        for i in range(2):
            r = rows[gpu.device(i)]
            assert (r.name, r.why, r.index, r.total, r.granularity) == ("Fake GPU", "", i, 512 * MIB, GRANULE)
            assert r.free < r.total and r.flags & 3 == 3 and r.driver >= 11000 and r.capability >= 50, r


def test_a_list_of_many_devices_comes_in_pages(make_gpus, serve):
    gpu = make_gpus(devices=12)
    with Wire(serve(gpu).socket) as w:
        assert [r.device for r in w.list(wire.DEVICES)] == ["host", *(gpu.device(i) for i in range(12))]


def test_a_part_of_a_gpu_is_named_as_one(make_gpus, serve):
    gpu = make_gpus(mig=True)
    with Wire(serve(gpu).socket) as w:
        assert w.devices()[gpu.device()].flags & 16 and gpu.device().startswith("cuda:MIG-")
        publish(w, gpu.device())


def test_the_visible_devices_of_weightd_limit_what_it_offers(make_gpus, serve):
    gpu = make_gpus(devices=2)
    with Wire(serve(gpu, env={"CUDA_VISIBLE_DEVICES": "1"}).socket) as w:
        assert list(w.devices()) == ["host", gpu.device(1)]
        sentence = refused(errno.ENODEV, w, "m", LAYOUT, device=gpu.device(0))
        assert "(its CUDA_VISIBLE_DEVICES is '1')" in sentence, sentence
        publish(w, gpu.device(1))


def test_a_list_that_waits_holds_up_its_own_connection_only(gpu, serve):
    daemon = serve(gpu, "timeout = 1")
    with Wire(daemon.socket) as w, Wire(daemon.socket) as gone, Wire(daemon.socket) as other:
        gpu.fail("cuMemGetInfo", "hang")
        body = wire.BODIES[wire.LIST].pack(b"", b"", 0, wire.DEVICES, 0)
        for each in w, gone:
            each.send(wire.LIST, body)
        w.send(wire.PING)
        gone.close()
        publish(other, "host")
        answers = [w.receive(), w.receive()]
        assert [a.op for a in answers] == [wire.LIST | wire.REPLY, wire.PING | wire.REPLY]
        assert "did not answer within 1 s" in wire.Device.unpack(wire.page(answers[0].body)[0][1]).why
        gpu.heal()
        until(lambda: list(w.devices()) == ["host", gpu.device()], "what does not hang answers in time")


# --- surviving ------------------------------------------------------------------------------------

def restart(daemon, w):
    os.kill(w.ping().pid, signal.SIGKILL)
    w.hang_up()
    return Wire(daemon.socket)


def test_gpu_memory_survives_weightd_and_the_allocator(gpu, serve):
    daemon = serve(gpu, args=["--keeper"])
    with Wire(daemon.socket) as w:
        publish(w, gpu.device())
        before = w.attach("m", device=gpu.device())
        location = w.location
        file, = gpu.files()
        with open(file, "r+b") as f:
            f.write(b"weights")
        os.kill(allocators(daemon)[0], signal.SIGKILL)
        gpu.fail("*", "die")  # nothing of what follows needs a GPU
        with restart(daemon, w) as again:
            lease = again.attach("m", device=gpu.device())
            assert again.location == location and lease[1:6] == before[1:6]
            assert gpu.files() == [file] and file.read_bytes()[:8] == b"weights\0"
            row = again.records()["m"]
            assert (row.device, row.version, row.n_versions) == (gpu.device(), 1, 1)


def test_a_writer_goes_on_after_a_restart(gpu, serve):
    daemon = serve(gpu, args=["--keeper"])
    with Wire(daemon.socket) as w:
        slot = w.create("m", LAYOUT, device=gpu.device())
        with restart(daemon, w) as again:
            again.resume(slot.writer)
            assert again.publish(slot.writer) == 1
            again.attach("m", device=gpu.device())


def test_reusable_memory_survives(gpu, serve):
    daemon = serve(gpu, args=["--keeper"])
    with Wire(daemon.socket) as w:
        for _ in range(3):
            publish(w, gpu.device(), flags=wire.REUSABLE, keep=1)
        with restart(daemon, w) as again:
            publish(again, gpu.device(), flags=wire.REUSABLE)
            assert again.attach("m", device=gpu.device()).version == 4


def test_an_allocator_killed_with_weightd_leaves_no_memory(gpu, serve):
    daemon = serve(gpu, args=["--keeper"])
    with Wire(daemon.socket) as w:
        gpu.fail("cuMemSetAccess", "hang")
        w.send_create("m", LAYOUT, device=gpu.device())
        until(lambda: gpu.used() == GRANULE, "the memory is made")
        with Wire(daemon.socket) as other:
            os.kill(other.ping().pid, signal.SIGKILL)
        w.hang_up()
        until(lambda: gpu.used() == 0, lambda: f"{gpu.used()} bytes are left")
        gpu.heal()
        with Wire(daemon.socket) as again:
            assert again.names() == []
            publish(again, gpu.device())


def insist(daemon, act):
    """Does act(connection) again while weightd dies of it."""
    while True:
        try:
            with Wire(daemon.socket) as w:
                return act(w)
        except (wire.Closed, ConnectionRefusedError, FileNotFoundError):  # or before its socket was kept
            continue


@pytest.mark.parametrize("point", [
    "create-provided", "create-saved", "create-stored", "create-kept", "publish-committed", "publish-flipped", "drop-committed",
    "release-begun", "free-removed", "free-saved", "abort-saved", *(pytest.param(point, marks=pytest.mark.long) for point in (
        "create-begun", "create-answered", "publish-begun", "publish-slot-sealed", "publish-answered", "manifest-commit",
        "store-put", "remove-committed"))])  # these are between steps that have nothing to do with a GPU
def test_a_death_at_each_point_loses_and_leaks_nothing(gpu, serve, require, tmp_path, point):
    """The same points as those of server/test_kill_matrix.py, for memory that is somewhere else."""
    require("faults")
    faulty = features.BUILD.with_name(features.BUILD.name + "-faults") / "weightd"
    daemon = serve(gpu, "[store]", "resume-timeout = 1", args=["--keeper"], program=faulty,
                   env={"WEIGHTD_FAULT": f"{point}:1", "WEIGHTD_FAULT_STATE": str(tmp_path / "passages")})
    published = set()

    def create(w, **kw):
        with contextlib.suppress(Refused):  # its writer may have been left behind by the death
            until(lambda: not any(row.writing for row in w.records().values()), lambda: w.records())
        return w.create("m", LAYOUT, device=gpu.device(), **kw)

    def publish_one(w):
        slot = create(w, keep=2)
        number = w.publish(slot.writer)
        published.add(number)
        w.detach(slot.writer)

    def is_there(w):
        row = w.records()["m"]
        assert row.version >= max(published) and row.state == wire.READY, (row, published)
        assert gpu.used() >= row.n_versions * GRANULE

    for _ in range(4):
        insist(daemon, publish_one)
        insist(daemon, is_there)
    insist(daemon, lambda w: w.abort(create(w).writer))
    insist(daemon, lambda w: [w.drop("m", v.version, device=gpu.device()) for v in versions(w, gpu) if not v.current])
    insist(daemon, is_there)
    insist(daemon, lambda w: "m" in w.names() and w.drop("m", device=gpu.device()))
    insist(daemon, lambda w: until(lambda: w.stat().slot_bytes == 0, lambda: w.stat()))
    until(lambda: gpu.used() == 0, lambda: f"{gpu.used()} bytes are left")
    assert f"killed at {point}:1" in daemon.log


@pytest.mark.parametrize("is_published", [True, False])
def test_what_survived_is_freed_once_there_are_descriptors_for_it(gpu, serve, is_published):
    daemon = serve(gpu, "[store]", "resume-timeout = 1", args=["--keeper"])
    with Wire(daemon.socket) as w:
        slot = w.create("m", LAYOUT, device=gpu.device())
        if is_published:
            w.publish(slot.writer)
        with restart(daemon, w) as again:
            pid = again.ping().pid
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
            if is_published:
                again.drop("m", device=gpu.device())
            w.close()  # its part of the memory
            until(lambda: not again.names(), again.names)  # the writer does not return
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
            until(lambda: again.stat().slot_bytes == 0, lambda: again.stat())
            until(lambda: gpu.used() == 0, lambda: f"{gpu.used()} bytes are left")
            assert again.ping().pid == pid


# --- freeing --------------------------------------------------------------------------------------

def test_memory_that_somebody_keeps_is_an_orphan_until_he_lets_go(gpu, serve):
    with Wire(serve(gpu).socket) as w:
        publish(w, gpu.device(), size=40 * MIB)
        lease = w.attach("m", device=gpu.device())
        kept = os.dup(lease.slot_fd)
        size = lease.slot_size
        gpu.fail("cuMemGetInfo", "hang")
        w.drop("m", device=gpu.device())
        w.detach(lease.lease)
        assert w.list(wire.SLOTS)[0].state == wire.LEAVING  # it is still unknown if the GPU has it back
        gpu.heal()
        until(lambda: [r.state for r in w.list(wire.SLOTS)] == [ORPHAN], lambda: w.list(wire.SLOTS))
        assert w.stat().orphan_bytes == size and w.list(wire.SLOTS)[0].n_leases == 0
        os.close(kept)
        until(lambda: w.list(wire.SLOTS) == [] and w.stat().orphan_bytes == 0, lambda: w.list(wire.SLOTS))
        assert w.stat().slot_bytes == 0


def test_who_keeps_much_holds_up_others_no_longer_than_who_keeps_little(gpu, serve):
    n, daemon = 40, serve(gpu)
    with Wire(daemon.socket) as w, Wire(daemon.socket, timeout=n / 2) as other:  # a second for each would be too long
        kept = []
        for i in range(n):
            publish(w, gpu.device(), f"m{i}")
            lease = w.attach(f"m{i}", device=gpu.device())
            kept.append(os.dup(lease.slot_fd))
            w.detach(lease.lease)
        for i in range(n):
            w.drop(f"m{i}", device=gpu.device())
        publish(other, gpu.device())
        until(lambda: [r.state for r in w.list(wire.SLOTS)].count(ORPHAN) == n, lambda: w.list(wire.SLOTS))
        for fd in kept:
            os.close(fd)
        until(lambda: len(w.list(wire.SLOTS)) == 1, lambda: w.list(wire.SLOTS))


OTHER_PROGRAM = f"""
context()
for size in 20 * {MIB}, 0:
    print("ready", flush=True)
    sys.stdin.readline()
    size and new("cuMemAlloc_v2", ctypes.c_size_t(size))
"""


def test_what_another_program_takes_meanwhile_makes_no_lasting_orphan(gpu, serve):
    def has_it():
        memory = os.readlink(f"/proc/self/fd/{kept}")
        with contextlib.suppress(FileNotFoundError):  # one that is being closed
            return memory in [os.readlink(fd) for fd in pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir()]
        return True

    daemon = serve(gpu)
    other = subprocess.Popen(command(OTHER_PROGRAM), env=environment(gpu), stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    with other, Wire(daemon.socket) as w:
        assert other.stdout.readline() == "ready\n"
        publish(w, gpu.device(), size=40 * MIB)
        lease = w.attach("m", device=gpu.device())
        kept = os.dup(lease.slot_fd)
        w.drop("m", device=gpu.device())
        w.detach(lease.lease)
        until(lambda: not has_it(), "weightd has closed it")
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "ready\n"
        os.close(kept)
        until(lambda: [r.state for r in w.list(wire.SLOTS)] == [ORPHAN], lambda: w.list(wire.SLOTS))  # as it looks
        other.stdin.close()
        until(lambda: not w.list(wire.SLOTS), lambda: w.list(wire.SLOTS))


def test_an_orphan_that_is_let_go_hides_no_other(gpu, serve):
    def left():
        return sorted(r.name for r in w.list(wire.SLOTS))

    with Wire(serve(gpu).socket) as w:
        kept = {}
        for name in "a", "b", "c":
            publish(w, gpu.device(), name, size=40 * MIB)
            lease = w.attach(name, device=gpu.device())
            kept[name] = os.dup(lease.slot_fd)
            w.drop(name, device=gpu.device())
            w.detach(lease.lease)
        until(lambda: [r.state for r in w.list(wire.SLOTS)] == [ORPHAN] * 3, lambda: w.list(wire.SLOTS))
        os.close(kept.pop("a"))
        until(lambda: len(left()) == 2, left)  # it is unknown which of them
        with pytest.raises(AssertionError):
            until(lambda: len(left()) < 2, "they go on being orphans", seconds=3)
        for fd in kept.values():
            os.close(fd)
        until(lambda: not left(), left)


def test_our_own_memory_that_comes_and_goes_hides_no_orphan(gpu, serve):
    with Wire(serve(gpu).socket) as w:
        publish(w, gpu.device(), size=40 * MIB)
        publish(w, gpu.device(), "n", size=100 * MIB)
        lease = w.attach("m", device=gpu.device())
        kept = os.dup(lease.slot_fd)
        w.drop("m", device=gpu.device())
        w.detach(lease.lease)
        until(lambda: ORPHAN in [r.state for r in w.list(wire.SLOTS)], lambda: w.list(wire.SLOTS))
        w.drop("n", device=gpu.device())
        until(lambda: "n" not in [r.name for r in w.list(wire.SLOTS)], lambda: w.list(wire.SLOTS))
        with pytest.raises(AssertionError):
            until(lambda: not w.list(wire.SLOTS), "it goes on being one", seconds=2)
        os.close(kept)
        until(lambda: not w.list(wire.SLOTS), lambda: w.list(wire.SLOTS))


def test_an_old_version_is_freed_and_the_memory_is_there_again(gpu, serve):
    with Wire(serve(gpu).socket) as w:
        for _ in range(4):
            publish(w, gpu.device(), size=40 * MIB, keep=1)
        until(lambda: len(w.list(wire.SLOTS)) == 1, lambda: w.list(wire.SLOTS))
        assert gpu.used() == 42 * MIB

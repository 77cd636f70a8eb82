"""Versions that are filled while their memory is made: order, failures, deaths, and servers of other releases."""
import errno
import os
import signal
import struct

import pytest
from integration.load.test_load import gate_library, make_gate, u8, write_model  # noqa: F401
from integration.load.test_provision import FALLOCATE, Held, Load, daemon_of_one, worker_of  # noqa: F401
from integration.programs import compiled
from integration.server.test_kill_matrix import FAULTY
from integration.weightctl.test_weightctl import write_sparse
from lib import features, wire
from lib.box import child_of
from lib.fake_server import PATIENCE_S, FakeServer, later
from lib.wire import Refused, Wire, until

MIB = 1 << 20
PART = 2 * MIB
FIRST = 16 * MIB  # as much memory comes with the reply to an early create
SIZE = 64 * MIB
LAYOUT = wire.image([("t", SIZE)])
FLAGS = 6  # in the values of a create


def create(w, name="m", offset=0):
    w.send_create(name, LAYOUT, offset, flags=wire.EARLY)
    reply = w.answer(wire.CREATE_IMAGE if offset else wire.CREATE)
    return w.slot(reply), struct.unpack_from("<I", reply.body, 44)[0] * PART


def allocated(slot):
    return os.fstat(slot.fd).st_blocks * 512


def is_nothing_left(daemon):
    return daemon.ctl("ls").stdout == "" and '"memory": 0,' in daemon.ctl("ping", "--json").stdout


@pytest.mark.parametrize("offset", [0, 4096], ids=["flat", "image"])
def test_memory_comes_in_order_as_it_is_asked_for(daemon, offset):
    with Wire(daemon.socket, features=wire.IMAGES) as w:
        slot, done = create(w, offset=offset)
        while done < slot.slot_size:
            assert FIRST <= done == allocated(slot) and done % PART == 0
            with pytest.raises(Refused, match="parts of its memory are still to be provided") as refused:
                w.publish(slot.writer)
            assert refused.value.errno == errno.EBUSY
            with pytest.raises(Refused, match="parts of its memory are still to be provided"):
                w.set_files(slot.writer, b"files")
            before, done = done, w.provide(slot.writer, done + 1)
            assert done > before
        assert done == slot.slot_size == w.provide(slot.writer, 2**64 - 1) and allocated(slot) >= done
        w.set_files(slot.writer, b"files")
        assert w.publish(slot.writer) == 1


def test_several_threads_make_memory_where_there_are_processors(daemon, daemon_of_one):
    def n_threads(d):
        return len(os.listdir(f"/proc/{d.pid}/task"))

    before = {d: n_threads(d) for d in (daemon, daemon_of_one)}
    for d in before:
        with Wire(d.socket) as w:
            slot, done = create(w)
            assert w.provide(slot.writer, SIZE) == allocated(slot) == SIZE
    crew = min(3, len(os.sched_getaffinity(0)) - 1)
    assert {d: n_threads(d) - n for d, n in before.items()} == {daemon: crew, daemon_of_one: 0}


def test_a_create_that_is_not_early_has_all_of_its_memory(daemon):
    with Wire(daemon.socket) as w:
        slot = w.create("m", LAYOUT)
        assert allocated(slot) >= slot.slot_size == w.provide(slot.writer, 1)
        w.publish(slot.writer)


@pytest.mark.parametrize("end", ["abort", "close"])
def test_memory_in_the_making_is_charged_while_its_writer_has_it(daemon, end):
    with Wire(daemon.socket) as observer:
        def charged():
            return observer.ping().n_bytes

        w = Wire(daemon.socket)
        slot, _ = create(w)
        kept = os.dup(slot.fd)
        assert charged() >= SIZE
        w.abort(slot.writer) if end == "abort" else w.close()
        assert charged() >= SIZE, "a process has it open"
        os.close(kept)
        until(lambda: charged() == 0, lambda: f"{charged()} bytes are charged")
        if end == "abort":
            with pytest.raises(Refused) as refused:
                w.provide(slot.writer, SIZE)
            assert refused.value.errno == errno.ENOENT
            w.close()


def test_a_load_without_memory_in_the_middle_fails_and_leaves_nothing(make_daemon, tmp_path):
    full = compiled("full_at.so", (features.ROOT / "tests/integration/preload/full_at.c",), "-shared")
    daemon = make_daemon(env={"LD_PRELOAD": str(full), "FULL_AT": str(2 * FIRST)})
    done = daemon.ctl("load", "m", write_sparse(tmp_path / "big.safetensors", SIZE), check=False)
    assert done.returncode == 1, done.stderr
    assert "weightctl: 'm' on host needs 67.1 MB, 2.1 MB more than this machine has free; remove a buffer" in done.stderr
    until(lambda: is_nothing_left(daemon), "nothing is left")


@pytest.fixture
def fallocate(require):
    require("root")
    if os.uname().machine not in FALLOCATE:
        pytest.skip(f"the number of fallocate() on {os.uname().machine} is not in the table here")
    return FALLOCATE[os.uname().machine]


def test_a_load_that_is_killed_while_its_memory_is_made_leaves_nothing(daemon_of_one, tmp_path, fallocate):
    daemon = daemon_of_one
    with Held(worker_of(daemon)) as worker:
        load = Load(daemon, "m", write_sparse(tmp_path / "big.safetensors", SIZE))
        worker.run_past(fallocate, (FIRST + SIZE) // 2 // PART)
        load.hear("m: reading ")
        load.proc.kill()
        load.proc.wait()
    until(lambda: is_nothing_left(daemon), "nothing is left")


def test_weightd_can_end_while_memory_is_made(daemon_of_one, fallocate):
    daemon = daemon_of_one
    with Wire(daemon.socket) as w:
        slot, _ = create(w)
        with Held(worker_of(daemon)) as worker:
            w.send(wire.PROVIDE, wire.BODIES[wire.PROVIDE].pack(slot.writer, SIZE))
            worker.run_past(fallocate, 1)
            daemon.proc.terminate()
            with pytest.raises(wire.Closed):
                w.answer(wire.PROVIDE)
    assert daemon.proc.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("point, n", [("create-answered", 1), ("create-answered", 2), ("create-answered", 3), ("create-provided", 1),
                                      ("create-saved", 1), ("create-stored", 1), ("create-kept", 1)])
def test_a_load_goes_on_with_the_successor_of_a_server_that_died(make_daemon, tmp_path, require, point, n):
    require("faults")
    data = os.urandom(MIB) * (SIZE // MIB)
    write_model(tmp_path / "big.safetensors", {"t": u8(data)})
    env = {"WEIGHTD_FAULT": f"{point}:{n}", "WEIGHTD_FAULT_STATE": str(tmp_path / "passages")}
    daemon = make_daemon("--keeper", env=env, program=FAULTY)
    done = daemon.ctl("load", "m", tmp_path / "big.safetensors")
    assert done.stdout.startswith("m@1 on host: 1 tensor, 67.1 MB")
    assert f"killed at {point}:{n}" in daemon.log
    if point == "create-answered":
        assert daemon.log.count("'m' on host created by") == 1, "it did not begin anew"
    daemon.ctl("verify", "m")
    assert daemon.ctl("save", "m", tmp_path / "saved").returncode == 0
    assert (tmp_path / "saved/model.safetensors").read_bytes() == (tmp_path / "big.safetensors").read_bytes()


@pytest.mark.parametrize("options, names", [([], ["m"]), (["--tp", "all/2", "--tp-rules", "llama"], ["m-tp0", "m-tp1"])],
                         ids=["one", "ranks"])
def test_a_load_is_with_the_successor_of_a_server_before_it_has_read_all(make_daemon, make_gate, tmp_path, options, names):
    """weightd keeps for 30 s what nobody claims, and a load may read for longer."""
    path, daemon = tmp_path / "model.safetensors", make_daemon("--keeper")
    tensors = {"model.embed_tokens.weight": ("U8", [8, MIB], os.urandom(8 * MIB))}
    gate = make_gate(path, write_model(path, tensors), "pause")
    gate.start(daemon, *options, "m", path)
    os.kill(child_of(daemon.pid), signal.SIGKILL)
    with Wire(daemon.socket) as observer:
        until(lambda: observer.ping().n_sessions > 1, "the load is back")
    done = gate.open()
    assert done.returncode == 0, done.stderr
    daemon.ctl("verify", *names)


def test_a_load_whose_version_a_successor_gave_up_is_told(make_daemon, make_gate, tmp_path):
    (tmp_path / "conf").write_text("[store]\nresume-timeout = 0\n")
    path, daemon = tmp_path / "model.safetensors", make_daemon("--keeper", "--config", tmp_path / "conf")
    gate = make_gate(path, write_model(path, {"t": u8(os.urandom(8 * MIB))}), "pause")
    gate.start(daemon, "--threads", "1", "m", path)
    gate.proc.send_signal(signal.SIGSTOP)
    os.kill(child_of(daemon.pid), signal.SIGKILL)
    until(lambda: daemon.ctl("ls").stdout == "", "the version is given up")
    gate.proc.send_signal(signal.SIGCONT)
    with Wire(daemon.socket) as observer:
        until(lambda: observer.ping().n_sessions > 1, "the load is back")
    done = gate.open()
    assert done.returncode == 1 and b"the bytes written were lost with the connection to weightd" in done.stderr, done.stderr
    assert daemon.ctl("ls").stdout == ""


def test_a_writer_goes_on_with_the_memory_that_it_had(make_daemon):
    """Bytes that are filled stay while the successor makes the rest."""
    daemon = make_daemon("--keeper")
    filled = os.urandom(MIB) * (2 * FIRST // MIB)
    with Wire(daemon.socket) as w:
        slot, _ = create(w)
        assert 2 * FIRST <= w.provide(slot.writer, 2 * FIRST) < slot.slot_size
        os.pwrite(slot.fd, filled, 0)
        fd = os.dup(slot.fd)
        os.kill(child_of(daemon.pid), signal.SIGKILL)
        with pytest.raises(wire.Closed):
            w.ping()
    with Wire(daemon.socket) as w:
        assert w.resume(slot.writer) == 0
        with pytest.raises(Refused, match="parts of its memory are still to be provided"):
            w.publish(slot.writer)
        assert w.provide(slot.writer, 3 * FIRST) >= 3 * FIRST
        assert w.provide(slot.writer, SIZE + 1) == slot.slot_size == os.fstat(fd).st_blocks * 512
        assert os.pread(fd, SIZE, 0) == filled + bytes(SIZE - len(filled))
        os.close(fd)
        assert w.publish(slot.writer) == 1


def load_at(daemon, server, path):
    return later(daemon.ctl, "load", "m", path, "--quiet", "--socket", server.path, check=False)


def asked_for(server):
    server.accept()
    peer = server.accept()
    if not server.features & wire.WITH_PROVIDE:
        server.accept()  # for questions about progress
    while (request := peer.request()).op not in (wire.CREATE, wire.CREATE_IMAGE):
        peer.fail(errno.ENOENT)
    return peer, request


def give(peer, request, n_parts, size=SIZE):
    offset = request.values[-1] if request.op == wire.CREATE_IMAGE else 0
    fds = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("slot", "digests")]
    os.ftruncate(fds[0], offset + size)
    os.ftruncate(fds[1], MIB)
    reader = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDONLY)
    peer.reply("5QII96s", 9, 3, 1, size, offset + size, 0, n_parts, wire.location(offset + size), fds=[fds[0], reader, fds[1]])
    for fd in (*fds, reader):
        os.close(fd)
    return offset + size


@pytest.mark.parametrize("is_older", [False, True], ids=["new", "older"])
def test_only_a_server_that_provides_is_asked_for_an_early_create(daemon, tmp_path, is_older):
    known = wire.SURVIVES | wire.LAYOUTS | wire.IMAGES | (0 if is_older else wire.WITH_PROVIDE)
    with FakeServer(tmp_path / "w.sock", features=known) as server:
        asked = load_at(daemon, server, write_sparse(tmp_path / "big.safetensors", SIZE))
        peer, request = asked_for(server)
        peer.fail(errno.ENOMEM)
        assert "the test says no" in asked.result(PATIENCE_S).stderr
    assert bool(request.values[FLAGS] & wire.EARLY) == (not is_older)


def test_an_error_in_the_middle_is_the_error_of_the_load(daemon, tmp_path):
    with FakeServer(tmp_path / "w.sock", features=wire.SURVIVES | wire.LAYOUTS | wire.IMAGES | wire.WITH_PROVIDE) as server:
        asked = load_at(daemon, server, write_sparse(tmp_path / "big.safetensors", SIZE))
        peer, request = asked_for(server)
        size = give(peer, request, FIRST // PART)
        assert peer.request(wire.PROVIDE).values == (9, 2 * FIRST)
        peer.reply("Q", 2 * FIRST)
        assert peer.request(wire.PROVIDE).values == (9, 3 * FIRST) and size > 3 * FIRST
        peer.fail(errno.ENOMEM)
        peer.request(wire.ABORT)
        peer.reply()
        done = asked.result(PATIENCE_S)
    assert done.returncode == 1 and "the test says no" in done.stderr


@pytest.mark.parametrize("done", [FIRST - PART, 2**63])
def test_a_server_that_lies_about_its_memory_is_refused(daemon, tmp_path, done):
    with FakeServer(tmp_path / "w.sock", features=wire.SURVIVES | wire.LAYOUTS | wire.IMAGES | wire.WITH_PROVIDE) as server:
        asked = load_at(daemon, server, write_sparse(tmp_path / "big.safetensors", SIZE))
        peer, request = asked_for(server)
        give(peer, request, FIRST // PART)
        peer.request(wire.PROVIDE)
        peer.reply("Q", done)
        peer.request(wire.ABORT)
        peer.reply()
        done = asked.result(PATIENCE_S)
    assert done.returncode == 1 and os.strerror(errno.EBADMSG) in done.stderr

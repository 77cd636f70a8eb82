"""Memory of the older kind (--handle ipc), on fake GPUs: a process holds it, and it dies with that process."""
import errno
import json
import os
import pathlib
import select
import signal
import struct
import subprocess
import sys

import pytest
from lib import features
from lib.features import ROOT
from lib.wire import BY_MEMORY, HISTORY, LOST, VERSION_GONE, Wire, until

PROGRAM = """
import hashlib, json, sys
from lib.cuda_calls import *

SIZE = 3 << 20
held = {}

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 64)]

def data(seed):
    return hashlib.shake_128(str(seed).encode()).digest(SIZE)

def put(name, seed, device="cuda:0", **kw):
    return publish(name, data(seed), device, handle=1, **kw)

def take(name, device="cuda:0"):
    held[name] = attach(name, device)
    return held[name].version

def publish_blank(name, size):
    with create(name, size, handle=1) as writer:
        return writer.publish()

def seed(found):
    return next((s for s in range(9) if found == data(s)), None)

def check(f, *arguments):
    try:
        f(*arguments)
    except Failed as e:
        return [e.errno, e.sentence]

def refuses_handle(name):
    import weightd
    try:
        weightd.attach(name, "cuda:0").ipc_handle()
    except weightd.Error as e:
        return e.errno

def handle(name):
    import weightd
    held[name] = weightd.attach(name, "cuda:0")
    return held[name].ipc_handle().hex()

def open_handle(text, wanted=0):
    context()
    p, to = ctypes.c_uint64(), ctypes.create_string_buffer(SIZE)
    do("cuIpcOpenMemHandle_v2", ctypes.byref(p), Handle.from_buffer_copy(bytes.fromhex(text)), 1, wanted=wanted)
    if not wanted:
        do("cuMemcpyDtoH_v2", to, p, ctypes.c_size_t(SIZE))
        do("cuIpcCloseMemHandle", p)
        return seed(to.raw)

for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""
IPC = 2  # enum weightd_memory


class Program:
    """A process of libweightd's that evaluates expressions."""

    def __init__(self, scene):
        self.proc = subprocess.Popen([sys.executable, "-c", PROGRAM], env=scene.env, text=True,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __call__(self, expression):
        self.proc.stdin.write(expression + "\n")
        self.proc.stdin.flush()
        line = self.proc.stdout.readline()
        assert line, f"{expression}: {self.proc.communicate()[1]}"
        return json.loads(line)

    def end(self):
        self.proc.kill()
        self.proc.communicate()


class Scene:
    def __init__(self, gpus, daemon):
        self.gpus, self.daemon, self.programs = gpus, daemon, []
        self.env = os.environ | gpus.env | {"PYTHONPATH": f"{ROOT}/tests:{ROOT}/libclient/python",
                                            "WEIGHTD_SOCKET": daemon.socket}

    def program(self):
        self.programs.append(Program(self))
        return self.programs[-1]

    def holders(self):
        """Processes that hold memory of these GPUs, oldest first."""
        found = []
        for proc in pathlib.Path("/proc").iterdir():
            try:
                command = (proc / "cmdline").read_bytes()
                if b"weightd-cuda\0--hold\0" in command and \
                        f"FAKE_CUDA_STATE={self.gpus.folder}\0".encode() in (proc / "environ").read_bytes():
                    found.append(int(proc.name))
            except OSError:
                pass  # not ours, or over
        return sorted(found)

    def wait_holders(self, n):
        until(lambda: len(self.holders()) == n, f"{n} holders, not {self.holders()}")

    def kill_holder(self):
        """And waits until all that it held is released: its command line is empty before that."""
        pid, = self.holders()
        end = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(end, signal.SIGKILL)
            assert select.select([end], [], [], 60)[0], f"holder {pid} does not die"
        finally:
            os.close(end)
        self.gpus.wait_let_go(pid)

    def history(self, name="m"):
        """{version: why it is no more; 0: it is there}"""
        with Wire(self.daemon.socket) as w:
            return {v.version: v.why for v in w.list(HISTORY, name, self.gpus.device())}


@pytest.fixture
def make_scene(make_gpus, make_daemon):
    features.require("library")
    scenes = []

    def make(*args, **kw):
        gpus = make_gpus(**kw)
        scenes.append(Scene(gpus, make_daemon(*args, env=gpus.env)))
        return scenes[-1]

    yield make
    for scene in scenes:
        for program in scene.programs:
            program.end()


@pytest.fixture
def scene(make_scene):
    return make_scene()


def test_what_one_process_writes_another_reads(scene):
    writer, reader = scene.program(), scene.program()
    assert writer("put('m', 1)") == 1
    assert reader("take('m')") == 1
    assert reader("list(held['m'].location[:2])") == [IPC, 0]
    assert reader("seed(held['m'].read())") == 1
    assert len(scene.holders()) == 1


def test_a_program_without_libweightd_opens_the_handle(scene):
    owner, foreign = scene.program(), scene.program()
    owner("put('m', 1)")
    handle = owner("handle('m')")
    assert len(handle) == 128
    assert foreign(f"open_handle('{handle}')") == 1
    scene.kill_holder()
    foreign(f"open_handle('{handle}', wanted=400)")


def test_fresh_memory_is_zero(scene):
    program = scene.program()
    assert program("publish_blank('m', 5000)") == 1
    program("take('m')")
    assert program("not any(held['m'].read())")


def test_one_process_holds_all_versions_of_a_gpu_and_frees_each_when_the_last_lets_go(scene):
    writer, reader = scene.program(), scene.program()
    for seed in (1, 2):
        writer(f"put('a', {seed})")
    writer("put('b', 3)")
    holder, = scene.holders()
    each = scene.gpus.used() // 3
    assert scene.gpus.used() == 3 * each and each % (2 << 20) == 0
    reader("take('a')")
    writer("client.drop('a', device='cuda:0')")
    scene.gpus.wait_used(2 * each)  # the reader has one of them still
    assert reader("seed(held['a'].read())") == 2
    reader("held['a'].detach()")
    scene.gpus.wait_used(each)
    reader("take('b')")
    assert reader("seed(held['b'].read())") == 3
    assert scene.holders() == [holder]


def test_a_reader_that_dies_holds_nothing(scene):
    writer, reader = scene.program(), scene.program()
    writer("put('m', 1)")
    reader("take('m')")
    writer("client.drop('m', device='cuda:0')")
    assert scene.gpus.used() > 0
    reader.end()
    scene.gpus.wait_used(0)


def test_a_holder_that_has_nothing_ends_and_comes_again(make_scene, tmp_path):
    (tmp_path / "conf").write_text("[cuda]\nidle-timeout = 1\n")
    scene = make_scene("--config", tmp_path / "conf")
    program = scene.program()
    program("put('m', 1)")
    first, = scene.holders()
    program("client.drop('m', device='cuda:0')")
    scene.wait_holders(0)
    until(lambda: not os.path.exists(f"/proc/{first}"), "it is waited for")
    scene.gpus.wait_used(0)
    program("put('m', 2)")
    program("take('m')")
    assert program("seed(held['m'].read())") == 2 and scene.holders() != [first]


def test_what_a_dead_holder_held_is_lost_and_said_to_be(scene):
    writer, reader = scene.program(), scene.program()
    writer("put('m', 1)")
    writer("put('m', 2)")
    reader("take('m')")
    with Wire(scene.daemon.socket) as w:
        after = w.events()[1]
        scene.kill_holder()
        events = w.events(after, 60_000)[0]
    assert (events[0].event, events[0].why) == (VERSION_GONE, LOST)
    until(lambda: scene.history() == {1: LOST, 2: LOST}, "both are lost")
    code, sentence = reader("check(held['m'].read)")
    assert code == errno.EIO and "lost" in sentence
    code, sentence = writer("check(attach, 'm', 'cuda:0')")
    assert code == errno.ENODATA and "has no version left" in sentence
    for version in (1, 2):
        assert f"'m@{version}' on {scene.gpus.device()} lost with the process that held its memory" in scene.daemon.log
    assert writer("put('m', 3)") == 3
    assert reader("held['m'].detach()") is None
    assert reader("take('m')") == 3
    assert reader("seed(held['m'].read())") == 3
    assert scene.history() == {1: LOST, 2: LOST, 3: 0}


def test_what_dies_while_it_is_written_is_not_published(scene):
    program = scene.program()
    program("held.update(w=create('m', 5000, handle=1)) or 0")
    scene.kill_holder()
    code, sentence = program("check(held['w'].publish)")
    assert (code, "lost" in sentence) in ((errno.EIO, True), (errno.EOWNERDEAD, True)), sentence
    program("held['w'].free()")
    assert program("put('m', 2)") == 1


def test_an_update_in_place_of_what_died_is_refused(scene):
    program = scene.program()
    program("put('m', 1, exclusive=True)")
    program("held.update(w=create('m', 3 << 20, handle=1)) or 0")
    scene.kill_holder()
    until(lambda: scene.history() == {1: LOST}, "it is lost")
    assert program("check(held['w'].publish)")[0] in (errno.EIO, errno.EOWNERDEAD)
    program("held['w'].free()")
    assert program("put('m', 2)") == 2
    program("take('m')")
    assert program("seed(held['m'].read())") == 2


def kill_daemon(scene):
    """And waits for the one that takes its place."""
    with Wire(scene.daemon.socket) as w:
        pid = w.ping().pid
        os.kill(pid, signal.SIGKILL)
        w.hang_up()
    with Wire(scene.daemon.socket) as w:
        assert w.ping().pid != pid


def test_memory_survives_weightd(make_scene):
    scene = make_scene("--keeper")
    writer, reader = scene.program(), scene.program()
    writer("put('m', 1)")
    reader("take('m')")
    before = scene.holders(), scene.gpus.used()
    kill_daemon(scene)
    assert (scene.holders(), scene.gpus.used()) == before
    assert reader("seed(held['m'].read())") == 1
    assert writer("take('m')") == 1
    assert writer("seed(held['m'].read())") == 1
    assert writer("list(held['m'].location[:1])") == [IPC]
    for program in (reader, writer):
        program("held['m'].detach()")
    writer("client.drop('m', device='cuda:0')")
    scene.gpus.wait_used(0)
    scene.wait_holders(0)  # it gets no requests any more


def test_a_reader_keeps_what_it_has_when_weightd_is_stopped(scene):
    writer, reader = scene.program(), scene.program()
    writer("put('m', 1)")
    reader("take('m')")
    scene.daemon.stop()
    assert reader("seed(held['m'].read())") == 1
    reader("held['m'].detach()")
    scene.gpus.wait_used(0)
    scene.wait_holders(0)
    scene.daemon.start()


def test_what_is_left_is_served_when_the_newest_is_lost(make_scene):
    scene = make_scene("--keeper")
    writer, reader = scene.program(), scene.program()
    writer("put('m', 1)")
    first, = scene.holders()
    kill_daemon(scene)
    writer("put('m', 2)")
    reader("take('m')")
    assert reader("seed(held['m'].read())") == 2
    second, = set(scene.holders()) - {first}
    os.kill(second, signal.SIGKILL)
    until(lambda: scene.history() == {1: 0, 2: LOST}, "the newest is lost")
    reader("held['m'].detach()")
    assert reader("take('m')") == 1
    assert reader("seed(held['m'].read())") == 1
    assert f"'m@1' on {scene.gpus.device()} is served instead" in scene.daemon.log
    assert writer("put('m', 3)") == 3


def test_what_died_while_there_was_no_weightd_is_lost(make_scene):
    scene = make_scene("--keeper")
    program = scene.program()
    program("put('m', 1)")
    program("put('n', 2)")
    with Wire(scene.daemon.socket) as w:
        pid = w.ping().pid
        os.kill(pid, signal.SIGSTOP)
        scene.kill_holder()
        os.kill(pid, signal.SIGKILL)
        w.hang_up()
    assert program("check(attach, 'm', 'cuda:0')")[0] == errno.ENODATA
    assert scene.history() == {1: LOST}
    with Wire(scene.daemon.socket) as w:
        assert w.stat().n_quarantined == 0
        kept = w.stat().store_used
    assert f"'n@1' on {scene.gpus.device()} lost with the process that held its memory" in scene.daemon.log
    assert program("put('m', 3)") == 2
    program("take('m')")
    assert program("seed(held['m'].read())") == 3
    with Wire(scene.daemon.socket) as w:
        assert w.stat().store_used == kept + 2  # slot and table


def test_each_gpu_has_its_own(make_scene):
    scene = make_scene(devices=2)
    program = scene.program()
    program("put('m', 1, 'cuda:0')")
    first, = scene.holders()
    program("put('m', 2, 'cuda:1')")
    assert len(scene.holders()) == 2
    assert [scene.gpus.n_contexts(i) for i in range(2)] == [1, 1]
    os.kill(first, signal.SIGKILL)
    until(lambda: program("check(attach, 'm', 'cuda:0')"), "it is lost")
    program("take('m', 'cuda:1')")
    assert program("seed(held['m'].read())") == 2
    assert program("put('m', 3, 'cuda:0')") == 2


def put_in_time(program, name, seed):
    """With a timeout so short that a holder may not even have started before it is over, as often as that is so."""
    def is_published():
        code, sentence = program(f"check(put, '{name}', {seed})") or (0, "")
        assert code in (0, errno.ETIMEDOUT, errno.EAGAIN), sentence  # or it has to wait, having been so too often
        return code == 0
    until(is_published, "what does not hang answers in time")


def test_a_holder_that_hangs_keeps_what_it_has(make_scene, tmp_path):
    (tmp_path / "conf").write_text("[cuda]\ntimeout = 1\nidle-timeout = 1\n")
    scene = make_scene("--config", tmp_path / "conf")
    program = scene.program()
    put_in_time(program, "m", 1)
    first, = scene.holders()
    used = scene.gpus.used()
    scene.gpus.fail("cuMemAlloc_v2", "hang")
    code, sentence = program("check(put, 'n', 2)")
    assert code == errno.ETIMEDOUT and "did not answer within 1 s and keeps what it holds" in sentence
    program("take('m')")
    assert program("seed(held['m'].read())") == 1
    scene.gpus.heal()
    put_in_time(program, "n", 3)
    assert first in scene.holders() and len(scene.holders()) == 2
    scene.gpus.wait_used(2 * used)  # its memory was ready too late
    program("held['m'].detach()")
    program("client.drop('m', device='cuda:0')")
    until(lambda: not os.path.exists(f"/proc/{first}"), "it ends when it has nothing")


def test_a_holder_that_hangs_and_has_nothing_is_killed(make_scene, tmp_path):
    (tmp_path / "conf").write_text("[cuda]\ntimeout = 1\nidle-timeout = 1\n")
    scene = make_scene("--config", tmp_path / "conf")
    program = scene.program()
    scene.gpus.fail("cuMemAlloc_v2", "hang")
    code, sentence = program("check(put, 'm', 1)")
    assert code == errno.ETIMEDOUT and "did not answer within 1 s and was killed" in sentence
    scene.wait_holders(0)
    scene.gpus.heal()
    put_in_time(program, "m", 1)


@pytest.mark.parametrize("symbol, result, says", [
    ("cuIpcGetMemHandle", 801, "its memory has no cudaIpcMemHandle_t; use the default kind (without --handle ipc)"),
    ("cuMemAlloc_v2", 2, "cannot have 4.2 MB: it provides no memory: CUDA_ERROR_OUT_OF_MEMORY"),
    ("cuMemsetD8_v2", 702, "its memory cannot be filled with zeros"),
])
def test_a_refusal_says_why_and_leaves_nothing(scene, symbol, result, says):
    program = scene.program()
    program("put('m', 1)")
    used = scene.gpus.used()
    scene.gpus.fail(symbol, result)
    assert says in program("check(put, 'n', 2)")[1]
    scene.gpus.heal()
    scene.gpus.wait_used(used)
    assert program("put('n', 2)") == 1


def test_what_does_not_fit_is_refused_and_what_is_only_kept_makes_room(make_scene, tmp_path):
    (tmp_path / "conf").write_text("[cuda]\nreserve = 0\n")
    scene = make_scene("--config", tmp_path / "conf", memory="84M")  # contexts of 8 MiB among it
    program = scene.program()
    code, sentence = program("check(lambda: create('m', 80 << 20, handle=1))")
    assert code == errno.ENOMEM and "are free" in sentence
    for version in (1, 2, 3):
        assert program("publish_blank('m', 24 << 20)") == version
    assert scene.history() == {1: BY_MEMORY, 2: 0, 3: 0}


def test_host_memory_and_buffers_of_the_usual_kind_have_no_such_handle(scene):
    program = scene.program()
    code, sentence = program("check(lambda: create('m', 5000, 'host', handle=1))")
    assert code == errno.EOPNOTSUPP and "host has no memory with a cudaIpcMemHandle_t" in sentence
    program("publish('m', data(1))")
    assert program("refuses_handle('m')") == errno.EOPNOTSUPP
    code, sentence = program("check(put, 'm', 2)")
    assert code == errno.EINVAL and "remove it first (weightctl rm m)" in sentence
    program("put('n', 3)")
    assert program("publish('n', data(4))") == 2  # a buffer stays what it is
    program("take('n')")
    assert program("held['n'].location[0]") == IPC


def test_weightctl_loads_it_and_tells_what_became_of_it(scene, tmp_path):
    header = json.dumps({"t": {"dtype": "U8", "shape": [3 << 20], "data_offsets": [0, 3 << 20]}}).encode()
    program = scene.program()
    data = bytes.fromhex(program("data(5).hex()"))
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    load = "load", "--device", "cuda:0", "--handle", "ipc", "m", tmp_path / "m.safetensors"
    scene.daemon.ctl(*load)
    program("take('m')")
    assert program("seed(held['m'].read())") == 5
    scene.daemon.ctl("verify", "--device", "cuda:0", "m")
    row, = json.loads(scene.daemon.ctl("ls", "--json").stdout)["buffers"]
    assert row["handle"] == "ipc"
    scene.kill_holder()
    until(lambda: scene.history() == {1: LOST}, "it is lost")
    assert "lost" in scene.daemon.ctl("history", "--device", "cuda:0", "m").stdout
    scene.daemon.ctl(*load)
    scene.daemon.ctl("verify", "--device", "cuda:0", "m")

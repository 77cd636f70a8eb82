"""
The daemon is killed at each of its named points (server/base/fault.c), one by one, while it is made to do all it
can do; the keeper starts it again, and nothing may be lost, nothing half done be seen, nothing be left over.

A scene is what is done. It is played once without a kill, to count how often it passes each point; then once for
each passage that is picked of all scenes', with a kill there (WEIGHTD_KILLS=all picks them all). After each step, and so
right after the restart, everything that was acknowledged must be there, byte by byte, and nothing else.
Meanwhile readers check what they have mapped, all the time.
"""
import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import pathlib
import signal
import select
import struct
import subprocess
import threading
import time
import zlib
from typing import NamedTuple

import pytest
from integration.programs import compiled
from lib import features, native
from lib.child import Child
from lib.daemon import Daemon, unhindered_s
from lib.native import READY, TORN, Client, Failed
from lib.wire import SLOTS, VERSIONS, Closed, Wire, memfd, stopped, until

FAULTY = features.BUILD.with_name(features.BUILD.name + "-faults") / "weightd"
SIZE = 12288
KILLS_PER_POINT = os.environ.get("WEIGHTD_KILLS", "10" if "WEIGHTD_LONG" in os.environ else "2")
EVICT = 1  # enum weightd_policy
LONGEST_LOOK_S = 1  # limit for a reader that asks the daemon for nothing
LONGEST_CALL_S = 15  # limit for one that does: some restarts, each after the keeper's pause


def points():
    """The points of the daemon; none where it is not built."""
    if not FAULTY.exists():
        return ["none"]
    return subprocess.run([FAULTY], env=os.environ | {"WEIGHTD_FAULT": "list"}, check=True, text=True,
                          stdout=subprocess.PIPE).stdout.split()


POINTS = points()
ON_GPUS = {"release-begun"}  # only memory of GPUs passes it: see cuda/test_server.py
OF_FILES = {point for point in POINTS if point.startswith("files-")}  # see test_kill_images.py
OF_SHARES = {point for point in POINTS if point.startswith("share-")}  # see load/test_share.py
OF_JOBS = {point for point in POINTS if point.startswith("job-") or point == "recovery-job"}  # see test_kill_jobs.py


def content(name, number):
    """The bytes of a version: they encode its name and its number."""
    return struct.pack("<II", zlib.crc32(name.encode()), number) * (SIZE // 8)


def number_of(name, data):
    """The number of the version with these bytes, which have to be one, whole."""
    number = struct.unpack_from("<I", data, 4)[0]
    assert data == content(name, number), f"{name}: torn or mixed, it begins as version {number}"
    return number


# --- Readers ----------------------------------------------------------------------------------------


def check_mapped(buffer, name):
    assert number_of(name, buffer.bytes()) == buffer.version


def stay(client, buffer, name):
    """Holds what was attached first."""
    check_mapped(buffer, name)
    return buffer


newest = 0


def look_on(client, buffer, name):
    """Likewise, and learns of newer versions, which are never removed: this buffer is not rolled back."""
    global newest
    state, version = buffer.state()
    if state == READY:
        assert version >= newest, f"{name}: the head page had {newest}, and now has {version}"
        newest = version
    return stay(client, buffer, name)


def follow(client, buffer, name):
    """Moves to the current version."""
    check_mapped(buffer, name)
    try:
        new = buffer.refresh()
    except Failed as e:
        if e.errno not in (errno.ENOENT, errno.ESTALE, errno.ENODATA):
            raise
        return buffer  # it is removed
    if not new:
        return buffer
    check_mapped(new, name)
    buffer.detach()
    return new


def pause(client, buffer, name):
    """Pauses on request. An evicted reader must not use the bytes it read; its next pause reports that."""
    try:
        buffer = buffer or client.attach(name)
        buffer.pause()
        data, version = buffer.bytes(), buffer.version
        if data != content(name, version):
            buffer.pause()
            raise AssertionError(f"{name}: torn or mixed at version {version}, and no reader was evicted")
    except Failed as e:
        if e.errno == errno.EUCLEAN and buffer:
            buffer.detach()
            return None
        if e.errno not in (errno.EUCLEAN, errno.EAGAIN, errno.ESTALE):
            raise
    return buffer


def look_twice(client, buffer, name):
    """Never pauses, and finds out whether what was read is whole."""
    try:
        ticket = buffer.read_begin()
    except Failed as e:
        if e.errno not in (errno.EAGAIN, errno.EUCLEAN, errno.ESTALE):
            raise
        return buffer
    data = buffer.bytes()
    if not buffer.read_retry(ticket):
        assert number_of(name, data) == ticket >> 8
    return buffer


def never_torn(client, buffer, name):
    """Likewise, for a buffer that is never torn, because its writers live."""
    assert buffer.state()[0] != TORN, f"{name} is torn"
    return look_twice(client, buffer, name)


def read(pipe, path, name, habit):
    """A reader's life: until its order to end, which it answers with a report."""
    with Client(path) as client:
        buffer = client.attach(name)
        pipe.send("attached")
        longest, n, before = 0, 0, unhindered_s("self")
        while not pipe.poll(0.0005):
            buffer = habit(client, buffer, name)
            now = unhindered_s("self")
            longest, n, before = max(longest, now - before), n + 1, now
        if buffer:
            buffer.detach()
        pipe.send((n, longest))


# --- The stage ---------------------------------------------------------------------------------------


def has_ended(pid, within_s):
    """True if the process ends in that time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], within_s)[0])
    finally:
        os.close(fd)


@functools.cache
def manifests():
    """The functions of server/restart/manifest.h."""
    sources = ["server/restart/manifest.c", "server/restart/manifest_memory.c", *(f"ipc/{n}.c" for n in ("hash", "hash_avx2", "base/fd", "base/num"))]
    library = ctypes.CDLL(compiled("manifest", tuple(features.ROOT / path for path in sources), "-shared"))
    library.manifest_open.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
    library.manifest_current.argtypes = library.manifest_free.argtypes = [ctypes.c_void_p]
    library.manifest_current.restype = ctypes.c_void_p
    return library


def next_version(raw):
    """The next version in the valid record of a manifest, which has to be whole."""
    buffer, = struct.unpack_from("<Q", raw, 16)
    fd = memfd(raw, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    manifest = ctypes.c_void_p()
    r = manifests().manifest_open(fd, buffer, ctypes.byref(manifest), ctypes.byref(ctypes.c_uint32()))
    os.close(fd)
    assert r == 0, f"a manifest cannot be read: {os.strerror(-r)}"
    _, _, number = (ctypes.c_uint64 * 3).from_address(manifests().manifest_current(manifest) + 16)
    manifests().manifest_free(manifest)
    return number


class Faulty(Daemon):
    """A keeper of a daemon that dies at chosen points."""

    def __init__(self, faults):
        self.faults = faults
        super().__init__("--keeper", env={"WEIGHTD_FAULT": ",".join(f"{p}:{n}" for p, n in faults.items()),
                                          "WEIGHTD_FAULT_STATE": "passages"})

    def start(self):
        self.state = self.folder / "passages"
        self.impatient = True
        self.wrongs = []
        self.env["WEIGHTD_FAULT_STATE"] = str(self.state)
        self.command = [FAULTY if word == features.BUILD / "weightd" else word for word in self.command]
        super().start()
        self.hurrier = threading.Thread(target=self.hurry)
        self.hurrier.start()

    def hurry(self):
        """The keeper shall not pause before it starts another daemon, which it may have done nevertheless."""
        children = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children")
        buried = ""
        while self.impatient:
            pid = children.read_text()
            if pid == buried or not pid:
                time.sleep(0.001)  # the keeper is at work, and no event reports it
                continue
            if has_ended(int(pid), 0.05) and self.impatient:
                with stopped(self):
                    if children.read_text() in ("", pid):
                        try:
                            self.inspect()
                        except AssertionError as e:
                            self.wrongs.append(e)
                        self.proc.send_signal(signal.SIGHUP)
                buried = pid

    def inspect(self):
        """Checks the rest of a dead daemon: manifests that are whole, and heads that promise nothing beyond them."""
        kept = {"weightd-manifest": {}, "weightd-head": {}}
        for path, name in self.memfds():
            if name in kept:
                with contextlib.suppress(FileNotFoundError), open(path, "rb") as f:
                    raw = f.read()
                    kept[name][struct.unpack_from("<Q", raw, 16)] = raw
        for buffer, raw in kept["weightd-head"].items():
            if buffer in kept["weightd-manifest"]:
                head = struct.unpack_from("<Q", raw, 24)[0] >> 8
                due = next_version(kept["weightd-manifest"][buffer])
                assert head < due, f"the head page has version {head}, and {due} is not committed"

    def close(self):
        self.impatient = False
        self.hurrier.join()
        with open(self.state, "r+b") as f:  # past every deadly one: an order to end now shall end it without a fault
            f.write(struct.pack("<Q", 1 << 32) * len(POINTS))
        super().close()

    def passages(self):
        return dict(zip(POINTS, struct.unpack(f"<{len(POINTS)}Q", self.state.read_bytes())))

    def memfds(self):
        """The descriptors of buffers in the keeper."""
        found = []
        for entry in pathlib.Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                link = os.readlink(entry)
                found += [(entry, link[7:].split()[0])] if link.startswith("/memfd:weightd") else []
        return found


class Stage:
    """The means of a scene: a client, readers, and a record of all acknowledged changes."""

    def __init__(self, daemon, is_restless):
        self.daemon = daemon
        self.is_restless = is_restless  # the daemon dies after each step too
        self.client = self.meet()
        self.truth = {}  # name: {version: what it holds}
        self.current = {}
        self.held = set()  # (name, version) that the client itself reads
        self.may_stay = {}  # name: versions that have no reader, of which a restarted daemon may have no record
        self.torn = set()
        self.latest = {}
        self.readers = []
        self.store_used = self.client.stat().store_used

    def meet(self):
        """A client without a first connection does not wait for a daemon."""
        client = Client()
        connected = lambda: native.lib.weightd_connect(client.w, self.daemon.socket.encode()) == 0
        until(connected, "the daemon takes us")
        return client

    def close(self):
        for child, _ in self.readers:
            child.kill()
        self.client.close()

    def reader(self, name, habit):
        child = Child(read, self.daemon.socket, name, habit)
        self.readers.append((child, habit))
        assert child.hear() == "attached"

    def end_readers(self):
        n = 0
        for child, habit in self.readers:
            try:
                child.say("end")
                checks, longest = child.hear()
            except (EOFError, BrokenPipeError):
                raise AssertionError(f"the reader ({habit.__name__}) ended with {child.end()}") from None
            most = LONGEST_LOOK_S if habit in (stay, look_on, look_twice, never_torn) else LONGEST_CALL_S
            assert longest < most, f"a reader ({habit.__name__}) was held up for {longest:.3f} s"
            n += checks
            child.end()
        self.readers = []
        return n

    def insist(self, function, *arguments, gone=()):
        """Asks again if the daemon died and may have done it or not; the errors in `gone` mean that it did."""
        asked = 0
        while True:
            try:
                return function(*arguments)
            except Failed as e:
                if asked and e.errno in gone:
                    return None
                if e.errno != errno.ECONNABORTED:
                    raise
                asked += 1

    def check(self):
        """All that was acknowledged is there, and nothing else."""
        self.check_as_it_is()
        if self.is_restless:
            self.kill()
            self.check_as_it_is()

    def check_as_it_is(self):
        listed, current = {}, {}
        for name in self.look(Wire.names):
            for row in self.look(Wire.list, VERSIONS, name):
                listed.setdefault(name, set()).add(row.version)
                if row.current:
                    current[name] = row.version
        for name in listed.keys() | self.truth.keys():
            found, due = listed.get(name, set()), set(self.truth.get(name, ()))
            assert found - self.may_stay.get(name, set()) == due, f"{name}: {found} is listed, {due} is due"
        assert current == {name: version for name, version in self.current.items() if version}
        for name, versions in self.truth.items():
            for version in versions if name not in self.torn else ():
                with self.client.attach(name, version=version) as b:
                    assert (b.version, number_of(name, b.bytes())) == (version, version)
                    assert b.state() == (READY, self.current[name]), f"{name}: the state in its head page"
                    b.verify()

    def look(self, ask, *arguments):
        """The answer to a client that does not reconnect."""
        while True:
            try:
                with Wire(self.daemon.socket) as w:
                    return ask(w, *arguments)
            except (Closed, OSError):
                until(self.daemon.is_serving, "it serves again")

    # --- steps ---

    def publish(self, name, keep=8, between=lambda: None, **options):
        number = self.latest.get(name, 0) + 1
        in_place = options.get("exclusive")
        with self.client.create(name, SIZE, keep=keep, **options) as writer:
            if options.get("replace"):
                self.truth[name], self.current[name] = {}, 0
            if not in_place:
                self.check()
            writer.write(content(name, number)[:SIZE // 2])
            between()
            writer.write(content(name, number))
            got = writer.publish()
        assert got == number, f"{name}: version {got} was published, {number} was due"
        self.latest[name] = self.current[name] = number
        versions = self.truth.setdefault(name, {})
        if in_place:
            versions.clear()
        self.torn.discard(name)
        versions[number] = number
        self.may_stay.pop(name, None)
        self.trim(name, keep)
        self.check()

    def trim(self, name, keep):
        """Forgets versions beyond those that a buffer keeps, but for those with readers. Readers elsewhere would make that uncertain."""
        for version in sorted(self.truth[name]):
            if len(self.truth[name]) > keep and (name, version) not in self.held and version != self.current[name]:
                del self.truth[name][version]

    @contextlib.contextmanager
    def hold(self, name, keep):
        """The client reads the current version meanwhile, and then lets go of it."""
        version = self.current[name]
        with self.client.attach(name) as buffer:
            self.held.add((name, version))
            yield
            assert number_of(name, buffer.bytes()) == version
        self.held.remove((name, version))
        self.may_stay[name] = {version}
        self.trim(name, keep)
        self.check()

    def abort(self, name, **options):
        with self.client.create(name, SIZE, **options) as writer:
            writer.write(b"not to be seen")
            writer.abort()
        if options.get("exclusive"):
            self.torn.add(name)
        self.check()

    def rollback(self, name, version):
        self.insist(self.client.rollback, name, version)
        self.current[name] = version
        self.check()

    def drop_version(self, name, version):
        self.insist(self.client.drop, name, version, gone=[errno.ENOENT])
        del self.truth[name][version]
        self.check()

    def drop(self, name):
        self.insist(self.client.drop, name, gone=[errno.ENOENT])
        for about in self.truth, self.current, self.latest, self.may_stay:
            about.pop(name, None)
        self.torn.discard(name)
        self.check()

    def chmod(self, name, mode):
        self.insist(self.client.set_access, name, mode)
        self.check()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):  # it has died by itself since
            os.kill(self.client.ping().pid, signal.SIGKILL)

    def replace_daemon(self):
        self.daemon.impatient = False  # a second signal would replace it once more
        self.daemon.hurrier.join()
        before = self.client.ping().instance
        self.daemon.proc.send_signal(signal.SIGHUP)
        until(lambda: self.client.ping().instance != before, "the daemon was replaced")
        self.check()

    def finish(self):
        """Nothing is left once everything was removed."""
        checks = self.end_readers()
        for name in list(self.truth):
            self.drop(name)
        until(lambda: self.client.stat().slot_bytes == 0, lambda: f"no memory is left: {self.what_is_left()}")
        until(lambda: self.client.stat().store_used == self.store_used, self.what_is_left)
        assert self.client.stat().n_quarantined == 0, self.what_is_left()
        until(lambda: not self.daemon.memfds(), lambda: f"the keeper lets go of {self.daemon.memfds()}")
        return checks

    def what_is_left(self):
        with Wire(self.daemon.socket) as w:
            return f"{w.stat()}\n{w.list(SLOTS)}\n{self.daemon.memfds()}\n{self.daemon.log}"


# --- Scenes -----------------------------------------------------------------------------------------


def sealed(stage):
    """The life of every buffer."""
    stage.publish("n", keep=1)
    with stage.hold("n", keep=1):
        stage.publish("n", keep=1)
        stage.publish("n", keep=1)
    stage.publish("n", keep=1)
    stage.publish("m")
    stage.reader("m", look_on)
    stage.reader("m", follow)
    stage.publish("m")
    stage.abort("m")
    stage.publish("m")
    stage.drop_version("m", 2)
    stage.chmod("m", 0o600)
    stage.publish("m")
    stage.drop("n")
    stage.drop("m")


def rolled(stage):
    """Back and forth, under readers."""
    stage.publish("b")
    stage.reader("b", stay)
    stage.reader("b", follow)
    stage.publish("b")
    stage.publish("b")
    stage.rollback("b", 1)
    stage.rollback("b", 2)
    stage.publish("b")


def reusable(stage):
    """Slots that are used again, and those that are freed to make room."""
    stage.publish("r")
    stage.reader("r", pause)
    stage.reader("r", pause)
    for _ in range(4):
        stage.publish("m", keep=1, reusable=True)
    stage.chmod("m", 0o600)
    stage.publish("m", keep=1, reusable=True)
    stage.publish("r", replace=True)
    stage.publish("r")


def exclusive(stage):
    """Updates in place, readers that do not pause in time, and an update that fails."""
    in_place = dict(keep=1, exclusive=True, policy=EVICT, pause_timeout_ms=100)
    stage.publish("x", **in_place)
    stage.reader("x", pause)
    stage.publish("x", **in_place)
    stage.reader("x", look_twice)
    stage.publish("x", **in_place)
    stage.abort("x", **in_place)
    stage.publish("x", **in_place)


def restarts(stage):
    """Actions that happen only after a death: here, of some more."""
    stage.publish("m")
    stage.reader("m", look_on)
    stage.reader("m", follow)
    stage.publish("m", between=stage.kill)
    stage.publish("x", keep=1, exclusive=True)
    # Between the record and the send of the memory it is uncertain if a reader has it.
    in_between = {"update-committed", "manifest-commit"} & stage.daemon.faults.keys()
    stage.reader("x", look_twice if in_between else never_torn)
    stage.publish("x", keep=1, exclusive=True, policy=EVICT, pause_timeout_ms=1, between=stage.kill)
    stage.publish("n")
    with stage.hold("n", keep=1):
        stage.publish("n", keep=1)
        stage.replace_daemon()


# Each with the points where it dies in any case.
SCENES = {
    sealed: {}, rolled: {}, reusable: {}, exclusive: {},
    restarts: {"create-kept": 1, "publish-committed": 2},
}


def play(scene, faults, is_restless=False):
    """Returns passages, restarts, the log and the checks of readers."""
    daemon = Faulty(faults)
    try:
        with contextlib.closing(Stage(daemon, is_restless)) as stage:
            scene(stage)
            checks = stage.finish()
        assert not daemon.wrongs, daemon.wrongs
        return daemon.passages(), daemon.passages()["start-inherited"] - 1, daemon.log, checks
    except BaseException:
        print(daemon.log)
        raise
    finally:
        daemon.close()


@functools.cache
def passages_of(scene):
    return play(scene, SCENES[scene])[0]


def picked(n, share=1):
    """The first, the last, and some more of n passages; with a share of 2, half as many."""
    if KILLS_PER_POINT == "all" or n <= (most := max(int(KILLS_PER_POINT) // share, 1)):
        return list(range(1, n + 1))
    return sorted({1 + i * (n - 1) // max(most - 1, 1) for i in range(most)})


def to_die_at(point):
    """The picked passages of all scenes, as (scene, passage); for each point, another scene comes first."""
    first = POINTS.index(point) % len(SCENES)
    passages = [(scene, n + 1) for scene in (*SCENES, *SCENES)[first:first + len(SCENES)]
                if point not in SCENES[scene] for n in range(passages_of(scene)[point])]  # else it dies there already
    return [passages[n - 1] for n in picked(len(passages))]


class Row(NamedTuple):
    point: str
    rounds: int
    restarts: int
    checks: int
    losses: int


@pytest.fixture(scope="module")
def table(request):
    rows = []
    yield rows
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n%-24s %8s %8s %8s %8s" % Row._fields)
        for row in rows:
            print("%-24s %8d %8d %8d %8d" % row)
        print("%-24s %8d %8d %8d %8d" % ("all", *(sum(row[i] for row in rows) for i in range(1, 5))))


@pytest.mark.longer
@pytest.mark.parametrize("point", [p for p in POINTS if p not in ON_GPUS | OF_FILES | OF_JOBS | OF_SHARES])
def test_a_death_loses_nothing(point, table, require):
    require("faults")
    n_rounds, n_restarts, n_checks, losses = 0, 0, 0, []
    for scene, passage in to_die_at(point):
        try:
            _, restarts, log, checks = play(scene, SCENES[scene] | {point: passage})
        except (AssertionError, Failed) as e:
            losses.append(f"{scene.__name__}, {point}:{passage}: {e!r}")
            n_rounds += 1
            continue
        if f"killed at {point}:{passage}" in log:
            n_rounds += 1
            n_restarts += restarts
            n_checks += checks
    table.append(Row(point, n_rounds, n_restarts, n_checks, len(losses)))
    assert not losses, "\n".join(losses)
    assert n_rounds, "no scene passes here: make one that does"


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_death_after_each_step_loses_nothing(scene, require):
    require("faults")
    _, restarts, _, checks = play(scene, {}, is_restless=True)
    assert restarts > 4 and checks

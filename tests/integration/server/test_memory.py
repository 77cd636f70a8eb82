"""Memory: what the daemon takes, what it refuses to take, and that the weights are there once."""
import contextlib
import errno
import fcntl
import mmap
import os
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time

import pytest
import weightd
from lib import features, wire
from lib.cgroup import MemoryCgroup
from lib.child import Child
from lib.daemon import environment
from lib.wire import NEW_LAYOUT, REUSABLE, Refused, Wire, image, until

MIB, GIB = 1 << 20, 1 << 30
LIMIT = 256 * MIB


def layout(size):
    """A layout of one tensor; the slot is a little larger."""
    return image([("t", size)])


@pytest.fixture
def group(require):
    require("cgroup")
    with MemoryCgroup(LIMIT) as g:
        yield g


@pytest.fixture
def confine(group, make_daemon):
    """confine("--reserve", "16M"): a daemon in a memory cgroup of 256 MiB."""
    return lambda *args: make_daemon(*args, prefix=group.prefix)


def publish(path, name, size, pattern=b"data", **kw):
    """Returns the version. Refused."""
    with Wire(path) as w:
        slot = w.create(name, layout(size), **kw)
        return w.publish(slot.writer, wire.fill(slot, pattern))


def available():
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(r"^MemAvailable: +(\d+) kB", text, re.M).group(1)) * 1024


def versions(daemon, name):
    return [v.version for v in weightd.versions(name, socket=daemon.socket)]


# --- Limits -----------------------------------------------------------------------------------------


def test_a_replacement_may_have_what_it_frees_and_no_more(confine, group):
    daemon = confine("--reserve", "16M")
    publish(daemon.socket, "m", 100 * MIB)
    with Wire(daemon.socket) as w:
        with pytest.raises(Refused, match="without its present versions, which stay, by the limit of a cgroup: "
                                          rf"{group.path}/{group.limit_name}; remove other buffers \(weightctl rm\), or "
                                          "raise that limit") as refused:
            w.create("m", layout(300 * MIB), flags=wire.REPLACE | wire.NEW_LAYOUT)
        assert refused.value.errno == errno.ENOMEM and versions(daemon, "m") == [1]
        daemon.ctl("verify", "m")
        assert w.create("m", layout(180 * MIB), flags=wire.REPLACE | wire.NEW_LAYOUT).version == 2


def test_what_does_not_fit_is_refused_before_anything_is_killed(confine, group):
    daemon = confine("--reserve", "16M")
    publish(daemon.socket, "m", 64 * MIB)
    with Wire(daemon.socket) as w:
        before = w.ping()
        for size in 300 * MIB, 200 * MIB, 10 * GIB:
            with pytest.raises(Refused, match=r"'big' on host needs .* more than the limit of a cgroup leaves: "
                                              rf"{group.path}/{group.limit_name}; remove a buffer or an old version "
                                              r"\(weightctl rm\), .* raise that limit") as refused:
                w.create("big", layout(size))
            assert refused.value.errno == errno.ENOMEM
            assert w.names() == ["m"]
        until(lambda: w.ping().n_bytes == before.n_bytes, "all that was taken is given back")
        publish(daemon.socket, "small", 64 * MIB)
    daemon.ctl("verify", "m")


def test_the_limit_that_counts_is_named_the_machine_s_or_that_of_a_group_above(group, make_daemon):
    inner = group.path / "inner"
    inner.mkdir()
    try:
        daemon = make_daemon("--reserve", "16M", prefix=("sh", "-c", f'echo $$ >{inner}/cgroup.procs && exec "$@"', "sh"))
        with pytest.raises(Refused, match=f"than the limit of a cgroup leaves: {group.path}/{group.limit_name};"):
            publish(daemon.socket, "m", 300 * MIB)
        (group.path / group.limit_name).write_text(str(available() + 64 * GIB))
        with pytest.raises(Refused, match="more than this machine has free; .* or give weightd more memory"):
            publish(daemon.socket, "m", available() + 32 * GIB)
        daemon.stop()
    finally:
        until(lambda: not (inner / "cgroup.procs").read_text(), "it is empty")
        inner.rmdir()


def kept_alone(daemon, send):
    """Calls send(wire, i) until it is refused: how often it was not, and the refusal. The limit counts what clients allocated."""
    with Wire(daemon.socket) as w:
        before = w.ping()
        for i in range(20):
            try:
                send(w, i)
            except Refused as e:
                assert w.ping().pid == before.pid
                return i, e
    pytest.fail("20 were not refused")


def test_files_are_compared_with_the_memory_that_is_left(confine, group):
    """Their memory is the client's to allocate, and outlives it."""
    daemon = confine("--reserve", "16M")
    files = wire.memfd(b"f" * 64 * MIB)

    def send(w, i):
        w.set_files(w.create(f"m{i}", layout(4096)).writer, files)

    n, refused = kept_alone(daemon, send)
    os.close(files)
    assert (n, refused.errno) == (3, errno.ENOMEM)
    assert re.match(r"67\.1 MB that were sent for 'm3' cannot be kept: with them the limit of a cgroup, "
                    rf"{group.path}/{group.limit_name} has 0 B left, too little of its reserve; remove a buffer or an old version "
                    r"\(weightctl rm\), or raise that limit", refused.sentence), refused.sentence
    assert publish(daemon.socket, "after", 64 * MIB) == 1, "those of writers that are gone take nothing"


def test_descriptions_of_jobs_are_compared_with_the_memory_that_is_left(confine):
    daemon = confine("--reserve", "16M")
    description = b"d" * 15 * MIB

    n, refused = kept_alone(daemon, lambda w, i: w.join(f"job{i}", w.create_job(f"job{i}"), description=description))
    assert (n, refused.errno) == (15, errno.ENOMEM)
    with pytest.raises(Refused) as none_left:
        publish(daemon.socket, "m", 20 * MIB)
    assert none_left.value.errno == errno.ENOMEM, "the same memory is that of versions"
    daemon.ctl("rm", "job0")
    assert publish(daemon.socket, "m", 20 * MIB) == 1


def large_layout(i):
    """100 MiB, another one for each i, of a slot of 4 KiB."""
    return wire.memfd(image([(f"t{i}", 4096)], padding=100 * MIB))


def test_layouts_are_compared_with_the_memory_that_is_left(confine):
    """A client can make them large: they are mapped by all readers, and live as long as their versions."""
    daemon = confine("--reserve", "16M")

    n, refused = kept_alone(daemon, lambda w, i: w.create(f"m{i}", large_layout(i)))
    assert (n, refused.errno) == (2, errno.ENOMEM)
    assert publish(daemon.socket, "after", 64 * MIB) == 1, "those of writers that are gone take nothing"


def test_layouts_for_spare_slots_too(confine):
    """Their memory is there already, so that nothing looks for some to provide."""
    daemon = confine("--reserve", "16M")
    for i in range(3):
        for _ in range(2):
            publish(daemon.socket, f"m{i}", 4096, flags=REUSABLE, keep=1)

    n, refused = kept_alone(daemon, lambda w, i: w.create(f"m{i}", large_layout(i), flags=NEW_LAYOUT))
    assert (n, refused.errno) == (2, errno.ENOMEM)
    assert re.match(r"104\.\d MB that were sent for 'm2' cannot be kept", refused.sentence), refused.sentence


def test_a_spare_slot_makes_room(confine):
    """Before any version does."""
    daemon = confine("--reserve", "16M")
    for _ in range(2):
        publish(daemon.socket, "m", 60 * MIB, flags=REUSABLE, keep=1)
    until(lambda: weightd.stat(socket=daemon.socket).kept_bytes >= 60 * MIB, "the first one has left its slot behind")
    assert publish(daemon.socket, "other", 150 * MIB) == 1
    assert versions(daemon, "m") == [2]
    assert weightd.stat(socket=daemon.socket).kept_bytes == 0


def test_a_set_of_files_may_use_half_of_the_reserve(confine):
    """The slot before it has left just the reserve."""
    daemon = confine("--reserve", "128M")
    with Wire(daemon.socket) as w:
        slot = w.create("m", layout(4096))
        w.set_files(slot.writer, b"f" * 60 * MIB)
        other = w.create("other", layout(4096))
        w.set_files(other.writer, b"f" * 70 * MIB)
        with pytest.raises(Refused) as refused:
            w.create("slot", layout(4096))
        assert refused.value.errno == errno.ENOMEM


def test_two_that_fit_alone_but_not_together_are_not_killed(confine):
    daemon = confine("--reserve", "16M")
    outcomes = []

    def create(name):
        try:
            outcomes.append(publish(daemon.socket, name, 150 * MIB))
        except Refused as e:
            outcomes.append(e.errno)

    threads = [threading.Thread(target=create, args=[name]) for name in ("a", "b")]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(outcomes) == [1, errno.ENOMEM]


def test_the_reserve_is_left_to_others(confine):
    daemon = confine("--reserve", "128M")
    with pytest.raises(Refused) as refused:
        publish(daemon.socket, "m", 150 * MIB)
    assert refused.value.errno == errno.ENOMEM
    assert publish(daemon.socket, "m", 90 * MIB) == 1


def test_the_reserve_of_a_small_container_leaves_room_to_work_in(confine):
    daemon = confine()
    assert publish(daemon.socket, "m", 128 * MIB) == 1


def test_a_reserve_above_all_memory_refuses_everything(make_daemon):
    daemon = make_daemon("--reserve", "1000T")
    with pytest.raises(Refused, match="more than this machine has free"):
        publish(daemon.socket, "m", 1)


@pytest.mark.parametrize("read, kept", [(None, [2, 3]), (1, [1, 3]), (2, [2, 3])])
def test_the_oldest_kept_versions_make_room(confine, read, kept):
    daemon = confine("--reserve", "16M")
    for _ in range(3):
        publish(daemon.socket, "m", 60 * MIB, keep=3)
    with Wire(daemon.socket) as reader:
        if read:
            reader.attach("m", read)
        assert publish(daemon.socket, "other", 90 * MIB) == 1
        assert versions(daemon, "m") == kept
        for number in kept:
            assert reader.attach("m", number).bytes()[:4] == b"data"


def test_kept_versions_stay_when_they_would_not_make_room(confine):
    daemon = confine("--reserve", "16M")
    for _ in range(3):
        publish(daemon.socket, "m", 60 * MIB, keep=3)
    with pytest.raises(Refused) as refused:
        publish(daemon.socket, "other", 200 * MIB)
    assert refused.value.errno == errno.ENOMEM
    assert versions(daemon, "m") == [1, 2, 3]


def test_a_layout_with_holes_takes_no_memory_of_the_daemons(confine):
    """Its blocks stand behind its end, so that counting them does not show the holes."""
    daemon = confine("--reserve", "16M")
    size = 2 * LIMIT
    hollow = image([("t", 64)], padding=size)
    fd = wire.memfd(hollow[:-size], seals=0, size=len(hollow))
    wire.fallocate(fd, wire.KEEP_SIZE, len(hollow), len(hollow))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, wire.SEALS)
    with Wire(daemon.socket) as w:
        with pytest.raises(Refused, match="holes") as refused:
            w.create("m", fd)
        assert refused.value.errno == errno.EBADMSG
        assert w.ping().pid == daemon.pid
    os.close(fd)


# --- Figures ----------------------------------------------------------------------------------------


@pytest.mark.plain
def test_the_daemon_stays_below_10_mib(daemon, require):
    require("memory", f"1 GiB and some are not free: {available() / GIB:.1f} GiB", available() > 3 * GIB)
    n = 500  # within the share of one user
    with Wire(daemon.socket) as w:
        for i in range(n):
            slot = w.create(f"b{i}", layout(4096))
            w.publish(slot.writer)
            w.detach(slot.writer)
        assert w.ping().n_buffers == n
        survives = n * 4 * mmap.PAGESIZE  # the head page and the manifest's of each buffer
        assert daemon.rss() < 10 * MIB + survives, f"{daemon.rss() / MIB:.1f} MiB"
        for i in range(n):
            w.drop(f"b{i}")
        until(lambda: w.ping().n_bytes == 0, "all is freed")
        big = w.create("big", layout(GIB))
        w.publish(big.writer)
        with Wire(daemon.socket) as reader, reader.attach("big").map() as memory:
            assert memory[GIB - 1] == 0
            assert daemon.rss() < 10 * MIB, f"{daemon.rss() / MIB:.1f} MiB"


def page_tables():
    """Bytes of this process."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmPTE:\s+(\d+) kB", status).group(1)) * 1024


def touch_all(pipe, path):
    """Attaches, reads a byte of each page, sends the growth of its page tables, and waits."""
    before = page_tables()
    with weightd.attach("m", socket=path) as buffer:
        view = buffer["t"].memoryview()
        assert sum(view[::4096]) == len(view) // 4096
        pipe.send(page_tables() - before)
        signal.pause()


def pss_of_weights(pid):
    """Bytes of the mappings of slots, shared pages counted in parts."""
    n, counts = 0, False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counts = "memfd:weightd-slot" in line
        elif counts and line.startswith("Pss:"):
            n += int(line.split()[1]) * 1024
    return n


@pytest.mark.plain
def test_eight_readers_share_one_copy_and_a_ninth_adds_nothing(daemon):
    size = 256 * MIB
    publish(daemon.socket, "m", size, b"\1")
    with contextlib.ExitStack() as stack:
        readers = []

        def add_reader():
            readers.append(stack.enter_context(Child(touch_all, daemon.socket)))
            return readers[-1].hear()

        def pss():
            return sum(pss_of_weights(r.pid) for r in readers)

        for _ in range(8):
            add_reader()
        of_eight = pss()
        assert 0.95 * size < of_eight <= 1.05 * size, f"{of_eight / size:.3f} copies"
        assert add_reader() < MIB
        assert pss() - of_eight < MIB, f"{(pss() - of_eight) / MIB:.2f} MiB"


@pytest.mark.measures
def test_from_cold_start_to_the_first_answer_takes_less_than_20_ms():
    taken = []
    with tempfile.TemporaryDirectory(prefix="weightd-") as folder:
        for i in range(15):
            path = f"{folder}/{i}"
            command = [features.BUILD / "weightd", "--socket", path, "--log-level", "error"]
            started = time.monotonic()
            with subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL) as proc:
                while True:
                    try:
                        with Wire(path) as w:
                            w.ping()
                        break
                    except (FileNotFoundError, ConnectionRefusedError):
                        assert time.monotonic() < started + wire.PATIENCE_S, "it does not serve"
                taken.append((time.monotonic() - started) * 1000)
                proc.terminate()
    assert statistics.median(taken) < 20, taken

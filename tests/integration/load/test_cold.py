"""Files that are not in the page cache: the same bytes and errors as of those that are, and no trace in it."""
import ctypes
import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess

import pytest
from lib import features, wire

from integration.load.test_load import (DEADLINE_S, MIB, Gate, buffers, check_bytes, check_refused, clean, eventually, random_tensors, u8,
                                        write_model)

__all__ = ["clean"]  # a fixture
PAGE = os.sysconf("SC_PAGE_SIZE")
CACHESTAT, IO_URING_SETUP = 451, 425  # on all architectures
libc = ctypes.CDLL(None, use_errno=True)


# --- The page cache --------------------------------------------------------------------------------

def drop(path):
    """Removes the file from the page cache."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(path):
    """Its bytes in the page cache, in whole pages."""
    pages, span = (ctypes.c_uint64 * 5)(), (ctypes.c_uint64 * 2)(0, path.stat().st_size)
    with open(path, "rb") as f:
        if libc.syscall(CACHESTAT, f.fileno(), span, pages, 0) < 0:
            features.require("cachestat", f"cachestat(2): {os.strerror(ctypes.get_errno())}", available=False)
    return pages[0] * PAGE


@pytest.fixture(autouse=True)
def direct_reads(tmp_path):
    """The file system can be read past the page cache, which has nothing of a file that was dropped."""
    path = tmp_path / "probe"
    path.write_bytes(bytes(PAGE))
    drop(path)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as e:
        features.require("direct", f"no direct reads in {tmp_path}: {e.strerror}", available=False)
    features.require("direct", f"{tmp_path} is in memory alone", available=cached(path) == 0)
    path.unlink()


@pytest.fixture
def cold_file(tmp_path):
    """A file of seven chunks that is not in the page cache, where its data begins, and its tensors."""
    tensors = random_tensors(random.Random(1), "layer", 20) | {"last": u8(random.Random(2).randbytes(23 * MIB + 77))}
    path = tmp_path / "model.safetensors"
    offset = write_model(path, tensors)
    drop(path)
    return path, offset, tensors


def load(daemon, *args, **kw):
    done = daemon.ctl("load", "--json", "--quiet", "--keep", 1, "m", *args, **kw)
    return json.loads(done.stdout)


# --- Bytes -----------------------------------------------------------------------------------------

def random_shards(rng, folder):
    """Files with headers of all lengths, and tensors of all sizes, some of which cross chunks."""
    paths = []
    for i in range(rng.choice([1, 1, 2, 5])):
        sizes = [rng.choice([0, 1, 7, 300, 511, 4096, 70_001, MIB + 1]) for _ in range(rng.randrange(1, 40))]
        sizes += [rng.randrange(1, 9 * MIB) for _ in range(rng.randrange(3))]
        rng.shuffle(sizes)
        path = folder / f"{i}{'x' * rng.randrange(60)}.safetensors"
        write_model(path, {f"{i}.{k}.{'y' * rng.randrange(90)}": u8(rng.randbytes(size)) for k, size in enumerate(sizes)})
        paths.append(path)
    return paths


@pytest.mark.threads
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6))])
def test_all_ways_of_reading_give_the_same_bytes(daemon, tmp_path, seed):
    rng = random.Random(seed)
    paths = random_shards(rng, tmp_path)
    expected = load(daemon, "--read", "buffered", *paths)
    assert expected["direct"] == 0
    for way in "direct", "auto":
        for path in paths:
            drop(path)
        done = load(daemon, "--read", way, "--threads", rng.choice([1, 2, 5]), *paths)
        assert (done["digest"], done["size"]) == (expected["digest"], expected["size"]), way
        assert done["direct"] > 0 or done["size"] < 65536
        daemon.ctl("verify", "m")


@pytest.mark.threads
def test_what_is_not_in_the_page_cache_is_read_past_it(daemon, cold_file):
    path, _, tensors = cold_file
    done = load(daemon, path)
    assert done["direct"] == done["size"] and done["ring_error"] is None
    assert cached(path) < MIB  # the header, with what was read ahead of it
    check_bytes(daemon, "m", tensors)
    path.read_bytes()
    assert load(daemon, path)["direct"] == 0
    assert load(daemon, path, "--read", "direct")["direct"] == done["size"]


def test_each_chunk_is_read_as_it_is_found(daemon, cold_file):
    path, _, tensors = cold_file
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(f.fileno(), 9 * MIB, 8 * MIB)
    done = load(daemon, path)
    assert 8 * MIB < done["direct"] < done["size"] - 4 * MIB
    check_bytes(daemon, "m", tensors)


def test_a_version_of_another_order_is_filled_from_a_cold_file(daemon, tmp_path):
    """The layout that the buffer has is kept: its tensors stand elsewhere than in the file."""
    tensors = {f"{i}": u8(random.Random(i).randbytes(MIB + 5 * i)) for i in range(24)}
    write_model(tmp_path / "a.safetensors", tensors)
    write_model(tmp_path / "b.safetensors", dict(reversed(tensors.items())))
    load(daemon, tmp_path / "a.safetensors")
    drop(tmp_path / "b.safetensors")
    assert load(daemon, tmp_path / "b.safetensors")["direct"] > 0
    check_bytes(daemon, "m", tensors)


# --- Machines without ------------------------------------------------------------------------------

def forbid(calls):
    """Makes system calls of this process and of its children fail: {number: errno}."""
    def instruction(code, yes, no, value):
        return struct.pack("<HBBI", code, yes, no, value)

    program = instruction(0x20, 0, 0, 0)  # the number of the call
    for number, error in calls.items():
        program += instruction(0x15, 0, 1, number) + instruction(0x06, 0, 0, 0x00050000 | error)
    program += instruction(0x06, 0, 0, 0x7FFF0000)
    text = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program) // 8, ctypes.addressof(text)), 16)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    assert libc.prctl(22, 2, filters, 0, 0) == 0, "PR_SET_SECCOMP"


def run(daemon, before, *args):
    return subprocess.run([features.BUILD / "weightctl", "load", "--json", "--keep", "1", "m", *map(str, args)], env=daemon.env,
                          preexec_fn=before, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.mark.threads
@pytest.mark.parametrize("error", [errno.EPERM, *(pytest.param(e, marks=pytest.mark.long) for e in (errno.ENOSYS, errno.ENOMEM))])
def test_without_io_uring_direct_reads_are_of_the_threads_and_it_is_told_once(daemon, cold_file, error):
    path, _, tensors = cold_file
    done = run(daemon, lambda: forbid({IO_URING_SETUP: error}), path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("io_uring") == 1
    assert f"io_uring cannot be used here ({os.strerror(error)}); read without it, by pread()" in done.stderr
    result = json.loads(done.stdout)
    assert result["direct"] == result["size"] and result["ring_error"] == errno.errorcode[error]
    check_bytes(daemon, "m", tensors)


def test_without_cachestat_cold_chunks_are_found_too(daemon, cold_file):
    path, _, tensors = cold_file
    done = run(daemon, lambda: forbid({CACHESTAT: errno.ENOSYS}), path)
    assert json.loads(done.stdout)["direct"] == json.loads(done.stdout)["size"]
    check_bytes(daemon, "m", tensors)
    path.read_bytes()
    done = run(daemon, lambda: forbid({CACHESTAT: errno.EPERM}), path)
    assert json.loads(done.stdout)["direct"] == 0


def test_a_limit_of_locked_memory_is_enough_if_it_is_none(daemon, cold_file):
    path, _, tensors = cold_file
    done = run(daemon, lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0)), path)
    result = json.loads(done.stdout)
    assert result["direct"] == result["size"] and result["ring_error"] in (None, "ENOMEM")
    check_bytes(daemon, "m", tensors)


def test_files_without_a_descriptor_for_direct_reads_are_read_by_the_page_cache(daemon, tmp_path):
    """Whichever limit it is that leaves descriptors for the files, and not as many again."""
    paths = [tmp_path / f"{i}.safetensors" for i in range(16)]
    for path in paths:
        write_model(path, {path.name: u8(random.Random(path.name).randbytes(MIB // 2))})
    expected, direct = load(daemon, "--read", "direct", *paths), []
    for limit in range(20, 60, 3):
        done = run(daemon, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)), "--read", "direct", *paths)  # noqa: B023
        if done.returncode == 0:
            result = json.loads(done.stdout)
            assert result["digest"] == expected["digest"]
            direct.append(result["direct"])
    assert 0 == direct[0] < direct[-1] == expected["direct"]


def test_a_file_in_memory_alone_is_loaded_in_each_way(daemon, tmp_path):
    features.require("tmpfs", "no writable /dev/shm", available=os.access("/dev/shm", os.W_OK))
    path = tmp_path / "in-memory"
    path.symlink_to(f"/dev/shm/weightd-test-{os.getpid()}.safetensors")
    try:
        tensors = {"a": u8(random.Random(3).randbytes(9 * MIB + 3))}
        write_model(path, tensors)
        for way in "auto", "direct", "buffered":
            load(daemon, "--read", way, path)
            check_bytes(daemon, "m", tensors)
    finally:
        os.unlink(path.resolve())


# --- Failures --------------------------------------------------------------------------------------

@pytest.fixture(scope="session")
def ring_library(root, tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("clang")
    features.require("compiler", "no C compiler", available=bool(compiler))
    features.require("liburing", "no liburing.h (liburing-dev)", available=os.path.exists("/usr/include/liburing.h"))
    library = tmp_path_factory.mktemp("preload") / "ring_gate.so"
    subprocess.run([compiler, "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-g", "-shared", "-fPIC", "-o", library,
                    root / "tests/integration/preload/ring_gate.c", "-ldl", "-luring"], check=True)
    return library


@pytest.fixture
def make_ring_gate(ring_library, tmp_path_factory):
    gates = []

    def make(path, action, call=1):
        gate = Gate(ring_library, tmp_path_factory.mktemp("gate"), path, 0, "", call)
        gate.env |= {"RING_DO": action, "RING_CALL": str(call)}
        gates.append(gate)
        return gate

    yield make
    for gate in gates:
        gate.close()


@pytest.mark.parametrize("action, call", [
    pytest.param("trickle", 0, marks=pytest.mark.threads), pytest.param("refuse", 0, marks=pytest.mark.long),
    pytest.param("refuse", 3, marks=pytest.mark.threads), pytest.param("odd", 0, marks=pytest.mark.long), ("odd", 2), ("end", 2)])
def test_reads_that_are_short_interrupted_or_refused_are_done_again(daemon, cold_file, make_ring_gate, action, call):
    path, _, tensors = cold_file
    gate = make_ring_gate(path, action, call)
    done = load(daemon, path, env=gate.environment(daemon))
    check_bytes(daemon, "m", tensors)
    assert (done["direct"] < done["size"]) == (action in ("refuse", "odd"))


@pytest.mark.threads
def test_an_error_of_a_direct_read_is_told_with_file_and_place(clean, cold_file, make_ring_gate):
    path, _, _ = cold_file
    gate = make_ring_gate(path, "eio", 4)
    done = clean.ctl("load", "m", path, env=gate.environment(clean), check=False)
    check_refused(done, "reading '", "model.safetensors' at byte ", "Input/output error")
    assert int(re.search(r"at byte (\d+)", done.stderr).group(1)) < path.stat().st_size


def test_a_file_truncated_during_direct_reads_is_refused(clean, cold_file, make_ring_gate):
    path, offset, _ = cold_file
    gate = make_ring_gate(path, "pause", 1)
    gate.start(clean, "m", path)
    os.truncate(path, offset + 5 * MIB + 100)
    check_refused(gate.open(), "model.safetensors' was truncated while it was loaded")


def test_a_file_replaced_during_direct_reads_is_refused(clean, cold_file, make_ring_gate, tmp_path):
    path, _, tensors = cold_file
    gate = make_ring_gate(path, "pause", 1)
    gate.start(clean, "m", path)
    write_model(tmp_path / "new", tensors)
    os.rename(tmp_path / "new", path)
    check_refused(gate.open(), "model.safetensors' was replaced while it was loaded")


@pytest.mark.threads
def test_a_load_interrupted_during_direct_reads_leaves_nothing(clean, cold_file, make_ring_gate):
    path, _, _ = cold_file
    gate = make_ring_gate(path, "pause", 2)
    gate.start(clean, "m", path)
    wire.interrupt(gate.proc, signal.SIGINT)
    done = gate.open()
    assert done.returncode == 130, done.stderr
    assert b"interrupted" in done.stderr


@pytest.mark.parametrize("call", [1, 2])
def test_a_load_killed_during_direct_reads_leaves_nothing(clean, cold_file, make_ring_gate, call):
    path, _, _ = cold_file
    gate = make_ring_gate(path, "pause", call)
    gate.start(clean, "m", path)
    gate.proc.kill()
    gate.proc.wait(DEADLINE_S)
    eventually(lambda: buffers(clean) == [], lambda: buffers(clean))


# --- --cache ---------------------------------------------------------------------------------------

def test_drop_leaves_nothing_of_a_file_that_was_not_cached(daemon, cold_file):
    path, _, tensors = cold_file
    for way in "buffered", "auto", "direct":
        load(daemon, "--read", way, "--cache", "drop", path)
        assert cached(path) == 0, way
    check_bytes(daemon, "m", tensors)
    load(daemon, "--read", "buffered", path)
    assert cached(path) > 20 * MIB


def test_drop_keeps_what_was_cached_before(daemon, cold_file):
    path, _, _ = cold_file
    path.read_bytes()
    before = cached(path)
    load(daemon, "--cache", "drop", path)
    assert cached(path) >= before > 20 * MIB  # a page that the kernel took meanwhile, the load has read again


def test_drop_leaves_of_a_part_as_much_as_before(daemon, cold_file):
    path, _, _ = cold_file
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(f.fileno(), 9 * MIB, 8 * MIB)
    before = cached(path)
    load(daemon, "--read", "buffered", "--cache", "drop", path)
    assert 0 <= cached(path) - before <= 12 * MIB  # around both ends of the part, and the header


def test_drop_holds_for_a_load_that_fails(clean, cold_file, make_ring_gate):
    path, _, _ = cold_file
    gate = make_ring_gate(path, "eio", 4)
    assert clean.ctl("load", "--cache", "drop", "m", path, env=gate.environment(clean), check=False).returncode == 1
    assert cached(path) == 0

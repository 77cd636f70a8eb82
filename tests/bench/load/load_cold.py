"""
Cold files, which are not in the page cache: loads beside programs that only read them.

weightd        weightctl load, direct reads; "read_gb_s" is reading and digests
buffered       the same by the page cache (--read buffered)
fio            fio: io_uring, O_DIRECT, 4 MiB, 16 in flight, into huge pages that are used again; no digest
fio-4k         the same into small pages, fio's default: a virtual disk may take one request for each
dd             dd iflag=direct bs=4M, to nowhere

Before each turn the files are written out and dropped, and cachestat(2) counts no page of them. Contenders take turns, and
ratios are of one turn. After each load `weightctl verify` compares the memory with its digest, and all digests of a model
are the same. CPU seconds are of the client; those of weightd, which makes the pages meanwhile, stand beside them.
"""
import ctypes
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import time

import weightd
from lib import features

import figures
import machine
import turns
from report import say

NAME = "bench/cold"
CACHESTAT = 451  # on all architectures
CHUNK, IN_FLIGHT = 4 << 20, 16  # as libweightd's
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
libc = ctypes.CDLL(None, use_errno=True)


def measure(report, d, folder):
    size = machine.affordable(2 * machine.GIB, copies=3)
    if not is_usable(pathlib.Path(folder)):
        report.line(name="cold", skipped=f"files in {folder} cannot be read past the page cache, or cachestat(2) is missing")
        return
    for label, n_tensors, n_files in (("64 tensors", 64, 1), ("4 files", 64, 4), ("20,000 tensors", 20_000, 1)):
        paths = make_files(pathlib.Path(folder), n_tensors, n_files, size)
        measure_files(report, d, label, paths)
        for path in paths:
            path.unlink()


def make_files(folder, n_tensors, n_files, size):
    """Random bytes in tensors of no round size, behind headers that end at no round number."""
    each = size // n_tensors // 512 * 512 - 254
    paths = []
    for k in range(n_files):
        names = range(k, n_tensors, n_files)
        header = {f"layers.{i}.weight": {"dtype": "F16", "shape": [each // 2], "data_offsets": [at * each, (at + 1) * each]}
                  for at, i in enumerate(names)}
        text = json.dumps(header).encode()
        block = random.Random(k).randbytes(16 << 20)
        paths.append(folder / f"cold-{k}.safetensors")
        with open(paths[-1], "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            for start in range(0, len(names) * each, len(block)):
                f.write(block[:len(names) * each - start])
    return paths


# --- The page cache ----------------------------------------------------------------------------------


def n_cached(path):
    """Pages of the file in the page cache; < 0: the kernel does not count them."""
    pages, span = (ctypes.c_uint64 * 5)(), (ctypes.c_uint64 * 2)(0, 0)  # to the end
    with open(path, "rb") as f:
        return -1 if libc.syscall(CACHESTAT, f.fileno(), span, pages, 0) < 0 else pages[0]


def make_cold(paths):
    for path in paths:
        with open(path, "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert n_cached(path) == 0, f"{path} is still in the page cache"


def is_usable(folder):
    path = folder / "probe"
    path.write_bytes(bytes(1 << 20))
    try:
        make_cold([path])
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except (AssertionError, OSError):
        return False
    finally:
        path.unlink()
    return True


# --- Contenders --------------------------------------------------------------------------------------


def run(command, env=None):
    """(output, ns, CPU seconds) of a process."""
    start = time.monotonic_ns()
    process = subprocess.Popen([*map(str, command)], env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    out, errors = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    ns = time.monotonic_ns() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    process.stderr.close()
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {process.returncode}: {errors}")
    return out, ns, usage.ru_utime + usage.ru_stime


def server_cpu_s(d):
    fields = pathlib.Path(f"/proc/{d.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def load_weightd(d, paths, way):
    before = server_cpu_s(d)
    out, _, cpu_s = run([features.BUILD / "weightctl", "load", "--json", "--quiet", "--read", way, NAME, *paths], d.env)
    done = json.loads(out) | {"cpu_s": cpu_s, "server_cpu_s": server_cpu_s(d) - before}
    d.ctl("verify", NAME)
    d.ctl("rm", NAME)
    while weightd.ping(socket=d.socket).n_bytes:
        pass  # the server frees what was removed as soon as it can
    assert (done["direct"] > 0) == (way == "auto"), done
    return done


def read_fio(paths, huge=True):
    command = ["fio", "--output-format=json", "--ioengine=io_uring", "--direct=1", "--rw=read", f"--bs={CHUNK}", "--readonly",
               "--name=cold", "--file_service_type=roundrobin", f"--iodepth={IN_FLIGHT}", "--allow_file_create=0",
               "--thread", "--mem=malloc", f"--filename={':'.join(map(str, paths))}"]
    out, _, cpu_s = run(command, os.environ | {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={int(huge)}"})
    (job,) = json.loads(out[out.index("{"):])["jobs"]
    return {"read_ns": job["read"]["runtime"] * 1_000_000, "bytes": job["read"]["io_bytes"], "cpu_s": cpu_s}


def read_dd(paths):
    ns = cpu = 0
    for path in paths:
        _, took_ns, cpu_s = run(["dd", f"if={path}", "of=/dev/null", "iflag=direct", f"bs={CHUNK}", "status=none"])
        ns, cpu = ns + took_ns, cpu + cpu_s
    return {"read_ns": ns, "bytes": sum(path.stat().st_size for path in paths), "cpu_s": cpu}


# --- Rounds ------------------------------------------------------------------------------------------


def measure_files(report, d, label, paths):
    size = sum(path.stat().st_size for path in paths)
    contenders = {"weightd": lambda: load_weightd(d, paths, "auto"), "buffered": lambda: load_weightd(d, paths, "buffered"),
                  "fio": lambda: read_fio(paths), "fio-4k": lambda: read_fio(paths, huge=False), "dd": lambda: read_dd(paths)}
    if not shutil.which("fio"):
        say("no fio (packaging/install-deps bench)")
        report.line(name="fio", file=f"cold, {label}", skipped="fio is not installed")
        del contenders["fio"], contenders["fio-4k"]
    rounds, counts = turns.take(contenders, size, lambda: make_cold(paths))
    digests = {r[way]["digest"] for r in rounds for way in ("weightd", "buffered")}
    assert len(digests) == 1, f"the same files have the digests {digests}"
    facts = {"file": f"cold, {label}", "bytes": size}
    for name in contenders:
        done = [r[name] for r in rounds]
        extra = {}
        if "elapsed_ns" in done[0]:
            extra = {"whole_gb_s": figures.rate_gb_s(size, figures.median(r["elapsed_ns"] for r in done)),
                     "server_cpu_s_per_gib": per_gib([r["server_cpu_s"] for r in done], size)}
        report.line(name=name, **facts, read_gb_s=figures.rate_gb_s(size, figures.median(r["read_ns"] for r in done)),
                    cpu_s_per_gib=per_gib([r["cpu_s"] for r in done], size), **counts, **extra)
    for peer in [name for name in contenders if name != "weightd"]:
        ratios = [r[peer]["read_ns"] / r["weightd"]["read_ns"] for r in rounds]
        report.line(name="ratio", file=facts["file"], of="weightd read", over=peer, median=figures.median(ratios), min=min(ratios),
                    max=max(ratios))
        if peer == "fio":
            report.bound(facts["file"], "weightd read/fio", figures.median(ratios), at_least=0.95)
    report.bound(facts["file"], "client CPU s/GiB", per_gib([r["weightd"]["cpu_s"] for r in rounds], size), at_most=0.3)


def per_gib(seconds, size):
    return figures.median(seconds) / (size / machine.GIB)

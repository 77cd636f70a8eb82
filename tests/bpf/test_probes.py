"""Calls of processes to CUDA, NCCL and verbs, as the probes on these libraries see them; the libraries are stand-ins."""
import contextlib
import errno
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from bpf.probing import CUDA, EXPORT, NOBODY, acts, export_of, hear_of, is_probed, libraries, until
from bpf.test_life import exists, kernel_objects
from lib import cuda_scene, features, tracing
from lib.daemon import Daemon
from lib.gpus import FAKE
from lib.tracing import Tracer

pytestmark = pytest.mark.probes


@pytest.fixture
def tracer(tracer):
    features.require("probes")
    return tracer


def test_who_has_a_library_already_is_seen(gpu, start):
    features.require("probes")
    process = start()
    with Tracer(probes=True) as tracer:
        client = tracer.client()
        assert libraries(client)[str(FAKE / "libcuda.so.1")] | {"functions": None} == {
            "kind": "library", "path": str(FAKE / "libcuda.so.1"), "functions": None, "processes": 1, "on": True, "why": None}
        before = time.monotonic_ns()
        assert process.do(EXPORT) == 0
        [act] = acts(client, pid=process.pid)
        assert before < act["ns"] < time.monotonic_ns() and 0 < act["took_ns"] < act["ns"] - before
        del act["ns"], act["took_ns"], act["number"]
        assert act == {"kind": "acted", "act": "cuda_ipc_export", "pid": process.pid, "tid": process.pid, "uid": 0,
                       "comm": "python3", "function": "cuIpcGetMemHandle", "result": 0, "failed": False,
                       "address": process.do("ret = p.value"), "bytes": None}


def test_who_loads_it_later_is_seen(client, start):
    process = start("")
    process.do(CUDA)
    until(lambda: process.do(EXPORT) == 0 and acts(client, pid=process.pid))
    another = start()
    n = len(acts(client, pid=another.pid))
    assert another.do(EXPORT) == 0
    assert len(acts(client, pid=another.pid)) == n + 1, "the file is probed, whoever maps it"


LATE = """
import ctypes, time
before = time.monotonic_ns()
library = ctypes.CDLL("{library}")
ret = before, time.monotonic_ns()
h = ctypes.create_string_buffer(64)
for _ in range({n}): library.cuIpcGetMemHandle(h, 0)
"""


def losses(client):
    """Gaps with a count of the loss: files that are new on this machine have others."""
    return [packet for packet in client.followed if packet["kind"] == "gap" and packet["lost"]]


def gaps_of(client, path):
    return [packet for packet in client.followed if packet["kind"] == "gap" and packet.get("path") == str(path)]


def test_what_was_asked_before_a_file_was_probed_is_a_gap(tracer, client, start, folder):
    features.require("gcc", available=shutil.which("gcc"))
    library = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-xc", "-", "-o", library], input=RECURSIVE, text=True, check=True)
    observer = tracer.client()
    observer.ask("observe")
    before, after = start("").do(LATE.format(library=library, n=1000))
    until(lambda: is_probed(client, library))
    probed = time.monotonic_ns()
    observer.ask("doctor")
    [gap] = gaps_of(observer, library)
    assert (gap["lost"], gap["source"]) == (None, "probes")
    assert gap["from_ns"] < after and before < gap["to_ns"] < probed
    late = next(row for row in client.ask("metrics") if row["metric"] == "weightd_trace_late_probes")
    assert late["samples"][0]["value"] >= 1
    another = start("")
    another.do(LATE.format(library=library, n=10))
    assert len(acts(client, pid=another.pid)) == 10, "the file is probed, whoever maps it"
    observer.ask("doctor")
    assert gaps_of(observer, library) == [gap]


def test_who_had_a_library_before_the_tracer_began_is_no_gap(gpu, start, folder):
    features.require("bpf")
    features.require("gcc", available=shutil.which("gcc"))
    library = folder / "libcuda.so.1"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-xc", "-", "-o", library], input=RECURSIVE, text=True, check=True)
    start(LATE.format(library=library, n=1))
    with Tracer(probes=True) as tracer:
        client = tracer.client()
        client.ask("observe")
        assert is_probed(client, library) and gaps_of(client, library) == []


def test_an_open_is_paired_with_its_export(client, start):
    a, b = start(), start()
    until(lambda: is_probed(client))
    handle = a.do(EXPORT + "; ret = bytes(h.bytes).hex()")
    address = b.do(f"h = Handle.from_buffer_copy(bytes.fromhex('{handle}')); "
                   "do('cuIpcOpenMemHandle_v2', ctypes.byref(q), h, 1); ret = q.value")
    b.do("do('cuIpcCloseMemHandle', q)")
    b.do("h = Handle.from_buffer_copy(bytes(64)); ret = call('cuIpcOpenMemHandle_v2', ctypes.byref(q), h, 1)")
    [export] = acts(client, pid=a.pid)
    opened, closed, refused = acts(client, pid=b.pid)
    assert (opened["act"], opened["failed"], opened["address"], opened["bytes"]) == ("cuda_ipc_open", False, address, None)
    assert opened["from"] == {"number": export["number"], "pid": a.pid, "comm": "python3", "ns": export["ns"]}
    assert (closed["act"], closed["address"], closed["failed"]) == ("cuda_ipc_close", address, False)
    assert (refused["failed"], refused["result"], refused["from"], refused.get("address")) == (True, 1, None, None)


def test_a_descriptor_is_known_wherever_it_went(client, start):
    one, other = socket.socketpair()
    with one, other:
        a, b = start(fds=[one.fileno()]), start(fds=[other.fileno()])
        until(lambda: is_probed(client))
        size = 4 << 20
        a.do(f"do('cuMemCreate', ctypes.byref(n), ctypes.c_size_t({size}), ctypes.byref(properties), ctypes.c_uint64(0))")
        sent = a.do("do('cuMemExportToShareableHandle', ctypes.byref(fd), n, 1, ctypes.c_uint64(0)); ret = fd.value; "
                    f"socket.send_fds(socket.socket(fileno={one.fileno()}), [b'x'], [fd.value])")
        came = b.do(f"got = socket.recv_fds(socket.socket(fileno={other.fileno()}), 1, 1)[1][0]; os.dup2(got, 77); ret = 77; "
                    "do('cuMemImportFromShareableHandle', ctypes.byref(n), ctypes.c_void_p(77), 1)")
        with open(os.devnull, "rb"):
            wrong = b.do("ret = call('cuMemImportFromShareableHandle', ctypes.byref(n), ctypes.c_void_p(0), 1)")
    [export] = acts(client, pid=a.pid)
    imported, refused = acts(client, pid=b.pid, act="cuda_vmm_import")
    assert (export["act"], export["type"], export["fd"], export["bytes"]) == ("cuda_vmm_export", "fd", sent, size)
    assert (imported["act"], imported["type"], imported["fd"], imported["bytes"]) == ("cuda_vmm_import", "fd", came, size)
    assert imported["from"] == {"number": export["number"], "pid": a.pid, "comm": "python3", "ns": export["ns"]}
    assert (refused["result"], refused["failed"], refused["from"], refused["bytes"]) == (wrong, True, None, None)


def test_who_observes_is_told_at_once(client, start):
    process = start()
    until(lambda: is_probed(client))
    client.ask("observe")
    process.do(EXPORT)
    told = hear_of(client, process)
    assert (told["kind"], told["act"], told["pid"]) == ("act", "cuda_ipc_export", process.pid)


# --- calls ---

def test_a_call_that_never_returns_is_never_told(gpu, client, start):
    process, another = start(), start()
    until(lambda: is_probed(client))
    client.ask("observe")
    gpu.fail("cuIpcGetMemHandle", "hang", count=1)
    process.begin(EXPORT)
    until(gpu.has_failed)
    process.close()
    gpu.heal()
    assert len(export_of(client, another)) == 1
    assert acts(client, pid=process.pid) == []
    assert losses(client) == []


SECCOMP = """
import ctypes, struct
ALLOW = 0x7fff0000
code = ctypes.create_string_buffer(struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, {call}, 6, 0, 0, {answer}, 6, 0, 0, ALLOW))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
"""
KILL, FAIL = 0x80000000, 0x00050000
URETPROBE = 335


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="no other machine returns by a system call")
def test_a_process_that_allows_no_system_call_of_probes_lives(client, start):
    process = start(CUDA + SECCOMP.format(call=URETPROBE, answer=KILL))
    until(lambda: is_probed(client))
    assert len(export_of(client, process)) == 1


RECURSIVE = """
extern int printf(const char *format, ...);
__attribute__((noipa)) int cuIpcGetMemHandle(char *handle, unsigned long p)
{
	int r = p ? cuIpcGetMemHandle(handle, p - 1) : 0;

	handle[0] = (char)p;
	return r;
}
"""


@pytest.mark.parametrize("mark", ["none", "branch"])
def test_a_function_within_itself_is_told_once(client, start, folder, mark):
    features.require("gcc", available=shutil.which("gcc"))
    flags = [f"-fcf-protection={mark}"] if os.uname().machine == "x86_64" else []
    subprocess.run(["gcc", "-O1", *flags, "-shared", "-fPIC", "-xc", "-", "-o", folder / "libcuda.so.1"], input=RECURSIVE,
                   text=True, check=True)
    process = start(f"import ctypes; recursive = ctypes.CDLL('{folder}/libcuda.so.1'); h = ctypes.create_string_buffer(64)")
    until(lambda: is_probed(client, folder / "libcuda.so.1"))
    client.ask("observe")
    assert process.do("ret = recursive.cuIpcGetMemHandle(h, 20)") == 0
    assert [act["address"] for act in acts(client, pid=process.pid)] == [0]
    assert losses(client) == []


def test_the_older_open_is_told_once(client, start):
    a, b = start(), start()
    until(lambda: is_probed(client))
    handle = a.do(EXPORT + "; ret = bytes(h.bytes).hex()")
    b.do(f"do('cuIpcOpenMemHandle', ctypes.byref(q), Handle.from_buffer_copy(bytes.fromhex('{handle}')), 1)")
    [opened] = acts(client, pid=b.pid)
    assert (opened["act"], opened["from"]["pid"]) == ("cuda_ipc_open", a.pid)


def test_calls_that_the_ring_has_no_room_for_are_counted(start):
    features.require("probes")
    n = 500
    with Tracer("--ring=4K", probes=True) as tracer:
        client = tracer.client()
        process = start()
        until(lambda: is_probed(client))
        client.ask("observe")
        os.kill(tracer.proc.pid, signal.SIGSTOP)  # so that the buffer gets no room
        try:
            process.do(f"for _ in range({n}): call('cuIpcGetMemHandle', ctypes.byref(h), p)")
        finally:
            os.kill(tracer.proc.pid, signal.SIGCONT)
        n_told = len(acts(client, pid=process.pid))
        gaps = losses(client)
        assert 0 < n_told < n and {gap["source"] for gap in gaps} == {"probes"}
        assert sum(gap["lost"] for gap in gaps) == n - n_told
        counted = next(row for row in client.ask("metrics") if row["metric"] == "weightd_trace_lost_events")
        assert {"labels": {"source": "probes"}, "value": n - n_told} in counted["samples"], counted


def test_who_asks_waits_for_no_more_than_a_part_of_what_is_to_be_told(client, tracer, start):
    process, n = start(), 1000
    until(lambda: is_probed(client))
    os.kill(tracer.proc.pid, signal.SIGSTOP)  # so that it has both
    try:
        process.do(f"for _ in range({n}): call('cuIpcGetMemHandle', ctypes.byref(h), p)")
        client.send("metrics")  # this one may be served before
        client.send("metrics")
    finally:
        os.kill(tracer.proc.pid, signal.SIGCONT)
    assert n_told(client.answer(), "cuda_ipc_export") < n
    assert n_told(client.answer(), "cuda_ipc_export") < n
    assert len(acts(client, pid=process.pid)) == n  # as of now
    assert n_told(client.ask("metrics"), "cuda_ipc_export") == n


def n_told(metrics, act):
    """How many of them were."""
    return sum(sample["value"] for row in metrics if row["metric"] == "weightd_trace_acts" for sample in row["samples"]
               if sample["labels"]["act"] == act)


FLOOD = """
import ctypes, time
flood, h = ctypes.CDLL("{library}"), ctypes.create_string_buffer(64)
def call(s):
    n, began = 0, time.monotonic()
    while time.monotonic() < began + s:
        for _ in range(1000):
            flood.cuIpcGetMemHandle(h, 0)
        n += 1000
    return n
"""


def test_who_calls_too_often_takes_no_room_of_others(client, start, folder):
    features.require("gcc", available=shutil.which("gcc"))
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-xc", "-", "-o", folder / "libcuda.so.1"], input=RECURSIVE, text=True,
                   check=True)
    process = start()
    until(lambda: export_of(client, process))
    somebody = start(FLOOD.format(library=folder / "libcuda.so.1"), prefix=["setpriv", "--reuid=12345", "--clear-groups"])
    until(lambda: is_probed(client, folder / "libcuda.so.1"))
    n_before = len(acts(client, pid=process.pid))
    client.ask("observe")
    until(lambda: somebody.do("ret = call(1.5)") > 3 * 4096)  # 4096 a second of these are sent; a busy machine takes longer
    kept = acts(client, pid=somebody.pid)
    assert 0 < len(kept) < 4096
    while not any(packet["kind"] == "gap" and packet["source"] == "probes" and packet["lost"] for packet in client.followed):
        client.followed.append(client.hear())
    assert len(acts(client, pid=process.pid)) == n_before
    assert len(export_of(client, process)) == 1


def test_a_storm_of_programs_costs_little(client, tracer, start):
    process = start()
    until(lambda: is_probed(client))
    before, began = cpu_s(tracer.proc.pid), time.monotonic()
    process.do("import subprocess\nfor _ in range(300): subprocess.run(['/bin/true'])")
    took = time.monotonic() - began
    assert cpu_s(tracer.proc.pid) - before < 0.2 * took + 0.05
    assert len(export_of(client, process)) == 1


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- the tracer ---

def test_files_of_others_are_not_for_everybody(tracer, client, start):
    start()
    until(lambda: is_probed(client))
    os.chmod(tracer.socket, 0o666)
    os.seteuid(NOBODY)
    try:
        stranger = tracer.client()
        assert "library" not in [row["kind"] for row in stranger.ask("doctor")]
        with pytest.raises(tracing.Refused, match="only root may see"):
            stranger.ask("acts")
    finally:
        os.seteuid(0)


PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}.get(os.uname().machine)
WITHOUT_PERF = [sys.executable, "-c", SECCOMP.format(call=PERF_EVENT_OPEN, answer=FAIL | errno.EACCES) +
                "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"]  # as with kernel.perf_event_paranoid=3 of Debian
REFUSED = "the kernel refuses it: Permission denied; " \
    "CAP_PERFMON suffices after 'sysctl kernel.perf_event_paranoid=2' if that is 3"


def hooks(client):
    return {row["hook"]: row for row in client.ask("doctor") if row["kind"] == "hook"}


def test_where_perf_is_refused_a_program_tells_what_is_mapped(start):
    features.require("fentry")
    features.require("number", "its call has no number known here", PERF_EVENT_OPEN)
    with Tracer(prefix=WITHOUT_PERF, probes=True) as tracer:
        client = tracer.client()
        process = start()
        until(lambda: export_of(client, process))
        told = hooks(client)
        assert [(told[name]["on"], told[name]["why"]) for name in ("perf/mmap", "fentry/perf_event_mmap")] == [
            (False, REFUSED), (True, None)]
        assert told["perf/mmap"]["lost"] == "nothing while fentry/perf_event_mmap is on"


def test_where_both_are_refused_nothing_is_probed(start):
    features.require("probes")
    features.require("number", "its call has no number known here", PERF_EVENT_OPEN)
    if tracing.has("fexit/receive_fd"):
        pytest.skip("this kernel lets programs see its functions")
    with Tracer(prefix=WITHOUT_PERF, probes=True) as tracer:
        client = tracer.client()
        assert export_of(client, start()) == []
        told = hooks(client)
        why = f"fentry/perf_event_mmap: the kernel refuses it: Operation not permitted; perf/mmap: {REFUSED}"
        assert [told[name]["why"] for name in ("uprobe_multi", "iter/task_vma", "perf/mmap")] == [None, None, why]
        assert "fentry/perf_event_mmap" not in told


def test_nothing_is_probed_that_nobody_wants(start):
    features.require("probes")
    with Tracer("--probes=off") as tracer:
        client = tracer.client()
        process = start()
        assert export_of(client, process) == [] and libraries(client) == {}
        refused = set(tracing.refused()) & {"iter/bpf_sk_storage_map"}  # needed for counts, not for probes
        off = [row for row in client.ask("doctor") if row["kind"] == "hook" and not row["on"] and row["hook"] not in refused]
        assert [(row["hook"], row["why"]) for row in off] == [
            (hook, "weightd-trace was started with --probes=off")
            for hook in ("uprobe_multi", "iter/task_vma", "perf/mmap", "fexit/receive_fd")]


def test_nothing_is_left_of_one_that_was_killed(start):
    features.require("probes")
    process = start()
    with Tracer(probes=True) as tracer:
        client = tracer.client()
        assert is_probed(client) and len(export_of(client, process)) == 1
        objects = kernel_objects(tracer.proc.pid)
        assert len([kind for kind, _ in objects if kind == "link"]) >= 2
        client.socket.close()
        tracer.kill()
        until(lambda: not [o for o in objects if exists(*o)])
        assert process.do(EXPORT) == 0
        tracer.start()
        client = tracer.client()
        assert len(export_of(client, process)) == 1


def test_clients_of_weightd_are_seen_to_take_its_memory(gpu, client):
    features.require("library")
    publish = "publish('m', DATA)\nwith attach('m') as b:\n    assert b.version\n"
    with contextlib.closing(Daemon(env=gpu.env)) as daemon:
        env = cuda_scene.environment(gpu, WEIGHTD_SOCKET=daemon.socket)

        def imports():  # the first ones may load the library before it is probed, and so may weightd
            subprocess.run(cuda_scene.command("context()\n" + publish), env=env, check=True)
            return [act for act in acts(client, act="cuda_vmm_import", failed=False, uid=os.getuid()) if act["from"]]

        found = until(imports)
    exports = {act["number"]: act for act in acts(client, act="cuda_vmm_export")}
    assert found and {act["from"]["comm"] for act in found} <= {"weightd-cuda", "weightd"}
    for act in found:
        export = exports[act["from"]["number"]]
        assert (export["pid"], export["bytes"]) == (act["from"]["pid"], act["bytes"])

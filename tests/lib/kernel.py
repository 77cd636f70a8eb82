"""
The kernel's facts about its BPF programs: their owners, their numbers of runs, and the kinds that it loads.

Run as a program, it prints those of FEATURES that this kernel loads, for WEIGHTD_REQUIRE.
"""
import contextlib
import ctypes
import errno
import os
import pathlib
import re
import struct

SYS_BPF = {"x86_64": 321, "aarch64": 280}
MAP_DELETE_ELEM, MAP_GET_FD_BY_ID, MAP_NAME = 3, 14, slice(24, 40)  # position of the name in bpf_map_info
PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, ENABLE_STATS = 13, 15, 32
PROG_LOAD, LINK_CREATE, ITER_CREATE = 5, 28, 33
KPROBE, TRACING = 2, 26  # types of programs
RAW_TP, FEXIT, ITER, UPROBE_MULTI = 23, 25, 28, 48  # types of their attachments
RETURN_0 = bytes.fromhex("b700000000000000 9500000000000000")
KINDS = {
    "tp_btf": (RAW_TP, "inet_sock_set_state"), "calls": (RAW_TP, "sock_send_length"), "map": (ITER, "bpf_sk_storage_map"),
    "tcp": (ITER, "tcp"), "files": (ITER, "task_file"), "mappings": (ITER, "task_vma"),
    "fexit": (FEXIT, "fget_task"),
}
ATTRIBUTE_SIZE, INFO_SIZE, INFO_NAME = 128, 256, slice(64, 80)  # sizes of bpf_attr and bpf_prog_info, and position of its name


def bpf(command, attribute):
    """bpf(2): what it returns, and what it left in the attribute."""
    buffer = ctypes.create_string_buffer(attribute, ATTRIBUTE_SIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    r = libc.syscall(SYS_BPF[os.uname().machine], command, buffer, ATTRIBUTE_SIZE)
    return (r if r >= 0 else -ctypes.get_errno()), buffer.raw


def _load(program_type, attach_type, btf_id=0):
    """A descriptor of a program, which does nothing, or negative errno."""
    code, license = ctypes.create_string_buffer(RETURN_0, len(RETURN_0)), ctypes.create_string_buffer(b"GPL")
    attribute = struct.pack("=IIQQ 24x 16x I I 36x I", program_type, len(RETURN_0) // 8, ctypes.addressof(code),
                            ctypes.addressof(license), 0, attach_type, btf_id)
    return bpf(PROG_LOAD, attribute)[0]


def _begins(program):
    """True if an iterator can be read. A supervisor may refuse that alone."""
    link = bpf(LINK_CREATE, struct.pack("=IIII", program, 0, ITER, 0))[0]
    if link < 0:
        return False
    fd = bpf(ITER_CREATE, struct.pack("=II", link, 0))[0]
    os.close(link)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def loads(kind):
    """True if this process may load a trivial program of one of KINDS, or of uprobe_multi."""
    if kind == "uprobe_multi":
        program = _load(KPROBE, UPROBE_MULTI)
        path, offset = ctypes.create_string_buffer(b"/"), ctypes.c_uint64(0)
        attribute = struct.pack("=IIIIQQQQIIII", max(program, 0), 0, UPROBE_MULTI, 0, ctypes.addressof(path),
                                ctypes.addressof(offset), 0, 0, 1, 0, 0, 0)
        r = program if program < 0 else bpf(LINK_CREATE, attribute)[0]
        if program >= 0:
            os.close(program)
        return r in (-errno.EBADF, -errno.EISDIR)  # the path alone is wrong
    attach_type, name = KINDS[kind]
    btf_id = ctypes.CDLL("libbpf.so.1").libbpf_find_vmlinux_btf_id(name.encode(), attach_type)
    fd = _load(TRACING, attach_type, btf_id) if btf_id > 0 else btf_id
    if fd < 0:
        return False
    try:
        return attach_type != ITER or kind == "map" or _begins(fd)  # an iterator over a map needs a map
    finally:
        os.close(fd)


FEATURES = {  # features of features.py: the kinds that each takes, any of these lists
    "bpf": [["tp_btf", "map", "files"], ["tp_btf", "tcp", "files"]],
    "calls": [["tp_btf", "calls"]],
    "fentry": [["fexit"]],
    "probes": [["uprobe_multi", "mappings"]],
}


@contextlib.contextmanager
def counting_runs():
    """During the block the kernel counts the runs of all BPF programs, and their time."""
    fd, _ = bpf(ENABLE_STATS, bytes(4))  # BPF_STATS_RUN_TIME
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    try:
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _open(command, number):
    """A descriptor of a program or a map, and its bpf_prog_info or bpf_map_info."""
    fd, _ = bpf(command, struct.pack("=I", number))
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    try:
        info = ctypes.create_string_buffer(INFO_SIZE)
        r, _ = bpf(OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, INFO_SIZE, ctypes.addressof(info)))
        assert r == 0, os.strerror(-r)
        yield fd, info.raw
    finally:
        os.close(fd)


def _name_of_program(number):
    with _open(PROG_GET_FD_BY_ID, number) as (_, info):
        return info[INFO_NAME].rstrip(b"\0").decode()


def _fdinfo(pid, keys):
    """Yields these keys of the fdinfo of each descriptor of the process."""
    for path in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield dict(re.findall(rf"^({keys}):\s+(\d+)$", path.read_text(), re.M))


def runs(pid):
    """{name: (runs, ns)} of the BPF programs that the process has, as far as they were counted."""
    return {_name_of_program(int(f["prog_id"])): (int(f["run_cnt"]), int(f["run_time_ns"]))
            for f in _fdinfo(pid, "prog_id|run_cnt|run_time_ns") if "run_cnt" in f}


def misses(pid):
    """{name: how often it was left out} of the BPF programs that the process has."""
    return {_name_of_program(int(f["prog_id"])): int(f["recursion_misses"])
            for f in _fdinfo(pid, "prog_id|recursion_misses") if "recursion_misses" in f}


def attached(pid):
    """The names of those of its programs that are attached to something."""
    return {_name_of_program(int(f["prog_id"])) for f in _fdinfo(pid, "prog_id|link_id") if "link_id" in f}


def take_from_storage(pid, name, fd):
    """Takes what the process has stored with a socket, in its map of this name, away from it."""
    for f in _fdinfo(pid, "map_id"):
        if "map_id" not in f:
            continue
        with _open(MAP_GET_FD_BY_ID, int(f["map_id"])) as (map_fd, info):
            if info[MAP_NAME].rstrip(b"\0").decode() != name:
                continue
            key = ctypes.c_int(fd)
            r, _ = bpf(MAP_DELETE_ELEM, struct.pack("=IIQ", map_fd, 0, ctypes.addressof(key)))
            assert r == 0, os.strerror(-r)
            return
    raise LookupError(name)


if __name__ == "__main__":
    print(",".join(name for name, ways in FEATURES.items() if any(all(map(loads, way)) for way in ways)))

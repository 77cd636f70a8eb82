"""NCCL's interface for profilers as bpf/nccl declares it by hand is the one of NCCL's sources, where these are.

WEIGHTD_NCCL_SOURCE is a checkout of them: no package has these headers.
"""
import os
import pathlib
import shutil
import subprocess

import pytest
from lib import features, nccl_library
from lint import sources

FOLDER = pathlib.Path(os.environ.get("WEIGHTD_NCCL_SOURCE", "/nonexistent")) / "src/include/plugin/profiler"

# Theirs, and ours; what a version does not have is not compared with it.
MEMBERS = {
    4: {"type": "type_v4", "parentObj": "parent", "rank": "rank", "coll.seqNumber": "coll.seq", "coll.func": "coll.func",
        "coll.count": "coll.count", "coll.root": "coll.root", "coll.datatype": "coll.datatype", "coll.nChannels": "coll.n_channels",
        "coll.algo": "coll.algo", "coll.proto": "coll.proto", "p2p.func": "p2p.func", "p2p.datatype": "p2p.datatype",
        "p2p.count": "p2p.count", "p2p.peer": "p2p.peer", "p2p.nChannels": "p2p.n_channels", "proxyOp.pid": "proxy_op.pid",
        "proxyOp.channelId": "proxy_op.channel", "proxyOp.peer": "proxy_op.peer", "proxyOp.isSend": "proxy_op.is_send",
        "netPlugin.id": "net.id", "netPlugin.data": "net.data"},
    5: {"coll.parentGroup": "coll.group", "p2p.parentGroup": "p2p.group"},
    6: {"ceColl.seqNumber": "ce_coll.seq", "ceColl.func": "ce_coll.func", "ceColl.count": "ce_coll.count",
        "ceColl.root": "ce_coll.root", "ceColl.datatype": "ce_coll.datatype"},
    7: {"coll.userTag": "coll.tag", "p2p.userTag": "p2p.tag", "ceColl.userTag": "ce_coll.tag"},
}
TABLES = {"name": "name", "init": "init", "startEvent": "start_event", "stopEvent": "stop_event",
          "recordEventState": "record_event_state", "finalize": "finalize"}
SIZES = {4: "DESCR_SIZE_V4", 5: "DESCR_SIZE_V5", 6: "DESCR_SIZE_V6", 7: "sizeof(struct descr)"}


def require_source(header):
    features.require("nccl-source", "no sources of NCCL (WEIGHTD_NCCL_SOURCE names a checkout of them)", FOLDER.exists())
    features.require("nccl-source", f"these sources of NCCL have no {header.name}", header.exists())


# Declarations that these headers take from others of NCCL's.
BEFORE = """
#include <cstddef>
#include <cstdint>
#include <sys/types.h>
typedef int ncclResult_t;
typedef pid_t ncclPid_t;
typedef int ncclProfilerEventState_v%d_t;
typedef void (*ncclDebugLogger_t)(int level, unsigned long flags, const char *file, int line, const char *fmt, ...);
"""


def compile_with(lines):
    done = subprocess.run(["g++", "-std=c++17", "-fsyntax-only", f"-I{FOLDER}", f"-I{features.ROOT}", "-xc++", "-"],
                          input="\n".join(lines), text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr[-3000:]


def ours():
    return sources.text("bpf/nccl/abi.h").replace("_Static_assert", "static_assert").replace("_Alignas", "alignas")


@pytest.mark.parametrize("version", SIZES)
def test_each_version_is_declared_as_nccl_declares_it(version):
    header = FOLDER / f"profiler_v{version}.h"
    require_source(header)
    features.require("g++", "no g++ (apt-get install g++)", bool(shutil.which("g++")))
    known = {a: b for v, members in MEMBERS.items() if v <= version for a, b in members.items()}
    if version > 4:
        known["type"] = "type"
    descr, table = f"ncclProfilerEventDescr_v{version}_t", f"ncclProfiler_v{version}_t"
    lines = [BEFORE % v for v in range(5, version)] + [BEFORE % version]
    lines += [f'#include "{header}"', ours(), f'static_assert(sizeof({descr}) == {SIZES[version]}, "size");']
    for a, b in known.items():
        lines.append(f'static_assert(offsetof({descr}, {a}) == offsetof(struct descr, {b}), "{a}");')
        lines.append(f'static_assert(sizeof((({descr} *)0)->{a}) == sizeof(((struct descr *)0)->{b}), "{a}");')
    mine = "api_v4" if version == 4 else "api"
    lines += [f'static_assert(offsetof({table}, {a}) == offsetof(struct {mine}, {b}), "{a}");' for a, b in TABLES.items()]
    args = 5 if version == 6 else version
    lines.append(f'static_assert(sizeof(ncclProfilerEventStateArgs_v{args}_t) == sizeof(union state_args), "state");')
    compile_with(lines)


@pytest.mark.parametrize("name, theirs, mine, members", [
    ("net_socket_v1", "ncclProfilerNetSockDescr_v1_t", "net_socket", {"sock.fd": "fd", "sock.op": "op", "sock.length": "length"}),
    ("net_ib_v1", "ncclProfilerNetIbDescr_v1_t", "net_qp", {"qp.device": "device", "qp.wr_id": "wr_id", "qp.opcode": "opcode",
                                                           "qp.qpNum": "qp", "qp.length": "length"})])
def test_events_of_the_network_are_declared_as_nccl_declares_them(name, theirs, mine, members):
    header = FOLDER / f"{name}.h"
    require_source(header)
    compile_with(["#include <cstddef>", f'#include "{header}"', ours(),
                  *(f'static_assert(offsetof({theirs}, {a}) == offsetof(struct {mine}, {b}), "{a}");' for a, b in members.items())])


# As gdb sees them in what NVIDIA releases, which has its debugging information: pip's nvidia-nccl-cu12 for one.
ASK = """
python
for version, members in {members}.items():
    theirs = "ncclProfilerEventDescr_v%d_t" % version
    try:
        gdb.lookup_type(theirs)
    except gdb.error:
        break  # it is older
    print(version, "sizeof", int(gdb.parse_and_eval("sizeof(%s)" % theirs)))
    print(version, "state", int(gdb.parse_and_eval("sizeof(ncclProfilerEventStateArgs_v%d_t)" % version)))
    for member in members:
        print(version, member, int(gdb.parse_and_eval("(long)&((%s *)0)->%s" % (theirs, member))))
end
"""


def test_layouts_are_those_of_a_library_that_nvidia_released(tmp_path):
    library = nccl_library.require(types=True)
    known = {version: {a: b for v, members in MEMBERS.items() if v <= version for a, b in members.items()} for version in SIZES}
    script = tmp_path / "ask"
    script.write_text(ASK.replace("{members}", repr({version: list(members) for version, members in known.items()})))
    done = subprocess.run(["gdb", "-batch", "-x", script, library], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines, seen = ["#include <cstddef>", ours()], set()
    for version, member, number in (line.split() for line in done.stdout.splitlines()):
        seen.add(int(version))
        mine = {"sizeof": SIZES[int(version)], "state": "sizeof(union state_args)"}.get(member) or \
            f"offsetof(struct descr, {known[int(version)][member]})"
        lines.append(f'static_assert({mine} == {number}, "{member} of v{version}");')
    assert seen and len(lines) == 2 + sum(2 + len(known[version]) for version in seen), done.stderr
    compile_with(lines)

"""Verbs as probes read them, and as the stand-in plays them, are those of the header and of the library of rdma-core."""
import ctypes.util
import re
import shutil
import subprocess

from lib import features
from lib.gpus import FAKE
from lint import sources

PROBES, STAND_IN = "bpf/probe/library-verbs.c", "tests/fake/verbs/verbs.c"

# Ours, and theirs.
CONSTANTS = {
    "DEVICE_NAME": "offsetof(struct ibv_device, name)",
    "QP_NUM": "offsetof(struct ibv_qp, qp_num)",
    "QP_TYPE": "offsetof(struct ibv_qp, qp_type) - offsetof(struct ibv_qp, qp_num)",
    "ATTR_SIZE": "offsetof(struct ibv_qp_attr, alt_ah_attr)",
    "MASK_STATE": "IBV_QP_STATE",
    "MASK_PEER": "IBV_QP_DEST_QPN",
    "MASK_PATH": "IBV_QP_AV",
    "STATE_RTR": "IBV_QPS_RTR",
}
ATTR = {"state": "qp_state", "old_state": "cur_qp_state", "mtu": "path_mtu", "migration": "path_mig_state", "qkey": "qkey",
        "receive_psn": "rq_psn", "send_psn": "sq_psn", "peer_qp": "dest_qp_num", "access": "qp_access_flags", "capabilities": "cap",
        "gid": "ah_attr.grh.dgid", "flow_label": "ah_attr.grh.flow_label", "gid_index": "ah_attr.grh.sgid_index",
        "hops": "ah_attr.grh.hop_limit", "class": "ah_attr.grh.traffic_class", "lid": "ah_attr.dlid", "service": "ah_attr.sl",
        "path": "ah_attr.src_path_bits", "rate": "ah_attr.static_rate", "has_gid": "ah_attr.is_global", "port": "ah_attr.port_num"}
TYPES = {"RC": "IBV_QPT_RC", "UC": "IBV_QPT_UC", "UD": "IBV_QPT_UD", "raw": "IBV_QPT_RAW_PACKET"}
# The arguments that weightd-trace reads have these places; an enumeration is passed as an int is.
FUNCTIONS = {
    "ibv_open_device": "struct ibv_context *(struct ibv_device *)",
    "ibv_create_qp": "struct ibv_qp *(struct ibv_pd *, struct ibv_qp_init_attr *)",
    "ibv_modify_qp": "int(struct ibv_qp *, struct ibv_qp_attr *attr, int mask)",
    "ibv_destroy_qp": "int(struct ibv_qp *)",
    "ibv_reg_mr": "struct ibv_mr *(struct ibv_pd *, void *address, size_t size, int access)",
    "ibv_reg_mr_iova": "struct ibv_mr *(struct ibv_pd *, void *address, size_t size, uint64_t iova, int access)",
    "ibv_reg_mr_iova2": "struct ibv_mr *(struct ibv_pd *, void *address, size_t size, uint64_t iova, unsigned access)",
    "ibv_reg_dmabuf_mr": "struct ibv_mr *(struct ibv_pd *, uint64_t offset, size_t size, uint64_t iova, int fd, int access)",
}
STAND_INS = {"ibv_context": ["device"], "ibv_pd": ["context"], "ibv_qp": ["context", "qp_num", "state", "qp_type"],
             "ibv_qp_init_attr": ["qp_type"]}


def same(a, b):
    return f'_Static_assert({a} == {b}, "{a}");'


def same_place(ours, member, theirs, their_member):
    return [same(f"offsetof({ours}, {member})", f"offsetof({theirs}, {their_member})"),
            same(f"sizeof((({ours} *)0)->{member})", f"sizeof((({theirs} *)0)->{their_member})")]


def compile_with(lines):
    features.require("ibverbs-header", "no infiniband/verbs.h, or no gcc (apt-get install gcc libibverbs-dev)", has_header())
    before = ["#include <infiniband/verbs.h>", "#include <stddef.h>", "#include <stdint.h>"]
    done = subprocess.run(["gcc", "-std=gnu17", "-fsyntax-only", "-xc", "-"], input="\n".join(before + lines), text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr[-3000:]


def has_header():
    return bool(shutil.which("gcc")) and subprocess.run(["gcc", "-fsyntax-only", "-xc", "-"], input="#include <infiniband/verbs.h>", text=True,
                                                        stderr=subprocess.DEVNULL).returncode == 0


def struct(path, name):
    return re.search(rf"^struct {name} \{{.*?^\}};", sources.code(path), re.M | re.S)[0]


def test_what_probes_read_of_a_call_is_where_rdma_core_has_it():
    text = sources.code(PROBES, keep_strings=True)
    defined = re.findall(r"^#define (\w+) \w+\s*$", text, re.M)
    assert sorted(defined) == sorted(CONSTANTS)
    lines = re.findall(r"^#define \w+ \w+\s*$", text, re.M) + [struct(PROBES, "attr")]
    lines += [same(ours, theirs) for ours, theirs in CONSTANTS.items()]
    for ours, theirs in ATTR.items():
        lines += same_place("struct attr", ours, "struct ibv_qp_attr", theirs)
    assert set(re.findall(r"(\w+)(?:\[\d+\])?[,;]", struct(PROBES, "attr"))) == {*ATTR, "unused", "unused_too"}
    named = re.search(r"types\[\] = \{(.*?)\}", text)[1]
    assert {name: int(i) for i, name in re.findall(r'\[(\d+)\] = "(\w+)"', named)}.keys() == TYPES.keys()
    lines += [same(i, TYPES[name]) for i, name in re.findall(r'\[(\d+)\] = "(\w+)"', named)]
    states = re.findall(r'"(\w+)"', re.search(r"states\[\] = \{(.*?)\}", text)[1])
    lines += [same(i, f"IBV_QPS_{name}") for i, name in enumerate(states)]
    # Each leads to its device by what is first in it.
    lines += [same(f"offsetof(struct {name}, {member})", 0) for name, member in
              (("ibv_qp", "context"), ("ibv_pd", "context"), ("ibv_context", "device"))]
    name_size = re.search(r"^#define CALL_NAME_SIZE (\d+)", sources.text("bpf/probe/probes.bpf.h"), re.M)[1]
    lines.append(same(name_size, "sizeof(((struct ibv_device *)0)->name)"))
    compile_with(lines)


def test_functions_take_what_probes_take_them_to_take():
    assert re.findall(r'^\t\{"(ibv_\w+)"', sources.code(PROBES, keep_strings=True), re.M) == list(FUNCTIONS)
    lines = []
    for name, kind in FUNCTIONS.items():
        result, arguments = kind.split("(", 1)
        lines += [f"#undef {name}", f"typedef {result} of_{name}({arguments};",
                  f'_Static_assert(__builtin_types_compatible_p(__typeof__({name}), of_{name}), "{name}");']
    compile_with(lines)


def test_structs_of_the_stand_in_are_those_of_rdma_core():
    lines = []
    for name, members in STAND_INS.items():
        lines.append(re.sub(r"\bibv_", "fake_ibv_", struct(STAND_IN, name)))
        for member in members:
            lines += same_place(f"struct fake_{name}", member, f"struct {name}", member)
    compile_with(lines)


def versions(library):
    """The versions of each function's symbols; two signs mark the default one."""
    listed = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {}
    for name, version in re.findall(r" T (\w+)(@@?\S+)$", listed, re.M):
        found.setdefault(name, set()).add(version)
    return found


def test_symbols_of_the_stand_in_have_the_versions_of_the_real_ones():
    features.require("ibverbs")
    features.require("fakes")
    # Whoever finds it is told by the linker where, when it is loaded.
    loaded = ctypes.CDLL(ctypes.util.find_library("ibverbs"))
    real = next(line.split()[5] for line in open("/proc/self/maps") if "/libibverbs.so" in line)
    ours, theirs = versions(FAKE / "verbs/libibverbs.so.1"), versions(real)
    assert loaded and ours.keys() == FUNCTIONS.keys()
    assert ours == {name: theirs[name] for name in ours}

"""NCCL as server/sync/nccl declares it by hand is the NCCL that NVIDIA's header declares, where that is here."""
import pathlib
import re
import shutil
import subprocess

from lib import features
from lint import sources
from lint.test_cuda_header import FOLDERS, as_cpp

OURS, DRIVER = "server/sync/nccl/nccl.h", "ipc/cuda/cuda_driver.h"

# Ours, and theirs.
CONSTANTS = {
    "NCCL_OK": "ncclSuccess",
    "NCCL_SYSTEM_ERROR": "ncclSystemError",
    "NCCL_REMOTE_ERROR": "ncclRemoteError",
    "NCCL_IN_PROGRESS": "ncclInProgress",
    "NCCL_UINT8": "ncclUint8",
    "NCCL_UINT32": "ncclUint32",
    "NCCL_FLOAT16": "ncclFloat16",
    "NCCL_FLOAT32": "ncclFloat32",
    "NCCL_BFLOAT16": "ncclBfloat16",
    "NCCL_SUM": "ncclSum",
    "NCCL_AVG": "ncclAvg",
    "NCCL_ID_SIZE": "NCCL_UNIQUE_ID_BYTES",
    "NCCL_UNDEFINED": "NCCL_CONFIG_UNDEF_INT",
    "NCCL_CONFIG_MAGIC": "theirs.magic",
}
MEMBERS = [("size", "size"), ("magic", "magic"), ("version", "version"), ("blocking", "blocking"),
           ("cgaClusterSize", "cga_cluster_size"), ("minCTAs", "min_ctas"), ("maxCTAs", "max_ctas"),
           ("netName", "net_name"), ("splitShare", "split_share")]

# As many parameters, each as large, and a pointer where that is one; and the result likewise.
COMPARE = """
template <class X, class Y> constexpr bool fits() {
    return sizeof(X) == sizeof(Y) && std::is_pointer<X>::value == std::is_pointer<Y>::value;
}
template <class A, class B> struct same;
template <class R, class... A, class S, class... B> struct same<R (*)(A...), S (*)(B...)> {
    static_assert(sizeof...(A) == sizeof...(B), "another number of parameters");
    static constexpr bool value = fits<R, S>() && (fits<A, B>() && ...);
};
"""


def folders():
    """That of nccl.h, and of what it includes."""
    found = [next((f for f in [pathlib.Path("/usr/local/include"), *FOLDERS] if (f / name).exists()), None)
             for name in ("nccl.h", "cuda_runtime.h")]
    return found if all(found) else None


def test_nccl_is_declared_as_nvidia_declares_it():
    features.require("nccl.h", "no nccl.h, or no cuda_runtime.h (NCCL and the CUDA toolkit)", folders() is not None)
    features.require("g++", "no g++ (apt-get install g++)", bool(shutil.which("g++")))
    ours = as_cpp(sources.text(DRIVER)) + as_cpp(sources.text(OURS).replace('#include "ipc/cuda/cuda_driver.h"', ""))
    defined = set(re.findall(r"^#define (NCCL_\w+) [-(\d0x]", sources.text(OURS), re.M))
    assert defined - {"NCCL_CONFIG_VERSION", "NCCL_VERSION_SIZE", "NCCL_WHY_SIZE"} == set(CONSTANTS)
    # Theirs under names that ours do not replace.
    lines = ["#include <nccl.h>", "#include <cstddef>", "#include <type_traits>",
             "constexpr ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;"]
    lines += [f"constexpr long long their_{name} = {theirs};" for name, theirs in CONSTANTS.items()]
    lines += ["static_assert(NCCL_MAJOR == 2, \"another libnccl.so\");", "#undef NCCL_CONFIG_MAGIC", ours, COMPARE]
    lines += [f'static_assert(their_{name} == {name}, "{name}");' for name in CONSTANTS]
    lines.append('static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_id), "nccl_id");')
    lines += [f'static_assert(offsetof(ncclConfig_t, {a}) == offsetof(struct nccl_config, {b}), "nccl_config::{b}");'
              for a, b in MEMBERS]
    lines += ["#define X(field, symbol, result, parameters) \\",
              "    static_assert(same<decltype(&NCCL_##field), decltype(nccl::field)>::value, symbol);"]
    # A symbol is named by a string there; here it has to be a name.
    lines += [f"#define NCCL_{field} {symbol}" for field, symbol in
              re.findall(r'X\((\w+), "(\w+)"', sources.text(OURS))]
    lines.append("NCCL_FUNCTIONS(X)")
    done = subprocess.run(["g++", "-std=c++17", "-fsyntax-only", *(f"-I{f}" for f in folders()), "-xc++", "-"],
                          cwd=features.ROOT, input="\n".join(lines), text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_probes_read_of_a_call_is_where_nvidia_has_it():
    """Functions of newer releases than the header's are not looked at."""
    features.require("nccl.h", "no nccl.h, or no cuda_runtime.h (NCCL and the CUDA toolkit)", folders() is not None)
    theirs = {name: [p.strip() for p in parameters.split(",")] for name, parameters in
              re.findall(r"ncclResult_t\s+(nccl\w+)\(([^)]*)\);", (folders()[0] / "nccl.h").read_text())}
    sites = dict(re.findall(r'^\t\{"(\w+)",(.*?\.fill = \w+)\}', sources.text("bpf/probe/library-nccl.c"), re.M | re.S))
    assert len(sites) > 30 and len(sites.keys() & theirs.keys()) > 20
    for name in sites.keys() & theirs.keys():
        parameters, plan = theirs[name], sites[name]
        if counted := re.search(r"COUNTED\((\d), (\d)\)", plan):
            count, datatype = (parameters[int(i)] for i in counted.groups())
            assert re.fullmatch(r"size_t (send|recv)?count", count) and datatype == "ncclDataType_t datatype", (name, parameters)
        if ".out = 8" in plan:
            out = parameters[int((re.search(r"\.out_arg = (\d)", plan) or [0, 0])[1])]
            assert re.fullmatch(r"(void\*|ncclComm_t|ncclWindow_t) ?\* ?\w+", out), (name, parameters)
        if taken := re.search(r"\.take_arg = (\d)", plan):
            assert re.fullmatch(r"(const )?ncclUniqueId\* \w+", parameters[int(taken[1])]), (name, parameters)

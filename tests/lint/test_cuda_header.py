"""The driver as ipc/cuda declares it by hand is the driver that NVIDIA's header declares, where that is here."""
import pathlib
import re
import shutil
import subprocess

from lib import features
from lint import sources

OURS = "ipc/cuda/cuda_driver.h"
FOLDERS = [pathlib.Path("/usr/local/cuda/include"), pathlib.Path("/usr/include")]

# Theirs, and ours.
CONSTANTS = {
    "CUDA_SUCCESS": "CU_OK",
    "CUDA_ERROR_INVALID_VALUE": "CU_INVALID_VALUE",
    "CUDA_ERROR_OUT_OF_MEMORY": "CU_OUT_OF_MEMORY",
    "CUDA_ERROR_NO_DEVICE": "CU_NO_DEVICE",
    "CUDA_ERROR_INVALID_DEVICE": "CU_INVALID_DEVICE",
    "CUDA_ERROR_INVALID_CONTEXT": "CU_INVALID_CONTEXT",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED": "CU_PEER_ACCESS_UNSUPPORTED",
    "CUDA_ERROR_INVALID_HANDLE": "CU_INVALID_HANDLE",
    "CUDA_ERROR_NOT_READY": "CU_NOT_READY",
    "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED": "CU_PEER_ACCESS_ALREADY_ENABLED",
    "CUDA_ERROR_NOT_PERMITTED": "CU_NOT_PERMITTED",
    "CUDA_ERROR_NOT_SUPPORTED": "CU_NOT_SUPPORTED",
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": "CU_ATTRIBUTE_MULTIPROCESSORS",
    "CU_DEVICE_ATTRIBUTE_PCI_BUS_ID": "CU_ATTRIBUTE_PCI_BUS",
    "CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID": "CU_ATTRIBUTE_PCI_DEVICE",
    "CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID": "CU_ATTRIBUTE_PCI_DOMAIN",
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": "CU_ATTRIBUTE_CAPABILITY_MAJOR",
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": "CU_ATTRIBUTE_CAPABILITY_MINOR",
    "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": "CU_ATTRIBUTE_VMM",
    "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": "CU_ATTRIBUTE_POSIX_FD",
    "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": "CU_ATTRIBUTE_RDMA_WITH_VMM",
    "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED": "CU_ATTRIBUTE_FABRIC",
    "CU_MEM_LOCATION_TYPE_DEVICE": "CU_LOCATION_DEVICE",
    "CU_MEM_ALLOCATION_TYPE_PINNED": "CU_ALLOCATION_PINNED",
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": "CU_HANDLE_POSIX_FD",
    "CU_MEM_HANDLE_TYPE_FABRIC": "CU_HANDLE_FABRIC",
    "CU_MEM_ALLOC_GRANULARITY_MINIMUM": "CU_GRANULARITY_MINIMUM",
    "CU_MEM_ALLOC_GRANULARITY_RECOMMENDED": "CU_GRANULARITY_RECOMMENDED",
    "CU_MEM_ACCESS_FLAGS_PROT_READ": "CU_ACCESS_READ",
    "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": "CU_ACCESS_READWRITE",
    "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS": "CU_IPC_LAZY_PEER_ACCESS",
    "CU_STREAM_NON_BLOCKING": None,
    "CU_STREAM_CAPTURE_MODE_RELAXED": "CU_CAPTURE_RELAXED",
    "CU_EVENT_BLOCKING_SYNC": None,
    "CU_EVENT_DISABLE_TIMING": None,
    "CU_MEMHOSTALLOC_PORTABLE": "CU_HOST_ALLOC_PORTABLE",
}

PAIRS = [
    ("CUmemAllocationProp", "cu_allocation", [("type", "type"), ("requestedHandleTypes", "handle_types"),
                                              ("location", "location"), ("win32HandleMetaData", "unused"),
                                              ("allocFlags", "flags")]),
    ("CUmemLocation", "cu_location", [("type", "type"), ("id", "id")]),
    ("CUmemAccessDesc", "cu_access", [("location", "location"), ("flags", "flags")]),
    ("CUipcMemHandle", "cu_ipc_handle", [("reserved", "bytes")]),
    ("CUuuid", "cu_uuid", [("bytes", "bytes")]),
]

# As many parameters, each as large, and a pointer where that is one; not what it points to.
COMPARE = """
template <class A, class B> struct same;
template <class... A, class... B> struct same<CUresult (*)(A...), cu_result (*)(B...)> {
    static_assert(sizeof...(A) == sizeof...(B), "another number of parameters");
    template <class X, class Y> static constexpr bool fits() {
        return sizeof(X) == sizeof(Y) && std::is_pointer<X>::value == std::is_pointer<Y>::value;
    }
    static constexpr bool value = (fits<A, B>() && ...);
};
"""


def header():
    return next((folder for folder in FOLDERS if (folder / "cuda.h").exists()), None)


def as_cpp(text):
    """C++ has one room for the names of structs and of types."""
    return re.sub(r"typedef struct (\w+) \*\1;", r"typedef struct \1_ *\1;", text).replace("#pragma once", "")


def test_the_driver_is_declared_as_nvidia_declares_it():
    features.require("cuda.h", "no cuda.h (the CUDA toolkit)", header() is not None)
    features.require("g++", "no g++ (apt-get install g++)", bool(shutil.which("g++")))
    # Some are called as theirs are, and would replace them: compared by value, before ours are defined.
    ours = dict(re.findall(r"^#define (CU_\w+) (\d+)$", sources.text(OURS), re.M))
    assert sorted(ours) == sorted(ours_of or theirs for theirs, ours_of in CONSTANTS.items())
    lines = ["#include <cuda.h>", "#include <cstddef>", "#include <type_traits>"]
    lines += [f'static_assert({theirs} == {ours[name or theirs]}, "{theirs}");' for theirs, name in CONSTANTS.items()]
    lines += [as_cpp(sources.text(OURS)), COMPARE]
    for theirs, name, members in PAIRS:
        lines.append(f'static_assert(sizeof({theirs}) == sizeof(struct {name}), "{name}");')
        lines += [f'static_assert(offsetof({theirs}, {a}) == offsetof(struct {name}, {b}), "{name}::{b}");'
                  for a, b in members]
    lines += ["#define X(field, symbol, parameters) \\",
              "    static_assert(same<decltype(&CUDA_##field), decltype(cuda_driver::field)>::value, symbol);"]
    # A symbol is named by a string there; here it has to be a name.
    lines += [f"#define CUDA_{field} {symbol}" for field, symbol in
              re.findall(r'X\((\w+), "(\w+)"', sources.text(OURS))]
    lines.append("CUDA_DRIVER_FUNCTIONS(X)")
    done = subprocess.run(["g++", "-std=c++17", "-fsyntax-only", "-I.", f"-I{header()}", "-xc++", "-"], cwd=features.ROOT,
                          input="\n".join(lines), text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr[-3000:]

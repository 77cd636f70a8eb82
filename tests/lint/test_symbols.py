"""Names: the exports of the libraries, and the places that may name CUDA and NCCL."""
import collections
import re
import subprocess

import pytest
from lib import features
from lib.features import LIBRARY, ROOT
from lint import sources

Library = collections.namedtuple("Library", "header map path version")
LIBRARIES = {
    "weightd": Library("libclient/include/weightd.h", "libclient/libweightd.map", LIBRARY, "WEIGHTD_0"),
    "weightd-train": Library("libclient/train/include/weightd-train.h", "libclient/train/libweightd-train.map",
                             LIBRARY.parent / "libweightd-train.so", "WEIGHTD_TRAIN_0"),
}


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


def declared(library):
    """The functions of its header; types of functions end with _fn."""
    names = re.findall(r"\b(weightd_\w+)\(", sources.code(library.header))
    return sorted(n for n in set(names) if not n.endswith("_fn"))


def test_symbol_map_lists_the_functions_of_the_header_in_order(library):
    assert re.findall(r"^\t(weightd_\w+);$", (ROOT / library.map).read_text(), re.M) == declared(library)


def test_library_exports_the_functions_of_the_header_and_nothing_else(library):
    features.require("library", f"{library.path} is not built (make)", library.path.exists())
    listing = subprocess.run(["nm", "-D", "--defined-only", library.path], check=True, text=True,
                             stdout=subprocess.PIPE).stdout
    exported = sorted(line.split()[-1] for line in listing.splitlines() if " A " not in line)
    assert exported == [f"{name}@@{library.version}" for name in declared(library)]


def test_training_library_uses_what_weightd_h_has_alone():
    """It is a client like any other: no symbol of libweightd is for it alone, and no other library comes with it."""
    path = LIBRARIES["weightd-train"].path
    features.require("library", f"{path} is not built (make)", path.exists())
    listing = subprocess.run(["nm", "-D", "--undefined-only", path], check=True, text=True, stdout=subprocess.PIPE).stdout
    used = {line.split()[-1].split("@")[0] for line in listing.splitlines() if " weightd_" in line}
    assert used and used <= set(declared(LIBRARIES["weightd"]))
    dynamic = subprocess.run(["readelf", "-d", path], check=True, text=True, stdout=subprocess.PIPE).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*?)\]", dynamic))
    assert needed <= {"libweightd.so.0", "libjansson.so.4", "libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_object_of_gloo_exports_its_table_alone():
    path = LIBRARIES["weightd-train"].path.with_name("libweightd-train-gloo.so")
    features.require("gloo", f"{path} is not built (libgloo-dev)", path.exists())
    listing = subprocess.run(["nm", "-D", "--defined-only", path], check=True, text=True, stdout=subprocess.PIPE).stdout
    assert [line.split()[-1].split("@")[0] for line in listing.splitlines() if " A " not in line] == ["weightd_train_gloo"]


def test_plugin_of_nccl_exports_its_tables_and_needs_the_c_library_alone():
    plugin = features.BUILD / "libnccl-profiler-weightd.so"
    features.require("nccl-plugin", f"{plugin} is not built (make)", plugin.exists())
    listing = subprocess.run(["nm", "-D", "--defined-only", plugin], check=True, text=True, stdout=subprocess.PIPE).stdout
    assert sorted(line.split()[-1] for line in listing.splitlines()) == [f"ncclProfiler_v{n}" for n in (4, 5, 6, 7)]
    dynamic = subprocess.run(["readelf", "-d", plugin], check=True, text=True, stdout=subprocess.PIPE).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert set(needed) <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"} or "-" in features.BUILD.name, needed


def test_only_public_functions_have_the_public_prefix():
    names = set()
    for path in sources.files("libclient", "ipc", "server"):
        if str(path) not in {library.header for library in LIBRARIES.values()}:
            names |= set(re.findall(r"^[a-z].*?\b(weightd_\w+)\([^;]*$", sources.code(path), re.M))
    assert sorted(names - {name for library in LIBRARIES.values() for name in declared(library)}) == []


def test_cuda_is_named_by_its_driver_alone():
    # The stand-in for the driver is named by it too; the programs for a real GPU speak to it as anybody would.
    paths = [p for p in sources.files() if p.stem != "cuda_driver"
             and not str(p).startswith(("tests/fake/", "tests/gpu/"))]
    assert sources.matches(r"\bcu[A-Z]\w*", paths) == []


def test_nccl_is_named_by_the_sync_engine_alone():
    # Tables of plug-ins of its profiler have the names that it looks for.
    paths = [p for p in sources.files() if not str(p).startswith(("server/sync/nccl/nccl.", "tests/fake/nccl/",
                                                                  "bpf/nccl/plugin.c", "tests/bpf/nccl/next.c"))]
    assert sources.matches(r"\bnccl[A-Z]\w*", paths) == []


def test_gloo_is_links_and_no_collectives():
    """Its broadcast is slow from two nodes on, and what a node that is gone does to it nobody hears of."""
    program = features.BUILD / "weightd-sync-gloo"
    features.require("gloo", available=program.exists())
    listing = subprocess.run(["nm", "-DC", "--undefined-only", program], check=True, text=True, stdout=subprocess.PIPE).stdout
    used = set(re.findall(r"\bgloo::(?:\w+::)*", listing))
    assert used and all(name.startswith("gloo::transport::") for name in used), used


def test_libraries_are_opened_by_soname():
    # One of ours has no version: it comes with the library that opens it.
    assert sources.matches(r'"lib(?!weightd-)[\w+-]+\.so"', sources.files(), keep_strings=True) == []

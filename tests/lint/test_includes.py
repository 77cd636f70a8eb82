"""The allowed includes of each folder: the table of DESIGN section 3."""
import os
import pathlib
import re

from lib.features import ROOT
from lint import sources

# A file belongs to the longest folder that matches; it may include its own folder and these.
MAY_INCLUDE = {
    "ipc/base": [],
    "ipc": ["ipc/base"],
    "ipc/cuda": ["ipc", "ipc/base"],
    "ipc/reshard": ["ipc/base"],
    "server/base": ["ipc", "ipc/base"],
    "server/base/json": ["server/base", "ipc/base"],
    # The threads of weightd beside the loop's.
    "server/base/threads": ["server/base", "ipc/base"],
    # weightd. Each room may include those above it here.
    "server/restart": ["ipc", "ipc/base", "server/base"],
    "server/state": ["ipc", "ipc/base", "server/base", "server/base/threads", "server/restart"],
    "server/backend": ["ipc", "ipc/base", "server/base", "server/base/threads", "server/cuda", "server/restart", "server/state"],
    "server/memory": ["ipc", "ipc/base", "server/base", "server/base/threads", "server/restart", "server/state", "server/backend"],
    "server/buffers": ["ipc", "ipc/base", "server/base", "server/base/threads", "server/restart", "server/state", "server/backend", "server/memory"],
    # Jobs: memory that several clients write.
    "server/groups": ["ipc", "ipc/base", "server/base", "server/base/threads", "server/restart", "server/state", "server/backend", "server/memory"],
    "server/requests": ["ipc", "ipc/base", "server/base", "server/base/threads", "server/restart", "server/state", "server/backend", "server/memory",
                        "server/buffers", "server/groups"],
    "server": ["ipc", "ipc/base", "server/base", "server/base/threads", "server/restart", "server/state", "server/backend", "server/memory",
               "server/buffers", "server/groups", "server/requests"],
    "server/cuda": ["ipc", "ipc/base", "ipc/cuda"],
    "server/load": ["server/base", "ipc/base"],
    "server/sync/base": ["ipc/base"],
    "server/sync/net": ["server/sync/base", "server/base", "ipc/base"],
    "server/sync/state": ["server/sync/base", "ipc", "ipc/base", "ipc/reshard"],
    "server/sync/coordinator": ["server/sync/state", "server/sync/base", "ipc/base"],
    "server/sync/participant": ["server/sync/state", "server/sync/base", "ipc", "ipc/base"],
    "server/sync": ["server/sync/net", "server/sync/coordinator", "server/sync/participant", "server/sync/state",
                    "server/sync/base", "server/base", "server/base/json", "ipc", "ipc/base"],
    "server/sync/local": ["server/sync/base", "server/sync/nccl", "server/base", "libclient/include",
                          "libclient/reshard", "ipc/base", "ipc/reshard"],
    "server/sync/engine": ["server/sync/base", "server/base", "ipc/base"],
    "server/sync/stream": ["server/sync/engine", "server/sync/base", "ipc/base"],
    "server/sync/tcp": ["server/sync/stream", "server/sync/engine", "server/sync/base", "server/base", "ipc/base"],
    "server/sync/gloo": ["server/sync/stream", "server/sync/engine", "server/sync/base", "server/base", "ipc/base", "ipc/reshard"],
    "server/sync/nccl": ["server/sync/engine", "server/sync/base", "server/base", "ipc/cuda", "ipc/reshard", "ipc",
                         "ipc/base"],
    "libclient/include": [],
    "libclient/reshard": ["libclient/include", "ipc/reshard"],
    "libclient/connection": ["libclient/include", "ipc", "ipc/base"],
    "libclient/version": ["libclient/connection", "libclient/include", "ipc", "ipc/base"],
    "libclient/image": ["libclient/connection", "libclient/version", "libclient/include", "ipc", "ipc/base"],
    "libclient/cuda": ["libclient/connection", "libclient/version", "ipc", "ipc/base", "ipc/cuda"],
    "libclient": ["libclient/connection", "libclient/version", "libclient/image", "libclient/cuda", "libclient/include",
                  "ipc", "ipc/base"],
    "libclient/load/disk": ["libclient/image", "ipc/base"],
    "libclient/load/folder": ["libclient/connection", "libclient/image", "libclient/include", "ipc/base"],
    # Files of servers.
    "libclient/load/http": ["libclient/connection", "libclient/image", "ipc/base"],
    # Checkpoints of torch, converted.
    "libclient/load/torch": ["libclient/connection", "libclient/image", "ipc/base"],
    # The elements that a load takes of a tensor.
    "libclient/select": ["libclient/load/folder", "libclient/connection", "libclient/image", "libclient/include", "ipc", "ipc/base", "ipc/reshard"],
    "libclient/load": ["libclient/load/folder", "libclient/load/http", "libclient/load/torch", "libclient/select", "libclient/load/disk", "libclient", "libclient/connection", "libclient/version", "libclient/image", "libclient/cuda",
                       "libclient/include", "ipc", "ipc/base", "ipc/reshard"],
    "libclient/copy": ["libclient", "libclient/connection", "libclient/version", "libclient/cuda", "libclient/load",
                       "libclient/include", "ipc", "ipc/base"],
    "libclient/save": ["libclient", "libclient/connection", "libclient/version", "libclient/image", "libclient/load",
                       "libclient/include", "ipc", "ipc/base"],
    "libclient/diff": ["libclient", "libclient/connection", "libclient/version", "libclient/image", "libclient/load",
                       "libclient/include", "ipc", "ipc/base"],
    "libclient/directory": ["libclient/connection", "libclient/include", "ipc", "ipc/base"],
    # The training library knows weightd by its public header, like any client.
    "libclient/train/include": ["libclient/include"],
    "libclient/train/plan": ["libclient/train/include", "libclient/include", "ipc", "ipc/base"],
    "libclient/train/kernels": [],
    "libclient/train/engine": ["libclient/train/plan", "libclient/train/kernels", "libclient/train/include",
                               "libclient/include", "ipc/base"],
    # Connections between nodes: they move bytes, and know no trainer.
    "libclient/train/nodes": ["libclient/train/plan", "libclient/train/include", "ipc/base"],
    "libclient/train": ["libclient/train/engine", "libclient/train/kernels", "libclient/train/nodes", "libclient/train/plan",
                        "libclient/train/include", "libclient/include", "ipc/base"],
    "libclient/train/save": ["libclient/train", "libclient/train/engine", "libclient/train/kernels", "libclient/train/nodes",
                             "libclient/train/plan", "libclient/train/include", "libclient/include", "ipc", "ipc/base"],
    "libclient/weightctl/output": ["libclient/include", "ipc/base"],
    "libclient/weightctl": ["libclient/weightctl/output", "libclient/include", "ipc/base"],
    "libclient/weightctl/control": ["libclient/weightctl", "libclient/weightctl/output", "ipc/base"],
    "libclient/weightctl/http": ["libclient/weightctl", "libclient/weightctl/output", "ipc/base"],
    "libclient/weightctl/doctor": ["libclient/weightctl", "libclient/weightctl/control", "libclient/weightctl/output",
                                   "libclient/include", "ipc/base"],
    "libclient/weightctl/verbs": ["libclient/weightctl", "libclient/weightctl/control", "libclient/weightctl/doctor",
                                  "libclient/weightctl/http", "libclient/weightctl/output",
                                  "libclient/include", "libclient/train/include", "libclient/reshard", "ipc/base", "ipc/reshard"],
    "bpf": ["bpf/probe", "bpf/rdma", "bpf/event", "bpf/tcp", "bpf/base", "server/base", "server/base/json", "ipc/base"],
    "bpf/base": ["ipc/base"],
    "bpf/elf": ["ipc/base"],
    "bpf/tcp": ["bpf/base", "ipc/base"],
    "bpf/event": ["bpf/base", "server/base", "ipc/base"],
    "bpf/rdma": ["bpf/event", "bpf/base", "ipc/base"],
    "bpf/probe": ["bpf/elf", "bpf/rdma", "bpf/event", "bpf/base", "server/base", "ipc/base"],
    "bpf/nccl": ["ipc/base"],
    "tests": ["server", "server/base", "server/base/threads", "server/requests", "server/restart", "server/state", "server/backend", "server/memory",
              "server/buffers", "server/cuda", "server/sync", "server/sync/base", "server/sync/local",
              "libclient/include", "ipc", "ipc/base", "ipc/cuda", "ipc/reshard", "bpf", "bpf/base", "bpf/elf",
              "bpf/tcp", "bpf/event", "bpf/rdma", "bpf/probe", "libclient/weightctl/http", "libclient/weightctl/output", "libclient/weightctl/verbs", "libclient/connection",
              "libclient/train", "libclient/train/engine", "libclient/train/kernels", "libclient/train/plan",
              "libclient/train/include", "libclient/train/nodes", "libclient/train/save", "server/groups",
              "libclient/cuda", "libclient/diff", "libclient/image", "libclient/load", "libclient/load/folder", "libclient/select", "libclient/version", "server/sync/coordinator", "server/sync/net",
              "libclient/cuda", "libclient/directory", "libclient/image", "libclient/load", "libclient/load/folder", "libclient/version", "server/sync/coordinator", "server/sync/net",
              "server/sync/participant", "server/sync/state"],
    "tests/fake": ["ipc", "ipc/base"],
    "tests/gpu": ["libclient/include", "ipc", "ipc/base", "ipc/cuda"],
    "tests/demo": ["libclient/include"],
    "tests/ref": ["libclient/include", "libclient/train/include"],
    "tests/bench": ["libclient/include", "libclient/train/include"],
    "tests/bench/tenants": ["tests/bench", "libclient/include", "ipc", "ipc/base"],
    "tests/soak": ["libclient/include"],
}

# Headers of other projects, and the only places that may include them.
THIRD_PARTY = {
    r"xxhash\.h": ["ipc/hash.c", "ipc/hash_avx2.c", "bpf/rdma/qp.c"],
    r"jansson\.h": ["ipc/reshard/split.c", "libclient/image/", "libclient/load/", "libclient/save/", "libclient/select/", "libclient/train/", "libclient/weightctl/", "server/base/json/", "server/sync/", "bpf/", "tests/unit/", "tests/fuzz/"],
    r"openssl/.*": ["libclient/weightctl/verbs/pki-openssl.c", "server/sync/", "tests/unit/", "tests/fake/ktls/"],
    r"gloo/.*": ["server/sync/gloo/gloo_link.cc", "libclient/train/nodes/gloo.cc", "tests/bench/peers/"],
    r"curl/.*": ["libclient/load/http/fetcher-curl.c"],
    r"microhttpd\.h": ["libclient/weightctl/http/http_server-microhttpd.c"],
    r"ini\.h": ["server/base/ini-inih.c"],
    r"systemd/.*": [],
    r"liburing\.h": ["libclient/load/disk/ring-liburing.c", "tests/integration/preload/ring_gate.c"],
    r"cuda.*\.h": [],
    r"nccl\.h": [],
    r"bpf/.*": ["bpf/", "tests/unit/test_ring.c"],
    r"(cmocka|setjmp)\.h": ["tests/unit/"],
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)


def zone(path):
    return max((z for z in MAY_INCLUDE if path.startswith(z + "/")), key=len, default=None)


def resolve(path, kind, name):
    """The path of one of our headers, relative to the top, or None."""
    folders = [ROOT, ROOT / "libclient/include", ROOT / "libclient/train/include"]
    for folder in [ROOT / path.parent] * (kind == '"') + folders:
        if (folder / name).is_file():
            return os.path.relpath(folder / name, ROOT)
    return None


def includes():
    for path in sources.files():
        for kind, name in INCLUDE.findall(sources.code(path, keep_strings=True)):
            yield path, kind, name


def test_our_folders_include_only_those_below_them():
    wrong = []
    for path, kind, name in includes():
        header = resolve(path, kind, name)
        if kind == '"' and header is None:
            wrong.append(f'{path}: "{name}" is none of our headers')
        if header is None:
            continue
        here, there = zone(str(path)), zone(header)
        if there != here and there not in MAY_INCLUDE[here]:
            wrong.append(f"{path}: {here} may not include {there} ({header})")
    assert not wrong, "\n".join(wrong)


def test_each_third_party_header_stays_where_it_belongs():
    wrong = []
    for path, kind, name in includes():
        for pattern, places in THIRD_PARTY.items():
            if kind == "<" and re.fullmatch(pattern, name) and not str(path).startswith(tuple(places)):
                wrong.append(f"{path}: <{name}> belongs to {' '.join(places) or 'no file'}")
    assert not wrong, "\n".join(wrong)


def test_own_header_comes_first():
    wrong = []
    for path in sources.files(suffixes=(".c", ".cc")):
        header = path.with_suffix(".h")
        found = [resolve(path, *i) for i in INCLUDE.findall(sources.code(path, True))]
        if (ROOT / header).exists() and str(header) in found and found[0] != str(header):
            wrong.append(f"{path}: {header} has to be its first include")
    assert not wrong, "\n".join(wrong)


def test_table_names_only_known_folders():
    for here, others in MAY_INCLUDE.items():
        assert set(others) <= set(MAY_INCLUDE), here
        assert pathlib.Path(here).parts[0] in ("ipc", "server", "libclient", "bpf", "tests"), here

"""Features that a test may need and a machine may lack.

require() skips the test with the reason, or fails it when WEIGHTD_REQUIRE (a list with commas, set
by CI) has the feature, which this machine then must have.
"""
import ctypes.util
import importlib.util
import os
import pathlib
import resource
import shutil
import subprocess

from lib import box, cgroup, guest, netns

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIGHTD_BUILD", ROOT / "build")).resolve()
LIBRARY = pathlib.Path(os.environ.get("WEIGHTD_LIBRARY", ROOT / "build/libweightd.so")).resolve()
TORCH2 = os.environ.get("WEIGHTD_PYTHON_TORCH2", "")
PROGRAMS = os.environ.get("WEIGHTD_PYTHON_PROGRAMS", "")
PERFETTO = ROOT / "build/perfetto"
MODEL = pathlib.Path(os.environ.get("WEIGHTD_MODEL", ROOT / "build/model")).resolve()


def package_flags(name, question="--exists"):
    """The answer of pkg-config, as a list of words; None for an unknown package."""
    if not shutil.which("pkg-config"):
        return None
    done = subprocess.run(["pkg-config", question, name], stdout=subprocess.PIPE, text=True)
    return done.stdout.split() if done.returncode == 0 else None


def clang_format():
    """The formatter of the version that .clang-format is written for: others differ in details."""
    for name in ("clang-format-14", "clang-format"):
        path = shutil.which(name)
        if path and " 14." in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
            return path
    return None


def is_linked_with(library, program="weightd"):
    return (BUILD / program).exists() and library in (BUILD / program).read_bytes()


def is_busybox_static():
    path = shutil.which("busybox")
    return bool(path) and subprocess.run(["ldd", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0


def tracing():
    from lib import tracing  # it needs this module

    return tracing


def debootstrap():
    from lib import bare_debian as bare  # it needs this module

    return bare


INITIAL_PIDS = 0xEFFFFFFC  # PROC_PID_INIT_INO of <linux/proc_ns.h>

FEATURES = {  # name: (is it here?, the reason of a skip when it is not)
    "abigail": (lambda: all(shutil.which(p) for p in ("abidiff", "dpkg-gensymbols")),
                "cannot compare interfaces (apt-get install abigail-tools dpkg-dev)"),
    "bare": (lambda: bool(os.environ.get("WEIGHTD_BARE")), "to make a bare Debian and to install there takes ten minutes (make bare, "
             "make gpu-rehearsal)"),
    "bpf": (lambda: tracing().is_available(),
            "weightd-trace cannot count by BPF: it was not built (apt-get install libbpf-dev clang bpftool), it "
            "lacks the right (root), or the kernel, or a supervisor, refuses programs or iterators of BPF"),
    "bpftrace": (lambda: bool(shutil.which("bpftrace")), "no bpftrace (apt-get install bpftrace)"),
    "busybox": (is_busybox_static, "no static busybox (apt-get install busybox-static)"),
    "calls": (lambda: tracing().has("tp_btf/sock_send_length"),
              "the kernel has no hook for calls on sockets (Linux 6.3 is the first with one)"),
    "cgroup": (cgroup.is_available, "no memory cgroup that this user may create"),
    "cgroup2": (cgroup.is_unified_available, "no control groups of version 2, on their own or beside version 1, that this "
                "user may create"),
    "clang-format": (lambda: clang_format() is not None, "no clang-format 14 (apt-get install clang-format-14)"),
    "cmocka": (lambda: package_flags("cmocka") is not None, "no cmocka (apt-get install libcmocka-dev)"),
    "curl": (lambda: LIBRARY.exists() and b"libcurl.so.4" in LIBRARY.read_bytes() and bool(ctypes.util.find_library("curl")),
             "libweightd cannot load from URLs: no libcurl (apt-get install libcurl4-openssl-dev)"),
    "debootstrap": (lambda: debootstrap().is_available(), "cannot make a bare Debian: needs root, debootstrap (apt-get install "
                    "debootstrap), and a mirror of apt's for this release"),
    "fakes": ((ROOT / "build/fake/libcuda.so.1").exists, "the stand-in for libcuda is not built (make fakes)"),
    "faults": (lambda: BUILD.with_name(BUILD.name + "-faults").exists(),
               "the daemon with fault points is not built (make faults)"),
    "fentry": (lambda: tracing().has("fexit/receive_fd"),
               "this kernel is built without tracing of its functions (tests/bpf/test_guest.py has one with it)"),
    "fish": (lambda: bool(shutil.which("fish")), "no fish (apt-get install fish)"),
    "gloo": ((BUILD / "weightd-sync-gloo").exists, "weightd-sync-gloo was not built (apt-get install libgloo-dev g++)"),
    "ibverbs": (lambda: bool(ctypes.util.find_library("ibverbs")), "no libibverbs (apt-get install libibverbs1)"),
    "kubernetes-validate": ((ROOT / "build/kubernetes/bin/kubernetes-validate").exists, "no kubernetes-validate (make kubernetes)"),
    "library": (LIBRARY.exists, f"{LIBRARY} is not built (make)"),
    "gpu-programs": ((BUILD / "gpu/agent").exists, "the programs of tests/gpu are not built (make gpu-programs)"),
    "guest": (guest.is_available, "no guest: no qemu (apt-get install qemu-system-x86), or no kernel for it (make guest)"),
    "inih": (lambda: is_linked_with(b"libinih.so"), "weightd was built without inih (libinih-dev)"),
    "mandoc": (lambda: all(shutil.which(p) for p in ("groff", "man", "mandoc")), "no groff, man or mandoc (apt-get install groff-base man-db mandoc)"),
    "microhttpd": (lambda: is_linked_with(b"libmicrohttpd.so.12", "weightctl") and bool(ctypes.util.find_library("microhttpd")),
                   "weightctl cannot serve HTTP: no libmicrohttpd (apt-get install libmicrohttpd-dev)"),
    "model": (lambda: (MODEL / "model.safetensors").exists(), f"no model in {MODEL} (make model)"),
    "mounts": (lambda: os.geteuid() == 0 and bool(shutil.which("unshare")) and box.may_mount(),
               "cannot make mount namespaces: needs root, and CAP_SYS_ADMIN, which a container lacks"),
    "netns": (netns.is_available, "cannot make network namespaces: needs root and ip (apt-get install iproute2)"),
    "nginx": (lambda: bool(shutil.which("nginx")), "no nginx (apt-get install nginx-light)"),
    "numpy": (lambda: bool(importlib.util.find_spec("numpy")), "no numpy (python3-numpy)"),
    "patchelf": (lambda: bool(shutil.which("patchelf")), "no patchelf (apt-get install patchelf)"),
    "perfetto": (lambda: bool(shutil.which("node")) and (PERFETTO / "trace_processor.wasm").exists(),
                 "no trace processor of Perfetto (make perfetto), or no node (apt-get install nodejs)"),
    "pids": (lambda: os.stat("/proc/self/ns/pid").st_ino == INITIAL_PIDS,
             "weightd-trace finds processes by the numbers that the kernel's first PID namespace has for them; this one is another"),
    "probes": (lambda: tracing().has("uprobe_multi"),
               "the kernel cannot attach a program to many functions at once (Linux 6.6 is the first that can)"),
    "programs": (lambda: os.path.exists(PROGRAMS), "no Python with diffusers, peft and their like (make fetch-programs)"),
    "prometheus": (lambda: bool(importlib.util.find_spec("prometheus_client")),
                   "no prometheus_client (python3-prometheus-client)"),
    "promtool": (lambda: bool(shutil.which("promtool")), "no promtool (apt-get install prometheus)"),
    "refs": ((BUILD / "ref/oracle").exists, "the programs of tests/ref are not built (make refs)"),
    "root": (lambda: os.geteuid() == 0, "needs root"),
    "curl": (lambda: b"libcurl.so.4" in LIBRARY.read_bytes() and bool(ctypes.util.find_library("curl")),
             "libweightd cannot load URLs: no libcurl (apt-get install libcurl4-openssl-dev)"),
    "debhelper": (lambda: all(shutil.which(p) for p in ("dh", "dpkg-buildpackage", "lintian")),
                  "cannot build packages (packaging/install-deps deb)"),
    "scdoc": (lambda: bool(shutil.which("scdoc")), "no scdoc (apt-get install scdoc)"),
    "sdt": (lambda: is_linked_with(b"stapsdt"), "weightd was built without probes (apt-get install systemtap-sdt-dev)"),
    "sync": ((BUILD / "weightd-sync").exists, "weightd-sync was built without OpenSSL (apt-get install libssl-dev)"),
    "trace": ((BUILD / "weightd-trace").exists,
              "weightd-trace was not built (apt-get install libbpf-dev clang bpftool)"),
    "train-gloo": ((BUILD / "libweightd-train-gloo.so").exists,
                   "libweightd-train-gloo.so was not built (apt-get install libgloo-dev g++)"),
    "systemd": (box.is_available, "cannot boot a systemd: needs root, CAP_SYS_ADMIN, no chroot, systemd-nspawn (apt-get install "
                "systemd-container) and cgroups of version 2, on their own or beside version 1"),
    "spin": (lambda: bool(shutil.which("spin") and shutil.which("gcc")), "no spin, or no gcc (apt-get install spin gcc)"),
    "torch": (lambda: bool(importlib.util.find_spec("torch")), "no torch (python3-torch)"),
    "torch2": (lambda: os.path.exists(TORCH2), "no Python with torch 2 (make torch2)"),
    "yaml": (lambda: bool(importlib.util.find_spec("yaml")), "no module yaml (python3-yaml)"),
    "zsh": (lambda: bool(shutil.which("zsh")), "no zsh (apt-get install zsh)"),
}


def require(feature, reason=None, available=None):
    """Returns if the feature is here. A feature outside FEATURES needs `available`."""
    probe, missing = FEATURES.get(feature, (None, f"no {feature}"))
    if probe() if available is None else available:
        return
    import pytest  # programs that run beside it, such as tests/gpu/run, need no pytest

    if feature in os.environ.get("WEIGHTD_REQUIRE", "").split(","):
        pytest.fail(f"{reason or missing}, and WEIGHTD_REQUIRE has {feature}", pytrace=False)
    pytest.skip(reason or missing)


def require_descriptors(n):
    """Skips where a process may not have as many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    require("descriptors", f"a process may have {hard} descriptors here, not {n} (ulimit -Hn)",
            hard == resource.RLIM_INFINITY or hard >= n)

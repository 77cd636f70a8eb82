"""The installed files, and systemd's verdict on the units."""
import os
import re
import shutil
import stat
import subprocess

import pytest
from lib.features import BUILD, ROOT, is_linked_with

SECURITY_MAX = 5  # tenths
SYNC_SECURITY_MAX = 15  # it connects to other machines; with the drop-in that names them, 14
TRACE_SECURITY_MAX = 15  # it loads programs into the kernel
EXPORT_SECURITY_MAX = 4
METRICS_SECURITY_MAX = 13  # Prometheus is on other machines
TEXTFILE_SECURITY_MAX = 7  # root
LOAD_SECURITY_MAX = 7  # it reads home directories, and copies to GPUs


OPTIONAL = [name for name in ("weightd-sync", "weightd-trace") if (BUILD / name).exists()]
HAS_MICROHTTPD = is_linked_with(b"libmicrohttpd.so", "weightctl")
UNITS = "weightd.service", "weightd.socket", "weightd-export@.service", "weightd-load@.service", "weightd-models.target", \
    "weightd-metrics-textfile.service", "weightd-metrics-textfile.timer", *(f"{name}.service" for name in OPTIONAL), \
    *(["weightd-metrics.service"] if HAS_MICROHTTPD else [])


def wanted():
    """Path: permissions, or where a link leads."""
    version = re.findall(r"#define WEIGHTD_VERSION_\w+ (\d+)", (ROOT / "libclient/include/weightd.h").read_text())
    files = {
        "bin/weightctl": 0o755,
        "sbin/weightd": 0o755, "sbin/weightd-cuda": 0o755, "sbin/weightd-load": 0o755,
        "include/weightd.h": 0o644, "include/weightd-train.h": 0o644,
        "lib/libnccl-profiler-weightd.so": 0o644,
        "lib/pkgconfig/weightd.pc": 0o644, "lib/pkgconfig/weightd-train.pc": 0o644,
        "lib/systemd/system/weightd.service": 0o644,
        "lib/systemd/system/weightd.socket": 0o644,
        "lib/systemd/system/weightd-export@.service": 0o644,
        "lib/systemd/system/weightd-load@.service": 0o644,
        "lib/systemd/system/weightd-models.target": 0o644,
        "lib/systemd/system-generators/weightd-load-generator": 0o755,
        "lib/sysusers.d/weightd.conf": 0o644,
        "lib/systemd/catalog/weightd.catalog": 0o644,
        "lib/tmpfiles.d/weightd.conf": 0o644,
        "share/bash-completion/completions/weightctl": 0o644,
        "share/fish/vendor_completions.d/weightctl.fish": 0o644, "share/zsh/site-functions/_weightctl": 0o644,
        "share/doc/weightd/examples/failover/engine.socket": 0o644,
        "share/doc/weightd/examples/failover/engine@.service": 0o644,
        "share/doc/weightd/numa.conf": 0o644, "share/doc/weightd/preserve.conf": 0o644,
        "share/doc/weightd/weightd-alerts.yml": 0o644, "share/doc/weightd/weightd-dashboard.json": 0o644,
        "lib/systemd/system/weightd-metrics-textfile.service": 0o644, "lib/systemd/system/weightd-metrics-textfile.timer": 0o644,
        "share/doc/weightd/weightd.conf": 0o644,
    }
    for name in "libweightd.so", "libweightd-train.so":
        full = f"{name}." + ".".join(version)
        files |= {f"lib/{name}": f"{name}.{version[0]}", f"lib/{name}.{version[0]}": full, f"lib/{full}": 0o644}
    if (BUILD / "weightd-sync").exists():
        files |= {f"sbin/{name}": 0o755 for name in ("weightd-sync", "weightd-sync-local", "weightd-sync-tcp",
                                                        "weightd-sync-nccl")}
        files |= {"lib/systemd/system/weightd-sync.service": 0o644, "lib/sysusers.d/weightd-sync.conf": 0o644,
                  "lib/systemd/catalog/weightd-sync.catalog": 0o644, "share/doc/weightd/weightd-sync.conf": 0o644}
    if HAS_MICROHTTPD:
        files |= {"lib/systemd/system/weightd-metrics.service": 0o644}
    if (BUILD / "weightd-sync-gloo").exists():
        files |= {"sbin/weightd-sync-gloo": 0o755}
    if (BUILD / "libweightd-train-gloo.so").exists():
        files |= {"lib/libweightd-train-gloo.so": 0o644}
    if (BUILD / "weightd-trace").exists():
        files |= {"sbin/weightd-trace": 0o755, "lib/systemd/system/weightd-trace.service": 0o644,
                  "lib/sysusers.d/weightd-trace.conf": 0o644}
    if shutil.which("scdoc"):
        for page in (ROOT / "packaging/man").glob("*.scd"):
            files[f"share/man/man{page.stem[-1]}/{page.stem}"] = 0o644
    files |= {f"share/man/man1/{page.name}": 0o644 for page in (BUILD / "man/verbs").glob("*.1")}
    files |= {f"share/man/man3/{page.name}": 0o644 for page in (BUILD / "man/calls").glob("*.3")}
    package = ROOT / "libclient/python/weightd"
    for module in [*package.rglob("*.py"), package / "py.typed"]:
        files[f"lib/python3/dist-packages/weightd/{module.relative_to(package)}"] = 0o644
    return files


def found(folder):
    return {str(p.relative_to(folder)): str(p.readlink()) if p.is_symlink() else stat.S_IMODE(p.stat().st_mode)
            for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}


def test_install_brings_these_files_and_no_others(installed):
    assert found(installed) == {f"usr/{path}": what for path, what in wanted().items()}


def test_uninstall_removes_every_file(make, installed, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(installed, copy, symlinks=True)
    make("uninstall", copy)
    assert found(copy) == {}


PROGRAM = """
#include <stdio.h>
#include <weightd-train.h>

int main(void)
{
	uint64_t cuts[4];

	if (weightd_cuts(100, 32, 3, cuts) < 0)
		return 1;
	printf("%d\\n", (int)cuts[1]);
	return 0;
}
"""


@pytest.mark.parametrize("compiler, suffix", [("gcc", "c"), ("g++", "cc")])
def test_a_trainer_is_built_by_what_pkg_config_says(installed, tmp_path, compiler, suffix):
    """In C and in C++, with the libraries that the system would find."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler} (apt-get install {compiler})")
    lib = installed / "usr/lib"
    env = {"PATH": os.environ["PATH"], "PKG_CONFIG_PATH": str(lib / "pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(installed),
           "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1", "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1"}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "weightd-train"], env=env, capture_output=True, text=True, check=True)
    source, program = tmp_path / f"trainer.{suffix}", tmp_path / "trainer"
    source.write_text(PROGRAM)
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", source, "-o", program, *flags.stdout.split()], check=True)
    done = subprocess.run([program], env={"LD_LIBRARY_PATH": str(lib)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "32\n"), done.stderr


def test_installed_programs_and_libraries_name_no_folder_to_search(installed):
    for path in [*installed.glob("usr/lib/*.so"), *installed.glob("usr/*bin/*")]:
        dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
        assert "(RUNPATH)" not in dynamic and "(RPATH)" not in dynamic, path


def test_what_is_installed_names_the_places_it_is_used_at(installed):
    for path in installed.rglob("*"):
        if path.is_file() and path.parent.name in ("system", "system-generators", "pkgconfig", "sysusers.d", "tmpfiles.d",
                                                   "site-functions", "vendor_completions.d"):
            text = path.read_text()
            assert not re.search(rf"{installed}|{ROOT}|@\w+@", text), path


def test_a_load_finds_the_weightctl_that_is_installed_with_it(installed):
    assert "\nEnvironment=PATH=/usr/bin\n" in (installed / "usr/lib/systemd/system/weightd-load@.service").read_text()


def test_systemd_finds_nothing_wrong_with_the_units(shared_service):
    done = shared_service.run("systemd-analyze", "verify", *UNITS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name, most", [("weightd", SECURITY_MAX), ("weightd-sync", SYNC_SECURITY_MAX),
                                        ("weightd-trace", TRACE_SECURITY_MAX), ("weightd-export@", EXPORT_SECURITY_MAX),
                                        ("weightd-metrics", METRICS_SECURITY_MAX), ("weightd-metrics-textfile", TEXTFILE_SECURITY_MAX),
                                        ("weightd-load@", LOAD_SECURITY_MAX)])
def test_the_service_is_hardened(installed, name, most):
    unit = installed / f"usr/lib/systemd/system/{name}.service"
    if not unit.exists():
        pytest.skip(f"{name} was not built: it lacks a library")
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={most}", unit],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["weightd", "weightd-sync"])
def test_the_services_may_use_the_devices_of_the_driver_and_no_others(installed, name):
    unit = installed / f"usr/lib/systemd/system/{name}.service"
    if not unit.exists():
        pytest.skip(f"{name} was not built: it lacks a library")
    assert re.findall(r"^(Device\w+|PrivateDevices)=(.*)$", unit.read_text(), re.M) == \
        [("DevicePolicy", "closed"), ("DeviceAllow", "char-nvidia* rw")]


def test_a_service_goes_on_without_a_program_that_the_kernel_killed(shared_service):
    """Programs that allocate, and engines, are started again."""
    for name in "weightd", *set(OPTIONAL) & {"weightd-sync"}:
        assert shared_service.show(f"{name}.service", "OOMPolicy") == "continue", name


def test_a_sync_without_a_configuration_names_the_file(shared_service):
    if "weightd-sync" not in OPTIONAL:
        pytest.skip("weightd-sync was not built: it lacks a library")
    shared_service.run("systemctl", "start", "weightd-sync.service")
    status = shared_service.run("systemctl", "status", "weightd-sync.service", check=False).stdout
    assert "skipped because of an unmet condition check (ConditionPathExists=/etc/weightd/sync.conf)" in status


def unit_value(folder, key):
    unit = (folder / "usr/lib/systemd/system/weightd.service").read_text()
    return re.search(rf"^{key}=(.*)$", unit, re.M).group(1)


def test_the_service_may_hold_what_its_store_holds(installed):
    """And the connections of as many clients as a test of this size may want."""
    assert int(unit_value(installed, "LimitNOFILE")) >= int(unit_value(installed, "FileDescriptorStoreMax")) + 10000


@pytest.mark.parametrize("section, key, value", [
    # Any other of these lets systemd 252 drop the descriptors of the store sooner or later.
    ("Service", "Restart", "always"),
    ("Service", "FileDescriptorStoreMax", "6000"),
    ("Unit", "StartLimitIntervalSec", "0"),
    # Descriptors of the daemon's own helpers would be no weights.
    ("Service", "NotifyAccess", "main"),
    # It would show every client's uid as the overflow uid.
    ("Service", "PrivateUsers", None),
    # dh_installsystemd would restart the socket with the service.
    ("Install", "Also", None),
])
def test_the_service_keeps_to_the_rules_of_the_descriptor_store(installed, section, key, value):
    unit = (installed / "usr/lib/systemd/system/weightd.service").read_text()
    text = re.search(rf"^\[{section}\]\n(.*?)(?=^\[|\Z)", unit, re.M | re.S).group(1)
    assert re.findall(rf"^{key}=(.*)$", text, re.M) == ([value] if value is not None else [])

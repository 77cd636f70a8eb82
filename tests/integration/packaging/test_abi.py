"""The build of the packages fails where the interface of a public library changes: each symbol, and each struct."""
import os
import re
import shutil
import subprocess

import pytest
from lib import features
from lib.features import ROOT

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OUTER = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SAN", "V")
FAILED = 1


@pytest.fixture(scope="module", autouse=True)
def tools():
    features.require("abigail")
    if features.BUILD != ROOT / "build":
        pytest.skip("packages have the ordinary build")


@pytest.fixture
def tree(tmp_path):
    """Sources of libweightd that a test may change, with the objects of the build."""
    for name in "Makefile", "ipc", "libclient":
        subprocess.run(["cp", "-a", ROOT / name, tmp_path], check=True)
    shutil.copytree(ROOT / "packaging/debian", tmp_path / "debian")
    for name in "obj/ipc", "obj/libclient":
        (tmp_path / "build/obj").mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", ROOT / "build" / name, tmp_path / "build/obj"], check=True)
    for path in (ROOT / "build").glob("libweightd*.so.*.*"):
        shutil.copy2(path, tmp_path / "build")
    return tmp_path


def link(tree):
    """Builds the library anew, of what a test has left."""
    [library] = [path.name for path in (tree / "build").glob("libweightd.so.*.*")]
    (tree / "build" / library).unlink()
    env = {name: value for name, value in os.environ.items() if name not in OUTER}
    done = subprocess.run(["make", f"build/{library}"], cwd=tree, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "build" / library


def change(path, old, new):
    """Keeps the time of the file: only what a test has removed is built anew."""
    before, text = path.stat(), path.read_text()
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def check_symbols(tree, library):
    """As dh_makeshlibs does it."""
    return subprocess.run(["dpkg-gensymbols", "-c4", "-plibweightd0", "-Idebian/libweightd0.symbols", "-Pdebian/none",
                           f"-e{library}", "-O/dev/null"], cwd=tree, env={"PATH": PATH}, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def check_abi(tree):
    done = subprocess.run(["debian/abi", "check", "build"], cwd=tree, env={"PATH": PATH}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_the_libraries_of_this_tree_have_the_committed_interface(tree):
    done = check_symbols(tree, next((tree / "build").glob("libweightd.so.*.*")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert check_abi(tree)[0] == 0, check_abi(tree)[1]


@pytest.mark.parametrize("old, new, sign", [
    ("\tweightd_attach;\n", "", "-"),
    ("\tweightd_attach;\n", "\tweightd_attach;\n\tsentence_set;\n", "+"),
], ids=["lacks", "has more"])
def test_a_symbol_that_is_not_listed_or_lacking_fails(tree, old, new, sign):
    change(tree / "libclient/libweightd.map", old, new)
    done = check_symbols(tree, link(tree))
    name = "weightd_attach" if sign == "-" else "sentence_set"
    assert done.returncode != 0 and re.search(rf"^\{sign}.*{name}@WEIGHTD_0", done.stdout, re.M), done.stdout + done.stderr
    status, said = check_abi(tree)
    assert status == FAILED and name in said, said


def test_a_struct_that_grows_fails(tree):
    change(tree / "libclient/include/weightd.h", "struct weightd_cost_info {\n", "struct weightd_cost_info {\n\tuint64_t more;\n")
    (tree / "build/obj/libclient/list.o").unlink()
    status, said = check_abi(link(tree).parents[1])
    assert status == FAILED and "struct weightd_cost_info" in said and "size changed" in said, said

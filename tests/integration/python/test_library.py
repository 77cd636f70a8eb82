"""The library of a source tree: opened only where no other user can have put it there."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest
from lib.daemon import environment
from lib.features import LIBRARY, ROOT

OTHER = 65534  # neither root nor the caller
OPENED = "import weightd, weightd._abi as a, weightd._library as l; print(a.lib._name, l.library_path(\"libweightd-train.so.0\"), sep=\"\\n\")"


@pytest.fixture
def tree():
    """A source tree with libraries, in a folder of the system's /tmp that all users may enter."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weightd-tree-")).resolve()
    try:
        folder.chmod(0o755)
        (folder / "tree/libclient/include").mkdir(parents=True)
        (folder / "tree/libclient/include/weightd.h").touch()
        shutil.copytree(ROOT / "libclient/python/weightd", folder / "tree/libclient/python/weightd")
        (folder / "tree/build").mkdir()
        for name in "libweightd.so.0", "libweightd-train.so.0":
            shutil.copy(LIBRARY.with_name(name), folder / "tree/build" / name)
        subprocess.run(["chmod", "-R", "go-w,a+rX", folder], check=True)
        yield folder / "tree"
    finally:
        shutil.rmtree(folder)


def run(tree, *command, **env):
    env = {k: v for k, v in environment().items() if k != "WEIGHTD_LIBRARY"} | {"PYTHONPATH": str(tree / "libclient/python")} | env
    return subprocess.run([*command, sys.executable, "-B", "-c", OPENED], env=env, cwd="/", stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


def refused(tree, why, **env):
    done = run(tree, **env)
    assert done.returncode == 1 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: weightd does not run ") and why in last and "set WEIGHTD_LIBRARY" in last, done.stderr


def test_a_tree_of_the_caller_is_used(tree):
    assert run(tree).stdout.split() == [f"{tree}/build/libweightd.so.0", f"{tree}/build/libweightd-train.so.0"]


@pytest.mark.parametrize("path", ["build", "build/libweightd.so.0", "build/libweightd-train.so.0", ".", ".."])
@pytest.mark.parametrize("bits", [0o002, 0o020])
def test_a_path_that_others_may_write_is_refused_by_its_name(tree, path, bits):
    target = (tree / path).resolve()
    target.chmod(target.stat().st_mode | bits)
    refused(tree, f"others may write {target} (mode 07{75 if bits == 0o020 else 57}; chmod go-w)" if target.stat().st_mode & 0o100
            else f"others may write {target} (mode ")


@pytest.mark.parametrize("path", ["build", "build/libweightd.so.0", "."])
def test_a_path_of_another_user_is_refused_by_its_name(tree, path):
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    os.chown(tree / path, OTHER, -1)
    refused(tree, f"{(tree / path).resolve()} belongs to user {OTHER}, who is neither root nor you (user 0)")


def test_a_link_counts_as_what_it_leads_to(tree):
    elsewhere = tree.parent / "elsewhere"
    elsewhere.mkdir()
    (tree / "build/libweightd.so.0").rename(elsewhere / "library")
    (tree / "build/libweightd.so.0").symlink_to(elsewhere / "library")
    assert run(tree).returncode == 0
    elsewhere.chmod(0o777)
    refused(tree, f"others may write {elsewhere} (mode 0777; chmod go-w)")


def test_a_folder_like_tmp_is_fine_where_the_tree_in_it_is_the_callers(tree):
    tree.parent.chmod(0o1777)
    assert run(tree).returncode == 0


def test_a_tree_of_root_is_used_by_others(tree):
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can become another user, by setpriv")
    assert run(tree, "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups").returncode == 0


def test_a_library_that_the_caller_names_is_used_without_a_look(tree):
    (tree / "build").chmod(0o777)
    refused(tree, "others may write")
    done = run(tree, WEIGHTD_LIBRARY=str(tree / "build/libweightd.so.0"))
    assert done.stdout.split() == [f"{tree}/build/libweightd.so.0", f"{tree}/build/libweightd-train.so.0"], done.stderr


@pytest.fixture
def wheel(tree):
    """A package that an installer has put somewhere, with libraries of its own."""
    folder = tree.parent / "site-packages"
    shutil.copytree(tree / "libclient/python/weightd", folder / "weightd")
    (tree / "build").rename(folder / "weightd/lib")
    return folder / "weightd"


def run_wheel(wheel, *command, **env):
    return run(wheel, *command, PYTHONPATH=str(wheel.parent), **env)


def test_the_libraries_of_a_wheel_come_before_those_of_the_system(wheel):
    done = run_wheel(wheel, LD_LIBRARY_PATH=str(LIBRARY.parent))
    assert done.stdout.split() == [f"{wheel}/lib/libweightd.so.0", f"{wheel}/lib/libweightd-train.so.0"], done.stderr
    done = run_wheel(wheel, WEIGHTD_LIBRARY=str(LIBRARY))
    assert done.stdout.split()[0] == str(LIBRARY)


def test_a_wheel_says_its_release_and_its_file(wheel):
    code = "import weightd; print(weightd.__version__, weightd.__library__)"
    env = {k: v for k, v in environment().items() if k != "WEIGHTD_LIBRARY"} | {"PYTHONPATH": str(wheel.parent)}
    done = subprocess.run([sys.executable, "-B", "-c", code], env=env, cwd="/", capture_output=True, text=True)
    assert re.fullmatch(rf"\d+\.\d+\.\d+ {wheel}/lib/libweightd\.so\.0\n", done.stdout), done.stderr


@pytest.mark.parametrize("path, bits", [("lib", 0o002), ("lib", 0o020), ("lib/libweightd.so.0", 0o002)])
def test_a_library_that_more_users_may_write_than_the_package_is_refused(wheel, path, bits):
    (wheel / path).chmod((wheel / path).stat().st_mode | bits)
    done = run_wheel(wheel)
    assert done.returncode == 1 and f"more users may write {wheel / path} (mode 0" in done.stderr, done.stderr


def test_a_group_that_may_write_all_of_an_environment_is_no_stranger(wheel):
    """As pip leaves it with a umask of 002."""
    subprocess.run(["chmod", "-R", "g+w", wheel], check=True)
    assert run_wheel(wheel).returncode == 0


def test_a_library_of_another_user_than_the_package_is_refused(wheel):
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    os.chown(wheel / "lib/libweightd.so.0", OTHER, -1)
    done = run_wheel(wheel)
    assert done.returncode == 1 and f"libweightd.so.0 belongs to user {OTHER}, and {wheel}/_library.py to user 0" in done.stderr
    subprocess.run(["chown", "-R", str(OTHER), wheel], check=True)  # an environment that an administrator keeps
    assert run_wheel(wheel).returncode == 0


def test_a_package_that_is_newer_than_the_library_says_so(wheel):
    """The linker finds a file of that name for WEIGHTD_LIBRARY, and no library of weightd in it."""
    done = run_wheel(wheel, WEIGHTD_LIBRARY="libc.so.6")
    assert done.returncode == 1 and "ImportError: libc.so.6 is no libweightd of the release of this package" in done.stderr


def test_a_package_outside_of_a_tree_asks_the_system(tree):
    """Also where it lies less deep than in a tree."""
    (tree / "build").chmod(0o777)
    for folder in tree.parent / "installed", tree / "libclient/python/more/deep":
        shutil.copytree(tree / "libclient/python/weightd", folder / "weightd")
        done = run(tree, PYTHONPATH=str(folder), LD_LIBRARY_PATH=str(LIBRARY.parent))
        assert done.stdout.split() == ["libweightd.so.0", "libweightd-train.so.0"], done.stderr

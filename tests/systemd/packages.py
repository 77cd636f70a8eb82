"""Packages for Debian: as `make deb` builds them of this tree, and as a later release would have them."""
import os
import pathlib
import re
import shutil
import subprocess

from lib import features

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OUTER = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SAN", "DESTDIR", "PREFIX")  # this may run below another make


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def build(folder):
    """Packages of this tree, without those of debug symbols, in `folder`. Of the objects of the ordinary build."""
    env = {name: value for name, value in os.environ.items() if name not in OUTER} | {"DEB_BUILD_OPTIONS": "noautodbgsym"}
    run("make", "deb", "REUSE=1", f"DEB={folder}", cwd=features.ROOT, env=env)


def built(folder):
    """Packages of $WEIGHTD_DEBS, or of this tree in the new folder that folder() returns."""
    features.require("debhelper")
    if "WEIGHTD_DEBS" in os.environ:
        return pathlib.Path(os.environ["WEIGHTD_DEBS"])
    made = folder()
    build(made)
    return made


def names(folder):
    return sorted(path.name.split("_")[0] for path in folder.glob("*.deb"))


def version(folder):
    return next(folder.glob("weightd_*.deb")).name.split("_")[1]


def renew(folder, new):
    """Makes the same packages of a version that dpkg takes for a later one, in the folder `new`. Returns it."""
    old, later = version(folder), f"{version(folder)}+1"
    new.mkdir()
    for package in folder.glob("*.deb"):
        tree = new / "tree"
        run("dpkg-deb", "-R", package, tree)
        control = tree / "DEBIAN/control"
        # Packages depend on others of the very same version.
        control.write_text(re.sub(rf"(^Version: |\(= ){re.escape(old)}(?=\)|$)", rf"\g<1>{later}", control.read_text(), flags=re.M))
        run("dpkg-deb", "-Znone", "--root-owner-group", "-b", tree, new / package.name.replace(f"_{old}_", f"_{later}_"))
        shutil.rmtree(tree)
    return new


def unpacked(folder, into):
    """The files of all packages, in one folder."""
    for package in folder.glob("*.deb"):
        run("dpkg-deb", "-x", package, into)
    return pathlib.Path(into)

"""Fixtures of the tests that boot a systemd."""
import os
import subprocess

import pytest
from lib import box, features
from systemd import crowd

USERS = """\
u alice - "loads models" - -
u bob - "reads them" - -
u mallory - "is not in the group" - -
m alice weightd
m bob weightd
"""


@pytest.fixture(scope="session", autouse=True)
def systemd_only():
    features.require("systemd")
    if features.BUILD != features.ROOT / "build":
        pytest.skip("what is installed is the ordinary build")


@pytest.fixture(scope="session")
def make():
    """make("install", folder): runs that target on the ordinary build with DESTDIR=folder and PREFIX=/usr."""
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "SAN", "DESTDIR", "PREFIX")  # this may run below another make

    def run(target, folder):
        done = subprocess.run(["make", target, f"DESTDIR={folder}", "PREFIX=/usr"], cwd=features.ROOT,
                              env={k: v for k, v in os.environ.items() if k not in outer},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return run


@pytest.fixture(scope="session")
def installed(make, tmp_path_factory):
    """The files that `make install` puts into a package, in a folder; not to be changed."""
    folder = tmp_path_factory.mktemp("installed")
    make("install", folder)
    return folder


@pytest.fixture(scope="session")
def programs(installed, tmp_path_factory):
    """The programs of crowd.py, in a folder."""
    folder = tmp_path_factory.mktemp("programs")
    crowd.build(installed, folder)
    return folder


@pytest.fixture(scope="session")
def make_service(installed, programs):
    """make_service(): a box with weightd installed and its socket enabled, to be closed by the caller."""
    def boot():
        machine = box.Box(installed)
        try:
            crowd.install(programs, machine)
            machine.path("/usr/lib/sysusers.d/weightd-test.conf").write_text(USERS)
            machine.run("systemd-sysusers")
            machine.run("systemd-tmpfiles", "--create", "/usr/lib/tmpfiles.d/weightd.conf")
            machine.run("systemctl", "enable", "--now", "weightd.socket")
            machine.run("systemctl", "enable", "weightd.service")
        except BaseException:
            machine.close()
            raise
        return machine
    return boot


@pytest.fixture
def service(make_service):
    """Such a box, of one test."""
    with make_service() as machine:
        yield machine


@pytest.fixture(scope="module")
def shared_service(make_service):
    """Such a box, for tests that leave it as it is."""
    with make_service() as machine:
        yield machine

"""Fixtures of the tests that boot a systemd."""
import contextlib
import os
import subprocess

import pytest
from lib import box, features
from systemd import crowd, weights

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


class Reused:
    """A box with weightd that tests take in turns. It boots for the first one, and again behind one that failed."""

    def __init__(self, make_service):
        self.make_service, self.box = make_service, None

    @contextlib.contextmanager
    def turn(self, session):
        """The box, as it is after its boot. Whoever has it leaves behind what weights.forget() knows of, and nothing else."""
        n_failed = session.testsfailed
        self.box = self.box or self.make_service()
        try:
            yield self.box
            if session.testsfailed > n_failed:
                self.close()
            else:
                weights.forget(self.box)
        except BaseException:
            self.close()
            raise

    def close(self):
        box, self.box = self.box, None
        if box:
            box.close()


@pytest.fixture(scope="session")
def reused(make_service):
    found = Reused(make_service)
    yield found
    found.close()


@pytest.fixture
def service(request, reused):
    """A turn of one test."""
    with reused.turn(request.session) as machine:
        yield machine


@pytest.fixture
def own_service(make_service):
    """A box of one test, which changes files of packages, or more units."""
    with make_service() as machine:
        yield machine


@pytest.fixture(scope="module")
def shared_service(request, reused):
    """A turn of a whole file, whose tests leave the box as it is."""
    with reused.turn(request.session) as machine:
        yield machine

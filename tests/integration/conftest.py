"""Fixtures of the tests that drive the real programs."""
import contextlib
import ctypes
import os
import pathlib
import re
import subprocess
import sys

import pytest
from lib import features, tracing
from lib.daemon import Daemon
from lib.features import LIBRARY
from lib.gpus import Gpus
from lib.nodes import Cluster
from lib.pki import Authority

os.environ["WEIGHTD_LIBRARY"] = str(LIBRARY)  # read by the Python package in this very process


@pytest.fixture
def make_daemon():
    """make_daemon("--reserve", "1G"): a weightd with these options; all end with the test."""
    daemons = []

    def make(*args, **kw):
        daemons.append(Daemon(*args, **kw))
        return daemons[-1]

    yield make
    errors = []
    for daemon in daemons:
        try:
            daemon.close()
        except AssertionError as e:
            errors.append(str(e))
    assert not errors, "\n".join(errors)


@pytest.fixture
def daemon(make_daemon):
    """A weightd with no options but its socket."""
    return make_daemon()


@pytest.fixture
def make_gpus():
    """make_gpus(devices=2, memory="64M"): fake GPUs, which end with the test."""
    features.require("fakes")
    made = []

    def make(**kw):
        made.append(Gpus(**kw))
        return made[-1]

    yield make
    for gpus in made:
        gpus.heal()
        gpus.close()


@pytest.fixture
def gpu(make_gpus):
    """One fake GPU with 1 GiB: make_daemon(env=gpu.env) is a weightd that has it."""
    return make_gpus()


@pytest.fixture
def weightd(daemon, monkeypatch):
    """The package, led to a daemon of this test's own."""
    features.require("library")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    import weightd
    return weightd


@pytest.fixture
def with_torch():
    """torch is there, and the package that `weightd` is has weightd.torch."""
    features.require("library")
    features.require("torch")
    import weightd.torch  # noqa: F401


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """The CA of all nodes, of which a weightd-trace sees what they carry, where the machine lets it."""
    features.require("sync")
    with contextlib.ExitStack() as stack:
        if tracing.is_available():
            Cluster.tracer = stack.enter_context(tracing.Tracer())
        yield Authority(tmp_path_factory.mktemp("pki") / "ca")
        Cluster.tracer = None


@pytest.fixture
def make_nodes(authority):
    """make_nodes(4): a Cluster, which ends with the test, with a check unless that failed before."""
    features.require("library")
    made = []

    def make(*args, **kw):
        made.append(Cluster(authority, *args, **kw))
        return made[-1]

    yield make
    errors = []
    for cluster in made:
        try:
            cluster.close()
        except AssertionError as e:
            errors.append(str(e))
        finally:
            cluster.destroy()
    assert not errors, "\n".join(errors)


@pytest.fixture
def numpy():
    features.require("numpy")
    import numpy
    return numpy


@pytest.fixture
def python(daemon):
    """python(code): runs it in another interpreter that finds the package and the daemon."""
    features.require("library")

    def run(code, check=True):
        path = str(features.ROOT / "libclient/python")
        done = subprocess.run([sys.executable, "-c", code], env=daemon.env | {"PYTHONPATH": path},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done

    return run


@pytest.fixture
def without_libsystemd(require):
    """The words before a command for which the library is an empty file."""
    require("root")
    require("mounts")
    ctypes.CDLL("libsystemd.so.0")
    library = re.search(r"\S+/libsystemd\.so\S*", pathlib.Path("/proc/self/maps").read_text())[0]
    return "unshare", "--mount", "sh", "-c", 'mount --bind /dev/null "$0" && exec "$@"', library

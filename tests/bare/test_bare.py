"""The two commands of the README on a bare Debian, as root, in a folder that others cannot enter, with 1,024 descriptors.

`make demo` runs as a whole. Of `make check` only a part runs, with the packages that this part needs: the unit tests, and those
integration tests that use other users, descriptors and the README. WEIGHTD_BARE=full runs all of it, which takes about 40 minutes.
"""
import os
import re
import time

import pytest
from lib import features
from lib import bare_debian as machine

pytestmark = pytest.mark.timeout(6000)  # each command has a deadline of its own
PACKAGES_MAX, MB_MAX = 120, 400
PATIENCE_S = 1500
FULL_S = 5000
CLOSED = "cd /root/weightd && ulimit -n 1024 && "
PART = " ".join(["tests/unit", *(f"tests/integration/{name}.py" for name in (
    "server/test_access", "server/test_daemon", "server/test_hostile", "server/test_keeper", "server/test_users", "examples/test_readme",
    "sync/test_control", "engines/test_local", "weightctl/test_weightctl", "weightctl/test_sync"))])


@pytest.fixture
def bare():
    features.require("bare")
    features.require("debootstrap")
    with machine.Bare() as made:
        yield made


def test_the_demo_needs_few_packages(bare, capsys):
    before = bare.n_packages()
    began = time.monotonic()
    said = bare.run(f"{CLOSED} make demo", PATIENCE_S)
    took_s = time.monotonic() - began
    n = bare.n_packages() - before
    announced = re.search(r"^install-deps: with all .*: (\d+) packages, .* to download, ([0-9.]+) MB of disk space$", said, re.M)
    with capsys.disabled():
        print(f"\nmake demo: {n} packages, {announced[2]} MB, {took_s:.0f} s")
    assert "All workers and weightd ended with 0; nothing is left behind." in said, said[-5000:]
    assert "2 of 2 nodes" in said, said[-5000:]
    assert said.index(announced[0]) < said.index("Unpacking"), "it prints the packages before it installs them"
    assert n == int(announced[1]) <= PACKAGES_MAX and float(announced[2]) <= MB_MAX, (n, announced[0])


def test_the_tests_pass_or_skip(bare, capsys):
    began = time.monotonic()
    if os.environ.get("WEIGHTD_BARE") == "full":
        said = bare.run(f"{CLOSED} make check", FULL_S)
    else:
        said = bare.run(f"{CLOSED} packaging/install-deps demo && apt-get -qq install -y --no-install-recommends "
                        "libcmocka-dev python3-pytest python3-pytest-timeout >/dev/null && make -j$(nproc) model all faults unit benches fakes "
                        f"&& make pytest ARGS='-m \"not measures and not probes\" {PART}'", PATIENCE_S)
    sums = re.findall(r"^(?:=+ )?(\d+ passed.*?|\d+ failed, .*passed.*?)(?: =+)?$", said, re.M)
    with capsys.disabled():
        print(f"\nmake check: {bare.n_packages()} packages, {time.monotonic() - began:.0f} s: {'; '.join(sums)}")
    assert sums and not re.search(r"[1-9]\d* (failed|error)", " ".join(sums)), said[-20000:]
    assert not re.search(r"^SKIPPED \[\d+\] \S+ *$", said, re.M), "a skip names its reason"

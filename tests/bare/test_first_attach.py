"""Our packages on a bare Debian: from one `apt install` to the first attach. `make bare` and `make check-deb` run it."""
import time

import pytest
from lib import features, model_files
from lib import bare_debian as machine
from systemd import packages

pytestmark = pytest.mark.timeout(1800)
PACKAGES_MAX = 40
PATIENCE_S = 600
# For a node that serves weights. The others add Python, BPF, and what Gloo and RDMA need.
SERVING = ["weightd", "weightd-tools", "libweightd0", "libweightd-train0"]
# No service manager runs in a chroot.
FIRST_ATTACH = """
set -e
apt-get install -y {debs}
weightd --keeper --log-level warning & daemon=$!
weightctl ping --wait
weightctl load -q small /in/model.safetensors
weightctl verify small
kill $daemon
wait $daemon
"""


@pytest.fixture(scope="module")
def debs(tmp_path_factory):
    features.require("bare")
    features.require("debootstrap")
    return packages.built(lambda: tmp_path_factory.mktemp("deb"))


@pytest.fixture
def bare(debs):
    """A bare Debian with all our packages in /in, and the lists of apt."""
    with machine.Bare() as made:
        into = made.upper / "in"
        into.mkdir()
        for package in debs.glob("*.deb"):
            (into / package.name).write_bytes(package.read_bytes())
        model_files.write_model(into / "model.safetensors", n_bytes=64 << 20)
        made.run("apt-get update", PATIENCE_S)
        yield made


@pytest.mark.parametrize("names", [SERVING, ["*"]], ids=["serving", "all"])
def test_apt_installs_what_an_attach_needs(bare, names, capsys):
    before = bare.n_packages()
    began = time.monotonic()
    said = bare.run(FIRST_ATTACH.format(debs=" ".join(f"/in/{name}_*.deb" if name != "*" else "/in/*.deb" for name in names)), PATIENCE_S)
    took_s = time.monotonic() - began
    n = bare.n_packages() - before
    with capsys.disabled():
        print(f"\napt install, load, verify: {' '.join(names)}: {n} packages, {took_s:.1f} s")
    assert "small" in said, said[-5000:]
    if names is SERVING:
        assert n <= PACKAGES_MAX, said[-5000:]

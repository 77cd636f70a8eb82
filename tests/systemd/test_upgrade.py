"""A package of this release over the one before, whose versions are no files, under readers that stay; and back."""
import contextlib
import shutil

import pytest
from lib import earlier, features
from systemd import weights
from systemd.crowd import Reader
from systemd.weights import SERVICE

SIZE = 256 * 1024
FILES = {"weightd": "/usr/sbin/weightd", "weightctl": "/usr/bin/weightctl", "libweightd.so.0": "/usr/lib/libweightd.so.0"}


def put(box, folder):
    """As a package does it: new files under the old names."""
    for name, path in FILES.items():
        target = box.path(path)
        new = target.with_name(f"{target.name}.new")
        shutil.copyfile((folder / name).resolve(), new)
        new.chmod(0o755)
        new.rename(target)


@pytest.fixture
def box(own_service):
    earlier.require()
    put(own_service, earlier.BUILD)
    own_service.run("systemctl", "restart", SERVICE)
    return own_service


def upgrade(box):
    put(box, features.BUILD)
    box.run("systemctl", "restart", SERVICE)


def test_old_versions_outlive_the_upgrade_and_what_is_new_outlives_the_way_back(box):
    for seed in (1, 2):
        weights.load(box, "m", SIZE, seed=seed)
    weights.load(box, "old", SIZE, seed=3)
    before = {name: versions["versions"] for name, versions in weights.contents(box).items()}
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Reader(box, "m", version, "bob")) for version in (1, 2)]
        passes = [reader.read_on() for reader in readers]

        upgrade(box)

        assert {name: digests(versions["versions"]) for name, versions in weights.contents(box).items()} == {
            name: digests(versions) for name, versions in before.items()}
        assert weights.verify(box) == 3 and all(reader.read_on() > n for reader, n in zip(readers, passes))
        weights.load(box, "m", SIZE, seed=4)
        weights.load(box, "new", SIZE, seed=5)
        made = weights.contents(box)
        assert weights.verify(box) == 5 and weights.readers(weights.show(box))["m", 2] == 1
        passes = [reader.read_on() for reader in readers]

        put(box, earlier.BUILD)
        with box.expect("has format 3 and this weightd supports 2: it is kept and not served; start the release that wrote it"):
            box.run("systemctl", "restart", SERVICE)
        assert weights.names(box) == ["old"] and weights.verify(box) == 1

        upgrade(box)

        assert weights.contents(box) == made and weights.verify(box) == 5
        assert all(reader.read_on() > n for reader, n in zip(readers, passes))


def digests(versions):
    return {v["version"]: v["digest"] for v in versions}

"""The container image: what is in it, that it is reproducible, and that both of its forms are read. By make check-image."""
import hashlib
import io
import json
import os
import pathlib
import re
import shlex
import subprocess
import tarfile
import tempfile

import pytest
from integration.containers.test_pods import IMAGE
from lib import features
from integration.containers.pods import Podman
from lib.wire import until

DEBS = os.environ.get("WEIGHTD_DEBS")
SIZE_MAX = 40 << 20
ID = 47434

pytestmark = [pytest.mark.plain, pytest.mark.skipif(not IMAGE, reason="no image (make check-image)")]


@pytest.fixture
def podman():
    podman = Podman(IMAGE)
    try:
        yield podman
    finally:
        podman.close()


def blobs():
    with tarfile.open(IMAGE) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def layer():
    files = blobs()
    [saved] = json.loads(files["manifest.json"])
    return tarfile.open(fileobj=io.BytesIO(files[saved["Layers"][0]]))


def test_both_forms_name_the_same_blobs_by_their_digests():
    files = blobs()
    for name, data in files.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
    [saved] = json.loads(files["manifest.json"])
    [entry] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[entry["digest"].replace("sha256:", "blobs/sha256/")])
    assert [d["digest"].replace("sha256:", "blobs/sha256/") for d in manifest["layers"]] == saved["Layers"]
    assert manifest["config"]["digest"].replace("sha256:", "blobs/sha256/") == saved["Config"]
    config = json.loads(files[saved["Config"]])
    assert config["config"]["User"] == f"{ID}:{ID}" and config["rootfs"]["diff_ids"] == [d["digest"] for d in manifest["layers"]]


def test_nothing_of_this_machine_and_no_package_manager_is_in_it():
    with layer() as files:
        names = files.getnames()
        assert names == sorted(names)
        found = [name for name in names if re.match(r"etc/(apt|hostname|resolv|ssl)|dev/.|var/(?!lib/dpkg/status\.d/)|.*/apt$|.*/dpkg$", name)]
        assert found == [] and "usr/sbin/weightd" in names and "usr/bin/weightctl" in names
        assert {m.uname for m in files} == {""} and not [m.name for m in files if m.mode & 0o6000]
        assert {(m.name, m.uid, m.gid) for m in files if (m.uid, m.gid) != (0, 0)} == {("run/weightd", ID, ID)}
        listed = {files.extractfile(m).read().decode().split("\n")[0] for m in files if m.name.startswith("var/lib/dpkg/status.d/")}
        assert {"Package: weightd", "Package: libc6"} <= listed
    print(f"{os.path.getsize(IMAGE)} bytes, {len(names)} files, {len(listed)} packages")
    assert os.path.getsize(IMAGE) < SIZE_MAX


def test_the_same_packages_make_the_same_image(tmp_path):
    epoch = int(max(m.mtime for m in layer()))  # later times were cut to it
    made = []
    for name in "a", "b":
        subprocess.run([features.ROOT / "packaging/make-image", DEBS, tmp_path / name], check=True, timeout=300,
                       env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}, stdin=subprocess.DEVNULL)
        made.append(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert made[0] == made[1] == hashlib.sha256(pathlib.Path(IMAGE).read_bytes()).hexdigest()


def test_the_command_of_the_readme_serves(podman):
    [line] = re.findall(r"^podman run .*$", (features.ROOT / "packaging/kubernetes/README.md").read_text(), re.M)
    with tempfile.TemporaryDirectory(prefix="weightd-run-") as folder:
        os.chmod(folder, 0o755)
        words = shlex.split(line.replace("-v /run/weightd:", f"-v {folder}:"))[1:]
        name = words[words.index("--name") + 1]
        # This machine may not let a container raise its limits.
        podman.run(*words[:1], "--ulimit", "nofile=16384:16384", "--ulimit", "nproc=4096:4096", *words[1:])
        until(lambda: podman.run("exec", name, "weightctl", "ping", check=False).returncode == 0, "weightd serves")
        podman.run("stop", "--time", 30, name)
        assert podman.run("inspect", "--format", "{{.State.ExitCode}}", name).stdout.strip() == "0"


@pytest.mark.timeout(300)
def test_the_oci_layout_is_the_same_image(podman):
    loaded = podman.run("inspect", "--type", "image", "--format", "{{.Id}}", podman.image).stdout
    assert podman.run("pull", "--quiet", f"oci-archive:{IMAGE}").stdout == loaded

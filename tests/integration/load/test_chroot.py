"""Clients in a chroot that has the socket of weightd and no /proc."""
import json
import pathlib
import re
import shutil
import subprocess

import pytest
from lib.daemon import environment
from lib.features import BUILD, LIBRARY, ROOT
from lib.safetensors_file import pack

pytestmark = pytest.mark.plain  # the runtime of a sanitizer needs /proc itself

ATTACH = """
#include <stdio.h>
#include <weightd.h>

int main(int argc, char **argv)
{
	struct weightd_tensor t = {.size = sizeof(t)};
	struct weightd_buffer *b;
	struct weightd *w;

	if (argc != 3 || weightd_new(&w) < 0)
		return 2;
	if (weightd_connect(w, NULL) < 0 || weightd_attach(w, argv[1], NULL, &b) < 0) {
		fprintf(stderr, "%s\\n", weightd_error(w));
		return 1;
	}
	if (weightd_buffer_find(b, argv[2], &t) < 0)
		return 3;
	printf("%d\\n", *(const unsigned char *)t.data);
	weightd_detach(b);
	weightd_close(w);
	return 0;
}
"""
ENTER = 'mount --bind "$1" "$2/run" && shift && exec chroot "$@"'


def copy_libraries(program, root):
    """Into the folder of the system: without /proc no program knows its own."""
    for path in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", program], text=True, check=True, stdout=subprocess.PIPE).stdout):
        path = pathlib.Path(path)
        folder = root / "usr/lib" if BUILD in path.parents else root / str(path.parent)[1:]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.name)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A chroot with weightctl, a program that attaches, their libraries, and nothing else."""
    root = tmp_path_factory.mktemp("chroot")
    for folder in "bin", "usr/lib", "run", "tmp":
        (root / folder).mkdir(parents=True)
    source = root / "tmp/attach.c"
    source.write_text(ATTACH)
    subprocess.run(["gcc", "-Wall", "-Werror", "-I", ROOT / "libclient/include", source, "-o", root / "bin/attach", "-L", LIBRARY.parent,
                    "-lweightd", f"-Wl,-rpath,{LIBRARY.parent}"], check=True)
    shutil.copy(BUILD / "weightctl", root / "bin/weightctl")
    copy_libraries(BUILD / "weightctl", root)
    copy_libraries(root / "bin/attach", root)
    return root


@pytest.fixture
def inside(root, daemon, require):
    """inside(program, *arguments): runs it in the chroot, where the daemon's folder is /run."""
    require("mounts")
    folder, name = pathlib.Path(daemon.socket).parent, pathlib.Path(daemon.socket).name

    def run(program, *args, check=True):
        done = subprocess.run(["unshare", "--mount", "sh", "-c", ENTER, "sh", folder, root, f"/bin/{program}", *args],
                              env=environment() | {"WEIGHTD_SOCKET": f"/run/{name}"}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stderr
        return done
    return run


def model_in(root, name="model", value=7):
    """A folder of it, with a file beside the weights: its path in the chroot."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(pack({"t": ("U8", [4096], bytes([value]) * 4096), "u": ("U8", [16], bytes(16))}))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    return f"/{name}"


def test_a_model_is_loaded_listed_verified_attached_and_saved(root, inside, daemon):
    path = model_in(root, "whole")
    for _ in range(2):  # a new layout, and the one that is known
        inside("weightctl", "load", "--quiet", "m", path)
    assert [b["name"] for b in json.loads(inside("weightctl", "ls", "--json").stdout)["buffers"]] == ["m"]
    assert "matches digest" in inside("weightctl", "verify", "m").stdout
    assert inside("attach", "m", "t").stdout == "7\n"
    assert "config.json" in inside("weightctl", "files", "m").stdout
    inside("weightctl", "save", "--quiet", "m", "/tmp/saved")
    assert (root / "tmp/saved/model.safetensors").read_bytes() == (root / path[1:] / "model.safetensors").read_bytes()
    assert "matches digest" in daemon.ctl("verify", "m").stdout


def test_other_tensors_are_a_new_layout(root, inside):
    """The server then sends the layout of the version before, and gets another one."""
    inside("weightctl", "load", "--quiet", "m", model_in(root, "first"))
    folder = root / "second"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(pack({"other": ("U8", [64], bytes([9]) * 64)}))
    inside("weightctl", "load", "--quiet", "--new-layout", "m", "/second")
    assert inside("attach", "m", "other").stdout == "9\n"


def test_links_of_a_hugging_face_snapshot_are_followed(root, inside):
    blobs = root / model_in(root, "hub/blobs")[1:]
    snapshot = root / "hub/snapshots/0123abcd"
    snapshot.mkdir(parents=True)
    for name in "model.safetensors", "config.json":
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert blobs.is_dir()
    inside("weightctl", "load", "--quiet", "m", "/hub/snapshots/0123abcd")
    assert "config.json" in inside("weightctl", "files", "m").stdout


@pytest.mark.parametrize("command", [
    ("exec", "m", "--", "/bin/weightctl", "{}"), ("exec", "--inherit", "m", "--", "/bin/weightctl", "{}"), ("export", "--hold", "m", "/tmp/exported"),
], ids=["exec", "inherit", "export"])
def test_a_path_of_a_version_needs_proc_and_the_error_says_so(root, inside, daemon, command):
    daemon.ctl("load", "m", str(root / model_in(root, f"for-{len(command)}-{command[1]}")[1:]))
    done = inside("weightctl", *command, check=False)
    assert done.returncode != 0 and "/proc is not mounted" in done.stderr, done.stderr
    assert "mount it (mount -t proc proc /proc), or write the version to a folder (weightctl save)" in done.stderr
    assert "--inherit works without" not in done.stderr and not (root / "tmp/exported").exists()

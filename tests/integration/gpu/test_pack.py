"""`make gpu-pack`: the programs of tests/gpu/run for a machine that has none of the libraries that they need."""
import subprocess
import sys

import libraries
import pytest
from lib import features, rehearsal
from lib import bare_debian as bare
from lib.gpus import Gpus

pytestmark = pytest.mark.plain
PACKER = features.ROOT / "tests/gpu/pack"
RUN_S = 100
STAYS = "libz.so.1", "libgcc_s.so.1", "libstdc++.so.6"  # loaded by Python and by the program that starts it
NAMES = "libcrypto.so.3", "libssl.so.3", "libjansson.so.4", "libelf.so.1"


@pytest.fixture
def store(tmp_path):
    """A pack of libraries that are empty."""
    folder = tmp_path / libraries.STORE
    folder.mkdir()
    for name in NAMES:
        (folder / name).touch()
    return tmp_path


def link(store, monkeypatch, said):
    """Links with an `ldd` that prints each text until the library before it is linked."""
    def answer(_program):
        linked = {path.name for path in (store / libraries.LINKED).iterdir()}
        return "\n".join(text for name, text in said if name not in linked)

    monkeypatch.setattr(libraries, "_list", answer)
    linked, problems = libraries.link(store, ["p"])
    assert sorted(path.name for path in (store / libraries.LINKED).iterdir()) == linked
    return linked, problems


def test_what_a_machine_has_is_not_linked(store, monkeypatch):
    assert link(store, monkeypatch, [("", "\tlibjansson.so.4 => /lib/libjansson.so.4 (0x0)")]) == ([], [])


def test_libraries_of_one_release_are_linked_together(store, monkeypatch):
    assert link(store, monkeypatch, [("libssl.so.3", "\tlibssl.so.3 => not found")]) == (["libcrypto.so.3", "libssl.so.3"], [])


def test_an_old_library_is_replaced(store, monkeypatch):
    old = "/lib/libjansson.so.4: version `libjansson.so.4' not found (required by p)"
    assert link(store, monkeypatch, [("libjansson.so.4", old)]) == (["libjansson.so.4"], [])


def test_what_no_pack_can_bring_is_named(store, monkeypatch):
    said = [("", "p: /lib/libc.so.6: version `GLIBC_2.99' not found (required by p)"), ("", "\tlibx.so.1 => not found"),
            ("libelf.so.1", "\tlibelf.so.1 => not found")]
    assert link(store, monkeypatch, said) == (
        ["libelf.so.1"], ["/lib/libc.so.6 has no GLIBC_2.99, which p needs", "p needs libx.so.1"])


def test_a_pack_runs_where_its_libraries_are_not(tmp_path, require):
    """On this machine's root, which loses them; tests/bare/test_gpu.py has another distribution."""
    for feature in "root", "fakes", "gpu-programs", "patchelf", "sync":
        require(feature)
    pack = tmp_path / "build-gpu"
    done = subprocess.run([sys.executable, PACKER, features.BUILD, pack], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    lost = sorted({path.name for path in (pack / libraries.STORE).iterdir()} - {*STAYS})
    gpus = Gpus(memory="512M")
    try:
        with bare.Machine("/", "/dev/shm") as machine:  # an overlay over / has to have its upper half on another file system
            try:
                machine.run("true", RUN_S)
            except AssertionError as e:
                require("overlay", f"no overlay over / can be mounted: {e}", available=False)
            rehearsal.bring(machine, pack)
            # ldconfig makes links anew of which the files are still there.
            lose = " ".join(f"/usr/lib/{name} /usr/lib/*/{name}" for name in lost)
            said, lines = rehearsal.rehearse(machine, gpus, RUN_S, "--sections", "sharing,sync,sanitizer",
                                             before=f"rm -f $(readlink -e {lose})")
    finally:
        gpus.close()
    assert f"this machine lacks {', '.join(lost)}\n" in said, said
    assert [line for line in lines if line["ok"] is False] == [], said
    assert {line["section"] for line in lines if line["ok"]} == {"sharing", "sync"}, said

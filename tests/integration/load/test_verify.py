"""weightctl load --verify: what differs from its digest or its SHA-256 is not published, and a version has what was checked."""
import hashlib
import json
import os
import random
import re
import subprocess

import pytest
from lib import features

from integration.load.test_load import (MIB, buffers, check_bytes, check_refused, clean, gate_library, make_gate, one_file,
                                        random_tensors, write_index, write_model)

__all__ = ["clean", "gate_library", "make_gate", "one_file"]  # fixtures


@pytest.fixture(autouse=True)
def libcrypto():
    found = subprocess.run(["python3", "-c", "import ctypes; ctypes.CDLL('libcrypto.so.3')"], stderr=subprocess.DEVNULL)
    features.require("openssl", "no libcrypto.so.3", available=found.returncode == 0)


def sum_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_sums(folder, *paths, wrong=None):
    """SHA256SUMS as sha256sum writes it; `wrong` gets the sum of other bytes."""
    text = "".join(f"{hashlib.sha256(b'other').hexdigest() if path == wrong else sum_of(path)}  {path.name}\n" for path in paths)
    (folder / "SHA256SUMS").write_text(text)
    return hashlib.sha256(b"other").hexdigest()


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def load(daemon, *args, name="m", **kw):
    return json.loads(daemon.ctl("load", "--json", "--quiet", name, *args, **kw).stdout)


def attribute(daemon, name="m"):
    return json.loads(daemon.ctl("show", name, "--json").stdout).get("attributes", {}).get("verified")


def shards(folder):
    """Three files with an index, which leaves a tensor of the second one out, and their tensors."""
    parts = [random_tensors(random.Random(i), f"part{i}", 12) for i in range(3)]
    paths = [folder / f"model-0000{i + 1}-of-00003.safetensors" for i in range(3)]
    for i, (path, part) in enumerate(zip(paths, parts)):
        write_model(path, ({"stale": ("U8", [5], b"stale")} if i == 1 else {}) | part)
    write_index(folder / "model.safetensors.index.json",
                {name: path.name for path, part in zip(paths, parts) for name in part})
    return paths, parts[0] | parts[1] | parts[2]


def hub(folder, paths):
    """The files as a cache of Hugging Face has them: a snapshot of links to blobs that are named by their SHA-256."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "snapshots" / "0123").mkdir(parents=True)
    for path in paths:
        blob = folder / "blobs" / (sum_of(path) if path.suffix == ".safetensors" else hashlib.sha1(path.read_bytes()).hexdigest())
        path.rename(blob)
        (folder / "snapshots" / "0123" / path.name).symlink_to(os.path.join("..", "..", "blobs", blob.name))
    return folder / "snapshots" / "0123"


# --- Reports ---------------------------------------------------------------------------------------

def test_the_result_and_the_version_have_what_was_verified(daemon, one_file):
    path, _, tensors = one_file
    write_sums(path.parent, path)
    assert load(daemon, path)["verified"] == "none"
    assert attribute(daemon) is None
    for how in "xxh3", "sha256":
        done = load(daemon, path, "--verify", how)
        assert (done["verified"], attribute(daemon)) == (how, f"{how} of {done['digest']}"), done
        check_bytes(daemon, "m", tensors)
    text = daemon.ctl("load", "-q", "m", path).stdout + daemon.ctl("load", "m", path, "--verify", "sha256").stdout
    assert re.fullmatch(r"m@\d+ on host: .*, digest xxh3:[0-9a-f]{32}, verified by sha256\n", text), text
    load(daemon, path)
    assert attribute(daemon) is None, "a load that verified nothing has the attribute of another"


def test_a_version_that_inherits_the_attribute_has_another_digest(daemon, one_file):
    """The attribute names the digest that it is about: a needed load does not take it for another's."""
    path, offset, tensors = one_file
    write_sums(path.parent, path)
    load(daemon, path, "--verify", "sha256", "--keep", "3")
    done = daemon.ctl("load", "m", path, "--if-needed", "--verify", "sha256")
    assert "already" in done.stdout
    first = attribute(daemon)
    flip(path, offset)
    load(daemon, path, "--attribute", f"verified={first}")
    assert attribute(daemon) is None, "an attribute that the caller made up"
    write_sums(path.parent, path)
    assert "already" in daemon.ctl("load", "m", path, "--if-needed").stdout
    done = daemon.ctl("load", "m", path, "--if-needed", "--verify", "xxh3")
    assert "verified by xxh3" in done.stdout, "it was there, but not verified"
    assert "already" in daemon.ctl("load", "m", path, "--if-needed").stdout
    assert "verified by sha256" in daemon.ctl("load", "m", path, "--if-needed", "--verify", "sha256").stdout


def test_a_wrong_word_is_refused(clean, one_file):
    done = clean.ctl("load", "m", one_file[0], "--verify", "md5", check=False)
    assert done.returncode == 2 and "--verify wants none, xxh3 or sha256, not 'md5'" in done.stderr


# --- SHA-256 ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("read", ["buffered", pytest.param("direct", marks=pytest.mark.threads)])
def test_files_with_the_expected_sums_are_loaded(daemon, tmp_path, read):
    paths, tensors = shards(tmp_path)
    write_sums(tmp_path, *paths)
    assert load(daemon, tmp_path, "--verify", "sha256", "--read", read)["verified"] == "sha256"
    check_bytes(daemon, "m", tensors, in_order=False)
    # In the layout of another load, of a part, and converted: the sums are still those of the files.
    load(daemon, *reversed(paths), "--verify", "sha256", "--new-layout")
    load(daemon, tmp_path, "--verify", "sha256", "--new-layout", "--include", "part1.*", "--exclude", "*.3.weight")
    folder = hub(tmp_path / "hub", [*paths, tmp_path / "model.safetensors.index.json"])
    assert load(daemon, folder, "--verify", "sha256", "--new-layout")["verified"] == "sha256"
    check_bytes(daemon, "m", tensors, in_order=False)


@pytest.mark.parametrize("form, where", [
    *(("manifest", where) for where in ("header", "data", "end")), ("marked", "data"), ("hub", "header"),
    *(pytest.param(form, where, marks=pytest.mark.long)
      for form, where in (("marked", "header"), ("marked", "end"), ("hub", "data"), ("hub", "end")))])
def test_a_damaged_file_is_refused_by_its_sums(clean, tmp_path, form, where):
    paths, _ = shards(tmp_path)
    expected = sum_of(paths[1])
    if form == "hub":
        folder = hub(tmp_path / "hub", [*paths, tmp_path / "model.safetensors.index.json"])
    else:
        folder = tmp_path
        write_sums(tmp_path, *paths)
        if form == "marked":  # as --binary and a find write it, and Windows
            sums = tmp_path / "SHA256SUMS"
            sums.write_text(sums.read_text().replace("  ", " *./").replace("\n", "\r\n"))
    path = folder / paths[1].name
    raw = bytearray(path.read_bytes())
    at = {"header": raw.index(b"stale") + 1, "data": len(raw) // 2, "end": len(raw) - 1}[where]
    raw[at] ^= 1
    path.write_bytes(raw)
    done = clean.ctl("load", "m", folder, "--verify", "sha256", check=False)
    check_refused(done, paths[1].name, f"SHA-256 {expected} is expected", f"and {hashlib.sha256(raw).hexdigest()} was found",
                  "nothing was published")
    assert load(clean, folder)["verified"] == "none", "the same without --verify"
    clean.ctl("rm", "m")


def test_bytes_that_were_read_wrongly_have_another_sum(clean, make_gate, one_file):
    """The sum is of what got into the version, and not of what another read finds in the file."""
    path, offset, _ = one_file
    write_sums(path.parent, path)
    for how, phrase in ("sha256", "is not the file it should be"), ("xxh3", "are others when the file is read again"):
        gate = make_gate(path, offset, "flip", call=3)
        done = subprocess.run([features.BUILD / "weightctl", "load", "m", path, "--read", "buffered", "--verify", how],
                              env=gate.environment(clean), capture_output=True, text=True, timeout=60)
        check_refused(done, phrase, "nothing was published")


def test_a_sum_that_is_not_known_is_a_sentence(clean, tmp_path):
    path, other = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    for at in path, other:
        write_model(at, random_tensors(random.Random(1), "t", 5))
    sums = tmp_path / "SHA256SUMS"
    for text, *phrases in [
        (None, "no SHA-256 is known for", "model.safetensors", "sha256sum"),
        ("", "has no line for 'model.safetensors'"),
        (f"{sum_of(other)}  other.safetensors", "has no line for 'model.safetensors'"),
        (f"{sum_of(path)}\tmodel.safetensors\n", "line 1 of", "is not as sha256sum writes it"),
        (f"\n{sum_of(path)[1:]}  model.safetensors\n", "line 2 of", "is not as sha256sum writes it"),
        (f"SHA256 (model.safetensors) = {sum_of(path)}\n", "line 1 of"),
        (f"{'g' * 64}  model.safetensors\n", "line 1 of"),
        (f"{sum_of(path)}  ", "line 1 of"),
        (f"{sum_of(path)}  model.safetensors\n{'0' * 64}  ./model.safetensors\n", "has two different sums for"),
    ]:
        sums.unlink(missing_ok=True)
        if text is not None:
            sums.write_text(text)
        check_refused(clean.ctl("load", "m", path, "--verify", "sha256", check=False), *phrases)
    sums.unlink()
    sums.mkdir()
    check_refused(clean.ctl("load", "m", path, "--verify", "sha256", check=False), "is a directory")


def test_a_machine_without_libcrypto_says_so(clean, one_file, tmp_path):
    """dlopen() finds nothing: as on a machine without OpenSSL."""
    source, library = tmp_path / "none.c", tmp_path / "none.so"
    source.write_text("""
        #include <dlfcn.h>
        #include <string.h>
        void *dlopen(const char *name, int flags)
        {
            void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
            return name && strstr(name, "libcrypto") ? 0 : next(name, flags);
        }""")
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    env = {"LD_PRELOAD": str(library), "ASAN_OPTIONS": clean.env.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
    write_sums(one_file[0].parent, one_file[0])
    done = clean.ctl("load", "m", one_file[0], "--verify", "sha256", check=False, env=env)
    check_refused(done, "SHA-256 needs libcrypto.so.3", "install it")


# --- The ends of loads that verify ----------------------------------------------------------------------

@pytest.mark.parametrize("how", ["xxh3", pytest.param("sha256", marks=pytest.mark.threads)])
def test_a_load_that_verifies_can_be_interrupted(clean, make_gate, one_file, how):
    path, offset, _ = one_file
    write_sums(path.parent, path)
    gate = make_gate(path, offset, "pause", call=5 if how == "sha256" else 16)
    gate.start(clean, "m", path, "--read", "buffered", "--verify", how)
    gate.proc.terminate()
    done = gate.open()
    assert done.returncode == 128 + 15 and "nothing was published" in done.stderr.decode(), done


def test_a_read_that_fails_while_sums_are_made_is_its_own_error(clean, make_gate, one_file):
    path, offset, _ = one_file
    write_sums(path.parent, path)
    for how, call in ("sha256", 4), ("xxh3", 17):
        gate = make_gate(path, offset, "eio", call=call)
        done = subprocess.run([features.BUILD / "weightctl", "load", "m", path, "--read", "buffered", "--verify", how],
                              env=gate.environment(clean), capture_output=True, text=True, timeout=60)
        check_refused(done, "Input/output error")


@pytest.mark.parametrize("how", ["xxh3", "sha256"])
def test_the_bytes_on_a_gpu_are_verified(make_daemon, gpu, one_file, how):
    path, offset, tensors = one_file
    write_sums(path.parent, path)
    daemon = make_daemon(env=gpu.env)
    done = load(daemon, path, "--device", "cuda:0", "--verify", how)
    assert done["verified"] == how
    flip(path, offset + 3 * MIB)
    if how == "sha256":
        check_refused(daemon.ctl("load", "n", path, "--device", "cuda:0", "--verify", how, check=False), "SHA-256", "was found")
    daemon.ctl("verify", "m", "--device", "cuda:0")


def test_gguf_and_other_forms_are_verified(daemon, one_file, tmp_path):
    """Memory that is written again keeps what stands between tensors; the sums are of the file all the same."""
    path, _, tensors = one_file
    write_sums(path.parent, path)
    for option in "--reusable", "--exclusive":
        for how in "sha256", "xxh3", "sha256", "xxh3":
            assert load(daemon, path, option, "--verify", how, name=option[2:])["verified"] == how
        check_bytes(daemon, option[2:], tensors)
    assert len(buffers(daemon)) == 2

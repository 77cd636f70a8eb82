"""weightctl copy: a version on another device or under another name, with all that belongs to it."""
import json
import random
import signal

import pytest
from integration.load.test_load import MIB, buffers, eventually, u8, write_model
from integration.weightctl.test_owner import ctl_as
from integration.weightctl.test_weightctl import ctl_json
from lib import wire

ALICE, BOB = 12345, 12346
ILLEGAL_ADDRESS = 700


@pytest.fixture
def model(tmp_path):
    """A directory whose file has 5 leaves, an odd header, and files beside it."""
    folder = tmp_path / "model"
    folder.mkdir()
    data = random.Random(7).randbytes(4 * MIB + 4321)
    write_model(folder / "model.safetensors", {"a": u8(b"1234567"), "b": u8(data), "none": u8(b"")})
    (folder / "config.json").write_text('{"architectures": ["Copied"]}')
    return folder, data


@pytest.fixture
def scene(make_gpus, make_daemon):
    def make(**kw):
        gpus = make_gpus(record=1, **kw)
        return gpus, make_daemon(env=gpus.env)
    return make


def copy(daemon, *args, **kw):
    return daemon.ctl("copy", "--json", "--quiet", *args, **kw)


def refused(daemon, *args, status=1):
    done = copy(daemon, *args, check=False)
    assert (done.returncode, done.stdout) == (status, ""), done
    return done.stderr.removeprefix("weightctl: ").partition("\n")[0]


def facts(daemon, name, device="host"):
    """The facts that a copy shares with its source."""
    row = ctl_json(daemon, "show", "--device", device, name)
    tensors = ctl_json(daemon, "tensors", "--device", device, name)["tensors"]
    done = daemon.ctl("files", "--device", device, "--json", name, check=False)
    assert done.returncode == 0 or "no files beside its weights" in done.stderr, done
    files = json.loads(done.stdout or '{"files": [], "attributes": {}}')
    return {key: row[key] for key in ("digest", "layout", "mode", "size")} | {
        "tensors": tensors, "files": files["files"], "attributes": files["attributes"]}


def check_copy(daemon, name, device="host", source="m"):
    assert facts(daemon, name, device) == facts(daemon, source)
    daemon.ctl("verify", "--device", device, name)


def copied(gpus):
    """Kinds of copies of more than a table of digests, by GPU."""
    return {(kind, i) for _, _, kind, i, n in gpus.record() if kind[1:] in ("toD", "toH") and n > MIB}


def test_a_version_takes_its_way_over_gpus_and_back(scene, model, tmp_path):
    folder, data = model
    gpus, daemon = scene(devices=2)
    daemon.ctl("load", "-q", "--mode", "0604", "--attribute", "color=red", "m", folder)
    done = json.loads(copy(daemon, "m", "--to", "cuda:0").stdout)
    assert (done["name"], done["device"], done["version"], done["source_version"], done["tensors"]) == (
        "m", gpus.device(0), 1, 1, 3)
    assert done["digest"] == facts(daemon, "m")["digest"]
    check_copy(daemon, "m", "cuda:0")
    assert gpus.holds(data, 0) and copied(gpus) == {("HtoD", 0)}
    copy(daemon, "m", "--device", "cuda:0", "--to", "cuda:1")
    check_copy(daemon, "m", "cuda:1")
    assert gpus.holds(data, 1) and copied(gpus) == {("HtoD", 0), ("DtoD", 1)}
    copy(daemon, "m@1", "--device", "cuda:1", "--to", gpus.device(1).upper().replace("CUDA", "cuda"), "--name", "twin")
    check_copy(daemon, "twin", "cuda:1")
    assert copied(gpus) == {("HtoD", 0), ("DtoD", 1)}
    copy(daemon, "m", "--device", "cuda:1", "--to", "host", "--name", "back")
    check_copy(daemon, "back")
    daemon.ctl("save", "-q", "back", tmp_path / "saved")
    saved = (tmp_path / "saved/model.safetensors").read_bytes()
    assert data in saved


def test_gpus_without_peer_access_copy_through_the_host(scene, model):
    gpus, daemon = scene(devices=2, no_peers=1)
    daemon.ctl("load", "-q", "--device", "cuda:0", "m", model[0])
    daemon.ctl("load", "-q", "--device", "cuda:0", "--handle", "ipc", "--no-files", "old", model[0])
    for name in ("m", "old"):
        copy(daemon, "--device", "cuda:0", "--to", "cuda:1", name)
        assert facts(daemon, name, "cuda:1") == facts(daemon, name, "cuda:0")
        daemon.ctl("verify", "--device", "cuda:1", name)
    assert {("DtoH", 0), ("HtoD", 1)} < copied(gpus) and ("DtoD", 1) not in copied(gpus)


def test_a_copy_on_the_host_is_the_same_file(daemon, model, tmp_path):
    file = model[0] / "model.safetensors"
    daemon.ctl("load", "-q", "m", model[0])
    daemon.ctl("load", "-q", "m", model[0], "--attribute", "second=1")
    said = daemon.ctl("copy", "m@1", "--name", "other").stdout
    assert said.startswith("other@1 on host: m@1 of host, 4.2 MB in ")
    daemon.ctl("save", "-q", "other", tmp_path / "saved")
    assert (tmp_path / "saved/model.safetensors").read_bytes() == file.read_bytes()
    assert "second" not in facts(daemon, "other")["attributes"]
    copy(daemon, "m", "--name", "other")
    assert ctl_json(daemon, "show", "other")["version"] == 2
    check_copy(daemon, "other")
    copy(daemon, "m", "--name", "bare", "--no-files", "--mode", "0600")
    assert facts(daemon, "bare") == facts(daemon, "m") | {"mode": "0600", "files": []}
    # One of other tensors replaces it.
    write_model(tmp_path / "x.safetensors", {"x": u8(b"x")})
    daemon.ctl("load", "-q", "x", tmp_path / "x.safetensors")
    copy(daemon, "x", "--name", "other")
    check_copy(daemon, "other", source="x")


def test_a_version_without_a_byte_is_copied_like_any_other(scene, tmp_path):
    _, daemon = scene(devices=1)
    write_model(tmp_path / "empty.safetensors", {"nothing": u8(b"")})
    daemon.ctl("load", "-q", "m", tmp_path / "empty.safetensors")
    for args in (["--to", "cuda:0"], ["--name", "other"], ["--device", "cuda:0", "--to", "host", "--name", "back"]):
        copy(daemon, "m", *args)
    for name, device in (("m", "cuda:0"), ("other", "host"), ("back", "host")):
        check_copy(daemon, name, device)


def test_a_copy_of_a_buffer_that_is_written_in_place_is_an_ordinary_one(daemon, model):
    daemon.ctl("load", "-q", "--exclusive", "m", model[0])
    copy(daemon, "m", "--name", "still")
    daemon.ctl("load", "-q", "still", model[0])  # beside it, as no buffer that is written in place could
    assert [row["version"] for row in ctl_json(daemon, "show", "still")["versions"]] == [1, 2]
    daemon.ctl("rollback", "still", "1")
    check_copy(daemon, "still")


def test_bytes_that_changed_are_not_copied(scene, model):
    folder, data = model
    gpus, daemon = scene(devices=2)
    daemon.ctl("load", "-q", "--device", "cuda:0", "m", folder)
    gpus.poke(data[3 * MIB:3 * MIB + 64], bytes([data[3 * MIB] ^ 1]) + data[3 * MIB + 1:3 * MIB + 64])
    for to in ("cuda:1", "host"):
        assert refused(daemon, "--device", "cuda:0", "m", "--to", to) == (
            f"the bytes of 'm@1' on {gpus.device(0)} differ from its digest, and were not copied; "
            "weightctl verify names the place")
    gpus.wait_used(0, 1)
    assert {row["device"] for row in buffers(daemon)} == {gpus.device(0)}


@pytest.mark.parametrize("call", ["cuMemcpyDtoD", "cuMemcpyDtoH", "cuMemcpyHtoDAsync", "cuLaunchKernel"])
def test_a_copy_that_fails_leaves_nothing(scene, model, call):
    gpus, daemon = scene(devices=2, no_peers=int(call in ("cuMemcpyDtoH", "cuMemcpyHtoDAsync")))
    daemon.ctl("load", "-q", "--device", "cuda:0", "m", model[0])
    gpus.fail(f"{call}_v2" if call.startswith("cuMemcpyDto") else call, ILLEGAL_ADDRESS)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in refused(daemon, "--device", "cuda:0", "--to", "cuda:1", "m")
    gpus.heal()
    gpus.wait_used(0, 1)
    assert {row["device"] for row in buffers(daemon)} == {gpus.device(0)}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_copy_leaves_nothing(scene, model, how):
    gpus, daemon = scene(devices=1)
    daemon.ctl("load", "-q", "m", model[0])
    gpus.fail("cuMemcpyHtoDAsync", "hang", skip=1)
    copying = daemon.spawn("copy", "--to", "cuda:0", "-q", "m")
    script = gpus.folder / "fail"
    eventually(lambda: "hang 0" in script.read_text(), script.read_text)
    if how == signal.SIGKILL:
        copying.kill()
    else:
        wire.interrupt(copying, how)
    gpus.heal()
    _, errors = copying.communicate(timeout=60)
    if how == signal.SIGINT:
        assert (copying.returncode, errors) == (130, b"weightctl: interrupted; nothing was published\n")
    gpus.wait_used(0, 0)
    eventually(lambda: [row["device"] for row in buffers(daemon)] == ["host"], lambda: buffers(daemon))


def test_wrong_words_are_refused(daemon, model):
    daemon.ctl("load", "-q", "m", model[0])
    assert refused(daemon, "m", status=2) == "'copy' wants a device to copy to (--to), or another name (--name)"
    assert refused(daemon, "--to", "host", status=2) == "'copy' wants the name of a buffer"
    assert refused(daemon, "m", "--to", "x" * 99, status=2) == f"--to wants a device, not '{'x' * 99}'"
    assert refused(daemon, "m", "--name", "n@2", status=2) == \
        "'copy' takes the name of a buffer without a version, not 'n@2'"
    for args in (["--to", "host"], ["--name", "m"]):
        assert refused(daemon, "m", *args) == \
            "'m' is on host already: copy it to another device, or with another name"
    assert "tpu" in refused(daemon, "m", "--to", "tpu")
    assert "cuda:0" in refused(daemon, "m", "--to", "cuda:0")
    assert refused(daemon, "none", "--name", "other") == refused(daemon, "none", "--to", "host")
    assert [row["name"] for row in buffers(daemon)] == ["m"]


def test_a_copy_needs_permission_to_read_and_gives_none_that_there_was_not(make_daemon, require, model, tmp_path):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    for mode in ("0640", "0644"):
        daemon.ctl("load", "-q", "--mode", mode, f"m{mode}", model[0])
        daemon.ctl("chown", f":{BOB}", f"m{mode}")
    done = ctl_as(daemon, ALICE, "copy", "-q", "m0640", "--name", "mine")
    assert done.returncode == 1 and "may not read" in done.stderr, done
    # Not in the group of the source: the copy's own group gets what all may.
    assert ctl_as(daemon, ALICE, "copy", "-q", "m0644", "--name", "mine").returncode == 0
    # In it.
    assert ctl_as(daemon, BOB, "copy", "-q", "m0640", "--name", "bobs").returncode == 0
    daemon.ctl("copy", "-q", "m0640", "--name", "roots")
    rows = {row["name"]: row for row in buffers(daemon)}
    owner = {name: (rows[name]["uid"], rows[name]["gid"], rows[name]["mode"]) for name in ("mine", "bobs", "roots")}
    assert owner == {"mine": (ALICE, ALICE, "0644"), "bobs": (BOB, BOB, "0640"), "roots": (0, BOB, "0640")}
    # A buffer of another user is not published in, and the source may be required to have an owner.
    assert ctl_as(daemon, ALICE, "copy", "-q", "m0644", "--name", "bobs").returncode == 1
    assert refused(daemon, "--owner", str(BOB), "m0640", "--name", "other").startswith("'m0640' on host belongs to")

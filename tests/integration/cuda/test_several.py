"""
Loading to several GPUs at once, on fake ones: the files are read once, every GPU has the same version and has checked
it, and a failure on one of them leaves nothing on any.
"""
import collections
import json
import random
import signal

import pytest
from integration.load.test_load import MIB, buffers, eventually, random_tensors, u8, write_model
from lib import features, wire

ILLEGAL_ADDRESS, OUT_OF_MEMORY, UNKNOWN = 700, 2, 999


@pytest.fixture
def scene(make_gpus, make_daemon):
    """scene(devices=3): GPUs with a record, and a daemon that has them."""
    def make(**kw):
        gpus = make_gpus(record=1, **kw)
        return gpus, make_daemon(env=gpus.env)
    return make


@pytest.fixture
def model(tmp_path):
    rng = random.Random(4)
    tensors = random_tensors(rng, "layer", 40) | {"last": u8(rng.randbytes(9 * MIB + 321))}
    write_model(tmp_path / "model.safetensors", tensors)
    return tmp_path / "model.safetensors", tensors


def load(daemon, path, devices, *args, **kw):
    return daemon.ctl("load", "--json", "--quiet", "--device", devices, *args, "m", path, **kw)


def refused(daemon, path, devices, *args, status=1):
    done = load(daemon, path, devices, *args, check=False)
    assert (done.returncode, done.stdout) == (status, ""), done
    return done.stderr.partition("\n")[0].removeprefix("weightctl: ")


def check_everywhere(daemon, gpus, tensors, n):
    """Each of the first `n` GPUs has every tensor, and a version with the same digest."""
    digests = set()
    for i in range(n):
        rows = json.loads(daemon.ctl("tensors", "--device", f"cuda:{i}", "--json", "m").stdout)["tensors"]
        there = max(gpus.files(i), key=lambda path: path.stat().st_size).read_bytes()
        assert {row["name"] for row in rows} == set(tensors)
        for row in rows:
            data = tensors[row["name"]][2]
            assert there[row["offset"]:row["offset"] + len(data)] == data, (i, row["name"])
        daemon.ctl("verify", "--device", f"cuda:{i}", "m")
        digests.add(json.loads(daemon.ctl("show", "--device", f"cuda:{i}", "--json", "m").stdout)["digest"])
    assert len(digests) == 1


def check_nothing_is_left(daemon, gpus, n):
    for i in range(n):
        gpus.wait_used(0, i)
    eventually(lambda: buffers(daemon) == [], lambda: buffers(daemon))


def copied(gpus, daemon):
    """Bytes of the version that were copied to GPUs, by kind and GPU: without the table of digests behind it."""
    size = json.loads(daemon.ctl("show", "--device", "cuda:0", "--json", "m").stdout)["size"]
    total = collections.Counter()
    for what, _, kind, i, n in gpus.record():
        if what == "end" and kind in ("HtoD", "DtoD"):
            total[kind, i] += n
    table = -(-size // MIB) * 16
    return {key: n - table * (key[0] == "HtoD") for key, n in total.items() if n != table}, size


@pytest.mark.threads
def test_the_bytes_pass_from_gpu_to_gpu_and_are_copied_from_the_host_once(scene, model):
    gpus, daemon = scene(devices=3)
    done = json.loads(load(daemon, model[0], "cuda:2,cuda:0,cuda:1").stdout)["loads"]
    assert [(row["device"], row["version"]) for row in done] == [(gpus.device(i), 1) for i in (2, 0, 1)]
    assert len({row["digest"] for row in done}) == 1
    found, size = copied(gpus, daemon)
    assert found == {("HtoD", 2): size, ("DtoD", 0): size, ("DtoD", 1): size}
    check_everywhere(daemon, gpus, model[1], 3)


@pytest.mark.threads
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 3])
def test_gpus_that_do_not_reach_each_other_copy_from_the_host(scene, model, threads):
    gpus, daemon = scene(devices=2, no_peers=1)
    load(daemon, model[0], "cuda:all", "--threads", threads)
    found, size = copied(gpus, daemon)
    assert found == {("HtoD", 0): size, ("HtoD", 1): size}
    check_everywhere(daemon, gpus, model[1], 2)


def test_memory_that_others_open_by_a_handle_is_copied_to_from_the_host(scene, model):
    gpus, daemon = scene(devices=2)
    load(daemon, model[0], "cuda:0,cuda:1", "--handle", "ipc")
    found, size = copied(gpus, daemon)
    assert found == {("HtoD", 0): size, ("HtoD", 1): size}
    for i in range(2):
        daemon.ctl("verify", "--device", f"cuda:{i}", "m")


def test_the_driver_may_refuse_a_peer_the_mapping(scene, model):
    gpus, daemon = scene(devices=2)
    gpus.fail("cuMemSetAccess", UNKNOWN, skip=4, count=1)  # behind those of weightd and of the writer for each
    load(daemon, model[0], "cuda:0,cuda:1")
    assert gpus.has_failed()
    assert copied(gpus, daemon)[0].keys() == {("HtoD", 0), ("HtoD", 1)}
    check_everywhere(daemon, gpus, model[1], 2)


def test_lines_name_each_device(scene, model):
    _, daemon = scene(devices=2)
    load(daemon, model[0], "cuda:1")
    said = daemon.ctl("load", "m", model[0], "--device", "cuda:all")
    assert [line.partition(":")[0] + line.partition(":")[2].partition(":")[0]
            for line in said.stdout.splitlines()] == ["m@1 on cuda0", "m@2 on cuda1"]


# --- Python ------------------------------------------------------------------------------------------

def test_python_loads_to_several_gpus_and_reads_the_file_once(scene, model):
    features.require("library")
    gpus, daemon = scene(devices=3)
    gpus.python(f"""
import os, weightd
from pathlib import Path
def n_read():
    return int(Path("/proc/self/io").read_text().split()[1])
size = os.path.getsize({str(model[0])!r})
weightd.load("warm", {str(model[0])!r}, device="cuda:0")
before = n_read()
done = weightd.load("m", {str(model[0])!r}, device=["cuda:0", "cuda:2"])
assert size <= n_read() - before < 1.5 * size, (size, n_read() - before)
assert done.versions == {{{gpus.device(0)!r}: 1, {gpus.device(2)!r}: 1}} and done.version == 1, done
done = weightd.load("m", {str(model[0])!r}, device="cuda:all")
assert list(done.versions.values()) == [2, 1, 2], done
assert weightd.load("m", {str(model[0])!r}).versions == {{"host": 1}}
for wrong in (["cuda:0", {gpus.device(0)!r}], []):
    try:
        weightd.load("m", {str(model[0])!r}, device=wrong)
    except ValueError as e:
        print(e)
    else:
        raise AssertionError(wrong)
""", env={"WEIGHTD_SOCKET": daemon.socket, "WEIGHTD_LIBRARY": str(features.LIBRARY)})
    check_everywhere(daemon, gpus, model[1], 3)


# --- Failures ----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("devices", "says"), [
    ("host,cuda:0", "a load to several devices is one to GPUs, and 'host' is none; load it there separately"),
    ("cuda:0,host", "a load to several devices is one to GPUs, and 'host' is none; load it there separately"),
    ("cuda:0,cuda:1,cuda:0", "--device names cuda:0 twice"),
    ("cuda:0,", "a load to several devices is one to GPUs, and '' is none; load it there separately"),
    ("cuda:0,cuda:7", "there is no cuda:7; 'weightctl devices' lists those there are"),
    (",".join(f"gpu{i}" for i in range(65)), "--device names at most 64 devices"),
], ids=["host", "host-last", "twice", "empty", "unknown", "many"])
def test_wrong_lists_are_refused(scene, model, devices, says):
    gpus, daemon = scene(devices=2)
    assert refused(daemon, model[0], devices) == says
    check_nothing_is_left(daemon, gpus, 2)


def test_whether_it_is_needed_is_a_question_of_one_device(scene, model):
    _, daemon = scene(devices=2)
    assert refused(daemon, model[0], "cuda:0,cuda:1", "--if-needed", status=2) == "--if-needed takes one device"


@pytest.mark.threads
@pytest.mark.parametrize(("call", "skip"), [
    pytest.param("cuMemcpyDtoDAsync", 0, marks=pytest.mark.long), ("cuMemcpyDtoDAsync", 2), ("cuStreamWaitEvent", 1), ("cuMemcpyHtoDAsync", 3)])
def test_a_copy_that_fails_leaves_nothing_on_any(scene, model, call, skip):
    gpus, daemon = scene(devices=3)
    gpus.fail(call, ILLEGAL_ADDRESS, skip=skip)
    assert refused(daemon, model[0], "cuda:all") == (
        "the copy to the GPU has failed: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")
    gpus.heal()
    check_nothing_is_left(daemon, gpus, 3)
    load(daemon, model[0], "cuda:all")


def test_a_gpu_without_room_leaves_nothing_on_any(scene, model):
    gpus, daemon = scene(devices=2, memory="300M")
    daemon.ctl("load", "--quiet", "--device", "cuda:1", "--handle", "vmm", "a", model[0])
    daemon.ctl("load", "--quiet", "--device", "cuda:1", "--handle", "vmm", "b", model[0])
    assert "cuda:GPU-fa4e0100" in refused(daemon, model[0], "cuda:0,cuda:1")
    gpus.wait_used(0, 0)
    assert {row["name"] for row in buffers(daemon)} == {"a", "b"}


def test_an_interrupted_load_leaves_nothing_on_any(scene, model):
    gpus, daemon = scene(devices=2)
    gpus.fail("cuMemcpyDtoDAsync", "hang", skip=1)
    loading = daemon.spawn("load", "--quiet", "--device", "cuda:all", "m", model[0])
    script = gpus.folder / "fail"
    eventually(lambda: "hang 0" in script.read_text(), script.read_text)
    wire.interrupt(loading, signal.SIGINT)
    gpus.heal()
    _, errors = loading.communicate(timeout=60)
    assert loading.returncode == 128 + signal.SIGINT and errors.startswith(b"weightctl: interrupted: the load was cancelled at "), errors
    check_nothing_is_left(daemon, gpus, 2)


def test_a_byte_that_changes_on_its_way_to_the_second_is_found_before_any_publish(scene, model):
    path, tensors = model
    gpus, daemon = scene(devices=2)
    last = tensors["last"][2]
    gpus.fail("cuLaunchKernel", "hang")
    loading = daemon.spawn("load", "--quiet", "--device", "cuda:0,cuda:1", "m", path)
    eventually(lambda: gpus.holds(last, 0) and gpus.holds(last, 1), lambda: "not all was copied")
    part = last[5 * MIB:5 * MIB + 64]
    gpus.poke(part, bytes([part[0] ^ 1]) + part[1:], 1)
    gpus.heal()
    _, errors = loading.communicate(timeout=60)
    assert loading.returncode == 1 and b"on the GPU are not those that were read" in errors, errors
    check_nothing_is_left(daemon, gpus, 2)


def test_a_publish_that_fails_names_the_gpus_that_have_it(scene, model):
    gpus, daemon = scene(devices=3)
    # Those of weightd and of the writer for each, to open two, and to publish the first.
    gpus.fail("cuMemSetAccess", UNKNOWN, skip=6 + 2 + 1, count=1)
    said = refused(daemon, model[0], "cuda:all")
    assert said == (f"'m' was published on {gpus.device(0)} (@1), and not on {gpus.device(1)}: the bytes cannot be made "
                    "read-only: the GPU cannot change access: CUDA_ERROR_UNKNOWN: unknown error")
    assert [(row["device"], row["version"]) for row in buffers(daemon) if row["version"]] == [(gpus.device(0), 1)]
    for i in (1, 2):
        gpus.wait_used(0, i)


def test_buffers_that_keep_different_layouts_are_refused_together(scene, model, tmp_path):
    gpus, daemon = scene(devices=2)
    write_model(tmp_path / "a.safetensors", {"x": u8(b"1" * 300), "y": u8(b"2" * 700)})
    write_model(tmp_path / "b.safetensors", {"y": u8(b"2" * 700), "x": u8(b"1" * 300)})
    load(daemon, tmp_path / "a.safetensors", "cuda:0")
    load(daemon, tmp_path / "b.safetensors", "cuda:1")
    said = refused(daemon, tmp_path / "a.safetensors", "cuda:0,cuda:1")
    assert said.startswith(f"'m' on {gpus.device(1)} keeps another layout than on {gpus.device(0)}"), said
    done = load(daemon, tmp_path / "a.safetensors", "cuda:0,cuda:1", "--new-layout")
    assert [row["version"] for row in json.loads(done.stdout)["loads"]] == [2, 2]
    # One that is not there yet follows the first.
    daemon.ctl("rm", "--device", "cuda:0", "m")
    done = load(daemon, tmp_path / "b.safetensors", "cuda:1,cuda:0")
    assert [row["version"] for row in json.loads(done.stdout)["loads"]] == [3, 1]

"""weightctl with weightd, on fake GPUs: each verb, by the number of the GPU and by its UUID."""
import json
import os
import re

import pytest
from integration.weightctl.test_weightctl import in_terminal
from lib import features
from lib.wire import Wire, until

PUBLISH = """
import weightd
layout = weightd.Layout()
layout.add("t", "U8", (20 << 20,))
layout.add("u", "F32", (2,))
for fill in (1, 2):
    with weightd.create("m", layout, device="cuda:1") as writer:
        writer["t"].write(bytes([fill]) * (20 << 20))
        writer["u"].write(b"abcdefgh")
        writer.publish()
"""


@pytest.fixture
def gpus(make_gpus):
    return make_gpus(devices=2)


@pytest.fixture
def daemon(make_daemon, gpus):
    """A daemon with two GPUs."""
    return make_daemon(env=gpus.env)


@pytest.fixture
def loaded(daemon, gpus):
    """It has the versions 1 and 2 of the buffer m on the second GPU."""
    features.require("library")
    gpus.python(PUBLISH, env={"WEIGHTD_SOCKET": daemon.socket, "WEIGHTD_LIBRARY": str(features.LIBRARY)})
    return daemon


def spellings(gpus):
    return "cuda:1", gpus.device(1)


def test_devices_show_what_is_ours(loaded, gpus):
    devices = json.loads(loaded.ctl("devices", "--json").stdout)["devices"]
    assert [(d["device"], d["index"]) for d in devices] == [("host", None), (gpus.device(0), 0), (gpus.device(1), 1)]
    assert [d["ours"] > 0 for d in devices] == [False, False, True]
    assert re.search(rf"^cuda:1 is {gpus.device(1)}$", loaded.ctl("devices").stdout, re.M)


def test_a_buffer_is_listed_by_number_and_by_uuid(loaded, gpus):
    row = loaded.ctl("ls", "--noheadings", "-o", "NAME,DEVICE,VERSION,STATE,HANDLE").stdout.split()
    assert row == ["m", "cuda:1", "2", "ready", "vmm"]
    buffer, = json.loads(loaded.ctl("ls", "--json").stdout)["buffers"]
    assert (buffer["device"], buffer["handle"]) == (gpus.device(1), "vmm")
    for spelling in spellings(gpus):
        assert loaded.ctl("ls", "-n", "-o", "NAME", "--device", spelling).stdout == "m\n"
        assert "DEVICE     cuda:1\n" in re.sub(r"DEVICE +", "DEVICE     ", loaded.ctl("show", "m", "--device", spelling).stdout)
    assert loaded.ctl("ls", "-n", "--device", "cuda:0").stdout == ""
    done = loaded.ctl("show", "m", check=False)
    assert "no buffer 'm' on host, but one on cuda:1 (--device cuda:1)" in done.stderr


def test_tables_with_gpus_fit_into_80_columns(loaded):
    for verb in (["ls"], ["stat"], ["devices"]):
        status, text = in_terminal(loaded, *verb)
        assert status == 0 and [line for line in text.splitlines() if len(line) > 80] == [], verb


def test_bytes_are_written_out_and_verified(loaded, gpus):
    for spelling in spellings(gpus):
        assert loaded.ctl("cat", "m", "u", "--device", spelling).stdout == "abcdefgh"
        assert loaded.ctl("cat", "m@1", "t", "--device", spelling, text=False).stdout == bytes([1]) * (20 << 20)
        assert re.match("m@2 on cuda:1: matches digest xxh3:", loaded.ctl("verify", "m", "--device", spelling).stdout)
    verified, = json.loads(loaded.ctl("verify", "m", "--device", "cuda:1", "--json").stdout)["verified"]
    assert verified["device"] == gpus.device(1) and verified["equal"]


def test_a_changed_byte_is_found(loaded, gpus):
    gpus.poke(b"\2" * (20 << 20), b"\2" * ((20 << 20) - 1) + b"\3", 1)
    done = loaded.ctl("verify", "m", "--device", "cuda:1", check=False)
    assert done.returncode == 1 and "are not those published" in done.stderr


@pytest.mark.parametrize("i", [0, 1], ids=["number", "uuid"])
def test_what_there_is_can_be_managed(loaded, gpus, i):
    where = "--device", spellings(gpus)[i]
    assert loaded.ctl("rollback", "m", *where).stdout == "m@1 on cuda:1\n"
    assert loaded.ctl("wait", "m@1", *where).stdout == "m@1 on cuda:1\n"
    assert [row.split() for row in loaded.ctl("history", "m", *where, "-n", "-o", "version,state").stdout.splitlines()] == [
        ["1", "current"], ["2", "kept"]]
    loaded.ctl("chmod", "0600", "m", *where)
    assert loaded.ctl("ls", "-n", "-o", "MODE").stdout == "0600\n"
    loaded.ctl("chown", str(os.geteuid()), "m", *where)
    loaded.ctl("rm", "m@2", *where)
    loaded.ctl("rm", "m", *where)
    assert loaded.ctl("ls", "-n").stdout == ""
    gpus.wait_used(0, 1)


def test_events_tell_the_number(loaded, gpus):
    watches = [loaded.spawn("watch", "-c", "1", "--device", spelling, text=True) for spelling in spellings(gpus)]
    for watch in watches:
        assert watch.stderr.readline() == "weightctl: watching\n"
    loaded.ctl("rollback", "m", "--device", "cuda:1")
    for watch in watches:
        assert " rolled-back   m@1 on cuda:1, by " in watch.communicate(timeout=60)[0]


def test_what_does_not_come_back_is_an_orphan(loaded, gpus):
    with Wire(loaded.socket) as reader:
        kept = os.dup(reader.attach("m", device=gpus.device(1)).slot_fd)
    try:
        loaded.ctl("rm", "m", "--device", "cuda:1")
        until(lambda: loaded.ctl("stat", "-n", "-o", "DEVICE,STATE").stdout.split()[-2:] == ["cuda:1", "orphan"],
              lambda: loaded.ctl("stat").stdout)
        slot, = json.loads(loaded.ctl("stat", "--json").stdout)["slots"]
        assert (slot["device"], slot["state"], slot["share_percent"]) == (gpus.device(1), "orphan", None)
    finally:
        os.close(kept)
    until(lambda: json.loads(loaded.ctl("stat", "--json").stdout)["slots"] == [], lambda: loaded.ctl("stat").stdout)


def test_memory_that_is_not_there_is_refused_with_the_way_out(loaded, gpus, tmp_path):
    from integration.weightctl.test_weightctl import write_sparse
    big = write_sparse(tmp_path / "big.safetensors", 2 << 30)
    done = loaded.ctl("load", "big", big, "--device", "cuda:0", check=False)
    assert done.returncode == 1 and "weightctl rm" in done.stderr and "are free" in done.stderr
    assert loaded.ctl("ls", "-n", "-o", "NAME").stdout == "m\n"


def test_a_gpu_that_is_not_there_is_refused(loaded):
    done = loaded.ctl("rm", "m", "--device", "cuda:7", check=False)
    assert (done.returncode, done.stderr) == (1, "weightctl: there is no cuda:7; 'weightctl devices' lists those there are\n")

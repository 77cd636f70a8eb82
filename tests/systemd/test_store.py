"""The store of descriptors when it is too small, full, or holds what this weightd does not understand."""
import contextlib
import os
import pathlib
import re
import struct

import pytest
from systemd import weights
from systemd.weights import SERVICE

SIZE = 64 * 1024
PER_BUFFER = 6  # descriptors of one that was loaded once: manifest, head page, slot, digests, tensor table, files
MOST = 6000 // PER_BUFFER
STRING_MAX = 128 << 10  # bytes of a string of the environment, by Linux
MANIFEST_ABI = 8  # offset of its u32 in a manifest
MANY = """
import sys, weightd
layout = weightd.Layout()
layout.add("w", "U8", (64,))
for i in range(int(sys.argv[1])):
    with weightd.create(f"b{i}", layout) as writer:
        writer["w"].numpy()[:] = i % 256
        writer.files = {"config.json": b"{}"}
        writer.publish()
"""


def load_some(box, n, user="alice"):
    for i in range(n):
        weights.load(box, f"b{i}", SIZE, seed=i, user=user)
    return weights.contents(box)


def configure(box, text):
    box.path("/etc/weightd").mkdir(exist_ok=True)
    box.path("/etc/weightd/weightd.conf").write_text(text)


def warnings(box):
    return [line["MESSAGE"] for line in box.journal("SYSLOG_IDENTIFIER=weightd") if int(line["PRIORITY"]) <= 4]


def find_manifest(box, name):
    """The manifest of a buffer, as a file: the service manager has it open, and root may do what it likes."""
    for fd in pathlib.Path(f"/proc/{box.leader}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "weightd-manifest" in os.readlink(fd):
                file = open(fd, "r+b", buffering=0)
                if name.encode() + b"\0" in file.read():
                    return file
                file.close()
    return None


def set_abi(box, name, abi):
    with find_manifest(box, name) as file:
        file.seek(MANIFEST_ABI)
        before = struct.unpack("<I", file.read(4))[0]
        file.seek(MANIFEST_ABI)
        file.write(struct.pack("<I", abi))
    return before


def test_a_buffer_takes_this_much_of_it(service):
    load_some(service, 2)
    assert len(weights.kept(service)) == 2 * PER_BUFFER
    assert int(service.show(SERVICE, "NFileDescriptorStore")) == 2 * PER_BUFFER
    assert weights.ask(service, "stat")["store"] == \
        {"used": 2 * PER_BUFFER, "max": int(service.show(SERVICE, "FileDescriptorStoreMax"))}
    service.run("weightctl", "rm", "b0")
    weights.wait_for_kept(service, PER_BUFFER)


@pytest.mark.timeout(600)  # each of so many waits for the service manager
@pytest.mark.parametrize("n", [MOST // 10, pytest.param(MOST, marks=pytest.mark.long)])
def test_as_many_buffers_survive_as_the_store_has_room_for(n, own_service):
    """The names of all descriptors are one string of the environment, which has a limit. Administrators may fill all of it."""
    configure(own_service, "[limits:root]\nbuffers = unlimited\nversions = unlimited\ndescriptors = unlimited\n")
    columns = "NAME,VERSION,STATE,SIZE,DIGEST,LAYOUT,UID"
    own_service.run("python3", "-c", MANY, n, timeout=600)
    before = weights.ask(own_service, "ls", "-o", columns)
    kept = weights.kept(own_service)
    assert len(before["buffers"]) == n and len(kept) == n * PER_BUFFER
    own_service.run("systemctl", "restart", SERVICE)
    assert weights.ask(own_service, "ls", "-o", columns) == before
    own_service.run("kill", "-KILL", weights.main_pid(own_service))
    verified = weights.ask(own_service, "verify", *(b["name"] for b in before["buffers"]))
    assert [v["equal"] for v in verified["verified"]] == [True] * n
    assert weights.ask(own_service, "ls", "-o", columns) == before
    assert weights.kept(own_service) == kept
    strings = own_service.path(f"/proc/{weights.main_pid(own_service)}/environ").read_bytes().split(b"\0")
    [names] = [s for s in strings if s.startswith(b"LISTEN_FDNAMES=")]
    assert names.count(b":") >= n * PER_BUFFER and len(names) / n * MOST < STRING_MAX


def test_a_full_store_refuses_what_it_could_not_keep(service):
    configure(service, f"[store]\nmax = {3 * PER_BUFFER}\n")
    before = load_some(service, 3, "root")
    done = weights.load(service, "b3", SIZE, user="root", check=False)
    assert done.returncode != 0 and f"keeps {3 * PER_BUFFER} descriptors for weightd already, of {3 * PER_BUFFER};" in done.stderr, done.stderr
    done = weights.load(service, "b2", SIZE, user="root", check=False)
    assert done.returncode != 0 and f"of {3 * PER_BUFFER}; remove a buffer" in done.stderr, done.stderr
    assert weights.contents(service) == before
    service.run("systemctl", "restart", SERVICE)
    assert weights.contents(service) == before and weights.verify(service) == 3
    assert weights.load(service, "b3", SIZE, user="root", check=False).returncode != 0
    service.run("weightctl", "rm", "b0")
    weights.load(service, "b3", SIZE, user="root")
    assert weights.verify(service) == 3


def test_a_store_that_was_made_smaller_loses_no_more_than_it_must(service):
    """systemd 252 drops surplus descriptors without a notice."""
    before = load_some(service, 6)
    room = 3 * PER_BUFFER + 1
    service.drop_in(SERVICE, f"[Service]\nFileDescriptorStoreMax={room}\n")
    service.run("systemctl", "restart", SERVICE)
    after, text = weights.contents(service), "\n".join(warnings(service))
    weights.wait_for_kept(service, room, or_fewer=True)
    for name, what in before.items():
        if name in after and after[name]["version"]:
            assert after[name] == what
        else:  # without a manifest there is no trace of the buffer
            assert f"'{name}" in text or not find_manifest(service, name)
    weights.verify(service)
    assert len(after) < len(before) and text


def test_a_limit_on_descriptors_below_the_store_loses_nothing(service):
    before = load_some(service, 5)
    kept = weights.kept(service)
    service.drop_in(SERVICE, "[Service]\nLimitNOFILE=16\n")
    with service.expect("status=202/FDS(?s:.*)status=202/FDS"):
        service.run("kill", "-KILL", weights.main_pid(service))
    assert weights.kept(service) == kept
    service.drop_in(SERVICE, "")
    assert weights.contents(service) == before and weights.verify(service) == 5


def test_a_configuration_with_errors_loses_nothing(service):
    before = load_some(service, 2)
    configure(service, "[limits]\n\nbufers = 3\n")
    with service.expect(r"/etc/weightd/weightd\.conf:3: .*bufers(?s:.*)/etc/weightd/weightd\.conf:3: "):
        service.run("kill", "-KILL", weights.main_pid(service))
    assert len(weights.kept(service)) == 2 * PER_BUFFER
    configure(service, "[limits]\nbuffers = 3\n")
    assert weights.contents(service) == before and weights.verify(service) == 2


def test_a_reload_takes_the_configuration_or_leaves_all_as_it_is(service):
    load_some(service, 1)
    pid = weights.main_pid(service)
    configure(service, "[limits]\nbuffers = 1\n")
    with service.expect("configuration read again"):
        service.run("systemctl", "reload", SERVICE)
    done = weights.load(service, "b1", SIZE, check=False)
    assert done.returncode != 0 and "buffers" in done.stderr, done.stderr
    configure(service, "[limits]\nbuffers = one\n")
    with service.expect(r"/etc/weightd/weightd\.conf:2: .*one"):
        service.run("systemctl", "reload", SERVICE)
    assert weights.load(service, "b1", SIZE, check=False).returncode != 0
    assert weights.main_pid(service) == pid and weights.verify(service) == 1


def test_a_manifest_of_a_later_weightd_is_neither_served_nor_lost(service):
    before = load_some(service, 2)
    kept = weights.kept(service)
    abi = set_abi(service, "b0", 999)
    with service.expect("manifest .* format 999 "):
        service.run("systemctl", "restart", SERVICE)
    assert weights.contents(service) == {"b1": before["b1"]}
    assert weights.kept(service) == kept
    assert len({w for w in warnings(service) if "belongs to no served buffer" in w}) == PER_BUFFER
    assert weights.ask(service, "stat")["quarantined"] == PER_BUFFER
    set_abi(service, "b0", abi)
    service.run("systemctl", "restart", SERVICE)
    assert weights.contents(service) == before and weights.verify(service) == 2
    assert weights.ask(service, "stat")["quarantined"] == 0


def flip(file, offset):
    file.seek(offset)
    byte = file.read(1)
    file.seek(offset)
    file.write(bytes([byte[0] ^ 0x80]))


@pytest.mark.parametrize("what", ["magic", "buffer", "active", "records"])
def test_a_manifest_that_was_damaged_is_neither_served_nor_lost(what, service):
    before = load_some(service, 2)
    kept = weights.kept(service)
    with find_manifest(service, "b0") as file:
        file.seek(0)
        at = {"magic": [0], "buffer": [16], "active": [24],
              "records": [m.start() for m in re.finditer(b"b0\0", file.read())]}[what]
        for offset in at:
            flip(file, offset)
        with service.expect("manifest .* damaged"):
            service.run("systemctl", "restart", SERVICE)
        assert weights.contents(service) == {"b1": before["b1"]}
        assert weights.kept(service) == kept
        for offset in at:
            flip(file, offset)
    service.run("systemctl", "restart", SERVICE)
    assert weights.contents(service) == before and weights.verify(service) == 2

"""Loads of one content that share their memory: one copy of the pages, two quotas, and no bytes but those that were read."""
import errno
import json
import mmap
import os
import random
import re
import signal

import pytest
from lib import wire
from lib.daemon import copy_for_others
from lib.wire import Wire, until

from integration.load.test_load import MIB, buffers, check_bytes, clean, gate_library, make_gate, u8, write_model
from integration.server import test_kill_matrix as matrix
from integration.weightctl.test_owner import ctl_as

__all__ = ["clean", "gate_library", "make_gate"]  # fixtures
ALICE, BOB = 4242, 4243
SIZE = 3 * MIB + 12345


@pytest.fixture
def model(tmp_path):
    """A file, where its data begins, and its tensors."""
    tensors = {"small": u8(b"xyz"), "large": u8(random.Random(1).randbytes(SIZE))}
    return tmp_path / "model.safetensors", write_model(tmp_path / "model.safetensors", tensors), tensors


def load(daemon, *args, **kw):
    return json.loads(daemon.ctl("load", "--json", "--quiet", "--share", *args, **kw).stdout)


def memory(daemon):
    return json.loads(daemon.ctl("ping", "--json").stdout)["memory"]


def mapped(daemon, *names):
    """The inodes of versions, and the sum of the proportional sizes of mappings that have touched all their pages."""
    with Wire(daemon.socket, features=wire.IMAGES) as w:
        fds = [w.attach(name).slot_fd for name in names]
        maps = [mmap.mmap(fd, 0, prot=mmap.PROT_READ) for fd in fds]
        for m in maps:
            assert m[:].count(b"\0") < len(m)
        with open("/proc/self/smaps") as f:
            smaps = f.read()
        inodes = {os.fstat(fd).st_ino for fd in fds}
        pss = sum(int(re.search(r"^Pss: +(\d+) kB", part, re.M)[1]) << 10
                  for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.M)
                  if len(part.split()) > 5 and int(part.split()[4]) in inodes)
        for m in maps:
            m.close()
    return inodes, pss


def test_two_users_have_one_copy_and_both_are_charged(make_daemon, require, model):
    require("root")
    daemon = make_daemon("--socket-mode", "0666", "--keeper")
    path = daemon.folder / "model.safetensors"
    path.write_bytes(model[0].read_bytes())
    path.chmod(0o644)
    for user, name in (ALICE, "a"), (BOB, "b"):
        done = ctl_as(daemon, user, "load", "--json", "-q", "--share", "--mode", "0644", name, path)
        assert done.returncode == 0 and json.loads(done.stdout)["shared"] == (user == BOB), done.stderr
    check_bytes(daemon, "b", model[2])
    until(lambda: memory(daemon) < 2 * SIZE, "the memory that was read into is freed")
    inodes, pss = mapped(daemon, "a", "b")
    used = charged(daemon)
    print(f"\nbytes of the file {path.stat().st_size}, of pages for both names {pss}, charged to each user {used[ALICE]}, {used[BOB]}")
    assert len(inodes) == 1 and pss < 1.1 * SIZE
    assert used[ALICE] >= SIZE and used[BOB] == used[ALICE]

    # Each outlives the other, a death of the server, and a change of permissions.
    daemon.ctl("chmod", "0600", "a")
    restart(daemon)
    assert memory(daemon) < 2 * SIZE and mapped(daemon, "a", "b")[0] == inodes
    daemon.ctl("rm", "a")
    until(lambda: ALICE not in charged(daemon), "the first user is charged no more")
    check_bytes(daemon, "b", model[2])
    assert memory(daemon) > SIZE
    daemon.ctl("rm", "b")
    until(lambda: memory(daemon) == 0, "all memory is freed")


def charged(daemon):
    """Bytes by user."""
    users = json.loads(daemon.ctl("stat", "--users", "--json").stdout)["users"]
    return {u["uid"]: u["memory"]["used"] for u in users if u["memory"]["used"]}


def restart(daemon):
    """The keeper's child dies, and another one has taken over."""
    pid = json.loads(daemon.ctl("ping", "--json").stdout)["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: json.loads(daemon.ctl("ping", "--json").stdout)["pid"] != pid, "the next weightd answers")


def test_what_a_user_may_not_read_is_not_shared(make_daemon, require, model):
    require("root")
    daemon = make_daemon("--socket-mode", "0666")
    path = daemon.folder / "model.safetensors"
    path.write_bytes(model[0].read_bytes())
    path.chmod(0o644)
    for user, name in (ALICE, "a"), (BOB, "b"):
        done = ctl_as(daemon, user, "load", "--json", "-q", "--share", "--mode", "0600", name, path)
        assert done.returncode == 0 and not json.loads(done.stdout)["shared"], done.stderr
    assert len(mapped(daemon, "a", "b")[0]) == 2


def test_a_forged_digest_shares_nothing(daemon, model):
    path, offset, tensors = model
    daemon.ctl("load", "-q", "a", path)
    (honest,) = buffers(daemon)
    digest = bytes.fromhex(honest["digest"].split(":")[1])
    with Wire(daemon.socket, features=wire.IMAGES) as w:
        layout = w.layout("a")
        with open(path, "rb") as f:
            content = bytearray(f.read())
        content[-1] ^= 1
        slot = w.create_image("forged", layout.fd, offset)
        os.pwrite(slot.fd, content, 0)
        w.publish(slot.writer, digest)
        daemon.ctl("rm", "a")
        assert [b["digest"] for b in buffers(daemon)] == [honest["digest"]]
        assert not load(daemon, "m", path)["shared"]
    check_bytes(daemon, "m", tensors)


def test_weightd_shares_only_what_is_the_same(clean, model):
    """Whatever a client says; and the writer stays as it was."""
    path, offset, tensors = model
    clean.ctl("load", "-q", "a", path)
    write_model(path.with_name("other"), {"small": u8(b"xyzz"), "large": tensors["large"]})
    clean.ctl("load", "-q", "other", path.with_name("other"))
    digests = {b["name"]: bytes.fromhex(b["digest"].split(":")[1]) for b in buffers(clean)}
    with Wire(clean.socket, features=wire.IMAGES) as w:
        slot = w.create_image("m", w.layout("a").fd, offset)
        leases = {name: w.attach(name).lease for name in digests}
        for error, ask in ((errno.ENOENT, (slot.writer, slot.writer + 1000, digests["a"])),
                           (errno.ENOENT, (leases["a"], leases["a"], digests["a"])),
                           (errno.EXDEV, (slot.writer, leases["other"], digests["other"])),
                           (errno.EXDEV, (slot.writer, leases["a"], bytes(16)))):
            with pytest.raises(wire.Refused) as refused:
                w.publish_shared(*ask)
            assert refused.value.errno == error
        assert w.publish(slot.writer) == 1
    for name in "a", "other", "m":
        clean.ctl("rm", name)


@pytest.mark.parametrize("args", [["--exclusive"], ["--reusable"]], ids=lambda args: args[0])
def test_a_buffer_of_another_kind_has_its_own(daemon, model, args):
    daemon.ctl("load", "-q", "a", model[0])
    assert not load(daemon, *args, "m", model[0])["shared"]
    assert not load(daemon, *args, "n", model[0])["shared"]
    check_bytes(daemon, "m", model[2], in_order=False)


def test_loads_at_the_same_time_share_with_the_first(daemon, model, make_gate):
    path, offset, tensors = model
    gate = make_gate(path, offset, "pause")
    gate.start(daemon, "--share", "--json", "-q", "late", path)
    assert not load(daemon, "early", path)["shared"]
    assert json.loads(gate.open().stdout)["shared"]
    assert len(mapped(daemon, "early", "late")[0]) == 1
    # Versions of one buffer share, too.
    assert load(daemon, "early", path)["version"] == 2
    assert len(mapped(daemon, "early", "late")[0]) == 1
    check_bytes(daemon, "early", tensors)


def test_readers_outlive_a_version_that_shares(daemon, model):
    daemon.ctl("load", "-q", "a", model[0])
    assert load(daemon, "b", model[0])["shared"]
    with Wire(daemon.socket, features=wire.IMAGES) as w:
        fd = w.attach("a").slot_fd
        daemon.ctl("rm", "a")
        daemon.ctl("rm", "b")
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:
            assert m[:] == model[0].read_bytes()
        assert memory(daemon) > SIZE
    until(lambda: memory(daemon) == 0, "the memory goes with its last reader")


@pytest.mark.parametrize("point", ["share-saved", "share-stored", "share-kept", "publish-committed"])
def test_a_death_while_memory_is_shared_leaves_all_or_nothing(require, model, point):
    require("faults")
    daemon = matrix.Faulty({point: 1 if point != "publish-committed" else 2})
    try:
        daemon.ctl("load", "-q", "a", model[0])
        done = daemon.ctl("load", "--share", "--json", "-q", "b", model[0], check=False)
        assert f"killed at {point}" in daemon.log
        check_bytes(daemon, "a", model[2])
        if done.returncode == 0:
            check_bytes(daemon, "b", model[2])
            daemon.ctl("rm", "b")
        else:
            assert "restarted" in done.stderr or "lost" in done.stderr, done.stderr
        daemon.ctl("rm", "a")
        until(lambda: memory(daemon) == 0 and buffers(daemon) == [], "nothing is left")
    finally:
        daemon.close()

"""
Readers of buffers that change under them: swaps at the same address, pauses, and the signs of a change for a reader
that does not pause. The server is played by the test.
"""
import contextlib
import errno
import struct
import time

import pytest
from lib import wire
from lib.fake_server import PATIENCE_S, FakeServer, Memory, later
from lib.native import EMPTY, GONE, READY, TORN, UPDATING, Client, Failed, lib

pytestmark = pytest.mark.plain


class Reader:
    """A client that has attached version 1, and the server's end of its connection."""

    def __init__(self, stack, path, size, flags):
        self.server = stack.enter_context(FakeServer(path))
        self.memory = stack.enter_context(Memory(size))
        connecting = later(Client, self.server.path)
        self.peer = self.server.accept()
        self.client = stack.enter_context(connecting.result(PATIENCE_S))
        self.memory.flip(1, READY)
        self.first = self.memory.version(1, b"first", flags)
        asked = later(self.client.attach, "m")
        self.peer.request(wire.ATTACH)
        self.peer.give_lease(self.first, lease=11)
        self.buffer = asked.result(PATIENCE_S)
        stack.callback(self.buffer.detach)
        stack.callback(self.leave)

    def leave(self):
        self.peer.close()
        self.client.set_restart_timeout(0)

    def reads(self):
        return self.buffer.bytes().rstrip(b"\0")

    def is_detached(self, lease):
        assert self.peer.request(wire.DETACH).values == (lease,)
        self.peer.reply()


@pytest.fixture
def reader(tmp_path):
    """reader(mutable=True)"""
    with contextlib.ExitStack() as stack:
        yield lambda mutable=False, size=3 << 20: Reader(stack, tmp_path / "fake.sock", size,
                                                         wire.MUTABLE if mutable else 0)


def failure(act, *args):
    with pytest.raises(Failed) as failed:
        act(*args)
    return failed.value.errno


# --- Swaps ----------------------------------------------------------------------------------------------


def test_a_swap_puts_the_new_version_at_the_same_address(reader):
    r = reader()
    assert r.buffer.swap() == 0
    address = r.buffer.address
    r.memory.flip(2, READY)
    asked = later(r.buffer.swap)
    values = r.peer.request(wire.ATTACH).values
    assert values[3] == r.memory.buffer and values[4] == 1 and values[6] == r.first.layout_hash
    r.peer.give_lease(r.memory.version(2, b"second"), lease=12)
    r.is_detached(11)
    assert asked.result(PATIENCE_S) == 1
    assert (r.buffer.address, r.buffer.version, r.reads()) == (address, 2, b"second")
    assert r.buffer.swap() == 0 and r.peer.is_silent()
    asked = later(r.buffer.detach)
    r.is_detached(12)
    asked.result(PATIENCE_S)


@pytest.mark.parametrize("code", [errno.EPROTOTYPE, errno.ENODATA, errno.EAGAIN, errno.EACCES])
def test_a_swap_that_fails_changes_nothing(reader, code):
    r = reader()
    r.memory.flip(2, READY)
    asked = later(r.buffer.swap)
    r.peer.request(wire.ATTACH)
    r.peer.fail(code)
    assert failure(asked.result, PATIENCE_S) == code
    assert (r.buffer.version, r.reads()) == (1, b"first")


def test_a_swap_to_memory_that_is_too_short_changes_nothing(reader):
    r = reader()
    r.memory.flip(2, READY)
    second = r.memory.version(2, b"second")
    with open(second.slot_fd, "r+b", closefd=False) as f:
        f.truncate(4096)
    asked = later(r.buffer.swap)
    r.peer.request(wire.ATTACH)
    r.peer.give_lease(second, lease=12)
    r.is_detached(12)
    assert failure(asked.result, PATIENCE_S) == errno.EBADMSG
    assert (r.buffer.version, r.reads()) == (1, b"first")


def test_a_swap_goes_back_after_a_rollback(reader):
    r = reader()
    r.memory.flip(0, READY)
    asked = later(r.buffer.swap)
    r.peer.request(wire.ATTACH)
    r.peer.give_lease(r.memory.version(0, b"older"), lease=12)
    r.is_detached(11)
    assert asked.result(PATIENCE_S) == 1 and r.reads() == b"older"


def test_a_swap_of_a_removed_buffer_says_so(reader):
    r = reader()
    r.memory.flip(1, GONE)
    assert failure(r.buffer.swap) == errno.ESTALE
    assert r.reads() == b"first"


# --- Reading on ------------------------------------------------------------------------------------------


def test_states_are_those_of_the_head(reader):
    r = reader(mutable=True)
    for state in EMPTY, READY, UPDATING, TORN, GONE:
        r.memory.flip(5, state)
        assert r.buffer.state() == (state, 5)


def test_a_read_is_whole_when_nothing_was_updated_meanwhile(reader):
    r = reader(mutable=True)
    ticket = r.buffer.read_begin()
    assert not r.buffer.read_retry(ticket)
    r.memory.flip(1, UPDATING)
    assert r.buffer.read_retry(ticket)
    assert failure(r.buffer.read_begin) == errno.EAGAIN
    r.memory.flip(1, READY)  # the writer gave up before it wrote
    assert not r.buffer.read_retry(ticket)
    r.memory.flip(2, READY)
    assert r.buffer.read_retry(ticket)
    assert not r.buffer.read_retry(r.buffer.read_begin())
    r.memory.flip(2, TORN)
    assert failure(r.buffer.read_begin) == errno.EUCLEAN
    r.memory.flip(2, GONE)
    assert failure(r.buffer.read_begin) == errno.ESTALE


def test_what_is_sealed_is_whole_whatever_happens(reader):
    r = reader()
    assert not r.buffer.is_mutable
    for state in UPDATING, EMPTY, READY, GONE:
        ticket = r.buffer.read_begin()
        r.memory.flip(7, state)
        assert not r.buffer.read_retry(ticket)
        assert not r.buffer.read_retry(r.buffer.read_begin())


def test_bytes_of_another_version_are_not_verified(reader):
    r = reader(mutable=True)
    r.memory.flip(2, READY)
    asked = later(r.buffer.verify)
    assert failure(asked.result, PATIENCE_S) == errno.EAGAIN
    r.memory.flip(1, TORN)
    assert failure(r.buffer.verify) == errno.EUCLEAN


# --- Pauses of an exclusive buffer -------------------------------------------------------------------------


def paused(r, timeout_ms=-1):
    """A pause that the server has been notified of."""
    r.memory.flip(1, UPDATING)
    asked = later(r.buffer.pause, timeout_ms)
    assert r.peer.request(wire.PAUSE).values[0] == 11
    return asked


def go_on(r, version=2, layout_hash=None):
    r.peer.reply("QII16s16s", version, wire.MUTABLE | wire.DIGEST, 0, layout_hash or r.first.layout_hash, b"d" * 16)


@pytest.mark.parametrize("mutable", [False, True])
def test_nobody_asked_for_a_pause(reader, mutable):
    r = reader(mutable)
    assert r.buffer.pause() == 0 and r.peer.is_silent()


def test_a_pause_ends_with_the_next_version(reader):
    r = reader(mutable=True)
    asked = paused(r)
    r.memory.flip(2, READY)
    go_on(r)
    assert asked.result(PATIENCE_S) == 1
    assert r.buffer.version == 2 and lib.weightd_buffer_digest(r.buffer.handle)
    assert r.buffer.pause() == 0


def test_a_pause_can_take_several_calls(reader):
    r = reader(mutable=True)
    for _ in range(3):
        asked = paused(r, 30)
        r.peer.fail(errno.ETIMEDOUT)
        assert failure(asked.result, PATIENCE_S) == errno.ETIMEDOUT
        assert r.buffer.version == 1
    asked = paused(r)
    go_on(r)
    assert asked.result(PATIENCE_S) == 1


def test_an_update_that_was_not_noticed_is_caught_up_with(reader):
    r = reader(mutable=True)
    r.memory.flip(4, READY)
    asked = later(r.buffer.pause)
    r.peer.request(wire.PAUSE)
    go_on(r, 4)
    assert asked.result(PATIENCE_S) == 1 and r.buffer.version == 4


@pytest.mark.parametrize("code", [errno.EUCLEAN, errno.ENOENT])
def test_a_reader_that_was_evicted_is_told(reader, code):
    r = reader(mutable=True)
    asked = paused(r)
    r.peer.fail(code)
    assert failure(asked.result, PATIENCE_S) == errno.EUCLEAN
    r.memory.flip(2, READY)
    assert failure(r.buffer.read_begin) == errno.EUCLEAN
    assert failure(r.buffer.pause) == errno.EUCLEAN
    assert r.peer.is_silent()


def test_a_reader_of_a_torn_buffer_goes_on_after_its_repair(reader):
    r = reader(mutable=True)
    asked = paused(r)
    r.memory.flip(1, TORN)
    r.peer.fail(errno.EUCLEAN)
    assert failure(asked.result, PATIENCE_S) == errno.EUCLEAN
    r.memory.flip(2, READY)
    asked = later(r.buffer.pause)
    r.peer.request(wire.PAUSE)
    go_on(r)
    assert asked.result(PATIENCE_S) == 1 and not r.buffer.read_retry(r.buffer.read_begin())


def test_a_pause_across_a_restart(reader):
    r = reader(mutable=True)
    asked = paused(r)
    r.peer = r.server.restart(r.peer)
    assert r.peer.request(wire.RENEW).values == (r.memory.buffer, 1)
    r.peer.reply("Q", 77)
    assert r.peer.request(wire.PAUSE).values[0] == 77
    go_on(r)
    assert asked.result(PATIENCE_S) == 1


def test_a_pause_whose_lease_did_not_survive_a_restart(reader):
    r = reader(mutable=True)
    asked = paused(r)
    r.peer = r.server.restart(r.peer)
    r.peer.request(wire.RENEW)
    r.peer.fail(errno.ESTALE)
    assert failure(asked.result, PATIENCE_S) == errno.EUCLEAN


def test_a_pause_that_ends_with_another_layout(reader):
    r = reader(mutable=True)
    asked = paused(r)
    go_on(r, layout_hash=b"x" * 16)
    assert failure(asked.result, PATIENCE_S) == errno.EPROTOTYPE


@pytest.mark.parametrize("state, code", [(TORN, errno.EUCLEAN), (GONE, errno.ESTALE)])
def test_a_pause_of_what_is_lost(reader, state, code):
    r = reader(mutable=True)
    r.memory.flip(1, state)
    assert failure(r.buffer.pause) == code


# --- Pauses of a buffer that is replaced --------------------------------------------------------------------


def mapping(r):
    """Permissions and inode of what is mapped at the buffer's address."""
    start = f"{r.buffer.address:x}-"
    with open("/proc/self/maps") as f:
        _, perms, _, _, inode, *_ = next(line for line in f if line.startswith(start)).split()
    return perms, int(inode)


def let_go(r, timeout_ms=-1):
    """A pause that has given the memory back."""
    r.memory.flip(1, UPDATING)
    asked = later(r.buffer.pause, timeout_ms)
    r.is_detached(11)
    assert mapping(r) == ("---p", 0)
    return asked


def test_a_replaced_buffer_comes_back_at_the_same_address(reader):
    r = reader()
    address = r.buffer.address
    asked = let_go(r)
    r.memory.flip(1, EMPTY)
    assert not asked.done() and r.peer.is_silent()
    second = r.memory.version(2, b"second")
    r.memory.flip(2, READY)
    r.peer.request(wire.ATTACH)
    r.peer.give_lease(second, lease=12)
    assert asked.result(PATIENCE_S) == 1
    assert (r.buffer.address, r.buffer.version, r.reads()) == (address, 2, b"second")
    assert mapping(r)[0] == "r--s"
    assert r.buffer.pause() == 0


def test_a_replacement_that_is_called_off_gives_the_same_version_again(reader):
    r = reader()
    asked = let_go(r)
    r.memory.flip(1, READY)
    r.peer.request(wire.ATTACH)
    r.peer.give_lease(r.first, lease=12)
    assert asked.result(PATIENCE_S) == 1
    assert (r.buffer.version, r.reads()) == (1, b"first")


def test_a_replacement_that_takes_longer_than_the_pause(reader):
    r = reader()
    asked = let_go(r, 50)
    started = time.monotonic()
    assert failure(asked.result, PATIENCE_S) == errno.ETIMEDOUT
    assert time.monotonic() - started < 15
    assert mapping(r) == ("---p", 0)
    assert failure(r.buffer.pause, 0) == errno.ETIMEDOUT
    asked = later(r.buffer.pause)
    r.memory.flip(2, READY)
    r.peer.request(wire.ATTACH)
    r.peer.fail(errno.EAGAIN)  # and is replaced once more
    r.peer.request(wire.ATTACH)
    r.peer.give_lease(r.memory.version(2, b"second"), lease=12)
    assert asked.result(PATIENCE_S) == 1 and r.reads() == b"second"


@pytest.mark.parametrize("code", [errno.EPROTOTYPE, errno.ESTALE, errno.EACCES])
def test_a_replacement_that_cannot_be_attached_leaves_the_addresses_reserved(reader, code):
    r = reader()
    asked = let_go(r)
    r.memory.flip(2, READY)
    r.peer.request(wire.ATTACH)
    r.peer.fail(code)
    if code == errno.EPROTOTYPE:  # the client asks for the difference, and nothing depends on the answer
        assert r.peer.request(wire.LAYOUT).values[2] == 2
        r.peer.fail(errno.ENOENT)
    assert failure(asked.result, PATIENCE_S) == code
    assert mapping(r) == ("---p", 0)
    r.buffer.detach()
    assert r.peer.is_silent()


def test_a_replaced_buffer_that_is_removed(reader):
    r = reader()
    asked = let_go(r)
    r.memory.flip(1, GONE)
    assert failure(asked.result, PATIENCE_S) == errno.ESTALE


# --- Attaching what is updated ------------------------------------------------------------------------------


def attaching(r, **options):
    asked = later(r.client.attach, "m", **options)
    r.peer.request(wire.ATTACH)
    r.peer.fail(errno.EAGAIN)
    return asked


def test_an_attach_during_an_update_waits_if_it_has_time(reader):
    r = reader(mutable=True)
    assert failure(attaching(r).result, PATIENCE_S) == errno.EAGAIN
    for version in 0, 1:
        asked = attaching(r, timeout_ms=60_000, version=version)
        assert r.peer.request(wire.WAIT).values[2] == version
        r.peer.reply("Q", 2)
        r.peer.request(wire.ATTACH)
        r.peer.give_lease(r.memory.version(2, b"second", wire.MUTABLE), lease=12)
        other = asked.result(PATIENCE_S)
        assert other.is_mutable
        asked = later(other.detach)
        r.is_detached(12)
        asked.result(PATIENCE_S)


def test_options_of_a_create_reach_the_server(reader):
    r = reader()
    for options, timeout, flags, policy in (
            ({}, 10_000, 0, 0), (dict(exclusive=True, pause_timeout_ms=-1, policy=1), -1, wire.EXCLUSIVE, 1),
            (dict(reusable=True, new_layout=True), 10_000, wire.REUSABLE | wire.NEW_LAYOUT, 0),
            (dict(replace=True, pause_timeout_ms=5, policy=2), 5, wire.REPLACE, 2)):
        asked = later(r.client.create, "m", **options)
        assert r.peer.request(wire.CREATE).values[3:] == (timeout, 0, 0, flags, policy)
        r.peer.fail(errno.EBUSY)
        assert failure(asked.result, PATIENCE_S) == errno.EBUSY
    assert failure(later(r.client.create, "m", policy=3).result, PATIENCE_S) == errno.EINVAL


def test_access_is_changed_as_far_as_it_is_told(reader):
    r = reader()
    for arguments, sent in ((dict(mode=0o640), (wire.MODE, 0o640, 0, 0)), (dict(uid=0, gid=7), (wire.UID | wire.GID, 0, 0, 7))):
        asked = later(r.client.set_access, "m", **arguments)
        assert r.peer.request(wire.ACCESS).values[2:] == sent
        r.peer.reply()
        asked.result(PATIENCE_S)
    for arguments in dict(mode=0o1000), dict(uid=2**32 - 1), dict(gid=-2):
        assert failure(lambda arguments=arguments: r.client.set_access("m", **arguments)) == errno.EINVAL


def test_statistics_are_copied_field_by_field(reader):
    r = reader()
    asked = later(r.client.stat)
    r.peer.request(wire.STAT)
    r.peer.reply("9Q", *range(1, 10))
    stat = asked.result(PATIENCE_S)
    assert struct.unpack_from("<9Q", bytes(stat), 8) == tuple(range(1, 10))

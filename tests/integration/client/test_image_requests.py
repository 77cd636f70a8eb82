"""Sequence of what the library asks of a weightd for a version that is a file, reply by reply."""
import errno
import os
import struct

import pytest
from lib import wire
from lib.fake_server import PATIENCE_S, FakeServer, later, wire_reader
from lib.wire import IMAGES, LAYOUTS, NEW_LAYOUT, SURVIVES

FLAGS, DATA_OFFSET = 6, 8  # in the values of a create
SIZE = 5
PACKED = wire.image([("t", SIZE)], alignment=1)
FLAT = wire.image([("t", SIZE)], alignment=256)
WRITER = 9


@pytest.fixture
def weightd():
    import weightd
    return weightd


@pytest.fixture
def server(tmp_path):
    with FakeServer(tmp_path / "w.sock", features=SURVIVES | LAYOUTS | IMAGES) as fake:
        yield fake


def create(weightd, server):
    layout = weightd.Layout()
    layout.add("t", "U8", (SIZE,))
    asked = later(weightd.create, "m", layout, socket=server.path)
    return asked, server.accept()


def tell_none(peer):
    peer.request(wire.LAYOUT)
    peer.fail(errno.ENOENT)


def tell_layout(peer, raw, version=1, data_offset=0, flags=0):
    peer.request(wire.LAYOUT)
    fd = wire.memfd(raw)
    peer.reply("QII16s", version, flags, data_offset, raw[16:32], fds=[fd])
    os.close(fd)


def asked_for(peer, op, wanted):
    """The values of the create, which has that layout, or one with that alignment."""
    asked = peer.request(op)
    raw = os.pread(asked.fds[0], 1 << 20, 0)
    data_size, _, alignment = struct.unpack_from("<QQI", raw, 40)
    assert raw == wanted or alignment == wanted and data_size == -(-SIZE // alignment) * alignment
    return asked.values


def give_image(peer, data_offset, slot_size=None, data_size=SIZE):
    """Answers with a slot that is a hole, whatever its size ought to be."""
    fds = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("slot", "digests")]
    os.ftruncate(fds[0], data_offset + SIZE)
    os.ftruncate(fds[1], 32)
    size = data_offset + SIZE if slot_size is None else slot_size
    with wire_reader(fds[0]) as reader:
        peer.reply("5QII96s", WRITER, 3, 1, data_size, size, 0, 0, wire.location(size), fds=[fds[0], reader, fds[1]])
    for fd in fds:
        os.close(fd)


def refused(weightd, asked, peer, words="the test says no"):
    peer.fail(errno.ENOMEM)
    with pytest.raises(weightd.Error, match=words):
        asked.result(PATIENCE_S)


def test_a_new_buffer_is_asked_for_as_an_image(weightd, server):
    asked, peer = create(weightd, server)
    tell_none(peer)
    values = asked_for(peer, wire.CREATE_IMAGE, 1)
    assert values[DATA_OFFSET] == 8192 and values[FLAGS] == 0
    refused(weightd, asked, peer)


def test_memory_that_cannot_be_a_file_is_asked_for_in_the_flat_form(weightd, server):
    asked, peer = create(weightd, server)
    tell_none(peer)
    first = asked_for(peer, wire.CREATE_IMAGE, 1)
    peer.fail(errno.EMEDIUMTYPE)
    tell_none(peer)
    second = asked_for(peer, wire.CREATE, 256)
    assert first[2] != second[2]  # the cookie: it is another request
    refused(weightd, asked, peer)


def test_memory_that_cannot_be_a_file_follows_the_newest_version_as_ever(weightd, server):
    newest = wire.image([("t", SIZE)], alignment=4096)
    asked, peer = create(weightd, server)
    tell_layout(peer, newest)
    assert asked_for(peer, wire.CREATE_IMAGE, 1)[FLAGS] == NEW_LAYOUT
    peer.fail(errno.EMEDIUMTYPE)
    tell_layout(peer, newest)
    assert asked_for(peer, wire.CREATE, newest)[FLAGS] == 0
    refused(weightd, asked, peer)


@pytest.mark.parametrize("flags", [wire.IS_EXCLUSIVE, wire.IS_REUSABLE])
def test_no_image_is_asked_for_where_the_buffer_can_have_none(weightd, server, flags):
    asked, peer = create(weightd, server)
    tell_layout(peer, FLAT, flags=flags)
    assert asked_for(peer, wire.CREATE, FLAT)[FLAGS] == 0
    refused(weightd, asked, peer)


@pytest.mark.parametrize("offset", [120, 8192, 12289])
def test_the_data_begin_where_those_of_the_newest_version_do(weightd, server, offset):
    asked, peer = create(weightd, server)
    tell_layout(peer, PACKED, data_offset=offset)
    values = asked_for(peer, wire.CREATE_IMAGE, PACKED)
    assert values[DATA_OFFSET] == offset and values[FLAGS] == 0
    refused(weightd, asked, peer)


def test_the_layout_of_a_version_that_another_writer_publishes_meanwhile_is_taken(weightd, server):
    asked, peer = create(weightd, server)
    tell_none(peer)
    asked_for(peer, wire.CREATE_IMAGE, 1)
    peer.fail(errno.EPROTOTYPE)
    tell_layout(peer, PACKED, data_offset=12288)
    assert asked_for(peer, wire.CREATE_IMAGE, PACKED)[DATA_OFFSET] == 12288
    refused(weightd, asked, peer)


def test_a_version_published_meanwhile_is_not_passed_over(weightd, server):
    """Its own layout is allowed only after the version that was looked at."""
    other = wire.image([("u", SIZE)], alignment=256)
    asked, peer = create(weightd, server)
    tell_layout(peer, FLAT, version=5)
    assert asked_for(peer, wire.CREATE_IMAGE, 1)[FLAGS] == NEW_LAYOUT
    give_image(peer, 8192)
    tell_layout(peer, other, version=6)
    assert peer.request(wire.ABORT).values == (WRITER,)
    peer.reply()
    tell_layout(peer, other, version=6)
    with pytest.raises(weightd.LayoutMismatch, match="only in the new layout: 't'; only in version 6: 'u'"):
        asked.result(PATIENCE_S)
    assert peer.is_silent()


@pytest.mark.parametrize("gone", [False, True])
def test_an_image_follows_the_version_of_the_flat_form_that_was_looked_at(weightd, server, gone):
    asked, peer = create(weightd, server)
    tell_layout(peer, FLAT, version=5)
    asked_for(peer, wire.CREATE_IMAGE, 1)
    give_image(peer, 8192)
    if gone:  # the server needed its memory for the new one
        peer.request(wire.LAYOUT)
        peer.fail(errno.ENODATA)
    else:
        tell_layout(peer, FLAT, version=5)
    writer = asked.result(PATIENCE_S)
    assert writer.location.data_offset == 8192 and writer.nbytes == SIZE
    closed = later(writer.close)
    peer.request(wire.ABORT)
    peer.reply()
    closed.result(PATIENCE_S)


@pytest.mark.parametrize("sizes", [{"slot_size": 8192 + SIZE + 1}, {"slot_size": SIZE}, {"data_size": SIZE + 1}, {"data_size": 0}],
                         ids=str)
def test_a_slot_of_another_size_is_given_back(weightd, server, sizes):
    asked, peer = create(weightd, server)
    tell_none(peer)
    asked_for(peer, wire.CREATE_IMAGE, 1)
    give_image(peer, 8192, **sizes)
    assert peer.request(wire.ABORT).values == (WRITER,)
    peer.reply()
    with pytest.raises(weightd.Error, match="the memory of 'm' cannot be mapped") as failed:
        asked.result(PATIENCE_S)
    assert failed.value.errno == errno.EBADMSG


def test_an_earlier_release_that_was_started_meanwhile_gets_no_such_request(weightd, server):
    asked, peer = create(weightd, server)
    tell_none(peer)
    asked_for(peer, wire.CREATE_IMAGE, 1)
    server.features = SURVIVES | LAYOUTS
    peer = server.restart(peer)
    with pytest.raises(weightd.Error, match="was restarted as an earlier release.*create 'm' again") as failed:
        asked.result(PATIENCE_S)
    assert failed.value.errno == errno.ECONNABORTED and peer.is_silent()

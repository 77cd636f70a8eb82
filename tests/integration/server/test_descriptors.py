"""Descriptors of the bytes and images of layouts, for programs that carry them somewhere else."""
import ctypes
import errno
import mmap
import os
from ctypes import byref, c_int, c_uint64

import pytest
from lib.child import Child
from lib.cuda_scene import make_scene, one  # noqa: F401
from lib.native import Client, Failed, lib
from lib.wire import SLOTS, WRITING, Wire, image

LEAF = 1 << 20
SIZE = 2 * LEAF + 4096
BYTES = bytes(range(1, 251)) * (SIZE // 250) + bytes(SIZE % 250)


@pytest.fixture
def client(daemon):
    with Client(daemon.socket) as c:
        yield c


def attach(client, name="m", **options):
    """An attachment and the descriptor of its bytes."""
    fd = c_int(-1)
    buffer = client.attach(name, ret_fd=ctypes.pointer(fd), **options)
    return buffer, fd.value


def refused(act, *arguments, **kw):
    with pytest.raises(Failed) as e:
        act(*arguments, **kw)
    return e.value


def image_of(buffer):
    size = c_uint64()
    address = lib.weightd_buffer_layout_image(buffer.handle, byref(size))
    return ctypes.string_at(address, size.value)


# --- Buffers ---


def test_the_descriptor_of_a_buffer_reads_its_bytes_and_writes_none(client):
    client.publish("m", BYTES)
    buffer, fd = attach(client)
    data = buffer.data_offset
    try:
        assert data > 0 and os.fstat(fd).st_size == data + SIZE
        assert os.pread(fd, SIZE, data) == BYTES
        assert not os.get_inheritable(fd)
        with pytest.raises(OSError) as e:
            os.pwrite(fd, b"x", 0)
        assert e.value.errno in (errno.EBADF, errno.EPERM)
        with pytest.raises(OSError):
            mmap.mmap(fd, SIZE)
        buffer.detach()
        assert os.pread(fd, SIZE, data) == BYTES, "without a lease, but there"
    finally:
        os.close(fd)


def test_the_descriptor_is_of_the_version_that_was_attached(client):
    client.publish("m", BYTES)
    client.publish("m", bytes(SIZE))
    for version, data in (1, BYTES), (2, bytes(SIZE)), (0, bytes(SIZE)):
        buffer, fd = attach(client, version=version)
        with buffer:
            assert os.pread(fd, SIZE, buffer.data_offset) == data, version
        os.close(fd)


def test_an_attach_that_fails_gives_no_descriptor(client):
    fd = c_int(-7)
    assert refused(client.attach, "m", ret_fd=ctypes.pointer(fd)).errno == errno.ENOENT
    assert fd.value == -7


MAP_IT = """
    import ctypes

    def map_it(fd, size):
        handle, at = ctypes.c_uint64(), ctypes.c_uint64()
        do("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), 1)
        do("cuMemAddressReserve", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
        do("cuMemMap", at, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        do("cuMemSetAccess", at, ctypes.c_size_t(size), (ctypes.c_int * 3)(1, 0, 3), ctypes.c_size_t(1))
        return at.value
"""


def test_the_descriptor_of_memory_of_a_gpu_is_its_allocation(one):
    one.run(MAP_IT + """
    context()
    with create("m", 3 * MIB) as writer:
        assert writer.map_size >= 3 * MIB and writer.map_size % (2 * MIB) == 0
        fd = writer.fd()
        fill(map_it(fd, writer.map_size) + MIB, 0x5a, MIB)
        wait()
        os.close(fd)
        assert writer.read(MIB, MIB) == b"\\x5a" * MIB
        writer.publish()
        assert refused(writer.fd).errno == errno.EALREADY
    fd = ctypes.c_int(-7)
    with attach("m", ret_fd=ctypes.pointer(fd)) as buffer:
        got = ctypes.create_string_buffer(2)
        copy(got, map_it(fd.value, buffer.map_size) + 2 * MIB - 1, 2)
        wait()
        assert got.raw == b"\\x5a\\0", got.raw
    """)


def test_memory_of_the_older_kind_of_a_gpu_has_no_descriptor(one):
    one.run("""
        import ctypes
        with create("m", 4096, handle=1) as writer:
            assert writer.map_size == 0
            e = refused(writer.fd)
            assert e.errno == errno.EOPNOTSUPP and "cuda-ipc memory" in e.sentence, e
            writer.publish()
        fd = ctypes.c_int(-7)
        e = refused(attach, "m", ret_fd=ctypes.pointer(fd))
        assert e.errno == errno.EOPNOTSUPP and "'m' on cuda:GPU-" in e.sentence and "cuda-ipc memory" in e.sentence, e
        assert fd.value == -7
        attach("m")
    """)


def test_the_memory_stays_until_the_descriptor_is_closed(client, daemon):
    client.publish("m", BYTES)
    buffer, fd = attach(client)
    data = buffer.data_offset
    buffer.detach()
    client.drop("m")
    with Wire(daemon.socket) as w:
        assert os.pread(fd, SIZE, data) == BYTES
        os.close(fd)
        assert w.names() == []


# --- Writers ---


def test_what_a_child_writes_through_the_descriptor_is_published_with_its_digest(client):
    with client.create("m", SIZE) as writer:
        fd = writer.fd()
        with Child(write_all, fd, writer.data_offset) as child:
            assert child.end() == 0
        version = writer.publish()
        with client.attach("m", version=version) as buffer:
            assert buffer.bytes() == BYTES
            buffer.verify()
        with pytest.raises(OSError) as e:
            os.pwrite(fd, b"x", 0)
        assert e.value.errno == errno.EPERM, "sealed"
        os.close(fd)


def write_all(_, fd, data):
    with mmap.mmap(fd, data + SIZE) as m:
        m[data:] = BYTES


def test_what_changes_behind_a_leaf_that_was_digested_is_digested_again_when_asked(client):
    with client.create("m", SIZE) as writer:
        fd = writer.fd()
        for leaf in range(3):
            lib.weightd_writer_digest_leaf(writer.handle, leaf)
        os.pwrite(fd, BYTES, writer.data_offset)
        for leaf in range(3):
            lib.weightd_writer_digest_leaf(writer.handle, leaf)
        os.close(fd)
        writer.publish()
    with client.attach("m") as buffer:
        buffer.verify()


def test_a_mapping_through_the_descriptor_is_in_the_way_of_publish_until_it_is_gone(client):
    with client.create("m", SIZE) as writer:
        fd = writer.fd()
        data = writer.data_offset
        with mmap.mmap(fd, data + SIZE) as m:
            m[data:data + 4] = b"once"
            assert refused(writer.publish).errno == errno.EBUSY
            m[data:data + 5] = b"twice"
        os.close(fd)
        writer.publish()
    with client.attach("m") as buffer:
        assert buffer.bytes()[:5] == b"twice"
        buffer.verify()


def test_a_writer_that_is_done_gives_no_descriptor(client):
    with client.create("m") as writer:
        writer.publish()
        assert refused(writer.fd).errno == errno.EALREADY
    with client.create("m") as writer:
        lib.weightd_writer_abort(writer.handle)
        assert refused(writer.fd).errno == errno.EALREADY


def test_a_descriptor_does_not_keep_another_writer_out(client, daemon):
    writer = client.create("m")
    fd = writer.fd()
    writer.free()
    with client.create("m") as again, Wire(daemon.socket) as w:
        assert len([s for s in w.list(SLOTS) if s.state == WRITING]) == 1
        again.publish()
    os.close(fd)


# --- Layouts ---


def test_the_image_of_a_layout_is_parsed_into_the_same_layout(client, daemon):
    with Wire(daemon.socket) as w:
        raw = image([("a", 4096), ("b", 300), ("c", LEAF)])
        w.publish(w.create("m", raw).writer)
    with client.attach("m") as buffer:
        assert image_of(buffer) == raw
        layout = client.new(lib.weightd_layout_parse, raw, len(raw))
        found = ctypes.create_string_buffer(16)
        assert lib.weightd_layout_hash(layout, found) == 0
        assert found.raw == ctypes.string_at(lib.weightd_buffer_layout_hash(buffer.handle), 16)
        written, size = ctypes.c_void_p(), c_uint64()
        assert lib.weightd_layout_image(layout, byref(written), byref(size)) == 0
        assert ctypes.string_at(written, size.value) == raw
        ctypes.CDLL(None).free(written)
        lib.weightd_layout_free(layout)


def test_an_image_that_is_wrong_is_not_parsed(client):
    raw = image([("a", 4096)])
    handle = ctypes.c_void_p()
    for wrong in b"", raw[:-1], raw + b"\0", raw[:-2] + b"xx", b"\xff" * len(raw), bytes(len(raw)):
        assert lib.weightd_layout_parse(wrong, len(wrong), byref(handle)) == -errno.EBADMSG, wrong
        assert not handle.value

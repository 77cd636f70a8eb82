"""Buffers on a GPU as processes share them, on fake GPUs."""
import textwrap

import pytest
from lib.cuda_scene import make_scene, one, two  # noqa: F401


def test_what_one_process_writes_another_reads_bit_for_bit(one):
    one.run("""
        with create("m", len(DATA)) as writer:
            assert writer.location == (1, 0, uuid()), writer.location
            writer.put(DATA[:100])
            writer.put(DATA[100:], 100)
            assert writer.read(50, 100) == DATA[50:150]
            assert writer.publish() == 1
            assert writer.read(0, len(DATA)) == DATA
    """)
    one.run("""
        with attach("m") as buffer:
            assert buffer.location == (1, 0, uuid()), buffer.location
            assert buffer.read()[:len(DATA)] == DATA
            assert buffer.read(7, 5) == DATA[7:12]
            buffer.verify()
            assert "GPU-" in buffer.device
            for offset, n in (len(DATA) + 256, 1), (0, len(DATA) + 256), (2**64 - 1, 2):
                assert refused(buffer.read, offset, n).errno == errno.EINVAL
    """)


def test_readers_share_one_copy(one):
    one.run("publish('m', DATA)")
    used = one.gpus.used()
    one.run("""
        import subprocess
        readers = [attach("m") for _ in range(3)]
        assert len({r.address for r in readers}) == 3
        subprocess.run([sys.executable, "-c",
                        "from lib.cuda_calls import *; b = attach('m'); b.verify(); print(b.read(1, 1)[0])"], check=True)
        assert all(r.read() == readers[0].read() for r in readers)
        print(sum((STATE / "memory").joinpath(f).stat().st_size for f in os.listdir(STATE / "memory") if f[0] != "c"))
    """)
    assert used > 0 and one.gpus.used() == used


@pytest.mark.parametrize("what", ["what is attached", "what was published"])
def test_the_gpu_cannot_write(one, what):
    """Here by what the driver itself refuses; what becomes of a kernel is for tests/gpu to show."""
    one.run(f"""
        context()
        writer = create("m", 4096)
        fill(writer.address, 1, 4096)
        writer.publish()
        assert refused(writer.put, b"x").errno == errno.EALREADY
        fill(attach("m").address if {what == "what is attached"} else writer.address, 2, 4096,
             wanted=INVALID_VALUE)
    """)
    one.run("assert attach('m').read() == bytes([1]) * 4096")


def test_where_the_driver_knows_no_read_only_mappings_verify_finds_what_was_written(one):
    one.run("""
        publish("m", DATA)
        context()
        fail("cuMemSetAccess", NOT_SUPPORTED)
        with attach("m") as buffer:
            buffer.verify()
            fill(buffer.address + MIB, 3, 10)
            wait()
            e = refused(buffer.verify)
            assert e.errno == errno.EILSEQ and "1048576 to 2097152" in e.sentence, e
    """)


@pytest.mark.parametrize("device", ["cuda:0", "host"])
def test_a_writer_can_prove_that_what_it_sent_has_arrived(one, device):
    one.run(f"""
        data = DATA[:3 * MIB + 4096]
        leaves = [data[i * MIB:(i + 1) * MIB] for i in range(4)]  # the last one is short
        with create("m", len(data), {device!r}) as writer:
            writer.put(data)
            for i in 0, 1, 3:
                writer.digest(i, leaves[i])
            writer.verify(0, 2), writer.verify(3, 1), writer.verify(4, 0)
            e = refused(writer.verify, 0, 4)
            assert e.errno == errno.ENODATA and "leaf 2" in e.sentence, e
            for first, n in (0, 5), (5, 0), (1, 2**64 - 1):
                assert refused(writer.verify, first, n).errno == errno.EINVAL
            writer.digest(2, leaves[2])
            writer.digest(4, data)  # there is none
            writer.verify(0, 4)
            writer.put(b"?", MIB + 7)
            e = refused(writer.verify, 0, 4)
            assert e.errno == errno.EILSEQ and "1048576 to 2097152" in e.sentence, e
            writer.verify(2, 2)
            writer.put(data[MIB + 7:MIB + 8], MIB + 7)
            writer.verify(0, 4)
            writer.publish()
            assert refused(writer.verify, 0, 4).errno == errno.EALREADY
        with attach("m", {device!r}) as buffer:
            buffer.verify()
    """)


def test_a_swap_keeps_the_address(one):
    one.run("""
        publish("m", DATA)
        with attach("m") as buffer:
            address = buffer.address
            assert buffer.swap() == 0
            publish("m", OTHER)
            assert buffer.read()[:9] == DATA[:9]
            assert buffer.swap() == 1 and buffer.swap_on(None) == 0
            assert (buffer.address, buffer.version) == (address, 2)
            assert buffer.read()[:len(OTHER)] == OTHER
            buffer.verify()
    """)


@pytest.mark.parametrize("symbol, skip", [
    ("cuMemImportFromShareableHandle", 0), ("cuMemGetAllocationPropertiesFromHandle", 0), ("cuCtxSynchronize", 0),
    ("cuMemUnmap", 0), ("cuMemMap", 0), ("cuMemSetAccess", 0)])
def test_a_swap_that_fails_leaves_what_there_was(one, symbol, skip):
    one.run(f"""
        publish("m", DATA)
        buffer = attach("m")
        address = buffer.address
        publish("m", OTHER)
        fail({symbol!r}, 999, {skip})
        e = refused(buffer.swap)
        assert e.errno == errno.EIO and "CUDA_ERROR_UNKNOWN" in e.sentence, e
        heal()
        assert (buffer.address, buffer.version) == (address, 1)
        assert buffer.read()[:len(DATA)] == DATA
        buffer.verify()
        assert buffer.swap() == 1 and buffer.read()[:len(DATA)] == OTHER
        buffer.detach()
    """)


def test_a_swap_that_cannot_be_undone_says_so_and_may_be_tried_again(one):
    one.run("""
        publish("m", DATA)
        buffer = attach("m")
        address = buffer.address
        publish("m", OTHER)
        fail("cuMemMap", 999, count=2)
        e = refused(buffer.swap)
        assert e.errno == errno.EIO and "nor the old memory again" in e.sentence, e
        assert refused(buffer.read).errno == errno.EADDRNOTAVAIL
        assert buffer.swap() == 1
        assert buffer.address == address and buffer.read()[:len(DATA)] == OTHER
    """)


def test_nothing_is_held_of_versions_that_were_read(one):
    one.run("""
        context()
        publish("other", DATA)  # weightd-cuda has its context now, for a while
        before = free()
        publish("m", DATA, keep=1)
        with attach("m") as buffer:
            for i in range(5):
                publish("m", OTHER)
                with buffer.refresh() as new:
                    new.verify()
                assert buffer.swap() == 1
                buffer.release()
                buffer.reacquire()
        client.drop("m", device="cuda:0")
        while free() < before:
            look()
    """)


def test_a_publish_that_fails_leaves_a_writer_that_can_write(one):
    one.run("""
        writer = create("m", len(DATA))
        writer.put(OTHER)
        fail("cuMemSetAccess", 999)
        e = refused(writer.publish)
        assert e.errno == errno.EIO and "read-only" in e.sentence, e
        writer.put(DATA)
        assert writer.publish() == 1
        attach("m").verify()
        assert attach("m").read()[:len(DATA)] == DATA
    """)


ROUND = """
    with create("m", len(DATA), at) as writer:
        writer.put(DATA)
        writer.publish()
        with attach("m", at) as buffer:
            buffer.read()
            publish("m", OTHER, at)
            buffer.swap()
            buffer.verify()
            buffer.release()
            buffer.reacquire()
        attach("m", at).detach_on(None)
"""


@pytest.mark.parametrize("before", ["init()", "context(0)", "context(1)"])
def test_the_context_that_was_current_is_so_afterwards(two, before):
    two.run(f"{before}\nwas, at = current(), 'cuda:1'\n" + textwrap.dedent(ROUND) + "\nassert current() == was")


def test_buffers_on_two_gpus_in_one_process(two):
    two.run("""
        publish("m", DATA, "cuda:0")
        publish("m", OTHER, "cuda:1")
        a, b = attach("m", "cuda"), attach("m", "cuda:1")
        assert (a.location, b.location) == ((1, 0, uuid(0)), (1, 1, uuid(1)))
        assert a.read()[:len(DATA)] == DATA and b.read()[:len(DATA)] == OTHER
        assert refused(attach, "m", "host").errno == errno.ENOENT
    """)
    assert two.gpus.used(0) == two.gpus.used(1) > 0


@pytest.mark.parametrize("visible, number", [("1,0", 1), ("0,1", 0), ("0", 0)])
def test_numbers_of_gpus_are_those_of_the_process(two, visible, number):
    two.run("publish('m', DATA, 'cuda:0')")
    two.run(f"""
        with attach("m", "cuda:{number}") as buffer:
            assert buffer.device == {two.gpus.device(0)!r}
            assert buffer.location[1] == {number}
            assert attach("m", buffer.device.upper().replace("CUDA", "cuda")).location[1] == {number}
    """, CUDA_VISIBLE_DEVICES=visible)


def test_a_gpu_that_the_process_does_not_see_is_refused(two):
    two.run("publish('m', DATA, 'cuda:1')")
    two.run(f"""
        e = refused(attach, "m", "cuda:3")
        assert e.errno == errno.ENODEV
        assert e.sentence.endswith("on cuda:3: there is no such GPU: this process sees 1 GPU (CUDA_VISIBLE_DEVICES is 0)"), e
        e = refused(attach, "m", {two.gpus.device(1)!r})
        assert e.errno == errno.ENODEV and {two.gpus.uuid(1)!r} in e.sentence and "sees 1 GPU" in e.sentence, e
        e = refused(create, "n", 4096, {two.gpus.device(1)!r})
        assert e.errno == errno.ENODEV and "sees 1 GPU" in e.sentence, e
        assert not client.list("n")
    """, CUDA_VISIBLE_DEVICES="0")


def test_another_gpu_maps_it(two):
    two.run("""
        publish("m", DATA, "cuda:0")
        context(1)
        with attach("m", "cuda:0", map_device="cuda:1") as buffer:
            assert buffer.location == (1, 1, uuid(0))
            assert buffer.read()[:len(DATA)] == DATA
            s, to = stream(), pinned(5)
            copy(to, buffer.address, 5, s)
            wait(s)
            assert to.raw == DATA[:5]
            publish("m", OTHER, "cuda:0")
            with buffer.refresh() as other:
                assert other.location == (1, 1, uuid(0))
            assert buffer.swap_on(s) == 1
            buffer.release(s)
            assert buffer.reacquire() == 0
            assert buffer.location == (1, 1, uuid(0))
            buffer.verify()
    """)


def test_a_gpu_that_cannot_reach_the_memory_is_refused(make_scene):
    make_scene(devices=2, no_peers=1).run("""
        publish("m", DATA, "cuda:0")
        e = refused(attach, "m", "cuda:0", map_device="cuda:1")
        assert e.errno == errno.EOPNOTSUPP and "cuda:1 cannot reach the memory of cuda:0" in e.sentence, e
        assert attach("m", "cuda:0", map_device="cuda:0").location[1] == 0
        e = refused(attach, "m", "cuda:0", map_device="cuda:2")
        assert e.errno == errno.ENODEV and "sees 2 GPUs" in e.sentence, e
        for wrong in "gpu", "host":
            e = refused(attach, "m", "cuda:0", map_device=wrong)
            assert e.errno == errno.EINVAL and f"'{wrong}' is not a GPU" in e.sentence, e
        publish("m", DATA, "host")
        e = refused(attach, "m", "host", map_device="cuda:0")
        assert e.errno == errno.EINVAL and "on host" in e.sentence, e
    """)



def test_a_reader_pauses_once_its_streams_have_passed(one):
    one.run("""
        context()
        publish("m", DATA, exclusive=True)
        buffer, s, to = attach("m"), stream(), pinned(100)
        address = buffer.address
        other = Client(os.environ["WEIGHTD_SOCKET"])
        with gate():
            copy(to, buffer.address, 100, s)
            making = later(other.create, "m", len(DATA), device=b"cuda:0")
            while buffer.state()[0] != 2:
                pass
            paused = later(buffer.pause)
        writer = making.result(60)
        wait(s)
        assert to.raw == DATA[:100]
        writer.put(OTHER)
        assert writer.publish() == 2
        assert paused.result(60) == 1 and (buffer.address, buffer.version) == (address, 2)
        assert buffer.read()[:len(DATA)] == OTHER
        buffer.verify()
    """)


def test_a_reader_lets_go_of_what_is_replaced_and_keeps_the_address(one):
    one.run("""
        context()
        publish("m", DATA)
        buffer, s, to = attach("m"), stream(), pinned(100)
        address = buffer.address
        other = Client(os.environ["WEIGHTD_SOCKET"])
        with gate():
            copy(to, buffer.address, 100, s)
            making = later(other.create, "m", len(DATA), device=b"cuda:0", replace=True)
            while buffer.state()[0] == 1:
                pass
            paused = later(buffer.pause)
        writer = making.result(60)
        wait(s)
        assert to.raw == DATA[:100]
        writer.put(OTHER)
        writer.publish()
        assert paused.result(60) == 1 and buffer.address == address
        assert buffer.read()[:len(DATA)] == OTHER
    """)


def test_a_server_that_dies_takes_no_gpu_memory_with_it(make_scene):
    make_scene("--keeper").run("""
        import signal
        publish("m", DATA)
        buffer, writer = attach("m"), create("m", len(DATA))
        writer.put(OTHER[:100])
        os.kill(client.ping().pid, signal.SIGKILL)
        writer.put(OTHER[100:], 100)
        assert buffer.read()[:len(DATA)] == DATA
        assert writer.publish() == 2
        assert buffer.swap() == 1
        assert buffer.read()[:len(DATA)] == OTHER
        buffer.verify()
    """)


def test_the_older_kind_from_one_process_to_another(one):
    one.run("""
        with create("m", len(DATA), handle=1) as writer:
            assert writer.location == (2, 0, uuid())
            writer.put(DATA)
            assert writer.publish() == 1
    """)
    one.run("""
        with attach("m") as buffer:
            assert buffer.location == (2, 0, uuid())
            assert buffer.read()[:len(DATA)] == DATA
            buffer.verify()
            publish("m", OTHER)
            assert refused(buffer.swap).errno == errno.EOPNOTSUPP
            assert refused(buffer.release).errno == errno.EOPNOTSUPP
            with buffer.refresh() as new:
                assert new.version == 2 and new.read()[:len(DATA)] == OTHER
    """)


def test_a_kind_of_handle_that_cannot_be_is_refused(one):
    one.run("""
        e = refused(create, "m", 4096, handle=7)
        assert e.errno == errno.EINVAL, e
        e = refused(create, "m", 4096, "host", handle=1)
        assert e.errno == errno.EOPNOTSUPP and "host has no memory" in e.sentence, e
        assert not client.list()
    """)

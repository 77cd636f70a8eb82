"""The order of work: memory stays while queued work needs it, on fake GPUs with streams that a test can hold up."""
from lib.cuda_scene import make_scene, one  # noqa: F401


def test_publish_waits_for_what_the_writer_has_queued(one):
    one.run("""
        context()
        for how in "all", "one":
            with create("m", 4096) as writer:
                s = stream()
                with gate():
                    fill(writer.address, 5, 4096, s)
                    published = later(writer.publish) if how == "all" else later(writer.publish_on, s)
                    look()
                assert published.result(60)
            with attach("m") as buffer:
                assert buffer.read() == bytes([5]) * 4096
                buffer.verify()
    """)


def test_a_swap_waits_for_what_still_reads(one):
    """Work that was queued before it reads the old version, at the address of the later new one."""
    one.run("""
        context()
        for how in "all", "one":
            publish("m", DATA, new_layout=True)
            buffer, s, to = attach("m"), stream(), pinned(100)
            publish("m", OTHER)
            with gate():
                copy(to, buffer.address, 100, s)
                swapped = later(buffer.swap) if how == "all" else later(buffer.swap_on, s)
                look()
            assert swapped.result(60) == 1
            wait(s)
            assert to.raw == DATA[:100]
            assert buffer.read(0, 100) == OTHER[:100]
            buffer.detach()
    """)


def test_what_was_detached_stays_until_its_stream_has_passed(one):
    one.run("""
        context()
        publish("m", DATA)
        s, to = stream(), pinned(100)
        buffer = attach("m")
        assert client.reap() == 0
        with gate():
            copy(to, buffer.address, 100, s)
            buffer.detach_on(s)
            assert client.reap() == 1
            client.drop("m", device=buffer_device)
            assert client.reap() == 1
        wait(s)
        assert to.raw == DATA[:100]
        while client.reap():
            pass
    """.replace("buffer_device", repr(one.gpus.device())))
    one.gpus.wait_used(0)


def test_later_calls_on_the_connection_end_what_was_detached(one):
    one.run("""
        context()
        publish("m", DATA)
        watcher = Client(os.environ["WEIGHTD_SOCKET"])
        s, buffer = stream(), attach("m")
        with gate():
            fill(create("other", 4096).address, 0, 1, s)
            buffer.detach_on(s)
            assert watcher.stat().slot_bytes and client.reap() == 1
        wait(s)
        client.list()
        assert client.reap() == 0
    """)


def test_closing_the_connection_waits_for_what_was_detached(one):
    one.run("""
        context()
        publish("m", DATA)
        s, to = stream(), pinned(100)
        buffer, other = attach("m"), attach("m")
        with gate():
            copy(to, buffer.address, 100, s)
            buffer.detach_on(s)
            closed = later(client.close)
        closed.result(60)
        wait(s)
        assert to.raw == DATA[:100]
        other.detach_on(s)
        print("done")
    """)
    one.run("client.drop('m', device='cuda:0')")
    one.gpus.wait_used(0)


def test_detaching_behind_all_streams_or_none_waits(one):
    one.run("""
        context()
        publish("m", DATA)
        s = stream()
        for how in "all", "plain", "a stream that is none":
            buffer, to = attach("m"), pinned(100)
            with gate():
                copy(to, buffer.address, 100, s)
                if how == "all":
                    done = later(buffer.detach_on, ALL_STREAMS)
                elif how == "plain":
                    done = later(buffer.detach)
                else:
                    done = later(buffer.detach_on, ctypes.c_void_p(0x10))
            done.result(60)
            assert client.reap() == 0
            wait(s)
            assert to.raw == DATA[:100]
    """)


def test_host_memory_has_no_streams(one):
    one.run("""
        with create("m", 4096, "host") as writer:
            assert writer.location == (0, -1, bytes(16))
            writer.put(DATA[:4096])
            assert writer.read(7, 9) == DATA[7:16]
            assert writer.publish_on(ctypes.c_void_p(0x10)) == 1
        buffer = attach("m", "host")
        assert buffer.location == (0, -1, bytes(16))
        publish("m", OTHER[:4096], "host")
        assert buffer.swap_on(ctypes.c_void_p(0x10)) == 1 and buffer.read() == OTHER[:4096]
        buffer.detach_on(None)
        assert client.reap() == 0
    """)

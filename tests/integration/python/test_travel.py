"""The Python package: handles in other processes, in copies, and half made."""
import copy
import gc
import pickle

import pytest
from lib.python_package import layout_of, publish


def test_pools_take_and_give_buffers_and_tensors(weightd, daemon, python):
    publish(weightd, fill=7, tensors=[("F32", (4,)), ("F4", (2, 6))])
    out = python(f"""if True:
        import multiprocessing, os, weightd
        buffer = weightd.attach("m", socket=os.path.relpath({daemon.socket!r}))
        os.environ["WEIGHTD_SOCKET"] = "/nothing"
        os.chdir("/")
        for method in "spawn", "forkserver":
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(pool.apply(len, (buffer,)), bytes(pool.apply(weightd.Tensor.read, (buffer["t1"],))),
                      pool.apply(weightd.Buffer.verify, (buffer,)))
                got = pool.apply(weightd.attach, ("m@1",), dict(socket={daemon.socket!r}))
                print(got.version, got["t0"].memoryview()[15])
        """).stdout
    assert out == f"2 {bytes([7] * 6)} None\n1 7\n" * 2


def test_what_is_gone_is_an_error_of_the_call_and_not_a_pool_that_hangs(weightd, python):
    publish(weightd)
    out = python("""if True:
        import multiprocessing, weightd
        buffer = weightd.attach("m")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(len, (buffer,)))
            weightd.drop("m")
            for use in len, weightd.Buffer.verify, weightd.Tensor.read:
                try:
                    pool.apply_async(use, (buffer["t0"] if use is weightd.Tensor.read else buffer,)).get(60)
                except weightd.NotFound as e:
                    print(e)
            print(repr(pool.apply(list, ([buffer],))))
        """).stdout
    gone = "there is no buffer 'm' on host"
    assert out == f"1\n{gone}\n{gone}\n{gone}\n[<not attached: {gone}>]\n"


def test_pickled_handles_are_the_version_they_were(weightd):
    publish(weightd, fill=1)
    buffer = weightd.attach("m")
    sent = pickle.dumps((buffer, buffer["t0"]))
    publish(weightd, fill=2)
    got, tensor = pickle.loads(sent)
    assert (got.version, got.name, got.layout_hash) == (1, "m", buffer.layout_hash)
    assert bytes(tensor.memoryview()) == bytes([1]) * 64
    assert (tensor.name, tensor.dtype, tensor.shape) == ("t0", "F32", (4, 4))
    assert weightd.ping().n_leases == 2  # one for all of a message
    buffer.swap()
    assert pickle.loads(pickle.dumps(buffer)).version == 2
    with pytest.raises(ValueError, match="closed"):
        got.close()
        pickle.dumps(got)


def test_another_buffer_of_that_name_is_not_taken_for_it(weightd):
    publish(weightd)
    sent = pickle.dumps(weightd.attach("m"))
    weightd.drop("m")
    publish(weightd, tensors=[("F32", (8,))])
    with pytest.raises(weightd.LayoutMismatch):
        len(pickle.loads(sent))


@pytest.mark.parametrize("again", [lambda sent, buffer: pickle.loads(sent), lambda sent, buffer: copy.deepcopy(buffer)])
def test_other_bytes_of_that_name_and_layout_are_not_taken_for_it(weightd, again):
    publish(weightd, fill=1)
    buffer = weightd.attach("m")
    sent = pickle.dumps(buffer)
    weightd.drop("m")
    publish(weightd, fill=2)
    with pytest.raises(weightd.Removed, match=r"'m@1' on host was removed, .* other bytes; attach\(\) that one"):
        len(again(sent, buffer))
    weightd.drop("m")
    publish(weightd, fill=1)
    assert again(sent, buffer).digest == buffer.digest


@pytest.mark.parametrize("use", [len, list, iter, lambda b: b["t0"], lambda b: "t0" in b, lambda b: b.version,
                                 lambda b: b.__enter__(), lambda b: pickle.loads(pickle.dumps(b)).wait()])
def test_every_use_of_what_could_not_be_attached_raises_its_error(weightd, use):
    publish(weightd)
    sent = pickle.dumps(weightd.attach("m"))
    weightd.drop("m")
    with pytest.raises(weightd.NotFound, match="no buffer 'm'"):
        use(pickle.loads(sent))


def test_the_error_of_many_uses_is_as_long_as_that_of_one(weightd):
    publish(weightd)
    sent = pickle.dumps(weightd.attach("m"))
    weightd.drop("m")
    deferred, depths = pickle.loads(sent), set()
    for use in (len, list, len, lambda d: hasattr(d, "name"), lambda d: hasattr(d, "name")):
        with pytest.raises(weightd.NotFound) as failed:
            use(deferred)
        depths.add(len(failed.traceback))
    assert max(depths) <= 4, depths


def test_deep_copies_are_attachments_of_their_own(weightd):
    publish(weightd, fill=3)
    buffer = weightd.attach("m")
    other, tensor = copy.deepcopy((buffer, buffer["t0"]))
    buffer.close()
    assert bytes(tensor.memoryview()) == bytes([3]) * 64 == bytes(other["t0"].memoryview())
    weightd.drop("m")
    with pytest.raises(weightd.NotFound):  # at once: no pool waits for it
        copy.deepcopy(other)


def test_layouts_can_be_copied_and_pickled(weightd):
    layout = weightd.Layout(alignment=1024)
    assert len(copy.deepcopy(layout)) == 0
    for twin in (copy.copy(layout), pickle.loads(pickle.dumps(layout))):
        twin.add("a", "F32", (3,))
        twin.add("b", "F32", (3,))
        assert twin[1].offset == 1024
        twin = pickle.loads(pickle.dumps(twin))
        twin.tie("c", "a")
        twin.add("d", "U8", (1,), role="buffer", unit="x.0")
        assert copy.copy(twin).hash == twin.hash and twin[3].offset == 2048
    assert len(layout) == 0


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_belongs_to_this_process_says_so_and_the_way_out(weightd, act):
    with weightd.create("m", layout_of(weightd)) as writer, weightd.watch() as watch:
        with pytest.raises(TypeError, match=r"Writer 'm' .*publish\(\), and attach there"):
            act(writer)
        with pytest.raises(TypeError, match=r"watch\(\) there"):
            act(watch)
        if act is not copy.copy:
            with pytest.raises(TypeError, match=r"publish\(\) and attach there"):
                act(writer["t0"])
        with pytest.raises(TypeError, match="connect there"):
            act(writer._memory.connection)
        writer.publish()
    assert weightd.attach("m").version == 1  # nothing was freed with a copy


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_half_made_objects_go_without_a_word(weightd):
    from weightd import _connection, _memory

    for make in (weightd.Layout, weightd.Watch, weightd.Buffer, weightd.Writer, weightd.Tensor,
                 _memory.Memory, _connection.Connection):
        with pytest.raises(TypeError):
            make(1, 2, 3, 4, 5, 6)
    for make in (lambda: weightd.watch(socket="/nothing"), lambda: weightd.wait("m", socket=b"/nothing"),
                 lambda: weightd.Layout(3), lambda: _connection.Connection(5)):
        with pytest.raises((weightd.Disconnected, ValueError, TypeError)):
            make()
    gc.collect()

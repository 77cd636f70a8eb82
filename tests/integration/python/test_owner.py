"""owner=: the user that a buffer must belong to, and the owner of what is attached."""
import pickle

import pytest
from lib.child import run_as
from lib.safetensors_file import pack

MALLORY, ALICE = 12345, 12346


@pytest.fixture
def weightd(make_daemon, require, monkeypatch):
    """The package, and a weightd in which MALLORY was first with the name 'm', and lets everybody read and write."""
    for feature in "root", "library":
        require(feature)
    daemon = make_daemon("--socket-mode", "0666")
    monkeypatch.setenv("WEIGHTD_SOCKET", daemon.socket)
    import weightd
    run_as(MALLORY, publish, weightd, b"evil")
    return weightd


def publish(weightd, data, name="m", files=None, **kw):
    layout = weightd.Layout()
    layout.add("t", "U8", (4096,))
    with weightd.create(name, layout, mode=0o666, **kw) as writer:
        writer.write(0, data * 1024)
        if files:
            writer.files = files
        return writer.publish()


NOT_MINE = f"'m' on host belongs to uid {MALLORY}, not to uid 0; name uid {MALLORY} as its owner"
NOT_AS_DEMANDED = f"'m' on host belongs to uid {MALLORY}, not to uid 0 as demanded"


def test_create_and_load_name_the_owner(weightd, tmp_path):
    file = tmp_path / "m.safetensors"
    file.write_bytes(pack({"t": ("U8", [4096], b"file" * 1024)}))
    for act in (lambda **kw: publish(weightd, b"good", **kw), lambda **kw: weightd.load("m", file, **kw).version):
        before = weightd.ls("m")[0].version
        for owner in None, 0, "root", "0":
            with pytest.raises(weightd.Denied, match=NOT_MINE):
                act(owner=owner)
        assert act(owner=MALLORY) == before + 1 and act(owner=str(MALLORY)) == before + 2
    with weightd.attach("m") as buffer:
        assert bytes(buffer.read(0, 4)) == b"file"
    with pytest.raises(weightd.NotFound, match="there is no buffer 'new' on host of uid"):
        publish(weightd, b"good", "new", owner=MALLORY)


def test_readers_demand_the_owner(weightd, tmp_path):
    reading = [lambda **kw: weightd.attach("m", **kw), lambda **kw: weightd.save("m", tmp_path / "out", **kw),
               lambda **kw: weightd.diff("m", "m", **kw), lambda **kw: weightd.model_dir("m", **kw).close(),
               lambda **kw: weightd.files("m", **kw)]
    for act in reading:
        for owner in 0, "root":
            with pytest.raises(weightd.Denied, match=NOT_AS_DEMANDED):
                act(owner=owner)
        act(owner=MALLORY)
    assert not list(tmp_path.glob("out/.*"))


def test_an_attachment_has_its_owner(weightd):
    with weightd.attach("m") as buffer, weightd.attach("m", owner=MALLORY) as strict:
        assert buffer.owner == strict.owner == MALLORY
        weightd.set_access("m", uid=ALICE)
        publish(weightd, b"next", owner=ALICE)
        assert buffer.owner == MALLORY and buffer.swap() and buffer.owner == ALICE
        for act in strict.swap, strict.refresh:
            with pytest.raises(weightd.Denied, match=f"belongs to uid {ALICE}, not to uid {MALLORY} as demanded"):
                act()
        assert (strict.owner, bytes(strict.read(0, 4))) == (MALLORY, b"evil")


def test_an_owner_is_demanded_where_a_buffer_is_unpickled(weightd):
    """Version 1 of a stranger's buffer that has the same bytes is not the one that was meant."""
    run_as(ALICE, publish, weightd, b"good", "a")
    with weightd.attach("a", owner=ALICE) as strict, weightd.attach("a") as any_:
        pickled = pickle.dumps(strict), pickle.dumps(any_), pickle.dumps(strict.refresh() or strict)
    weightd.drop("a")
    run_as(MALLORY, publish, weightd, b"good", "a")
    for one in pickled[0], pickled[2]:
        with pytest.raises(weightd.Denied, match=f"not to uid {ALICE} as demanded"):
            len(pickle.loads(one))
    assert pickle.loads(pickled[1]).owner == MALLORY


def test_files_and_saves_are_of_the_buffer_that_is_held(weightd, tmp_path):
    """Its name may be a stranger's by now."""
    run_as(ALICE, lambda: publish(weightd, b"good", "a", files={"config.json": b"of alice"}))
    with weightd.attach("a") as buffer:
        weightd.drop("a")
        run_as(MALLORY, lambda: publish(weightd, b"evil", "a", files={"config.json": b"of mallory"}))
        assert bytes(buffer.files["config.json"]) == b"of alice"
        with pytest.raises(weightd.Denied, match=f"not to uid {ALICE} as demanded"):
            weightd.save(buffer, tmp_path / "out")


@pytest.mark.parametrize("wrong, error", [("no-such-user", ValueError), ("", ValueError), (-1, ValueError), (2**32 - 1, ValueError),
                                          ("4294967295", ValueError), (True, TypeError), (1.0, TypeError), (b"root", TypeError)])
def test_an_owner_is_a_name_or_a_uid(weightd, wrong, error):
    with pytest.raises(error, match="user|uid"):
        weightd.attach("m", owner=wrong)

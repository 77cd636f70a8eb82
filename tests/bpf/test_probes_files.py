"""The files that are probed: those with the names of libraries, whichever user owns them."""
import os
import shutil

import pytest
from bpf.probing import CAPABLE, NOBODY, export_of, libraries, rows_in, until
from lib import features
from lib.gpus import FAKE
from lib.tracing import Tracer

pytestmark = pytest.mark.probes


@pytest.fixture
def tracer(tracer):
    features.require("probes")
    return tracer


def copy_of(folder, name="libcuda.so.1"):
    shutil.copy(FAKE / name, folder / f"{name}.new")
    (folder / f"{name}.new").rename(folder / name)
    return {"LD_LIBRARY_PATH": str(folder)}


def test_a_file_that_took_anothers_place_is_another(client, start, folder):
    before = start(env=copy_of(folder))
    until(lambda: export_of(client, before))
    after = start(env=copy_of(folder))
    until(lambda: export_of(client, after))
    assert len(export_of(client, before)) == len(export_of(client, after)) == 1
    rows = rows_in(client, folder)
    assert [(row["path"], row["on"], row["processes"]) for row in rows] == 2 * [(str(folder / "libcuda.so.1"), True, 1)]


def test_a_file_that_is_gone_is_not_probed_and_dropped_at_its_end(start, folder):
    features.require("probes")
    process = start(env=copy_of(folder))
    copy_of(folder)
    with Tracer(probes=True) as tracer:
        client = tracer.client()
        [row] = rows_in(client, folder)
        assert (row["on"], row["functions"], row["processes"]) == (False, 0, 1)
        assert row["why"] == "its path leads to nothing here: it was replaced"
        assert export_of(client, process) == []
        process.close()
        assert rows_in(client, folder) == []


def in_namespace(folder):
    return ["unshare", "-m", "sh", "-c", f'mount --bind "{folder}" "{FAKE}" && exec "$@"', "sh"]


def test_a_copy_in_another_mount_namespace_is_another_file(client, start, folder):
    copy_of(folder)
    here, there = start(), start(prefix=in_namespace(folder))
    until(lambda: export_of(client, there))
    until(lambda: export_of(client, here))
    assert len(export_of(client, there)) == len(export_of(client, here)) == 1
    assert len(rows_in(client, folder)) + len(rows_in(client, FAKE)) == 2


def test_two_capabilities_suffice(start, folder):
    features.require("probes")
    with Tracer(prefix=CAPABLE, uid=NOBODY, probes=True) as tracer:
        client = tracer.client()
        process = start(env=copy_of(folder))
        until(lambda: export_of(client, process))
        hidden = start(prefix=in_namespace(folder))
        found = libraries(client)
        assert found[str(folder / "libcuda.so.1")]["on"]
        assert len(export_of(client, hidden)) == 1, "the mount is of the same file"
        (folder / "elsewhere").mkdir()
        copy_of(folder / "elsewhere")
        elsewhere = start(prefix=in_namespace(folder / "elsewhere"))
        assert export_of(client, elsewhere) == []
        [why] = [row["why"] for row in rows_in(client, FAKE) + rows_in(client, folder) if not row["on"]]
        assert "CAP_SYS_PTRACE" in why or "Permission denied" in why


MAP = """
import mmap
files = []
def map(path):
    f = open(path, "rb")
    files.append((f, mmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)))
"""


def test_no_file_harms_the_tracer(client, start, folder):
    good = (FAKE / "libcuda.so.1").read_bytes()
    bad = {"garbage": os.urandom(8192), "zeros": bytes(8192), "head": good[:4096] + bytes(4096), "cut": good[:len(good) // 2],
           "sections": good[:40] + b"\xff" * 8 + good[48:], "many": good[:60] + b"\xff" * 4 + good[64:],
           "none": (FAKE / "verbs/libibverbs.so.1").read_bytes(),
           "swapped": good.replace(b"cuIpcGetMemHandle\0", b"cuIpcGetMemHandlf\0")}
    process = start(MAP)
    for name, data in bad.items():
        (folder / f"libcuda.so.{name}").write_bytes(data)
        process.do(f"map('{folder}/libcuda.so.{name}')")
    (folder / "libcuda.so.\n\xff").write_bytes(good)
    process.do(f"map({str(folder)!r} + '/libcuda.so.\\n\\xff')")
    found = {name.rpartition(".")[2]: row for name, row in libraries(client, folder).items()}
    assert set(found) == {*bad, "\n\xff"}
    assert {name for name, row in found.items() if row["on"]} == {"swapped", "\n\xff"}
    assert {row["why"].partition(":")[0] for row in found.values() if not row["on"]} == {
        "it is no library", "it has none of the functions that are looked for"}
    process = start()
    until(lambda: export_of(client, process))


def test_who_owns_many_files_leaves_room_for_others(client, start, folder):
    process = start(MAP)
    for i in range(20):
        path = folder / f"libcuda.so.{i}"
        shutil.copy(FAKE / "libcuda.so.1", path)
        os.chown(path, 12345, 12345)
        process.do(f"map('{path}')")
    another = start()
    until(lambda: export_of(client, another))
    assert [row["on"] for row in rows_in(client, folder)] == [True] * 8
    [more] = [row for row in client.ask("doctor") if row["kind"] == "library" and not row["path"]]
    assert (more["processes"], more["on"], more["why"]) == (12, False, "there are more files than are probed at a time")


def test_who_maps_many_holds_up_nobody(client, start, folder):
    """Each costs tens of microseconds: 60000, which anybody may map, held up everybody for a second at each look."""
    process, another = start(MAP), start()
    process.do(f"""
import os
for i in range(500):
    path = "{folder}/libcuda.so.%d" % i
    os.truncate(os.open(path, os.O_CREAT, 0o755) and path, 4096)
    os.chown(path, 12345, 12345)
    map(path)
""")
    def more():
        [row] = [row for row in client.ask("doctor") if row["kind"] == "library" and not row["path"]]
        return row["processes"]
    assert 0 < more() < 200  # others run on this machine, too
    assert 0 < more() < 200, "each look is a new one"
    until(lambda: export_of(client, another))

"""Jobs through the release before there were any, and back: it keeps what it does not know, and ranks keep their memory."""
import mmap
import os
import struct

import pytest
from lib import earlier
from lib.wire import JOBS, Wire, until

from integration.server.test_jobs import PARTS
from integration.server.test_upgrade_images import Scene


@pytest.fixture(scope="module", autouse=True)
def needs_the_earlier_release():
    earlier.require()


@pytest.fixture
def scene(make_daemon, tmp_path):
    return Scene(make_daemon, tmp_path)


def test_jobs_are_kept_by_the_release_before(scene):
    scene.upgrade()
    with Wire(scene.daemon.socket) as w:
        token = w.create_job("train", n_ranks=2)
        rank = w.join("train", token, 0, PARTS, description=b"the model")
        mapping = mmap.mmap(w.part(rank.job, 1), PARTS[1][1])
        os.pwrite(w.part(rank.job), struct.pack("<Q", 5), 0)
        mapping[:5] = b"state"
        row, used = w.job("train"), w.stat().store_used

        scene.downgrade()
        w.hang_up()
        with Wire(scene.daemon.socket) as old:
            assert old.stat().n_quarantined == 1 + len(PARTS) + 1 and old.stat().store_used == used
        mapping[5:10] = b" lives"[1:]

    scene.upgrade()

    with Wire(scene.daemon.socket) as w:
        assert w.job("train")._replace(vacant_ns=0) == row._replace(n_present=0)
        assert w.stat().n_quarantined == 0 and w.stat().store_used == used
        assert w.join("train", token, 0, PARTS, description=b"the model").job == rank.job
        assert os.pread(w.part(rank.job, 1), 10, 0) == mapping[:10] == b"statelives"
        w.remove_job("train")
        assert w.list(JOBS) == []
    mapping.close()
    with Wire(scene.daemon.socket) as w:
        until(lambda: w.stat().slot_bytes == 0, "its memory is free")

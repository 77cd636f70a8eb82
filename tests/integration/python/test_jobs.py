"""Jobs in Python: to make them, list them and remove them."""
import errno
import os
import time

import pytest
from lib.native import Client


def test_a_job_is_made_listed_and_removed(weightd, daemon):
    token = weightd.create_job("train/a", 3, linger=1000.0005)
    assert token.startswith("train/a:") and len(token) == len("train/a:") + 64
    weightd.create_job("another", 1)
    another, job = weightd.jobs()
    assert (another.name, another.n_ranks, another.linger_ms) == ("another", 1, 0)
    assert (job.name, job.n_ranks, job.linger_ms, job.uid, job.gid) == ("train/a", 3, 1_000_001, os.getuid(), os.getgid())
    assert (job.n_bytes, job.step, job.n_present, job.n_done, job.vacant_ns) == (0, 0, 0, 0, 0)
    assert 0 < job.created_ns <= time.time_ns()
    with Client(daemon.socket) as client, client.join(token, 2) as rank:
        os.pwrite(rank.fd(), (17).to_bytes(8, "little"), 0)
        _, job = weightd.jobs()
        assert (job.n_bytes, job.step, job.n_present) == (4096, 17, 1)
    weightd.remove_job("train/a")
    assert [job.name for job in weightd.jobs()] == ["another"]


def test_mistakes_are_typed_and_carry_the_sentence(weightd):
    with pytest.raises(weightd.NotFound, match="'none'"):
        weightd.remove_job("none")
    weightd.create_job("train", 1)
    with pytest.raises(weightd.Error, match="'train'") as e:
        weightd.create_job("train", 1)
    assert e.value.errno == errno.EEXIST
    with pytest.raises(weightd.Error, match="1 to 256 ranks on a machine, not 0") as e:
        weightd.create_job("other", 0)
    assert e.value.errno == errno.EINVAL
    for linger in 0, -1, float("nan"):
        with pytest.raises(ValueError, match="more than 0 seconds"):
            weightd.create_job("other", 1, linger=linger)
    with pytest.raises(ValueError, match="NUL"):
        weightd.create_job("a\0b", 1)

"""Checkpoints of the reference trainer: their bytes, what loads them, and all that may go wrong."""
import json
import os
import random
import shutil
import struct
import subprocess
import time

import pytest
from integration.weightctl.test_save import read_header
from lib import features
from lib.trainer import difference
from lib.wire import until

KILLS = int(os.environ.get("WEIGHTD_KILLS", 0)) // 10 or 5
STEP = "step-{:012}".format


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def tensors(checkpoint, stem):
    """(dtype, shape, bytes) of each tensor in the files of a kind, which their index describes."""
    files = sorted(checkpoint.glob(f"{stem}-*.safetensors"))
    assert [file.name for file in files] == [f"{stem}-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    found = {file.name: read_header(file)[1] for file in files}
    index = json.loads((checkpoint / f"{stem}.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: file for file, contents in found.items() for name in contents}
    return {name: tensor for contents in found.values() for name, tensor in contents.items()}


def saved_in(folder):
    """Names of what is there, which has to be whole."""
    names = sorted(os.listdir(folder))
    for name in names:
        try:
            if not name.startswith("."):
                assert_whole(folder / name)
        except (OSError, AssertionError):
            if (folder / name).exists():  # else a rank that runs removed it meanwhile, as it keeps the newest
                raise
    return names


def assert_whole(checkpoint):
    step = json.loads((checkpoint / "trainer.json").read_text())["step"]
    assert checkpoint.name == STEP(step)
    tensors(checkpoint, "model"), tensors(checkpoint, "optimizer")


def hidden_in(folder):
    return [name for name in os.listdir(folder) if name.startswith(".")] if folder.exists() else []


def saves(job):
    """Lines that its ranks wrote about saves that failed."""
    return [line for rank in range(job.n) for line in (job.folder / f"{rank}.errors").read_text().splitlines()]


def headers_of(checkpoint, *stems):
    """Bytes of a checkpoint's files that are no tensors, of kinds of files."""
    size = sum(file.stat().st_size for file in checkpoint.glob("*.json"))
    for file in checkpoint.glob("*.safetensors"):
        if file.name.startswith(stems):
            with open(file, "rb") as f:
                size += 8 + struct.unpack("<Q", f.read(8))[0]
    return size


def losses_of(job, rank):
    return [line["loss"] for line in job.steps(rank).values()]


@pytest.mark.plain
def test_f_9_a_checkpoint_of_4_ranks_has_all_values_for_3_2_and_1_and_each_reads_its_part(make_job, folder):
    model = {"ballast": 60_000}  # more than headers, so that a rank that reads too much is found
    base = make_job(4, steps=3, save=folder, save_from=3, **model).run()
    assert saved_in(folder) == [STEP(3)] and not saves(base)
    plan = json.loads((folder / STEP(3) / "trainer.json").read_text())["plan"]
    base.daemon.ctl("load", "-q", "saved", folder / STEP(3))  # the model alone, by its index
    flat = base.params()
    for name, (dtype, shape, content) in tensors(folder / STEP(3), "model").items():
        (row,) = (row for row in plan["tensors"] if row["name"] == name)
        assert (dtype, shape) == (row["dtype"], row["shape"])
        if row["role"] == "param":
            assert content == flat[row["offset"]:row["offset"] + row["n_bytes"]], name
    for n in (1, 2, 3, 4):
        job = make_job(n, steps=3, load=folder, **model).run()
        found, wanted = job.bytes(), base.bytes()
        for name in ("0.PARAM", "PARAM", "MOMENTS", "0.state"):
            assert found[name] == wanted[name], f"{name} of {n} ranks"
        for rank, report in enumerate(job.reports()):
            begin, end = report["shard"]
            own = 3 * 4 * (end - begin)  # a parameter and two moments
            rest = headers_of(folder / STEP(3), "model", "optimizer", "rank") + 4096 + sum(
                row["n_bytes"] for row in plan["tensors"] if row["role"] == "buffer")
            assert report["loaded"] <= own + rest, f"rank {rank} of {n}"
            assert n == 1 or own + rest < 3 * len(flat), "no bound"


@pytest.mark.plain
@pytest.mark.parametrize(("saver", "loader"), [({}, {}), ({}, {"strategy": "replicated", "form": "two-phase"}),
                                               ({"strategy": "zero1"}, {"form": "two-phase", "overlap": True})], ids=str)
def test_a_run_that_was_loaded_goes_on_as_the_one_that_saved(make_job, oracle, folder, saver, loader):
    losses, _ = oracle(steps=20)
    base = make_job(3, steps=20, save=folder, save_every=8, keep=1, **saver).run()
    assert saved_in(folder) == [STEP(16)]
    same = make_job(3, steps=20, load=folder, **loader).run()
    assert [losses_of(same, rank) for rank in range(3)] == [losses_of(base, rank)[16:] for rank in range(3)]
    assert same.params() == base.params()
    other = make_job(2, steps=20, load=folder, **loader).run()
    found = [sum(other.steps(rank)[step]["loss"] * other.steps(rank)[step]["samples"] for rank in range(2)) / 12
             for step in range(17, 21)]
    assert difference(found, losses[16:]) <= 2e-6


@pytest.mark.plain
@pytest.mark.parametrize("options", [{}, {"strategy": "replicated"}, {"dtype": "bf16"}, {"strategy": "zero2"}, {"strategy": "zero3"},
                                     {"strategy": "zero3", "dtype": "bf16", "evaluate_every": 3}], ids=str)
def test_a_checkpoint_of_two_nodes_is_that_of_one(make_nodes, make_job, folder, options):
    """Saved by 2 x 2, it continues there with the same bits, and has the same values for other meshes."""
    base = make_nodes(2, 2, steps=20, form="two-phase", save=folder, save_every=8, keep=1, **options).run()
    assert saved_in(folder) == [STEP(16)] and not [line for job in base.jobs for line in saves(job)]
    assert len(list((folder / STEP(16)).glob("rank-*-of-00004.safetensors"))) == 4
    assert make_nodes(2, 2, steps=20, form="two-phase", load=folder, **options).run().digests() == base.digests()
    one = make_job(4, steps=16, form="two-phase", load=folder, **options).run()
    for loaded in make_job(3, steps=16, form="two-phase", load=folder, **options).run().params(), \
            make_nodes(2, 1, steps=16, form="two-phase", load=folder, **options).run().params():
        assert loaded == one.params()
    again = folder.with_name("again")
    make_job(1, steps=16, form="two-phase", load=folder, save=again, save_from=16, **options).run()


# --- Trouble in a save ----------------------------------------------------------------------


@pytest.fixture
def plain(make_job):
    """plain(n): what a job leaves that saves nothing."""
    return lambda n, steps=12: make_job(n, steps=steps).run().digests()


@pytest.mark.timeout(1800)
def test_ranks_that_are_killed_while_they_save_leave_whole_checkpoints_alone(make_job, folder, plain):
    steps, n = 4 * KILLS, 3
    job, choose = make_job(n, steps=steps, save=folder, keep=2, save_wait=True), random.Random(KILLS)
    job.start_all()
    for _ in range(KILLS):
        until(lambda: hidden_in(folder), "a save begins")
        time.sleep(choose.random() * 0.02)  # at any moment of the save: that is the point
        victims = choose.choice([[0], [1], [2], [0, 1, 2]])
        for rank in victims:
            job.ranks[rank].kill()
        saved_in(folder)
        for rank in victims:
            job.start(rank)
    job.finish()
    assert job.digests() == plain(n, steps)
    assert make_job(n, steps=steps, load=folder).run().digests() == job.digests()


def test_a_full_disk_is_reported_and_training_goes_on(make_job, tmp_path, plain):
    features.require("mounts")
    disk = tmp_path / "disk"
    disk.mkdir()
    holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=700k none "$1" && echo && exec sleep 600',
                               "sh", disk], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        job = make_job(2, steps=12, save=disk / "c", save_wait=True)
        job.start_all(prefix=["nsenter", "--mount", f"--target={holder.pid}"])
        job.finish()
        names = sorted(os.listdir(f"/proc/{holder.pid}/root{disk}/c"))
        assert 0 < len(names) < 12 and names == [STEP(step) for step in range(1, len(names) + 1)]
        full = [line for line in saves(job) if "the disk is full" in line]
        assert len(full) == len(saves(job)) == 2 * (12 - len(names)), saves(job)[:3]  # on both ranks
        assert job.digests() == plain(2)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_folders_that_cannot_be_written_are_named(make_job, tmp_path, plain):
    (tmp_path / "file").write_text("x")
    digests = plain(2)
    for path, sentence in ((tmp_path / "file", "Not a directory"), (tmp_path / "no/folder", "No such file"),
                           ("/sys/weightd", "")):
        job = make_job(2, steps=12, save=path, save_from=11).run()
        assert len(saves(job)) == 4 and job.digests() == digests
        assert all(f"cannot save to '{path}'" in line and sentence in line for line in saves(job)), "\n".join(saves(job))


def test_two_jobs_save_the_same_steps_into_one_folder(make_job, folder):
    jobs = [make_job(2, steps=6, save=folder, save_wait=True) for _ in range(2)]
    for job in jobs:
        job.start_all()
    for job in jobs:
        job.finish()
        assert saves(job) == []
    assert saved_in(folder) == [STEP(step) for step in range(1, 7)]


def test_a_folder_that_is_removed_fails_saves_and_no_step(make_job, folder, plain):
    job = make_job(2, steps=8, save=folder, save_wait=True)
    job.start_all()
    while job.ranks[0].proc.poll() is None:
        shutil.rmtree(folder, ignore_errors=True)
    job.finish()
    assert saves(job) and all("cannot save to" in line for line in saves(job)), saves(job)[:3]
    assert job.digests() == plain(2, 8)
    shutil.rmtree(folder, ignore_errors=True)  # a checkpoint that was removed in part is complete no more
    make_job(2, steps=1, save=folder).run()
    assert saved_in(folder) == [STEP(1)]


@pytest.mark.parametrize("saver", [0, 1])
def test_a_save_that_one_rank_alone_calls_ends_with_the_others_next_step(make_job, folder, plain, saver):
    job = make_job(2, steps=12)
    job.start(saver, save=folder, save_every=6, save_wait=True)
    job.start(1 - saver)
    job.finish()
    first, last = saves(job)
    assert f"rank {1 - saver} took step 7 without saving step 6" in first
    assert f"rank {1 - saver}" in last and "died and did not" in last  # it has left
    assert not folder.exists() or os.listdir(folder) == []
    assert job.digests() == plain(2)


def test_a_rank_that_dies_in_a_save_ends_it_for_the_others(make_job, folder, plain):
    job = make_job(2, steps=12, save=folder, save_from=10, save_wait=True)
    job.start(0), job.start(1, hold_save=11)
    assert job.ranks[1].held() == 11
    until(lambda: hidden_in(folder), "rank 0 makes its folder")
    job.ranks[1].kill()
    until(lambda: saves(job), "rank 0 ends the save")
    (line,) = saves(job)
    assert line.startswith("train: rank 0: save: rank 1 ") and "died and did not write its part of the checkpoint of step 11" in line
    assert saved_in(folder) == [STEP(10)]
    job.start(1)
    assert job.finish().digests() == plain(2)
    assert saved_in(folder) == [STEP(10), STEP(12)]


def test_a_save_whose_rank_0_dies_leaves_nothing_that_the_next_does_not_remove(make_job, folder, plain):
    job = make_job(2, steps=12, save=folder, save_from=10, save_wait=True)
    job.start(0), job.start(1, hold_save=11)
    assert job.ranks[1].held() == 11
    until(lambda: hidden_in(folder), "rank 0 makes its folder")
    job.ranks[0].kill()
    job.ranks[1].go_on()
    until(lambda: saves(job), "rank 1 ends the save")
    (line,) = saves(job)
    assert line.startswith("train: rank 1: save: rank 0 ") and "died and did not complete the checkpoint of step 11" in line
    assert [name for name in saved_in(folder) if not name.startswith(".")] == [STEP(10)]
    job.start(0)
    assert job.finish().digests() == plain(2)
    assert saved_in(folder) == [STEP(10), STEP(12)]


@pytest.mark.parametrize("strategy", ["shared", "zero3"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_of_another_node_that_dies_before_its_part_of_a_save_ends_it_at_once(make_nodes, folder, victim, strategy):
    """The other one waits for the save, and not in a step, in which it would notice by itself."""
    options = {"steps": 12, "strategy": strategy, "save": folder, "save_from": 10, "save_wait": True, "deadline": -1}
    job = make_nodes(2, 1, **options)
    job.start(1 - victim), job.start(victim, hold_save=11)
    assert job.jobs[victim].ranks[0].held() == 11
    job.jobs[victim].ranks[0].kill()
    until(lambda: saves(job.jobs[1 - victim]), "the other rank ends the save")
    (line,) = saves(job.jobs[1 - victim])
    assert line.endswith("rank 0 of another node was lost before it took part in the save of step 11; save again"), line
    job.start(victim)
    job.finish()
    assert saved_in(folder) == [STEP(10), STEP(12)]


# --- Trouble in a load ----------------------------------------------------------------------


def changed(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def cut(path, size=-1):
    content = path.read_bytes()
    path.write_bytes(content[:size])


MODEL_1, TRAINER = "model-00001-of-00002.safetensors", "trainer.json"
INDEX, OPTIMIZER = "model.safetensors.index.json", "optimizer.safetensors.index.json"
DAMAGES = {
    "trainer.json is cut": (lambda c: cut(c / TRAINER), TRAINER),
    "trainer.json is empty": (lambda c: cut(c / TRAINER, 0), TRAINER),
    "no step": (lambda c: changed(c / TRAINER, lambda o: o.pop("step")), "'step'"),
    "a step below 0": (lambda c: changed(c / TRAINER, lambda o: o.update(step=-1)), "'step'"),
    "more skipped than taken": (lambda c: changed(c / TRAINER, lambda o: o.update(n_skipped=9)), "'n_skipped'"),
    "no ranks": (lambda c: changed(c / TRAINER, lambda o: o.update(n_ranks=0)), "'n_ranks'"),
    "trainer.json is a pipe": (lambda c: ((c / TRAINER).unlink(), os.mkfifo(c / TRAINER)), TRAINER),
    "another format": (lambda c: changed(c / TRAINER, lambda o: o.update(format="x")), "'format'"),
    "a newer version": (lambda c: changed(c / TRAINER, lambda o: o.update(version=2)), "version 2"),
    "no index": (lambda c: (c / INDEX).unlink(), INDEX),
    "an index that leads away": (
        lambda c: changed(c / INDEX, lambda o: o["weight_map"].update({"ballast.weight": f"../{STEP(4)}/{MODEL_1}"})), INDEX),
    "an index that lacks a tensor": (lambda c: changed(c / INDEX, lambda o: o["weight_map"].popitem()), "the checkpoint lacks"),
    "an index with another tensor": (
        lambda c: changed(c / INDEX, lambda o: o["weight_map"].update(more=MODEL_1)), "has 'more', which the plan lacks"),
    "no state of a tensor": (
        lambda c: changed(c / OPTIMIZER, lambda o: o["weight_map"].pop("ballast.weight.exp_avg")), "'ballast.weight.exp_avg'"),
    "a file is gone": (lambda c: (c / MODEL_1).unlink(), MODEL_1),
    "a file is cut": (lambda c: cut(c / MODEL_1), MODEL_1),
    "a file is empty": (lambda c: cut(c / MODEL_1, 0), MODEL_1),
    "a file has another header": (lambda c: (c / MODEL_1).write_bytes(b"{" * 5000), MODEL_1),
    "a file is a pipe": (lambda c: ((c / MODEL_1).unlink(), os.mkfifo(c / MODEL_1)), MODEL_1),
    "the wrong file": (lambda c: shutil.copy(c / "rank-00001-of-00002.safetensors", c / MODEL_1), MODEL_1),
    "a rank's file is gone": (lambda c: (c / "rank-00001-of-00002.safetensors").unlink(), "rank-00001-of-00002"),
}


@pytest.fixture
def checkpoint(make_job, folder):
    make_job(2, steps=4, save=folder, save_from=4, ballast=300).run()
    return folder / STEP(4)


def refused(job, rank=0, **options):
    """The sentence of a rank that cannot load."""
    errors = job.folder / f"{rank}.errors"
    errors.write_text("")
    status, text = job.start(rank, **options).wait()
    assert status == 1 and "weightd_train_load" in text, (status, text)
    return text


def test_a_damaged_checkpoint_is_refused_by_the_name_of_its_file(make_job, checkpoint, tmp_path):
    job = make_job(1, steps=4, ballast=300)
    for number, (what, (damage, name)) in enumerate(DAMAGES.items()):
        copy = tmp_path / f"damaged-{number}"
        shutil.copytree(checkpoint, copy)
        damage(copy)
        assert name in refused(job, load=copy), what
    job.run(load=checkpoint)
    assert job.report(0)["step"] == 4


def test_a_checkpoint_of_another_model_or_optimizer_is_refused_with_the_difference(make_job, checkpoint, tmp_path):
    for options, sentence in (({"ballast": 301}, "'ballast.weight' has another shape"),
                              ({}, "the checkpoint has 'ballast.weight', which the plan lacks"),
                              ({"ballast": 300, "unused_layer": True}, "which the checkpoint lacks"),
                              ({"ballast": 300, "optimizer": "sgd"}, "the checkpoint has the state of 'adamw'"),
                              ({"ballast": 300, "state_size": 8}, "raise state_size")):
        found = refused(make_job(1, steps=4, **options), load=checkpoint)
        assert sentence in found, found
    job = make_job(1, steps=4, ballast=300)
    (tmp_path / "empty").mkdir()
    for path, sentence in ((tmp_path / "empty", "has no checkpoint"), (tmp_path / "nothing", "No such file"),
                           (checkpoint / TRAINER, "Not a directory")):
        assert sentence in refused(job, load=path)


def test_ranks_that_load_different_steps_are_told_apart(make_job, folder):
    make_job(2, steps=4, save=folder, save_wait=True).run()
    job = make_job(2, steps=4)
    ranks = [job.start(rank, load=folder / STEP(4 - rank)) for rank in range(2)]
    status, text = ranks[0].wait()
    assert status == 1 and "rank 1 loaded the checkpoint of step 3, and rank 0 that of step 4" in text


def test_the_newest_checkpoints_are_kept(make_job, folder):
    make_job(1, steps=7, save=folder, save_every=2, keep=2, save_wait=True).run()
    (folder / "step-1").mkdir()
    (folder / STEP(99)).mkdir()  # neither is one
    make_job(1, steps=3, save=folder, keep=2, save_wait=True).run()
    assert sorted(os.listdir(folder)) == [STEP(2), STEP(3), STEP(99), "step-1"]

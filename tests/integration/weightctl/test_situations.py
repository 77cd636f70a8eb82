"""
Situations in which weightctl and the package must be right, of the kinds of fault that shared models and their readers
meet. Each began as the name of a kind alone; those that other files have already are not repeated here.
"""
import os
import pickle

import pytest
from integration.load.test_load import buffers, check_bytes, check_refused, u8, write_index, write_model
from integration.weightctl.test_weightctl import in_terminal
from lib.child import run_as
from lib.python_package import publish

USER, GROUP = 12345, 23456


# --- Files and directories ---------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_stages_whose_shared_tensor_drifted_apart_are_refused_in_either_order(daemon, tmp_path, order):
    paths = [tmp_path / f"stage{i}.safetensors" for i in order]
    for i, path in zip(order, paths):
        write_model(path, {f"layers.{i}.w": u8(b"w"), "shared.norm.weight": u8(bytes([i]))})
    done = daemon.ctl("load", "m", *paths, check=False)
    check_refused(done, "'shared.norm.weight'", "/stage0.safetensors'", "/stage1.safetensors'")
    assert buffers(daemon) == []


def test_a_shard_of_another_save_is_left_out_by_an_index_and_named_without_one(daemon, tmp_path):
    shards = {name: f"model-0000{i}-of-00002.safetensors" for i, name in enumerate("ab", 1)}
    for name, shard in shards.items():
        write_model(tmp_path / shard, {name: u8(b"new")})
    write_index(tmp_path / "model.safetensors.index.json", shards)
    write_model(tmp_path / "model-00003-of-00003.safetensors", {"stale": u8(b"old")})
    assert "left out 'model-00003-of-00003.safetensors'\n" in daemon.ctl("load", "m", tmp_path).stderr
    check_bytes(daemon, "m", {"a": u8(b"new"), "b": u8(b"new")})
    (tmp_path / "model.safetensors.index.json").unlink()
    check_refused(daemon.ctl("load", "n", tmp_path, check=False), "'model-00003-of-00003.safetensors'")
    assert [buffer["name"] for buffer in buffers(daemon)] == ["m"]


def test_a_snapshot_of_links_is_loaded_without_what_other_programs_left_beside_it(daemon, tmp_path):
    snapshot = tmp_path / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    write_model(tmp_path / "blobs/4d7a214614ab", {"a": u8(b"model")})
    (snapshot / "model.safetensors").symlink_to("../../blobs/4d7a214614ab")
    (snapshot / "._model.safetensors").write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        ".ljust(163, b"\0"))
    (snapshot / "model.safetensors.incomplete").write_bytes(bytes(100))
    (tmp_path / "latest").symlink_to("snapshots/abc")
    daemon.ctl("load", "m", tmp_path / "latest")
    check_bytes(daemon, "m", {"a": u8(b"model")})


def test_checkpoints_of_a_trainer_are_refused_together_and_loaded_by_path(daemon, tmp_path):
    for step in 100, 200:
        write_model(tmp_path / f"checkpoint-{step}.safetensors", {f"of.{step}": u8(b"step")})
    done = daemon.ctl("load", "m", tmp_path, check=False)
    check_refused(done, "'checkpoint-100.safetensors', 'checkpoint-200.safetensors'", "name one of them")
    daemon.ctl("load", "m", tmp_path / "checkpoint-200.safetensors")
    check_bytes(daemon, "m", {"of.200": u8(b"step")})


MODEL = "diffusion_pytorch_model"


@pytest.mark.parametrize("index", [f"{MODEL}.safetensors.index.fp16.json", f"{MODEL}.safetensors.fp16.index.json",
                                   f"{MODEL}.fp16.safetensors.index.json"])
def test_an_index_of_a_variant_is_loaded_by_path_and_by_directory(daemon, tmp_path, index):
    shards = [f"{MODEL}.fp16-0000{i}-of-00002.safetensors" for i in (1, 2)]
    tensors = {name: u8(name.encode()) for name in "ab"}
    for shard, name in zip(shards, tensors):
        write_model(tmp_path / shard, {name: tensors[name]})
    write_index(tmp_path / index, dict(zip(tensors, shards)))
    write_model(tmp_path / f"{MODEL}.non_ema.safetensors", {"ema": u8(b"other")})
    for path in tmp_path / index, tmp_path:
        daemon.ctl("load", "m", path)
        check_bytes(daemon, "m", tensors)


def test_an_index_has_its_files_in_a_folder_below_whatever_the_working_directory(daemon, tmp_path):
    (tmp_path / "repo/transformer").mkdir(parents=True)
    write_model(tmp_path / "repo/transformer/x.safetensors", {"a": u8(b"below")})
    write_index(tmp_path / "repo/model.safetensors.index.json", {"a": "transformer/x.safetensors"})
    for path in "repo/model.safetensors.index.json", "repo":
        daemon.ctl("load", "m", path, cwd=tmp_path)
        check_bytes(daemon, "m", {"a": u8(b"below")})


def test_shards_that_git_lfs_did_not_fetch_are_named_with_the_way_out(daemon, tmp_path):
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for shard in shards:
        (tmp_path / shard).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n")
    write_index(tmp_path / "model.safetensors.index.json", dict(zip("ab", shards)))
    check_refused(daemon.ctl("load", "m", tmp_path, check=False), f"/{shards[0]}' cannot be loaded", "git lfs pull")
    assert buffers(daemon) == []


# --- Other processes and users -----------------------------------------------------------------------


def test_a_handle_whose_version_is_gone_fails_at_its_first_use(weightd):
    publish(weightd, fill=1)
    buffer = weightd.attach("m")
    sent = pickle.dumps(buffer)
    publish(weightd, fill=2)
    with pickle.loads(sent) as there:
        assert there.version == 1 and bytes(there["t0"].memoryview()) == bytes([1]) * 64
    buffer.close()
    publish(weightd, fill=3)
    late = pickle.loads(sent)
    with pytest.raises(weightd.NotFound, match="'m' on host has no version 1"):
        late["t0"]


def test_the_package_names_the_group_of_a_socket_to_a_user_outside_it(weightd, daemon, require):
    require("root")
    os.chown(daemon.socket, 0, GROUP)
    with pytest.raises(weightd.Denied, match=rf"{daemon.socket}: it is for the group '{GROUP}'; become a member"):
        run_as(USER, weightd.attach, "m")


# --- Terminals and mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_names_that_differ_at_their_end_are_whole_in_records(daemon, tmp_path, locale):
    names = [f"model.vision_tower.vision_model.encoder.layers.10.self_attn.{x}_proj.weight" for x in "qk"] + ["norm.w"]
    write_model(tmp_path / "m.safetensors", {name: u8(b"x") for name in names})
    daemon.ctl("load", "m", tmp_path / "m.safetensors")
    status, text = in_terminal(daemon, "tensors", "m", columns=40, locale=locale)
    assert status == 0 and text.isascii()
    assert [line.split()[1] for line in text.splitlines() if line.startswith("NAME ")] == names
    piped = daemon.ctl("tensors", "m", "-n", "-o", "NAME", env={"COLUMNS": "40", "LC_ALL": locale}).stdout
    assert piped.split() == names


def test_a_name_that_was_cut_in_ls_removes_nothing(daemon, tmp_path):
    write_model(tmp_path / "m.safetensors", {"a": u8(b"x")})
    names = [*(f"qwen3-235b-a22b-instruct-2507-fp8-block-{x}" for x in "ab"), "m", "x" * 40]
    for name in names:
        daemon.ctl("load", name, tmp_path / "m.safetensors")
    shown = in_terminal(daemon, "ls", "--noheadings", "-o", "NAME", columns=40)[1].split()
    assert sorted(name for name in shown if name[-1] != "\u2026") == ["m", "x" * 40]
    cut = [name for name in shown if name[-1] == "\u2026"]
    assert len(cut) == 2 and {len(name) for name in cut} == {40}
    done = daemon.ctl("rm", cut[0], check=False)
    assert done.returncode == 1 and cut[0][:39] in done.stderr
    assert sorted(buffer["name"] for buffer in buffers(daemon)) == sorted(names)
    assert in_terminal(daemon, "ls", "--noheadings", "-o", "NAME", columns=100)[1].split() == sorted(names)


def test_near_misses_of_verbs_are_suggested_and_of_options_refused(daemon):
    for words, meant in (("laod", "load"), ("tensor", "tensors"), ("delete m", "rm"), ("sync psuh", "push"),
                         ("trace doctr", "doctor")):
        done = daemon.ctl(*words.split(), check=False)
        assert (done.returncode, done.stdout) == (2, "") and f"; is it '{meant}'?\n" in done.stderr, done.stderr
    for words in "ls --jsno", "load --exclusiv-e a b":
        done = daemon.ctl(*words.split(), check=False)
        assert (done.returncode, done.stdout) == (2, "") and f"'{words.split()[1]}'" in done.stderr, done.stderr
        assert "is it" not in done.stderr

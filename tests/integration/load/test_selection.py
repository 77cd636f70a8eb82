"""Loads of a part of a checkpoint."""
import json

import pytest
from integration.load.test_load import check_bytes, u8, write_index, write_model


def attributes(daemon, name):
    return json.loads(daemon.ctl("files", name, "--json").stdout)["attributes"]


def model(layers=3):
    names = [f"model.layers.{i}.{part}.weight" for i in range(layers) for part in ("self_attn.q_proj", "mlp.up_proj", "norm")]
    return {name: u8(bytes([i + 1]) * (257 * i + 3)) for i, name in enumerate(["model.embed_tokens.weight", *names, "lm_head.weight"])}


def only(tensors, condition):
    return {name: tensor for name, tensor in tensors.items() if condition(name)}


@pytest.fixture
def checkpoint(tmp_path):
    tensors = model()
    write_model(tmp_path / "model.safetensors", tensors)
    return tmp_path / "model.safetensors", tensors


@pytest.mark.parametrize("options, condition", [
    (["--include", "*.q_proj.*"], lambda name: "q_proj" in name),
    (["--include", "*.q_proj.*", "--include", "lm_head.weight"], lambda name: "q_proj" in name or name == "lm_head.weight"),
    (["--exclude", "*.layers.[1-9].*"], lambda name: ".layers.1" not in name and ".layers.2" not in name),
    (["--exclude", "*.norm.*", "--include", "*.layers.*"], lambda name: "layers" in name and "norm" not in name),
    (["--include", "*.layers.*", "--exclude", "*.norm.*"], lambda name: "layers" in name and "norm" not in name),
])
def test_patterns_select_tensors(daemon, checkpoint, options, condition):
    path, tensors = checkpoint
    daemon.ctl("load", "m", str(path), *options)
    check_bytes(daemon, "m", only(tensors, condition))


def test_a_selection_of_all_is_the_file(daemon, checkpoint):
    path, tensors = checkpoint
    daemon.ctl("load", "m", str(path), "--include", "*")
    check_bytes(daemon, "m", tensors)
    daemon.ctl("load", "whole", str(path))
    digests = [json.loads(daemon.ctl("show", name, "--json").stdout)["versions"][-1]["digest"] for name in ("m", "whole")]
    assert digests[0] == digests[1]


def test_an_index_and_several_files(daemon, tmp_path):
    tensors = model()
    names = list(tensors)
    shards = {f"model-0000{i + 1}-of-00003.safetensors": names[i::3] for i in range(3)}
    for file, part in shards.items():
        write_model(tmp_path / file, {name: tensors[name] for name in part})
    write_index(tmp_path / "model.safetensors.index.json", {name: file for file, part in shards.items() for name in part})
    daemon.ctl("load", "m", str(tmp_path), "--include", "model.layers.1.*")
    check_bytes(daemon, "m", only(tensors, lambda name: ".1." in name), in_order=False)


def test_a_tied_name_gets_the_bytes_of_a_tensor_left_out(daemon, tmp_path, weightd, numpy):
    layout = weightd.Layout()
    layout.add("embed.weight", "U8", [300])
    layout.add("norm.weight", "U8", [3])
    layout.tie("lm_head.weight", "embed.weight")
    with weightd.create("source", layout) as writer:
        writer["embed.weight"].numpy()[:] = numpy.arange(300, dtype=numpy.uint8)
        writer["norm.weight"].numpy()[:] = 7
        writer.publish()
    daemon.ctl("save", "source", str(tmp_path / "saved"))
    embedding = bytes(i % 256 for i in range(300))
    daemon.ctl("load", "head", str(tmp_path / "saved"), "--exclude", "embed.*")
    check_bytes(daemon, "head", {"norm.weight": u8(b"\7\7\7"), "lm_head.weight": u8(embedding)}, in_order=False)
    daemon.ctl("load", "both", str(tmp_path / "saved"), "--include", "*e*d*")
    tied = {t["name"]: t for t in json.loads(daemon.ctl("tensors", "both", "--json").stdout)["tensors"]}
    assert tied.keys() == {"embed.weight", "lm_head.weight"} and tied["lm_head.weight"]["tied"] == tied["embed.weight"]["index"]


@pytest.mark.parametrize("options, words", [
    (["--include", "*.q_porj.*"], ["'*.q_porj.*' of --include", "is 'model.layers.0.self_attn.q_proj.weight' meant?"]),
    (["--exclude", "lm_heads.weight"], ["'lm_heads.weight' of --exclude", "is 'lm_head.weight' meant?"]),
    (["--include", "transformer.wte"], ["'transformer.wte' of --include", "the first one is 'model.embed_tokens.weight'"]),
    (["--include", "lm_head.*", "--exclude", "lm*"], ["leave no tensor"]),
    (["--include", ""], ["'' of --include"]),
])
def test_a_wrong_pattern_is_an_error(daemon, checkpoint, options, words):
    refused = daemon.ctl("load", "m", str(checkpoint[0]), *options, check=False)
    assert refused.returncode == 1 and all(word in refused.stderr for word in words), refused.stderr
    assert daemon.ctl("show", "m", check=False).returncode == 1


def test_a_version_has_its_patterns_until_the_next_load(daemon, checkpoint):
    path, tensors = checkpoint
    daemon.ctl("load", "m", str(path), "--include", "*.q_proj.*", "--include", "lm*", "--exclude", "*.2.*")
    found = attributes(daemon, "m")
    assert (found["include"], found["exclude"]) == ("*.q_proj.* lm*", "*.2.*")
    daemon.ctl("load", "--new-layout", "m", str(path), "--exclude", "lm*")
    assert "include" not in (found := attributes(daemon, "m")) and found["exclude"] == "lm*"
    daemon.ctl("load", "--replace", "--new-layout", "m", str(path))
    assert not {"include", "exclude"} & attributes(daemon, "m").keys()
    check_bytes(daemon, "m", tensors)


def test_patterns_do_not_outlive_a_load_into_the_same_layout(daemon, checkpoint, tmp_path):
    path, tensors = checkpoint
    left = only(tensors, lambda name: "q_proj" in name)
    write_model(tmp_path / "left.safetensors", left)
    daemon.ctl("load", "m", str(path), "--include", "*.q_proj.*")
    daemon.ctl("load", "m", str(tmp_path / "left.safetensors"))
    assert "include" not in attributes(daemon, "m")


def test_other_tensors_need_a_new_layout(daemon, checkpoint):
    daemon.ctl("load", "m", str(checkpoint[0]))
    refused = daemon.ctl("load", "m", str(checkpoint[0]), "--exclude", "lm*", check=False)
    assert refused.returncode == 1 and "lm_head.weight" in refused.stderr, refused.stderr


def test_if_needed_compares_the_part(daemon, checkpoint):
    path = str(checkpoint[0])

    def version(*options):
        return json.loads(daemon.ctl("load", "--json", "-q", "--if-needed", "--new-layout", "m", path, *options).stdout)["version"]
    assert version("--include", "*.q_proj.*") == 1
    assert version("--include", "*.q_proj.*") == 1
    assert version("--include", "*.q_proj.weight") == 2, "the same tensors by other words"
    assert version() == 3
    assert version() == 3
    assert version("--exclude", "lm*") == 4


def test_python(daemon, checkpoint, weightd):
    path, tensors = checkpoint
    weightd.load("m", path, include="*.layers.*", exclude=["*.q_proj.*", "*.2.*"])
    check_bytes(daemon, "m", only(tensors, lambda name: "layers" in name and "q_proj" not in name and ".2." not in name))
    with pytest.raises(weightd.Error, match="norms"):
        weightd.load("m", path, include=["*.norms.*"])

"""Files beside the weights of a directory: what a load takes along, leaves out and refuses."""
import json
import os
import struct

import pytest
from lib import gguf
from lib.fake_server import FakeServer, later
from lib.wire import IMAGES, Wire

MIB = 1 << 20
CONFIG = {"architectures": ["LlamaForCausalLM"], "transformers_version": "5.24.0",
          "quantization_config": {"quant_method": "fp8"}}


def write_weights(path, value=1, dtype="F32"):
    data = bytes([value]) * 16
    text = json.dumps({"w": {"dtype": dtype, "shape": [4 if dtype == "F32" else 8], "data_offsets": [0, 16]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write_files(folder, *names, **texts):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text of {name}")
    for name, text in texts.items():
        (folder / name.replace("_json", ".json")).write_text(text)


@pytest.fixture
def model(tmp_path):
    """A directory with weights and a configuration."""
    folder = tmp_path / "model"
    write_weights(folder / "model.safetensors")
    write_files(folder, config_json=json.dumps(CONFIG))
    return folder


def found(daemon, name="m"):
    """(paths, attributes) of a version."""
    listed = json.loads(daemon.ctl("files", name, "--json").stdout)
    return [file["path"] for file in listed["files"]], listed["attributes"]


def refused(daemon, *args):
    done = daemon.ctl("load", *args, check=False)
    assert done.returncode == 1 and done.stdout == "", (done.stdout, done.stderr)
    assert daemon.ctl("ls", "--noheadings", check=False).stdout == ""
    return done.stderr


TAKEN = ["README.md", "LICENSE", "added_tokens.json", "additional_chat_templates/rag.jinja", "chat_template.jinja",
         "config.json", "generation_config.json", "merges.txt", "modeling_x.py", "source.spm", "tokenizer.json",
         "tokenizer.model", "tokenizer/deep/vocab.txt", "1_Pooling/config.json", "bpe.codes", "qwen.tiktoken"]
LEFT = ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.fp16.safetensors", "model.safetensors.index.json",
        "model.safetensors.index.fp16.json", "training_args.bin", "trainer_state.json", "optimizer.pt", "flax_model.msgpack",
        "tf_model.h5", "model.onnx", "model.gguf", ".gitattributes", ".cache/huggingface/download/config.json",
        "original/params.json", "original/consolidated.00.pth", "onnx/model.onnx", "onnx/config.json", "loss.png",
        "checkpoint-5/model.safetensors", "checkpoint-5/tokenizer.json", "runs/events.out.tfevents.1"]


def test_directory_is_loaded_with_its_small_files_and_not_with_other_weights(daemon, model):
    write_files(model, *(set(TAKEN) - {"config.json"}), *LEFT)
    (model / "model.safetensors.index.json").unlink()
    daemon.ctl("load", "m", str(model))
    paths, _ = found(daemon)
    assert paths == sorted(TAKEN)
    for path in paths:
        assert daemon.ctl("cat", "m", "--file", path, text=False).stdout == (model / path).read_bytes(), path


def test_configuration_and_tensors_become_attributes(daemon, model):
    daemon.ctl("load", "m", str(model), "--attribute", "tp_rank=0", "--attribute", "note=a=b")
    assert found(daemon)[1] == {
        "architecture": "LlamaForCausalLM", "dtype": "F32", "quantization": "fp8", "producer": "transformers 5.24.0",
        "weights": "model.safetensors", "weightd": daemon.ctl("--version").stdout.split()[-1], "tp_rank": "0", "note": "a=b"}
    shown = daemon.ctl("show", "m").stdout
    assert "architecture  LlamaForCausalLM\n" in shown and "tp_rank       0\n" in shown
    assert json.loads(daemon.ctl("show", "m", "--json").stdout)["attributes"]["dtype"] == "F32"


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"architectures": "x"}', '{"architectures": [1]}',
                                    '{"architectures": ["' + "x" * 5000 + '"]}', '{"quantization_config": 7}', "\0", "{" * 9999])
def test_configuration_may_hold_anything(daemon, model, config):
    (model / "config.json").write_text(config)
    daemon.ctl("load", "m", str(model))
    paths, attributes = found(daemon)
    assert paths == ["config.json"] and set(attributes) == {"dtype", "weights", "weightd"}
    assert daemon.ctl("cat", "m", "--file", "config.json").stdout == config


def test_no_files_loads_the_weights_and_their_attributes_alone(daemon, model):
    write_files(model, "tokenizer.json")
    daemon.ctl("load", "m", str(model), "--no-files", "--attribute", "producer=me")
    paths, attributes = found(daemon)
    assert paths == []
    assert (attributes["architecture"], attributes["producer"]) == ("LlamaForCausalLM", "me")


def test_files_that_are_too_large_are_refused_by_the_largest_and_leave_nothing(daemon, model):
    for name, size in (("a.txt", 2 * MIB), ("tokenizer.json", 62 * MIB), ("b.txt", MIB)):
        (model / name).touch()
        os.truncate(model / name, size)
    said = refused(daemon, "m", str(model))
    assert "the largest is 'tokenizer.json' with 65011712" in said and "--no-files" in said
    daemon.ctl("load", "m", str(model), "--no-files")
    os.truncate(model / "a.txt", MIB - (model / "config.json").stat().st_size)
    daemon.ctl("load", "m", str(model))
    assert found(daemon)[0] == ["a.txt", "b.txt", "config.json", "tokenizer.json"]


def test_links_are_followed_within_the_directory_only(daemon, model, tmp_path):
    (tmp_path / "secret.json").write_text("secret")
    write_files(model, "real/vocab.txt")
    links = {"vocab.txt": "real/vocab.txt", "real/up.json": "../config.json", "out.json": "../secret.json",
             "absolute.json": str(tmp_path / "secret.json"), "real/out.json": "../../secret.json",
             "self.json": "self.json", "nowhere.json": "none", "round.json": "../model/config.json",
             "proc.json": "/proc/self/environ", "folder": "real", "blobs.json": "../blobs/x"}
    for name, target in links.items():
        (model / name).symlink_to(target)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/x").write_text("secret")
    done = daemon.ctl("load", "m", str(model))
    assert found(daemon)[0] == ["config.json", "real/up.json", "real/vocab.txt", "vocab.txt"]
    assert "left out" in done.stderr and " and 7 more" in done.stderr
    assert daemon.ctl("cat", "m", "--file", "real/up.json").stdout == json.dumps(CONFIG)


def test_links_of_a_hugging_face_snapshot_lead_to_its_blobs_only(daemon, tmp_path):
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots/0123abcd"
    write_weights(repository / "blobs/weights")
    (repository / "blobs/config").write_text(json.dumps(CONFIG))
    (repository / "blobs/link").symlink_to("../../secret")
    (repository / "refs").write_text("other")
    (tmp_path / "secret").write_text("secret")
    (snapshot / "1_Pooling").mkdir(parents=True)
    for name, target in {"model.safetensors": "../../blobs/weights", "config.json": "../../blobs/config",
                         "1_Pooling/config.json": "../../../blobs/config", "link.json": "../../blobs/link",
                         "refs.json": "../../refs", "up.json": "../../blobs/../refs", "secret.json": "../../../secret",
                         "1_Pooling/short.json": "../../blobs/config"}.items():
        (snapshot / name).symlink_to(target)
    done = daemon.ctl("load", "m", str(snapshot))
    assert found(daemon)[0] == ["1_Pooling/config.json", "config.json"]
    assert " and 4 more" in done.stderr
    (tmp_path / "current").symlink_to(snapshot)
    daemon.ctl("load", "m", str(tmp_path / "current"))
    assert found(daemon)[0] == ["1_Pooling/config.json", "config.json"]


def test_load_of_a_file_keeps_the_files_of_the_newest_version(daemon, model, tmp_path):
    other = write_weights(tmp_path / "finetuned.safetensors", value=2)
    daemon.ctl("load", "m", str(model), "--attribute", "stage=base")
    daemon.ctl("load", "m", str(other), "--attribute", "stage=tuned")
    paths, attributes = found(daemon)
    assert paths == ["config.json"]
    assert (attributes["stage"], attributes["architecture"]) == ("tuned", "LlamaForCausalLM")
    assert found(daemon, "m@1")[1]["stage"] == "base"


def test_load_of_a_file_leaves_files_out_that_cannot_be_read(daemon, tmp_path):
    other = write_weights(tmp_path / "w.safetensors")
    daemon.ctl("load", "m", str(other))
    with Wire(daemon.socket, features=IMAGES) as writer:
        lease = writer.attach("m")
        slot = writer.create("m", os.pread(lease.layout_fd, os.fstat(lease.layout_fd).st_size, 0))
        writer.set_files(slot.writer, b"junk" * 10)
        writer.publish(slot.writer)
        writer.detach(slot.writer)
    done = daemon.ctl("load", "m", str(other), "--attribute", "a=b")
    assert "the files of the newest version of 'm' are left out, because they cannot be used: " in done.stderr
    paths, attributes = found(daemon)
    assert paths == [] and (attributes["a"], attributes["dtype"]) == ("b", "F32")


def test_path_of_the_weights_that_the_caller_sets_takes_precedence(daemon, model, tmp_path):
    daemon.ctl("load", "m", str(model))
    other = write_weights(tmp_path / "other.safetensors", value=2)
    daemon.ctl("load", "m", str(other), "--attribute", "weights=unet/w.safetensors")
    assert found(daemon)[1]["weights"] == "unet/w.safetensors"
    daemon.ctl("load", "m", str(other))
    assert found(daemon)[1]["weights"] == "unet/w.safetensors"


@pytest.mark.parametrize("option", ["--exclusive", "--reusable", "--replace"])
def test_buffer_of_any_kind_keeps_files(daemon, model, tmp_path, option):
    other = write_weights(tmp_path / "other.safetensors", value=2)
    daemon.ctl("load", "m", str(model), option)
    assert found(daemon)[0] == ["config.json"]
    for step in "1", "2":
        daemon.ctl("load", "m", str(other), "--attribute", f"step={step}", *[option] * (option == "--replace"))
        paths, attributes = found(daemon)
        assert paths == ["config.json"]
        assert (attributes["step"], attributes["architecture"]) == (step, "LlamaForCausalLM")


@pytest.mark.parametrize("option", ["--no-files", "--new-layout"])
def test_load_of_a_file_as_another_model_keeps_nothing(daemon, model, tmp_path, option):
    other = write_weights(tmp_path / "other.safetensors", value=2)
    daemon.ctl("load", "m", str(model))
    daemon.ctl("load", "m", str(other), option)
    assert found(daemon) == ([], {key: value for key, value in found(daemon, "m@1")[1].items()
                                  if key in ("dtype", "weights", "weightd")})


def test_load_of_a_directory_replaces_the_files(daemon, model):
    write_files(model, "tokenizer.json")
    daemon.ctl("load", "m", str(model))
    (model / "tokenizer.json").unlink()
    write_files(model, "vocab.txt")
    daemon.ctl("load", "m", str(model))
    assert found(daemon)[0] == ["config.json", "vocab.txt"]
    assert found(daemon, "m@1")[0] == ["config.json", "tokenizer.json"]


@pytest.mark.parametrize("name, weights", [
    ("model.fp16.safetensors", "model.safetensors"), ("diffusion_pytorch_model.safetensors",) * 2,
    ("adapter_model.safetensors",) * 2, ("llama.safetensors", "model.safetensors"),
    ("model-00001-of-00001.safetensors", "model.safetensors")])
def test_weights_have_the_name_that_programs_expect_of_one_file(daemon, tmp_path, name, weights):
    write_weights(tmp_path / "d" / name)
    daemon.ctl("load", "m", str(tmp_path / "d"))
    assert found(daemon)[1]["weights"] == weights


# --- Pipelines ---------------------------------------------------------------------------------------


@pytest.fixture
def pipeline(tmp_path):
    """One of diffusers with one weighted component."""
    folder = tmp_path / "ddpm"
    write_weights(folder / "unet/diffusion_pytorch_model.safetensors")
    write_files(folder / "unet", config_json='{"_class_name": "UNet2DModel", "_diffusers_version": "0.42.1"}')
    write_files(folder, "scheduler/scheduler_config.json", "README.md",
                model_index_json='{"_class_name": "DDPMPipeline", "_diffusers_version": "0.42.1"}')
    return folder


def test_pipeline_with_one_weighted_component_is_one_version(daemon, pipeline):
    daemon.ctl("load", "m", str(pipeline) + "/")
    paths, attributes = found(daemon)
    assert paths == ["README.md", "model_index.json", "scheduler/scheduler_config.json", "unet/config.json"]
    assert attributes["weights"] == "unet/diffusion_pytorch_model.safetensors"
    assert (attributes["architecture"], attributes["producer"]) == ("DDPMPipeline", "diffusers 0.42.1")
    daemon.ctl("load", "unet", str(pipeline / "unet"))
    assert found(daemon, "unet")[1]["architecture"] == "UNet2DModel"


@pytest.mark.parametrize("other", ["text_encoder/model.safetensors", "vae/diffusion_pytorch_model.bin"])
def test_pipeline_with_several_weighted_components_is_refused_by_their_names(daemon, pipeline, other):
    write_weights(pipeline / other)
    said = refused(daemon, "m", str(pipeline))
    first, second = sorted([other.split("/")[0], "unet"])
    assert f"its components '{first}', '{second}' have weights each" in said
    assert f"weightctl load NAME/{first} DIR/{first}" in said


def test_pipeline_that_leads_to_itself_is_refused(daemon, tmp_path):
    write_files(tmp_path, "pytorch_model.bin", model_index_json="{}")
    (tmp_path / "unet").symlink_to(".")
    assert "no .safetensors file" in refused(daemon, "m", str(tmp_path))


def write_modules(folder, *paths):
    write_files(folder, modules_json=json.dumps([{"idx": i, "path": path} for i, path in enumerate(paths)]))


def test_small_modules_of_sentence_transformers_are_files_beside_the_weights(daemon, model):
    write_weights(model / "2_Dense/model.safetensors")
    write_weights(model / "checkpoint-1/model.safetensors")
    write_files(model, "2_Dense/config.json", "1_Pooling/config.json", "checkpoint-1/config.json")
    write_modules(model, "", "1_Pooling", "2_Dense")
    daemon.ctl("load", "m", str(model))
    assert found(daemon)[0] == ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "config.json",
                                "modules.json"]
    dense = daemon.ctl("cat", "m", "--file", "2_Dense/model.safetensors", text=False).stdout
    assert dense == (model / "2_Dense/model.safetensors").read_bytes()


def test_transformer_in_a_folder_of_its_own_is_the_version(daemon, tmp_path):
    write_weights(tmp_path / "0_Transformer/model.safetensors")
    write_weights(tmp_path / "2_Dense/model.safetensors")
    write_files(tmp_path / "0_Transformer", config_json=json.dumps(CONFIG))
    write_modules(tmp_path, "0_Transformer", "1_Pooling", "2_Dense", "../..")
    daemon.ctl("load", "m", str(tmp_path))
    paths, attributes = found(daemon)
    assert paths == ["0_Transformer/config.json", "2_Dense/model.safetensors", "modules.json"]
    assert attributes["weights"] == "0_Transformer/model.safetensors"
    assert attributes["architecture"] == "LlamaForCausalLM"


# --- Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute, code, said", [
    ("x", 2, "--attribute wants KEY=VALUE, not 'x'"), ("=x", 2, "--attribute wants KEY=VALUE"),
    ("a b=x", 1, "'a b' cannot be the name of an attribute"), ("weights=../x", 1, "'../x' cannot be the path of a file"),
    ("weights=config.json", 1, "'config.json' is there twice"), ("x=" + "y" * 5000, 1, "at most 4095 bytes")])
def test_attribute_that_cannot_be_one_is_refused(daemon, model, attribute, code, said):
    done = daemon.ctl("load", "m", str(model), "--attribute", attribute, check=False)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert daemon.ctl("ls", "--noheadings", check=False).stdout == ""


def test_older_server_loads_the_weights_alone_and_refuses_attributes(daemon, model, tmp_path):
    with FakeServer(tmp_path / "old.sock") as old:
        asked = later(daemon.ctl, "load", "m", str(model), "--attribute", "a=b", "--socket", str(tmp_path / "old.sock"),
                      check=False)
        old.accept()
        assert "is too old to keep files beside weights" in asked.result(60).stderr


def test_weights_of_a_gguf_file_are_named_as_such(daemon, model):
    gguf.write(model / "llama-q8.gguf", {"w": ("F16", [8], bytes(16)), "q": ("Q8_0", [1, 64], bytes(68))})
    daemon.ctl("load", "q", str(model / "llama-q8.gguf"))
    paths, attributes = found(daemon, "q")
    assert paths == [] and (attributes["weights"], attributes["dtype"]) == ("model.gguf", "Q8_0")
    daemon.ctl("load", "m", str(model))
    daemon.ctl("load", "m", str(model / "llama-q8.gguf"), "--new-layout")
    assert found(daemon)[1]["weights"] == "model.gguf"


@pytest.mark.parametrize("change, needed", [
    (lambda model: None, False),
    (lambda model: (model / "config.json").touch(), False),
    (lambda model: write_weights(model / "model.safetensors", value=2), True),
    (lambda model: write_files(model, config_json="{}"), True),
    (lambda model: write_files(model, "tokenizer.json"), True),
    (lambda model: (model / "merges.txt").unlink(), True),
], ids=["nothing", "time", "weights", "configuration", "new-file", "lost-file"])
def test_load_if_needed_compares_weights_and_files(daemon, model, change, needed):
    write_files(model, "merges.txt")
    daemon.ctl("load", "-q", "--if-needed", "m", str(model))
    change(model)
    done = daemon.ctl("load", "-q", "--json", "--if-needed", "m", str(model))
    assert json.loads(done.stdout)["version"] == 1 + needed


def test_load_if_needed_compares_attributes(daemon, model):
    daemon.ctl("load", "-q", "m", str(model), "--attribute", "tp_rank=0")
    assert daemon.ctl("load", "--if-needed", "m", str(model), "--attribute", "tp_rank=0").stdout == \
        "m@1 on host has these tensors and files already\n"
    weights = str(model / "model.safetensors")  # a file keeps the files of the version, and its attributes
    assert json.loads(daemon.ctl("load", "--json", "--if-needed", "m", weights).stdout)["version"] == 1
    assert json.loads(daemon.ctl("load", "--json", "-q", "--if-needed", "m", weights, "--attribute", "tp_rank=1").stdout)["version"] == 2
    assert json.loads(daemon.ctl("load", "--json", "-q", "--if-needed", "m", str(model)).stdout)["version"] == 3


def test_load_if_needed_takes_one_path(daemon, model):
    done = daemon.ctl("load", "--if-needed", "m", str(model), str(model), check=False)
    assert done.returncode == 2 and "--if-needed takes one path" in done.stderr

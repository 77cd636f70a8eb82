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


# --- Types -----------------------------------------------------------------------------------------

CODES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def edges(numpy):
    """Tensors with all patterns of 16 bits, the ends and ties of all exponents, and random floats and doubles."""
    rng = numpy.random.default_rng(3)
    halves = numpy.arange(1 << 16, dtype=numpy.uint16)
    exponents = numpy.arange(512, dtype=numpy.uint32) << 23
    digits = numpy.array([0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0x17fff, 0x18000, 0x3000, 0x400000, 0x7fffff],
                         dtype=numpy.uint32)
    words = numpy.concatenate([(exponents[:, None] | digits).ravel(), rng.integers(0, 1 << 32, 700_001, dtype=numpy.uint32)])
    with numpy.errstate(invalid="ignore"):
        wide = words[:100_000].view(numpy.float32).astype(numpy.float64) * (1 + 2.0 ** -30)
    doubles = numpy.concatenate([wide,
                                 rng.integers(0, 1 << 63, 5001, dtype=numpy.uint64).view(numpy.float64)])
    return {"half": ("F16", [256, 256], halves.tobytes()), "bfloat": ("BF16", [256, 256], halves.tobytes()),
            "float": ("F32", [len(words)], words.tobytes()), "double": ("F64", [len(doubles)], doubles.tobytes())}


KEPT = {"ids": ("I64", [3], bytes(range(24))), "mask": ("BOOL", [5], b"\0\1\0\1\1"), "scalar": ("F32", [], b"\0\0\x80\x3f"),
        "empty": ("F32", [0, 3], b"")}


def of_torch(torch, tensor, dtype):
    kind, shape, data = tensor
    made = torch.frombuffer(bytearray(data), dtype=getattr(torch, CODES[kind])) if data else torch.zeros(0)
    return made.to(getattr(torch, CODES[dtype]))


def same_bits(torch, numpy, data, made):
    """NaN for NaN, as torch's own differ between the lengths of tensors and between machines; else all bits."""
    kind = {2: numpy.uint16, 4: numpy.uint32}[made.element_size()]
    found = torch.frombuffer(bytearray(data), dtype=made.dtype)
    number = (~torch.isnan(made)).numpy()
    assert (torch.isnan(found).numpy() == ~number).all()
    integers = {2: torch.int16, 4: torch.int32}[made.element_size()]
    wanted = made.contiguous().view(integers).numpy().view(kind)
    assert (numpy.frombuffer(data, dtype=kind)[number] == wanted[number]).all()


@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_casts_have_the_bits_of_torch(daemon, tmp_path, numpy, dtype):
    import torch
    tensors = edges(numpy) | KEPT
    write_model(tmp_path / "m.safetensors", tensors)
    daemon.ctl("load", "m", str(tmp_path / "m.safetensors"), "--dtype", dtype.lower())
    listed = {t["name"]: t for t in json.loads(daemon.ctl("tensors", "m", "--json").stdout)["tensors"]}
    for name, tensor in tensors.items():
        data = daemon.ctl("cat", "m", name, text=False).stdout
        assert listed[name]["shape"] == tensor[1]
        if tensor[0] == dtype or tensor[0] not in CODES:
            assert (listed[name]["dtype"], data) == (tensor[0], tensor[2])
            continue
        assert listed[name]["dtype"] == dtype
        if data:
            same_bits(torch, numpy, data, of_torch(torch, tensor, dtype))
    daemon.ctl("verify", "m")
    assert attributes(daemon, "m")["cast"] == dtype and attributes(daemon, "m")["dtype"] == dtype


def test_a_file_of_that_type_is_taken_as_it_is(daemon, tmp_path):
    tensors = {"a": ("BF16", [300], bytes(600)), "ids": ("I32", [2], bytes(8))}
    write_model(tmp_path / "m.safetensors", tensors)
    digests = []
    for name, options in (("m", ["--dtype", "BF16"]), ("plain", [])):
        daemon.ctl("load", name, str(tmp_path / "m.safetensors"), *options)
        digests.append(json.loads(daemon.ctl("show", name, "--json").stdout)["versions"][-1]["digest"])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name, dtype, words", [
    ("w", "F8_E4M3", "is F8_E4M3, of a quantised model"), ("w", "C64", "is C64, complex"),
    ("layer.qweight", "I32", "is I32, of a quantised model")])
def test_quantised_types_are_refused(daemon, tmp_path, name, dtype, words):
    write_model(tmp_path / "m.safetensors", {"norm": ("F32", [2], bytes(8)), name: (dtype, [8], bytes({"F8_E4M3": 8, "C64": 64}.get(dtype, 32)))})
    refused = daemon.ctl("load", "m", str(tmp_path / "m.safetensors"), "--dtype", "bf16", check=False)
    assert refused.returncode == 1 and f"'{name}' {words}" in refused.stderr, refused.stderr
    daemon.ctl("load", "m", str(tmp_path / "m.safetensors"), "--dtype", "bf16", "--exclude", name)
    check_bytes(daemon, "m", {"norm": ("BF16", [2], bytes(4))})


def test_no_other_type_is_a_target(daemon, checkpoint, weightd):
    wrong = daemon.ctl("load", "m", str(checkpoint[0]), "--dtype", "f8", check=False)
    assert wrong.returncode == 2 and "--dtype wants bf16, f16 or f32, not 'f8'" in wrong.stderr
    with pytest.raises(ValueError, match="'I8' is none of"):
        weightd.load("m", checkpoint[0], dtype="I8")


def test_if_needed_compares_what_a_cast_makes(daemon, tmp_path):
    write_model(tmp_path / "m.safetensors", {"a": ("F32", [70_000], bytes(range(250)) * 1120)})

    def version(*options):
        return json.loads(daemon.ctl("load", "--json", "-q", "--if-needed", "--new-layout", "m", str(tmp_path / "m.safetensors"),
                                     *options).stdout)["version"]
    assert [version("--dtype", "f16"), version("--dtype", "f16"), version("--dtype", "bf16"), version(), version()] == [1, 1, 2, 3, 3]


def test_a_cast_into_a_layout_with_a_tie(daemon, tmp_path, weightd, numpy):
    """The newest version ties two names: the file's tensors become one if their bytes are the same after the cast."""
    layout = weightd.Layout()
    layout.add("a", "BF16", [300])
    layout.tie("b", "a")
    with weightd.create("m", layout) as writer:
        writer.publish()
    low = numpy.full(300, 0x3f800001, dtype=numpy.uint32).tobytes()
    high = numpy.full(300, 0x3f800002, dtype=numpy.uint32).tobytes()
    other = numpy.full(300, 0x3f900000, dtype=numpy.uint32).tobytes()
    write_model(tmp_path / "m.safetensors", {"a": ("F32", [300], low), "b": ("F32", [300], high)})
    daemon.ctl("load", "m", str(tmp_path / "m.safetensors"), "--dtype", "bf16")
    check_bytes(daemon, "m", {name: ("BF16", [300], b"\x80\x3f" * 300) for name in "ab"})
    write_model(tmp_path / "m.safetensors", {"a": ("F32", [300], low), "b": ("F32", [300], other)})
    refused = daemon.ctl("load", "m", str(tmp_path / "m.safetensors"), "--dtype", "bf16", check=False)
    assert refused.returncode == 1 and "different bytes" in refused.stderr
